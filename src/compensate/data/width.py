"""How large a table may be: what is read may have been made to fill a memory."""

from __future__ import annotations

from pathlib import Path

from compensate.errors import InputError
from compensate.files import limit, too_large

COLUMNS = 10_000
"""Columns of a table: each is looked at on its own, so that hundreds of thousands would take hours."""

CELL = 8
"""Bytes of a cell that holds next to nothing."""


def check_width(columns: int, where: str | Path) -> None:
    """Refuses a table of more than `COLUMNS` columns."""
    if columns > COLUMNS:
        raise InputError(
            f"{where} has {columns:,} columns; a table with at most {COLUMNS:,} is read. Keep those that matter, or give numbers "
            "as an array: an .npy or .npz file."
        )


def check_size(rows: int, columns: int, path: Path) -> None:
    """Refuses a file whose cells would take far more room than the file itself; see `compensate.files.limit`."""
    if CELL * rows * columns > limit(path):
        raise InputError(too_large(path))
