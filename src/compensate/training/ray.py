"""`fit` on a Ray cluster: Ray Train starts the workers, joins them, and starts them again from the last checkpoint if one is lost.

Each worker owns a range of the samples, `order="ranges"`: see `compensate.training.distributed`. Nothing of the training is different here.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from compensate.core.layout import HeldRows, holding_rows
from compensate.data import Dataset, Splits
from compensate.errors import InputError
from compensate.extras import ray_cluster, require
from compensate.training import checkpoint
from compensate.training.config import Config
from compensate.training.distributed import Processes, Ranges, check_ranges
from compensate.training.fitting import fit
from compensate.training.preparation import Prepared, make_criterion, make_model, prepare_run
from compensate.training.run import Result, Run, description
from compensate.training.trainer import Interrupted

LOST = 3
"""How often a training is started again from its last checkpoint, after one of its workers was lost."""


def fit_on_cluster(
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
) -> Result:
    """As `fit`, by the workers of a Ray cluster; the arguments are those of `fit`.

    The folder must be one that all machines of the cluster see. What comes back was read from it: the tables of the criterion have
    the rows of all samples.
    """
    config = config.but(order="ranges")
    given: dict[str, Any] = {"config": config, "data": data, "data_dir": data_dir, "model": model}
    with _shared(folder) as path:
        run = Run(path)
        prepared = _checked(**given)
        with run.alone():
            run.begin(description(config) | {"effective": prepared.config.json}, resume=resume)
        if run.result is None:
            _train(
                run,
                prepared,
                workers,
                {**given, "folder": path, "every": every, "trackers": trackers, "home": os.getcwd()},
            )
        return fit(**given, folder=path, resume=True)


@contextmanager
def _shared(folder: str | Path | None) -> Iterator[Path]:
    if folder is not None:
        yield Path(folder).expanduser().resolve()
        return
    with tempfile.TemporaryDirectory(prefix="compensate-") as name:
        yield Path(name)


def _checked(config: Config, data: Any, data_dir: Any, model: nn.Module | None) -> Prepared:
    """The data. What each worker would refuse is refused here: Ray would start them again and again."""
    prepared = prepare_run(config, data, data_dir)
    with holding_rows(HeldRows(0, 1, of=prepared.train.rows)):  # a criterion to look at, without its rows
        criterion = make_criterion(prepared, make_model(prepared) if model is None else model, data_dir)
    check_ranges(criterion, prepared.method.needs, config.method)
    return prepared


def _train(run: Run, prepared: Prepared, workers: int | None, given: dict[str, Any]) -> None:
    require("ray.train.torch", 'backend="ray"', "cluster")
    from ray import exceptions, train
    from ray.train import torch as train_torch

    with ray_cluster('backend="ray"', workers) as ray:
        has = ray.cluster_resources()
        cards = int(has.get("GPU", 0))
        most = cards or int(has.get("CPU", 1))
        workers = most if workers is None else workers
        if workers > most:
            what = "graphics cards" if cards else "processors"
            raise InputError(
                f"{workers} workers were asked for, and the cluster has {most} {what}; ask for {most} or fewer."
            )
        Ranges(prepared.train, prepared.config.batch_size or 1, Processes(workers))
        storage = run / "ray"
        trainer = train_torch.TorchTrainer(
            _work,
            train_loop_config=given,
            scaling_config=train.ScalingConfig(num_workers=workers, use_gpu=cards > 0),
            torch_config=train_torch.TorchConfig(backend="cpu:gloo,cuda:nccl" if cards else "gloo"),
            run_config=train.RunConfig(
                storage_path=str(storage), failure_config=train.FailureConfig(max_failures=LOST)
            ),
        )
        try:
            with _own_signals():
                trainer.fit()
        except (SystemExit, exceptions.RayActorError):  # what Ray makes of Ctrl-C
            found = checkpoint.latest(run / "checkpoint")
            raise Interrupted(0 if found is None else found["at"]["step"]) from None
        except train.TrainingFailedError as error:
            raise _reason(error) from error
        finally:
            shutil.rmtree(storage, ignore_errors=True)


def _work(given: dict[str, Any]) -> None:
    """In each worker: Ray Train has joined it with the others. A worker that was started again goes on from the last checkpoint."""
    from ray import train

    home = Path(given["home"])
    if home.is_dir():
        os.chdir(home)  # Ray Train has gone to a folder of its own, where no relative path leads to its file
    arguments = {name: value for name, value in given.items() if name != "home"}
    fit(**arguments, resume=True, on_epoch=lambda row: train.report(dict(row)))


def _reason(error: Exception) -> Exception:
    """What a worker refused; else what Ray says of the failure."""
    for failure in getattr(error, "worker_failures", {}).values():
        inner: BaseException | None = failure
        while inner is not None:
            if isinstance(inner, InputError):
                return inner
            inner = getattr(inner, "_base_exc", None) or inner.__cause__
    return InputError(
        f"the training was started {LOST + 1} times on the cluster, and a worker was lost each time: {error}. What is finished is "
        "kept: resume with fewer workers, or with a smaller batch if memory was short."
    )


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray Train answers Ctrl-C in its own way, and leaves its answer behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
