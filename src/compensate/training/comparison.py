"""Methods compared over seeds: the runs, the table with paired intervals, and the plot."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compensate import markup
from compensate._version import __version__
from compensate.errors import InputError
from compensate.extras import require
from compensate.files import write_atomically
from compensate.methods.composition import find
from compensate.training.config import Config
from compensate.training.fitting import fit
from compensate.training.run import Run
from compensate.training.workers import LOST

LEVEL = 0.95
"""Level of confidence intervals."""


@dataclass(frozen=True)
class Row:
    """A method in the table.

    Attributes:
        method: its name.
        count: number of seeds.
        last, best: mean and standard deviation over the seeds of the test accuracy after the last epoch, and after the
            epoch with the best validation accuracy.
        difference: `last` minus that of the baseline, paired by seed: mean and confidence interval (NaN for a single seed);
            None for the baseline.
    """

    method: str
    count: int
    last: tuple[float, float]
    best: tuple[float, float]
    difference: tuple[float, float, float] | None


class Comparison(list[Row]):
    """The rows of a comparison; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        def cells(row: Row) -> tuple[str | int, ...]:
            last, best = (f"{m:.1%}" + ("" if math.isnan(d) else f" ± {d:.1%}") for m, d in (row.last, row.best))
            gap = ""
            if row.difference is not None:
                mean, low, high = (f"{100 * value:+.1f}" for value in row.difference)
                gap = mean if math.isnan(row.difference[1]) else f"{mean} ({low} to {high})"
            return row.method, row.count, last, best, gap

        return markup.table(("method", "seeds", "last", "best", "minus the baseline, in points"), map(cells, self))


def plan(config: Config, methods: Mapping[str, Mapping[str, Any]], seeds: int) -> list[Config]:
    """The runs of a comparison. All methods of a seed share split, noise, initial weights and order.

    If one method needs clean data, no method trains on those samples.
    """
    needs = set().union(*(find(name).needs for name in methods))
    clean = config.clean if config.clean is not None else 0.02 if "clean" in needs else 0.0
    return [
        config.replace(method=name, hyper=dict(hyper), seed=config.seed + k, clean=clean)
        for k in range(seeds)
        for name, hyper in methods.items()
    ]


def finished_run(
    config: Config, folder: Path, data_dir: Path | None, on_epoch: Callable[[Mapping[str, float]], None] | None = None
) -> dict[str, Any]:
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
        difference = None if method == baseline or not shared else paired(differences)
        last, best = (spread([_accuracy(r[epoch]) for r in by_seed.values()]) for epoch in ("last", "best"))
        rows.append(Row(method, len(by_seed), last, best, difference))
    return rows


def _accuracy(row: Mapping[str, float]) -> float:
    return row.get("test_accuracy", row.get("val_accuracy", math.nan))


def store(folder: Path, config: Config, runs: Sequence[Mapping[str, Any]], rows: Sequence[Row], baseline: str) -> Path:
    """Writes the results of all runs and the table to ``comparison.json``."""
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
    write_atomically(path, json.dumps(json_safe(content), indent=1).encode())
    return path


def json_safe(value: Any) -> Any:
    """The value with null for NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {k: json_safe(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def curves(folder: Path, configs: Sequence[Config]) -> dict[str, list[list[float]]]:
    """Test accuracy after each epoch, a list for each seed, by method."""
    by_method: dict[str, list[list[float]]] = {}
    for config in configs:
        path = folder / config.name / "metrics.jsonl"
        if path.is_file():
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            by_method.setdefault(config.method, []).append([_accuracy(row) for row in rows])
    return by_method


COLORS = ("#555555", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F")
"""Colors for readers with color blindness; further methods use other line styles."""


def plot(by_method: Mapping[str, Sequence[Sequence[float]]], path: Path, title: str = "") -> Path:
    """Plots accuracy over the epochs, mean and deviation of each method, and the last epoch of every seed."""
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
