"""Small pages to open, and audits to fill them with."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import cross_val_predict

from compensate.auditing.page import Content, Estimate, Item, Page
from compensate.auditing.result import Audit
from compensate.data.dataset import Source
from compensate.data.tables import from_frame


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


def planted_audit(
    classes: int, *, rows: int = 1500, spread: float = 1.0, rate: float = 0.1, seed: int = 0
) -> tuple[Audit, np.ndarray]:
    """An audit by cross-fitted logistic regression of Gaussian classes, and which labels were made wrong.

    The probability of error is exact where the model is: errors are uniform over the other classes at a known rate.
    """
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, rows)
    x = (rng.normal(size=(classes, 12)) * spread)[y] + rng.normal(size=(rows, 12))
    changed = rng.random(rows) < rate
    given = np.where(changed, (y + rng.integers(1, classes, rows)) % classes, y)
    q = cross_val_predict(LogisticRegression(C=0.1, max_iter=200), x, given, cv=5, method="predict_proba")
    place = np.arange(rows)
    wrong = rate / (classes - 1) * (1 - q[place, given])
    p = wrong / (wrong + (1 - rate) * q[place, given])
    others = q.copy()
    others[place, given] = -1
    frame = pd.DataFrame({f"x{j}": x[:, j].round(3) for j in range(3)})
    data = from_frame(frame.assign(label=[f"class {c}" for c in given]), "planted.csv", label="label").train
    names = tuple(f"class {c}" for c in range(classes))
    share = float(p.mean())
    return Audit(
        kind="table", source=Source(title="planted.csv"), classes=names, index=place, given=given, suggested=others.argmax(1),
        log_odds=np.log(p / (1 - p)), p_error=p, evidence={}, noise_rate=Estimate(share, 0.8 * share, 1.2 * share),
        probabilities=q.astype(np.float32), data=data, vectors=x,
    ), changed  # fmt: skip


def planted_regression(rows: int = 1000, seed: int = 0) -> tuple[Audit, np.ndarray]:
    """An audit of quantities by cross-fitted ridge regression, and which values were exchanged."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4))
    y = 100 + x @ np.array([30.0, 20.0, 5.0, 0.0]) + 3 * rng.normal(size=rows)
    changed = rng.random(rows) < 0.04
    given = np.where(changed, rng.permutation(y), y).round(1)
    predicted = cross_val_predict(Ridge(), x, given, cv=5)
    score = np.abs(given - predicted) / 3 - 5
    frame = pd.DataFrame({f"x{j}": x[:, j].round(3) for j in range(4)})
    data = from_frame(frame.assign(price=given), "houses.csv", label="price", task="regression").train
    return Audit(
        kind="regression", source=Source(title="houses.csv", path="houses.csv", label="price"), classes=(), index=np.arange(rows), given=given,
        suggested=predicted, log_odds=score, p_error=1 / (1 + np.exp(-score)), evidence={}, noise_rate=Estimate(0.03, 0.02, 0.04),
        data=data, vectors=x,
    ), changed  # fmt: skip
