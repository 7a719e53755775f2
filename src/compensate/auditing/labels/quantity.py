r"""Quantities as labels: out-of-fold residuals, a scale that depends on x, and the probability that a value is wrong.

Learners predict each value from rows that do not include it; values that differ in proportions, by their logarithm.
With the residual in units of its usual size at this place,
:math:`z_i = r_i / \sigma(x_i)`, right values follow a Student distribution on either side of their median. Wrong ones follow the
distribution that values of other rows, or this value in another unit, have in this place, which is known: it is computed, not assumed. On either side

.. math:: f(z) = (1 - \pi) f_{\text{right}}(z) + \pi \sum_k w_k f_k(z), \qquad
          p_i = 1 - \frac{(1 - \pi) f_{\text{right}}(z_i)}{f(z_i)},

averaged over the posterior of :math:`\pi`, the share of wrong values, and of the tails of right ones. The sides have sizes, tails and shares of their own:
residuals lean to one side, and so do errors. Errors that are small compared with what values differ by have smaller probabilities than they deserve.

The form of the mixture was chosen on draws of `make_friedman1`, `make_friedman2` and `make_regression`, on diabetes, and on drawn tables with heavy tails,
with noise that leans to one side, and of prices of houses (seeds 0 and 1). It was verified on draws of `make_friedman3` and of tables with Laplace noise, noise
that depends on the place, incomes and bills (seed 7), on which nothing was chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import expit, logit, logsumexp
from scipy.stats import t as student

from compensate.auditing.learners import View, forest_size
from compensate.data.dataset import Estimate, Floats, Ints

FREEDOMS = (2.0, 3.0, 5.0, 10.0, 30.0)
"""Degrees of freedom of the residuals of right values, from heavy tails to almost normal ones; the likelihood weighs them."""

USUAL_SHARE, SHARE_SPREAD = 0.03, 1.2
"""A priori the logarithm of the share of wrong values is normal around this one."""

SHARES = np.exp(np.linspace(np.log(0.0005), np.log(0.6), 60))

OTHERS = 25
"""Values of other rows by which each row shows what a wrong value looks like there."""

CHANCE = 0.1
"""Values of which less than this part of the spread is explained look like those of any other row, right or wrong: without any
signal, up to half of 400 right values would be flagged."""

REACH = 3
"""Learners see no value farther from the median than this many times the 5 % and 95 % quantiles: about five deviations of
normal values."""

FARTHEST = 1e6
"""Values are cut at this many times their usual distance from the median."""

SKEWED = 3.0
"""The upper half of values that differ in proportions reaches so many times as far as the lower half, from the 5 % to the 95 % quantile."""

SMALL = 0.02
"""Added to both ends of the interval of the share."""

ROUNDS = 2
"""Learners see all values first, and then none farther from the first prediction than usual residuals are: a few values in a wrong unit bend
what is learned of their neighbors."""

UNITS = np.array([0.001, 0.01, 0.1, 10.0, 100.0, 1000.0])
"""What a value in a wrong unit, or with a slip of the decimal point, is multiplied by to be right."""

STEPS, MOST = 30, 0.5
"""Steps by which the kinds of wrong values are weighed, and the largest share of wrong values there."""

RIDGES = tuple(10.0**e for e in range(-3, 5))


@dataclass(frozen=True, eq=False)
class Quantities:
    """What is known of each value: see `judge_quantities`."""

    predicted: Floats
    suggested: Floats
    scale: Floats
    log_odds: Floats
    p_error: Floats
    share: Estimate
    weights: dict[str, float]
    explained: float

    @property
    def by_chance(self) -> bool:
        """Whether values are predicted hardly better than by their median."""
        return self.explained < CHANCE


def judge_quantities(
    views: tuple[View, ...], values: Floats, folds: Ints, num_folds: int, *, seed: int = 0
) -> Quantities:
    """How likely each value is wrong.

    Args:
        views: features of the rows.
        values: (N,) quantities, NaN where there is none; those rows are predicted only.
        folds: (N,) the fold in which each row is held out.
    """
    known = np.isfinite(values)
    smallest = in_proportions(values[known])
    with np.errstate(over="ignore"):  # infinity is cut off below
        measured = values if smallest is None else np.arcsinh(values / smallest)
    center = float(np.median(measured[known]))
    unit = float(1.4826 * np.median(np.abs(measured[known] - center))) or float(measured[known].std()) or 1.0
    # How far beyond all others a value lies makes no difference to the verdict, and its square has to be finite.
    y = np.where(known, np.clip((measured - center) / unit, -FARTHEST, FARTHEST), 0.0)
    # Learners see no value far beyond the usual ones, and in the second round none far from what the first one predicted.
    least, low, middle, high, most = np.quantile(y[known], [0.005, 0.05, 0.5, 0.95, 0.995])
    bounds = max(least, middle - REACH * (middle - low)), min(most, middle + REACH * (high - middle))
    for _ in range(ROUNDS):
        guesses: dict[str, Floats] = {}
        for view in views:
            for name, guess in _learners(view, np.clip(y, *bounds), known, folds, num_folds, seed).items():
                guesses[f"{view.name}: {name}"] = guess
        predicted, weights = _combined(guesses, y, known)
        residual = y - predicted
        scale = _scale(views, residual, known, folds, num_folds, seed)
        scale = scale * max(1.4826 * float(np.median(np.abs(residual / scale)[known])), 1e-9)
        bounds = predicted - REACH * scale, predicted + REACH * scale
    middle = float(np.median((residual / scale)[known]))  # of values that lean to one side, learners know the mean
    z = (residual / scale)[known] - middle
    rng = np.random.default_rng(seed)
    others = rng.choice(y[known], size=(len(y), OTHERS))
    wrong = ((others - predicted[:, None]) / scale[:, None] - middle)[known[:, None] & (others != y[:, None])]
    moved, wider = _in_other_units(values[known], smallest)
    slips = (np.clip((moved - center) / unit, -FARTHEST, FARTHEST) - predicted[known]) / scale[known] - middle
    log_odds, share, slipped = _mixture(z, (wrong, slips.ravel()), slips, wider)
    found = np.full(len(y), np.nan)
    found[known] = log_odds
    spread = float(np.median(np.abs(y[known] - np.median(y[known]))))
    explained = 1 - float(np.median(np.abs(residual[known]))) / max(spread, 1e-9)
    p = 1 / (1 + np.exp(-np.clip(found, -50, 50)))
    if explained < CHANCE:
        p = np.minimum(p, 0.5)
        share = Estimate(float(p[known].mean()), 0.0, 1.0)
    predicted, scale = predicted * unit + center, scale * unit
    if smallest is not None:
        predicted = smallest * np.sinh(predicted)
        scale = scale * np.hypot(smallest, predicted)
    suggested = np.array([float(f"{value:.6g}") for value in predicted])  # no model knows more digits
    in_unit = np.flatnonzero(known)[slipped >= 0]
    suggested[in_unit] = values[in_unit] * UNITS[slipped[slipped >= 0]]
    return Quantities(predicted, suggested, scale, found, p, share, weights, explained)


def _in_other_units(values: Floats, smallest: float | None) -> tuple[Floats, Floats]:
    """(U, N) the values in other units, on the scale on which they are compared, and the logarithm of how much wider they lie there."""
    with np.errstate(over="ignore"):
        moved = UNITS[:, None] * values
        if smallest is None:
            return moved, np.log(UNITS)[:, None] + np.zeros_like(moved)
        size = np.clip(values / smallest, -(FARTHEST**9), FARTHEST**9)
    moved = UNITS[:, None] * size
    return np.arcsinh(moved), np.log(UNITS[:, None] * np.hypot(1, size) / np.hypot(1, moved))


def in_proportions(values: Floats) -> float | None:
    """If values differ in proportions, as prices and incomes do, the size below which they differ in amounts; else None.

    Such values are positive but for a few, and the larger half of them reaches farther. They are compared on the scale arsinh(v / size), which is
    that of the logarithm, and has a place for zeros: a wrong unit or a zero is as far from its place for large values as for small ones.

    >>> in_proportions(np.arange(100.0)) is None
    True
    >>> in_proportions(np.exp(np.linspace(0, 5, 100)))
    0.128...
    """
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
    return float(low / 10) if low > 0 and high - middle > SKEWED * (middle - low) else None


def _learners(
    view: View, y: Floats, known: NDArray[np.bool_], folds: Ints, num_folds: int, seed: int
) -> dict[str, Floats]:
    """Out-of-fold predictions (N,) of each learner that suits the view."""
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.linear_model import Ridge, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    makers: dict[str, tuple[Any, Any]] = {}
    if sp.issparse(view.x):
        makers["ridge"] = (view.x, lambda: Ridge(1.0, solver="sparse_cg"))
    else:
        makers["ridge"] = (view.x, lambda: make_pipeline(StandardScaler(), RidgeCV(RIDGES)))
    if view.trees is not None:
        makers["trees"] = (view.trees, lambda: ExtraTreesRegressor(**forest_size(len(y)), random_state=seed))
    elif not sp.issparse(view.x):
        from sklearn.neighbors import KNeighborsRegressor

        makers["neighbors"] = (
            view.x, lambda: make_pipeline(StandardScaler(), KNeighborsRegressor(min(20, max(1, len(y) // 10))))
        )  # fmt: skip
    found: dict[str, Floats] = {}
    for name, (x, make) in makers.items():
        guess = np.empty(len(y))
        for fold in range(num_folds):
            rest, held = known & (folds != fold), folds == fold
            if held.any():
                guess[held] = make().fit(x[rest], y[rest]).predict(x[held])
        found[name] = guess
    return found


def _combined(guesses: dict[str, Floats], y: Floats, known: NDArray[np.bool_]) -> tuple[Floats, dict[str, float]]:
    """The weighted sum of predictions that fits the given values best; large residuals count as moderate ones."""
    matrix = np.stack(list(guesses.values()), 1)
    target = y.copy()
    for _ in range(3):
        w, _ = nnls(matrix[known], target[known])
        predicted = matrix @ w
        residual = y - predicted
        bound = 3 * 1.4826 * float(np.median(np.abs(residual[known])))
        target = predicted + np.clip(residual, -bound, bound)
    if not w.any():
        return np.zeros(len(y)), dict.fromkeys(guesses, 0.0)
    return predicted, dict(zip(guesses, (w / w.sum()).tolist(), strict=True))


def _scale(
    views: tuple[View, ...], residual: Floats, known: NDArray[np.bool_], folds: Ints, num_folds: int, seed: int
) -> Floats:
    """(N,) the usual size of a residual at each place, out of fold: half of it by trees, half of it the same for all."""
    size = np.log(np.abs(residual) + 1e-3 + 0.05 * np.median(np.abs(residual[known])))
    overall = float(np.median(size[known]))
    found = np.full(len(residual), overall)
    trees = next((view.trees for view in views if view.trees is not None), None)
    if trees is not None and known.sum() >= 100:
        from sklearn.ensemble import ExtraTreesRegressor

        leaf = max(10, int(known.sum() / 30))
        for fold in range(num_folds):
            rest, held = known & (folds != fold), folds == fold
            if held.any():
                forest = ExtraTreesRegressor(100, min_samples_leaf=leaf, random_state=seed)
                found[held] = forest.fit(trees[rest], size[rest]).predict(trees[held])
        found = overall + 0.5 * (found - np.median(found[known]))
    return np.exp(found)


def _mixture(z: Floats, kinds: tuple[Floats, Floats], slips: Floats, wider: Floats) -> tuple[Floats, Estimate, Ints]:
    """Log odds (N,) that each value is wrong, the share of wrong values, and (N,) in which of `UNITS` a wrong value is right, -1 for none.

    Args:
        z: (N,) residuals in units of their usual size; their median is 0.
        kinds: residuals that wrong values would have: those of other rows, and those in another unit.
        slips: (U, N) the residual that each value would have in other units.
        wider: (U, N) by how much, as a logarithm, values lie farther apart there.
    """
    p, low, high = np.zeros(len(z)), 0.0, 0.0
    log_slips, log_other = np.full(slips.shape, -np.inf), np.zeros(len(z))
    for sign in (1, -1):
        rows = z >= 0 if sign > 0 else z < 0
        if not rows.any():
            continue
        side = _one_side(np.abs(z[rows]), [np.abs(values[sign * values >= 0]) for values in kinds])
        p[rows], part = side.p, float(rows.mean())
        low, high = low + part * side.low, high + part * side.high
        there = sign * slips >= 0
        log_slips[there] = student.logpdf(np.abs(slips[there]) / side.unit, side.freedom) - np.log(side.unit)
        log_other[rows] = side.log_other - np.log(side.slipped)
    log_slips += wider - np.log(len(slips))
    likely = np.exp(log_slips - logsumexp([*log_slips, log_other], 0))
    slipped = np.where(likely.max(0) > 0.5, likely.argmax(0), -1)
    share = float(p.mean())
    # Errors that lie within what is usual are in nobody's residuals: as many again may be hidden.
    low, high = max(0.5 * low - SMALL, 0.0), min(2 * high + SMALL, 1.0)
    return logit(np.clip(p, 1e-9, 1 - 1e-9)), Estimate(share, min(low, share), max(high, share)), slipped


class _Side(NamedTuple):
    """What is known of the values on one side of what was predicted.

    Attributes:
        p: (N,) that each is wrong.
        low, high: of the share of wrong ones, at 90 %.
        freedom, unit: the likeliest distribution of right values.
        log_other: (N,) the log density of wrong values of other rows, times their part of all wrong ones.
        slipped: the part of wrong values that are in another unit.
    """

    p: Floats
    low: float
    high: float
    freedom: float
    unit: float
    log_other: Floats
    slipped: float


def _one_side(z: Floats, kinds: list[Floats]) -> _Side:
    """The mixture of the module's header for residuals of one sign."""
    most = max(float(np.arcsinh(values).max(initial=0)) for values in (z, *kinds))
    edges = np.linspace(0, most + 1e-9, 41)
    log_kinds = np.stack([_log_density(z, values, edges) for values in kinds])
    prior = -0.5 * ((np.log(SHARES) - np.log(USUAL_SHARE)) / SHARE_SPREAD) ** 2
    # The median of residuals knows their size whatever their tails; a few wrong values hardly move it.
    middle = max(float(np.median(z)), 1e-9)
    fits, odds, found = [], [], []
    for freedom in FREEDOMS:
        unit = middle / student.ppf(0.75, freedom)
        log_right = student.logpdf(z / unit, freedom) - np.log(unit)
        log_parts = np.log(_kinds(log_right, log_kinds))
        log_wrong = logsumexp(log_kinds + log_parts[:, None], 0)
        each = np.logaddexp(np.log1p(-SHARES)[:, None] + log_right, np.log(SHARES)[:, None] + log_wrong)
        fits.append(each.sum(1) + prior)
        odds.append(log_wrong - log_right)
        found.append((freedom, unit, log_kinds[0] + log_parts[0], float(np.exp(log_parts[1]))))
    weight = np.exp(np.stack(fits) - logsumexp(fits))
    p = np.sum([w @ expit(o + logit(SHARES)[:, None]) for w, o in zip(weight, odds, strict=True)], 0)
    mass = np.cumsum(weight.sum(0))
    low, high = (float(SHARES[min(int(np.searchsorted(mass, m)), len(SHARES) - 1)]) for m in (0.05, 0.95))
    return _Side(p, low, high, *found[int(weight.sum(1).argmax())])


def _log_density(z: Floats, values: Floats, edges: Floats) -> Floats:
    """(N,) the logarithm of the density of values at z, by a histogram; of one side, half of the mass."""
    counts, _ = np.histogram(np.arcsinh(values), edges)
    density = (counts + 0.5) / (counts.sum() + 0.5 * len(counts)) / np.diff(edges)
    place = np.clip(np.searchsorted(edges, np.arcsinh(z), side="right") - 1, 0, len(density) - 1)
    return np.asarray(np.log(density[place] / 2) - 0.5 * np.log1p(z**2))


def _kinds(log_right: Floats, log_wrong: Floats) -> Floats:
    """(K,) the share of each kind among wrong values, by expectation and maximization; a value of each kind is taken for granted."""
    parts, share = np.full(len(log_wrong), 1 / len(log_wrong)), USUAL_SHARE
    for _ in range(STEPS):
        joint = log_wrong + np.log(parts * share)[:, None]
        each = np.exp(joint - np.logaddexp(logsumexp(joint, 0), np.log1p(-share) + log_right)).sum(1) + 1
        parts, share = each / each.sum(), min(float(each.sum()) / len(log_right), MOST)
    return parts
