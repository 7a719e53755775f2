"""What an audit says of its data before it judges them: rows that are left out, missing labels, alike names, other columns."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from test_review_round_trip import write_table

import compensate
from compensate.auditing.api import audit, audit_probabilities
from compensate.auditing.chunks import open_chunks
from compensate.auditing.class_names import same_name
from compensate.auditing.request import AuditRequest, run_audit
from compensate.auditing.source import read
from compensate.cli import audit as command
from compensate.cli.audit import describe_data
from compensate.data import Splits, from_arrays
from compensate.errors import InputError

RNG = np.random.default_rng(0)
N = 60
KIND = np.arange(N) % 2
PARTS = np.array(["train", "train", "train", "test", "validation"] * (N // 5))


def frame(**columns) -> pd.DataFrame:
    size = (RNG.normal(size=N) + 4 * KIND).round(2)
    return pd.DataFrame({"size": size, **columns, "label": np.array(["cat", "dog"])[KIND]})


# Rows that are left out -------------------------------------------------------------------------------------------


def written(table: pd.DataFrame, at, way: str):
    """The table in a file of this format; the table itself for "frame"."""
    if way == "frame":
        return table
    write_table(table, at / f"t.{way}")
    return at / f"t.{way}"


def parted_sets(at):
    table = frame(split=PARTS).drop(columns="label")
    return written(table.assign(labels=["a;b", "b", "a", "c;a"] * (N // 4)), at, "csv")


def parted_folder(at):
    for part, size in (("train", 18), ("test", 6), ("val", 6)):
        for name in ("cat", "dog"):
            (at / part / name).mkdir(parents=True)
            for i in range(size):
                Image.new("L", (8, 8), i).save(at / part / name / f"{i}.png")
    return at


def parted_npz(at):
    np.savez(at / "t.npz", x_train=np.eye(36), y_train=KIND[:36], x_test=np.eye(36)[:12], y_test=KIND[:12])
    return at / "t.npz"


def parted_hub(at):
    datasets = pytest.importorskip("datasets")
    whole = frame()
    parts = {"train": whole[:36], "test": whole[36:48], "holdout": whole[48:]}
    return datasets.DatasetDict({name: datasets.Dataset.from_pandas(part) for name, part in parts.items()})


def parted_saved(at):
    parted_hub(at).save_to_disk(at / "saved")
    return at / "saved"


def splits(at):
    data = from_arrays(np.eye(N), KIND)
    return Splits(data.subset(np.arange(36)), data.subset(np.arange(36, 48)))


PARTED = {
    **{
        way: (lambda at, way=way: written(frame(split=PARTS), at, way), {"test": 12, "validation": 12})
        for way in ("csv", "jsonl", "parquet", "xlsx", "frame")
    },
    "label sets": (parted_sets, {"test": 12, "validation": 12}),
    "folder": (parted_folder, {"test": 12, "val": 12}),
    "npz": (parted_npz, {"test": 12}),
    "hub": (parted_hub, {"test": 12, "holdout": 12}),
    "saved": (parted_saved, {"test": 12, "holdout": 12}),
    "splits": (splits, {"test": 12}),
}


@pytest.mark.filterwarnings("ignore:.*left out")
@pytest.mark.parametrize("name", PARTED)
def test_every_reader_names_the_rows_that_it_leaves_out(tmp_path, name):
    make, left = PARTED[name]
    data = read(make(tmp_path), None, None, {})
    assert len(data) == 36
    assert data.source.left_out == left
    said = describe_data(data)
    assert f"36 of {36 + sum(left.values())} rows" in said
    for part, rows in left.items():
        assert f"{part} {rows}" in said
    how = "--split all" if data.source.split else str(tmp_path / "test") if name == "folder" else "alone"
    assert how in said


@pytest.mark.parametrize("name", [name for name, (_, left) in PARTED.items() if "validation" in left])
def test_all_rows_are_audited_on_demand(tmp_path, name):
    data = read(PARTED[name][0](tmp_path), None, None, {"split": "all"})
    assert data.index.tolist() == list(range(N))
    assert not data.source.left_out
    assert "split" not in [c.name for c in data.source.columns if c.used]


def test_rows_in_pieces_are_all_of_them_on_demand(tmp_path):
    path = written(frame(split=PARTS), tmp_path, "parquet")
    with pytest.raises(InputError, match="--split all"):
        open_chunks(path, None, {})
    assert len(open_chunks(path, None, {"split": "all"})) == N


def test_the_audit_of_a_part_keeps_a_note_on_the_others():
    with pytest.warns(UserWarning, match=r"24 of 60 rows are left out \(test 12, validation 12\).*split=\"all\""):
        found = compensate.audit(frame(split=PARTS))
    assert any("left out" in note for note in found.notes)
    assert len(compensate.audit(frame(split=PARTS), split="all").index) == N


def test_other_words_for_all_rows_are_refused():
    with pytest.raises(
        InputError,
        match='split is "every", and the data have the parts train, test, validation; expected one of them, or all',
    ):
        read(frame(split=PARTS), None, None, {"split": "every"})


@pytest.mark.parametrize("name", ["csv", "parquet", "frame", "hub", "npz", "splits"])
def test_another_part_is_audited_on_demand(tmp_path, name):
    data = read(PARTED[name][0](tmp_path), None, None, {"split": "test"})
    assert len(data) == 12
    assert data.source.left_out["train"] == 36
    if "validation" in PARTED[name][1]:
        assert data.index.tolist() == np.flatnonzero(PARTS == "test").tolist(), "rows of the file"
    else:
        with pytest.raises(InputError, match=r'split is "validation", and the data have the parts train, test'):
            read(PARTED[name][0](tmp_path), None, None, {"split": "validation"})


@pytest.mark.parametrize("way", ["csv", "jsonl", "parquet"])
def test_a_folder_with_a_file_for_each_part(tmp_path, way):
    shard = "-00000-of-00001" * (way == "parquet")
    (tmp_path / "data").mkdir()
    for part, rows in (("train", 36), ("test", 12)):
        write_table(frame()[:rows], tmp_path / "data" / f"{part}{shard}.{way}")
    data = read(tmp_path, None, None, {})
    assert (len(data), data.source.left_out, list(data.others)) == (36, {"test": 12}, ["test"])
    assert "data" in data.source.path
    assert len(read(tmp_path, None, None, {"split": "test"})) == 12


@pytest.mark.parametrize("name", ["folder", "saved"])
def test_parts_whose_decisions_could_not_be_written_are_given_alone(tmp_path, name):
    with pytest.raises(InputError, match=r"decisions about the test part .* give it alone"):
        read(PARTED[name][0](tmp_path), None, None, {"split": "test"})


def test_copies_in_other_parts_are_reported(tmp_path):
    table = pd.concat([frame(split=PARTS), frame(split=PARTS)], ignore_index=True)
    table["size"] += np.arange(len(table)) / 1000
    table.loc[[3, 4], "size"] = table.loc[[0, 1], "size"].to_numpy()
    for split, rows in (("train", [0, 1]), ("test", [3])):
        request = AuditRequest(data=str(written(table, tmp_path, "csv")), options={"split": split})
        found, _ = run_audit(request, audit, out=tmp_path / split)
        leaks = found.found_issues.query("issue == 'test_duplicate'")
        assert leaks["index"].tolist() == rows
        assert leaks["detail"].str.contains("part").all()


# Missing labels ---------------------------------------------------------------------------------------------------


CODES = ["DE", "FR", "NA", "US", "IT"]
MISSING_CASES = {
    "short codes": (CODES, "NA", True),
    "short codes in lower case": ([code.lower() for code in CODES], "na", True),
    "longer codes": (["USA", "CAN", "NA", "MEX"], "NA", True),
    "with empty cells": (["small", "large", "NA", ""], "NA", True),
    "with empty cells, not applicable": (["paid", "open", "N/A", None], "N/A", True),
    "words": (["small", "large", "NA"], "NA", False),
    "answers": (["YES", "NO", "NA"], "NA", False),
    "written by a machine": (["DE", "FR", "null", ""], "null", False),
}


def labeled_by(values) -> pd.DataFrame:
    return pd.DataFrame({"size": RNG.normal(size=N).round(2), "label": [values[i % len(values)] for i in range(N)]})


@pytest.mark.parametrize("name", MISSING_CASES)
@pytest.mark.parametrize("way", ["csv", "jsonl", "parquet", "frame", "pieces"])
def test_a_class_named_na_is_told_from_a_missing_label(tmp_path, name, way):
    values, cell, is_class = MISSING_CASES[name]
    table = labeled_by(values)
    data = written(table, tmp_path, "parquet" if way == "pieces" else way)
    found = open_chunks(data, None, {}) if way == "pieces" else read(data, None, None, {})
    assert (cell in found.classes) == is_class
    rows = (table["label"] == cell).to_numpy()
    assert found.labeled[rows].all() == is_class
    said = describe_data(found)
    if is_class:
        assert f'"{cell}" is taken for a class; if it means a missing label: --missing {cell}' in said
    else:
        assert f'"{cell}" {rows.sum()}' in said, "which cells count as missing"


def test_an_option_names_the_cells_that_are_missing(tmp_path):
    labeled_by(["cat", "dog", "NA", "unknown", ""]).to_csv(tmp_path / "t.csv", index=False)
    assert read(tmp_path / "t.csv", None, None, {}).classes == ("NA", "cat", "dog", "unknown")
    data = read(tmp_path / "t.csv", None, None, {"missing": "NA,unknown"})
    assert data.classes == ("cat", "dog")
    assert '36 without a label ("NA" 12, "unknown" 12, empty 12)' in describe_data(data)
    labeled_by(["cat", "dog", "NA"]).to_csv(tmp_path / "t.csv", index=False)
    assert read(tmp_path / "t.csv", None, None, {"missing": ""}).classes == ("NA", "cat", "dog")
    labeled_by(["1.5", "2.5", "-1", "7.25", "9", "3", "8", "12.5", "4.1", "4.2", "4.3", "5.5"]).to_csv(tmp_path / "t.csv", index=False)  # fmt: skip
    data = read(tmp_path / "t.csv", None, None, {"missing": "-1", "task": "regression"})
    assert (~data.labeled).sum() == 5


def test_a_class_named_na_is_judged_corrected_and_checked(tmp_path):
    kind = np.arange(120) % 3
    size = (np.random.default_rng(1).normal(size=120) + 9 * kind).round(2)
    table = pd.DataFrame({"size": size, "label": np.array(["DE", "NA", "FR"])[kind]})
    table.loc[[3, 4], "label"] = ["NA", "DE"]
    table.to_csv(tmp_path / "t.csv", index=False)
    found = compensate.audit(tmp_path / "t.csv")
    assert set(found.flagged["index"]) == {3, 4}
    found.apply(found.accepted(0.6), out=tmp_path / "fixed.csv")
    fixed = pd.read_csv(tmp_path / "fixed.csv", keep_default_na=False)
    assert fixed["label"][[3, 4]].tolist() == ["DE", "NA"]
    new = pd.DataFrame({"size": [9.0, 0.0], "label": ["NA", "NA"]})
    scored = found.score(new)
    assert scored["given"].tolist() == ["NA", "NA"]
    assert scored["flagged"].tolist() == [False, True]


# Spellings of one name --------------------------------------------------------------------------------------------

SPELLINGS = ["cat", "Cat", "CAT", "cat  ", "caf\u00e9 au lait", "cafe\u0301 au lait", "Caf\u00e9-au-lait", "dog"]


def spelled(n: int = 160) -> pd.DataFrame:
    """Three classes, two of them in several spellings, which the features do not tell apart; two labels are wrong."""
    rng = np.random.default_rng(1)
    kind = np.arange(n) % 3
    names = [
        ["cat"] * 5 + ["Cat", "Cat", "CAT", "c at"],
        ["caf\u00e9 au lait"] * 3 + ["cafe\u0301 au lait", "Caf\u00e9-au-lait"],
        ["dog"],
    ]
    label = [names[k][rng.integers(len(names[k]))] for k in kind]
    label[0], label[1] = "dog", "Cat"
    return pd.DataFrame({"size": (rng.normal(size=n) + 9 * kind).round(2), "other": rng.normal(size=n).round(2), "label": label})  # fmt: skip


def test_spellings_of_one_name_are_known():
    for a in SPELLINGS:
        for b in SPELLINGS:
            same = a[0].lower() == b[0].lower() and len(a.strip()) // 4 == len(b.strip()) // 4
            assert same_name(a, b) == same, (a, b)
    assert not same_name("A", "a"), "two classes, perhaps"
    assert not same_name("biling", "billing"), "a slip and no spelling"


@pytest.mark.parametrize("memory", [None, "2GB"])
def test_no_spelling_of_the_same_name_is_suggested(tmp_path, memory):
    spelled().to_parquet(tmp_path / "t.parquet")
    found = compensate.audit(tmp_path / "t.parquet", memory=memory)
    given, suggested = found.names(found.given), found.names(found.suggested)
    assert not [pair for pair in zip(given, suggested, strict=True) if same_name(*pair)]
    assert {0, 1} <= set(found.flagged["index"])
    assert len(found.flagged) <= 4, "rows with a rare spelling are not wrong"


def test_new_rows_and_given_probabilities_get_no_other_spelling_either():
    table = spelled()
    found = compensate.audit(table)
    scored = found.score(table)
    assert not [pair for pair in zip(scored["given"], scored["suggested"], strict=True) if same_name(*pair)]
    given = np.arange(160) % 3
    p = np.array([[0.998, 0.001, 0.001], [0.998, 0.001, 0.001], [0.001, 0.001, 0.998]])[given]
    p[[2, 5, 8, 11]] = [0.998, 0.001, 0.001]
    told = audit_probabilities(p, given, classes=["cat", "Cat", "dog"])
    assert set(told.flag(budget=4).flagged["index"]) == {2, 5, 8, 11}


@pytest.mark.parametrize("way", ["frame", "csv", "pieces", "array"])
def test_spellings_are_merged_on_demand(tmp_path, way):
    table = spelled()
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_parquet(tmp_path / "t.parquet")
    options = {"merge_alike": True}
    if way == "array":
        data = read(table[["size", "other"]].to_numpy(), table["label"].to_numpy(), None, options)
    elif way == "pieces":
        data = open_chunks(tmp_path / "t.parquet", None, options)
    else:
        data = read(table if way == "frame" else tmp_path / "t.csv", None, None, options)
    assert data.classes == ("caf\u00e9 au lait", "cat", "dog"), "the most frequent spelling of each"
    assert 'into "cat": "CAT", "Cat"' in describe_data(data)
    assert "--merge-alike" not in describe_data(data)


def test_the_first_line_offers_to_merge(tmp_path):
    said = describe_data(read(spelled(), None, None, {}))
    assert "--merge-alike takes" in said
    assert '"cat"' in said
    assert "--merge-alike" not in describe_data(read(frame(), None, None, {}))


def test_merged_labels_are_judged_corrected_and_checked(tmp_path):
    table = spelled()
    table.to_csv(tmp_path / "t.csv", index=False)
    found = compensate.audit(tmp_path / "t.csv", merge_alike=True)
    assert {0, 1} == set(found.flagged["index"])
    found.apply(found.accepted(0.6), out=tmp_path / "fixed.csv")
    fixed = pd.read_csv(tmp_path / "fixed.csv")
    assert fixed["label"][[0, 1]].tolist() == ["cat", "caf\u00e9 au lait"]
    assert fixed["label"][2:].tolist() == table["label"][2:].tolist()
    assert found.score(pd.DataFrame({"size": [0.0], "other": [0.0], "label": ["CAT"]}))["flagged"].tolist() == [False]


def test_a_person_at_a_terminal_is_asked_whether_to_merge(tmp_path, monkeypatch):
    spelled().to_csv(tmp_path / "t.csv", index=False)
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    asked = []
    monkeypatch.setattr(command.Confirm, "ask", lambda text, **_: asked.append(text) or True)
    monkeypatch.chdir(tmp_path)
    found, _ = run_audit(AuditRequest(data="t.csv", only="labels"), audit, ask_merge=command.ask_merge)
    assert found.classes == ("caf\u00e9 au lait", "cat", "dog")
    assert '"Cat"' in asked[0]


# Other columns that could be the label ----------------------------------------------------------------------------


def test_the_first_line_names_the_runners_up():
    table = frame(energy_class=RNG.choice(["a", "b"], N)).rename(columns={"label": "churned"})
    assert (
        'label column "churned" (2 classes: dog 30 · cat 30; it could also be energy_class: --label)'
        in describe_data(read(table, None, None, {}))
    )
