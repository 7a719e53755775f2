"""ShiftRegressor against scipy's minimum of Huber's loss, brute force over outlier sets, and known permutations."""

from __future__ import annotations

from itertools import combinations

import matplotlib
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment, minimize

from compensate.core.proximal import soft_threshold
from compensate.estimators import ShiftRegressor
from compensate.estimators.regression import unshuffle

matplotlib.use("Agg")


def data(seed: int, n: int = 120, d: int = 4, outliers: float = 0.15, noise: float = 0.5):
    rng = np.random.default_rng(seed)
    X, beta = rng.normal(size=(n, d)) * rng.uniform(0.5, 3, d) + 2, rng.normal(size=d)
    y = X @ beta + 3 + noise * rng.normal(size=n)
    wrong = rng.random(n) < outliers
    y[wrong] += rng.choice([-1, 1], wrong.sum()) * rng.uniform(5, 40, wrong.sum())
    return X, y, np.append(beta, 3), wrong


def scipy_huber(X: np.ndarray, y: np.ndarray, t: float, w: np.ndarray) -> np.ndarray:
    A = np.column_stack([X, np.ones(len(X))])

    def loss(b: np.ndarray) -> tuple[float, np.ndarray]:
        r = y - A @ b
        small = np.abs(r) <= t
        value = w @ np.where(small, 0.5 * r**2, t * np.abs(r) - 0.5 * t**2)
        return value, -A.T @ (w * np.where(small, r, t * np.sign(r)))

    start = np.linalg.lstsq(A, y, rcond=None)[0]
    found = minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 5000})
    assert np.abs(loss(found.x)[1]).max() < 1e-6
    return found.x


@pytest.mark.parametrize("t", [0.05, 0.3, 1.0, 10.0, 1e4])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_l1_is_the_minimum_of_hubers_loss(seed: int, t: float) -> None:
    X, y, _, _ = data(seed)
    model = ShiftRegressor(lam=t).fit(X, y)
    expected = scipy_huber(X, y, t, np.ones(len(y)))
    np.testing.assert_allclose(np.append(model.coef_, model.intercept_), expected, atol=1e-6)
    np.testing.assert_array_equal(model.shifts_, soft_threshold(y - model.predict(X), t))


def test_weights_enter_hubers_loss() -> None:
    X, y, _, _ = data(3)
    w = np.random.default_rng(0).integers(0, 4, len(y)).astype(float)
    model = ShiftRegressor(lam=0.7).fit(X, y, sample_weight=w)
    np.testing.assert_allclose(np.append(model.coef_, model.intercept_), scipy_huber(X, y, 0.7, w), atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_l0_is_brute_force_over_outlier_sets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(12, 1))
    y = 2 * X[:, 0] + 0.1 * rng.normal(size=12)
    y[:2] += [6, -4]
    t = 1.0
    A, values = np.column_stack([X, np.ones(12)]), []
    for size in range(5):
        for out in combinations(range(12), size):
            kept = np.setdiff1d(np.arange(12), out)
            b = np.linalg.lstsq(A[kept], y[kept], rcond=None)[0]
            values.append(0.5 * ((y - A @ b)[kept] ** 2).sum() + 0.5 * t**2 * size)
    model = ShiftRegressor(lam=t, penalty="l0").fit(X, y)
    left = y - model.shifts_ - model.predict(X)
    assert 0.5 * (left**2).sum() + 0.5 * t**2 * model.outliers_.sum() == pytest.approx(min(values), abs=1e-9)


@pytest.mark.parametrize("penalty", ["l1", "l0"])
def test_penalty_follows_a_robust_scale(penalty: str) -> None:
    errors, plain, scales = [], [], []
    for seed in range(20):
        X, y, truth, wrong = data(seed, n=300)
        model = ShiftRegressor(penalty=penalty).fit(X, y)
        scales.append(model.scale_)
        assert model.outliers_[wrong].all()
        errors.append(np.abs(model.coef_ - truth[:-1]).max())
        plain.append(np.abs(ShiftRegressor(lam=np.inf).fit(X, y).coef_ - truth[:-1]).max())
    assert np.mean(scales) == pytest.approx(0.5, rel=0.3), "the noise is 0.5, whatever the outliers"
    assert np.mean(errors) < 0.25 * np.mean(plain)


def permuted(seed: int, n: int = 1000, d: int = 10, share: float = 0.05, noise: float = 0.02):
    """Slawski's model: responses of a few rows exchanged at random; noise relative to the response's deviation."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    clean = X @ rng.normal(size=d)
    y = clean + noise * clean.std() * rng.normal(size=n)
    rows, order = rng.choice(n, round(share * n), replace=False), np.arange(n)
    order[rows] = rng.permutation(rows)
    return X, y[order], y, order != np.arange(n)


def test_recovers_which_responses_were_shuffled() -> None:
    precision, recall, repaired = [], [], []
    for seed in range(20):
        X, shuffled, original, moved = permuted(seed)
        model = ShiftRegressor(permuted=True).fit(X, shuffled)
        hit = (model.suspects_ & moved).sum()
        precision.append(hit / model.suspects_.sum())
        recall.append(hit / moved.sum())
        before, after = np.abs(shuffled - original)[moved], np.abs(shuffled[model.permutation_] - original)[moved]
        repaired.append(after.mean() / before.mean())
        assert np.array_equal(np.sort(model.permutation_), np.arange(1000))
    assert np.mean(precision) >= 0.95
    assert np.mean(recall) >= 0.95
    assert np.mean(repaired) < 0.05, "putting responses back undoes nearly all of the harm"


def test_unshuffle_is_the_best_assignment() -> None:
    rng = np.random.default_rng(0)
    y, f = rng.normal(size=12), rng.normal(size=12)
    suspects = np.arange(12) < 8
    order = unshuffle(y, f, suspects)
    rows, columns = linear_sum_assignment((y[None, :8] - f[:8, None]) ** 2)
    assert ((y[order] - f)[:8] ** 2).sum() == pytest.approx(((y[columns] - f[rows]) ** 2).sum())
    assert np.array_equal(order[8:], np.arange(8, 12))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"lam": 0.0}, "lam == 0.0, must be > 0"),
        ({"penalty": "l2"}, r"The 'penalty' parameter must be one of \{'l1', 'l0'\}. Got 'l2' instead"),
        ({"sigmas": -1.0}, "sigmas == -1.0, must be > 0"),
        ({"max_iter": 0}, "max_iter == 0, must be >= 1"),
    ],
)
def test_bad_parameters(params: dict[str, object], message: str) -> None:
    X, y, _, _ = data(0)
    with pytest.raises(ValueError, match=message):
        ShiftRegressor(**params).fit(X, y)
