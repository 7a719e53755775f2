r"""Which differences between counts are more than chance, so that the page may speak of them.

Two shares are compared by Fisher's exact test: given that :math:`k_1 + k_2` of :math:`n_1 + n_2` rows are flagged, the number of
them among the first :math:`n_1` is hypergeometric if nothing differs. Where the largest of many shares is picked, the level is
divided by their number. (Newcombe's interval for the difference, at 5 % divided in the same way, set a class apart in 9 % of simulated data
sets with 10 equal classes of 200 rows, in 22 % with 100 of 60 rows and in 60 % with 300 of 30 rows.)
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compensate.auditing.page.model import (
    ClassCount,
    ClassPair,
    Content,
    Estimate,
    Example,
    Histogram,
    IssueGroup,
    Item,
    Page,
    PageProvenance,
    Since,
    Values,
)
from compensate.data.dataset import Ints
from compensate.errors import InputError

LEVEL = 0.05
"""The probability of a claim where nothing differs."""


def exceeds(count: Ints, of: Ints, other: Ints, of_other: Ints, level: float = LEVEL) -> NDArray[np.bool_]:
    """Whether each first share is larger than the second by more than chance.

    >>> exceeds(np.array([12, 120]), np.array([100, 1000]), np.array([6, 60]), np.array([100, 1000]))
    array([False,  True])
    """
    from scipy.stats import hypergeom  # takes as long to import as the rest of the command line

    return np.asarray(hypergeom.sf(count - 1, of + of_other, count + other, of) < level)


@dataclass(frozen=True)
class Unreliable:
    """What may be said of classes.

    Attributes:
        classes: those flagged more often than all others together by more than chance, largest share first.
        worst: whether the first of them exceeds each single other class too.
        wrong: whether they hold more errors too, not only more flags.
    """

    classes: tuple[str, ...] = ()
    worst: bool = False
    wrong: bool = False


def unreliable(counts: Sequence[ClassCount], rate: Estimate) -> Unreliable:
    """Which classes stand out.

    Flags alone may differ because one class is harder to predict. A class holds more errors if the share that is expected of it
    stays above that of the others though the share of the whole data lay at the low end of its interval for the one, and
    at the high end for the others: an open interval allows no such claim.
    """
    counts = sorted((c for c in counts if c.rows), key=lambda c: -c.flagged / c.rows)
    if len(counts) < 2:
        return Unreliable()
    level = LEVEL / len(counts)
    flagged, rows = np.array([c.flagged for c in counts]), np.array([c.rows for c in counts])
    more = exceeds(flagged, rows, flagged.sum() - flagged, rows.sum() - rows, level)
    if not more.any():
        return Unreliable()
    found = [c for c, stands_out in zip(counts, more, strict=True) if stands_out]
    first, others = int(more.argmax()), np.arange(len(counts)) != more.argmax()
    worst = bool(exceeds(flagged[first], rows[first], flagged[others], rows[others], level).all())
    wrong = _expected(found) * rate.low > _expected([c for c in counts if c not in found]) * rate.high
    return Unreliable(tuple(c.label for c in found), worst, wrong)


def _expected(counts: Sequence[ClassCount]) -> float:
    """The share of wrong labels that is expected in these classes."""
    wrong = sum(c.flagged if c.wrong is None else c.wrong for c in counts)
    return wrong / max(sum(c.rows for c in counts), 1)


def lopsided(count: int, other: int) -> bool:
    """Whether one of two directions is more frequent than the other by more than chance.

    >>> lopsided(12, 8), lopsided(120, 80)
    (False, True)
    """
    from scipy.stats import binomtest

    return count + other > 0 and float(binomtest(count, count + other).pvalue) < LEVEL


TEXT_BUDGET = 32_000_000
"""About how many characters of sample text a page may hold in all."""

TEXT_LIMITS = (2_000, 200_000)
"""The fewest and the most characters of each text that are kept, whatever the number of samples."""

EXAMPLE_LIMIT = 1_000
"""Characters kept of the text of an example, which is shown small."""

BEGIN = b'<script type="application/json" id="data">'
"""What stands before the data in the page."""

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
)

GONE_ROWS = 20
"""Rows that are no longer suspect which the page names."""

_ESCAPED = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


class _Table:
    """Texts by number, each kept once."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))

    @property
    def texts(self) -> list[str]:
        return list(self.numbers)


def payload(page: Page) -> dict[str, Any]:
    """The page as plain lists and dictionaries; ``key`` is a hash of all the rest.

    >>> from compensate.auditing.page.model import Estimate, Item
    >>> page = Page("a.csv", "text", ("x", "y"), 9, (Item(4, "x", "y", 1.0, 0.9, True),), Estimate(0.1, 0.0, 0.2))
    >>> found = payload(page)
    >>> found["items"]["index"], found["items"]["suggested"], found["labels"]
    ([4], [1], ['x', 'y'])
    """
    labels, names = _Table(), _Table()
    standing_out = unreliable(page.per_class, page.noise_rate)
    classes = [labels(name) for name in page.classes]
    limit = _text_limit(page.items)
    found = {
        "title": page.title,
        "kind": page.kind,
        "rows": page.rows,
        "flagged": page.flagged,
        "allFlagged": page.flagged if page.all_flagged is None else page.all_flagged,
        "predictable": page.predictable,
        "noise": [_number(v) for v in (page.noise_rate.value, page.noise_rate.low, page.noise_rate.high)],
        "precision": _number(page.expected_precision),
        "threshold": _number(page.threshold),
        "command": page.command,
        "notes": list(page.notes),
        "source": page.source_digest,
        "since": _since(page.since),
        "classes": classes,
        "items": _items(page.items, page.examples, labels, names, limit),
        "examples": {
            "index": [example.index for example in page.examples],
            "id": [example.id for example in page.examples],
            "label": [labels(example.label) for example in page.examples],
            "content": [_content(example.content, names, EXAMPLE_LIMIT) for example in page.examples],
            "p": [_number(example.p_error) for example in page.examples],
        },
        "pairs": [[labels(pair.given), labels(pair.suggested), pair.count] for pair in page.pairs],
        "oneWay": _one_way(page.pairs),
        "perClass": [[labels(count.label), count.rows, count.flagged] for count in page.per_class],
        "unreliable": {
            "classes": [labels(label) for label in standing_out.classes],
            "worst": standing_out.worst,
            "wrong": standing_out.wrong,
        },
        "evidence": _evidence(page.evidence),
        "values": _values(page.values),
        "issues": None if page.issues is None else [_issues(group, labels, names) for group in page.issues],
        "scores": _histogram(page.scores),
        "compensations": _histogram(page.compensations),
        "curves": [
            {"measure": curve.measure, "method": curve.method, "values": [_number(v) for v in curve.values]}
            for curve in page.curves
        ],
        "labels": labels.texts,
        "names": names.texts,
    }
    digest = hashlib.sha256(to_json(found).encode())
    return {**found, "key": digest.hexdigest()[:20]}


def to_json(value: Any) -> str:
    r"""JSON without a character that means something to HTML.

    >>> to_json("</script><!--")
    '"\\u003c/script\\u003e\\u003c!--"'
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def read_payload(html: bytes) -> dict[str, Any]:
    """The data of a page that was written; an error if it is no such page."""
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
        raise InputError("report.html is no review page of this version; audit the data again.")
    return found


def image_type(image: bytes) -> str | None:
    r"""The kind of image that these bytes begin like, among those a browser shows without running anything.

    >>> image_type(b"\x89PNG\r\n\x1a\n..."), image_type(b"<svg onload=alert(1)>")
    ('png', None)
    """
    if image[:4] == b"RIFF" and image[8:12] == b"WEBP":
        return "webp"
    return next((kind for magic, kind in _MAGIC if image.startswith(magic)), None)


def _items(
    items: tuple[Item, ...], examples: tuple[Example, ...], labels: _Table, names: _Table, limit: int
) -> dict[str, list[Any]]:
    place = {example.index: position for position, example in enumerate(examples)}
    return {
        "index": [item.index for item in items],
        "id": [item.id for item in items],
        "digest": [item.digest for item in items],
        "part": [item.part for item in items],
        "given": [labels(item.given) for item in items],
        "suggested": [labels(item.suggested) for item in items],
        "score": [_number(item.score) for item in items],
        "p": [_number(item.p_error) for item in items],
        "flagged": [int(item.flagged) for item in items],
        "new": [int(item.new) for item in items],
        "content": [_content(item.content, names, limit) for item in items],
        "likely": [[labels(name) for name in item.likely[:9]] for item in items],
        "usual": [_number(item.usual_error) for item in items],
        "likeGiven": [[place[i] for i in item.like_given[:3]] for item in items],
        "likeSuggested": [[place[i] for i in item.like_suggested[:3]] for item in items],
    }


def _text_limit(items: tuple[Item, ...]) -> int:
    least, most = TEXT_LIMITS
    texts = sum((item.content.text is not None) + len(item.content.fields) for item in items)
    return max(least, min(most, TEXT_BUDGET // max(texts, 1)))


def _content(content: Content, names: _Table, limit: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if content.image is not None:
        kind = image_type(content.image)
        if kind is None:
            found["missing"] = content.missing or "This image is of a kind the page cannot show."
        else:
            found["image"] = f"{kind};base64,{base64.b64encode(content.image).decode()}"
    if content.text is not None:
        found["text"] = _cut(content.text, limit)
    if content.fields:
        found["fields"] = [[names(name), *_cut(value, limit)] for name, value in content.fields]
    if content.chips:
        found["chips"] = [[names(name), int(given)] for name, given in content.chips]
    if content.tokens:
        found["tokens"] = [[word, names(tag)] for word, tag in content.tokens]
    if content.votes:
        found["votes"] = [[names(who), names(said)] for who, said in content.votes]
    if content.marked is not None:
        found["marked"] = content.marked
    if content.missing:
        found["missing"] = content.missing
    return found


def _cut(text: str, limit: int) -> list[Any]:
    """The text, and its full length if it had to be cut."""
    return [text] if len(text) <= limit else [text[:limit], len(text)]


def _one_way(pairs: tuple[ClassPair, ...]) -> bool:
    """Whether the most frequent pair is more frequent than the same pair the other way round."""
    if not pairs:
        return False
    back = (pairs[0].suggested, pairs[0].given)
    return lopsided(pairs[0].count, next((p.count for p in pairs if (p.given, p.suggested) == back), 0))


def _evidence(evidence: PageProvenance) -> dict[str, Any]:
    return {
        "views": [[name, _number(weight)] for name, weight in evidence.views],
        "agreement": _number(evidence.agreement),
        "encoder": evidence.encoder,
        "license": evidence.license,
        "hint": evidence.hint,
    }


def _since(since: Since | None) -> dict[str, Any] | None:
    if since is None:
        return None
    return {
        "corrected": since.corrected,
        "confirmed": since.confirmed,
        "new": since.new,
        "gone": list(since.gone[:GONE_ROWS]),
        "allGone": len(since.gone),
    }


ISSUE_TEXT = 400
"""Characters of a text in the list of issues."""


def _issues(group: IssueGroup, labels: _Table, names: _Table) -> dict[str, Any]:
    def shown(content: Content) -> dict[str, Any]:
        return _content(content, names, ISSUE_TEXT)

    return {
        "title": group.title,
        "advice": group.advice,
        "score": group.score,
        "count": group.count,
        "cut": group.cut,
        "rows": [
            {
                "index": row.index,
                "label": labels(row.label),
                "content": shown(row.content),
                "score": _number(row.score),
                "detail": row.detail,
                "other": None if row.other is None else shown(row.other),
                "otherIndex": row.other_index,
                "otherLabel": labels(row.other_label),
                "id": row.id,
                "otherId": row.other_id,
            }
            for row in group.rows
        ],
        "lines": [[name, _number(score), detail] for name, score, detail in group.lines],
    }


def _values(values: Values | None) -> dict[str, Any] | None:
    if values is None:
        return None
    return {
        "given": _numbers(values.given),
        "predicted": _numbers(values.predicted),
        "flagged": [int(flag) for flag in values.flagged],
    }


def _histogram(histogram: Histogram | None) -> dict[str, Any] | None:
    if histogram is None:
        return None
    return {
        "edges": _numbers(histogram.edges),
        "counts": [int(count) for count in histogram.counts],
        "flagged": [int(count) for count in histogram.flagged],
        "threshold": _number(histogram.threshold),
    }


def _numbers(values: Iterable[float]) -> list[float | None]:
    return [_number(value) for value in values]


def _number(value: float | None) -> float | None:
    """A number of few digits, or None for what JSON cannot hold."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
