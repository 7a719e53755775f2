"""Self-paced learning: easy samples first, by compensation, and the weights it is usually done with."""

from __future__ import annotations

import math
from typing import Literal, final

import torch
from torch import Tensor, nn

from compensate.equation import Compensated, Weights
from compensate.errors import InputError
from compensate.gates import Where, above
from compensate.inference.adversarial import Pull
from compensate.methods.registry import method
from compensate.state import State, Value

__all__ = ["self_paced_logit", "self_paced_weights"]


@final
class Growing(nn.Module):
    r"""A number that grows by a factor each epoch: :math:`\tau^t = \tau^0 \rho^t`."""

    def __init__(self, start: float, growth: float) -> None:
        super().__init__()
        if start <= 0 or growth <= 1:
            raise InputError(
                f"tau starts at {start} and grows by {growth}; expected a positive start, a growth above 1."
            )
        self.start, self.growth = start, growth

    def forward(self, s: State) -> Tensor:
        """The value now, a scalar tensor."""
        return self.start * self.growth ** s.epoch.to(s.target.device)

    def extra_repr(self) -> str:
        """Start and growth."""
        return f"{self.start:.3g} x {self.growth:g}^epoch"


@final
class BeyondLogits(nn.Module):
    r"""A step beyond all logits of the batch: :math:`\max(\epsilon_0, 2 \max_i \|u_i\|)`."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.least = least

    def forward(self, s: State) -> Tensor:
        """The step now, a scalar tensor."""
        u = s.u.detach()
        if not len(u):
            return u.new_tensor(self.least)
        # Squares of large logits leave the range of their type; those of logits up to 1 do not.
        largest = u.abs().amax().clamp(min=1.0)
        beyond = 2 * largest * (u / largest).norm(dim=-1).max()
        return beyond.clamp(min=self.least, max=torch.finfo(u.dtype).max / 4)


@method(
    "logit", "positive", "adversarial", "sample",
    equation="44, 52",
    reference="Yao and Wu, Compensation Learning, 2021, discussion of Eq. (52)",
    needs=["epochs"],
    limits="A tau below every loss compensates all samples, and nothing is learned; one above every loss leaves cross entropy.",
)  # fmt: skip
def self_paced_logit(
    *,
    num_classes: int,
    tau: Value | None = None,
    growth: float = 1.1,
    eta: Value | None = None,
    least: float = 20.0,
    weight: Weights | None = None,
) -> Compensated:
    r"""Self-paced logit compensation: samples harder than a growing threshold are explained away.

    .. math:: L = \sum_{i: l_i \ge \tau^t} l(S(u_i + v_i), y_i) + \sum_{i: l_i < \tau^t} l_i, \qquad
              v_i = \eta (y_i - S(u_i)), \quad \tau^{t+1} > \tau^t, \quad \eta > 2 \max_i \|u_i\|

    where :math:`l_i` is the plain loss and :math:`t` counts epochs. A compensated loss near 0 has no gradient: the sample is left out,
    as by a weight of 0. The paper's condition on :math:`\eta` does not ensure that when logits are small, so `least` holds it up.

    Args:
        num_classes: the number of classes, for the start of the threshold.
        tau: the threshold; by default :math:`\log C`, the loss of a guess, times `growth` to the power of the epoch.
        growth: the factor per epoch.
        eta: the step :math:`\eta`; by default twice the largest norm of the batch's logits, and no less than `least`.
        least: see there.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> criterion = self_paced_logit(num_classes=3)
    >>> s = criterion.evaluate(torch.nn.Identity(), torch.tensor([[3.0, 0.8, 0.2], [2.0, 0.0, 0.0]]), torch.tensor([1, 0]))
    >>> s.l.abs()
    tensor([0.0000, 0.2395])
    """
    threshold = Growing(math.log(num_classes), growth) if tau is None else tau
    return Compensated(logit=Where(above(threshold), Pull(BeyondLogits(least) if eta is None else eta)), weight=weight)


def self_paced_weights(
    losses: Tensor,
    lam: float,
    kind: Literal["hard", "linear", "logarithmic", "mixture"] = "hard",
    *,
    easy: float | None = None,
) -> Tensor:
    r"""The weights of self-paced learning, for contrast with :func:`self_paced_logit`: they multiply losses.

    .. math:: \text{hard}\; [l \le \lambda], \quad
              \text{linear}\; \max(0, 1 - l/\lambda), \quad
              \text{logarithmic}\; \frac{\log(l + \zeta)}{\log \zeta}\,[l < \lambda],\; \zeta = 1 - \lambda, \quad
              \text{mixture}\; \min(1, \max(0, \zeta/l - \zeta/\lambda)),\; \zeta = \frac{\lambda \lambda'}{\lambda - \lambda'}

    where :math:`\lambda` is the age of the learner: the more it has grown, the harder the samples it takes in.

    Args:
        losses: any shape.
        lam: :math:`\lambda`, positive; below 1 for "logarithmic".
        kind: as above.
        easy: :math:`\lambda' < \lambda`, for "mixture": losses up to it count fully; half of `lam` if not given.

    >>> losses = torch.tensor([0.1, 0.4, 0.8])
    >>> self_paced_weights(losses, 0.5), self_paced_weights(losses, 0.5, "linear")
    (tensor([1., 1., 0.]), tensor([0.8000, 0.2000, 0.0000]))

    References: Yao and Wu, Compensation Learning, 2021, Eq. (51); Jiang et al., Easy Samples First, ACM MM 2014.
    """
    if lam <= 0:
        raise InputError(f"lambda is {lam}; expected a positive threshold.")
    if kind == "hard":
        return (losses <= lam).to(losses.dtype)
    if kind == "linear":
        return (1 - losses / lam).clamp(min=0)
    if kind == "logarithmic":
        if lam >= 1:
            raise InputError(
                f"lambda is {lam}; the logarithmic kind is defined for 0 < lambda < 1. Scale the losses down."
            )
        zeta = 1 - lam
        return torch.where(losses < lam, torch.log(losses + zeta) / math.log(zeta), 0.0)
    if kind == "mixture":
        easy = lam / 2 if easy is None else easy
        if not 0 < easy < lam:
            raise InputError(f"easy is {easy}; expected a threshold between 0 and lambda = {lam}.")
        zeta = lam * easy / (lam - easy)
        return (zeta / losses - zeta / lam).clamp(0, 1)
    raise InputError(f'kind is "{kind}"; expected "hard", "linear", "logarithmic" or "mixture".')
