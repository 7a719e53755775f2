"""The page of results in a minute: what of the paper holds here, where its methods win and lose, and a picture of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from compensate.training.comparison import paired
from experiments.claims import CLAIMS, OURS, Answer
from experiments.comparing import Comparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAIN = ("table-1-cifar10", "table-8-imdb", "table-9-sst2")
"""Tables in which all methods are compared."""

_WORDS: dict[Answer, str] = {
    "holds": "**Holds** (the interval over the seeds excludes zero)",
    "level": "**Level** (the interval includes zero)",
    "does not hold": "**Does not hold**",
    "one seed": "**One seed only**, so nothing is said",
    "not run here": "**Not run here**",
}


def summary(tables: Mapping[str, Comparison], more: Sequence[str] = ()) -> list[str]:
    """A heading and a short list, `more` first."""
    by: dict[Answer, list[str]] = {answer: [] for answer in _WORDS}
    for claim in CLAIMS:
        by[claim.judge(tables).answer].append(f"{claim.says} ({claim.where})")
    lines = [f"- {_WORDS[answer]}: {'; '.join(claims)}." for answer, claims in by.items() if claims]
    lines += [f"- {line}" for line in map(_against_peers, (tables[i] for i in MAIN if i in tables)) if line]
    picture = "![Mean rank of each method over the columns of a table: here, and in the paper.](img/ranks.png)"
    return ["## In a minute", "\n".join([*more, *lines]), picture]


def _against_peers(found: Comparison) -> str:
    """LogComp and MixComp against the best tuned other method, columns together."""
    others = [r for r in found.rows if r not in (*OURS, "base") and "-default" not in r and not r.startswith("mixcomp")]
    said = []
    for row in OURS:
        shared = [r for r in others if all((r, c) in found.ours and (row, c) in found.ours for c in found.columns)]
        if not shared:
            continue
        mean = {r: np.mean([found.ours[r, c].mean for c in found.columns]) for r in shared}
        rival = max(mean, key=lambda r: mean[r])
        each = [
            [x - y for x, y in zip(found.ours[row, c].each, found.ours[rival, c].each, strict=False)]
            for c in found.columns
        ]
        seeds = min(map(len, each))
        gap, low, high = paired(list(np.mean([e[:seeds] for e in each], axis=0)))
        word = "above" if low > 0 else "below" if high < 0 else "level with"
        said.append(f"{row} is {word} the best tuned other method, {rival} ({gap:+.1f}, {low:+.1f} to {high:+.1f})")
    return f"{found.table.dataset}, all columns together: {'; '.join(said)}." if said else ""


def drawn(tables: Mapping[str, Comparison]) -> Figure:
    """A line for each method from its mean rank in the paper to its mean rank here."""
    from matplotlib.figure import Figure

    present = [tables[i] for i in MAIN if i in tables]
    figure = Figure(figsize=(3.4 * len(present) + 0.6, 3.6), layout="constrained")
    for ax, found in zip(np.atleast_1d(figure.subplots(1, len(present))), present, strict=True):
        ranks = dict(sorted(_ranks(found).items(), key=lambda item: item[1][1]))
        gap, last = len(ranks) / 18, -np.inf
        for row, (theirs, ours) in ranks.items():
            last = max(ours, last + gap)  # names of methods with nearly the same rank stand below each other
            color = {"logcomp": "#0072B2", "mixcomp": "#D55E00", "base": "black"}.get(row, "#999999")
            ax.plot([0, 1], [theirs, ours], marker="o", markersize=5, color=color, zorder=3 if row in OURS else 2)
            ax.annotate(row, (1.06, last), va="center", fontsize=8, color=color)
        ax.set_xlim(-0.15, 2.0)
        ax.set_xticks([0, 1], ["paper", "here"])
        ax.set_ylim(max(last, len(ranks)) + 0.4, 0.6)  # the best on top
        ax.set_title(found.table.dataset, fontsize=11)
        ax.spines[["top", "right", "bottom"]].set_visible(False)
    figure.axes[0].set_ylabel("mean rank over the columns (1 is best)")
    return figure


def _ranks(found: Comparison) -> dict[str, tuple[float, float]]:
    """Mean ranks of each row: the paper's and ours."""
    both = [(found.ranks(c, paper=True), found.ranks(c)) for c in found.columns]
    both = [(theirs, ours) for theirs, ours in both if theirs]
    rows = [r for r in found.rows if both and all(r in theirs and r in ours for theirs, ours in both)]
    return {r: (float(np.mean([t[r] for t, _ in both])), float(np.mean([o[r] for _, o in both]))) for r in rows}
