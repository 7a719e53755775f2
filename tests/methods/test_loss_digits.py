"""Trained on digits with 40 % wrong labels: the robust relatives must end well above cross entropy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from compensate.data import noise
from compensate.data.named.image_sets import digits
from compensate.methods import find

pytestmark = pytest.mark.slow

SEEDS = (0, 1)


def last_accuracy(name, seed, epochs=25):
    given, test = digits().split((0.7, 0.3), seed=seed)
    x = torch.from_numpy(given.x).flatten(1)
    y = torch.from_numpy(noise.symmetric(given.target, 10, 0.4, seed=seed).labels)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    criterion = find(name).make(num_samples=len(x), num_classes=10)
    for _ in range(epochs):
        for i in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            criterion(model(x[i]), y[i], i).backward()
            optimizer.step()
        criterion.end_epoch()
    right = model(torch.from_numpy(test.x).flatten(1)).argmax(1) == torch.from_numpy(test.target)
    return right.double().mean().item()


@pytest.fixture(scope="module")
def cross_entropy():
    return [last_accuracy("base", seed) for seed in SEEDS]


@pytest.mark.parametrize("name", ["elr", "sop", "gce"])
def test_wrong_labels_do_less_harm_than_under_cross_entropy(name, cross_entropy):
    ours = [last_accuracy(name, seed) for seed in SEEDS]
    gained = [a - b for a, b in zip(ours, cross_entropy, strict=True)]
    assert sum(gained) / len(gained) >= 0.02, (ours, cross_entropy)
