"""Single rows that do not belong: far from all others, empty, in another language, dark, bright or blank."""

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
from scipy.special import logsumexp

from compensate.auditing.issues.image_copies import grey
from compensate.auditing.issues.neighbors import Near, nearest_rows
from compensate.data.columns import Column, numbers
from compensate.data.dataset import Floats, Ints
from compensate.data.labels import is_missing

NEIGHBORS = 10
FAR = 2.4
"""The oddity from which on a row is an outlier. Chosen on two draws of 700 sentences of SST-2 with eight of AG News, and on stretched rows of four tables: two
thirds or more of the planted rows of the tables lie beyond, a third of the sentences, and hardly any other; of 3,000 normal rows in 10 dimensions, 2."""

USUAL = 0.8413
"""The quantile that lies one standard deviation above the median of a normal distribution."""

DARK, BRIGHT, BLANK = 0.15, 0.9, 0.015
"""An image is dark if 99 % of its pixels are darker than the first, bright if 99 % are brighter than the second (of 0 to 1), and blank if
the standard deviation of its pixels is below the third, which in a dark or bright image may still be a picture."""

NOTHING = 1 / 255
"""A standard deviation of pixels below one step of brightness: there is no picture, however dark or bright."""

RowFinding = tuple[int, float, str]
"""A position, its score and what to say of it."""

FUNCTION_WORDS = {
    "English": "the and of to is in that it was for with as this but not you are on have be at his her they from which or an",
    "German": "der die das und ist nicht ich sie es mit ein eine auf für auch dem den von wird sich wie aber noch nur war",
    "French": "le la les et est un une des dans que qui pour pas ce il elle nous vous sur avec plus mais sont cette au",
    "Spanish": "el la los las y es un una en que por para con no se lo como más pero su muy está este del al",
    "Italian": "il la gli e è un una di che per non con sono del della più ma si questo come anche nel alla molto",
    "Portuguese": "o a os as e é um uma de que não para com se do da mais mas por como em muito seu foi isso",
    "Dutch": "de het een en is van niet dat ik te op met voor zijn er maar ook aan als om dan nog wel wat",
}
"""Frequent short words by which a language is known."""

LEAST_WORDS = 5
"""Texts of fewer words are in no language for sure."""

_WORD = re.compile(r"[^\W\d_]+")


def outliers(vectors: Any, near: Near | None = None) -> Iterator[RowFinding]:
    """Rows far from their nearest neighbors; the score is their oddity. Arguments as for `oddity`."""
    if vectors is None or sparse.issparse(vectors) or len(vectors) < 5 * NEIGHBORS:
        return
    odd, times = oddity(vectors, near)
    for i in np.flatnonzero(odd > FAR).tolist():
        yield i, float(odd[i]), f"{times[i]:.1f} times as far from its nearest rows as usual"


def oddity(vectors: Any, near: Near | None = None) -> tuple[Floats, Floats]:
    r"""(N,) how odd each row is, and how many times as far as usual its neighbors are.

    The mean distance to the nearest rows is taken twice, as it is and between directions (rows of length one): a heavy tail stretches one of
    the two, and what does not belong is far by both. Of either, :math:`z_i = (\ln d_i - m) / s` with the median :math:`m` and the
    deviation :math:`s` of the upper half alone, since distances lean to one side. The oddity is the mean of the two.

    Args:
        vectors: (N, D) features.
        near: what `nearest_rows` gives for them and `NEIGHBORS`, if it is known.
    """
    rows = np.ascontiguousarray(vectors, dtype=np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    far = (nearest_rows(rows, NEIGHBORS) if near is None else near)[1].mean(1)
    turned = (nearest_rows(rows / np.maximum(lengths, 1e-12), NEIGHBORS)[1] ** 2).mean(1)
    usual = float(np.median(far[far > 1e-9])) if (far > 1e-9).any() else 1.0
    z = [_above_usual(d) for d in (far, turned) if (d > 1e-9).any()]  # of one column, there are but two directions
    return np.mean(z, axis=0) if z else np.zeros(len(rows)), far / usual


def _above_usual(distance: NDArray[Any]) -> Floats:
    apart = distance > 1e-9  # copies say nothing about how far rows usually are
    logs = np.log(np.maximum(distance, 1e-12).astype(np.float64))
    middle, above = np.quantile(logs[apart], [0.5, USUAL])
    return np.asarray((logs - middle) / max(above - middle, 0.01))


def empty_texts(texts: Sequence[str]) -> Iterator[RowFinding]:
    """Texts without a letter or digit."""
    for i, text in enumerate(texts):
        if not any(sign.isalnum() for sign in text):
            yield i, 1.0, "no letter or digit" if text.strip() else "empty"


def other_languages(texts: Sequence[str]) -> Iterator[RowFinding]:
    """Texts in another language than most; the score is the share of its words that say so."""
    found = [language(text) for text in texts]
    known = Counter(name for name, _ in found if name)
    if not known:
        return
    usual, count = known.most_common(1)[0]
    if count < 0.6 * sum(known.values()):
        return  # a mixed corpus has no usual language
    for i, (name, share) in enumerate(found):
        if name and name != usual:
            yield i, share, f"{name}, where most are {usual}"


def language(text: str) -> tuple[str, float]:
    """The language or script of a text, and the share of its words that say so; nothing for short or unclear texts.

    >>> language("Der Film ist nicht gut und die Musik auch nicht")
    ('German', 0.7)
    >>> language("ok")
    ('', 0.0)
    """
    words = _WORD.findall(text[:5000].lower())
    if len(words) < LEAST_WORDS:
        letters = [sign for sign in text[:5000] if sign.isalpha()]
        if len(letters) < LEAST_WORDS or _script(letters[0]) == "LATIN":
            return "", 0.0
    script, signs = ("LATIN", 1.0) if text.isascii() else _most_frequent_script("".join(words[:200]))
    if script != "LATIN":
        return script.title(), signs
    words_of_some = [word for word in words if word in _ALL_WORDS]
    if not words_of_some:
        return "", 0.0
    shares = {name: sum(word in listed for word in words_of_some) / len(words) for name, listed in _SETS.items()}
    (best, share), (_, second) = sorted(shares.items(), key=lambda item: -item[1])[:2]
    # A quarter of the words of running text are such words; names and headlines have fewer, and some words are of several languages.
    several = len(_SETS[best] & set(words)) >= 3
    return (best, share) if several and share >= 0.15 and share >= second + 0.1 else ("", 0.0)


def _most_frequent_script(letters: str) -> tuple[str, float]:
    """The script of most letters, and their share."""
    scripts: Counter[str] = Counter()
    for sign, times in Counter(letters).items():
        scripts[_script(sign)] += times
    script, signs = scripts.most_common(1)[0]
    return script, signs / len(letters)


@lru_cache(1 << 14)
def _script(sign: str) -> str:
    name = unicodedata.name(sign, "OTHER").split()[0]
    return "CJK" if name in ("CJK", "HIRAGANA", "KATAKANA") else name


_SETS = {name: frozenset(word for word in words.split() if len(word) > 1) for name, words in FUNCTION_WORDS.items()}
_ALL_WORDS = frozenset().union(*_SETS.values())


def odd_images(images: NDArray[Any]) -> Iterator[tuple[str, int, float, str]]:
    """Dark, bright and blank images: the kind, and as for others; the score is how far beyond the limit, from 0 to 1."""
    small = grey(images)
    flat = small.reshape(len(small), -1)
    low, high = np.quantile(flat, [0.01, 0.99], axis=1)
    spread = flat.std(1)
    for i in range(len(flat)):
        seen = NOTHING if high[i] < DARK or low[i] > BRIGHT else BLANK
        if spread[i] < seen:
            yield (
                "blank_image",
                i,
                1 - float(spread[i]) / seen,
                f"pixels differ by {spread[i]:.3f} (standard deviation, of 1)",
            )
        elif high[i] < DARK:
            yield "dark_image", i, 1 - float(high[i]) / DARK, f"99 % of the pixels are darker than {high[i]:.2f} (of 1)"
        elif low[i] > BRIGHT:
            yield (
                "bright_image",
                i,
                (float(low[i]) - BRIGHT) / (1 - BRIGHT),
                f"99 % of the pixels are brighter than {low[i]:.2f} (of 1)",
            )


TELLS = 0.98
"""Share of the labels beyond chance that a column predicts alone, out of fold, from which on it is said to tell them. The best columns of
iris, wine, breast cancer and digits reach .93, .60, .77 and .19."""

LACKS = 0.05
"""Share of missing cells from which on a column is named."""

RARE = 0.1
"""A class is rare if it has less than this share of the rows that it would have if all had the same."""

LOOKED_AT = 5_000
"""Rows on which a column is tried."""

CONTENT = ("number", "category", "date", "text")
"""Roles of columns whose cells should have a value."""

Lost = Mapping[str, NDArray[np.bool_]]
"""By column, (N,) which cells are empty."""

ColumnFinding = tuple[str, str, float, str]
"""A kind of issue, the column or class, the score and what to say of it."""


def lost_cells(frame: pd.DataFrame, columns: tuple[Column, ...]) -> Lost:
    """By column that is used or may have content, (N,) which of its cells are empty."""
    return {c.name: _lost(frame[c.name]) for c in columns if c.used or c.role in CONTENT}


def column_issues(
    frame: pd.DataFrame, columns: tuple[Column, ...], lost: Lost, given: Ints, classes: int
) -> Iterator[ColumnFinding]:
    """Issues of the columns of a table whose labels are classes."""
    for column in columns:
        if column.role == "identifier":
            distinct = frame[column.name].nunique() / max(len(frame), 1)
            yield "identifier_column", column.name, float(distinct), f"{column.reason}; it is not used"
        if column.role == "label" and column.reason.startswith("repeats"):
            yield "leaking_column", column.name, 1.0, "repeats the label in other words; it is not used"
        if column.used and classes:
            share = predicts(frame[column.name], column, given, classes)
            if share >= TELLS:
                yield "leaking_column", column.name, share, f"predicts {share:.1%} of the labels alone, beyond chance"
        if column.role in CONTENT:
            share = float(lost[column.name].mean())
            if share >= LACKS:
                yield "missing_values", column.name, share, f"{share:.1%} of the cells are empty"


def empty_rows(columns: tuple[Column, ...], lost: Lost) -> Iterator[tuple[int, float, str]]:
    """Rows of a table without a value in any column that is used, as single rows are told."""
    used = [column.name for column in columns if column.used]
    if used:
        for i in np.flatnonzero(np.logical_and.reduce([lost[name] for name in used])).tolist():
            yield i, 1.0, f"no value in any of {len(used)} columns"


def rare_classes(given: Ints, names: tuple[str, ...]) -> Iterator[ColumnFinding]:
    """Classes with few rows; the score is their share of the rows over an equal share."""
    counts = np.bincount(given, minlength=len(names))
    equal = len(given) / max(len(names), 1)
    for c in np.flatnonzero(counts < RARE * equal).tolist():
        yield "rare_class", names[c], float(counts[c] / equal), f"{counts[c]:,} of {len(given):,} rows"


def alike_classes(given: Ints, names: tuple[str, ...]) -> Iterator[ColumnFinding]:
    """Pairs of classes with nearly the same name; the score is the share of the more frequent one among the rows of both.

    >>> list(alike_classes(np.array([0, 0, 0, 1]), ("billing", "Billing")))
    [('alike_classes', 'Billing', 0.75, '"Billing" (1 row) and "billing" (3 rows)')]
    """
    counts = np.bincount(given, minlength=len(names))
    there = np.flatnonzero(counts).tolist()
    for pair in near_pairs([names[c] for c in there]):
        rare, often = sorted((there[k] for k in pair), key=lambda c: int(counts[c]))
        said = [f'"{names[c]}" ({counts[c]:,} row{"s" * int(counts[c] > 1)})' for c in (rare, often)]
        yield "alike_classes", names[rare], float(counts[often] / (counts[rare] + counts[often])), " and ".join(said)


def predicts(column: pd.Series, what: Column, given: Ints, classes: int) -> float:
    """The share of labels beyond the most frequent one that the column predicts alone, out of fold."""
    from sklearn.tree import DecisionTreeClassifier

    rows = np.random.default_rng(0).permutation(len(given))[:LOOKED_AT]
    y = given[rows]
    cells = column.iloc[rows]
    x = numbers(cells) if what.role == "number" else pd.factorize(cells.astype(str))[0].astype(np.float64)
    x = np.where(np.isfinite(x), x, -1e9)[:, None]
    right, fold = 0, np.arange(len(rows)) % 5
    for k in range(5):
        learn = fold != k
        if what.role == "number":
            tree = DecisionTreeClassifier(min_samples_leaf=2, max_leaf_nodes=max(8, 2 * classes), random_state=0).fit(
                x[learn], y[learn]
            )
            right += int((tree.predict(x[~learn]) == y[~learn]).sum())
        else:
            right += int((_by_value(x[learn, 0], y[learn], x[~learn, 0], classes) == y[~learn]).sum())
    chance = np.bincount(y, minlength=classes).max() / len(y)
    return float((right / len(y) - chance) / max(1 - chance, 1e-9))


def _by_value(x: Floats, y: Ints, held: Floats, classes: int) -> Ints:
    """The most frequent class of each value; of a new value, the most frequent class of all."""
    counts = np.zeros((int(max(x.max(), held.max())) + 2, classes), np.int64)
    np.add.at(counts, (x.astype(np.int64), y), 1)
    found = counts[held.astype(np.int64)]
    return np.where(found.sum(1) > 0, found.argmax(1), np.bincount(y, minlength=classes).argmax())


def _lost(column: pd.Series) -> NDArray[np.bool_]:
    """(N,) which cells are empty."""
    codes, values = pd.factorize(column)
    lost = np.array([*(is_missing(v) for v in np.asarray(values, dtype=object)), True])
    return np.asarray(lost[codes], dtype=bool)


LONG = 5
"""Letters of a word from which on one letter more, less or other is a slip: "cat" and "car", "grade a" and "grade b" are two classes."""

NEVER = -30.0
"""The log probability of a class that is not to be suggested."""

# What joins words says nothing, but a sign before or after all of them may ("A-", "-1", "c++"), and so may one between digits.
_LETTER = r"[^\W\d_]"
_JOINT = re.compile(rf"(?<={_LETTER})[\s_-]+(?=\w)|(?<=\w)[\s_-]+(?={_LETTER})")
_ENDS = " \t\n.,;:'\"_"


def same_name(a: str, b: str) -> bool:
    """Whether two names differ in nothing but case, spacing and Unicode form.

    >>> same_name("e-mail", "E Mail"), same_name("biling", "billing"), same_name("A", "a")
    (True, False, False)
    """
    return a == b or _joined(a) == _joined(b) is not None


def spellings(names: Sequence[str]) -> list[list[int]]:
    """Positions of names that are spellings of one name.

    >>> spellings(["cat", "dog", "Cat"])
    [[0, 2]]
    """
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        joined = _joined(name)
        if joined is not None:
            groups.setdefault(joined, []).append(i)
    return [group for group in groups.values() if len(group) > 1]


def merge_spellings(labels: Ints, names: Sequence[str]) -> tuple[Ints, tuple[str, ...], dict[str, str]]:
    """Labels and names with one class for all spellings of a name, the most frequent one, and which spellings it replaces.

    >>> merge_spellings(np.array([0, 2, 2, 1, -1]), ["Cat", "dog", "cat"])
    (array([ 1,  1,  1,  0, -1]), ('dog', 'cat'), {'Cat': 'cat'})
    """
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    stands_for = np.arange(len(names))
    for group in spellings(names):
        stands_for[group] = group[int(counts[group].argmax())]
    kept, places = np.unique(stands_for, return_inverse=True)
    merged = {names[i]: names[k] for i, k in enumerate(stands_for.tolist()) if i != k}
    return np.append(places, -1)[labels], tuple(names[k] for k in kept), merged


def without_spellings(log_q: Floats, labels: Ints, names: Sequence[str]) -> Floats:
    """(N, C) log probabilities in which each label also stands for the other spellings of its name, so that none of them is suggested.

    >>> np.exp(without_spellings(np.log([[0.2, 0.7, 0.1]]), np.array([0]), ["Cat", "cat", "dog"])).round(3)
    array([[0.9, 0. , 0.1]])
    """
    groups = spellings(names)
    if not groups:
        return log_q
    log_q = log_q.copy()
    for group in groups:
        for own in group:
            rows = np.flatnonzero(labels == own)
            all_of_it = np.ix_(rows, np.array(group))
            total = logsumexp(log_q[all_of_it], axis=1)
            log_q[all_of_it] = NEVER
            log_q[rows, own] = total
    return log_q


def near_names(a: str, b: str) -> bool:
    """Whether two names differ in nothing but case and spacing, or but for that in one letter of a long word.

    >>> near_names("Billing", "billing"), near_names("e-mail", "E Mail"), near_names("biling", "billing")
    (True, True, True)
    >>> near_names("cat", "car"), near_names("type A", "type B"), near_names("level1", "level2"), near_names("A", "a")
    (False, False, False, False)
    """
    return same_name(a, b) or _one_letter(_words(a), _words(b))


def near_pairs(names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Positions of names that are nearly the same, the smaller one first. Not all are compared: there may be many classes.

    >>> list(near_pairs(["billing", "other", "Billing", "biling"]))
    [(0, 2), (0, 3), (2, 3)]
    """
    alike: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        for key in _keys(name):
            alike.setdefault(key, []).append(i)
    pairs = {(i, j) for group in alike.values() for n, j in enumerate(group) for i in group[:n]}
    return (pair for pair in sorted(pairs) if near_names(names[pair[0]], names[pair[1]]))


def _plain(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold().strip(_ENDS)


def _joined(name: str) -> str | None:
    """A name without case and spaces; none if it has no two letters: "A" and "a" may be two classes."""
    plain = _JOINT.sub("", _plain(name))
    return plain if sum(map(str.isalpha, plain)) > 1 else None


def _words(name: str) -> list[str]:
    return re.split(r"[\s_-]+", _plain(name))


def _one_letter(a: list[str], b: list[str]) -> bool:
    """Whether one word of each is another, and these differ in one letter, or in the order of two."""
    others = [pair for pair in zip(a, b, strict=False) if pair[0] != pair[1]]
    if len(a) != len(b) or len(others) != 1:
        return False
    short, long = sorted(others[0], key=len)
    if len(long) < LONG or not (short + long).isalpha() or len(long) - len(short) > 1:
        return False
    k = next((k for k, (x, y) in enumerate(zip(short, long, strict=False)) if x != y), len(short))
    if len(short) < len(long):
        return short[k:] == long[k + 1 :]
    return short[k + 1 :] == long[k + 1 :] or (short[k:][:2] == long[k:][:2][::-1] and short[k + 2 :] == long[k + 2 :])


def _keys(name: str) -> set[str]:
    """Texts of which names that are nearly the same share one: of two that differ in one letter, what is left without it."""
    joined, words = _joined(name), _words(name)
    found = {" ".join(words)} | ({joined} if joined else set())
    for n, word in enumerate(words):
        if len(word) >= LONG - 1 and word.isalpha():
            for k in range(len(word)):
                found.add(" ".join([*words[:n], word[:k] + word[k + 1 :], *words[n + 1 :]]))
    return found
