"""Clustering of samples with several views, some of which are corrupted for some samples.

Use it if every sample has two or more descriptions (text and image, several sensors) and a description may fail for single
samples. The views share one representation; a compensation per sample and view absorbs the rest.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.validation import check_is_fitted

from compensate.core.proximal import project_ball, row_norm
from compensate.estimators import common
from compensate.estimators.common import check_parameters, weighted_quantile
from compensate.estimators.kmeans import RobustKMeans, compensation, nearest_center

EMBED_STEPS = 500  # maximum alternations for the representation of given samples
MAX_RADIUS = 1.5  # bound of a representation, relative to the median length of the first one
MAX_RESIDUAL = 3.0  # residuals above this multiple of the median count as corrupted in any case
MIN_STEP = 1e-9  # movement at which the alternations stop


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

    Parameters
    ----------
    n_clusters : int, default=8
    n_components : int or None, default=None
        Size r of the representation; None is `n_clusters - 1`, which k centers span.
    lam : float or None, default=None
        In units of a view's size (the median length of its centered rows). None chooses it from `contamination`.
    contamination : float in [0, 0.5), default=0.1
        Expected share of corrupted rows: :math:`\lambda/2` is the residual that this share exceeds, or three times
        the median residual if that is less. Zero compensates nothing.
    level : {"view", "sample"}, default="view"
    penalty : {"l20", "l21"}, default="l20"
        With l21, the equation above, a corrupted row keeps a pull of :math:`\lambda/2`; with l20 each compensation costs
        :math:`\lambda^2/4` whatever its length, and corrupted rows do not count at all. l20 starts from l21.
    n_init : int, default=10
        Starts of the clustering.
    max_iter : int, default=300
    tol : float, default=1e-7
        Stops once the value falls by less than this share.
    random_state : int, RandomState or None, default=None

    Attributes
    ----------
    labels_ : (n,)
    embedding_ : (n, r), the representation H
    cluster_centers_ : (n_clusters, r)
    bases_ : list of (r, d_v), for views of unit size
    compensations_ : list of (n, d_v), in the units of each view
    outliers_ : (n, V) bool, which views of which samples were compensated
    inertia_ : float, the value of the equation
    lam_ : float
    n_views_in_ : int
    n_iter_ : int

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat([0, 1], 20)
    >>> views = [rng.normal(size=(2, d))[truth] * 5 + rng.normal(size=(40, d)) for d in (6, 4)]
    >>> views[1][3] += 100 * rng.normal(size=4)
    >>> model = MultiViewRobustClustering(2, contamination=0.02, random_state=0).fit(views)
    >>> [(int(i), int(v)) for i, v in np.argwhere(model.outliers_) if i == 3], len(set(model.labels_[:20]))
    ([(3, 1)], 1)

    References
    ----------
    Yao and Wu, Compensation Learning, 2021, Sec. III. Zhao, Zhao, Sun, Liu and Chen, Multi-view robust feature learning
    for data clustering, 2020.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        n_components: int | None = None,
        lam: float | None = None,
        contamination: float = 0.1,
        level: Literal["view", "sample"] = "view",
        penalty: Literal["l20", "l21"] = "l20",
        n_init: int = 10,
        max_iter: int = 300,
        tol: float = 1e-7,
        random_state: Any = None,
    ) -> None:
        self.n_clusters, self.n_components, self.lam = n_clusters, n_components, lam
        self.contamination, self.level, self.penalty, self.n_init = contamination, level, penalty, n_init
        self.max_iter, self.tol, self.random_state = max_iter, tol, random_state

    def fit(self, X: Any, y: Any = None) -> MultiViewRobustClustering:
        """Clusters samples given as a list of views, each (n, d_v). `y` is ignored."""
        check_parameters(
            self,
            counts=["n_clusters", "n_init", "max_iter", "n_components"],
            positives=["lam"],
            optional=["lam", "n_components"],
            options={"level": ["view", "sample"], "penalty": ["l20", "l21"]},
        )
        views = self._check_views(X, reset=True)
        if len(views[0]) < self.n_clusters:
            raise ValueError(f"n_samples={len(views[0])} should be >= n_clusters={self.n_clusters}.")
        self._centers = [np.median(view, axis=0) for view in views]
        lengths = [
            float(np.median(np.linalg.norm(view - m, axis=1))) for view, m in zip(views, self._centers, strict=True)
        ]
        self._sizes = [length or 1.0 for length in lengths]
        Z = self._scale(views)
        rank = max(self.n_clusters - 1, 1) if self.n_components is None else self.n_components
        rank = min(rank, *Z.shape)
        self._descend(Z, rank)
        self.embedding_, shift = self._embed(Z)
        residual = Z - self._mean - self.embedding_ @ self._basis
        self.inertia_ = self._value(residual, shift, self.lam_ / 2, self.penalty)
        self.bases_ = self._split(self._basis)
        self.compensations_ = [o * s for o, s in zip(self._split(shift), self._sizes, strict=True)]
        self.outliers_ = np.stack([o.any(axis=1) for o in self.compensations_], axis=1)
        clusters = RobustKMeans(
            self.n_clusters, contamination=self.contamination, n_init=self.n_init, random_state=self.random_state
        ).fit(self.embedding_)
        self.cluster_centers_ = clusters.cluster_centers_
        self.labels_ = nearest_center(self.embedding_, self.cluster_centers_)[0].astype(np.int32)
        return self

    def _check_views(self, X: Any, *, reset: bool) -> list[np.ndarray]:
        if not isinstance(X, (list, tuple)) or not len(X):
            raise TypeError(f"X should be a list of views, each an array (n_samples, n_features). Got {type(X)}.")
        views = [check_array(view, dtype=np.float64, input_name=f"view {v}") for v, view in enumerate(X)]
        check_consistent_length(*views)
        widths = [view.shape[1] for view in views]
        if reset:
            self.n_views_in_, self._widths = len(views), widths
        elif widths != self._widths:
            raise ValueError(
                f"X has views with {widths} features, but {type(self).__name__} is expecting {self._widths} features "
                "as input."
            )
        return views

    def _scale(self, views: list[np.ndarray]) -> np.ndarray:
        """The views side by side, each scaled to unit size, (n, sum d_v)."""
        parts = zip(views, self._centers, self._sizes, strict=True)
        return np.hstack([(view - m) / s for view, m, s in parts])

    def _split(self, wide: np.ndarray) -> list[np.ndarray]:
        return np.split(wide, np.cumsum(self._widths)[:-1], axis=1)

    def _lengths(self, rows: np.ndarray) -> np.ndarray:
        """Length of each penalized group: (n, V) per view or (n, 1) per sample."""
        parts = self._split(rows) if self.level == "view" else [rows]
        return np.stack([np.linalg.norm(part, axis=1) for part in parts], axis=1)

    def _shift(self, residual: np.ndarray, t: float, penalty: str) -> np.ndarray:
        """The best compensation of given residuals."""
        parts = self._split(residual) if self.level == "view" else [residual]
        if penalty == "l21":
            return np.hstack([compensation(part, t, "l2") for part in parts])
        return np.hstack([-part * (np.linalg.norm(part, axis=1, keepdims=True) > t) for part in parts])

    def _value(self, residual: np.ndarray, shift: np.ndarray, t: float, penalty: str) -> float:
        lengths = self._lengths(shift)
        price = 0.0 if np.isinf(t) else 2 * t * lengths.sum() if penalty == "l21" else t**2 * (lengths > 0).sum()
        return float(((residual + shift) ** 2).sum() + price)

    def _threshold(self, residual: np.ndarray) -> float:
        if self.lam is not None:
            return self.lam / 2
        length = self._lengths(residual).ravel()
        level = weighted_quantile(length, 1 - self.contamination)
        # Rows with very large residuals are corrupted even if there are more of them than expected.
        return max(min(level, MAX_RESIDUAL * float(np.median(length))) if self.contamination > 0 else level, 1e-9)

    def _descend(self, Z: np.ndarray, rank: int) -> None:
        """Alternates compensation, representation and basis; each has a closed form and lowers the value.

        If lambda is not given, it is estimated at every step of the first stages and fixed in the last.
        """
        guarded = self.lam is None and self.contamination > 0
        # The first compensation is relative to the medians, down to the median length: no corrupted row may get a direction of
        # the basis.
        t = float(np.median(self._lengths(Z))) if guarded else self._threshold(Z)
        shift = self._shift(Z, t, "l21")
        self._mean = (Z + shift).mean(0)
        self._basis = np.linalg.svd(Z + shift - self._mean, full_matrices=False)[2][:rank]
        H = (Z + shift - self._mean) @ self._basis.T
        self._radius = MAX_RADIUS * float(np.median(row_norm(H))) if np.isfinite(t) and shift.any() else np.inf
        stages = [("l21", False)] + [("l20", False)] * (self.penalty == "l20")
        if self.lam is None:
            stages = [(penalty, True) for penalty, _ in stages] + [stages[-1]]
        self.n_iter_ = 0
        for penalty, search in stages:
            last = np.inf
            for _ in range(self.max_iter):
                self.n_iter_ += 1
                Y = Z + shift
                H = self._bounded((Y - self._mean) @ self._basis.T)
                self._mean = (Y - H @ self._basis).mean(0)
                U, _, Vt = np.linalg.svd(H.T @ (Y - self._mean), full_matrices=False)
                self._basis = U @ Vt
                residual = Z - self._mean - H @ self._basis
                t = self._threshold(residual) if search else t
                shift = self._shift(residual, t, penalty)
                value = self._value(residual, shift, t, penalty)
                if abs(last - value) <= self.tol * value:
                    break
                last = value
        self.lam_ = 2 * t

    def _bounded(self, H: np.ndarray) -> np.ndarray:
        return H if np.isinf(self._radius) else project_ball(H, self._radius, "l2")

    def _embed(self, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Representation and compensation of samples for a fixed basis, by the same alternation."""
        t, Y = self.lam_ / 2, Z - self._mean
        shift = self._shift(Y, min(t, float(np.sqrt(len(self._widths)))), "l21")
        H = self._bounded((Y + shift) @ self._basis.T)
        for penalty in ["l21"] + ["l20"] * (self.penalty == "l20"):
            for _ in range(EMBED_STEPS):
                shift = self._shift(Y - H @ self._basis, t, penalty)
                new = self._bounded((Y + shift) @ self._basis.T)
                rest = np.abs(new - H).max() <= MIN_STEP
                H = new
                if rest:
                    break
        return H, self._shift(Y - H @ self._basis, t, self.penalty)

    def transform(self, X: Any) -> np.ndarray:
        """The shared representation, (n, r), of samples given as a list of views."""
        check_is_fitted(self)
        return self._embed(self._scale(self._check_views(X, reset=False)))[0]

    def predict(self, X: Any) -> np.ndarray:
        """The cluster of each sample."""
        return nearest_center(self.transform(X), self.cluster_centers_)[0].astype(np.int32)

    def plot(self, X: Any, ax: Any = None) -> Any:
        """The shared representation, colored by cluster; crosses mark samples with a compensated view."""
        check_is_fitted(self)
        H, shift = self._embed(self._scale(self._check_views(X, reset=False)))
        labels, out = nearest_center(H, self.cluster_centers_)[0], shift.any(axis=1)
        flat, centers = common.plane(H, self.cluster_centers_)
        views = self._lengths(shift).astype(bool).mean()
        ax = common.axes(ax, f"Shared representation: {views:.1%} of the rows of all views compensated")
        common.clusters(ax, flat, labels, centers, out, "a view compensated")
        return ax
