"""Data ambiguation: the smallest divergence over a set of labels, found by search, and its limits."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.optimize import minimize

from compensate import InputError
from compensate.methods import data_ambiguation


def smallest(p, label, alpha, beta):
    """The smallest KL(q || p) over all q that give at most alpha to implausible classes, by a general solver."""
    outside = [k for k, v in enumerate(p) if v < beta and k != label]

    def divergence(q):
        return sum(a * math.log(max(a, 1e-300) / b) for a, b in zip(q, p, strict=True) if a > 0)

    limits = [
        {"type": "eq", "fun": lambda q: sum(q) - 1},
        {"type": "ineq", "fun": lambda q: alpha - sum(q[k] for k in outside)},
    ]
    start = [alpha / max(len(outside), 1) if k in outside else 0.0 for k in range(len(p))]
    inside = [k for k in range(len(p)) if k not in outside]
    for k in inside:
        start[k] = (1 - sum(start)) / 1 if len(inside) == 1 else (1 - (alpha if outside else 0)) / len(inside)
    found = minimize(divergence, start, bounds=[(0, 1)] * len(p), constraints=limits, tol=1e-12)
    assert found.success
    return found.fun


@pytest.mark.parametrize(("alpha", "beta"), [(0.05, 0.6), (0.2, 0.4), (0.1, 0.9)])
def test_the_loss_is_the_smallest_divergence_that_the_set_allows(alpha, beta):
    u, y = 2 * torch.randn(15, 4, dtype=torch.float64), torch.randint(4, (15,))
    s = data_ambiguation(alpha=alpha, beta=beta, beta_end=None).evaluate(torch.nn.Identity(), u, y)
    expected = [smallest(p, c, alpha, beta) for p, c in zip(u.softmax(-1).tolist(), y.tolist(), strict=True)]
    torch.testing.assert_close(s.losses, torch.tensor(expected, dtype=torch.float64), rtol=1e-4, atol=1e-5)
    assert (s.losses <= s.plain_losses + 1e-12).all()


def smallest_for_soft_labels(p, y, alpha, beta):
    """The smallest KL(q || p) where implausible classes exceed the label by at most alpha, by a general solver; variables: q, then excess."""
    classes = range(len(p))
    implausible = [k for k in classes if p[k] < beta]

    def divergence(v):
        return sum(v[k] * math.log(max(v[k], 1e-300) / p[k]) for k in classes if v[k] > 0)

    limits = [
        {"type": "eq", "fun": lambda v: sum(v[: len(p)]) - 1},
        {"type": "ineq", "fun": lambda v: alpha - sum(v[len(p) :])},
        *({"type": "ineq", "fun": lambda v, k=k: v[len(p) + k] - v[k] + y[k]} for k in implausible),
    ]
    found = minimize(divergence, [*y, *[0.0] * len(p)], bounds=[(0, 1)] * 2 * len(p), constraints=limits, tol=1e-12)
    assert found.success
    return found.fun


@pytest.mark.parametrize(("alpha", "beta"), [(0.05, 0.6), (0.2, 0.4), (0.0, 0.5)])
def test_soft_labels_may_be_exceeded_by_plausible_classes_alone(alpha, beta):
    u = 2 * torch.randn(12, 4, dtype=torch.float64, requires_grad=True)
    y = torch.randn(12, 4, dtype=torch.float64).mul(2).softmax(-1)
    s = data_ambiguation(alpha=alpha, beta=beta, beta_end=None).evaluate(torch.nn.Identity(), u, y)
    expected = [smallest_for_soft_labels(p, q, alpha, beta) for p, q in zip(s.p.tolist(), y.tolist(), strict=True)]
    torch.testing.assert_close(s.losses.detach(), torch.tensor(expected, dtype=torch.float64), rtol=1e-3, atol=1e-5)
    assert (s.losses <= s.plain_losses + 1e-12).all()
    (grad,) = torch.autograd.grad(s.losses.sum(), u)
    torch.testing.assert_close(grad, (s.p - y - s.dy).detach())
    assert grad.abs().max() > 0.1


def test_the_threshold_falls_by_a_cosine():
    criterion = data_ambiguation(beta=0.8, beta_end=0.4).start(10)
    u, y = torch.tensor([[math.log(0.6), math.log(0.4)]]), torch.tensor([1])
    seen = [float(criterion(u, y)) < 1e-6 for _ in range(11)]
    values = [0.4 + 0.2 * (1 + math.cos(math.pi * t / 10)) for t in range(11)]
    assert seen == [value <= 0.6 + 1e-9 for value in values]


@pytest.mark.parametrize(("settings", "said"), [({"alpha": 1}, "alpha"), ({"beta": 2, "beta_end": None}, "beta")])
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(InputError, match=said):
        data_ambiguation(**settings)
