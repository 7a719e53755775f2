"""Dimensionality-driven learning: the estimate by hand, the turning point by lists, the loss from the turn on."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from compensate import METHODS, InputError
from compensate.core.taxonomy import measured, overall_sign
from compensate.methods import d2l
from compensate.methods.label_correction import Dimensionality, local_dimensionality


def naive_lid(z, k):
    found = []
    for a in range(len(z)):
        r = sorted(math.dist(z[a].tolist(), z[b].tolist()) for b in range(len(z)) if b != a)[:k]
        found.append(-1 / (sum(math.log(v / r[-1]) for v in r) / k))
    return torch.tensor(found)


@pytest.mark.parametrize(("n", "k"), [(30, 5), (30, 20), (6, 20)])
def test_estimate_is_its_formula(n, k):
    z = torch.randn(n, 4).double()
    assert torch.allclose(local_dimensionality(z, k), naive_lid(z, min(k, n - 1)).double(), rtol=1e-4)


def run_epoch(statistic, lid):
    """An epoch whose mean dimensionality is `lid`."""
    statistic.total.fill_(3 * lid)
    statistic.count.fill_(3)
    statistic.seen += 10
    statistic.end_epoch()


def naive_turn(lids, patience, window):
    """The first epoch at which the authors' rule fires, by lists; None if never."""
    for e in range(len(lids)):
        seen = lids[: e + 1]
        if len(seen) > patience + window:
            before = seen[-window - 1 : -1]
            if seen[-1] - np.mean(before) > 2 * np.std(before):
                return e
    return None


@pytest.mark.parametrize("seed", range(8))
def test_turning_point_is_found_as_by_lists(seed):
    rng = np.random.default_rng(seed)
    lids = [6 - 0.2 * min(e, 12) + 0.25 * max(0, e - 14) + 0.1 * rng.normal() for e in range(25)]
    statistic, expected = Dimensionality(window=4, patience=3), naive_turn(lids, 3, 4)
    assert expected is not None
    for e, lid in enumerate(lids):
        run_epoch(statistic, lid)
        assert (statistic.turned >= 0) == (e >= expected)
        assert statistic.lowest.item() == pytest.approx(min(lids[: e + 1]))
    assert statistic.turned == expected - 1


@pytest.mark.parametrize("guess", ["hard", "soft"])
def test_loss_before_and_after_the_turn(tiny, batch, guess):
    x, y, i = batch
    criterion = d2l(window=2, patience=0, guess=guess).double().start(100)
    statistic = next(s for s in criterion.statistics() if isinstance(s, Dimensionality))
    u = tiny(x)
    assert torch.allclose(criterion.evaluate(tiny, x, y, i).loss, F.cross_entropy(u, y))
    statistic.seen.zero_()
    for lid in (4.0, 3.0, 6.0):
        run_epoch(statistic, lid)
    alpha = math.exp(-30 / 100 * 6.0 / 3.0)
    guessed = F.one_hot(u.argmax(-1), 3).double() if guess == "hard" else u.softmax(-1).detach()
    expected = F.cross_entropy(u, alpha * F.one_hot(y, 3) + (1 - alpha) * guessed)
    s = criterion.evaluate(tiny, x, y, i)
    assert torch.allclose(s.loss, expected, atol=1e-6)
    theirs = torch.autograd.grad(expected, list(tiny.parameters()))
    for a, b in zip(torch.autograd.grad(s.loss, list(tiny.parameters())), theirs, strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    if guess == "hard":
        assert overall_sign(measured(s)) == "positive" == METHODS["d2l"].taxonomy.direction
    else:
        assert criterion.taxonomy.direction == "mixed"


def test_an_epoch_is_the_mean_over_its_batches(tiny):
    criterion = d2l(k=3).double().start(10)
    statistic, found = next(s for s in criterion.statistics() if isinstance(s, Dimensionality)), []
    for _ in range(3):
        x = torch.randn(7, 4).double()
        criterion.evaluate(tiny, x, torch.randint(3, (7,)))
        found.append(naive_lid(tiny.features(x).detach(), 3))
    criterion.end_epoch()
    assert statistic.recent[-1].item() == pytest.approx(torch.cat(found).mean().item(), rel=1e-4)
    assert statistic.epochs == 1
    assert statistic.begun == 3


def test_batches_too_small_to_measure_are_left_out(tiny):
    criterion = d2l().double().start(10)
    for size in (5, 2):
        criterion.evaluate(tiny, torch.randn(size, 4).double(), torch.zeros(size).long())
    statistic = next(s for s in criterion.statistics() if isinstance(s, Dimensionality))
    assert statistic.count == 5
    assert statistic.total.isfinite()


@pytest.mark.parametrize("bad", [{"k": 1}, {"window": 0}, {"patience": -1}, {"guess": "best"}])
def test_bad_settings_are_refused(bad):
    with pytest.raises(InputError):
        d2l(**bad)
