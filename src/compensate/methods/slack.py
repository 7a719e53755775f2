"""Methods that compensate losses by a slack."""

from __future__ import annotations

import torch
from torch import Tensor

from compensate.equation import Compensated, Weights
from compensate.errors import InputError
from compensate.granularity import Sample
from compensate.inference.prior import Slack
from compensate.inference.regularized import L1, AtLeast
from compensate.methods.registry import method
from compensate.methods.search import Real, Space
from compensate.state import Value

__all__ = ["hinge", "meta_loss", "slack_hinge"]


def hinge(u: Tensor, target: Tensor) -> Tensor:
    r"""(B,) hinge losses: by how much a class fails to lead all others by one.

    .. math:: l_i = \max(0,\; 1 - (u_{i,y_i} - \max_{c \ne y_i} u_{i,c}))

    With two classes :math:`u_{i,1} - u_{i,0}` is the decision value of an SVM. For distributions (B, C) the losses of the classes
    are averaged.

    >>> hinge(torch.tensor([[2.0, 0.0, 0.5], [0.2, 0.0, 0.0]]), torch.tensor([0, 0]))
    tensor([0.0000, 0.8000])
    """
    if u.shape[-1] < 2:
        raise InputError(f"the logits have {u.shape[-1]} class; a class leads by a margin if there are two or more.")
    best = u.topk(2, dim=-1).values
    leads = u == best[:, :1]
    # The best rival of a class is the best of all, or, for the one that leads, the second.
    rival = torch.where(leads, best[:, 1:], best[:, :1])
    losses = (1 - u + rival).clamp(min=0)
    return losses.gather(1, target[:, None])[:, 0] if target.ndim == 1 else (target * losses).sum(-1)


@method(
    "loss", "positive", "regularized", "sample",
    equation="30, 31, 32",
    reference="Cortes and Vapnik, Support-Vector Networks, 1995; Yao and Wu, Compensation Learning, 2021",
    needs=["index"],
    limits="lambda >= 1 means no slack: the plain hinge loss. lambda = 0 lets slack take up every loss.",
    search=Space({"lam": Real(0.05, 1.0), "lr": Real(0.01, 1.0, log=True)}),
)  # fmt: skip
def slack_hinge(*, num_samples: int, lam: Value = 0.5, lr: float = 0.1, weight: Weights | None = None) -> Compensated:
    r"""The support vector machine as a deep loss: a hinge with a slack for each sample.

    .. math:: L = \frac1B \sum_i \max(0,\; l_i - \xi_i) + \lambda |\xi_i|, \qquad \xi_i \ge 0

    where :math:`l_i` is the hinge loss. For fixed logits and :math:`\lambda < 1` the best slack is :math:`\xi_i = l_i`, and what is left
    is :math:`\lambda l_i`; in general :math:`\min(\lambda, 1)\, l_i`, so that Eq. 32 is the SVM of Eq. 33 only for
    :math:`\lambda \le 1`. The margin term :math:`\tfrac12 \|w\|^2` is the weight decay of the user's optimizer.

    Args:
        num_samples: the size of the training set.
        lam: the price :math:`\lambda` of slack.
        lr: the step of a slack per sample and visit.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> criterion = slack_hinge(num_samples=10)
    >>> u, y, i = torch.tensor([[0.0, 2.0]]), torch.tensor([0]), torch.tensor([3])
    >>> [round(criterion(u, y, i).item(), 4) for _ in range(3)]      # each visit adds lr (1 - lambda) of slack
    [3.0, 2.975, 2.95]
    """
    slack = Sample(num_samples, penalty=L1(lam), bound=AtLeast(0.0), lr=lr)
    return Compensated(loss=Slack(slack), base=hinge, weight=weight)


@method(
    "loss", "positive", "meta", "sample",
    equation="12, 13, 14",
    reference="Yao and Wu, Compensation Learning, 2021, Sec. III-C(4)",
    needs=["index", "clean"],
    limits="Eq. 12 as written adds a constant and learns nothing; this is its nonlinear form. A rare sample's slack moves rarely.",
)  # fmt: skip
def meta_loss(
    *, num_samples: int, lr: float = 100.0, temperature: float = 0.5, start: float = 1.0, weight: Weights | None = None
) -> Compensated:
    r"""Loss compensation learned on clean data: each sample has a slack that takes part of its loss away.

    .. math:: l'_i = T \left[ \log(1 + e^{(l_i - \kappa_i)/T}) - \log(1 + e^{-\kappa_i/T}) \right], \qquad
              \kappa^* = \arg\min_{\kappa \ge 0} \sum_{j \in \Omega} l(S(f(x_j; \Theta^*(\kappa))), y_j)

    where :math:`\kappa_i` is the slack and :math:`T` a temperature. In the gradient of the model a sample counts
    :math:`\sigma((l_i - \kappa_i)/T)`: much if its loss exceeds its slack, little if not. Eqs. 12-14 of the paper add
    :math:`\kappa_i` to the loss; a constant has no gradient, so nothing could be learned from it.

    Args:
        num_samples: the size of the training set.
        lr: the step of a slack in :func:`compensate.meta_step`; large, for the outer gradient of one sample is small.
        temperature: :math:`T`, positive: at 0 the meta gradient vanishes almost everywhere.
        start: where all :math:`\kappa_i` start; far below the losses every sample counts fully and nothing can be told apart.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> print(meta_loss(num_samples=100).taxonomy)
    loss · positive · meta · sample
    """
    if temperature <= 0 or start < 0:
        raise InputError(
            f"temperature {temperature}, start {start}; expected a positive temperature, a start of at least 0."
        )
    slack = Sample(num_samples, update="meta", bound=AtLeast(0.0), lr=lr, init=start)
    return Compensated(loss=Slack(slack, temperature), weight=weight)
