r"""Quantities: out-of-fold residuals, a scale that depends on x, and the probability that a value is wrong.

Learners predict each value from other rows; values that differ in proportions are predicted on a logarithmic scale. With the residual in units of its
usual size at this place, :math:`z_i = r_i / \sigma(x_i)`, right values follow a Student distribution on either side of their median. Wrong values
follow the distribution of the values of other rows, or of this value in another unit, at this place; it is computed from the data. On either side

.. math:: f(z) = (1 - \pi) f_{\text{right}}(z) + \pi \sum_k w_k f_k(z), \qquad
          p_i = 1 - \frac{(1 - \pi) f_{\text{right}}(z_i)}{f(z_i)},

averaged over the posterior of :math:`\pi`, the share of wrong values, and of the tails of right ones. The two sides have their own sizes, tails and shares,
because residuals and errors are skewed. The probability of small errors is underestimated.

The form of the mixture was chosen on draws of `make_friedman1`, `make_friedman2` and `make_regression`, on diabetes, and on simulated tables with heavy
tails, skewed noise, and house prices (seeds 0 and 1). It was verified on draws of `make_friedman3` and of tables with Laplace noise, heteroscedastic noise,
incomes and bills (seed 7), on which nothing was chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import expit, logit, logsumexp
from scipy.stats import t as student

from compensate.auditing.execution import threads_for
from compensate.auditing.findings import SAMPLE_KINDS, Findings, Provenance
from compensate.auditing.labels.base import Judging, LabelKind
from compensate.auditing.labels.classes import Classes
from compensate.auditing.learners import FOLDS, View, assign_folds, forest_size
from compensate.data.dataset import UNLABELED, Dataset, Estimate, Floats, Ints
from compensate.errors import InputError

MIN_ROWS = 20
"""Rows that an audit needs."""

FREEDOMS = (2.0, 3.0, 5.0, 10.0, 30.0)
"""Degrees of freedom of the residuals of right values, from heavy tails to almost normal ones; the likelihood weighs them."""

USUAL_SHARE, SHARE_SPREAD = 0.03, 1.2
"""Median and log deviation of the log-normal prior of the share of wrong values."""

SHARES = np.exp(np.linspace(np.log(0.0005), np.log(0.6), 60))

DRAWS = 25
"""Values of other rows that are drawn for each row to estimate the distribution of wrong values there."""

MIN_EXPLAINED = 0.1
"""With less of the spread explained, right values look like the values of any other row, and up to half of 400 right values would be flagged."""

REACH = 3
"""Learners see values clipped at this multiple of the distance from the median to the 5 % and 95 % quantiles: about five deviations of normal values."""

MAX_DISTANCE = 1e6
"""Values are clipped at this multiple of their usual distance from the median."""

MIN_SKEW = 3.0
"""Ratio of the upper to the lower half of the 5 % to 95 % range above which values differ in proportions."""

INTERVAL_MARGIN = 0.02
"""Added to both ends of the interval of the share."""

ROUNDS = 2
"""Learners see all values first, and then values clipped to usual residuals of the first prediction: a few values in a wrong unit distort the
predictions of their neighbors."""

UNITS = np.array([0.001, 0.01, 0.1, 10.0, 100.0, 1000.0])
"""Factors that correct a value in a wrong unit, or with a misplaced decimal point."""

STEPS, MAX_SHARE = 30, 0.5
"""Steps of expectation and maximization for the types of errors, and the largest share of wrong values there."""

RIDGES = tuple(10.0**e for e in range(-3, 5))


class Quantity(Classes):
    """The quantities of samples, which are ``Dataset.target``."""

    noun: ClassVar[str] = "values"
    page: ClassVar[str | None] = "regression"
    refused: ClassVar[Mapping[str, str]] = {
        "decisions": "decisions are about classes; quantities are audited without them. Leave decisions out.",
        "model": (
            "quantities are judged without a model of your own; give its embeddings as features=... (--features on the command line)."
        ),
        "finetune": "finetune learns classes, and these labels are quantities; leave it out.",
    }

    @classmethod
    def recognize(cls, data: Dataset) -> LabelKind | None:
        return cls() if data.parts is None and data.regression else None

    def describe(self, data: Dataset, name: Callable[[str], str] = str) -> str:
        y = data.target[data.labeled]
        return f"a quantity from {y.min():g} to {y.max():g}" if len(y) else "empty"

    def audit(self, data: Dataset, judging: Judging) -> Findings:
        rows, unlabeled = np.flatnonzero(data.labeled), np.flatnonzero(~data.labeled)
        if len(rows) < MIN_ROWS:
            raise InputError(f"{len(rows)} rows have a value; an audit needs {MIN_ROWS} or more.")
        values = data.target.astype(np.float64)
        infinite = rows[np.isinf(values[rows])]
        if len(infinite):
            raise InputError(f"the value of row {data.index[infinite[0]]} is infinite; correct it, or leave it empty.")
        if np.ptp(values[rows]) == 0:
            raise InputError(
                f"all values are {values[rows][0]:g}; there is nothing to compare. Check the label column."
            )
        progress = judging.progress or (lambda *_: None)
        views = judging.features(data)
        folds = assign_folds(np.where(data.labeled, 0, UNLABELED), views.keys, folds=FOLDS, seed=judging.seed)
        progress("fitting", 0, 1)
        with threads_for(max(view.work(FOLDS, 1) for view in views.views)):
            judged = judge_quantities(views.views, values, folds, FOLDS, seed=judging.seed)
        progress("fitting", 1, 1)
        whole, about = not len(unlabeled), dict[str, Any](views.about)
        return Findings(
            classes=(),
            index=data.index[rows],
            given=values[rows],
            suggested=judged.suggested[rows],
            log_odds=judged.log_odds[rows],
            p_error=judged.p_error[rows],
            evidence={"residual": np.abs(values - judged.predicted)[rows], "usual residual": judged.scale[rows]},
            noise_rate=judged.share,
            ids=() if data.ids is None else tuple(str(i) for i in data.ids[rows]),
            unlabeled={} if whole else {
                "index": data.index[unlabeled], "suggested": judged.predicted[unlabeled],
                "probability": np.full(len(unlabeled), np.nan),
            },
            provenance=Provenance(
                **about, seed=judging.seed, folds=FOLDS, agreement=max(judged.explained, 0.0), views=judged.weights,
                by_chance=judged.explained < MIN_EXPLAINED, shown=SAMPLE_KINDS.get(data.source.kind, "embedding"),
            ),
            notes=views.notes,
            data=data if whole else data.subset(rows),
            vectors=views.shown if whole or views.shown is None else views.shown[rows],
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class JudgedQuantities:
    """The verdict on values; see `judge_quantities`."""

    predicted: Floats
    suggested: Floats
    scale: Floats
    log_odds: Floats
    p_error: Floats
    share: Estimate
    weights: dict[str, float]
    explained: float


def judge_quantities(
    views: tuple[View, ...], values: Floats, folds: Ints, num_folds: int, *, seed: int = 0
) -> JudgedQuantities:
    """Judges each value.

    Args:
        views: features of the rows.
        values: (N,) quantities, NaN where a row has none; such rows are predicted only.
        folds: (N,) the fold in which each row is held out.
    """
    known = np.isfinite(values)
    smallest = in_proportions(values[known])
    with np.errstate(over="ignore"):  # infinity is clipped below
        measured = values if smallest is None else np.arcsinh(values / smallest)
    center = float(np.median(measured[known]))
    unit = float(1.4826 * np.median(np.abs(measured[known] - center))) or float(measured[known].std()) or 1.0
    # Beyond some distance a value is wrong anyway; its square has to be finite.
    y = np.where(known, np.clip((measured - center) / unit, -MAX_DISTANCE, MAX_DISTANCE), 0.0)
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
    middle = float(np.median((residual / scale)[known]))  # learners predict the mean, which differs for skewed values
    z = (residual / scale)[known] - middle
    rng = np.random.default_rng(seed)
    others = rng.choice(y[known], size=(len(y), DRAWS))
    wrong = ((others - predicted[:, None]) / scale[:, None] - middle)[known[:, None] & (others != y[:, None])]
    moved, wider = _in_other_units(values[known], smallest)
    slips = (np.clip((moved - center) / unit, -MAX_DISTANCE, MAX_DISTANCE) - predicted[known]) / scale[known] - middle
    log_odds, share, slipped = _mixture(z, (wrong, slips.ravel()), slips, wider)
    all_odds = np.full(len(y), np.nan)
    all_odds[known] = log_odds
    spread = float(np.median(np.abs(y[known] - np.median(y[known]))))
    explained = 1 - float(np.median(np.abs(residual[known]))) / max(spread, 1e-9)
    p = 1 / (1 + np.exp(-np.clip(all_odds, -50, 50)))
    if explained < MIN_EXPLAINED:
        p = np.minimum(p, 0.5)
        share = Estimate(float(p[known].mean()), 0.0, 1.0)
    predicted, scale = predicted * unit + center, scale * unit
    if smallest is not None:
        predicted = smallest * np.sinh(predicted)
        scale = scale * np.hypot(smallest, predicted)
    suggested = np.array([float(f"{value:.6g}") for value in predicted])  # no model is more precise
    in_unit = np.flatnonzero(known)[slipped >= 0]
    suggested[in_unit] = values[in_unit] * UNITS[slipped[slipped >= 0]]
    return JudgedQuantities(predicted, suggested, scale, all_odds, p, share, weights, explained)


def _in_other_units(values: Floats, smallest: float | None) -> tuple[Floats, Floats]:
    """(U, N) the values in other units on the scale of comparison, and the log derivative of that change of scale."""
    with np.errstate(over="ignore"):
        moved = UNITS[:, None] * values
        if smallest is None:
            return moved, np.log(UNITS)[:, None] + np.zeros_like(moved)
        size = np.clip(values / smallest, -(MAX_DISTANCE**9), MAX_DISTANCE**9)
    moved = UNITS[:, None] * size
    return np.arcsinh(moved), np.log(UNITS[:, None] * np.hypot(1, size) / np.hypot(1, moved))


def in_proportions(values: Floats) -> float | None:
    """For values that differ in proportions, as prices and incomes do, the size below which they differ in amounts; else None.

    Such values are nearly all positive and skewed upward. They are compared on the scale arsinh(v / size), which is logarithmic and defined at zero:
    a wrong unit moves large values as far as small ones.

    >>> in_proportions(np.arange(100.0)) is None
    True
    >>> in_proportions(np.exp(np.linspace(0, 5, 100)))
    0.128...
    """
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
    return float(low / 10) if low > 0 and high - middle > MIN_SKEW * (middle - low) else None


def _learners(
    view: View, y: Floats, known: NDArray[np.bool_], folds: Ints, num_folds: int, seed: int
) -> dict[str, Floats]:
    """(N,) out-of-fold predictions of each learner that suits the view."""
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
    return {name: _cross_predict(make, x, y, known, folds, num_folds) for name, (x, make) in makers.items()}


def _cross_predict(
    make: Callable[[], Any], x: Any, y: Floats, known: NDArray[np.bool_], folds: Ints, num_folds: int
) -> Floats:
    """(N,) out-of-fold predictions of a scikit-learn model."""
    predicted = np.empty(len(y))
    for fold in range(num_folds):
        rest, held = known & (folds != fold), folds == fold
        if held.any():
            predicted[held] = make().fit(x[rest], y[rest]).predict(x[held])
    return predicted


def _combined(guesses: dict[str, Floats], y: Floats, known: NDArray[np.bool_]) -> tuple[Floats, dict[str, float]]:
    """The weighted sum of predictions that fits the given values best, with large residuals clipped."""
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
    """(N,) the usual size of a residual at each place, out of fold: the geometric mean of a forest's prediction and a constant."""
    size = np.log(np.abs(residual) + 1e-3 + 0.05 * np.median(np.abs(residual[known])))
    overall = float(np.median(size[known]))
    trees = next((view.trees for view in views if view.trees is not None), None)
    if trees is None or known.sum() < 100:
        return np.exp(np.full(len(residual), overall))
    from sklearn.ensemble import ExtraTreesRegressor

    forest = partial(ExtraTreesRegressor, 100, min_samples_leaf=max(10, int(known.sum() / 30)), random_state=seed)
    predicted = _cross_predict(forest, trees, size, known, folds, num_folds)
    return np.exp(overall + 0.5 * (predicted - np.median(predicted[known])))


def _mixture(z: Floats, kinds: tuple[Floats, Floats], slips: Floats, wider: Floats) -> tuple[Floats, Estimate, Ints]:
    """(N,) log odds that each value is wrong, the share of wrong values, and (N,) the number of the correcting unit in `UNITS`, -1 for none.

    Args:
        z: (N,) residuals in units of their usual size; their median is 0.
        kinds: residuals of wrong values: values of other rows, and values in another unit.
        slips: (U, N) the residual of each value in other units.
        wider: (U, N) the log derivative of the change of unit.
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
    # Errors within the usual residuals are not visible: their number may equal the visible ones.
    low, high = max(0.5 * low - INTERVAL_MARGIN, 0.0), min(2 * high + INTERVAL_MARGIN, 1.0)
    return logit(np.clip(p, 1e-9, 1 - 1e-9)), Estimate(share, min(low, share), max(high, share)), slipped


class _Side(NamedTuple):
    """The mixture for residuals of one sign.

    Attributes:
        p: (N,) the probability that each value is wrong.
        low, high: the 90 % interval of the share of wrong values.
        freedom, unit: of the most likely distribution of right values.
        log_other: (N,) the log density of values of other rows, weighted by their share of wrong values.
        slipped: the share of values in another unit among wrong values.
    """

    p: Floats
    low: float
    high: float
    freedom: float
    unit: float
    log_other: Floats
    slipped: float


def _one_side(z: Floats, kinds: list[Floats]) -> _Side:
    """Fits the mixture of the module's header to residuals of one sign."""
    most = max(float(np.arcsinh(values).max(initial=0)) for values in (z, *kinds))
    edges = np.linspace(0, most + 1e-9, 41)
    log_kinds = np.stack([_log_density(z, values, edges) for values in kinds])
    prior = -0.5 * ((np.log(SHARES) - np.log(USUAL_SHARE)) / SHARE_SPREAD) ** 2
    # The median gives the scale for any tails, and a few wrong values hardly move it.
    middle = max(float(np.median(z)), 1e-9)
    fits, odds, parameters = [], [], []
    for freedom in FREEDOMS:
        unit = middle / student.ppf(0.75, freedom)
        log_right = student.logpdf(z / unit, freedom) - np.log(unit)
        log_parts = np.log(_kinds(log_right, log_kinds))
        log_wrong = logsumexp(log_kinds + log_parts[:, None], 0)
        each = np.logaddexp(np.log1p(-SHARES)[:, None] + log_right, np.log(SHARES)[:, None] + log_wrong)
        fits.append(each.sum(1) + prior)
        odds.append(log_wrong - log_right)
        parameters.append((freedom, unit, log_kinds[0] + log_parts[0], float(np.exp(log_parts[1]))))
    weight = np.exp(np.stack(fits) - logsumexp(fits))
    p = np.sum([w @ expit(o + logit(SHARES)[:, None]) for w, o in zip(weight, odds, strict=True)], 0)
    mass = np.cumsum(weight.sum(0))
    low, high = (float(SHARES[min(int(np.searchsorted(mass, m)), len(SHARES) - 1)]) for m in (0.05, 0.95))
    return _Side(p, low, high, *parameters[int(weight.sum(1).argmax())])


def _log_density(z: Floats, values: Floats, edges: Floats) -> Floats:
    """(N,) the log density at z of a histogram of values; one side has half of the mass."""
    counts, _ = np.histogram(np.arcsinh(values), edges)
    density = (counts + 0.5) / (counts.sum() + 0.5 * len(counts)) / np.diff(edges)
    place = np.clip(np.searchsorted(edges, np.arcsinh(z), side="right") - 1, 0, len(density) - 1)
    return np.asarray(np.log(density[place] / 2) - 0.5 * np.log1p(z**2))


def _kinds(log_right: Floats, log_wrong: Floats) -> Floats:
    """(K,) the share of each kind of error, by expectation and maximization with one pseudo-count each."""
    parts, share = np.full(len(log_wrong), 1 / len(log_wrong)), USUAL_SHARE
    for _ in range(STEPS):
        joint = log_wrong + np.log(parts * share)[:, None]
        each = np.exp(joint - np.logaddexp(logsumexp(joint, 0), np.log1p(-share) + log_right)).sum(1) + 1
        parts, share = each / each.sum(), min(float(each.sum()) / len(log_right), MAX_SHARE)
    return parts
