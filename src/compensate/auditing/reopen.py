"""A stored audit with the data that it was made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from compensate.auditing.result import Audit
from compensate.auditing.source import read
from compensate.errors import InputError
from compensate.files import is_address


def reopen(folder: str | Path) -> Audit:
    """The audit of a run's folder, with its samples if its source is where it was.

    A source that has changed since is refused: its rows may be others.
    """
    folder = Path(folder)
    found = Audit.load(folder / "audit" if (folder / "audit").is_dir() else folder)
    asked = found.config.get("asked") or {
        "data": found.config.get("source"),
        "options": {name: found.config[name] for name in ("label", "text") if found.config.get(name)} | found.reading,
    }
    path = asked.get("data")
    if not path or is_address(path) or not found.source_digest:
        return found
    data = read(path, asked.get("labels"), asked.get("features"), _options(asked))
    if data.info.get("source_digest") != found.source_digest:
        raise InputError(f"{path} has changed since it was audited ({folder}); audit it again.")
    if found.parts:  # several labels a sample: the index is not that of rows
        return replace(found, data=data)
    place = {int(row): k for k, row in enumerate(data.index)}
    return replace(found, data=data.subset(np.array([place[int(row)] for row in found.index])))


def _options(asked: dict[str, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in (asked.get("options") or {}).items()}
