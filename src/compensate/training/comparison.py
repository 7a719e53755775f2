"""Methods compared over seeds, with paired intervals and a plot, and hyper-parameter search with Optuna."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compensate._version import __version__
from compensate.errors import InputError, NotFinite
from compensate.extras import html_table, require
from compensate.files import make_folder, write_atomically
from compensate.methods.composition import find
from compensate.methods.registry import Choice, PaperData, Preset, Space
from compensate.training.config import Config
from compensate.training.fitting import fit
from compensate.training.preparation import prepare_run
from compensate.training.run import Run
from compensate.training.workers import LOST, side_by_side

OnEpoch = Callable[[Mapping[str, float]], None] | None

LEVEL = 0.95
"""Level of confidence intervals."""

FEWEST = 3
"""The fewest seeds of an interval in the table: two may agree by chance, and their interval is then narrow or empty."""

LAST = 5
"""The score of a trial is the mean over as many last epochs, which varies less than a single epoch."""


@dataclass(frozen=True)
class Row:
    """A method in the table.

    Attributes:
        count: number of seeds.
        last, best: mean and standard deviation of the test accuracy, after the last epoch and after the epoch with the highest
            validation accuracy.
        difference: `last` minus that of the baseline, paired by seed: mean and confidence interval (NaN if there is none);
            None for the baseline.
        note: why there is no interval.
    """

    method: str
    count: int
    last: tuple[float, float]
    best: tuple[float, float]
    difference: tuple[float, float, float] | None
    note: str = ""


class Comparison(list[Row]):
    """The rows of a comparison; a notebook shows them as a table."""

    HEAD = ("method", "seeds", "last epoch (%)", "best epoch (%)", "last, minus the baseline (95 %)")

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """The rows as texts: percent with standard deviations, and points with intervals."""

        def spread(mean: float, deviation: float) -> str:
            return f"{100 * mean:.2f}" + ("" if math.isnan(deviation) else f" ± {100 * deviation:.2f}")

        def gap(row: Row) -> str:
            mean, low, high = (100 * value for value in row.difference or (0.0, 0.0, 0.0))
            return "" if row.difference is None else f"{mean:+.2f} ({row.note or f'{low:+.2f} to {high:+.2f}'})"

        return [(r.method, str(r.count), spread(*r.last), spread(*r.best), gap(r)) for r in self]

    def _repr_html_(self) -> str:
        return html_table(self.HEAD, self.cells)

    def write(self, folder: Path) -> None:
        """Writes the table as ``comparison.csv``, ``comparison.md`` and ``comparison.tex`` (with booktabs)."""
        lines = [self.HEAD, *self.cells]
        quoted = io.StringIO()
        csv.writer(quoted, lineterminator="\n").writerows(lines)
        markdown = [f"| {' | '.join(line)} |" for line in lines]
        markdown.insert(1, "|" + " --- |" * len(self.HEAD))
        rules = {"±": r"$\pm$", "%": r"\%", "_": r"\_"}
        latex = [" & ".join(re.sub("[±%_]", lambda m: rules[m[0]], cell) for cell in line) + r" \\" for line in lines]
        above, below = [r"\begin{tabular}{lrrrr}", r"\toprule"], [r"\bottomrule", r"\end{tabular}"]
        latex = [*above, latex[0], r"\midrule", *latex[1:], *below]
        for ending, text in ("csv", quoted.getvalue()), ("md", "\n".join(markdown)), ("tex", "\n".join(latex)):
            write_atomically(folder / f"comparison.{ending}", text.strip().encode() + b"\n")


def plan(config: Config, methods: Mapping[str, Mapping[str, Any]], seeds: int) -> list[Config]:
    """The runs of a comparison. All methods of a seed share split, noise, clean samples, initial weights and order."""
    needs = set().union(*(find(name).needs for name in methods))
    clean = config.clean if config.clean is not None else 0.02 if "clean" in needs else 0.0
    return [
        config.replace(method=name, hyper=dict(hyper), seed=config.seed + k, clean=clean)
        for k in range(seeds)
        for name, hyper in methods.items()
    ]


def finished_run(config: Config, folder: Path, data_dir: Path | None, on_epoch: OnEpoch = None) -> dict[str, Any]:
    """The stored result of a run in its own folder below `folder`; it is trained or resumed first if it has not finished."""
    run = Run(folder / config.name)
    if run.result is None:
        fit(config, data_dir=data_dir, folder=run.path, resume=True, on_epoch=on_epoch)
    stored = run.result
    assert stored is not None
    if stored["id"] != config.id:
        raise InputError(f"{run.path} holds another run of the same name; delete it.")
    return stored


def attempt(config: Config, folder: Path, data_dir: Path | None) -> tuple[Config, dict[str, Any] | str]:
    """A run and its stored result, or the message of its `InputError`, which does not stop the other runs."""
    try:
        return config, finished_run(config, folder, data_dir)
    except InputError as error:
        return config, str(error)


def lost_run(config: Config, folder: Path, data_dir: Path | None) -> tuple[Config, dict[str, Any] | str]:
    """The outcome of a run whose process was killed repeatedly."""
    return config, LOST


def paired(differences: Sequence[float], level: float = LEVEL) -> tuple[float, float, float]:
    r"""Mean of the differences and its t interval.

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
    """The rows of the table, from the stored results of all runs."""

    def spread(values: Sequence[float]) -> tuple[float, float]:
        return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.nan

    results = {m: {r["config"]["seed"]: r["result"] for r in runs if r["config"]["method"] == m} for m in methods}
    rows = Comparison()
    for method, by_seed in results.items():
        if not by_seed:
            continue
        shared = sorted(by_seed.keys() & results[baseline].keys())
        differences = [_accuracy(by_seed[s]["last"]) - _accuracy(results[baseline][s]["last"]) for s in shared]
        difference, note = None if method == baseline or not shared else paired(differences), ""
        if difference is not None and (len(shared) < FEWEST or np.ptp(differences) < 1e-9):
            difference = (difference[0], math.nan, math.nan)
            seeds = f"{len(shared)} seed{'s' * (len(shared) > 1)}"
            note = f"{'equal in ' * (len(shared) >= FEWEST)}{seeds}: no interval"
        last, best = (spread([_accuracy(r[epoch]) for r in by_seed.values()]) for epoch in ("last", "best"))
        rows.append(Row(method, len(by_seed), last, best, difference, note))
    return rows


def _accuracy(row: Mapping[str, float]) -> float:
    return row.get("test_accuracy", row.get("val_accuracy", math.nan))


def store(folder: Path, config: Config, runs: Sequence[Mapping[str, Any]], rows: Comparison, baseline: str) -> Path:
    """Writes the results of all runs and the table to ``comparison.json``, and the table alone as CSV, Markdown and LaTeX."""
    own = ("method", "hyper", "seed")
    content = {
        "version": __version__,
        "common": {k: v for k, v in config.json.items() if k not in own},
        "baseline": baseline, "level": LEVEL,
        "table": [vars(row) for row in rows],
        "runs": [
            {"id": r["id"], **{k: r["config"][k] for k in own}, "versions": r["versions"], **r["result"]}
            for r in sorted(runs, key=lambda r: (r["config"]["method"], r["config"]["seed"]))
        ],
    }  # fmt: skip
    path = folder / "comparison.json"
    write_atomically(path, json.dumps(json_safe(content), indent=1).encode())
    rows.write(folder)
    return path


def json_safe(value: Any) -> Any:
    """The value with null for NaN and infinity, which JSON does not have."""
    return json.loads(json.dumps(value), parse_constant=lambda _: None)


def curves(folder: Path, configs: Sequence[Config]) -> dict[str, list[list[float]]]:
    """Test accuracy after each epoch, a list for each seed, by method."""
    by_method: dict[str, list[list[float]]] = {}
    for config in configs:
        if rows := Run(folder / config.name).history:
            by_method.setdefault(config.method, []).append([_accuracy(row) for row in rows])
    return by_method


COLORS = ("#555555", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F")
"""Colors for readers with color blindness; further methods use other line styles."""


def plot(by_method: Mapping[str, Sequence[Sequence[float]]], path: Path, title: str = "") -> Path:
    """Plots accuracy over the epochs, mean and deviation of each method, and the last epoch of every seed."""
    made = require("matplotlib.figure", "the picture of a comparison", "plots")
    figure = made.Figure(figsize=(9, max(3.8, 0.8 + 0.24 * len(by_method))), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for place, runs in enumerate(by_method.values()):
        color, style = COLORS[place % len(COLORS)], ("-", "--", ":")[place // len(COLORS) % 3]
        length = min(map(len, runs))
        values, epochs = np.array([run[:length] for run in runs]), np.arange(1, length + 1)
        mean, spread = values.mean(0), values.std(0)
        left.plot(epochs, mean, style, color=color, marker="o" if length == 1 else None)
        left.fill_between(epochs, mean - spread, mean + spread, color=color, alpha=0.15, linewidth=0)
        last = [run[-1] for run in runs]
        right.plot(last, [place] * len(last), "o", color=color, alpha=0.5, markersize=5)
        right.plot([np.mean(last)] * 2, [place - 0.3, place + 0.3], style, color=color, linewidth=2)
    left.set(xlabel="epoch", ylabel="test accuracy")
    # The tick labels carry the colors: a legend of twenty lines would hide the curves.
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


def open_study(folder: Path, name: str, seed: int, pruner: Any = None) -> Any:
    """The Optuna study in this folder, in a journal file that several processes share."""
    optuna = require("optuna", "tuning", "tune")
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    make_folder(folder)
    file = str(folder / "study.log")
    return optuna.create_study(
        study_name=name, direction="maximize", load_if_exists=True,
        storage=JournalStorage(JournalFileBackend(file, lock_obj=JournalFileOpenLock(file))),
        sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=8, constant_liar=True),
        pruner=optuna.pruners.NopPruner() if pruner is None else pruner,
    )  # fmt: skip


def trial_score(config: Config, folder: Path, data_dir: Path | None, seeds: int, on_epoch: OnEpoch = None) -> float:
    """The mean validation accuracy over the last epochs and all seeds."""
    values = []
    for run in (config.replace(seed=config.seed + k) for k in range(seeds)):
        finished_run(run, folder / "runs", data_dir, on_epoch)
        last = Run(folder / "runs" / run.name).history[-LAST:]
        values.append(float(np.mean([row["val_accuracy"] for row in last])))
    return float(np.mean(values))


def search_space(
    config: Config, folder: Path, *, preset: Preset = "default", trials: int = 20, seeds: int = 1,
    workers: int | None = None, data_dir: Path | None = None, done: Callable[[int], None] = lambda count: None,
) -> dict[str, Any]:  # fmt: skip
    """Searches, or continues an interrupted search, until `trials` have finished; returns the best and all of them."""
    prepared = prepare_run(config, data_dir=data_dir)
    if prepared.validation is None or not len(prepared.validation):
        raise InputError("tuning needs a validation part; hold out a share of the noisy data: validation=0.1.")
    texts: PaperData = "sst2" if "sst" in Path(config.data).name.lower() else "imdb"
    space = find(config.method).space(preset, "image" if getattr(prepared.train.x, "ndim", 0) == 4 else texts)
    batch_size = prepared.config.batch_size or 1
    name = f"{config.method}-{preset}-{config.replace(hyper={}).id[:8]}-{seeds}"
    study = open_study(folder, name, config.seed)
    restart_abandoned(study)
    tried, missing = len(study.trials), max(trials - len(_complete(study)), 0)
    # Each trial seeds its sampler with its number, so workers and later sessions draw different values.
    jobs = [(config, folder, name, space, preset, batch_size, seeds, data_dir, tried + k) for k in range(missing)]
    lost = 0
    for finished in side_by_side(_trial, jobs, workers, lost=lambda *job: False):
        lost += not finished
        done(len(_complete(study)))
    rows = [
        {"number": t.number, "hyper": space.hyper(t.params, preset, batch_size), "validation": t.value}
        for t in _complete(study)
    ]
    if not rows:
        raise InputError(f"no trial has finished: {LOST}")
    rows.sort(key=lambda row: (-row["validation"], row["number"]))
    known = {"method": config.method, "preset": preset, "seeds": seeds}
    return known | {"best": rows[0], "trials": rows, "lost": lost}


def _trial(
    config: Config, folder: Path, name: str, space: Space, preset: Preset, batch_size: int, seeds: int,
    data_dir: Path | None, number: int,
) -> bool:  # fmt: skip
    from optuna.trial import TrialState

    study = open_study(folder, name, config.seed + 1000 * (number + 1))
    restart_abandoned(study, number)  # a killed process may have left a running trial of this number
    trial = study.ask()
    trial.set_user_attr("job", number)
    values = {
        key: trial.suggest_categorical(key, list(span.values))
        if isinstance(span, Choice)
        else trial.suggest_float(key, span.low, span.high, log=span.log)
        for key, span in space.ranges.items()
    }
    hyper = {**config.hyper, **space.hyper(values, preset, batch_size)}
    try:
        study.tell(trial, trial_score(config.replace(hyper=hyper), folder, data_dir, seeds))
    except NotFinite:
        study.tell(trial, 0.0)  # divergence gets the lowest score, and the search continues
    except InputError:
        study.tell(trial, state=TrialState.FAIL)
        raise
    return True


def restart_abandoned(study: Any, job: int | None = None) -> None:
    """Marks running trials whose process has ended (all, or only of one job) as failed, and queues their settings first."""
    from optuna.trial import TrialState

    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if job is None or trial.user_attrs.get("job") == job:
            study.tell(trial.number, state=TrialState.FAIL)
            if trial.params:
                study.enqueue_trial(trial.params)


def _complete(study: Any) -> list[Any]:
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]
