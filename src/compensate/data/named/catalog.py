"""Where the public data sets are found: their names, files, addresses and checksums."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from compensate.data.dataset import Splits
from compensate.data.named.download import bar, fetch
from compensate.data.named.image_sets import FASHION, read_cifar, read_mnist
from compensate.data.named.text_sets import read_imdb, read_sst2
from compensate.errors import InputError

VARIABLE = "COMPENSATE_DATA"


@dataclass(frozen=True)
class File:
    """A file to fetch: address, checksum as its publisher or its common readers state it, and where it goes."""

    url: str
    checksum: str
    name: str


@dataclass(frozen=True)
class Source:
    """A public data set.

    Attributes:
        read: gives the parts from the file or folder found.
        places: what to look for in the data folder, in this order; patterns as in a shell.
        files: what to fetch if nothing is found. The first one's place is then read.
        holds: if set, a folder counts only if it holds a file of this pattern.
    """

    read: Callable[..., Splits]
    places: tuple[str, ...]
    files: tuple[File, ...]
    holds: str = ""


def _idx(base: str, folder: str, checksums: tuple[str, str, str, str]) -> tuple[File, ...]:
    names = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    return tuple(File(base + n, f"md5:{c}", f"{folder}/{n}") for n, c in zip(names, checksums, strict=True))


_TORONTO = "https://www.cs.toronto.edu/~kriz/"

SOURCES: dict[str, Source] = {
    "cifar10": Source(
        partial(read_cifar, classes=10),
        ("cifar-10-batches-bin", "cifar-10-batches-py", "cifar10", "cifar-10*.tar.*", "cifar-10*.tgz"),
        (
            File(
                _TORONTO + "cifar-10-binary.tar.gz",
                "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                "cifar-10-binary.tar.gz",
            ),
        ),
        "**/data_batch_1*",
    ),
    "cifar100": Source(
        partial(read_cifar, classes=100),
        ("cifar-100-binary", "cifar-100-python", "cifar100", "cifar-100*.tar.*", "cifar-100*.tgz"),
        (
            File(
                _TORONTO + "cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary.tar.gz"
            ),
        ),
        "**/train*",
    ),
    "mnist": Source(
        read_mnist,
        ("mnist", "MNIST/raw", "MNIST"),
        _idx(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "mnist",
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
        "t10k-labels*",
    ),
    "fashion-mnist": Source(
        partial(read_mnist, classes=FASHION),
        ("fashion-mnist", "FashionMNIST/raw", "fashion", "/usr/share/datasets/fashion-mnist"),
        _idx(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "fashion-mnist",
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
        "t10k-labels*",
    ),
    "sst2": Source(
        read_sst2,
        ("sst2", "SST-2", "sst-2", "sst2.tar.*", "sst2.zip", "SST-2.zip"),
        (
            File(
                "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",
                "md5:9f81648d4199384278b86e315dac217c",
                "SST-2.zip",
            ),
        ),
        "**/train.tsv",
    ),
    "imdb": Source(
        read_imdb,
        ("aclImdb", "imdb", "imdb*.tsv*", "imdb*.csv*", "IMDB*.csv*", "aclImdb*.tar.*"),
        (
            File(
                "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
                "md5:7c2ac02c03563afcf9b574c7e56c153a",
                "aclImdb_v1.tar.gz",
            ),
        ),
        "train/pos/*.txt",
    ),
}


def data_folder(data_dir: str | Path | None = None) -> Path:
    """The folder for data: as given, else the environment variable COMPENSATE_DATA, else one in the user's cache.

    >>> data_folder("my/data").name
    'data'
    """
    if data_dir is not None:
        return Path(data_dir).expanduser()
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "compensate"


def read_source(name: str, data_dir: str | Path | None = None, *, download: bool = True, **options: Any) -> Splits:
    """A public data set from the data folder; fetched first if it is not there."""
    return SOURCES[name].read(find_source(name, data_dir, download=download), **options)


def find_source(name: str, data_dir: str | Path | None = None, *, download: bool = True) -> Path:
    """Where a public data set is in the data folder; fetched first if it is not there."""
    source = SOURCES[name]
    folder = data_folder(data_dir)
    found = locate(source, folder)
    if found is None and download:
        _fetch(name, source, folder)
        found = locate(source, folder)
    if found is None:
        raise InputError(f"{name} is not in {folder}. {_advice(source, folder)}")
    return found


def locate(source: Source, folder: Path) -> Path | None:
    """What the folder has of this source, the first place that fits."""
    for place in source.places:
        matches = [Path(place)] if place.startswith("/") else sorted(folder.glob(place)) if folder.is_dir() else []
        for match in matches:
            if match.is_file() and not match.name.endswith((".part", ".lock")):
                return match
            if match.is_dir() and any(match.glob(source.holds)):
                return match
    if folder.is_dir() and "**" not in source.holds and any(folder.glob(source.holds)):
        return folder
    return None


def _fetch(name: str, source: Source, folder: Path) -> None:
    for file in source.files:
        try:
            with bar(file.name) as progress:
                fetch(file.url, folder / file.name, file.checksum, progress=progress)
        except (InputError, OSError) as error:
            raise InputError(
                f"{name} is not in {folder} and could not be fetched. {_advice(source, folder)} ({error})"
            ) from error


def _advice(source: Source, folder: Path) -> str:
    wanted = "; ".join(f"{file.url} as {folder / file.name}" for file in source.files)
    shapes = ", ".join(place for place in source.places if not place.startswith("/"))
    return (
        f"Put it there yourself: {wanted}. Also found there: {shapes}. Another folder is named by data_dir (--data-dir on "
        f"the command line) or by the environment variable {VARIABLE}."
    )
