"""An execution on a Ray cluster: see `compensate.auditing.execution.Execution`.

Ray keeps shared objects in its object store, repeats tasks of lost workers, and restores lost objects. Ray and its workers take seconds to
start, and a local cluster takes a second to stop. Both happen in a thread: the driver computes locally while Ray starts and stops.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from compensate.extras import connect_ray, installed, require

WHAT = 'backend="ray"'
"""The option that needs Ray."""

SMALL = 100_000
"""Larger arrays, in bytes, are put into the object store once; smaller ones are sent with each task."""

SHARED = 16
"""Objects that stay in the store for later calls."""

AHEAD = 2
"""Submitted tasks for each worker: the results of more would fill the object store."""

IMPORTED = ("compensate.auditing.learners",)
"""Modules that every worker imports at its start."""

REUSED = 30_000_000
"""Freed memory that a worker keeps, in bytes; the C library of Linux allows 32 MiB."""

POLLED = 0.05
"""Seconds between two checks whether the first worker is ready."""


@dataclass(frozen=True)
class _Connected:
    """A cluster: the library, the number of workers, and the task that calls a function."""

    ray: Any
    workers: int
    call: Any


@final
class Cluster:
    """The workers of the Ray cluster at RAY_ADDRESS, or of a cluster that is started on this machine."""

    def __init__(self) -> None:
        if not installed("ray"):
            require("ray", WHAT, "cluster")
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._finished = threading.Event()
        self._ended: Future[None] | None = None
        # Linux ends the processes of Ray with the thread that started them: this thread lives as long as the cluster.
        self._thread = ThreadPoolExecutor(1, "ray")
        self._ours = self._takes_part = False
        self._connected = self._thread.submit(self._connect)

    def _connect(self) -> _Connected:
        ray = require("ray", WHAT, "cluster")
        self._ours = not ray.is_initialized()
        # A cluster that is started here has a worker for each core, one of which is idle while this process computes.
        self._takes_part = self._ours and not os.environ.get("RAY_ADDRESS")
        with _without_advice():
            connect_ray(WHAT)
        workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
        call = ray.remote(num_cpus=1, max_retries=-1)(_called)
        started = [call.remote(_imported, IMPORTED) for _ in range(workers)]
        while not self._finished.is_set() and not ray.wait(started, timeout=POLLED)[0]:
            pass
        return _Connected(ray, workers, call)

    @property
    def _ready(self) -> _Connected | None:
        """The cluster, if it takes calls. An unreachable cluster raises its error."""
        return self._connected.result() if self._connected.done() and not self._finished.is_set() else None

    @property
    def workers(self) -> int:
        """The number of calls that run at the same time."""
        ready = self._ready
        return 1 if ready is None else ready.workers

    def map(self, function: Callable[..., Any], items: Iterable[Any], *shared: Any) -> Iterator[Any]:
        """As `Execution.map`. If there is one task for each core of this machine, this process takes the last."""
        waiting = deque(items)
        while waiting and (ready := self._ready) is None:
            yield function(waiting.popleft(), *shared)
        if not waiting:
            return
        assert ready is not None
        last = [waiting.pop()] if self._takes_part and 1 < len(waiting) == ready.workers else []
        passed = [self._shared(one, ready.ray) for one in shared]
        running: deque[Any] = deque()
        while waiting:
            if len(running) >= AHEAD * ready.workers:
                yield ready.ray.get(running.popleft())
            running.append(ready.call.remote(function, waiting.popleft(), *passed))
        mine = [function(item, *shared) for item in last]
        while running:
            yield ready.ray.get(running.popleft())
        yield from mine

    def finish(self) -> None:
        """As `Execution.finish`: a cluster that was started here stops in the background."""
        self._finished.set()
        self._kept.clear()
        self._ended = self._ended or self._thread.submit(self._end)

    def _end(self) -> None:
        if self._ours:
            require("ray", WHAT, "cluster").shutdown()

    def close(self) -> None:
        """Waits until the cluster has stopped; an unreachable cluster raises its error."""
        self.finish()
        self._thread.shutdown()
        self._connected.result()

    def map_on_devices(self, function: Callable[..., Any], items: Sequence[Any], *shared: Any) -> Iterator[Any]:
        """As `Execution.map_on_devices`: an actor for each graphics card, or for each processor if there is none."""
        if not items:
            return
        data = require("ray.data", 'backend="ray"', "cluster")
        data.DataContext.get_current().enable_progress_bars = False
        connected = self._connected.result()
        cards = int(connected.ray.cluster_resources().get("GPU", 0))
        kept = [connected.ray.put(item) for item in items]
        rows = data.from_items([{"item": k} for k in range(len(items))], override_num_blocks=len(items))
        done = rows.map_batches(
            _OnDevice,
            fn_constructor_args=(function, kept, shared),
            batch_size=1,
            concurrency=min(cards or connected.workers, len(items)),
            num_cpus=None if cards else 1,
            num_gpus=1 if cards else None,
        )
        for row in done.iter_rows():
            yield row["done"]

    def _shared(self, value: Any, ray: Any) -> Any:
        """The argument of a task: small values, or a reference to the stored object, which is stored once."""
        if value is None or isinstance(value, (int, float, str)) or getattr(value, "nbytes", SMALL) < SMALL:
            return value
        if callable(value) and getattr(value, "__closure__", None) is None and hasattr(value, "__qualname__"):
            return value
        if id(value) not in self._kept:
            self._kept[id(value)] = self._put(value, ray)
            if len(self._kept) > SHARED:
                self._kept.popitem(last=False)
        self._kept.move_to_end(id(value))
        return self._kept[id(value)].stored

    def _put(self, value: Any, ray: Any) -> _Kept:
        """Stores an object, and separately its large arrays, which other objects may share."""
        order: list[tuple[int, int]] = []
        arrays: dict[tuple[int, int], NDArray[np.uint8]] = {}

        def within(buffer: Any) -> bool:
            content = np.frombuffer(buffer.raw(), np.uint8)
            if len(content) >= SMALL:
                order.append((content.__array_interface__["data"][0], len(content)))
                arrays[order[-1]] = content
            return len(content) < SMALL

        pickled = ray.cloudpickle.dumps(value, protocol=5, buffer_callback=within)
        known = {place: one for kept in self._kept.values() for place, one in kept.places.items()}
        places = {place: known.get(place) or ray.put(content) for place, content in arrays.items()}
        # Each reference costs a task a millisecond; references to arrays are resolved once by each worker.
        stored = _Stored(ray.put((pickled, [places[place] for place in order])))
        return _Kept((value, arrays), stored, places)


@dataclass(frozen=True)
class _Kept:
    """An object in the object store.

    Attributes:
        alive: the object and its arrays; as long as they live, their addresses identify them.
        stored: the argument of tasks.
        places: references to large arrays, by their address and length.
    """

    alive: Any
    stored: _Stored
    places: dict[tuple[int, int], Any]


@dataclass(frozen=True)
class _Stored:
    """A reference to a stored object without its large arrays, which the task itself resolves."""

    reference: Any


_FETCHED: OrderedDict[Any, Any] = OrderedDict()
"""Objects that this worker has fetched: hundreds of trees are unpacked once and not by each task."""


def _fetched(value: Any) -> Any:
    if not isinstance(value, _Stored):
        return value
    if value.reference not in _FETCHED:
        import ray

        pickled, arrays = ray.get(value.reference)
        # The driver of this audit pickled it, as Ray pickles the arguments of every task.
        _FETCHED[value.reference] = ray.cloudpickle.loads(pickled, buffers=ray.get(arrays))
        if len(_FETCHED) > SHARED:
            _FETCHED.popitem(last=False)
    _FETCHED.move_to_end(value.reference)
    return _FETCHED[value.reference]


def _imported(names: tuple[str, ...]) -> None:
    for name in names:
        import_module(name)
    # Freeing a block of this size makes the C library keep freed memory, which saves a third of the time of sums over rows.
    np.empty(REUSED, np.uint8)


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
def _without_advice() -> Iterator[None]:
    """Hides the warning of Ray about a start in a thread: its processes still end with this one."""
    log = logging.getLogger("ray._private.worker")

    def wanted(record: logging.LogRecord) -> bool:
        return "SIGTERM handler" not in record.getMessage()

    log.addFilter(wanted)
    try:
        yield
    finally:
        log.removeFilter(wanted)


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster to compute on; a cluster that was started here stops at the end."""
    run = Cluster()
    try:
        yield run
    finally:
        run.close()
