"""Decisions about labels: reading ``corrections.csv`` and applying it to the data.

The file has the columns ``index,given,decision,label``: the 0-based row of the source, the label it had, what was
decided (``accept`` the suggestion, ``reject`` it, set an ``other`` label, or ``skip``), and the label that holds now; and
``row,source``, the digests of that row and of the audited file, which a file written by hand may lack. A decision reaches
the row it was made about: if the file is another one, or its label is, nothing is written.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compensate.auditing.csv_edit import Dialect, find_cells, replace_cells
from compensate.auditing.csv_escape import guard, is_number, unguard
from compensate.auditing.digests import as_text, digest_frame, digest_images, digest_source, list_images
from compensate.errors import InputError, nearest
from compensate.extras import require
from compensate.files import check_regular, decode, read_bytes, write_atomically

COLUMNS = ("index", "given", "decision", "label")
DIGESTS = ("row", "source")
DECISIONS = ("accept", "reject", "other", "skip")
_DIGEST = re.compile("sha256:[0-9a-f]{16}")
_PACKED: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}


@dataclass(frozen=True)
class Correction:
    """What was decided about a row: ``label`` holds from now on, unless the decision is to skip it.

    ``row`` and ``source`` are the digests of the row and of the audited file, if they are known.
    """

    index: int
    given: str
    decision: str
    label: str
    row: str = ""
    source: str = ""

    @property
    def changes(self) -> bool:
        """Whether the label becomes another one."""
        return self.decision in ("accept", "other") and self.label != self.given


@dataclass(frozen=True)
class Matched:
    """Where decisions went whose rows were looked for by content.

    Attributes:
        found: the decisions whose rows are in the file.
        moved: how many of them at another place than before.
        done: how many of the others are about a row that holds the decided label already.
        absent: rows of the audited file that are not in this one.
        unclear: rows whose content is there, but with other labels or more often than it was decided on.
    """

    found: int
    moved: int
    done: int
    absent: tuple[int, ...]
    unclear: tuple[int, ...]


@dataclass(frozen=True)
class Applied:
    """What became of the data: how many labels of how many rows changed, were kept, or were skipped.

    `checked` says whether the file is known to be the audited one; `matched` what was found by content, if that was asked for.
    """

    path: Path
    rows: int
    changed: int
    kept: int
    skipped: int
    checked: bool = False
    matched: Matched | None = None


@dataclass(frozen=True)
class _Source:
    """The labels of a file or folder, the digests of its rows, and its bytes with some labels changed."""

    cells: list[Any]
    digests: Callable[[], NDArray[np.uint64]]
    changed: Callable[[Mapping[int, str]], bytes]


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
    columns = [list(frame[names[name]]) for name in COLUMNS]
    columns += [list(frame[names[name]]) if name in names else [""] * len(frame) for name in DIGESTS]
    rows = zip(*columns, strict=True)
    found = [_correction([str(cell) for cell in row], path, n) for n, row in enumerate(rows, 1)]
    seen: set[int] = set()
    for correction in found:
        if correction.index in seen:
            raise InputError(f"{path} decides on row {correction.index} more than once; keep one line for each.")
        seen.add(correction.index)
    return tuple(found)


def write_corrections(path: str | Path, corrections: Iterable[Correction]) -> None:
    """Writes decisions as the review page does, so that a spreadsheet evaluates nothing in them."""
    rows = ((str(c.index), guard(c.given), c.decision, guard(c.label), c.row, c.source) for c in corrections)
    write_atomically(path, _csv(((*COLUMNS, *DIGESTS), *rows)))


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


def check_source(corrections: Iterable[Correction], digest: str, where: str) -> bool:
    """Whether decisions are known to be about the source with this digest; those about another one are refused.

    >>> check_source([Correction(0, "cat", "accept", "dog", source="sha256:1")], "sha256:1", "pets.csv")
    True
    >>> check_source([Correction(0, "cat", "accept", "dog", source="sha256:1")], "sha256:2", "pets.csv")
    Traceback (most recent call last):
    compensate.errors.InputError: pets.csv (sha256:2) is not what was reviewed (sha256:1). Nothing is written. Apply the
    corrections to the file that was audited; or, if this file holds the same rows, have each one found by its content:
    rematch=True (--rematch on the command line).
    """
    about = {c.source for c in corrections}
    others = sorted(about - {"", digest})
    if others and digest:
        raise InputError(
            f"{where} ({digest}) is not what was reviewed ({others[0]}). Nothing is written. Apply the corrections to the "
            "file that was audited; or, if this file holds the same rows, have each one found by its content: rematch=True "
            "(--rematch on the command line)."
        )
    return "" not in about


def rematch_rows(
    corrections: Sequence[Correction], cells: Sequence[Any], digests: NDArray[np.uint64], where: str
) -> tuple[tuple[Correction, ...], Matched]:
    """The decisions at the places where their rows are now, by content and label, and what became of the others.

    Rows with the same content and label are matched in their order, if as many are there as were decided on.
    """
    if any(not c.row for c in corrections):
        raise InputError(
            "these corrections do not say what their rows hold, so rows cannot be found by content. Export them again from "
            "the review page of the audit, or apply them to the audited file without rematch (--rematch)."
        )
    wanted = {c.row for c in corrections}
    places: dict[str, list[int]] = {}
    for place, digest in enumerate(digests.tolist()):
        if (text := as_text(digest)) in wanted:
            places.setdefault(text, []).append(place)
    groups: dict[tuple[str, str], list[Correction]] = {}
    for c in sorted(corrections, key=lambda c: c.index):
        groups.setdefault((c.row, c.given), []).append(c)
    found: list[Correction] = []
    done, absent, unclear, moved = 0, [], [], 0
    for (digest, given), group in groups.items():
        here = places.get(digest, [])
        fitting = [place for place in here if same_label(cells[place], given)]
        if len(fitting) == len(group):
            found += [replace(c, index=place) for c, place in zip(group, fitting, strict=True)]
            moved += sum(c.index != place for c, place in zip(group, fitting, strict=True))
        elif not here:
            absent += [c.index for c in group]
        elif not fitting and all(any(same_label(cells[place], c.label) for place in here) for c in group):
            done += len(group)
        else:
            unclear += [c.index for c in group]
    if not found and not done:
        raise InputError(
            f"none of the {len(corrections)} rows that were decided on is in {where}. Nothing is written. Apply the "
            "corrections to the file that was audited, or audit this one."
        )
    return tuple(found), Matched(len(found), moved, done, tuple(absent), tuple(unclear))


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
    rematch: bool = False,
) -> Applied:
    """Writes the data with the decided labels.

    Args:
        data: a CSV, TSV or Parquet file, or a folder of images.
        corrections: the file exported by the review page, or what `read_corrections` made of it.
        out: the file to write; by default ``name.fixed.csv`` next to ``name.csv``.
        label: the label's column, if it was named for the audit too.
        encoding, delimiter: of the file, if they are not UTF-8 and the obvious sign.
        force: overwrite a file that is there.
        rematch: the file is not the one that was audited, byte for byte: find each row by its content.

    A corrected CSV or TSV is the same file byte for byte but for the changed label cells. A folder of images gets a
    label file: its own ``labels.csv`` with the changes, or a new one with the columns file and label.
    """
    data = Path(data)
    out = Path(out) if out is not None else _fixed(data)
    decided = read_corrections(corrections) if isinstance(corrections, (str, Path)) else tuple(corrections)
    _check_target(out, force)
    source = _source(data, label, encoding, delimiter)
    matched = None
    checked = not rematch and check_source(decided, digest_source(data), str(data))
    if rematch:
        decided, matched = rematch_rows(decided, source.cells, source.digests(), str(data))
    new = changes(source.cells, decided, str(data))
    content = source.changed(new)
    pack = _PACKED.get(out.suffix.lower())
    write_atomically(out, pack(content) if pack else content)
    skipped = sum(c.decision == "skip" for c in decided)
    kept = len(decided) - len(new) - skipped
    return Applied(out, len(source.cells), len(new), kept, skipped, checked, matched)


def _source(data: Path, label: str | None, encoding: str, delimiter: str | None) -> _Source:
    from compensate.data.tables import choose_label, choose_text, kind_of, read_frame

    if data.is_dir():
        return _folder(data)
    parquet = kind_of(data) in (".parquet", ".pq")
    if not parquet and kind_of(data) not in (".csv", ".tsv"):
        raise InputError(f"{data} is neither a CSV, TSV or Parquet file nor a folder of images; nothing is written.")
    frame = read_frame(data, encoding=encoding, delimiter=delimiter)
    name = choose_label(frame, label, str(data), choose_text(frame, None, str(data), label))
    digests = partial(digest_frame, frame, name)
    if parquet:
        return _parquet(data, name, digests)
    column, cells = [str(c) for c in frame.columns].index(name), list(frame[name])
    return _Source(cells, digests, lambda new: _edited(data, column, cells, new, encoding, delimiter))


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


def _parquet(path: Path, name: str, digests: Callable[[], NDArray[np.uint64]]) -> _Source:
    pyarrow = require("pyarrow", "correcting Parquet", "parquet")
    parquet = require("pyarrow.parquet", "correcting Parquet", "parquet")
    table = parquet.read_table(path)
    field = table.schema.field(name)
    cells = table.column(name).to_pylist()

    def changed(new: Mapping[int, str]) -> bytes:
        kind = field.type.value_type if pyarrow.types.is_dictionary(field.type) else field.type
        column = pyarrow.array(
            [_typed(new[row], kind, path) if row in new else cell for row, cell in enumerate(cells)], type=kind
        )
        if kind is not field.type:
            column = column.dictionary_encode().cast(field.type)
        file = io.BytesIO()
        parquet.write_table(table.set_column(table.schema.get_field_index(name), field, column), file)
        return file.getvalue()

    return _Source(cells, digests, changed)


def _typed(value: str, kind: Any, path: Path) -> Any:
    import pyarrow

    if pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind):
        return value.encode()
    try:
        return pyarrow.array([value]).cast(kind)[0].as_py()
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        raise InputError(f'the label column of {path} holds {kind}, and "{_short(value)}" is none.') from error


def _folder(path: Path) -> _Source:
    path, names, labels = list_images(path)
    digests = partial(digest_images, path, names)
    if labels is not None:
        return _label_file(labels, names, digests)
    cells = [name.partition("/")[0] for name in names]

    def changed(new: Mapping[int, str]) -> bytes:
        lines = ((name, new.get(row, cells[row])) for row, name in enumerate(names))
        return _csv((("file", "label"), *lines))

    return _Source(cells, digests, changed)


def _label_file(path: Path, names: list[str], digests: Callable[[], NDArray[np.uint64]]) -> _Source:
    """A label file with changes: ``index`` counts the images by name, not the lines of the file."""
    from compensate.data.labels import read_labels
    from compensate.data.tables import read_frame

    cells, files, by = read_labels(path)
    frame = read_frame(path)
    column = next(k for k, c in enumerate(frame.columns) if list(frame[c]) == list(cells) and str(c).lower() != by)
    lines = {name: row for row, name in enumerate(names)}
    if files is not None:
        lines = {str(file).replace("\\", "/").removeprefix("./"): line for line, file in enumerate(files)}

    def changed(new: Mapping[int, str]) -> bytes:
        absent = [names[row] for row in new if names[row] not in lines]
        if absent:
            raise InputError(
                f"{path} has no line for {absent[0]}, which was given a label; add one with an empty label."
            )
        by_line = {lines[names[row]]: value for row, value in new.items()}
        return _edited(path, column, list(cells), by_line, "utf-8", None)

    return _Source([cells[lines[name]] if name in lines else "" for name in names], digests, changed)


def _correction(cells: list[str], path: str | Path, row: int) -> Correction:
    index, given, decision, label = cells[0].strip(), unguard(cells[1]), cells[2].strip().lower(), unguard(cells[3])
    cells = [*cells[:4], *(cell.strip() for cell in cells[4:])]
    if not (index.isascii() and index.isdigit()):
        raise InputError(f'{path}, row {row}: the index is "{_short(index)}"; expected a row number from 0 on.')
    if decision not in DECISIONS:
        raise InputError(f'{path}, row {row}: the decision is "{_short(decision)}"; {nearest(decision, DECISIONS)}')
    if decision in ("accept", "other") and not label.strip():
        raise InputError(f"{path}, row {row}: {decision} needs a label; write one, or skip in its place.")
    for name, digest in zip(DIGESTS, cells[4:], strict=True):
        if digest and not _DIGEST.fullmatch(digest):
            raise InputError(
                f'{path}, row {row}: the digest under {name} is "{_short(digest)}"; expected sha256:... or nothing.'
            )
    return Correction(int(index), given, decision, label, *cells[4:])


def _csv(rows: Iterable[Sequence[str]]) -> bytes:
    comma = Dialect(",")
    return "".join(",".join(comma.write(cell, "") for cell in row) + "\n" for row in rows).encode()


def _fixed(data: Path) -> Path:
    if data.is_dir():
        return data.parent / f"{data.name}.fixed.csv"
    stem, dot, suffixes = data.name.partition(".")
    return data.with_name(f"{stem}.fixed{dot}{suffixes}")


def _check_target(out: Path, force: bool) -> None:
    check_regular(out)
    if out.exists() and not force:
        raise InputError(f"{out} is there already; name another file, or overwrite it with force=True (--force).")
    if not out.parent.is_dir():
        raise InputError(f"there is no folder {out.parent} to write {out.name} to; make it first.")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:40] + "…"
