"""The layout of batches and tables.

A row of a batch is a sample, a place in it (a pixel, a token), or one of its several labels. The equation is written for
rows (R, C): batches with more axes become rows, and results get their axes back. Tables and records have a row per sample;
those made inside `holding_rows` keep a range of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from compensate.errors import InputError

_simulated = False
"""Tests on machines without another device set it, and CPU tensors are then treated like tensors of another device."""

CHUNK = 2**17
"""Entries that stay in the cache of a processor. Larger temporaries cause page faults, which cost more than arithmetic."""


def is_eager_cpu(values: Tensor) -> bool:
    """True for eager CPU tensors, whose values can be read without waiting for a device or breaking a compiled graph."""
    return values.is_cpu and not _simulated and not torch.compiler.is_compiling()


def chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Tensors (B, ...) in chunks of rows; in one unless the first is an eager CPU tensor of more than `CHUNK` entries."""
    rows, entries = len(tensors[0]), tensors[0].numel()
    length = max(1, CHUNK * rows // entries) if entries > CHUNK and is_eager_cpu(tensors[0]) else max(1, rows)
    return zip(*(t.split(length) for t in tensors), strict=True)


@final
class Places:
    """The axes of a batch beyond samples and classes.

    Args:
        target: class numbers (B, d1, ...), distributions (B, C, d1, ...), or with `binary` labels (B, C, d1, ...).
        index: (B,) or (B, d1, ...) rows of tables.
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
    each = 1
    """Rows of a sample."""
    dense = False
    """True if a sample has many places."""
    several = False
    """True if a sample has several rows, of places or of labels."""
    shared_index = False
    """True if the index names samples with many places, which all read one row."""

    def __init__(self, target: Tensor, index: Any = None, *, binary: bool = False) -> None:
        if not isinstance(target, Tensor):
            raise InputError(
                f"target is a {type(target).__name__}; expected a tensor on the device of the logits: write torch.as_tensor(target)."
            )
        sizes = target.shape
        self.batch = self.visits = sizes[0] if sizes else 0
        self.binary, self.by_class = binary, binary or target.is_floating_point()
        if len(sizes) < 2 and not binary:
            return
        self.shape = tuple(sizes[2:] if self.by_class else sizes[1:])
        self.labels = sizes[1] if binary and len(sizes) > 1 else 1
        self.each = math.prod(self.shape) * self.labels
        self.dense = bool(self.shape)
        self.several = self.dense or binary
        named = isinstance(index, Tensor) and index.shape == (self.batch,)
        self.shared_index = self.dense and named and self.each > 0
        self.visits = self.batch * (self.each if index is not None and not self.shared_index else self.labels)
        """The number of table rows that the batch reads: samples, or the places that the index names, times their labels."""

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
        if values.shape == (self.batch, *labels, *self.shape) and values.ndim > 1:
            return self._by_row(values)
        if self.binary:
            wanted = f'{(self.batch, self.labels, *self.shape)}: base="bce" has a target, 0 or 1, for each of them'
        else:
            wanted = f"(batch, classes, ...) = {(self.batch, 'C', *self.shape)}".replace("'", "")
            wanted += " for distributions" if self.by_class else " for class numbers"
            wanted += (
                " with an axis for places. One class a sample is (batch,) class numbers; distributions are floating point; several "
                'classes at once are base="bce"'
            )
        raise InputError(
            f"{name} have shape {tuple(values.shape)} for a target whose places are {self.shape}; expected {wanted}."
        )

    def _by_row(self, values: Tensor) -> Tensor:
        values = values.movedim(1, -1)
        return values.flatten()[:, None] if self.binary else values.flatten(0, -2)

    def targets(self, target: Tensor) -> Tensor:
        """(R,) class numbers or (R, C) distributions; (R, 1) labels if each class is one."""
        if self.binary and target.ndim < 2:
            raise InputError(
                f'target has shape {tuple(target.shape)}; base="bce" expects a label for each class, 0 or 1, of the shape of '
                "the logits (batch, classes). For one class a sample leave out base."
            )
        if not self.several:
            return target
        return self._by_row(target) if self.by_class else target.flatten()

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

    def _by_place(self, values: Tensor) -> Tensor:
        """(B, places, labels, ...) of values (R, ...)."""
        return values.reshape(self.batch, self.each // self.labels, self.labels, *values.shape[1:])

    def pooled(self, values: Tensor, valid: Tensor) -> Tensor:
        """(B * labels, ...) the means of values (R, ...) over the places of a sample that are valid (R,); 0 where none is."""
        counts = self.totals(valid).clamp(min=1)
        return self.totals(torch.where(rowwise(valid, values), values, 0.0)) / rowwise(counts, values)

    def totals(self, values: Tensor) -> Tensor:
        """(B * labels, ...) the sums of values (R, ...) over the places of a sample."""
        return self._by_place(values).sum(1).flatten(0, 1)

    def spread(self, values: Tensor) -> Tensor:
        """(R, ...) of (B * labels, ...), the same for all places of a sample."""
        by_sample = values.reshape(self.batch, 1, self.labels, *values.shape[1:])
        return by_sample.expand(-1, self.each // self.labels, *(-1,) * values.ndim).flatten(0, 2)

    def firsts(self, values: Tensor) -> Tensor:
        """(B * labels,) the value of the first place of each sample."""
        return self._by_place(values)[:, 0].flatten()

    def of_sample(self, values: Tensor) -> Tensor:
        """(B, n) values of rows (R,), sample by sample."""
        return values.reshape(self.batch, self.each)


def rowwise(v: Any, like: Tensor) -> Any:
    """`v` with one value (or row) per sample, shaped to broadcast against `like`.

    Axes are inserted after the first: one row of a text table then applies to all tokens of its sample.

    >>> rowwise(torch.ones(4), torch.ones(4, 7, 3)).shape, rowwise(torch.ones(4, 3), torch.ones(4, 7, 3)).shape
    (torch.Size([4, 1, 1]), torch.Size([4, 1, 3]))
    """
    if not isinstance(v, Tensor) or v.ndim == 0 or v.ndim >= like.ndim:
        return v
    return v.reshape(v.shape[:1] + (1,) * (like.ndim - v.ndim) + v.shape[1:])


# --- rows of tables and statistics ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldRows:
    """A range of samples, `first` to `last` (exclusive) `of` all."""

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
    """The range of `rows` table rows that this process holds; a sample may have several consecutive rows."""
    held = _held.get()
    if held is None:
        return range(rows)
    each = rows // held.of
    return range(held.first * each, held.last * each)


def distinct_rows(keys: Tensor, index: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Distinct keys and the position of each sample's key among them; None if all keys are distinct.

    Except for eager CPU tensors all keys are returned, and equal keys have the position of their first occurrence: shapes
    then do not depend on values. An `index` (B,) that is still on the host shows without waiting that all keys are distinct.
    """
    host = keys if is_eager_cpu(keys) or index is None or index.shape != keys.shape else index
    if is_eager_cpu(host):
        ordered = np.sort(host.numpy())
        if not (ordered[1:] == ordered[:-1]).any():
            return keys, None
    return keys.unique(return_inverse=True) if host is keys and is_eager_cpu(keys) else (keys, first_places(keys))


def first_places(keys: Tensor) -> Tensor:
    """(B,) the position of the first equal key.

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
    kept.index_add_(0, index, torch.where(rowwise(valid & first, rows), rows - kept[index], 0))
