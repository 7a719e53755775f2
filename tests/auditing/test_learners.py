"""Folds and cross-fitted learners: no row is judged by a model that has seen its label.

Linear models are compared with scikit-learn, explicit minimization over compensations, and numerical gradients.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from compensate.auditing import learners, linear
from compensate.auditing.features import make_views
from compensate.auditing.judge import Judge
from compensate.auditing.learners import (
    COPIES,
    Linear,
    View,
    assign_folds,
    content_keys,
    judge_view,
    predict_rows,
    transition_from,
)
from compensate.auditing.linear import LinearFolds, compensated, softmax, transferred
from compensate.data import Dataset


def classified(size: int = 200, classes: int = 3, seed: int = 0, apart: float = 1.0):
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=size)
    x = apart * rng.normal(size=(classes, 5))[y] + rng.normal(size=(size, 5))
    return x.astype(np.float32), y


# --- folds ----------------------------------------------------------------------------------------------------


def test_folds_spread_each_class_and_unlabeled_rows_evenly():
    labels = np.random.default_rng(0).choice([-1, 0, 1, 2], p=[0.1, 0.5, 0.3, 0.1], size=503)
    folds = assign_folds(labels, seed=3)
    for label in (-1, 0, 1, 2):
        counts = np.bincount(folds[labels == label], minlength=5)
        assert counts.max() - counts.min() <= 1
    np.testing.assert_array_equal(assign_folds(labels, seed=3), folds)
    assert (assign_folds(labels, seed=2) != folds).any()


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


def test_a_content_that_many_rows_share_is_dealt_out():
    """A table of one column with two values: each row is a sample of its own, and every fold sees both values."""
    values = np.repeat([0.0, 1.0], [COPIES + 30, COPIES])[:, None]
    folds = assign_folds(np.zeros(len(values), int), content_keys(values))
    assert set(folds[: COPIES + 30]) == set(range(5))
    assert len(set(folds[COPIES + 30 :])) == 1


# --- learners -------------------------------------------------------------------------------------------------


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


def test_predictions_of_several_divisions_into_folds_are_averaged():
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 2, 80)
    view = View("features", (rng.normal(size=(80, 4)) + labels[:, None]).astype(np.float32))
    divisions = [assign_folds(labels, draw=k) for k in range(2)]
    assert (divisions[0] != divisions[1]).any()
    each = [judge_view(view, labels, folds, 5, 2).log_p["logcomp"] for folds in divisions]
    mean = np.exp(np.mean(each, 0))
    found = judge_view(view, labels, np.stack(divisions), 5, 2)
    np.testing.assert_allclose(np.exp(found.log_p["logcomp"]), mean / mean.sum(1, keepdims=True), atol=1e-5)


def test_rows_without_a_label_are_predicted_and_teach_nothing():
    x, y = classified(apart=2.0)
    given = y.copy()
    given[::7] = -1
    folds = assign_folds(given)
    found = judge_view(View("view", x, x), given, folds, 5, 3)
    for name, log_p in found.log_p.items():
        assert (log_p.argmax(1) == y)[::7].mean() > 0.85, name


def test_a_class_that_a_fold_does_not_see_has_a_small_probability_there():
    x, y = classified()
    y[y == 2] = 1
    y[:2] = 2
    folds = assign_folds(y)
    for name, log_p in judge_view(View("view", x, x), y, folds, 5, 3).log_p.items():
        assert np.isfinite(log_p).all(), name
        assert np.exp(log_p[2:, 2]).mean() < 0.1, name


def test_transitions_have_the_direction_of_the_errors():
    """A quarter of class 0 is written as 1, nothing the other way."""
    x, true = classified(600, apart=2.0)
    given = np.where((true == 0) & (np.random.default_rng(1).random(600) < 0.25), 1, true)
    fitted = LinearFolds(x, assign_folds(given), 5, 3)
    a = learners._fit_transitions(fitted, given, None, 1e-3, learners.SILENT)[1]
    np.testing.assert_allclose(a.sum(1), 1, atol=1e-6)
    assert a[0, 1] > 0.1
    assert a[0, 1] > 4 * a[1, 0]
    assert a[0, 1] > 4 * a[0, 2]


def test_transitions_have_the_assumed_share_of_errors():
    counts = np.array([[80.0, 3.0, 0.0], [0.0, 100.0, 1.0], [0.0, 0.0, 116.0]])
    a = transition_from(counts)
    assert (counts.sum(1) * (1 - np.diag(a))).sum() == pytest.approx(0.1 * 300, rel=0.02)
    more = counts + np.array([[0, 60, 0], [0, 0, 0], [0, 0, 0]])
    b = transition_from(more)
    assert b[0, 1] == pytest.approx(63 / 143, abs=0.05), "more errors than assumed are believed"


def test_a_trusted_label_is_learned_from_in_full():
    """The gradient of a trusted label is that of cross entropy; that of another one is bounded by LogComp, or shared by transitions."""
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
    monkeypatch.setattr(learners, "TREE_ROWS", 40)
    rng = np.random.default_rng(0)
    labels = np.append(rng.integers(2, size=198), [2, 2])
    x = (labels[:, None] + rng.normal(size=(200, 3))).astype(np.float32)
    folds = np.arange(200) % 5
    (grown,) = learners.Forests(x, labels, folds, 5, 3, seed=0, trees=12).grow([1])
    assert len(grown.trees) == 12
    assert {len(classes) for _, classes in grown.trees} == {2, 3}
    assert all(tree.tree_.n_node_samples[0] == 40 for tree, _ in grown.trees)
    p = np.zeros((200, 3))
    for tree, classes in grown.trees:
        for place, c in enumerate(classes):
            p[:, c] += tree.predict_proba(x)[:, place] / 12
    np.testing.assert_allclose(grown.log_p(x, x), np.log((50 * p + 1 / 3) / 51), atol=1e-5)
    # A changed label of the fold changes nothing: its trees do not learn from it.
    flipped = np.where(folds == 1, 1 - np.minimum(labels, 1), labels)
    (again,) = learners.Forests(x, flipped, folds, 5, 3, seed=0, trees=12).grow([1])
    np.testing.assert_array_equal(again.log_p(x, x), grown.log_p(x, x))


# --- linear models ---------------------------------------------------------------------------------------------


def scaled(size: int = 240, classes: int = 3, columns: int = 6, seed: int = 0):
    """Features of unequal scale and location, and labels that they predict in part."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=size)
    x = rng.normal(size=(classes, columns))[y] + rng.normal(size=(size, columns))
    x = x @ rng.normal(size=(columns, columns)) * np.logspace(-1, 2, columns) + 50
    return x.astype(np.float32), y


def held_out(fitted: LinearFolds, w: np.ndarray) -> np.ndarray:
    """(N, C) log probabilities by the model that did not learn from the row."""
    models = [Linear(*one) for one in fitted.each(w)]
    return predict_rows(View("view", fitted.x), {"linear": [models]}, fitted.folds[None])["linear"]


@pytest.mark.parametrize("decay", [1e-2, 1e-4])
def test_cross_entropy_is_scikit_learns_logistic_regression_in_each_fold(monkeypatch, decay):
    monkeypatch.setattr(linear, "PRECISION", 1e-9)
    x, y = scaled()
    folds = assign_folds(y)
    fitted = LinearFolds(x, folds, 5, 3)
    found = np.exp(held_out(fitted, fitted.fit(compensated(y, 1.0), decay)))
    z = (x - x.mean(0)) / x.std(0) / np.sqrt(x.shape[1])
    for fold in range(5):
        rest, held = folds != fold, folds == fold
        model = LogisticRegression(C=1 / (decay * rest.sum()), max_iter=5000, tol=1e-8).fit(z[rest], y[rest])
        np.testing.assert_allclose(found[held], model.predict_proba(z[held]), atol=1e-3)


def test_a_fit_of_usual_precision_is_near_the_optimum(monkeypatch):
    x, y = scaled()
    fitted = LinearFolds(x, assign_folds(y), 5, 3)
    usual = np.exp(held_out(fitted, fitted.fit(compensated(y, 0.5), 1e-3)))
    monkeypatch.setattr(linear, "PRECISION", 1e-9)
    exact = np.exp(held_out(fitted, fitted.fit(compensated(y, 0.5), 1e-3)))
    assert np.abs(usual - exact).max() < 0.02


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
    x, y = scaled()
    x = np.maximum(x - x.mean(0), 0) / x.std(0)
    folds = assign_folds(y)
    fitted = LinearFolds(sp.csr_matrix(x), folds, 5, 3)
    found = np.exp(held_out(fitted, fitted.fit(compensated(y, 1.0), 1e-3)))
    z = x / np.sqrt((x**2).sum(1).mean())
    for fold in range(5):
        rest, held = folds != fold, folds == fold
        model = LogisticRegression(C=1 / (1e-3 * rest.sum()), max_iter=5000, tol=1e-8).fit(z[rest], y[rest])
        np.testing.assert_allclose(found[held], model.predict_proba(z[held]), atol=2e-3)


def test_portions_of_rows_change_nothing(monkeypatch):
    x, y = scaled()
    folds = assign_folds(y)
    whole = LinearFolds(x, folds, 5, 3)
    w = whole.fit(compensated(y, 0.5), 1e-2)
    monkeypatch.setattr(linear, "BLOCK", 15 * 17)
    parts = LinearFolds(x, folds, 5, 3)
    np.testing.assert_allclose(parts.spread, whole.spread, rtol=1e-3)
    np.testing.assert_allclose(held_out(whole, w), held_out(parts, parts.fit(compensated(y, 0.5), 1e-2)), atol=0.02)


# --- the judge ------------------------------------------------------------------------------------------------


def test_a_judge_predicts_chunks_out_of_fold_as_the_whole_and_survives_the_disk(tmp_path):
    x, y = classified()
    data = Dataset(x, y, ("a", "b", "c"))
    features = make_views(data, "none")
    folds = np.stack([assign_folds(y, draw=k) for k in range(2)])
    kept = Judge.fit(features, y, folds, data.classes)
    judge = Judge.fit(features, y, folds, data.classes, keep=False)
    parts = [judge.predict(data.subset(rows), folds[:, rows]) for rows in np.array_split(np.arange(len(y)), 3)]
    np.testing.assert_allclose(np.concatenate(parts), kept.log_q, atol=1e-5)
    assert judge.shares == pytest.approx(kept.shares, abs=1e-6)
    judge.save(tmp_path)
    loaded = Judge.load(tmp_path)
    np.testing.assert_allclose(loaded.predict(data), judge.predict(data), atol=5e-3)
    for ours, theirs in zip(loaded.score(kept.log_q, y), judge.score(kept.log_q, y), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert Judge.load(tmp_path / "elsewhere") is None
