"""Which column of a table is the label, and what kind of label it holds: classes, a quantity, or several labels a row."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compensate.data.columns import IDS, SENTENCE, Column, analyze, is_nested
from compensate.data.features import TableEncoder
from compensate.data.labels import check_lengths, encode_labels, has_no_label, is_missing, missing_labels
from compensate.errors import InputError, nearest

LABELS = ("label", "target", "class", "y")
"""Names that say it plainly."""

LABEL_SETS = ("labels", "tags", "topics", "categories", "genres", "classes")
"""Names of columns of lists that are the label if no column is called one plainly."""

LABEL_WORDS = frozenset({"label", "labels", "target", "gold", "annotation"})
"""A name with one of these words in it, such as label_text or target_class, comes next."""

TOPICS = frozenset(
    {
        *(
            "category",
            "sentiment",
            "emotion",
            "intent",
            "topic",
            "outcome",
            "diagnosis",
            "species",
            "survived",
            "churn",
            "churned",
            "preferred",
            "preference",
            "relevance",
        ),
        *("spam", "toxic", "toxicity", "stance", "polarity", "variety", "genre", "verdict", "answer", "response"),
    }
)
"""Names that labels often have."""

QUANTITIES = frozenset({"price", "score"})
"""Names of quantities that are often predicted, and as often features. A label with a better name comes first."""

RUNNERS_UP = 3
"""Other columns that are named where a label was chosen by a weaker sign than its plain name."""

FEW_CLASSES = 20
"""Up to this many whole numbers are classes; of more, only those that count from 0 or 1 without a gap."""

_ANOTHER = "If another column holds the labels, name it: label=... (--label on the command line)."

ROWS_TRIED = 1000
"""Rows on which it is tried whether a column can be predicted."""


class UnclearLabel(InputError):
    """Several columns could be the label, or none; ``candidates`` are those to choose from, the likeliest first.

    >>> UnclearLabel("which?", ("a", "b")).candidates
    ('a', 'b')
    """

    def __init__(self, message: str, candidates: Sequence[str]) -> None:
        super().__init__(message)
        self.candidates = tuple(candidates)


class SeveralLabels(InputError):
    """The cells of the label's ``column`` hold several labels each."""

    def __init__(self, message: str, column: str) -> None:
        super().__init__(message)
        self.column = column


def choose_label(frame: pd.DataFrame, label: str | None, where: str, text: str | None = None) -> str:
    """The label's column: as given; else by its name; else the only one with few values that can be predicted.

    In doubt an `UnclearLabel` lists what it could be.

    >>> frame = pd.DataFrame({"size": ["1", "2", "3"], "Label": ["a", "b", "a"]})
    >>> choose_label(frame, None, "the table")
    'Label'
    """
    names = [str(c) for c in frame.columns]
    if label is not None:
        if label not in names:
            raise InputError(f'{where} has no column "{label}"; {nearest(label, names)}')
        return label
    others = [name for name in names if name != text and name.strip().lower() not in (*IDS, "split")]
    few = max(5, min(100, len(frame) // 10))
    plain = [name for name in others if _plainly(name)]
    if len(plain) == 1:  # even with one value, so that this is what gets said
        return plain[0]
    candidates: list[str] = []
    for fits in SIGNS:
        candidates = [name for name in others if fits(name) and _could_be(frame[name])]
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            break
    else:
        candidates = [name for name in others if 2 <= _distinct(frame[name], few) <= few]
        if len(candidates) > 1:
            candidates = _predictable(frame, candidates, text) or candidates
        if len(candidates) == 1:
            return candidates[0]
    raise _unclear(frame, candidates, names, where)


def runners_up(frame: pd.DataFrame, label: str, text: str | None = None) -> tuple[str, ...]:
    """Other columns that could be the label, where nothing but a weaker sign than a plain name chose it.

    >>> runners_up(pd.DataFrame({"energy_class": ["a", "b"], "churned": [0, 1]}), "churned")
    ('energy_class',)
    """
    if _plainly(label):
        return ()
    names = [str(c) for c in frame.columns if c not in (label, text) and str(c).strip().lower() not in (*IDS, "split")]
    if _named(label):
        found = [name for name in names if _named(name) and _could_be(frame[name])]
    else:
        few = max(5, min(100, len(frame) // 10))
        found = [name for name in names if 2 <= _distinct(frame[name], few) <= few]
    return tuple(found[:RUNNERS_UP])


def passed_over(frame: pd.DataFrame, label: str) -> dict[str, str]:
    """Columns with a label's name that were not taken for the label, because they hold fewer than two values, and which of it.

    >>> passed_over(pd.DataFrame({"category": ["", ""], "priority": ["low", "high"]}), "priority")
    {'category': 'is empty'}
    """
    named = [n for n in frame.columns if n != label and _named(n)]
    counts = {name: _distinct(frame[name], 2) for name in named}
    return {name: "has one value" if count else "is empty" for name, count in counts.items() if count < 2}


def targets(
    cells: NDArray[Any], task: str | None, where: str, label: str, missing: frozenset[str] | None = None
) -> tuple[NDArray[Any], tuple[str, ...], str]:
    """The label cells as class numbers or as quantities, the names of the classes (none of quantities), and the reason.

    >>> targets(np.array(["1.5", "2.5", "", "4"] * 20, dtype=object), "regression", "the table", "y")[2]
    'a quantity, as chosen'
    """
    if task not in (None, "classification", "regression"):
        raise InputError(f'task is "{task}"; choose classification or regression.')
    check_lengths(cells)
    missing = missing_labels(cells) if missing is None else missing
    there = np.array([not has_no_label(v, missing) for v in cells])
    if not there.any():
        raise InputError(f'the label column "{label}" of {where} is empty. {_ANOTHER}')
    numbers = pd.to_numeric(pd.Series([str(v) for v in cells[there]]), errors="coerce").to_numpy(float)
    numeric = bool(np.isfinite(numbers).all())
    if task == "regression" and not numeric:
        bad = cells[there][~np.isfinite(numbers)][0]
        raise InputError(f'the label column "{label}" of {where} holds "{str(bad)[:80]}", which is not a number.')
    reason = (
        "a quantity, as chosen" if task == "regression" else _quantity(numbers) if numeric and task is None else None
    )
    if reason is not None:
        target = np.full(len(cells), np.nan)
        target[there] = numbers
        return target, (), reason
    if not numeric and task is None:
        _check_single(cells[there], where, label)
    target, classes = encode_labels(cells, missing=tuple(missing))
    if len(classes) < 2:
        raise InputError(
            f'the label column "{label}" of {where} has the one value "{classes[0]}"; expected 2 or more. {_ANOTHER}'
        )
    return target, classes, f"{len(classes)} classes"


def joined_labels(cells: Sequence[Any] | NDArray[Any]) -> str | None:
    """The sign between labels, if the cells hold several labels each; ``"list"`` if they are lists.

    Cells are joined labels if most of their parts occur in other cells too: "action|comedy" and "comedy|drama" are,
    "Paris, France" and "Lima, Peru" are not.

    >>> joined_labels(["a;b", "b", "a;c", "c"]), joined_labels(["Paris, France", "Lima, Peru"])
    (';', None)
    """
    distinct = Counter(_cell(cell) for cell in cells)
    listed = sum(count for cell, count in distinct.items() if cell.startswith(("[", "{")) and cell.endswith(("]", "}")))
    if listed > len(cells) / 2:
        return "list"
    for sign in (";", "|", ",", "+", " / "):
        joined = {cell: parts for cell in distinct if len(parts := _split(cell, sign)) > 1}
        rows = sum(distinct[cell] for cell in joined)
        if len(joined) < 2 or rows < 0.02 * len(cells):
            continue
        holders = Counter(part for cell in distinct for part in set(_split(cell, sign)))
        labels = {part for found in joined.values() for part in found}
        if all(labels) and np.mean([holders[part] > 1 for part in labels]) >= 0.8:
            return sign
    return None


def _check_single(cells: NDArray[Any], where: str, label: str) -> None:
    sign = joined_labels(cells)
    if sign is None:
        return
    example = next(c for c in map(_cell, cells) if sign == "list" or len(_split(c, sign)) > 1)
    how = "as lists" if sign == "list" else f'joined by "{sign.strip()}"'
    made = "" if sign == "list" else f', in pandas frame["{label}"].str.get_dummies("{sign}")'
    raise SeveralLabels(
        f'the label column "{label}" of {where} gives each row several labels {how}, such as "{example[:60]}"; one label a '
        f"row is expected. Make a column of 0 and 1 for each label{made}, and look at one of them at a time with label=... "
        '(--label on the command line); or take every combination for a class of its own: task="classification".',
        label,
    )


def _quantity(numbers: NDArray[np.float64]) -> str | None:
    """Why numbers are a quantity; none if they are classes."""
    distinct = np.unique(numbers)
    if not (numbers == np.round(numbers)).all():
        return f"a quantity: {len(distinct):,} distinct numbers with decimals" if len(distinct) > 10 else None
    if len(distinct) <= FEW_CLASSES:
        return None
    counts_up = distinct[0] in (0, 1) and len(distinct) == distinct[-1] - distinct[0] + 1
    if counts_up and len(distinct) <= max(FEW_CLASSES, len(numbers) // 10):
        return None
    return f"a quantity: {len(distinct):,} distinct whole numbers"


def _predictable(frame: pd.DataFrame, candidates: list[str], text: str | None) -> list[str]:
    """Of several candidates those that the rest of the table can predict better than always the same answer."""
    rows = np.random.default_rng(0).permutation(len(frame))[:ROWS_TRIED]
    sample = frame.iloc[np.sort(rows)].reset_index(drop=True)
    others = [c for c in analyze(sample, text=text) if c.name not in candidates]
    x = _inputs(sample, others, text)
    return [name for name in candidates if x is not None and _gain(x, sample[name]) > 0]


def _inputs(sample: pd.DataFrame, columns: Sequence[Column], text: str | None) -> Any:
    if text:
        from compensate.data.text import Tfidf

        try:
            return Tfidf.fit([str(t) for t in sample[text]], dims=20)([str(t) for t in sample[text]])
        except InputError:  # no word occurs twice
            return None
    encoder = TableEncoder.fit(sample, columns)
    return encoder.trees(sample) if encoder.names else None


def _gain(x: Any, column: pd.Series) -> float:
    """Out-of-fold accuracy above that of the most frequent value, less twice its standard error."""
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.model_selection import cross_val_predict

    y, classes = encode_labels(column.to_numpy(object))
    counts = np.bincount(y[y >= 0], minlength=len(classes))
    kept = (y >= 0) & (counts[y] >= 3)
    y = y[kept]
    if len(np.unique(y)) < 2:
        return 0.0
    model = ExtraTreesClassifier(30, min_samples_leaf=3, random_state=0)
    right = cross_val_predict(model, x[kept], y, cv=3) == y
    chance = np.bincount(y).max() / len(y)
    return float(right.mean() - chance - 2 * np.sqrt(chance * (1 - chance) / len(y)))


def _unclear(frame: pd.DataFrame, candidates: list[str], names: list[str], where: str) -> UnclearLabel:
    if not candidates:
        named = [name for name in names if _named(name)]
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
    values = {name: _distinct(frame[name]) for name in candidates}
    # Labels mostly stand last, else first.
    ranked = sorted(candidates, key=lambda name: (name != names[-1], name != names[0], values[name]))
    shown = "; ".join(f"{name} ({_sample(frame[name], values[name])})" for name in ranked[:8])
    return UnclearLabel(
        f"the label of {where} could be any of {len(ranked)} columns: {shown}{' ...' if len(ranked) > 8 else ''}. Say "
        f'which: label="{ranked[0]}" (--label {ranked[0]} on the command line).',
        ranked,
    )


def _sample(column: pd.Series, count: int) -> str:
    frequent = column[[not is_missing(v) for v in column]].astype(str).value_counts().index[:3]
    return f"{count} values: {', '.join(value[:20] for value in frequent)}{', ...' if count > 3 else ''}"


def _plainly(name: str) -> bool:
    return name.strip().lower() in LABELS


def _with_a_word(name: str) -> bool:
    return bool(LABEL_WORDS & _name_words(name)) and not {"id", "count", "confidence"} & _name_words(name)


def _by_topic(name: str) -> bool:
    return len(words := _name_words(name) - {"is", "has"}) == 1 and words <= TOPICS


def _weakly(name: str) -> bool:
    """Whether a name only suggests a label: energy_class and response_a may as well be features."""
    words = _name_words(name)
    return not {"id", "count", "confidence"} & words and (bool(words & (TOPICS | {"class"})) or words <= QUANTITIES)


SIGNS = (_plainly, _with_a_word, _by_topic, _weakly)
"""What a name says of a label, the surest first."""


def _named(name: str) -> bool:
    return any(fits(name) for fits in SIGNS)


def _could_be(column: pd.Series) -> bool:
    """Whether a column has two values or more, and no sentences of which most are distinct."""
    if _distinct(column) < 2:
        return False
    cells = [str(v) for v in column.iloc[:: max(1, len(column) // 2000)] if not is_missing(v)]
    words = np.median([cell.count(" ") + 1 for cell in cells])
    return bool(words < SENTENCE or len(set(cells)) <= len(cells) / 2)


def _name_words(name: str) -> set[str]:
    """The words of a name such as label_text or targetClass."""
    return set(re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower().replace("_", " ").replace("-", " ").split())


def _distinct(column: pd.Series, most: int | None = None) -> int:
    """The number of distinct values; more than ``most`` are not counted to the end."""
    values = np.asarray((column.map(_cell) if is_nested(column) else column).unique(), dtype=object)
    if most is not None and len(values) > most + 20:  # however many ways there are to write that a value is missing
        return most + 1
    return len({str(v) for v in values if not is_missing(v)})


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple, set, np.ndarray)):
        return f"[{', '.join(map(str, value))}]"
    return str(value).strip()


def _split(cell: str, sign: str) -> list[str]:
    return [part.strip() for part in cell.split(sign)]
