r"""Quantities as labels: out-of-fold residuals, a scale that depends on x, and the probability that a value is wrong.

Learners predict each value from rows that do not include it; values that differ in proportions, by their logarithm.
With the residual in units of its usual size at this place,
:math:`z_i = r_i / \sigma(x_i)`, right values follow a Student distribution and wrong ones the distribution that values of
other rows have in this place, which is known: it is computed, not assumed. Then

.. math:: f(z) = (1 - \pi) f_{\text{right}}(z) + \pi f_{\text{wrong}}(z), \qquad
          p_i = \frac{\pi f_{\text{wrong}}(z_i)}{f(z_i)},

averaged over the posterior of :math:`\pi`, the share of wrong values. Errors that are small beside what values differ by have smaller
probabilities than they deserve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import logit, logsumexp
from scipy.stats import t as student

from compensate.auditing.arrays import Floats, Ints
from compensate.auditing.learners import View, forest_size
from compensate.auditing.page.model import Estimate

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

RIDGES = tuple(10.0**e for e in range(-3, 5))


@dataclass(frozen=True, eq=False)
class Quantities:
    """What is known of each value: see `judge_quantities`."""

    predicted: Floats
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
    guesses: dict[str, Floats] = {}
    for view in views:
        for name, guess in _learners(view, y, known, folds, num_folds, seed).items():
            guesses[f"{view.name}: {name}"] = guess
    predicted, weights = _combined(guesses, y, known)
    residual = y - predicted
    scale = _scale(views, residual, known, folds, num_folds, seed)
    z = residual / scale
    z_known = z[known]
    scale = scale * max(1.4826 * float(np.median(np.abs(z_known))), 1e-9)
    z = residual / scale
    rng = np.random.default_rng(seed)
    others = rng.choice(y[known], size=(len(y), OTHERS))
    wrong = ((others - predicted[:, None]) / scale[:, None])[known[:, None] & (others != y[:, None])]
    log_odds, share = _mixture(z[known], wrong)
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
    return Quantities(predicted, scale, found, p, share, weights, explained)


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
    # A wrong value of any size pulls no harder than one at the edge of what is usual.
    least, low, middle, high, most = np.quantile(y[known], [0.005, 0.05, 0.5, 0.95, 0.995])
    bounded = np.clip(y, max(least, middle - REACH * (middle - low)), min(most, middle + REACH * (high - middle)))
    for name, (x, make) in makers.items():
        guess = np.empty(len(y))
        for fold in range(num_folds):
            rest, held = known & (folds != fold), folds == fold
            if held.any():
                guess[held] = make().fit(x[rest], bounded[rest]).predict(x[held])
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


def _mixture(z: Floats, wrong: Floats) -> tuple[Floats, Estimate]:
    """Log odds (N,) that each value is wrong, and the share of wrong values, by the mixture of the module's header."""
    edges = np.linspace(0, max(float(np.arcsinh(np.abs(wrong)).max()), float(np.arcsinh(np.abs(z)).max())) + 1e-9, 41)
    counts, _ = np.histogram(np.arcsinh(np.abs(wrong)), edges)
    density = (counts + 0.5) / (counts.sum() + 0.5 * len(counts)) / np.diff(edges)
    place = np.clip(np.searchsorted(edges, np.arcsinh(np.abs(z)), side="right") - 1, 0, len(density) - 1)
    log_wrong = np.log(density[place] / 2) - 0.5 * np.log1p(z**2)
    prior = -0.5 * ((np.log(SHARES) - np.log(USUAL_SHARE)) / SHARE_SPREAD) ** 2
    log_posterior, wrongs = [], []
    for freedom in FREEDOMS:
        # The median of residuals knows their size whatever their tails; a few wrong values hardly move it.
        unit = max(float(np.median(np.abs(z))) / student.ppf(0.75, freedom), 1e-9)
        log_right = student.logpdf(z / unit, freedom) - np.log(unit)
        each = np.logaddexp(np.log1p(-SHARES)[:, None] + log_right, np.log(SHARES)[:, None] + log_wrong)
        log_posterior.append(each.sum(1) + prior)
        wrongs.append(np.exp(np.log(SHARES)[:, None] + log_wrong - each))
    table = np.stack(log_posterior)
    weight = np.exp(table - logsumexp(table))
    p = np.einsum("fs,fsn->n", weight, np.stack(wrongs))
    posterior = weight.sum(0)
    mass = np.cumsum(posterior)
    low, high = (float(SHARES[min(int(np.searchsorted(mass, m)), len(SHARES) - 1)]) for m in (0.05, 0.95))
    share = float(p.mean())
    # Errors that lie within what is usual are in nobody's residuals: as many again may be hidden.
    low, high = max(0.5 * low - SMALL, 0.0), min(2 * high + SMALL, 1.0)
    return logit(np.clip(p, 1e-9, 1 - 1e-9)), Estimate(share, min(low, share), max(high, share))
