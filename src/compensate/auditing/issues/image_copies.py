"""Images that show the same picture: cropped, mirrored, compressed again, brighter or darker.

Candidates are near neighbors in the features that the audit has, and in the images averaged down to 8 x 8 pixels, which is a
perceptual hash before it is cut to bits. Each pair is then laid over one another at several scales and places; their similarity is
the largest correlation of the details where they overlap, of brightness and of colors: values less their surroundings. It is 1 for equal pictures whatever
their brightness and contrast. Where any two images of a set often are similar, as drawings of a few shapes are, copies have to be more similar than that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compensate.auditing.issues.neighbors import nearest_rows
from compensate.data.dataset import Floats, Ints, Singles

SIDE, COARSE = 32, 16
"""Pixels of a side at which two images are compared, after they were laid over one another at the second."""

SMALLEST = 11
"""Of `COARSE` pixels, those that a crop has left at least: 70 % of a side."""

SHADING = 3.0
"""Pixels, of `SIDE`, over which brightness is averaged and taken off. With it .99 of the pairs found in edited CIFAR-10 were right, and .97 without."""

PROMISING = 0.6
"""Coarse correlation from which on a pair is looked at closely."""

NEIGHBORS = 5
"""Nearest images of each that are candidates. With three of them, by pixels alone, .96 of planted copies were candidates."""

FLAT = 1e-3
"""Standard deviation of the brightness below which an image shows nothing that could be compared."""

CHANCE_PAIRS, BY_CHANCE = 1000, 0.01
"""Pairs of images that are drawn, and the part of them that is similar only where images of a set look alike anyway."""

NEARLY_ALL = 0.99
"""The part of such images whose similarity to the second most similar one is below that of a copy. Chosen on three sets of 300 drawings of six shapes with 30
edited copies, where .05 of the pairs were right before; with it .69 were, and .68 of the copies were found: those that were cropped were not."""

EQUAL = 0.9999
"""Similarity of images that are the same."""

BATCH = 4096


def image_pairs(small: Singles, vectors: Singles, least: float) -> Iterator[tuple[int, int, float]]:
    """Pairs of images that are at least so similar, and how similar they are.

    Where any two images of the set often are, they have to be more similar than nearly all images are to the second most similar one.

    Args:
        small: (N, C, SIDE, SIDE) as `shrunk` gives them.
        vectors: (N, D) features.
        least: the smallest similarity of interest.
    """
    a, b = _candidates(small.mean(1), vectors)
    details = without_shading(small)
    found = similarity(details, a, b)
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, len(small), (2, CHANCE_PAIRS))
    by_chance = similarity(details, one[one != other], other[one != other])
    if len(by_chance) and (by_chance >= least).mean() > BY_CHANCE:
        least = max(least, _beyond_the_second(a, b, found))
    for i in np.flatnonzero(found >= least).tolist():
        yield int(a[i]), int(b[i]), min(float(found[i]), 1.0)


def _beyond_the_second(a: Ints, b: Ints, found: Singles) -> float:
    """The similarity that `NEARLY_ALL` images do not have to the second most similar of their candidates."""
    apart = found < EQUAL
    row, value = np.concatenate([a[apart], b[apart]]), np.tile(found[apart], 2)
    order = np.lexsort((-value, row))
    second = np.flatnonzero(np.diff(row[order], prepend=-1) > 0) + 1
    second = second[second < len(order)]
    second = second[row[order][second] == row[order][second - 1]]
    return float(np.quantile(value[order][second], NEARLY_ALL)) if len(second) else 0.0


def shrunk(images: NDArray[Any]) -> Singles:
    """(N, C, SIDE, SIDE) the images with values between 0 and 1, averaged down or repeated to one size."""
    n = len(images)
    found = np.empty((n, images.shape[1], SIDE, SIDE), np.float32)
    rows, columns = _shares(images.shape[2]), _shares(images.shape[3])
    for start in range(0, n, 500):
        part = np.asarray(images[start : start + 500], dtype=np.float32)
        found[start : start + 500] = np.einsum("ah,nchw,bw->ncab", rows, part, columns, optimize=True)
    if images.dtype == np.uint8:
        found /= 255
    return found


def grey(images: NDArray[Any]) -> Singles:
    """(N, SIDE, SIDE) the brightness of each image, as `shrunk`."""
    return shrunk(images).mean(1)


def without_shading(small: Singles) -> Singles:
    """The images less their blurred selves: a bright sky above a dark ground makes unlike pictures correlate."""
    from scipy.ndimage import gaussian_filter

    return small - gaussian_filter(small, (0, 0, SHADING, SHADING), mode="nearest")


def _shares(size: int, out: int = SIDE) -> Singles:
    """(out, size) how much each pixel of a side counts for each of `out` equal pieces of it."""
    edges = size * np.arange(out + 1) / out
    low, high = edges[:-1, None], edges[1:, None]
    cover = np.clip(np.minimum(high, np.arange(1, size + 1)) - np.maximum(low, np.arange(size)), 0, None)
    return (cover / np.maximum(cover.sum(1, keepdims=True), 1e-9)).astype(np.float32)


def _candidates(small: Singles, vectors: Singles) -> tuple[Ints, Ints]:
    """Pairs of near neighbors, in the features and in the blurred images as they are and mirrored, each once."""
    n = len(small)
    blurred = _pooled(small, SIDE // 8)
    looks = (vectors - vectors.mean(0), np.concatenate([blurred, _turned(blurred, True)]).reshape(2 * n, -1))
    pairs = []
    for look in looks:
        flat = _standardized(np.ascontiguousarray(look, dtype=np.float32))
        who, _ = nearest_rows(flat, NEIGHBORS)
        pairs.append(np.stack([np.repeat(np.arange(n), who.shape[1]), who[:n].ravel() % n]))
    both = np.unique(np.sort(np.concatenate(pairs, axis=1), axis=0), axis=1)
    both = both[:, both[0] != both[1]]  # many an image is its own mirror image
    return both[0], both[1]


def _pooled(small: Singles, by: int) -> Singles:
    side = SIDE // by
    return small.reshape(len(small), side, by, side, by).mean((2, 4))


def _standardized(flat: Singles) -> Singles:
    flat = flat - flat.mean(-1, keepdims=True)
    return flat / np.maximum(np.linalg.norm(flat, axis=-1, keepdims=True), FLAT * flat.shape[-1] ** 0.5)


def similarity(small: Singles, a: Ints, b: Ints) -> Singles:
    """(P,) the largest correlation of each pair of images over scales, places and the mirror image: of the brightness, and of all colors at that
    place if it is smaller."""
    bright = small.mean(1)
    coarse = _pooled(bright, SIDE // COARSE)
    best = np.full(len(a), -1, np.float32)
    for start in range(0, len(a), BATCH):
        part = slice(start, start + BATCH)
        here = best[part]
        for swap in (False, True):
            for mirror in (False, True):
                whole, piece = (b[part], a[part]) if swap else (a[part], b[part])
                value, place = _laid_over(coarse[whole], _turned(coarse[piece], mirror))
                close = np.flatnonzero(value >= PROMISING)
                value[close], at = _closely(bright[whole[close]], _turned(bright[piece[close]], mirror), place[close])
                if small.shape[1] > 1:
                    same = _in_color(small[whole[close]], _turned(small[piece[close]], mirror), at)
                    value[close] = np.minimum(value[close], same)
                np.maximum(here, np.where(value >= PROMISING, value, np.minimum(value, PROMISING)), out=here)
    return best


def _turned(images: Singles, mirror: bool) -> Singles:
    return images[..., ::-1] if mirror else images


def _laid_over(whole: Singles, piece: Singles) -> tuple[Singles, Ints]:
    """(P,) the best correlation of `piece`, shrunk, with any place of `whole`, and (P, 3) its side, top and left."""
    best = np.full(len(whole), -1, np.float32)
    place = np.zeros((len(whole), 3), np.int64)
    totals = _totals(whole)
    for side in range(SMALLEST, COARSE + 1):
        steps = COARSE - side + 1
        template = _standardized(_shrunk(piece, side).reshape(len(piece), -1)).reshape(-1, side, side)
        spread = _spread(totals, side)
        for top in range(steps):
            for left in range(steps):
                # The template sums to zero, so the mean of the window does not count.
                window = whole[:, top : top + side, left : left + side]
                value = np.einsum("nab,nab->n", window, template) / spread[:, top, left]
                better = value > best
                best[better], place[better] = value[better], (side, top, left)
    return best, place


def _totals(images: Singles) -> Floats:
    """(2, P, S + 1, S + 1) the pixels above and to the left of each corner, added up, and their squares."""
    values = images.astype(np.float64)
    return np.pad(np.stack([values, values**2]).cumsum(2).cumsum(3), ((0, 0), (0, 0), (1, 0), (1, 0)))


def _spread(totals: Floats, side: int) -> Singles:
    """(P, k, k) the square root of the summed squares around the mean, for every window of this side."""
    below, above = totals[:, :, side:], totals[:, :, :-side]
    sums = below[..., side:] - above[..., side:] - below[..., :-side] + above[..., :-side]
    return np.sqrt(np.maximum(sums[1] - sums[0] ** 2 / side**2, (FLAT * side) ** 2)).astype(np.float32)


def _closely(whole: Singles, piece: Singles, place: Ints) -> tuple[Singles, Ints]:
    """(P,) the best correlation around a place that was found at the coarse size, and (P, 3) its side, top and left."""
    best, at = np.full(len(whole), -1, np.float32), np.zeros((len(whole), 3), np.int64)
    by = SIDE // COARSE
    totals, around = _totals(whole), np.arange(-by, by + 1)
    for side in range(by * SMALLEST - by, SIDE + 1):
        rows = np.flatnonzero(np.abs(by * place[:, 0] - side) <= by)
        if not len(rows):
            continue
        template = _standardized(_shrunk(piece[rows], side).reshape(len(rows), -1)).reshape(-1, side, side)
        spread, span = _spread(totals[:, rows], side), np.arange(side)
        tops, lefts = (np.clip(by * place[rows, k, None] + around, 0, SIDE - side) for k in (1, 2))
        # At an edge several steps end at one place; it is looked at once.
        lower, farther = (np.diff(steps, axis=1, prepend=-1) > 0 for steps in (tops, lefts))
        for down in range(len(around)):
            for right in range(len(around)):
                each = np.flatnonzero(lower[:, down] & farther[:, right])
                top, left, row = tops[each, down], lefts[each, right], rows[each]
                window = whole[
                    row[:, None, None], (top[:, None] + span)[:, :, None], (left[:, None] + span)[:, None, :]
                ]
                value = np.einsum("nab,nab->n", window, template[each]) / spread[each, top, left]
                better = value > best[row]
                best[row[better]] = value[better]
                at[row[better]] = np.stack([np.full(len(row), side), top, left], 1)[better]
    return best, at


def _in_color(whole: Singles, piece: Singles, at: Ints) -> Singles:
    """(P,) the correlation of all colors of two images (P, C, SIDE, SIDE) laid over one another at these places."""
    found = np.zeros(len(whole), np.float32)
    for side in np.unique(at[:, 0]).tolist():
        rows, span = np.flatnonzero(at[:, 0] == side), np.arange(side)
        top, left = (at[rows, k, None] + span for k in (1, 2))
        window = whole[rows[:, None, None], :, top[:, :, None], left[:, None, :]].transpose(0, 3, 1, 2)
        flat = [_standardized(part.reshape(len(rows), -1)) for part in (window, _shrunk(piece[rows], side))]
        found[rows] = (flat[0] * flat[1]).sum(1)
    return found


def _shrunk(images: Singles, side: int) -> Singles:
    to = _shares(images.shape[-1], side)
    return np.einsum("ah,...hw,bw->...ab", to, images, to, optimize=True)
