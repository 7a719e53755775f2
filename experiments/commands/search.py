"""`python -m experiments search`: which cell of the taxonomy is best on this data?"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from compensate.cli import options as o
from compensate.cli.terminal import console, progress_bar


@o.with_shared
def search(
    shared: o.TrainingOptions,
    *,
    trials: Annotated[int, typer.Option(help="Cells to try, earlier trials of the same search included.", min=1)] = 60,
    finalists: Annotated[int, typer.Option(help="Cells to compare with the tuned peers.", min=1)] = 3,
    seeds: Annotated[int, typer.Option(help="Seeds of that comparison.", min=1)] = 3,
    peer_trials: Annotated[int, typer.Option(help="Settings to try of each peer.", min=1)] = 10,
    targets: Annotated[
        str | None, o.option("Targets to search, e.g. logit,label [default: all but structure].")
    ] = None,
    directions: Annotated[str | None, o.option("Directions to search, e.g. positive.")] = None,
    inferences: Annotated[
        str | None, o.option("Ways of inference to search [default: all but meta, which needs clean data].")
    ] = None,
    granularities: Annotated[str | None, o.option("Granularities to search, e.g. sample,category.")] = None,
    workers: o.Workers = None,
    out: Annotated[Path | None, o.option("Folder of the search [default: runs/search-NAME].")] = None,
) -> None:
    """Search the taxonomy for the best cell, judged on noisy validation labels, and compare it with tuned peers.

    **Example:** `python -m experiments search digits --noise symmetric:0.4 --trials 60 --seeds 3`

    Trials that fall behind are stopped early. The best cells and base, gce, elr and sop, each tuned, are then trained on fresh seeds; differences
    come with 95 % intervals. The same command continues the search.
    """
    asked = shared.build(shared.merged())
    from experiments.exploration import Budget, Part, explore, searched

    axes = {"targets": targets, "directions": directions, "inferences": inferences, "granularities": granularities}
    part = Part(**{axis: tuple(word.strip() for word in words.split(",")) for axis, words in axes.items() if words})
    name = "-".join(filter(None, ("search", asked.replace(method="base", hyper={}).name, part.name)))
    folder = out if out is not None else Path("runs") / name
    o.announce(searched(asked, part), shared.data_dir)
    with progress_bar("searching", "steps") as bar:
        tasks: dict[str, Any] = {}

        def done(what: str, number: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=number)

        found = explore(
            asked, folder, part=part, budget=Budget(trials, finalists, seeds, peer_trials), workers=workers,
            data_dir=shared.data_dir, done=done,
        )  # fmt: skip
    console.print(_trials(found))
    console.print(_comparison(found))
    console.print(f"everything: {folder / 'search.json'}", soft_wrap=True)
    for row in found["failed"]:
        console.print(f"[red]{row['method']}, seed {row['seed']}:[/red] {row['reason']}")
    if found["failed"]:
        raise typer.Exit(1)


def _trials(found: dict[str, Any]) -> Table:
    ended = [row for row in found["trials"] if row["validation"] is not None]
    stopped = len(found["trials"]) - len(ended)
    table = Table(
        "cell", "numbers", "validation", box=None, pad_edge=False,
        title=f"{len(found['trials'])} trials in {found['part']['cells']} cells, {stopped} of them stopped early or refused",
        title_justify="left",
    )  # fmt: skip
    for row in ended[:8]:
        numbers = ", ".join(f"{k}={v:.3g}" for k, v in row["hyper"].items())
        table.add_row(row["cell"], numbers, f"{row['validation']:.4f}")
    return table


def _comparison(found: dict[str, Any]) -> Table:
    peers = list(found["tables"])
    table = Table(
        "last epoch, %", "mean", *(f"minus {peer} (95 %)" for peer in peers), box=None, pad_edge=False,
        title=f"\ntest accuracy, {found['budget']['seeds']} fresh seed{'s' * (found['budget']['seeds'] > 1)}", title_justify="left",
    )  # fmt: skip
    table.columns[0].overflow = "fold"  # a cell's name is its four words: none of them may be cut off
    by_peer = {peer: {row["method"]: row for row in rows} for peer, rows in found["tables"].items()}
    for method, row in by_peer[peers[0]].items():
        mean, std = (math.nan if v is None else 100 * v for v in row["last"])
        gaps = [_gap(by_peer[peer][method]["difference"]) for peer in peers]
        table.add_row(method, f"{mean:.1f}" + ("" if math.isnan(std) else f" ± {std:.1f}"), *gaps)
    return table


def _gap(difference: list[float] | None) -> str:
    if difference is None:
        return ""
    mean, low, high = difference
    return f"{100 * mean:+.1f}" + ("" if low is None else f" ({100 * low:+.1f}, {100 * high:+.1f})")
