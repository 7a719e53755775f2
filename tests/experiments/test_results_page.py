"""The page of results: what is said follows from the stored runs, also where some are missing."""

from __future__ import annotations

import json

import pytest

from experiments import claims, report
from experiments.archive import Archive
from experiments.protocols import PROTOCOLS, cells
from experiments.tables import find_table

PEERS = ("elr", "gce")
SPREAD = (-0.1, 0.0, 0.1)


def store(folder, number, values, extra=(), early=lambda row: 0.0):
    """Runs of a table: `values` gives the accuracies of a row in a column, in percent, a number for each seed; `early` what a row gains by stopping early."""
    table = find_table(number)
    settings = PROTOCOLS["small"][table.dataset].candidates
    chosen = {m: settings[m][1] for m in ("logcomp", "mixcomp", "pgd_at", *PEERS)}
    trials = [{"hyper": {}, "validation": 0.5}] * 5
    stored = {m: {"chosen": hyper, "trials": trials} for m, hyper in chosen.items()}
    (folder / f"{table.tuned_as}-small-chosen.json").write_text(json.dumps(stored))
    archive = Archive(folder / f"{table.dataset}-small.jsonl")
    for cell in cells(table, "small", chosen, 3, extra):
        each = values(cell.row, cell.column)
        if cell.seed < len(each) and each[cell.seed] is not None:
            last = {"test_accuracy": each[cell.seed] / 100, "epoch": 3}
            best = {"test_accuracy": (each[cell.seed] + early(cell.row)) / 100, "epoch": 2}
            fitted = None if cell.config.noise == "none" else 0.9 if cell.config.augment == "none" else 0.1
            archive.add(
                {"id": cell.config.id, "last": last, "best": best, "wrong_labels_fitted": fitted, "seconds": 60}
            )
    return report.trained_tables(folder)


def around(mean, seeds=3):
    return [mean + d for d in SPREAD[:seeds]]


def page(tables):
    return "\n".join(report.sections(tables))


def verdict(tables, says):
    return next(c for c in claims.CLAIMS if says in c.says).judge(tables)


# --- depth ----------------------------------------------------------------------------------------------------


def depths(folder, seeds, gap=lambda c: 5.0, rows=None):
    """A table of depths: LogComp and MixComp ahead by a gap; the first column has three seeds, the others fewer."""

    def values(row, c):
        if rows is not None and row not in rows and c > 0:
            return []
        each = around(50.0, 3 if c == 0 else seeds)
        return [v + gap(c) for v in each] if row in claims.OURS else each

    return store(folder, "5", values)


@pytest.mark.parametrize(
    ("seeds", "gap", "rows", "answer"),
    [
        (3, lambda c: 5.0, None, "holds"),
        (1, lambda c: 5.0, None, "not judged"),
        (3, lambda c: -5.0 if c == 2 else 5.0, None, "does not hold"),
        (3, lambda c: 5.0, ("base", "pgd-at", "logcomp", "mixcomp"), "not judged"),
        (3, lambda c: 5.0, ("base", "pgd-at"), "not judged"),
    ],
)
def test_the_claim_about_depth_holds_only_if_all_of_it_was_run_and_every_interval_is_above_zero(
    tmp_path, seeds, gap, rows, answer
):
    assert verdict(depths(tmp_path, seeds, gap, rows), "at every depth").answer == answer


# --- rows beyond the paper ------------------------------------------------------------------------------------


# --- what is said of gaps -------------------------------------------------------------------------------------


def test_what_was_not_run_is_said_cell_by_cell(tmp_path):
    def values(row, c):
        if c > 4 or (row, c) == ("pgd-at", 1) or row == "proselflc":
            return []
        return around(50.0, 2 if (row, c) == ("logcomp", 3) else 3)

    tables = store(tmp_path, "9", values, PEERS)
    text = page(tables)
    assert (
        "| table-9-sst2 | asymmetric 10 %, asymmetric 20 % | proselflc: all; pgd-at: symmetric 5 % | logcomp: symmetric 20 % |"
        in text
    )
    assert "Run: 8 of 9 rows and 5 of 7 columns, two to three seeds; 1 of these cells is empty" in text
    assert "| table-2-cifar100 | all: the images are not to be had here |" in text


def test_seeds_after_a_missing_one_do_not_count(tmp_path):
    found = store(tmp_path, "9", lambda row, c: [50.0, None, 70.0])["table-9-sst2"]
    assert found.ours["base", 0].each == (50.0,), "rows are compared seed by seed"


# --- augmented images -----------------------------------------------------------------------------------------


# --- details --------------------------------------------------------------------------------------------------
