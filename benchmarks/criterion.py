"""What the drop-in call costs: beside plain cross entropy, and as a share of a training step of ResNet-20.

python -m benchmarks.criterion [--quick]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.measure import Ratio, options, report
from benchmarks.measure import alternate as in_turns
from benchmarks.steps import BATCH, plain_step
from compensate import Compensated
from compensate.methods import logcomp, mixcomp

SAMPLES = 50_000
BARS = {"off": 3.0, "on": 4.5, "compiled": 2.0}
alternate = partial(in_turns, clock=time.process_time)
ABOUT = """Seconds of the processor. Forward and backward of the drop-in call on given logits, the step of the rows included, beside forward and backward of
torch's cross entropy. "With record" also keeps what suspects are found by. Compiled calls stand beside compiled cross entropy.
The share of a step is the whole call with record and checks over a plain step of ResNet-20 with batches of 128."""


def methods(classes: int) -> Iterator[tuple[str, Compensated]]:
    """The two methods of the paper."""
    yield "logcomp", logcomp(num_samples=SAMPLES, num_classes=classes)
    yield "mixcomp", mixcomp(num_samples=SAMPLES)


def calls(batch: int, classes: int, *, repeats: int, compiled: bool = True) -> list[Ratio]:
    """The ratios of both methods to cross entropy at one size."""
    torch.manual_seed(0)
    u = torch.randn(batch, classes, requires_grad=True)
    y, i = torch.randint(classes, (batch,)), torch.randperm(SAMPLES)[:batch]
    large = batch * classes > 10**6
    ratios = []
    for name, criterion in methods(classes):
        full = criterion.record
        for mode, record, check in (
            ("off", False, "off"),
            ("off", True, "off"),
            ("on", True, "sync"),
            ("compiled", False, "off"),
        ):
            if mode == "compiled" and not compiled:
                continue
            criterion.record, criterion.check = full if record else None, check  # type: ignore[assignment]
            ours, theirs = both_ways(criterion, u, y, i), both_ways(F.cross_entropy, u, y)
            if mode == "compiled":
                torch.compiler.reset()
                ours = both_ways(torch.compile(criterion, fullgraph=True), u, y, i)
                theirs = both_ways(torch.compile(F.cross_entropy, fullgraph=True), u, y)
            times = alternate(ours, theirs, repeats=repeats)
            how = "compiled" if mode == "compiled" else f"checks {mode}"
            what = f"{name}, B={batch}, C={classes}, {how}{', with record' if record else ''}"
            ratios.append(
                Ratio(
                    what, f"cross entropy{', compiled' * (mode == 'compiled')}", *times, BARS[mode] if large else None
                )
            )
    return ratios


def both_ways(loss: Callable[..., torch.Tensor], *batch: torch.Tensor) -> Callable[[], None]:
    return lambda: loss(*batch).backward()


def shares(*, depth: int, repeats: int) -> list[Ratio]:
    """The call alone over a plain step."""
    step = plain_step(depth)
    u, y, i = torch.randn(BATCH, 10, requires_grad=True), torch.randint(10, (BATCH,)), torch.randperm(SAMPLES)[:BATCH]
    return [
        Ratio(f"{name}, the call, B={BATCH}, C=10", f"a plain step of ResNet-{depth}", *alternate(both_ways(c, u, y, i), step, repeats=repeats), 0.01)
        for name, c in methods(10)
    ]  # fmt: skip


def main() -> None:
    """Measures, prints and stores."""
    quick = options(__doc__).quick
    torch.set_num_threads(1)
    repeats = 20 if quick else 100
    ratios = [
        *calls(1024, 1000, repeats=repeats, compiled=not quick),
        *calls(128, 10, repeats=repeats, compiled=not quick),
    ]
    ratios += shares(depth=8 if quick else 20, repeats=3 if quick else 10)
    report("criterion", ratios, about=ABOUT, quick=quick)


if __name__ == "__main__":
    main()
