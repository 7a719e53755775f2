"""Samples that share a row, in shapes that do not depend on how many do: what a compiled graph needs."""

from __future__ import annotations

import torch
from torch import Tensor


def pool_(rows: Tensor, count: Tensor, keys: Tensor) -> None:
    r"""Gives all samples with one key the mean of the rows of those that count, in place.

    .. math:: v_i \leftarrow \frac{\sum_{j: k_j = k_i} n_j v_j}{\sum_{j: k_j = k_i} n_j}, \qquad
              n_i \leftarrow \sum_{j: k_j = k_i} n_j

    Each sample took the gradient step of its row for itself; as they started from the same row, the mean is the row after
    the mean of their steps. Where none counts, rows stay as they are.

    Args:
        rows: (B, *shape) the rows :math:`v`.
        count: (B,) :math:`n`, 1 for samples that count and 0 for others.
        keys: (B,) the rows :math:`k` of the samples.

    >>> rows, count = torch.tensor([[1.0], [5.0], [3.0]]), torch.ones(3)
    >>> pool_(rows, count, torch.tensor([7, 8, 7]))
    >>> rows[:, 0], count
    (tensor([2., 5., 2.]), tensor([2., 1., 2.]))
    """
    if keys.device.type == "cpu":
        _look_and_pool_(rows, count, keys)
        return
    values, order = keys.sort(stable=True)
    _pool_(rows, count, order[torch.searchsorted(values, keys)], len(keys))


# Its signature is spelled out: torch 2.4 cannot read annotations that are texts, as all are in this file.
@torch.library.custom_op(
    "compensate::pool_",
    mutates_args=("rows", "count"),
    schema="(Tensor(a!) rows, Tensor(b!) count, Tensor keys) -> ()",
)
def _look_and_pool_(rows: Tensor, count: Tensor, keys: Tensor) -> None:
    """On a CPU a look at the keys is cheap, and mostly saves the rest. Compiled graphs take it as one opaque step."""
    distinct, which = keys.unique(return_inverse=True)
    if len(distinct) < len(keys):
        _pool_(rows, count, which, len(distinct))


def _pool_(rows: Tensor, count: Tensor, which: Tensor, places: int) -> None:
    share = along(count, rows).to(rows.dtype)
    total = rows.new_zeros(places, *rows.shape[1:]).index_add_(0, which, rows * share)[which]
    count.copy_(count.new_zeros(places).index_add_(0, which, count)[which])
    share = along(count, rows).to(rows.dtype)
    rows.copy_(torch.where(share > 0, total / share.clamp(min=1), rows))


def along(values: Tensor, rows: Tensor) -> Tensor:
    """One value for each row (B,), shaped to meet the rows (B, *shape)."""
    return values.reshape((-1,) + (1,) * (rows.ndim - 1))


def finite(rows: Tensor) -> Tensor:
    """(B, 1, ...) true for rows (B, *shape) without infinities or NaN, told by their sums: one pass and no temporary.

    >>> finite(torch.tensor([[1.0, 2.0], [1.0, torch.nan]]))[:, 0]
    tensor([ True, False])
    """
    return along(rows.flatten(1).sum(1) if rows.ndim > 1 else rows, rows).isfinite()
