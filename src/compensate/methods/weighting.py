"""Peers that weight or reshape the loss, for contrast: they are not compensation."""

from __future__ import annotations

from typing import Literal

from compensate.equation import Compensated, Weights
from compensate.errors import InputError
from compensate.inference.statistics import ClassMean, Evidence, recorded
from compensate.inference.weights import Becomes, BoxCox, Focus, LearnedWeights, Weighted, WeightNet
from compensate.methods.registry import method
from compensate.methods.search import Real, Space, each

__all__ = ["focal", "gce", "meta_weight", "reweight"]


@method(
    "loss", "positive", "prior", "sample",
    equation="2",
    reference="Lin et al., Focal Loss for Dense Object Detection, ICCV 2017",
    kind="weighting",
    limits="Not compensation: a weight. gamma = 0 is cross entropy. Turns to hard samples, so wrong labels count more.",
    search=Space({"gamma": Real(0.0, 5.0)}),
    candidates=each(gamma=(2.0, 0.5, 1.0, 3.0, 5.0)),
)  # fmt: skip
def focal(
    *,
    num_classes: int | None = None,
    num_samples: int | None = None,
    gamma: float = 2.0,
    per: Literal["sample", "category"] = "sample",
    weight: Weights | None = None,
) -> Compensated:
    r"""The focal loss, a weight and not compensation: easy samples count less.

    .. math:: l'_i = (1 - p_{i,y_i})^\gamma\, l_i

    Args:
        num_classes: the number of classes, for `per="category"`.
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        gamma: :math:`\gamma`.
        per: "category" puts the mean over the samples of the class in the previous epoch in place of
            :math:`p_{i,y_i}`, as a footnote of the paper suggests; it needs `end_epoch()`.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> import torch
    >>> focal()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.9334)
    """
    if per not in ("sample", "category"):
        raise InputError(f'per is "{per}"; expected "sample" or "category".')
    if per == "category" and num_classes is None:
        raise InputError('per="category" keeps a mean for each class: give num_classes.')
    mean = ClassMean(num_classes, "all") if per == "category" and num_classes is not None else None
    return Compensated(loss=Weighted(Focus(gamma, mean)), record=recorded(num_samples), weight=weight)


@method(
    "loss", "positive", "prior", "sample",
    equation="2",
    reference="Zhang and Sabuncu, Generalized Cross Entropy Loss for Training with Noisy Labels, NeurIPS 2018",
    kind="weighting",
    limits="Not compensation: another loss. q to 0 is cross entropy, q = 1 mean absolute error, which learns slowly.",
    search=Space({"q": Real(0.1, 1.0)}),
    candidates=each(q=(0.7, 0.3, 0.5, 0.9, 1.0)),
)  # fmt: skip
def gce(
    *, num_samples: int | None = None, q: float = 0.7, k: float = 0.0, weight: Weights | None = None
) -> Compensated:
    r"""Generalised cross entropy, a reshaped loss and not compensation: samples that fit badly count less.

    .. math:: l'_i = \frac{1 - p_{i,y_i}^q}{q}

    Its gradient is that of cross entropy times the weight :math:`p_{i,y_i}^q`.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        q: :math:`q`.
        k: the truncated form: samples with a probability below `k` (the authors use 0.5) count no longer. They
            alternate it with pruning; here the threshold alone decides.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> import torch
    >>> gce()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.1545)
    """
    return Compensated(loss=Becomes(BoxCox(q, k)), record=recorded(num_samples), weight=weight)


@method(
    "loss", "positive", "meta", "sample",
    equation="2 with 12-14",
    reference="Shu et al., Meta-Weight-Net: Learning an Explicit Mapping for Sample Weighting, NeurIPS 2019",
    kind="weighting",
    needs=["clean"],
    limits="Not compensation: a weight. meta_step needs an optimizer for the network, such as Adam with a step of 1e-3.",
)  # fmt: skip
def meta_weight(*, num_samples: int | None = None, hidden: int = 100, weight: Weights | None = None) -> Compensated:
    r"""Meta-Weight-Net, a weight and not compensation: a small network, learned on clean data, weighs each loss.

    .. math:: l'_i = V(l_i; \Phi)\, l_i

    where :math:`V` has one hidden layer and ends in a sigmoid. Learn :math:`\Phi` by
    `meta_step(criterion, model, batch, clean, lr=..., optimizer=torch.optim.Adam(criterion.parameters(), 1e-3))`; the
    training step leaves it alone.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        hidden: units of the hidden layer.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> print(meta_weight().taxonomy)
    loss · positive · meta · sample
    """
    return Compensated(loss=Weighted(WeightNet(hidden)), record=recorded(num_samples), weight=weight)


@method(
    "loss", "mixed", "meta", "sample",
    equation="2 with 12-14",
    reference="Ren et al., Learning to Reweight Examples for Robust Deep Learning, ICML 2018",
    kind="weighting",
    needs=["index", "clean"],
    limits="Not compensation: a weight. Cross entropy for batches without a meta_step before them.",
)  # fmt: skip
def reweight(*, num_samples: int, weight: Weights | None = None) -> Compensated:
    r"""Learning to reweight, a weight and not compensation: samples count as their gradient helps on clean data.

    .. math:: l'_i = w_i\, l_i, \qquad w_i = B \frac{\max(0, -g_i)}{\sum_j \max(0, -g_j)}

    where :math:`g_i` is the derivative of the loss on clean data, after a step, by the weight of sample i. Call
    `meta_step(criterion, model, batch, clean, lr=...)` before each training step on the same batch; weights serve once.

    Args:
        num_samples: the size of the training set.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> print(reweight(num_samples=100).taxonomy)
    loss · mixed · meta · sample
    """
    return Compensated(loss=Weighted(LearnedWeights(num_samples)), record=Evidence(num_samples), weight=weight)
