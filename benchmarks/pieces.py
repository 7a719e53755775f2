"""Audits of data in pieces: the peak memory of ten million rows and of two million texts, and a Ray cluster relative to one process.

python -m benchmarks.pieces [--quick] [--only table|texts|ray] [--rows N]
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
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.measure import RESULTS, Ratio, report

ROWS = {"table": 10_000_000, "texts": 2_000_000, "ray": 1_000_000}
QUICK = {"table": 20_000, "texts": 5_000, "ray": 5_000}
WIDTH, CLASSES, WRONG, WORDS = 64, 5, 0.1, 20_000
FILE, GROUP = 1_000_000, 100_000
"""Rows of a file and of its row groups."""

MEMORY = 2_000_000_000
SPEED, RANKING = 0.6, 0.999
"""The bars: bytes that the process of an audit may take, the part of the seconds of one process, and the agreement of both rankings."""

ABOUT = """`compensate audit FOLDER --memory 2GB` in its own process with one thread: Parquet files of 64 numeric
columns around five centers, and of texts of twelve words (TF-IDF, `--encoder none`); one label in ten is wrong.
Learners are fitted on an even sample of the rows that fits into memory and judge every row. Memory is the peak
resident set, including interpreter and libraries. Then a million embeddings of 64 numbers: `audit(x, y)` in one
process with one thread, and `audit(x, y, backend="ray")`, which starts and stops a cluster of two workers at the same
priority (`RAY_worker_niceness=0`). Wall-clock seconds, with the average number of processes competing for a core; on
a shared two-core machine they are only indicative."""


@dataclass(frozen=True)
class Seen:
    """Cost and result of one audit."""

    kind: str
    rows: int
    fitted_rows: int
    source_bytes: int
    wall_seconds: float
    processor_seconds: float
    peak_bytes: int
    run_bytes: int
    flagged: int
    precision: float
    recall: float
    others_running: float


def drawn(size: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """True classes, given ones, and which are wrong."""
    true = rng.integers(CLASSES, size=size)
    wrong = rng.random(size) < WRONG
    return true, np.where(wrong, (true + rng.integers(1, CLASSES, size=size)) % CLASSES, true), wrong


def numbers(true: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float32]:
    """Rows around the centers of their classes, which are the same for every call."""
    centers = np.random.default_rng(7).standard_normal((CLASSES, WIDTH), dtype=np.float32)
    return 0.5 * centers[true] + rng.standard_normal((len(true), WIDTH), dtype=np.float32)


def texts(true: NDArray[np.int64], rng: np.random.Generator) -> list[str]:
    """Twelve words each; a quarter of them are words of the class, and frequent words are more frequent, as in language."""
    words = np.array([f"word{k}" for k in range(WORDS)])
    places = (WORDS ** rng.random((len(true), 12))).astype(np.int64) - 1
    own = rng.random(places.shape) < 0.25
    places[own] = (places[own] // CLASSES * CLASSES + np.broadcast_to(true[:, None], places.shape)[own]) % WORDS
    return [" ".join(row) for row in words[places]]


def make(kind: str, folder: Path, rows: int) -> NDArray[np.bool_]:
    """Writes Parquet files, and tells which labels are wrong."""
    import pyarrow
    from pyarrow import parquet

    rng, wrong = np.random.default_rng(0), []
    for first in range(0, rows, FILE):
        size = min(FILE, rows - first)
        writer = None
        for start in range(0, size, GROUP):
            true, given, flip = drawn(min(GROUP, size - start), rng)
            wrong.append(flip)
            if kind == "table":
                x = numbers(true, rng)
                columns: dict[str, Any] = {f"number {j}": x[:, j] for j in range(WIDTH)}
            else:
                columns = {"text": texts(true, rng)}
            table = pyarrow.table(columns | {"label": np.array(["a", "b", "c", "d", "e"])[given]})
            writer = writer or parquet.ParquetWriter(folder / f"{first:09d}.parquet", table.schema)
            writer.write_table(table, row_group_size=GROUP)
        assert writer is not None
        writer.close()
    return np.concatenate(wrong)


def audited(kind: str, folder: Path, wrong: NDArray[np.bool_], out: Path) -> Seen:
    """Runs the command, and compares its flags with the planted errors."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    code = "from compensate.cli import main; main()"
    asked = [
        sys.executable,
        "-c",
        code,
        "audit",
        str(folder),
        "--memory",
        "2GB",
        "--encoder",
        "none",
        "--out",
        str(out),
    ]
    start = time.perf_counter()
    command = subprocess.Popen(asked, env=os.environ | threads)
    _, status, used = os.wait4(command.pid, 0)
    wall = time.perf_counter() - start
    if status:
        raise SystemExit(f"the audit of {folder} ended with status {status}.")
    found = pd.read_parquet(out / "suspects", columns=["flagged"])["flagged"].to_numpy()
    hits = int((found & wrong).sum())
    seen = Seen(
        kind, len(wrong), json.loads((out / "config.json").read_text())["fitted_rows"],
        sum(p.stat().st_size for p in folder.iterdir()), round(wall, 1), round(used.ru_utime + used.ru_stime, 1),
        used.ru_maxrss * 1024, sum(p.stat().st_size for p in out.rglob("*") if p.is_file()), int(found.sum()),
        round(hits / max(int(found.sum()), 1), 4), round(hits / int(wrong.sum()), 4), round(os.getloadavg()[0], 1),
    )  # fmt: skip
    print(json.dumps(asdict(seen)), flush=True)
    return seen


MEASURED = """
import os, time, json, numpy as np
x, y = np.load({x!r}), np.load({y!r})
from compensate import audit
before, wall = os.times(), time.perf_counter()
found = audit(x, y, backend={backend!r})
wall = time.perf_counter() - wall
np.save({out!r}, found.log_odds)
print(json.dumps([wall, os.getloadavg()[0]]))
"""


def on_a_cluster(rows: int, folder: Path) -> dict[str, Any]:
    """Seconds of one process and of a cluster of two workers, and how far their rankings agree."""
    rng = np.random.default_rng(0)
    true, given, _ = drawn(rows, rng)
    np.save(folder / "x.npy", numbers(true, rng))
    np.save(folder / "y.npy", given)
    seconds, busy, odds = {}, {}, {}
    for backend in ("local", "ray"):
        out = folder / f"{backend}.npy"
        code = MEASURED.format(x=str(folder / "x.npy"), y=str(folder / "y.npy"), out=str(out), backend=backend)
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        # Ray gives way to other processes, which the one process does not; and it would take all cores.
        threads |= {"RAY_worker_niceness": "0", "RAY_OVERRIDE_RESOURCES": '{"CPU": 2}'}
        started = os.times()
        done = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=os.environ | threads
        )
        seconds[backend], busy[backend] = json.loads(done.stdout.splitlines()[-1])
        odds[backend] = np.load(out)
        ended = os.times()
        used = ended.children_user + ended.children_system - started.children_user - started.children_system
        print(
            f"{backend}: {seconds[backend]:.0f} s on the wall, {used:.0f} s of the processor, load {busy[backend]:.1f}",
            flush=True,
        )
    agree = float(spearmanr(odds["local"], odds["ray"])[0])
    farthest = float(np.abs(odds["local"] - odds["ray"]).max())
    print(f"Spearman {agree:.6f}, log odds differ by {farthest:.2g} at most")
    return {"rows": rows, "seconds": seconds, "others_running": busy, "spearman": agree, "largest_difference": farthest}


def ratios(seen: list[Seen], ray: dict[str, Any] | None, *, barred: bool) -> list[Ratio]:
    """Memory relative to the bar, and seconds relative to one process."""
    found = [
        Ratio(
            f"{one.rows:,} {'x 64' if one.kind == 'table' else 'texts'}: {one.peak_bytes / 1e9:.2f} GB", "2 GB",
            [one.peak_bytes], [MEMORY], 1.0 if barred else None, "memory",
        )
        for one in seen
    ]  # fmt: skip
    if ray:
        took = ray["seconds"]
        found.append(
            Ratio(
                f"{ray['rows']:,} x 64 on two workers: {took['ray']:.0f} s, Spearman {ray['spearman']:.5f}",
                f"one process, {took['local']:.0f} s", [took["ray"]], [took["local"]], SPEED if barred else None,
            )
        )  # fmt: skip
    return found


def main() -> None:
    """Measures, prints and stores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few thousand rows, stored apart in results/quick")
    parser.add_argument("--only", choices=list(ROWS), help="one of them; stored results of the others stay")
    parser.add_argument("--rows", type=int, help="another number of rows, stored apart too")
    asked = parser.parse_args()
    quick = asked.quick or asked.rows is not None
    path = (RESULTS / "quick" if quick else RESULTS) / "pieces.json"
    stored = json.loads(path.read_text()) if path.exists() else {}
    seen = {one["kind"]: Seen(**one) for one in stored.get("audits", [])}
    ray = stored.get("ray")
    size: Callable[[str], int] = lambda kind: asked.rows or (QUICK if asked.quick else ROWS)[kind]  # noqa: E731
    for kind in [asked.only] if asked.only else list(ROWS):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if kind == "ray":
                ray = on_a_cluster(size(kind), folder)
                continue
            (folder / "data").mkdir()
            wrong = make(kind, folder / "data", size(kind))
            seen[kind] = audited(kind, folder / "data", wrong, folder / "run")
    path = report("pieces", ratios(list(seen.values()), ray, barred=not quick), about=ABOUT, quick=quick, threads=1)
    more = {"audits": [asdict(one) for one in seen.values()], "ray": ray}
    path.write_text(json.dumps(json.loads(path.read_text()) | more, indent=1) + "\n")


if __name__ == "__main__":
    main()
