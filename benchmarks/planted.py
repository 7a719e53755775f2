"""Data with wrong labels for audits to find: a table of numbers and categories in a CSV file, and a folder of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Bools = NDArray[np.bool_]

WRONG = 0.1
CLASSES, NUMBERS, KINDS = 4, 8, (3, 7, 12)
"""Of the table: classes, numeric columns, and the number of values of each column of categories."""


def table(folder: Path, rows: int, seed: int = 0) -> tuple[Path, Bools]:
    """Writes rows.csv, some rows at a time; tells which labels are wrong."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(NUMBERS, CLASSES))
    effects = [rng.normal(size=(kinds, CLASSES)) for kinds in KINDS]
    path, wrong = folder / "rows.csv", []
    for first in range(0, rows, 50_000):
        size = min(50_000, rows - first)
        x = rng.normal(size=(size, NUMBERS))
        codes = [rng.integers(kinds, size=size) for kinds in KINDS]
        z = 3 * (x @ weights + sum(e[c] for e, c in zip(effects, codes, strict=True))) + rng.gumbel(
            size=(size, CLASSES)
        )
        true = z.argmax(1)
        flip = rng.random(size) < WRONG
        given = np.where(flip, (true + rng.integers(1, CLASSES, size=size)) % CLASSES, true)
        x[rng.random(x.shape) < 0.02] = np.nan
        columns: dict[str, Any] = {f"number {j}": x[:, j].round(4) for j in range(NUMBERS)}
        for j, c in enumerate(codes):
            cells = np.array([f"value {k}" for k in range(KINDS[j])], dtype=object)[c]
            cells[rng.random(size) < 0.02] = ""
            columns[f"kind {j}"] = cells
        frame = pd.DataFrame(columns | {"label": np.array(["north", "east", "south", "west"])[given]})
        frame.to_csv(path, mode="a" if first else "w", header=not first, index=False)
        wrong.append(flip)
    return path, np.concatenate(wrong)


def images(folder: Path, rows: int, seed: int = 0) -> tuple[Path, Bools]:
    """Writes one PNG for each sample into the folder of its given class; tells which of them, sorted by name, are wrong."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    x, true = _shapes(rows, rng)
    flip = rng.random(len(x)) < WRONG
    given = np.where(flip, (true + rng.integers(1, 10, size=len(x))) % 10, true)
    path = folder / "pictures"
    for c in range(10):
        (path / f"class {c}").mkdir(parents=True)
    for i, pixels in enumerate(x):
        Image.fromarray(pixels.transpose(1, 2, 0)).save(path / f"class {given[i]}" / f"{i:06d}.png")
    return path, flip[np.lexsort((np.arange(len(x)), given))]


def _shapes(rows: int, rng: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Stripes, of a direction and a width for each class, in two colors of any kind."""
    true = rng.integers(10, size=rows)
    angle, width = (true % 5) * np.pi / 5, np.where(true < 5, 4.0, 8.0)
    down, right = np.mgrid[:32, :32]
    along = right * np.cos(angle)[:, None, None] + down * np.sin(angle)[:, None, None]
    phase = rng.random((rows, 1, 1))
    light = np.sin(2 * np.pi * (along / width[:, None, None] + phase))[:, None] > 0
    first, second = rng.integers(256, size=(2, rows, 3, 1, 1))
    noise = rng.normal(0, 25, size=(rows, 3, 32, 32))
    return (np.where(light, first, second) + noise).clip(0, 255).astype(np.uint8), true
