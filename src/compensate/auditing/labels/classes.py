"""One class for each sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from compensate.auditing.decisions import Applied, Correction, changes, rematch_rows
from compensate.auditing.findings import Findings
from compensate.auditing.labels.base import Judging, LabelKind, Reading, applied
from compensate.auditing.write_back import open_labels
from compensate.data.dataset import Dataset


class Classes(LabelKind):
    """The classes of samples, which are ``Dataset.target``."""

    refused: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def recognize(cls, data: Dataset) -> LabelKind | None:
        return cls() if data.parts is None else super().recognize(data)

    def describe(self, data: Dataset, name: Callable[[str], str] = str) -> str:
        counts = data.class_counts
        largest = counts.argsort()[::-1][:4]
        listed = " · ".join(f"{name(data.classes[c])} {counts[c]:,}" for c in largest)
        return f"{data.num_classes} classes: {listed}{' · …' if data.num_classes > 4 else ''}"

    def audit(self, data: Dataset, judging: Judging) -> Findings:
        return judging.judge_classes(data)

    @classmethod
    def write_back(
        cls, data: Path, decided: Sequence[Correction], out: Path, reading: Reading, *, rematch: bool = False
    ) -> Applied:
        labels = open_labels(data, *reading)
        matched = None
        if rematch:
            decided, matched = rematch_rows(decided, labels.cells, labels.digests(), str(data))
        new = changes(labels.cells, decided, str(data))
        labels.write(out, new)
        return applied(out, decided, len(labels.cells), len(new), matched)
