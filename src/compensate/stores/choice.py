"""Which store a table gets, by its size and the memory there is."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any, Literal, get_args

from compensate.errors import InputError
from compensate.stores.mapped import Mapped
from compensate.stores.numbers import kind_of, stored_as
from compensate.stores.sparse import Sparse

Store = Literal["auto", "dense", "sparse", "mapped"]

SMALL = 1 << 30
"""Bytes up to which `auto` keeps all rows in full, if they fit four times."""

SURE = 1 << 26
"""Bytes for which nobody need ask how much memory there is."""

_log = logging.getLogger("compensate")
_said: set[tuple[Any, ...]] = set()


def choose(
    store: Store,
    num_rows: int,
    shape: tuple[int, ...],
    *,
    dtype: Any = None,
    path: str | Path | None = None,
    sparse: bool = True,
    movable: bool = True,
    free: int | None = None,
) -> Sparse | Mapped | None:
    """The store of a table, or None for a dense one, which is a tensor.

    Args:
        store: what was asked for.
        num_rows, shape: of the table.
        dtype: of its values.
        path: of the file, for "mapped".
        sparse: whether its steps leave zeros; if not, "auto" does not choose "sparse".
        movable: whether its rows may live outside of tensors; false for those of an optimiser, and those that start at
            another value than zero.
        free: bytes of memory that are free; by default those of this machine.

    >>> choose("auto", 50_000, (10,)) is None, choose("sparse", 10_000_000, (1000,))
    (True, sparse)
    """
    if store not in get_args(Store):
        raise InputError(f'store is "{store}"; expected one of {", ".join(get_args(Store))}.')
    if path is not None and store != "mapped":
        raise InputError(f'path="{path}" is for store="mapped", and the store is "{store}".')
    if store in ("sparse", "mapped") and not movable:
        raise InputError(
            f'store="{store}" is for rows that start at zero and are moved by the criterion itself (update="prox" or '
            '"subgradient"), not by an optimiser or a meta step. Leave out store, or change update.'
        )
    width = math.prod(shape)
    size = num_rows * width * stored_as(kind_of(dtype)).itemsize
    if store == "mapped":
        return Mapped(num_rows, width, path, dtype)
    if store == "sparse":
        return Sparse(num_rows, width, dtype)
    if size <= SURE and free is None:
        return None
    free = free_memory() if free is None else free
    fits = free is None or size <= free
    small = size <= SMALL and (free is None or 4 * size <= free)
    if store == "auto" and not small and movable and sparse:
        found = Sparse(num_rows, width, dtype)
        _say(found, num_rows, shape, size)
        return found
    if not fits:
        remedy = (
            'store="sparse" keeps only what is not zero; store="mapped", path=... keeps it in a file'
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
            '(store="dense" keeps all)',
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
