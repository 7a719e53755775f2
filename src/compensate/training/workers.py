"""Runs side by side: one process each, one thread each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch

from compensate.errors import InputError
from compensate.training.config import Config
from compensate.training.loop import fit
from compensate.training.run import Run

Answer = TypeVar("Answer")


def side_by_side(work: Callable[..., Answer], jobs: Iterable[tuple[Any, ...]], workers: int | None) -> Iterator[Answer]:
    """`work(*job)` for each job, in as many processes as there are cores unless told; answers come as they are ready.

    One worker works in this process.
    """
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
