"""`compensate consensus`: combine the labels of several annotators."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from rich.text import Text

from compensate.auditing.api import audit_votes
from compensate.auditing.content import digest_frame, digest_text, short_digest
from compensate.auditing.labels.votes import Votes, long_votes, vote_columns, wide_votes
from compensate.auditing.result import Audit
from compensate.auditing.store import check_run_folder, write_run
from compensate.auditing.write_back import write_csv
from compensate.cli import options as o
from compensate.cli.terminal import console, plain_table, print_json, quoted, say
from compensate.data.tables import read_frame
from compensate.errors import InputError
from compensate.files import write_atomically

SHOWN = 12  # annotators that are printed


def consensus(
    data: Annotated[Path, typer.Argument(help="Table of votes: CSV, TSV, JSONL, Excel or Parquet.")],
    annotators: Annotated[str | None, o.option("Columns of the annotators, e.g. ann,bob,eve or rater*: one vote per cell, empty cells for none.")] = None,
    annotator: Annotated[str | None, o.option("Column with the annotator's name, for a table with one vote per row.")] = None,
    item: Annotated[str | None, o.option("Column that names the item, for a table with one vote per row.")] = None,
    label: o.Label = None,
    text: o.Text = None,
    ignore: o.Ignore = None,
    encoder: Annotated[str, typer.Option(help="Pretrained encoder for texts: auto, none, a name, or a folder.")] = "auto",
    top: Annotated[int, typer.Option(help="Items to list for another vote.", min=1)] = 100,
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
    raters, stated = vote_columns(frame) if annotators is annotator is item is None else ([], {})
    if annotators is not None:
        items, votes = wide_votes(frame, [name.strip() for name in annotators.split(",") if name.strip()])
    elif raters:
        items, votes = wide_votes(frame, raters, stated)
    elif annotator is not None and item is not None:
        items, votes = long_votes(frame, item, annotator, label or "label")
    else:
        raise InputError(
            "expected where the votes are: --annotators ann,bob,eve (a column each), or --item ID --annotator NAME --label LABEL (a row each)."
        )
    folder = out or Path("runs") / f"{data.name.split('.')[0]}-consensus"
    check_run_folder(folder)
    people = f"{len(raters) or len(votes.annotators):,} annotators"
    say(f"{data.name}: {votes.items:,} items, {len(votes.label):,} votes of {people}, {len(votes.classes)} classes")
    if raters:
        sure = "".join(f'; "{column}" is the confidence of "{name}"' for name, column in stated.items())
        say(f"annotators: {', '.join(raters)}{sure} (others: --annotators; one label alone: compensate audit --label)")
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
    table = plain_table("annotator", "votes", "share of right votes (90% interval)", padding=(0, 3, 0, 0))
    for who, row in agreed.quality.sort_values("accuracy").head(SHOWN).iterrows():
        right = f"{row['accuracy']:.0%} ({row['low']:.0%} to {row['high']:.0%})"
        table.add_row(Text(str(who)), f"{int(row['votes']):,}", right)
    if len(agreed.quality) > SHOWN:
        table.add_row(Text(f"and {len(agreed.quality) - SHOWN} better annotators", style="dim"), "", "")
    console.print(table)
    changed = int(((agreed.label != votes.majority()) & (votes.counts.sum(1) > 0)).sum())
    wrong = agreed.p_error().mean()
    say(
        f"the consensus differs from the majority for {changed:,} items; about {wrong:.1%} of its labels should be wrong"
    )
    for what, said in {
        "consensus": folder / "consensus.csv",
        "annotators": folder / "annotators.csv",
        "label again": folder / "label_again.csv",
        "review them": f"compensate review {quoted(folder)}      or open {folder / 'report.html'}",
        "then": f"compensate apply {quoted(folder)} -o labels.csv",
    }.items():  # fmt: skip
        say(f"{what + ':':<13} {said}", wrap=False)
    if json_:
        quality = agreed.quality.reset_index().to_dict("records")
        print_json({"run": folder, "items": votes.items, "changed": changed, "wrong": wrong, "annotators": quality})


def as_label_table(found: Audit, votes: Votes, items: pd.DataFrame, path: Path, title: str) -> tuple[Audit, bytes]:
    """Turns an audit of votes into one of a table with a label column, the majority's labels, and returns that table as CSV.

    Decisions can then be applied to the table, which the caller writes to `path`; `title` is the title of the page.
    """
    column = "label" if "label" not in items.columns else "consensus"
    frame = items.assign(**{column: votes.majority_names})
    written = frame.to_csv(index=False).encode("utf-8", "surrogatepass")
    read = pd.read_csv(io.BytesIO(written), dtype=str, keep_default_na=False, encoding_errors="surrogatepass")
    assert found.data is not None
    source = replace(
        found.source, title=title, path=str(path), label=column, label_given=True,
        digest=digest_text(short_digest(written)), row_digests=None,
    )  # fmt: skip
    data = replace(found.data, raw=frame.iloc[found.data.index], source=replace(found.data.source, label=column))
    return replace(found, source=source, data=data, row_digests=digest_frame(read, column)[found.index]), written
