"""Logit adjustment, its meta form and LDAM, against naive loops, closed forms and finite differences."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from compensate import InputError, meta_step
from compensate.methods import ldam, logit_adjustment, meta_logit_adjustment, posthoc_logit_adjustment
from compensate.terms.meta import meta_gradient

COUNTS = [70, 20, 10]
IDENTITY = torch.nn.Identity()


def naive_adjusted(u, y, counts, tau):
    total = sum(counts)
    losses = []
    for row, label in zip(u.tolist(), y.tolist(), strict=True):
        shifted = [value + tau * math.log(n / total) for value, n in zip(row, counts, strict=True)]
        losses.append(math.log(sum(math.exp(v) for v in shifted)) - shifted[label])
    return losses


@pytest.mark.parametrize("tau", [0.0, 0.7, 1.0, 2.5])
def test_logit_adjustment_is_equation_29(tau):
    u, y = torch.randn(9, 3).double(), torch.randint(3, (9,))
    s = logit_adjustment(class_counts=COUNTS, tau=tau).double().evaluate(IDENTITY, u, y)
    assert torch.allclose(s.losses, torch.tensor(naive_adjusted(u, y, COUNTS, tau)).double(), atol=1e-6)


def test_any_increasing_function_will_do_and_others_are_refused():
    u, y = torch.randn(5, 3), torch.tensor([0, 1, 2, 2, 1])
    loss = logit_adjustment(class_counts=COUNTS, g=torch.sqrt)(u, y)
    assert torch.allclose(loss, F.cross_entropy(u + torch.tensor([0.7, 0.2, 0.1]).sqrt(), y))
    with pytest.raises(InputError, match="increasing"):
        logit_adjustment(class_counts=COUNTS, g=torch.neg)
    with pytest.raises(InputError, match=r"classes \[1\] have no training sample"):
        logit_adjustment(class_counts=[5, 0, 3])


def test_posthoc_form_is_bayes_for_balanced_classes():
    p = torch.tensor([[0.6, 0.3, 0.1]])
    balanced = posthoc_logit_adjustment(p.log(), class_counts=COUNTS).softmax(-1)
    expected = np.array([0.6 / 70, 0.3 / 20, 0.1 / 10])
    assert np.allclose(balanced.numpy(), expected / expected.sum())


# --- meta logit adjustment ------------------------------------------------------------------------------------


def test_meta_logit_adjustment_is_equation_a1():
    u, y = torch.randn(6, 3).double(), torch.tensor([0, 1, 2, 2, 1, 0])
    criterion = meta_logit_adjustment(class_counts=COUNTS).double()
    taus = [0.5, 1.5, -0.3]
    next(criterion.tables()).weight.data = torch.tensor(taus).double()[:, None]
    s = criterion.evaluate(IDENTITY, u, y)
    expected = [naive_adjusted(u[i : i + 1], y[i : i + 1], COUNTS, taus[y[i]])[0] for i in range(6)]
    assert torch.allclose(s.losses, torch.tensor(expected).double(), atol=1e-6)


def outer_loss(model, criterion, batch, clean, taus, lr):
    """Eqs. a-2 and a-3 with one SGD step in the place of the inner minimum; a plus sign in front of the sum."""
    model = copy.deepcopy(model)
    x, y = batch
    log_pi = (torch.tensor(COUNTS) / 100).double().log()
    u = model(x)
    F.cross_entropy(u + torch.tensor(taus, dtype=torch.double)[y][:, None] * log_pi, y).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= lr * p.grad
        return F.cross_entropy(model(clean[0]), clean[1]).item()


def test_meta_gradient_of_tau_equals_finite_differences_and_the_step_goes_down(tiny, batch):
    x, y, _ = batch
    clean = torch.randn(9, 4).double(), torch.arange(9) % 3
    criterion = meta_logit_adjustment(class_counts=COUNTS, lr=0.3).double()
    _, s, (grad,), _ = meta_gradient(criterion, tiny, (x, y), clean, lr=0.5)
    assert s.touched[0].keys.tolist() == [0, 1, 2]
    for c in range(3):
        ahead = [1.0 + 1e-5 * (k == c) for k in range(3)]
        behind = [1.0 - 1e-5 * (k == c) for k in range(3)]
        up, down = (outer_loss(tiny, criterion, (x, y), clean, taus, 0.5) for taus in (ahead, behind))
        assert grad[c].item() == pytest.approx((up - down) / 2e-5, abs=1e-7)
    meta_step(criterion, tiny, (x, y), clean, lr=0.5)
    assert torch.allclose(next(criterion.tables()).weight, 1.0 - 0.3 * grad, atol=1e-7)


@pytest.mark.parametrize("nonnegative", [True, False])
def test_tau_may_be_kept_at_least_zero(nonnegative, tiny, batch):
    x, y, _ = batch
    clean = torch.randn(9, 4).double(), torch.arange(9) % 3
    criterion = meta_logit_adjustment(class_counts=COUNTS, tau=0.0, lr=50.0, nonnegative=nonnegative).double()
    _, _, (grad,), _ = meta_gradient(criterion, tiny, (x, y), clean, lr=0.5)
    assert (grad > 0).any(), "some tau wants to become negative"
    meta_step(criterion, tiny, (x, y), clean, lr=0.5)
    assert (next(criterion.tables()).weight >= 0).all() == nonnegative


# --- LDAM -----------------------------------------------------------------------------------------------------


def reference_ldam(cosines, y, counts, *, max_m=0.5, s=30.0, weight=None):
    """The definition of Cao et al.: margins by the fourth root, cosines times s, weighted mean."""
    margins = np.array([n**-0.25 for n in counts])
    margins *= max_m / margins.max()
    total, weights = 0.0, 0.0
    for row, label in zip(cosines.tolist(), y.tolist(), strict=True):
        row = [s * (value - (margins[label] if c == label else 0.0)) for c, value in enumerate(row)]
        w = 1.0 if weight is None else weight[label]
        total += w * (math.log(sum(math.exp(v - max(row)) for v in row)) + max(row) - row[label])
        weights += w
    return total / weights


def test_ldam_is_its_definition_before_and_after_the_deferral():
    cosines, y = torch.rand(8, 3).double() * 2 - 1, torch.tensor([0, 0, 0, 1, 1, 2, 0, 2])
    criterion = ldam(class_counts=COUNTS, scale=30.0, defer=0.5).double().start(4)
    beta = 0.9999
    weight = np.array([(1 - beta) / (1 - beta**n) for n in COUNTS])
    weight *= 3 / weight.sum()
    losses = [criterion(30.0 * cosines, y).item() for _ in range(4)]
    plain, weighted = (reference_ldam(cosines, y, COUNTS, weight=w) for w in (None, weight))
    assert losses[:2] == pytest.approx([plain] * 2, rel=1e-6)
    assert losses[2:] == pytest.approx([weighted] * 2, rel=1e-6)
    assert abs(plain - weighted) > 1e-3


# --- laws -----------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 10_000), min_size=2, max_size=6), st.integers(0, 10**6), st.permutations(range(6)))
def test_permuting_the_classes_permutes_the_answer(counts, seed, order):
    classes = len(counts)
    order = torch.tensor([k for k in order if k < classes])
    g = torch.Generator().manual_seed(seed)
    u, y = torch.randn(8, classes, generator=g), torch.randint(classes, (8,), generator=g)
    moved = torch.empty_like(u)
    moved[:, order] = u
    counted = torch.empty(classes, dtype=torch.long)
    counted[order] = torch.tensor(counts)
    for make in (logit_adjustment, meta_logit_adjustment, lambda **sizes: ldam(**sizes, defer=None)):
        a = make(class_counts=counts).evaluate(IDENTITY, u, y)
        b = make(class_counts=counted).evaluate(IDENTITY, moved, order[y])
        assert torch.allclose(a.losses, b.losses, atol=1e-4)
        assert torch.allclose(a.du, b.du[:, order], atol=1e-5)
