"""Learners, their features and the noise model, against independent oracles."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score

from compensate import audit, encoders
from compensate.auditing import learners, linear
from compensate.auditing.features import make_views
from compensate.auditing.learners import (
    COPIES,
    View,
    _first_copies,
    assign_folds,
    content_keys,
    judge_view,
)
from compensate.auditing.linear import LinearFolds, compensated, softmax, transferred
from compensate.auditing.noise_model import after_decisions, judge, pool, recalibration, shares
from compensate.auditing.source import read
from compensate.data import noise
from compensate.errors import InputError


# Learners
def classified(size: int = 200, classes: int = 3, seed: int = 0, apart: float = 1.0):
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=size)
    x = apart * rng.normal(size=(classes, 5))[y] + rng.normal(size=(size, 5))
    return x.astype(np.float32), y


def test_copies_of_a_sample_share_a_fold():
    texts = [f"text number {i}" for i in range(60)]
    texts += ["Text  Number 7", " text number 8"]
    folds = assign_folds(np.arange(62) % 2, content_keys(texts))
    assert folds[60] == folds[7]
    assert folds[61] == folds[8]
    rows = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    rows[13] = rows[31] = rows[2]
    folds = assign_folds(np.arange(50) % 2, content_keys(rows))
    assert folds[13] == folds[31] == folds[2]
    assert content_keys([1, 2, 3]) is None


# learners
@pytest.mark.parametrize("sparse", [False, True])
def test_no_row_is_judged_by_its_own_label(sparse):
    """A changed label leaves what neighbors, naive Bayes and trees say of its row as it was, bit for bit.

    Linear models of all folds take their steps together, so that those of the row's own fold end at another point within the
    precision of the fit.
    """
    x, y = classified()
    view = View("view", sp.csr_matrix(np.maximum(x, 0)) if sparse else x, None if sparse else x)
    folds = assign_folds(y)
    before = judge_view(view, y, folds, 5, 3)
    shifts = []
    for row in (0, 57, 123):
        changed = y.copy()
        changed[row] = (y[row] + 1) % 3
        after = judge_view(view, changed, folds, 5, 3)
        assert after.decay == before.decay
        for name in before.log_p:
            if name in ("logcomp", "transitions"):
                np.testing.assert_allclose(after.log_p[name][row], before.log_p[name][row], atol=0.1)
                shifts.append((after.log_p[name] - before.log_p[name])[row, [changed[row], y[row]]] @ [1, -1])
            else:
                np.testing.assert_array_equal(after.log_p[name][row], before.log_p[name][row])
    assert abs(np.mean(shifts)) < 0.02
    assert set(before.log_p) == {"logcomp", "transitions", *(["naive Bayes"] if sparse else ["neighbors", "trees"])}


def test_a_class_that_a_fold_does_not_see_has_a_small_probability_there():
    x, y = classified()
    y[y == 2] = 1
    y[:2] = 2
    folds = assign_folds(y)
    for name, log_p in judge_view(View("view", x, x), y, folds, 5, 3).log_p.items():
        assert np.isfinite(log_p).all(), name
        assert np.exp(log_p[2:, 2]).mean() < 0.1, name


def test_a_trusted_label_is_learned_from_in_full():
    """The gradient of a trusted label is that of cross entropy; that of another one is bounded by LogComp, or shared by transitions."""
    from compensate.auditing.linear import compensated, softmax, transferred

    labels, trusted = np.array([0, 0]), np.array([False, True])
    p, log_p = softmax(np.array([[[-4.0, 4.0]], [[-4.0, 4.0]]], np.float32))
    plain = p - np.eye(2, dtype=np.float32)[labels][:, None]
    rows = np.arange(2)
    a = np.array([[[0.8, 0.2], [0.2, 0.8]]], np.float32)
    for slope in (compensated(labels, 0.5, trusted), transferred(labels, a, trusted)):
        loss, r = slope(p, log_p, rows)
        np.testing.assert_allclose(r[1], plain[1], atol=1e-6)
        assert np.abs(r[0]).max() < 0.75 * np.abs(plain[0]).max()
        assert loss[1, 0] == pytest.approx(-float(log_p[1, 0, 0]), rel=1e-5)


def test_trees_of_many_rows_are_grown_on_samples_that_may_lack_a_rare_class(monkeypatch):
    monkeypatch.setattr(learners, "GROWN_ON", 40)
    rng = np.random.default_rng(0)
    labels = np.append(rng.integers(2, size=198), [2, 2])
    x = (labels[:, None] + rng.normal(size=(200, 3))).astype(np.float32)
    folds = np.arange(200) % 5
    forests = learners.Forests(x, labels, folds, 5, 3, seed=0, trees=12)
    grown = forests[1]
    assert len(grown.trees) == 12
    assert {len(tree.classes) for tree in grown.trees} == {2, 3}
    assert all(tree.model.tree_.n_node_samples[0] == 40 for tree in grown.trees)
    p = np.zeros((200, 3))
    for tree in grown.trees:
        for place, c in enumerate(tree.classes):
            p[:, c] += tree.model.predict_proba(x)[:, place] / 12
    np.testing.assert_allclose(grown.log_p(x, x), np.log((50 * p + 1 / 3) / 51), atol=1e-5)
    # A changed label of the fold changes nothing: its trees do not learn from it.
    flipped = np.where(folds == 1, 1 - np.minimum(labels, 1), labels)
    again = learners.Forests(x, flipped, folds, 5, 3, seed=0, trees=12)[1]
    np.testing.assert_array_equal(again.log_p(x, x), grown.log_p(x, x))


def test_the_first_copy_of_a_row_is_that_of_a_loop():
    keys = np.random.default_rng(0).integers(300, size=900)
    keys[:20] = 7  # more than are copies of one sample
    seen: dict[int, int] = {}
    expected = [seen.setdefault(int(key), row) for row, key in enumerate(keys)]
    many = np.bincount(keys)[keys] > COPIES
    np.testing.assert_array_equal(_first_copies(keys), np.where(many, np.arange(900), expected))
    assert not _first_copies(np.array([], np.int64)).size


# Linear
def linear_classified(size: int = 240, classes: int = 3, columns: int = 6, seed: int = 0):
    """Features of unequal scale and location, and labels that they predict in part."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=size)
    x = rng.normal(size=(classes, columns))[y] + rng.normal(size=(size, columns))
    x = x @ rng.normal(size=(columns, columns)) * np.logspace(-1, 2, columns) + 50
    return x.astype(np.float32), y


@pytest.mark.parametrize("decay", [1e-2, 1e-4])
def test_cross_entropy_is_scikit_learns_logistic_regression_in_each_fold(monkeypatch, decay):
    monkeypatch.setattr(linear, "PRECISION", 1e-9)
    x, y = linear_classified()
    folds = assign_folds(y)
    fitted = LinearFolds(x, folds, 5, 3)
    found = np.exp(fitted.held_out(fitted.fit(compensated(y, 1.0), decay)))
    z = (x - x.mean(0)) / x.std(0) / np.sqrt(x.shape[1])
    for fold in range(5):
        rest, held = folds != fold, folds == fold
        model = LogisticRegression(C=1 / (decay * rest.sum()), max_iter=5000, tol=1e-8).fit(z[rest], y[rest])
        np.testing.assert_allclose(found[held], model.predict_proba(z[held]), atol=1e-3)


def explicit(u: np.ndarray, label: int, lam: float) -> float:
    """The least of the cross entropy of u + v plus the penalty of v, with v split into two positive parts."""
    size = len(u)

    def value(parts: np.ndarray) -> float:
        shifted = u + parts[:size] - parts[size:]
        return np.logaddexp.reduce(shifted) - shifted[label] + lam * parts.sum()

    start = np.full(2 * size, 0.1)
    found = minimize(value, start, bounds=[(0, None)] * (2 * size), options={"ftol": 1e-15, "gtol": 1e-9})
    return float(found.fun)


@pytest.mark.parametrize("lam", [0.1, 0.5, 0.9])
def test_logcomp_in_closed_form_is_the_minimum_over_compensations(lam):
    rng = np.random.default_rng(0)
    u, y = 2 * rng.normal(size=(12, 1, 4)), rng.integers(4, size=12)
    loss, slope = compensated(y, lam)(*softmax(u), slice(0, 12))
    expected = [explicit(u[i, 0], y[i], lam) for i in range(12)]
    np.testing.assert_allclose(loss[:, 0], expected, atol=2e-5)
    np.testing.assert_allclose(
        slope, numerical(lambda v: compensated(y, lam)(*softmax(v), slice(0, 12))[0], u), atol=1e-6
    )
    # The smaller lam, the less a contradicted label pulls.
    assert np.abs(slope).max() <= lam + 1e-6 or lam > 0.5
    pull = -slope[np.arange(12), 0, y]
    assert (pull <= lam + 1e-9).all()


def numerical(loss, u: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central differences; the loss of a row depends on its own logits alone."""
    found = np.empty_like(u)
    for c in range(u.shape[-1]):
        shift = np.zeros(u.shape[-1])
        shift[c] = step
        found[..., c] = (loss(u + shift) - loss(u - shift)) / (2 * step)
    return found


def test_the_slope_under_transitions_is_that_of_the_loss():
    rng = np.random.default_rng(0)
    u, y = rng.normal(size=(9, 2, 3)), rng.integers(3, size=9)
    transition = rng.dirichlet(np.ones(3), size=(2, 3))
    loss, slope = transferred(y, transition)(*softmax(u), slice(0, 9))
    for i in range(9):
        for k in range(2):
            p = np.exp(u[i, k]) / np.exp(u[i, k]).sum()
            assert loss[i, k] == pytest.approx(-np.log(sum(p[t] * transition[k, t, y[i]] for t in range(3))))
    expected = numerical(lambda v: transferred(y, transition)(*softmax(v), slice(0, 9))[0], u)
    np.testing.assert_allclose(slope, expected, atol=1e-6)


def test_sparse_features_are_regularized_as_dense_ones_that_are_scaled_by_one_number(monkeypatch):
    monkeypatch.setattr(linear, "PRECISION", 1e-9)
    monkeypatch.setattr(linear, "STEPS", 1000)
    x, y = linear_classified()
    x = np.maximum(x - x.mean(0), 0) / x.std(0)
    folds = assign_folds(y)
    fitted = LinearFolds(sp.csr_matrix(x), folds, 5, 3)
    found = np.exp(fitted.held_out(fitted.fit(compensated(y, 1.0), 1e-3)))
    z = x / np.sqrt((x**2).sum(1).mean())
    for fold in range(5):
        rest, held = folds != fold, folds == fold
        model = LogisticRegression(C=1 / (1e-3 * rest.sum()), max_iter=5000, tol=1e-8).fit(z[rest], y[rest])
        np.testing.assert_allclose(found[held], model.predict_proba(z[held]), atol=2e-3)


def test_portions_of_rows_change_nothing(monkeypatch):
    x, y = linear_classified()
    folds = assign_folds(y)
    whole = LinearFolds(x, folds, 5, 3)
    w = whole.fit(compensated(y, 0.5), 1e-2)
    monkeypatch.setattr(linear, "BLOCK", 15 * 17)
    parts = LinearFolds(x, folds, 5, 3)
    assert len(list(parts.blocks(240))) == 15
    np.testing.assert_allclose(parts.spread, whole.spread, rtol=1e-3)
    np.testing.assert_allclose(whole.held_out(w), parts.held_out(parts.fit(compensated(y, 0.5), 1e-2)), atol=0.02)


# Noise model
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
        assert not verdict.by_chance
        assert (verdict.p_error > 2 / 3).mean() <= 0.02
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
def test_what_is_said_of_given_labels_are_distributions_in_which_most_of_a_class_is_right(seed):
    rng = np.random.default_rng(seed)
    log_q, true = posterior(3, size=1000, sure=2.0, seed=seed)
    found = judge(log_q, np.where(rng.random(1000) < 0.3, 0, true)).model
    rates = found.share * found.directions
    assert (rates.sum(1) <= 0.5 + 1e-9).all()
    # The posterior of an error times the probability of the label is the joint one; it must add up over labels.
    total = np.zeros(1000)
    q = np.exp(log_softmax(found.sharpness * log_q, 1))
    for j in range(3):
        total += (1 - rates[j].sum()) * q[:, j] + q @ rates[:, j]
    np.testing.assert_allclose(total, 1)


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


# pooling
def test_the_weight_of_a_learner_follows_what_it_knows():
    log_q, true = posterior()
    rng = np.random.default_rng(1)
    blind = log_softmax(rng.normal(size=log_q.shape), 1)
    pooled, weights = pool({"good": log_q, "blind": blind}, true)
    assert weights["good"] > 0.9
    assert sum(shares(weights).values()) == pytest.approx(1)
    np.testing.assert_allclose(np.exp(pooled).sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(np.exp(pooled), np.exp(log_q), atol=0.1)


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
    assert abs(now - was) <= 0.1 * was
    was, now = flags(order[:100], 4)
    assert now < 0.5 * was


# Views
def views_of(data, labels=None, features=None, **options):
    return make_views(read(data, labels, features, options), "none")


def reviews(size: int = 300, seed: int = 0):
    rng = np.random.default_rng(seed)
    words = (["good", "great", "fine"], ["bad", "awful", "poor"])
    true = rng.integers(2, size=size)
    texts = [" ".join(rng.choice(words[t] + ["film", "plot", "the"], size=9)) for t in true]
    return texts, true


def test_empty_texts_among_others_are_audited():
    texts, true = reviews()
    flipped = noise.symmetric(true, 2, 0.1, seed=0)
    for row in range(0, 300, 20):
        texts[row] = ""
    found = audit(texts, flipped.labels, encoder="none")
    said = np.array([bool(text) for text in texts])
    assert found.mask[flipped.changed & said].mean() > 0.8
    assert flipped.changed[found.mask].mean() > 0.8
    assert np.isfinite(found.log_odds).all()


def test_texts_without_words_are_refused():
    with pytest.raises(InputError, match="no word in common"):
        views_of([""] * 30, np.arange(30) % 2)


def test_an_encoder_and_words_are_looked_at_together(monkeypatch):
    """With an encoder, by two views; where it is said to be absent, by words and a hint how to get one."""
    texts, true = reviews(60)
    values = np.random.default_rng(0).normal(size=(60, 7)).astype(np.float32)
    made = encoders.Encoded(values, "an encoder", "MIT", "somewhere")
    monkeypatch.setattr(encoders, "encode_data", lambda *_, **__: made)
    found = make_views(read(texts, true, None, {}))
    assert [view.name for view in found.views] == ["an encoder", "words"]
    assert found.shown is values
    assert found.about["license"] == "MIT"
    monkeypatch.setattr(encoders, "encode_data", lambda *_, **__: None)
    found = make_views(read(texts, true, None, {}))
    assert [view.name for view in found.views] == ["words"]
    assert "hint" in found.about
    assert "hint" not in make_views(read(texts, true, None, {}), "none").about


def test_a_table_with_an_id_a_date_and_a_column_of_many_values_is_audited_as_well_as_without():
    cancer = load_breast_cancer(as_frame=True)
    frame = cancer.data.iloc[:, :10].copy()
    flipped = noise.symmetric(cancer.target.to_numpy(), 2, 0.1, seed=0)
    frame["diagnosis"] = np.array(["malignant", "benign"])[flipped.labels]
    rng = np.random.default_rng(0)
    size = len(frame)
    more = frame.assign(
        patient=[f"P{i:05d}" for i in range(size)],
        seen=pd.date_range("2021-03-01", periods=size, freq="D").astype(str),
        clinic=[f"clinic {k}" for k in rng.integers(40, size=size)],
    )
    plain, added = (audit(table, label="diagnosis") for table in (frame, more))
    for found in (plain, added):
        assert found.kind == "table"
        assert flipped.changed[found.mask].mean() > 0.8
        assert found.mask[flipped.changed].mean() > 0.6
    assert np.mean(plain.mask == added.mask) > 0.97


# numbers of any size
@pytest.mark.parametrize("columns", [4, 240])
@pytest.mark.parametrize("odd", ["one", "rare", "all", "tiny"])
def test_numbers_of_any_size_leave_the_others_their_weight(columns, odd):
    rng = np.random.default_rng(0)
    true = rng.integers(2, size=200)
    x = rng.normal(size=(200, columns)).astype(np.float32)
    x += np.where(true == 1, 2, 0)[:, None]
    if odd == "one":
        x[3, 1] = 1e30
    elif odd == "rare":
        x[:, 1] = np.where(np.arange(200) == 7, 1e30, 0)
    else:
        x *= np.float32(1e30 if odd == "all" else 1e-30)
    flipped = noise.symmetric(true, 2, 0.1, seed=0)
    found = audit(x, flipped.labels)
    assert average_precision_score(flipped.changed, found.log_odds) > 0.9
    assert found.mask[~flipped.changed].mean() < 0.02


def test_a_table_of_few_distinct_rows_is_audited():
    """Two columns of two values: rows agree by chance, and are no copies of each other."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(2, size=(2, 400))
    flipped = noise.symmetric(a, 2, 0.1, seed=0)
    frame = pd.DataFrame(
        {"color": np.array(["red", "blue"])[a], "size": np.array(["s", "l"])[b], "label": flipped.labels}
    )
    found = audit(frame, label="label", task="classification")
    assert found.config["agreement"] > 0.85
    assert average_precision_score(flipped.changed, found.log_odds) > 0.9
