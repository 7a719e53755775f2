"""`python -m experiments graph`: wrong edges of a graph, found by structure compensation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compensate.cli.terminal import console


def graph(
    seeds: Annotated[int, typer.Option(help="Number of seeds.", min=2)] = 5,
    out: Annotated[Path, typer.Option(help="File of the results.")] = Path("results/graph/digits.json"),
) -> None:
    """Plant wrong edges in the neighbor graph of digits, find them by structure compensation, and store the result.

    **Example:** `python -m experiments graph --seeds 5`
    """
    from experiments.graph import run, section

    run(out, seeds)
    for part in section(out):
        console.print(part, soft_wrap=True)
