"""The review page of an audit, filled: what each suspect looks like, and certain samples beside it."""

from __future__ import annotations

import io
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from compensate.auditing.page.model import (
    KINDS,
    ClassCount,
    Content,
    Curve,
    Example,
    Histogram,
    Item,
    Kind,
    Page,
    Pair,
)
from compensate.auditing.result import Audit
from compensate.data.dataset import Data

MOST_ITEMS = 5000
"""Suspects on the page; those beyond are in suspects.csv."""

LEAST_CERTAIN = 20
"""Shown if nothing is flagged."""

POOL = 150
"""Certain samples of each class among which the nearest are looked for."""

BESIDE = 3


def page(audit: Audit) -> Page:
    """The page of an audit."""
    kind: Kind = next((k for k in KINDS if k == audit.kind), "embedding")
    order = np.argsort(-audit.score, kind="stable")
    flagged = order[audit.mask[order]]
    shown = flagged[:MOST_ITEMS] if len(flagged) else order[:LEAST_CERTAIN]
    notes = list(audit.notes)
    if len(flagged) > MOST_ITEMS:
        notes.append(
            f"{len(flagged):,} labels are flagged; the {MOST_ITEMS:,} most suspect are here, all are in suspects.csv."
        )
    given, suggested = audit.names(audit.given), audit.names(audit.suggested)
    if audit.regression:
        given = _as_written(audit, given)
    certain = _certain(audit)
    likes = {int(i): _nearest(audit, int(i), certain) for i in shown} if certain else {}
    used = sorted({j for pair in likes.values() for side in pair for j in side})
    items = tuple(
        Item(
            index=int(audit.index[i]),
            given=given[i],
            suggested=suggested[i],
            score=float(audit.score[i]),
            p_error=float(audit.p_error[i]),
            flagged=bool(audit.mask[i]),
            content=content(audit.data, int(i)),
            id=audit.ids[i] if audit.ids else "",
            digest=audit.row_digest(int(i)),
            like_given=tuple(int(audit.index[j]) for j in likes[int(i)][0]) if likes else (),
            like_suggested=tuple(int(audit.index[j]) for j in likes[int(i)][1]) if likes else (),
        )
        for i in shown
    )
    examples = tuple(
        Example(int(audit.index[j]), given[j], content(audit.data, j), audit.ids[j] if audit.ids else "") for j in used
    )
    return Page(
        title=audit.title,
        kind=kind,
        classes=audit.classes,
        rows=len(audit),
        items=items,
        noise_rate=audit.noise_rate,
        expected_precision=audit.expected_precision if len(flagged) else None,
        threshold=audit.threshold,
        examples=examples,
        confusion=_pairs(audit, flagged),
        per_class=_per_class(audit),
        scores=_histogram(audit.p_error, audit.mask, audit.threshold, (0.0, 1.0)),
        compensations=_compensations(audit),
        curves=_curves(audit),
        command=command(audit),
        notes=tuple(notes),
        source_digest=audit.source_digest,
    )


def _as_written(audit: Audit, names: list[str]) -> list[str]:
    raw, label = (None, None) if audit.data is None else (audit.data.raw, audit.config.get("label"))
    if raw is None or label is None or not hasattr(raw, "columns"):
        return names
    return [str(cell) for cell in raw[label]]


def command(audit: Audit) -> str:
    """What to type once corrections.csv is saved; nothing for an audit of arrays."""
    source = audit.config.get("source")
    if not source:
        return ""
    path = Path(str(source))
    fixed = f"{path.stem}.fixed{path.suffix}" if path.suffix else f"{path.name}.fixed.csv"
    label = f" --label {shlex.quote(str(audit.config['label']))}" if audit.config.get("label_given") else ""
    return f"compensate apply {shlex.quote(str(source))} corrections.csv -o {shlex.quote(fixed)}{label}"


def _pairs(audit: Audit, flagged: NDArray[np.int64]) -> tuple[Pair, ...]:
    if audit.regression or not len(flagged):
        return ()
    found, counts = np.unique(np.stack([audit.given[flagged], audit.suggested[flagged]]), axis=1, return_counts=True)
    return tuple(
        Pair(audit.classes[g], audit.classes[s], int(n)) for g, s, n in zip(found[0], found[1], counts, strict=True)
    )


def _per_class(audit: Audit) -> tuple[ClassCount, ...]:
    if audit.regression:
        return ()
    rows = np.bincount(audit.given, minlength=len(audit.classes))
    bad = np.bincount(audit.given, audit.mask, minlength=len(audit.classes))
    return tuple(ClassCount(name, int(n), int(b)) for name, n, b in zip(audit.classes, rows, bad, strict=True))


def _histogram(
    values: NDArray[np.float64], mask: NDArray[np.bool_], threshold: float | None, span: tuple[float, float]
) -> Histogram:
    counts, edges = np.histogram(values, bins=20, range=span)
    flagged, _ = np.histogram(values[mask], bins=edges)
    return Histogram(tuple(edges.tolist()), tuple(counts.tolist()), tuple(flagged.tolist()), threshold)


def _compensations(audit: Audit) -> Histogram | None:
    values = audit.evidence.get("compensation")
    if values is None or not len(values) or not np.isfinite(values).all() or values.max() <= 0:
        return None
    return _histogram(values, audit.mask, None, (0.0, float(values.max())))


def _curves(audit: Audit) -> tuple[Curve, ...]:
    found = []
    for measure in ("accuracy", "loss"):
        values = audit.curves.get(measure)
        if values:
            found.append(Curve(cast(Any, measure), "robust", tuple(values)))
    return tuple(found)


# --- what a sample looks like ---------------------------------------------------------------------------------


def content(data: Data | None, row: int) -> Content:
    """What can be shown of a row of the audited data."""
    if data is None:
        return Content(missing="The data is not at hand.")
    kind = data.info.get("kind")
    raw = data.raw
    if kind == "images" and np.ndim(data.x) == 4:
        return Content(image=_png(data.x[row]))
    if raw is None:
        return Content(text=str(data.x[row])) if kind == "text" else Content(missing="An embedding has no picture.")
    if hasattr(raw, "iloc"):
        cells = raw.iloc[row]
        text, label = data.info.get("text"), data.info.get("label")
        fields = tuple((str(name), str(value)) for name, value in cells.items() if name not in (text, label))
        return Content(text=str(cells[text]), fields=fields) if text else Content(fields=fields)
    return Content(text=str(raw[row]))


SHOWN, LONGEST = 100, 200
"""Columns of the data in a list of suspects, and signs of a cell; the file itself has the rest."""


def cells(audit: Audit, rows: NDArray[np.int64], taken: Collection[str]) -> dict[str, list[str]]:
    """What the samples in these rows say, as columns for a list: the text, or the cells of a table.

    Long texts are cut. A name in `taken` gets an addition. Images and embeddings have nothing that fits in a cell.

    Args:
        audit: of data that is at hand, else there are no columns.
        rows: positions among the audited rows.
        taken: names of columns that are there already.
    """
    if audit.data is None or audit.data.info.get("kind") not in ("text", "table") or audit.data.raw is None:
        return {}
    columns = _columns(audit.data, rows)
    return {
        f"{name} (data)" if name in taken else name: [_in_a_cell(str(value)) for value in values]
        for name, values in columns[:SHOWN]
    }


def _columns(data: Data, rows: NDArray[np.int64]) -> list[tuple[str, Any]]:
    """What `content` shows of these rows, but column by column: a row at a time takes minutes where many are flagged."""
    raw = data.raw
    if not hasattr(raw, "iloc"):
        return [(str(data.info.get("text") or "text"), [raw[row] for row in rows.tolist()])]
    text, label = data.info.get("text"), data.info.get("label")
    places = [j for j, name in enumerate(raw.columns) if name not in (text, label)]
    if text:
        places.insert(0, list(raw.columns).index(text))
    return [(str(raw.columns[j]), raw.iloc[:, j].iloc[rows].tolist()) for j in places]


def _in_a_cell(value: str) -> str:
    text = " ".join(value[: 2 * LONGEST].split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _png(image: NDArray[Any]) -> bytes:
    from PIL import Image

    pixels = image if image.dtype == np.uint8 else (np.clip(image, 0, 1) * 255).round().astype(np.uint8)
    pixels = pixels[0] if len(pixels) == 1 else pixels[:3].transpose(1, 2, 0)
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    picture.thumbnail((96, 96))
    file = io.BytesIO()
    picture.save(file, format="PNG")
    return file.getvalue()


# --- certain samples beside it --------------------------------------------------------------------------------


def _certain(audit: Audit) -> dict[int, NDArray[np.int64]]:
    """By class, the rows whose labels are most certain."""
    if audit.regression or audit.vectors is None or audit.data is None:
        return {}
    found = {}
    for c in range(len(audit.classes)):
        rows = np.flatnonzero((audit.given == c) & (audit.p_error < 0.1))
        found[c] = rows[np.argsort(audit.score[rows], kind="stable")][: 4 * POOL][:: max(1, min(4, len(rows) // POOL))]
    return found


def _nearest(audit: Audit, row: int, certain: dict[int, NDArray[np.int64]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    sides: list[tuple[int, ...]] = []
    for c in (int(audit.given[row]), int(audit.suggested[row])):
        pool = certain[c]
        pool = pool[pool != row]
        if not len(pool):
            sides.append(())
            continue
        vectors = audit.vectors
        if hasattr(vectors, "tocsr"):  # rows of unit length: the largest product is the nearest
            distance = -np.asarray((vectors[pool] @ vectors[row].T).todense()).ravel()
        else:
            gap = np.asarray(vectors[pool], dtype=np.float32) - np.asarray(vectors[row], dtype=np.float32)
            distance = (gap**2).sum(1)
        sides.append(tuple(int(j) for j in pool[np.argsort(distance, kind="stable")[:BESIDE]]))
    return sides[0], sides[1]
