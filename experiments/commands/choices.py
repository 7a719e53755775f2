"""`python -m experiments choices`: defaults of single methods, chosen on held-out data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compensate.cli import options as o
from compensate.cli.terminal import console


def choices(
    only: Annotated[str | None, o.option("Studies to run, separated by commas [default: all].")] = None,
    results: Annotated[Path, typer.Option(help="Folder of the finished scores.")] = Path("results/defaults"),
    show: Annotated[bool, typer.Option("--show", help="Print the stored results without training.")] = False,
) -> None:
    """Score settings of single methods on held-out data and say which to take.

    **Example:** `python -m experiments choices --only ldam,isda`

    The same command resumes: finished scores are read.
    """
    from experiments import choices as studies
    from experiments.commands.reproduce import progress_bar

    names = list(studies.STUDIES) if only is None else [name.strip() for name in only.split(",")]
    if unknown := [name for name in names if name not in studies.STUDIES]:
        raise typer.BadParameter(f"there is no study {unknown[0]!r}; expected one of {', '.join(studies.STUDIES)}.")
    todo = [] if show else list(studies.missing(results, names))
    with progress_bar("scoring") as bar:
        for one in bar.track(todo):
            studies.score(results, *one)
    console.print("\n".join(studies.sections(results)), markup=False, soft_wrap=True)
