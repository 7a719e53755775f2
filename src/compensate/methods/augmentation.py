"""Methods that compensate logits by implicit augmentation of features, and inputs by their views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, final

import torch
from torch import Tensor

from compensate.core.batch import Batch, Value, at
from compensate.core.criterion import Compensated, Weights
from compensate.core.layout import present_rows
from compensate.core.statistics import Statistic
from compensate.core.tables import Category
from compensate.core.validation import checked_features, is_eager_cpu
from compensate.errors import InputError
from compensate.methods.registry import Block, Real, Space, each, method
from compensate.terms.classes import Counts, effective_weights
from compensate.terms.prior import Toward
from compensate.terms.schedules import Ramp
from compensate.terms.views import DEFAULT, ExtremeView, OtherView, RandomMix, Views

__all__ = ["augmix", "isda", "metasaug", "view_consistency", "worst_of_k"]

CovarianceKind = Literal["full", "diagonal"]


@final
class ClassCovariance(Statistic):
    r"""The covariance of each class's features over all batches, from three sums.

    .. math:: \Sigma_c = \frac1{n_c} \sum_j z_j z_j^\top - \mu_c \mu_c^\top, \qquad \mu_c = \frac1{n_c} \sum_j z_j

    where :math:`j` runs over the samples of class :math:`c`, including the current batch. Sums merge over processes by addition; the
    difference loses digits only if features are far from zero compared with their spread. `kind` "full" holds C x D x D numbers,
    "diagonal" holds the C x D variances.
    """

    granularity, reader = "category", "a covariance of features"
    observes = "logits"  # the current batch counts

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
        """Also checks the features."""
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
        elif is_eager_cpu(labels):  # one product per class: the outer products of a batch are B x D x D
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


def spread(w: Tensor, k: int | Tensor, sigma: Tensor) -> Tensor:
    r"""Quadratic forms :math:`(w_c - w_k)^\top \Sigma_k (w_c - w_k)` for all classes c.

    They are expanded to avoid the differences of weights: a full covariance costs one product (C, D), variances cost none larger
    than the result.

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
    if isinstance(k, int):
        return spread(w, torch.tensor([k], device=w.device), sigma[None])[0]
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
    r"""The effect on the logits of infinitely many features drawn along the covariance of their class.

    .. math:: \Delta u_{i,c} = \frac{\lambda}{2} (w_c - w_{y_i})^\top \Sigma_{y_i} (w_c - w_{y_i})

    where :math:`w_c` are the weights of the model's head. It is 0 for the given class and positive for the others, and raises
    every loss. Negative values, from rounding or from a learned offset, are set to zero.

    Args:
        covariance: :math:`\Sigma`, as observed.
        lam: the strength :math:`\lambda`, a number or a callable of the batch.
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
        """Prior knowledge, or the inference of the offset."""
        return "prior" if self.offset is None else self.offset.inference

    def forward(self, s: Batch) -> Tensor:
        """(B, C) the logit compensation."""
        w = self._weight(s)
        if not len(s.labels):
            return torch.zeros_like(s.u)
        present, which = present_rows(s.labels, len(w))
        offset = self._offset(s, present, which)
        if self.covariance.kind == "diagonal" or not is_eager_cpu(s.labels):
            sigma = self.covariance.of(present).to(w.dtype)
            forms = spread(w, present, sigma if offset is None else sigma + offset)
        else:  # class by class: the products of all classes are K x C x D
            rows = []
            for i, c in enumerate(present.tolist()):
                sigma = self.covariance.of(c).to(w.dtype)
                rows.append(spread(w, c, sigma if offset is None else sigma + offset[i]))
            forms = torch.stack(rows)
        return at(self.lam, s) / 2 * forms.clamp(min=0)[which] * s.valid[:, None]

    def _offset(self, s: Batch, present: Tensor, which: Tensor) -> Tensor | None:
        """A row of the offset for each class of the batch."""
        if self.offset is None:
            return None
        if self.offset.update == "meta" and not s.meta:
            return self.offset.gather(present).detach().to(s.u.dtype)
        # Samples of one class share their offset: take the row of any of them.
        first = torch.zeros_like(present).scatter_(0, which, torch.arange(len(which), device=which.device))
        return self.offset(s)[first].to(s.u.dtype)

    def _weight(self, s: Batch) -> Tensor:
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
        return w if self.through_head else w.detach()


@final
class ServesOnce(Statistic):
    """Sets a table back to zero after each training step: the result of a meta step serves one step."""

    def __init__(self, table: Category) -> None:
        super().__init__()
        self.table = table

    def observe(self, s: Batch) -> None:
        """Sets the table to zero."""
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
) -> Compensated:
    r"""Implicit semantic data augmentation: infinitely many features drawn around each sample, in closed form.

    .. math:: L = -\frac1B \sum_i \log \frac{e^{u_{i,y_i}}}
              {\sum_c e^{u_{i,c} + \frac\lambda2 (w_c - w_{y_i})^\top \Sigma_{y_i} (w_c - w_{y_i})}}

    where :math:`w_c` are the weights of the head and :math:`\Sigma_c` is the covariance of the features of class :math:`c`, over
    all batches. The paper's Eq. 36 leaves out the logarithm. Every loss is raised.

    It does not help against skewed classes: the covariance of a class with few samples is poor. On held-out digits, the largest class
    20 times the smallest (three seeds, `python -m experiments choices`), the mean accuracy of the classes is 0.880 with the default,
    0.902 with 0.1, 0.893 with 0.25 and 0.878 with 0, which is cross entropy: equal, by the spread of the seeds.

    Args:
        lam: the strength :math:`\lambda`; by default it rises from 0 to 0.5 in proportion to the training done, step by step
            (the reference: epoch by epoch), which needs `criterion.start(total_steps)`.
        covariance: "full", or "diagonal", which needs much less memory and time (the reference's choice for ImageNet).
        through_head: whether the gradient also runs through :math:`w`, as in the reference's code.

    >>> isda(num_classes=10, feature_dim=64, covariance="diagonal").nbytes
    5160
    """
    observed = ClassCovariance(num_classes, feature_dim, covariance)
    strength = Ramp(0.0, 0.5) if lam is None else lam
    return Compensated(logit=SemanticAugmentation(observed, strength, through_head=through_head))


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
    the offset. In the reference the offset serves one training step and starts at zero again.

    With an offset, :math:`\Sigma` may have negative eigenvalues, and a quadratic form in it may be negative. Negative forms count
    as zero here, and no loss is lowered. The published code keeps them, and differs from this method by about 1e-5.

    Args:
        class_counts: (C,) the number of training samples of each class; if given, losses are weighted by their effective number
            as in the reference (that part is weighting, not compensation).
        lam: the strength :math:`\lambda`; by default it rises from 0 to 0.25 in proportion to the training done.
        lr: the step of the offset in :func:`compensate.meta_step`.
        covariance: "full" or "diagonal".
        keep: whether offsets add up over the steps instead of serving once.
        beta: the parameter of the effective number of samples.
        through_head: as in :func:`isda`.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`, instead of the weights by `class_counts`.

    >>> print(metasaug(num_classes=10, feature_dim=64).taxonomy)
    logit · negative · meta · category
    """
    observed = ClassCovariance(num_classes, feature_dim, covariance)
    offset = Category(num_classes, *observed.second.shape[1:], update="meta", lr=lr)
    strength = Ramp(0.0, 0.25) if lam is None else lam
    if weight is None and class_counts is not None:
        weight = effective_weights(class_counts, beta)
    term = SemanticAugmentation(observed, strength, offset=offset, through_head=through_head)
    criterion = Compensated(logit=term, weight=weight)
    if not keep:
        criterion.add_module("forget", ServesOnce(offset))
    return criterion


Transformations = Sequence[Callable[[Tensor], Tensor]]


@method(
    "view", "mixed", "prior", "sample",
    equation="3 with a term from views",
    reference="Hendrycks et al., AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty, ICLR 2020",
    record="loss",
    needs=["model"],
    limits="As good as the views: they must keep the class. A small alpha leaves most inputs as they are or replaces them by one view.",
    search=Space({"alpha": Real(0.1, 2.0, log=True)}),
)  # fmt: skip
def augmix(*, views: Transformations = DEFAULT, alpha: float = 1.0) -> Compensated:
    r"""AugMix: inputs are mixed with their views at random.

    .. math:: x'_i = (1 - m_i)\, x_i + m_i \sum_k \omega_{i,k} T_k(x_i), \qquad m_i \sim \mathrm{Beta}(\alpha, \alpha), \quad
              \omega_i \sim \mathrm{Dirichlet}(\alpha)

    which is view compensation with :math:`w_i = m_i \omega_i`. The authors mix chains of random operations on images and add a
    divergence between the predictions of three mixtures; :func:`view_consistency` is its part that is compensation.

    Args:
        alpha: :math:`\alpha`; the authors use 1.

    >>> print(augmix().taxonomy)
    view · mixed · prior · sample
    """
    return Compensated(view=RandomMix(alpha), views=Views(*views))


@method(
    "view", "negative", "adversarial", "sample",
    equation="15 with a term from views",
    reference="Engstrom et al., Exploring the Landscape of Spatial Robustness, ICML 2019",
    record="loss",
    needs=["model"],
    limits="Costs a forward pass for each view. Favors hard views, which makes a wrong label harder.",
)  # fmt: skip
def worst_of_k(*, views: Transformations = DEFAULT) -> Compensated:
    r"""Worst-of-k: each input is replaced by its view with the largest loss.

    .. math:: l'_i = \max_k l(S(f(T_k(x_i))), y_i), \qquad T_0(x) = x

    The authors draw k rotations and translations for each image; here the views are fixed.

    >>> print(worst_of_k().taxonomy)
    view · negative · adversarial · sample
    """
    return Compensated(view=ExtremeView(1), views=Views(*views))


@method(
    "label", "mixed", "prior", "sample",
    equation="9 with a guess from another view",
    reference="Sajjadi et al., Regularization With Stochastic Transformations and Perturbations, NeurIPS 2016",
    record="loss",
    needs=["model"],
    limits="lam = 0 is cross entropy, lam = 1 ignores the labels. As good as the views: they must keep the class.",
    search=Space({"lam": Real(0.05, 0.9)}),
    candidates=each(lam=(0.5, 0.1, 0.3, 0.7, 0.9)),
)  # fmt: skip
def view_consistency(*, views: Transformations = DEFAULT, lam: Value = 0.5) -> Compensated:
    r"""Consistency between views: labels move toward the predictions for other views of the same input.

    .. math:: \Delta y_i = \lambda (q_i - y_i), \qquad q_i = \frac1K \sum_k S(f(T_k(x_i)))

    where :math:`q_i` is a constant. The gradient is the gradient of :math:`(1 - \lambda)\, l(p_i, y_i) + \lambda\, \mathrm{KL}(q_i \| p_i)`:
    a penalty on predictions that differ between views is label compensation. The authors' penalty is the squared difference.

    Args:
        lam: the trust :math:`\lambda`.

    >>> print(view_consistency().taxonomy)
    label · mixed · prior · sample
    """
    return Compensated(label=Toward(OtherView(), lam), views=Views(*views))
