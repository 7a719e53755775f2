"""`compensate tune`: hyper-parameters by search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from compensate.commands import options as o
from compensate.commands.terminal import console
from compensate.errors import InputError

if TYPE_CHECKING:
    from compensate.methods.search import Preset


def tune(
    data: o.Data = None,
    method: Annotated[
        str | None, typer.Option(help="Method; `compensate methods` lists all.", show_default=False)
    ] = None,
    preset: Annotated[str, typer.Option(help="Search space: default, paper or paper-per-sample.")] = "default",
    trials: Annotated[int, typer.Option(help="Number of trials, earlier ones of the same study included.", min=1)] = 20,
    seeds: Annotated[int, typer.Option(help="Seeds per trial.", min=1)] = 1,
    noise: o.Noise = None,
    model: o.Model = None,
    hyper: o.Hyper = None,
    epochs: o.Epochs = None,
    batch_size: o.BatchSize = None,
    lr: o.Rate = None,
    optimizer: o.Optimizer = None,
    schedule: o.Schedule = None,
    seed: o.Seed = None,
    limit: o.Limit = None,
    vectors: o.Vectors = None,
    max_length: o.MaxLength = None,
    label: o.Label = None,
    text: o.Text = None,
    set_: o.Set = None,
    config: o.ConfigFile = None,
    data_dir: o.DataDir = None,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes [default: number of cores].", min=1, show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the study [default: runs/tune-NAME].", show_default=False)
    ] = None,
) -> None:
    """Search the hyper-parameters of a method, judged on held-out labels as noisy as the training labels.

    **Example:** `compensate tune digits --method logcomp --noise pair:0.3 --trials 20`

    The presets paper and paper-per-sample are the search spaces of the paper, with its learning rate read in both ways.
    Run again, it continues the study.
    """
    given = o.shared(
        data, set_, label, text, method=method, noise=noise, model=model, hyper=o.pairs(hyper, "--hyper"), epochs=epochs,
        batch_size=batch_size, lr=lr, optimizer=optimizer, schedule=schedule, seed=seed, limit=limit, vectors=vectors,
        max_length=max_length,
    )  # fmt: skip
    merged = o.options(config, given)
    asked = o.build(merged, str(config or "the command line"))
    if asked.method == "base":
        raise InputError("base has nothing to tune; name a method: --method logcomp.")
    from compensate.files import write_atomically
    from compensate.training.tuning import search

    folder = out if out is not None else Path("runs") / f"tune-{asked.name}"
    with Progress(
        TextColumn("searching"), BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("trials"), TimeElapsedColumn(),
        console=console, transient=True,
    ) as bar:  # fmt: skip
        task = bar.add_task("", total=trials)
        found = search(
            asked, folder, preset=cast("Preset", preset), trials=trials, seeds=seeds, workers=workers, data_dir=data_dir,
            done=lambda n: bar.update(task, completed=n),
        )  # fmt: skip
    write_atomically(folder / "tuning.json", (json.dumps(found, indent=1) + "\n").encode())
    names = list(found["best"]["hyper"])
    table = Table(*names, "validation accuracy", box=None, pad_edge=False)
    for row in found["trials"][:5]:
        table.add_row(
            *(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row["hyper"].values()), f"{row['validation']:.4f}"
        )
    if found["lost"]:
        console.print(f"[red]{found['lost']} trials were lost:[/red] their processes were ended from outside")
    console.print(f"{len(found['trials'])} trials, the best first; accuracy is on held-out noisy labels")
    console.print(table)
    hyper_best = {**asked.hyper, **found["best"]["hyper"]}
    line = o.again(merged, method=asked.method.replace("_", "-"), hyper=hyper_best, data_dir=data_dir and str(data_dir))
    console.print(f"use it:     {line}", soft_wrap=True, markup=False)
    console.print(f"all trials: {folder / 'tuning.json'}", soft_wrap=True)
    if found["lost"]:
        raise typer.Exit(1)
