"""Where the stages of an audit are computed: in this process, or on a cluster (`compensate.auditing.cluster`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol


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
