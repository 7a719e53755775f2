"""Applying corrections: from the audited data and decisions to the corrected data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from compensate.auditing.decisions import Applied, Correction, check_source, read_corrections
from compensate.auditing.labels import kind_of
from compensate.auditing.labels.base import Reading
from compensate.errors import InputError


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

    A corrected CSV, TSV or JSONL file differs from the original only in the changed labels, and a corrected Excel file only in the cells of the
    labels. A folder of images gets a label file: its own with the changes, or a new one with the columns file and label.

    Args:
        data: a CSV, TSV, JSONL, CoNLL, Excel or Parquet file; several Parquet files (a folder, or a pattern); a folder of images or of masks; or a
            data set that Hugging Face's `datasets` saved.
        corrections: the file exported by the review page, or the records of `read_corrections`.
        out: the file to write; by default ``name.fixed.csv`` next to ``name.csv``. A folder for several Parquet files, masks and a
            saved data set.
        label: the label's column, if it was named for the audit too.
        encoding, delimiter: of the file, if they were given for the audit.
        force: overwrite an existing file.
        rematch: the file differs from the audited one: find each row by its content.
    """
    data = Path(data)
    decided = read_corrections(corrections) if isinstance(corrections, (str, Path)) else tuple(corrections)
    kinds = {kind_of(c.part) for c in decided} or {kind_of("")}
    if len(kinds) > 1:
        raise InputError("these corrections are about more than one form of labels; apply one audit at a time.")
    kind = kinds.pop()
    for c in decided if kind.form else ():
        kind.parse(c.part)  # refuses a malformed address before any file is read
    if rematch and kind.form:
        raise InputError(
            "parts of a sample cannot be found by content; apply the corrections to the file that was audited, without "
            "rematch (--rematch)."
        )
    out = kind.fixed_name(data) if out is None else Path(out)
    kind.check_output(data, out, force)
    checked = not rematch and check_source(decided, kind.digest(data), str(data))
    done = kind.write_back(data, decided, out, Reading(label, encoding, delimiter), rematch=rematch)
    return replace(done, checked=checked)
