"""Decisions about labels: ``corrections.csv``, the journal of a review, and the labels that result.

``corrections.csv`` has the columns of `Correction`. Where a row has several labels, ``part`` is the address of the label (see
`compensate.auditing.labels.base`), and ``index`` its number. A decision applies only to the row it was made about: if the file or its label
differs, nothing is written. The journal ``decisions.jsonl`` of a run records each decision at once; ``corrections.csv`` is made from it.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compensate.auditing.content import digest_text
from compensate.auditing.write_back import csv_bytes, guard, same_label, unguard
from compensate.data.dataset import UNLABELED, Dataset, Ints
from compensate.data.tables import read_frame
from compensate.errors import InputError, nearest
from compensate.files import exclusive, write_atomically, writing

COLUMNS = ("index", "given", "decision", "label", "row", "source", "part")
"""Of ``corrections.csv``; the last three may be missing."""

DECISIONS = ("accept", "reject", "other", "skip", "drop", "unclear", "wrong")
"""Take the suggestion, keep the label, set another one, decide later, drop the row, mark the label as unclear, which keeps it, and mark it as wrong
where the right one is unknown, which keeps it too."""

JOURNAL, CORRECTIONS, LOCK = "decisions.jsonl", "corrections.csv", "review.lock"
"""The journal, the file made from it, and the lock that keeps a second process out during a review."""

BLIND, BULK = "blind", "bulk"
"""Marks of decisions in the journal: made without seeing the given label, and made about many labels at once."""

_DIGEST = re.compile("sha256:[0-9a-f]{16}")


@dataclass(frozen=True)
class Correction:
    """A decision about a label."""

    index: int  # the row of the source, from 0 on
    given: str  # its label
    decision: str  # one of `DECISIONS`
    label: str  # the new one; empty where the decision sets none
    row: str = ""  # the digest of the row, if known
    source: str = ""  # the digest of the audited file, if known
    part: str = ""  # the address of the label where a row has several

    @property
    def settled(self) -> bool:
        """Whether the right label is known."""
        return self.decision not in ("skip", "wrong")

    @property
    def changes(self) -> bool:
        """Whether the label becomes another one."""
        return self.decision in ("accept", "other") and self.label != self.given


@dataclass(frozen=True)
class Matched:
    """The result of a search for rows by content."""

    found: int  # decisions whose rows are in the file
    moved: int  # how many of them are at another place than before
    done: int  # decisions about rows that hold the decided label already
    absent: tuple[int, ...]  # rows of the audited file that are not in this one
    unclear: tuple[int, ...]  # rows whose content is there, but with other labels or a different number of times


@dataclass(frozen=True)
class Applied:
    """The result of applying corrections: the number of labels in all, and of decisions that changed or kept them."""

    path: Path
    rows: int
    changed: int
    kept: int
    skipped: int
    unclear: int  # labels that are marked as unclear and kept
    dropped: int  # decisions to drop a row
    checked: bool = False  # whether the file is known to be the audited one
    matched: Matched | None = None  # the result of a search by content, if there was one

    @classmethod
    def count(cls, path: Path, rows: int, decided: Sequence[Correction], matched: Matched | None = None) -> Applied:
        """The counts of decisions that were written."""
        changed = sum(c.changes for c in decided)
        skipped = sum(not c.settled for c in decided)
        unclear, dropped = (sum(c.decision == name for c in decided) for name in ("unclear", "drop"))
        kept = len(decided) - changed - skipped - unclear - dropped
        return cls(path, rows, changed, kept, skipped, unclear, dropped, matched=matched)


# --- corrections.csv ------------------------------------------------------------------------------------------


def read_corrections(path: str | Path, rows: Iterable[Mapping[str, str]] | None = None) -> tuple[Correction, ...]:
    """The decisions of ``corrections.csv``, or of the rows of another file; an error names the unusable line."""
    corrections: dict[int, Correction] = {}
    for n, cells in enumerate(_rows(path) if rows is None else rows, 1):
        where = f"{path}, row {n}"
        index, decision, label = cells["index"].strip(), cells["decision"].strip().lower(), cells["label"]
        if not (index.isascii() and index.isdigit()):
            raise InputError(f'{where}: the index is "{_short(index)}"; expected a row number from 0 on.')
        if decision not in DECISIONS:
            raise InputError(f'{where}: the decision is "{_short(decision)}"; {nearest(decision, DECISIONS)}')
        if decision in ("accept", "other") and not label.strip():
            raise InputError(f"{where}: {decision} needs a label; write one, or skip instead.")
        digests = {name: cells.get(name, "").strip() for name in ("row", "source")}
        for name, digest in digests.items():
            if digest and not _DIGEST.fullmatch(digest):
                raise InputError(
                    f'{where}: the digest under {name} is "{_short(digest)}"; expected sha256:... or nothing.'
                )
        if int(index) in corrections:
            raise InputError(f"{path} decides on row {int(index)} more than once; keep one line for each.")
        made = Correction(int(index), cells["given"], decision, label, **digests, part=cells.get("part", ""))
        corrections[made.index] = made
    return tuple(corrections.values())


def _rows(path: str | Path) -> Iterator[dict[str, str]]:
    frame = read_frame(path)
    names = {str(name).strip().lower(): name for name in frame.columns}
    missing = [name for name in COLUMNS[:4] if name not in names]
    if missing:
        expected = ",".join(COLUMNS[:4])
        raise InputError(
            f"{path} has no column {', '.join(missing)}; expected {expected}, as the review page exports it."
        )
    known = [name for name in COLUMNS if name in names]
    for cells in zip(*(map(str, frame[names[name]]) for name in known), strict=True):
        row = dict(zip(known, cells, strict=True))
        yield row | {name: unguard(row[name]) for name in ("given", "label", "part") if name in row}


def write_corrections(path: str | Path, corrections: Iterable[Correction]) -> None:
    """Writes decisions as the review page does; text that a spreadsheet would evaluate is guarded."""
    rows = [[guard(str(value)) for value in astuple(c)] for c in corrections]
    width = len(COLUMNS) - (not any(row[-1] for row in rows))
    write_atomically(path, csv_bytes(row[:width] for row in (COLUMNS, *rows)))


# --- decisions and the data they are about --------------------------------------------------------------------


def changes(cells: Sequence[Any], corrections: Iterable[Correction], where: str) -> dict[int, str | None]:
    """The new labels by row, None for rows to drop; refuses decisions about other labels than the data hold."""
    corrections = list(corrections)
    beyond = [c.index for c in corrections if not 0 <= c.index < len(cells)]
    if beyond:
        raise InputError(f"a correction is about row {beyond[0]}, and {where} has the rows 0 to {len(cells) - 1}.")
    different = [c for c in corrections if not same_label(cells[c.index], c.given)]
    if different:
        named = [f'row {c.index} holds "{_short(cells[c.index])}", not "{_short(c.given)}"' for c in different]
        shown = "; ".join(named[:3])
        more = f" (and {len(different) - 3} more)" if len(different) > 3 else ""
        raise InputError(
            f"{where} differs from what was reviewed: {shown}{more}. Nothing is written. Apply the corrections to the "
            "file that was audited, or audit this one."
        )
    return {
        c.index: None if c.decision == "drop" else c.label for c in corrections if c.changes or c.decision == "drop"
    }


def check_source(corrections: Iterable[Correction], digest: str, where: str) -> bool:
    """Whether decisions are known to be about the source with this digest; refuses decisions about another one."""
    sources = {c.source for c in corrections}
    others = sorted(sources - {"", digest})
    if others and digest:
        raise InputError(
            f"{where} ({digest}) is not what was reviewed ({others[0]}). Nothing is written. Apply the corrections to the "
            "file that was audited; or, if this file holds the same rows, have each one found by its content: rematch=True "
            "(--rematch on the command line)."
        )
    return "" not in sources


def rematch_rows(
    corrections: Sequence[Correction], cells: Sequence[Any], digests: NDArray[np.uint64], where: str
) -> tuple[tuple[Correction, ...], Matched]:
    """The decisions at the present places of their rows, found by content and label, and the fate of the others.

    Rows with equal content and label are matched in their order, if there are as many of them as decisions.
    """
    if any(not c.row for c in corrections):
        raise InputError(
            "these corrections do not say what their rows hold, so rows cannot be found by content. Export them again from "
            "the review page of the audit, or apply them to the audited file without rematch (--rematch)."
        )
    places: dict[str, list[int]] = {c.row: [] for c in corrections}
    for place, digest in enumerate(map(digest_text, digests.tolist())):
        if digest in places:
            places[digest].append(place)
    groups: dict[tuple[str, str], list[Correction]] = {}
    for c in sorted(corrections, key=lambda c: c.index):
        groups.setdefault((c.row, c.given), []).append(c)
    found: list[Correction] = []
    done, absent, unclear, moved = 0, [], [], 0
    for (digest, given), group in groups.items():
        here = places[digest]
        same = [place for place in here if same_label(cells[place], given)]
        if len(same) == len(group):
            found += [replace(c, index=place) for c, place in zip(group, same, strict=True)]
            moved += sum(c.index != place for c, place in zip(group, same, strict=True))
        elif not here:
            absent += [c.index for c in group]
        elif not same and all(any(same_label(cells[place], c.label) for place in here) for c in group):
            done += len(group)
        else:
            unclear += [c.index for c in group]
    if not found and not done:
        raise InputError(
            f"none of the {len(corrections)} rows that were decided on is in {where}. Nothing is written. Apply the "
            "corrections to the file that was audited, or audit this one."
        )
    return tuple(found), Matched(len(found), moved, done, tuple(absent), tuple(unclear))


@dataclass(frozen=True, eq=False)
class Decided:
    """The labels of data with decisions."""

    rows: NDArray[np.bool_]  # (N,) whether there is a decision about each row
    labels: Ints  # (N,) class numbers with the decisions
    before: Ints  # (N,) class numbers before them
    summary: dict[
        str, Any
    ]  # the decided rows of the source, and the numbers of corrected, confirmed and unclear labels


def decided_labels(data: Dataset, decisions: Iterable[Correction]) -> Decided:
    """The labels of the data with decisions of an earlier audit.

    The data may hold the old or the decided labels. Rows that were dropped or are unclear count as rows without a label.
    """
    rows, labels = np.zeros(len(data), bool), data.target.astype(np.int64).copy()
    before, unclear = labels.copy(), 0
    classes = {name: number for number, name in enumerate(data.classes)}
    decisions = [c for c in decisions if c.settled]
    for c, row in zip(decisions, find_rows(data, decisions), strict=True):
        if c.decision in ("drop", "unclear"):
            if row is not None:
                labels[row] = before[row] = UNLABELED
            continue
        new = c.label if c.decision != "reject" else c.given
        if new not in classes:
            raise InputError(f'row {c.index} was given the label "{new[:80]}"; {nearest(new, data.classes)}')
        present = None if row is None or labels[row] == UNLABELED else data.classes[labels[row]]
        if row is None or present not in (c.given, new, None) or (present is None and c.given):
            unclear += 1  # the row is absent, or holds neither the old nor the new label
            continue
        rows[row], labels[row] = True, classes[new]
        before[row] = classes.get(c.given, classes[new])
    corrected = int((rows & (labels != before)).sum())
    counts = {"corrected": corrected, "confirmed": int(rows.sum()) - corrected, "unclear": unclear}
    return Decided(rows, labels, before, {"rows": data.index[rows].tolist(), **counts})


def find_rows(data: Dataset, decisions: Iterable[Correction]) -> list[int | None]:
    """The position of the row of each decision: by its number in the audited file, by its content in any other; None if it is absent."""
    by_index = {int(index): row for row, index in enumerate(data.index)}
    by_digest: dict[str, list[int]] = {}
    source, digests = data.source.digest, data.source.row_digests
    for row, digest in enumerate(() if digests is None else digests[data.index].tolist()):
        by_digest.setdefault(digest_text(digest), []).append(row)
    found: list[int | None] = []
    for c in decisions:
        rows = by_digest.get(c.row)
        here = not c.source or not source or c.source == source
        found.append(by_index.get(c.index) if here else rows.pop(0) if rows else None)
    return found


# --- the journal of a review ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """A line of the journal: a decision (an empty one undoes an earlier one), its time in milliseconds since 1970, the browser tab and the mark."""

    made: Correction
    time: int
    tab: str
    how: str = ""  # `BLIND`, `BULK`, or empty for a label that was reviewed by itself

    def line(self) -> bytes:
        values = {"time": self.time, "tab": self.tab, "how": self.how, **asdict(self.made)}
        text = json.dumps(values, ensure_ascii=False)
        return text.encode("utf-8", "surrogatepass") + b"\n"

    @staticmethod
    def of(line: bytes) -> Event:
        values = json.loads(line.decode("utf-8", "surrogatepass"))
        made = {name: values[name] for name in Correction.__dataclass_fields__}
        head = {"tab": values["tab"], "how": values.get("how", "")}
        texts = [value for name, value in (*made.items(), *head.items()) if name != "index"]
        if not all(isinstance(text, str) for text in texts) or made["decision"] not in ("", *DECISIONS):
            raise ValueError("it is not a decision")
        if not all(isinstance(number, int) for number in (made["index"], values["time"])):
            raise ValueError("row and time are not numbers")
        return Event(Correction(**made), values["time"], **head)


class Journal:
    """The decisions in the folder of a run, of its journal, and of ``corrections.csv`` for other rows; for one process, see `reviewing`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / JOURNAL
        self.merged = -1
        self._lock = threading.Lock()
        corrections = read_corrections(folder / CORRECTIONS) if (folder / CORRECTIONS).is_file() else ()
        self.latest = {c.index: Event(c, 0, CORRECTIONS) for c in corrections}
        self.blind = dict[int, Event]()  # the latest with this mark; later decisions with the label in view leave them
        self.events: list[Event] = []
        lines = self.path.read_bytes().split(b"\n")[:-1] if self.path.is_file() else []  # the last may be incomplete
        for number, line in enumerate(lines, 1):
            try:
                self._add(Event.of(line))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise InputError(
                    f"{self.path}, line {number} is not a decision ({error}). Remove the line; the others can be used."
                ) from error

    def _add(self, event: Event) -> None:
        """Keeps the event with the later time: events of a tab without connection arrive late."""
        self.events.append(event)
        row = event.made.index
        for latest in (self.latest, self.blind) if event.how == BLIND else (self.latest,):
            if row not in latest or latest[row].time <= event.time:
                latest[row] = event

    @property
    def version(self) -> int:
        """The number of events."""
        return len(self.events)

    @property
    def decisions(self) -> tuple[Correction, ...]:
        """The valid decisions, by row."""
        with self._lock:
            return tuple(self.latest[row].made for row in sorted(self.latest) if self.latest[row].made.decision)

    @property
    def answers(self) -> tuple[Correction, ...]:
        """The decisions that were made without seeing the given label."""
        return tuple(event.made for event in list(self.blind.values()) if event.made.decision)

    def since(self, version: int, blind: bool = False) -> Sequence[Event]:
        """The latest events, or blind ones, of the rows with events after a version; the first version has those of ``corrections.csv`` too."""
        with self._lock:
            latest = self.blind if blind else self.latest
            rows = (event.made.index for event in self.events[version:]) if version > 0 else latest
            return [latest[row] for row in dict.fromkeys(rows) if row in latest]

    def record(self, events: Iterable[Event]) -> int:
        """Writes events to disk and returns the new version."""
        events = list(events)
        with self._lock:
            with writing(self.path):
                handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
                end = self.path.read_bytes().rfind(b"\n") + 1  # an incomplete last line is overwritten
                try:
                    os.ftruncate(handle, end)
                    rest: Any = memoryview(b"".join(event.line() for event in events))
                    while len(rest):
                        rest = rest[os.write(handle, rest) :]
                    os.fsync(handle)
                except BaseException:
                    os.ftruncate(handle, end)  # an unconfirmed decision must not be found later
                    raise
                finally:
                    os.close(handle)
            for event in events:
                self._add(event)
            return len(self.events)

    def merge(self) -> None:
        """Writes ``corrections.csv`` if there are new events."""
        version, decisions = self.version, self.decisions  # a later event is written the next time
        if version != self.merged and (decisions or (self.folder / CORRECTIONS).exists()):
            write_corrections(self.folder / CORRECTIONS, decisions)
        self.merged = version


def run_decisions(folder: Path) -> tuple[Correction, ...]:
    """The decisions in the folder of a run."""
    return Journal(folder).decisions


@contextmanager
def reviewing(folder: Path) -> Iterator[None]:
    """Keeps other processes from reviewing or replacing a run; raises if one already does."""
    busy = f"{folder} is being reviewed by another process. Use its page, or end it with Ctrl-C first."
    with exclusive(folder / LOCK, lambda: busy):
        try:
            yield
        finally:
            (folder / LOCK).unlink(missing_ok=True)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:40] + "…"
