"""Samples that share a row, in shapes that do not depend on how many do: what a compiled graph needs."""

from __future__ import annotations

import torch
from torch import Tensor


def pool_(slope: Tensor, count: Tensor, keys: Tensor) -> None:
    r"""Gives all samples with one key the mean of their slopes, in place.

    .. math:: g_i \leftarrow \frac{\sum_{j: k_j = k_i} g_j}{\max(1, \sum_{j: k_j = k_i} n_j)}, \qquad
              n_i \leftarrow \sum_{j: k_j = k_i} n_j

    Args:
        slope: (B, *shape) the slopes :math:`g`, zero for samples that do not count.
        count: (B,) :math:`n`, 1 for samples that count and 0 for others.
        keys: (B,) the rows :math:`k` of the samples.

    >>> slope, count = torch.tensor([[1.0], [5.0], [3.0]]), torch.ones(3)
    >>> pool_(slope, count, torch.tensor([7, 8, 7]))
    >>> slope[:, 0], count
    (tensor([2., 5., 2.]), tensor([2., 1., 2.]))
    """
    if keys.device.type == "cpu":
        _look_and_pool_(slope, count, keys)
        return
    values, order = keys.sort(stable=True)
    _pool_(slope, count, order[torch.searchsorted(values, keys)], len(keys))


@torch.library.custom_op("compensate::pool_", mutates_args=("slope", "count"))
def _look_and_pool_(slope: Tensor, count: Tensor, keys: Tensor) -> None:
    """On a CPU a look at the keys is cheap, and mostly saves the rest. Compiled graphs take it as one opaque step."""
    distinct, which = keys.unique(return_inverse=True)
    if len(distinct) < len(keys):
        _pool_(slope, count, which, len(distinct))


def _pool_(slope: Tensor, count: Tensor, which: Tensor, places: int) -> None:
    count.copy_(count.new_zeros(places).index_add_(0, which, count)[which])
    total = slope.new_zeros(places, *slope.shape[1:]).index_add_(0, which, slope)[which]
    slope.copy_(total / count.clamp(min=1).reshape((-1,) + (1,) * (slope.ndim - 1)))
