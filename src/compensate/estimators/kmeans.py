"""Robust k-means: outliers are compensated instead of moving the centers.

Use it if a part of the samples belongs to no cluster. It does not help against outliers that form a dense group: a cluster.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from scipy.sparse import csc_array
from scipy.special import logsumexp, softmax
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.metrics import pairwise_distances_argmin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from compensate.estimators import common
from compensate.estimators.common import check_parameters, compensation, residual_cost, weighted_quantile, weights

ROWS = 2048  # samples per block; their distances fit into the cache
SOFT_STEPS = 1000  # maximum alternations between memberships and compensations of new samples


@dataclass(frozen=True)
class _Problem:
    """The centered samples, their weights, and the threshold t = lambda / 2, or None to choose it by `contamination`.

    Residual sizes `r` are (n, 1) for the l2 penalty and (n, d) for l1.
    """

    X: np.ndarray
    w: np.ndarray
    penalty: str
    t: float | None
    contamination: float

    @cached_property
    def columns(self) -> np.ndarray:
        """(d + 1, n) the samples as columns with a one appended; products with centers are twice as fast as for rows."""
        return np.ascontiguousarray(np.vstack([self.X.T, np.ones((1, len(self.X)), self.X.dtype)]))

    @cached_property
    def square(self) -> np.ndarray:
        return np.einsum("ij,ij->i", self.X, self.X)

    @cached_property
    def floor(self) -> float:
        """A length that counts as zero for these data."""
        return 1e-6 * float(np.sqrt(np.average(self.square, weights=self.w)))

    def assign(self, centers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Labels, by the least cost, and residual sizes."""
        if self.penalty == "l1":
            t = self.t
            if t is None:
                t = self.level(np.abs(self.X - centers[pairwise_distances_argmin(self.X, centers)]))
            costs = [residual_cost(np.abs(self.X - m), t, "l1").sum(1) for m in centers]
            labels = np.argmin(costs, axis=0)
            return labels, np.abs(self.X - centers[labels])
        k, n = len(centers), len(self.X)
        labels, distance = np.empty(n, np.intp), np.empty(n, self.X.dtype)
        # |x - m|^2 - |x|^2 = (-2m, |m|^2) (x, 1) is one matrix product.
        product = np.hstack([-2 * centers, (centers**2).sum(1)[:, None]])
        # The first center that attains the minimum of a column, vectorized: argmin over short rows takes twice as long.
        rank = np.arange(k, 0, -1, dtype=np.min_scalar_type(k))[:, None]
        for start in range(0, n, ROWS):
            part = slice(start, start + ROWS)
            values = product @ self.columns[:, part]
            distance[part] = values.min(0)
            labels[part] = k - (rank * (values == distance[part])).max(0).astype(np.intp)
        return labels, np.sqrt(np.maximum(distance + self.square, 0))[:, None]

    def level(self, r: np.ndarray) -> float:
        """The threshold: as given, or the distance that the expected share of the samples exceeds."""
        if self.t is not None:
            return self.t
        # Distances due to rounding are not outliers, even if most samples lie on their centers.
        return max(weighted_quantile(r.max(1), 1 - self.contamination, self.w), self.floor)

    def cost(self, r: np.ndarray, t: float) -> float:
        """Eq. (21) with the best compensations."""
        return float(self.w @ residual_cost(r, t, self.penalty).sum(1))

    def centers(self, old: np.ndarray, labels: np.ndarray, r: np.ndarray, t: float) -> np.ndarray:
        """The centers of a majorize-minimize step for Eq. (21): means weighted by the uncompensated share of each residual."""
        n, k = len(self.X), len(old)
        left, X = common.share_left(r, t, self.penalty), self.X
        # The shares of whole samples enter as weights, without a copy of the samples.
        w, left, X = (self.w * left[:, 0], np.ones_like(left), X) if self.penalty == "l2" else (self.w, left, left * X)
        member = csc_array((w, labels, np.arange(n + 1)), shape=(k, n))
        mass = member @ left
        new = np.divide(member @ X, mass, out=old.copy(), where=mass > 0)
        empty = np.flatnonzero(np.bincount(labels, self.w, k) == 0)
        if len(empty):
            # An empty cluster moves to the farthest samples that are not outliers.
            inside, far = (r <= t).all(1) & (self.w > 0), np.sqrt((r**2).sum(1))
            candidates = np.lexsort((*self.X.T, np.where(inside, far, -far)))[::-1]
            new[empty] = self.X[candidates[: len(empty)]]
        return new

    def seeds(self, k: int, random: np.random.RandomState) -> np.ndarray:
        """Initial centers by greedy k-means++ with capped squared distances, which keeps outliers from being chosen.

        The cap is the distance that the expected share of the samples exceeds, or lambda / 2 if that is larger. Draws run over the
        samples by their distance from the mean: the order of the rows, rotations and copies instead of weights do not matter.
        """
        X, square, w = self.X, self.square, self.w
        order = np.argsort(square, kind="stable")

        def draw(probability: np.ndarray, size: int) -> np.ndarray:
            mass = np.cumsum(probability[order])
            place = np.searchsorted(mass, random.uniform(size=size) * mass[-1], side="right")
            return order[np.minimum(place, len(X) - 1)]

        def squared_distances(picks: Any) -> np.ndarray:
            return np.maximum(square - 2 * X[picks] @ X.T + square[picks, None], 0)

        chosen = [int(draw(w, 1)[0])]
        distance = squared_distances(chosen)[0]
        for _ in range(1, k):
            cap = max(weighted_quantile(distance, 1 - self.contamination, w), (self.t or 0) ** 2)
            cost = np.minimum(distance, cap) * w
            picks = draw(cost if cost.sum() > 0 else w, 2 + int(np.log(k)))
            closer = np.minimum(distance, squared_distances(picks))
            best = int(np.argmin(np.minimum(closer, cap) @ w))
            chosen.append(int(picks[best]))
            distance = closer[best]
        return X[chosen]

    def descend(self, centers: np.ndarray, max_iter: int, tol: float) -> tuple[np.ndarray, np.ndarray, float, int]:
        """Alternates assignment, compensation and centers. Returns centers, residual sizes, threshold and steps."""
        steps, shift = 0, np.inf
        while steps < max_iter and shift > tol:
            steps += 1
            labels, r = self.assign(centers)
            new = self.centers(centers, labels, r, self.level(r))
            shift, centers = float(((new - centers) ** 2).sum()), new
        _, r = self.assign(centers)
        return centers, r, self.level(r), steps


@dataclass(frozen=True)
class LambdaPath:
    """Solutions of Eq. (21) from the largest penalty, where nothing is compensated, down to the smallest.

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
        """The lambda on the path whose share of compensated samples is nearest; the smallest of several."""
        miss = np.abs(self.shares - share)
        return float(self.lams[miss <= miss.min()].min())


@dataclass(eq=False, repr=False)
class RobustKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):  # type: ignore[misc]
    r"""Robust clustering: k-means with a sparse feature compensation per sample.

    .. math:: \min_{m, \omega, o} \sum_i \sum_c \omega_{ic}
              \left( \|x_i + o_i - m_c\|_2^2 + \lambda \|o_i\|_2 \right)

    where :math:`m_c` are the centers, :math:`\omega_{ic} \in \{0, 1\}` says whether sample i belongs to cluster c and
    :math:`o_i` is the compensation of sample i. Most :math:`o_i` are zero; a sample farther than :math:`\lambda / 2`
    from its center is an outlier and is moved to that distance (the quadratic has no factor 1/2, hence
    :math:`\lambda / 2`). The sign of :math:`o_i` is the paper's; Forero et al. write :math:`x_i - m_c - o_i`.

    Args:
        n_clusters: the number of clusters.
        lam: the penalty :math:`\lambda`; infinity gives plain k-means. None chooses it from `contamination`.
        contamination: the expected share of outliers, in [0, 0.5): :math:`\lambda/2` is the distance that this share of the samples
            exceeds. Choose it rather too large: outliers beyond the expected share count as samples.
        penalty: l2 compensates a sample as a whole, l1 single features of it (:math:`\lambda \|o_i\|_1`).
        soft: the mixture variant: samples belong to clusters by degrees, with equal spherical noise of variance
            :math:`\sigma^2`; minimizes :math:`\sum_i -2\sigma^2 \log \sum_c \pi_c \exp(-\|x_i + o_i - m_c\|^2 / 2\sigma^2)
            + \lambda \|o_i\|`, which tends to the equation above as :math:`\sigma \to 0`.
        scale: the :math:`\sigma` of the soft variant; None takes the deviation of the uncompensated samples from the hard solution.
        kernel: clusters in the kernel's feature space, exactly. Centers and compensations are in coordinates of that space.
        gamma, degree, coef0: parameters of the kernel, as in `sklearn.svm.SVC`.
        random_features: the number of random Fourier features of the rbf kernel instead of its exact coordinates, for many samples.
        n_init: starts by robust k-means++; the best is kept.
        max_iter: maximum number of steps of a start.
        tol: a start ends once the squared movement of the centers falls below `tol` times the mean feature variance.
        random_state: of the starts and the random features.

    Attributes:
        cluster_centers_: (n_clusters, d).
        labels_: (n,).
        outliers_: (n,) bool, the samples with a compensation.
        compensations_: (n, d), the :math:`o_i`.
        inertia_: the value of the equation.
        lam_: the penalty used.
        n_iter_: the number of steps.
        responsibilities_: (n, n_clusters), degrees of membership; soft variant only.

    >>> X = np.array([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2], [12.0]])
    >>> model = RobustKMeans(n_clusters=2, lam=2.0, random_state=0).fit(X)
    >>> np.sort(model.cluster_centers_.ravel()).round(3), model.outliers_.nonzero()[0]
    (array([0.1  , 5.433]), array([6]))

    References: Yao and Wu, Compensation Learning, 2021, Eqs. (20) and (21). Forero, Kekatos and Giannakis, Robust clustering using
    outlier-sparsity regularization, 2012.
    """

    n_clusters: int = 8
    _: KW_ONLY
    lam: float | None = None
    contamination: float = 0.1
    penalty: Literal["l2", "l1"] = "l2"
    soft: bool = False
    scale: float | None = None
    kernel: Literal["linear", "rbf", "poly"] | None = None
    gamma: float | Literal["scale"] = "scale"
    degree: int = 3
    coef0: float = 1.0
    random_features: int | None = None
    n_init: int = 10
    max_iter: int = 300
    tol: float = 1e-4
    random_state: Any = None

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> RobustKMeans:
        """Clusters the rows of `X`, (n, d). `y` is ignored."""
        problem, mean, tol, random = self._prepare(X, sample_weight)
        centers, _, t, steps = self._best(problem, [], random, tol)
        if problem.t is None:
            # With lambda known, the last steps minimize Eq. (21) itself.
            problem = replace(problem, t=t)
            centers, _, _, more = problem.descend(centers, self.max_iter, tol)
            steps += more
        labels, r = problem.assign(centers)
        self.lam_, self.n_iter_ = 2 * t, steps
        self.compensations_ = compensation(problem.X - centers[labels], t, self.penalty)
        if self.soft:
            centers, labels = self._soften(problem, centers, labels, r)
        else:
            self.inertia_ = problem.cost(r, t)
        self.cluster_centers_, self.labels_ = centers + mean, labels.astype(np.int32)
        self.outliers_, self._n_features_out = self.compensations_.any(axis=1), self.n_clusters
        return self

    def _best(
        self, problem: _Problem, starts: list[np.ndarray], random: np.random.RandomState, tol: float
    ) -> tuple[np.ndarray, np.ndarray, float, int]:
        """The best descent from the given starts and `n_init` new ones."""
        best, best_score = None, np.inf
        for start in [*starts, *(problem.seeds(self.n_clusters, random) for _ in range(self.n_init))]:
            result = _, r, t, _ = problem.descend(start, self.max_iter, tol)
            score = problem.cost(r, t)
            if problem.t is None:
                # Starts with different thresholds compare by the plain cost of the samples within, up to rounding.
                score = float(problem.w @ ((r**2).sum(1) * (r <= t * (1 + 1e-9)).all(1)))
            # A start must be better by more than rounding: ties go to the first, in any order of the rows.
            if best is None or score < best_score * (1 - 1e-9):
                best, best_score = result, score
        assert best is not None
        return best

    def _prepare(self, X: Any, sample_weight: Any) -> tuple[_Problem, np.ndarray, float, np.random.RandomState]:
        """The problem, the mean of the samples, the tolerance and the random state."""
        check_parameters(self)
        if self.kernel is not None and self.penalty == "l1":
            raise ValueError("penalty='l1' acts on single features, which a kernel does not have; use penalty='l2'.")
        X = validate_data(self, X, dtype=[np.float64, np.float32], order="C")
        w = weights(sample_weight, X)
        if len(X) < self.n_clusters:
            raise ValueError(f"n_samples={len(X)} should be >= n_clusters={self.n_clusters}.")
        random = check_random_state(self.random_state)
        self._map = None if self.kernel is None else common.KernelMap(self, X, w, random)
        if self._map is not None:
            X = np.ascontiguousarray(self._map(X))
        mean = np.average(X, axis=0, weights=w).astype(X.dtype)
        centered = X - mean  # distances by a matrix product lose digits far from the origin
        tol = self.tol * float(np.average((centered**2).mean(1), weights=w))
        t = None if self.lam is None else self.lam / 2
        return _Problem(centered, w.astype(X.dtype), self.penalty, t, self.contamination), mean, tol, random

    def _soften(
        self, problem: _Problem, centers: np.ndarray, labels: np.ndarray, r: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """EM on the soft objective, from the hard solution; every step lowers it. Returns centers and labels."""
        X, w, t, o = problem.X, problem.w, self.lam_ / 2, self.compensations_
        square = ((X - centers[labels]) ** 2).sum(1)
        used = w * (r <= t).all(1)
        scale = np.sqrt(used @ square / max(used.sum() * X.shape[1], 1)) if self.scale is None else self.scale
        self.scale_ = float(max(scale, problem.floor / np.sqrt(X.shape[1])))
        self.mixture_ = np.bincount(labels, w, len(centers)) / w.sum()
        last = np.inf
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
        self.responsibilities_, self.compensations_ = self._soft_solution(X, centers, o)
        _, self.inertia_ = self._memberships(X, self.compensations_, centers, w)
        return centers, self.responsibilities_.argmax(1)

    def _memberships(
        self, X: np.ndarray, o: np.ndarray, centers: np.ndarray, w: np.ndarray | float = 1.0
    ) -> tuple[np.ndarray, float]:
        """Degrees of membership, (n, k), of compensated samples, and the value of the soft objective."""
        square = ((X + o)[:, None] - centers) ** 2
        with np.errstate(divide="ignore"):
            logits = np.log(self.mixture_) - square.sum(2) / (2 * self.scale_**2)
        price = self.lam_ * common.residual_sizes(o, self.penalty).sum(1) if np.isfinite(self.lam_) else 0.0
        value = np.sum(w * (price - 2 * self.scale_**2 * logsumexp(logits, axis=1)))
        return softmax(logits, axis=1), float(value)

    def _soft_solution(self, X: np.ndarray, centers: np.ndarray, o: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Memberships and compensations for fixed centers, by alternation from `o` until each row converges."""
        t, o, moving = self.lam_ / 2, o.copy(), np.arange(len(X))
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

        By default from the penalty that compensates no sample to the one that would compensate half, evenly spaced in logarithm.
        """
        problem, mean, tol, random = self._prepare(X, sample_weight)
        centers, r, _, _ = self._best(replace(problem, t=np.inf), [], random, tol)
        if lams is None:
            most = 2 * r.max()
            _, r, _, _ = self._best(replace(problem, t=None), [], random, tol)
            half = 2 * weighted_quantile(r.max(1), 0.5, problem.w)
            lams = np.geomspace(most, max(half, 2 * problem.floor), n_lams)
        lams = np.sort(check_array(lams, ensure_2d=False, dtype=np.float64))[::-1]
        found = []
        for lam in lams:
            at_lam = replace(problem, t=lam / 2)
            centers, r, t, _ = self._best(at_lam, [centers], random, tol)
            found.append((np.average((r > t).any(1), weights=problem.w), at_lam.cost(r, t), centers + mean))
        return LambdaPath(lams, *map(np.array, zip(*found, strict=True)))

    def _coordinates(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Checked samples in the coordinates of the centers, and their squared length outside, (n,)."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32], order="C")
        if self._map is None:
            return X.astype(self.cluster_centers_.dtype, copy=False), np.zeros(len(X))
        Z = np.ascontiguousarray(self._map(X))
        return Z, self._map.outside(X, Z)

    def _assigned(self, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Labels and residual sizes of samples in the coordinates of the centers."""
        mean = self.cluster_centers_.mean(0)
        problem = _Problem(Z - mean, np.ones(len(Z)), self.penalty, self.lam_ / 2, self.contamination)
        return problem.assign(self.cluster_centers_ - mean)

    def _solution(self, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray, Any]:
        """Clusters, compensations and, of the soft variant, memberships."""
        centers = self.cluster_centers_
        labels = pairwise_distances_argmin(Z, centers) if self.soft else self._assigned(Z)[0]
        o, q = compensation(Z - centers[labels], self.lam_ / 2, self.penalty), None
        if self.soft:
            q, o = self._soft_solution(Z, centers, o)
            labels = q.argmax(1)
        return labels.astype(np.int32), o, q

    def predict(self, X: Any) -> np.ndarray:
        """The cluster of each row of `X`."""
        return self._solution(self._coordinates(X)[0])[0]

    @available_if(lambda self: bool(self.soft))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> np.ndarray:
        """Degrees of membership, (n, n_clusters), of the soft variant."""
        return self._solution(self._coordinates(X)[0])[2]

    def transform(self, X: Any) -> np.ndarray:
        """Distances to the centers, (n, n_clusters)."""
        Z, outside = self._coordinates(X)
        square = np.stack([((Z - m) ** 2).sum(1) for m in self.cluster_centers_], axis=1)
        return np.sqrt(square + outside[:, None]).astype(Z.dtype)

    def compensate(self, X: Any) -> np.ndarray:
        """The compensations of the rows of `X`, zero within lambda / 2 of their center."""
        return self._solution(self._coordinates(X)[0])[1]

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Minus the value of the (hard) equation on `X`: larger is better."""
        Z, _ = self._coordinates(X)
        cost = residual_cost(self._assigned(Z)[1], self.lam_ / 2, self.penalty).sum(1)
        return -float(weights(sample_weight, Z) @ cost)

    def plot(self, X: Any, ax: Any = None) -> Any:
        """Clusters with their centers; outliers as crosses, each with an arrow along its compensation."""
        Z, _ = self._coordinates(X)
        labels, o, _ = self._solution(Z)
        out = o.any(axis=1)
        ax = common.axes(ax, f"Robust k-means: {out.mean():.1%} of the samples compensated")
        flat, moved, centers = common.plane(Z, Z + o, self.cluster_centers_)
        common.clusters(ax, flat, labels, centers, out, "outlier and its compensation", moved - flat)
        return ax
