"""Methods that weight or replace the loss, for comparison with compensation, and two that act on logits."""

from __future__ import annotations

import math
from typing import Literal, final

import torch
from torch import Tensor, nn

from compensate.core.batch import Batch, Value
from compensate.core.criterion import Compensated
from compensate.core.proximal import TINY
from compensate.core.stages import full_precision
from compensate.core.statistics import ClassMean
from compensate.core.tables import Sample
from compensate.errors import InputError, check, one_of
from compensate.methods.registry import Block, Formula, Real, Space, each, method
from compensate.terms.adversarial import Pull
from compensate.terms.schedules import Where, above

__all__ = [
    "anl", "focal", "gce", "logit_clip", "meta_weight", "nce_mae", "poly_loss", "reweight", "sce",
    "self_paced_logit", "self_paced_weights",
]  # fmt: skip

SelfPaced = Literal["hard", "linear", "logarithmic", "mixture"]


def of_given(s: Batch, p: Tensor) -> Tensor:
    """(B,) the entry of the given class in each row of `p`; the expected entry if the label is a distribution."""
    return p.gather(1, s.labels[:, None])[:, 0] if s.hard else (s.y * p).sum(-1)


def weighted(s: Batch, weight: Tensor) -> Tensor:
    r"""(B,) a weight on the loss as a loss term, :math:`\Delta l_i = (w_i - 1)\, l_i`."""
    return (weight - 1) * s.l


def replaced(s: Batch, losses: Tensor) -> Tensor:
    r"""(B,) another loss as a loss term, :math:`\Delta l_i = l'_i - l_i`."""
    return torch.where(s.valid, losses - s.l, 0.0)


def focal_weight(s: Batch, gamma: float, mean: Tensor | None) -> Tensor:
    """(B,) the weights of :func:`focal`; the mean predictions of the classes replace the sample's own, if given."""
    p = of_given(s, s.p if mean is None else mean.to(s.p.dtype))
    # Kept above zero, where the slope of a root is infinite.
    return (1 - p).clamp(min=torch.finfo(p.dtype).tiny) ** gamma


@method(
    "loss", "positive", "prior", "sample", equation="2", record="loss", kind="weighting",
    reference="Lin et al., Focal Loss for Dense Object Detection, ICCV 2017",
    limits="Not compensation: a weight. gamma = 0 is cross entropy. Favors hard samples, and wrong labels count more.",
    search=Space({"gamma": Real(0.0, 5.0)}), candidates=each(gamma=(2.0, 0.5, 1.0, 3.0, 5.0)),
)  # fmt: skip
def focal(
    *, num_classes: int | None = None, gamma: float = 2.0, per: Literal["sample", "category"] = "sample"
) -> Compensated:
    r"""The focal loss, a weight and not compensation: easy samples count less.

    .. math:: l'_i = (1 - p_{i,y_i})^\gamma\, l_i

    Args:
        num_classes: the number of classes, for `per="category"`.
        gamma: :math:`\gamma`.
        per: "category" replaces :math:`p_{i,y_i}` by its mean over the class in the previous epoch; it needs `end_epoch()`.

    >>> focal()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.9334)
    """
    one_of("per", per, "sample", "category")
    check(gamma >= 0, "at least 0 (0 is plain cross entropy)", gamma=gamma)
    if per == "category" and num_classes is None:
        raise InputError('per="category" keeps a mean for each class: give num_classes.')
    mean = ClassMean(num_classes, "all") if per == "category" and num_classes is not None else None
    weight = Formula(focal_weight, gamma=gamma, mean=mean, direction="positive", granularity=per)
    return Compensated(loss=Formula(weighted, weight=weight))


def gce_term(s: Batch, q: float, k: float) -> Tensor:
    """The loss term of :func:`gce`."""
    # The power of a tiny probability by its logarithm, which keeps the gradient finite.
    power = torch.exp(q * of_given(s, s.logp)) if s.hard else of_given(s, s.p) ** q
    return replaced(s, (1 - power.clamp(min=k**q if k else 0.0)) / q)


@method(
    "loss", "positive", "prior", "sample", equation="2", record="loss", kind="weighting",
    reference="Zhang and Sabuncu, Generalized Cross Entropy Loss for Training with Noisy Labels, NeurIPS 2018",
    limits="Not compensation: another loss. q to 0 is cross entropy, q = 1 mean absolute error, which learns slowly.",
    search=Space({"q": Real(0.1, 1.0)}), candidates=each(q=(0.7, 0.3, 0.5, 0.9, 1.0)),
)  # fmt: skip
def gce(*, q: float = 0.7, k: float = 0.0) -> Compensated:
    r"""Generalized cross entropy, a reshaped loss and not compensation: samples that fit badly count less.

    .. math:: l'_i = \frac{1 - p_{i,y_i}^q}{q}

    Its gradient is the gradient of cross entropy times the weight :math:`p_{i,y_i}^q`.

    Args:
        q: :math:`q` in (0, 1], between cross entropy (q to 0) and mean absolute error (q = 1).
        k: samples with a probability below `k` (the authors use 0.5) do not count, the truncated form; 0 for none.

    >>> gce()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.1545)
    """
    check(0 < q <= 1 and 0 <= k < 1, "q in (0, 1] and k in [0, 1)", q=q, k=k)
    return Compensated(loss=Formula(gce_term, q=q, k=k, direction="positive"))


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
    "loss", "positive", "meta", "sample", equation="2 with 12-14", record="loss", kind="weighting", needs=["clean"],
    reference="Shu et al., Meta-Weight-Net: Learning an Explicit Mapping for Sample Weighting, NeurIPS 2019",
    limits="Not compensation: a weight. meta_step needs an optimizer for the network, such as Adam with a step of 1e-3.",
)  # fmt: skip
def meta_weight(*, hidden: int = 100) -> Compensated:
    r"""Meta-Weight-Net, a weight and not compensation: a small network, learned on clean data, weights each loss.

    .. math:: l'_i = V(l_i; \Phi)\, l_i

    where :math:`V` has one hidden layer and ends in a sigmoid. Learn :math:`\Phi` by
    `meta_step(criterion, model, batch, clean, lr=..., optimizer=torch.optim.Adam(criterion.parameters(), 1e-3))`.

    Args:
        hidden: the number of hidden units.

    >>> print(meta_weight().taxonomy)
    loss · positive · meta · sample
    """
    return Compensated(loss=Formula(weighted, weight=WeightNet(hidden)))


@final
class LearnedWeights(Block):
    """The weights of :func:`reweight`, each used once; all are 1 without a meta step on the batch."""

    inference, granularity, direction = "meta", "sample", "mixed"

    def __init__(self, num_samples: int) -> None:
        super().__init__()
        self.table = Sample(num_samples, update="meta", penalty=None)

    def forward(self, s: Batch) -> Tensor:
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
    "loss", "mixed", "meta", "sample", equation="2 with 12-14", record="loss", kind="weighting", needs=["index", "clean"],
    reference="Ren et al., Learning to Reweight Examples for Robust Deep Learning, ICML 2018",
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
    return Compensated(loss=Formula(weighted, weight=LearnedWeights(num_samples)))


def growing(s: Batch, start: float, growth: float) -> Tensor:
    r"""A number that grows by a factor each epoch: :math:`\tau^t = \tau^0 \rho^t`."""
    return start * growth ** s.epoch.to(s.target.device)


def beyond_logits(s: Batch, least: float) -> Tensor:
    r"""A step longer than all logits of the batch: :math:`\max(\epsilon_0, 2 \max_i \|u_i\|)`."""
    u = s.u.detach()
    if not len(u):
        return u.new_tensor(least)
    # The square of a large logit may overflow; the square of a logit up to 1 does not.
    largest = u.abs().amax().clamp(min=1.0)
    beyond = 2 * largest * (u / largest).norm(dim=-1).max()
    return beyond.clamp(min=least, max=torch.finfo(u.dtype).max / 4)


@method(
    "logit", "positive", "adversarial", "sample", equation="44, 52", needs=["epochs"],
    reference="Yao and Wu, Compensation Learning, 2021, discussion of Eq. (52)",
    limits="A tau below every loss compensates all samples, and nothing is learned; one above every loss leaves cross entropy.",
)  # fmt: skip
def self_paced_logit(
    *, num_classes: int, tau: Value | None = None, growth: float = 1.1, eta: Value | None = None, least: float = 20.0
) -> Compensated:
    r"""Self-paced logit compensation: removes the loss of samples above a growing threshold.

    .. math:: L = \sum_{i: l_i \ge \tau^t} l(S(u_i + v_i), y_i) + \sum_{i: l_i < \tau^t} l_i, \qquad
              v_i = \eta (y_i - S(u_i)), \quad \tau^{t+1} > \tau^t, \quad \eta > 2 \max_i \|u_i\|

    where :math:`l_i` is the plain loss and :math:`t` counts epochs. A compensated loss near 0 has no gradient, as with a weight of 0;
    `least` ensures it for small logits.

    Args:
        tau: the threshold; by default :math:`\log C`, the loss of a uniform prediction, times `growth` to the power of the epoch.
        growth: the factor per epoch.
        eta, least: the step :math:`\eta`; by default twice the largest norm of the batch's logits, and at least `least`.

    >>> criterion = self_paced_logit(num_classes=3)
    >>> s = criterion.evaluate(torch.nn.Identity(), torch.tensor([[3.0, 0.8, 0.2], [2.0, 0.0, 0.0]]), torch.tensor([1, 0]))
    >>> s.l.abs()
    tensor([0.0000, 0.2395])
    """
    check(tau is not None or (num_classes > 1 and growth > 1), "two or more classes, a growth above 1", growth=growth)
    tau = Formula(growing, start=math.log(num_classes), growth=growth) if tau is None else tau
    eta = Formula(beyond_logits, least=least) if eta is None else eta
    return Compensated(logit=Where(above(tau), Pull(eta)))


def self_paced_weights(losses: Tensor, lam: float, kind: SelfPaced = "hard", *, easy: float | None = None) -> Tensor:
    r"""The weights of self-paced learning, for comparison with :func:`self_paced_logit`: they multiply losses.

    .. math:: \text{hard}\; [l \le \lambda], \quad
              \text{linear}\; \max(0, 1 - l/\lambda), \quad
              \text{logarithmic}\; \frac{\log(l + \zeta)}{\log \zeta}\,[l < \lambda],\; \zeta = 1 - \lambda, \quad
              \text{mixture}\; \min(1, \max(0, \zeta/l - \zeta/\lambda)),\; \zeta = \frac{\lambda \lambda'}{\lambda - \lambda'}

    where :math:`\lambda` is the age of the learner: an older learner includes harder samples.

    Args:
        losses, lam, kind: as above; `lam` is below 1 for "logarithmic".
        easy: :math:`\lambda' < \lambda`, for "mixture": losses up to it count fully; half of `lam` if not given.

    >>> losses = torch.tensor([0.1, 0.4, 0.8])
    >>> self_paced_weights(losses, 0.5), self_paced_weights(losses, 0.5, "linear")
    (tensor([1., 1., 0.]), tensor([0.8000, 0.2000, 0.0000]))

    References: Yao and Wu, Compensation Learning, 2021, Eq. (51); Jiang et al., Easy Samples First, ACM MM 2014.
    """
    one_of("kind", kind, "hard", "linear", "logarithmic", "mixture")
    check(lam > 0, "a positive threshold", lam=lam)
    if kind == "hard":
        return (losses <= lam).to(losses.dtype)
    if kind == "linear":
        return (1 - losses / lam).clamp(min=0)
    if kind == "logarithmic":
        check(lam < 1, "less than 1 for the logarithmic kind: scale the losses down", lam=lam)
        return torch.where(losses < lam, torch.log(losses + 1 - lam) / math.log(1 - lam), 0.0)
    easy = lam / 2 if easy is None else easy
    check(0 < easy < lam, f"a threshold between 0 and lam = {lam}", easy=easy)
    zeta = lam * easy / (lam - easy)
    return (zeta / losses - zeta / lam).clamp(0, 1)


def sce_term(s: Batch, alpha: float, beta: float, log_zero: float) -> Tensor:
    """The loss term of :func:`sce`."""
    reverse = -(s.p * s.y.clamp(min=math.exp(log_zero)).log()).sum(-1)
    return replaced(s, beta * reverse - alpha * of_given(s, s.logp))


@method(
    "loss", "mixed", "prior", "sample", equation="2", record="loss", kind="weighting",
    reference="Wang et al., Symmetric Cross Entropy for Robust Learning with Noisy Labels, ICCV 2019",
    limits="Not compensation: another loss. alpha = 1, beta = 0 is cross entropy; alpha = 0 is mean absolute error times -log_zero.",
    search=Space({"alpha": Real(0.01, 1.0, log=True), "beta": Real(0.1, 6.0, log=True)}),
    candidates=each(alpha=(0.1, 1.0, 0.01, 0.1, 0.5), beta=(1.0, 1.0, 1.0, 5.0, 0.3)),
)  # fmt: skip
def sce(*, alpha: float = 0.1, beta: float = 1.0, log_zero: float = -4.0) -> Compensated:
    r"""Symmetric cross entropy, a reshaped loss and not compensation: it adds the cross entropy with label and prediction exchanged.

    .. math:: l'_i = -\alpha \log p_{i,y_i} - \beta \sum_c p_{i,c} \log y_{i,c}, \qquad \log 0 := A

    For class numbers the second sum is :math:`-A (1 - p_{i,y_i})`.

    Args:
        alpha, beta: the authors use 0.1 on CIFAR-10 and 1.
        log_zero: :math:`A`; the authors' paper uses -4 in its definition and -6 in its experiments, their code log 1e-4.

    >>> sce()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(3.8575)
    """
    check(alpha >= 0 and beta >= 0, "weights of at least 0", alpha=alpha, beta=beta)
    check(log_zero < 0, "a negative number for the logarithm of zero, such as -4", log_zero=log_zero)
    return Compensated(loss=Formula(sce_term, alpha=alpha, beta=beta, log_zero=log_zero))


def active_passive_term(s: Batch, alpha: float, beta: float, floor: float | None) -> Tensor:
    """The loss term of :func:`nce_mae`, whose floor is None, and of :func:`anl`."""
    # The sum of log-probabilities may overflow; divided by the lowest one, at most -log 2, it does not. The bounds of 0.5 are
    # for a single class, whose loss 0 / 0 becomes 0.
    shares = s.logp / s.logp.detach().amin(-1, keepdim=True).clamp(max=-0.5)
    active = of_given(s, shares) / shares.sum(-1).clamp(min=0.5)
    # A quotient by minus infinity would be 0 for every label.
    active = torch.where((s.u.detach() == -torch.inf).any(-1), torch.inf, active)
    if floor is None:
        passive = 1 - of_given(s, s.p)
    else:
        likely = s.logp.clamp(min=math.log(floor)) - math.log(floor)
        passive = 1 - of_given(s, likely) / likely.sum(-1)
    return replaced(s, alpha * active + beta * passive)


@method(
    "loss", "mixed", "prior", "sample", equation="2", record="loss", kind="weighting",
    reference="Ma et al., Normalized Loss Functions for Deep Learning with Noisy Labels, ICML 2020",
    limits="Not compensation: another loss. alpha = 0 is mean absolute error, which learns slowly with many classes.",
    search=Space({"alpha": Real(0.1, 10.0, log=True), "beta": Real(0.1, 10.0, log=True)}),
    candidates=each(alpha=(1.0, 1.0, 10.0, 10.0, 0.1), beta=(1.0, 10.0, 1.0, 0.1, 10.0)),
)  # fmt: skip
def nce_mae(*, alpha: float = 1.0, beta: float = 1.0) -> Compensated:
    r"""Normalized cross entropy with mean absolute error, a reshaped loss and not compensation.

    .. math:: l'_i = \alpha \frac{\log p_{i,y_i}}{\sum_c \log p_{i,c}} + \beta (1 - p_{i,y_i})

    Args:
        alpha, beta: the authors use 1 on CIFAR-10 (CIFAR-100: 10) and 1.

    >>> nce_mae()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.3362)
    """
    check(alpha >= 0 and beta >= 0, "weights of at least 0", alpha=alpha, beta=beta)
    return Compensated(loss=Formula(active_passive_term, alpha=alpha, beta=beta, floor=None))


@method(
    "loss", "mixed", "prior", "sample", equation="2", record="loss", kind="weighting",
    reference="Ye et al., Active Negative Loss: A Robust Framework for Learning with Noisy Labels, 2024 (NeurIPS 2023)",
    limits="Not compensation: another loss. The authors' l1 penalty on the model's weights is left to the optimizer.",
    search=Space({"alpha": Real(0.1, 10.0, log=True), "beta": Real(0.1, 10.0, log=True)}),
    candidates=each(alpha=(5.0, 1.0, 10.0, 5.0, 1.0), beta=(5.0, 1.0, 1.0, 1.0, 5.0)),
)  # fmt: skip
def anl(*, alpha: float = 5.0, beta: float = 5.0, floor: float = 1e-7) -> Compensated:
    r"""Active negative loss (ANL-CE), a reshaped loss and not compensation.

    .. math:: l'_i = \alpha \frac{\log p_{i,y_i}}{\sum_c \log p_{i,c}}
              + \beta \left(1 - \frac{A + \log p_{i,y_i}}{\sum_c (A + \log p_{i,c})}\right), \qquad A = -\log p_{\min}

    The second part replaces the mean absolute error of :func:`nce_mae`; its gradient is larger for samples that the model has learned.

    Args:
        alpha, beta: the authors use 5 and 5 on CIFAR-10, 10 and 1 on CIFAR-100.
        floor: :math:`p_{\min}`, the smallest probability.

    >>> anl()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(5.5492)
    """
    check(alpha >= 0 and beta >= 0, "weights of at least 0", alpha=alpha, beta=beta)
    check(0 < floor < 1, "a small probability, such as 1e-7", floor=floor)
    return Compensated(loss=Formula(active_passive_term, alpha=alpha, beta=beta, floor=floor))


def poly_term(s: Batch, epsilon: float) -> Tensor:
    """The loss term of :func:`poly_loss`."""
    return replaced(s, epsilon * (1 - of_given(s, s.p)) - of_given(s, s.logp))


@method(
    "loss", "negative", "prior", "sample", equation="2", record="loss", kind="weighting",
    reference="Leng et al., PolyLoss: A Polynomial Expansion Perspective of Classification Loss Functions, ICLR 2022",
    limits="Not compensation: another loss. epsilon = 0 is cross entropy; above it wrong labels count more, below it less.",
    search=Space({"epsilon": Real(-1.0, 6.0)}), candidates=each(epsilon=(1.0, -1.0, -0.5, 2.0, 5.0)),
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
    check(epsilon >= -1, "at least -1, below which the loss would reward wrong predictions", epsilon=epsilon)
    return Compensated(loss=Formula(poly_term, epsilon=epsilon, direction="negative" if epsilon > 0 else "positive"))


def clip_term(s: Batch, tau: float) -> Tensor:
    """The logit term of :func:`logit_clip`; gradients pass through it."""
    u = full_precision(s.u)
    largest = u.detach().abs().amax(-1, keepdim=True).clamp(min=TINY)  # the square of 1e30 would overflow
    length = largest * torch.linalg.vector_norm(u / largest, dim=-1, keepdim=True)
    share = torch.where(length > tau, tau / length.clamp(min=tau), 1.0)
    return ((share - 1) * u).to(s.u.dtype)


@method(
    "logit", "mixed", "prior", "sample", equation="4 with a term that follows the logits", record="loss",
    reference="Wei et al., Mitigating Memorization of Noisy Labels by Clipping the Model Prediction, ICML 2023",
    limits="A large tau is cross entropy. A small one bounds the loss from both sides, and confident models learn slowly.",
    search=Space({"tau": Real(0.5, 10.0, log=True)}), candidates=each(tau=(1.5, 1.0, 2.5, 4.0, 8.0)),
)  # fmt: skip
def logit_clip(*, tau: float = 1.5) -> Compensated:
    r"""LogitClip: logit vectors are cut to a maximum length, which bounds every loss.

    .. math:: \Delta u_i = \min\left(0,\; \frac{\tau}{\|u_i\|_2} - 1\right) u_i

    It is not constant in the gradient: the part that would lengthen the vector vanishes. The loss is at least
    :math:`\log(1 + (C - 1) e^{-\tau \sqrt{C / (C - 1)}})` and at most :math:`\log C + \sqrt2\, \tau`. The authors' code scales long vectors
    to another length than their paper, which is followed here.

    Args:
        tau: :math:`\tau`. The authors also try other norms; their default is the Euclidean one.

    >>> logit_clip()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.5341)
    """
    check(tau > 0, "a positive length", tau=tau)
    return Compensated(logit=Formula(clip_term, tau=tau))
