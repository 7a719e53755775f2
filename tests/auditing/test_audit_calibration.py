"""Planting and calibration, against mixtures whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from compensate.auditing.calibration import Known, calibrate, class_shift, curve, interval, noise_rate
from compensate.auditing.planting import Plants, amount, confident_joint, plant
from compensate.auditing.verdict import judge, own_scores


def mixture(rate: float, apart: float = 6.0, size: int = 4000, planted: int = 250, seed: int = 0):
    """Scores of labels, a share of which is wrong, and of planted ones: two normal distributions."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(size) < rate
    score = rng.normal(np.where(wrong, apart / 2, -apart / 2), 1.0)
    return score, wrong, rng.normal(apart / 2, 1.0, planted)


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.3])
def test_the_noise_rate_of_a_separated_mixture_comes_out(rate):
    score, wrong, planted = mixture(rate)
    assert noise_rate(score, planted, np.ones(len(planted))) == pytest.approx(wrong.mean(), rel=0.25)


def test_without_wrong_labels_the_rate_is_nearly_zero():
    score, _, planted = mixture(0.0)
    assert noise_rate(score, planted, np.ones(len(planted))) < 0.005


def test_weightless_plants_do_not_count():
    score, _, planted = mixture(0.1)
    far = np.concatenate([planted, np.full(200, 50.0)])
    weight = np.concatenate([np.ones(len(planted)), np.full(200, 1e-9)])
    assert noise_rate(score, far, weight) == pytest.approx(noise_rate(score, planted, np.ones(len(planted))), rel=0.02)


def test_the_curve_matches_its_moments():
    """At the minimum the mean of p is the rate, and the p-weighted mean score is that of the plants."""
    score, _, planted = mixture(0.15, apart=2.0)
    offset, slope = curve(score, planted, np.ones(len(planted)), 0.15)
    p = expit(offset + slope * score)
    assert p.mean() == pytest.approx(0.15, rel=1e-2)
    assert (p * score).sum() / p.sum() == pytest.approx(planted.mean(), rel=2e-2)


@pytest.mark.parametrize("apart", [2.5, 4.0])
def test_probabilities_are_near_the_posterior(apart):
    """Normal distributions with equal spread have a logistic posterior with slope `apart`."""
    score, wrong, planted = mixture(0.2, apart=apart, size=8000, planted=600)
    known = Known(score, np.zeros(len(score), int), planted, np.zeros(len(planted), int), np.ones(len(planted)))
    p = calibrate(known, 1)(score, known.given)
    truth = expit(apart * score + np.log(0.2 / 0.8))
    assert np.abs(p - truth).mean() < 0.05
    which = np.minimum((p * 10).astype(int), 9)
    error = sum(abs(p[which == k].sum() - wrong[which == k].sum()) for k in range(10)) / len(p)
    assert error < 0.05


def test_each_class_gets_its_own_rate():
    """Errors sit in one class only; the other class must not be blamed for them."""
    rng = np.random.default_rng(0)
    given = rng.integers(2, size=6000)
    wrong = (rng.random(6000) < 0.2) & (given == 0)
    score = rng.normal(np.where(wrong, 2.0, -2.0), 1.0)
    shift = class_shift(4 * score + np.log(0.1 / 0.9), given, 0.1, 2)
    assert shift[0] > 0.3
    assert shift[1] < -1


def test_the_interval_holds_the_rate():
    score, wrong, planted = mixture(0.1, apart=4.0)
    known = Known(score, np.zeros(len(score), int), planted, np.zeros(len(planted), int), np.ones(len(planted)))
    low, high = interval(known, 1, repeats=20)
    assert low < wrong.mean() < high
    assert high - low < 0.06


def test_plants_follow_the_confusion_and_trust():
    given = np.repeat(np.arange(4), 500)
    joint = np.full((4, 4), 0.0)
    np.fill_diagonal(joint, 400)
    joint[1, 0] = joint[2, 1] = joint[3, 2] = joint[0, 3] = 100  # class t is written as t + 1
    trust = np.ones(2000)
    trust[::2] = 1e-6
    plants = plant(given, joint, trust, seed=3)
    source = given[plants.rows]
    assert len(np.unique(plants.rows)) == len(plants.rows) == amount(2000)
    assert (plants.labels != source).all()
    assert ((source + 1) % 4 == plants.labels).mean() > 0.85
    assert (plants.rows % 2 == 1).mean() > 0.95
    assert np.bincount(plants.labels).min() > 0.8 * len(plants.rows) / 4


def test_rows_without_a_label_are_never_planted():
    given = np.repeat([0, 1, -1], 200)
    plants = plant(given, np.array([[150.0, 50], [50, 150]]), seed=0)
    assert (plants.rows < 400).all()
    assert (plants.sow(given)[400:] == -1).all()


def test_a_large_class_does_not_swallow_a_small_one():
    """The confident joint by its definition, sample by sample."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet([5.0, 1.0, 0.5], size=300)
    given = rng.integers(3, size=300)
    threshold = [p[given == k, k].mean() for k in range(3)]
    joint = np.zeros((3, 3))
    for row, y in zip(p, given, strict=True):
        believed = [k for k in range(3) if row[k] >= threshold[k]]
        if believed:
            joint[y, max(believed, key=lambda k: row[k])] += 1
    np.testing.assert_array_equal(confident_joint(p, given), joint)


def test_planted_rows_are_scored_by_their_own_labels():
    rng = np.random.default_rng(1)
    true = rng.normal(size=1000)
    rows = np.arange(0, 1000, 10)
    score = true + 0.0
    score[rows] += 8  # what the planted labels look like
    plants = Plants(rows, np.ones(len(rows), int))
    own = own_scores(score, [true + rng.normal(size=1000) * 0.1], np.zeros(1000, int), plants, np.ones(1000))
    np.testing.assert_array_equal(np.delete(own, rows), np.delete(score, rows))
    assert np.corrcoef(own[rows], true[rows])[0, 1] > 0.9
    assert abs(own[rows].mean() - true.mean()) < 0.2


def test_a_plant_on_a_wrong_label_loses_its_weight():
    """With two classes, planting on a wrong label makes it right: it must not teach what wrong labels look like."""
    rng = np.random.default_rng(2)
    size = 6000
    wrong = rng.random(size) < 0.2
    given = rng.integers(2, size=size)
    rows = rng.choice(size, 300, replace=False)
    label_is_wrong = wrong.copy()
    label_is_wrong[rows] = ~wrong[rows]
    score = rng.normal(np.where(label_is_wrong, 3.0, -3.0), 1.0)
    own = rng.normal(np.where(wrong, 3.0, -3.0), 1.0)
    own[~np.isin(np.arange(size), rows)] = score[~np.isin(np.arange(size), rows)]
    found = judge(score, own, given, 1 - given, Plants(rows, 1 - given[rows]), 2)
    assert found.rate == pytest.approx(0.2, abs=0.03)
    assert wrong[found.p_error > 0.5].mean() > 0.95
