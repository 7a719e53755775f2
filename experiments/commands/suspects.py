"""`python -m experiments suspects`: errors that trainings find by themselves, on CIFAR-10."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compensate.cli import options as o
from compensate.cli.terminal import console


def suspects(
    seeds: Annotated[int, typer.Option(help="Number of seeds.", min=1)] = 3,
    out: Annotated[Path, typer.Option(help="File of the results.")] = Path("results/suspects.json"),
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs/reproduce"),
    data_dir: o.DataDir = None,
) -> None:
    """Compare the suspects of `robust`, LogComp, MixComp and plain training with an audit of the same images.

    **Example:** `python -m experiments suspects --data-dir data`

    The same command resumes: finished runs are read.
    """
    from experiments import suspects as study
    from experiments.commands.reproduce import progress_bar

    with progress_bar("training") as bar:
        task = bar.add_task("", total=seeds)
        study.run(out, seeds, runs, data_dir, lambda: bar.advance(task))
    for part in study.section(out):
        console.print(part, soft_wrap=True, markup=False)
