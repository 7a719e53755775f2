"""Issues of the data beyond single labels: duplicates, outliers, leaking columns and more, from the features that an audit has anyway."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from compensate.auditing.issues.duplicates import find_pairs, nearest_rows, partners, shared_with
from compensate.auditing.issues.samples import (
    NEIGHBORS,
    class_issues,
    column_issues,
    empty_rows,
    missing_cells,
    odd_images,
    odd_texts,
    outliers,
)
from compensate.errors import InputError

if TYPE_CHECKING:
    from compensate.auditing.result import Audit
    from compensate.data.dataset import Dataset

__all__ = ["COLUMNS", "KINDS", "IssueKind", "find_issues", "records", "summary", "with_ids"]

COLUMNS = ("issue", "index", "other", "column", "score", "given", "detail")
"""Columns of the table of issues. ``index`` and ``other`` are rows of the source (``other`` of the test set for `test_duplicate`), or
empty. `with_ids` adds their files or ids."""


@dataclass(frozen=True)
class IssueKind:
    """A kind of issue: its singular and plural, the meaning of its score, and advice."""

    one: str
    many: str
    score: str
    advice: str


KINDS: dict[str, IssueKind] = {
    "conflicting_duplicate": IssueKind(
        "duplicate with another label", "duplicates with different labels", "similarity to the other row, 1 if equal",
        "Of equal rows with different labels at least one label is wrong, or the content does not decide it; of similar rows, look whether they "
        "differ in what decides the label.",
    ),
    "alike_classes": IssueKind(
        "pair of classes with nearly the same name", "pairs of classes with nearly the same name",
        "rows of the more frequent name, as a share of the rows of both",
        "The names differ only in case, spacing or one letter. If both mean the same, write all labels alike.",
    ),
    "test_duplicate": IssueKind(
        "row that is in the test set too", "rows that are in the test set too", "similarity to the row of the test set, 1 if equal",
        "A model has seen these rows of the test set in training, so that its test result is too good. Remove them from one of the two.",
    ),
    "duplicate": IssueKind(
        "duplicate", "duplicates", "similarity to the other row, 1 if equal",
        "Keep one of each group, or be sure that a split never parts a group.",
    ),
    "leaking_column": IssueKind(
        "column that tells the label", "columns that tell the label", "share of the labels beyond chance that the column predicts alone",
        "If the column is not known when a prediction is to be made, leave it out: --ignore.",
    ),
    "identifier_column": IssueKind(
        "identifier column", "identifier columns", "share of its values that are distinct",
        "It names rows and says nothing about them, so it is not used.",
    ),
    "missing_values": IssueKind(
        "column with missing values", "columns with missing values", "share of its cells that are empty",
        "Look whether cells are missing for a reason that has to do with the label.",
    ),
    "rare_class": IssueKind(
        "rare class", "rare classes", "rows of the class over what an equal share would be",
        "Few rows of a class make its labels hard to judge, and hard to learn.",
    ),
    "empty_text": IssueKind("empty text", "empty texts", "1", "A row without content says nothing about its label: remove it."),
    "empty_row": IssueKind("empty row", "empty rows", "1", "A row without content says nothing about its label: remove it."),
    "other_language": IssueKind(
        "text in another language", "texts in another language", "share of its words or letters that say so",
        "Look whether they belong here; an encoder of one language judges them badly.",
    ),
    "dark_image": IssueKind("dark image", "dark images", "how far below the limit, from 0 to 1", "Look whether anything can be seen."),
    "bright_image": IssueKind("bright image", "bright images", "how far above the limit, from 0 to 1", "Look whether anything can be seen."),
    "blank_image": IssueKind("blank image", "blank images", "how far below the limit, from 0 to 1", "They show nothing: remove them."),
    "outlier": IssueKind(
        "outlier", "outliers", "standard deviations beyond the usual distance to the nearest rows",
        "They are unlike all other rows: damaged, of another source, or merely rare.",
    ),
}  # fmt: skip
"""All kinds, the most important first."""


def find_issues(audit: Audit, test: Dataset | None = None) -> pd.DataFrame:
    """Finds the issues of the data of an audit: a table with `COLUMNS`, the most important kinds first.

    Args:
        audit: an audit with its data.
        test: a test set of the same kind; rows that are in both are reported.
    """
    data = audit.data
    if data is None:
        raise InputError(
            "this audit was loaded without its data, which the search for issues needs; run `audit` again."
        )
    kind = audit.provenance.shown or audit.kind
    labels = audit.names(audit.given)
    found: list[dict[str, Any]] = []

    def add(
        issue: str, score: float, detail: str, row: int | None = None, other: int | None = None, column: str = ""
    ) -> None:
        index, given = (None, "") if row is None else (int(audit.index[row]), labels[row])
        found.append(dict(zip(COLUMNS, (issue, index, other, column, score, given, detail), strict=True)))

    def row_name(rows: Dataset | Audit, i: int) -> str:
        number = f"row {int(rows.index[i])}"
        return number if rows.ids is None or not len(rows.ids) else f"{rows.ids[i]} ({number})"

    # Duplicates and outliers share the nearest rows, whose search takes most of the time.
    dense = audit.vectors is not None and not sparse.issparse(audit.vectors)
    near = nearest_rows(np.ascontiguousarray(audit.vectors, dtype=np.float32), NEIGHBORS) if dense else None
    # Quantities of duplicates nearly always differ without a contradiction.
    compared = np.zeros(len(data)) if audit.regression else audit.given
    for row, (other, similarity, differ) in partners(find_pairs(data, kind, audit.vectors, near), compared).items():
        described = "equal" if similarity == 1 else f"{similarity:.2f} similar"
        detail = f"{described} to {row_name(audit, other)}, labeled {labels[other]}"
        issue = "conflicting_duplicate" if differ else "duplicate"
        add(issue, similarity, detail, row, int(audit.index[other]))
    for row, other, similarity in () if test is None else shared_with(data, test, kind):
        assert test is not None
        detail = f"{row_name(test, other)} of the test set"
        add("test_duplicate", similarity, detail, row, int(test.index[other]))
    rows = [*outliers(audit.vectors, near)]
    if kind == "text":
        rows += odd_texts([str(text) for text in (data.x if np.ndim(data.x) == 1 else data.raw)])
    if kind == "image" and np.ndim(data.x) == 4:
        rows += odd_images(data.x)
    named = [] if audit.regression else [*class_issues(audit.given, audit.classes)]
    if isinstance(data.raw, pd.DataFrame) and (columns := data.source.columns):
        missing = missing_cells(data.raw, columns)
        rows += empty_rows(columns, missing) if kind == "table" else ()
        named += column_issues(data.raw, columns, missing, np.asarray(audit.given), len(audit.classes))
    for issue, row, score, detail in rows:
        add(issue, score, detail, row)
    for issue, name, score, detail in named:
        add(issue, score, detail, column=name)
    rank = {name: k for k, name in enumerate(KINDS)}
    sign = {"rare_class": 1}
    found.sort(key=lambda one: (rank[one["issue"]], sign.get(one["issue"], -1) * one["score"], one["index"] or 0))
    return issue_table(found)


def issue_table(rows: Iterable[Any]) -> pd.DataFrame:
    """A table of issues from its rows."""
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.astype({"index": "Int64", "other": "Int64", "score": "float64"})


def with_ids(issues: pd.DataFrame, audit: Audit) -> pd.DataFrame:
    """The table with the files or ids of rows, as ``id`` and ``other_id`` after their numbers, if the source has any."""
    if not audit.ids or "id" in issues:
        return issues
    ids = dict(zip(audit.index.tolist(), audit.ids, strict=True))
    own = issues["issue"] != "test_duplicate"  # where the other row is one of the test set
    named = issues.copy()
    for k, (name, rows) in enumerate({"id": issues["index"], "other_id": issues["other"].where(own)}.items()):
        named.insert(2 * k + 2, name, ["" if pd.isna(row) else ids.get(int(row), "") for row in rows])
    return named


def records(issues: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table of issues as dictionaries of plain types; None for a missing row."""
    columns = {name: issues[name].astype(object).where(issues[name].notna(), None).tolist() for name in COLUMNS}
    for name in ("index", "other"):
        columns[name] = [None if value is None else int(value) for value in columns[name]]
    return [dict(zip(COLUMNS, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def summary(issues: pd.DataFrame) -> str:
    """The number of issues of each kind in one line; empty if there are none.

    >>> kinds = ["duplicate"] * 4 + ["conflicting_duplicate"] * 2 + ["outlier"]
    >>> summary(pd.DataFrame({"issue": kinds, "score": [1, 1, 0.6, 0.7, 1, 1, 3.5]}))
    '4 equal and 2 similar rows, 2 of them with different labels; 1 outlier'
    """
    counts = {name: int(n) for name, n in issues["issue"].value_counts().items()}
    copies = issues[issues["issue"].isin(("duplicate", "conflicting_duplicate"))]
    equal = int((copies["score"] == 1).sum())
    conflicting = counts.pop("conflicting_duplicate", 0)
    counts.pop("duplicate", 0)
    parts = []
    if len(copies):
        similar = {"equal": equal, "similar": len(copies) - equal}
        rows = " and ".join(f"{n:,} {how}" for how, n in similar.items() if n)
        parts.append(f"{rows} rows" + (f", {conflicting:,} of them with different labels" if conflicting else ""))
    parts += [
        f"{counts[name]:,} {kind.one if counts[name] == 1 else kind.many}"
        for name, kind in KINDS.items()
        if name in counts
    ]
    return "; ".join(parts)
