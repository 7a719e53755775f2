"""Runs the cells of a table: finished runs are read, the others are trained in worker processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from compensate.data import Dataset, find_vectors, gather
from compensate.errors import InputError
from compensate.files import make_folder, write_atomically
from compensate.training.comparison import LAST, finished_run
from compensate.training.config import Config
from compensate.training.evaluation import BATCH, Samples
from compensate.training.preparation import load_model, prepare_run
from compensate.training.workers import LOST, Backend, side_by_side
from experiments.archive import Archive, Record, record_of
from experiments.comparing import stored_choice
from experiments.data import SOURCES, find_source
from experiments.protocols import ATTACKS, PROTOCOLS, Cell, Scale, choice_name, trials
from experiments.tables import Published

ATTACKED = 1000
"""Test samples that are attacked: an attack of 20 steps costs as much as 20 epochs on them."""


@dataclass(frozen=True)
class Place:
    """Where things are: results to keep, folders of runs under way, data sets.

    Attributes:
        results: the folder of the archives.
        runs: the folder of the runs.
        data_dir: where named data sets are.
        workers: processes; as many as cores if None.
        backend: "local", this machine, or a "ray" cluster.
    """

    results: Path
    runs: Path
    data_dir: Path | None = None
    workers: int | None = None
    backend: Backend = "local"

    def archive(self, dataset: str, scale: Scale) -> Archive:
        """The finished runs on a data set at a scale."""
        return Archive(self.results / f"{dataset}-{scale}.jsonl")

    def chosen_path(self, table: Published, scale: Scale) -> Path:
        """The file of chosen hyper-parameters."""
        return self.results / f"{choice_name(table, scale)}-chosen.json"


def work(config: Config, attacked: bool, runs: Path, data_dir: Path | None) -> tuple[Config, Record | str]:
    """Trains one run and returns its record, or the message of an input error."""
    try:
        stored = finished_run(config, runs, data_dir)
        folder = runs / config.name
        history = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        more: dict[str, Any] = {}
        if attacked:
            prepared = prepare_run(config, data_dir=data_dir)
            assert prepared.test is not None
            model = load_model(folder, prepared)
            more["adversarial"] = {f"{255 * e:g}/255": adversarial_accuracy(model, prepared.test, e) for e in ATTACKS}
        return config, record_of(config, stored, history, **more)
    except InputError as error:
        return config, str(error)


def _lost(config: Config, attacked: bool, runs: Path, data_dir: Path | None) -> tuple[Config, Record | str]:
    return config, LOST


def lost_run(*job: Any) -> str:
    """In place of the record of a run whose process died."""
    return LOST


def adversarial_accuracy(
    model: nn.Module, data: Dataset, eps: float, *, steps: int = 20, limit: int = ATTACKED
) -> float:
    """Accuracy on test images that were moved, within `eps` in every pixel, to raise their loss (PGD)."""
    from compensate.methods import pgd_at

    attack = pgd_at(eps=eps, steps=steps, bounds=(0.0, 1.0))  # in training mode: a criterion at rest attacks nothing
    model.eval()
    some = data.subset(np.arange(min(limit, len(data))))
    right = 0
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for rows in Samples.of(some).portions(BATCH):
            x, y, _ = gather(some, rows)
            right += int((attack.evaluate(model, x, y).u.argmax(-1) == y).sum())
    return right / max(len(some), 1)


def run(
    wanted: Sequence[Cell], archive: Archive, place: Place, done: Callable[[], None] = lambda: None
) -> list[tuple[Config, str]]:
    """Brings every cell into the archive; returns the runs that could not be done, with the reason."""
    missing = {c.config.id: c for c in wanted if not _finished(archive.get(c.config.id), c.attacked)}
    jobs = [(c.config, c.attacked, place.runs, place.data_dir) for c in missing.values()]
    _check_data([c.config for c in missing.values()], place.data_dir)
    failed = []
    for config, outcome in side_by_side(work, jobs, place.workers, backend=place.backend, lost=_lost):
        if isinstance(outcome, str):
            failed.append((config, outcome))
        else:
            archive.add(outcome)
        done()
    return failed


def _check_data(configs: Sequence[Config], data_dir: Path | None) -> None:
    """Downloads the data of the runs, or raises an error, before the first run starts."""
    for name in {config.data for config in configs if config.data in SOURCES}:
        find_source(name, data_dir)
    for vectors in {config.vectors for config in configs if config.vectors is not None}:
        find_vectors(vectors, data_dir)


def _finished(record: Record | None, attacked: bool) -> bool:
    return record is not None and (not attacked or "adversarial" in record)


def choose(
    table: Published,
    scale: Scale,
    methods: Sequence[str],
    place: Place,
    done: Callable[[], None] = lambda: None,
    lost: Callable[[Config, str], None] = lambda config, message: None,
) -> dict[str, dict[str, Any]]:
    """The hyper-parameters of each method of a table; see `best_of`. One choice is used for all columns."""
    if PROTOCOLS[scale][table.dataset].chosen_on:
        return stored_choice(place.chosen_path(table, scale))
    archive = Archive(place.results / f"{choice_name(table, scale)}-search.jsonl")
    by_method = {m: trials(table, scale, m) for m in methods}
    return best_of(by_method, archive, place.chosen_path(table, scale), place, done, lost)


def best_of(
    by_method: Mapping[str, Sequence[Config]],
    archive: Archive,
    path: Path,
    place: Place,
    done: Callable[[], None] = lambda: None,
    lost: Callable[[Config, str], None] = lambda config, message: None,
) -> dict[str, dict[str, Any]]:
    """Of each method's candidates, the hyper-parameters with the best accuracy on noisy held-out labels.

    The mean over the last epochs counts. Trials have a seed of their own and an archive of their own. The choice is written to `path`.
    A candidate whose process was lost is reported to `lost`, and it is tried again when the
    command is started again.
    """
    runs = [Cell("search", 0, config) for configs in by_method.values() for config in configs]
    failed = run(runs, archive, place, done)
    for config, message in failed:
        if message == LOST:
            lost(config, message)
    chosen: dict[str, dict[str, Any]] = {}
    table: dict[str, Any] = {}
    for method, configs in by_method.items():
        records = [(archive.get(c.id), dict(c.hyper)) for c in configs]
        scores = [(score(record), hyper) for record, hyper in records if record is not None]
        if configs and not scores:
            raise InputError(f"no trial of {method} came to its end: {failed[0][1] if failed else ''}")
        if scores:
            best = max(range(len(scores)), key=lambda k: scores[k][0])
            chosen[method] = scores[best][1]
            table[method] = {"chosen": scores[best][1], "trials": [{"hyper": h, "validation": s} for s, h in scores]}
    before = json.loads(path.read_text()) if path.is_file() else {}
    make_folder(path.parent)
    write_atomically(path, (json.dumps(before | table, indent=1) + "\n").encode())
    return chosen


def score(record: Record) -> float:
    """The mean accuracy on held-out labels over the last epochs."""
    values = record["curves"]["val_accuracy"][-LAST:]
    return round(float(np.mean([0.0 if v is None else v for v in values])), 5)
