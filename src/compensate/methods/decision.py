"""Predictions that are pulled to their own decision."""

from __future__ import annotations

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate.equation import Compensated, Weights
from compensate.errors import InputError
from compensate.forwards import full_precision
from compensate.inference.statistics import recorded
from compensate.methods.registry import method
from compensate.methods.search import Real, Space, each
from compensate.methods.weighting import of_given
from compensate.state import State

__all__ = ["epsilon_softmax"]


@final
class TowardDecision(nn.Module):
    r"""Adds to the likeliest class, :math:`\Delta p_i = m\, e_{\arg\max p_i}`, before the sum is divided by its total.

    Entries that would end below `floor` are lifted to it and have no gradient, as in the authors' code.

    Args:
        m: :math:`m`.
        floor: the smallest entry after the division.
    """

    def __init__(self, m: float, floor: float) -> None:
        super().__init__()
        if m < 0:
            raise InputError(f"m is {m}; expected at least 0 (0 is the plain softmax).")
        if not 0 <= floor < 1:
            raise InputError(f"floor is {floor}; expected a small probability, such as 1e-8.")
        self.m, self.floor = m, floor

    def forward(self, s: State) -> Tensor:
        """(B, C) the prediction compensation."""
        p = full_precision(s.u).softmax(-1)
        lifted = p.clamp(min=self.floor * (1 + self.m)) - p
        return lifted + self.m * F.one_hot(p.argmax(-1), p.shape[-1]).to(p.dtype)

    def extra_repr(self) -> str:
        """The weight of the decision."""
        return f"m={self.m:g}"


@final
class WithAbsoluteError(nn.Module):
    r"""The loss and the mean absolute error of the plain prediction in given shares.

    .. math:: \Delta l_i = (\alpha - 1)\, l_i + \beta\, (2 - 2 p_{i,y_i})
    """

    def __init__(self, alpha: float, beta: float) -> None:
        super().__init__()
        if alpha < 0 or beta < 0:
            raise InputError(f"alpha={alpha}, beta={beta}; the weight of a loss is at least 0.")
        self.alpha, self.beta = alpha, beta

    def forward(self, s: State) -> Tensor:
        """(B,) the loss compensation."""
        error = 2 - 2 * of_given(s, s.p)
        return torch.where(s.valid, (self.alpha - 1) * s.l + self.beta * error, 0.0)

    def extra_repr(self) -> str:
        """The weights."""
        return f"alpha={self.alpha:g}, beta={self.beta:g}"


@method(
    "prediction+loss", "mixed", "prior", "sample",
    equation="5-ii",
    reference="Wang et al., epsilon-Softmax: Approximating One-Hot Vectors for Mitigating Label Noise, NeurIPS 2024",
    limits="m = 0, alpha = 1, beta = 0 is cross entropy. With a large m the mean absolute error must do the learning: keep beta > 0.",
    search=Space({"m": Real(1.0, 1e6, log=True), "alpha": Real(0.01, 1.0, log=True), "beta": Real(0.5, 10.0, log=True)}),
    candidates=each(
        m=(1e5, 1e4, 1e5, 10.0, 1e5), alpha=(0.01, 0.05, 0.1, 0.5, 1.0), beta=(5.0, 5.0, 5.0, 1.0, 1.0)
    ),
)  # fmt: skip
def epsilon_softmax(
    *,
    num_samples: int | None = None,
    m: float = 1e5,
    alpha: float = 0.01,
    beta: float = 5.0,
    floor: float = 1e-8,
    weight: Weights | None = None,
) -> Compensated:
    r"""Epsilon-softmax: predictions are pulled to the class that they hold likeliest, whatever the label says.

    .. math:: l'_i = -\alpha \log \tilde p_{i,y_i} + \beta\, (2 - 2 p_{i,y_i}), \qquad
              \tilde p_i = \frac{p_i + m\, e_{\arg\max p_i}}{1 + m}

    The distance of :math:`\tilde p_i` to a corner of the simplex is at most :math:`\epsilon = 2 (1 - 1/C) / (1 + m)`, hence the name.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        m: the weight of the decision; the authors use 1e5 on CIFAR-10 and 1e4 on CIFAR-100.
        alpha, beta: the weights of the two losses; the authors use 0.01 and 5 on CIFAR-10.
        floor: the smallest entry of :math:`\tilde p_i`, as in the authors' code.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> epsilon_softmax()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(9.1930)
    """
    return Compensated(
        prediction=TowardDecision(m, floor), loss=WithAbsoluteError(alpha, beta), onto="normalize",
        record=recorded(num_samples), weight=weight,
    )  # fmt: skip
