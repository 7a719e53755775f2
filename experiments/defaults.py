"""Defaults that hold: settings of LogComp and MixComp, chosen on all data sets but one and reported on that one.

A user takes the default. It should be nowhere worse than plain cross entropy by more than the seeds differ, with and without wrong labels.
Candidates are trained with seeds that the report does not use. A candidate's loss on a set is how far it falls behind the best
candidate there; the default is the one whose largest shortfall against cross entropy is smallest, and of those without shortfall the most accurate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compensate.training.comparison import paired
from compensate.training.config import Config
from experiments.archive import Archive
from experiments.grid import Place, run
from experiments.human import OPTIONS as AGNEWS
from experiments.human import write_sets
from experiments.protocols import PROTOCOLS, Cell
from experiments.report import table_lines

SMALL = PROTOCOLS["small"]
SETS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "digits": ({"data": "digits", "epochs": 30}, ("none", "symmetric:0.3")),
    "agnews": ({**AGNEWS}, ("none", "human")),
    "sst2": ({"data": "sst2", **SMALL["sst2"].options}, ("none", "symmetric:0.3")),
    "imdb": ({"data": "imdb", **SMALL["imdb"].options}, ("none", "symmetric:0.3")),
    "cifar10": ({"data": "cifar10", **SMALL["cifar10"].options}, ("none", "symmetric:0.3")),
}
"""The small settings of the paper's data sets, digits, and news texts with labels of people."""

CANDIDATES: dict[str, list[dict[str, Any]]] = {
    "base": [{}],
    "logcomp": [
        {"lam": 0.05, "lr": 1.0},
        {"lam": 0.1, "lr": 1.0},
        {"lam": 0.25, "lr": 1.0},
        {"lam": 0.05, "lr": 1.0, "warmup": 2.0},
        {"lam": 0.1, "lr": 1.0, "warmup": 2.0},
    ],
    "mixcomp": [
        {"eta": 5.0, "pro": 35.0, "warmup": 0.0},
        {"eta": 5.0, "pro": 35.0, "warmup": [0.1, 0.4]},
        {"eta": 5.0, "pro": 35.0, "warmup": 2.0},
        {"eta": 5.0, "pro": 25.0, "warmup": 2.0},
        {"eta": 2.0, "pro": 25.0, "warmup": 2.0},
    ],
}
TRIAL_SEEDS: dict[str, tuple[int, ...]] = {
    "digits": tuple(range(100, 108)),
    "agnews": (100, 101),
    "sst2": (100, 101),
    "imdb": (100,),
    "cifar10": (100,),
}
PAPER: dict[str, dict[str, Any]] = {"logcomp": {"preset": "paper"}, "mixcomp": {"preset": "paper"}}
SPREAD = 0.5
"""Percent below cross entropy that seeds of the trials alone explain."""


def config(name: str, noise: str, method: str, hyper: Mapping[str, Any], seed: int, runs: Path) -> Config:
    """One training."""
    options = dict(SETS[name][0])
    if name == "agnews":
        options["data"] = (runs / f"agnews-encoder-{'true' if noise == 'none' else 'given'}.npz").as_posix()
        noise = "none"
    return Config.of({**options, "noise": noise, "method": method, "hyper": dict(hyper), "seed": seed})


@dataclass(frozen=True)
class Trial:
    """A candidate on a data set."""

    name: str
    noise: str
    method: str
    hyper: Mapping[str, Any]
    config: Config


def trials(runs: Path, sets: Sequence[str] = tuple(SETS)) -> list[Trial]:
    """All candidates on all sets, cheap sets first."""
    return [
        Trial(name, noise, method, hyper, config(name, noise, method, hyper, seed, runs))
        for name in sets
        for seed in TRIAL_SEEDS[name]
        for noise in SETS[name][1]
        for method, settings in CANDIDATES.items()
        for hyper in settings
    ]


def train(place: Place, data_dir: Path, sets: Sequence[str], done: Callable[[], None] = lambda: None) -> list[tuple[Config, str]]:  # fmt: skip
    """The candidates that are missing."""
    write_sets(data_dir, place.runs)
    cells = [Cell(t.method, 0, t.config) for t in trials(place.runs, sets)]
    return run(cells, archive_of(place.results), place, done)


def archive_of(results: Path) -> Archive:
    """The finished runs."""
    return Archive(results / "defaults.jsonl")


def scores(results: Path, runs: Path) -> dict[tuple[str, str], dict[tuple[str, str], float]]:
    """Mean test accuracy minus that of cross entropy, in percent: by method and setting, by set and noise."""
    archive = archive_of(results)
    values: dict[tuple[str, str, str, str], list[float]] = {}
    for t in trials(runs):
        if (record := archive.get(t.config.id)) is not None:
            values.setdefault((t.method, key(t.hyper), t.name, t.noise), []).append(
                100 * record["last"]["test_accuracy"]
            )
    found: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for (method, setting, name, noise), each in values.items():
        base = values.get(("base", "", name, noise))
        if base is not None and method != "base":
            found.setdefault((method, setting), {})[name, noise] = float(np.mean(each) - np.mean(base))
    return found


def key(hyper: Mapping[str, Any]) -> str:
    """A setting as text.

    >>> key({"lam": 0.05, "warmup": 2.0})
    'lam=0.05 warmup=2.0'
    """
    return " ".join(f"{k}={v}" for k, v in hyper.items())


def best(method: str, found: Mapping[tuple[str, str], Mapping[tuple[str, str], float]], without: str | None = None) -> str:  # fmt: skip
    """The setting that is nowhere far below cross entropy, and of those the one with the largest mean gain."""

    def judged(gains: Mapping[tuple[str, str], float]) -> tuple[float, float]:
        here = [g for (name, _), g in gains.items() if name != without] or [0.0]
        return -max(0.0, -min(here) - SPREAD), float(np.mean(here))

    return max((setting for m, setting in found if m == method), key=lambda s: judged(found[method, s]))


def difference(values: Mapping[int, float], base: Mapping[int, float]) -> tuple[float, float, float]:
    """Mean of the differences seed by seed, and its interval."""
    return paired([values[s] - base[s] for s in sorted(values.keys() & base.keys())])


def sections(results: Path) -> list[str]:
    """Parts of the page of results; nothing where nothing is stored."""
    if not (results / "defaults.jsonl").is_file():
        return []
    found = scores(results, Path("runs/human"))
    columns = [
        (name, noise) for name in SETS for noise in SETS[name][1] if any((name, noise) in g for g in found.values())
    ]
    rows = [["setting", *(f"{name}, {noise.replace(':', ' ')}" for name, noise in columns)]]
    for (method, setting), gains in found.items():
        rows.append([f"{method} {setting}", *(f"{gains[c]:+.1f}" if c in gains else "" for c in columns)])
    said = (
        "`python -m experiments defaults`: test accuracy minus that of cross entropy, in points, two seeds for digits, news (AG-News, MiniLM "
        "features) and SST-2, one for IMDB; these seeds serve for nothing else, and CIFAR-10 was not run. Compensated from the first step on "
        '(`warmup=0`, the paper\'s form, `preset="paper"`), MixComp falls far behind cross entropy on clean texts. With a warm-up of two epochs '
        "it does not, and keeps what it gains under wrong labels but for IMDB; on clean digits it stays behind. That is the default now. A "
        "smaller bound (eta 2) is nowhere behind by much, and gains little; the rule of the command, the smallest shortfall, picks it on all sets "
        "together, and other settings where digits or IMDB are left out. The warm-up was preferred by hand, knowing this table, for what it gains "
        "under wrong labels. LogComp's default (lam 0.05) is behind on clean digits by a point; "
        "0.25, the paper's value, is nowhere behind and gains less under people's errors."
    )
    return ["## Defaults that hold", said, table_lines(rows)]
