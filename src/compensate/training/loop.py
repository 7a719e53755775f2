"""Training: one loop for every method."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from compensate.data import Data, Splits, draws, gather, order
from compensate.equation import Compensated
from compensate.errors import InputError
from compensate.granularity import Table
from compensate.inference.meta import meta_step
from compensate.state import State
from compensate.training import checkpoint
from compensate.training.config import Config
from compensate.training.distribution import Processes, Whole, WholeStages
from compensate.training.evaluation import agreement, cut, shares, sums
from compensate.training.preparation import Prepared, clean_batch, make_criterion, make_model, prepare
from compensate.training.progress import Bar
from compensate.training.run import Run, describe
from compensate.training.schedule import OPTIMISERS, rate

SECONDS = 60.0
"""Between checkpoints, unless a number of steps is given."""

META_RATE = 1e-3
"""Of the optimiser that moves a criterion's own networks in meta steps."""


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run.

    Attributes:
        config: with every open value filled in.
        history: a row of metrics for each epoch.
        best: the row with the highest validation accuracy; without a validation part, the highest test accuracy.
        selected_on: "validation" or "test", what `best` was chosen by.
        model, criterion: as the last epoch left them.
        prepared: the data.
        seconds: the time it took.

    >>> result = fit(Config(data="digits", epochs=1))
    >>> result.selected_on, len(result.history), result.best is result.history[0]
    ('validation', 1, True)
    """

    config: Config
    history: list[dict[str, float]]
    best: dict[str, float]
    selected_on: str
    model: nn.Module
    criterion: Compensated
    prepared: Prepared
    seconds: float

    @property
    def last(self) -> dict[str, float]:
        """The metrics of the last epoch."""
        return self.history[-1]


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
        accelerator = _accelerator(config, folder, trackers)
        processes = Processes.current()
        prepared = prepare(config, data, data_dir)
        config = prepared.config
        model = make_model(prepared) if model is None else model
        criterion = make_criterion(prepared, model, data_dir) if criterion is None else criterion
        run = Run(folder)
        # Each process reads the checkpoint; the main one makes the folder first.
        found = run.begin(asked, config, resume=resume) if processes.main else None
        processes.wait()
        if not processes.main and run.path is not None and resume:
            found = checkpoint.latest(run / "checkpoint")
        training = _Training(prepared, model, criterion, accelerator, processes, run, on_step)
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


def _accelerator(config: Config, folder: str | Path | None, trackers: Sequence[Any]) -> Any:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    # Accelerate keeps the precision of the first run of a process; a run must not depend on the one before it.
    known = AcceleratorState._shared_state.get("_mixed_precision")
    if known not in (None, config.precision):
        AcceleratorState._reset_state()
    try:
        made = Accelerator(
            cpu=not torch.cuda.is_available(),
            mixed_precision=config.precision,
            log_with=list(trackers) or None,
            project_dir=None if folder is None else str(folder),
        )
    except ValueError as error:
        raise InputError(f"{error} Leave out the tracker or the precision that is not at hand.") from error
    if len(made.log_with) < len(trackers):
        raise InputError(
            f"of the trackers {', '.join(map(str, trackers))} not all are installed; pip install the missing."
        )
    return made


class _Step(nn.Module):
    """Model and criterion behind one forward pass, which is what data parallel training wraps.

    The criterion is kept in a list: its buffers are equal in all processes already and must not be sent, and its
    parameters belong to the meta step.
    """

    def __init__(self, view: nn.Module, criterion: Compensated) -> None:
        super().__init__()
        self.view = view
        self._criterion = [criterion]
        self.state: State | None = None

    def forward(self, x: Any, target: Tensor, index: Tensor) -> Tensor:
        self.state = self._criterion[0].evaluate(self.view, x, target, index)
        return self.state.loss


@dataclass
class _Position:
    """Where a run stands; with the weights, all there is to know."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    waited: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


class _Training:
    """One run under way."""

    def __init__(
        self,
        prepared: Prepared,
        model: nn.Module,
        criterion: Compensated,
        accelerator: Any,
        processes: Processes,
        run: Run,
        on_step: Callable[[State], None] | None,
    ) -> None:
        config = prepared.config
        assert config.epochs is not None
        assert config.batch_size is not None
        assert config.optimiser is not None
        self.prepared, self.config, self.run, self.on_step = prepared, config, run, on_step
        self.epochs, self.batch_size = config.epochs, config.batch_size
        self.accelerator, self.processes, self.device = accelerator, processes, accelerator.device
        self.model, self.criterion = model.to(self.device).train(), criterion.to(self.device).train()
        needs = prepared.method.needs
        self.meta = "clean" in needs
        # Terms on features, and teachers, look at the inputs of the whole batch; others leave each process its own.
        self.given = "feature" in criterion.terms or "teacher" in needs
        self.at = _Position()
        self.totals = torch.zeros(4, dtype=torch.float64, device=self.device)
        self.total = self.epochs * len(self.order(0))
        if self.total == 0:
            raise InputError(f"a batch of {len(prepared.train)} samples is too small for {processes.size} processes.")
        self.criterion.start(self.total)
        parameters = [p for p in model.parameters() if p.requires_grad]
        step = _Step(self._view("features" in needs), criterion)
        self.step_module, self.optimiser = accelerator.prepare(step, OPTIMISERS[config.optimiser](parameters, config))
        self.inner = step
        free = _networks(criterion) if self.meta else []
        self.meta_optimiser = torch.optim.Adam(free, lr=META_RATE) if free else None
        torch.manual_seed(config.seed)  # the same numbers from here on, whatever model and criterion drew

    def _view(self, reads_features: bool) -> nn.Module:
        if self.processes.size == 1:
            return self.model
        staged = callable(getattr(self.model, "features", None)) and callable(getattr(self.model, "head", None))
        if staged and (reads_features or self.given):
            return WholeStages(self.model, self.processes, given=self.given)
        return Whole(self.model, self.processes, given=self.given)

    @property
    def step(self) -> int:
        """Batches done."""
        return self.at.step

    def order(self, epoch: int) -> list[Any]:
        """The global batches of an epoch; a last one with fewer samples than processes is left out."""
        batches = order(self.prepared.train, self.batch_size, seed=self.config.seed, epoch=epoch)
        return [rows for rows in batches if len(rows) >= self.processes.size]

    # --- the loop ---------------------------------------------------------------------------------------------

    def run_all(self, every: int | None, bar: Bar, begun: float) -> None:
        """All epochs from where the run stands."""
        saved, before = time.monotonic(), self.at.seconds
        at = self.at
        while at.epoch < self.epochs and not self._patient_no_more():
            batches = self.order(at.epoch)
            augment = self.prepared.augment
            drawn = draws(self.prepared.train, seed=self.config.seed, epoch=at.epoch) if augment else None
            while at.batch < len(batches):
                self._one(batches, drawn)
                at.batch, at.step = at.batch + 1, at.step + 1
                bar.step(at.epoch, at.step, self.totals)
                if at.batch < len(batches) and self._due(every, saved):
                    at.seconds = before + time.monotonic() - begun
                    self.save()
                    saved = time.monotonic()
            self._end_epoch()
            if self._due(every, saved) or at.epoch == self.epochs:
                at.seconds = before + time.monotonic() - begun
                self.save()
                saved = time.monotonic()

    def _due(self, every: int | None, saved: float) -> bool:
        if self.run.path is None or self.at.batch % self.config.accumulate:
            return False  # gradients half gathered are not part of a checkpoint
        if every is not None:
            return self.at.step % every == 0
        late = torch.tensor(float(time.monotonic() - saved > SECONDS))
        return bool(self.processes.sum(late) > 0)  # clocks differ; all must decide alike

    def _one(self, batches: list[Any], drawn: Any) -> None:
        """One batch."""
        config, at, data = self.config, self.at, self.prepared.train
        rows = batches[at.batch]
        whole = self.processes.size == 1 or self.given or self.meta
        x, _, _ = gather(
            data, rows if whole else self.processes.slice(rows), augment=self.prepared.augment, drawn=drawn
        )
        target = torch.from_numpy(data.target[rows]).to(self.device)
        index = torch.from_numpy(data.index[rows]).to(self.device)
        x = x.to(self.device)
        now = rate(config, at.step, self.total)
        for group in self.optimiser.param_groups:
            group["lr"] = now
        if self.meta:
            assert self.prepared.clean is not None
            cx, cy, _ = gather(self.prepared.clean, clean_batch(self.prepared, at.step))
            clean = (cx.to(self.device), cy.to(self.device))
            # Every process takes the same meta step on the whole batch: it needs gradients of gradients.
            meta_step(self.criterion, self.model, (x, target, index), clean, lr=now, optimizer=self.meta_optimiser)
            if not self.given:
                x = self.processes.scatter(x)
        if isinstance(self.inner.view, Whole):
            self.inner.view.n = len(rows)
        elif isinstance(self.inner.view, WholeStages):
            self.inner.view.whole.n = len(rows)

        first = at.batch - at.batch % config.accumulate
        group_of = batches[first : first + config.accumulate]
        steps_now = at.batch == first + len(group_of) - 1
        share = len(rows) / sum(len(r) for r in group_of)
        if at.batch == first:
            self.optimiser.zero_grad()
        with _maybe(self.accelerator.no_sync, self.step_module, not steps_now):
            loss = self.step_module(x, target, index)
            # The mean over processes is taken of slices of one gradient, so that their sum is `size` times as much.
            self.accelerator.backward(loss * (share * self.processes.size))
        if steps_now:
            if config.clip is not None:
                self.accelerator.clip_grad_norm_(self.model.parameters(), config.clip)
            self.optimiser.step()
        s = self.inner.state
        assert s is not None
        self._count(s)
        if self.on_step is not None:
            self.on_step(s)
        self.inner.state = None

    @torch.no_grad()
    def _count(self, s: State) -> None:
        right = (s.u[:, : self.prepared.train.num_classes].argmax(-1) == s.labels).sum()
        values = [s.losses.sum(), right, moved(s).sum()]
        self.totals[:3] += torch.stack([v.to(self.totals.dtype) for v in values])
        self.totals[3] += len(s.target)

    def _end_epoch(self) -> None:
        at = self.at
        self.criterion.end_epoch()
        loss, right, compensated, count = self.totals.tolist()
        row = {
            "epoch": at.epoch + 1,
            "lr": rate(self.config, at.step - 1, self.total),
            "train_loss": loss / count,
            "train_accuracy": right / count,
            "compensated": compensated / count,
        }
        # Running means of batch normalisation are each process's own; those of the main one count.
        self.processes.share(self.model.buffers())
        for name, data in (("val", self.prepared.validation), ("test", self.prepared.test)):
            if data is not None and len(data):
                mine = cut(data)[self.processes.rank :: self.processes.size]
                found = shares(self.processes.sum(sums(self.model, data, mine, self.device)))
                row |= {f"{name}_{k}": v for k, v in found.items()}
        at.history.append(row)
        at.epoch, at.batch = at.epoch + 1, 0
        self.totals.zero_()
        best = _best(at.history)[1]
        at.waited = at.epoch - int(best["epoch"])
        if self.processes.main:
            self.run.log(at.history)
            if best is row and self.run.path is not None:
                checkpoint.save_weights(self.run / "best.safetensors", self.model.state_dict())
            if self.accelerator.trackers:
                self.accelerator.log(row, step=at.epoch)

    def _patient_no_more(self) -> bool:
        patience = self.config.patience
        return patience is not None and self.prepared.validation is not None and self.at.waited >= patience

    # --- coming back ------------------------------------------------------------------------------------------

    def save(self) -> None:
        """A checkpoint of everything that the next step depends on."""
        if self.run.path is not None and self.processes.main:
            tree = {
                "model": self.model.state_dict(),
                "criterion": self.criterion.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "meta_optimiser": None if self.meta_optimiser is None else self.meta_optimiser.state_dict(),
                "scaler": None if self.accelerator.scaler is None else self.accelerator.scaler.state_dict(),
                "random": checkpoint.random_state(),
                "totals": self.totals,
                "at": vars(self.at),
            }
            checkpoint.save(self.run / "checkpoint", self.at.step, tree)

    def restore(self, tree: dict[str, Any]) -> None:
        """Goes back to a checkpoint."""
        self.model.load_state_dict(tree["model"])
        self.criterion.load_state_dict(tree["criterion"])
        self.optimiser.load_state_dict(tree["optimiser"])
        if self.meta_optimiser is not None:
            self.meta_optimiser.load_state_dict(tree["meta_optimiser"])
        if self.accelerator.scaler is not None and tree["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(tree["scaler"])
        self.totals.copy_(tree["totals"])
        self.at = _Position(**tree["at"])
        if self.processes.main:
            self.run.log(self.at.history)
        checkpoint.set_random_state(tree["random"])

    def _fitted(self) -> float | None:
        """The share of the wrong training labels that the model gives back at the end."""
        wrong = self.prepared.wrong
        return agreement(self.model, self.prepared.train, wrong, device=self.device) if wrong.any() else None

    def finish(self, asked: Config, seconds: float) -> Result:
        """Stores and returns what came out."""
        selected_on, best = _best(self.at.history)
        seconds = max(seconds, self.at.seconds)
        if self.processes.main and self.run.path is not None and self.run.result is None:
            checkpoint.save_weights(self.run / "model.safetensors", self.model.state_dict())
            outcome = {
                "last": self.at.history[-1],
                "best": best,
                "selected_on": selected_on,
                "epochs": len(self.at.history),
                "seconds": round(seconds, 1),
                "processes": self.processes.size,
                "samples": {name: len(part) for name, part in _parts(self.prepared).items()},
                "wrong_labels": float(self.prepared.wrong.mean()),
                "wrong_labels_fitted": self._fitted(),
            }
            self.run.write("result.json", describe(asked) | {"effective": self.config.json, "result": outcome})
        self.processes.wait()
        return Result(
            self.config, self.at.history, best, selected_on, self.model, self.criterion, self.prepared, seconds
        )


def moved(s: State) -> Tensor:
    """(B,) true for samples that some compensation is given to."""
    found = torch.zeros(len(s.target), dtype=torch.bool, device=s.target.device)
    for delta in (s.dx, s.du, s.dp, s.dy, s.dl):
        if delta is not None:
            size = delta.detach().abs()
            found |= (size.flatten(1).amax(1) if size.ndim > 1 else size) > 1e-6
    return found


def _best(history: list[dict[str, float]]) -> tuple[str, dict[str, float]]:
    name = next((n for n in ("val", "test") if f"{n}_accuracy" in history[0]), "train")
    best = max(history, key=lambda row: row[f"{name}_accuracy"])  # the first of equals
    return {"val": "validation"}.get(name, name), best


def _parts(prepared: Prepared) -> dict[str, Data]:
    parts = {name: getattr(prepared, name) for name in ("train", "clean", "validation", "test")}
    return {name: part for name, part in parts.items() if part is not None}


def _networks(criterion: Compensated) -> list[nn.Parameter]:
    """Parameters of the criterion that are not tables, whose rows have a step of their own."""
    tables = {id(p) for m in criterion.modules() if isinstance(m, Table) for p in m.parameters(False)}
    return [p for p in criterion.parameters() if id(p) not in tables and p.requires_grad]


def _maybe(context: Any, argument: Any, wanted: bool) -> Any:
    return context(argument) if wanted else nullcontext()
