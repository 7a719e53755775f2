"""The price of not deciding."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from compensate.errors import InputError
from compensate.inference.statistics import Statistic
from compensate.state import State

UNKNOWN = -1.0
"""No price is negative, so this one stands for none."""


def committed(s: State) -> tuple[Tensor, Tensor]:
    r"""(B,) twice: :math:`\log(1 - a_i)`, where :math:`a_i` is the probability of abstention, the last output, and the
    cross entropy :math:`h_i` over the other outputs alone.

    The former is a difference of two log-sum-exp: the probability itself rounds to 1, in half precision soon.
    """
    u = s.u.to(torch.promote_types(s.u.dtype, torch.float32))
    decided = (u[:, :-1].logsumexp(-1) - u.logsumexp(-1)).clamp(max=0)
    logp = u[:, :-1].log_softmax(-1)
    if s.hard:
        # A distribution times the logarithms would be 0 times infinity at a class that is taken out.
        h = -logp.gather(1, s.labels[:, None].clamp(max=logp.shape[-1] - 1))[:, 0] * s.valid
    else:
        h = -(s.y[:, :-1] * logp).sum(-1)
    return decided, h


@final
class AbstentionCost(Statistic):
    r"""The price :math:`\alpha` of abstention: nothing to speak of at first, then rising in a straight line.

    For `warmup` epochs nobody may abstain, and a running mean of :math:`(1 - a_i) h_i` with weight `mu` is kept. At the
    first step after them :math:`\alpha` starts at this mean divided by `divisor`, low enough for abstention to begin;
    from there it goes to `final` at the end of the training. The authors raise it once an epoch, here it rises with each
    step, to the same end.
    """

    observes = "logits"  # the price of the first step after the warm-up is that of its own batch

    def __init__(self, warmup: int, final: float, divisor: float, mu: float) -> None:
        super().__init__()
        self.warmup, self.final, self.divisor, self.mu = warmup, final, divisor, mu
        self.track("mean", torch.tensor(UNKNOWN), merge="mean")
        self.track("first", torch.tensor(UNKNOWN), merge="mean")
        self.track("begun", torch.tensor(0.0), merge="same")
        self.mean: Tensor
        self.first: Tensor
        self.begun: Tensor

    def forward(self, s: State) -> Tensor:
        """The price now, a scalar tensor; negative while nobody may abstain."""
        done = ((s.progress - self.begun) / (1 - self.begun).clamp(min=1e-12)).clamp(0, 1)
        return torch.where(self.first < 0, self.first, self.first + (self.final - self.first) * done)

    def observe(self, s: State) -> None:
        """Moves the running mean, and starts the rise after the warm-up."""
        decided, h = committed(s)
        weighed = (decided.exp() * h)[s.valid]
        if not len(weighed):
            return
        now = weighed.mean().to(self.mean.dtype)
        self.mean.copy_(torch.where(self.mean < 0, now, (1 - self.mu) * self.mean + self.mu * now))
        starts = (self.first < 0) & (s.epoch >= self.warmup)
        self.first.copy_(torch.where(starts, self.mean / self.divisor, self.first))
        self.begun.copy_(torch.where(starts, s.progress, self.begun))

    def extra_repr(self) -> str:
        """Schedule."""
        return f"to {self.final:g} after {self.warmup} epochs"


@final
class Abstain(nn.Module):
    r"""Lets the model abstain, at a price.

    .. math:: l'_i = (1 - a_i)\, h_i - \alpha \log(1 - a_i), \qquad \Delta l_i = l'_i - l_i

    where :math:`a_i` is the probability of the last of C + 1 outputs, :math:`h_i` the cross entropy over the other C
    alone, and :math:`\alpha` the price of abstention.

    Args:
        cost: the price, a callable of the state that returns a scalar tensor, negative while nobody may abstain.

    Reference: Thulasidasan et al., Combating Label Noise in Deep Learning Using Abstention, ICML 2019.
    """

    inference, granularity, direction = "tuning", "sample", "mixed"

    def __init__(self, cost: AbstentionCost) -> None:
        super().__init__()
        self.cost = cost

    def forward(self, s: State) -> Tensor:
        """(B,) the loss compensation."""
        alpha = self.cost(s).to(s.l.dtype)
        decided, h = committed(s)
        replaced = (decided.exp() * h - alpha * decided).to(s.l.dtype)
        return torch.where(s.valid & (alpha >= 0), s.weights.to(s.l.dtype) * replaced - s.l, 0.0)


def checked_abstention(warmup: int, final: float, divisor: float, mu: float) -> AbstentionCost:
    """The price, with its settings looked at."""
    if warmup < 0 or final < 0 or divisor <= 0 or not 0 < mu <= 1:
        raise InputError(
            f"warmup={warmup}, final={final}, divisor={divisor}, mu={mu}; expected warmup >= 0, final >= 0, divisor > 0 "
            "and mu in (0, 1]."
        )
    return AbstentionCost(warmup, final, divisor, mu)
