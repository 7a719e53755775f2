"""Rows of a matrix, dense or sparse, standardized a batch at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

CONSTANT = 1e-10
"""A column that varies by less than this share of its mean is constant but for rounding."""


def moments(X: Any, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Mean and variance of each column, samples counted by their weight.

    .. math:: m_j = \frac{\sum_i w_i x_{ij}}{\sum_i w_i}, \qquad v_j = \frac{\sum_i w_i (x_{ij} - m_j)^2}{\sum_i w_i}

    `X` is (n, d), dense or sparse, `weight` (n,). Sparse input is never made dense: entries that are not stored add
    :math:`m_j^2` each.

    >>> from scipy import sparse
    >>> X = np.array([[0.0, 2.0], [4.0, 2.0]])
    >>> moments(X, np.array([1.0, 3.0]))
    (array([3., 2.]), array([3., 0.]))
    >>> moments(sparse.csr_array(X), np.array([1.0, 3.0]))
    (array([3., 2.]), array([3., 0.]))
    """
    total, columns = weight.sum(), X.shape[1]
    if isinstance(X, np.ndarray):
        mean = weight @ X / total
        return mean, weight @ np.square(X - mean) / total
    entries = X.tocoo()
    column, w, x = entries.col, weight[entries.row], entries.data.astype(np.float64)
    mean = np.bincount(column, w * x, columns) / total
    absent = total - np.bincount(column, w, columns)
    spread = np.bincount(column, w * np.square(x - mean[column]), columns) + absent * np.square(mean)
    return mean, spread / total


@dataclass(frozen=True)
class Standard:
    """Brings each column to mean 0 and deviation 1; constant columns are only centered.

    >>> X = np.array([[1.0, 5.0], [3.0, 5.0]])
    >>> Standard.of(X, np.ones(2)).batch(X, [1])
    array([[1., 0.]])
    """

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, X: Any, weight: np.ndarray) -> Standard:
        """What the samples of `X` (n, d), counted by `weight` (n,), need."""
        mean, variance = moments(X, weight)
        scale = np.sqrt(np.maximum(variance, 0.0))
        return cls(mean, np.where(scale > CONSTANT * np.abs(mean), scale, 1.0))

    @classmethod
    def nothing(cls, columns: int) -> Standard:
        """Leaves everything as it is."""
        return cls(np.zeros(columns), np.ones(columns))

    def batch(self, X: Any, rows: Any) -> np.ndarray:
        """(B, d) these rows, dense and standardized; only they are made dense, whatever the size of `X`."""
        x = X[rows]
        return ((x if isinstance(x, np.ndarray) else x.toarray()) - self.mean) / self.scale
