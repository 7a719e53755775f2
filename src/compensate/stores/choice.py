"""Which store a table gets: as asked for in one word, or by its size and the memory there is."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from compensate.errors import InputError, nearest
from compensate.stores.base import NumberType, RowStore, stored_as
from compensate.stores.mapped import Mapped
from compensate.stores.sparse import Sparse

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
