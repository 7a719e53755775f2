"""RobustKMeans against brute force, plain k-means and the optimality conditions of its equation."""

from __future__ import annotations

from itertools import product

import matplotlib
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.cluster import KMeans
from sklearn.datasets import make_circles
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.pairwise import rbf_kernel

from compensate.estimators import RobustKMeans
from compensate.estimators.kmeans import compensation, profile

matplotlib.use("Agg")


def blobs(seed: int, n: int = 200, k: int = 4, outliers: float = 0.1, spread: float = 0.6):
    """Clusters on a ring, with a share of gross outliers spread over a box ten times as wide."""
    rng = np.random.default_rng(seed)
    angle = 2 * np.pi * np.arange(k) / k
    truth = np.repeat(np.arange(k), n // k)
    X = 3 * np.column_stack([np.cos(angle), np.sin(angle)])[truth] + spread * rng.normal(size=(len(truth), 2))
    far = rng.uniform(-30, 30, size=(round(outliers * n / (1 - outliers)), 2))
    return np.vstack([X, far]), truth


def brute_force(X: np.ndarray, k: int, lam: float, penalty: str) -> float:
    """The least value of Eq. (21) over all assignments; every group's center and compensations by scipy."""
    t, best = lam / 2, {}

    def group_cost(m: np.ndarray, members: np.ndarray) -> float:
        size = np.linalg.norm(members - m, axis=1) if penalty == "l2" else np.abs(members - m).ravel()
        return float(np.where(size <= t, size**2, 2 * t * size - t**2).sum())

    def group(members: tuple[int, ...]) -> float:
        if members not in best:
            found = minimize(group_cost, np.median(X[list(members)], axis=0), (X[list(members)],), tol=1e-12)
            best[members] = found.fun
        return best[members]

    costs = []
    for rest in product(range(k), repeat=len(X) - 1):
        label = np.array((0, *rest))
        costs.append(sum(group(tuple(np.flatnonzero(label == c))) for c in range(k) if (label == c).any()))
    return min(costs)


@pytest.mark.slow
@pytest.mark.parametrize("penalty", ["l2", "l1"])
@pytest.mark.parametrize(("seed", "lam", "k"), [(0, 0.5, 2), (1, 1.5, 2), (2, 4.0, 2), (3, 1.0, 3)])
def test_equals_brute_force(seed: int, lam: float, k: int, penalty: str) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(7, 2)) * 2
    X[0] += 8
    model = RobustKMeans(k, lam=lam, penalty=penalty, n_init=60, tol=1e-14, max_iter=3000, random_state=0).fit(X)
    assert model.inertia_ == pytest.approx(brute_force(X, k, lam, penalty), abs=1e-6)


@pytest.mark.parametrize("penalty", ["l2", "l1"])
def test_profile_is_the_minimum_over_the_compensation(penalty: str) -> None:
    rng = np.random.default_rng(0)
    for r in rng.normal(size=(20, 3)) * 2:
        t = float(rng.uniform(0.2, 3))
        norm = (lambda o: np.sqrt((o**2).sum() + 1e-20)) if penalty == "l2" else (lambda o: np.abs(o).sum())
        o = compensation(r[None], t, penalty)[0]
        value = ((r + o) ** 2).sum() + 2 * t * norm(o)
        cost = profile(np.linalg.norm(r)[None] if penalty == "l2" else np.abs(r), t).sum()
        assert value == pytest.approx(cost, abs=1e-8)
        for other in rng.normal(size=(200, 3)) * rng.choice([1e-3, 0.1, 2.0], size=(200, 1)):
            assert ((r + o + other) ** 2).sum() + 2 * t * norm(o + other) >= value - 1e-9


@pytest.mark.parametrize("lam", [1e6, np.inf])
@pytest.mark.parametrize("penalty", ["l2", "l1"])
def test_is_kmeans_when_lambda_is_large(lam: float, penalty: str) -> None:
    X, _ = blobs(0, k=5, outliers=0.0)
    ours = RobustKMeans(5, lam=lam, penalty=penalty, tol=1e-12, random_state=0).fit(X)
    theirs = KMeans(5, n_init=20, tol=0, random_state=0).fit(X)
    assert not ours.outliers_.any()
    assert ours.inertia_ == pytest.approx(theirs.inertia_, rel=1e-9)
    assert adjusted_rand_score(ours.labels_, theirs.labels_) == 1
    order = lambda centers: centers[np.lexsort(centers.T)]  # noqa: E731
    np.testing.assert_allclose(order(ours.cluster_centers_), order(theirs.cluster_centers_), atol=1e-9)


def test_path_falls_from_no_outlier_and_names_the_lambda_of_a_share() -> None:
    X, _ = blobs(2, spread=0.3)
    model = RobustKMeans(4, random_state=0)
    path = model.path(X, n_lams=15)
    assert path.shares[0] == 0
    assert path.shares[-1] > 0.2
    assert (np.diff(path.lams) < 0).all()
    assert (np.diff(path.inertias) < 1e-9).all(), "a smaller penalty cannot cost more"
    true_share = 22 / 222
    assert np.isclose(path.shares, true_share).sum() >= 3, "over a range of lambda exactly the outliers are found"
    lam = path.lam_for(true_share)
    again = RobustKMeans(4, lam=lam, random_state=0).fit(X)
    assert again.outliers_.mean() == pytest.approx(true_share)
    given = model.path(X, lams=[1.0, 8.0, 4.0])
    assert given.lams.tolist() == [8, 4, 1]


def soft_value(model: RobustKMeans, X: np.ndarray, centers: np.ndarray, o: np.ndarray) -> float:
    """The soft objective, written out."""
    total = 0.0
    for x, shift in zip(X, o, strict=True):
        parts = [
            pi * np.exp(-((x + shift - m) ** 2).sum() / (2 * model.scale_**2))
            for pi, m in zip(model.mixture_, centers, strict=True)
        ]
        total += -2 * model.scale_**2 * np.log(sum(parts)) + model.lam_ * np.linalg.norm(shift)
    return total


def test_soft_variant_is_a_minimum_of_its_objective() -> None:
    X, _ = blobs(4, n=60, spread=1.2)
    model = RobustKMeans(4, soft=True, tol=1e-12, max_iter=5000, random_state=0).fit(X)
    value = soft_value(model, X, model.cluster_centers_, model.compensations_)
    assert value == pytest.approx(model.inertia_, rel=1e-6)
    rng = np.random.default_rng(0)
    for _ in range(20):
        moved = model.cluster_centers_ + 1e-2 * rng.normal(size=model.cluster_centers_.shape)
        assert soft_value(model, X, moved, model.compensations_) > value
        shifted = model.compensations_ + 1e-2 * rng.normal(size=X.shape)
        assert soft_value(model, X, model.cluster_centers_, shifted) > value
    np.testing.assert_allclose(model.responsibilities_.sum(1), 1)
    np.testing.assert_allclose(model.predict_proba(X), model.responsibilities_, atol=1e-6)
    assert np.array_equal(model.predict(X), model.labels_)
    assert not hasattr(RobustKMeans(), "predict_proba")


def test_rbf_kernel_equals_distances_by_the_kernel_trick() -> None:
    X, _ = make_circles(120, noise=0.05, factor=0.3, random_state=0)
    far = np.random.default_rng(0).uniform(-6, 6, size=(12, 2))
    X = np.vstack([X, far])
    model = RobustKMeans(2, kernel="rbf", gamma=3.0, lam=1.6, n_init=20, tol=1e-14, random_state=0).fit(X)
    # Centers are weighted means of the mapped samples, by what compensation leaves of each.
    K = rbf_kernel(X, gamma=3.0)
    distance = model.transform(X)
    left = np.minimum(1, (model.lam_ / 2) / distance[np.arange(len(X)), model.labels_])
    for k in range(2):
        a = left * (model.labels_ == k) / (left * (model.labels_ == k)).sum()
        by_kernel = np.sqrt(1 - 2 * K @ a + a @ K @ a)
        np.testing.assert_allclose(distance[:, k], by_kernel, atol=1e-5)
    fresh = np.random.default_rng(1).normal(size=(10, 2))
    a = left * (model.labels_ == 0) / (left * (model.labels_ == 0)).sum()
    expected = np.sqrt(1 - 2 * rbf_kernel(fresh, X, gamma=3.0) @ a + a @ K @ a)
    np.testing.assert_allclose(model.transform(fresh)[:, 0], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_clusters": 0}, r"n_clusters == 0, must be >= 1"),
        ({"n_clusters": 300}, r"n_samples=222 should be >= n_clusters=300"),
        ({"lam": -1.0}, r"lam == -1.0, must be > 0"),
        ({"contamination": 0.6}, r"contamination == 0.6, must be < 0.5"),
        ({"penalty": "l3"}, r"The 'penalty' parameter must be one of \{'l2', 'l1'\}. Got 'l3' instead"),
        ({"kernel": "tanh"}, r"The 'kernel' parameter must be one of"),
        ({"kernel": "rbf", "penalty": "l1"}, r"use penalty='l2'"),
        ({"random_features": 10}, r"random_features needs kernel='rbf'"),
        ({"kernel": "rbf", "gamma": -1.0}, r"gamma == -1.0, must be > 0"),
    ],
)
def test_bad_parameters(params: dict[str, object], message: str) -> None:
    X, _ = blobs(0)
    with pytest.raises(ValueError, match=message):
        RobustKMeans(**params).fit(X)


@pytest.mark.parametrize("d", [1, 2, 4])
def test_plot_shows_every_outlier(d: int) -> None:
    import matplotlib.pyplot as plt

    X, _ = blobs(9)
    X = np.hstack([X, X])[:, :d]
    model = RobustKMeans(4, random_state=0).fit(X)
    ax = model.plot(X)
    drawn = {artist.get_label(): len(artist.get_offsets()) for artist in ax.collections}
    assert drawn["outlier and its compensation"] == model.outliers_.sum()
    assert drawn["center"] == 4
    plt.close("all")
