"""`python -m experiments figure`: a figure of the paper, drawn again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compensate.cli import options as o
from compensate.cli.terminal import console


def figure(
    name: Annotated[
        str | None, typer.Argument(help="Name of the figure, e.g. taxonomy [default: list all].", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        o.option("Output file, .png, .pdf or .svg [default: figure-NAME.png].", "--out", "-o"),
    ] = None,
    data: Annotated[str | None, o.option("Data set, e.g. cifar10 [default: that of the figure].")] = None,
    encoder: Annotated[
        str | None,
        o.option("Train on the embeddings of this encoder, e.g. auto [default: on the samples themselves]."),
    ] = None,
    noise: o.Noise = None,
    seed: o.Seed = None,
    set_: o.Set = None,
    data_dir: o.DataDir = None,
    results: Annotated[
        Path, typer.Option(help="Folder of the runs that `python -m experiments reproduce` stored.")
    ] = Path("results/reproduce"),
    runs: Annotated[Path, typer.Option(help="Folder of the runs; finished ones are reused.")] = Path("runs/figures"),
    markdown: Annotated[
        Path | None,
        o.option("Write the page of figures to this file without drawing."),
    ] = None,
) -> None:
    """Draw a figure of the paper from the code, from stored runs or from a short training.

    **Example:** `python -m experiments figure samples`, or
    `python -m experiments figure distribution --data cifar10 --encoder auto --noise none --data-dir data -o cifar.pdf`

    Trainings have the library's defaults; `--set hyper.lam=0.05` is another penalty of LogComp. `strength` trains with three seeds,
    of which `--seed` is the first.
    """
    from compensate.files import write_atomically
    from experiments.figures import FIGURES, Request, draw
    from experiments.figures.pages import figures_page

    if markdown is not None:
        write_atomically(markdown, figures_page(results.parent, markdown.parent / "img").encode())
        console.print(f"{len(FIGURES)} figures: {markdown}", soft_wrap=True)
        return
    if name is None:
        for known, row in FIGURES.items():
            console.print(f"{known:20s} {row.paper:18s} {row.summary}", soft_wrap=True)
        console.print(
            "\ndraw one:  python -m experiments figure NAME -o FILE      tables of sentences:  python -m experiments sentences sst2"
        )
        return
    given = {"noise": noise, "seed": seed, **o.nested(o.pairs(set_, "--set"))}
    asked = Request(
        data, data_dir, results, runs, {k: v for k, v in given.items() if v is not None}, console=console, encoder=encoder
    )  # fmt: skip
    path = out or Path(f"figure-{name.lower().replace('_', '-')}.png")
    console.print(f"drawn:  {draw(name, path, asked)}", soft_wrap=True)
