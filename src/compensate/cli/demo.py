"""`compensate demo`: find wrong labels in a real data set."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from compensate._version import __version__
from compensate.cli.terminal import console, progress_bar
from compensate.extras import installed
from compensate.files import make_folder, write_atomically

if TYPE_CHECKING:
    from compensate.demo import Job, Outcome, Setting


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
    shown = Table(
        "", "accuracy,\nlast epoch", "accuracy,\nbest epoch", "errors: avg.\nprecision", "flagged:\nprecision", "flagged:\nrecall", "suggested\nis right",
        title=f"percent, mean ± deviation of {seeds} seeds", title_justify="left", box=None, pad_edge=False,
    )  # fmt: skip
    for method, row in table.items():
        shown.add_row(method, *(f"{100 * mean:.1f} ±{100 * deviation:.1f}" for mean, deviation in row.values()))
    console.print(shown)
    best = max(
        (o for o in outcomes if o.job.method != "base"), key=lambda o: (-o.job.seed, o.figures["average_precision"])
    )
    hits = sum(f and c for f, c in zip(best.flagged, best.changed, strict=True))
    console.print(
        f"\n{best.job.method} flags {sum(best.flagged)} labels in the first run: {hits} of them are among the {sum(best.changed)} "
        "that were made wrong"
    )
    make_folder(out)
    stored = {
        "version": __version__,
        "setting": asdict(setting),
        "summary": table,
        "runs": [{**o.job._asdict(), "accuracy": o.accuracy, "figures": o.figures} for o in outcomes],
    }
    write_atomically(out / "results.json", json.dumps(stored, indent=1).encode())
    if installed("matplotlib"):
        console.print(f"the most suspect ones:  {picture(best, out / 'suspects.png')}", soft_wrap=True, markup=False)
    console.print(f"figures:  {out / 'results.json'}", soft_wrap=True, markup=False)
    console.print("in your own loop:  criterion = compensate.methods.mixcomp(num_samples=len(train))", soft_wrap=True)
    with console.status("auditing the first run's labels"):
        audited = audit_digits(out / "report.html", setting)
    console.print(
        f"\nthe same labels audited: about {audited.noise_rate.value:.0%} look wrong, {int(audited.mask.sum())} are flagged. "
        "Open the page to review them:",
        soft_wrap=True,
    )
    console.print(f"  {out / 'report.html'}", soft_wrap=True, markup=False)
    console.print("with a file of yours:  compensate audit FILE")


def train_jobs(title: str, jobs: list[Job], setting: Setting) -> list[Outcome]:
    """Trains jobs in worker processes behind a progress bar; outcomes come in the order of the jobs."""
    from compensate.demo import lost_job, run_job
    from compensate.training.workers import side_by_side

    outcomes: list[Outcome] = []
    with progress_bar(title, "runs") as progress:
        task = progress.add_task(title, total=len(jobs))
        for outcome in side_by_side(run_job, [(job, setting) for job in jobs], None, lost=lost_job):
            outcomes.append(outcome)
            progress.advance(task)
    return sorted(outcomes, key=lambda o: jobs.index(o.job))
