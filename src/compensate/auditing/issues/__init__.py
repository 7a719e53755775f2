"""More than labels: what else is wrong with the data, from the features and columns that an audit has anyway.

Duplicates with different labels come first: of two equal rows with two labels at least one is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from compensate.auditing.issues.duplicates import find_pairs, partners, shared_with
from compensate.auditing.issues.neighbors import nearest_rows
from compensate.auditing.issues.samples import (
    NEIGHBORS,
    alike_classes,
    column_issues,
    empty_rows,
    empty_texts,
    lost_cells,
    odd_images,
    other_languages,
    outliers,
    rare_classes,
)
from compensate.errors import InputError

if TYPE_CHECKING:
    from compensate.auditing.result import Audit
    from compensate.data.dataset import Dataset

__all__ = ["COLUMNS", "KINDS", "Kind", "find_issues", "records", "summary", "with_ids"]

COLUMNS = ("issue", "index", "other", "column", "score", "given", "detail")
"""Of the table of issues. ``index`` and ``other`` are rows of the source (of the test set, for what is shared with it), or empty. `with_ids` adds
their files or ids."""


@dataclass(frozen=True)
class IssueKind:
    """A kind of issue: what to call one and several of them, what the score is, and what to do."""

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
"""In the order in which they are worth looking at."""


def find_issues(audit: Audit, test: Dataset | None = None) -> pd.DataFrame:
    """Everything but labels that is wrong with the data of an audit, worst kinds first: a table with `COLUMNS`.

    Args:
        audit: with its data.
        test: a test set of the same kind; rows that are in both are found.
    """
    data = audit.data
    if data is None:
        raise InputError(
            "this audit was loaded without its data, which the search for issues needs; run `audit` again."
        )
    kind = audit.provenance.shown or audit.kind
    labels = audit.names(audit.given)

    def named(rows: Dataset | Audit, i: int) -> str:
        """A row by its number, and by its file or id if it has one."""
        here = int(rows.index[i])
        return f"row {here}" if rows.ids is None or not len(rows.ids) else f"{rows.ids[i]} (row {here})"

    found: list[dict[str, Any]] = []

    def add(issue: str, score: float, detail: str, row: int | None = None, other: Any = None, column: str = "") -> None:
        found.append(
            {
                "issue": issue,
                "index": None if row is None else int(audit.index[row]),
                "other": other,
                "column": column,
                "score": score,
                "given": "" if row is None else labels[row],
                "detail": detail,
            }
        )

    # Copies and outliers are looked for among the same nearest rows, which take most of the time.
    dense = audit.vectors is not None and not sparse.issparse(audit.vectors)
    near = nearest_rows(np.ascontiguousarray(audit.vectors, dtype=np.float32), NEIGHBORS) if dense else None
    # Quantities differ nearly always, which contradicts nothing.
    compared = np.zeros(len(data)) if audit.regression else audit.given
    for row, (other, similarity, differ) in partners(find_pairs(data, kind, audit.vectors, near), compared).items():
        said = "equal" if similarity == 1 else f"{similarity:.2f} similar"
        add(
            "conflicting_duplicate" if differ else "duplicate",
            similarity,
            f"{said} to {named(audit, other)}, labeled {labels[other]}",
            row,
            int(audit.index[other]),
        )
    if test is not None:
        for row, other, similarity in shared_with(data, test, kind):
            add(
                "test_duplicate",
                similarity,
                f"{named(test, other)} of the test set",
                row,
                int(test.index[other]),
            )
    if kind == "text":
        texts = [str(text) for text in data.x] if np.ndim(data.x) == 1 else [str(text) for text in data.raw]
        for name, finder in (("empty_text", empty_texts), ("other_language", other_languages)):
            for row, score, detail in finder(texts):
                add(name, score, detail, row)
    if kind == "image" and np.ndim(data.x) == 4:
        for name, row, score, detail in odd_images(data.x):
            add(name, score, detail, row)
    for row, score, detail in outliers(audit.vectors, near):
        add("outlier", score, detail, row)
    if isinstance(data.raw, pd.DataFrame) and (columns := data.source.columns):
        lost = lost_cells(data.raw, columns)
        for row, score, detail in empty_rows(columns, lost) if kind == "table" else ():
            add("empty_row", score, detail, row)
        for name, column, score, detail in column_issues(
            data.raw, columns, lost, np.asarray(audit.given), len(audit.classes)
        ):
            add(name, score, detail, column=column)
    if not audit.regression:
        for classes_of in (alike_classes, rare_classes):
            for name, column, score, detail in classes_of(audit.given, audit.classes):
                add(name, score, detail, column=column)
    return _table(found)


def _table(found: list[dict[str, Any]]) -> pd.DataFrame:
    rank = {name: k for k, name in enumerate(KINDS)}
    found.sort(
        key=lambda row: (
            rank[row["issue"]],
            row["score"] if row["issue"] == "rare_class" else -row["score"],
            row["index"] or 0,
        )
    )
    table = pd.DataFrame(found, columns=list(COLUMNS))
    return table.astype({"index": "Int64", "other": "Int64", "score": "float64"})


def with_ids(issues: pd.DataFrame, audit: Audit) -> pd.DataFrame:
    """The table with the files or ids of rows, as ``id`` and ``other_id`` after their numbers, if the source has any."""
    if not audit.ids or "id" in issues:
        return issues
    ids = dict(zip(audit.index.tolist(), audit.ids, strict=True))
    own = issues["issue"] != "test_duplicate"  # the other row is one of the test set there
    named = issues.copy()
    for place, (name, rows) in enumerate({"id": issues["index"], "other_id": issues["other"].where(own)}.items()):
        named.insert(2 * place + 2, name, ["" if pd.isna(row) else ids.get(int(row), "") for row in rows])
    return named


def records(issues: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table of issues in plain types: None where there is no row."""
    columns = {name: issues[name].astype(object).where(issues[name].notna(), None).tolist() for name in COLUMNS}
    for name in ("index", "other"):
        columns[name] = [None if value is None else int(value) for value in columns[name]]
    return [dict(zip(COLUMNS, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def summary(issues: pd.DataFrame) -> str:
    """What was found in one line; nothing if nothing was.

    >>> kinds = ["duplicate"] * 4 + ["conflicting_duplicate"] * 2 + ["outlier"]
    >>> summary(pd.DataFrame({"issue": kinds, "score": [1, 1, 0.6, 0.7, 1, 1, 3.5]}))
    '4 equal and 2 similar rows, 2 of them with different labels; 1 outlier'
    """
    counts = issues["issue"].value_counts()
    parts = []
    copies = issues[issues["issue"].isin(("duplicate", "conflicting_duplicate"))]
    equal, mixed = int((copies["score"] == 1).sum()), int(counts.get("conflicting_duplicate", 0))
    alike = {"equal": equal, "similar": len(copies) - equal}
    if len(copies):
        said = " and ".join(f"{n:,} {how}" for how, n in alike.items() if n)
        parts.append(f"{said} rows" + (f", {mixed:,} of them with different labels" if mixed else ""))
    for name, kind in KINDS.items():
        n = int(counts.get(name, 0))
        if n and name not in ("duplicate", "conflicting_duplicate"):
            parts.append(f"{n:,} {kind.one if n == 1 else kind.many}")
    return "; ".join(parts)
