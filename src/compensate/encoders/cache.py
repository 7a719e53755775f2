"""Cached embeddings, keyed by the content of the item.

One SQLite file per encoder: a row is a digest of the item, the embedding and its checksum. A killed process loses at most the rows
of its last seconds, and several processes may share a file. Damaged files and rows are computed again; a folder that cannot be
written to turns the cache off.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import sys
import time
import warnings
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compensate.errors import InputError
from compensate.files import make_folder

VARIABLE = "COMPENSATE_CACHE"

MAX_BYTES = 4 << 30
"""Bytes of embeddings per encoder, about 800,000 of 1,280 numbers; the oldest are deleted first."""

COMMIT_SECONDS = 5.0
"""Time between commits, which a killed process may lose."""

KEYS_PER_QUERY = 500
"""Old versions of SQLite allow 999 parameters."""

Rows = NDArray[np.float32]


def cache_folder(folder: str | Path | None = None) -> Path:
    """The folder of embeddings: as given, or the environment variable COMPENSATE_CACHE, or in the cache of the user.

    >>> cache_folder("my/cache").name
    'cache'
    """
    if folder is not None:
        return Path(folder).expanduser()
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE]).expanduser()
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "compensate" / "embeddings"


def clear_cache(folder: str | Path | None = None) -> int:
    """Delete all cached embeddings; returns the number of freed bytes.

    >>> import tempfile
    >>> clear_cache(tempfile.mkdtemp())
    0
    """
    freed = 0
    for file in cache_folder(folder).glob("*.sqlite*"):
        freed += file.stat().st_size
        file.unlink()
    return freed


class Cache:
    """The embeddings of one encoder.

    Args:
        folder: of the file; see `cache_folder`.
        identity: of the encoder: its weights, and everything else that changes an embedding.
        on: False turns the cache off.

    >>> import tempfile
    >>> with Cache(Path(tempfile.mkdtemp()), "tiny") as cache:
    ...     cache.put([b"a"], np.ones((1, 2), np.float32))
    ...     sorted(cache.get([b"a", b"b"]))
    [b'a']
    """

    def __init__(self, folder: Path, identity: str, *, on: bool = True) -> None:
        self.path = folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.sqlite"
        self.pending: list[tuple[bytes, bytes, int]] = []
        self.written = time.monotonic()
        self.base: sqlite3.Connection | None = None
        if not on:
            return
        try:
            make_folder(folder)
            try:
                self.base = _connect(self.path)
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):  # locked, or read-only: the content may be good
                    raise
                self.path.unlink(missing_ok=True)
                self.base = _connect(self.path)
        except (sqlite3.Error, OSError, InputError) as error:
            self._give_up(error)

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        """Write pending embeddings, also after an error."""
        self.flush()
        if self.base is not None:
            self.base.close()

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Rows]:
        """The known embeddings, without damaged ones."""
        self.flush()
        found: dict[bytes, Rows] = {}
        for start in range(0, len(keys), KEYS_PER_QUERY):
            part = keys[start : start + KEYS_PER_QUERY]
            if self.base is None:
                break
            marks = ",".join("?" * len(part))
            query = f"SELECT key, content, checksum FROM embeddings WHERE key IN ({marks})"  # nosec B608: marks are "?,?"
            try:
                rows = self.base.execute(query, part).fetchall()
            except sqlite3.DatabaseError:  # a page of the file is damaged: start a new file
                self.base.close()
                self.path.unlink(missing_ok=True)
                try:
                    self.base = _connect(self.path)
                except sqlite3.Error as error:
                    self._give_up(error)
                continue
            for key, content, checksum in rows:
                if zlib.crc32(content) == checksum and len(content) % 4 == 0:
                    found[key] = np.frombuffer(content, dtype="<f4")
        return found if len({len(value) for value in found.values()}) <= 1 else {}  # else of different encoders

    def put(self, keys: Iterable[bytes], values: Rows) -> None:
        """Store these embeddings; they are on disk after `COMMIT_SECONDS`, or at the end."""
        if self.base is None:
            return
        for key, value in zip(keys, values, strict=True):
            content = value.astype("<f4").tobytes()
            self.pending.append((key, content, zlib.crc32(content)))
        if time.monotonic() - self.written > COMMIT_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the pending embeddings; delete the oldest if there are too many."""
        if self.base is None or not self.pending:
            return
        try:
            with self.base:
                self.base.executemany("INSERT OR REPLACE INTO embeddings VALUES (?, ?, ?)", self.pending)
                sizes = "SELECT COUNT(*), COALESCE(MAX(LENGTH(content)), 0) FROM embeddings"
                rows, size = self.base.execute(sizes).fetchone()
                if rows * size > MAX_BYTES:
                    self.base.execute(
                        "DELETE FROM embeddings WHERE rowid IN (SELECT rowid FROM embeddings ORDER BY rowid LIMIT ?)",
                        [rows - MAX_BYTES // (2 * size)],
                    )
        except sqlite3.Error as error:
            self._give_up(error)
        self.pending, self.written = [], time.monotonic()

    def _give_up(self, error: Exception) -> None:
        self.base = None
        warnings.warn(
            f"embeddings are not cached, because {self.path} cannot be used ({error}). Set {VARIABLE} to a folder that "
            "may be written to.",
            stacklevel=4,
        )


def _connect(path: Path) -> sqlite3.Connection:
    base = sqlite3.connect(path, timeout=30)
    try:
        base.execute("PRAGMA auto_vacuum = FULL")  # deleted rows give their space back
        with base:
            base.execute("CREATE TABLE IF NOT EXISTS embeddings (key BLOB PRIMARY KEY, content BLOB, checksum INTEGER)")
    except sqlite3.Error:
        base.close()
        raise
    return base
