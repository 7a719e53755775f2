"""`compensate train`: one run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from compensate.commands import options as o
from compensate.commands.terminal import console


def train(
    data: o.Data = None,
    method: Annotated[
        str | None, typer.Option(help="Method [default: base]; `compensate methods` lists all.", show_default=False)
    ] = None,
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
    clean: Annotated[
        float | None,
        typer.Option(help="Share of samples kept clean, for methods that learn from clean data.", show_default=False),
    ] = None,
    patience: Annotated[
        int | None, typer.Option(help="Early-stopping patience, in epochs.", show_default=False)
    ] = None,
    precision: o.Precision = None,
    accumulate: Annotated[int | None, typer.Option(help="Gradient accumulation steps.", show_default=False)] = None,
    vectors: o.Vectors = None,
    max_length: o.MaxLength = None,
    label: o.Label = None,
    text: o.Text = None,
    ignore: o.Ignore = None,
    columns: o.Columns = None,
    teacher: Annotated[
        str | None,
        typer.Option(help="Teacher: the folder of a finished run, or a .npy file of logits.", show_default=False),
    ] = None,
    set_: o.Set = None,
    config: o.ConfigFile = None,
    data_dir: o.DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Run folder [default: runs/NAME].", show_default=False)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the last checkpoint.")] = False,
    every: Annotated[int | None, typer.Option(help="Steps between checkpoints.", show_default=False)] = None,
    tracker: Annotated[
        list[str] | None,
        typer.Option(help="Experiment tracker, e.g. tensorboard; may be repeated.", show_default=False),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Train a model with any method; the run can be interrupted and resumed exactly.

    **Example:** `compensate train digits --method logcomp --noise pair:0.2`

    In several processes: `torchrun --nproc-per-node 2 -m compensate train ...`, or `accelerate launch -m compensate train ...`
    """
    given = o.shared(
        data, set_, label, text, method=method, noise=noise, model=model, hyper=o.pairs(hyper, "--hyper"), epochs=epochs,
        batch_size=batch_size, lr=lr, optimizer=optimizer, schedule=schedule, seed=seed, limit=limit, clean=clean,
        patience=patience, precision=precision, accumulate=accumulate, vectors=vectors, max_length=max_length,
        teacher=teacher, ignore=ignore, columns=columns,
    )  # fmt: skip
    asked = o.build(o.options(config, given), str(config or "the command line"))
    from compensate.training.distribution import Processes
    from compensate.training.fitting import fit
    from compensate.training.trainer import Interrupted

    folder = out if out is not None else Path("runs") / asked.name
    try:
        result = fit(
            asked, data_dir=data_dir, folder=folder, resume=resume, every=every, console=None if quiet else console,
            trackers=tuple(tracker or ()),
        )  # fmt: skip
    except Interrupted as stop:
        if Processes.current().main:
            console.print(
                f"stopped after step {stop.step}; the checkpoint is in {folder}. Resume with:", soft_wrap=True
            )
            console.print(_resuming(sys.argv), markup=False, soft_wrap=True)
        raise typer.Exit(130) from None
    if not Processes.current().main:
        return
    parts, settled = result.prepared, result.config
    wrong = f", {parts.wrong.mean():.1%} of the labels wrong" if parts.wrong.any() else ""
    console.print(
        f"{settled.data}: {len(parts.train):,} samples, {parts.train.num_classes} classes{wrong}\n"
        f"{settled.method.replace('_', '-')} on {settled.model}, {len(result.history)} epochs, {result.seconds:.0f} s"
    )
    for name, row in (("last", result.last), ("best", result.best)):
        said = [
            f"{k.replace('_', ' ')} {row[k]:.4f}"
            for k in ("test_accuracy", "val_accuracy", "train_accuracy")
            if k in row
        ]
        note = f" (chosen on {result.selected_on})" if name == "best" else ""
        console.print(f"{name} epoch {row['epoch']:>3.0f}: {' · '.join(said)}{note}", soft_wrap=True)
    console.print(f"run:  {folder}", soft_wrap=True)


def _resuming(command: list[str]) -> str:
    """The command that goes on with the run of this command line.

    >>> _resuming(["/bin/compensate", "train", "my data.csv", "--epochs", "9"])
    "compensate train 'my data.csv' --epochs 9 --resume"
    """
    name = "python -m compensate" if command[0].endswith("__main__.py") else Path(command[0]).name
    options = [*command[1:], *([] if "--resume" in command else ["--resume"])]
    return f"{name} {shlex.join(options)}"
