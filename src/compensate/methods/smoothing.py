"""Methods that smooth labels: every label gives a share to other classes."""

from __future__ import annotations

from typing import Literal

from compensate.equation import BinaryBase, Compensated, Weights
from compensate.inference.guesses import Worst
from compensate.inference.prior import Toward, uniform
from compensate.inference.statistics import ClassMean, labels_of, recorded
from compensate.methods.registry import method
from compensate.methods.search import Real, Space, each
from compensate.state import Value

__all__ = ["adversarial_label_smoothing", "label_smoothing", "online_label_smoothing"]


@method(
    "label", "mixed", "prior", "sample",
    equation="25",
    reference="Szegedy et al., Rethinking the Inception Architecture, CVPR 2016",
    limits="lam = 0 is cross entropy. Treats all wrong classes alike, and right labels like wrong ones.",
    search=Space({"lam": Real(0.01, 0.6)}),
    candidates=each(lam=(0.1, 0.2, 0.3, 0.45, 0.6)),
)  # fmt: skip
def label_smoothing(
    *,
    num_samples: int | None = None,
    num_classes: int | None = None,
    lam: Value = 0.1,
    base: BinaryBase = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Label smoothing: every label gives a little to all classes alike.

    .. math:: \Delta y_i = \lambda (I/C - y_i)

    With several labels, each gives to its opposite: :math:`\Delta y_{i,c} = \lambda (1/2 - y_{i,c})`.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        num_classes: the number of classes, for a record under `base="bce"`.
        lam: the share :math:`\lambda`; torch calls it `label_smoothing`.
        base: "bce" for several labels a sample.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> import torch
    >>> label_smoothing(lam=0.1)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.3050)
    """
    record = recorded(num_samples, num_labels=labels_of(base, num_samples, num_classes))
    return Compensated(label=Toward(uniform, lam), base=base, record=record, weight=weight)


@method(
    "label", "negative", "adversarial", "sample",
    equation="26, 27",
    reference="Goibert and Dohmatob, Adversarial Robustness via Label-Smoothing, 2019",
    limits="lam = 0 is cross entropy. Meant for adversarial robustness; it does nothing against wrong labels.",
    search=Space({"lam": Real(0.01, 0.6)}),
)  # fmt: skip
def adversarial_label_smoothing(
    *,
    num_samples: int | None = None,
    lam: Value = 0.1,
    kind: Literal["least_likely", "boltzmann", "second_best"] = "least_likely",
    temperature: float = 0.1,
    detach: bool = False,
    weight: Weights | None = None,
) -> Compensated:
    r"""Label smoothing toward the worst guess: the class that the model holds least likely.

    .. math:: \Delta y_i = \lambda (p_i^* - y_i), \qquad
              p_i^* = \arg\max_{p \in \Delta} l(S(u_i), y_i + \lambda (p - y_i))

    The maximum over the simplex (which Eq. 27 leaves out) is the one-hot vector of the least likely class; tied classes
    share. If the given class is the least likely itself, nothing changes.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        lam: the share :math:`\lambda`.
        kind: "least_likely", or the authors' relatives: "boltzmann", :math:`p^*_{i,c} \propto e^{-p_{i,c}/T}` over
            the classes other than the given one; "second_best", the likeliest of them. Both go in mixed directions.
        temperature: :math:`T` of "boltzmann".
        detach: make the guess of "boltzmann" a constant in the gradient; the authors' code does not.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> import torch
    >>> adversarial_label_smoothing(lam=0.1)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.4184)
    """
    return Compensated(label=Toward(Worst(kind, temperature, detach), lam), record=recorded(num_samples), weight=weight)


@method(
    "label", "mixed", "prior", "category",
    equation="54-56 with beta = 1",
    reference="Zhang et al., Delving Deep into Label Smoothing, IEEE TIP 2021",
    needs=["epochs"],
    limits="Without end_epoch() it stays label smoothing. A class that is never predicted right keeps a uniform row.",
    search=Space({"alpha": Real(0.05, 0.95)}),
    candidates=each(alpha=(0.5, 0.3, 0.1, 0.7, 0.9)),
)  # fmt: skip
def online_label_smoothing(
    *,
    num_classes: int,
    num_samples: int | None = None,
    alpha: Value = 0.5,
    conf: Literal["all", "correct"] = "correct",
    weight: Weights | None = None,
) -> Compensated:
    r"""Label smoothing toward the mean of the right predictions of the sample's class in the previous epoch.

    .. math:: \Delta y_i = \alpha (\tilde p_{y_i} - y_i), \qquad
              \tilde p_c = \frac1{Z_c} \sum_{j: y_j = c} \mathrm{conf}_j\, p_j

    In the first epoch :math:`\tilde p_c` is uniform.

    Args:
        num_classes: the number of classes.
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        alpha: the share :math:`\alpha`. The authors write it as the share of the given label; at their 0.5 it is both.
        conf: which predictions count: only the "correct" ones, or "all".
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> import torch
    >>> online_label_smoothing(num_classes=3)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.0917)
    """
    return Compensated(label=Toward(ClassMean(num_classes, conf), alpha), record=recorded(num_samples), weight=weight)
