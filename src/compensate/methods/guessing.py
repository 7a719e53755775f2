"""Methods that pull labels toward another guess: a teacher's, or that of prototypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from compensate.equation import Compensated, Weights
from compensate.errors import InputError
from compensate.inference.distilled import Distilled, SoftTargetLoss
from compensate.inference.prior import Toward
from compensate.inference.prototypes import Prototypes
from compensate.inference.statistics import Evidence, recorded
from compensate.inference.teachers import guess_of, logits_of
from compensate.inference.tuning import StepSchedule
from compensate.methods.registry import method
from compensate.methods.search import Real, Space
from compensate.state import Value

__all__ = ["deep_self_learning", "distillation", "guess_label"]


def _teacher(sizes: Mapping[str, Any], name: str, softmax: bool) -> dict[str, Tensor]:
    """Outputs of a stand-in model that knows nothing, the same each time."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(sizes["num_samples"], sizes["num_classes"], generator=generator)
    return {name: rows.softmax(-1) if softmax else rows}


def _example_guess(sizes: Mapping[str, Any]) -> dict[str, Tensor]:
    return _teacher(sizes, "guess", softmax=True)


def _example_teacher(sizes: Mapping[str, Any]) -> dict[str, Tensor]:
    return _teacher(sizes, "teacher", softmax=False)


@method(
    "label", "mixed", "prior", "sample",
    equation="9",
    reference="Yao and Wu, Compensation Learning, 2021",
    needs=["teacher", "index"],
    limits="As good as the other model: lam = 0 ignores it, lam = 1 ignores the labels.",
    example=_example_guess,
    search=Space({"lam": Real(0.05, 0.95)}),
)  # fmt: skip
def guess_label(
    *,
    guess: nn.Module | Tensor,
    lam: Value = 0.5,
    num_samples: int | None = None,
    num_classes: int | None = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Labels give way to the predictions of another model.

    .. math:: \Delta y_i = \lambda (y'_i - y_i)

    Args:
        guess: :math:`y'`: the other model, which is then run on each batch (and needs `criterion.evaluate`); or its
            predictions for all samples, distributions (N, C) or class numbers (N,), which need the index.
        lam: the trust :math:`\lambda`.
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        num_classes: the number of classes, for class numbers.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> criterion = guess_label(guess=torch.tensor([0, 2]), lam=0.5, num_classes=3)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]), torch.tensor([0]))
    tensor(1.2584)
    """
    return Compensated(label=Toward(guess_of(guess, num_classes), lam), record=recorded(num_samples), weight=weight)


@method(
    "label", "mixed", "prior", "sample",
    equation="34, 35",
    reference="Hinton et al., Distilling the Knowledge in a Neural Network, 2015",
    needs=["teacher", "index"],
    limits="As good as the teacher. lam = 0 is cross entropy. In the label form the loss itself may be negative.",
    example=_example_teacher,
    search=Space({"lam": Real(0.1, 4.0, log=True), "temperature": Real(1.0, 10.0)}),
)  # fmt: skip
def distillation(
    *,
    teacher: nn.Module | Tensor,
    lam: Value = 1.0,
    temperature: float = 4.0,
    form: Literal["label", "classic"] = "label",
    num_samples: int | None = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Knowledge distillation: labels are corrected by how the teacher differs from the student.

    .. math:: \Delta y_i = \lambda (q_i - p'_i), \qquad q_i = S(z_i / T), \quad p'_i = S(u_i / T)

    where :math:`z_i` are the teacher's logits and :math:`p'_i` is a constant in the gradient. The classic form is
    :math:`l'_i = l_i + \frac{\lambda}{T}\, T^2\, \mathrm{KL}(q_i \| p'_i)`. The two have the same gradient,
    :math:`(p_i - y_i) + \lambda (p'_i - q_i)`, but not the same value: the paper's "exactly" is meant so. The
    corrected label of the first form may have negative entries, so it is not projected (Eq. 6 is given up).

    Args:
        teacher: a model, which is then run on each batch (and needs `criterion.evaluate`); or its logits for all
            samples, (N, C), which need the index.
        lam: the weight :math:`\lambda`; it is :math:`\alpha T` where others write
            :math:`\mathrm{CE} + \alpha T^2 \mathrm{KL}`.
        temperature: :math:`T`.
        form: "label", Eq. 35, or "classic", a loss term.
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> criterion = distillation(teacher=torch.tensor([[4.0, 0.0, 0.0]]), form="classic")
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]), torch.tensor([0]))
    tensor(2.4338)
    """
    logits, record = logits_of(teacher), recorded(num_samples)
    if form == "label":
        return Compensated(label=Distilled(logits, lam, temperature), onto="none", record=record, weight=weight)
    if form != "classic":
        raise InputError(f'form is "{form}"; expected "label" or "classic".')
    return Compensated(loss=SoftTargetLoss(logits, lam, temperature), record=record, weight=weight)


@method(
    "label", "mixed", "prior", "sample",
    equation="9 with labels from prototypes",
    reference="Han et al., Deep Self-Learning From Noisy Labels, ICCV 2019",
    needs=["model", "features", "index", "epochs"],
    limits="Cross entropy until epoch `start`. Keeps features of up to `sampled` samples per class.",
)  # fmt: skip
def deep_self_learning(
    *,
    num_samples: int,
    num_classes: int,
    feature_dim: int,
    alpha: float = 0.5,
    start: int = 1,
    count: int = 8,
    sampled: int = 1280,
    rank: float = 0.4,
    limit: float = 0.95,
    weight: Weights | None = None,
) -> Compensated:
    r"""Deep self-learning: labels give way to the class whose prototypes the features are most like.

    .. math:: \Delta y_i = \alpha (\hat y_i - y_i), \qquad
              \hat y_i = \arg\max_c \frac1p \sum_{k=1}^p \cos(z_i, z_{c,k})

    where :math:`z_{c,k}` are prototypes of class c, chosen anew at the end of each epoch; see
    :class:`~compensate.inference.prototypes.Prototypes`, which also says where this differs from the authors'.

    Args:
        num_samples: the size of the training set.
        num_classes: the number of classes.
        feature_dim: the size of the features that the model's `features` returns.
        alpha: the share :math:`\alpha` of the new label.
        start: epochs before labels change.
        count: prototypes per class.
        sampled: samples per class that they are chosen from.
        rank: where the similarity that counts as near lies among all, in rising order.
        limit: the similarity past which two prototypes are too much alike.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> criterion = deep_self_learning(num_samples=100, num_classes=3, feature_dim=8)
    >>> print(criterion.taxonomy)
    label · mixed · prior · sample
    """
    if start < 1:
        raise InputError(f"start is {start}; prototypes are known after the first epoch, so expected at least 1.")
    q = Prototypes(num_samples, num_classes, feature_dim, count=count, sampled=sampled, rank=rank, limit=limit)
    return Compensated(
        label=Toward(q, StepSchedule({0: 0.0, start: alpha})), record=Evidence(num_samples), weight=weight
    )
