"""`fit` trains a run from its configuration, in this process, under `torchrun` or on a Ray cluster. `train_and_record` trains
on arrays and records predictions of each sample before every step that learns from it, and of held-out samples.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from compensate.core.batch import Batch
from compensate.core.criterion import Compensated
from compensate.core.layout import HeldRows, holding_rows
from compensate.core.statistics import Evidence
from compensate.data import CropFlip, Dataset, Splits, order, order_in_ranges
from compensate.data.dataset import generator
from compensate.data.load import NAMED
from compensate.errors import InputError, check
from compensate.extras import ray_cluster, require
from compensate.files import Progress
from compensate.methods.composition import find
from compensate.training import checkpoint
from compensate.training.config import Config
from compensate.training.distributed import INSTEAD, Hardware, Processes, Ranges, check_ranges
from compensate.training.evaluation import Inputs, Rows, Samples, evaluate, even_batches, predict
from compensate.training.preparation import Prepared, make_criterion, make_model, model_sizes, prepare_run
from compensate.training.run import Run, describe, versions
from compensate.training.step import Learner, make_optimizer, parameter_groups, rate
from compensate.training.trainer import EarlyStopping, Interrupted, Metrics, Trainer

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

AUGMENT = {"none": None, "crop": CropFlip(flip=False), "crop-flip": CropFlip()}
"""Augmentation of images, by name."""

PREDICTION_BATCH_FACTOR = 4
"""Batches for prediction are larger by this factor, because prediction keeps no gradients."""

DIGEST_ROWS = 16
"""Rows whose inputs are part of the identity of a recorded run; reading all of them may take longer than an epoch."""

MAX_FAILURES = 3
"""How often a training on a cluster restarts from its last checkpoint after a lost worker."""


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run.

    Attributes:
        config: with the defaults of the model filled in.
        history, best: the metrics of each epoch, and of the epoch with the highest validation accuracy, else test accuracy.
        model, criterion: after the last epoch; with `average`, the model has the running mean of the weights.

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
        columns = ("index", "suggested", "score", "flagged")
        index, suggested, score, flagged = (getattr(suspects, name).cpu().numpy() for name in columns)
        target = np.zeros(train.rows, dtype=np.int64)
        target[train.index] = train.target
        # Outputs beyond the classes, such as abstention, are never suggested.
        names = np.array([*train.classes, *[""] * self.prepared.method.extra_outputs], dtype=object)
        found = {"index": index, "given": names[target[index]], "suggested": names[suggested]}
        return pd.DataFrame(found | {"score": score, "flagged": flagged})


MIN_AGREEMENT = 0.2
"""Below this `agreement_with_labels` a model has learned too little to judge labels."""


def agreement_with_labels(suspects: pd.DataFrame) -> float:
    """Agreement of a model with the given labels: 0 for always naming the most common class, 1 for full agreement."""
    others = 1 - float(suspects["given"].value_counts(normalize=True).max())
    return 1 - float(suspects["flagged"].mean()) / others if others else 1.0


def fit(
    config: Config, *,
    data: Splits | Dataset | Prepared | None = None, data_dir: str | Path | None = None,
    folder: str | Path | None = None, resume: bool = False, every: int | None = None,
    console: Console | None = None, trackers: Sequence[Any] = (),
    model: nn.Module | None = None, criterion: Compensated | None = None,
    on_step: Callable[[Batch], None] | None = None, on_epoch: Callable[[Metrics], None] | None = None,
    backend: str = "local", workers: int | None = None,
) -> Result:  # fmt: skip
    """Trains as the configuration says, with any method of `METHODS`.

    Args:
        config: the run.
        data: data to use instead of loading `config.data`, which still names the run; or the result of `prepare_run`.
        data_dir, folder: of named data sets; and of the run, for checkpoints and results. Without a folder nothing is written.
        resume: continue from the last checkpoint in the folder, with the same result as an uninterrupted run.
        every: steps between checkpoints; by default one a minute and one at the end.
        console: shows a progress bar.
        trackers: of accelerate: names such as "tensorboard", or `GeneralTracker` objects.
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
    check(every is None or every >= 1, "at least 1 step between two checkpoints", every=every)
    if backend == "ray":
        if criterion is not None or on_step is not None or on_epoch is not None:
            raise InputError(
                'criterion, on_step and on_epoch belong to one process, and backend="ray" trains in others; leave them out, and name '
                "the method in the configuration."
            )
        shared: dict[str, Any] = {"config": config.replace(order="ranges"), "data_dir": data_dir, "model": model}
        shared["data"] = None if isinstance(data, Prepared) else data
        return _fit_on_cluster(shared, folder, workers, resume=resume, every=every, trackers=trackers)
    if backend != "local" or workers is not None:
        raise InputError(
            f'backend is "{backend}" and workers is {workers}; expected backend="ray" with a number of workers, or "local" without '
            "one: torchrun --nproc-per-node N starts several processes on this machine."
        )
    begun = time.monotonic()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        processes = Processes.launched()
        hardware = Hardware(None, config.precision, processes)
        prepared = data if isinstance(data, Prepared) else prepare_run(config, data, data_dir)
        model = make_model(prepared) if model is None else model
        ranges = None
        if config.order == "ranges" and processes.size > 1:
            if criterion is not None:
                raise InputError(
                    'a given criterion has rows of all samples, and order="ranges" keeps a part of them in each process; name its '
                    f"method instead, or {INSTEAD}"
                )
            ranges = Ranges(prepared.train, prepared.config.batch_size or 1, processes)
            with holding_rows(ranges.held):
                criterion = make_criterion(prepared, model, data_dir)
            check_ranges(criterion, prepared.method.needs, config.method)
        elif criterion is None:
            criterion = make_criterion(prepared, model, data_dir)
        run, settings, train = Run(folder), prepared.config, prepared.train
        assert settings.epochs is not None and settings.batch_size is not None and settings.lr is not None  # noqa: PT018
        description = describe(config) | {"effective": settings.json}
        with (
            tracking(trackers, folder, settings) if trackers and processes.main else nullcontext() as track,
            run.open(description, processes, resume=resume) as stored,
        ):

            def log_epoch(row: Metrics, best: bool) -> None:
                if track is not None:
                    track(row)
                if on_epoch is not None:
                    on_epoch(row)

            make = partial(
                make_optimizer, str(settings.optimizer), lr=settings.lr, momentum=settings.momentum,
                weight_decay=settings.weight_decay or 0.0,
            )  # fmt: skip
            batches = order_in_ranges if config.order == "ranges" else order
            ordered = partial(batches, train, settings.batch_size, seed=config.seed)
            parts = {"val": prepared.validation, "test": prepared.test}
            learner = Learner(
                model, criterion, make, needs=prepared.method.needs, clip=config.clip, hardware=hardware, ranges=ranges,
                average=config.average,
            )  # fmt: skip
            trainer = Trainer(
                learner, Samples.of(train, augment=AUGMENT[settings.augment or "none"], seed=config.seed),
                epochs=settings.epochs,
                order=lambda epoch: ordered(epoch=epoch),
                rate=partial(rate, settings.lr, schedule=settings.schedule or "constant", warmup=config.warmup),
                accumulate=config.accumulate,
                held_out={name: Samples.of(part) for name, part in parts.items() if part is not None and len(part)},
                clean=prepared.clean_batch,
                stopping=EarlyStopping(patience=None if prepared.validation is None else config.patience),
                folder=run, begun=begun, on_step=on_step, on_epoch=log_epoch,
            )  # fmt: skip
            with nullcontext() if console is None or not processes.main else _progress_bar(console, trainer) as show:
                history = trainer.run(seed=config.seed, stored=stored, every=every, progress=show)
            best = history[trainer.stopping.best(history)]
            result = Result(settings, history, best, learner.averaged, criterion, prepared, trainer.seconds)
            if processes.main and run.path is not None and run.result is None:
                _store(run, description, trainer, result)
            processes.wait()
            return result


def _store(run: Run, description: dict[str, Any], trainer: Trainer, result: Result) -> None:
    checkpoint.save_weights(run / "model.safetensors", result.model.state_dict())
    prepared, wrong = result.prepared, result.prepared.wrong
    parts = {name: getattr(prepared, name) for name in ("train", "clean", "validation", "test")}
    fitted = None  # the share of the wrong training labels that the model predicts at the end
    if wrong.any():
        fitted = evaluate(result.model, prepared.train.subset(wrong), device=trainer.device)["accuracy"]
    outcome = {
        "last": result.last, "best": result.best, "selected_on": result.selected_on, "epochs": len(result.history),
        "seconds": round(result.seconds, 1), "processes": trainer.processes.size,
        "samples": {name: len(part) for name, part in parts.items() if part is not None},
        "wrong_labels": float(wrong.mean()), "wrong_labels_fitted": fitted,
    }  # fmt: skip
    run.write("result.json", description | {"result": outcome})


@contextmanager
def tracking(trackers: Sequence[Any], folder: str | Path | None, config: Config) -> Iterator[Callable[[Metrics], None]]:
    """Yields a function that logs the metrics of an epoch to accelerate's experiment trackers, which start at its first call."""
    accelerate = require("accelerate", "tracking", "accelerate")
    project, cpu = None if folder is None else str(folder), not torch.cuda.is_available()
    try:
        made = accelerate.Accelerator(cpu=cpu, log_with=list(trackers), project_dir=project)
    except ValueError as error:
        raise InputError(f"{error} Leave out the tracker that is not installed.") from error
    if len(made.log_with) < len(trackers):
        raise InputError(
            f"not all trackers of {', '.join(map(str, trackers))} are installed; pip install the missing ones."
        )
    settings = {k: v for k, v in config.json.items() if isinstance(v, int | float | str)}

    def log(row: Metrics) -> None:
        if not made.trackers:
            made.init_trackers("compensate", config=settings)
        made.log(row, step=int(row["epoch"]))

    yield log
    for tracker in made.trackers:
        tracker.finish()


@contextmanager
def _progress_bar(console: Console, trainer: Trainer) -> Iterator[Callable[[int, int, Tensor], None]]:
    """A progress bar over all steps with loss, accuracy and the share of compensated samples."""
    from rich import progress as p

    bar = p.Progress(
        p.TextColumn("training"), p.BarColumn(bar_width=24), p.MofNCompleteColumn(), p.TextColumn("{task.fields[metrics]}"),
        p.TimeElapsedColumn(), p.TextColumn("left"), p.TimeRemainingColumn(), console=console, transient=True,
    )  # fmt: skip
    task = bar.add_task("", total=trainer.total, metrics="")

    def show(epoch: int, done: int, totals: Tensor) -> None:
        loss, right, moved = (totals[:3] / totals[3].clamp(min=1)).tolist()
        metrics = f"loss {loss:.3f} · accuracy {right:.3f} · compensated {moved:.1%}"
        bar.update(task, completed=done, metrics=f"epoch {epoch + 1}/{trainer.epochs} · {metrics}")

    with bar:
        yield show


def _fit_on_cluster(
    shared: dict[str, Any], folder: str | Path | None, workers: int | None, *, resume: bool, **options: Any
) -> Result:
    """`fit` with the workers of a Ray cluster: each owns a range of the samples, and all restart from the last checkpoint.

    All machines must see the folder. The result is read from it: the tables of the criterion have the rows of all samples.
    """
    config, data_dir = shared["config"], shared["data_dir"]
    with ExitStack() as stack:
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="compensate-"))
        run = Run(Path(folder).expanduser().resolve())
        # Input errors are raised here, because Ray would restart workers that raise them.
        prepared = prepare_run(config, shared["data"], data_dir)
        with holding_rows(HeldRows(0, 1, of=prepared.train.rows)):  # a criterion without its rows
            model = make_model(prepared) if shared["model"] is None else shared["model"]
            criterion = make_criterion(prepared, model, data_dir)
        check_ranges(criterion, prepared.method.needs, config.method)
        with run.open(describe(config) | {"effective": prepared.config.json}, Processes(), resume=resume):
            pass
        if run.result is None:
            job = {"arguments": {**shared, **options, "folder": run.path}, "home": os.getcwd(), "named": dict(NAMED)}
            _train_on_cluster(run, prepared, workers, job)
        return fit(**shared, folder=run.path, resume=True)


def _train_on_cluster(run: Run, prepared: Prepared, workers: int | None, job: dict[str, Any]) -> None:
    require("ray.train.torch", 'backend="ray"', "cluster")
    from ray import exceptions, train
    from ray.train import torch as train_torch

    with ray_cluster('backend="ray"', workers) as ray:
        resources = ray.cluster_resources()
        cards = int(resources.get("GPU", 0))
        most = cards or int(resources.get("CPU", 1))
        workers = most if workers is None else workers
        if workers > most:
            raise InputError(
                f"{workers} workers were asked for, and the cluster has {most} {'graphics cards' if cards else 'processors'}; "
                f"ask for {most} or fewer."
            )
        Ranges(prepared.train, prepared.config.batch_size or 1, Processes(workers))  # raises for too many workers
        storage, failures = run / "ray", train.FailureConfig(max_failures=MAX_FAILURES)
        trainer = train_torch.TorchTrainer(
            _work, train_loop_config=job,
            scaling_config=train.ScalingConfig(num_workers=workers, use_gpu=cards > 0),
            torch_config=train_torch.TorchConfig(backend="cpu:gloo,cuda:nccl" if cards else "gloo"),
            run_config=train.RunConfig(storage_path=str(storage), failure_config=failures),
        )  # fmt: skip
        handler = signal.getsignal(signal.SIGINT)
        try:
            trainer.fit()
        except (SystemExit, exceptions.RayActorError):  # Ray raises these after Ctrl-C
            stored = checkpoint.latest(run / "checkpoint")
            raise Interrupted(0 if stored is None else stored["at"]["step"]) from None
        except train.TrainingFailedError as error:
            raise _reason(error) from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, handler)  # Ray Train leaves its own handler behind
            shutil.rmtree(storage, ignore_errors=True)


def _work(job: dict[str, Any]) -> None:
    """The function that each worker runs; Ray Train has connected the workers."""
    from ray import train

    NAMED.update(job["named"])
    if Path(job["home"]).is_dir():
        os.chdir(job["home"])  # Ray Train changes the folder, and paths may be relative
    fit(**job["arguments"], resume=True, on_epoch=lambda row: train.report(dict(row)))


def _reason(error: Exception) -> Exception:
    """The `InputError` of a worker if there is one; else an error that quotes Ray's."""
    for failure in getattr(error, "worker_failures", {}).values():
        inner: BaseException | None = failure
        while inner is not None:
            if isinstance(inner, InputError):
                return inner
            inner = getattr(inner, "_base_exc", None) or inner.__cause__
    return InputError(
        f"the training was started {MAX_FAILURES + 1} times on the cluster, and a worker was lost each time: {error}. The last "
        "checkpoint is kept: resume with fewer workers, or with a smaller batch if memory was short."
    )


@dataclass(frozen=True, eq=False)
class TrainingRecord:
    """The record of a training on N rows.

    Attributes:
        margin, loss, size, agreement: (N,) means over the visits of a row, each before the step that learns from it: the logit
            of the given label minus the largest other one, the plain loss, the size of the compensation, and how often the
            given label was the most likely; NaN for rows that were not trained on.
        probabilities: (N, C) the mean prediction over the visits; NaN for the same rows.
        held_out, predictions: the rows that were not trained on, and (len(held_out), C) the predictions of the model for them.
        history, model: metrics of each epoch, and the trained model.
    """

    margin: NDArray[np.float64]
    loss: NDArray[np.float64]
    size: NDArray[np.float64]
    agreement: NDArray[np.float64]
    probabilities: NDArray[np.float32]
    held_out: Rows
    predictions: NDArray[np.float32]
    history: list[Metrics]
    model: nn.Module


def train_and_record(
    inputs: Inputs | NDArray[Any] | Tensor | Dataset | Samples, labels: Sequence[int] | NDArray[Any], num_classes: int, *,
    model: nn.Module | Callable[[], nn.Module], method: str = "logcomp", hyper: Mapping[str, Any] | None = None,
    epochs: int = 20, batch_size: int = 64, lr: float = 1e-3, optimizer: str = "adamw", weight_decay: float = 0.0,
    schedule: str = "cosine", warmup: float = 0.0, factors: Mapping[str, float] | None = None,
    device: torch.device | str | None = None, precision: str = "no", seed: int = 0,
    run_folder: str | Path | None = None, resume: bool = False, every: int | None = None,
    progress: Progress | None = None, rows: Sequence[int] | NDArray[Any] | None = None,
) -> TrainingRecord:  # fmt: skip
    """Trains a model on some rows with any method, and records its predictions for each of them.

    Under `torchrun` all processes call it with the same arguments and get the same answer.

    Args:
        inputs: a function ``batch(rows, epoch)`` that gives the inputs of some rows (`epoch` is None in evaluation, without
            augmentation), an array or tensor with a row for each sample, a data set, or `Samples`.
        labels, num_classes: (N,) class numbers, -1 for a row without a label, which is never trained on; and their number.
        model: a module, which is copied and trained from its present weights; or a function that makes one.
        method, hyper: a name in `compensate.METHODS`, without clean data, teacher or groups, and its hyper-parameters.
        epochs, batch_size, lr, optimizer, weight_decay, schedule, warmup: of the training; the learning rate follows the
            schedule step by step, after a linear warmup over a share of the steps.
        factors: factors of the learning rate, by the name of a part of the model.
        device, precision: of torch, a graphics card if there is one; and "no", "bf16" or "fp16".
        seed: of order, dropout and the weights of a new model.
        run_folder, resume, every: as for `fit`.
        progress: called after each step with the number of finished steps and of all steps.
        rows: the rows to train on, by default all with a label. The trained model predicts the others.

    >>> x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long().numpy()
    >>> record = train_and_record(x, y, 2, model=lambda: nn.Linear(4, 2), epochs=3, lr=0.1, rows=range(50))
    >>> record.margin.shape, bool(np.isnan(record.margin[50:]).all()), record.predictions.shape
    ((60,), True, (10, 2))
    """
    if isinstance(inputs, Dataset):
        inputs = Samples.of(inputs).batch
    if isinstance(inputs, Samples):
        samples = replace(inputs, labels=np.asarray(labels))
    elif callable(inputs):
        samples = Samples(inputs, np.asarray(labels), num_classes)
    else:
        samples = Samples.of_arrays(inputs, labels, num_classes=num_classes)
    given, n = samples.labels, len(samples)
    chosen = np.flatnonzero(given >= 0) if rows is None else np.unique(np.asarray(rows, dtype=np.int64))
    if len(chosen) and not 0 <= chosen[0] <= chosen[-1] < n:
        raise InputError(f"rows are from {chosen[0]} to {chosen[-1]}; expected positions from 0 to {n - 1}.")
    if (given[chosen] < 0).any():
        raise InputError(f"row {chosen[given[chosen] < 0][0]} has no label; leave it out of rows.")
    row, hyper, factors = find(method), dict(hyper or {}), dict(factors or {})
    if missing := sorted(row.needs & {"clean", "teacher", "group"}):
        raise InputError(f"{row.name} needs more than samples and labels ({', '.join(missing)}); choose another.")
    if len(chosen) < 2:
        raise InputError(f"{len(chosen)} rows are left to train on; expected two or more with a label.")
    settings = {
        "method": method, "hyper": hyper, "epochs": epochs, "batch_size": batch_size, "lr": lr, "optimizer": optimizer,
        "weight_decay": weight_decay, "schedule": schedule, "warmup": warmup, "factors": factors, "precision": precision,
        "seed": seed,
    }  # fmt: skip
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        hardware = Hardware(device, precision, Processes.launched())
        torch.manual_seed(int(generator(seed, "weights").integers(2**31)))
        network = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
        sizes = model_sizes(network, samples.batch(chosen[:2], None))
        counts = np.bincount(given[chosen], minlength=num_classes).tolist()
        criterion = row.make(num_samples=n, num_classes=num_classes, class_counts=counts, **sizes, **hyper)
        record = criterion.record = Evidence(n, score="margin", num_classes=num_classes, predictions=True)
        part, run = samples.subset(chosen), Run(run_folder)
        description = {} if run.path is None else _describe(settings, samples, chosen, network)

        def make(parameters: Any) -> torch.optim.Optimizer:
            return make_optimizer(optimizer, parameter_groups(network, factors), lr=lr, weight_decay=weight_decay)

        def report(epoch: int, done: int, totals: Tensor) -> None:
            if progress is not None and hardware.processes.main:
                progress(done, trainer.total)

        with run.open(description, hardware.processes, resume=resume) as stored:
            trainer = Trainer(
                Learner(network, criterion, make, needs=row.needs, hardware=hardware), part, epochs=epochs, folder=run,
                order=lambda epoch: even_batches(len(part), batch_size, seed=seed, epoch=epoch, lengths=part.lengths),
                rate=partial(rate, lr, schedule=schedule, warmup=warmup),
            )  # fmt: skip
            history = trainer.run(seed=seed, stored=stored, every=every, progress=report)
        held_out = np.setdiff1d(np.arange(n), chosen)
        logits = predict(
            network, samples.subset(held_out), device=hardware.device, processes=hardware.processes,
            batch_size=PREDICTION_BATCH_FACTOR * batch_size,
        )  # fmt: skip
        return TrainingRecord(
            **{name: record.mean(name).double().cpu().numpy() for name in ("margin", "loss", "size", "agreement")},
            probabilities=record.mean_predictions().cpu().numpy(), held_out=held_out,
            predictions=logits.softmax(-1).numpy(), history=history, model=network.eval(),
        )  # fmt: skip


def _describe(settings: dict[str, Any], samples: Samples, chosen: Rows, model: nn.Module) -> dict[str, Any]:
    """The settings with digests of labels, rows, initial weights and the inputs of some rows; their hash is the id of the run."""

    def digest(*arrays: Any) -> str:
        content = hashlib.sha256()
        for array in arrays:
            plain = array.detach().cpu().float().numpy() if isinstance(array, Tensor) else array
            content.update(str(plain.shape).encode() + np.ascontiguousarray(plain).tobytes())
        return content.hexdigest()

    x = samples.batch(chosen[:: max(1, len(chosen) // DIGEST_ROWS)][:DIGEST_ROWS], None)
    inputs, weights = digest(*(x,) if isinstance(x, Tensor) else ()), digest(*model.state_dict().values())
    digests = {"labels": digest(samples.labels), "rows": digest(chosen), "inputs": inputs, "model": weights}
    text = json.dumps({**settings, **digests}, sort_keys=True, separators=(",", ":"), default=str)
    return {"id": hashlib.sha256(text.encode()).hexdigest(), "config": json.loads(text), "versions": versions()}
