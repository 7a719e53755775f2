"""Threads by the size of the work.

Threads that compute a small product wait for each other longer than they compute, and on a busy machine they wait for a core as well: an audit of 300 texts
took eight times the processor time with the default of one thread a core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

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


class Execution(Protocol):
    """What every place to compute offers."""

    @property
    def workers(self) -> int:
        """How many calls run at the same time; it may become more while an execution starts."""

    def map(self, function: Callable[..., Any], items: Iterable[Any], *shared: Any) -> Iterator[Any]:
        """``function(item, *shared)`` of each item, in their order. A call that is lost with its worker is made again.

        Workers keep what is shared: neither an object nor an array in it may be changed after it was shared once.
        """

    def map_on_devices(self, function: Callable[..., Any], items: Sequence[Any], *shared: Any) -> Iterator[Any]:
        """As `map`, one call at a time on each device; the results may come in any order."""

    def finish(self) -> None:
        """Further calls are so few or so short that they are made in this process: workers are not needed any more."""


class Here:
    """This process: one call after the other.

    >>> list(HERE.map(pow, [2, 3], 2))
    [4, 9]
    """

    workers = 1

    def map(self, function: Callable[..., Any], items: Iterable[Any], *shared: Any) -> Iterator[Any]:
        """As `Execution.map`."""
        return (function(item, *shared) for item in items)

    def map_on_devices(self, function: Callable[..., Any], items: Sequence[Any], *shared: Any) -> Iterator[Any]:
        """As `Execution.map_on_devices`."""
        return self.map(function, items, *shared)

    def finish(self) -> None:
        """As `Execution.finish`."""


HERE = Here()
