"""The whole taxonomy at a glance: which published methods sit in each cell, which cells run without a name, which cannot exist.

It is printed on a terminal of 80 columns, or written as one page that needs nothing but a browser.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from compensate.cli.methods import first_sentence
from compensate.core.criterion import DIRECTIONS, INFERENCES, TARGETS, Taxonomy
from compensate.files import write_atomically
from compensate.methods.composition import compose, why_not
from compensate.methods.registry import METHODS, Method

LEVELS = ("sample", "category", "corpus", "mixed")
SIGNS = {"positive": "+", "negative": "-", "mixed": "±"}

TRIAL_SIZES: dict[str, Any] = {
    "num_samples": 1_000, "num_classes": 10, "class_counts": [100] * 10, "feature_shape": (1, 8, 8), "num_edges": 3_000,
}  # fmt: skip
"""Of the criteria that the page shows."""

_NEEDED = {
    "sample": ["num_samples"],
    "category": ["num_classes", "class_counts"],
    "corpus": [],
    "mixed": ["num_samples", "num_classes", "class_counts"],
}


def cells() -> Iterator[Taxonomy]:
    """The whole grid: 8 targets, 3 directions, 6 ways of inference, 4 granularities."""
    for cell in product(TARGETS, DIRECTIONS, INFERENCES, LEVELS):
        yield Taxonomy(*cell)


def published(target: str, inference: str, granularity: str) -> list[Method]:
    """The methods in a cell, in any direction; joined names count as mixed."""

    def fits(have: str, wanted: str) -> bool:
        return wanted == "mixed" if "+" in have else have == wanted

    return [
        row
        for row in METHODS.values()
        if row.kind == "compensation"
        and target in row.taxonomy.target.split("+")
        and fits(row.taxonomy.inference, inference)
        and fits(row.taxonomy.granularity, granularity)
    ]


@dataclass(frozen=True)
class GridCell:
    """The description of a target, a way of inference and a level, in any direction.

    Attributes:
        target, inference, level: its place.
        methods: the published ones.
        reasons: by direction, why it makes no sense, or None if it runs.
    """

    target: str
    inference: str
    level: str
    methods: list[Method]
    reasons: dict[str, str | None]

    @property
    def runs(self) -> list[str]:
        """The directions in which it runs."""
        return [direction for direction, reason in self.reasons.items() if reason is None]

    def line(self, direction: str) -> str:
        """The Python that builds its criterion."""
        target, inference, level = self.target, self.inference, self.level
        words = f'target="{target}", direction="{direction}", inference="{inference}", granularity="{level}"'
        known = [f"{name}={_shown(TRIAL_SIZES[name])}" for name in self.sizes(direction)]
        return f"compose({', '.join([words, *known])})"

    def sizes(self, direction: str) -> list[str]:
        """The sizes that its criterion needs: those without which it cannot be made."""
        needed = dict.fromkeys(_NEEDED[self.level])
        needed |= dict.fromkeys(["num_classes", "feature_shape", "num_edges"])
        for name in [*needed]:
            rest = {key: TRIAL_SIZES[key] for key in needed if key != name}
            try:
                compose(**self.place(direction), **rest)
            except ValueError:
                continue
            if name != "num_samples" or self.level not in ("sample", "mixed"):
                needed.pop(name)
        return [name for name in TRIAL_SIZES if name in needed]

    def place(self, direction: str) -> dict[str, Any]:
        """The four words."""
        return Taxonomy(self.target, direction, self.inference, self.level)._asdict()


def _shown(size: Any) -> str:
    return "counts" if isinstance(size, list) else f"{size:_}" if isinstance(size, int) else str(size)


def grid_cells() -> Iterator[GridCell]:
    """The grid, target by target; directions share a cell."""
    for target, inference, level in product(TARGETS, INFERENCES, LEVELS):
        reasons = {way: why_not(Taxonomy(target, way, inference, level)) for way in DIRECTIONS}
        yield GridCell(target, inference, level, published(target, inference, level), reasons)


# --- on a terminal ------------------------------------------------------------------------------------------------


def print_grid(console: Console) -> None:
    """One small table for each target, and the names of its published methods below; nothing is wider than 80 columns."""
    reasons: dict[str, int] = {}
    cells = list(grid_cells())
    for target in TARGETS:
        mine = [cell for cell in cells if cell.target == target]
        console.print(f"[bold]{target:<14}[/bold]" + "".join(f"{level:<12}" for level in LEVELS).rstrip())
        for inference in INFERENCES:
            marks = [_mark(cell, reasons) for cell in mine if cell.inference == inference]
            console.print(f"  {inference:<12}" + "".join(f"{mark:<12}" for mark in marks).rstrip(), highlight=False)
        for cell in mine:
            if cell.methods:
                _print_methods(console, cell)
        console.print()
    for reason, number in reasons.items():
        console.print(f"no {number}: {reason}", highlight=False)
    console.print(
        "\n+ lowers losses   - raises them   ± both   runs: a criterion without a name\n"
        "compensate.compose(target=..., direction=..., inference=..., granularity=...)",
        highlight=False,
    )


def _mark(cell: GridCell, reasons: dict[str, int]) -> str:
    numbers = [reasons.setdefault(reason, len(reasons) + 1) for reason in cell.reasons.values() if reason is not None]
    ways = "".join(SIGNS[way] for way in cell.runs)
    if cell.methods:
        return f"{len(cell.methods)} method{'s' * (len(cell.methods) > 1)}"
    if not cell.runs:
        return f"no {numbers[0]}"
    return "runs" if not numbers else f"{ways}, no {numbers[0]}"


def _print_methods(console: Console, cell: GridCell) -> None:
    place = f"  {cell.inference} · {cell.level}: "
    names = [f"{row.name.replace('_', '-')} {SIGNS[row.taxonomy.direction]}" for row in cell.methods]
    line = place
    for k, name in enumerate(names):
        word = name + ("," if k < len(names) - 1 else "")
        if len(line) + len(word) > 78:
            console.print(line.rstrip(), highlight=False)
            line = " " * len(place)
        line += word + " "
    console.print(line.rstrip(), highlight=False)


# --- as a page ----------------------------------------------------------------------------------------------------


def write_grid_page(path: Path) -> int:
    """Writes the interactive page; returns the number of cells that run."""
    cells = [_content(cell) for cell in grid_cells()]
    template = Path(__file__).with_suffix(".html").read_text("utf-8")
    # In a script of a page "</" would end it.
    content = json.dumps({"cells": cells, "targets": _targets()}, ensure_ascii=False).replace("</", "<\\/")
    write_atomically(path, template.replace("/*CONTENT*/null", content).encode())
    return sum(way["reason"] is None for cell in cells for way in cell["ways"].values())


def _targets() -> list[dict[str, str]]:
    return [{"name": name, "what": _WHAT[name]} for name in TARGETS]


_WHAT = {
    "feature": "the input, x + Δx",
    "logit": "the logits, f(x) + Δu",
    "label": "the label, y + Δy",
    "prediction": "the prediction, S(u) + Δp",
    "loss": "the loss, l + Δl",
    "gradient": "its gradient, ∂l/∂u + Δg",
    "view": "the input, toward its views: x + Σ wₖ (Tₖ(x) − x)",
    "structure": "the edges of a graph, A + Δa",
}
"""What each target is added to."""


def _content(cell: GridCell) -> dict[str, Any]:
    return {
        "target": cell.target,
        "inference": cell.inference,
        "level": cell.level,
        "methods": [_method(row) for row in cell.methods],
        "ways": {
            way: {"reason": reason, **({} if reason else {"line": cell.line(way), "is": _printed(cell, way)})}
            for way, reason in cell.reasons.items()
        },
    }


def _printed(cell: GridCell, direction: str) -> str:
    """The criterion as it prints itself, without its size, which depends on the data."""
    return str(compose(**cell.place(direction), **TRIAL_SIZES)).rpartition(" · holds ")[0]


def _method(row: Method) -> dict[str, str]:
    return {
        "name": row.name,
        "sign": SIGNS[row.taxonomy.direction],
        "place": str(row.taxonomy),
        "summary": first_sentence(row),
        "equation": row.equation,
        "reference": row.reference,
    }
