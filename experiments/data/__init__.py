"""Public data sets by name: cifar10, cifar100, mnist, fashion-mnist, sst2 and imdb.

Importing this package adds their names, the layouts of their folders and archives, and pickled label files (CIFAR-N) to
`compensate.data.load`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from compensate.data.label_files import PICKLE_READERS
from compensate.data.load import LAYOUTS, NAMED
from experiments.data.graphs import neighbor_graph, with_wrong_edges
from experiments.data.readers import read_cifar, read_imdb, read_mnist, read_sst2
from experiments.data.sources import SOURCES, fetch, find_source, read_source
from experiments.data.unpickle import load_arrays

__all__ = [
    "SOURCES",
    "fetch",
    "find_source",
    "load_arrays",
    "neighbor_graph",
    "read_cifar",
    "read_imdb",
    "read_mnist",
    "read_source",
    "read_sst2",
    "with_wrong_edges",
]

_ALIASES = {"cifar-10": "cifar10", "cifar-100": "cifar100", "fashionmnist": "fashion-mnist", "sst-2": "sst2"}


def _holds(path: Path, *names: str) -> bool:
    return path.is_dir() and any((path / name).exists() for name in names)


def _packed(path: Path, *starts: str) -> bool:
    archive = path.name.lower().endswith((".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".zip"))
    return archive and path.is_file() and path.name.lower().startswith(starts)


NAMED |= {name: partial(read_source, name) for name in SOURCES}
NAMED |= {alias: NAMED[name] for alias, name in _ALIASES.items()}
LAYOUTS += [
    (lambda path: _holds(path, "train.tsv") or _packed(path, "sst"), read_sst2),
    (lambda path: _holds(path, "train/pos") or _packed(path, "aclimdb", "imdb"), read_imdb),
    (lambda path: _holds(path, "train.bin", "meta") or _packed(path, "cifar-100"), partial(read_cifar, classes=100)),
    (lambda path: _holds(path, "data_batch_1", "data_batch_1.bin") or _packed(path, "cifar"), read_cifar),
    (lambda path: path.is_dir() and any("idx3-ubyte" in entry.name for entry in path.iterdir()), read_mnist),
]
PICKLE_READERS.append(load_arrays)
