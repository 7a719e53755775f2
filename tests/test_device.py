"""The way that batches take on a device: nothing waits, and the answer is that of the CPU."""

from __future__ import annotations

import contextlib
import copy
import warnings
from typing import Any
from unittest import mock

import pytest
import torch

from benchmarks.operations import operations
from compensate import METHODS, Compensated
from compensate.core import layout
from compensate.core.layout import distinct_rows
from compensate.methods import logcomp, mixcomp, robust, sop
from compensate.terms import Evidence
from tiny import TinyNet

SIZES = {"num_samples": 40, "num_classes": 3, "class_counts": [20, 12, 8], "feature_dim": 6, "feature_shape": (4,)}


def simulated_device() -> Any:
    """CPU tensors inside are treated like tensors of another device."""
    return mock.patch.object(layout, "_simulated", True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", METHODS)
def test_no_method_waits_for_the_device(name: str) -> None:
    ours, theirs = operations(METHODS[name], steps=1)
    assert theirs <= ours


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_the_way_of_a_device_gives_what_the_cpu_gives(name: str, ignored: bool) -> None:
    """Losses, gradients and all that is kept, with samples that come twice and samples without a label."""
    found = []
    for away in (False, True):
        torch.manual_seed(1)
        criterion = METHODS[name].make(**SIZES).start(10)
        model = TinyNet(classes=3 + METHODS[name].extra_outputs)
        x, y = torch.randn(8, 4), torch.randint(3, (8,))
        y = torch.where(torch.arange(8) % 4 == 1, -100, y) if ignored else y
        losses = []
        for step in range(2):
            index = torch.randperm(40)[:8]
            torch.manual_seed(2)
            with warnings.catch_warnings(), simulated_device() if away else contextlib.nullcontext():
                warnings.simplefilter("ignore")
                loss = criterion.evaluate(model, x + step, y, index).loss
                loss.backward()
                criterion.end_epoch()
            losses.append(loss.detach())
        grads = [p.grad for p in model.parameters()]
        found.append((losses, grads, criterion.state_dict()))
    (a, ga, ka), (b, gb, kb) = found
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ga, gb, rtol=1e-3, atol=1e-4)
    for key, value in ka.items():
        torch.testing.assert_close(value, kb[key], rtol=1e-3, atol=1e-4, msg=lambda m, key=key: f"{key}: {m}")


def test_rows_of_samples_that_come_twice_move_as_on_the_cpu() -> None:
    here = logcomp(num_samples=9, num_classes=4)
    there = copy.deepcopy(here)
    for seed in range(3):
        draw = torch.Generator().manual_seed(seed)
        u, y = 3 * torch.randn(7, 4, generator=draw), torch.randint(4, (7,), generator=draw)
        y[2], index = -100, torch.randint(4, (7,), generator=draw)
        u.requires_grad_()
        with simulated_device():
            torch.testing.assert_close(there(u, y, index), here(u, y, index))
    torch.testing.assert_close(next(there.tables()).weight, next(here.tables()).weight)


BUFFERED = {
    "logcomp": lambda: logcomp(num_samples=30, num_classes=3),
    "mixcomp": lambda: mixcomp(num_samples=30),
    "robust": lambda: robust(num_samples=30, num_classes=3, strength=1.0),
    "a strength": lambda: robust(num_samples=200, num_classes=3),
}


@pytest.mark.parametrize("build", BUFFERED.values(), ids=BUFFERED)
def test_statistics_of_batches_that_wait_are_those_of_batches_one_by_one(build, monkeypatch) -> None:
    waits, not_ = build(), build()
    batches = []
    for seed in range(6):
        draw = torch.Generator().manual_seed(seed)
        u = (2 * torch.randn(5, 3, generator=draw)).requires_grad_()
        rows = torch.randperm(30, generator=draw)[:5]
        batches.append((u, rows % 3, rows))
    for batch in batches:
        waits(*batch)
    assert waits.record._buffer
    monkeypatch.setattr("compensate.core.statistics.BUFFER", 0)
    for batch in batches:
        not_(*batch)
    assert not not_.record._buffer
    assert torch.equal(copy.deepcopy(waits).suspects().index, not_.suspects().index)
    for name, kept in waits.state_dict().items():
        torch.testing.assert_close(kept, not_.state_dict()[name], msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("kept", [{}, {"lean": True}, {"predictions": True}])
def test_every_visit_of_a_sample_is_recorded(kept: dict[str, bool], away: bool) -> None:
    """Several visits between two looks count as several, on the CPU and away from it, with and without ignored labels."""
    looked, unseen = (Compensated(record=Evidence(6, num_classes=4, **kept)) for _ in range(2))
    draw = torch.Generator().manual_seed(3)
    labels = torch.randint(4, (6,), generator=draw)
    for step in range(9):
        rows = torch.randperm(6, generator=draw)[:4]
        u = (2 * torch.randn(4, 4, generator=draw)).requires_grad_()
        y = labels[rows].masked_fill(torch.arange(4) == step % 8, -100)
        looked(u, y, rows)
        looked.record.flush()
        with simulated_device() if away else contextlib.nullcontext():
            unseen(u, y, rows)
    with simulated_device() if away else contextlib.nullcontext():
        unseen.record.flush()
    for name, value in looked.state_dict().items():
        torch.testing.assert_close(
            unseen.state_dict()[name], value, rtol=2e-3, atol=2e-3, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("away", [False, True])
def test_visits_of_one_batch_all_vote(away: bool) -> None:
    """A sample that comes three times in a batch has three votes, and one without a label has none."""
    record = Evidence(2, num_classes=3)
    criterion = Compensated(record=record)
    u = torch.tensor([[0.0, 4.0, 0.0]]).repeat(4, 1).requires_grad_()
    for _ in range(2):
        with simulated_device() if away else contextlib.nullcontext():
            criterion(u, torch.tensor([0, 0, 0, -100]), torch.tensor([1, 1, 1, 1]))
            record.flush()
    assert record.visits.tolist() == [0, 6]
    assert record.guess.tolist() == [0, 1]
    torch.testing.assert_close(record.votes[1], 6 * u[0].detach().softmax(0)[1])


def test_what_waits_is_a_copy() -> None:
    criterion = Compensated(record=Evidence(4, score="margin"))
    u, y, i = torch.tensor([[3.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 0]), torch.tensor([0, 1])
    criterion(u, y, i)
    u.zero_(), y.fill_(1), i.fill_(3)
    assert criterion.record.total_margin.tolist() == [3.0, -3.0, 0.0, 0.0]


def test_second_derivatives_of_renormalized_predictions() -> None:
    torch.manual_seed(0)
    criterion = sop(num_samples=5, num_classes=3, spread=0.4).double()
    kept = {name: value.clone() for name, value in criterion.state_dict().items()}

    def loss(u: torch.Tensor) -> torch.Tensor:
        criterion.load_state_dict(kept)
        return criterion(u, torch.tensor([0, 1, 2, 1, 0]), torch.arange(5))

    u = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, u)
    assert torch.autograd.gradgradcheck(loss, u)


def test_an_index_on_the_host_shows_that_rows_are_distinct():
    """On a device this would wait for the keys, or sort them."""
    index = torch.tensor([3, 1, 2])
    keys = index.to("meta")
    assert distinct_rows(keys, index) == (keys, None)
    assert distinct_rows(keys, torch.tensor([3, 1, 3]))[1] is not None
    assert distinct_rows(keys, torch.tensor([[3, 1, 2]]))[1] is not None  # another shape
