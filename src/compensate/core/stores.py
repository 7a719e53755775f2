"""Rows of large tables: sparse in memory, or in a file.

A dense table is a tensor and needs no store. Rows are stored in 32 or 16 bits and computed with in 32.
"""

from __future__ import annotations

import json
import logging
import math
import mmap
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, final, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compensate.errors import InputError, nearest

__all__ = ["Mapped", "Packed", "RowStore", "Sparse", "Spec", "Store", "choose"]

Floats = NDArray[np.float32]
Ints = NDArray[np.integer[Any]]
NumberType = Literal["float32", "float16", "bfloat16"]


def number_type(dtype: Any) -> NumberType:
    """The name of a number type.

    >>> number_type(torch.float16), number_type("bfloat16"), number_type(None)
    ('float16', 'bfloat16', 'float32')
    """
    name = "float32" if dtype is None else str(dtype).removeprefix("torch.")
    if name not in get_args(NumberType):
        raise InputError(f"dtype is {dtype}; a table keeps {', '.join(get_args(NumberType))}.")
    return name  # type: ignore[return-value]


def stored_as(kind: NumberType) -> np.dtype[Any]:
    """The numpy type that holds it; numpy has no bfloat16, so its bits are stored."""
    return np.dtype({"float32": np.float32, "float16": np.float16, "bfloat16": np.int16}[kind])


def pack_numbers(rows: Floats, kind: NumberType) -> NDArray[Any]:
    """Values as stored: rounded to the nearest, and clipped to the finite range, because infinity could never change again.

    >>> unpack_numbers(pack_numbers(np.array([1.0, 1e-9, 1e9], np.float32), "float16"), "float16").tolist()
    [1.0, 0.0, 65504.0]
    """
    if kind == "float32":
        return rows
    dtype = getattr(torch, kind)
    largest = torch.finfo(dtype).max
    packed = torch.from_numpy(np.clip(rows, -largest, largest)).to(dtype)
    return (packed.view(torch.int16) if kind == "bfloat16" else packed).numpy()


def unpack_numbers(stored: NDArray[Any], kind: NumberType) -> Floats:
    """Stored values as float32."""
    if kind == "bfloat16":
        return torch.from_numpy(stored).view(torch.bfloat16).float().numpy()
    return stored.astype(np.float32, copy=False)


PARTS = ("rows", "counts", "columns", "values")


@dataclass(frozen=True, eq=False)
class Packed:
    """Rows without their zeros, to be saved or sent.

    Attributes:
        rows: (K,) row numbers, ascending.
        counts: (K,) nonzero entries of each row.
        columns: (M,) columns of the nonzero entries, row after row.
        values: (M,) their values.
    """

    rows: NDArray[np.int64]
    counts: NDArray[np.int32]
    columns: NDArray[np.int32]
    values: Floats

    @classmethod
    def of(cls, rows: Ints, at: Ints, columns: Ints, values: Floats) -> Packed:
        """From entries in any order; `at` (M,) is the position in `rows` of each entry."""
        order = np.lexsort((columns, at))
        counts = np.bincount(at, minlength=len(rows)).astype(np.int32)
        return cls(rows.astype(np.int64), counts, columns[order].astype(np.int32), values[order])

    @classmethod
    def nonzero(cls, full: Floats) -> Packed:
        """The nonzero rows of an array.

        >>> Packed.nonzero(np.array([[0.0, 2.0], [0.0, 0.0]], np.float32)).rows
        array([0])
        """
        at, columns = np.nonzero(full)
        rows, position = np.unique(at, return_inverse=True)
        return cls.of(rows, position, columns, full[at, columns])

    def blocks(self, width: int, numbers: int = 1 << 22) -> Iterator[tuple[Ints, Floats]]:
        """Pairs of row numbers and full rows (k, width), in blocks."""
        size = max(1, numbers // max(width, 1))
        ends = np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])
        for first in range(0, len(self.rows), size):
            last = min(first + size, len(self.rows))
            full = np.zeros((last - first, width), np.float32)
            here = slice(ends[first], ends[last])
            at = np.repeat(np.arange(last - first), self.counts[first:last])
            full[at, self.columns[here]] = self.values[here]
            yield self.rows[first:last], full

    def tensors(self) -> dict[str, torch.Tensor]:
        """As tensors, by name."""
        return {name: torch.from_numpy(getattr(self, name)) for name in PARTS}

    @classmethod
    def from_tensors(cls, tensors: dict[str, torch.Tensor]) -> Packed:
        """The inverse of `tensors`."""
        kinds = {"rows": torch.long, "counts": torch.int32, "columns": torch.int32, "values": torch.float32}
        return cls(**{name: tensors[name].detach().cpu().to(kind).numpy() for name, kind in kinds.items()})

    def check(self, num_rows: int, width: int) -> None:
        """Raises if these are not rows of a table of this size."""
        inside = (
            len(self.rows) == len(self.counts)
            and len(self.columns) == len(self.values) == int(self.counts.sum(dtype=np.int64))
            and (not len(self.rows) or (self.rows.min() >= 0 and self.rows.max() < num_rows))
            and (not len(self.columns) or (self.columns.min() >= 0 and self.columns.max() < width))
        )
        if not inside:
            raise InputError(
                f"these rows are not of a table of {num_rows} x {width}. Build the criterion with the sizes it was saved with."
            )


class RowStore(ABC):
    """A table of `num_rows` x `width` numbers, read and written some rows at a time.

    Rows stay in main memory; tensors of another device are copied.
    """

    kind: NumberType
    num_rows: int
    width: int
    _changed: NDArray[np.bool_] | None = None

    @abstractmethod
    def read(self, keys: Ints) -> Floats:
        """(len(keys), width) some rows."""

    @abstractmethod
    def write(self, keys: Ints, rows: Floats) -> None:
        """Replaces distinct rows."""

    @abstractmethod
    def pack(self, rows: Ints | None = None) -> Packed:
        """Some rows, or all nonzero rows, without their zeros."""

    @abstractmethod
    def clear(self) -> None:
        """Sets all rows to zero."""

    @property
    @abstractmethod
    def filled(self) -> int:
        """The number of nonzero rows."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of memory."""

    def put(self, packed: Packed) -> None:
        """Replaces these rows."""
        packed.check(self.num_rows, self.width)
        for rows, full in packed.blocks(self.width):
            self.write(rows, full)

    def load(self, packed: Packed) -> None:
        """Sets these rows, and all others to zero."""
        packed.check(self.num_rows, self.width)
        self.clear()
        self.put(packed)

    def gather(self, keys: Tensor, like: Tensor) -> Tensor:
        """(len(keys), width) some rows, on the device and of the type of `like`."""
        return torch.from_numpy(self.read(keys.detach().cpu().numpy())).to(like.device, like.dtype)

    def scatter(self, keys: Tensor, rows: Tensor) -> None:
        """Replaces distinct rows (len(keys), ...)."""
        rows = rows.detach().reshape(len(rows), self.width).float().cpu()
        self.write(keys.detach().cpu().numpy(), rows.numpy())

    def watch(self) -> None:
        """Starts to note which rows are written."""
        self._changed = np.zeros(self.num_rows, bool)

    def changed(self) -> NDArray[np.int64]:
        """The rows written since the last call."""
        if self._changed is None:
            raise InputError("this store does not note changed rows; call watch() first.")
        rows = np.flatnonzero(self._changed)
        self._changed[rows] = False
        return rows

    def _note(self, rows: Ints) -> None:
        if self._changed is not None:
            self._changed[rows] = True

    @property
    def _note_nbytes(self) -> int:
        return 0 if self._changed is None else self._changed.nbytes


@cache
def _exclude_from_graphs() -> None:
    """Makes compiled graphs call stores eagerly. Called for the first store only, because it imports the compiler."""
    for name in ("gather", "scatter"):
        setattr(RowStore, name, torch.compiler.disable(getattr(RowStore, name)))


MIN_SLAB_BYTES = 16_384
"""The smallest allocation of a slab."""

MAX_SLABS = 32
"""The number of slabs that a pointer can address."""


def ladder(width: int, per_entry: int, per_full: int) -> list[int]:
    """The row widths of the slabs; the last is the whole row, stored without columns.

    >>> ladder(100, 5, 4)
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100]
    """
    steps = [1, 2, 3, *(s for k in range(2, 10) for s in (2**k, 3 * 2 ** (k - 1)))]
    steps += [2**k for k in range(10, 60)]
    shorter = [w for w in steps if w * per_entry < width * per_full and w < width]
    return [*shorter[: MAX_SLABS - 1], width]


@final
class _Slab:
    """Rows of up to `width` nonzero entries, without gaps: (n, width) values and columns, and their owners.

    Unused entries repeat the first one, so all can be written out.
    """

    def __init__(self, width: int, values: np.dtype[Any], columns: np.dtype[Any] | None, owner: np.dtype[Any]) -> None:
        self.used = 0
        self.values = np.empty((0, width), values)
        self.columns = None if columns is None else np.empty((0, width), columns)
        self.owner = np.empty(0, owner)
        self.least = max(1, MIN_SLAB_BYTES // (width * values.itemsize))

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.owner.nbytes + (0 if self.columns is None else self.columns.nbytes)

    def _room(self, rows: int) -> None:
        self.values, self.owner = _resized(self.values, rows), _resized(self.owner, rows)
        self.columns = None if self.columns is None else _resized(self.columns, rows)

    def add(self, owner: Ints) -> NDArray[np.int64]:
        """Slots for new rows."""
        first, self.used = self.used, self.used + len(owner)
        if self.used > len(self.owner):
            self._room(max(self.used, self.least, len(self.owner) + len(self.owner) // 4))
        self.owner[first : self.used] = owner
        return np.arange(first, self.used)

    def remove(self, slots: Ints) -> tuple[Ints, Ints]:
        """Frees slots and moves the last rows into them. Returns the owners of the moved rows and their new slots."""
        left = self.used - len(slots)
        holes = slots[slots < left]
        stays = np.ones(len(slots), bool)
        stays[slots[slots >= left] - left] = False
        moved = left + np.flatnonzero(stays)
        self.values[holes], self.owner[holes] = self.values[moved], self.owner[moved]
        if self.columns is not None:
            self.columns[holes] = self.columns[moved]
        owner = self.owner[holes]
        self.used = left
        if not self.used:
            self._room(0)
        elif self.used < len(self.owner) // 2 and len(self.owner) > self.least:
            self._room(max(self.least, self.used + self.used // 4))
        return owner, holes


def _resized(array: NDArray[Any], rows: int) -> NDArray[Any]:
    if array.flags.owndata:
        # The system moves pages instead of copying them.
        array.resize((rows, *array.shape[1:]), refcheck=False)
        return array
    new = np.zeros((rows, *array.shape[1:]), array.dtype)
    new[: min(rows, len(array))] = array[:rows]
    return new


@final
class Sparse(RowStore):
    """Rows of which only nonzero entries take memory.

    Each sample has a pointer of 4 bytes: 0 for a row of zeros, else the slab and slot of its entries. There is a slab for
    rows of 1, 2, 3, 4, 6, 8, ... entries; a row moves to another slab when its number of entries changes. Slabs have no
    gaps: the last row replaces one that leaves, and unused memory is freed. Operations act on all rows of a batch at once.

    Args:
        num_rows: the number of rows.
        width: the number of entries of a row.
        dtype: of the values: float32, float16 or bfloat16.

    >>> store = Sparse(1_000_000, 1000)
    >>> store.write(np.array([7]), np.eye(1000, dtype=np.float32)[:1])
    >>> store.filled, store.read(np.array([7, 8]))[:, :2].tolist()
    (1, [[1.0, 0.0], [0.0, 0.0]])
    """

    def __init__(self, num_rows: int, width: int, dtype: Any = None) -> None:
        self.num_rows, self.width = num_rows, width
        self.kind = number_type(dtype)
        values = stored_as(self.kind)
        columns = np.dtype(np.uint8 if width <= 2**8 else np.uint16 if width <= 2**16 else np.uint32)
        small = num_rows < 2**26
        self._shift = 26 if small else 40
        owner = np.dtype(np.int32 if num_rows < 2**31 else np.int64)
        widths = ladder(width, values.itemsize + columns.itemsize, values.itemsize)
        self._slabs = [_Slab(w, values, None if w == width else columns, owner) for w in widths]
        self._class_of = np.searchsorted(widths, np.arange(width + 1)).astype(np.int8)
        _exclude_from_graphs()
        # Zeros that were never written take no memory.
        self._pointer: NDArray[Any] = np.zeros(num_rows, np.int32 if small else np.int64)

    def read(self, keys: Ints) -> Floats:
        """(len(keys), width) some rows."""
        out = np.zeros((len(keys), self.width), np.float32)
        pointer = self._pointer[keys]
        here = np.flatnonzero(pointer)
        for slab, which, slots in self._by_class(pointer[here]):
            at, values = here[which], unpack_numbers(slab.values[slots], self.kind)
            if slab.columns is None:
                out[at] = values
            else:
                out[at[:, None], slab.columns[slots]] = values
        return out

    def write(self, keys: Ints, rows: Floats) -> None:
        """Replaces distinct rows."""
        kept = pack_numbers(rows, self.kind)
        filled = (rows if self.kind == "float32" else unpack_numbers(kept, self.kind)) != 0
        counts = np.count_nonzero(filled, axis=1)
        pointer = self._pointer[keys]
        here = np.flatnonzero((counts > 0) | (pointer > 0))
        if not len(here):
            return
        keys, counts, pointer = keys[here], counts[here], pointer[here]
        self._note(keys)
        was = np.where(pointer > 0, (pointer - 1) >> self._shift, -1)
        new = np.where(counts > 0, self._class_of[counts], -1)
        moves = was != new
        self._release(keys[moves & (was >= 0)])
        for c in np.flatnonzero(np.bincount(new + 1, minlength=1)[1:]).tolist():
            slab = self._slabs[c]
            enters = np.flatnonzero((new == c) & moves)
            if len(enters):
                self._pointer[keys[enters]] = self._code(c, slab.add(keys[enters]))
            which = np.flatnonzero(new == c)
            # Pointers are read again: rows that stayed may have moved into freed slots.
            slots = (self._pointer[keys[which]] - 1) & ((1 << self._shift) - 1)
            self._fill(slab, slots, kept, filled, here[which], counts[which])

    def _fill(
        self, slab: _Slab, slots: Ints, kept: NDArray[Any], filled: NDArray[np.bool_], at: Ints, counts: Ints
    ) -> None:
        if slab.columns is None:
            slab.values[slots] = kept[at]
            return
        row, column = np.nonzero(filled[at])
        start = np.cumsum(counts) - counts
        columns = np.repeat(column[start], slab.columns.shape[1]).reshape(len(at), -1)
        columns[row, np.arange(len(row)) - start[row]] = column
        slab.columns[slots] = columns
        slab.values[slots] = kept[at[:, None], columns]

    def _by_class(self, pointer: NDArray[Any]) -> Any:
        """Yields, for nonzero pointers, each slab, the positions of its pointers, and their slots."""
        code = pointer - 1
        classes, slots = code >> self._shift, code & ((1 << self._shift) - 1)
        for c in np.flatnonzero(np.bincount(classes)).tolist():
            which = np.flatnonzero(classes == c)
            yield self._slabs[c], which, slots[which]

    def _code(self, c: int, slots: Ints) -> Ints:
        return (c << self._shift) + slots + 1

    def _release(self, keys: Ints) -> None:
        if not len(keys):
            return
        for slab, _, slots in self._by_class(self._pointer[keys]):
            owner, moved_to = slab.remove(slots)
            self._pointer[owner] = self._code(self._slabs.index(slab), moved_to)
        self._pointer[keys] = 0

    @property
    def filled(self) -> int:
        """The number of nonzero rows."""
        return sum(slab.used for slab in self._slabs)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._pointer.nbytes + self._note_nbytes + sum(slab.nbytes for slab in self._slabs)

    def pack(self, rows: Ints | None = None) -> Packed:
        """Some rows, or all nonzero rows, without their zeros."""
        rows = np.flatnonzero(self._pointer) if rows is None else rows
        pointer = self._pointer[rows]
        here = np.flatnonzero(pointer)
        parts: list[tuple[Any, Any, Any]] = []
        for slab, which, slots in self._by_class(pointer[here]):
            values = unpack_numbers(slab.values[slots], self.kind)
            if slab.columns is None:
                at, columns = np.nonzero(values)
                parts.append((here[which[at]], columns, values[at, columns]))
                continue
            columns = slab.columns[slots]
            own = columns != columns[:, :1]
            own[:, 0] = True
            parts.append((here[which[np.nonzero(own)[0]]], columns[own], values[own]))
        if not parts:
            return Packed.of(rows, np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
        at, columns, values = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Packed.of(rows, at, columns, values)

    def clear(self) -> None:
        """Sets all rows to zero."""
        for slab in self._slabs:
            owner = slab.owner[: slab.used].copy()
            self._note(owner)
            self._pointer[owner] = 0
            slab.used = 0
            slab._room(0)

    def __repr__(self) -> str:
        return "sparse" if self.kind == "float32" else f"sparse {self.kind}"


PAGE = 4096
MAGIC = "compensate rows 1"


@final
class Mapped(RowStore):
    """Full rows in a file: for tables beyond memory whose rows have few zeros.

    The file has a header page, a byte for each row that is 1 if the row is nonzero, and the rows. All of its blocks are
    allocated at the start: writing to a mapped file on a full disk would end the process by a signal.

    A written row survives the end of the process; after a power failure, rows since the last `flush` may be lost or
    incomplete. Checkpoints hold all rows themselves, and loading one sets the file to exactly these.

    Args:
        num_rows: the number of rows.
        width: the number of entries of a row.
        path: of the file. An existing file must have the same size and number type; its rows are kept. Each of several
            processes appends its number to the name.
        dtype: of the values: float32, float16 or bfloat16.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Mapped(1000, 10, Path(folder) / "rows")
    ...     store.write(np.array([3]), np.ones((1, 10), np.float32))
    ...     store.close()
    ...     Mapped(1000, 10, Path(folder) / "rows").filled
    1
    """

    def __init__(self, num_rows: int, width: int, path: str | Path, dtype: Any = None) -> None:
        self.num_rows, self.width = num_rows, width
        self.kind = number_type(dtype)
        self.path = _own(Path(path).expanduser())
        self._open()

    def _open(self) -> None:
        _exclude_from_graphs()
        head = {"is": MAGIC, "rows": self.num_rows, "width": self.width, "dtype": self.kind}
        values = stored_as(self.kind)
        start = PAGE + -(-self.num_rows // PAGE) * PAGE
        size = start + self.num_rows * self.width * values.itemsize
        try:
            # The map holds a duplicate of the file descriptor, and with it the lock.
            with open(self.path, "r+b" if self.path.exists() else "x+b") as file:
                _lock(file, self.path)
                length = os.fstat(file.fileno()).st_size
                if length:
                    self._compare(file.read(PAGE), head)
                    if length != size:
                        raise InputError(
                            f"{self.path} has {length:,} bytes and its table {size:,}: the file was cut or written over. Remove it, or "
                            "restore a copy; a checkpoint also holds all rows."
                        )
                    _allocate(file, size)
                else:
                    self._begin(file, head, size)
                self._map = np.memmap(file, np.uint8, "r+", shape=size)
        except InputError:
            raise
        except (OSError, ValueError) as error:
            raise InputError(
                f"the file {self.path} for a table of {size / 1e9:.3g} GB cannot be opened ({error}). Give a path in a folder "
                "that exists and can be written, on a disk with enough room."
            ) from error
        if hasattr(mmap, "MADV_RANDOM"):
            self._map._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]  # no read-ahead
        content = np.asarray(self._map)
        self._filled: NDArray[np.bool_] = content[PAGE : PAGE + self.num_rows].view(np.bool_)
        self._rows: NDArray[Any] = content[start:].view(values).reshape(self.num_rows, self.width)
        self._changed = None

    def _begin(self, file: BinaryIO, head: dict[str, Any], size: int) -> None:
        """Writes an empty table, its header last: an incomplete file is then not taken for a table."""
        try:
            _allocate(file, size)
            file.write(json.dumps(head).encode().ljust(PAGE, b"\n"))
            file.flush()
        except OSError:
            self.path.unlink(missing_ok=True)
            raise

    def _compare(self, start: bytes, head: dict[str, Any]) -> None:
        try:
            header = json.loads(start)
        except ValueError:
            header = None
        if not isinstance(header, dict) or header.get("is") != MAGIC:
            raise InputError(f"{self.path} exists and is not a table; give another path, or remove it.")
        if header != head:
            raise InputError(
                f"{self.path} holds a table of {header.get('rows')} x {header.get('width')} {header.get('dtype')}, not of "
                f"{self.num_rows} x {self.width} {self.kind}. Give another path, or remove it."
            )

    def read(self, keys: Ints) -> Floats:
        """(len(keys), width) some rows."""
        out = np.zeros((len(keys), self.width), np.float32)
        here = np.flatnonzero(self._filled[keys])  # pages of other rows are not read
        out[here] = unpack_numbers(self._rows[keys[here]], self.kind)
        return out

    def write(self, keys: Ints, rows: Floats) -> None:
        """Replaces distinct rows."""
        stored = pack_numbers(rows, self.kind)
        filled = (unpack_numbers(stored, self.kind) != 0).any(1)
        here = np.flatnonzero(filled | self._filled[keys])  # pages of zeros are not touched
        self._rows[keys[here]] = stored[here]
        self._filled[keys[here]] = filled[here]
        self._note(keys[here])

    @property
    def filled(self) -> int:
        """The number of nonzero rows."""
        return int(self._filled.sum())

    @property
    def nbytes(self) -> int:
        """Bytes of memory, without the pages of the file, which the system may take back at any time."""
        return self._note_nbytes

    def flush(self) -> None:
        """Writes all rows to the disk."""
        self._map.flush()

    def close(self) -> None:
        """Writes all rows to the disk and releases the file; the store cannot be used any more."""
        self.flush()
        del self._filled, self._rows, self._map

    def pack(self, rows: Ints | None = None) -> Packed:
        """Some rows, or all nonzero rows, without their zeros."""
        rows = np.flatnonzero(self._filled) if rows is None else rows
        parts: list[tuple[Any, Any, Any]] = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))]
        size = max(1, (1 << 22) // self.width)
        for first in range(0, len(rows), size):
            full = self.read(rows[first : first + size])
            at, columns = np.nonzero(full)
            parts.append((first + at, columns, full[at, columns]))
        at, columns, values = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Packed.of(rows, at, columns, values)

    def clear(self) -> None:
        """Sets all rows to zero."""
        rows = np.flatnonzero(self._filled)
        for first in range(0, len(rows), 4096):
            self._rows[rows[first : first + 4096]] = 0
        self._filled[rows] = False
        self._note(rows)

    def __deepcopy__(self, memo: dict[int, Any]) -> Mapped:
        """A copy in a file of its own in the same folder, removed with the copy."""
        number = next(k for k in range(1, 10**6) if not self.path.with_name(f"{self.path.name}.copy{k}").exists())
        path = self.path.with_name(f"{self.path.name}.copy{number}")
        copy = Mapped.__new__(Mapped)
        copy.num_rows, copy.width, copy.kind, copy.path = self.num_rows, self.width, self.kind, path
        copy._open()
        copy.put(self.pack())
        weakref.finalize(copy, path.unlink, missing_ok=True)
        return copy

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("num_rows", "width", "kind", "path")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __repr__(self) -> str:
        return f"mapped {self.path.name}" if self.kind == "float32" else f"mapped {self.path.name} {self.kind}"


def _allocate(file: BinaryIO, size: int) -> None:
    """Allocates all blocks of a file; where the system cannot, a full disk is not noticed beforehand."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)


def _own(path: Path) -> Path:
    """The path with the number of this process, if there are several: each needs a file of its own."""
    from torch import distributed as dist

    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return path.with_name(f"{path.name}.{dist.get_rank()}")
    return path


def _lock(file: BinaryIO, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # this system has no locks
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise InputError(f"{path} is in use by another table; give each its own path.") from error


def restored(
    store: RowStore | None,
    shape: tuple[int, ...],
    state: dict[str, Any],
    prefix: str,
    missing: list[str],
    errors: list[str],
) -> dict[str, Any]:
    """The saved state of a table, converted between dense and packed rows as the reading table needs.

    Args:
        store: of the reading table, filled here; None if its rows are the tensor `weight`, which torch loads itself.
        shape: of that table.
        state: the saved state, under names that begin with `prefix`; entries that are used here are removed.
        missing, errors: lists of torch that take missing names and messages about wrong shapes.
    """
    whole, width = prefix + "weight", math.prod(shape[1:])
    if all(prefix + name in state for name in PARTS):
        packed = Packed.from_tensors({name: state.pop(prefix + name) for name in PARTS})
    elif store is not None and whole in state:
        weight = state.pop(whole)
        if weight.shape != shape:
            errors.append(f"{whole} has shape {tuple(weight.shape)}; this table is {shape}.")
            return state
        packed = without_zeros(weight)
    else:
        missing += [prefix + name for name in PARTS if store is not None and prefix + name not in state]
        return state
    try:
        packed.check(shape[0], width)
    except InputError as error:
        errors.append(str(error))
        return state
    if store is not None:
        store.load(packed)
        return state
    full = torch.zeros(shape[0], width)
    for rows, block in packed.blocks(width):
        full[torch.from_numpy(rows)] = torch.from_numpy(block)
    state[whole] = full.reshape(shape)
    return state


def without_zeros(weight: Tensor) -> Packed:
    """The nonzero rows of a tensor."""
    return Packed.nonzero(weight.detach().cpu().float().reshape(len(weight), -1).numpy())


Store = str | Path
"""How a table keeps its rows: "auto", "dense", "sparse", or the name of a file; each may be followed by ":float16" or ":bfloat16"."""

Way = Literal["auto", "dense", "sparse", "mapped"]
WORDS: tuple[Way, ...] = ("auto", "dense", "sparse")

MAX_DENSE_BYTES = 1 << 30
"""Size up to which "auto" keeps a table dense, if it fits into free memory four times."""

UNCHECKED_BYTES = 1 << 26
"""Size up to which free memory is not checked."""

_log = logging.getLogger("compensate")
_logged: set[tuple[Any, ...]] = set()


@dataclass(frozen=True)
class Spec:
    """A parsed `Store`: the kind of store, the number type, and the file of a mapped table."""

    way: Way
    dtype: NumberType = "float32"
    path: Path | None = None

    @classmethod
    def of(cls, store: Store) -> Spec:
        """Parses a `Store`.

        >>> Spec.of("sparse:float16")
        Spec(way='sparse', dtype='float16', path=None)
        >>> Spec.of("rows.tab").way
        'mapped'
        >>> Spec.of("spare")
        Traceback (most recent call last):
        compensate.errors.InputError: "spare" is not a known store (a file has a suffix, such as "rows.tab"); did you mean "sparse"?
        """
        name, _, dtype = str(store).rpartition(":")
        kind = next((kind for kind in get_args(NumberType) if kind == dtype), None)
        if kind is None and name in WORDS:
            raise InputError(f'"{dtype}" is not a type that a table keeps; {nearest(dtype, get_args(NumberType))}')
        name = str(store) if kind is None else name  # a colon may be part of a file's name
        if name in WORDS:
            return cls(next(word for word in WORDS if word == name), kind or "float32")
        path = Path(name).expanduser()
        if isinstance(store, str) and path.name == name and not path.suffix:
            raise InputError(
                f'"{name}" is not a known store (a file has a suffix, such as "rows.tab"); {nearest(name, WORDS)}'
            )
        return cls("mapped", kind or "float32", path)


def choose(
    spec: Spec,
    num_rows: int,
    shape: tuple[int, ...],
    *,
    sparse: bool = True,
    movable: bool = True,
    free: int | None = None,
) -> RowStore | None:
    """The store of a table, or None for a dense one, which is a tensor.

    Args:
        spec: the parsed argument.
        num_rows, shape: of the table.
        sparse: whether its steps leave zeros; if not, "auto" does not choose "sparse".
        movable: whether its rows may be outside of tensors; false if an optimizer moves them, or if they do not start at zero.
        free: bytes of free memory; by default those of this machine.

    >>> choose(Spec("auto"), 50_000, (10,)) is None, choose(Spec("sparse"), 10_000_000, (1000,))
    (True, sparse)
    """
    if spec.way in ("sparse", "mapped") and not movable:
        raise InputError(
            f'a "{spec.way}" table is for rows that start at zero and are moved by the criterion itself (update="prox" or '
            '"subgradient"), not by an optimizer or a meta step. Keep it "dense", or change update.'
        )
    width, table_size = math.prod(shape), " x ".join(f"{n:,}" for n in (num_rows, *shape))
    size = num_rows * width * stored_as(spec.dtype).itemsize
    if spec.path is not None:
        return Mapped(num_rows, width, spec.path, spec.dtype)
    if spec.way == "sparse":
        return Sparse(num_rows, width, spec.dtype)
    if size <= UNCHECKED_BYTES and free is None:
        return None
    free = free_memory() if free is None else free
    fits = free is None or size <= free
    small = size <= MAX_DENSE_BYTES and (free is None or 4 * size <= free)
    if spec.way == "auto" and not small and movable and sparse:
        store = Sparse(num_rows, width, spec.dtype)
        if (num_rows, shape) not in _logged:
            _logged.add((num_rows, shape))
            _log.warning(
                "the table of %s is kept sparse: %.0f MB and about 6 bytes for each nonzero entry, instead of %.1f GB "
                '("dense" keeps all)',
                table_size, store.nbytes / 1e6, size / 1e9,
            )  # fmt: skip
        return store
    if not fits:
        remedy = (
            '"sparse" keeps only nonzero entries; the name of a file, such as "rows.tab", keeps the table there'
            if movable
            else "take fewer rows, or a granularity that shares them (Category, Group)"
        )
        raise InputError(
            f"a dense table of {table_size} takes {size:,} bytes ({size / 1e9:.1f} GB), and {free:,} are free. "
            f"{remedy}."
        )
    return None


def free_memory() -> int | None:
    """Bytes that this process may still allocate: free memory of the system, or of its container if that is less."""
    free: list[int] = []
    root = Path("/sys/fs/cgroup")
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
        limit, used = (root / "memory.max").read_text().strip(), int((root / "memory.current").read_text())
        cached = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
        if limit != "max":  # pages of files are freed on demand
            free.append(int(limit) - used + int(cached.get("inactive_file", 0)))
    except (OSError, ValueError):
        pass  # this system does not have these files
    return min(free, default=None)
