"""Logit perturbation by class: a loop over classes and steps, its limits, and what it does to each class."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from compensate import InputError
from compensate.methods import lpg, lpl


def softmax(u):
    e = np.exp(u - u.max())
    return e / e.sum()


def radius(c, scores, middle, *, eps, growth, by):
    """The authors' bound of a class: by its distance from the threshold, or by its share relative to the largest or the least one."""
    if by == "probability":
        return eps + growth * abs(middle - scores[c])
    if scores[c] > middle:
        return eps + growth * scores[c] / max(scores)
    return eps + growth * min(scores) / scores[c]


def shifts(u, y, *, eps, step, growth, scores=None, targets=None):
    """The shift of every class present, step by step and sample by sample; `targets` are soft labels, `y` their likeliest classes."""
    classes, by = sorted(set(y)), "probability" if scores is None else "share"
    targets = np.eye(u.shape[1])[y] if targets is None else targets
    if scores is None:
        scores = {c: np.mean([softmax(row)[c] for row, label in zip(u, y, strict=True) if label == c]) for c in classes}
        middle = np.mean([scores[c] for c in classes])
    else:
        middle = np.mean(scores)
    found = {}
    for c in classes:
        d = np.zeros(u.shape[1])
        bound = radius(c, scores, middle, eps=eps, growth=growth, by=by)
        for _ in range(math.floor(bound / step + 1e-9)):
            rows = [softmax(u[i] + d) - targets[i] for i, label in enumerate(y) if label == c]
            g = np.mean(rows, axis=0)
            d = d + np.sign(middle - scores[c]) * step * g / np.linalg.norm(g)
        found[c] = d
    return found


@pytest.mark.parametrize(
    ("eps", "step", "growth"), [(0.5, 0.05, 0.1), (1.0, 0.25, 0.5), (0.3, 0.1, 0.0), (0.29, 0.1, 0.0), (0.2, 0.02, 2.0)]
)
def test_the_shift_of_each_class_is_that_of_a_loop(eps, step, growth):
    u, y = 2 * torch.randn(20, 5, dtype=torch.float64), torch.randint(4, (20,))
    s = lpl(eps=eps, step=step, growth=growth).evaluate(torch.nn.Identity(), u, y)
    expected = shifts(u.numpy(), y.tolist(), eps=eps, step=step, growth=growth)
    for row, label in zip(s.du, y.tolist(), strict=True):
        np.testing.assert_allclose(row.numpy(), expected[label], atol=1e-7)


@pytest.mark.parametrize("by", ["probability", "share"])
def test_the_slope_of_a_soft_label_is_the_prediction_minus_the_label(by):
    u = 2 * torch.randn(16, 3, dtype=torch.float64)
    targets = torch.randn(16, 3, dtype=torch.float64).softmax(-1)
    y, counts = targets.argmax(-1), [60, 35, 5]
    s = lpl(by=by, class_counts=counts).evaluate(torch.nn.Identity(), u, targets)
    scores = None if by == "probability" else [c / 100 for c in counts]
    expected = shifts(u.numpy(), y.tolist(), eps=0.5, step=0.05, growth=0.1, scores=scores, targets=targets.numpy())
    for row, label in zip(s.du, y.tolist(), strict=True):
        np.testing.assert_allclose(row.numpy(), expected[label], atol=1e-7)


def test_uncertain_labels_under_bce_are_shifted_as_a_loop_says():
    u, y = torch.randn(9, 2, dtype=torch.float64), torch.rand(9, 2, dtype=torch.float64)
    eps, step = 0.4, 0.05
    s = lpl(eps=eps, step=step, growth=0.0, base="bce").evaluate(torch.nn.Identity(), u, y)
    found = s.du.reshape(9, 2)
    groups = {(c, k): [i for i in range(9) if (y[i, c] >= 0.5) == k] for c in range(2) for k in (False, True)}
    groups = {key: members for key, members in groups.items() if members}
    likely = {
        (c, k): np.mean([torch.sigmoid(u[i, c] if k else -u[i, c]).item() for i in members])
        for (c, k), members in groups.items()
    }
    for (c, k), members in groups.items():
        d, sign = 0.0, np.sign(np.mean([*likely.values()]) - likely[c, k])
        for _ in range(8):
            d += sign * step * np.sign(np.mean([torch.sigmoid(u[i, c] + d).item() - y[i, c].item() for i in members]))
        for i in members:
            assert found[i, c].item() == pytest.approx(d)


@pytest.mark.parametrize("make", [lpl, lpg])
@pytest.mark.parametrize("eps", [0.5, 0.05])
def test_by_share_a_class_has_the_same_radius_in_every_batch(make, eps):
    """What is done to samples of classes 1 and 2 does not depend on whether class 0 is in the batch."""
    u, y = torch.randn(12, 4, dtype=torch.float64, requires_grad=True), torch.arange(12) % 3
    criterion = make(class_counts=[50, 30, 15, 5], by="share", eps=eps, growth=1.0)
    whole = criterion.evaluate(torch.nn.Identity(), u, y)
    part = criterion.evaluate(torch.nn.Identity(), u[y > 0], y[y > 0])
    for name in ("du", "dg"):
        if getattr(whole, name) is not None:
            torch.testing.assert_close(getattr(part, name), getattr(whole, name)[y > 0])


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"eps": -1}, "eps"), ({"step": 0}, "step"), ({"by": "size"}, "by"), ({"by": "share"}, "class_counts")],
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(InputError, match=said):
        lpl(**settings)
