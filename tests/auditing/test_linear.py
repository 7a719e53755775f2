"""Cross-fitted linear models: against scikit-learn, explicit minimization over compensations, and numerical gradients."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from compensate.auditing import linear
from compensate.auditing.learners import ByFold, Linear, assign_folds
from compensate.auditing.linear import LinearFolds, compensated, softmax, transferred


def classified(size: int = 240, classes: int = 3, columns: int = 6, seed: int = 0):
    """Features of unequal scale and location, and labels that they predict in part."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=size)
    x = rng.normal(size=(classes, columns))[y] + rng.normal(size=(size, columns))
    x = x @ rng.normal(size=(columns, columns)) * np.logspace(-1, 2, columns) + 50
    return x.astype(np.float32), y


def held_out(fitted: LinearFolds, w: np.ndarray) -> np.ndarray:
    """(N, C) log probabilities by the model that did not learn from the row."""
    return ByFold([Linear(*one) for one in fitted.each(w)]).log_p(fitted.x, None, fitted.folds)


@pytest.mark.parametrize("decay", [1e-2, 1e-4])
def test_cross_entropy_is_scikit_learns_logistic_regression_in_each_fold(monkeypatch, decay):
    monkeypatch.setattr(linear, "PRECISION", 1e-9)
    x, y = classified()
    folds = assign_folds(y)
    fitted = LinearFolds(x, folds, 5, 3)
    found = np.exp(held_out(fitted, fitted.fit(compensated(y, 1.0), decay)))
    z = (x - x.mean(0)) / x.std(0) / np.sqrt(x.shape[1])
    for fold in range(5):
        rest, held = folds != fold, folds == fold
        model = LogisticRegression(C=1 / (decay * rest.sum()), max_iter=5000, tol=1e-8).fit(z[rest], y[rest])
        np.testing.assert_allclose(found[held], model.predict_proba(z[held]), atol=1e-3)


def test_a_fit_of_usual_precision_is_near_the_optimum(monkeypatch):
    x, y = classified()
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
    x, y = classified()
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
    x, y = classified()
    folds = assign_folds(y)
    whole = LinearFolds(x, folds, 5, 3)
    w = whole.fit(compensated(y, 0.5), 1e-2)
    monkeypatch.setattr(linear, "BLOCK", 15 * 17)
    parts = LinearFolds(x, folds, 5, 3)
    assert len(list(parts.blocks(240))) == 15
    np.testing.assert_allclose(parts.spread, whole.spread, rtol=1e-3)
    np.testing.assert_allclose(held_out(whole, w), held_out(parts, parts.fit(compensated(y, 0.5), 1e-2)), atol=0.02)
