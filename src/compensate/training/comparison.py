"""Runs side by side: one process each, one thread each.

A process that is ended from outside, often for want of memory, takes its own job with it and no other: the job is started
again, and given up when that has happened too often. Workers whose parent is gone end as well.
"""

from __future__ import annotations

import io
import json
import math
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch

from compensate import markup
from compensate._version import __version__
from compensate.errors import InputError
from compensate.extras import connect_ray, require
from compensate.files import write_atomically
from compensate.methods.composition import find
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


LEVEL = 0.95
"""Of confidence intervals."""


@dataclass(frozen=True)
class Row:
    """A method in the table.

    Attributes:
        method: its name.
        count: seeds.
        last, best: mean and standard deviation over the seeds of the test accuracy after the last epoch, and after the
            epoch with the best validation accuracy.
        difference: of `last` to the baseline's, seed by seed: mean, and the ends of its confidence interval (NaN for a
            single seed); None for the baseline.
    """

    method: str
    count: int
    last: tuple[float, float]
    best: tuple[float, float]
    difference: tuple[float, float, float] | None


class Comparison(list[Row]):
    """The rows of a comparison; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        def spread(mean: float, deviation: float) -> str:
            return f"{mean:.1%}" + ("" if math.isnan(deviation) else f" ± {deviation:.1%}")

        def beside(row: Row) -> str:
            if row.difference is None:
                return ""
            mean, low, high = (f"{100 * value:+.1f}" for value in row.difference)
            return mean if math.isnan(row.difference[1]) else f"{mean} ({low} to {high})"

        rows = ((r.method, r.count, spread(*r.last), spread(*r.best), beside(r)) for r in self)
        return markup.table(("method", "seeds", "last", "best", "beside the first, in points"), rows)


def plan(config: Config, methods: Mapping[str, Mapping[str, Any]], seeds: int) -> list[Config]:
    """The runs of a comparison. All methods of a seed share split, noise, first weights and order.

    If one method asks for clean data, all methods do without those samples, so that all train on the same.
    """
    needs = set().union(*(find(name).needs for name in methods))
    clean = config.clean if config.clean is not None else 0.02 if "clean" in needs else 0.0
    return [
        config.but(method=name, hyper=dict(hyper), seed=config.seed + k, clean=clean)
        for k in range(seeds)
        for name, hyper in methods.items()
    ]


def attempt(config: Config, folder: Path, data_dir: Path | None) -> tuple[Config, dict[str, Any] | str]:
    """A run and its outcome; or, if its input was at fault, what was wrong: the other runs shall not suffer."""
    try:
        return config, trained(config, folder, data_dir)
    except InputError as error:
        return config, str(error)


def lost(config: Config, folder: Path, data_dir: Path | None) -> tuple[Config, dict[str, Any] | str]:
    """The outcome of a run whose process was ended from outside again and again."""
    return config, LOST


def paired(differences: Sequence[float], level: float = LEVEL) -> tuple[float, float, float]:
    r"""Mean of the differences, and the ends of its t interval.

    .. math:: \bar d \pm t_{n-1}\, \frac{s_d}{\sqrt n}

    >>> [round(v, 3) for v in paired([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    from scipy.stats import t

    d = np.asarray(differences, dtype=float)
    mean = float(d.mean())
    if len(d) < 2:
        return mean, math.nan, math.nan
    half = float(t.ppf((1 + level) / 2, len(d) - 1) * d.std(ddof=1) / math.sqrt(len(d)))
    return mean, mean - half, mean + half


def comparison_table(runs: Sequence[Mapping[str, Any]], methods: Sequence[str], baseline: str) -> Comparison:
    """The rows of the table, from the stored outcomes of all runs."""
    values = {m: {r["config"]["seed"]: r["result"] for r in runs if r["config"]["method"] == m} for m in methods}
    rows = Comparison()
    for method, by_seed in values.items():
        if not by_seed:
            continue
        shared = sorted(by_seed.keys() & values[baseline].keys())
        differences = [_accuracy(by_seed[s]["last"]) - _accuracy(values[baseline][s]["last"]) for s in shared]
        difference = None if method == baseline or not shared else paired(differences)
        last, best = (_spread([_accuracy(r[when]) for r in by_seed.values()]) for when in ("last", "best"))
        rows.append(Row(method, len(by_seed), last, best, difference))
    return rows


def _accuracy(row: Mapping[str, float]) -> float:
    return row.get("test_accuracy", row.get("val_accuracy", math.nan))


def _spread(values: Sequence[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def store(folder: Path, config: Config, runs: Sequence[Mapping[str, Any]], rows: Sequence[Row], baseline: str) -> Path:
    """Every run's numbers and the table, as JSON."""
    content = {
        "version": __version__,
        "common": {k: v for k, v in config.json.items() if k not in ("method", "hyper", "seed")},
        "baseline": baseline,
        "level": LEVEL,
        "table": [vars(row) for row in rows],
        "runs": [
            {
                "id": r["id"], "method": r["config"]["method"], "hyper": r["config"]["hyper"],
                "seed": r["config"]["seed"], "versions": r["versions"], **r["result"],
            }
            for r in sorted(runs, key=lambda r: (r["config"]["method"], r["config"]["seed"]))
        ],
    }  # fmt: skip
    path = folder / "comparison.json"
    write_atomically(path, json.dumps(plain(content), indent=1).encode())
    return path


def plain(value: Any) -> Any:
    """NaN is no JSON; it becomes null."""
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def curves(folder: Path, configs: Sequence[Config]) -> dict[str, list[list[float]]]:
    """Test accuracy after each epoch, a list for each seed, by method; from the runs' own metrics."""
    found: dict[str, list[list[float]]] = {}
    for config in configs:
        path = folder / config.name / "metrics.jsonl"
        if path.is_file():
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            found.setdefault(config.method, []).append([_accuracy(row) for row in rows])
    return found


COLORS = ("#555555", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F")
"""Colors that survive color blindness; line styles say the same once they are used up."""


def plot(by_method: Mapping[str, Sequence[Sequence[float]]], path: Path, title: str = "") -> Path:
    """Accuracy over the epochs, mean and deviation of each method, and the last epoch of every seed beside it."""
    made = require("matplotlib.figure", "the picture of a comparison", "plots")
    height = max(3.8, 0.8 + 0.24 * len(by_method))
    figure = made.Figure(figsize=(9, height), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for place, runs in enumerate(by_method.values()):
        color, style = COLORS[place % len(COLORS)], ("-", "--", ":")[place // len(COLORS) % 3]
        length = min(map(len, runs))
        values = np.array([run[:length] for run in runs])
        epochs = np.arange(1, length + 1)
        mean, spread = values.mean(0), values.std(0)
        left.plot(epochs, mean, style, color=color, marker="o" if length == 1 else None)
        left.fill_between(epochs, mean - spread, mean + spread, color=color, alpha=0.15, linewidth=0)
        last = [run[-1] for run in runs]
        right.plot(last, [place] * len(last), "o", color=color, alpha=0.5, markersize=5)
        right.plot([np.mean(last)] * 2, [place - 0.3, place + 0.3], style, color=color, linewidth=2)
    left.set_xlabel("epoch")
    left.set_ylabel("test accuracy")
    # The names beside the last epochs carry the colors: a legend of twenty lines would hide the curves.
    right.set_yticks(range(len(by_method)), [m.replace("_", "-") for m in by_method])
    for place, label in enumerate(right.get_yticklabels()):
        label.set_color(COLORS[place % len(COLORS)])
    right.invert_yaxis()
    right.set_xlabel("last epoch: each seed, and the mean")
    figure.suptitle(title, fontsize=11)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110, format="png")
    write_atomically(path, drawn.getvalue())
    return path
