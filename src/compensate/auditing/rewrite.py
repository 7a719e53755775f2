"""The labels of a file or folder, and writing it again with some of them changed and nothing else.

Text formats are edited in place: only the characters of the changed labels differ. The parts of an Excel file that hold no
changed label are copied byte for byte. Parquet and Arrow are written again with one column replaced.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compensate.auditing.csv_edit import Dialect, csv_bytes, find_cells, replace_cells
from compensate.auditing.csv_escape import is_number
from compensate.auditing.digests import digest_frame, digest_images, list_images
from compensate.errors import InputError
from compensate.extras import require
from compensate.files import check_regular, decode, read_bytes, replaced_folder, write_atomically

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
    from compensate.data.parquet import SUFFIXES as PARQUET
    from compensate.data.parquet import parquet_files
    from compensate.data.tables import LINES, TEXTS, choose_label, choose_text, read_frame, table_format

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
    from compensate.auditing.class_names import same_name
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
        from compensate.auditing.excel_edit import edited

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
    from compensate.data.tables import choose_label, choose_text

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
    from compensate.data.labels import read_labels
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
