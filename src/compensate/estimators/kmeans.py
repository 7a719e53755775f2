r"""K-means that moves its outliers instead of following them.

Use it when a part of the samples belongs to no cluster and would drag the centers away. When nothing is far off, the
largest penalties make it plain k-means. It does not help against outliers that form a dense group of their own:
such a group is a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from compensate.estimators.common import count, one_of, positive, share, weighted_quantile, weights
from compensate.estimators.registration import fit_kernel_map, fit_random_map, kernel_params

PenaltyName = Literal["l2", "l1"]
PROX = {"l2": group_soft_threshold, "l1": soft_threshold}
ROWS = 2048  # samples handled at once, so that their distances stay in the cache
SOFT_STEPS = 1000  # the maximum number of alternations between degrees of membership and compensation of a new sample


def profile(r: np.ndarray, t: float) -> np.ndarray:
    r"""What a residual of size `r` costs once its compensation is best: :math:`\min_o (r+o)^2 + 2t|o|`.

    This is twice Huber's loss: :math:`r^2` up to `t`, then the straight line :math:`2tr - t^2`.

    >>> profile(np.array([1.0, 3.0]), 2.0)
    array([1., 8.])
    """
    return r**2 - np.maximum(r - t, 0) ** 2


def kept(r: np.ndarray, t: float) -> np.ndarray:
    """The share of a residual that its best compensation leaves: 1 up to `t`, then t / r."""
    if np.isinf(t):
        return np.ones_like(r)
    return t / np.maximum(r, t) if t > 0 else (r == 0).astype(r.dtype)


def compensation(residual: np.ndarray, t: float, penalty: str) -> np.ndarray:
    r"""The best :math:`o_i` for :math:`\|r_i + o_i\|^2 + 2t\|o_i\|`, to be added to :math:`x_i`."""
    return np.zeros_like(residual) if np.isinf(t) else -PROX[penalty](residual, t)


def nearest_center(X: np.ndarray, centers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nearest center of each sample and the distance to it, both (n,).

    >>> nearest_center(np.array([[0.0, 1.0], [4.0, 3.0]]), np.array([[0.0, 0.0], [4.0, 0.0]]))
    (array([0, 1]), array([1., 3.]))
    """
    return _nearest(_columns(X), np.einsum("ij,ij->i", X, X), centers)


def _columns(X: np.ndarray) -> np.ndarray:
    """(d + 1, n) the samples as columns, each with a one below: their product with centers takes half as long as that of rows."""
    return np.ascontiguousarray(np.vstack([X.T, np.ones((1, len(X)), X.dtype)]))


Found = tuple[np.ndarray, np.ndarray]


def _nearest(columns: np.ndarray, square: np.ndarray, centers: np.ndarray, out: Found | None = None) -> Found:
    """`nearest_center` for samples as `_columns` and their squared lengths, which an iteration need not find anew.

    The answer is written over `out`, if it is given: fresh memory for every iteration would cost more than the square roots.
    """
    # |x - m|^2 - |x|^2 = (-2m, |m|^2) (x, 1) is one matrix product.
    product, k, n = np.hstack([-2 * centers, (centers**2).sum(1)[:, None]]), len(centers), columns.shape[1]
    labels, distance = (np.empty(n, np.intp), np.empty(n, columns.dtype)) if out is None else out
    size = min(ROWS, n)
    # With a row for each center, the least of each column is found in vectors of the processor, and so is the first center that has it:
    # the one that counts most. An argmin of short rows branches at every number, and took half of the iteration.
    held, kind = np.empty((k, size), columns.dtype), np.min_scalar_type(k)
    nearest, codes = np.empty((k, size), bool), np.empty((k, size), kind)
    left = np.arange(k, 0, -1, dtype=kind)[:, None]
    for start in range(0, n, ROWS):
        part, size = slice(start, start + ROWS), min(ROWS, n - start)
        found = np.matmul(product, columns[:, part], out=held[:, :size])
        least = np.min(found, axis=0, out=distance[part])
        code = np.multiply(np.equal(found, least, out=nearest[:, :size]).view(np.uint8), left, out=codes[:, :size])
        np.subtract(k, code.max(0, initial=1), out=labels[part], dtype=np.intp)  # of NaN, which equals none, the last
    distance += square
    return labels, np.sqrt(np.maximum(distance, 0, out=distance), out=distance)


@dataclass(frozen=True)
class _Problem:
    """The centered samples, their weights and how the level of the threshold t = lambda / 2 is found."""

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
        """A length that is as good as zero for these data."""
        return 1e-6 * float(np.sqrt(np.average(self.square, weights=self.w)))

    def assign(self, centers: np.ndarray, out: Found | None = None) -> Found:
        """Labels and residual sizes: (n,) for l2, (n, d) for l1. The label is the center of least profiled cost."""
        if self.penalty == "l2":
            return _nearest(self.columns, self.square, centers, out)
        t = self.t
        if t is None:
            labels, _ = _nearest(self.columns, self.square, centers)
            t = self.level(np.abs(self.X - centers[labels]))
        costs = np.stack([profile(np.abs(self.X - m), t).sum(1) for m in centers], axis=1)
        labels = costs.argmin(1)
        return labels, np.abs(self.X - centers[labels])

    def level(self, r: np.ndarray) -> float:
        """The threshold: as given, or the distance that the expected share of the samples exceeds."""
        if self.t is not None:
            return self.t
        # Distances that are mere rounding are no outliers, even where most samples sit on their centers.
        return max(weighted_quantile(r if r.ndim == 1 else r.max(1), 1 - self.contamination, self.w), self.floor)

    def cost(self, r: np.ndarray, t: float) -> float:
        """Eq. (21) with its compensations at their best."""
        each = profile(r, t) if r.ndim == 1 else profile(r, t).sum(1)
        return float(each.sum() if self.w is None else each @ self.w)

    def trimmed(self, r: np.ndarray, t: float) -> float:
        """The plain cost of the samples within `t`: comparable between starts whose thresholds differ."""
        t = t * (1 + 1e-9)  # equal samples whose distances differ by rounding are either all within or all outside
        within = r <= t if r.ndim == 1 else (r <= t).all(1)
        each = r**2 if r.ndim == 1 else (r**2).sum(1)
        return float((each * within).sum() if self.w is None else (each * within) @ self.w)

    def centers(self, old: np.ndarray, labels: np.ndarray, r: np.ndarray, t: float) -> np.ndarray:
        """The centers that majorize-minimize Eq. (21): means of the samples by what compensation leaves of them."""
        n, k = len(self.X), len(old)
        left = kept(r, t) if self.w is None else kept(r, t) * (self.w if r.ndim == 1 else self.w[:, None])
        if left.ndim == 1:
            member = csc_array((left, labels, np.arange(n + 1)), shape=(k, n))
            mass, total = np.bincount(labels, left, k)[:, None], member @ self.X
        else:
            member = csc_array((np.ones(n, self.X.dtype), labels, np.arange(n + 1)), shape=(k, n))
            mass, total = member @ left, member @ (left * self.X)
        new = np.divide(total, mass, out=old.copy(), where=mass > 0)
        empty = np.flatnonzero(np.bincount(labels, self.w, k) == 0)
        if len(empty):
            # An empty cluster moves to the farthest samples that are not themselves outliers.
            far = r if r.ndim == 1 else np.sqrt((r**2).sum(1))
            inside = (r <= t if r.ndim == 1 else (r <= t).all(1)) & (True if self.w is None else self.w > 0)
            candidates = np.lexsort((*self.X.T, np.where(inside, far, -far)))[::-1]
            new[empty] = self.X[candidates[: len(empty)]]
        return new


def _seeds(problem: _Problem, k: int, random: np.random.RandomState) -> np.ndarray:
    """Starting centers by greedy k-means++, with squared distances capped so that outliers do not lure it.

    The cap is the distance that the expected share of the samples exceeds, or lambda / 2 where that is more: without
    a penalty on compensation this is plain k-means++.

    Draws run over the samples by their distance from the mean: the outcome depends neither on the order of the rows,
    nor on a rotation, nor on whether a sample is given twice or has weight two.
    """
    X = problem.X
    w = np.ones(len(X)) if problem.w is None else problem.w
    trials = 2 + int(np.log(k))
    square = problem.square
    order = np.argsort(square, kind="stable")

    def draw(probability: np.ndarray, size: int) -> np.ndarray:
        mass = np.cumsum(probability[order])
        return order[np.minimum(np.searchsorted(mass, random.uniform(size=size) * mass[-1], side="right"), len(X) - 1)]

    def to(picks: Any) -> np.ndarray:
        return np.maximum(square - 2 * X[picks] @ X.T + square[picks, None], 0)

    chosen = [int(draw(w, 1)[0])]
    distance = to(chosen)[0]
    for _ in range(1, k):
        cap = max(weighted_quantile(distance, 1 - problem.contamination, problem.w), (problem.t or 0) ** 2)
        cost = np.minimum(distance, cap) * w
        picks = draw(cost if cost.sum() > 0 else w, trials)
        closer = np.minimum(distance, to(picks))
        best = int(np.argmin(np.minimum(closer, cap) @ w))
        chosen.append(int(picks[best]))
        distance = closer[best]
    return X[chosen]


def _descend(
    problem: _Problem, centers: np.ndarray, max_iter: int, tol: float
) -> tuple[np.ndarray, np.ndarray, float, int]:
    """Alternates assignment, compensation and centers. Returns centers, residual sizes, threshold and steps."""
    steps, held = 0, None
    while steps < max_iter:
        steps += 1
        held = labels, r = problem.assign(centers, held)
        new = problem.centers(centers, labels, r, problem.level(r))
        shift = float(((new - centers) ** 2).sum())
        centers = new
        if shift <= tol:
            break
    _, r = problem.assign(centers)
    return centers, r, problem.level(r), steps


def _is_soft(estimator: RobustKMeans) -> bool:
    return bool(estimator.soft)


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
        of the samples exceeds. Rather too much than too little: outliers beyond the expected share pass as samples.
    penalty : {"l2", "l1"}, default="l2"
        l2 compensates a sample as a whole, l1 single features of it (:math:`\lambda \|o_i\|_1`).
    soft : bool, default=False
        The mixture variant: samples belong to clusters by degrees, with equal spherical noise of variance
        :math:`\sigma^2`; minimizes :math:`\sum_i -2\sigma^2 \log \sum_c \pi_c \exp(-\|x_i + o_i - m_c\|^2 / 2\sigma^2)
        + \lambda \|o_i\|`, which tends to the equation above as :math:`\sigma \to 0`.
    scale : float or None, default=None
        The :math:`\sigma` of the soft variant; None takes that of the uncompensated samples around the hard solution.
    kernel : {None, "linear", "rbf", "poly"}, default=None
        Clusters in the kernel's feature space, exactly. Centers and compensations are then given in coordinates of
        that space.
    gamma, degree, coef0
        Numbers of the kernel, as in `sklearn.svm.SVC`.
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
        penalty: PenaltyName = "l2",
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
        self.n_clusters = n_clusters
        self.lam = lam
        self.contamination = contamination
        self.penalty = penalty
        self.soft = soft
        self.scale = scale
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.random_features = random_features
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> RobustKMeans:
        """Clusters the rows of `X`, (n, d). `y` is ignored."""
        X, w, random = self._prepare(X, sample_weight)
        problem, mean, tol = self._problem(X, w)
        centers, _, t, steps = self._best(problem, [], random, tol)
        if problem.t is None:
            # With lambda found, the last steps minimize Eq. (21) itself.
            problem = _Problem(problem.X, problem.w, self.penalty, t, self.contamination)
            centers, _, _, more = _descend(problem, centers, self.max_iter, tol)
            steps += more
        self._finish(problem, centers, mean, steps)
        return self

    def _best(
        self, problem: _Problem, starts: list[np.ndarray], random: np.random.RandomState, tol: float
    ) -> tuple[np.ndarray, np.ndarray, float, int]:
        """The best descent from the given and from `n_init` fresh starts."""
        starts = [*starts, *(_seeds(problem, self.n_clusters, random) for _ in range(self.n_init))]
        best, best_score = None, np.inf
        for start in starts:
            found = _descend(problem, start, self.max_iter, tol)
            score = (problem.trimmed if problem.t is None else problem.cost)(found[1], found[2])
            # A start must be better by more than rounding: ties go to the first, in whatever order the rows come.
            if best is None or score < best_score * (1 - 1e-9):
                best, best_score = found, score
        assert best is not None
        return best

    def _check_parameters(self) -> None:
        for name in ("n_clusters", "n_init", "max_iter"):
            count(getattr(self, name), name)
        for name in ("lam", "scale"):
            if getattr(self, name) is not None:
                positive(getattr(self, name), name)
        positive(self.tol, "tol", zero=True)
        share(self.contamination, "contamination")
        one_of(self.penalty, "penalty", ["l2", "l1"])
        one_of(self.kernel, "kernel", [None, "linear", "rbf", "poly"])
        if self.kernel is not None and self.penalty == "l1":
            raise ValueError("penalty='l1' looks at single features, which a kernel has not; use penalty='l2'.")
        if self.random_features is not None:
            count(self.random_features, "random_features")
            if self.kernel != "rbf":
                raise ValueError(f"random_features needs kernel='rbf'. Got kernel={self.kernel!r}.")

    def _prepare(self, X: Any, sample_weight: Any) -> tuple[np.ndarray, np.ndarray | None, np.random.RandomState]:
        self._check_parameters()
        X = validate_data(self, X, dtype=[np.float64, np.float32], order="C")
        w = weights(sample_weight, X)
        if len(X) < self.n_clusters:
            raise ValueError(f"n_samples={len(X)} should be >= n_clusters={self.n_clusters}.")
        random = check_random_state(self.random_state)
        self._map = None
        if self.kernel is not None:
            params = kernel_params(self.kernel, self.gamma, self.degree, self.coef0, X, w)
            self._map = (
                fit_kernel_map(X, self.kernel, params)
                if self.random_features is None
                else fit_random_map(X, params, self.random_features, random)
            )
            X = np.ascontiguousarray(self._map(X))
        return X, (None if sample_weight is None else w), random

    def _problem(self, X: np.ndarray, w: np.ndarray | None) -> tuple[_Problem, np.ndarray, float]:
        mean = np.average(X, axis=0, weights=w).astype(X.dtype)
        centered = X - mean  # distances by a matrix product lose digits far from the origin
        tol = self.tol * float(np.average((centered**2).mean(1), weights=w))
        t = None if self.lam is None else self.lam / 2
        return _Problem(centered, w, self.penalty, t, self.contamination), mean, tol

    def _finish(self, problem: _Problem, centers: np.ndarray, mean: np.ndarray, steps: int) -> None:
        labels, r = problem.assign(centers)
        t = problem.level(r)
        self.lam_, self.n_iter_ = 2 * t, steps
        if not self.soft:
            self.cluster_centers_ = centers + mean
            self.labels_ = labels.astype(np.int32)
            self.compensations_ = compensation(problem.X - centers[labels], t, self.penalty)
            self.inertia_ = problem.cost(r, t)
        else:
            self._soften(problem, centers, labels, r, t, mean)
        self.outliers_ = self.compensations_.any(axis=1)
        self._n_features_out = self.n_clusters

    def _soften(
        self, problem: _Problem, centers: np.ndarray, labels: np.ndarray, r: np.ndarray, t: float, mean: np.ndarray
    ) -> None:
        """EM on the soft objective, from the hard solution; every step lowers it."""
        X, w = problem.X, np.ones(len(problem.X)) if problem.w is None else problem.w
        within = w * (r <= t if r.ndim == 1 else (r <= t).all(1))
        square = ((X - centers[labels]) ** 2).sum(1)
        scale = np.sqrt(within @ square / max(within.sum() * X.shape[1], 1)) if self.scale is None else self.scale
        self.scale_ = float(max(scale, 1e-6 * np.sqrt(np.average(X**2, weights=np.broadcast_to(w[:, None], X.shape)))))
        self.mixture_ = np.bincount(labels, w, len(centers)) / w.sum()
        o, last = compensation(X - centers[labels], t, self.penalty), np.inf
        for _ in range(self.max_iter):
            q, energy = self._degrees(X + o, centers)
            value = float(w @ (energy + self.lam_ * self._size(o)))
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
        self.responsibilities_, self.compensations_, energy = self._settle(X, centers, o)
        self.labels_ = self.responsibilities_.argmax(1).astype(np.int32)
        self.inertia_ = float(w @ (energy + self.lam_ * self._size(self.compensations_)))

    def _size(self, o: np.ndarray) -> np.ndarray:
        return np.sqrt((o**2).sum(1)) if self.penalty == "l2" else np.abs(o).sum(1)

    def _degrees(self, points: np.ndarray, centers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Degrees of membership, (n, k), and the cost of each (compensated) point, (n,)."""
        square = ((points[:, None] - centers) ** 2).sum(2)
        with np.errstate(divide="ignore"):
            logits = np.log(self.mixture_) - square / (2 * self.scale_**2)
        return softmax(logits, axis=1), -2 * self.scale_**2 * logsumexp(logits, axis=1)

    def _settle(
        self, X: np.ndarray, centers: np.ndarray, o: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Degrees, compensations and costs of samples for fixed centers, by alternation until each row rests."""
        t = self.lam_ / 2
        o = compensation(X - centers[nearest_center(X, centers)[0]], t, self.penalty) if o is None else o.copy()
        moving = np.arange(len(X))
        for _ in range(SOFT_STEPS):
            q, _ = self._degrees(X[moving] + o[moving], centers)
            new = compensation(X[moving] - q @ centers, t, self.penalty)
            step = np.abs(new - o[moving]).max(1, initial=0)
            o[moving] = new
            moving = moving[step > 1e-10 * t]
            if not len(moving):
                break
        q, energy = self._degrees(X + o, centers)
        return q, o, energy

    def path(self, X: Any, lams: Any = None, *, n_lams: int = 20, sample_weight: Any = None) -> LambdaPath:
        """Solutions over a falling sequence of penalties, each the best of fresh starts and of the one before.

        `lams` defaults to `n_lams` values, evenly spaced in logarithm from the one that compensates no sample down to
        the one at which half of them would be.
        """
        X, w, random = self._prepare(X, sample_weight)
        _, mean, tol = self._problem(X, w)

        def problem_at(t: float | None) -> _Problem:
            return _Problem(X - mean, w, self.penalty, t, self.contamination)

        centers, r, t, _ = self._best(problem_at(np.inf), [], random, tol)
        if lams is None:
            most = 2 * (r if r.ndim == 1 else r.max(1)).max()
            _, r, t, _ = self._best(problem_at(None), [], random, tol)
            half = 2 * weighted_quantile(r if r.ndim == 1 else r.max(1), 0.5, w)
            lams = np.geomspace(most, max(half, 2 * problem_at(None).floor), n_lams)
        lams = np.sort(check_array(lams, ensure_2d=False, dtype=np.float64))[::-1]
        shares, inertias, all_centers = [], [], []
        for lam in lams:
            problem = problem_at(lam / 2)
            centers, r, t, _ = self._best(problem, [centers], random, tol)
            out = (r > t) if r.ndim == 1 else (r > t).any(1)
            shares.append(np.average(out, weights=w))
            inertias.append(problem.cost(r, t))
            all_centers.append(centers + mean)
        return LambdaPath(lams, np.array(shares), np.array(inertias), np.array(all_centers))

    def _coordinates(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Checked samples where the centers live, and what of their squared length lies outside, (n,)."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32], order="C")
        if self._map is None:
            return X.astype(self.cluster_centers_.dtype, copy=False), np.zeros(len(X))
        Z = np.ascontiguousarray(self._map(X))
        return Z, self._map.extra(X, Z)  # nosec B610

    def predict(self, X: Any) -> np.ndarray:
        """The cluster of each row of `X`."""
        Z, _ = self._coordinates(X)
        if self.soft:
            return self._settle(Z, self.cluster_centers_)[0].argmax(1).astype(np.int32)
        return self._assigned(Z, None)[1].astype(np.int32)

    def _assigned(self, Z: np.ndarray, w: np.ndarray | None) -> tuple[_Problem, np.ndarray, np.ndarray]:
        """The problem with the fitted centers on other samples: itself, labels and residual sizes."""
        mean = self.cluster_centers_.mean(0)
        problem = _Problem(Z - mean, w, self.penalty, self.lam_ / 2, self.contamination)
        return problem, *problem.assign(self.cluster_centers_ - mean)

    @available_if(_is_soft)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> np.ndarray:
        """Degrees of membership, (n, n_clusters), of the soft variant."""
        return self._settle(self._coordinates(X)[0], self.cluster_centers_)[0]

    def transform(self, X: Any) -> np.ndarray:
        """Distances to the centers, (n, n_clusters)."""
        Z, extra = self._coordinates(X)
        square = np.stack([((Z - m) ** 2).sum(1) for m in self.cluster_centers_], axis=1)
        return np.sqrt(square + extra[:, None]).astype(Z.dtype)

    def compensate(self, X: Any) -> np.ndarray:
        """The compensations of the rows of `X`, zero for those within lambda / 2 of their center."""
        Z, _ = self._coordinates(X)
        if self.soft:
            return self._settle(Z, self.cluster_centers_)[1]
        return compensation(Z - self.cluster_centers_[self.predict(X)], self.lam_ / 2, self.penalty)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Minus the value of the (hard) equation on `X`: larger is better."""
        Z, _ = self._coordinates(X)
        problem, _, r = self._assigned(Z, weights(sample_weight, Z))
        return -problem.cost(r, self.lam_ / 2)

    def plot(self, X: Any, ax: Any = None) -> Any:
        """Clusters with their centers; outliers as crosses, each with the arrow of its compensation."""
        Z, _ = self._coordinates(X)
        labels, o = self.predict(X), self.compensate(X)
        out = o.any(axis=1)
        ax = common.axes(ax, f"Robust k-means: {out.mean():.1%} of the samples compensated")
        flat, moved, centers = common.flat(Z, Z + o, self.cluster_centers_)
        common.arrows(ax, flat[out], (moved - flat)[out])
        for k in range(self.n_clusters):
            ax.scatter(*flat[(labels == k) & ~out].T, s=9, color=common.color(k), alpha=0.7)
        common.crosses(ax, flat[out], "outlier and its compensation")
        ax.scatter(*centers.T, marker="P", s=90, color="black", edgecolor="white", label="center", zorder=4)
        common.key(ax)
        return ax
