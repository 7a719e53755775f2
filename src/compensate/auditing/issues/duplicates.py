"""Duplicates: rows with equal or nearly equal content.

- **Texts** are sets of character n-grams, ignoring case, punctuation and white space; their similarity is the Jaccard index. MinHash with
  banding selects the pairs whose similarity is then computed exactly (about 500 bytes a text).
- **Images** are compared after cropping, mirroring and changes of brightness. Candidates are nearest neighbors in the audit's features and
  in 8 x 8 thumbnails. The similarity is the largest correlation of local details over scales and offsets, 1 for equal pictures.
- **Tables and embeddings** are nearly equal if their distance is small compared with the usual distance to the nearest row.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from compensate.auditing.learners import COPIES, content_keys
from compensate.data.dataset import Dataset, Floats, Ints, Singles

SIMILAR_TEXTS = 0.55
"""Jaccard index from which on texts are duplicates; on edited sentences of SST-2 (4,000 rows, 600 copies) recall was .992 at precision .997."""

SIMILAR_IMAGES = 0.78
"""Correlation from which on images are duplicates; on edited CIFAR-10 images (two draws of 1,500 rows and 150 copies) all candidate copies
were found at precision .99."""

CLOSE = 0.05  # distance of nearly equal rows, as a fraction of the median distance to the nearest row
MAX_EQUAL_ROWS = 0.5
"""Tables in which a larger share of rows has an equal row are skipped: few columns with few values are equal by chance."""

JOINED_ROWS = 10_000  # rows of a table whose cells are joined at a time, to bound memory
Pair = tuple[int, int, float]  # two positions and their similarity, 1 for equal content
Partner = tuple[int, float, bool]  # the position of another row, the similarity to it, and whether it has another label
Near = tuple[Ints, Singles]  # (N, k) the nearest other rows of each row, nearest first, and (N, k) their distances


def find_pairs(data: Dataset, kind: str, vectors: Any, near: Near | None = None) -> list[Pair]:
    """Pairs of rows with equal or nearly equal content.

    Args:
        data: the rows.
        kind: as the audit names it.
        vectors: (N, D) features, dense or sparse, or None.
        near: `nearest_rows` of dense features.
    """
    content = _content(data, kind)
    if isinstance(content, list):  # empty texts are an issue of their own
        content = [text if text.strip("\x1f ") else f"\x00{i}" for i, text in enumerate(content)]
    equal = list(_equal_pairs(content))
    if kind == "table" and len({i for pair in equal for i in pair[:2]}) > MAX_EQUAL_ROWS * len(data):
        return []
    dense = None if vectors is None or sparse.issparse(vectors) else np.asarray(vectors, dtype=np.float32)
    if kind == "text":
        return [*equal, *text_pairs([str(text) for text in data.x], SIMILAR_TEXTS)]
    if kind == "image" and np.ndim(data.x) == 4:
        small = shrunk(data.x)
        features = small.reshape(len(small), -1) if dense is None else dense
        return [*equal, *image_pairs(small, features, SIMILAR_IMAGES)]
    if dense is None:
        return equal
    who, distance = nearest_rows(dense, 1) if near is None else near
    if distance.size:
        median = float(np.median(distance[:, 0]))
        close = np.flatnonzero(distance[:, 0] < CLOSE * median).tolist()
        equal += [(i, int(who[i, 0]), 1.0 - float(distance[i, 0]) / median) for i in close]
    return equal


def shared_with(data: Dataset, test: Dataset, kind: str) -> list[Pair]:
    """Pairs of a row of the data and a row of a test set with equal or nearly equal content."""
    n = len(data)
    if kind == "text":
        pairs: Iterable[Pair] = text_pairs([*map(str, data.x), *map(str, test.x)], SIMILAR_TEXTS)
    elif kind == "image":
        small = np.concatenate([shrunk(data.x), shrunk(test.x)])
        pairs = image_pairs(small, small.reshape(len(small), -1), SIMILAR_IMAGES)
    else:
        pairs = _equal_pairs([_content(part, kind) for part in (data, test)], split=True)
    ordered = [(min(i, j), max(i, j), s) for i, j, s in pairs]
    return [(i, j - n, s) for i, j, s in ordered if i < n <= j]


def partners(pairs: Iterable[Pair], labels: NDArray[Any]) -> dict[int, Partner]:
    """The most similar partner of each row, preferring partners with another label.

    Equality is transitive, similarity is not.

    >>> found = partners([(0, 1, 1.0), (1, 2, 0.6), (2, 3, 0.7)], np.array([0, 0, 0, 1]))
    >>> found[0], found[2]
    ((1, 1.0, False), (3, 0.7, True))
    """
    label = labels.tolist()
    parent: dict[int, int] = {}  # union-find over equal rows; the root is the smallest

    def root(i: int) -> int:
        while parent.get(i, i) != i:
            parent[i] = parent.get(parent[i], parent[i])
            i = parent[i]
        return i

    best: dict[int, Partner] = {}

    def update(own: int, other: int, similarity: float) -> None:
        differ = label[own] != label[other]
        if own not in best or (differ, similarity) > (best[own][2], best[own][1]):
            best[own] = other, similarity, differ

    for i, j, similarity in pairs:
        update(i, j, similarity)
        update(j, i, similarity)
        if similarity == 1:
            a, b = sorted((root(i), root(j)))
            parent[a], parent[b] = a, a
    # Not all pairs of a group of equal rows were listed: the first row with another label than the root represents the others.
    conflicting: dict[int, int] = {}
    for i in sorted(parent):
        if label[i] != label[root(i)]:
            conflicting.setdefault(root(i), i)
    for i in parent:
        if root(i) in conflicting:
            update(i, root(i) if label[i] != label[root(i)] else conflicting[root(i)], 1.0)
    return best


def _content(data: Dataset, kind: str) -> Any:
    if kind == "text":
        return [str(text) for text in data.x]
    if kind == "table" and (table := data.table) is not None:
        used = [c.name for c in data.source.columns if c.used] or [c for c in table.columns if c != data.source.label]
        parts = (table.iloc[first : first + JOINED_ROWS] for first in range(0, len(table), JOINED_ROWS))
        columns = ([map(str, part[name].tolist()) for name in used] for part in parts)
        return ["\x1f".join(cells) for part in columns for cells in zip(*part, strict=True)]
    return np.asarray(data.x)


def _equal_pairs(content: Any, *, split: bool = False) -> Iterator[Pair]:
    """Pairs of rows with equal content, each with the first of its group; `split` content is in several parts."""
    keys = []
    for part in content if split else [content]:
        found = content_keys(part)
        keys.append(np.arange(len(part)) if found is None else found)
    key = np.concatenate(keys)
    order = np.argsort(key, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(key[order])) + 1, len(order))
    sizes = np.diff(ends, prepend=0)
    for k in np.flatnonzero((sizes > 1) & (sizes <= COPIES)).tolist():
        first, *others = order[ends[k] - sizes[k] : ends[k]].tolist()
        yield from ((first, other, 1.0) for other in others)


# --- nearest rows ---------------------------------------------------------------------------------------------

EXACT_ROWS = 20_000  # rows up to which the search is exact; beyond, it is restricted to cells around random centers
PROBED_CELLS = 4  # cells that are searched: the row's own and the nearest others
BLOCK = 1 << 20  # distances in memory at once, to stay in the processor's cache
GROUP = 32  # distances that are reduced to their minimum before the k smallest are selected, at most


def nearest_rows(x: Singles, k: int, *, seed: int = 0) -> Near:
    """(N, k) the nearest other rows, nearest first, and (N, k) their Euclidean distances.

    >>> who, distance = nearest_rows(np.array([[0.0], [1.0], [5.0]], np.float32), 1)
    >>> who.ravel().tolist(), distance.ravel().tolist()
    ([1, 0, 1], [1.0, 1.0, 4.0])
    """
    n = len(x)
    k = min(k, n - 1)
    squares = np.einsum("ij,ij->i", x, x)
    who, distance = np.zeros((n, max(k, 0)), np.int64), np.full((n, max(k, 0)), np.inf, np.float32)
    if k < 1:
        return who, distance
    for rows, pool in _searches(x, squares, seed):
        count = min(k, len(pool) - 1)
        each = min(GROUP, max(1, len(pool) // (8 * count)))
        factors = _distance_factors(x[pool], squares[pool], -(-len(pool) // each) * each)
        for start in range(0, len(rows), size := max(1, BLOCK // len(pool))):
            here = rows[start : start + size]
            partial = _with_one(x[here]) @ factors.T
            position = np.arange(len(here))
            partial[position, start + position] = np.inf  # the pool begins with the rows themselves
            nearest = _smallest(partial, count, each)
            who[here, :count] = pool[nearest]
            close = np.take_along_axis(partial, nearest, 1) + squares[here, None]
            distance[here, :count] = np.sqrt(np.maximum(close, 0))
    return who, distance


def _searches(x: Singles, squares: Singles, seed: int) -> Iterator[tuple[Ints, Ints]]:
    """Rows, and the pool of rows in which their neighbors are searched: the rows themselves first, then others."""
    n = len(x)
    if n <= EXACT_ROWS:
        yield np.arange(n), np.arange(n)
        return
    centers = np.sort(np.random.default_rng(seed).choice(n, int(np.sqrt(n)), replace=False))
    factors = _distance_factors(x[centers], squares[centers], len(centers))
    cell = np.empty(n, np.int64)
    for start in range(0, n, size := max(1, BLOCK // len(centers))):
        cell[start : start + size] = (_with_one(x[start : start + size]) @ factors.T).argmin(1)
    order = np.argsort(cell, kind="stable")
    bounds = np.searchsorted(cell[order], np.arange(len(centers) + 1))
    around = np.argsort(_with_one(x[centers]) @ factors.T, axis=1, kind="stable")[:, :PROBED_CELLS]
    for c in range(len(centers)):
        cells = [c, *(o for o in around[c].tolist() if o != c)]
        pool = np.concatenate([order[bounds[o] : bounds[o + 1]] for o in cells])
        rows = pool[: bounds[c + 1] - bounds[c]]
        if len(rows) and len(pool) > 1:
            yield rows, pool


def _with_one(x: Singles) -> Singles:
    return np.concatenate([x, np.ones((len(x), 1), np.float32)], axis=1)


def _distance_factors(x: Singles, squares: Singles, size: int) -> Singles:
    """(size, D + 1) factors whose product with ``[a, 1]`` is :math:`|b|^2 - 2 a b`; rows beyond `x` are padding, far away."""
    factors = np.zeros((size, x.shape[1] + 1), np.float32)
    np.multiply(x, -2, out=factors[: len(x), :-1])
    factors[: len(x), -1] = squares
    factors[len(x) :, -1] = np.finfo(np.float32).max
    return factors


def _smallest(values: Singles, k: int, each: int) -> Ints:
    """(R, k) positions of the smallest values of each row, smallest first.

    The k-th smallest minimum of groups of `each` values bounds the k-th smallest value: only the few values below it are sorted.
    """
    minima = values.reshape(len(values), each, -1).min(1)
    bound = np.partition(minima, k - 1, axis=1)[:, k - 1 : k]
    row, column = np.divmod(np.flatnonzero(values <= bound), values.shape[1])
    first = np.searchsorted(row, np.arange(len(values) + 1))
    position = np.arange(len(row)) - first[row]
    shape = len(values), int(np.diff(first).max())
    below, where = np.full(shape, np.inf, np.float32), np.zeros(shape, np.int64)
    below[row, position], where[row, position] = values[row, column], column
    return np.take_along_axis(where, np.argsort(below, axis=1, kind="stable")[:, :k], 1)


# --- texts ----------------------------------------------------------------------------------------------------

NGRAM = 5  # characters of an n-gram: a typing error changes five of them, and unrelated sentences share few
BANDS, BAND_SIZE = 42, 3
"""Bands of a MinHash signature and hash functions of each: pairs of similarity 0.5 share a band with probability 1 - (1 - 0.5^3)^42 = 99.6 %."""

MARGIN = 0.1
"""The exact similarity is computed if the estimate is at most this much below the threshold: two standard errors at 0.5."""

MAX_BAND_NEIGHBORS = 20
"""Texts with the same band that each text is compared with, to keep the number of pairs linear in the rows."""

MAX_CHARACTERS = 20_000  # characters of a text that are used
HASHED = 1 << 17  # n-grams that are hashed at a time, to stay in the processor's cache
_SEPARATORS = re.compile(r"[\W_]+")
_PRIME = np.uint64(0x9E3779B97F4A7C15)


def text_pairs(texts: Sequence[str], threshold: float) -> Iterator[Pair]:
    """Pairs of texts with at least this Jaccard index of their n-grams. Texts without a letter have no pairs.

    >>> list(text_pairs(["An awful, boring film!", "an awful boring film", "A fine one"], 0.5))
    [(0, 1, 1.0)]
    """
    kept, hashes = _min_hashes(texts)
    if len(kept) < 2:
        return
    seen: set[tuple[int, int]] = set()
    for a, b in _text_candidates(hashes):
        likely = (hashes[a] == hashes[b]).mean(1, dtype=np.float32) >= np.float32(threshold - MARGIN)
        pairs = zip(kept[a[likely]].tolist(), kept[b[likely]].tolist(), strict=True)
        new = [pair for pair in pairs if pair not in seen]
        seen.update(new)
        sets = {i: ngrams(texts[i]) for i in {i for pair in new for i in pair}}
        for i, j in new:
            similarity = jaccard(sets[i], sets[j])
            if similarity >= threshold:
                yield i, j, similarity


def ngrams(text: str) -> NDArray[np.uint64]:
    """The sorted hashes of the n-grams of a text.

    >>> len(ngrams("abcdefg")), len(ngrams("A b")), len(ngrams("..."))
    (3, 1, 0)
    """
    bare = _bare(text)
    return np.unique(_hashed(bare)) if bare else np.empty(0, np.uint64)


def jaccard(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> float:
    """The Jaccard index of two sets: the size of the intersection over that of the union.

    >>> jaccard(np.array([1, 2], np.uint64), np.array([2, 3], np.uint64))
    0.3333333333333333
    """
    both = len(np.intersect1d(a, b, assume_unique=True))
    return both / (len(a) + len(b) - both)


def _bare(text: str) -> str:
    """A text without case and punctuation, padded to at least one n-gram; empty if it has no letter or digit."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text[:MAX_CHARACTERS])
    bare = _SEPARATORS.sub(" ", text[:MAX_CHARACTERS].lower()).strip()
    return bare and bare.ljust(NGRAM, "\0")


def _hashed(letters: str) -> NDArray[np.uint64]:
    """The hash of the n-gram that begins at each character."""
    codes = np.frombuffer(letters.encode("utf-32-le", "replace"), np.uint32).astype(np.uint64)
    count = len(codes) - NGRAM + 1
    hashes = np.zeros(count, np.uint64)
    for k in range(NGRAM):
        hashes = (hashes ^ codes[k : count + k]) * _PRIME
        hashes ^= hashes >> np.uint64(29)
    return hashes


def _min_hashes(texts: Sequence[str]) -> tuple[Ints, NDArray[np.uint32]]:
    """The positions of texts with n-grams, and (n, BANDS * BAND_SIZE) their MinHash signatures."""
    rng = np.random.default_rng(0)
    count = BANDS * BAND_SIZE
    odd = rng.integers(1, 1 << 63, size=count, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    shift = rng.integers(0, 1 << 63, size=count, dtype=np.uint64)
    kept: list[int] = []
    part: list[str] = []
    size = 0
    signatures = np.empty((len(texts), count), np.uint32)
    for i in range(len(texts) + 1):
        letters = _bare(texts[i]) if i < len(texts) else ""
        if part and (i == len(texts) or size + len(letters) > HASHED):
            lengths = np.array([len(letters) for letters in part])
            across = (np.cumsum(lengths)[:-1, None] - np.arange(1, NGRAM)).ravel()  # n-grams that span two texts
            hashes = np.delete(_hashed("".join(part)), across)
            first = np.concatenate([[0], np.cumsum(lengths[:-1] - NGRAM + 1)])
            for k in range(count):
                values = ((hashes * odd[k] + shift[k]) >> np.uint64(32)).astype(np.uint32)
                signatures[len(kept) - len(part) : len(kept), k] = np.minimum.reduceat(values, first)
            part, size = [], 0
        if letters:
            kept.append(i)
            part.append(letters)
            size += len(letters)
    return np.array(kept, np.int64), signatures[: len(kept)]


def _text_candidates(hashes: NDArray[np.uint32]) -> Iterator[tuple[Ints, Ints]]:
    """Pairs that share a band; a pair is given once for each shared band."""
    factors = (_PRIME, np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9))
    for band in range(BANDS):
        part = hashes[:, band * BAND_SIZE : (band + 1) * BAND_SIZE].astype(np.uint64)
        key = np.bitwise_xor.reduce([part[:, k] * factor for k, factor in enumerate(factors)])
        order = np.argsort(key, kind="stable")
        ranked = key[order]
        for step in range(1, min(MAX_BAND_NEIGHBORS + 1, len(hashes))):
            same = np.flatnonzero(ranked[step:] == ranked[:-step])
            if not len(same):
                break
            a, b = order[same], order[same + step]
            yield np.minimum(a, b), np.maximum(a, b)


# --- images ---------------------------------------------------------------------------------------------------

SIDE, COARSE = 32, 16  # pixels of a side at which images are compared, and at which they are aligned first
MIN_CROP = 11  # smallest crop in pixels of `COARSE`: 70 % of a side
SHADING = 3.0
"""Standard deviation in pixels of `SIDE` of the blur that is subtracted; it raised precision on edited CIFAR-10 from .97 to .99."""

PROMISING = 0.6  # coarse correlation from which on a pair is aligned at full size
IMAGE_NEIGHBORS = 5
"""Nearest images of each that are candidates. With three, by pixels alone, .96 of planted copies were candidates."""

FLAT = 1e-3  # standard deviation of the brightness below which an image has no details to compare
RANDOM_PAIRS, RANDOM_SHARE = 1000, 0.01
"""Random pairs, and the share of them above the threshold from which on it is raised: the images of such a set are alike anyway."""

SECOND_QUANTILE = 0.99
"""The raised threshold, as a quantile of the similarity to the second most similar image. On three sets of 300 drawings of six shapes with
30 edited copies it raised precision from .05 to .69 at recall .68; cropped copies were missed."""

EQUAL = 0.9999  # similarity of equal images
IMAGE_BATCH = 4096


def image_pairs(small: Singles, vectors: Singles, threshold: float) -> Iterator[Pair]:
    """Pairs of images with at least this similarity; the threshold is raised if random pairs often reach it.

    Args:
        small: (N, C, SIDE, SIDE) as `shrunk` returns them.
        vectors: (N, D) features.
        threshold: the smallest similarity.
    """
    from scipy.ndimage import gaussian_filter

    a, b = _image_candidates(small.mean(1), vectors)
    # Without shading: a bright sky above dark ground makes unlike pictures correlate.
    details = small - gaussian_filter(small, (0, 0, SHADING, SHADING), mode="nearest")
    similar = similarity(details, a, b)
    one, other = np.random.default_rng(0).integers(0, len(small), (2, RANDOM_PAIRS))
    random = similarity(details, one[one != other], other[one != other])
    if len(random) and (random >= threshold).mean() > RANDOM_SHARE:
        apart = similar < EQUAL
        row, value = np.concatenate([a[apart], b[apart]]), np.tile(similar[apart], 2)
        order = np.lexsort((-value, row))
        second = np.flatnonzero(np.diff(row[order], prepend=-1) > 0) + 1
        second = second[second < len(order)]
        second = second[row[order][second] == row[order][second - 1]]
        if len(second):
            threshold = max(threshold, float(np.quantile(value[order][second], SECOND_QUANTILE)))
    for i in np.flatnonzero(similar >= threshold).tolist():
        yield int(a[i]), int(b[i]), min(float(similar[i]), 1.0)


def shrunk(images: NDArray[Any]) -> Singles:
    """(N, C, SIDE, SIDE) the images with values between 0 and 1, averaged or repeated to one size."""
    small = np.empty((len(images), images.shape[1], SIDE, SIDE), np.float32)
    rows, columns = _resampling(images.shape[2]), _resampling(images.shape[3])
    for start in range(0, len(images), 500):
        part = np.asarray(images[start : start + 500], dtype=np.float32)
        small[start : start + 500] = np.einsum("ah,nchw,bw->ncab", rows, part, columns, optimize=True)
    if images.dtype == np.uint8:
        small /= 255
    return small


def _resampling(size: int, out: int = SIDE) -> Singles:
    """(out, size) the weight of each input pixel in each of `out` equal intervals of a side."""
    edges = size * np.arange(out + 1) / out
    low, high = edges[:-1, None], edges[1:, None]
    cover = np.clip(np.minimum(high, np.arange(1, size + 1)) - np.maximum(low, np.arange(size)), 0, None)
    return (cover / np.maximum(cover.sum(1, keepdims=True), 1e-9)).astype(np.float32)


def _resized(images: Singles, side: int) -> Singles:
    weights = _resampling(images.shape[-1], side)
    return np.einsum("ah,...hw,bw->...ab", weights, images, weights, optimize=True)


def _pooled(small: Singles, by: int) -> Singles:
    side = SIDE // by
    return small.reshape(len(small), side, by, side, by).mean((2, 4))


def _standardized(flat: Singles) -> Singles:
    flat = flat - flat.mean(-1, keepdims=True)
    return flat / np.maximum(np.linalg.norm(flat, axis=-1, keepdims=True), FLAT * flat.shape[-1] ** 0.5)


def _image_candidates(small: Singles, vectors: Singles) -> tuple[Ints, Ints]:
    """Pairs of nearest neighbors, in the features and in the blurred images with their mirror images, each once."""
    n = len(small)
    blurred = _pooled(small, SIDE // 8)
    both = np.concatenate([blurred, blurred[..., ::-1]]).reshape(2 * n, -1)
    pairs = []
    for features in (vectors - vectors.mean(0), both):
        who, _ = nearest_rows(_standardized(np.ascontiguousarray(features, dtype=np.float32)), IMAGE_NEIGHBORS)
        pairs.append(np.stack([np.repeat(np.arange(n), who.shape[1]), who[:n].ravel() % n]))
    unique = np.unique(np.sort(np.concatenate(pairs, axis=1), axis=0), axis=1)
    unique = unique[:, unique[0] != unique[1]]  # a symmetric image is its own mirror image
    return unique[0], unique[1]


def similarity(small: Singles, a: Ints, b: Ints) -> Singles:
    """(P,) the largest correlation of each pair over scales, offsets and mirroring: of the brightness, or of the colors there if smaller."""
    bright = small.mean(1)
    coarse = _pooled(bright, SIDE // COARSE)
    best = np.full(len(a), -1, np.float32)
    for start in range(0, len(a), IMAGE_BATCH):
        part = slice(start, start + IMAGE_BATCH)
        here = best[part]
        for swap in (False, True):
            for turn in (1, -1):  # as it is, and mirrored
                whole, piece = (b[part], a[part]) if swap else (a[part], b[part])
                value, position = _align_coarse(coarse[whole], coarse[piece][..., ::turn])
                close = np.flatnonzero(value >= PROMISING)
                value[close], at = _align_fine(bright[whole[close]], bright[piece[close]][..., ::turn], position[close])
                if small.shape[1] > 1:
                    colors = _color_correlation(small[whole[close]], small[piece[close]][..., ::turn], at)
                    value[close] = np.minimum(value[close], colors)
                np.maximum(here, np.where(value >= PROMISING, value, np.minimum(value, PROMISING)), out=here)
    return best


def _align_coarse(whole: Singles, piece: Singles) -> tuple[Singles, Ints]:
    """(P,) the best correlation of `piece`, resized, with any window of `whole`, and (P, 3) its side, top and left."""
    best = np.full(len(whole), -1, np.float32)
    position = np.zeros((len(whole), 3), np.int64)
    totals = _integral(whole)
    for side in range(MIN_CROP, COARSE + 1):
        template = _standardized(_resized(piece, side).reshape(len(piece), -1)).reshape(-1, side, side)
        norm = _window_norm(totals, side)
        for top in range(COARSE - side + 1):
            for left in range(COARSE - side + 1):
                # The template sums to zero, so the mean of the window does not matter.
                window = whole[:, top : top + side, left : left + side]
                value = np.einsum("nab,nab->n", window, template) / norm[:, top, left]
                better = value > best
                best[better], position[better] = value[better], (side, top, left)
    return best, position


def _integral(images: Singles) -> Floats:
    """(2, P, S + 1, S + 1) the integral images of the pixels and of their squares."""
    values = images.astype(np.float64)
    return np.pad(np.stack([values, values**2]).cumsum(2).cumsum(3), ((0, 0), (0, 0), (1, 0), (1, 0)))


def _window_norm(totals: Floats, side: int) -> Singles:
    """(P, k, k) the norm of every centered window of this side."""
    below, above = totals[:, :, side:], totals[:, :, :-side]
    sums = below[..., side:] - above[..., side:] - below[..., :-side] + above[..., :-side]
    return np.sqrt(np.maximum(sums[1] - sums[0] ** 2 / side**2, (FLAT * side) ** 2)).astype(np.float32)


def _align_fine(whole: Singles, piece: Singles, coarse: Ints) -> tuple[Singles, Ints]:
    """As `_align_coarse`, at full size around the coarse position."""
    best, position = np.full(len(whole), -1, np.float32), np.zeros((len(whole), 3), np.int64)
    by = SIDE // COARSE
    totals, around = _integral(whole), np.arange(-by, by + 1)
    for side in range(by * MIN_CROP - by, SIDE + 1):
        rows = np.flatnonzero(np.abs(by * coarse[:, 0] - side) <= by)
        if not len(rows):
            continue
        template = _standardized(_resized(piece[rows], side).reshape(len(rows), -1)).reshape(-1, side, side)
        norm, span = _window_norm(totals[:, rows], side), np.arange(side)
        tops, lefts = (np.clip(by * coarse[rows, k, None] + around, 0, SIDE - side) for k in (1, 2))
        # Offsets that are clipped at an edge coincide; each is evaluated once.
        new_top, new_left = (np.diff(steps, axis=1, prepend=-1) > 0 for steps in (tops, lefts))
        for down in range(len(around)):
            for right in range(len(around)):
                each = np.flatnonzero(new_top[:, down] & new_left[:, right])
                top, left, row = tops[each, down], lefts[each, right], rows[each]
                window = whole[
                    row[:, None, None], (top[:, None] + span)[:, :, None], (left[:, None] + span)[:, None, :]
                ]
                value = np.einsum("nab,nab->n", window, template[each]) / norm[each, top, left]
                better = value > best[row]
                best[row[better]] = value[better]
                position[row[better]] = np.stack([np.full(len(row), side), top, left], 1)[better]
    return best, position


def _color_correlation(whole: Singles, piece: Singles, position: Ints) -> Singles:
    """(P,) the correlation of all colors of two images (P, C, SIDE, SIDE) that are aligned at these positions."""
    correlation = np.zeros(len(whole), np.float32)
    for side in np.unique(position[:, 0]).tolist():
        rows, span = np.flatnonzero(position[:, 0] == side), np.arange(side)
        top, left = (position[rows, k, None] + span for k in (1, 2))
        window = whole[rows[:, None, None], :, top[:, :, None], left[:, None, :]].transpose(0, 3, 1, 2)
        flat = [_standardized(part.reshape(len(rows), -1)) for part in (window, _resized(piece[rows], side))]
        correlation[rows] = (flat[0] * flat[1]).sum(1)
    return correlation
