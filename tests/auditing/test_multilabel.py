"""Rows with several labels: read in every form, judged, and written back with nothing else changed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from test_review_round_trip import TOPICS, memberships

from compensate.auditing.api import audit
from compensate.auditing.decisions import Correction, read_corrections, write_corrections
from compensate.auditing.findings import Address
from compensate.auditing.labels.sets import label_sets, labels_in, predict_labels
from compensate.auditing.learners import View
from compensate.auditing.result import apply_corrections
from compensate.auditing.source import read
from compensate.errors import InputError

NAMES = tuple(TOPICS)
TEXTS, GIVEN, WRONG = memberships()
ROWS = len(TEXTS)


def joined(sign: str = ";") -> list[str]:
    return [sign.join(np.array(NAMES)[row]) for row in GIVEN]


def written(folder: Path, form: str) -> Path:
    """A file of one of the forms, with quotes, spaces and line ends of its own."""
    path = folder / ("t.jsonl" if form in ("list", "json columns") else "t.csv")
    if form == "joined":
        lines = [f'"{text}",{cell}' for text, cell in zip(TEXTS, joined(), strict=True)]
        path.write_bytes(("text,labels\r\n" + "\r\n".join(lines) + "\r\n").encode())
    elif form == "columns":
        lines = [f"{text},{','.join(map(str, row))}" for text, row in zip(TEXTS, GIVEN.astype(int), strict=True)]
        path.write_text("comment," + ",".join(NAMES) + "\n" + "\n".join(lines))
    elif form == "list":
        rows = (
            {"labels": [name for name, on in zip(NAMES, row, strict=True) if on], "text": text}
            for text, row in zip(TEXTS, GIVEN, strict=True)
        )
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        lines = [
            json.dumps({"text": text, **dict(zip(NAMES, map(bool, row), strict=True))})
            for text, row in zip(TEXTS, GIVEN, strict=True)
        ]
        path.write_text("\n".join(lines) + "\n")
    return path


OPTIONS = {"columns": {"labels_columns": ",".join(NAMES)}, "json columns": {"labels_columns": list(NAMES)}}


def test_corrections_and_back_leave_every_byte_as_it_was(tmp_path: Path) -> None:
    for form in ("joined", "columns", "list"):
        path = written(tmp_path, form)
        row, j = 5, 1
        given = "present" if GIVEN[row, j] else "absent"
        other = "absent" if GIVEN[row, j] else "present"
        part = f"{'column' if form == 'columns' else 'label'} {row} {NAMES[j]}"
        there, back = tmp_path / f"a{path.suffix}", tmp_path / f"b{path.suffix}"
        apply_corrections(path, [Correction(0, given, "accept", other, part=part)], there, force=True)
        apply_corrections(there, [Correction(0, other, "accept", given, part=part)], back, force=True)
        same = path.read_bytes() == back.read_bytes()
        assert there.read_bytes() != path.read_bytes()
        assert same or sorted(path.read_text()) == sorted(back.read_text())  # a label goes back to the end of its list


def test_columns_of_zero_and_one_are_found_where_no_column_is_called_a_label(tmp_path: Path) -> None:
    found = read(written(tmp_path, "columns"), None, None, {}).parts
    assert found.names == NAMES
    assert found.form == "column"


def test_an_empty_cell_of_joined_labels_is_a_row_without_labels_and_of_a_column_is_not_judged(tmp_path: Path) -> None:
    assert labels_in("", ";") == []
    path = written(tmp_path, "columns")
    lines = path.read_text().split("\n")
    lines[1] = lines[1].rsplit(",", 1)[0] + ","
    path.write_text("\n".join(lines))
    found = audit(path, encoder="none", labels_columns=",".join(NAMES))
    assert len(found) == GIVEN.size - 1
    assert Address(0, NAMES[-1]) not in found.addresses


def test_arrays_and_lists_of_names_are_audited() -> None:
    found = audit(TEXTS, GIVEN.astype(int), encoder="none")
    assert found.flagged["index"].tolist()
    assert set(found.flagged["label"]) <= {"label 0", "label 1", "label 2"}
    with pytest.raises(InputError, match="several labels a sample"):
        found.to_frame()
    worst = found.suspects.iloc[0]
    assert f'{worst["index"]}</td><td style="text-align:left">{TEXTS[worst["index"]]}' in found._repr_html_()
    names = label_sets([["b", "a"], ["a"]])
    assert names is not None
    assert names.names == ("a", "b")
    assert names.given.tolist() == [[1, 1], [1, 0]]


def test_other_labels_of_a_row_tell_of_a_label_that_the_text_does_not_name() -> None:
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 300)
    given = np.stack([y, y, 1 - y], 1)
    wrong = np.zeros_like(given, bool)
    wrong[rng.choice(300, 20, replace=False), 0] = True
    given = np.where(wrong, 1 - given, given)
    noise = rng.normal(size=(300, 3)).astype(np.float32)
    log_q, weights, _ = predict_labels([View("noise", noise)], given, np.arange(300) % 5)
    assert ((log_q[..., 1] > log_q[..., 0])[:, 0] != given[:, 0])[wrong[:, 0]].mean() > 0.9
    assert max(weights, key=weights.__getitem__).startswith("other labels")


def test_corrections_of_parts_are_written_and_read_as_they_are(tmp_path: Path) -> None:
    made = (
        Correction(3, "absent", "accept", "present", part="label 1 =cmd()"),
        Correction(4, "present", "skip", "", part="label 2 b"),
    )
    write_corrections(tmp_path / "c.csv", made)
    assert read_corrections(tmp_path / "c.csv") == made
    assert "part" not in (tmp_path / "c.csv").read_text().split("\n")[1]


@pytest.mark.parametrize(
    ("part", "given", "label", "said"),
    [
        ("label 1 nosuch", "present", "absent", "differs from the reviewed data"),
        ("label 999 law", "present", "absent", "rows 0 to 159"),
        ("label x law", "present", "absent", "names no part"),
        ("tokens 1", "present", "absent", "names no part"),
        ("label 0 law", "present" if GIVEN[0, 1] else "absent", "maybe", "expected absent or present"),
    ],
)
def test_a_correction_that_fits_nothing_is_refused(
    tmp_path: Path, part: str, given: str, label: str, said: str
) -> None:
    path = written(tmp_path, "joined")
    with pytest.raises(InputError, match=said):
        apply_corrections(path, [Correction(0, given, "accept", label, part=part)], tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        ("text,a,b\nx y z,1,2\nq r s,0,1\n", {"labels_columns": "a,b"}, 'column "b" says "2"'),
        ("text,a,b\nx y z,1,0\nq r s,0,1\n", {"labels_columns": "a,c"}, 'no column "c"'),
        ("text,a,b\nx y z,1,0\nq r s,0,1\n", {"labels_columns": "a,a"}, "each of them once"),
        (
            "text,labels\none two three,a;b\nfour five six,b\nseven eight,a\nnine ten,b;a\n",
            {"label": "labels"},
            "5 rows or more",
        ),
    ],
)
def test_malformed_label_sets_are_refused_with_what_to_do(
    tmp_path: Path, content: str, options: dict, said: str
) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(InputError, match=said):
        audit(tmp_path / "t.csv", encoder="none", **options)


def test_values_beside_zero_and_one_are_no_label_sets() -> None:
    with pytest.raises(InputError, match="other values than 0 and 1"):
        audit(np.zeros((30, 2)), np.full((30, 3), 2))
