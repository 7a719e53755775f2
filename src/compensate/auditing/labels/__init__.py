"""Kinds of labels: reading, judging, showing and correcting them.

A kind is one file with a subclass of `compensate.auditing.labels.base.LabelKind`, listed in `KINDS`. No other module knows the kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from compensate.auditing.decisions import Applied, Correction, check_source, read_corrections
from compensate.auditing.labels.base import LabelKind, Reader, Reading, no_address
from compensate.auditing.labels.classes import Classes
from compensate.auditing.labels.quantity import Quantity
from compensate.auditing.labels.regions import Masks
from compensate.auditing.labels.sets import LabelColumns, LabelSets
from compensate.auditing.labels.tags import TokenTags
from compensate.data.dataset import Dataset
from compensate.errors import InputError

KINDS: list[type[LabelKind]] = [Masks, TokenTags, LabelSets, LabelColumns, Quantity, Classes]
"""All kinds. The first that recognizes some data reads and judges it."""


def read_labels(data: Any, labels: Any, options: Mapping[str, Any], other: Reader) -> Dataset:
    """Reads data by the first kind that recognizes it, or by the `other` reader."""
    for kind in reversed([kind for kind in KINDS if "read" in vars(kind)]):
        other = partial(kind.read, other=other)
    return other(data, labels, options)


def labels_of(data: Dataset) -> LabelKind:
    """The labels of data."""
    return next(labels for kind in KINDS if (labels := kind.recognize(data)) is not None)


def kind_of(part: str) -> type[LabelKind]:
    """The kind of the labels with this address; without one, labels of whole rows.

    >>> kind_of("tokens 120 3").__name__, kind_of("").__name__
    ('TokenTags', 'Classes')
    """
    form = part.partition(" ")[0]
    kind = next((kind for kind in reversed(KINDS) if kind.form == form), None)
    if kind is None:
        raise no_address(part)
    return kind


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
        kind.parse(c.part)  # refuses what is not an address before any file is read
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
