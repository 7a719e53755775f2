"""Values of the state: numbers that may change, shaped to meet what they are added to or multiplied with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from compensate.state import State

Value = Any
"""A number, or a callable of the state: a schedule, a table, a statistic, a function."""


def at(value: Value, s: State) -> Any:
    """A hyper-parameter at this moment: itself if a number, else what it says for the state."""
    return value(s) if callable(value) else value


def rowwise(v: Any, like: Tensor) -> Any:
    """`v` with one value (or row) per sample, shaped to broadcast against `like`.

    Axes are filled in after the first, so that one row of a text table serves all tokens of its sample.

    >>> import torch
    >>> rowwise(torch.ones(4), torch.ones(4, 7, 3)).shape
    torch.Size([4, 1, 1])
    >>> rowwise(torch.ones(4, 3), torch.ones(4, 7, 3)).shape
    torch.Size([4, 1, 3])
    """
    if not isinstance(v, Tensor) or v.ndim == 0 or v.ndim >= like.ndim:
        return v
    return v.reshape(v.shape[:1] + (1,) * (like.ndim - v.ndim) + v.shape[1:])
