"""Certain examples of a class, to compare a suspect with.

The rows nearest to a wrong label are often wrong for the same reason. Examples are therefore chosen by certainty first, according to models
that did not see their labels, and only then by distance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from compensate.auditing.content import POOL
from compensate.data.dataset import Floats, Ints

if TYPE_CHECKING:
    from compensate.auditing.result import Audit

EXAMPLES = 3  # examples of each of the two labels of a suspect
CERTAIN, LIKELY_RIGHT = 0.02, 0.1
"""Largest probability of error of an example, and the same for classes without enough such rows."""

CLOSE = 0.25
"""Rows nearer than this fraction of the 0.9 quantile of the distances may be copies of the suspect and are not shown. A sentence of SST-2
with one changed word lies at 0.23 (median, TF-IDF); the nearest row that is not a copy is excluded for 1 in 100 suspects in digits and for
none in SST-2 and wine."""


@dataclass(frozen=True, eq=False)
class Pool:
    """Certain rows, their vectors with squared lengths, and a number for each that rows with equal vectors share."""

    rows: Ints
    vectors: Any
    squares: Floats
    content: list[int]


def certain_examples(audit: Audit, suspects: Ints) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
    """By suspect, the nearest certain rows with its given and with its suggested label; empty if rows cannot be compared."""
    if audit.vectors is None or audit.data is None:
        return {}
    examples: tuple[dict[int, tuple[int, ...]], ...] = {}, {}
    for side, rows, pool in _pools(audit, suspects):
        examples[side].update(zip(rows.tolist(), _nearest(audit, rows, pool), strict=True))
    return {i: (examples[0][i], examples[1][i]) for i in suspects.tolist()}


def _pools(audit: Audit, suspects: Ints) -> Iterator[tuple[int, Ints, Pool]]:
    """For the given (0) and the suggested (1) label: suspects, and the certain rows with this label."""
    if audit.regression:  # pools of rows with similar values
        rows = certain_rows(audit, np.arange(len(audit)), None)
        rows = rows[np.argsort(audit.given[rows], kind="stable")]
        values, half = audit.given[rows], max(2 * EXAMPLES, min(POOL, len(rows) // 10) // 2)
        for side, labels in enumerate((audit.given, audit.suggested)):
            for k, i in enumerate(suspects.tolist()):
                middle = int(np.searchsorted(values, labels[i]))
                yield side, suspects[k : k + 1], _pool(audit, rows[max(0, middle - half) : middle + half])
        return
    margins = None
    if audit.probabilities is not None:
        p, position = np.array(audit.probabilities, dtype=np.float64), np.arange(len(audit.probabilities))
        own = p[position, audit.given]
        p[position, audit.given] = -np.inf
        margins = own - p.max(1)
    sides = audit.given[suspects], audit.suggested[suspects]
    for c in np.unique(np.concatenate(sides)).tolist():
        pool = _pool(audit, certain_rows(audit, np.flatnonzero(audit.given == c), margins)[:POOL])
        yield from ((side, suspects[sides[side] == c], pool) for side in (0, 1))


def certain_rows(audit: Audit, rows: Ints, margins: Floats | None) -> Ints:
    """The rows with the most certain labels, most certain first.

    Args:
        audit: of labels or quantities.
        rows: positions, usually of the rows of a class.
        margins: (N,) by how much the out-of-fold probability of the given class exceeds the largest other one, if known.
    """
    p = audit.p_error[rows]
    for bound in (CERTAIN, LIKELY_RIGHT):
        good = rows[p < bound]
        if margins is not None:
            good = good[margins[good] > 0]
        if len(good) >= EXAMPLES:
            break
    doubt = audit.p_error if margins is None else -margins
    order = good[np.argsort(doubt[good], kind="stable")]
    return order[: max(EXAMPLES, (len(order) + 1) // 2)]  # rows near the boundary are poor examples


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
    """For each suspect the nearest rows of the pool, one of each group of copies."""
    if not len(pool.rows) or not len(suspects):
        return [()] * len(suspects)
    vectors = audit.vectors[suspects]
    vectors = vectors if _is_sparse(vectors) else np.asarray(vectors, dtype=np.float32)
    products = vectors @ pool.vectors.T
    products = products.toarray() if _is_sparse(products) else products
    distance = np.sqrt(np.maximum(pool.squares + _squares(vectors)[:, None] - 2 * products.astype(np.float64), 0))
    copies = distance <= CLOSE * np.quantile(distance, 0.9, axis=1, keepdims=True)
    distance[copies | (pool.rows == suspects[:, None])] = np.inf
    allowed = np.isfinite(distance).sum(1).tolist()
    nearest = []
    for order, count in zip(np.argsort(distance, axis=1, kind="stable").tolist(), allowed, strict=True):
        distinct: dict[int, int] = {}
        for j in order[:count]:
            distinct.setdefault(pool.content[j], int(pool.rows[j]))
            if len(distinct) == EXAMPLES:
                break
        nearest.append(tuple(distinct.values()))
    return nearest


def _is_sparse(values: Any) -> bool:
    return bool(sparse.issparse(values))


def _squares(vectors: Any) -> Floats:
    if _is_sparse(vectors):
        return np.asarray(vectors.multiply(vectors).sum(1), dtype=np.float64).ravel()
    return np.asarray((vectors**2).sum(1, dtype=np.float64))
