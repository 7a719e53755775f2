"""`python -m experiments human`: errors that people made, robust training and cleaning side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compensate.cli import options as o
from compensate.cli.terminal import console


def human(
    seeds: Annotated[int, typer.Option(help="Seeds per cell.", min=1)] = 3,
    results: Annotated[Path, typer.Option(help="Folder of the finished runs.")] = Path("results/human"),
    runs: Annotated[Path, typer.Option(help="Folder of unfinished runs.")] = Path("runs/human"),
    data_dir: o.DataDir = None,
    workers: o.Workers = None,
    show: Annotated[bool, typer.Option("--show", help="Print the stored results without training.")] = False,
) -> None:
    """Train on NoisyAG-News' human labels: robust methods, and plain training on labels that the audit cleaned.

    **Example:** `python -m experiments human --data-dir data`

    The same command resumes: finished runs are read.
    """
    from experiments import human_report
    from experiments.commands.reproduce import progress_bar
    from experiments.grid import Place
    from experiments.human import train

    failed = []
    if not show:
        with progress_bar("training") as bar:
            task = bar.add_task("", total=None)
            place = Place(results, runs, data_dir, workers)
            failed = train(place, data_dir or Path("data"), seeds, lambda: bar.advance(task))
    console.print(human_report.markdown(results), soft_wrap=True, markup=False)
    for config, message in failed:
        console.print(f"[red]{config.name}:[/red] {message}")
    if failed:
        raise typer.Exit(1)
