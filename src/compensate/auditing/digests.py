"""Digests of the audited source and of its rows, by which decisions find the rows they were made about.

The digest of a row covers everything except its label, which may be corrected in between. Digests are the first 64 bits of a SHA-256 sum.
They distinguish files and rows, but do not protect against forgery.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from compensate.data.dataset import PARTS, Dataset
from compensate.data.folder import is_image, label_file
from compensate.data.hub import is_saved
from compensate.data.parquet import parquet_files
from compensate.files import checksum

if TYPE_CHECKING:
    import pandas as pd


def digest_text(digest: int) -> str:
    """A digest as text, with a prefix that keeps a spreadsheet from reading it as a number.

    >>> digest_text(255)
    'sha256:00000000000000ff'
    """
    return f"sha256:{digest:016x}"


def digest_file(path: str | Path) -> str:
    """The digest of a file's bytes.

    >>> import tempfile
    >>> empty = Path(tempfile.mkdtemp()) / "empty"
    >>> empty.touch()
    >>> digest_file(empty)
    'sha256:e3b0c44298fc1c14'
    """
    return f"sha256:{checksum(path)[:16]}"


def digest_source(path: str | Path) -> str:
    """The digest of a file, of the files of a table or a saved data set, or of the images and the label file of a folder."""
    path = Path(path)
    files = list_files(path)
    if files:
        return digest_text(short_digest(repr([(file.name, digest_file(file)) for file in files]).encode()))
    if not path.is_dir():
        return digest_file(path)
    folder, names, labels = list_images(path)
    return _digest_folder(names, digest_images(folder, names), labels)


def _digest_folder(names: list[str], rows: NDArray[np.uint64], labels: Path | None) -> str:
    parts = list(zip(names, rows.tolist(), strict=True))
    return digest_text(short_digest(repr((parts, "" if labels is None else digest_file(labels))).encode()))


def digest_frame(frame: pd.DataFrame, label: str) -> NDArray[np.uint64]:
    """(N,) the digest of each row of a table, without its label.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"text": ["a", "b", "a"], "label": ["x", "x", "y"]})
    >>> first, second, third = digest_frame(frame, "label")
    >>> bool(first == third != second)
    True
    """
    columns = [map(str, frame.iloc[:, j].tolist()) for j, name in enumerate(frame.columns) if str(name) != label]
    rows: Iterable[tuple[str, ...]] = zip(*columns, strict=True) if columns else [()] * len(frame)
    texts = ("\x1f".join(row).encode("utf-8", "surrogatepass") for row in rows)
    return np.fromiter(map(short_digest, texts), np.uint64, len(frame))


def digest_images(folder: Path, names: Iterable[str]) -> NDArray[np.uint64]:
    """(N,) the digest of the bytes of each image."""
    return np.array([short_digest((folder / name).read_bytes()) for name in names], dtype=np.uint64)


def list_files(path: Path) -> list[Path]:
    """The files of a table that is spread over several, or of a saved data set; otherwise none."""
    return sorted(path.rglob("*.arrow")) if is_saved(path) else parquet_files(path)


def list_images(path: Path) -> tuple[Path, list[str], Path | None]:
    """The audited folder (`path`, or its training part), its images in order, and its label file, if any."""
    labels = label_file(path)
    if labels is None:
        parts = [p for p in sorted(path.iterdir()) if p.is_dir() and PARTS.get(p.name.lower()) == "train"]
        path = parts[0] if parts else path
        labels = label_file(path) if parts else None
    return path, [p.relative_to(path).as_posix() for p in sorted(p for p in path.rglob("*") if is_image(p))], labels


def digests_of(data: Dataset, path: Path) -> tuple[str, NDArray[np.uint64]]:
    """The digest of the source of the data, and (rows,) the digests of its rows, zero where there is none."""
    rows = np.zeros(data.rows, dtype=np.uint64)
    if path.is_dir() and not list_files(path):
        folder, names, labels = list_images(path)
        images = digest_images(folder, names)
        if data.ids is not None and len(names) == data.rows and [names[i] for i in data.index] == list(data.ids):
            rows[data.index] = images[data.index]
        return _digest_folder(names, images, labels), rows
    if data.table is not None:
        rows[data.index] = digest_frame(data.table, str(data.source.label))
    return digest_source(path), rows


def short_digest(content: bytes) -> int:
    """The first 64 bits of the SHA-256 sum."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big")
