"""Decisions about labels: ``corrections.csv`` and the journal of a review.

The file has the columns ``index,given,decision,label``: the 0-based row of the source, the label it had, what was decided (``accept`` the
suggestion, ``reject`` it, set an ``other`` label, or ``skip``), and the label that holds now; and ``row,source``, the digests of that row and
of the audited file, which a file written by hand may lack. Where a row has several labels, ``part`` says which one is meant (see
`compensate.auditing.labels.base`), and ``index`` is the number of that label. A decision reaches the row it was made about: if the file is another
one, or its label is, nothing is written.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from compensate.auditing.digests import digest_text
from compensate.auditing.write_back import csv_bytes, guard, same_label, unguard
from compensate.data.dataset import UNLABELED, Dataset, Ints
from compensate.errors import InputError, nearest
from compensate.files import write_atomically, writing

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
    from compensate.auditing.exchange import SUFFIXES, read_exported

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


JOURNAL, CORRECTIONS, LOCK = "decisions.jsonl", "corrections.csv", "review.lock"
"""The journal, what is made from it, and what keeps a second process out while labels are reviewed."""


@dataclass(frozen=True)
class Event:
    """A decision, or that there is none any more.

    Attributes:
        made: what was decided; its decision is empty if an earlier one was undone.
        time: when, in milliseconds since 1970.
        tab: where.
    """

    made: Correction
    time: int
    tab: str

    def line(self) -> bytes:
        """As it stands in the journal."""
        text = json.dumps({"time": self.time, "tab": self.tab, **asdict(self.made)}, ensure_ascii=False)
        return text.encode("utf-8", "surrogatepass") + b"\n"

    @staticmethod
    def of(line: bytes) -> Event:
        """From a line of the journal."""
        found = json.loads(line.decode("utf-8", "surrogatepass"))
        parts = {name: found[name] for name in Correction.__dataclass_fields__}
        texts = [value for name, value in parts.items() if name != "index"]
        if not all(isinstance(text, str) for text in (*texts, found["tab"])) or parts["decision"] not in (
            "",
            *DECISIONS,
        ):
            raise ValueError("it is no decision")
        if not all(isinstance(number, int) for number in (parts["index"], found["time"])):
            raise ValueError("row and time are no numbers")
        return Event(Correction(**parts), found["time"], found["tab"])


class Journal:
    """The decisions of a run, for one process at a time; see `reviewing`.

    Args:
        folder: of the run.

    >>> import tempfile
    >>> journal = Journal(Path(tempfile.mkdtemp()))
    >>> journal.record([Event(Correction(3, "cat", "accept", "dog"), 1, "a")])
    1
    >>> [decision.label for decision in journal.decisions]
    ['dog']
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / JOURNAL
        self.events = _read(self.path)
        self.held = _latest(folder, self.events)
        self.merged = -1
        self._lock = threading.Lock()

    @property
    def version(self) -> int:
        """The number of events: `since` tells what came after."""
        return len(self.events)

    @property
    def decisions(self) -> tuple[Correction, ...]:
        """What holds, by row."""
        with self._lock:
            return _decisions(self.held)

    def since(self, version: int) -> Sequence[Event]:
        """What holds now of the rows that were decided on after a version."""
        with self._lock:
            rows = dict.fromkeys(event.made.index for event in self.events[max(version, 0) :])
            return [self.held[row] for row in rows]

    def record(self, events: Iterable[Event]) -> int:
        """Writes events; once it returns, with the new version, they are on disk."""
        events = list(events)
        with self._lock:
            content = b"".join(event.line() for event in events)
            with writing(self.path):
                handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
                whole = _whole(self.path)
                try:
                    os.ftruncate(handle, whole)
                    _write_all(handle, content)
                    os.fsync(handle)
                except BaseException:
                    os.ftruncate(handle, whole)  # what is not confirmed shall not be found later
                    raise
                finally:
                    os.close(handle)
            self.events += events
            for event in events:
                _hold(self.held, event)
            return len(self.events)

    def merge(self) -> None:
        """Writes ``corrections.csv`` if anything was decided since it was written."""
        with self._lock:
            version, decisions = len(self.events), _decisions(self.held)
        if version != self.merged and (decisions or (self.folder / CORRECTIONS).exists()):
            write_corrections(self.folder / CORRECTIONS, decisions)
        self.merged = version


def run_decisions(folder: Path) -> tuple[Correction, ...]:
    """The decisions in the folder of a run: those of its journal, and over which it says nothing those of ``corrections.csv``."""
    return _decisions(_latest(folder, _read(folder / JOURNAL)))


def keep_decisions(before: Path, after: Path, more: Iterable[Correction] = ()) -> None:
    """Brings the decisions of one folder to another, with others about rows on which none was made there."""
    held = {decision.index: decision for decision in (*more, *run_decisions(before))}
    if (before / JOURNAL).is_file():
        (after / JOURNAL).write_bytes((before / JOURNAL).read_bytes())
    if held:
        write_corrections(after / CORRECTIONS, (held[row] for row in sorted(held)))


@contextmanager
def reviewing(folder: Path) -> Iterator[None]:
    """Keeps other processes from reviewing or replacing a run; raises if one is at it."""
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(blocking=False)
    except NotImplementedError:  # a disk that knows no locks
        yield
        return
    except Timeout:
        raise InputError(
            f"{folder} is being reviewed by another process. Use its page, or end it with Ctrl-C first."
        ) from None
    except OSError as error:
        with writing(folder):
            raise error
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        lock.release()


def check_not_reviewed(folder: Path) -> None:
    """Refuses the folder of a run that is being reviewed."""
    if (folder / LOCK).exists():
        with reviewing(folder):
            pass


def now() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _read(path: Path) -> list[Event]:
    if not path.is_file():
        return []
    *lines, _cut_off = path.read_bytes().split(b"\n")
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(Event.of(line))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(
                f"{path}, line {number} is no decision ({error}). Remove the line; the others can be used."
            ) from error
    return found


def _latest(folder: Path, events: Iterable[Event]) -> dict[int, Event]:
    held = {}
    if (folder / CORRECTIONS).is_file():
        held = {c.index: Event(c, 0, CORRECTIONS) for c in read_corrections(folder / CORRECTIONS)}
    for event in events:
        _hold(held, event)
    return held


def _hold(held: dict[int, Event], event: Event) -> None:
    """The later decision holds: one that waited for the server may arrive after one that was made later."""
    row = event.made.index
    if row not in held or held[row].time <= event.time:
        held[row] = event


def _decisions(held: dict[int, Event]) -> tuple[Correction, ...]:
    return tuple(held[row].made for row in sorted(held) if held[row].made.decision)


def _whole(path: Path) -> int:
    """The bytes of the whole lines of a journal."""
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 4096)
            file.seek(start)
            last = file.read(end - start).rfind(b"\n")
            if last >= 0:
                return start + last + 1
            end = start
    return 0


def _write_all(handle: int, content: bytes) -> None:
    rest: Any = memoryview(content)
    while len(rest):
        rest = rest[os.write(handle, rest) :]


@dataclass(frozen=True, eq=False)
class Decided:
    """Decisions, row by row of some data.

    Attributes:
        rows: (N,) on which rows was decided.
        labels: (N,) the labels with these decisions, as class numbers.
        before: (N,) the labels that were decided on.
        unclear: decisions whose rows are not in the data, or hold a label that is neither the old nor the new one.
    """

    rows: NDArray[np.bool_]
    labels: Ints
    before: Ints
    unclear: int

    def described(self, index: Ints) -> dict[str, Any]:
        """Numbers for the report, and which rows of the source these are."""
        corrected = int((self.rows & (self.labels != self.before)).sum())
        return {
            "rows": index[self.rows].tolist(),
            "corrected": corrected,
            "confirmed": int(self.rows.sum()) - corrected,
            "unclear": self.unclear,
        }


def read_decisions(decisions: str | Path | Iterable[Correction]) -> tuple[Correction, ...]:
    """Decisions from the folder of a run, a file, or as they are."""
    if not isinstance(decisions, (str, Path)):
        return tuple(decisions)
    path = Path(decisions)
    return run_decisions(path) if path.is_dir() else read_corrections(path)


def decided_labels(data: Dataset, decisions: str | Path | Iterable[Correction]) -> Decided:
    """The labels of the data with decisions of an earlier audit.

    Rows are found by their number in the file that was audited, and by their content in any other. The data may hold the labels
    from before the decisions, or those that were decided.

    >>> data = Dataset(np.eye(2), np.array([0, 1]), ("cat", "dog"))
    >>> found = decided_labels(data, [Correction(1, "dog", "accept", "cat")])
    >>> found.labels, found.rows
    (array([0, 0]), array([False,  True]))
    """
    rows, labels = np.zeros(len(data), bool), data.target.astype(np.int64).copy()
    before, unclear = labels.copy(), 0
    classes = {name: number for number, name in enumerate(data.classes)}
    places = RowPlaces(data)
    for decision in read_decisions(decisions):
        if decision.decision == "skip":
            continue
        new = decision.label if decision.decision != "reject" else decision.given
        if new not in classes:
            raise InputError(f'row {decision.index} was given the label "{new[:80]}"; {nearest(new, data.classes)}')
        row = places.find(decision)
        holds = None if row is None or labels[row] == UNLABELED else data.classes[labels[row]]
        if row is None or holds not in (decision.given, new, None) or (holds is None and decision.given):
            unclear += 1
            continue
        rows[row], labels[row] = True, classes[new]
        before[row] = classes.get(decision.given, classes[new])
    return Decided(rows, labels, before, unclear)


class RowPlaces:
    """Where the rows of decisions are in some data."""

    def __init__(self, data: Dataset) -> None:
        self.source = data.source.digest
        self.by_index = {int(index): row for row, index in enumerate(data.index)}
        self.by_digest: dict[str, list[int]] = {}
        digests = data.source.row_digests
        if digests is not None:
            for row, digest in enumerate(digests[data.index].tolist()):
                self.by_digest.setdefault(digest_text(digest), []).append(row)

    def find(self, decision: Correction) -> int | None:
        if not decision.source or not self.source or decision.source == self.source:
            return self.by_index.get(decision.index)
        found = self.by_digest.get(decision.row, []) if decision.row else []
        return found.pop(0) if found else None
