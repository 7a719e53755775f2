"""Sequences of different lengths without a Python object each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compensate.errors import InputError


class Ragged:
    """N sequences of whole numbers, kept end to end in one array.

    ``x[3]`` is one sequence, ``x[rows]`` a `Ragged` of these rows, `pad` the rectangle a model takes.

    >>> x = Ragged.of([[5, 6, 7], [8], [9, 4]])
    >>> x.lengths
    array([3, 1, 2])
    >>> x[np.array([2, 0])].pad()
    array([[9, 4, 0],
           [5, 6, 7]])
    """

    def __init__(self, values: NDArray[Any], offsets: NDArray[np.int64]) -> None:
        if len(offsets) < 1 or offsets[0] != 0 or offsets[-1] != len(values) or (np.diff(offsets) < 0).any():
            raise InputError("the offsets of a Ragged must rise from 0 to the number of values.")
        self.values = values
        self.offsets = offsets

    @classmethod
    def of(cls, sequences: Iterable[ArrayLike], dtype: Any = np.int64) -> Ragged:
        """From one array or list a sequence."""
        rows = [np.asarray(row, dtype=dtype) for row in sequences]
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)]).astype(np.int64)
        return cls(np.concatenate(rows) if rows else np.empty(0, dtype), offsets)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, rows: int | np.integer[Any]) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, rows: NDArray[np.int64]) -> Ragged: ...
    def __getitem__(self, rows: Any) -> Any:
        if np.ndim(rows) == 0:
            row = range(len(self))[rows]
            return self.values[self.offsets[row] : self.offsets[row + 1]]
        rows = np.asarray(rows, dtype=np.int64)
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        # Position k of the result comes from its row's start plus its place within the row.
        source = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return Ragged(self.values[source], offsets)

    def pad(self, fill: int = 0) -> NDArray[np.int64]:
        """(N, longest) the sequences, each followed by ``fill``; at least one column wide."""
        lengths = self.lengths
        out = np.full((len(self), max(int(lengths.max(initial=1)), 1)), fill, dtype=np.int64)
        out[np.arange(out.shape[1]) < lengths[:, None]] = self.values
        return out
