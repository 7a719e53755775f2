"""Where an audit computes: in this process or on a cluster, and with how many threads.

Threads that compute a small product wait for each other longer than they compute: with one thread for each core, an audit of 300 texts took
eight times the processor time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

LARGE = 1_000_000_000
"""Multiplications of one pass over the data from which several threads pay off."""


@contextmanager
def threads_for(work: float) -> Iterator[None]:
    """Limits work of fewer than `LARGE` multiplications a pass to one thread.

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


class Execution(Protocol):
    """A place to compute."""

    @property
    def workers(self) -> int:
        """The number of calls that run at the same time; it may rise while a cluster starts."""

    def map(self, function: Callable[..., Any], items: Iterable[Any], *shared: Any) -> Iterator[Any]:
        """``function(item, *shared)`` of each item, in their order. A call that is lost with its worker is repeated.

        Workers keep shared objects: neither an object nor an array in it may change after it was shared once.
        """

    def map_on_devices(self, function: Callable[..., Any], items: Sequence[Any], *shared: Any) -> Iterator[Any]:
        """As `map`, with one call at a time on each device; the results may come in any order."""

    def finish(self) -> None:
        """Releases the workers: all further calls are made in this process."""


class Local:
    """This process: one call after the other.

    >>> list(LOCAL.map(pow, [2, 3], 2))
    [4, 9]
    """

    workers = 1

    def map(self, function: Callable[..., Any], items: Iterable[Any], *shared: Any) -> Iterator[Any]:
        """As `Execution.map`."""
        return (function(item, *shared) for item in items)

    map_on_devices = map

    def finish(self) -> None:
        """As `Execution.finish`."""


LOCAL = Local()
