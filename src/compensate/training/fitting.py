"""`fit`: a run as its configuration says, on the one training loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from compensate.core.batch import Batch
from compensate.core.criterion import Compensated
from compensate.data import Dataset, Splits, gather, order, order_in_ranges
from compensate.errors import InputError
from compensate.training import checkpoint
from compensate.training.config import Config
from compensate.training.distributed import INSTEAD, Ranges, check_ranges
from compensate.training.evaluation import Samples, agreement
from compensate.training.hardware import Hardware, Trackers
from compensate.training.preparation import Prepared, clean_batch, make_criterion, make_model, prepare_run
from compensate.training.run import Result, Run, description
from compensate.training.step import Learner, make_optimizer, rate
from compensate.training.trainer import EarlyStopping, Metrics, Trainer, by_accuracy

if TYPE_CHECKING:
    from rich.console import Console


def fit(
    config: Config,
    *,
    data: Splits | Dataset | None = None,
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
        data: the data itself, where it is not to be loaded by `config.data`; its name then still names the run.
        data_dir: where named data sets are.
        folder: of the run, for checkpoints and results; without one nothing is written.
        resume: go on from the last checkpoint in the folder, exactly as if nothing had happened.
        every: steps between checkpoints; by default one a minute and one at the end.
        console: shows a progress bar.
        trackers: accelerate's trackers: names such as "tensorboard", or `GeneralTracker` objects.
        model, criterion: own ones instead of those that the configuration names.
        on_step: called with the state of every training step.
        on_epoch: called with the metrics of every epoch; what it raises ends the training, which can be resumed.
        backend: "local", this process and those that were started beside it; or "ray", the workers of a Ray cluster, among which
            the rows of tables are cut (`order="ranges"`).
        workers: of the cluster; a processor each, or a graphics card where there are some. All of them if not given.

    >>> result = fit(Config(data="digits", noise="pair:0.2", method="logcomp", epochs=1))
    >>> sorted(result.last)
    ['compensated', 'epoch', 'lr', 'test_accuracy', 'test_loss', 'train_accuracy', 'train_loss', 'val_accuracy', 'val_loss']
    """
    if every is not None and every < 1:
        raise InputError(f"every is {every}; expected at least 1 step between two checkpoints.")
    if backend == "ray":
        from compensate.training.ray import fit_on_cluster

        if criterion is not None or on_step is not None or on_epoch is not None:
            raise InputError(
                'criterion, on_step and on_epoch belong to one process, and backend="ray" trains in others; leave them out, and name '
                "the method in the configuration."
            )
        return fit_on_cluster(
            config, workers=workers, data=data, data_dir=data_dir, folder=folder, resume=resume, every=every,
            trackers=trackers, model=model,
        )  # fmt: skip
    if backend != "local" or workers is not None:
        raise InputError(
            f'backend is "{backend}" and workers is {workers}; expected backend="ray" with a number of workers, or "local" without '
            "one: torchrun --nproc-per-node N starts several processes on this machine."
        )
    begun = time.monotonic()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        hardware = Hardware.found(precision=config.precision)
        processes = hardware.processes
        prepared = prepare_run(config, data, data_dir)
        model = make_model(prepared) if model is None else model
        ranges = _ranges(prepared, hardware, criterion)
        with nullcontext() if ranges is None else ranges.holding():
            criterion = make_criterion(prepared, model, data_dir) if criterion is None else criterion
        if ranges is not None:
            check_ranges(criterion, prepared.method.needs, config.method)
        run = Run(folder)
        tracked = Trackers(trackers if processes.main else (), folder)
        with run.alone() if processes.main else nullcontext():
            # Each process reads the checkpoint; the main one makes the folder first.
            asked = description(config) | {"effective": prepared.config.json}
            found = run.begin(asked, resume=resume) if processes.main else None
            processes.wait()
            if not processes.main and run.path is not None and resume:
                found = checkpoint.latest(run / "checkpoint")
            tracked.begin(_flat(prepared.config))

            def told(row: Metrics, best: bool) -> None:
                tracked.log(row, step=int(row["epoch"]))
                if on_epoch is not None:
                    on_epoch(row)

            trainer = _trainer(prepared, model, criterion, hardware, ranges, run, begun, on_step, told)
            if found is not None:
                trainer.restore(found)
            with Bar(console if processes.main else None, trainer) as bar:
                trainer.run(every=every, progress=bar.step)
            tracked.finish()
            result = _result(prepared, trainer)
            if processes.main and run.path is not None and run.result is None:
                _store(run, asked, trainer, result)
            processes.wait()
            return result


def _ranges(prepared: Prepared, hardware: Hardware, criterion: Compensated | None) -> Ranges | None:
    """The samples that this process owns, if each of several owns a range."""
    config, processes = prepared.config, hardware.processes
    if config.order != "ranges" or processes.size == 1:
        return None
    if criterion is not None:
        raise InputError(
            'a criterion of your own cannot be cut by order="ranges", for it holds the rows of all samples; name its method '
            f"instead, or {INSTEAD}"
        )
    return Ranges(prepared.train, config.batch_size or 1, processes)


def _trainer(
    prepared: Prepared,
    model: nn.Module,
    criterion: Compensated,
    hardware: Hardware,
    ranges: Ranges | None,
    run: Run,
    begun: float,
    on_step: Callable[[Batch], None] | None,
    on_epoch: Callable[[Metrics, bool], None],
) -> Trainer:
    config, data = prepared.config, prepared.train
    assert config.epochs is not None
    assert config.batch_size is not None
    assert config.lr is not None
    decay = config.weight_decay or 0.0
    make = partial(make_optimizer, str(config.optimizer), lr=config.lr, momentum=config.momentum, weight_decay=decay)
    parts = {"val": prepared.validation, "test": prepared.test}
    ordered = order_in_ranges if config.order == "ranges" else order
    trainer = Trainer(
        Learner(
            model, criterion, make, needs=prepared.method.needs, clip=config.clip, hardware=hardware, ranges=ranges
        ),
        Samples.of(data, augment=prepared.augment, seed=config.seed),
        epochs=config.epochs,
        order=lambda epoch: ordered(data, config.batch_size or 1, seed=config.seed, epoch=epoch),
        rate=partial(rate, config.lr, schedule=config.schedule or "constant", warmup=config.warmup),
        accumulate=config.accumulate,
        held_out={name: Samples.of(part) for name, part in parts.items() if part is not None and len(part)},
        clean=partial(_clean, prepared),
        stopping=EarlyStopping(by_accuracy, None if prepared.validation is None else config.patience),
        run=run,
        begun=begun,
        on_step=on_step,
        on_epoch=on_epoch,
    )
    criterion.start(trainer.total)
    torch.manual_seed(config.seed)  # the same numbers from here on, whatever model and criterion drew
    return trainer


def _clean(prepared: Prepared, step: int) -> tuple[Tensor, Tensor]:
    assert prepared.clean is not None
    x, target, _ = gather(prepared.clean, clean_batch(prepared, step))
    return x, target


def _flat(config: Config) -> dict[str, Any]:
    return {k: v for k, v in config.json.items() if isinstance(v, int | float | str)}


def _result(prepared: Prepared, trainer: Trainer) -> Result:
    history, learner = trainer.history, trainer.learner
    best = history[trainer.stopping.best(history)]
    return Result(prepared.config, history, best, learner.model, learner.criterion, prepared, trainer.seconds)


def _store(run: Run, asked: dict[str, Any], trainer: Trainer, result: Result) -> None:
    checkpoint.save_weights(run / "model.safetensors", result.model.state_dict())
    prepared = result.prepared
    named = {name: getattr(prepared, name) for name in ("train", "clean", "validation", "test")}
    wrong = prepared.wrong
    outcome = {
        "last": result.last,
        "best": result.best,
        "selected_on": result.selected_on,
        "epochs": len(result.history),
        "seconds": round(result.seconds, 1),
        "processes": trainer.processes.size,
        "samples": {name: len(part) for name, part in named.items() if part is not None},
        "wrong_labels": float(wrong.mean()),
        # The share of the wrong training labels that the model predicts at the end.
        "wrong_labels_fitted": agreement(result.model, prepared.train, wrong, device=trainer.device)
        if wrong.any()
        else None,
    }
    run.write("result.json", asked | {"result": outcome})


class Bar:
    """A bar over all steps, with loss, accuracy and the share of compensated samples beside it.

    Without a console it is silent, so that the loop need not ask.
    """

    def __init__(self, console: Console | None, trainer: Trainer) -> None:
        self.epochs = trainer.epochs
        self._drawn = 0.0
        self._progress: Any = None
        if console is not None:
            from rich import progress as p

            self._progress = p.Progress(
                p.TextColumn("training"), p.BarColumn(bar_width=24), p.MofNCompleteColumn(),
                p.TextColumn("{task.fields[said]}"), p.TimeElapsedColumn(), p.TextColumn("left"),
                p.TimeRemainingColumn(), console=console, transient=True,
            )  # fmt: skip
            self._task = self._progress.add_task("", total=trainer.total, completed=trainer.at.step, said="")

    def __enter__(self) -> Bar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._progress is not None:
            self._progress.stop()

    def step(self, epoch: int, done: int, totals: Tensor) -> None:
        """Shows where the run stands, at most ten times a second: reading a number off a device makes it wait."""
        if self._progress is None or time.monotonic() - self._drawn < 0.1:
            return
        self._drawn = time.monotonic()
        loss, right, moved, count = totals.tolist()
        count = max(count, 1)
        self._progress.update(
            self._task,
            completed=done,
            said=f"epoch {epoch + 1}/{self.epochs} · loss {loss / count:.3f} · accuracy {right / count:.3f} · "
            f"compensated {moved / count:.1%}",
        )
