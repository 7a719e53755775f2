"""Decisions about labels: reading ``corrections.csv`` and applying it to the data.

The file has the columns ``index,given,decision,label``: the 0-based row of the source, the label it had, what was decided (``accept`` the
suggestion, ``reject`` it, set an ``other`` label, or ``skip``), and the label that holds now; and ``row,source``, the digests of that row and
of the audited file, which a file written by hand may lack. Where a row has several labels, ``part`` says which one is meant (see
`compensate.auditing.parts`), and ``index`` is the number of that label. A decision reaches the row it was made about: if the file is another
one, or its label is, nothing is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compensate.auditing.csv_edit import csv_bytes
from compensate.auditing.csv_escape import guard, unguard
from compensate.auditing.digests import digest_source, digest_text
from compensate.auditing.rewrite import check_output, fixed_name, open_labels, same_label
from compensate.errors import InputError, nearest
from compensate.files import write_atomically

COLUMNS = ("index", "given", "decision", "label")
DIGESTS = ("row", "source")
PART = "part"
DECISIONS = ("accept", "reject", "other", "skip")
_DIGEST = re.compile("sha256:[0-9a-f]{16}")


@dataclass(frozen=True)
class Correction:
    """What was decided about a row: ``label`` holds from now on, unless the decision is to skip it.

    ``row`` and ``source`` are the digests of the row and of the audited file, if they are known; ``part`` is which label of the row is
    meant, where it has several.
    """

    index: int
    given: str
    decision: str
    label: str
    row: str = ""
    source: str = ""
    part: str = ""

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


def read_corrections(path: str | Path) -> tuple[Correction, ...]:
    """The decisions of a file: ``corrections.csv``, or what Label Studio or Argilla exports; an error names the line that cannot be used."""
    from compensate.auditing.imported import SUFFIXES, read_exported

    rows = read_exported(path) if Path(path).suffix.lower() in SUFFIXES else _cells(path)
    found = [_correction(list(row), path, n) for n, row in enumerate(rows, 1)]
    seen: set[int] = set()
    for correction in found:
        if correction.index in seen:
            raise InputError(f"{path} decides on row {correction.index} more than once; keep one line for each.")
        seen.add(correction.index)
    return tuple(found)


def _cells(path: str | Path) -> Iterator[list[str]]:
    from compensate.data.tables import read_frame

    frame = read_frame(path)
    names = {str(name).strip().lower(): name for name in frame.columns}
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise InputError(
            f"{path} has no column {', '.join(missing)}; expected {','.join(COLUMNS)}, as the review page exports it."
        )
    columns = [list(frame[names[name]]) for name in COLUMNS]
    columns += [list(frame[names[name]]) if name in names else [""] * len(frame) for name in (*DIGESTS, PART)]
    for index, given, decision, label, *digests, part in zip(*columns, strict=True):
        yield [
            str(index),
            unguard(str(given)),
            str(decision),
            unguard(str(label)),
            *map(str, digests),
            unguard(str(part)),
        ]


def write_corrections(path: str | Path, corrections: Iterable[Correction]) -> None:
    """Writes decisions as the review page does, so that a spreadsheet evaluates nothing in them."""
    rows = [
        (str(c.index), guard(c.given), c.decision, guard(c.label), c.row, c.source, guard(c.part)) for c in corrections
    ]
    width = len(COLUMNS) + len(DIGESTS) + any(row[-1] for row in rows)
    write_atomically(path, csv_bytes(row[:width] for row in ((*COLUMNS, *DIGESTS, PART), *rows)))


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
        if (text := digest_text(digest)) in wanted:
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
        data: a CSV, TSV, JSONL, Excel or Parquet file; several Parquet files (a folder, or a pattern), a folder of images, or a
            data set that Hugging Face's `datasets` saved.
        corrections: the file exported by the review page, or what `read_corrections` made of it.
        out: the file to write; by default ``name.fixed.csv`` next to ``name.csv``. A folder for several Parquet files and for a
            saved data set.
        label: the label's column, if it was named for the audit too.
        encoding, delimiter: of the file, if they are not UTF-8 and the obvious sign.
        force: overwrite a file that is there.
        rematch: the file is not the one that was audited, byte for byte: find each row by its content.

    A corrected CSV, TSV or JSONL is the same file byte for byte but for the changed labels, and so is every part of a corrected
    Excel file but the cells of the labels. A folder of images gets a label file: its own with the changes, or a new one with the
    columns file and label.
    """
    data = Path(data)
    out = None if out is None else Path(out)
    decided = read_corrections(corrections) if isinstance(corrections, (str, Path)) else tuple(corrections)
    if any(c.part for c in decided):
        from compensate.auditing.parts import apply_parts

        return apply_parts(
            data, decided, out, label=label, encoding=encoding, delimiter=delimiter, force=force, rematch=rematch
        )
    out = fixed_name(data) if out is None else out
    check_output(data, out, force)
    source = open_labels(data, label, encoding, delimiter)
    matched = None
    checked = not rematch and check_source(decided, digest_source(data), str(data))
    if rematch:
        decided, matched = rematch_rows(decided, source.cells, source.digests(), str(data))
    new = changes(source.cells, decided, str(data))
    source.write(out, new)
    skipped = sum(c.decision == "skip" for c in decided)
    kept = len(decided) - len(new) - skipped
    return Applied(out, len(source.cells), len(new), kept, skipped, checked, matched)


def _correction(cells: list[str], path: str | Path, row: int) -> Correction:
    index, given, decision, label = cells[0].strip(), cells[1], cells[2].strip().lower(), cells[3]
    digests = [cell.strip() for cell in cells[4:6]]
    if not (index.isascii() and index.isdigit()):
        raise InputError(f'{path}, row {row}: the index is "{_short(index)}"; expected a row number from 0 on.')
    if decision not in DECISIONS:
        raise InputError(f'{path}, row {row}: the decision is "{_short(decision)}"; {nearest(decision, DECISIONS)}')
    if decision in ("accept", "other") and not label.strip():
        raise InputError(f"{path}, row {row}: {decision} needs a label; write one, or skip in its place.")
    for name, digest in zip(DIGESTS, digests, strict=True):
        if digest and not _DIGEST.fullmatch(digest):
            raise InputError(
                f'{path}, row {row}: the digest under {name} is "{_short(digest)}"; expected sha256:... or nothing.'
            )
    return Correction(int(index), given, decision, label, *digests, *cells[6:])


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:40] + "…"
