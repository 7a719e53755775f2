"""Gradient compensation: what is added to a gradient, and the steps of optimizers that are special cases of it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from compensate import Compensated, InputError
from compensate.methods import gradient_clip, lpg
from compensate.terms.gradients import Amplify, ClipGradient, GradientNoise, SharpnessAware
from tiny import TinyNet


def logits(rows=9, classes=4):
    return (2 * torch.randn(rows, classes, dtype=torch.float64)).requires_grad_(), torch.randint(classes, (rows,))


def of_model(loss, model):
    return torch.autograd.grad(loss, list(model.parameters()))


def assert_same(found, expected, **tolerance):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, **tolerance)


def test_a_term_is_added_to_the_gradient_and_the_loss_keeps_its_value():
    u, y = logits()
    delta = torch.randn(9, 4, dtype=torch.float64)
    loss = Compensated(gradient=lambda s: delta)(u, y)
    assert loss.item() == pytest.approx(F.cross_entropy(u, y).item(), rel=1e-12)
    (found,) = torch.autograd.grad(loss, u)
    torch.testing.assert_close(found, ((u.softmax(-1) - F.one_hot(y, 4)) + delta).detach() / 9)


# clipping
@pytest.mark.parametrize("c", [0.1, 0.7, 5.0])
def test_clipping_at_the_logits_is_a_hook_that_clips_each_sample(c):
    u, y = logits()
    (found,) = torch.autograd.grad(gradient_clip(c=c)(u, y), u)
    plain = u.detach().requires_grad_()
    plain.register_hook(lambda g: torch.stack([row * min(1.0, c / (9 * row.norm().item())) for row in g]))
    F.cross_entropy(plain, y).backward()
    torch.testing.assert_close(found, plain.grad)
    weight = (c / (u.softmax(-1) - F.one_hot(y, 4)).norm(dim=-1)).clamp(max=1).detach()
    (weighted,) = torch.autograd.grad((weight * F.cross_entropy(u, y, reduction="none")).mean(), u)
    torch.testing.assert_close(found, weighted)


def test_clipping_at_the_features_is_a_hook_there():
    model, x, y = TinyNet().double(), torch.randn(8, 4).double(), torch.randint(3, (8,))
    found = of_model(Compensated(gradient=ClipGradient(0.2, at="features")).evaluate(model, x, y).loss, model)
    z = model.features(x)
    z.register_hook(lambda g: torch.stack([row * min(1.0, 0.2 / (8 * row.norm().item())) for row in g]))
    assert_same(found, of_model(F.cross_entropy(model.head(z), y), model))


@pytest.mark.parametrize("c", [0.05, 100.0])
def test_clipping_the_parameters_is_that_of_torch(c):
    model, x, y = TinyNet().double(), torch.randn(8, 4).double(), torch.randint(3, (8,))
    Compensated(gradient=ClipGradient(c, at="parameters")).evaluate(model, x, y).loss.backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), c)
    assert_same(found, [p.grad for p in model.parameters()])


# sharpness
def two_passes(model, x, y, rho):
    """Sharpness-aware minimization as its paper has it: climb, take the gradient there, come back."""
    there = copy.deepcopy(model)
    grads = of_model(F.cross_entropy(there(x), y), there)
    length = torch.sqrt(sum((g**2).sum() for g in grads))
    with torch.no_grad():
        for p, g in zip(there.parameters(), grads, strict=True):
            p.add_(rho * g / length)
    return of_model(F.cross_entropy(there(x), y), there)


def test_a_whole_training_with_sharpness_aware_steps_is_that_of_two_passes():
    torch.manual_seed(3)
    x, y = torch.randn(20, 4).double(), torch.randint(3, (20,))
    ours, theirs = (
        torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).double() for _ in "ab"
    )
    theirs.load_state_dict(ours.state_dict())
    criterion = Compensated(gradient=SharpnessAware(0.1))
    first, second = (torch.optim.SGD(m.parameters(), lr=0.5, momentum=0.9) for m in (ours, theirs))
    for _ in range(10):
        first.zero_grad()
        criterion.evaluate(ours, x, y).loss.backward()
        first.step()
        for p, g in zip(theirs.parameters(), two_passes(theirs, x, y, 0.1), strict=True):
            p.grad = g
        second.step()
    assert_same([*ours.parameters()], [*theirs.parameters()])


# class weights and all kinds of labels
WEIGHTS = torch.tensor([0.3, 4.0, 1.0]).double()


def kinds(rows=8):
    """Targets, options of the criterion, and torch's loss with the same weights, of each kind of label."""
    hard, soft = torch.randint(3, (rows,)), torch.randn(rows, 3).double().softmax(-1)
    ignored = torch.where(torch.arange(rows) == 1, -100, hard)
    several = torch.randint(2, (rows, 3)).double()
    return {
        "classes": (hard, {}, lambda u, y, how: F.cross_entropy(u, y, WEIGHTS, reduction=how)),
        "ignored": (ignored, {}, lambda u, y, how: F.cross_entropy(u, y, WEIGHTS, reduction=how)),
        "soft": (soft, {}, lambda u, y, how: F.cross_entropy(u, y, WEIGHTS, reduction=how)),
        "bce": (several, {"base": "bce"}, lambda u, y, how: F.binary_cross_entropy_with_logits(u, y, WEIGHTS, reduction=how)),
    }  # fmt: skip


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("kind", ["classes", "ignored", "soft", "bce"])
def test_gradients_of_parameters_under_class_weights_are_those_of_torchs_loss(kind, reduction):
    torch.manual_seed(0)
    model, x = (
        torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).double(),
        torch.randn(8, 4).double(),
    )
    y, options, loss = kinds()[kind]

    def found(term):
        torch.manual_seed(7)
        criterion = Compensated(gradient=term, weight=WEIGHTS, reduction=reduction, **options).double()
        return of_model(criterion.evaluate(model, x, y).loss, model)

    plain = of_model(loss(model(x), y, reduction), model)
    length = torch.sqrt(sum((g**2).sum() for g in plain))
    assert_same(found(ClipGradient(0.05, at="parameters")), [g * 0.05 / (length + 1e-6) for g in plain])
    noisy = found(GradientNoise(0.3, at="parameters"))
    torch.manual_seed(7)
    assert_same(noisy, [g + 0.3 * torch.randn_like(g) for g in plain])
    there = copy.deepcopy(model)
    with torch.no_grad():
        for p, g in zip(there.parameters(), plain, strict=True):
            p.add_(0.5 * g / length)
    assert_same(found(SharpnessAware(0.5)), of_model(loss(there(x), y, reduction), there))


# classes
def by_hand(u, y, eps, growth):
    """What is added for each sample, class by class."""
    e = np.exp(u - u.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    classes = sorted(set(y))
    score = {c: np.mean([p[i][c] for i in range(len(y)) if y[i] == c]) for c in classes}
    middle = np.mean(list(score.values()))
    added = np.zeros_like(u)
    for c in classes:
        gap = middle - score[c]
        radius = eps + growth * abs(gap)
        mean = np.mean([p[i] - np.eye(u.shape[1])[c] for i in range(len(y)) if y[i] == c], axis=0)
        length = np.linalg.norm(mean)
        size = radius if gap > 0 else -min(radius, length)
        added[[i for i in range(len(y)) if y[i] == c]] = size * mean / length
    return added


@pytest.mark.parametrize(("eps", "growth"), [(0.1, 0.1), (0.9, 0.5)])
def test_gradients_of_a_class_are_perturbed_as_a_loop_says(eps, growth):
    u, y = logits(20)
    s = lpg(eps=eps, growth=growth).evaluate(torch.nn.Identity(), u, y)
    torch.testing.assert_close(s.dg, torch.from_numpy(by_hand(u.detach().numpy(), y.tolist(), eps, growth)))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ClipGradient(0), "c is"), (lambda: ClipGradient(1, at="loss"), "at is"), (lambda: GradientNoise(-1), "sigma"),
        (lambda: GradientNoise(1, at="loss"), "at is"), (lambda: SharpnessAware(-1), "rho"), (lambda: Amplify(-1), "eps"),
        (lambda: Amplify(1, sign=0), "sign"), (lambda: Amplify(1, per="group"), "per"), (lambda: lpg(by="size"), "by"),
        (lambda: Compensated(gradient=SharpnessAware())(*logits()), r"criterion\.evaluate"),
        (lambda: lpg(by="share"), "class_counts"), (lambda: lpg(eps=-1), "eps"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(make, said):
    with pytest.raises(InputError, match=said):
        make()
