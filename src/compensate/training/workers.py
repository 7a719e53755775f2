"""Runs side by side: one process each, one thread each.

A process that is ended from outside, often for want of memory, takes its own job with it and no other: the job is started
again, and given up when that has happened too often.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from compensate.errors import InputError
from compensate.training.config import Config
from compensate.training.fitting import fit
from compensate.training.run import Run

Answer = TypeVar("Answer")
Backend = Literal["joblib", "ray"]
BACKENDS: tuple[Backend, ...] = ("joblib", "ray")

RETRIES = 2
"""How often a job is started again whose process was ended from outside."""

LOST = (
    f"its process was ended from outside {RETRIES + 1} times, often for want of memory. What is finished is kept: start the "
    "same command again, with fewer --workers."
)

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def side_by_side(
    work: Callable[..., Answer],
    jobs: Iterable[tuple[Any, ...]],
    workers: int | None,
    *,
    backend: Backend = "joblib",
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


def _here(
    work: Callable[..., Answer], jobs: list[tuple[Any, ...]], count: int, lost: Callable[..., Answer]
) -> Iterator[Answer]:
    from joblib.externals.loky.process_executor import BrokenProcessPool, ProcessPoolExecutor

    # A pool for each process: when a process dies its pool breaks, and it is then known whose job it was.
    waiting = deque((job, 0) for job in jobs)
    running: dict[Future[Answer], tuple[tuple[Any, ...], int, Any]] = {}
    idle: list[Any] = []
    try:
        while waiting or running:
            while waiting and len(running) < count:
                job, deaths = waiting.popleft()
                pool = idle.pop() if idle else ProcessPoolExecutor(max_workers=1, env=_ONE_THREAD)
                try:
                    future = pool.submit(_alone, work, job)
                except BrokenProcessPool:  # its process was ended while it had nothing to do: no job is lost
                    pool.shutdown(wait=False, kill_workers=True)
                    waiting.appendleft((job, deaths))
                    continue
                running[future] = job, deaths, pool
            ready, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ready:
                job, deaths, pool = running.pop(future)
                try:
                    answer = future.result()
                except BrokenProcessPool:
                    pool.shutdown(wait=False, kill_workers=True)
                    if deaths < RETRIES:
                        waiting.append((job, deaths + 1))
                    else:
                        yield lost(*job)
                except BaseException:
                    idle.append(pool)
                    raise
                else:
                    idle.append(pool)
                    yield answer
    finally:
        for pool in (*idle, *(pool for _, _, pool in running.values())):
            pool.shutdown(wait=True, kill_workers=True)


def _on_cluster(
    work: Callable[..., Answer], jobs: list[tuple[Any, ...]], workers: int | None, lost: Callable[..., Answer]
) -> Iterator[Answer]:
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise InputError('the backend ray needs Ray: pip install "compensate[cluster]".') from error
    if not ray.is_initialized():
        # An address in the environment names the cluster; without one a small one is started on this machine.
        address = os.environ.get("RAY_ADDRESS")
        ray.init(address=address, num_cpus=None if address else workers, include_dashboard=False, log_to_driver=False)
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


def trained(config: Config, folder: Path, data_dir: Path | None) -> dict[str, Any]:
    """The stored outcome of a run in its own folder below `folder`; it is trained, or trained to its end, if need be."""
    run = Run(folder / config.name)
    if run.result is None:
        fit(config, data_dir=data_dir, folder=run.path, resume=True)
    stored = run.result
    assert stored is not None
    if stored["id"] != config.id:
        raise InputError(f"{run.path} holds another run of the same name; delete it.")
    return stored
