"""Label noise for experiments, and long-tailed subsets.

Every scheme takes class numbers (N,) and returns `Flipped`. The same seed gives the same errors, and the errors at a lower rate are a
subset of the errors at a higher one. A random scheme hits each sample with the given probability, or exactly ``round(rate * N)`` samples
with ``exact=True``.

In the equations :math:`p` is the rate and :math:`C` the number of classes. Reference: Yao and Wu, Compensation Learning, 2021, Sec. VI.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compensate.data.dataset import Dataset, generator
from compensate.errors import InputError, nearest

ClassNumbers = NDArray[np.int64]
GROUPS = 2  # groups of errors in a class, for cluster noise


@dataclass(frozen=True, eq=False)
class Flipped:
    """Labels after noise: (N,) the labels to train on, and whether each changed."""

    labels: ClassNumbers
    changed: NDArray[np.bool_]

    @property
    def rate(self) -> float:
        """The share of changed labels."""
        return float(self.changed.mean())


def clean(labels: ArrayLike, num_classes: int, rate: float = 0.0, *, seed: int = 0) -> Flipped:
    """No noise. Rate and seed are not used."""
    y = _labels(labels, num_classes)
    return _flipped(y, y)


def random(labels: ArrayLike, num_classes: int, rate: float, *, seed: int = 0, exact: bool = False) -> Flipped:
    r"""The random noise of the paper: a hit sample gets any class, its own included.

    .. math:: P(\tilde y = j \mid y) = (1 - p)\,[j = y] + p / C

    A share :math:`p (C - 1) / C` becomes wrong.

    >>> random(np.zeros(1000, int), 2, 0.4, seed=1, exact=True).rate
    0.193
    """
    y, hit, rng = _draw(labels, num_classes, rate, seed, exact)
    return _flipped(y, np.where(hit, rng.integers(num_classes, size=len(y)), y))


def symmetric(labels: ArrayLike, num_classes: int, rate: float, *, seed: int = 0, exact: bool = False) -> Flipped:
    r"""A hit sample gets one of the other classes.

    .. math:: P(\tilde y = j \mid y) = (1 - p)\,[j = y] + \frac{p}{C - 1}\,[j \ne y]

    >>> symmetric(np.zeros(1000, int), 2, 0.4, seed=1, exact=True).rate
    0.4
    """
    y, hit, rng = _draw(labels, num_classes, rate, seed, exact)
    return _flipped(y, np.where(hit, (y + rng.integers(1, num_classes, size=len(y))) % num_classes, y))


def pair(labels: ArrayLike, num_classes: int, rate: float, *, seed: int = 0, exact: bool = False) -> Flipped:
    r"""A hit sample gets the next class; after the last comes the first.

    .. math:: P(\tilde y = (y + 1) \bmod C \mid y) = p

    >>> pair([0, 1, 2], 3, 1.0).labels
    array([1, 2, 0])
    """
    y, hit, _ = _draw(labels, num_classes, rate, seed, exact)
    return _flipped(y, np.where(hit, (y + 1) % num_classes, y))


def transition(labels: ArrayLike, matrix: ArrayLike, *, seed: int = 0) -> Flipped:
    r"""Noise that depends on the class.

    .. math:: P(\tilde y = j \mid y = i) = T_{ij} \quad\text{where the rows of } T \text{ sum to one}

    >>> transition([0, 0, 1, 1], [[1, 0], [1, 0]]).labels
    array([0, 0, 0, 0])
    """
    t = np.asarray(matrix, dtype=np.float64)
    if t.ndim != 2 or t.shape[0] != t.shape[1]:
        raise InputError(f"the transition matrix has shape {t.shape}; it must be square, one row a true class.")
    valid = (t >= 0).all(1) & (np.abs(t.sum(1) - 1) <= 1e-6)
    if not valid.all():
        problem = f"row {valid.argmin()} of the transition matrix is {t[valid.argmin()]}"
        expected = "probabilities that sum to 1: T[i, j] is the chance that class i is written as class j"
        raise InputError(f"{problem}; each row must be {expected}. Divide each row by its sum.")
    y = _labels(labels, len(t))
    edges = np.cumsum(t, axis=1)
    draws = generator(seed, "noise").random(len(y)) * edges[y, -1]
    return _flipped(y, (draws[:, None] >= edges[y]).sum(1))


def first(labels: ArrayLike, num_classes: int, rate: float, *, seed: int = 0) -> Flipped:
    """The paper's symmetric noise for text: the first ``round(rate * N)`` samples are flipped.

    A flipped sample gets the next class. The seed is not used. Data sorted by class must be permuted first.

    >>> first([0, 1, 1, 0], 2, 0.5).labels
    array([1, 0, 1, 0])
    """
    y = _labels(labels, num_classes, rate)
    hit = np.arange(len(y)) < round(rate * len(y))
    return _flipped(y, np.where(hit, (y + 1) % num_classes, y))


def first_positive(labels: ArrayLike, num_classes: int, rate: float, *, seed: int = 0) -> Flipped:
    """The paper's asymmetric noise for text: the first ``round(rate * n)`` of the n positives (class 1) become negative (class 0).

    >>> first_positive([0, 1, 1, 0], 2, 0.5).labels
    array([0, 0, 1, 0])
    """
    y = _labels(labels, num_classes, rate)
    positives = np.flatnonzero(y == 1)
    noisy = y.copy()
    noisy[positives[: round(rate * len(positives))]] = 0
    return _flipped(y, noisy)


def instance(labels: ArrayLike, num_classes: int, rate: float, *, features: ArrayLike, seed: int = 0) -> Flipped:
    r"""Noise that depends on the sample: similar samples of a class get the same wrong class.

    .. math:: P(\tilde y = j \mid x, y) = q\,\mathrm{softmax}_{j \ne y}(x^\top W_y)_j, \quad q \sim N(p, 0.1^2) \text{ cut to } [0, 1]

    with one Gaussian matrix :math:`W_y` per class, the rate :math:`p`, and standardized ``features`` (N, ...), such as pixels.

    >>> instance([0, 1, 0, 1], 2, 1.0, features=[[-1.0], [-1.0], [1.0], [1.0]]).labels
    array([1, 0, 1, 0])

    Reference: Xia et al., Part-dependent label noise, NeurIPS 2020, Alg. 2.
    """
    y = _labels(labels, num_classes, rate)
    x = _standardized(features, len(y))
    rng = generator(seed, "instance noise")
    draws, spread = rng.random(len(y)), rng.normal(size=len(y))
    hit = draws < np.clip(rate + 0.1 * spread, 0, 1) * (rate > 0)
    # The largest of scores with Gumbel noise is a draw from their softmax.
    gumbel = rng.gumbel(size=(len(y), num_classes))
    noisy = y.copy()
    for c in range(num_classes):
        towards = rng.normal(size=(x.shape[1], num_classes)).astype(np.float32)
        rows = np.flatnonzero(y == c)
        scores = x[rows] @ towards + gumbel[rows]
        scores[:, c] = -np.inf
        noisy[rows] = np.where(hit[rows], scores.argmax(1), c)
    return _flipped(y, noisy)


def cluster(labels: ArrayLike, num_classes: int, rate: float, *, features: ArrayLike, seed: int = 0) -> Flipped:
    """Noise in tight groups, as people mistake kinds of samples: in each class, the samples around random ones get the same wrong class.

    A class has `GROUPS` such groups. Each gets the class whose mean is nearest to the middle of the group, and has the samples of the
    class that are nearest to it, up to ``round(rate * n)`` of the n samples of the class in all. ``features`` (N, ...) are standardized.

    >>> cluster([0, 0, 0, 1], 2, 0.34, features=[[0.0], [0.0], [9.0], [10.0]], seed=1).changed.sum().item()
    1
    """
    y = _labels(labels, num_classes, rate)
    x = _standardized(features, len(y))
    rng = generator(seed, "cluster noise")
    means = np.full((num_classes, x.shape[1]), np.inf, np.float32)
    for c in np.unique(y):
        means[c] = x[y == c].mean(0)
    noisy = y.copy()
    for c in np.unique(y):
        rows = np.flatnonzero(y == c)
        middles = x[rng.choice(rows, min(GROUPS, len(rows)), replace=False)]
        others = np.stack([((means - middle) ** 2).sum(1) for middle in middles])
        others[:, c] = np.inf
        distances = np.stack([((x[rows] - middle) ** 2).sum(1) for middle in middles], 1)
        near = np.argsort(distances.min(1), kind="stable")[: round(rate * len(rows))]
        noisy[rows[near]] = others.argmin(1)[distances[near].argmin(1)] if np.isfinite(others).any() else c
    return _flipped(y, noisy)


SCHEMES: dict[str, Callable[..., Flipped]] = {"none": clean}
SCHEMES |= {
    f.__name__.replace("_", "-"): f for f in (random, symmetric, pair, first, first_positive, instance, cluster)
}


@dataclass(frozen=True)
class Noise:
    """A noise scheme and its rate; `str` gives the text that `parse` reads.

    >>> Noise("pair", 1.0)([0, 1], num_classes=2, seed=3).labels
    array([1, 0])
    """

    name: str
    rate: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in SCHEMES:
            raise InputError(f'unknown noise "{self.name}"; {nearest(self.name, SCHEMES)}')
        _check_rate(self.rate)

    def __call__(
        self, labels: ArrayLike, num_classes: int, *, seed: int = 0, features: ArrayLike | None = None
    ) -> Flipped:
        """Apply the noise; only the schemes ``instance`` and ``cluster`` use ``features``."""
        scheme = SCHEMES[self.name]
        more: dict[str, ArrayLike] = {}
        if scheme in (instance, cluster):
            more["features"] = [] if features is None else features
        return scheme(labels, num_classes, self.rate, seed=seed, **more)

    def __str__(self) -> str:
        return "none" if self.name == "none" else f"{self.name}:{self.rate}"


def parse(text: str) -> Noise:
    """The noise of a text: ``none``, or a scheme, a colon and a rate.

    >>> parse("first-positive:0.1")
    Noise(name='first-positive', rate=0.1)
    """
    name, colon, rate = text.strip().lower().replace("_", "-").partition(":")
    noise = Noise(name)
    if name == "none" and not colon:
        return noise
    try:
        share = float(rate)
    except ValueError:
        raise InputError(f'noise "{text}" has no rate; write the scheme, a colon and a share: {name}:0.2.') from None
    return Noise(name, share)


def _labels(labels: ArrayLike, num_classes: int, rate: float = 0.0) -> ClassNumbers:
    """The labels, after the arguments of a scheme were checked."""
    _check_rate(rate)
    y = np.asarray(labels)
    if num_classes < 2:
        raise InputError(f"num_classes is {num_classes}; label noise needs at least 2 classes.")
    if y.ndim != 1 or not (np.issubdtype(y.dtype, np.integer) or y.size == 0):
        raise InputError(f"labels have shape {y.shape} and type {y.dtype}; expected (N,) whole numbers, one a sample.")
    if y.size and not (y.min() >= 0 and y.max() < num_classes):
        row = int(np.flatnonzero((y < 0) | (y >= num_classes))[0])
        remedy = f"pass num_classes={int(y.max()) + 1} or more, and leave out rows without a label"
        raise InputError(f"label {y[row]} of row {row} is outside 0..{num_classes - 1}; {remedy}.")
    return y.astype(np.int64)


def _standardized(features: ArrayLike, size: int) -> NDArray[np.float32]:
    """(N, D) columns with mean 0 and variance 1."""
    x = np.asarray(features)
    if len(x) != size or not np.issubdtype(x.dtype, np.number):
        given = f"features: {x.dtype} {x.shape}"
        raise InputError(f"noise that depends on samples needs numbers that describe each of {size}; {given}.")
    x = x.reshape(len(x), -1).astype(np.float32)
    return np.asarray((x - x.mean(0)) / np.maximum(x.std(0), 1e-6), np.float32)


def _check_rate(rate: float) -> None:
    if not 0 <= rate <= 1:
        raise InputError(f"the noise rate is {rate}; it is a share from 0 to 1 (20 percent is 0.2).")


def _draw(
    labels: ArrayLike, num_classes: int, rate: float, seed: int, exact: bool
) -> tuple[ClassNumbers, NDArray[np.bool_], np.random.Generator]:
    """The labels, which of them are hit, and the generator for their new classes."""
    y = _labels(labels, num_classes, rate)
    rng = generator(seed, "noise")
    draws = rng.random(len(y))  # they do not depend on the rate: a sample hit at 10 % is hit at 20 % too
    hit = draws < rate
    if exact:
        hit = np.zeros(len(y), dtype=bool)
        hit[np.argsort(draws, kind="stable")[: round(rate * len(y))]] = True
    return y, hit, rng


def _flipped(given: ClassNumbers, noisy: NDArray[np.integer]) -> Flipped:
    return Flipped(noisy.astype(np.int64), noisy != given)


def class_sizes(num_classes: int, largest: int, ratio: float, kind: str = "exponential") -> NDArray[np.int64]:
    r"""The number of samples of each class in a long-tailed data set.

    .. math:: n_c = n_0\, r^{-c / (C - 1)} \quad\text{(exponential)}, \qquad
              n_c = n_0 \text{ for } c < C / 2, \text{ else } n_0 / r \quad\text{(step)}

    where :math:`n_0` is the size of the first and largest class, and :math:`r \ge 1` the ratio of the largest to the smallest; rounded
    down, but at least one.

    >>> class_sizes(3, 100, 100)
    array([100,  10,   1])

    Reference: Cui et al., Class-Balanced Loss, 2019; Buda et al., A Systematic Study of the Class Imbalance Problem, 2018.
    """
    if ratio < 1:
        raise InputError(f"the imbalance ratio is {ratio}; it is the largest class over the smallest, at least 1.")
    if kind not in ("exponential", "step"):
        raise InputError(f'the imbalance is "{kind}"; choose exponential or step.')
    c = np.arange(num_classes)
    if kind == "exponential":
        sizes = largest * ratio ** (-c / max(num_classes - 1, 1))
    else:
        sizes = np.where(c < num_classes / 2, largest, largest / ratio)
    # The offset corrects rounding errors: 100 * 100 ** -0.5 must be 10, not 9.
    return np.maximum(np.floor(sizes + 1e-9), 1).astype(np.int64)


def long_tailed(data: Dataset, ratio: float, kind: str = "exponential", *, seed: int = 0) -> Dataset:
    """A random subset with the class sizes of `class_sizes`; the largest class has as many samples as the smallest class of the data.

    >>> from compensate.data import digits
    >>> long_tailed(digits(), 10, "step").class_counts
    array([174, 174, 174, 174, 174,  17,  17,  17,  17,  17])
    """
    if data.regression:
        raise InputError("long-tailed subsampling needs classes, and this data set's target is a quantity.")
    counts = data.class_counts
    if (counts == 0).any():
        lost = [data.classes[c] for c in np.flatnonzero(counts == 0)]
        raise InputError(f"the classes {', '.join(lost)} have no samples; remove them from the classes first.")
    sizes = class_sizes(data.num_classes, int(counts.min()), ratio, kind)
    order = generator(seed, "imbalance").permutation(len(data))
    kept = [order[data.target[order] == c][:size] for c, size in enumerate(sizes)]
    return data.subset(np.sort(np.concatenate(kept)))
