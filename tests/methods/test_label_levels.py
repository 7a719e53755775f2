"""Labels at two levels (Eq. 19), and labels learned by meta steps."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compensate import METHODS, InputError
from compensate.core.proximal import project_simplex
from compensate.core.taxonomy import measured, overall_sign
from compensate.methods import meta_label, mix_level_label
from compensate.terms.meta import meta_gradient

COUNTS = [60, 20, 4]


def test_both_levels_are_added():
    u, y = torch.randn(30, 3, dtype=torch.float64, requires_grad=True), torch.randint(3, (30,))
    target = F.one_hot(y, 3).double()
    for row, c in enumerate(y.tolist()):
        eps = 0.1 + (0.4 - 0.1) * math.sin(math.pi * (COUNTS[c] - 4) / (2 * (60 - 4)))
        onehot = target[row].clone()
        target[row] += 0.3 * (u[row].softmax(-1).detach() - onehot) + eps * (1 / 3 - onehot)
    s = mix_level_label(class_counts=COUNTS).evaluate(nn.Identity(), u, y)
    expected = F.cross_entropy(u, target)
    assert torch.allclose(s.loss, expected, atol=1e-6)
    assert torch.allclose(torch.autograd.grad(s.loss, u)[0], torch.autograd.grad(expected, u)[0], atol=1e-6)
    new = s.y + s.dy
    assert (new >= 0).all()
    assert torch.allclose(new.sum(-1), torch.ones(30).double(), atol=1e-6)
    assert overall_sign(measured(s)) == "mixed" == METHODS["mix_level_label"].taxonomy.direction


@pytest.mark.parametrize("bad", [{"lam": 0.7}, {"head": 0.8}, {"class_counts": [5, 0, 1]}])
def test_labels_cannot_give_more_than_they_have(bad):
    with pytest.raises(InputError):
        mix_level_label(**{"class_counts": COUNTS, **bad})


def linear_case():
    model = nn.Linear(3, 4).double()
    x, y, i = torch.randn(6, 3).double(), torch.randint(4, (6,)), torch.randperm(10)[:6]
    clean = torch.randn(5, 3).double(), torch.randint(4, (5,))
    return model, (x, y, i), clean


def look_ahead(model, x, target, clean, lr):
    """The clean loss after one step under the labels `target`."""
    ahead = copy.deepcopy(model)
    loss = F.cross_entropy(ahead(x), target)
    with torch.no_grad():
        for p, g in zip(ahead.parameters(), torch.autograd.grad(loss, list(ahead.parameters())), strict=True):
            p -= lr * g
    return F.cross_entropy(ahead(clean[0]), clean[1]).item()


@pytest.mark.parametrize("per", ["sample", "category"])
def test_meta_gradient_of_labels_by_finite_differences(per):
    model, (x, y, i), clean = linear_case()
    criterion = meta_label(num_samples=10, num_classes=4, per=per).double()
    table = next(criterion.tables())
    v = 0.1 * torch.rand_like(table.weight)  # off the corner of the simplex, where the projection has no derivative
    key = i if per == "sample" else y
    v[key, y] -= 0.5
    table.weight.data.copy_(v)

    def outer(v):
        return look_ahead(model, x, project_simplex(F.one_hot(y, 4) + v[key]), clean, 0.7)

    value, s, (grad,), _ = meta_gradient(criterion, model, (x, y, i), clean, lr=0.7)
    assert value.item() == pytest.approx(outer(v))
    assert (s.y + s.dy > 0).any()
    (touched,) = s.touched
    for row, k in enumerate(touched.keys.tolist()):
        for c in range(4):
            step = torch.zeros_like(v)
            step[k, c] = 1e-5
            assert grad[row, c].item() == pytest.approx((outer(v + step) - outer(v - step)) / 2e-5, abs=1e-7)


def test_bad_settings_are_refused():
    with pytest.raises(InputError):
        meta_label(num_samples=4, num_classes=3, per="corpus")
