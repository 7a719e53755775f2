r"""Quantities: out-of-fold residuals, a scale that depends on x, and the probability that a value is wrong.

Learners predict each value from other rows; values that differ in proportions are predicted on a logarithmic scale. With the residual in units of its
usual size at this place, :math:`z_i = r_i / \sigma(x_i)`, right values follow a Student distribution on either side of their median. Wrong values
follow the distribution of the values of other rows, or of this value in another unit, at this place; it is computed from the data. On either side

.. math:: f(z) = (1 - \pi) f_{\text{right}}(z) + \pi \sum_k w_k f_k(z), \qquad
          p_i = 1 - \frac{(1 - \pi) f_{\text{right}}(z_i)}{f(z_i)},

averaged over the posterior of :math:`\pi`, the share of wrong values, and of the tails of right ones. The two sides have their own sizes, tails and shares,
because residuals and errors are skewed. The probability of small errors is underestimated.

The mixture was chosen on draws of `make_friedman1`, `make_friedman2` and `make_regression`, on diabetes, and on simulated tables (seeds 0 and 1), and
verified on draws of `make_friedman3` and of tables with Laplace noise, heteroscedastic noise, incomes and bills (seed 7).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import expit, logit, logsumexp
from scipy.stats import t as student

from compensate.auditing.execution import threads_for
from compensate.auditing.features import FeatureViews
from compensate.auditing.findings import SAMPLE_KINDS, Findings, Provenance
from compensate.auditing.labels.base import Classes, Judging, LabelKind, NewRows, Scored
from compensate.auditing.learners import FOLDS, LEARNERS, Forest, View, assign_folds, forest_size
from compensate.auditing.noise_model import NoiseModel
from compensate.data.dataset import UNLABELED, Dataset, Estimate, Floats, Ints
from compensate.errors import InputError

MIN_ROWS = 20  # rows that an audit needs
MIN_EXPLAINED = 0.1  # explained spread; with less, up to half of 400 right values would be flagged
MIN_SKEW = 3.0  # ratio of the upper to the lower half of the 5 % to 95 % range above which values differ in proportions
ROUNDS = 2  # learners see all values, then clipped ones: values in a wrong unit distort the predictions of neighbors
REACH = 3  # values are clipped at this multiple of the distance from the median to the 5 % and 95 % quantiles
MAX_DISTANCE = 1e6  # values are clipped at this multiple of their usual distance from the median
RIDGES = tuple(10.0**e for e in range(-3, 5))
DRAWS = 25  # values of other rows that are drawn for each row to estimate the distribution of wrong values there
UNITS = np.array([0.001, 0.01, 0.1, 10.0, 100.0, 1000.0])  # factors that correct a wrong unit or decimal point
FREEDOMS = (2.0, 3.0, 5.0, 10.0, 30.0)  # degrees of freedom of right residuals; the likelihood weighs them
SHARES = np.exp(np.linspace(np.log(0.0005), np.log(0.6), 60))  # candidates for the share of wrong values
USUAL_SHARE, SHARE_SPREAD = 0.03, 1.2  # median and log deviation of the log-normal prior of the share
KNOTS = 200  # residuals on either side at which the odds of new values are computed; others are interpolated
SCALE = "usual residual"  # the name of the forest that predicts it
STEPS, MAX_SHARE = 30, 0.5  # of expectation and maximization for the kinds of errors, and the largest share there
INTERVAL_MARGIN = 0.02  # added to both ends of the interval of the share


class Quantity(Classes):
    """The quantities of samples, which are ``Dataset.target``."""

    noun = "values"
    page = "regression"
    answer = "number"
    refused: ClassVar[Mapping[str, str]] = {
        "decisions": "decisions are about classes; quantities are audited without them. Leave decisions out.",
        "model": "quantities are judged without a model of your own; give its embeddings as features=... (--features on the command line).",
        "finetune": "finetune learns classes, and these labels are quantities; leave it out.",
    }  # fmt: skip

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
        least, most = values[rows].min(), values[rows].max()
        if least == most:
            raise InputError(f"all values are {least:g}; there is nothing to compare. Check the label column.")
        progress = judging.progress or (lambda *_: None)
        views = judging.features(data)
        folds = assign_folds(np.where(data.labeled, 0, UNLABELED), views.keys, folds=FOLDS, seed=judging.seed)
        progress("fitting", 0, 1)
        with threads_for(max(view.work(FOLDS, 1) for view in views.views)):
            judged, share, weights, explained, found = judge_quantities(views.views, values, folds, seed=judging.seed)
        progress("fitting", 1, 1)
        whole, about = not len(unlabeled), dict[str, Any](views.about)
        unknown = np.full(len(unlabeled), np.nan)
        return Findings(
            classes=(), index=data.index[rows], given=values[rows], suggested=judged["suggested"][rows],
            log_odds=judged["log_odds"][rows], p_error=judged["p_error"][rows], noise_rate=share,
            evidence={"residual": np.abs(values - judged["predicted"])[rows], "usual residual": judged["scale"][rows]},
            ids=() if data.ids is None else tuple(str(i) for i in data.ids[rows]),
            unlabeled={} if whole else {
                "index": data.index[unlabeled], "suggested": judged["predicted"][unlabeled], "probability": unknown
            },
            provenance=Provenance(
                **about, seed=judging.seed, folds=FOLDS, agreement=max(explained, 0.0), views=weights,
                by_chance=explained < MIN_EXPLAINED, shown=SAMPLE_KINDS.get(data.source.kind, "embedding"),
            ),
            notes=views.notes, data=data if whole else data.subset(rows),
            fitted=judging.judge(views.makers, *found[:2], NoiseModel(0.0, 1.0, np.eye(1), np.eye(1), np.zeros(1)), arrays=found[2]),
            vectors=views.shown if whole or views.shown is None else views.shown[rows],
        )  # fmt: skip

    @classmethod
    def reading_options(cls, audit: Any) -> dict[str, Any]:
        names = {"label": audit.source.label, "text": audit.source.text}
        named = {name: value for name, value in names.items() if value}
        return named | {"task": "regression"} if named else {}

    def score(self, new: NewRows, audit: Any, judge: Any) -> Scored:
        """Judges values by their residuals; the suggestion is the prediction, or the value in a unit in which it looks right."""
        least, center, unit, middle, level = judge.arrays["numbers"].tolist()
        smallest, values = least or None, np.asarray(new.data.target, np.float64)
        predicted, size = np.zeros(len(values)), np.full(len(values), level)
        views = FeatureViews(judge.makers).of(new.data)
        for view, learners, weights in zip(views, judge.learners, judge.weights, strict=True):
            for name, learner in learners.items():
                total, weight = (size, 0.5) if name == SCALE else (predicted, weights[name])
                total += weight * learner.log_p(view.x, view.trees)[:, 0]

        def log_odds(values: Floats) -> Floats:
            z = (_standard(_measured(values, smallest), center, unit) - predicted) / np.exp(size) - middle
            return np.interp(z, *judge.arrays["knots"])

        odds, moved = log_odds(values), UNITS[:, None] * values
        others = np.stack([log_odds(one) for one in moved])
        best, rows = others.argmin(0), np.arange(len(values))
        likely = _rounded(_amount(predicted, smallest, center, unit))
        likely = np.where(others[best, rows] < 0, moved[best, rows], likely)
        p = np.minimum(expit(odds), 0.5 if audit.provenance.by_chance else 1.0)
        given = ["" if np.isnan(value) else text for value, text in zip(values, audit.written(values), strict=True)]
        return Scored(rows, [""] * len(rows), given, audit.names(likely), odds, p)


class Values(NamedTuple):
    """A fitted regressor in arrays: weights and intercept, the nearest rows and their values, or trees with values as leaves."""

    stored: Mapping[str, NDArray[Any]]

    @classmethod
    def fitted(cls, model: Any) -> Values:
        """From a regressor of scikit-learn, which may follow a scaler."""
        *scaler, last = [step for _, step in model.steps] if hasattr(model, "steps") else [model]
        if hasattr(last, "estimators_"):
            return cls(vars(Forest.fitted([(tree, np.zeros(1, np.int64)) for tree in last.estimators_], 1)))
        size = last.n_features_in_
        center, scale = (scaler[0].mean_, scaler[0].scale_) if scaler else (np.zeros(size), np.ones(size))
        if hasattr(last, "coef_"):
            weights = last.coef_.ravel() / scale
            return cls({"weights": weights[:, None], "intercept": np.array([last.intercept_ - center @ weights])})
        near = np.array([last.n_neighbors])
        return cls({"center": center, "scale": scale, "rows": last._fit_X, "values": last._y, "near": near})

    def log_p(self, x: Any, trees: Any) -> Any:
        """(N, 1) the predicted values."""
        if "weights" in self.stored:
            return x @ self.stored["weights"] + self.stored["intercept"]
        if "leaves" in self.stored:
            return Forest(**self.stored).mean(trees)
        from sklearn.neighbors import KNeighborsRegressor

        center, scale, rows, values, near = (self.stored[n] for n in ("center", "scale", "rows", "values", "near"))
        return KNeighborsRegressor(int(near[0])).fit(rows, values).predict((x - center) / scale)[:, None]

    def arrays(self) -> dict[str, NDArray[Any]]:
        return dict(self.stored)

    @staticmethod
    def of(arrays: Mapping[str, NDArray[Any]], classes: int) -> Values:
        fits = "leaves" in arrays or len(arrays.get("rows", ())) == len(arrays.get("values", ()))
        if not fits or ("intercept" in arrays and arrays["weights"].shape[1:] != (1,)):
            raise InputError("the arrays of a regressor do not fit")
        return Values(vars(Forest.of(arrays, 1)) if "leaves" in arrays else arrays)


LEARNERS["Values"] = Values  # type: ignore[assignment]


def in_other_unit(given: Floats, suggested: Floats) -> NDArray[np.bool_]:
    """(N,) whether the suggested value is the given one in another unit.

    >>> in_other_unit(np.array([575990.412, 20.0]), np.array([575.990412, 3.0]))
    array([ True, False])
    """
    return np.asarray(np.isclose(UNITS[:, None] * given, suggested, rtol=1e-9, atol=0).any(0))


def judge_quantities(
    views: Sequence[View], values: Floats, folds: Ints, *, seed: int = 0
) -> tuple[dict[str, Floats], Estimate, dict[str, float], float, tuple[Any, Any, dict[str, Any]]]:
    """(N,) prediction, suggestion, usual residual, log odds and probability of error; the share of wrong values; the learners' shares; the explained spread;
    and by view the fitted learners and their weights, and arrays, by which new values are judged.

    `values` (N,) are NaN where a row has none; such rows are predicted only. `folds` (N,) is the fold in which each row is held out.
    """
    known = np.isfinite(values)
    splits = [(np.flatnonzero(known & (folds != f)), np.flatnonzero(folds == f)) for f in np.unique(folds)]
    smallest = in_proportions(values[known])
    measured = _measured(values, smallest)
    center = float(np.median(measured[known]))
    unit = float(1.4826 * np.median(np.abs(measured[known] - center))) or float(measured[known].std()) or 1.0

    y = np.where(known, _standard(measured, center, unit), 0.0)
    least, low, middle, high, most = np.quantile(y[known], [0.005, 0.05, 0.5, 0.95, 0.995])
    bounds = max(least, middle - REACH * (middle - low)), min(most, middle + REACH * (high - middle))
    for _ in range(ROUNDS):
        predicted, weights, models = _predict(views, np.clip(y, *bounds), y, known, splits, seed)
        residual = y - predicted
        scale, level, sizes = _scale(views, residual, known, splits, seed)
        factor = max(1.4826 * float(np.median(np.abs(residual / scale)[known])), 1e-9)
        scale = scale * factor
        bounds = predicted - REACH * scale, predicted + REACH * scale
    middle = float(np.median((residual / scale)[known]))  # learners predict the mean, which differs for skewed values
    z = (residual / scale)[known] - middle
    others = np.random.default_rng(seed).choice(y[known], size=(len(y), DRAWS))
    wrong = ((others - predicted[:, None]) / scale[:, None] - middle)[known[:, None] & (others != y[:, None])]
    # (U, N) the values in other units on the scale of comparison, and the log derivative of that change of scale.
    with np.errstate(over="ignore"):
        far = np.inf if smallest is None else MAX_DISTANCE**9
        size = np.clip(values[known] / (smallest or 1.0), -far, far)
        moved = UNITS[:, None] * size
    wider = np.broadcast_to(np.log(UNITS)[:, None], moved.shape)
    if smallest is not None:
        wider = np.log(UNITS[:, None] * np.hypot(1, size) / np.hypot(1, moved))
        moved = np.arcsinh(moved)
    slips = (_standard(moved, center, unit) - predicted[known]) / scale[known] - middle
    log_odds = np.full(len(y), np.nan)
    log_odds[known], share, slipped, knots = _mixture(z, (wrong, slips.ravel()), slips, wider)
    spread = float(np.median(np.abs(y[known] - np.median(y[known]))))
    explained = 1 - float(np.median(np.abs(residual[known]))) / max(spread, 1e-9)
    p = 1 / (1 + np.exp(-np.clip(log_odds, -50, 50)))
    if explained < MIN_EXPLAINED:
        p = np.minimum(p, 0.5)
        share = Estimate(float(p[known].mean()), 0.0, 1.0)
    seen, trees = np.clip(y, *bounds), next((k for k, view in enumerate(views) if view.trees is not None), None)
    learners: list[dict[str, Values]] = [{} for _ in views]
    own = [{} if k != trees or sizes is None else {SCALE: 0.0} for k in range(len(views))]
    for name, (k, x, model, weight) in models.items():
        if weight > 0:
            learners[k][name], own[k][name] = Values.fitted(model.fit(x[known], seen[known])), weight
    if trees is not None and sizes is not None:
        learners[trees][SCALE] = Values.fitted(sizes)
    numbers = np.array([smallest or 0.0, center, unit, middle, level + np.log(factor)])
    fitted = tuple(learners), tuple(own), {"numbers": numbers, "knots": knots}
    predicted, scale = _amount(predicted, smallest, center, unit), scale * unit
    if smallest is not None:
        scale = scale * np.hypot(smallest, predicted)
    suggested = _rounded(predicted)
    in_unit = np.flatnonzero(known)[slipped >= 0]
    suggested[in_unit] = values[in_unit] * UNITS[slipped[slipped >= 0]]
    judged = {"predicted": predicted, "suggested": suggested, "scale": scale, "log_odds": log_odds, "p_error": p}
    total = sum(weights.values()) or 1.0
    return judged, share, {name: weight / total for name, weight in weights.items()}, explained, fitted


def _measured(values: Floats, smallest: float | None) -> Floats:
    """The values on the scale of comparison; infinity is clipped by `_standard`."""
    with np.errstate(over="ignore"):
        return values if smallest is None else np.arcsinh(values / smallest)


def _standard(measured: Floats, center: float, unit: float) -> Floats:
    """Beyond some distance a value is wrong anyway; its square has to be finite."""
    return np.clip((measured - center) / unit, -MAX_DISTANCE, MAX_DISTANCE)


def _amount(standard: Floats, smallest: float | None, center: float, unit: float) -> Floats:
    """The values of standard ones."""
    measured = standard * unit + center
    return measured if smallest is None else smallest * np.sinh(measured)


def _rounded(values: Floats) -> Floats:
    """No model is more precise than six digits."""
    return np.array([float(f"{value:.6g}") for value in values])


def in_proportions(values: Floats) -> float | None:
    """For values that differ in proportions, as prices do, the size below which they differ in amounts; else None.

    They are compared on the scale arsinh(v / size), logarithmic and defined at zero: a wrong unit moves large values as far as small ones.

    >>> in_proportions(np.arange(100.0)) is None
    True
    >>> in_proportions(np.exp(np.linspace(0, 5, 100)))
    0.128...
    """
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
    return float(low / 10) if low > 0 and high - middle > MIN_SKEW * (middle - low) else None


def _predict(
    views: Sequence[View], seen: Floats, y: Floats, known: NDArray[np.bool_], splits: Sequence[tuple[Ints, Ints]], seed: int
) -> tuple[Floats, dict[str, float], dict[str, tuple[int, Any, Any, float]]]:  # fmt: skip
    """(N,) out-of-fold predictions: the weighted sum of all learners that fits the values best, with large residuals clipped; their weights; and by name the
    view, features, model and weight.
    """
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.linear_model import Ridge, RidgeCV
    from sklearn.model_selection import cross_val_predict
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    guesses: dict[str, Floats] = {}
    made: dict[str, tuple[int, Any, Any]] = {}
    for k, view in enumerate(views):
        linear = Ridge(1.0, solver="sparse_cg") if sp.issparse(view.x) else RidgeCV(RIDGES)
        ridge = linear if sp.issparse(view.x) else make_pipeline(StandardScaler(), linear)
        models = {"ridge": (view.x, ridge)}
        if view.trees is not None:
            models["trees"] = (view.trees, ExtraTreesRegressor(**forest_size(len(y)), random_state=seed))
        elif not sp.issparse(view.x):
            neighbors = KNeighborsRegressor(min(20, max(1, len(y) // 10)))
            models["neighbors"] = (view.x, make_pipeline(StandardScaler(), neighbors))
        for name, (x, model) in models.items():
            guesses[f"{view.name}: {name}"] = cross_val_predict(model, x, seen, cv=splits)
            made[f"{view.name}: {name}"] = k, x, model
    matrix, target = np.stack(list(guesses.values()), 1), y.copy()
    for _ in range(3):
        w, _ = nnls(matrix[known], target[known])
        predicted = matrix @ w
        residual = y - predicted
        bound = 3 * 1.4826 * float(np.median(np.abs(residual[known])))
        target = predicted + np.clip(residual, -bound, bound)
    weights = dict(zip(guesses, w.tolist(), strict=True))
    return predicted, weights, {name: (*made[name], weight) for name, weight in weights.items()}


def _scale(
    views: Sequence[View], residual: Floats, known: NDArray[np.bool_], splits: Sequence[tuple[Ints, Ints]], seed: int
) -> tuple[Floats, float, Any]:
    """(N,) the usual size of a residual at each place, out of fold: the geometric mean of a forest's prediction and a constant; and both, for new rows."""
    size = np.log(np.abs(residual) + 1e-3 + 0.05 * np.median(np.abs(residual[known])))
    overall = float(np.median(size[known]))
    trees = next((view.trees for view in views if view.trees is not None), None)
    if trees is None or known.sum() < 100:
        return np.exp(np.full(len(residual), overall)), overall, None
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.model_selection import cross_val_predict

    forest = ExtraTreesRegressor(100, min_samples_leaf=max(10, int(known.sum() / 30)), random_state=seed)
    predicted = cross_val_predict(forest, trees, size, cv=splits)
    level = overall - 0.5 * float(np.median(predicted[known]))
    return np.exp(level + 0.5 * predicted), level, forest.fit(trees[known], size[known])


def _mixture(
    z: Floats, kinds: tuple[Floats, Floats], slips: Floats, wider: Floats
) -> tuple[Floats, Estimate, Ints, Floats]:
    """(N,) log odds that each value is wrong, the share of wrong values, (N,) the number of the correcting unit in `UNITS`, -1 for none, and (2, K) the log
    odds of residuals in ascending order.

    `z` (N,) are residuals in units of their usual size, with median 0; `kinds` those of wrong values: values of other rows, and values in another
    unit. `slips` (U, N) is the residual of each value in other units, and `wider` (U, N) the log derivative of the change of unit.
    """
    p, low, high, knots = np.zeros(len(z)), 0.0, 0.0, []
    log_slips, log_other = np.full(slips.shape, -np.inf), np.zeros(len(z))
    prior = -0.5 * ((np.log(SHARES) - np.log(USUAL_SHARE)) / SHARE_SPREAD) ** 2
    for sign in (1, -1):
        rows = z >= 0 if sign > 0 else z < 0
        if not rows.any():
            continue
        size, sizes = np.abs(z[rows]), [np.abs(values[sign * values >= 0]) for values in kinds]
        edges = np.linspace(0, max(float(np.arcsinh(s).max(initial=0)) for s in (size, *sizes)) + 1e-9, 41)
        counts = np.stack([np.histogram(np.arcsinh(values), edges)[0] for values in sizes])
        density = (counts + 0.5) / (counts.sum(1, keepdims=True) + 0.5 * counts.shape[1]) / np.diff(edges)
        steps = np.sinh(np.linspace(0, edges[-1] + 2, KNOTS))
        every, n = np.concatenate([size, steps]), len(size)
        place = np.clip(np.searchsorted(edges, np.arcsinh(every), side="right") - 1, 0, counts.shape[1] - 1)
        all_kinds = np.log(density[:, place] / 2) - 0.5 * np.log1p(every**2)  # one side has half of the mass
        log_kinds = all_kinds[:, :n]
        # The median gives the scale for any tails, and a few wrong values hardly move it.
        middle = max(float(np.median(size)), 1e-9)
        fits, odds, parameters = [], [], []
        for freedom in FREEDOMS:
            unit = middle / student.ppf(0.75, freedom)
            all_right = student.logpdf(every / unit, freedom) - np.log(unit)
            log_right = all_right[:n]
            # The share of each kind of error, by expectation and maximization with one pseudo-count each.
            parts, share = np.full(len(log_kinds), 1 / len(log_kinds)), USUAL_SHARE
            for _ in range(STEPS):
                joint = log_kinds + np.log(parts * share)[:, None]
                each = np.exp(joint - np.logaddexp(logsumexp(joint, 0), np.log1p(-share) + log_right)).sum(1) + 1
                parts, share = each / each.sum(), min(float(each.sum()) / len(size), MAX_SHARE)
            log_parts = np.log(parts)
            log_wrong = logsumexp(all_kinds + log_parts[:, None], 0)
            each = np.logaddexp(np.log1p(-SHARES)[:, None] + log_right, np.log(SHARES)[:, None] + log_wrong[:n])
            fits.append(each.sum(1) + prior)
            odds.append(log_wrong - all_right)
            parameters.append((freedom, unit, log_kinds[0] + log_parts[0], float(np.exp(log_parts[1]))))
        weight = np.exp(np.stack(fits) - logsumexp(fits))
        wrong = np.sum([w @ expit(o + logit(SHARES)[:, None]) for w, o in zip(weight, odds, strict=True)], 0)
        p[rows] = wrong[:n]
        knots.append(np.stack([sign * steps, logit(np.clip(wrong[n:], 1e-9, 1 - 1e-9))]))
        mass, part = np.cumsum(weight.sum(0)), float(rows.mean())
        ends = (float(SHARES[min(int(np.searchsorted(mass, m)), len(SHARES) - 1)]) for m in (0.05, 0.95))
        low, high = (total + part * end for total, end in zip((low, high), ends, strict=True))
        freedom, unit, log_others, share_of_slips = parameters[int(weight.sum(1).argmax())]
        there = sign * slips >= 0
        log_slips[there] = student.logpdf(np.abs(slips[there]) / unit, freedom) - np.log(unit)
        log_other[rows] = log_others - np.log(share_of_slips)
    log_slips += wider - np.log(len(slips))
    likely = np.exp(log_slips - logsumexp([*log_slips, log_other], 0))
    slipped = np.where(likely.max(0) > 0.5, likely.argmax(0), -1)
    share = float(p.mean())
    # Errors within the usual residuals are not visible: their number may equal the visible ones.
    low, high = max(0.5 * low - INTERVAL_MARGIN, 0.0), min(2 * high + INTERVAL_MARGIN, 1.0)
    curve = np.concatenate(knots, 1)
    curve = curve[:, np.argsort(curve[0], kind="stable")]
    return logit(np.clip(p, 1e-9, 1 - 1e-9)), Estimate(share, min(low, share), max(high, share)), slipped, curve
