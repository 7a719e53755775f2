"""CIFAR-10 and CIFAR-100, in the official binary and python layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compensate.data.dataset import Data, Splits
from compensate.data.unpickle import load_arrays
from compensate.errors import InputError
from compensate.files import decode, members

PIXELS = 3 * 32 * 32

_TRAIN = {10: [f"data_batch_{i}" for i in range(1, 6)], 100: ["train"]}
_TEST = {10: "test_batch", 100: "test"}
_NAMES = {10: ("batches.meta.txt", "batches.meta"), 100: ("fine_label_names.txt", "meta")}


def read_cifar(path: str | Path, classes: int = 10, *, size: int = 32) -> Splits:
    """CIFAR from its folder or its archive (tar, which is read in place).

    Args:
        path: for example ``cifar-10-batches-bin`` or ``cifar-10-python.tar.gz``.
        classes: 10 or 100 (the fine labels).
        size: 16 or 8 makes the images smaller by averaging their pixels, for quick trials.

    Both layouts hold the same images in the same order. The python layout is a pickle, read by a reader that can build
    arrays and nothing else (`compensate.data.unpickle`).

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> record = bytes([3]) + bytes(3072)                       # a label and a black image
    >>> for name in ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]:
    ...     _ = (folder / f"{name}.bin").write_bytes(record)
    >>> read_cifar(folder, size=16).train.x.shape
    (5, 3, 16, 16)

    Reference: Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
    """
    if size not in (32, 16, 8):
        raise InputError(f"CIFAR's images can be averaged to a size of 32, 16 or 8, not {size}.")
    if classes not in _TRAIN:
        raise InputError(f"there is no CIFAR-{classes}; choose 10 or 100.")
    parts = [*_TRAIN[classes], _TEST[classes]]
    wanted = {*parts, *(f"{part}.bin" for part in parts), *_NAMES[classes]}
    found = {
        name.rpartition("/")[2]: content for name, content in members(path, lambda n: n.rpartition("/")[2] in wanted)
    }
    binary = any(name.endswith(".bin") for name in found)
    files = [f"{part}.bin" if binary else part for part in parts]
    missing = [name for name in files if name not in found]
    if missing:
        raise InputError(
            f"{path} lacks {', '.join(missing)}; a CIFAR-{classes} folder or archive holds {', '.join(files)}. Fetch it again."
        )
    names = _class_names(found, binary, classes, path)
    read = _binary if binary else _python
    pieces = [(_averaged(x, size), y) for x, y in (read(found[name], f"{path}: {name}", classes) for name in files)]
    train = Data(np.concatenate([x for x, _ in pieces[:-1]]), np.concatenate([y for _, y in pieces[:-1]]), names)
    return Splits(train, Data(*pieces[-1], names))


def _averaged(x: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    factor = x.shape[-1] // size
    if factor == 1:
        return x
    blocks = x.reshape(*x.shape[:2], size, factor, size, factor)
    return np.rint(blocks.mean((3, 5))).astype(np.uint8)


def _binary(content: bytes, where: str, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    # A record is the label (CIFAR-100: the coarse one, then the fine one) and the red, green and blue planes.
    ahead = 1 if classes == 10 else 2
    size = ahead + PIXELS
    if not content or len(content) % size:
        raise InputError(f"{where} has {len(content):,} bytes, which is not a multiple of {size:,}. It is cut short.")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    return _checked(records[:, ahead:], records[:, ahead - 1], where, classes)


def _python(content: bytes, where: str, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    batch = load_arrays(content, where)
    key = b"labels" if classes == 10 else b"fine_labels"
    data, labels = (_entry(batch, k) for k in (b"data", key))
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != PIXELS:
        raise InputError(f"{where} holds no array of images under the key data; expected bytes (N, {PIXELS}).")
    if not isinstance(labels, (list, np.ndarray)) or len(labels) != len(data):
        raise InputError(f"{where} has no label for each of its {len(data)} images under the key {key.decode()}.")
    return _checked(data, np.asarray(labels), where, classes)


def _checked(pixels: Any, labels: Any, where: str, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= classes:
        raise InputError(f"{where} has labels outside 0..{classes - 1}. Is it CIFAR-{classes}?")
    return np.ascontiguousarray(pixels).reshape(-1, 3, 32, 32), labels.astype(np.int64)


def _entry(batch: Any, key: bytes) -> Any:
    if not isinstance(batch, dict):
        return None
    return batch.get(key, batch.get(key.decode()))


def _class_names(found: dict[str, bytes], binary: bool, classes: int, path: str | Path) -> tuple[str, ...]:
    file = _NAMES[classes][0 if binary else 1]
    if file not in found:
        return tuple(str(i) for i in range(classes))
    if binary:
        names = decode(found[file], f"{path}: {file}").split()
    else:
        key = b"label_names" if classes == 10 else b"fine_label_names"
        listed = _entry(load_arrays(found[file], f"{path}: {file}"), key) or []
        names = [name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in listed]
    if len(names) != classes or len(set(names)) != classes:
        raise InputError(f"{path}: {file} names {len(names)} classes; expected {classes} different ones.")
    return tuple(names)
