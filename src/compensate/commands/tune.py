"""`compensate tune`: hyper-parameters by search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.table import Table

from compensate.commands import options as o
from compensate.commands.opening import announce
from compensate.commands.terminal import bar_of, console
from compensate.errors import InputError

if TYPE_CHECKING:
    from compensate.methods.search import Preset


@o.with_shared
def tune(
    shared: o.TrainingOptions,
    *,
    method: Annotated[str | None, o.option("Method; `compensate methods` lists all.")] = None,
    hyper: o.Hyper = None,
    preset: Annotated[str, typer.Option(help="Search space: default, paper or paper-per-sample.")] = "default",
    trials: Annotated[int, typer.Option(help="Number of trials, earlier ones of the same study included.", min=1)] = 20,
    seeds: Annotated[int, typer.Option(help="Seeds per trial.", min=1)] = 1,
    workers: o.Workers = None,
    out: Annotated[Path | None, o.option("Folder of the study [default: runs/tune-NAME].")] = None,
) -> None:
    """Search the hyper-parameters of a method, judged on held-out labels as noisy as the training labels.

    **Example:** `compensate tune digits --method logcomp --noise pair:0.3 --trials 20`

    The same command continues the study. The presets are the search spaces of the paper: its learning rate per batch
    (paper) or per sample (paper-per-sample).
    """
    merged = shared.merged(method=method, hyper=o.pairs(hyper, "--hyper"))
    asked = shared.build(merged)
    if asked.method == "base":
        raise InputError("base has nothing to tune; name a method: --method logcomp.")
    from compensate.files import write_atomically
    from compensate.training.tuning import search_space

    folder = out if out is not None else Path("runs") / f"tune-{asked.name}"
    announce(asked, shared.data_dir)
    with bar_of("searching", "trials") as bar:
        task = bar.add_task("", total=trials)
        found = search_space(
            asked, folder, preset=cast("Preset", preset), trials=trials, seeds=seeds, workers=workers, data_dir=shared.data_dir,
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
    line = o.training_command(
        merged,
        method=asked.method.replace("_", "-"),
        hyper=hyper_best,
        data_dir=shared.data_dir and str(shared.data_dir),
    )
    console.print(f"use it:     {line}", soft_wrap=True, markup=False)
    console.print(f"all trials: {folder / 'tuning.json'}", soft_wrap=True)
    if found["lost"]:
        raise typer.Exit(1)
