"""Plain cross entropy, the row that all others are compared with."""

from __future__ import annotations

from compensate.equation import BinaryBase, Compensated, Weights
from compensate.inference.statistics import labels_of, recorded
from compensate.methods.registry import method

__all__ = ["base"]


@method(
    "none", "none", "none", "none",
    equation="1",
    reference="plain training",
    kind="baseline",
    limits="Fits wrong labels as willingly as right ones when it trains for long.",
)  # fmt: skip
def base(
    *,
    num_samples: int | None = None,
    num_classes: int | None = None,
    base: BinaryBase = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Cross entropy without compensation.

    .. math:: L = \frac1B \sum_i l(S(u_i), y_i)

    With several labels, binary cross entropy, the mean over samples and labels.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        num_classes: the number of classes, for a record under `base="bce"`.
        base: "bce" for several labels a sample.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> import torch
    >>> base()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.3584)
    """
    record = recorded(num_samples, num_labels=labels_of(base, num_samples, num_classes))
    return Compensated(base=base, record=record, weight=weight)
