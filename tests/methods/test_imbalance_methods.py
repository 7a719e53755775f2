"""Methods for imbalanced classes, margins and semantic augmentation, against their equations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import assert_slope, clean_loss
from torch import nn

from compensate import InputError, meta_step, methods
from compensate.terms.classes import CosineHead
from compensate.terms.meta import meta_gradient

# Logit imbalance
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
    s = methods.logit_adjustment(class_counts=COUNTS, tau=tau).double().evaluate(IDENTITY, u, y)
    assert torch.allclose(s.losses, torch.tensor(naive_adjusted(u, y, COUNTS, tau)).double(), atol=1e-6)


def test_any_increasing_function_will_do_and_others_are_refused():
    u, y = torch.randn(5, 3), torch.tensor([0, 1, 2, 2, 1])
    loss = methods.logit_adjustment(class_counts=COUNTS, g=torch.sqrt)(u, y)
    assert torch.allclose(loss, F.cross_entropy(u + torch.tensor([0.7, 0.2, 0.1]).sqrt(), y))
    with pytest.raises(InputError, match="increasing"):
        methods.logit_adjustment(class_counts=COUNTS, g=torch.neg)
    with pytest.raises(InputError, match=r"classes \[1\] have no training sample"):
        methods.logit_adjustment(class_counts=[5, 0, 3])


def test_posthoc_form_is_bayes_for_balanced_classes():
    p = torch.tensor([[0.6, 0.3, 0.1]])
    balanced = methods.posthoc_logit_adjustment(p.log(), class_counts=COUNTS).softmax(-1)
    expected = np.array([0.6 / 70, 0.3 / 20, 0.1 / 10])
    assert np.allclose(balanced.numpy(), expected / expected.sum())


# meta logit adjustment
def test_meta_logit_adjustment_is_equation_a1():
    u, y = torch.randn(6, 3).double(), torch.tensor([0, 1, 2, 2, 1, 0])
    criterion = methods.meta_logit_adjustment(class_counts=COUNTS).double()
    taus = [0.5, 1.5, -0.3]
    next(criterion.tables()).weight.data = torch.tensor(taus).double()[:, None]
    s = criterion.evaluate(IDENTITY, u, y)
    expected = [naive_adjusted(u[i : i + 1], y[i : i + 1], COUNTS, taus[y[i]])[0] for i in range(6)]
    assert torch.allclose(s.losses, torch.tensor(expected).double(), atol=1e-6)


def test_meta_gradient_of_tau_equals_finite_differences_and_the_step_goes_down(tiny, batch):
    x, y, _ = batch
    clean = torch.randn(9, 4).double(), torch.arange(9) % 3
    criterion = methods.meta_logit_adjustment(class_counts=COUNTS, lr=0.3).double()
    _, s, (grad,), _ = meta_gradient(criterion, tiny, (x, y), clean, lr=0.5)
    assert s.touched[0].keys.tolist() == [0, 1, 2]
    log_pi = (torch.tensor(COUNTS) / 100).double().log()

    def outer(taus):
        return clean_loss(tiny, lambda ahead: F.cross_entropy(ahead(x) + taus[y][:, None] * log_pi, y), clean, 0.5)

    for c in range(3):
        assert_slope(grad[c], outer, torch.ones(3).double(), c)
    meta_step(criterion, tiny, (x, y), clean, lr=0.5)
    assert torch.allclose(next(criterion.tables()).weight, 1.0 - 0.3 * grad, atol=1e-7)


@pytest.mark.parametrize("nonnegative", [True, False])
def test_tau_may_be_kept_at_least_zero(nonnegative, tiny, batch):
    x, y, _ = batch
    clean = torch.randn(9, 4).double(), torch.arange(9) % 3
    criterion = methods.meta_logit_adjustment(class_counts=COUNTS, tau=0.0, lr=50.0, nonnegative=nonnegative).double()
    _, _, (grad,), _ = meta_gradient(criterion, tiny, (x, y), clean, lr=0.5)
    assert (grad > 0).any(), "some tau wants to become negative"
    meta_step(criterion, tiny, (x, y), clean, lr=0.5)
    assert (next(criterion.tables()).weight >= 0).all() == nonnegative


# LDAM
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
    criterion = methods.ldam(class_counts=COUNTS, scale=30.0, defer=0.5).double().start(4)
    beta = 0.9999
    weight = np.array([(1 - beta) / (1 - beta**n) for n in COUNTS])
    weight *= 3 / weight.sum()
    losses = [criterion(30.0 * cosines, y).item() for _ in range(4)]
    plain, weighted = (reference_ldam(cosines, y, COUNTS, weight=w) for w in (None, weight))
    assert losses[:2] == pytest.approx([plain] * 2, rel=1e-6)
    assert losses[2:] == pytest.approx([weighted] * 2, rel=1e-6)
    assert abs(plain - weighted) > 1e-3


# laws
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
    for make in (
        methods.logit_adjustment,
        methods.meta_logit_adjustment,
        lambda **sizes: methods.ldam(**sizes, defer=None),
    ):
        a = make(class_counts=counts).evaluate(IDENTITY, u, y)
        b = make(class_counts=counted).evaluate(IDENTITY, moved, order[y])
        assert torch.allclose(a.losses, b.losses, atol=1e-4)
        assert torch.allclose(a.du, b.du[:, order], atol=1e-5)


# Logit augmentation
def naive_isda(u, z_seen, y_seen, w, y, lam, diagonal=False):
    """Eq. 36 with its logarithm, one sample and one class at a time, covariances by numpy."""
    sigma = {}
    for c in set(y.tolist()):
        sigma[c] = np.cov(z_seen[y_seen == c].T, ddof=0).reshape(w.shape[1], w.shape[1])
        sigma[c] = np.diag(np.diag(sigma[c])) if diagonal else sigma[c]
    losses = []
    for i, label in enumerate(y.tolist()):
        row = [u[i, c] + lam / 2 * (w[c] - w[label]) @ sigma[label] @ (w[c] - w[label]) for c in range(len(w))]
        losses.append(np.log(np.exp(row).sum()) - u[i, label])
    return np.array(losses)


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_isda_is_equation_36_over_two_steps_and_an_epoch_end(kind, tiny):
    criterion = methods.isda(num_classes=3, feature_dim=6, lam=2.0, covariance=kind).double()
    z_seen, y_seen = [], []
    for step in range(3):
        x, y = torch.randn(12, 4).double(), torch.arange(12) % 3
        s = criterion.evaluate(tiny, x, y)
        z_seen.append(s.z.detach().numpy())
        y_seen.append(y.numpy())
        expected = naive_isda(
            s.u.detach().numpy(), np.concatenate(z_seen), np.concatenate(y_seen),
            tiny.head.weight.detach().numpy(), y, 2.0, kind == "diagonal",
        )  # fmt: skip
        assert np.allclose(s.losses.detach().numpy(), expected, atol=1e-6)
        if step == 1:
            criterion.end_epoch()


def test_a_head_of_another_shape_is_refused(tiny):
    with pytest.raises(InputError, match="feature_dim"):
        methods.isda(num_classes=3, feature_dim=5, lam=1.0).double().evaluate(
            tiny, torch.randn(4, 4).double(), torch.arange(4) % 3
        )


# MetaSAug
def augmented_loss(model, sigma, x, y, lam):
    """Eq. 36 under the given covariances (C, D, D)."""
    w = model.head.weight
    d = w[None] - w[y][:, None]
    return F.cross_entropy(model(x) + lam / 2 * torch.einsum("bcd,bde,bce->bc", d, sigma[y], d), y)


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_metasaug_moves_the_covariance_down_the_clean_loss(kind, tiny):
    x, y = torch.randn(12, 4).double(), torch.arange(12) % 3
    clean = torch.randn(9, 4).double(), torch.arange(9) % 3
    criterion = methods.metasaug(num_classes=3, feature_dim=6, lam=4.0, lr=0.7, covariance=kind).double()
    criterion.evaluate(tiny, x, y)
    _, _, (grad,), _ = meta_gradient(criterion, tiny, (x, y), clean, lr=0.5)
    covariance = criterion.terms_of("logit")[0].covariance
    sigma = torch.stack([covariance.of(c) if kind == "full" else covariance.of(c).diag() for c in range(3)])

    def outer(sigma):
        return clean_loss(tiny, lambda ahead: augmented_loss(ahead, sigma, x, y, 4.0), clean, 0.5)

    for entry in [(0, 1, 1), (1, 3, 3), *([(2, 0, 5)] if kind == "full" else [])]:
        assert_slope(grad[entry] if kind == "full" else grad[entry[:2]], outer, sigma, entry, h=1e-4)
    assert grad.abs().max() > 1e-6
    meta_step(criterion, tiny, (x, y), clean, lr=0.5)
    assert torch.allclose(next(criterion.tables()).weight, -0.7 * grad)


# Logit margins
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
    state = methods.arcface(margin=m, scale=s).evaluate(nn.Identity(), u, torch.tensor(y))
    assert np.allclose(state.losses.numpy(), naive_arcface(angles, y, m, s), atol=1e-6)
    if m == 1.2:
        assert (angles[np.arange(50), y] + m > math.pi).sum() > 5, "the guard was at work"


def test_cosine_head_gives_cosines():
    head, z = CosineHead(5, 3, scale=7.0), torch.randn(4, 5)
    torch.testing.assert_close(head(z), 7.0 * F.cosine_similarity(z[:, None], head.weight[None], dim=-1))


# group margins
def test_balanced_arcface_is_equation_41_by_class_or_by_sample():
    rng = np.random.default_rng(1)
    angles, y = rng.uniform(0.01, math.pi - 0.01, (30, 4)), rng.integers(4, size=30)
    u, margins = torch.tensor(8 * np.cos(angles)), np.array([0.1, 0.9])
    by_class = methods.balanced_arcface(class_groups=[0, 1, 1, 0], scale=8.0).double()
    by_sample = methods.balanced_arcface(num_groups=2, scale=8.0).double()
    group = rng.integers(2, size=30)
    for criterion in (by_class, by_sample):
        next(criterion.tables()).weight.data = torch.tensor(margins)
    known = by_class.evaluate(nn.Identity(), u, torch.tensor(y)).losses
    assert np.allclose(known.numpy(), naive_arcface(angles, y, margins[np.array([0, 1, 1, 0])[y]], 8.0), atol=1e-6)
    given = by_sample.evaluate(nn.Identity(), u, torch.tensor(y), group=torch.tensor(group)).losses
    assert np.allclose(given.numpy(), naive_arcface(angles, y, margins[group], 8.0), atol=1e-6)
    with pytest.raises(InputError, match="group is missing"):
        by_sample(u, torch.tensor(y))


def test_group_margins_follow_equation_42():
    model = CosineNet().double()
    x, y = torch.randn(9, 4).double(), torch.arange(9) % 3
    clean = torch.randn(6, 4).double(), torch.arange(6) % 3
    groups = torch.tensor([0, 1, 1])
    criterion = methods.balanced_arcface(class_groups=groups, margin=0.3, scale=8.0, lr=0.5).double()
    start = next(criterion.tables()).weight.detach().clone()
    _, _, (grad,), _ = meta_gradient(criterion, model, (x, y), clean, lr=0.2)

    def shifted_loss(ahead, margins):
        u = ahead(x).clone()
        theta = (u[torch.arange(9), y] / 8.0).acos()
        u[torch.arange(9), y] = 8.0 * (theta + margins[groups[y]]).cos()
        return F.cross_entropy(u, y)

    def outer(margins):
        return clean_loss(model, lambda ahead: shifted_loss(ahead, margins), clean, 0.2)

    for g in range(2):
        assert_slope(grad[g], outer, start, g, tolerance=1e-6)
    meta_step(criterion, model, (x, y), clean, lr=0.2)
    assert torch.allclose(next(criterion.tables()).weight, (start - 0.5 * grad).clamp(min=0))
    assert grad.abs().max() > 1e-5
