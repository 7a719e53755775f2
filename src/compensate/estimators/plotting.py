"""What the `plot()` methods share: axes, colors that survive color blindness, and a flat view of many features."""

from __future__ import annotations

from typing import Any

import numpy as np

from compensate.extras import require

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
