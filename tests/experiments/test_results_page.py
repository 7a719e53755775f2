"""The page of results: what is said follows from the stored runs, also where some are missing."""

from __future__ import annotations

import json

import pytest

from experiments import claims, details, explained, report, summary
from experiments.archive import Archive
from experiments.comparing import Comparison, lines
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


def test_depths_are_named_as_they_were_trained_and_seeds_are_said(tmp_path):
    text = page(depths(tmp_path, 1))
    assert (
        "| % | ResNet-8 (paper: ResNet-32) | ResNet-14 (paper: ResNet-44) | ResNet-20 (paper: ResNet-56) | ResNet-32 (paper: ResNet-110) |"
        in text
    )
    assert "Run: all 9 rows and all 4 columns, one to three seeds" in text
    assert "54.9 (1 seed) [1]" in text
    assert "test images. Run:" in text, "no network is named beside the heads"


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


def test_a_depth_whose_interval_includes_zero_is_open(tmp_path):
    wide = {"logcomp": [40.0, 60.0, 53.0]}
    tables = store(
        tmp_path, "5", lambda row, c: wide.get(row, around(50.0)) if c == 1 else around(60.0 if row in wide else 50.0)
    )
    assert verdict(tables, "at every depth").answer == "open"


def test_the_column_that_a_table_of_depths_shares_with_another_does_not_make_it_appear(tmp_path):
    tables = store(tmp_path, "1", lambda row, c: around(50.0))
    assert "table-1-cifar10" in tables
    assert "table-5-cifar10-depth" not in tables
    assert "| table-5-cifar10-depth | all |" in page(tables)


# --- rows beyond the paper ------------------------------------------------------------------------------------


def with_peers(folder, last_column=3):
    """Table IX with two peers, ELR ahead of all; GCE higher still, but not in every column."""

    def values(row, c):
        mean = {"logcomp": 60.0, "mixcomp": 59.0, "elr": 62.0, "gce": 70.0, "pgd-at": 55.0}.get(row, 50.0)
        return around(mean, last_column if row == "gce" and c == 6 else 3)

    return store(folder, "9", values, PEERS)


def test_rows_beyond_the_paper_stand_apart_with_their_trials(tmp_path):
    found = with_peers(tmp_path)["table-9-sst2"]
    assert found.further_rows == list(PEERS)
    own, further = page({found.table.id: found}).split("**Beside these rows**")
    assert "| elr |" not in own
    assert "elr, gce: tuned as the rows above, 5 trials each" in further
    assert "| elr | 62.0 ± 0.1 [1] |" in further
    assert found.ranks(0)["logcomp"] == 1, "ranks beside the paper's are among the paper's rows"


def test_the_best_other_method_was_run_in_all_columns_with_all_seeds(tmp_path):
    tables = with_peers(tmp_path, last_column=0)
    text = "\n".join(summary.summary(tables, []))
    assert "| logcomp minus the best tuned other method | **-2.0** (-2.0 to -2.0) elr |" in text
    assert "had 5 settings to choose from" in text
    assert "*elr* (not counted, since not run in all of them with all seeds: gce)" in text


def test_plain_training_that_is_stopped_early_is_compared_with_too(tmp_path):
    gained = {"base": 6.0, "mixcomp": 2.0}
    tables = store(
        tmp_path, "9", lambda row, c: around({"logcomp": 54.0, "mixcomp": 51.0}.get(row, 50.0)), early=lambda row: gained.get(row, 3.0)
    )  # fmt: skip
    text = "\n".join(summary.summary(tables, []))
    assert "| plain training stopped early minus to the end, with wrong labels | **+6.0** (+6.0 to +6.0) |" in text
    assert "| logcomp minus plain training, with wrong labels | **+4.0** (+4.0 to +4.0) |" in text
    assert "| logcomp minus plain training, with wrong labels, both stopped early | **+1.0** (+1.0 to +1.0) |" in text
    assert "both stopped early, ahead are logcomp on SST-2, behind are mixcomp on SST-2." in text


def test_a_peer_that_was_run_everywhere_is_taken(tmp_path):
    text = "\n".join(summary.summary(with_peers(tmp_path), []))
    assert "| logcomp minus the best tuned other method | **-10.0** (-10.0 to -10.0) gce |" in text


def test_a_column_without_all_rows_does_not_count_in_the_summary(tmp_path):
    tables = store(
        tmp_path, "9", lambda row, c: around(90.0 if c == 6 else 50.0) if row in ("base", "logcomp") or c != 6 else []
    )
    found = tables["table-9-sst2"]
    assert found.full_columns == [0, 1, 2, 3, 4, 5]
    assert "SST-2, 6 of 7 columns" in "\n".join(summary.summary(tables, []))
    assert summary._ranks(found).keys() == found.table.rows.keys()


def test_an_ablation_has_its_own_rows_alone(tmp_path):
    store(tmp_path, "1", lambda row, c: around(50.0), PEERS)
    tables = store(tmp_path, "3", lambda row, c: around(50.0))
    ablation = tables["table-3-mixcomp-ablation-cifar10"]
    assert ablation.rows == ["base", "mixcomp-positive", "mixcomp-negative", "mixcomp"]
    assert "elr" in tables["table-1-cifar10"].rows


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


def test_a_whole_table_is_not_among_what_was_not_run(tmp_path):
    text = page(store(tmp_path, "9", lambda row, c: around(50.0)))
    assert "| table-9-sst2 |" not in text.split("## What was not run")[1]
    assert "Run: all 9 rows and all 7 columns, three seeds (189 runs, 3.1 hours of one thread)" in text


def test_seeds_after_a_missing_one_do_not_count(tmp_path):
    found = store(tmp_path, "9", lambda row, c: [50.0, None, 70.0])["table-9-sst2"]
    assert found.ours["base", 0].each == (50.0,), "rows are compared seed by seed"


def test_the_only_row_of_a_table_has_no_rank(tmp_path):
    found = store(tmp_path, "4", lambda row, c: around(50.0))["table-4-mixcomp-eps2"]
    assert lines(found)[1][1] == "50.0 ± 0.1 / 91.1"


# --- augmented images -----------------------------------------------------------------------------------------


def augmented(folder, clean_seeds, with_augmentation):
    store(folder, "1", lambda row, c: around(60.0 if row == "pgd-at" else 50.0))

    def values(row, c):
        return around(with_augmentation if row == "pgd-at" else 50.0, clean_seeds if c == 0 else 3)

    return store(folder, "beyond-augmented-cifar10", values)


def test_augmentation_without_noise_is_judged_once_there_are_seeds(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    text = "\n".join(explained.explained(augmented(tmp_path / "a", 1, 45.0)))
    assert "| 0 % | augmented | -5.0 (1 seed) |" in text
    assert "smaller at random 30 %; not judged (too few seeds) at 0 %" in text
    tables = augmented(tmp_path / "b", 3, 45.0)
    assert "is smaller at 0 %, random 30 %." in "\n".join(explained.explained(tables))
    assert "without wrong labels pgd-at -5.0 (-5.0 to -5.0)" in explained.in_a_line(tables)[0]
    assert "wrong labels random 30 % for 64 epochs pgd-at" in explained.in_a_line(tables)[0]


def test_what_augmentation_shows_is_read_from_the_runs(tmp_path):
    tables = augmented(tmp_path, 3, 70.0)
    text = "\n".join(explained.explained(tables))
    assert "is larger at 0 %, random 30 %." in text
    assert "in 6 of 7 columns" in text, "the paper's adversarial training is below its base in all columns but one"
    assert "for 90 % at random 30 % without augmentation, 10 % at random 30 % with augmentation" in text
    assert "| random 30 % for 64 epochs | augmented | +20.0" in text
    assert "| random 30 % for 64 epochs | as they are" not in text, "the table without augmentation has no such column"
    assert "Compensation loses" not in text


# --- details --------------------------------------------------------------------------------------------------


def test_best_epochs_and_learned_labels_are_on_the_second_page(tmp_path):
    tables = store(tmp_path, "9", lambda row, c: around(50.0))
    text = "\n".join(details.sections(tables, tmp_path))
    assert "### table-9-sst2 in detail" in text
    fitted = text.split("learned by heart")[1].splitlines()
    head = next(line for line in fitted if line.startswith("| %"))
    assert "0 % |" not in head.split("symmetric")[0], "without noise there is no wrong label to learn"
    assert "best accuracy on noisy validation labels" not in page(tables)
    assert isinstance(tables["table-9-sst2"], Comparison)
