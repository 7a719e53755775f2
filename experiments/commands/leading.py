"""`python -m experiments leading`: the method to try first, compared with cross entropy and with tuned methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compensate.cli import options as o
from compensate.cli.terminal import console
from compensate.errors import InputError


def leading(
    data: Annotated[Path | None, typer.Argument(help="A file of features of your own: .npz with x_train, y_train, x_test, y_test.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds per cell.", min=1)] = 3,
    results: Annotated[Path, typer.Option(help="Folder of the finished runs.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Folder of unfinished runs.")] = Path("runs"),
    data_dir: o.DataDir = None,
    workers: o.Workers = None,
    show: Annotated[bool, typer.Option("--show", help="Print the stored results without training.")] = False,
    choose: Annotated[bool, typer.Option("--choose", help="Compare the constants of the method, chosen on all data sets but one.")] = False,
) -> None:  # fmt: skip
    """Compare the method `robust` with cross entropy and with tuned methods.

    **Examples:** `python -m experiments leading --data-dir data`, `python -m experiments leading features.npz`

    The same command resumes: finished runs are read. With a file, the rivals are tuned on held-out labels of that file.
    """
    from experiments import leading as study
    from experiments.commands.reproduce import progress_bar
    from experiments.grid import Place

    if data is not None:
        if choose:
            raise InputError("--choose has data sets of its own; leave out the file.")
        if not data.is_file():
            raise InputError(f"{data} is not a file; expected an .npz with x_train, y_train, x_test and y_test.")
        with progress_bar("training") as bar:
            task = bar.add_task("", total=None)
            place = Place(results / "leading", runs / "leading", None, workers)
            own = study.train_own(data, place, seeds, lambda: bar.advance(task))
        for line in [study.by_column([own]), *study.markdown([own])[2:]]:
            console.print(line, soft_wrap=True, markup=False)
        for method, gain in study.summary(own).items():
            console.print(f"{method:16s} {gain}", soft_wrap=True, markup=False)
        return
    if choose:
        from experiments import strength_choice

        if not show:
            with progress_bar("training") as bar:
                task = bar.add_task("", total=None)
                strength_choice.train(results, runs, data_dir or Path("data"), workers, lambda: bar.advance(task))
        console.print(study.leave_one_out(results / "leading" / "strength-choice.jsonl"), soft_wrap=True, markup=False)
        return
    failed = []
    if not show:
        with progress_bar("training") as bar:
            task = bar.add_task("", total=None)
            failed = study.train(results, runs, data_dir or Path("data"), workers, seeds, lambda: bar.advance(task))
    found = study.columns(results, seeds)
    for line in [study.by_column(found), *study.markdown(found)]:
        console.print(line, soft_wrap=True, markup=False)
    for config, message in failed:
        console.print(f"[red]{config.name}:[/red] {message}")
    if failed:
        raise typer.Exit(1)
