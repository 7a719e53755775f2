r"""Proximal maps and projections for numpy arrays and torch tensors; penalties and bounds of learned tables.

The proximal map of a penalty :math:`r` moves a value toward zero: :math:`\mathrm{prox}_{t r}(v) = \arg\min_w \tfrac12 \|w - v\|^2 + t\, r(w)`.
A *row* is one entry of the first axis with all its other axes; `t` and `radius` are numbers or one value per row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar, final

import numpy as np
import torch
import torch.nn.functional as F

from compensate.core.batch import Batch, Value
from compensate.core.layout import CHUNK, chunks
from compensate.errors import check

Array = TypeVar("Array", np.ndarray, torch.Tensor)
Norm = Literal["l2", "linf"]

TINY = float(np.finfo(np.float32).tiny)

SMALLEST = 1e-12
"""Probabilities are kept above this before a logarithm or a division."""


def _per_row(t: Any, v: Any) -> Any:
    """`t` shaped to broadcast against the rows of `v`."""
    shape = getattr(t, "shape", ())
    return t.reshape(shape + (1,) * (v.ndim - 1)) if len(shape) == 1 and v.ndim > 1 else t


def row_norm(v: Array) -> Array:
    """Euclidean norm of each row, shape (B, 1, ..., 1); its gradient is zero, not NaN, at a zero row.

    >>> row_norm(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[5.],
            [0.]])
    """
    if isinstance(v, torch.Tensor):
        flat = torch.linalg.vector_norm(v.flatten(1), dim=1) if v.ndim > 1 else v.abs()
    else:
        flat = np.linalg.norm(v.reshape(len(v), -1), axis=1) if v.ndim > 1 else np.abs(v)
    return flat.reshape((-1,) + (1,) * (v.ndim - 1))


def soft_threshold(v: Array, t: Any) -> Array:
    r"""The proximal map of :math:`t\|v\|_1`: every entry moves toward zero by `t` and stops there.

    >>> soft_threshold(torch.tensor([-3.0, 0.5, 2.0]), 1.0)
    tensor([-2.,  0.,  1.])
    """
    if isinstance(v, torch.Tensor) and isinstance(t, (int, float)):
        return F.softshrink(v, t)  # the same in one pass
    t = _per_row(t, v)
    return v - v.clip(-t, t)


def group_soft_threshold(v: Array, t: Any) -> Array:
    r"""The proximal map of :math:`t\|v_i\|_2`: every row shortens by `t`, or vanishes as a whole.

    >>> group_soft_threshold(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0)
    tensor([[2.4000, 3.2000],
            [0.0000, 0.0000]])
    """
    return v * (1 - _per_row(t, v) / row_norm(v).clip(TINY)).clip(0)


def hard_threshold(v: Array, t: Any) -> Array:
    r"""The proximal map of :math:`\tfrac{t^2}{2}\|v\|_0`: entries of size at most `t` vanish, the others stay.

    >>> hard_threshold(torch.tensor([-3.0, 0.5, 2.0]), 1.0)
    tensor([-3.,  0.,  2.])
    """
    return v * (abs(v) > _per_row(t, v))


def shrink(v: Array, t: Any) -> Array:
    r"""The proximal map of :math:`\tfrac{t}{2}\|v\|_2^2`.

    >>> shrink(torch.tensor([-3.0, 2.0]), 1.0)
    tensor([-1.5000,  1.0000])
    """
    return v / (1 + _per_row(t, v))


def project_ball(v: Array, radius: Any, norm: Norm) -> Array:
    r"""The nearest point of each row in the ball :math:`\|v_i\| \le` `radius`.

    >>> project_ball(torch.tensor([[3.0, 4.0]]), 1.0, "l2"), project_ball(torch.tensor([[3.0, 0.4]]), 1.0, "linf")
    (tensor([[0.6000, 0.8000]]), tensor([[1.0000, 0.4000]]))
    """
    radius = _per_row(radius, v)
    if norm == "linf":
        return v.clip(-radius, radius)
    return v * (radius / row_norm(v).clip(TINY)).clip(None, 1)


def project_simplex(v: Array) -> Array:
    r"""The nearest point of each row on the probability simplex.

    With entries sorted in falling order, the threshold is the mean excess of the largest k for the largest k
    whose k-th entry stays positive.

    >>> project_simplex(torch.tensor([[0.5, 0.7, -0.2]]))
    tensor([[0.4000, 0.6000, 0.0000]])
    """
    if not isinstance(v, torch.Tensor):
        return project_simplex(torch.as_tensor(v)).numpy()
    falling = v.sort(dim=-1, descending=True).values
    excess = (falling.cumsum(-1) - 1) / torch.arange(1, v.shape[-1] + 1).to(v)
    support = (falling > excess).sum(-1, keepdim=True)
    return (v - excess.gather(-1, (support - 1).clamp(min=0))).clip(0)


def normalized(q: torch.Tensor) -> torch.Tensor:
    """Rows divided by their sum, entries cut off at zero first."""
    q = q.clamp(min=0)
    return q / q.sum(-1, keepdim=True).clamp(min=SMALLEST)


ONTO: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "project": project_simplex,
    "normalize": normalized,
    "none": lambda q: q,
}
"""Maps from rows to distributions: the nearest point of the simplex, division by the sum, or none."""


Bound = Callable[[torch.Tensor], torch.Tensor]


class Penalty(Protocol):
    """A penalty on rows (R, *shape): its weight `lam`, its value, its proximal map and a subgradient."""

    lam: Value

    def __call__(self, v: torch.Tensor, s: Batch) -> torch.Tensor:
        """(R,) the penalty of each row."""

    def prox(self, v: torch.Tensor, step: float, s: Batch) -> torch.Tensor:
        """The proximal map of `step` times the penalty."""

    def subgradient(self, v: torch.Tensor, s: Batch) -> torch.Tensor:
        """A subgradient, zero at zero."""


class _WeightedPenalty(torch.nn.Module):
    """A penalty whose weight `lam` is a number or a callable of the batch."""

    def __init__(self, lam: Value) -> None:
        super().__init__()
        check(callable(lam) or lam >= 0, "lambda >= 0 (0: no penalty; large: no compensation)", **{"lambda": lam})
        self.lam = lam

    def weight(self, s: Batch) -> Any:
        """The weight for this batch."""
        return self.lam(s) if callable(self.lam) else self.lam

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.lam})"


@final
class L1(_WeightedPenalty):
    r"""The sparse penalty :math:`\lambda \|v_i\|_1`: most rows stay exactly zero.

    >>> L1(1.0).prox(torch.tensor([[0.5, -3.0]]), 1.0, None)
    tensor([[ 0., -2.]])
    """

    def forward(self, v: torch.Tensor, s: Batch) -> torch.Tensor:
        if v.numel() > CHUNK and v.ndim > 1:
            sizes = torch.cat([part.abs().flatten(1).sum(1) for (part,) in chunks(v)])
        else:
            sizes = v.abs().flatten(1).sum(1) if v.ndim > 1 else v.abs()
        return self.weight(s) * sizes

    def prox(self, v: torch.Tensor, step: float, s: Batch) -> torch.Tensor:
        return soft_threshold(v, step * self.weight(s))

    def subgradient(self, v: torch.Tensor, s: Batch) -> torch.Tensor:
        return self.weight(s) * v.sign()


@final
class L2(_WeightedPenalty):
    r"""The smooth penalty :math:`\tfrac{\lambda}{2} \|v_i\|_2^2`: rows shrink and never vanish.

    >>> L2(1.0).prox(torch.tensor([[0.5, -3.0]]), 1.0, None)
    tensor([[ 0.2500, -1.5000]])
    """

    def forward(self, v: torch.Tensor, s: Batch) -> torch.Tensor:
        return self.weight(s) / 2 * row_norm(v).flatten().square()

    def prox(self, v: torch.Tensor, step: float, s: Batch) -> torch.Tensor:
        return shrink(v, step * self.weight(s))

    def subgradient(self, v: torch.Tensor, s: Batch) -> torch.Tensor:
        return self.weight(s) * v


@final
class GroupL2(_WeightedPenalty):
    r"""The penalty :math:`\lambda \|v_i\|_2`: whole rows vanish, the others keep all their entries.

    >>> GroupL2(1.0).prox(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0, None)
    tensor([[2.4000, 3.2000],
            [0.0000, 0.0000]])
    """

    def forward(self, v: torch.Tensor, s: Batch) -> torch.Tensor:
        return self.weight(s) * row_norm(v).flatten()

    def prox(self, v: torch.Tensor, step: float, s: Batch) -> torch.Tensor:
        return group_soft_threshold(v, step * self.weight(s))

    def subgradient(self, v: torch.Tensor, s: Batch) -> torch.Tensor:
        return self.weight(s) * v / row_norm(v).clamp(min=1e-12)


@final
class Ball(torch.nn.Module):
    r"""The bound :math:`\|v_i\| \le` `radius` in the norm "l2" or "linf".

    >>> Ball(1.0)(torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """

    def __init__(self, radius: float, norm: Norm = "l2") -> None:
        super().__init__()
        check(radius > 0, "a positive radius", radius=radius)
        self.radius, self.norm = radius, norm

    def forward(self, v: torch.Tensor) -> torch.Tensor:
        return project_ball(v, self.radius, self.norm)

    def __repr__(self) -> str:
        return f"Ball({self.radius:g}, {self.norm})"


@final
class AtLeast(torch.nn.Module):
    """The bound that every entry is at least `low`.

    >>> AtLeast(0.0)(torch.tensor([[3.0, -4.0]]))
    tensor([[3., 0.]])
    """

    def __init__(self, low: float = 0.0) -> None:
        super().__init__()
        self.low = low

    def forward(self, v: torch.Tensor) -> torch.Tensor:
        return v.clamp(min=self.low)

    def __repr__(self) -> str:
        return f"AtLeast({self.low:g})"


@final
class Between(torch.nn.Module):
    """The bound that every entry lies between two numbers.

    >>> Between(-1.0, 0.0)(torch.tensor([-3.0, -0.5, 2.0]))
    tensor([-1.0000, -0.5000,  0.0000])
    """

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        check(low <= high, "low <= high", low=low, high=high)
        self.low, self.high = low, high

    def forward(self, v: torch.Tensor) -> torch.Tensor:
        return v.clamp(self.low, self.high)

    def __repr__(self) -> str:
        return f"Between({self.low:g}, {self.high:g})"
