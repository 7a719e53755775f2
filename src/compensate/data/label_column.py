"""The label of a table: which column holds it, and whether its cells are classes, quantities or several labels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compensate.data.columns import IDS, SENTENCE, analyze, is_nested, median_words
from compensate.data.features import TableEncoder
from compensate.data.labels import check_lengths, encode_labels, has_no_label, is_missing, missing_labels
from compensate.data.text import Tfidf
from compensate.errors import InputError, nearest

LABELS = ("label", "target", "class", "y")
"""Names that a label column has in most tables."""

LABEL_SETS = ("labels", "tags", "topics", "categories", "genres", "classes")
"""Names of columns of lists that hold the labels if no column is named as in `LABELS`."""

LABEL_WORDS = frozenset({"label", "labels", "target", "gold", "annotation"})
"""Words in the name of a label column, such as label_text or target_class."""

TOPICS = {
    *("category", "sentiment", "emotion", "intent", "topic", "outcome", "diagnosis", "species", "survived", "churn"),
    *("churned", "preferred", "preference", "relevance", "spam", "toxic", "toxicity", "stance", "polarity", "variety"),
    *("genre", "verdict", "answer", "response"),
}
"""Names that labels often have."""

QUANTITIES = frozenset({"price", "score"})
"""Names of quantities that are labels in some tables and features in others."""

MAX_RUNNERS_UP = 3
"""Other candidates that are reported when the label column was not named as in `LABELS`."""

MAX_INTEGER_CLASSES = 20
"""Up to this many distinct whole numbers are classes; more are classes only if they count up from 0 or 1 without a gap."""

MIN_LABEL_COLUMNS = 3
"""Columns of 0 and 1 that together are taken for label sets."""

MAX_ROWS_PREDICTED = 1000
"""Rows on which candidates are predicted from the other columns."""

_ANOTHER = "If another column holds the labels, name it: label=... (--label on the command line)."


class UnclearLabel(InputError):
    """Several columns could be the label, or none; ``candidates`` has the likeliest first.

    >>> UnclearLabel("which?", ("a", "b")).candidates
    ('a', 'b')
    """

    def __init__(self, message: str, candidates: Sequence[str]) -> None:
        super().__init__(message)
        self.candidates = tuple(candidates)


@dataclass(frozen=True)
class LabelChoice:
    """The label of a table.

    Attributes:
        columns: the label column; for ``form="columns"`` one column of 0 and 1 per label; none if it is unclear.
        form: "single" (one label per row), "joined" or "lists" (several in a cell), "columns" or "unclear".
        error: the error of a reader that needs one label per row.
        runners_up: other columns that could be the label.
        passed_over: columns named like a label that have fewer than two values, with the reason.

    >>> LabelChoice(("species",)).column
    'species'
    """

    columns: tuple[str, ...] = ()
    form: str = "single"
    error: InputError | None = None
    runners_up: tuple[str, ...] = ()
    passed_over: Mapping[str, str] = field(default_factory=dict)

    @property
    def several(self) -> bool:
        """Whether rows have several labels."""
        return self.form in ("joined", "lists", "columns")

    @property
    def column(self) -> str:
        """The column of a single label; raises `error` for any other form."""
        if self.error is not None:
            raise self.error
        return self.columns[0]


def decide_label(
    frame: pd.DataFrame,
    where: str,
    *,
    label: str | None = None,
    text: str | None = None,
    lists: Sequence[str] = (),
    missing: Sequence[str] | None = None,
    single: bool = False,
) -> LabelChoice:
    """The label of a table, and whether a row has one or several.

    Args:
        frame: the table without the columns that hold lists.
        where: the name of the table in errors.
        label: the label column, if the user named it.
        text: the text column.
        lists: the columns that hold lists.
        missing: cells that stand for a missing label.
        single: whether cells are known to hold one label each.

    >>> decide_label(pd.DataFrame({"id": [1, 2, 3], "tags": ["a;b", "b;c", "a;c"]}), "the table", label="tags").form
    'joined'
    """
    names = [str(c) for c in frame.columns]
    plain = any(_label_sign(name) == 0 for name in (*names, *lists))
    for name in lists:
        if name == label or (label is None and name.strip().lower() in (LABELS if plain else (*LABELS, *LABEL_SETS))):
            message = (
                f'the column "{name}" of {where} holds lists; expected one label a row, not several. Keep one label '
                "of each list, or name another column: label=... (--label on the command line)."
            )
            return LabelChoice((name,), "lists", InputError(message))
    runners_up: list[str] = []
    passed_over: dict[str, str] = {}
    if label is not None:
        column: str | None = choose_label(frame, label, where)
    else:
        column, candidates = find_label(frame, text)
        if column is None:
            unclear = _unclear(frame, candidates, where)
            binary = (
                tuple(n for n in names if {v.strip() for v in _values(frame[n], 5)} == {"0", "1"}) if candidates else ()
            )
            if len(binary) >= MIN_LABEL_COLUMNS and set(candidates) <= set(binary):
                return LabelChoice(binary, "columns", unclear)
            return LabelChoice((), "unclear", unclear)
        others = [n for n in _selectable(names, text) if n != column]
        if _label_sign(column) is None:
            runners_up = [n for n in others if _few_values(frame, n)]
        elif _label_sign(column) != 0:
            runners_up = [n for n in others if _label_sign(n) is not None and _could_be_label(frame[n])]
        counts = {n: _distinct(frame[n], 2) for n in names if n != column and _label_sign(n) is not None}
        passed_over = {n: "has one value" if count else "is empty" for n, count in counts.items() if count < 2}
    assert column is not None
    error = None if single else _several(frame[column], where, missing)
    form = "single" if error is None else "joined"
    return LabelChoice((column,), form, error, tuple(runners_up[:MAX_RUNNERS_UP]), passed_over)


def choose_label(frame: pd.DataFrame, label: str | None, where: str, text: str | None = None) -> str:
    """The label column: as given, or as `find_label` finds it; else `UnclearLabel` lists the candidates.

    >>> frame = pd.DataFrame({"size": ["1", "2", "3"], "Label": ["a", "b", "a"]})
    >>> choose_label(frame, None, "the table")
    'Label'
    """
    if label is None:
        column, candidates = find_label(frame, text)
        if column is None:
            raise _unclear(frame, candidates, where)
        return column
    names = [str(c) for c in frame.columns]
    if label not in names:
        raise InputError(f'{where} has no column "{label}"; {nearest(label, names)}')
    return label


def find_label(frame: pd.DataFrame, text: str | None = None) -> tuple[str | None, list[str]]:
    """The label column by its name, else the only predictable column of few values; and the candidates if there is not one.

    >>> find_label(pd.DataFrame({"size": ["1", "2", "3"], "sentiment": ["a", "b", "a"]}))
    ('sentiment', [])
    """
    names = _selectable([str(c) for c in frame.columns], text)
    signs = {name: _label_sign(name) for name in names}
    plain = [name for name in names if signs[name] == 0]
    if len(plain) == 1:  # even with one value: the error then names this column
        return plain[0], []
    for rank in range(4):
        candidates = [name for name in names if signs[name] == rank and _could_be_label(frame[name])]
        if candidates:
            return (candidates[0], []) if len(candidates) == 1 else (None, candidates)
    candidates = [name for name in names if _few_values(frame, name)]
    if len(candidates) > 1:
        candidates = _predictable(frame, candidates, text) or candidates
    return (candidates[0], []) if len(candidates) == 1 else (None, candidates)


def targets(
    cells: NDArray[Any], task: str | None, where: str, label: str, missing: frozenset[str] | None = None
) -> tuple[NDArray[Any], tuple[str, ...], str]:
    """Class numbers or quantities of the label cells, the class names (none for quantities), and the reason.

    >>> targets(np.array(["1.5", "2.5", "", "4"] * 20, dtype=object), "regression", "the table", "y")[2]
    'a quantity, as chosen'
    """
    if task not in (None, "classification", "regression"):
        raise InputError(f'task is "{task}"; choose classification or regression.')
    missing = missing_labels(cells) if missing is None else missing
    present = np.array([not has_no_label(v, missing) for v in cells])
    if not present.any():
        raise InputError(f'the label column "{label}" of {where} is empty. {_ANOTHER}')
    numbers = _numbers(cells[present])
    numeric = bool(np.isfinite(numbers).all())
    if task == "regression" and not numeric:
        bad = cells[present][~np.isfinite(numbers)][0]
        raise InputError(f'the label column "{label}" of {where} holds "{str(bad)[:80]}", which is not a number.')
    reason = "a quantity, as chosen" if task == "regression" else None
    if numeric and task is None:
        distinct = np.unique(numbers)
        count = len(distinct)
        if not (numbers == np.round(numbers)).all():
            reason = f"a quantity: {count:,} distinct numbers with decimals" if count > 10 else None
        elif count > MAX_INTEGER_CLASSES:
            counts_up = distinct[0] in (0, 1) and count == distinct[-1] - distinct[0] + 1
            if not counts_up or count > max(MAX_INTEGER_CLASSES, len(numbers) // 10):
                reason = f"a quantity: {count:,} distinct whole numbers"
    if reason is not None:
        target = np.full(len(cells), np.nan)
        target[present] = numbers
        return target, (), reason
    target, classes = encode_labels(cells, missing=tuple(missing))
    if len(classes) < 2:
        raise InputError(
            f'the label column "{label}" of {where} has the one value "{classes[0]}"; expected 2 or more. {_ANOTHER}'
        )
    return target, classes, f"{len(classes)} classes"


def joined_labels(cells: Sequence[Any] | NDArray[Any]) -> str | None:
    """The separator of labels, if the cells hold several labels each; ``"list"`` if they are lists.

    Cells are joined labels if most of their parts occur in other cells too: "action|comedy" and "comedy|drama" are,
    "Paris, France" and "Lima, Peru" are not.

    >>> joined_labels(["a;b", "b", "a;c", "c"]), joined_labels(["Paris, France", "Lima, Peru"])
    (';', None)
    """
    counts = Counter(_cell(cell) for cell in cells)
    listed = sum(count for cell, count in counts.items() if cell.startswith(("[", "{")) and cell.endswith(("]", "}")))
    if listed > len(cells) / 2:
        return "list"
    for sign in (";", "|", ",", "+", " / "):
        parts = {cell: [part.strip() for part in cell.split(sign)] for cell in counts}
        joined = [cell for cell in counts if len(parts[cell]) > 1]
        if len(joined) < 2 or sum(counts[cell] for cell in joined) < 0.02 * len(cells):
            continue
        holders = Counter(part for cell in counts for part in set(parts[cell]))
        labels = {part for cell in joined for part in parts[cell]}
        if all(labels) and np.mean([holders[part] > 1 for part in labels]) >= 0.8:
            return sign
    return None


def _several(column: pd.Series, where: str, missing: Sequence[str] | None) -> InputError | None:
    """The error about cells that hold several labels each; None if they hold one."""
    distinct = np.asarray(column.unique(), dtype=object)
    texts = missing_labels(distinct, missing)
    if np.isfinite(_numbers([v for v in distinct if not has_no_label(v, texts)])).all():
        return None
    check_lengths(column.to_numpy(object))
    cells = [v for v in column if not has_no_label(v, texts)]
    sign = joined_labels(cells)
    if sign is None:
        return None
    example = next(c for c in map(_cell, cells) if sign == "list" or sign in c)
    how = "as lists" if sign == "list" else f'joined by "{sign.strip()}"'
    dummies = "" if sign == "list" else f', in pandas frame["{column.name}"].str.get_dummies("{sign}")'
    return InputError(
        f'the label column "{column.name}" of {where} gives each row several labels {how}, such as "{example[:60]}"; one label a '
        f"row is expected. Make a column of 0 and 1 for each label{dummies}, and look at one of them at a time with label=... "
        '(--label on the command line); or take every combination for a class of its own: task="classification".'
    )


def _predictable(frame: pd.DataFrame, candidates: list[str], text: str | None) -> list[str]:
    """The candidates that the other columns predict better than the most frequent value does, by two standard errors."""
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.model_selection import cross_val_predict

    rows = np.random.default_rng(0).permutation(len(frame))[:MAX_ROWS_PREDICTED]
    sample = frame.iloc[np.sort(rows)].reset_index(drop=True)
    if text:
        texts = [str(t) for t in sample[text]]
        try:
            x = Tfidf.fit(texts, dims=20)(texts)
        except InputError:  # no word occurs twice
            return []
    else:
        encoder = TableEncoder.fit(sample, [c for c in analyze(sample) if c.name not in candidates])
        if not encoder.names:
            return []
        x = encoder.trees(sample)
    found = []
    for name in candidates:
        y, classes = encode_labels(sample[name].to_numpy(object))
        kept = (y >= 0) & (np.bincount(y[y >= 0], minlength=len(classes))[y] >= 3)
        y = y[kept]
        if len(np.unique(y)) < 2:
            continue
        model = ExtraTreesClassifier(30, min_samples_leaf=3, random_state=0)
        accuracy = np.mean(cross_val_predict(model, x[kept], y, cv=3) == y)
        chance = np.bincount(y).max() / len(y)
        if accuracy > chance + 2 * np.sqrt(chance * (1 - chance) / len(y)):
            found.append(name)
    return found


def _unclear(frame: pd.DataFrame, candidates: list[str], where: str) -> UnclearLabel:
    names = [str(c) for c in frame.columns]
    if not candidates:
        named = [name for name in names if _label_sign(name) is not None]
        if len(named) == 1 and _distinct(frame[named[0]]) < 2:
            return UnclearLabel(
                f'the label column "{named[0]}" of {where} has fewer than 2 values; expected 2 or more. If another column holds the '
                f"label, name it: label=... (--label on the command line); there are {', '.join(names)}.",
                names,
            )
        return UnclearLabel(
            f"{where} has no column named {', '.join(LABELS)} and none with few values; its columns are "
            f"{', '.join(names)}. Say which holds the label: label=... (--label on the command line).",
            names,
        )
    counts = {name: _distinct(frame[name]) for name in candidates}
    # Labels are mostly in the last column, else in the first.
    ranked = sorted(candidates, key=lambda name: (name != names[-1], name != names[0], counts[name]))
    shown = []
    for name in ranked[:8]:
        present = frame[name][[not is_missing(v) for v in frame[name]]].astype(str)
        values = ", ".join(value[:20] for value in present.value_counts().index[:3])
        shown.append(f"{name} ({counts[name]} values: {values}{', ...' if counts[name] > 3 else ''})")
    return UnclearLabel(
        f"the label of {where} could be any of {len(ranked)} columns: {'; '.join(shown)}{' ...' if len(ranked) > 8 else ''}. Say "
        f'which: label="{ranked[0]}" (--label {ranked[0]} on the command line).',
        ranked,
    )


def _label_sign(name: str) -> int | None:
    """How surely a name is that of a label: 0 (in `LABELS`) to 3 (energy_class and response_a may be features); None if it is not."""
    if name.strip().lower() in LABELS:
        return 0
    words = set(re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower().replace("_", " ").replace("-", " ").split())
    about_label = not words & {"id", "count", "confidence"}
    if about_label and words & LABEL_WORDS:
        return 1
    if len(words - {"is", "has"}) == 1 and words - {"is", "has"} <= TOPICS:
        return 2
    return 3 if about_label and words and (words & (TOPICS | {"class"}) or words <= QUANTITIES) else None


def _selectable(names: Sequence[str], text: str | None) -> list[str]:
    return [name for name in names if name != text and name.strip().lower() not in (*IDS, "split")]


def _could_be_label(column: pd.Series) -> bool:
    """Whether a column has two values or more, and is not made of mostly distinct sentences."""
    if _distinct(column) < 2:
        return False
    cells = [str(v) for v in column.iloc[:: max(1, len(column) // 2000)] if not is_missing(v)]
    return median_words(cells) < SENTENCE or len(set(cells)) <= len(cells) / 2


def _few_values(frame: pd.DataFrame, name: str) -> bool:
    few = max(5, min(100, len(frame) // 10))
    return 2 <= _distinct(frame[name], few) <= few


def _distinct(column: pd.Series, most: int | None = None) -> int:
    """The number of distinct values; above ``most`` it is not exact."""
    return len(_values(column, most))


def _values(column: pd.Series, most: int | None = None) -> set[str]:
    values = np.asarray((column.map(_cell) if is_nested(column) else column).unique(), dtype=object)
    values = values if most is None else values[: most + 21]  # there are fewer ways than 20 to write a missing value
    return {str(v) for v in values if not is_missing(v)}


def _numbers(cells: Sequence[Any] | NDArray[Any]) -> NDArray[np.float64]:
    return pd.to_numeric(pd.Series([str(v) for v in cells]), errors="coerce").to_numpy(float)


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple, set, np.ndarray)):
        return f"[{', '.join(map(str, value))}]"
    return str(value).strip()
