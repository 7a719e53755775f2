"""The tree of the taxonomy, drawn from the table of methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compensate.core.criterion import GRANULARITIES, INFERENCES, TARGETS
from compensate.methods import METHODS
from compensate.methods.registry import Method
from experiments.figures.request import Request

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIGNS = {"positive": "+", "negative": "−", "mixed": "±", "none": " "}
COLORS = {"positive": "#0072B2", "negative": "#D55E00", "mixed": "#555555", "none": "#777777"}
SAID = {"positive": "lowers losses", "negative": "raises losses", "mixed": "goes both ways"}
MIXED, OTHER = "mixed targets", "for contrast"
COLUMNS = (0.0, 0.19, 0.4, 0.62, 0.84)
"""Where root, target, inference, granularity and method begin."""


@dataclass(frozen=True)
class Branch:
    """A branch of the tree and what grows on it.

    Attributes:
        name: its label.
        children: smaller branches, in their order.
        method: of a leaf.
    """

    name: str
    children: tuple[Branch, ...] = ()
    method: Method | None = None

    @property
    def leaves(self) -> int:
        """How many methods are on it; a branch without any takes the space of one."""
        return max(sum(child.leaves for child in self.children), 1)


def grown() -> Branch:
    """The tree: target, inference, granularity, method. Every method is one leaf.

    >>> [branch.name for branch in grown().children][:5]
    ['feature', 'logit', 'label', 'prediction', 'loss']
    """

    def target(row: Method) -> str:
        if row.kind != "compensation":
            return OTHER
        return MIXED if "+" in row.taxonomy.target else row.taxonomy.target

    rows = list(METHODS.values())
    branches = []
    for name in (*TARGETS, MIXED, OTHER):
        mine = [row for row in rows if target(row) == name]
        if name == OTHER:
            # Weights and plain cross entropy have no inference of their own to show: their kind is enough.
            kinds = dict.fromkeys(row.kind for row in mine)
            ways = [Branch(kind, _leaves([r for r in mine if r.kind == kind])) for kind in kinds]
        else:
            ways = [
                Branch(way, tuple(Branch(level, _leaves(those)) for level, those in _by(some, 3, GRANULARITIES)))
                for way, some in _by(mine, 2, INFERENCES)
            ]
        branches.append(Branch(name, tuple(ways)))
    return Branch("compensation\nlearning", tuple(branches))


def _by(rows: Sequence[Method], axis: int, order: Sequence[str]) -> list[tuple[str, list[Method]]]:
    """The methods by their place on an axis of the taxonomy, in the axis's order, joined places last."""
    places = sorted({row.taxonomy[axis] for row in rows}, key=lambda p: order.index(p) if p in order else len(order))
    return [(place, [row for row in rows if row.taxonomy[axis] == place]) for place in places]


def _leaves(rows: Sequence[Method]) -> tuple[Branch, ...]:
    return tuple(Branch(row.name.replace("_", "-"), method=row) for row in rows)


def taxonomy(_: Request) -> Figure:
    """The paper's Fig. 1, with the methods of this library as its leaves, on a printed page."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    root = grown()
    count = root.leaves
    figure = Figure(figsize=(7.4, 0.19 * count + 1.2))
    ax = figure.add_axes((0.02, 0.01, 0.96, 0.98))
    ax.set(xlim=(-0.01, 1.13), ylim=(count + 0.2, -3.2))
    ax.axis("off")
    _draw(ax, root, 0, 0.0)
    for x, name in zip(COLUMNS[1:], ("target", "inference", "granularity", "method, direction"), strict=True):
        ax.text(x, -1.1, name, fontsize=9, fontweight="bold", va="center")
    marks = [
        Line2D([], [], linestyle="", marker=f"${SIGNS[d]}$", color=COLORS[d], markersize=6, label=f"{d}: {SAID[d]}")
        for d in SAID
    ]
    ax.legend(handles=marks, loc="upper center", ncols=3, frameon=False, fontsize=8.5, bbox_to_anchor=(0.5, 1.005))
    return figure


def _draw(ax: Any, branch: Branch, depth: int, top: float) -> float:
    """Draws a branch whose leaves begin at `top`; returns its height on the page."""
    middle = top + (branch.leaves - 1) / 2
    x, below = COLUMNS[depth], top
    places = []
    for child in branch.children:
        column = 4 if child.method is not None else depth + 1
        places.append((_draw(ax, child, column, below), COLUMNS[column]))
        below += child.leaves
    if places:
        bend = min(column for _, column in places) - 0.022
        line = {"color": "#bbbbbb", "lw": 0.8, "zorder": 1}
        ax.plot([x + 0.02, bend], [middle, middle], **line)
        ax.plot([bend, bend], [min(places)[0], max(places)[0]], **line)
        for place, begin in places:
            ax.plot([bend, begin - 0.008], [place, place], **line)
    if branch.method is not None:
        direction = branch.method.taxonomy.direction if branch.method.kind == "compensation" else "none"
        ax.text(x, middle, SIGNS[direction], fontsize=8.5, va="center", color=COLORS[direction], fontweight="bold")
        ax.text(x + 0.022, middle, branch.name, fontsize=8, va="center", color=COLORS[direction])
        return middle
    weight, size = ("bold", 9.0) if depth <= 1 else ("normal", 8.5)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}
    ax.text(x, middle, branch.name, fontsize=size, fontweight=weight, va="center", bbox=box, zorder=2)
    return middle
