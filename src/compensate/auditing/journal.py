"""Decisions as they are made: a journal in the run's folder that only grows, and ``corrections.csv``, which is made from it.

A line is a decision: which row, what was decided, when, and in which tab of the browser. It is on disk before anybody is told that it is
saved, so that a process that is killed loses nothing. Of several decisions about a row the latest holds. A line that was cut off by a
crash was never confirmed, and is left out.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from compensate.auditing.corrections import DECISIONS, Correction, read_corrections, write_corrections
from compensate.errors import InputError
from compensate.files import writing

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
