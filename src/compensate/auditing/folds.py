"""Folds: which rows a model does not learn from, so that it can judge them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from compensate.auditing.arrays import Ints
from compensate.data.seeding import generator

FOLDS = 5
"""The usual number: each model learns from four fifths of the data."""

REPEATS, FEW = 4, 2_000
"""Up to so many rows are divided into folds so many times, and predictions are averaged: which rows a fold happens to hold moves those of a
small table. Of 569 rows of breast cancer with 10 % flips, four draws of the errors, average precision is .952 once and .956 four times."""

COPIES = 10
"""Rows with equal content are copies of one sample up to this number. In a table of few columns with few values, more rows than
that agree by chance, and each is a sample of its own."""


def content_keys(samples: Any) -> Ints | None:
    """(N,) a number for each row that equals that of another row only if both have the same content.

    Texts are compared without regard to case and white space; rows of numbers byte by byte. None for anything else.

    >>> content_keys(["A  text", "a text", "another"]).tolist()[:2] == [content_keys(["a text"])[0]] * 2
    True
    """
    if isinstance(samples, np.ndarray) and samples.dtype != object:
        flat = np.ascontiguousarray(samples.reshape(len(samples), -1))
        return np.array([_digest(row.tobytes()) for row in flat], dtype=np.int64)
    if all(isinstance(item, str) for item in samples):
        return np.array([_digest(" ".join(item.lower().split()).encode("utf-8", "replace")) for item in samples])
    return None


def num_divisions(rows: int) -> int:
    """How often so many rows are divided into folds.

    >>> num_divisions(569), num_divisions(60_000)
    (4, 1)
    """
    return REPEATS if rows <= FEW else 1


def _digest(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)


def assign_folds(
    labels: Ints,
    keys: Ints | None = None,
    *,
    folds: int = FOLDS,
    seed: int = 0,
    draw: int = 0,
) -> Ints:
    """(N,) the fold in which each row is held out. Each class is spread evenly; rows with equal keys stay together.

    Args:
        labels: (N,) class numbers; -1 where there is none, which are dealt out like a class.
        keys: (N,) rows with the same key are duplicates: a model that has seen one copy knows the label of the other. A key
            that more than `COPIES` rows share is not looked at.
        folds: their number.
        seed, draw: of the random numbers; each draw divides the rows anew.

    >>> assign_folds(np.array([0, 0, 0, 0, 1, 1, 1, 1]), np.array([1, 1, 2, 3, 4, 5, 6, 7]), folds=2).shape
    (8,)
    """
    rows = np.arange(len(labels)) if keys is None else _first_copies(keys)
    own = rows == np.arange(len(rows))
    group = np.cumsum(own)[rows] - 1
    del rows  # of ten million rows, each array takes 80 megabytes
    first = labels[own]
    luck = generator(seed, "folds", *([draw] if draw else [])).random(len(first))
    order = np.lexsort((luck, first))
    del luck, first
    fold = np.empty(len(order), np.int8)
    fold[order] = np.arange(len(order)) % folds
    del order
    return fold[group].astype(np.int64)


def _first_copies(keys: Ints) -> Ints:
    """(N,) for each row the first one with the same key; the row itself where more than `COPIES` rows share it."""
    rows = np.arange(len(keys))
    order = np.argsort(keys, kind="stable")
    equal = keys[order[1:]] == keys[order[:-1]]
    shared = order[np.flatnonzero(np.append(equal, False) | np.append(False, equal))]  # of most data these are few
    _, first, group, times = np.unique(keys[shared], return_index=True, return_inverse=True, return_counts=True)
    rows[shared] = np.where(times[group] <= COPIES, shared[first[group]], shared)
    return rows
