"""`python -m experiments reproduce`: a table of the paper, trained again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from compensate.cli import options as o
from compensate.cli.terminal import console
from compensate.errors import InputError, nearest

if TYPE_CHECKING:
    from compensate.training.config import Config
    from experiments.tables import Published


def reproduce(
    table: Annotated[
        str | None,
        typer.Argument(help="Name of the table, e.g. table-9-sst2 or 9 [default: list all].", show_default=False),
    ] = None,
    scale: Annotated[
        str, typer.Option(help="Scale: paper (GPUs, days), small (two cores, hours) or tiny (a test).")
    ] = "small",
    seeds: Annotated[int, typer.Option(help="Seeds per cell; one gives no interval.", min=1)] = 3,
    extra: Annotated[
        str | None,
        o.option("Methods beyond the rows of the table, separated by commas, e.g. elr or logcomp-default."),
    ] = None,
    defaults: Annotated[
        bool, typer.Option("--defaults", help="Skip the hyper-parameter search; use the defaults of each method.")
    ] = False,
    only: Annotated[
        str | None, o.option("Rows to train or show, separated by commas, e.g. base,logcomp [default: all].")
    ] = None,
    columns: Annotated[
        str | None,
        o.option("Columns to train or show, separated by commas, e.g. 'random 30 %' or resnet44 [default: all]."),
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder of finished runs.")] = Path("results/reproduce"),
    runs: Annotated[Path, typer.Option(help="Folder of unfinished runs.")] = Path("runs/reproduce"),
    data_dir: o.DataDir = None,
    workers: o.Workers = None,
    backend: Annotated[str, typer.Option(help="Backend: local (this machine) or ray (a cluster).")] = "local",
    show: Annotated[bool, typer.Option("--show", help="Print the stored results without training.")] = False,
    out: Annotated[Path | None, o.option("Write the table to this .md, .csv or .tex file.")] = None,
) -> None:
    """Train a table of the paper again and compare the figures.

    **Example:** `python -m experiments reproduce table-9-sst2 --scale small`

    First each method's hyper-parameters are chosen on held-out noisy labels, with the same number of trials for all; then
    every cell is trained over the seeds. The same command resumes and reads finished runs. Without a name it lists all tables,
    including additional ones.
    """
    from compensate.training.workers import BACKENDS
    from experiments import comparing
    from experiments.grid import Place, choose, run
    from experiments.protocols import SCALES, cells, method_of, trials
    from experiments.tables import every, find_table

    if table is None:
        for known in every().values():
            console.print(f"{known.id:36s} {known.caption}", soft_wrap=True)
        return
    if scale not in SCALES:
        raise InputError(f'scale is "{scale}"; {nearest(scale, SCALES)}')
    if backend not in BACKENDS:
        raise InputError(f'backend is "{backend}"; choose local or ray.')
    wanted = find_table(table)
    place = Place(results, runs, data_dir, workers, backend)
    more = _names(extra)
    methods = list(dict.fromkeys(method_of(cell.row) for cell in cells(wanted, scale, {}, 1, more)))
    chosen: dict[str, Any] = {}
    failed: list[tuple[Config, str]] = []
    if not defaults:
        if show:
            chosen = comparing.stored_choice(place.chosen_path(wanted, scale))
        else:
            total = sum(len(trials(wanted, scale, m)) for m in methods)
            with progress_bar("choosing") as bar:
                task = bar.add_task("", total=total)
                chosen = choose(
                    wanted, scale, methods, place, lambda: bar.advance(task), lambda *one: failed.append(one)
                )
    grid = cells(wanted, scale, chosen, seeds, more)
    archive = place.archive(wanted.dataset, scale)
    rows, heads = _rows(only, [cell.row for cell in grid]), _heads(columns, wanted)
    todo = [c for c in grid if (not rows or c.row in rows) and (not heads or wanted.column_name(c.column) in heads)]
    if not show:
        with progress_bar("training") as bar:
            known_runs = sum(archive.get(cell.config.id) is not None for cell in todo)
            task = bar.add_task("", total=len(todo), completed=known_runs)
            failed += run(todo, archive, place, lambda: bar.advance(task))
    found = comparing.Comparison.of(wanted, todo if show else grid, archive)
    if show and not found.columns:
        raise InputError(f"no run of {wanted.id} at the scale {scale} is stored in {results}. Train it without --show.")
    if found.columns:
        console.print(comparing.shown(found))
    for config, message in failed:
        console.print(f"[red]{config.method}, {config.noise}, seed {config.seed}:[/red] {message}")
    if out is not None:
        comparing.write(found, out)
        console.print(f"written:  {out}", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def _names(text: str | None) -> list[str]:
    return [name.strip().replace("_", "-") for name in (text or "").split(",") if name.strip()]


def _rows(text: str | None, known: list[str]) -> list[str]:
    """The rows that are asked for."""
    rows = _names(text)
    for row in rows:
        if row not in known:
            raise InputError(f'the table has no row "{row}"; {nearest(row, dict.fromkeys(known))}')
    return rows


def _heads(text: str | None, table: Published) -> list[str]:
    """The heads of the columns that are asked for."""
    known = [table.column_name(c) for c in range(len(table.columns))]
    heads = [name.strip() for name in (text or "").split(",") if name.strip()]
    for head in heads:
        if head not in known:
            raise InputError(f'{table.id} has no column "{head}"; {nearest(head, known)}')
    return heads


def progress_bar(what: str) -> Progress:
    return Progress(
        TextColumn(what), BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("runs"), TimeElapsedColumn(),
        TimeRemainingColumn(), console=console,
    )  # fmt: skip
