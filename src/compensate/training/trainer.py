"""The training loop of every command and estimator: epochs, checkpoints, exact resume, early stopping."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compensate.core.batch import Batch
from compensate.errors import InputError
from compensate.training import checkpoint
from compensate.training.distributed import Exchange
from compensate.training.evaluation import Rows, Samples, means_of, sums
from compensate.training.hardware import move
from compensate.training.run import Run
from compensate.training.step import Learner, TrainingBatch

SECONDS = 60.0
"""Seconds between checkpoints, unless a number of steps is given."""

Metrics = dict[str, float]


class Interrupted(KeyboardInterrupt):
    """Raised after Ctrl-C or SIGTERM, once a checkpoint is stored.

    >>> Interrupted(7).step
    7
    """

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step}; a checkpoint is stored.")
        self.step = step


@dataclass
class Position:
    """The progress of a run, as checkpoints store it."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    seconds: float = 0.0
    history: list[Metrics] = field(default_factory=list)


@dataclass(frozen=True)
class EarlyStopping:
    """Selects the best epoch, and stops after `patience` epochs without a better one.

    Attributes:
        score: maps an epoch's metrics to a score; larger is better.
        patience: number of epochs to wait; None never stops.
        tolerance: gains up to this size do not count.

    >>> stopping = EarlyStopping(lambda row: row["val_accuracy"], patience=2)
    >>> history = [{"val_accuracy": a} for a in (0.5, 0.7, 0.7, 0.6)]
    >>> stopping.best(history), stopping.stops(history)
    (1, True)
    """

    score: Callable[[Metrics], float]
    patience: int | None = None
    tolerance: float = 0.0

    def best(self, history: Sequence[Metrics]) -> int:
        """The index of the best epoch, the first among equals."""
        index, best = 0, -np.inf
        for k, row in enumerate(history):
            if self.score(row) > best + self.tolerance:
                index, best = k, self.score(row)
        return index

    def stops(self, history: Sequence[Metrics]) -> bool:
        """Whether training stops now."""
        if self.patience is None or not history:
            return False
        return len(history) - 1 - self.best(history) >= self.patience


def by_accuracy(row: Metrics) -> float:
    """Validation accuracy, else test accuracy, else training accuracy.

    >>> by_accuracy({"val_accuracy": 0.5, "test_accuracy": 0.7})
    0.5
    """
    return next(row[name] for name in ("val_accuracy", "test_accuracy", "train_accuracy") if name in row)


class Trainer:
    """Trains a `Learner` for some epochs.

    Args:
        learner: model, criterion and optimizer.
        samples: the training samples.
        epochs: number of passes over them.
        order: maps an epoch to its batches, as rows of `samples`.
        rate: maps the number of a step and of all steps to the learning rate.
        accumulate: number of batches per optimizer step.
        held_out: samples for evaluation after each epoch, by the prefix of their metrics.
        clean: maps a step to a trusted batch ``(x, target)``, for methods with a meta step.
        stopping: selection of the best epoch, and early stopping.
        run: folder for metrics, checkpoints and the best weights; nothing is written without one.
        begun: start of the run, by the monotonic clock.
        on_step: called with the batch of every step.
        on_epoch: called with the metrics of every epoch, and whether it is the best until now.

    >>> from compensate import methods
    >>> from compensate.training.evaluation import even_batches
    >>> x, y = torch.randn(40, 3), torch.arange(40) % 2
    >>> samples = Samples.of_arrays(x, y.numpy(), num_classes=2)
    >>> criterion = methods.logcomp(num_samples=40, num_classes=2)
    >>> learner = Learner(torch.nn.Linear(3, 2), criterion, lambda p: torch.optim.Adam(p, 0.1))
    >>> trainer = Trainer(
    ...     learner, samples, epochs=2, order=lambda epoch: even_batches(40, 10, seed=0, epoch=epoch), rate=lambda step, total: 0.1
    ... )
    >>> _ = trainer.run()
    >>> [sorted(row) for row in trainer.history][0]
    ['compensated', 'epoch', 'lr', 'train_accuracy', 'train_loss']
    """

    def __init__(
        self,
        learner: Learner,
        samples: Samples,
        *,
        epochs: int,
        order: Callable[[int], Sequence[Rows]],
        rate: Callable[[int, int], float],
        accumulate: int = 1,
        held_out: Mapping[str, Samples] | None = None,
        clean: Callable[[int], tuple[Any, Tensor]] | None = None,
        stopping: EarlyStopping | None = None,
        run: Run | None = None,
        begun: float | None = None,
        on_step: Callable[[Batch], None] | None = None,
        on_epoch: Callable[[Metrics, bool], None] | None = None,
    ) -> None:
        self.learner, self.samples, self.epochs, self.accumulate = learner, samples, epochs, accumulate
        self.held_out, self.clean = dict(held_out or {}), clean if learner.meta else None
        self.stopping = EarlyStopping(by_accuracy) if stopping is None else stopping
        self.run_folder = Run(None) if run is None else run
        self.on_step, self.on_epoch = on_step, on_epoch
        self.processes, self.device = learner.processes, learner.device
        self._order, self._rate = order, rate
        self._begun, self._before = time.monotonic() if begun is None else begun, 0.0
        self._exchange: Exchange | None = None
        self.at = Position()
        self.totals = torch.zeros(4, dtype=torch.float64, device=self.device)
        self.total = epochs * len(self.order(0))
        if self.total == 0:
            raise InputError(f"a batch of {len(samples)} samples is too small for {self.processes.size} processes.")
        learner.check.folder = self.run_folder.path

    @property
    def history(self) -> list[Metrics]:
        """The metrics of all finished epochs."""
        return self.at.history

    @property
    def seconds(self) -> float:
        """The duration of the run, without interruptions."""
        return self._before + time.monotonic() - self._begun

    @property
    def done(self) -> bool:
        """Whether the training has finished."""
        return self.at.epoch >= self.epochs or self.stopping.stops(self.history)

    def order(self, epoch: int) -> list[Rows]:
        """The global batches of an epoch, without batches that have fewer samples than there are processes."""
        return [rows for rows in self._order(epoch) if len(rows) >= self.processes.size]

    def start(self, seed: int, stored: dict[str, Any] | None = None) -> None:
        """Sets the criterion's clock and the seed, which is independent of earlier draws; then restores a checkpoint, if given."""
        self.learner.criterion.start(self.total)
        torch.manual_seed(seed)
        if stored is not None:
            self.restore(stored)

    def run(
        self, *, every: int | None = None, progress: Callable[[int, int, Tensor], None] | None = None
    ) -> list[Metrics]:
        """Trains all remaining epochs; returns the metrics of all epochs.

        With a folder, Ctrl-C finishes the current step, stores a checkpoint and raises `Interrupted`.

        Args:
            every: steps between checkpoints; by default one a minute, and one at the end.
            progress: called after each step with the epoch, the number of finished steps and the sums of the epoch.
        """
        self.learner.train()
        if self.learner.ranges is not None:
            self._exchange = Exchange(self.learner.criterion, self.processes, rows=False)
        saved = time.monotonic()
        with _stop_signals(self.run_folder.path is not None) as signals:
            while not self.done:
                batches = self.order(self.at.epoch)
                while self.at.batch < len(batches):
                    self._step(batches)
                    if progress is not None:
                        progress(self.at.epoch, self.at.step, self.totals)
                    if self.at.batch == len(batches):
                        self._end_epoch()
                        batches = []
                    late, stop = self._agreed(time.monotonic() - saved > SECONDS, bool(signals))
                    due = late if every is None else self.at.step % every == 0
                    # Half-accumulated gradients are not part of a checkpoint.
                    can_save = self.run_folder.path is not None and self.at.batch % self.accumulate == 0
                    if can_save and (due or stop or self.done):
                        self.save()
                        saved = time.monotonic()
                        if stop and not self.done:
                            raise Interrupted(self.at.step)
        return self.history

    def _agreed(self, *flags: bool) -> list[bool]:
        """Each flag, true if it is true in any process: clocks and signals differ between processes."""
        counts = torch.tensor([float(flag) for flag in flags])
        return (self.processes.sum(counts) > 0).tolist()

    def _step(self, batches: list[Rows]) -> None:
        at = self.at
        lr = self._rate(at.step, self.total)
        check = self.learner.check
        check.step = at.step + 1
        check.where = f"epoch {at.epoch + 1}, batch {at.batch + 1} of {len(batches)}, learning rate {lr:g}"
        first = at.batch - at.batch % self.accumulate
        group = batches[first : first + self.accumulate]
        s = self.learner.step(
            self._batch(batches[at.batch]),
            lr=lr,
            clean=None if self.clean is None else move(self.clean(at.step), self.device),
            share=len(batches[at.batch]) / sum(map(len, group)),
            first=at.batch == first,
            last=at.batch == first + len(group) - 1,
        )
        if self._exchange is not None:
            self._exchange()
        self._count(s, self._own(batches[at.batch]))
        if self.on_step is not None:
            self.on_step(s)
        at.batch, at.step = at.batch + 1, at.step + 1

    def _own(self, rows: Rows) -> Rows:
        """The rows of a batch for this process: all, or with ranges the ones it owns."""
        ranges = self.learner.ranges
        return rows if ranges is None else ranges.own(rows, self.samples.index)

    def _batch(self, rows: Rows) -> TrainingBatch:
        samples, rows = self.samples, self._own(rows)
        x = samples.batch(rows if self.learner.whole_inputs else self.processes.slice(rows), self.at.epoch)
        weight = None
        if samples.weight is not None:
            kind = x.dtype if isinstance(x, Tensor) and x.is_floating_point() else torch.float32
            weight = torch.from_numpy(samples.weight[rows]).to(kind)
        given = (x, torch.from_numpy(samples.labels[rows]), torch.from_numpy(samples.index[rows]), weight)
        return TrainingBatch(*move(given, self.device))

    @torch.no_grad()
    def _count(self, s: Batch, rows: Rows) -> None:
        losses, moved = s.losses, is_compensated(s)
        if s.places.binary:  # a sample with several labels is right if all of them are
            right = s.places.of_sample((s.u[:, 0] > 0) == (s.labels > 0)).all(1)
            losses, moved = s.places.of_sample(losses).mean(1), s.places.of_sample(moved).any(1)
        else:
            right = s.u[:, : self.samples.num_classes].argmax(-1) == s.labels
        if self.samples.weight is not None:
            losses = losses * torch.from_numpy(self.samples.weight[rows]).to(losses)
        values = [losses.sum(), right.sum(), moved.sum()]
        self.totals[:3] += torch.stack([v.to(self.totals.dtype) for v in values])
        self.totals[3] += len(rows)

    def _whole_totals(self) -> Tensor:
        return self.totals if self.learner.ranges is None else self.processes.sum(self.totals.clone())

    def _end_epoch(self) -> None:
        at, learner = self.at, self.learner
        learner.check.weights(learner.model)
        (learner.criterion if self._exchange is None else self._exchange).end_epoch()
        loss, right, moved, count = self._whole_totals().tolist()
        row = {
            "epoch": at.epoch + 1,
            "lr": self._rate(at.step - 1, self.total),
            "train_loss": loss / count,
            "train_accuracy": right / count,
            "compensated": moved / count,
        }
        # Running means of batch normalization differ between processes; the main process decides.
        self.processes.broadcast(learner.model.buffers())
        for name, samples in self.held_out.items():
            means = means_of(self.processes.sum(sums(learner.model, samples, self.device, self.processes)))
            row |= {f"{name}_{k}": v for k, v in means.items()}
        learner.check.metrics(row)
        at.history.append(row)
        at.epoch, at.batch = at.epoch + 1, 0
        self.totals.zero_()
        best = self.stopping.best(at.history) == len(at.history) - 1
        if self.processes.main and self.run_folder.path is not None:
            self.run_folder.log(at.history)
            if best:
                checkpoint.save_weights(self.run_folder / "best.safetensors", learner.model.state_dict())
        if self.on_epoch is not None:
            self.on_epoch(row, best)

    def save(self) -> None:
        """Writes a checkpoint of everything that the next step depends on."""
        self.at.seconds = self.seconds
        state, totals = self.learner.state_dict(), self._whole_totals()  # every process takes part
        if self.processes.main:
            self.learner.check.weights(self.learner.model)
            tree = {**state, "random": checkpoint.random_state(), "totals": totals, "at": vars(self.at)}
            checkpoint.save_checkpoint(self.run_folder / "checkpoint", self.at.step, tree)
            self.learner.check.saved = self.at.step

    def restore(self, tree: dict[str, Any]) -> None:
        """Restores a checkpoint."""
        self.learner.load_state_dict(tree)
        self.totals.copy_(tree["totals"])
        if self.learner.ranges is not None and not self.processes.main:
            self.totals.zero_()
        self.at = Position(**tree["at"])
        self._before = self.at.seconds
        self.learner.check.saved = self.at.step
        if self.processes.main:
            self.run_folder.log(self.at.history)
        checkpoint.set_random_state(tree["random"])


def is_compensated(s: Batch) -> Tensor:
    """(B,) true for samples with a nonzero compensation."""
    moved = torch.zeros(len(s.target), dtype=torch.bool, device=s.target.device)
    for delta in (s.dx, s.du, s.dp, s.dy, s.dl, s.dg, s.dv):
        if delta is not None:
            size = delta.detach().abs()
            moved |= (size.flatten(1).amax(1) if size.ndim > 1 else size) > 1e-6
    return moved


@contextmanager
def _stop_signals(wanted: bool) -> Iterator[list[int]]:
    """Records SIGINT and SIGTERM: the loop stops after the current step. A second Ctrl-C interrupts at once."""
    noted: list[int] = []
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: Any) -> None:
        if number == signal.SIGINT and number in noted:
            raise KeyboardInterrupt
        noted.append(number)

    for number in before:
        signal.signal(number, note)
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
