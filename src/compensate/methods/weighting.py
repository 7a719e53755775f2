"""Methods that weight or replace the loss, for comparison with compensation, and two that act on logits."""

from __future__ import annotations

import math
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from compensate.core.batch import Batch, Value
from compensate.core.criterion import Compensated
from compensate.core.proximal import TINY
from compensate.core.stages import full_precision
from compensate.core.statistics import ClassMean
from compensate.core.tables import Sample
from compensate.errors import InputError
from compensate.methods.registry import Block, Real, Space, each, method, one_of
from compensate.terms.adversarial import Pull
from compensate.terms.gates import Where, above

__all__ = [
    "anl",
    "focal",
    "gce",
    "logit_clip",
    "meta_weight",
    "nce_mae",
    "poly_loss",
    "reweight",
    "sce",
    "self_paced_logit",
    "self_paced_weights",
]


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


def _check_weights(alpha: float, beta: float) -> None:
    for name, value in (("alpha", alpha), ("beta", beta)):
        if value < 0:
            raise InputError(f"{name} is {value}; the weight of a loss is at least 0.")


@final
class Symmetric(Block):
    r"""The loss of :func:`sce`, :math:`\alpha\, H(y, p) + \beta\, H(p, y)` with :math:`\log 0` set to `log_zero`."""

    def __init__(self, alpha: float, beta: float, log_zero: float) -> None:
        super().__init__()
        _check_weights(alpha, beta)
        if log_zero >= 0:
            raise InputError(
                f"log_zero is {log_zero}; it replaces the logarithm of zero and must be negative, such as -4."
            )
        self.alpha, self.beta, self.log_zero = alpha, beta, log_zero

    def forward(self, s: Batch) -> Tensor:
        """(B,) the losses."""
        reverse = -(s.p * s.y.clamp(min=math.exp(self.log_zero)).log()).sum(-1)
        return self.beta * reverse - self.alpha * of_given(s, s.logp)


@final
class ActivePassive(Block):
    """The losses of :func:`nce_mae` (without `floor`) and :func:`anl` (with it)."""

    def __init__(self, alpha: float, beta: float, floor: float | None = None) -> None:
        super().__init__()
        _check_weights(alpha, beta)
        if floor is not None and not 0 < floor < 1:
            raise InputError(f"floor is {floor}; expected a small probability, such as 1e-7.")
        self.alpha, self.beta, self.floor = alpha, beta, floor

    def forward(self, s: Batch) -> Tensor:
        """(B,) the losses."""
        # The sum of log-probabilities may overflow; divided by the lowest one, at most -log 2, it does not. The bounds of 0.5 are
        # for a single class, whose loss 0 / 0 becomes 0.
        shares = s.logp / s.logp.detach().amin(-1, keepdim=True).clamp(max=-0.5)
        active = of_given(s, shares) / shares.sum(-1).clamp(min=0.5)
        # A quotient by minus infinity would be 0 for every label.
        active = torch.where((s.u.detach() == -torch.inf).any(-1), torch.inf, active)
        if self.floor is None:
            passive = 1 - of_given(s, s.p)
        else:
            likely = s.logp.clamp(min=math.log(self.floor)) - math.log(self.floor)
            passive = 1 - of_given(s, likely) / likely.sum(-1)
        return self.alpha * active + self.beta * passive


@final
class Poly1(Block):
    """The loss of :func:`poly_loss`."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        if epsilon < -1:
            raise InputError(f"epsilon is {epsilon}; below -1 the loss would reward wrong predictions.")
        self.epsilon = epsilon

    @property
    def direction(self) -> str:
        """By the sign of the coefficient."""
        return "negative" if self.epsilon > 0 else "positive"

    def forward(self, s: Batch) -> Tensor:
        """(B,) the losses."""
        return self.epsilon * (1 - of_given(s, s.p)) - of_given(s, s.logp)


@final
class ClipLogits(Block):
    """The logit term of :func:`logit_clip`; gradients pass through it."""

    def __init__(self, tau: float) -> None:
        super().__init__()
        if tau <= 0:
            raise InputError(f"tau is {tau}; expected a positive length.")
        self.tau = tau

    def forward(self, s: Batch) -> Tensor:
        """(B, C) the logit compensation."""
        u = full_precision(s.u)
        largest = u.detach().abs().amax(-1, keepdim=True).clamp(min=TINY)  # the square of 1e30 would overflow
        length = largest * torch.linalg.vector_norm(u / largest, dim=-1, keepdim=True)
        share = torch.where(length > self.tau, self.tau / length.clamp(min=self.tau), 1.0)
        return ((share - 1) * u).to(s.u.dtype)


@method(
    "loss", "mixed", "prior", "sample",
    equation="2",
    reference="Wang et al., Symmetric Cross Entropy for Robust Learning with Noisy Labels, ICCV 2019",
    record="loss",
    kind="weighting",
    limits="Not compensation: another loss. alpha = 1, beta = 0 is cross entropy; alpha = 0 is mean absolute error times -log_zero.",
    search=Space({"alpha": Real(0.01, 1.0, log=True), "beta": Real(0.1, 6.0, log=True)}),
    candidates=each(alpha=(0.1, 1.0, 0.01, 0.1, 0.5), beta=(1.0, 1.0, 1.0, 5.0, 0.3)),
)  # fmt: skip
def sce(*, alpha: float = 0.1, beta: float = 1.0, log_zero: float = -4.0) -> Compensated:
    r"""Symmetric cross entropy, a reshaped loss and not compensation: it adds the cross entropy with label and prediction exchanged.

    .. math:: l'_i = -\alpha \log p_{i,y_i} - \beta \sum_c p_{i,c} \log y_{i,c}, \qquad \log 0 := A

    For class numbers the second sum is :math:`-A (1 - p_{i,y_i})`.

    Args:
        alpha: :math:`\alpha`; the authors use 0.1 on CIFAR-10.
        beta: :math:`\beta`; the authors use 1.
        log_zero: :math:`A`; the authors' paper uses -4 in its definition and -6 in its experiments, their code log 1e-4.

    >>> sce()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(3.8575)
    """
    return Compensated(loss=Becomes(Symmetric(alpha, beta, log_zero)))


@method(
    "loss", "mixed", "prior", "sample",
    equation="2",
    reference="Ma et al., Normalized Loss Functions for Deep Learning with Noisy Labels, ICML 2020",
    record="loss",
    kind="weighting",
    limits="Not compensation: another loss. alpha = 0 is mean absolute error, which learns slowly with many classes.",
    search=Space({"alpha": Real(0.1, 10.0, log=True), "beta": Real(0.1, 10.0, log=True)}),
    candidates=each(alpha=(1.0, 1.0, 10.0, 10.0, 0.1), beta=(1.0, 10.0, 1.0, 0.1, 10.0)),
)  # fmt: skip
def nce_mae(*, alpha: float = 1.0, beta: float = 1.0) -> Compensated:
    r"""Normalized cross entropy with mean absolute error, a reshaped loss and not compensation.

    .. math:: l'_i = \alpha \frac{\log p_{i,y_i}}{\sum_c \log p_{i,c}} + \beta (1 - p_{i,y_i})

    Args:
        alpha: :math:`\alpha`; the authors use 1 on CIFAR-10 and 10 on CIFAR-100.
        beta: :math:`\beta`; the authors use 1.

    >>> nce_mae()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.3362)
    """
    return Compensated(loss=Becomes(ActivePassive(alpha, beta)))


@method(
    "loss", "mixed", "prior", "sample",
    equation="2",
    reference="Ye et al., Active Negative Loss: A Robust Framework for Learning with Noisy Labels, 2024 (NeurIPS 2023)",
    record="loss",
    kind="weighting",
    limits="Not compensation: another loss. The authors' l1 penalty on the model's weights is left to the optimizer.",
    search=Space({"alpha": Real(0.1, 10.0, log=True), "beta": Real(0.1, 10.0, log=True)}),
    candidates=each(alpha=(5.0, 1.0, 10.0, 5.0, 1.0), beta=(5.0, 1.0, 1.0, 1.0, 5.0)),
)  # fmt: skip
def anl(*, alpha: float = 5.0, beta: float = 5.0, floor: float = 1e-7) -> Compensated:
    r"""Active negative loss (ANL-CE), a reshaped loss and not compensation.

    .. math:: l'_i = \alpha \frac{\log p_{i,y_i}}{\sum_c \log p_{i,c}}
              + \beta \left(1 - \frac{A + \log p_{i,y_i}}{\sum_c (A + \log p_{i,c})}\right), \qquad A = -\log p_{\min}

    The second part replaces the mean absolute error of :func:`nce_mae`; its gradient is larger for samples that the model has
    learned. The authors add an l1 penalty on the weights of the model, which is left out here.

    Args:
        alpha: :math:`\alpha`; the authors use 5 on CIFAR-10 and 10 on CIFAR-100.
        beta: :math:`\beta`; the authors use 5 on CIFAR-10 and 1 on CIFAR-100.
        floor: :math:`p_{\min}`, the smallest probability.

    >>> anl()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(5.5492)
    """
    return Compensated(loss=Becomes(ActivePassive(alpha, beta, floor)))


@method(
    "loss", "negative", "prior", "sample",
    equation="2",
    reference="Leng et al., PolyLoss: A Polynomial Expansion Perspective of Classification Loss Functions, ICLR 2022",
    record="loss",
    kind="weighting",
    limits="Not compensation: another loss. epsilon = 0 is cross entropy; above it wrong labels count more, below it less.",
    search=Space({"epsilon": Real(-1.0, 6.0)}),
    candidates=each(epsilon=(1.0, -1.0, -0.5, 2.0, 5.0)),
)  # fmt: skip
def poly_loss(*, epsilon: float = 1.0) -> Compensated:
    r"""PolyLoss (Poly-1), a reshaped loss and not compensation: it changes the first coefficient of the series of cross entropy.

    .. math:: l'_i = -\log p_{i,y_i} + \epsilon (1 - p_{i,y_i})

    Its gradient is the gradient of cross entropy times the weight :math:`1 + \epsilon\, p_{i,y_i}`.

    Args:
        epsilon: :math:`\epsilon`, at least -1; the authors use 2 on ImageNet.

    >>> poly_loss()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(3.2638)
    """
    return Compensated(loss=Becomes(Poly1(epsilon)))


@method(
    "logit", "mixed", "prior", "sample",
    equation="4 with a term that follows the logits",
    reference="Wei et al., Mitigating Memorization of Noisy Labels by Clipping the Model Prediction, ICML 2023",
    record="loss",
    limits="A large tau is cross entropy. A small one bounds the loss from both sides, and confident models learn slowly.",
    search=Space({"tau": Real(0.5, 10.0, log=True)}),
    candidates=each(tau=(1.5, 1.0, 2.5, 4.0, 8.0)),
)  # fmt: skip
def logit_clip(*, tau: float = 1.5) -> Compensated:
    r"""LogitClip: logit vectors are cut to a maximum length, which bounds every loss.

    .. math:: \Delta u_i = \min\left(0,\; \frac{\tau}{\|u_i\|_2} - 1\right) u_i

    Unlike most compensation it is not constant in the gradient: the part that would lengthen the vector vanishes. The authors' code
    scales vectors longer than its `temp` to the length 1 / `temp`, a jump unless `temp` is 1; this follows their paper, where both
    lengths are :math:`\tau`. The loss is at least :math:`\log(1 + (C - 1) e^{-\tau \sqrt{C / (C - 1)}})` and at most
    :math:`\log C + \sqrt2\, \tau`.

    Args:
        tau: :math:`\tau`. The authors also try other norms; their default is the Euclidean one.

    >>> logit_clip()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.5341)
    """
    return Compensated(logit=ClipLogits(tau))
