"""`compensate check` of new rows against the run of an audit: seconds of one core, relative to a bar of ten and to an audit.

python -m benchmarks.check [--quick]
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmarks.measure import Ratio, options, report
from benchmarks.planted import table
from compensate.auditing.api import audit
from compensate.auditing.check import check
from compensate.auditing.result import Audit
from compensate.auditing.source import read
from compensate.auditing.store import write_run
from compensate.encoders import encode_data

PROMISED = 10.0
"""Seconds of one core for 10,000 rows, after start-up and with cached embeddings."""

SHARE = 0.5
"""Of the time of an audit of as many rows that a check may take."""

ABOUT = """`compensate check` of new rows against a stored run, without training: the file is read and rows are
compared with the audited ones by digest; all rows are new. Texts have 12 short words with cached embeddings
(all-MiniLM-L6-v2 if installed); the table has eight numeric and three categorical columns. CPU seconds after
start-up, loading the stored model each time, relative to ten seconds for 10,000 rows (proportionally less for fewer
rows), and relative to an audit of the same number of rows, with cached embeddings too."""


def texts(path: Path, rows: int, seed: int) -> Path:
    """Writes sentences of which some words tell the class."""
    rng = np.random.default_rng(seed)
    words = np.array([str(k) for k in range(1000)])  # a token each
    label = rng.integers(2, size=rows)
    telling = np.where(label[:, None] == 1, rng.integers(0, 40, (rows, 4)), rng.integers(40, 80, (rows, 4)))
    said = np.concatenate([words[telling], words[rng.integers(80, 1000, (rows, 8))]], axis=1)
    wrong = rng.random(rows) < 0.1
    frame = pd.DataFrame({"text": [" ".join(row) for row in said], "label": np.where(label ^ wrong, "good", "bad")})
    frame.to_csv(path, index=False)
    return path


def tables(path: Path, rows: int, seed: int) -> Path:
    """Writes a table of numbers and categories."""
    with tempfile.TemporaryDirectory() as folder:
        table(Path(folder), rows, seed)[0].replace(path)
    return path


def measured(kind: str, make: Callable[[Path, int, int], Path], rows: int, repeats: int) -> list[Ratio]:
    """The check of new rows against an audit of the same number of rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        known, new = make(folder / "known.csv", rows, 0), make(folder / "new.csv", rows, 1)
        for path in (known, new):
            encode_data(read(path, None, None, {}))  # to the cache
        began = time.process_time()
        write_run(audit(known), folder / "run")
        audited = time.process_time() - began
        seconds = []
        for _ in range(repeats):
            began = time.process_time()
            result = check(Audit.load(folder / "run" / "audit"), new)
            seconds.append(time.process_time() - began)
            assert result.new == rows
    what = f"check {rows:,} new rows, {kind}"
    promised = PROMISED * rows / 10_000
    return [
        Ratio(what, f"{promised:g} s of one core", seconds, [promised] * repeats, 1.0),
        Ratio(what, "audit of as many", seconds, [audited] * repeats, SHARE),
    ]


def main() -> None:
    """Measures and stores."""
    chosen = options(__doc__)
    torch.set_num_threads(1)
    rows, repeats = (400, 2) if chosen.quick else (10_000, 5)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["COMPENSATE_CACHE"] = cache
        ratios = [*measured("texts", texts, rows, repeats), *measured("table", tables, rows, repeats)]
    report("check", ratios, about=ABOUT, quick=chosen.quick)


if __name__ == "__main__":
    main()
