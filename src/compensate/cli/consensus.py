"""`compensate consensus`: combine the labels of several annotators."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from compensate.cli import options as o
from compensate.cli.terminal import console
from compensate.errors import InputError
from compensate.files import write_atomically

SHOWN = 12
"""Annotators that are printed."""


def consensus(
    data: Annotated[Path, typer.Argument(help="Table of votes: CSV, TSV, JSONL, Excel or Parquet.")],
    annotators: Annotated[
        str | None,
        o.option("Columns of the annotators, e.g. ann,bob,eve or rater*: one vote per cell, empty cells for none."),
    ] = None,
    annotator: Annotated[
        str | None, o.option("Column with the annotator's name, for a table with one vote per row.")
    ] = None,
    item: Annotated[str | None, o.option("Column that names the item, for a table with one vote per row.")] = None,
    label: o.Label = None,
    text: o.Text = None,
    ignore: o.Ignore = None,
    encoder: Annotated[
        str, typer.Option(help="Pretrained encoder for texts: auto, none, a name, or a folder.")
    ] = "auto",
    top: Annotated[int, typer.Option(help="Items to list for another vote.", min=1)] = 100,
    seed: o.Seed = None,
    encoding: o.Encoding = None,
    delimiter: o.Delimiter = None,
    out: Annotated[Path | None, o.option("Run folder [default: runs/NAME-consensus].")] = None,
) -> None:
    """Find the consensus of several annotators, how good each is, and which items to label again.

    **Example:** `compensate consensus votes.csv --annotators "rater*"`

    With one vote per row: `compensate consensus votes.csv --item id --annotator worker --label label`

    Models of the samples vote too, weighted by how well they predict the annotators' votes. The run folder has consensus.csv, annotators.csv,
    label_again.csv, labels.csv (the items with the majority's labels), and the review page of items whose majority looks wrong. `compensate apply`
    of the folder writes labels.csv with the decisions in it.
    """
    o.check_path(data)
    long = {"--annotator": annotator, "--item": item, "--label": label}
    if annotators is not None and any(long.values()):
        name = next(name for name, value in long.items() if value)
        raise InputError(
            f"--annotators names a column for each annotator, {name} is for a table with one vote per row; leave one of them out."
        )
    if annotators is None and (annotator is None or item is None):
        raise InputError(
            "expected where the votes are: --annotators ann,bob,eve (a column each), or --item ID --annotator NAME --label LABEL (a row each)."
        )
    from compensate.auditing.annotators import as_label_table, audit_votes, long_votes, wide_votes
    from compensate.auditing.result import write_csv
    from compensate.auditing.store import check_run_folder, write_run
    from compensate.data.tables import read_frame

    frame = read_frame(data, encoding=encoding or "utf-8", delimiter=delimiter)
    if annotators is not None:
        items, votes = wide_votes(frame, [name.strip() for name in annotators.split(",") if name.strip()])
    else:
        assert item is not None
        assert annotator is not None
        items, votes = long_votes(frame, item, annotator, label or "label")
    folder = out or Path("runs") / f"{data.name.split('.')[0]}-consensus"
    check_run_folder(folder)
    console.print(
        f"{data.name}: {votes.items:,} items, {len(votes.label):,} votes of {len(votes.annotators):,} annotators, {len(votes.classes)} classes",
        markup=False,
    )
    options: dict[str, Any] = {name: value for name, value in (("text", text), ("ignore", ignore)) if value is not None}
    found, agreed = audit_votes(items, votes, encoder=encoder, seed=seed or 0, **options)
    found, labels = as_label_table(found, votes, items, folder / "labels.csv", data.name)

    def tables(new: Path) -> None:
        write_atomically(new / "labels.csv", labels)
        write_csv(new / "consensus.csv", agreed.to_frame())
        write_csv(new / "annotators.csv", agreed.quality.reset_index())
        write_csv(new / "label_again.csv", agreed.to_label_again(top))

    write_run(found, folder, more=tables)
    for note in found.notes:
        console.print(Text.assemble(("note: ", "yellow"), note))
    console.print(_annotators(agreed.quality))
    changed = int(((agreed.label != votes.majority()) & (votes.counts.sum(1) > 0)).sum())
    console.print(
        f"the consensus differs from the majority in {changed:,} items; about {agreed.p_error().mean():.1%} of it is still wrong",
        markup=False,
    )
    for name, says in (
        ("consensus.csv", "consensus:    "), ("annotators.csv", "annotators:   "), ("label_again.csv", "label again:  "),
    ):  # fmt: skip
        console.print(f"{says}{folder / name}", markup=False, soft_wrap=True)
    place = shlex.quote(str(folder))
    console.print(
        f"review them:  compensate review {place}      or open {folder / 'report.html'}", markup=False, soft_wrap=True
    )
    console.print(f"then:         compensate apply {place} -o labels.csv", markup=False, soft_wrap=True)


def _annotators(quality: object) -> Table:
    import pandas as pd

    assert isinstance(quality, pd.DataFrame)
    table = Table("annotator", "votes", "right (90 % interval)", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for name, row in quality.sort_values("accuracy").head(SHOWN).iterrows():
        table.add_row(
            Text(str(name)), f"{int(row['votes']):,}", f"{row['accuracy']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        )
    if len(quality) > SHOWN:
        table.add_row(Text(f"and {len(quality) - SHOWN} better ones", style="dim"), "", "")
    return table
