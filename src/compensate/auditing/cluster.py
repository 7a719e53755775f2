"""An audit on a Ray cluster: pieces are encoded, sums over rows, trees and judgements computed by its workers.

Ray keeps what tasks share in its object store, runs a task again whose worker is lost, and makes lost objects anew. Nothing here knows of
stages: see `compensate.auditing.large`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, final

import numpy as np

from compensate.extras import connect_ray, require

SMALL = 100_000
"""Bytes of an array that travels with a task; larger ones are put into the object store, once."""

SHARED = 16
"""Objects that are kept there for the next calls."""

AHEAD = 2
"""Tasks for each worker that are submitted before one is done: with more, their results would fill the object store."""

IMPORTED = ("compensate.auditing.large", "sklearn.ensemble")
"""What every worker needs."""


@final
class Cluster:
    """The workers of a Ray cluster.

    Args:
        ray: the library, connected.
    """

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._call = ray.remote(num_cpus=1, max_retries=-1)(_called)
        self._kept: OrderedDict[int, tuple[Any, Any]] = OrderedDict()
        # Workers import libraries for seconds, which they may as well do while the first rows are read.
        self._started = [self._call.remote(_imported, IMPORTED) for _ in range(self.workers)]

    def map(self, function: Callable[..., Any], items: Iterable[Any], *shared: Any) -> Iterator[Any]:
        """As `Execution.map`."""
        passed = [self._shared(one) for one in shared]
        running: deque[Any] = deque()
        for item in items:
            if len(running) >= AHEAD * self.workers:
                yield self.ray.get(running.popleft())
            running.append(self._call.remote(function, item, *passed))
        while running:
            yield self.ray.get(running.popleft())

    def map_on_devices(self, function: Callable[..., Any], items: Sequence[Any], *shared: Any) -> Iterator[Any]:
        """As `Execution.map_on_devices`: an actor for each graphics card, or for each processor if there is none."""
        if not items:
            return
        data = require("ray.data", 'backend="ray"', "cluster")
        data.DataContext.get_current().enable_progress_bars = False
        cards = int(self.ray.cluster_resources().get("GPU", 0))
        kept = [self.ray.put(item) for item in items]
        rows = data.from_items([{"item": k} for k in range(len(items))], override_num_blocks=len(items))
        done = rows.map_batches(
            _OnDevice,
            fn_constructor_args=(function, kept, shared),
            batch_size=1,
            concurrency=min(cards or self.workers, len(items)),
            num_cpus=None if cards else 1,
            num_gpus=1 if cards else None,
        )
        for row in done.iter_rows():
            yield row["done"]

    def _shared(self, value: Any) -> Any:
        """What a task is given: small values as they are, others by reference; the same object is put there once."""
        if value is None or isinstance(value, (int, float, str)) or getattr(value, "nbytes", SMALL) < SMALL:
            return value
        if callable(value) and getattr(value, "__closure__", None) is None and hasattr(value, "__qualname__"):
            return value
        if id(value) not in self._kept:
            self._kept[id(value)] = (value, _Stored(self.ray.put(value)))
            if len(self._kept) > SHARED:
                self._kept.popitem(last=False)
        self._kept.move_to_end(id(value))
        return self._kept[id(value)][1]


@dataclass(frozen=True)
class _Stored:
    """What lies in the object store. Inside of this, Ray leaves it to the task to fetch it."""

    reference: Any


_FETCHED: OrderedDict[Any, Any] = OrderedDict()
"""What the tasks of this worker have fetched: hundreds of trees are unpacked once, and not by each task."""


def _fetched(value: Any) -> Any:
    if not isinstance(value, _Stored):
        return value
    if value.reference not in _FETCHED:
        import ray

        _FETCHED[value.reference] = ray.get(value.reference)
        if len(_FETCHED) > SHARED:
            _FETCHED.popitem(last=False)
    _FETCHED.move_to_end(value.reference)
    return _FETCHED[value.reference]


def _imported(names: tuple[str, ...]) -> None:
    for name in names:
        import_module(name)


def _called(function: Callable[..., Any], item: Any, *shared: Any) -> Any:
    return function(item, *map(_fetched, shared))


class _OnDevice:
    """An actor of Ray Data."""

    def __init__(self, function: Callable[..., Any], items: list[Any], shared: tuple[Any, ...]) -> None:
        self.function, self.items, self.shared = function, items, shared

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        import ray

        done = [self.function(ray.get(self.items[int(k)]), *self.shared) for k in batch["item"]]
        return {"done": np.array(done)}


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster to compute on; one that was started for it ends with it."""
    before = require("ray", 'backend="ray"', "cluster").is_initialized()
    ray = connect_ray('backend="ray"')
    try:
        yield Cluster(ray)
    finally:
        if not before:
            ray.shutdown()
