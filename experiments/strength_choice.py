"""The constants of the method to try first, one changed at a time: chosen on all data sets but one, reported on that one."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from compensate.errors import InputError
from compensate.terms import strength
from compensate.training.config import Config
from compensate.training.workers import side_by_side
from experiments import grid, human
from experiments.archive import Archive, Record
from experiments.leading import LEADING, SEARCH_SEED, TABLES, accuracy, table_cells, tabular

CHANGED = {"lam": (2.5, 10.0), "beta": (0.5, 0.9), "withheld": (0.01, 0.05), "MEMORY": (5.0, 20.0), "GAIN": (2.5, 10.0)}
VARIANTS: dict[str, dict[str, float]] = {"default": {}} | {
    f"{name} {v:g}": {name: v} for name, values in CHANGED.items() for v in values
}
"""Hyper-parameters and constants of `compensate.terms.strength` that differ from the default."""

NOISE = ("none", "random:0.3", "first:0.2")
CONSTANTS = {name: getattr(strength, name) for name in ("MEMORY", "GAIN")}


def cases(reproduced: Path, runs: Path) -> dict[str, list[Config]]:
    """The trainings of each data set, without noise and with it, with a seed that is not reported."""
    found: dict[str, list[Config]] = {}
    for name in TABLES:
        if name in ("table-1-cifar10", "table-9-sst2"):
            for cell in table_cells(name, reproduced, 1):
                if cell.row == f"{LEADING}-default" and cell.config.noise in NOISE:
                    found.setdefault(cell.config.data, []).append(cell.config.replace(seed=SEARCH_SEED))
    for name, noise in (("digits", "pair:0.3"), ("cancer", "pair:0.3")):
        given = [{**tabular(name, runs, n), "method": LEADING, "seed": SEARCH_SEED} for n in ("none", noise)]
        found[f"{name} as a table"] = [Config.of(options) for options in given]
    found["agnews"] = [
        human.config("encoder", labels, LEADING, {}, SEARCH_SEED, runs / "human") for labels in ("true", "given")
    ]
    return found


def work(name: str, variant: str, config: Config, runs: Path, data_dir: Path) -> Record | str:
    """One training with a variant, or the message of an input error."""
    changes = VARIANTS[variant]
    for module in map(importlib.import_module, ("compensate.terms.strength", "compensate.methods.robust")):
        for constant in CONSTANTS.keys() & vars(module).keys():
            setattr(module, constant, changes.get(constant, CONSTANTS[constant]))
    hyper = {key: value for key, value in changes.items() if key not in CONSTANTS}
    record = grid.work(config.replace(hyper=hyper), False, runs / "choice" / variant, data_dir)[1]
    if isinstance(record, str):
        return record
    return {"id": f"{config.id} {variant}", "data": name, "variant": variant, "accuracy": accuracy(record)}


def train(results: Path, runs: Path, data_dir: Path, workers: int | None, done: Callable[[], None]) -> None:
    """Trains the missing runs."""
    archive = Archive(results / "leading" / "strength-choice.jsonl")
    human.write_sets(data_dir, runs / "human")
    jobs = [
        (name, variant, config, runs, data_dir)
        for variant in VARIANTS
        for name, configs in cases(results / "reproduce", runs).items()
        for config in configs
        if archive.get(f"{config.id} {variant}") is None
    ]
    for record in side_by_side(work, jobs, workers, lost=grid.lost_run):
        if isinstance(record, str):
            raise InputError(record)
        archive.add(record)
        done()
