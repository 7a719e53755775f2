"""Planting and calibration, against mixtures whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from compensate.auditing.calibration import RATES, SLOPES, Known, Sums, calibrate, likely, posteriors, shifts
from compensate.auditing.flags import LEAST, flag_from
from compensate.auditing.planting import Plants, amount, confident_joint, likely_pairs, plant
from compensate.auditing.verdict import judge, own_scores
from scipy.special import expit


def mixture(rate: float, apart: float = 6.0, size: int = 4000, planted: int = 250, seed: int = 0):
    """Scores of labels, a share of which is wrong, and of planted ones: two normal distributions."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(size) < rate
    score = rng.normal(np.where(wrong, apart / 2, -apart / 2), 1.0)
    return score, wrong, rng.normal(apart / 2, 1.0, planted)


def one_class(score, planted, weight=None, fell=0.0) -> Known:
    weight = np.ones(len(planted)) if weight is None else weight
    return Known(
        score, np.zeros(len(score), int), planted, np.zeros(len(planted), int), weight, np.full(len(planted), fell)
    )


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.3])
def test_the_noise_rate_of_a_separated_mixture_comes_out(rate):
    score, wrong, planted = mixture(rate)
    found = calibrate(one_class(score, planted), 1)
    assert found.rate == pytest.approx(wrong.mean(), rel=0.12)
    assert found.low < wrong.mean() < found.high
    assert found.high / found.low < 2.5


def test_without_wrong_labels_the_rate_is_nearly_zero():
    score, _, planted = mixture(0.0)
    assert calibrate(one_class(score, planted), 1).rate < 0.005


def test_weightless_plants_do_not_count():
    score, _, planted = mixture(0.1)
    far = np.concatenate([planted, np.full(200, -3.0)])
    weight = np.concatenate([np.ones(len(planted)), np.full(200, 1e-9)])
    expected = calibrate(one_class(score, planted), 1).rate
    assert calibrate(one_class(score, far, weight), 1).rate == pytest.approx(expected, rel=0.02)


def test_plants_that_fell_on_wrong_labels_are_accounted_for():
    """A fifth of the plants look right, because they are; told so, the rate stays, untold it goes astray."""
    score, wrong, planted = mixture(0.2, apart=4.0)
    planted[::5] -= 4.0
    told = calibrate(one_class(score, planted, fell=0.2), 1).rate
    assert told == pytest.approx(wrong.mean(), rel=0.15)
    assert abs(calibrate(one_class(score, planted), 1).rate - wrong.mean()) > abs(told - wrong.mean())


def test_the_likelihood_is_that_of_who_was_planted():
    """By a plain sum over all labels, for one rate and slope, with the offset that gives the rate found by a solver."""
    from scipy.optimize import brentq

    score, _, planted = mixture(0.15, apart=2.0, size=200, planted=30)
    rng = np.random.default_rng(1)
    weight, fell = rng.uniform(0.5, 1.5, 30), np.full(30, 0.1)
    others = Sums.of(score, points=200)
    fit = likely(others, planted, weight, fell)
    i, j = 30, 8
    rate, slope = RATES[i], SLOPES[j]
    a = brentq(lambda a: expit(a + slope * score).mean() - rate, -100, 100)
    assert others.offset(RATES[i], SLOPES[j]) == pytest.approx(a, abs=1e-6)

    def chance(s: float) -> float:
        p = expit(a + slope * s)
        odds = weight.sum() / len(score) * (0.9 * p / rate + 0.1 * (1 - p) / (1 - rate))
        return odds / (1 + odds)

    expected = sum(w * np.log(chance(s)) for w, s in zip(weight, planted, strict=True))
    expected += sum(np.log(1 - chance(s)) for s in score)
    assert fit[i, j] == pytest.approx(expected, rel=1e-6)


def test_errors_on_hard_samples_stand_out_less_than_planted_labels(monkeypatch):
    """The slope of the log odds is a part of that of planted labels, and the mean probability stays the rate."""
    from compensate.auditing import calibration as c

    score, _, planted = mixture(0.2, apart=3.0, size=4000, planted=2000)
    slopes = {}
    for part in (1.0, c.HARDER):
        monkeypatch.setattr(c, "HARDER", part)
        found = calibrate(one_class(score, planted), 1)
        assert found(score, np.zeros(len(score), int)).mean() == pytest.approx(found.rate, rel=0.02)
        inner = np.abs(found.values[0]) < 2
        slopes[part] = np.polyfit(found.knots[inner], found.values[0][inner], 1)[0]
    assert slopes[c.HARDER] / slopes[1.0] == pytest.approx(c.HARDER, rel=0.03)


def test_posteriors_by_enumeration(monkeypatch):
    """Two classes on a small grid: every rate of all, slope, scatter and pair of class rates, one by one."""
    from compensate.auditing import calibration as c

    monkeypatch.setattr(c, "RATES", np.array([0.02, 0.1, 0.3]))
    monkeypatch.setattr(c, "SLOPES", np.array([1.0, 3.0]))
    fit = np.random.default_rng(0).normal(size=(2, 3, 2)) * 2
    x = np.log(c.RATES)
    all_rates, groups = np.zeros(3), np.zeros((2, 3, 2))
    for tau, chance in c.CLASS_SPREADS.items():
        near = np.exp(-(((x[:, None] - x) / tau) ** 2) / 2)
        near /= near.sum(1, keepdims=True)
        for r in range(3):
            for b in range(2):
                prior = chance * np.exp(-(((x[r] - np.log(c.USUAL_RATE)) / c.RATE_SPREAD) ** 2) / 2)
                prior *= np.exp(-(((np.log(c.SLOPES[b]) - c.SLOPE) / c.SLOPE_SPREAD) ** 2) / 2)
                for r0 in range(3):
                    for r1 in range(3):
                        w = prior * near[r, r0] * near[r, r1] * np.exp(fit[0, r0, b] + fit[1, r1, b])
                        all_rates[r] += w
                        groups[0, r0, b] += w
                        groups[1, r1, b] += w
    found_all, found_groups = posteriors(fit)
    np.testing.assert_allclose(found_all, all_rates / all_rates.sum(), rtol=1e-9)
    np.testing.assert_allclose(found_groups, groups / groups.sum((1, 2), keepdims=True), rtol=1e-9)


@pytest.mark.parametrize("apart", [2.5, 4.0])
def test_probabilities_are_near_the_posterior(apart):
    """Normal distributions with equal spread have a logistic posterior with slope `apart`."""
    score, wrong, planted = mixture(0.2, apart=apart, size=8000, planted=600)
    p = calibrate(one_class(score, planted), 1)(score, np.zeros(len(score), int))
    truth = expit(apart * score + np.log(0.2 / 0.8))
    assert np.abs(p - truth).mean() < 0.04
    assert calibration_error(p, wrong) < 0.04


def calibration_error(p, wrong) -> float:
    which = np.minimum((p * 10).astype(int), 9)
    return sum(abs(p[which == k].sum() - wrong[which == k].sum()) for k in range(10)) / len(p)


def test_a_weak_model_does_not_claim_to_be_sure():
    """Right and wrong labels overlap: hard samples look wrong. What is claimed of the flags must not exceed what is true."""
    claimed, true, low, high = [], [], [], []
    for seed in range(6):
        score, wrong, planted = mixture(0.1, apart=1.0, size=3000, planted=150, seed=seed)
        found = calibrate(one_class(score, planted), 1)
        p = found(score, np.zeros(len(score), int))
        flagged = p >= flag_from(p)
        claimed.append(p[flagged].mean())
        true.append(wrong[flagged].mean())
        low.append(found.low)
        high.append(found.high)
    assert np.mean(claimed) < np.mean(true) + 0.08
    assert np.mean(low) < 0.1 < np.mean(high)
    assert np.mean(high) / np.mean(low) > 4, "an interval that small would be false certainty"


def test_each_class_gets_its_own_rate():
    """Errors sit in one class only; the other class must not be blamed for them."""
    rng = np.random.default_rng(0)
    given = rng.integers(2, size=6000)
    wrong = (rng.random(6000) < 0.2) & (given == 0)
    score = rng.normal(np.where(wrong, 1.5, -1.5), 1.0)
    label = np.repeat([0, 1], 100)
    known = Known(score, given, rng.normal(1.5, 1.0, 200), label, np.ones(200), np.zeros(200))
    p = calibrate(known, 2)(score, given)
    assert p[given == 0].mean() == pytest.approx(0.2, abs=0.03)
    assert p[given == 1].mean() < 0.02


def test_each_pair_of_classes_gets_its_own_rate():
    rng = np.random.default_rng(0)
    given = rng.integers(3, size=9000)
    pair = given * 3 + (given + rng.integers(1, 3, size=9000)) % 3
    wrong = (rng.random(9000) < 0.3) & (pair == 1)
    score = rng.normal(np.where(wrong, 2.0, -2.0), 1.0)
    shift = shifts(4 * score + np.log(0.1 / 0.9), given, pair)
    assert set(shift) == set(np.unique(pair).tolist())
    assert shift[1] > 0.5
    assert max(value for key, value in shift.items() if key != 1) < -0.5


def test_flags_make_the_expected_measure_largest():
    """Against every possible cut of the list."""
    rng = np.random.default_rng(0)
    for shape in ((0.2, 2.0), (1.0, 9.0), (0.05, 0.3)):
        p = rng.beta(*shape, size=300)
        values = {t: 4 * p[p >= t].sum() / ((p >= t).sum() + 3 * p.sum()) for t in p}
        best = max(values, key=values.__getitem__)
        assert flag_from(p) == pytest.approx(max(best, LEAST))
    assert flag_from(np.full(50, 0.01)) == LEAST
    assert flag_from(np.empty(0)) == LEAST


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


def test_confusion_both_ways_is_no_sign_of_wrong_labels():
    """By a loop over pairs."""
    rng = np.random.default_rng(0)
    joint = rng.integers(0, 40, (5, 5)).astype(float)
    counts = np.array([100, 100, 100, 0, 100])
    joint[3] = joint[:, 3] = 0
    expected = np.zeros((5, 5))
    for j in range(5):
        both = 0.5 + sum(min(joint[j, t], joint[t, j]) for t in range(5) if t != j and counts[t])
        there = [t for t in range(5) if t != j and counts[t]]
        for t in there:
            excess = joint[j, t] - joint[t, j] - 2 * np.sqrt(joint[j, t] + joint[t, j])
            expected[j, t] = max(excess, 0) + 0.3 * both / len(there)
    np.testing.assert_allclose(likely_pairs(joint, counts, 0.3), expected, rtol=1e-12)
    assert (expected[0] > 0).any()


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


def test_a_plant_on_a_wrong_label_teaches_nothing_wrong():
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
    found = judge(score, own, given, 1 - given, Plants(rows, 1 - given[rows]), np.ones(size), 2)
    assert found.rate == pytest.approx(0.2, abs=0.03)
    assert wrong[found.p_error > 0.5].mean() > 0.95
