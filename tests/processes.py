"""Processes of tests, forked off the one that runs them: a new interpreter would import its libraries for seconds."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

LIMIT = 300
"""Seconds after which a pair of processes is given up: far beyond what a busy machine needs."""


def start(target: Callable[..., Any], *args: Any) -> BaseProcess:
    """A process that runs this function and ends, by `os._exit`, without what tests would do at their end."""
    process = multiprocessing.get_context("fork").Process(target=target, args=args)
    with warnings.catch_warnings():
        # Later Pythons warn of threads that hold a lock meanwhile; those of the test runner hold none that is used here.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    return process


def run_pair(folder: Path, target: Callable[..., Any], *args: Any, **environment: str) -> None:
    """As `run_group`, in two processes."""
    run_group(2, folder, target, *args, **environment)


def run_group(size: int, folder: Path, target: Callable[..., Any], *args: Any, **environment: str) -> None:
    """Runs this function in several processes that find each other as those of torchrun do, and waits for all."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **environment}
    told = [folder / f"error-of-rank-{rank}.txt" for rank in range(size)]
    group = [start(_ranked, rank, common, told[rank], target, args) for rank in range(size)]
    for process in group:
        process.join(LIMIT)
        if process.exitcode != 0:  # the others would wait for it
            for other in group:
                other.kill()
                other.join()
    assert [process.exitcode for process in group] == [0] * size, "\n".join(
        file.read_text() for file in told if file.exists()
    )


def _ranked(rank: int, common: dict[str, str], told: Path, target: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.environ.update(common, RANK=str(rank), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    try:
        target(*args)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    except BaseException:
        told.write_text(traceback.format_exc())
        raise SystemExit(1) from None
