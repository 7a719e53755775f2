"""Optimizers, learning rate schedules, and the training step of a model with a criterion."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from compensate.core.batch import Batch
from compensate.core.criterion import Compensated
from compensate.core.stages import ModelStages
from compensate.errors import NotFinite
from compensate.methods.registry import Need
from compensate.terms.meta import meta_step, networks
from compensate.training.distributed import GatheredModel, GatheredStages, Hardware, Ranges, own_random_numbers

OPTIMIZERS = ("sgd", "adam", "adamw")

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda t: 1.0,
    "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2,
    "linear": lambda t: 1 - t,
    "step": lambda t: 1.0 if t < 0.5 else 0.1 if t < 0.75 else 0.01,
}
"""Factors of the learning rate as functions of the finished share t of the training, from 0 to 1."""


def parameter_groups(model: nn.Module, factors: Mapping[str, float]) -> list[dict[str, Any]]:
    """The trainable parameters in groups by the factor of their learning rate; `factors` names submodules, 1 for all others.

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
    name: str, parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]], lr: float, *,
    momentum: float = 0.9, weight_decay: float = 0.0,
) -> torch.optim.Optimizer:  # fmt: skip
    """One of `OPTIMIZERS`; SGD has momentum with Nesterov's correction.

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


def move_means(decay: float, means: Iterable[Tensor], values: Iterable[Tensor], _: Any) -> None:
    """Moves running means toward the values; whole numbers, and values that have not changed, are copied."""
    for mean, value in zip(means, values, strict=True):
        moved = torch.lerp(mean, value, 1 - decay) if mean.is_floating_point() else value
        mean.copy_(torch.where(mean == value, value, moved))


def make_meta_optimizer(criterion: Compensated) -> torch.optim.Optimizer | None:
    """Adam for the networks of a criterion, which meta steps train; None if it has none."""
    parameters = networks(criterion)
    return torch.optim.Adam(parameters, lr=1e-3) if parameters else None


class Forward(nn.Module):
    """Model and criterion in one module, for data parallel training.

    The criterion is not registered: its buffers are equal in all processes already, and meta steps train its parameters.
    """

    def __init__(self, view: nn.Module, criterion: Compensated) -> None:
        super().__init__()
        self.view = view
        self.unregistered = [criterion]
        self.evaluated: Batch | None = None

    def forward(self, x: Any, target: Tensor, index: Tensor, weight: Tensor | None) -> Tensor:
        """The loss; `evaluated` keeps the evaluated batch."""
        criterion = self.unregistered[0]
        s = self.evaluated = criterion.evaluate(self.view, x, target, index)
        if weight is None:
            return s.loss
        # The plain loss stays a term: tables on features learn their scale from its slope.
        return s.loss + criterion.reduce(s, (s.places.expanded(weight, "weight") - 1) * s.losses)


class Learner:
    """Model, criterion, their optimizers, and the training step. In one process without mixed precision it can be pickled.

    Args:
        model, criterion: the model maps inputs to logits (B, C).
        optimizer: makes the model's optimizer from its parameters.
        needs: the needs of the method, `METHODS[name].needs`.
        clip, hardware: maximum norm of the gradient; device, precision and processes.
        average: the decay of a running mean of the weights after each step, which is evaluated and stored; None keeps no mean.
        ranges: the samples that this process owns, if the tables of the criterion are cut among processes.

    >>> from compensate import methods
    >>> model = nn.Linear(3, 2)
    >>> learner = Learner(model, methods.base(), lambda p: torch.optim.SGD(p, 0.1))
    >>> s = learner.step(torch.ones(4, 3), torch.tensor([0, 0, 1, 0]), torch.arange(4), lr=0.1)
    >>> s.u.shape
    torch.Size([4, 2])
    """

    def __init__(
        self, model: nn.Module, criterion: Compensated,
        optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer], *, needs: Collection[Need] = (),
        clip: float | None = None, hardware: Hardware | None = None, ranges: Ranges | None = None, average: float | None = None,
    ) -> None:  # fmt: skip
        self.hardware = hardware = Hardware() if hardware is None else hardware
        self.processes, self.device, self.clip, self.ranges = hardware.processes, hardware.device, clip, ranges
        self.model = model.to(self.device).train()
        self._mean: AveragedModel | None = None
        if average is not None:
            self._mean = AveragedModel(self.model, multi_avg_fn=partial(move_means, average), use_buffers=True)
        criterion = criterion.to(self.device).train()
        # Terms on features and views, and teachers, read the inputs of the whole batch.
        self._given = criterion.reads_inputs or "teacher" in needs
        self.meta = "clean" in needs
        criterion.peers = None if ranges is None else lambda values: torch.cat(self.processes.collect(values))
        view: nn.Module = self.model
        if self.processes.size > 1 and ranges is None:  # the criterion sees the whole batch
            staged = ModelStages.of(model).features is not None and ("features" in needs or self._given)
            view = (GatheredStages if staged else GatheredModel)(model, self.processes, given=self._given)
        self.forward = Forward(view, criterion)
        self._wrapped: nn.Module = self.forward
        if self.processes.size > 1:  # averages gradients over the processes in its backward pass
            cards = [self.device] if self.device.type == "cuda" else None
            self._wrapped = DistributedDataParallel(self.forward, device_ids=cards)
        self.optimizer = optimizer([p for p in model.parameters() if p.requires_grad])
        self.meta_optimizer = make_meta_optimizer(criterion) if self.meta else None

    @property
    def criterion(self) -> Compensated:
        """The criterion."""
        return self.forward.unregistered[0]

    @property
    def averaged(self) -> nn.Module:
        """The model with the running mean of the weights; the model itself without one."""
        return self.model if self._mean is None else self._mean.module

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
        self, x: Any, target: Tensor, index: Tensor, weight: Tensor | None = None, *, lr: float,
        clean: tuple[Any, Tensor] | None = None, share: float = 1.0, first: bool = True, last: bool = True,
    ) -> Batch:  # fmt: skip
        """Adds the gradient of a batch, and updates the model with the last batch of a group; returns the evaluated batch.

        Args:
            x: inputs of the whole batch, or of the own slice if no term reads them (see `whole_inputs`).
            target, index: (B,) of the whole batch; with ranges, all are of the process's own slice.
            weight: (B,) factors of the losses.
            lr: learning rate of the model; groups of parameters with a ``factor`` multiply it.
            clean: a trusted batch, for a meta step before this one.
            share: the share of the batch in the gradient of its group.
            first, last: whether the batch begins and ends a group of batches with one update.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("factor", 1.0)
        if clean is not None:  # on the whole batch in every process, because it needs gradients of gradients
            meta_step(self.criterion, self.model, (x, target, index), clean, lr=lr, optimizer=self.meta_optimizer)
            x = x if self._given else self.processes.scatter(x)
        if first:
            self.optimizer.zero_grad()
        if isinstance(self.forward.view, GatheredModel):
            self.forward.view.n = len(target)
        dtype, scaler, wrapped = self.hardware.dtype, self.hardware.scaler, self._wrapped
        mixed = nullcontext() if dtype is None else torch.autocast(self.device.type, dtype=dtype)
        own_numbers = nullcontext() if self.ranges is None else own_random_numbers(self.processes.rank)
        # Gradients are exchanged with the last batch of a group only.
        with nullcontext() if last or not isinstance(wrapped, DistributedDataParallel) else wrapped.no_sync():
            with mixed, own_numbers:
                loss: Tensor = wrapped(x, target, index, weight)
            if not scaler.is_enabled() and not bool(loss.isfinite()):  # a scaler skips steps that are not finite
                raise NotFinite(f"the loss is {float(loss):g}")
            s, self.forward.evaluated = self.forward.evaluated, None
            assert s is not None
            # Data parallel training takes the mean over processes, each with a slice of one gradient.
            factor = share * self.processes.size
            if self.ranges is not None and self.criterion.reduction == "mean":
                mine = torch.as_tensor(self.criterion.divisor(s), dtype=torch.float64).detach().cpu()
                factor *= float(mine / self.processes.sum(mine.clone()))
            scaler.scale(loss if factor == 1 else loss * factor).backward()
        if last:
            if self.clip is not None:
                scaler.unscale_(self.optimizer)
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            scaler.step(self.optimizer)
            scaler.update()
            if self._mean is not None:
                self._mean.update_parameters(self.model)
        return s

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on, except random numbers."""
        meta, ranges = self.meta_optimizer, self.ranges
        return {
            "model": self.model.state_dict(),
            "mean": None if self._mean is None else self._mean.state_dict(),
            "criterion": self.criterion.state_dict() if ranges is None else ranges.whole_state(self.criterion),
            "optimizer": self.optimizer.state_dict(),
            "meta_optimizer": None if meta is None else meta.state_dict(),
            "scaler": self.hardware.scaler.state_dict() or None,
        }

    def load_state_dict(self, tree: dict[str, Any]) -> None:
        """Restores such a state."""
        self.model.load_state_dict(tree["model"])
        if self._mean is not None:
            self._mean.load_state_dict(tree["mean"])
        state, ranges = tree["criterion"], self.ranges
        self.criterion.load_state_dict(state if ranges is None else ranges.part_of_state(self.criterion, state))
        self.optimizer.load_state_dict(tree["optimizer"])
        if self.meta_optimizer is not None:
            self.meta_optimizer.load_state_dict(tree["meta_optimizer"])
        if tree["scaler"]:
            self.hardware.scaler.load_state_dict(tree["scaler"])
