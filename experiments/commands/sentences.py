"""`python -m experiments sentences`: texts whose labels a model keeps contradicting."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from compensate.cli import options as o
from compensate.cli.terminal import console


def sentences(
    data: Annotated[str, typer.Argument(help="sst2, imdb, or a table with a column of texts.", show_default=False)],
    top: Annotated[int, typer.Option(help="Number of texts to list.", min=1)] = 20,
    seeds: Annotated[int, typer.Option(help="Number of seeds to average over.", min=1)] = 3,
    limit: Annotated[int | None, o.option("Maximum number of texts [default: all of SST-2, 2,000 of others].")] = None,
    vectors: o.Vectors = None,
    set_: o.Set = None,
    label: o.Label = None,
    text: o.Text = None,
    data_dir: o.DataDir = None,
    runs: Annotated[Path, typer.Option(help="Folder of the runs; finished ones are reused.")] = Path("runs/sentences"),
    out: Annotated[
        Path | None,
        o.option("Write the table to this .csv, .md or .json file.", "--out", "-o"),
    ] = None,
) -> None:
    """Name the texts that take the largest compensation: wrong labels, and sentences that are hard for a machine.

    **Example:** `python -m experiments sentences sst2 --data-dir data -o suspects.csv`
    """
    from compensate.errors import InputError
    from experiments import sentences as found_in

    if out is not None and out.suffix not in (".csv", ".md", ".json"):
        raise InputError(f'{out} ends in "{out.suffix}"; expected .csv, .md or .json.')
    changes = o.settings(
        set_, {"label": label, "text": text}, data=data, **({} if vectors is None else {"vectors": vectors})
    )
    changes = {k: v for k, v in changes.items() if k != "data_options" or v}
    found = found_in.find_sentences(
        found_in.setting(limit=limit, **changes), seeds=seeds, top=top, data_dir=data_dir, runs=runs, console=console
    )
    shown = Table("rank", "text", "given", "suggested", "mean |v|", box=None, pad_edge=False)
    for s in found.top:
        shown.add_row(str(s.rank), Text(s.text), Text(s.given), Text(s.suggested), f"{s.size:.2f}")
    console.print(f"{data}: {found.texts:,} texts, {found.seeds} trainings")
    console.print(shown)
    for s in found.quoted:
        console.print(Text(f"quoted in the paper, rank {s.rank:,}: {found_in.cut(s.text, 70)}"), soft_wrap=True)
    if out is not None:
        found_in.write(found, out)
        console.print(f"written:  {out}", soft_wrap=True)
