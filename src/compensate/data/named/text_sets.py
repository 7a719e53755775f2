"""Texts: the movie reviews of SST-2 and IMDB."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compensate.data.dataset import UNLABELED, Dataset, Source, Splits
from compensate.data.tables import is_table, read_table
from compensate.errors import InputError
from compensate.files import decode, members

SENTIMENT = ("negative", "positive")


def read_sst2(path: str | Path, *, phrases: bool = False) -> Splits:
    r"""SST-2 from a folder, tar or zip with ``train.tsv``, ``dev.tsv`` and perhaps ``test.tsv``.

    A line is a sentence, a tab and 0 or 1; a header line is optional. GLUE's ``test.tsv`` has no labels and is left
    out: its development part is what people report on.

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

    The corpus comes sorted by class. Each part is put in one fixed random order, the same for everyone, so that "the
    first k percent" and a plain cut mean something; ``index`` still says where a review is in the source.

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
