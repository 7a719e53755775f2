"""Code shared by the estimators: weighted statistics, checks of parameters, kernels as coordinates, and plots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.kernel_approximation import RBFSampler
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_non_negative, check_scalar

from compensate.extras import require

# --- statistics with weights ---------------------------------------------------------------------------------------


def weighted_quantile(values: np.ndarray, q: float, weights: np.ndarray | None = None) -> float:
    """The smallest value with at least a share `q` of the weight at or below it.

    A weight of 2 counts exactly as two samples and a weight of 0 as none, in any order.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), 0.5)
    2.0
    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), 0.5, np.array([4.0, 1.0, 1.0]))
    3.0
    """
    if weights is None:
        # The factor keeps rounding from increasing the rank when q * n is whole.
        rank = max(int(np.ceil(q * len(values) * (1 - 1e-12))) - 1, 0)
        return float(np.partition(values, rank)[rank])
    order = np.argsort(values, kind="stable")
    order = order[weights[order] > 0]
    mass = np.cumsum(weights[order])
    rank = int(np.searchsorted(mass, q * mass[-1] * (1 - 1e-12)))
    return float(values[order[min(rank, len(order) - 1)]])


def mad(residuals: np.ndarray, weights: np.ndarray | None = None) -> float:
    r"""Robust standard deviation of residuals: the median of :math:`|r_i|` over 0.6745.

    The constant makes it the standard deviation of normal residuals, which are centered already. If more than half of the
    residuals vanish, the mean of :math:`|r_i|`, scaled likewise, replaces the median.

    >>> round(mad(np.array([-0.6745, 0.6745, 0.6745, 0.1, 1e6])), 3)
    1.0
    """
    size = np.abs(residuals)
    middle = weighted_quantile(size, 0.5, weights)
    return middle / 0.6744897501960817 if middle > 0 else float(np.average(size, weights=weights)) / 0.7978845608028654


# --- checks --------------------------------------------------------------------------------------------------------


def one_of(value: object, name: str, options: Iterable[object]) -> None:
    """Raises unless `value` is one of `options`.

    >>> one_of("l3", "penalty", ["l1", "l2"])
    Traceback (most recent call last):
    ...
    ValueError: The 'penalty' parameter must be one of {'l1', 'l2'}. Got 'l3' instead.
    """
    options = list(options)
    if not any(value is option or (type(value) is type(option) and value == option) for option in options):
        listed = ", ".join(repr(option) for option in options)
        raise ValueError(f"The {name!r} parameter must be one of {{{listed}}}. Got {value!r} instead.")


def positive(value: Any, name: str, *, zero: bool = False) -> None:
    """Raises unless `value` is a real number above zero, or zero if `zero` is true.

    >>> positive(-1.0, "lam")
    Traceback (most recent call last):
    ...
    ValueError: lam == -1.0, must be > 0.
    """
    check_scalar(value, name, Real, min_val=0, include_boundaries="left" if zero else "neither")
    if np.isnan(value):
        raise ValueError(f"{name} == {value}, must be {'>=' if zero else '>'} 0.")


def check_parameters(
    estimator: Any,
    *,
    counts: Iterable[str] = (),
    positives: Iterable[str] = (),
    optional: Iterable[str] = (),
    options: Mapping[str, Iterable[object]] | None = None,
) -> None:
    """Raises unless the parameters of an estimator have sensible values.

    Args:
        estimator: `tol` and `contamination` are checked if it has them.
        counts: names of whole numbers of at least 1.
        positives: names of numbers above zero.
        optional: names of `counts` and `positives` that may be None.
        options: the allowed values of other parameters.
    """
    for name in (*counts, *positives):
        value = getattr(estimator, name)
        if value is None and name in optional:
            continue
        if name in counts:
            check_scalar(value, name, Integral, min_val=1)
        else:
            positive(value, name)
    if hasattr(estimator, "tol"):
        positive(estimator.tol, "tol", zero=True)
    if hasattr(estimator, "contamination"):
        check_scalar(
            estimator.contamination, "contamination", Real, min_val=0, max_val=0.5, include_boundaries="left"
        )  # fmt: skip
    for name, values in (options or {}).items():
        one_of(getattr(estimator, name), name, values)


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


# --- kernels -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelMap:
    r"""Coordinates of a kernel: a linear method on `Z` is the kernel method on `X`.

    With the eigenvectors of the kernel matrix, :math:`K = U \Lambda U^T`, the rows of :math:`Z = U \Lambda^{1/2}` have the
    inner products of the feature space, :math:`Z Z^T = K`. This costs :math:`O(n^3)` once; for many samples `sampler` holds
    random Fourier features of the rbf kernel instead (Rahimi and Recht, 2007).

    >>> X = np.array([[0.0, 1.0], [1.0, 1.0], [3.0, 0.0]])
    >>> Z = KernelMap.exact(X, "poly", {"gamma": 1.0, "degree": 2, "coef0": 1.0})(X)
    >>> bool(np.allclose(Z @ Z.T, (X @ X.T + 1) ** 2))
    True
    """

    kernel: str
    params: dict[str, Any]
    anchors: np.ndarray | None = None
    axes: np.ndarray | None = None
    sampler: RBFSampler | None = None

    @classmethod
    def exact(cls, X: np.ndarray, kernel: str, params: dict[str, Any]) -> KernelMap:
        """Exact coordinates from the samples `X`, (n, d)."""
        values, vectors = np.linalg.eigh(pairwise_kernels(X, metric=kernel, **params))
        # Smaller eigenvalues are rounding errors, which a division by their root would amplify.
        kept = values > 1e-10 * max(values[-1], np.finfo(float).tiny)
        return cls(kernel, params, X, vectors[:, kept] / np.sqrt(values[kept]))

    @classmethod
    def fit(cls, estimator: Any, X: np.ndarray, w: np.ndarray, random_state: Any) -> KernelMap:
        """The map for an estimator's `kernel`, `gamma`, `degree`, `coef0` and `random_features`.

        `gamma="scale"` is 1 / (features * variance), as in `sklearn.svm.SVC`.
        """
        kernel, gamma, params = estimator.kernel, estimator.gamma, {}
        if kernel != "linear":
            if gamma == "scale":
                each = np.broadcast_to(w[:, None], X.shape)
                variance = np.average((X - np.average(X, weights=each)) ** 2, weights=each)
                gamma = 1.0 / (X.shape[1] * variance) if variance > 0 else 1.0
            positive(gamma, "gamma")
            params = {"gamma": gamma}
        if kernel == "poly":
            check_parameters(estimator, counts=["degree"])
            positive(estimator.coef0, "coef0", zero=True)
            params |= {"degree": estimator.degree, "coef0": estimator.coef0}
        if estimator.random_features is None:
            return cls.exact(X, kernel, params)
        sampler = RBFSampler(
            gamma=gamma, n_components=estimator.random_features, random_state=check_random_state(random_state)
        )
        return cls(kernel, params, sampler=sampler.fit(X))

    def __call__(self, X: np.ndarray) -> np.ndarray:
        if self.sampler is not None:
            return self.sampler.transform(X)
        return pairwise_kernels(X, self.anchors, metric=self.kernel, **self.params) @ self.axes

    def outside(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """The squared length of each sample outside the span of the fitted ones, (n,)."""
        if self.sampler is not None:
            return np.zeros(len(X))
        square = np.einsum("ij,ij->i", X, X)
        if self.kernel == "rbf":
            square = np.ones(len(X))
        elif self.kernel == "poly":
            square = (self.params["gamma"] * square + self.params["coef0"]) ** self.params["degree"]
        return np.maximum(square - np.einsum("ij,ij->i", Z, Z), 0)


def check_random_features(estimator: Any) -> None:
    """Raises unless `random_features` is None, or a number with the rbf kernel."""
    check_parameters(estimator, counts=["random_features"], optional=["random_features"])
    if estimator.random_features is not None and estimator.kernel != "rbf":
        raise ValueError(f"random_features needs kernel='rbf'. Got kernel={estimator.kernel!r}.")


# --- plots ---------------------------------------------------------------------------------------------------------

# The palette of Okabe and Ito. Outliers are drawn as crosses: color is never the only sign.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C7A00", "#555555")
OUTLIER = "#B00020"


def axes(ax: Any, title: str, *, size: tuple[float, float] = (5.2, 4.2), depth: bool = False) -> Any:
    """The given axes, or new ones; three-dimensional if `depth`."""
    if ax is None:
        plt = require("matplotlib.pyplot", "drawing", "plots")
        options = {"projection": "3d"} if depth else {}
        _, ax = plt.subplots(figsize=size, layout="constrained", subplot_kw=options)
    ax.set_title(title, fontsize=10, loc="left")
    if not depth:
        ax.spines[["top", "right"]].set_visible(False)
    return ax


def color(k: int) -> str:
    """The color of the k-th class or cluster."""
    return COLORS[k % len(COLORS)]


def plane(X: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """Two columns to draw, of all arrays: the features themselves, or the plane of greatest variance of `X`.

    >>> X = np.zeros((5, 3)); X[:, 2] = range(5)
    >>> flat, = plane(X)
    >>> flat.shape, round(float(np.ptp(flat[:, 0])), 6)
    ((5, 2), 4.0)
    """
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
    """A legend, if anything has a label."""
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize=8, frameon=False, loc="best")
