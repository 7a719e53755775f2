"""Skewed classes made on purpose, from a balanced data set."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compensate.data.dataset import Data
from compensate.data.seeding import generator
from compensate.errors import InputError


def class_sizes(num_classes: int, largest: int, ratio: float, kind: str = "exponential") -> NDArray[np.int64]:
    r"""How many samples each class keeps.

    .. math:: n_c = n_0\, r^{-c / (C - 1)} \quad\text{(exponential)}, \qquad
              n_c = n_0 \text{ for } c < C / 2, \text{ else } n_0 / r \quad\text{(step)}

    where :math:`n_0` is the size of the first and largest class, :math:`r \ge 1` the ratio of the largest to the
    smallest, and :math:`C` the number of classes; rounded down, and never below one.

    >>> class_sizes(3, 100, 100)
    array([100,  10,   1])
    >>> class_sizes(4, 100, 10, "step")
    array([100, 100,  10,  10])

    Reference: Cui et al., Class-Balanced Loss, 2019; Buda et al., A Systematic Study of the Class Imbalance Problem, 2018.
    """
    if ratio < 1:
        raise InputError(f"the imbalance ratio is {ratio}; it is the largest class over the smallest, at least 1.")
    if kind not in ("exponential", "step"):
        raise InputError(f'the imbalance is "{kind}"; choose exponential or step.')
    c = np.arange(num_classes)
    if kind == "exponential":
        sizes = largest * ratio ** (-c / max(num_classes - 1, 1))
    else:
        sizes = np.where(c < num_classes / 2, largest, largest / ratio)
    # A hair is added before rounding down: 100 * 100 ** -0.5 must be 10, not 9.
    return np.maximum(np.floor(sizes + 1e-9), 1).astype(np.int64)


def long_tailed(data: Data, ratio: float, kind: str = "exponential", *, seed: int = 0) -> Data:
    """A random part of the data whose classes shrink in their order by `class_sizes`; rows keep the source's order.

    The largest class is as large as the data's smallest class allows: every class then has enough samples to give.

    >>> from compensate.data import digits
    >>> long_tailed(digits(), 10, "step").class_counts
    array([174, 174, 174, 174, 174,  17,  17,  17,  17,  17])
    """
    if data.regression:
        raise InputError("long-tailed subsampling needs classes, and this data set's target is a quantity.")
    counts = data.class_counts
    if (counts == 0).any():
        lost = [data.classes[c] for c in np.flatnonzero(counts == 0)]
        raise InputError(
            f"the classes {', '.join(lost)} have no samples; remove them from the data set's classes first."
        )
    sizes = class_sizes(data.num_classes, int(counts.min()), ratio, kind)
    order = generator(seed, "imbalance").permutation(len(data))
    kept = [order[data.target[order] == c][:size] for c, size in enumerate(sizes)]
    return data.subset(np.sort(np.concatenate(kept)))
