"""Figures that are curves: validation accuracy over epochs, and self-paced learning."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from compensate.errors import InputError
from compensate.training.evaluation import predict
from experiments.archive import Archive, Record
from experiments.figures.request import Request
from experiments.tables import published

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPOCHS = 6
"""That the paper shows."""

COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKS = "os^Dvp*"
"""Colors that survive color blindness, and marks that say the same without color."""


def validation(request: Request) -> Figure:
    """The paper's Fig. 4: validation accuracy in the first epochs, base on the left, LogComp on the right."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    found = {method: _curves(request, method) for method in ("base", "logcomp")}
    shared = [noise for noise in found["base"] if noise in found["logcomp"]]
    if not shared:
        raise InputError(f"no noise has finished runs of both base and logcomp. {_how(request)}")
    figure = Figure(figsize=(7.8, 3.2), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for ax, (method, title) in zip(axes, (("base", "base"), ("logcomp", "LogComp")), strict=True):
        for noise, color, mark in zip(shared, COLORS, MARKS, strict=False):
            curves = np.array(found[method][noise])
            mean, spread = 100 * curves.mean(0), 100 * curves.std(0)
            epochs = np.arange(1, len(mean) + 1)
            ax.plot(epochs, mean, marker=mark, markersize=4.5, color=color, label=_noise_name(noise))
            ax.fill_between(epochs, mean - spread, mean + spread, color=color, alpha=0.12, linewidth=0)
        ax.set_title(title, fontsize=11)
        ax.set_xlabel("epoch")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(f"validation accuracy, %, {request.data}")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, names, loc="outside right center", frameon=False, fontsize=9, title="wrong labels", title_fontsize=9
    )
    return figure


def _noise_name(noise: str) -> str:
    return "none" if noise == "none" else f"{noise.partition(':')[0]} {100 * float(noise.partition(':')[2]):g} %"


def _how(request: Request) -> str:
    table = next((t.id for t in published().values() if t.dataset == request.data), None)
    if table is None:
        return f"The paper has no table of {request.data}; its data sets are cifar10, cifar100, imdb and sst2."
    return f"Train them first:  python -m experiments reproduce {table} --scale small --only base,logcomp"


def _curves(request: Request, method: str) -> dict[str, list[list[float]]]:
    """The curves of all seeds by noise, least first, from the stored runs of the paper's own model."""
    path = request.results / f"{request.data}-small.jsonl"
    records = [r for r in Archive(path) if r["config"]["method"] == method and "val_accuracy" in r["curves"]]
    if not records:
        raise InputError(f"{path} has no finished runs of {method}. {_how(request)}")
    # Runs with other hyper-parameters may be stored too: the chosen ones count, or else
    # the most frequent ones.
    kinds = [_kind(record) for record in records]
    chosen = request.results / f"{request.data}-small-chosen.json"
    hyper = json.loads(chosen.read_text(encoding="utf-8")).get(method, {}).get("chosen") if chosen.is_file() else None
    fits = [k for k in kinds if hyper is not None and json.loads(k)[1] == hyper]
    wanted = Counter(fits or kinds).most_common(1)[0][0]
    by: dict[str, dict[int, list[float]]] = {}
    for record, kind in zip(records, kinds, strict=True):
        if kind == wanted:
            curve = record["curves"]["val_accuracy"][:EPOCHS]
            by.setdefault(record["config"]["noise"], {})[record["config"]["seed"]] = curve
    return {noise: list(by[noise].values()) for noise in sorted(by, key=_place)}


def _place(noise: str) -> tuple[bool, str, float]:
    kind, _, rate = noise.partition(":")
    return kind != "none", kind, float(rate or 0)


def _kind(record: Record) -> str:
    config = record["config"]
    return json.dumps([config["model"], config.get("hyper", {})], sort_keys=True)


def self_paced_weights(_: Request) -> Figure:
    """The paper's Fig. 5: weights over the loss."""
    from matplotlib.figure import Figure

    from experiments.figures.plots import plot_self_paced_weights

    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    plot_self_paced_weights(ax=figure.subplots())
    return figure


def self_paced_ratio(request: Request) -> Figure:
    """The paper's Fig. 6: what compensation leaves of the losses of a data set, over those losses."""
    from matplotlib.figure import Figure

    result = request.train(request.config(method="base", noise="random:0.2", epochs=8))
    train = result.prepared.train
    u, y = predict(result.model, train), torch.from_numpy(train.target)
    tau = float(np.log(train.num_classes))
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    ax: Any = figure.subplots()
    largest = 2 * float(u.norm(dim=-1).max())
    for eta, color, mark, name in (
        (largest, COLORS[2], "o", f"η = 2 max‖u‖ = {largest:.0f}"),
        (largest / 10, COLORS[1], "^", f"η = {largest / 10:.1f}"),
    ):
        losses, left = _ratio(u, y, tau, eta)
        ax.plot(losses, left, linestyle="", marker=mark, markersize=3, alpha=0.6, color=color, label=name)
    ax.axvline(tau, color="#888888", linewidth=0.8, linestyle=":")
    ax.annotate("τ", (tau, 1.06), ha="center", va="bottom", annotation_clip=False)
    ax.set(xlabel="loss", ylabel="compensated loss : loss", ylim=(-0.03, 1.05))
    ax.legend(frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    return figure


def _ratio(u: torch.Tensor, y: torch.Tensor, tau: float, eta: float) -> tuple[torch.Tensor, torch.Tensor]:
    from compensate.methods import self_paced_logit

    s = self_paced_logit(num_classes=u.shape[1], tau=tau, eta=eta).evaluate(torch.nn.Identity(), u, y)
    losses = torch.nn.functional.cross_entropy(u, y, reduction="none")
    return losses, s.l.detach() / losses.clamp(min=1e-12)
