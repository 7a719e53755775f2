"""What stores have in common: numbers in 32 or 16 bits, the form in which rows travel, and the note of changed rows."""

from __future__ import annotations

import json
import logging
import math
import mmap
import os
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, final, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compensate.errors import InputError, nearest

__all__ = [
    "Kept",
    "Mapped",
    "Packed",
    "Sparse",
    "Spec",
    "Store",
    "choose",
]

Floats = NDArray[np.float32]
Ints = NDArray[np.integer[Any]]
NumberType = Literal["float32", "float16", "bfloat16"]

LARGEST = {"float16": np.float32(65504.0), "bfloat16": np.float32(3.3895314e38)}
"""Larger values are cut off: a row that became infinite would never come back."""


def number_type(dtype: Any) -> NumberType:
    """The name of a type of numbers.

    >>> number_type(torch.float16), number_type("bfloat16"), number_type(None)
    ('float16', 'bfloat16', 'float32')
    """
    name = "float32" if dtype is None else str(dtype).removeprefix("torch.")
    if name not in get_args(NumberType):
        raise InputError(f"dtype is {dtype}; a table keeps {', '.join(get_args(NumberType))}.")
    return name  # type: ignore[return-value]


def stored_as(kind: NumberType) -> np.dtype[Any]:
    """The numpy type that holds it; numpy has no bfloat16, so its bits are kept."""
    return np.dtype({"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}[kind])


def pack_numbers(rows: Floats, kind: NumberType) -> NDArray[Any]:
    """Values as they are kept, rounded to the nearest.

    >>> unpack_numbers(pack_numbers(np.array([1.0, 1e-9, 1e9], np.float32), "float16"), "float16").tolist()
    [1.0, 0.0, 65504.0]
    """
    if kind == "float32":
        return rows
    cut = np.clip(rows, -LARGEST[kind], LARGEST[kind])
    if kind == "float16":
        return cut.astype(np.float16)
    bits = cut.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def unpack_numbers(kept: NDArray[Any], kind: NumberType) -> Floats:
    """Kept values as numbers to compute with."""
    if kind == "bfloat16":
        return (kept.astype(np.uint32) << 16).view(np.float32)
    return kept.astype(np.float32, copy=False)


@dataclass(frozen=True, eq=False)
class Packed:
    """Rows without their zeros, to be saved or sent.

    Attributes:
        rows: (K,) which rows, in ascending order.
        counts: (K,) how many entries of each are not zero.
        columns: (M,) where these are, row after row.
        values: (M,) what they are.
    """

    rows: NDArray[np.int64]
    counts: NDArray[np.int32]
    columns: NDArray[np.int32]
    values: Floats

    @classmethod
    def of(cls, rows: Ints, at: Ints, columns: Ints, values: Floats) -> Packed:
        """From entries in any order; `at` (M,) is the place in `rows` that each belongs to."""
        order = np.lexsort((columns, at))
        counts = np.bincount(at, minlength=len(rows)).astype(np.int32)
        return cls(rows.astype(np.int64), counts, columns[order].astype(np.int32), values[order])

    def blocks(self, width: int, numbers: int = 1 << 22) -> Any:
        """Pairs of row numbers and full rows (k, width), some at a time."""
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
        return {name: torch.from_numpy(getattr(self, name)) for name in ("rows", "counts", "columns", "values")}

    @classmethod
    def from_tensors(cls, found: dict[str, torch.Tensor]) -> Packed:
        """The inverse of `tensors`."""
        kinds = {"rows": torch.long, "counts": torch.int32, "columns": torch.int32, "values": torch.float32}
        return cls(**{name: found[name].detach().cpu().to(kind).numpy() for name, kind in kinds.items()})

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
    """A table of `num_rows` x `width` numbers, of which some rows are read and written at a time."""

    kind: NumberType
    num_rows: int
    width: int
    _changed: NDArray[np.bool_] | None = None

    @abstractmethod
    def read(self, keys: Ints, out: Floats | None = None) -> Floats:
        """(len(keys), width) some rows, in `out` if it is given."""

    @abstractmethod
    def write(self, keys: Ints, rows: Floats) -> None:
        """Replaces distinct rows."""

    @abstractmethod
    def pack(self, rows: Ints | None = None) -> Packed:
        """Some rows, or all that are not zero, without their zeros."""

    @abstractmethod
    def clear(self) -> None:
        """Sets all rows to zero."""

    @property
    @abstractmethod
    def filled(self) -> int:
        """Rows that are not zero."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of memory that it takes."""

    def put(self, packed: Packed) -> None:
        """Replaces these rows."""
        packed.check(self.num_rows, self.width)
        for rows, full in packed.blocks(self.width):
            self.write(rows, full)

    def watch(self) -> None:
        """From now on, notes which rows are written."""
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


LEAST = 16_384
"""Bytes that a slab makes room for at once."""

CLASSES = 32
"""Slabs that a pointer can tell apart."""


def ladder(width: int, per_entry: int, per_full: int) -> list[int]:
    """The widths of rows that slabs are kept for; the last is the whole row, kept without its columns.

    >>> ladder(100, 5, 4)
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100]
    """
    steps = [1, 2, 3, *(s for k in range(2, 10) for s in (2**k, 3 * 2 ** (k - 1)))]
    steps += [2**k for k in range(10, 60)]
    shorter = [w for w in steps if w * per_entry < width * per_full and w < width]
    return [*shorter[: CLASSES - 1], width]


@final
class _Slab:
    """Rows with room for `width` entries each, without gaps: (n, width) values and columns, and whose rows they are.

    Room that a row does not need repeats its first entry, so that writing all of them out is right.
    """

    def __init__(self, width: int, values: np.dtype[Any], columns: np.dtype[Any] | None, owner: np.dtype[Any]) -> None:
        self.used = 0
        self.values = np.empty((0, width), values)
        self.columns = None if columns is None else np.empty((0, width), columns)
        self.owner = np.empty(0, owner)
        self.least = max(1, LEAST // (width * values.itemsize))

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
        """Gives slots back; the last rows move into them. Returns whose rows moved and where to."""
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
        # The system moves pages instead of copying them, so that growing takes no second copy.
        array.resize((rows, *array.shape[1:]), refcheck=False)
        return array
    new = np.zeros((rows, *array.shape[1:]), array.dtype)
    new[: min(rows, len(array))] = array[:rows]
    return new


@final
class Sparse(RowStore):
    """Rows of numbers of which only those that are not zero take room.

    Each sample has a pointer of 4 bytes: 0 for a row of zeros, else the slab and the slot where its entries are. There is
    a slab for rows of 1, 2, 3, 4, 6, 8, ... entries; a row moves to another one as its entries become more or fewer.
    Slabs have no gaps: a row that leaves is replaced by the last one, and room that is not needed is given back.
    Every operation is on all rows of a batch at once.

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
        # Zeros that were never written take no memory, so that an untouched table costs nothing.
        self._pointer: NDArray[Any] = np.zeros(num_rows, np.int32 if small else np.int64)

    # --- rows -------------------------------------------------------------------------------------------------

    def read(self, keys: Ints, out: Floats | None = None) -> Floats:
        """(len(keys), width) some rows, in `out` if it is given."""
        out = np.empty((len(keys), self.width), np.float32) if out is None else out
        out.fill(0)
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
            # Not the pointers from before: rows that stayed may have moved into the room of others.
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
        """Of pointers that are not 0: each slab among them, which of them are its, and their slots."""
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

    # --- the whole --------------------------------------------------------------------------------------------

    @property
    def filled(self) -> int:
        """Rows that are not zero."""
        return sum(slab.used for slab in self._slabs)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self._pointer.nbytes + self._note_nbytes + sum(slab.nbytes for slab in self._slabs)

    def pack(self, rows: Ints | None = None) -> Packed:
        """Some rows, or all that are not zero, without their zeros."""
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

    The file has a page that says what it is, a byte for each row that says whether it is other than zero, and the rows. Its whole room
    is taken when it is made: a disk that is full is found then, not by a signal that ends the process in the middle of
    a training.

    What is promised: a row that was written is there after the process was killed, for the system owns the pages; after a
    power failure, rows since the last `flush` may be lost or half written. A checkpoint does not rely on the file: it
    holds all rows itself, and loading it sets the file to exactly these.

    Args:
        num_rows: the number of rows.
        width: the number of entries of a row.
        path: of the file. One that exists must be of the same size and numbers; its rows are kept. In one of several
            processes, the file gets the number of the process as part of its name.
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
        head = {"is": MAGIC, "rows": self.num_rows, "width": self.width, "dtype": self.kind}
        values = stored_as(self.kind)
        start = PAGE + -(-self.num_rows // PAGE) * PAGE
        size = start + self.num_rows * self.width * values.itemsize
        try:
            # The map keeps the file open, and so the lock, for as long as it is there itself.
            with open(self.path, "r+b" if self.path.exists() else "x+b") as file:
                _lock(file, self.path)
                found = os.fstat(file.fileno()).st_size
                if found:
                    self._compare(file.read(PAGE), head)
                    self._compare_length(found, size)
                    _take_room(file, size)
                else:
                    self._begin(file, head, size)
                self._map = mmap.mmap(file.fileno(), size)
        except (OSError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"the file {self.path} for a table of {size / 1e9:.3g} GB cannot be opened ({error}). Give a path in a folder "
                "that exists and can be written, on a disk with enough room."
            ) from error
        if hasattr(mmap, "MADV_RANDOM"):
            self._map.madvise(mmap.MADV_RANDOM)  # neighbors of a row are not read ahead
        self._filled: NDArray[np.bool_] = np.frombuffer(self._map, np.bool_, self.num_rows, PAGE)
        numbers = np.frombuffer(self._map, values, self.num_rows * self.width, start)
        self._rows: NDArray[Any] = numbers.reshape(self.num_rows, self.width)
        self._changed = None

    def _begin(self, file: BinaryIO, head: dict[str, Any], size: int) -> None:
        """An empty table. What it is comes last, so that a file that was cut short is not taken for one."""
        try:
            _take_room(file, size)
            file.write(json.dumps(head).encode().ljust(PAGE, b"\n"))
            file.flush()
        except OSError:
            self.path.unlink(missing_ok=True)  # a part of a table is of no use and takes room
            raise

    def _compare_length(self, found: int, size: int) -> None:
        if found != size:
            raise InputError(
                f"{self.path} has {found:,} bytes and its table {size:,}: the file was cut or written over. Remove it, or "
                "bring back a copy; a checkpoint holds all rows, too."
            )

    def _compare(self, start: bytes, head: dict[str, Any]) -> None:
        try:
            found = json.loads(start)
        except ValueError:
            found = None
        if not isinstance(found, dict) or found.get("is") != MAGIC:
            raise InputError(f"{self.path} exists and is not a table; give another path, or remove it.")
        if found != head:
            raise InputError(
                f"{self.path} holds a table of {found.get('rows')} x {found.get('width')} {found.get('dtype')}, not of "
                f"{self.num_rows} x {self.width} {self.kind}. Give another path, or remove it."
            )

    # --- rows -------------------------------------------------------------------------------------------------

    def read(self, keys: Ints, out: Floats | None = None) -> Floats:
        """(len(keys), width) some rows, in `out` if it is given."""
        out = np.empty((len(keys), self.width), np.float32) if out is None else out
        out.fill(0)
        here = np.flatnonzero(self._filled[keys])  # pages of other rows need not be looked at
        out[here] = unpack_numbers(self._rows[keys[here]], self.kind)
        return out

    def write(self, keys: Ints, rows: Floats) -> None:
        """Replaces distinct rows."""
        kept = pack_numbers(rows, self.kind)
        filled = (unpack_numbers(kept, self.kind) != 0).any(1)
        here = np.flatnonzero(filled | self._filled[keys])  # pages of zeros need not be touched
        self._rows[keys[here]] = kept[here]
        self._filled[keys[here]] = filled[here]
        self._note(keys[here])

    # --- the whole --------------------------------------------------------------------------------------------

    @property
    def filled(self) -> int:
        """Rows that are not zero."""
        return int(self._filled.sum())

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes; the system may take the pages of the file back at any time."""
        return self._note_nbytes

    def flush(self) -> None:
        """Brings all rows to the disk."""
        self._map.flush()

    def close(self) -> None:
        """Brings all rows to the disk and lets go of the file; the store cannot be used any more."""
        self.flush()
        del self._filled, self._rows
        self._map.close()

    def pack(self, rows: Ints | None = None) -> Packed:
        """Some rows, or all that are not zero, without their zeros."""
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
        """A copy in a file of its own beside this one, which goes when the copy does."""
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


def _take_room(file: BinaryIO, size: int) -> None:
    """All blocks of a file: the system ends a process that writes to a map whose blocks the disk does not have."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:  # not every system has it; there a full disk is not found beforehand
        file.truncate(size)


def _own(path: Path) -> Path:
    """Each process its own file: two that write one file would each see the other's steps."""
    from torch import distributed as dist

    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return path.with_name(f"{path.name}.{dist.get_rank()}")
    return path


def _lock(file: BinaryIO, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # not every system has it; then nothing guards against two processes on one file
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise InputError(f"{path} is in use by another table; give each its own path.") from error


@final
class Kept:
    """The rows of a table, read and written as tensors of the model's device.

    On a graphics card rows come through pinned memory, so that the copy runs beside the computation, and go back the same way:
    `write` returns at once, and the rows are put in their places when the store is next asked for anything. Only the
    keys of a batch, a few bytes a sample, are waited for.

    Args:
        store: where the rows are.
        shape: of a row.

    >>> from compensate.core.stores import Sparse
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


Store = str | Path
"""How a table keeps its rows: "auto", "dense", "sparse", or the name of a file; each may be followed by ":float16" or ":bfloat16"."""

Way = Literal["auto", "dense", "sparse", "mapped"]
WORDS: tuple[Way, ...] = ("auto", "dense", "sparse")

SMALL = 1 << 30
"""Bytes up to which `auto` keeps all rows in full, if they fit four times."""

SURE = 1 << 26
"""Bytes for which nobody need ask how much memory there is."""

_log = logging.getLogger("compensate")
_said: set[tuple[Any, ...]] = set()


@dataclass(frozen=True)
class Spec:
    """What a `Store` says: the way, the type of the numbers, and the file of a mapped table."""

    way: Way
    dtype: NumberType = "float32"
    path: Path | None = None

    @classmethod
    def of(cls, store: Store) -> Spec:
        """Reads a `Store`.

        >>> Spec.of("sparse:float16")
        Spec(way='sparse', dtype='float16', path=None)
        >>> Spec.of("rows.tab").way
        'mapped'
        >>> Spec.of("spare")
        Traceback (most recent call last):
        compensate.errors.InputError: "spare" is no way to keep a table (a file has a suffix, such as "rows.tab"); did you mean "sparse"?
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
                f'"{name}" is no way to keep a table (a file has a suffix, such as "rows.tab"); {nearest(name, WORDS)}'
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
        spec: what was asked for.
        num_rows, shape: of the table.
        sparse: whether its steps leave zeros; if not, "auto" does not choose "sparse".
        movable: whether its rows may live outside of tensors; false for those of an optimizer, and those that start at
            another value than zero.
        free: bytes of memory that are free; by default those of this machine.

    >>> choose(Spec("auto"), 50_000, (10,)) is None, choose(Spec("sparse"), 10_000_000, (1000,))
    (True, sparse)
    """
    if spec.way in ("sparse", "mapped") and not movable:
        raise InputError(
            f'a "{spec.way}" table is for rows that start at zero and are moved by the criterion itself (update="prox" or '
            '"subgradient"), not by an optimizer or a meta step. Keep it "dense", or change update.'
        )
    width = math.prod(shape)
    size = num_rows * width * stored_as(spec.dtype).itemsize
    if spec.path is not None:
        return Mapped(num_rows, width, spec.path, spec.dtype)
    if spec.way == "sparse":
        return Sparse(num_rows, width, spec.dtype)
    if size <= SURE and free is None:
        return None
    free = free_memory() if free is None else free
    fits = free is None or size <= free
    small = size <= SMALL and (free is None or 4 * size <= free)
    if spec.way == "auto" and not small and movable and sparse:
        found = Sparse(num_rows, width, spec.dtype)
        _say(found, num_rows, shape, size)
        return found
    if not fits:
        remedy = (
            '"sparse" keeps only what is not zero; the name of a file, such as "rows.tab", keeps it there'
            if movable
            else "take fewer rows, or a granularity that shares them (Category, Group)"
        )
        raise InputError(
            f"a dense table of {_size(num_rows, shape)} takes {size:,} bytes ({size / 1e9:.1f} GB), and {free:,} are free. "
            f"{remedy}."
        )
    return None


def _say(found: Sparse, num_rows: int, shape: tuple[int, ...], size: int) -> None:
    if (num_rows, shape) not in _said:
        _said.add((num_rows, shape))
        _log.warning(
            "the table of %s is kept sparse: %.0f MB and about 6 bytes for each entry that is not zero, instead of %.1f GB "
            '("dense" keeps all)',
            _size(num_rows, shape), found.nbytes / 1e6, size / 1e9,
        )  # fmt: skip


def _size(num_rows: int, shape: tuple[int, ...]) -> str:
    return " x ".join(f"{n:,}" for n in (num_rows, *shape))


def free_memory() -> int | None:
    """Bytes that this process may still take, as far as the system says."""
    found = [_meminfo(), _group()]
    known = [n for n in found if n is not None]
    return min(known) if known else None


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _group() -> int | None:
    """What is left of the limit of a container."""
    root = Path("/sys/fs/cgroup")
    try:
        limit, taken = (root / "memory.max").read_text().strip(), int((root / "memory.current").read_text())
        cached = {k: int(v) for k, v in (line.split() for line in (root / "memory.stat").read_text().splitlines())}
    except (OSError, ValueError):
        return None
    # Pages of files go when memory is asked for.
    return None if limit == "max" else int(limit) - taken + cached.get("inactive_file", 0)
