"""Views of an input: transformations that keep its shape and, by prior knowledge, its class.

Compensation by views stays among a few directions that mean something, instead of going anywhere in the space of inputs.
They act on the last axis, which is that of columns in an image and of entries in a vector, and they are differentiable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from compensate.core.layout import Places
from compensate.errors import InputError

__all__ = ["Views", "blurred", "darkened", "moved", "shifted"]


def shifted(x: Tensor) -> Tensor:
    """Moved by one place along the last axis; the first place repeats.

    >>> shifted(torch.tensor([[1.0, 2.0, 3.0]]))
    tensor([[1., 1., 2.]])
    """
    return torch.cat([x[..., :1], x[..., :-1]], -1)


def moved(x: Tensor) -> Tensor:
    """Moved by one place the other way.

    >>> moved(torch.tensor([[1.0, 2.0, 3.0]]))
    tensor([[2., 3., 3.]])
    """
    return torch.cat([x[..., 1:], x[..., -1:]], -1)


def blurred(x: Tensor) -> Tensor:
    """The mean of each entry and its neighbors along the last axis.

    >>> blurred(torch.tensor([[0.0, 3.0, 0.0]]))
    tensor([[1., 1., 1.]])
    """
    return (shifted(x) + x + moved(x)) / 3


def darkened(x: Tensor) -> Tensor:
    """Half as large.

    >>> darkened(torch.tensor([[1.0, 2.0]]))
    tensor([[0.5000, 1.0000]])
    """
    return x / 2


MOVING = (shifted, moved)
"""After these a place shows what another one has shown, so that its label is that of another."""

DEFAULT = (shifted, moved, blurred, darkened)
"""For images and vectors whose neighboring entries belong together."""


@final
class Views(nn.Module):
    r"""Views of an input, for compensation that leads toward them: :math:`x_i + \sum_k w_{i,k} (T_k(x_i) - x_i)`.

    Args:
        of: the transformations :math:`T_k`, functions of a batch of inputs (or of the model's `embed(x)`) that keep its shape
            and its samples apart, such as those of :mod:`compensate.core.views`. Where places have labels of their own, they must
            leave each place where it is, as `blurred` and `darkened` do.

    >>> len(Views(shifted, blurred).of)
    2
    """

    def __init__(self, *of: Callable[..., Tensor]) -> None:
        super().__init__()
        if not of or not all(callable(view) for view in of):
            raise InputError(
                f"views are {of!r}; expected at least one function of a batch, such as compensate.core.views.shifted."
            )
        for number, view in enumerate(of):
            setattr(self, str(number), view)
        self.size = len(of)

    def check(self, places: Places) -> None:
        """Raises if a view moves inputs whose places have labels of their own."""
        if places.dense and any(view in MOVING for view in self.of):
            raise InputError(
                f"a view moves the input, and an input of this batch has {places.each} places with labels of their own, which "
                "would not move along. Choose views that leave places where they are: views=(blurred, darkened)."
            )

    @property
    def of(self) -> tuple[Callable[..., Tensor], ...]:
        """In order."""
        return tuple(getattr(self, str(number)) for number in range(self.size))
