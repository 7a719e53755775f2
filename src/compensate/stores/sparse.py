"""Rows kept only where they are not zero."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from compensate.stores.base import Floats, Ints, Packed, RowStore, number_type, pack_numbers, stored_as, unpack_numbers

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
