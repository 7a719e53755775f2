"""Columns that should not be there, and what a table lacks: identifiers, columns that tell the label, missing values; and odd classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compensate.auditing.arrays import Floats, Ints
from compensate.auditing.class_names import near_pairs
from compensate.data.columns import Column, numbers
from compensate.data.labels import is_missing

TELLS = 0.98
"""Share of the labels beyond chance that a column predicts alone, out of fold, from which on it is said to tell them. The best columns of
iris, wine, breast cancer and digits reach .93, .60, .77 and .19."""

LACKS = 0.05
"""Share of missing cells from which on a column is named."""

RARE = 0.1
"""A class is rare if it has less than this share of the rows that it would have if all had the same."""

LOOKED_AT = 5_000
"""Rows on which a column is tried."""

CONTENT = ("number", "category", "date", "text")
"""Roles of columns whose cells should have a value."""

Lost = Mapping[str, NDArray[np.bool_]]
"""By column, (N,) which cells are empty."""

ColumnFinding = tuple[str, str, float, str]
"""A kind of issue, the column or class, the score and what to say of it."""


def lost_cells(frame: pd.DataFrame, columns: tuple[Column, ...]) -> Lost:
    """By column that is used or may have content, (N,) which of its cells are empty."""
    return {c.name: _lost(frame[c.name]) for c in columns if c.used or c.role in CONTENT}


def column_issues(
    frame: pd.DataFrame, columns: tuple[Column, ...], lost: Lost, given: Ints, classes: int
) -> Iterator[ColumnFinding]:
    """Issues of the columns of a table whose labels are classes."""
    for column in columns:
        if column.role == "identifier":
            distinct = frame[column.name].nunique() / max(len(frame), 1)
            yield "identifier_column", column.name, float(distinct), f"{column.reason}; it is not used"
        if column.role == "label" and column.reason.startswith("repeats"):
            yield "leaking_column", column.name, 1.0, "repeats the label in other words; it is not used"
        if column.used and classes:
            share = predicts(frame[column.name], column, given, classes)
            if share >= TELLS:
                yield "leaking_column", column.name, share, f"predicts {share:.1%} of the labels alone, beyond chance"
        if column.role in CONTENT:
            share = float(lost[column.name].mean())
            if share >= LACKS:
                yield "missing_values", column.name, share, f"{share:.1%} of the cells are empty"


def empty_rows(columns: tuple[Column, ...], lost: Lost) -> Iterator[tuple[int, float, str]]:
    """Rows of a table without a value in any column that is used, as single rows are told."""
    used = [column.name for column in columns if column.used]
    if used:
        for i in np.flatnonzero(np.logical_and.reduce([lost[name] for name in used])).tolist():
            yield i, 1.0, f"no value in any of {len(used)} columns"


def rare_classes(given: Ints, names: tuple[str, ...]) -> Iterator[ColumnFinding]:
    """Classes with few rows; the score is their share of the rows over an equal share."""
    counts = np.bincount(given, minlength=len(names))
    equal = len(given) / max(len(names), 1)
    for c in np.flatnonzero(counts < RARE * equal).tolist():
        yield "rare_class", names[c], float(counts[c] / equal), f"{counts[c]:,} of {len(given):,} rows"


def alike_classes(given: Ints, names: tuple[str, ...]) -> Iterator[ColumnFinding]:
    """Pairs of classes with nearly the same name; the score is the share of the more frequent one among the rows of both.

    >>> list(alike_classes(np.array([0, 0, 0, 1]), ("billing", "Billing")))
    [('alike_classes', 'Billing', 0.75, '"Billing" (1 row) and "billing" (3 rows)')]
    """
    counts = np.bincount(given, minlength=len(names))
    there = np.flatnonzero(counts).tolist()
    for pair in near_pairs([names[c] for c in there]):
        rare, often = sorted((there[k] for k in pair), key=lambda c: int(counts[c]))
        said = [f'"{names[c]}" ({counts[c]:,} row{"s" * int(counts[c] > 1)})' for c in (rare, often)]
        yield "alike_classes", names[rare], float(counts[often] / (counts[rare] + counts[often])), " and ".join(said)


def predicts(column: pd.Series, what: Column, given: Ints, classes: int) -> float:
    """The share of labels beyond the most frequent one that the column predicts alone, out of fold."""
    from sklearn.tree import DecisionTreeClassifier

    rows = np.random.default_rng(0).permutation(len(given))[:LOOKED_AT]
    y = given[rows]
    cells = column.iloc[rows]
    x = numbers(cells) if what.role == "number" else pd.factorize(cells.astype(str))[0].astype(np.float64)
    x = np.where(np.isfinite(x), x, -1e9)[:, None]
    right, fold = 0, np.arange(len(rows)) % 5
    for k in range(5):
        learn = fold != k
        if what.role == "number":
            tree = DecisionTreeClassifier(min_samples_leaf=2, max_leaf_nodes=max(8, 2 * classes), random_state=0).fit(
                x[learn], y[learn]
            )
            right += int((tree.predict(x[~learn]) == y[~learn]).sum())
        else:
            right += int((_by_value(x[learn, 0], y[learn], x[~learn, 0], classes) == y[~learn]).sum())
    chance = np.bincount(y, minlength=classes).max() / len(y)
    return float((right / len(y) - chance) / max(1 - chance, 1e-9))


def _by_value(x: Floats, y: Ints, held: Floats, classes: int) -> Ints:
    """The most frequent class of each value; of a new value, the most frequent class of all."""
    counts = np.zeros((int(max(x.max(), held.max())) + 2, classes), np.int64)
    np.add.at(counts, (x.astype(np.int64), y), 1)
    found = counts[held.astype(np.int64)]
    return np.where(found.sum(1) > 0, found.argmax(1), np.bincount(y, minlength=classes).argmax())


def _lost(column: pd.Series) -> NDArray[np.bool_]:
    """(N,) which cells are empty."""
    codes, values = pd.factorize(column)
    lost = np.array([*(is_missing(v) for v in np.asarray(values, dtype=object)), True])
    return np.asarray(lost[codes], dtype=bool)
