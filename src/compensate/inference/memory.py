"""What the model said of each sample before: one row per sample."""

from __future__ import annotations

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from compensate.errors import InputError
from compensate.inference.statistics import Statistic
from compensate.state import State


@final
class LastPrediction(Statistic):
    r"""The prediction of the model at the previous visit of each sample: in the previous epoch, where each sample comes
    once an epoch. As a value, (B, C); the given label where there was no visit yet.

    Args:
        num_samples: the size of the training set.
        num_classes: the number of classes.
        hard: return the most likely class, one-hot, instead of the distribution.
    """

    reader = "the memory of the previous epoch"

    def __init__(self, num_samples: int, num_classes: int, hard: bool = False) -> None:
        super().__init__()
        self.num_samples, self.num_classes, self.hard = num_samples, num_classes, hard
        self.track("rows", torch.zeros(num_samples, num_classes), merge="rows")
        self.rows: Tensor

    def forward(self, s: State) -> Tensor:
        """(B, C) the guess."""
        rows = self.rows[self.index(s)].to(s.u.dtype)
        guess = F.one_hot(rows.argmax(-1), rows.shape[-1]).to(rows.dtype) if self.hard else rows
        return torch.where(rows.sum(-1, keepdim=True) > 0, guess, s.y)

    def observe(self, s: State) -> None:
        """Keeps the predictions of the batch."""
        self.rows[self.index(s)] = s.plain.softmax(-1).to(self.rows.dtype)

    def extra_repr(self) -> str:
        """Size."""
        return f"{self.num_samples} samples"


@final
class TemporalEnsemble(Statistic):
    r"""A running mean of the predictions of each sample, the present one included; as a value, (B, C).

    .. math:: t_i \leftarrow \beta\, t_i + (1 - \beta)\, \bar p_i

    where :math:`\bar p_i` is the prediction with its entries kept within `[floor, 1 - floor]` and divided by their sum,
    and :math:`t_i` starts at zero.

    Args:
        num_samples: the size of the training set.
        num_classes: the number of classes.
        beta: the momentum :math:`\beta`.
        floor: the smallest entry.
    """

    reader = "a running mean of predictions"
    observes = "logits"  # the present prediction is part of the mean

    def __init__(self, num_samples: int, num_classes: int, beta: float, floor: float = 1e-4) -> None:
        super().__init__()
        if not 0 <= beta < 1:
            raise InputError(f"beta is {beta}; a momentum lies in [0, 1).")
        self.num_samples, self.num_classes, self.beta, self.floor = num_samples, num_classes, beta, floor
        self.track("rows", torch.zeros(num_samples, num_classes), merge="rows")
        self.rows: Tensor

    def bounded(self, p: Tensor) -> Tensor:
        """Predictions kept away from 0 and 1."""
        return p.clamp(self.floor, 1 - self.floor)

    def forward(self, s: State) -> Tensor:
        """(B, C) the running means."""
        return self.rows[self.index(s)].to(s.u.dtype)

    def moved_rows(self, s: State) -> Tensor:
        """The samples of the batch."""
        return self.index(s).unique()

    def observe(self, s: State) -> None:
        """Moves the means of the batch."""
        index, p = self.index(s), self.bounded(s.p.detach())
        p = (p / p.sum(-1, keepdim=True)).to(self.rows.dtype)
        self.rows[index] = self.beta * self.rows[index] + (1 - self.beta) * p

    def extra_repr(self) -> str:
        """Size and momentum."""
        return f"{self.num_samples} samples, beta={self.beta:g}"
