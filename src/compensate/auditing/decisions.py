"""What people have decided about labels, for the next audit: which rows it is about, and what holds there now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compensate.auditing.arrays import Ints
from compensate.auditing.corrections import Correction, read_corrections
from compensate.auditing.digests import digest_text
from compensate.auditing.journal import run_decisions
from compensate.data.dataset import UNLABELED, Data
from compensate.errors import InputError, nearest


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


def decided_labels(data: Data, decisions: str | Path | Iterable[Correction]) -> Decided:
    """The labels of the data with decisions of an earlier audit.

    Rows are found by their number in the file that was audited, and by their content in any other. The data may hold the labels
    from before the decisions, or those that were decided.

    >>> data = Data(np.eye(2), np.array([0, 1]), ("cat", "dog"))
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

    def __init__(self, data: Data) -> None:
        self.source = str(data.info.get("source_digest", ""))
        self.by_index = {int(index): row for row, index in enumerate(data.index)}
        self.by_digest: dict[str, list[int]] = {}
        digests = data.info.get("row_digests")
        if digests is not None:
            for row, digest in enumerate(digests[data.index].tolist()):
                self.by_digest.setdefault(digest_text(digest), []).append(row)

    def find(self, decision: Correction) -> int | None:
        if not decision.source or not self.source or decision.source == self.source:
            return self.by_index.get(decision.index)
        found = self.by_digest.get(decision.row, []) if decision.row else []
        return found.pop(0) if found else None
