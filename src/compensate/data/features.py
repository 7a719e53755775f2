"""Features of table columns, for trees and for models that measure distances. Labels are not used.

scikit-learn does the work after `compensate.data.columns` has found the role of each column. (skrub's TableVectorizer was tried
instead: it takes whole numbers such as 1000 for years, one "unknown" cell turns a column of numbers into a text of 30 features,
infinities stay, and importing it takes seconds.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compensate.data.columns import ISO, Column, analyze, cell_texts, dates, numbers
from compensate.errors import InputError

MAX_ONE_HOT = 30
"""Values of a category column that are one-hot encoded; more values are described by their letters."""

LETTER_DIMENSIONS = 10
"""Features of a column of many values: leading directions of the letter groups in its values."""

LETTER_GROUPS: dict[str, Any] = {"analyzer": "char_wb", "ngram_range": (2, 4), "sublinear_tf": True}
"""How the letters of a value are counted."""

MAX_DEVIATIONS = 10.0
"""Standardized values are clipped here: one misplaced decimal point must not dominate a model."""

MAX_VALUE = 1e18
"""Numbers are clipped here, to keep their squares finite in 32 bits."""

ABSENT = "(missing)"
"""The value of an empty cell in a category column."""

DATE_PARTS = ("seconds", "year", "month", "day", "weekday", "hour")

Matrix = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class TableEncoder:
    r"""Turns table rows into features.

    .. math:: z = \frac{\operatorname{clip}(x - \mu, \pm 10 \sigma)}{\sigma} \text{ for a number,} \qquad
              z_k = \frac{[x = k]}{s} \text{ for a category}

    where :math:`\mu` and :math:`\sigma` are the mean and standard deviation of the column after missing values were
    replaced by its median, and :math:`s^2` is the sum of the variances of the indicators: a category weighs as much as a
    number in distances. A column with missing values when fitted gets an indicator of missing cells; a missing category is a
    category. A date becomes year, month, day, weekday, hour and seconds, each a number.

    >>> frame = pd.DataFrame({"age": ["30", "", "50"], "town": ["rome", "oslo", "rome"]})
    >>> encoder = TableEncoder.fit(frame)
    >>> encoder.names
    ('age', 'age is missing', 'town=oslo', 'town=rome')
    >>> encoder(frame).shape, encoder.trees(frame).shape
    ((3, 4), (3, 3))
    """

    columns: tuple[Column, ...]
    parts: tuple[Any, ...]

    @classmethod
    def fit(cls, frame: pd.DataFrame, columns: Sequence[Column] | None = None) -> TableEncoder:
        """Learn medians, deviations and categories from these rows; ``columns`` as returned by `analyze`."""
        columns = analyze(frame) if columns is None else tuple(columns)
        parts: list[_Part] = []
        for column in columns:
            if column.used:
                cells = frame[column.name]
                if column.role != "category":
                    parts.append(_Numbers(column, _Numbers.learn(column, cells)))
                else:
                    texts = cell_texts(cells, ABSENT)
                    kind = _Few if len(set(texts)) <= MAX_ONE_HOT else _Many
                    parts.append(kind(column, kind.learn(texts)))
        return cls(columns, tuple(part for part in parts if len(part.names)))

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each feature."""
        return tuple(name for part in self.parts for name in part.names)

    @property
    def tree_names(self) -> tuple[str, ...]:
        """The name of each feature for trees."""
        return tuple(name for part in self.parts for name in part.tree_names)

    def __call__(self, frame: pd.DataFrame) -> Matrix:
        """(N, features) of these rows, standardized."""
        return self._encode(frame, "linear")

    def trees(self, frame: pd.DataFrame) -> Matrix:
        """(N, features) of these rows, for trees."""
        return self._encode(frame, "trees")

    def state(self) -> dict[str, Any]:
        """Everything that was learned, as texts, numbers and arrays; `of` restores the encoder."""
        columns = [[c.name, c.role, c.reason, c.dates] for c in self.columns]
        positions = {column.name: k for k, column in enumerate(self.columns)}
        parts = [[type(part).__name__, positions[part.column.name], part.learned] for part in self.parts]
        return {"columns": columns, "parts": parts}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> TableEncoder:
        """An encoder from its `state`.

        >>> frame = pd.DataFrame({"age": ["30", "", "50"], "town": ["rome", "oslo", "rome"]})
        >>> encoder = TableEncoder.fit(frame)
        >>> bool((TableEncoder.of(encoder.state())(frame) == encoder(frame)).all())
        True
        """
        columns = tuple(Column(*column) for column in state["columns"])
        kinds = {kind.__name__: kind for kind in (_Numbers, _Few, _Many)}
        return cls(columns, tuple(kinds[kind](columns[k], learned) for kind, k, learned in state["parts"]))

    def _encode(self, frame: pd.DataFrame, form: str) -> Matrix:
        lost = [c.name for c in self.columns if c.used and c.name not in frame.columns]
        if lost:
            raise InputError(f"the table lacks the columns {', '.join(lost)}, which the features were made from.")
        blocks = [getattr(part, form)(frame[part.column.name]) for part in self.parts]
        return np.concatenate(blocks, axis=1) if blocks else np.empty((len(frame), 0), np.float32)


class _Part:
    """The features of one column: ``learned`` holds texts, numbers and arrays."""

    names: tuple[str, ...]
    tree_names: tuple[str, ...]

    def __init__(self, column: Column, learned: Mapping[str, Any]) -> None:
        self.column, self.learned = column, dict(learned)


class _Numbers(_Part):
    """A column of numbers, or the parts of a date."""

    def __init__(self, column: Column, learned: Mapping[str, Any]) -> None:
        super().__init__(column, learned)
        self.missing, self.kept = bool(learned["missing"]), np.asarray(learned["kept"], bool)
        self.medians, self.means, self.scales = (np.asarray(learned[name]) for name in ("medians", "means", "scales"))
        names = [column.name] if column.role == "number" else [f"{column.name} {part}" for part in DATE_PARTS]
        names = [name for name, kept in zip(names, self.kept, strict=True) if kept]
        self.names = self.tree_names = tuple(names + [f"{column.name} is missing"] * self.missing)

    @staticmethod
    def values(column: Column, cells: pd.Series) -> NDArray[np.float64]:
        """(N, 1) numbers, or (N, 6) parts of dates; NaN where a cell has none."""
        if column.role == "number":
            values = numbers(cells)[:, None]
        else:
            when = pd.Series(dates(cells, column.dates or ISO))
            seconds = (when - pd.Timestamp("1970-01-01")).dt.total_seconds()
            parts = [seconds, when.dt.year, when.dt.month, when.dt.day, when.dt.day_of_week, when.dt.hour]
            values = np.stack([part.to_numpy(dtype=np.float64, na_value=np.nan) for part in parts], axis=1)
        return np.clip(values, -MAX_VALUE, MAX_VALUE)

    @classmethod
    def learn(cls, column: Column, cells: pd.Series) -> dict[str, Any]:
        values = cls.values(column, cells)
        kept = np.array([len(np.unique(v[np.isfinite(v)])) > 1 for v in values.T])
        known = np.isfinite(values).any(0)
        medians = means = scales = np.empty(0)
        if kept.any():
            medians = np.nanmedian(values[:, kept], axis=0)
            filled = np.where(np.isnan(values[:, kept]), medians, values[:, kept])
            means, deviations = filled.mean(0), filled.std(0)
            # A deviation below the rounding error of the mean is that of a constant.
            rounding = len(filled) * np.finfo(np.float64).eps * np.abs(means)
            scales = np.where(deviations > rounding, deviations, 1.0)
        missing = bool(known.any() and np.isnan(values[:, known]).any())
        return {"missing": missing, "kept": kept, "medians": medians, "means": means, "scales": scales}

    def trees(self, cells: pd.Series, *, scaled: bool = False) -> Matrix:
        values = self.values(self.column, cells)
        blocks: list[Any] = []
        if self.kept.any():
            filled = np.where(np.isnan(values[:, self.kept]), self.medians, values[:, self.kept])
            if scaled:  # the parts of a date together weigh as much as a number
                z = np.clip((filled - self.means) / self.scales, -MAX_DEVIATIONS, MAX_DEVIATIONS)
                filled = z / np.sqrt(self.kept.sum())
            blocks.append(filled)
        if self.missing:
            blocks.append(np.isnan(values).all(1, keepdims=True))
        return np.concatenate(blocks, axis=1).astype(np.float32)

    def linear(self, cells: pd.Series) -> Matrix:
        return self.trees(cells, scaled=True)


class _Few(_Part):
    """A category of few values: one-hot for distances, one column for trees."""

    def __init__(self, column: Column, learned: Mapping[str, Any]) -> None:
        super().__init__(column, learned)
        self.rank = {value: k for k, value in enumerate(learned["values"])}
        self.place = {value: k for k, value in enumerate(sorted(learned["values"]))}
        self.names = tuple(f"{column.name}={value}" for value in self.place)
        self.tree_names = (column.name,)

    @staticmethod
    def learn(texts: NDArray[Any]) -> dict[str, Any]:
        values, counts = _by_frequency(texts)
        shares = counts / counts.sum()
        spread = float(np.sqrt((shares * (1 - shares)).sum()))
        return {"values": values, "scale": 1.0 / spread if spread > 0 else 1.0}

    def trees(self, cells: pd.Series) -> Matrix:
        return _ranks(cell_texts(cells, ABSENT), self.rank)

    def linear(self, cells: pd.Series) -> Matrix:
        one_hot = np.zeros((len(cells), len(self.place) + 1), np.float32)  # the last column is for new values
        columns = [self.place.get(text, -1) for text in cell_texts(cells, ABSENT)]
        one_hot[np.arange(len(cells)), columns] = float(self.learned["scale"])
        return one_hot[:, :-1]


class _Many(_Part):
    """A category of many values, described by their letters: similar names get similar features."""

    def __init__(self, column: Column, learned: Mapping[str, Any]) -> None:
        super().__init__(column, learned)
        self.rank = {value: k for k, value in enumerate(learned["values"])}
        self.letters = tfidf(learned["letters"], learned["idf"], **LETTER_GROUPS)
        self.directions, self.known = np.asarray(learned["directions"]), np.asarray(learned["known"])
        self.names = tuple(f"{column.name} letters {i}" for i in range(len(self.directions)))
        self.tree_names = (column.name, *self.names)

    @staticmethod
    def learn(texts: NDArray[Any]) -> dict[str, Any]:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        values, _ = _by_frequency(texts)  # each value counts once: its frequency is another feature
        letters = TfidfVectorizer(max_features=20_000, **LETTER_GROUPS)
        weights = letters.fit_transform(values)
        dims = max(1, min(LETTER_DIMENSIONS, *(size - 1 for size in weights.shape)))
        directions = TruncatedSVD(dims, random_state=0).fit(weights).components_
        known = weights @ directions.T
        rank = {value: k for k, value in enumerate(values)}
        rows = known[[rank[t] for t in texts]]
        return {
            "values": values, "letters": letters.get_feature_names_out().tolist(), "idf": letters.idf_,
            "directions": directions, "known": known, "mean": rows.mean(0),
            "scale": 1.0 / max(float(np.sqrt(rows.var(0).sum())), 1e-12),
        }  # fmt: skip

    def trees(self, cells: pd.Series) -> Matrix:
        texts = cell_texts(cells, ABSENT)
        return np.concatenate([_ranks(texts, self.rank), self._letters(texts)], axis=1).astype(np.float32)

    def linear(self, cells: pd.Series) -> Matrix:
        centered = self._letters(cell_texts(cells, ABSENT)) - np.asarray(self.learned["mean"])
        return (centered * float(self.learned["scale"])).astype(np.float32)

    def _letters(self, texts: NDArray[Any]) -> NDArray[np.float64]:
        new = list(dict.fromkeys(t for t in texts if t not in self.rank))
        rows = {**self.rank, **{value: len(self.known) + i for i, value in enumerate(new)}}
        fresh = self.letters.transform(new) @ self.directions.T if new else self.known[:0]
        return np.concatenate([self.known, fresh])[[rows[t] for t in texts]]


def tfidf(words: Sequence[str], idf: NDArray[np.float64], **options: Any) -> Any:
    """A fitted scikit-learn vectorizer with these words and weights.

    >>> tfidf(["a", "b"], np.array([1.0, 2.0]), token_pattern=r"\\w").transform(["b a"]).toarray().round(2)
    array([[0.45, 0.89]])
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(vocabulary=list(words), **options)
    vectorizer.idf_ = np.asarray(idf, np.float64)
    return vectorizer


def _by_frequency(texts: NDArray[Any]) -> tuple[list[str], NDArray[np.int64]]:
    """The values, the most frequent first, and their counts: a tree separates frequent from rare values by one split."""
    counts = pd.Series(texts).value_counts()
    ordered = sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))
    return [str(value) for value, _ in ordered], np.array([count for _, count in ordered])


def _ranks(texts: NDArray[Any], rank: Mapping[Any, int]) -> Matrix:
    """(N, 1) the rank of each value; new values come last."""
    return np.array([[rank.get(text, len(rank))] for text in texts], dtype=np.float32)
