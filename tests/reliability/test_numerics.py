"""Every method under numbers at the edge: the loss and its gradient are finite, or an error says what is wrong.

Logits are made by a model whose input is its features, so that methods on features, logits, labels and losses are all met
the same way; the criterion has seen an ordinary batch before, so that its tables and statistics are filled.
"""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from steps_at_edges import assert_finite, build, settled, step

from compensate import METHODS, InputError, methods
from compensate.errors import NotFinite

BATCHES = {
    "one": lambda: torch.randn(1, 4),
    "not contiguous": lambda: torch.randn(4, 10).t()[::2],
    "equal": lambda: torch.ones(5, 4),
    "zero": lambda: torch.zeros(5, 4),
}


@pytest.mark.parametrize("name", METHODS)
def test_odd_batches(name):
    for make in BATCHES.values():
        criterion, model = settled(name)
        x = make()
        assert_finite(criterion, *step(criterion, model, x, torch.arange(len(x)) % 3, torch.arange(len(x))))


COSINES = {"arcface", "balanced_arcface"}
"""Their logits are cosines times a scale; any others are refused."""

SQUARES = {"isda", "metasaug"}
"""They square the weights of the head, and 1e30 has no square in single precision."""


@pytest.mark.parametrize("name", METHODS)
def test_logits_of_any_finite_size(name):
    for size in (1e4, 1e30):
        _check_logits_of_size(name, size)


def _check_logits_of_size(name, size):
    criterion, model = settled(name)
    refuses = COSINES if size < 1e30 else COSINES | SQUARES
    with torch.no_grad():
        model.head.weight.mul_(size)
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    assert model(x).abs().max() > size / 10
    if name in refuses:
        with pytest.raises(InputError, match=r"no scaled cosines|not finite though the logits are"):
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


NEEDS_TWO = {"logit_adjustment", "meta_logit_adjustment", "mix_level_label", "ldam", "self_paced_logit", "metasaug"} | {
    "slack_hinge"
}


@pytest.mark.parametrize("name", METHODS)
def test_a_single_class(name):
    """Finite, or an error that says that there must be two."""
    x, y, i = torch.randn(5, 4), torch.zeros(5, dtype=torch.long), torch.arange(5)
    if name in NEEDS_TWO:
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


DROP_IN = [
    name
    for name, row in METHODS.items()
    if not row.needs & {"model", "features", "clean", "teacher", "group"} and name not in COSINES
]


@pytest.mark.parametrize("name", DROP_IN)
@settings(max_examples=15, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=3, max_size=3),
        min_size=1,
        max_size=4,
    )
)
def test_any_finite_logits(name, rows):
    row = METHODS[name]
    criterion, _ = build(name, 3)
    u = torch.tensor([r + [0.0] * row.extra_outputs for r in rows], requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        losses = criterion(u, torch.arange(len(rows)) % 3, torch.arange(len(rows)))
    # A difference of two numbers may leave the range of its type; the loss is then infinite, and is never NaN.
    spread = u.detach().double()
    fits = float(spread.max() - spread.min()) < 1e38
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


def test_the_loss_without_the_class_of_its_label_is_refused():
    with pytest.raises(NotFinite, match=r"where the loss depends on them.*First rows of the batch: \[0\]"):
        methods.base()(torch.tensor([[0.0, -math.inf]]), torch.tensor([1]))
