"""The weighting peers: closed forms, limits, per-sample gradients, finite differences of the meta step."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compensate import METHODS, InputError, meta_step
from compensate.core.taxonomy import measured, overall_sign
from compensate.methods import focal, gce, meta_weight, reweight
from compensate.terms.meta import meta_gradient


def logits(b=8, c=4):
    return (2 * torch.randn(b, c, dtype=torch.float64)).requires_grad_(), torch.randint(c, (b,))


def given(u, y):
    return u.softmax(-1).gather(1, y[:, None])[:, 0]


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_is_its_formula(gamma):
    u, y = logits()
    expected = ((1 - given(u, y)) ** gamma * F.cross_entropy(u, y, reduction="none")).mean()
    ours = focal(gamma=gamma)(u, y)
    assert torch.allclose(ours, expected)
    assert torch.allclose(torch.autograd.grad(ours, u)[0], torch.autograd.grad(expected, u)[0])
    assert torch.autograd.gradcheck(lambda u: focal(gamma=gamma)(u, y), u)


def test_focal_of_a_perfect_prediction_has_a_finite_gradient():
    u = torch.tensor([[200.0, 0.0]], requires_grad=True)
    (grad,) = torch.autograd.grad(focal(gamma=0.5)(u, torch.tensor([0])), u)
    assert grad.isfinite().all()


def test_focal_by_category_uses_the_class_means_of_the_previous_epoch():
    criterion, means = focal(num_classes=3, per="category"), torch.full((3,), 1 / 3).double()
    for _ in range(3):
        kept = {c: [] for c in range(3)}
        for _ in range(3):
            u, y = logits(9, 3)
            expected = ((1 - means[y]) ** 2 * F.cross_entropy(u, y, reduction="none")).mean()
            ours = criterion(u, y)
            assert torch.allclose(ours, expected, atol=1e-6)
            assert torch.allclose(torch.autograd.grad(ours, u)[0], torch.autograd.grad(expected, u)[0], atol=1e-6)
            for p, label in zip(given(u, y).tolist(), y.tolist(), strict=True):
                kept[label].append(p)
        criterion.end_epoch()
        means = torch.tensor([sum(kept[c]) / len(kept[c]) if kept[c] else 1 / 3 for c in range(3)]).double()
    assert criterion.taxonomy.granularity == "category"


def test_gce_lies_between_cross_entropy_and_mean_absolute_error():
    u, y = logits()
    p = given(u, y)
    assert torch.allclose(gce(q=1e-6)(u, y), F.cross_entropy(u, y), atol=1e-4)
    absolute = (u.softmax(-1) - F.one_hot(y, 4)).abs().sum(-1) / 2
    assert torch.allclose(gce(q=1.0)(u, y), absolute.mean())
    assert torch.allclose(gce()(u, y), ((1 - p**0.7) / 0.7).mean())
    ours = torch.autograd.grad(gce()(u, y), u)[0]
    assert torch.allclose(ours, (p.detach() ** 0.7)[:, None] * (u.softmax(-1) - F.one_hot(y, 4)) / 8)
    assert torch.autograd.gradcheck(lambda u: gce()(u, y), u)


def test_truncated_gce_drops_what_it_does_not_believe():
    u, y = logits(20)
    p = given(u, y)
    ours = gce(k=0.5)(u, y)
    assert torch.allclose(ours, ((1 - p.clamp(min=0.5) ** 0.7) / 0.7).mean())
    (grad,) = torch.autograd.grad(ours, u)
    assert (grad[p < 0.5] == 0).all()
    assert (grad[p > 0.5].abs().sum(-1) > 0).all()
    assert 0 < (p < 0.5).sum() < 20


def linear_case():
    model = nn.Linear(3, 4).double()
    x, y, i = torch.randn(6, 3).double(), torch.randint(4, (6,)), torch.randperm(10)[:6]
    clean = torch.randn(5, 3).double(), torch.randint(4, (5,))
    return model, (x, y, i), clean


def gradient(model, x, y):
    return torch.cat([g.flatten() for g in torch.autograd.grad(F.cross_entropy(model(x), y), model.parameters())])


def test_reweight_counts_samples_as_their_gradient_agrees_with_clean_data():
    model, (x, y, i), clean = linear_case()
    criterion = reweight(num_samples=10).double()
    assert torch.allclose(criterion(model(x), y, i), F.cross_entropy(model(x), y)), "no meta step yet"
    meta_step(criterion, model, (x, y, i), clean, lr=0.1)
    toward = gradient(model, *clean)
    agrees = torch.stack([gradient(model, x[k : k + 1], y[k : k + 1]) @ toward for k in range(6)]).clamp(min=0)
    expected = (agrees / agrees.sum() * F.cross_entropy(model(x), y, reduction="none")).sum()
    s = criterion.evaluate(model, x, y, i)
    assert torch.allclose(s.loss, expected)
    ours = torch.autograd.grad(s.loss, list(model.parameters()))
    theirs = torch.autograd.grad(expected, list(model.parameters()))
    assert all(torch.allclose(a, b) for a, b in zip(ours, theirs, strict=True))
    assert 0 < (agrees > 0).sum() < 6
    assert overall_sign(measured(s)) == "mixed" == METHODS["reweight"].taxonomy.direction
    assert torch.allclose(criterion(model(x), y, i), F.cross_entropy(model(x), y)), "weights serve once"


def test_meta_weight_net_steps_down_the_clean_loss():
    model, batch, clean = linear_case()
    criterion = meta_weight(hidden=5).double()
    outer, _, _, others = meta_gradient(criterion, model, batch, clean, lr=0.5)
    layers = list(criterion.parameters())

    def look_ahead():
        w = (
            criterion.terms["loss"]
            .terms[0]
            .weight.layers(F.cross_entropy(model(batch[0]), batch[1], reduction="none").detach()[:, None])[:, 0]
        )
        loss = (w.detach() * F.cross_entropy(model(batch[0]), batch[1], reduction="none")).mean()
        ahead = copy.deepcopy(model)
        with torch.no_grad():
            for p, g in zip(ahead.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
                p -= 0.5 * g
        return F.cross_entropy(ahead(clean[0]), clean[1]).item()

    assert outer.item() == pytest.approx(look_ahead())
    for parameter, grad in zip(layers, others, strict=True):
        flat = parameter.data.view(-1)
        for k in range(min(3, len(flat))):
            kept = flat[k].item()
            flat[k] = kept + 1e-5
            up = look_ahead()
            flat[k] = kept - 1e-5
            down = look_ahead()
            flat[k] = kept
            assert grad.flatten()[k].item() == pytest.approx((up - down) / 2e-5, abs=1e-8)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: focal(gamma=-1.0),
        lambda: focal(per="corpus"),
        lambda: focal(per="category"),
        lambda: gce(q=0.0),
        lambda: gce(q=1.5),
        lambda: gce(k=1.0),
    ],
)
def test_bad_settings_are_refused(bad):
    with pytest.raises(InputError):
        bad()
