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
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from compensate.core.validation import at_hand

if TYPE_CHECKING:
    from compensate.core.batch import Batch, Slot
    from compensate.core.tables import Table


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


@dataclass
class Touched:
    """Rows of a table that this batch reads and may move."""

    table: Table
    keys: Tensor  # (R,) distinct rows
    rows: Tensor  # (R, *shape) their values, a leaf of the graph
    count: (
        Tensor | None
    )  # (R,) samples of the batch that read each row and are not gated out; None if it is one for each row
    which: Tensor | None  # (B,) the place of each sample's row among them; None if there is a place for each sample
    slot: Slot
    fixed: bool = False  # in compiled graphs: there is a place for each sample, even if several have one row
    repeated: bool = False  # keys may repeat: samples with one key point to the first of them, and nobody to the others
    by_sample: bool = False  # `which` has a place for each sample (and label), which all places of a sample share

    @property
    def shared(self) -> bool:
        """True if a row may serve several samples."""
        return self.which is not None or self.by_sample


def touched_rows(s: Batch, table: Table, keys: Tensor, slot: Slot) -> Touched:
    """The rows that the samples of a batch read, `keys` (B,), each once where it can be told."""
    fixed = torch.compiler.is_compiling() and s.by_slope
    of_samples = table.granularity == "sample"
    # Where all places of a sample have one row, few keys stand for many.
    by_sample = s.shared and not s.by_input and not fixed and of_samples
    keys = s.places.firsts(keys) if by_sample else keys
    repeated = False
    if fixed or (s.repeats is False and of_samples and not s.places.several):
        distinct, which = keys, None
    elif of_samples or s.meta:
        distinct, which = distinct_rows(keys)
        repeated = which is not None and not at_hand(keys)
    else:
        distinct, which = present_rows(keys, table.shape[0])
    every = which is None and not fixed and not by_sample and s.complete and s.gate is None
    count = None if every else table.counted(s)
    if count is not None and (by_sample or fixed or which is not None):
        count = count.to(torch.get_default_dtype())
        count = s.places.totals(count) if by_sample else count
        count = count if which is None else count.new_zeros(len(distinct)).index_add_(0, which, count)
    # Where the slope of the loss is known, the rows stay out of the graph.
    rows = table.gather(distinct)
    rows = rows if s.by_slope and not rows.requires_grad else rows.detach().requires_grad_(not s.by_slope)
    return Touched(table, distinct, rows, count, which, slot, fixed, repeated, by_sample)


def distinct_rows(keys: Tensor) -> tuple[Tensor, Tensor | None]:
    """Distinct keys and the place of each sample's among them; None if all are distinct, as in most batches of samples.

    Where values are not at hand there is a place for each sample, and samples with one key point to the first of theirs: shapes then do
    not depend on values, and nobody waits.
    """
    if not at_hand(keys):
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
    if at_hand(keys):
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
    elif at_hand(valid):
        kept[index[valid]] = rows[valid]
    else:
        # Nobody waits for how many are valid: all add a change, which is none for the others and for a sample that comes again.
        first = first_places(torch.where(valid, index, -1)) == torch.arange(len(index), device=index.device)
        mask = (valid & first).reshape((-1,) + (1,) * (rows.ndim - 1))
        index = index.clamp(min=0)
        kept.index_add_(0, index, torch.where(mask, rows - kept[index], 0))
