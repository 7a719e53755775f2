"""Samples with several labels each: which label is meant, and writing decisions about it back.

A row may have a set of labels, a sentence a tag for each word, an image a mask. What is judged, reviewed and corrected is then a *part* of
the sample, and every part is named by a short text, which an audit, its page and ``corrections.csv`` carry:

- ``label ROW NAME``: whether the row has this label, in a cell of joined labels or a list;
- ``column ROW NAME``: the same, in a column of 0 and 1;
- ``tokens FIRST COUNT``: the tags of COUNT tokens from number FIRST of the file on;
- ``region START+LENGTH,... FILE``: pixels of a mask, as runs of its pixels row by row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compensate.errors import InputError

if TYPE_CHECKING:
    from compensate.auditing.decisions import Applied, Correction

_FORMS = {
    "label": re.compile(r"label (\d{1,15}) (.*)", re.DOTALL),
    "column": re.compile(r"column (\d{1,15}) (.*)", re.DOTALL),
    "tokens": re.compile(r"tokens (\d{1,15}) (\d{1,6})"),
    "region": re.compile(r"region ((?:\d{1,12}\+\d{1,12},?)+) (.+)", re.DOTALL),
}


def part_of(text: str) -> tuple[str, str, str]:
    """The form of a part and its two arguments.

    >>> part_of("label 17 sports"), part_of("tokens 120 3")
    (('label', '17', 'sports'), ('tokens', '120', '3'))
    """
    form = text.partition(" ")[0]
    found = _FORMS[form].fullmatch(text) if form in _FORMS else None
    if found is None:
        raise InputError(
            f'"{text[:60]}" names no part of a sample; expected for example "label 17 sports" or "tokens 120 3", as an audit '
            "writes it."
        )
    return form, found[1], found[2]


def part_columns(parts: Sequence[str]) -> dict[str, list[Any]]:
    """The parts as columns of a list of suspects.

    >>> part_columns(["label 17 sports", "label 4 politics"])
    {'label': ['sports', 'politics']}
    """
    found = [part_of(part) for part in parts]
    if not found or found[0][0] in ("label", "column"):
        return {"label": [name for _, _, name in found]}
    if found[0][0] == "tokens":
        return {"token": [int(first) for _, first, _ in found], "tokens": [int(count) for _, _, count in found]}
    return {
        "file": [name for _, _, name in found],
        "pixels": [sum(length for _, length in runs_of(runs)) for _, runs, _ in found],
    }


def part_rows(parts: Sequence[str]) -> list[int] | None:
    """The row of the source that each label of a set belongs to; None for parts that do not name it.

    >>> part_rows(["label 17 sports", "label 4 politics"])
    [17, 4]
    """
    found = [part_of(part) for part in parts]
    return [int(row) for _, row, _ in found] if found and found[0][0] in ("label", "column") else None


def runs_of(text: str) -> list[tuple[int, int]]:
    """Start and length of each run.

    >>> runs_of("3+2,9+1")
    [(3, 2), (9, 1)]
    """
    pairs = (run.split("+") for run in text.strip(",").split(","))
    return [(int(start), int(length)) for start, length in pairs]


def apply_parts(
    data: Path,
    decided: Iterable[Correction],
    out: Path | None,
    *,
    label: str | None = None,
    encoding: str = "utf-8",
    delimiter: str | None = None,
    force: bool = False,
    rematch: bool = False,
) -> Applied:
    """Writes the data with the decided parts changed; as `compensate.auditing.apply.apply_corrections`."""
    from compensate.auditing.decisions import Applied, check_source
    from compensate.auditing.digests import digest_source

    decided = tuple(decided)
    forms = {part_of(c.part)[0] if c.part else "" for c in decided}
    if len(forms) > 1:
        raise InputError(
            "these corrections are about more than one form of labels; apply those of one audit at a time."
        )
    form = forms.pop()
    if rematch:
        raise InputError(
            "parts of a sample cannot be found by content; apply the corrections to the file that was audited, without "
            "rematch (--rematch)."
        )
    if form == "region":
        from compensate.auditing.labels.regions import apply_regions

        return apply_regions(data, decided, out, force=force)
    from compensate.auditing.write_back import check_output, fixed_name

    out = fixed_name(data) if out is None else out
    check_output(data, out, force)
    checked = check_source(decided, digest_source(data), str(data))
    if form == "tokens":
        from compensate.auditing.labels.tags import apply_tags

        total, changed = apply_tags(data, decided, out, encoding)
    else:
        from compensate.auditing.labels.sets import apply_labels

        total, changed = apply_labels(data, decided, out, form, label, encoding, delimiter)
    skipped = sum(c.decision == "skip" for c in decided)
    return Applied(out, total, changed, len(decided) - changed - skipped, skipped, checked)


def check_given(where: str | Path, correction: Correction, held: str) -> None:
    """Refuses a decision about another label than the data hold."""
    if correction.given.strip() != held:
        raise InputError(
            f'{where} differs from what was reviewed: "{correction.part[:60]}" is "{held[:60]}" there, not '
            f'"{correction.given[:60]}". Nothing is written. Apply the corrections to the file that was audited, or audit this one.'
        )
