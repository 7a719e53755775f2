"""The role of each table column: number, category, date, text, identifier, constant or label."""

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
"""Share of the cells that must have a type for the column to have it: one "unknown" among numbers is a missing number."""

MIN_DISTINCT, DISTINCT_SHARE = 50, 0.9
"""Words or codes name the rows if more than 50 of them, and more than this share, are distinct."""

HOLDS_LISTS = "holds lists"
WRITTEN_LISTS = "holds lists written as text"
"""Reasons for leaving out a column of lists."""

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
    """A column and its role.

    Attributes:
        name: of the column.
        role: number, category, date, text, identifier, constant, label, split or ignored.
        reason: why, in a few words.
        dates: the format of its dates, if it holds dates.

    >>> Column("age", "number", "50 distinct numbers").used
    True
    """

    name: str
    role: str
    reason: str
    dates: str | None = None

    @property
    def used(self) -> bool:
        """Whether the column becomes features."""
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
        frame: the table, with cells as written or with typed columns.
        label, text, split: the columns whose roles are known.
        ignore: columns to leave out.
        columns: the only columns to use, identifiers included.

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
            roles.append(Column(name, *_role(frame[name], name, target, chosen=columns is not None)))
    return tuple(roles)


def is_nested(column: pd.Series) -> bool:
    """Whether cells hold lists or dictionaries.

    >>> is_nested(pd.Series([["a", "b"], None])), is_nested(pd.Series(["a", None]))
    (True, False)
    """
    if column.dtype != object or not pd.api.types.infer_dtype(column, skipna=True).startswith("mixed"):
        return False
    return any(isinstance(v, (list, tuple, set, dict, np.ndarray)) for v in column)


def are_lists(texts: Iterable[str]) -> bool:
    """Whether nearly all texts are JSON lists or objects, such as embeddings.

    >>> are_lists(["[0.1, 0.2]", "[0.3, 0.4]"]), are_lists(["[sic] a text"])
    (True, False)
    """
    brackets = [text[:1] + text[-1:] in ("[]", "{}") for text in texts]
    return bool(brackets) and float(np.mean(brackets)) >= NEARLY_ALL


def median_words(texts: Sequence[str] | NDArray[Any]) -> float:
    """The median number of words, over at most about 2,000 of the texts.

    >>> median_words(["a very fine film", "dull"])
    2.5
    """
    sample = texts[:: max(1, len(texts) // 2000)]
    return float(np.median([text.count(" ") + 1 for text in sample])) if len(texts) else 0.0


def cell_texts(column: pd.Series, missing: str | None = None) -> NDArray[Any]:
    """(N,) the cells as texts without blanks around them; ``missing`` for empty cells.

    >>> cell_texts(pd.Series([" a", 1, "NA"])).tolist()
    ['a', '1', None]
    """
    codes, values = pd.factorize(column)
    texts = [missing if is_missing(v) else str(v).strip() for v in np.asarray(values, dtype=object)]
    return np.array([*texts, missing], dtype=object)[codes]


def numbers(column: pd.Series) -> NDArray[np.float64]:
    """(N,) the cells as numbers; NaN for empty cells, infinities and words.

    "$1,200" and "12 %" are numbers. If some cell can only have a decimal comma, such as "1,5", all cells have it.

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
        parsed = np.full(len(cells) + 1, np.nan)
        for k, cell in enumerate(cells):
            match = _WRITTEN.fullmatch(cell)
            if match is not None and not (match[1] and match[2]):
                parsed[k] = float(f"{match[1]}{match[2]}{match[3].replace(',', '')}{match[4] or ''}")
        values[unread] = parsed[codes]
    values[~np.isfinite(values)] = np.nan
    return values


def dates(column: pd.Series, form: str) -> NDArray[np.datetime64]:
    """(N,) the cells as dates of this format, NaT for other cells.

    >>> dates(pd.Series(["31.01.2024", "soon"]), "%d.%m.%Y").astype(str).tolist()
    ['2024-01-31T00:00:00.000000', 'NaT']
    """
    if not pd.api.types.is_datetime64_any_dtype(column):
        codes, texts = pd.factorize(cell_texts(column))
        read = pd.to_datetime(pd.Series(texts, dtype=object), errors="coerce", format=form, utc=True)
        column = pd.Series([*read, pd.NaT], dtype="datetime64[us, UTC]").iloc[codes]
    if getattr(column.dtype, "tz", None) is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    return column.to_numpy(dtype="datetime64[us]")


def _role(
    column: pd.Series, name: str, target: NDArray[Any] | None, *, chosen: bool
) -> tuple[str, str] | tuple[str, str, str]:
    """Role, reason and perhaps date format; ``chosen`` if the user asked for the column."""
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
    if not chosen and target is not None and _repeats(all_texts, target):
        return "label", "repeats the label in other words"
    if not chosen and are_lists(texts):
        return "ignored", WRITTEN_LISTS
    values = numbers(column)
    known = values[np.isfinite(values)]
    infinite = sum(t.lower().lstrip("+-") in ("inf", "infinity") for t in texts[~np.isfinite(values[present])])
    numeric = (len(known) + infinite) / len(texts) >= NEARLY_ALL
    like_days = len(known) > 0 and bool(((known > 19000000) & (known < 21000000) & (known == np.round(known))).all())
    form = _date_format(texts) if not numeric or like_days else None
    if form is not None:
        example = texts[0] if len(texts[0]) <= 30 else texts[0][:29] + "…"
        return "date", f"dates such as {example}", form
    why = None if chosen else _why_identifier(name, texts, known, distinct, numeric=numeric)
    if why is not None:
        return "identifier", why
    if numeric and not pd.api.types.is_bool_dtype(column):
        if not len(known) or (known.min() == known.max() and len(known) == len(values)):
            return "constant", "has one value only" if len(known) else "holds no finite number"
        return "number", f"{distinct:,} distinct numbers"
    if median_words(texts) >= SENTENCE and distinct > len(texts) / 2:
        return "text", "holds sentences"
    return "category", f"{distinct:,} distinct values"


def _why_identifier(
    name: str, texts: NDArray[Any], known: NDArray[np.float64], distinct: int, *, numeric: bool
) -> str | None:
    """Why a column identifies its rows; None if it does not."""
    count, name = len(texts), name.strip()
    many = distinct > max(20, 0.2 * count)
    if name.lower() in IDS and many:
        return f"named like an identifier, with {distinct:,} values in {count:,} rows"
    if distinct == count and (name.lower() in IDS or _ID_NAME.search(name)):
        return f"named like an identifier, and different in each of {count:,} rows"
    if numeric:
        if (
            distinct == count >= 20
            and len(known) > 1
            and (known == np.round(known)).all()
            and np.abs(known).max() < 2**53
        ):
            steps = np.diff(np.sort(known))
            if (np.diff(known) == steps[0]).all():
                return "numbers the rows"
            if (steps == steps[0]).all():
                return "whole numbers without a gap, each once"
            if (np.diff(known) > 0).all() and np.median(steps) <= 3:
                return "rises by whole numbers from row to row"
        return None
    sample = texts[:: max(1, count // 2000)]
    for kind, pattern in (("hashes", _HASH), ("web addresses", _URL)):
        if many and np.mean([bool(pattern.fullmatch(t)) for t in sample]) >= NEARLY_ALL:
            return f"holds {kind}"
    if distinct > MIN_DISTINCT and distinct > DISTINCT_SHARE * count and median_words(sample) < SENTENCE:
        return f"{distinct:,} distinct values in {count:,} rows"
    return None


def _repeats(texts: NDArray[Any], target: NDArray[Any]) -> bool:
    """Whether a column and the label determine each other."""
    labeled = np.array([label is not None for label in target], dtype=bool)
    texts, target = texts[labeled], target[labeled]
    count = len(set(target))
    if not 2 <= count == len(set(texts)) < len(target) / 2:
        return False
    return len(set(zip(texts, target, strict=True))) == count


def _date_format(texts: NDArray[Any]) -> str | None:
    """The format of nearly all distinct cells, if they are dates."""
    cells = pd.Series(pd.unique(texts)[:2000], dtype=object)
    if not cells.str.contains(r"\d").mean() >= NEARLY_ALL or cells.str.len().max() > 40:
        return None

    def fits(form: str) -> bool:
        read = (pd.to_datetime(part, errors="coerce", format=form, utc=True) for part in (cells.iloc[:20], cells))
        return all(part.notna().mean() >= NEARLY_ALL for part in read)  # most formats fail on the first cells

    if fits(ISO) and cells.str.contains("-").mean() >= NEARLY_ALL:
        return ISO
    times = TIME_FORMATS if cells.str.contains(":").mean() > 1 - NEARLY_ALL else TIME_FORMATS[:1]
    return next((day + time for day in DATE_FORMATS for time in times if fits(day + time)), None)
