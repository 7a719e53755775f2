"""Logit perturbation by class: a loop over classes and steps, its limits, and what it does to each class."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from compensate import InputError
from compensate.methods import lpl


def softmax(u):
    e = np.exp(u - u.max())
    return e / e.sum()


def shifts(u, y, *, eps, step, growth, scores=None):
    """The shift of every class present, step by step and sample by sample."""
    classes = sorted(set(y))
    if scores is None:
        scores = {c: np.mean([softmax(row)[c] for row, label in zip(u, y, strict=True) if label == c]) for c in classes}
        middle = np.mean([scores[c] for c in classes])
    else:
        middle = np.mean(scores)
    found = {}
    for c in classes:
        gap = middle - scores[c]
        widest = max(abs(middle - scores[k]) for k in classes if (middle - scores[k]) * gap > 0) if gap else 1.0
        d = np.zeros(u.shape[1])
        for _ in range(round(eps * (1 + growth * abs(gap) / widest) / step)):
            rows = [softmax(row + d) for row, label in zip(u, y, strict=True) if label == c]
            g = np.mean(rows, axis=0) - np.eye(u.shape[1])[c]
            d = d + np.sign(gap) * step * g / np.linalg.norm(g)
        found[c] = d
    return found


@pytest.mark.parametrize(("eps", "step", "growth"), [(0.5, 0.05, 0.1), (1.0, 0.25, 0.5), (0.3, 0.1, 0.0)])
def test_the_shift_of_each_class_is_that_of_a_loop(eps, step, growth):
    u, y = 2 * torch.randn(20, 5, dtype=torch.float64), torch.randint(4, (20,))
    s = lpl(eps=eps, step=step, growth=growth).evaluate(torch.nn.Identity(), u, y)
    expected = shifts(u.numpy(), y.tolist(), eps=eps, step=step, growth=growth)
    for row, label in zip(s.du, y.tolist(), strict=True):
        np.testing.assert_allclose(row.numpy(), expected[label], atol=1e-7)


def test_by_share_rare_classes_get_harder_and_frequent_ones_easier():
    u, y = torch.randn(12, 3, dtype=torch.float64), torch.arange(12) % 3
    counts = [60, 35, 5]
    s = lpl(class_counts=counts, by="share").evaluate(torch.nn.Identity(), u, y)
    shares = [c / 100 for c in counts]
    expected = shifts(u.numpy(), y.tolist(), eps=0.5, step=0.05, growth=0.1, scores=shares)
    for row, label in zip(s.du, y.tolist(), strict=True):
        np.testing.assert_allclose(row.numpy(), expected[label], atol=1e-7)
    change = s.losses - s.plain_losses
    assert change[y == 2].sum() > 0 > change[y == 0].sum()


def test_classes_that_are_learned_badly_get_harder():
    u = torch.tensor([[4.0, 0.0, 0.0], [0.0, 0.2, 0.0], [3.0, 0.0, 1.0]])
    s = lpl().evaluate(torch.nn.Identity(), u, torch.tensor([0, 1, 2]))
    assert ((s.losses - s.plain_losses).sign() == torch.tensor([-1.0, 1.0, 1.0])).all()


def test_limits_are_cross_entropy():
    u, y = torch.randn(6, 3), torch.arange(6) % 3
    torch.testing.assert_close(lpl(eps=0.0)(u, y), F.cross_entropy(u, y))
    torch.testing.assert_close(lpl()(u, torch.ones(6, dtype=torch.long)), F.cross_entropy(u, torch.ones(6).long()))
    torch.testing.assert_close(lpl().eval()(u, y), F.cross_entropy(u, y))


def test_no_shift_is_longer_than_its_radius_and_ignored_samples_count_for_nothing():
    u, y = 3 * torch.randn(30, 4), torch.randint(4, (30,))
    s = lpl(eps=0.8, step=0.1, growth=0.5).evaluate(torch.nn.Identity(), u, y)
    assert s.du.norm(dim=-1).max() <= 0.8 * 1.5 + 1e-5
    ignored = torch.cat([y, torch.full((5,), -100)])
    more = lpl(eps=0.8, step=0.1, growth=0.5).evaluate(torch.nn.Identity(), torch.cat([u, torch.randn(5, 4)]), ignored)
    torch.testing.assert_close(more.du[:30], s.du)
    torch.testing.assert_close(more.loss, s.loss)


def test_the_shift_is_a_constant_in_the_gradient():
    u, y = torch.randn(6, 3, dtype=torch.float64, requires_grad=True), torch.arange(6) % 3
    s = lpl().evaluate(torch.nn.Identity(), u, y)
    (grad,) = torch.autograd.grad(s.loss, u)
    torch.testing.assert_close(grad, ((u + s.du).softmax(-1) - F.one_hot(y, 3)).detach() / 6)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"eps": -1}, "eps"), ({"step": 0}, "step"), ({"by": "size"}, "by"), ({"by": "share"}, "class_counts")],
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(InputError, match=said):
        lpl(**settings)
