"""Texts that say nearly the same in nearly the same words: by the short sequences of characters that they share.

Every text is the set of its `LENGTH`-character sequences, without regard to case, punctuation and white space. The similarity of two
texts is the Jaccard index of their sets: the share of all their sequences that both have. MinHash estimates it for pairs that agree
in one of many short signatures, so that not all pairs are compared; what looks similar is then computed exactly.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from compensate.auditing.arrays import Ints

LENGTH = 5
"""Characters of a sequence: a typing error changes five of them, and unrelated sentences share few."""

BANDS, IN_A_BAND = 42, 3
"""Signatures of a text, and hash functions of each. Of pairs with a similarity of 0.5, 1 - (1 - 0.5^3)^42 = 99.6 % agree in one."""

LIKELY = 0.1
"""A pair is computed exactly if its estimated similarity is at most this much below the threshold: two standard errors at 0.5."""

CROWD = 20
"""The number of texts with the same signature that a text is compared with: the number of pairs stays in proportion to the rows."""

LONGEST = 20_000
"""Characters of a text that are looked at."""

_OTHER = re.compile(r"[\W_]+")
_PRIME = np.uint64(0x9E3779B97F4A7C15)


def text_pairs(texts: Sequence[str], least: float) -> Iterator[tuple[int, int, float]]:
    """Pairs of texts that are at least so similar, and how similar they are. Texts without a letter have no pairs.

    >>> list(text_pairs(["An awful, boring film!", "an awful boring film", "A fine one"], 0.5))
    [(0, 1, 1.0)]
    """
    sets = [sequences(text) for text in texts]
    kept = np.array([i for i, found in enumerate(sets) if len(found)], dtype=np.int64)
    if len(kept) < 2:
        return
    hashes = _min_hashes([sets[i] for i in kept])
    for a, b in _candidates(hashes):
        alike = np.empty(len(a), np.float32)
        for first in range(0, len(a), 1 << 16):
            part = slice(first, first + (1 << 16))
            alike[part] = (hashes[a[part]] == hashes[b[part]]).mean(1)
        for i, j in zip(a[alike >= least - LIKELY].tolist(), b[alike >= least - LIKELY].tolist(), strict=True):
            found = jaccard(sets[kept[i]], sets[kept[j]])
            if found >= least:
                yield int(kept[i]), int(kept[j]), found


def sequences(text: str) -> NDArray[np.uint64]:
    """The set of a text's character sequences, as hashes in order.

    >>> len(sequences("abcdefg")), len(sequences("A b")), len(sequences("..."))
    (3, 1, 0)
    """
    bare = _OTHER.sub(" ", unicodedata.normalize("NFKC", text[:LONGEST]).lower()).strip()
    if not bare:
        return np.empty(0, np.uint64)
    letters = np.frombuffer(bare.encode("utf-32-le", "replace"), np.uint32).astype(np.uint64)
    if len(letters) < LENGTH:
        letters = np.concatenate([letters, np.zeros(LENGTH - len(letters), np.uint64)])
    found = np.zeros(len(letters) - LENGTH + 1, np.uint64)
    for k in range(LENGTH):
        found = (found ^ letters[k : len(letters) - LENGTH + 1 + k]) * _PRIME
        found ^= found >> np.uint64(29)
    return np.unique(found)


def jaccard(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> float:
    """The share of all elements of two sets that both have.

    >>> jaccard(np.array([1, 2], np.uint64), np.array([2, 3], np.uint64))
    0.3333333333333333
    """
    both = len(np.intersect1d(a, b, assume_unique=True))
    return both / (len(a) + len(b) - both)


def _min_hashes(sets: list[NDArray[np.uint64]]) -> NDArray[np.uint32]:
    """(N, BANDS * IN_A_BAND) the smallest value of each hash function over each set."""
    rng = np.random.default_rng(0)
    count = BANDS * IN_A_BAND
    odd = rng.integers(1, 1 << 63, size=count, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    more = rng.integers(0, 1 << 63, size=count, dtype=np.uint64)
    found = np.empty((len(sets), count), np.uint32)
    start = 0
    while start < len(sets):  # some sets at a time, so that their hashes fit in memory
        end, held = start, 0
        while end < len(sets) and (held == 0 or held + len(sets[end]) <= 1 << 17):
            held += len(sets[end])
            end += 1
        joined = np.concatenate(sets[start:end])
        places = np.cumsum([0, *map(len, sets[start : end - 1])])
        for k in range(count):
            values = ((joined * odd[k] + more[k]) >> np.uint64(32)).astype(np.uint32)
            found[start:end, k] = np.minimum.reduceat(values, places)
        start = end
    return found


def _candidates(hashes: NDArray[np.uint32]) -> Iterator[tuple[Ints, Ints]]:
    """Pairs that agree in a signature, each once."""
    n = len(hashes)
    seen: set[int] = set()
    for band in range(BANDS):
        part = hashes[:, band * IN_A_BAND : (band + 1) * IN_A_BAND].astype(np.uint64)
        key = (
            (part[:, 0] * _PRIME)
            ^ (part[:, 1] * np.uint64(0xC2B2AE3D27D4EB4F))
            ^ (part[:, 2] * np.uint64(0x165667B19E3779F9))
        )
        order = np.argsort(key, kind="stable")
        ranked = key[order]
        for step in range(1, CROWD + 1):
            same = np.flatnonzero(ranked[step:] == ranked[:-step]) if step < n else np.empty(0, np.int64)
            if not len(same):
                break
            a, b = order[same], order[same + step]
            a, b = np.minimum(a, b), np.maximum(a, b)
            codes = a * n + b
            new = np.array([code not in seen for code in codes.tolist()])
            seen.update(codes.tolist())
            if new.any():
                yield a[new], b[new]
