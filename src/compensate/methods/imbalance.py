"""Methods that compensate logits by the sizes of the classes, and angular margins."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from compensate.core.batch import Value
from compensate.core.criterion import BinaryBase, Compensated, Weights
from compensate.core.proximal import AtLeast
from compensate.core.tables import Category, Group
from compensate.errors import InputError
from compensate.methods.registry import Real, Space, method
from compensate.terms.classes import (
    Adjust,
    Counts,
    DeferredWeights,
    checked_counts,
    effective_weights,
    increasing,
    proportions,
)
from compensate.terms.margins import AngularMargin, CosineHead, GroupOfClass, Guard, LogitMargin

__all__ = [
    "CosineHead",
    "arcface",
    "balanced_arcface",
    "ldam",
    "logit_adjustment",
    "meta_logit_adjustment",
    "posthoc_logit_adjustment",
]


@method(
    "logit", "mixed", "prior", "corpus",
    equation="28, 29",
    reference="Menon et al., Long-Tail Learning via Logit Adjustment, ICLR 2021",
    limits="Equal class sizes or tau = 0 leave cross entropy. Predict with the plain logits afterwards, not the adjusted ones.",
    search=Space({"tau": Real(0.0, 2.0)}),
)  # fmt: skip
def logit_adjustment(
    *,
    class_counts: Counts,
    tau: Value = 1.0,
    g: Callable[[Tensor], Tensor] = torch.log,
    num_samples: int | None = None,
    base: BinaryBase = None,
) -> Compensated:
    r"""Logit adjustment: in training, each logit gets a head start by the size of its class.

    .. math:: L = -\frac1B \sum_i \log \frac{e^{u_{i,y_i} + \tau g(\pi_{y_i})}}{\sum_c e^{u_{i,c} + \tau g(\pi_c)}}

    where :math:`\pi_c` is the share of class :math:`c` and :math:`g` the logarithm, or any increasing function. The loss falls for
    every sample of the largest class, and rises for every sample of the smallest; other classes are mixed. With several labels per
    sample, each is a problem of two classes with shares :math:`\pi_c` and :math:`1 - \pi_c`, and its logit gets
    :math:`\tau (g(\pi_c) - g(1 - \pi_c))`, the log odds of the label.

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
    return Compensated(
        logit=Adjust(class_counts, tau, g, total=num_samples if base == "bce" else None), base=base
    )  # fmt: skip


def posthoc_logit_adjustment(
    logits: Tensor, *, class_counts: Counts, tau: float = 1.0, g: Callable[[Tensor], Tensor] = torch.log
) -> Tensor:
    r"""(B, C) the logits of a plainly trained model, adjusted to equally frequent classes.

    .. math:: u'_{i,c} = u_{i,c} - \tau g(\pi_c)

    It is logit adjustment without training; the sign is reversed because it acts on the prediction instead of the loss.

    >>> posthoc_logit_adjustment(torch.tensor([[1.0, 0.0]]), class_counts=[90, 10]).argmax(-1)
    tensor([1])

    Reference: Menon et al., Long-Tail Learning via Logit Adjustment, ICLR 2021.
    """
    return logits - tau * increasing(g, proportions(class_counts)).to(logits)


@method(
    "logit", "mixed", "meta", "category",
    equation="a-1, a-2, a-3",
    reference="Yao and Wu, Compensation Learning, 2021, Appendix A",
    needs=["clean"],
    limits="Without meta steps tau stays where it starts and this is logit adjustment. Needs a balanced, clean set.",
    search=Space({"lr": Real(0.01, 1.0, log=True)}),
)  # fmt: skip
def meta_logit_adjustment(
    *,
    class_counts: Counts,
    tau: float = 1.0,
    lr: float = 0.1,
    nonnegative: bool = False,
    g: Callable[[Tensor], Tensor] = torch.log,
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
    return Compensated(logit=Adjust(class_counts, strength, g))


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
    r"""Label-distribution-aware margins: rare classes must win by more; late in training they also weigh more.

    .. math:: \Delta u_{i,y_i} = -s\, m_{y_i}, \qquad m_c = m_{\max} \left( \frac{\min_k n_k}{n_c} \right)^{1/4}

    where :math:`n_c` counts the training samples of class :math:`c` and :math:`s` is the scale of the logits. The reference
    multiplies cosines by :math:`s = 30` inside its loss; here the head does, and a constant added to a logit remains: for the
    reference's loss give the model a :class:`CosineHead` and both a scale of 30. The default is for ordinary heads.
    The second stage, deferred re-weighting, multiplies losses by class weights of the effective number of samples, as a weighted
    mean over the batch: that part is weighting, not compensation.

    Args:
        max_margin: :math:`m_{\max}`, the margin of the smallest class, in units of `scale`.
        scale: :math:`s` of the head; 1 for an ordinary linear head, whose logits have no fixed scale.
        defer: the share of the training after which weights begin (the reference: epoch 160 of 200), which needs
            `criterion.start(total_steps)`; None for never, which needs no start.
        beta: the parameter of the effective number of samples.
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
    return Compensated(logit=AngularMargin(margin, scale, guard))


@method(
    "logit", "negative", "meta", "group",
    equation="41, 42",
    reference="Wang et al., Meta Balanced Network for Fair Face Recognition, IEEE TPAMI 2021",
    needs=["clean"],
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

    where :math:`g_i` is the group of sample :math:`i`, such as the skin tone of a face. Margins stay at least 0. The outer loss
    follows the paper's Eq. 42; the reference minimizes the skewness between groups instead.

    Args:
        class_groups: (C,) the group of each class, if all samples of a class are in one group (an identity has one skin tone).
            Otherwise pass the group with the batch: `criterion(logits, target, group=group)`.
        num_groups: the number of groups, if `class_groups` does not tell.
        margin: the initial :math:`m_g`, in radians.
        scale: :math:`s` of the model's :class:`CosineHead`.
        lr: the step of the margins in :func:`compensate.meta_step`.
        guard: as in :func:`arcface`.

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
    return Compensated(logit=AngularMargin(GroupOfClass(table, groups), scale, guard))
