"""What stores have in common: numbers in 32 or 16 bits, the form in which rows travel, and the note of changed rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from compensate.errors import InputError

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
