"""`fit` on a Ray cluster. Ray Train starts the workers and restarts them from the last checkpoint if one is lost.

Each worker owns a range of the samples (`order="ranges"`), see `compensate.training.distributed`.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import nn

from compensate.core.layout import HeldRows, holding_rows
from compensate.data import Dataset, Splits
from compensate.data.load import NAMED
from compensate.errors import InputError
from compensate.extras import ray_cluster, require
from compensate.files import make_folder
from compensate.training import checkpoint
from compensate.training.config import Config
from compensate.training.distributed import Processes, Ranges, check_ranges
from compensate.training.preparation import Prepared, make_criterion, make_model, prepare_run
from compensate.training.run import Run, describe, locked
from compensate.training.trainer import Interrupted

MAX_FAILURES = 3
"""How often a training restarts from its last checkpoint after a lost worker."""


def fit_on_cluster(
    fit: Callable[..., Any],
    config: Config,
    *,
    workers: int | None = None,
    data: Splits | Dataset | None = None,
    data_dir: str | Path | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    every: int | None = None,
    trackers: Sequence[Any] = (),
    model: nn.Module | None = None,
) -> Any:
    """`fit` with the workers of a Ray cluster.

    All machines must see the folder. The result is read from it: the tables of the criterion have the rows of all samples.
    """
    config = config.replace(order="ranges")
    given: dict[str, Any] = {"config": config, "data": data, "data_dir": data_dir, "model": model}
    with ExitStack() as stack:
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="compensate-"))
        path = Path(folder).expanduser().resolve()
        run = Run(path)
        # Errors of the input are raised here: Ray would restart the workers that raise them.
        prepared = prepare_run(config, data, data_dir)
        with holding_rows(HeldRows(0, 1, of=prepared.train.rows)):  # a criterion without its rows
            criterion = make_criterion(prepared, make_model(prepared) if model is None else model, data_dir)
        check_ranges(criterion, prepared.method.needs, config.method)
        with locked(make_folder(path)):
            run.begin(describe(config) | {"effective": prepared.config.json}, resume=resume)
        if run.result is None:
            job = {**given, "folder": path, "every": every, "trackers": trackers}
            _train(run, prepared, workers, {"fit": fit, "arguments": job, "home": os.getcwd(), "named": dict(NAMED)})
        return fit(**given, folder=path, resume=True)


def _train(run: Run, prepared: Prepared, workers: int | None, job: dict[str, Any]) -> None:
    require("ray.train.torch", 'backend="ray"', "cluster")
    from ray import exceptions, train
    from ray.train import torch as train_torch

    with ray_cluster('backend="ray"', workers) as ray:
        resources = ray.cluster_resources()
        cards = int(resources.get("GPU", 0))
        most = cards or int(resources.get("CPU", 1))
        workers = most if workers is None else workers
        if workers > most:
            raise InputError(
                f"{workers} workers were asked for, and the cluster has {most} {'graphics cards' if cards else 'processors'}; "
                f"ask for {most} or fewer."
            )
        Ranges(prepared.train, prepared.config.batch_size or 1, Processes(workers))
        storage = run / "ray"
        trainer = train_torch.TorchTrainer(
            _work,
            train_loop_config=job,
            scaling_config=train.ScalingConfig(num_workers=workers, use_gpu=cards > 0),
            torch_config=train_torch.TorchConfig(backend="cpu:gloo,cuda:nccl" if cards else "gloo"),
            run_config=train.RunConfig(
                storage_path=str(storage), failure_config=train.FailureConfig(max_failures=MAX_FAILURES)
            ),
        )
        in_main_thread = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGINT)
        try:
            trainer.fit()
        except (SystemExit, exceptions.RayActorError):  # Ray raises these after Ctrl-C
            stored = checkpoint.latest(run / "checkpoint")
            raise Interrupted(0 if stored is None else stored["at"]["step"]) from None
        except train.TrainingFailedError as error:
            raise _reason(error) from error
        finally:
            if in_main_thread:
                signal.signal(signal.SIGINT, handler)  # Ray Train leaves its own handler behind
            shutil.rmtree(storage, ignore_errors=True)


def _work(job: dict[str, Any]) -> None:
    """In each worker, which Ray Train has joined with the others."""
    from ray import train

    NAMED.update(job["named"])
    if Path(job["home"]).is_dir():
        os.chdir(job["home"])  # Ray Train changes the folder, and paths may be relative
    job["fit"](**job["arguments"], resume=True, on_epoch=lambda row: train.report(dict(row)))


def _reason(error: Exception) -> Exception:
    """The `InputError` of a worker if there is one; else an error that quotes Ray's."""
    for failure in getattr(error, "worker_failures", {}).values():
        inner: BaseException | None = failure
        while inner is not None:
            if isinstance(inner, InputError):
                return inner
            inner = getattr(inner, "_base_exc", None) or inner.__cause__
    return InputError(
        f"the training was started {MAX_FAILURES + 1} times on the cluster, and a worker was lost each time: {error}. The last "
        "checkpoint is kept: resume with fewer workers, or with a smaller batch if memory was short."
    )
