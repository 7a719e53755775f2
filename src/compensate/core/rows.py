"""Whose rows a process holds: those of all samples, or of a range of them, where several processes cut the tables among themselves.

Tables and records that are made inside `holding_rows` keep the rows of that range alone. Samples keep their numbers: what reads a batch
subtracts the first row.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from compensate.core.layout import along
from compensate.core.validation import is_eager_cpu


@dataclass(frozen=True)
class HeldRows:
    """A range of samples.

    Attributes:
        first, last: the range, without `last`.
        of: the number of all samples.
    """

    first: int
    last: int
    of: int


_held: ContextVar[HeldRows | None] = ContextVar("_held", default=None)


@contextmanager
def holding_rows(rows: HeldRows) -> Iterator[None]:
    """Tables and statistics of samples made inside hold these rows alone.

    >>> from compensate.terms import L1, Sample
    >>> with holding_rows(HeldRows(20, 50, of=100)):
    ...     table = Sample(100, 3, penalty=L1(0.1))
    >>> table.num_samples, table.shape
    (100, (30, 3))
    """
    token = _held.set(rows)
    try:
        yield
    finally:
        _held.reset(token)


def held_range(rows: int) -> range:
    """Which of so many rows are held by what is made now; a sample may have several, one after the other.

    >>> held_range(100)
    range(0, 100)
    >>> with holding_rows(HeldRows(20, 50, of=100)):
    ...     held_range(200)
    range(40, 100)
    """
    held = _held.get()
    if held is None:
        return range(rows)
    each = rows // held.of
    return range(held.first * each, held.last * each)


_alike = _told = False


def keep_alike() -> None:
    """To be called by code that keeps the copies of a criterion in several processes equal."""
    global _alike
    _alike = True


def warn_of_copies() -> None:
    """Warns once if this is one of several processes and nothing keeps their copies of a criterion equal."""
    global _told
    if _alike or _told or not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return
    _told = True
    warnings.warn(
        f"{dist.get_world_size()} processes evaluate copies of this criterion on their own slices of a batch: tables, records and suspects "
        "will differ in each of them. Write criterion(*together(model(x), target, index)) in every step, or Exchange(criterion) before "
        "the first step and exchange.end_epoch() after each epoch; both are in compensate.training.",
        stacklevel=2,
    )


def distinct_rows(keys: Tensor) -> tuple[Tensor, Tensor | None]:
    """Distinct keys and the place of each sample's among them; None if all are distinct, as in most batches of samples.

    Where values are not at hand there is a place for each sample, and samples with one key point to the first of theirs: shapes then do
    not depend on values, and nobody waits.
    """
    if not is_eager_cpu(keys):
        return keys, first_places(keys)
    ordered = np.sort(keys.numpy())
    if not (ordered[1:] == ordered[:-1]).any():
        return keys, None
    return keys.unique(return_inverse=True)


def first_places(keys: Tensor) -> Tensor:
    """(B,) the first place with the same key.

    >>> import torch
    >>> first_places(torch.tensor([7, 8, 7]))
    tensor([0, 1, 0])
    """
    values, order = keys.sort(stable=True)
    return order[torch.searchsorted(values, keys)]


def present_rows(keys: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Distinct keys among a few `rows`, and the place of each sample's among them; all rows where values are not at hand."""
    if is_eager_cpu(keys):
        return keys.unique(return_inverse=True)
    return torch.arange(rows, device=keys.device), keys


def put_rows(kept: Tensor, index: Tensor, rows: Tensor, valid: Tensor | None) -> None:
    """Writes rows (B, ...) where they belong, `index` (B,), in place; those of samples that are not valid are left out.

    >>> kept = torch.zeros(3)
    >>> put_rows(kept, torch.tensor([2, 0]), torch.tensor([5.0, 7.0]), torch.tensor([True, False]))
    >>> kept
    tensor([0., 0., 5.])
    """
    if valid is None:
        kept.index_copy_(0, index, rows)
        return
    # Shapes do not depend on values: every sample adds a difference, which is zero if it is ignored or a repetition.
    first = first_places(torch.where(valid, index, -1)) == torch.arange(len(index), device=index.device)
    index = index.clamp(min=0)
    kept.index_add_(0, index, torch.where(along(valid & first, rows), rows - kept[index], 0))
