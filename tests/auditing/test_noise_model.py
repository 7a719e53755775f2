"""The noise model, on predictions whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax
from sklearn.metrics import average_precision_score

from compensate.auditing.noise_model import after_decisions, error_directions, judge, pool, recalibration, shares
from compensate.data import noise

SIZE = 4000


def posterior(classes: int = 4, size: int = SIZE, sure: float = 5.0, seed: int = 0):
    """A perfect model: log probabilities, and true classes that are drawn from them."""
    rng = np.random.default_rng(seed)
    log_q = log_softmax(rng.normal(size=(size, classes)) + sure * np.eye(classes)[rng.integers(classes, size=size)], 1)
    true = (np.exp(log_q).cumsum(1) < rng.random((size, 1))).sum(1).clip(max=classes - 1)
    return log_q, true


def calibration_error(p: np.ndarray, wrong: np.ndarray, bins: int = 10) -> float:
    """The mean distance between what is said and what is so, over bins of probability."""
    place = np.minimum((p * bins).astype(int), bins - 1)
    return sum(abs(p[place == b].sum() - wrong[place == b].sum()) for b in range(bins)) / len(p)


@pytest.mark.parametrize("classes", [2, 4, 10])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.2])
def test_the_share_of_random_errors_and_their_probabilities_come_out(classes, share):
    log_q, true = posterior(classes, sure=7.0)
    flipped = noise.symmetric(true, classes, share, seed=1)
    found = judge(log_q, flipped.labels)
    assert found.share.value == pytest.approx(flipped.changed.mean(), abs=0.02)
    assert found.share.low <= flipped.changed.mean() <= found.share.high
    assert calibration_error(found.p_error, flipped.changed) < 0.03
    right = found.suggested[flipped.changed] == true[flipped.changed]
    assert not share or right.mean() > 0.85


def test_errors_of_one_direction_are_found_where_they_are():
    log_q, true = posterior(3)
    wrong = (true == 0) & (np.random.default_rng(1).random(SIZE) < 0.25)
    found = judge(log_q, np.where(wrong, 1, true))
    assert found.share.value == pytest.approx(wrong.mean(), abs=0.02)
    assert calibration_error(found.p_error, wrong) < 0.03
    flagged = found.p_error >= 2 / 3
    assert wrong[flagged].mean() > 0.8
    assert flagged[wrong].mean() > 0.8


@pytest.mark.parametrize("classes", [3, 10])
@pytest.mark.parametrize("sure", [1.0, 5.0, 12.0])
def test_right_labels_are_not_flagged(classes, sure):
    log_q, true = posterior(classes, sure=sure)
    found = judge(log_q, true)
    assert (found.p_error >= 2 / 3).mean() <= 0.01
    assert found.share.low == 0
    assert not found.model.by_chance


@pytest.mark.parametrize("rare", [0.02, 0.05, 0.15])
@pytest.mark.parametrize("told_apart", [1.0, 2.0])
def test_right_labels_of_a_rare_class_that_is_hard_to_tell_are_not_taken_for_errors(rare, told_apart):
    rng = np.random.default_rng(0)
    labels = (rng.random(4000) < rare).astype(np.int64)
    x = rng.normal(size=4000) + told_apart * labels
    odds = np.log(rare / (1 - rare)) + told_apart * x - told_apart**2 / 2  # Bayes
    for sharpened in (0.8, 1.0):
        log_q = np.stack([-np.logaddexp(0, sharpened * odds), -np.logaddexp(0, -sharpened * odds)], 1)
        verdict = judge(log_q, labels)
        assert not verdict.model.by_chance
        assert (verdict.p_error > 2 / 3).mean() <= 0.01
        assert verdict.share.low == 0
        assert verdict.share.value <= rare + 0.05


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_many_classes_of_few_rows_that_are_hard_to_tell_are_not_taken_for_errors(share):
    rng = np.random.default_rng(0)
    centers, true = rng.normal(size=(50, 32)), np.repeat(np.arange(50), 20)
    x = 0.4 * centers[true] + rng.normal(size=(1000, 32))
    log_q = log_softmax(0.4 * x @ centers.T - 0.08 * (centers**2).sum(1), 1)  # a perfect model, right once in two
    changed = rng.random(1000) < share
    found = judge(log_q, np.where(changed, rng.integers(50, size=1000), true))
    assert found.share.value == pytest.approx(changed.mean(), abs=0.06)
    assert found.share.low <= changed.mean() <= found.share.high
    assert ((found.p_error > 2 / 3) & ~changed).mean() <= 0.02


@pytest.mark.parametrize("seed", range(3))
def test_most_labels_of_a_class_are_right(seed):
    rng = np.random.default_rng(seed)
    log_q, true = posterior(3, size=1000, sure=2.0, seed=seed)
    found = judge(log_q, np.where(rng.random(1000) < 0.3, 0, true)).model
    assert (found.share * found.directions.sum(1) <= 0.5 + 1e-9).all()


def test_a_model_that_is_too_unsure_is_sharpened():
    log_q, true = posterior(sure=8.0)
    flipped = noise.symmetric(true, 4, 0.1, seed=1)
    found = judge(log_softmax(0.4 * log_q, 1), flipped.labels)
    assert found.share.value == pytest.approx(0.1, abs=0.03)
    assert flipped.changed[found.p_error >= 2 / 3].mean() > 0.9


def test_labels_that_are_predicted_by_chance_are_known_as_such():
    rng = np.random.default_rng(0)
    log_q = log_softmax(0.05 * rng.normal(size=(1000, 3)), 1)
    assert judge(log_q, rng.integers(3, size=1000)).model.by_chance


def skewed(rare: float, told_apart: float, size: int = 6000, seed: int = 0):
    """The log probabilities by Bayes of two normal classes, of which the second has a share of the rows, and the true classes."""
    rng = np.random.default_rng(seed)
    true = (rng.random(size) < rare).astype(np.int64)
    x = rng.normal(size=size) + told_apart * true
    odds = np.log(rare / (1 - rare)) + told_apart * x - told_apart**2 / 2
    return np.stack([-np.logaddexp(0, odds), -np.logaddexp(0, -odds)], 1), true


@pytest.mark.parametrize("rare", [0.05, 0.1, 0.3, 0.5])
@pytest.mark.parametrize("told_apart", [1.0, 2.0, 4.0])
def test_skewed_classes_without_errors_have_no_direction(rare, told_apart):
    log_q, true = skewed(rare, told_apart)
    assert not error_directions(log_q, true)[0].any()
    plain = -log_q[np.arange(len(true)), true]
    assert np.diff(judge(log_q, true).log_odds[plain.argsort()]).min() > -1e-3  # in the order of the log loss


@pytest.mark.parametrize("rare", [0.1, 0.3])
@pytest.mark.parametrize("source", [0, 1])
def test_the_direction_of_errors_is_found_whichever_class_is_large(rare, source):
    log_q, true = skewed(rare, 4.0)
    wrong = (true == source) & (np.random.default_rng(1).random(len(true)) < (0.05 if source == 0 else 0.3))
    found = error_directions(log_q, np.where(wrong, 1 - true, true))[0]
    assert found[source, 1 - source] > np.log(2) / 2
    np.testing.assert_allclose(found, -found.T)


def test_equal_flows_between_skewed_classes_have_no_direction():
    """As many labels leave the rare class as enter it, although a larger share of it is wrong."""
    log_q, true = skewed(0.1, 4.0)
    rng = np.random.default_rng(2)
    number = (true == 1).sum() // 5
    given = true.copy()
    for c in (0, 1):
        given[rng.choice(np.flatnonzero(true == c), number, replace=False)] = 1 - c
    assert not error_directions(log_q, given)[0].any()


@pytest.mark.parametrize("classes", [10, 20, 30])
def test_uniform_errors_have_no_direction_among_many_classes_and_pairs_have(classes):
    """By Bayes' predictions, whether or not they include the errors, the ranking is not below that of the loss; errors by pairs gain."""
    rng = np.random.default_rng(100)
    true = rng.integers(classes, size=5000)
    p = softmax(2 * (rng.normal(size=(5000, classes)) + 2 * np.eye(classes)[true]), 1)

    def gain(transition: np.ndarray, p: np.ndarray) -> float:
        given = (transition[true].cumsum(1) < np.random.default_rng(101).random((5000, 1))).sum(1)
        wrong, loss = given != true, -np.log(p[np.arange(5000), given])
        ranked = [average_precision_score(wrong, score) for score in (judge(np.log(p), given).log_odds, loss)]
        return float(ranked[0] - ranked[1])

    uniform = 0.85 * np.eye(classes) + 0.15 / (classes - 1) * (1 - np.eye(classes))
    assert min(gain(uniform, p), gain(uniform, p @ uniform)) > -0.01
    assert gain(0.85 * np.eye(classes) + 0.15 * np.roll(np.eye(classes), 1, 1), p) > 0.05


def test_learned_directions_tell_which_of_two_doubtful_labels_is_wrong():
    """Where 1 is often written for 0 and never the other way, a doubtful 1 is likelier wrong than a doubtful 0."""
    log_q, true = skewed(0.5, 3.0)
    given = np.where((true == 0) & (np.random.default_rng(1).random(len(true)) < 0.2), 1, true)
    found = judge(log_q, given)
    doubtful = np.abs(log_q[:, 0] - log_q[:, 1]) < 0.5
    assert found.p_error[doubtful & (given == 1)].mean() > 2 * found.p_error[doubtful & (given == 0)].mean()


def test_the_gradient_of_directions_leads_to_their_maximum():
    """No small change of the classes' shifts or of a rate makes the given labels likelier: the fit by a naive loop is not better."""
    log_q, true = skewed(0.3, 3.0, size=2000)
    given = np.where((true == 1) & (np.random.default_rng(3).random(len(true)) < 0.3), 0, true)
    found, rates, _ = error_directions(log_q, given)

    def likelihood(rate: float) -> float:
        """Of the best of some sharpnesses and shifts, given the rate of ones that are written as zeros."""
        best = -np.inf
        for sharpness in np.linspace(0.8, 1.6, 9):
            for shift in np.linspace(-1, 2, 13):
                p = 1 / (1 + np.exp(-(sharpness * (log_q[:, 1] - log_q[:, 0]) + shift)))
                one = p * (1 - rate) + (1 - p) * rates[0, 1]
                best = max(best, np.log(np.where(given == 1, one, 1 - one)).sum())
        return best

    grid = np.linspace(0.02, 0.6, 30)
    best = grid[np.argmax([likelihood(rate) for rate in grid])]
    assert found[1, 0] > 0
    assert rates[1, 0] == pytest.approx(best, abs=0.08)  # the prior draws it toward the other rate


@settings(max_examples=25, deadline=None)
@given(
    classes=st.integers(2, 5), size=st.integers(20, 60), sure=st.floats(0, 40), wrong=st.floats(0, 1),
    seed=st.integers(0, 10_000),
)  # fmt: skip
def test_whatever_the_labels_the_interval_holds_its_value(classes, size, sure, wrong, seed):
    log_q, true = posterior(classes, size, sure, seed)
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random(size) < wrong, rng.integers(classes, size=size), true)
    found = judge(log_q, labels)
    assert 0 <= found.share.low <= found.share.value <= found.share.high <= 1
    assert ((found.p_error >= 0) & (found.p_error <= 1)).all()
    assert found.share.value == pytest.approx(found.p_error.mean())
    assert (found.suggested != labels).all()
    assert np.isfinite(found.log_odds).all()


def test_renaming_the_classes_renames_the_answer():
    log_q, true = posterior(4, 500)
    labels = noise.symmetric(true, 4, 0.1, seed=1).labels
    order = np.array([2, 0, 3, 1])
    plain, renamed = judge(log_q, labels), judge(log_q[:, order], np.argsort(order)[labels])
    np.testing.assert_allclose(renamed.p_error, plain.p_error, atol=1e-6)
    np.testing.assert_array_equal(order[renamed.suggested], plain.suggested)


# --- pooling --------------------------------------------------------------------------------------------------


def test_the_weight_of_a_learner_follows_what_it_knows():
    log_q, true = posterior()
    blind = log_softmax(np.random.default_rng(1).normal(size=log_q.shape), 1)
    pooled, weights = pool({"good": log_q, "blind": blind}, true)
    assert weights["good"] > 0.9
    assert sum(shares(weights).values()) == pytest.approx(1)
    np.testing.assert_allclose(np.exp(pooled).sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(np.exp(pooled), np.exp(log_q), atol=0.1)


def test_equal_learners_weigh_the_same_and_rows_without_a_label_count_nothing():
    log_q, labels = posterior(size=500)
    labels[::5] = -1
    weights = pool({"a": log_q, "b": log_q}, labels)[1]
    assert shares(weights) == pytest.approx({"a": 0.5, "b": 0.5}, abs=1e-3)
    shifted = np.where(labels[:, None] < 0, np.roll(log_q, 1, 1), log_q)
    assert pool({"a": shifted, "b": shifted}, labels)[1] == pytest.approx(weights)


def test_two_halves_of_the_evidence_add_up():
    """Two learners that see independent parts: the pooled log loss is below that of either."""
    rng = np.random.default_rng(0)
    true = rng.integers(2, size=SIZE)
    parts = {name: rng.normal(size=SIZE) + 1.5 * (2 * true - 1) for name in "ab"}
    log_p = {name: log_softmax(np.stack([-1.5 * z, 1.5 * z], 1), 1) for name, z in parts.items()}
    pooled, weights = pool(log_p, true)
    rows = np.arange(SIZE)
    losses = [-values[rows, true].mean() for values in log_p.values()]
    assert -pooled[rows, true].mean() < 0.7 * min(losses)
    assert shares(weights) == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.1)


def test_decided_labels_are_right_and_shift_the_others():
    log_q, true = posterior()
    flipped = noise.symmetric(true, 4, 0.1, seed=0)
    before = judge(log_q, flipped.labels)
    suspects = np.argsort(-before.log_odds)[:60]
    decided = np.zeros(len(true), bool)
    decided[suspects] = True
    labels = np.where(decided, true, flipped.labels)
    after = after_decisions(before, labels, flipped.labels, decided)
    assert (after.p_error[decided] == 0).all()
    assert (after.suggested != labels).all()
    found = (decided & (labels != flipped.labels)).mean()
    assert after.share.low <= after.share.value <= after.share.high <= before.share.high
    assert after.share.high == pytest.approx(before.share.high - found, abs=1e-9)
    rest = ~decided
    order = np.argsort(before.p_error[rest])
    assert (np.diff(after.p_error[rest][order]) >= -1e-12).all(), "a shift keeps the order"
    # Somebody who finds that every suspect was right lowers the probabilities of the others.
    kept = after_decisions(before, flipped.labels, flipped.labels, decided)
    assert kept.model.shift < -1 < after.model.shift
    assert (kept.p_error[rest] <= before.p_error[rest]).all()


@pytest.mark.parametrize("shift", [-1.5, 0.0, 1.0])
def test_a_shift_of_log_odds_is_found_whichever_labels_were_looked_at(shift):
    rng = np.random.default_rng(0)
    said = rng.normal(size=4000) * 2
    wrong = rng.random(4000) < 1 / (1 + np.exp(-said - shift))
    for looked_at in (said > 1, said < 0, slice(None)):
        assert recalibration(said[looked_at], wrong[looked_at]) == pytest.approx(shift, abs=0.25)


@pytest.mark.parametrize("kept", [0, 2, 4])
def test_few_decisions_hardly_move_the_flags_and_many_do(kept):
    """Somebody keeps some of the surest suspects: four looks say little about all others, a hundred say much."""
    log_q, true = posterior()
    flipped = noise.symmetric(true, 4, 0.1, seed=0)
    before = judge(log_q, flipped.labels)
    order = np.argsort(-before.log_odds)

    def flags(rows: np.ndarray, kept_of_four: int) -> tuple[int, int]:
        decided = np.isin(np.arange(len(true)), rows)
        labels = flipped.labels.copy()
        corrected = rows[np.arange(len(rows)) % 4 >= kept_of_four]
        labels[corrected] = before.suggested[corrected]
        after = after_decisions(before, labels, flipped.labels, decided)
        return int((before.p_error[~decided] > 2 / 3).sum()), int((after.p_error[~decided] > 2 / 3).sum())

    was, now = flags(order[:4], kept)
    assert abs(now - was) <= 0.2 * was
    was, now = flags(order[:100], 4)
    assert now < 0.5 * was
