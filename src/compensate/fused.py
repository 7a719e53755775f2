"""Cross entropy and its slope from one softmax: the value, the gradient of the model and the step of a row at once."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from compensate.checks import at_hand

BLOCK = 2**16
"""Entries that are worked on at a time where that is cheaper: as many as stay in the cache of a processor."""


def blocks(values: Tensor) -> list[slice]:
    """Rows of (B, C) values in portions of at most `BLOCK` entries or one row; at least one portion.

    >>> blocks(torch.zeros(5, BLOCK // 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    rows = max(1, BLOCK // max(1, values.shape[-1]))
    return [slice(begin, min(begin + rows, len(values))) for begin in range(0, max(1, len(values)), rows)]


class _Sloped(torch.autograd.Function):
    """Losses (B,) whose slope (B, C) in the logits is known already."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, losses: Tensor, slope: Tensor, labels: Tensor) -> Tensor:
        ctx.save_for_backward(u, slope, labels)
        return losses.view_as(losses)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        u, slope, labels = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted, as in a gradient penalty
            slope = _again(u, slope, labels)
        return slope * grad[:, None], None, None, None


def _again(u: Tensor, slope: Tensor, labels: Tensor) -> Tensor:
    """The slope as a function of the logits: what was added to them was constant, so that S(u + du) = p moves as S does."""
    y = F.one_hot(labels, u.shape[-1])
    p = (slope + y).clamp(min=0)
    moved = torch.where(p > 0, p.log() + (u - u.detach()), -torch.inf).softmax(-1)
    return torch.where((slope != 0).any(-1, keepdim=True), moved - y, slope)  # zero for samples that do not count


def sloped(u: Tensor, losses: Tensor, slope: Tensor, labels: Tensor) -> Tensor:
    r"""Cross entropies (B,) that are known, tied to their logits by a slope that is known.

    Args:
        u: (B, C) logits.
        losses: (B,) constants.
        slope: (B, C) the derivative of the losses, :math:`S(u + \Delta u) - y`; zero rows for samples that do not count.
        labels: (B,) class numbers.

    >>> u = torch.zeros(1, 2, requires_grad=True)
    >>> sloped(u, torch.tensor([0.7]), torch.tensor([[-0.5, 0.5]]), torch.tensor([0])).sum().backward()
    >>> u.grad
    tensor([[-0.5000,  0.5000]])
    """
    return _Sloped.apply(u, losses, slope, labels)  # type: ignore[no-untyped-call]


def cross_entropy_with_slope(
    u: Tensor, labels: Tensor, du: Tensor | None = None, valid: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Cross entropies (B,) and their derivatives (B, C) in the logits.

    .. math:: l_i = -\log S(u_i + \Delta u_i)_{y_i}, \qquad \frac{\partial l_i}{\partial u_i} = S(u_i + \Delta u_i) - y_i

    Args:
        u: (B, C) logits.
        labels: (B,) class numbers.
        du: (B, C) a constant that is added to the logits.
        valid: (B,) false for samples whose loss is 0.

    >>> losses, slope = cross_entropy_with_slope(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    >>> losses, slope
    (tensor([2.3584]), tensor([[ 0.8535, -0.9054,  0.0519]]))
    """
    if torch.compiler.is_compiling():
        return _compiled(u, labels, du, valid)
    if u.numel() <= BLOCK:  # few numbers: torch's own derivative costs less than a call of ours
        return slope_of((u if du is None else u + du).log_softmax(-1), labels, valid)
    with torch.no_grad():
        losses, slope = slope_of((u if du is None else u + du).log_softmax(-1), labels, valid, over=True)
    return sloped(u, losses, slope, labels), slope


def _compiled(u: Tensor, labels: Tensor, du: Tensor | None, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same in a form that a compiler turns into few passes: no log-probabilities are kept in order to pick from them."""
    with torch.no_grad():
        q = u if du is None else u + du
        largest = q.amax(-1, keepdim=True)
        total = (q - largest).exp().sum(-1, keepdim=True).log() + largest
        losses = (total - q.gather(1, labels[:, None]))[:, 0]
        # A second exponential costs less than memory for the first.
        slope = (q - total).exp() - (torch.arange(u.shape[-1], device=u.device) == labels[:, None]).to(u.dtype)
        if valid is not None:
            losses, slope = torch.where(valid, losses, 0.0), torch.where(valid[:, None], slope, 0.0)
    return sloped(u, losses, slope, labels), slope


def slope_of(logp: Tensor, labels: Tensor, valid: Tensor | None = None, *, over: bool = False) -> tuple[Tensor, Tensor]:
    """Losses (B,) and slopes (B, C), constants, of log-probabilities (B, C); with `over`, slopes are written over these."""
    losses = F.nll_loss(logp, labels, reduction="none")
    logp = logp.detach()
    slope = (logp.exp_() if over else logp.exp()).scatter_(1, labels[:, None], -1.0, reduce="add")
    if valid is None:
        return losses, slope
    return torch.where(valid, losses, 0.0), torch.where(valid[:, None], slope, 0.0)


def cross_entropy(u: Tensor, labels: Tensor) -> Tensor:
    """(B,) cross entropies as constants; of many logits, portion by portion, so that no second array of that size is made.

    >>> cross_entropy(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor([2.3584])
    """
    u = u.detach()
    if u.numel() <= BLOCK or not at_hand(u):
        return F.cross_entropy(u, labels, reduction="none")
    return torch.cat([F.cross_entropy(u[rows], labels[rows], reduction="none") for rows in blocks(u)])
