"""Comparison of our figures with the paper's: means, differences, ranks, and output files."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from compensate.errors import InputError
from compensate.files import make_folder, write_atomically
from experiments.archive import Archive, Record
from experiments.protocols import Cell
from experiments.tables import Published

SEEDS = 3
"""Of a cell that is complete; cells with fewer say how many they have."""


@dataclass(frozen=True)
class Value:
    """A cell: mean and deviation over the seeds, in percent; how many seeds; each of them."""

    mean: float
    std: float
    each: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Value:
        """Of accuracies between 0 and 1."""
        percent = [100 * v for v in values]
        std = float(np.std(percent, ddof=1)) if len(percent) > 1 else math.nan
        return cls(float(np.mean(percent)), std, tuple(percent))

    def __str__(self) -> str:
        return f"{self.mean:.1f}" + ("" if math.isnan(self.std) else f" ± {self.std:.1f}")


@dataclass(frozen=True)
class Comparison:
    """A table as it was trained here.

    Attributes:
        table: the paper's.
        columns: numbers of the paper's columns that were run.
        ours: test accuracy after the last epoch, by row and column.
        best: after the epoch with the best accuracy on noisy validation labels.
        fitted: the share of the wrong training labels that the model predicts at the end.
        epochs: the best epoch.
        seconds: of a run.
        hyper: hyper-parameters by row.
        models: the network that was trained, by column.
        trials: how many settings a row's hyper-parameters were chosen from; nothing for rows without a choice.
    """

    table: Published
    columns: tuple[int, ...]
    ours: Mapping[tuple[str, int], Value]
    best: Mapping[tuple[str, int], Value]
    fitted: Mapping[tuple[str, int], Value]
    epochs: Mapping[tuple[str, int], Value]
    seconds: Mapping[tuple[str, int], Value]
    hyper: Mapping[str, Mapping[str, Any]]
    models: Mapping[int, str] = field(default_factory=dict)
    trials: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, table: Published, cells: Sequence[Cell], archive: Archive, trials: Mapping[str, int] | None = None
    ) -> Comparison:
        """Of the cells that are finished: a cell counts once its first seed is, a column once plain training is, where a table has it.

        Tables share runs, and a run of one would else begin a column of another. Seeds after one that is missing do not count: rows are
        compared seed by seed.
        """
        found: dict[tuple[str, int], list[Record]] = {}
        hyper: dict[str, Mapping[str, Any]] = {}
        ended: set[tuple[str, int]] = set()
        for cell in sorted(cells, key=lambda cell: cell.seed):
            hyper[cell.row] = cell.config.hyper
            record = archive.get(cell.config.id)
            if record is None:
                ended.add((cell.row, cell.column))
            elif (cell.row, cell.column) not in ended:
                found.setdefault((cell.row, cell.column), []).append(record)
                if cell.attacked and "adversarial" in record:
                    for radius in record["adversarial"]:
                        found.setdefault((f"mixcomp-adversarial at {radius}", cell.column), []).append(record)
        if any(row == "base" for row, _ in found):
            found = {(row, column): records for (row, column), records in found.items() if ("base", column) in found}
        of: dict[str, Callable[[Record], Any]] = {
            "ours": lambda r: r["last"]["test_accuracy"],
            "best": lambda r: r["best"]["test_accuracy"],
            "fitted": lambda r: r["wrong_labels_fitted"],
            "epochs": lambda r: r["best"]["epoch"] / 100,
            "seconds": lambda r: r["seconds"] / 100,
        }
        tables: dict[str, dict[tuple[str, int], Value]] = {}
        for name, take in of.items():
            tables[name] = {}
            for (row, column), records in found.items():
                _, _, radius = row.partition(" at ")
                values = [r["adversarial"][radius] if radius and name in ("ours", "best") else take(r) for r in records]
                if all(v is not None for v in values):
                    tables[name][row, column] = Value.of(values)
        columns = tuple(sorted({column for _, column in found}))
        models = {cell.column: cell.config.model for cell in cells}
        return cls(table, columns, hyper=hyper, models=models, trials=trials or {}, **tables)

    @property
    def rows(self) -> list[str]:
        """Rows in the paper's order, those beyond the paper last."""
        present = list(dict.fromkeys(row for row, _ in self.ours))
        known = list(self.table.rows)
        return sorted(present, key=lambda row: (known.index(row) if row in known else len(known), present.index(row)))

    @property
    def own_rows(self) -> list[str]:
        """The rows of the paper's table that were run."""
        return [row for row in self.rows if row.partition(" at ")[0] in self.table.rows]

    @property
    def further_rows(self) -> list[str]:
        """Rows that the paper's table does not have."""
        return [row for row in self.rows if row not in self.own_rows]

    @property
    def full_columns(self) -> list[int]:
        """The columns in which all rows of the paper's table were run with as many seeds as any cell of the table."""
        rows = [row for row in self.table.rows if not row.endswith("-adversarial")]
        seeds = {key: len(value.each) for key, value in self.ours.items()}
        most = max(seeds.values(), default=0)
        return [c for c in self.columns if all(seeds.get((row, c), 0) == most for row in rows)]

    def head(self, column: int) -> str:
        """The head of a column; in a table of depths the network that was trained, and which of the paper's it stands for."""
        theirs = self.table.columns[column].get("model")
        if theirs is None:
            return self.table.column_name(column)
        ours, theirs = _network(self.models.get(column, theirs)), _network(theirs)
        return ours if ours == theirs or not any(self.table.rows.values()) else f"{ours} (paper: {theirs})"

    def paper(self, row: str, column: int) -> tuple[float, float] | None:
        """The paper's mean and deviation in percent."""
        cells = self.table.rows.get(row.partition(" at ")[0])
        return cells[column] if cells else None

    def ranks(self, column: int, *, paper: bool = False) -> dict[str, int]:
        """The place of each row in a column, 1 for the highest, among the paper's rows that were run."""
        rows = [r for r in self.rows if (r, column) in self.ours and r in self.table.rows]
        if paper and any(self.paper(r, column) is None for r in rows):
            return {}
        value = {r: self.table.rows[r][column][0] if paper else self.ours[r, column].mean for r in rows}
        return {r: 1 + sum(v > value[r] for v in value.values()) for r in rows}


def stored_choice(path: Path) -> dict[str, dict[str, Any]]:
    """Hyper-parameters that were chosen before, by method."""
    if not path.is_file():
        raise InputError(f"{path} is missing: no hyper-parameters were chosen yet. Train first, or add --defaults.")
    return {method: found["chosen"] for method, found in json.loads(path.read_text(encoding="utf-8")).items()}


def stored_trials(path: Path) -> dict[str, int]:
    """How many settings each method's hyper-parameters were chosen from, by the name of its row."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    return {method.replace("_", "-"): len(found["trials"]) for method, found in stored.items()}


def _network(name: str) -> str:
    """The usual spelling of a network.

    >>> _network("resnet14")
    'ResNet-14'
    """
    return name.replace("resnet", "ResNet-")


def seeds_said(value: Value) -> str:
    """How many seeds a cell has, if not all.

    >>> seeds_said(Value.of([0.5])), seeds_said(Value.of([0.5, 0.6])), seeds_said(Value.of([0.5, 0.6, 0.5]))
    (' (1 seed)', ' (2 seeds)', '')
    """
    count = len(value.each)
    return "" if count >= SEEDS else f" ({count} seed{'s' * (count > 1)})"


def lines(found: Comparison, rows: Sequence[str] | None = None) -> list[list[str]]:
    """Head and rows (all, if none are given): ours, the paper's, and the rank of both, column by column."""
    head = ["%", *map(found.head, found.columns)]
    body = []
    ranks = {c: (found.ranks(c), found.ranks(c, paper=True)) for c in found.columns}
    for row in found.rows if rows is None else rows:
        cells = []
        for c in found.columns:
            value, theirs = found.ours.get((row, c)), found.paper(row, c)
            text = "" if value is None else f"{value}{seeds_said(value)}"
            ranked = len(ranks[c][0]) > 1  # the only row of a table is the best of it, and that says nothing
            if value is not None and ranked and row in ranks[c][0]:
                text += f" [{ranks[c][0][row]}]"
            if theirs is not None:
                text += f" / {theirs[0]:.1f}" + (f" [{ranks[c][1][row]}]" if ranked and row in ranks[c][1] else "")
            cells.append(text)
        body.append([row, *cells])
    return [head, *body]


def further_lines(found: Comparison) -> list[list[str]]:
    """Head and rows of methods that are not in the paper's table: our figures, and their rank among the paper's rows."""
    body = []
    for row in found.further_rows:
        cells = []
        for c in found.columns:
            value = found.ours.get((row, c))
            higher = 0 if value is None else sum(found.ours[r, c].mean > value.mean for r in found.ranks(c))
            cells.append("" if value is None else f"{value}{seeds_said(value)} [{1 + higher}]")
        body.append([row, *cells])
    return [["%", *map(found.head, found.columns)], *body]


def shown(found: Comparison) -> Table:
    """The table for a terminal: ours / the paper's, each with its rank."""
    head, *body = lines(found)
    theirs = r" / the paper's \[rank]" if any(found.table.rows.values()) else ""
    table = Table(*head, box=None, pad_edge=False, caption=rf"ours \[rank]{theirs}; last epoch, clean test data")
    table.columns[0].no_wrap = True
    for row in body:
        table.add_row(*row)
    return table


def write(found: Comparison, path: Path) -> None:
    """The table as Markdown, CSV or LaTeX, by the ending of the name."""
    writers = {".md": markdown, ".csv": comma_separated, ".tex": latex}
    if path.suffix not in writers:
        raise InputError(f'{path} ends in "{path.suffix}"; expected .md, .csv or .tex.')
    make_folder(path.parent)
    write_atomically(path, writers[path.suffix](found).encode())


def markdown(found: Comparison) -> str:
    """A Markdown table."""
    return table_lines(lines(found)) + "\n"


def words(hyper: Mapping[str, Any], between: str = "=", digits: int = 6) -> str:
    """Hyper-parameters as text.

    >>> words({"pro": 45.0, "floor": "none"})
    'pro=45, floor=none'
    """
    number = f".{digits}g"
    return ", ".join(f"{k}{between}{v if isinstance(v, str) else format(v, number)}" for k, v in hyper.items())


def table_lines(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text, the head first, as a Markdown table."""
    head, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])


def comma_separated(found: Comparison) -> str:
    """One line for each cell: ours, the paper's, the difference, ranks, and how far wrong labels were learned."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ("row", "column", "seeds", "mean", "std", "paper_mean", "paper_std", "difference", "rank", "paper_rank")
    writer.writerow([*names, "best_mean", "wrong_labels_fitted", "seconds"])
    for row in found.rows:
        for c in found.columns:
            value = found.ours.get((row, c))
            if value is None:
                continue
            mean, std = found.paper(row, c) or (math.nan, math.nan)
            mine, theirs = found.ranks(c).get(row, ""), found.ranks(c, paper=True).get(row, "")
            fitted = found.fitted.get((row, c))
            figures = [value.mean, value.std, mean, std, value.mean - mean]
            writer.writerow(
                [
                    row, found.head(c), len(value.each), *(_number(v) for v in figures), mine, theirs,
                    _number(found.best[row, c].mean), "" if fitted is None else _number(fitted.mean),
                    _number(found.seconds[row, c].mean),
                ]
            )  # fmt: skip
    return text.getvalue()


def latex(found: Comparison) -> str:
    r"""A LaTeX table in the paper's form, our best of each column in bold."""
    best = {c: max((v.mean for (_, k), v in found.ours.items() if k == c), default=math.nan) for c in found.columns}
    out = [rf"\begin{{tabular}}{{l{'c' * len(found.columns)}}}", r"\hline"]
    out.append(" & ".join(["", *(_tex(found.head(c)) for c in found.columns)]) + r" \\ \hline")
    for row in found.rows:
        cells = []
        for c in found.columns:
            value = found.ours.get((row, c))
            text = "" if value is None else str(value).replace("±", r"$\pm$")
            cells.append(rf"\textbf{{{text}}}" if value is not None and value.mean == best[c] else text)
        out.append(" & ".join([_tex(row), *cells]) + r" \\")
    return "\n".join([*out, r"\hline", r"\end{tabular}"]) + "\n"


def _tex(text: str) -> str:
    return text.replace("%", r"\%").replace("_", r"\_")


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"
