"""Cost of a sparse table: time of a step by number of samples, and memory of ten million samples.

python -m benchmarks.store [--quick]
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.measure import Ratio, alternate, options, report
from compensate.core.criterion import Compensated
from compensate.methods import logcomp

BATCH, CLASSES = 256, 100
COMPENSATED = 0.05
FLAT, ROOM = 1.15, {2: 150e6, 20: 400e6}
"""Bars: time of a step relative to 500,000 samples; growth of a process in bytes for 2 and 20 entries per row."""

ABOUT = """A step is the drop-in call of LogComp and its backward pass on given logits, batch 256, 100 classes, sparse
rows, with the record. One row in twenty has two entries; batches are drawn from all samples. Naive is a dense
nn.Parameter with an L1 penalty under SGD with momentum, relative to the sparse table of the same number of samples.
Memory is the growth of the resident set of a fresh process for 10,000,000 samples and 1000 classes, with one row in
twenty compensated, after all records were written and 50 steps, relative to the 40 GB of the full table."""


def fill(criterion: Compensated, samples: int, entries: int) -> None:
    """Fills one row in twenty with entries."""
    table = next(criterion.tables())
    classes = table.shape[1]
    rng = np.random.default_rng(0)
    keys = rng.permutation(samples)[: int(COMPENSATED * samples)]
    for part in np.array_split(keys, -(-len(keys) // 250)):
        rows = np.zeros((len(part), classes), np.float32)
        columns = rng.integers(classes - entries, size=len(part))[:, None] + np.arange(entries)
        rows[np.arange(len(part))[:, None], columns] = 1.0
        table.write(torch.from_numpy(part), torch.from_numpy(rows))


def stepper(criterion: Compensated, samples: int, classes: int = CLASSES) -> Callable[[], None]:
    """A step on a batch of samples, one in twenty of which contradicts its label."""
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(classes, (BATCH,), generator=generator)
    u = torch.randn(BATCH, classes, generator=generator)
    u[torch.arange(BATCH), y] += 12.0
    wrong = torch.arange(0, BATCH, int(1 / COMPENSATED))
    u[wrong, (y[wrong] + 1) % classes] += 16.0
    u.requires_grad_()

    def step() -> None:
        i = torch.randint(samples, (BATCH,), generator=generator)
        criterion(u, y, i).backward()

    return step


def built(samples: int) -> Compensated:
    """The criterion with rows in it."""
    criterion = logcomp(num_samples=samples, num_classes=CLASSES, table="sparse")
    fill(criterion, samples, 2)
    for record in criterion.record.buffers():
        record.add_(0)
    return criterion


def naive(samples: int) -> Callable[[], None]:
    """A step of a dense parameter under a dense optimizer: every row moves, and costs, in every step."""
    v = nn.Parameter(torch.zeros(samples, CLASSES))
    optimizer = torch.optim.SGD([v], lr=1.0, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(CLASSES, (BATCH,), generator=generator)
    u = torch.randn(BATCH, CLASSES, generator=generator, requires_grad=True)

    def step() -> None:
        rows = v[torch.randint(samples, (BATCH,), generator=generator)]
        loss = F.cross_entropy(u + rows, y) + 0.05 * rows.abs().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def times(quick: bool) -> list[Ratio]:
    """Steps at several sizes relative to 500,000 samples and to a naive table."""
    torch.set_num_threads(1)
    base = 50_000 if quick else 500_000
    first = stepper(built(base), base)
    repeats = 100 if quick else 1000
    found = []
    for samples in (base // 10, base * 10, base * 20):
        ours, theirs = alternate(stepper(built(samples), samples), first, repeats=repeats, warm_up=50)
        bar = FLAT if samples > base and not quick else None
        found.append(Ratio(f"sparse, {samples:,} samples", f"sparse, {base:,} samples", ours, theirs, bar))
    for samples in (base // 10, base):
        ours, theirs = alternate(naive(samples), stepper(built(samples), samples), repeats=10, warm_up=2)
        found.append(Ratio(f"naive dense parameter, {samples:,} samples", "sparse table", ours, theirs))
    return found


def resident() -> int:
    """Bytes of memory that this process holds."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))


RECORDS = {"none": "none", "auto": "lean (as by default)", "full": "full"}


def growth(samples: int, classes: int, entries: int, record: str) -> int:
    """What this process grows by; to be called in a fresh one."""
    torch.set_num_threads(1)
    stepper(logcomp(num_samples=1000, num_classes=classes, table="sparse"), 1000, classes)()  # lazy imports
    gc.collect()
    before = resident()
    criterion = logcomp(num_samples=samples, num_classes=classes, table="sparse", record=record)
    fill(criterion, samples, entries)
    for buffer in criterion.record.buffers() if criterion.record is not None else ():
        buffer.add_(0)
    step = stepper(criterion, samples, classes)
    for _ in range(50):
        step()
    gc.collect()
    return resident() - before


def memory(quick: bool) -> list[Ratio]:
    """Growth of fresh processes."""
    samples = 1_000_000 if quick else 10_000_000
    found = []
    for entries, room in ROOM.items():
        for record in ("none", "auto", "full"):
            call = f"from benchmarks.store import growth; print(growth({samples}, 1000, {entries}, {record!r}))"
            done = subprocess.run([sys.executable, "-c", call], check=True, capture_output=True, text=True)
            grown, dense = int(done.stdout), samples * 4000
            what = f"{samples:,} x 1000, {entries} entries a row, record {RECORDS[record]}: {grown / 1e6:.0f} MB"
            bar = room / 40e9 if not quick and (record != "full" or entries == 20) else None
            found.append(Ratio(what, f"dense ({dense / 1e9:.0f} GB)", [grown], [dense], bar, "memory"))
            print(json.dumps({"entries": entries, "record": record, "bytes": grown}), flush=True)
    return found


def main() -> None:
    """Measures, prints and stores."""
    quick = options(__doc__).quick
    report("store", [*memory(quick), *times(quick)], about=ABOUT, quick=quick, threads=1)


if __name__ == "__main__":
    main()
