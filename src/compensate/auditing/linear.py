r"""Linear models of the labels, cross-fitted: all folds are fitted at once, and each predicts the rows it did not learn from.

**LogComp in closed form.** With a compensation :math:`v_i` of the logits of each sample and an L1 penalty,

.. math:: \min_{W, v} \frac1N \sum_i \Bigl( l(S(W^\top x_i + v_i), y_i) + \lambda \|v_i\|_1 \Bigr) + \frac{\mu}2 \|W\|^2,

the optimal :math:`v_i` is known: it is zero where :math:`1 - p_{i y_i} \le \lambda`, and elsewhere raises the logit of the given
class until :math:`1 - p_{i y_i} = \lambda`. The remaining loss of :math:`W` is convex, with the gradient in the logits

.. math:: (p_i - y_i) \min\Bigl(1, \frac{\lambda}{1 - p_{i y_i}}\Bigr):

the pull of a wrong label is at most :math:`\lambda`. No table of compensations is needed.

**Transitions.** With the prediction compensated at the level of categories, :math:`p(j | x) = \sum_t p(t | x) A_{tj}`, where
:math:`A_{tj}` is how often class :math:`t` is written as :math:`j`, the gradient is :math:`p_i - r_i` with the posterior
:math:`r_{it} \propto p_{it} A_{t y_i}`.

Centering, scaling and the rotation to principal axes are applied to the weights and not to the data. In these axes the
Hessian is close to a multiple of the identity, and L-BFGS needs ten steps instead of hundreds.

Reference: Yao and Wu, Compensation Learning, 2021, Eqs. (20) to (22); Patrini et al., Making Deep Neural Networks Robust to
Label Noise: A Loss Correction Approach, 2017, for transitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from compensate.auditing.execution import LOCAL, Execution
from compensate.data.dataset import Floats, Ints, Singles

Slope = Callable[[Singles, Singles, Ints | slice], tuple[NDArray[np.floating], Singles]]
"""From probabilities (B, K, C), their logarithms and the rows: the losses (B, K) and their slopes in the logits (B, K, C)."""

Mask = NDArray[np.bool_]
Terms = tuple[Any, ...]
"""Numbers and arrays that are summed over portions of the rows."""

BLOCK, CACHED = 4_000_000, 4_096
"""Entries of logits, and of dense features, in memory at once; and the most dense rows in a portion, which fits the processor's cache."""

WORK = 20_000_000_000
"""The most multiplications in one pass over the fitted rows: of more rows, evenly spaced ones are fitted and the others only predicted."""

MAX_AXES = 4_096  # principal axes; with more columns and rows they are computed from some rows, as the cost grows with the cube
BIAS_DECAY = 1e-6  # weight decay of the intercept
PRECISION, STEPS = 1e-5, 100  # relative decrease of the loss at which a fit ends, and its most steps
SPARSE_FLOOR = 0.1  # curvature along a word relative to its mean square, for the scaling of steps


@final
class LinearFolds:
    """Softmax regression for several folds at once.

    Args:
        x: (N, D) features, dense or sparse. Dense columns are standardized, sparse rows are scaled by one number.
        folds: (N,) the fold in which each row is held out.
        num_folds, num_classes: K and C.
        learn: (N,) False for rows without a label, which no model learns from.
        run: where sums over the rows are computed.
    """

    def __init__(
        self, x: Any, folds: Ints, num_folds: int, num_classes: int, learn: Mask | None = None, run: Execution = LOCAL
    ) -> None:
        self.run = run
        self.x: Any = np.asarray(x) if isinstance(x, np.ndarray) else x.tocsr().astype(np.float32)
        self.folds, self.num_folds, self.num_classes = folds, num_folds, num_classes
        n = self.x.shape[0]
        width = x.shape[1] if isinstance(x, np.ndarray) else x.nnz / max(n, 1)
        most = max(1000, int(WORK / (max(width, 1) * num_folds * num_classes)))
        self.fitted = np.arange(n) if learn is None else np.flatnonzero(learn)
        if len(self.fitted) > most:
            self.fitted = self.fitted[np.linspace(0, len(self.fitted) - 1, most).astype(np.int64)]
        train = folds[self.fitted, None] != np.arange(num_folds)
        self.train: Singles = np.asfortranarray(train / np.maximum(train.sum(0), 1), np.float32)
        self.center, self.scale, self.axes, self.spread = _coordinates(self.x)
        self.shape = (len(self.spread) + 1, num_folds * num_classes)

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process computes there."""
        return {**self.__dict__, "run": LOCAL}

    def add_up(self, term: Callable[..., Terms], *args: Any) -> Terms:
        """The sum of ``term(self, part, *args)`` over all portions of the fitted rows, in 64 bits.

        The portions do not depend on the number of workers, which therefore changes only the last digits.
        """
        size = max(1, BLOCK // self.shape[1])
        # A portion of dense rows is a copy of them; the gradient of sparse rows has an entry for every word.
        if self.axes is not None:
            size = max(1, min(CACHED, size, BLOCK // max(1, self.x.shape[1])))
        number = len(self.fitted)
        parts = [slice(start, min(start + size, number)) for start in range(0, number, size)]
        cuts = np.linspace(0, len(parts), min(self.run.workers, len(parts)) + 1).astype(int)
        shares = [parts[a:b] for a, b in pairwise(cuts)]
        return _total(self.run.map(_added, shares, self, term, *args))

    def weights(self, w: Singles) -> tuple[Singles, Singles]:
        """Weights (D, K C) and intercepts (K C,) for centered rows."""
        inner = w[:-1] if self.axes is None else self.axes @ w[:-1]
        return inner / self.scale[:, None], w[-1]

    def logits(self, part: slice, weights: Singles, intercept: Singles) -> tuple[Ints | slice, Any, Singles]:
        """The rows of a portion of the fitted rows, their centered features, and (B, K, C) their logits under the weights of all folds.

        Centering keeps sums precise where a mean is large; sparse rows are not centered.
        """
        rows = part if len(self.fitted) == self.x.shape[0] else self.fitted[part]
        # Rows are contiguous in memory: sums over few classes are then sums of long arrays.
        if self.axes is None:
            x = self.x[rows]
            u = np.ascontiguousarray((x @ weights).T)
        else:
            x = self.x[rows] - self.center
            u = weights.T @ x.T
        u += intercept[:, None]
        return rows, x, u.reshape(self.num_folds, self.num_classes, -1).transpose(2, 0, 1)

    def fit(self, slope: Slope, decay: float, start: Singles | None = None) -> Singles:
        """The weights (D' + 1, K C) that minimize a loss plus weight decay.

        Args:
            slope: the loss and its gradient in the logits.
            decay: the strength of the regularization, in units of the mean loss.
            start: weights to start from.
        """
        step = np.append(1 / np.sqrt(0.25 * self.spread + decay), 2.0).astype(np.float32)[:, None]
        ridge = np.append(np.full(len(self.spread), decay), BIAS_DECAY).astype(np.float32)[:, None]

        def value(z: Floats) -> tuple[float, Floats]:
            w = z.reshape(self.shape).astype(np.float32) * step
            total, gradient, shift = self.add_up(_slopes, slope, *self.weights(w))
            gradient = gradient / self.scale[:, None]
            if self.axes is not None:
                gradient = self.axes.T @ gradient
            full = (np.concatenate([gradient, shift[None]]) + ridge * w) * step
            return float(total) + 0.5 * float((ridge * w * w).sum()), full.ravel().astype(np.float64)

        z = np.zeros(self.shape) if start is None else start / step
        found = minimize(
            value, z.ravel(), jac=True, method="L-BFGS-B",
            options={"maxiter": STEPS, "ftol": PRECISION, "gtol": 1e-6, "maxcor": 8},
        )  # fmt: skip
        return found.x.reshape(self.shape).astype(np.float32) * step

    def held_out_loss(self, w: Singles, labels: Ints) -> float:
        """The mean of -log p of the given labels, by models that did not learn from them."""
        return float(self.add_up(_held_out_loss, labels, *self.weights(w))[0]) / len(self.fitted)

    def each(self, w: Singles) -> list[tuple[Singles, Singles]]:
        """Weights (D, C) and intercepts (C,) of the model of each fold, for rows that are not centered."""
        weights, intercept = self.weights(w)
        intercept = intercept - self.center @ weights
        shape = (-1, self.num_folds, self.num_classes)
        weights, intercept = weights.reshape(shape), intercept.reshape(shape)[0]
        return [(np.ascontiguousarray(weights[:, k]), intercept[k]) for k in range(self.num_folds)]


def _added(parts: list[slice], fitted: LinearFolds, term: Callable[..., Terms], *args: Any) -> Terms:
    return _total(term(fitted, part, *args) for part in parts)


def _total(terms: Iterable[Terms]) -> Terms:
    total: Any = None
    for term in terms:
        new = [np.asarray(value, np.float64) for value in term]
        total = new if total is None else [a + b for a, b in zip(total, new, strict=True)]
    return tuple(total)


def _slopes(fitted: LinearFolds, part: slice, slope: Slope, *weights: Singles) -> Terms:
    """The loss of a portion, and its gradient in weights and intercepts."""
    share = fitted.train[part]
    rows, x, u = fitted.logits(part, *weights)
    loss, r = slope(*softmax(u), rows)
    r = (r * share[:, :, None]).transpose(1, 2, 0).reshape(-1, len(share))
    return (loss * share).sum(dtype=np.float64), np.asarray(x.T @ r.T), r.sum(1)


def _held_out_loss(fitted: LinearFolds, part: slice, labels: Ints, *weights: Singles) -> Terms:
    rows, _, u = fitted.logits(part, *weights)
    place = np.arange(len(u))
    log_p = softmax(u[place, fitted.folds[rows]])[1]
    return (-log_p[place, labels[rows]].sum(dtype=np.float64),)


def softmax(u: Singles) -> tuple[Singles, Singles]:
    """Probabilities and their logarithms along the last axis."""
    u = u - u.max(-1, keepdims=True)
    p = np.exp(u)
    total = p.sum(-1, keepdims=True)
    return p / total, u - np.log(total)


def compensated(labels: Ints, lam: float, trusted: Mask | None = None) -> Slope:
    """LogComp with its optimal compensation; plain cross entropy for ``lam`` of 1 and for trusted labels."""
    edge = np.log((1 - lam) / lam) if lam < 1 else -np.inf

    def slope(p: Singles, log_p: Singles, rows: Ints | slice) -> tuple[NDArray[np.floating], Singles]:
        given = np.maximum(labels[rows], 0)[None, None]
        own = np.take_along_axis(log_p.transpose(1, 2, 0), given, 1)[:, 0].T
        rest = np.maximum(-np.expm1(own), 1e-12)
        far = rest > lam
        if trusted is not None:
            far &= ~trusted[rows][:, None]
        loss = np.where(far, lam * (edge - own + np.log(rest)) - np.log(max(1 - lam, 1e-12)), -own)
        r = p.copy("K")
        np.put_along_axis(r.transpose(1, 2, 0), given, -rest.T[:, None], 1)
        return loss, r * np.where(far, lam / rest, 1)[..., None]

    return slope


def transferred(labels: Ints, transition: Singles, trusted: Mask | None = None) -> Slope:
    """Cross entropy of the given labels under transitions (K, C, C) from true to given classes; trusted labels are true."""
    own = np.eye(transition.shape[1], dtype=np.float32)[:, None]

    def slope(p: Singles, log_p: Singles, rows: Ints | slice) -> tuple[NDArray[np.floating], Singles]:
        given = np.maximum(labels[rows], 0)
        a = np.take(transition, given, 2).transpose(2, 0, 1)
        if trusted is not None:
            a = np.where(trusted[rows][:, None, None], own[given], a)
        joint = p * a
        likely = np.maximum(joint.sum(2, keepdims=True), 1e-12)
        return -np.log(likely[..., 0]), p - joint / likely

    return slope


def _coordinates(x: Any) -> tuple[Singles, Singles, Singles | None, Singles]:
    """Center, scale, principal axes (none for sparse data) and the variance along each axis."""
    n, d = x.shape
    if not isinstance(x, np.ndarray):
        square = np.asarray(x.power(2).sum(0)).ravel() / n
        scale = np.full(d, np.sqrt(max(square.sum(), 1e-12)), np.float32)
        return np.zeros(d, np.float32), scale, None, (4 * SPARSE_FLOOR * square / scale**2).astype(np.float32)
    size = max(1, BLOCK // max(d, 1))
    portions = [slice(start, start + size) for start in range(0, n, size)]
    center = sum(x[part].sum(0, dtype=np.float64) for part in portions) / n
    by_columns = d <= min(n, MAX_AXES)
    if by_columns:
        gram = np.zeros((d, d))
        for part in portions:
            centered = (x[part] - center).astype(np.float32)
            gram += centered.T @ centered
        gram /= n
        variance: Any = np.diag(gram)
    else:
        variance = sum(((x[part] - center) ** 2).sum(0, dtype=np.float64) for part in portions) / n
    deviation = np.sqrt(np.maximum(variance, 0))
    # Columns that hardly vary stay small.
    smallest = max(1e-6 * deviation.max(initial=0), 0.05 * np.sqrt((deviation**2).mean()) if d > 64 else 0, 1e-12)
    scale = np.maximum(deviation, smallest) * np.sqrt(d)
    if by_columns:
        least = 1e-9
        spread, axes = np.linalg.eigh(gram / np.outer(scale, scale))
    else:
        least = 1e-6  # smaller products of rows in single precision are rounding errors
        # The axes of a few rows of many columns lie in the span of these rows: products of rows suffice.
        some = np.linspace(0, n - 1, min(n, MAX_AXES)).astype(np.int64)
        z = ((x[some] - center) / scale).astype(np.float32)
        spread, mixed = np.linalg.eigh((z @ z.T).astype(np.float64) / len(z))
        axes = (z.T @ mixed) / np.sqrt(np.maximum(len(z) * spread, 1e-30))
    kept = spread > least * spread.max(initial=0)
    center, scale, axes, spread = (np.asarray(a, np.float32) for a in (center, scale, axes[:, kept], spread[kept]))
    return center, scale, axes, spread
