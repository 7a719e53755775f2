"""Side-by-side measurement of two operations, alternating in one process on the same machine."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

import compensate

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Ratio:
    """What ours and the reference took, pair by pair: seconds, or bytes or operations where `quantity` says so."""

    what: str
    reference: str
    ours: list[float]
    theirs: list[float]
    bar: float | None = None
    """The ratio that is promised at most."""
    quantity: Literal["time", "memory", "operations"] = "time"

    @property
    def pairs(self) -> list[float]:
        """The ratio within each pair, sorted."""
        return sorted(a / b for a, b in zip(self.ours, self.theirs, strict=True))

    @property
    def median(self) -> float:
        """The median ratio."""
        return statistics.median(self.pairs)

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles of the ratio."""
        quarter = len(self.pairs) // 4
        return self.pairs[quarter], self.pairs[-1 - quarter]

    def stored(self) -> dict[str, Any]:
        """The entry of the common form."""
        return {
            "what": self.what, "reference": self.reference, "quantity": self.quantity,
            "ratio": round(self.median, 4), "quartiles": [round(q, 4) for q in self.spread], "pairs": len(self.ours),
            "bar": self.bar,
        }  # fmt: skip


def alternate(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    repeats: int,
    warm_up: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[float], list[float]]:
    """Seconds of each call, taken in turns.

    On a machine that others use as well, `clock=time.process_time` counts the seconds of the processor instead of those on the
    wall: else a longer call is interrupted more often, and looks longer than it is.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats + warm_up):
        for kept, call in zip(times, (ours, theirs), strict=True):
            start = clock()
            call()
            if repeat >= warm_up:
                kept.append(clock() - start)
    return times


def options(doc: str | None) -> argparse.Namespace:
    """The options of every benchmark."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="few repeats and small sizes, stored apart in results/quick"
    )
    return parser.parse_args()


def run_or_show(run: Callable[[Path], None], table: Callable[[], str]) -> None:
    """The command line of a benchmark that reads data sets and stores a table: runs it unless told, and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--quick", action="store_true", help="the same as --show")
    chosen = parser.parse_args()
    if not (chosen.show or chosen.quick):
        run(chosen.data_dir)
    print(table())


def report(name: str, ratios: list[Ratio], *, about: str, quick: bool = False, threads: int | None = None) -> Path:
    """Prints the ratios and stores them in `results/NAME.json`, or `results/quick/NAME.json`; returns the path.

    Args:
        name: of the benchmark, a module of this package.
        ratios: the measurements.
        about: a sentence or two for the page: the two sides and how they were timed.
        quick: true if repeats or sizes were cut; such figures do not reach the page.
        threads: that each process computed with; as torch says if not given.
    """
    for r in ratios:
        low, high = r.spread
        bar = "" if r.bar is None else f"   bar {r.bar:g}: {'met' if r.median <= r.bar else 'NOT met'}"
        print(f"{r.what:58s} {r.median:8.3f} x {r.reference}  ({low:.3f} to {high:.3f}){bar}", flush=True)
    form = {
        "about": " ".join(about.split()),
        "command": f"python -m benchmarks.{name}" + (" --quick" if quick else ""),
        "machine": "2 cores, CPU",
        "threads": torch.get_num_threads() if threads is None else threads,
        "versions": {
            "compensate": compensate.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "ratios": [r.stored() for r in ratios],
    }
    path = (RESULTS / "quick" if quick else RESULTS) / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(form, indent=1) + "\n")
    return path
