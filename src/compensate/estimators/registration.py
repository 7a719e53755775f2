"""Registration of point clouds in which some points have no partner."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, cast

import numpy as np
from scipy.spatial import cKDTree
from scipy.stats import special_ortho_group
from sklearn.base import BaseEstimator
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from compensate.estimators import common
from compensate.estimators.common import check_parameters, compensation, least_squares, residual_cost

Motion = Literal["rigid", "affine", "nonrigid"]
TIGHTEN = 0.95  # a step lowers the threshold to this share at most


def rigid(P: np.ndarray, Q: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Rotation R and translation b with the least :math:`\sum_i w_i \|R p_i + b - q_i\|^2`."""
    p, q = np.average(P, axis=0, weights=w), np.average(Q, axis=0, weights=w)
    U, _, Vt = np.linalg.svd((w[:, None] * (P - p)).T @ (Q - q))
    sign = np.ones(len(Vt))
    sign[-1] = np.sign(np.linalg.det(U @ Vt))  # no reflections
    R = (Vt.T * sign) @ U.T
    return R, q - R @ p


def affine(P: np.ndarray, Q: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Matrix M and translation b with the least :math:`\sum_i w_i \|M p_i + b - q_i\|^2`."""
    solution = least_squares(np.column_stack([P, np.ones(len(P))]), Q, w)
    return solution[:-1].T, solution[-1]


@dataclass(eq=False, repr=False)
class RobustICP(BaseEstimator):  # type: ignore[misc]
    r"""Iterative closest point with an outlier-sparse compensation per point.

    .. math:: \min_{T, c, o} \sum_i \|T(p_i) + o_i - q_{c(i)}\|_2^2 + \lambda \|o_i\|_2

    where :math:`p_i` are the source points, :math:`q_{c(i)}` the nearest target point of each, :math:`o_i` its
    compensation and T a rigid or affine motion, or a rigid one followed by a smooth displacement,
    :math:`T(p) = R p + b + \sum_j g(p, p_j) w_j` with Gaussian bumps g and the penalty :math:`\beta\,\mathrm{tr}(W^T G
    W)`. A point farther than :math:`\lambda/2` from its partner is an outlier and is moved to that distance; with
    `penalty="l0"` it is moved all the way, at the fixed price :math:`\lambda^2/4`.

    Args:
        motion: rigid, affine, or rigid with a smooth displacement.
        lam: infinity is plain ICP. None sets :math:`\lambda/2` to `spread` times the median distance to the partners at each step; it
            decreases as the clouds approach.
        spread: see `lam`.
        penalty: with l2 every outlier keeps a pull of :math:`\lambda/2`. Along a surface only such pulls act on a cloud, and
            outliers on one side make it slide; with l0 outliers have no effect.
        smoothness: :math:`\beta` of the non-rigid motion; more is stiffer.
        width: of its bumps, relative to the size (root mean square radius) of the source.
        init: (d + 1, d + 1), a motion to start from; None brings the medians of the clouds together.
        n_init: further starts are turned at random; the one with the least median distance is kept.
        max_iter: maximum number of steps of a start.
        tol: a start ends once no point moves more than `tol` times the size of the source.
        random_state: of the starts.

    Attributes:
        matrix_: (d + 1, d + 1), the rigid or affine part in homogeneous coordinates.
        rotation_, translation_: (d, d) and (d,), its blocks.
        field_: (n, d), weights of the bumps around the source points; non-rigid motion only.
        correspondence_: (n,), the partner of each source point.
        compensations_, outliers_: (n, d), and (n,) bool where they are not zero.
        inertia_: the value of the equation (without the penalty on the field).
        lam_, n_iter_: the penalty used and the number of steps.

    >>> source = np.array([[0.0, 0.0], [2.0, 0.0], [2.0, 1.0], [0.0, 3.0], [1.0, 1.0], [8.0, 8.0]])
    >>> turn = np.array([[0.98, -0.199], [0.199, 0.98]])
    >>> model = RobustICP(lam=2.0).fit(source, source[:5] @ turn.T + 0.1)
    >>> model.outliers_.nonzero()[0], model.rotation_.round(2).tolist()
    (array([5]), [[0.98, -0.2], [0.2, 0.98]])

    References: Yao and Wu, Compensation Learning, 2021, Sec. III. Hontani, Matsuno and Sawada, Robust nonrigid ICP using outlier-sparsity
    regularization, 2012.
    """

    motion: Motion = "rigid"
    _: KW_ONLY
    lam: float | None = None
    spread: float = 2.5
    penalty: Literal["l2", "l0"] = "l0"
    smoothness: float = 1.0
    width: float = 0.3
    init: Any = None
    n_init: int = 1
    max_iter: int = 300
    tol: float = 1e-8
    random_state: Any = None

    def fit(self, X: Any, target: Any) -> RobustICP:
        """Finds the motion that takes the source `X`, (n, d), onto `target`, (m, d); d is 2 or 3."""
        check_parameters(self)
        P = validate_data(self, X, dtype=np.float64)
        n, d = P.shape
        if d not in (2, 3):
            raise ValueError(f"RobustICP registers clouds in 2 or 3 dimensions. Got X with {d} features.")
        if n <= d:
            raise ValueError(f"n_samples={n} should be > n_features={d}.")
        Q = check_array(target, dtype=np.float64, input_name="target")
        if Q.shape[1] != d:
            raise ValueError(f"target has {Q.shape[1]} features, but X has {d}.")
        first = np.eye(d + 1) if self.init is None else check_array(self.init, dtype=np.float64, input_name="init")
        if first.shape != (d + 1, d + 1):
            raise ValueError(f"init has shape {first.shape}, but ({d + 1}, {d + 1}) was expected.")
        random = check_random_state(self.random_state)
        turns = [first[:d, :d], *(special_ortho_group.rvs(d, random_state=random) for _ in range(1, self.n_init))]
        # Medians, because outliers move the mean of a cloud.
        starts = [(R, np.median(Q, axis=0) - R @ np.median(P, axis=0)) for R in turns]
        if self.init is not None:
            starts[0] = turns[0], first[:d, d]
        self._anchors, self._size = P, float(np.sqrt(((P - P.mean(0)) ** 2).sum(1).mean())) or 1.0
        ends = (self._descend(P, Q, *start) for start in starts)
        _, self.rotation_, self.translation_, field, self.lam_, self.n_iter_ = min(ends, key=lambda end: end[0])
        self.matrix_ = np.eye(d + 1)
        self.matrix_[:d, :d], self.matrix_[:d, d] = self.rotation_, self.translation_
        if self.motion == "nonrigid":
            self.field_ = field
        self.correspondence_, self.compensations_, self.inertia_ = self._compensate(self.transform(P), Q)
        self.outliers_ = self.compensations_.any(axis=1)
        return self

    def _bumps(self, X: np.ndarray) -> np.ndarray:
        """Gaussian functions around the source points, evaluated at the rows of `X`."""
        return rbf_kernel(X, self._anchors, gamma=1 / (2 * (self.width * self._size) ** 2))

    def _descend(
        self, P: np.ndarray, Q: np.ndarray, M: np.ndarray, b: np.ndarray
    ) -> tuple[float, np.ndarray, np.ndarray, np.ndarray, float, int]:
        """Alternates partners, compensation and motion. Returns the median distance, motion, field, lambda and number of steps."""

        def threshold(r: np.ndarray) -> float:
            return float(max(self.spread * np.median(r), 1e-9 * self._size)) if self.lam is None else self.lam / 2

        tree = cast(Any, cKDTree(Q))
        field, G = np.zeros_like(P), self._bumps(P) if self.motion == "nonrigid" else np.empty(0)
        moved, steps, t = P @ M.T + b, 0, np.inf
        # From far away an affine motion or a field would shrink the cloud onto a part of the target.
        for stage in ["rigid"] if self.motion == "rigid" else ["rigid", self.motion]:
            rest = False
            while not rest and steps < self.max_iter:
                steps += 1
                r, c = tree.query(moved)
                level = threshold(r)
                # A slow decrease keeps points that are still on their way.
                t = level if np.isinf(t) else max(level, TIGHTEN * t)
                w = common.share_left(r, t, self.penalty)
                if w.sum() == 0:
                    break
                if stage == "nonrigid":
                    base, stiff = P @ M.T + b, self.smoothness * np.eye(len(P))
                    field = np.linalg.solve(w[:, None] * G + stiff, w[:, None] * (Q[c] - base))
                    new = base + G @ field
                else:
                    M, b = (rigid if stage == "rigid" else affine)(P, Q[c], w)
                    new = P @ M.T + b
                rest = bool(np.abs(new - moved).max() <= self.tol * self._size) and t <= level * (1 + 1e-9)
                moved = new
        r, _ = tree.query(moved)
        return float(np.median(r)), M, b, field, 2 * threshold(r), steps

    def _compensate(self, moved: np.ndarray, Q: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Partners, compensations and the value of the equation."""
        _, c = cast(Any, cKDTree(Q)).query(moved)
        residual, t = moved - Q[c], self.lam_ / 2
        cost = residual_cost(common.residual_sizes(residual, self.penalty), t, self.penalty)
        return c, compensation(residual, t, self.penalty), float(cost.sum())

    def transform(self, X: Any) -> np.ndarray:
        """The points `X`, (n, d), after the motion."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        moved = X @ self.rotation_.T + self.translation_
        return moved + self._bumps(X) @ self.field_ if self.motion == "nonrigid" else moved

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
