"""`compensate export`: the suspects of an audit, for an annotation tool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from compensate.cli import options as o
from compensate.cli.terminal import console
from compensate.errors import InputError
from compensate.files import check_regular, write_atomically


def export(
    run: Annotated[Path, typer.Argument(help="Run folder that `compensate audit` wrote.")],
    to: Annotated[str, typer.Option(help="Tool: label-studio, argilla, fiftyone or cleanlab.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write: .json, for cleanlab .csv.")],
    everything: Annotated[
        bool,
        typer.Option("--all", help="Export all rows, not only the flagged ones (always for fiftyone and cleanlab)."),
    ] = False,
    images: Annotated[
        str | None,
        typer.Option(
            help="Address or folder of the images as that tool finds them [default: embedded].", show_default=False
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing output file.")] = False,
) -> None:
    """Export the suspects to an annotation tool; `compensate apply` reads the decisions made there.

    **Example:** `compensate export runs/reviews-3f2a --to label-studio -o tasks.json`

    Then, with what Label Studio or Argilla exports: `compensate apply reviews.csv export.json`
    """
    o.check_path(run)
    from compensate.auditing import exchange
    from compensate.auditing.request import reopen
    from compensate.auditing.result import write_csv

    exchange.check_tool(to)
    check_regular(out)
    ending = ".csv" if to == "cleanlab" else ".json"
    if out.suffix.lower() not in ("", ending):
        raise InputError(
            f"what {to} reads is a {ending} file, and {out} has another ending; write: -o {out.with_suffix(ending)}."
        )
    if out.exists() and not force:
        raise InputError(f"{out} is there already; name another file, or overwrite it with --force.")
    found = reopen(run)
    exchange.whole_rows(found)
    if to == "cleanlab":
        issues = found.to_cleanlab()["issues"]
        write_csv(out, issues.reset_index(names="row"))
        console.print(
            f"{out}: {len(issues):,} rows, {int(issues['is_label_issue'].sum()):,} label issues", markup=False
        )
        return
    records = exchange.WRITERS[to](found, everything=everything or to == "fiftyone", images=images)
    write_atomically(out, json.dumps(records, ensure_ascii=False, indent=1).encode("utf-8", "replace"))
    console.print(f"{out}: {len(records):,} records for {to}", markup=False)
    if to == "label-studio":
        place = out.with_suffix(".xml")
        write_atomically(place, exchange.label_studio_config(found).encode("utf-8", "replace"))
        console.print(f"{place}: the labeling interface of the project", markup=False)
