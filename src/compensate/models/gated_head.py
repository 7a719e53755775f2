"""A last layer with one more output, a gate that has layers of its own."""

from __future__ import annotations

from typing import cast, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@final
class GatedHead(nn.Module):
    r"""The head of a model for :func:`~compensate.methods.logit.gated_category`: logits, and after them the gate.

    .. math:: h(z) = [\text{head}(z),\; w^\top \mathrm{BN}(V z + c)]

    The gate reads the same features as the classifier, place by place, by two linear layers with batch normalization between them.
    Its last weights start ten times smaller than usual, and gates half open.

    Args:
        head: the layer or layers that give the logits, (B, D, d1, ...) -> (B, C, d1, ...). If they return images of another size, the
            gate is interpolated to it.
        in_features: the number of features D.
        hidden: the number of hidden units.

    >>> head = GatedHead(nn.Conv2d(8, 3, 1), in_features=8)
    >>> head(torch.rand(2, 8, 5, 5)).shape
    torch.Size([2, 4, 5, 5])

    Reference: Kaiser et al., Compensation Learning in Semantic Segmentation, CVPR workshops 2023.
    """

    def __init__(self, head: nn.Module, in_features: int, hidden: int = 64) -> None:
        super().__init__()
        self.head = head
        last = nn.Conv1d(hidden, 1, 1, bias=False)
        with torch.no_grad():
            last.weight /= 10
        self.gate = nn.Sequential(nn.Conv1d(in_features, hidden, 1), nn.BatchNorm1d(hidden), last)

    def forward(self, z: Tensor) -> Tensor:
        """(B, C + 1, d1, ...) logits and gate."""
        u = cast(Tensor, self.head(z))
        gate = self.gate(z.reshape(*z.shape[:2], -1)).reshape(len(z), 1, *z.shape[2:])
        if gate.shape[2:] != u.shape[2:]:
            gate = F.interpolate(gate, u.shape[2:], mode="bilinear", align_corners=False)
        return torch.cat([u, gate], 1)
