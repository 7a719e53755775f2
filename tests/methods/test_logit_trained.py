"""Imbalance methods on a long tail of digits: what they do to the loss of each class, and what it is good for."""

from __future__ import annotations

from functools import cache

import matplotlib as mpl
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from compensate import InputError, meta_step
from compensate.core.taxonomy import relative_change_by_class
from compensate.methods import base, ldam, logit_adjustment, meta_logit_adjustment, metasaug
from compensate.plots import plot_change_by_class
from compensate.terms.margins import CosineHead

pytestmark = pytest.mark.slow

EPOCHS, BATCH, SEEDS = 30, 64, (0, 1)
COUNTS = [round(100 * 50 ** (-c / 9)) for c in range(10)]  # imbalance factor 50


class Net(nn.Module):
    def __init__(self, head=None):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.head = head or nn.Linear(32, 10)

    def features(self, x):
        return self.body(x)

    def forward(self, x):
        return self.head(self.features(x))


@cache
def long_tail(seed):
    """Training samples, five clean ones of each class and sixty to test on."""
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16).float(), torch.tensor(y)
    g = torch.Generator().manual_seed(seed)
    parts = ([], [], [])
    for c in range(10):
        mine = (y == c).nonzero().flatten()
        mine = mine[torch.randperm(len(mine), generator=g)]
        for part, those in zip(parts, (mine[65 : 65 + COUNTS[c]], mine[60:65], mine[:60]), strict=True):
            part.append(those)
    return tuple((x[torch.cat(part)], y[torch.cat(part)]) for part in parts)


def train(criterion, seed, head=None, meta=False):
    (x, y), clean, _ = long_tail(seed)
    torch.manual_seed(seed)
    net = Net(None if head is None else head())
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    criterion.start(EPOCHS * -(-len(x) // BATCH))
    for _ in range(EPOCHS):
        for i in torch.randperm(len(x)).split(BATCH):
            if meta:
                meta_step(criterion, net, (x[i], y[i], i), clean, lr=0.1)
            optimizer.zero_grad()
            criterion.evaluate(net, x[i], y[i], i).loss.backward()
            optimizer.step()
        criterion.end_epoch()
    return net.eval()


def balanced_accuracy(net, seed):
    """The test set is balanced, so the plain share is the balanced one."""
    *_, (x, y) = long_tail(seed)
    return (net(x).argmax(-1) == y).float().mean().item()


@cache
def plain_accuracy(cosine=False):
    head = (lambda: CosineHead(32, 10, scale=30.0)) if cosine else None
    return sum(balanced_accuracy(train(base(), seed, head), seed) for seed in SEEDS) / len(SEEDS)


CASES = {
    "logit_adjustment": (lambda: logit_adjustment(class_counts=COUNTS), {}),
    "meta_logit_adjustment": (lambda: meta_logit_adjustment(class_counts=COUNTS), {"meta": True}),
    "ldam": (lambda: ldam(class_counts=COUNTS), {}),
    "ldam with a cosine head": (
        lambda: ldam(class_counts=COUNTS, scale=30.0),
        {"head": lambda: CosineHead(32, 10, scale=30.0)},
    ),
    "metasaug": (
        lambda: metasaug(num_classes=10, feature_dim=32, class_counts=COUNTS, covariance="diagonal"),
        {"meta": True},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_imbalance_methods_beat_cross_entropy_in_balanced_accuracy(name):
    make, settings = CASES[name]
    found = sum(balanced_accuracy(train(make(), seed, **settings), seed) for seed in SEEDS) / len(SEEDS)
    assert found > plain_accuracy("head" in settings) + 0.02


def test_the_picture_shows_the_largest_class_first():
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    ax = plot_change_by_class(torch.tensor([0.5, -0.2, 0.1]), class_counts=[5, 80, 20])
    assert [bar.get_height() for bar in ax.patches] == pytest.approx([-0.2, 0.1, 0.5])
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["1", "2", "0"]
    colors = {bar.get_facecolor() for bar in ax.patches}
    assert len(colors) == 2
    assert plot_change_by_class(torch.tensor([0.5, -0.2, 0.1]), ax=ax) is ax
    plt.close(ax.figure)
    with pytest.raises(InputError, match="class_counts"):
        plot_change_by_class(torch.zeros(3), class_counts=[1, 2])
    with pytest.raises(InputError, match="no state"):
        relative_change_by_class([])
