"""The method with a measured strength: its equation against plain torch, the measure against a naive loop, and the laws of withheld samples."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from oracles import agree
from torch import nn

from compensate import methods
from compensate.errors import InputError
from compensate.terms import Strength
from compensate.terms.strength import GAIN, MEMORY

N, C = 400, 4


def batches(epochs, size=50, seed=0, shift=0.0, trained=1.0):
    """Logits, class numbers and indices, epoch by epoch; the logit of the given class rises by `shift` for samples in `trained`."""
    random = torch.Generator().manual_seed(seed)
    y = torch.randint(C, (N,), generator=random)
    for epoch in range(epochs):
        order = torch.randperm(N, generator=random)
        u = torch.randn(N, C, generator=random, dtype=torch.double) + shift * epoch * trained * F.one_hot(y, C)
        yield [(u[rows].clone().requires_grad_(), y[rows], rows) for rows in order.split(size)]


def test_the_loss_is_the_equation():
    s, lam, beta = 0.6, 2.0, 0.7
    criterion = methods.robust(num_samples=N, num_classes=C, strength=s, lam=lam, beta=beta)
    t, usual = torch.zeros(N, C, dtype=torch.double), torch.ones(C, dtype=torch.double)
    doubted = 0
    for epoch in batches(4, shift=1.0):
        supports = [[] for _ in range(C)]
        for u, y, i in epoch:
            p = u.softmax(-1)
            t[i] = beta * t[i] + (1 - beta) * p.detach()
            given = F.one_hot(y, C).double()
            r = t[i][range(len(y)), y] / t[i].max(1).values
            for label, value in zip(y.tolist(), r.tolist(), strict=True):
                supports[label].append(value)
            doubt = (1 - r / usual[y]).clamp(min=0) * (GAIN * (2 * usual[y] - 1)).clamp(0, 1)
            doubted += int((doubt > 0.1).sum())
            label = given + s * doubt[:, None] * (t[i] / t[i].sum(1, keepdim=True) - given)
            theirs = -(label * p.log()).sum(1) + s * lam * (1 - (t[i] * p).sum(1)).log()
            agree(criterion(u, y, i), theirs.mean(), u, atol=1e-5)
        criterion.end_epoch()
        usual = torch.tensor([np.mean(values) for values in supports])
    assert doubted > 100


def test_a_class_that_is_not_learned_is_not_doubted():
    criterion = methods.robust(num_samples=N, num_classes=2, strength=1.0, lam=0.0)
    y = (torch.arange(N) < 20).long()
    u = torch.tensor([[2.0, 0.0]]).repeat(N, 1)  # the rare class 1 is never predicted
    criterion(u, y, torch.arange(N))
    criterion.end_epoch()
    assert torch.allclose(criterion(u, y, torch.arange(N)), F.cross_entropy(u, y))


def test_the_loss_of_several_labels_is_the_equation_by_label():
    """Each label is a sample of its own with two classes: its doubt is relative to the labels of its column with its value."""
    s, lam, beta, columns = 0.5, 3.0, 0.7, 3
    criterion = methods.robust(num_samples=8, num_classes=columns, base="bce", strength=s, lam=lam)
    y, i = torch.randint(2, (8, columns)).float(), torch.arange(8)
    t, usual = torch.zeros(8, columns), torch.ones(columns, 2)
    for _ in range(4):
        u = torch.randn(8, columns) + 2 * (2 * y - 1)
        u.requires_grad_()
        p = u.sigmoid()
        t = (
            beta * t + (1 - beta) * torch.stack([1 - p, p]).detach()
            if t.ndim == 3
            else (1 - beta) * torch.stack([1 - p, p]).detach()
        )
        share = t / t.sum(0)
        r = torch.where(y == 1, share[1], share[0])
        mine = usual[torch.arange(columns), y.long()]
        doubt = (1 - r / mine).clamp(min=0) * (GAIN * (2 * mine - 1)).clamp(0, 1)
        label = y + s * doubt * (share[1] - y)
        theirs = F.binary_cross_entropy(p, label, reduction="none") + s * lam * (1 - t[0] * (1 - p) - t[1] * p).log()
        agree(criterion(u, y, i), theirs.mean(), u, atol=1e-5)
        criterion.end_epoch()
        usual = torch.tensor(
            [
                [r[:, c][y[:, c] == v].mean() if (y[:, c] == v).any() else usual[c, v] for v in (0, 1)]
                for c in range(columns)
            ]
        )


@pytest.mark.parametrize("limit", [{"strength": 0.0}, {}], ids=["strength 0", "first epoch"])
def test_without_strength_it_is_cross_entropy(limit):
    criterion = methods.robust(num_samples=N, num_classes=C, **limit)
    hidden = criterion.terms["loss"]["1"].strength.withheld if not limit else torch.zeros(N, dtype=torch.bool)
    for u, y, i in next(batches(1)):
        theirs = F.cross_entropy(u, y, reduction="none").masked_fill(hidden[i], 0.0).mean()
        agree(criterion(u, y, i), theirs, u)


def measured(strength, epochs):
    """The strength after each epoch, by a naive loop over the definition."""
    value, values, chance = 0.0, [], None
    for epoch in epochs:
        given = {True: [], False: []}
        by_class = {}
        for u, y, i in epoch:
            for row, label, index in zip(u.detach().softmax(-1).tolist(), y.tolist(), i.tolist(), strict=True):
                hidden = bool(strength.withheld[index])
                given[hidden].append(row[label])
                if hidden:
                    by_class.setdefault(label, []).append(row[label])
        w, p = np.mean(given[True]), np.mean(given[False])
        chance = p - w if chance is None else chance
        error = np.sqrt(max(np.var(given[True]), 0.02) / len(given[True]))
        memorized = (p - w - chance - error) / max(1 - w, 0.02)
        competence = 2 * np.mean([np.mean(v) for v in by_class.values()]) - 1
        value = max(value, min(1.0, max(0.0, MEMORY * memorized, GAIN * competence)))
        values.append(value)
    return values


@pytest.mark.parametrize(("shift", "memorized"), [(0.0, False), (2.0, False), (0.5, True)])
def test_the_strength_is_that_of_a_naive_loop(shift, memorized):
    criterion = methods.robust(num_samples=N, num_classes=C)
    strength = Strength.of(criterion)
    epochs = [*batches(5)]
    if shift:
        hidden = strength.withheld.double()[:, None]
        epochs = [*batches(5, shift=shift, trained=1 - hidden if memorized else 1.0)]
    for epoch in epochs:
        for u, y, i in epoch:
            criterion(u, y, i)
        criterion.end_epoch()
    expected = measured(strength, epochs)
    assert strength.curve()[:, 0].tolist() == pytest.approx(expected, abs=1e-5)
    assert (max(expected) > 0) == (shift > 0)


def trained(noise, augment=0.0, epochs=30):
    """A network wide enough to memorize, on two blobs with random labels for a share of the samples; its criterion and accuracy."""
    torch.manual_seed(0)
    n = 600
    x, y = torch.randn(n, 20), torch.randint(2, (n,))
    x[:, 0] += 3 * (2 * y - 1)
    given = torch.where(torch.rand(n) < noise, torch.randint(2, (n,)), y)
    criterion = methods.robust(num_samples=n, num_classes=2)
    model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(n).split(50):
            optimizer.zero_grad()
            criterion(model(x[rows] + augment * torch.randn(len(rows), 20)), given[rows], rows).backward()
            optimizer.step()
        criterion.end_epoch()
    return criterion, float((model(x).argmax(1) == y).float().mean())


def test_memorized_errors_raise_the_strength_and_the_model_stays_right():
    criterion, accuracy = trained(noise=0.5)
    curve = Strength.of(criterion).curve()
    assert curve[0, 0] < curve[-1, 0] == 1
    assert (curve[1:, 0] >= curve[:-1, 0]).all()
    assert accuracy > 0.9


SELF_MEASURED = {
    "robust": lambda: methods.robust(num_samples=N, num_classes=C),
    "logcomp": lambda: methods.logcomp(num_samples=N, num_classes=C, strength="auto"),
    "mixcomp": lambda: methods.mixcomp(num_samples=N, num_classes=C, strength="auto", warmup=0.0),
}


@pytest.mark.parametrize("name", SELF_MEASURED)
def test_withheld_samples_are_never_suspects(name):
    criterion = SELF_MEASURED[name]()
    strength = Strength.of(criterion)
    for value, epoch in zip((0.0, 0.4, 1.0), batches(3, shift=0.5), strict=True):
        strength.value.fill_(value)
        for u, y, i in epoch:
            criterion(u, y, i)
        criterion.end_epoch()
    assert sorted(criterion.suspects().index.tolist()) == (~strength.withheld).nonzero()[:, 0].tolist()


@pytest.mark.parametrize("s", [0.4, 1.0])
@pytest.mark.parametrize(("name", "scaled"), [
    ("logcomp", lambda s: methods.logcomp(num_samples=N, num_classes=C, lam=1 - 0.75 * s)),
    ("mixcomp", lambda s: methods.mixcomp(num_samples=N, num_classes=C, eta=5.0 * s, warmup=0.0)),
], ids=["logcomp", "mixcomp"])  # fmt: skip
def test_a_measured_strength_scales_the_methods_of_the_paper(name, scaled, s):
    """Below strength 1, withheld samples have no loss."""
    criterion, plain = SELF_MEASURED[name](), scaled(s)
    strength = Strength.of(criterion)
    criterion.reduction = plain.reduction = "none"
    for epoch in batches(3, shift=0.5):
        strength.value.fill_(s)
        for u, y, i in epoch:
            hidden = strength.withheld[i] & (s < 1)
            ours, theirs = criterion(u, y, i), plain(u, y, i)
            agree(ours[~hidden].sum(), theirs[~hidden].sum(), u, atol=1e-5)
            assert not ours[hidden].any()
        criterion.end_epoch()
        plain.end_epoch()


def test_withheld_samples_do_not_move_the_model_until_the_strength_is_full():
    criterion = methods.robust(num_samples=N, num_classes=C)
    strength = Strength.of(criterion)
    hidden = strength.withheld.nonzero()[:, 0][:5]
    u, y = torch.randn(5, C, requires_grad=True), torch.zeros(5, dtype=torch.long)
    criterion(u, y, hidden).backward()
    assert not u.grad.any()
    strength.value.fill_(1.0)
    criterion(u, y, hidden).backward()
    assert u.grad.any(1).all()


def test_the_same_seed_withholds_the_same_samples():
    one, same, other = (Strength(1000, 2, seed=seed).withheld for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert int(one.sum()) == 100
    assert int(Strength(10_000, 2).withheld.sum()) == 200


def test_a_copy_continues_as_the_original():
    criterion = methods.robust(num_samples=N, num_classes=C)
    epochs = [*batches(4, shift=0.5)]
    for epoch in epochs[:2]:
        for u, y, i in epoch:
            criterion(u, y, i)
        criterion.end_epoch()
    restored = methods.robust(num_samples=N, num_classes=C, seed=9)
    restored.load_state_dict(copy.deepcopy(criterion.state_dict()))
    for epoch in epochs[2:]:
        for u, y, i in epoch:
            assert torch.equal(criterion(u, y, i), restored(u, y, i))
        criterion.end_epoch()
        restored.end_epoch()
    assert torch.equal(Strength.of(criterion).curve(), Strength.of(restored).curve())


def test_few_samples_cannot_be_measured():
    with pytest.warns(UserWarning, match="150 samples"):
        criterion = methods.robust(num_samples=150, num_classes=2)
    u, y = torch.randn(150, 2), torch.randint(2, (150,))
    assert torch.allclose(criterion(u, y, torch.arange(150)), F.cross_entropy(u, y))
    criterion.end_epoch()
    assert float(Strength.of(criterion).value) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        methods.robust(num_samples=150, num_classes=2, strength=0.5)


def test_a_strength_is_a_number_a_schedule_or_auto():
    with pytest.raises(InputError, match='expected "auto" or a number'):
        methods.robust(num_samples=N, num_classes=C, strength="full")
    with pytest.raises(InputError, match="from 0 to 1"):
        methods.robust(num_samples=N, num_classes=C, strength=2.0)


def test_print_shows_the_equation_and_the_strength():
    criterion = methods.robust(num_samples=N, num_classes=C)
    assert repr(criterion).startswith("mean_i [ l( S(f(x_i)), y_i + dy_i ) + dl_i ]")
    assert "Strength(0.00, 40 of 400 samples withheld)" in repr(criterion)
