"""Texts that say nearly the same in nearly the same words: by the short sequences of characters that they share.

Every text is the set of its `LENGTH`-character sequences, without regard to case, punctuation and white space. The similarity of two
texts is the Jaccard index of their sets: the share of all their sequences that both have. MinHash estimates it for pairs that agree
in one of many short signatures, so that not all pairs are compared; what looks similar is then computed exactly.

Memory: about 570 bytes a text, for the smallest values of 126 hash functions and four bits of each. The sets themselves are made twice,
some texts at a time, and not kept.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from compensate.auditing.issues.image_copies import image_pairs, shrunk
from compensate.auditing.issues.neighbors import Near, nearest_rows
from compensate.auditing.learners import COPIES, content_keys
from compensate.data.dataset import Dataset, Ints

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

COMPARED, HASHED = 1 << 13, 1 << 17
"""Pairs that are compared, and sequences that are hashed, at a time: they stay in the processor's cache."""

_OTHER = re.compile(r"[\W_]+")
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_NIBBLES, _BYTES = np.uint64(0x1111111111111111), np.uint64(0x0101010101010101)


def text_pairs(texts: Sequence[str], least: float) -> Iterator[tuple[int, int, float]]:
    """Pairs of texts that are at least so similar, and how similar they are. Texts without a letter have no pairs.

    >>> list(text_pairs(["An awful, boring film!", "an awful boring film", "A fine one"], 0.5))
    [(0, 1, 1.0)]
    """
    kept, hashes = _min_hashes(texts)
    if len(kept) < 2:
        return
    seen: set[tuple[int, int]] = set()
    for a, b in _candidates(hashes, least - LIKELY):
        likely = (hashes[a] == hashes[b]).mean(1, dtype=np.float32) >= np.float32(least - LIKELY)
        new = [
            pair for pair in zip(kept[a[likely]].tolist(), kept[b[likely]].tolist(), strict=True) if pair not in seen
        ]
        seen.update(new)
        sets = {i: sequences(texts[i]) for i in {i for pair in new for i in pair}}
        for i, j in new:
            found = jaccard(sets[i], sets[j])
            if found >= least:
                yield i, j, found


def sequences(text: str) -> NDArray[np.uint64]:
    """The set of a text's character sequences, as hashes in order.

    >>> len(sequences("abcdefg")), len(sequences("A b")), len(sequences("..."))
    (3, 1, 0)
    """
    bare = _bare(text)
    return np.unique(_hashed(bare)) if bare else np.empty(0, np.uint64)


def jaccard(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> float:
    """The share of all elements of two sets that both have.

    >>> jaccard(np.array([1, 2], np.uint64), np.array([2, 3], np.uint64))
    0.3333333333333333
    """
    both = len(np.intersect1d(a, b, assume_unique=True))
    return both / (len(a) + len(b) - both)


def _bare(text: str) -> str:
    """A text without case, punctuation and white space at its ends; of one sequence at least, if anything is left."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text[:LONGEST])
    bare = _OTHER.sub(" ", text[:LONGEST].lower()).strip()
    return bare and bare.ljust(LENGTH, "\0")


def _hashed(letters: str) -> NDArray[np.uint64]:
    """A hash of the sequence that begins at each character."""
    codes = np.frombuffer(letters.encode("utf-32-le", "replace"), np.uint32).astype(np.uint64)
    count = len(codes) - LENGTH + 1
    found = np.zeros(count, np.uint64)
    for k in range(LENGTH):
        found = (found ^ codes[k : count + k]) * _PRIME
        found ^= found >> np.uint64(29)
    return found


def _min_hashes(texts: Sequence[str]) -> tuple[Ints, NDArray[np.uint32]]:
    """The texts that have sequences, and (n, BANDS * IN_A_BAND) the smallest value of each hash function over those of each."""
    rng = np.random.default_rng(0)
    count = BANDS * IN_A_BAND
    odd = rng.integers(1, 1 << 63, size=count, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    more = rng.integers(0, 1 << 63, size=count, dtype=np.uint64)
    kept, found = np.empty(len(texts), np.int64), np.empty((len(texts), count), np.uint32)
    end = 0
    for rows, joined, places in _joined(texts):
        start, end = end, end + len(rows)
        kept[start:end] = rows
        for k in range(count):
            values = ((joined * odd[k] + more[k]) >> np.uint64(32)).astype(np.uint32)
            found[start:end, k] = np.minimum.reduceat(values, places)
    return kept[:end], found[:end]


def _joined(texts: Sequence[str]) -> Iterator[tuple[list[int], NDArray[np.uint64], Ints]]:
    """Some texts at a time: which, the hashes of their sequences one after the other, and where those of each begin."""
    rows: list[int] = []
    bare: list[str] = []
    held = 0
    for i, text in enumerate(texts):
        letters = _bare(text)
        if not letters:
            continue
        if held and held + len(letters) > HASHED:
            yield rows, *_one_after_the_other(bare)
            rows, bare, held = [], [], 0
        rows.append(i)
        bare.append(letters)
        held += len(letters)
    if rows:
        yield rows, *_one_after_the_other(bare)


def _one_after_the_other(bare: list[str]) -> tuple[NDArray[np.uint64], Ints]:
    found = _hashed("".join(bare))
    lengths = np.array([len(letters) for letters in bare])
    ends = np.cumsum(lengths)[:-1]
    across = (ends[:, None] - np.arange(1, LENGTH)).ravel()  # sequences that begin in one text and end in the next
    places = np.concatenate([[0], np.cumsum(lengths[:-1] - LENGTH + 1)])
    return np.delete(found, across), places


def _sketches(hashes: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """(W, N) the lowest four bits of each hash, sixteen to a number."""
    found = np.zeros((-(-hashes.shape[1] // 16), len(hashes)), np.uint64)
    for k in range(hashes.shape[1]):
        found[k // 16] |= (hashes[:, k] & np.uint32(15)).astype(np.uint64) << np.uint64(4 * (k % 16))
    return found


def _agreeing(sketches: NDArray[np.uint64], a: Ints, b: Ints) -> Ints:
    """(P,) in how many hashes the texts of each pair may agree: their four bits do. What fills up the last number counts, too."""
    found = np.empty(len(a), np.int64)
    for first in range(0, len(a), COMPARED):
        part = slice(first, first + COMPARED)
        # One bit of each four says whether they differ. Of eight numbers these add up without carrying over, and then by bytes.
        sums = np.zeros(len(a[part]), np.uint64)
        for bits in sketches:
            differ = bits[a[part]] ^ bits[b[part]]
            differ |= differ >> np.uint64(2)
            differ |= differ >> np.uint64(1)
            sums += differ & _NIBBLES
        sums = (sums & np.uint64(15) * _BYTES) + (sums >> np.uint64(4) & np.uint64(15) * _BYTES)
        found[part] = 16 * len(sketches) - (sums * _BYTES >> np.uint64(56)).astype(np.int64)
    return found


def _candidates(hashes: NDArray[np.uint32], least: float) -> Iterator[tuple[Ints, Ints]]:
    """Pairs that agree in a signature, and may agree in this share of all hashes; a pair that agrees in several signatures is given for each."""
    n, enough = len(hashes), least * hashes.shape[1]
    sketches = _sketches(hashes)
    for band in range(BANDS):
        part = hashes[:, band * IN_A_BAND : (band + 1) * IN_A_BAND].astype(np.uint64)
        key = (
            (part[:, 0] * _PRIME)
            ^ (part[:, 1] * np.uint64(0xC2B2AE3D27D4EB4F))
            ^ (part[:, 2] * np.uint64(0x165667B19E3779F9))
        )
        order = np.argsort(key, kind="stable")
        ranked = key[order]
        beside = sketches[:, order]  # pairs then lie near each other in memory
        for step in range(1, min(CROWD + 1, n)):
            same = np.flatnonzero(ranked[step:] == ranked[:-step])
            if not len(same):
                break
            # Four bits of equal hashes are equal, so this leaves out no pair that would be likely.
            near = same[_agreeing(beside, same, same + step) >= enough]
            a, b = order[near], order[near + step]
            yield np.minimum(a, b), np.maximum(a, b)


SIMILAR_TEXTS = 0.55
"""Jaccard index of character sequences: chosen on edited sentences of SST-2 (4,000 rows, 600 copies), where recall was .992 at a precision of .997."""

SIMILAR_IMAGES = 0.78
"""Correlation of details: chosen on edited images of CIFAR-10 (two draws of 1,500 rows and 150 copies of the training part), where every copy among the
candidates was found at a precision of .99."""

CLOSE = 0.05
"""Rows of a table or embeddings are nearly equal if their distance is this share of the usual distance to the nearest row."""

BY_CHANCE = 0.5
"""If more than this share of the rows of a table has an equal one, they are equal by chance: the table has few columns with few values."""

JOINED = 10_000
"""Rows of a table whose cells are joined at a time: lists of cells are quicker than their iterators, and of all rows they would be large."""

Pair = tuple[int, int, float]
"""Two positions and their similarity, 1 for equal content."""

Partner = tuple[int, float, bool]
"""The position of another row, the similarity to it, and whether it has another label."""


def find_pairs(data: Dataset, kind: str, vectors: Any, near: Near | None = None) -> list[Pair]:
    """Pairs of rows with equal or nearly equal content.

    Args:
        data: the rows.
        kind: as the audit names it.
        vectors: (N, D) their features, dense or sparse, or None.
        near: the nearest rows by these features, where they are dense.
    """
    content = _content(data, kind)
    equal = list(_equal(content))
    if kind == "table" and len({i for pair in equal for i in pair[:2]}) > BY_CHANCE * len(data):
        return []
    return [*equal, *_nearly(data, kind, vectors, near)]


def shared_with(data: Dataset, test: Dataset, kind: str) -> list[Pair]:
    """Pairs of a row of the data and a row of a test set with equal or nearly equal content: positions in either."""
    n = len(data)
    if kind == "text":
        pairs: Iterable[Pair] = text_pairs([*map(str, data.x), *map(str, test.x)], SIMILAR_TEXTS)
    elif kind == "image":
        small = np.concatenate([shrunk(data.x), shrunk(test.x)])
        pairs = image_pairs(small, small.reshape(len(small), -1), SIMILAR_IMAGES)
    else:
        keys = [_keys(_content(part, kind)) for part in (data, test)]
        pairs = _grouped(np.concatenate(keys))
    found = [(min(i, j), max(i, j), s) for i, j, s in pairs]
    return [(i, j - n, s) for i, j, s in found if i < n <= j]


def partners(pairs: Iterable[Pair], labels: NDArray[Any]) -> dict[int, Partner]:
    """For each row in a pair the most similar row that it was compared with: of those with another label if there are any.

    Of rows that equal each other any two are a pair; likeness is not handed on.

    >>> found = partners([(0, 1, 1.0), (1, 2, 0.6), (2, 3, 0.7)], np.array([0, 0, 0, 1]))
    >>> found[0], found[2]
    ((1, 1.0, False), (3, 0.7, True))
    """
    label = labels.tolist()
    where: dict[int, int] = {}  # from a row to a smaller one that equals it

    def root(i: int) -> int:
        while where.get(i, i) != i:
            where[i] = where.get(where[i], where[i])
            i = where[i]
        return i

    found: dict[int, Partner] = {}

    def meet(own: int, other: int, similarity: float) -> None:
        differ = label[own] != label[other]
        if own not in found or (differ, similarity) > (found[own][2], found[own][1]):
            found[own] = other, similarity, differ

    for i, j, similarity in pairs:
        meet(i, j, similarity)
        meet(j, i, similarity)
        if similarity == 1:
            a, b = sorted((root(i), root(j)))
            where[a], where[b] = a, a
    # Of many equal rows not every two were compared: the first row with another label than the smallest one's stands for all of them.
    others: dict[int, int] = {}
    for i in sorted(where):
        if label[i] != label[root(i)]:
            others.setdefault(root(i), i)
    for i in where:
        if root(i) in others:
            meet(i, root(i) if label[i] != label[root(i)] else others[root(i)], 1.0)
    return found


def _content(data: Dataset, kind: str) -> Any:
    if kind == "text":
        return [str(text) for text in data.x]
    if kind == "table" and (table := data.table) is not None:
        used = [c.name for c in data.source.columns if c.used] or [c for c in table.columns if c != data.source.label]
        parts = (table.iloc[first : first + JOINED] for first in range(0, len(table), JOINED))
        columns = ([map(str, part[name].tolist()) for name in used] for part in parts)
        return ["\x1f".join(cells) for part in columns for cells in zip(*part, strict=True)]
    return np.asarray(data.x)


def _keys(content: Any) -> Ints:
    keys = content_keys(content)
    return np.arange(len(content)) if keys is None else keys


def _equal(content: Any) -> Iterator[Pair]:
    if isinstance(content, list):  # an empty text is an issue of its own
        content = [text if text.strip("\x1f ") else f"\x00{i}" for i, text in enumerate(content)]
    return _grouped(_keys(content))


def _grouped(keys: Ints) -> Iterator[Pair]:
    order = np.argsort(keys, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(keys[order])) + 1, len(order))
    sizes = np.diff(ends, prepend=0)
    # Of most data few rows are left: a step for each of a million would take long.
    for k in np.flatnonzero((sizes > 1) & (sizes <= COPIES)).tolist():
        first, *others = order[ends[k] - sizes[k] : ends[k]].tolist()
        yield from ((first, other, 1.0) for other in others)


def _nearly(data: Dataset, kind: str, vectors: Any, near: Near | None) -> Iterator[Pair]:
    if kind == "text":
        return text_pairs([str(text) for text in data.x], SIMILAR_TEXTS)
    dense = None if vectors is None or sparse.issparse(vectors) else np.asarray(vectors, dtype=np.float32)
    if kind == "image" and np.ndim(data.x) == 4:
        small = shrunk(data.x)
        return image_pairs(small, small.reshape(len(small), -1) if dense is None else dense, SIMILAR_IMAGES)
    return iter(()) if dense is None else _close(nearest_rows(dense, 1) if near is None else near)


def _close(near: Near) -> Iterator[Pair]:
    who, far = near
    if not far.size:
        return
    usual = float(np.median(far[:, 0]))
    for i in np.flatnonzero(far[:, 0] < CLOSE * usual).tolist():
        yield i, int(who[i, 0]), 1.0 - float(far[i, 0]) / usual
