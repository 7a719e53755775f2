"""Every format in, audited, decided on, and out again: the decided labels change, and nothing else does."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from compensate.auditing.api import audit
from compensate.auditing.content import digest_source
from compensate.auditing.decisions import Correction
from compensate.auditing.result import apply_corrections
from compensate.data import load, read_frame
from compensate.errors import InputError

pytestmark = pytest.mark.slow

ROWS, WRONG = 80, (3, 17, 41)


def table(kind: type = str) -> pd.DataFrame:
    """Two clusters, with the label of a few rows exchanged."""
    rng = np.random.default_rng(0)
    y = np.arange(ROWS) % 2
    given = y.copy()
    given[list(WRONG)] ^= 1
    x = rng.normal(size=(ROWS, 2)) + 6 * y[:, None]
    names = ["cat", "Dögs, big"]
    label = [names[c] if kind is str else kind(c) for c in given]
    return pd.DataFrame(
        {"size": x[:, 0].round(3), "weight": x[:, 1].round(3), "note": ['é "q"', "n,o"] * (ROWS // 2), "label": label}
    )


def write_jsonl(frame: pd.DataFrame, path: Path) -> None:
    lines = [json.dumps(row, ensure_ascii=k % 2 == 0) for k, row in enumerate(frame.to_dict("records"))]
    lines[5] = " " + lines[5].replace('": ', '"\t : ') + " "
    path.write_text("\n".join([*lines[:10], "", *lines[10:]]) + "\r\n", encoding="utf-8", newline="")


def write_excel(frame: pd.DataFrame, path: Path) -> None:
    import openpyxl

    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append([])
    sheet.append([None, *frame.columns])
    for row in frame.itertuples(index=False):
        sheet.append([None, *row])
    sheet.conditional_formatting.add(
        "B3:B20", openpyxl.formatting.rule.CellIsRule(operator="greaterThan", formula=["1"])
    )
    sheet["E5"].font = openpyxl.styles.Font(bold=True)
    book.save(path)


def write_parts(frame: pd.DataFrame, path: Path) -> None:
    path.mkdir()
    for k, (first, last) in enumerate(((0, 30), (30, 60), (60, ROWS))):
        frame.iloc[first:last].to_parquet(path / f"part-{k}.parquet")


def write_saved(frame: pd.DataFrame, path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_pandas(frame, preserve_index=False).save_to_disk(str(path))


def write_class_labels(frame: pd.DataFrame, path: Path, *, test: bool = False) -> None:
    """Class numbers whose names are numbers too, and other ones."""
    datasets = pytest.importorskip("datasets")
    names = ["2", "1"]
    found = datasets.Dataset.from_pandas(
        frame.assign(label=[int(c != "cat") for c in frame["label"]]), preserve_index=False
    )
    found = found.cast_column("label", datasets.ClassLabel(names=names))
    parts = {"train": found, "test": found.select(range(5))} if test else {"train": found}
    datasets.DatasetDict(parts).save_to_disk(str(path))


def read_saved(path: Path) -> pd.DataFrame:
    import datasets

    found = datasets.load_from_disk(str(path))
    return found.get("train", found).to_pandas() if isinstance(found, dict) else found.to_pandas()


@dataclass(frozen=True)
class Format:
    name: str
    write: Callable[[pd.DataFrame, Path], Any]
    read: Callable[[Path], pd.DataFrame] = read_frame
    kind: type = str


FORMATS = [
    Format("t.csv", lambda frame, path: frame.to_csv(path, index=False)),
    Format("t.tsv", lambda frame, path: frame.to_csv(path, index=False, sep="\t")),
    Format("t.csv.gz", lambda frame, path: frame.to_csv(path, index=False)),
    Format("t.jsonl", write_jsonl),
    Format("t.ndjson.gz", lambda frame, path: frame.to_json(path, orient="records", lines=True), kind=int),
    Format("numbers.jsonl", write_jsonl, kind=float),
    Format("truth.jsonl", write_jsonl, kind=bool),
    Format("t.xlsx", write_excel),
    Format("numbers.xlsx", write_excel, kind=int),
    Format("t.parquet", lambda frame, path: frame.to_parquet(path)),
    Format("parts", write_parts),
    Format("saved", write_saved, read_saved),
    Format("numbers", write_saved, read_saved, kind=int),
    Format("class-labels", write_class_labels, read_saved),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_wrong_labels_are_found_and_corrected_in_every_format(form: Format, tmp_path: Path) -> None:
    path = tmp_path / form.name
    form.write(table(form.kind), path)
    before, digest = form.read(path), digest_source(path)
    found = audit(path, encoder="none")
    assert set(WRONG) <= set(found.flagged["index"])
    decided = [c for c in found.accepted(0.5) if c.index in WRONG]
    done = apply_corrections(path, decided)
    assert (done.changed, done.rows, done.checked) == (3, ROWS, True)
    after = form.read(done.path)
    others = [name for name in before.columns if name != "label"]
    pd.testing.assert_frame_equal(after[others], before[others])
    assert after["label"].dtype == before["label"].dtype
    assert np.flatnonzero(after["label"].to_numpy() != before["label"].to_numpy()).tolist() == list(WRONG)
    if path.suffix == ".jsonl":
        lines = zip(*(file.read_bytes().split(b"\n") for file in (path, done.path)), strict=True)
        assert sum(old != new for old, new in lines) == 3
    assert digest_source(path) == digest, "the audited data is as it was"
    with pytest.raises(InputError, match="exists already"):
        apply_corrections(path, decided)
    apply_corrections(path, decided, done.path, force=True)
    again = apply_corrections(done.path, decided, tmp_path / f"again-{form.name}", rematch=True)
    assert (again.changed, again.matched.done) == (0, 3)
    drops = [replace(decided[0], decision="drop", label=""), *decided[1:]]
    shorter = apply_corrections(path, drops, done.path, force=True)
    assert (shorter.changed, shorter.dropped) == (2, 1)
    expected = after.drop(index=decided[0].index).reset_index(drop=True)
    pd.testing.assert_frame_equal(form.read(done.path), expected, check_dtype=False)


def test_a_new_label_in_a_jsonl_of_ascii_stays_ascii(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"label": "caf\\u00e9", "x": 1}\n{"x": 2, "label": null}\n{"label": "a", "label": "b"}\n')
    decided = [
        Correction(*one) for one in ((0, "café", "other", "thé"), (1, "", "other", "b"), (2, "b", "other", "café"))
    ]
    fixed = apply_corrections(path, decided, label="label").path.read_text()
    assert fixed == '{"label": "th\\u00e9", "x": 1}\n{"x": 2, "label": "b"}\n{"label": "a", "label": "caf\\u00e9"}\n'


def test_a_row_without_the_key_cannot_be_corrected_in_place(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"label": "a", "x": 1}\n{"x": 2}\n{"label": "b", "x": 2}\n')
    with pytest.raises(InputError, match=r'row 1 of .* has no "label"'):
        apply_corrections(path, [Correction(1, "", "other", "b")])
    assert list(tmp_path.iterdir()) == [path]


def test_the_other_parts_of_a_workbook_keep_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "t.xlsx"
    write_excel(table(), path)
    given = table()["label"][2]
    out = apply_corrections(path, [Correction(2, given, "other", "<fox> & co")]).path
    with zipfile.ZipFile(path) as a, zipfile.ZipFile(out) as b:
        assert a.namelist() == b.namelist()
        differ = [name for name in a.namelist() if a.read(name) != b.read(name)]
        sheet = b.read(differ[0]).decode()
    assert differ == ["xl/worksheets/sheet1.xml"]
    assert "conditionalFormatting" in sheet
    assert read_frame(out)["label"][2] == "<fox> & co"
    import openpyxl

    assert openpyxl.load_workbook(out).active["E5"].font.bold


def test_files_of_a_table_without_a_change_are_copied(tmp_path: Path) -> None:
    write_parts(table(), tmp_path / "parts")
    pattern = tmp_path / "parts" / "part-*.parquet"
    assert len(load(pattern).train) == ROWS
    given = table()["label"][41]
    out = apply_corrections(pattern, [Correction(41, given, "other", "fox")]).path
    assert out == tmp_path / "parts.fixed"
    same = [(tmp_path / "parts" / p.name).read_bytes() == p.read_bytes() for p in sorted(out.iterdir())]
    assert same == [True, False, True]
    assert read_frame(out)["label"][41] == "fox"


def test_files_with_other_columns_are_no_part_of_a_table(tmp_path: Path) -> None:
    table().to_parquet(tmp_path / "a.parquet")
    table().rename(columns={"size": "width"}).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b.parquet has other columns than a.parquet \(size, width\)"):
        load(tmp_path)


def test_a_class_that_the_saved_data_set_does_not_know_is_refused(tmp_path: Path) -> None:
    write_class_labels(table(), tmp_path / "saved", test=True)
    with pytest.raises(InputError, match='"fox" is not a class'):
        apply_corrections(tmp_path / "saved", [Correction(0, "2", "other", "fox")])
    out = apply_corrections(tmp_path / "saved", [Correction(0, "2", "other", "1")]).path
    import datasets

    fixed = datasets.load_from_disk(str(out))
    assert fixed["train"].features["label"].names == ["2", "1"]
    assert fixed["train"][0]["label"] == 1
    assert len(fixed["test"]) == 5


# --- in memory ------------------------------------------------------------------------------------------------


LIBRARIES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "polars": lambda frame: pytest.importorskip("polars").DataFrame(frame.to_dict("list")),
    "pyarrow": lambda frame: pytest.importorskip("pyarrow").Table.from_pandas(frame),
    "duckdb": lambda frame: pytest.importorskip("duckdb").from_arrow(LIBRARIES["pyarrow"](frame)),
    "datasets": lambda frame: pytest.importorskip("datasets").Dataset.from_pandas(frame).class_encode_column("label"),
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_tables_of_other_libraries_give_the_audit_of_the_data_frame(name: str) -> None:
    frame = table()
    found, expected = audit(LIBRARIES[name](frame), encoder="none"), audit(frame, encoder="none")
    assert found.classes == expected.classes == ("Dögs, big", "cat")
    np.testing.assert_allclose(found.p_error, expected.p_error)
    labels = found.apply(found.accepted(0.9))
    assert (labels != frame["label"].to_numpy()).sum() == (found.p_error >= 0.9).sum()


def test_a_table_that_is_not_computed_yet_says_what_to_call() -> None:
    with pytest.raises(InputError, match=r"LazyFrame.* Call \.collect\(\) first"):
        audit(LIBRARIES["polars"](table()).lazy())


# --- image folders --------------------------------------------------------------------------------------------


def write_images(folder: Path, table_name: str) -> list[str]:
    rng = np.random.default_rng(0)
    rows = []
    for k in range(40):
        wrong = k in (4, 9)
        pixels = rng.integers(0, 60, size=(8, 8, 3)) + (180 if k % 2 else 0)
        name = f"set{k % 3}/{k:02d}.png"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / name)
        kind = ["dark", "light"][(k % 2) ^ wrong]
        rows.append({"file_name": name, "caption": f"a picture that has the number {k}", "kind": kind, "source": "web"})
    frame = pd.DataFrame(rows[::-1])
    if table_name.endswith(".csv"):
        frame.to_csv(folder / table_name, index=False)
    elif table_name.endswith(".parquet"):
        frame.to_parquet(folder / table_name)
    else:
        frame.to_json(folder / table_name, orient="records", lines=True)
    return sorted(row["file_name"] for row in rows)


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl", "metadata.parquet"])
@pytest.mark.parametrize("part", ["", "train"])
def test_an_image_folder_with_a_metadata_table_comes_back_as_a_corrected_table(
    name: str, part: str, tmp_path: Path
) -> None:
    folder = tmp_path / "pics"
    files = write_images(folder / part, name)
    found = audit(folder, encoder="none", label="kind")
    assert found.config["label"] == "kind"
    wrong = {files.index("set1/04.png"), files.index("set0/09.png")}
    assert set(found.flagged["index"]) == wrong
    done = apply_corrections(folder, found.accepted(0.5), label="kind")
    assert done.path.name == f"pics.fixed{Path(name).suffix}"
    assert done.checked
    before, after = read_frame(folder / part / name), read_frame(done.path)
    pd.testing.assert_frame_equal(after.drop(columns="kind"), before.drop(columns="kind"))
    assert set(before["file_name"][before["kind"] != after["kind"]]) == {"set1/04.png", "set0/09.png"}


def test_a_metadata_table_whose_label_is_unclear_says_so(tmp_path: Path) -> None:
    write_images(tmp_path, "metadata.csv")
    frame = read_frame(tmp_path / "metadata.csv")
    frame.assign(camera=["a", "b", "c", "d"] * 10).to_csv(tmp_path / "metadata.csv", index=False)
    with pytest.raises(InputError, match="Say which holds the labels"):
        load(tmp_path)
    assert load(tmp_path, label="kind").train.classes == ("dark", "light")


def test_pictures_of_a_saved_data_set_may_differ_in_size(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rng = np.random.default_rng(0)
    shapes = [(20, 30), (40, 25)] * 15
    pictures = [
        Image.fromarray((rng.integers(0, 50, size=(*s, 3)) + 150 * (k % 2)).astype(np.uint8))
        for k, s in enumerate(shapes)
    ]
    rows = datasets.Dataset.from_dict({"image": pictures, "label": [k % 2 for k in range(30)]})
    rows = rows.cast_column("image", datasets.Image()).cast_column(
        "label", datasets.ClassLabel(names=["dark", "light"])
    )
    rows.save_to_disk(str(tmp_path / "pics"))
    data = load(tmp_path / "pics").train
    assert data.x.shape == (30, 3, 160, 160)
    assert load(rows, size=32).train.x.shape == (30, 3, 32, 32)
    assert data.classes == ("dark", "light")
    done = apply_corrections(tmp_path / "pics", [Correction(3, "light", "other", "dark")])
    fixed = datasets.load_from_disk(str(done.path))
    assert fixed["label"][3] == 0
    assert np.array_equal(np.asarray(fixed[3]["image"]), np.asarray(pictures[3]))


# --- what cannot be read --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ('{"a": 1}\n[1]\n', 'line 2, cannot be read: expected "{"'),
        ('{"a": 1, "label": "x"\n', "line 1, cannot be read"),
        ('{"a": 1}{"b": 2}\n', "Extra data"),
        ('{"a": "x\n"}\n', "line 1, cannot be read"),
        ("{" + '"a":{' * 3000, "nested too deeply"),
        ('{1: 2}\n', "line 1, cannot be read"),
    ],
)  # fmt: skip
def test_lines_that_are_no_objects_are_named(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(content)
    with pytest.raises(InputError, match=said.replace("{", r"\{")):
        load(tmp_path / "t.jsonl")


def test_halves_of_characters_do_not_reach_the_page(tmp_path: Path) -> None:
    lines = [f'{{"text": "\\ud800 so many words as {k}", "label": "{"ab"[k % 2]}"}}' for k in range(30)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    assert load(tmp_path / "t.jsonl").train.x[0].startswith("\ufffd so")


def test_only_the_first_sheet_of_a_workbook_is_read_and_the_others_are_named(tmp_path: Path) -> None:
    import openpyxl

    write_excel(table(), tmp_path / "t.xlsx")
    book = openpyxl.load_workbook(tmp_path / "t.xlsx")
    book.create_sheet("Prices")
    book.save(tmp_path / "t.xlsx")
    with pytest.warns(UserWarning, match=r'"Sheet" is read; the others are not: Prices'):
        assert len(load(tmp_path / "t.xlsx").train) == ROWS


def test_a_sheet_that_claims_a_row_beyond_the_last_is_refused(tmp_path: Path) -> None:
    write_excel(table(), tmp_path / "t.xlsx")
    out = io.BytesIO()
    with zipfile.ZipFile(tmp_path / "t.xlsx") as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            text = old.read(name)
            new.writestr(name, text.replace(b'r="82"', b'r="99999999999"') if "sheet1" in name else text)
    (tmp_path / "t.xlsx").write_bytes(out.getvalue())
    with pytest.raises(InputError, match="beyond 1,048,576"):
        load(tmp_path / "t.xlsx")
