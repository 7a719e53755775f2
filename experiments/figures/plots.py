"""Plots of losses and weights under compensation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from compensate.errors import InputError
from compensate.extras import require
from compensate.methods.weighting import self_paced_logit, self_paced_weights

RAISED, LOWERED = "#D55E00", "#0072B2"
"""Two colors that are safe for color blindness; the sign of a bar shows the same."""


def _axes(ax: Any, size: tuple[float, float]) -> Any:
    if ax is None:
        _, ax = require("matplotlib.pyplot", "drawing", "plots").subplots(figsize=size, layout="constrained")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def plot_change_by_class(change: Tensor, class_counts: Sequence[int] | Tensor | None = None, *, ax: Any = None) -> Any:
    """Bars of the relative change of the loss of each class, the largest class on the left: the paper's Fig. 2.

    Args:
        change: (C,) from :func:`experiments.figures.trained.relative_change_by_class`.
        class_counts: (C,) training samples of each class, for the order of the bars; without it, by class number.
        ax: matplotlib axes to draw on; new ones if not given.

    Returns:
        The axes.
    """
    change = change.detach().cpu()
    order = torch.arange(len(change))
    if class_counts is not None:
        counts = torch.as_tensor(class_counts)
        if counts.shape != change.shape:
            raise InputError(
                f"class_counts has shape {tuple(counts.shape)}; expected {tuple(change.shape)}, as the changes."
            )
        order = counts.argsort(descending=True, stable=True)
    ax = _axes(ax, (6.4, 3.2))
    heights = change[order].tolist()
    ax.bar(range(len(heights)), heights, color=[RAISED if height > 0 else LOWERED for height in heights])
    ax.axhline(0, color="black", linewidth=0.8)
    if len(order) <= 30:
        ax.set_xticks(range(len(order)), [str(c) for c in order.tolist()])
    ax.set_xlabel("class, largest first" if class_counts is not None else "class")
    ax.set_ylabel("relative change of the loss")
    return ax


def plot_self_paced(lam: float = 0.6, eta: float = 20.0, *, ax: Any = None) -> Any:
    """Weights of self-paced learning and the loss ratio of compensation over the loss: the paper's two figures in one.

    The dashed line is the ratio of compensated to plain loss under :func:`compensate.methods.self_paced_logit` for a sample of two
    classes.

    Args:
        lam: the threshold, below 1.
        eta: the step of the compensation.
        ax: matplotlib axes to draw on; new ones if not given.

    Returns:
        The axes.
    """
    ax = plot_self_paced_weights(lam, ax=ax)
    losses = torch.linspace(0.02, 1.5, 500)
    # Two logits, 0 for the other class: p = exp(-l) puts log(p / (1 - p)) on the given class.
    logits = torch.stack([-losses - torch.log(-torch.expm1(-losses)), torch.zeros_like(losses)], 1)
    criterion = self_paced_logit(num_classes=2, tau=lam, eta=eta)
    left = criterion.evaluate(torch.nn.Identity(), logits, torch.zeros(len(losses), dtype=torch.long)).l
    ax.plot(losses, left / losses, "k--", label="loss ratio of compensation")
    ax.set_ylabel("weight, or ratio of losses")
    ax.legend(frameon=False)
    return ax


def plot_self_paced_weights(lam: float = 0.6, *, ax: Any = None) -> Any:
    """Weights of self-paced learning over the loss, one line for each kind of :func:`compensate.methods.self_paced_weights`.

    Args:
        lam: the threshold, below 1.
        ax: matplotlib axes to draw on; new ones if not given.

    Returns:
        The axes.
    """
    ax = _axes(ax, (5.2, 3.6))
    losses = torch.linspace(0.02, 1.5, 500)
    styles = {"hard": "-", "linear": "--", "logarithmic": "-.", "mixture": (0, (4, 1, 1, 1, 1, 1))}
    for kind, style in styles.items():
        ax.plot(losses, self_paced_weights(losses, lam, kind), label=kind, linestyle=style)  # type: ignore[arg-type]
    ax.set_xlabel("loss")
    ax.set_ylabel("weight")
    ax.legend(frameon=False)
    return ax
