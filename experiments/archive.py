"""Finished runs in files of JSON lines, by the id of their configuration."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from compensate.errors import InputError
from compensate.files import make_folder
from compensate.training.config import Config

Record = dict[str, Any]

_KEPT = ("test_accuracy", "val_accuracy", "train_accuracy", "train_loss", "compensated")


class Archive:
    """The records of one data set at one scale, a line for each run.

    A line that was cut short by a crash is left out when the file is read, and written anew when its run is done again.

    >>> import tempfile
    >>> archive = Archive(Path(tempfile.mkdtemp()) / "digits.jsonl")
    >>> archive.add({"id": "a1", "seconds": 3.0})
    >>> archive.get("a1"), archive.get("b2"), len(archive)
    ({'id': 'a1', 'seconds': 3.0}, None, 1)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: dict[str, Record] = {}
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if isinstance(record, dict) and "id" in record:
                    self._records[record["id"]] = record

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    def get(self, run: str) -> Record | None:
        """The record of this run, if it is finished."""
        return self._records.get(run)

    def add(self, record: Record) -> None:
        """Keeps a record, on disk too, at once."""
        self._records[record["id"]] = record
        make_folder(self.path.parent)
        cut = self.path.is_file() and self.path.read_bytes()[-1:] not in (b"\n", b"")
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n" * cut + json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
        except OSError as error:
            raise InputError(f"{self.path} cannot be written: {error.strerror}. Its content is unchanged.") from error


def record_of(config: Config, stored: Mapping[str, Any], history: list[dict[str, float]], **more: Any) -> Record:
    """The record of a run: configuration, versions, curves, last and best epoch, seconds."""
    result = stored["result"]
    return {
        "id": stored["id"],
        "config": {k: v for k, v in config.json.items() if v is not None and v != {}},
        "versions": stored["versions"],
        "samples": result["samples"],
        "wrong_labels": _round(result["wrong_labels"]),
        "wrong_labels_fitted": _round(result.get("wrong_labels_fitted")),
        "last": _accuracies(result["last"]),
        "best": _accuracies(result["best"]),
        "seconds": result["seconds"],
        "curves": {k: [_round(row[k]) for row in history] for k in _KEPT if k in history[0]},
        **more,
    }


def _accuracies(row: Mapping[str, float]) -> dict[str, float]:
    return {k: row[k] for k in ("epoch", "val_accuracy", "test_accuracy") if k in row}


def _round(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 5)
