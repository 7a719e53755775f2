"""A strength of compensation that the training sets by itself, from the labels that it withholds from the model."""

from __future__ import annotations

import warnings
from typing import final

import torch
from torch import Tensor, nn

from compensate.core.batch import Batch, Value, at
from compensate.core.statistics import Statistic
from compensate.core.validation import checked_whole
from compensate.errors import check

MEMORY = 10.0
"""The strength per unit of memorization. On CIFAR-10 with 30 % random labels, a seed that is not reported, 5 acted too late."""

GAIN = 5.0
"""The strength, and the doubt of a class, per unit of competence: labels predicted more often than not."""

MIN_WITHHELD = 20
"""Fewer withheld labels cannot tell memorization from chance: their share of right predictions has a standard error above 0.1."""

ENOUGH_WITHHELD = 100
"""Small training sets withhold up to a tenth of their labels to have this many."""

HISTORY = 1000
"""Epochs whose strength is kept."""


@final
class Strength(Statistic):
    r"""A strength in [0, 1] that rises once the model memorizes labels, or once it predicts labels that it has never seen.

    .. math:: s \leftarrow \max\left(s,\; \min\left(1,\; \max\left(10\, \frac{P - W - \sigma}{1 - W},\; 5\, (2 W_c - 1)\right)\right)\right)

    once per epoch, from zero. :math:`P` is the mean probability of the given label over the trained samples, :math:`W` the mean over the
    withheld samples, which have neither loss nor record, :math:`W_c` the mean of :math:`W` over the classes, and :math:`\sigma`
    the standard error of :math:`W`. The difference :math:`P - W` in the first epoch, where no label can have been memorized yet, is
    chance and is subtracted later. The first argument is the memorized share of the labels that the model cannot predict. The second
    is positive where the model is right more often than not in a class: its own predictions can then be trusted. It counts once the model
    memorizes or learns slowly: the first argument is positive, or :math:`W` has risen by less than :math:`\sigma` in the last epoch.

    Samples that were withheld are trained on, and recorded as all others, once the strength is 1, since it cannot rise further. Before, they are
    never suspects.

    Args:
        num_samples: the number of rows: samples, or labels of all samples under `base="bce"`.
        num_classes: the number of classes; under `base="bce"`, 2.
        share: the share of withheld samples. Small sets withhold more: 100, or a tenth of the samples.
        seed: of the choice of withheld samples.
        several: true under `base="bce"`: only memorization raises the strength, as a label of two values is often right by chance.

    With fewer than 200 samples nothing can be measured. Then nothing is withheld, the strength stays 0, and a warning says so.

    >>> from compensate import Compensated
    >>> from compensate.terms import Pull
    >>> strength = Strength(1000, 10)
    >>> criterion = Compensated(logit=Pull(strength))
    >>> strength
    Strength(0.00, 100 of 1000 samples withheld)
    """

    inference, granularity, binary = "tuning", "corpus", True
    reader, withholds = "a strength", True

    def __init__(
        self, num_samples: int, num_classes: int, share: float = 0.02, seed: int = 0, several: bool = False
    ) -> None:
        super().__init__()
        num_samples = checked_whole("num_samples", num_samples, 1)
        num_classes = checked_whole("num_classes", num_classes, 1)
        check(0 < share < 0.5, "a share of the samples between 0 and 0.5", share=share)
        self.num_samples, self.rolls, self.several = num_samples, True, several
        count = round(max(share * num_samples, min(ENOUGH_WITHHELD, 0.1 * num_samples)))
        if count < MIN_WITHHELD:
            count = 0
            warnings.warn(
                f"a strength cannot be measured with {num_samples} samples; expected {10 * MIN_WITHHELD} or more. It stays 0, which is plain "
                "training. Give a number to compensate anyway, such as strength=0.5.",
                stacklevel=2,
            )
        chosen = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed))[:count]
        withheld = torch.zeros(num_samples, dtype=torch.bool)
        withheld[chosen] = True
        self.count = count
        self.withheld = self.track("withheld", withheld, merge="same")
        # The number of labels, the sum of their probabilities and of the squares: of withheld labels by class, then of trained ones.
        self.sums = self.track("sums", torch.zeros(num_classes + 1, 3), merge="sum")
        self.chance = self.track("chance", torch.zeros(()), merge="same")
        self.epochs = self.track("epochs", torch.zeros((), dtype=torch.long), merge="same")
        self.value = self.track("value", torch.zeros(()), merge="same")
        self.history = self.track("history", torch.zeros(HISTORY, 3), merge="same")

    @staticmethod
    def of(criterion: nn.Module) -> Strength | None:
        """The strength that a criterion measures, if it does."""
        return next((module for module in criterion.modules() if isinstance(module, Strength)), None)

    def forward(self, s: Batch) -> Tensor:
        """The strength now, a scalar tensor."""
        return self.value

    def chosen(self, s: Batch) -> Tensor:
        """(B,) the samples of the batch that are withheld until the strength is 1."""
        if self not in s.shared:
            s.shared[self] = self.withheld.index_select(0, self.index(s))
        return s.shared[self]

    def hidden(self, s: Batch) -> Tensor:
        """(B,) those that are withheld now: a strength of 1 is as large as true."""
        return self.chosen(s) > self.value

    def observe(self, s: Batch) -> None:
        """Adds the probabilities of the given labels."""
        p = s.p.detach()
        given = (p * s.y + (1 - p) * (1 - s.y))[:, 0] if s.places.binary else s.of_label(p)
        self.collect(s, given, s.labels, self.chosen(s))

    def add(self, valid: Tensor | None, *columns: Tensor) -> None:
        """Adds probabilities (n,) of labels (n,) of samples that are withheld where `chosen` (n,)."""
        given, labels, chosen = columns[0].to(self.sums.dtype), *columns[1:]
        given = given if valid is None else torch.where(valid, given, 0.0)
        counted = torch.ones_like(given) if valid is None else valid.to(given.dtype)
        moments = torch.stack([counted, given, given.square()], -1)
        self.sums.index_add_(0, torch.where(chosen, labels, len(self.sums) - 1), moments)

    def end_epoch(self) -> None:
        """Measures the epoch and raises the strength."""
        by_class, (m, trained, _) = self.sums[:-1], self.sums[-1]
        n, withheld, square = by_class.sum(0) / torch.stack(
            [torch.ones_like(m), *[by_class[:, 0].sum().clamp(min=1)] * 2]
        )
        balanced = (by_class[:, 1] / by_class[:, 0]).nanmean()
        trained = trained / m.clamp(min=1)
        error = ((square - withheld.square()).clamp(min=0.02) / n.clamp(min=1)).sqrt()
        self.chance.copy_(torch.where(self.epochs == 0, trained - withheld, self.chance))
        memorized = (trained - withheld - self.chance - error) / (1 - withheld).clamp(min=0.02)
        evidence = MEMORY * memorized
        if not self.several:
            rise = withheld - self.history[(self.epochs - 1).clamp(0, HISTORY - 1), 2]
            settled = (memorized > 0) | (rise < error)
            evidence = torch.maximum(evidence, settled * GAIN * (2 * balanced.nan_to_num() - 1))
        evidence = evidence.clamp(0, 1)
        self.value.copy_(torch.where(n > 0, torch.maximum(self.value, evidence), self.value))
        self.history[self.epochs.clamp(max=HISTORY - 1)] = torch.stack([self.value, trained, withheld])
        self.epochs.add_(1)
        self.sums.zero_()

    def curve(self) -> Tensor:
        """(epochs, 3) after each epoch: the strength, and the mean probability of the labels of trained and of withheld samples."""
        return self.history[: int(self.epochs)].clone()

    def extra_repr(self) -> str:
        value = float(self.value)
        joined = " before, now trained on" if value == 1 else ""
        return f"{value:.2f}, {self.count} of {self.num_samples} samples withheld{joined}"


@final
class Scaled(nn.Module):
    r"""A number that a strength moves from `rest` to `full`: :math:`r + s (f - r)`. As a value, a scalar tensor.

    >>> from compensate import Compensated
    >>> from compensate.terms import Pull
    >>> strength = Strength(1000, 10)
    >>> criterion = Compensated(logit=Pull(Scaled(5.0, strength)))
    """

    binary = True

    def __init__(self, full: Value, strength: Value, rest: float = 0.0) -> None:
        super().__init__()
        self.full, self.strength, self.rest = full, strength, rest

    def forward(self, s: Batch) -> Tensor | float:
        """The number now."""
        return self.rest + at(self.strength, s) * (at(self.full, s) - self.rest)

    def extra_repr(self) -> str:
        return "" if callable(self.full) else f"{self.rest:g} to {self.full:g}"
