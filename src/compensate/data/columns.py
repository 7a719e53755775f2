"""What each column of a table is: a number, a category, a date, a text, an identifier, a constant, or the label."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compensate.data.labels import is_missing
from compensate.errors import InputError, nearest

USED = ("number", "category", "date")
"""Roles that become features."""

IDS = ("id", "index", "uuid", "guid", "key", "row", "rownames", "unnamed: 0", "")
"""Names of columns that number or name the rows."""

NEARLY_ALL = 0.95
"""A column has a type if this share of its cells has: one "unknown" among numbers is a missing number."""

MANY_DISTINCT, DISTINCT_SHARE = 50, 0.9
"""Single words or codes of which more than 50, and more than this share of the rows, are distinct name the rows."""

INFINITE = ("inf", "infinity")

HOLDS_LISTS = "holds lists"
"""The reasons for which a column of lists is not used."""

WRITTEN_LISTS = "holds lists written as text"

SENTENCE = 3
"""Median number of words from which a column is text."""

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


@dataclass(frozen=True)
class Column:
    """A column and what it is taken for.

    Attributes:
        name: of the column.
        role: number, category, date, text, identifier, constant, label, split or ignored.
        reason: why, in a few words.
        dates: the format of its dates, if that is what it holds.

    >>> Column("age", "number", "50 distinct numbers").used
    True
    """

    name: str
    role: str
    reason: str
    dates: str | None = None

    @property
    def used(self) -> bool:
        """Whether it becomes features of a table."""
        return self.role in USED


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

    Args:
        frame: the table, of cells as written or of typed columns.
        label, text, split: the columns that are known to be these.
        ignore: columns to leave out.
        columns: the only columns to use, whatever they look like (identifiers too, if they are named here).

    >>> frame = pd.DataFrame({"id": range(100), "age": [30.5, 40] * 50, "day": ["2024-01-31", "2024-02-01"] * 50})
    >>> [(c.name, c.role) for c in analyze(frame)]
    [('id', 'identifier'), ('age', 'number'), ('day', 'date')]
    """
    names = [str(name) for name in frame.columns]
    for option, given in (("ignore", ignore), ("columns", columns or ())):
        for name in given:
            if name not in names:
                raise InputError(f'{option} names the column "{name}", which is not there; {nearest(name, names)}')
    known = {label: ("label", "chosen as the label"), text: ("text", "the text"), split: ("split", "names the part")}
    target = None if label is None else _texts(frame[label])
    found = []
    for name in names:
        if name in known:
            found.append(Column(name, *known[name]))
        elif name in ignore or (columns is not None and name not in columns):
            found.append(Column(name, "ignored", "left out by choice"))
        elif is_nested(frame[name]):
            found.append(Column(name, "ignored", HOLDS_LISTS))
        else:
            found.append(_column(frame[name], name, target, wanted=columns is not None))
    return tuple(found)


def is_nested(column: pd.Series) -> bool:
    """Whether cells hold lists or tables instead of values.

    >>> is_nested(pd.Series([["a", "b"], None])), is_nested(pd.Series(["a", None]))
    (True, False)
    """
    if column.dtype != object or not pd.api.types.infer_dtype(column, skipna=True).startswith("mixed"):
        return False
    return any(isinstance(v, (list, tuple, set, dict, np.ndarray)) for v in column)


def are_lists(texts: Iterable[str]) -> bool:
    """Whether nearly all texts are lists or objects in JSON, such as embeddings.

    >>> are_lists(["[0.1, 0.2]", "[0.3, 0.4]"]), are_lists(["[sic] a text"])
    (True, False)
    """
    marks = [text[:1] + text[-1:] in ("[]", "{}") for text in texts]
    return bool(marks) and float(np.mean(marks)) >= NEARLY_ALL


def numbers(column: pd.Series) -> NDArray[np.float64]:
    """(N,) the cells as numbers, NaN where there is none: empty cells, infinities, words.

    "$1,200" and "12 %" are numbers. Where some cell of the column can only have a decimal comma, such as "1,5", all have it.

    >>> numbers(pd.Series(["1", " 2.5", "$1,200", "12%", "NA", "inf", None])).tolist()
    [1.0, 2.5, 1200.0, 12.0, nan, nan, nan]
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
        parsed = np.array([*(_written(cell) for cell in cells), np.nan])
        values[unread] = parsed[codes]
    values[~np.isfinite(values)] = np.nan
    return values


def dates(column: pd.Series, form: str) -> NDArray[np.datetime64]:
    """(N,) the cells as dates of this format, NaT where they are none.

    >>> dates(pd.Series(["31.01.2024", "soon"]), "%d.%m.%Y").astype(str).tolist()
    ['2024-01-31T00:00:00.000000', 'NaT']
    """
    if not pd.api.types.is_datetime64_any_dtype(column):
        codes, distinct = pd.factorize(column)
        cells = [None if is_missing(v) else str(v).strip() for v in np.asarray(distinct, dtype=object)]
        read = pd.to_datetime(pd.Series(cells, dtype=object), errors="coerce", format=form, utc=True)
        column = pd.Series([*read, pd.NaT], dtype="datetime64[us, UTC]").iloc[codes]
    if getattr(column.dtype, "tz", None) is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    return column.to_numpy(dtype="datetime64[us]")


def _column(column: pd.Series, name: str, target: NDArray[Any] | None, *, wanted: bool) -> Column:
    if pd.api.types.is_datetime64_any_dtype(column):
        return _constant(column, name) or Column(name, "date", "dates", ISO)
    texts = _texts(column)
    there = np.array([text is not None for text in texts])
    constant = _constant(column, name, texts[there], bool(there.all()))
    if constant is not None:
        return constant
    distinct = len(set(texts[there]))
    if target is not None and not wanted and _same(texts, target):
        return Column(name, "label", "repeats the label in other words")
    if not wanted and are_lists(texts[there]):
        return Column(name, "ignored", WRITTEN_LISTS)
    values = numbers(column)
    finite = np.isfinite(values[there])
    infinite = sum(text.lower().lstrip("+-") in INFINITE for text in texts[there][~finite])
    share = (finite.sum() + infinite) / len(finite)
    form = _date_format(texts[there]) if share < NEARLY_ALL or _like_days(values) else None
    if form is not None:
        return Column(name, "date", f"dates such as {_short(texts[there][0])}", form)
    why = None if wanted else _names_rows(name, texts[there], values, distinct, numeric=share >= NEARLY_ALL)
    if why is not None:
        return Column(name, "identifier", why)
    if share >= NEARLY_ALL and not pd.api.types.is_bool_dtype(column):
        known = values[np.isfinite(values)]
        if not len(known) or (known.min() == known.max() and len(known) == len(values)):
            return Column(name, "constant", "has one value only" if len(known) else "holds no finite number")
        return Column(name, "number", f"{distinct:,} distinct numbers")
    if _words(texts[there]) >= SENTENCE and distinct > there.sum() / 2:
        return Column(name, "text", "holds sentences")
    return Column(name, "category", f"{distinct:,} distinct values")


def _constant(column: pd.Series, name: str, texts: NDArray[Any] | None = None, complete: bool = True) -> Column | None:
    values = column.dropna().unique() if texts is None else set(texts)
    if not len(values):
        return Column(name, "constant", "is empty")
    if len(values) == 1 and complete and not (texts is None and column.isna().any()):
        return Column(name, "constant", "has one value only")
    return None


def _names_rows(
    name: str, texts: NDArray[Any], values: NDArray[np.float64], distinct: int, *, numeric: bool
) -> str | None:
    """Why a column only names its rows; none if it says more."""
    count = len(texts)
    unique = distinct == count
    named = name.strip().lower() in IDS or _ID_NAME.search(name.strip()) is not None
    if name.strip().lower() in IDS and distinct > max(20, 0.2 * count):
        return f"named like an identifier, with {distinct:,} values in {count:,} rows"
    if unique and named:
        return f"named like an identifier, and different in each of {count:,} rows"
    if numeric:
        known = values[np.isfinite(values)]
        if unique and count >= 20 and (known == np.round(known)).all() and np.abs(known).max() < 2**53:
            steps = np.diff(np.sort(known))
            if (steps == steps[0]).all():
                return (
                    "numbers the rows"
                    if (np.diff(known) == steps[0]).all()
                    else "whole numbers without a gap, each once"
                )
            if (np.diff(known) > 0).all() and np.median(steps) <= 3:
                return "rises by whole numbers from row to row"
        return None
    sample = texts[:: max(1, count // 2000)]
    for what, pattern in (("hashes", _HASH), ("web addresses", _URL)):
        if distinct > max(20, 0.2 * count) and np.mean([bool(pattern.fullmatch(t)) for t in sample]) >= NEARLY_ALL:
            return f"holds {what}"
    if distinct > MANY_DISTINCT and distinct > DISTINCT_SHARE * count and _words(sample) < SENTENCE:
        return f"{distinct:,} distinct values in {count:,} rows"
    return None


def _same(texts: NDArray[Any], target: NDArray[Any]) -> bool:
    """Whether a column and the label tell each other: pairs, values and labels are equally many."""
    labeled = target != None  # noqa: E711 - of each entry
    texts, target = texts[labeled], target[labeled]
    values, labels = set(texts), set(target)
    if len(values) != len(labels):
        return False
    both = list(zip(texts, target, strict=True))
    return 2 <= len(labels) == len(values) < len(both) / 2 and len(set(both)) == len(labels)


def _date_format(texts: NDArray[Any]) -> str | None:
    """The format of nearly all distinct cells, if they are dates."""
    cells = pd.Series(pd.unique(texts)[:2000], dtype=object)
    if not cells.str.contains(r"\d").mean() >= NEARLY_ALL or cells.str.len().max() > 40:
        return None
    if _read_as(cells, ISO) and cells.str.contains("-").mean() >= NEARLY_ALL:
        return ISO
    times = TIME_FORMATS if cells.str.contains(":").mean() > 1 - NEARLY_ALL else TIME_FORMATS[:1]
    forms = [day + time for day in DATE_FORMATS for time in times]
    return next((form for form in forms if _read_as(cells, form)), None)


def _read_as(cells: pd.Series, form: str) -> bool:
    first = cells.iloc[:20]  # most formats fail at once
    for part in (first, cells):
        read = pd.to_datetime(part, errors="coerce", format=form, utc=True)
        if read.notna().mean() < NEARLY_ALL:
            return False
    return True


def _like_days(values: NDArray[np.float64]) -> bool:
    """Whether numbers may be days written as 20240131."""
    known = values[np.isfinite(values)]
    return len(known) > 0 and bool(((known > 19000000) & (known < 21000000) & (known == np.round(known))).all())


def _texts(column: pd.Series) -> NDArray[Any]:
    """(N,) the cells as texts, None where missing; each distinct value is looked at once."""
    codes, values = pd.factorize(column)
    texts = [None if is_missing(v) else str(v).strip() for v in np.asarray(values, dtype=object)]
    return np.array([*texts, None], dtype=object)[codes]


def _written(cell: str) -> float:
    match = _WRITTEN.fullmatch(cell)
    if match is None or (match[1] and match[2]):
        return np.nan
    return float(f"{match[1]}{match[2]}{match[3].replace(',', '')}{match[4] or ''}")


def _words(texts: Any) -> float:
    return float(np.median([text.count(" ") + 1 for text in texts[:: max(1, len(texts) // 2000)]])) if len(texts) else 0


def _short(text: str) -> str:
    return text if len(text) <= 30 else text[:29] + "…"
