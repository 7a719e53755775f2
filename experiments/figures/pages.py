"""The page of figures: each picture with the command that draws it, and the sentences that were found."""

from __future__ import annotations

from pathlib import Path

from experiments.figures import FIGURES
from experiments.sentences import sentences_section


def figures_section(pictures: Path, where: str = "img") -> list[str]:
    """The figures as parts of a Markdown page; those without a stored picture are named with their command.

    Args:
        pictures: the folder of the stored pictures, ``figure-NAME.png``; ``figure-NAME-DATA.png`` for other data, and
            ``figure-NAME-DATA-NOISE.png`` for other noise; DATA_ENCODER where an encoder's features were trained on.
        where: that folder as the page names it.
    """
    parts = []
    for name, row in FIGURES.items():
        parts += [f"### {row.summary[0].upper()}{row.summary[1:]} ({row.paper})"]
        stored = pictures / f"figure-{name}.png"
        if stored.is_file():
            parts += [f"![{row.summary}.]({where}/{stored.name})"]
        parts += [f"{row.caption} Draw it: `python -m experiments figure {name}`."]
        for other in sorted(pictures.glob(f"figure-{name}-*.png")):
            where_from, _, noise = other.stem.removeprefix(f"figure-{name}-").partition("-")
            data, _, encoder = where_from.partition("_")
            more = (f" --encoder {encoder}" if encoder else "") + (f" --noise {noise}" if noise else "")
            parts += [
                f"![{row.summary}, on {data}.]({where}/{other.name})",
                f"{row.elsewhere.get(where_from, '')} Draw it: `python -m experiments figure {name} --data {data}{more} --data-dir DATA`.".strip(),
            ]
    return parts


def figures_page(results: Path, pictures: Path) -> str:
    """The whole page as Markdown."""
    parts = [
        "# Figures and sentences",
        "The paper's figures, drawn by `python -m experiments figure NAME`, and the texts in which the largest compensation was found. Figures "
        "that need a training run one of seconds or minutes on a processor, not the paper's: they show the same thing on less "
        "data. This page is made by `python -m experiments figure --markdown docs/figures.md`.",
        "## Figures",
        *figures_section(pictures),
    ]
    found = sentences_section(results)
    return "\n\n".join([*parts, *(["## Sentences with large compensation", *found] if found else [])]) + "\n"
