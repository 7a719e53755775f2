"""The paper's tables on the page of results: ours beside the paper's, the claims, what the full protocol would cost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from experiments.archive import Archive
from experiments.claims import CLAIMS
from experiments.comparing import Comparison, Value, markdown, stored_choice, table_lines, words
from experiments.explained import explained
from experiments.protocols import PROTOCOLS, Scale, cells
from experiments.tables import Published, every, published

_SAID = {
    "cifar10": "5,000 training images averaged to 16 x 16 pixels, no augmentation, 4,000 test images, ResNet-8",
    "cifar100": "5,000 training images averaged to 16 x 16 pixels, no augmentation, 4,000 test images, ResNet-8",
    "sst2": "the 6,920 training sentences, BiLSTM with attention of 50 units, GloVe 100-d",
    "imdb": "2,000 reviews cut after 200 words, 2,000 test reviews, BiLSTM with attention of 32 units, GloVe 100-d",
}


def comparison(table: Published, results: Path, scale: Scale) -> Comparison | None:
    """A table as far as it is trained, all methods that were, or nothing."""
    archive = Archive(results / f"{table.dataset}-{scale}.jsonl")
    path = results / f"{table.dataset}-{scale}-chosen.json"
    if not len(archive) or not path.is_file():
        return None
    chosen = stored_choice(path)
    beyond = [m.replace("_", "-") for m in chosen if m.replace("_", "-") not in table.rows]
    extra = [*beyond, "mixcomp-warmup", *(f"{m}-default" for m in ("logcomp", "mixcomp", *beyond))]
    extra = [] if "eps2" in table.columns[0] else extra
    found = Comparison.of(table, cells(table, scale, chosen, 3, extra), archive)
    # The first column of a table of depths is a column of another table.
    fewest = 2 if "model" in table.columns[0] else 1
    return found if len(found.columns) >= fewest else None


def trained_tables(results: Path, scale: Scale = "small") -> dict[str, Comparison]:
    """All tables, as far as they are trained."""
    return {t.id: found for t in every().values() if (found := comparison(t, results, scale)) is not None}


def sections(results: Path, scale: Scale = "small") -> list[str]:
    """Markdown parts, one after another; nothing where nothing is stored."""
    tables = trained_tables(results, scale)
    if not tables:
        return []
    intro = (
        "Test accuracy on clean labels after the *last* epoch, in percent, mean ± deviation over the seeds: ours [its rank] / the "
        "paper's [its rank]. The two cannot be compared as numbers: ours are from small data and short training, made so that "
        "plain training learns nearly all wrong labels by heart. What can be compared is the order of the methods. Ranks "
        "are among the paper's methods. Methods the paper does not have are at the end; `-default` is a method with its "
        "own defaults instead of chosen hyper-parameters, `mixcomp-warmup` is MixComp as chosen whose bound grows from zero between a "
        "tenth and four tenths of the training: compensated from the first step on, a small BiLSTM learns slowly. "
        "The text noise flips the first samples of the corpus, as in the paper."
    )
    parts = ["## The paper's tables, small scale", intro]
    for found in tables.values():
        parts += _table(found, scale)
    parts += [
        "## What the paper claims",
        _claims(tables),
        *explained(tables),
        *_missing(tables, scale),
        *_choices(results, tables.values(), scale),
        *_cost(results),
    ]
    return parts


def _table(found: Comparison, scale: Scale) -> list[str]:
    table = found.table
    head = f"### {table.id}: {table.caption}"
    runs = sum(len(v.each) for v in found.ours.values())
    seconds = sum(v.mean * len(v.each) for v in found.seconds.values())
    said = (
        f"`python -m experiments reproduce {table.id} --scale {scale}`: {_said(table, scale)}; "
        f"{runs} figures from {seconds / 3600:.1f} hours of training on one core."
    )
    parts = [head, said, markdown(found).strip()]
    parts += _beside(found, "After the epoch with the best accuracy on noisy validation labels instead:", found.best, 1)
    if found.fitted:
        title = "Share of the wrong training labels that the model gives back at the end (100: all learned by heart):"
        parts += _beside(found, title, found.fitted, 0)
    return parts


def _said(table: Published, scale: Scale) -> str:
    said = _SAID[table.dataset]
    if "model" in table.columns[0]:  # the heads name the paper's networks
        nets = PROTOCOLS[scale][table.dataset].models
        said = said.replace(
            "ResNet-8", "; ".join(f"{m} is a {nets[m]} here" for m in (c["model"] for c in table.columns))
        )
    return said.replace("no augmentation", "crops and flips") if table.fixed.get("augment") == "crop-flip" else said


def _beside(found: Comparison, title: str, values: Mapping[tuple[str, int], Value], digits: int) -> list[str]:
    """The same rows and columns with another figure."""
    rows = [
        [row, *(f"{v.mean:.{digits}f}" if (v := values.get((row, c))) else "" for c in found.columns)]
        for row in found.rows
        if " at " not in row
    ]
    return [title, table_lines([["%", *(found.table.column_name(c) for c in found.columns)], *rows])]


def _claims(tables: dict[str, Comparison]) -> str:
    rows = [["where", "claim", "here", "difference of means in points (95 % interval over the seeds)"]]
    for claim in CLAIMS:
        verdict = claim.judge(tables)
        rows.append([claim.where, claim.says, verdict.answer, verdict.figures])
    return table_lines(rows)


def _missing(tables: Mapping[str, Comparison], scale: Scale) -> list[str]:
    """The paper's cells that have no run or one seed, by table, so that nobody takes a gap for a result."""
    rows = [["table", "columns without a run", "rows without a run in the other columns", "one or two seeds only"]]
    for table in published().values():
        found = tables.get(table.id)
        if found is None:
            said = "all: the images are not to be had here" if table.dataset == "cifar100" else "all"
            rows.append([table.id, said, "", ""])
            continue
        every_row = dict.fromkeys(row for row in table.rows if not row.endswith("-adversarial"))
        columns = [table.column_name(c) for c in range(len(table.columns)) if c not in found.columns]
        absent = [r for r in every_row if not any((r, c) in found.ours for c in found.columns)]
        few = [f"{r}, {table.column_name(c)}" for (r, c), v in found.ours.items() if r in every_row and len(v.each) < 3]
        if columns or absent or few:
            rows.append([table.id, ", ".join(columns), ", ".join(absent), "; ".join(few)])
    said = (
        "Two cores and a few hours did not do for these. `python -m experiments reproduce TABLE` goes on where it was, and `--columns` and `--only` name the "
        "cells to train."
    )
    return ["### What was not run", said, table_lines(rows)] if len(rows) > 1 else []


def _choices(results: Path, tables: Iterable[Comparison], scale: Scale) -> list[str]:
    rows = [["data", "method", "chosen of", "chosen", "noisy validation accuracy of each trial, %"]]
    for dataset in dict.fromkeys(found.table.dataset for found in tables):
        path = results / f"{dataset}-{scale}-chosen.json"
        for method, found in json.loads(path.read_text(encoding="utf-8")).items():
            trials = [f"{100 * t['validation']:.1f}" for t in found["trials"]]
            hyper = words(found["chosen"], " = ", 4)
            rows.append([dataset, method, str(len(trials)), hyper, " ".join(trials)])
    said = (
        "The same number of trials for every method (`experiments/protocols.py` lists them), one noise level for each data set "
        f"({', '.join(f'{d}: {p.tuned_at}' for d, p in PROTOCOLS[scale].items() if d != 'cifar100')}), "
        "one seed that is not among the reported, judged by the mean over the last five "
        "epochs of the accuracy on held-out labels that are as noisy as the training labels. Chosen once, used in all columns. Cross "
        "entropy has nothing to choose."
    )
    return ["### How hyper-parameters were chosen", said, table_lines(rows)]


def _cost(results: Path) -> list[str]:
    path = results / "cost.json"
    if not path.is_file():
        return []
    stored = json.loads(path.read_text(encoding="utf-8"))
    rows = [["table", "runs", "search trials", "hours, one such core", "hours, one GPU"]]
    for row in stored["tables"]:
        rows.append(
            [
                row["table"],
                str(row["runs"]),
                str(row["trials"]),
                f"{row['core_hours']:,.0f}",
                f"{row['gpu_hours']:,.0f}",
            ]
        )
    return ["### What the paper's own protocol would cost", stored["note"], table_lines(rows)]
