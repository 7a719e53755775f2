"""The paper's tables on the page of results, with our figures, further tables, the claims, and missing runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.archive import Archive
from experiments.claims import CLAIMS
from experiments.comparing import (
    SEEDS,
    Comparison,
    further_lines,
    lines,
    stored_choice,
    stored_trials,
    table_lines,
)
from experiments.explained import explained
from experiments.protocols import Scale, cells, choice_name
from experiments.tables import Published, every, published

_SAID = {
    "cifar10": "5,000 images averaged to 16 x 16 pixels, 500 of them held out, no augmentation, 4,000 test images, ResNet-8",
    "cifar100": "5,000 images averaged to 16 x 16 pixels, 500 of them held out, no augmentation, 4,000 test images, ResNet-8",
    "sst2": "the 6,920 training and 872 held-out sentences, 1,821 test sentences, BiLSTM with attention of 50 units, GloVe 100-d",
    "imdb": "2,000 reviews cut after 200 words, 400 of them held out, 2,000 test reviews, BiLSTM with attention of 32 units, GloVe 100-d",
}
_AUGMENTED = "randomly mirrored and shifted by up to 4 of 16 pixels, twice the usual share of an image"
_NUMBERS = ("no", "one", "two", "three")


def comparison(table: Published, results: Path, scale: Scale) -> Comparison | None:
    """The trained part of a table, or None; comparisons of methods include methods that the paper does not have."""
    archive = Archive(results / f"{table.dataset}-{scale}.jsonl")
    path = results / f"{choice_name(table, scale)}-chosen.json"
    if not len(archive) or not path.is_file():
        return None
    chosen = stored_choice(path)
    extra = _further(table, list(chosen)) if _compares_methods(table) else []
    found = Comparison.of(table, cells(table, scale, chosen, SEEDS, extra), archive, stored_trials(path))
    # The first column of a table of depths is a column of another table.
    fewest = 2 if "model" in table.columns[0] else 1
    return found if len(found.columns) >= fewest else None


def _compares_methods(table: Published) -> bool:
    """Whether a table compares methods, not parts of MixComp, its radius or the depth of a network."""
    return "mixcomp-positive" not in table.rows and not {"eps2", "model"} & set(table.columns[0])


def _further(table: Published, chosen: Sequence[str]) -> list[str]:
    """Further rows of a table: other tuned methods, and methods with their defaults."""
    tuned = [name for m in chosen if (name := m.replace("_", "-")) not in table.rows]
    return [*tuned, "mixcomp-warmup", *(f"{m}-default" for m in ("logcomp", "mixcomp", *tuned))]


def trained_tables(results: Path, scale: Scale = "small") -> dict[str, Comparison]:
    """All tables with trained cells."""
    return {t.id: found for t in every().values() if (found := comparison(t, results, scale)) is not None}


def sections(tables: Mapping[str, Comparison], scale: Scale = "small") -> list[str]:
    """Markdown parts; empty if nothing is stored."""
    if not tables:
        return []
    intro = (
        "Test accuracy on clean labels after the *last* epoch, in percent, mean ± standard deviation over three seeds unless stated otherwise: ours "
        "[its rank] / the paper's [its rank]. Compare the order of the methods, not the numbers: our runs use small data and short training, chosen "
        "so plain training memorizes nearly all wrong labels. Ranks are among the paper's rows. Noise: *random* 30 % redraws 30 % of the labels, "
        "which makes 27 % wrong; *pair* moves labels to the next class; for texts the first samples of the corpus are flipped, as in the paper, "
        "and *asymmetric* flips only those of one class, half as many. *Positive* compensation lowers the loss of the worst-fitting samples, "
        "*negative* raises it (an attack on the input within eps2). Best epochs and the share of memorized wrong labels: "
        "[details](results-details.md#the-papers-tables-in-detail)."
    )
    return [
        "## The paper's tables, small scale",
        intro,
        *(part for name, found in tables.items() if name in published() for part in table_section(found, scale)),
        "## Claims of the paper",
        "A claim *holds* if the 95 % interval of the mean difference over seeds is above zero and no column's interval is below. It *does not hold* if "
        "the interval is below zero, or if a column's interval is below zero and the mean's is not above. Otherwise it is *open*. A claim about every "
        "column holds if all intervals are above zero and does not hold if one is below; it compares the better of LogComp and MixComp with the best "
        "other row, both chosen in hindsight. A claim that a method does *not* raise accuracy is judged in the opposite direction. One seed gives no "
        "verdict. About one of "
        f"{len(CLAIMS)} claims excludes zero by chance. The figure is the mean difference over columns, in points; "
        "[column by column](results-details.md#claims-column-by-column).",
        _claims(tables),
        *explained(tables),
        *_missing(tables),
    ]


def table_section(found: Comparison, scale: Scale) -> list[str]:
    """A table with its runs; further rows are separate."""
    table = found.table
    said = f"`python -m experiments reproduce {table.id} --scale {scale}`: {_said(table)}. Run: {run_said(found)}."
    parts = [f"### {table.id}: {table.caption}", said, table_lines(lines(found, found.own_rows))]
    if found.further_rows:
        parts += [_further_said(found), table_lines(further_lines(found))]
    return parts


def run_said(found: Comparison) -> str:
    """The runs of a table: rows, columns, seeds and duration."""
    rows = list(found.table.rows)
    seeds = {(row.partition(" at ")[0], c): len(v.each) for (row, c), v in found.ours.items() if row in found.own_rows}
    present = {row for row, _ in seeds}
    holes = len(present) * len(found.columns) - len(seeds)
    counts = dict.fromkeys((min(seeds.values(), default=0), max(seeds.values(), default=0)))
    named = f"{' to '.join(_NUMBERS[n] for n in counts)} seed{'s' * (max(counts) > 1)}"
    columns = _of(len(found.columns), len(found.table.columns), "column")
    parts = [f"{_of(len(present), len(rows), 'row')} and {columns}, {named}"]
    parts += [f"{holes} of these cells {'is' if holes == 1 else 'are'} empty"] if holes else []
    done = [v for (row, _), v in found.seconds.items() if " at " not in row]
    count, seconds = sum(len(v.each) for v in done), sum(v.mean * len(v.each) for v in done)
    further = ", further rows included" if found.further_rows else ""
    return f"{'; '.join(parts)} ({count} runs{further}, {seconds / 3600:.1f} hours of one thread)"


def _of(count: int, whole: int, what: str) -> str:
    """A count of all.

    >>> _of(9, 9, "row"), _of(4, 7, "column"), _of(2, 2, "column"), _of(1, 1, "column")
    ('all 9 rows', '4 of 7 columns', 'both columns', 'the one column')
    """
    if count == whole < 3:
        return f"the one {what}" if whole == 1 else f"both {what}s"
    return f"all {whole} {what}s" if count == whole else f"{count} of {whole} {what}s"


def _further_said(found: Comparison) -> str:
    """A description of the further rows."""
    rows = found.further_rows
    by_trials: dict[int, list[str]] = {}
    for row in rows:
        if row in found.trials:
            by_trials.setdefault(found.trials[row], []).append(row)
    parts = [f"{', '.join(names)}: tuned as the rows above, {count} trials each" for count, names in by_trials.items()]
    if "mixcomp-warmup" in rows:
        parts.append(
            "mixcomp-warmup: MixComp as chosen, with a bound that grows from zero between 10 % and 40 % of the training"
        )
    if any(row.endswith("-default") for row in rows):
        parts.append("-default: with the library's defaults, untuned")
    among = "the paper's rows" if found.table.id in published() else "the rows above"
    return f"**Further rows** [the rank that each would have among {among}]. {'; '.join(parts)}."


def _said(table: Published) -> str:
    said = _SAID[table.dataset]
    if "model" in table.columns[0]:  # the heads name the networks
        said = said.removesuffix(", ResNet-8")
    return said.replace("no augmentation", _AUGMENTED) if table.fixed.get("augment") == "crop-flip" else said


def _claims(tables: Mapping[str, Comparison]) -> str:
    rows = [["where", "claim", "here", "mean difference in points (95 % interval over the seeds)"]]
    for claim in CLAIMS:
        verdict = claim.judge(tables)
        rows.append([claim.where, claim.says, verdict.answer, verdict.short])
    return table_lines(rows)


def _missing(tables: Mapping[str, Comparison]) -> list[str]:
    """The cells that were not run."""
    rows = [["table", "columns without a run", "cells without a run in the other columns", "fewer than three seeds"]]
    for table in every().values():
        found = tables.get(table.id)
        if found is None:
            rows.append([table.id, "all", "", ""])
            continue
        known = [row for row in table.rows if not row.endswith("-adversarial")] + found.further_rows
        wanted = [(row, c) for row in known for c in found.columns]
        absent = [cell for cell in wanted if cell not in found.ours]
        few = [cell for cell in wanted if cell in found.ours and len(found.ours[cell].each) < SEEDS]
        columns = [found.head(c) for c in range(len(table.columns)) if c not in found.columns]
        if columns or absent or few:
            rows.append([table.id, ", ".join(columns), _grouped(found, absent), _grouped(found, few)])
    said = (
        "These runs need more than two cores and a few hours. `python -m experiments reproduce TABLE` continues a table; `--columns` and `--only` name "
        "the cells to train."
    )
    return ["## Missing runs", said, table_lines(rows)] if len(rows) > 1 else []


def _grouped(found: Comparison, wanted: Sequence[tuple[str, int]]) -> str:
    """Cells as text, rows with the same columns together."""
    by_row: dict[str, list[int]] = {}
    for row, column in wanted:
        by_row.setdefault(row, []).append(column)
    by_columns: dict[tuple[int, ...], list[str]] = {}
    for row, columns in by_row.items():
        by_columns.setdefault(tuple(columns), []).append(row)
    return "; ".join(
        f"{', '.join(rows)}: {'all' if columns == found.columns else ', '.join(map(found.head, columns))}"
        for columns, rows in by_columns.items()
    )
