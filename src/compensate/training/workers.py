"""Runs side by side: one process each, one thread each.

A process that is ended from outside, often for want of memory, takes its own job with it and no other: the job is started
again, and given up when that has happened too often. Workers whose parent is gone end as well.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import torch

from compensate.errors import InputError
from compensate.extras import connect_ray
from compensate.training.config import Config
from compensate.training.fitting import fit
from compensate.training.run import Run

Answer = TypeVar("Answer")
Backend = Literal["local", "ray"]
BACKENDS: tuple[Backend, ...] = ("local", "ray")

RETRIES = 2
"""How often a job is started again whose process was ended from outside."""

LOST = (
    f"its process was ended from outside {RETRIES + 1} times, often for want of memory. What is finished is kept: start the "
    "same command again, with fewer --workers."
)

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

BEGUN = None
"""What a worker says when it has taken a job."""

GRACE = 20.0
"""Seconds in which a worker that is asked to end may store a checkpoint."""


def side_by_side(
    work: Callable[..., Answer],
    jobs: Iterable[tuple[Any, ...]],
    workers: int | None,
    *,
    backend: Backend = "local",
    lost: Callable[..., Answer],
) -> Iterator[Answer]:
    """`work(*job)` for each job, in as many processes as there are cores unless told; answers come as they are ready.

    One worker works in this process. With the backend "ray" the jobs go to the cluster that Ray finds (or starts here), at
    most `workers` at a time; folders must then be on a disk that all machines share. A job whose process was ended from
    outside is started again, twice at most; then `lost(*job)` is its answer. The other jobs do not notice.
    """
    jobs = list(jobs)
    if backend == "ray":
        yield from _on_cluster(work, jobs, workers, lost)
        return
    count = min(workers or os.cpu_count() or 1, max(len(jobs), 1))
    if count == 1:
        for job in jobs:
            yield work(*job)
        return
    yield from _here(work, jobs, count, lost)


def _start_method() -> Any:
    """Workers are forked off one process that has imported PyTorch and never used a GPU, where the system can fork."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "sklearn.datasets"])
    return context


class _Worker:
    """A process that takes one job after another."""

    def __init__(self, work: Callable[..., Any]) -> None:
        context = _start_method()
        self.pipe, theirs = context.Pipe()
        with _environment(_ONE_THREAD):
            self.process = context.Process(target=_serve, args=(theirs, work, dict(os.environ)), daemon=True)
            self.process.start()
        theirs.close()  # so that the pipe ends when the process does
        self.begun = False

    def give(self, job: tuple[Any, ...]) -> None:
        """The next job; if the process has ended meanwhile, its pipe has, too."""
        self.begun = False
        with suppress(OSError):
            self.pipe.send(job)

    def ask_to_end(self) -> None:
        """An idle process sees that its pipe has ended; a busy one is told."""
        self.pipe.close()
        self.process.terminate()

    def end(self) -> None:
        """Until the process has ended, one way or the other."""
        self.process.join(GRACE)
        self.process.kill()
        self.process.join()


def _here(
    work: Callable[..., Answer], jobs: list[tuple[Any, ...]], count: int, lost: Callable[..., Answer]
) -> Iterator[Answer]:
    waiting = deque((job, 0) for job in jobs)
    busy: dict[Connection, tuple[_Worker, tuple[Any, ...], int]] = {}
    idle: list[_Worker] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < count:
                worker = idle.pop() if idle else _Worker(work)
                job, deaths = waiting.popleft()
                worker.give(job)
                busy[worker.pipe] = worker, job, deaths
            for pipe in cast("list[Connection]", wait(list(busy))):
                worker, job, deaths = busy[pipe]
                try:
                    message = pipe.recv()
                except (EOFError, OSError):
                    del busy[pipe]
                    if not worker.begun:  # it was ended while it had nothing to do: no job is lost
                        waiting.appendleft((job, deaths))
                    elif deaths < RETRIES:
                        waiting.append((job, deaths + 1))
                    else:
                        yield lost(*job)
                    continue
                if message is BEGUN:
                    worker.begun = True
                    continue
                del busy[pipe]
                idle.append(worker)
                answer, error, trace = message
                if error is not None:
                    raise error from RemoteError(trace)
                yield answer
    finally:
        workers = [*idle, *(worker for worker, _, _ in busy.values())]
        for worker in workers:
            worker.ask_to_end()
        for worker in workers:
            worker.end()


class RemoteError(Exception):
    """Carries the stack trace of an error in a worker."""


def _serve(pipe: Connection, work: Callable[..., Any], environment: Mapping[str, str]) -> None:
    """In the worker: answers jobs until the pipe ends."""
    os.environ.update(environment)  # the process that it was forked off may be older than some of it
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        while True:
            job = pipe.recv()
            pipe.send(BEGUN)
            answer: tuple[Any, Exception | None, str]
            try:
                answer = work(*job), None, ""
            except Exception as error:
                answer = None, error, traceback.format_exc()
            pipe.send(answer)
    except (EOFError, OSError, KeyboardInterrupt):
        return  # the parent has ended, or this run was asked to stop and has stored where it stands


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)  # a run under way stores where it stands
    time.sleep(GRACE)
    os._exit(1)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """The environment of processes that are started inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _on_cluster(
    work: Callable[..., Answer], jobs: list[tuple[Any, ...]], workers: int | None, lost: Callable[..., Answer]
) -> Iterator[Answer]:
    ray = connect_ray('workers="ray"', workers)
    task = ray.remote(num_cpus=1, num_gpus=1 if torch.cuda.is_available() else 0, max_retries=RETRIES)(_alone)
    waiting = list(jobs)
    running: dict[Any, tuple[Any, ...]] = {}
    limit = workers or int(ray.cluster_resources().get("CPU", 1))
    while waiting or running:
        while waiting and len(running) < limit:
            job = waiting.pop(0)
            running[task.remote(work, job)] = job
        ready, _ = ray.wait(list(running), num_returns=1)
        job = running.pop(ready[0])
        try:
            answer = ray.get(ready[0])
        except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError, ray.exceptions.NodeDiedError):
            answer = lost(*job)
        yield answer


def _alone(work: Callable[..., Answer], job: tuple[Any, ...]) -> Answer:
    torch.set_num_threads(1)
    return work(*job)


def trained(
    config: Config, folder: Path, data_dir: Path | None, on_epoch: Callable[[Mapping[str, float]], None] | None = None
) -> dict[str, Any]:
    """The stored outcome of a run in its own folder below `folder`; it is trained, or trained to its end, if need be."""
    run = Run(folder / config.name)
    if run.result is None:
        fit(config, data_dir=data_dir, folder=run.path, resume=True, on_epoch=on_epoch)
    stored = run.result
    assert stored is not None
    if stored["id"] != config.id:
        raise InputError(f"{run.path} holds another run of the same name; delete it.")
    return stored
