"""MNIST, Fashion-MNIST and others in the idx format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compensate.data.dataset import Data, Splits
from compensate.errors import InputError
from compensate.files import read_bytes

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


def read_idx(path: str | Path) -> NDArray[Any]:
    """The array of an idx file: two zero bytes, its type, its number of dimensions, their sizes, the values.

    Big-endian as written; .gz, .xz and .bz2 are unpacked.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]))
    >>> read_idx(folder / "labels-idx1-ubyte").tolist()
    [7, 9]
    """
    content = read_bytes(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES or not content[3]:
        raise InputError(f"{path} is not an idx file: it starts with {content[:4].hex()}. Fetch it again.")
    kind, dims = np.dtype(_TYPES[content[2]]), content[3]
    start = 4 + 4 * dims
    shape = np.frombuffer(content[4:start].ljust(4 * dims, b"\0"), ">u4").tolist()
    size = int(np.prod(shape, dtype=object)) * kind.itemsize if dims else 0
    if len(content) != start + size:
        raise InputError(
            f"{path} has {len(content):,} bytes; an idx file of shape {tuple(shape)} has {start + size:,}. It is damaged."
        )
    return np.frombuffer(content, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="))


def read_mnist(folder: str | Path, classes: tuple[str, ...] = tuple("0123456789")) -> Splits:
    """Training and test part from the four files ``train-images-idx3-ubyte`` and so on, plain or compressed.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for part in ("train", "t10k"):
    ...     _ = (folder / f"{part}-images-idx3-ubyte").write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2, *range(4)]))
    ...     _ = (folder / f"{part}-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 1, 7]))
    >>> read_mnist(folder).train.x.shape
    (1, 1, 2, 2)

    Reference: LeCun, Bottou, Bengio and Haffner, Gradient-Based Learning Applied to Document Recognition, 1998.
    """
    return Splits(_part(Path(folder), "train", classes), _part(Path(folder), "t10k", classes))


def _part(folder: Path, name: str, classes: tuple[str, ...]) -> Data:
    images, labels = (read_idx(_find(folder, f"{name}-{kind}")) for kind in ("images", "labels"))
    if images.ndim != 3 or images.dtype != np.uint8 or labels.ndim != 1 or len(images) != len(labels):
        raise InputError(
            f"the {name} files in {folder} do not fit: images {images.shape} {images.dtype}, labels {labels.shape}; "
            "expected bytes (N, H, W) and (N,)."
        )
    return Data(images[:, None], labels.astype(np.int64), classes)


def _find(folder: Path, stem: str) -> Path:
    for file in sorted(folder.glob(f"{stem}*")):
        if "idx" in file.name and not file.name.endswith((".part", ".lock")):
            return file
    raise InputError(f"{folder} lacks the file {stem}-idx{3 if 'images' in stem else 1}-ubyte (or .gz).")
