"""Methods that compensate logits by a margin."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from compensate.equation import Compensated, Weights
from compensate.errors import InputError
from compensate.granularity import Group
from compensate.inference.classes import Counts, DeferredWeights, checked_counts, effective_weights
from compensate.inference.margins import AngularMargin, CosineHead, GroupOfClass, Guard, LogitMargin
from compensate.inference.regularized import AtLeast
from compensate.methods.registry import method
from compensate.methods.search import Real, Space
from compensate.state import Value

__all__ = ["CosineHead", "arcface", "balanced_arcface", "ldam"]


@method(
    "logit", "negative", "prior", "category",
    equation="Cao et al., Eqs. 12-13",
    reference="Cao et al., Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss, NeurIPS 2019",
    needs=["steps"],
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
    r"""Label-distribution-aware margins: rare classes must win by more; late in training they weigh more, too.

    .. math:: \Delta u_{i,y_i} = -s\, m_{y_i}, \qquad m_c = m_{\max} \left( \frac{\min_k n_k}{n_c} \right)^{1/4}

    where :math:`n_c` counts the training samples of class :math:`c` and :math:`s` is the scale of the logits. The reference
    multiplies cosines by :math:`s = 30` inside its loss; here the head does, and what is left is a constant added to a logit: for
    the reference's loss give the model a :class:`CosineHead` and both a scale of 30. The default is for ordinary heads.
    Its second stage, deferred re-weighting, multiplies losses by class weights of the
    effective number of samples, as a weighted mean over the batch: that part is weighting, not compensation.

    Args:
        class_counts: (C,) training samples of each class.
        max_margin: :math:`m_{\max}`, the margin of the smallest class, in units of `scale`.
        scale: :math:`s`, that of the head; 1 for an ordinary linear head, whose logits have no fixed scale.
        defer: the share of the training after which weights begin (the reference: epoch 160 of 200), which needs
            `criterion.start(total_steps)`; None, never, and then nothing has to be started.
        beta: of the weights.
        weight: (C,) class weights of the whole training, as in :class:`torch.nn.CrossEntropyLoss`; then `defer` must be None.

    >>> criterion = ldam(class_counts=[160, 10], defer=None)
    >>> criterion.evaluate(torch.nn.Identity(), torch.zeros(2, 2), torch.tensor([0, 1])).du
    tensor([[-0.2500, -0.0000],
            [-0.0000, -0.5000]])
    """
    if max_margin < 0:
        raise InputError(f"max_margin is {max_margin}; expected at least 0.")
    counts = checked_counts(class_counts)
    margin = LogitMargin(max_margin * (counts.min() / counts) ** 0.25, scale)
    if defer is None:
        return Compensated(logit=margin, weight=weight)
    if weight is not None:
        raise InputError(
            f"weight was given and defer={defer}, after which other weights hold; leave out weight, or write defer=None."
        )
    criterion = Compensated(logit=margin, weight=torch.ones_like(counts))
    criterion.add_module("deferred", DeferredWeights(effective_weights(counts, beta), defer))
    return criterion


@method(
    "logit", "negative", "tuning", "corpus",
    equation="40",
    reference="Deng et al., ArcFace: Additive Angular Margin Loss for Deep Face Recognition, CVPR 2019",
    limits="Logits must be cosines times the scale: give the model a CosineHead. margin = 0 leaves cross entropy.",
)  # fmt: skip
def arcface(
    *, margin: Value = 0.5, scale: float = 64.0, guard: Guard = "linear", weight: Weights | None = None
) -> Compensated:
    r"""ArcFace: the angle between a sample and its class must be smaller by a margin than it would have to be.

    .. math:: L = -\frac1B \sum_i \log \frac{e^{s \cos(\theta_{i,y_i} + m)}}
              {e^{s \cos(\theta_{i,y_i} + m)} + \sum_{c \ne y_i} e^{s \cos\theta_{i,c}}}

    where :math:`\theta_{i,c}` is the angle between features and the weight of a class, and the logits are
    :math:`u = s \cos\theta`. The paper's Eq. 40 leaves out the logarithm.

    Args:
        margin: :math:`m` in radians, a number or a callable of the state.
        scale: :math:`s`, that of the model's :class:`CosineHead`.
        guard: what happens past :math:`\theta + m = \pi`: "linear" and "easy" are the reference's two, "none" is the bare formula.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> criterion = arcface(scale=2.0)
    >>> criterion(2.0 * torch.tensor([[1.0, 0.0]]), torch.tensor([0]))     # cos 0.5 = 0.8776
    tensor(0.1595)
    """
    return Compensated(logit=AngularMargin(margin, scale, guard), weight=weight)


def _two_groups(sizes: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"class_groups": [c % 2 for c in range(sizes["num_classes"])]}


@method(
    "logit", "negative", "meta", "group",
    equation="41, 42",
    reference="Wang et al., Meta Balanced Network for Fair Face Recognition, IEEE TPAMI 2021",
    needs=["clean"],
    limits="Without meta steps all margins stay equal and this is arcface. Needs a clean set balanced over the groups.",
    example=_two_groups,
)  # fmt: skip
def balanced_arcface(
    *,
    class_groups: Sequence[int] | Tensor | None = None,
    num_groups: int | None = None,
    margin: float = 0.5,
    scale: float = 64.0,
    lr: float = 0.1,
    guard: Guard = "linear",
    weight: Weights | None = None,
) -> Compensated:
    r"""ArcFace with a margin for each group, learned on clean data so that no group is served worse.

    .. math:: \Delta u_{i,y_i} = s \cos(\theta_{i,y_i} + m_{g_i}) - s \cos\theta_{i,y_i}, \qquad
              \{m_g\}^* = \arg\min \sum_{j \in \Omega} l(S(f(x_j; \Theta^*(\{m_g\}))), y_j)

    where :math:`g_i` is the group of sample :math:`i`, such as the skin tone of a face. Margins stay at least 0. The outer loss
    is that of the paper's Eq. 42; the reference minimizes the skewness between groups instead.

    Args:
        class_groups: (C,) the group of each class, where all samples of a class are in one group (an identity has one
            skin tone). Without it the batch must say: `criterion(logits, target, group=group)`.
        num_groups: their number, if it does not follow from `class_groups`.
        margin: where all :math:`m_g` start, in radians.
        scale: :math:`s`, that of the model's :class:`CosineHead`.
        lr: the step of the margins in :func:`compensate.meta_step`.
        guard: as in :func:`arcface`.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

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
    if not 0 <= margin <= math.pi / 2:
        raise InputError(f"margin is {margin}; expected an angle from 0 to pi/2, in radians.")
    table = Group(num_groups, update="meta", init=margin, lr=lr, bound=AtLeast(0.0))
    return Compensated(logit=AngularMargin(GroupOfClass(table, groups), scale, guard), weight=weight)
