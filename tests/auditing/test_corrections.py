"""Decisions reach the right cells, and nothing else changes."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from review_pages import Item, Page

from compensate.auditing.content import digest_frame, digest_source, digest_text
from compensate.auditing.decisions import Correction, read_corrections, write_corrections
from compensate.auditing.page import payload
from compensate.auditing.result import apply_corrections
from compensate.auditing.source import read
from compensate.auditing.write_back import guard, unguard
from compensate.data.dataset import Estimate
from compensate.data.tables import read_frame
from compensate.errors import InputError

FORMULAS = ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1+1", "'=1", "''@x")
HARMLESS = ("cat", "-1", "+3.5e-4", "", "a=b", "'quoted'", "3-2", "’=x")


def test_formulas_get_an_apostrophe_and_harmless_text_none() -> None:
    assert [guard(text).replace("\t'", "\t").replace("\r'", "\r") for text in FORMULAS] == ["'" + t for t in FORMULAS]
    assert [guard(text) for text in HARMLESS] == list(HARMLESS)
    assert guard("=a; @b;c") == "'=a;' @b;c"


@given(st.text(alphabet="'=+-@ ;\t\r\n1.ea＝", max_size=10) | st.text(max_size=20))
def test_the_guard_can_always_be_undone(text: str) -> None:
    assert unguard(guard(text)) == text
    assert guard(text)[:1] not in "=@\t\r\n" or text == ""
    for part in re.split(r"[;\t\r\n]", guard(text))[1:]:  # wherever a line is taken apart
        assert part.strip(" ")[:1] not in ("=", "+", "-", "@")


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_page_guards_as_the_package_does() -> None:
    alphabet = "'=+-@ ;\t\n1a"
    texts = [*FORMULAS, *HARMLESS, *("".join(t) for n in (1, 2, 3) for t in itertools.product(alphabet, repeat=n))]
    script = (resources.files("compensate.auditing.page") / "assets" / "csv.js").read_text("utf-8")
    asked = f"{script}\nconsole.log(JSON.stringify({json.dumps(texts)}.map(guard)));"
    found = subprocess.run(["node", "-e", asked], capture_output=True, text=True, check=True).stdout
    assert json.loads(found) == [guard(text) for text in texts]


CELL = st.text(alphabet="ab\",;\t\n 'é=", max_size=6)


@settings(deadline=None, max_examples=150)
@given(
    rows=st.lists(
        st.tuples(CELL, st.sampled_from(["cat", "dog", "a,b", 'say "x"', "é"]), CELL), min_size=1, max_size=8
    ),
    delimiter=st.sampled_from([",", ";", "|"]),
    end=st.sampled_from(["\n", "\r\n"]),
    always=st.booleans(),
    blank=st.booleans(),
    last=st.booleans(),
    data=st.data(),
)
def test_the_corrected_table_differs_in_the_changed_cells_only(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str, str]],
    delimiter: str,
    end: str,
    always: bool,
    blank: bool,
    last: bool,
    data: st.DataObject,
) -> None:
    """The file is put together cell by cell, so what must come out is known byte by byte."""

    def raw(value: str, quoted: bool = always) -> str:
        special = quoted or any(sign in value for sign in (delimiter, '"', "\n", "\r"))
        return '"' + value.replace('"', '""') + '"' if special or not value else value

    def table(labels: list[str]) -> bytes:
        lines = [delimiter.join(("first", "label", "third"))]
        for (a, _, b), text in zip(rows, labels, strict=True):
            lines.append(delimiter.join((raw(a), text, raw(b))))
        return ((end * 2 if blank else end).join(lines) + (end if last else "")).encode()

    folder = tmp_path_factory.mktemp("table")
    old = [row[1] for row in rows]
    chosen = data.draw(st.lists(st.sampled_from(range(len(rows))), unique=True, max_size=4))
    new = {row: data.draw(st.sampled_from(["bird", "x\ny", f"u{delimiter}v", 'q"'])) for row in chosen}
    (folder / "a.csv").write_bytes(table([raw(label) for label in old]))
    written = [raw(new.get(i, label), quoted=raw(label).startswith('"')) for i, label in enumerate(old)]
    decided = [Correction(row, old[row], "other", label) for row, label in new.items()]
    applied = apply_corrections(folder / "a.csv", decided, label="label", delimiter=delimiter)
    assert applied.path.read_bytes() == table(written)
    assert applied.changed == len(new)
    assert applied.rows == len(rows)
    again = read_frame(applied.path, delimiter=delimiter)
    assert list(again["label"]) == [new.get(i, label) for i, label in enumerate(old)]


def pets(folder: Path) -> Path:
    path = folder / "pets.csv"
    path.write_bytes(b'\xef\xbb\xbfid,text,label\r\n7,meow,cat\r\n8,woof, cat\r\n9,"a, b","dog"\r\n10,hm,\r\n')
    return path


def test_apply_keeps_mark_line_ends_quotes_and_blanks(tmp_path: Path) -> None:
    path = pets(tmp_path)
    decided = [
        Correction(0, "cat", "reject", "cat"),
        Correction(1, "cat", "accept", "dog"),
        Correction(2, "dog", "other", "bird"),
        Correction(3, "", "accept", "cat"),
    ]
    applied = apply_corrections(path, decided, tmp_path / "out.csv")
    assert (applied.changed, applied.kept, applied.skipped, applied.rows) == (3, 1, 0, 4)
    assert (tmp_path / "out.csv").read_bytes() == (
        b'\xef\xbb\xbfid,text,label\r\n7,meow,cat\r\n8,woof, dog\r\n9,"a, b","bird"\r\n10,hm,cat\r\n'
    )
    before = path.read_bytes()
    with pytest.raises(InputError, match="exists already"):
        apply_corrections(path, decided, path)
    assert path.read_bytes() == before
    apply_corrections(path, decided, path, force=True)
    assert path.read_bytes() == (tmp_path / "out.csv").read_bytes()


def test_a_row_that_changed_since_the_audit_is_refused(tmp_path: Path) -> None:
    path = pets(tmp_path)
    with pytest.raises(InputError, match=r'row 2 holds "dog", not "cat"'):
        apply_corrections(path, [Correction(0, "cat", "accept", "dog"), Correction(2, "cat", "accept", "dog")])
    with pytest.raises(InputError, match=r"row 9, and .*pets\.csv has the rows 0 to 3"):
        apply_corrections(path, [Correction(9, "x", "accept", "y")])
    with pytest.raises(InputError, match="not a regular file"):
        apply_corrections(path, [Correction(0, "cat", "accept", "dog")], "/dev/null", force=True)
    assert not (tmp_path / "pets.fixed.csv").exists()


def decided_on(path: Path, rows: Sequence[int], label: str = "bird", column: str = "label") -> list[Correction]:
    """Decisions as the review page exports them."""
    frame = read_frame(path)
    digests = digest_frame(frame, column).tolist()
    return [
        Correction(row, frame[column][row].strip(), "other", label, digest_text(digests[row]), digest_source(path))
        for row in rows
    ]


def test_another_file_is_refused_even_where_its_labels_agree(tmp_path: Path) -> None:
    """A row inserted at the top: row 1 still holds the label that was reviewed, but it is another row."""
    path = pets(tmp_path)
    decided = decided_on(path, [1])
    shifted = tmp_path / "shifted.csv"
    shifted.write_bytes(path.read_bytes().replace(b"7,meow", b"6,purr,cat\r\n7,meow"))
    with pytest.raises(InputError, match=r"shifted\.csv .* is not what was reviewed .*--rematch"):
        apply_corrections(shifted, decided, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
    assert apply_corrections(path, decided, tmp_path / "out.csv").checked


def test_rows_are_found_by_content_when_asked(tmp_path: Path) -> None:
    path = pets(tmp_path)
    decided = decided_on(path, [0, 1, 2])
    shifted = tmp_path / "shifted.csv"
    shifted.write_bytes(b'id,text,label\n6,purr,cat\n9,"a, b",dog\n8,woof,cat\n10,hm,\n')
    applied = apply_corrections(shifted, decided, tmp_path / "out.csv", rematch=True)
    assert (tmp_path / "out.csv").read_bytes() == b'id,text,label\n6,purr,cat\n9,"a, b",bird\n8,woof,bird\n10,hm,\n'
    assert applied.matched is not None
    assert (applied.matched.found, applied.matched.moved, applied.matched.absent) == (2, 2, (0,))
    again = apply_corrections(tmp_path / "out.csv", decided, tmp_path / "twice.csv", rematch=True)
    assert again.matched is not None
    assert (again.changed, again.matched.done) == (0, 2)
    (tmp_path / "other.csv").write_text("id,text,label\n1,a,cat\n2,b,dog\n")
    with pytest.raises(InputError, match="none of the 3 rows"):
        apply_corrections(tmp_path / "other.csv", decided, tmp_path / "none.csv", rematch=True)
    bare = [replace(c, row="", source="") for c in decided]
    with pytest.raises(InputError, match="do not say what their rows hold"):
        apply_corrections(path, bare, tmp_path / "none.csv", rematch=True)


def test_equal_rows_are_matched_only_if_it_is_clear_which_is_meant(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\nsame,cat\nsame,dog\nsame,cat\n")
    changed = tmp_path / "b.csv"
    changed.write_text("text,label\nnew,cat\nsame,cat\nsame,dog\nsame,cat\n")
    applied = apply_corrections(changed, decided_on(path, [1]), tmp_path / "1.csv", rematch=True)
    assert (tmp_path / "1.csv").read_text().splitlines()[3] == "same,bird", "the only one with this label"
    applied = apply_corrections(changed, decided_on(path, [0, 2]), tmp_path / "2.csv", rematch=True)
    assert (tmp_path / "2.csv").read_text() == "text,label\nnew,cat\nsame,bird\nsame,dog\nsame,bird\n"
    applied = apply_corrections(changed, decided_on(path, [0, 1]), tmp_path / "3.csv", rematch=True)
    assert applied.matched is not None
    assert applied.matched.unclear == (0,), "two rows fit, and one was decided on"


def test_a_folder_that_changed_is_refused_and_its_images_are_found_by_content(tmp_path: Path) -> None:
    for k, name in enumerate(("cat/1.png", "cat/2.png", "dog/1.png")):
        (tmp_path / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (2, 2), 50 * k).save(tmp_path / "pets" / name)
    info = read(tmp_path / "pets", None, None, {}).source
    decided = [Correction(1, "cat", "accept", "dog", digest_text(int(info.row_digests[1])), info.digest)]
    assert apply_corrections(tmp_path / "pets", decided, tmp_path / "a.csv").changed == 1
    Image.new("L", (2, 2), 222).save(tmp_path / "pets" / "cat" / "0.png")
    with pytest.raises(InputError, match="is not what was reviewed"):
        apply_corrections(tmp_path / "pets", decided, tmp_path / "b.csv")
    apply_corrections(tmp_path / "pets", decided, tmp_path / "b.csv", rematch=True)
    written = (tmp_path / "b.csv").read_text()
    assert written == "file,label\ncat/0.png,cat\ncat/1.png,cat\ncat/2.png,dog\ndog/1.png,dog\n"


@pytest.mark.parametrize("name", ["a.csv", "a.tsv.gz", "a.parquet"])
def test_an_audit_and_apply_give_a_row_the_same_digest(tmp_path: Path, name: str) -> None:
    columns = {"split": ["train", "test", "train"] * 4, "n": [0.5 * i for i in range(12)], "label": ["x", "y"] * 6}
    frame = pd.DataFrame({"text": [f'say "{i}", twice' for i in range(12)], **columns})
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
        frame.to_parquet(tmp_path / name)
    else:
        frame.to_csv(tmp_path / name, index=False, sep="\t" if "tsv" in name else ",")
    data = read(tmp_path / name, None, None, {})
    expected = [c.row for c in decided_on(tmp_path / name, data.index.tolist())]
    assert [digest_text(int(digest)) for digest in data.source.row_digests[data.index]] == expected
    assert len(set(expected)) == len(data) == 8, "rows of the test part are not among them"
    assert data.source.digest == digest_source(tmp_path / name)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_page_exports_the_digests_of_row_and_source(tmp_path: Path) -> None:
    decided = decided_on(pets(tmp_path), [0, 2])
    items = tuple(Item(c.index, c.given, "=1;=2", 1.0, 0.9, True, digest=c.row) for c in decided)
    page = Page("pets.csv", "text", ("cat", "dog"), 9, items, Estimate(0.1, 0.0, 0.2), source=decided[0].source)
    script = (resources.files("compensate.auditing.page") / "assets" / "csv.js").read_text("utf-8")
    asked = f"""
        const data = {json.dumps(payload(page.data()))}, items = data.items, all = items.index.length;
        const givenOf = (i) => data.labels[items.given[i]];
        const store = {{ made: items.index.map(() => ({{ decision: "accept", label: "=1;=2" }})) }};
        {script}
        process.stdout.write(corrections());
    """
    found = subprocess.run(["node", "-e", asked], capture_output=True, text=True, check=True).stdout
    (tmp_path / "c.csv").write_text(found)
    assert read_corrections(tmp_path / "c.csv") == tuple(
        Correction(c.index, c.given, "accept", "=1;=2", c.row, c.source) for c in decided
    )


def test_tsv_with_stray_quotes_and_a_packed_file(tmp_path: Path) -> None:
    text = 'text\tlabel\nsay "hi\tpos\n6" tall\tneg\n'
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(text.encode()))
    applied = apply_corrections(tmp_path / "a.tsv.gz", [Correction(1, "neg", "accept", 'p"os')])
    assert applied.path.name == "a.fixed.tsv.gz"
    assert gzip.decompress(applied.path.read_bytes()).decode() == text.replace("neg", 'p"os')
    with pytest.raises(InputError, match="a tab or a line end"):
        apply_corrections(tmp_path / "a.tsv.gz", [Correction(1, "neg", "other", "a\tb")], tmp_path / "b.tsv")


def test_parquet_keeps_every_type(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {
        "word": pyarrow.array(["a", "b", None]),
        "kind": pyarrow.array(["x", "y", "x"]).dictionary_encode(),
        "number": pyarrow.array([1, 2, None], pyarrow.int8()),
        "value": pyarrow.array([0.5, 2.0, 3.25]),
    }
    table = pyarrow.table(columns).replace_schema_metadata({"made": "by hand"})
    parquet.write_table(table, tmp_path / "a.parquet")
    cases = {
        "word": ([Correction(2, "", "accept", "b")], ["a", "b", "b"]),
        "kind": ([Correction(0, "x", "other", "new")], ["new", "y", "x"]),
        "number": ([Correction(1, "2", "accept", "1")], [1, 1, None]),
        "value": ([Correction(1, "2", "other", "2.5")], [0.5, 2.5, 3.25]),
    }
    for name, (decided, expected) in cases.items():
        out = tmp_path / f"{name}.parquet"
        apply_corrections(tmp_path / "a.parquet", decided, out, label=name)
        found = parquet.read_table(out)
        assert found.schema.equals(table.schema, check_metadata=True)
        assert found.column(name).to_pylist() == expected
        assert found.drop_columns([name]).equals(table.drop_columns([name]))
    with pytest.raises(InputError, match='"many" is not of this type'):
        apply_corrections(tmp_path / "a.parquet", [Correction(0, "1", "other", "many")], tmp_path / "x", label="number")


def test_a_label_file_is_changed_by_image_not_by_line(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "c.png"):
        Image.new("L", (2, 2)).save(tmp_path / name)
    (tmp_path / "labels.csv").write_bytes(b"label,file\ncat,c.png\ndog,./a.png\ncat,b.png\n")
    applied = apply_corrections(tmp_path, [Correction(0, "dog", "accept", "cat")], tmp_path / "out.csv")
    assert applied.path.read_bytes() == b"label,file\ncat,c.png\ncat,./a.png\ncat,b.png\n"


def test_corrections_survive_their_file(tmp_path: Path) -> None:
    labels = (*FORMULAS, *HARMLESS, 'a "b", c', "two\nlines", "\u202eabc", "=" * 100_000)
    decided = tuple(Correction(i, label, "reject", label) for i, label in enumerate(labels))
    decided += tuple(replace(c, index=len(decided) + c.index) for c in decided_on(pets(tmp_path), [0, 2]))
    write_corrections(tmp_path / "c.csv", decided)
    assert read_corrections(tmp_path / "c.csv") == decided
    text = (tmp_path / "c.csv").read_bytes().decode()
    cells = [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]
    assert len(cells) == 6 * len(decided) + 6
    assert not [cell for cell in cells if cell[:1] in ("=", "@", "\t", "\r") or cell[:2] in ("+c", "-2")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("row,given\n", "no column index, decision, label"),
        ("", "is empty"),
        ("index,given,decision,label\n-1,a,skip,\n", 'row 1: the index is "-1"'),
        ("index,given,decision,label\n1,a,acept,b\n", 'did you mean "accept"'),
        ("index,given,decision,label\n1,a,other,\n", "other needs a label"),
        ("index,given,decision,label\n1,a,skip,\n\n1,a,skip,\n", "row 1 more than once"),
        ("index,given,decision,label,row,source\n1,a,skip,,1.2E+12,\n", r'digest under row is "1\.2E\+'),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_corrections(tmp_path / "c.csv")


def test_a_class_that_begins_with_a_tab_is_written_as_it_was(tmp_path: Path) -> None:
    from compensate.data import load

    path = tmp_path / "a.csv"
    path.write_text('text,label\none,"\t=1"\ntwo,"\t=1"\nthree, cat\nfour, cat\n')
    classes = load(path, text="").train.classes
    decided = (Correction(2, classes[1], "accept", classes[0]), Correction(0, classes[0], "accept", classes[1]))
    write_corrections(tmp_path / "c.csv", decided)
    apply_corrections(path, tmp_path / "c.csv", tmp_path / "b.csv")
    assert (tmp_path / "b.csv").read_text() == 'text,label\none,"cat"\ntwo,"\t=1"\nthree, \t=1\nfour, cat\n'
    assert list(read_frame(tmp_path / "b.csv")["label"].str.strip(" ")) == ["cat", "\t=1", "\t=1", "cat"]
