"""The fast way through the equation against its definition, and compiled graphs against plain calls."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from compensate import Compensated
from compensate.core.statistics import Evidence
from compensate.methods import METHODS, logcomp, mixcomp
from compensate.terms import L1, L2, Ball, Category, Corpus, GroupL2, Pull, Sample, Where
from compensate.terms.schedules import above

N, DTYPES = 40, [torch.float64, torch.float32]
pytestmark = pytest.mark.filterwarnings("ignore:row .* had another one before")  # labels are drawn anew for each batch


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
    {"batch": st.integers(1, 12), "classes": st.sampled_from([2, 3, 7, 20]), "seed": st.integers(0, 999),
     "dtype": st.sampled_from(DTYPES), "twice": st.booleans(), "ignored": st.booleans()}
)  # fmt: skip


@pytest.mark.parametrize("name", [*tables(2)])
@settings(max_examples=8, deadline=None)
@given(shape=shapes)
def test_tables_by_the_fast_way_take_the_steps_of_the_definition(name: str, shape: dict[str, Any]) -> None:
    classes, dtype, seed = shape["classes"], shape["dtype"], shape.pop("seed")
    short = Compensated(logit=tables(classes)[name], record=Evidence(N)).to(dtype)
    assert short.only_tables
    assert_alike(short, by_definition(short), [drawn(seed=seed + k, **shape) for k in range(3)])


@pytest.mark.parametrize("build", [
    lambda: mixcomp(num_samples=N), lambda: mixcomp(num_samples=N, pro=100.0), lambda: mixcomp(num_samples=N, pro=0.0),
    lambda: mixcomp(tau=1.0), lambda: Compensated(logit=Pull(2.0)),
    lambda: Compensated(logit=Where(above(1.0), Pull(lambda s: s.plain_losses)), record=Evidence(N)),
])  # fmt: skip
@settings(max_examples=8, deadline=None)
@given(shape=shapes)
def test_pulled_logits_by_the_fast_way_are_those_of_the_definition(build: Any, shape: dict[str, Any]) -> None:
    shape = {**shape, "twice": False}  # the last visit of a sample that occurs twice is not determined
    seed, dtype = shape.pop("seed"), shape["dtype"]
    short = build().to(dtype)
    assert_alike(short, by_definition(short), [drawn(seed=seed + k, **shape) for k in range(3)])


@pytest.mark.parametrize(("batch", "classes"), [(5, 3), (5, 40), (300, 600)])
def test_losses_of_many_classes_are_those_of_torch(batch: int, classes: int) -> None:
    u, y, _ = drawn(batch, classes, torch.float64, 0, ignored=True)
    u[:, 0] = -torch.inf  # a class that is taken out
    u[1:, 2:] *= 1e3  # the probability of most labels underflows
    y = torch.where(y == 0, 1, y)
    found = []
    for loss in (Compensated(reduction="none"), lambda v, y: torch.nn.functional.cross_entropy(v, y, reduction="none")):
        v = u.clone().requires_grad_()
        losses = loss(v, y)
        (slope,) = torch.autograd.grad(losses.square().sum(), v, create_graph=True)
        (curve,) = torch.autograd.grad(slope[:, 1:].sin().sum(), v)
        found.append((losses, slope, curve))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_early_learning_regularization_of_large_batches_has_the_slope_of_its_formula() -> None:
    u, y, _ = drawn(300, 600, torch.float64, 0)
    criterion = METHODS["elr"].build(num_samples=300, num_classes=600, lam=2.0, beta=0.6).double()
    v = u.clone().requires_grad_()
    loss = criterion(v, y, torch.arange(300))
    w = u.clone().requires_grad_()
    p = w.softmax(-1).clamp(1e-4, 1 - 1e-4)
    t = 0.4 * (p / p.sum(-1, keepdim=True)).detach()
    by_formula = torch.nn.functional.cross_entropy(w, y) + 2 * (1 - (t * p).sum(-1)).log().mean()
    torch.testing.assert_close(loss, by_formula)
    torch.testing.assert_close(*(torch.autograd.grad(value, x)[0] for value, x in ((loss, v), (by_formula, w))))
    torch.testing.assert_close(criterion.state_dict()["terms.loss.0.ensemble.rows"], t)


def test_a_step_that_is_learned_is_differentiated() -> None:
    eta = torch.tensor(1.0, requires_grad=True)
    criterion = Compensated(logit=Where(above(0.0), Pull(lambda s: eta)))
    criterion(*drawn(6, 3, torch.float32, 0)[:2]).backward()
    assert eta.grad is not None
    assert eta.grad != 0


COMPILED = {
    "logcomp": lambda: logcomp(num_samples=N, num_classes=5),
    "logcomp by subgradient": lambda: logcomp(num_samples=N, num_classes=5, preset="paper"),
    "mixcomp": lambda: mixcomp(num_samples=N),
    "mixcomp over the epoch": lambda: mixcomp(num_samples=N, over="epoch"),
    "category_logit": lambda: METHODS["category_logit"].build(num_classes=5),
}


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
