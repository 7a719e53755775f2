"""What the evidence of a run says, once planted labels have shown what wrong ones look like."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from compensate.auditing.calibration import USUAL_RATE, Calibrated, Known, calibrate, shifts
from compensate.auditing.planting import Plants, likely_pairs

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LIKE_OTHERS = (0.02, 10.0)
"""A planted label counts at least and at most so much, by how likely its pair of classes is among the suspects."""

LEAST_TRUST = 0.2
"""A row that was drawn for planting although it is trusted less than this counts no more than one that is trusted so much."""

ROUNDS = 4


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
    score: Floats, own: Floats, given: Ints, suggested: Ints, plants: Plants, trust: Floats, num_classes: int
) -> Verdict:
    """Probabilities of error for all rows.

    Planted labels are weighed so that they stand for the errors of the data: rows that were unlikely to be planted on
    count for more, and a pair of classes counts by `likely_pairs` of the suspects. That follows from the probabilities
    themselves, so it takes a few rounds.

    Args:
        score: (N,) how suspect each label is that the run was trained with.
        own: (N,) the same of the rows' own labels; it differs for planted rows only.
        given: (N,) own labels.
        suggested: (N,) the likeliest class other than the given one.
        plants: the planted labels.
        trust: (N,) in proportion to which rows were drawn for planting.
        num_classes: C.
    """
    rows = plants.rows
    left = np.ones(len(score), bool)
    left[rows] = False
    # Of two classes, a label planted on a wrong one is right; of many, it is hardly ever. Quantities have no such luck.
    restored = 1 / (num_classes - 1) if num_classes > 1 else 0.0
    many = num_classes > 2
    pair = _pairs(given, suggested, num_classes)
    planted_pair = _pairs(plants.labels, given[rows], num_classes)
    doubtful = np.maximum(trust, LEAST_TRUST)
    alike = 1 / doubtful[rows]
    sown = (np.bincount(planted_pair, alike) / max(alike.sum(), 1e-12))[planted_pair]
    likeness, p = np.ones(len(rows)), np.full(len(score), USUAL_RATE)
    for _ in range(ROUNDS if num_classes > 1 else 1):
        weight = alike * likeness
        weight *= len(rows) / max(weight.sum(), 1e-12)
        fell = restored * _by_class(p, trust / doubtful * left, given)[given[rows]]
        known = Known(score[left], given[left], score[rows], plants.labels, weight, fell)
        calibrated = calibrate(known, num_classes)
        log_odds = calibrated.log_odds(own, given)
        if many:
            shift = shifts(log_odds[left], given[left], pair[left])
            log_odds = log_odds + np.array([shift.get(k, 0.0) for k in pair.tolist()])
        p = expit(log_odds)
        if many:
            found = np.zeros((num_classes, num_classes))
            np.add.at(found, (given[left], suggested[left]), p[left])
            wanted = likely_pairs(found, np.bincount(given[left], minlength=num_classes))
            likeness = (wanted.ravel()[planted_pair] / max(wanted.sum(), 1e-12) / sown).clip(*LIKE_OTHERS)
    rate = float(p.mean())
    return Verdict(log_odds, p, rate, min(calibrated.low, rate), max(calibrated.high, rate), calibrated)


def _by_class(p: Floats, weight: Floats, given: Ints) -> Floats:
    """(C,) the weighted mean of p in each class."""
    return np.bincount(given, p * weight) / np.maximum(np.bincount(given, weight), 1e-12)


def _pairs(given: Ints, other: Ints, num_classes: int) -> NDArray[np.int64]:
    return given.astype(np.int64) * num_classes + other
