"""Samples from a table: CSV, TSV, JSON, Excel or Parquet files, or a data frame."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from numpy.typing import NDArray

from compensate.data.columns import (
    HOLDS_LISTS,
    ID_NAMES,
    PROBED_CELLS,
    Column,
    Matrix,
    TableEncoder,
    analyze,
    embeddings,
    is_chat,
    is_nested,
    is_row,
    row_texts,
    text_columns,
    vectors,
)
from compensate.data.dataset import OTHERS, PARTS, Dataset, Source, Splits
from compensate.data.excel import SUFFIXES as EXCEL
from compensate.data.excel import read_excel
from compensate.data.jsonl import read_jsonl
from compensate.data.label_column import choose_text, decide_label, label_sign, targets
from compensate.data.labels import has_no_label, missing_labels
from compensate.data.parquet import SUFFIXES as PARQUET
from compensate.data.parquet import read_parquet
from compensate.errors import InputError, check
from compensate.files import check_size, check_width, read_text

MIN_HEADER_ROWS = 5  # rows from which it is checked whether the first line holds names
TEXTS = (".csv", ".tsv")
LINES = (".jsonl", ".ndjson", ".json")
SUFFIXES = (*TEXTS, *LINES, *EXCEL, *PARQUET)  # suffixes of table files; text files may be compressed
Roles = tuple[Column, ...]
# Reads a table whose rows have several labels: called with the frame, its name, the `LabelChoice` and options of `from_frame`
ReadSeveral = Callable[..., Dataset]


def is_table(path: Path) -> bool:
    """Whether a file name is that of a table, compressed or not."""
    return table_format(path) in SUFFIXES


def table_format(path: Path) -> str:
    """The suffix in lower case, without that of a compression."""
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes and suffixes[-1] in (".gz", ".xz", ".bz2"):
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def read_frame(path: str | Path, *, encoding: str = "utf-8", delimiter: str | None = None) -> pd.DataFrame:
    r"""The table as written: cells of a CSV or TSV are texts, ``007`` stays ``007``; other formats have typed cells.

    A folder or a pattern such as ``data/*.parquet`` names several Parquet files of one table. Blank lines are skipped. In a TSV whose
    lines all have the same number of tabs, quotes are ordinary characters; elsewhere they group.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "t.csv").write_text("id,label\n007,a\n")
    >>> read_frame(folder / "t.csv").loc[0, "id"]
    '007'
    """
    path = Path(path)
    kind = table_format(path)
    check(delimiter is None or len(delimiter) == 1, 'one character, such as ";"', delimiter=f'"{delimiter}"')
    if kind in PARQUET or path.is_dir():
        return read_parquet(path)
    if kind in LINES:
        return read_jsonl(path, encoding)
    if kind in EXCEL:
        return read_excel(path)
    text = read_text(path, encoding)
    header = text.lstrip("\n").split("\n", 1)[0].rstrip("\r")
    if not header:
        raise InputError(f"{path} is empty; expected a first line with the names of the columns.")
    if delimiter is None:
        delimiter = "\t" if kind == ".tsv" else max(",;\t|", key=header.count)
    elif delimiter not in header and any(sign in header for sign in ",;\t|"):
        raise InputError(f'the first line of {path} holds no "{delimiter}": {header[:80]!r}. Leave the delimiter out.')
    width = header.count(delimiter) + 1
    check_width(width, path)
    check_size(max(text.count("\n"), text.count("\r")), width, path)
    plain = delimiter == "\t" and '"' not in header
    plain = plain and all(line.count("\t") == width - 1 for line in text.split("\n") if line.strip("\r"))
    quoting: Literal[0, 3] = csv.QUOTE_NONE if plain else csv.QUOTE_MINIMAL
    as_text: dict[str, Any] = {"dtype": str, "keep_default_na": False, "na_filter": False, "index_col": False}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # cells beyond the header would be lost
            return pd.read_csv(io.StringIO(text), sep=delimiter, quoting=quoting, **as_text)
    except (pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError) as error:
        message = str(error).strip().rstrip(".").replace(" in line ", " in row ")
        # pandas counts rows; the line is found again here, because a quoted cell may hold line ends.
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting)
        columns = begins = ends = 0
        try:
            for row in rows:
                begins, ends, columns = ends + 1, rows.line_num, columns or len(row)
                if len(row) > columns:
                    message = f"the row that begins in line {begins} has {len(row)} cells, and the header {columns}"
                    break
            else:
                if "EOF inside string" in message and begins:
                    message = f"a quote in the row that begins in line {begins} is not closed"
        except csv.Error:  # a cell that is too long for this reader
            pass
        raise InputError(f"{path} is not a valid table: {message}. Check the quotes and delimiters there.") from error


def check_header(frame: pd.DataFrame, path: Path, option: str = "label") -> None:
    """Refuse a CSV, TSV or Excel file whose first line is a row instead of column names."""
    if table_format(path) not in (*TEXTS, *EXCEL) or len(frame) < MIN_HEADER_ROWS:
        return
    names = [str(name).strip() for name in frame.columns]
    bare = [re.sub(r"\.\d+$", "", name) for name in names]  # pandas adds a number to equal names
    first_line = [base if base in names else name for base, name in zip(bare, names, strict=True)]
    if is_row(first_line, frame):
        name, line = names[-1][:40], ", ".join(first_line)[:80]
        problem = f'the first line of {path} looks like a row and not like names of columns: "{line}"'
        remedy = 'Add a first line with a name for each column, such as "text,label"'
        choice = f'{option}="{name}" (--{option.replace("_", "-")} {name} on the command line)'
        raise InputError(f"{problem}. {remedy}. If these are the names, say which column holds the labels: {choice}.")


def read_table(
    path: str | Path, *, label: str | None = None, encoding: str = "utf-8", delimiter: str | None = None, **options: Any
) -> Splits:
    r"""Samples from a table file: texts if it has a text column, else features from its numbers and categories.

    Args:
        path: a .csv, .tsv, .jsonl, .json (these perhaps compressed), .xlsx or .parquet file, or a folder or pattern of Parquet files.
        label: the label column; see `from_frame`, which has further options.
        encoding, delimiter: of the file; by default UTF-8 and the delimiter of the first line.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "t.csv").write_text("size,color,label\n1,red,a\n2,blue,b\n3,red,a\n")
    >>> read_table(folder / "t.csv").train.classes
    ('a', 'b')
    """
    frame = read_frame(path, encoding=encoding, delimiter=delimiter)
    if label is None:
        check_header(frame, Path(path))
    return from_frame(frame, str(path), label=label, **options)


def from_frame(
    frame: pd.DataFrame,
    where: str,
    *,
    label: str | None = None,
    text: str | None = None,
    task: str | None = None,
    ignore: str | Sequence[str] = (),
    columns: str | Sequence[str] | None = None,
    embedding: str | None = None,
    split: str | None = None,
    missing: str | Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    like: Dataset | None = None,
    several: ReadSeveral | None = None,
) -> Splits:
    """Samples from a data frame. Lists of columns may be texts with commas.

    A column ``split`` with the values train, test or validation divides the data. Rows without a label are kept as `UNLABELED`.
    ``source`` describes the choices; ``raw`` holds the rows as written.

    Args:
        frame, where: the table, and its name in errors.
        label: the label column; by default chosen by its name (label, target, ...), else the only predictable column with few values.
        text: the text column, or several with commas; by default those that hold sentences. ``""``: none.
        task: ``"classification"`` or ``"regression"``; by default a numeric label with many values is a quantity.
        ignore: columns to leave out.
        columns: the only columns to use, next to the text. By default all but identifiers and columns with one value. ``""``: none.
        embedding: the column of embeddings, which replace all other features; by default the only column of lists of numbers.
        split: ``"all"`` keeps all rows together; by default a column ``split`` divides them.
        missing: cells of the label column that stand for a missing label; by default see `missing_labels`.
        classes: the class names, if the label column does not hold them all.
        like: a part of the same data that was read before: its columns, classes and features are used.
        several: reads rows with several labels; by default they are an error.

    >>> frame = pd.DataFrame({"size": [1.0, 2.0, 3.0], "label": ["a", "b", "a"]})
    >>> from_frame(frame, "the table").train.classes
    ('a', 'b')
    """
    if like is not None:
        label, text, classes = like.source.label, like.source.text or "", like.classes or None
        task = "regression" if like.regression else task
    check(split in (None, "all", *PARTS.values()), "train, test, validation or all", split=f'"{split}"')
    if not len(frame):
        raise InputError(f"{where} has no rows.")
    check_width(frame.shape[1], where)
    frame = frame.reset_index(drop=True)
    frame.columns = pd.Index([str(name) for name in frame.columns])
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise InputError(f'{where} has more than one column named "{twice}"; rename all but one.')
    label, text = (None if name is None else str(name) for name in (label, text))
    ignored = column_names(ignore)
    wanted, missing = (None if names is None else column_names(names) for names in (columns, missing))
    embedding, x_given = _find_embedding(frame, embedding, where, [*ignored, label], wanted)
    if embedding is not None:
        ignored = [*ignored, embedding]
    chats = [name for name in frame.columns if name not in (*ignored, label) and is_chat(frame[name])]
    nested = [name for name in frame.columns if name not in (*ignored, *chats) and is_nested(frame[name])]
    flat = frame.assign(**{name: row_texts(frame, name) for name in chats}).drop(
        columns=[*nested, *(c for c in ignored if c in frame.columns)]
    )
    known = () if wanted is None else (*wanted, label, *text_columns(text, flat.columns))
    readable = flat[[c for c in flat.columns if c in known]] if wanted else flat
    given_text, text = text, choose_text(readable, text, where, label)
    single = classes is not None or task is not None
    choice = decide_label(flat, where, label=label, text=text, lists=nested, missing=missing, single=single)
    if choice.several and several is not None:
        return Splits(several(frame, where, choice, text=given_text, ignore=ignored, columns=wanted, split=split))
    if nested and not choice.several:
        if flat.empty:
            problem = f"{where} holds lists in every column ({', '.join(nested)[:80]}), and lists are not read"
            expected = 'a text or features, and a label, in each row, such as {"text": "...", "label": "..."}'
            raise InputError(f"{problem}. Expected {expected}.")
        warnings.warn(
            f"{where}: the columns {', '.join(nested)} hold lists or objects, which are not used.", stacklevel=3
        )
    label = choice.column
    cells = frame[label].to_numpy(object)
    missing_texts = missing_labels(cells, missing, classes)
    target, names, reason = targets(cells, task, where, label, missing_texts, classes)
    part_column = next((c for c in frame.columns if c.strip().lower() == "split" and c not in (label, *ignored)), None)
    parts = None
    if part_column is not None and split != "all":
        parts = frame[part_column].astype(str).str.strip().str.lower().map(PARTS)
        odd = [f'says "{cell}"' for cell in frame[part_column][parts.isna()]]
        if odd or not (parts == "train").any():
            problem = odd[0] if odd else "names no training rows"
            raise InputError(f"{where}: the column split {problem}; expected train, test or validation.")
    if like is not None:
        roles, encoder = like.source.columns, like.source.encoder
    else:
        fitted = frame if parts is None else frame[parts == "train"]
        roles = analyze(fitted, label=label, text=text, split=part_column, ignore=ignored, columns=wanted)
        if x_given is not None:
            roles = tuple(
                replace(c, role="embedding", reason=f"{x_given.shape[1]} numbers") if c.name == embedding else c
                for c in roles
            )
        if text and wanted is None:  # another label is no property of the text
            roles = tuple(replace(c, role="ignored") if c.used and label_sign(c.name) in (0, 1) else c for c in roles)
        encoder, roles = (None, roles) if text or embedding is not None else _fit_encoder(fitted, label, roles, where)
    x: NDArray[Any]
    x = x_given if x_given is not None else row_texts(frame, text) if text else encoder(frame)
    ids = min((c.name for c in roles if c.role == "identifier"), key=lambda n: n.lower() not in ID_NAMES, default=None)
    source = Source(
        kind="text" if text else "table", label=label, text=text, target=reason, columns=roles, encoder=encoder,
        passed_over=choice.passed_over, runners_up=choice.runners_up,
        missing=Counter(str(cell).strip() for cell in cells if has_no_label(cell, missing_texts)),
        missing_given=missing, embedding=embedding, features_given=embedding is not None,
        split=None if parts is None else part_column,
        left_out={part: int((parts == part).sum()) for part in OTHERS if parts is not None and (parts == part).any()},
    )  # fmt: skip
    row_ids = None if ids is None else frame[ids].to_numpy(object)
    data = Dataset(x, target, names, ids=row_ids, raw=frame, rows=len(frame), source=source)
    if parts is None:
        return Splits(data)
    return Splits(**{str(name): data.subset((parts == name).to_numpy()) for name in parts.unique()})


def _find_embedding(
    frame: pd.DataFrame, name: str | None, where: str, others: Sequence[str | None], wanted: Sequence[str] | None
) -> tuple[str | None, Matrix | None]:
    """The column of embeddings and its values, as named or as found by the cells."""
    if name is not None:
        return name, embeddings(frame, name, where)
    free = [c for c in frame.columns if c not in others and (wanted is None or c in wanted)]
    free = [c for c in free if vectors(frame[c].head(PROBED_CELLS)) is not None]
    found = {c: values for c in free if (values := vectors(frame[c])) is not None}
    if len(found) > 1:
        first = next(iter(found))
        named = f'features="{first}" (--features {first} on the command line)'
        raise InputError(f"{where} has several columns of embeddings: {', '.join(found)}. Say which: {named}.")
    return next(iter(found.items()), (None, None))


def _fit_encoder(frame: pd.DataFrame, label: str, roles: Roles, where: str) -> tuple[TableEncoder, Roles]:
    """The fitted encoder, and the roles of the columns it uses."""
    encoder = TableEncoder.fit(frame, roles)
    if encoder.names:
        return encoder, roles
    # Without other features, a column that looks like an identifier or repeats the label is used.
    rest = [c.name for c in roles if c.role not in ("ignored", "split") and c.name != label]
    if not rest:
        lists = [c.name for c in roles if c.reason.startswith(HOLDS_LISTS)]
        also = f" and lists, which are not read ({', '.join(lists)[:80]})" if lists else ""
        remedy = " Embeddings go into an .npy file: features=... (--features on the command line)." if lists else ""
        problem = f'{where} has nothing but the label column "{label}"{also}'
        raise InputError(f"{problem}; a sample needs a text or features.{remedy}")
    again = {c.name: c for c in analyze(frame, label=label, columns=rest) if c.name in rest}
    roles = tuple(again.get(c.name, c) for c in roles)
    encoder = TableEncoder.fit(frame, roles)
    if not encoder.names:
        raise InputError(f"{where}: no column of {', '.join(rest)} says anything about the label.")
    return encoder, roles


def column_names(given: str | Sequence[str]) -> list[str]:
    """Column names from a list, or from a text with commas."""
    return [name.strip() for name in given.split(",") if name.strip()] if isinstance(given, str) else list(given)
