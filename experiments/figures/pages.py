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
        known = list(row.elsewhere)
        others = [(*_origin(path, name), path) for path in sorted(pictures.glob(f"figure-{name}-*.png"))]
        # In the order of the captions: the main one first.
        for where_from, noise, other in sorted(
            others, key=lambda o: known.index(o[0]) if o[0] in known else len(known)
        ):
            data, _, encoder = where_from.partition("_")
            more = (f" --encoder {encoder}" if encoder else "") + (f" --noise {noise}" if noise else "")
            parts += [
                f"![{row.summary}, on {data}.]({where}/{other.name})",
                f"{row.elsewhere.get(where_from, '')} Draw it: `python -m experiments figure {name} --data {data}{more} --data-dir DATA`.".strip(),
            ]
    return parts


def _origin(picture: Path, name: str) -> tuple[str, str]:
    """Data (with an encoder) and noise of a stored picture, by its name.

    >>> _origin(Path("figure-samples-cifar10_auto-none.png"), "samples")
    ('cifar10_auto', 'none')
    """
    data, _, noise = picture.stem.removeprefix(f"figure-{name}-").partition("-")
    return data, noise


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
