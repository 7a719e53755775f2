"""Every method on numbers and batches at the edge: a finite loss, or an error after which nothing has moved."""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from compensate import METHODS, Compensated, InputError, methods
from compensate.errors import NotFinite
from compensate.integrations import IndexCheck
from compensate.terms import L1, Sample, Statistic, Where, below

N = 12


class Head(nn.Module):
    """Features are the input; the head scales them to logits."""

    def __init__(self, inputs: int, outputs: int, scale: float = 1.0) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, outputs, bias=False)
        self.scale = scale

    def embed(self, x: Tensor) -> Tensor:
        return x

    def features(self, e: Tensor) -> Tensor:
        return e

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(self.embed(x)))


def build(name: str, classes: int, dtype: torch.dtype = torch.float32, **more: object) -> tuple[Compensated, Head]:
    row = METHODS[name]
    counts = [N - classes + 1] + [1] * (classes - 1) if classes <= N else [1] * classes
    criterion = row.make(
        num_samples=N, num_classes=classes, class_counts=counts, feature_dim=4, feature_shape=(4,), **more
    )
    torch.manual_seed(0)
    model = Head(4, classes + row.extra_outputs).to(dtype)
    return criterion.start(100), model


def step(criterion: Compensated, model: Head, x: Tensor, y: Tensor, i: Tensor) -> tuple[Tensor, list[Tensor]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a criterion may say that epochs do not end; here they need not
        loss = criterion.evaluate(model, x, y, i).loss
    model.zero_grad()
    loss.backward()
    return loss.detach(), [p.grad for p in model.parameters() if p.grad is not None]


def settled(name: str, dtype: torch.dtype = torch.float32) -> tuple[Compensated, Head]:
    """A criterion whose tables and statistics are filled, and its model: copies of those made when first asked for."""
    made = copy.deepcopy(_settled(name, dtype))
    torch.manual_seed(1)
    return made


@cache
def _settled(name: str, dtype: torch.dtype, classes: int = 3) -> tuple[Compensated, Head]:
    criterion, model = build(name, classes, dtype)
    for _ in range(2):
        x, y = torch.randn(8, 4, dtype=dtype), torch.arange(8) % classes
        step(criterion, model, x, y, torch.arange(8))
        criterion.end_epoch()
    return criterion, model


def assert_finite(criterion: Compensated, loss: Tensor, gradients: list[Tensor]) -> None:
    assert loss.isfinite().all()
    assert gradients
    assert all(g.isfinite().all() for g in gradients)
    for key, value in criterion.state_dict().items():
        assert not value.is_floating_point() or not value.isnan().any(), key


# Numerics
@pytest.mark.parametrize("name", METHODS)
def test_odd_batches(name):
    """One sample, not contiguous, equal, zero."""
    for x in (torch.randn(1, 4), torch.randn(4, 10).t()[::2], torch.ones(5, 4), torch.zeros(5, 4)):
        criterion, model = settled(name)
        assert_finite(criterion, *step(criterion, model, x, torch.arange(len(x)) % 3, torch.arange(len(x))))


COSINES = {"arcface", "balanced_arcface"}  # their logits are cosines times a scale; any others are refused
SQUARES = {"isda", "metasaug"}  # they square the weights of the head, and 1e30 has no square in single precision


@pytest.mark.parametrize("name", METHODS)
def test_logits_of_any_finite_size(name):
    for size, refuses in ((1e4, COSINES), (1e30, COSINES | SQUARES)):
        criterion, model = settled(name)
        with torch.no_grad():
            model.head.weight.mul_(size)
        x, y = torch.randn(6, 4), torch.arange(6) % 3
        assert model(x).abs().max() > size / 10
        if name in refuses:
            with pytest.raises(InputError, match=r"not scaled cosines|not finite though the logits are"):
                step(criterion, model, x, y, torch.arange(6))
        else:
            assert_finite(criterion, *step(criterion, model, x, y, torch.arange(6)))


@pytest.mark.parametrize("name", METHODS)
def test_half_precision(name):
    for dtype in (torch.float16, torch.bfloat16):
        criterion, model = settled(name, dtype)
        x, y = 8 * torch.randn(6, 4, dtype=dtype), torch.arange(6) % 3
        loss, gradients = step(criterion, model, x, y, torch.arange(6))
        assert_finite(criterion, loss, gradients)
        assert all(g.dtype == dtype for g in gradients)


NEEDS_TWO = {"logit_adjustment", "meta_logit_adjustment", "mix_level_label", "ldam", "slack_hinge"}
"""Methods that do not take `num_classes` and need two classes."""


@pytest.mark.parametrize("name", METHODS)
def test_a_single_class(name):
    """Finite, or an error that says that there must be two."""
    x, y, i = torch.randn(5, 4), torch.zeros(5, dtype=torch.long), torch.arange(5)
    if name in NEEDS_TWO or "num_classes" in inspect.signature(METHODS[name].build).parameters:
        with pytest.raises(InputError):
            step(*build(name, 1), x, y, i)
        return
    criterion, model = build(name, 1)
    for _ in range(2):
        assert_finite(criterion, *step(criterion, model, x, y, i))
        criterion.end_epoch()


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_ten_thousand_classes(name):
    criterion, model = build(name, 10_000)
    x, y = torch.randn(3, 4), torch.tensor([0, 9_999, 17])
    assert_finite(criterion, *step(criterion, model, x, y, torch.arange(3)))


@pytest.mark.parametrize("name", METHODS)
def test_an_empty_batch_is_no_accident(name):
    """As torch has it, the mean over nothing is NaN and its sum is zero; nothing else may happen."""
    criterion, model = settled(name)
    before = {k: v.clone() for k, v in criterion.state_dict().items() if k not in ("step", "epoch")}
    nothing = torch.zeros(0, dtype=torch.long)
    try:
        s = criterion.evaluate(model, torch.zeros(0, 4), nothing, nothing)
    except InputError:
        return
    assert s.losses.shape == (0,)
    for key, value in before.items():
        now = criterion.state_dict()[key]
        assert now.shape != value.shape or torch.equal(now.nan_to_num(), value.nan_to_num()), key


@pytest.mark.parametrize("name", METHODS)
def test_numbers_that_are_none_are_refused_and_leave_no_trace(name):
    criterion, model = settled(name)
    before = {k: v.clone() for k, v in criterion.state_dict().items()}
    for value in (math.nan, math.inf):
        x, y = torch.randn(6, 4), torch.arange(6) % 3
        x[2] = value
        with pytest.raises(InputError, match=r"NaN|infinity|finite"):
            criterion.evaluate(model, x, y, torch.arange(6))
    for key, now in criterion.state_dict().items():
        assert now.shape != before[key].shape or torch.equal(now, before[key]), key


NOT_LOGITS = {"model", "features", "clean", "teacher", "group"}
DROP_IN = [name for name, row in METHODS.items() if not row.needs & NOT_LOGITS and name not in COSINES]


FINITE = st.floats(-(2.0**126), 2.0**126, width=32)  # sums of two are finite too


@pytest.mark.parametrize("name", DROP_IN)
@settings(max_examples=15, deadline=None)
@given(rows=st.lists(st.tuples(FINITE, FINITE, FINITE), min_size=1, max_size=4))
def test_any_finite_logits(name, rows):
    row = METHODS[name]
    criterion, _ = build(name, 3)
    u = torch.tensor([[*r, *[0.0] * row.extra_outputs] for r in rows], requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        losses = criterion(u, torch.arange(len(rows)) % 3, torch.arange(len(rows)))
    # The mean is a sum first, as in torch. A sum may leave the range of its type; the loss is then infinite, and is never NaN.
    logits = u.detach().double()
    fits = len(rows) * float(logits.max() - logits.min()) < 3e38
    assert not losses.isnan()
    if fits:
        losses.backward()
        assert losses.isfinite()
        assert u.grad is not None
        assert u.grad.isfinite().all()


@pytest.mark.parametrize("name", DROP_IN)
def test_a_masked_class_is_finite_or_refused(name):
    row = METHODS[name]
    criterion, _ = build(name, 3)
    u = torch.tensor([[1.0, 2.0, -math.inf], [0.5, 0.0, 0.0]])
    u = torch.cat([u, torch.zeros(2, row.extra_outputs)], 1).requires_grad_()
    for labels in ([0, 1], [2, 1]):
        try:
            loss = criterion(u, torch.tensor(labels), torch.arange(2))
        except NotFinite:
            continue
        assert loss.isfinite()
        u.grad = None
        loss.backward()
        assert u.grad is not None
        assert u.grad.isfinite().all()


# Refused batches
def batch() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(6, 4), torch.arange(6) % 3, torch.arange(6)


def soft(outputs: int, *row: float) -> Tensor:
    """A soft target with other values in one row."""
    y = torch.nn.functional.one_hot(torch.arange(6) % 3, outputs).float()
    y[1, : len(row)] = torch.tensor(row)
    return y


BAD_INDEX: dict[str, Callable[[Tensor], Any]] = {
    "outside": lambda i: i + N,
    "missing": lambda i: None,
    "of another size": lambda i: i[:3],
}
BAD_TARGET: dict[str, Callable[[Tensor, int], Any]] = {
    "outside": lambda y, outputs: y + outputs,
    "with nan": lambda y, outputs: soft(outputs, math.nan),
    "multi-hot": lambda y, outputs: soft(outputs, 1.0, 1.0),
    "negative": lambda y, outputs: soft(outputs, 1.5, -0.5),
    "a list": lambda y, outputs: y.tolist(),
    "an array": lambda y, outputs: np.asarray(y),
    "of bytes": lambda y, outputs: y.to(torch.uint8),
    "of short numbers": lambda y, outputs: y.to(torch.int32),
    "of truth values": lambda y, outputs: y > 0,
    "of fractions": lambda y, outputs: y.float(),
}


def held(criterion: Compensated) -> dict[str, Tensor]:
    everything = {**dict(criterion.named_buffers()), **dict(criterion.named_parameters())}
    return {name: value.detach().clone() for name, value in everything.items()}


def assert_unmoved(criterion: Compensated, before: dict[str, Tensor]) -> None:
    now = held(criterion)
    assert now.keys() == before.keys()
    for name, value in before.items():
        assert torch.equal(now[name].nan_to_num(7e7), value.nan_to_num(7e7)), name


def reads_index(criterion: Compensated) -> bool:
    kept = (m for m in criterion.modules() if isinstance(m, Sample | Statistic))
    return any(m.num_samples is not None for m in kept) or any(
        "Stored" in type(m).__name__ for m in criterion.modules()
    )


@pytest.mark.parametrize("name", METHODS)
def test_a_refused_batch_moves_nothing(name):
    """One fault after the other: what is refused leaves the criterion as it was for the next."""
    criterion, model = settled(name)
    before = held(criterion)
    x, y, i = batch()
    refused = [(bad(y, model.head.out_features), i) for bad in BAD_TARGET.values()]
    refused += [(y, bad(i)) for bad in BAD_INDEX.values()] if reads_index(criterion) else []
    for target, index in refused:
        with pytest.raises(InputError):
            criterion.evaluate(model, x, target, index)
        assert_unmoved(criterion, before)


@pytest.mark.parametrize("name", METHODS)
def test_losses_that_overflow_move_nothing(name):
    """Logits and features are finite; their squares are not, in half precision."""
    criterion, model = settled(name, dtype=torch.float16)
    with torch.no_grad():
        model.head.weight.mul_(1e4 / model.head.weight.abs().max())
    x, y, i = batch()
    before = held(criterion)
    refusal = None
    try:
        criterion.evaluate(model, x.half() / 4, y, i)
    except InputError as error:
        refusal = str(error)
        assert_unmoved(criterion, before)
    assert name not in SQUARES or "not finite though the logits are" in str(refusal)


def test_a_row_is_not_moved_if_another_of_its_batch_is_refused():
    criterion = Compensated(logit=Sample(4, 3, penalty=L1(0.1)))
    u = torch.tensor([[1.0, 2.0, 0.0], [0.0, -math.inf, 1.0]])
    with pytest.raises(InputError, match="infinity"):
        criterion(u, torch.tensor([0, 1]), torch.tensor([0, 1]))
    assert not next(criterion.tables()).weight.any()
    assert int(criterion.step) == 0


def test_the_watch_remembers_no_label_of_a_refused_batch():
    criterion = methods.logcomp(num_samples=8, num_classes=2)
    criterion.index_check = IndexCheck(8)
    u = torch.zeros(2, 2)
    with pytest.raises(InputError, match="came with label"):
        criterion(u, torch.tensor([0, 1]), torch.tensor([3, 3]))
    criterion(u, torch.tensor([1, 1]), torch.tensor([3, 3]))
    with pytest.raises(InputError, match="index 3 came with label 1 before"):
        criterion(u, torch.tensor([0, 0]), torch.tensor([3, 4]))
    criterion(u, torch.tensor([1, 1]), torch.tensor([3, 4]))


# batches in which nobody counts
@pytest.mark.parametrize("name", METHODS)
def test_a_batch_without_a_label_leaves_the_model_finite(name):
    criterion, model = settled(name)
    x, y, i = batch()
    loss, gradients = step(criterion, model, x, torch.full_like(y, -100), i)
    assert loss == 0
    assert_finite(criterion, loss, gradients)
    assert all(not g.any() for g in gradients)
    assert_finite(criterion, *step(criterion, model, x, y, i))


def test_the_mean_over_classes_of_no_weight_is_zero():
    u = torch.randn(4, 3, requires_grad=True)
    loss = Compensated(weight=[0.0, 0.0, 1.0])(u, torch.tensor([0, 1, 0, 1]))
    loss.backward()
    assert u.grad.isfinite().all()
    assert loss == 0


GATED = {
    "pull": {"eta": 2.0, "tau": 1e9},
    "attack": {"eta": 2.0, "tau": 0.0, "eps2": 0.1},
    "neither": {"eta": 2.0, "tau": 1e9, "eps2": 0.1},
}


@pytest.mark.parametrize("name", ["mixcomp", "mixcomp_adaptive"])
@pytest.mark.parametrize("gate", GATED)
def test_a_gate_that_leaves_nobody_leaves_the_model_finite(name, gate):
    options = dict(GATED[gate])
    if name == "mixcomp_adaptive":
        options["eps1"] = options.pop("eta")
    criterion, model = build(name, 3, **options)
    for labels in (torch.arange(6) % 3, torch.full((6,), -100)):
        assert_finite(criterion, *step(criterion, model, torch.randn(6, 4), labels, torch.arange(6)))


def test_a_learned_table_behind_a_closed_gate_rests():
    criterion = Compensated(logit=Where(below(-1.0), Sample(4, 3, penalty=L1(0.1))))
    u = torch.randn(2, 3, requires_grad=True)
    criterion(u, torch.tensor([0, 1]), torch.tensor([0, 1])).backward()
    assert u.grad.isfinite().all()
    assert not next(criterion.tables()).weight.any()


# models that do not fit
@pytest.mark.parametrize("name", METHODS)
def test_outputs_that_do_not_fit_the_classes_are_refused_or_taken(name):
    """A criterion that knows no number of classes takes any; the others say what does not fit, and move nothing."""
    for outputs in (2, 5):
        criterion, _ = settled(name)
        model = Head(4, outputs + METHODS[name].extra_outputs)
        before = held(criterion)
        try:
            step(criterion, model, torch.randn(6, 4), torch.arange(6) % outputs, torch.arange(6))
        except InputError as error:
            given = outputs + METHODS[name].extra_outputs
            assert str(given) in str(error) or "3" in str(error)  # noqa: PT017 - both ways are right
            assert_unmoved(criterion, before)


@pytest.mark.parametrize("name", METHODS)
def test_inference_mode_gives_the_loss_or_says_what_to_write(name):
    criterion, model = settled(name)
    before = held(criterion)
    x, y, i = batch()
    with torch.inference_mode():
        try:
            assert criterion.evaluate(model, x, y, i).loss.isfinite()
        except InputError as error:
            assert "torch.no_grad()" in str(error)  # noqa: PT017
        assert criterion.eval().evaluate(model, x, y, i).loss.isfinite()
    assert_unmoved(criterion.train(), before)


def test_logits_of_inference_mode_are_refused_in_training():
    criterion = methods.logcomp(num_samples=4, num_classes=3)
    with torch.inference_mode():
        u = torch.randn(2, 3)
    with pytest.raises(InputError, match="inference_mode"):
        criterion(u, torch.tensor([0, 1]), torch.tensor([0, 1]))
    assert criterion.eval()(u, torch.tensor([0, 1])).isfinite()


# soft targets
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_distributions_of_any_precision_and_many_classes_are_taken(dtype):
    y = torch.rand(3, 1000).softmax(-1).to(dtype)
    assert Compensated()(torch.randn(3, 1000), y).isfinite()
    assert Compensated()(torch.randn(1, 3), torch.tensor([[0.33, 0.33, 0.33]])).isfinite()


def test_multi_hot_targets_are_refused_with_the_way_out():
    y = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    with pytest.raises(InputError, match=r"row 1 of the target sums to 2.*multi-hot.*keepdim=True"):
        Compensated()(torch.randn(2, 3), y)
    assert Compensated()(torch.randn(2, 3), y / y.sum(-1, keepdim=True)).isfinite()
