"""Training: one loop for every method."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from compensate.data import Data, Splits
from compensate.equation import Compensated
from compensate.state import State
from compensate.training import checkpoint
from compensate.training.accelerating import make_accelerator
from compensate.training.config import Config
from compensate.training.distribution import Processes
from compensate.training.outcome import Result
from compensate.training.preparation import make_criterion, make_model, prepare
from compensate.training.progress import Bar
from compensate.training.run import Run
from compensate.training.steps import Training


def fit(
    config: Config,
    *,
    data: Splits | Data | None = None,
    data_dir: str | Path | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    every: int | None = None,
    console: Console | None = None,
    trackers: Sequence[Any] = (),
    model: nn.Module | None = None,
    criterion: Compensated | None = None,
    on_step: Callable[[State], None] | None = None,
) -> Result:
    """Trains as the configuration says, with any method of `METHODS`.

    Args:
        config: the run.
        data: the data itself, where it is not to be loaded by `config.data`; its name then still names the run.
        data_dir: where named data sets are.
        folder: of the run, for checkpoints and results; without one nothing is written.
        resume: go on from the last checkpoint in the folder, exactly as if nothing had happened.
        every: steps between checkpoints; by default one a minute and one at the end.
        console: shows a progress bar.
        trackers: accelerate's trackers: names such as "tensorboard", or `GeneralTracker` objects.
        model, criterion: own ones instead of those that the configuration names.
        on_step: called with the state of every training step.

    >>> result = fit(Config(data="digits", noise="pair:0.2", method="logcomp", epochs=1))
    >>> sorted(result.last)
    ['compensated', 'epoch', 'lr', 'test_accuracy', 'test_loss', 'train_accuracy', 'train_loss', 'val_accuracy', 'val_loss']
    """
    asked, begun = config, time.monotonic()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        accelerator = make_accelerator(config, folder, trackers)
        processes = Processes.current()
        prepared = prepare(config, data, data_dir)
        config = prepared.config
        model = make_model(prepared) if model is None else model
        criterion = make_criterion(prepared, model, data_dir) if criterion is None else criterion
        run = Run(folder)
        with run.alone() if processes.main else nullcontext():
            # Each process reads the checkpoint; the main one makes the folder first.
            found = run.begin(asked, config, resume=resume) if processes.main else None
            processes.wait()
            if not processes.main and run.path is not None and resume:
                found = checkpoint.latest(run / "checkpoint")
            training = Training(prepared, model, criterion, accelerator, processes, run, on_step)
            if found is not None:
                training.restore(found)
            if trackers and processes.main:
                flat = {k: v for k, v in config.json.items() if isinstance(v, int | float | str)}
                accelerator.init_trackers("compensate", config=flat)
            with Bar(console if processes.main else None, config.epochs or 0, training.total, training.step) as bar:
                training.run_all(every, bar, begun)
            if trackers:
                accelerator.end_training()
            return training.finish(asked, time.monotonic() - begun)
