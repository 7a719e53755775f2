r"""Text that a spreadsheet would evaluate, made harmless on export and restored on import.

A cell that begins with ``=``, ``+``, ``-`` or ``@`` is a formula to a spreadsheet, and a class may well be called
``=HYPERLINK(...)``. Such a text gets a leading apostrophe, which spreadsheets read as "this is text". A text that already
looks guarded gets one more, so that taking one off always restores the original; numbers such as -1 stay as they are.

Where a semicolon parts cells, a spreadsheet takes a line of this file apart at other places than it was put together, and
quotes do not help. So the same is done within a text, after each semicolon, tab and line end.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import shutil
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from xml.sax.saxutils import escape  # nosec B406: writes, and parses nothing

import numpy as np
from numpy.typing import NDArray

from compensate.auditing.digests import digest_frame, digest_images, list_images
from compensate.data.excel import read_sheet
from compensate.errors import InputError
from compensate.extras import require
from compensate.files import check_regular, decode, read_bytes, replaced_folder, write_atomically

# Leading blanks and the wide forms of the signs count too: some programs trim the ones and fold the others.
_FORMULA = re.compile(r"'*[ \t\r\n]*[=+\-@\uff1d\uff0b\uff0d\uff20]|'*[\t\r\n]")
_WITHIN = re.compile(r"(?<=[;\t\r\n])(?='* *[=+\-@\uff1d\uff0b\uff0d\uff20])")
_GUARDED = re.compile(r"(?<=[;\t\r\n])'(?='* *[=+\-@\uff1d\uff0b\uff0d\uff20])")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def is_number(text: str) -> bool:
    """Whether a text is a decimal number and nothing else.

    >>> is_number("-1.5e3"), is_number("-1+cmd"), is_number("1_000")
    (True, False, False)
    """
    return _NUMBER.fullmatch(text) is not None


def guard(text: str) -> str:
    """The text as it may stand in a file that someone opens in a spreadsheet.

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


@dataclass(frozen=True)
class Dialect:
    """How a table is written: the sign between cells, and whether a quote is a letter like any other."""

    delimiter: str
    plain: bool = False

    @staticmethod
    def of(text: str, suffix: str, delimiter: str | None = None) -> Dialect:
        r"""The dialect of a text, by the rules of `compensate.data.tables.read_frame`.

        >>> Dialect.of("a;b\n1;2\n", ".csv")
        Dialect(delimiter=';', plain=False)
        """
        header = text.lstrip("\n").split("\n", 1)[0].rstrip("\r")
        if delimiter is None:
            delimiter = "\t" if suffix == ".tsv" else max(",;\t|", key=header.count)
        tabs = header.count("\t")
        even = all(line.count("\t") == tabs for line in text.split("\n") if line.strip("\r"))
        return Dialect(delimiter, delimiter == "\t" and '"' not in header and even)

    def value(self, raw: str) -> str:
        """What a cell says.

        >>> Dialect(",").value('"say ""hi"" twice"'), Dialect(",", plain=True).value('"a"')
        ('say "hi" twice', '"a"')
        """
        if self.plain or not raw.startswith('"'):
            return raw
        end = _QUOTED.match(raw)
        quoted = end[0] if end else raw
        inner = quoted[1:-1] if len(quoted) > 1 and quoted.endswith('"') else quoted[1:]
        return inner.replace('""', '"') + raw[len(quoted) :]

    def write(self, value: str, raw: str) -> str:
        """A cell that says ``value``, written like the cell ``raw`` that it replaces.

        >>> Dialect(",").write("dog", '"cat"'), Dialect(",").write("dog", " cat"), Dialect(",").write("a,b", "cat")
        ('"dog"', ' dog', '"a,b"')
        """
        special = any(sign in value for sign in (self.delimiter, '"', "\r", "\n"))
        if self.plain:
            if self.delimiter in value or "\r" in value or "\n" in value:
                raise InputError(
                    f"the label {value[:80]!r} holds a tab or a line end, which a table without quotes cannot express. "
                    "Choose another label."
                )
            special = False
        if special or (raw.startswith('"') and not self.plain):
            return '"' + value.replace('"', '""') + '"'
        core = raw.strip(" ")  # a tab may be part of the label
        lead, _, trail = raw.partition(core) if core else ("", "", "")
        return lead + value + trail


_QUOTED = re.compile(r'"[^"]*(?:""[^"]*)*(?:"|\Z)')


def find_cells(text: str, column: int, dialect: Dialect) -> list[tuple[int, int] | None]:
    r"""Where in the text the cells of a column stand, one for each row below the header; blank lines are no rows.

    None stands for a row that is too short to have the cell.

    >>> text = 'id,label\n1,cat\n\n2,"dog, big"\n3\n'
    >>> [span and text[slice(*span)] for span in find_cells(text, 1, Dialect(","))]
    ['cat', '"dog, big"', None]
    """
    sign = re.escape(dialect.delimiter)
    quoted = "" if dialect.plain else r'(?:"[^"]*(?:""[^"]*)*(?:"|\Z))?'
    field = re.compile(rf"({quoted}[^{sign}\r\n]*)({sign}|\r\n|\r|\n|\Z)")
    spans: list[tuple[int, int] | None] = []
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
        blank = place == 1 and not text[start : match.end(1)].strip(" \t")
        if not blank and not header:
            spans.append(span)
        header = header and blank
    return spans


def replace_cells(text: str, spans: list[tuple[int, int] | None], new: Mapping[int, str], dialect: Dialect) -> str:
    """The text with the cells of some rows changed."""
    parts, last = [], 0
    for row in sorted(new):
        span = spans[row]
        if span is None:
            raise InputError(f"row {row} ends before the label column; add the missing cells to the file first.")
        parts += [text[last : span[0]], dialect.write(new[row], text[slice(*span)])]
        last = span[1]
    return "".join((*parts, text[last:]))


def csv_bytes(rows: Iterable[Sequence[str]]) -> bytes:
    r"""A table of comma-separated cells.

    >>> csv_bytes([("a", "b,c")])
    b'a,"b,c"\n'
    """
    comma = Dialect(",")
    return "".join(",".join(comma.write(cell, "") for cell in row) + "\n" for row in rows).encode()


_CELL = re.compile(r"<((?:\w+:)?)c\b([^>]*?)(?:/>|>(.*?)</\1c>)", re.DOTALL)
_PLACE = re.compile(r'\br="([A-Z]+)([0-9]+)"')
_KIND = re.compile(r'\s+t="[^"]*"')
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"


def edited(content: bytes, path: Path, name: str, cells: list[Any], new: Mapping[int, str]) -> bytes:
    """The workbook with some cells of the column `name` of its first sheet changed.

    A label that other cells hold is written as they write it; another one as a text.
    """

    sheet = read_sheet(content, path)
    column = sheet.places[sheet.names.index(name)]
    rows = {number: row for row, number in enumerate(sheet.numbers)}
    part, text = _sheet_text(content, path)
    found = {}
    for match in _CELL.finditer(text):
        place = _PLACE.search(match[2])
        if place is not None and _column_number(place[1]) == column and int(place[2]) in rows:
            found[rows[int(place[2])]] = match
    forms = {label_text(cells[row]): match for row, match in found.items() if match[3] and "<f" not in match[3]}
    pieces, last = [], 0
    for row in sorted(new):
        if row not in found:
            raise InputError(
                f"row {sheet.numbers[row]} of the sheet of {path} has no label cell; type a label there first."
            )
        match = found[row]
        pieces += [text[last : match.start()], _cell(match, forms.get(new[row]), new[row])]
        last = match.end()
    changed = _replaced(content, part, "".join((*pieces, text[last:])))
    again = [row[column] for row in read_sheet(changed, path).rows]
    right = [same_label(cell, new[row]) if row in new else cell == cells[row] for row, cell in enumerate(again)]
    if len(again) != len(cells) or not all(right):
        raise InputError(f"the cells of {path} cannot be told apart safely; save it again as .xlsx, or as CSV.")
    return changed


def _cell(old: re.Match[str], like: re.Match[str] | None, value: str) -> str:
    """A cell with the place and the style of `old`, and the content of `like` or a text."""
    prefix, attributes = old[1], _KIND.sub("", old[2].rstrip())
    if like is not None and like[1] == prefix:
        kind = _KIND.search(like[2])
        return f"<{prefix}c{attributes}{kind[0] if kind else ''}>{like[3]}</{prefix}c>"
    inner = f'<{prefix}is><{prefix}t xml:space="preserve">{escape(value)}</{prefix}t></{prefix}is>'
    return f'<{prefix}c{attributes} t="inlineStr">{inner}</{prefix}c>'


def _sheet_text(content: bytes, path: Path) -> tuple[str, str]:
    """The name and the text of the part of the archive that holds the first sheet that is shown."""
    from openpyxl.xml.functions import fromstring

    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        book = fromstring(packed.read("xl/workbook.xml"))
        sheets = [node for node in book.iter() if str(node.tag).endswith("}sheet")]
        shown = [node for node in sheets if node.get("state", "visible") == "visible"] or sheets
        links = fromstring(packed.read("xl/_rels/workbook.xml.rels"))
        targets = {node.get("Id"): node.get("Target") for node in links}
        part = str(PurePosixPath("xl", str(targets[shown[0].get(_RELATION)]).removeprefix("/xl/")))
        raw = packed.read(part)
    try:
        return part, raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not written in UTF-8; save it again as .xlsx.") from error


def _replaced(content: bytes, part: str, text: str) -> bytes:
    """The archive with one part replaced; the others keep their bytes, their order and their times."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as packed, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for info in packed.infolist():
            made.writestr(info, text.encode() if info.filename == part else packed.read(info))
    return out.getvalue()


def _column_number(letters: str) -> int:
    """The place of a column, counted from 0.

    >>> _column_number("A"), _column_number("AB")
    (0, 27)
    """
    number = 0
    for letter in letters:
        number = 26 * number + ord(letter) - 64
    return number - 1


_PACKED: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}

Changes = Mapping[int, str]
"""New labels by row."""


@dataclass(frozen=True)
class Labels:
    """The labels of a source.

    Attributes:
        cells: the labels as they are written, one for each row.
        digests: (N,) those of the rows, computed when they are asked for.
        write: writes the source to a path, with the labels of some rows changed.
    """

    cells: list[Any]
    digests: Callable[[], NDArray[np.uint64]]
    write: Callable[[Path, Changes], None]


def open_labels(data: Path, label: str | None, encoding: str = "utf-8", delimiter: str | None = None) -> Labels:
    """The labels of a file or folder of any kind that an audit reads."""
    from compensate.data.excel import SUFFIXES as EXCEL
    from compensate.data.hub import is_saved
    from compensate.data.label_column import choose_label
    from compensate.data.parquet import SUFFIXES as PARQUET
    from compensate.data.parquet import parquet_files
    from compensate.data.tables import LINES, TEXTS, choose_text, read_frame, table_format

    files = parquet_files(data)
    if is_saved(data):
        return _saved(data, label)
    if data.is_dir() and not files:
        return _folder(data, label)
    kind = table_format(data)
    if not files and kind not in (*TEXTS, *LINES, *EXCEL, *PARQUET):
        raise InputError(
            f"{data} is neither a CSV, TSV, JSONL, Excel or Parquet file nor a folder of images or of a saved data set; nothing is "
            "written."
        )
    frame = read_frame(data, encoding=encoding, delimiter=delimiter)
    frame.columns = [str(name) for name in frame.columns]
    name = choose_label(frame, label, str(data), choose_text(frame, None, str(data), label))
    digests = partial(digest_frame, frame, name)
    if files:
        return _parquets(data, files, name, digests)
    cells = list(frame[name])
    if kind in PARQUET:
        cells, changed = _parquet(data, name)
        return Labels(cells, digests, _file(changed))
    return Labels(cells, digests, _file(partial(_changed, data, name, cells, encoding=encoding, delimiter=delimiter)))


def same_label(cell: Any, given: str) -> bool:
    """Whether a cell of the data says ``given``; an empty text stands for a missing label.

    >>> same_label(" cat", "cat"), same_label(None, ""), same_label(3.0, "3"), same_label("24.50", "24.5")
    (True, True, True, True)
    >>> same_label("NA", "NA"), same_label("NA", "")
    (True, True)
    >>> same_label("007", "7"), same_label("Cat", "cat")
    (False, True)
    """
    from compensate.auditing.issues.samples import same_name
    from compensate.data.labels import is_missing

    if given.strip() == "" or (is_missing(cell) and str(cell).strip() != given.strip()):
        return given.strip() == "" and is_missing(cell)
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8", "replace")
    if isinstance(cell, np.generic):
        cell = cell.item()
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    text, given = str(cell).strip(), given.strip()
    if same_name(text, given):  # an audit may take several spellings for one class
        return True
    # A quantity may be written in more than one way; a whole number may be a name, such as 007.
    decimal = any(sign in text + given for sign in ".eE")
    return decimal and is_number(text) and is_number(given) and float(text) == float(given)


def fixed_name(data: Path) -> Path:
    """Where the corrected data goes if nobody says it.

    >>> fixed_name(Path("a/pets.csv.gz")).name, fixed_name(Path("a/*.parquet")).name
    ('pets.fixed.csv.gz', 'a.fixed')
    """
    from compensate.data.parquet import is_pattern

    if is_pattern(data):
        return data.parent.with_name(f"{data.absolute().parent.name}.fixed")
    if data.is_dir():
        if writes_folder(data):
            return data.parent / f"{data.name}.fixed"
        labels = list_images(data)[2]
        return data.parent / f"{data.name}.fixed{'.csv' if labels is None else labels.suffix}"
    stem, dot, suffixes = data.name.partition(".")
    return data.with_name(f"{stem}.fixed{dot}{suffixes}")


def writes_folder(data: Path) -> bool:
    """Whether the corrected data is a folder: several Parquet files, or a saved data set."""
    from compensate.data.hub import is_saved
    from compensate.data.parquet import is_pattern, parquet_files

    return is_pattern(data) or is_saved(data) or bool(data.is_dir() and parquet_files(data))


def check_output(data: Path, out: Path, force: bool) -> None:
    """Refuses a place that cannot be written to, or that holds something which is not to be overwritten."""
    if writes_folder(data):
        if out.exists() and not out.is_dir():
            raise InputError(f"{out} is a file, and {data} is written as a folder; name a folder.")
        if out.absolute() in (data.absolute(), *data.absolute().parents):
            raise InputError(f"{out} holds the data itself; name another folder.")
    else:
        check_regular(out)
    if out.exists() and not force:
        raise InputError(f"{out} is there already; name another file, or overwrite it with force=True (--force).")
    if not out.parent.is_dir():
        raise InputError(f"there is no folder {out.parent} to write {out.name} to; make it first.")


def _file(changed: Callable[[Changes], bytes]) -> Callable[[Path, Changes], None]:
    def write(out: Path, new: Changes) -> None:
        write_compressed(out, changed(new))

    return write


def write_compressed(out: Path, content: bytes) -> None:
    """Writes a file, compressed if its name says so."""
    pack = _PACKED.get(out.suffix.lower())
    write_atomically(out, pack(content) if pack else content)


def exact_text(path: Path, encoding: str) -> tuple[bytes, str]:
    """The byte order mark and the text of a file; refused if the text would not be written as the same bytes."""
    content = read_bytes(path)
    text = decode(content, path, encoding)
    mark = b"\xef\xbb\xbf" if content.startswith(b"\xef\xbb\xbf") and text[:1] != "\ufeff" else b""
    if mark + text.encode(encoding) != content:
        raise InputError(f"{path} does not survive decoding as {encoding}; save it as UTF-8 first.")
    return mark, text


def _changed(
    path: Path,
    name: str,
    cells: list[Any],
    new: Changes,
    *,
    encoding: str = "utf-8",
    delimiter: str | None = None,
) -> bytes:
    """The bytes of a table with some labels changed."""
    from compensate.data.excel import SUFFIXES as EXCEL
    from compensate.data.tables import LINES, table_format

    if table_format(path) in EXCEL:
        return edited(path.read_bytes(), path, name, cells, new)
    mark, text = exact_text(path, encoding)
    edit = (
        _edited_lines if table_format(path) in LINES else partial(_edited_cells, encoding=encoding, delimiter=delimiter)
    )
    try:
        return mark + edit(path, text, name, cells, new).encode(encoding)
    except UnicodeEncodeError as error:
        raise InputError(
            f'a decided label has the character "{error.object[error.start]}", which {encoding} has not; save {path} as UTF-8 and '
            "audit it again, or decide for another label."
        ) from error


def _edited_cells(
    path: Path, text: str, name: str, cells: list[Any], new: Changes, encoding: str, delimiter: str | None
) -> str:
    """A CSV or TSV with some cells of a column changed."""
    from compensate.data.tables import read_frame, table_format

    dialect = Dialect.of(text, table_format(path), delimiter)
    column = [str(c) for c in read_frame(path, encoding=encoding, delimiter=delimiter).columns].index(name)
    spans = find_cells(text, column, dialect)
    # The reader and this search must see the same rows, or a correction would land on another one.
    found = ["" if span is None else dialect.value(text[slice(*span)]) for span in spans]
    if found != ["" if cell is None or cell != cell else cell for cell in cells]:
        raise InputError(f"the cells of {path} cannot be told apart safely: check its quotes and line ends.")
    return replace_cells(text, spans, new, dialect)


def _edited_lines(path: Path, text: str, name: str, cells: list[Any], new: Changes) -> str:
    """A JSONL file with some values of a key changed; each is written as other lines write that label, if any does."""
    from compensate.data.jsonl import objects

    spans = [next((span for key, _, span in reversed(found) if key == name), None) for found in objects(text, path)]
    if len(spans) != len(cells):
        raise InputError(f"the rows of {path} cannot be told apart safely: check its line ends.")
    written = {
        label_text(cell): text[slice(*span)] for cell, span in zip(cells, spans, strict=True) if span is not None
    }
    numbers = all(isinstance(cell, (int, float, np.number)) for cell in cells if cell is not None and cell == cell)
    parts, last = [], 0
    for row in sorted(new):
        span = spans[row]
        if span is None:
            raise InputError(f'row {row} of {path} has no "{name}"; add one to the file first, such as "{name}": null.')
        value = new[row]
        plain = value if numbers and is_number(value) else json.dumps(value, ensure_ascii=text.isascii())
        parts += [text[last : span[0]], written.get(value, plain)]
        last = span[1]
    return "".join((*parts, text[last:]))


def label_text(cell: Any) -> str | None:
    """What an audit calls the class of a cell; None if the cell is empty.

    >>> label_text(" cat"), label_text(1.0), label_text(None)
    ('cat', '1', None)
    """
    from compensate.data.labels import encode_labels

    names = encode_labels([cell])[1]
    return names[0] if names else None


def _parquet(path: Path, name: str) -> tuple[list[Any], Callable[[Changes], bytes]]:
    from compensate.data.parquet import read_arrow

    table = read_arrow(path)
    cells = table.column(name).to_pylist()

    def changed(new: Changes) -> bytes:
        parquet = require("pyarrow.parquet", "correcting Parquet", "parquet")
        file = io.BytesIO()
        parquet.write_table(_with_labels(table, name, cells, new, path), file)
        return file.getvalue()

    return cells, changed


def _with_labels(table: Any, name: str, cells: Sequence[Any], new: Changes, path: Path) -> Any:
    """An Arrow table with some cells of a column changed."""
    pyarrow = require("pyarrow", "correcting Parquet", "parquet")
    field = table.schema.field(name)
    kind = field.type.value_type if pyarrow.types.is_dictionary(field.type) else field.type
    column = pyarrow.array(
        [_typed(new[row], kind, path) if row in new else cell for row, cell in enumerate(cells)], type=kind
    )
    if kind is not field.type:
        column = column.dictionary_encode().cast(field.type)
    return table.set_column(table.schema.get_field_index(name), field, column)


def _typed(value: str, kind: Any, path: Path) -> Any:
    import pyarrow

    if pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind):
        return value.encode()
    try:
        return pyarrow.array([value]).cast(kind)[0].as_py()
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        raise InputError(f'the label column of {path} holds {kind}, and "{value[:40]}" is none.') from error


def _parquets(data: Path, files: list[Path], name: str, digests: Callable[[], NDArray[np.uint64]]) -> Labels:
    """Several Parquet files; those without a change are copied."""
    from compensate.data.parquet import is_pattern

    parts = [_parquet(file, name) for file in files]
    top = data.parent if is_pattern(data) else data
    if not all(file.is_relative_to(top) for file in files):
        top = Path(*_common(files))

    def write(out: Path, new: Changes) -> None:
        first = 0
        with replaced_folder(out) as folder:
            for file, (cells, changed) in zip(files, parts, strict=True):
                own = {row - first: value for row, value in new.items() if first <= row < first + len(cells)}
                first += len(cells)
                place = folder / file.relative_to(top)
                place.parent.mkdir(parents=True, exist_ok=True)
                if own:
                    write_atomically(place, changed(own))
                else:
                    shutil.copyfile(file, place)

    return Labels([cell for cells, _ in parts for cell in cells], digests, write)


def _common(files: list[Path]) -> list[str]:
    """The folders that all files lie in, for a pattern with wildcards in the names of folders."""
    shared = []
    for names in zip(*(file.parent.parts for file in files), strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return shared


def _saved(path: Path, label: str | None) -> Labels:
    """A data set of Hugging Face's `datasets`; of several parts the training part is corrected."""
    from compensate.data.hub import frame_and_images, named_labels, open_saved, training_part
    from compensate.data.label_column import choose_label
    from compensate.data.tables import choose_text

    whole = open_saved(path)
    part, rows = training_part(whole)
    frame, pictures = frame_and_images(rows)
    text = None if pictures else choose_text(frame, None, str(path), label)
    name = choose_label(frame, label, str(path), text)
    names: list[str] | None = getattr(rows.features[name], "names", None)
    cells = list(frame[name]) if names is None else named_labels(frame[name], names)

    def write(out: Path, new: Changes) -> None:
        numbers = {str(n): k for k, n in enumerate(names or ())}
        odd = [value for value in new.values() if names is not None and value not in numbers]
        if names is not None and odd:
            raise InputError(
                f'"{odd[0][:40]}" is no class of {path}, whose label has the names {", ".join(names)[:200]}.'
            )
        kind = rows.features[name].dtype
        values = [_value(new[row], kind, numbers) if row in new else cell for row, cell in enumerate(rows[name])]
        order = rows.column_names
        changed = (
            rows.remove_columns([name]).add_column(name, values, feature=rows.features[name]).select_columns(order)
        )
        with replaced_folder(out) as folder:
            saved = changed if part is None else type(whole)({**whole, part: changed})
            saved.save_to_disk(str(folder))

    return Labels(cells, partial(digest_frame, frame, name), write)


def _value(value: str, kind: str, numbers: Mapping[str, int]) -> Any:
    if numbers:
        return numbers[value]
    if kind.startswith(("int", "uint")):
        return int(float(value))
    if kind.startswith("float"):
        return float(value)
    return value == "True" if kind == "bool" else value


def _folder(path: Path, label: str | None) -> Labels:
    path, names, labels = list_images(path)
    digests = partial(digest_images, path, names)
    if labels is not None:
        return _label_file(labels, names, label, digests)
    cells = [name.partition("/")[0] for name in names]

    def changed(new: Changes) -> bytes:
        lines = ((name, new.get(row, cells[row])) for row, name in enumerate(names))
        return csv_bytes((("file", "label"), *lines))

    return Labels(cells, digests, _file(changed))


def _label_file(path: Path, names: list[str], label: str | None, digests: Callable[[], NDArray[np.uint64]]) -> Labels:
    """A label file with changes: ``index`` counts the images by name, not the lines of the file."""
    from compensate.data.folder import relative
    from compensate.data.label_files import read_labels
    from compensate.data.parquet import SUFFIXES as PARQUET

    found = read_labels(path, label)
    assert found.column is not None
    lines = {name: row for row, name in enumerate(names)}
    if found.keys is not None:
        lines = {relative(file): line for line, file in enumerate(found.keys)}

    def changed(new: Changes) -> bytes:
        absent = [names[row] for row in new if names[row] not in lines]
        if absent:
            raise InputError(
                f"{path} has no line for {absent[0]}, which was given a label; add one with an empty label."
            )
        by_line = {lines[names[row]]: value for row, value in new.items()}
        assert found.column is not None
        if path.suffix.lower() in PARQUET:
            return _parquet(path, found.column)[1](by_line)
        return _changed(path, found.column, list(found.cells), by_line)

    return Labels([found.cells[lines[name]] if name in lines else "" for name in names], digests, _file(changed))
