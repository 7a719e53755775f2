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


def largest_scale(p: Tensor, y: Tensor, excess: float) -> Tensor:
    r"""(B, 1) the scale :math:`k` at which :math:`k p` exceeds :math:`y` by a given mass, :math:`\sum_c (k p_c - y_c)_+`.

    The mass is the largest of the sums :math:`k p_S - y_S` over sets of classes, so that :math:`k` is the smallest of the
    quotients (excess + :math:`y_S`) / :math:`p_S`; the sets that matter hold the classes of least :math:`y_c / p_c`.

    >>> largest_scale(torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[1.0, 0.0, 0.0]]), 0.1)
    tensor([[0.2000]])
    """
    tiny = torch.finfo(p.dtype).tiny
    order = (y / p.clamp(min=tiny)).argsort(-1)
    p, y = (values.gather(-1, order).cumsum(-1) for values in (p, y))
    return ((excess + y) / p.clamp(min=tiny)).amin(-1, keepdim=True)


def capped_scale(p: Tensor, cap: Tensor) -> Tensor:
    r"""(B, 1) the scale :math:`k` at which :math:`\min(k p_c, \mathrm{cap}_c)` sums to 1, if the caps sum to at least 1.

    >>> capped_scale(torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[1.0, 0.06, 0.04]]))
    tensor([[1.8000]])
    """
    tiny = torch.finfo(p.dtype).tiny
    order = (cap / p.clamp(min=tiny)).argsort(-1)
    p, cap = p.gather(-1, order), cap.gather(-1, order)
    capped = F.pad(cap[:, :-1].cumsum(-1), (1, 0))
    free = p.flip(-1).cumsum(-1).flip(-1)
    return ((1 - capped) / free.clamp(min=tiny)).amax(-1, keepdim=True)


@final
class Ambiguate(nn.Module):
    r"""The label that is nearest to the prediction among those that a set of plausible classes allows.

    .. math:: \Delta y_i = q_i - y_i, \qquad q_i = \arg\min_q \mathrm{KL}(q \,\|\, p_i) \quad\text{with}\quad
              \sum_{c : p_{i,c} < \beta} (q_c - y_{i,c})_+ \le \alpha

    Classes that are not plausible may exceed their share of the label by :math:`\alpha` in all. If the prediction does so, it is
    the minimizer; else each class has a multiple of its probability, or its share of the label:

    .. math:: q_{i,c} = \min(k\, p_{i,c}, \max(y_{i,c}, k'\, p_{i,c})) \;(p_{i,c} < \beta), \quad k\, p_{i,c} \;(p_{i,c} \ge \beta)

    For class numbers :math:`k = (1 - \alpha) / \sum_{c \in Y_i} p_{i,c}` and :math:`k' = \alpha / \sum_{c \notin Y_i} p_{i,c}`
    with :math:`Y_i = \{y_i\} \cup \{c : p_{i,c} \ge \beta\}`. It is a constant.

    Args:
        alpha: the probability that implausible classes may have beyond the label, in [0, 1).
        beta: the least probability of a plausible class, a number or a callable of the state.
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
        plausible = p >= rowwise(at(self.beta, s), p)
        excess = ((p - y).clamp(min=0) * ~plausible).sum(-1, keepdim=True)
        scaled = torch.where(
            y > 0, p.clamp(min=torch.finfo(p.dtype).tiny), p
        )  # a given class of probability 0 keeps its share
        cap = torch.maximum(y, largest_scale(scaled * ~plausible, y * ~plausible, self.alpha) * scaled)
        cap = torch.where(plausible, torch.inf, cap)
        q = torch.minimum(capped_scale(scaled, cap) * scaled, cap)
        q = torch.where(excess <= self.alpha, p, q)
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
    entropy for class numbers). No loss is raised, because :math:`y_i` itself is in the set. The authors define the set for class numbers;
    for a soft label :math:`Q_i = \{ q : \sum_{c : p_{i,c} < \beta} (q_c - y_{i,c})_+ \le \alpha \}`, which is the same set if the label is a
    class number: see :class:`~compensate.methods.plausible_labels.Ambiguate`.

    The threshold :math:`\beta` falls with each training step; in the authors' code it falls once an epoch.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        alpha: the probability :math:`\alpha` that implausible classes may have; the authors use 0.05.
        beta: the least probability :math:`\beta` of a plausible class, at the start.
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
