"""Applying corrections: from the audited data and decisions to the corrected data."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from compensate.auditing.decisions import Applied, Correction, changes, check_source, read_corrections, rematch_rows
from compensate.auditing.digests import digest_source
from compensate.auditing.labels.base import apply_parts
from compensate.auditing.write_back import check_output, fixed_name, open_labels


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
        corrections: the file that the review page exports, or the result of `read_corrections`.
        out: the file to write; by default ``name.fixed.csv`` next to ``name.csv``. A folder for several Parquet files and for a
            saved data set.
        label: the label's column, if it was named for the audit too.
        encoding, delimiter: of the file, if they are not UTF-8 and the usual sign.
        force: overwrite an existing file.
        rematch: find each row by its content, for a file that differs from the audited one.

    A corrected CSV, TSV or JSONL file equals the original byte for byte except for the changed labels, and so does every part of a corrected
    Excel file except for the cells of the labels. A folder of images gets a label file: its own with the changes, or a new one with the
    columns file and label.
    """
    data = Path(data)
    decided = read_corrections(corrections) if isinstance(corrections, (str, Path)) else tuple(corrections)
    if any(c.part for c in decided):
        return apply_parts(
            data,
            decided,
            None if out is None else Path(out),
            label=label,
            encoding=encoding,
            delimiter=delimiter,
            force=force,
            rematch=rematch,
        )
    out = fixed_name(data) if out is None else Path(out)
    check_output(data, out, force)
    source = open_labels(data, label, encoding, delimiter)
    matched = None
    checked = not rematch and check_source(decided, digest_source(data), str(data))
    if rematch:
        decided, matched = rematch_rows(decided, source.cells, source.digests(), str(data))
    new = changes(source.cells, decided, str(data))
    source.write(out, new)
    skipped = sum(c.decision == "skip" for c in decided)
    return Applied(out, len(source.cells), len(new), len(decided) - len(new) - skipped, skipped, checked, matched)
