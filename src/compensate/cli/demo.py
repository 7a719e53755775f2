"""`compensate demo`: wrong labels found in a real data set."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from compensate._version import __version__
from compensate.cli.terminal import console, progress_bar
from compensate.extras import installed

if TYPE_CHECKING:
    from compensate.demo import Job, Outcome, Setting


def demo(
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("runs/demo"),
    seeds: Annotated[int, typer.Option(help="Number of seeds.", min=1, max=20)] = 3,
    epochs: Annotated[int, typer.Option(help="Training epochs.", min=1)] = 60,
    search: Annotated[
        bool, typer.Option("--search", help="Repeat the hyper-parameter search, on held-out noisy labels.")
    ] = False,
) -> None:
    """Find wrong labels in a real data set: digits, 20 % of them mislabeled on purpose.

    **Example:** `compensate demo`
    """
    if search:
        _search(out, epochs)
    else:
        _demo(out, seeds, epochs)


def _demo(out: Path, seeds: int, epochs: int) -> None:
    """Runs the demonstration, prints its table and writes `results.json`, `suspects.png` and `report.html` into `out`."""
    from compensate.demo import Setting, audit_digits, figures_by_method, jobs, picture
    from compensate.files import make_folder, write_atomically

    setting = Setting(epochs=epochs)
    console.print(
        "digits: 1,797 real images of handwritten digits, 1,258 to train on; "
        f"{setting.rate:.0%} of their labels are now wrong"
    )
    outcomes = _followed("training", jobs(seeds), setting)
    table = figures_by_method(outcomes)
    console.print(_table(table, seeds))
    best = max(
        (o for o in outcomes if o.job.method != "base"), key=lambda o: (-o.job.seed, o.figures["average_precision"])
    )
    found, flagged = sum(f and c for f, c in zip(best.flagged, best.changed, strict=True)), sum(best.flagged)
    console.print(
        f"\n{best.job.method} flags {flagged} labels in the first run: {found} of them are among the {sum(best.changed)} "
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


def _search(out: Path, epochs: int) -> None:
    """Runs the search, prints the best settings and writes every trial to `search.json` in `out`."""
    from compensate.demo import Setting, chosen, search_jobs
    from compensate.files import make_folder, write_atomically

    setting = Setting(epochs=epochs, held_out=0.2)
    found = chosen(_followed("searching", search_jobs(), setting), setting)
    make_folder(out)
    write_atomically(out / "search.json", json.dumps(found, indent=1).encode())
    for method, hyper in found["best"].items():
        console.print(f"{method}: {', '.join(f'{name}={value:g}' for name, value in hyper.items())}")
    console.print(f"all trials: {out / 'search.json'}", soft_wrap=True, markup=False)


def _followed(what: str, wanted: list[Job], setting: Setting) -> list[Outcome]:
    from compensate.demo import run_all

    outcomes: list[Outcome] = []
    with progress_bar(what, "runs") as progress:
        task = progress.add_task(what, total=len(wanted))
        for outcome in run_all(wanted, setting):
            outcomes.append(outcome)
            progress.advance(task)
    return sorted(outcomes, key=lambda o: wanted.index(o.job))


def _table(figures: dict[str, dict[str, tuple[float, float]]], seeds: int) -> Table:
    table = Table(
        "", "accuracy,\nlast epoch", "accuracy,\nbest epoch", "errors: avg.\nprecision", "flagged:\nprecision", "flagged:\nrecall", "suggested\nis right",
        title=f"percent, mean ± deviation of {seeds} seeds",
        title_justify="left", box=None, pad_edge=False,
    )  # fmt: skip
    for method, row in figures.items():
        table.add_row(method, *_cells(row.values()))
    return table


def _cells(values: Iterable[tuple[float, float]]) -> list[str]:
    return [f"{100 * mean:.1f} ±{100 * deviation:.1f}" for mean, deviation in values]
