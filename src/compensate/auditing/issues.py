"""Issues of the data beyond single labels, from the features that an audit has anyway: duplicates, outliers, empty rows, other languages,
odd images, leaking columns, rare classes."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compensate.auditing.class_names import near_pairs, spellings
from compensate.auditing.duplicates import Near, find_pairs, nearest_rows, partners, shared_with, shrunk, texts_of
from compensate.auditing.linear import Mask
from compensate.data.columns import Column, is_nested, numbers
from compensate.data.dataset import Dataset, Floats, Ints
from compensate.data.labels import is_missing
from compensate.errors import InputError

if TYPE_CHECKING:
    from compensate.auditing.result import Audit

COLUMNS = ("issue", "index", "other", "column", "score", "given", "detail")
"""Columns of the table of issues. ``index`` and ``other`` are rows of the source (``other`` of the test set for `test_duplicate`), or
empty. `with_ids` adds their files or ids."""


class IssueKind(NamedTuple):
    """A kind of issue: its singular and plural, the meaning of its score, advice, and whether it is about a row, a column or a class."""

    one: str
    many: str
    score: str
    advice: str
    about: str = "row"


KINDS: dict[str, IssueKind] = {
    "conflicting_duplicate": IssueKind("duplicate with another label", "duplicates with different labels", "similarity to the other row, 1 if equal",
        "At least one label of equal rows is wrong, or the content does not determine it. For similar rows, check whether they differ in a "
        "relevant detail."),
    "alike_classes": IssueKind("pair of classes with nearly the same name", "pairs of classes with nearly the same name",
        "rows of the more frequent name, as a share of the rows of both",
        "The names differ only in case, spacing or one letter. If they mean the same, merge them.", "class"),
    "test_duplicate": IssueKind("row that is in the test set too", "rows that are in the test set too", "similarity to the row of the test set, 1 if equal",
        "A model has seen these rows of the test set in training, so its test result is too good. Drop them here, or remove them from the test set."),
    "contradicting_response": IssueKind("response that is better and worse", "responses that are better and worse", "1",
        "The better response of this pair is the worse one of another pair with the same prompt. That may be right; if the other responses are "
        "equal too, one of the two preferences is wrong."),
    "identical_responses": IssueKind("pair of equal responses", "pairs of equal responses", "1", "Equal responses teach nothing: drop the pair."),
    "duplicate_prompt": IssueKind("repeated prompt", "repeated prompts", "rows with this prompt",
        "Keep pairs with the same prompt in the same split, or a model is tested on prompts that it has seen."),
    "duplicate": IssueKind("duplicate", "duplicates", "similarity to the other row, 1 if equal",
        "Keep one of each group and drop the others, or make sure that a split never separates a group."),
    "leaking_column": IssueKind("column that reveals the label", "columns that reveal the label",
        "share of the labels beyond chance that the column predicts alone",
        "If the column is unknown at prediction time, audit without it.", "column"),
    "identifier_column": IssueKind("identifier column", "identifier columns", "share of its values that are distinct",
        "It names rows and carries no information, so it is not used. Nothing has to be done.", "column"),
    "missing_values": IssueKind("column with missing values", "columns with missing values", "share of its cells that are empty",
        "Check whether missingness is related to the label; if so, audit without the column.", "column"),
    "rare_class": IssueKind("rare class", "rare classes", "rows of the class relative to an equal share",
        "Labels of a class with few rows are hard to judge and hard to learn: merge it with another class, or drop its rows.", "class"),
    "empty_answer": IssueKind("empty answer", "empty answers", "1", "An empty answer teaches nothing: drop the row."),
    "refusal": IssueKind("refused answer", "refused answers", "1",
        "The answer refuses the request. Drop the row, unless a model is to learn to refuse it."),
    "truncated_answer": IssueKind("truncated answer", "truncated answers", "1",
        "The answer ends within a sentence. Drop the row, or fetch the whole answer."),
    "language_change": IssueKind("answer in another language than its prompt", "answers in another language than their prompts", "1",
        "Drop the row, unless the prompt asks for this language."),
    "empty_text": IssueKind("empty text", "empty texts", "1", "A row without content says nothing about its label: drop it."),
    "empty_row": IssueKind("empty row", "empty rows", "1", "A row without content says nothing about its label: drop it."),
    "other_language": IssueKind("text in another language", "texts in another language", "share of its words or letters that indicate it",
        "Check whether they belong here; an encoder for one language judges them badly."),
    "dark_image": IssueKind("dark image", "dark images", "distance below the limit, from 0 to 1", "Check whether anything is visible."),
    "bright_image": IssueKind("bright image", "bright images", "distance above the limit, from 0 to 1", "Check whether anything is visible."),
    "blank_image": IssueKind("blank image", "blank images", "distance below the limit, from 0 to 1", "They show nothing: drop them."),
    "outlier": IssueKind("outlier", "outliers", "standard deviations beyond the usual distance to the nearest rows",
        "They differ from all other rows: damaged, from another source, or rare."),
}  # fmt: skip
"""All kinds, the most important first."""

# Rows that are usually dropped.
USELESS = (
    "identical_responses", "duplicate", "empty_answer", "refusal", "truncated_answer", "empty_text", "empty_row", "blank_image",
)  # fmt: skip


def find_issues(audit: Audit, test: Dataset | None = None) -> pd.DataFrame:
    """Finds the issues of the data of an audit: a table with `COLUMNS`, the most important kinds first.

    Args:
        audit: an audit with its data.
        test: a test set of the same kind; rows that are in both are reported. By default the other parts of the data.
    """
    data = audit.data
    if data is None:
        raise InputError(
            "this audit was loaded without its data, which the search for issues needs; run `audit` again."
        )
    kind = audit.provenance.shown or audit.kind
    labels = audit.names(audit.given)
    found: list[dict[str, Any]] = []

    def add(issue: str, place: int | str, score: float, detail: str, other: int | None = None) -> None:
        """Adds an issue of a row, or of a column or class with this name."""
        index, column, given = None, place, ""
        if isinstance(place, int):
            index, column, given = int(audit.index[place]), "", labels[place]
        found.append(dict(zip(COLUMNS, (issue, index, other, column, score, given, detail), strict=True)))

    def row_name(rows: Dataset | Audit, i: int) -> str:
        number = f"row {int(rows.index[i])}"
        return number if rows.ids is None or not len(rows.ids) else f"{rows.ids[i]} ({number})"

    own = None if data.parts is None else data.parts.issues(data)
    if own is not None:
        for finding in own:
            add(*finding)
        return _table(found)
    # Duplicates and outliers share the nearest rows, whose search takes most of the time.
    dense = isinstance(audit.vectors, np.ndarray)
    near = nearest_rows(np.ascontiguousarray(audit.vectors, dtype=np.float32), NEIGHBORS) if dense else None
    # Quantities of equal samples nearly always differ without a contradiction, and the rows are then no copies.
    pairs = find_pairs(data, kind, audit.vectors, near)
    for row, (other, similarity, differ) in partners(pairs, audit.given, contradict=not audit.regression).items():
        described = "equal" if similarity == 1 else f"{similarity:.2f} similar"
        detail = f"{described} to {row_name(audit, other)}, labeled {labels[other]}"
        issue = "conflicting_duplicate" if differ and not audit.regression else "duplicate"
        add(issue, row, similarity, detail, int(audit.index[other]))
    others = {f"{name} part": part for name, part in data.others.items()} if test is None else {"test set": test}
    for name, part in others.items():
        for row, other, similarity in shared_with(data, part, kind):
            add("test_duplicate", row, similarity, f"{row_name(part, other)} of the {name}", int(part.index[other]))
    findings = [*outliers(audit.vectors, near)]
    if kind == "text":
        findings += odd_texts(texts_of(data))
    if kind == "image" and np.ndim(data.x) == 4:
        findings += odd_images(data.x)
    if not audit.regression:
        findings += class_issues(audit.given, audit.classes)
    if isinstance(data.raw, pd.DataFrame) and (columns := data.source.columns):
        used = [c.name for c in columns if c.used]
        missing = {c.name: _missing(data.raw[c.name]) for c in columns if c.used or c.role in CONTENT}
        if kind == "table" and used:
            empty = np.flatnonzero(np.logical_and.reduce([missing[name] for name in used])).tolist()
            findings += [("empty_row", i, 1.0, f"no value in any of {len(used)} columns") for i in empty]
        findings += column_issues(data, missing, np.asarray(audit.given), len(audit.classes))
    for finding in findings:
        add(*finding)
    return _table(found)


def _table(found: list[dict[str, Any]]) -> pd.DataFrame:
    """The table of issues, sorted."""
    rank, sign = list(KINDS).index, {"rare_class": 1}
    found.sort(key=lambda one: (rank(one["issue"]), sign.get(one["issue"], -1) * one["score"], one["index"] or 0))
    table = pd.DataFrame(found, columns=list(COLUMNS))
    return table.astype({"index": "Int64", "other": "Int64", "score": "float64"})


def with_ids(issues: pd.DataFrame, audit: Audit) -> pd.DataFrame:
    """The table with the files or ids of rows, as ``id`` and ``other_id`` after their numbers, if the source has any."""
    if not audit.ids or "id" in issues:
        return issues
    ids = dict(zip(audit.index.tolist(), audit.ids, strict=True))
    own = issues["issue"] != "test_duplicate"  # where the other row is one of the test set
    named = issues.copy()
    for k, (name, rows) in enumerate({"id": issues["index"], "other_id": issues["other"].where(own)}.items()):
        named.insert(2 * k + 2, name, ["" if pd.isna(row) else ids.get(int(row), "") for row in rows])
    return named


def records(issues: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table of issues as dictionaries of plain types; None for a missing row."""
    table = issues[list(COLUMNS)].astype(object)
    return [dict(zip(COLUMNS, row, strict=True)) for row in table.where(table.notna(), None).to_numpy().tolist()]


def copies(issues: pd.DataFrame) -> list[int]:
    """Of each group of equal rows with the same label or value all but the first.

    >>> table = pd.DataFrame({"issue": "duplicate", "score": [1, 1, 1, 0.7], "index": [4, 2, 9, 5], "other": [2, 4, 4, 9]})
    >>> copies(table)
    [4, 9]
    """
    first: dict[int, int] = {}

    def root(row: int) -> int:
        while first.setdefault(row, row) != row:
            row = first[row]
        return row

    equal = issues[(issues["issue"] == "duplicate") & (issues["score"] == 1)]
    for pair in zip(equal["index"], equal["other"], strict=True):
        low, high = sorted(root(int(row)) for row in pair)
        first[high] = low
    return sorted(row for row in first if root(row) != row)


def issue_rows(audit: Audit, kind: str) -> list[int]:
    """The rows of the source that a kind of issue is about: all copies of a row but one, the rows of a rare class, or the listed rows."""
    issues = audit.found_issues
    if issues is None:
        raise InputError(
            "this run lists no issues (--only labels, or several labels a row); name rows by their numbers."
        )
    found = issues[issues["issue"] == kind]
    if kind == "duplicate":
        return copies(issues)
    if KINDS[kind].about == "class":
        named = np.isin(audit.names(audit.given), list(found["column"]))
        return [int(row) for row in audit.rows[named]]
    return sorted({int(row) for row in found["index"]})


def summary(issues: pd.DataFrame) -> str:
    """The number of issues of each kind in one line; empty if there are none.

    >>> kinds = ["duplicate"] * 4 + ["conflicting_duplicate"] * 2 + ["test_duplicate"] * 3 + ["outlier"]
    >>> summary(pd.DataFrame({"issue": kinds, "score": [1, 1, 0.6, 0.7, 1, 1, 1, 0.6, 0.7, 3.5]}))
    '4 equal and 2 similar rows, 2 of them with different labels; 1 row that is in the test set too and 2 rows similar to one of it; 1 outlier'
    """
    counts = {name: int((issues["issue"] == name).sum()) for name in KINDS}
    conflicting = counts.pop("conflicting_duplicate")
    copies = conflicting + counts.pop("duplicate")
    parts = []
    if copies:
        equal = int((issues["issue"].isin(("duplicate", "conflicting_duplicate")) & (issues["score"] == 1)).sum())
        rows = " and ".join(f"{n:,} {how}" for how, n in {"equal": equal, "similar": copies - equal}.items() if n)
        parts.append(f"{rows} rows" + (f", {conflicting:,} of them with different labels" if conflicting else ""))
    shared = counts.pop("test_duplicate")
    similar = int(((issues["issue"] == "test_duplicate") & (issues["score"] < 1)).sum())
    said = [_counted(shared - similar, "test_duplicate")] * (shared > similar)
    others = f"{similar:,} row{'s' * (similar != 1)} similar to one of {'it' if said else 'the test set'}"
    said += [others] * (similar > 0)
    parts += [" and ".join(said)] * (shared > 0) + [_counted(n, name) for name, n in counts.items() if n]
    return "; ".join(parts)


def _counted(n: int, issue: str) -> str:
    return f"{n:,} {KINDS[issue].one if n == 1 else KINDS[issue].many}"


def next_step(issues: pd.DataFrame, classes: Sequence[str], run: str) -> str:
    """The command that drops useless rows and merges spellings, if there are any."""
    useless = [kind for kind in dict.fromkeys(issues["issue"]) if kind in USELESS]
    drops = ",".join(kind for kind in useless if kind != "duplicate" or copies(issues))
    options = f" --drop {drops}" * bool(drops) + " --merge spellings" * bool(spellings(classes))
    return f"the view Issues of the page{f'; or compensate apply {run}{options}' if options else ''}"


# --- rows, columns and classes --------------------------------------------------------------------------------

NEIGHBORS = 10
OUTLIER = 2.4
"""Oddity from which on a row is an outlier. Chosen on two draws of 700 sentences of SST-2 with eight of AG News, and on stretched rows of
four tables: it finds two thirds or more of the planted rows in the tables, a third of the sentences and hardly any other row; of 3,000
normal rows in 10 dimensions, 2."""

UPPER = 0.8413  # quantile one standard deviation above the median of a normal distribution
DARK, BRIGHT, BLANK = 0.15, 0.9, 0.015
"""An image is dark if 99 % of its pixels are darker than the first, bright if 99 % are brighter than the second (of 0 to 1), and blank if
the standard deviation of its pixels is below the third, which in a dark or bright image may still be a picture."""

ONE_STEP = 1 / 255  # standard deviation of pixels below which even a dark or bright image is blank
FUNCTION_WORDS = {
    "English": "the and of to is in that it was for with as this but not you are on have be at his her they from which or an",
    "German": "der die das und ist nicht ich sie es mit ein eine auf für auch dem den von wird sich wie aber noch nur war",
    "French": "le la les et est un une des dans que qui pour pas ce il elle nous vous sur avec plus mais sont cette au",
    "Spanish": "el la los las y es un una en que por para con no se lo como más pero su muy está este del al",
    "Italian": "il la gli e è un una di che per non con sono del della più ma si questo come anche nel alla molto",
    "Portuguese": "o a os as e é um uma de que não para com se do da mais mas por como em muito seu foi isso",
    "Dutch": "de het een en is van niet dat ik te op met voor zijn er maar ook aan als om dan nog wel wat",
}
"""Frequent short words that identify a language."""

MIN_WORDS = 5  # words below which the language of a text is unknown
LEAKING = 0.98
"""Share of the labels beyond chance that a leaking column predicts alone, out of fold. The best columns of iris, wine, breast cancer and
digits reach .93, .60, .77 and .19."""

MISSING = 0.05  # share of missing cells from which on a column is reported
RARE = 0.1  # a class is rare if it has less than this fraction of an equal share of the rows
PROBED_ROWS = 5_000  # rows on which a column is tested for leaking
CONTENT = ("number", "category", "date", "text")  # roles of columns whose cells should have a value
_WORD = re.compile(r"[^\W\d_]+")
_WORD_SETS = {name: frozenset(w for w in words.split() if len(w) > 1) for name, words in FUNCTION_WORDS.items()}

Finding = tuple[str, int | str, float, str]
"""A kind of issue, the position of the row or the name of the column or class, the score and a description."""


def outliers(vectors: Any, near: Near | None = None) -> Iterator[Finding]:
    """Rows far from their nearest neighbors; the score is their oddity. Arguments as for `oddity`."""
    if not isinstance(vectors, np.ndarray) or len(vectors) < 5 * NEIGHBORS:
        return
    odd, times = oddity(vectors, near)
    for i in np.flatnonzero(odd > OUTLIER).tolist():
        yield "outlier", i, float(odd[i]), f"{times[i]:.1f} times as far from its nearest rows as usual"


def oddity(vectors: Any, near: Near | None = None) -> tuple[Floats, Floats]:
    r"""(N,) how odd each row is, and the distance of its neighbors as a multiple of the median.

    The oddity is the mean of two scores :math:`z_i = (\ln d_i - m) / s`, where :math:`d_i` is the mean distance to the nearest rows, once of
    the rows as they are and once of the rows scaled to length one: a heavy tail stretches one of the two, an outlier is far by both.
    :math:`m` is the median and :math:`s` the deviation of the upper half, since distances are skewed.
    `near` are the `nearest_rows` for `NEIGHBORS`, if known.
    """
    rows = np.ascontiguousarray(vectors, dtype=np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    far = (nearest_rows(rows, NEIGHBORS) if near is None else near)[1].mean(1)
    turned = (nearest_rows(rows / np.maximum(lengths, 1e-12), NEIGHBORS)[1] ** 2).mean(1)
    scores = []
    for distance in (far, turned):
        apart = distance > 1e-9  # copies say nothing about the usual distance
        if apart.any():
            logs = np.log(np.maximum(distance, 1e-12).astype(np.float64))
            middle, upper = np.quantile(logs[apart], [0.5, UPPER])
            scores.append((logs - middle) / max(upper - middle, 0.01))
    median = float(np.median(far[far > 1e-9])) if (far > 1e-9).any() else 1.0
    return np.mean(scores, axis=0) if scores else np.zeros(len(rows)), far / median


def odd_texts(texts: Sequence[str]) -> Iterator[Finding]:
    """Texts without a letter or digit, and texts in another language than most; the score is the share of words that say so."""
    for i, text in enumerate(texts):
        if not any(sign.isalnum() for sign in text):
            yield "empty_text", i, 1.0, "no letter or digit" if text.strip() else "empty"
    languages = [language(text) for text in texts]
    known = Counter(name for name, _ in languages if name)
    usual, count = known.most_common(1)[0] if known else ("", 0)
    if known and count >= 0.6 * sum(known.values()):  # a mixed corpus has no usual language
        for i, (name, share) in enumerate(languages):
            if name and name != usual:
                yield "other_language", i, share, f"{name}, where most are {usual}"


def language(text: str) -> tuple[str, float]:
    """The language or script of a text, and the share of its words that say so; nothing for short or unclear texts."""
    words = _WORD.findall(text[:5000].lower())
    if len(words) < MIN_WORDS:
        letters = [sign for sign in text[:5000] if sign.isalpha()]
        if len(letters) < MIN_WORDS or _script(letters[0]) == "LATIN":
            return "", 0.0
    if not text.isascii():
        letters_used = "".join(words[:200])
        script, signs = Counter(map(_script, letters_used)).most_common(1)[0]
        if script != "LATIN":
            return script.title(), signs / len(letters_used)
    shares = {name: sum(word in listed for word in words) / len(words) for name, listed in _WORD_SETS.items()}
    (best, share), (_, second) = sorted(shares.items(), key=lambda item: -item[1])[:2]
    # A quarter of running text are such words; names and headlines have fewer, and languages share some words.
    several = len(_WORD_SETS[best] & set(words)) >= 3
    return (best, share) if several and share >= 0.15 and share >= second + 0.1 else ("", 0.0)


@lru_cache(1 << 14)
def _script(sign: str) -> str:
    name = unicodedata.name(sign, "OTHER").split()[0]
    return "CJK" if name in ("CJK", "HIRAGANA", "KATAKANA") else name


def odd_images(images: NDArray[Any]) -> Iterator[Finding]:
    """Dark, bright and blank images; the score is the distance beyond the limit, from 0 to 1."""
    flat = shrunk(images).mean(1).reshape(len(images), -1)
    low, high = np.quantile(flat, [0.01, 0.99], axis=1)
    spread = flat.std(1)
    for i in range(len(flat)):
        limit = ONE_STEP if high[i] < DARK or low[i] > BRIGHT else BLANK
        if spread[i] < limit:
            detail = f"pixels differ by {spread[i]:.3f} (standard deviation, of 1)"
            yield "blank_image", i, 1 - float(spread[i]) / limit, detail
        elif high[i] < DARK:
            yield "dark_image", i, 1 - float(high[i]) / DARK, f"99 % of the pixels are darker than {high[i]:.2f} (of 1)"
        elif low[i] > BRIGHT:
            detail = f"99 % of the pixels are brighter than {low[i]:.2f} (of 1)"
            yield "bright_image", i, (float(low[i]) - BRIGHT) / (1 - BRIGHT), detail


def _missing(column: pd.Series) -> Mask:
    """(N,) which cells are empty."""
    codes, values = pd.factorize(column.map(str) if is_nested(column) else column)
    empty = np.array([*(is_missing(v) for v in np.asarray(values, dtype=object)), True])
    return np.asarray(empty[codes], dtype=bool)


def column_issues(data: Dataset, missing: Mapping[str, Mask], given: Ints, classes: int) -> Iterator[Finding]:
    """Identifier, leaking and incomplete columns of a table; `missing` are the empty cells by column."""
    frame = data.raw
    for column in data.source.columns:
        if column.role == "identifier":
            distinct = frame[column.name].nunique() / max(len(frame), 1)
            yield "identifier_column", column.name, float(distinct), f"{column.reason}; it is not used"
        if column.role == "label" and column.reason.startswith("repeats"):
            yield "leaking_column", column.name, 1.0, f"{column.reason}; it is not used"
        if column.used and classes:
            share = predicts(frame[column.name], column, given, classes)
            if share >= LEAKING:
                yield "leaking_column", column.name, share, f"predicts {share:.1%} of the labels alone, beyond chance"
        if column.role in CONTENT:
            share = float(missing[column.name].mean())
            if share >= MISSING:
                yield "missing_values", column.name, share, f"{share:.1%} of the cells are empty"


def class_issues(given: Ints, names: tuple[str, ...]) -> Iterator[Finding]:
    """Classes with nearly the same name (the score is the share of the more frequent one), and rare classes.

    >>> list(class_issues(np.array([0, 0, 0, 1]), ("billing", "Billing")))
    [('alike_classes', 'Billing', 0.75, '"Billing" (1 row) and "billing" (3 rows)')]
    """
    counts = np.bincount(given, minlength=len(names))
    present = np.flatnonzero(counts).tolist()
    for pair in near_pairs([names[c] for c in present]):
        rare, often = sorted((present[k] for k in pair), key=lambda c: int(counts[c]))
        described = [f'"{names[c]}" ({counts[c]:,} row{"s" * int(counts[c] > 1)})' for c in (rare, often)]
        share = float(counts[often] / (counts[rare] + counts[often]))
        yield "alike_classes", names[rare], share, " and ".join(described)
    equal = len(given) / max(len(names), 1)
    for c in np.flatnonzero(counts < RARE * equal).tolist():
        yield "rare_class", names[c], float(counts[c] / equal), f"{counts[c]:,} of {len(given):,} rows"


def predicts(column: pd.Series, what: Column, given: Ints, classes: int) -> float:
    """The share of labels beyond the most frequent one that the column predicts alone, out of fold."""
    from sklearn.tree import DecisionTreeClassifier

    rows = np.random.default_rng(0).permutation(len(given))[:PROBED_ROWS]
    y = given[rows]
    cells = column.iloc[rows]
    x = numbers(cells) if what.role == "number" else pd.factorize(cells.astype(str))[0].astype(np.float64)
    x = np.where(np.isfinite(x), x, -1e9)
    right, fold = 0, np.arange(len(rows)) % 5
    for k in range(5):
        learn = fold != k
        if what.role == "number":
            tree = DecisionTreeClassifier(min_samples_leaf=2, max_leaf_nodes=max(8, 2 * classes), random_state=0)
            predicted = tree.fit(x[learn, None], y[learn]).predict(x[~learn, None])
        else:  # the most frequent class of each value; for a new value, the most frequent class
            values = x.astype(np.int64)
            counts = np.zeros((int(values.max()) + 2, classes), np.int64)
            np.add.at(counts, (values[learn], y[learn]), 1)
            own = counts[values[~learn]]
            predicted = np.where(own.sum(1) > 0, own.argmax(1), np.bincount(y[learn], minlength=classes).argmax())
        right += int((predicted == y[~learn]).sum())
    chance = np.bincount(y, minlength=classes).max() / len(y)
    return float((right / len(y) - chance) / max(1 - chance, 1e-9))
