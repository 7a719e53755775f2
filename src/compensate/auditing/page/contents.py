"""Certain examples of a class, to compare a suspect with.

Looking for the nearest example of the *given* class is looking for rows that carry the same wrong label: what lies near a
wrong label is often wrong for the same reason. So examples are chosen for certainty first, from models that did not see their
labels, and only among those by nearness.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from compensate.auditing.page.model import (
    KINDS,
    ClassCount,
    ClassPair,
    Content,
    Curve,
    Example,
    Histogram,
    IssueGroup,
    IssueRow,
    Item,
    Kind,
    Page,
    PageProvenance,
    Since,
    Values,
    thumbnail,
)
from compensate.auditing.page.payload import image_type
from compensate.data.dataset import Dataset, Floats, Ints
from compensate.markup import Html, element, escape, table

if TYPE_CHECKING:
    from compensate.auditing.result import Audit

BESIDE = 3
"""Examples on either side of a suspect."""

POOL = 150
"""Certain rows of a class among which the nearest are looked for."""

CERTAIN, LIKELY_RIGHT = 0.02, 0.1
"""An example is wrong with less than the first probability; in classes where no row is as certain, less than the second."""

CLOSE = 0.25
"""Of the distance within which nine tenths of the pool lie: what is nearer may be a copy of the suspect, and compares it with
itself. A sentence of SST-2 with one word changed lies at 0.23 (median, TF-IDF); of rows that are no copies, the nearest
lies nearer for 1 in 100 suspects in digits and for none in SST-2 and wine."""


@dataclass(frozen=True, eq=False)
class Pool:
    """Certain rows, their vectors with squared lengths, and a number for each that rows with equal vectors share."""

    rows: Ints
    vectors: Any
    squares: Floats
    content: list[int]


Side = tuple[int, Ints, Pool]
"""0 for the given label or 1 for the suggested one, suspects, and the certain rows like this label of theirs."""


def beside(audit: Audit, suspects: Ints) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
    """By suspect, the nearest certain rows like its given and like its suggested label; nothing if rows cannot be compared."""
    if audit.vectors is None or audit.data is None:
        return {}
    found: tuple[dict[int, tuple[int, ...]], ...] = {}, {}
    for side, rows, pool in (_of_values if audit.regression else _of_classes)(audit, suspects):
        found[side].update(zip(rows.tolist(), _nearest(audit, rows, pool), strict=True))
    return {i: (found[0][i], found[1][i]) for i in suspects.tolist()}


def _of_classes(audit: Audit, suspects: Ints) -> Iterator[Side]:
    margins = _margins(audit)
    labels = audit.given[suspects], audit.suggested[suspects]
    for c in np.unique(np.concatenate(labels)).tolist():
        pool = _pool(audit, certain(audit, np.flatnonzero(audit.given == c), margins)[:POOL])
        yield from ((side, suspects[labels[side] == c], pool) for side in (0, 1))


def _of_values(audit: Audit, suspects: Ints) -> Iterator[Side]:
    """Of quantities, a label is like another if few certain values lie between them."""
    rows = certain(audit, np.arange(len(audit)), None)
    rows = rows[np.argsort(audit.given[rows], kind="stable")]
    values = audit.given[rows]

    def around(value: float) -> Pool:
        place, half = int(np.searchsorted(values, value)), max(2 * BESIDE, min(POOL, len(rows) // 10) // 2)
        return _pool(audit, rows[max(0, place - half) : place + half])

    for side, labels in enumerate((audit.given, audit.suggested)):
        yield from ((side, suspects[k : k + 1], around(labels[i])) for k, i in enumerate(suspects.tolist()))


def certain(audit: Audit, rows: Ints, margins: Floats | None) -> Ints:
    """The rows among these whose labels are most certain, the most certain first.

    Args:
        audit: of labels or quantities.
        rows: positions, usually those of a class.
        margins: (N,) how much more probable, out of fold, the given class is than any other; None if that is not known.
    """
    p = audit.p_error[rows]
    for bound in (CERTAIN, LIKELY_RIGHT):
        good = rows[p < bound]
        if margins is not None:
            good = good[margins[good] > 0]
        if len(good) >= BESIDE:
            break
    doubt = audit.p_error if margins is None else -margins
    order = good[np.argsort(doubt[good], kind="stable")]
    # The better half: what is barely on the right side of a boundary is no example of its class.
    return order[: max(BESIDE, (len(order) + 1) // 2)]


def _margins(audit: Audit) -> Floats | None:
    if audit.probabilities is None:
        return None
    p = np.array(audit.probabilities, dtype=np.float64)
    place = np.arange(len(p))
    own = p[place, audit.given]
    p[place, audit.given] = -np.inf
    return own - p.max(1)


def _pool(audit: Audit, rows: Ints) -> Pool:
    vectors = audit.vectors[rows]
    if _is_sparse(vectors):
        vectors.sum_duplicates()
        vectors.eliminate_zeros()
        each = [one.indices.tobytes() + one.data.tobytes() for one in vectors]
    else:
        vectors = np.asarray(vectors, dtype=np.float32)
        each = [one.tobytes() for one in vectors + np.float32(0)]  # 0 and -0 are equal
    numbers: dict[bytes, int] = {}
    return Pool(rows, vectors, _squares(vectors), [numbers.setdefault(one, len(numbers)) for one in each])


def _nearest(audit: Audit, suspects: Ints, pool: Pool) -> list[tuple[int, ...]]:
    """For each suspect the nearest rows of the pool."""
    if not len(pool.rows) or not len(suspects):
        return [()] * len(suspects)
    vectors = audit.vectors[suspects]
    distance = _distances(pool, vectors if _is_sparse(vectors) else np.asarray(vectors, dtype=np.float32))
    copies = distance <= CLOSE * np.quantile(distance, 0.9, axis=1, keepdims=True)
    distance[copies | (pool.rows == suspects[:, None])] = np.inf
    allowed = np.isfinite(distance).sum(1).tolist()
    order = np.argsort(distance, axis=1, kind="stable").tolist()
    return [_first_distinct(pool, found[:count]) for found, count in zip(order, allowed, strict=True)]


def _first_distinct(pool: Pool, places: list[int]) -> tuple[int, ...]:
    found: dict[int, int] = {}
    for j in places:
        found.setdefault(pool.content[j], int(pool.rows[j]))  # one of several copies is enough
        if len(found) == BESIDE:
            break
    return tuple(found.values())


def _distances(pool: Pool, vectors: Any) -> Floats:
    """(R, P) from each vector to each row of the pool."""
    products = vectors @ pool.vectors.T
    products = products.toarray() if _is_sparse(products) else products
    return np.sqrt(np.maximum(pool.squares + _squares(vectors)[:, None] - 2 * products.astype(np.float64), 0))


def _squares(vectors: Any) -> Floats:
    if _is_sparse(vectors):
        return np.asarray(vectors.multiply(vectors).sum(1), dtype=np.float64).ravel()
    return np.asarray((vectors**2).sum(1, dtype=np.float64))


def _is_sparse(values: Any) -> bool:
    return bool(sparse.issparse(values))


MOST_ITEMS = 5000
"""Suspects on the page; those beyond are in suspects.csv."""

LEAST_CERTAIN = 20
"""Shown if nothing is flagged."""

MOST_ISSUES = 100
"""Issues of a kind on the page; those beyond are in issues.csv."""

KEYS = 9
"""Other classes of an item that have a key."""

DOTS = 1500
"""Rows in the picture of given and predicted values."""

SURE = 2.0
"""Standard errors by which predictions are better than chance, or it is said that they are not."""


def page_of(audit: Audit) -> Page:
    """The page of an audit."""
    kind: Kind = next((k for k in KINDS if k == audit.kind), "embedding")
    order = np.argsort(-audit.log_odds, kind="stable")
    mask = audit.mask
    flagged = order[mask[order]]
    shown = flagged[:MOST_ITEMS] if len(flagged) else order[:LEAST_CERTAIN]
    notes = list(audit.notes)
    if len(flagged) > MOST_ITEMS:
        notes.append(
            f"{len(flagged):,} {'values' if audit.regression else 'labels'} are flagged; the {MOST_ITEMS:,} most suspect are here, all are in suspects.csv."
        )
    given, suggested = audit.names(audit.given), audit.names(audit.suggested)
    likely, usual = _likely(audit, shown), _usual_errors(audit, shown)
    if audit.regression:
        given = _as_written(audit, given)
        for i, error in zip(shown, usual, strict=True):
            suggested[i] = _rounded(float(audit.suggested[i]), error or 0.0)
    since = audit.provenance.since
    fresh = set(since["new"]) if since else set()
    likes = beside(audit, shown)
    used = sorted({j for pair in likes.values() for side in pair for j in side})
    items = tuple(
        Item(
            index=int(audit.index[i]),
            given=given[i],
            suggested=suggested[i],
            score=float(audit.log_odds[i]),
            p_error=float(audit.p_error[i]),
            flagged=bool(mask[i]),
            content=_content(audit, int(i)),
            id=audit.ids[i] if audit.ids else "",
            digest=audit.row_digest(int(i)),
            part=audit.part(int(i)),
            like_given=tuple(int(audit.index[j]) for j in likes[int(i)][0]) if likes else (),
            like_suggested=tuple(int(audit.index[j]) for j in likes[int(i)][1]) if likes else (),
            likely=likely[k],
            usual_error=usual[k],
            new=int(audit.index[i]) in fresh,
        )
        for k, i in enumerate(shown)
    )
    examples = tuple(
        Example(
            int(audit.index[j]),
            given[j],
            _content(audit, j),
            audit.ids[j] if audit.ids else "",
            float(audit.p_error[j]),
        )
        for j in used
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
        scores=_histogram(audit.p_error, mask, audit.threshold, (0.0, 1.0)),
        compensations=_compensations(audit),
        curves=_curves(audit),
        command=command(audit),
        notes=tuple(notes),
        source_digest=audit.source_digest,
        all_flagged=len(flagged),
        predictable=predictable(audit),
        evidence=_evidence(audit),
        values=_values(audit, flagged),
        since=Since(since["corrected"], since["confirmed"], len(fresh), tuple(since["gone"])) if since else None,
        issues=_issues(audit),
    )


def page_of_listed(whole: Audit, listed: Audit) -> Page:
    """The page of an audit in pieces: items from the rows that are listed, counts from all rows."""
    flagged = np.flatnonzero(whole.mask)
    notes = list(whole.notes)
    if len(flagged) > MOST_ITEMS:
        notes.append(
            f"{len(flagged):,} labels are flagged; the {MOST_ITEMS:,} most suspect are here, all rows are in suspects/*.parquet."
        )
    return replace(
        page_of(listed),
        rows=len(whole),
        expected_precision=whole.expected_precision if len(flagged) else None,
        confusion=_pairs(whole, flagged),
        per_class=_per_class(whole),
        scores=_histogram(whole.p_error, whole.mask, whole.threshold, (0.0, 1.0)),
        notes=tuple(notes),
        all_flagged=len(flagged),
        predictable=predictable(whole),
    )


def _as_written(audit: Audit, names: list[str]) -> list[str]:
    table, label = (None, None) if audit.data is None else (audit.data.table, audit.source.label)
    return names if table is None or label is None else [str(cell) for cell in table[label]]


def command(audit: Audit) -> str:
    """What to type once corrections.csv is saved; nothing for an audit of arrays."""
    source = audit.source.path
    if not source:
        return ""
    fixed = audit.label_kind.fixed_name(Path(source)).name
    given = {"label": str(audit.source.label)} if audit.source.label_given else {}
    options = "".join(f" --{name} {shlex.quote(value)}" for name, value in (given | audit.reading).items())
    return f"compensate apply {shlex.quote(str(source))} corrections.csv -o {shlex.quote(fixed)}{options}"


def _pairs(audit: Audit, flagged: Ints) -> tuple[ClassPair, ...]:
    if audit.regression or not len(flagged):
        return ()
    found, counts = np.unique(np.stack([audit.given[flagged], audit.suggested[flagged]]), axis=1, return_counts=True)
    return tuple(
        ClassPair(audit.classes[g], audit.classes[s], int(n))
        for g, s, n in zip(found[0], found[1], counts, strict=True)
    )


def _per_class(audit: Audit) -> tuple[ClassCount, ...]:
    if audit.regression:
        return ()
    names, of = audit.label_kind.groups(audit)
    rows, flagged, wrong = (
        np.bincount(of, weights, minlength=len(names)) for weights in (None, audit.mask, audit.p_error)
    )
    return tuple(
        ClassCount(name, int(n), int(f), float(w)) for name, n, f, w in zip(names, rows, flagged, wrong, strict=True)
    )


def _histogram(
    values: Floats, mask: NDArray[np.bool_], threshold: float | None, span: tuple[float, float]
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


def _evidence(audit: Audit) -> PageProvenance:
    how = audit.provenance
    return PageProvenance(
        views=tuple((str(name), float(weight)) for name, weight in how.views.items()),
        agreement=how.agreement,
        encoder=how.encoder + (", fine-tuned on these labels" if how.finetuned else ""),
        license=how.license,
        hint=how.hint,
    )


def predictable(audit: Audit) -> bool:
    """Whether the given labels can be predicted from the samples better than by chance, as the audit itself found, or else by its result.

    Classes: by the out-of-fold log loss beside that of the class frequencies, or by the share of labels that are predicted beside
    the largest class. Quantities: by the absolute error beside that of the median. Better means by `SURE` standard errors.
    """
    if audit.provenance.by_chance is not None:
        return not audit.provenance.by_chance
    if audit.regression:
        median = np.median(audit.given)
        # Bounded by how far the prediction is from the median, however wrong a value is.
        return _above_zero(np.abs(audit.given - median) - np.abs(audit.given - audit.suggested))
    if audit.probabilities is None:
        return True
    shares = np.bincount(audit.given, minlength=len(audit.classes)) / len(audit)
    own = np.asarray(audit.probabilities, dtype=np.float64)[np.arange(len(audit)), audit.given]
    hits = audit.probabilities.argmax(1) == audit.given
    return _above_zero(np.log(np.maximum(own, 1e-12) / shares[audit.given])) or _above_zero(hits - shares.max())


def _above_zero(gains: Floats) -> bool:
    return bool(gains.mean() > SURE * gains.std() / np.sqrt(max(len(gains), 1)))


def _likely(audit: Audit, rows: Ints) -> list[tuple[str, ...]]:
    """For each row, the most probable classes besides the given and the suggested one."""
    if audit.regression or audit.probabilities is None:
        return [()] * len(rows)
    p = np.array(audit.probabilities[rows], dtype=np.float64)
    place = np.arange(len(rows))
    p[place, audit.given[rows]] = p[place, audit.suggested[rows]] = -1
    others = min(KEYS, len(audit.classes) - 2)
    order = np.argsort(-p, axis=1, kind="stable")[:, : max(others, 0)]
    return [tuple(audit.classes[c] for c in found) for found in order]


def _usual_errors(audit: Audit, rows: Ints) -> list[float | None]:
    """For each row, by how much right values differ from what is predicted there: one standard deviation, robustly."""
    if not audit.regression:
        return [None] * len(rows)
    scale = audit.evidence.get("usual residual")
    if scale is None:
        scale = np.full(len(audit), 1.4826 * np.median(np.abs(audit.given - audit.suggested)))
    return [float(value) for value in scale[rows]]


def _rounded(value: float, usual_error: float) -> str:
    """A prediction with no more digits than its usual error deserves: to a tenth of it, six digits at most.

    >>> _rounded(116.943, 12.8), _rounded(0.123456, 0.002), _rounded(1234567.0, 5e4)
    ('117', '0.1235', '1235000')
    """
    if not (usual_error > 0 and np.isfinite(value)):
        return f"{value:.6g}"
    decimals = -int(np.floor(np.log10(usual_error / 10)))
    text = f"{round(value, decimals):.{max(decimals, 0)}f}"
    return text if len(text) < 16 else f"{value:.6g}"


def _values(audit: Audit, flagged: Ints) -> Values | None:
    """Flagged rows and as many others as fit, evenly spread over the data."""
    if not audit.regression:
        return None
    rest = np.flatnonzero(~audit.mask)
    rest = rest[:: max(1, -(-len(rest) // DOTS))]
    rows = np.concatenate([rest, flagged[:DOTS]])
    return Values(
        tuple(audit.given[rows].tolist()), tuple(audit.suggested[rows].tolist()), tuple(audit.mask[rows].tolist())
    )


# --- what else is wrong ---------------------------------------------------------------------------------------


def _issues(audit: Audit) -> tuple[IssueGroup, ...] | None:
    if audit.found_issues is None:
        return None
    from compensate.auditing.issues import KINDS as ISSUES

    place = {int(row): i for i, row in enumerate(audit.index)}
    labels = audit.names(audit.given)
    groups = []
    for name, kind in ISSUES.items():
        here = audit.found_issues[audit.found_issues["issue"] == name]
        if not len(here):
            continue
        rows, lines = [], []
        for found in _once(here, pairs=name in ("duplicate", "conflicting_duplicate")):
            i = None if found["index"] is None else place.get(found["index"])
            j = place.get(found["other"]) if found["other"] is not None and name != "test_duplicate" else None
            if i is None:
                lines.append((found["column"] or f"row {found['index']}", found["score"], found["detail"]))
                continue
            rows.append(
                IssueRow(
                    int(audit.index[i]), labels[i], content(audit.data, i), found["score"], found["detail"],
                    None if j is None else content(audit.data, j), found["other"], "" if j is None else labels[j],
                    audit.ids[i] if audit.ids else "", audit.ids[j] if audit.ids and j is not None else "",
                )
            )  # fmt: skip
        title = (kind.one if len(here) == 1 else kind.many).capitalize()
        groups.append(
            IssueGroup(
                title,
                kind.advice,
                kind.score,
                len(here),
                tuple(rows),
                tuple(lines),
                len(rows) + len(lines) >= MOST_ISSUES,
            )
        )
    return tuple(groups)


def _once(issues: Any, *, pairs: bool) -> list[dict[str, Any]]:
    """The first `MOST_ISSUES` rows; of two rows that are each other's duplicate, one."""
    found: list[dict[str, Any]] = []
    seen: set[frozenset[Any]] = set()
    from compensate.auditing.issues import records

    for one in records(issues):
        pair = frozenset((one["index"], one["other"]))
        if pairs and pair in seen:
            continue
        seen.add(pair)
        found.append(one)
        if len(found) == MOST_ISSUES:
            break
    return found


# --- what a sample looks like ---------------------------------------------------------------------------------


def _content(audit: Audit, row: int) -> Content:
    """What is shown of an audited label: its sample, and where in it the label stands if the sample has several."""
    shown = content(audit.data, int(audit.position(row)))
    parts = None if audit.data is None else audit.data.parts
    return shown if parts is None else cast(Content, parts.show(shown, audit, row))


def content(data: Dataset | None, row: int) -> Content:
    """What can be shown of a row of the audited data."""
    if data is None:
        return Content(missing="The data are not available.")
    kind = data.source.kind
    raw = data.raw
    images = data.x if np.ndim(data.x) == 4 else raw  # beside embeddings, the images themselves are in raw
    if kind == "images" and np.ndim(images) == 4:
        return Content(image=_picture(images[row]))
    if raw is None:
        return Content(text=str(data.x[row])) if kind == "text" else Content(missing="An embedding has no picture.")
    if data.table is not None:
        cells = data.table.iloc[row]
        text, label = data.source.text, data.source.label
        fields = tuple((str(name), str(value)) for name, value in cells.items() if name not in (text, label))
        return Content(text=str(cells[text]), fields=fields) if text else Content(fields=fields)
    return Content(text=str(raw[row]))


SHOWN, LONGEST = 100, 200
"""Columns of the data in a list of suspects, and signs of a cell; the file itself has the rest."""


def sample_cells(audit: Audit, rows: Ints, taken: Collection[str]) -> dict[str, list[str]]:
    """What the samples in these rows say, as columns for a list: the text, or the cells of a table.

    Long texts are cut. A name in `taken` gets an addition. Images and embeddings have nothing that fits in a cell.

    Args:
        audit: with its data, else there are no columns.
        rows: positions among the audited rows.
        taken: names of columns that are there already.
    """
    if audit.data is None or audit.data.source.kind not in ("text", "table") or audit.data.raw is None:
        return {}
    columns = _columns(audit.data, audit.position(rows))
    return {
        f"{name} (data)" if name in taken else name: [_in_a_cell(str(value)) for value in values]
        for name, values in columns[:SHOWN]
    }


def _columns(data: Dataset, rows: Ints) -> list[tuple[str, Any]]:
    """What `content` shows of these rows, but column by column: a row at a time takes minutes where many are flagged."""
    table = data.table
    if table is None:
        return [(data.source.text or "text", [data.raw[row] for row in rows.tolist()])]
    text, label = data.source.text, data.source.label
    places = [j for j, name in enumerate(table.columns) if name not in (text, label)]
    if text:
        places.insert(0, list(table.columns).index(text))
    return [(str(table.columns[j]), table.iloc[:, j].iloc[rows].tolist()) for j in places]


def _in_a_cell(value: str) -> str:
    text = " ".join(value[: 2 * LONGEST].split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _picture(image: NDArray[Any]) -> bytes:
    """Arrays of a user may have any number of channels and floats beyond [0, 1]."""
    channels = len(image) if len(image) in (1, 3, 4) else 3 if len(image) > 4 else 1
    pixels = image[:channels]
    return thumbnail(pixels if pixels.dtype == np.uint8 else np.clip(pixels, 0, 1))


TOP = 10
"""Suspects, and classes of the matrix, that are shown."""


def audit_html(audit: Audit) -> str:
    """The HTML of an audit."""
    rate, what = audit.noise_rate, "values" if audit.regression else "labels"
    headline = element(
        "p",
        element("b", f"{rate.value:.1%}"), f" of {what} look wrong ({rate.low:.1%} to {rate.high:.1%}): ",
        f"{int(audit.mask.sum()):,} of {len(audit):,} flagged in {audit.title}, at {audit.expected_precision:.2f} expected precision",
    )  # fmt: skip
    if audit.provenance.by_chance:
        headline = element(
            "p", f"The {what} of {audit.title} cannot be predicted from the samples, so none can be judged."
        )
    return element("div", headline, _suspects(audit), "" if audit.regression else _matrix(audit))


def _suspects(audit: Audit) -> Html:
    order = np.argsort(-audit.p_error, kind="stable")[:TOP].tolist()
    given, suggested = audit.names(audit.given), audit.names(audit.suggested)
    rows = [(int(audit.rows[i]), _sample(audit, i), given[i], suggested[i], f"{audit.p_error[i]:.2f}") for i in order]
    return table(("row", "sample", "given", "suggested", "probability of error"), rows)


def _sample(audit: Audit, i: int) -> Html:
    found = content(audit.data, int(audit.position(i)))
    kind = image_type(found.image) if found.image is not None else None
    if found.image is not None and kind is not None:
        source = f"data:image/{kind};base64,{base64.b64encode(found.image).decode()}"
        return Html(f'<img alt="" width="48" height="48" style="image-rendering:pixelated" src="{source}">')
    if found.text is not None:
        return escape(" ".join(found.text.split()), 120)
    if found.fields:
        return escape(", ".join(f"{name} {value}" for name, value in found.fields[:6]), 120)
    return escape(audit.ids[i] if audit.ids else found.missing)


def _matrix(audit: Audit) -> Html:
    """Flagged rows by given and suggested label, for the classes with most of them."""
    given, suggested = audit.given[audit.mask], audit.suggested[audit.mask]
    if not len(given):
        return Html("")
    often = np.bincount(np.concatenate([given, suggested]), minlength=len(audit.classes))
    shown = np.sort(np.argsort(-often, kind="stable")[: min(TOP, int((often > 0).sum()))])
    counts = np.zeros((len(audit.classes), len(audit.classes)), np.int64)
    np.add.at(counts, (given, suggested), 1)
    names = [escape(audit.classes[c], 40) for c in shown]
    rows = [(element("b", name), *(counts[c, d] or "" for d in shown)) for name, c in zip(names, shown, strict=True)]
    return element(
        "div", element("p", "Flagged labels, given (rows) and suggested (columns):"), table(("", *names), rows)
    )
