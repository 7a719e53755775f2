"""Small pages to open."""

from __future__ import annotations

import io

import numpy as np

from compensate.auditing.page import Content, Estimate, Item, Page


def texts_page(
    labels: list[str], *, classes: tuple[str, ...], title: str = "pets.csv", flagged: int | None = None
) -> Page:
    """A suspect a row, the probability falling from 0.99 on; the class after the given one is suggested."""
    n = len(labels)
    items = tuple(
        Item(
            row,
            given,
            classes[(classes.index(given) + 1) % len(classes)],
            score=float(n - row),
            p_error=0.99 - 0.9 * row / max(n, 2),
            flagged=flagged is None or row < flagged,
            content=Content(text=f"text number {row}"),
        )
        for row, given in enumerate(labels)
    )
    return Page(
        title,
        "text",
        classes,
        max(n, 10),
        items,
        Estimate(0.1, 0.05, 0.2),
        command="compensate apply pets.csv corrections.csv",
    )


def png(seed: int, size: int = 16) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (size, size, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()
