"""Features from a table's columns, for trees and for models that measure distances. Labels play no part in them.

scikit-learn does the work once `compensate.data.columns` has said what each column is. (skrub's TableVectorizer was tried in
its place: it takes whole numbers such as 1000 for years, one "unknown" cell makes a column of numbers a text of 30 features,
infinities stay, and importing it takes seconds.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compensate.data.columns import Column, analyze, dates, numbers
from compensate.data.dataset import Dataset
from compensate.data.labels import is_missing
from compensate.errors import InputError

MOST_CATEGORIES = 30
"""Values of a category column that are one-hot; a column of more values is described by the letters of its values."""

LETTERS = 10
"""Features of a column of many values: leading directions of the letter groups in its values."""

LETTER_GROUPS: dict[str, Any] = {"analyzer": "char_wb", "ngram_range": (2, 4), "sublinear_tf": True}
"""How the letters of a value are counted."""

FAR = 10.0
"""Standardized values are cut at this many deviations: one slip of the decimal point must not rule a model."""

LARGEST = 1e18
"""Numbers are cut here, so that their squares are still finite in 32 bits."""

ABSENT = "(missing)"
"""The value of an empty cell in a category column."""

Matrix = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class TableViews:
    """A table as numbers, twice.

    Attributes:
        trees: (N, F) for trees: numbers as they are, a column per category, by its frequency.
        linear: (N, G) for linear models, neighbors and networks: standardized; one-hot categories.
        tree_names, linear_names: what each feature is.
        columns: the role of every column of the table.

    >>> TableViews(np.zeros((2, 1)), np.zeros((2, 3)), ("town",), ("town=a", "town=b", "town=c"), ()).linear.shape
    (2, 3)
    """

    trees: Matrix
    linear: Matrix
    tree_names: tuple[str, ...]
    linear_names: tuple[str, ...]
    columns: tuple[Column, ...]


@dataclass(frozen=True, eq=False)
class TableEncoder:
    r"""Turns table rows into features.

    .. math:: z = \frac{\operatorname{clip}(x - \mu, \pm 10 \sigma)}{\sigma} \text{ of a number,} \qquad
              z_k = \frac{[x = k]}{s} \text{ of a category}

    where :math:`\mu` and :math:`\sigma` are the mean and standard deviation of the column after missing values were
    replaced by its median, and :math:`s^2` is the sum of the variances of the indicators: a category weighs as much as a
    number in distances. A column that had missing values when fitted gets a feature that is 1 where it is missing;
    a missing category is a category. A date becomes year, month, day, weekday, hour and seconds, each a number.

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
        """Learn medians, deviations and categories from these rows; ``columns`` as `analyze` gives them."""
        columns = analyze(frame) if columns is None else tuple(columns)
        parts = [part for column in columns if column.used for part in _parts(frame[column.name], column)]
        return cls(columns, tuple(part for part in parts if len(part.names)))

    @property
    def names(self) -> tuple[str, ...]:
        """What each feature is."""
        return tuple(name for part in self.parts for name in part.names)

    @property
    def tree_names(self) -> tuple[str, ...]:
        """What each feature for trees is."""
        return tuple(name for part in self.parts for name in part.tree_names)

    def __call__(self, frame: pd.DataFrame) -> Matrix:
        """(N, features) of these rows, standardized."""
        return self._encode(frame, "linear")

    def trees(self, frame: pd.DataFrame) -> Matrix:
        """(N, features) of these rows, for trees."""
        return self._encode(frame, "trees")

    def state(self) -> dict[str, Any]:
        """Everything that was learned, as texts, numbers and arrays; `of` makes an encoder of it again."""
        columns = [[c.name, c.role, c.reason, c.dates] for c in self.columns]
        places = {column.name: place for place, column in enumerate(self.columns)}
        parts = [[type(part).__name__, places[part.column.name], part.state()] for part in self.parts]
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
        return cls(columns, tuple(kinds[kind](columns[place], part) for kind, place, part in state["parts"]))

    def _encode(self, frame: pd.DataFrame, way: str) -> Matrix:
        lost = [c.name for c in self.columns if c.used and c.name not in frame.columns]
        if lost:
            raise InputError(f"the table lacks the columns {', '.join(lost)}, which the features were made from.")
        blocks = [getattr(part, way)(frame[part.column.name]) for part in self.parts]
        return np.concatenate(blocks, axis=1) if blocks else np.empty((len(frame), 0), np.float32)


def table_views(data: Dataset) -> TableViews:
    """The columns of a data set that was read from a table, as numbers; the text and the label are not among them.

    >>> from compensate.data import from_frame
    >>> frame = pd.DataFrame({"size": [1.0, 2.5, 3.0], "town": ["rome", "oslo", "rome"], "label": ["a", "b", "a"]})
    >>> views = table_views(from_frame(frame, "the table").train)
    >>> views.tree_names, views.linear_names
    (('size', 'town'), ('size', 'town=oslo', 'town=rome'))
    """
    if not isinstance(data.raw, pd.DataFrame) or not data.source.columns:
        raise InputError("this data set was not read from a table; it has no columns to look at.")
    encoder = TableEncoder.fit(data.raw, data.source.columns)
    return TableViews(
        encoder.trees(data.raw), encoder(data.raw), encoder.tree_names, encoder.names, data.source.columns
    )


class _Numbers:
    """Numbers that belong together: a column of them, or the parts of a date."""

    def __init__(self, column: Column, state: Mapping[str, Any]) -> None:
        self.column, self.missing = column, bool(state["missing"])
        self.kept = np.asarray(state["kept"], bool)
        self.medians, self.means, self.scales = (np.asarray(state[name]) for name in ("medians", "means", "scales"))
        names = [name for name, kept in zip(_value_names(column), self.kept, strict=True) if kept]
        self.names = tuple(names + [f"{column.name} is missing"] * self.missing)
        self.tree_names = self.names

    @staticmethod
    def fit(column: Column, cells: pd.Series) -> _Numbers:
        values = _values(column, cells)
        with np.errstate(invalid="ignore"):
            kept = np.array([len(np.unique(v[np.isfinite(v)])) > 1 for v in values.T])
            known = np.isfinite(values).any(0)
        missing = bool(np.isnan(values[:, known]).any()) and bool(known.any())
        medians = means = scales = np.empty(0)
        if kept.any():
            known_values = values[:, kept]
            medians = np.nanmedian(known_values, axis=0)
            filled = np.where(np.isnan(known_values), medians, known_values)
            means, deviations = filled.mean(0), filled.std(0)
            # A deviation below the rounding error of the mean is that of a constant.
            rounding = len(filled) * np.finfo(np.float64).eps * np.abs(means)
            scales = np.where(deviations > rounding, deviations, 1.0)
        return _Numbers(
            column, {"missing": missing, "kept": kept, "medians": medians, "means": means, "scales": scales}
        )

    def state(self) -> dict[str, Any]:
        numbers = {"medians": self.medians, "means": self.means, "scales": self.scales}
        return {"missing": self.missing, "kept": self.kept, **numbers}

    def trees(self, cells: pd.Series) -> Matrix:
        return self._blocks(cells, scaled=False)

    def linear(self, cells: pd.Series) -> Matrix:
        return self._blocks(cells, scaled=True)

    def _blocks(self, cells: pd.Series, *, scaled: bool) -> Matrix:
        values = _values(self.column, cells)
        blocks = []
        if self.kept.any():
            filled = np.where(np.isnan(values[:, self.kept]), self.medians, values[:, self.kept])
            # A date is one column of the table: its parts together weigh as much as a number.
            weight = np.sqrt(self.kept.sum())
            z = np.clip((filled - self.means) / self.scales, -FAR, FAR) / weight if scaled else filled
            blocks.append(z)
        if self.missing:
            blocks.append(np.isnan(values).all(1, keepdims=True))
        return np.concatenate(blocks, axis=1).astype(np.float32)


class _Few:
    """A category of few values: one-hot for distances, one column for trees."""

    def __init__(self, column: Column, state: Mapping[str, Any]) -> None:
        self.column, self.values, self.scale = column, list(state["values"]), float(state["scale"])
        self.order = {value: place for place, value in enumerate(self.values)}
        self.sorted = {value: place for place, value in enumerate(sorted(self.values))}
        self.names = tuple(f"{column.name}={value}" for value in self.sorted)
        self.tree_names = (column.name,)

    @staticmethod
    def fit(column: Column, cells: pd.Series) -> _Few:
        texts = _categories(cells)
        shares = pd.Series(texts).value_counts(normalize=True).to_numpy()
        spread = float(np.sqrt((shares * (1 - shares)).sum()))
        return _Few(column, {"values": _by_frequency(texts), "scale": 1.0 / spread if spread > 0 else 1.0})

    def state(self) -> dict[str, Any]:
        return {"values": self.values, "scale": self.scale}

    def trees(self, cells: pd.Series) -> Matrix:
        return _places(_categories(cells), self.order)

    def linear(self, cells: pd.Series) -> Matrix:
        one_hot = np.zeros((len(cells), len(self.sorted) + 1), np.float32)  # the last for new values
        one_hot[np.arange(len(cells)), [self.sorted.get(text, -1) for text in _categories(cells)]] = self.scale
        return one_hot[:, :-1]


class _Many:
    """A category of many values, described by their letters; two towns in one valley then look alike."""

    def __init__(self, column: Column, state: Mapping[str, Any]) -> None:
        self.column, self.values = column, list(state["values"])
        self.order = {value: place for place, value in enumerate(self.values)}
        self.letters = tfidf(state["letters"], state["idf"], **LETTER_GROUPS)
        self.directions, self.known = np.asarray(state["directions"]), np.asarray(state["known"])
        self.mean, self.scale = np.asarray(state["mean"]), float(state["scale"])
        self.names = tuple(f"{column.name} letters {i}" for i in range(len(self.directions)))
        self.tree_names = (column.name, *self.names)

    @staticmethod
    def fit(column: Column, cells: pd.Series) -> _Many:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        texts = _categories(cells)
        # Every value once: how often it occurs is another feature.
        values = _by_frequency(texts)
        letters = TfidfVectorizer(max_features=20_000, **LETTER_GROUPS)
        weights = letters.fit_transform(values)
        dims = max(1, min(LETTERS, *(size - 1 for size in weights.shape)))
        directions = TruncatedSVD(dims, random_state=0).fit(weights).components_
        known = weights @ directions.T
        places = {value: place for place, value in enumerate(values)}
        found = known[[places[t] for t in texts]]
        return _Many(
            column,
            {
                "values": values, "letters": letters.get_feature_names_out().tolist(), "idf": letters.idf_,
                "directions": directions, "known": known, "mean": found.mean(0),
                "scale": 1.0 / max(float(np.sqrt(found.var(0).sum())), 1e-12),
            },
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        return {
            "values": self.values, "letters": list(self.letters.vocabulary), "idf": self.letters.idf_,
            "directions": self.directions, "known": self.known, "mean": self.mean, "scale": self.scale,
        }  # fmt: skip

    def trees(self, cells: pd.Series) -> Matrix:
        texts = _categories(cells)
        return np.concatenate([_places(texts, self.order), self._letters(texts)], axis=1).astype(np.float32)

    def linear(self, cells: pd.Series) -> Matrix:
        return ((self._letters(_categories(cells)) - self.mean) * self.scale).astype(np.float32)

    def _letters(self, texts: NDArray[Any]) -> NDArray[np.float64]:
        new = list(dict.fromkeys(t for t in texts if t not in self.order))
        places = {**self.order, **{value: len(self.known) + i for i, value in enumerate(new)}}
        fresh = self.letters.transform(new) @ self.directions.T if new else self.known[:0]
        return np.concatenate([self.known, fresh])[[places[t] for t in texts]]


def _parts(cells: pd.Series, column: Column) -> list[Any]:
    if column.role != "category":
        return [_Numbers.fit(column, cells)]
    distinct = len(set(_categories(cells)))
    return [_Few.fit(column, cells) if distinct <= MOST_CATEGORIES else _Many.fit(column, cells)]


def tfidf(words: Sequence[str], idf: NDArray[np.float64], **options: Any) -> Any:
    """A vectorizer of scikit-learn that has learned these words and their weights.

    >>> tfidf(["a", "b"], np.array([1.0, 2.0]), token_pattern=r"\\w").transform(["b a"]).toarray().round(2)
    array([[0.45, 0.89]])
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    made = TfidfVectorizer(vocabulary=list(words), **options)
    made.idf_ = np.asarray(idf, np.float64)
    return made


def _values(column: Column, cells: pd.Series) -> NDArray[np.float64]:
    values = numbers(cells)[:, None] if column.role == "number" else _date_parts(cells, column)
    return np.clip(values, -LARGEST, LARGEST)


def _value_names(column: Column) -> list[str]:
    if column.role == "number":
        return [column.name]
    return [f"{column.name} {part}" for part in ("seconds", "year", "month", "day", "weekday", "hour")]


def _date_parts(cells: pd.Series, column: Column) -> NDArray[np.float64]:
    """(N, 6) what a date consists of; NaN where there is none."""
    when = pd.Series(dates(cells, column.dates or "ISO8601"))
    seconds = (when - pd.Timestamp("1970-01-01")).dt.total_seconds()
    parts = [seconds, when.dt.year, when.dt.month, when.dt.day, when.dt.day_of_week, when.dt.hour]
    return np.stack([part.to_numpy(dtype=np.float64, na_value=np.nan) for part in parts], axis=1)


def _categories(cells: pd.Series) -> NDArray[Any]:
    """(N,) the cells as texts, `ABSENT` where missing; each distinct value is looked at once."""
    codes, values = pd.factorize(cells)
    texts = [ABSENT if is_missing(v) else str(v).strip() for v in np.asarray(values, dtype=object)]
    return np.array([*texts, ABSENT], dtype=object)[codes]


def _by_frequency(texts: NDArray[Any]) -> list[str]:
    """The values, the most frequent first: a tree parts frequent from rare values by one cut."""
    counts = pd.Series(texts).value_counts()
    return [str(value) for value, _ in sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))]


def _places(texts: NDArray[Any], order: dict[Any, int]) -> Matrix:
    """(N, 1) the place of each value; new ones come last."""
    return np.array([[order.get(text, len(order))] for text in texts], dtype=np.float32)
