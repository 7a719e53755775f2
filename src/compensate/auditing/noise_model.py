r"""From out-of-fold predictions to the probability that a label is wrong.

1. The learners are pooled, :math:`\ln q(t | x) = \sum_m w_m \ln q_m(t | x) + \text{const}`, with weights :math:`w \ge 0` that minimize the
   log loss of the given labels.
2. **Errors that contradict the model.** If class :math:`t` is written as :math:`j` with probability :math:`\varepsilon D_{tj}`, the given labels follow

   .. math:: p(j | x) = (1 - \varepsilon)\, \tilde q_j(x) + \varepsilon \sum_{t \ne j} \tilde q_t(x) D_{tj}, \qquad \tilde q \propto q^T:

   however sure the model is, a share of labels contradicts it. Share :math:`\varepsilon`, sharpness :math:`T` and direction :math:`D` are found by maximum
   likelihood. Each row then has the posterior probability of such an error.
3. **Errors that the model has learned.** People err on hard samples, and in ways that a model learns along with the classes. No likelihood shows their
   number: a data set without errors and hard samples looks the same. What is known is where they would be, namely where another class
   is likely by

   .. math:: s_i = \ln \sum_{t \ne y_i} \tilde q_t R_{t y_i} - \ln \tilde q_{y_i}, \qquad R_{tj} = \frac{A_{tj} + a}{A_{jt} + a},

   with :math:`A` the transitions of the linear models, of which only the direction counts: where two classes are mistaken for each other both ways,
   :math:`q` says so already. A fixed part of the doubt that is left, `LEARNED`, is taken for errors; the interval of the
   share reaches from none of it to all of it.

Reference: Northcutt, Jiang and Chuang, Confident Learning, 2021, for errors by pairs of classes; Patrini et al., 2017, for transitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize
from scipy.special import expit, logit, logsumexp

from compensate.auditing.page.model import Estimate

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RIDGE = 0.01
"""How strongly weights of learners are drawn to equal ones."""

EVEN = 0.005
"""Added to both ways of a pair of classes before their ratio is taken: rarer confusions show no direction."""

LEARNED = 0.2
"""The part of the doubt that is taken for errors which the model has learned."""

MOST_LEARNED = 1.1
"""The interval reaches so far: in NoisyAG-News, where people err in one direction, errors are 1.04 times the doubt."""

LEAST_SEEN, MARGIN = 0.75, 0.02
"""The lower end of the interval: a part of the errors that contradict the model, less what hard samples may imitate."""

SHARES = np.array([1e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4])
SHARPNESS = np.exp(np.linspace(-0.2, 1.8, 21))
"""The values of the share and the sharpness that are compared."""

ASSUMED = (0.15, 2.0)
"""Share and sharpness under which directions are looked for first: with none, errors by pairs would never be found."""

ROUNDS = 3
"""Of estimating directions anew under the present share."""

ROOM = 4_000_000
"""Entries of predictions from which share and sharpness are estimated; of more rows a part is drawn."""

SIMPLER = 0.5
"""Log likelihood by which errors in one direction have to fit better than errors in all directions alike."""

CHANCE = 0.02
"""A log loss that is less than this part below that of the frequencies of classes says nothing about the samples."""

BY_CHANCE = (
    "The {} cannot be predicted from the samples better than by chance, so none is flagged. Check the label column."
)
"""The note on such labels or values."""

SMALLEST = 1e-12


@dataclass(frozen=True, eq=False)
class Verdict:
    """What is known of each label.

    Attributes:
        log_odds, p_error: (N,) that the given label is wrong.
        suggested: (N,) the likeliest other class.
        share: the estimated share of wrong labels, with its interval.
        log_q: (N, C) the pooled log probabilities.
        contradicting: the share of errors that contradict the model.
        gain: how far the log loss is below that of the frequencies of classes, as a part of it.
    """

    log_odds: Floats
    p_error: Floats
    suggested: Ints
    share: Estimate
    log_q: Floats
    contradicting: float
    gain: float

    def evidence(self, labels: Ints) -> dict[str, Floats]:
        """(N,) each: by how much the given class is ahead of the next likeliest, and the log loss."""
        rows = np.arange(len(labels))
        others = self.log_q.copy()
        others[rows, labels] = -np.inf
        own = self.log_q[rows, labels]
        return {"margin": own - others.max(1), "loss": -own}

    @property
    def by_chance(self) -> bool:
        """Whether labels are predicted no better than by chance."""
        return self.gain < CHANCE


def pool(log_p: Mapping[str, NDArray[np.floating]], labels: Ints) -> tuple[Floats, dict[str, float]]:
    """(N, C) the pooled log probabilities, and the weights of the learners.

    >>> good, bad = np.log([[0.9, 0.1], [0.1, 0.9]]), np.log([[0.5, 0.5], [0.5, 0.5]])
    >>> pool({"good": good, "bad": bad}, np.array([0, 1]))[1]["good"] > 0.5
    True
    """
    stacked = np.stack([np.asarray(value, np.float64) for value in log_p.values()])
    equal = 1 / len(stacked)
    known = np.flatnonzero(labels >= 0)
    if len(known) * stacked.shape[2] > ROOM:
        known = known[:: int(np.ceil(len(known) * stacked.shape[2] / ROOM))]
    part, given = stacked[:, known], labels[known]
    own = part[:, np.arange(len(known)), given]

    def loss(w: Floats) -> tuple[float, Floats]:
        u = np.tensordot(w, part, 1)
        total = logsumexp(u, axis=1)
        gradient = (np.einsum("nc,mnc->m", np.exp(u - total[:, None]), part) - own.sum(1)) / len(known)
        value = float((total - w @ own).mean() + 0.5 * RIDGE * ((w - equal) ** 2).sum())
        return value, gradient + RIDGE * (w - equal)

    start = np.full(len(stacked), equal)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * len(stacked)).x
    if found.sum() <= 0:
        found = start
    pooled = _normalized(np.tensordot(found, stacked, 1))
    return pooled, dict(zip(log_p, (found / found.sum()).tolist(), strict=True))


def judge(log_q: Floats, labels: Ints, transition: Floats | None = None, *, simpler: float = SIMPLER) -> Verdict:
    """The verdict on each label.

    Args:
        log_q: (N, C) pooled out-of-fold log probabilities.
        labels: (N,) class numbers, none missing.
        transition: (C, C) true to given classes; None if no direction is known.
        simpler: as `SIMPLER`.
    """
    classes = log_q.shape[1]
    a = np.eye(classes) if transition is None else np.asarray(transition, np.float64)
    direction = np.log((a + EVEN) / (a.T + EVEN))
    seen, share, low, high, sharpness = _contradictions(log_q, labels, a, simpler)
    score, suggested = _scores(sharpness * log_q, labels, direction)
    doubt = max(float(expit(score).mean()) - float(seen.mean()), 0.0)
    learned = _shifted(score, LEARNED * doubt)
    p = 1 - (1 - seen) * (1 - learned)
    mean = float(p.mean())
    low = min(max(LEAST_SEEN * low - MARGIN, 0.0), mean)
    high = min(max(high + MOST_LEARNED * doubt, mean), 1.0)
    frequency = np.bincount(labels, minlength=classes) / len(labels)
    by_chance = -float(np.log(np.maximum(frequency[labels], SMALLEST)).mean())
    gain = 1 + float(log_q[np.arange(len(labels)), labels].mean()) / max(by_chance, SMALLEST)
    odds = logit(np.clip(p, SMALLEST, 1 - 1e-9))
    return Verdict(odds, p, suggested, Estimate(mean, low, high), log_q, share, gain)


def _scores(log_q: Floats, labels: Ints, direction: Floats) -> tuple[Floats, Ints]:
    """(N,) log odds of any other class against the given one, and the likeliest other class."""
    rows = np.arange(len(labels))
    u = log_q + direction.T[labels]
    own = u[rows, labels].copy()
    u[rows, labels] = -np.inf
    return logsumexp(u, axis=1) - own, u.argmax(1)


def _shifted(score: Floats, mean: float) -> Floats:
    """(N,) probabilities S(a + score) with the given mean."""
    if mean <= SMALLEST:
        return np.zeros(len(score))
    bound = float(np.abs(score).max()) + 60
    return expit(score + brentq(lambda a: float(expit(score + a).mean()) - mean, -bound, bound, xtol=1e-6))


def _contradictions(
    log_q: Floats, labels: Ints, transition: Floats, simpler: float
) -> tuple[Floats, float, float, float, float]:
    """(N,) the posterior of an error that contradicts the model; their share, its interval by likelihood, the sharpness."""
    part, given = log_q, labels
    if log_q.size > ROOM:
        rows = np.arange(0, len(labels), int(np.ceil(log_q.size / ROOM)))
        part, given = log_q[rows], labels[rows]
    classes = log_q.shape[1]
    others = 1 - np.eye(classes)
    learned = transition * others + SMALLEST * others
    best = -np.inf
    assumed = others / (classes - 1)
    for _ in range(ROUNDS):  # which errors there would be if there were some
        assumed = _directions(part, given, assumed, *ASSUMED)
    for start in (others / (classes - 1), learned * classes / learned.sum(), assumed):
        d = start
        for _ in range(ROUNDS + 1):
            likelihood, sharpness = _profile(part, given, d)
            k = int(likelihood.argmax())
            if likelihood[k] > best + simpler:  # of two that fit alike, the simpler one
                best, share, t, directions, profile = (
                    float(likelihood[k]),
                    float(SHARES[k]),
                    sharpness[k],
                    d,
                    likelihood,
                )
            if SHARES[k] < 0.005:
                break
            d = _directions(part, given, d, SHARES[k], sharpness[k])
    q = np.exp(_normalized(t * log_q))
    wrong = share * (q * directions.T[labels]).sum(1)
    right = (1 - share) * q[np.arange(len(labels)), labels]
    likely = SHARES[profile > profile.max() - 1.92]
    return wrong / np.maximum(wrong + right, SMALLEST), share, float(likely.min()), float(likely.max()), float(t)


def _profile(log_q: Floats, labels: Ints, directions: Floats) -> tuple[Floats, Floats]:
    """The log likelihood of each share with its best sharpness, and that sharpness."""
    rows = np.arange(len(labels))
    table = np.empty((len(SHARPNESS), len(SHARES)))
    for k, t in enumerate(SHARPNESS):
        q = np.exp(_normalized(t * log_q))
        own, other = q[rows, labels], (q * directions.T[labels]).sum(1)
        table[k] = [float(np.log((1 - e) * own + e * other + SMALLEST).sum()) for e in SHARES]
    return table.max(0), SHARPNESS[table.argmax(0)]


def _directions(log_q: Floats, labels: Ints, directions: Floats, share: float, sharpness: float) -> Floats:
    """Directions anew, from the expected number of errors by true and given class; their mean row sums to one."""
    classes = log_q.shape[1]
    others = 1 - np.eye(classes)
    q = np.exp(_normalized(sharpness * log_q))
    joint = share * q * directions.T[labels]
    joint /= (joint.sum(1) + (1 - share) * q[np.arange(len(labels)), labels])[:, None] + SMALLEST
    counts = np.zeros((classes, classes))
    for j in range(classes):
        counts[:, j] = joint[labels == j].sum(0)
    rows = np.maximum(q.sum(0)[:, None], SMALLEST)
    d = (counts * others + 2 / max(classes - 1, 1) * others * rows / rows.mean()) / rows
    return d * rows.sum() / (d.sum(1) * rows[:, 0]).sum()


def _normalized(u: Floats) -> Floats:
    return u - logsumexp(u, axis=1, keepdims=True)
