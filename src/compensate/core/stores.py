"""Rows of large tables: sparse in memory, or in a file.

A dense table is a tensor and needs no store. Rows are stored in 32 or 16 bits and computed with in 32.
"""

from __future__ import annotations

import json
import logging
import math
import mmap
import os
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal, final, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch import distributed as dist

from compensate.errors import InputError, nearest

Floats = NDArray[np.float32]
Ints = NDArray[np.integer[Any]]
Arrays = dict[str, NDArray[Any]]
Shape = tuple[int, ...]
NumberType = Literal["float32", "float16", "bfloat16"]

STORED_AS: dict[NumberType, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": np.int16}
"""The numpy type that holds each type; numpy has no bfloat16, so its bits are stored."""

BLOCK = 1 << 22
"""Numbers that are converted at a time."""


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
    """Rows without their zeros, to be saved or sent: (K,) row numbers, ascending, (K,) counts of nonzero entries, and their columns and
    values (M,), row after row."""

    rows: NDArray[np.int64]
    counts: NDArray[np.int32]
    columns: NDArray[np.int32]
    values: Floats

    @classmethod
    def of(cls, rows: Ints, blocks: Iterator[Floats]) -> Packed:
        """These rows, given as arrays of full rows, block after block.

        >>> Packed.of(np.array([7, 9]), iter([np.array([[0.0, 2.0], [0.0, 0.0]], np.float32)])).counts
        array([1, 0], dtype=int32)
        """
        none = np.zeros((0, 1), np.float32)  # there may be no block
        parts = [(np.count_nonzero(b, axis=1), np.nonzero(b)[1], b[b != 0]) for b in chain([none], blocks)]
        counts, columns, values = map(np.concatenate, zip(*parts, strict=True))
        return cls(rows.astype(np.int64), counts.astype(np.int32), columns.astype(np.int32), values)

    def blocks(self, width: int) -> Iterator[tuple[Ints, Floats]]:
        """Pairs of row numbers and full rows (k, width), in blocks."""
        size = max(1, BLOCK // max(width, 1))
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


def without_zeros(weight: Tensor) -> Packed:
    """The nonzero rows of a tensor."""
    full = weight.detach().cpu().float().reshape(len(weight), -1).numpy()
    rows = np.flatnonzero(full.any(1))
    return Packed.of(rows, iter([full[rows]]))


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
    def clear(self) -> None:
        """Sets all rows to zero."""

    @abstractmethod
    def filled_rows(self) -> Ints:
        """The nonzero rows, ascending."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory, without the pages of a file, which the system may take back at any time."""
        return 0 if self._changed is None else self._changed.nbytes

    @property
    def filled(self) -> int:
        """The number of nonzero rows."""
        return len(self.filled_rows())

    def pack(self, rows: Ints | None = None) -> Packed:
        """Some rows, or all nonzero rows, without their zeros."""
        rows = self.filled_rows() if rows is None else rows
        size = max(1, BLOCK // self.width)
        return Packed.of(rows, (self.read(rows[first : first + size]) for first in range(0, len(rows), size)))

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


@cache
def _exclude_from_graphs() -> None:
    """Makes compiled graphs call stores eagerly. Called for the first store only, because it imports the compiler."""
    for name in ("gather", "scatter"):
        setattr(RowStore, name, torch.compiler.disable(getattr(RowStore, name)))


MAX_UNUSED = 4096
"""Unused entries of a sparse table that are not removed, besides a quarter of the used ones."""


@final
class Sparse(RowStore):
    """Rows of which only nonzero entries take memory.

    Each sample has a number of 4 bytes: 0 for a row of zeros, else that of its slot. A slot holds the place and number of its
    entries, which are columns and values in two arrays. A written row is appended; its former entries stay unused until a
    quarter as many are unused as used. Then the entries move together, in place.

    >>> store = Sparse(1_000_000, 1000)
    >>> store.write(np.array([7]), np.eye(1000, dtype=np.float32)[:1])
    >>> store.filled, store.read(np.array([7, 8]))[:, :2].tolist()
    (1, [[1.0, 0.0], [0.0, 0.0]])
    """

    def __init__(self, num_rows: int, width: int, dtype: NumberType = "float32") -> None:
        self.num_rows, self.width, self.kind = num_rows, width, dtype
        _exclude_from_graphs()
        rows = np.int32 if num_rows < 2**31 - 1 else np.int64
        columns = np.uint8 if width <= 2**8 else np.uint16 if width <= 2**16 else np.uint32
        self._slot: NDArray[Any] = np.zeros(num_rows, rows)  # zeros that were never written take no memory
        counts = np.int32 if width >= 2**15 else np.int16
        types = {"owner": rows, "start": np.int64, "count": counts}
        self._slots: Arrays = {name: np.empty(0, kind) for name, kind in types.items()}
        self._entries: Arrays = {"columns": np.empty(0, columns), "values": np.empty(0, STORED_AS[dtype])}
        self._rows = self._end = self._used = 0

    def _places(self, slots: Ints) -> tuple[Ints, Ints]:
        """The number of entries of some slots, and the places of these entries."""
        counts = self._slots["count"][slots].astype(np.int64)
        ends = np.cumsum(counts)
        return counts, np.repeat(self._slots["start"][slots] - ends + counts, counts) + np.arange(counts.sum())

    def read(self, keys: Ints) -> Floats:
        out = np.zeros((len(keys), self.width), np.float32)
        slots = self._slot[keys]
        here = np.flatnonzero(slots)
        counts, places = self._places(slots[here] - 1)
        values = unpack_numbers(self._entries["values"][places], self.kind)
        out[np.repeat(here, counts), self._entries["columns"][places]] = values
        return out

    def write(self, keys: Ints, rows: Floats) -> None:
        stored = pack_numbers(rows, self.kind)
        filled = unpack_numbers(stored, self.kind) != 0
        here = np.flatnonzero(filled.any(1) | (self._slot[keys] > 0))
        if not len(here):
            return
        keys = keys[here]
        self._note(keys)
        at, columns = np.nonzero(filled[here])
        new, first, end = keys[self._slot[keys] == 0], self._rows, self._end + len(at)
        self._rows += len(new)
        self._resize(self._slots, self._rows)
        self._resize(self._entries, end)
        self._slots["owner"][first : self._rows], self._slots["count"][first : self._rows] = new, 0
        self._slot[new] = np.arange(first, self._rows) + 1
        slots, counts = self._slot[keys] - 1, np.bincount(at, minlength=len(keys))
        self._used += len(at) - int(self._slots["count"][slots].sum(dtype=np.int64))
        self._slots["start"][slots], self._slots["count"][slots] = self._end + np.cumsum(counts) - counts, counts
        self._entries["columns"][self._end : end] = columns
        self._entries["values"][self._end : end] = stored[here[at], columns]
        self._end = end
        if end > 1.25 * self._used + MAX_UNUSED:
            self._compact()

    def _resize(self, arrays: Arrays, size: int, *, exact: bool = False) -> None:
        for name, array in arrays.items():
            if exact or size > len(array):
                if not array.flags.owndata:
                    array = arrays[name] = array.copy()
                # In place: the system moves pages instead of copying them.
                array.resize(size if exact else size + size // 8 + 64, refcheck=False)

    def _compact(self) -> None:
        """Removes unused entries and the slots of rows that became zero."""
        owner, start, count = self._slots.values()
        kept = np.flatnonzero(count[: self._rows])
        kept = kept[np.argsort(start[kept])]
        self._slot[owner[: self._rows]] = 0
        self._end = 0
        for part in np.array_split(kept, 1 + 8 * self._used // BLOCK):
            counts, places = self._places(part)
            start[part] = self._end + np.cumsum(counts) - counts
            for array in self._entries.values():
                array[self._end : self._end + len(places)] = array[places]  # entries only move to the front
            self._end += len(places)
        self._rows = len(kept)
        for array in (owner, start, count):
            array[: len(kept)] = array[kept]
        self._slot[owner[: len(kept)]] = np.arange(len(kept)) + 1
        self._resize(self._slots, self._rows, exact=True)
        self._resize(self._entries, self._end, exact=True)

    def filled_rows(self) -> Ints:
        return np.sort(self._slots["owner"][: self._rows][self._slots["count"][: self._rows] > 0])

    @property
    def nbytes(self) -> int:
        arrays = (self._slot, *self._slots.values(), *self._entries.values())
        return super().nbytes + sum(array.nbytes for array in arrays)

    def clear(self) -> None:
        self._note(self.filled_rows())
        self._slots["count"][: self._rows] = self._used = 0
        self._compact()

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
    incomplete. An existing file must have the same size and number type; its rows are kept, unless a checkpoint replaces them. Each
    of several processes appends its number to the name of the file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Mapped(1000, 10, Path(folder) / "rows")
    ...     store.write(np.array([3]), np.ones((1, 10), np.float32))
    ...     store.close()
    ...     Mapped(1000, 10, Path(folder) / "rows").filled
    1
    """

    def __init__(self, num_rows: int, width: int, path: str | Path, dtype: NumberType = "float32") -> None:
        path = Path(path).expanduser()
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            path = path.with_name(f"{path.name}.{dist.get_rank()}")
        self.__setstate__({"num_rows": num_rows, "width": width, "kind": dtype, "path": path})

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("num_rows", "width", "kind", "path")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Opens the file, or makes it."""
        self.num_rows, self.width, self.kind, self.path = state.values()
        self._changed = None
        _exclude_from_graphs()
        values = np.dtype(STORED_AS[self.kind])
        start = PAGE + -(-self.num_rows // PAGE) * PAGE
        size = start + self.num_rows * self.width * values.itemsize
        try:
            # The map holds a duplicate of the file descriptor, and with it the lock.
            with open(self.path, "r+b" if self.path.exists() else "x+b") as file:
                self._prepare(file, size)
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

    def _prepare(self, file: Any, size: int) -> None:
        """Locks the file, checks its header and length, or writes an empty table, and allocates its blocks."""
        try:
            import fcntl
        except ImportError:  # this system has no locks
            pass
        else:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InputError(f"{self.path} is in use by another table; give each its own path.") from error
        head = {"is": MAGIC, "rows": self.num_rows, "width": self.width, "dtype": self.kind}
        length = os.fstat(file.fileno()).st_size
        if length:
            try:
                header = json.loads(file.read(PAGE))
            except ValueError:
                header = None
            if not isinstance(header, dict) or header.get("is") != MAGIC:
                raise InputError(f"{self.path} exists and is not a table; give another path, or remove it.")
            if header != head:
                raise InputError(
                    f"{self.path} holds a table of {header.get('rows')} x {header.get('width')} {header.get('dtype')}, not of "
                    f"{self.num_rows} x {self.width} {self.kind}. Give another path, or remove it."
                )
            if length != size:
                raise InputError(
                    f"{self.path} has {length:,} bytes and its table {size:,}: the file was cut or written over. Remove it, or "
                    "restore a copy; a checkpoint also holds all rows."
                )
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)  # a full disk is not noticed beforehand
            if not length:  # the header comes last: an incomplete file is then not taken for a table
                file.write(json.dumps(head).encode().ljust(PAGE, b"\n"))
                file.flush()
        except OSError:
            if not length:
                self.path.unlink(missing_ok=True)
            raise

    def read(self, keys: Ints) -> Floats:
        out = np.zeros((len(keys), self.width), np.float32)
        here = np.flatnonzero(self._filled[keys])  # pages of other rows are not read
        out[here] = unpack_numbers(self._rows[keys[here]], self.kind)
        return out

    def write(self, keys: Ints, rows: Floats) -> None:
        stored = pack_numbers(rows, self.kind)
        filled = (unpack_numbers(stored, self.kind) != 0).any(1)
        here = np.flatnonzero(filled | self._filled[keys])  # pages of zeros are not touched
        self._rows[keys[here]] = stored[here]
        self._filled[keys[here]] = filled[here]
        self._note(keys[here])

    def filled_rows(self) -> Ints:
        return np.flatnonzero(self._filled)

    def flush(self) -> None:
        """Writes all rows to the disk."""
        self._map.flush()

    def close(self) -> None:
        """Writes all rows to the disk and releases the file; the store cannot be used any more."""
        self.flush()
        del self._filled, self._rows, self._map

    def clear(self) -> None:
        rows = self.filled_rows()
        self._rows[rows] = 0
        self._filled[rows] = False
        self._note(rows)

    def __deepcopy__(self, memo: dict[int, Any]) -> Mapped:
        """A copy in a file of its own in the same folder, removed with the copy."""
        paths = (self.path.with_name(f"{self.path.name}.copy{k}") for k in range(1, 10**6))
        path = next(path for path in paths if not path.exists())
        copy = Mapped.__new__(Mapped)
        copy.__setstate__({**self.__getstate__(), "path": path})
        copy.put(self.pack())
        weakref.finalize(copy, path.unlink, missing_ok=True)
        return copy

    def __repr__(self) -> str:
        return f"mapped {self.path.name}" if self.kind == "float32" else f"mapped {self.path.name} {self.kind}"


def restored(
    store: RowStore | None, shape: Shape, state: dict[str, Any], prefix: str, missing: list[str], errors: list[str]
) -> dict[str, Any]:
    """The saved state of a table of this store and shape, converted between dense and packed rows.

    Rows of a store are loaded and removed from the state, whose names begin with `prefix`; torch loads a dense `weight` itself.
    `missing` and `errors` are its lists of missing names and messages.
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

        >>> Spec.of("sparse:float16"), Spec.of("rows.tab").way
        (Spec(way='sparse', dtype='float16', path=None), 'mapped')
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
    spec: Spec, num_rows: int, shape: Shape, *, sparse: bool = True, movable: bool = True, free: int | None = None
) -> RowStore | None:
    """The store of a table, or None for a dense one, which is a tensor.

    Args:
        spec, num_rows, shape: of the table.
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
    size = num_rows * width * np.dtype(STORED_AS[spec.dtype]).itemsize
    if spec.path is not None:
        return Mapped(num_rows, width, spec.path, spec.dtype)
    if spec.way == "sparse":
        return Sparse(num_rows, width, spec.dtype)
    if size <= UNCHECKED_BYTES and free is None:
        return None
    free = free_memory() if free is None else free
    if spec.way == "auto" and size > min(MAX_DENSE_BYTES, free / 4) and movable and sparse:
        store = Sparse(num_rows, width, spec.dtype)
        if (num_rows, shape) not in _logged:
            _logged.add((num_rows, shape))
            _log.warning(
                'the table of %s is kept sparse: %.0f MB and about 6 bytes for each nonzero entry, instead of %.1f GB ("dense" keeps all)',
                table_size, store.nbytes / 1e6, size / 1e9,
            )  # fmt: skip
        return store
    if size > free:
        remedy = "take fewer rows, or a granularity that shares them (Category, Group)"
        if movable:
            remedy = (
                '"sparse" keeps only nonzero entries; the name of a file, such as "rows.tab", keeps the table there'
            )
        raise InputError(
            f"a dense table of {table_size} takes {size:,} bytes ({size / 1e9:.1f} GB), and {free:,} are free. {remedy}."
        )
    return None


def free_memory() -> int:
    """Bytes that this process may still allocate: free memory of the system, or of its container if that is less."""
    free = [sys.maxsize]
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
    return min(free)
