"""Decisions about labels: reading ``corrections.csv`` and applying it to the data.

The file has the columns ``index,given,decision,label``: the 0-based row of the source, the label it had, what was
decided (``accept`` the suggestion, ``reject`` it, set an ``other`` label, or ``skip``), and the label that holds now.
``given`` makes sure that a decision reaches the row it was made about: if the data say otherwise, nothing is written.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compensate.auditing.cells import Dialect, find_cells, replace_cells
from compensate.auditing.guard import guard, is_number, unguard
from compensate.data.files import decode, read_bytes, write_atomically
from compensate.errors import InputError, nearest

COLUMNS = ("index", "given", "decision", "label")
DECISIONS = ("accept", "reject", "other", "skip")
_PACKED: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}


@dataclass(frozen=True)
class Correction:
    """What was decided about a row: ``label`` holds from now on, unless the decision is to skip it."""

    index: int
    given: str
    decision: str
    label: str

    @property
    def changes(self) -> bool:
        """Whether the label becomes another one."""
        return self.decision in ("accept", "other") and self.label != self.given


@dataclass(frozen=True)
class Applied:
    """What became of the data: how many labels of how many rows changed, were kept, or were skipped."""

    path: Path
    rows: int
    changed: int
    kept: int
    skipped: int


def read_corrections(path: str | Path) -> tuple[Correction, ...]:
    """The decisions of a file; an error names the line that cannot be used."""
    from compensate.data.tables import read_frame

    frame = read_frame(path)
    names = {str(name).strip().lower(): name for name in frame.columns}
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise InputError(
            f"{path} has no column {', '.join(missing)}; expected {','.join(COLUMNS)}, as the review page exports it."
        )
    rows = zip(*(frame[names[name]] for name in COLUMNS), strict=True)
    found = [_correction([str(cell) for cell in row], path, n) for n, row in enumerate(rows, 1)]
    seen: set[int] = set()
    for correction in found:
        if correction.index in seen:
            raise InputError(f"{path} decides on row {correction.index} more than once; keep one line for each.")
        seen.add(correction.index)
    return tuple(found)


def write_corrections(path: str | Path, corrections: Iterable[Correction]) -> None:
    """Writes decisions as the review page does, so that a spreadsheet evaluates nothing in them."""
    rows = ((str(c.index), guard(c.given), c.decision, guard(c.label)) for c in corrections)
    write_atomically(path, _csv((COLUMNS, *rows)))


def changes(cells: Sequence[Any], corrections: Iterable[Correction], where: str) -> dict[int, str]:
    """The new labels by row, once every decision is known to be about the label that the data hold.

    >>> changes(["cat", "dog"], [Correction(1, "dog", "accept", "cat")], "pets.csv")
    {1: 'cat'}
    >>> changes(["cat", "cat"], [Correction(1, "dog", "accept", "cat")], "pets.csv")
    Traceback (most recent call last):
    compensate.errors.InputError: pets.csv differs from what was reviewed: row 1 holds "cat", not "dog". Nothing is
    written. Apply the corrections to the file that was audited, or audit this one.
    """
    corrections = list(corrections)
    beyond = [c.index for c in corrections if not 0 <= c.index < len(cells)]
    if beyond:
        raise InputError(f"a correction is about row {beyond[0]}, and {where} has the rows 0 to {len(cells) - 1}.")
    odd = [c for c in corrections if not same_label(cells[c.index], c.given)]
    if odd:
        shown = "; ".join(f'row {c.index} holds "{_short(cells[c.index])}", not "{_short(c.given)}"' for c in odd[:3])
        more = f" (and {len(odd) - 3} more)" if len(odd) > 3 else ""
        raise InputError(
            f"{where} differs from what was reviewed: {shown}{more}. Nothing is written. Apply the corrections to the "
            "file that was audited, or audit this one."
        )
    return {c.index: c.label for c in corrections if c.changes}


def same_label(cell: Any, given: str) -> bool:
    """Whether a cell of the data says ``given``; an empty text stands for a missing label.

    >>> same_label(" cat", "cat"), same_label(None, ""), same_label(3.0, "3"), same_label("24.50", "24.5")
    (True, True, True, True)
    >>> same_label("007", "7"), same_label("Cat", "cat")
    (False, False)
    """
    from compensate.data.labels import is_missing

    if given.strip() == "" or is_missing(cell):
        return given.strip() == "" and is_missing(cell)
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8", "replace")
    if hasattr(cell, "item"):
        cell = cell.item()
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    text, given = str(cell).strip(), given.strip()
    if text == given:
        return True
    # A quantity may be written in more than one way; a whole number may be a name, such as 007.
    decimal = any(sign in text + given for sign in ".eE")
    return decimal and is_number(text) and is_number(given) and float(text) == float(given)


def apply_corrections(
    data: str | Path,
    corrections: str | Path | Iterable[Correction],
    out: str | Path | None = None,
    *,
    label: str | None = None,
    encoding: str = "utf-8",
    delimiter: str | None = None,
    force: bool = False,
) -> Applied:
    """Writes the data with the decided labels.

    Args:
        data: a CSV, TSV or Parquet file, or a folder of images.
        corrections: the file exported by the review page, or what `read_corrections` made of it.
        out: the file to write; by default ``name.fixed.csv`` next to ``name.csv``.
        label: the label's column, if it was named for the audit too.
        encoding, delimiter: of the file, if they are not UTF-8 and the obvious sign.
        force: overwrite a file that is there.

    A corrected CSV or TSV is the same file byte for byte but for the changed label cells. A folder of images gets a
    label file: its own ``labels.csv`` with the changes, or a new one with the columns file and label.
    """
    from compensate.data.tables import kind_of

    data = Path(data)
    out = Path(out) if out is not None else _fixed(data)
    decided = read_corrections(corrections) if isinstance(corrections, (str, Path)) else tuple(corrections)
    _check_target(out, force)
    if data.is_dir():
        content, rows, changed = _folder(data, decided)
    elif kind_of(data) in (".parquet", ".pq"):
        content, rows, changed = _parquet(data, decided, label)
    elif kind_of(data) in (".csv", ".tsv"):
        content, rows, changed = _table(data, decided, label, encoding, delimiter)
    else:
        raise InputError(f"{data} is neither a CSV, TSV or Parquet file nor a folder of images; nothing is written.")
    pack = _PACKED.get(out.suffix.lower())
    write_atomically(out, pack(content) if pack else content)
    skipped = sum(c.decision == "skip" for c in decided)
    return Applied(out, rows, changed, len(decided) - changed - skipped, skipped)


def _table(
    path: Path, corrections: Sequence[Correction], label: str | None, encoding: str, delimiter: str | None
) -> tuple[bytes, int, int]:
    from compensate.data.tables import choose_label, choose_text, read_frame

    frame = read_frame(path, encoding=encoding, delimiter=delimiter)
    name = choose_label(frame, label, str(path), choose_text(frame, None, str(path), label))
    new = changes(list(frame[name]), corrections, str(path))
    column = [str(c) for c in frame.columns].index(name)
    return _edited(path, column, list(frame[name]), new, encoding, delimiter), len(frame), len(new)


def _edited(
    path: Path, column: int, cells: list[Any], new: Mapping[int, str], encoding: str, delimiter: str | None
) -> bytes:
    """The bytes of a table with some cells of a column changed."""
    from compensate.data.tables import kind_of

    content = read_bytes(path)
    text = decode(content, path, encoding)
    mark = b"\xef\xbb\xbf" if content.startswith(b"\xef\xbb\xbf") and text[:1] != "\ufeff" else b""
    if mark + text.encode(encoding) != content:
        raise InputError(f"{path} does not survive decoding as {encoding}; save it as UTF-8 first.")
    dialect = Dialect.of(text, kind_of(path), delimiter)
    spans = find_cells(text, column, dialect)
    # The reader and this search must see the same rows, or a correction would land on another one.
    found = ["" if span is None else dialect.value(text[slice(*span)]) for span in spans]
    if found != ["" if cell is None or cell != cell else cell for cell in cells]:
        raise InputError(f"the cells of {path} cannot be told apart safely: check its quotes and line ends.")
    return mark + replace_cells(text, spans, new, dialect).encode(encoding)


def _parquet(path: Path, corrections: Sequence[Correction], label: str | None) -> tuple[bytes, int, int]:
    from compensate.data.tables import choose_label, choose_text, read_frame

    frame = read_frame(path)  # with its errors for a missing library or a damaged file
    import pyarrow
    from pyarrow import parquet

    name = choose_label(frame, label, str(path), choose_text(frame, None, str(path), label))
    table = parquet.read_table(path)
    field = table.schema.field(name)
    cells = table.column(name).to_pylist()
    new = changes(cells, corrections, str(path))
    kind = field.type.value_type if pyarrow.types.is_dictionary(field.type) else field.type
    for row, value in new.items():
        cells[row] = _typed(value, kind, path)
    column = pyarrow.array(cells, type=kind)
    if kind is not field.type:
        column = column.dictionary_encode().cast(field.type)
    changed = table.set_column(table.schema.get_field_index(name), field, column)
    file = io.BytesIO()
    parquet.write_table(changed, file)
    return file.getvalue(), len(cells), len(new)


def _typed(value: str, kind: Any, path: Path) -> Any:
    import pyarrow

    if pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind):
        return value.encode()
    try:
        return pyarrow.array([value]).cast(kind)[0].as_py()
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        raise InputError(f'the label column of {path} holds {kind}, and "{_short(value)}" is none.') from error


def _folder(path: Path, corrections: Sequence[Correction]) -> tuple[bytes, int, int]:
    from compensate.data.folder import is_image
    from compensate.data.tables import PARTS

    labels = path / "labels.csv"
    if not labels.is_file():
        parts = [p for p in sorted(path.iterdir()) if p.is_dir() and PARTS.get(p.name.lower()) == "train"]
        path = parts[0] if parts else path
    names = [p.relative_to(path).as_posix() for p in sorted(p for p in path.rglob("*") if is_image(p))]
    if labels.is_file():
        return _label_file(labels, names, corrections)
    cells = [name.partition("/")[0] for name in names]
    new = changes(cells, corrections, str(path))
    lines = ((name, new.get(row, cells[row])) for row, name in enumerate(names))
    return _csv((("file", "label"), *lines)), len(names), len(new)


def _label_file(path: Path, names: list[str], corrections: Sequence[Correction]) -> tuple[bytes, int, int]:
    """A label file with changes: ``index`` counts the images by name, not the lines of the file."""
    from compensate.data.labels import read_labels
    from compensate.data.tables import read_frame

    cells, files, by = read_labels(path)
    frame = read_frame(path)
    column = next(k for k, c in enumerate(frame.columns) if list(frame[c]) == list(cells) and str(c).lower() != by)
    lines = {name: row for row, name in enumerate(names)}
    if files is not None:
        lines = {str(file).replace("\\", "/").removeprefix("./"): line for line, file in enumerate(files)}
    by_image = [cells[lines[name]] if name in lines else "" for name in names]
    new = changes(by_image, corrections, str(path))
    absent = [names[row] for row in new if names[row] not in lines]
    if absent:
        raise InputError(f"{path} has no line for {absent[0]}, which was given a label; add one with an empty label.")
    edited = _edited(path, column, list(cells), {lines[names[row]]: value for row, value in new.items()}, "utf-8", None)
    return edited, len(names), len(new)


def _correction(cells: list[str], path: str | Path, row: int) -> Correction:
    index, given, decision, label = cells[0].strip(), unguard(cells[1]), cells[2].strip().lower(), unguard(cells[3])
    if not (index.isascii() and index.isdigit()):
        raise InputError(f'{path}, row {row}: the index is "{_short(index)}"; expected a row number from 0 on.')
    if decision not in DECISIONS:
        raise InputError(f'{path}, row {row}: the decision is "{_short(decision)}"; {nearest(decision, DECISIONS)}')
    if decision in ("accept", "other") and not label.strip():
        raise InputError(f"{path}, row {row}: {decision} needs a label; write one, or skip in its place.")
    return Correction(int(index), given, decision, label)


def _csv(rows: Iterable[Sequence[str]]) -> bytes:
    comma = Dialect(",")
    return "".join(",".join(comma.write(cell, "") for cell in row) + "\n" for row in rows).encode()


def _fixed(data: Path) -> Path:
    if data.is_dir():
        return data.parent / f"{data.name}.fixed.csv"
    stem, dot, suffixes = data.name.partition(".")
    return data.with_name(f"{stem}.fixed{dot}{suffixes}")


def _check_target(out: Path, force: bool) -> None:
    if out.is_dir():
        raise InputError(f"{out} is a folder; name a file to write.")
    if out.exists() and not force:
        raise InputError(f"{out} is there already; name another file, or overwrite it with force=True (--force).")
    if not out.parent.is_dir():
        raise InputError(f"there is no folder {out.parent} to write {out.name} to; make it first.")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:40] + "…"
