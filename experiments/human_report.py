"""Results on human label errors: a table, and a plot of the gain from correcting the audit's list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.comparing import table_lines
from experiments.human import CLEANED, FEATURES, REVIEWED, ROBUST, accuracies, gain
from experiments.summary import Part, Trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMES = {"encoder": "encoder (MiniLM)", "words": "words (TF-IDF)"}
PARTS: tuple[Part, ...] = ("all", "noisy")
"""All columns of human labels are noisy."""


def sections(results: Path) -> list[str]:
    """Parts of the page of results; empty if nothing is stored."""
    if not (results / "labels.json").is_file():
        return []
    picture = "![Accuracy by the number of labels that were corrected.](img/human-errors.png)"
    return ["## Human label errors", markdown(results, brief=True), picture]


def details(results: Path) -> list[str]:
    """The table with every row; empty if nothing is stored."""
    return ["## Human label errors, all rows", markdown(results)] if (results / "labels.json").is_file() else []


def trained_on_people(results: Path) -> list[Trained]:
    """Every method on the labels as given, by kind of features; empty if nothing is stored."""
    found = []
    for kind in FEATURES:
        last, best = (
            {m: tuple(each[s] for s in sorted(each)) for (m, labels), each in values.items() if labels == "given"}
            for values in (accuracies(results, kind), accuracies(results, kind, "best"))
        )
        found += (
            [Trained(f"human labels (AG-News, {kind})", dict.fromkeys(PARTS, last), dict.fromkeys(PARTS, best))]
            if last
            else []
        )
    return found


def in_a_line(results: Path) -> list[str]:
    """The gain from correcting the top of the audit's list, for the summary; empty if nothing is stored."""
    if not (results / "labels.json").is_file():
        return []
    values = accuracies(results, "encoder")
    mean = {key: float(np.mean(list(each.values()))) for key, each in values.items()}
    if not {("base", name) for name in ("given", "reviewed-1000", "chance-1000", "true")} <= mean.keys():
        return []
    robust = max(ROBUST[1:], key=lambda m: mean.get((m, "given"), 0.0))
    base = {name: mean["base", name] for name in ("given", "reviewed-1000", "chance-1000", "true")}
    return [
        f"- **Human labels** (NoisyAG-News, a fifth wrong): plain training reaches {base['given']:.1f} %, the best robust method ({robust}) "
        f"{mean[robust, 'given']:.1f} %, plain training with the audit's top 1,000 of 10,000 labels corrected "
        f"{base['reviewed-1000']:.1f} % (1,000 random corrections: {base['chance-1000']:.1f} %), with all labels corrected {base['true']:.1f} %. "
        "Corrections use the true labels, as an error-free reviewer would."
    ]


def markdown(results: Path, brief: bool = False) -> str:
    """The whole section; `brief` omits LogComp on corrected labels."""
    stored = json.loads((results / "labels.json").read_text(encoding="utf-8"))
    values = {kind: accuracies(results, kind) for kind in FEATURES}
    audit = stored["audit"]
    intro = (
        f"`python -m experiments human`: NoisyAG-News, 10,000 training texts with human labels ({100 * audit['true']:.1f} % wrong), 7,600 "
        "test texts with true labels; a network of one hidden layer on fixed features, 12 epochs. Test accuracy after the last "
        "epoch in percent, and the gain over plain training on the given labels (95 % interval over seeds). Every method had five trials, "
        "judged on held-out given labels (`results/human`); plain training has no hyper-parameters. A tenth of the training texts is held out. "
        f"The audit estimates the share of wrong labels at {100 * audit['share']:.1f} %, far too low, and flags {audit['flagged']:,} labels. "
        "Corrections use the true labels, as an error-free reviewer would. There is one audit and one random draw: the intervals cover "
        "seeds of the training only. Constants of the audit were chosen on several data sets, including this one ([detection](detection.md))."
    )
    rows = [["training, labels", *(f"{_NAMES[kind]} | gain" for kind in FEATURES)]]
    for method in ROBUST:
        rows.append([f"{method}, as given", *(_cells(values[kind], method, "given") for kind in FEATURES)])
    for name, says in stored["says"].items():
        for method in () if name == "given" else CLEANED[:1] if brief else CLEANED:
            if not any((method, name) in values[kind] for kind in FEATURES):
                continue
            wrong = 100 * stored["labels"][name]["wrong"]
            rows.append(
                [f"{method}, {says} ({wrong:.1f} % wrong)", *(_cells(values[k], method, name) for k in FEATURES)]
            )
    more = (
        [f"{CLEANED[1]} on corrected labels: [all rows](results-details.md#human-label-errors-all-rows)."]
        if brief
        else []
    )
    return "\n\n".join([intro, _lines(rows), *_conclusions(values), *more])


def _lines(rows: list[list[str]]) -> str:
    return table_lines([[part for cell in row for part in cell.split(" | ")] for row in rows])


def _cells(values: Any, method: str, name: str) -> str:
    each, base = values.get((method, name)), values.get(("base", "given"))
    if not each:
        return " | "
    numbers = list(each.values())
    spread = f" ± {np.std(numbers, ddof=1):.1f}" if len(numbers) > 1 else " (1 seed)"
    difference = (
        ""
        if (method, name) == ("base", "given") or not base
        else "{:+.1f} ({:+.1f} to {:+.1f})".format(*gain(each, base))
    )
    return f"{np.mean(numbers):.1f}{spread} | {difference}"


def _conclusions(values: Any) -> list[str]:
    """Methods whose interval over seeds excludes zero."""
    found = []
    for kind in FEATURES:
        base = values[kind].get(("base", "given"))
        robust = {m: values[kind][m, "given"] for m in ROBUST[1:] if (m, "given") in values[kind]}
        if not base or not robust:
            continue
        gains = {m: gain(v, base) for m, v in robust.items()}
        better = [m for m, g in gains.items() if g[1] > 0]
        worse = [m for m, g in gains.items() if g[2] < 0]
        best = max(gains, key=lambda m: gains[m][0])
        found.append(
            f"**{_NAMES[kind]}.** Above plain training: {', '.join(better) or 'none'}; below: {', '.join(worse) or 'none'}; the others are level. "
            f"The largest gain of robust training is {gains[best][0]:+.1f} ({best})."
        )
    return found


def drawn(results: Path) -> Figure:
    """Accuracy by the number of labels that were corrected: from the top of the audit's list, and at random."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.8, 3.2), layout="constrained")
    for ax, kind in zip(figure.subplots(1, 2, sharey=True), FEATURES, strict=True):
        values = accuracies(results, kind)
        for order, mark, color, says in (
            ("reviewed", "o", "#0072B2", "top of the audit's list"),
            ("chance", "s", "#777777", "at random"),
        ):
            names = ["given", *(f"{order}-{count}" for count in REVIEWED)]
            each = [list(values.get(("base", name), {}).values()) or [np.nan] for name in names]
            counts, spread = [0, *REVIEWED], [np.std(v) for v in each]
            ax.errorbar(counts, [np.mean(v) for v in each], spread, marker=mark, color=color, capsize=3, label=says)
        robust = {m: np.mean(list(values[m, "given"].values())) for m in ROBUST[1:] if (m, "given") in values}
        if robust:
            best = max(robust, key=lambda m: robust[m])
            ax.axhline(
                robust[best], color="#D55E00", linestyle="--", label=f"none corrected, best robust method ({best})"
            )
        if ("base", "true") in values:
            ax.axhline(
                np.mean(list(values["base", "true"].values())), color="black", linestyle=":", label="all labels true"
            )
        ax.set_title(_NAMES[kind], fontsize=11)
        ax.set_xlabel("labels corrected, of 10,000")
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, fontsize=8, loc="lower right")
    figure.axes[0].set_ylabel("test accuracy, %")
    return figure
