"""Measuring two things side by side: alternating in one process, so that both meet the same machine."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Ratio:
    """Times of ours and of the reference, pair by pair."""

    what: str
    reference: str
    ours: list[float]
    theirs: list[float]

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


def alternate(
    ours: Callable[[], object], theirs: Callable[[], object], *, repeats: int, warm_up: int = 3
) -> tuple[list[float], list[float]]:
    """Seconds of each call, taken in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats + warm_up):
        for kept, call in zip(times, (ours, theirs), strict=True):
            start = time.perf_counter()
            call()
            if repeat >= warm_up:
                kept.append(time.perf_counter() - start)
    return times


def report(name: str, ratios: list[Ratio]) -> None:
    """Prints the ratios and stores them in `results/NAME.json`."""
    for r in ratios:
        low, high = r.spread
        print(f"{r.what:50s} {r.median:6.2f} x {r.reference}  ({low:.2f} to {high:.2f})")
    stored = [
        {"what": r.what, "reference": r.reference, "ratio": r.median, "quartiles": r.spread, "pairs": len(r.ours)}
        for r in ratios
    ]
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": platform.machine(), "ratios": stored}, indent=1) + "\n")
