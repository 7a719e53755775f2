"""Methods that compensate logits by the sizes and covariances of the classes, and angular margins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, final

import torch
from torch import Tensor

from compensate.core.batch import Batch, Value, at
from compensate.core.criterion import BinaryBase, Compensated, Weights
from compensate.core.layout import is_eager_cpu, present_rows
from compensate.core.proximal import AtLeast
from compensate.core.statistics import Statistic
from compensate.core.tables import Category, Group
from compensate.core.validation import checked_features
from compensate.errors import InputError, check, one_of
from compensate.methods.registry import Block, Real, Space, method
from compensate.terms import classes
from compensate.terms.classes import CosineHead, Counts, Guard, Increasing
from compensate.terms.schedules import Ramp

__all__ = [
    "CosineHead", "arcface", "balanced_arcface", "isda", "ldam", "logit_adjustment", "meta_logit_adjustment",
    "metasaug", "posthoc_logit_adjustment",
]  # fmt: skip

Kind = Literal["full", "diagonal"]


@method(
    "logit", "mixed", "prior", "corpus", equation="28, 29",
    reference="Menon et al., Long-Tail Learning via Logit Adjustment, ICLR 2021",
    limits="Equal class sizes or tau = 0 leave cross entropy. Predict with the plain logits afterwards, not the adjusted ones.",
    search=Space({"tau": Real(0.0, 2.0)}),
)  # fmt: skip
def logit_adjustment(
    *,
    class_counts: Counts,
    tau: Value = 1.0,
    g: Increasing = torch.log,
    num_samples: int | None = None,
    base: BinaryBase = None,
) -> Compensated:
    r"""Logit adjustment: in training, each logit gets a head start by the size of its class.

    .. math:: L = -\frac1B \sum_i \log \frac{e^{u_{i,y_i} + \tau g(\pi_{y_i})}}{\sum_c e^{u_{i,c} + \tau g(\pi_c)}}

    where :math:`\pi_c` is the share of class :math:`c` and :math:`g` the logarithm, or any increasing function. With several labels per
    sample the logit of each gets :math:`\tau (g(\pi_c) - g(1 - \pi_c))`, the log odds of the label.

    Args:
        tau: the strength :math:`\tau`, a number or a callable of the batch.
        g: an increasing function of the shares, (C,) to (C,).
        num_samples: the size of the training set, for `base="bce"`: a sample with several labels counts in several classes.

    >>> criterion = logit_adjustment(class_counts=[900, 90, 10])
    >>> criterion(torch.zeros(1, 3), torch.tensor([2]))        # -log 0.01, by the share of the class
    tensor(4.6052)
    """
    if base == "bce" and num_samples is None:
        raise InputError(
            'base="bce" needs num_samples=...: the share of a label is its count over the number of samples.'
        )
    total = num_samples if base == "bce" else None
    return Compensated(logit=classes.Adjust(class_counts, tau, g, total=total), base=base)


def posthoc_logit_adjustment(
    logits: Tensor, *, class_counts: Counts, tau: float = 1.0, g: Increasing = torch.log
) -> Tensor:
    r"""(B, C) the logits of a plainly trained model, adjusted to equally frequent classes.

    .. math:: u'_{i,c} = u_{i,c} - \tau g(\pi_c)

    >>> posthoc_logit_adjustment(torch.tensor([[1.0, 0.0]]), class_counts=[90, 10]).argmax(-1)
    tensor([1])

    Reference: Menon et al., Long-Tail Learning via Logit Adjustment, ICLR 2021.
    """
    return logits - tau * classes.increasing(g, classes.proportions(class_counts)).to(logits)


@method(
    "logit", "mixed", "meta", "category", equation="a-1, a-2, a-3", needs=["clean"],
    reference="Yao and Wu, Compensation Learning, 2021, Appendix A",
    limits="Without meta steps tau stays where it starts and this is logit adjustment. Needs a balanced, clean set.",
    search=Space({"lr": Real(0.01, 1.0, log=True)}),
)  # fmt: skip
def meta_logit_adjustment(
    *, class_counts: Counts, tau: float = 1.0, lr: float = 0.1, nonnegative: bool = False, g: Increasing = torch.log
) -> Compensated:
    r"""Meta logit adjustment: each class has its own strength, learned on clean data.

    .. math:: L(\tau) = -\sum_i \log \frac{e^{u_{i,y_i} + \tau_{y_i} \log \pi_{y_i}}}
              {\sum_c e^{u_{i,c} + \tau_{y_i} \log \pi_c}}, \qquad
              \tau^* = \arg\min_\tau \sum_{j \in \Omega} l(S(f(x_j; \Theta^*(\tau))), y_j)

    where :math:`\Omega` is the clean set. The paper's Eq. a-3 minimizes minus the sum, an error of sign; this is the corrected form.

    Args:
        tau: the initial :math:`\tau_c`.
        lr: the step of :math:`\tau` in :func:`compensate.meta_step`.
        nonnegative: keep all :math:`\tau_c \ge 0`.
        g: an increasing function of the shares that replaces the logarithm.

    >>> print(meta_logit_adjustment(class_counts=[900, 90, 10]).taxonomy)
    logit · mixed · meta · category
    """
    bound = AtLeast(0.0) if nonnegative else None
    strength = Category(len(class_counts), 1, update="meta", init=tau, lr=lr, bound=bound)
    return Compensated(logit=classes.Adjust(class_counts, strength, g))


@method(
    "logit", "negative", "prior", "category", equation="Cao et al., Eqs. 12-13", needs=["steps"],
    reference="Cao et al., Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss, NeurIPS 2019",
    limits="max_margin = 0 and defer=None leave cross entropy. The reference's scale of 30 is for a cosine head; it hurts a linear one.",
    search=Space({"max_margin": Real(0.05, 2.0, log=True)}),
)  # fmt: skip
def ldam(
    *,
    class_counts: Counts,
    max_margin: float = 0.5,
    scale: float = 1.0,
    defer: float | None = 0.8,
    beta: float = 0.9999,
    weight: Weights | None = None,
) -> Compensated:
    r"""Label-distribution-aware margins: rare classes must win by more; late in training they also weigh more.

    .. math:: \Delta u_{i,y_i} = -s\, m_{y_i}, \qquad m_c = m_{\max} \left( \frac{\min_k n_k}{n_c} \right)^{1/4}

    where :math:`n_c` counts the training samples of class :math:`c` and :math:`s` is the scale of the logits. For the reference's loss
    give the model a :class:`CosineHead` and both a scale of 30; the default is for ordinary heads. The second stage, deferred
    re-weighting by the effective number of samples, is weighting, not compensation.

    Args:
        max_margin: :math:`m_{\max}`, the margin of the smallest class, in units of `scale`.
        scale: :math:`s` of the head; 1 for an ordinary linear head, whose logits have no fixed scale.
        defer: the share of the training after which weights begin, which needs `criterion.start(total_steps)`; None for never.
        beta: the parameter of the effective number of samples.
        weight: (C,) class weights of the whole training, as in :class:`torch.nn.CrossEntropyLoss`; then `defer` must be None.

    >>> criterion = ldam(class_counts=[160, 10], defer=None)
    >>> criterion.evaluate(torch.nn.Identity(), torch.zeros(2, 2), torch.tensor([0, 1])).du
    tensor([[-0.2500, -0.0000],
            [-0.0000, -0.5000]])
    """
    check(max_margin >= 0, "at least 0", max_margin=max_margin)
    counts = classes.checked_counts(class_counts)
    margin = classes.LogitMargin(max_margin * (counts.min() / counts) ** 0.25, scale)
    if defer is None:
        return Compensated(logit=margin, weight=weight)
    if weight is not None:
        raise InputError(
            f"weight was given and defer={defer}, after which other weights hold; leave out weight, or write defer=None."
        )
    criterion = Compensated(logit=margin, weight=torch.ones_like(counts))
    criterion.add_module("deferred", classes.DeferredWeights(classes.effective_weights(counts, beta), defer))
    return criterion


@method(
    "logit", "negative", "tuning", "corpus", equation="40",
    reference="Deng et al., ArcFace: Additive Angular Margin Loss for Deep Face Recognition, CVPR 2019",
    limits="Logits must be cosines times the scale: give the model a CosineHead. margin = 0 leaves cross entropy.",
)  # fmt: skip
def arcface(*, margin: Value = 0.5, scale: float = 64.0, guard: Guard = "linear") -> Compensated:
    r"""ArcFace: a margin is added to the angle between a sample and its class.

    .. math:: L = -\frac1B \sum_i \log \frac{e^{s \cos(\theta_{i,y_i} + m)}}
              {e^{s \cos(\theta_{i,y_i} + m)} + \sum_{c \ne y_i} e^{s \cos\theta_{i,c}}}

    where :math:`\theta_{i,c}` is the angle between features and the weight of a class, and the logits are
    :math:`u = s \cos\theta`. The paper's Eq. 40 leaves out the logarithm.

    Args:
        margin: :math:`m` in radians, a number or a callable of the batch.
        scale: :math:`s` of the model's :class:`CosineHead`.
        guard: the treatment of :math:`\theta + m > \pi`: "linear" and "easy" are the reference's two, "none" is the bare formula.

    >>> criterion = arcface(scale=2.0)
    >>> criterion(2.0 * torch.tensor([[1.0, 0.0]]), torch.tensor([0]))     # cos 0.5 = 0.8776
    tensor(0.1595)
    """
    return Compensated(logit=classes.AngularMargin(margin, scale, guard))


@method(
    "logit", "negative", "meta", "group", equation="41, 42", needs=["clean"],
    reference="Wang et al., Meta Balanced Network for Fair Face Recognition, IEEE TPAMI 2021",
    limits="Without meta steps all margins stay equal and this is arcface. Needs a clean set balanced over the groups.",
    example=lambda sizes: {"class_groups": [c % 2 for c in range(sizes["num_classes"])]},
)  # fmt: skip
def balanced_arcface(
    *,
    class_groups: Sequence[int] | Tensor | None = None,
    num_groups: int | None = None,
    margin: float = 0.5,
    scale: float = 64.0,
    lr: float = 0.1,
    guard: Guard = "linear",
) -> Compensated:
    r"""ArcFace with a margin for each group, learned on clean data to treat groups equally.

    .. math:: \Delta u_{i,y_i} = s \cos(\theta_{i,y_i} + m_{g_i}) - s \cos\theta_{i,y_i}, \qquad
              \{m_g\}^* = \arg\min \sum_{j \in \Omega} l(S(f(x_j; \Theta^*(\{m_g\}))), y_j)

    where :math:`g_i` is the group of sample :math:`i`, such as the skin tone of a face. Margins stay at least 0. The reference minimizes
    the skewness between groups instead of the paper's Eq. 42.

    Args:
        class_groups: (C,) the group of each class; or pass the group of each sample: `criterion(logits, target, group=group)`.
        num_groups: the number of groups, if `class_groups` does not tell.
        margin: the initial :math:`m_g`, in radians.
        lr: the step of the margins in :func:`compensate.meta_step`.
        scale, guard: as in :func:`arcface`.

    >>> print(balanced_arcface(num_groups=4).taxonomy)
    logit · negative · meta · group
    """
    groups = None if class_groups is None else torch.as_tensor(class_groups).long()
    if num_groups is None:
        if groups is None:
            raise InputError(
                "Neither class_groups nor num_groups is given; expected the group of each class, or a number."
            )
        num_groups = int(groups.max()) + 1
    check(0 <= margin <= math.pi / 2, "an angle from 0 to pi/2, in radians", margin=margin)
    table = Group(num_groups, update="meta", init=margin, lr=lr, bound=AtLeast(0.0))
    return Compensated(logit=classes.AngularMargin(classes.GroupOfClass(table, groups), scale, guard))


@final
class ClassCovariance(Statistic):
    r"""The covariance of each class's features over all batches, from three sums.

    .. math:: \Sigma_c = \frac1{n_c} \sum_j z_j z_j^\top - \mu_c \mu_c^\top, \qquad \mu_c = \frac1{n_c} \sum_j z_j

    where :math:`j` runs over the samples of class :math:`c`, including the current batch. "full" holds C x D x D numbers, "diagonal"
    holds the C x D variances.
    """

    granularity, reader = "category", "a covariance of features"
    observes = "logits"  # the current batch counts

    def __init__(self, num_classes: int, feature_dim: int, kind: Kind = "full") -> None:
        super().__init__()
        one_of("covariance", kind, "full", "diagonal")
        self.kind: Kind = kind
        self.num_classes = num_classes
        shape = (feature_dim, feature_dim) if kind == "full" else (feature_dim,)
        self.count = self.track("count", torch.zeros(num_classes), merge="sum")
        self.total = self.track("total", torch.zeros(num_classes, feature_dim), merge="sum")
        self.second = self.track("second", torch.zeros(num_classes, *shape), merge="sum")

    def check(self, s: Batch) -> None:
        super().check(s)
        checked_features(s, self.total.shape[-1])

    def moved_rows(self, s: Batch) -> Tensor:
        """The classes of the batch."""
        return present_rows(s.labels, len(self.count))[0]

    def observe(self, s: Batch) -> None:
        z, labels = s.z.detach().to(self.total.dtype), s.labels
        z = z if s.complete else torch.where(s.valid[:, None], z, 0.0)
        self.count.index_add_(0, labels, s.valid.to(z.dtype))
        self.total.index_add_(0, labels, z)
        if self.kind == "diagonal":
            self.second.index_add_(0, labels, z.square())
        elif is_eager_cpu(labels):  # one product per class: the outer products of a batch are B x D x D
            for c in labels.unique().tolist():
                mine = z[labels == c]
                self.second[c].addmm_(mine.T, mine)
        else:
            self.second.index_add_(0, labels, z[:, :, None] * z[:, None, :])

    def of(self, c: Tensor) -> Tensor:
        """(K, D, D) the covariances of some classes; (K, D) variances if diagonal."""
        n = self.count[c].clamp(min=1)[..., None]
        mean = self.total[c] / n
        if self.kind == "diagonal":
            return (self.second[c] / n - mean.square()).clamp(min=0)
        return self.second[c] / n[..., None] - mean[..., :, None] * mean[..., None, :]


def spread(w: Tensor, k: Tensor, sigma: Tensor) -> Tensor:
    r"""(K, C) quadratic forms :math:`(w_c - w_k)^\top \Sigma_k (w_c - w_k)` of the weights (C, D) of all classes, for some classes (K,).

    They are expanded to avoid the differences of weights. The covariances are (K, D, D), or variances (K, D).
    """
    own = w[k]
    if sigma.ndim == 3:
        along = w @ sigma
        mine = torch.einsum("kd,kde->ke", own, sigma)
        form = (along * w).sum(-1) - torch.einsum("kcd,kd->kc", along, own) - mine @ w.T
        form = form + (mine * own).sum(-1, keepdim=True)
    else:
        form = sigma @ w.square().T - 2 * (sigma * own) @ w.T + (sigma * own.square()).sum(-1, keepdim=True)
    return form.masked_fill(torch.arange(len(w), device=w.device) == k[:, None], 0.0)


@final
class SemanticAugmentation(Block):
    """The logit term of :func:`isda`, and of :func:`metasaug` with an offset of the covariance; negative values are set to zero."""

    direction, granularity = "negative", "category"

    def __init__(
        self, covariance: ClassCovariance, lam: Value, *, offset: Category | None = None, through_head: bool = True
    ) -> None:
        super().__init__()
        check(callable(lam) or lam >= 0, "at least 0", lam=lam)
        self.covariance, self.lam, self.offset, self.through_head = covariance, lam, offset, through_head
        self.inference = "prior" if offset is None else offset.inference

    def forward(self, s: Batch) -> Tensor:
        w = getattr(s.head, "weight", None)
        if isinstance(w, Tensor) and s.places.dense and w[0, 0].numel() == 1:  # of a 1 x 1 convolution
            w = w.flatten(1)
        expected = (s.u.shape[-1], self.covariance.total.shape[-1])
        if not isinstance(w, Tensor) or tuple(w.shape) != expected:
            got = tuple(w.shape) if isinstance(w, Tensor) else "none"
            raise InputError(
                f"the weight of the model's head has shape {got}; expected {expected}, classes by features. Make model.head "
                "the nn.Linear that gives the logits, and check num_classes and feature_dim."
            )
        if not len(s.labels):
            return torch.zeros_like(s.u)
        present, which = present_rows(s.labels, len(w))
        sigma = self.covariance.of(present).to(w.dtype)
        if self.offset is not None and self.offset.update == "meta" and not s.meta:
            sigma = sigma + self.offset.gather(present).detach().to(s.u.dtype)
        elif self.offset is not None:
            # Samples of one class share their offset: take the row of any of them.
            first = torch.zeros_like(present).scatter_(0, which, torch.arange(len(which), device=which.device))
            sigma = sigma + self.offset(s)[first].to(s.u.dtype)
        forms = spread(w if self.through_head else w.detach(), present, sigma)
        return at(self.lam, s) / 2 * forms.clamp(min=0)[which] * s.valid[:, None]


@final
class ServesOnce(Statistic):
    """Sets a table back to zero after each training step: the result of a meta step serves one step."""

    def __init__(self, table: Category) -> None:
        super().__init__()
        self.table = table

    def observe(self, s: Batch) -> None:
        self.table.weight.zero_()


@method(
    "logit", "negative", "prior", "category", equation="36, 37, 38", needs=["model", "features", "steps"],
    reference="Wang et al., Implicit Semantic Data Augmentation for Deep Networks, NeurIPS 2019",
    limits='lambda = 0 leaves cross entropy. Full covariances take C x D x D numbers; use covariance="diagonal" for many classes.',
    search=Space({"lam": Real(0.05, 5.0, log=True)}),
)  # fmt: skip
def isda(
    *, num_classes: int, feature_dim: int, lam: Value = None, covariance: Kind = "full", through_head: bool = True
) -> Compensated:
    r"""Implicit semantic data augmentation: infinitely many features drawn around each sample, in closed form.

    .. math:: L = -\frac1B \sum_i \log \frac{e^{u_{i,y_i}}}
              {\sum_c e^{u_{i,c} + \frac\lambda2 (w_c - w_{y_i})^\top \Sigma_{y_i} (w_c - w_{y_i})}}

    where :math:`w_c` are the weights of the head and :math:`\Sigma_c` is the covariance of the features of class :math:`c`, over
    all batches. The paper's Eq. 36 leaves out the logarithm. Every loss is raised.

    It does not help against skewed classes: the covariance of a class with few samples is poor. On held-out skewed digits (three seeds,
    `python -m experiments choices`) the mean accuracy of the classes is 0.880 with the default and 0.878 with cross entropy.

    Args:
        lam: the strength :math:`\lambda`; by default it rises from 0 to 0.5 with the training, which needs `criterion.start(total_steps)`.
        covariance: "full", or "diagonal", which needs much less memory and time (the reference's choice for ImageNet).
        through_head: whether the gradient also runs through :math:`w`, as in the reference's code.

    >>> isda(num_classes=10, feature_dim=64, covariance="diagonal").nbytes
    5160
    """
    observed = ClassCovariance(num_classes, feature_dim, covariance)
    strength = Ramp(0.0, 0.5) if lam is None else lam
    return Compensated(logit=SemanticAugmentation(observed, strength, through_head=through_head))


@method(
    "logit", "negative", "meta", "category", equation="39", needs=["model", "features", "steps", "clean"],
    reference="Li et al., MetaSAug: Meta Semantic Augmentation for Long-Tailed Visual Recognition, CVPR 2021",
    limits="Without meta steps this is ISDA. A meta step takes the memory of a batch of covariances: B x D x D, or B x D diagonal.",
)  # fmt: skip
def metasaug(
    *,
    num_classes: int,
    feature_dim: int,
    class_counts: Counts | None = None,
    lam: Value | None = None,
    lr: float = 0.1,
    covariance: Kind = "full",
    keep: bool = False,
    beta: float = 0.9999,
    through_head: bool = True,
    weight: Weights | None = None,
) -> Compensated:
    r"""Meta semantic augmentation: ISDA whose covariances take a step that helps on clean data.

    .. math:: \Sigma^* = \arg\min_\Sigma \sum_{j \in \Omega} l(S(f(x_j; \Theta^*(\Sigma))), y_j)

    where :math:`\Omega` is a clean, balanced set. :math:`\Sigma` is the observed covariance plus an offset; a meta step moves
    the offset, which serves one training step and starts at zero again. With an offset a quadratic form in :math:`\Sigma` may be
    negative; it counts as zero here, and no loss is lowered. The published code keeps it, and differs by about 1e-5.

    Args:
        class_counts: (C,) the number of training samples of each class; if given, losses are weighted by their effective number.
        lam: the strength :math:`\lambda`; by default it rises from 0 to 0.25 in proportion to the training done.
        lr: the step of the offset in :func:`compensate.meta_step`.
        keep: whether offsets add up over the steps instead of serving once.
        beta: the parameter of the effective number of samples.
        covariance, through_head: as in :func:`isda`.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`, instead of the weights by `class_counts`.

    >>> print(metasaug(num_classes=10, feature_dim=64).taxonomy)
    logit · negative · meta · category
    """
    observed = ClassCovariance(num_classes, feature_dim, covariance)
    offset = Category(num_classes, *observed.second.shape[1:], update="meta", lr=lr)
    strength = Ramp(0.0, 0.25) if lam is None else lam
    if weight is None and class_counts is not None:
        weight = classes.effective_weights(class_counts, beta)
    term = SemanticAugmentation(observed, strength, offset=offset, through_head=through_head)
    criterion = Compensated(logit=term, weight=weight)
    if not keep:
        criterion.add_module("forget", ServesOnce(offset))
    return criterion
