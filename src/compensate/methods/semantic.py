"""Methods that compensate logits as if features were augmented."""

from __future__ import annotations

from compensate.equation import Compensated, Weights
from compensate.granularity import Category
from compensate.inference.classes import Counts, effective_weights
from compensate.inference.covariance import Augment, ClassCovariance, Kind, ServesOnce
from compensate.inference.tuning import Ramp
from compensate.methods.registry import method
from compensate.methods.search import Real, Space
from compensate.state import Value

__all__ = ["isda", "metasaug"]


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
    covariance: Kind = "full",
    through_head: bool = True,
    weight: Weights | None = None,
) -> Compensated:
    r"""Implicit semantic data augmentation: infinitely many features drawn around each sample, in closed form.

    .. math:: L = -\frac1B \sum_i \log \frac{e^{u_{i,y_i}}}
              {\sum_c e^{u_{i,c} + \frac\lambda2 (w_c - w_{y_i})^\top \Sigma_{y_i} (w_c - w_{y_i})}}

    where :math:`w_c` are the weights of the head and :math:`\Sigma_c` is the covariance of the features of class :math:`c`, over
    all batches so far. The paper's Eq. 36 leaves out the logarithm. Every loss is raised.

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
    return Compensated(logit=Augment(observed, strength, through_head=through_head), weight=weight)


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
    covariance: Kind = "full",
    keep: bool = False,
    beta: float = 0.9999,
    through_head: bool = True,
    weight: Weights | None = None,
) -> Compensated:
    r"""Meta semantic augmentation: ISDA whose covariances take a step that helps on clean data.

    .. math:: \Sigma^* = \arg\min_\Sigma \sum_{j \in \Omega} l(S(f(x_j; \Theta^*(\Sigma))), y_j)

    where :math:`\Omega` is a clean, balanced set. :math:`\Sigma` is the observed covariance plus an offset; a meta step moves
    the offset. In the reference it serves one training step and starts at zero again.

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
    term = Augment(
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
