"""`python -m experiments defaults`: which settings of LogComp and MixComp hold everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compensate.cli import options as o
from compensate.cli.terminal import console


def defaults(
    sets: Annotated[
        str | None, typer.Option(help="Data sets, separated by commas [default: all].", show_default=False)
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder of the finished runs.")] = Path("results/defaults"),
    runs: Annotated[Path, typer.Option(help="Folder of unfinished runs.")] = Path("runs/human"),
    data_dir: o.DataDir = None,
    workers: o.Workers = None,
    show: Annotated[bool, typer.Option("--show", help="Print the stored results without training.")] = False,
) -> None:
    """Try settings of LogComp and MixComp on five data sets, and choose defaults with each set left out in turn.

    **Example:** `python -m experiments defaults --data-dir data`

    The same command resumes: finished runs are read.
    """
    from experiments import defaults as study
    from experiments.commands.reproduce import progress_bar
    from experiments.grid import Place

    names = list(study.SETS) if sets is None else [s.strip() for s in sets.split(",")]
    failed = []
    if not show:
        with progress_bar("training") as bar:
            task = bar.add_task("", total=len(study.trials(runs, names)))
            failed = study.train(
                Place(results, runs, data_dir, workers), data_dir or Path("data"), names, lambda: bar.advance(task)
            )
    console.print("\n".join([*study.sections(results), *study.details(results)]), markup=False, soft_wrap=True)
    for one, message in failed:
        console.print(f"[red]{one.name}:[/red] {message}")
