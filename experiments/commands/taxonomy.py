"""`python -m experiments taxonomy`: the cells of the taxonomy, on the terminal or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compensate.cli.terminal import console


def taxonomy(
    html: Annotated[
        Path | None, typer.Option(help="Write the grid as an interactive page.", show_default=False)
    ] = None,
) -> None:
    """Print the grid of the taxonomy with the published methods of each cell, or write it as a page."""
    from experiments.taxonomy import print_grid, write_grid_page

    if html is None:
        print_grid(console)
    else:
        console.print(f"{write_grid_page(html)} cells run: {html}")
