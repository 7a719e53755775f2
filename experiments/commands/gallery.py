"""`python -m experiments gallery`: the most suspect labels of public data sets, and the page about them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compensate.cli import options as o
from compensate.cli.terminal import console


def gallery(
    sets: Annotated[str | None, typer.Option(help="Some of the data sets, such as digits,sst2 [default: all].")] = None,
    results: Annotated[Path, typer.Option(help="Folder of the suspects and verdicts.")] = Path("results/gallery"),
    runs: Annotated[Path, typer.Option(help="Folder of the whole texts, for the reader.")] = Path("runs/gallery"),
    docs: Annotated[Path, typer.Option(help="Folder of the page and the pictures.")] = Path("docs"),
    data_dir: o.DataDir = None,
) -> None:
    """Audit public data sets as they are published, and list their most suspect labels.

    **Example:** `python -m experiments gallery --data-dir data`

    The same command resumes: stored sets are read. When all suspects have a verdict, it writes docs/gallery.md.
    """
    from compensate.data.dataset import data_folder
    from compensate.errors import InputError, nearest
    from compensate.files import write_atomically
    from experiments import gallery as study

    waiting: list[str] = []
    chosen = list(study.SETS) if sets is None else sets.split(",")
    for name in chosen:
        if name not in study.SETS:
            raise InputError(f'there is no data set "{name}"; {nearest(name, study.SETS)}')
        stored = study.make(name, data_folder(data_dir), results, runs, docs)
        console.print(f"{name}: {stored['labels']:,} labels, {stored['flagged']:,} flagged", soft_wrap=True)
        if any(not suspect["verdict"] for suspect in stored["suspects"]):
            console.print(f"  look at {runs / f'{name}.txt'}, and write the verdicts into {results / f'{name}.json'}")
            waiting.append(name)
    if waiting:
        return
    write_atomically(docs / "gallery.md", study.page(results).encode())
    console.print(f"written:  {docs / 'gallery.md'}", soft_wrap=True)
