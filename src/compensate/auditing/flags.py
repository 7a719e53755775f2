"""Which labels to flag: the list that is expected to serve a reviewer best."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MISSED = 3.0
"""A wrong label that is missed counts as so many right ones that are looked at for nothing: a look takes seconds, and a
missed error stays in the data."""

LEAST = 0.1
"""What is right nine times in ten is never flagged."""


def flag_from(p_error: NDArray[np.float64], missed: float = MISSED) -> float:
    r"""The probability from which on labels are flagged: it makes the expected F measure largest.

    .. math:: F = \frac{(1 + \beta^2)\, T}{(1 + \beta^2)\, T + \beta^2 M + N}
                = \frac{(1 + \beta^2) \sum_{i \in \text{flagged}} p_i}{\#\text{flagged} + \beta^2 \sum_i p_i}

    where :math:`T` errors are flagged, :math:`M` are missed, :math:`N` right labels are flagged, each by its expectation,
    and :math:`\beta^2` is what a missed error counts. At the optimum the threshold is :math:`F / (1 + \beta^2)`: where
    errors stand out it is about a quarter, and where they do not it is lower, for a list of sure ones alone would
    leave most errors in.

    Args:
        p_error: (N,) probabilities of error.
        missed: :math:`\beta^2`.

    >>> flag_from(np.array([0.9, 0.8, 0.3, 0.1, 0.0]))
    0.3

    Reference: Lipton, Elkan and Naryanaswamy, Optimal Thresholding of Classifiers to Maximize F1 Measure, 2014.
    """
    p = np.sort(p_error)[::-1]
    if not len(p) or p[0] < LEAST:
        return LEAST
    measure = np.cumsum(p) / (np.arange(1, len(p) + 1) + missed * p.sum())
    return max(float(p[int(measure.argmax())]), LEAST)
