"""Readers of CIFAR, MNIST and other idx files, SST-2 and IMDB."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compensate.data.dataset import UNLABELED, Dataset, Source, Splits
from compensate.data.tables import is_table, read_table
from compensate.errors import InputError
from compensate.files import CHUNK_BYTES, check_unpacked, decode, opened, read_bytes, zip_members
from experiments.data.unpickle import load_arrays

PIXELS = 3 * 32 * 32

_TRAIN = {10: [f"data_batch_{i}" for i in range(1, 6)], 100: ["train"]}
_TEST = {10: "test_batch", 100: "test"}
_NAMES = {10: ("batches.meta.txt", "batches.meta"), 100: ("fine_label_names.txt", "meta")}


def members(path: str | Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Name and content of the wanted files of a folder, a tar or a zip archive.

    Archives are never unpacked to disk: a name such as ``../x`` or a link is only a name. Names use ``/`` and are relative; files
    come in the order of the archive, or sorted by name from a folder.
    """
    path = Path(path)
    if path.is_dir():
        for file in sorted(p for p in path.rglob("*") if p.is_file()):
            name = file.relative_to(path).as_posix()
            if wanted(name):
                yield name, file.read_bytes()
        return
    if not path.is_file():
        raise InputError(f"there is no file or folder {path}; check the path.")
    if path.name.lower().endswith(".zip"):
        yield from zip_members(path, wanted)
        return
    total = 0
    # The stream mode reads once from front to back: seeking in a compressed file would unpack it again and again.
    with opened(path) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:  # type: ignore[call-overload]
        for member in tar:
            if member.isfile() and wanted(member.name):
                total += member.size  # the holes of a sparse file are not in the stream
                check_unpacked(total, path)
                held = tar.extractfile(member)
                content = held.read() if held is not None else b""
                if len(content) != member.size:
                    raise EOFError(f"{member.name} ends early")
                yield member.name.removeprefix("./"), content
        while stream.read(CHUNK_BYTES):  # the archive ends before its file does, and the checksum comes last
            pass


def read_cifar(path: str | Path, classes: int = 10, *, size: int = 32) -> Splits:
    """CIFAR from its folder or its archive (tar, which is read in place).

    Args:
        path: for example ``cifar-10-batches-bin`` or ``cifar-10-python.tar.gz``.
        classes: 10 or 100 (the fine labels).
        size: 16 or 8 makes the images smaller by averaging their pixels, for quick trials.

    Both layouts hold the same images in the same order. The python layout is a pickle, read by a reader that can build
    arrays and nothing else (`experiments.data.unpickle`).

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


SENTIMENT = ("negative", "positive")


def read_sst2(path: str | Path, *, phrases: bool = False) -> Splits:
    r"""SST-2 from a folder, tar or zip with ``train.tsv``, ``dev.tsv`` and perhaps ``test.tsv``.

    A line is a sentence, a tab and 0 or 1; a header line is optional. GLUE's ``test.tsv`` has no labels and is left
    out: results are usually reported on its development part.

    Args:
        path: the folder or archive.
        phrases: train on the phrases of ``glue-train-phrases.tsv`` instead of the sentences.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for part in ("train", "dev"):
    ...     _ = (folder / f"{part}.tsv").write_text("a fine film\t1\na dull one\t0\n")
    >>> read_sst2(folder).validation.target.tolist()
    [1, 0]

    Reference: Socher et al., Recursive Deep Models for Semantic Compositionality, 2013.
    """
    first = "glue-train-phrases.tsv" if phrases else "train.tsv"
    wanted = {first, "dev.tsv", "test.tsv"}
    found: dict[str, bytes] = {}
    for name, content in members(path, lambda n: n.rpartition("/")[2] in wanted and "original/" not in n):
        found.setdefault(name.rpartition("/")[2], content)
    missing = [name for name in (first, "dev.tsv") if name not in found]
    if missing:
        raise InputError(f"{path} lacks {' and '.join(missing)}; SST-2 is train.tsv, dev.tsv and test.tsv.")
    train, dev = (_sentences(found[name], f"{path}: {name}") for name in (first, "dev.tsv"))
    test = _sentences(found["test.tsv"], f"{path}: test.tsv") if "test.tsv" in found else None
    return Splits(train, test if test is not None and test.labeled.all() else None, dev)


def _sentences(content: bytes, where: str) -> Dataset:
    lines = [line.rstrip("\r") for line in decode(content, where).split("\n")]
    rows = [line.split("\t") for line in lines if line]
    if rows and [c.lower() for c in rows[0]] == ["index", "sentence"]:
        rows = [[sentence, ""] for _, sentence in rows[1:]]
    elif rows and [c.lower() for c in rows[0]] == ["sentence", "label"]:
        rows = rows[1:]
    for number, row in enumerate(rows, start=1):
        if len(row) != 2 or row[1].strip() not in ("0", "1", ""):
            raise InputError(f"row {number} of {where} is not a sentence, a tab and 0 or 1: {str(row)[:80]}.")
    if not rows:
        raise InputError(f"{where} has no sentences.")
    target = np.array([int(row[1]) if row[1].strip() else UNLABELED for row in rows], dtype=np.int64)
    return Dataset(np.array([row[0] for row in rows], dtype=object), target, SENTIMENT, source=Source(kind="text"))


def read_imdb(path: str | Path) -> Splits:
    r"""The IMDB reviews: the original folders or their archive (``train/pos/0_9.txt``), or a csv or tsv table.

    The corpus is sorted by class. Each part is put in one fixed random order, the same in every run; ``index`` is the position of a
    review in the source.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> rows = ["split\tlabel\ttext", "train\tpos\ta very fine film indeed", "train\tneg\ta dull and long film"]
    >>> _ = (folder / "imdb.tsv").write_text("\n".join(rows))
    >>> read_imdb(folder / "imdb.tsv").train.classes
    ('negative', 'positive')

    Reference: Maas et al., Learning Word Vectors for Sentiment Analysis, 2011.
    """
    path = Path(path)
    if path.is_file() and is_table(path):
        splits = read_table(path)
        if splits.train.num_classes != 2 or splits.train.source.kind != "text":
            raise InputError(f"{path} is not IMDB: expected texts of two classes.")
        named = {"0": "negative", "1": "positive", "neg": "negative", "pos": "positive"}
        parts = [_renamed(part, named) for part in (splits.train, splits.test, splits.validation)]
    else:
        parts = [*_folders(path), None]
    train, test, validation = (None if part is None else in_fixed_order(part) for part in parts)
    assert train is not None
    return Splits(train, test, validation)


def in_fixed_order(data: Dataset) -> Dataset:
    """The data in the order that sorted corpora get: random, fixed for good, a function of their size alone.

    >>> in_fixed_order(Dataset(np.arange(6), np.zeros(6, int), ("a",))).index
    array([4, 0, 2, 3, 5, 1])
    """
    # Raw bits and a sort: numpy promises that these stay the same from version to version, unlike `permutation`.
    bits = np.random.PCG64(20210719).random_raw(len(data))
    return data.subset(np.argsort(np.asarray(bits), kind="stable"))


_REVIEW = re.compile(r"(?:^|/)(train|test)/(neg|pos)/(\d+)_(\d+)\.txt$")


def _folders(path: Path) -> tuple[Dataset, Dataset | None]:
    found: dict[str, list[tuple[str, int, str, str]]] = {"train": [], "test": []}
    for name, content in members(path, lambda n: _REVIEW.search(n) is not None):
        match = _REVIEW.search(name)
        assert match is not None
        part, sign, number, _ = match.groups()
        found[part].append((sign, int(number), f"{part}/{sign}/{match[0].rpartition('/')[2]}", decode(content, name)))
    if not found["train"]:
        raise InputError(f"{path} holds no reviews; expected files such as train/pos/0_9.txt.")
    return _reviews(found["train"], path), _reviews(found["test"], path) if found["test"] else None


def _reviews(rows: list[tuple[str, int, str, str]], path: Path) -> Dataset:
    rows.sort()  # negative before positive, each by number: the same whatever order the archive has
    target = np.array([int(row[0] == "pos") for row in rows], dtype=np.int64)
    if len(set(target.tolist())) < 2:
        raise InputError(f"{path}: one of the folders neg and pos is empty; both classes are needed.")
    texts, ids = (np.array([row[i] for row in rows], dtype=object) for i in (3, 2))
    return Dataset(texts, target, SENTIMENT, ids=ids, source=Source(kind="text"))


def _renamed(data: Dataset | None, named: dict[str, str]) -> Dataset | None:
    if data is None:
        return None
    names = [named.get(name.lower(), name.lower()) for name in data.classes]
    order: NDArray[Any] = np.argsort(names, kind="stable")
    place = np.append(np.argsort(order), UNLABELED)  # a missing label, -1, stays one
    return Dataset(
        data.x, place[data.target], tuple(sorted(names)), data.index, ids=data.ids, rows=data.rows, source=data.source
    )
