"""The cost of the drop-in call, relative to plain cross entropy and to a training step of ResNet-20.

python -m benchmarks.criterion [--quick]
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import Ratio, options, report
from benchmarks.measure import alternate as in_turns
from benchmarks.steps import BATCH, plain_step
from compensate import Compensated
from compensate.methods import elr, logcomp, mixcomp, robust, sop
from compensate.terms import Strength

SAMPLES = 50_000
BARS = {"off": 3.6, "on": 5.4, "compiled": 2.4}
SMALL_BARS = {"on": 4.8, "compiled": 1.8}
"""For small batches, where call overhead dominates."""
alternate = partial(in_turns, clock=time.process_time)
ABOUT = """Processor time of forward and backward of the drop-in call on given logits, with the step of the rows, relative to torch's cross entropy.
"With record" also keeps the record of suspects. Compiled calls (`criterion.compile()`) are compared with compiled cross entropy. Batches follow one another
as in an epoch. The share of a step is the whole call with record and checks over a plain step of ResNet-20 with batches of 128. The bars were
raised by a fifth when the special cases for speed were removed from the core."""


def methods(classes: int) -> Iterator[tuple[str, Compensated]]:
    """The two methods of the paper."""
    yield "logcomp", logcomp(num_samples=SAMPLES, num_classes=classes)
    yield "mixcomp", mixcomp(num_samples=SAMPLES)


def calls(batch: int, classes: int, *, repeats: int, compiling: bool = True) -> list[Ratio]:
    """The ratios of both methods to cross entropy at one size."""
    torch.manual_seed(0)
    u = torch.randn(batch, classes, requires_grad=True)
    y, index = torch.randint(classes, (batch,)), epoch(batch)
    bars = BARS if batch * classes > 10**6 else SMALL_BARS
    ratios = []
    for name, criterion in methods(classes):
        full = criterion.record
        for mode, record, check in (
            ("off", False, "off"),
            ("off", True, "off"),
            ("on", True, "sync"),
            ("compiled", False, "off"),
        ):
            if mode == "compiled" and not compiling:
                continue
            criterion.record, criterion.check = full if record else None, check  # type: ignore[assignment]
            ours, theirs = _steps(criterion, u, y, index), both_ways(F.cross_entropy, u, y)
            if mode == "compiled":
                torch.compiler.reset()
                compiled = copy.deepcopy(criterion)
                compiled.compile(fullgraph=True)
                ours = _steps(compiled, u, y, index)
                theirs = both_ways(torch.compile(F.cross_entropy, fullgraph=True), u, y)
            times = alternate(ours, theirs, repeats=repeats)
            how = "compiled" if mode == "compiled" else f"checks {mode}"
            what = f"{name}, B={batch}, C={classes}, {how}{', with record' if record else ''}"
            ratios.append(Ratio(what, f"cross entropy{', compiled' * (mode == 'compiled')}", *times, bars.get(mode)))
    return ratios


def epoch(batch: int) -> Iterator[Tensor]:
    """The index of one batch after the other, over and over: as in a training, a sample comes back after all others."""
    return cycle(torch.randperm(SAMPLES)[: SAMPLES // batch * batch].reshape(-1, batch).unbind())


def _steps(loss: Callable[..., Tensor], u: Tensor, y: Tensor, index: Iterator[Tensor]) -> Callable[[], None]:
    return lambda: loss(u, y, next(index)).backward()


def rows_of_classes(*, repeats: int) -> list[Ratio]:
    """ELR and SOP, which keep a row of all classes for each sample."""
    torch.manual_seed(0)
    u, y, index = torch.randn(1024, 1000, requires_grad=True), torch.randint(1000, (1024,)), epoch(1024)
    made = {"elr": (elr, 4.2), "sop": (sop, 6.0)}
    return [
        Ratio(f"{name}, B=1024, C=1000, checks on, with record", "cross entropy", *alternate(
            _steps(build(num_samples=SAMPLES, num_classes=1000), u, y, index), both_ways(F.cross_entropy, u, y), repeats=repeats), bar)
        for name, (build, bar) in made.items()
    ]  # fmt: skip


def measured() -> dict[str, Compensated]:
    """The method to try first, which measures its strength, as it starts and with half of its strength."""
    made = {
        "robust": robust(num_samples=SAMPLES, num_classes=10),
        "robust at 0.5": robust(num_samples=SAMPLES, num_classes=10),
    }
    Strength.of(made["robust at 0.5"]).value.fill_(0.5)  # type: ignore[union-attr]
    return made


def strengths(*, repeats: int) -> list[Ratio]:
    """That method relative to cross entropy."""
    torch.manual_seed(0)
    u, y, index = torch.randn(BATCH, 10, requires_grad=True), torch.randint(10, (BATCH,)), epoch(BATCH)
    plain = both_ways(F.cross_entropy, u, y)
    return [
        Ratio(f"{name}, B={BATCH}, C=10, checks on, with record", "cross entropy", *alternate(_steps(c, u, y, index), plain, repeats=repeats), 6.0)
        for name, c in measured().items()
    ]  # fmt: skip


def both_ways(loss: Callable[..., Tensor], *batch: Tensor) -> Callable[[], None]:
    return lambda: loss(*batch).backward()


def shares(*, depth: int, repeats: int) -> list[Ratio]:
    """The call alone over a plain step."""
    step = plain_step(depth)
    u, y, i = torch.randn(BATCH, 10, requires_grad=True), torch.randint(10, (BATCH,)), epoch(BATCH)
    return [
        Ratio(f"{name}, the call, B={BATCH}, C=10", f"a plain step of ResNet-{depth}", *alternate(_steps(c, u, y, i), step, repeats=repeats), 0.01)
        for name, c in (*methods(10), *measured().items())
    ]  # fmt: skip


def main() -> None:
    """Measures, prints and stores."""
    quick = options(__doc__).quick
    torch.set_num_threads(1)
    repeats = 20 if quick else 100
    ratios = [
        *calls(1024, 1000, repeats=repeats, compiling=not quick),
        *calls(128, 10, repeats=repeats, compiling=not quick),
    ]
    ratios += rows_of_classes(repeats=repeats // 2)
    ratios += strengths(repeats=repeats)
    ratios += shares(depth=8 if quick else 20, repeats=3 if quick else 10)
    report("criterion", ratios, about=ABOUT, quick=quick)


if __name__ == "__main__":
    main()
