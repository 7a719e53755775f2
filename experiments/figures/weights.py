"""The weight of a sample under each method as a function of its loss: compensation and weighting."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from compensate.core.batch import Batch
from compensate.methods import METHODS
from compensate.methods.registry import Method
from experiments.figures.request import Request

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLASSES, SAMPLES, VISITS = 10, 61, 150
"""Of the batch: ten classes as in digits; losses from 0.03 to 6; visits until tables have come to rest."""

LATE = 40
"""Visits at the end over which weights are averaged: some tables go back and forth."""

REFERENCES = {"gce": "#0072B2", "focal": "#D55E00", "spl": "#777777"}
"""Weights that stand behind every method, and their colors."""

SELF_PACED = 3.0
"""The loss from which on self-paced learning drops a sample in the figure."""

Curve = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def effective_weight(s: Batch) -> tuple[Tensor, Tensor]:
    r"""(B,) how much each sample counts under compensation, and (B,) how far it still pulls the same way.

    .. math:: w_i = \frac{\|g'_i\|}{\|g_i\|}, \qquad c_i = \frac{\langle g'_i, g_i \rangle}{\|g'_i\| \|g_i\|}, \qquad
              g_i = \frac{\partial l_i}{\partial u_i}, \quad g'_i = \frac{\partial l'_i}{\partial u_i}

    A weight on the loss has :math:`c_i = 1` for every sample; where :math:`c_i` is smaller, compensation is more than a weight. A sample
    without a gradient counts 0 and pulls the same way.

    Args:
        s: of a batch whose logits have gradients, before the backward pass.

    >>> from compensate.methods import gce
    >>> u = torch.tensor([[2.0, 0.0], [0.0, 2.0]], requires_grad=True)
    >>> weight, cosine = effective_weight(gce(q=0.7).evaluate(torch.nn.Identity(), u, torch.tensor([0, 0])))
    >>> weight, u.softmax(-1)[:, 0].detach() ** 0.7
    (tensor([0.9150, 0.2256]), tensor([0.9150, 0.2256]))
    """
    with torch.enable_grad():
        u = s.plain.detach().requires_grad_()
        (plain,) = torch.autograd.grad(s.criterion.losses_of(s, u).sum(), u)
    total = s.compensated.sum() if s.penalty is None else (s.compensated + s.penalty).sum()
    (ours,) = torch.autograd.grad(total, s.u, retain_graph=True)
    long, short = plain.norm(dim=-1), ours.norm(dim=-1)
    tiny = torch.finfo(long.dtype).tiny
    product = (long * short).clamp(min=tiny)
    cosine = torch.where(long * short > 0, (plain * ours).sum(-1) / product, 1.0)
    return short / long.clamp(min=tiny), cosine


def logits() -> tuple[Tensor, Tensor]:
    """Logits of samples that go from sure of their label to sure of one other class, and the labels."""
    t = torch.linspace(3.4, -3.0, SAMPLES, dtype=torch.float64)
    u = torch.full((SAMPLES, CLASSES), -4.0, dtype=torch.float64)
    u[:, 0], u[:, 1] = t, -t
    return u, torch.zeros(SAMPLES, dtype=torch.long)


def drawn_methods() -> list[Method]:
    """Methods for single samples that need only logits, labels, index and time."""
    simple = {"index", "epochs", "steps"}
    return [
        row
        for row in METHODS.values()
        if row.taxonomy.granularity in ("sample", "none") and row.needs <= simple and not row.extra_outputs
    ]


def curve(row: Method) -> Curve:
    """Loss, effective weight and cosine of each sample, after tables have seen these logits many times."""
    u, y = logits()
    torch.manual_seed(0)
    sizes = {"num_samples": SAMPLES, "num_classes": CLASSES, "class_counts": [10] * CLASSES}
    criterion = row.make(**sizes).double().start(VISITS)
    total = torch.zeros(SAMPLES, dtype=torch.float64)
    for visit in range(VISITS):
        leaf = u.clone().requires_grad_()
        s = criterion.evaluate(nn.Identity(), leaf, y, torch.arange(SAMPLES))
        if visit >= VISITS - LATE:
            weight, cosine = effective_weight(s)
            total += weight.detach()
        s.loss.backward()
        criterion.end_epoch()
    # Where nothing is left of a gradient, its direction means nothing.
    shown = torch.where(total / LATE > 1e-3, cosine.detach(), torch.nan)
    return s.plain_losses.numpy(), (total / LATE).numpy(), shown.numpy()


def self_paced(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weight of self-paced learning, hard: 1 below a loss, 0 above."""
    return (losses < SELF_PACED).astype(float)


def weights(request: Request) -> Figure:
    """One small picture for each method: its effective weight, where its gradient turns, and three weights for comparison."""
    from matplotlib.figure import Figure

    rows = drawn_methods()
    across = 5
    down = math.ceil((len(rows) + 1) / across)
    figure = Figure(figsize=(11, 1.75 * down + 0.3), layout="constrained")
    axes = figure.subplots(down, across, sharex=True, sharey=True).ravel()
    behind = {name: curve(METHODS[name]) for name in ("gce", "focal")}
    losses = behind["gce"][0]
    for ax, row in zip(axes, rows, strict=False):
        for name, (x, w, _) in behind.items():
            ax.plot(x, w, color=REFERENCES[name], linewidth=0.9, alpha=0.55)
        ax.plot(losses, self_paced(losses), color=REFERENCES["spl"], linewidth=0.9, alpha=0.55, drawstyle="steps-mid")
        x, w, c = curve(row)
        ax.plot(x, w, color="#000000", linewidth=1.7)
        ax.plot(x, c, color="#009E73", linewidth=1.2, linestyle=(0, (1, 1.2)))
        kind = "" if row.kind == "compensation" else f" ({row.kind})"
        ax.set_title(row.name.replace("_", "-") + kind, fontsize=9, loc="left")
        ax.set_ylim(-0.25, 1.6)
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
    for ax in axes[len(rows) :]:
        ax.axis("off")
    _key(axes[len(rows)])
    figure.supxlabel("loss of the sample", fontsize=10)
    figure.supylabel("effective weight", fontsize=10)
    return figure


def _key(ax: object) -> None:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    assert isinstance(ax, Axes)
    styles = [
        ("the method", {"color": "#000000", "linewidth": 1.7}),
        ("cosine with the plain gradient", {"color": "#009E73", "linestyle": (0, (1, 1.2)), "linewidth": 1.2}),
        ("GCE, q = 0.7", {"color": REFERENCES["gce"], "linewidth": 0.9}),
        ("focal, γ = 2", {"color": REFERENCES["focal"], "linewidth": 0.9}),
        (f"self-paced, λ = {SELF_PACED:g}", {"color": REFERENCES["spl"], "linewidth": 0.9}),
    ]
    lines = [Line2D([], [], label=label, **style) for label, style in styles]  # type: ignore[arg-type]
    ax.legend(handles=lines, loc="center", frameon=False, fontsize=8.5)
