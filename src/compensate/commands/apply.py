"""`compensate apply`: decisions about labels, written into the data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from compensate.commands import options as o

console = Console(highlight=False)


def apply(
    data: Annotated[Path, typer.Argument(help="The CSV, TSV or Parquet file, or folder of images, that was audited.")],
    corrections: Annotated[Path, typer.Argument(help="corrections.csv, as the review page exports it.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write; else NAME.fixed.SUFFIX.", show_default=False)
    ] = None,
    label: o.Label = None,
    encoding: Annotated[str, typer.Option(help="Of the file.")] = "utf-8",
    delimiter: Annotated[str | None, typer.Option(help="Of the file, if not obvious.", show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Write the data with the corrected labels.

    **Example:** `compensate apply reviews.csv corrections.csv -o reviews.fixed.csv`

    A corrected CSV or TSV is the same file but for the changed cells. A folder of images gets a label file.
    """
    from compensate.auditing.corrections import apply_corrections

    done = apply_corrections(data, corrections, out, label=label, encoding=encoding, delimiter=delimiter, force=force)
    console.print(
        f"{done.path}: {done.changed:,} of {done.rows:,} labels changed, {done.kept:,} kept as they were, "
        f"{done.skipped:,} skipped",
        markup=False,
    )
