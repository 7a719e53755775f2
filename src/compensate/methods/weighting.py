"""Methods that weight or replace the loss, for comparison with compensation, and self-paced logit compensation."""

from __future__ import annotations

import math
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from compensate.core.batch import Batch, Value
from compensate.core.criterion import Compensated
from compensate.core.statistics import ClassMean
from compensate.core.tables import Sample
from compensate.errors import InputError
from compensate.methods.registry import Block, Real, Space, each, method, one_of
from compensate.terms.adversarial import Pull
from compensate.terms.gates import Where, above

__all__ = ["focal", "gce", "meta_weight", "reweight", "self_paced_logit", "self_paced_weights"]


def of_given(s: Batch, p: Tensor) -> Tensor:
    """(B,) the entry of the given class in each row of `p`; the expected entry if the label is a distribution."""
    return p.gather(1, s.labels[:, None])[:, 0] if s.hard else (s.y * p).sum(-1)


@final
class Weighted(Block):
    r"""A weight on the loss as a loss term, :math:`\Delta l_i = (w_i - 1)\, l_i`; `weight` is a callable of the batch."""

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, s: Batch) -> Tensor:
        """(B,) the loss term."""
        return (self.weight(s) - 1) * s.l


@final
class Becomes(Block):
    r"""Another loss as a loss term, :math:`\Delta l_i = l'_i - l_i`; `loss` is a callable of the batch."""

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, s: Batch) -> Tensor:
        """(B,) the loss term."""
        return torch.where(s.valid, self.loss(s) - s.l, 0.0)


@final
class Focus(Block):
    """The weight of :func:`focal`; with `mean`, the mean prediction of the class replaces the sample's own."""

    direction = "positive"

    def __init__(self, gamma: float, mean: ClassMean | None = None) -> None:
        super().__init__()
        if gamma < 0:
            raise InputError(f"gamma is {gamma}; expected at least 0 (0 is plain cross entropy).")
        self.gamma, self.mean = gamma, mean

    @property
    def granularity(self) -> str:
        """The level of the prediction that sets the weight."""
        return "sample" if self.mean is None else "category"

    def forward(self, s: Batch) -> Tensor:
        """(B,) the weights."""
        p = of_given(s, s.p if self.mean is None else self.mean(s).to(s.p.dtype))
        # Kept above zero, where the slope of a root is infinite.
        return (1 - p).clamp(min=torch.finfo(p.dtype).tiny) ** self.gamma


@method(
    "loss", "positive", "prior", "sample",
    equation="2",
    reference="Lin et al., Focal Loss for Dense Object Detection, ICCV 2017",
    record="loss",
    kind="weighting",
    limits="Not compensation: a weight. gamma = 0 is cross entropy. Favors hard samples, and wrong labels count more.",
    search=Space({"gamma": Real(0.0, 5.0)}),
    candidates=each(gamma=(2.0, 0.5, 1.0, 3.0, 5.0)),
)  # fmt: skip
def focal(
    *, num_classes: int | None = None, gamma: float = 2.0, per: Literal["sample", "category"] = "sample"
) -> Compensated:
    r"""The focal loss, a weight and not compensation: easy samples count less.

    .. math:: l'_i = (1 - p_{i,y_i})^\gamma\, l_i

    Args:
        num_classes: the number of classes, for `per="category"`.
        gamma: :math:`\gamma`.
        per: "category" replaces :math:`p_{i,y_i}` by its mean over the samples of the class in the previous epoch, as a
            footnote of the paper suggests; it needs `end_epoch()`.

    >>> focal()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.9334)
    """
    one_of("per", per, "sample", "category")
    if per == "sample":
        return Compensated(loss=Weighted(Focus(gamma)))
    if num_classes is None:
        raise InputError('per="category" keeps a mean for each class: give num_classes.')
    return Compensated(loss=Weighted(Focus(gamma, ClassMean(num_classes, "all"))))


@final
class BoxCox(Block):
    r"""The loss of :func:`gce`, :math:`(1 - \max(p_{i,y_i}, k)^q) / q`."""

    direction = "positive"

    def __init__(self, q: float, k: float = 0.0) -> None:
        super().__init__()
        if not 0 < q <= 1 or not 0 <= k < 1:
            raise InputError(f"q={q}, k={k}; expected q in (0, 1] and k in [0, 1).")
        self.q, self.k = q, k

    def forward(self, s: Batch) -> Tensor:
        """(B,) the losses."""
        # The power of a tiny probability by its logarithm, which keeps the gradient finite.
        power = torch.exp(self.q * of_given(s, s.logp)) if s.hard else of_given(s, s.p) ** self.q
        return (1 - power.clamp(min=self.k**self.q if self.k else 0.0)) / self.q


@method(
    "loss", "positive", "prior", "sample",
    equation="2",
    reference="Zhang and Sabuncu, Generalized Cross Entropy Loss for Training with Noisy Labels, NeurIPS 2018",
    record="loss",
    kind="weighting",
    limits="Not compensation: another loss. q to 0 is cross entropy, q = 1 mean absolute error, which learns slowly.",
    search=Space({"q": Real(0.1, 1.0)}),
    candidates=each(q=(0.7, 0.3, 0.5, 0.9, 1.0)),
)  # fmt: skip
def gce(*, q: float = 0.7, k: float = 0.0) -> Compensated:
    r"""Generalized cross entropy, a reshaped loss and not compensation: samples that fit badly count less.

    .. math:: l'_i = \frac{1 - p_{i,y_i}^q}{q}

    Its gradient is the gradient of cross entropy times the weight :math:`p_{i,y_i}^q`.

    Args:
        q: :math:`q` in (0, 1], between cross entropy (q to 0) and mean absolute error (q = 1).
        k: samples with a probability below `k` (the authors use 0.5) do not count, the truncated form; 0 for none. The
            authors alternate it with pruning, which is left out.

    >>> gce()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.1545)
    """
    return Compensated(loss=Becomes(BoxCox(q, k)))


@final
class WeightNet(Block):
    """The network of :func:`meta_weight`, from a loss to a weight in (0, 1)."""

    inference, granularity, direction = "meta", "sample", "positive"

    def __init__(self, hidden: int = 100) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, 1), nn.Sigmoid())

    def forward(self, s: Batch) -> Tensor:
        """(B,) the weights; constants outside a meta step, because the training step must not move the network."""
        first = next(self.layers.parameters())
        w: Tensor = self.layers(s.l.detach()[:, None].to(first.dtype))[:, 0].to(s.l.dtype)
        return w if s.meta else w.detach()


@method(
    "loss", "positive", "meta", "sample",
    equation="2 with 12-14",
    reference="Shu et al., Meta-Weight-Net: Learning an Explicit Mapping for Sample Weighting, NeurIPS 2019",
    record="loss",
    kind="weighting",
    needs=["clean"],
    limits="Not compensation: a weight. meta_step needs an optimizer for the network, such as Adam with a step of 1e-3.",
)  # fmt: skip
def meta_weight(*, hidden: int = 100) -> Compensated:
    r"""Meta-Weight-Net, a weight and not compensation: a small network, learned on clean data, weights each loss.

    .. math:: l'_i = V(l_i; \Phi)\, l_i

    where :math:`V` has one hidden layer and ends in a sigmoid. Learn :math:`\Phi` by
    `meta_step(criterion, model, batch, clean, lr=..., optimizer=torch.optim.Adam(criterion.parameters(), 1e-3))`; the
    training step does not move it.

    Args:
        hidden: the number of hidden units.

    >>> print(meta_weight().taxonomy)
    loss · positive · meta · sample
    """
    return Compensated(loss=Weighted(WeightNet(hidden)))


@final
class LearnedWeights(Block):
    """The weights of :func:`reweight`, each used once; all are 1 without a meta step on the batch."""

    inference, granularity, direction = "meta", "sample", "mixed"

    def __init__(self, num_samples: int) -> None:
        super().__init__()
        self.table = Sample(num_samples, update="meta", penalty=None)

    def forward(self, s: Batch) -> Tensor:
        """(B,) the weights."""
        rows = self.table(s)
        if s.meta:
            return rows - rows.detach()
        keys = self.table.key(s)
        helps = torch.where(s.valid, rows.clamp(min=0), 0.0).to(s.l.dtype)
        weights = s.valid.sum() * helps / helps.sum().clamp(min=torch.finfo(helps.dtype).tiny)
        if s.learn:
            s.later(lambda: self.table.write(keys, torch.zeros_like(rows)))
        return torch.where((rows == 0).all(), torch.ones_like(weights), weights)


@method(
    "loss", "mixed", "meta", "sample",
    equation="2 with 12-14",
    reference="Ren et al., Learning to Reweight Examples for Robust Deep Learning, ICML 2018",
    record="loss",
    kind="weighting",
    needs=["index", "clean"],
    limits="Not compensation: a weight. Cross entropy for batches without a meta_step before them.",
)  # fmt: skip
def reweight(*, num_samples: int) -> Compensated:
    r"""Learning to reweight, a weight and not compensation: a sample counts as much as its gradient helps on clean data.

    .. math:: l'_i = w_i\, l_i, \qquad w_i = B \frac{\max(0, -g_i)}{\sum_j \max(0, -g_j)}, \qquad
              g_i = \frac{\partial}{\partial \varepsilon_i} \sum_{\Omega} l(\Theta - \eta \nabla_\Theta
              \textstyle\sum_j \varepsilon_j l_j) \Big|_{\varepsilon = 0}

    where :math:`\Omega` is clean data. If no sample of the batch helps, all weights are 0. Call
    `meta_step(criterion, model, batch, clean, lr=...)` before each training step on the same batch; weights are used once.

    >>> print(reweight(num_samples=100).taxonomy)
    loss · mixed · meta · sample
    """
    return Compensated(loss=Weighted(LearnedWeights(num_samples)))


@final
class Growing(Block):
    r"""A number that grows by a factor each epoch: :math:`\tau^t = \tau^0 \rho^t`."""

    def __init__(self, start: float, growth: float) -> None:
        super().__init__()
        if start <= 0 or growth <= 1:
            raise InputError(
                f"tau starts at {start} and grows by {growth}; expected a positive start, a growth above 1."
            )
        self.start, self.growth = start, growth

    def forward(self, s: Batch) -> Tensor:
        """The current value, a scalar tensor."""
        return self.start * self.growth ** s.epoch.to(s.target.device)


@final
class BeyondLogits(Block):
    r"""A step longer than all logits of the batch: :math:`\max(\epsilon_0, 2 \max_i \|u_i\|)`."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.least = least

    def forward(self, s: Batch) -> Tensor:
        """The current step, a scalar tensor."""
        u = s.u.detach()
        if not len(u):
            return u.new_tensor(self.least)
        # The square of a large logit may overflow; the square of a logit up to 1 does not.
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
    *, num_classes: int, tau: Value | None = None, growth: float = 1.1, eta: Value | None = None, least: float = 20.0
) -> Compensated:
    r"""Self-paced logit compensation: removes the loss of samples above a growing threshold.

    .. math:: L = \sum_{i: l_i \ge \tau^t} l(S(u_i + v_i), y_i) + \sum_{i: l_i < \tau^t} l_i, \qquad
              v_i = \eta (y_i - S(u_i)), \quad \tau^{t+1} > \tau^t, \quad \eta > 2 \max_i \|u_i\|

    where :math:`l_i` is the plain loss and :math:`t` counts epochs. A compensated loss near 0 has no gradient: the sample is left
    out, as by a weight of 0. The paper's condition on :math:`\eta` does not ensure that for small logits, hence `least`.

    Args:
        tau: the threshold; by default :math:`\log C`, the loss of a uniform prediction, times `growth` to the power of the epoch.
        growth: the factor per epoch.
        eta: the step :math:`\eta`; by default twice the largest norm of the batch's logits, and at least `least`.
        least: see `eta`.

    >>> criterion = self_paced_logit(num_classes=3)
    >>> s = criterion.evaluate(torch.nn.Identity(), torch.tensor([[3.0, 0.8, 0.2], [2.0, 0.0, 0.0]]), torch.tensor([1, 0]))
    >>> s.l.abs()
    tensor([0.0000, 0.2395])
    """
    threshold = Growing(math.log(num_classes), growth) if tau is None else tau
    return Compensated(logit=Where(above(threshold), Pull(BeyondLogits(least) if eta is None else eta)))


def self_paced_weights(
    losses: Tensor,
    lam: float,
    kind: Literal["hard", "linear", "logarithmic", "mixture"] = "hard",
    *,
    easy: float | None = None,
) -> Tensor:
    r"""The weights of self-paced learning, for comparison with :func:`self_paced_logit`: they multiply losses.

    .. math:: \text{hard}\; [l \le \lambda], \quad
              \text{linear}\; \max(0, 1 - l/\lambda), \quad
              \text{logarithmic}\; \frac{\log(l + \zeta)}{\log \zeta}\,[l < \lambda],\; \zeta = 1 - \lambda, \quad
              \text{mixture}\; \min(1, \max(0, \zeta/l - \zeta/\lambda)),\; \zeta = \frac{\lambda \lambda'}{\lambda - \lambda'}

    where :math:`\lambda` is the age of the learner: an older learner includes harder samples.

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
    one_of("kind", kind, "hard", "linear", "logarithmic", "mixture")
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
        return torch.where(losses < lam, torch.log(losses + 1 - lam) / math.log(1 - lam), 0.0)
    easy = lam / 2 if easy is None else easy
    if not 0 < easy < lam:
        raise InputError(f"easy is {easy}; expected a threshold between 0 and lambda = {lam}.")
    zeta = lam * easy / (lam - easy)
    return (zeta / losses - zeta / lam).clamp(0, 1)
