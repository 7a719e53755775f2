"""Threads by the size of the work.

Threads that compute a small product wait for each other longer than they compute, and on a busy machine they wait for a core as well: an audit of 300 texts
took eight times the processor time with the default of one thread a core.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

LARGE = 1_000_000_000
"""Multiplications of one pass over the data from which several threads pay."""


@contextmanager
def threads_for(work: float) -> Iterator[None]:
    """Computes work of fewer than `LARGE` multiplications a pass with one thread; larger work with as many as are set.

    >>> import torch
    >>> with threads_for(1000):
    ...     torch.get_num_threads()
    1
    """
    if work >= LARGE:
        yield
        return
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        yield
