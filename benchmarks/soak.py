"""A long training whose sparse table grows and shrinks over and over: memory must stay where it is.

python -m benchmarks.soak [--minutes 30]
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass

import torch
from torch import nn

from benchmarks.measure import Ratio, report
from benchmarks.store import resident
from compensate.methods import logcomp

SAMPLES, CLASSES, BATCH, FEATURES = 200_000, 100, 500, 32
EPOCHS = 12
"""Of a cycle: in the first half three labels in ten are wrong, in the second none is."""

FLAT = 1.05

ABOUT = """A linear model is trained with LogComp and a sparse table of 200,000 samples and 100 classes, on one
thread. In each cycle of 12 epochs three labels in ten are wrong for half of the time, different ones in every cycle,
and then all are correct: rows appear and disappear. The largest resident set of the last third of the run is compared
with that of the first third."""


@dataclass
class Cycle:
    """Measurements of one cycle."""

    seconds: float
    most_rows: int
    fewest_rows: int
    most_store_bytes: int
    resident_bytes: int


def cycles(minutes: float) -> list[Cycle]:
    """Trains for so long."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    centers = torch.randn(CLASSES, FEATURES)
    true = torch.randint(CLASSES, (SAMPLES,))
    model = nn.Linear(FEATURES, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    criterion = logcomp(num_samples=SAMPLES, num_classes=CLASSES, table="sparse", lam=0.3, lr=4.0)
    kept = next(criterion.tables()).store
    assert kept is not None
    begun, found = time.monotonic(), []
    while time.monotonic() - begun < 60 * minutes:
        seen = Cycle(0.0, 0, SAMPLES, 0, 0)
        noisy = torch.where(torch.rand(SAMPLES) < 0.3, torch.randint(CLASSES, (SAMPLES,)), true)
        for epoch in range(EPOCHS):
            given = noisy if epoch < EPOCHS // 2 else true
            for i in torch.randperm(SAMPLES).split(BATCH):
                x = centers[true[i]] + 0.3 * torch.randn(len(i), FEATURES)
                loss = criterion(model(x), given[i], i)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if i[0] % 20 == 0:
                    seen.resident_bytes = max(seen.resident_bytes, resident())
                    seen.most_store_bytes = max(seen.most_store_bytes, kept.nbytes)
            seen.most_rows, seen.fewest_rows = max(seen.most_rows, kept.filled), min(seen.fewest_rows, kept.filled)
            criterion.end_epoch()
        seen.seconds = round(time.monotonic() - begun, 1)
        found.append(seen)
        print(json.dumps(asdict(seen)), flush=True)
    return found


def main() -> None:
    """Trains, prints and stores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--quick", action="store_true", help="one minute, stored apart in results/quick")
    asked = parser.parse_args()
    found = cycles(1.0 if asked.quick else asked.minutes)
    third = max(1, len(found) // 3)
    early, late = (max(c.resident_bytes for c in part) for part in (found[:third], found[-third:]))
    what = f"memory, last third of {len(found)} cycles in {found[-1].seconds / 60:.0f} minutes"
    quick = asked.quick or asked.minutes < 30
    ratio = Ratio(what, "the first third", [late], [early], FLAT, "memory")
    path = report("soak", [ratio], about=ABOUT, quick=quick, threads=1)
    stored = json.loads(path.read_text()) | {"command": f"python -m benchmarks.soak --minutes {asked.minutes:g}"}
    path.write_text(json.dumps(stored | {"cycles": [asdict(c) for c in found]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
