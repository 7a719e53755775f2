"""`compensate compare` and `compensate tune`: methods over seeds, and the search for hyper-parameters."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.table import Table

from compensate.cli import options as o
from compensate.cli.options import announce
from compensate.cli.terminal import console, progress_bar
from compensate.cli.train import training_command
from compensate.errors import InputError
from compensate.extras import installed
from compensate.files import make_folder, write_atomically

if TYPE_CHECKING:
    from compensate.methods.registry import Preset
    from compensate.training.comparison import Row


@o.with_shared
def compare(
    shared: o.TrainingOptions,
    *,
    methods: Annotated[str | None, o.option("Methods, separated by commas [default: base,logcomp,mixcomp].")] = None,
    hyper: Annotated[
        list[str] | None, o.option("Hyper-parameter of a method, e.g. logcomp.lam=0.1; may be repeated.")
    ] = None,
    seeds: Annotated[int | None, o.option("Number of seeds [default: 3].", min=1)] = None,
    baseline: Annotated[str | None, o.option("Baseline of the differences [default: the first method].")] = None,
    workers: o.Workers = None,
    out: Annotated[Path | None, o.option("Folder of the comparison [default: runs/compare-ID].")] = None,
) -> None:
    """Compare methods over several seeds, in worker processes with one thread each.

    **Example:** `compensate compare digits --noise pair:0.3 --methods base,logcomp,mixcomp --seeds 3`

    The same command resumes: finished runs are read, unfinished ones continue from their checkpoints.
    """
    from compensate.methods import find
    from compensate.training import Run, comparison
    from compensate.training.workers import side_by_side

    merged = shared.merged()
    from_file = {name: merged.pop(name, None) for name in ("methods", "seeds", "baseline")}
    hypers = _methods(methods, from_file["methods"], o.nested(o.pairs(hyper, "--hyper")))
    count = seeds or int(from_file["seeds"] or 3)
    first = find(baseline or from_file["baseline"] or next(iter(hypers))).name
    _require_compared(first, hypers)
    common = shared.build(merged)
    configs = comparison.plan(common, hypers, count)
    digest = hashlib.sha256(json.dumps([c.id for c in configs]).encode()).hexdigest()[:8]
    folder = out if out is not None else Path("runs") / f"compare-{digest}"
    make_folder(folder / "runs")
    announce(configs[0], shared.data_dir)

    runs = [stored for c in configs if (stored := Run(folder / "runs" / c.name).result) is not None]
    failed = []
    with progress_bar("training", "runs") as bar:
        task = bar.add_task("", total=len(configs), completed=len(runs))
        finished = {stored["id"] for stored in runs}
        jobs = [(c, folder / "runs", shared.data_dir) for c in configs if c.id not in finished]
        for config, outcome in side_by_side(comparison.attempt, jobs, workers, lost=comparison.lost_run):
            bar.advance(task)
            if isinstance(outcome, str):
                failed.append((config, outcome))
            else:
                runs.append(outcome)
    for config, message in failed:
        console.print(f"[red]{config.method}, seed {config.seed}:[/red] {message}")
    if not any(r["config"]["method"] == first for r in runs):
        raise InputError(f"no run of the baseline {first} has finished, so nothing can be compared with it.")
    rows = comparison.comparison_table(runs, list(hypers), first)
    console.print(console_table(rows, first))
    table = comparison.store(folder, common, runs, rows, first)
    title = f"{Path(common.data).name}, noise {common.noise}, {count} seed{'s' * (count > 1)}"
    console.print(f"all runs:  {table}", soft_wrap=True)
    if installed("matplotlib"):
        picture = comparison.plot(comparison.curves(folder / "runs", configs), folder / "comparison.png", title)
        console.print(f"picture:   {picture}", soft_wrap=True)
    else:
        console.print('a picture of the curves needs matplotlib: pip install "compensate[plots]"', markup=False)
    if failed:
        raise typer.Exit(1)


def console_table(rows: Sequence[Row], baseline: str) -> Table:
    """The table for the terminal: test accuracy in percent."""
    heads = ("method", "last epoch", "best epoch", f"last, minus {baseline.replace('_', '-')} (95 %)")
    table = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        if row.difference is None:
            gap = "" if row.method == baseline else "no shared seed"
        else:
            mean, low, high = (100 * v for v in row.difference)
            gap = f"{mean:+.2f}" + ("" if math.isnan(low) else f"  ({low:+.2f} to {high:+.2f})")
        last, best = (
            f"{100 * m:.2f}" + ("" if math.isnan(d) else f" ± {100 * d:.2f}") for m, d in (row.last, row.best)
        )
        table.add_row(row.method.replace("_", "-"), last, best, gap)
    return table


def _methods(names: str | None, from_file: Any, hyper: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each method with its hyper-parameters, from the command line and the file's ``methods`` list or tables."""
    from compensate.methods import find

    tables = from_file if isinstance(from_file, Mapping) else {name: {} for name in from_file or ()}
    known = {find(name).name: dict(values) for name, values in tables.items()}
    if names is not None:
        named = [find(name.strip()).name for name in names.split(",") if name.strip()]
        known = {name: known.get(name, {}) for name in named}
    known = known or {"base": {}, "logcomp": {}, "mixcomp": {}}
    for name, values in hyper.items():
        if not isinstance(values, Mapping):
            raise InputError(
                f"--hyper {name}={values} does not say of which method; write for example logcomp.{name}={values}."
            )
        method = find(name).name
        _require_compared(method, known)
        known[method].update(values)
    return known


def _require_compared(method: str, methods: Mapping[str, Any]) -> None:
    if method not in methods:
        raise InputError(f"{method} is not among the methods of the comparison: {', '.join(methods)}.")


@o.with_shared
def tune(
    shared: o.TrainingOptions,
    *,
    method: Annotated[str | None, o.option("Method; `compensate methods` lists all.")] = None,
    hyper: o.Hyper = None,
    preset: Annotated[str, typer.Option(help="Search space: default, paper or paper-per-sample.")] = "default",
    trials: Annotated[int, typer.Option(help="Number of trials, earlier ones of the same study included.", min=1)] = 20,
    seeds: Annotated[int, typer.Option(help="Seeds per trial.", min=1)] = 1,
    workers: o.Workers = None,
    out: Annotated[Path | None, o.option("Folder of the study [default: runs/tune-NAME].")] = None,
) -> None:
    """Search the hyper-parameters of a method, judged on held-out labels as noisy as the training labels.

    **Example:** `compensate tune digits --method logcomp --noise pair:0.3 --trials 20`

    The same command continues the study. The presets are the search spaces of the paper: its learning rate per batch
    (paper) or per sample (paper-per-sample).
    """
    merged = shared.merged(method=method, hyper=o.pairs(hyper, "--hyper"))
    config = shared.build(merged)
    if config.method == "base":
        raise InputError("base has nothing to tune; name a method: --method logcomp.")
    from compensate.training.tuning import search_space

    folder = out if out is not None else Path("runs") / f"tune-{config.name}"
    announce(config, shared.data_dir)
    with progress_bar("searching", "trials") as bar:
        task = bar.add_task("", total=trials)
        result = search_space(
            config, folder, preset=cast("Preset", preset), trials=trials, seeds=seeds, workers=workers, data_dir=shared.data_dir,
            done=lambda n: bar.update(task, completed=n),
        )  # fmt: skip
    write_atomically(folder / "tuning.json", (json.dumps(result, indent=1) + "\n").encode())
    best = result["best"]["hyper"]
    table = Table(*best, "validation accuracy", box=None, pad_edge=False)
    for row in result["trials"][:5]:
        values = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in row["hyper"].values())
        table.add_row(*values, f"{row['validation']:.4f}")
    if result["lost"]:
        console.print(f"[red]{result['lost']} trials were lost:[/red] their processes were ended from outside")
    console.print(f"{len(result['trials'])} trials, the best first; accuracy is on held-out noisy labels")
    console.print(table)
    line = training_command(
        merged,
        method=config.method.replace("_", "-"),
        hyper={**config.hyper, **best},
        data_dir=shared.data_dir and str(shared.data_dir),
    )
    console.print(f"use it:     {line}", soft_wrap=True, markup=False)
    console.print(f"all trials: {folder / 'tuning.json'}", soft_wrap=True)
    if result["lost"]:
        raise typer.Exit(1)
