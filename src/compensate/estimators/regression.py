"""Linear regression that shifts doubtful responses instead of following them.

Use it if some responses are grossly wrong, or belong to other rows. It does not protect against wrong *features* far from the others.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from compensate.core.proximal import hard_threshold, soft_threshold
from compensate.estimators import common
from compensate.estimators.common import check_parameters, least_squares, mad, residual_cost, weights

# Huber's constant loses 5 % against least squares on normal noise; a hard threshold must rarely cut a clean sample.
SIGMAS = {"l1": 1.345, "l0": 3.0}
EXCHANGE_PRICE = 9.0  # squared sigmas that an exchange must save per row, as a residual of three sigmas
SCALE_ROUNDS = 30


def fit_l1(
    A: np.ndarray, y: np.ndarray, w: np.ndarray, t: float, beta: np.ndarray, tol: float, max_iter: int
) -> tuple[np.ndarray, int]:
    """Minimizes the weighted Huber loss by Newton's method; where that does not descend, shifts and fit alternate."""
    scale = np.sqrt(w @ A**2)
    for steps in range(1, max_iter + 1):
        r = y - A @ beta
        slope = A.T @ (w * np.clip(r, -t, t))
        if (np.abs(slope) <= tol * scale * np.sqrt(w @ np.clip(r, -t, t) ** 2)).all():
            return beta, steps
        inside = w * (np.abs(r) <= t)
        newton = beta + np.linalg.lstsq(A.T @ (inside[:, None] * A), slope, rcond=None)[0]
        # The step below always descends: least squares for responses less their best shifts.
        steady = beta + least_squares(A, np.clip(r, -t, t), w)
        values = [w @ residual_cost(np.abs(y - A @ b), t, "l1") for b in (beta, newton, steady)]
        beta = newton if values[1] <= values[2] else steady
        if min(values[1:]) >= values[0] * (1 - 1e-15):
            return beta, steps
    return beta, max_iter


def unshuffle(response: np.ndarray, predicted: np.ndarray, suspects: np.ndarray) -> np.ndarray:
    r"""The permutation of the suspects' responses with the least squared error: largest to largest, and so on.

    Returns `order` (n,); `response[order]` are the responses put back, and rows that are not suspect keep theirs.
    """
    order, rows = np.arange(len(response)), np.flatnonzero(suspects)
    order[rows[np.argsort(predicted[rows], kind="stable")]] = rows[np.argsort(response[rows], kind="stable")]
    return order


def shuffled(response: np.ndarray, predicted: np.ndarray, scale: float) -> np.ndarray:
    r"""The rows whose responses seem exchanged, (n,) bool.

    A set S of rows is scored by the error after the best exchange within it, plus a price per row:

    .. math:: \sum_{i \notin S} \frac{(y_i - \hat y_i)^2}{\sigma^2}
              + \min_\pi \sum_{i \in S} \frac{(y_{\pi(i)} - \hat y_i)^2}{\sigma^2} + \kappa |S|

    Starting with the residuals above three sigmas, rows enter and leave S while the score falls. A displaced response also leaves a
    gap where it belongs. A lone outlier may stay in S; `unshuffle` then leaves it in place.
    """
    y, f = response / scale, predicted / scale
    size = np.abs(y - f)
    member = size > 3
    ys, fs = np.sort(y[member]), np.sort(f[member])
    doubtful = np.flatnonzero((size > 1.5) & (size <= 6))
    doubtful = doubtful[np.argsort(-size[doubtful], kind="stable")]
    now = ((ys - fs) ** 2).sum()
    for _ in range(SCALE_ROUNDS):
        before = member.copy()
        for i in doubtful:
            a, b = np.searchsorted(ys, y[i]), np.searchsorted(fs, f[i])
            pair = (
                (np.delete(ys, a), np.delete(fs, b)) if member[i] else (np.insert(ys, a, y[i]), np.insert(fs, b, f[i]))
            )
            then, outside = ((pair[0] - pair[1]) ** 2).sum(), size[i] ** 2 - EXCHANGE_PRICE
            if then - now + (outside if member[i] else -outside) < -1e-9:
                (ys, fs), now, member[i] = pair, then, not member[i]
        if np.array_equal(member, before):
            break
    return member


@dataclass(eq=False, repr=False)
class ShiftRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    r"""Robust linear regression by a sparse mean shift: a label compensation per sample.

    .. math:: \min_{\beta, b, \gamma} \tfrac12 \sum_i (y_i - \gamma_i - x_i^T \beta - b)^2 + P(\gamma)

    where :math:`\gamma_i` is the shift of response i (the label compensation is :math:`\Delta y_i = -\gamma_i`) and
    :math:`P` is :math:`\lambda \|\gamma\|_1` or :math:`\tfrac{\lambda^2}{2} \|\gamma\|_0`. With l1 the fit is exactly
    that of Huber's loss with threshold :math:`\lambda`; with l0 residuals above :math:`\lambda` do not count.

    Args:
        lam: the penalty, in units of the response. None takes `sigmas` times a robust scale of the residuals (their median size),
            fitted and rescaled in turn.
        penalty: l0 starts from the l1 solution.
        sigmas: None is 1.345 for l1 and 3 for l0.
        permuted: sparsely permuted data: some responses were exchanged among rows. The fit is refined by l0, `suspects_` are the rows
            whose response seems to belong elsewhere and `permutation_` puts the responses back.
        fit_intercept: whether there is a constant b.
        tol, max_iter: of the Newton steps.

    Attributes:
        coef_, intercept_: (d,) and a number.
        shifts_: (n,), the :math:`\gamma_i`; zero for most samples.
        outliers_: (n,) bool, samples with a shift.
        scale_: robust standard deviation of the residuals.
        lam_, n_iter_: the penalty used and the number of steps.
        suspects_, permutation_: (n,), with `permuted=True`.

    >>> X = np.arange(8.0)[:, None]
    >>> y = 2 * X[:, 0] + 1 + np.array([0, 0.1, -0.1, 0, 0, 50, 0.1, -0.1])
    >>> model = ShiftRegressor(penalty="l0").fit(X, y)
    >>> model.outliers_.nonzero()[0], model.coef_.round(2)
    (array([5]), array([1.99]))

    References: Yao and Wu, Compensation Learning, 2021, Eq. (5). She and Owen, Outlier detection using nonconvex penalized regression,
    2011. Slawski and Ben-David, Linear regression with sparsely permuted data, 2019.
    """

    lam: float | None = None
    _: KW_ONLY
    penalty: Literal["l1", "l0"] = "l1"
    sigmas: float | None = None
    permuted: bool = False
    fit_intercept: bool = True
    tol: float = 1e-10
    max_iter: int = 200

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> ShiftRegressor:
        """Fits to samples `X`, (n, d), and responses `y`, (n,)."""
        check_parameters(self)
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        y = y.astype(np.float64)
        w = weights(sample_weight, X)
        x_mean, y_mean = (np.average(X, axis=0, weights=w), np.average(y, weights=w)) if self.fit_intercept else (0, 0)
        A = np.column_stack([X - x_mean, np.ones((len(X), 1 if self.fit_intercept else 0))])
        beta = self._descend(A, y - y_mean, w)
        self.coef_ = beta[: X.shape[1]]
        self.intercept_ = float(beta[-1] + y_mean - x_mean @ self.coef_) if self.fit_intercept else 0.0
        predicted = self.predict(X)
        self.shifts_ = self._shifts(y - predicted)
        self.outliers_ = self.shifts_ != 0
        if self.permuted:
            exact = np.isinf(self.lam_)
            self.suspects_ = np.zeros(len(y), dtype=bool) if exact else shuffled(y, predicted, self.scale_)
            self.permutation_ = unshuffle(y, predicted, self.suspects_)
        return self

    def _shifts(self, residual: np.ndarray) -> np.ndarray:
        return (soft_threshold if self.penalty == "l1" else hard_threshold)(residual, self.lam_)

    def _descend(self, A: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
        """The coefficients: by l1 and, for l0 or permuted data, refined by l0, with thresholds that follow the scale."""
        # If residuals are only rounding errors, the fit is exact and nothing needs a shift.
        nothing = 1e-12 * float(np.sqrt(np.average(y**2, weights=w)))

        def threshold(penalty: str, beta: np.ndarray) -> float:
            if self.lam is not None and penalty == self.penalty:
                return float(self.lam)
            scale, start = mad(y - A @ beta, w), penalty == "l1" and self.penalty == "l0"
            sigmas = SIGMAS[penalty] if self.sigmas is None or start else self.sigmas
            return sigmas * scale if scale > nothing else np.inf

        beta = least_squares(A, y, w)
        self.n_iter_ = 1
        t = threshold("l1", beta)
        for _ in range(SCALE_ROUNDS):
            if not np.isinf(t):
                beta, steps = fit_l1(A, y, w, t, beta, self.tol, self.max_iter)
                self.n_iter_ += steps
            last, t = t, threshold("l1", beta)
            if t == last or abs(t - last) <= 1e-10 * last:
                break
        for _ in range(SCALE_ROUNDS if self.penalty == "l0" or self.permuted else 0):
            hard = threshold("l0", beta)
            t = hard if self.penalty == "l0" else t
            if np.isinf(hard):
                break
            # Hard thresholding of the residuals and least squares on the rest alternate until the rest stays the same.
            last_beta, kept = beta, np.empty(0)
            for _ in range(self.max_iter):
                self.n_iter_ += 1
                before, kept = kept, np.abs(y - A @ beta) <= hard
                if np.array_equal(kept, before):
                    break
                if (w * kept).sum() > 0:
                    beta = least_squares(A, y, w * kept)
            if np.abs(beta - last_beta).max() <= 1e-10 * max(np.abs(last_beta).max(), 1e-300):
                break
        self.lam_, self.scale_ = float(t), mad(y - A @ beta, w)
        return beta

    def predict(self, X: Any) -> np.ndarray:
        """The responses of the rows of `X`."""
        check_is_fitted(self, "coef_")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return X @ self.coef_ + self.intercept_

    def plot(self, X: Any, y: Any, ax: Any = None) -> Any:
        """Residuals against predictions; a line from each shifted response to where its shift takes it."""
        predicted = self.predict(X)
        _, y = validate_data(self, X, y, reset=False, dtype=np.float64, y_numeric=True)
        residual = y - predicted
        shift = self._shifts(residual)
        out = shift != 0
        ax = common.axes(ax, f"Shift regression: {out.mean():.1%} of the responses shifted")
        if np.isfinite(self.lam_):
            ax.axhspan(-self.lam_, self.lam_, color="#0072B2", alpha=0.08, lw=0, label="within lambda")
        ax.axhline(0, color="black", lw=0.8)
        ax.vlines(predicted[out], (residual - shift)[out], residual[out], color=common.OUTLIER, alpha=0.45, lw=0.9)
        ax.scatter(predicted[~out], residual[~out], s=9, color=common.color(0), alpha=0.7)
        ax.set(xlabel="prediction", ylabel="residual")
        common.outliers(ax, np.column_stack([predicted, residual])[out], "shifted response")
        return ax
