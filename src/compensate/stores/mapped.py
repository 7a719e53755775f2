"""Rows kept in a file that the system maps into memory."""

from __future__ import annotations

import json
import mmap
import os
import weakref
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np
from numpy.typing import NDArray

from compensate.errors import InputError
from compensate.stores.base import Floats, Ints, Packed, RowStore, number_type, pack_numbers, stored_as, unpack_numbers

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
