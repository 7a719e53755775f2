"""The data of the review page: from an audit to plain lists and dictionaries, and to JSON.

`page_of` collects the data with labels and column names as texts, `payload` replaces repeated texts by numbers.

Claims about classes are made only beyond chance. Two shares are compared by Fisher's exact test; where the largest of many shares is picked,
the level is divided by their number. (Newcombe's interval for the difference, at 5 % divided in the same way, set a class apart in 9 % of
simulated data sets with 10 equal classes of 200 rows, in 22 % with 100 of 60 rows and in 60 % with 300 of 30 rows.)
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compensate.auditing.content import KINDS, MAX_ITEMS, Content, embedded_image, label_content, sample_content
from compensate.auditing.issues import KINDS as ISSUES
from compensate.auditing.issues import records
from compensate.auditing.page.examples import certain_examples
from compensate.data.dataset import Floats, Ints
from compensate.errors import InputError

if TYPE_CHECKING:
    from compensate.auditing.result import Audit

LEAST_CERTAIN = 20  # rows that are shown if nothing is flagged
MAX_ISSUES = 100  # issues of a kind on the page; the others are in issues.csv
KEYS = 9  # other classes of an item that have a key
DOTS = 1500  # rows in the chart of given and predicted values
SURE = 2.0  # standard errors by which predictions must be better than chance
GONE_ROWS = 20  # former suspects on the page
LEVEL = 0.05  # significance level of claims
TEXT_BUDGET = 32_000_000  # approximate number of characters of sample text on a page
TEXT_LIMITS = (2_000, 200_000)  # smallest and largest number of characters that are kept of each text
EXAMPLE_TEXT, ISSUE_TEXT = 1_000, 400  # characters that are kept of the text of an example and of an issue
BEGIN = b'<script type="application/json" id="data">'  # the element of the page that holds the data
_ESCAPED = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


# --- from an audit to its page --------------------------------------------------------------------------------


def page_of(audit: Audit) -> dict[str, Any]:
    """The data of the page of an audit.

    If the data were read in chunks, items come from the listed rows and counts from all rows.
    """
    listed = audit.shown
    order = np.argsort(-listed.log_odds, kind="stable")
    mask = listed.mask
    suspects = order[mask[order]]
    shown = suspects[:MAX_ITEMS] if len(suspects) else order[:LEAST_CERTAIN]
    flagged = suspects if listed is audit else np.flatnonzero(audit.mask)
    notes = list(audit.notes)
    if len(flagged) > MAX_ITEMS:
        where = "all are in suspects.csv" if listed is audit else "all rows are in suspects/*.parquet"
        what = "values" if audit.regression else "labels"
        notes.append(f"{len(flagged):,} {what} are flagged; the {MAX_ITEMS:,} most suspect are here, {where}.")
    given, suggested, usual = _label_texts(listed, shown)
    since, how = listed.provenance.since, listed.provenance
    new = set(since["new"]) if since else set()
    likes = certain_examples(listed, shown)
    used = sorted({j for sides in likes.values() for side in sides for j in side})
    position = {j: k for k, j in enumerate(used)}
    items = {
        "index": [int(listed.index[i]) for i in shown],
        "id": [listed.ids[i] if listed.ids else "" for i in shown],
        "digest": [listed.row_digest(int(i)) for i in shown],
        "part": [listed.part(int(i)) for i in shown],
        "given": [given[i] for i in shown],
        "suggested": [suggested[i] for i in shown],
        "score": [float(listed.log_odds[i]) for i in shown],
        "p": [float(listed.p_error[i]) for i in shown],
        "flagged": [int(mask[i]) for i in shown],
        "new": [int(int(listed.index[i]) in new) for i in shown],
        "content": [label_content(listed, int(i)) for i in shown],
        "likely": _likely_classes(listed, shown),
        "usual": usual,
        "likeGiven": [[position[j] for j in likes[int(i)][0]] if likes else [] for i in shown],
        "likeSuggested": [[position[j] for j in likes[int(i)][1]] if likes else [] for i in shown],
    }
    examples = {
        "index": [int(listed.index[j]) for j in used],
        "id": [listed.ids[j] if listed.ids else "" for j in used],
        "label": [given[j] for j in used],
        "content": [label_content(listed, j) for j in used],
        "p": [float(listed.p_error[j]) for j in used],
    }
    if audit.regression:
        pairs = Counter((given[i], suggested[i]) for i in shown if mask[i])
    else:
        both = zip(audit.given[flagged].tolist(), audit.suggested[flagged].tolist(), strict=True)
        pairs = Counter((audit.classes[g], audit.classes[s]) for g, s in sorted(both))
    compensations = listed.evidence.get("compensation")
    if compensations is not None and not (np.isfinite(compensations).all() and compensations.max(initial=0) > 0):
        compensations = None
    return {
        "title": listed.title,
        "kind": listed.kind if listed.kind in KINDS else "embedding",
        "rows": len(audit),
        "allFlagged": len(flagged),
        "predictable": predictable(audit),
        "noise": [listed.noise_rate.value, listed.noise_rate.low, listed.noise_rate.high],
        "precision": audit.expected_precision if len(flagged) else None,
        "threshold": listed.threshold,
        "command": command(listed),
        "notes": notes,
        "source": listed.source_digest,
        "since": {
            "corrected": since["corrected"], "confirmed": since["confirmed"], "new": len(new),
            "gone": list(since["gone"])[:GONE_ROWS], "allGone": len(since["gone"]),
        } if since else None,
        "classes": listed.classes,
        "items": items,
        "examples": examples,
        "pairs": sorted(((*pair, count) for pair, count in pairs.items()), key=lambda pair: -pair[2]),
        "perClass": _per_class(audit),
        "evidence": {
            "views": [[str(name), float(weight)] for name, weight in how.views.items()],
            "agreement": how.agreement,
            "encoder": how.encoder + (", fine-tuned on these labels" if how.finetuned else ""),
            "license": how.license,
            "hint": how.hint,
        },
        "values": _values(listed, suspects),
        "issues": _issues(listed),
        "scores": _histogram(audit.p_error, audit.mask, 1.0, audit.threshold),
        "compensations": None if compensations is None else _histogram(compensations, mask, float(compensations.max())),
        "curves": [
            {"measure": measure, "method": "robust", "values": list(listed.curves[measure])}
            for measure in ("accuracy", "loss")
            if listed.curves.get(measure)
        ],
    }  # fmt: skip


def command(audit: Audit) -> str:
    """The command that applies corrections.csv; empty for an audit of arrays."""
    source = str(audit.source.path)
    if not source:
        return ""
    fixed = audit.label_kind.fixed_name(Path(source)).name
    given = {"label": str(audit.source.label)} if audit.source.label_given else {}
    options = "".join(f" --{name} {shlex.quote(value)}" for name, value in (given | audit.reading).items())
    return f"compensate apply {shlex.quote(source)} corrections.csv -o {shlex.quote(fixed)}{options}"


def predictable(audit: Audit) -> bool:
    """Whether the samples predict the given labels better than chance.

    The audit's own verdict counts if it has one. Otherwise, by `SURE` standard errors: for classes, the out-of-fold log loss against that of
    the class frequencies, or the accuracy against the largest class; for quantities, the absolute error against that of the median.
    """
    if audit.provenance.by_chance is not None:
        return not audit.provenance.by_chance

    def positive(gains: Floats) -> bool:
        return bool(gains.mean() > SURE * gains.std() / np.sqrt(max(len(gains), 1)))

    if audit.regression:  # the gain is bounded by the distance of the prediction from the median, even for wild values
        return positive(np.abs(audit.given - np.median(audit.given)) - np.abs(audit.given - audit.suggested))
    if audit.probabilities is None:
        return True
    shares = np.bincount(audit.given, minlength=len(audit.classes)) / len(audit)
    own = np.asarray(audit.probabilities, dtype=np.float64)[np.arange(len(audit)), audit.given]
    hits = audit.probabilities.argmax(1) == audit.given
    return positive(np.log(np.maximum(own, 1e-12) / shares[audit.given])) or positive(hits - shares.max())


def _label_texts(audit: Audit, shown: Ints) -> tuple[list[str], list[str], list[float | None]]:
    """Given and suggested labels as texts; for the shown quantities, also the usual error: a robust standard deviation."""
    given, suggested = audit.names(audit.given), audit.names(audit.suggested)
    if not audit.regression:
        return given, suggested, [None] * len(shown)
    scale = audit.evidence.get("usual residual")
    if scale is None:
        scale = np.full(len(audit), 1.4826 * np.median(np.abs(audit.given - audit.suggested)))
    for i in shown:
        suggested[i] = _rounded(float(audit.suggested[i]), float(scale[i]))
    table, label = (None, None) if audit.data is None else (audit.data.table, audit.source.label)
    written = given if table is None or label is None else [str(cell) for cell in table[label]]
    return written, suggested, [float(value) for value in scale[shown]]


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


def _likely_classes(audit: Audit, rows: Ints) -> list[list[str]]:
    """For each row, the most probable classes other than the given and the suggested one."""
    if audit.regression or audit.probabilities is None:
        return [[] for _ in rows]
    p = np.array(audit.probabilities[rows], dtype=np.float64)
    position = np.arange(len(rows))
    p[position, audit.given[rows]] = p[position, audit.suggested[rows]] = -1
    others = max(min(KEYS, len(audit.classes) - 2), 0)
    return [[audit.classes[c] for c in found] for found in np.argsort(-p, axis=1, kind="stable")[:, :others]]


def _per_class(audit: Audit) -> list[tuple[str, int, int, float]]:
    """Name, rows, flagged rows and expected errors of each class."""
    if audit.regression:
        return []
    names, number = audit.label_kind.groups(audit)
    rows, flagged, wrong = (np.bincount(number, w, minlength=len(names)) for w in (None, audit.mask, audit.p_error))
    return [(n, int(r), int(f), float(w)) for n, r, f, w in zip(names, rows, flagged, wrong, strict=True)]


def _histogram(values: Floats, mask: NDArray[np.bool_], end: float, threshold: float | None = None) -> dict[str, Any]:
    counts, edges = np.histogram(values, bins=20, range=(0.0, end))
    flagged = np.histogram(values[mask], bins=edges)[0]
    return {"edges": edges.tolist(), "counts": counts.tolist(), "flagged": flagged.tolist(), "threshold": threshold}


def _values(audit: Audit, flagged: Ints) -> dict[str, Any] | None:
    """Given and predicted quantities of the flagged rows and of an even sample of the others."""
    if not audit.regression:
        return None
    rest = np.flatnonzero(~audit.mask)
    rows = np.concatenate([rest[:: max(1, -(-len(rest) // DOTS))], flagged[:DOTS]])
    return {
        "given": audit.given[rows].tolist(),
        "predicted": audit.suggested[rows].tolist(),
        "flagged": audit.mask[rows].astype(int).tolist(),
    }


def _issues(audit: Audit) -> list[dict[str, Any]] | None:
    """The issues by kind; one of each two rows that are duplicates of each other."""
    if audit.found_issues is None:
        return None
    position = {int(row): i for i, row in enumerate(audit.index)}
    labels = audit.names(audit.given)
    groups = []
    for name, kind in ISSUES.items():
        table = audit.found_issues[audit.found_issues["issue"] == name]
        seen: set[Any] = set()
        rows: list[dict[str, Any]] = []
        lines: list[list[Any]] = []
        for k, found in enumerate(records(table)):
            mutual = name in ("duplicate", "conflicting_duplicate")
            pair = frozenset((found["index"], found["other"])) if mutual else k
            if pair in seen or len(seen) == MAX_ISSUES:
                continue
            seen.add(pair)
            i = position.get(found["index"])
            j = None if name == "test_duplicate" else position.get(found["other"])
            if i is None:
                lines.append([found["column"] or f"row {found['index']}", found["score"], found["detail"]])
                continue
            rows.append(
                {
                    "index": int(audit.index[i]),
                    "label": labels[i],
                    "content": sample_content(audit.data, i),
                    "score": found["score"],
                    "detail": found["detail"],
                    "other": None if j is None else sample_content(audit.data, j),
                    "otherIndex": found["other"],
                    "otherLabel": "" if j is None else labels[j],
                    "id": audit.ids[i] if audit.ids else "",
                    "otherId": audit.ids[j] if audit.ids and j is not None else "",
                }
            )
        if len(table):
            title = (kind.one if len(table) == 1 else kind.many).capitalize()
            texts = {"title": title, "advice": kind.advice, "score": kind.score, "count": len(table)}
            groups.append({**texts, "cut": len(rows) + len(lines) >= MAX_ISSUES, "rows": rows, "lines": lines})
    return groups


# --- claims ---------------------------------------------------------------------------------------------------


def exceeds(count: Ints, of: Ints, other: Ints, of_other: Ints, level: float = LEVEL) -> NDArray[np.bool_]:
    """Whether each first share is significantly larger than the second.

    >>> exceeds(np.array([12, 120]), np.array([100, 1000]), np.array([6, 60]), np.array([100, 1000]))
    array([False,  True])
    """
    from scipy.stats import hypergeom  # slow to import

    return np.asarray(hypergeom.sf(count - 1, of + of_other, count + other, of) < level)


def unreliable(per_class: Sequence[tuple[str, int, int, float]], low: float, high: float) -> dict[str, Any]:
    """The classes that stand out.

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
    """Whether one of two directions is significantly more frequent than the other.

    >>> lopsided(12, 8), lopsided(120, 80)
    (False, True)
    """
    from scipy.stats import binomtest

    return count + other > 0 and float(binomtest(count, count + other).pvalue) < LEVEL


# --- JSON -----------------------------------------------------------------------------------------------------


class _Numbers(dict[str, int]):
    """A number for each distinct text."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return self[text]


def payload(page: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a page as it is stored: texts by number, numbers of six digits, and ``key``, a hash of the rest."""
    labels, names = _Numbers(), _Numbers()
    items, examples, pairs = page["items"], page["examples"], page["pairs"]
    texts = sum((content.text is not None) + len(content.fields) for content in items["content"])
    limit = max(TEXT_LIMITS[0], min(TEXT_LIMITS[1], TEXT_BUDGET // max(texts, 1)))
    claims = unreliable(page["perClass"], *page["noise"][1:])
    back = {(given, suggested): count for given, suggested, count in pairs}
    classes = [labels[name] for name in page["classes"]]
    found = {
        **{name: page[name] for name in ("title", "kind", "rows")},
        "flagged": sum(items["flagged"]),
        **{name: page[name] for name in ("allFlagged", "predictable", "noise", "precision", "threshold", "command")},
        **{name: page[name] for name in ("notes", "source", "since")},
        "classes": classes,
        "items": {
            **items,
            "given": [labels[name] for name in items["given"]],
            "suggested": [labels[name] for name in items["suggested"]],
            "content": [_stored(content, names, limit) for content in items["content"]],
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
        **{name: page[name] for name in ("evidence", "values")},
        "issues": page["issues"] and [
            {
                **group,
                "rows": [
                    {
                        **row,
                        "label": labels[row["label"]],
                        "content": _stored(row["content"], names, ISSUE_TEXT),
                        "other": None if row["other"] is None else _stored(row["other"], names, ISSUE_TEXT),
                        "otherLabel": labels[row["otherLabel"]],
                    }
                    for row in group["rows"]
                ],
            }
            for group in page["issues"]
        ],
        **{name: page[name] for name in ("scores", "compensations", "curves")},
        "labels": list(labels),
        "names": list(names),
    }  # fmt: skip
    plain = _plain(found)
    return {**plain, "key": hashlib.sha256(to_json(plain).encode()).hexdigest()[:20]}


def _plain(value: Any) -> Any:
    """The value with floats of six digits, None for NaN and infinity."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return {name: _plain(one) for name, one in value.items()} if isinstance(value, Mapping) else value


def _stored(content: Content, names: _Numbers, limit: int) -> dict[str, Any]:
    """A content with its long texts cut; a cut text is followed by its full length."""

    def cut(text: str) -> list[Any]:
        return [text] if len(text) <= limit else [text[:limit], len(text)]

    image = None if content.image is None else embedded_image(content.image)
    unknown = "This image is of a kind the page cannot show." if content.image is not None and image is None else ""
    parts = {
        "image": image,
        "text": None if content.text is None else cut(content.text),
        "fields": [[names[name], *cut(value)] for name, value in content.fields] or None,
        "chips": [[names[name], int(given)] for name, given in content.chips] or None,
        "tokens": [[word, names[tag]] for word, tag in content.tokens] or None,
        "votes": [[names[who], names[label]] for who, label in content.votes] or None,
        "marked": content.marked,
        "missing": content.missing or unknown or None,
    }
    return {name: part for name, part in parts.items() if part is not None}


def to_json(value: Any) -> str:
    r"""JSON without characters that have a meaning in HTML.

    >>> to_json("</script><!--")
    '"\\u003c/script\\u003e\\u003c!--"'
    """
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
            and all(number in numbers for name in ("given", "suggested") for number in items[name])
            and all(number in numbers for number in found["classes"])
            and all(isinstance(text, str) for text in (*found["labels"], *items["digest"], *items["part"]))
            and all(isinstance(row, int) for row in items["index"])
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        fits = False
    if not fits:
        raise InputError("report.html is not a review page of this version; audit the data again.")
    return found
