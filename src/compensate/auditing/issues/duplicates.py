"""Rows that are there more than once: exactly, or nearly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from compensate.auditing.arrays import Ints
from compensate.auditing.folds import COPIES, content_keys
from compensate.auditing.issues.image_copies import image_pairs, shrunk
from compensate.auditing.issues.neighbors import Near, nearest_rows
from compensate.auditing.issues.text_copies import text_pairs
from compensate.data.dataset import Data

SIMILAR_TEXTS = 0.55
"""Jaccard index of character sequences: chosen on edited sentences of SST-2 (4,000 rows, 600 copies), where recall was .992 at a precision of .997."""

SIMILAR_IMAGES = 0.78
"""Correlation of details: chosen on edited images of CIFAR-10 (two draws of 1,500 rows and 150 copies of the training part), where every copy among the
candidates was found at a precision of .99."""

CLOSE = 0.05
"""Rows of a table or embeddings are nearly equal if their distance is this share of the usual distance to the nearest row."""

BY_CHANCE = 0.5
"""If more than this share of the rows of a table has an equal one, they are equal by chance: the table has few columns with few values."""

JOINED = 10_000
"""Rows of a table whose cells are joined at a time: lists of cells are quicker than their iterators, and of all rows they would be large."""

Pair = tuple[int, int, float]
"""Two positions and their similarity, 1 for equal content."""

Partner = tuple[int, float, bool]
"""The position of another row, the similarity to it, and whether it has another label."""


def find_pairs(data: Data, kind: str, vectors: Any, near: Near | None = None) -> list[Pair]:
    """Pairs of rows with equal or nearly equal content.

    Args:
        data: the rows.
        kind: as the audit names it.
        vectors: (N, D) their features, dense or sparse, or None.
        near: the nearest rows by these features, where they are dense.
    """
    content = _content(data, kind)
    equal = list(_equal(content))
    if kind == "table" and len({i for pair in equal for i in pair[:2]}) > BY_CHANCE * len(data):
        return []
    return [*equal, *_nearly(data, kind, vectors, near)]


def shared_with(data: Data, test: Data, kind: str) -> list[Pair]:
    """Pairs of a row of the data and a row of a test set with equal or nearly equal content: positions in either."""
    n = len(data)
    if kind == "text":
        pairs: Iterable[Pair] = text_pairs([*map(str, data.x), *map(str, test.x)], SIMILAR_TEXTS)
    elif kind == "image":
        small = np.concatenate([shrunk(data.x), shrunk(test.x)])
        pairs = image_pairs(small, small.reshape(len(small), -1), SIMILAR_IMAGES)
    else:
        keys = [_keys(_content(part, kind)) for part in (data, test)]
        pairs = _grouped(np.concatenate(keys))
    found = [(min(i, j), max(i, j), s) for i, j, s in pairs]
    return [(i, j - n, s) for i, j, s in found if i < n <= j]


def partners(pairs: Iterable[Pair], labels: NDArray[Any]) -> dict[int, Partner]:
    """For each row in a pair the most similar row that it was compared with: of those with another label if there are any.

    Of rows that equal each other any two are a pair; likeness is not handed on.

    >>> found = partners([(0, 1, 1.0), (1, 2, 0.6), (2, 3, 0.7)], np.array([0, 0, 0, 1]))
    >>> found[0], found[2]
    ((1, 1.0, False), (3, 0.7, True))
    """
    label = labels.tolist()
    where: dict[int, int] = {}  # from a row to a smaller one that equals it

    def root(i: int) -> int:
        while where.get(i, i) != i:
            where[i] = where.get(where[i], where[i])
            i = where[i]
        return i

    found: dict[int, Partner] = {}

    def meet(own: int, other: int, similarity: float) -> None:
        differ = label[own] != label[other]
        if own not in found or (differ, similarity) > (found[own][2], found[own][1]):
            found[own] = other, similarity, differ

    for i, j, similarity in pairs:
        meet(i, j, similarity)
        meet(j, i, similarity)
        if similarity == 1:
            a, b = sorted((root(i), root(j)))
            where[a], where[b] = a, a
    # Of many equal rows not every two were compared: the first row with another label than the smallest one's stands for all of them.
    others: dict[int, int] = {}
    for i in sorted(where):
        if label[i] != label[root(i)]:
            others.setdefault(root(i), i)
    for i in where:
        if root(i) in others:
            meet(i, root(i) if label[i] != label[root(i)] else others[root(i)], 1.0)
    return found


def _content(data: Data, kind: str) -> Any:
    if kind == "text":
        return [str(text) for text in data.x]
    if kind == "table" and (table := data.table) is not None:
        used = [c.name for c in data.info.get("columns", ()) if c.used] or [
            c for c in table.columns if c != data.info.get("label")
        ]
        parts = (table.iloc[first : first + JOINED] for first in range(0, len(table), JOINED))
        columns = ([map(str, part[name].tolist()) for name in used] for part in parts)
        return ["\x1f".join(cells) for part in columns for cells in zip(*part, strict=True)]
    return np.asarray(data.x)


def _keys(content: Any) -> Ints:
    keys = content_keys(content)
    return np.arange(len(content)) if keys is None else keys


def _equal(content: Any) -> Iterator[Pair]:
    if isinstance(content, list):  # an empty text is an issue of its own
        content = [text if text.strip("\x1f ") else f"\x00{i}" for i, text in enumerate(content)]
    return _grouped(_keys(content))


def _grouped(keys: Ints) -> Iterator[Pair]:
    order = np.argsort(keys, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(keys[order])) + 1, len(order))
    sizes = np.diff(ends, prepend=0)
    # Of most data few rows are left: a step for each of a million would take long.
    for k in np.flatnonzero((sizes > 1) & (sizes <= COPIES)).tolist():
        first, *others = order[ends[k] - sizes[k] : ends[k]].tolist()
        yield from ((first, other, 1.0) for other in others)


def _nearly(data: Data, kind: str, vectors: Any, near: Near | None) -> Iterator[Pair]:
    if kind == "text":
        return text_pairs([str(text) for text in data.x], SIMILAR_TEXTS)
    dense = None if vectors is None or sparse.issparse(vectors) else np.asarray(vectors, dtype=np.float32)
    if kind == "image" and np.ndim(data.x) == 4:
        small = shrunk(data.x)
        return image_pairs(small, small.reshape(len(small), -1) if dense is None else dense, SIMILAR_IMAGES)
    return iter(()) if dense is None else _close(nearest_rows(dense, 1) if near is None else near)


def _close(near: Near) -> Iterator[Pair]:
    who, far = near
    if not far.size:
        return
    usual = float(np.median(far[:, 0]))
    for i in np.flatnonzero(far[:, 0] < CLOSE * usual).tolist():
        yield i, int(who[i, 0]), 1.0 - float(far[i, 0]) / usual
