"""SlackSVC against libsvm, against direct minimization of its equations, and against flipped labels."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from sklearn.datasets import load_iris, make_circles, make_classification
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.svm import SVC

from compensate.estimators import SlackSVC
from compensate.estimators.svm import flips

matplotlib.use("Agg")

SETS = [(80, 3, 0.5), (150, 5, 3.0), (40, 60, 1.0), (200, 8, 0.8)]  # overlapping, separable, more features than rows


def problem(n: int, d: int, separation: float, seed: int = 0):
    return make_classification(n, d, n_informative=3, n_redundant=0, class_sep=separation, random_state=seed)


def value(w: np.ndarray, b: float, X: np.ndarray, signs: np.ndarray, C: float) -> float:
    return 0.5 * w @ w + C * np.maximum(1 - signs * (X @ w + b), 0).sum()


@pytest.mark.parametrize("C", [1e-3, 0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize(("n", "d", "separation"), SETS)
@pytest.mark.parametrize("seed", [0, 1])
def test_equals_the_quadratic_program(n: int, d: int, separation: float, C: float, seed: int) -> None:
    X, y = problem(n, d, separation, seed)
    ours = SlackSVC(C=C).fit(X, y)
    theirs = SVC(kernel="linear", C=C, tol=1e-8).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-3)
    # The program's value, by its dual: libsvm's own primal point is the less exact of the two at large C.
    dual = np.abs(theirs.dual_coef_).sum() - 0.5 * (theirs.coef_**2).sum()
    primal = value(ours.coef_[0], ours.intercept_[0], X, 2 * y - 1, C)
    assert primal == pytest.approx(dual, rel=1e-6)
    assert primal == pytest.approx(ours.objective_, rel=1e-9)
    assert primal <= value(theirs.coef_[0], theirs.intercept_[0], X, 2 * y - 1, C) * (1 + 1e-9)
    np.testing.assert_allclose(ours.slacks_, np.maximum(1 - (2 * y - 1) * ours.decision_function(X), 0), atol=1e-7)


def test_sample_and_class_weights_are_those_of_libsvm() -> None:
    X, y = problem(80, 3, 0.5)
    w = np.random.default_rng(0).uniform(0, 3, size=80) * (np.arange(80) % 7 > 0)
    ours = SlackSVC(C=0.7, class_weight={0: 1.0, 1: 4.0}).fit(X, y, sample_weight=w)
    theirs = SVC(kernel="linear", C=0.7, tol=1e-5, class_weight={0: 1.0, 1: 4.0}).fit(X, y, sample_weight=w)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-3)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-3)


@pytest.mark.parametrize(("kernel", "params"), [("rbf", {"gamma": 0.5}), ("poly", {"gamma": 0.3, "degree": 2})])
def test_exact_kernel_is_libsvm(kernel: str, params: dict[str, float]) -> None:
    X, y = make_circles(120, noise=0.15, factor=0.5, random_state=0)
    ours = SlackSVC(C=2.0, kernel=kernel, **params).fit(X, y)
    theirs = SVC(C=2.0, kernel=kernel, coef0=1.0, tol=1e-7, **params).fit(X, y)
    fresh = np.random.default_rng(0).normal(size=(50, 2))
    np.testing.assert_allclose(ours.decision_function(fresh), theirs.decision_function(fresh), atol=1e-4)
    assert not hasattr(ours, "coef_")


def test_random_features_come_near_the_exact_kernel() -> None:
    X, y = make_circles(300, noise=0.1, factor=0.5, random_state=0)
    model = SlackSVC(kernel="rbf", gamma=2.0, random_features=400, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.97
    sampler = model._map
    np.testing.assert_allclose(sampler(X) @ sampler(X).T, rbf_kernel(X, gamma=2.0), atol=0.3)
    assert SlackSVC().fit(X, y).score(X, y) < 0.7


def solve_eq32(X: np.ndarray, signs: np.ndarray, lam: float) -> float:
    """Eq. (32) with every variable kept: w, b, slack xi and loss l' above both 0 and the hinge less xi."""
    n, d = X.shape

    def total(z: np.ndarray) -> float:
        return 0.5 * z[:d] @ z[:d] + z[d + 1 : d + 1 + n].sum() + lam * z[d + 1 + n :].sum()

    def gradient(z: np.ndarray) -> np.ndarray:
        return np.concatenate([z[:d], [0.0], np.ones(n), np.full(n, lam)])

    J = np.hstack([signs[:, None] * X, signs[:, None], np.eye(n), np.eye(n)])
    margins = {"type": "ineq", "fun": lambda z: J @ z - 1, "jac": lambda z: J}
    start = np.concatenate([np.zeros(d + 1), np.ones(n), np.ones(n)])
    bounds = [(None, None)] * (d + 1) + [(0, None)] * (2 * n)
    return minimize(total, start, jac=gradient, bounds=bounds, constraints=[margins], method="SLSQP",
                    options={"maxiter": 500, "ftol": 1e-14}).fun  # fmt: skip


@pytest.mark.parametrize("lam", [0.2, 0.9, 1.5, 8.0])
def test_eq32_is_minimized(lam: float) -> None:
    X, y = problem(24, 3, 0.4)
    model = SlackSVC(C=lam, form="eq32").fit(X, y)
    assert model.objective_ == pytest.approx(solve_eq32(X, 2 * y - 1, lam), rel=1e-6)


def test_several_classes_part_each_from_the_rest() -> None:
    X, y = load_iris(return_X_y=True)
    model = SlackSVC(C=0.5).fit(X, np.array(["a", "b", "c"])[y])
    assert model.coef_.shape == (3, 4)
    assert model.slacks_.shape == model.compensations_.shape == (150, 3)
    for k in range(3):
        theirs = SVC(kernel="linear", C=0.5, tol=1e-7).fit(X, y == k)
        np.testing.assert_allclose(model.coef_[k], theirs.coef_[0], atol=1e-3)
    assert model.score(X, np.array(["a", "b", "c"])[y]) > 0.9


@pytest.mark.parametrize("penalty", [0.3, 1.0, 2.5])
def test_flips_are_the_best_label_compensation(penalty: float) -> None:
    for margin in np.linspace(-5, 3, 41):
        tau = flips(np.array([margin]), penalty)[0]
        cost = lambda t, m=margin: max(0.0, 1 - (1 - t) * m) + penalty * t  # noqa: E731
        grid = min(cost(t) for t in np.linspace(0, 2, 401))
        fine = minimize_scalar(cost, bounds=(0, 2), method="bounded").fun
        assert 0 <= tau <= 2
        assert cost(tau) <= min(grid, fine) + 1e-9


def test_label_compensation_finds_flipped_labels() -> None:
    gains = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        clean = rng.integers(0, 2, 300)
        X = rng.normal(size=(300, 2)) * [0.6, 2.0] + np.where(clean, 1.5, -1.5)[:, None] * [1, 0]
        # Labels are wrong in one corner only, far from the boundary: what turns an ordinary machine most.
        wrong = (clean == 1) & (X[:, 1] > 1.5) & (X[:, 0] > 1) & (rng.random(300) < 0.6)
        y = np.where(wrong, 0, clean)
        loss, label = SlackSVC(C=1.0).fit(X, y), SlackSVC(C=1.0, compensate="label").fit(X, y)
        found = label.compensations_ != 0
        assert (found & wrong).sum() >= 0.9 * wrong.sum()
        assert (found & wrong).sum() >= 0.9 * found.sum()
        assert label.objective_ < loss.objective_
        gains.append(label.score(X, clean) - loss.score(X, clean))
    assert np.mean(gains) > 0.003
    assert min(gains) >= 0


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"C": 0.0}, "C == 0.0, must be > 0"),
        ({"form": "eq31"}, r"The 'form' parameter must be one of \{'eq33', 'eq32'\}. Got 'eq31' instead"),
        ({"compensate": "x"}, "The 'compensate' parameter must be one of"),
        ({"kernel": "x"}, "The 'kernel' parameter must be one of"),
        ({"random_features": 5}, "random_features needs kernel='rbf'"),
        ({"label_penalty": -2}, "label_penalty == -2, must be > 0"),
    ],
)
def test_bad_parameters(params: dict[str, object], message: str) -> None:
    X, y = problem(80, 3, 0.5)
    with pytest.raises(ValueError, match=message):
        SlackSVC(**params).fit(X, y)


@pytest.mark.parametrize("compensate", ["loss", "label"])
def test_plot(compensate: str) -> None:
    import matplotlib.pyplot as plt

    X, y = make_circles(80, noise=0.2, factor=0.5, random_state=0)
    model = SlackSVC(kernel="rbf", compensate=compensate, label_penalty=0.5).fit(X, y)
    drawn = {artist.get_label(): len(artist.get_offsets()) for artist in model.plot(X, y).collections}
    assert drawn["0"] + drawn["1"] == 80
    if compensate == "loss":
        assert drawn["slack (ring size)"] == (model.slacks_ > 1e-6).sum()
    else:
        assert drawn.get("label compensated", 0) == (model.compensations_ != 0).sum()
    iris = load_iris(return_X_y=True)
    assert SlackSVC().fit(*iris).plot(*iris).get_ylabel() == "margin"
    plt.close("all")
