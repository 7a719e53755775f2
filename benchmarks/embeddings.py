"""The audit of a million embeddings: its peak memory, and its time beside scikit-learn's logistic regression.

python -m benchmarks.embeddings [--quick] [--rows 1000000]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.measure import Ratio, report

WIDTH, CLASSES, ITERATIONS = 512, 100, 20
ROOM = 6e9
"""The bar: bytes that the process of an audit may take in all, 2 GB of which are the embeddings."""

ABOUT = """Embeddings (N, 512) in float32 around 100 centers, one label in twenty wrong, made in a file and loaded by a fresh process.
The audit runs with its defaults: five folds, linear learners fitted on an even part of the rows, neighbors, the noise model, and a
judgement on every row; logistic regression runs for at most 20 iterations of lbfgs, without standardizing. Memory is the peak
of the resident set of the whole process, interpreter and libraries included, on one thread. Times are seconds of the processor, for
others were at work on the machine."""

PEAK = """
import resource, time, json, numpy as np, torch
torch.set_num_threads(1)
x, y = np.load({x!r}, mmap_mode={mode!r}), np.load({y!r})
"""

AUDIT = """
from compensate import audit
start = time.process_time()
found = audit(x, y)
"""

REGRESSION = """
import warnings
warnings.simplefilter("ignore")
from sklearn.linear_model import LogisticRegression
start = time.process_time()
found = LogisticRegression(max_iter={iterations}).fit(x, y)
"""

END = """
seconds = time.process_time() - start
print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""


def make(folder: Path, rows: int) -> None:
    """Writes the embeddings, some at a time, and their labels."""
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((CLASSES, WIDTH), dtype=np.float32)
    true = rng.integers(CLASSES, size=rows)
    y = np.where(rng.random(rows) < 0.05, rng.integers(CLASSES, size=rows), true)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (rows, WIDTH))
    for first in range(0, rows, 20_000):
        part = true[first : first + 20_000]
        x[first : first + len(part)] = 0.3 * centers[part] + rng.standard_normal((len(part), WIDTH), dtype=np.float32)
    x.flush()
    np.save(folder / "y.npy", y)


def run(code: str) -> tuple[float, float]:
    """Seconds, and peak bytes of a fresh process."""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    seconds, peak = json.loads(done.stdout.splitlines()[-1])
    return seconds, peak


def main() -> None:
    """Measures, prints and stores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20,000 rows, stored apart in results/quick")
    parser.add_argument("--rows", type=int, default=1_000_000)
    asked = parser.parse_args()
    rows = 20_000 if asked.quick else asked.rows
    quick = rows < 1_000_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, rows)
        given = {
            "x": str(folder / "x.npy"), "y": str(folder / "y.npy"),
            "iterations": ITERATIONS,
        }  # fmt: skip
        loaded = run((PEAK + AUDIT + END).format(**given, mode=None))
        print(f"audit of {rows:,} rows: {loaded[0]:.0f} s, {loaded[1] / 1e9:.2f} GB", flush=True)
        theirs = run((PEAK + REGRESSION + END).format(**given, mode=None))
        print(f"logistic regression: {theirs[0]:.0f} s, {theirs[1] / 1e9:.2f} GB", flush=True)
        mapped = run((PEAK + AUDIT + END).format(**given, mode="r"))
        print(f"audit of a mapped file: {mapped[0]:.0f} s, {mapped[1] / 1e9:.2f} GB", flush=True)
    size = rows * WIDTH * 4
    bar = None if quick else ROOM / size
    array = f"the array ({size / 1e9:.2f} GB)"
    report(
        "embeddings",
        [
            Ratio(f"audit of {rows:,} x {WIDTH}: {loaded[1] / 1e9:.2f} GB", array, [loaded[1]], [size], bar, "memory"),
            Ratio(f"audit of the file, mapped: {mapped[1] / 1e9:.2f} GB", array, [mapped[1]], [size], bar, "memory"),
            Ratio(f"logistic regression: {theirs[1] / 1e9:.2f} GB", array, [theirs[1]], [size], None, "memory"),
            Ratio(f"audit, 4 passes: {loaded[0]:.0f} s", f"logistic regression, {ITERATIONS} iterations", [loaded[0]], [theirs[0]]),
        ],
        about=ABOUT, quick=quick, threads=1,
    )  # fmt: skip


if __name__ == "__main__":
    main()
