"""Proximal maps and projections, the same for numpy and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from compensate.core.proximal import (
    group_soft_threshold,
    hard_threshold,
    project_ball,
    project_simplex,
    shrink,
    soft_threshold,
)

MAPS = {
    "soft": soft_threshold,
    "group": group_soft_threshold,
    "hard": hard_threshold,
    "shrink": shrink,
    "l2": lambda v, t: project_ball(v, t, "l2"),
    "linf": lambda v, t: project_ball(v, t, "linf"),
    "simplex": lambda v, t: project_simplex(v),
}


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("by_row", [False, True])
def test_numpy_and_torch_agree(name, by_row):
    v = np.random.default_rng(0).normal(size=(5, 4))
    t = np.linspace(0.1, 1.0, 5) if by_row else 0.4
    ours = MAPS[name](torch.tensor(v), torch.tensor(t) if by_row else t)
    assert np.allclose(MAPS[name](v, t), ours.numpy())
    if by_row:
        rows = [MAPS[name](v[i : i + 1], t[i])[0] for i in range(5)]
        assert np.allclose(MAPS[name](v, t), rows)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=5))
def test_simplex_projection_is_the_nearest_point(values):
    v = np.array([values])
    ours = project_simplex(v)[0]
    assert ours.sum() == pytest.approx(1)
    found = minimize(
        lambda w: ((w - v[0]) ** 2).sum(),
        np.full(len(values), 1 / len(values)),
        bounds=[(0, 1)] * len(values),
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    ).x
    assert ours == pytest.approx(found, abs=1e-4)


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 2), st.sampled_from(["l2", "linf"]), st.integers(0, 10**6))
def test_ball_projection_stays_inside_and_keeps_inner_points(radius, norm, seed):
    v = torch.randn(6, 3, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    size = v.flatten(1).norm(dim=1) if norm == "l2" else v.flatten(1).abs().amax(1)
    w = project_ball(v, radius, norm)
    after = w.flatten(1).norm(dim=1) if norm == "l2" else w.flatten(1).abs().amax(1)
    assert (after <= radius + 1e-12).all()
    assert torch.allclose(w[size <= radius], v[size <= radius])


def test_zero_rows_stay_finite():
    zero = torch.zeros(2, 3)
    assert not group_soft_threshold(zero, 0.5).isnan().any()
    assert not project_ball(zero, 0.5, "l2").isnan().any()
