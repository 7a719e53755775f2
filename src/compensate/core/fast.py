"""Cross entropy and its slope from one softmax: the value, the gradient of the model and the step of a row at once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from compensate.core.validation import at_hand

BLOCK = 2**17
"""Entries that are worked on at a time where that is cheaper: as many as stay in the cache of a processor. Of half as many, calls cost more than memory
(`python -m benchmarks.criterion`, ELR and SOP, a second-level cache of 2 MB)."""

VECTOR = 16
"""Classes below which a processor works on columns: torch takes rows that do not fill a vector number by number, in up to six times as long."""


def blocks(values: Tensor) -> list[slice]:
    """Rows of (B, C) values in portions of at most `BLOCK` entries or one row; at least one portion.

    >>> blocks(torch.zeros(5, BLOCK // 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    rows = max(1, BLOCK // max(1, values.shape[-1]))
    return [slice(begin, min(begin + rows, len(values))) for begin in range(0, max(1, len(values)), rows)]


def row_sizes(v: Tensor) -> Tensor:
    """(R,) the sum of the absolute values of each row (R, *shape): one operation on a device; on a processor two that take less time.

    >>> row_sizes(torch.tensor([[1.0, -2.0]]))
    tensor([3.])
    """
    if v.ndim == 1:
        return v.abs()
    v = v if v.ndim == 2 else v.flatten(1)
    if not v.is_cpu:
        return torch.linalg.vector_norm(v, 1, 1)
    if v.numel() <= BLOCK or torch.compiler.is_compiling():
        return v.abs().sum(1)
    return torch.cat([v[rows].abs().sum(1) for rows in blocks(v)])


Definition = Callable[[Tensor], Tensor]
"""Losses (B,) as a function of the logits (B, C)."""


class Fused(NamedTuple):
    """What a term that is the only one of its criterion finds together with the losses; all constants."""

    delta: Tensor | Callable[[], Tensor]
    """The compensation, as the term returns it; of predictions, what finds it if somebody asks."""
    losses: Tensor
    """(B,) the base losses."""
    plain: Tensor
    """(B,) the base losses without compensation."""
    slope: Tensor
    """(B, C) the derivative of the base losses and of what compensation adds to them by the logits."""
    definition: Definition
    """What the slope is the derivative of: second derivatives go by it. The graph keeps it, so it must not hold the state, which keeps the graph."""


class _Sloped(torch.autograd.Function):
    """Losses (B,), or their sum over a divisor, whose slope (B, C) in the logits is known already."""

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        losses: Tensor,
        slope: Tensor,
        target: Tensor,
        divisor: Tensor | int | None,
        definition: Definition | None,
    ) -> Tensor:
        ctx.save_for_backward(u, slope, target)
        ctx.divisor, ctx.definition = divisor, definition
        return losses.view_as(losses) if divisor is None else reduced(losses, divisor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, slope, target = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted, as in a gradient penalty
            slope = _again(u, slope, target) if ctx.definition is None else _derivative(ctx.definition, u)
        return slope * (grad[:, None] if ctx.divisor is None else grad / ctx.divisor), None, None, None, None, None


def _derivative(definition: Definition, u: Tensor) -> Tensor:
    """(B, C) the derivative of the losses of a definition, differentiable."""
    return torch.autograd.grad(definition(u).sum(), u, create_graph=True)[0]


def _again(u: Tensor, slope: Tensor, target: Tensor) -> Tensor:
    """The slope as a function of the logits: what was added to them was constant, so that S(u + du) = p moves as S does."""
    y = _chosen(target, slope)
    p = (slope + y).clamp(min=0)
    moved = torch.where(p > 0, p.log() + (u - u.detach()), -torch.inf).softmax(-1)
    return torch.where((slope != 0).any(-1, keepdim=True), moved - y, slope)  # zero for samples that do not count


def _chosen(target: Tensor, like: Tensor) -> Tensor:
    """(B, C) 1 at the class of each sample, and 0 elsewhere; a class that there is not has no 1."""
    return (torch.arange(like.shape[-1], device=like.device) == target[:, None]).to(like.dtype)


def reduced(losses: Tensor, divisor: Tensor | int) -> Tensor:
    """The sum of losses (B,) over a divisor; of their number, in one call."""
    if isinstance(divisor, int) and divisor == losses.shape[0]:
        return losses.mean()
    total = losses.sum()
    return total if isinstance(divisor, int) and divisor == 1 else total / divisor


def sloped(
    u: Tensor,
    losses: Tensor,
    slope: Tensor,
    target: Tensor,
    divisor: Tensor | int | None = None,
    definition: Definition | None = None,
) -> Tensor:
    r"""Losses (B,) that are known, tied to their logits by a slope that is known; or their sum over a divisor.

    Args:
        u: (B, C) logits.
        losses: (B,) constants.
        slope: (B, C) the derivative of the losses, :math:`S(u + \Delta u) - y`; zero rows for samples that do not count.
        target: (B,) class numbers.
        divisor: what the sum is divided by, if it is asked for: the node of a sum has no slopes of single losses to pass on.
        definition: what the losses are, if they are not cross entropies of logits with a constant added.

    >>> u = torch.zeros(1, 2, requires_grad=True)
    >>> sloped(u, torch.tensor([0.7]), torch.tensor([[-0.5, 0.5]]), torch.tensor([0])).sum().backward()
    >>> u.grad
    tensor([[-0.5000,  0.5000]])
    """
    return _Sloped.apply(u, losses, slope, target, divisor, definition)  # type: ignore[no-untyped-call]


def losses_and_slope(
    u: Tensor, du: Tensor, target: Tensor, valid: Tensor | None = None, *, ignore_index: int = -100
) -> tuple[Tensor, Tensor]:
    r"""Cross entropies (B,) and their derivatives (B, C) in the logits, constants; both are zero where a sample does not count.

    .. math:: l_i = -\log S(u_i + \Delta u_i)_{y_i}, \qquad \frac{\partial l_i}{\partial u_i} = S(u_i + \Delta u_i) - y_i

    Args:
        u: (B, C) logits.
        du: a constant that is added to them.
        target: (B,) class numbers.
        valid: (B,) false for samples whose target is `ignore_index`; None if it is known that all count.
        ignore_index: the class that stands for none.

    >>> losses_and_slope(torch.tensor([[3.0, 0.8, 0.2]]), torch.zeros(1, 3), torch.tensor([1]))
    (tensor([2.3584]), tensor([[ 0.8535, -0.9054,  0.0519]]))
    """
    q = u.detach() + du
    if torch.compiler.is_compiling():
        return _compiled(q, target, valid)
    logp = log_softmax(q, out=q)
    losses = F.nll_loss(logp, target, ignore_index=ignore_index, reduction="none")
    if valid is None:
        # Numbers that lie in another order are moved first: the exponential takes them one by one otherwise.
        p = q.exp_() if logp is q else q.copy_(logp).exp_()
        return losses, p.scatter_(1, target.unsqueeze(1), -1.0, reduce="add")
    # Torch's own derivatives leave out who does not count: fewer operations than masks.
    one, total = _one(logp.dtype, logp.device), 2
    given = torch.ops.aten.nll_loss_backward(one, logp, target, None, total, ignore_index, one)
    return losses, torch.ops.aten._log_softmax_backward_data(given, logp, 1, logp.dtype)


def log_softmax(u: Tensor, *, out: Tensor | None = None) -> Tensor:
    """(B, C) log-probabilities of logits; where it costs least, they are written over `out`: fresh memory costs more than numbers.

    >>> log_softmax(torch.tensor([[3.0, 0.8, 0.2]]))
    tensor([[-0.1584, -2.3584, -2.9584]])
    """
    if not u.is_cpu or torch.compiler.is_compiling():
        return u.log_softmax(-1)
    if u.shape[-1] < VECTOR:
        return u.t().log_softmax(0).t()
    return u.log_softmax(-1) if out is None else torch.log_softmax(u, -1, out=out)


@functools.cache
def _one(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.ones((), dtype=dtype, device=device)


def _compiled(q: Tensor, target: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same in a form that a compiler turns into few passes: no log-probabilities are kept in order to pick from them."""
    largest = q.amax(-1, keepdim=True)
    total = (q - largest).exp().sum(-1, keepdim=True).log() + largest
    labels = target if valid is None else target * valid
    losses = (total - q.gather(1, labels[:, None]))[:, 0]
    # A second exponential costs less than memory for the first.
    slope = (q - total).exp() - _chosen(target, q)
    if valid is None:
        return losses, slope
    return torch.where(valid, losses, 0.0), torch.where(valid[:, None], slope, 0.0)


def cross_entropy(u: Tensor, labels: Tensor) -> Tensor:
    """(B,) cross entropies as constants; on a processor portion by portion, so that no second array of that size is made.

    >>> cross_entropy(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor([2.3584])
    """
    u = u.detach()
    if not at_hand(u):
        return F.cross_entropy(u, labels, reduction="none")
    # Row by row, and not by columns as `log_softmax`, whose last bit depends on the place of a row in the batch: a record adds up
    # batches together, other ones in a run that was resumed.
    found = [F.cross_entropy(u[rows], labels[rows], reduction="none") for rows in blocks(u)]
    return found[0] if len(found) == 1 else torch.cat(found)
