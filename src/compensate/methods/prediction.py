"""Methods that compensate predictions."""

from __future__ import annotations

from compensate.equation import Compensated, Weights
from compensate.inference.overparameterised import OverParameterised
from compensate.inference.statistics import Evidence
from compensate.methods.registry import method
from compensate.methods.search import Real, Space, each

__all__ = ["sop"]

REFERENCE_BATCH = 128
"""The authors' steps act on the mean over a batch of this size."""


@method(
    "prediction", "positive", "regularised", "sample",
    equation="5-ii",
    reference="Liu et al., Robust Training under Label Noise by Over-parameterization, ICML 2022",
    needs=["index"],
    limits="Cross entropy until the rows have grown from almost nothing, which takes some epochs.",
    search=Space({"lr_u": Real(0.01, 10.0, log=True), "lr_v": Real(0.01, 100.0, log=True)}),
    candidates=each(lr_u=(10.0, 1.0, 1.0, 0.1, 10.0), lr_v=(10.0, 10.0, 1.0, 1.0, 100.0)),
)  # fmt: skip
def sop(
    *,
    num_samples: int,
    num_classes: int,
    lr_u: float = 10 / REFERENCE_BATCH,
    lr_v: float = 10 / REFERENCE_BATCH,
    spread: float = 1e-8,
    floor: float = 1e-4,
    joint: bool = True,
    weight: Weights | None = None,
) -> Compensated:
    r"""Sparse over-parameterisation: each sample has a correction of its prediction that starts at almost nothing.

    .. math:: \Delta p_i = \mathrm{normalise}(\max(p_i + \mu_i^2 y_i - \nu_i^2 (1 - y_i), \epsilon)) - p_i

    where :math:`\mu_i` descends the cross entropy and :math:`\nu_i` the squared error of the most likely class. The
    sum is divided by its total where the equation of this library would project (Eq. 6). The authors' SOP+ adds a
    consistency loss over two views and a balance loss, which are left out.

    Args:
        num_samples: the size of the training set.
        num_classes: the number of classes.
        lr_u: the step of :math:`\mu` per sample and visit; the authors use 10 (CIFAR-10) or 1 (CIFAR-100) on the mean
            over a batch of 128, hence the default.
        lr_v: the step of :math:`\nu`; the authors use 10, or 100 for asymmetric noise, on the same mean.
        spread: the standard deviation of the start.
        floor: the smallest entry :math:`\epsilon` before the division. The authors cut off at it once more afterwards.
        joint: let :math:`\mu` descend the squared error too, as the authors' code does and their paper does not.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> import torch
    >>> criterion = sop(num_samples=1000, num_classes=3)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]), torch.tensor([7]))
    tensor(2.3584)
    """
    term = OverParameterised(
        num_samples, num_classes, lr_u=lr_u, lr_v=lr_v, spread=spread, floor=floor, joint=joint
    )  # fmt: skip
    return Compensated(prediction=term, record=Evidence(num_samples), weight=weight)
