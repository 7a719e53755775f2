"""Features brought to one scale without a second copy of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

FAR = 10.0
"""One entry far out must not rule a batch: values are cut off at so many deviations."""

BLOCK = 1 << 24
"""Numbers looked at at once."""


@dataclass(frozen=True, eq=False)
class Scaled:
    r"""Rows of features less their mean, over their deviation, computed when they are asked for.

    .. math:: \operatorname{clip}\Bigl( \frac{x - \bar x}{\sigma}, -10, 10 \Bigr)

    Attributes:
        x: (N, D) the features, an array or a file mapped into memory.
        mean, spread: (D,) their means and deviations.
        rows: the rows of `x` that count, if not all.

    >>> scaled = Scaled.of(np.array([[1.0, 5.0], [3.0, 5.0]], np.float32))
    >>> scaled[np.array([1])]
    array([[1., 0.]], dtype=float32)
    """

    x: NDArray[np.float32]
    mean: NDArray[np.float32]
    spread: NDArray[np.float32]
    rows: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, x: NDArray[np.float32]) -> Scaled:
        """From the features, whose moments are added up block by block."""
        size = max(1, BLOCK // max(1, x.shape[1]))
        if len(x) <= size:
            mean, spread = x.mean(0), x.std(0)
        else:
            parts = [x[first : first + size] for first in range(0, len(x), size)]
            mean = sum(part.sum(0, dtype=np.float64) for part in parts) / len(x)
            square = sum(np.square(part - mean.astype(np.float32)).sum(0, dtype=np.float64) for part in parts)
            mean, spread = mean.astype(np.float32), np.sqrt(square / len(x)).astype(np.float32)
        return cls(x, mean, np.where(spread > 1e-8, spread, np.float32(1)))

    def __len__(self) -> int:
        return len(self.x) if self.rows is None else len(self.rows)

    def __getitem__(self, rows: Any) -> NDArray[np.float32]:
        found = self.x[rows if self.rows is None else self.rows[rows]]
        scaled: NDArray[np.float32] = (found - self.mean) / self.spread
        return np.clip(scaled, -FAR, FAR, out=scaled)

    def subset(self, rows: NDArray[np.int64]) -> Scaled:
        """Only these rows."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])


def subset(vectors: Any, rows: NDArray[np.int64]) -> Any:
    """Some rows, in ascending order, of anything that samples are compared by; all of them are no copy."""
    if isinstance(vectors, Scaled):
        return vectors if len(rows) == len(vectors) else vectors.subset(rows)
    return vectors if vectors is None or len(rows) == vectors.shape[0] else vectors[rows]
