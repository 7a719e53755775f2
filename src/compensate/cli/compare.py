"""`compensate compare`, `tune` and `demo`: methods over seeds, the search for hyper-parameters, and the demonstration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from compensate._version import __version__
from compensate.cli import options as o
from compensate.cli.terminal import console, plain_table, print_json, progress_bar, say
from compensate.cli.train import training_command
from compensate.errors import InputError
from compensate.extras import installed
from compensate.files import make_folder, write_atomically

if TYPE_CHECKING:
    from compensate.demo import Job, Outcome, Setting
    from compensate.methods.registry import Preset


@o.with_shared
def compare(
    shared: o.TrainingOptions,
    *,
    methods: Annotated[str | None, o.option("Methods, separated by commas [default: base,robust,logcomp,mixcomp].")] = None,
    hyper: Annotated[list[str] | None, o.option("Hyper-parameter of a method, e.g. logcomp.lam=0.1; may be repeated.")] = None,
    seeds: Annotated[int | None, o.option("Number of seeds [default: 3].", min=1)] = None,
    baseline: Annotated[str | None, o.option("Baseline of the differences [default: the first method].")] = None,
    workers: o.Workers = None,
    out: Annotated[Path | None, o.option("Folder of the comparison [default: runs/compare-ID].")] = None,
    json_: o.Json = False,
) -> None:  # fmt: skip
    """Compare methods over several seeds, in worker processes with one thread each.

    **Example:** `compensate compare digits --noise pair:0.3 --methods base,robust,elr --seeds 3`

    The same command resumes: finished runs are read, unfinished ones continue from their checkpoints.
    """
    merged = shared.merged()
    from_file = {name: merged.pop(name, None) for name in ("methods", "seeds", "baseline")}
    given = o.nested(o.pairs(hyper, "--hyper"))
    hypers, first = _methods(methods, from_file["methods"], given, baseline or from_file["baseline"])
    count = seeds or int(from_file["seeds"] or 3)
    from compensate.training import Run, comparison
    from compensate.training.workers import side_by_side

    common = shared.build(merged)
    configs = comparison.plan(common, hypers, count)
    digest = hashlib.sha256(json.dumps([c.id for c in configs]).encode()).hexdigest()[:8]
    folder = out if out is not None else Path("runs") / f"compare-{digest}"
    make_folder(folder / "runs")
    o.announce(configs[0], shared.data_dir)
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
    shown = plain_table("method", "last epoch", "best epoch", f"last, minus {first.replace('_', '-')} (95 %)")
    for method, _, last, best, gap in rows.cells:
        lone = "" if method == first else "no shared seed"
        shown.add_row(method.replace("_", "-"), last, best, gap or lone)
    console.print(shown)
    table = comparison.store(folder, common, runs, rows, first)
    say(f"all runs:  {table}", wrap=False)
    say(f"table:     {table.with_suffix('.csv')}, .md, .tex", wrap=False)
    if installed("matplotlib"):
        title = f"{Path(common.data).name}, noise {common.noise}, {count} seed{'s' * (count > 1)}"
        picture = comparison.plot(comparison.curves(folder / "runs", configs), folder / "comparison.png", title)
        say(f"picture:   {picture}", wrap=False)
    else:
        say('a picture of the curves needs matplotlib: pip install "compensate[plots]"')
    if json_:
        print_json({"folder": folder, **json.loads(table.read_bytes())})
    if failed:
        raise typer.Exit(1)


def _methods(
    names: str | None, from_file: Any, hyper: Mapping[str, Any], baseline: str | None
) -> tuple[dict[str, dict[str, Any]], str]:
    """Each method with its hyper-parameters, from the command line and the file's ``methods`` list or tables; and the baseline."""
    from compensate.methods import find

    tables = from_file if isinstance(from_file, Mapping) else {name: {} for name in from_file or ()}
    known = {find(name).name: dict(values) for name, values in tables.items()}
    if names is not None:
        named = [find(name.strip()).name for name in names.split(",") if name.strip()]
        known = {name: known.get(name, {}) for name in named}
    known = known or {"base": {}, "robust": {}, "logcomp": {}, "mixcomp": {}}

    def among(name: str) -> str:
        method = find(name).name
        if method not in known:
            raise InputError(f"{method} is not among the methods of the comparison: {', '.join(known)}.")
        return method

    for name, values in hyper.items():
        if not isinstance(values, Mapping):
            raise InputError(
                f"--hyper {name}={values} does not name a method; write for example logcomp.{name}={values}."
            )
        known[among(name)].update(values)
    return known, among(baseline or next(iter(known)))


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
    json_: o.Json = False,
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
    from compensate.training.comparison import search_space

    folder = out if out is not None else Path("runs") / f"tune-{config.name}"
    o.announce(config, shared.data_dir)
    with progress_bar("searching", "trials") as bar:
        task = bar.add_task("", total=trials)
        result = search_space(
            config, folder, preset=cast("Preset", preset), trials=trials, seeds=seeds, workers=workers, data_dir=shared.data_dir,
            done=lambda n: bar.update(task, completed=n),
        )  # fmt: skip
    write_atomically(folder / "tuning.json", (json.dumps(result, indent=1) + "\n").encode())
    best = result["best"]["hyper"]
    table = plain_table(*best, "validation accuracy")
    for row in result["trials"][:5]:
        values = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in row["hyper"].values())
        table.add_row(*values, f"{row['validation']:.4f}")
    if result["lost"]:
        console.print(f"[red]{result['lost']} trials were lost:[/red] their processes were killed")
    console.print(f"{len(result['trials'])} trials, the best first; accuracy is on held-out noisy labels")
    console.print(table)
    more = {"method": config.method.replace("_", "-"), "data_dir": shared.data_dir and str(shared.data_dir)}
    say(f"use it:     {training_command(merged, hyper={**config.hyper, **best}, **more)}", wrap=False)
    say(f"all trials: {folder / 'tuning.json'}", wrap=False)
    if json_:
        print_json({"folder": folder, **result})
    if result["lost"]:
        raise typer.Exit(1)


def demo(
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("runs/demo"),
    seeds: Annotated[int, typer.Option(help="Number of seeds.", min=1, max=20)] = 3,
    epochs: Annotated[int, typer.Option(help="Training epochs.", min=1)] = 60,
) -> None:
    """Find wrong labels in a real data set: digits, 20 % of them mislabeled on purpose.

    **Example:** `compensate demo`
    """
    from compensate.demo import DEMO_METHODS, Job, Setting, audit_digits, figures_by_method, picture

    setting = Setting(epochs=epochs)
    console.print(
        "digits: 1,797 real images of handwritten digits, 1,258 to train on; "
        f"{setting.rate:.0%} of their labels are now wrong"
    )
    jobs = [Job(method, seed, hyper) for seed in range(seeds) for method, hyper in DEMO_METHODS.items()]
    outcomes = train_jobs("training", jobs, setting)
    table = figures_by_method(outcomes)
    shown = plain_table(
        "", "accuracy,\nlast epoch", "accuracy,\nbest epoch", "errors: avg.\nprecision", "flagged:\nprecision", "flagged:\nrecall", "suggested\nis right",
        title=f"percent, mean ± deviation of {seeds} seeds", title_justify="left",
    )  # fmt: skip
    for method, row in table.items():
        shown.add_row(method, *(f"{100 * mean:.1f} ±{100 * deviation:.1f}" for mean, deviation in row.values()))
    console.print(shown)
    compensated = [run for run in outcomes if run.job.method != "base"]
    best = max(compensated, key=lambda run: (-run.job.seed, run.figures["average_precision"]))
    hits = sum(f and c for f, c in zip(best.flagged, best.changed, strict=True))
    console.print(
        f"\n{best.job.method} flags {sum(best.flagged)} labels in the first run: {hits} of them are among the {sum(best.changed)} "
        "that were made wrong"
    )
    make_folder(out)
    runs = [{**run.job._asdict(), "accuracy": run.accuracy, "figures": run.figures} for run in outcomes]
    stored = {"version": __version__, "setting": asdict(setting), "summary": table, "runs": runs}
    write_atomically(out / "results.json", json.dumps(stored, indent=1).encode())
    if installed("matplotlib"):
        say(f"the most suspect ones:  {picture(best, out / 'suspects.png')}", wrap=False)
    say(f"figures:  {out / 'results.json'}", wrap=False)
    say("in your own loop:  criterion = compensate.methods.robust(num_samples=len(train), num_classes=10)", wrap=False)
    with console.status("auditing the first run's labels"):
        audited = audit_digits(out / "report.html", setting)
    say(
        f"\nthe same labels audited: about {audited.noise_rate.value:.0%} look wrong, {int(audited.mask.sum())} are flagged. "
        "Open the page to review them:",
        wrap=False,
    )
    say(f"  {out / 'report.html'}", wrap=False)
    console.print("with a file of yours:  compensate audit FILE")


def train_jobs(title: str, jobs: list[Job], setting: Setting) -> list[Outcome]:
    """Trains jobs in worker processes behind a progress bar; outcomes come in the order of the jobs."""
    from compensate.demo import lost_job, run_job
    from compensate.training.workers import side_by_side

    with progress_bar(title, "runs") as bar:
        runs = side_by_side(run_job, [(job, setting) for job in jobs], None, lost=lost_job)
        return sorted(bar.track(runs, total=len(jobs)), key=lambda run: jobs.index(run.job))
