r"""Kernels as coordinates: a linear method on `Z` is the kernel method on `X`.

With the eigenvectors of the kernel matrix, :math:`K = U \Lambda U^T`, the rows of :math:`Z = U \Lambda^{1/2}` have the
inner products of the feature space, :math:`Z Z^T = K`, so clustering or a linear SVM on `Z` is exact. This costs
:math:`O(n^3)` once; for many samples random Fourier features stand in (Rahimi and Recht, 2007).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.spatial import cKDTree
from scipy.stats import special_ortho_group
from sklearn.base import BaseEstimator
from sklearn.kernel_approximation import RBFSampler
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from compensate.core.proximal import group_soft_threshold, row_norm
from compensate.estimators import common
from compensate.estimators.common import count, one_of, positive

Kernel = Literal["linear", "rbf", "poly"]


@dataclass(frozen=True)
class KernelMap:
    """The map of a fitted kernel from features to coordinates. `extra` is the squared length it cannot show."""

    kernel: str
    params: dict[str, Any]
    anchors: np.ndarray
    axes: np.ndarray

    def __call__(self, X: np.ndarray) -> np.ndarray:
        return pairwise_kernels(X, self.anchors, metric=self.kernel, **self.params) @ self.axes

    def extra(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """What of each sample lies outside the span of the fitted ones, as a squared length, (n,)."""
        square = np.einsum("ij,ij->i", X, X)
        if self.kernel == "rbf":
            square = np.ones(len(X))
        elif self.kernel == "poly":
            square = (self.params["gamma"] * square + self.params["coef0"]) ** self.params["degree"]
        return np.maximum(square - np.einsum("ij,ij->i", Z, Z), 0)


@dataclass(frozen=True)
class RandomMap:
    """Random Fourier features of the rbf kernel."""

    sampler: RBFSampler

    def __call__(self, X: np.ndarray) -> np.ndarray:
        return self.sampler.transform(X)

    def extra(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        return np.zeros(len(X))


def kernel_params(
    kernel: str, gamma: float | Literal["scale"], degree: int, coef0: float, X: np.ndarray, weights: np.ndarray
) -> dict[str, Any]:
    """The numbers of a kernel. `gamma="scale"` is 1 / (features * variance), as in `sklearn.svm.SVC`."""
    one_of(kernel, "kernel", ["linear", "rbf", "poly"])
    if kernel == "linear":
        return {}
    if gamma == "scale":
        mean = np.average(X, weights=np.broadcast_to(weights[:, None], X.shape))
        variance = np.average((X - mean) ** 2, weights=np.broadcast_to(weights[:, None], X.shape))
        gamma = 1.0 / (X.shape[1] * variance) if variance > 0 else 1.0
    positive(gamma, "gamma")
    if kernel == "rbf":
        return {"gamma": gamma}
    count(degree, "degree")
    positive(coef0, "coef0", zero=True)
    return {"gamma": gamma, "degree": degree, "coef0": coef0}


def fit_kernel_map(X: np.ndarray, kernel: str, params: dict[str, Any]) -> KernelMap:
    """Exact coordinates of a kernel, from the samples `X`, (n, d).

    >>> X = np.array([[0.0, 1.0], [1.0, 1.0], [3.0, 0.0]])
    >>> Z = fit_kernel_map(X, "poly", {"gamma": 1.0, "degree": 2, "coef0": 1.0})(X)
    >>> bool(np.allclose(Z @ Z.T, (X @ X.T + 1) ** 2))
    True
    """
    values, vectors = np.linalg.eigh(pairwise_kernels(X, metric=kernel, **params))
    # Directions below this level are rounding noise, and dividing by their root would blow them up.
    kept = values > 1e-10 * max(values[-1], np.finfo(float).tiny)
    return KernelMap(kernel, params, X, vectors[:, kept] / np.sqrt(values[kept]))


def fit_random_map(X: np.ndarray, params: dict[str, Any], size: int, random_state: Any) -> RandomMap:
    """Random Fourier features of the rbf kernel, `size` of them."""
    return RandomMap(RBFSampler(gamma=params["gamma"], n_components=size, random_state=random_state).fit(X))


Motion = Literal["rigid", "affine", "nonrigid"]
TIGHTEN = 0.95  # least share of the threshold that a step keeps while it follows the bulk of the distances


def rigid(P: np.ndarray, Q: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Rotation R and translation b with the least :math:`\sum_i w_i \|R p_i + b - q_i\|^2`.

    >>> R, b = rigid(np.eye(2), np.array([[0.0, 1.0], [-1.0, 0.0]]), np.ones(2))
    >>> (R.round(6) + 0.0).tolist()
    [[0.0, -1.0], [1.0, 0.0]]
    """
    p, q = np.average(P, axis=0, weights=w), np.average(Q, axis=0, weights=w)
    U, _, Vt = np.linalg.svd((w[:, None] * (P - p)).T @ (Q - q))
    sign = np.ones(len(Vt))
    sign[-1] = np.sign(np.linalg.det(U @ Vt))  # no reflections
    R = (Vt.T * sign) @ U.T
    return R, q - R @ p


def affine(P: np.ndarray, Q: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Matrix M and translation b with the least :math:`\sum_i w_i \|M p_i + b - q_i\|^2`."""
    root = np.sqrt(w)[:, None]
    solution = np.linalg.lstsq(root * np.column_stack([P, np.ones(len(P))]), root * Q, rcond=None)[0]
    return solution[:-1].T, solution[-1]


def bumps(A: np.ndarray, B: np.ndarray, width: float) -> np.ndarray:
    """Gaussian bumps of the given width around the rows of `B`, seen at the rows of `A`, (len(A), len(B))."""
    return np.exp(-((A[:, None] - B) ** 2).sum(2) / (2 * width**2))


def closest(tree: cKDTree, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distance to the nearest point of the tree, and which one that is, both (n,)."""
    distance, position = tree.query(points)
    return np.asarray(distance), np.asarray(position)


def _left(r: np.ndarray, t: float, penalty: str) -> np.ndarray:
    """What the best compensation leaves of residuals of length `r`, as a share."""
    if np.isinf(t):
        return np.ones_like(r)
    return t / np.maximum(r, t) if penalty == "l2" else (r <= t).astype(float)


class RobustICP(BaseEstimator):  # type: ignore[misc]
    r"""Iterative closest point with an outlier-sparse compensation per point.

    .. math:: \min_{T, c, o} \sum_i \|T(p_i) + o_i - q_{c(i)}\|_2^2 + \lambda \|o_i\|_2

    where :math:`p_i` are the source points, :math:`q_{c(i)}` the nearest target point of each, :math:`o_i` its
    compensation and T a rigid or affine motion, or a rigid one followed by a smooth displacement,
    :math:`T(p) = R p + b + \sum_j g(p, p_j) w_j` with Gaussian bumps g and the penalty :math:`\beta\,\mathrm{tr}(W^T G
    W)`. A point farther than :math:`\lambda/2` from its partner is an outlier and is moved to that distance; with
    `penalty="l0"` it is moved all the way, at the fixed price :math:`\lambda^2/4`.

    Parameters
    ----------
    motion : {"rigid", "affine", "nonrigid"}, default="rigid"
    lam : float or None, default=None
        Infinity is plain ICP. None follows the bulk: :math:`\lambda/2` is `spread` times the median distance to the
        partners, found anew at each step, so that it tightens as the clouds come together.
    spread : float, default=2.5
    penalty : {"l2", "l0"}, default="l0"
        With l2 every outlier keeps a pull of :math:`\lambda/2`. Along a surface nothing but such pulls acts on a cloud,
        so outliers on one side make it slide; l0 frees it of them.
    smoothness : float, default=1.0
        :math:`\beta` of the non-rigid motion; more is stiffer.
    width : float, default=0.3
        Width of its bumps, relative to the size (root mean square radius) of the source.
    init : (d + 1, d + 1) array or None, default=None
        A motion to start from; None brings the medians of the clouds together.
    n_init : int, default=1
        Further starts are turned at random; the one with the least median distance is kept.
    max_iter : int, default=300
    tol : float, default=1e-8
        Stops once no point moves more than `tol` times the size of the source.
    random_state : int, RandomState or None, default=None

    Attributes
    ----------
    matrix_ : (d + 1, d + 1), the rigid or affine part in homogeneous coordinates
    rotation_, translation_ : (d, d) and (d,), its blocks
    field_ : (n, d), weights of the bumps around the source points; non-rigid motion only
    correspondence_ : (n,), the partner of each source point
    compensations_ : (n, d)
    outliers_ : (n,) bool
    inertia_ : float, the value of the equation (without the penalty on the field)
    lam_ : float
    n_iter_ : int

    Examples
    --------
    >>> source = np.array([[0.0, 0.0], [2.0, 0.0], [2.0, 1.0], [0.0, 3.0], [1.0, 1.0], [8.0, 8.0]])
    >>> turn = np.array([[0.98, -0.199], [0.199, 0.98]])
    >>> model = RobustICP(lam=2.0).fit(source, source[:5] @ turn.T + 0.1)
    >>> model.outliers_.nonzero()[0], model.rotation_.round(2).tolist()
    (array([5]), [[0.98, -0.2], [0.2, 0.98]])

    References
    ----------
    Yao and Wu, Compensation Learning, 2021, Sec. III. Hontani, Matsuno and Sawada, Robust nonrigid ICP using
    outlier-sparsity regularization, 2012.
    """

    def __init__(
        self,
        motion: Motion = "rigid",
        *,
        lam: float | None = None,
        spread: float = 2.5,
        penalty: Literal["l2", "l0"] = "l0",
        smoothness: float = 1.0,
        width: float = 0.3,
        init: Any = None,
        n_init: int = 1,
        max_iter: int = 300,
        tol: float = 1e-8,
        random_state: Any = None,
    ) -> None:
        self.motion = motion
        self.lam = lam
        self.spread = spread
        self.penalty = penalty
        self.smoothness = smoothness
        self.width = width
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, target: Any) -> RobustICP:
        """Finds the motion that takes the source `X`, (n, d), onto `target`, (m, d); d is 2 or 3."""
        self._check_parameters()
        P = validate_data(self, X, dtype=np.float64)
        if P.shape[1] not in (2, 3):
            raise ValueError(f"RobustICP registers clouds in 2 or 3 dimensions. Got X with {P.shape[1]} features.")
        if len(P) <= P.shape[1]:
            raise ValueError(f"n_samples={len(P)} should be > n_features={P.shape[1]}.")
        Q = check_array(target, dtype=np.float64, input_name="target")
        if Q.shape[1] != P.shape[1]:
            raise ValueError(f"target has {Q.shape[1]} features, but X has {P.shape[1]}.")
        random = check_random_state(self.random_state)
        found = [self._descend(P, Q, start) for start in self._starts(P, Q, random)]
        best = min(found, key=lambda end: end["median"])
        M, b = best["M"], best["b"]
        self.rotation_, self.translation_ = M, b
        self.matrix_ = np.eye(len(b) + 1)
        self.matrix_[:-1, :-1], self.matrix_[:-1, -1] = M, b
        self._anchors, self._width = P, self.width * best["size"]
        if self.motion == "nonrigid":
            self.field_ = best["field"]
        self.lam_, self.n_iter_ = 2 * best["t"], best["steps"]
        self.correspondence_, self.compensations_, self.inertia_ = self._compensate(self.transform(P), Q)
        self.outliers_ = self.compensations_.any(axis=1)
        return self

    def _check_parameters(self) -> None:
        one_of(self.motion, "motion", ["rigid", "affine", "nonrigid"])
        one_of(self.penalty, "penalty", ["l2", "l0"])
        if self.lam is not None:
            positive(self.lam, "lam")
        for name in ("spread", "smoothness", "width"):
            positive(getattr(self, name), name)
        positive(self.tol, "tol", zero=True)
        for name in ("n_init", "max_iter"):
            count(getattr(self, name), name)

    def _starts(self, P: np.ndarray, Q: np.ndarray, random: np.random.RandomState) -> list[Any]:
        d = P.shape[1]
        if self.init is not None:
            first = check_array(self.init, dtype=np.float64, input_name="init")
            if first.shape != (d + 1, d + 1):
                raise ValueError(f"init has shape {first.shape}, but ({d + 1}, {d + 1}) was expected.")
            starts = [(first[:d, :d], first[:d, d])]
        else:
            # Medians, because the mean of a cloud goes with its outliers.
            starts = [(np.eye(d), np.median(Q, axis=0) - np.median(P, axis=0))]
        for _ in range(1, self.n_init):
            R = special_ortho_group.rvs(d, random_state=random)
            starts.append((R, np.median(Q, axis=0) - R @ np.median(P, axis=0)))
        return starts

    def _level(self, r: np.ndarray, size: float) -> float:
        return float(max(self.spread * np.median(r), 1e-9 * size)) if self.lam is None else self.lam / 2

    def _descend(self, P: np.ndarray, Q: np.ndarray, start: tuple[np.ndarray, np.ndarray]) -> dict[str, Any]:
        """Alternates partners, compensation and motion until all rest.

        An affine motion or a displacement field joins once the rigid motion rests: started from far off, they would
        rather shrink the cloud onto a part of the target.
        """
        tree, (M, b) = cKDTree(Q), start
        size = float(np.sqrt(((P - P.mean(0)) ** 2).sum(1).mean())) or 1.0
        field, G = np.zeros_like(P), bumps(P, P, self.width * size) if self.motion == "nonrigid" else np.empty(0)
        moved, steps, t = P @ M.T + b, 0, np.inf
        for stage in ["rigid"] if self.motion == "rigid" else ["rigid", self.motion]:
            rest = False
            while not rest and steps < self.max_iter:
                steps += 1
                r, c = closest(tree, moved)
                level = self._level(r, size)
                # Tightening by a few percent a step, lest points be cut off before they have come near.
                t = level if np.isinf(t) else max(level, TIGHTEN * t)
                w = _left(r, t, self.penalty)
                if w.sum() == 0:
                    break
                if stage == "nonrigid":
                    base, stiff = P @ M.T + b, self.smoothness * np.eye(len(P))
                    field = np.linalg.solve(w[:, None] * G + stiff, w[:, None] * (Q[c] - base))
                    new = base + G @ field
                else:
                    M, b = (rigid if stage == "rigid" else affine)(P, Q[c], w)
                    new = P @ M.T + b
                rest = bool(np.abs(new - moved).max() <= self.tol * size) and t <= level * (1 + 1e-9)
                moved = new
        r, _ = closest(tree, moved)
        return {"M": M, "b": b, "field": field, "t": self._level(r, size), "median": np.median(r), "steps": steps,
                "size": size}  # fmt: skip

    def _compensate(self, moved: np.ndarray, Q: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        r, c = closest(cKDTree(Q), moved)
        residual, t = moved - Q[c], self.lam_ / 2
        if np.isinf(t):
            o, price = np.zeros_like(residual), np.zeros(len(r))
        elif self.penalty == "l2":
            o = -group_soft_threshold(residual, t)
            price = self.lam_ * row_norm(o)[:, 0]
        else:
            o = -residual * (r > t)[:, None]
            price = t**2 * (r > t)
        return c, o, float(((residual + o) ** 2).sum() + price.sum())

    def transform(self, X: Any) -> np.ndarray:
        """Where the motion takes the points `X`, (n, d)."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        moved = X @ self.rotation_.T + self.translation_
        return moved + bumps(X, self._anchors, self._width) @ self.field_ if self.motion == "nonrigid" else moved

    def fit_transform(self, X: Any, target: Any) -> np.ndarray:
        """Registers `X` onto `target` and returns it moved."""
        return self.fit(X, target).transform(X)

    def score(self, X: Any, target: Any) -> float:
        """Minus the mean cost per point: larger is better."""
        return -self._compensate(self.transform(X), check_array(target, dtype=np.float64))[2] / len(X)

    def plot(self, X: Any, target: Any, ax: Any = None) -> Any:
        """The target, the moved source and, in two dimensions, an arrow for each compensation."""
        moved = self.transform(X)
        Q = check_array(target, dtype=np.float64, input_name="target")
        _, o, _ = self._compensate(moved, Q)
        out = o.any(axis=1)
        ax = common.axes(ax, f"Registered: {out.mean():.1%} of the points compensated", depth=Q.shape[1] == 3)
        ax.scatter(*Q.T, s=14, color="#999999", label="target", alpha=0.8)
        if Q.shape[1] == 2:
            common.arrows(ax, moved[out], o[out])
            ax.set_aspect("equal", adjustable="datalim")
        ax.scatter(*moved[~out].T, s=6, color=common.color(0), label="source, moved")
        common.crosses(ax, moved[out], "outlier and its compensation" if Q.shape[1] == 2 else "outlier")
        common.key(ax)
        return ax
