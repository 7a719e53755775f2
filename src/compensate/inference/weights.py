"""Weights and other shapes of the loss, written as loss terms: for contrast, they are not compensation."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from compensate.errors import InputError
from compensate.granularity import Sample
from compensate.inference.statistics import ClassMean
from compensate.state import State


def of_given(s: State, p: Tensor) -> Tensor:
    """(B,) the entry of the given class in each row of `p`; a mean of entries where the label is a distribution."""
    return p.gather(1, s.labels[:, None])[:, 0] if s.hard else (s.y * p).sum(-1)


@final
class Weighted(nn.Module):
    r"""A weight on the loss, as the term :math:`\Delta l_i = (w_i - 1)\, l_i`.

    Args:
        weight: :math:`w_i`, a callable of the state that returns (B,).
    """

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, s: State) -> Tensor:
        """(B,) the loss term."""
        return (self.weight(s) - 1) * s.l


@final
class Becomes(nn.Module):
    r"""Another loss in place of the base loss, as the term :math:`\Delta l_i = l'_i - l_i`.

    Args:
        loss: :math:`l'_i`, a callable of the state that returns (B,).
    """

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, s: State) -> Tensor:
        """(B,) the loss term."""
        return torch.where(s.valid, s.weights.to(s.l.dtype) * self.loss(s) - s.l, 0.0)


@final
class Focus(nn.Module):
    r"""The weight of the focal loss, :math:`w_i = (1 - p_{i,y_i})^\gamma`.

    Args:
        gamma: :math:`\gamma`.
        mean: if given, the mean prediction of the class stands for the sample's own (the category-level form).
    """

    direction = "positive"

    def __init__(self, gamma: float, mean: ClassMean | None = None) -> None:
        super().__init__()
        if gamma < 0:
            raise InputError(f"gamma is {gamma}; expected at least 0 (0 is plain cross entropy).")
        self.gamma, self.mean = gamma, mean

    @property
    def granularity(self) -> str:
        """Whose prediction sets the weight."""
        return "sample" if self.mean is None else "category"

    def forward(self, s: State) -> Tensor:
        """(B,) the weights."""
        p = of_given(s, s.p if self.mean is None else self.mean(s).to(s.p.dtype))
        # Kept off zero, where the slope of a root is infinite.
        return (1 - p).clamp(min=torch.finfo(p.dtype).tiny) ** self.gamma

    def extra_repr(self) -> str:
        """The exponent."""
        return f"gamma={self.gamma:g}"


@final
class BoxCox(nn.Module):
    r"""The generalised cross entropy, between cross entropy (q to 0) and mean absolute error (q = 1).

    .. math:: l'_i = \frac{1 - \max(p_{i,y_i}, k)^q}{q}

    Args:
        q: :math:`q`, in (0, 1].
        k: predictions below it count no longer (the truncated form); 0 for none.
    """

    direction = "positive"

    def __init__(self, q: float, k: float = 0.0) -> None:
        super().__init__()
        if not 0 < q <= 1 or not 0 <= k < 1:
            raise InputError(f"q={q}, k={k}; expected q in (0, 1] and k in [0, 1).")
        self.q, self.k = q, k

    def forward(self, s: State) -> Tensor:
        """(B,) the losses."""
        # The power of a tiny probability by its logarithm, which keeps the gradient finite.
        power = torch.exp(self.q * of_given(s, s.logp)) if s.hard else of_given(s, s.p) ** self.q
        return (1 - power.clamp(min=self.k**self.q if self.k else 0.0)) / self.q

    def extra_repr(self) -> str:
        """The exponent."""
        return f"q={self.q:g}"


@final
class WeightNet(nn.Module):
    r"""A small network that turns a loss into a weight, :math:`w_i = V(l_i) \in (0, 1)`, learned by meta steps.

    Args:
        hidden: units of its one hidden layer.
    """

    inference, granularity, direction = "meta", "sample", "positive"

    def __init__(self, hidden: int = 100) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, 1), nn.Sigmoid())

    def forward(self, s: State) -> Tensor:
        """(B,) the weights; constants but in a meta step, so that the training step does not move the network."""
        first = next(self.layers.parameters())
        w: Tensor = self.layers(s.l.detach()[:, None].to(first.dtype))[:, 0].to(s.l.dtype)
        return w if s.meta else w.detach()


@final
class LearnedWeights(nn.Module):
    r"""Weights that one look ahead at clean data gives to the samples of the batch, used once.

    .. math:: w_i = B \frac{\max(0, -g_i)}{\sum_j \max(0, -g_j)}, \qquad
              g_i = \frac{\partial}{\partial \varepsilon_i} \sum_{\Omega} l(\Theta - \eta \nabla_\Theta
              \textstyle\sum_j \varepsilon_j l_j) \Big|_{\varepsilon = 0}

    where :math:`\Omega` is clean data. Where no sample of the batch helps, all weights are 0. Without a meta step on the
    batch, all are 1.

    Args:
        num_samples: the size of the training set.
    """

    inference, granularity, direction = "meta", "sample", "mixed"

    def __init__(self, num_samples: int) -> None:
        super().__init__()
        self.table = Sample(num_samples, update="meta", penalty=None)

    def forward(self, s: State) -> Tensor:
        """(B,) the weights."""
        rows = s.rows(self.table)
        if s.meta:
            return rows - rows.detach()
        keys = self.table.key(s)
        helps = torch.where(s.valid, rows.clamp(min=0), 0.0).to(s.l.dtype)
        weights = s.valid.sum() * helps / helps.sum().clamp(min=torch.finfo(helps.dtype).tiny)
        if s.learn:
            s.later(lambda: self.table.write(keys, torch.zeros_like(rows)))
        return torch.where((rows == 0).all(), torch.ones_like(weights), weights)
