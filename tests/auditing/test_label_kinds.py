"""A kind of label is one file: a toy kind that is registered here is read, judged, shown, stored and written back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import compensate
from compensate.auditing import labels
from compensate.auditing.api import audit
from compensate.auditing.decisions import read_corrections, write_corrections
from compensate.auditing.findings import Address
from compensate.auditing.labels.base import LabelKind, check_given
from compensate.auditing.page import page_of
from compensate.auditing.result import Audit
from compensate.auditing.write_back import TextEditor
from compensate.cli.audit import describe_data
from compensate.data.tables import read_frame
from compensate.errors import InputError

SOURCE = Path(compensate.__file__).parent


@dataclass(frozen=True, eq=False)
class Ratings(LabelKind):
    """One rating a row from 1 to 5, in the column stars of a CSV file; an address is a row and the column."""

    ratings: tuple[str, ...]

    form = "rating"
    pattern = re.compile(r"(\d+)")
    noun = "ratings"
    part_columns = (("column", str),)

    @classmethod
    def read(cls, data, labels, options, other):
        if not isinstance(data, (str, Path)) or "stars" not in read_frame(data).columns:
            return other(data, labels, options)
        rows = other(data, labels, {**options, "label": "stars", "task": "classification"})
        return replace(rows, parts=cls(tuple(read_frame(data)["stars"])))

    def describe(self, data, name: Callable[[str], str] = str) -> str:
        return f"ratings from {min(self.ratings)} to {max(self.ratings)}"

    def audit(self, data, judging):
        judged = judging.judge_classes(data)
        return replace(judged, addresses=tuple(Address(row, "stars") for row in judged.index.tolist()))

    def show(self, content, audit, row):
        return replace(content, votes=(("stars", self.ratings[audit.addresses[row].row]),))

    @classmethod
    def format(cls, address: Address) -> str:
        return f"{cls.form} {address.row}"

    @classmethod
    def parse(cls, text, row=-1):
        return Address(int(cls.match(text)[1]), "stars")

    @classmethod
    def write(cls, data, decided, out, reading):
        frame, editor = read_frame(data), TextEditor(data, reading.encoding, reading.delimiter)
        spans = editor.spans(frame, "stars")
        for c, (row, column) in decided:
            check_given(data, c, frame[column][row])
            if c.changes:
                editor.replace_cell(spans[row], c.label)
        editor.write(out)
        return len(frame)


@pytest.fixture
def ratings(tmp_path: Path) -> Iterator[tuple[Path, np.ndarray]]:
    """A file of ratings of which 12 are wrong, with the toy kind registered."""
    labels.KINDS.insert(0, Ratings)
    rng = np.random.default_rng(0)
    true = rng.integers(1, 6, 300)
    wrong = np.zeros(300, bool)
    wrong[rng.choice(300, 12, replace=False)] = True
    given = np.where(wrong, true % 5 + 1, true)
    x = np.eye(5)[true - 1] * 5 + rng.normal(size=(300, 5))
    frame = pd.DataFrame(x.round(3), columns=[f"x{j}" for j in range(5)]).assign(stars=given)
    frame.to_csv(tmp_path / "ratings.csv", index=False)
    yield tmp_path / "ratings.csv", wrong
    labels.KINDS.remove(Ratings)


def test_a_kind_of_label_is_one_file(tmp_path: Path, ratings: tuple[Path, np.ndarray]) -> None:
    path, wrong = ratings
    found = audit(path)
    assert found.label_kind is Ratings
    assert found.classes == tuple("12345")
    assert "ratings from 1 to 5" in describe_data(found.data)
    suspects = found.suspects
    assert list(suspects.columns[:4]) == ["index", "column", "given", "suggested"]
    assert wrong[suspects["index"].head(10)].all()
    content = page_of(found)["items"]["content"][0]
    assert content.votes == (("stars", suspects["given"][0]),)
    write_corrections(tmp_path / "corrections.csv", found.accepted(0.6))
    decided = read_corrections(tmp_path / "corrections.csv")
    assert decided[0].part == f"rating {decided[0].index}"
    done = found.apply(tmp_path / "corrections.csv", tmp_path / "fixed.csv")
    assert (done.rows, done.changed, done.checked) == (300, len(decided), True)
    before, after = (pd.read_csv(file) for file in (path, tmp_path / "fixed.csv"))
    assert np.flatnonzero(before["stars"] != after["stars"]).tolist() == [c.index for c in decided]
    assert before.drop(columns="stars").equals(after.drop(columns="stars"))
    again = Audit.load(found.save(tmp_path / "run"))
    assert (again.label_kind, again.addresses) == (Ratings, found.addresses)
    assert again.suspects.equals(suspects)


def test_other_data_are_read_as_before(ratings: tuple[Path, np.ndarray]) -> None:
    frame = pd.read_csv(ratings[0]).rename(columns={"stars": "label"})
    assert audit(frame).label_kind is labels.Classes


def test_no_module_but_the_labels_names_a_kind() -> None:
    names = {kind.__name__ for kind in labels.KINDS if kind not in (labels.Classes, labels.Votes)} | {"Ratings"}
    forms = {f'"{kind.form}"' for kind in labels.KINDS if kind.form not in ("", "label", "column")} | {'"rating"'}
    for path in SOURCE.rglob("*.py"):
        if path.parent != SOURCE / "auditing" / "labels":
            text = path.read_text(encoding="utf-8")
            imported = {
                name for name in names if re.search(rf"^\s*from compensate.auditing.labels.*\b{name}\b", text, re.M)
            }
            assert not imported, path
            assert "compensate.auditing" not in text or not {form for form in forms if f"== {form}" in text}, path


def test_a_kind_must_answer_every_question(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError):
        LabelKind().describe(compensate.data.digits())
    with pytest.raises(InputError, match="names no part"):
        labels.kind_of("rating 3")
