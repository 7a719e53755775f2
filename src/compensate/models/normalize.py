"""The first layer of a model for images or features: so that perturbations are in the data's own units."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from compensate.errors import InputError


class Normalize(nn.Module):
    r"""Shifts and scales each channel.

    .. math:: x \mapsto (x - \mu_c) / \sigma_c

    where :math:`\mu_c` and :math:`\sigma_c` are the mean and standard deviation of channel :math:`c`, the first
    dimension after the batch.

    >>> Normalize([0.5], [0.25])(torch.ones(1, 1, 2, 2)).unique()
    tensor([2.])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not len(mean):
            raise InputError(f"mean has {len(mean)} and std {len(std)} values; expected one each a channel.")
        if min(float(s) for s in std) <= 0:
            raise InputError(f"std is {list(std)}; each value must be positive. Use 1 for a channel that never varies.")
        self.register_buffer("mean", torch.tensor([float(m) for m in mean]))
        self.register_buffer("std", torch.tensor([float(s) for s in std]))

    def forward(self, x: Tensor) -> Tensor:
        shape = (-1,) + (1,) * (x.ndim - 2)
        return (x - self.mean.view(shape)) / self.std.view(shape)

    def extra_repr(self) -> str:
        return f"channels={len(self.mean)}"


def normalizer(channels: int, mean: Sequence[float] | None, std: Sequence[float] | None) -> nn.Module:
    """`Normalize` with the given statistics, or with 0.5 and 0.25, the middle of the range of pixels."""
    mean = [0.5] * channels if mean is None else mean
    std = [0.25] * channels if std is None else std
    if len(mean) != channels:
        raise InputError(f"mean has {len(mean)} values; the model was asked to take {channels} channels.")
    return Normalize(mean, std)
