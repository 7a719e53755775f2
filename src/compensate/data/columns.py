"""The role of each table column (number, category, date, text, identifier, constant or label), and its features.

scikit-learn makes the features. (skrub's TableVectorizer takes whole numbers such as 1000 for years, and keeps infinities.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compensate.data.labels import is_missing
from compensate.errors import InputError, nearest

LABEL_NAMES = ("label", "target", "class", "y")  # common names of label columns
FEATURE_ROLES = ("number", "category", "date")  # roles that become features
# Common names of identifier columns
ID_NAMES = ("id", "index", "uuid", "guid", "key", "row", "rownames", "unnamed: 0", "")
MIN_SHARE = 0.95  # of the cells that must have a type for the column to have it: one "unknown" among numbers is a missing number
# A column of words or codes is an identifier if more values than this, and a larger share of them, are distinct
MIN_DISTINCT, DISTINCT_SHARE = 50, 0.9
HOLDS_LISTS = "holds lists"
WRITTEN_LISTS = "holds lists written as text"  # reasons for leaving out a column of lists
PROBED_CELLS = 20  # first cells of a column that must be embeddings or conversations before all of them are read
MIN_DIMENSIONS = 3  # numbers of a list from which on it is an embedding
TEXT_WORDS = 3  # median number of words from which a column is text
_ID_NAME = re.compile(r"(^|[_\W])(id|uuid|guid|key)$|[a-z](Id|ID)$")
_HASH = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?=.*\d)[0-9a-f]{16,128}", re.IGNORECASE)
_URL = re.compile(r"(https?|ftp|s3|gs)://\S+|www\.\S+", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[-+]?(\d{1,3}(\.\d{3})+|\d+),(\d{1,2}|\d{4,})\s*[%$€£¥]?|[-+]?0,\d+")
_WRITTEN = re.compile(r"([-+]?)\s*[$€£¥]?\s*([-+]?)(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?\s*[%$€£¥]?")
DATE_FORMATS = (
    *("%Y-%m-%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%Y/%m/%d", "%d-%m-%Y", "%m/%d/%y", "%d/%m/%y", "%d.%m.%y"),
    *("%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%d-%b-%Y", "%d-%b-%y", "%Y%m%d"),
)
TIME_FORMATS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
ISO = "ISO8601"
MAX_ONE_HOT = 30  # values of a one-hot encoded category; with more values, it is encoded by character n-grams
LETTER_DIMENSIONS = 10  # features of a column of many values: leading singular directions of its character n-grams
# The character n-grams of a value
LETTER_GROUPS: dict[str, Any] = {"analyzer": "char_wb", "ngram_range": (2, 4), "sublinear_tf": True}
MAX_DEVIATIONS = 10.0  # standardized values are clipped here: one misplaced decimal point must not dominate a model
MAX_VALUE = 1e18  # numbers are clipped here, to keep their squares finite in 32 bits
MISSING_CATEGORY = "(missing)"  # the value of an empty cell in a category column
DATE_PARTS = ("seconds", "year", "month", "day", "weekday", "hour")
Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Column:
    """A column and its role.

    >>> Column("age", "number", "50 distinct numbers").used
    True
    """

    name: str
    role: str  # number, category, date, text, identifier, constant, label, split or ignored
    reason: str  # the reason for the role, in a few words
    dates: str | None = None  # the format of its dates

    @property
    def used(self) -> bool:
        """Whether the column becomes features."""
        return self.role in FEATURE_ROLES


def analyze(
    frame: pd.DataFrame,
    *,
    label: str | None = None,
    text: str | None = None,
    split: str | None = None,
    ignore: Sequence[str] = (),
    columns: Sequence[str] | None = None,
) -> tuple[Column, ...]:
    """The role of every column, with the reason.

    ``label``, ``text`` (see `text_columns`) and ``split`` are known columns, ``ignore`` names columns to leave out, ``columns`` the only
    ones to use.

    >>> frame = pd.DataFrame({"id": range(100), "age": [30.5, 40] * 50, "day": ["2024-01-31", "2024-02-01"] * 50})
    >>> [(c.name, c.role) for c in analyze(frame)]
    [('id', 'identifier'), ('age', 'number'), ('day', 'date')]
    """
    names = [str(name) for name in frame.columns]
    for option, given in (("ignore", ignore), ("columns", columns or ())):
        for name in given:
            if name not in names:
                raise InputError(f'{option} names the column "{name}", which is not there; {nearest(name, names)}')
    known = {label: ("label", "chosen as the label"), split: ("split", "names the part")}
    known |= dict.fromkeys(text_columns(text, names), ("text", "the text"))
    target = None if label is None else cell_texts(frame[label])
    roles = []
    for name in names:
        if name in known:
            roles.append(Column(name, *known[name]))
        elif name in ignore or (columns is not None and name not in columns):
            roles.append(Column(name, "ignored", "left out by choice"))
        elif is_nested(frame[name]):
            roles.append(Column(name, "ignored", HOLDS_LISTS))
        else:
            roles.append(Column(name, *_role(name, frame[name], target, columns is not None)))
    return tuple(roles)


def is_row(first_line: Sequence[str], frame: pd.DataFrame) -> bool:
    """Whether the first line of a table is a row of data, not the header.

    A cell of the first line indicates a row if it is a number above numbers, or occurs again in its column. A cell of another type than the
    cells below indicates a header. Consecutive whole numbers, such as default names of pandas or years, indicate neither.
    """
    whole = [int(cell) for cell in first_line if cell.isdecimal()]
    counted = len(whole) > 1 and whole == list(range(whole[0], whole[0] + len(whole)))
    like_cells = False
    for k, cell in enumerate(first_line[:100]):
        below = [str(v).strip() for v in frame.iloc[:200, k] if not is_missing(v)]
        unnamed = cell.startswith("Unnamed: ") and cell != "Unnamed: 0"  # the name that pandas gives an empty cell
        if not below or unnamed or (counted and cell.isdecimal()):
            continue
        finite = np.isfinite(numbers(pd.Series([*below, cell], dtype=object)))
        numeric = finite[:-1].mean() >= MIN_SHARE
        if cell.lower() in LABEL_NAMES or (numeric and not finite[-1]):
            return False
        if numeric or cell in below:
            like_cells = True
        elif len(set(below)) <= len(below) / 2 or (median_words(below) >= TEXT_WORDS and " " not in cell):
            return False
    return like_cells


def typed_frame(columns: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """A table of these cells. Only columns of one type are converted: integers with gaps would become floats."""
    series = {name: pd.Series(cells, dtype=object) for name, cells in columns.items()}
    return pd.DataFrame({n: s.infer_objects() if len(set(map(type, s))) == 1 else s for n, s in series.items()})


def is_nested(column: pd.Series) -> bool:
    """Whether cells hold lists or dictionaries."""
    if column.dtype != object or not pd.api.types.infer_dtype(column, skipna=True).startswith("mixed"):
        return False
    return any(isinstance(v, (list, tuple, set, dict, np.ndarray)) for v in column)


def messages(cell: Any) -> list[str]:
    """The texts of a cell: itself, or the messages of a conversation.

    >>> messages([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]), messages("a")
    (['Hi', 'Hello'], ['a'])
    """
    if isinstance(cell, (list, tuple, np.ndarray)):
        parts = (m.get("content", m.get("value", "")) if isinstance(m, Mapping) else m for m in cell)
        return ["" if is_missing(part) else str(part) for part in parts] or [""]
    if isinstance(cell, Mapping):
        return messages(cell["messages"]) if "messages" in cell else [str(cell.get("content", cell.get("value", cell)))]
    return ["" if is_missing(cell) else str(cell)]


def is_chat(column: pd.Series) -> bool:
    """Whether cells are conversations: lists of messages, each with a role and a content."""
    cells = [cell for cell in column.head(PROBED_CELLS) if isinstance(cell, (list, tuple, np.ndarray)) and len(cell)]
    said = (m for cell in cells for m in cell)
    return bool(cells) and all(isinstance(m, Mapping) and ("content" in m or "value" in m) for m in said)


def are_lists(texts: Iterable[str]) -> bool:
    """Whether nearly all texts are JSON lists or objects, such as embeddings."""
    brackets = [text[:1] + text[-1:] in ("[]", "{}") for text in texts]
    return bool(brackets) and float(np.mean(brackets)) >= MIN_SHARE


def vectors(column: pd.Series) -> Matrix | None:
    """(N, D) the embeddings in a column of lists, arrays or JSON lists of equally many finite numbers; None if it holds anything else.

    >>> vectors(pd.Series([[0.1, 0.2, 0.3], [1, 2, 3]])).shape, vectors(pd.Series(["[1, 2, 3]", "[4, 5, 6]"])).tolist()[0]
    ((2, 3), [1.0, 2.0, 3.0])
    >>> vectors(pd.Series([["a"], ["b"]])), vectors(pd.Series([[1, 2, 3], [1]]))
    (None, None)
    """
    if column.dtype != object and not isinstance(column.dtype, pd.StringDtype):
        return None
    cells = column.tolist()
    rows: list[Matrix] = []
    for cell in cells:
        if isinstance(cell, str) and cell.strip()[:1] + cell.strip()[-1:] == "[]":
            with suppress(ValueError, RecursionError):
                cell = json.loads(cell)
        if not isinstance(cell, (list, tuple, np.ndarray)) or len(cell) != len(rows[0] if rows else cell):
            return None
        with suppress(ValueError, TypeError, OverflowError):
            rows.append(np.asarray(cell, np.float32))
        if not rows or rows[-1].ndim != 1 or len(rows[-1]) < MIN_DIMENSIONS or isinstance(cell[0], (str, bool)):
            return None
    if len(rows) < len(cells) or not rows:
        return None
    found = np.stack(rows)
    return found if np.isfinite(found).all() else None


def embeddings(frame: pd.DataFrame, name: str, where: str) -> Matrix:
    """(N, D) the embeddings in a column of a table."""
    if name not in frame.columns:
        raise InputError(f'{where} has no column "{name}"; {nearest(name, list(frame.columns))}')
    values = vectors(frame[name])
    if values is None:
        problem = f'the column "{name}" of {where} does not hold embeddings'
        raise InputError(f"{problem}; expected a list of equally many finite numbers in each row.")
    return values


def median_words(texts: Sequence[str] | NDArray[Any]) -> float:
    """The median number of words, over at most about 2,000 of the texts."""
    sample = texts[:: max(1, len(texts) // 2000)]
    return float(np.median([text.count(" ") + 1 for text in sample])) if len(texts) else 0.0


def text_columns(text: str | None, names: Iterable[str]) -> tuple[str, ...]:
    """The columns that an option such as ``text="premise,hypothesis"`` names; a comma may be part of a name.

    >>> text_columns("premise,hypothesis", ["premise", "hypothesis", "label"]), text_columns("a,b", ["a,b", "label"])
    (('premise', 'hypothesis'), ('a,b',))
    """
    if not text:
        return ()
    return (text,) if text in set(names) else tuple(name.strip() for name in text.split(","))


def row_texts(frame: pd.DataFrame, text: str) -> NDArray[Any]:
    """(N,) the text of each row; those of several columns are joined by an empty line."""
    columns = text_columns(text, map(str, frame.columns))
    cells = zip(*(["\n".join(messages(v)) for v in frame[name]] for name in columns), strict=True)
    return np.array(["\n\n".join(row) for row in cells], dtype=object)


def cell_texts(column: pd.Series, missing: str | None = None) -> NDArray[Any]:
    """(N,) the cells as texts without blanks around them; ``missing`` for empty cells."""
    codes, values = pd.factorize(column)
    texts = [missing if is_missing(v) else str(v).strip() for v in np.asarray(values, dtype=object)]
    return np.array([*texts, missing], dtype=object)[codes]


def numbers(column: pd.Series) -> NDArray[np.float64]:
    """(N,) the cells as numbers; NaN for empty cells, infinities and words.

    "$1,200" and "12 %" are numbers. If the comma of any cell must be a decimal comma, as in "1,5", it is one in all cells.
    """
    try:
        read = pd.to_numeric(column, errors="coerce")
    except OverflowError:  # JSON may hold integers beyond the range of floats; as text they are infinite
        read = pd.to_numeric(column.map(lambda cell: str(cell) if type(cell) is int else cell), errors="coerce")
    values = read.to_numpy(dtype=np.float64, na_value=np.nan).copy()
    if column.dtype == object or isinstance(column.dtype, pd.StringDtype):
        unread = np.flatnonzero(np.isnan(values))
        codes, distinct = pd.factorize(column.iloc[unread])
        cells = [str(v).strip() for v in np.asarray(distinct, dtype=object)]
        if any(_DECIMAL_COMMA.fullmatch(cell) for cell in cells):
            cells = [cell.replace(".", "").replace(",", ".") if cell.count(",") == 1 else cell for cell in cells]
        parsed = np.full(len(cells) + 1, np.nan)
        for k, cell in enumerate(cells):
            match = _WRITTEN.fullmatch(cell)
            if match is not None and not (match[1] and match[2]):
                parsed[k] = float(f"{match[1]}{match[2]}{match[3].replace(',', '')}{match[4] or ''}")
        values[unread] = parsed[codes]
    values[~np.isfinite(values)] = np.nan
    return values


def dates(column: pd.Series, form: str) -> NDArray[np.datetime64]:
    """(N,) the cells as dates of this format, NaT for other cells."""
    if not pd.api.types.is_datetime64_any_dtype(column):
        codes, texts = pd.factorize(cell_texts(column))
        read = pd.to_datetime(pd.Series(texts, dtype=object), errors="coerce", format=form, utc=True)
        column = pd.Series([*read, pd.NaT], dtype="datetime64[us, UTC]").iloc[codes]
    if getattr(column.dtype, "tz", None) is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    return column.to_numpy(dtype="datetime64[us]")


def _role(name: str, column: pd.Series, target: NDArray[Any] | None, chosen: bool) -> tuple[str, ...]:
    """Role, reason and, for dates, the format; ``chosen`` if the user named the column."""
    all_texts = cell_texts(column)
    present = np.array([text is not None for text in all_texts], dtype=bool)
    texts = all_texts[present]
    distinct = len(set(texts))
    if distinct == 0:
        return "constant", "is empty"
    if distinct == 1 and present.all():
        return "constant", "has one value only"
    if pd.api.types.is_datetime64_any_dtype(column):
        return "date", "dates", ISO
    if not chosen and target is not None:
        labeled = np.array([label is not None for label in target], dtype=bool)
        same, labels, count = all_texts[labeled], target[labeled], len(set(target[labeled]))
        if 2 <= count == len(set(same)) < len(same) / 2 and len(set(zip(same, labels, strict=True))) == count:
            return "label", "repeats the label in other words"
    if not chosen and are_lists(texts):
        return "ignored", WRITTEN_LISTS
    values = numbers(column)
    known = values[np.isfinite(values)]
    infinite = sum(t.lower().lstrip("+-") in ("inf", "infinity") for t in texts[~np.isfinite(values[present])])
    numeric = (len(known) + infinite) / len(texts) >= MIN_SHARE
    like_days = len(known) > 0 and bool(((known > 19000000) & (known < 21000000) & (known == np.round(known))).all())
    form = _date_format(texts) if not numeric or like_days else None
    if form is not None:
        example = texts[0] if len(texts[0]) <= 30 else texts[0][:29] + "…"
        return "date", f"dates such as {example}", form
    if not chosen:
        count, many, bare = len(texts), distinct > max(20, 0.2 * len(texts)), name.strip()
        if bare.lower() in ID_NAMES and many:
            return "identifier", f"named like an identifier, with {distinct:,} values in {count:,} rows"
        if distinct == count and (bare.lower() in ID_NAMES or _ID_NAME.search(bare)):
            return "identifier", f"named like an identifier, and different in each of {count:,} rows"
        if not numeric:
            sample = texts[:: max(1, count // 2000)]
            for kind, pattern in (("hashes", _HASH), ("web addresses", _URL)):
                if many and np.mean([bool(pattern.fullmatch(t)) for t in sample]) >= MIN_SHARE:
                    return "identifier", f"holds {kind}"
            if distinct > MIN_DISTINCT and distinct > DISTINCT_SHARE * count and median_words(sample) < TEXT_WORDS:
                return "identifier", f"{distinct:,} distinct values in {count:,} rows"
        elif distinct == count >= 20 and len(known) > 1 and (known % 1 == 0).all() and np.abs(known).max() < 2**53:
            steps = np.diff(np.sort(known))
            if (np.diff(known) == steps[0]).all():
                return "identifier", "numbers the rows"
            if (steps == steps[0]).all():
                return "identifier", "whole numbers without a gap, each once"
            if (np.diff(known) > 0).all() and np.median(steps) <= 3:
                return "identifier", "rises by whole numbers from row to row"
    if numeric and not pd.api.types.is_bool_dtype(column):
        if not len(known) or (known.min() == known.max() and len(known) == len(values)):
            return "constant", "has one value only" if len(known) else "holds no finite number"
        return "number", f"{distinct:,} distinct numbers"
    if median_words(texts) >= TEXT_WORDS and distinct > len(texts) / 2:
        return "text", "holds sentences"
    return "category", f"{distinct:,} distinct values"


def _date_format(texts: NDArray[Any]) -> str | None:
    """The format of nearly all distinct cells, if they are dates."""
    cells = pd.Series(pd.unique(texts)[:2000], dtype=object)
    if not cells.str.contains(r"\d").mean() >= MIN_SHARE or cells.str.len().max() > 40:
        return None

    def fits(form: str) -> bool:
        read = (pd.to_datetime(part, errors="coerce", format=form, utc=True) for part in (cells.iloc[:20], cells))
        return all(part.notna().mean() >= MIN_SHARE for part in read)  # most formats fail on the first cells

    if fits(ISO) and cells.str.contains("-").mean() >= MIN_SHARE:
        return ISO
    times = TIME_FORMATS if cells.str.contains(":").mean() > 1 - MIN_SHARE else TIME_FORMATS[:1]
    return next((day + time for day in DATE_FORMATS for time in times if fits(day + time)), None)


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
    parts: tuple[_Part, ...]

    @classmethod
    def fit(cls, frame: pd.DataFrame, columns: Sequence[Column] | None = None) -> TableEncoder:
        """Learn medians, deviations and categories from these rows; ``columns`` as returned by `analyze`."""
        columns = analyze(frame) if columns is None else tuple(columns)
        parts: list[_Part] = []
        for column in (c for c in columns if c.used):
            cells = frame[column.name]
            if column.role != "category":
                parts.append(_Numbers(column, _Numbers.learn(column, cells)))
            else:
                texts = cell_texts(cells, MISSING_CATEGORY)
                kind = _Few if len(set(texts)) <= MAX_ONE_HOT else _Many
                parts.append(kind(column, kind.learn(texts)))
        return cls(columns, tuple(part for part in parts if part.names))

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each feature."""
        return tuple(name for part in self.parts for name in part.names)

    def __call__(self, frame: pd.DataFrame, *, scaled: bool = True) -> Matrix:
        """(N, features) of these rows, standardized; without ``scaled`` those of `trees`."""
        lost = [c.name for c in self.columns if c.used and c.name not in frame.columns]
        if lost:
            raise InputError(f"the table lacks the columns {', '.join(lost)}, which the encoder was fitted on.")
        blocks = [part.encode(frame[part.column.name], scaled) for part in self.parts]
        return np.concatenate(blocks, axis=1).astype(np.float32) if blocks else np.empty((len(frame), 0), np.float32)

    def trees(self, frame: pd.DataFrame) -> Matrix:
        """(N, features) of these rows, for trees."""
        return self(frame, scaled=False)

    def state(self) -> dict[str, Any]:
        """Everything that was learned, as texts, numbers and arrays; `of` restores the encoder."""
        columns = [[c.name, c.role, c.reason, c.dates] for c in self.columns]
        parts = [[type(part).__name__, self.columns.index(part.column), part.learned] for part in self.parts]
        return {"columns": columns, "parts": parts}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> TableEncoder:
        """An encoder from its `state`."""
        columns = tuple(Column(*column) for column in state["columns"])
        kinds = {kind.__name__: kind for kind in (_Numbers, _Few, _Many)}
        return cls(columns, tuple(kinds[kind](columns[k], learned) for kind, k, learned in state["parts"]))


class _Part:
    """The features of one column: ``learned`` holds texts, numbers and arrays."""

    names: tuple[str, ...]

    def __init__(self, column: Column, learned: Mapping[str, Any]) -> None:
        self.column, self.learned = column, dict(learned)
        # The most frequent value comes first: a tree separates frequent from rare values by one split.
        self.rank = {value: k for k, value in enumerate(learned.get("values", ()))}

    def encode(self, cells: pd.Series, scaled: bool) -> NDArray[Any]:
        """(N, features) for models that measure distances if ``scaled``, else for trees."""
        raise NotImplementedError

    def ranks(self, texts: NDArray[Any]) -> Matrix:
        """(N, 1) the rank of each value; new values come last."""
        return np.array([[self.rank.get(text, len(self.rank))] for text in texts], dtype=np.float32)


class _Numbers(_Part):
    """A column of numbers, or the parts of a date."""

    def __init__(self, column: Column, learned: Mapping[str, Any]) -> None:
        super().__init__(column, learned)
        self.missing, self.kept = bool(learned["missing"]), np.asarray(learned["kept"], bool)
        names = [column.name] if column.role == "number" else [f"{column.name} {part}" for part in DATE_PARTS]
        names = [name for name, kept in zip(names, self.kept, strict=True) if kept]
        self.names = tuple(names + [f"{column.name} is missing"] * self.missing)

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
        medians = np.nanmedian(values[:, kept], axis=0)
        filled = np.where(np.isnan(values[:, kept]), medians, values[:, kept])
        means, deviations = filled.mean(0), filled.std(0)
        # A deviation below the rounding error of the mean is that of a constant.
        rounding = len(filled) * np.finfo(np.float64).eps * np.abs(means)
        scales = np.where(deviations > rounding, deviations, 1.0)
        missing = bool(known.any() and np.isnan(values[:, known]).any())
        return {"missing": missing, "kept": kept, "medians": medians, "means": means, "scales": scales}

    def encode(self, cells: pd.Series, scaled: bool) -> NDArray[Any]:
        values = self.values(self.column, cells)
        medians, means, scales = (np.asarray(self.learned[name]) for name in ("medians", "means", "scales"))
        filled = np.where(np.isnan(values[:, self.kept]), medians, values[:, self.kept])
        if scaled:  # the parts of a date together weigh as much as a number
            z = np.clip((filled - means) / scales, -MAX_DEVIATIONS, MAX_DEVIATIONS)
            filled = z / np.sqrt(self.kept.sum())
        missing = np.isnan(values).all(1, keepdims=True)
        return np.concatenate([filled, missing], axis=1) if self.missing else filled


class _Few(_Part):
    """A category of few values: one-hot for distances, one column for trees."""

    def __init__(self, column: Column, learned: Mapping[str, Any]) -> None:
        super().__init__(column, learned)
        self.place = {value: k for k, value in enumerate(sorted(learned["values"]))}
        self.names = tuple(f"{column.name}={value}" for value in self.place)

    @staticmethod
    def learn(texts: NDArray[Any]) -> dict[str, Any]:
        values, counts = _by_frequency(texts)
        shares = counts / counts.sum()
        spread = float(np.sqrt((shares * (1 - shares)).sum()))
        return {"values": values, "scale": 1.0 / spread if spread > 0 else 1.0}

    def encode(self, cells: pd.Series, scaled: bool) -> Matrix:
        texts = cell_texts(cells, MISSING_CATEGORY)
        if not scaled:
            return self.ranks(texts)
        one_hot = np.zeros((len(cells), len(self.place) + 1), np.float32)  # the last column is for new values
        one_hot[np.arange(len(cells)), [self.place.get(text, -1) for text in texts]] = float(self.learned["scale"])
        return one_hot[:, :-1]


class _Many(_Part):
    """A category of many values, encoded by character n-grams: similar names get similar features."""

    def __init__(self, column: Column, learned: Mapping[str, Any]) -> None:
        super().__init__(column, learned)
        self.letters = tfidf(learned["letters"], learned["idf"], **LETTER_GROUPS)
        self.directions, self.known = np.asarray(learned["directions"]), np.asarray(learned["known"])
        self.names = tuple(f"{column.name} letters {i}" for i in range(len(self.directions)))

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

    def encode(self, cells: pd.Series, scaled: bool) -> NDArray[Any]:
        texts = cell_texts(cells, MISSING_CATEGORY)
        new = list(dict.fromkeys(t for t in texts if t not in self.rank))
        fresh = self.letters.transform(new) @ self.directions.T if new else self.known[:0]
        row = {**self.rank, **{value: len(self.known) + i for i, value in enumerate(new)}}
        letters = np.concatenate([self.known, fresh])[[row[t] for t in texts]]
        if scaled:
            return (letters - np.asarray(self.learned["mean"])) * float(self.learned["scale"])
        return np.concatenate([self.ranks(texts), letters], axis=1)


def tfidf(words: Sequence[str], idf: NDArray[np.float64], **options: Any) -> Any:
    """A fitted scikit-learn vectorizer with these words and weights."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(vocabulary=list(words), **options)
    vectorizer.idf_ = np.asarray(idf, np.float64)
    return vectorizer


def _by_frequency(texts: NDArray[Any]) -> tuple[list[str], NDArray[np.int64]]:
    """The values, the most frequent first, and their counts."""
    values, counts = np.unique(texts, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return values[order].tolist(), counts[order]
