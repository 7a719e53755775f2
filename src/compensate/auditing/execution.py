"""Where an audit computes: in this process or on a Ray cluster, and with how many threads.

Ray and its workers take seconds to start, and a local cluster takes a second to stop. Both happen in a thread: this process computes while
Ray starts and stops. Ray keeps shared objects in its object store, repeats tasks of lost workers, and restores lost objects.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple, final

import numpy as np

from compensate.extras import connect_ray, installed, require

LARGE = 1_000_000_000  # multiplications of one pass over the data from which several threads pay off


def threads_for(work: float) -> AbstractContextManager[Any]:
    """Limits work of fewer than `LARGE` multiplications a pass to one thread.

    With one thread for each core, an audit of 300 texts took eight times the processor time: threads wait for each other.

    >>> import torch
    >>> with threads_for(1000):
    ...     torch.get_num_threads()
    1
    """
    from threadpoolctl import threadpool_limits

    return nullcontext() if work >= LARGE else threadpool_limits(1)


class Execution:
    """A place to compute: this process, which makes one call after the other.

    >>> list(LOCAL.map(pow, [2, 3], 2))
    [4, 9]
    """

    @property
    def workers(self) -> int:
        """The number of calls that run at the same time; it may rise while a cluster starts."""
        return 1

    def map(self, function: Callable[..., Any], items: Iterable[Any], *shared: Any) -> Iterator[Any]:
        """``function(item, *shared)`` of each item, in their order. A call that is lost with its worker is repeated.

        Workers keep shared objects: neither an object nor an array in it may change after it was shared once.
        """
        return (function(item, *shared) for item in items)

    def map_on_devices(self, function: Callable[..., Any], items: Sequence[Any], *shared: Any) -> Iterator[Any]:
        """As `map`, with one call at a time on each device; the results may come in any order."""
        return self.map(function, items, *shared)

    def finish(self) -> None:
        """Releases the workers: all further calls are made in this process."""


LOCAL = Execution()

# --- Ray ------------------------------------------------------------------------------------------------------

WHAT = 'backend="ray"'  # the option that needs Ray
SMALL = 100_000  # larger arrays, in bytes, are put into the object store once; smaller ones are sent with each task
SHARED = 16  # objects that stay in the store for later calls
AHEAD = 2  # submitted tasks for each worker: the results of more would fill the object store
REUSED = 30_000_000  # freed memory that a worker keeps, in bytes; the C library of Linux allows 32 MiB


class _Stored(NamedTuple):
    """A reference to an object in the object store, which the task itself resolves."""

    reference: Any


@final
class Cluster(Execution):
    """The workers of the Ray cluster at RAY_ADDRESS, or of a cluster that is started on this machine and stopped by `close`."""

    def __init__(self) -> None:
        if not installed("ray"):
            require("ray", WHAT, "cluster")
        self._kept: OrderedDict[int, tuple[Any, _Stored]] = OrderedDict()  # by id, which is theirs while they live
        self._finished = threading.Event()
        # Linux ends the processes of Ray with the thread that started them: this thread lives as long as the cluster.
        self._thread = ThreadPoolExecutor(1, "ray")
        self._ours = False
        self._connected = self._thread.submit(self._connect)

    def _connect(self) -> tuple[Any, int, Any]:
        """The library, the number of workers, and the task that calls a function."""
        ray = require("ray", WHAT, "cluster")
        self._ours = not ray.is_initialized()
        # Ray warns about a start in a thread; its processes still end with this one.
        logging.getLogger("ray._private.worker").addFilter(lambda record: "SIGTERM handler" not in record.getMessage())
        connect_ray(WHAT)
        workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
        call = ray.remote(num_cpus=1, max_retries=-1)(_call)
        started = [call.remote(_start, "compensate.auditing.learners") for _ in range(workers)]
        while not self._finished.is_set() and not ray.wait(started, timeout=0.05)[0]:
            pass
        return ray, workers, call

    @property
    def _ready(self) -> bool:
        """Whether the cluster takes calls."""
        return self._connected.done() and not self._finished.is_set()

    @property
    def workers(self) -> int:
        """The number of calls that run at the same time."""
        return self._connected.result()[1] if self._ready else 1

    def map(self, function: Callable[..., Any], items: Iterable[Any], *shared: Any) -> Iterator[Any]:
        waiting = deque(items)
        while waiting and not self._ready:
            yield function(waiting.popleft(), *shared)
        if not waiting:
            return
        ray, workers, call = self._connected.result()
        passed = [self._share(one, ray) for one in shared]
        running: deque[Any] = deque()
        while waiting or running:
            if waiting and len(running) < AHEAD * workers:
                running.append(call.remote(function, waiting.popleft(), *passed))
            else:
                yield ray.get(running.popleft())

    def map_on_devices(self, function: Callable[..., Any], items: Sequence[Any], *shared: Any) -> Iterator[Any]:
        """As `Execution.map_on_devices`: an actor for each graphics card, or for each processor if there is none."""
        if not items:
            return
        ray, workers, _ = self._connected.result()
        cards = int(ray.cluster_resources().get("GPU", 0))
        use = {"num_gpus": 1} if cards else {"num_cpus": 1}
        actor = ray.remote(max_restarts=-1, max_task_retries=-1, **use)(_OnDevice)
        passed = [self._share(one, ray) for one in shared]
        actors = [actor.remote() for _ in range(min(cards or workers, len(items)))]
        pool = require("ray.util", WHAT, "cluster").ActorPool(actors)
        yield from pool.map_unordered(lambda one, item: one.call.remote(function, item, *passed), items)

    def finish(self) -> None:
        """As `Execution.finish`: a cluster that was started here stops in the background."""
        self._kept.clear()
        if not self._finished.is_set():
            self._finished.set()
            self._thread.submit(lambda: self._ours and require("ray", WHAT, "cluster").shutdown())

    def close(self) -> None:
        """Waits until the cluster has stopped; an unreachable cluster raises its error."""
        self.finish()
        self._thread.shutdown()
        self._connected.result()

    def _share(self, value: Any, ray: Any) -> Any:
        """The argument of a task: a small value, or a reference to an object that is stored once."""
        if value is None or isinstance(value, (int, float, str)) or getattr(value, "nbytes", SMALL) < SMALL:
            return value
        if callable(value) and getattr(value, "__closure__", None) is None and hasattr(value, "__qualname__"):
            return value
        if id(value) not in self._kept:
            self._kept[id(value)] = value, _Stored(ray.put(value))
            if len(self._kept) > SHARED:
                self._kept.popitem(last=False)
        self._kept.move_to_end(id(value))
        return self._kept[id(value)][1]


@lru_cache(SHARED)
def _fetch(reference: Any) -> Any:
    """An object of the store: a worker unpacks hundreds of trees once, and not in each task."""
    import ray

    return ray.get(reference)


def _call(function: Callable[..., Any], item: Any, *shared: Any) -> Any:
    """A task: calls the function with the stored objects."""
    return function(item, *(_fetch(one.reference) if isinstance(one, _Stored) else one for one in shared))


def _start(module: str) -> None:
    """The first task of a worker: imports the code."""
    import_module(module)
    # Freeing a block of this size makes the C library keep freed memory, which saves a third of the time of sums over rows.
    np.empty(REUSED, np.uint8)


class _OnDevice:
    """An actor that has a device for itself."""

    def call(self, *args: Any) -> Any:
        """A task; see `_call`."""
        return _call(*args)
