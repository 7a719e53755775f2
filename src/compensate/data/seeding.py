"""One integer seed, many independent streams of random numbers."""

from __future__ import annotations

import zlib

import numpy as np

from compensate.errors import InputError


def generator(seed: int, purpose: str, *more: int) -> np.random.Generator:
    """A generator that depends on the seed, on what it is for, and on further numbers such as the epoch.

    Two purposes never share a stream: the split of a run must not decide which of its labels are flipped.

    >>> generator(0, "split").random() == generator(0, "split").random()
    True
    >>> generator(0, "order", 1).random() == generator(0, "order", 2).random()
    False
    """
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or seed < 0:
        raise InputError(f"seed is {seed!r}; it must be a whole number of at least 0.")
    return np.random.default_rng([int(seed), zlib.crc32(purpose.encode()), *more])
