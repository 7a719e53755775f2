"""Rows on their way: between a store in main memory and a model that may be elsewhere, and from saved tables."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from compensate.errors import InputError
from compensate.stores.base import Ints, Packed, RowStore


@final
class Kept:
    """The rows of a table, read and written as tensors of the model's device.

    On a graphics card rows come through pinned memory, so that the copy runs beside the computation, and go back the same way:
    `write` returns at once, and the rows are put in their places when the store is next asked for anything. Only the
    keys of a batch, a few bytes a sample, are waited for.

    Args:
        store: where the rows are.
        shape: of a row.

    >>> from compensate.stores import Sparse
    >>> kept = Kept(Sparse(5, 3), (3,))
    >>> kept.write(torch.tensor([1]), torch.tensor([[0.0, 2.0, 0.0]]))
    >>> kept.gather(torch.tensor([1, 2]), like=torch.zeros(0))
    tensor([[0., 2., 0.],
            [0., 0., 0.]])
    """

    def __init__(self, store: RowStore, shape: tuple[int, ...]) -> None:
        _keep_out_of_graphs()
        self._store, self.shape = store, shape
        self._pending: tuple[Any, Tensor, Tensor] | None = None

    @property
    def store(self) -> RowStore:
        """Where the rows are, all of them written."""
        self.settle()
        return self._store

    @torch.no_grad()
    def gather(self, keys: Tensor, like: Tensor) -> Tensor:
        """(len(keys), *shape) some rows, on the device and of the type of `like`."""
        at = _numbers(keys)
        if like.device.type == "cpu":
            rows = torch.from_numpy(self.store.read(at))
        else:
            rows = torch.empty(len(at), self._store.width, pin_memory=True)
            self.store.read(at, out=_array(rows))
            rows = rows.to(like.device, non_blocking=True)
        return rows.reshape(len(at), *self.shape).to(like.dtype)

    @torch.no_grad()
    def write(self, keys: Tensor, rows: Tensor) -> None:
        """Replaces distinct rows."""
        self.settle()
        rows = rows.detach().reshape(len(rows), self._store.width)
        if rows.device.type == "cpu":
            self._store.write(_numbers(keys), _array(rows.float()))
        else:
            self._send(keys, rows)

    def _send(self, keys: Tensor, rows: Tensor) -> None:
        pinned = rows.device.type == "cuda"
        here = torch.empty(rows.shape, dtype=torch.float32, pin_memory=pinned)
        where = torch.empty(keys.shape, dtype=keys.dtype, pin_memory=pinned)
        here.copy_(rows, non_blocking=pinned)
        where.copy_(keys, non_blocking=pinned)
        arrived = torch.cuda.Event() if pinned else None
        if arrived is not None:
            arrived.record()
        self._pending = (arrived, where, here)

    def settle(self) -> None:
        """Waits for rows that are on their way, and puts them in their places."""
        if self._pending is None:
            return
        arrived, keys, rows = self._pending
        self._pending = None
        if arrived is not None:
            arrived.synchronize()
        self._store.write(_numbers(keys), _array(rows))

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the rows take."""
        return self._store.nbytes

    @property
    def filled(self) -> int:
        """Rows that are not zero."""
        return self.store.filled

    def pack(self, rows: Ints | None = None) -> Packed:
        """Some rows, or all that are not zero, without their zeros."""
        return self.store.pack(rows)

    def load(self, packed: Packed) -> None:
        """Exactly these rows, and zeros elsewhere."""
        packed.check(self._store.num_rows, self._store.width)
        self.store.clear()
        self._store.put(packed)

    def dense(self) -> Tensor:
        """(N, *shape) all rows, in full."""
        return torch.from_numpy(self.store.read(np.arange(self._store.num_rows))).reshape(-1, *self.shape)

    def __deepcopy__(self, memo: dict[int, Any]) -> Kept:
        import copy

        return Kept(copy.deepcopy(self.store, memo), self.shape)

    def __getstate__(self) -> dict[str, Any]:
        return {"_store": self.store, "shape": self.shape, "_pending": None}

    def __repr__(self) -> str:
        return repr(self._store)


def _numbers(keys: Tensor) -> Ints:
    return _array(keys.detach().cpu())


def _array(tensor: Tensor) -> Any:
    return tensor.detach().numpy()


@cache
def _keep_out_of_graphs() -> None:
    """Compiled graphs step outside for rows in a store. Said when the first store is made: saying so loads the compiler."""
    for name in ("gather", "write"):
        setattr(Kept, name, torch.compiler.disable(getattr(Kept, name)))


PARTS = ("rows", "counts", "columns", "values")


def restored(
    kept: Kept | None,
    shape: tuple[int, ...],
    state: dict[str, Any],
    prefix: str,
    missing: list[str],
    errors: list[str],
) -> dict[str, Any]:
    """The state of a table, brought to the form of the one that reads it.

    Args:
        kept: the rows of that table, filled here; None if they are the tensor `weight`, which torch then reads itself.
        shape: of that table.
        state: what was saved, under names that begin with `prefix`; what is used up here is taken out.
        missing, errors: take what is not there and what does not fit, as torch wants it.
    """
    whole, width = prefix + "weight", math.prod(shape[1:])
    if all(prefix + name in state for name in PARTS):
        packed = Packed.from_tensors({name: state.pop(prefix + name) for name in PARTS})
    elif kept is not None and whole in state:
        weight = state.pop(whole)
        if weight.shape != shape:
            errors.append(f"{whole} has shape {tuple(weight.shape)}; this table is {shape}.")
            return state
        packed = without_zeros(weight)
    else:
        missing += [prefix + name for name in PARTS if kept is not None and prefix + name not in state]
        return state
    try:
        packed.check(shape[0], width)
    except InputError as error:
        errors.append(str(error))
        return state
    if kept is not None:
        kept.load(packed)
        return state
    full = torch.zeros(shape[0], width)
    for rows, block in packed.blocks(width):
        full[torch.from_numpy(rows)] = torch.from_numpy(block)
    state[whole] = full.reshape(shape)
    return state


def without_zeros(weight: Tensor) -> Packed:
    """The rows of a tensor that are not zero.

    >>> without_zeros(torch.tensor([[0.0, 2.0], [0.0, 0.0]])).rows
    array([0])
    """
    full = weight.detach().cpu().float().reshape(len(weight), -1).numpy()
    at, columns = np.nonzero(full)
    rows, place = np.unique(at, return_inverse=True)
    return Packed.of(rows, place, columns, full[at, columns])
