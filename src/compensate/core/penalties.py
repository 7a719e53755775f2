r"""Inference with regularization: a table moves down its loss, and a penalty holds it back.

.. math:: v \leftarrow \mathrm{prox}_{\eta\lambda r}\left(v - \eta \frac{\partial l_i}{\partial v}\right)

where :math:`\eta` is the step, :math:`r` the penalty and :math:`\lambda` its weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from compensate.core.batch import Batch, Value, at
from compensate.core.fast import row_sizes
from compensate.core.proximal import Norm, group_soft_threshold, project_ball, row_norm, shrink, soft_threshold
from compensate.errors import InputError

Bound = Callable[[Tensor], Tensor]


class Penalty(Protocol):
    """What holds rows near zero: its value, its proximal map and a subgradient, each by row (R, *shape)."""

    def __call__(self, v: Tensor, s: Batch) -> Tensor:
        """(R,) the penalty of each row."""

    def prox(self, v: Tensor, step: float, s: Batch) -> Tensor:
        """The proximal map of `step` times the penalty."""

    def subgradient(self, v: Tensor, s: Batch) -> Tensor:
        """A subgradient, zero at zero."""


def _checked(lam: Value) -> Value:
    if not callable(lam) and lam < 0:
        raise InputError(f"lambda is {lam}; a penalty needs lambda >= 0 (0 is no penalty, large is no compensation).")
    return lam


@final
class L1(nn.Module):
    r"""The sparse penalty :math:`\lambda \|v_i\|_1`: most rows stay exactly zero.

    Args:
        lam: its weight, a number or a callable of the state.

    >>> import torch
    >>> L1(1.0).prox(torch.tensor([[0.5, -3.0]]), 1.0, None)
    tensor([[ 0., -2.]])
    """

    def __init__(self, lam: Value) -> None:
        super().__init__()
        self.lam = _checked(lam)

    def forward(self, v: Tensor, s: Any) -> Tensor:
        """(R,) the penalty of each row."""
        return at(self.lam, s) * (row_sizes(v) if s is None else s.sizes(v))

    def prox(self, v: Tensor, step: float, s: Batch) -> Tensor:
        """Soft thresholding."""
        return soft_threshold(v, step * at(self.lam, s))

    def subgradient(self, v: Tensor, s: Batch) -> Tensor:
        """The sign, zero at zero."""
        return at(self.lam, s) * v.sign()

    def __repr__(self) -> str:
        return f"L1({self.lam})"


@final
class L2(nn.Module):
    r"""The smooth penalty :math:`\tfrac{\lambda}{2} \|v_i\|_2^2`: rows shrink and never vanish.

    Args:
        lam: its weight, a number or a callable of the state.

    >>> import torch
    >>> L2(1.0).prox(torch.tensor([[0.5, -3.0]]), 1.0, None)
    tensor([[ 0.2500, -1.5000]])
    """

    def __init__(self, lam: Value) -> None:
        super().__init__()
        self.lam = _checked(lam)

    def forward(self, v: Tensor, s: Batch) -> Tensor:
        """(R,) the penalty of each row."""
        return at(self.lam, s) / 2 * row_norm(v).flatten().square()

    def prox(self, v: Tensor, step: float, s: Batch) -> Tensor:
        """Division by one plus the weight."""
        return shrink(v, step * at(self.lam, s))

    def subgradient(self, v: Tensor, s: Batch) -> Tensor:
        """The gradient."""
        return at(self.lam, s) * v

    def __repr__(self) -> str:
        return f"L2({self.lam})"


@final
class GroupL2(nn.Module):
    r"""The penalty :math:`\lambda \|v_i\|_2`: whole rows vanish, the others keep all their entries.

    Args:
        lam: its weight, a number or a callable of the state.

    >>> import torch
    >>> GroupL2(1.0).prox(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0, None)
    tensor([[2.4000, 3.2000],
            [0.0000, 0.0000]])
    """

    def __init__(self, lam: Value) -> None:
        super().__init__()
        self.lam = _checked(lam)

    def forward(self, v: Tensor, s: Batch) -> Tensor:
        """(R,) the penalty of each row."""
        return at(self.lam, s) * row_norm(v).flatten()

    def prox(self, v: Tensor, step: float, s: Batch) -> Tensor:
        """Soft thresholding of the length of each row."""
        return group_soft_threshold(v, step * at(self.lam, s))

    def subgradient(self, v: Tensor, s: Batch) -> Tensor:
        """The direction of each row, zero at zero."""
        return at(self.lam, s) * v / row_norm(v).clamp(min=1e-12)

    def __repr__(self) -> str:
        return f"GroupL2({self.lam})"


@final
class Ball(nn.Module):
    r"""The bound :math:`\|v_i\| \le` `radius`.

    Args:
        radius: of the ball, positive.
        norm: "l2" or "linf".

    >>> import torch
    >>> Ball(1.0)(torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """

    def __init__(self, radius: float, norm: Norm = "l2") -> None:
        super().__init__()
        if radius <= 0:
            raise InputError(f"radius is {radius}; a bound needs a positive radius.")
        self.radius, self.norm = radius, norm

    def forward(self, v: Tensor) -> Tensor:
        """The nearest rows in the ball."""
        return project_ball(v, self.radius, self.norm)

    def __repr__(self) -> str:
        return f"Ball({self.radius:g}, {self.norm})"


@final
class AtLeast(nn.Module):
    """The bound that every entry is at least `low`.

    >>> import torch
    >>> AtLeast(0.0)(torch.tensor([[3.0, -4.0]]))
    tensor([[3., 0.]])
    """

    def __init__(self, low: float = 0.0) -> None:
        super().__init__()
        self.low = low

    def forward(self, v: Tensor) -> Tensor:
        """The nearest rows in the set."""
        return v.clamp(min=self.low)

    def __repr__(self) -> str:
        return f"AtLeast({self.low:g})"


@final
class Between(nn.Module):
    """The bound that every entry lies between two numbers.

    Args:
        low, high: the smallest and the largest entry.

    >>> import torch
    >>> Between(-1.0, 0.0)(torch.tensor([-3.0, -0.5, 2.0]))
    tensor([-1.0000, -0.5000,  0.0000])
    """

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        if low > high:
            raise InputError(f"low={low}, high={high}; expected low <= high.")
        self.low, self.high = low, high

    def forward(self, v: Tensor) -> Tensor:
        """The nearest rows in the set."""
        return v.clamp(self.low, self.high)

    def __repr__(self) -> str:
        return f"Between({self.low:g}, {self.high:g})"


def row_step(
    v: Tensor,
    grad: Tensor,
    *,
    lr: float,
    penalty: Penalty | None,
    bound: Bound | None,
    subgradient: bool,
    s: Any,
    meet: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Rows (R, *shape) after one step down the gradient of their loss.

    `meet` is shown the rows between the gradient and the penalty, where rows of samples that share one can be made one.
    """
    if penalty is not None and subgradient:
        grad = grad + penalty.subgradient(v, s)
    v = torch.add(v, grad, alpha=-lr)
    v = v if meet is None else meet(v)
    v = v if penalty is None or subgradient else penalty.prox(v, lr, s)
    return v if bound is None else bound(v)
