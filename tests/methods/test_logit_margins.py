"""ArcFace and its group form, against angles computed by arccos, and finite differences."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compensate import InputError, meta_step
from compensate.methods import arcface, balanced_arcface
from compensate.terms.margins import CosineHead
from compensate.terms.meta import meta_gradient


class CosineNet(nn.Module):
    """Two layers and a cosine head."""

    def __init__(self, scale=8.0):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
        self.head = CosineHead(6, 3, scale)

    def features(self, x):
        return self.body(x)

    def forward(self, x):
        return self.head(self.features(x))


def naive_arcface(angles, y, m, s):
    """Eq. 40 with its logarithm, on angles themselves; beyond pi the reference's line."""
    losses = []
    for row, label, margin in zip(angles, y, np.broadcast_to(m, len(y)), strict=True):
        logits = s * np.cos(row)
        theta = row[label]
        inside = theta + margin < math.pi
        moved = math.cos(theta + margin) if inside else math.cos(theta) - math.sin(math.pi - margin) * margin
        logits[label] = s * moved
        losses.append(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[label])
    return np.array(losses)


@pytest.mark.parametrize("m", [0.0, 0.2, 0.5, 1.2])
@pytest.mark.parametrize("s", [2.0, 64.0])
def test_arcface_is_equation_40_and_the_guard_holds_past_pi(m, s):
    rng = np.random.default_rng(0)
    angles, y = rng.uniform(0.01, math.pi - 0.01, (50, 4)), rng.integers(4, size=50)
    u = torch.tensor(s * np.cos(angles))
    state = arcface(margin=m, scale=s).evaluate(nn.Identity(), u, torch.tensor(y))
    assert np.allclose(state.losses.numpy(), naive_arcface(angles, y, m, s), atol=1e-6)
    if m == 1.2:
        assert (angles[np.arange(50), y] + m > math.pi).sum() > 5, "the guard was at work"


def test_cosine_head_gives_cosines():
    head, z = CosineHead(5, 3, scale=7.0), torch.randn(4, 5)
    for i in range(4):
        for c in range(3):
            w = head.weight[c].detach().numpy()
            expected = 7.0 * w @ z[i].numpy() / np.linalg.norm(w) / np.linalg.norm(z[i].numpy())
            assert head(z)[i, c].item() == pytest.approx(expected, rel=1e-5)


def test_logits_that_are_no_cosines_are_refused():
    with pytest.raises(InputError, match="CosineHead"):
        arcface(scale=1.0)(torch.tensor([[3.0, 0.0]]), torch.tensor([0]))
    with pytest.raises(InputError, match="radians"):
        arcface(margin=45.0)


# --- group margins --------------------------------------------------------------------------------------------


def test_balanced_arcface_is_equation_41_by_class_or_by_sample():
    rng = np.random.default_rng(1)
    angles, y = rng.uniform(0.01, math.pi - 0.01, (30, 4)), rng.integers(4, size=30)
    u, margins = torch.tensor(8 * np.cos(angles)), np.array([0.1, 0.9])
    by_class = balanced_arcface(class_groups=[0, 1, 1, 0], scale=8.0).double()
    by_sample = balanced_arcface(num_groups=2, scale=8.0).double()
    group = rng.integers(2, size=30)
    for criterion in (by_class, by_sample):
        next(criterion.tables()).weight.data = torch.tensor(margins)
    known = by_class.evaluate(nn.Identity(), u, torch.tensor(y)).losses
    assert np.allclose(known.numpy(), naive_arcface(angles, y, margins[np.array([0, 1, 1, 0])[y]], 8.0), atol=1e-6)
    given = by_sample.evaluate(nn.Identity(), u, torch.tensor(y), group=torch.tensor(group)).losses
    assert np.allclose(given.numpy(), naive_arcface(angles, y, margins[group], 8.0), atol=1e-6)
    with pytest.raises(InputError, match="group is missing"):
        by_sample(u, torch.tensor(y))


def outer(model, margins, x, y, groups, clean, lr):
    model = copy.deepcopy(model)
    u = model(x)
    s = model.head.scale
    theta = (u[torch.arange(len(y)), y] / s).acos()
    u = u.clone()
    u[torch.arange(len(y)), y] = s * (theta + margins[groups[y]]).cos()
    F.cross_entropy(u, y).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= lr * p.grad
        return F.cross_entropy(model(clean[0]), clean[1]).item()


def test_group_margins_follow_equation_42():
    model = CosineNet().double()
    x, y = torch.randn(9, 4).double(), torch.arange(9) % 3
    clean = torch.randn(6, 4).double(), torch.arange(6) % 3
    groups = torch.tensor([0, 1, 1])
    criterion = balanced_arcface(class_groups=groups, margin=0.3, scale=8.0, lr=0.5).double()
    start = next(criterion.tables()).weight.detach().clone()
    _, _, (grad,), _ = meta_gradient(criterion, model, (x, y), clean, lr=0.2)
    for g in range(2):
        values = []
        for h in (1e-5, -1e-5):
            margins = start.clone()
            margins[g] += h
            values.append(outer(model, margins, x, y, groups, clean, 0.2))
        assert grad[g].item() == pytest.approx((values[0] - values[1]) / 2e-5, abs=1e-6)
    meta_step(criterion, model, (x, y), clean, lr=0.2)
    assert torch.allclose(next(criterion.tables()).weight, (start - 0.5 * grad).clamp(min=0))
    assert grad.abs().max() > 1e-5
