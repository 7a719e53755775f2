"""Learners that judge the labels of a view: linear models, neighbors and, for tables, trees. All are cross-fitted."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from compensate.auditing.arrays import Floats, Ints, Singles
from compensate.auditing.execution import HERE, Execution
from compensate.auditing.fitted import (
    ABSENT,
    ByFold,
    Forest,
    Linear,
    Neighbors,
    StoredLearner,
    smoothed,
    unit_length,
)
from compensate.auditing.linear import BLOCK, LinearFolds, Terms, compensated, is_sparse, softmax, transferred
from compensate.threads import threads_for

STRENGTHS = (3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)
"""Weight decays that are tried, from strong to weak, until the log loss of held-out labels rises."""

RISE = 1.01
"""A log loss that is this many times the best one ends the search."""

LAMBDA = 0.5
"""A label that gets less than a probability of 1 - 0.5 pulls no harder than one that gets just that."""

ERRORS = 0.1
"""The share of wrong labels for which directions are learned: the model asks which errors there would be if there were so many."""

ROUNDS = 5
"""Of expectation and maximization for the transitions."""

NEIGHBORS, COMPONENTS, REFERENCE, COMPARED = 40, 128, 20_000, 2_000_000_000
"""Neighbors that vote, the principal components in which they are found, the rows among which they are looked for, and the
comparisons that are made in all: of many rows each is compared with fewer."""

SPREAD = 500
"""Rows of a fold of which the usual deviation of their neighbors' cosines is taken."""

TREES, GROWN_ON, LEAF = 200, 50_000, 3
"""Extra trees, the rows that each is grown on, and the fewest rows of a leaf; of many rows there are fewer trees."""

TREE_ENTRIES, FEWEST_TREES = 200_000_000, 20
"""Entries of trees x rows x classes: each node keeps a share of every class. With many classes there are fewer trees, but no fewer than these."""

NO_FOLD = -1
"""Trees of all rows."""

STORED_TREES = 0.25
"""The part of so many trees that is grown on all rows, to judge rows that are not there yet."""


@dataclass(frozen=True, eq=False)
class View:
    """One way to see the samples.

    Attributes:
        name: such as "words" or the encoder's name.
        x: (N, D) features, dense or sparse, for linear models and neighbors.
        trees: (N, D') the same for trees; None where trees do not help.
    """

    name: str
    x: Any
    trees: Singles | None = None

    def work(self, num_folds: int, num_classes: int) -> float:
        """Multiplications of one pass over the rows, for all folds, and for principal axes."""
        n, d = self.x.shape
        if is_sparse(self.x):
            return float(self.x.nnz * num_folds * num_classes)
        return float(n * d * (num_folds * num_classes + min(n, d)))


@final
class Steps:
    """Tells how many steps of the learners are done, and which learner is at work.

    Args:
        progress: called with "fitting" and the learner, the steps that are done and the number of all.
        total: of all views and divisions; see `steps_of`.
    """

    def __init__(self, progress: Callable[[str, int, int], None] | None = None, total: int = 0) -> None:
        self._progress, self._total, self._done, self._what = progress, total, 0, ""

    def start(self, what: str) -> None:
        """This learner begins."""
        self._what = what
        self.done(0)

    def done(self, number: int = 1) -> None:
        """So many of its steps are done."""
        self._done += number
        if self._progress is not None:
            self._progress(f"fitting {self._what}", self._done, self._total)


def steps_of(view: View, num_folds: int) -> int:
    """The steps of `judge_view`: strengths, rounds of the transitions, and for each learner the folds that it judges."""
    return len(STRENGTHS) + ROUNDS + num_folds * (3 if view.trees is None else 4)


@dataclass(eq=False)
class Judged:
    """What the learners of a view say.

    Attributes:
        log_p: by learner, (N, C) out-of-fold log probabilities.
        models: by learner, what judges rows that are not among these.
        transition: (C, C) how often true class t is written as j, under the assumed share of errors.
        decay: the chosen strength.
    """

    log_p: dict[str, Singles] = field(default_factory=dict)
    models: dict[str, StoredLearner] = field(default_factory=dict)
    transition: Floats = field(default_factory=lambda: np.eye(1))
    decay: float = 0.0


def judge_view(
    view: View,
    labels: Ints,
    folds: Ints,
    num_folds: int,
    num_classes: int,
    *,
    trusted: NDArray[np.bool_] | None = None,
    seed: int = 0,
    fitted: LinearFolds | None = None,
    trees: int | None = None,
    steps: Steps | None = None,
) -> Judged:
    """Out-of-fold predictions of all learners that suit the view.

    Args:
        view: the features.
        labels: (N,) class numbers, -1 where there is none.
        folds: (N,) the fold in which each row is held out.
        trusted: (N,) labels that are known to be right: linear models learn from them without compensation.
        fitted: the linear models of this view, where many label sets are judged on it and every row has a label.
        trees: their number where there are few rows, 0 for none; `TREES` by default.
        steps: told what is done.
    """
    steps = Steps() if steps is None else steps
    log_p = {}
    with threads_for(view.work(num_folds, num_classes)):
        learned = fit_view(
            view, labels, folds, num_folds, num_classes,
            trusted=trusted, seed=seed, fitted=fitted, trees=trees, steps=steps,
        )  # fmt: skip
        for name, one in learned.by_fold.items():
            steps.start(name)
            log_p[name] = one.log_p(view.x, view.trees, folds, steps.done)
    return Judged(log_p, learned.models, learned.transition, learned.decay)


def judge_divisions(
    view: View,
    labels: Ints,
    divisions: Sequence[Ints],
    num_folds: int,
    num_classes: int,
    *,
    trusted: NDArray[np.bool_] | None = None,
    seed: int = 0,
    steps: Steps | None = None,
) -> Judged:
    """As `judge_view`, for several divisions into folds: the mean of what each says. Trees are shared out among them.

    What judges rows that are in no fold is of the first division.
    """
    trees = max(1, TREES // len(divisions))
    found = [
        judge_view(
            view, labels, folds, num_folds, num_classes, trusted=trusted, seed=seed + k, trees=trees, steps=steps
        )
        for k, folds in enumerate(divisions)
    ]
    if len(found) == 1:
        return found[0]
    log_p = {name: softmax(np.mean([one.log_p[name] for one in found], 0))[1] for name in found[0].log_p}
    return replace(found[0], log_p=log_p, transition=np.mean([one.transition for one in found], 0))


@dataclass(eq=False)
class Learned:
    """The learners of a view once they are fitted.

    Attributes:
        by_fold: by learner, what judges the rows of each fold without having learned from them.
        models: by learner, what judges rows that are in no fold.
        transition: (C, C) how often true class t is written as j, under the assumed share of errors.
        decay: the chosen strength.
    """

    by_fold: dict[str, ByFold] = field(default_factory=dict)
    models: dict[str, StoredLearner] = field(default_factory=dict)
    transition: Floats = field(default_factory=lambda: np.eye(1))
    decay: float = 0.0


def fit_view(
    view: View,
    labels: Ints,
    folds: Ints,
    num_folds: int,
    num_classes: int,
    *,
    trusted: NDArray[np.bool_] | None = None,
    seed: int = 0,
    fitted: LinearFolds | None = None,
    trees: int | None = None,
    run: Execution = HERE,
    rows: int | None = None,
    steps: Steps | None = None,
) -> Learned:
    """All learners that suit the view; arguments as for `judge_view`, where to compute, and how many rows are judged, if not these."""
    found = Learned()
    steps = Steps() if steps is None else steps
    steps.start("logcomp")
    if fitted is None:
        fitted = LinearFolds(view.x, folds, num_folds, num_classes, labels >= 0, run)
    _logcomp(fitted, labels, trusted, found, steps)
    steps.start("transitions")
    _transitions(fitted, labels, trusted, found, steps)
    if fitted.axes is None:
        without = (np.where(folds == fold, -1, labels) for fold in range(num_folds))
        found.by_fold["naive Bayes"] = ByFold([_naive_bayes(view.x, rest, num_classes) for rest in without])
        found.models["naive Bayes"] = _naive_bayes(view.x, labels, num_classes)
    else:
        found.by_fold["neighbors"], found.models["neighbors"] = _neighbors(fitted, labels, seed, rows or len(labels))
    most = TREES if trees is None else trees
    if view.trees is not None and most:
        steps.start("trees")
        forests = Forests(view.trees, labels, folds, num_folds, num_classes, seed, most)
        found.by_fold["trees"] = ByFold(forests)
        found.models["trees"] = stored_trees(forests, run)
    return found


def _logcomp(
    fitted: LinearFolds, labels: Ints, trusted: NDArray[np.bool_] | None, found: Learned, steps: Steps
) -> None:
    best, chosen, w = np.inf, None, None
    slope = compensated(labels, LAMBDA, trusted)
    for tried, decay in enumerate(STRENGTHS, 1):
        w = fitted.fit(slope, decay, w)
        loss = fitted.held_out_loss(w, labels)
        steps.done()
        if loss < best:
            best, chosen, found.decay = loss, w, decay
        elif loss > RISE * best:
            steps.done(len(STRENGTHS) - tried)
            break
    assert chosen is not None
    _keep(fitted, "logcomp", chosen, found)


def _keep(fitted: LinearFolds, name: str, w: Singles, found: Learned) -> None:
    found.by_fold[name] = ByFold([Linear(*one) for one in fitted.each(w)])
    found.models[name] = Linear(*fitted.mean(w))


def _transitions(
    fitted: LinearFolds, labels: Ints, trusted: NDArray[np.bool_] | None, found: Learned, steps: Steps
) -> None:
    """Expectation and maximization: weights under the present transitions, then transitions under the posterior."""
    classes, others = fitted.num_classes, 1 - np.eye(fitted.num_classes)
    uniform = np.eye(classes) * (1 - ERRORS) + others * ERRORS / max(classes - 1, 1)
    a = np.repeat(uniform[None], fitted.num_folds, 0).astype(np.float32)
    size = len(fitted.fitted) * (fitted.num_folds - 1) / fitted.num_folds
    w = None
    for step in range(ROUNDS):
        w = fitted.fit(transferred(labels, a, trusted), found.decay, w)
        steps.done()
        if step == ROUNDS - 1:
            break
        counts = _posterior_counts(fitted, labels, trusted, a, w) * size
        a = np.stack([transition_from(one) for one in counts]).astype(
            np.float32
        )  # anew, for workers keep the former one
    assert w is not None
    _keep(fitted, "transitions", w, found)
    found.transition = a.mean(0).astype(np.float64)


def transition_from(counts: NDArray[np.floating], errors: float = ERRORS) -> Floats:
    """(C, C) transitions from expected counts of (true, given), scaled to a share of errors of at least ``errors``.

    >>> transition_from(np.array([[90, 10], [0, 100]]), 0.1).round(2)
    array([[0.82, 0.18],
           [0.02, 0.98]])
    """
    others = 1 - np.eye(len(counts))
    total = counts.sum(1, keepdims=True) + 1
    wrong = counts * others + others * total / total.mean()
    share = max(errors, float((counts * others).sum() / max(counts.sum(), 1e-12)))
    a = wrong * (share * counts.sum() / wrong.sum()) / total
    # A class keeps most of its own labels, or nobody could tell what it is.
    a *= np.minimum(1, 0.6 / np.maximum(a.sum(1, keepdims=True), 1e-12))
    return a + np.diag(1 - a.sum(1))


def _posterior_counts(
    fitted: LinearFolds, labels: Ints, trusted: NDArray[np.bool_] | None, a: Singles, w: Singles
) -> Floats:
    """(K, C, C) shares of rows by true and given class, each fold over the rows it learned from."""
    (counts,) = fitted.add_up(_counted, labels, trusted, a, *fitted.weights(w))
    return counts.transpose(1, 2, 0)


def _counted(
    fitted: LinearFolds,
    part: slice,
    labels: Ints,
    trusted: NDArray[np.bool_] | None,
    transition: Singles,
    weights: Singles,
    intercept: Singles,
) -> Terms:
    rows = fitted.rows(part)
    given, classes = labels[rows], fitted.num_classes
    r = softmax(fitted.logits(fitted.centered(rows), weights, intercept))[0]
    r = r * np.take(transition, given, 2).transpose(2, 0, 1)
    if trusted is not None:
        r = np.where(trusted[rows][:, None, None], np.eye(classes, dtype=np.float32)[given][:, None], r)
    r *= (fitted.train[part] / np.maximum(r.sum(2), 1e-12))[..., None]
    counts = np.zeros((classes, fitted.num_folds, classes))
    _add_by_class(counts, given, r)
    return (counts,)


def _add_by_class(counts: Floats, given: Ints, r: Singles) -> None:
    one = sp.csr_matrix((np.ones(len(given), np.float32), (given, np.arange(len(given)))), (len(counts), len(given)))
    counts += np.asarray(one @ r.reshape(len(r), -1)).reshape(counts.shape)


def _neighbors(fitted: LinearFolds, labels: Ints, seed: int, rows: int) -> tuple[ByFold, Neighbors]:
    """Votes of the nearest rows of other folds, by cosine in the leading principal components; and of all rows, for new ones."""
    assert fitted.axes is not None
    axes = fitted.axes[:, ::-1][:, :COMPONENTS] / fitted.scale[:, None]
    rng = np.random.default_rng(seed)
    reference = min(REFERENCE, max(1000, COMPARED // rows))

    def among(rows: Ints) -> Neighbors:
        pool = _some(rows, reference, rng)
        z = unit_length((fitted.x[pool] - fitted.center) @ axes)
        return Neighbors(fitted.center, axes, z, labels[pool], min(NEIGHBORS, len(pool)), 1.0, fitted.num_classes)

    by_fold = []
    for fold in range(fitted.num_folds):
        model = among(np.flatnonzero((fitted.folds != fold) & (labels >= 0)))
        held = np.flatnonzero(fitted.folds == fold)
        by_fold.append(replace(model, spread=model.usual_spread(fitted.x[held[:: max(1, len(held) // SPREAD)]])))
    usual = float(np.median([model.spread for model in by_fold]))
    return ByFold(by_fold), replace(among(np.flatnonzero(labels >= 0)), spread=usual)


def _some(rows: Ints, most: int, rng: np.random.Generator) -> Ints:
    return rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))


def forest_size(rows: int, most: int | None = None, classes: int = 1) -> dict[str, Any]:
    """The options of a forest for this many rows and classes, and of at most so many trees (`TREES`).

    >>> forest_size(1000)
    {'n_estimators': 200, 'min_samples_leaf': 3}
    >>> forest_size(1_000_000)["n_estimators"]
    30
    >>> forest_size(4_000, classes=1_500)["n_estimators"]
    33
    """
    most = TREES if most is None else most
    most = min(most, max(FEWEST_TREES, TREE_ENTRIES // (min(rows, GROWN_ON) * classes + 1)))
    if rows <= GROWN_ON:
        return {"n_estimators": most, "min_samples_leaf": LEAF}
    trees = max(min(30, most), most * GROWN_ON // rows)
    return {"n_estimators": trees, "min_samples_leaf": LEAF, "bootstrap": True, "max_samples": GROWN_ON}


def _quietly(fit: Callable[..., Any], x: Any, labels: Ints) -> Any:
    """Fits without scikit-learn's warning that labels with many classes may be quantities."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
        return fit(x, labels)


def _naive_bayes(x: Any, labels: Ints, num_classes: int) -> Linear:
    """Complement naive Bayes, as the linear model that it is: it learns from counts alone, and few wrong labels change them little."""
    from sklearn.naive_bayes import ComplementNB

    rows = np.flatnonzero(labels >= 0)
    bayes = _quietly(ComplementNB().fit, x[rows], labels[rows])
    weights = np.zeros((x.shape[1], num_classes), np.float32)
    intercept = np.full(num_classes, ABSENT, np.float32)
    weights[:, bayes.classes_] = bayes.feature_log_prob_.T
    intercept[bayes.classes_] = 0
    return Linear(weights, intercept, np.setdiff1d(np.arange(num_classes), bayes.classes_))


@dataclass(frozen=True, eq=False)
class Tree:
    """An extra tree of scikit-learn.

    Attributes:
        model: the tree.
        classes: (C',) that it knows; of many rows it was grown on some, among which a rare class may be missing.
    """

    model: Any
    classes: Ints


def _grow(x: Singles, labels: Ints, rows: Ints, trees: slice, seed: int) -> list[Tree]:
    """Some of the extra trees of these rows. Of many rows each tree is grown on a sample of its own."""
    if len(rows) <= GROWN_ON:
        from sklearn.ensemble import ExtraTreesClassifier

        forest = ExtraTreesClassifier(trees.stop, min_samples_leaf=LEAF, random_state=seed)
        _quietly(forest.fit, x[rows], labels[rows])
        return [Tree(model, forest.classes_) for model in forest.estimators_]
    from sklearn.tree import ExtraTreeClassifier

    found = []
    for k in range(trees.start, trees.stop):
        rng = np.random.default_rng([seed, k])
        some = _some(rows, GROWN_ON, rng)
        tree = ExtraTreeClassifier(min_samples_leaf=LEAF, random_state=int(rng.integers(1 << 31)))
        found.append(Tree(_quietly(tree.fit, x[some], labels[some]), tree.classes_))
    return found


@dataclass(frozen=True, eq=False)
class Forests(Sequence[Any]):
    """Extra trees, a forest for each fold, grown when it is asked for: five large ones at once would take gigabytes.

    Attributes:
        x: (N, D') features.
        labels, folds: (N,) as for `judge_view`.
        trees: of a forest of few rows.
    """

    x: Singles
    labels: Ints
    folds: Ints
    num_folds: int
    num_classes: int
    seed: int
    trees: int

    def __len__(self) -> int:
        return self.num_folds

    def __getitem__(self, fold: Any) -> Any:
        return Grown([tree for part in self.parts([fold]) for tree in grow(part, self)], self.num_classes)

    def size(self, fold: int) -> int:
        """The number of trees of a fold."""
        return int(forest_size(len(self.rest(fold)), self.trees, self.num_classes)["n_estimators"])

    def parts(self, folds: Iterable[int], trees: int | None = None, together: int = 1) -> list[tuple[int, slice]]:
        """What `grow` can grow by itself: a forest of few rows, or some trees of many, so that several workers end at the same time."""
        found = []
        for fold in folds:
            number = trees or self.size(fold)
            step = number if len(self.rest(fold)) <= GROWN_ON else together
            found += [(fold, slice(start, min(start + step, number))) for start in range(0, number, step)]
        return found

    def votes(self, part: tuple[int, slice]) -> Floats:
        """(rows of the fold, C) the sum of what some trees of a fold say of its rows."""
        rows = np.flatnonzero(self.folds == part[0])
        grown = Grown(grow(part, self), self.num_classes)
        found = np.empty((len(rows), self.num_classes))
        for start in range(0, len(rows), size := max(1, BLOCK // self.x.shape[1])):
            found[start : start + size] = grown.votes(self.x[rows[start : start + size]])
        return found

    def rest(self, fold: int) -> Ints:
        """The rows that the trees of a fold are grown on."""
        return np.flatnonzero((self.folds != fold) & (self.labels >= 0))


def grow(part: tuple[int, slice], forests: Forests) -> list[Tree]:
    """Some trees of a fold."""
    fold, trees = part
    return _grow(forests.x, forests.labels, forests.rest(fold), trees, forests.seed)


def stored_trees(forests: Forests, run: Execution = HERE) -> Forest:
    """Fewer trees, of all rows, to judge rows that are in no fold."""
    rows = int((forests.labels >= 0).sum())
    number = max(1, int(STORED_TREES * forest_size(rows, classes=forests.num_classes)["n_estimators"]))
    trees = run.map(grow, forests.parts([NO_FOLD], number), forests)
    return Forest.fitted([(tree.model.tree_, tree.classes) for part in trees for tree in part], forests.num_classes)


@dataclass(frozen=True, eq=False)
class Grown:
    """Extra trees of scikit-learn: an average over many is sturdy against wrong labels."""

    trees: Sequence[Tree]
    num_classes: int

    def log_p(self, x: Any, trees: Singles | None) -> Singles:
        """(N, C) log probabilities."""
        assert trees is not None
        return smoothed(self.votes(trees) / len(self.trees))

    def votes(self, trees: Singles) -> Floats:
        """(N, C) the sum of the shares that the trees give to the classes."""
        rows = np.ascontiguousarray(trees, np.float32)
        p = np.zeros((len(rows), self.num_classes))
        for tree in self.trees:
            known = slice(None) if len(tree.classes) == self.num_classes else tree.classes
            p[:, known] += tree.model.predict_proba(rows, check_input=False)
        return p
