"""Names of classes that are nearly the same: mostly one class, written in two ways."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.special import logsumexp

from compensate.auditing.arrays import Floats, Ints

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
