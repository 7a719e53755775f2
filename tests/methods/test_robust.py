"""The method with a measured strength: its equation against plain torch, the measure against a naive loop, and the laws of withheld samples."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from oracles import agree
from safetensors.torch import load_file, save_file
from torch import nn

from compensate import methods
from compensate.core import statistics
from compensate.data import Splits, digits
from compensate.errors import InputError
from compensate.terms import Strength
from compensate.terms.strength import GAIN, MEMORY
from compensate.training import Config, fit
from processes import run_pair

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
    t, usual, number = torch.zeros(N, C, dtype=torch.double), *torch.ones(2, C, dtype=torch.double)
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
            guess = t[i] / number.sqrt()
            guess *= (t[i].sum(1) / guess.sum(1))[:, None]
            theirs = -(label * p.log()).sum(1) + s * lam * (1 - (guess * p).sum(1)).log()
            agree(criterion(u, y, i), theirs.mean(), u, atol=1e-5)
        criterion.end_epoch()
        usual, number = (torch.tensor([f(values) for values in supports]).double() for f in (np.mean, len))
    assert doubted > 100


def test_sure_predictions_of_a_rare_class_have_a_finite_loss():
    criterion = methods.robust(num_samples=N, num_classes=2, strength=1.0)
    y = (torch.arange(N) < 2).long()
    u = 40.0 * F.one_hot(y, 2)
    for _ in range(30):
        loss = criterion(u, y, torch.arange(N))
        criterion.end_epoch()
    assert -50 < float(loss) < -20  # log(0.0001) times 5


@pytest.mark.parametrize(("classes", "present"), [(10, 10), (1000, 400), (1000, 10)])
def test_agreement_does_not_depend_on_the_number_of_classes(classes, present):
    criterion = methods.robust(num_samples=N, num_classes=classes, strength=1.0)
    y = torch.arange(N) % present
    u = torch.full((N, classes), 0.01 / (classes - 1)).scatter(1, y[:, None], 0.99).log()
    for _ in range(30):
        loss = criterion(u, y, torch.arange(N))
        criterion.end_epoch()
    assert float(loss) == pytest.approx(5 * np.log(1 - 0.99**2), rel=0.05)


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
    hidden = Strength.of(criterion).withheld if not limit else torch.zeros(N, dtype=torch.bool)
    for u, y, i in next(batches(1)):
        theirs = F.cross_entropy(u, y, reduction="none").masked_fill(hidden[i], 0.0).mean()
        agree(criterion(u, y, i), theirs, u)


def measured(strength, epochs):
    """The strength after each epoch, by a naive loop over the definition."""
    value, values, chance, before = 0.0, [], None, 0.0
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
        competence *= memorized > 0 or w - before < error
        before = w
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


def test_good_predictions_raise_the_strength_only_where_learning_has_slowed_down():
    """The withheld labels are predicted ever better, and trained ones no better than these."""
    criterion = methods.robust(num_samples=N, num_classes=C)
    for epoch in [*batches(3, shift=2.0), [*batches(3, shift=2.0)][-1]]:
        for u, y, i in epoch:
            criterion(u, y, i)
        criterion.end_epoch()
    strength, _, withheld = Strength.of(criterion).curve().T.tolist()
    assert withheld[1] < withheld[2] > 0.9
    assert strength == [0, 0, 0, 1]  # the last epoch is that before it once more


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
def test_withheld_samples_are_suspects_only_after_they_were_trained_on(name):
    criterion = SELF_MEASURED[name]()
    strength = Strength.of(criterion)
    *before, last = batches(3, shift=0.5)
    for value, epoch in zip((0.0, 0.4), before, strict=True):
        strength.value.fill_(value)
        for u, y, i in epoch:
            criterion(u, y, i)
        criterion.end_epoch()
    assert sorted(criterion.suspects().index.tolist()) == (~strength.withheld).nonzero()[:, 0].tolist()
    assert criterion.suspects().unjudged == 40
    assert f"40 of {N} labels are not judged" in repr(criterion.suspects(5))
    strength.value.fill_(1.0)
    for u, y, i in last:
        criterion(u, y, i)
    assert sorted(criterion.suspects().index.tolist()) == [*range(N)]
    assert "not judged" not in repr(criterion.suspects())
    assert torch.equal(criterion.record.visits, torch.where(strength.withheld, 1.0, 3.0))


@pytest.mark.parametrize("order", ["robust first", "robust last"])
def test_no_other_loss_term_reaches_withheld_samples(order):
    parts = [methods.robust(num_samples=N, num_classes=C), methods.elr(num_samples=N, num_classes=C)]
    hidden = Strength.of(parts[0]).withheld
    both = parts[0] + parts[1] if order == "robust first" else parts[1] + parts[0]
    both.reduction = "none"
    alone = methods.elr(num_samples=N, num_classes=C)
    alone.reduction = "none"
    for u, y, i in next(batches(1)):  # at strength 0, robust adds nothing of its own
        losses, theirs = both(u, y, i), alone(u, y, i)
        agree(losses[~hidden[i]].sum(), theirs[~hidden[i]].sum(), u)
        (slope,) = torch.autograd.grad(losses.sum(), u)
        assert not slope[hidden[i]].any()
        assert slope[~hidden[i]].any(1).all()


# --- in training, at a strength above 0 ------------------------------------------------------------------------------

STRENGTHS = [1.0, "auto"]


def fitted(strength, folder=None, stop=None, **changes):
    """A run on 400 digits, a third of them with wrong labels, which ends after `stop` steps; None if it was stopped."""
    given = {
        "method": "robust", "hyper": {"strength": strength}, "noise": "random:0.3", "epochs": 6, "batch_size": 50, "model": "mlp",
        "model_options": {"hidden": [64]}, "optimizer": "sgd", "lr": 0.2, "schedule": "constant", "validation": 0.0,
    }  # fmt: skip
    steps = []

    def count(s):
        steps.append(s)
        if len(steps) == stop:
            raise KeyboardInterrupt

    data = Splits(digits().subset(np.arange(N)), digits().subset(np.arange(N, N + 200)))
    try:
        return fit(
            Config(**given | changes), data=data, folder=folder, resume=folder is not None, every=5, on_step=count
        )
    except KeyboardInterrupt:
        return None


def state(result):
    """The tensors of the criterion and of the model after a run."""
    parts = {"criterion": result.criterion, "model": result.model}
    return {f"{part}.{name}": v.clone() for part, module in parts.items() for name, v in module.state_dict().items()}


def save_state(out, strength):
    save_file(state(fitted(strength)), out)


@pytest.fixture(scope="module", params=STRENGTHS)
def whole(request):
    """The strength that was asked for and a whole run, whose strength was above 0 in the last two of six epochs."""
    result = fitted(request.param)
    assert request.param != "auto" or (Strength.of(result.criterion).curve()[4:, 0] > 0).all()
    return request.param, result


def assert_near(found, expected, atol=1e-4):
    assert found.keys() == expected.keys()
    assert [
        k for k, v in expected.items() if not torch.allclose(found[k].double(), v.double(), rtol=atol, atol=atol)
    ] == []


def test_a_run_that_was_stopped_in_an_epoch_ends_as_the_whole_one(whole, tmp_path):
    strength, expected = whole
    assert fitted(strength, tmp_path / "run", stop=43) is None  # in the last of six epochs of eight steps
    found = state(fitted(strength, tmp_path / "run"))
    assert [k for k, v in state(expected).items() if not torch.equal(found[k], v)] == []


def test_two_processes_are_one(whole, tmp_path):
    strength, expected = whole
    run_pair(tmp_path, save_state, tmp_path / "two.safetensors", strength)
    assert_near(load_file(tmp_path / "two.safetensors"), state(expected))


def test_accumulated_batches_are_one_batch(whole):
    strength, expected = whole
    one, several = state(expected), state(fitted(strength, batch_size=25, accumulate=2))
    for name in ("criterion.step", "criterion.total"):  # calls
        assert several.pop(name) == 2 * one.pop(name)
    assert_near(several, one)


def test_mixed_precision_is_near_full_precision(whole):
    strength, expected = whole
    found = fitted(strength, precision="bf16")
    assert found.last["test_accuracy"] == pytest.approx(expected.last["test_accuracy"], abs=0.05)
    assert expected.last["test_accuracy"] > 0.6
    if strength == "auto":
        curves = (Strength.of(result.criterion).curve() for result in (found, expected))
        assert torch.allclose(*curves, atol=0.05)


@pytest.mark.parametrize("strength", STRENGTHS)
def test_a_compiled_criterion_is_the_criterion(strength, monkeypatch):
    """Without a buffer in the graph, and with one outside."""
    ours, compiled = (methods.robust(num_samples=N, num_classes=C, strength=strength) for _ in range(2))
    compiled.compile(fullgraph=True, backend="aot_eager")
    monkeypatch.setattr(statistics, "BUFFER", 700)
    for epoch in batches(4, shift=3.0):
        for u, y, i in epoch:
            agree(compiled(u, y, i), ours(u, y, i), u, atol=1e-6)
        ours.end_epoch()
        compiled.end_epoch()
    assert strength != "auto" or float(Strength.of(ours).value) == 1
    assert_near(compiled.state_dict(), ours.state_dict())


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
