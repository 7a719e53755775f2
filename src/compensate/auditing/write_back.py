"""Writing decided labels into the data: one editor for each file format, which changes the cells of labels and nothing else.

CSV, TSV, JSONL and CoNLL files keep every other byte (`TextEditor`), Excel files every other part of the archive; Parquet files and saved
data sets keep their other columns.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape  # nosec B406: writes, and parses nothing

import numpy as np
from numpy.typing import NDArray

from compensate.auditing.class_names import same_name
from compensate.auditing.content import digest_frame, digest_images, list_images
from compensate.data.excel import SUFFIXES as EXCEL
from compensate.data.excel import read_sheet
from compensate.data.folder import relative
from compensate.data.jsonl import objects, records
from compensate.data.label_column import choose_label, choose_text
from compensate.data.label_files import read_labels
from compensate.data.labels import is_missing, label_name
from compensate.data.load import frame_and_images, is_saved, named_labels, open_saved, training_part
from compensate.data.parquet import SUFFIXES as PARQUET
from compensate.data.parquet import is_pattern, parquet_files, read_arrow
from compensate.data.tables import LINES, TEXTS, read_frame, table_format
from compensate.errors import InputError
from compensate.extras import require
from compensate.files import check_regular, decode, read_bytes, replaced_folder, write_atomically, writing

if TYPE_CHECKING:
    import pandas as pd

Span = tuple[int, int]  # start and end of a cell in a text
Changes = Mapping[int, str | None]  # new labels by row; None drops the row
_COMPRESS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}

# Leading blanks and full-width signs count too: some programs trim the ones and fold the others.
_FORMULA = re.compile(r"'*[ \t\r\n]*[=+\-@\uff1d\uff0b\uff0d\uff20]|'*[\t\r\n]")
_WITHIN = re.compile(r"(?<=[;\t\r\n])(?='* *[=+\-@\uff1d\uff0b\uff0d\uff20])")
_GUARDED = re.compile(r"(?<=[;\t\r\n])'(?='* *[=+\-@\uff1d\uff0b\uff0d\uff20])")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_QUOTED = r'"[^"]*(?:""[^"]*)*(?:"|\Z)'

_CELL = re.compile(r"<((?:\w+:)?)c\b([^>]*?)(?:/>|>(.*?)</\1c>)", re.DOTALL)
_PLACE = re.compile(r'\br="([A-Z]{1,3})([0-9]+)"')
_KIND = re.compile(r'\s+t="[^"]*"')
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"


# --- cells ----------------------------------------------------------------------------------------------------


def is_number(text: str) -> bool:
    """Whether a text is a decimal number and nothing else."""
    return _NUMBER.fullmatch(text) is not None


def guard(text: str) -> str:
    """The text for a file that may be opened in a spreadsheet, where a cell that begins with ``=``, ``+``, ``-`` or ``@`` is a formula.

    An apostrophe is put before such a text and before a text that looks guarded already; numbers such as -1 stay. The same is done after
    each semicolon, tab and line end within a text: spreadsheets that separate cells by semicolons split a line there, even within quotes.

    >>> guard("=1+1"), guard("-1"), guard("'=x"), guard("cat"), guard("a;=1+1")
    ("'=1+1", '-1', "''=x", 'cat', "a;'=1+1")
    """
    first = "'" if _FORMULA.match(text) and not is_number(text) else ""
    return _WITHIN.sub("'", first + text)


def unguard(text: str) -> str:
    """The text before `guard`.

    >>> unguard("'=1+1"), unguard("-1"), unguard("''=x"), unguard("'cat'"), unguard("a;'=1+1")
    ('=1+1', '-1', "'=x", "'cat'", 'a;=1+1')
    """
    text = _GUARDED.sub("", text)
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def same_label(cell: Any, given: str) -> bool:
    """Whether a cell of the data holds the label ``given``; an empty text stands for a missing label.

    >>> same_label(" cat", "cat"), same_label(None, ""), same_label(3.0, "3"), same_label("24.50", "24.5")
    (True, True, True, True)
    >>> same_label("NA", "NA"), same_label("NA", "")
    (True, True)
    >>> same_label("007", "7"), same_label("Cat", "cat")
    (False, True)
    """
    given = given.strip()
    if given == "" or (is_missing(cell) and str(cell).strip() != given):
        return given == "" and is_missing(cell)
    text = label_name(cell).strip()
    if same_name(text, given):  # an audit may merge spellings
        return True
    # A quantity may be written in several ways; a whole number may be a name, such as 007.
    decimal = any(sign in text + given for sign in ".eE")
    return decimal and is_number(text) and is_number(given) and float(text) == float(given)


# --- text files -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dialect:
    """The dialect of a table: the delimiter, and whether quotes are ordinary characters."""

    delimiter: str
    plain: bool = False

    @staticmethod
    def of(text: str, suffix: str, delimiter: str | None = None) -> Dialect:
        """The dialect of a text, by the rules of `compensate.data.tables.read_frame`."""
        header = text.lstrip("\n").split("\n", 1)[0].rstrip("\r")
        delimiter = delimiter or ("\t" if suffix == ".tsv" else max(",;\t|", key=header.count))
        tabs = header.count("\t")
        even = all(line.count("\t") == tabs for line in text.split("\n") if line.strip("\r"))
        return Dialect(delimiter, delimiter == "\t" and '"' not in header and even)

    def value(self, raw: str) -> str:
        """The value of a written cell."""
        if self.plain or not raw.startswith('"'):
            return raw
        end = re.match(_QUOTED, raw)
        quoted = end[0] if end else raw
        inner = quoted[1:-1] if len(quoted) > 1 and quoted.endswith('"') else quoted[1:]
        return inner.replace('""', '"') + raw[len(quoted) :]

    def write(self, value: str, raw: str) -> str:
        """The written cell of a value, with the quotes and blanks of the cell ``raw`` that it replaces.

        >>> Dialect(",").write("dog", '"cat"'), Dialect(",").write("dog", " cat"), Dialect(",").write("a,b", "cat")
        ('"dog"', ' dog', '"a,b"')
        """
        if self.plain:
            if any(sign in value for sign in (self.delimiter, "\r", "\n")):
                raise InputError(
                    f"the label {value[:80]!r} holds a tab or a line end, which a table without quotes cannot express. "
                    "Choose another label."
                )
        elif raw.startswith('"') or any(sign in value for sign in (self.delimiter, '"', "\r", "\n")):
            return '"' + value.replace('"', '""') + '"'
        core = raw.strip(" ")  # a tab may be part of the label
        lead, _, trail = raw.partition(core) if core else ("", "", "")
        return lead + value + trail


def find_cells(text: str, column: int, dialect: Dialect) -> list[Span | None]:
    """The spans of the cells of a column, one for each row below the header; None for a row that ends before the column."""
    sign = re.escape(dialect.delimiter)
    quoted = "" if dialect.plain else f"(?:{_QUOTED})?"
    field = re.compile(rf"({quoted}[^{sign}\r\n]*)({sign}|\r\n|\r|\n|\Z)")
    spans: list[Span | None] = []
    at, header = 0, True
    while at < len(text):
        start, place, span = at, 0, None
        while match := field.match(text, at):
            if place == column:
                span = match.span(1)
            at, place = match.end(), place + 1
            if match[2] != dialect.delimiter:
                break
        else:
            raise InputError(f"the table cannot be followed beyond its character {at}; check the quotes there.")
        blank = place == 1 and not text[start : match.end(1)].strip(" \t")  # blank lines are not rows
        if not blank and not header:
            spans.append(span)
        header = header and blank
    return spans


def csv_bytes(rows: Iterable[Sequence[str]]) -> bytes:
    """A table of comma-separated cells."""
    comma = Dialect(",")
    text = "".join(",".join(comma.write(cell, "") for cell in row) + "\n" for row in rows)
    return text.encode("utf-8", "surrogatepass")


def write_csv(path: str | Path, frame: pd.DataFrame) -> Path:
    """Writes a table as CSV; text that a spreadsheet would evaluate is guarded."""
    columns = []
    for name, column in frame.items():
        texts, kind = [str(value) for value in column], column.dtype.kind
        if kind == "b":
            texts = [text.lower() for text in texts]
        elif kind == "f":
            texts = [f"{value:.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:.6g}" for value in column]
        elif kind not in "iu":
            guarded = {text: guard(text) for text in set(texts)}  # most columns have few distinct cells
            texts = [guarded[text] for text in texts]
        columns.append([guard(str(name)), *texts])
    write_atomically(path, csv_bytes(zip(*columns, strict=True)))
    return Path(path)


def write_compressed(out: Path, content: bytes) -> None:
    """Writes a file, compressed if its name says so."""
    write_atomically(out, _COMPRESS.get(out.suffix.lower(), bytes)(content))


def dropped_rows(new: Changes) -> list[int]:
    """The rows to drop."""
    return [row for row, value in new.items() if value is None]


class TextEditor:
    """Replaces spans of a CSV, TSV, JSONL or CoNLL file, which may be compressed, and keeps every other byte."""

    def __init__(self, path: Path, encoding: str = "utf-8", delimiter: str | None = None) -> None:
        self.path, self.encoding = path, encoding
        content = read_bytes(path)
        self.text = decode(content, path, encoding)
        bom = b"\xef\xbb\xbf"
        self.mark = bom if content.startswith(bom) and self.text[:1] != "\ufeff" else b""
        if self.mark + self.text.encode(encoding) != content:
            raise InputError(f"{path} does not survive decoding as {encoding}; save it as UTF-8 first.")
        self.lines = table_format(path) in LINES
        self.dialect = Dialect.of(self.text, table_format(path), delimiter)
        self.edits: list[tuple[int, int, str]] = []

    def spans(self, frame: pd.DataFrame, column: str) -> list[Span | None]:
        """The spans of the cells of a column, one for each row; None where a row lacks the cell.

        The reader's `frame` and the search must see the same rows, or a correction would change another one.
        """
        cells = ["" if cell is None or cell != cell else cell for cell in frame[column]]
        if self.lines:
            rows = (reversed(members) for members in objects(self.text, self.path))
            spans = [next((span for key, _, span in row if key == column), None) for row in rows]
            if len(spans) != len(cells):
                raise InputError(f"the rows of {self.path} cannot be told apart safely: check its line ends.")
            return spans
        spans = find_cells(self.text, [str(name) for name in frame.columns].index(column), self.dialect)
        if ["" if span is None else self.dialect.value(self.text[slice(*span)]) for span in spans] != cells:
            raise InputError(f"the cells of {self.path} cannot be told apart safely: check its quotes and line ends.")
        return spans

    def replace(self, span: Span, new: str) -> None:
        """Replaces a span by a text as it is."""
        self.edits.append((*span, new))

    def replace_cell(self, span: Span, value: str) -> None:
        """Replaces a cell of a CSV or TSV file, quoted where needed."""
        self.replace(span, self.dialect.write(value, self.text[slice(*span)]))

    def drop_rows(self, frame: pd.DataFrame, rows: Iterable[int]) -> None:
        """Removes some rows."""
        rows = list(rows)
        if not rows:
            return
        if self.lines:
            found = [span for _, span in records(self.text, self.path)]
            if self.text.lstrip()[:1] == "[":
                self.drop_items(found, set(rows))
                return
            starts = [start for start, _ in found]
        else:
            starts = [span[0] for span in self.spans(frame, str(frame.columns[0])) if span is not None]
        if len(starts) != len(frame):
            raise InputError(f"the rows of {self.path} cannot be told apart safely: check its line ends.")
        self.drop_parts(starts, rows)

    def drop_items(self, spans: Sequence[Span], gone: set[int]) -> None:
        """Removes some items of a list, each with one comma."""
        first = min(set(range(len(spans))) - gone, default=len(spans))
        for k in gone:
            start = spans[k - 1][1] if k > first else spans[k][0]
            self.replace((start, spans[k][1] if k > first or k + 1 == len(spans) else spans[k + 1][0]), "")

    def drop_parts(self, starts: Sequence[int], parts: Iterable[int]) -> None:
        """Removes some of the parts that begin at these characters; edits within them are void."""
        ends = [*starts[1:], len(self.text)]
        for part in parts:
            self.replace((starts[part], ends[part]), "")

    def replace_labels(self, frame: pd.DataFrame, column: str, new: Changes) -> None:
        """Replaces the labels of some rows and drops others; in JSONL, a label is written as other rows write it."""
        self.drop_rows(frame, dropped_rows(new))
        spans, cells = self.spans(frame, column), list(frame[column])
        pairs = zip(cells, spans, strict=True)
        filled = ((cell, span) for cell, span in pairs if span is not None and not is_missing(cell))
        written = {label_name(cell): self.text[slice(*span)] for cell, span in filled} if self.lines else {}
        numbers = all(isinstance(cell, (int, float, np.number)) for cell in cells if cell is not None and cell == cell)
        for row, value in new.items():
            span = spans[row]
            if value is None:
                continue
            if span is None:
                short = f"row {row} ends before the label column; add the missing cells to the file first."
                absent = f'row {row} of {self.path} has no "{column}"; add one to the file first, such as '
                raise InputError(absent + f'"{column}": null.' if self.lines else short)
            if self.lines:
                plain = value if numbers and is_number(value) else json.dumps(value, ensure_ascii=self.text.isascii())
                self.replace(span, written.get(value, plain))
            else:
                self.replace_cell(span, value)

    def write(self, out: Path) -> None:
        """Writes the edited file, compressed if its name says so."""
        parts, last = [], 0
        for start, end, new in sorted(self.edits):
            if start < last:  # in a dropped row
                continue
            parts += [self.text[last:start], new]
            last = end
        try:
            content = self.mark + "".join((*parts, self.text[last:])).encode(self.encoding)
        except UnicodeEncodeError as error:
            raise InputError(
                f'a decided label has the character "{error.object[error.start]}", which {self.encoding} has not; save {self.path} as '
                "UTF-8 and audit it again, or decide for another label."
            ) from error
        write_compressed(out, content)


# --- Excel ----------------------------------------------------------------------------------------------------


def edit_sheet(path: Path, column: str, cells: list[Any], new: Changes) -> bytes:
    """The workbook with some cells of a column of its first visible sheet changed.

    A label that other cells hold is written as they write it, another one as a text. A dropped row leaves an empty line.
    """
    from openpyxl.utils import column_index_from_string
    from openpyxl.xml.functions import fromstring

    content = path.read_bytes()
    sheet = read_sheet(content, path)
    number = sheet.places[sheet.names.index(column)]
    rows = {line: row for row, line in enumerate(sheet.numbers)}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        sheets = [n for n in fromstring(archive.read("xl/workbook.xml")).iter() if str(n.tag).endswith("}sheet")]
        visible = [node for node in sheets if node.get("state", "visible") == "visible"] or sheets
        links = fromstring(archive.read("xl/_rels/workbook.xml.rels"))
        targets = {node.get("Id"): node.get("Target") for node in links}
        part = str(PurePosixPath("xl", str(targets[visible[0].get(_RELATION)]).removeprefix("/xl/")))
        try:
            text = archive.read(part).decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is not written in UTF-8; save it again as .xlsx.") from error
    matches = {}
    for match in _CELL.finditer(text):
        place = _PLACE.search(match[2])
        if place is not None and column_index_from_string(place[1]) == number + 1 and int(place[2]) in rows:
            matches[rows[int(place[2])]] = match
    filled = {row: match for row, match in matches.items() if match[3] and not is_missing(cells[row])}
    models = {label_name(cells[row]): match for row, match in filled.items() if "<f" not in match[3]}
    pieces, last = [], 0
    for row in sorted(row for row, value in new.items() if value is not None):
        if row not in matches:
            raise InputError(
                f"row {sheet.numbers[row]} of the sheet of {path} has no label cell; type a label there first."
            )
        value, match = str(new[row]), matches[row]
        model = models.get(value)
        prefix, attributes = match[1], _KIND.sub("", match[2].rstrip())
        text_node = f'<{prefix}t xml:space="preserve">{escape(value)}</{prefix}t>'
        kind, inner = ' t="inlineStr"', f"<{prefix}is>{text_node}</{prefix}is>"
        if model is not None and model[1] == prefix:
            typed = _KIND.search(model[2])
            kind, inner = typed[0] if typed else "", model[3]
        pieces += [text[last : match.start()], f"<{prefix}c{attributes}{kind}>{inner}</{prefix}c>"]
        last = match.end()
    text, gone = "".join((*pieces, text[last:])), set(dropped_rows(new))
    for row in gone:
        text = re.sub(
            rf'<((?:\w+:)?)row\b[^>]*\br="{sheet.numbers[row]}".*?</\1row>', "", text, count=1, flags=re.DOTALL
        )
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for info in archive.infolist():
            made.writestr(info, text.encode() if info.filename == part else archive.read(info))
    again, kept = [row[number] for row in read_sheet(out.getvalue(), path).rows], sorted({*range(len(cells))} - gone)
    pairs = zip(kept, again, strict=False)
    right = [same_label(cell, str(new[row])) if row in new else cell == cells[row] for row, cell in pairs]
    if len(again) != len(kept) or not all(right):
        raise InputError(f"the cells of {path} cannot be told apart safely; save it again as .xlsx, or as CSV.")
    return out.getvalue()


# --- Parquet and saved data sets ------------------------------------------------------------------------------


def edit_parquet(path: Path, column: str, new: Changes) -> bytes:
    """The Parquet file with some cells of a column changed."""
    pyarrow = require("pyarrow", "correcting Parquet", "parquet")
    table = read_arrow(path)
    field = table.schema.field(column)
    kind = field.type.value_type if pyarrow.types.is_dictionary(field.type) else field.type
    cells = table.column(column).to_pylist()
    for row, value in new.items():
        cells[row] = None if value is None else _typed(value, kind, path)
    values = pyarrow.array(cells, type=kind)
    if kind is not field.type:
        values = values.dictionary_encode().cast(field.type)
    table = table.set_column(table.schema.get_field_index(column), field, values)
    kept = np.delete(np.arange(len(cells)), dropped_rows(new))
    return packed(table if len(kept) == len(cells) else table.take(pyarrow.array(kept)))


def packed(table: Any) -> bytes:
    """The bytes of a Parquet file."""
    file = io.BytesIO()
    require("pyarrow.parquet", "writing Parquet", "parquet").write_table(table, file)
    return file.getvalue()


def _typed(value: str, kind: Any, path: Path) -> Any:
    """A label as a value of a type of pyarrow."""
    pyarrow = require("pyarrow", "correcting Parquet", "parquet")
    if pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind):
        return value.encode()
    try:
        return pyarrow.array([value]).cast(kind)[0].as_py()
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        raise InputError(f'the label column of {path} holds {kind}, and "{value[:40]}" is not of this type.') from error


def _parquet_files(data: Path, files: list[Path], column: str, digests: Callable[[], NDArray[np.uint64]]) -> Labels:
    """Several Parquet files; files without a change are copied."""
    parts = [read_arrow(file).column(column).to_pylist() for file in files]
    top = data.parent if is_pattern(data) else data
    if not all(file.is_relative_to(top) for file in files):  # a pattern with wildcards in the names of folders
        top = Path(os.path.commonpath([file.parent for file in files]))

    def write(out: Path, new: Changes) -> None:
        first = 0
        with replaced_folder(out) as folder:
            for file, cells in zip(files, parts, strict=True):
                own = {row - first: value for row, value in new.items() if first <= row < first + len(cells)}
                first += len(cells)
                target = folder / file.relative_to(top)
                target.parent.mkdir(parents=True, exist_ok=True)
                if own:
                    write_atomically(target, edit_parquet(file, column, own))
                else:
                    shutil.copyfile(file, target)

    return Labels([cell for cells in parts for cell in cells], digests, write)


def _saved_dataset(path: Path, label: str | None) -> Labels:
    """A saved data set of Hugging Face's `datasets`; of several splits, the training split is corrected."""
    whole = open_saved(path)
    split, rows = training_part(whole)
    frame, pictures = frame_and_images(rows)
    name = choose_label(frame, label, str(path), None if pictures else choose_text(frame, None, str(path), label))
    names: list[str] | None = getattr(rows.features[name], "names", None)
    cells = list(frame[name]) if names is None else named_labels(frame[name], names)

    def write(out: Path, new: Changes) -> None:
        values = list(rows[name])
        for row, value in new.items():
            if value is None:
                continue
            if names is not None and value not in names:
                known = ", ".join(names)[:200]
                raise InputError(f'"{value[:40]}" is not a class of {path}, whose label has the names {known}.')
            values[row] = _typed(value, rows.features[name].pa_type, path) if names is None else names.index(value)
        others = rows.remove_columns([name])
        changed = others.add_column(name, values, feature=rows.features[name]).select_columns(rows.column_names)
        if gone := dropped_rows(new):
            changed = changed.select(np.delete(np.arange(len(values)), gone))
        with replaced_folder(out) as folder:
            saved = changed if split is None else type(whole)({**whole, split: changed})
            saved.save_to_disk(str(folder))

    return Labels(cells, partial(digest_frame, frame, name), write)


# --- the labels of any source ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Labels:
    """The labels of a source as they are written, the (N,) digests of its rows, and a function that writes it with changed labels."""

    cells: list[Any]
    digests: Callable[[], NDArray[np.uint64]]
    write: Callable[[Path, Changes], None]


def open_labels(data: Path, label: str | None, encoding: str = "utf-8", delimiter: str | None = None) -> Labels:
    """The labels of a file or folder of any kind that an audit reads."""
    files = parquet_files(data)
    if is_saved(data):
        return _saved_dataset(data, label)
    if data.is_dir() and not files:
        return _image_folder(data, label)
    kind = table_format(data)
    if not files and kind not in (*TEXTS, *LINES, *EXCEL, *PARQUET):
        raise InputError(
            f"{data} is neither a CSV, TSV, JSONL, Excel or Parquet file nor a folder of images or of a saved data set, and is not "
            "written back. In Python, compensate.Audit.load(RUN).apply(RUN) returns the corrected labels."
        )
    frame = read_frame(data, encoding=encoding, delimiter=delimiter)
    frame.columns = [str(name) for name in frame.columns]
    name = choose_label(frame, label, str(data), choose_text(frame, None, str(data), label))
    digests = partial(digest_frame, frame, name)
    if files:
        return _parquet_files(data, files, name, digests)
    cells = read_arrow(data).column(name).to_pylist() if kind in PARQUET else list(frame[name])

    def write(out: Path, new: Changes) -> None:
        if kind in (*TEXTS, *LINES):
            editor = TextEditor(data, encoding, delimiter)
            editor.replace_labels(frame, name, new)
            editor.write(out)
        else:
            edited = edit_parquet(data, name, new) if kind in PARQUET else edit_sheet(data, name, cells, new)
            write_compressed(out, edited)

    return Labels(cells, digests, write)


def _image_folder(path: Path, label: str | None) -> Labels:
    """A folder of images: its label file with changes, or a new one with the columns file and label."""
    path, names, file = list_images(path)
    digests = partial(digest_images, path, names)
    table = None if file is None else read_labels(file, label)
    lines = {name: row for row, name in enumerate(names)}
    cells: list[Any] = [name.partition("/")[0] for name in names]
    if table is not None:  # rows are images in the order of their names, not lines of the label file
        lines = lines if table.keys is None else {relative(key): line for line, key in enumerate(table.keys)}
        cells = [table.cells[lines[name]] if name in lines else "" for name in names]

    def write(out: Path, new: Changes) -> None:
        if file is None or table is None:
            labeled = ((name, new.get(row, cells[row])) for row, name in enumerate(names))
            write_compressed(out, csv_bytes((("file", "label"), *(pair for pair in labeled if pair[1] is not None))))
            return
        absent = [names[row] for row in new if names[row] not in lines]
        if absent:
            raise InputError(
                f"{file} has no line for {absent[0]}, which was given a label; add one with an empty label."
            )
        open_labels(file, table.column).write(out, {lines[names[row]]: value for row, value in new.items()})

    return Labels(cells, digests, write)


def arrange_images(data: Path, new: Changes, out: Path, layout: str) -> None:
    """Sorts the images of class folders by their new labels: as a folder of links, or moved in place, with a list of the moves for `undo_moves`.

    An image whose name is taken in its new class gets the old class before its name. Dropped images are not linked, or moved to ``NAME.dropped``.
    """
    top, names, file = list_images(data)
    if file is not None:
        raise InputError(
            f"the labels of {data} are in {file}, and not in the names of folders; leave --as {layout} out."
        )
    taken, places = set(names), dict[str, str]()
    for row, name in enumerate(names):
        old, _, rest = name.partition("/")
        label = new.get(row, old)
        if label is not None and PurePosixPath(label).name != label:
            raise InputError(f'"{label[:40]}" cannot be the name of a folder; leave --as {layout} out.')
        if label is None and layout == "move":
            places[name] = f"../{top.name}.dropped/{name}"
        elif label is not None:
            place = f"{label}/{rest}"
            while label != old and place in taken:
                place = f"{label}/{old}-{place.partition('/')[2].replace('/', '-')}"
            taken.add(place)
            places[name] = place
    if layout == "links":
        with replaced_folder(out) as folder:
            for name, place in places.items():
                (folder / place).parent.mkdir(parents=True, exist_ok=True)
                try:
                    (folder / place).symlink_to((top / name).resolve())
                except OSError:  # a system without symbolic links
                    os.link(top / name, folder / place)
        return
    moves = {name: place for name, place in places.items() if name != place}
    present = next((top / place for place in moves.values() if (top / place).exists()), None)
    if present is not None:
        raise InputError(f"{present} exists, and an image would be moved there; rename it, and apply again.")
    write_atomically(out, csv_bytes((("from", "to"), *moves.items())))
    for name, place in moves.items():
        _move(top / name, top / place)


def undo_moves(data: Path, moves: Path) -> int:
    """Moves images back by the list that `arrange_images` wrote; returns how many were moved."""
    top, done = list_images(data)[0], 0
    for name, place in read_frame(moves)[["from", "to"]].itertuples(index=False):
        if (top / place).exists() and not (top / name).exists():
            _move(top / place, top / name)
            done += 1
    moves.unlink()
    return done


def _move(source: Path, target: Path) -> None:
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        source.replace(target)


def fixed_name(data: Path) -> Path:
    """The default path of the corrected data.

    >>> fixed_name(Path("a/pets.csv.gz")).name, fixed_name(Path("a/*.parquet")).name
    ('pets.fixed.csv.gz', 'a.fixed')
    """
    if is_pattern(data):
        return data.parent.with_name(f"{data.absolute().parent.name}.fixed")
    if data.is_dir():
        labels = None if writes_folder(data) else list_images(data)[2]
        suffix = "" if writes_folder(data) else ".csv" if labels is None else labels.suffix
        return data.parent / f"{data.name}.fixed{suffix}"
    stem, dot, suffixes = data.name.partition(".")
    return data.with_name(f"{stem}.fixed{dot}{suffixes}")


def writes_folder(data: Path) -> bool:
    """Whether the corrected data is a folder: several Parquet files, or a saved data set."""
    return is_pattern(data) or is_saved(data) or bool(data.is_dir() and parquet_files(data))


def check_output(data: Path, out: Path, force: bool) -> None:
    """Refuses a path that cannot be written to, or that exists and must not be overwritten."""
    check_place(data, out, force, writes_folder(data))


def check_place(data: Path, out: Path, force: bool, folder: bool) -> None:
    """As `check_output`, for a file or a folder to write."""
    if folder:
        if out.exists() and not out.is_dir():
            raise InputError(f"{out} is a file, and {data} is written as a folder; name a folder.")
        if out.absolute() in (data.absolute(), *data.absolute().parents):
            raise InputError(f"{out} holds the data itself; name another folder.")
    else:
        check_regular(out)
    if out.exists() and not force:
        raise InputError(f"{out} exists already; name another file, or overwrite it with force=True (--force).")
    if not out.parent.is_dir():
        raise InputError(f"there is no folder {out.parent} to write {out.name} to; make it first.")
