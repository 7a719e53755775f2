"""The nearest rows of each row, block by block: memory in proportion to the rows, time bounded by cells of rows that lie together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from compensate.data.dataset import Ints, Singles

EXACT = 20_000
"""The number of rows up to which each is compared with every other; beyond, with those in the cells around it."""

PROBED = 4
"""Cells in which neighbors are looked for: its own and the nearest others. A copy lies next to its original, mostly in one cell."""

BLOCK = 1 << 20
"""Distances that are held at once: they stay in the processor's cache."""

GROUP = 32
"""Distances of which the smallest is taken first, at most: a row has few that are below the k-th smallest of these."""

Near = tuple[Ints, Singles]
"""(N, k) the nearest other rows of each row, nearest first, and (N, k) their distances."""


def nearest_rows(x: Singles, k: int, *, seed: int = 0) -> Near:
    """(N, k) the nearest other rows, nearest first, and (N, k) their Euclidean distances.

    >>> who, far = nearest_rows(np.array([[0.0], [1.0], [5.0]], np.float32), 1)
    >>> who.ravel().tolist(), far.ravel().tolist()
    ([1, 0, 1], [1.0, 1.0, 4.0])
    """
    n = len(x)
    k = min(k, n - 1)
    squares = np.einsum("ij,ij->i", x, x)
    who, far = np.zeros((n, max(k, 0)), np.int64), np.full((n, max(k, 0)), np.inf, np.float32)
    if k < 1:
        return who, far
    for rows, pool in _searches(x, squares, seed):
        count = min(k, len(pool) - 1)
        each = min(GROUP, max(1, len(pool) // (8 * count)))
        columns = _beside(x[pool], squares[pool], -(-len(pool) // each) * each)
        for start in range(0, len(rows), size := max(1, BLOCK // len(pool))):
            here = rows[start : start + size]
            apart = _with_one(x[here]) @ columns.T
            place = np.arange(len(here))
            apart[place, start + place] = np.inf  # the pool begins with the rows themselves
            found = _smallest(apart, count, each)
            who[here, :count] = pool[found]
            close = np.take_along_axis(apart, found, 1) + squares[here, None]
            far[here, :count] = np.sqrt(np.maximum(close, 0))
    return who, far


def _searches(x: Singles, squares: Singles, seed: int) -> Iterator[tuple[Ints, Ints]]:
    """Rows, and the rows among which their neighbors are looked for: themselves first, then others."""
    n = len(x)
    if n <= EXACT:
        yield np.arange(n), np.arange(n)
        return
    centers = np.sort(np.random.default_rng(seed).choice(n, int(np.sqrt(n)), replace=False))
    columns = _beside(x[centers], squares[centers], len(centers))
    cell = np.empty(n, np.int64)
    for start in range(0, n, size := max(1, BLOCK // len(centers))):
        cell[start : start + size] = (_with_one(x[start : start + size]) @ columns.T).argmin(1)
    order = np.argsort(cell, kind="stable")
    bounds = np.searchsorted(cell[order], np.arange(len(centers) + 1))
    between = _with_one(x[centers]) @ columns.T
    around = np.argsort(between, axis=1, kind="stable")[:, :PROBED]
    for c in range(len(centers)):
        cells = [c, *(o for o in around[c].tolist() if o != c)]
        pool = np.concatenate([order[bounds[o] : bounds[o + 1]] for o in cells])
        rows = pool[: bounds[c + 1] - bounds[c]]
        if len(rows) and len(pool) > 1:
            yield rows, pool


def _with_one(x: Singles) -> Singles:
    return np.concatenate([x, np.ones((len(x), 1), np.float32)], axis=1)


def _beside(x: Singles, squares: Singles, size: int) -> Singles:
    """(size, D + 1) what multiplies rows ``[a, 1]`` to :math:`|b|^2 - 2 a b`, the squared distance less :math:`|a|^2`;
    what is beyond the rows is far."""
    found = np.zeros((size, x.shape[1] + 1), np.float32)
    np.multiply(x, -2, out=found[: len(x), :-1])
    found[: len(x), -1] = squares
    found[len(x) :, -1] = np.finfo(np.float32).max
    return found


def _smallest(values: Singles, k: int, each: int) -> Ints:
    """(R, k) where the smallest values of each row are, the smallest first.

    Of groups of `each` values the smallest is taken: the k-th smallest of these is a bound that k values at least do not exceed, and hardly more.
    """
    least = values.reshape(len(values), each, -1).min(1)
    bound = np.partition(least, k - 1, axis=1)[:, k - 1 : k]
    row, column = np.divmod(np.flatnonzero(values <= bound), values.shape[1])
    first = np.searchsorted(row, np.arange(len(values) + 1))
    place = np.arange(len(row)) - first[row]
    shape = len(values), int(np.diff(first).max())
    below, where = np.full(shape, np.inf, np.float32), np.zeros(shape, np.int64)
    below[row, place], where[row, place] = values[row, column], column
    return np.take_along_axis(where, np.argsort(below, axis=1, kind="stable")[:, :k], 1)
