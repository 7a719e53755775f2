"""What the evidence of a run says, once planted labels have shown what wrong ones look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compensate.auditing.calibration import Calibrated, Known, calibrate, interval
from compensate.auditing.planting import Plants

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LIKE_OTHERS = (0.1, 3.0)
"""A planted label counts at least and at most so much, by how common its pair of classes is among the suspects."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """For each label the log odds that it is wrong, and the share of wrong labels with its 90 % interval."""

    log_odds: Floats
    p_error: Floats
    rate: float
    low: float
    high: float
    calibrated: Calibrated


def own_scores(score: Floats, other: list[Floats], given: Ints, plants: Plants, trust: Floats) -> Floats:
    r"""(N,) the scores, those of planted rows replaced by what is known of their own labels.

    .. math:: s_i \approx \beta_0 + \beta^\top e_i

    where :math:`e_i` is evidence from the parts of the run in which the row had its own label. The model may remember
    the planted label all the same, so only the order of these estimates is used: planted rows are a sample of all rows,
    drawn by trust, and so are their scores.

    Args:
        score: (N,) of the labels that the run was trained with.
        other: evidence (N,) each, of the parts of the run with the rows' own labels.
        given: (N,) the own labels.
        plants: the planted rows.
        trust: (N,) in proportion to which rows were drawn for planting.
    """
    rows = plants.rows
    left = np.ones(len(score), bool)
    left[rows] = False
    design = np.stack([np.ones(len(score)), *other], axis=1)
    beta = np.linalg.lstsq(design[left], score[left], rcond=None)[0]
    usual = np.full(int(given.max()) + 1, np.median(score[left]))
    for c in np.unique(given[left]):
        usual[c] = np.median(score[left & (given == c)])
    guess = design[rows] @ beta - usual[given[rows]]
    rank = (np.argsort(np.argsort(guess, kind="stable"), kind="stable") + 0.5) / max(len(rows), 1)
    around = score[left] - usual[given[left]]
    order = np.argsort(around, kind="stable")
    mass = np.cumsum(np.maximum(trust[left][order], 1e-9))
    own = score.copy()
    own[rows] = usual[given[rows]] + np.interp(rank, mass / mass[-1], around[order])
    return own


def judge(
    score: Floats, own: Floats, given: Ints, suggested: Ints, plants: Plants, num_classes: int, *, seed: int = 0
) -> Verdict:
    """Probabilities of error for all rows.

    Planted labels are weighed so that they stand for the errors of the data: less where the row's own label seems wrong
    already, and by how many suspects are of the same pair of classes. Both follow from the probabilities themselves, so
    it takes a few rounds.

    Args:
        score: (N,) how suspect each label is that the run was trained with.
        own: (N,) the same of the rows' own labels; it differs for planted rows only.
        given: (N,) own labels.
        suggested: (N,) the likeliest class other than the given one.
        plants: the planted labels.
        num_classes: C.
        seed: of the interval.
    """
    rows = plants.rows
    left = np.ones(len(score), bool)
    left[rows] = False
    # Quantities are wrong in one way only.
    pair_of = _pairs if num_classes > 1 else _no_pairs
    planted_pair, pair = pair_of(plants.labels, given[rows], num_classes), pair_of(given, suggested, num_classes)
    sown = _shares(planted_pair, np.ones(len(rows)))
    p = (score > 0).astype(np.float64) if num_classes > 1 else (score > np.quantile(score, 0.9)).astype(np.float64)
    doubt = np.zeros(len(rows))
    for _ in range(4):
        found = _shares(pair[left], p[left])
        total = float(p[left].sum())
        likeness = np.array(
            [(found.get(k, 0.0) * total + 0.5 * sown[k]) / (total + 0.5) / sown[k] for k in planted_pair]
        )
        weight = np.maximum((1 - doubt) * np.clip(likeness, *LIKE_OTHERS), 1e-3)
        known = Known(score[left], given[left], score[rows], plants.labels, weight)
        calibrated = calibrate(known, num_classes)
        p = calibrated(own, given)
        doubt = p[rows]
    low, high = interval(known, num_classes, seed=seed)
    rate = float(p.mean())
    return Verdict(calibrated.log_odds(own, given), p, rate, min(low, rate), max(high, rate), calibrated)


def _pairs(given: Ints, other: Ints, num_classes: int) -> NDArray[np.int64]:
    return given.astype(np.int64) * num_classes + other


def _no_pairs(given: Ints, other: Ints, num_classes: int) -> NDArray[np.int64]:
    return np.zeros(len(given), dtype=np.int64)


def _shares(keys: NDArray[np.int64], weight: Floats) -> dict[Any, float]:
    found, place = np.unique(keys, return_inverse=True)
    total = np.bincount(place, weight)
    return dict(zip(found.tolist(), (total / max(total.sum(), 1e-12)).tolist(), strict=True))
