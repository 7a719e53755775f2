"""Methods that compensate logits as if features were augmented."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, final

import torch
from torch import Tensor, nn

from compensate.core.batch import Batch, Value, at
from compensate.core.criterion import Compensated, Weights
from compensate.core.layout import present_rows
from compensate.core.statistics import Statistic, recorded
from compensate.core.tables import Category
from compensate.core.validation import checked_features, is_eager_cpu
from compensate.errors import InputError
from compensate.methods.registry import Real, Space, each, method
from compensate.terms.classes import Counts, effective_weights
from compensate.terms.prior import Toward
from compensate.terms.schedules import Ramp
from compensate.terms.views import DEFAULT, ExtremeView, OtherView, RandomMix, Views

__all__ = [
    "augmix",
    "isda",
    "metasaug",
    "view_consistency",
    "worst_of_k",
]

CovarianceKind = Literal["full", "diagonal"]


@final
class ClassCovariance(Statistic):
    r"""The covariance of each class's features over all batches so far, from three sums.

    .. math:: \Sigma_c = \frac1{n_c} \sum_j z_j z_j^\top - \mu_c \mu_c^\top, \qquad \mu_c = \frac1{n_c} \sum_j z_j

    where :math:`j` runs over the samples of class :math:`c`. The present batch counts before the terms look at it. Sums
    merge over processes by addition; the difference loses digits only if features are far from zero compared with
    their spread.

    Args:
        num_classes: C.
        feature_dim: D.
        kind: "full" holds C x D x D numbers, "diagonal" C x D, the variances.

    Reference: Wang et al., Implicit Semantic Data Augmentation for Deep Networks, NeurIPS 2019.
    """

    granularity, reader = "category", "a covariance of features"
    observes = "logits"  # the present batch counts

    def __init__(self, num_classes: int, feature_dim: int, kind: CovarianceKind = "full") -> None:
        super().__init__()
        if kind not in ("full", "diagonal"):
            raise InputError(f'covariance is "{kind}"; expected "full" or "diagonal".')
        self.kind: CovarianceKind = kind
        self.num_classes = num_classes
        shape = (feature_dim, feature_dim) if kind == "full" else (feature_dim,)
        self.track("count", torch.zeros(num_classes), merge="sum")
        self.track("total", torch.zeros(num_classes, feature_dim), merge="sum")
        self.track("second", torch.zeros(num_classes, *shape), merge="sum")
        self.count: Tensor
        self.total: Tensor
        self.second: Tensor

    def check(self, s: Batch) -> None:
        """Features must fit, too."""
        super().check(s)
        checked_features(s, self.total.shape[-1])

    def moved_rows(self, s: Batch) -> Tensor:
        """The classes of the batch."""
        return present_rows(s.labels, len(self.count))[0]

    def observe(self, s: Batch) -> None:
        """Adds the features of the batch."""
        z, labels = s.z.detach().to(self.total.dtype), s.labels
        z = z if s.complete else torch.where(s.valid[:, None], z, 0.0)
        self.count.index_add_(0, labels, s.valid.to(z.dtype))
        self.total.index_add_(0, labels, z)
        if self.kind == "diagonal":
            self.second.index_add_(0, labels, z.square())
        elif is_eager_cpu(labels):  # one product a class: the outer products of a batch are B x D x D
            for c in labels.unique().tolist():
                mine = z[labels == c]
                self.second[c].addmm_(mine.T, mine)
        else:
            self.second.index_add_(0, labels, z[:, :, None] * z[:, None, :])

    def of(self, c: Tensor | int) -> Tensor:
        """The covariance (D, D) of one class, or of several (K, D, D); variances (D,) or (K, D) if diagonal."""
        n = self.count[c].clamp(min=1)[..., None]
        mean = self.total[c] / n
        if self.kind == "diagonal":
            return (self.second[c] / n - mean.square()).clamp(min=0)
        return self.second[c] / n[..., None] - mean[..., :, None] * mean[..., None, :]

    def extra_repr(self) -> str:
        """Sizes and kind."""
        classes, features = self.total.shape
        return f"{classes} classes, {features} features, {self.kind}"


def spread(w: Tensor, k: int | Tensor, sigma: Tensor) -> Tensor:
    r"""Quadratic forms :math:`(w_c - w_k)^\top \Sigma_k (w_c - w_k)` for all classes c.

    They are expanded, so that no difference of weights is held: a full covariance costs one product (C, D), variances
    cost none larger than the answer.

    Args:
        w: (C, D) weights of the classes.
        k: a class and its (D, D) covariance, giving (C,); or (K,) classes and their (K, D, D) covariances or (K, D) variances, giving
            (K, C).
        sigma: the covariance.

    >>> spread(torch.eye(2), 0, torch.tensor([[2.0, 0.5], [0.5, 1.0]]))
    tensor([0., 2.])
    >>> spread(torch.eye(2), torch.tensor([0]), torch.tensor([[2.0, 1.0]]))
    tensor([[0., 3.]])
    """
    own = w[k]
    if isinstance(k, int):
        along = w @ sigma
        form = (along * w).sum(-1) - along @ own - w @ along[k] + along[k] @ own
        is_own = torch.arange(len(w), device=w.device) == k
    elif sigma.ndim == 3:
        along = w @ sigma
        mine = torch.einsum("kd,kde->ke", own, sigma)
        form = (
            (along * w).sum(-1)
            - torch.einsum("kcd,kd->kc", along, own)
            - mine @ w.T
            + (mine * own).sum(-1, keepdim=True)
        )
        is_own = torch.arange(len(w), device=w.device) == k[:, None]
    else:
        form = sigma @ w.square().T - 2 * (sigma * own) @ w.T + (sigma * own.square()).sum(-1, keepdim=True)
        is_own = torch.arange(len(w), device=w.device) == k[:, None]
    return form.masked_fill(is_own, 0.0)


@final
class SemanticAugmentation(nn.Module):
    r"""What augmenting features along their class covariance, without end, adds to the logits.

    .. math:: \Delta u_{i,c} = \frac{\lambda}{2} (w_c - w_{y_i})^\top \Sigma_{y_i} (w_c - w_{y_i})

    where :math:`w_c` are the weights of the model's head. It is 0 for the given class and positive for the others, so it
    raises every loss. Negative values, which only rounding or a learned offset can make, are cut off.

    Args:
        covariance: :math:`\Sigma`, as observed.
        lam: the strength :math:`\lambda`, a number or a callable of the state.
        offset: a table (C, D, D) or (C, D) added to the covariance, for one learned by a meta step.
        through_head: whether the gradient of the model runs through :math:`w`, as in the reference's code.

    Reference: Yao and Wu, Compensation Learning, 2021, Eqs. (36)-(39).
    """

    direction, granularity = "negative", "category"

    def __init__(
        self, covariance: ClassCovariance, lam: Value, *, offset: Category | None = None, through_head: bool = True
    ) -> None:
        super().__init__()
        if not callable(lam) and lam < 0:
            raise InputError(f"lambda is {lam}; expected at least 0.")
        self.covariance, self.lam, self.offset, self.through_head = covariance, lam, offset, through_head

    @property
    def inference(self) -> str:
        """Prior knowledge, or that of the offset."""
        return "prior" if self.offset is None else self.offset.inference

    def forward(self, s: Batch) -> Tensor:
        """(B, C) the logit compensation."""
        w = self._weight(s)
        if not len(s.labels):
            return torch.zeros_like(s.u)
        at_once = self.covariance.kind == "diagonal" or not is_eager_cpu(s.labels)
        present, which = present_rows(s.labels, len(w))
        offset = self._offset(s, present, which)
        if at_once:
            sigma = self.covariance.of(present).to(w.dtype)
            forms = spread(w, present, sigma if offset is None else sigma + offset)
        else:
            rows = []
            for i, c in enumerate(present.tolist()):
                sigma = self.covariance.of(c).to(w.dtype)
                rows.append(spread(w, c, sigma if offset is None else sigma + offset[i]))
            forms = torch.stack(rows) if rows else w.new_zeros(0, len(w))  # of an empty batch
        return at(self.lam, s) / 2 * forms.clamp(min=0)[which] * s.valid[:, None]

    def _offset(self, s: Batch, present: Tensor, which: Tensor) -> Tensor | None:
        """A row of the offset for each class of the batch."""
        if self.offset is None:
            return None
        if self.offset.update == "meta" and not s.meta:
            return self.offset.gather(present).detach().to(s.u.dtype)
        # Samples of one class share their offset: the row of any of them serves for all.
        first = torch.zeros_like(present).scatter_(0, which, torch.arange(len(which), device=which.device))
        return self.offset(s)[first].to(s.u.dtype)

    def _weight(self, s: Batch) -> Tensor:
        w = getattr(s.head, "weight", None)
        w = (
            w.flatten(1) if isinstance(w, Tensor) and s.places.dense and w[0, 0].numel() == 1 else w
        )  # of a 1 x 1 convolution
        expected = (s.u.shape[-1], self.covariance.total.shape[-1])
        if not isinstance(w, Tensor) or tuple(w.shape) != expected:
            got = tuple(w.shape) if isinstance(w, Tensor) else "none"
            raise InputError(
                f"the weight of the model's head has shape {got}; expected {expected}, classes by features. Make model.head "
                "the nn.Linear that gives the logits, and check num_classes and feature_dim."
            )
        return w if self.through_head else w.detach()

    def extra_repr(self) -> str:
        """The strength."""
        return "" if isinstance(self.lam, nn.Module) else f"lambda={self.lam}"


@final
class ServesOnce(Statistic):
    """Sets a table back to zero after each training step, so that what a meta step wrote serves that one step."""

    def __init__(self, table: Category) -> None:
        super().__init__()
        self.table = table

    def observe(self, s: Batch) -> None:
        """Forgets."""
        self.table.weight.zero_()


@method(
    "logit", "negative", "prior", "category",
    equation="36, 37, 38",
    reference="Wang et al., Implicit Semantic Data Augmentation for Deep Networks, NeurIPS 2019",
    needs=["model", "features", "steps"],
    limits='lambda = 0 leaves cross entropy. Full covariances take C x D x D numbers; use covariance="diagonal" for many classes.',
    search=Space({"lam": Real(0.05, 5.0, log=True)}),
)  # fmt: skip
def isda(
    *,
    num_classes: int,
    feature_dim: int,
    lam: Value | None = None,
    covariance: CovarianceKind = "full",
    through_head: bool = True,
    weight: Weights | None = None,
) -> Compensated:
    r"""Implicit semantic data augmentation: infinitely many features drawn around each sample, in closed form.

    .. math:: L = -\frac1B \sum_i \log \frac{e^{u_{i,y_i}}}
              {\sum_c e^{u_{i,c} + \frac\lambda2 (w_c - w_{y_i})^\top \Sigma_{y_i} (w_c - w_{y_i})}}

    where :math:`w_c` are the weights of the head and :math:`\Sigma_c` is the covariance of the features of class :math:`c`, over
    all batches so far. The paper's Eq. 36 leaves out the logarithm. Every loss is raised.

    It is no remedy for skewed classes: the covariance of a class with a handful of samples is poor. On held-out digits, the largest class 20 times the
    smallest (three seeds, `python -m experiments choices`), the mean accuracy of the classes is 0.880 with the default, 0.902 with 0.1, 0.893 with 0.25 and
    0.878 with 0, which is cross entropy: level, by the spread of the seeds.

    Args:
        num_classes: the number of classes C.
        feature_dim: the number of features D that the head sees.
        lam: the strength :math:`\lambda`; by default it goes from 0 to 0.5 in proportion to the training done, step by step
            (the reference: epoch by epoch), which needs `criterion.start(total_steps)`.
        covariance: "full", or "diagonal", which holds and costs far less (the reference's choice for ImageNet).
        through_head: whether the gradient also runs through :math:`w`, as in the reference's code.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> isda(num_classes=10, feature_dim=64, covariance="diagonal").nbytes
    5160
    """
    strength = Ramp(0.0, 0.5) if lam is None else lam
    observed = ClassCovariance(num_classes, feature_dim, covariance)
    return Compensated(logit=SemanticAugmentation(observed, strength, through_head=through_head), weight=weight)


@method(
    "logit", "negative", "meta", "category",
    equation="39",
    reference="Li et al., MetaSAug: Meta Semantic Augmentation for Long-Tailed Visual Recognition, CVPR 2021",
    needs=["model", "features", "steps", "clean"],
    limits="Without meta steps this is ISDA. A meta step takes the memory of a batch of covariances: B x D x D, or B x D diagonal.",
)  # fmt: skip
def metasaug(
    *,
    num_classes: int,
    feature_dim: int,
    class_counts: Counts | None = None,
    lam: Value | None = None,
    lr: float = 0.1,
    covariance: CovarianceKind = "full",
    keep: bool = False,
    beta: float = 0.9999,
    through_head: bool = True,
    weight: Weights | None = None,
) -> Compensated:
    r"""Meta semantic augmentation: ISDA whose covariances take a step that helps on clean data.

    .. math:: \Sigma^* = \arg\min_\Sigma \sum_{j \in \Omega} l(S(f(x_j; \Theta^*(\Sigma))), y_j)

    where :math:`\Omega` is a clean, balanced set. :math:`\Sigma` is the observed covariance plus an offset; a meta step moves
    the offset. In the reference it serves one training step and starts at zero again.

    With an offset, :math:`\Sigma` may have negative eigenvalues, and a quadratic form in it may be negative. Negative forms count
    as zero here, and no loss is lowered. The published code keeps them, and differs from this method by about 1e-5.

    Args:
        num_classes: the number of classes C.
        feature_dim: the number of features D that the head sees.
        class_counts: (C,) training samples of each class; given, losses are weighted by their effective number as in
            the reference (that part is weighting, not compensation).
        lam: the strength :math:`\lambda`; by default it goes from 0 to 0.25 in proportion to the training done.
        lr: the step of the offset in :func:`compensate.meta_step`.
        covariance: "full" or "diagonal".
        keep: whether offsets add up over the steps instead of serving once.
        beta: of the class weights.
        through_head: as in :func:`isda`.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`, in place of those by `class_counts`.

    >>> print(metasaug(num_classes=10, feature_dim=64).taxonomy)
    logit · negative · meta · category
    """
    shape = (feature_dim, feature_dim) if covariance == "full" else (feature_dim,)
    offset = Category(num_classes, *shape, update="meta", lr=lr)
    term = SemanticAugmentation(
        ClassCovariance(num_classes, feature_dim, covariance),
        Ramp(0.0, 0.25) if lam is None else lam,
        offset=offset,
        through_head=through_head,
    )
    if weight is None and class_counts is not None:
        weight = effective_weights(class_counts, beta)
    criterion = Compensated(logit=term, weight=weight)
    if not keep:
        criterion.add_module("forget", ServesOnce(offset))
    return criterion


Transformation = Callable[[Tensor], Tensor]


@method(
    "view", "mixed", "prior", "sample",
    equation="3 with a term from views",
    reference="Hendrycks et al., AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty, ICLR 2020",
    needs=["model"],
    limits="As good as the views: they must keep the class. A small alpha leaves most inputs as they are or replaces them by one view.",
    search=Space({"alpha": Real(0.1, 2.0, log=True)}),
)  # fmt: skip
def augmix(
    *,
    num_samples: int | None = None,
    views: Sequence[Transformation] = DEFAULT,
    alpha: float = 1.0,
    weight: Weights | None = None,
) -> Compensated:
    r"""AugMix: inputs are mixed with their views at random.

    .. math:: x'_i = (1 - m_i)\, x_i + m_i \sum_k \omega_{i,k} T_k(x_i), \qquad m_i \sim \mathrm{Beta}(\alpha, \alpha), \quad
              \omega_i \sim \mathrm{Dirichlet}(\alpha)

    which is view compensation with :math:`w_i = m_i \omega_i`. The authors mix chains of random operations on images and add a
    divergence between the predictions of three mixtures; :func:`view_consistency` is the part of the latter that is
    compensation.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        views: the transformations :math:`T_k`; by default shifts, a blur and half the size along the last axis.
        alpha: :math:`\alpha`; the authors use 1.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> print(augmix().taxonomy)
    view · mixed · prior · sample
    """
    return Compensated(
        view=RandomMix(alpha), views=Views(*views), record=recorded(num_samples), weight=weight
    )  # fmt: skip


@method(
    "view", "negative", "adversarial", "sample",
    equation="15 with a term from views",
    reference="Engstrom et al., Exploring the Landscape of Spatial Robustness, ICML 2019",
    needs=["model"],
    limits="Costs a forward pass for each view. Turns to hard views, and a wrong label is the harder for it.",
)  # fmt: skip
def worst_of_k(
    *, num_samples: int | None = None, views: Sequence[Transformation] = DEFAULT, weight: Weights | None = None
) -> Compensated:
    r"""Worst-of-k: each input is trained on as the view with the largest loss.

    .. math:: l'_i = \max_k l(S(f(T_k(x_i))), y_i), \qquad T_0(x) = x

    The authors draw k rotations and translations anew for each image; here the views are given.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        views: the transformations :math:`T_k`; by default shifts, a blur and half the size along the last axis.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> print(worst_of_k().taxonomy)
    view · negative · adversarial · sample
    """
    return Compensated(view=ExtremeView(1), views=Views(*views), record=recorded(num_samples), weight=weight)


@method(
    "label", "mixed", "prior", "sample",
    equation="9 with a guess from another view",
    reference="Sajjadi et al., Regularization With Stochastic Transformations and Perturbations, NeurIPS 2016",
    needs=["model"],
    limits="lam = 0 is cross entropy, lam = 1 ignores the labels. As good as the views: they must keep the class.",
    search=Space({"lam": Real(0.05, 0.9)}),
    candidates=each(lam=(0.5, 0.1, 0.3, 0.7, 0.9)),
)  # fmt: skip
def view_consistency(
    *,
    num_samples: int | None = None,
    views: Sequence[Transformation] = DEFAULT,
    lam: Value = 0.5,
    weight: Weights | None = None,
) -> Compensated:
    r"""Consistency between views: labels give way to what the model says of other views of the same input.

    .. math:: \Delta y_i = \lambda (q_i - y_i), \qquad q_i = \frac1K \sum_k S(f(T_k(x_i)))

    where :math:`q_i` is a constant. The gradient is that of :math:`(1 - \lambda)\, l(p_i, y_i) + \lambda\, \mathrm{KL}(q_i \| p_i)`: a
    penalty on predictions that differ between views is label compensation. The authors' penalty is the squared difference.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        views: the transformations :math:`T_k`; by default shifts, a blur and half the size along the last axis.
        lam: the trust :math:`\lambda`.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> print(view_consistency().taxonomy)
    label · mixed · prior · sample
    """
    return Compensated(
        label=Toward(OtherView(), lam), views=Views(*views), record=recorded(num_samples), weight=weight
    )  # fmt: skip
