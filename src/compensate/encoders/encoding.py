"""`encode`: embeddings of texts or images; each distinct item is encoded once and cached by its content."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import sys
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compensate.data.dataset import Dataset
from compensate.encoders.catalog import find_encoder
from compensate.encoders.image import image_bytes
from compensate.errors import InputError, check
from compensate.files import make_folder

VARIABLE = "COMPENSATE_CACHE"
MAX_BYTES = 4 << 30
"""Bytes of embeddings per encoder, about 800,000 of 1,280 numbers; the oldest are deleted first."""

COMMIT_SECONDS = 5.0
"""Time between commits, which a killed process may lose."""

CREATE = "CREATE TABLE IF NOT EXISTS embeddings (key BLOB PRIMARY KEY, content BLOB, checksum INTEGER)"
KEYS_PER_QUERY = 500
"""Old versions of SQLite allow 999 parameters."""


def cache_folder(folder: str | Path | None = None) -> Path:
    """The folder of embeddings: as given, or the environment variable COMPENSATE_CACHE, or in the cache of the user.

    >>> cache_folder("my/cache").name
    'cache'
    """
    given = folder or os.environ.get(VARIABLE)
    if given:
        return Path(given).expanduser()
    places = {"darwin": ("", "Library/Caches"), "win32": ("LOCALAPPDATA", "AppData/Local")}
    variable, place = places.get(sys.platform, ("XDG_CACHE_HOME", ".cache"))
    return Path(os.environ.get(variable) or Path.home() / place) / "compensate" / "embeddings"


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
    """The embeddings of one encoder, keyed by the content of the item, in one SQLite file.

    A row is a digest of the item, the embedding and its checksum. Several processes may share a file. Damaged files and rows are
    computed again; a folder that cannot be written to turns the cache off.

    Args:
        folder: of the file; see `cache_folder`.
        identity: of the encoder: its weights, and everything else that changes an embedding.
        on: False turns the cache off.
    """

    def __init__(self, folder: Path, identity: str, *, on: bool = True) -> None:
        self.path = folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.sqlite"
        self.pending: list[tuple[bytes, bytes, int]] = []
        self.written = time.monotonic()
        self.base: sqlite3.Connection | None = None
        if on:
            self._open()

    def _open(self, *, damaged: bool = False) -> None:
        """Connects to the file, or to a new one if it is damaged; gives up if it cannot be used."""
        if self.base is not None:
            self.base.close()
        try:
            make_folder(self.path.parent)
            if damaged:
                self.path.unlink(missing_ok=True)
            self.base = sqlite3.connect(self.path, timeout=30)
            self.base.execute("PRAGMA auto_vacuum = FULL")  # deleted rows give their space back
            with self.base:
                self.base.execute(CREATE)
        except (sqlite3.Error, OSError, InputError) as error:
            # After an operational error, such as a locked or read-only file, the content may be good.
            if damaged or isinstance(error, (sqlite3.OperationalError, OSError, InputError)):
                self._give_up(error)
            else:
                self._open(damaged=True)

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        """Write pending embeddings, also after an error."""
        self.flush()
        if self.base is not None:
            self.base.close()

    def get(self, keys: Sequence[bytes]) -> dict[bytes, NDArray[np.float32]]:
        """The known embeddings, without damaged ones."""
        self.flush()
        found: dict[bytes, NDArray[np.float32]] = {}
        for start in range(0, len(keys), KEYS_PER_QUERY):
            part = keys[start : start + KEYS_PER_QUERY]
            if self.base is None:
                break
            marks = ",".join("?" * len(part))
            query = f"SELECT key, content, checksum FROM embeddings WHERE key IN ({marks})"  # nosec B608: marks are "?,?"
            try:
                rows = self.base.execute(query, part).fetchall()
            except sqlite3.DatabaseError:  # a page of the file is damaged
                self._open(damaged=True)
                continue
            for key, content, checksum in rows:
                if zlib.crc32(content) == checksum and len(content) % 4 == 0:
                    found[key] = np.frombuffer(content, dtype="<f4")
        return found if len({len(value) for value in found.values()}) <= 1 else {}  # else of different encoders

    def put(self, keys: Iterable[bytes], values: NDArray[np.float32]) -> None:
        """Store these embeddings; they are on disk after `COMMIT_SECONDS`, or at the end."""
        for key, value in zip(keys, values, strict=True):
            content = value.astype("<f4").tobytes()
            self.pending.append((key, content, zlib.crc32(content)))
        if time.monotonic() - self.written > COMMIT_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the pending embeddings; delete the oldest if there are too many."""
        if self.base is not None and self.pending:
            try:
                with self.base:
                    self.base.executemany("INSERT OR REPLACE INTO embeddings VALUES (?, ?, ?)", self.pending)
                    sizes = "SELECT COUNT(*), COALESCE(MAX(LENGTH(content)), 0) FROM embeddings"
                    rows, size = self.base.execute(sizes).fetchone()
                    if rows * size > MAX_BYTES:
                        oldest = "(SELECT rowid FROM embeddings ORDER BY rowid LIMIT ?)"
                        count = rows - MAX_BYTES // (2 * size)
                        self.base.execute(f"DELETE FROM embeddings WHERE rowid IN {oldest}", [count])  # nosec B608
            except sqlite3.Error as error:
                self._give_up(error)
        self.pending, self.written = [], time.monotonic()

    def _give_up(self, error: Exception) -> None:
        if self.base is not None:
            self.base.close()
        self.base = None
        warnings.warn(
            f"embeddings are not cached, because {self.path} cannot be used ({error}). Set {VARIABLE} to a folder that "
            "may be written to.",
            stacklevel=5,
        )


@dataclass(frozen=True, eq=False)
class Encoded:
    """Embeddings `values` (N, D), the name, license and source of the encoder, and how many items were in the cache.

    >>> Encoded(np.zeros((2, 3), np.float32), "tiny", "MIT", "a folder").values.shape
    (2, 3)
    """

    values: NDArray[np.float32]
    name: str
    license: str
    source: str
    reused: int = 0


def encode(
    items: Sequence[Any] | NDArray[Any],
    encoder: str | Path = "auto",
    kind: str = "text",
    *,
    cache: str | Path | bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    device: str | torch.device | None = None,
    batch_size: int | None = None,
) -> Encoded | None:
    """Embeddings of texts or images; None if the encoder is ``"none"``, or ``"auto"`` and none is installed (see `hint`).

    Args:
        items: texts; or images: (N, C, H, W) or (N, H, W), uint8 or float in [0, 1], or paths of image files.
        encoder: ``"auto"``, the installed one for this kind; ``"none"``; all-MiniLM-L6-v2 or efficientnet-lite0; a model of the
            Hugging Face hub, optionally with ``@revision``; or the folder of a saved model.
        kind: ``"text"`` or ``"image"``.
        cache: the folder of cached embeddings; by default see `cache_folder`; ``False`` for none.
        progress: called with the number of encoded items and the number of all items.
        device, batch_size: by default a GPU if there is one, and a size for the device.

    >>> encode(["a text"], "none") is None
    True
    """
    found = find_encoder(encoder, kind)
    if found is None:
        return None
    if not len(items):
        raise InputError("there are no items to encode; expected at least one text or image.")
    check(batch_size is None or batch_size >= 1, "1 or more", batch_size=batch_size)
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InputError(f'device is "{device}"; expected cpu, cuda or mps.') from error
    items = [str(item) for item in items] if kind == "text" else items
    contents = (item.encode("utf-8", "surrogatepass") if kind == "text" else image_bytes(item) for item in items)
    keys = [hashlib.blake2b(content, digest_size=16).digest() for content in contents]
    first = {key: row for row, key in reversed(list(enumerate(keys)))}  # equal items are encoded once
    folder = cache_folder(None if isinstance(cache, bool) else cache)
    with Cache(folder, found.identity, on=cache is not False) as store:
        known = store.get(list(first))
        reused = sum(key in known for key in keys)
        todo = sorted(row for key, row in first.items() if key not in known)
        done, repeats, report = reused, Counter(keys), progress or (lambda done, total: None)
        report(done, len(items))
        # The weights are loaded only if there are new items.
        batches = found.load(chosen)([items[row] for row in todo], batch_size) if todo else ()
        for positions, values in batches:
            if not np.isfinite(values).all():
                raise InputError(f"{found.name} gives numbers that are not finite; choose another encoder or device.")
            fresh = [keys[todo[position]] for position in positions]
            known.update(zip(fresh, values, strict=True))
            store.put(fresh, values)
            done += sum(repeats[key] for key in fresh)
            report(done, len(items))
    return Encoded(np.stack([known[key] for key in keys]), found.name, found.license, found.source, reused)


def encode_data(data: Dataset, encoder: str | Path = "auto", **options: Any) -> Encoded | None:
    """Embeddings of a data set of texts or images, as by `encode`; None for other samples.

    Images from a folder are read again, at the size of the encoder.

    >>> texts = Dataset(np.array(["a film", "a play"], dtype=object), np.array([0, 1]), ("x", "y"))
    >>> encode_data(texts, "none") is None
    True
    """
    kind = sample_kind(data)
    return None if kind is None else encode(image_files(data) or data.x, encoder, kind, **options)


def sample_kind(data: Dataset) -> str | None:
    """``"text"`` or ``"image"``, or None for features.

    >>> sample_kind(Dataset(np.zeros((2, 3)), np.array([0, 1]), ("x", "y")))
    """
    dtype = getattr(data.x, "dtype", None)
    if dtype is not None and dtype.kind in "OU" and np.ndim(data.x) == 1:
        return "text"
    return "image" if np.ndim(data.x) == 4 else None


def image_files(data: Dataset) -> list[Path] | None:
    """The files of images from a folder, if they still exist: they may be larger than the samples."""
    if np.ndim(data.x) != 4 or not data.source.folder or data.ids is None:
        return None
    files = [Path(data.source.folder) / str(name) for name in data.ids]
    return files if all(file.is_file() for file in files) else None
