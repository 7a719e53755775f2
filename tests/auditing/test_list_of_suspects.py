"""suspects.csv: each flagged row beside what its sample says, as a plain loop over the rows would write it, but not as slowly."""

from __future__ import annotations

import csv

import numpy as np
import pandas as pd

from compensate.auditing.content import MAX_CELL, sample_content
from compensate.auditing.result import Audit
from compensate.data.dataset import Estimate, Source
from compensate.data.tables import from_frame


def found(frame: pd.DataFrame, p_error: np.ndarray, **options) -> Audit:
    data = from_frame(frame, "the table", label="label", **options).train
    score = np.log(p_error) - np.log1p(-p_error)
    return Audit(
        kind="table", source=Source(title="t"), classes=data.classes, index=data.index, given=data.target, suggested=1 - data.target,
        log_odds=score, p_error=p_error, evidence={"margin": -score}, noise_rate=Estimate(0.1, 0.0, 0.2),
        ids=tuple(str(i) for i in range(len(data))), data=data,
    )  # fmt: skip


def table(size: int, columns: int = 3) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {f"n{j}": rng.normal(size=size).round(3).astype(str) for j in range(columns)}
        | {
            "given": rng.choice(["=1+1", "plain", "two  blanks", "y" * 300], size),
            "label": rng.choice(["a", "b"], size),
        }
    )


def test_flagged_rows_say_what_a_loop_over_rows_would(tmp_path):
    audit = found(table(40), np.linspace(0.9, 0.02, 40))
    rows = [*csv.DictReader(audit.write_suspects(tmp_path / "suspects.csv").read_text().splitlines())]
    flagged = int(audit.mask.sum())
    assert 0 < flagged < len(rows) == 40
    for place, row in enumerate(rows):
        assert row["index"] == str(audit.index[place])
        assert row["flagged"] == ("true" if place < flagged else "false")
        assert row["p_error"] == f"{audit.p_error[place]:.6g}"
        for name, value in sample_content(audit.data, place).fields or ():
            said = row[f"{name} (data)" if name == "given" else name]
            if place >= flagged:
                assert said == ""
            elif value == "=1+1":
                assert said == "'=1+1"
            else:
                assert said == " ".join(value[:MAX_CELL].split()) or (len(said) == MAX_CELL and said[-1] == "…")


def test_names_of_columns_hold_no_formulas(tmp_path):
    frame = table(40).rename(columns={"n0": "=1+1", "n1": "a;=2"})
    text = found(frame, np.linspace(0.9, 0.02, 40)).write_suspects(tmp_path / "suspects.csv").read_text()
    names = next(csv.reader(text.splitlines()))
    assert "'=1+1" in names
    assert "a;'=2" in names
