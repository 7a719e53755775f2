r"""From evidence to the probability that a label is wrong.

Planted labels are known to be wrong, but for a few that fell on a label that was wrong already. The others of a class are a
mixture: a share :math:`\pi_c` of them is wrong too. With the log odds of an error linear in the score :math:`s`,

.. math:: p(s) = S(a_c + b s), \qquad \operatorname{mean}_{\text{others of } c} p = \pi_c

wrong labels have the density :math:`f_w = f\,p / \pi_c` and right ones :math:`f_r = f\,(1 - p) / (1 - \pi_c)`, where
:math:`f` is that of the others. Planted labels have :math:`(1 - \gamma) f_w + \gamma f_r`, with :math:`\gamma` the chance
that they fell on a wrong label and made it right. How well each :math:`(\pi_c, b)` tells planted labels from the others is
its likelihood. The rates of the classes scatter around that of all, by as much as they seem to.

Where right and wrong labels are far apart the likelihood has one sharp peak. Where a model is weak it is flat: hard samples
with right labels then look as wrong ones do, and no evidence of that model can tell many errors from few. So
probabilities are averages over all rates and slopes by their posterior, with a prior on the noise rate that says what is
usual in data sets. No noise rate is asked for.

Labels are planted on samples that a first look trusts, where they stand out. Errors of the data lie on hard samples too, and
stand out less: their slope is a part of :math:`b`, with :math:`a_c` such that the rate stays :math:`\pi_c`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit, logit, logsumexp

from compensate.errors import InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

USUAL_RATE, RATE_SPREAD = 0.08, 1.0
"""A priori the logarithm of the noise rate is normal around this one: in two of three data sets between 3 and 22 %."""

CLASS_SPREADS = {0.1: 0.7, 0.4: 0.15, 1.5: 0.15}
"""By how much the logarithms of the rates of two classes scatter around that of all, and how likely that is a priori: most
often classes have about the same rate, and it takes evidence to say that one has nearly all the errors."""

SLOPE, SLOPE_SPREAD = 1.0, 1.5
"""The logarithm of the slope is normal too, for scores of deviation 1."""

RATES = np.exp(np.linspace(np.log(0.001), np.log(0.7), 45))
SLOPES = np.exp(np.linspace(-1.5, 3.2, 16))
"""The noise rates and slopes that are weighed against each other."""

HARDER = 0.85
"""The slope of the data's own errors, as a part of that of planted labels."""

POINTS, FEWEST_POINTS = 250, 25
"""The others are summed up by so many groups of equal size, in the order of their scores; those of a class by a part."""

OWN_PLANTS = 40
"""Of two classes, each has its own curve if so many labels were planted in it. More classes share one: what they differ in
shows in their pairs (`shifts`), and a curve of a few planted labels would be worse than none."""

PRIOR_ROWS = 50
"""The noise rate of a class, or of a pair of classes in it, counts as much as that of all once it has so many rows."""

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
        fell: (M,) the chance that a planted label fell on a wrong one and is right.
    """

    score: Floats
    given: Ints
    planted: Floats
    label: Ints
    weight: Floats
    fell: Floats


@dataclass(frozen=True, eq=False)
class Calibrated:
    r"""The log odds of an error, as a function of the score for each class.

    Attributes:
        group: (C,) which curve a class has.
        middle: (C,) what is taken from its scores first.
        knots: (K,) scores, and ``values`` (G, K) the log odds there by curve; straight lines between them.
        rate, low, high: :math:`\pi`, the share of wrong labels: its mean and 90 % interval.
    """

    group: Ints
    middle: Floats
    knots: Floats
    values: Floats
    rate: float
    low: float
    high: float

    def log_odds(self, score: Floats, given: Ints) -> Floats:
        """(N,) the log odds that a label is wrong."""
        found = np.empty(len(score))
        group = self.group[given]
        for g in np.unique(group):
            mine = group == g
            found[mine] = np.interp(score[mine] - self.middle[given[mine]], self.knots, self.values[g])
        return found

    def __call__(self, score: Floats, given: Ints) -> Floats:
        """(N,) the probability that a label is wrong."""
        return expit(self.log_odds(score, given))


def calibrate(known: Known, num_classes: int) -> Calibrated:
    """From scores to probabilities of error, by the planted labels.

    >>> rng = np.random.default_rng(0)
    >>> others = np.concatenate([rng.normal(-3, 1, 1800), rng.normal(3, 1, 200)])
    >>> zeros, m = np.zeros(2000, int), 100
    >>> found = calibrate(Known(others, zeros, rng.normal(3, 1, m), zeros[:m], np.ones(m), np.zeros(m)), 1)
    >>> round(found.rate, 1)
    0.1
    """
    if not len(known.planted):
        raise InputError(
            "no wrong label could be planted on trial, so nothing says how wrong labels look here: all but one class are too "
            "small. Give at least two classes some ten samples each, or leave the rare ones out."
        )
    group, middle = _groups(known, num_classes), middles(known, num_classes)
    others, planted = known.score - middle[known.given], known.planted - middle[known.label]
    spread = max(float(others.std()), 1e-9)
    of_others, of_planted = group[known.given], group[known.label]
    count = int(group.max()) + 1
    points = max(FEWEST_POINTS, POINTS // count)
    fit = np.empty((count, len(RATES), len(SLOPES)))
    sums = [Sums.of(others[of_others == g] / spread, points) for g in range(count)]
    for g in range(count):
        mine = of_planted == g
        fit[g] = likely(sums[g], planted[mine] / spread, known.weight[mine], known.fell[mine])
    of_all, of_group = posteriors(fit)
    low, high = RATES[np.searchsorted(np.cumsum(of_all), (0.05, 0.95)).clip(0, len(RATES) - 1)]
    # The share of errors that is found is counted by the planted labels: their number bounds how exact a rate can be.
    chance = np.exp(1.645 / np.sqrt(known.weight.sum()))
    knots = np.linspace(min(others.min(), planted.min()), max(others.max(), planted.max()), 501)
    values = np.stack([_mean(sums[g], of_group[g], knots / spread) for g in range(count)])
    return Calibrated(group, middle, knots, values, float(of_all @ RATES), float(low / chance), float(high * chance))


def _groups(known: Known, num_classes: int) -> Ints:
    """(C,) the curve of each class."""
    own = num_classes == 2 and np.bincount(known.label, minlength=2).min() >= OWN_PLANTS
    return np.arange(2) if own else np.zeros(num_classes, np.int64)


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


@dataclass(frozen=True, eq=False)
class Sums:
    """Scores summed up by groups of equal size, in their order: the mean of each, its share, and the number of all."""

    means: Floats
    shares: Floats
    number: int

    @classmethod
    def of(cls, scores: Floats, points: int) -> Sums:
        """At most so many groups of these scores (N,)."""
        groups = np.array_split(np.sort(scores), max(1, min(points, len(scores)))) if len(scores) else []
        sizes = np.array([len(g) for g in groups], dtype=float)
        return cls(np.array([g.mean() for g in groups]), sizes / max(len(scores), 1), len(scores))

    def offset(self, rate: Floats, slope: Floats) -> Floats:
        """The offsets with which the mean of p is the rate, by halving; rates and slopes of shapes that go together."""
        z = slope[..., None] * self.means
        low = np.full(np.broadcast_shapes(rate.shape, slope.shape), -200.0)
        high = -low
        for _ in range(40):
            middle = (low + high) / 2
            above = expit(middle[..., None] + z) @ self.shares > rate
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return (low + high) / 2


def likely(others: Sums, planted: Floats, weight: Floats, fell: Floats) -> Floats:
    r"""(R, B) the log likelihood of each noise rate and slope.

    .. math:: \sum_{\text{planted}} w \ln S(z(s)) + \sum_{\text{others}} \ln S(-z(s)), \qquad
              z = \ln\frac{n}{m} + \ln\Bigl( (1 - \gamma) \frac{p}{\pi} + \gamma \frac{1 - p}{1 - \pi} \Bigr)

    with :math:`n` planted and :math:`m` other labels: the chance to tell who was planted.

    Args:
        others: scores of a class.
        planted: (M,) the same of labels planted in it, with ``weight`` and ``fell``.
    """
    if not others.number or not weight.sum():
        return np.zeros((len(RATES), len(SLOPES)))
    rate, total = RATES[:, None, None], np.log(weight.sum() / others.number)
    offset = others.offset(RATES[:, None], SLOPES)[..., None]

    def log_ratio(scores: Floats, fell: Floats | float) -> Floats:
        p = expit(offset + SLOPES[:, None] * scores)
        return np.log(np.maximum((1 - fell) * p / rate + fell * (1 - p) / (1 - rate), 1e-12))

    found = (weight * log_expit(total + log_ratio(planted, fell))).sum(-1)
    of_others = log_ratio(others.means, float(np.average(fell, weights=weight)))
    return found + others.number * (others.shares * log_expit(-total - of_others)).sum(-1)


def posteriors(fit: Floats) -> tuple[Floats, Floats]:
    r"""(R,) the posterior of the noise rate of all, and (G, R, B) that of each class's rate and the slope.

    .. math:: P(\pi, b, \tau, \pi_1, \ldots) \propto P(\pi) P(b) P(\tau) \prod_c L_c(\pi_c, b)\,
              N\bigl(\ln \pi_c ; \ln \pi, \tau^2\bigr)

    Args:
        fit: (G, R, B) log likelihoods :math:`\ln L_c`.
    """
    x = np.log(RATES)
    prior = -(((x - np.log(USUAL_RATE)) / RATE_SPREAD)[:, None] ** 2) / 2
    prior = prior - ((np.log(SLOPES) - SLOPE) / SLOPE_SPREAD) ** 2 / 2
    if len(fit) == 1:  # one curve: its rate is that of all
        joint = prior + fit[0]
        joint = np.exp(joint - logsumexp(joint))
        return joint.sum(1), joint[None]
    scatter = np.stack([-(((x[:, None] - x) / t) ** 2) / 2 for t in CLASS_SPREADS])
    scatter -= logsumexp(scatter, axis=2, keepdims=True)  # (T, R, R): the rate of a class, given that of all
    chances = np.log(list(CLASS_SPREADS.values()))[:, None, None]
    largest = fit.max(1, keepdims=True)
    # (G, T, R, B): what a class says of the rate of all.
    said = np.log(np.maximum(np.exp(scatter)[None] @ np.exp(fit - largest)[:, None], 1e-300)) + largest[:, None]
    joint = chances + prior + said.sum(0)
    joint -= logsumexp(joint)
    # What the other classes and the prior say of the rate of this class.
    rest = joint[None] - said
    top = rest.max((1, 2, 3), keepdims=True)
    others = np.einsum("trs,gtrb->gsb", np.exp(scatter), np.exp(rest - top))
    of_group = np.log(np.maximum(others, 1e-300)) + fit
    of_group -= logsumexp(of_group, axis=(1, 2), keepdims=True)
    return np.exp(logsumexp(joint, axis=(0, 2))), np.exp(of_group)


def _mean(others: Sums, posterior: Floats, knots: Floats) -> Floats:
    """The log odds of the mean probability at each knot."""
    heavy = posterior > min(1e-4, posterior.max() / 2)
    rate, slope = (np.broadcast_to(v, posterior.shape)[heavy] for v in (RATES[:, None], HARDER * SLOPES))
    offset = others.offset(rate, slope) if others.number else np.zeros_like(rate)
    z = offset[:, None] + slope[:, None] * knots
    weight = np.log(posterior[heavy])[:, None]
    return logsumexp(weight + log_expit(z), axis=0) - logsumexp(weight + log_expit(-z), axis=0)


def shifts(log_odds: Floats, given: Ints, pair: Ints, steps: int = 20) -> dict[int, float]:
    r"""How the log odds of an error in a pair of classes differ from those in all, by pair.

    .. math:: \pi_c = \frac{\sum_{i \in c} p_i + k \pi}{n_c + k}, \qquad
              \pi_{cd} \leftarrow \frac{\sum_{i \in cd} p_i + k \pi_c}{n_{cd} + k}, \qquad
              d_{cd} = \ln\frac{\pi_{cd}}{1 - \pi_{cd}} - \ln\frac{\pi}{1 - \pi}

    where :math:`c` is the given class and :math:`d` the suggested one, :math:`p_i` is computed with the last
    :math:`d_{cd}`, and :math:`k` is `PRIOR_ROWS`.

    Args:
        log_odds: (N,) of an error, by score alone.
        given: (N,) classes.
        pair: (N,) a number for each pair of given and suggested class.
        steps: how often to repeat.

    Reference: Saerens, Latinne and Decaestecker, Adjusting the outputs of a classifier to new a priori probabilities, 2002.
    """
    rate = float(expit(log_odds).mean().clip(1e-4, 1 - 1e-4))
    keys, first, place = np.unique(pair, return_index=True, return_inverse=True)
    classes = given[first]
    in_class, in_pair = np.bincount(given), np.bincount(place)
    shift = np.zeros(len(keys))
    for _ in range(steps):
        p = expit(log_odds + shift[place])
        of_class = (np.bincount(given, p) + PRIOR_ROWS * rate) / (in_class + PRIOR_ROWS)
        of_pair = (np.bincount(place, p) + PRIOR_ROWS * of_class[classes]) / (in_pair + PRIOR_ROWS)
        shift = logit(np.clip(of_pair, 1e-6, 1 - 1e-6)) - logit(rate)
    return dict(zip(keys.tolist(), np.clip(shift, -4, 4).tolist(), strict=True))


def _median(values: Floats, weight: Floats) -> float:
    order = np.argsort(values)
    return float(values[order][np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)])
