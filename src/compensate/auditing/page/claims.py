r"""Which differences between counts are more than chance, so that the page may speak of them.

Two shares are compared by Fisher's exact test: given that :math:`k_1 + k_2` of :math:`n_1 + n_2` rows are flagged, the number of
them among the first :math:`n_1` is hypergeometric if nothing differs. Where the largest of many shares is picked, the level is
divided by their number. (Newcombe's interval for the difference, at 5 % divided in the same way, set a class apart in 9 % of simulated data
sets with 10 equal classes of 200 rows, in 22 % with 100 of 60 rows and in 60 % with 300 of 30 rows.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compensate.auditing.arrays import Ints
from compensate.auditing.page.model import ClassCount, Estimate

LEVEL = 0.05
"""The probability of a claim where nothing differs."""


def exceeds(count: Ints, of: Ints, other: Ints, of_other: Ints, level: float = LEVEL) -> NDArray[np.bool_]:
    """Whether each first share is larger than the second by more than chance.

    >>> exceeds(np.array([12, 120]), np.array([100, 1000]), np.array([6, 60]), np.array([100, 1000]))
    array([False,  True])
    """
    from scipy.stats import hypergeom  # takes as long to import as the rest of the command line

    return np.asarray(hypergeom.sf(count - 1, of + of_other, count + other, of) < level)


@dataclass(frozen=True)
class Unreliable:
    """What may be said of classes.

    Attributes:
        classes: those flagged more often than all others together by more than chance, largest share first.
        worst: whether the first of them exceeds each single other class too.
        wrong: whether they hold more errors too, not only more flags.
    """

    classes: tuple[str, ...] = ()
    worst: bool = False
    wrong: bool = False


def unreliable(counts: Sequence[ClassCount], rate: Estimate) -> Unreliable:
    """Which classes stand out.

    Flags alone may differ because one class is harder to predict. A class holds more errors if the share that is expected of it
    stays above that of the others though the share of the whole data lay at the low end of its interval for the one, and
    at the high end for the others: an open interval allows no such claim.
    """
    counts = sorted((c for c in counts if c.rows), key=lambda c: -c.flagged / c.rows)
    if len(counts) < 2:
        return Unreliable()
    level = LEVEL / len(counts)
    flagged, rows = np.array([c.flagged for c in counts]), np.array([c.rows for c in counts])
    more = exceeds(flagged, rows, flagged.sum() - flagged, rows.sum() - rows, level)
    if not more.any():
        return Unreliable()
    found = [c for c, stands_out in zip(counts, more, strict=True) if stands_out]
    first, others = int(more.argmax()), np.arange(len(counts)) != more.argmax()
    worst = bool(exceeds(flagged[first], rows[first], flagged[others], rows[others], level).all())
    wrong = _expected(found) * rate.low > _expected([c for c in counts if c not in found]) * rate.high
    return Unreliable(tuple(c.label for c in found), worst, wrong)


def _expected(counts: Sequence[ClassCount]) -> float:
    """The share of wrong labels that is expected in these classes."""
    wrong = sum(c.flagged if c.wrong is None else c.wrong for c in counts)
    return wrong / max(sum(c.rows for c in counts), 1)


def lopsided(count: int, other: int) -> bool:
    """Whether one of two directions is more frequent than the other by more than chance.

    >>> lopsided(12, 8), lopsided(120, 80)
    (False, True)
    """
    from scipy.stats import binomtest

    return count + other > 0 and float(binomtest(count, count + other).pvalue) < LEVEL
