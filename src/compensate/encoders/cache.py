"""Embeddings that were computed before, found again by the content of the item.

One SQLite file per encoder: a row is a digest of the item, the embedding and its checksum. SQLite gives what a cache needs:
a killed process loses at most the rows of its last seconds, several processes may share the file, and a run reads only the
rows it asks for. A file or a row that is damaged is computed again; a folder that cannot be written to turns the cache off.
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

MOST_BYTES = 4 << 30
"""Embeddings kept per encoder, about 800,000 of 1,280 numbers; beyond it the oldest go."""

SECONDS = 5.0
"""What a killed process may lose: new rows are committed this often."""

ASKED = 500
"""Keys per query; SQLite's own limit on parameters is 999 in old versions."""

Rows = NDArray[np.float32]


def cache_folder(folder: str | Path | None = None) -> Path:
    """The folder for embeddings: as given, else the environment variable COMPENSATE_CACHE, else in the user's cache.

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
    """Delete all cached embeddings; returns the bytes that were freed.

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
        folder: where the file lies; see `cache_folder`.
        identity: of the encoder: weights, and everything else that changes an embedding.
        on: whether to keep anything at all.

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
            self.base = self._open()
        except (sqlite3.Error, OSError, InputError) as error:
            self._give_up(error)

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        """Also after an error: what was computed is kept."""
        self.flush()
        if self.base is not None:
            self.base.close()

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Rows]:
        """The embeddings that are known, whole ones only."""
        self.flush()
        found: dict[bytes, Rows] = {}
        for start in range(0, len(keys), ASKED):
            part = keys[start : start + ASKED]
            for key, content, checksum in self._ask(part):
                if zlib.crc32(content) == checksum and len(content) % 4 == 0:
                    found[key] = np.frombuffer(content, dtype="<f4")
        return found if len({len(value) for value in found.values()}) <= 1 else {}  # else not of one encoder

    def put(self, keys: Iterable[bytes], values: Rows) -> None:
        """Keep these embeddings; they are on disk after `SECONDS`, or at the end."""
        if self.base is None:
            return
        for key, value in zip(keys, values, strict=True):
            content = value.astype("<f4").tobytes()
            self.pending.append((key, content, zlib.crc32(content)))
        if time.monotonic() - self.written > SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what was put."""
        if self.base is None or not self.pending:
            return
        try:
            with self.base:
                self.base.executemany("INSERT OR REPLACE INTO embeddings VALUES (?, ?, ?)", self.pending)
                self._forget()
        except sqlite3.Error as error:
            self._give_up(error)
        self.pending, self.written = [], time.monotonic()

    def _open(self) -> sqlite3.Connection:
        try:
            return _connect(self.path)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # locked, or not to be written: the content may be good
                raise
            self.path.unlink(missing_ok=True)
            return _connect(self.path)

    def _ask(self, keys: Sequence[bytes]) -> list[tuple[bytes, bytes, int]]:
        if self.base is None:
            return []
        marks = ",".join("?" * len(keys))
        try:
            return self.base.execute(
                f"SELECT key, content, checksum FROM embeddings WHERE key IN ({marks})",  # nosec B608: marks are "?,?"
                keys,
            ).fetchall()
        except sqlite3.DatabaseError:
            # A page of the file is damaged: start it anew.
            self.base.close()
            self.path.unlink(missing_ok=True)
            try:
                self.base = _connect(self.path)
            except sqlite3.Error as error:
                self._give_up(error)
            return []

    def _forget(self) -> None:
        assert self.base is not None
        rows, size = self.base.execute("SELECT COUNT(*), COALESCE(MAX(LENGTH(content)), 0) FROM embeddings").fetchone()
        if rows * size > MOST_BYTES:
            self.base.execute(
                "DELETE FROM embeddings WHERE rowid IN (SELECT rowid FROM embeddings ORDER BY rowid LIMIT ?)",
                [rows - MOST_BYTES // (2 * size)],
            )

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
