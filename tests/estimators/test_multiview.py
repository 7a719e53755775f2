"""MultiViewRobustClustering: corrupted views, PCA as its limit, optimality, and the conventions of estimators."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score

from compensate.estimators import MultiViewRobustClustering

matplotlib.use("Agg")


def views(seed: int, n: int = 200, k: int = 4, widths: tuple[int, ...] = (20, 12, 30), corrupted: float = 0.1):
    """Clusters seen in several views of different scale; a share of the rows of each view is replaced by gross noise."""
    rng = np.random.default_rng(seed)
    truth = np.arange(n) % k
    data, wrong = [], []
    for v, d in enumerate(widths):
        clean = 1.2 * rng.normal(size=(k, d))[truth] + rng.normal(size=(n, d))
        bad = rng.random(n) < corrupted
        clean[bad] = 15 * rng.normal(size=(bad.sum(), d))
        data.append(10.0**v * clean)
        wrong.append(bad)
    return data, truth, np.stack(wrong, axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.2])
def test_beats_kmeans_on_corrupted_views(share: float) -> None:
    ours, theirs, precision, recall = [], [], [], []
    for seed in range(10):
        data, truth, wrong = views(seed, corrupted=share)
        model = MultiViewRobustClustering(4, random_state=seed).fit(data)
        ours.append(adjusted_rand_score(truth, model.labels_))
        joined = np.hstack([x / x.std() for x in data])
        theirs.append(adjusted_rand_score(truth, KMeans(4, n_init=10, random_state=seed).fit_predict(joined)))
        precision.append((model.outliers_ & wrong).sum() / model.outliers_.sum())
        recall.append((model.outliers_ & wrong).sum() / wrong.sum())
    assert np.mean(ours) > 0.9
    assert np.mean(ours) > np.mean(theirs) + 0.3
    assert np.mean(precision) > 0.8
    assert np.mean(recall) > 0.85


def test_without_compensation_it_is_pca() -> None:
    data, _, _ = views(1, corrupted=0.0)
    model = MultiViewRobustClustering(4, lam=np.inf, tol=1e-12, max_iter=2000, random_state=0).fit(data)
    assert not model.outliers_.any()
    scaled = model._scale(data)
    pca = PCA(3).fit(scaled)
    expected = pca.transform(scaled)
    # The same plane, up to a turn within it.
    np.testing.assert_allclose(model.embedding_ @ model.embedding_.T, expected @ expected.T, atol=1e-3)
    assert model.inertia_ == pytest.approx(((scaled - pca.inverse_transform(expected)) ** 2).sum(), rel=1e-6)


@pytest.mark.parametrize("level", ["view", "sample"])
def test_representation_is_the_minimum_for_its_bases(level: str) -> None:
    data, _, _ = views(2, n=60)
    model = MultiViewRobustClustering(4, level=level, penalty="l21", random_state=0).fit(data)
    scaled, t = model._scale(data) - model._mean, model.lam_ / 2
    cuts = np.cumsum([20, 12])

    def cost(h: np.ndarray, row: np.ndarray) -> float:
        left = row - h @ model._basis
        r = np.array([np.linalg.norm(part) for part in (np.split(left, cuts) if level == "view" else [left])])
        return float(np.where(r <= t, r**2, 2 * t * r - t**2).sum())

    total = 0.0
    for i in range(60):
        here = cost(model.embedding_[i], scaled[i])
        total += here
        inside = {"type": "ineq", "fun": lambda h: model._radius**2 - h @ h}
        best = minimize(cost, 0.9 * model.embedding_[i], (scaled[i],), constraints=[inside], method="SLSQP")
        assert here <= best.fun + 1e-4
    assert model.inertia_ == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_clusters": 0}, "n_clusters == 0, must be >= 1"),
        ({"n_clusters": 90}, "n_samples=60 should be >= n_clusters=90"),
        ({"level": "corpus"}, r"The 'level' parameter must be one of \{'view', 'sample'\}. Got 'corpus' instead"),
        ({"contamination": 0.5}, "contamination == 0.5, must be < 0.5"),
        ({"lam": 0}, "lam == 0, must be > 0"),
    ],
)
def test_bad_parameters(params: dict[str, object], message: str) -> None:
    data, _, _ = views(0, n=60)
    with pytest.raises(ValueError, match=message):
        MultiViewRobustClustering(**params).fit(data)


def test_bad_data() -> None:
    data, _, _ = views(0, n=60)
    model = MultiViewRobustClustering(2)
    with pytest.raises(TypeError, match="X should be a list of views"):
        model.fit(data[0])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit([data[0], data[1][:-1]])
    with pytest.raises(ValueError, match="Input view 1 contains NaN"):
        model.fit([data[0], np.full((60, 2), np.nan)])
    with pytest.raises(
        ValueError, match=r"X has views with \[20\] features, but MultiViewRobustClustering is expecting"
    ):
        model.fit(data).predict(data[:1])
