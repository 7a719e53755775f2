"""An audit on a Ray cluster: pieces are encoded, sums over rows, trees and judgements computed by its workers.

Ray keeps what tasks share in its object store, runs a task again whose worker is lost, and makes lost objects anew. Nothing here knows of
stages: see `compensate.auditing.judge`.

Ray takes seconds to start, its workers take seconds to import libraries, and a cluster of one's own takes a second to end. All of it happens in a thread:
until the first worker is ready, and after the last call that pays, this process computes by itself.
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
"""The task that needs Ray."""

SMALL = 100_000
"""Bytes of an array that travels with a task; larger ones are put into the object store, once."""

SHARED = 16
"""Objects that are kept there for the next calls."""

AHEAD = 2
"""Tasks for each worker that are submitted before one is done: with more, their results would fill the object store."""

IMPORTED = ("compensate.auditing.learners",)
"""What every worker needs first. The library of the trees is imported by the first task that grows some."""

REUSED = 30_000_000
"""Bytes that a worker keeps for itself when it frees them; 32 MiB are the most that the C library of Linux takes for this."""

POLLED = 0.05
"""Seconds between two looks at whether the first worker is ready, or nobody waits for it any more."""


@dataclass(frozen=True)
class _Connected:
    """A cluster: the library, the number of workers, and the task that calls a function."""

    ray: Any
    workers: int
    call: Any


@final
class Cluster:
    """The workers of the Ray cluster that RAY_ADDRESS names, or of one that is started on this machine."""

    def __init__(self) -> None:
        if not installed("ray"):
            require("ray", WHAT, "cluster")
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._finished = threading.Event()
        self._ended: Future[None] | None = None
        # Linux ends the processes of Ray with the thread that has started them: this one lives as long as the cluster.
        self._thread = ThreadPoolExecutor(1, "ray")
        self._ours = self._takes_part = False
        self._connected = self._thread.submit(self._connect)

    def _connect(self) -> _Connected:
        ray = require("ray", WHAT, "cluster")
        self._ours = not ray.is_initialized()
        # The workers of a cluster that is started here are as many as the cores of this machine, and one of them is free while this process computes.
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
        """The cluster, if calls are to be made there. Where it could not be reached, its error is raised."""
        return self._connected.result() if self._connected.done() and not self._finished.is_set() else None

    @property
    def workers(self) -> int:
        """How many calls run at the same time."""
        ready = self._ready
        return 1 if ready is None else ready.workers

    def map(self, function: Callable[..., Any], items: Iterable[Any], *shared: Any) -> Iterator[Any]:
        """As `Execution.map`. Of equal shares, one for each core of this machine, this process takes the last: it would only wait for it."""
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
        """As `Execution.finish`: a cluster that was started for this ends, while this process goes on."""
        self._finished.set()
        self._kept.clear()
        self._ended = self._ended or self._thread.submit(self._end)

    def _end(self) -> None:
        if self._ours:
            require("ray", WHAT, "cluster").shutdown()

    def close(self) -> None:
        """Waits for the end of what was started; the error of a cluster that could not be reached is raised."""
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
        """What a task is given: small values as they are, others by reference; the same object is put there once."""
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
        """Puts an object into the store, and apart from it its large arrays, which another object may have too."""
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
        # Each reference costs a task a millisecond; those to arrays are read once by each worker.
        stored = _Stored(ray.put((pickled, [places[place] for place in order])))
        return _Kept((value, arrays), stored, places)


@dataclass(frozen=True)
class _Kept:
    """What was put into the object store.

    Attributes:
        alive: the object and its arrays, so that nothing else gets their place in memory.
        stored: what tasks are given.
        places: of large arrays, by their place and length in memory.
    """

    alive: Any
    stored: _Stored
    places: dict[tuple[int, int], Any]


@dataclass(frozen=True)
class _Stored:
    """What lies in the object store. Inside of this, Ray leaves it to the task to fetch it.

    Attributes:
        reference: to the object without its large arrays, with references to these.
    """

    reference: Any


_FETCHED: OrderedDict[Any, Any] = OrderedDict()
"""What the tasks of this worker have fetched: hundreds of trees are unpacked once, and not by each task."""


def _fetched(value: Any) -> Any:
    if not isinstance(value, _Stored):
        return value
    if value.reference not in _FETCHED:
        import ray

        pickled, arrays = ray.get(value.reference)
        # By this audit's own driver, as the arguments of every task are, which Ray reads in the same way.
        _FETCHED[value.reference] = ray.cloudpickle.loads(pickled, buffers=ray.get(arrays))
        if len(_FETCHED) > SHARED:
            _FETCHED.popitem(last=False)
    _FETCHED.move_to_end(value.reference)
    return _FETCHED[value.reference]


def _imported(names: tuple[str, ...]) -> None:
    for name in names:
        import_module(name)
    # Once a block of this size was freed, the C library keeps freed memory for the next portion of rows. Before, it gives it back to the system at
    # once and asks for it again, which takes a third of the time of sums over rows.
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
    """Leaves out what Ray says of a start in a thread: processes that it starts end with this one all the same."""
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
    """A cluster to compute on; one that was started for it ends with it."""
    run = Cluster()
    try:
        yield run
    finally:
        run.close()
