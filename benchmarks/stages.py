"""What an audit costs, stage by stage: reading, encoding, learners, the noise model, other issues, writing.

    python -m benchmarks.stages [--quick] [--kinds table embeddings texts images] [--sizes 10000 100000 1000000]
    python -m benchmarks.stages --show     # the table of the stored results

One kind and size can be measured at a time; stored results of the others stay.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks import pieces, planted
from benchmarks.measure import RESULTS, Ratio, report

SIZES = (10_000, 100_000, 1_000_000)
KINDS = ("table", "embeddings", "texts", "images")
IMAGES = 100
"""Images have a hundredth of the rows: a CPU encodes a few dozen per second."""

GROWTH = 10.0
"""The bar for the seconds of a million table rows relative to a hundred thousand."""

STAGES = {
    "read": "reading", "encode": "features", "learners": "learners", "noise model": "noise model", "issues": "other issues",
    "write": "writing",
}  # fmt: skip
"""Names of stages in the stored results, and in the table."""

SAID = {
    "table": "table, 11 columns", "embeddings": "embeddings of 64 numbers", "texts": "texts of 12 words, no encoder",
    "images": "images of 32 x 32 pixels",
}  # fmt: skip

ABOUT = """CPU seconds of each stage of `compensate audit PATH` in its own process with one thread: a CSV table of
numbers and categories, embeddings of 64 numbers in an .npy file, texts of twelve words (TF-IDF, no encoder), and
images of 32 x 32 pixels with a pretrained encoder, a hundredth of the rows. Imports belong to no stage."""

TIMED = """
import json, sys, time
from compensate.auditing import api as auditing, judge, request

seconds = {}

def timed(place, name, stage):
    function = getattr(place, name)
    def call(*args, **options):
        start = time.process_time()
        try:
            return function(*args, **options)
        finally:
            seconds[stage] = seconds.get(stage, 0.0) + time.process_time() - start
    setattr(place, name, call)

timed(request, "read", "read")
timed(auditing, "compute_features", "encode")
timed(auditing, "assign_folds", "learners")
timed(judge, "judge_view", "learners")
timed(judge, "pool", "noise model")
timed(judge, "fit_noise", "noise model")
timed(request, "find_issues", "issues")
timed(request, "write_run", "write")
from compensate.cli import main
try:
    main()
finally:
    open(sys.argv[sys.argv.index("--out") + 1] + ".json", "w").write(json.dumps(seconds))
"""


@dataclass(frozen=True)
class Cost:
    """Seconds of the processor of one audit."""

    kind: str
    rows: int
    stages: dict[str, float]
    all: float
    peak_bytes: int
    precision: float
    recall: float
    others_running: float


def make(kind: str, folder: Path, rows: int) -> tuple[list[str], np.ndarray]:
    """The arguments of the command, and which labels are wrong."""
    rng = np.random.default_rng(0)
    if kind == "table":
        path, wrong = planted.table(folder, rows)
        return [str(path)], wrong
    if kind == "images":
        path, wrong = planted.images(folder, rows)
        return [str(path)], wrong
    true, given, wrong = pieces.drawn(rows, rng)
    if kind == "embeddings":
        np.save(folder / "x.npy", pieces.numbers(true, rng))
        np.save(folder / "y.npy", given)
        return [str(folder / "x.npy"), "--labels", str(folder / "y.npy")], wrong
    frame = pd.DataFrame({"text": pieces.texts(true, rng), "label": np.array(list("abcde"))[given]})
    frame.to_csv(folder / "texts.csv", index=False)
    return [str(folder / "texts.csv"), "--encoder", "none"], wrong


def measure(kind: str, rows: int) -> Cost:
    """Runs the command once."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked, wrong = make(kind, folder, rows)
        environment = os.environ | threads | {"COMPENSATE_CACHE": str(folder / "cache")}
        out = folder / "run"
        command = subprocess.Popen(
            [sys.executable, "-c", TIMED, "audit", *asked, "--out", str(out)],
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        _, status, used = os.wait4(command.pid, 0)
        if status:
            raise SystemExit(f"the audit of {rows} {kind} ended with status {status}.")
        seconds = json.loads(Path(f"{out}.json").read_text())
        found = pd.read_csv(out / "suspects.csv", usecols=["index", "flagged"])
        flags = np.zeros(len(wrong), bool)
        flags[found["index"][found["flagged"]]] = True
    hits = int((flags & wrong).sum())
    cost = Cost(
        kind, rows, {stage: round(seconds.get(stage, 0.0), 1) for stage in STAGES},
        round(used.ru_utime + used.ru_stime, 1), used.ru_maxrss * 1024, round(hits / max(int(flags.sum()), 1), 4),
        round(hits / max(int(wrong.sum()), 1), 4), round(os.getloadavg()[0], 1),
    )  # fmt: skip
    print(json.dumps(asdict(cost)), flush=True)
    return cost


def ratios(costs: list[Cost], *, barred: bool) -> list[Ratio]:
    """Growth from a hundred thousand rows to a million."""
    by = {(cost.kind, cost.rows): cost for cost in costs}
    return [
        Ratio(
            f"{large:,} rows ({kind}): {by[kind, large].all:.0f} s", f"{small:,} rows: {by[kind, small].all:.0f} s",
            [by[kind, large].all], [by[kind, small].all], GROWTH if barred and kind == "table" and large == SIZES[2] else None,
        )
        for kind in KINDS
        for small, large in pairwise(SIZES)
        if (kind, small) in by and (kind, large) in by
    ]  # fmt: skip


def stored(path: Path) -> list[Cost]:
    """Stored measurements."""
    return [Cost(**one) for one in json.loads(path.read_text())["audits"]] if path.exists() else []


def table() -> str:
    """The stored results."""
    head = ["rows", *STAGES.values(), "in all", "peak", "flags right, errors flagged"]
    rows = [
        [
            f"{cost.rows:,} ({SAID[cost.kind]})", *(f"{cost.stages[stage]:.1f}" for stage in STAGES), f"{cost.all:.0f}",
            f"{cost.peak_bytes / 1e9:.2f} GB", f"{cost.precision:.3f}, {cost.recall:.3f}",
        ]
        for cost in stored(RESULTS / "stages.json")
    ]  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)).replace(" --- ", "---")


def main() -> None:
    """Measures, prints and stores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few hundred rows, stored apart in results/quick")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--show", action="store_true", help="print the table of the stored results")
    asked = parser.parse_args()
    if asked.show:
        print(table())
        return
    sizes = [500] if asked.quick else asked.sizes
    path = (RESULTS / "quick" if asked.quick else RESULTS) / "stages.json"
    costs = {(one.kind, one.rows): one for one in stored(path)}
    for size in sizes:
        for kind in asked.kinds:
            rows = max(size // IMAGES, 100) if kind == "images" else size
            costs[kind, rows] = measure(kind, rows)
            ordered = sorted(costs.values(), key=lambda cost: (KINDS.index(cost.kind), cost.rows))
            path = report("stages", ratios(ordered, barred=not asked.quick), about=ABOUT, quick=asked.quick, threads=1)
            form = json.loads(path.read_text()) | {"audits": [asdict(cost) for cost in ordered]}
            path.write_text(json.dumps(form, indent=1) + "\n")


if __name__ == "__main__":
    main()
