"""Large audits by the real command: a table of a million rows, a folder of 50,000 images; time, memory, sizes, and what is found.

python -m benchmarks.load [--quick] [--only table|images] [--data-dir DIR] [--sizes SMALL LARGE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.measure import RESULTS, Ratio, report

Bools = NDArray[np.bool_]

SIZES = {"table": (100_000, 1_000_000), "images": (5_000, 50_000)}
QUICK = {"table": (500, 2_000), "images": (100, 300)}
WRONG = 0.1
CLASSES, NUMBERS, KINDS = 4, 8, (3, 7, 12)
"""Of the table: classes, numeric columns, and the number of values of each column of categories."""

LINEAR, ROOM = 1.25, 4e9
"""The bars: time for a row may grow by so much when there are ten times as many, and the process may take so many bytes."""

ABOUT = """`compensate audit PATH` with nothing else said, in a process of its own with one thread: a table of numbers and categories with
missing cells and four classes, and a folder of images of 32 x 32 pixels in ten classes (CIFAR-10 where it is at hand, else drawn
shapes); one label in ten is wrong. Time is that of the processor, from the start of the command to the last file, beside the same
for a tenth of the rows times ten: 1 is linear. Memory is the peak of the resident set, interpreter and libraries included (for images an upper
bound: that of the process that made them), beside the bytes of the files. Images are encoded by a pretrained model, which is most of their time.
Sizes of the files and what was found are in the stored result."""


@dataclass(frozen=True)
class Seen:
    """What one audit took and gave."""

    kind: str
    rows: int
    source_bytes: int
    wall_seconds: float
    processor_seconds: float
    peak_bytes: int
    report_bytes: int
    suspects_bytes: int
    run_bytes: int
    flagged: int
    precision: float
    recall: float
    rate: float
    others_running: float
    """Processes that wanted a core, on average, at the end: seconds on the wall are to be read with it."""


def table(folder: Path, rows: int, seed: int = 0) -> tuple[Path, Bools]:
    """Writes rows.csv, some rows at a time; tells which labels are wrong."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(NUMBERS, CLASSES))
    effects = [rng.normal(size=(kinds, CLASSES)) for kinds in KINDS]
    path, wrong = folder / "rows.csv", []
    for first in range(0, rows, 50_000):
        size = min(50_000, rows - first)
        x = rng.normal(size=(size, NUMBERS))
        codes = [rng.integers(kinds, size=size) for kinds in KINDS]
        z = 3 * (x @ weights + sum(e[c] for e, c in zip(effects, codes, strict=True))) + rng.gumbel(
            size=(size, CLASSES)
        )
        true = z.argmax(1)
        flip = rng.random(size) < WRONG
        given = np.where(flip, (true + rng.integers(1, CLASSES, size=size)) % CLASSES, true)
        x[rng.random(x.shape) < 0.02] = np.nan
        columns: dict[str, Any] = {f"number {j}": x[:, j].round(4) for j in range(NUMBERS)}
        for j, c in enumerate(codes):
            cells = np.array([f"value {k}" for k in range(KINDS[j])], dtype=object)[c]
            cells[rng.random(size) < 0.02] = ""
            columns[f"kind {j}"] = cells
        frame = pd.DataFrame(columns | {"label": np.array(["north", "east", "south", "west"])[given]})
        frame.to_csv(path, mode="a" if first else "w", header=not first, index=False)
        wrong.append(flip)
    return path, np.concatenate(wrong)


def images(folder: Path, rows: int, data_dir: Path | None, seed: int = 0) -> tuple[Path, Bools]:
    """Writes one PNG for each sample into the folder of its given class; tells which of them, sorted by name, are wrong."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    x, true = _cifar(data_dir, rows) if data_dir is not None else _shapes(rows, rng)
    flip = rng.random(len(x)) < WRONG
    given = np.where(flip, (true + rng.integers(1, 10, size=len(x))) % 10, true)
    path = folder / "pictures"
    for c in range(10):
        (path / f"class {c}").mkdir(parents=True)
    for i, pixels in enumerate(x):
        Image.fromarray(pixels.transpose(1, 2, 0)).save(path / f"class {given[i]}" / f"{i:06d}.png")
    return path, flip[np.lexsort((np.arange(len(x)), given))]


def _cifar(data_dir: Path, rows: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    from compensate.data import load

    data = load("cifar10", data_dir).train
    if rows > len(data):
        raise SystemExit(f"CIFAR-10 has {len(data)} images to train on; leave --data-dir out for {rows}.")
    chosen = np.random.default_rng(0).permutation(len(data))[:rows]
    return np.asarray(data.x)[chosen], np.asarray(data.target)[chosen].astype(np.int64)


def _shapes(rows: int, rng: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Stripes, of a direction and a width for each class, in two colors of any kind."""
    true = rng.integers(10, size=rows)
    angle, width = (true % 5) * np.pi / 5, np.where(true < 5, 4.0, 8.0)
    down, right = np.mgrid[:32, :32]
    along = right * np.cos(angle)[:, None, None] + down * np.sin(angle)[:, None, None]
    phase = rng.random((rows, 1, 1))
    light = np.sin(2 * np.pi * (along / width[:, None, None] + phase))[:, None] > 0
    first, second = rng.integers(256, size=(2, rows, 3, 1, 1))
    noise = rng.normal(0, 25, size=(rows, 3, 32, 32))
    return (np.where(light, first, second) + noise).clip(0, 255).astype(np.uint8), true


COMMAND = "from compensate.cli import main; main()"


def audited(kind: str, path: Path, wrong: Bools, out: Path) -> Seen:
    """Runs the command, and compares its flags with what was made wrong."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    start = time.perf_counter()
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "audit", str(path), "--out", str(out)], env=os.environ | threads
    )
    # Of this one process: the usage that `resource` gives for children is that of the largest so far. Where the process that starts
    # it is larger (it holds the images), the peak is that one's: an upper bound.
    _, status, used = os.wait4(command.pid, 0)
    wall = time.perf_counter() - start
    if status:
        raise SystemExit(f"the audit of {path.name} ended with status {status}.")
    found = pd.read_csv(out / "suspects.csv", usecols=["index", "flagged", "p_error"])
    flags = np.zeros(len(wrong), bool)
    flags[found["index"][found["flagged"]]] = True
    hits = int((flags & wrong).sum())
    seen = Seen(
        kind, len(wrong), sum(p.stat().st_size for p in ([path] if path.is_file() else path.rglob("*.png"))),
        round(wall, 1), round(used.ru_utime + used.ru_stime, 1), used.ru_maxrss * 1024,
        (out / "report.html").stat().st_size, (out / "suspects.csv").stat().st_size,
        sum(p.stat().st_size for p in out.rglob("*") if p.is_file()),
        int(flags.sum()), round(hits / max(int(flags.sum()), 1), 4), round(hits / max(int(wrong.sum()), 1), 4),
        round(float(found["p_error"].mean()), 4), round(os.getloadavg()[0], 1),
    )  # fmt: skip
    print(json.dumps(asdict(seen)), flush=True)
    return seen


def ratios(seen: list[Seen], *, barred: bool) -> list[Ratio]:
    """Linear in time? And how much memory?"""
    found = []
    for small, large in pairwise(seen):
        if small.kind != large.kind:
            continue
        times = large.rows / small.rows
        unit = "rows" if large.kind == "table" else "images"
        found += [
            Ratio(
                f"{large.rows:,} {unit}: {large.processor_seconds:.0f} s", f"{small.rows:,} {unit}, {times:g} times",
                [large.processor_seconds], [small.processor_seconds * times], LINEAR if barred else None,
            ),
            Ratio(
                f"{large.rows:,} {unit}: {large.peak_bytes / 1e9:.2f} GB", f"the files ({large.source_bytes / 1e6:.0f} MB)",
                [large.peak_bytes], [large.source_bytes], ROOM / large.source_bytes if barred else None, "memory",
            ),
        ]  # fmt: skip
    return found


def _before(path: Path, kinds: list[str]) -> list[Seen]:
    """What was stored of the audits that are not measured now."""
    stored = json.loads(path.read_text())["audits"] if path.exists() else []
    return [Seen(**entry) for entry in stored if entry["kind"] not in kinds]


def main() -> None:
    """Measures, prints and stores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few thousand rows, stored apart in results/quick")
    parser.add_argument("--only", choices=list(SIZES), help="one of both; what is stored of the other stays")
    parser.add_argument("--data-dir", type=Path, help="where CIFAR-10 lies; without it shapes are drawn")
    parser.add_argument("--sizes", type=int, nargs=2, help="other sizes, stored apart too")
    asked = parser.parse_args()
    quick = asked.quick or asked.sizes is not None
    kinds = [asked.only] if asked.only else list(SIZES)
    make: dict[str, Callable[[Path, int], tuple[Path, Bools]]] = {
        "table": table,
        "images": lambda folder, rows: images(folder, rows, asked.data_dir),
    }
    seen: list[Seen] = []
    for kind in kinds:
        for rows in asked.sizes or (QUICK if asked.quick else SIZES)[kind]:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                path, wrong = make[kind](folder, rows)
                seen.append(audited(kind, path, wrong, folder / "runs"))
    path = (RESULTS / "quick" if quick else RESULTS) / "load.json"
    if not quick:
        seen = sorted([*_before(path, kinds), *seen], key=lambda s: (s.kind, s.rows))
    path = report("load", ratios(seen, barred=not quick), about=ABOUT, quick=quick, threads=1)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"audits": [asdict(s) for s in seen]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
