"""Class centres of the inputs."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from compensate.checks import checked_keys
from compensate.errors import InputError
from compensate.inference.statistics import Statistic
from compensate.state import State, Value, at, rowwise


@final
class ClassCentre(Statistic):
    r"""The mean input of each class over all batches so far; as a value, that of the given class, (B, \*shape).

    .. math:: m_c = \frac1{n_c} \sum_{j: y_j = c} x_j

    Args:
        num_classes: the number of classes.
        feature_shape: the shape of an input (or of the model's `embed(x)`).
    """

    granularity, reader = "category", "a centre of each class"

    def __init__(self, num_classes: int, feature_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.track("count", torch.zeros(num_classes), merge="sum")
        self.track("total", torch.zeros(num_classes, *feature_shape), merge="sum")
        self.count: Tensor
        self.total: Tensor

    def forward(self, s: State) -> Tensor:
        """(B, *shape) the centre of each sample's given class, zeros for a class not seen yet."""
        checked_keys(s.labels, len(self.total), self.reader, "class", s.criterion.check)  # outputs are not known yet
        self._check_shape(s)
        return self.total[s.labels] / rowwise(self.count[s.labels].clamp(min=1), self.total)

    def _check_shape(self, s: State) -> None:
        if s.e.shape[1:] != self.total.shape[1:]:
            raise InputError(
                f"inputs have shape {tuple(s.e.shape[1:])}, but feature_shape is {tuple(self.total.shape[1:])}; give the "
                "shape of one sample."
            )

    def check(self, s: State) -> None:
        """Inputs must fit, too."""
        super().check(s)
        self._check_shape(s)

    def known(self, s: State) -> Tensor:
        """(B,) true where the class of the sample has been seen."""
        return self.count[s.labels] > 0

    def observe(self, s: State) -> None:
        """Adds the inputs of the batch."""
        x, labels = s.e.detach()[s.valid].to(self.total.dtype), s.labels[s.valid]
        self.total.index_add_(0, labels, x)
        self.count.index_add_(0, labels, torch.ones_like(labels, dtype=self.count.dtype))

    def extra_repr(self) -> str:
        """Sizes."""
        return " x ".join(str(size) for size in self.total.shape)


@final
class ToCentre(nn.Module):
    r"""Pulls each input toward the centre of its class.

    .. math:: \Delta x_i = \lambda (m_{y_i} - x_i)

    where :math:`m_c` is the centre of class :math:`c`. With :math:`\lambda = 1` nothing is left of the sample itself. A class
    that has not been seen yet leaves its samples alone.

    Args:
        centre: :math:`m`, a :class:`ClassCentre`.
        lam: :math:`\lambda` in [0, 1], a number or a callable of the state.

    Reference: Yao and Wu, Compensation Learning, 2021, remark after Eq. (8).
    """

    direction, inference, granularity = "mixed", "prior", "sample"

    def __init__(self, centre: ClassCentre, lam: Value) -> None:
        super().__init__()
        if not callable(lam) and not 0 <= lam <= 1:
            raise InputError(f"lambda is {lam}; expected a share of the way to the centre, from 0 to 1.")
        self.centre, self.lam = centre, lam

    def forward(self, s: State) -> Tensor:
        """The feature compensation, a constant shaped like the input."""
        x = s.e.detach()
        pull = rowwise(at(self.lam, s), x) * (self.centre(s).to(x.dtype) - x)
        return torch.where(rowwise(self.centre.known(s), x), pull, 0.0)

    def extra_repr(self) -> str:
        """How far."""
        return "" if isinstance(self.lam, nn.Module) else f"lambda={self.lam}"
