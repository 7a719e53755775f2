"""The review page of an audit, one HTML file that works from disk without a network, and the summary for notebooks.

`page_of` collects the data with labels and column names as texts, `payload` replaces repeated texts by numbers. Styles and scripts are joined
from the files in ``assets``. A Content-Security-Policy names the hash of each: no other script runs, and nothing can be fetched or sent, except
to the server of `compensate review` if it serves the page.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray
from scipy import sparse
from scipy.stats import binomtest, hypergeom

from compensate.auditing.class_names import near_names
from compensate.auditing.content import MAX_ITEMS, Content, embedded_image, label_content, sample_content
from compensate.auditing.issues import KINDS as ISSUES
from compensate.auditing.issues import issue_rows, records
from compensate.auditing.labels.quantity import in_other_unit
from compensate.data.dataset import Floats, Ints
from compensate.errors import InputError
from compensate.extras import Html, element, escape, html_table
from compensate.files import make_folder, write_atomically

if TYPE_CHECKING:
    from compensate.auditing.result import Audit

STYLES = ("base.css", "frame.css", "overview.css", "review.css", "estimate.css", "issues.css", "dialogs.css")
SCRIPTS = (
    "dom.js", "words.js", "data.js", "sync.js", "store.js", "queue.js", "csv.js", "content.js", "charts.js", "overview.js",
    "issues.js", "strip.js", "dialogs.js", "review.js", "estimate.js", "main.js",
)  # fmt: skip

TOP = 10  # suspects and classes in the summary for notebooks
LEAST_CERTAIN = 20  # rows that are shown if nothing is flagged
MAX_ISSUES = 100  # issues of a kind on the page; the others are in issues.csv
KEYS = 9  # other classes of an item that have a key
DOTS = 1500  # rows in the chart of given and predicted values
GONE_ROWS = 20  # former suspects on the page
LEVEL = 0.05  # significance level of claims
TEXT_BUDGET = 32_000_000  # approximate number of characters of sample text on a page
TEXT_LIMITS = (2_000, 200_000)  # smallest and largest number of characters that are kept of each text
EXAMPLE_TEXT, ISSUE_TEXT = 1_000, 400  # characters that are kept of the text of an example and of an issue
BEGIN = b'<script type="application/json" id="data">'  # the element of the page that holds the data
_ESCAPED = re.compile("[<>&\u2028\u2029\ud800-\udfff]")

EXAMPLES, POOL = 3, 150
"""Examples of each of the two labels of a suspect, and the certain rows of a class among which they are searched."""

CERTAIN, LIKELY_RIGHT = 0.02, 0.1
"""Largest probability of error of an example, and the same for classes without enough such rows."""

CLOSE = 0.25
"""Rows nearer than this fraction of the 0.9 quantile of the distances may be copies of the suspect and are not shown. A sentence of SST-2
with one changed word lies at 0.23 (median, TF-IDF); the nearest row that is not a copy is excluded for 1 in 100 suspects in digits and for
none in SST-2 and wine."""


# --- HTML -----------------------------------------------------------------------------------------------------


def write_page(page: Mapping[str, Any], path: str | Path) -> Path:
    """Writes a page, whole or not at all."""
    path = Path(path)
    make_folder(path.parent)
    write_atomically(path, render_page(page).encode())
    return path


def render_page(page: Mapping[str, Any]) -> str:
    """The HTML of a page; `page_of` makes the page of an audit."""
    return render_payload(payload(page))


def render_payload(stored: Mapping[str, Any]) -> str:
    """The HTML of a page whose data were stored by `payload`."""

    def asset(name: str) -> str:
        return (resources.files("compensate.auditing.page") / "assets" / name).read_text("utf-8")

    def digest(text: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    style = "\n".join(map(asset, STYLES))
    script = '(() => {\n"use strict";\n' + "\n".join(map(asset, SCRIPTS)) + "})();\n"
    policy = (
        "default-src 'none'", f"script-src '{digest(script)}'", f"style-src '{digest(style)}'", "img-src data:",
        "connect-src 'self'", "base-uri 'none'", "form-action 'none'",
    )  # fmt: skip
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(asset("page.html"))
    # Only our own files and escaped JSON are marked as safe; the template escapes the title.
    return template.render(
        title=stored["title"].encode("utf-8", "replace").decode(),
        policy="; ".join(policy),
        style=Markup(style),  # nosec B704
        script=Markup(script),  # nosec B704
        data=Markup(to_json(stored)),  # nosec B704
    )


def audit_html(audit: Audit) -> str:
    """The summary for notebooks: noise rate, top suspects and confused classes."""
    rate, what = audit.noise_rate, "values" if audit.regression else "labels"
    interval = f" of {what} look wrong ({rate.low:.1%} to {rate.high:.1%}) in {audit.title}: {audit.flag_summary}"
    headline = element("p", element("b", f"{rate.value:.1%}"), interval)
    if audit.provenance.by_chance:
        unknown = f"The {what} of {audit.title} cannot be predicted from the samples, so none can be judged."
        headline = element("p", unknown)
    order = np.argsort(-audit.p_error, kind="stable")[:TOP].tolist()
    given, suggested = audit.names(audit.given), audit.names(audit.suggested)
    rows = [(int(audit.rows[i]), _sample(audit, i), given[i], suggested[i], f"{audit.p_error[i]:.2f}") for i in order]
    suspects = html_table(("row", "sample", "given", "suggested", "probability of error"), rows)
    if audit.regression or not audit.mask.any():
        return element("div", headline, suspects, "")
    pairs = audit.given[audit.mask], audit.suggested[audit.mask]
    often = np.bincount(np.concatenate(pairs), minlength=len(audit.classes))
    shown = np.sort(np.argsort(-often, kind="stable")[: min(TOP, int((often > 0).sum()))])
    counts = Counter(zip(*pairs, strict=True))
    names = [escape(audit.classes[c], 40) for c in shown]
    matrix = [(element("b", name), *(counts[c, d] or "" for d in shown)) for name, c in zip(names, shown, strict=True)]
    heading = element("p", "Flagged labels, given (rows) and suggested (columns):")
    return element("div", headline, suspects, element("div", heading, html_table(("", *names), matrix)))


def _sample(audit: Audit, i: int) -> Html:
    content = sample_content(audit.data, int(audit.position(i)))
    image = None if content.image is None else embedded_image(content.image)
    if image is not None:
        size = 'width="48" height="48" style="image-rendering:pixelated"'
        return Html(f'<img alt="" {size} src="data:image/{image}">')
    if content.text is not None:
        return escape(" ".join(content.text.split()), 120)
    if content.fields:
        return escape(", ".join(f"{name} {value}" for name, value in content.fields[:6]), 120)
    return escape(audit.ids[i] if audit.ids else content.missing)


# --- from an audit to its page --------------------------------------------------------------------------------


def page_of(audit: Audit, sample: Ints | None = None) -> dict[str, Any]:
    """The data of the page of an audit, or with the positions of a sample of the page on which a person looks at it.

    If the data were read in chunks, items come from the listed rows and counts from all rows.
    """
    listed = audit.shown
    order = np.argsort(-listed.log_odds, kind="stable")
    mask = listed.mask
    suspects = order[mask[order]]
    chosen = sample if sample is not None else suspects[:MAX_ITEMS] if len(suspects) else order[:LEAST_CERTAIN]
    shown = chosen.tolist()
    flagged = suspects if listed is audit else np.flatnonzero(audit.mask)
    notes = list(audit.notes)
    if len(flagged) > MAX_ITEMS:
        where = "all are in suspects.csv" if listed is audit else "all rows are in suspects/*.parquet"
        what = "values" if audit.regression else "labels"
        notes.append(f"{len(flagged):,} {what} are flagged; the {MAX_ITEMS:,} most suspect are here, {where}.")
    given, suggested = listed.names(listed.given), listed.names(listed.suggested)
    usual: list[float | None] = [None] * len(shown)
    if listed.regression:  # labels as they are written, and predictions rounded by their usual error
        cells = None if listed.data is None else listed.data.table
        if cells is not None and listed.source.label is not None:
            given = [str(cell) for cell in cells[listed.source.label]]
        usual = listed.evidence["usual residual"][chosen].tolist()
        same_digits = in_other_unit(listed.given, listed.suggested)
        for i, error in zip(shown, usual, strict=True):
            if not same_digits[i]:
                suggested[i] = _rounded(float(listed.suggested[i]), float(error or 0))
    since, how = listed.provenance.since, listed.provenance
    new = set(since["new"]) if since else set()
    groups = None if listed.found_issues is None or sample is not None else _issues(listed)
    sides = (row[side] for group in groups or () for row in group["rows"] for side in ("item", "other"))
    pictured = {i for i in sides if i is not None}
    lists = ((group["drop"], *(line[3] for line in group["lines"])) for group in groups or ())
    acted = {i for several in lists for some in several for i in some} - pictured - {*shown}
    everything = [*shown, *sorted(pictured - {*shown}), *sorted(acted)]  # suspects, then rows of issues
    likes = certain_examples(listed, chosen) if sample is None else {}
    used = sorted({j for sides in likes.values() for side in sides for j in side})
    position = {j: k for k, j in enumerate(used)}
    unseen = acted - {*used}

    def described(rows: Sequence[int]) -> dict[str, list[Any]]:
        """The fields of items and of examples."""
        return {
            "index": [int(listed.index[i]) for i in rows],
            "id": [listed.ids[i] if listed.ids else "" for i in rows],
            "content": [Content() if i in unseen else label_content(listed, i) for i in rows],
            "p": [float(listed.p_error[i]) for i in rows],
        }

    items = described(everything) | {
        "digest": [listed.row_digest(i) for i in everything],
        "part": [listed.part(i) for i in everything],
        "given": [given[i] for i in everything],
        "suggested": [suggested[i] for i in everything],
        "score": [float(listed.log_odds[i]) for i in everything],
        "flagged": [int(mask[i]) for i in shown],
        "new": [int(int(listed.index[i]) in new) for i in shown],
        "likely": [[] for _ in shown],
        "usual": usual,
        "why": [[[name, round(value, 2)] for name, value in parts] for parts in listed.reasons(chosen)],
        "likeGiven": [[position[j] for j in likes[i][0]] if likes else [] for i in shown],
        "likeSuggested": [[position[j] for j in likes[i][1]] if likes else [] for i in shown],
    }
    without = f"compensate audit {shlex.quote(listed.source.path)} --ignore" if listed.source.path else ""
    counts, edges = np.histogram(audit.p_error, bins=20, range=(0.0, 1.0))
    per_class: list[tuple[str, int, int, float]] = []
    values = None
    if audit.regression:
        pairs = Counter((given[i], suggested[i]) for i in shown if mask[i])
        rest = np.flatnonzero(~mask)
        rows = np.concatenate([rest[:: max(1, -(-len(rest) // DOTS))], suspects[:DOTS]])
        values = {
            "given": listed.given[rows].tolist(), "predicted": listed.suggested[rows].tolist(),
            "flagged": mask[rows].astype(int).tolist(),
        }  # fmt: skip
    else:
        both = zip(audit.given[flagged].tolist(), audit.suggested[flagged].tolist(), strict=True)
        pairs = Counter((audit.classes[g], audit.classes[s]) for g, s in sorted(both))
        names, number = audit.label_kind.groups(audit)
        sums = (np.bincount(number, w, minlength=len(names)) for w in (None, audit.mask, audit.p_error))
        per_class = [(n, int(r), int(f), float(w)) for n, r, f, w in zip(names, *sums, strict=True)]
        if listed.probabilities is not None:  # the most probable other classes
            p = np.array(listed.probabilities[chosen], dtype=np.float64)
            place = np.arange(len(shown))
            p[place, listed.given[chosen]] = p[place, listed.suggested[chosen]] = -1
            most = np.argsort(-p, axis=1, kind="stable")[:, : max(min(KEYS, len(listed.classes) - 2), 0)]
            items["likely"] = [[listed.classes[c] for c in likely] for likely in most]
    at, summary = {i: k for k, i in enumerate(everything)}, audit.label_kind.summary(audit)
    for group in groups or ():
        group["drop"] = [at[i] for i in group["drop"]]
        group["lines"] = [[*line[:3], [at[i] for i in line[3]], line[4]] for line in group["lines"]]
        for row in group["rows"]:
            row |= {"item": at[row["item"]], "other": None if row["other"] is None else at[row["other"]]}
    return {
        "listed": len(shown), "title": listed.title, "kind": listed.kind, "rows": len(audit), "allFlagged": len(flagged),
        "predictable": not audit.provenance.by_chance, "summary": summary,
        "noise": [listed.noise_rate.value, listed.noise_rate.low, listed.noise_rate.high],
        "precision": audit.expected_precision if len(flagged) and not summary else None,
        "workload": [] if summary else audit.workload.to_numpy().tolist(),
        "threshold": listed.threshold, "command": command(listed), "notes": notes, "source": listed.source_digest,
        "blind": sample is not None,
        "looks": audit.provenance.looks,
        "since": {
            "corrected": since["corrected"], "confirmed": since["confirmed"], "new": len(new),
            "gone": list(since["gone"])[:GONE_ROWS], "allGone": len(since["gone"]),
        } if since else None,
        "classes": listed.classes,
        "items": items,
        "examples": described(used) | {"label": [given[j] for j in used]},
        "pairs": [(*pair, count) for pair, count in pairs.most_common()],
        "perClass": per_class,
        "evidence": {
            "views": [[str(name), float(weight)] for name, weight in how.views.items()], "agreement": how.agreement,
            "encoder": how.encoder + (", fine-tuned on these labels" if how.finetuned else ""),
            "license": how.license, "hint": how.hint,
        },
        "values": values,
        "issues": groups,
        "without": without,
        "scores": {
            "edges": edges.tolist(), "counts": counts.tolist(), "threshold": audit.threshold,
            "flagged": np.histogram(audit.p_error[audit.mask], bins=edges)[0].tolist(),
        },
        "curves": [
            {"measure": measure, "method": "robust", "values": list(listed.curves[measure])}
            for measure in ("accuracy", "loss")
            if listed.curves.get(measure)
        ],
    }  # fmt: skip


def command(audit: Audit) -> str:
    """The command that applies corrections.csv; empty for an audit of arrays."""
    source = str(audit.source.path)
    if not source or source.endswith((".npy", ".npz")):
        return ""
    fixed = audit.label_kind.fixed_name(Path(source)).name
    given = {"label": str(audit.source.label)} if audit.source.label_given else {}
    options = "".join(f" --{name} {shlex.quote(value)}" for name, value in (given | audit.reading).items())
    return f"compensate apply {shlex.quote(source)} corrections.csv -o {shlex.quote(fixed)}{options}"


def _rounded(value: float, usual_error: float) -> str:
    """A prediction rounded to a tenth of its usual error, six digits at most.

    >>> _rounded(116.943, 12.8), _rounded(0.123456, 0.002), _rounded(1234567.0, 5e4)
    ('117', '0.1235', '1235000')
    """
    if not (usual_error > 0 and np.isfinite(value)):
        return f"{value:.6g}"
    decimals = -int(np.floor(np.log10(usual_error / 10)))
    text = f"{round(value, decimals):.{max(decimals, 0)}f}"
    return text if len(text) < 16 else f"{value:.6g}"


def _issues(audit: Audit) -> list[dict[str, Any]]:
    """The issues by kind; one of each two rows that are duplicates of each other.

    A row names labels of the audit by their positions. A line, about a column or a class, is its name, score and description, the positions of
    the labels of the class, and the name to merge it into. ``drop`` are the positions that are dropped together. Long lists are left empty.
    """
    position = {int(row): i for i, row in reversed([*enumerate(audit.rows)])}
    labels, groups = audit.names(audit.given), []
    counts = Counter(labels)

    def few(rows: Sequence[int]) -> list[int]:
        return [position[row] for row in rows if row in position] if len(rows) <= MAX_ITEMS else []

    assert audit.found_issues is not None
    for name, kind in ISSUES.items():
        issues = audit.found_issues[audit.found_issues["issue"] == name]
        seen: set[Any] = set()
        rows: list[dict[str, Any]] = []
        lines: list[list[Any]] = []
        for k, found in enumerate(records(issues)):
            mutual = name in ("duplicate", "conflicting_duplicate")
            pair = frozenset((found["index"], found["other"])) if mutual else k
            if pair in seen or len(seen) == MAX_ISSUES:
                continue
            seen.add(pair)
            i = position.get(found["index"])
            j = None if name == "test_duplicate" else position.get(found["other"])
            if i is None:
                own = found["column"] if kind.about == "class" else None
                alike = [c for c in counts if own is not None and c != own and near_names(c, own)]
                line = [found["column"] or f"row {found['index']}", found["score"], found["detail"]]
                named = few([int(audit.rows[k]) for k, name in enumerate(labels) if name == own])
                lines.append([*line, named, max(alike, key=lambda c: counts[c], default="")])
                continue
            rows.append({"item": i, "other": j, "score": found["score"], "detail": found["detail"]})
        if len(issues):
            title = (kind.one if len(issues) == 1 else kind.many).capitalize()
            texts = {"title": title, "advice": kind.advice, "score": kind.score, "count": len(issues)}
            bulk = kind.about == "row" and name != "conflicting_duplicate"
            texts |= {"name": name, "about": kind.about, "drop": few(issue_rows(audit, name)) if bulk else []}
            groups.append({**texts, "cut": len(rows) + len(lines) >= MAX_ISSUES, "rows": rows, "lines": lines})
    return groups


# --- certain examples -----------------------------------------------------------------------------------------


def certain_examples(audit: Audit, suspects: Ints) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
    """By suspect, the nearest certain rows with its given and with its suggested label; empty if rows cannot be compared.

    The rows nearest to a wrong label are often wrong for the same reason. Examples are therefore chosen by certainty first, according to
    models that did not see their labels, and only then by distance.
    """
    if audit.vectors is None or audit.data is None:
        return {}
    certain, margins = np.arange(len(audit)), None
    if audit.regression:
        certain = _certain_rows(audit, certain, None)
        certain = certain[np.argsort(audit.given[certain], kind="stable")]
    elif audit.probabilities is not None:
        p, position = np.array(audit.probabilities, dtype=np.float64), np.arange(len(audit.probabilities))
        own = p[position, audit.given]
        p[position, audit.given] = -np.inf
        margins = own - p.max(1)
    examples: tuple[dict[int, tuple[int, ...]], ...] = {}, {}
    sides = audit.given[suspects], audit.suggested[suspects]
    for label in np.unique(np.concatenate(sides)).tolist():
        if audit.regression:  # rows with similar values
            middle, half = int(np.searchsorted(audit.given[certain], label)), min(POOL, len(certain) // 10) // 2
            pool = certain[max(0, middle - max(2 * EXAMPLES, half)) : middle + max(2 * EXAMPLES, half)]
        else:
            pool = _certain_rows(audit, np.flatnonzero(audit.given == label), margins)[:POOL]
        rows = suspects[(sides[0] == label) | (sides[1] == label)]
        near = dict(zip(rows.tolist(), _nearest(audit, rows, pool), strict=True))
        for side, labels in zip(examples, sides, strict=True):
            side.update({i: near[i] for i in suspects[labels == label].tolist()})
    return {i: (examples[0][i], examples[1][i]) for i in suspects.tolist()}


def _certain_rows(audit: Audit, rows: Ints, margins: Floats | None) -> Ints:
    """The rows with the most certain labels, most certain first; ``margins`` (N,) of the out-of-fold probability of the given class, if known."""
    p = audit.p_error[rows]
    for bound in (CERTAIN, LIKELY_RIGHT):
        good = rows[p < bound]
        if margins is not None:
            good = good[margins[good] > 0]
        if len(good) >= EXAMPLES:
            break
    doubt = audit.p_error if margins is None else -margins
    order = good[np.argsort(doubt[good], kind="stable")]
    return order[: max(EXAMPLES, (len(order) + 1) // 2)]  # rows near the boundary are poor examples


def _nearest(audit: Audit, suspects: Ints, pool: Ints) -> list[tuple[int, ...]]:
    """For each suspect the nearest rows of the pool, one of each group of copies."""
    if not len(pool):
        return [()] * len(suspects)
    ours, theirs = audit.vectors[suspects], audit.vectors[pool]
    if bool(sparse.issparse(theirs)):
        theirs.sum_duplicates()
        theirs.eliminate_zeros()
        content = [one.indices.tobytes() + one.data.tobytes() for one in theirs]
        products = (ours @ theirs.T).toarray()
        squares = [np.asarray(x.multiply(x).sum(1), dtype=np.float64).ravel() for x in (ours, theirs)]
    else:
        ours, theirs = (np.asarray(x, dtype=np.float32) for x in (ours, theirs))
        content = [one.tobytes() for one in theirs + np.float32(0)]  # 0 and -0 are equal
        products = ours @ theirs.T
        squares = [(x**2).sum(1, dtype=np.float64) for x in (ours, theirs)]
    distance = np.sqrt(np.maximum(squares[1] + squares[0][:, None] - 2 * products.astype(np.float64), 0))
    copies = distance <= CLOSE * np.quantile(distance, 0.9, axis=1, keepdims=True)
    distance[copies | (pool == suspects[:, None])] = np.inf
    allowed = np.isfinite(distance).sum(1).tolist()
    nearest = []
    for order, count in zip(np.argsort(distance, axis=1, kind="stable").tolist(), allowed, strict=True):
        distinct: dict[bytes, int] = {}
        for j in order[:count]:
            distinct.setdefault(content[j], int(pool[j]))
            if len(distinct) == EXAMPLES:
                break
        nearest.append(tuple(distinct.values()))
    return nearest


# --- claims ---------------------------------------------------------------------------------------------------


def exceeds(count: Ints, of: Ints, other: Ints, of_other: Ints, level: float = LEVEL) -> NDArray[np.bool_]:
    """Whether each first share is larger than the second, by Fisher's exact test."""
    return np.asarray(hypergeom.sf(count - 1, of + of_other, count + other, of) < level)


def unreliable(per_class: Sequence[tuple[str, int, int, float]], low: float, high: float) -> dict[str, Any]:
    """The classes that stand out beyond chance: the level of the test is divided by the number of classes.

    Flags alone may differ because one class is harder to predict. A class holds more errors if its expected share stays above that of the
    others even with the noise rate at the low end of its interval for the one and at the high end for the others.

    Args:
        per_class: name, rows, flagged rows and expected errors of each class.
        low, high: the interval of the noise rate.

    Returns:
        ``classes`` flagged significantly more often than all others together, largest share first; ``worst``: whether the first exceeds
        each single other class; ``wrong``: whether they also hold more errors.
    """
    counts = sorted((c for c in per_class if c[1]), key=lambda c: -c[2] / c[1])
    claims: dict[str, Any] = {"classes": [], "worst": False, "wrong": False}
    if len(counts) < 2:
        return claims
    rows, flagged, wrong = (np.array([c[k] for c in counts]) for k in (1, 2, 3))
    level = LEVEL / len(counts)
    more = exceeds(flagged, rows, flagged.sum() - flagged, rows.sum() - rows, level)
    if more.any():
        first, others = int(more.argmax()), np.arange(len(counts)) != more.argmax()
        shares = [wrong[part].sum() / max(rows[part].sum(), 1) for part in (more, ~more)]
        claims["classes"] = [c[0] for c, stands_out in zip(counts, more, strict=True) if stands_out]
        claims["worst"] = bool(exceeds(flagged[first], rows[first], flagged[others], rows[others], level).all())
        claims["wrong"] = bool(shares[0] * low > shares[1] * high)
    return claims


def lopsided(count: int, other: int) -> bool:
    """Whether one of two directions is significantly more frequent than the other."""
    return count + other > 0 and float(binomtest(count, count + other).pvalue) < LEVEL


# --- JSON -----------------------------------------------------------------------------------------------------


def payload(page: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a page as it is stored: texts by number, numbers of six digits, and ``key``, a hash of the rest."""
    labels: defaultdict[str, int] = defaultdict(lambda: len(labels))
    names: defaultdict[str, int] = defaultdict(lambda: len(names))
    items, examples, pairs = page["items"], page["examples"], page["pairs"]
    texts = sum((content.text is not None) + len(content.fields) + len(content.sides) for content in items["content"])
    limit = max(TEXT_LIMITS[0], min(TEXT_LIMITS[1], TEXT_BUDGET // max(texts, 1)))
    claims = unreliable(page["perClass"], *page["noise"][1:])
    back = {(given, suggested): count for given, suggested, count in pairs}
    listed = page.get("listed", len(items["index"]))
    found = {
        **page,
        "listed": listed,
        "classes": [labels[name] for name in page["classes"]],
        "flagged": sum(items["flagged"]),
        "items": {
            **items,
            **{side: [labels[name] for name in items[side]] for side in ("given", "suggested")},
            "content": [_stored(c, names, limit if k < listed else ISSUE_TEXT) for k, c in enumerate(items["content"])],
            "likely": [[labels[name] for name in likely] for likely in items["likely"]],
        },
        "examples": {
            **examples,
            "label": [labels[name] for name in examples["label"]],
            "content": [_stored(content, names, EXAMPLE_TEXT) for content in examples["content"]],
        },
        "pairs": [[labels[given], labels[suggested], count] for given, suggested, count in pairs],
        "oneWay": bool(pairs) and lopsided(pairs[0][2], back.get((pairs[0][1], pairs[0][0]), 0)),
        "perClass": [[labels[name], rows, flagged] for name, rows, flagged, _ in page["perClass"]],
        "unreliable": {**claims, "classes": [labels[name] for name in claims["classes"]]},
    }
    plain = _plain({**found, "labels": list(labels), "names": list(names)})
    return {**plain, "key": hashlib.sha256(to_json(plain).encode()).hexdigest()[:20]}


def _plain(value: Any) -> Any:
    """The value with floats of six digits, None for NaN and infinity."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return {name: _plain(one) for name, one in value.items()} if isinstance(value, Mapping) else value


def _stored(content: Content, names: Mapping[str, int], limit: int) -> dict[str, Any]:
    """A content with its long texts cut; a cut text is followed by its full length."""

    def cut(text: str) -> list[Any]:
        return [text] if len(text) <= limit else [text[:limit], len(text)]

    image = None if content.image is None else embedded_image(content.image)
    unknown = "This image is of a kind the page cannot show." if content.image is not None and image is None else ""
    parts = {
        "image": image,
        "text": None if content.text is None else cut(content.text),
        "fields": [[names[name], *cut(value)] for name, value in content.fields] or None,
        "sides": [[names[name], *cut(value)] for name, value in content.sides] or None,
        "chips": [[names[name], int(given)] for name, given in content.chips] or None,
        "tokens": [[word, names[tag]] for word, tag in content.tokens] or None,
        "votes": [[names[who], names[label]] for who, label in content.votes] or None,
        "marked": content.marked,
        "missing": content.missing or unknown or None,
    }
    return {name: part for name, part in parts.items() if part is not None}


def to_json(value: Any) -> str:
    """JSON without characters that have a meaning in HTML."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def read_payload(html: bytes) -> dict[str, Any]:
    """The data of a written page; an error if it is not a review page."""
    _, begin, rest = html.partition(BEGIN)
    content, end, _ = rest.partition(b"</script>")
    try:
        found = json.loads(content)
        items, numbers = found["items"], range(len(found["labels"]))
        rows = len(items["index"])
        fits = (
            bool(begin and end)
            and re.fullmatch("[0-9a-f]{20}", found["key"]) is not None
            and isinstance(found["source"], str)
            and all(len(items[name]) == rows for name in ("given", "suggested", "digest", "part"))
            and all(number in numbers for number in (*items["given"], *items["suggested"], *found["classes"]))
            and all(isinstance(text, str) for text in (*found["labels"], *items["digest"], *items["part"]))
            and all(isinstance(row, int) for row in items["index"])
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        fits = False
    if not fits:
        raise InputError("report.html is not a review page of this version; audit the data again.")
    return found
