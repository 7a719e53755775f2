"""The summary of the results page: which claims of the paper hold, where its methods win and lose, and a plot of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from compensate.training.comparison import paired
from experiments.claims import CLAIMS, OURS, Answer
from experiments.comparing import Comparison, table_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {"cifar10": "CIFAR-10", "imdb": "IMDB", "sst2": "SST-2"}
MAIN = ("table-1-cifar10", "table-8-imdb", "table-9-sst2")
"""Tables in which all methods are compared."""

Gap = tuple[float, ...]
"""Differences in points, seed by seed."""

Part = Literal["all", "noisy", "clean"]
"""The columns of a table to average over: all, only noisy ones, only clean ones."""

_WORDS: dict[Answer, str] = {
    "holds": "hold",
    "does not hold": "do not",
    "open": "are open",
    "not judged": "cannot be judged (one seed, or rows that were not run)",
    "not run here": "were not run",
}
_NAMED: tuple[Answer, ...] = ("holds", "does not hold")
"""Claims that the summary names; the others are in the table of claims."""


@dataclass(frozen=True)
class Trained:
    """Test accuracy of the methods on a data set.

    Attributes:
        name: the head of its column.
        last: after the last epoch, in percent, seed by seed: by part and method.
        best: after the epoch with the best accuracy on held-out labels, which are as noisy as the training labels.
    """

    name: str
    last: Mapping[Part, Mapping[str, Gap]]
    best: Mapping[Part, Mapping[str, Gap]]

    @classmethod
    def of(cls, found: Comparison) -> Trained:
        """The mean over the full columns of a table, of LogComp, MixComp, plain training, and every tuned method that was run in all of them."""
        rows = ["base", *OURS, *(r for r in _tuned(found) if _complete(found, r))]
        parts: dict[Part, list[int]] = {
            "all": found.full_columns,
            "noisy": [c for c in found.full_columns if found.table.column_name(c) != "0 %"],
            "clean": [c for c in found.full_columns if found.table.column_name(c) == "0 %"],
        }
        last, best = (
            {
                part: {r: tuple(np.mean([values[r, c].each for c in columns], axis=0).tolist()) for r in rows}
                for part, columns in parts.items()
                if columns
            }
            for values in (found.ours, found.best)
        )
        return cls(TITLES[found.table.dataset], last, best)

    @property
    def rival(self) -> str | None:
        """The tuned other method with the highest mean."""
        each = self.last.get("all", {})
        return max((r for r in each if r not in (*OURS, "base")), key=lambda r: float(np.mean(each[r])), default=None)


def minus(a: Mapping[str, Gap] | None, row: str, b: Mapping[str, Gap] | None, other: str) -> Gap:
    """Differences of two methods seed by seed; nothing where one was not run.

    >>> minus({"elr": (3.0, 4.0)}, "elr", {"base": (1.0, 1.0)}, "base"), minus({}, "elr", {"base": (1.0,)}, "base")
    ((2.0, 3.0), ())
    """
    if not a or not b or row not in a or other not in b:
        return ()
    return tuple(x - y for x, y in zip(a[row], b[other], strict=True))


def summary(
    tables: Mapping[str, Comparison], people: Sequence[Trained], more: Sequence[str] = (), cost: tuple[int, float] | None = None
) -> list[str]:  # fmt: skip
    """A heading, a table of who wins, and a short list.

    Args:
        tables: the trained tables.
        people: the trainings on human labels.
        more: lines for the list.
        cost: stored runs and hours.
    """
    by: dict[Answer, list[str]] = {answer: [] for answer in _WORDS}
    for claim in CLAIMS:
        by[claim.judge(tables).answer].append(f"{claim.says} ({claim.where})")
    counts = ", ".join(f"{len(claims)} {_WORDS[answer]}" for answer, claims in by.items() if claims)
    named = [f"- **{answer.capitalize()}**: {'; '.join(by[answer])}." for answer in _NAMED if by[answer]]
    columns = [*(Trained.of(tables[i]) for i in MAIN if i in tables), *people]
    lines = [
        *_stopped(columns),
        *more,
        f"- **The paper's claims**: of {len(CLAIMS)}, {counts} ([each claim](#claims-of-the-paper)).",
        *named,
    ]
    if cost is not None:
        lines.append(
            f"- **Cost of this page**: {cost[0]:,} stored runs, {cost[1]:.0f} hours of training on one thread."
        )
    intro = (
        "Differences of test accuracy in points: the mean over the columns of a table, with its 95 % interval over three seeds. Bold: the "
        "interval excludes zero, **+** is a win and **-** a loss; all other pairs are level. *Early stopping*: both methods at the epoch with the "
        "best accuracy on held-out labels, which are as noisy as the training labels; all other rows are after the last epoch. MixComp is the "
        "paper's form, which compensates from the first step. *The best tuned other method* has the highest mean in these same runs; choosing it "
        "in hindsight favors it."
    )
    picture = "![Mean rank of each method over the columns of a table: here, and in the paper.](img/ranks.png)"
    return ["## Summary", intro, _wins(columns), "\n".join(lines), _INTERVALS, *_peers(tables), picture]


_INTERVALS = (
    "**Intervals** cover the variation between seeds: initial weights and batch order; on AG-News also the held-out samples; on CIFAR-10 and IMDB "
    "also the training samples and the wrong labels. They do not cover the choice of test samples, which is the same for all seeds. There is no "
    "correction for multiple comparisons: about one interval in twenty excludes zero by chance."
)


def _wins(columns: Sequence[Trained]) -> str:
    """A line for each comparison, a column for each data set."""
    rows = [["", *(column.name for column in columns)]]
    early = (_marked(minus(c.best.get("noisy"), "base", c.last.get("noisy"), "base")) for c in columns)
    rows.append(["plain training with early stopping minus without, noisy labels", *early])
    for row in OURS:
        rows += [[f"{row} minus {other}", *cells] for other, cells in _compared(row, columns).items()]
    return table_lines(rows)


def _compared(row: str, columns: Sequence[Trained]) -> dict[str, list[str]]:
    """A method compared with plain training and with the best other method, a cell for each data set."""
    parts = {
        "plain training, noisy labels": [c.last.get("noisy") for c in columns],
        "plain training, noisy labels, both with early stopping": [c.best.get("noisy") for c in columns],
        "plain training, no added noise": [c.last.get("clean") for c in columns],
    }
    found = {other: [_marked(minus(each, row, each, "base")) for each in values] for other, values in parts.items()}
    rivals = [(c.last.get("all"), c.rival) for c in columns]
    found["the best tuned other method"] = [
        f"{_marked(minus(each, row, each, other))} {other.replace('_', '-')}" if other else "" for each, other in rivals
    ]
    return found


def _stopped(columns: Sequence[Trained]) -> list[str]:
    """Where our methods are ahead of plain training if both are stopped early, and where they are not."""
    ahead: dict[str, list[str]] = {"ahead": [], "level": [], "behind": []}
    for column in columns:
        best = column.best.get("noisy")
        for row in OURS:
            if len(each := minus(best, row, best, "base")) > 1:
                _, low, high = paired(each)
                ahead["ahead" if low > 0 else "behind" if high < 0 else "level"].append(f"{row} on {column.name}")
    if not any(ahead.values()):
        return []
    found = "; ".join(f"{word}: {', '.join(where)}" for word, where in ahead.items() if where)
    return [
        "- **Early stopping helps plain training too**, if some labels, noisy as they are, are held out. Under noise, with early stopping for both, "
        f"relative to plain training: {found}."
    ]


def _marked(each: Gap) -> str:
    if len(each) < 2:
        return ""
    gap, low, high = paired(each)
    mark = "**" if low > 0 or high < 0 else ""
    return f"{mark}{gap:+.1f}{mark} ({low:+.1f} to {high:+.1f})"


def _tuned(found: Comparison) -> list[str]:
    """The other methods whose hyper-parameters were chosen."""
    return [r for r in found.rows if r not in (*OURS, "base") and "-default" not in r and not r.startswith("mixcomp")]


def _complete(found: Comparison, row: str) -> bool:
    """Whether a method was run in all full columns, with as many seeds as the others."""
    return all(
        (row, c) in found.ours and len(found.ours[row, c].each) == len(found.ours["base", c].each)
        for c in found.full_columns
    )


def _peers(tables: Mapping[str, Comparison]) -> list[str]:
    """Which other methods the comparison has, with how many trials each, and which were left out of it."""
    present = [tables[i] for i in MAIN if i in tables]
    parts = []
    for found in present:
        complete = [r for r in _tuned(found) if _complete(found, r)]
        partly = [r for r in _tuned(found) if r not in complete]
        names = ", ".join(r if r in found.table.rows else f"*{r}*" for r in complete) or "none"
        left_out = f" (not counted, since not run in all of them with all seeds: {', '.join(partly)})" if partly else ""
        columns = f"{len(found.full_columns)} of {len(found.table.columns)} columns"
        parts.append(f"{TITLES[found.table.dataset]}, {columns}: {names}{left_out}")
    trials = {found.trials[r] for found in present for r in (*OURS, *_tuned(found)) if r in found.trials}
    if not trials:
        return []
    count = " or ".join(map(str, sorted(trials)))
    return [
        f"**The other methods** had {count} settings to choose from, as LogComp and MixComp had, on one seed that is not reported. Only columns "
        "in which all rows of the paper were run with three seeds count; methods in italics are not in the paper. "
        f"{'; '.join(parts)}."
    ]


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
        ax.set_title(TITLES[found.table.dataset], fontsize=11)
        ax.spines[["top", "right", "bottom"]].set_visible(False)
    figure.axes[0].set_ylabel("mean rank over the columns (1 is best)")
    return figure


def _ranks(found: Comparison) -> dict[str, tuple[float, float]]:
    """Mean ranks of each row over the full columns: the paper's and ours."""
    theirs, ours = ([found.ranks(c, paper=paper) for c in found.full_columns] for paper in (True, False))
    rows = found.table.rows if ours else ()
    return {r: (float(np.mean([t[r] for t in theirs])), float(np.mean([o[r] for o in ours]))) for r in rows}
