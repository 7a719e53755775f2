"""Cross entropy and its slope from one softmax: what a learned table on logits needs in every step."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class _CrossEntropy(torch.autograd.Function):
    """Losses (B,) of logits (B, C), with their slope S(u) - y kept for the backward pass and for the table."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        slope = u.log_softmax(-1)
        losses = slope.gather(1, labels[:, None])[:, 0].neg()
        slope = slope.exp_()
        slope.scatter_add_(1, labels[:, None], slope.new_full((len(labels), 1), -1.0))
        ctx.save_for_backward(slope, u, labels)
        ctx.mark_non_differentiable(slope)
        return losses, slope

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        slope, u, labels = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted, as in a gradient penalty
            slope = u.softmax(-1) - F.one_hot(labels, u.shape[-1])
        return slope * grads[0][:, None], None


def cross_entropy_with_slope(u: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    r"""Cross entropies (B,) and their derivatives (B, C) in the logits.

    .. math:: l_i = -\log S(u_i)_{y_i}, \qquad \frac{\partial l_i}{\partial u_i} = S(u_i) - y_i

    Args:
        u: (B, C) logits.
        labels: (B,) class numbers.

    >>> losses, slope = cross_entropy_with_slope(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    >>> losses, slope
    (tensor([2.3584]), tensor([[ 0.8535, -0.9054,  0.0519]]))
    """
    losses, slope = _CrossEntropy.apply(u, labels)  # type: ignore[no-untyped-call]
    return losses, slope
