"""Robust scale and quantiles that treat a weight of two as the sample given twice."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils.validation import check_array, check_non_negative, check_scalar

from compensate.extras import require


def weighted_quantile(values: np.ndarray, q: float, weights: np.ndarray | None = None) -> float:
    """The smallest value with at least a share `q` of the weight at or below it.

    A weight of 2 counts as two samples and a weight of 0 as none, exactly, whatever the order.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), 0.5)
    2.0
    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), 0.5, np.array([4.0, 1.0, 1.0]))
    3.0
    """
    if weights is None:
        # An index that rounding cannot push up by one when q * n is whole.
        rank = max(int(np.ceil(q * len(values) * (1 - 1e-12))) - 1, 0)
        return float(np.partition(values, rank)[rank])
    order = np.argsort(values, kind="stable")
    order = order[weights[order] > 0]
    mass = np.cumsum(weights[order])
    rank = int(np.searchsorted(mass, q * mass[-1] * (1 - 1e-12)))
    return float(values[order[min(rank, len(order) - 1)]])


def mad(residuals: np.ndarray, weights: np.ndarray | None = None) -> float:
    r"""Standard deviation of the bulk of the residuals: the median of :math:`|r_i|` over 0.6745.

    The constant makes it the standard deviation for normal residuals. Residuals are taken about zero, since a
    regression has removed the center already. Should more than half of them vanish, the mean of :math:`|r_i|`,
    scaled likewise, stands in.

    >>> round(mad(np.array([-0.6745, 0.6745, 0.6745, 0.1, 1e6])), 3)
    1.0
    """
    size = np.abs(residuals)
    middle = weighted_quantile(size, 0.5, weights)
    return middle / 0.6744897501960817 if middle > 0 else float(np.average(size, weights=weights)) / 0.7978845608028654


def one_of(value: object, name: str, options: Iterable[object]) -> None:
    """Raises unless `value` is among `options`.

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
    """Raises unless `value` is a real number above zero (or zero, where that is allowed).

    >>> positive(-1.0, "lam")
    Traceback (most recent call last):
    ...
    ValueError: lam == -1.0, must be > 0.
    """
    check_scalar(value, name, Real, min_val=0, include_boundaries="left" if zero else "neither")
    if np.isnan(value):
        raise ValueError(f"{name} == {value}, must be {'>=' if zero else '>'} 0.")


def count(value: Any, name: str, least: int = 1) -> None:
    """Raises unless `value` is a whole number of at least `least`.

    >>> count(0, "n_clusters")
    Traceback (most recent call last):
    ...
    ValueError: n_clusters == 0, must be >= 1.
    """
    check_scalar(value, name, Integral, min_val=least)


def share(value: Any, name: str) -> None:
    """Raises unless `value` is a share of the samples below one half.

    >>> share(0.7, "contamination")
    Traceback (most recent call last):
    ...
    ValueError: contamination == 0.7, must be < 0.5.
    """
    check_scalar(value, name, Real, min_val=0, max_val=0.5, include_boundaries="left")


def weights(sample_weight: Any, X: Any) -> np.ndarray:
    """One non-negative weight per sample; ones where none are given."""
    size = X.shape[0]
    if sample_weight is None or isinstance(sample_weight, Real):
        sample_weight = np.full(size, 1.0 if sample_weight is None else float(sample_weight))
    found = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if found.shape != (size,):
        raise ValueError(f"sample_weight.shape == {found.shape}, expected {(size,)}: one weight per sample.")
    check_non_negative(found, "`sample_weight`")
    if not found.any():
        raise ValueError("Sample weights must contain at least one non-zero number.")
    return found


# Okabe and Ito's palette, darkest pairs first; outliers are drawn as crosses, so color is never the only sign.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C7A00", "#555555")
OUTLIER = "#B00020"


def axes(ax: Any, title: str, *, size: tuple[float, float] = (5.2, 4.2), depth: bool = False) -> Any:
    """The axes to draw on: those given, or new ones. `depth` asks for three dimensions."""
    if ax is None:
        plt = require("matplotlib.pyplot", "drawing", "plots")

        options = {"projection": "3d"} if depth else {}
        _, ax = plt.subplots(figsize=size, layout="constrained", subplot_kw=options)
    ax.set_title(title, fontsize=10, loc="left")
    if not depth:
        ax.spines[["top", "right"]].set_visible(False)
    return ax


def color(k: int) -> str:
    """The color of the k-th class or cluster.

    >>> color(0) == color(len(COLORS))
    True
    """
    return COLORS[k % len(COLORS)]


def flat(X: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """Two columns to draw: the features themselves, or the plane of greatest variance of `X`, for all arrays alike.

    >>> X = np.zeros((5, 3)); X[:, 2] = range(5)
    >>> plane, = flat(X)
    >>> plane.shape, round(float(np.ptp(plane[:, 0])), 6)
    ((5, 2), 4.0)
    """
    if X.shape[1] == 1:
        return [np.column_stack([A, np.zeros(len(A))]) for A in (X, *others)]
    if X.shape[1] == 2:
        return [X, *others]
    center = X.mean(axis=0)
    plane = np.linalg.svd(X - center, full_matrices=False)[2][:2]
    return [(A - center) @ plane.T for A in (X, *others)]


def arrows(ax: Any, start: np.ndarray, step: np.ndarray, *, color: str = OUTLIER, label: str | None = None) -> None:
    """One arrow per row from `start` along `step`; nothing for no rows."""
    if len(start):
        ax.quiver(*start.T, *step.T, angles="xy", scale_units="xy", scale=1, width=0.003, color=color, alpha=0.55,
                  label=label, zorder=1)  # fmt: skip


def crosses(ax: Any, points: np.ndarray, label: str) -> None:
    """Samples that were compensated, as crosses."""
    if len(points):
        ax.scatter(*points.T, marker="x", s=26, linewidths=1.2, color=OUTLIER, label=label, zorder=3)


def key(ax: Any) -> None:
    """A legend, if anything has a name."""
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize=8, frameon=False, loc="best")
