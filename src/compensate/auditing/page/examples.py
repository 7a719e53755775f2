"""Certain examples of a class, to compare a suspect with.

Looking for the nearest example of the *given* class is looking for rows that carry the same wrong label: what lies near a
wrong label is often wrong for the same reason. So examples are chosen for certainty first, from models that did not see their
labels, and only among those by nearness.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from compensate.auditing.arrays import Floats, Ints
from compensate.auditing.result import Audit

BESIDE = 3
"""Examples on either side of a suspect."""

POOL = 150
"""Certain rows of a class among which the nearest are looked for."""

CERTAIN, LIKELY_RIGHT = 0.02, 0.1
"""An example is wrong with less than the first probability; in classes where no row is as certain, less than the second."""

CLOSE = 0.25
"""Of the distance within which nine tenths of the pool lie: what is nearer may be a copy of the suspect, and compares it with
itself. A sentence of SST-2 with one word changed lies at 0.23 (median, TF-IDF); of rows that are no copies, the nearest
lies nearer for 1 in 100 suspects in digits and for none in SST-2 and wine."""


@dataclass(frozen=True, eq=False)
class Pool:
    """Certain rows, their vectors with squared lengths, and a number for each that rows with equal vectors share."""

    rows: Ints
    vectors: Any
    squares: Floats
    content: list[int]


Side = tuple[int, Ints, Pool]
"""0 for the given label or 1 for the suggested one, suspects, and the certain rows like this label of theirs."""


def beside(audit: Audit, suspects: Ints) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
    """By suspect, the nearest certain rows like its given and like its suggested label; nothing if rows cannot be compared."""
    if audit.vectors is None or audit.data is None:
        return {}
    found: tuple[dict[int, tuple[int, ...]], ...] = {}, {}
    for side, rows, pool in (_of_values if audit.regression else _of_classes)(audit, suspects):
        found[side].update(zip(rows.tolist(), _nearest(audit, rows, pool), strict=True))
    return {i: (found[0][i], found[1][i]) for i in suspects.tolist()}


def _of_classes(audit: Audit, suspects: Ints) -> Iterator[Side]:
    margins = _margins(audit)
    labels = audit.given[suspects], audit.suggested[suspects]
    for c in np.unique(np.concatenate(labels)).tolist():
        pool = _pool(audit, certain(audit, np.flatnonzero(audit.given == c), margins)[:POOL])
        yield from ((side, suspects[labels[side] == c], pool) for side in (0, 1))


def _of_values(audit: Audit, suspects: Ints) -> Iterator[Side]:
    """Of quantities, a label is like another if few certain values lie between them."""
    rows = certain(audit, np.arange(len(audit)), None)
    rows = rows[np.argsort(audit.given[rows], kind="stable")]
    values = audit.given[rows]

    def around(value: float) -> Pool:
        place, half = int(np.searchsorted(values, value)), max(2 * BESIDE, min(POOL, len(rows) // 10) // 2)
        return _pool(audit, rows[max(0, place - half) : place + half])

    for side, labels in enumerate((audit.given, audit.suggested)):
        yield from ((side, suspects[k : k + 1], around(labels[i])) for k, i in enumerate(suspects.tolist()))


def certain(audit: Audit, rows: Ints, margins: Floats | None) -> Ints:
    """The rows among these whose labels are most certain, the most certain first.

    Args:
        audit: of labels or quantities.
        rows: positions, usually those of a class.
        margins: (N,) how much more probable, out of fold, the given class is than any other; None if that is not known.
    """
    p = audit.p_error[rows]
    for bound in (CERTAIN, LIKELY_RIGHT):
        good = rows[p < bound]
        if margins is not None:
            good = good[margins[good] > 0]
        if len(good) >= BESIDE:
            break
    doubt = audit.p_error if margins is None else -margins
    order = good[np.argsort(doubt[good], kind="stable")]
    # The better half: what is barely on the right side of a boundary is no example of its class.
    return order[: max(BESIDE, (len(order) + 1) // 2)]


def _margins(audit: Audit) -> Floats | None:
    if audit.probabilities is None:
        return None
    p = np.array(audit.probabilities, dtype=np.float64)
    place = np.arange(len(p))
    own = p[place, audit.given]
    p[place, audit.given] = -np.inf
    return own - p.max(1)


def _pool(audit: Audit, rows: Ints) -> Pool:
    vectors = audit.vectors[rows]
    if _is_sparse(vectors):
        vectors.sum_duplicates()
        vectors.eliminate_zeros()
        each = [one.indices.tobytes() + one.data.tobytes() for one in vectors]
    else:
        vectors = np.asarray(vectors, dtype=np.float32)
        each = [one.tobytes() for one in vectors + np.float32(0)]  # 0 and -0 are equal
    numbers: dict[bytes, int] = {}
    return Pool(rows, vectors, _squares(vectors), [numbers.setdefault(one, len(numbers)) for one in each])


def _nearest(audit: Audit, suspects: Ints, pool: Pool) -> list[tuple[int, ...]]:
    """For each suspect the nearest rows of the pool."""
    if not len(pool.rows) or not len(suspects):
        return [()] * len(suspects)
    vectors = audit.vectors[suspects]
    distance = _distances(pool, vectors if _is_sparse(vectors) else np.asarray(vectors, dtype=np.float32))
    copies = distance <= CLOSE * np.quantile(distance, 0.9, axis=1, keepdims=True)
    distance[copies | (pool.rows == suspects[:, None])] = np.inf
    allowed = np.isfinite(distance).sum(1).tolist()
    order = np.argsort(distance, axis=1, kind="stable").tolist()
    return [_first_distinct(pool, found[:count]) for found, count in zip(order, allowed, strict=True)]


def _first_distinct(pool: Pool, places: list[int]) -> tuple[int, ...]:
    found: dict[int, int] = {}
    for j in places:
        found.setdefault(pool.content[j], int(pool.rows[j]))  # one of several copies is enough
        if len(found) == BESIDE:
            break
    return tuple(found.values())


def _distances(pool: Pool, vectors: Any) -> Floats:
    """(R, P) from each vector to each row of the pool."""
    products = vectors @ pool.vectors.T
    products = products.toarray() if _is_sparse(products) else products
    return np.sqrt(np.maximum(pool.squares + _squares(vectors)[:, None] - 2 * products.astype(np.float64), 0))


def _squares(vectors: Any) -> Floats:
    if _is_sparse(vectors):
        return np.asarray(vectors.multiply(vectors).sum(1), dtype=np.float64).ravel()
    return np.asarray((vectors**2).sum(1, dtype=np.float64))


def _is_sparse(values: Any) -> bool:
    return bool(sparse.issparse(values))
