"""Code shared by the estimators: compensation of residuals, weighted statistics, checks, kernels as coordinates, and plots."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
from sklearn.kernel_approximation import RBFSampler
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_non_negative, check_scalar

from compensate.core.proximal import TINY, row_norm
from compensate.extras import require


def residual_sizes(v: np.ndarray, penalty: str) -> np.ndarray:
    """The sizes of residuals (n, d) that a penalty acts on: of entries (n, d) for l1, of rows (n, 1) for l2 and l0."""
    return np.abs(v) if penalty == "l1" else row_norm(v)


def share_left(r: np.ndarray, t: float, penalty: str) -> np.ndarray:
    """The share of residuals of size `r` that their best compensation leaves; see `residual_cost`."""
    return np.where(r > t, 0.0 if penalty == "l0" else t / np.maximum(r, TINY), 1.0)


def compensation(v: np.ndarray, t: float, penalty: str) -> np.ndarray:
    r"""The best :math:`o_i` for residuals :math:`v_i`, the rows of (n, d); see `residual_cost`."""
    return (share_left(residual_sizes(v, penalty), t, penalty) - 1) * v


def residual_cost(r: np.ndarray, t: float, penalty: str) -> np.ndarray:
    r"""The cost of residuals of size `r` with their best compensation, :math:`\min_o (r+o)^2 + 2t|o|`.

    This is twice Huber's loss. With l0 a compensation costs :math:`t^2` whatever its size.
    """
    return np.minimum(r**2, t**2) if penalty == "l0" else r**2 - np.maximum(r - t, 0) ** 2


def weighted_quantile(values: np.ndarray, q: float, weights: np.ndarray) -> float:
    """The smallest value with at least a share `q` of the weight at or below it.

    A weight of 2 equals two samples, a weight of 0 none, in any order.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), 0.5, np.array([4.0, 1.0, 1.0]))
    3.0
    """
    q *= 1 - 1e-12  # rounding must not increase the rank where q * n is whole
    if weights.min() == weights.max():
        rank = max(int(np.ceil(q * len(values))) - 1, 0)
        return float(np.partition(values, rank)[rank])
    order = np.argsort(values, kind="stable")
    order = order[weights[order] > 0]
    mass = np.cumsum(weights[order])
    rank = int(np.searchsorted(mass, q * mass[-1]))
    return float(values[order[min(rank, len(order) - 1)]])


def mad(residuals: np.ndarray, weights: np.ndarray) -> float:
    r"""Robust standard deviation of residuals: the median of :math:`|r_i|` over 0.6745, as for normal residuals.

    If more than half of the residuals vanish, the mean of :math:`|r_i|`, scaled likewise, replaces the median.

    >>> round(mad(np.array([-0.6745, 0.6745, 0.6745, 0.1, 1e6]), np.ones(5)), 3)
    1.0
    """
    size = np.abs(residuals)
    middle = weighted_quantile(size, 0.5, weights)
    return middle / 0.6744897501960817 if middle > 0 else float(np.average(size, weights=weights)) / 0.7978845608028654


def least_squares(A: np.ndarray, Y: np.ndarray, w: np.ndarray) -> np.ndarray:
    r"""The B, (d,) or (d, m), with the least :math:`\sum_i w_i \|y_i - B^T a_i\|^2`."""
    root = np.sqrt(w)
    return np.linalg.lstsq((A.T * root).T, (Y.T * root).T, rcond=None)[0]


RANGES = {"tol": np.inf, "coef0": np.inf, "weight_decay": np.inf, "contamination": 0.5, "validation": 1.0}
"""Exclusive upper bounds of the parameters that may be zero."""


def check_parameters(estimator: Any) -> None:
    """Raises unless the parameters of an estimator have sensible values, by the types of its `__init__`.

    Whole numbers are at least 1, other numbers above zero unless they are in `RANGES`, and a `Literal` lists its options.
    """
    hints = get_type_hints(type(estimator))
    for name, value in estimator.get_params(deep=False).items():
        kinds = (hints[name],) if get_origin(hints[name]) in (None, Literal) else get_args(hints[name])
        options = [option for kind in kinds if get_origin(kind) is Literal for option in get_args(kind)]
        if (value is None and type(None) in kinds) or (isinstance(value, str) and value in options):
            continue
        if int in kinds:
            check_scalar(value, name, Integral, min_val=1)
        elif float in kinds and name in RANGES:
            check_scalar(value, name, Real, min_val=0, max_val=RANGES[name], include_boundaries="left")
        elif float in kinds:
            check_scalar(value, name, Real, min_val=0, include_boundaries="neither")
        elif options:
            listed = ", ".join(repr(option) for option in options)
            raise ValueError(f"The {name!r} parameter must be one of {{{listed}}}. Got {value!r} instead.")
        if float in kinds and np.isnan(value):
            raise ValueError(f"{name} == {value}, must be a number.")
    if getattr(estimator, "random_features", None) is not None and estimator.kernel != "rbf":
        raise ValueError(f"random_features needs kernel='rbf'. Got kernel={estimator.kernel!r}.")


def weights(sample_weight: Any, X: Any) -> np.ndarray:
    """One non-negative weight per sample; ones if none are given."""
    size = X.shape[0]
    if sample_weight is None or isinstance(sample_weight, Real):
        sample_weight = np.full(size, 1.0 if sample_weight is None else float(sample_weight))
    checked = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if checked.shape != (size,):
        raise ValueError(f"sample_weight.shape == {checked.shape}, expected {(size,)}: one weight per sample.")
    check_non_negative(checked, "`sample_weight`")
    if not checked.any():
        raise ValueError("Sample weights must contain at least one non-zero number.")
    return checked


class KernelMap:
    r"""Coordinates of a kernel: a linear method on `Z` is the kernel method on `X`.

    With the eigenvectors of the kernel matrix, :math:`K = U \Lambda U^T`, the rows of :math:`Z = U \Lambda^{1/2}` have the
    inner products of the feature space, :math:`Z Z^T = K`. This costs :math:`O(n^3)` once; with `random_features` of the estimator they
    are random Fourier features of the rbf kernel instead (Rahimi and Recht, 2007). `gamma="scale"` is as in `sklearn.svm.SVC`.
    """

    def __init__(self, estimator: Any, X: np.ndarray, w: np.ndarray, random_state: Any) -> None:
        gamma = estimator.gamma
        if gamma == "scale":
            each = np.broadcast_to(w[:, None], X.shape)
            variance = np.average((X - np.average(X, weights=each)) ** 2, weights=each)
            gamma = 1.0 / (X.shape[1] * variance) if variance > 0 else 1.0
        self.sampler = None
        if estimator.random_features is not None:
            random = check_random_state(random_state)
            self.sampler = RBFSampler(gamma=gamma, n_components=estimator.random_features, random_state=random).fit(X)
            return
        options = {"gamma": gamma, "degree": estimator.degree, "coef0": estimator.coef0}
        self.options = {"metric": estimator.kernel, "filter_params": True, **options}
        values, vectors = np.linalg.eigh(pairwise_kernels(X, **self.options))
        # Smaller eigenvalues are rounding errors, which a division by their root would amplify.
        kept = values > 1e-10 * max(values[-1], np.finfo(float).tiny)
        self.anchors, self.axes = X, vectors[:, kept] / np.sqrt(values[kept])

    def __call__(self, X: np.ndarray) -> np.ndarray:
        if self.sampler is not None:
            return self.sampler.transform(X)
        return pairwise_kernels(X, self.anchors, **self.options) @ self.axes

    def outside(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """(n,) the squared distance of each sample from the span of the fitted samples, in feature space."""
        if self.sampler is not None:
            return np.zeros(len(X))
        square = np.einsum("ij,ij->i", X, X)
        if self.options["metric"] == "rbf":
            square = np.ones(len(X))
        elif self.options["metric"] == "poly":
            square = (self.options["gamma"] * square + self.options["coef0"]) ** self.options["degree"]
        return np.maximum(square - np.einsum("ij,ij->i", Z, Z), 0)


# The palette of Okabe and Ito. Outliers are also drawn as crosses, for readers who cannot tell the colors apart.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C7A00", "#555555")
OUTLIER = "#B00020"


def axes(ax: Any, title: str, *, depth: bool = False) -> Any:
    """The given axes, or new ones; three-dimensional if `depth`."""
    if ax is None:
        plt = require("matplotlib.pyplot", "drawing", "plots")
        _, ax = plt.subplots(figsize=(5.2, 4.2), layout="constrained", subplot_kw={"projection": "3d"} if depth else {})
    ax.set_title(title, fontsize=10, loc="left")
    if not depth:
        ax.spines[["top", "right"]].set_visible(False)
    return ax


def color(k: int) -> str:
    """The color of the k-th class or cluster."""
    return COLORS[k % len(COLORS)]


def plane(X: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """All arrays with two columns, for drawing: their features, or their projection on the first two principal axes of `X`."""
    if X.shape[1] == 1:
        return [np.column_stack([A, np.zeros(len(A))]) for A in (X, *others)]
    if X.shape[1] == 2:
        return [X, *others]
    center = X.mean(axis=0)
    directions = np.linalg.svd(X - center, full_matrices=False)[2][:2]
    return [(A - center) @ directions.T for A in (X, *others)]


def outliers(ax: Any, points: np.ndarray, label: str, step: np.ndarray | None = None) -> None:
    """Draws compensated samples as crosses, with arrows along `step`, and the legend."""
    if len(points):
        if step is not None:
            ax.quiver(*points.T, *step.T, angles="xy", scale_units="xy", scale=1, width=0.003, color=OUTLIER, alpha=0.55,
                      zorder=1)  # fmt: skip
        ax.scatter(*points.T, marker="x", s=26, linewidths=1.2, color=OUTLIER, label=label, zorder=3)
    legend(ax)


def clusters(
    ax: Any, points: np.ndarray, labels: np.ndarray, centers: np.ndarray, out: Any, label: str, step: Any = None
) -> None:
    """Draws samples by cluster, the centers, and outliers as crosses with arrows along `step`."""
    for k in range(len(centers)):
        ax.scatter(*points[(labels == k) & ~out].T, s=9, color=color(k), alpha=0.7)
    ax.scatter(*centers.T, marker="P", s=90, color="black", edgecolor="white", label="center", zorder=4)
    outliers(ax, points[out], label, None if step is None else step[out])


def legend(ax: Any) -> None:
    """Adds a legend if anything drawn has a label."""
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize=8, frameon=False, loc="best")
