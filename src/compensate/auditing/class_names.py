"""Class names that are spellings of one name, or nearly the same."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.special import logit, logsumexp

from compensate.data.dataset import Floats, Ints

MIN_LETTERS = 5
"""Shortest word in which one changed letter counts as a typing error: "cat" and "car" are two classes."""

EXISTS = 0.5  # prior probability that a class with a single row exists
EXCLUDED = -30.0  # log probability of a class that must not be suggested
# Separators between letters carry no meaning; a sign at either end ("A-", "-1", "c++") or between digits may.
_LETTER = r"[^\W\d_]"
_SEPARATOR = re.compile(rf"(?<={_LETTER})[\s_-]+(?=\w)|(?<=\w)[\s_-]+(?={_LETTER})")


def same_name(a: str, b: str) -> bool:
    """Whether two names differ only in case, spacing and Unicode form."""
    return a == b or _canonical(a) == _canonical(b) is not None


def spellings(names: Sequence[str]) -> list[list[int]]:
    """Groups of positions whose names are spellings of one name.

    >>> spellings(["cat", "dog", "Cat"])
    [[0, 2]]
    """
    groups: dict[str | None, list[int]] = {}
    for i, name in enumerate(names):
        groups.setdefault(_canonical(name), []).append(i)
    return [group for canonical, group in groups.items() if canonical is not None and len(group) > 1]


def merge_spellings(labels: Ints, names: Sequence[str]) -> tuple[Ints, tuple[str, ...], dict[str, str]]:
    """Merges the spellings of a name into the most frequent one; returns labels, names and the replaced spellings.

    >>> merge_spellings(np.array([0, 2, 2, 1, -1]), ["Cat", "dog", "cat"])
    (array([ 1,  1,  1,  0, -1]), ('dog', 'cat'), {'Cat': 'cat'})
    """
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    merged = np.arange(len(names))
    for group in spellings(names):
        merged[group] = group[int(counts[group].argmax())]
    kept, positions = np.unique(merged, return_inverse=True)
    replaced = {names[i]: names[k] for i, k in enumerate(merged.tolist()) if i != k}
    return np.append(positions, -1)[labels], tuple(names[k] for k in kept), replaced


def without_spellings(log_q: Floats, labels: Ints, names: Sequence[str]) -> Floats:
    """(N, C) log probabilities in which each label absorbs the other spellings of its name, which are never suggested.

    >>> np.exp(without_spellings(np.log([[0.2, 0.7, 0.1]]), np.array([0]), ["Cat", "cat", "dog"])).round(3)
    array([[0.9, 0. , 0.1]])
    """
    groups = spellings(names)
    log_q = log_q.copy() if groups else log_q
    for group in groups:
        for own in group:
            rows = np.flatnonzero(labels == own)
            cells = np.ix_(rows, np.array(group))
            total = logsumexp(log_q[cells], axis=1)
            log_q[cells] = EXCLUDED
            log_q[rows, own] = total
    return log_q


def near_names(a: str, b: str) -> bool:
    """Whether two names differ only in case and spacing, or in one letter of a long word."""
    if same_name(a, b):
        return True
    one, two = _words(a), _words(b)
    different = [pair for pair in zip(one, two, strict=False) if pair[0] != pair[1]]
    if len(one) != len(two) or len(different) != 1:
        return False
    short, long = sorted(different[0], key=len)
    if len(long) < MIN_LETTERS or not (short + long).isalpha() or len(long) - len(short) > 1:
        return False
    k = next((k for k, (x, y) in enumerate(zip(short, long, strict=False)) if x != y), len(short))
    if len(short) < len(long):
        return short[k:] == long[k + 1 :]
    swapped = short[k:][:2] == long[k:][:2][::-1] and short[k + 2 :] == long[k + 2 :]
    return swapped or short[k + 1 :] == long[k + 1 :]


def near_pairs(names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Pairs of positions with nearly the same name, found by shared keys instead of comparing all pairs."""
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        canonical, words = _canonical(name), _words(name)
        keys = {" ".join(words)} | ({canonical} if canonical else set())
        for n, word in enumerate(words):  # two words that differ in one letter share a key without it
            if len(word) >= MIN_LETTERS - 1 and word.isalpha():
                keys |= {" ".join([*words[:n], word[:k] + word[k + 1 :], *words[n + 1 :]]) for k in range(len(word))}
        for key in keys:
            groups.setdefault(key, []).append(i)
    pairs = {(i, j) for group in groups.values() for n, j in enumerate(group) for i in group[:n]}
    return (pair for pair in sorted(pairs) if near_names(names[pair[0]], names[pair[1]]))


def _plain(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold().strip(" \t\n.,;:'\"_")


def _canonical(name: str) -> str | None:
    """A name without case and separators; None with fewer than two letters, as "A" and "a" may be two classes."""
    plain = _SEPARATOR.sub("", _plain(name))
    return plain if sum(map(str.isalpha, plain)) > 1 else None


def _words(name: str) -> list[str]:
    return re.split(r"[\s_-]+", _plain(name))


def judge_lone(
    log_q: Floats, labels: Ints, classes: Sequence[str], learned: Ints, sharpness: float
) -> tuple[Floats, Ints]:
    """(N,) the log odds that labels of single-row classes are wrong, and the likeliest other class.

    Args:
        log_q: (N, C) pooled log probabilities.
        labels: (N,) the class of each row.
        classes: (C,) their names.
        learned: the classes with more rows.
        sharpness: of the noise model.
    """
    u = sharpness * log_q[:, learned]
    q = np.exp(u - u.max(1, keepdims=True))
    other = np.array([[not same_name(classes[own], classes[c]) for c in learned] for own in labels]).reshape(q.shape)
    sure = (q * other).max(1) / q.sum(1)
    suggested = learned[np.where(other, q, -1.0).argmax(1)]
    near = [near_names(classes[own], classes[other]) for own, other in zip(labels, suggested, strict=True)]
    p = np.where(near, 1 - EXISTS * (1 - sure), EXISTS * sure)
    return logit(np.clip(p, 1e-12, 1 - 1e-9)), suggested
