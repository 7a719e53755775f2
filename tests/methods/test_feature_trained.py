"""Adversarial training on digits: accuracy under attack, measured by an attack written here."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from compensate.methods import base, classwise_universal_at, pgd_at, universal_perturbation

pytestmark = pytest.mark.slow

EPS, BOUNDS = 0.15, (0.0, 1.0)


@cache
def digits():
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16).float(), torch.tensor(y)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return x[order[:900]], y[order[:900]], x[order[900:1400]], y[order[900:1400]]


def train(criterion, epochs=15):
    x, y, *_ = digits()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(epochs):
        for i in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            criterion.evaluate(net, x[i], y[i]).loss.backward()
            optimizer.step()
        criterion.end_epoch()
    return net


def accuracy(net, delta=0.0):
    *_, x, y = digits()
    return (net((x + delta).clamp(*BOUNDS)).argmax(-1) == y).float().mean().item()


def worst_linf(net, steps=20):
    *_, x, y = digits()
    delta = torch.zeros_like(x)
    for _ in range(steps):
        delta.requires_grad_()
        (g,) = torch.autograd.grad(F.cross_entropy(net(x + delta), y), delta)
        delta = (delta.detach() + EPS / 5 * g.sign()).clamp(-EPS, EPS)
        delta = (x + delta).clamp(*BOUNDS) - x
    return delta


@cache
def plain():
    return train(base())


def test_pgd_at_beats_cross_entropy_under_attack():
    robust = train(pgd_at(eps=EPS, bounds=BOUNDS, steps=4))
    assert accuracy(robust, worst_linf(robust)) > accuracy(plain(), worst_linf(plain())) + 0.2
    assert accuracy(robust) > 0.9


def test_classwise_universal_training_guards_against_universal_perturbations():
    """One perturbation for all is absorbed by the first layer's bias of such a net; one for each class is not."""
    *_, x, y = digits()
    batches = list(zip(x.split(100), y.split(100), strict=True))
    robust = train(classwise_universal_at(num_classes=10, feature_shape=(64,), eps=EPS, bounds=BOUNDS), epochs=40)
    fragile = train(base(), epochs=40)
    under = [
        accuracy(net, universal_perturbation(net, batches, eps=0.2, bounds=BOUNDS, epochs=10))
        for net in (robust, fragile)
    ]
    assert under[0] > under[1] + 0.1
    assert accuracy(robust) > 0.9
