"""The nearest rows of each row, block by block: memory in proportion to the rows, time bounded by cells of rows that lie together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from compensate.auditing.arrays import Ints, Singles

EXACT = 20_000
"""The number of rows up to which each is compared with every other; beyond, with those in the cells around it."""

PROBED = 4
"""Cells in which neighbors are looked for: its own and the nearest others. A copy lies next to its original, mostly in one cell."""

BLOCK = 1 << 20
"""Distances that are held at once: they stay in the processor's cache."""


def nearest_rows(x: Singles, k: int, *, seed: int = 0) -> tuple[Ints, Singles]:
    """(N, k) the nearest other rows, nearest first, and (N, k) their Euclidean distances.

    >>> who, far = nearest_rows(np.array([[0.0], [1.0], [5.0]], np.float32), 1)
    >>> who.ravel().tolist(), far.ravel().tolist()
    ([1, 0, 1], [1.0, 1.0, 4.0])
    """
    n = len(x)
    k = min(k, n - 1)
    squares = np.einsum("ij,ij->i", x, x)
    who, far = np.zeros((n, k), np.int64), np.full((n, k), np.inf, np.float32)
    for rows, pool in _searches(x, squares, seed):
        size = max(1, BLOCK // len(pool))
        for start in range(0, len(rows), size):
            here = rows[start : start + size]
            apart = squares[here, None] + squares[pool] - 2 * (x[here] @ x[pool].T)
            apart[here[:, None] == pool] = np.inf
            count = min(k, len(pool))
            found = np.argpartition(apart, count - 1, axis=1)[:, :count]
            close = np.take_along_axis(apart, found, 1)
            order = np.argsort(close, axis=1, kind="stable")
            who[here, :count] = pool[np.take_along_axis(found, order, 1)]
            far[here, :count] = np.sqrt(np.maximum(np.take_along_axis(close, order, 1), 0))
    return who, far


def _searches(x: Singles, squares: Singles, seed: int) -> Iterator[tuple[Ints, Ints]]:
    """Rows, and the rows among which their neighbors are looked for."""
    n = len(x)
    if n <= EXACT:
        yield np.arange(n), np.arange(n)
        return
    centers = np.sort(np.random.default_rng(seed).choice(n, int(np.sqrt(n)), replace=False))
    cell = np.empty(n, np.int64)
    for start in range(0, n, size := max(1, BLOCK // len(centers))):
        part = slice(start, start + size)
        cell[part] = (squares[centers] - 2 * (x[part] @ x[centers].T)).argmin(1)
    order = np.argsort(cell, kind="stable")
    bounds = np.searchsorted(cell[order], np.arange(len(centers) + 1))
    between = squares[centers] - 2 * (x[centers] @ x[centers].T)
    around = np.argsort(between, axis=1, kind="stable")[:, :PROBED]
    for c in range(len(centers)):
        rows = order[bounds[c] : bounds[c + 1]]
        pool = np.concatenate([order[bounds[o] : bounds[o + 1]] for o in {c, *around[c].tolist()}])
        if len(rows) and len(pool) > 1:
            yield rows, pool
