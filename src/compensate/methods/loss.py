"""Methods that compensate losses."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from compensate.equation import Compensated, Weights
from compensate.inference.abstention import Abstain, checked_abstention
from compensate.inference.memory import TemporalEnsemble
from compensate.inference.statistics import Evidence
from compensate.methods.registry import method
from compensate.methods.search import Real, Space, each
from compensate.state import State, Value, at

__all__ = ["dac", "elr"]


@final
class EarlyLearning(nn.Module):
    r"""Holds predictions near what they were early on: :math:`\Delta l_i = \lambda \log(1 - \langle t_i, p_i \rangle)`.

    Args:
        ensemble: the running means :math:`t_i`.
        lam: :math:`\lambda`, a number or a callable of the state.
    """

    direction = "positive"

    def __init__(self, ensemble: TemporalEnsemble, lam: Value) -> None:
        super().__init__()
        self.ensemble, self.lam = ensemble, lam

    def forward(self, s: State) -> Tensor:
        """(B,) the loss compensation."""
        agreement = (self.ensemble(s) * self.ensemble.bounded(s.p)).sum(-1)
        return torch.where(s.valid, at(self.lam, s) * torch.log1p(-agreement), 0.0)

    def extra_repr(self) -> str:
        """The weight."""
        return "" if isinstance(self.lam, nn.Module) else f"lam={self.lam}"


@method(
    "loss", "positive", "prior", "sample",
    equation="7, in a nonlinear form",
    reference="Liu et al., Early-Learning Regularization Prevents Memorization of Noisy Labels, NeurIPS 2020",
    needs=["index"],
    limits="lam = 0 is cross entropy. The loss has no lower bound near 0 and may be negative.",
    search=Space({"lam": Real(0.5, 10.0, log=True), "beta": Real(0.3, 0.99)}),
    candidates=each(lam=(3.0, 1.0, 7.0, 3.0, 3.0), beta=(0.7, 0.7, 0.7, 0.5, 0.9)),
)  # fmt: skip
def elr(
    *, num_samples: int, num_classes: int, lam: Value = 3.0, beta: float = 0.7, weight: Weights | None = None
) -> Compensated:
    r"""Early-learning regularisation: predictions that agree with their own past are rewarded.

    .. math:: \Delta l_i = \lambda \log(1 - \langle t_i, p_i \rangle), \qquad
              t_i \leftarrow \beta\, t_i + (1 - \beta)\, p_i

    where :math:`t_i`, a constant in the gradient, is moved before it is used. Its gradient cancels that of a wrong label
    once the model has learned the right one from others.

    Args:
        num_samples: the size of the training set.
        num_classes: the number of classes.
        lam: :math:`\lambda`; the authors use 3 on CIFAR-10 and 7 on CIFAR-100.
        beta: :math:`\beta`; the authors use 0.7 and 0.9.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> criterion = elr(num_samples=1000, num_classes=3)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]), torch.tensor([7]))
    tensor(1.6051)
    """
    term = EarlyLearning(TemporalEnsemble(num_samples, num_classes, beta), lam)
    return Compensated(loss=term, record=Evidence(num_samples), weight=weight)


@method(
    "loss", "mixed", "tuning", "sample",
    equation="7, in a nonlinear form",
    reference="Thulasidasan et al., Combating Label Noise in Deep Learning Using Abstention, ICML 2019",
    needs=["epochs", "steps"],
    extra_outputs=1,
    limits="The model has one output more than there are classes; leave it out when predicting. Cross entropy in the warm-up.",
)  # fmt: skip
def dac(
    *, warmup: int = 20, final: float = 1.0, divisor: float = 64.0, mu: float = 0.05, weight: Weights | None = None
) -> Compensated:
    r"""Deep abstaining classifier: an extra output takes the samples that the others cannot explain, at a price.

    .. math:: \Delta l_i = (1 - a_i)\, h_i - \alpha \log(1 - a_i) - l_i

    where :math:`a_i` is the probability of the last output, :math:`h_i` the cross entropy over the others alone, and
    :math:`\alpha` rises from a small start; see :class:`~compensate.inference.abstention.AbstentionCost`.

    Args:
        warmup: epochs of cross entropy over all C + 1 outputs.
        final: the price :math:`\alpha` at the end of the training.
        divisor: by how much the price starts below the mean loss.
        mu: the weight of a new batch in that mean.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> criterion = dac(warmup=0).start(total_steps=100)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2, 0.0]]), torch.tensor([1]))   # three classes and abstention
    tensor(2.2637)
    """
    # No record of samples: it would suggest the output for abstention as a class. Nor has that output a weight.
    weights = None if weight is None else [*weight, 1.0]
    return Compensated(loss=Abstain(checked_abstention(warmup, final, divisor, mu)), weight=weights)
