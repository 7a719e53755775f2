"""Robust scale and quantiles that treat a weight of two as the sample given twice."""

from __future__ import annotations

import numpy as np


def weighted_quantile(values: np.ndarray, q: float, weights: np.ndarray | None = None) -> float:
    """The smallest value with at least a share `q` of the weight at or below it.

    A weight of 2 counts as two samples and a weight of 0 as none, exactly, whatever the order.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), 0.5)
    2.0
    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), 0.5, np.array([4.0, 1.0, 1.0]))
    3.0
    """
    if weights is None:
        # An index that rounding cannot push up by one when q * n is whole.
        rank = max(int(np.ceil(q * len(values) * (1 - 1e-12))) - 1, 0)
        return float(np.partition(values, rank)[rank])
    order = np.argsort(values, kind="stable")
    order = order[weights[order] > 0]
    mass = np.cumsum(weights[order])
    rank = int(np.searchsorted(mass, q * mass[-1] * (1 - 1e-12)))
    return float(values[order[min(rank, len(order) - 1)]])


def mad(residuals: np.ndarray, weights: np.ndarray | None = None) -> float:
    r"""Standard deviation of the bulk of the residuals: the median of :math:`|r_i|` over 0.6745.

    The constant makes it the standard deviation for normal residuals. Residuals are taken about zero, since a
    regression has removed the center already. Should more than half of them vanish, the mean of :math:`|r_i|`,
    scaled likewise, stands in.

    >>> round(mad(np.array([-0.6745, 0.6745, 0.6745, 0.1, 1e6])), 3)
    1.0
    """
    size = np.abs(residuals)
    middle = weighted_quantile(size, 0.5, weights)
    return middle / 0.6744897501960817 if middle > 0 else float(np.average(size, weights=weights)) / 0.7978845608028654
