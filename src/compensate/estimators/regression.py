"""Linear regression that shifts doubtful responses instead of following them.

Use it if some responses are grossly wrong, or were assigned to the wrong rows (`permuted=True` finds these rows and puts the
responses back). It does not protect against rows with wrong *features* far from the others.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from compensate.core.proximal import hard_threshold, soft_threshold
from compensate.estimators import common
from compensate.estimators.common import check_parameters, mad, weights

PROX = {"l1": soft_threshold, "l0": hard_threshold}
# Huber's constant loses 5 % against least squares on normal noise; a hard threshold must rarely cut a clean sample.
SIGMAS = {"l1": 1.345, "l0": 3.0}
EXCHANGE_PRICE = 9.0  # squared sigmas that an exchange must save per row, as a residual of three sigmas
SCALE_ROUNDS = 30


def huber(r: np.ndarray, t: float) -> np.ndarray:
    r"""The cost of residuals with the best shifts: :math:`\min_\gamma \tfrac12 (r-\gamma)^2 + t|\gamma|`.

    >>> huber(np.array([1.0, -3.0]), 2.0)
    array([0.5, 4. ])
    """
    return 0.5 * (r**2 - np.maximum(np.abs(r) - t, 0) ** 2)


def _least_squares(A: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    root = np.sqrt(w)
    return np.linalg.lstsq(A * root[:, None], y * root, rcond=None)[0]


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
        value = w @ huber(r, t)
        inside = w * (np.abs(r) <= t)
        newton = beta + np.linalg.lstsq(A.T @ (inside[:, None] * A), slope, rcond=None)[0]
        # The step below always descends: least squares for responses less their best shifts.
        steady = beta + _least_squares(A, np.clip(r, -t, t), w)
        beta = min((newton, steady), key=lambda b: w @ huber(y - A @ b, t))
        if w @ huber(y - A @ beta, t) >= value * (1 - 1e-15):
            return beta, steps
    return beta, max_iter


def fit_l0(
    A: np.ndarray, y: np.ndarray, w: np.ndarray, t: float, beta: np.ndarray, max_iter: int
) -> tuple[np.ndarray, int]:
    """Alternates hard thresholding of the residuals and least squares on the rest, until the rest stays the same."""
    kept = None
    for steps in range(1, max_iter + 1):
        now = np.abs(y - A @ beta) <= t
        if kept is not None and np.array_equal(now, kept):
            return beta, steps
        kept = now
        if (w * kept).sum() > 0:
            beta = _least_squares(A, y, w * kept)
    return beta, max_iter


def unshuffle(response: np.ndarray, predicted: np.ndarray, suspects: np.ndarray) -> np.ndarray:
    r"""The permutation of the suspects' responses with the least squared error: largest to largest, and so on.

    Returns `order` (n,); `response[order]` are the responses put back, and rows that are not suspect keep theirs.

    >>> unshuffle(np.array([5.0, 1.0, 3.0]), np.array([1.1, 4.8, 3.0]), np.array([True, True, False]))
    array([1, 0, 2])
    """
    order, rows = np.arange(len(response)), np.flatnonzero(suspects)
    order[rows[np.argsort(predicted[rows], kind="stable")]] = rows[np.argsort(response[rows], kind="stable")]
    return order


def shuffled(response: np.ndarray, predicted: np.ndarray, scale: float) -> np.ndarray:
    r"""The rows whose responses seem exchanged, (n,) bool.

    A set S of rows is scored by the error after the best exchange within it, plus a price per row:

    .. math:: \sum_{i \notin S} \frac{(y_i - \hat y_i)^2}{\sigma^2}
              + \min_\pi \sum_{i \in S} \frac{(y_{\pi(i)} - \hat y_i)^2}{\sigma^2} + \kappa |S|

    Starting with the residuals above three sigmas, rows enter and leave S while the score falls. This finds more than a
    threshold: a displaced response also leaves a gap where it belongs. A lone outlier may stay in S; `unshuffle` then leaves
    it in place.
    """
    y, f = response / scale, predicted / scale
    size = np.abs(y - f)
    member = size > 3
    ys, fs = np.sort(y[member]), np.sort(f[member])
    doubtful = np.flatnonzero((size > 1.5) & (size <= 6))
    doubtful = doubtful[np.argsort(-size[doubtful], kind="stable")]
    for _ in range(SCALE_ROUNDS):
        changed = False
        for i in doubtful:
            # Only the pairs ranked between the response and the prediction change when row i enters or leaves.
            a, b = np.searchsorted(ys, y[i]), np.searchsorted(fs, f[i])
            low, high = min(a, b), max(a, b) + int(member[i])
            with_pairs = ys[low:high], fs[low:high]
            if member[i]:
                other = np.delete(with_pairs[0], a - low), np.delete(with_pairs[1], b - low)
            else:
                other = np.insert(with_pairs[0], a - low, y[i]), np.insert(with_pairs[1], b - low, f[i])
            now, then = (float(((p - q) ** 2).sum()) for p, q in (with_pairs, other))
            outside = size[i] ** 2 - EXCHANGE_PRICE
            if (then + outside if member[i] else then) < (now if member[i] else now + outside) - 1e-9:
                ys, fs = (
                    np.concatenate([whole[:low], part, whole[high:]])
                    for whole, part in zip((ys, fs), other, strict=True)
                )
                member[i] = not member[i]
                changed = True
        if not changed:
            break
    return member


class ShiftRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    r"""Robust linear regression by a sparse mean shift: a label compensation per sample.

    .. math:: \min_{\beta, b, \gamma} \tfrac12 \sum_i (y_i - \gamma_i - x_i^T \beta - b)^2 + P(\gamma)

    where :math:`\gamma_i` is the shift of response i (the label compensation is :math:`\Delta y_i = -\gamma_i`) and
    :math:`P` is :math:`\lambda \|\gamma\|_1` or :math:`\tfrac{\lambda^2}{2} \|\gamma\|_0`. With l1 the fit is exactly
    that of Huber's loss with threshold :math:`\lambda`; with l0 residuals above :math:`\lambda` do not count.

    Parameters
    ----------
    lam : float or None, default=None
        The penalty, in units of the response. None takes `sigmas` times a robust scale of the residuals (their
        median size), fitted and rescaled in turn.
    penalty : {"l1", "l0"}, default="l1"
        l0 starts from the l1 solution.
    sigmas : float or None, default=None
        None is 1.345 for l1 and 3 for l0.
    permuted : bool, default=False
        Sparsely permuted data: some responses were exchanged among rows. The fit is refined by l0, `suspects_` are
        the rows whose response seems to belong elsewhere and `permutation_` puts the responses back.
    fit_intercept : bool, default=True
    tol : float, default=1e-10
    max_iter : int, default=200

    Attributes
    ----------
    coef_ : (d,)
    intercept_ : float
    shifts_ : (n,), the :math:`\gamma_i`; zero for most samples
    outliers_ : (n,) bool, samples with a shift
    scale_ : float, robust standard deviation of the residuals
    lam_ : float
    suspects_, permutation_ : (n,), with `permuted=True`
    n_iter_ : int

    Examples
    --------
    >>> X = np.arange(8.0)[:, None]
    >>> y = 2 * X[:, 0] + 1 + np.array([0, 0.1, -0.1, 0, 0, 50, 0.1, -0.1])
    >>> model = ShiftRegressor(penalty="l0").fit(X, y)
    >>> model.outliers_.nonzero()[0], model.coef_.round(2)
    (array([5]), array([1.99]))

    References
    ----------
    Yao and Wu, Compensation Learning, 2021, Eq. (5). She and Owen, Outlier detection using nonconvex penalized
    regression, 2011. Slawski and Ben-David, Linear regression with sparsely permuted data, 2019.
    """

    def __init__(
        self,
        lam: float | None = None,
        *,
        penalty: Literal["l1", "l0"] = "l1",
        sigmas: float | None = None,
        permuted: bool = False,
        fit_intercept: bool = True,
        tol: float = 1e-10,
        max_iter: int = 200,
    ) -> None:
        self.lam, self.penalty, self.sigmas, self.permuted = lam, penalty, sigmas, permuted
        self.fit_intercept, self.tol, self.max_iter = fit_intercept, tol, max_iter

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> ShiftRegressor:
        """Fits to samples `X`, (n, d), and responses `y`, (n,)."""
        check_parameters(
            self,
            counts=["max_iter"],
            positives=["lam", "sigmas"],
            optional=["lam", "sigmas"],
            options={"penalty": ["l1", "l0"]},
        )
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        y = y.astype(np.float64)
        w = weights(sample_weight, X)
        x_mean, y_mean = (np.average(X, axis=0, weights=w), np.average(y, weights=w)) if self.fit_intercept else (0, 0)
        A = X - x_mean
        if self.fit_intercept:
            A = np.column_stack([A, np.ones(len(A))])
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
        return np.zeros_like(residual) if np.isinf(self.lam_) else PROX[self.penalty](residual, self.lam_)

    def _descend(self, A: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
        beta = _least_squares(A, y, w)
        self.n_iter_ = 1
        # If residuals are only rounding errors, the fit is exact and nothing needs a shift.
        nothing = 1e-12 * float(np.sqrt(np.average(y**2, weights=w)))

        def level(sigmas: float, beta: np.ndarray) -> float:
            scale = mad(y - A @ beta, w)
            return sigmas * scale if scale > nothing else np.inf

        sigmas = SIGMAS["l1"] if self.sigmas is None or self.penalty == "l0" else self.sigmas
        t = level(sigmas, beta) if self.lam is None or self.penalty == "l0" else float(self.lam)
        for _ in range(SCALE_ROUNDS):
            if not np.isinf(t):
                beta, steps = fit_l1(A, y, w, t, beta, self.tol, self.max_iter)
                self.n_iter_ += steps
            last, t = t, level(sigmas, beta) if self.lam is None or self.penalty == "l0" else t
            if t == last or abs(t - last) <= 1e-10 * last:
                break
        if self.penalty == "l0" or self.permuted:
            hard = self.lam if self.penalty == "l0" and self.lam is not None else None
            for _ in range(SCALE_ROUNDS):
                last = level(self.sigmas or SIGMAS["l0"], beta) if hard is None else float(hard)
                if np.isinf(last):
                    break
                refined, steps = fit_l0(A, y, w, last, beta, self.max_iter)
                self.n_iter_ += steps
                same = np.abs(refined - beta).max() <= 1e-10 * max(np.abs(beta).max(), 1e-300)
                beta = refined
                if same:
                    break
            t = last if self.penalty == "l0" else t
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
