"""Images: CIFAR-10 and CIFAR-100, MNIST and others in the idx format, and the digits of scikit-learn."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compensate.data.dataset import Dataset, Splits
from compensate.data.unpickle import load_arrays
from compensate.errors import InputError
from compensate.files import decode, members, read_bytes

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
    train = Dataset(np.concatenate([x for x, _ in pieces[:-1]]), np.concatenate([y for _, y in pieces[:-1]]), names)
    return Splits(train, Dataset(*pieces[-1], names))


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
    return Splits(_mnist_part(Path(folder), "train", classes), _mnist_part(Path(folder), "t10k", classes))


def _mnist_part(folder: Path, name: str, classes: tuple[str, ...]) -> Dataset:
    images, labels = (read_idx(_find_idx(folder, f"{name}-{kind}")) for kind in ("images", "labels"))
    if images.ndim != 3 or images.dtype != np.uint8 or labels.ndim != 1 or len(images) != len(labels):
        raise InputError(
            f"the {name} files in {folder} do not fit: images {images.shape} {images.dtype}, labels {labels.shape}; "
            "expected bytes (N, H, W) and (N,)."
        )
    return Dataset(images[:, None], labels.astype(np.int64), classes)


def _find_idx(folder: Path, stem: str) -> Path:
    for file in sorted(folder.glob(f"{stem}*")):
        if "idx" in file.name and not file.name.endswith((".part", ".lock")):
            return file
    raise InputError(f"{folder} lacks the file {stem}-idx{3 if 'images' in stem else 1}-ubyte (or .gz).")


def digits() -> Dataset:
    """The 1,797 digits of 8 x 8 pixels, in their stored order: ``x`` is (1797, 1, 8, 8), float32 in [0, 1].

    >>> digits().x.shape
    (1797, 1, 8, 8)

    Reference: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998.
    """
    x, target = _stored_digits()
    images = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    return Dataset(images, target.astype(np.int64), tuple("0123456789"))


@cache
def _stored_digits() -> tuple[Any, Any]:
    """Pixels and labels as scikit-learn has them: a text file, whose parsing takes longer than a short training."""
    from sklearn.datasets import load_digits

    return load_digits(return_X_y=True)


def digits_splits(test: float = 0.3, *, seed: int = 0) -> Splits:
    """The digits in a training and a test part, the same for the same seed; each class is split by the same share.

    >>> splits = digits_splits()
    >>> len(splits.train), len(splits.test)
    (1258, 539)
    """
    train, held = digits().split((1 - test, test), seed=seed)
    return Splits(train, held)
