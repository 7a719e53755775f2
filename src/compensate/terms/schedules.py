"""Inference by tuning: numbers that change over time, thresholds, and gates that choose the samples of a term."""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor, nn

from compensate.core.batch import Batch, Value, at
from compensate.core.layout import is_eager_cpu, rowwise
from compensate.core.statistics import Statistic
from compensate.errors import InputError, check, one_of

Curve = Literal["linear", "cosine", "exponential"]
Over = Literal["batch", "epoch"]


@final
class Ramp(nn.Module):
    """A number that goes from `start` to `end` while training goes from `begin` to `finish` (shares of all steps).

    Args:
        start: the value until `begin`.
        end: the value from `finish` on.
        begin: when it starts to move, in [0, 1].
        finish: when it has arrived, in [0, 1].
        shape: "linear", "cosine" (slow at both ends) or "exponential" (by a constant factor per step; both ends positive).

    >>> from compensate import Compensated
    >>> from compensate.terms import Toward, uniform
    >>> criterion = Compensated(label=Toward(uniform, Ramp(0.0, 0.4)))
    >>> _ = criterion.start(total_steps=100)      # a ramp asks how long the training is
    """

    def __init__(
        self, start: float, end: float, *, begin: float = 0.0, finish: float = 1.0, shape: Curve = "linear"
    ) -> None:
        super().__init__()
        check(0 <= begin < finish <= 1, "0 <= begin < finish <= 1", begin=begin, finish=finish)
        positive = start > 0 and end > 0
        check(shape != "exponential" or positive, "two positive ends of an exponential ramp", start=start, end=end)
        self.start, self.end, self.begin, self.finish, self.shape = start, end, begin, finish, shape

    def forward(self, s: Batch) -> Tensor:
        """The value now, a scalar tensor."""
        t = ((s.progress - self.begin) / (self.finish - self.begin)).clamp(0, 1)
        if self.shape == "exponential":
            return self.start * (self.end / self.start) ** t
        if self.shape == "cosine":
            t = (1 - torch.cos(math.pi * t)) / 2
        return self.start + (self.end - self.start) * t

    def extra_repr(self) -> str:
        return f"{self.start:g} to {self.end:g}, {self.shape}"


@final
class Warmup(Statistic):
    r"""A number that goes from `start` to `end` over the first epochs, counted in samples: the length of the training is not needed.

    .. math:: a + (b - a) \min\left(1, \frac{\text{samples seen}}{\text{epochs} \cdot N}\right)

    Args:
        start, end: the value at first, and after the warm-up.
        epochs: its length.
        num_samples: the size :math:`N` of the training set.

    >>> from compensate import Compensated
    >>> from compensate.terms import Pull
    >>> criterion = Compensated(logit=Pull(Warmup(0.0, 5.0, epochs=2, num_samples=1000)))
    """

    def __init__(self, start: float, end: float, *, epochs: float, num_samples: int) -> None:
        super().__init__()
        check(epochs > 0, "a positive number of epochs of warm-up", epochs=epochs)
        self.start, self.end, self.epochs, self.size = start, end, epochs, num_samples
        self.seen = self.track("seen", torch.zeros((), dtype=torch.long), merge="sum")

    def forward(self, s: Batch) -> Tensor | float:
        """The value now: a number on the CPU, else a scalar tensor."""
        seen, whole = self.seen, self.epochs * self.size
        if is_eager_cpu(seen):
            return self.start + (self.end - self.start) * min(1.0, seen.item() / whole)
        return self.start + (self.end - self.start) * (seen / whole).clamp(max=1)

    def observe(self, s: Batch) -> None:
        """Counts the samples of the batch."""
        self.seen.add_(s.places.visits)

    def extra_repr(self) -> str:
        return f"{self.start:g} to {self.end:g} over {self.epochs:g} epochs"


@final
class StepSchedule(nn.Module):
    """A number that jumps at given epochs: `StepSchedule({0: 0.0, 5: 0.1})` is 0 for five epochs and 0.1 afterwards.

    Args:
        values: the number from each epoch on; the first must be given for epoch 0.

    >>> from compensate import Compensated
    >>> from compensate.terms import Toward, uniform
    >>> criterion = Compensated(label=Toward(uniform, StepSchedule({0: 0.0, 5: 0.1})))      # smoothing from the sixth epoch on
    """

    def __init__(self, values: dict[int, float]) -> None:
        super().__init__()
        check(0 in values, "a value for epoch 0", values=values)
        self.values = dict(sorted(values.items()))
        self.register_buffer("_epochs", torch.tensor(list(self.values)), persistent=False)
        self.register_buffer("_values", torch.tensor(list(self.values.values())), persistent=False)
        self._epochs: Tensor
        self._values: Tensor

    def forward(self, s: Batch) -> Tensor:
        """The value now, a scalar tensor."""
        return self._values.gather(0, (self._epochs <= s.epoch).sum()[None] - 1)[0]

    def extra_repr(self) -> str:
        return ", ".join(f"{epoch}: {value:g}" for epoch, value in self.values.items())


@final
class Top(Statistic):
    r"""The threshold that the largest `pro` percent of the plain losses reach: the paper's :math:`\tau`.

    .. math:: k = \lfloor \mathrm{pro} \cdot n / 100 \rfloor, \qquad \tau = \max(\text{the k-th largest loss}, \text{floor}),\; +\infty
              \text{ if } k = 0

    Args:
        pro: percent of samples at or above the threshold, a number or a callable of the batch.
        over: "batch", the losses of the batch (:math:`n` its size), or "epoch", the losses of the last epoch, each sample
            at its last visit; before there is a last epoch, the batch serves.
        num_samples: the size of the training set, for "epoch".
        floor: the smallest threshold.

    >>> from compensate import Compensated
    >>> from compensate.terms import Pull, Where, above
    >>> criterion = Compensated(logit=Where(above(Top(50)), Pull(1.0)))
    >>> s = criterion.evaluate(torch.nn.Identity(), torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0]))
    >>> (s.du != 0).any(1).tolist()      # the worse half of the batch
    [False, True]

    Reference: Yao and Wu, Compensation Learning, 2021, Appendix B.
    """

    reader = 'a threshold over="epoch"'

    def __init__(self, pro: Value, over: Over = "batch", num_samples: int | None = None, *, floor: float = 0.0) -> None:
        super().__init__()
        check(callable(pro) or 0 <= pro <= 100, "percent, from 0 to 100", pro=pro)
        if not callable(pro) and 0 < pro < 1:
            # Not refused: a search over percents may draw such a number.
            warnings.warn(f"pro is in percent, 30 means 30 %; got {float(pro):g}.", stacklevel=3)
        one_of("over", over, "batch", "epoch")
        self.pro, self.over, self.floor = pro, over, floor
        if over == "epoch":
            if num_samples is None:
                raise InputError('over="epoch" keeps the loss of every sample: give num_samples.')
            self.num_samples, self.rolls = num_samples, True
            self.seen = self.track("seen", torch.full((num_samples,), torch.inf), merge="rows")
            self.last = self.track("last", torch.full((num_samples,), torch.inf), merge="same")

    def forward(self, s: Batch) -> Tensor | float:
        """The threshold now: a number on the CPU, else a scalar tensor."""
        pool, pro, gather = s.plain_losses, at(self.pro, s), s.criterion.peers or (lambda values: values)
        if not is_eager_cpu(pool):
            now = _kth_largest(gather(pool), gather(s.valid), pro)
            if self.over == "epoch":
                known = self.last.isfinite()
                now = torch.where(known.any(), _kth_largest(self.last, known, pro), now)
            return now.clamp(min=self.floor) if self.floor else now
        past = self.last[self.last.isfinite()] if self.over == "epoch" else None
        pool = gather(pool if s.complete else pool[s.valid]) if past is None or not len(past) else past
        losses = pool.numpy() if pool.dtype in (torch.float32, torch.float64) else pool.double().numpy()
        k = int(pro * losses.size / 100)
        return max(float(np.partition(losses, -k)[-k]), self.floor) if k else math.inf

    def observe(self, s: Batch) -> None:
        """Keeps the plain losses of the batch."""
        if self.over == "epoch":
            index = self.index(s)
            losses = s.plain_losses.to(self.seen.dtype)
            if is_eager_cpu(losses):
                self.seen[index[s.valid]] = losses[s.valid]
            else:
                self.seen[index] = torch.where(s.valid, losses, self.seen[index])

    def end_epoch(self) -> None:
        """The losses of this epoch become the losses of the last epoch."""
        if self.over == "epoch":
            self.last.copy_(torch.where(self.seen.isfinite(), self.seen, self.last))
            self.seen.fill_(torch.inf)

    def extra_repr(self) -> str:
        return f"{self.pro} % of the {self.over}" + (f", at least {self.floor:g}" if self.floor else "")


def _kth_largest(pool: Tensor, counts: Tensor, pro: Any) -> Tensor:
    """As :class:`Top`, in shapes that do not depend on how many of the pool count: nothing waits, and graphs do not break."""
    if not len(pool):
        return pool.new_full((), torch.inf)
    k = (pro * counts.sum().double() / 100).long()
    falling = torch.where(counts, pool, -torch.inf).sort(descending=True).values
    return torch.where(k > 0, falling.gather(0, (k - 1).clamp(min=0)[None])[0], torch.inf)


@final
class Threshold(nn.Module):
    """The gate for samples on one side of a plain loss."""

    def __init__(self, tau: Value, side: Literal["above", "below"]) -> None:
        super().__init__()
        self.tau, self.side = tau, side

    def forward(self, s: Batch) -> Tensor:
        """(B,) true where the gate is open."""
        reached = s.plain_losses >= at(self.tau, s)
        return reached if self.side == "above" else ~reached

    def extra_repr(self) -> str:
        return self.side if isinstance(self.tau, nn.Module) else f"{self.side} {self.tau}"


def above(tau: Value) -> Threshold:
    r"""The gate for samples with :math:`l_i \ge \tau`; `tau` is a number or a callable of the batch.

    >>> from compensate import Compensated
    >>> from compensate.terms import Pull
    >>> criterion = Compensated(logit=Where(above(1.0), Pull(1.0)))
    >>> s = criterion.evaluate(torch.nn.Identity(), torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0]))
    >>> (s.du != 0).any(1).tolist()
    [False, True]
    """
    return Threshold(tau, "above")


def below(tau: Value) -> Threshold:
    r"""The gate for samples with :math:`l_i < \tau`; `tau` is a number or a callable of the batch.

    >>> below(1.0)
    Threshold(below 1.0)
    """
    return Threshold(tau, "below")


@final
class Where(nn.Module):
    r"""A term for the samples that a gate lets through; the others get nothing.

    Inner loops and tables see the gate: gated-out samples stay clean while the others are attacked, and their rows do not move.

    Args:
        gate: a callable of the batch that returns (B,) booleans.
        term: the term. One with `gated = True` reads `s.gate` and is zero by itself for samples that are kept out.

    >>> from compensate import Compensated
    >>> from compensate.terms import Pull
    >>> mixcomp = Compensated(logit=Where(above(2.0), Pull(1.0)))   # Eq. 44
    >>> mixcomp(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.0171)
    """

    def __init__(self, gate: Any, term: Any) -> None:
        super().__init__()
        self.gate, self.term = gate, term

    @property
    def gated_term(self) -> Any:
        """The term, which has the place of both in the taxonomy."""
        return self.term

    def forward(self, s: Batch) -> Tensor:
        """The term, zero for the samples that the gate keeps out."""
        if s.by_input:
            raise InputError(
                f"a gate on features asks for one loss of each input, and an input of this batch has {s.places.each}. Gate logits "
                "or labels, as mixcomp(eps2=0) does."
            )
        mask, outer = self.gate(s), s.gate
        s.gate = mask if outer is None else outer & mask
        try:
            delta = self.term(s)
        finally:
            s.gate = outer
        return delta if getattr(self.term, "gated", False) else torch.where(rowwise(mask, delta), delta, 0.0)
