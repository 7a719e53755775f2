"""Each reader on small files of its format, and on damaged ones."""

from __future__ import annotations

import gzip
import json
import lzma
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from compensate import files
from compensate.auditing.source import read as audited
from compensate.auditing.write_back import open_labels
from compensate.data import (
    UNLABELED,
    from_hub,
    load,
    override_labels,
    read_folder,
    read_labels,
    read_npz,
    read_table,
    read_vectors,
    tables,
)
from compensate.data.labels import encode_labels
from compensate.data.load import is_hub
from compensate.data.tables import read_frame
from compensate.errors import InputError

RNG = np.random.default_rng(0)


def put(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


# Folders of images ----------------------------------------------------------------------------------------------------


def picture(path: Path, value: int, size: tuple[int, int] = (8, 6), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 255)).save(path)


def test_image_folder(tmp_path):
    for i in range(4):
        picture(tmp_path / ("dog", "cat")[i % 2] / f"{i}.png", i * 10)
    data = read_folder(tmp_path).train
    assert data.classes == ("cat", "dog")
    assert data.ids.tolist() == ["cat/1.png", "cat/3.png", "dog/0.png", "dog/2.png"]
    assert data.target.tolist() == [0, 0, 1, 1]
    assert data.x.shape == (4, 3, 6, 8)
    assert data.x[:, 0, 0, 0].tolist() == [10, 30, 0, 20]
    assert load(tmp_path, size=5).train.x.shape == (4, 3, 5, 5)


def test_images_with_a_label_file(tmp_path):
    for i in range(3):
        picture(tmp_path / f"{i}.png", i)
    (tmp_path / "labels.csv").write_text("file,label\n2.png,dog\n0.png,cat\n")
    data = load(tmp_path).train
    assert data.target.tolist() == [0, UNLABELED, 1]
    (tmp_path / "other.csv").write_text("file,label\n2.png,cat\n1.png,cat\n0.png,dog\n")
    assert load(tmp_path, labels=tmp_path / "other.csv").train.target.tolist() == [1, 0, 0]
    (tmp_path / "other.csv").write_text("file,label\n9.png,cat\n")
    with pytest.raises(InputError, match=r"9\.png"):
        load(tmp_path, labels=tmp_path / "other.csv")


def test_image_folder_damage(tmp_path):
    with pytest.raises(InputError, match="no folder"):
        read_folder(tmp_path / "x")
    with pytest.raises(InputError, match="no images"):
        read_folder(put(tmp_path / "a", {"b/c.txt": b""}))
    picture(tmp_path / "one/cat/1.png", 1)
    with pytest.raises(InputError, match="one class cat"):
        read_folder(tmp_path / "one")
    (tmp_path / "one/dog").mkdir()
    with pytest.raises(InputError, match="dog hold no images"):
        read_folder(tmp_path / "one")
    picture(tmp_path / "one/loose.png", 1)
    with pytest.raises(InputError, match=r"loose\.png.*labels\.csv"):
        read_folder(tmp_path / "one")
    with pytest.raises(InputError, match="none of the 2"):
        read_folder(put(tmp_path / "bad", {"a/1.png": b"?", "b/2.png": b"?"}))


# Arrays
def test_npz_and_npy(tmp_path):
    x, y = RNG.normal(size=(6, 3)), np.array([3, 1, 3, 1, 3, 3])
    np.savez(tmp_path / "a.npz", x=x, y=y)
    data = load(tmp_path / "a.npz").train
    assert np.allclose(data.x, x)
    assert data.classes == ("1", "3")
    assert data.target.tolist() == [1, 0, 1, 0, 1, 1]
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.array(["b", "a"] * 3))
    data = load(tmp_path / "x.npy", labels=tmp_path / "y.npy").train
    assert data.target.tolist() == [1, 0] * 3
    assert not load(tmp_path / "x.npy").train.labeled.any()
    assert load(tmp_path / "x.npy", labels=y).train.classes == ("1", "3")
    images = np.zeros((4, 5, 5), np.uint8)
    np.savez(tmp_path / "k.npz", x_train=images, y_train=y[:4], x_test=images[:2], y_test=y[:2])
    splits = read_npz(tmp_path / "k.npz")
    assert splits.test.x.shape == (2, 1, 5, 5)
    assert splits.test.target.tolist() == [1, 0]
    np.savez(tmp_path / "c.npz", images=np.zeros((2, 5, 5, 3), np.uint8), labels=[0, 1], classes=["ant", "bee"])
    data = read_npz(tmp_path / "c.npz").train
    assert data.x.shape == (2, 3, 5, 5)
    assert data.classes == ("ant", "bee")
    np.savez(tmp_path / "r.npz", x=x, y=x[:, 0])
    assert read_npz(tmp_path / "r.npz").train.regression
    np.save(tmp_path / "y.npy", x[:, 0])
    data = load(tmp_path / "x.npy", labels=tmp_path / "y.npy").train
    assert data.regression
    assert np.array_equal(data.target, x[:, 0])


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ({"z": [1]}, "holds z"),
        ({"x": [[1.0]], "data": [[1.0]]}, "keep one"),
        ({"x": [[1.0], [np.nan]], "y": [0, 1]}, "the first 1"),
        ({"x": [[1.0], [2.0]], "y": [0, 1, 2]}, "2 samples"),
        ({"x": np.full((2, 4, 4), 200.0), "y": [0, 1]}, "Divide by 255"),
        (np.array([{"a": 1}], dtype=object), "pickled objects"),
        (np.zeros(3), "shape"),
        (np.array([["a"]]), "expected numbers"),
        (b"PK\3\4broken", "damaged"),
    ],
)
def test_array_damage(tmp_path, content, hint):
    path = tmp_path / ("a.npy" if isinstance(content, np.ndarray) else "a.npz")
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.savez(path, **content) if isinstance(content, dict) else np.save(path, content, allow_pickle=True)
    with pytest.raises(InputError, match=hint):
        load(path)


# Labels from elsewhere
def base():
    return load("digits").train


def test_label_files_override(tmp_path):
    data = base()
    full = (np.arange(1797) * 7) % 10
    np.save(tmp_path / "full.npy", full)
    (tmp_path / "lines.txt").write_text("\n".join(map(str, full)))
    pd.DataFrame({"label": full}).to_csv(tmp_path / "column.csv", index=False)
    np.savez(tmp_path / "human.npz", clean_label=np.zeros(1797), worse_label=full)
    for name, key in [("full.npy", None), ("lines.txt", None), ("column.csv", None), ("human.npz", "worse_label")]:
        got = override_labels(data, tmp_path / name, key)
        assert np.array_equal(got.target, full[data.index]), name
        assert np.array_equal(got.index, data.index)
    assert np.array_equal(load("digits", labels=tmp_path / "full.npy").train.target, full[data.index])


def test_a_table_of_labels_overrides_its_rows_only(tmp_path):
    data = base()
    rows = data.index[[3, 10]]
    outside = np.setdiff1d(np.arange(1797), data.index)[0]
    (tmp_path / "some.csv").write_text(f"index,label\n{rows[0]},4\n{rows[1]},\n{outside},3\n")
    got = override_labels(data, tmp_path / "some.csv").target
    assert got[3] == 4
    assert got[10] == UNLABELED
    assert np.array_equal(np.delete(got, [3, 10]), np.delete(data.target, [3, 10]))


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ("index,label\n0,4\n0,5\n", "more than once"),
        ("index,label\n99999,4\n", r"outside 0\.\."),
        ("index,label\nx,4\n", "row numbers"),
        ("index,label\n0,owl\n", '"owl" of row 0'),
        ("id,label\n0,1\n", "no ids"),
        ("a,b\n0,1\n", "Say which"),
        ("label\n1\n2\n3\n", "expected one for each"),
    ],
)
def test_label_file_damage(tmp_path, content, hint):
    data = base().subset([0, 1])
    assert 0 in data.index
    (tmp_path / "labels.csv").write_text(content)
    with pytest.raises(InputError, match=hint):
        override_labels(data, tmp_path / "labels.csv")


# Tables ---------------------------------------------------------------------------------------------------------------


def test_semicolons_quotes_and_marks(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes('\ufefftext;label\n"a; b ""c""\nd";007\nx;7\n\n'.encode())
    data = read_table(path, text="text").train
    assert data.x.tolist() == ['a; b "c"\nd', "x"]
    assert set(data.classes) == {"007", "7"}, "cells are kept as written"


@pytest.mark.parametrize(
    ("content", "options", "hint"),
    [
        (b"a,b\n1,2\n", {"label": "lable"}, 'no column "lable"; known: a, b'),
        (b"review,sentiment\nx,2\n", {"label": "sentimnt"}, 'did you mean "sentiment"'),
        (b"a,label\n1,2\n", {"text": "b"}, 'no column "b"'),
        (b"a,b,c\n" + b"1,2,3\n3,4,5\n" * 9, {}, r"any of 3 columns: c .2 values"),
        (b"label,y,a\n1,2,3\n3,4,5\n", {}, r"any of 2 columns: label .*; y "),
        (b"a,b\n" + "".join(f"{i}.5,{i}.25\n" for i in range(200)).encode(), {}, "its columns are a, b"),
        (b"a,label\n1,x\n2,x\n", {}, 'one value "x"'),
        (b"a,label\n1,\n2,\n", {}, "is empty"),
        (b"label\nx\ny\n", {}, "nothing but the label"),
        (b"a,label\n", {}, "no rows"),
        (b"", {}, "is empty"),
        (b"a,label\n1,x,3,4\n2,y\n", {}, "line 2 has 4 cells, and the header 2"),
        (b'a,label\n"1\n\n",x\r\n\n2,y\n"3\n",z,4\n', {}, "begins in line 7 has 3 cells, and the header 2"),
        (b'a,label\n0,x\n"1,x\n2,y\n', {}, "a quote in the row that begins in line 3 is not closed"),
        (b'a,label\n"1\n",' + b"x" * 200_000 + b"\n1,2,3\n", {}, "Expected 2 fields in row 3, saw 3"),
        (b"a,label\n1,x\ncaf\xe9,y\n", {}, "line 3.*0xe9"),
        (b"a,label\n1,x\n2,y\n", {"task": "ranking"}, "ranking"),
        (b"a,label\n1,x\n2,y\n", {"task": "regression"}, '"x", which is not a number'),
        (b"a,label\n1,x\n2,y\n", {"encoding": "klingon"}, "klingon"),
        (b"a,label,split\n1,x,train\n2,y,later\n", {}, 'says "later"'),
        (b"a,label\n1,x\n2,y\n", {"delimiter": ";"}, r'holds no ";".*Leave the delimiter out'),
        ("a,label\n1,x\n2,y\n".encode("utf-16"), {}, "--encoding utf-16"),
        (b"PK\x03\x04\xff\xfe", {}, "Excel workbook"),
        (b"a,label\n1,x\n2,y\n", {"color": 1}, "color"),
        (b"text,label\n\xff\x00\x01\x02", {}, "zero bytes, which a text file does not have"),
        ("text,label\n\xe9,b\n".encode("latin-1"), {}, "--encoding cp1252"),
    ],
)
def test_table_damage(tmp_path, content, options, hint):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(InputError, match=hint):
        load(tmp_path / "t.csv", **options)


def test_other_encodings(tmp_path):
    (tmp_path / "t.csv").write_bytes("name,label\ncafé,x\nthé,y\n".encode("latin-1"))
    data = load(tmp_path / "t.csv", encoding="latin-1", text="name").train
    assert data.x.tolist() == ["café", "thé"]


@pytest.mark.parametrize(
    ("name", "content", "hint"),
    [
        ("a.parquet", b"PAR1 and no more", "damaged or not a Parquet file"),
        ("a.xlsx", b"PK\3\4", "damaged or not an Excel workbook"),
        ("a.csv.gz", gzip.compress(b"a,label\n1,x\n" * 1000, mtime=0)[:-12], "damaged"),
        ("a.xyz", b"?", "not in a known format"),
        ("a.csv", b"one\ntwo\n\x80", "line 3 holds the byte 0x80"),
    ],
)
def test_damaged_and_unknown_files(tmp_path, name, content, hint):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=hint):
        load(tmp_path / name)


# Hugging Face
def test_hub_texts():
    datasets = pytest.importorskip("datasets")
    columns = {"text": [f"it was film number {i}" for i in range(6)], "label": [0, 1, 2, 0, 1, 0]}
    names = datasets.ClassLabel(names=["bad", "fair", "good"])
    part = datasets.Dataset.from_dict(columns, datasets.Features(text=datasets.Value("string"), label=names))
    hidden = datasets.Dataset.from_dict({**columns, "label": [-1] * 6}, part.features)
    splits = load({"train": part, "validation": part})
    assert splits.train.classes == ("bad", "fair", "good")
    assert splits.train.target.tolist() == columns["label"]
    assert splits.train.x.tolist() == columns["text"]
    assert len(splits.validation) == 6
    assert load(part).test is None
    assert not from_hub(hidden, label="label").train.labeled.any()
    with pytest.raises(InputError, match="named train"):
        load({"all": part})


def test_the_name_of_a_hub_data_set_is_read_where_no_such_path_exists(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    part = datasets.Dataset.from_dict({"text": ["a fine film", "a dull film"] * 3, "label": ["good", "bad"] * 3})
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda name: asked.append(name) or {"train": part})
    monkeypatch.chdir(tmp_path)
    assert load("someone/films").train.classes == ("bad", "good")
    assert asked == ["someone/films"]
    assert all(map(is_hub, (part, {"train": part})))
    assert not any(map(is_hub, ({}, {"train": [1]}, part.to_pandas())))
    (tmp_path / "someone").mkdir()
    with pytest.raises(InputError, match="does not exist"):
        load("someone/films")


# Names and paths
@pytest.mark.parametrize(("data", "hint"), [("digit", 'did you mean "digits"'), ([1, 2], "load was given a list")])
def test_unknown_names_and_kinds(data, hint):
    with pytest.raises(InputError, match=hint):
        load(data)


def test_a_class_keeps_the_tab_that_all_its_cells_have():
    target, classes = encode_labels(["\t=1", " cat", "cat", "\t=1 ", "dog\n", "dog"])
    assert classes == ("\t=1", "cat", "dog"), "blanks never count, other signs where all cells have them"
    assert target.tolist() == [0, 1, 1, 0, 2, 2]
    assert encode_labels(["\t=1", "cat\n"], classes)[0].tolist() == [0, 1]


def test_a_text_of_megabytes_is_no_class():
    with pytest.raises(InputError, match=r"label of row 1 has 10,001 characters; .* 10,000 at most"):
        encode_labels(["a", "x" * 10_001])


def test_labels_that_are_lists_are_refused_and_other_lists_are_left_out(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"size": np.arange(20.0), "tags": [["a", "b"], []] * 10, "label": [["x"], ["y"]] * 10})
    frame.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r'column "label" of .* holds lists; expected one label a row'):
        load(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r'column "tags" of .* holds lists'):
        load(frame.assign(label=["x", "y"] * 10), label="tags")
    with pytest.raises(InputError, match=r'column "label" of .* holds lists'):
        load(frame.assign(label=[1, ["x"]] * 10))
    with pytest.warns(UserWarning, match="the columns tags hold lists or objects, which are not used"):
        data = load(frame.assign(label=["x", "y"] * 10)).train
    assert data.x.shape == (20, 1)


def test_a_table_has_a_bounded_number_of_columns():
    with pytest.raises(InputError, match="has 100,000 columns; a table with at most 10,000 is read"):
        load(pd.DataFrame(np.zeros((2, 100_000))))


def test_a_line_without_end_is_refused_before_it_is_read(tmp_path):
    size = 1 << 30
    for name, read in (("a.csv", load), ("a.txt", read_labels), ("v.txt", read_vectors)):
        with open(tmp_path / name, "wb") as out:
            out.write(b"word 1 2\n" if name == "v.txt" else b"text,label\n")
            out.truncate(size)  # a gigabyte of zeros, which takes no room on the disk
        begun = time.process_time()
        with pytest.raises(InputError, match="line of more than 16,777,216 bytes"):
            read(tmp_path / name)
        assert time.process_time() - begun < 5


@pytest.mark.parametrize("repeated", ["number", "text"])
def test_a_parquet_file_that_unpacks_without_end_is_refused(tmp_path, monkeypatch, repeated):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = 2_000_000 if repeated == "number" else 20_000
    value = pyarrow.array(["x" * 4000]) if repeated == "text" else pyarrow.array([1.5])
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(rows, np.int32)), value)
    dense = column.cast(pyarrow.string()) if repeated == "text" else column.dictionary_decode()
    parquet.write_table(pyarrow.table({"a": dense, "label": dense}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 40_000
    monkeypatch.setattr(files, "SMALL_FILE", 1 << 23)
    with pytest.raises(InputError, match="which no data set does"):
        load(tmp_path / "a.parquet")


# Files that are not what their names say
BEGINNINGS = {
    "a PNG image": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
    "a JPEG image": b"\xff\xd8\xff\xe0\x00\x10JFIF",
    "a GIF image": b"GIF89a\x80\xff",
    "a PDF document": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3",
    "a zip archive": b"PK\x03\x04\x80",
    "a gzip file": gzip.compress(b"text,label\n"),
    "an xz file": lzma.compress(b"text,label\n"),
    "a Parquet file": b"PAR1\x15\x04\x15\xff",
    "an older Office file": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
    "a numpy file": b"\x93NUMPY\x01\x00",
    "an SQLite database": b"SQLite format 3\x00\xff",
}


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
@pytest.mark.parametrize("kind", BEGINNINGS)
def test_a_file_of_another_kind_is_named_and_no_encoding_is_advised(tmp_path, kind, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(BEGINNINGS[kind] + bytes(40))
    with pytest.raises(InputError, match=f"begins like {kind}") as caught:
        load(path)
    assert "--encoding" not in str(caught.value)


HEADERLESS = {
    "numbers": lambda i: f"{i % 7}.5,{i % 3}.25,{'ab'[i % 2]}",
    "texts": lambda i: f"{'very good film' if i % 2 else 'a dull film'} {i},{'pos' if i % 2 else 'neg'}",
    "label first": lambda i: f"{i % 2},{i * 37 % 101},{i * 17 % 89}",
    "repeated values": lambda i: f"red,red,{'ab'[i % 2]}",
    "one column": lambda i: "cat" if i % 2 else "dog",
}
HEADED = {
    "names": ("size,color,label", lambda i: f"{i},red,{'ab'[i % 2]}"),
    "names of pandas": ("0,1,2", lambda i: f"{i % 5}.5,{i % 3},{i % 2}"),
    "years": ("town,1990,1991", lambda i: f"{'rome' if i % 2 else 'oslo'},{i},{i * 2}"),
    "consecutive years": ("1990,1991,1992", lambda i: f"{i},{i * 2},{i % 2}"),
    "a value as a name": ("text,spam", lambda i: f"{'very good film' if i % 2 else 'a dull film'} {i},{'spam' if i % 2 else 'ham'}"),
    "an index": (",0,1", lambda i: f"{i},{i % 5}.5,{i % 2}"),
}  # fmt: skip


@pytest.mark.parametrize("read", [load, read_labels])
@pytest.mark.parametrize("name", HEADERLESS)
def test_a_first_line_that_is_a_row_is_refused(tmp_path, name, read):
    path = tmp_path / "a.csv"
    path.write_text("\n".join(map(HEADERLESS[name], range(40))))
    with pytest.raises(InputError, match=r"first line .* looks like a row and not like names of columns"):
        read(path)


def test_who_names_a_column_says_that_the_first_line_holds_names(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("\n".join(map(HEADERLESS["label first"], range(40))))
    assert len(load(path, label="0").train) == 39
    assert len(read_labels(path, "0").cells) == 39


def test_an_excel_sheet_without_names_is_refused(tmp_path):
    pytest.importorskip("openpyxl")
    rows = pd.DataFrame([(i % 7 + 0.5, "ab"[i % 2]) for i in range(40)])
    rows.to_excel(tmp_path / "a.xlsx", index=False, header=False)
    with pytest.raises(InputError, match="looks like a row"):
        load(tmp_path / "a.xlsx")


@pytest.mark.parametrize("name", HEADED)
def test_names_of_columns_are_not_taken_for_a_row(tmp_path, name):
    header, row = HEADED[name]
    path = tmp_path / "a.csv"
    path.write_text("\n".join([header, *map(row, range(40))]))
    frame = read_frame(path)
    tables.check_header(frame, path)
    assert len(frame) == 40


def test_lists_without_a_label_are_refused_with_what_is_expected(tmp_path):
    path = tmp_path / "chat.jsonl"
    chat = [{"speaker": "user", "said": "hello"}]
    path.write_text("\n".join(json.dumps({"messages": chat}) for _ in range(40)))
    with pytest.raises(InputError, match=r'holds lists .*messages.*\{"text": "...", "label": "..."\}'):
        load(path)
    with pytest.raises(InputError, match="messages"):
        audited(path, None, None, {})
    path.write_text("\n".join(json.dumps({"messages": chat, "label": "ab"[i % 2]}) for i in range(40)))
    with pytest.warns(UserWarning, match="messages"), pytest.raises(InputError, match=r"lists.*messages"):
        load(path)


def test_lists_beside_columns_that_could_be_the_label_do_not_stop_the_reader(tmp_path):
    path = tmp_path / "a.jsonl"
    rng = np.random.default_rng(0)
    names = ("one", "two", "three")
    rows = [{"notes": ["a", "b"], **{name: "abc"[rng.integers(3)] for name in names}} for _ in range(60)]
    path.write_text("\n".join(map(json.dumps, rows)))
    with (
        pytest.warns(UserWarning, match="notes"),
        pytest.raises(InputError, match="could be any of 3 columns") as error,
    ):
        audited(path, None, None, {})
    assert "The columns notes hold lists or objects, which are not read" in str(error.value)
    assert "labels of one annotator: compensate consensus" in str(error.value)


# JSON lists and exports of annotation tools
def label_studio(text, labels, **more):
    chosen = lambda label: [{"from_name": "queue", "type": "choices", "value": {"choices": label}}]  # noqa: E731
    done = [{"completed_by": k + 1, "was_cancelled": False, "result": chosen([x])} for k, x in enumerate(labels)]
    return {"id": 1, "data": {"text": text, **more}, "annotations": done, "predictions": []}


def argilla(text, labels):
    said = [{"value": x, "status": "submitted", "user_id": f"u{k}"} for k, x in enumerate(labels)]
    return {"id": text, "fields": {"text": text}, "responses": {"label": said}, "suggestions": {}, "metadata": {}}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    ("make", "column"),
    [(lambda t, x: {"text": t, "label": x[0]}, "label"), (label_studio, "queue label"), (argilla, "label")],
)
def test_lists_and_exports_are_tables_and_only_labels_change(tmp_path, make, column, indent):
    rows = [make(f"text {i}", ["ab"[i % 2]]) for i in range(6)]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows, indent=indent))
    frame = read_frame(path)
    assert frame["text"].tolist() == [f"text {i}" for i in range(6)]
    assert frame[column].tolist() == list("ababab")
    for new in ({1: "c"}, {1: "c", 0: None}, {0: None, 1: None, 3: None, 5: None}, dict.fromkeys(range(6))):
        open_labels(path, column).write(tmp_path / "new.json", new)
        kept = [make(f"text {i}", [new.get(i) or "ab"[i % 2]]) for i in range(6) if new.get(i, "") is not None]
        assert json.loads((tmp_path / "new.json").read_text()) == kept


def test_several_annotators_and_suggestions_of_an_export_are_columns(tmp_path):
    path = tmp_path / "rows.json"
    tasks = [label_studio("one", ["a", "b"], channel="web"), label_studio("two", ["b"])]
    tasks[1]["predictions"] = [{"score": 0.7, "result": tasks[1]["annotations"][0]["result"]}]
    tasks[1]["annotations"].append({"completed_by": 2, "was_cancelled": True, "result": []})
    path.write_text(json.dumps(tasks))
    one, two = read_frame(path).astype(object).where(lambda f: f.notna(), None).to_dict("records")
    said = {"text": "one", "channel": "web", "queue annotator 1": "a", "queue annotator 2": "b"}
    assert one == said | dict.fromkeys(("queue label model", "queue label model confidence"))
    assert (two["queue annotator 1"], two["queue annotator 2"]) == ("b", None), "a cancelled annotation is none"
    assert (two["queue label model"], two["queue label model confidence"]) == ("b", 0.7)
    value = {"start": 0, "end": 3, "text": "one", "labels": ["PER"]}
    tasks[0]["annotations"][0]["result"] = [{"from_name": "name", "type": "labels", "value": value}]
    path.write_text(json.dumps(tasks))
    with pytest.raises(InputError, match=r"spans of texts.*CONLL2003"):
        read_frame(path)
    for text in ('[{"a": 1}, 2]', '[{"a": 1}', '{"a": [', "[1]"):
        path.write_text(text)
        with pytest.raises(InputError, match=r"cannot be read: .* Expected one JSON object on each line, or a list"):
            read_frame(path)
