"""Methods that compensate losses, and plain cross entropy."""

from __future__ import annotations

import math
from functools import partial
from typing import Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor

from compensate.core.batch import Batch, Value, at
from compensate.core.criterion import BinaryBase, Compensated
from compensate.core.layout import put_rows
from compensate.core.proximal import L1, AtLeast
from compensate.core.stages import full_precision
from compensate.core.statistics import Statistic
from compensate.core.tables import Sample
from compensate.errors import InputError
from compensate.methods.registry import Block, Real, Space, each, method, one_of
from compensate.terms.prior import Slack

__all__ = ["base", "dac", "elr", "hinge", "loss_bound", "meta_loss", "slack_hinge"]


@method(
    "none", "none", "none", "none",
    equation="1",
    reference="plain training",
    record="loss",
    kind="baseline",
    limits="Fits wrong labels as well as right ones in a long training.",
)  # fmt: skip
def base(*, num_classes: int | None = None, base: BinaryBase = None) -> Compensated:
    r"""Cross entropy without compensation.

    .. math:: L = \frac1B \sum_i l(S(u_i), y_i)

    For several labels per sample it is binary cross entropy, the mean over samples and labels.

    Args:
        num_classes: the number of classes, for a record with `base="bce"`.

    >>> base()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.3584)
    """
    return Compensated(base=base)


@final
class TemporalEnsemble(Statistic):
    r"""A running mean of each sample's predictions, including the current one; as a value, (B, C).

    .. math:: t_i \leftarrow \beta\, t_i + (1 - \beta)\, \bar p_i

    where :math:`\bar p_i` is the prediction, clamped to `[floor, 1 - floor]` and divided by its sum, and :math:`t_i` starts at zero.
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
        """Predictions clamped away from 0 and 1."""
        return F.hardtanh(p, self.floor, 1 - self.floor)  # its backward takes one pass, the one of clamp takes four

    def forward(self, s: Batch) -> Tensor:
        """(B, C) the running means."""
        return self.moved(s, self.bounded(s.p.detach()))

    def moved(self, s: Batch, p: Tensor) -> Tensor:
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

    def later(self, s: Batch, rows: Tensor) -> None:
        """Writes the running means of a batch if it is accepted."""
        s.later(partial(put_rows, self.rows, self.index(s), rows, None if s.complete else s.valid))

    def observe(self, s: Batch) -> None:
        """The term that reads the means has moved them."""

    def extra_repr(self) -> str:
        """Size and momentum."""
        return f"{self.num_samples} samples, beta={self.beta:g}"


def _disagreement(t: Tensor, p: Tensor) -> Tensor:
    return torch.log1p(-(t * p).sum(-1))


@final
class EarlyLearning(Block):
    """The loss term of :func:`elr`."""

    direction, adds = "positive", True

    def __init__(self, ensemble: TemporalEnsemble, lam: Value) -> None:
        super().__init__()
        self.ensemble, self.lam = ensemble, lam

    def forward(self, s: Batch) -> Tensor:
        """(B,) the loss compensation."""
        p = self.ensemble.bounded(s.p)
        delta = at(self.lam, s) * _disagreement(self.ensemble.moved(s, p), p)
        return delta if s.complete else torch.where(s.valid, delta, 0.0)


@method(
    "loss", "positive", "prior", "sample",
    equation="7, in a nonlinear form",
    reference="Liu et al., Early-Learning Regularization Prevents Memorization of Noisy Labels, NeurIPS 2020",
    record="loss",
    needs=["index"],
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
        lam: :math:`\lambda`; the authors use 3 on CIFAR-10 and 7 on CIFAR-100.
        beta: :math:`\beta`; the authors use 0.7 and 0.9.

    >>> criterion = elr(num_samples=1000, num_classes=3)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]), torch.tensor([7]))
    tensor(1.6051)
    """
    return Compensated(loss=EarlyLearning(TemporalEnsemble(num_samples, num_classes, beta), lam))


UNSET = -1.0
"""Marks an abstention cost that is not known yet; costs are not negative."""


def committed(s: Batch) -> tuple[Tensor, Tensor]:
    r"""(B,) :math:`\log(1 - a_i)`, with :math:`a_i` the probability of abstention, the last output; and (B,) the cross entropy
    :math:`h_i` over the other outputs.

    The first is a difference of two log-sum-exp, because the probability itself rounds to 1, early in half precision.
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
    step after them :math:`\alpha` starts at this mean divided by `divisor`, low enough for abstention to begin, and rises to
    `final` at the end of the training. The authors raise it once per epoch, this class with each step, to the same end.
    """

    observes = "logits"  # the cost of the first step after the warm-up uses the batch of that step

    def __init__(self, warmup: int, final: float, divisor: float, mu: float) -> None:
        super().__init__()
        if warmup < 0 or final < 0 or divisor <= 0 or not 0 < mu <= 1:
            raise InputError(
                f"warmup={warmup}, final={final}, divisor={divisor}, mu={mu}; expected warmup >= 0, final >= 0, divisor > 0 "
                "and mu in (0, 1]."
            )
        self.warmup, self.final, self.divisor, self.mu = warmup, final, divisor, mu
        self.track("mean", torch.tensor(UNSET), merge="mean")
        self.track("first", torch.tensor(UNSET), merge="mean")
        self.track("begun", torch.tensor(0.0), merge="same")
        self.mean: Tensor
        self.first: Tensor
        self.begun: Tensor

    def forward(self, s: Batch) -> Tensor:
        """The current cost, a scalar tensor; negative during the warm-up."""
        done = ((s.progress - self.begun) / (1 - self.begun).clamp(min=1e-12)).clamp(0, 1)
        return torch.where(self.first < 0, self.first, self.first + (self.final - self.first) * done)

    def observe(self, s: Batch) -> None:
        """Updates the running mean, and starts the rise after the warm-up."""
        decided, h = committed(s)
        counted = s.valid.sum()
        now = torch.where(s.valid, decided.exp() * h, 0.0).sum() / counted.clamp(min=1)
        now = torch.where(self.mean < 0, now.to(self.mean.dtype), (1 - self.mu) * self.mean + self.mu * now)
        self.mean.copy_(torch.where(counted > 0, now, self.mean))
        starts = (self.first < 0) & (s.epoch >= self.warmup) & (counted > 0)
        self.first.copy_(torch.where(starts, self.mean / self.divisor, self.first))
        self.begun.copy_(torch.where(starts, s.progress, self.begun))


@final
class Abstain(Block):
    """The loss term of :func:`dac`."""

    inference, granularity, direction = "tuning", "sample", "mixed"

    def __init__(self, cost: AbstentionCost) -> None:
        super().__init__()
        self.cost = cost

    def forward(self, s: Batch) -> Tensor:
        """(B,) the loss compensation."""
        alpha = self.cost(s).to(s.l.dtype)
        decided, h = committed(s)
        replaced = (decided.exp() * h - alpha * decided).to(s.l.dtype)
        return torch.where(s.valid & (alpha >= 0), replaced - s.l, 0.0)


@method(
    "loss", "mixed", "tuning", "sample",
    equation="7, in a nonlinear form",
    reference="Thulasidasan et al., Combating Label Noise in Deep Learning Using Abstention, ICML 2019",
    needs=["epochs", "steps"],
    extra_outputs=1,
    limits="The model has one output more than there are classes; leave it out when predicting. Cross entropy in the warm-up.",
)  # fmt: skip
def dac(*, warmup: int = 20, final: float = 1.0, divisor: float = 64.0, mu: float = 0.05) -> Compensated:
    r"""Deep abstaining classifier: an extra output takes the samples that the others cannot explain, at a cost.

    .. math:: l'_i = (1 - a_i)\, h_i - \alpha \log(1 - a_i), \qquad \Delta l_i = l'_i - l_i

    where :math:`a_i` is the probability of the last of C + 1 outputs, :math:`h_i` the cross entropy over the other C, and the cost
    :math:`\alpha` rises from a small start; see :class:`~compensate.methods.loss.AbstentionCost`.

    Args:
        warmup: epochs of cross entropy over all C + 1 outputs.
        final: the cost :math:`\alpha` at the end of the training.
        divisor: the ratio of the mean loss to the first cost.
        mu: the weight of a new batch in that mean.

    >>> criterion = dac(warmup=0).start(total_steps=100)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2, 0.0]]), torch.tensor([1]))   # three classes and abstention
    tensor(2.2637)
    """
    # It keeps no record: a record would suggest abstention as a class.
    return Compensated(loss=Abstain(AbstentionCost(warmup, final, divisor, mu)))


def noise_entropy(noise_rate: float, num_classes: int, noise: Literal["symmetric", "pair"] = "symmetric") -> float:
    r"""The cross entropy of the best model under label noise, for classes that do not overlap.

    .. math:: B = -(1 - \eta) \log(1 - \eta) - \eta \log \frac{\eta}{C - 1}

    for errors that go to all other classes alike; without :math:`C - 1` if they go to one of them.

    Args:
        noise_rate: the share :math:`\eta` of wrong labels.
        num_classes: :math:`C`.
        noise: "symmetric" or "pair".

    >>> round(noise_entropy(0.4, 10), 3), round(noise_entropy(0.4, 10, "pair"), 3), noise_entropy(0.0, 10)
    (1.552, 0.673, 0.0)
    """
    one_of("noise", noise, "symmetric", "pair")
    if not 0 <= noise_rate < 1:
        raise InputError(f"noise_rate is {noise_rate}; expected the share of wrong labels, in [0, 1).")
    if noise_rate == 0 or num_classes < 2:
        return 0.0
    others = num_classes - 1 if noise == "symmetric" else 1
    return -(1 - noise_rate) * math.log(1 - noise_rate) - noise_rate * math.log(noise_rate / others)


@final
class Floor(Block):
    r"""Lifts the mean loss of the batch to a floor, :math:`\Delta l_i = \max(0, B - \bar l)`; below it the gradient is zero.

    With `below="ascend"` the term is twice as large, and the model ascends its loss below the floor (flooding).
    """

    inference, granularity, direction, adds = "prior", "corpus", "negative", True

    def __init__(self, bound: float, below: Literal["stop", "ascend"] = "stop") -> None:
        super().__init__()
        if bound < 0:
            raise InputError(f"bound is {bound}; expected a loss, at least 0.")
        one_of("below", below, "stop", "ascend")
        self.bound, self.below = bound, below

    def forward(self, s: Batch) -> Tensor:
        """(B,) the loss compensation, the same for all samples."""
        divisor = s.criterion.divisor(s)
        gap = F.relu(self.bound - s.criterion.weighted(s, s.l).sum() / divisor) * (1 if self.below == "stop" else 2)
        # If the mean does not divide by the weights, the added term must not either.
        return torch.where(s.valid, gap * (divisor / s.criterion.total_weight(s)).to(s.l.dtype), 0.0)


@method(
    "loss", "negative", "prior", "corpus",
    equation="7, in a nonlinear form",
    reference="Toner and Storkey, Label Noise: Correcting the Forward-Correction, 2023 (arXiv 2307.13100)",
    record="loss",
    limits="noise_rate = 0 is cross entropy. Too high a rate stops the training early; a batch is bounded as a whole, not its samples.",
    search=Space({"noise_rate": Real(0.02, 0.6)}),
    candidates=each(noise_rate=(0.2, 0.1, 0.3, 0.4, 0.05)),
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
    audit estimates that share: `loss_bound(noise_rate=audit.noise_rate.value, num_classes=10)`. Losses are raised, never lowered:
    in the terms of the taxonomy this is negative compensation, although the model learns less.

    Args:
        noise_rate: the share :math:`\eta` of wrong labels.
        noise: "symmetric", errors go to all other classes alike, or "pair", to one of them, which gives a lower bound.
        bound: the bound itself, instead of `noise_rate`.
        below: "stop", no gradient below the bound, or "ascend", :math:`|\bar l - B| + B`, which is flooding (Ishida et al., Do We
            Need Zero Training Loss After Achieving Zero Training Error?, ICML 2020).

    >>> loss_bound(num_classes=3, noise_rate=0.4)(torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([0]))
    tensor(0.9503)
    """
    return Compensated(loss=Floor(noise_entropy(noise_rate, num_classes, noise) if bound is None else bound, below))


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
    "loss", "positive", "regularized", "sample",
    equation="30, 31, 32",
    reference="Cortes and Vapnik, Support-Vector Networks, 1995; Yao and Wu, Compensation Learning, 2021",
    needs=["index"],
    limits="lambda >= 1 means no slack: the plain hinge loss. lambda = 0 lets slack absorb every loss.",
    search=Space({"lam": Real(0.05, 1.0), "lr": Real(0.01, 1.0, log=True)}),
)  # fmt: skip
def slack_hinge(*, num_samples: int, lam: Value = 0.5, lr: float = 0.1) -> Compensated:
    r"""The support vector machine as a deep loss: a hinge loss with a slack for each sample.

    .. math:: L = \frac1B \sum_i \max(0,\; l_i - \xi_i) + \lambda |\xi_i|, \qquad \xi_i \ge 0

    where :math:`l_i` is the hinge loss. For fixed logits and :math:`\lambda < 1` the best slack is :math:`\xi_i = l_i`, which leaves
    :math:`\lambda l_i`; in general it leaves :math:`\min(\lambda, 1)\, l_i`, hence Eq. 32 is the SVM of Eq. 33 only for
    :math:`\lambda \le 1`. The margin term :math:`\tfrac12 \|w\|^2` is the weight decay of the user's optimizer.

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
    "loss", "positive", "meta", "sample",
    equation="12, 13, 14",
    reference="Yao and Wu, Compensation Learning, 2021, Sec. III-C(4)",
    needs=["index", "clean"],
    limits="Eq. 12 as written adds a constant and learns nothing; this is its nonlinear form. A rare sample's slack moves rarely.",
)  # fmt: skip
def meta_loss(*, num_samples: int, lr: float = 100.0, temperature: float = 0.5, start: float = 1.0) -> Compensated:
    r"""Loss compensation learned on clean data: each sample has a slack that removes a part of its loss.

    .. math:: l'_i = T \left[ \log(1 + e^{(l_i - \kappa_i)/T}) - \log(1 + e^{-\kappa_i/T}) \right], \qquad
              \kappa^* = \arg\min_{\kappa \ge 0} \sum_{j \in \Omega} l(S(f(x_j; \Theta^*(\kappa))), y_j)

    where :math:`\kappa_i` is the slack and :math:`T` a temperature. In the gradient of the model a sample has the weight
    :math:`\sigma((l_i - \kappa_i)/T)`: large if its loss exceeds its slack, small otherwise. Eqs. 12-14 of the paper add
    :math:`\kappa_i` to the loss; a constant has no gradient, and nothing could be learned from it.

    Args:
        lr: the step of a slack in :func:`compensate.meta_step`; large, because the outer gradient of one sample is small.
        temperature: :math:`T`, positive: at 0 the meta gradient vanishes almost everywhere.
        start: the initial :math:`\kappa_i`; far below the losses every sample counts fully and none can be told apart.

    >>> print(meta_loss(num_samples=100).taxonomy)
    loss · positive · meta · sample
    """
    if temperature <= 0 or start < 0:
        raise InputError(
            f"temperature {temperature}, start {start}; expected a positive temperature, a start of at least 0."
        )
    return Compensated(
        loss=Slack(Sample(num_samples, update="meta", bound=AtLeast(0.0), lr=lr, init=start), temperature)
    )
