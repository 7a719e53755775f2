"""Optimizers, learning rate schedules, and the training step of a model with a criterion."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from compensate.core.batch import Batch
from compensate.core.criterion import Compensated
from compensate.core.stages import ModelStages
from compensate.errors import NotFinite
from compensate.methods.registry import Need
from compensate.terms.meta import meta_step, networks
from compensate.training.distributed import GatheredModel, GatheredStages, Ranges, own_random_numbers
from compensate.training.hardware import Hardware, no_gradient_sync

MOMENTUM = 0.9
"""Momentum of SGD, with Nesterov's correction."""

OPTIMIZERS = ("sgd", "adam", "adamw")

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda t: 1.0,
    "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2,
    "linear": lambda t: 1 - t,
    "step": lambda t: 1.0 if t < 0.5 else 0.1 if t < 0.75 else 0.01,
}
"""Factors of the learning rate as functions of the finished share t of the training, from 0 to 1."""


def parameter_groups(model: nn.Module, factors: Mapping[str, float]) -> list[dict[str, Any]]:
    """The trainable parameters in groups, each with the factor of its learning rate.

    Args:
        model: the model.
        factors: by the name of a submodule; 1 for all others.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    >>> [(group["factor"], len(group["params"])) for group in parameter_groups(model, {"1": 50.0})]
    [(1.0, 2), (50.0, 2)]
    """
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            factor = next((f for part, f in factors.items() if name.startswith(f"{part}.")), 1.0)
            groups.setdefault(factor, []).append(parameter)
    return [{"params": parameters, "factor": factor} for factor, parameters in groups.items()]


def make_optimizer(
    name: str,
    parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
    lr: float,
    *,
    momentum: float = MOMENTUM,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """One of `OPTIMIZERS`.

    >>> type(make_optimizer("adamw", torch.nn.Linear(2, 2).parameters(), 0.1)).__name__
    'AdamW'
    """
    if name == "sgd":
        return torch.optim.SGD(parameters, lr, momentum=momentum, weight_decay=weight_decay, nesterov=momentum > 0)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    return kind(parameters, lr, weight_decay=weight_decay)


def rate(lr: float, step: int, total: int, *, schedule: str = "constant", warmup: float = 0.0) -> float:
    """The learning rate of a step, counted from 0: a linear warmup over a share of `total` steps, then the schedule.

    >>> [round(rate(0.1, step, 100, schedule="cosine", warmup=0.1), 3) for step in (0, 9, 10, 55, 99)]
    [0.01, 0.1, 0.1, 0.05, 0.0]
    """
    rising = math.ceil(warmup * total)
    if step < rising:
        return lr * (step + 1) / rising
    return lr * SCHEDULES[schedule]((step - rising) / max(total - rising, 1))


@dataclass
class DivergenceCheck:
    """Raises `NotFinite` errors that say where the training diverged.

    >>> check = DivergenceCheck(folder="runs/a")
    >>> check.step, check.saved, check.where = 7, 4, "epoch 2, batch 3 of 4, learning rate 100"
    >>> check.loss(torch.tensor(1.0))
    >>> try:
    ...     check.loss(torch.tensor(float("inf")))
    ... except NotFinite as error:
    ...     print(error)  # doctest: +ELLIPSIS
    the training diverged at step 7 (epoch 2, batch 3 of 4, learning rate 100): the loss is inf. ...
    """

    folder: Any = None
    step: int = 0
    saved: int | None = None
    where: str = ""

    @contextmanager
    def during_forward(self, x: Any, rows: Any) -> Iterator[None]:
        """Adds the position and the likely cause to a `NotFinite` error of a forward pass on inputs `x` of these rows."""
        try:
            yield
        except NotFinite as error:
            broken: list[int] = []
            if isinstance(x, Tensor) and x.is_floating_point() and len(x) == len(rows):
                odd = (~x.isfinite()).reshape(len(x), -1).any(1)
                broken = [int(rows[i]) for i in odd.nonzero().flatten().tolist()[:5]]
            raise self._error(str(error).partition(":")[0], broken) from error

    def loss(self, value: Tensor) -> None:
        """Checks the loss of a step."""
        if not bool(value.isfinite()):
            raise self._error(f"the loss is {float(value):g}")

    def weights(self, model: nn.Module) -> None:
        """Checks the weights before they are stored."""
        for name, value in model.state_dict().items():
            if value.is_floating_point() and not bool(value.isfinite().all()):
                raise self._error(f"{name} is not finite")

    def metrics(self, values: Mapping[str, float]) -> None:
        """Checks the metrics of an epoch."""
        for name, value in values.items():
            if name.endswith("_loss") and not math.isfinite(value):
                raise self._error(f"{name} is {value:g}")

    def _error(self, problem: str, rows: Sequence[int] = ()) -> NotFinite:
        if rows:
            cause = f"The input of the samples {rows} is not finite: correct them or leave them out."
        else:
            cause = "The usual cause is a learning rate that is too large: lower it, or clip gradients (clip=1)."
        kept = ""
        if self.folder is not None and self.saved is None:
            kept = " There was no checkpoint yet."
        elif self.folder is not None:
            kept = f" The checkpoint of step {self.saved}, the last good one, is kept in {self.folder}."
        return NotFinite(f"the training diverged at step {self.step} ({self.where}): {problem}. {cause}{kept}")


META_RATE = 1e-3
"""Learning rate of the meta optimizer."""


def make_meta_optimizer(criterion: Compensated) -> torch.optim.Optimizer | None:
    """Adam for the networks of a criterion, which meta steps train; None if it has none."""
    parameters = networks(criterion)
    return torch.optim.Adam(parameters, lr=META_RATE) if parameters else None


MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, eq=False)
class TrainingBatch:
    """A global batch as one process has it; with ranges, the process's own slice.

    Attributes:
        x: inputs of the whole batch, or of the own slice if no term reads them (see `Learner.whole_inputs`).
        target, index: (B,) of the whole batch.
        weight: (B,) factors of the losses; None for ones.

    >>> TrainingBatch(torch.ones(2, 3), torch.tensor([0, 1]), torch.arange(2)).weight is None
    True
    """

    x: Any
    target: Tensor
    index: Tensor
    weight: Tensor | None = None


class Forward(nn.Module):
    """Model and criterion in one module, for data parallel training.

    The criterion is not registered: its buffers are equal in all processes already, and meta steps train its parameters.
    """

    def __init__(self, view: nn.Module, criterion: Compensated) -> None:
        super().__init__()
        self.view = view
        self.unregistered = [criterion]
        self.evaluated: Batch | None = None

    def forward(self, batch: TrainingBatch) -> Tensor:
        """The loss; `evaluated` keeps the evaluated batch."""
        criterion = self.unregistered[0]
        s = self.evaluated = criterion.evaluate(self.view, batch.x, batch.target, batch.index)
        if batch.weight is None:
            return s.loss
        # The plain loss stays a term: tables on features learn their scale from its slope.
        return s.loss + criterion.reduce(s, (s.places.expanded(batch.weight, "weight") - 1) * s.losses)


class Learner:
    """Model, criterion, their optimizers, and the training step.

    In one process without mixed precision it can be pickled.

    Args:
        model: maps inputs to logits (B, C).
        criterion: of any method.
        optimizer: makes the model's optimizer from its parameters.
        needs: the needs of the method, `METHODS[name].needs`.
        clip: maximum norm of the gradient.
        hardware: device, precision and processes.
        ranges: the samples that this process owns, if the tables of the criterion are cut among processes.

    >>> from compensate import methods
    >>> model = nn.Linear(3, 2)
    >>> learner = Learner(model, methods.base(), lambda p: torch.optim.SGD(p, 0.1))
    >>> s = learner.step(TrainingBatch(torch.ones(4, 3), torch.tensor([0, 0, 1, 0]), torch.arange(4)), lr=0.1)
    >>> s.u.shape
    torch.Size([4, 2])
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: Compensated,
        optimizer: MakeOptimizer,
        *,
        needs: Collection[Need] = (),
        clip: float | None = None,
        hardware: Hardware | None = None,
        ranges: Ranges | None = None,
    ) -> None:
        self.hardware = Hardware() if hardware is None else hardware
        self.ranges = ranges
        self.processes, self.device, self.clip = self.hardware.processes, self.hardware.device, clip
        self.model = model.to(self.device).train()
        criterion = criterion.to(self.device).train()
        # Terms on features and views, and teachers, read the inputs of the whole batch.
        self._given = criterion.reads_inputs or "teacher" in needs
        self.meta = "clean" in needs
        criterion.peers = None if ranges is None else ranges.gather
        view: nn.Module = self.model
        if self.processes.size > 1 and ranges is None:  # the criterion sees the whole batch
            staged = ModelStages.of(model).features is not None and ("features" in needs or self._given)
            view = (GatheredStages if staged else GatheredModel)(model, self.processes, given=self._given)
        self.forward = Forward(view, criterion)
        self._wrapped = self.hardware.wrap(self.forward)
        self.optimizer = optimizer([p for p in model.parameters() if p.requires_grad])
        self.meta_optimizer = make_meta_optimizer(criterion) if self.meta else None
        self.check = DivergenceCheck()

    @property
    def criterion(self) -> Compensated:
        """The criterion."""
        return self.forward.unregistered[0]

    @property
    def whole_inputs(self) -> bool:
        """Whether this process needs the inputs of the whole batch, not only of its slice."""
        return self.processes.size == 1 or self.ranges is not None or self._given or self.meta

    def adopt(self, criterion: Compensated) -> None:
        """Continues with a criterion for more samples, which holds the state of the old one."""
        self.forward.unregistered[0] = criterion.to(self.device)
        before, self.meta_optimizer = self.meta_optimizer, make_meta_optimizer(criterion) if self.meta else None
        if before is not None and self.meta_optimizer is not None:
            self.meta_optimizer.load_state_dict(before.state_dict())

    def train(self, mode: bool = True) -> None:
        """Sets model and criterion to training or evaluation mode."""
        self.model.train(mode)
        self.criterion.train(mode)

    def step(
        self,
        batch: TrainingBatch,
        *,
        lr: float,
        clean: tuple[Any, Tensor] | None = None,
        share: float = 1.0,
        first: bool = True,
        last: bool = True,
    ) -> Batch:
        """Adds the gradient of a batch, and updates the model with the last batch of a group; returns the evaluated batch.

        Args:
            batch: the batch.
            lr: learning rate of the model; groups of parameters with a ``factor`` multiply it.
            clean: a trusted batch, for a meta step before this one.
            share: the share of the batch in the gradient of its group.
            first, last: whether the batch begins and ends a group of batches with one update.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("factor", 1.0)
        if clean is not None:  # on the whole batch in every process, because it needs gradients of gradients
            given = (batch.x, batch.target, batch.index)
            with self.check.during_forward(batch.x, batch.index):
                meta_step(self.criterion, self.model, given, clean, lr=lr, optimizer=self.meta_optimizer)
            if not self._given:
                batch = replace(batch, x=self.processes.scatter(batch.x))
        if first:
            self.optimizer.zero_grad()
        if isinstance(self.forward.view, GatheredModel):
            self.forward.view.expect(len(batch.target))
        own_numbers = nullcontext() if self.ranges is None else own_random_numbers(self.processes.rank)
        with no_gradient_sync(self._wrapped, last):
            with self.check.during_forward(batch.x, batch.index), self.hardware.autocast(), own_numbers:
                loss: Tensor = self._wrapped(batch)
            if self.hardware.scaler is None:  # a scaler skips steps that are not finite
                self.check.loss(loss.detach())
            s, self.forward.evaluated = self.forward.evaluated, None
            assert s is not None
            # Data parallel training takes the mean over processes, each with a slice of one gradient.
            factor = share * self.processes.size
            if self.ranges is not None and self.criterion.reduction == "mean":
                factor *= self.ranges.share(self.criterion.divisor(s))
            self.hardware.backward(loss if factor == 1 else loss * factor)
        if last:
            self.hardware.update(self.optimizer, self.model.parameters(), self.clip)
        return s

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on, except random numbers."""
        scaler, meta, ranges = self.hardware.scaler, self.meta_optimizer, self.ranges
        return {
            "model": self.model.state_dict(),
            "criterion": self.criterion.state_dict() if ranges is None else ranges.whole_state(self.criterion),
            "optimizer": self.optimizer.state_dict(),
            "meta_optimizer": None if meta is None else meta.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }

    def load_state_dict(self, tree: dict[str, Any]) -> None:
        """Restores such a state."""
        self.model.load_state_dict(tree["model"])
        state, ranges = tree["criterion"], self.ranges
        self.criterion.load_state_dict(state if ranges is None else ranges.part_of_state(self.criterion, state))
        self.optimizer.load_state_dict(tree["optimizer"])
        if self.meta_optimizer is not None:
            self.meta_optimizer.load_state_dict(tree["meta_optimizer"])
        if self.hardware.scaler is not None and tree["scaler"] is not None:
            self.hardware.scaler.load_state_dict(tree["scaler"])
