"""Methods that compensate losses, and plain cross entropy."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor

from compensate.core.batch import Batch, Value
from compensate.core.criterion import BinaryBase, Compensated
from compensate.core.layout import chunks, put_rows
from compensate.core.proximal import L1, AtLeast
from compensate.core.stages import full_precision
from compensate.core.statistics import Statistic
from compensate.core.tables import Sample
from compensate.errors import InputError, check, one_of
from compensate.methods.registry import Formula, Real, Space, each, method
from compensate.terms.prior import Slack

__all__ = ["base", "dac", "elr", "hinge", "loss_bound", "meta_loss", "slack_hinge"]


@method(
    "none", "none", "none", "none", equation="1", record="loss", kind="baseline",
    reference="plain training",
    limits="Fits wrong labels as well as right ones in a long training.",
)  # fmt: skip
def base(*, num_classes: int | None = None, base: BinaryBase = None) -> Compensated:
    r"""Cross entropy without compensation.

    .. math:: L = \frac1B \sum_i l(S(u_i), y_i)

    For several labels per sample it is binary cross entropy, the mean over samples and labels.

    >>> base()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.3584)
    """
    return Compensated(base=base)


FLOOR = 1e-4
"""Predictions are kept this far from 0 and 1."""


@final
class TemporalEnsemble(Statistic):
    """The running means of :func:`elr`, from zero, including the current predictions, bounded and divided by their sums."""

    reader = "a running mean of predictions"

    def __init__(self, num_samples: int, num_classes: int, beta: float) -> None:
        super().__init__()
        check(0 <= beta < 1, "a momentum in [0, 1)", beta=beta)
        self.num_samples, self.num_classes, self.beta = num_samples, num_classes, beta
        self.rows = self.track("rows", torch.zeros(num_samples, num_classes), merge="rows")

    def forward(self, s: Batch) -> tuple[Tensor, Tensor]:
        """(B, C) the running means and (B,) their products with the bounded predictions; the means are written if the batch is accepted."""
        index, products = self.index(s), []
        with torch.no_grad():
            rows = self.rows.index_select(0, index)
            for t, p in chunks(rows, s.p.detach()):
                now = p.clamp(FLOOR, 1 - FLOOR).to(t.dtype)
                if s.learn:
                    t.mul_(self.beta).addcdiv_(now, now.sum(-1, keepdim=True), value=1 - self.beta)
                products.append(now.mul_(t).sum(-1))
            if s.learn:
                s.later(partial(put_rows, self.rows, index, rows, None if s.complete else s.valid))
            return rows.to(s.u.dtype), torch.cat(products).to(s.u.dtype)

    def observe(self, s: Batch) -> None:
        """The term that reads the means has moved them."""


class Disagreement(torch.autograd.Function):
    """(B,) log(1 - <t, p>) of running means t and bounded predictions p = S(u), with its slope by the logits u in closed form."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, p: Tensor, t: Tensor, product: Tensor) -> Tensor:
        rest = 1 - product
        ctx.save_for_backward(u, p, t, rest)
        return rest.log()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, p, t, rest = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives, by definition
            value = (1 - (u.softmax(-1).clamp(FLOOR, 1 - FLOOR) * t).sum(-1)).log()
            return torch.autograd.grad(value, u, grad, create_graph=True)[0], None, None, None
        slope = torch.empty_like(p)
        for h, q, v, g in chunks(slope, p, t, (-grad / rest)[:, None]):
            torch.mul(v, g, out=h)
            torch.ops.aten.hardtanh_backward(h, q, FLOOR, 1 - FLOOR, grad_input=h)  # 0 where a bound holds
            h.mul_(q).addcmul_(q, h.sum(-1, keepdim=True), value=-1)
        return slope, None, None, None


def elr_term(s: Batch, ensemble: tuple[Tensor, Tensor], lam: float) -> Tensor:
    """The loss term of :func:`elr`."""
    delta = lam * Disagreement.apply(s.u, s.p.detach(), *ensemble)  # type: ignore[no-untyped-call]
    return delta if s.complete else torch.where(s.valid, delta, 0.0)


@method(
    "loss", "positive", "prior", "sample", equation="7, in a nonlinear form", record="loss", needs=["index"],
    reference="Liu et al., Early-Learning Regularization Prevents Memorization of Noisy Labels, NeurIPS 2020",
    limits="lam = 0 is cross entropy. The loss has no lower bound near 0 and may be negative.",
    search=Space({"lam": Real(0.5, 10.0, log=True), "beta": Real(0.3, 0.99)}),
    candidates=each(lam=(3.0, 1.0, 7.0, 3.0, 3.0), beta=(0.7, 0.7, 0.7, 0.5, 0.9)),
)  # fmt: skip
def elr(*, num_samples: int, num_classes: int, lam: Value = 3.0, beta: float = 0.7) -> Compensated:
    r"""Early-learning regularization: predictions that agree with their own past are rewarded.

    .. math:: \Delta l_i = \lambda \log(1 - \langle t_i, p_i \rangle), \qquad
              t_i \leftarrow \beta\, t_i + (1 - \beta)\, p_i

    where :math:`t_i` is updated before its use and constant in the gradient. The gradient of the term cancels the gradient of a
    wrong label once the model has learned the right one from other samples.

    Args:
        lam, beta: the authors use 3 and 0.7 on CIFAR-10, 7 and 0.9 on CIFAR-100.

    >>> criterion = elr(num_samples=1000, num_classes=3)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]), torch.tensor([7]))
    tensor(1.6051)
    """
    ensemble = TemporalEnsemble(num_samples, num_classes, beta)
    return Compensated(loss=Formula(elr_term, ensemble=ensemble, lam=lam, direction="positive", adds=True))


UNSET = -1.0
"""Marks an abstention cost that is not known yet; costs are not negative."""


def abstention_parts(s: Batch) -> tuple[Tensor, Tensor]:
    r"""(B,) :math:`\log(1 - a_i)`, with :math:`a_i` the probability of abstention, the last output; and (B,) the cross entropy
    :math:`h_i` over the other outputs. The probability itself would round to 1, early in half precision.
    """
    u = full_precision(s.u)
    decided = (u[:, :-1].logsumexp(-1) - u.logsumexp(-1)).clamp(max=0)
    logp = u[:, :-1].log_softmax(-1)
    if s.hard:
        # The product of a distribution and the logarithms would be 0 times infinity at a class with logit -inf.
        h = -logp.gather(1, s.labels[:, None].clamp(max=logp.shape[-1] - 1))[:, 0] * s.valid
    else:
        h = -(s.y[:, :-1] * logp).sum(-1)
    return decided, h


@final
class AbstentionCost(Statistic):
    r"""The cost :math:`\alpha` of abstention: unset during the warm-up, then rising linearly.

    For `warmup` epochs no sample may abstain, and a running mean of :math:`(1 - a_i) h_i` with weight `mu` is kept. At the first
    step after them :math:`\alpha` starts at this mean divided by `divisor` and rises to `final` at the end of the training.
    """

    observes = "logits"  # the cost of the first step after the warm-up uses the batch of that step

    def __init__(self, warmup: int, final: float, divisor: float, mu: float) -> None:
        super().__init__()
        check(warmup >= 0 and final >= 0, "at least 0", warmup=warmup, final=final)
        check(divisor > 0 and 0 < mu <= 1, "divisor > 0 and mu in (0, 1]", divisor=divisor, mu=mu)
        self.warmup, self.final, self.divisor, self.mu = warmup, final, divisor, mu
        self.mean = self.track("mean", torch.tensor(UNSET), merge="mean")
        self.first = self.track("first", torch.tensor(UNSET), merge="mean")
        self.begun = self.track("begun", torch.tensor(0.0), merge="same")

    def forward(self, s: Batch) -> Tensor:
        """The current cost, a scalar tensor; negative during the warm-up."""
        done = ((s.progress - self.begun) / (1 - self.begun).clamp(min=1e-12)).clamp(0, 1)
        return torch.where(self.first < 0, self.first, self.first + (self.final - self.first) * done)

    def observe(self, s: Batch) -> None:
        """Updates the running mean, and starts the rise after the warm-up."""
        decided, h = abstention_parts(s)
        counted = s.valid.sum()
        now = torch.where(s.valid, decided.exp() * h, 0.0).sum() / counted.clamp(min=1)
        now = torch.where(self.mean < 0, now.to(self.mean.dtype), (1 - self.mu) * self.mean + self.mu * now)
        self.mean.copy_(torch.where(counted > 0, now, self.mean))
        starts = (self.first < 0) & (s.epoch >= self.warmup) & (counted > 0)
        self.first.copy_(torch.where(starts, self.mean / self.divisor, self.first))
        self.begun.copy_(torch.where(starts, s.progress, self.begun))


def dac_term(s: Batch, cost: Tensor) -> Tensor:
    """The loss term of :func:`dac`."""
    alpha = cost.to(s.l.dtype)
    decided, h = abstention_parts(s)
    losses = (decided.exp() * h - alpha * decided).to(s.l.dtype)
    return torch.where(s.valid & (alpha >= 0), losses - s.l, 0.0)


@method(
    "loss", "mixed", "tuning", "sample", equation="7, in a nonlinear form", needs=["epochs", "steps"], extra_outputs=1,
    reference="Thulasidasan et al., Combating Label Noise in Deep Learning Using Abstention, ICML 2019",
    limits="The model has one output more than there are classes; leave it out when predicting. Cross entropy in the warm-up.",
)  # fmt: skip
def dac(*, warmup: int = 20, final: float = 1.0, divisor: float = 64.0, mu: float = 0.05) -> Compensated:
    r"""Deep abstaining classifier: an extra output takes the samples that the others cannot explain, at a cost.

    .. math:: l'_i = (1 - a_i)\, h_i - \alpha \log(1 - a_i), \qquad \Delta l_i = l'_i - l_i

    where :math:`a_i` is the probability of the last of C + 1 outputs, :math:`h_i` the cross entropy over the other C, and the cost
    :math:`\alpha` rises with each step from a small start (the authors raise it once per epoch).

    Args:
        warmup: epochs of cross entropy over all C + 1 outputs.
        final: the cost :math:`\alpha` at the end of the training.
        divisor, mu: the ratio of the mean loss to the first cost, and the weight of a new batch in that mean.

    >>> criterion = dac(warmup=0).start(total_steps=100)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2, 0.0]]), torch.tensor([1]))   # three classes and abstention
    tensor(2.2637)
    """
    # It keeps no record: a record would suggest abstention as a class.
    cost = AbstentionCost(warmup, final, divisor, mu)
    return Compensated(loss=Formula(dac_term, cost=cost, inference="tuning", granularity="sample"))


def noise_entropy(noise_rate: float, num_classes: int, noise: Literal["symmetric", "pair"] = "symmetric") -> float:
    r"""The cross entropy of the best model under label noise, for classes that do not overlap.

    .. math:: B = -(1 - \eta) \log(1 - \eta) - \eta \log \frac{\eta}{C - 1}

    where :math:`\eta` is the noise rate, for errors that go to all other classes alike; without :math:`C - 1` for "pair" noise.

    >>> round(noise_entropy(0.4, 10), 3), round(noise_entropy(0.4, 10, "pair"), 3), noise_entropy(0.0, 10)
    (1.552, 0.673, 0.0)
    """
    one_of("noise", noise, "symmetric", "pair")
    check(0 <= noise_rate < 1, "the share of wrong labels, in [0, 1)", noise_rate=noise_rate)
    if noise_rate == 0 or num_classes < 2:
        return 0.0
    others = num_classes - 1 if noise == "symmetric" else 1
    return -(1 - noise_rate) * math.log(1 - noise_rate) - noise_rate * math.log(noise_rate / others)


def floor_term(s: Batch, bound: float, below: str) -> Tensor:
    r"""The loss term of :func:`loss_bound`, the same for all samples: :math:`\Delta l_i = \max(0, B - \bar l)`, or twice that to ascend."""
    divisor = s.criterion.divisor(s)
    gap = F.relu(bound - s.criterion.weighted(s, s.l).sum() / divisor) * (1 if below == "stop" else 2)
    # If the mean does not divide by the weights, the added term must not either.
    return torch.where(s.valid, gap * (divisor / s.criterion.total_weight(s)).to(s.l.dtype), 0.0)


@method(
    "loss", "negative", "prior", "corpus", equation="7, in a nonlinear form", record="loss",
    reference="Toner and Storkey, Label Noise: Correcting the Forward-Correction, 2023 (arXiv 2307.13100)",
    limits="noise_rate = 0 is cross entropy. Too high a rate stops the training early; a batch is bounded as a whole, not its samples.",
    search=Space({"noise_rate": Real(0.02, 0.6)}), candidates=each(noise_rate=(0.2, 0.1, 0.3, 0.4, 0.05)),
)  # fmt: skip
def loss_bound(
    *,
    num_classes: int,
    noise_rate: float = 0.2,
    noise: Literal["symmetric", "pair"] = "symmetric",
    bound: float | None = None,
    below: Literal["stop", "ascend"] = "stop",
) -> Compensated:
    r"""A lower bound on the training loss: it stops a model that fits wrong labels, whose loss is smaller than the right model's.

    .. math:: \frac1B \sum_i l'_i = \max\Bigl( \frac1B \sum_i l_i,\; B(\eta) \Bigr), \qquad
              B(\eta) = -(1 - \eta) \log(1 - \eta) - \eta \log \frac{\eta}{C - 1}

    The bound is the cross entropy of the best model if classes do not overlap and a share :math:`\eta` of the labels is wrong. An
    audit estimates that share: `loss_bound(noise_rate=audit.noise_rate.value, num_classes=10)`.

    Args:
        noise_rate: the share :math:`\eta` of wrong labels.
        noise: "symmetric", errors go to all other classes alike, or "pair", to one of them, which gives a lower bound.
        bound: the bound itself, instead of `noise_rate`.
        below: "stop", no gradient below the bound, or "ascend", :math:`|\bar l - B| + B`: flooding (Ishida et al., ICML 2020).

    >>> loss_bound(num_classes=3, noise_rate=0.4)(torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([0]))
    tensor(0.9503)
    """
    bound = noise_entropy(noise_rate, num_classes, noise) if bound is None else bound
    check(bound >= 0, "a loss, at least 0", bound=bound)
    one_of("below", below, "stop", "ascend")
    place = {"direction": "negative", "granularity": "corpus"}
    return Compensated(loss=Formula(floor_term, bound=bound, below=below, adds=True, **place))


def hinge(u: Tensor, target: Tensor) -> Tensor:
    r"""(B,) hinge losses: a class must lead all others by one.

    .. math:: l_i = \max(0,\; 1 - (u_{i,y_i} - \max_{c \ne y_i} u_{i,c}))

    With two classes :math:`u_{i,1} - u_{i,0}` is the decision value of an SVM. For distributions (B, C) it is the mean over classes.

    >>> hinge(torch.tensor([[2.0, 0.0, 0.5], [0.2, 0.0, 0.0]]), torch.tensor([0, 0]))
    tensor([0.0000, 0.8000])
    """
    if u.shape[-1] < 2:
        raise InputError(f"the logits have {u.shape[-1]} class; a hinge loss needs two or more.")
    best = u.topk(2, dim=-1).values
    # The best rival of a class is the largest logit; the rival of the leading class is the second largest.
    losses = (1 - u + torch.where(u == best[:, :1], best[:, 1:], best[:, :1])).clamp(min=0)
    return losses.gather(1, target[:, None])[:, 0] if target.ndim == 1 else (target * losses).sum(-1)


@method(
    "loss", "positive", "regularized", "sample", equation="30, 31, 32", needs=["index"],
    reference="Cortes and Vapnik, Support-Vector Networks, 1995; Yao and Wu, Compensation Learning, 2021",
    limits="lambda >= 1 means no slack: the plain hinge loss. lambda = 0 lets slack absorb every loss.",
    search=Space({"lam": Real(0.05, 1.0), "lr": Real(0.01, 1.0, log=True)}),
)  # fmt: skip
def slack_hinge(*, num_samples: int, lam: Value = 0.5, lr: float = 0.1) -> Compensated:
    r"""The support vector machine as a deep loss: a hinge loss with a slack for each sample.

    .. math:: L = \frac1B \sum_i \max(0,\; l_i - \xi_i) + \lambda |\xi_i|, \qquad \xi_i \ge 0

    where :math:`l_i` is the hinge loss. For fixed logits the best slack leaves :math:`\min(\lambda, 1)\, l_i`. The margin term
    :math:`\tfrac12 \|w\|^2` is the weight decay of the user's optimizer.

    Args:
        lam: the weight :math:`\lambda` of the slack.
        lr: the step of a slack per sample and visit.

    >>> criterion = slack_hinge(num_samples=10)
    >>> u, y, i = torch.tensor([[0.0, 2.0]]), torch.tensor([0]), torch.tensor([3])
    >>> [round(criterion(u, y, i).item(), 4) for _ in range(3)]      # each visit adds lr (1 - lambda) of slack
    [3.0, 2.975, 2.95]
    """
    return Compensated(loss=Slack(Sample(num_samples, penalty=L1(lam), bound=AtLeast(0.0), lr=lr)), base=hinge)


@method(
    "loss", "positive", "meta", "sample", equation="12, 13, 14", needs=["index", "clean"],
    reference="Yao and Wu, Compensation Learning, 2021, Sec. III-C(4)",
    limits="Eq. 12 as written adds a constant and learns nothing; this is its nonlinear form. A rare sample's slack moves rarely.",
)  # fmt: skip
def meta_loss(*, num_samples: int, lr: float = 100.0, temperature: float = 0.5, start: float = 1.0) -> Compensated:
    r"""Loss compensation learned on clean data: each sample has a slack that removes a part of its loss.

    .. math:: l'_i = T \left[ \log(1 + e^{(l_i - \kappa_i)/T}) - \log(1 + e^{-\kappa_i/T}) \right], \qquad
              \kappa^* = \arg\min_{\kappa \ge 0} \sum_{j \in \Omega} l(S(f(x_j; \Theta^*(\kappa))), y_j)

    where :math:`\kappa_i` is the slack and :math:`T` a temperature. In the gradient of the model a sample has the weight
    :math:`\sigma((l_i - \kappa_i)/T)`. Eqs. 12-14 of the paper add :math:`\kappa_i` to the loss, and a constant has no gradient.

    Args:
        lr: the step of a slack in :func:`compensate.meta_step`; large, because the outer gradient of one sample is small.
        temperature: :math:`T`, positive: at 0 the meta gradient vanishes almost everywhere.
        start: the initial :math:`\kappa_i`; far below the losses every sample counts fully and none can be told apart.

    >>> print(meta_loss(num_samples=100).taxonomy)
    loss · positive · meta · sample
    """
    numbers = {"temperature": temperature, "start": start}
    check(temperature > 0 and start >= 0, "a positive temperature, a start of at least 0", **numbers)
    kappa = Sample(num_samples, update="meta", bound=AtLeast(0.0), lr=lr, init=start)
    return Compensated(loss=Slack(kappa, temperature))
