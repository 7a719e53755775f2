"""Features from a table's columns: numbers, categories, and what is missing."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compensate.data.labels import is_missing
from compensate.errors import InputError

MOST_CATEGORIES = 50
"""One-hot columns of a category column; rarer values share one column."""

FAR = 10.0
"""Standardised values are cut at so many deviations: one slip of the decimal point must not rule a network."""


@dataclass(frozen=True)
class Numeric:
    """A column of numbers: missing ones become the median, and an indicator says so."""

    name: str
    median: float
    mean: float
    std: float
    missing: bool


@dataclass(frozen=True)
class Category:
    """A column of categories, one-hot; ``other`` takes values that are rare or new, missing ones included."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class TableEncoder:
    r"""Turns table rows into features.

    .. math:: z = \frac{\operatorname{clip}(x - \mu, \pm 10 \sigma)}{\sigma} \text{ of a number,} \qquad
              z_k = [x = k] \text{ of a category}

    where :math:`\mu` and :math:`\sigma` are the mean and standard deviation of the column after missing values were
    replaced by its median. A column that had missing values when fitted gets a second feature, 1 where it is missing.
    Columns with one value only, and texts that differ in nearly every row, say nothing and are dropped.

    >>> frame = pd.DataFrame({"age": ["30", "", "50"], "town": ["rome", "oslo", "rome"]})
    >>> encoder = TableEncoder.fit(frame)
    >>> encoder.names
    ['age', 'age is missing', 'town=rome', 'town=oslo', 'town=other']
    >>> encoder(frame)[1].tolist()
    [0.0, 1.0, 0.0, 1.0, 0.0]
    """

    columns: tuple[Numeric | Category, ...]
    dropped: tuple[str, ...]

    @classmethod
    def fit(cls, frame: pd.DataFrame) -> TableEncoder:
        """Learn medians, deviations and categories from these rows."""
        columns: list[Numeric | Category] = []
        dropped: list[str] = []
        for name in frame.columns:
            column = _column(frame[name])
            if column is None:
                dropped.append(str(name))
            else:
                columns.append(column)
        return cls(tuple(columns), tuple(dropped))

    @property
    def names(self) -> list[str]:
        """What each feature is."""
        names: list[str] = []
        for c in self.columns:
            if isinstance(c, Numeric):
                names += [c.name, f"{c.name} is missing"] if c.missing else [c.name]
            else:
                names += [f"{c.name}={value}" for value in (*c.values, "other")]
        return names

    def __call__(self, frame: pd.DataFrame) -> NDArray[np.float32]:
        """(N, features) of these rows."""
        lost = [c.name for c in self.columns if c.name not in frame.columns]
        if lost:
            raise InputError(f"the table lacks the columns {', '.join(lost)}, which the features were made from.")
        blocks = [_encode(frame[c.name], c) for c in self.columns]
        return np.concatenate(blocks, axis=1) if blocks else np.empty((len(frame), 0), np.float32)

    def to_json(self) -> str:
        """Everything it learned, as JSON; `from_json` reads it."""
        columns = [{"kind": type(c).__name__, **asdict(c)} for c in self.columns]
        return json.dumps({"columns": columns, "dropped": self.dropped}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> TableEncoder:
        content = json.loads(text)
        columns: list[Numeric | Category] = []
        for entry in content["columns"]:
            kind = entry.pop("kind")
            columns.append(Numeric(**entry) if kind == "Numeric" else Category(entry["name"], tuple(entry["values"])))
        return cls(tuple(columns), tuple(content["dropped"]))


def _numbers(column: pd.Series) -> NDArray[np.float64]:
    # What cannot be read as a number, an empty cell or "NA" for one, becomes NaN here.
    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def _texts(column: pd.Series) -> NDArray[Any]:
    """(N,) the cells as texts, None where missing; each distinct value is looked at once."""
    codes, values = pd.factorize(column)
    texts = [None if is_missing(v) else str(v).strip() for v in values]
    return np.array([*texts, None], dtype=object)[codes]


def _column(column: pd.Series) -> Numeric | Category | None:
    name = str(column.name)
    numbers = _numbers(column)
    there = ~np.isnan(numbers)
    if not there.all():  # only what is no number needs a look at its text
        there[~there] = [text is not None for text in _texts(column[~there])]
    if not there.any():
        return None
    # One odd cell such as "unknown" in a column of numbers is a missing number, not a reason to call all categories.
    if (~np.isnan(numbers[there])).mean() >= 0.95:
        known = numbers[np.isfinite(numbers)]
        if not len(known):
            return None
        median = float(np.median(known))
        filled = np.where(np.isfinite(numbers), numbers, median)
        missing = len(known) < len(numbers)
        mean, std = float(filled.mean()), float(filled.std())
        if not np.isfinite([mean, std]).all():
            return None
        if std <= 1e-12 * max(1.0, abs(mean)) and not missing:
            return None
        return Numeric(name, median, mean, std if std > 1e-12 * max(1.0, abs(mean)) else 1.0, missing)
    counts = pd.Series(_texts(column)[there]).value_counts()
    ranked = sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))
    if (len(ranked) == 1 and there.all()) or (len(ranked) > 0.9 * there.sum() and len(ranked) > MOST_CATEGORIES):
        return None
    return Category(name, tuple(str(value) for value, _ in ranked[:MOST_CATEGORIES]))


def _encode(column: pd.Series, how: Numeric | Category) -> NDArray[np.float32]:
    if isinstance(how, Numeric):
        numbers = _numbers(column)
        known = np.isfinite(numbers)
        z = np.clip((np.where(known, numbers, how.median) - how.mean) / how.std, -FAR, FAR)
        return np.stack([z, ~known] if how.missing else [z], axis=1).astype(np.float32)
    place: dict[Any, int] = {value: i for i, value in enumerate(how.values)}
    block = np.zeros((len(column), len(how.values) + 1), dtype=np.float32)
    block[np.arange(len(column)), [place.get(v, len(how.values)) for v in _texts(column)]] = 1
    return block
