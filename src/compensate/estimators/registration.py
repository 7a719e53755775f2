"""Registration of point clouds in which some points have no partner."""

from __future__ import annotations

from typing import Any, Literal, cast

import numpy as np
from scipy.spatial import cKDTree
from scipy.stats import special_ortho_group
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from compensate.core.proximal import group_soft_threshold, row_norm
from compensate.estimators import common
from compensate.estimators.common import check_parameters

Motion = Literal["rigid", "affine", "nonrigid"]
TIGHTEN = 0.95  # a step lowers the threshold to this share at most


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
    """Gaussian functions around the rows of `B`, evaluated at the rows of `A`, (len(A), len(B))."""
    return np.exp(-((A[:, None] - B) ** 2).sum(2) / (2 * width**2))


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
        Infinity is plain ICP. None sets :math:`\lambda/2` to `spread` times the median distance to the
        partners at each step; it decreases as the clouds approach.
    spread : float, default=2.5
    penalty : {"l2", "l0"}, default="l0"
        With l2 every outlier keeps a pull of :math:`\lambda/2`. Along a surface only such pulls act on a cloud, and
        outliers on one side make it slide; with l0 outliers have no effect.
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
        self.motion, self.lam, self.spread, self.penalty = motion, lam, spread, penalty
        self.smoothness, self.width, self.init, self.n_init = smoothness, width, init, n_init
        self.max_iter, self.tol, self.random_state = max_iter, tol, random_state

    def fit(self, X: Any, target: Any) -> RobustICP:
        """Finds the motion that takes the source `X`, (n, d), onto `target`, (m, d); d is 2 or 3."""
        check_parameters(
            self,
            counts=["n_init", "max_iter"],
            positives=["lam", "spread", "smoothness", "width"],
            optional=["lam"],
            options={"motion": ["rigid", "affine", "nonrigid"], "penalty": ["l2", "l0"]},
        )
        P = validate_data(self, X, dtype=np.float64)
        if P.shape[1] not in (2, 3):
            raise ValueError(f"RobustICP registers clouds in 2 or 3 dimensions. Got X with {P.shape[1]} features.")
        if len(P) <= P.shape[1]:
            raise ValueError(f"n_samples={len(P)} should be > n_features={P.shape[1]}.")
        Q = check_array(target, dtype=np.float64, input_name="target")
        if Q.shape[1] != P.shape[1]:
            raise ValueError(f"target has {Q.shape[1]} features, but X has {P.shape[1]}.")
        random = check_random_state(self.random_state)
        best = min((self._descend(P, Q, start) for start in self._starts(P, Q, random)), key=lambda end: end["median"])
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

    def _starts(self, P: np.ndarray, Q: np.ndarray, random: np.random.RandomState) -> list[Any]:
        d = P.shape[1]
        if self.init is not None:
            first = check_array(self.init, dtype=np.float64, input_name="init")
            if first.shape != (d + 1, d + 1):
                raise ValueError(f"init has shape {first.shape}, but ({d + 1}, {d + 1}) was expected.")
            starts = [(first[:d, :d], first[:d, d])]
        else:
            # Medians, because outliers move the mean of a cloud.
            starts = [(np.eye(d), np.median(Q, axis=0) - np.median(P, axis=0))]
        for _ in range(1, self.n_init):
            R = special_ortho_group.rvs(d, random_state=random)
            starts.append((R, np.median(Q, axis=0) - R @ np.median(P, axis=0)))
        return starts

    def _level(self, r: np.ndarray, size: float) -> float:
        return float(max(self.spread * np.median(r), 1e-9 * size)) if self.lam is None else self.lam / 2

    def _descend(self, P: np.ndarray, Q: np.ndarray, start: tuple[np.ndarray, np.ndarray]) -> dict[str, Any]:
        """Alternates partners, compensation and motion until convergence.

        An affine motion or a displacement field starts after the rigid motion has converged: from far away they would shrink the
        cloud onto a part of the target.
        """
        tree, (M, b) = cast(Any, cKDTree(Q)), start
        size = float(np.sqrt(((P - P.mean(0)) ** 2).sum(1).mean())) or 1.0
        field, G = np.zeros_like(P), bumps(P, P, self.width * size) if self.motion == "nonrigid" else np.empty(0)
        moved, steps, t = P @ M.T + b, 0, np.inf
        for stage in ["rigid"] if self.motion == "rigid" else ["rigid", self.motion]:
            rest = False
            while not rest and steps < self.max_iter:
                steps += 1
                r, c = tree.query(moved)
                level = self._level(r, size)
                # A slow decrease keeps points that are still on their way.
                t = level if np.isinf(t) else max(level, TIGHTEN * t)
                # The share of each residual that its best compensation leaves.
                if np.isinf(t):
                    w = np.ones_like(r)
                else:
                    w = t / np.maximum(r, t) if self.penalty == "l2" else (r <= t).astype(float)
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
        r, _ = tree.query(moved)
        return {"M": M, "b": b, "field": field, "t": self._level(r, size), "median": np.median(r), "steps": steps,
                "size": size}  # fmt: skip

    def _compensate(self, moved: np.ndarray, Q: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        r, c = cast(Any, cKDTree(Q)).query(moved)
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
        """The points `X`, (n, d), after the motion."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        moved = X @ self.rotation_.T + self.translation_
        return moved + bumps(X, self._anchors, self._width) @ self.field_ if self.motion == "nonrigid" else moved

    def fit_transform(self, X: Any, target: Any) -> np.ndarray:
        """Registers `X` onto `target` and returns the moved points."""
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
        ax.scatter(*moved[~out].T, s=6, color=common.color(0), label="source, moved")
        if Q.shape[1] == 2:
            ax.set_aspect("equal", adjustable="datalim")
            common.outliers(ax, moved[out], "outlier and its compensation", o[out])
        else:
            common.outliers(ax, moved[out], "outlier")
        return ax
