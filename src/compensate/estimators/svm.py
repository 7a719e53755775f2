"""The support vector machine as compensation: slack variables compensate losses, flips compensate labels.

Use `compensate="label"` for data with clearly wrong labels: a sample far on the other side changes its label instead of moving the
boundary.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from compensate.estimators import common
from compensate.estimators.common import KernelMap, check_parameters, weights

LABEL_ROUNDS = 50  # maximum alternations between machine and labels; each lowers the objective, a few suffice


def interior_point(X: np.ndarray, y: np.ndarray, c: np.ndarray, max_iter: int) -> tuple[np.ndarray, float, int]:
    r"""Minimizes Eq. (33), :math:`\tfrac12\|w\|^2 + \sum_i c_i \xi_i` with :math:`y_i(w^T x_i + b) + \xi_i \ge 1`.

    A primal-dual interior-point method with Mehrotra's corrector. The multipliers :math:`\alpha_i` of the margins lie
    between 0 and :math:`c_i`. `X` is (n, d), `y` any real signs (n,), `c` positive (n,). Returns w, b and the number of steps.
    """
    n, d = X.shape
    if (y > 0).all() or (y < 0).all():
        return np.zeros(d), float(np.sign(y[0]) / np.abs(y).min()), 0
    A = np.column_stack([y[:, None] * X, y])  # margins are A (w, b)
    ridge = np.append(np.ones(d), 0.0)  # the intercept is free
    wb, xi, s = np.zeros(d + 1), np.full(n, 1.0), np.full(n, 1.0)
    alpha, beta = c / 2, c / 2  # beta = c - alpha, the multiplier of xi >= 0
    best, best_value, steps = wb, np.inf, 0
    while steps < max_iter:
        steps += 1
        dual, primal = ridge * wb - A.T @ alpha, A @ wb + xi - s - 1
        gap = alpha @ s + beta @ xi
        value = float(0.5 * (wb[:-1] @ wb[:-1]) + c @ xi)
        size = 1 + np.abs(A).T @ alpha
        if gap <= 1e-12 * (1 + abs(value)) and (np.abs(dual) <= 1e-9 * size).all() and np.abs(primal).max() <= 1e-9:
            break
        # Eliminating all unknowns but (w, b) leaves a system of size d + 1.
        D = s / alpha + xi / beta
        M = A.T @ (A / D[:, None]) + np.diag(ridge)
        # Near the solution rounding may make M lose definiteness; its diagonal then restores it.
        for lift in (0.0, 1e-14, 1e-11, 1e-8):
            try:
                factor = cho_factor(M + lift * np.diag(np.diag(M)) + max(lift, 1e-14) * np.eye(d + 1))
                break
            except np.linalg.LinAlgError:
                if lift == 1e-8:
                    raise np.linalg.LinAlgError(
                        "The Newton system of the interior-point method is singular; scale the features."
                    ) from None
        mu = gap / (2 * n)
        push_s, push_xi = -alpha * s, -beta * xi  # the changes of alpha * s and beta * xi
        for predictor in (True, False):
            g = -primal + push_s / alpha - push_xi / beta
            move = cho_solve(factor, A.T @ (g / D) - dual)
            da = (g - A @ move) / D
            ds, dxi = (push_s - s * da) / alpha, (push_xi + xi * da) / beta
            far = min(_longest(alpha, da), _longest(beta, -da), _longest(s, ds), _longest(xi, dxi))
            if predictor:
                ahead = ((alpha + far * da) @ (s + far * ds) + (beta - far * da) @ (xi + far * dxi)) / (2 * n)
                target = mu * (ahead / mu) ** 3  # Mehrotra's rule
                push_s, push_xi = target - alpha * s - da * ds, target - beta * xi + da * dxi
        far *= 0.995
        wb, s, xi = wb + far * move, s + far * ds, xi + far * dxi
        alpha, beta = alpha + far * da, beta - far * da
        value = float(0.5 * (wb[:-1] @ wb[:-1]) + c @ np.maximum(1 - A @ wb, 0))
        if value < best_value:
            best, best_value = wb, value
        elif far < 1e-6 or gap <= 1e-10 * (1 + value):
            break  # no further progress beyond rounding
    return best[:-1], float(best[-1]), steps


def _longest(value: np.ndarray, change: np.ndarray) -> float:
    """The longest step, up to just above 1, that keeps `value` positive."""
    falling = change < 0
    return min(1.0 / 0.995, float((-value[falling] / change[falling]).min())) if falling.any() else 1.0 / 0.995


def flips(margin: np.ndarray, penalty: float) -> np.ndarray:
    r"""The label compensation that is best for given margins :math:`m_i = y_i f(x_i)`, as a share :math:`\tau_i`.

    .. math:: \min_{0 \le \tau \le 2} \max(0, 1 - (1 - \tau) m_i) + \lambda \tau

    The label becomes :math:`(1-\tau_i) y_i`. A margin above :math:`-\lambda` keeps its label; below, the label moves
    until the loss vanishes, at most to its opposite.
    """
    wrong = margin < -penalty
    return np.where(wrong, np.minimum(1 + 1 / np.where(wrong, -margin, 1.0), 2), 0.0)


@dataclass(eq=False, repr=False)
class SlackSVC(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    r"""Support vector classifier whose slack is a loss compensation, or whose labels are compensated.

    With :math:`l_i = \max(0, 1 - y_i(w^T x_i + b))`, the loss form lowers each loss by its slack,
    :math:`l_i' = \max(0, l_i - \xi_i)`, and pays for it:

    .. math:: \tfrac12\|w\|^2 + \sum_i l_i' + \lambda \sum_i \xi_i, \quad \xi_i \ge 0 \qquad \text{(form "eq32")}

    .. math:: \tfrac12\|w\|^2 + \lambda \sum_i \xi_i, \quad l_i' = 0,\ \xi_i \ge 0 \qquad \text{(form "eq33")}

    Eq. (33) is the standard SVM with :math:`C = \lambda`. Eq. (32) equals it only up to :math:`\lambda = 1`: beyond,
    paying the loss itself is cheaper than compensating it, all slacks are zero and the solution no longer changes. It
    **saturates** at :math:`\min(\lambda, 1)`; hence "eq33" is the default.

    The label form compensates :math:`y_i` by :math:`\Delta y_i \in [-2, 2]`, toward the other class:

    .. math:: \tfrac12\|w\|^2 + C \sum_i \big[ \max(0, 1 - (y_i + \Delta y_i)(w^T x_i + b)) + \rho\,|\Delta y_i| \big]

    It is not convex; machine and labels are solved in turn, from the ordinary SVM. Several classes are solved one against
    the rest.

    Args:
        C: the paper's :math:`\lambda`.
        compensate: the loss or the label.
        form: of the loss form.
        label_penalty: :math:`\rho`: labels of samples with a margin below :math:`-\rho` are compensated.
        kernel: of the machine.
        gamma, degree, coef0: parameters of the kernel, as in `sklearn.svm.SVC`.
        random_features: number of random Fourier features instead of the exact rbf kernel, which costs :math:`O(n^3)`.
        class_weight: weights of the classes, or "balanced".
        max_iter: maximum number of steps of the interior-point method.
        random_state: for the random features.

    Attributes:
        classes_: (k,).
        coef_, intercept_: (1, d) and (1,) for two classes, (k, d) and (k,) for more; `coef_` for the linear kernel only.
        slacks_: (n,) or (n, k), the hinge loss of each sample; :math:`\xi_i` of Eq. (33).
        compensations_: (n,) or (n, k), the compensation: :math:`-\xi_i` of the loss, or :math:`\Delta y_i` of the label.
        objective_: a number, or (k,) for more than two classes.
        n_iter_: the number of steps.

    >>> X, y = [[-2.0], [-1.0], [1.0], [3.0]], ["no", "no", "yes", "yes"]
    >>> model = SlackSVC(C=10.0).fit(X, y)
    >>> model.predict([[2.0]]), model.coef_.round(6)
    (array(['yes'], dtype='<U3'), array([[1.]]))

    References: Yao and Wu, Compensation Learning, 2021, Eqs. (30) to (33). Cortes and Vapnik, Support-vector networks, 1995.
    """

    C: float = 1.0
    _: KW_ONLY
    compensate: Literal["loss", "label"] = "loss"
    form: Literal["eq33", "eq32"] = "eq33"
    label_penalty: float = 1.0
    kernel: Literal["linear", "rbf", "poly"] = "linear"
    gamma: float | Literal["scale"] = "scale"
    degree: int = 3
    coef0: float = 1.0
    random_features: int | None = None
    class_weight: dict[Any, float] | str | None = None
    max_iter: int = 200
    random_state: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> SlackSVC:
        """Fits to samples `X`, (n, d), and their classes `y`, (n,)."""
        check_parameters(self)
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        given = weights(sample_weight, X)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(np.unique(codes[given > 0])) < 2:
            raise ValueError("The number of classes has to be greater than one; got 1 class")
        w = given * compute_sample_weight(self.class_weight, y)
        self._map = None if self.kernel == "linear" else KernelMap(self, X, given, self.random_state)
        Z = X if self._map is None else self._map(X)
        positives = [1] if len(self.classes_) == 2 else range(len(self.classes_))
        machines = [self._machine(Z, np.where(codes == k, 1.0, -1.0), w) for k in positives]
        self._w, self.intercept_ = np.stack([m[0] for m in machines]), np.array([m[1] for m in machines])
        if self._map is None:
            self.coef_ = self._w
        columns = [np.stack([m[i] for m in machines], axis=-1) for i in (2, 3, 4)]
        self.slacks_, self.compensations_, objective = (c[..., 0] if len(machines) == 1 else c for c in columns)
        self.objective_ = float(objective) if len(machines) == 1 else objective
        self.n_iter_ = max(m[5] for m in machines)
        return self

    def _machine(
        self, X: np.ndarray, y: np.ndarray, w: np.ndarray
    ) -> tuple[np.ndarray, float, np.ndarray, np.ndarray, float, int]:
        """One class against the rest: w, b, slacks, compensations, objective, steps."""
        price = min(self.C, 1.0) if self.compensate == "loss" and self.form == "eq32" else self.C
        v, b, steps = self._solve(X, y, price * w)

        def cost(v: np.ndarray, b: float, tau: np.ndarray) -> tuple[np.ndarray, float]:
            loss = np.maximum(1 - (1 - tau) * y * (X @ v + b), 0)
            return loss, float(0.5 * v @ v + price * (w @ (loss + self.label_penalty * tau)))

        if self.compensate == "loss":
            loss, value = cost(v, b, np.zeros(len(y)))
            # In Eq. (32) with lambda > 1 slack costs more than the loss, and all slacks are zero.
            return v, b, loss, -loss * (self.form == "eq33" or self.C <= 1), value, steps
        value = np.inf
        for _ in range(LABEL_ROUNDS):
            tau = flips(y * (X @ v + b), self.label_penalty)
            new_v, new_b, more = self._solve(X, (1 - tau) * y, price * w)
            _, new = cost(new_v, new_b, tau)
            if new >= value - 1e-10 * abs(new):
                break
            v, b, value, steps = new_v, new_b, new, steps + more
        tau = flips(y * (X @ v + b), self.label_penalty)
        loss, value = cost(v, b, tau)
        return v, b, loss, -tau * y, value, steps

    def _solve(self, X: np.ndarray, y: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, float, int]:
        used = c > 0
        X, y, c = X[used], y[used], c[used]
        mean, axes = X.mean(0), None
        Z = X - mean  # the intercept is free, so this changes nothing but the rounding
        if Z.shape[1] > len(Z):
            # w lies in the span of the samples: solve in their own coordinates.
            U, S, axes = np.linalg.svd(Z, full_matrices=False)
            Z = U * S
        v, b, steps = interior_point(Z, y, c, self.max_iter)
        v = v if axes is None else v @ axes
        return v, b - float(mean @ v), steps

    def decision_function(self, X: Any) -> np.ndarray:
        """Signed distances from the boundary in units of the margin: (n,) for two classes, else (n, k)."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        values = (X if self._map is None else self._map(X)) @ self._w.T + self.intercept_
        return values[:, 0] if len(self.classes_) == 2 else values

    def predict(self, X: Any) -> np.ndarray:
        """The class of each row of `X`."""
        values = self.decision_function(X)
        return self.classes_[(values > 0).astype(int) if values.ndim == 1 else values.argmax(1)]

    def plot(self, X: Any, y: Any, ax: Any = None) -> Any:
        """Samples, boundary and margins of a two-class machine on two features; rings show slack, crosses flips.

        With more features or classes the picture is the margin of each sample, sorted, with its slack below one.
        """
        check_is_fitted(self)
        X, y = validate_data(self, X, y, reset=False, dtype=np.float64)
        codes, values = np.searchsorted(self.classes_, y), self.decision_function(X)
        margin = np.where(codes == 1, 1, -1) * values if values.ndim == 1 else values[np.arange(len(X)), codes]
        plane = len(self.classes_) == 2 and X.shape[1] == 2
        flipped = (flips(margin, self.label_penalty) > 0) & plane & (self.compensate == "label")
        slack = np.where(flipped, 0, np.maximum(1 - margin, 0))
        title = f"{np.mean(slack > 1e-6):.1%} of the samples need slack"
        if plane and self.compensate == "label":
            title = f"{np.mean(flipped):.1%} of the labels compensated"
        ax = common.axes(ax, f"Margins: {title}")
        if plane:
            pad = 0.08 * np.ptp(X, axis=0) + 1e-9
            grid = np.stack(np.meshgrid(*np.linspace(X.min(0) - pad, X.max(0) + pad, 160).T), axis=-1)
            level = self.decision_function(grid.reshape(-1, 2)).reshape(160, 160)
            ax.contour(*np.moveaxis(grid, -1, 0), level, [-1, 0, 1], colors="black", linestyles=["--", "-", "--"],
                       linewidths=[0.8, 1.4, 0.8])  # fmt: skip
            points, need = X, slack > 1e-6
            ax.scatter(*X[need].T, s=20 + 60 * slack[need], facecolors="none", edgecolors=common.OUTLIER, linewidths=0.8,
                       label="slack (ring size)" if need.any() else None)  # fmt: skip
        else:
            points = np.column_stack([np.argsort(np.argsort(margin)), margin])
            ax.vlines(*points.T, np.maximum(margin, 1), color=common.OUTLIER, alpha=0.4, lw=1, label="slack")
            ax.axhline(1, color="black", lw=0.8, ls="--")
            ax.set(xlabel="sample, by margin", ylabel="margin")
        for k, name in enumerate(self.classes_):
            marker = "os"[k] if plane else "o"
            ax.scatter(*points[codes == k].T, s=12, marker=marker, color=common.color(k), label=str(name), zorder=3)
        common.outliers(ax, X[flipped], "label compensated")
        return ax
