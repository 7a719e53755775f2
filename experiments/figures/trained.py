"""Figures that a short training is behind: logit adjustment, suspect samples, the distribution of compensation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from compensate.core.batch import Batch
from compensate.core.tables import Sample
from compensate.data import gather, load
from compensate.errors import InputError
from compensate.terms import Strength
from compensate.training.config import Config
from compensate.training.evaluation import BATCH, Samples
from compensate.training.fitting import Result
from experiments.figures.request import Request

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS, COLUMNS = 3, 8
"""Of the sheet of samples."""

RIGHT, WRONG = "#0072B2", "#D55E00"

SEEDS = 3
"""Trainings with each strength, for the figure of the strength."""

STRENGTHS = (0.02, 0.05, 0.1, 0.25, 0.5)
"""Values of lambda; from 1 on nothing is compensated."""


def logit_adjustment(request: Request) -> Figure:
    """The paper's Fig. 2: the relative change of the loss of each class, head on the left."""
    from matplotlib.figure import Figure

    from experiments.figures.plots import plot_change_by_class

    # A larger draw of CIFAR: its tail needs more than a few samples.
    more = {"limit": 20000, "epochs": 6} if str(request.data).startswith("cifar") else {"epochs": 10}
    result = request.train(request.config(**{"method": "logit_adjustment", "imbalance": "exponential:50", **more}))
    change, counts = changes(result), result.prepared.train.class_counts
    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    ax = plot_change_by_class(change, counts.tolist(), ax=figure.subplots())
    ax.set_ylabel("(l′ − l) / l")
    order = np.argsort(-counts, kind="stable")
    if len(order) <= 20:
        ax.set_xticks(
            range(len(order)), [f"{result.prepared.train.classes[c]}\n{counts[c]}" for c in order], fontsize=7.5
        )
        ax.set_xlabel("class and its number of samples")
    return figure


def relative_change_by_class(states: Iterable[Batch]) -> torch.Tensor:
    r"""(C,) by how much compensation changes the loss of each class, relative to the loss without it.

    .. math:: \frac{\sum_{i: y_i = c} (l'_i - l_i)}{\sum_{i: y_i = c} l_i}

    where :math:`l_i` is the plain loss of a sample and :math:`l'_i` the compensated one. NaN for a class without a sample.

    Args:
        states: of batches, as `criterion.evaluate` returns them.

    >>> from compensate.methods import logit_adjustment
    >>> u, y = torch.zeros(2, 2), torch.tensor([0, 1])
    >>> relative_change_by_class([logit_adjustment(class_counts=[90, 10]).evaluate(torch.nn.Identity(), u, y)])
    tensor([-0.8480,  2.3219])

    Reference: Yao and Wu, Compensation Learning, 2021, Fig. 2.
    """
    before: torch.Tensor | None = None
    for s in states:
        if before is None:
            before, changed = (s.plain_losses.new_zeros(s.u.shape[-1]) for _ in range(2))
        kept = s.labels[s.valid]
        before.index_add_(0, kept, s.plain_losses[s.valid])
        changed.index_add_(0, kept, (s.compensated.detach() - s.plain_losses)[s.valid])
    if before is None:
        raise InputError("There is no batch to measure; pass at least one: [criterion.evaluate(model, x, y)].")
    return changed / before


def changes(result: Result) -> torch.Tensor:
    """(C,) the relative change of the loss of each class over the training samples, by the trained model."""

    @torch.no_grad()
    def states() -> Iterator[Batch]:
        train = result.prepared.train
        for rows in Samples.of(train).portions(BATCH):
            x, y, index = gather(train, rows)
            yield result.criterion.evaluate(result.model, x, y, index)

    result.model.eval()
    result.criterion.train()  # in evaluation a criterion compensates nothing; without gradients no row moves
    return relative_change_by_class(states())


def _logcomp(request: Request, noise: str) -> Config:
    return request.config(method="logcomp", noise=noise)


def mean_sizes(result: Result) -> NDArray[np.float32]:
    """(N,) the l1 norm of the logit compensation of each training sample, the mean over its visits."""
    record, index = result.criterion.record, torch.from_numpy(result.prepared.train.index)
    return _positive(None if record is None else record.mean("size")[index].numpy(), result)


def last_sizes(result: Result, empty: bool = False) -> NDArray[np.float32]:
    """(N,) the l1 norm of the logit compensation of each training sample, as the training left it; all zero only if `empty`."""
    index = torch.from_numpy(result.prepared.train.index)
    tables = [m for m in result.criterion.modules() if isinstance(m, Sample)]
    sizes = tables[0].gather(index).abs().sum(1).numpy() if tables else None
    return sizes if empty and sizes is not None else _positive(sizes, result)


def _positive(sizes: NDArray[np.float32] | None, result: Result) -> NDArray[np.float32]:
    if sizes is None or not (sizes > 0).any():
        raise InputError(
            f"{result.config.method} gave no sample a compensation of its logits that is on record; the figure is about "
            "logcomp: leave the method as it is, and train for more than one epoch."
        )
    return sizes


def samples(request: Request) -> Figure:
    """The paper's Fig. 3: a sheet of the images with the largest compensation, given and suggested label above each."""
    from matplotlib.figure import Figure

    config = _logcomp(request, "none")
    # Trained on small images or on features, shown as they are.
    whole = load(config.data, request.data_dir).train if request.given is None else request.given.train
    if getattr(whole.x, "ndim", 0) != 4:
        raise InputError(
            f"{config.data} has no images; for texts there is:  python -m experiments sentences {config.data}"
        )
    result = request.train(config)
    train = result.prepared.train
    sizes = mean_sizes(result)
    order = np.argsort(-sizes, kind="stable")[: ROWS * COLUMNS]
    record = result.criterion.record
    assert record is not None
    suggested = record.guess[torch.from_numpy(train.index[order])].tolist()
    place = {int(index): row for row, index in enumerate(whole.index)}
    long = max(map(len, train.classes)) > 3
    figure = Figure(figsize=(COLUMNS * 1.05, ROWS * (1.5 if long else 1.3) + 0.3), layout="constrained")
    for ax, row, guess in zip(figure.subplots(ROWS, COLUMNS).flat, order, suggested, strict=False):
        ax.imshow(_pixels(whole.x[place[int(train.index[row])]]), cmap="gray_r", vmin=0, vmax=1)
        given, other = train.classes[train.target[row]], train.classes[guess]
        ax.set_title(f"{given}\n→ {other}" if long else f"{given} → {other}", fontsize=8.5 if long else 10, pad=3)
        ax.set_xlabel(f"{sizes[row]:.1f}", fontsize=8, labelpad=2)
    for ax in figure.axes:
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    figure.suptitle("given → suggested; below, mean |v|", fontsize=10)
    return figure


def _pixels(image: NDArray[Any]) -> NDArray[Any]:
    shown = image.astype(np.float32) / 255 if image.dtype == np.uint8 else image
    return shown[0] if len(shown) == 1 else shown.transpose(1, 2, 0)


def distribution(request: Request) -> Figure:
    """The paper's Figs. A-1 and A-2: how large the compensation of the samples is; wrong labels apart, if they are known."""
    from matplotlib.figure import Figure

    result = request.train(_logcomp(request, "random:0.2"))
    sizes, wrong = last_sizes(result), result.prepared.wrong
    figure = Figure(figsize=(5.6, 3.4), layout="constrained")
    ax = figure.subplots()
    bins = np.linspace(0, float(sizes.max()) or 1.0, 41).tolist()
    parts = [(~wrong, RIGHT, "right labels", "")]
    parts += [(wrong, WRONG, "wrong labels", "//")] if wrong.any() else []
    for mask, color, name, hatch in parts:
        label = (
            f"{name}: {mask.sum():,}, median {np.median(sizes[mask]):.2f}" if wrong.any() else f"{mask.sum():,} samples"
        )
        ax.hist(sizes[mask], bins, color=color, alpha=0.6, label=label, hatch=hatch, edgecolor="white", linewidth=0.3)
    ax.set_yscale("log")
    ax.set(xlabel="|v|, after the last epoch", ylabel="samples")
    ax.set_title(f"{result.config.data}, {_noise_name(result.config.noise)}", fontsize=10)
    ax.legend(frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    return figure


def _noise_name(noise: str) -> str:
    kind, _, rate = noise.partition(":")
    return "original labels" if kind == "none" else f"{kind} noise, {100 * float(rate):g} %"


@dataclass(frozen=True)
class Strengths:
    """Effects of each strength of LogComp's penalty, over several seeds.

    Attributes:
        share: (S, L) samples that are compensated at the end, in percent, by seed and strength.
        gain: (S, L) test accuracy minus that of plain training with the same seed, in points.
        found: (S, L) average precision of finding the wrong labels; nothing without noise.
        epochs: (S, L, E) samples that were compensated in each epoch, in percent.
    """

    share: NDArray[np.float64]
    gain: NDArray[np.float64]
    found: NDArray[np.float64] | None
    epochs: NDArray[np.float64]


def strengths(request: Request, noise: str) -> Strengths:
    """Trains with each strength and seed under this noise."""
    first = int(request.options.get("seed", 0))
    share, gain, found, epochs = [], [], [], []
    for seed in range(first, first + SEEDS):
        asked = replace(request, options={**request.options, "noise": noise, "seed": seed})
        base = asked.train(asked.config(method="base")).last["test_accuracy"]
        runs = [asked.train(asked.config(method="logcomp", hyper={"lam": lam})) for lam in STRENGTHS]
        share.append([100 * float((last_sizes(r, empty=True) > 0).mean()) for r in runs])
        gain.append([100 * (r.last["test_accuracy"] - base) for r in runs])
        epochs.append([[100 * row["compensated"] for row in r.history] for r in runs])
        found.append([_found(r, r.prepared.wrong) for r in runs] if noise != "none" else [])
    return Strengths(
        np.array(share), np.array(gain), None if noise == "none" else np.array(found), np.array(epochs)
    )  # fmt: skip


def strength(request: Request) -> Figure:
    """Effects of LogComp's penalty: the number of compensated samples over time, accuracy, and the detection of errors."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    noisy = str(request.options.get("noise", "random:0.2"))
    clean_runs, noisy_runs = strengths(request, "none"), strengths(request, noisy)
    figure = Figure(figsize=(11.4, 3.1), layout="constrained")
    young, share, accuracy, found = figure.subplots(1, 4)
    for at, lam in enumerate(STRENGTHS):
        curve = clean_runs.epochs[:, at].mean(0)
        shade = colormaps["viridis"](at / len(STRENGTHS))
        young.plot(range(1, len(curve) + 1), curve, color=shade, label=f"λ = {lam:g}")
    for runs, color, name in ((clean_runs, RIGHT, "original labels"), (noisy_runs, WRONG, _noise_name(noisy))):
        _over_strengths(share, runs.share, color, name)
        _over_strengths(accuracy, runs.gain, color, name)
        if runs.found is not None:
            _over_strengths(found, runs.found, color, name)
    accuracy.axhline(0, color="gray", linewidth=0.8)
    young.set(xlabel="epoch", title="clean samples compensated, %")
    for ax, name in (
        (share, "compensated at the end, %"),
        (accuracy, "test accuracy minus base, points"),
        (found, "errors found: average precision"),
    ):
        ax.set(xscale="log", xlabel="λ", title=name)
        ax.set_xticks(STRENGTHS, [f"{v:g}" for v in STRENGTHS])
        ax.minorticks_off()
    for ax in figure.axes:
        ax.title.set_fontsize(10)
        ax.spines[["top", "right"]].set_visible(False)
    for ax, columns in ((young, 2), (share, 1)):
        ax.set_ylim(-5, 145)  # room for the legend above the curves
        ax.set_yticks(range(0, 101, 20))
        ax.legend(frameon=False, fontsize=8, ncols=columns, loc="upper right")
    return figure


def measured_strength(request: Request) -> Figure:
    """The strength of the method `robust` over the epochs, with the probabilities that it is measured by."""
    from matplotlib.figure import Figure

    noisy = str(request.options.get("noise", "random:0.3"))
    figure = Figure(figsize=(7.8, 2.9), layout="constrained")
    for ax, noise in zip(figure.subplots(1, 2, sharey=True), ("none", noisy), strict=True):
        asked = replace(request, options={**request.options, "noise": noise})
        measured = Strength.of(asked.train(asked.config(method="robust")).criterion)
        assert measured is not None
        curve = measured.curve().cpu().numpy()
        names = ("strength", "probability of trained labels", "probability of withheld labels")
        for values, name, color in zip(curve.T, names, ("black", WRONG, RIGHT), strict=True):
            ax.plot(range(1, len(values) + 1), values, color=color, marker=".", label=name)
        ax.set(xlabel="epoch", title="original labels" if noise == "none" else _noise_name(noise), ylim=(-0.03, 1.05))
        ax.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def _over_strengths(ax: Axes, values: NDArray[np.float64], color: str, name: str) -> None:
    """The mean over the seeds, with its deviation, at each strength."""
    spread = values.std(0, ddof=1)
    ax.errorbar(STRENGTHS, values.mean(0), spread, marker="o", markersize=4, capsize=3, color=color, label=name)


def _found(result: Result, wrong: NDArray[np.bool_]) -> float:
    """Average precision of the criterion's own ranking: the mean margin over the visits."""
    from sklearn.metrics import average_precision_score

    record = result.criterion.record
    assert record is not None
    return average_precision_score(wrong, -record.mean("margin")[torch.from_numpy(result.prepared.train.index)].numpy())
