"""Robust k-means: outliers are compensated instead of moving the centers.

Use it if a part of the samples belongs to no cluster and would move the centers. With an infinite penalty it is plain k-means. It
does not help against outliers that form a dense group: such a group is a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from scipy.sparse import csc_array
from scipy.special import logsumexp, softmax
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from compensate.core.proximal import group_soft_threshold, soft_threshold
from compensate.estimators import common
from compensate.estimators.common import KernelMap, check_parameters, check_random_features, weighted_quantile, weights

PROX = {"l2": group_soft_threshold, "l1": soft_threshold}
ROWS = 2048  # samples per block; their distances fit into the cache
SOFT_STEPS = 1000  # maximum alternations between memberships and compensations of new samples


def profile(r: np.ndarray, t: float) -> np.ndarray:
    r"""The cost of a residual of size `r` with its best compensation: :math:`\min_o (r+o)^2 + 2t|o|`.

    This is twice Huber's loss: :math:`r^2` up to `t`, then the line :math:`2tr - t^2`.

    >>> profile(np.array([1.0, 3.0]), 2.0)
    array([1., 8.])
    """
    return r**2 - np.maximum(r - t, 0) ** 2


def compensation(residual: np.ndarray, t: float, penalty: str) -> np.ndarray:
    r"""The best :math:`o_i` for :math:`\|r_i + o_i\|^2 + 2t\|o_i\|`, to be added to :math:`x_i`."""
    return np.zeros_like(residual) if np.isinf(t) else -PROX[penalty](residual, t)


def nearest_center(X: np.ndarray, centers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest center of each sample and its distance, both (n,).

    >>> nearest_center(np.array([[0.0, 1.0], [4.0, 3.0]]), np.array([[0.0, 0.0], [4.0, 0.0]]))
    (array([0, 1]), array([1., 3.]))
    """
    return _nearest(_columns(X), np.einsum("ij,ij->i", X, X), centers)


def _columns(X: np.ndarray) -> np.ndarray:
    """(d + 1, n) the samples as columns with a one appended; products with centers are twice as fast as for rows."""
    return np.ascontiguousarray(np.vstack([X.T, np.ones((1, len(X)), X.dtype)]))


def _nearest(
    columns: np.ndarray, square: np.ndarray, centers: np.ndarray, out: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """`nearest_center` for samples as `_columns` with their squared lengths. The result overwrites `out`: buffers are reused."""
    # |x - m|^2 - |x|^2 = (-2m, |m|^2) (x, 1) is one matrix product.
    product, k, n = np.hstack([-2 * centers, (centers**2).sum(1)[:, None]]), len(centers), columns.shape[1]
    labels, distance = (np.empty(n, np.intp), np.empty(n, columns.dtype)) if out is None else out
    size = min(ROWS, n)
    # The minimum of each column and the first center that attains it are vectorized; argmin over short rows takes twice as long.
    held, kind = np.empty((k, size), columns.dtype), np.min_scalar_type(k)
    nearest, codes = np.empty((k, size), bool), np.empty((k, size), kind)
    left = np.arange(k, 0, -1, dtype=kind)[:, None]
    for start in range(0, n, ROWS):
        part, size = slice(start, start + ROWS), min(ROWS, n - start)
        values = np.matmul(product, columns[:, part], out=held[:, :size])
        least = np.min(values, axis=0, out=distance[part])
        code = np.multiply(np.equal(values, least, out=nearest[:, :size]).view(np.uint8), left, out=codes[:, :size])
        np.subtract(k, code.max(0, initial=1), out=labels[part], dtype=np.intp)  # NaN gives the last center
    distance += square
    return labels, np.sqrt(np.maximum(distance, 0, out=distance), out=distance)


@dataclass(frozen=True)
class _Problem:
    """The centered samples, their weights, and the threshold t = lambda / 2, or None to choose it by `contamination`.

    Residual sizes `r` are (n,) for the l2 penalty and (n, d) for l1.
    """

    X: np.ndarray
    w: np.ndarray | None
    penalty: str
    t: float | None
    contamination: float

    @cached_property
    def columns(self) -> np.ndarray:
        return _columns(self.X)

    @cached_property
    def square(self) -> np.ndarray:
        return np.einsum("ij,ij->i", self.X, self.X)

    @cached_property
    def floor(self) -> float:
        """A length that counts as zero for these data."""
        return 1e-6 * float(np.sqrt(np.average(self.square, weights=self.w)))

    def assign(self, centers: np.ndarray, out: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Labels, by the least cost, and residual sizes."""
        if self.penalty == "l2":
            return _nearest(self.columns, self.square, centers, out)
        t = self.t
        if t is None:
            labels, _ = _nearest(self.columns, self.square, centers)
            t = self.level(np.abs(self.X - centers[labels]))
        labels = np.stack([profile(np.abs(self.X - m), t).sum(1) for m in centers], axis=1).argmin(1)
        return labels, np.abs(self.X - centers[labels])

    def level(self, r: np.ndarray) -> float:
        """The threshold: as given, or the distance that the expected share of the samples exceeds."""
        if self.t is not None:
            return self.t
        # Distances due to rounding are not outliers, even if most samples lie on their centers.
        return max(weighted_quantile(r if r.ndim == 1 else r.max(1), 1 - self.contamination, self.w), self.floor)

    def total(self, values: np.ndarray) -> float:
        """The weighted sum of values (n,) or (n, d)."""
        each = values if values.ndim == 1 else values.sum(1)
        return float(each.sum() if self.w is None else each @ self.w)

    def cost(self, r: np.ndarray, t: float) -> float:
        """Eq. (21) with the best compensations."""
        return self.total(profile(r, t))

    def trimmed(self, r: np.ndarray, t: float) -> float:
        """The plain cost of the samples within `t`, comparable between starts with different thresholds."""
        each = r**2 if r.ndim == 1 else (r**2).sum(1)
        return self.total(each * _within(r, t * (1 + 1e-9)))  # equal samples must not be separated by rounding

    def centers(self, old: np.ndarray, labels: np.ndarray, r: np.ndarray, t: float) -> np.ndarray:
        """The centers of a majorize-minimize step for Eq. (21): means weighted by the uncompensated share of each residual."""
        n, k = len(self.X), len(old)
        if np.isinf(t):
            left = np.ones_like(r)
        else:
            left = t / np.maximum(r, t) if t > 0 else (r == 0).astype(r.dtype)
        if self.w is not None:
            left = left * (self.w if r.ndim == 1 else self.w[:, None])
        if left.ndim == 1:
            member = csc_array((left, labels, np.arange(n + 1)), shape=(k, n))
            mass, total = np.bincount(labels, left, k)[:, None], member @ self.X
        else:
            member = csc_array((np.ones(n, self.X.dtype), labels, np.arange(n + 1)), shape=(k, n))
            mass, total = member @ left, member @ (left * self.X)
        new = np.divide(total, mass, out=old.copy(), where=mass > 0)
        empty = np.flatnonzero(np.bincount(labels, self.w, k) == 0)
        if len(empty):
            # An empty cluster moves to the farthest samples that are not outliers.
            far = r if r.ndim == 1 else np.sqrt((r**2).sum(1))
            inside = _within(r, t) & (True if self.w is None else self.w > 0)
            candidates = np.lexsort((*self.X.T, np.where(inside, far, -far)))[::-1]
            new[empty] = self.X[candidates[: len(empty)]]
        return new


def _within(r: np.ndarray, t: float) -> np.ndarray:
    """(n,) true for samples without compensation."""
    return np.asarray(r <= t if r.ndim == 1 else (r <= t).all(1))


def _seeds(problem: _Problem, k: int, random: np.random.RandomState) -> np.ndarray:
    """Initial centers by greedy k-means++ with capped squared distances, which keeps outliers from being chosen.

    The cap is the distance that the expected share of the samples exceeds, or lambda / 2 if that is larger: without a
    penalty this is plain k-means++. Draws run over the samples by their distance from the mean: the result does not depend on the
    order of the rows, on a rotation, or on whether a sample is given twice or has weight two.
    """
    X, square = problem.X, problem.square
    w = np.ones(len(X)) if problem.w is None else problem.w
    trials = 2 + int(np.log(k))
    order = np.argsort(square, kind="stable")

    def draw(probability: np.ndarray, size: int) -> np.ndarray:
        mass = np.cumsum(probability[order])
        return order[np.minimum(np.searchsorted(mass, random.uniform(size=size) * mass[-1], side="right"), len(X) - 1)]

    def squared_distances(picks: Any) -> np.ndarray:
        return np.maximum(square - 2 * X[picks] @ X.T + square[picks, None], 0)

    chosen = [int(draw(w, 1)[0])]
    distance = squared_distances(chosen)[0]
    for _ in range(1, k):
        cap = max(weighted_quantile(distance, 1 - problem.contamination, problem.w), (problem.t or 0) ** 2)
        cost = np.minimum(distance, cap) * w
        picks = draw(cost if cost.sum() > 0 else w, trials)
        closer = np.minimum(distance, squared_distances(picks))
        best = int(np.argmin(np.minimum(closer, cap) @ w))
        chosen.append(int(picks[best]))
        distance = closer[best]
    return X[chosen]


def _descend(
    problem: _Problem, centers: np.ndarray, max_iter: int, tol: float
) -> tuple[np.ndarray, np.ndarray, float, int]:
    """Alternates assignment, compensation and centers. Returns centers, residual sizes, threshold and steps."""
    steps, buffers = 0, None
    while steps < max_iter:
        steps += 1
        buffers = labels, r = problem.assign(centers, buffers)
        new = problem.centers(centers, labels, r, problem.level(r))
        shift = float(((new - centers) ** 2).sum())
        centers = new
        if shift <= tol:
            break
    _, r = problem.assign(centers)
    return centers, r, problem.level(r), steps


@dataclass(frozen=True)
class LambdaPath:
    """Solutions of Eq. (21) from the largest penalty, where nothing is compensated, down to the smallest.

    >>> from compensate.estimators import RobustKMeans
    >>> x = np.r_[np.random.default_rng(0).normal(size=(30, 2)), [[9.0, 9.0]]]
    >>> path = RobustKMeans(1, random_state=0).path(x, n_lams=5)
    >>> len(path.lams), float(path.shares[0])
    (5, 0.0)
    """

    lams: np.ndarray
    shares: np.ndarray
    inertias: np.ndarray
    centers: np.ndarray

    def lam_for(self, share: float) -> float:
        """The lambda on the path whose share of compensated samples is nearest; the smallest of several.

        >>> path = LambdaPath(np.array([4.0, 2.0, 1.0]), np.array([0.0, 0.1, 0.3]), np.zeros(3), np.zeros((3, 1, 1)))
        >>> path.lam_for(0.12)
        2.0
        """
        miss = np.abs(self.shares - share)
        return float(self.lams[miss <= miss.min()].min())


class RobustKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):  # type: ignore[misc]
    r"""Robust clustering: k-means with a sparse feature compensation per sample.

    .. math:: \min_{m, \omega, o} \sum_i \sum_c \omega_{ic}
              \left( \|x_i + o_i - m_c\|_2^2 + \lambda \|o_i\|_2 \right)

    where :math:`m_c` are the centers, :math:`\omega_{ic} \in \{0, 1\}` says whether sample i belongs to cluster c and
    :math:`o_i` is the compensation of sample i. Most :math:`o_i` are zero; a sample farther than :math:`\lambda / 2`
    from its center is an outlier and is moved to that distance (the quadratic has no factor 1/2, hence
    :math:`\lambda / 2`). The sign of :math:`o_i` is the paper's; Forero et al. write :math:`x_i - m_c - o_i`.

    Parameters
    ----------
    n_clusters : int, default=8
    lam : float or None, default=None
        The penalty :math:`\lambda`; infinity gives plain k-means. None chooses it from `contamination`.
    contamination : float in [0, 0.5), default=0.1
        The expected share of outliers, used to choose `lam`: :math:`\lambda/2` is then the distance that this share
        of the samples exceeds. Choose it rather too large: outliers beyond the expected share count as samples.
    penalty : {"l2", "l1"}, default="l2"
        l2 compensates a sample as a whole, l1 single features of it (:math:`\lambda \|o_i\|_1`).
    soft : bool, default=False
        The mixture variant: samples belong to clusters by degrees, with equal spherical noise of variance
        :math:`\sigma^2`; minimizes :math:`\sum_i -2\sigma^2 \log \sum_c \pi_c \exp(-\|x_i + o_i - m_c\|^2 / 2\sigma^2)
        + \lambda \|o_i\|`, which tends to the equation above as :math:`\sigma \to 0`.
    scale : float or None, default=None
        The :math:`\sigma` of the soft variant; None takes the deviation of the uncompensated samples from the hard solution.
    kernel : {None, "linear", "rbf", "poly"}, default=None
        Clusters in the kernel's feature space, exactly. Centers and compensations are in coordinates of that space.
    gamma, degree, coef0
        Parameters of the kernel, as in `sklearn.svm.SVC`.
    random_features : int or None, default=None
        Random Fourier features of the rbf kernel instead of its exact coordinates, for many samples.
    n_init : int, default=10
        Starts by robust k-means++; the best is kept.
    max_iter : int, default=300
    tol : float, default=1e-4
        A start ends once the squared movement of the centers falls below `tol` times the mean feature variance.
    random_state : int, RandomState or None, default=None

    Attributes
    ----------
    cluster_centers_ : (n_clusters, d)
    labels_ : (n,)
    outliers_ : (n,) bool, the samples with a compensation
    compensations_ : (n, d), the :math:`o_i`
    inertia_ : float, the value of the equation
    lam_ : float, the penalty used
    n_iter_ : int
    responsibilities_ : (n, n_clusters), degrees of membership; soft variant only

    Examples
    --------
    >>> X = np.array([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2], [12.0]])
    >>> model = RobustKMeans(n_clusters=2, lam=2.0, random_state=0).fit(X)
    >>> np.sort(model.cluster_centers_.ravel()).round(3)
    array([0.1  , 5.433])
    >>> model.outliers_.nonzero()[0]
    array([6])

    References
    ----------
    Yao and Wu, Compensation Learning, 2021, Eqs. (20) and (21). Forero, Kekatos and Giannakis, Robust clustering
    using outlier-sparsity regularization, 2012.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        lam: float | None = None,
        contamination: float = 0.1,
        penalty: Literal["l2", "l1"] = "l2",
        soft: bool = False,
        scale: float | None = None,
        kernel: Literal["linear", "rbf", "poly"] | None = None,
        gamma: float | Literal["scale"] = "scale",
        degree: int = 3,
        coef0: float = 1.0,
        random_features: int | None = None,
        n_init: int = 10,
        max_iter: int = 300,
        tol: float = 1e-4,
        random_state: Any = None,
    ) -> None:
        self.n_clusters, self.lam, self.contamination, self.penalty = n_clusters, lam, contamination, penalty
        self.soft, self.scale, self.kernel, self.gamma, self.degree = soft, scale, kernel, gamma, degree
        self.coef0, self.random_features, self.n_init, self.max_iter = coef0, random_features, n_init, max_iter
        self.tol, self.random_state = tol, random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> RobustKMeans:
        """Clusters the rows of `X`, (n, d). `y` is ignored."""
        problem, mean, tol, random = self._prepare(X, sample_weight)
        centers, _, t, steps = self._best(problem, [], random, tol)
        if problem.t is None:
            # With lambda known, the last steps minimize Eq. (21) itself.
            problem = replace(problem, t=t)
            centers, _, _, more = _descend(problem, centers, self.max_iter, tol)
            steps += more
        labels, r = problem.assign(centers)
        t = problem.level(r)
        self.lam_, self.n_iter_ = 2 * t, steps
        if self.soft:
            self._soften(problem, centers, labels, r, t, mean)
        else:
            self.cluster_centers_ = centers + mean
            self.labels_ = labels.astype(np.int32)
            self.compensations_ = compensation(problem.X - centers[labels], t, self.penalty)
            self.inertia_ = problem.cost(r, t)
        self.outliers_ = self.compensations_.any(axis=1)
        self._n_features_out = self.n_clusters
        return self

    def _best(
        self, problem: _Problem, starts: list[np.ndarray], random: np.random.RandomState, tol: float
    ) -> tuple[np.ndarray, np.ndarray, float, int]:
        """The best descent from the given starts and `n_init` new ones."""
        starts = [*starts, *(_seeds(problem, self.n_clusters, random) for _ in range(self.n_init))]
        best, best_score = None, np.inf
        for start in starts:
            result = _descend(problem, start, self.max_iter, tol)
            score = (problem.trimmed if problem.t is None else problem.cost)(result[1], result[2])
            # A start must be better by more than rounding: ties go to the first, in any order of the rows.
            if best is None or score < best_score * (1 - 1e-9):
                best, best_score = result, score
        assert best is not None
        return best

    def _prepare(self, X: Any, sample_weight: Any) -> tuple[_Problem, np.ndarray, float, np.random.RandomState]:
        """The problem, the mean of the samples, the tolerance and the random state."""
        check_parameters(
            self,
            counts=["n_clusters", "n_init", "max_iter"],
            positives=["lam", "scale"],
            optional=["lam", "scale"],
            options={"penalty": ["l2", "l1"], "kernel": [None, "linear", "rbf", "poly"]},
        )
        check_random_features(self)
        if self.kernel is not None and self.penalty == "l1":
            raise ValueError("penalty='l1' acts on single features, which a kernel does not have; use penalty='l2'.")
        X = validate_data(self, X, dtype=[np.float64, np.float32], order="C")
        w = weights(sample_weight, X)
        if len(X) < self.n_clusters:
            raise ValueError(f"n_samples={len(X)} should be >= n_clusters={self.n_clusters}.")
        random = check_random_state(self.random_state)
        self._map = None if self.kernel is None else KernelMap.fit(self, X, w, random)
        if self._map is not None:
            X = np.ascontiguousarray(self._map(X))
        given = None if sample_weight is None else w
        mean = np.average(X, axis=0, weights=given).astype(X.dtype)
        centered = X - mean  # distances by a matrix product lose digits far from the origin
        tol = self.tol * float(np.average((centered**2).mean(1), weights=given))
        t = None if self.lam is None else self.lam / 2
        return _Problem(centered, given, self.penalty, t, self.contamination), mean, tol, random

    def _soften(
        self, problem: _Problem, centers: np.ndarray, labels: np.ndarray, r: np.ndarray, t: float, mean: np.ndarray
    ) -> None:
        """EM on the soft objective, from the hard solution; every step lowers it."""
        X, w = problem.X, np.ones(len(problem.X)) if problem.w is None else problem.w
        within = w * _within(r, t)
        square = ((X - centers[labels]) ** 2).sum(1)
        scale = np.sqrt(within @ square / max(within.sum() * X.shape[1], 1)) if self.scale is None else self.scale
        self.scale_ = float(max(scale, 1e-6 * np.sqrt(np.average(X**2, weights=np.broadcast_to(w[:, None], X.shape)))))
        self.mixture_ = np.bincount(labels, w, len(centers)) / w.sum()
        o, last = compensation(X - centers[labels], t, self.penalty), np.inf
        for _ in range(self.max_iter):
            q, value = self._memberships(X, o, centers, w)
            if last - value <= 1e-3 * self.tol * abs(value):
                break
            last = value
            o = compensation(X - q @ centers, t, self.penalty)
            mass = w @ q
            total = (q * w[:, None]).T @ (X + o)
            centers = np.divide(total, mass[:, None], out=centers.copy(), where=mass[:, None] > 0)
            self.mixture_ = mass / mass.sum()
            self.n_iter_ += 1
        self.cluster_centers_ = centers + mean
        self.responsibilities_, self.compensations_ = self._soft_solution(X, centers, o)
        self.labels_ = self.responsibilities_.argmax(1).astype(np.int32)
        _, self.inertia_ = self._memberships(X, self.compensations_, centers, w)

    def _memberships(
        self, X: np.ndarray, o: np.ndarray, centers: np.ndarray, w: np.ndarray | float = 1.0
    ) -> tuple[np.ndarray, float]:
        """Degrees of membership, (n, k), of compensated samples, and the value of the soft objective."""
        square = ((X + o)[:, None] - centers) ** 2
        with np.errstate(divide="ignore"):
            logits = np.log(self.mixture_) - square.sum(2) / (2 * self.scale_**2)
        price = np.sqrt((o**2).sum(1)) if self.penalty == "l2" else np.abs(o).sum(1)
        each = self.lam_ * price if np.isfinite(self.lam_) else 0.0
        value = np.sum(w * (each - 2 * self.scale_**2 * logsumexp(logits, axis=1)))
        return softmax(logits, axis=1), float(value)

    def _soft_solution(
        self, X: np.ndarray, centers: np.ndarray, o: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Memberships and compensations for fixed centers, by alternation until each row converges."""
        t = self.lam_ / 2
        o = compensation(X - centers[nearest_center(X, centers)[0]], t, self.penalty) if o is None else o.copy()
        moving = np.arange(len(X))
        for _ in range(SOFT_STEPS):
            q, _ = self._memberships(X[moving], o[moving], centers)
            new = compensation(X[moving] - q @ centers, t, self.penalty)
            step = np.abs(new - o[moving]).max(1, initial=0)
            o[moving] = new
            moving = moving[step > 1e-10 * t]
            if not len(moving):
                break
        return self._memberships(X, o, centers)[0], o

    def path(self, X: Any, lams: Any = None, *, n_lams: int = 20, sample_weight: Any = None) -> LambdaPath:
        """Solutions over a decreasing sequence of penalties, each the best of new starts and the previous solution.

        `lams` defaults to `n_lams` values, evenly spaced in logarithm from the one that compensates no sample down to
        the one that would compensate half of them.
        """
        problem, mean, tol, random = self._prepare(X, sample_weight)
        free = replace(problem, t=None)
        centers, r, t, _ = self._best(replace(problem, t=np.inf), [], random, tol)
        if lams is None:
            most = 2 * (r if r.ndim == 1 else r.max(1)).max()
            _, r, t, _ = self._best(free, [], random, tol)
            half = 2 * weighted_quantile(r if r.ndim == 1 else r.max(1), 0.5, problem.w)
            lams = np.geomspace(most, max(half, 2 * free.floor), n_lams)
        lams = np.sort(check_array(lams, ensure_2d=False, dtype=np.float64))[::-1]
        shares, inertias, all_centers = [], [], []
        for lam in lams:
            at_lam = replace(problem, t=lam / 2)
            centers, r, t, _ = self._best(at_lam, [centers], random, tol)
            shares.append(np.average(~_within(r, t), weights=problem.w))
            inertias.append(at_lam.cost(r, t))
            all_centers.append(centers + mean)
        return LambdaPath(lams, np.array(shares), np.array(inertias), np.array(all_centers))

    def _coordinates(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Checked samples in the coordinates of the centers, and their squared length outside, (n,)."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32], order="C")
        if self._map is None:
            return X.astype(self.cluster_centers_.dtype, copy=False), np.zeros(len(X))
        Z = np.ascontiguousarray(self._map(X))
        return Z, self._map.outside(X, Z)

    def _assigned(self, Z: np.ndarray, w: np.ndarray | None) -> tuple[_Problem, np.ndarray, np.ndarray]:
        """The problem with the fitted centers on other samples: itself, labels and residual sizes."""
        mean = self.cluster_centers_.mean(0)
        problem = _Problem(Z - mean, w, self.penalty, self.lam_ / 2, self.contamination)
        return problem, *problem.assign(self.cluster_centers_ - mean)

    def _labels_and_shifts(self, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cluster and compensation of samples in the coordinates of the centers."""
        if self.soft:
            q, o = self._soft_solution(Z, self.cluster_centers_)
            return q.argmax(1).astype(np.int32), o
        labels = self._assigned(Z, None)[1].astype(np.int32)
        return labels, compensation(Z - self.cluster_centers_[labels], self.lam_ / 2, self.penalty)

    def predict(self, X: Any) -> np.ndarray:
        """The cluster of each row of `X`."""
        return self._labels_and_shifts(self._coordinates(X)[0])[0]

    @available_if(lambda self: bool(self.soft))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> np.ndarray:
        """Degrees of membership, (n, n_clusters), of the soft variant."""
        return self._soft_solution(self._coordinates(X)[0], self.cluster_centers_)[0]

    def transform(self, X: Any) -> np.ndarray:
        """Distances to the centers, (n, n_clusters)."""
        Z, outside = self._coordinates(X)
        square = np.stack([((Z - m) ** 2).sum(1) for m in self.cluster_centers_], axis=1)
        return np.sqrt(square + outside[:, None]).astype(Z.dtype)

    def compensate(self, X: Any) -> np.ndarray:
        """The compensations of the rows of `X`, zero within lambda / 2 of their center."""
        return self._labels_and_shifts(self._coordinates(X)[0])[1]

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Minus the value of the (hard) equation on `X`: larger is better."""
        Z, _ = self._coordinates(X)
        problem, _, r = self._assigned(Z, weights(sample_weight, Z))
        return -problem.cost(r, self.lam_ / 2)

    def plot(self, X: Any, ax: Any = None) -> Any:
        """Clusters with their centers; outliers as crosses, each with an arrow along its compensation."""
        Z, _ = self._coordinates(X)
        labels, o = self._labels_and_shifts(Z)
        out = o.any(axis=1)
        ax = common.axes(ax, f"Robust k-means: {out.mean():.1%} of the samples compensated")
        flat, moved, centers = common.plane(Z, Z + o, self.cluster_centers_)
        common.clusters(ax, flat, labels, centers, out, "outlier and its compensation", moved - flat)
        return ax
