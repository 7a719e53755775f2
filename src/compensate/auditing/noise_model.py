r"""From out-of-fold predictions to the probability that a label is wrong.

1. The learners are pooled, :math:`\ln q(t | x) = \sum_m w_m \ln q_m(t | x) + \text{const}`, with weights :math:`w \ge 0` that minimize the
   log loss of the given labels.
2. **The direction of errors**, from class :math:`t` to class :math:`j`, is estimated where it shows. A linear model cannot learn errors in the
   midst of a class, so in its eyes a class with errors is never sure:

   .. math:: p(j | x) = \sum_t \tilde p_t(x) A_{tj}, \qquad \tilde p \propto p^T e^b, \qquad A_{tj} \propto \pi_j e^{\mu + \delta_{tj}} \quad (t \ne j),

   where :math:`p` is its prediction and :math:`\pi` are the frequencies of the classes. With :math:`\delta = 0`, as many labels move from :math:`t` to
   :math:`j` as back, however skewed the classes are. The deviations have a normal prior of variance :math:`\sigma^2`, and are multiplied by
   :math:`1 - 1 / G`, with :math:`G` the gain in log posterior over :math:`\delta = 0`, or by zero if :math:`G` is below the effective number of
   parameters, :math:`\sum m_{tj} / (m_{tj} + 1 / \sigma^2)`, given :math:`m_{tj}` errors. In Akaike's criterion, each has to gain one unit.
3. **Errors that contradict the model.** A share :math:`\varepsilon` of labels contradicts even a confident model:

   .. math:: p(j | x) = \Bigl(1 - \varepsilon \sum_{k \ne j} D_{jk}\Bigr) \tilde q_j(x) + \varepsilon \sum_{t \ne j} \tilde q_t(x) D_{tj}, \qquad
             \tilde q \propto q^T, \quad \varepsilon \sum_j D_{tj} \le \tfrac12.

   Share and sharpness :math:`T` are maximum-likelihood estimates, with directions :math:`D` that are uniform, or those of :math:`A` if they
   gain more than their effective number. Each row then has the posterior probability of such an error.
4. **Errors that the model has learned.** Models learn systematic human errors along with the classes. The likelihood does not identify their
   number: hard samples without errors look the same. They are where another class is likely by

   .. math:: s_i = \ln \sum_{t \ne y_i} \tilde q_t e^{\delta_{t y_i}} - \ln \tilde q_{y_i}.

   Their share of the residual uncertainty has an exponential distribution with mean `LEARNED`, and the probability of an error is averaged
   over it. It is therefore high only where few errors would suffice. The interval of the share of wrong labels reaches from none to all of it.

Reference: Northcutt, Jiang and Chuang, Confident Learning, 2021, for errors by pairs of classes; Patrini et al., 2017, for transitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize
from scipy.special import expit, logit

from compensate.auditing.execution import LOCAL, Execution
from compensate.data.dataset import Estimate, Floats, Ints, Singles

RIDGE = 0.01  # regularization of learner weights toward equal weights
DIRECTION_SPREAD = 1.25  # prior standard deviation of the deviations of log rates of errors
LEARNED = 0.2  # mean share of the residual uncertainty that is attributed to label errors
QUANTILES = 10  # of the distribution of that share, over which probabilities are averaged
MAX_DOUBT = 0.25  # uncertainty beyond this comes from a model that knows too little of the classes, and not from errors
MAX_LEARNED = 1.2  # upper end of the interval, in multiples of the residual uncertainty: 1.17 in NoisyAG-News
MIN_SEEN, MARGIN = 0.75, 0.02  # lower end: part of the contradicting errors, minus a margin for hard samples
SHARES = np.array([1e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4])
SHARPNESS = np.exp(np.linspace(-0.2, 1.8, 21))  # SHARES and SHARPNESS are grids
MAX_ENTRIES = 4_000_000  # predictions from which share and sharpness are estimated; of more rows a part is drawn
MAX_LOG_LIKELIHOOD_GAP = 1.0
"""Shares within this log likelihood fit equally well, and the largest of them is used. Models of a few hundred rows are nowhere more confident
than one minus the share of errors: the likelihood does not tell uniform errors from uniformly hard samples."""

MAX_WRONG = 0.5  # largest share of a class that may be written wrongly: with more, its name would mean another class
CHANCE = 0.02  # labels are unpredictable if the log loss is less than this part below that of the class frequencies
SHIFT_SPREAD = 0.7
"""The prior standard deviation of the shift of log odds that decisions suggest. Chosen on digits, breast cancer, wine and draws of
`make_classification` (seeds 0 and 1): with .7, four decisions on the top suspects move 8 % of the flags and with 1, 13 %; thirty decisions
reach the same log loss with either. Verified on iris and on draws of blobs, moons and Gaussian quantiles (seeds 5 and 6)."""

SLIPS = 0.02
"""The share of decisions that say nothing about other labels, such as slips and unusual samples. It limits the effect of a few decisions
against labels that the model was very sure of. Chosen with `SHIFT_SPREAD`."""

SHIFTS = np.linspace(-25, 25, 1001)  # grid of shifts; log odds lie between its ends
PORTION = 16_384  # rows whose likelihoods are computed at once: intermediate arrays fit the processor's cache
SMALLEST = 1e-12


@dataclass(frozen=True, eq=False)
class NoiseModel:
    """Turns predictions into probabilities of error; see the header for the symbols.

    Attributes:
        share, sharpness: of the errors that contradict the model.
        directions: (C, C) how class t is written where it is written wrongly, D.
        ratios: (C, C) the deviations of the log rates of errors from t to j, as far as they show.
        offsets: of the log odds of errors that the model has learned, equally likely; minus infinity without such errors.
        shift: of all log odds, as decisions suggest; see `recalibration`.
        low, high: the interval of the share of wrong labels, before it includes the mean probability; not stored.
        by_chance: whether labels are predicted no better than by chance.
    """

    share: float
    sharpness: float
    directions: Floats
    ratios: Floats
    offsets: Floats
    shift: float = 0.0
    low: float = 0.0
    high: float = 1.0
    by_chance: bool = False

    def estimate(self, mean: float) -> Estimate:
        """The share of wrong labels with its interval, given the mean of their probabilities."""
        return Estimate(mean, min(self.low, mean), min(max(self.high, mean), 1.0))

    def score(self, log_q: Floats, labels: Ints) -> tuple[Floats, Ints]:
        """(N,) the log odds that each label is wrong, and the likeliest other class.

        Args:
            log_q: (N, C) pooled log probabilities by models that did not learn from the row.
            labels: (N,) class numbers, none missing.
        """
        log_q = _by_class(log_q)
        seen = self.contradicting(log_q, labels)
        odds, suggested = _scores(self.sharpness * log_q, labels, self.ratios)
        p = 1 - (1 - seen) * (1 - np.mean([expit(odds + offset) for offset in self.offsets], axis=0))
        return logit(np.clip(p, SMALLEST, 1 - 1e-9)) + self.shift, suggested

    def verdict(self, log_q: Floats, labels: Ints) -> Verdict:
        """The judgement of each label; arguments as for `score`."""
        odds, suggested = self.score(log_q, labels)
        p = expit(odds)
        return Verdict(odds, p, suggested, self.estimate(float(p.mean())), log_q, self)

    def contradicting(self, log_q: Floats, labels: Ints) -> Floats:
        """(N,) the posterior of an error that contradicts the model."""
        q = np.exp(normalized(self.sharpness * log_q))
        rates = self.share * self.directions
        wrong = (q * np.take(rates, labels, 1).T).sum(1)
        right = (1 - rates.sum(1)[labels]) * q[np.arange(len(labels)), labels]
        return wrong / np.maximum(wrong + right, SMALLEST)


@dataclass(frozen=True, eq=False)
class Verdict:
    """The judgement of each label.

    Attributes:
        log_odds, p_error: (N,) that the given label is wrong.
        suggested: (N,) the likeliest other class.
        share: the estimated share of wrong labels, with its interval.
        log_q, model: (N, C) the pooled log probabilities, and the fitted noise model.
    """

    log_odds: Floats
    p_error: Floats
    suggested: Ints
    share: Estimate
    log_q: Floats
    model: NoiseModel

    def evidence(self, labels: Ints) -> dict[str, Floats]:
        """As `evidence`, of these labels."""
        return evidence(self.log_q, labels)


def evidence(log_q: Floats, labels: Ints) -> dict[str, Floats]:
    """(N,) each: the margin of the given class over the likeliest other class, and the log loss."""
    rows = np.arange(len(labels))
    own, others = log_q[rows, labels], log_q.copy()
    others[rows, labels] = -np.inf
    return {"margin": own - others.max(1), "loss": -own}


def pool(log_p: Mapping[str, NDArray[np.floating]], labels: Ints) -> tuple[Floats, dict[str, float]]:
    """(N, C) the pooled log probabilities, and the weights of the learners.

    The sum of the weights is the sharpness of the pooled prediction relative to the learners.
    """
    learned = list(log_p.values())
    known = some_rows(labels, learned[0].shape[1])
    given, equal = labels[known], 1 / len(learned)
    own = np.array([one[known, given].sum(dtype=np.float64) for one in learned])
    by_class = [np.ascontiguousarray(one[known].T) for one in learned]

    def loss(w: Floats) -> tuple[float, Floats]:
        total, gradient = 0.0, np.zeros(len(w))
        for rows in _portions(slice(0, len(given))):
            here = np.array([one[:, rows] for one in by_class], np.float64)
            u = np.tensordot(w, here, 1)
            most = u.max(0)
            p = np.exp(u - most)
            norm = p.sum(0)
            p /= norm
            total += float((most + np.log(norm)).sum())
            gradient += here.reshape(len(w), -1) @ p.ravel()
        value = (total - w @ own) / len(given) + 0.5 * RIDGE * ((w - equal) ** 2).sum()
        return float(value), (gradient - own) / len(given) + RIDGE * (w - equal)

    start = np.full(len(learned), equal)
    weights = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * len(learned)).x
    weights = weights if weights.sum() > 0 else start
    return pooled(weights, learned), dict(zip(log_p, weights.tolist(), strict=True))


def best_linear(log_p: Mapping[str, Singles], labels: Ints) -> Singles | None:
    """(N, C) the predictions of the linear model with the smallest log loss, if there is one."""
    known = some_rows(labels, 1)
    linear = [one for name, one in log_p.items() if name.endswith(": logcomp")]
    return max(linear, key=lambda one: float(one[known, labels[known]].sum()), default=None)


def some_rows(labels: Ints, classes: int) -> Ints:
    """Evenly spaced rows with a label, from which weights and the noise model are estimated: at most `MAX_ENTRIES` predictions."""
    rows = np.flatnonzero(labels >= 0)
    return rows[:: max(1, int(np.ceil(len(rows) * classes / MAX_ENTRIES)))]


def pooled(weights: Floats, log_p: Iterable[NDArray[np.floating]]) -> Floats:
    """(N, C) the pooled log probabilities of learners (M, N, C) with these weights (M,)."""
    used = [(w, value) for w, value in zip(weights, log_p, strict=True) if w > 0]
    found = np.empty(used[0][1].shape, order="F")
    for rows in _portions(slice(0, len(found))):
        total: Any = sum(w * _by_class(value[rows]) for w, value in used)
        found[rows] = normalized(total)
    return found


def shares(weights: Mapping[str, float]) -> dict[str, float]:
    """Weights scaled to sum to one."""
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def judge(log_q: Floats, labels: Ints, linear: Floats | None = None, *, directed: bool = True) -> Verdict:
    """Fits the noise model and judges each label.

    Args:
        log_q: (N, C) pooled out-of-fold log probabilities.
        labels: (N,) class numbers, none missing.
        linear: (N, C) those of a linear model, which show directions; by default the pooled ones.
        directed: whether errors may have directions.
    """
    return fit_noise(log_q, labels, linear, directed=directed).verdict(log_q, labels)


def fit_noise(
    log_q: Floats,
    labels: Ints,
    linear: NDArray[np.floating] | None = None,
    *,
    directed: bool = True,
    run: Execution = LOCAL,
) -> NoiseModel:
    """Fits the noise model; arguments as for `judge` (labels may be missing), and where to compute."""
    classes = log_q.shape[1]
    known = some_rows(labels, classes)
    shown = _by_class((log_q if linear is None else linear)[known])
    log_q, labels = _by_class(log_q[known]), labels[known]
    frequency = np.bincount(labels, minlength=classes) / len(labels)
    chosen = _uniform_directions(labels, classes)
    ratios, rates, number = error_directions(shown, labels) if directed else (np.zeros((classes, classes)), chosen, 1.0)
    table = _summed(run, _likelihoods, log_q, labels, chosen)
    if directed and number < np.inf:
        other = rates / float(frequency @ rates.sum(1))
        fit = _summed(run, _likelihoods, log_q, labels, other)
        if fit.max() > table.max() + number:
            table, chosen = fit, other
    profile, sharp, best = table.max(0), SHARPNESS[table.argmax(0)], float(table.max())  # by share
    k = int(np.flatnonzero(profile >= best - MAX_LOG_LIKELIHOOD_GAP).max())
    mean = np.exp(log_q).mean(0)
    written = np.array([float(mean @ _rates(chosen, share).sum(1)) for share in SHARES])
    likely = written[profile > best - 1.92]
    model = NoiseModel(float(SHARES[k]), float(sharp[k]), _rates(chosen, SHARES[k]) / SHARES[k], ratios, np.array([]))
    score, _ = _scores(model.sharpness * log_q, labels, ratios)
    doubt = max(float(expit(score).mean()) - float(model.contradicting(log_q, labels).mean()), 0.0)
    learned = -LEARNED * min(doubt, MAX_DOUBT) * np.log((np.arange(QUANTILES) + 0.5) / QUANTILES)
    by_chance = -float(np.log(np.maximum(frequency[labels], SMALLEST)).mean())
    return replace(
        model,
        offsets=np.array([offset_of_mean(score, mean) for mean in learned]),
        low=max(MIN_SEEN * float(likely.min()) - MARGIN, 0.0),
        high=float(likely.max()) + MAX_LEARNED * doubt,
        by_chance=1 + float(log_q[np.arange(len(labels)), labels].mean()) / max(by_chance, SMALLEST) < CHANCE,
    )


def error_directions(log_p: Floats, labels: Ints) -> tuple[Floats, Floats, float]:
    """(C, C) each: the deviations of the log rates of errors from class t to j, as far as they show, and the rates; then their effective number.

    See the header for the model. Data with fewer rows than directions show none.

    >>> log_p = np.log([[0.9, 0.1], [0.1, 0.9]]).repeat(500, axis=0)
    >>> bool(error_directions(log_p, np.arange(1000) // 500)[0].any())
    False
    """
    (n, classes), off = log_p.shape, ~np.eye(log_p.shape[1], dtype=bool)
    number, none, precision = int(off.sum()), np.zeros(off.shape), DIRECTION_SPREAD**-2
    usual = np.log((np.bincount(labels, minlength=classes) + 1) / (n + classes))

    def rates(level: float, deviations: Floats) -> Floats:
        a = np.exp(usual + level + deviations) * off
        return a / (1 + a.sum(1, keepdims=True))

    def loss(v: Floats) -> tuple[float, Floats]:
        """Minus the log posterior of sharpness, shifts of the classes, level and deviations, and its gradient."""
        sharpness, shifts, deviations = np.exp(v[0]), v[1 : classes + 1], none.copy()
        deviations[off] = v[classes + 2 :] if len(v) > classes + 2 else 0
        a = rates(v[classes + 1], deviations)
        a += np.diag(1 - a.sum(1))
        p = np.exp(normalized(sharpness * log_p + shifts))
        joint = p * np.take(a, labels, 1).T
        likely = np.maximum(joint.sum(1), SMALLEST)
        joint /= likely[:, None]
        counts = np.stack([np.bincount(labels, column, classes) for column in joint.T])
        slope = p - joint
        by_rate = (a * counts.sum(1, keepdims=True) - counts)[off]
        value = -np.log(likely).sum() + 0.5 * (shifts @ shifts) + 0.5 * precision * (deviations**2).sum()
        parts = [[sharpness * (slope * log_p).sum()], slope.sum(0) + shifts, [by_rate.sum()]]
        parts.append((by_rate + precision * deviations[off])[: len(v) - classes - 2])
        return float(value), np.concatenate(parts)

    if number > n:
        return none, off / max(classes - 1, 1), np.inf
    start, bounds = np.zeros(classes + 2), [(-1.0, 2.5), *[(-5.0, 5.0)] * classes, (-12.0, 2.0)]
    start[-1] = np.log(0.05)
    fit = partial(minimize, loss, jac=True, method="L-BFGS-B", options={"ftol": 1e-6})  # far below one unit
    plain = fit(start, bounds=bounds)
    found = fit(np.append(start, np.zeros(number)), bounds=[*bounds, *[(None, None)] * number])
    gain, deviations = float(plain.fun - found.fun), none.copy()
    deviations[off] = found.x[classes + 2 :]
    fitted = rates(found.x[classes + 1], deviations)
    errors = fitted * np.bincount(labels, minlength=classes)[:, None]
    chance = max(float((errors / (errors + precision)).sum()), 1.0)
    return (1 - 1 / gain if gain > chance else 0.0) * (deviations - deviations.T) / 2, fitted, chance


def after_decisions(verdict: Verdict, labels: Ints, given: Ints, decided: NDArray[np.bool_]) -> Verdict:
    """The verdict after people decided on some labels: decided labels are right, and the decisions recalibrate the others.

    The estimated total number of errors stays; corrected errors are no longer in the data.

    Args:
        verdict: on the labels as they were given.
        labels, given: (N,) the present labels, and those before the decisions.
        decided: (N,) which labels were decided.
    """
    corrected = decided & (labels != given)
    shift = recalibration(verdict.log_odds[decided], corrected[decided])
    odds = np.where(decided, logit(SMALLEST), verdict.log_odds + shift)
    p = np.where(decided, 0.0, expit(odds))
    mean, removed = float(p.mean()), float(corrected.mean())
    low, high = min(max(verdict.share.low - removed, 0.0), mean), max(verdict.share.high - removed, mean)
    share = replace(verdict.share, value=mean, low=low, high=high)
    model = replace(verdict.model, shift=shift)
    suggested = np.where(decided & (verdict.suggested == labels), given, verdict.suggested)
    return replace(verdict, log_odds=odds, p_error=p, suggested=suggested, share=share, model=model)


def recalibration(log_odds: Floats, wrong: NDArray[np.bool_]) -> float:
    r"""The shift :math:`a` of log odds that decisions suggest: the mean of its posterior under

    .. math:: P(\text{wrong}) = \tfrac{o}{2} + (1 - o) S(s_i + a), \qquad a \sim N(0, b^2),

    with :math:`o` `SLIPS` and :math:`b` `SHIFT_SPREAD`. The choice of reviewed labels by their log odds causes no bias.

    >>> recalibration(np.full(50, 2.0), np.arange(50) < 25) < -1.5   # half of them were right
    True
    >>> recalibration(np.array([]), np.array([], bool))
    0.0
    """
    log_posterior = -0.5 * (SHIFTS / SHIFT_SPREAD) ** 2
    for odds, is_wrong in zip(log_odds.tolist(), wrong.tolist(), strict=True):
        log_posterior += np.log(SLIPS / 2 + (1 - SLIPS) * expit((odds + SHIFTS) * (1 if is_wrong else -1)))
    weight = np.exp(log_posterior - log_posterior.max())
    return round(float(weight @ SHIFTS / weight.sum()), 6)


def _scores(log_q: Floats, labels: Ints, direction: Floats) -> tuple[Floats, Ints]:
    """(N,) log odds of any other class against the given one, and the likeliest other class."""
    rows = np.arange(len(labels))
    u = log_q + np.take(direction, labels, 1).T
    own = u[rows, labels].copy()
    u[rows, labels] = -np.inf
    return _log_sum(u) - own, u.argmax(1)


def offset_of_mean(score: Floats, mean: float) -> float:
    """The number a for which the probabilities S(a + score) have the given mean."""
    if mean <= SMALLEST:
        return -np.inf
    bound = float(np.abs(score).max()) + 60
    return float(brentq(lambda a: float(expit(score + a).mean()) - mean, -bound, bound, xtol=1e-6))


def expected_errors(log_odds: Floats, p_error: Floats, share: Estimate, first: int) -> Estimate:
    """The number of errors among the first labels of the list, with a 90 % interval.

    The ends of the interval are those of the share of wrong labels: all log odds are shifted until the mean probability is that share. To
    this we add the chance of independent errors.

    Args:
        log_odds, p_error: (N,) of all labels, in any order.
        share: of wrong labels, with its interval.
        first: how many labels of the list are reviewed.

    >>> odds = np.array([4.0, 3.0, -4.0, -5.0])
    >>> told = expected_errors(odds, expit(odds), Estimate(0.49, 0.3, 0.6), 2)
    >>> round(told.value, 2), told.low, told.high
    (1.93, 0.0, 2.0)
    """
    listed = np.argsort(-log_odds, kind="stable")[:first]
    value = float(p_error[listed].sum(dtype=np.float64))

    def end(mean: float, deviations: float) -> float:
        if mean <= SMALLEST:
            return 0.0
        p = expit(log_odds[listed] + offset_of_mean(log_odds, min(mean, 1 - 1e-6)))
        return float(p.sum() + deviations * np.sqrt((p * (1 - p)).sum() + 1))

    low, high = np.floor(max(end(share.low, -1.645), 0.0)), np.ceil(min(end(share.high, 1.645), len(listed)))
    return Estimate(value, min(float(low), value), max(float(high), value))


def _uniform_directions(labels: Ints, classes: int) -> Floats:
    """(C, C) directions in which each class is written as any other given class with equal probability."""
    others = (1 - np.eye(classes)) * np.maximum(np.bincount(labels, minlength=classes) > 0, 1e-3)
    return others / np.maximum(others.sum(1, keepdims=True), SMALLEST)


def _rates(directions: Floats, share: float) -> Floats:
    """(C, C) how often class t is written as j, if this share of all labels is wrong; at most `MAX_WRONG` of a class."""
    rates = share * directions
    return rates * np.minimum(1, MAX_WRONG / np.maximum(rates.sum(1, keepdims=True), SMALLEST))


def _summed(run: Execution, term: Callable[..., Floats], log_q: Floats, *args: Any) -> Floats:
    """The sum of ``term(rows, log_q, *args)`` over equal parts of the rows, one for each worker."""
    ends = np.linspace(0, len(log_q), run.workers + 1).astype(int).tolist()
    total: Floats = sum(run.map(term, [slice(a, b) for a, b in pairwise(ends)], log_q, *args))
    return total


def _portions(rows: slice) -> Iterator[slice]:
    for start in range(rows.start, rows.stop, PORTION):
        yield slice(start, min(start + PORTION, rows.stop))


def _likelihoods(rows: slice, log_q: Floats, labels: Ints, directions: Floats) -> Floats:
    """The log likelihood of these rows by sharpness and share.

    Hundreds of passes over the rows use 32 bits; their sum has 64.
    """
    out = directions.sum(1).astype(np.float32)
    free = SHARES[SHARES * out.max() <= MAX_WRONG].astype(np.float32)
    bounded = [_rates(directions, e).astype(np.float32) for e in SHARES[len(free) :]]
    table = np.zeros((len(SHARPNESS), len(SHARES)))
    for part in _portions(rows):
        given = labels[part]
        below = (log_q[part] - log_q[part].max(1, keepdims=True)).astype(np.float32)
        toward = np.take(directions.astype(np.float32), given, 1).T
        left, place = out[given], np.arange(len(given))
        kept = [((1 - r.sum(1))[given], np.take(r, given, 1).T) for r in bounded]
        for k, t in enumerate(SHARPNESS.astype(np.float32)):
            q = np.exp(t * below)
            q /= q.sum(1, keepdims=True)
            own = q[place, given]
            change = (q * toward).sum(1) - left * own
            likely = [own + e * change for e in free]
            likely += [own * right + (q * wrong).sum(1) for right, wrong in kept]
            table[k] += [float(np.log(one + np.float32(SMALLEST)).sum(dtype=np.float64)) for one in likely]
    return table


def normalized(u: Floats) -> Floats:
    """(N, C) log probabilities of logits."""
    return u - _log_sum(u)[:, None]


def _log_sum(u: Floats) -> Floats:
    """(N,) the logarithm of the sum of exponentials; no row is infinite in all classes."""
    most = u.max(1)
    return most + np.log(np.exp(u - most[:, None]).sum(1))


def _by_class(values: NDArray[np.floating]) -> Floats:
    """(N, C) in 64 bits and Fortran order, in which sums over few classes are sums of long arrays."""
    return np.asarray(values, np.float64, order="F")
