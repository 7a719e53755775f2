"""Runs side by side: one process each, one thread each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from compensate.errors import InputError
from compensate.training.config import Config
from compensate.training.loop import fit
from compensate.training.run import Run

Answer = TypeVar("Answer")
Backend = Literal["joblib", "ray"]
BACKENDS: tuple[Backend, ...] = ("joblib", "ray")


def side_by_side(
    work: Callable[..., Answer], jobs: Iterable[tuple[Any, ...]], workers: int | None, *, backend: Backend = "joblib"
) -> Iterator[Answer]:
    """`work(*job)` for each job, in as many processes as there are cores unless told; answers come as they are ready.

    One worker works in this process. With the backend "ray" the jobs go to the cluster that Ray finds (or starts here), at
    most `workers` at a time; folders must then be on a disk that all machines share.
    """
    if backend == "ray":
        yield from _on_cluster(work, list(jobs), workers)
        return
    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    jobs = list(jobs)
    count = min(workers or os.cpu_count() or 1, max(len(jobs), 1))
    if count == 1:
        for job in jobs:
            yield work(*job)
        return
    try:
        with parallel_config(backend="loky", inner_max_num_threads=1):
            yield from Parallel(n_jobs=count, return_as="generator_unordered")(
                delayed(_alone)(work, job) for job in jobs
            )
    except TerminatedWorkerError as error:
        raise InputError(
            f"one of {count} worker processes was ended from outside, often for want of memory. What is finished is kept: "
            "start the same command again, with fewer --workers."
        ) from error


def _on_cluster(work: Callable[..., Answer], jobs: list[tuple[Any, ...]], workers: int | None) -> Iterator[Answer]:
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise InputError('the backend ray needs Ray: pip install "compensate[cluster]".') from error
    if not ray.is_initialized():
        # An address in the environment names the cluster; without one a small one is started on this machine.
        address = os.environ.get("RAY_ADDRESS")
        ray.init(address=address, num_cpus=None if address else workers, include_dashboard=False, log_to_driver=False)
    task = ray.remote(num_cpus=1, num_gpus=1 if torch.cuda.is_available() else 0, max_retries=2)(_alone)
    waiting = list(jobs)
    running: list[Any] = []
    limit = workers or int(ray.cluster_resources().get("CPU", 1))
    while waiting or running:
        while waiting and len(running) < limit:
            running.append(task.remote(work, waiting.pop(0)))
        ready, running = ray.wait(running, num_returns=1)
        yield ray.get(ready[0])


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
