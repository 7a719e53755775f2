"""`fit`: trains a run as its configuration says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from compensate.core.batch import Batch
from compensate.core.criterion import Compensated
from compensate.data import Dataset, Splits, order, order_in_ranges
from compensate.errors import InputError
from compensate.training import checkpoint
from compensate.training.config import Config
from compensate.training.distributed import INSTEAD, Ranges, check_ranges
from compensate.training.evaluation import Samples, agreement
from compensate.training.hardware import Hardware, Trackers
from compensate.training.preparation import Prepared, make_criterion, make_model, prepare_run
from compensate.training.ray import fit_on_cluster
from compensate.training.run import Run, describe
from compensate.training.step import Learner, make_optimizer, rate
from compensate.training.trainer import EarlyStopping, Metrics, Trainer, by_accuracy

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run.

    Attributes:
        config: with the defaults of the model filled in.
        history: the metrics of each epoch.
        best: the metrics of the epoch with the highest validation accuracy; without validation part, test accuracy.
        model, criterion: after the last epoch.
        prepared: the data.
        seconds: the duration.

    >>> result = fit(Config(data="digits", epochs=1))
    >>> result.selected_on, len(result.history), result.best is result.history[0]
    ('validation', 1, True)
    """

    config: Config
    history: list[Metrics]
    best: Metrics
    model: nn.Module
    criterion: Compensated
    prepared: Prepared
    seconds: float

    @property
    def last(self) -> Metrics:
        """The metrics of the last epoch."""
        return self.history[-1]

    @property
    def selected_on(self) -> str:
        """The part that `best` was selected on: "validation", "test" or "train"."""
        names = {"val": "validation", "test": "test"}
        return next((part for name, part in names.items() if f"{name}_accuracy" in self.best), "train")

    def suspects(self) -> pd.DataFrame | None:
        """The training samples, most suspect first: index (row of the source), given, suggested, score and flagged.

        None if the criterion keeps no record, or only that of some samples, as with ``order="ranges"`` in several processes.
        """
        import pandas as pd

        record, train = self.criterion.record, self.prepared.train
        if record is None or len(record.visits) < train.rows:
            return None
        suspects = record.suspects()
        position = np.zeros(train.rows, dtype=np.int64)
        position[train.index] = np.arange(len(train))
        index = suspects.index.cpu().numpy()
        # Outputs beyond the classes, such as abstention, are never suggested.
        names = np.array([*train.classes, *[""] * self.prepared.method.extra_outputs], dtype=object)
        return pd.DataFrame(
            {
                "index": index,
                "given": names[train.target[position[index]]],
                "suggested": names[suspects.suggested.cpu().numpy()],
                "score": suspects.score.cpu().numpy(),
                "flagged": suspects.flagged.cpu().numpy(),
            }
        )


MIN_AGREEMENT = 0.2
"""Below this `agreement_with_labels` a model has learned too little to judge labels."""


def agreement_with_labels(suspects: pd.DataFrame) -> float:
    """Agreement of a model with the given labels: 0 for always naming the most common class, 1 for full agreement.

    >>> import pandas as pd
    >>> agreement_with_labels(pd.DataFrame({"given": ["a", "a", "b", "b"], "flagged": [False, False, False, True]}))
    0.5
    """
    others = 1 - float(suspects["given"].value_counts(normalize=True).max())
    return 1 - float(suspects["flagged"].mean()) / others if others else 1.0


def fit(
    config: Config,
    *,
    data: Splits | Dataset | Prepared | None = None,
    data_dir: str | Path | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    every: int | None = None,
    console: Console | None = None,
    trackers: Sequence[Any] = (),
    model: nn.Module | None = None,
    criterion: Compensated | None = None,
    on_step: Callable[[Batch], None] | None = None,
    on_epoch: Callable[[Metrics], None] | None = None,
    backend: str = "local",
    workers: int | None = None,
) -> Result:
    """Trains as the configuration says, with any method of `METHODS`.

    Args:
        config: the run.
        data: data to use instead of loading `config.data`, which still names the run; or the result of `prepare_run`.
        data_dir: folder of named data sets.
        folder: run folder for checkpoints and results; without one nothing is written.
        resume: continue from the last checkpoint in the folder, with the same result as an uninterrupted run.
        every: steps between checkpoints; by default one a minute and one at the end.
        console: shows a progress bar.
        trackers: accelerate's trackers: names such as "tensorboard", or `GeneralTracker` objects.
        model, criterion: used instead of the ones that the configuration names.
        on_step: called with the batch of every training step.
        on_epoch: called with the metrics of every epoch; an exception ends the training, which can be resumed.
        backend: "local", this process and its peers under `torchrun`; or "ray", the workers of a Ray cluster, which share the
            rows of tables (`order="ranges"`).
        workers: number of Ray workers, with a processor or a graphics card each; all of the cluster if None.

    >>> result = fit(Config(data="digits", noise="pair:0.2", method="logcomp", epochs=1))
    >>> sorted(result.last)
    ['compensated', 'epoch', 'lr', 'test_accuracy', 'test_loss', 'train_accuracy', 'train_loss', 'val_accuracy', 'val_loss']
    """
    if every is not None and every < 1:
        raise InputError(f"every is {every}; expected at least 1 step between two checkpoints.")
    if backend == "ray":
        if criterion is not None or on_step is not None or on_epoch is not None:
            raise InputError(
                'criterion, on_step and on_epoch belong to one process, and backend="ray" trains in others; leave them out, and name '
                "the method in the configuration."
            )
        return fit_on_cluster(
            fit, config, workers=workers, data=None if isinstance(data, Prepared) else data, data_dir=data_dir,
            folder=folder, resume=resume, every=every, trackers=trackers, model=model,
        )  # fmt: skip
    if backend != "local" or workers is not None:
        raise InputError(
            f'backend is "{backend}" and workers is {workers}; expected backend="ray" with a number of workers, or "local" without '
            "one: torchrun --nproc-per-node N starts several processes on this machine."
        )
    begun = time.monotonic()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        hardware = Hardware.detect(precision=config.precision)
        processes = hardware.processes
        prepared = data if isinstance(data, Prepared) else prepare_run(config, data, data_dir)
        model = make_model(prepared) if model is None else model
        ranges = None
        if config.order == "ranges" and processes.size > 1:
            if criterion is not None:
                raise InputError(
                    'a criterion of your own cannot be cut by order="ranges", for it holds the rows of all samples; name its '
                    f"method instead, or {INSTEAD}"
                )
            ranges = Ranges(prepared.train, prepared.config.batch_size or 1, processes)
        with nullcontext() if ranges is None else ranges.holding():
            criterion = make_criterion(prepared, model, data_dir) if criterion is None else criterion
        if ranges is not None:
            check_ranges(criterion, prepared.method.needs, config.method)
        run = Run(folder)
        tracked = Trackers(trackers if processes.main else (), folder)
        description = describe(config) | {"effective": prepared.config.json}
        with run.open(description, processes, resume=resume) as stored:
            tracked.begin({k: v for k, v in prepared.config.json.items() if isinstance(v, int | float | str)})

            def log_epoch(row: Metrics, best: bool) -> None:
                tracked.log(row, step=int(row["epoch"]))
                if on_epoch is not None:
                    on_epoch(row)

            settings, train, parts = (
                prepared.config,
                prepared.train,
                {"val": prepared.validation, "test": prepared.test},
            )
            assert settings.epochs is not None and settings.batch_size is not None and settings.lr is not None  # noqa: PT018
            make = partial(
                make_optimizer, str(settings.optimizer), lr=settings.lr, momentum=settings.momentum,
                weight_decay=settings.weight_decay or 0.0,
            )  # fmt: skip
            ordered = partial(
                order_in_ranges if config.order == "ranges" else order, train, settings.batch_size, seed=config.seed
            )
            needs = prepared.method.needs
            trainer = Trainer(
                Learner(model, criterion, make, needs=needs, clip=config.clip, hardware=hardware, ranges=ranges),
                Samples.of(train, augment=prepared.augment, seed=config.seed),
                epochs=settings.epochs,
                order=lambda epoch: ordered(epoch=epoch),
                rate=partial(rate, settings.lr, schedule=settings.schedule or "constant", warmup=config.warmup),
                accumulate=config.accumulate,
                held_out={name: Samples.of(part) for name, part in parts.items() if part is not None and len(part)},
                clean=prepared.clean_batch,
                stopping=EarlyStopping(by_accuracy, None if prepared.validation is None else config.patience),
                run=run,
                begun=begun,
                on_step=on_step,
                on_epoch=log_epoch,
            )
            trainer.start(prepared.config.seed, stored)
            with _progress_bar(console if processes.main else None, trainer) as show:
                trainer.run(every=every, progress=show)
            tracked.finish()
            history = trainer.history
            best = history[trainer.stopping.best(history)]
            result = Result(
                prepared.config, history, best, trainer.learner.model, trainer.learner.criterion, prepared, trainer.seconds
            )  # fmt: skip
            if processes.main and run.path is not None and run.result is None:
                _store(run, description, trainer, result)
            processes.wait()
            return result


def _store(run: Run, description: dict[str, Any], trainer: Trainer, result: Result) -> None:
    checkpoint.save_weights(run / "model.safetensors", result.model.state_dict())
    prepared, wrong = result.prepared, result.prepared.wrong
    parts = {name: getattr(prepared, name) for name in ("train", "clean", "validation", "test")}
    fitted = agreement(result.model, prepared.train, wrong, device=trainer.device) if wrong.any() else None
    outcome = {
        "last": result.last,
        "best": result.best,
        "selected_on": result.selected_on,
        "epochs": len(result.history),
        "seconds": round(result.seconds, 1),
        "processes": trainer.processes.size,
        "samples": {name: len(part) for name, part in parts.items() if part is not None},
        "wrong_labels": float(wrong.mean()),
        "wrong_labels_fitted": fitted,  # the share of the wrong training labels that the model predicts at the end
    }
    run.write("result.json", description | {"result": outcome})


@contextmanager
def _progress_bar(console: Console | None, trainer: Trainer) -> Iterator[Callable[[int, int, Tensor], None] | None]:
    """A progress bar over all steps with loss, accuracy and the share of compensated samples; None without a console."""
    if console is None:
        yield None
        return
    from rich import progress as p

    bar = p.Progress(
        p.TextColumn("training"), p.BarColumn(bar_width=24), p.MofNCompleteColumn(), p.TextColumn("{task.fields[metrics]}"),
        p.TimeElapsedColumn(), p.TextColumn("left"), p.TimeRemainingColumn(), console=console, transient=True,
    )  # fmt: skip
    task = bar.add_task("", total=trainer.total, completed=trainer.at.step, metrics="")
    drawn = 0.0

    def show(epoch: int, done: int, totals: Tensor) -> None:
        nonlocal drawn
        if time.monotonic() - drawn < 0.1:  # reading from a device synchronizes
            return
        drawn = time.monotonic()
        loss, right, moved, count = totals.tolist()
        count = max(count, 1)
        metrics = f"loss {loss / count:.3f} · accuracy {right / count:.3f} · compensated {moved / count:.1%}"
        bar.update(task, completed=done, metrics=f"epoch {epoch + 1}/{trainer.epochs} · {metrics}")

    with bar:
        yield show
