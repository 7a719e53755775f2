"""ISDA and MetaSAug, against explicit covariances, sampled augmentation and finite differences."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from compensate import InputError, meta_step
from compensate.core.taxonomy import measured, overall_sign
from compensate.methods import isda, metasaug
from compensate.methods.augmentation import spread
from compensate.terms.meta import meta_gradient


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
    criterion = isda(num_classes=3, feature_dim=6, lam=2.0, covariance=kind).double()
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
        isda(num_classes=3, feature_dim=5, lam=1.0).double().evaluate(
            tiny, torch.randn(4, 4).double(), torch.arange(4) % 3
        )


def test_quadratic_forms_against_a_loop():
    w, sigma = torch.randn(5, 4).double(), torch.randn(4, 4).double()
    full = spread(w, 2, sigma)
    variances = torch.rand(2, 4).double()
    diagonal = spread(w, torch.tensor([2, 0]), variances)
    for c in range(5):
        assert full[c].item() == pytest.approx(((w[c] - w[2]) @ sigma @ (w[c] - w[2])).item(), abs=1e-12)
        for row, k in enumerate((2, 0)):
            expected = (variances[row] * (w[c] - w[k]) ** 2).sum()
            assert diagonal[row, c].item() == pytest.approx(expected.item(), abs=1e-12)


# --- MetaSAug -------------------------------------------------------------------------------------------------


def outer(model, sigma, x, y, clean, lam, lr):
    """One SGD step under the given covariances (C, D, D), then the clean loss: Eq. 39."""
    model = copy.deepcopy(model)
    z = model.features(x)
    w = model.head.weight
    d = w[None] - w[y][:, None]
    du = lam / 2 * torch.einsum("bcd,bde,bce->bc", d, sigma[y], d)
    F.cross_entropy(model.head(z) + du, y).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= lr * p.grad
        return F.cross_entropy(model(clean[0]), clean[1]).item()


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_metasaug_moves_the_covariance_down_the_clean_loss(kind, tiny):
    x, y = torch.randn(12, 4).double(), torch.arange(12) % 3
    clean = torch.randn(9, 4).double(), torch.arange(9) % 3
    criterion = metasaug(num_classes=3, feature_dim=6, lam=4.0, lr=0.7, covariance=kind).double()
    criterion.evaluate(tiny, x, y)
    _, _, (grad,), _ = meta_gradient(criterion, tiny, (x, y), clean, lr=0.5)
    covariance = criterion.terms["logit"].terms[0].covariance
    sigma = torch.stack([covariance.of(c) if kind == "full" else covariance.of(c).diag() for c in range(3)])
    for entry in [(0, 1, 1), (1, 3, 3), (2, 0, 5)]:
        if kind == "diagonal" and entry[1] != entry[2]:
            continue
        values = []
        for h in (1e-4, -1e-4):
            other = sigma.clone()
            other[entry] += h
            values.append(outer(tiny, other, x, y, clean, 4.0, 0.5))
        found = grad[entry] if kind == "full" else grad[entry[:2]]
        assert found.item() == pytest.approx((values[0] - values[1]) / 2e-4, abs=1e-7)
    assert grad.abs().max() > 1e-6
    meta_step(criterion, tiny, (x, y), clean, lr=0.5)
    assert torch.allclose(next(criterion.tables()).weight, -0.7 * grad)


@pytest.mark.parametrize("keep", [True, False])
def test_an_offset_serves_one_step_unless_kept(keep, tiny):
    x, y = torch.randn(12, 4).double(), torch.arange(12) % 3
    clean = torch.randn(9, 4).double(), torch.arange(9) % 3
    criterion = metasaug(num_classes=3, feature_dim=6, lam=1.0, keep=keep).double()
    plain = isda(num_classes=3, feature_dim=6, lam=1.0).double()
    first = criterion.evaluate(tiny, x, y).loss
    assert torch.allclose(first, plain.evaluate(tiny, x, y).loss), "without meta steps it is ISDA"
    meta_step(criterion, tiny, (x, y), clean, lr=0.5)
    offset = next(criterion.tables()).weight
    assert offset.abs().max() > 0
    s = criterion.evaluate(tiny, x, y)
    assert (s.loss != first).item(), "the training step after it uses the offset"
    assert overall_sign(measured(s)) == "negative"
    assert bool(offset.abs().max() > 0) == keep


# --- what both hold -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_statistics_of_two_processes_add_up_to_those_of_one(kind, tiny):
    tiny.eval()
    x, y = torch.randn(12, 4).double(), torch.arange(12) % 3
    one, *two = (isda(num_classes=3, feature_dim=6, lam=1.0, covariance=kind).double() for _ in range(3))
    one.evaluate(tiny, x, y)
    for criterion, half in zip(two, (slice(5), slice(5, None)), strict=True):
        criterion.evaluate(tiny, x[half], y[half])
    whole, *halves = (next(c.statistics()) for c in (one, *two))
    assert set(whole.merges.values()) == {"sum"}
    for name in whole.merges:
        assert torch.allclose(getattr(whole, name), sum(getattr(h, name) for h in halves))
