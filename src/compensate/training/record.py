"""Training that records predictions: of each sample before every step that learns from it, and of held-out samples."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from compensate.core.statistics import Evidence
from compensate.data import Dataset
from compensate.data.dataset import generator
from compensate.errors import InputError
from compensate.files import Progress
from compensate.methods.composition import find
from compensate.training.evaluation import Inputs, Rows, Samples, even_batches, predict
from compensate.training.hardware import Hardware
from compensate.training.preparation import model_sizes
from compensate.training.run import Run, versions
from compensate.training.step import Learner, make_optimizer, parameter_groups, rate
from compensate.training.trainer import Metrics, Trainer

PREDICTED = 4
"""Prediction uses batches this many times larger than training, because it keeps no gradients."""

DIGEST_ROWS = 16
"""Rows whose inputs are part of a run's identity; reading all of them may take longer than an epoch."""


@dataclass(frozen=True, eq=False)
class TrainingRecord:
    """The record of a training on N rows.

    Attributes:
        margin, loss, size, agreement: (N,) means over the visits of a row, each before the step that learns from it: the logit
            of the given label minus the largest other one, the plain loss, the size of the compensation, and how often the
            given label was the most likely; NaN for rows that were not trained on.
        probabilities: (N, C) the mean prediction over the visits; NaN for the same rows.
        held_out: the rows that were not trained on.
        predictions: (len(held_out), C) predictions of the trained model for these.
        history: metrics of each epoch.
        model: the trained model.
        evidence: the criterion's record.
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
    evidence: Evidence


def train_and_record(
    inputs: Inputs | NDArray[Any] | Tensor | Dataset | Samples,
    labels: Sequence[int] | NDArray[Any],
    num_classes: int,
    *,
    model: nn.Module | Callable[[], nn.Module],
    method: str = "logcomp",
    hyper: Mapping[str, Any] | None = None,
    epochs: int = 20,
    batch_size: int = 64,
    lr: float = 1e-3,
    optimizer: str = "adamw",
    weight_decay: float = 0.0,
    schedule: str = "cosine",
    warmup: float = 0.0,
    factors: Mapping[str, float] | None = None,
    device: torch.device | str | None = None,
    precision: str = "no",
    seed: int = 0,
    run_folder: str | Path | None = None,
    resume: bool = False,
    every: int | None = None,
    progress: Progress | None = None,
    rows: Sequence[int] | NDArray[Any] | None = None,
) -> TrainingRecord:
    """Trains a model on some rows with any method, and records its predictions for each of them.

    Under `torchrun` all processes call it with the same arguments and get the same answer.

    Args:
        inputs: a function ``batch(rows, epoch)`` that gives the inputs of some rows (`epoch` is None in evaluation, without
            augmentation), an array or tensor with a row for each sample, a data set, or `Samples`.
        labels: (N,) class numbers; -1 for a row without a label, which is never trained on.
        num_classes: the number of classes.
        model: a module, which is copied and trained from its present weights; or a function that makes one.
        method: a name in `compensate.METHODS`, of a method without clean data, teacher or groups.
        hyper: its hyper-parameters.
        epochs, batch_size, lr, optimizer, weight_decay, schedule, warmup: of the training; the learning rate follows the
            schedule step by step, after a linear warmup over a share of the steps.
        factors: factors of the learning rate, by the name of a part of the model.
        device: of torch; a graphics card if there is one.
        precision: "no", "bf16" or "fp16".
        seed: of order, dropout and the weights of a new model.
        run_folder: for checkpoints; nothing is written without one.
        resume: continue from the last checkpoint in the folder, if there is one.
        every: steps between checkpoints; by default one a minute and one at the end.
        progress: called after each step with the number of finished steps and of all steps.
        rows: the rows to train on, by default all with a label. The trained model predicts the others.

    >>> x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long().numpy()
    >>> record = train_and_record(x, y, 2, model=lambda: nn.Linear(4, 2), epochs=3, lr=0.1, rows=range(50))
    >>> record.margin.shape, bool(np.isnan(record.margin[50:]).all()), record.predictions.shape
    ((60,), True, (10, 2))
    """
    samples = _samples(inputs, np.asarray(labels), num_classes)
    trained_rows = _labeled_rows(samples.labels, rows)
    settings = {
        "method": method, "hyper": dict(hyper or {}), "epochs": epochs, "batch_size": batch_size, "lr": lr,
        "optimizer": optimizer, "weight_decay": weight_decay, "schedule": schedule, "warmup": warmup,
        "factors": dict(factors or {}), "precision": precision, "seed": seed,
    }  # fmt: skip
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        hardware = Hardware.detect(device, precision)
        processes = hardware.processes
        torch.manual_seed(int(generator(seed, "weights").integers(2**31)))
        network = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
        criterion = _criterion(samples, trained_rows, network, method, dict(hyper or {}))
        run = Run(run_folder)
        description = {} if run.path is None else _describe(settings, samples, trained_rows, network)

        def make(parameters: Any) -> torch.optim.Optimizer:
            groups = parameter_groups(network, factors or {})
            return make_optimizer(optimizer, groups, lr=lr, weight_decay=weight_decay)

        def report(epoch: int, done: int, totals: Tensor) -> None:
            if progress is not None and processes.main:
                progress(done, trainer.total)

        with run.open(description, processes, resume=resume) as stored:
            part = samples.subset(trained_rows)
            trainer = Trainer(
                Learner(network, criterion, make, needs=find(method).needs, hardware=hardware),
                part,
                epochs=epochs,
                order=lambda epoch: even_batches(len(part), batch_size, seed=seed, epoch=epoch, lengths=part.lengths),
                rate=partial(rate, lr, schedule=schedule, warmup=warmup),
                run=run,
            )
            trainer.start(seed, stored)
            trainer.run(every=every, progress=report)
        return _recorded(trainer, samples, trained_rows, PREDICTED * batch_size)


def _samples(inputs: Any, labels: NDArray[Any], num_classes: int) -> Samples:
    if isinstance(inputs, Dataset):
        inputs = Samples.of(inputs).batch
    if isinstance(inputs, Samples):
        return replace(inputs, labels=labels)
    if not callable(inputs):
        return Samples.of_arrays(inputs, labels, num_classes=num_classes)
    return Samples(inputs, labels, num_classes)


def _labeled_rows(labels: NDArray[np.int64], rows: Any) -> Rows:
    if rows is None:
        return np.flatnonzero(labels >= 0)
    chosen = np.unique(np.asarray(rows, dtype=np.int64))
    if len(chosen) and not 0 <= chosen[0] <= chosen[-1] < len(labels):
        raise InputError(f"rows are from {chosen[0]} to {chosen[-1]}; expected positions from 0 to {len(labels) - 1}.")
    if (labels[chosen] < 0).any():
        row = int(chosen[labels[chosen] < 0][0])
        raise InputError(f"row {row} has no label; leave it out of rows.")
    return chosen


def _criterion(samples: Samples, chosen: Rows, model: nn.Module, method: str, hyper: dict[str, Any]) -> Any:
    row = find(method)
    missing = sorted(row.needs & {"clean", "teacher", "group"})
    if missing:
        raise InputError(
            f"{row.name} needs more than samples and labels ({', '.join(missing)}); choose another method."
        )
    if len(chosen) < 2:
        raise InputError(f"{len(chosen)} rows are left to train on; expected two or more with a label.")
    sizes = model_sizes(model, samples.batch(chosen[:2], None))
    counts = np.bincount(samples.labels[chosen], minlength=samples.num_classes)
    criterion = row.make(
        num_samples=len(samples), num_classes=samples.num_classes, class_counts=counts.tolist(), **sizes, **hyper
    )
    criterion.record = Evidence(len(samples), score="margin", num_classes=samples.num_classes, predictions=True)
    return criterion


def _describe(settings: dict[str, Any], samples: Samples, chosen: Rows, model: nn.Module) -> dict[str, Any]:
    """The settings with digests of labels, rows, initial weights and the inputs of some rows; their hash is the id of the run."""
    x = samples.batch(chosen[:: max(1, len(chosen) // DIGEST_ROWS)][:DIGEST_ROWS], None)
    config = {
        **settings,
        "labels": _digest(samples.labels),
        "rows": _digest(chosen),
        "inputs": _digest(*(x,) if isinstance(x, Tensor) else ()),
        "model": _digest(*model.state_dict().values()),
    }
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), default=str)
    return {"id": hashlib.sha256(text.encode()).hexdigest(), "config": json.loads(text), "versions": versions()}


def _digest(*arrays: Any) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        plain = array.detach().cpu().float().numpy() if isinstance(array, Tensor) else array
        digest.update(str(plain.shape).encode() + np.ascontiguousarray(plain).tobytes())
    return digest.hexdigest()


def _recorded(trainer: Trainer, samples: Samples, chosen: Rows, batch_size: int) -> TrainingRecord:
    learner = trainer.learner
    record = learner.criterion.record
    assert record is not None
    held_out = np.setdiff1d(np.arange(len(samples)), chosen)
    logits = predict(
        learner.model,
        samples.subset(held_out),
        device=learner.device,
        processes=learner.processes,
        batch_size=batch_size,
    )
    means = {name: record.mean(name).double().cpu().numpy() for name in ("margin", "loss", "size", "agreement")}
    return TrainingRecord(
        **means,
        probabilities=record.mean_predictions().cpu().numpy(),
        held_out=held_out,
        predictions=logits.softmax(-1).numpy(),
        history=trainer.history,
        model=learner.model.eval(),
        evidence=record,
    )
