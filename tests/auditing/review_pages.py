"""Small pages to open, and audits to fill them with."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import cross_val_predict

from compensate.auditing.content import Content
from compensate.auditing.page import write_page
from compensate.auditing.result import Audit
from compensate.data.dataset import Estimate, Source
from compensate.data.tables import from_frame

NOTHING = Content()
CLASSES = ("bird", "cat", "dog")


@dataclass(frozen=True)
class Item:
    """A suspect on a page."""

    index: int
    given: str
    suggested: str
    score: float
    p: float
    flagged: bool
    content: Content = NOTHING
    id: str = ""
    like_given: tuple[int, ...] = ()
    like_suggested: tuple[int, ...] = ()
    digest: str = ""
    likely: tuple[str, ...] = ()
    usual: float | None = None
    new: bool = False
    part: str = ""
    why: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Example:
    """A certain example, to which items refer by its index."""

    index: int
    label: str
    content: Content
    id: str = ""
    p: float = 0.0


@dataclass(frozen=True)
class Page:
    """A page made by hand; `data` is what `page_of` would return for such an audit."""

    title: str
    kind: str
    classes: tuple[str, ...]
    rows: int
    items: tuple[Item, ...]
    noise: Estimate
    precision: float | None = None
    threshold: float | None = None
    examples: tuple[Example, ...] = ()
    pairs: tuple[tuple[str, str, int], ...] = ()
    per_class: tuple[tuple[str, int, int, float], ...] = ()
    scores: dict[str, Any] | None = None
    curves: tuple[dict[str, Any], ...] = ()
    command: str = ""
    notes: tuple[str, ...] = ()
    source: str = ""
    all_flagged: int | None = None
    predictable: bool = True
    evidence: dict[str, Any] = field(default_factory=dict)
    values: None = None
    since: dict[str, Any] | None = None
    issues: None = None
    workload: Any = ()

    def data(self) -> dict[str, Any]:
        flagged = [item for item in self.items if item.flagged]
        pairs = self.pairs or [(*pair, n) for pair, n in Counter((i.given, i.suggested) for i in flagged).items()]
        position = {example.index: k for k, example in enumerate(self.examples)}
        names = [f.name for f in fields(Item) if not f.name.startswith("like_")]
        items = {name: [getattr(item, name) for item in self.items] for name in names}
        items |= {name: [int(value) for value in items[name]] for name in ("flagged", "new")}
        items["likeGiven"] = [[position[i] for i in item.like_given] for item in self.items]
        items["likeSuggested"] = [[position[i] for i in item.like_suggested] for item in self.items]
        examples = {n: [getattr(e, n) for e in self.examples] for n in ("index", "id", "label", "content", "p")}
        evidence = {"views": [], "agreement": None, "encoder": "", "license": "", "hint": ""} | self.evidence
        return {
            **{f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("per_class", "all_flagged")},
            "noise": [self.noise.value, self.noise.low, self.noise.high],
            "allFlagged": len(flagged) if self.all_flagged is None else self.all_flagged,
            "items": items,
            "examples": examples,
            "pairs": sorted(pairs, key=lambda pair: -pair[2]),
            "perClass": self.per_class,
            "evidence": evidence,
        }


def class_count(label: str, rows: int, flagged: int, wrong: float | None = None) -> tuple[str, int, int, float]:
    """A class of a page; by default as many rows are expected to be wrong as are flagged."""
    return label, rows, flagged, flagged if wrong is None else wrong


def histogram(edges: Any, counts: Any, flagged: Any = (), threshold: float | None = None) -> dict[str, Any]:
    return {"edges": edges, "counts": counts, "flagged": flagged, "threshold": threshold}


def curve(measure: str, method: str, values: tuple[float, ...]) -> dict[str, Any]:
    return {"measure": measure, "method": method, "values": values}


def texts_page(
    labels: list[str], *, classes: tuple[str, ...], title: str = "pets.csv", flagged: int | None = None
) -> Page:
    """A suspect a row, the probability falling from 0.99 on; the class after the given one is suggested."""
    n = len(labels)
    items = tuple(
        Item(
            row, given, classes[(classes.index(given) + 1) % len(classes)], score=float(n - row), p=0.99 - 0.9 * row / max(n, 2),
            flagged=flagged is None or row < flagged, content=Content(text=f"text number {row}"),
        )
        for row, given in enumerate(labels)
    )  # fmt: skip
    apply = "compensate apply pets.csv corrections.csv"
    return Page(title, "text", classes, max(n, 10), items, Estimate(0.1, 0.05, 0.2), command=apply)


def made_run(folder: Path, n: int = 30, **changes: Any) -> Path:
    """A folder with a page of so many suspects."""
    folder.mkdir(parents=True)
    page = texts_page([CLASSES[row % 3] for row in range(n)], classes=CLASSES)
    write_page(replace(page, source="sha256:" + "1" * 16, **changes).data(), folder / "report.html")
    return folder


def png(seed: int, size: int = 16) -> bytes:
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
        suggested=predicted, log_odds=score, p_error=1 / (1 + np.exp(-score)),
        evidence={"usual residual": np.full(rows, 3.0)}, noise_rate=Estimate(0.03, 0.02, 0.04),
        data=data, vectors=x,
    ), changed  # fmt: skip
