"""Class weights multiply the terms of the samples, and nothing else reads them: one law for all methods."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from compensate import METHODS, Compensated, meta_step, methods
from compensate.terms import L1, Adversarial, Category, Corpus, Evidence, Pull, Sample, Top, Views, Where, above
from compensate.terms.meta import networks
from tiny import TinyNet

CLASSES, ROWS = 3, 12
SIZES = {"num_samples": 40, "num_classes": 3, "class_counts": [20, 12, 8], "feature_dim": 6, "feature_shape": (4,)}
OWN_WEIGHTS = {"ldam": {"defer": None}}
"""Methods with weights of their own, and how to leave those out."""


def plain_net(classes=CLASSES):
    """Without batch normalization: it takes a shift common to all samples away, and the sign of a zero slope is chance."""
    model = TinyNet(classes=classes)
    model.body[1] = torch.nn.Identity()
    return model.double()


def batch(row=None, *, soft=False):
    x, y, i = 2 * torch.randn(ROWS, 4).double(), torch.randint(CLASSES, (ROWS,)), torch.arange(ROWS)
    if soft:
        y = F.pad(torch.randn(ROWS, CLASSES).double().softmax(-1), (0, row.extra_outputs if row else 0))
    return x, y, i


def built(row, weight):
    sizes = {key: size for key, size in SIZES.items() if key != "class_counts" or row.name != "metasaug"}
    return row.make(**sizes, **OWN_WEIGHTS.get(row.name, {}), weight=weight).double()


def compensation(s):
    found = {name: getattr(s, name) for name in ("dx", "du", "dp", "dy", "dl")}
    return {name: part.detach().clone() for name, part in found.items() if part is not None}


def trained(row, weight, *, soft=False, seed=0, steps=4):
    """Losses, compensation, gradients and what a criterion holds over a few steps of a short training."""
    torch.manual_seed(seed)
    criterion, model = built(row, weight).start(2 * steps), plain_net(CLASSES + row.extra_outputs)
    x, y, i = batch(row, soft=soft)
    clean = torch.randn(6, 4).double(), torch.arange(6) % CLASSES
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0 if soft else 0.1)
    own = torch.optim.SGD(criterion.parameters(), lr=0.1) if networks(criterion) else None
    found = {}
    for step in range(steps):
        torch.manual_seed(seed + step)
        if "clean" in row.needs:
            meta_step(criterion, model, (x, y, i), clean, lr=0.1, optimizer=own)
        s = criterion.evaluate(model, x, y, i)
        optimizer.zero_grad()
        s.loss.backward()
        optimizer.step()
        found |= {f"loss {step}": s.loss.detach(), f"plain losses {step}": s.plain_losses}
        found |= {f"{name} {step}": part for name, part in compensation(s).items()}
        found |= {f"gradient {step} {name}": p.grad.clone() for name, p in model.named_parameters()}
        if step % 2:
            criterion.end_epoch()
    found |= {f"state {name}": part for name, part in criterion.state_dict().items() if name != "weight"}
    if criterion.record is not None:
        found["suspects"] = criterion.suspects().index
    return found


def assert_same(found, expected, times=1.0):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        value = times * value if name.startswith(("loss", "gradient")) else value
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}")


# constant weights
@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=2, deadline=None, derandomize=True, phases=[Phase.generate])
@given(k=st.floats(0.05, 30.0), seed=st.integers(0, 99))
def test_constant_weights_are_neutral(name, k, seed):
    row = METHODS[name]
    assert_same(trained(row, [k] * CLASSES, seed=seed), trained(row, None, seed=seed))


@pytest.mark.parametrize("name", [name for name, row in METHODS.items() if "clean" not in row.needs])
def test_constant_weights_multiply_a_mean_over_soft_labels_as_in_torch_and_nothing_else(name):
    row, k = METHODS[name], 4.0
    assert_same(trained(row, [k] * CLASSES, soft=True), trained(row, None, soft=True), k)


# other weights
OTHERS = [
    name for name, row in METHODS.items()
    if "label" not in row.taxonomy.target.split("+") and name not in ("semantics_preserving_at", "loss_bound")
]  # fmt: skip
"""Without methods whose labels are distributions, with a weight for each class inside of the cross entropy; and a floor under a weighted mean."""


@pytest.mark.parametrize("name", OTHERS)
def test_each_summand_is_multiplied_by_the_weight_of_its_label_and_compensation_does_not_change(name):
    row, w = METHODS[name], torch.tensor([0.2, 5.0, 1.0]).double()
    found = []
    for weight in (None, w):
        torch.manual_seed(3)
        criterion, model = built(row, weight).start(10), plain_net(CLASSES + row.extra_outputs)
        x, y, i = batch()
        s = criterion.evaluate(model, x, y, i)
        s.loss.backward()  # rows on features move
        state = {key: part for key, part in criterion.state_dict().items() if key != "weight"}
        found.append({"losses": s.losses.detach(), "loss": s.loss.detach(), **compensation(s), **state})
    plain, weighted = found
    torch.testing.assert_close(weighted.pop("loss"), (w[y] * plain.pop("losses")).sum() / w[y].sum())
    plain.pop("loss"), weighted.pop("losses")
    assert_same(weighted, plain)


def test_suspects_are_ranked_by_losses_without_weights():
    criterion = methods.base(num_samples=2, weight=[5.0, 1, 1])
    u = torch.tensor([[2.0, 0, 0], [0, 0.3, 0.2]], requires_grad=True)
    criterion(u, torch.tensor([0, 1]), torch.arange(2))
    assert criterion.suspects().index.tolist() == [1, 0]
    torch.testing.assert_close(criterion.record.total_loss, F.cross_entropy(u, torch.tensor([0, 1]), reduction="none"))


@pytest.mark.parametrize("threshold", [{"tau": 0.9}, {"pro": 50.0, "preset": "paper"}])
def test_a_label_that_fits_is_not_compensated_because_its_class_weighs_more(threshold):
    u, y = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.3, 0.2]]), torch.tensor([0, 1])
    assert u.softmax(-1)[0, 0] > 0.7
    s = methods.mixcomp(**threshold, weight=[5.0, 1, 1]).evaluate(torch.nn.Identity(), u, y)
    assert (s.du != 0).any(1).tolist() == [False, True]


@pytest.mark.parametrize("kind", ["classes", "soft", "bce"])
def test_thresholds_gates_and_records_of_all_kinds_of_labels_read_losses_without_weights(kind):
    torch.manual_seed(0)
    u = 3 * torch.randn(20, 3).double()
    y = {
        "classes": torch.randint(3, (20,)),
        "soft": torch.randn(20, 3).double().softmax(-1),
        "bce": torch.randint(2, (20, 3)),
    }
    held = []
    for weight in (None, [0.1, 9.0, 1.0]):
        threshold = Top(30.0, "epoch", 60 if kind == "bce" else 20)
        record = Evidence(20, num_labels=3 if kind == "bce" else 1)
        criterion = Compensated(
            logit=Where(above(threshold), Pull(1.0)), base="bce" if kind == "bce" else None, record=record, weight=weight
        )  # fmt: skip
        s = criterion.double().evaluate(torch.nn.Identity(), u.clone().requires_grad_(), y[kind], torch.arange(20))
        held.append({**compensation(s), "seen": threshold.seen, "loss": record.total_loss, "size": record.total_size})
    assert_same(held[1], held[0])


# tables
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("target", ["logit", "label"])
@pytest.mark.parametrize("make", [Sample, Category, Corpus])
def test_rows_move_by_the_slope_without_weights(make, target, soft):
    torch.manual_seed(0)
    x, y, i = batch(soft=soft)
    held = []
    for weight in (None, [0.3, 4.0, 1.0]):
        sizes = {Sample: (ROWS, 3), Category: (3, 3), Corpus: (3,)}[make]
        table = make(*sizes, penalty=L1(0.01), lr=0.5)
        criterion = Compensated(**{target: table}, weight=weight).double()
        for _ in range(3):
            criterion(x[:, :3].clone().requires_grad_(), y, i)
        held.append({"rows": table.dense()})
    assert held[0]["rows"].any()
    assert_same(held[1], held[0])


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("make", [Sample, Category, Corpus])
def test_rows_on_features_and_views_move_by_the_slope_without_weights(make, reduction, repeated):
    torch.manual_seed(0)
    x, y, i = batch()
    y[3], y[4] = 0, 1
    i[3] = i[4] if repeated else i[3]  # one row, two samples of other weights
    model = plain_net()
    for target, size in (("feature", 4), ("view", 1)):
        held = []
        for weight in (None, [0.3, 4.0, 1.0]):
            sizes = {Sample: (ROWS, size), Category: (3, size), Corpus: (size,)}[make]
            table = make(*sizes, penalty=L1(0.001), lr=0.5)
            views = Views(lambda e: e.roll(1, -1)) if target == "view" else None
            criterion = Compensated(**{target: table}, views=views, weight=weight, reduction=reduction).double()
            criterion.evaluate(model, x, y, i).loss.backward()
            held.append({"rows": table.dense()})
        assert held[0]["rows"].any()
        assert_same(held[1], held[0])


def test_a_penalty_is_weighed_as_its_sample_is():
    table = Sample(2, 3, penalty=L1(0.5))
    table.write(torch.arange(2), torch.tensor([[1.0, 0, 0], [0, 2.0, 0]]))
    w, y = torch.tensor([3.0, 1.0, 1.0]), torch.tensor([0, 1])
    criterion = Compensated(logit=table, weight=w, reduction="none")
    losses = criterion(torch.zeros(2, 3), y, torch.arange(2))
    base = F.cross_entropy(torch.tensor([[1.0, 0, 0], [0, 2.0, 0]]), y, reduction="none")
    torch.testing.assert_close(losses, w[y] * (base + torch.tensor([0.5, 1.0])))


def test_an_attack_does_not_depend_on_weights():
    x, y, i = batch()
    model = plain_net()
    found = [
        Compensated(feature=Adversarial(0.3, norm="l2", steps=3, random_start=False), weight=weight).double().evaluate(model, x, y, i).dx
        for weight in (None, [0.01, 50.0, 1.0])
    ]  # fmt: skip
    torch.testing.assert_close(found[1], found[0])
