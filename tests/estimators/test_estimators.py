"""Clustering, registration, regression and the support vector machine, against brute force and libraries."""

from __future__ import annotations

from itertools import combinations, product

import matplotlib
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment, minimize
from scipy.spatial.transform import Rotation
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris, make_circles, make_classification
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.svm import SVC

from compensate.core.proximal import soft_threshold
from compensate.estimators import MultiViewRobustClustering, RobustICP, RobustKMeans, ShiftRegressor, SlackSVC
from compensate.estimators.common import compensation, residual_cost
from compensate.estimators.registration import affine, rigid
from compensate.estimators.regression import unshuffle
from compensate.estimators.svm import flips

# Kmeans
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
        cost = residual_cost(np.linalg.norm(r)[None] if penalty == "l2" else np.abs(r), t, penalty).sum()
        assert value == pytest.approx(cost, abs=1e-8)
        for other in rng.normal(size=(200, 3)) * rng.choice([1e-3, 0.1, 2.0], size=(200, 1)):
            assert ((r + o + other) ** 2).sum() + 2 * t * norm(o + other) >= value - 1e-9


@pytest.mark.parametrize(("lam", "penalty"), [(1e6, "l2"), (np.inf, "l1"), (np.inf, "l2")])
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
    square = (((X + o)[:, None] - centers) ** 2).sum(2)
    likelihood = np.exp(-square / (2 * model.scale_**2)) @ model.mixture_
    return float((-2 * model.scale_**2 * np.log(likelihood) + model.lam_ * np.linalg.norm(o, axis=1)).sum())


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
    X = np.vstack([X, np.random.default_rng(0).uniform(-6, 6, size=(12, 2))])
    model = RobustKMeans(2, kernel="rbf", gamma=3.0, lam=1.6, n_init=20, tol=1e-14, random_state=0).fit(X)
    # Centers are weighted means of the mapped samples, by what compensation leaves of each.
    K = rbf_kernel(X, gamma=3.0)
    distance, fresh = model.transform(X), np.random.default_rng(1).normal(size=(10, 2))
    left = np.minimum(1, (model.lam_ / 2) / distance[np.arange(len(X)), model.labels_])
    for k in range(2):
        a = left * (model.labels_ == k) / (left * (model.labels_ == k)).sum()
        for points, found in ((X, distance), (fresh, model.transform(fresh))):
            by_kernel = np.sqrt(1 - 2 * rbf_kernel(points, X, gamma=3.0) @ a + a @ K @ a)
            np.testing.assert_allclose(found[:, k], by_kernel, atol=1e-5)


# Multiview
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


def test_without_compensation_it_is_pca() -> None:
    data, _, _ = views(1, corrupted=0.0)
    model = MultiViewRobustClustering(4, lam=np.inf, tol=1e-12, max_iter=2000, random_state=0).fit(data)
    assert not model.outliers_.any()
    scaled = model._scaled(data)
    pca = PCA(3).fit(scaled)
    expected = pca.transform(scaled)
    # The same plane, up to a turn within it.
    np.testing.assert_allclose(model.embedding_ @ model.embedding_.T, expected @ expected.T, atol=1e-3)
    assert model.inertia_ == pytest.approx(((scaled - pca.inverse_transform(expected)) ** 2).sum(), rel=1e-6)


@pytest.mark.parametrize("level", ["view", "sample"])
def test_representation_is_the_minimum_for_its_bases(level: str) -> None:
    data, _, _ = views(2, n=60)
    model = MultiViewRobustClustering(4, level=level, penalty="l21", random_state=0).fit(data)
    scaled, t = model._scaled(data) - model._mean, model.lam_ / 2
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


# Registration
def cloud(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """A closed curve with unequal lobes, or a bracket of three unequal plates; of size about one."""
    if d == 2:
        angle = rng.uniform(0, 2 * np.pi, n)
        radius = 1 + 0.3 * np.cos(2 * angle) + 0.25 * np.sin(3 * angle)
        return radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    plate = rng.choice(3, n, p=[0.45, 0.35, 0.2])
    corner = np.array([[-1, -0.6, -0.1], [-1, -0.6, -0.1], [0.4, 0.2, -0.1]])[plate]
    return corner + rng.random((n, 3)) * np.array([[2, 1.2, 0], [0, 1.2, 1.0], [0.6, 0, 0.6]])[plate]


def scene(seed: int, d: int, outliers: float = 0.3, n: int = 400):
    """Source and target sampled apart from one shape, the source with noise 0.01 and clutter on one side, turned by 10
    to 30 degrees about any axis and displaced by up to 0.3. Returns source, target, rotation, translation."""
    rng = np.random.default_rng(seed)
    target, source = cloud(rng, 1500, d), cloud(rng, n, d) + 0.01 * rng.normal(size=(n, d))
    k = round(outliers * n)
    source[:k] = rng.uniform(-0.8, 0.8, size=(k, d)) + np.eye(d)[0] * 2
    angle = np.deg2rad(rng.uniform(10, 30)) * rng.choice([-1, 1])
    axis = rng.normal(size=3) if d == 3 else np.array([0.0, 0.0, 1.0])
    R = Rotation.from_rotvec(angle * axis / np.linalg.norm(axis)).as_matrix()[:d, :d]
    b = rng.uniform(-0.3, 0.3, d)
    return (source - b) @ R, target, R, b


def degrees(A: np.ndarray, B: np.ndarray) -> float:
    """The angle of the turn that is left between two rotations."""
    cosine = (np.trace(A.T @ B) - (len(A) - 2)) / 2
    return float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))


@pytest.mark.slow
@pytest.mark.parametrize("d", [2, 3])
def test_recovers_a_motion_with_clutter_where_plain_icp_does_not(d: int) -> None:
    robust = plain = control = 0
    for seed in range(20):
        source, target, R, _ = scene(seed, d)
        robust += degrees(RobustICP().fit(source, target).rotation_, R) <= 2
        plain += degrees(RobustICP(lam=np.inf).fit(source, target).rotation_, R) <= 2
        # The set-up is fair: without clutter plain ICP does it.
        source, target, R, _ = scene(seed, d, outliers=0.0)
        control += degrees(RobustICP(lam=np.inf).fit(source, target).rotation_, R) <= 2
    assert min(robust, control) >= 18
    assert plain <= 5


def test_rigid_step_is_scipys_and_affine_step_least_squares() -> None:
    rng = np.random.default_rng(0)
    P, Q, w = rng.normal(size=(30, 3)), rng.normal(size=(30, 3)), rng.uniform(0.1, 2, 30)
    R, b = rigid(P, Q, w)
    p, q = np.average(P, axis=0, weights=w), np.average(Q, axis=0, weights=w)
    expected, _ = Rotation.align_vectors(Q - q, P - p, weights=w)
    np.testing.assert_allclose(R, expected.as_matrix(), atol=1e-9)
    np.testing.assert_allclose(b, q - R @ p, atol=1e-9)
    assert np.linalg.det(rigid(P, P * [1, 1, -1], w)[0]) == pytest.approx(1), "a reflection is not a rotation"
    M = rng.normal(size=(3, 3))
    np.testing.assert_allclose(affine(P, P @ M.T + q, w)[0], M, atol=1e-9)
    np.testing.assert_allclose(affine(P, P @ M.T + q, w)[1], q, atol=1e-9)


def test_nonrigid_motion_bends_where_a_rigid_one_cannot() -> None:
    rng = np.random.default_rng(0)
    flat = cloud(rng, 250, 2)
    bend = flat + 0.25 * np.column_stack([np.zeros(250), flat[:, 0] ** 2])
    source = np.vstack([flat, rng.uniform(1.8, 3.0, size=(50, 2))])
    errors = {}
    for motion in ("rigid", "nonrigid"):
        model = RobustICP(motion, smoothness=0.3).fit(source, bend)
        moved = model.transform(flat)
        errors[motion] = np.linalg.norm(moved[:, None] - bend, axis=2).min(1).mean()
    assert errors["nonrigid"] < 0.3 * errors["rigid"]
    assert errors["nonrigid"] < 0.02
    assert model.outliers_[250:].all()
    assert np.abs(model.transform(flat + 1e-3) - model.transform(flat)).max() < 6e-3, "neighbors move alike"


@pytest.mark.slow
def test_further_starts_find_a_large_turn() -> None:
    rng = np.random.default_rng(0)
    target = cloud(rng, 500, 2)
    R = Rotation.from_euler("z", 150, degrees=True).as_matrix()[:2, :2]
    source = target[:300] @ R
    assert degrees(RobustICP(random_state=0).fit(source, target).rotation_, R) > 20
    assert degrees(RobustICP(n_init=15, random_state=0).fit(source, target).rotation_, R) < 1
    start = np.eye(3)
    start[:2, :2] = R
    assert degrees(RobustICP(init=start).fit(source, target).rotation_, R) < 1


# Shift regression
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


@pytest.mark.parametrize(
    ("seed", "t", "weighted"), [*product(range(3), [0.05, 0.3, 1.0, 10.0, 1e4], [False]), (3, 0.7, True)]
)
def test_l1_is_the_minimum_of_hubers_loss(seed: int, t: float, weighted: bool) -> None:
    X, y, _, _ = data(seed)
    w = np.random.default_rng(0).integers(0, 4, len(y)).astype(float) if weighted else np.ones(len(y))
    model = ShiftRegressor(lam=t).fit(X, y, sample_weight=w)
    np.testing.assert_allclose(np.append(model.coef_, model.intercept_), scipy_huber(X, y, t, w), atol=1e-6)
    np.testing.assert_array_equal(model.shifts_, soft_threshold(y - model.predict(X), t))


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


# Svm
CIRCLES = make_circles(120, noise=0.15, factor=0.5, random_state=0)
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


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (problem(80, 3, 0.5), {"kernel": "linear", "C": 0.7, "class_weight": {0: 1.0, 1: 4.0}}),
        (CIRCLES, {"kernel": "rbf", "C": 2.0, "gamma": 0.5}),
        (CIRCLES, {"kernel": "poly", "C": 2.0, "gamma": 0.3, "degree": 2, "coef0": 1.0}),
        (load_iris(return_X_y=True), {"kernel": "linear", "C": 0.5}),
    ],
)
def test_kernels_weights_and_several_classes_are_those_of_libsvm(data: tuple, options: dict[str, object]) -> None:
    X, y = data
    w = np.random.default_rng(0).uniform(0, 3, len(y)) * (np.arange(len(y)) % 7 > 0)
    ours = SlackSVC(**options).fit(X, y, sample_weight=w)
    scores = ours.decision_function(X).reshape(len(y), -1)
    for k in [1] if y.max() == 1 else range(3):
        theirs = SVC(tol=1e-7, **options).fit(X, y == k, sample_weight=w)
        np.testing.assert_allclose(scores[:, k % scores.shape[1]], theirs.decision_function(X), atol=1e-3)
    assert ours.slacks_.shape == ours.compensations_.shape == ((len(y), 3) if y.max() > 1 else (len(y),))
    assert hasattr(ours, "coef_") == (options["kernel"] == "linear")


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
    price = np.concatenate([[0.0], np.ones(n), np.full(n, lam)])

    def total(z: np.ndarray) -> tuple[float, np.ndarray]:
        return 0.5 * z[:d] @ z[:d] + price @ z[d:], np.concatenate([z[:d], price])

    J = np.hstack([signs[:, None] * X, signs[:, None], np.eye(n), np.eye(n)])
    margins = {"type": "ineq", "fun": lambda z: J @ z - 1, "jac": lambda z: J}
    start = np.concatenate([np.zeros(d + 1), np.ones(n), np.ones(n)])
    bounds = [(None, None)] * (d + 1) + [(0, None)] * (2 * n)
    return minimize(total, start, jac=True, bounds=bounds, constraints=[margins], method="SLSQP",
                    options={"maxiter": 500, "ftol": 1e-14}).fun  # fmt: skip


@pytest.mark.parametrize("lam", [0.2, 0.9, 1.5, 8.0])
def test_eq32_is_minimized(lam: float) -> None:
    X, y = problem(24, 3, 0.4)
    model = SlackSVC(C=lam, form="eq32").fit(X, y)
    assert model.objective_ == pytest.approx(solve_eq32(X, 2 * y - 1, lam), rel=1e-6)


@pytest.mark.parametrize("penalty", [0.3, 1.0, 2.5])
def test_flips_are_the_best_label_compensation(penalty: float) -> None:
    for margin in np.linspace(-5, 3, 41):
        tau = flips(np.array([margin]), penalty)[0]
        cost = lambda t, m=margin: max(0.0, 1 - (1 - t) * m) + penalty * t  # noqa: E731
        assert 0 <= tau <= 2
        assert cost(tau) <= min(cost(t) for t in np.linspace(0, 2, 401)) + 1e-9


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


BAD = [
    (RobustKMeans, {"n_clusters": 0}, r"n_clusters == 0, must be >= 1"),
    (RobustKMeans, {"n_clusters": 300}, r"n_samples=222 should be >= n_clusters=300"),
    (RobustKMeans, {"lam": -1.0}, r"lam == -1.0, must be > 0"),
    (RobustKMeans, {"lam": np.nan}, r"lam == nan, must be a number"),
    (RobustKMeans, {"contamination": 0.6}, r"contamination == 0.6, must be < 0.5"),
    (RobustKMeans, {"penalty": "l3"}, r"The 'penalty' parameter must be one of \{'l2', 'l1'\}. Got 'l3' instead"),
    (RobustKMeans, {"kernel": "rbf", "penalty": "l1"}, r"use penalty='l2'"),
    (RobustKMeans, {"random_features": 10}, r"random_features needs kernel='rbf'"),
    (RobustKMeans, {"kernel": "rbf", "gamma": -1.0}, r"gamma == -1.0, must be > 0"),
    (MultiViewRobustClustering, {"n_clusters": 90}, "n_samples=60 should be >= n_clusters=90"),
    (MultiViewRobustClustering, {"level": "corpus"}, r"The 'level' parameter must be one of"),
    (RobustICP, {"width": 0}, "width == 0, must be > 0"),
    (RobustICP, {"init": np.eye(2)}, r"init has shape \(2, 2\), but \(3, 3\) was expected"),
    (ShiftRegressor, {"sigmas": -1.0}, "sigmas == -1.0, must be > 0"),
    (ShiftRegressor, {"tol": -1.0}, "tol == -1.0, must be >= 0"),
    (SlackSVC, {"compensate": "x"}, "The 'compensate' parameter must be one of"),
    (SlackSVC, {"random_features": 5}, "random_features needs kernel='rbf'"),
]
SAMPLES = {
    RobustKMeans: lambda: blobs(0)[:1], MultiViewRobustClustering: lambda: views(0, n=60)[:1],
    RobustICP: lambda: scene(0, 2, n=50)[:2], ShiftRegressor: lambda: data(0)[:2], SlackSVC: lambda: problem(80, 3, 0.5),
}  # fmt: skip


@pytest.mark.parametrize(("estimator", "params", "message"), BAD)
def test_parameters_that_make_no_sense_are_refused(estimator: type, params: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimator(**params).fit(*SAMPLES[estimator]())
