"""The page of results in a minute: what of the paper holds here, where its methods win and lose, and a picture of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from compensate.training.comparison import paired
from experiments.claims import CLAIMS, OURS, Answer
from experiments.comparing import Comparison, table_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAIN = ("table-1-cifar10", "table-8-imdb", "table-9-sst2")
"""Tables in which all methods are compared."""

Gap = tuple[float, ...]
"""Differences in points, seed by seed."""

_WORDS: dict[Answer, str] = {
    "holds": "with an interval over the seeds above zero (holds)",
    "level": "with an interval that includes zero (level)",
    "does not hold": "below zero (does not hold)",
    "not judged": "not judged (one seed, or rows that were not run)",
    "not run here": "not run",
}
_NAMED: tuple[Answer, ...] = ("holds", "does not hold")
"""Claims that the summary names; the others are in the table of claims."""


def summary(
    tables: Mapping[str, Comparison], people: Mapping[str, Mapping[int, float]], more: Sequence[str] = (), cost: tuple[int, float] | None = None
) -> list[str]:  # fmt: skip
    """A heading, a table of who wins, and a short list.

    Args:
        tables: the trained tables.
        people: test accuracy by seed of the methods that were trained on people's labels.
        more: lines for the list.
        cost: stored runs and hours.
    """
    by: dict[Answer, list[str]] = {answer: [] for answer in _WORDS}
    for claim in CLAIMS:
        by[claim.judge(tables).answer].append(f"{claim.says} ({claim.where})")
    counts = ", ".join(f"{len(claims)} {_WORDS[answer]}" for answer, claims in by.items() if claims)
    named = [f"- **{answer.capitalize()}**: {'; '.join(by[answer])}." for answer in _NAMED if by[answer]]
    lines = [*more, f"- **The paper's claims**: of {len(CLAIMS)}, {counts}.", *named]
    lines += _peers(tables)
    if cost is not None:
        lines.append(
            f"- **Behind this page**: {cost[0]:,} stored runs, {cost[1]:.0f} hours of training on one thread each."
        )
    said = (
        "Test accuracy in points, mean over the columns of a table, and its 95 % interval over the seeds. MixComp is the paper's form here, compensated "
        "from the first step on. In bold where the interval excludes zero: **+** a win, **-** a loss; else the two are level. *The best tuned other method* "
        "is the one with the highest mean in these same runs, a choice in hindsight that favors it."
    )
    picture = "![Mean rank of each method over the columns of a table: here, and in the paper.](img/ranks.png)"
    return ["## In a minute", said, _wins(tables, people), "\n".join(lines), picture]


def _wins(tables: Mapping[str, Comparison], people: Mapping[str, Mapping[int, float]]) -> str:
    """A line for each comparison, a column for each data set."""
    present = [tables[i] for i in MAIN if i in tables]
    rows = [["", *(found.table.dataset for found in present), *(["people's labels (AG-News)"] if people else [])]]
    for row in OURS:
        for noisy, words in ((True, "with wrong labels"), (False, "no noise added")):
            cells = [_marked(_together(found, row, "base", noisy)) for found in present]
            if people:
                cells.append(_marked(_of_people(people, row, "base")) if noisy else "")
            rows.append([f"{row} minus plain training, {words}", *cells])
        cells = []
        for found in present:
            rival = _rival(found)
            cells.append("" if rival is None else f"{_marked(_together(found, row, rival, None))} {rival}")
        if people:
            best = max(
                (m for m in people if m not in (*OURS, "base")), key=lambda m: float(np.mean(list(people[m].values())))
            )
            cells.append(f"{_marked(_of_people(people, row, best))} {best.replace('_', '-')}")
        rows.append([f"{row} minus the best tuned other method", *cells])
    return table_lines(rows)


def _marked(each: Gap) -> str:
    if len(each) < 2:
        return ""
    gap, low, high = paired(each)
    mark = "**" if low > 0 or high < 0 else ""
    return f"{mark}{gap:+.1f}{mark} ({low:+.1f} to {high:+.1f})"


def _together(found: Comparison, row: str, other: str, noisy: bool | None) -> Gap:
    """Differences of two rows seed by seed, the mean over the full columns with or without noise (all if None)."""
    columns = [c for c in found.full_columns if noisy in (None, found.table.column_name(c) != "0 %")]
    gaps = [
        [x - y for x, y in zip(found.ours[row, c].each, found.ours[other, c].each, strict=True)]
        for c in columns
        if (other, c) in found.ours
    ]
    return tuple(np.mean(gaps, axis=0).tolist()) if gaps else ()


def _tuned(found: Comparison) -> list[str]:
    """The other methods whose hyper-parameters were chosen."""
    return [r for r in found.rows if r not in (*OURS, "base") and "-default" not in r and not r.startswith("mixcomp")]


def _complete(found: Comparison, row: str) -> bool:
    """Whether a method was run in all full columns, with as many seeds as the others."""
    return all(
        (row, c) in found.ours and len(found.ours[row, c].each) == len(found.ours["base", c].each)
        for c in found.full_columns
    )


def _rival(found: Comparison) -> str | None:
    """The tuned other method with the highest mean, of those that were run in all columns."""
    columns = found.full_columns
    others = [r for r in _tuned(found) if columns and _complete(found, r)]
    return max(others, key=lambda r: float(np.mean([found.ours[r, c].mean for c in columns])), default=None)


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
        parts.append(f"{found.table.dataset}, {columns}: {names}{left_out}")
    trials = {found.trials[r] for found in present for r in (*OURS, *_tuned(found)) if r in found.trials}
    if not trials:
        return []
    count = " or ".join(map(str, sorted(trials)))
    return [
        f"- **The other methods**, each tuned with {count} trials as LogComp and MixComp were; columns are those in which all of the paper's rows were run, "
        f"methods in italics are not in the paper. {'; '.join(parts)}."
    ]


def _of_people(people: Mapping[str, Mapping[int, float]], row: str, other: str) -> Gap:
    shared = sorted(people[row].keys() & people[other].keys())
    return tuple(people[row][s] - people[other][s] for s in shared)


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
    """Mean ranks of each row over the full columns: the paper's and ours."""
    theirs, ours = ([found.ranks(c, paper=paper) for c in found.full_columns] for paper in (True, False))
    rows = found.table.rows if ours else ()
    return {r: (float(np.mean([t[r] for t in theirs])), float(np.mean([o[r] for o in ours]))) for r in rows}
