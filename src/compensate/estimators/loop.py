"""The training loop of the classifier: one weighted step of any criterion, and what has to be kept between steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from compensate.equation import Compensated
from compensate.estimators.building import take_over
from compensate.granularity import Table
from compensate.inference.meta import meta_step
from compensate.inference.statistics import Evidence

META_RATE = 1e-3
"""Of the optimiser that moves a criterion's own networks in meta steps."""

MOMENTUM = 0.9
"""Of stochastic gradient descent."""

LEAST_RATE, MOST_RATE = 1e-3, 0.1
"""Of Adam, where the user gives none."""

STREAM_RATE = 0.01
"""Of Adam on a stream, whose length nobody knows."""

SCHEDULES = ("cosine", "linear", "constant")


def factor(schedule: str, done: float) -> float:
    """The factor of the learning rate when this share of the training is done.

    >>> [factor(name, 0.5) for name in SCHEDULES]
    [0.5, 0.5, 1.0]
    """
    if schedule == "cosine":
        return (1 + math.cos(math.pi * done)) / 2
    return 1 - done if schedule == "linear" else 1.0


def default_rate(optimizer: str, steps: int | None) -> float:
    r"""A learning rate for a training of so many steps: :math:`50 / \mathrm{steps}^{1.5}`, from 0.001 to 0.1; tenfold for SGD.

    A rule of thumb from small tables, clean and noisy: short trainings must stride or they end before they have begun,
    long ones must not, or the network learns wrong labels before their compensation does. Without a number of steps, that
    is on a stream, it is 0.01.

    >>> [round(default_rate("adam", steps), 4) for steps in (20, 100, 500, 10_000)]
    [0.1, 0.05, 0.0045, 0.001]
    """
    rate = STREAM_RATE if steps is None else min(MOST_RATE, max(LEAST_RATE, 50 / steps**1.5))
    return rate if optimizer == "adam" else 10 * rate


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers inside depend on the seed alone, and those outside do not notice."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.enable_grad():
        torch.manual_seed(seed)
        yield


def _watch(num_samples: int) -> Compensated:
    """A plain criterion that only keeps a record of each sample."""
    return Compensated(record=Evidence(num_samples, score="margin"))


class Loop:
    """A module under training. Everything in it can be pickled, so that training can go on elsewhere.

    Args:
        module: maps (B, d) to (B, outputs).
        criterion: of any method.
        num_classes: the first outputs, those that are classes.
        num_samples: for a record of each sample, where the criterion keeps none.
        optimizer: "adam" or "sgd".
        lr, weight_decay: of the optimiser.
    """

    def __init__(
        self,
        module: nn.Module,
        criterion: Compensated,
        *,
        num_classes: int,
        num_samples: int,
        optimizer: str,
        lr: float,
        weight_decay: float,
    ) -> None:
        self.module, self.num_classes, self.lr = module, num_classes, lr
        parameters = [p for p in module.parameters() if p.requires_grad]
        if optimizer == "adam":
            self.optimizer: torch.optim.Optimizer = torch.optim.Adam(parameters, lr, weight_decay=weight_decay)
        else:
            self.optimizer = torch.optim.SGD(
                parameters, lr, momentum=MOMENTUM, nesterov=True, weight_decay=weight_decay
            )
        self.meta_optimizer: torch.optim.Optimizer | None = None
        self._adopt(criterion, None if criterion.record is not None else _watch(num_samples))

    def _adopt(self, criterion: Compensated, watch: Compensated | None) -> None:
        self.criterion, self.watch = self._placed(criterion), None if watch is None else self._placed(watch)
        owned = {id(p) for m in criterion.modules() if isinstance(m, Table) for p in m.parameters(False)}
        free = [p for p in criterion.parameters() if id(p) not in owned and p.requires_grad]
        before, self.meta_optimizer = self.meta_optimizer, torch.optim.Adam(free, META_RATE) if free else None
        if before is not None and self.meta_optimizer is not None:
            self.meta_optimizer.load_state_dict(before.state_dict())

    def _placed(self, criterion: Compensated) -> Compensated:
        """The criterion in the precision and on the device of the module."""
        like = next(self.module.parameters(), torch.zeros(()))
        return criterion.to(like.device, like.dtype)

    def grow(self, criterion: Compensated, num_samples: int) -> None:
        """Goes on with a criterion for more samples, which takes over what the old one knew."""
        watch = None if self.watch is None else take_over(self._placed(_watch(num_samples)), self.watch)
        self._adopt(take_over(self._placed(criterion), self.criterion), watch)

    @property
    def record(self) -> Evidence:
        """What is known of each sample."""
        record = self.criterion.record if self.watch is None else self.watch.record
        assert record is not None
        return record

    def train(self, mode: bool = True) -> None:
        """Module and criterion to training or evaluation mode."""
        self.module.train(mode)
        self.criterion.train(mode)

    def step(
        self,
        x: Tensor,
        target: Tensor,
        index: Tensor,
        weight: Tensor | None = None,
        *,
        rate: float = 1.0,
        clean: tuple[Tensor, Tensor] | None = None,
    ) -> float:
        r"""One step of the optimiser down :math:`\frac1B \sum_i w_i l_i`, which is returned.

        Args:
            x, target, index: (B, d), (B,) and (B,), the batch.
            weight: (B,) :math:`w_i`; ones if not given.
            rate: factor of the learning rate.
            clean: a trusted batch, for a meta step before this one.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = rate * self.lr
        if clean is not None:
            meta_step(
                self.criterion, self.module, (x, target, index), clean, lr=rate * self.lr, optimizer=self.meta_optimizer
            )
        s = self.criterion.evaluate(self.module, x, target, index)
        # Added to the plain loss and not in its place: tables on features learn their scale from the slope of that.
        loss = s.loss if weight is None else s.loss + self.criterion.reduce(s, (weight - 1) * s.losses)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        if self.watch is not None:
            self.watch(s.plain[:, : self.num_classes], target, index)
        return float(loss.detach())

    def end_epoch(self) -> None:
        """To be called after each pass over the data."""
        self.criterion.end_epoch()
        if self.watch is not None:
            self.watch.end_epoch()
