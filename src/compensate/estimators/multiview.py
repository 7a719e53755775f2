"""Clustering of samples with several views, some of which are corrupted for some samples.

Use it if every sample has two or more descriptions (text and image, several sensors), which may fail for single samples.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.metrics import pairwise_distances_argmin
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.validation import check_is_fitted

from compensate.core.proximal import project_ball, row_norm
from compensate.estimators import common
from compensate.estimators.common import check_parameters, compensation, residual_cost, weighted_quantile
from compensate.estimators.kmeans import RobustKMeans

EMBED_STEPS = 500  # maximum alternations for the representation of given samples
MAX_RADIUS = 1.5  # bound of a representation, relative to the median length of the first one
MAX_RESIDUAL = 3.0  # residuals above this multiple of the median always count as corrupted
MIN_STEP = 1e-9  # movement at which the alternations stop
NORMS = {"l21": "l2", "l20": "l0"}  # of a penalized group
STAGES = {"l21": ["l21"], "l20": ["l21", "l20"]}  # l20 starts from l21


@dataclass(eq=False, repr=False)
class MultiViewRobustClustering(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    r"""Clusters in a representation shared by the views, with an l2,1 compensation of samples and views.

    .. math:: \min_{H, B, \mu, O} \sum_v \|X_v + O_v - 1\mu_v^T - H B_v\|_F^2
              + \lambda \sum_v \sum_i \|o_{vi}\|_2 \quad \text{with } B B^T = I,\ \|h_i\| \le \rho

    where :math:`X_v` (n, :math:`d_v`) is view v, brought to unit size, H (n, r) the shared representation with rows
    :math:`h_i`, :math:`B = (B_1, \ldots, B_V)` the basis, :math:`\mu_v` the center of a view and :math:`o_{vi}` the
    compensation of sample i in view v: zero for most, large where a view is corrupted. The bound :math:`\rho` keeps a
    corrupted row from determining a direction of the basis. With `level="sample"` the penalty is
    :math:`\lambda \sum_i \|(o_{1i}, \ldots, o_{Vi})\|_2`: a sample is compensated in all views or in none. The
    representation is then clustered by `RobustKMeans`.

    Args:
        n_clusters: the number of clusters.
        n_components: size r of the representation; None is `n_clusters - 1`, which k centers span.
        lam: in units of a view's size (the median length of its centered rows). None chooses it from `contamination`.
        contamination: expected share of corrupted rows, in [0, 0.5): :math:`\lambda/2` is the residual that this share exceeds, or
            three times the median residual if that is less. Zero compensates nothing.
        level: the unit that is compensated as a whole, a "view" of a sample or the whole "sample".
        penalty: with l21, the equation above, a corrupted row keeps a pull of :math:`\lambda/2`; with l20 each compensation costs
            :math:`\lambda^2/4` whatever its length, and corrupted rows do not count at all. l20 starts from l21.
        n_init, random_state: of the clustering.
        max_iter: maximum number of steps of a stage.
        tol: a stage ends once the value falls by less than this share.

    Attributes:
        labels_: (n,).
        embedding_: (n, r), the representation H.
        cluster_centers_: (n_clusters, r).
        bases_: list of (r, d_v), for views of unit size.
        compensations_: list of (n, d_v), in the units of each view.
        outliers_: (n, V) bool, which views of which samples were compensated.
        inertia_: the value of the equation.
        lam_, n_views_in_, n_iter_: the penalty used, the numbers of views and of steps.

    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat([0, 1], 20)
    >>> views = [rng.normal(size=(2, d))[truth] * 5 + rng.normal(size=(40, d)) for d in (6, 4)]
    >>> views[1][3] += 100 * rng.normal(size=4)
    >>> model = MultiViewRobustClustering(2, contamination=0.02, random_state=0).fit(views)
    >>> [(int(i), int(v)) for i, v in np.argwhere(model.outliers_) if i == 3], len(set(model.labels_[:20]))
    ([(3, 1)], 1)

    References: Yao and Wu, Compensation Learning, 2021, Sec. III. Zhao, Zhao, Sun, Liu and Chen, Multi-view robust feature learning for
    data clustering, 2020.
    """

    n_clusters: int = 8
    _: KW_ONLY
    n_components: int | None = None
    lam: float | None = None
    contamination: float = 0.1
    level: Literal["view", "sample"] = "view"
    penalty: Literal["l20", "l21"] = "l20"
    n_init: int = 10
    max_iter: int = 300
    tol: float = 1e-7
    random_state: Any = None

    def fit(self, X: Any, y: Any = None) -> MultiViewRobustClustering:
        """Clusters samples given as a list of views, each (n, d_v). `y` is ignored."""
        check_parameters(self)
        Z = self._scaled(X, reset=True)
        if len(Z) < self.n_clusters:
            raise ValueError(f"n_samples={len(Z)} should be >= n_clusters={self.n_clusters}.")
        rank = max(self.n_clusters - 1, 1) if self.n_components is None else self.n_components
        self._descend(Z, min(rank, *Z.shape))
        self.embedding_, shift = self._embed(Z)
        residual = Z - self._mean - self.embedding_ @ self._basis
        self.inertia_ = self._cost(residual, self.lam_ / 2, self.penalty)
        self.bases_ = np.split(self._basis, self._cuts, axis=1)
        self.compensations_ = np.split(shift * self._size, self._cuts, axis=1)
        self.outliers_ = np.stack([o.any(axis=1) for o in self.compensations_], axis=1)
        clusters = RobustKMeans(
            self.n_clusters, contamination=self.contamination, n_init=self.n_init, random_state=self.random_state
        ).fit(self.embedding_)
        self.cluster_centers_ = clusters.cluster_centers_
        self.labels_ = pairwise_distances_argmin(self.embedding_, self.cluster_centers_).astype(np.int32)
        return self

    def _scaled(self, X: Any, *, reset: bool = False) -> np.ndarray:
        """The checked views side by side, each scaled to unit size, (n, sum d_v)."""
        if not isinstance(X, (list, tuple)) or not len(X):
            raise TypeError(f"X should be a list of views, each an array (n_samples, n_features). Got {type(X)}.")
        views = [check_array(view, dtype=np.float64, input_name=f"view {v}") for v, view in enumerate(X)]
        check_consistent_length(*views)
        widths = [view.shape[1] for view in views]
        if reset:
            self.n_views_in_, self._widths, self._cuts = len(views), widths, np.cumsum(widths)[:-1]
            centers = [np.median(view, axis=0) for view in views]
            lengths = [np.median(row_norm(view - m)) or 1.0 for view, m in zip(views, centers, strict=True)]
            self._center, self._size = np.concatenate(centers), np.repeat(lengths, widths)
        elif widths != self._widths:
            raise ValueError(
                f"X has views with {widths} features, but {type(self).__name__} is expecting {self._widths} features "
                "as input."
            )
        return (np.hstack(views) - self._center) / self._size

    def _groups(self, rows: np.ndarray) -> list[np.ndarray]:
        """The parts of rows that are penalized as a whole: views or samples."""
        return np.split(rows, self._cuts, axis=1) if self.level == "view" else [rows]

    def _lengths(self, rows: np.ndarray) -> np.ndarray:
        """Length of each penalized group: (n, V) per view or (n, 1) per sample."""
        return np.hstack([row_norm(part) for part in self._groups(rows)])

    def _shift(self, residual: np.ndarray, t: float, penalty: str) -> np.ndarray:
        """The best compensation of given residuals."""
        return np.hstack([compensation(part, t, NORMS[penalty]) for part in self._groups(residual)])

    def _cost(self, residual: np.ndarray, t: float, penalty: str) -> float:
        """The value of the equation with the best compensation."""
        return float(residual_cost(self._lengths(residual), t, NORMS[penalty]).sum())

    def _threshold(self, residual: np.ndarray) -> float:
        if self.lam is not None:
            return self.lam / 2
        length = self._lengths(residual).ravel()
        level = weighted_quantile(length, 1 - self.contamination, np.ones_like(length))
        # Rows with very large residuals are corrupted even if there are more of them than expected.
        return max(min(level, MAX_RESIDUAL * float(np.median(length))) if self.contamination > 0 else level, 1e-9)

    def _descend(self, Z: np.ndarray, rank: int) -> None:
        """Alternates compensation, representation and basis; each has a closed form and lowers the value.

        If lambda is not given, it is estimated at every step of the first stages and fixed in the last.
        """
        guarded = self.lam is None and self.contamination > 0
        # The first basis uses residuals from the medians, cut to their median length, so corrupted rows cannot determine it.
        t = float(np.median(self._lengths(Z))) if guarded else self._threshold(Z)
        shift = self._shift(Z, t, "l21")
        self._mean = (Z + shift).mean(0)
        self._basis = np.linalg.svd(Z + shift - self._mean, full_matrices=False)[2][:rank]
        H = (Z + shift - self._mean) @ self._basis.T
        self._radius = MAX_RADIUS * float(np.median(row_norm(H))) if np.isfinite(t) and shift.any() else np.inf
        stages = [(penalty, self.lam is None) for penalty in STAGES[self.penalty]]
        if self.lam is None:
            stages.append((self.penalty, False))
        self.n_iter_ = 0
        for penalty, search in stages:
            last = np.inf
            for _ in range(self.max_iter):
                self.n_iter_ += 1
                Y = Z + shift
                H = project_ball((Y - self._mean) @ self._basis.T, self._radius, "l2")
                self._mean = (Y - H @ self._basis).mean(0)
                U, _, Vt = np.linalg.svd(H.T @ (Y - self._mean), full_matrices=False)
                self._basis = U @ Vt
                residual = Z - self._mean - H @ self._basis
                t = self._threshold(residual) if search else t
                shift = self._shift(residual, t, penalty)
                value = self._cost(residual, t, penalty)
                if abs(last - value) <= self.tol * value:
                    break
                last = value
        self.lam_ = 2 * t

    def _embed(self, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Representation and compensation of samples for a fixed basis, by the same alternation."""
        t, Y = self.lam_ / 2, Z - self._mean
        shift = self._shift(Y, min(t, float(np.sqrt(self.n_views_in_))), "l21")
        H = project_ball((Y + shift) @ self._basis.T, self._radius, "l2")
        for penalty in STAGES[self.penalty]:
            for _ in range(EMBED_STEPS):
                shift = self._shift(Y - H @ self._basis, t, penalty)
                last, H = H, project_ball((Y + shift) @ self._basis.T, self._radius, "l2")
                if np.abs(H - last).max() <= MIN_STEP:
                    break
        return H, self._shift(Y - H @ self._basis, t, self.penalty)

    def transform(self, X: Any) -> np.ndarray:
        """The shared representation, (n, r), of samples given as a list of views."""
        check_is_fitted(self)
        return self._embed(self._scaled(X))[0]

    def predict(self, X: Any) -> np.ndarray:
        """The cluster of each sample."""
        return pairwise_distances_argmin(self.transform(X), self.cluster_centers_).astype(np.int32)

    def plot(self, X: Any, ax: Any = None) -> Any:
        """The shared representation, colored by cluster; crosses mark samples with a compensated view."""
        check_is_fitted(self)
        H, shift = self._embed(self._scaled(X))
        labels, out = pairwise_distances_argmin(H, self.cluster_centers_), shift.any(axis=1)
        flat, centers = common.plane(H, self.cluster_centers_)
        views = self._lengths(shift).astype(bool).mean()
        ax = common.axes(ax, f"Shared representation: {views:.1%} of the rows of all views compensated")
        common.clusters(ax, flat, labels, centers, out, "a view compensated")
        return ax
