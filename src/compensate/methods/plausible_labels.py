"""Labels that become sets: classes that the model holds plausible join the given one."""

from __future__ import annotations

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate.equation import Compensated, Weights
from compensate.errors import InputError
from compensate.forwards import full_precision
from compensate.inference.statistics import recorded
from compensate.inference.tuning import Ramp
from compensate.methods.registry import method
from compensate.methods.search import Real, Space, each
from compensate.places import rowwise
from compensate.state import State, Value, at

__all__ = ["data_ambiguation"]


def divergence(u: Tensor, y: Tensor) -> Tensor:
    """(B,) the Kullback-Leibler divergence of the predictions from labels; of class numbers it is cross entropy.

    >>> divergence(torch.zeros(1, 2), torch.tensor([[0.5, 0.5]]))
    tensor([0.])
    """
    losses = F.cross_entropy(u, y, reduction="none")
    return losses if y.ndim == 1 else losses - torch.special.entr(y).sum(-1)


@final
class Ambiguate(nn.Module):
    r"""The label that is nearest to the prediction among those that a set of plausible classes allows.

    .. math:: \Delta y_i = q_i - y_i, \qquad q_{i,c} = (1 - \alpha) \frac{p_{i,c}}{\sum_{k \in Y_i} p_{i,k}} \;(c \in Y_i), \quad
              \alpha \frac{p_{i,c}}{\sum_{k \notin Y_i} p_{i,k}} \;(c \notin Y_i), \qquad
              Y_i = \{y_i\} \cup \{c : p_{i,c} \ge \beta\}

    and :math:`q_i = p_i` where the plausible classes already have :math:`1 - \alpha` of the probability. It is a constant.

    Args:
        alpha: what other classes may have, in [0, 1).
        beta: the probability from which on a class is plausible, a number or a callable of the state.
    """

    direction, on_simplex = "positive", True
    inference, granularity = "prior", "sample"

    def __init__(self, alpha: float, beta: Value) -> None:
        super().__init__()
        if not 0 <= alpha < 1:
            raise InputError(f"alpha is {alpha}; expected a share of the probability, in [0, 1).")
        if not callable(beta) and not 0 <= beta <= 1:
            raise InputError(f"beta is {beta}; expected a probability.")
        self.alpha, self.beta = alpha, beta

    @torch.no_grad()
    def forward(self, s: State) -> Tensor:
        """(B, C) the label compensation."""
        p = full_precision(s.u.detach()).softmax(-1)
        y = s.y.to(p.dtype)
        plausible = (p >= rowwise(at(self.beta, s), p)) | (y > 0)
        held = (p * plausible).sum(-1, keepdim=True)
        rest = (p * ~plausible).sum(-1, keepdim=True)
        tiny = torch.finfo(p.dtype).tiny
        inside = torch.where(held > tiny, p / held.clamp(min=tiny), y)
        q = torch.where(plausible, (1 - self.alpha) * inside, self.alpha * p / rest.clamp(min=tiny))
        q = torch.where(held >= 1 - self.alpha, p, q)
        return (q - y).to(s.y.dtype)

    def extra_repr(self) -> str:
        """The share of other classes."""
        return f"alpha={self.alpha:g}"


@method(
    "label", "positive", "prior", "sample",
    equation="9 with a guess from plausible classes",
    reference="Lienen and Huellermeier, Mitigating Label Noise through Data Ambiguation, AAAI 2024",
    needs=["steps"],
    limits="beta = 1 and alpha = 0 is cross entropy. A low beta trusts decisions early, and those confirm themselves.",
    search=Space({"alpha": Real(0.0, 0.3), "beta": Real(0.5, 0.95)}),
    candidates=each(alpha=(0.05, 0.05, 0.1, 0.2, 0.0), beta=(0.75, 0.6, 0.75, 0.6, 0.75)),
)  # fmt: skip
def data_ambiguation(
    *,
    num_samples: int | None = None,
    alpha: float = 0.05,
    beta: float = 0.75,
    beta_end: float | None = 0.6,
    weight: Weights | None = None,
) -> Compensated:
    r"""Robust data ambiguation: where the model is sure of another class, the label becomes both, and the model may choose.

    .. math:: l'_i = \min_{q \in Q_i} \mathrm{KL}(q \,\|\, p_i), \qquad
              Q_i = \Bigl\{ q : \textstyle\sum_{c \notin Y_i} q_c \le \alpha \Bigr\}, \quad
              Y_i = \{y_i\} \cup \{c : p_{i,c} \ge \beta\}

    As compensation: :math:`\Delta y_i = q_i - y_i` with the minimizer :math:`q_i`, a constant, and the divergence as base loss (it is cross
    entropy for class numbers). The label is never compensated upward: :math:`y_i` itself is in the set.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        alpha: the probability that other classes may have; the authors use 0.05.
        beta: the probability from which on a class is plausible, at the start.
        beta_end: the same at the end of the training; a cosine leads there, as in the authors' code. None for a constant.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> criterion = data_ambiguation(beta_end=None)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))         # 2.3584 without: the first class is plausible, too
    tensor(3.7253e-05)
    """
    if beta_end is not None and beta_end != beta:
        moving: Value = Ramp(beta, beta_end, shape="cosine")
    else:
        moving = beta
    return Compensated(
        label=Ambiguate(alpha, moving), base=divergence, record=recorded(num_samples), weight=weight
    )  # fmt: skip
