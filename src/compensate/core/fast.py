"""Cross entropy and its slope from one softmax: the loss, the gradient of the model and the step of a row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def log_softmax(u: Tensor) -> Tensor:
    """(B, C) log-softmax of logits. For few classes torch is three times faster on the CPU if it works on columns.

    >>> log_softmax(torch.tensor([[3.0, 0.8, 0.2]]))
    tensor([[-0.1584, -2.3584, -2.9584]])
    """
    return u.t().log_softmax(0).t() if u.is_cpu and u.shape[-1] < 16 else u.log_softmax(-1)


CHUNK = 2**17
"""Entries that stay in the cache of a processor. Larger temporaries cause page faults, which cost more than arithmetic."""


def chunk_length(v: Tensor) -> int:
    """The number of rows of `v` to process at a time: all, or `CHUNK` entries of a larger eager CPU tensor.

    >>> chunk_length(torch.zeros(5, CHUNK // 2)), chunk_length(torch.zeros(5, 2))
    (2, 5)
    """
    rows, entries = v.shape[0], v.numel()
    if entries <= CHUNK or not v.is_cpu or torch.compiler.is_compiling():
        return max(1, rows)
    return max(1, CHUNK * rows // entries)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, du: Tensor, labels: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        given = labels[:, None]
        q = u + du
        logp = log_softmax(q) if q.shape[-1] < 16 else torch.log_softmax(q, -1, out=q)
        losses = -logp.gather(1, given)[:, 0]
        slope = logp.exp_().scatter_(1, given, -1.0, reduce="add")
        if valid is not None:
            losses, slope = torch.where(valid, losses, 0.0), torch.where(valid[:, None], slope, 0.0)
        ctx.save_for_backward(u, du, slope, valid)
        ctx.mark_non_differentiable(slope)
        ctx.set_materialize_grads(False)
        return losses, slope

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        u, du, slope, valid = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives the slope must depend on the logits
            p = (u + du).softmax(-1)
            p = p if valid is None else torch.where(valid[:, None], p, 0.0)
            slope = slope + (p - p.detach())
        return slope * grad[:, None], None, None, None


def cross_entropy_with_slope(
    u: Tensor, du: Tensor, labels: Tensor, valid: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Cross entropies (B,) and their slope (B, C), a constant; both are zero for ignored samples.

    .. math:: l_i = -\log S(u_i + \Delta u_i)_{y_i}, \qquad \frac{\partial l_i}{\partial u_i} = S(u_i + \Delta u_i) - y_i

    Args:
        u: (B, C) logits.
        du: (B, C) or (B, 1), a constant that is added to them.
        labels: (B,) class numbers.
        valid: (B,) false for ignored samples; None if none is ignored.

    >>> cross_entropy_with_slope(torch.tensor([[3.0, 0.8, 0.2]]), torch.zeros(1, 3), torch.tensor([1]))
    (tensor([2.3584]), tensor([[ 0.8535, -0.9054,  0.0519]]))
    """
    return _CrossEntropy.apply(u, du, labels, valid)  # type: ignore[no-untyped-call]
