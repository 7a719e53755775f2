"""Class weights multiply the terms of the samples, and nothing else reads them: one law for all methods."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from compensate import METHODS, Compensated, meta_step
from compensate.terms import L1, Category, Corpus, Evidence, Pull, Sample, Top, Views, Where, above
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
    for weight, later in ((None, False), (w, False), (w, True)):
        torch.manual_seed(3)
        criterion, model = built(row, None if later else weight).start(10), plain_net(CLASSES + row.extra_outputs)
        if later:
            criterion.weight = torch.cat([w, w.new_ones(row.extra_outputs)])
        x, y, i = batch()
        s = criterion.evaluate(model, x, y, i)
        s.loss.backward()  # rows on features move
        state = {key: part for key, part in criterion.state_dict().items() if key != "weight"}
        found.append({"losses": s.losses.detach(), "loss": s.loss.detach(), **compensation(s), **state})
    plain, weighted, set_later = found
    assert_same(set_later, weighted)
    torch.testing.assert_close(weighted.pop("loss"), (w[y] * plain.pop("losses")).sum() / w[y].sum())
    plain.pop("loss"), weighted.pop("losses")
    assert_same(weighted, plain)


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
def held_rows(make, target, weight, inputs, **options):
    """The rows of a table on a target after three steps."""
    size = {"feature": 4, "view": 1}.get(target, CLASSES)
    table = make(*{Sample: (ROWS, size), Category: (CLASSES, size), Corpus: (size,)}[make], penalty=L1(0.001), lr=0.5)
    views = Views(lambda e: e.roll(1, -1)) if target == "view" else None
    criterion = Compensated(**{target: table}, views=views, weight=weight, **options).double()
    torch.manual_seed(1)
    model = plain_net()
    for _ in range(3):
        criterion.evaluate(model, *inputs).loss.backward()
    assert table.dense().any()
    return {"rows": table.dense()}


CASES = [*((target, False) for target in ("logit", "label", "feature", "view")), ("logit", True), ("label", True)]


@pytest.mark.parametrize(("target", "soft"), CASES)
@pytest.mark.parametrize("make", [Sample, Category, Corpus])
def test_rows_move_by_the_slope_without_weights(make, target, soft):
    torch.manual_seed(0)
    inputs = batch(soft=soft)
    assert_same(*(held_rows(make, target, weight, inputs) for weight in ([0.3, 4.0, 1.0], None)))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("target", ["feature", "view"])
def test_a_row_of_two_samples_of_other_weights_moves_by_the_slope_without_weights(target, reduction):
    torch.manual_seed(0)
    x, y, i = batch()
    y[3], y[4], i[3] = 0, 1, i[4]
    found = (held_rows(Sample, target, weight, (x, y, i), reduction=reduction) for weight in ([0.3, 4.0, 1.0], None))
    assert_same(*found)
