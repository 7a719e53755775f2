"""The layout of batches and tables.

A row of a batch is a sample, a place in it (a pixel, a token), or one of its several labels. The equation is written for
rows (R, C): batches with more axes become rows, and results get their axes back. Tables and records have a row per sample;
those made inside `holding_rows` keep a range of them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from compensate.core.validation import is_eager_cpu
from compensate.errors import InputError


@final
class Places:
    """The axes of a batch beyond samples and classes.

    Args:
        target: class numbers (B, d1, ...), distributions (B, C, d1, ...), or with `binary` labels (B, C, d1, ...).
        binary: true if each class is a label of its own, under binary cross entropy: then a row is one label of one place.

    >>> places = Places(torch.zeros(2, 5, 4, dtype=torch.long))
    >>> places.rows(torch.zeros(2, 3, 5, 4)).shape, places.back(torch.zeros(40)).shape
    (torch.Size([40, 3]), torch.Size([2, 5, 4]))
    >>> Places(torch.zeros(2, 3), binary=True).rows(torch.zeros(2, 3)).shape
    torch.Size([6, 1])
    """

    # Values for one class per sample.
    shape: tuple[int, ...] = ()
    """(d1, ...) of a sample."""
    labels = 1
    """Labels of a place: C under binary cross entropy, else 1."""
    dense = False
    """True if a sample has many places."""
    each = 1
    """Rows of a sample."""
    several = False
    """True if a sample has several rows, of places or of labels."""

    def __init__(self, target: Tensor, *, binary: bool = False) -> None:
        sizes = target.shape
        self.batch = sizes[0] if sizes else 0
        self.binary, self.by_class = binary, binary or target.is_floating_point()
        if len(sizes) < 2 and not binary:
            return
        self.shape = tuple(sizes[2:] if self.by_class else sizes[1:])
        self.labels = sizes[1] if binary and len(sizes) > 1 else 1
        self.dense = bool(self.shape)
        self.each = math.prod(self.shape) * self.labels
        self.several = self.dense or binary

    def one_class_each(self, reader: str) -> None:
        """Raises if inputs have several labels; `reader` names the term that needs one class."""
        if self.several:
            raise InputError(
                f"{reader} asks for the class of each input, and an input of this batch has {self.each} labels. Compensate "
                "logits or labels by class, or inputs by sample or alike for all."
            )

    def rows(self, values: Tensor, name: str = "logits") -> Tensor:
        """(R, C) of (B, C, d1, ...), or (R, 1) if each class is a label."""
        if not self.several or not isinstance(values, Tensor):
            return values
        labels = values.shape[1:2] if not self.binary else (self.labels,)
        if values.shape != (self.batch, *labels, *self.shape) or values.ndim < 2:
            raise InputError(_unlike(values, self, name))
        return _by_row(values, self.binary)

    def targets(self, target: Tensor) -> Tensor:
        """(R,) class numbers or (R, C) distributions; (R, 1) labels if each class is one."""
        if self.binary and target.ndim < 2:
            raise InputError(
                f'target has shape {tuple(target.shape)}; base="bce" expects a label for each class, 0 or 1, of the shape of '
                "the logits (batch, classes). For one class a sample leave out base."
            )
        if not self.several:
            return target
        return _by_row(target, self.binary) if self.by_class else target.flatten()

    def expanded(self, values: Tensor, name: str) -> Tensor:
        """(R,) of one value for each sample (B,), or for each place (B, d1, ...); labels of a place share it."""
        if not self.several or values.shape == (self.batch * self.each,):
            return values
        if values.shape != (self.batch,) and values.shape != (self.batch, *self.shape):  # not "in": compiled graphs
            places = f" or {(self.batch, *self.shape)}, one for each place" if self.dense else ""
            raise InputError(
                f"{name} has shape {tuple(values.shape)}; expected ({self.batch},), one for each sample{places}."
            )
        values = values.reshape(self.batch, math.prod(values.shape[1:]), 1)
        return values.expand(self.batch, self.each // self.labels, self.labels).flatten()

    def pairs(self, index: Tensor) -> Tensor:
        """(R,) rows of tables for samples or places (R,): with several labels, each has a row of its own."""
        if self.labels == 1:
            return index
        return index * self.labels + self.classes(index)

    def classes(self, like: Tensor) -> Tensor:
        """(R,) which label a row is about; zeros unless each class is one."""
        return torch.arange(self.labels, device=like.device).repeat(self.batch * self.each // max(1, self.labels))

    def back(self, values: Tensor) -> Tensor:
        """Rows (R, ...) as the batch had them: (B, d1, ...) of (R,), (B, C, d1, ...) of (R, C), or of (R,) labels."""
        if not self.several:
            return values
        if self.binary:
            return values.reshape(self.batch, *self.shape, self.labels).movedim(-1, 1)
        shaped = values.reshape(self.batch, *self.shape, *values.shape[1:])
        return shaped if values.ndim == 1 else shaped.movedim(-1, 1)

    def pooled(self, values: Tensor, valid: Tensor) -> Tensor:
        """(B * labels, ...) the means of values (R, ...) over the places of a sample that are valid (R,); 0 where none is."""
        by_place, rest = (self.batch, self.each // self.labels, self.labels), (1,) * (values.ndim - 1)
        counts = valid.reshape(by_place).sum(1).clamp(min=1).reshape(self.batch, self.labels, *rest)
        values = torch.where(valid.reshape(-1, *rest), values, 0.0).reshape(*by_place, *values.shape[1:])
        return (values.sum(1) / counts).flatten(0, 1)

    def totals(self, values: Tensor) -> Tensor:
        """(B * labels, ...) the sums of values (R, ...) over the places of a sample."""
        by_place = (self.batch, self.each // self.labels, self.labels, *values.shape[1:])
        return values.reshape(by_place).sum(1).flatten(0, 1)

    def spread(self, values: Tensor) -> Tensor:
        """(R, ...) of (B * labels, ...), the same for all places of a sample."""
        by_sample = values.reshape(self.batch, 1, self.labels, *values.shape[1:])
        return by_sample.expand(-1, self.each // self.labels, *(-1,) * values.ndim).flatten(0, 2)

    def firsts(self, values: Tensor) -> Tensor:
        """(B * labels,) the value of the first place of each sample."""
        return values.reshape(self.batch, self.each // self.labels, self.labels)[:, 0].flatten()

    def of_sample(self, values: Tensor) -> Tensor:
        """(B, n) values of rows (R,), sample by sample."""
        return values.reshape(self.batch, self.each)


def _by_row(values: Tensor, binary: bool) -> Tensor:
    values = values.movedim(1, -1)
    return values.flatten()[:, None] if binary else values.flatten(0, -2)


def _unlike(values: Tensor, places: Places, name: str) -> str:
    if places.binary:
        wanted = f'{(places.batch, places.labels, *places.shape)}: base="bce" has a target, 0 or 1, for each of them'
    else:
        wanted = f"(batch, classes, ...) = {(places.batch, 'C', *places.shape)}".replace("'", "")
        wanted += " for class numbers" if not places.by_class else " for distributions"
        wanted += (
            " with an axis for places. One class a sample is (batch,) class numbers; distributions are floating point; several "
            'classes at once are base="bce"'
        )
    return f"{name} have shape {tuple(values.shape)} for a target whose places are {places.shape}; expected {wanted}."


def rowwise(v: Any, like: Tensor) -> Any:
    """`v` with one value (or row) per sample, shaped to broadcast against `like`.

    Axes are inserted after the first: one row of a text table then applies to all tokens of its sample.

    >>> rowwise(torch.ones(4), torch.ones(4, 7, 3)).shape
    torch.Size([4, 1, 1])
    >>> rowwise(torch.ones(4, 3), torch.ones(4, 7, 3)).shape
    torch.Size([4, 1, 3])
    """
    if not isinstance(v, Tensor) or v.ndim == 0 or v.ndim >= like.ndim:
        return v
    if v.ndim == 1 and like.ndim == 2:
        return v.unsqueeze(1)
    return v.reshape(v.shape[:1] + (1,) * (like.ndim - v.ndim) + v.shape[1:])


def along(values: Tensor, rows: Tensor) -> Tensor:
    """One value for each row (B,), shaped to broadcast against the rows (B, *shape)."""
    return values.reshape((-1,) + (1,) * (rows.ndim - 1))


# --- rows of tables and statistics ---------------------------------------------------------------------------------


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
    """Tables and statistics of samples made inside hold only these rows.

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
    """The range of `rows` table rows that this process holds; a sample may have several consecutive rows.

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


_synchronized = _warned = False


def keep_alike() -> None:
    """Call this from code that keeps the copies of a criterion in several processes equal."""
    global _synchronized
    _synchronized = True


def warn_of_copies() -> None:
    """Warns once if this is one of several processes and nothing keeps their copies of a criterion equal."""
    global _warned
    if _synchronized or _warned or not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return
    _warned = True
    warnings.warn(
        f"{dist.get_world_size()} processes evaluate copies of this criterion on their own slices of a batch: tables, records and suspects "
        "will differ in each of them. Write criterion(*together(model(x), target, index)) in every step, or Exchange(criterion) before "
        "the first step and exchange.end_epoch() after each epoch; both are in compensate.training.",
        stacklevel=2,
    )


def distinct_rows(keys: Tensor) -> tuple[Tensor, Tensor | None]:
    """Distinct keys and the position of each sample's key among them; None if all keys are distinct.

    Except for eager CPU tensors all keys are returned, and equal keys have the position of their first occurrence: shapes
    then do not depend on values.
    """
    if not is_eager_cpu(keys):
        return keys, first_places(keys)
    ordered = np.sort(keys.numpy())
    if not (ordered[1:] == ordered[:-1]).any():
        return keys, None
    return keys.unique(return_inverse=True)


def first_places(keys: Tensor) -> Tensor:
    """(B,) the position of the first equal key.

    >>> import torch
    >>> first_places(torch.tensor([7, 8, 7]))
    tensor([0, 1, 0])
    """
    values, order = keys.sort(stable=True)
    return order[torch.searchsorted(values, keys.contiguous())]


def present_rows(keys: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Distinct keys among a few `rows`, and the position of each sample's key; all rows except for eager CPU tensors."""
    if is_eager_cpu(keys):
        return keys.unique(return_inverse=True)
    return torch.arange(rows, device=keys.device), keys


def put_rows(kept: Tensor, index: Tensor, rows: Tensor, valid: Tensor | None) -> None:
    """Writes rows (B, ...) to `kept` at `index` (B,), in place, except for samples that are not valid.

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
