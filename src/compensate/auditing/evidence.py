"""What a training run says about each label: margin, loss, size of the compensation, agreement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compensate.state import State

ROOM = 50_000_000
"""With more samples times classes than this, mean predictions would cost too much memory; votes are kept instead."""

COLUMNS = ("visits", "margin", "loss", "size", "agreement")
"""What is summed up for each sample; in one table, so that a batch adds to it in one step."""


@final
class Trace:
    r"""Means over the visits of each sample during a part of a run.

    .. math:: \bar m_i = \frac1{n_i} \sum_t \bigl( u_{i,y_i}^{(t)} - \max_{c \ne y_i} u_{i,c}^{(t)} \bigr), \qquad
              \bar p_i = \frac1{n_i} \sum_t S(u_i^{(t)})

    where :math:`n_i` counts the visits :math:`t` of sample :math:`i`, :math:`u` are its logits without compensation and
    :math:`y_i` the label it was trained with. A visit comes before the step that learns from it, so that early in a run
    a model speaks about samples it has hardly seen.

    Args:
        num_samples: the number of rows.
        num_classes: the number of classes.
        room: the mean prediction is kept if it has no more entries than this, else a majority vote.
    """

    def __init__(self, num_samples: int, num_classes: int, *, room: int = ROOM) -> None:
        self.sums = torch.zeros(num_samples, len(COLUMNS))
        self.probabilities = torch.zeros(num_samples, num_classes) if num_samples * num_classes <= room else None
        self.guess = torch.zeros(num_samples, dtype=torch.long)
        self.votes = torch.zeros(num_samples)

    @property
    def visits(self) -> Tensor:
        """(N,) how often each sample was seen."""
        return self.sums[:, 0]

    @torch.no_grad()
    def observe(self, s: State, rows: Tensor) -> Tensor:
        """Adds the visits of a batch; `rows` (B,) are positions in the data, each at most once. Gives the margins (B,)."""
        u, given = s.plain.float(), s.labels[:, None]
        best, voted = u.scatter(1, given, -torch.inf).max(1)
        margin = u.gather(1, given)[:, 0] - best
        size = torch.zeros_like(margin) if s.du is None else s.du.detach().abs().sum(1).float()
        seen = (torch.ones_like(margin), margin, s.plain_losses.float(), size, (margin > 0).float())
        self.sums.index_add_(0, rows, torch.stack(seen, 1))
        p = u.softmax(1)
        if self.probabilities is not None:
            self.probabilities.index_add_(0, rows, p)
        else:
            self._vote(rows, voted, p.gather(1, voted[:, None])[:, 0])
        return margin

    def _vote(self, rows: Tensor, voted: Tensor, p: Tensor) -> None:
        votes = self.votes[rows] + torch.where(self.guess[rows] == voted, p, -p)
        self.guess[rows] = torch.where(votes < 0, voted, self.guess[rows])
        self.votes[rows] = votes.abs()

    def mean(self, name: str) -> NDArray[np.float64]:
        """(N,) the mean of "margin", "loss", "size" or "agreement" over the visits; NaN for a row never visited."""
        return (self.sums[:, COLUMNS.index(name)] / self.visits).double().numpy()

    @property
    def mean_probabilities(self) -> NDArray[np.float32] | None:
        """(N, C) the mean prediction, or None if there was no room for it."""
        if self.probabilities is None:
            return None
        return (self.probabilities / self.visits.clamp(min=1)[:, None]).numpy()

    def contradiction(self, labels: NDArray[np.int64]) -> NDArray[np.float64] | None:
        r"""(N,) how far the mean prediction contradicts these labels, which need not be those of the training.

        .. math:: \max_{c \ne y_i} \ln \bar p_{ic} - \ln \bar p_{i y_i}

        None if there was no room for mean predictions.
        """
        p = self.mean_probabilities
        if p is None:
            return None
        q = np.log(np.maximum(p, 1e-9)).astype(np.float64)
        rows = np.arange(len(q))
        own = q[rows, labels].copy()
        q[rows, labels] = -np.inf
        return q.max(1) - own

    def suggested(self, given: NDArray[Any]) -> NDArray[np.int64]:
        """(N,) the likeliest class other than the given one; where none is given (-1), the likeliest."""
        if self.probabilities is None:
            return self.guess.numpy().copy()
        return best_other(self.probabilities.numpy(), given)


def over(traces: Sequence[Trace], name: str) -> NDArray[np.float64]:
    """(N,) the mean of `name` over the visits of several parts of a run."""
    total = torch.stack([trace.sums for trace in traces]).sum(0)
    return (total[:, COLUMNS.index(name)] / total[:, 0]).double().numpy()


def best_other(probabilities: NDArray[Any], given: NDArray[Any]) -> NDArray[np.int64]:
    """(N,) the column with the largest value, the given one left out (-1 leaves out none).

    >>> best_other(np.array([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1]]), np.array([0, -1]))
    array([1, 0])
    """
    masked = probabilities.astype(np.float64, copy=True)
    rows = np.flatnonzero(given >= 0)
    masked[rows, given[rows]] = -np.inf
    return masked.argmax(1)
