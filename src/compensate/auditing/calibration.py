r"""From evidence to the probability that a label is wrong.

Planted labels are known to be wrong. The others are a mixture: a share :math:`\pi` of them is wrong too. So the densities
of the score :math:`s` satisfy

.. math:: p(s) = \pi \frac{f_{\text{planted}}(s)}{f_{\text{others}}(s)}

Where even the most suspect of the others are all wrong, :math:`p = 1`, and the ratio of the densities there tells
:math:`\pi`. No noise rate is asked for: it comes out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logit

from compensate.data.seeding import generator
from compensate.errors import InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BINS = 10
"""Parts of equal weight that the planted labels are cut in, by score."""

PURE = 0.5
"""So large a share of the planted labels, the most suspect ones, is compared with the others to find the noise rate."""

LEEWAY = 0.5
"""Standard deviation, a priori, of the logarithm of the noise rate around the bound that the purest region gives."""

PRIOR_ROWS = 50
"""A class's own noise rate counts as much as that of all once the class has so many rows."""

PRIOR_PLANTS = 10
"""The same for the middle between right and wrong scores of a class, by its planted labels."""


@dataclass(frozen=True, eq=False)
class Known:
    """What a run showed.

    Attributes:
        score: (N,) how suspect each label is that was not planted, larger is more.
        given: (N,) their classes.
        planted: (M,) the scores of planted labels.
        label: (M,) the planted classes.
        weight: (M,) how far a planted label stands for the errors of the data.
    """

    score: Floats
    given: Ints
    planted: Floats
    label: Ints
    weight: Floats


@dataclass(frozen=True, eq=False)
class Calibrated:
    r"""The log odds of an error.

    .. math:: \ln\frac{p}{1 - p} = a + b\,(s - m_c) + d_c

    Attributes:
        middle: (C,) :math:`m_c`, half way between the right and the wrong labels of each class.
        offset, slope: :math:`a` and :math:`b`.
        shift: (C,) :math:`d_c`, the log odds of an error in a class beyond those in all.
        rate: :math:`\pi`, the share of wrong labels.
    """

    middle: Floats
    offset: float
    slope: float
    shift: Floats
    rate: float

    def log_odds(self, score: Floats, given: Ints) -> Floats:
        """(N,) the log odds that a label is wrong."""
        return self.offset + self.slope * (score - self.middle[given]) + self.shift[given]

    def __call__(self, score: Floats, given: Ints) -> Floats:
        """(N,) the probability that a label is wrong."""
        return expit(self.log_odds(score, given))


def calibrate(known: Known, num_classes: int) -> Calibrated:
    """From scores to probabilities of error, by the planted labels."""
    if not len(known.planted):
        raise InputError(
            "no wrong label could be planted on trial, so nothing says how wrong labels look here: all but one class are too "
            "small. Give at least two classes some ten samples each, or leave the rare ones out."
        )
    middle = middles(known, num_classes)
    others, planted = known.score - middle[known.given], known.planted - middle[known.label]
    rate, offset, slope = likeliest(others, planted, known.weight, noise_rate(others, planted, known.weight))
    shift = class_shift(offset + slope * others, known.given, rate, num_classes)
    return Calibrated(middle, offset, slope, shift, rate)


def middles(known: Known, num_classes: int) -> Floats:
    """(C,) half way between the median of a class's labels and that of the labels planted in it.

    A class that the model prefers has lower scores, right or wrong; its middle says how much. Classes with few planted
    labels are drawn to the others.
    """
    usual = float(np.median(known.score))
    apart = _median(known.planted, known.weight) - usual
    found = np.full(num_classes, usual + apart / 2)
    for c in np.unique(known.given):
        mine = np.median(known.score[known.given == c])
        here = known.label == c
        k = float(known.weight[here].sum())
        distance = _median(known.planted[here], known.weight[here]) - mine if k > 0 else apart
        found[c] = mine + (k * distance + PRIOR_PLANTS * apart) / (k + PRIOR_PLANTS) / 2
    return found


def noise_rate(others: Floats, planted: Floats, weight: Floats) -> float:
    r"""The share of wrong labels among the others.

    .. math:: \pi = \frac{P_{\text{others}}(s \ge t)}{P_{\text{planted}}(s \ge t)}

    with a threshold :math:`t` above which all are wrong. The ratio grows as the threshold goes down and right labels come
    in; a monotone fit over bins of planted labels finds how far it is level.

    >>> rng = np.random.default_rng(0)
    >>> others = np.concatenate([rng.normal(-4, 1, 900), rng.normal(4, 1, 100)])
    >>> round(noise_rate(others, rng.normal(4, 1, 100), np.ones(100)), 1)
    0.1
    """
    order = np.argsort(-planted, kind="stable")
    weight = weight[order] / weight.sum()
    cut = np.cumsum(weight)
    ends = np.searchsorted(cut, np.arange(1, BINS + 1) / BINS - 1e-9)
    ends = np.unique(np.minimum(ends, len(planted) - 1))
    mass = np.diff(np.concatenate([[0.0], cut[ends]]))
    above = (others[:, None] >= planted[order][ends][None, :]).mean(0)
    share = np.diff(np.concatenate([[0.0], above]))
    # Pool from the top until each block's ratio is larger than that of the block above it.
    blocks: list[list[float]] = []
    for s, m in zip(share, mass, strict=True):
        blocks.append([float(s), float(m)])
        while len(blocks) > 1 and (blocks[-2][0] * blocks[-1][1] >= blocks[-1][0] * blocks[-2][1] or _small(blocks)):
            s2, m2 = blocks.pop()
            blocks[-1] = [blocks[-1][0] + s2, blocks[-1][1] + m2]
    return float(np.clip(blocks[0][0] / blocks[0][1], 0.0, 0.9))


def _small(blocks: list[list[float]]) -> bool:
    return len(blocks) == 2 and blocks[0][1] < PURE - 1e-9


def likeliest(others: Floats, planted: Floats, weight: Floats, bound: float) -> tuple[float, float, float]:
    r"""Noise rate, offset and slope: the rate near the bound whose curve tells best who was planted.

    .. math:: P(\text{planted} \mid s) = S\Bigl( \ln\frac{n}{m} + \ln\frac{p(s)}{\pi} \Bigr)

    with :math:`n` planted and :math:`m` other labels. Where right and wrong labels overlap, no threshold leaves wrong ones
    only, and `noise_rate` is an upper bound; the shape of the curve then says how far to go below it.
    """
    best = (-np.inf, bound, 0.0, 1.0)
    total = np.log(weight.sum() / len(others))
    for share in np.linspace(0.4, 1.1, 15):
        rate = float(np.clip(share * bound, 0.5 / len(others), 0.9))
        offset, slope = curve(others, planted, weight, rate)
        of_others, of_planted = (total + log_expit(offset + slope * x) - np.log(rate) for x in (others, planted))
        likelihood = (weight * log_expit(of_planted)).sum() + log_expit(-of_others).sum()
        likelihood -= 0.5 * (np.log(share) / LEEWAY) ** 2
        best = max(best, (float(likelihood), rate, offset, slope))
    return best[1:]


def curve(others: Floats, planted: Floats, weight: Floats, rate: float) -> tuple[float, float]:
    r"""Offset and slope of the logistic curve with this noise rate.

    .. math:: \min_{a, b \ge 0}\; \operatorname{mean}_{\text{others}} \ln(1 + e^{z}) - \pi \operatorname{mean}_{\text{planted}} z,
              \qquad z = a + b s

    It is the logistic loss of right against wrong, written with what is known: wrong labels look like planted ones, and
    right ones are the others less those. At its minimum the mean of :math:`p` is :math:`\pi`.

    Reference: du Plessis, Niu and Sugiyama, Convex formulation for learning from positive and unlabeled data, 2015.
    """
    rate = max(rate, 0.5 / len(others))
    spread = max(float(others.std()), 1e-9)
    x, q = others / spread, float(np.average(planted, weights=weight)) / spread

    def objective(theta: Floats) -> tuple[float, Floats]:
        a, b = theta[0], np.exp(theta[1])
        z = a + b * x
        p = expit(z)
        # The prior on the slope matters only where planted and right labels do not overlap at all.
        value = np.logaddexp(0, z).mean() - rate * (a + b * q) + 0.5 * (theta[1] - 1) ** 2 / len(x)
        return float(value), np.array(
            [p.mean() - rate, ((p * x).mean() - rate * q) * b + (theta[1] - 1) / len(x)],
        )

    found = minimize(
        objective, np.array([logit(rate), 0.5]), jac=True, method="L-BFGS-B", bounds=[(-60, 60), (-4, 3.5)]
    )
    return float(found.x[0]), float(np.exp(found.x[1]) / spread)


def class_shift(log_odds: Floats, given: Ints, rate: float, num_classes: int, steps: int = 20) -> Floats:
    r"""(C,) how the log odds of an error in a class differ from those in all.

    .. math:: \pi_c \leftarrow \frac{\sum_{i: y_i = c} p_i + k \pi}{n_c + k}, \qquad
              d_c = \ln\frac{\pi_c}{1 - \pi_c} - \ln\frac{\pi}{1 - \pi}

    where :math:`p_i` is computed with the last :math:`d_c` and :math:`k` is `PRIOR_ROWS`.

    Reference: Saerens, Latinne and Decaestecker, Adjusting the outputs of a classifier to new a priori probabilities, 2002.
    """
    rate = float(np.clip(rate, 1e-4, 1 - 1e-4))
    size = np.bincount(given, minlength=num_classes)
    shift = np.zeros(num_classes)
    for _ in range(steps):
        p = expit(log_odds + shift[given])
        mean = (np.bincount(given, p, minlength=num_classes) + PRIOR_ROWS * rate) / (size + PRIOR_ROWS)
        shift = logit(np.clip(mean, 1e-6, 1 - 1e-6)) - logit(rate)
    return np.clip(shift, -4, 4)


ENOUGH = 5000
"""Others drawn for an interval: with so many, chance lies with the planted labels."""


def interval(known: Known, num_classes: int, *, repeats: int = 40, seed: int = 0) -> tuple[float, float]:
    """The 90 % interval of the noise rate: both groups are drawn anew, with replacement."""
    rng = generator(seed, "bootstrap")
    rates = []
    for _ in range(repeats):
        i = rng.integers(len(known.score), size=min(len(known.score), ENOUGH))
        k = rng.integers(len(known.planted), size=len(known.planted))
        drawn = Known(known.score[i], known.given[i], known.planted[k], known.label[k], known.weight[k])
        rates.append(float(calibrate(drawn, num_classes)(drawn.score, drawn.given).mean()))
    return float(np.quantile(rates, 0.05)), float(np.quantile(rates, 0.95))


def _median(values: Floats, weight: Floats) -> float:
    order = np.argsort(values)
    return float(values[order][np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)])
