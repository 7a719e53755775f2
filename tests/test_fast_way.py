"""The fast way and the way of a device give what the definition gives."""

from __future__ import annotations

import contextlib
import copy
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.operations import operations
from compensate import METHODS, Compensated
from compensate.core.tables import pool_
from compensate.core.validation import as_on_a_device
from compensate.methods import elr, logcomp, mixcomp, mixcomp_adaptive, sop
from compensate.terms import L1, L2, Ball, Category, Corpus, Evidence, GroupL2, Pull, Sample, Where
from compensate.terms.gates import above
from tiny import TinyNet

# Fast way
N, DTYPES = 40, [torch.float64, torch.float32]


def by_definition(criterion: Compensated) -> Compensated:
    """The same criterion, by the definition alone."""
    criterion = copy.deepcopy(criterion)
    criterion.fast = False
    return criterion


def drawn(
    batch: int, classes: int, dtype: torch.dtype, seed: int, *, twice: bool = False, ignored: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    u = 3 * torch.randn(batch, classes, dtype=dtype, generator=draw)
    y = torch.randint(classes, (batch,), generator=draw)
    if ignored:
        y[torch.rand(batch, generator=draw) < 0.3] = -100
    i = torch.randint(5, (batch,), generator=draw) if twice else torch.randperm(N, generator=draw)[:batch]
    return u, y, i


def assert_alike(short: Compensated, long: Compensated, batches: list[tuple[Tensor, Tensor, Tensor]]) -> None:
    """Losses, compensation, gradients, second derivatives and everything that is kept, over several steps."""
    for u, y, i in batches:
        tight = {"rtol": 1e-3, "atol": 1e-4} if u.dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-12}
        found = []
        for criterion in (short, long):
            v = u.clone().requires_grad_()
            s = criterion.evaluate(torch.nn.Identity(), v, y, i)
            assert (s.slope is not None) == (criterion is short)
            gradient = s.gradient
            (slope,) = torch.autograd.grad(s.losses.square().sum(), v, create_graph=True)
            (curve,) = torch.autograd.grad(slope.square().sum(), v)
            found.append((s.losses, s.loss, s.du, s.dp, s.dl, s.l, s.plain_losses, gradient, slope, curve))
        for a, b in zip(*found, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, equal_nan=True, **tight)
        for name, kept in short.state_dict().items():
            torch.testing.assert_close(kept, long.state_dict()[name], msg=lambda m, n=name: f"{n}: {m}", **tight)


def tables(classes: int) -> dict[str, Any]:
    return {
        "l1": Sample(N, classes, penalty=L1(0.05)),
        "l1 by subgradient": Sample(N, classes, penalty=L1(0.2), lr=0.3, update="subgradient"),
        "l2 in a ball": Sample(N, classes, penalty=L2(0.1), bound=Ball(0.5)),
        "upward": Sample(N, classes, penalty=L1(0.1), bound=Ball(0.5, "linf"), sign=1),
        "whole rows": Sample(N, classes, penalty=GroupL2(0.1)),
        "none": Sample(N, classes, penalty=None),
        "schedule": Sample(N, classes, penalty=L1(lambda s: 0.1 * (s.step + 1))),
        "one number a sample": Sample(N, 1, penalty=L2(0.1)),
        "classes": Category(classes, classes, penalty=L2(0.1)),
        "all": Corpus(classes, penalty=L1(0.01)),
        "several": (Sample(N, classes, penalty=L1(0.05)), Category(classes, classes, penalty=L2(0.1))),
    }


shapes = st.fixed_dictionaries(
    {"batch": st.integers(1, 12), "classes": st.integers(2, 7), "seed": st.integers(0, 999),
     "dtype": st.sampled_from(DTYPES), "twice": st.booleans(), "ignored": st.booleans()}
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:row .* had another one before")
@pytest.mark.parametrize("name", [*tables(2)])
@settings(max_examples=8, deadline=None)
@given(shape=shapes)
def test_tables_by_the_fast_way_take_the_steps_of_the_definition(name: str, shape: dict[str, Any]) -> None:
    classes, dtype, seed = shape["classes"], shape["dtype"], shape.pop("seed")
    short = Compensated(logit=tables(classes)[name], record=Evidence(N)).to(dtype)
    assert short.only_tables
    assert_alike(short, by_definition(short), [drawn(seed=seed + k, **shape) for k in range(3)])


@pytest.mark.filterwarnings("ignore:row .* had another one before")
@pytest.mark.parametrize("build", [
    lambda: mixcomp(num_samples=N), lambda: mixcomp(num_samples=N, pro=100.0), lambda: mixcomp(num_samples=N, pro=0.0),
    lambda: mixcomp(num_samples=N, over="epoch"), lambda: mixcomp_adaptive(num_samples=N), lambda: mixcomp(tau=1.0),
    lambda: Compensated(logit=Pull(2.0)), lambda: Compensated(logit=Where(above(1.0), Pull(lambda s: s.plain_losses)), record=Evidence(N)),
])  # fmt: skip
@settings(max_examples=8, deadline=None)
@given(shape=shapes)
def test_pulled_logits_by_the_fast_way_are_those_of_the_definition(build: Any, shape: dict[str, Any]) -> None:
    seed, dtype = shape.pop("seed"), shape["dtype"]
    shape["twice"] = False  # of a sample that comes twice, the vote of either visit may be the last
    short = build().to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the epoch is not ended
        assert_alike(short, by_definition(short), [drawn(seed=seed + k, **shape) for k in range(3)])


@pytest.mark.filterwarnings("ignore:row .* had another one before")
@pytest.mark.parametrize("build", [
    lambda c: elr(num_samples=N, num_classes=c), lambda c: elr(num_samples=N, num_classes=c, beta=0.4, lam=0.5),
    lambda c: sop(num_samples=N, num_classes=c, spread=0.4, lr_u=0.1, lr_v=0.1), lambda c: sop(num_samples=N, num_classes=c, floor=0.2),
    lambda c: sop(num_samples=N, num_classes=c, spread=2.0, joint=False),
])  # fmt: skip
@pytest.mark.parametrize("block", [2**16, 12])
@settings(max_examples=8, deadline=None)
@given(shape=shapes)
def test_terms_with_a_slope_of_their_own_are_those_of_the_definition(
    build: Any, block: int, shape: dict[str, Any]
) -> None:
    seed, classes, dtype = shape.pop("seed"), shape["classes"], shape["dtype"]
    short = build(classes).to(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("compensate.core.fast.BLOCK", block)
        batches = [drawn(seed=seed + k, **{**shape, "twice": False, "ignored": False}) for k in range(3)]
        assert_alike(short, by_definition(short), batches)


@pytest.mark.filterwarnings("ignore:row .* had another one before")
def test_a_step_that_is_learned_is_differentiated() -> None:
    eta = torch.tensor(1.0, requires_grad=True)
    criterion = Compensated(logit=Where(above(0.0), Pull(lambda s: eta)))
    criterion(*drawn(6, 3, torch.float32, 0)[:2]).backward()
    assert eta.grad is not None
    assert eta.grad != 0


@pytest.mark.filterwarnings("ignore:row .* had another one before")
@settings(max_examples=30, deadline=None)
@given(keys=st.lists(st.integers(0, 4), min_size=1, max_size=9), seed=st.integers(0, 99))
def test_pooled_rows_are_means_over_samples_that_count(keys: list[int], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    count = (torch.rand(len(keys), generator=draw) < 0.7).double()
    rows = torch.randn(len(keys), 2, generator=draw, dtype=torch.float64)
    pooled, counts = rows.clone(), count.clone()
    pool_(pooled, counts, torch.tensor(keys))
    for i, key in enumerate(keys):
        alike = [j for j, other in enumerate(keys) if other == key]
        assert counts[i] == count[alike].sum()
        counted = [j for j in alike if count[j]]
        torch.testing.assert_close(pooled[i], rows[counted].mean(0) if counted else rows[i])


COMPILED = {
    "logcomp": lambda: logcomp(num_samples=N, num_classes=5),
    "logcomp by subgradient": lambda: logcomp(num_samples=N, num_classes=5, preset="paper"),
    "mixcomp": lambda: mixcomp(num_samples=N),
    "mixcomp over the epoch": lambda: mixcomp(num_samples=N, over="epoch"),
    "category_logit": lambda: METHODS["category_logit"].build(num_classes=5),
    "label_smoothing": lambda: METHODS["label_smoothing"].build(),
    "base": lambda: METHODS["base"].build(),
}


@pytest.mark.filterwarnings("ignore:row .* had another one before")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch does so itself
@pytest.mark.parametrize("name", [*COMPILED])
def test_compiled_calls_are_one_graph_and_give_what_plain_calls_give(name: str) -> None:
    plain = COMPILED[name]()
    plain.check = "off"
    traced = copy.deepcopy(plain)
    torch.compiler.reset()
    compiled = torch.compile(traced, fullgraph=True, backend="aot_eager")
    for seed in range(4):
        u, y, i = drawn(8, 5, torch.float32, seed, twice=seed == 1 and "logcomp" in name, ignored=seed == 2)
        found = []
        for criterion in (plain, compiled):
            v = u.clone().requires_grad_()
            loss = criterion(v, y, i)
            found.append((loss, *torch.autograd.grad(loss, v)))
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b)
        if seed == 1:
            plain.end_epoch(), traced.end_epoch()
    for kept in ("weight", "visits", "total_margin", "seen"):
        for key, value in plain.state_dict().items():
            if key.endswith(kept):
                torch.testing.assert_close(value, traced.state_dict()[key])


@pytest.mark.filterwarnings("ignore:row .* had another one before")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch does so itself
def test_a_criterion_that_was_told_to_compile_still_notices_what_changes() -> None:
    plain = logcomp(num_samples=N, num_classes=5)
    compiled, record = copy.deepcopy(plain), plain.record
    torch.compiler.reset()
    compiled.compile(fullgraph=True, backend="aot_eager")
    kept = compiled.record
    assert record is not None
    assert kept is not None

    def equal(seed: int) -> None:
        u, y, i = drawn(8, 5, torch.float32, seed)
        torch.testing.assert_close(compiled(u.requires_grad_(), y, i), plain(u, y, i))

    equal(0)
    for criterion in (plain, compiled):
        next(criterion.tables()).lr = 0.5
    equal(0)
    equal(0)  # the row that the other step gave
    for criterion in (plain, compiled):
        criterion.record = None
    equal(1)
    torch.testing.assert_close(kept.visits, record.visits)
    assert kept.visits.sum() == 24
    for criterion in (plain, compiled):
        criterion.eval()
    equal(2)


# Device
SIZES = {"num_samples": 40, "num_classes": 3, "class_counts": [20, 12, 8], "feature_dim": 6, "feature_shape": (4,)}


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
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if away:
                    with as_on_a_device():
                        loss = criterion.evaluate(model, x + step, y, index).loss
                        loss.backward()
                        criterion.end_epoch()
                else:
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
        looked.record.settle()
        with as_on_a_device() if away else contextlib.nullcontext():
            unseen(u, y, rows)
    with as_on_a_device() if away else contextlib.nullcontext():
        unseen.record.settle()
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
        with as_on_a_device() if away else contextlib.nullcontext():
            criterion(u, torch.tensor([0, 0, 0, -100]), torch.tensor([1, 1, 1, 1]))
            record.settle()
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
