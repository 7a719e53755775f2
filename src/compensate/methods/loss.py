"""Methods that compensate losses."""

from __future__ import annotations

from functools import partial
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate.equation import Compensated, Weights
from compensate.errors import InputError
from compensate.forwards import full_precision
from compensate.fused import Fused, blocks, log_softmax
from compensate.inference.statistics import Evidence, Statistic
from compensate.methods.registry import method
from compensate.methods.search import Real, Space, each
from compensate.state import State, Value, at
from compensate.touched import put_rows

__all__ = ["dac", "elr"]


@final
class TemporalEnsemble(Statistic):
    r"""A running mean of the predictions of each sample, the present one included; as a value, (B, C).

    .. math:: t_i \leftarrow \beta\, t_i + (1 - \beta)\, \bar p_i

    where :math:`\bar p_i` is the prediction with its entries kept within `[floor, 1 - floor]` and divided by their sum,
    and :math:`t_i` starts at zero.

    Args:
        num_samples: the size of the training set.
        num_classes: the number of classes.
        beta: the momentum :math:`\beta`.
        floor: the smallest entry.
    """

    reader = "a running mean of predictions"

    def __init__(self, num_samples: int, num_classes: int, beta: float, floor: float = 1e-4) -> None:
        super().__init__()
        if not 0 <= beta < 1:
            raise InputError(f"beta is {beta}; a momentum lies in [0, 1).")
        self.num_samples, self.num_classes, self.beta, self.floor = num_samples, num_classes, beta, floor
        self.track("rows", torch.zeros(num_samples, num_classes), merge="rows")
        self.rows: Tensor

    def bounded(self, p: Tensor) -> Tensor:
        """Predictions kept away from 0 and 1."""
        return F.hardtanh(p, self.floor, 1 - self.floor)  # its derivative is one pass, that of clamp four

    def forward(self, s: State) -> Tensor:
        """(B, C) the running means."""
        return self.moved(s, self.bounded(s.p.detach()))

    def moved(self, s: State, p: Tensor) -> Tensor:
        """(B, C) the running means with these predictions in them, constants; they are written if the batch is accepted."""
        index = self.index(s)
        with torch.no_grad():
            rows = self.rows.index_select(0, index)
            if s.learn:
                self.move_(rows, p.detach().to(rows.dtype))
                self.later(s, rows)
            return rows.to(s.u.dtype)

    def move_(self, rows: Tensor, p: Tensor) -> Tensor:
        """Running means with these predictions in them, in place."""
        return rows.mul_(self.beta).addcdiv_(p, p.sum(-1, keepdim=True), value=1 - self.beta)

    def later(self, s: State, rows: Tensor) -> None:
        """Writes the running means of a batch if it is accepted."""
        s.later(partial(put_rows, self.rows, self.index(s), rows, None if s.complete else s.valid))

    def observe(self, s: State) -> None:
        """The term that reads the means has moved them."""

    def extra_repr(self) -> str:
        """Size and momentum."""
        return f"{self.num_samples} samples, beta={self.beta:g}"


def _disagreement(t: Tensor, p: Tensor) -> Tensor:
    r"""(B,) :math:`\log(1 - \langle t_i, p_i \rangle)`."""
    return torch.log1p(-(t * p).sum(-1))


@final
class EarlyLearning(nn.Module):
    r"""Holds predictions near what they were early on: :math:`\Delta l_i = \lambda \log(1 - \langle t_i, p_i \rangle)`.

    Args:
        ensemble: the running means :math:`t_i`.
        lam: :math:`\lambda`, a number or a callable of the state.
    """

    direction, adds = "positive", True

    def __init__(self, ensemble: TemporalEnsemble, lam: Value) -> None:
        super().__init__()
        self.ensemble, self.lam = ensemble, lam

    def forward(self, s: State) -> Tensor:
        """(B,) the loss compensation."""
        p = self.ensemble.bounded(s.p)
        delta = at(self.lam, s) * _disagreement(self.ensemble.moved(s, p), p)
        return delta if s.complete else torch.where(s.valid, delta, 0.0)

    @torch.no_grad()
    def fused(self, s: State) -> Fused | None:
        r"""The same, with the base losses and the slope of both.

        .. math:: \frac{\partial (l_i + \Delta l_i)}{\partial u_i} = p_i - y_i + \frac{\lambda}{1 - \langle t_i, p_i \rangle}
                  (\langle t_i, p_i \rangle - t_i)\, p_i

        where classes whose probability is out of bounds have no part in the second summand.
        """
        ensemble, u, given = self.ensemble, s.u.detach(), s.labels[:, None]
        if callable(self.lam) or ensemble.rows.dtype != u.dtype:
            return None
        index, low, high = ensemble.index(s), ensemble.floor, 1 - ensemble.floor
        means, slope, losses, delta = torch.empty_like(u), torch.empty_like(u), u.new_empty(len(u)), u.new_empty(len(u))
        held = torch.empty_like(u[blocks(u)[0]])
        for part in blocks(u):
            logp = log_softmax(u[part], out=slope[part])
            losses[part] = -logp.gather(1, given[part])[:, 0]
            p = torch.exp(logp, out=slope[part])
            bounded = torch.clamp(p, low, high, out=held[: len(p)])
            t = ensemble.move_(torch.index_select(ensemble.rows, 0, index[part], out=means[part]), bounded)
            pull = bounded.mul_(t)
            left = 1 - pull.sum(-1, keepdim=True)
            delta[part] = left[:, 0]
            weight = self.lam / left
            torch.ops.aten.hardtanh_backward.grad_input(pull, p, low, high, grad_input=pull)
            along = 1 + weight * pull.sum(-1, keepdim=True)
            torch.addcmul(pull.mul_(-weight), p, along, out=p)
        ensemble.later(s, means)
        definition = partial(self._losses, means, s.labels)
        slope.scatter_(1, given, -1.0, reduce="add")
        return Fused(delta.log_().mul_(self.lam), losses, losses, slope, definition)

    def _losses(self, t: Tensor, labels: Tensor, u: Tensor) -> Tensor:
        """(B,) losses with compensation by running means that are known."""
        delta = self.lam * _disagreement(t, self.ensemble.bounded(u.softmax(-1)))
        return F.cross_entropy(u, labels, reduction="none") + delta

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
    r"""Early-learning regularization: predictions that agree with their own past are rewarded.

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


UNKNOWN = -1.0
"""No price is negative, so this one stands for none."""


def committed(s: State) -> tuple[Tensor, Tensor]:
    r"""(B,) twice: :math:`\log(1 - a_i)`, where :math:`a_i` is the probability of abstention, the last output, and the
    cross entropy :math:`h_i` over the other outputs alone.

    The former is a difference of two log-sum-exp: the probability itself rounds to 1, in half precision soon.
    """
    u = full_precision(s.u)
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
        counted = s.valid.sum()
        now = torch.where(s.valid, decided.exp() * h, 0.0).sum() / counted.clamp(min=1)
        now = torch.where(self.mean < 0, now.to(self.mean.dtype), (1 - self.mu) * self.mean + self.mu * now)
        self.mean.copy_(torch.where(counted > 0, now, self.mean))
        starts = (self.first < 0) & (s.epoch >= self.warmup) & (counted > 0)
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
        return torch.where(s.valid & (alpha >= 0), replaced - s.l, 0.0)


def checked_abstention(warmup: int, final: float, divisor: float, mu: float) -> AbstentionCost:
    """The price, with its settings looked at."""
    if warmup < 0 or final < 0 or divisor <= 0 or not 0 < mu <= 1:
        raise InputError(
            f"warmup={warmup}, final={final}, divisor={divisor}, mu={mu}; expected warmup >= 0, final >= 0, divisor > 0 "
            "and mu in (0, 1]."
        )
    return AbstentionCost(warmup, final, divisor, mu)


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
    :math:`\alpha` rises from a small start; see :class:`~compensate.methods.loss.AbstentionCost`.

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
