"""`compensate train`: train one run."""

from __future__ import annotations

import inspect
import json
import shlex
import sys
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from compensate.cli import options as o
from compensate.cli.terminal import console, print_json, quoted, say


@o.with_shared
def train(
    shared: o.TrainingOptions,
    *,
    method: Annotated[str | None, o.option("Method [default: base]; `compensate methods` lists all.")] = None,
    hyper: o.Hyper = None,
    clean: Annotated[float | None, o.option("Share of clean samples, for methods that learn from clean data.")] = None,
    teacher: Annotated[str | None, o.option("Teacher: the folder of a run, or a .npy file of logits.")] = None,
    patience: Annotated[int | None, o.option("Early-stopping patience, in epochs.")] = None,
    precision: o.Precision = None,
    accumulate: Annotated[int | None, o.option("Gradient accumulation steps.")] = None,
    average: Annotated[
        float | None, o.option("Decay of a mean of the weights to evaluate and store, below 1; 0.99 spans 100 steps.")
    ] = None,
    out: Annotated[Path | None, o.option("Run folder [default: runs/NAME].")] = None,
    resume: Annotated[bool, o.option("Resume from the last checkpoint.", "--resume")] = False,
    every: Annotated[int | None, o.option("Steps between checkpoints [default: one checkpoint a minute].")] = None,
    backend: o.Backend = None,
    workers: o.Workers = None,
    tracker: Annotated[list[str] | None, o.option("Experiment tracker, e.g. tensorboard; may be repeated.")] = None,
    quiet: Annotated[bool, o.option("Show no progress bar.", "--quiet")] = False,
    json_: o.Json = False,
) -> None:
    """Train a model with any method; the run can be interrupted and resumed exactly.

    **Example:** `compensate train digits --method robust --noise pair:0.2`

    Distributed: `torchrun --nproc-per-node 2 -m compensate train ...`, or `accelerate launch -m compensate train ...`

    On a Ray cluster: `compensate train ... --backend ray --workers 2`. Each worker keeps the table rows of its own samples only.
    """
    merged = shared.merged(
        method=method, hyper=o.pairs(hyper, "--hyper"), clean=clean, teacher=teacher, patience=patience,
        precision=precision, accumulate=accumulate, average=average,
    )  # fmt: skip
    config = shared.build(merged)
    from compensate.auditing.write_back import write_csv
    from compensate.training import Interrupted, Processes, fit
    from compensate.training.fitting import MIN_AGREEMENT, agreement_with_labels

    folder = out if out is not None else Path("runs") / config.name
    prepared = o.announce(config, shared.data_dir) if Processes.launched().main else None
    try:
        result = fit(
            config, data=prepared, data_dir=shared.data_dir, folder=folder, resume=resume, every=every, console=None if quiet else console,
            trackers=tuple(tracker or ()), backend=backend or "local", workers=workers,
        )  # fmt: skip
    except Interrupted as stop:
        if Processes.current().main:
            say(f"stopped after step {stop.step}; the checkpoint is in {folder}. Resume with:", wrap=False)
            resume_command = [*sys.argv[1:], *([] if resume else ["--resume"])]
            say(f"{o.program()} {shlex.join(resume_command)}", wrap=False)
        raise typer.Exit(130) from None
    if not Processes.current().main:
        return
    config, epochs = result.config, len(result.history)
    trained = f"{config.method.replace('_', '-')} on {config.model}"
    say(f"{trained}, {epochs} epoch{'s' * (epochs > 1)}, {result.seconds:.0f} s")
    for name, row in (("last", result.last), ("best", result.best)):
        names = [k for k in ("test_accuracy", "val_accuracy", "train_accuracy") if k in row]
        metrics = [f"{k.replace('_', ' ')} {row[k]:.4f}" for k in names]
        note = f" (chosen on {result.selected_on})" if name == "best" else ""
        say(f"{name} epoch {row['epoch']:>3.0f}: {' · '.join(metrics)}{note}", wrap=False)
    say(f"run:  {folder}", wrap=False)
    if json_:
        print_json({"run": folder, **json.loads((folder / "result.json").read_bytes())})
    suspects = result.suspects()
    if suspects is None or not len(suspects):
        return
    flagged = suspects["flagged"].sum()
    if agreement_with_labels(suspects) < MIN_AGREEMENT:
        (folder / "suspects.csv").unlink(missing_ok=True)
        say(
            f"no list of suspects: the model contradicts {flagged:,} of {len(suspects):,} labels, so it has learned too little to judge "
            "them; train for more epochs, or use compensate audit",
            wrap=False,
        )
        return
    write_csv(folder / "suspects.csv", suspects)
    withheld = len(result.prepared.train) - len(suspects)
    say(
        f"suspects: {folder / 'suspects.csv'}: {flagged:,} of {len(suspects):,} labels flagged by the model that trained on them"
        + f"; {withheld:,} were withheld from it" * (withheld > 0),
        wrap=False,
    )
    say(f"to judge each label by models that did not see it: compensate audit {quoted(config.data)}", wrap=False)


def training_command(given: Mapping[str, Any], **more: Any) -> str:
    """The command line that trains with options from `TrainingOptions.merged`, some of them replaced.

    >>> training_command({"data": "my file.csv", "noise": "pair:0.2", "lr": None, "weight_decay": 0.1, "hyper": {"lam": 0.5}})
    "compensate train 'my file.csv' --noise pair:0.2 --set weight_decay=0.1 --hyper lam=0.5"
    """
    merged, own = {**given, **more}, inspect.signature(train).parameters
    parts = ["train", str(merged.pop("data")), *_flags(merged.pop("data_options", {}), own, "data_options.")]
    return f"{o.program()} {shlex.join([*parts, *_flags(merged, own)])}"


def _flags(options: Mapping[str, Any], own: Container[str], prefix: str = "") -> list[str]:
    """Options by their own flags, hyper-parameters by --hyper, and all others by --set."""
    flags: list[str] = []
    for name, value in options.items():
        if value is None:
            continue
        if name == "hyper":
            flags += [part for key, one in value.items() for part in ("--hyper", f"{key}={o.written(one)}")]
        elif isinstance(value, Mapping):
            flags += _flags(value, (), f"{prefix}{name}.")
        elif name in own:
            flags += [f"--{name.replace('_', '-')}", o.written(value)]
        else:
            flags += ["--set", f"{prefix}{name}={o.written(value)}"]
    return flags
