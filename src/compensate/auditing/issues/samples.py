"""Issues of single rows, columns and classes: outliers, empty rows, other languages, odd images, leaking columns, rare classes."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from compensate.auditing.class_names import near_pairs
from compensate.auditing.issues.duplicates import Near, nearest_rows, shrunk
from compensate.data.columns import Column, numbers
from compensate.data.dataset import Floats, Ints
from compensate.data.labels import is_missing

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
_ALL_WORDS = frozenset().union(*_WORD_SETS.values())

RowFinding = tuple[str, int, float, str]  # a kind of issue, the position of the row, its score and a description
NamedFinding = tuple[str, str, float, str]  # a kind of issue, the column or class, its score and a description


def outliers(vectors: Any, near: Near | None = None) -> Iterator[RowFinding]:
    """Rows far from their nearest neighbors; the score is their oddity. Arguments as for `oddity`."""
    if vectors is None or sparse.issparse(vectors) or len(vectors) < 5 * NEIGHBORS:
        return
    odd, times = oddity(vectors, near)
    for i in np.flatnonzero(odd > OUTLIER).tolist():
        yield "outlier", i, float(odd[i]), f"{times[i]:.1f} times as far from its nearest rows as usual"


def oddity(vectors: Any, near: Near | None = None) -> tuple[Floats, Floats]:
    r"""(N,) how odd each row is, and the distance of its neighbors as a multiple of the median.

    The oddity is the mean of two scores :math:`z_i = (\ln d_i - m) / s`, where :math:`d_i` is the mean distance to the nearest rows, once of
    the rows as they are and once of the rows scaled to length one: a heavy tail stretches one of the two, an outlier is far by both.
    :math:`m` is the median and :math:`s` the deviation of the upper half, since distances are skewed.

    Args:
        vectors: (N, D) features.
        near: their `nearest_rows` for `NEIGHBORS`, if known.
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


def odd_texts(texts: Sequence[str]) -> Iterator[RowFinding]:
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
    """The language or script of a text, and the share of its words that say so; nothing for short or unclear texts.

    >>> language("Der Film ist nicht gut und die Musik auch nicht")
    ('German', 0.7)
    >>> language("ok")
    ('', 0.0)
    """
    words = _WORD.findall(text[:5000].lower())
    if len(words) < MIN_WORDS:
        letters = [sign for sign in text[:5000] if sign.isalpha()]
        if len(letters) < MIN_WORDS or _script(letters[0]) == "LATIN":
            return "", 0.0
    if not text.isascii():
        letters_used = "".join(words[:200])
        scripts: Counter[str] = Counter()
        for sign, times in Counter(letters_used).items():
            scripts[_script(sign)] += times
        script, signs = scripts.most_common(1)[0]
        if script != "LATIN":
            return script.title(), signs / len(letters_used)
    known = [word for word in words if word in _ALL_WORDS]
    if not known:
        return "", 0.0
    shares = {name: sum(word in listed for word in known) / len(words) for name, listed in _WORD_SETS.items()}
    (best, share), (_, second) = sorted(shares.items(), key=lambda item: -item[1])[:2]
    # A quarter of running text are such words; names and headlines have fewer, and languages share some words.
    several = len(_WORD_SETS[best] & set(words)) >= 3
    return (best, share) if several and share >= 0.15 and share >= second + 0.1 else ("", 0.0)


@lru_cache(1 << 14)
def _script(sign: str) -> str:
    name = unicodedata.name(sign, "OTHER").split()[0]
    return "CJK" if name in ("CJK", "HIRAGANA", "KATAKANA") else name


def odd_images(images: NDArray[Any]) -> Iterator[RowFinding]:
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


def missing_cells(frame: pd.DataFrame, columns: tuple[Column, ...]) -> Mapping[str, NDArray[np.bool_]]:
    """By column that is used or has content, (N,) which of its cells are empty."""
    missing = {}
    for column in columns:
        if column.used or column.role in CONTENT:
            codes, values = pd.factorize(frame[column.name])
            empty = np.array([*(is_missing(v) for v in np.asarray(values, dtype=object)), True])
            missing[column.name] = np.asarray(empty[codes], dtype=bool)
    return missing


def empty_rows(columns: tuple[Column, ...], missing: Mapping[str, NDArray[np.bool_]]) -> Iterator[RowFinding]:
    """Rows of a table without a value in any column that is used."""
    used = [column.name for column in columns if column.used]
    if used:
        for i in np.flatnonzero(np.logical_and.reduce([missing[name] for name in used])).tolist():
            yield "empty_row", i, 1.0, f"no value in any of {len(used)} columns"


def column_issues(
    frame: pd.DataFrame,
    columns: tuple[Column, ...],
    missing: Mapping[str, NDArray[np.bool_]],
    given: Ints,
    classes: int,
) -> Iterator[NamedFinding]:
    """Identifier, leaking and incomplete columns of a table."""
    for column in columns:
        if column.role == "identifier":
            distinct = frame[column.name].nunique() / max(len(frame), 1)
            yield "identifier_column", column.name, float(distinct), f"{column.reason}; it is not used"
        if column.role == "label" and column.reason.startswith("repeats"):
            yield "leaking_column", column.name, 1.0, "repeats the label in other words; it is not used"
        if column.used and classes:
            share = predicts(frame[column.name], column, given, classes)
            if share >= LEAKING:
                yield "leaking_column", column.name, share, f"predicts {share:.1%} of the labels alone, beyond chance"
        if column.role in CONTENT:
            share = float(missing[column.name].mean())
            if share >= MISSING:
                yield "missing_values", column.name, share, f"{share:.1%} of the cells are empty"


def class_issues(given: Ints, names: tuple[str, ...]) -> Iterator[NamedFinding]:
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
