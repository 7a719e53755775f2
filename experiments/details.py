"""The details page of results: the paper's tables, each claim column by column, the choice of hyper-parameters, costs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from experiments.claims import CLAIMS
from experiments.comparing import Comparison, Value, table_lines, words
from experiments.cost import NOTE
from experiments.protocols import PROTOCOLS, Scale, choice_name
from experiments.report import table_section
from experiments.tables import published


def sections(tables: Mapping[str, Comparison], results: Path, scale: Scale = "small") -> list[str]:
    """Markdown parts; empty if nothing is stored."""
    if not tables:
        return []
    ours = [found for name, found in tables.items() if name not in published()]
    return [
        *(["## Additional tables", "In brackets the rank among the rows of the table."] if ours else []),
        *(part for found in ours for part in table_section(found, scale)),
        "## Claims, column by column",
        "Differences of means in points (95 % interval over the seeds).",
        _claims(tables),
        "## The paper's tables in detail",
        *(part for found in tables.values() for part in _table(found)),
        *_choices(results, tables.values(), scale),
        *_cost(results),
    ]


def _claims(tables: Mapping[str, Comparison]) -> str:
    rows = [["where", "claim", "here", "differences"]]
    for claim in CLAIMS:
        verdict = claim.judge(tables)
        rows.append([claim.where, claim.says, verdict.answer, verdict.figures])
    return table_lines(rows)


def _table(found: Comparison) -> list[str]:
    best = _with_values(found, "After the epoch with the best accuracy on noisy validation labels:", found.best, 1)
    title = "Share of the wrong training labels that the model predicts at the end (100: all memorized):"
    return [
        f"### {found.table.id} in detail",
        *best,
        *(_with_values(found, title, found.fitted, 0) if found.fitted else []),
    ]


def _with_values(found: Comparison, title: str, values: Mapping[tuple[str, int], Value], digits: int) -> list[str]:
    """The rows and columns of a table with another figure; only columns that have one."""
    columns = [c for c in found.columns if any((row, c) in values for row in found.rows)]
    rows = [
        [row, *(f"{v.mean:.{digits}f}" if (v := values.get((row, c))) else "" for c in columns)]
        for row in found.rows
        if " at " not in row
    ]
    return [title, table_lines([["%", *map(found.head, columns)], *rows])]


def _choices(results: Path, tables: Iterable[Comparison], scale: Scale) -> list[str]:
    rows = [["data", "method", "chosen of", "chosen", "noisy validation accuracy of each trial, %"]]
    for name in dict.fromkeys(choice_name(found.table, scale) for found in tables):
        path = results / f"{name}-chosen.json"
        for method, found in json.loads(path.read_text(encoding="utf-8")).items():
            trials = [f"{100 * t['validation']:.1f}" for t in found["trials"]]
            hyper = words(found["chosen"], " = ", 4)
            rows.append([name.removesuffix(f"-{scale}"), method, str(len(trials)), hyper, " ".join(trials)])
    said = (
        "Every method had the same number of trials (listed in `experiments/protocols.py`), at one noise level per data set "
        f"({', '.join(f'{d}: {p.tuned_at}' for d, p in PROTOCOLS[scale].items() if d != 'cifar100')}), "
        "on one seed that is not reported. They were judged by accuracy on held-out labels as noisy as the training labels, averaged over the last "
        "five epochs. The choice is used in all columns. Cross-entropy has no hyper-parameters."
    )
    return ["## How hyper-parameters were chosen", said, table_lines(rows)]


def _cost(results: Path) -> list[str]:
    path = results / "cost.json"
    if not path.is_file():
        return []
    stored = json.loads(path.read_text(encoding="utf-8"))
    rows = [["table", "runs", "search trials", "hours, one such core", "hours, one GPU"]]
    for row in stored["tables"]:
        hours = [f"{row['core_hours']:,.0f}", f"{row['gpu_hours']:,.0f}"]
        rows.append([row["table"], str(row["runs"]), str(row["trials"]), *hours])
    return ["## Cost of the paper's own protocol", NOTE, table_lines(rows)]
