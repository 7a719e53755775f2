"""Your own table (CSV, TSV, JSONL, Excel, Parquet): which column is the label, which the text, what the rest says."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compensate.data.columns import (
    HOLDS_LISTS,
    IDS,
    NEARLY_ALL,
    SENTENCE,
    WRITTEN_LISTS,
    Column,
    analyze,
    are_lists,
    is_nested,
    numbers,
)
from compensate.data.dataset import Dataset, Source, Splits
from compensate.data.excel import SUFFIXES as EXCEL
from compensate.data.excel import read_excel
from compensate.data.features import TableEncoder
from compensate.data.jsonl import read_jsonl
from compensate.data.label_column import LABEL_SETS, LABELS, SeveralLabels, passed_over, runners_up, targets
from compensate.data.label_column import choose_label as choose_label
from compensate.data.labels import encode_labels, has_no_label, is_missing, missing_labels
from compensate.data.parquet import SUFFIXES as PARQUET
from compensate.data.parquet import read_parquet
from compensate.errors import InputError, nearest
from compensate.files import check_size, check_width, decode, read_bytes

PARTS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
}
OTHERS = ("test", "validation")
"""Parts that are not for training."""

SHORT, FEW_COLUMNS = 6, 3
"""A column of fewer words than six is the text only where at most three others could be features (or the label)."""

FEW_ROWS = 5
"""Rows without which it is not asked whether the first line holds names."""

TEXTS = (".csv", ".tsv")
LINES = (".jsonl", ".ndjson")
SUFFIXES = (*TEXTS, *LINES, *EXCEL, *PARQUET)
"""Of files that hold a table; those that are text may be compressed."""


def is_table(path: Path) -> bool:
    """Whether a file's name says that it is a table, compressed or not."""
    return table_format(path) in SUFFIXES


def table_format(path: Path) -> str:
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes and suffixes[-1] in (".gz", ".xz", ".bz2"):
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def read_frame(path: str | Path, *, encoding: str = "utf-8", delimiter: str | None = None) -> pd.DataFrame:
    r"""The table as it is written: every cell of a CSV or TSV a text, so that ``007`` stays ``007``; else typed cells.

    Of an Excel file the first sheet is read. Several Parquet files are one table: give their folder, or a pattern such as
    ``data/*.parquet``. Blank lines are no rows. In a TSV whose lines all have the same number of tabs a quote is a letter like any other,
    as in most corpora; else quotes group, as they always do in a CSV.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "t.csv").write_text("id,label\n007,a\n")
    >>> read_frame(folder / "t.csv").loc[0, "id"]
    '007'
    """
    path = Path(path)
    kind = table_format(path)
    if delimiter is not None and len(delimiter) != 1:
        raise InputError(f'delimiter is "{delimiter}"; expected one character, such as ";".')
    if kind in PARQUET or path.is_dir():
        return read_parquet(path)
    if kind in LINES:
        return read_jsonl(path, encoding)
    if kind in EXCEL:
        return read_excel(path)
    text = decode(read_bytes(path, lines=True), path, encoding)
    header = text.lstrip("\n").split("\n", 1)[0].rstrip("\r")
    if not header:
        raise InputError(f"{path} is empty; expected a first line with the names of the columns.")
    if delimiter is None:
        delimiter = "\t" if kind == ".tsv" else max(",;\t|", key=header.count)
    elif delimiter not in header and any(sign in header for sign in ",;\t|"):
        raise InputError(
            f'the first line of {path} holds no "{delimiter}", which was given as the delimiter: {header[:80]!r}. Leave the delimiter '
            "out, and it is found."
        )
    check_width(header.count(delimiter) + 1, path)
    check_size(max(text.count("\n"), text.count("\r")), header.count(delimiter) + 1, path)
    plain = delimiter == "\t" and '"' not in header and _even(text, header.count("\t"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # cells beyond the header would be lost
            return pd.read_csv(
                io.StringIO(text),
                sep=delimiter,
                dtype=str,
                keep_default_na=False,
                na_filter=False,
                index_col=False,
                quoting=csv.QUOTE_NONE if plain else csv.QUOTE_MINIMAL,
            )
    except (pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError) as error:
        fault = _fault(str(error).strip().rstrip("."), text, delimiter, plain)
        raise InputError(
            f"{path} cannot be read as a table: {fault}. Check the quotes and delimiters there."
        ) from error


def check_header(frame: pd.DataFrame, path: Path, option: str = "label") -> None:
    """Refuses a CSV, TSV or Excel file whose first line is a row: it would be lost as the names of the columns.

    A cell of the first line shows a row if it is a number above numbers, or a value of its column. One that differs in kind from the cells below
    it shows names. Consecutive whole numbers, such as those of pandas or years, show neither.
    """
    if table_format(path) not in (*TEXTS, *EXCEL) or len(frame) < FEW_ROWS:
        return
    names = [str(name).strip() for name in frame.columns]
    bare = [re.sub(r"\.\d+$", "", name) for name in names]  # pandas tells equal names apart by a number
    cells = [base if base in names else name for base, name in zip(bare, names, strict=True)]
    whole = [int(cell) for cell in cells if cell.isdecimal()]
    counted = len(whole) > 1 and whole == list(range(whole[0], whole[0] + len(whole)))
    shown = False
    for k, cell in enumerate(cells[:100]):
        if counted and cell.isdecimal():
            continue
        fits = _fits_column(cell, frame.iloc[:200, k])
        if fits is False:
            return
        shown = shown or fits is True
    if shown:
        flag = f"--{option.replace('_', '-')}"
        raise InputError(
            f'the first line of {path} looks like a row and not like names of columns: "{", ".join(cells)[:80]}". Add a first line with a name for '
            f'each column, such as "text,label". If these are the names, say which column holds the labels: {option}="{names[-1][:40]}" '
            f"({flag} {names[-1][:40]} on the command line)."
        )


def _fits_column(name: str, column: pd.Series) -> bool | None:
    """Whether a name could be a cell of its column; none if nothing shows it."""
    cells = [str(v).strip() for v in column if not is_missing(v)]
    if not cells or (name.startswith("Unnamed: ") and name != "Unnamed: 0"):  # pandas names an empty cell so
        return None
    if name.lower() in LABELS:
        return False
    finite = np.isfinite(numbers(pd.Series([*cells, name], dtype=object)))
    if finite[:-1].mean() >= NEARLY_ALL:
        return bool(finite[-1])
    if name in cells:
        return True
    words = np.median([cell.count(" ") + 1 for cell in cells])
    return False if len(set(cells)) <= len(cells) / 2 or (words >= SENTENCE and " " not in name) else None


def read_table(
    path: str | Path,
    *,
    label: str | None = None,
    text: str | None = None,
    task: str | None = None,
    ignore: str | Sequence[str] = (),
    columns: str | Sequence[str] | None = None,
    split: str | None = None,
    missing: str | Sequence[str] | None = None,
    encoding: str = "utf-8",
    delimiter: str | None = None,
) -> Splits:
    r"""Samples from a table: texts if it has a text column, else features from its numbers and categories.

    Args:
        path: a .csv, .tsv, .jsonl (these perhaps compressed), .xlsx or .parquet file; or several Parquet files: their
            folder, or a pattern such as ``data/*.parquet``.
        label: the label's column; by default chosen by its name (label, target, class, sentiment, ...), else the only one
            with few values that can be predicted.
        text: the text's column; by default the one with the longest texts, if any has sentences. ``""``: none.
        task: ``"classification"`` or ``"regression"``; by default a numeric label with many values is a quantity.
        ignore: columns to leave out, a list or a text with commas.
        columns: the only columns to use, likewise. By default all but identifiers and columns with one value.
        split: ``"all"`` keeps all rows together, whatever a column ``split`` says.
        missing: cells of the label column that stand for a missing label, a list or a text with commas; by default `missing_labels` says which.
        encoding, delimiter: of the file, if they are not UTF-8 and the obvious sign.

    A column ``split`` that says train, test or validation parts the data. Rows without a label stay, `UNLABELED`.
    ``info`` tells what was chosen; ``raw`` holds the rows as written.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "t.csv").write_text("size,color,label\n1,red,a\n2,blue,b\n3,red,a\n")
    >>> data = read_table(folder / "t.csv").train
    >>> data.classes, len(data)
    (('a', 'b'), 3)
    """
    frame = read_frame(path, encoding=encoding, delimiter=delimiter)
    if label is None:
        check_header(frame, Path(path))
    chosen: dict[str, Any] = {"ignore": ignore, "columns": columns, "split": split, "missing": missing}
    return from_frame(frame, str(path), label=label, text=text, task=task, **chosen)


def from_frame(
    frame: pd.DataFrame,
    where: str,
    *,
    label: str | None = None,
    text: str | None = None,
    task: str | None = None,
    ignore: str | Sequence[str] = (),
    columns: str | Sequence[str] | None = None,
    split: str | None = None,
    missing: str | Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    like: Dataset | None = None,
) -> Splits:
    """As `read_table`, from a data frame.

    Args:
        frame, label, text, task, ignore, columns, split, missing: as there.
        where: what to call it in errors.
        classes: the names of the classes, if the label column does not hold them all.
        like: another part of the same data, read before: its columns, classes and features are used.

    >>> frame = pd.DataFrame({"size": [1.0, 2.0, 3.0], "label": ["a", "b", "a"]})
    >>> from_frame(frame, "the table").train.classes
    ('a', 'b')
    """
    if like is not None:
        label, text, classes = like.source.label, like.source.text or "", like.classes or None
        task = "regression" if like.regression else task
    if split not in (None, "train", "all"):
        raise InputError(f'split is "{split}"; expected train or all.')
    if not len(frame):
        raise InputError(f"{where} has no rows.")
    frame = _named(frame, where)
    label, text = (None if name is None else str(name) for name in (label, text))
    ignored, wanted = column_names(ignore), None if columns is None else column_names(columns)
    nested = [name for name in frame.columns if name not in ignored and is_nested(frame[name])]
    plain = any(name.strip().lower() in LABELS for name in frame.columns if name not in ignored)
    sets = LABELS if plain else (*LABELS, *LABEL_SETS)
    for name in nested:
        if name == label or (label is None and name.strip().lower() in sets):
            raise SeveralLabels(
                f'the column "{name}" of {where} holds lists; expected one label a row, not several. Keep one label '
                "of each list, or name another column: label=... (--label on the command line).",
                name,
            )
    flat = frame.drop(columns=[*nested, *(c for c in ignored if c in frame.columns)])
    if nested and flat.empty:
        raise InputError(
            f"{where} holds lists in every column ({', '.join(nested)[:80]}), and lists are not read. Expected a text or features, and "
            'a label, in each row, such as {"text": "...", "label": "..."}.'
        )
    if nested:
        warnings.warn(f"{where}: the columns {', '.join(nested)} hold lists, which are not used.", stacklevel=3)
    readable = flat if wanted is None else flat[[c for c in flat.columns if c in (*wanted, label, text)]]
    text = choose_text(readable, text, where, label)
    given, label = label, choose_label(flat, label, where, text)
    cells = frame[label].to_numpy(object)
    chosen = None if missing is None else column_names(missing)
    lost = missing_labels(cells, chosen, classes)
    if classes is None:
        target, names, reason = targets(cells, task, where, label, lost)
    else:
        target, names = encode_labels(cells, classes, tuple(lost))
        reason = f"{len(names)} classes"
    parting = next((c for c in frame.columns if c.strip().lower() == "split" and c not in (label, *ignored)), None)
    parts = None if parting is None or split == "all" else _parts(frame[parting], where)
    counts = {} if parts is None else dict(parts.value_counts())
    fitted = frame if parts is None else frame[parts == "train"]
    roles = (
        analyze(fitted, label=label, text=text, split=parting, ignore=ignored, columns=wanted)
        if like is None
        else like.source.columns
    )
    encoder = None
    x: NDArray[Any]
    if text:
        x = np.array(["" if is_missing(v) else str(v) for v in frame[text]], dtype=object)
    else:
        encoder, roles = _encoder(fitted, label, roles, where) if like is None else (like.source.encoder, roles)
        x = encoder(frame)
    ids = min((c.name for c in roles if c.role == "identifier"), key=lambda n: n.lower() not in IDS, default=None)
    data = Dataset(
        x,
        target,
        names,
        ids=None if ids is None else frame[ids].to_numpy(object),
        raw=frame,
        rows=len(frame),
        source=Source(
            kind="text" if text else "table",
            label=label,
            text=text,
            target=reason,
            columns=roles,
            passed_over=passed_over(flat, label) if given is None else {},
            encoder=encoder,
            runners_up=runners_up(flat, label, text) if given is None else (),
            missing=Counter(str(cell).strip() for cell in cells if has_no_label(cell, lost)),
            missing_given=chosen,
            split=None if parts is None else parting,
            left_out={part: int(counts[part]) for part in OTHERS if part in counts},
        ),
    )
    if parts is None:
        return Splits(data)
    return Splits(**{str(name): data.subset((parts == name).to_numpy()) for name in parts.unique()})


def _encoder(
    frame: pd.DataFrame, label: str, roles: tuple[Column, ...], where: str
) -> tuple[TableEncoder, tuple[Column, ...]]:
    """The fitted encoder, and the roles of the columns it uses."""
    encoder = TableEncoder.fit(frame, roles)
    if encoder.names:
        return encoder, roles
    # Better a column that looks like an identifier or a copy of the label than none at all; the roles say so.
    rest = [c.name for c in roles if c.role not in ("ignored", "split") and c.name != label]
    if not rest:
        lists = [c.name for c in roles if c.reason in (HOLDS_LISTS, WRITTEN_LISTS)]
        also = f" and lists, which are not read ({', '.join(lists)[:80]})" if lists else ""
        embeddings = " Embeddings go into an .npy file: features=... (--features on the command line)." if lists else ""
        raise InputError(
            f'{where} has nothing but the label column "{label}"{also}; a sample needs a text or features.{embeddings}'
        )
    roles = tuple(
        again if first.name in rest else first
        for first, again in zip(roles, analyze(frame, label=label, columns=rest), strict=True)
    )
    encoder = TableEncoder.fit(frame, roles)
    if not encoder.names:
        raise InputError(f"{where}: no column of {', '.join(rest)} says anything about the label.")
    return encoder, roles


def column_names(given: str | Sequence[str]) -> list[str]:
    """Column names from a list, or from a text with commas.

    >>> column_names("id, url"), column_names(["a,b"])
    (['id', 'url'], ['a,b'])
    """
    return [name.strip() for name in given.split(",")] if isinstance(given, str) else list(given)


def choose_text(frame: pd.DataFrame, text: str | None, where: str, label: str | None = None) -> str | None:
    """The text's column: as given, or the one with the longest sentences; none if no column has sentences.

    A few words beside several columns of numbers and categories, such as the names of people, are not what the rows are about.

    >>> frame = pd.DataFrame({"review": ["a very fine film", "a dull and long one"], "label": ["1", "0"]})
    >>> choose_text(frame, None, "the table")
    'review'
    """
    names = [str(c) for c in frame.columns]
    if text is not None:
        if text and text not in names:
            raise InputError(f'{where} has no column "{text}"; {nearest(text, names)}')
        return text or None
    best, longest, most_words = None, 0.0, 0.0
    sample = frame.iloc[:: max(1, len(frame) // 2000)]
    for name in names:
        if name == label or name.strip().lower() in LABELS:
            continue
        values = [str(v) for v in sample[name] if not is_missing(v)]
        words = np.median([v.count(" ") + 1 for v in values]) if values else 0
        if words >= SENTENCE and not are_lists(v.strip() for v in values) and len(set(values)) > len(values) / 2:
            length = float(np.mean([len(v) for v in values]))
            if length > longest:
                best, longest, most_words = name, length, words
    if best is not None and most_words < SHORT:
        others = sample.drop(columns=[best, *([label] if label in names else [])])
        if sum(c.used and c.name.strip().lower() not in LABELS for c in analyze(others)) > FEW_COLUMNS:
            return None
    return best


def _parts(column: pd.Series, where: str) -> pd.Series:
    parts = column.astype(str).str.strip().str.lower().map(PARTS)
    if parts.isna().any():
        odd = column[parts.isna()].iloc[0]
        raise InputError(f'{where}: the column split says "{odd}"; expected train, test or validation.')
    if not (parts == "train").any():
        raise InputError(f"{where}: the column split names no training rows.")
    return parts


def _named(frame: pd.DataFrame, where: str) -> pd.DataFrame:
    """The table with texts as the names of its columns, each of which must be another."""
    check_width(frame.shape[1], where)
    names = pd.Index([str(name) for name in frame.columns])
    if not names.is_unique:
        twice = names[names.duplicated()][0]
        raise InputError(f'{where} has more than one column named "{twice}"; rename all but one.')
    frame = frame.reset_index(drop=True)
    frame.columns = names
    return frame


def _fault(said: str, text: str, delimiter: str, plain: bool) -> str:
    """The row at fault by its line of the file: what pandas said counts rows, and a quoted cell may hold line ends."""
    lines = io.StringIO(text, newline="")
    rows = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE if plain else csv.QUOTE_MINIMAL)
    width = begins = ends = 0
    try:
        for row in rows:
            begins, ends, width = ends + 1, rows.line_num, width or len(row)
            if len(row) > width:
                return f"the row that begins in line {begins} has {len(row)} cells, and the header {width}"
    except csv.Error:  # a cell that is too long for this reader
        begins = 0
    if "EOF inside string" in said and begins:
        return f"a quote in the row that begins in line {begins} is not closed"
    return said.replace(" in line ", " in row ")


def _even(text: str, tabs: int) -> bool:
    return all(line.count("\t") == tabs for line in text.split("\n") if line.strip("\r"))
