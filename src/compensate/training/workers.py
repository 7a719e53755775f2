"""Jobs in worker processes with one thread each, on this machine or on a Ray cluster.

A killed process, often for lack of memory, loses only its own job, which is started again. Workers end with their parent.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, TypeVar, cast

import torch

from compensate.data.load import NAMED
from compensate.extras import connect_ray

Answer = TypeVar("Answer")
_Work = Callable[..., Answer]
_Job = tuple[Any, ...]
Backend = Literal["local", "ray"]
BACKENDS: tuple[Backend, ...] = ("local", "ray")

RETRIES = 2
"""How often a job is started again after its process was killed."""

LOST = (
    f"its process was killed {RETRIES + 1} times, often for lack of memory. Finished runs are kept: start the same "
    "command again, with fewer --workers."
)

GRACE = 20.0
"""Seconds for a worker to store a checkpoint before it is killed."""

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def side_by_side(
    work: _Work[Answer], jobs: Iterable[_Job], workers: int | None, *, lost: _Work[Answer], backend: Backend = "local",
) -> Iterator[Answer]:  # fmt: skip
    """Yields `work(*job)` for each job, in order of completion.

    Args:
        work, jobs: a function that can be pickled, and its arguments.
        workers: number of processes; the number of cores if None. A single worker runs in this process.
        backend: "local", or "ray" for the cluster that Ray finds or starts; folders must then be on a shared disk.
        lost: gives the answer for a job whose process was killed `RETRIES` + 1 times.
    """
    jobs = list(jobs)
    count = min(workers or os.cpu_count() or 1, max(len(jobs), 1))
    if backend == "ray":
        yield from _on_cluster(work, jobs, workers, lost)
    elif count > 1:
        yield from _in_processes(work, jobs, count, lost)
    else:
        yield from (work(*job) for job in jobs)


def _in_processes(work: _Work[Answer], jobs: list[_Job], count: int, lost: _Work[Answer]) -> Iterator[Answer]:
    waiting = deque((job, 0) for job in jobs)
    busy: dict[Connection, tuple[Any, _Job, int]] = {}
    idle: list[tuple[Any, Connection]] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < count:
                used = bool(idle)
                process, pipe = idle.pop() if used else _start(work)
                job, deaths = waiting.popleft()
                try:
                    pipe.send(job)
                except OSError:
                    if used:  # killed between two jobs
                        waiting.appendleft((job, deaths))
                        continue
                busy[pipe] = process, job, deaths
            for pipe in cast("list[Connection]", wait(list(busy))):
                process, job, deaths = busy.pop(pipe)
                try:
                    answer, error, trace = pipe.recv()
                except (EOFError, OSError):
                    if deaths < RETRIES:
                        waiting.append((job, deaths + 1))
                    else:
                        yield lost(*job)
                    continue
                idle.append((process, pipe))
                if error is not None:
                    raise error from RemoteError(trace)
                yield answer
    finally:
        running = [*idle, *((process, pipe) for pipe, (process, _, _) in busy.items())]
        for process, pipe in running:
            pipe.close()
            process.terminate()
        for process, _ in running:
            process.join(GRACE)
            process.kill()
            process.join()


def _start(work: Callable[..., Any]) -> tuple[Any, Connection]:
    """A worker, forked off a process that has imported PyTorch and never used a GPU, where the system can fork."""
    context: Any = multiprocessing.get_context("spawn")
    if "forkserver" in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "compensate.training.fitting", "sklearn.datasets"])
    pipe, theirs = context.Pipe()
    before = dict(os.environ)
    os.environ.update(_ONE_THREAD)
    # The fork server imports torch for seconds, and Ctrl-C would end it with a stack trace: it inherits the blocked signal.
    blocks = sys.platform != "win32"
    if blocks:
        resource_tracker.ensure_running()  # first, because its start unblocks the signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = context.Process(target=_serve, args=(theirs, work, dict(os.environ), dict(NAMED)), daemon=True)
        process.start()
    finally:
        if blocks:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        os.environ.clear()
        os.environ.update(before)
    theirs.close()  # the pipe then ends with the process
    return process, pipe


class RemoteError(Exception):
    """Carries the stack trace of an error in a worker."""


def _serve(pipe: Connection, work: Callable[..., Any], environment: dict[str, str], named: dict[str, Any]) -> None:
    """In the worker: answers jobs until the pipe ends."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the fork server blocks it
    os.environ.update(environment)  # the process it was forked off may be older than these variables
    NAMED.update(named)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        while True:
            job = pipe.recv()
            answer: tuple[Any, Exception | None, str]
            try:
                answer = work(*job), None, ""
            except Exception as error:
                answer = None, error, traceback.format_exc()
            pipe.send(answer)
    except (EOFError, OSError, KeyboardInterrupt):
        return  # the parent has ended, or this run was asked to stop and has stored a checkpoint


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)  # the current run stores a checkpoint
    time.sleep(GRACE)
    os._exit(1)


def _on_cluster(work: _Work[Answer], jobs: list[_Job], workers: int | None, lost: _Work[Answer]) -> Iterator[Answer]:
    ray = connect_ray('workers="ray"', workers)
    task = ray.remote(num_cpus=1, num_gpus=1 if torch.cuda.is_available() else 0, max_retries=RETRIES)(_run_on_cluster)
    waiting = deque(jobs)
    running: dict[Any, _Job] = {}
    limit = workers or int(ray.cluster_resources().get("CPU", 1))
    while waiting or running:
        while waiting and len(running) < limit:
            job = waiting.popleft()
            running[task.remote(work, job, dict(NAMED))] = job
        ready, _ = ray.wait(list(running), num_returns=1)
        job = running.pop(ready[0])
        try:
            answer = ray.get(ready[0])
        except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError, ray.exceptions.NodeDiedError):
            answer = lost(*job)
        yield answer


def _run_on_cluster(work: _Work[Answer], job: _Job, named: dict[str, Any]) -> Answer:
    NAMED.update(named)  # in a function of this module: Ray would copy what a nested function refers to
    torch.set_num_threads(1)
    return work(*job)
