"""Methods that compensate labels on several levels, or learn how."""

from __future__ import annotations

import math
from typing import Literal

from compensate.equation import Compensated, Weights
from compensate.errors import InputError
from compensate.granularity import Category, Sample
from compensate.inference.classes import Counts, checked_counts
from compensate.inference.guesses import OfClass
from compensate.inference.prior import Toward, prediction, uniform
from compensate.inference.regularized import Ball
from compensate.inference.statistics import Evidence, recorded
from compensate.methods.registry import method
from compensate.methods.search import Real, Space

__all__ = ["meta_label", "mix_level_label"]


def _head_is_smoothed_more(class_counts: Counts, head: float, tail: float) -> list[float]:
    counts = [float(count) for count in checked_counts(class_counts)]
    fewest, most = min(counts), max(counts)
    span = (most - fewest) or 1.0
    return [tail + (head - tail) * math.sin(math.pi / 2 * (count - fewest) / span) for count in counts]


@method(
    "label", "mixed", "prior", "sample+category",
    equation="19",
    reference="Yao and Wu, Compensation Learning, 2021; class terms of Zhong et al., MiSLAS, CVPR 2021",
    limits="lam = 0 leaves smoothing by class, head = tail = 0 leaves soft bootstrapping. lam + head may not exceed 1.",
    search=Space({"lam": Real(0.01, 0.5), "head": Real(0.0, 0.5), "tail": Real(0.0, 0.5)}),
)  # fmt: skip
def mix_level_label(
    *,
    class_counts: Counts,
    lam: float = 0.3,
    head: float = 0.4,
    tail: float = 0.1,
    num_samples: int | None = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Label compensation at two levels: of the sample against wrong labels, of the class against imbalance.

    .. math:: \Delta y_i + \Delta y_{y_i}, \qquad \Delta y_i = \lambda (p_i - y_i), \quad
              \Delta y_c = \epsilon_c (I/C - y), \quad
              \epsilon_c = \epsilon_t + (\epsilon_h - \epsilon_t) \sin \frac{\pi (n_c - n_{\min})}{2 (n_{\max} - n_{\min})}

    where :math:`n_c` counts the samples of class c: labels of frequent classes, of which a model grows too sure, are
    smoothed most. The paper names the form only; the sample's term is soft bootstrapping with a constant prediction, the
    term of the class is label-aware smoothing.

    Args:
        class_counts: the number of training samples of each class.
        lam: :math:`\lambda`, the trust in the prediction.
        head: :math:`\epsilon_h`, of the most frequent class.
        tail: :math:`\epsilon_t`, of the rarest class.
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> import torch
    >>> criterion = mix_level_label(class_counts=[90, 9, 1])
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.7285)
    """
    if lam + max(head, tail) > 1:
        raise InputError(f"lam={lam} and head={head}, tail={tail}; together they may take at most the whole label, 1.")
    smoothing = OfClass(_head_is_smoothed_more(class_counts, head, tail))
    return Compensated(
        label=(Toward(prediction, lam), Toward(uniform, smoothing)), record=recorded(num_samples), weight=weight
    )


@method(
    "label", "mixed", "meta", "sample",
    equation="5-i with 12-14",
    reference="Yao and Wu, Compensation Learning, 2021, Section III-C(4)",
    needs=["index", "clean"],
    limits="Plain cross entropy until meta_step is called. As good as the clean data.",
    search=Space({"lr": Real(5.0, 1000.0, log=True)}),
)  # fmt: skip
def meta_label(
    *,
    num_samples: int,
    num_classes: int,
    per: Literal["sample", "category"] = "sample",
    lr: float = 20.0,
    weight: Weights | None = None,
) -> Compensated:
    r"""Label compensation learned by meta steps: labels move as it helps on clean data.

    .. math:: v_i \leftarrow v_i - \alpha \frac{\partial}{\partial v_i} \sum_{j \in \Omega} l(\Theta'(v), j), \qquad
              y_i + \Delta y_i = \Pi_\Delta(y_i + v_i)

    where :math:`\Omega` is clean data, :math:`\Theta'` the model after one step under the labels, and
    :math:`\Pi_\Delta` the projection on the simplex. Entries of :math:`v_i` stay within [-1, 1]: a label needs no more.

    Args:
        num_samples: the size of the training set.
        num_classes: the number of classes.
        per: a row for each "sample", or one for each "category" (then a label of class c moves to the same mixture
            for all its samples).
        lr: the step :math:`\alpha` of `meta_step` without an optimizer. It multiplies the model's own step and one over
            the batch, so that it is large.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> import torch
    >>> criterion = meta_label(num_samples=1000, num_classes=3)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]), torch.tensor([7]))
    tensor(2.3584)
    """
    if per not in ("sample", "category"):
        raise InputError(f'per is "{per}"; expected "sample" or "category".')
    bound = Ball(1.0, "linf")
    table: Sample | Category
    if per == "sample":
        table = Sample(num_samples, num_classes, update="meta", lr=lr, bound=bound)
    else:
        table = Category(num_classes, num_classes, update="meta", lr=lr, bound=bound)
    return Compensated(label=table, record=Evidence(num_samples), weight=weight)
