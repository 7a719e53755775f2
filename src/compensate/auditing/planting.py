r"""Wrong labels planted on purpose, so that a run shows what a wrong label looks like in it.

Plants follow the errors that the data seems to have: a first look at the data estimates how often class :math:`t` is
written as class :math:`j`, and a planted label is drawn accordingly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compensate.data.seeding import generator

LARGEST, FEWEST, ENOUGH = 0.05, 100, 150
"""A twentieth of the labels, at least so many, at most so many and a fiftieth: more would teach the model more errors and
the audit little."""

BOTH_WAYS = 0.15
"""What goes from one class to another as often as back is mostly the model's own confusion; so much of it counts."""

EVEN = 0.5
"""Share of it that is spread over all pairs of classes alike: wrong labels need not be between classes that look alike."""


def amount(size: int) -> int:
    """How many labels to plant among so many.

    >>> [amount(size) for size in (100, 1258, 10_000, 1_000_000)]
    [10, 100, 350, 20150]
    """
    return round(min(0.1 * size, max(FEWEST, min(LARGEST * size, ENOUGH + 0.02 * size))))


@dataclass(frozen=True, eq=False)
class Plants:
    """Rows whose labels were changed for a while.

    Attributes:
        rows: (K,) positions in the data.
        labels: (K,) the planted labels, other than the given ones.
    """

    rows: NDArray[np.int64]
    labels: NDArray[np.int64]

    def sow(self, given: NDArray[np.int64]) -> NDArray[np.int64]:
        """The labels with the planted ones in place."""
        sown = given.copy()
        sown[self.rows] = self.labels
        return sown


def confident_joint(probabilities: NDArray[np.floating], given: NDArray[np.int64]) -> NDArray[np.float64]:
    r"""(C, C) how many samples given as class j look like class t.

    .. math:: Q_{jt} = \#\{ i : y_i = j,\; t = \arg\max_{k:\, p_{ik} \ge \theta_k} p_{ik} \}, \qquad
              \theta_k = \operatorname{mean}_{i: y_i = k} p_{ik}

    A class is believed where it gets at least the probability it usually gets in its own samples, so that large
    classes, whose probabilities are larger everywhere, do not swallow small ones.

    Args:
        probabilities: (N, C).
        given: (N,) class numbers, none missing.

    >>> p = np.array([[0.9, 0.1], [0.1, 0.9], [0.1, 0.9], [0.1, 0.9]])
    >>> confident_joint(p, np.array([0, 0, 1, 1]))
    array([[1., 1.],
           [0., 2.]])

    Reference: Northcutt, Jiang and Chuang, Confident Learning, 2021, Eq. (1).
    """
    classes = probabilities.shape[1]
    counts = np.bincount(given, minlength=classes)
    own = np.bincount(given, probabilities[np.arange(len(given)), given], minlength=classes)
    # A class without samples is never believed.
    threshold = np.where(counts > 0, own / np.maximum(counts, 1), np.inf)
    believed = np.where(probabilities >= threshold - 1e-9, probabilities, -np.inf)
    true = believed.argmax(1)
    sure = np.isfinite(believed.max(1))
    joint = np.zeros((classes, classes))
    np.add.at(joint, (given[sure], true[sure]), 1)
    return joint


def likely_pairs(joint: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    r"""(C, C) in proportion to how often class t seems to be written as class j by mistake.

    .. math:: e_{jt} = \max\bigl(0,\; Q_{jt} - Q_{tj} - 2 \sqrt{Q_{jt} + Q_{tj}}\bigr)

    A model that confuses two classes does so both ways; where labels go one way, more often than by chance, they are wrong.
    Of what goes both ways, a little is added: `BOTH_WAYS` and `EVEN`.

    Args:
        joint: (C, C) :math:`Q_{jt}`, how many samples given as class j look like class t.
        counts: (C,) samples of each class; one without any is never confused with another.

    >>> likely_pairs(np.array([[50, 40, 5], [3, 50, 5], [5, 5, 50]]), np.array([95, 58, 60])).round(1)
    array([[ 0. , 24.4,  0.7],
           [ 0.5,  0. ,  0.7],
           [ 0.8,  0.8,  0. ]])
    """
    classes = len(joint)
    others = (1 - np.eye(classes)) * (counts > 0)
    q = joint * others
    excess = np.maximum(q - q.T - 2 * np.sqrt(q + q.T), 0)
    both = np.minimum(q, q.T)
    total = both.sum(1, keepdims=True) + 0.5
    even = others / np.maximum(others.sum(1, keepdims=True), 1)
    return (excess + BOTH_WAYS * ((1 - EVEN) * both + EVEN * total * even)) * others


def plant(
    given: NDArray[np.int64], joint: NDArray[np.float64], trust: NDArray[np.floating] | None = None, *, seed: int = 0
) -> Plants:
    """Draws the rows and labels to plant: as large a share of each class, from the classes it seems to be mistaken for.

    Args:
        given: (N,) class numbers; -1 where there is none, which are left alone.
        joint: (C, C) how many samples given as class j look like class t.
        trust: (N,) positive, how likely a row is to be drawn: a label that is wrong already is no place to plant on.
        seed: of the draw.

    >>> plants = plant(np.repeat([0, 1, 2], 200), np.array([[200, 9, 0], [0, 200, 9], [9, 0, 200]]), seed=0)
    >>> len(plants.rows), bool((np.repeat([0, 1, 2], 200)[plants.rows] != plants.labels).all())
    (60, True)
    """
    rng = generator(seed, "plants")
    classes = len(joint)
    counts = np.bincount(given[given >= 0], minlength=classes)
    share = amount(int(counts.sum())) / max(counts.sum(), 1)
    pairs = likely_pairs(joint, counts)
    # A draw without replacement in proportion to trust: the largest of log trust plus Gumbel noise come first.
    luck = rng.gumbel(size=len(given)) + (0 if trust is None else np.log(np.maximum(trust, 1e-9)))
    order = np.argsort(luck, kind="stable")
    pools = {c: order[given[order] == c].tolist() for c in np.flatnonzero(counts).tolist()}
    # Never more than a fifth of a class leaves it: the class itself must stay learnable.
    leave = (0.2 * counts).astype(int)
    rows: list[int] = []
    labels: list[int] = []
    carry = rng.random()
    for c in rng.permutation(np.flatnonzero(counts)).tolist():
        carry += share * counts[c]
        wanted, carry = int(carry), carry % 1
        if not pairs[c].sum():
            continue
        for source in rng.choice(classes, size=wanted, p=pairs[c] / pairs[c].sum()).tolist():
            if leave[source] > 0:
                leave[source] -= 1
                rows.append(pools[source].pop())
                labels.append(c)
    return Plants(np.array(rows, dtype=np.int64), np.array(labels, dtype=np.int64))
