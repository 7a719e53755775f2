"""Defaults: settings of LogComp and MixComp, chosen on all data sets but one and reported on that one.

Most users keep the default, so it should never be worse than cross-entropy beyond the variation between seeds, with and without wrong labels.
The rule considers settings that are behind cross-entropy on no data set by more than a standard error and chooses the one with the largest mean
gain. It reads test accuracy; the report on a data set therefore uses the setting chosen without that set, on fresh seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compensate.methods.mixed import LOG_2
from compensate.training.comparison import paired
from compensate.training.config import Config
from experiments.archive import Archive
from experiments.comparing import table_lines
from experiments.grid import Place, run
from experiments.human import OPTIONS as AGNEWS
from experiments.human import write_sets
from experiments.protocols import PROTOCOLS, Cell

SMALL = PROTOCOLS["small"]
SETS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "digits": ({"data": "digits", "epochs": 30}, ("none", "symmetric:0.3")),
    "agnews": ({**AGNEWS}, ("none", "human")),
    "sst2": ({"data": "sst2", **SMALL["sst2"].options}, ("none", "symmetric:0.3")),
    "imdb": ({"data": "imdb", **SMALL["imdb"].options}, ("none", "symmetric:0.3")),
    "cifar10": ({"data": "cifar10", **SMALL["cifar10"].options}, ("none", "symmetric:0.3")),
}
"""The small settings of the paper's data sets, digits, and news texts with human labels."""

CANDIDATES: dict[str, list[dict[str, Any]]] = {
    "base": [{}],
    "logcomp": [
        {"lam": 0.05, "lr": 1.0},
        {"lam": 0.1, "lr": 1.0},
        {"lam": 0.25, "lr": 1.0},
        {"lam": 0.05, "lr": 1.0, "warmup": 2.0},
        {"lam": 0.1, "lr": 1.0, "warmup": 2.0},
        {"preset": "paper"},
    ],
    "mixcomp": [
        {"eta": 5.0, "pro": 35.0, "warmup": 0.0, "floor": 0.0},
        {"eta": 5.0, "pro": 35.0, "warmup": [0.1, 0.4], "floor": 0.0},
        {"eta": 5.0, "pro": 35.0, "warmup": 2.0, "floor": 0.0},
        {"eta": 5.0, "pro": 25.0, "warmup": 2.0, "floor": 0.0},
        {"eta": 2.0, "pro": 25.0, "warmup": 2.0, "floor": 0.0},
        {"eta": 5.0, "pro": 35.0, "warmup": 2.0, "floor": LOG_2},
    ],
}
TRIAL_SEEDS: dict[str, tuple[int, ...]] = {
    "digits": (100, 101, 102),
    "agnews": (100, 101),
    "sst2": (100, 101),
    "imdb": (100,),
    "cifar10": (100,),
}
FRESH_SEEDS: dict[str, tuple[int, ...]] = {
    "digits": (200, 201, 202),
    "agnews": (200, 201, 202),
    "sst2": (200, 201, 202),
    "imdb": (200, 201, 202),
    "cifar10": (200, 201, 202),
}
"""Seeds that served for no choice; the default, the paper's form and the best candidate of the column are trained with them."""

DEFAULTS: dict[str, dict[str, Any]] = {
    "logcomp": {"lam": 0.25, "lr": 1.0},
    "mixcomp": {"eta": 5.0, "pro": 35.0, "warmup": 2.0, "floor": LOG_2},
}
"""The defaults of the library; a test compares them with the signatures."""

PAPER: dict[str, dict[str, Any]] = {
    "logcomp": {"preset": "paper"},
    "mixcomp": {"eta": 5.0, "pro": 35.0, "warmup": 0.0, "floor": 0.0},
}
"""The form of the paper: LogComp by subgradient and with its learning rate over the batch, MixComp without a warm-up."""

KINDS = {
    "others": "chosen on the other sets",
    "default": "default",
    "paper": "the paper's form",
    "tuned": "best candidate of the column",
}
"""The settings that are trained on fresh seeds, by name."""

Column = tuple[str, str]
Gains = dict[tuple[str, str], dict[Column, list[float]]]
"""Differences to cross entropy in points, seed by seed: by method and setting, by set and noise."""


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


def fresh_trials(runs: Path, found: Gains, sets: Sequence[str] = tuple(SETS)) -> dict[str, list[Trial]]:
    """By "default", "others" (chosen on the other sets), "paper" and "tuned": that setting on fresh seeds; "base" is cross entropy."""
    made: dict[str, list[Trial]] = {"base": [], **{kind: [] for kind in KINDS}}
    for name in sets:
        for noise in SETS[name][1]:
            settings: dict[str, list[tuple[str, Mapping[str, Any]]]] = {
                "base": [("base", {})],
                "default": list(DEFAULTS.items()),
                "others": [(m, hyper) for m in DEFAULTS if (hyper := chosen_without(m, found, name)) is not None],
                "paper": list(PAPER.items()),
                "tuned": [(m, hyper) for m in DEFAULTS if (hyper := tuned(m, found, (name, noise))) is not None],
            }
            for kind, each in settings.items():
                made[kind] += [
                    Trial(name, noise, method, hyper, config(name, noise, method, hyper, seed, runs))
                    for method, hyper in each
                    for seed in FRESH_SEEDS[name]
                ]
    return made


def chosen_without(method: str, found: Gains, name: str) -> dict[str, Any] | None:
    """The choice of the rule on the other sets, or None without candidates."""
    if not any(m == method for m, _ in found):
        return None
    setting = best(method, found, name)
    return next(hyper for hyper in CANDIDATES[method] if key(hyper) == setting)


def tuned(method: str, found: Gains, column: Column) -> dict[str, Any] | None:
    """The best candidate of a column, if any was tried there."""
    tried = [hyper for hyper in CANDIDATES[method] if column in found.get((method, key(hyper)), {})]
    return max(tried, key=lambda hyper: float(np.mean(found[method, key(hyper)][column])), default=None)


def train(place: Place, data_dir: Path, sets: Sequence[str], done: Callable[[], None] = lambda: None) -> list[tuple[Config, str]]:  # fmt: skip
    """Trains the missing candidates, then the reported settings on fresh seeds."""
    if "agnews" in sets:  # needs an encoder
        write_sets(data_dir, place.runs)
    archive = archive_of(place.results)
    failed = run([Cell(t.method, 0, t.config) for t in trials(place.runs, sets)], archive, place, done)
    fresh = fresh_trials(place.runs, gains(archive, trials(place.runs)), sets)
    each = {t.config.id: Cell(t.method, 0, t.config) for ones in fresh.values() for t in ones}
    in_turn = sorted(each.values(), key=lambda cell: sets.index(_set_of(cell.config)))
    return failed + run(in_turn, archive, place, lambda: None)


def _set_of(one: Config) -> str:
    return next((name for name in SETS if name == one.data), "agnews")


def archive_of(results: Path) -> Archive:
    """The finished runs."""
    return Archive(results / "defaults.jsonl")


def gains(archive: Archive, tried: Sequence[Trial]) -> Gains:
    """Test accuracy minus that of cross entropy with the same seed, of all trials that are stored."""
    values: dict[tuple[str, str, str, str], dict[int, float]] = {}
    for t in tried:
        if (record := archive.get(t.config.id)) is not None:
            column = values.setdefault((t.method, key(t.hyper), t.name, t.noise), {})
            column[t.config.seed] = 100 * record["last"]["test_accuracy"]
    found: Gains = {}
    for (method, setting, name, noise), each in values.items():
        base = values.get(("base", "", name, noise), {})
        if method != "base" and (shared := sorted(each.keys() & base.keys())):
            found.setdefault((method, setting), {})[name, noise] = [each[s] - base[s] for s in shared]
    return found


def key(hyper: Mapping[str, Any]) -> str:
    """A setting as text.

    >>> key({"lam": 0.05, "warmup": 2.0})
    'lam=0.05 warmup=2'
    """
    return " ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in hyper.items())


def spread(found: Gains) -> float:
    """How much a difference to cross entropy varies from seed to seed, in points: pooled over all columns with several seeds."""
    groups = [each for columns in found.values() for each in columns.values() if len(each) > 1]
    return float(np.sqrt(np.mean([np.var(each, ddof=1) for each in groups]))) if groups else 0.0


def best(method: str, found: Gains, without: str | None = None) -> str:
    """The setting with the largest mean gain among settings that are behind cross-entropy on no data set by more than a standard error.

    If there is none, the setting that is least behind. `without` excludes a data set.
    """
    deviation = spread(found)

    def judged(columns: Mapping[Column, Sequence[float]]) -> tuple[float, float]:
        here = [each for (name, _), each in columns.items() if name != without]
        behind = max((-np.mean(each) - deviation / np.sqrt(len(each)) for each in here), default=0.0)
        return -max(0.0, float(behind)), float(np.mean([float(np.mean(each)) for each in here] or [0.0]))

    whole = max(len(columns) for (m, _), columns in found.items() if m == method)
    full = [setting for (m, setting), columns in found.items() if m == method and len(columns) == whole]
    return max(full, key=lambda setting: judged(found[method, setting]))


@dataclass(frozen=True)
class Stored:
    """The stored study.

    Attributes:
        runs: how many.
        found: gains of all candidates on the seeds of the choice.
        fresh: gains on fresh seeds, by the names in `KINDS`.
    """

    runs: int
    found: Gains
    fresh: Mapping[str, Gains]

    @property
    def columns(self) -> list[Column]:
        """Sets and noise that were run."""
        return [(name, noise) for name in SETS for noise in SETS[name][1] if any((name, noise) in g for g in self.found.values())]  # fmt: skip

    @property
    def heads(self) -> list[str]:
        """The columns as text."""
        return [f"{name}, {noise.replace(':', ' ')}" for name, noise in self.columns]


def stored(results: Path) -> Stored | None:
    """The stored study, or None."""
    if not (results / "defaults.jsonl").is_file():
        return None
    archive, runs = archive_of(results), Path("runs/human")
    found = gains(archive, trials(runs))
    made = fresh_trials(runs, found)
    fresh = {kind: gains(archive, [*made["base"], *made[kind]]) for kind in KINDS}
    return Stored(len(archive), found, fresh)


def sections(results: Path) -> list[str]:
    """Part of the page of results: the defaults on fresh seeds; empty if nothing is stored."""
    study = stored(results)
    shown = [] if study is None else _on_fresh_seeds(study)
    return ["## Defaults", *shown] if shown else []


def details(results: Path) -> list[str]:
    """How the defaults were chosen; empty if nothing is stored."""
    study = stored(results)
    if study is None:
        return []
    found, columns = study.found, study.columns
    said = (
        f"`python -m experiments defaults`: difference of test accuracy to cross-entropy with the same seed, in points (seeds: {_counts(found.values())}, none "
        f"of them reported; {study.runs} stored runs, including fresh seeds and former candidates). Between seeds a difference varies by "
        f"{spread(found):.1f} points. **The rule:** among settings that are behind cross-entropy on no data set by more than one standard error, choose "
        "the one with the largest mean gain; if there is none, choose the setting that is least behind. Defaults with three or more seeds have a "
        "95 % interval over seeds."
    )
    rows = [["", *study.heads]]
    for method in DEFAULTS:
        if any(m == method for m, _ in found):
            rows += _compared(method, found, columns)
    every = [["setting", *study.heads]]
    for (method, setting), each in found.items():
        every.append([f"{method} {setting}", *(_mean(each.get(c)) for c in columns)])
    return [
        "## How the defaults were chosen", said, table_lines(rows), *_conclusions(found), "All candidates:", table_lines(every),
    ]  # fmt: skip


def _counts(gained: Iterable[Mapping[Column, Sequence[float]]]) -> str:
    """The number of seeds by data set."""
    most: dict[str, int] = {}
    for columns in gained:
        for (name, _), each in columns.items():
            most[name] = max(most.get(name, 0), len(each))
    return ", ".join(f"{name} {most[name]}" for name in SETS if name in most)


def _by_column(gained: Gains, method: str) -> dict[Column, list[float]]:
    """Gains of a method, whatever its setting is in a column."""
    each: dict[Column, list[float]] = {}
    for (m, _), columns in gained.items():
        each |= columns if m == method else {}
    return each


def _on_fresh_seeds(study: Stored) -> list[str]:
    """Default, paper's form and tuned setting on fresh seeds; empty if none is stored."""
    rows = []
    for method in DEFAULTS:
        for kind, named in KINDS.items():
            each = _by_column(study.fresh[kind], method)
            if each:
                rows.append([f"{method}, {named}", *(_interval(each.get(c)) for c in study.columns)])
    if not rows:
        return []
    seeds = _counts(columns for gained in study.fresh.values() for columns in gained.values())
    intro = (
        f"Difference of test accuracy to cross-entropy with the same seed, in points, on fresh seeds ({seeds}). The rule behind the defaults reads test "
        "accuracy, and all sets but digits have the same test samples for every seed. The row that counts is therefore *chosen on the other sets*: the "
        "setting that the rule chooses without the set of the column, in most columns the default. Candidates and rule were revised more than once "
        "after looking at such tables. *Best candidate of the column* was chosen in this column, on other seeds. Brackets: 95 % interval over seeds; "
        "empty cells were not run. [How they were chosen](results-details.md#how-the-defaults-were-chosen)."
    )
    return [intro, table_lines([["", *study.heads], *rows])]


def in_a_line(results: Path) -> list[str]:
    """Gains and losses of the defaults on fresh seeds, for the summary; empty without stored runs."""
    study = stored(results)
    if study is None:
        return []
    said = [f"{m} {_gained(own)}" for m in DEFAULTS if (own := _by_column(study.fresh["others"], m))]
    if not said:
        return []
    return [
        "- **Untuned**, with settings chosen on the other data sets, on fresh seeds; mean gain with noise and without, and the lowest column: "
        f"{'; '.join(said)} ([defaults](#defaults))."
    ]


def _gained(own: Mapping[Column, Sequence[float]]) -> str:
    """Mean gains with and without noise, the lowest, and where the interval over the seeds is below zero."""
    noisy, clean = (
        [float(np.mean(each)) for (_, n), each in own.items() if (n != "none") == wrong] for wrong in (True, False)
    )
    judged = {column: each for column, each in own.items() if len(each) > 2}
    below = [f"{_named(column)} ({_interval(each)})" for column, each in judged.items() if paired(each)[2] < 0]
    lowest = min(own, key=lambda column: float(np.mean(own[column])))
    return (
        f"{np.mean(noisy):+.1f} and {np.mean(clean):+.1f}, lowest {_interval(own[lowest])} on {_named(lowest)}, interval below zero in "
        f"{len(below) or 'none'} of {len(judged)} columns{': ' + ', '.join(below) if below else ''}"
    )


def _named(column: Column) -> str:
    """A column as text.

    >>> _named(("imdb", "none")), _named(("imdb", "symmetric:0.3"))
    ('imdb without noise', 'imdb, symmetric 0.3')
    """
    name, noise = column
    return f"{name} without noise" if noise == "none" else f"{name}, {noise.replace(':', ' ')}"


def _behind(own: Mapping[Column, Sequence[float]], deviation: float) -> list[str]:
    """The columns in which a setting is behind cross entropy by more than a standard error."""
    return [
        f"{name} ({noise.replace(':', ' ')}: {_interval(each)})"
        for (name, noise), each in own.items()
        if -np.mean(each) > deviation / np.sqrt(len(each))
    ]


def _compared(method: str, found: Gains, columns: Sequence[Column]) -> list[list[str]]:
    """Lines of a method: its default, the choice of the rule without the column's set, the paper's form, the best in hindsight."""
    default, paper = (found.get((method, key(which[method])), {}) for which in (DEFAULTS, PAPER))
    without = {name: best(method, found, name) for name in SETS}
    tuned = [
        max((g[c] for (m, _), g in found.items() if m == method and c in g), key=lambda each: float(np.mean(each)))
        for c in columns
    ]
    return [
        [f"{method}, default ({key(DEFAULTS[method])})", *(_interval(default.get(c)) for c in columns)],
        [f"{method}, chosen on the other sets", *(_mean(found[method, without[c[0]]].get(c)) for c in columns)],
        [f"{method}, the paper's form ({key(PAPER[method])})", *(_mean(paper.get(c)) for c in columns)],
        [f"{method}, best candidate of the column", *(_mean(each) for each in tuned)],
    ]


def _conclusions(found: Gains) -> list[str]:
    """The choice of the rule, and the sets on which the default is worse."""
    said = []
    for method in DEFAULTS:
        if not any(m == method for m, _ in found):
            continue
        others = {name: best(method, found, name) for name in SETS}
        named = [
            f"`{s}` without {', '.join(n for n, o in others.items() if o == s)}" for s in dict.fromkeys(others.values())
        ]
        own = found.get((method, key(DEFAULTS[method])), {})
        behind = _behind(own, spread(found))
        said.append(
            f"**{method}**: on all sets the rule chooses `{best(method, found)}`; with one left out, {'; '.join(named)}. "
            f"The default is behind cross entropy by more than a standard error {'on ' + ', '.join(behind) if behind else 'nowhere'}."
        )
    return ["\n\n".join(said)]


def _mean(each: Sequence[float] | None) -> str:
    return "" if each is None else f"{np.mean(each):+.1f}"


def _interval(each: Sequence[float] | None) -> str:
    if each is None or len(each) < 3:
        return _mean(each)
    return "{:+.1f} ({:+.1f} to {:+.1f})".format(*paired(each))
