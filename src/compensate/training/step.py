"""Optimizers by name, and learning rates as functions of how much of the training is done."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from compensate.core.batch import Batch
from compensate.core.criterion import Compensated
from compensate.core.stages import ModelStages
from compensate.errors import NotFinite
from compensate.methods.registry import Need
from compensate.terms.meta import meta_step, networks
from compensate.training.distributed import Ranges, Whole, WholeStages, apart
from compensate.training.hardware import Hardware, gathering

MOMENTUM = 0.9
"""Of stochastic gradient descent, with Nesterov's correction."""

OPTIMIZERS = ("sgd", "adam", "adamw")

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda t: 1.0,
    "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2,
    "linear": lambda t: 1 - t,
    "step": lambda t: 1.0 if t < 0.5 else 0.1 if t < 0.75 else 0.01,
}
"""The factor of the learning rate at the share t of the training, from 0 to 1.

A schedule remembers nothing: where a run stands says what its learning rate is, also after it was interrupted.
"""


def parameter_groups(model: nn.Module, factors: Mapping[str, float]) -> list[dict[str, Any]]:
    """The parameters to train in groups, each with the factor of its learning rate.

    Args:
        model: the model.
        factors: by the name of a part of the model; 1 for all others.

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
    """The learning rate of a step, counted from 0, of `total`: a linear warmup over a share of them, then the schedule.

    >>> [round(rate(0.1, step, 100, schedule="cosine", warmup=0.1), 3) for step in (0, 9, 10, 55, 99)]
    [0.01, 0.1, 0.1, 0.05, 0.0]
    """
    rising = math.ceil(warmup * total)
    if step < rising:
        return lr * (step + 1) / rising
    return lr * SCHEDULES[schedule]((step - rising) / max(total - rising, 1))


@dataclass
class DivergenceCheck:
    """Knows where a run stands, so that an error can say so.

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
    def over(self, x: Any, rows: Any) -> Iterator[None]:
        """During a forward pass: an error about numbers that are not finite gets the place and the likely reason."""
        try:
            yield
        except NotFinite as error:
            raise self._error(str(error).partition(":")[0], _odd_rows(x, rows)) from error

    def loss(self, value: Tensor) -> None:
        """The loss of a step."""
        if not bool(value.isfinite()):
            raise self._error(f"the loss is {float(value):g}")

    def weights(self, model: nn.Module) -> None:
        """What a checkpoint would hold."""
        for name, value in model.state_dict().items():
            if value.is_floating_point() and not bool(value.isfinite().all()):
                raise self._error(f"{name} is not finite")

    def row(self, values: Mapping[str, float]) -> None:
        """The metrics of an epoch."""
        for name, value in values.items():
            if name.endswith("_loss") and not torch.tensor(value).isfinite():
                raise self._error(f"{name} is {value:g}")

    def _error(self, what: str, rows: list[int] | None = None) -> NotFinite:
        if rows:
            why = f"The input of the samples {rows} is not finite: mend them or leave them out."
        else:
            why = "The usual cause is a learning rate that is too large: lower it, or clip gradients (clip=1)."
        if self.folder is None:
            kept = ""
        elif self.saved is None:
            kept = " There was no checkpoint yet."
        else:
            kept = f" The checkpoint of step {self.saved}, the last good one, is kept in {self.folder}."
        return NotFinite(f"the training diverged at step {self.step} ({self.where}): {what}. {why}{kept}")


def _odd_rows(x: Any, rows: Any) -> list[int] | None:
    if not isinstance(x, Tensor) or not x.is_floating_point() or len(x) != len(rows):
        return None
    odd = (~x.isfinite()).flatten(1).any(1) if x.ndim > 1 else ~x.isfinite()
    return [int(rows[i]) for i in odd.nonzero().flatten().tolist()[:5]]


META_RATE = 1e-3
"""Of the optimizer that moves a criterion's own networks in meta steps."""

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, eq=False)
class TrainingBatch:
    """A global batch as one process has it; where each process owns a range of samples, its own slice of the batch and nothing else.

    Attributes:
        x: inputs: of the whole batch, or of the own slice where no term looks at them (see `Learner.whole_inputs`).
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
    """Model and criterion behind one forward pass, which is what data parallel training wraps.

    The criterion is kept in a list: its buffers are equal in all processes already and must not be sent, and its
    parameters belong to the meta step.
    """

    def __init__(self, view: nn.Module, criterion: Compensated) -> None:
        super().__init__()
        self.view = view
        self._criterion = [criterion]
        self.state: Batch | None = None

    @property
    def criterion(self) -> Compensated:
        """The criterion."""
        return self._criterion[0]

    def adopt(self, criterion: Compensated) -> None:
        """Goes on with another criterion."""
        self._criterion[0] = criterion

    def forward(self, batch: TrainingBatch) -> Tensor:
        """The loss; the state of the batch is kept for the loop to look at."""
        criterion = self.criterion
        s = self.state = criterion.evaluate(self.view, batch.x, batch.target, batch.index)
        if batch.weight is None:
            return s.loss
        # Added to the plain loss and not in its place: tables on features learn their scale from the slope of that.
        return s.loss + criterion.reduce(s, (s.places.expanded(batch.weight, "weight") - 1) * s.losses)


class Learner:
    """A model under training: model, criterion, their optimizers, and the step that moves them.

    Where it runs in one process without mixed precision, everything in it can be pickled, so that training can go on elsewhere.

    Args:
        model: maps inputs to logits (B, C).
        criterion: of any method.
        optimizer: makes the model's optimizer from its parameters.
        needs: what the method asks of a training loop, `METHODS[name].needs`.
        clip: largest norm of the gradient.
        hardware: device, precision and processes.
        ranges: of samples that processes own, where the tables of the criterion are cut among them.

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
        # Terms on features and views, and teachers, look at the inputs of the whole batch; others leave each process its own.
        self._given = criterion.reads_inputs or "teacher" in needs
        self.meta = "clean" in needs
        criterion.peers = None if ranges is None else ranges.everyone
        self.forward = Forward(self._view("features" in needs), criterion)
        self._wrapped = self.hardware.wrap(self.forward)
        self.optimizer = optimizer([p for p in model.parameters() if p.requires_grad])
        self.meta_optimizer = self._meta_optimizer(criterion)
        self.check = DivergenceCheck()

    @property
    def criterion(self) -> Compensated:
        """The criterion."""
        return self.forward.criterion

    @property
    def whole_inputs(self) -> bool:
        """Whether a process needs the inputs of all samples that it is given, and not only of a slice of them."""
        return self.processes.size == 1 or self.ranges is not None or self._given or self.meta

    def _view(self, reads_features: bool) -> nn.Module:
        """The model as the criterion sees it: one that speaks of the whole batch, unless batches are cut by ranges of samples."""
        if self.processes.size == 1 or self.ranges is not None:
            return self.model
        if ModelStages.of(self.model).features is not None and (reads_features or self._given):
            return WholeStages(self.model, self.processes, given=self._given)
        return Whole(self.model, self.processes, given=self._given)

    def _meta_optimizer(self, criterion: Compensated) -> torch.optim.Optimizer | None:
        free = networks(criterion) if self.meta else []
        return torch.optim.Adam(free, lr=META_RATE) if free else None

    def adopt(self, criterion: Compensated) -> None:
        """Goes on with a criterion for more samples, which has taken over what the old one knew."""
        self.forward.adopt(criterion.to(self.device))
        before, self.meta_optimizer = self.meta_optimizer, self._meta_optimizer(criterion)
        if before is not None and self.meta_optimizer is not None:
            self.meta_optimizer.load_state_dict(before.state_dict())

    def train(self, mode: bool = True) -> None:
        """Model and criterion to training or evaluation mode."""
        self.model.train(mode)
        self.criterion.train(mode)

    # --- the step ---------------------------------------------------------------------------------------------

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
        """One batch, and with the last of a group an update of the model; gives the state of the batch.

        Args:
            batch: the batch.
            lr: learning rate of the model; a group of parameters with a ``factor`` has that times as much.
            clean: a trusted batch, for a meta step before this one.
            share: the part of the batch in the gradient of its group.
            first, last: whether the batch begins and ends a group whose gradients make one update.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("factor", 1.0)
        if clean is not None:
            batch = self._meta_step(batch, clean, lr)
        if first:
            self.optimizer.zero_grad()
        with gathering(self._wrapped, last):
            self._backward(self._loss(batch), share)
        if last:
            self.hardware.update(self.optimizer, self.model.parameters(), self.clip)
        s, self.forward.state = self.forward.state, None
        assert s is not None
        return s

    def _meta_step(self, batch: TrainingBatch, clean: tuple[Any, Tensor], lr: float) -> TrainingBatch:
        """Every process takes the same meta step on the whole batch: it needs gradients of gradients."""
        given = (batch.x, batch.target, batch.index)
        with self.check.over(batch.x, batch.index):
            meta_step(self.criterion, self.model, given, clean, lr=lr, optimizer=self.meta_optimizer)
        if self._given:
            return batch
        return TrainingBatch(self.processes.scatter(batch.x), batch.target, batch.index, batch.weight)

    def _loss(self, batch: TrainingBatch) -> Tensor:
        if isinstance(self.forward.view, Whole | WholeStages):
            self.forward.view.expect(len(batch.target))
        own = nullcontext() if self.ranges is None else apart(self.processes.rank)
        with self.check.over(batch.x, batch.index), self.hardware.autocast(), own:
            loss: Tensor = self._wrapped(batch)
        if self.hardware.scaler is None:  # a scaler skips such steps by itself
            self.check.loss(loss.detach())
        return loss

    def _backward(self, loss: Tensor, share: float) -> None:
        # The mean over processes is taken of slices of one gradient, so that their sum is `size` times as much.
        factor = share * self.processes.size
        if self.ranges is not None and self.criterion.reduction == "mean":
            assert self.forward.state is not None
            factor *= self.ranges.part(self.criterion.divisor(self.forward.state))
        self.hardware.backward(loss if factor == 1 else loss * factor)

    # --- checkpoints ------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on, but for random numbers."""
        scaler, meta, ranges = self.hardware.scaler, self.meta_optimizer, self.ranges
        return {
            "model": self.model.state_dict(),
            "criterion": self.criterion.state_dict() if ranges is None else ranges.whole_state(self.criterion),
            "optimizer": self.optimizer.state_dict(),
            "meta_optimizer": None if meta is None else meta.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }

    def load_state_dict(self, tree: dict[str, Any]) -> None:
        """Goes back to such a state."""
        self.model.load_state_dict(tree["model"])
        known, ranges = tree["criterion"], self.ranges
        self.criterion.load_state_dict(known if ranges is None else ranges.part_of_state(self.criterion, known))
        self.optimizer.load_state_dict(tree["optimizer"])
        if self.meta_optimizer is not None:
            self.meta_optimizer.load_state_dict(tree["meta_optimizer"])
        if self.hardware.scaler is not None and tree["scaler"] is not None:
            self.hardware.scaler.load_state_dict(tree["scaler"])
