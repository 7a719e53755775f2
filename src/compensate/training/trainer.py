"""The training loop of every command and estimator: epochs, checkpoints, exact resume, early stopping."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compensate.core.batch import Batch
from compensate.errors import InputError, NotFinite
from compensate.terms.strength import Strength
from compensate.training import checkpoint
from compensate.training.distributed import Exchange, move
from compensate.training.evaluation import Rows, Samples, evaluate
from compensate.training.run import Run
from compensate.training.step import Learner

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


def by_accuracy(row: Metrics) -> float:
    """Validation accuracy, else test accuracy, else training accuracy."""
    return next(row[name] for name in ("val_accuracy", "test_accuracy", "train_accuracy") if name in row)


@dataclass(frozen=True)
class EarlyStopping:
    """Selects the best epoch, and stops after `patience` epochs without a better one.

    The score of an epoch's metrics is larger for a better one, and gains up to `tolerance` do not count.

    >>> stopping = EarlyStopping(patience=2)
    >>> history = [{"val_accuracy": a} for a in (0.5, 0.7, 0.7, 0.6)]
    >>> stopping.best(history), stopping.stops(history)
    (1, True)
    """

    score: Callable[[Metrics], float] = by_accuracy
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


@dataclass(eq=False)
class Trainer:
    """Trains a `Learner` for some epochs.

    Attributes:
        learner, samples, epochs: model, criterion and optimizer, the training samples, and the number of passes over them.
        order: maps an epoch to its global batches, as rows of `samples`.
        rate: maps the number of a step and of all steps to the learning rate.
        accumulate: number of batches per optimizer step.
        held_out: samples for evaluation after each epoch, by the prefix of their metrics.
        clean: maps a step to a trusted batch ``(x, target)``, for methods with a meta step.
        stopping: selection of the best epoch, and early stopping.
        folder: for metrics, checkpoints and the best weights; nothing is written without a path.
        begun: start of the run, by the monotonic clock.
        on_step, on_epoch: called with the batch of every step, and with an epoch's metrics and whether it is the best so far.

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

    learner: Learner
    samples: Samples
    _: KW_ONLY
    epochs: int
    order: Callable[[int], Sequence[Rows]]
    rate: Callable[[int, int], float]
    accumulate: int = 1
    held_out: Mapping[str, Samples] = field(default_factory=dict)
    clean: Callable[[int], tuple[Any, Tensor]] | None = None
    stopping: EarlyStopping = EarlyStopping()
    folder: Run = field(default_factory=Run)
    begun: float = field(default_factory=time.monotonic)
    on_step: Callable[[Batch], None] | None = None
    on_epoch: Callable[[Metrics, bool], None] | None = None

    def __post_init__(self) -> None:
        self.processes, self.device = self.learner.processes, self.learner.device
        self.at, self._before, self._where = Position(), 0.0, ""
        self._saved: int | None = None  # the step of the last checkpoint
        self._exchange: Exchange | None = None
        self.totals = torch.zeros(4, dtype=torch.float64, device=self.device)
        self.total = self.epochs * len(self._batches(0))
        if self.total == 0:
            size = self.processes.size
            raise InputError(f"a batch of {len(self.samples)} samples is too small for {size} processes.")

    @property
    def history(self) -> list[Metrics]:
        """The metrics of all finished epochs."""
        return self.at.history

    @property
    def seconds(self) -> float:
        """The duration of the run, without interruptions."""
        return self._before + time.monotonic() - self.begun

    @property
    def done(self) -> bool:
        """Whether the training has finished."""
        return self.at.epoch >= self.epochs or self.stopping.stops(self.history)

    def _batches(self, epoch: int) -> list[Rows]:
        """The global batches of an epoch, without batches that have fewer samples than there are processes."""
        return [rows for rows in self.order(epoch) if len(rows) >= self.processes.size]

    def run(
        self, *, seed: int | None = None, stored: dict[str, Any] | None = None, every: int | None = None,
        progress: Callable[[int, int, Tensor], None] | None = None,
    ) -> list[Metrics]:  # fmt: skip
        """Trains all remaining epochs; returns the metrics of all epochs.

        With a folder, Ctrl-C finishes the current step, stores a checkpoint and raises `Interrupted`.

        Args:
            seed: of torch's random numbers; with it, the clock of the criterion starts anew.
            stored: the checkpoint to resume from.
            every: steps between checkpoints; by default one a minute, and one at the end.
            progress: called after each step with the epoch, the number of finished steps and the sums of the epoch.
        """
        if seed is not None:
            self.learner.criterion.start(self.total)
            torch.manual_seed(seed)
        if stored is not None:
            self.learner.load_state_dict(stored)
            self.totals.copy_(stored["totals"])
            if self.learner.ranges is not None and not self.processes.main:
                self.totals.zero_()
            self.at = Position(**stored["at"])
            self._before, self._saved = self.at.seconds, self.at.step
            if self.processes.main:
                self.folder.log(self.at.history)
            torch.set_rng_state(stored["random"]["cpu"])
            for card, state in enumerate(stored["random"]["cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(state, card)
        self.learner.train()
        if self.learner.ranges is not None:
            self._exchange = Exchange(self.learner.criterion, self.processes, rows=False)
        saved = time.monotonic()
        with _stop_signals(self.folder.path is not None) as signals:
            while not self.done:
                batches = self._batches(self.at.epoch)
                while self.at.batch < len(batches):
                    self._step(batches)
                    if progress is not None:
                        progress(self.at.epoch, self.at.step, self.totals)
                    if self.at.batch == len(batches):
                        self._end_epoch()
                        batches = []
                    # Clocks and signals differ between processes: a flag counts if any process has raised it.
                    flags = torch.tensor([float(time.monotonic() - saved > SECONDS), float(bool(signals))])
                    late, stop = (self.processes.sum(flags) > 0).tolist()
                    due = late if every is None else self.at.step % every == 0
                    # Half-accumulated gradients are not part of a checkpoint.
                    can_save = self.folder.path is not None and self.at.batch % self.accumulate == 0
                    if can_save and (due or stop or self.done):
                        self.save()
                        saved = time.monotonic()
                        if stop and not self.done:
                            raise Interrupted(self.at.step)
        return self.history

    def _step(self, batches: list[Rows]) -> None:
        at, learner, samples = self.at, self.learner, self.samples
        lr = self.rate(at.step, self.total)
        batch = f"batch {at.batch + 1} of {len(batches)}"
        self._where = f"step {at.step + 1} (epoch {at.epoch + 1}, {batch}, learning rate {lr:g})"
        first = at.batch - at.batch % self.accumulate
        group = batches[first : first + self.accumulate]
        rows = batches[at.batch]
        share = len(rows) / sum(map(len, group))
        if learner.ranges is not None:
            rows = learner.ranges.own(rows, samples.index)
        x = samples.batch(rows if learner.whole_inputs else self.processes.slice(rows), at.epoch)
        weight = None
        if samples.weight is not None:
            kind = x.dtype if isinstance(x, Tensor) and x.is_floating_point() else torch.float32
            weight = torch.from_numpy(samples.weight[rows]).to(kind)
        given = (x, torch.from_numpy(samples.labels[rows]), torch.from_numpy(samples.index[rows]), weight)
        x, target, index, weight = move(given, self.device)
        clean = None if self.clean is None or not learner.meta else move(self.clean(at.step), self.device)
        begins, ends = at.batch == first, at.batch == first + len(group) - 1
        try:
            s = learner.step(x, target, index, weight, lr=lr, clean=clean, share=share, first=begins, last=ends)
        except NotFinite as error:
            raise self._diverged(str(error).partition(":")[0], x, index) from error
        if self._exchange is not None:
            self._exchange()
        self._count(s, weight)
        if self.on_step is not None:
            self.on_step(s)
        at.batch, at.step = at.batch + 1, at.step + 1

    @torch.no_grad()
    def _count(self, s: Batch, weight: Tensor | None) -> None:
        """Adds the losses, right predictions and compensated samples of a batch to the sums of the epoch."""
        losses, moved = s.losses, torch.zeros(len(s.target), dtype=torch.bool, device=s.target.device)
        for delta in (s.dx, s.du, s.dp, s.dy, s.dl, s.dg, s.dv):
            if delta is not None:
                size = delta.detach().abs()
                moved |= (size.flatten(1).amax(1) if size.ndim > 1 else size) > 1e-6
        if s.places.binary:  # a sample with several labels is right if all of them are
            right = s.places.of_sample((s.u[:, 0] > 0) == (s.labels > 0)).all(1)
            losses, moved = s.places.of_sample(losses).mean(1), s.places.of_sample(moved).any(1)
        else:
            right = s.u[:, : self.samples.num_classes].argmax(-1) == s.labels
        if weight is not None:
            losses = losses * weight.to(losses)
        self.totals[:3] += torch.stack([v.sum().to(self.totals.dtype) for v in (losses, right, moved)])
        self.totals[3] += s.places.batch

    def _diverged(self, problem: str, x: Any = None, index: Any = ()) -> NotFinite:
        """The error that says where the training diverged, the likely cause and the last good checkpoint."""
        cause = "The usual cause is a learning rate that is too large: lower it, or clip gradients (clip=1)."
        if isinstance(x, Tensor) and x.is_floating_point() and len(x) == len(index):
            broken = index[(~x.isfinite()).reshape(len(x), -1).any(1)][:5].tolist()
            if broken:
                cause = f"The input of the samples {broken} is not finite: correct them or leave them out."
        kept = " There was no checkpoint yet." if self.folder.path is not None else ""
        if self._saved is not None:
            kept = f" The checkpoint of step {self._saved}, the last good one, is kept in {self.folder.path}."
        return NotFinite(f"the training diverged at {self._where}: {problem}. {cause}{kept}")

    def _require_finite(self, values: Mapping[str, Tensor | float]) -> None:
        for name, value in values.items():
            tensor = torch.as_tensor(value)
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise self._diverged(f"{name} is {float(tensor):g}" if tensor.ndim == 0 else f"{name} is not finite")

    def _whole_totals(self) -> Tensor:
        return self.totals if self.learner.ranges is None else self.processes.sum(self.totals.clone())

    def _end_epoch(self) -> None:
        at, learner = self.at, self.learner
        self._require_finite(learner.model.state_dict())
        (learner.criterion if self._exchange is None else self._exchange).end_epoch()
        loss, right, moved, count = self._whole_totals().tolist()
        row = {
            "epoch": at.epoch + 1, "lr": self.rate(at.step - 1, self.total), "train_loss": loss / count,
            "train_accuracy": right / count, "compensated": moved / count,
        }  # fmt: skip
        if (strength := Strength.of(learner.criterion)) is not None:
            row["strength"] = float(strength.value)
        # Running means of batch normalization differ between processes; the main process decides for what is evaluated.
        self.processes.broadcast(learner.averaged.buffers())
        for name, samples in self.held_out.items():
            means = evaluate(learner.averaged, samples, device=self.device, processes=self.processes)
            row |= {f"{name}_{k}": v for k, v in means.items()}
        self._require_finite({name: value for name, value in row.items() if name.endswith("_loss")})
        at.history.append(row)
        at.epoch, at.batch = at.epoch + 1, 0
        self.totals.zero_()
        best = self.stopping.best(at.history) == len(at.history) - 1
        if self.processes.main and self.folder.path is not None:
            self.folder.log(at.history)
            if best:
                checkpoint.save_weights(self.folder / "best.safetensors", learner.averaged.state_dict())
        if self.on_epoch is not None:
            self.on_epoch(row, best)

    def save(self) -> None:
        """Writes a checkpoint of everything that the next step depends on."""
        self.at.seconds = self.seconds
        state, totals = self.learner.state_dict(), self._whole_totals()  # every process takes part
        if self.processes.main:
            self._require_finite(state["model"])
            random = {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all()}
            tree = {**state, "random": random, "totals": totals, "at": vars(self.at)}
            checkpoint.save_checkpoint(self.folder / "checkpoint", self.at.step, tree)
            self._saved = self.at.step


@contextmanager
def _stop_signals(wanted: bool) -> Iterator[list[int]]:
    """Records SIGINT and SIGTERM: the loop stops after the current step. A second Ctrl-C interrupts at once."""
    noted: list[int] = []
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield noted
        return

    def note(number: int, frame: Any) -> None:
        if number == signal.SIGINT and number in noted:
            raise KeyboardInterrupt
        noted.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
