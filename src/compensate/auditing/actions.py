"""Decisions about findings in one step: rows to drop or to mark as unclear, names to merge, labels to fill in, and values in a wrong unit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from compensate.auditing.class_names import merge_spellings
from compensate.auditing.decisions import BULK, CORRECTIONS, Correction, Event, Journal
from compensate.auditing.issues import KINDS, issue_rows
from compensate.auditing.labels.quantity import in_other_unit
from compensate.data.labels import is_missing, label_name
from compensate.errors import InputError, nearest

if TYPE_CHECKING:
    from compensate.auditing.result import Audit

BY_COMMAND = "apply"  # stands for the browser tab in the journal


def decide_rows(audit: Audit, rows: Iterable[int], decision: str) -> list[Correction]:
    """The same decision about some rows of the source."""
    first = {row: label for label, row in reversed([*enumerate(audit.rows.tolist())])}
    given = audit.written(audit.given)
    made = []
    for row in rows:
        if row not in first:
            raise InputError(
                f"row {row} was not audited, or is not stored in this run; expected a row of suspects.csv."
            )
        i = first[row]
        at = audit.row_digest(i), audit.source_digest, audit.part(i)
        made.append(Correction(int(audit.index[i]), given[i], decision, "", *at))
    return made


def named_rows(audit: Audit, text: str, option: str) -> list[int]:
    """The rows that a command names by kinds of issues and by numbers, separated by commas."""
    kinds = [kind for kind in KINDS if KINDS[kind].about == "row"] + ["rare_class"]
    rows: list[int] = []
    for name in filter(None, map(str.strip, text.split(","))):
        if name.isascii() and name.isdigit():
            rows.append(int(name))
        elif name in kinds:
            rows += issue_rows(audit, name)
        else:
            raise InputError(
                f'{option} is "{name}"; expected row numbers or kinds of issues.csv: {nearest(name, kinds)}'
            )
    return list(dict.fromkeys(rows))


def merged_names(audit: Audit, text: str) -> dict[str, str]:
    """The names to replace: ``Pos=pos,biling=billing``, or ``spellings`` for names that differ in case, spacing or Unicode form."""
    if text.strip() == "spellings":
        return {**audit.source.merged, **merge_spellings(audit.given.astype(np.int64), audit.classes)[2]}
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(old.strip() and new.strip() for old, _, new in pairs):
        raise InputError(f'--merge is "{text}"; expected OLD=NEW, such as Pos=pos, or spellings.')
    return {old.strip(): new.strip() for old, _, new in pairs}


def merge_names(audit: Audit, names: Mapping[str, str], cells: Sequence[Any]) -> list[Correction]:
    """Decisions that replace names; `cells` are the labels of the source as they are written."""
    place = {int(row): i for i, row in enumerate(audit.index)}
    made = []
    for row, cell in enumerate(cells):
        name = "" if is_missing(cell) else label_name(cell).strip()
        if name in names:
            digest = audit.row_digest(place[row]) if row in place else ""
            made.append(Correction(row, name, "other", names[name], digest, audit.source_digest))
    absent = sorted(set(names) - {c.given for c in made})
    if absent:
        raise InputError(f'no row is labeled "{absent[0]}"; {nearest(absent[0], audit.classes)}')
    return made


def filled(audit: Audit, at_least: float) -> list[Correction]:
    """Decisions that give rows without a label the predicted one, if it has at least this probability."""
    found = audit.predicted[audit.predicted["probability"] >= at_least]
    pairs = zip(found["index"], found["suggested"], strict=True)
    return [Correction(int(row), "", "accept", label, "", audit.source_digest) for row, label in pairs]


def wrong_units(audit: Audit) -> list[Correction]:
    """Decisions that set flagged values back by the factor of 10, 100 or 1,000 that was suggested."""
    if not audit.regression:
        raise InputError("--units is for quantities, and these labels are classes; leave it out.")
    slipped = set(audit.index[audit.mask & in_other_unit(audit.given, audit.suggested)].tolist())
    return [c for c in audit.accepted(audit.threshold) if c.index in slipped]


def decisions(
    audit: Audit, earlier: Iterable[Correction], cells: Sequence[Any], *, drop: str | None = None, unclear: str | None = None,
    merge: str | None = None, units: bool | None = None, fill: float | None = None,
) -> list[Correction]:  # fmt: skip
    """The decisions of `compensate apply`: of several about a row the last counts. Merged names leave labels that were changed earlier."""
    made = wrong_units(audit) if units else []
    made += [] if fill is None else filled(audit, fill)
    if merge is not None:
        changed = {c.index for c in (*earlier, *made) if c.changes or c.decision == "drop"}
        made += [c for c in merge_names(audit, merged_names(audit, merge), cells) if c.index not in changed]
    made += [] if unclear is None else decide_rows(audit, named_rows(audit, unclear, "--unclear"), "unclear")
    made += [] if drop is None else decide_rows(audit, named_rows(audit, drop, "--drop"), "drop")
    return list({c.index: c for c in made}.values())


def record(journal: Journal, made: Iterable[Correction], time: int) -> None:
    """Appends decisions of a command to the journal of a run."""
    made = list(made)
    earlier = (journal.latest.get(c.index) for c in made)
    journal.record(event for event in earlier if event is not None and event.tab == CORRECTIONS)  # for `undo`
    journal.record(Event(c, time, BY_COMMAND, BULK) for c in made)
    journal.merge()


def undo(journal: Journal, time: int) -> int:
    """Restores the decisions before those of commands; returns how many were taken back."""
    latest = [event for event in journal.latest.values() if event.tab == BY_COMMAND]
    earlier = {e.made.index: e for e in sorted(journal.events, key=lambda e: e.time) if e.tab != BY_COMMAND}
    empty = (replace(event, made=replace(event.made, decision="", label="")) for event in latest)
    journal.record(replace(earlier.get(e.made.index, e), time=time, tab="undo") for e in empty)
    journal.merge()
    return len(latest)
