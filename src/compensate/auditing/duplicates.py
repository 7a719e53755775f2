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
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from compensate.auditing.learners import COPIES, content_keys
from compensate.data.columns import row_texts, text_columns
from compensate.data.dataset import Dataset, Ints, Singles

SIMILAR_TEXTS = 0.55
"""Jaccard index from which on texts are duplicates; on edited sentences of SST-2 (4,000 rows, 600 copies) recall was .992 at precision .997."""

SIMILAR_IMAGES = 0.78
"""Correlation from which on images are duplicates; on edited CIFAR-10 images (two draws of 1,500 rows and 150 copies) all candidate copies
were found at precision .99."""

CLOSE = 0.05  # distance of nearly equal rows, as a fraction of the median distance to the nearest row
MAX_EQUAL_ROWS = 0.5
"""Tables in which a larger share of rows has an equal row are skipped: few columns with few values are equal by chance."""

NEARLY = 0.99  # the largest similarity of rows that differ in anything

Pair = tuple[int, int, float]  # two positions and their similarity, 1 for equal content
Partner = tuple[int, float, bool]  # the position of another row, the similarity to it, and whether it has another label
Near = tuple[Ints, Singles]  # (N, k) the nearest other rows of each row, nearest first, and (N, k) their distances


def find_pairs(data: Dataset, kind: str, vectors: Any, near: Near | None = None) -> list[Pair]:
    """Pairs of rows with equal or nearly equal content; `vectors` are (N, D) features or None, `near` their `nearest_rows` if dense."""
    content = _content(data, kind)
    if isinstance(content, list):  # empty texts are an issue of their own
        content = [text if text.strip("\x1f ") else f"\x00{i}" for i, text in enumerate(content)]
    equal = list(_equal_pairs([content]))
    if kind == "table" and len({i for pair in equal for i in pair[:2]}) > MAX_EQUAL_ROWS * len(data):
        return []
    dense = np.asarray(vectors, dtype=np.float32) if isinstance(vectors, np.ndarray) else None
    if kind == "text":
        return [*equal, *_alike_in_each([data], text_pairs(texts_of(data), SIMILAR_TEXTS))]
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
        # Equal features may stand for different cells, such as rare categories.
        equal += [(i, int(who[i, 0]), min(1.0 - float(distance[i, 0]) / median, NEARLY)) for i in close]
    return equal


def shared_with(data: Dataset, test: Dataset, kind: str) -> list[Pair]:
    """Pairs of a row of the data and a row of a test set with equal or nearly equal content."""
    n = len(data)
    if kind == "text":
        pairs: Iterable[Pair] = text_pairs([*texts_of(data), *texts_of(test)], SIMILAR_TEXTS)
        pairs = _alike_in_each([data, test], pairs)
    elif kind == "image":
        small = np.concatenate([shrunk(data.x), shrunk(test.x)])
        pairs = image_pairs(small, small.reshape(len(small), -1), SIMILAR_IMAGES)
    else:
        pairs = _equal_pairs([_content(part, kind) for part in (data, test)])
    ordered = [(min(i, j), max(i, j), s) for i, j, s in pairs]
    return [(i, j - n, s) for i, j, s in ordered if i < n <= j]


def _alike_in_each(parts: Sequence[Dataset], pairs: Iterable[Pair]) -> Iterator[Pair]:
    """The pairs of rows whose texts are similar in every column: rows that share a premise may have different hypotheses."""
    text = str(parts[0].source.text)
    tables = [part.table for part in parts if part.table is not None]
    columns = text_columns(text, tables[0].columns) if len(tables) == len(parts) else ()
    if len(columns) < 2:
        yield from pairs
        return
    cells = [[one for table in tables for one in row_texts(table, name)] for name in columns]
    sets = lru_cache(1 << 12)(lambda k, i: ngrams(cells[k][i]))
    for i, j, similarity in pairs:
        each = [jaccard(sets(k, i), sets(k, j)) for k, texts in enumerate(cells) if texts[i] != texts[j]]
        if min(each, default=1.0) >= SIMILAR_TEXTS:
            yield i, j, min(similarity, *each) if each else similarity


def partners(pairs: Iterable[Pair], labels: NDArray[Any], contradict: bool = True) -> dict[int, Partner]:
    """The most similar partner of each row, preferring partners with another label, or with the same one if other labels do not `contradict`.

    Equality is transitive, similarity is not. Quantities do not contradict each other: equal rows with other values are `NEARLY` equal.

    >>> found = partners([(0, 1, 1.0), (1, 2, 0.6), (2, 3, 0.7)], np.array([0, 0, 0, 1]))
    >>> found[0], found[2]
    ((1, 1.0, False), (3, 0.7, True))
    """
    label = labels.tolist()
    best: dict[int, Partner] = {}
    equal: list[tuple[int, int]] = []

    def update(own: int, other: int, similarity: float) -> None:
        differ = label[own] != label[other]
        if differ and not contradict:
            similarity = min(similarity, NEARLY)
        if own not in best or (differ == contradict, similarity) > (best[own][2] == contradict, best[own][1]):
            best[own] = other, similarity, differ

    for i, j, similarity in pairs:
        update(i, j, similarity)
        update(j, i, similarity)
        equal += [(i, j)] if similarity == 1 else []
    # Not all pairs of a group of equal rows were listed. The first row with another label represents the others, or rows with the same.
    places = np.array(equal, np.int64).reshape(-1, 2).T
    group = connected_components(coo_matrix((np.ones(len(equal)), places), (len(label), len(label))), directed=False)[1]
    groups: dict[int, list[int]] = {}
    for i in np.unique(places).tolist():
        groups.setdefault(int(group[i]), []).append(i)
    for rows in groups.values():
        first = {label[i]: i for i in reversed(rows)}
        last = {label[i]: i for i in rows}
        for i in rows:
            others = (
                (k for name, k in first.items() if name != label[i])
                if contradict
                else iter({first[label[i]], last[label[i]]} - {i})
            )
            if (other := next(others, None)) is not None:
                update(i, other, 1.0)
    return best


def texts_of(data: Dataset) -> list[str]:
    """The texts of samples, also of those with embeddings."""
    if np.ndim(data.x) == 1:
        return [str(text) for text in data.x]
    return [str(text) for text in (data.raw if data.table is None else row_texts(data.table, str(data.source.text)))]


def _content(data: Dataset, kind: str) -> Any:
    if kind == "text":
        return texts_of(data)
    if kind == "table" and (table := data.table) is not None:
        used = [c.name for c in data.source.columns if c.used] or [c for c in table.columns if c != data.source.label]
        return ["\x1f".join(cells) for cells in zip(*(map(str, table[name]) for name in used), strict=True)]
    return np.asarray(data.x)


def _equal_pairs(parts: Sequence[Any]) -> Iterator[Pair]:
    """Pairs of rows with equal content, each with the first of its group, in one or more parts of the rows."""
    keys = [(content_keys(part), np.arange(len(part))) for part in parts]
    key = np.concatenate([rows if found is None else found for found, rows in keys])
    order = np.argsort(key, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(key[order])) + 1, len(order))
    sizes = np.diff(ends, prepend=0)
    for k in np.flatnonzero((sizes > 1) & (sizes <= COPIES)).tolist():
        first, *others = order[ends[k] - sizes[k] : ends[k]].tolist()
        yield from ((first, other, 1.0) for other in others)


# --- nearest rows ---------------------------------------------------------------------------------------------

EXACT_ROWS = 20_000  # rows up to which the search is exact; beyond, it is restricted to cells around random centers
PROBED_CELLS = 4  # cells that are searched: the row's own and the nearest others


def nearest_rows(x: Singles, k: int) -> Near:
    """(N, k) the nearest other rows, nearest first, and (N, k) their Euclidean distances."""
    from sklearn.neighbors import NearestNeighbors

    k = max(min(k, len(x) - 1), 0)
    who, distance = np.zeros((len(x), k), np.int64), np.full((len(x), k), np.inf, np.float32)
    for rows, pool in _searches(x) if k else ():
        count = min(k, len(pool) - 1)
        far, near = NearestNeighbors(algorithm="brute").fit(x[pool]).kneighbors(x[rows], count + 1)
        other = near != np.arange(len(rows))[:, None]  # the pool begins with the rows themselves
        other[other.all(1), -1] = False  # a row with many copies is not among its nearest rows
        who[rows, :count] = pool[near[other]].reshape(-1, count)
        distance[rows, :count] = far[other].reshape(-1, count)
    return who, distance


def _searches(x: Singles) -> Iterator[tuple[Ints, Ints]]:
    """Rows, and the pool of rows in which their neighbors are searched: the rows themselves first, then others."""
    from sklearn.metrics import pairwise_distances_argmin
    from sklearn.neighbors import NearestNeighbors

    n = len(x)
    if n <= EXACT_ROWS:
        yield np.arange(n), np.arange(n)
        return
    centers = x[np.sort(np.random.default_rng(0).choice(n, int(np.sqrt(n)), replace=False))]
    cell = pairwise_distances_argmin(x, centers)
    members = np.split(np.argsort(cell, kind="stable"), np.cumsum(np.bincount(cell, minlength=len(centers)))[:-1])
    around = NearestNeighbors(algorithm="brute").fit(centers).kneighbors(n_neighbors=PROBED_CELLS - 1)[1]
    for c, rows in enumerate(members):
        pool = np.concatenate([rows, *(members[other] for other in around[c])])
        if len(rows) and len(pool) > 1:
            yield rows, pool


# --- texts ----------------------------------------------------------------------------------------------------

NGRAM = 5  # characters of an n-gram: a typing error changes five of them, and unrelated sentences share few
BANDS, BAND_SIZE = 42, 3
"""Bands of a MinHash signature and hash functions of each: pairs of similarity 0.5 share a band with probability 1 - (1 - 0.5^3)^42 = 99.6 %."""

MARGIN = 0.1
"""The exact similarity is computed if the estimate is at most this much below the threshold: two standard errors at 0.5."""

MAX_BAND_NEIGHBORS = 20
"""Texts with the same band that each text is compared with, to keep the number of pairs linear in the rows."""

MAX_CHARACTERS = 20_000  # characters of a text that are used
_SEPARATORS = re.compile(r"[\W_]+")
_PRIME = np.uint64(0x9E3779B97F4A7C15)


def text_pairs(texts: Sequence[str], threshold: float) -> Iterator[Pair]:
    """Pairs of texts with at least this Jaccard index of their n-grams. Texts without a letter have no pairs.

    >>> list(text_pairs(["An awful, boring film!", "an awful boring film", "A fine one"], 0.5))
    [(0, 1, 1.0)]
    """
    rng, count = np.random.default_rng(0), BANDS * BAND_SIZE
    odd = rng.integers(1, 1 << 63, size=count, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    shift = rng.integers(0, 1 << 63, size=count, dtype=np.uint64)[:, None]
    bare = [_bare(text) for text in texts]
    kept = np.flatnonzero([bool(letters) for letters in bare])
    hashes = np.empty((len(kept), count), np.uint32)  # MinHash signatures
    for k, i in enumerate(kept.tolist()):
        hashes[k] = ((np.multiply.outer(odd, _hashed(bare[i])) + shift) >> np.uint64(32)).min(1)
    seen: set[tuple[int, int]] = set()
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
            a, b = np.sort([order[same], order[same + step]], axis=0)
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
    """The sorted hashes of the n-grams of a text."""
    bare = _bare(text)
    return np.unique(_hashed(bare)) if bare else np.empty(0, np.uint64)


def jaccard(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> float:
    """The Jaccard index of two sets: the size of the intersection over that of the union."""
    both = len(np.intersect1d(a, b, assume_unique=True))
    either = len(a) + len(b) - both
    return both / either if either else 1.0


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
    """Pairs of `shrunk` images, with features (N, D), of at least this similarity; the threshold is raised if random pairs often reach it."""
    from scipy.ndimage import gaussian_filter

    # Candidates are nearest neighbors in the features, and in the blurred images with their mirror images.
    n, blurred = len(small), _pooled(small.mean(1), SIDE // 8)
    both = np.concatenate([blurred, blurred[..., ::-1]]).reshape(2 * n, -1)
    pairs = []
    for features in (vectors - vectors.mean(0), both):
        who, _ = nearest_rows(_standardized(np.ascontiguousarray(features, dtype=np.float32)), IMAGE_NEIGHBORS)
        pairs.append(np.stack([np.repeat(np.arange(n), who.shape[1]), who[:n].ravel() % n]))
    a, b = np.unique(np.sort(np.concatenate(pairs, axis=1), axis=0), axis=1)
    a, b = a[a != b], b[a != b]  # a symmetric image is its own mirror image
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
    for start in range(0, len(images), 500):
        small[start : start + 500] = _resized(np.asarray(images[start : start + 500], dtype=np.float32), SIDE)
    if images.dtype == np.uint8:
        small /= 255
    return small


def _resized(images: Singles, side: int) -> Singles:
    """(..., side, side) images whose pixels are the means over equal intervals of both axes."""
    weights = []
    for size in images.shape[-2:]:
        edges = size * np.arange(side + 1) / side
        low, high = edges[:-1, None], edges[1:, None]
        cover = np.clip(np.minimum(high, np.arange(1, size + 1)) - np.maximum(low, np.arange(size)), 0, None)
        weights.append((cover / np.maximum(cover.sum(1, keepdims=True), 1e-9)).astype(np.float32))
    return np.einsum("ah,...hw,bw->...ab", weights[0], images, weights[1], optimize=True)


def _pooled(small: Singles, by: int) -> Singles:
    side = SIDE // by
    return small.reshape(len(small), side, by, side, by).mean((2, 4))


def _standardized(flat: Singles) -> Singles:
    flat = flat - flat.mean(-1, keepdims=True)
    return flat / np.maximum(np.linalg.norm(flat, axis=-1, keepdims=True), FLAT * flat.shape[-1] ** 0.5)


def similarity(small: Singles, a: Ints, b: Ints) -> Singles:
    """(P,) the largest correlation of each pair over scales, offsets and mirroring: of the brightness, or of the colors there if smaller."""
    bright = small.mean(1)
    coarse = _pooled(bright, SIDE // COARSE)
    best = np.full(len(a), -1, np.float32)
    for start in range(0, len(a), IMAGE_BATCH):
        part = slice(start, start + IMAGE_BATCH)
        for whole, piece in ((a[part], b[part]), (b[part], a[part])):
            for turn in (1, -1):  # as it is, and mirrored
                value, position = _align(coarse[whole], coarse[piece][..., ::turn])
                close = np.flatnonzero(value >= PROMISING)
                one, other = whole[close], piece[close]
                found, position = _align(bright[one], bright[other][..., ::turn], SIDE // COARSE * position[close])
                if small.shape[1] > 1:
                    found = np.minimum(found, _color_correlation(small[one], small[other][..., ::turn], position))
                value[close] = found
                np.maximum(best[part], value, out=best[part])
    return best


def _align(whole: Singles, piece: Singles, near: Ints | None = None) -> tuple[Singles, Ints]:
    """(P,) the best correlation of `piece` (P, S, S), resized, with a window of `whole`, and (P, 3) the side, top and left of the window.

    Windows within two pixels of the positions `near` (P, 3) are compared; by default all windows.
    """
    size, reach = whole.shape[-1], SIDE // COARSE
    best, position = np.full(len(whole), -1, np.float32), np.zeros((len(whole), 3), np.int64)
    values = whole.astype(np.float64)
    # Integral images of the pixels and their squares, from which every centered window of a side has its norm.
    totals = np.pad(np.stack([values, values**2]).cumsum(2).cumsum(3), ((0, 0), (0, 0), (1, 0), (1, 0)))
    for side in range(size * MIN_CROP // COARSE - (0 if near is None else reach), size + 1):
        rows = np.arange(len(whole)) if near is None else np.flatnonzero(np.abs(near[:, 0] - side) <= reach)
        if not len(rows):
            continue
        template = _standardized(_resized(piece[rows], side).reshape(len(rows), -1)).reshape(-1, side, side)
        windows = sliding_window_view(whole, (side, side), (1, 2))
        below, above = totals[:, rows, side:], totals[:, rows, :-side]
        sums = below[..., side:] - above[..., side:] - below[..., :-side] + above[..., :-side]
        norm = np.sqrt(np.maximum(sums[1] - sums[0] ** 2 / side**2, (FLAT * side) ** 2)).astype(np.float32)
        if near is None:
            tops = lefts = np.broadcast_to(np.arange(size - side + 1), (len(rows), size - side + 1))
        else:
            around = np.arange(-reach, reach + 1)
            tops, lefts = (np.clip(near[rows, k, None] + around, 0, size - side) for k in (1, 2))
        # Offsets that are clipped at an edge coincide; each is evaluated once.
        new_top, new_left = (np.diff(steps, axis=1, prepend=-1) > 0 for steps in (tops, lefts))
        for down, right in np.ndindex(tops.shape[1], lefts.shape[1]):
            each = np.flatnonzero(new_top[:, down] & new_left[:, right])
            top, left, row = tops[each, down], lefts[each, right], rows[each]
            # The template sums to zero, so the mean of the window does not matter.
            window = windows[:, down, right] if near is None else windows[row, top, left]
            value = np.einsum("nab,nab->n", window, template[each]) / norm[each, top, left]
            better = value > best[row]
            best[row[better]] = value[better]
            position[row[better]] = np.stack([np.full(len(row), side), top, left], 1)[better]
    return best, position


def _color_correlation(whole: Singles, piece: Singles, position: Ints) -> Singles:
    """(P,) the correlation of all colors of two images (P, C, SIDE, SIDE) that are aligned at these positions."""
    correlation = np.zeros(len(whole), np.float32)
    for side in np.unique(position[:, 0]).tolist():
        rows = np.flatnonzero(position[:, 0] == side)
        windows = sliding_window_view(whole[rows], (side, side), (2, 3))
        window = windows[np.arange(len(rows)), :, position[rows, 1], position[rows, 2]]
        flat = [_standardized(part.reshape(len(rows), -1)) for part in (window, _resized(piece[rows], side))]
        correlation[rows] = (flat[0] * flat[1]).sum(1)
    return correlation
