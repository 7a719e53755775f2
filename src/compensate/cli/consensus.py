"""`compensate consensus`: combine the labels of several annotators."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from compensate.auditing.api import audit as judge
from compensate.auditing.labels.votes import TOP, long_votes, vote_columns, wide_votes
from compensate.auditing.source import read
from compensate.auditing.store import check_run_folder, write_run
from compensate.cli import options as o
from compensate.cli.audit import print_summary
from compensate.cli.terminal import console, print_json, say, short
from compensate.data.tables import read_frame
from compensate.errors import InputError


def consensus(
    data: Annotated[Path, typer.Argument(help="Table of votes: CSV, TSV, JSONL, Excel or Parquet.")],
    annotators: Annotated[str | None, o.option("Columns of the annotators, e.g. ann,bob,eve or rater*: one vote per cell, empty cells for none.")] = None,
    annotator: Annotated[str | None, o.option("Column with the annotator's name, for a table with one vote per row.")] = None,
    item: Annotated[str | None, o.option("Column that names the item, for a table with one vote per row.")] = None,
    label: o.Label = None,
    text: o.Text = None,
    ignore: o.Ignore = None,
    encoder: Annotated[str, typer.Option(help="Pretrained encoder for texts: auto, none, a name, or a folder.")] = "auto",
    top: Annotated[int, typer.Option(help="Items to list for another vote.", min=1)] = TOP,
    seed: o.Seed = None,
    encoding: o.Encoding = None,
    delimiter: o.Delimiter = None,
    out: Annotated[Path | None, o.option("Run folder [default: runs/NAME-consensus].")] = None,
    json_: o.Json = False,
) -> None:  # fmt: skip
    """Find the consensus of several annotators, how good each is, and which items to label again.

    **Example:** `compensate consensus votes.csv --annotators "rater*"`

    Columns such as rater_1 and rater_2, or label_llm and label_human, are found by their names; llm_confidence is the stated confidence.

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
    frame = read_frame(data, encoding=encoding or "utf-8", delimiter=delimiter)
    named = [name.strip() for name in (annotators or "").split(",") if name.strip()]
    raters, stated = vote_columns(frame) if annotators is annotator is item is None else (named, {})
    if annotators is not None or raters:
        items, votes = wide_votes(frame, raters, stated)
    elif annotator is not None and item is not None:
        items, votes = long_votes(frame, item, annotator, label or "label")
    else:
        raise InputError(
            "say where the votes are: --annotators ann,bob,eve (a column each), or --item ID --annotator NAME --label LABEL (a row each)."
        )
    folder = out or Path("runs") / f"{data.name.split('.')[0]}-consensus"
    check_run_folder(folder)
    given = {name: value for name, value in (("text", text), ("ignore", ignore)) if value is not None}
    source = votes.dataset(items, given, lambda x, labels, how: read(x, labels, None, how))
    say(f"{data.name}: {votes.items:,} items, {votes.describe(source, short)}")
    found = judge(replace(source, source=replace(source.source, title=data.name)), encoder=encoder, seed=seed or 0)
    assert found.data is not None
    found, more = found.data.parts.files(found, folder, top)
    write_run(found, folder, more=more)
    for note in found.notes:
        console.print(Text.assemble(("note: ", "yellow"), note))
    print_summary(found, folder)
    if json_:
        agreed = found.data.parts.consensus
        figures = {"changed": agreed.changed, "wrong": agreed.p_error().mean()}
        quality = agreed.quality.reset_index().to_dict("records")
        print_json({"run": folder, "items": votes.items, **figures, "annotators": quality})
