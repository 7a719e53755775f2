"""A floor under the training loss: wrong labels cannot be fitted below what they are worth."""

from __future__ import annotations

import math
from typing import Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate.equation import Compensated, Weights
from compensate.errors import InputError
from compensate.inference.statistics import recorded
from compensate.methods.registry import method
from compensate.methods.search import Real, Space, each
from compensate.state import State
from compensate.weighing import total_weight, weighed

__all__ = ["loss_bound"]


def noise_entropy(noise_rate: float, num_classes: int, noise: Literal["symmetric", "pair"] = "symmetric") -> float:
    r"""The cross entropy of the best model under label noise, where classes do not overlap.

    .. math:: B = -(1 - \eta) \log(1 - \eta) - \eta \log \frac{\eta}{C - 1}

    for errors that go to all other classes alike; without :math:`C - 1` if they go to one of them.

    Args:
        noise_rate: the share :math:`\eta` of wrong labels.
        num_classes: :math:`C`.
        noise: "symmetric" or "pair".

    >>> round(noise_entropy(0.4, 10), 3), round(noise_entropy(0.4, 10, "pair"), 3), noise_entropy(0.0, 10)
    (1.552, 0.673, 0.0)
    """
    if noise not in ("symmetric", "pair"):
        raise InputError(f'noise is "{noise}"; expected "symmetric" or "pair".')
    if not 0 <= noise_rate < 1:
        raise InputError(f"noise_rate is {noise_rate}; expected the share of wrong labels, in [0, 1).")
    if noise_rate == 0 or num_classes < 2:
        return 0.0
    others = num_classes - 1 if noise == "symmetric" else 1
    return -(1 - noise_rate) * math.log(1 - noise_rate) - noise_rate * math.log(noise_rate / others)


@final
class Floor(nn.Module):
    r"""Lifts the mean loss of the batch to a floor, :math:`\Delta l_i = \max(0, B - \bar l)`; below it the gradient is zero.

    Args:
        bound: :math:`B`.
        below: "stop", as above; or "ascend", twice as much, so that below the floor the model goes up its loss (flooding).
    """

    inference, granularity, direction, adds = "prior", "corpus", "negative", True

    def __init__(self, bound: float, below: Literal["stop", "ascend"] = "stop") -> None:
        super().__init__()
        if bound < 0:
            raise InputError(f"bound is {bound}; expected a loss, at least 0.")
        if below not in ("stop", "ascend"):
            raise InputError(f'below is "{below}"; expected "stop" or "ascend".')
        self.bound, self.below = bound, below

    def forward(self, s: State) -> Tensor:
        """(B,) the loss compensation, the same for all samples."""
        divisor = s.criterion.divisor(s)
        gap = F.relu(self.bound - weighed(s, s.l).sum() / divisor) * (1 if self.below == "stop" else 2)
        # Where a mean does not divide by the weights, neither does what is added to it.
        return torch.where(s.valid, gap * (divisor / total_weight(s)).to(s.l.dtype), 0.0)

    def extra_repr(self) -> str:
        """The floor."""
        return f"bound={self.bound:.4g}, {self.below}"


@method(
    "loss", "negative", "prior", "corpus",
    equation="7, in a nonlinear form",
    reference="Toner and Storkey, Label Noise: Correcting the Forward-Correction, 2023 (arXiv 2307.13100)",
    limits="noise_rate = 0 is cross entropy. Too high a rate stops the training early; a batch is bounded as a whole, not its samples.",
    search=Space({"noise_rate": Real(0.02, 0.6)}),
    candidates=each(noise_rate=(0.2, 0.1, 0.3, 0.4, 0.05)),
)  # fmt: skip
def loss_bound(
    *,
    num_classes: int,
    num_samples: int | None = None,
    noise_rate: float = 0.2,
    noise: Literal["symmetric", "pair"] = "symmetric",
    bound: float | None = None,
    below: Literal["stop", "ascend"] = "stop",
    weight: Weights | None = None,
) -> Compensated:
    r"""A lower bound on the training loss: a model that fits wrong labels has a smaller loss than the right one, and is stopped.

    .. math:: \frac1B \sum_i l'_i = \max\Bigl( \frac1B \sum_i l_i,\; B(\eta) \Bigr), \qquad
              B(\eta) = -(1 - \eta) \log(1 - \eta) - \eta \log \frac{\eta}{C - 1}

    The bound is the cross entropy of the best model if classes do not overlap and a share :math:`\eta` of the labels is wrong. An audit
    estimates that share: `loss_bound(noise_rate=audit.noise_rate.value, num_classes=10)`. Losses are raised, never lowered:
    in the words of the taxonomy this is negative compensation, though it makes a model learn less.

    Args:
        num_classes: the number of classes.
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        noise_rate: the share :math:`\eta` of wrong labels.
        noise: "symmetric", errors go to all other classes alike, or "pair", to one of them, which makes a lower bound.
        bound: the bound itself, in place of what follows from the share.
        below: "stop", no gradient below the bound, or "ascend", :math:`|\bar l - B| + B`, which is flooding (Ishida et al., Do We
            Need Zero Training Loss After Achieving Zero Training Error?, ICML 2020).
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> loss_bound(num_classes=3, noise_rate=0.4)(torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([0]))
    tensor(0.9503)
    """
    floor = Floor(noise_entropy(noise_rate, num_classes, noise) if bound is None else bound, below)
    return Compensated(loss=floor, record=recorded(num_samples), weight=weight)
