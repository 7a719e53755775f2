"""Learners that can be stored: numbers in arrays, nothing pickled. They say of new samples what an audit's learners would say.

A stored learner is the mean of the models of all folds (linear models), or one model of all rows (naive Bayes, neighbors, trees): new
samples are in no fold.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from compensate.auditing.execution import HERE, Execution, threads_for
from compensate.auditing.linear import BLOCK, CACHED, LinearFolds, Terms, compensated, is_sparse, softmax, transferred
from compensate.data.dataset import Floats, Ints, Singles, generator
from compensate.errors import InputError

Arrays = Mapping[str, NDArray[Any]]

SMALLEST = 1e-6

COSINES = 500_000
"""That are looked through at once: they stay in the processor's cache."""

ABSENT = -30.0
"""The logit of a class that no row has."""


@dataclass(frozen=True, eq=False)
class Linear:
    """Softmax regression, or naive Bayes, which has the same form.

    Attributes:
        weights: (D, C).
        intercept: (C,).
        absent: classes that no row had and that are hardly expected of another, if these are known; not stored.
    """

    weights: Singles
    intercept: Singles
    absent: Ints | None = None

    def log_p(self, x: Any, trees: Singles | None) -> Singles:
        """(N, C) log probabilities."""
        found = np.empty((x.shape[0], self.weights.shape[1]), np.float32)
        size = max(1, min(CACHED, BLOCK // max(found.shape[1], x.shape[1] if isinstance(x, np.ndarray) else 1)))
        for start in range(0, len(found), size):
            part = slice(start, start + size)
            found[part] = softmax(np.asfortranarray(x[part] @ self.weights) + self.intercept)[1]
        if self.absent is not None:
            found[:, self.absent] = np.log(SMALLEST)
        return found

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What is stored."""
        return {"weights": self.weights, "intercept": self.intercept}

    @staticmethod
    def of(arrays: Arrays, classes: int) -> Linear:
        """From what was stored."""
        weights, intercept = arrays["weights"], arrays["intercept"]
        _expect(weights.ndim == 2 and intercept.shape == weights.shape[1:] == (classes,), "the weights of a learner")
        return Linear(weights, intercept)


@dataclass(frozen=True, eq=False)
class Neighbors:
    """Votes of the nearest rows, by cosine along some axes.

    Attributes:
        center: (D,); axes: (D, A), by which samples are brought to the space in which they are compared.
        rows: (M, A) of length one, among which neighbors are looked for.
        labels: (M,) of these rows.
        near: how many vote.
        spread: the usual deviation of their cosines: by so much closer, and a vote counts 2.7 times.
        num_classes: C.
    """

    center: Singles
    axes: Singles
    rows: Singles
    labels: Ints
    near: int
    spread: float
    num_classes: int

    def log_p(self, x: Any, trees: Singles | None) -> Singles:
        """(N, C) log probabilities."""
        found = np.empty((len(x), self.num_classes), np.float32)
        for start in range(0, len(x), size := max(64, COSINES // len(self.rows))):
            z = unit_length((x[start : start + size] - self.center) @ self.axes)
            cosines, who = nearest_by_cosine(z, self.rows, self.near)
            found[start : start + size] = votes(cosines, self.labels[who], self.labels, self.spread, self.num_classes)
        return found

    def usual_spread(self, x: Any) -> float:
        """The deviation of the cosines of the neighbors of these rows; 1 if there are none."""
        if not len(x):
            return 1.0
        return float(nearest_by_cosine(unit_length((x - self.center) @ self.axes), self.rows, self.near)[0].std())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What is stored; half precision is enough to tell who is near."""
        return {
            "center": self.center,
            "axes": self.axes,
            "rows": self.rows.astype(np.float16),
            "labels": self.labels.astype(np.int32),
            "near": np.array([self.near]),
            "spread": np.array([self.spread]),
        }

    @staticmethod
    def of(arrays: Arrays, classes: int) -> Neighbors:
        """From what was stored."""
        rows, labels, axes = arrays["rows"].astype(np.float32), arrays["labels"].astype(np.int64), arrays["axes"]
        near = int(arrays["near"][0])
        _expect(rows.shape == (len(labels), axes.shape[1]) and 1 <= near <= len(rows), "the rows of the neighbors")
        _expect(bool(((labels >= 0) & (labels < classes)).all()), "the labels of the neighbors")
        return Neighbors(arrays["center"], axes, rows, labels, near, float(arrays["spread"][0]), classes)


def unit_length(z: Singles) -> Singles:
    """Rows brought to length one."""
    return (z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)).astype(np.float32, copy=False)


def nearest_by_cosine(z: Singles, rows: Singles, near: int) -> tuple[Singles, Ints]:
    """(B, near) the cosines of the nearest rows, and which they are."""
    cosines = z @ rows.T
    who = np.argpartition(cosines, len(rows) - near, axis=1)[:, len(rows) - near :]
    return np.take_along_axis(cosines, who, 1), who


def votes(cosines: Singles, given: Ints, labels: Ints, spread: float, classes: int) -> Singles:
    """(B, C) log probabilities by votes of the nearest rows.

    Args:
        cosines, given: (B, near) how near they are, and their labels.
        labels: (M,) of all rows among which they were found.
        spread: by so much closer, and a vote counts 2.7 times.
        classes: C.
    """
    size, near = cosines.shape
    vote = np.exp((cosines - cosines.max(1, keepdims=True)) / max(spread, 1e-9))
    place = np.repeat(np.arange(size), near) * classes + given.ravel()
    counts = np.bincount(place, vote.ravel(), size * classes).reshape(size, classes)
    counts *= 0.5 * near / vote.sum(1, keepdims=True)
    prior = np.bincount(labels, minlength=classes) / len(labels)
    return np.log(np.maximum((counts + prior) / (0.5 * near + 1), SMALLEST)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Forest:
    """Extra trees, one after the other. The left child of a node is the node after it.

    Attributes:
        starts: (T,) the root of each tree.
        feature: (nodes,) that is looked at; -1 in a leaf.
        threshold: (nodes,) up to which one goes left.
        right: (nodes,) the other child; in a leaf, its row of `leaves`.
        leaves: (L, C) shares of the classes.
    """

    starts: Ints
    feature: NDArray[np.int32]
    threshold: Singles
    right: NDArray[np.int32]
    leaves: NDArray[np.float16]

    @staticmethod
    def fitted(trees: Sequence[tuple[Any, Ints]], classes: int) -> Forest:
        """From trees of scikit-learn, each with the classes that it knows."""
        starts = np.cumsum([0, *(tree.node_count for tree, _ in trees)])
        parts: dict[str, list[NDArray[Any]]] = {"feature": [], "threshold": [], "right": [], "leaves": []}
        leaves = 0
        for start, (tree, known) in zip(starts, trees, strict=False):
            leaf = tree.children_left < 0
            inner = np.flatnonzero(~leaf)
            assert (tree.children_left[inner] == inner + 1).all()
            right = tree.children_right + start
            right[leaf] = leaves + np.arange(leaf.sum())
            leaves += int(leaf.sum())
            value = np.zeros((int(leaf.sum()), classes))
            value[:, known] = tree.value[leaf, 0]
            parts["feature"].append(np.where(leaf, -1, tree.feature))
            parts["threshold"].append(tree.threshold)
            parts["right"].append(right)
            parts["leaves"].append(value / np.maximum(value.sum(1, keepdims=True), 1e-12))
        joined = {name: np.concatenate(part) for name, part in parts.items()}
        return Forest(
            starts[:-1], joined["feature"].astype(np.int32), joined["threshold"].astype(np.float32),
            joined["right"].astype(np.int32), joined["leaves"].astype(np.float16),
        )  # fmt: skip

    def log_p(self, x: Any, trees: Singles | None) -> Singles:
        """(N, C) log probabilities."""
        assert trees is not None
        p = np.zeros((len(trees), self.leaves.shape[1]), np.float32)
        for start in self.starts:
            node = np.full(len(trees), start)
            going = np.arange(len(trees))
            while len(going):
                here = node[going]
                feature = self.feature[here]
                inner = feature >= 0
                going, here, feature = going[inner], here[inner], feature[inner]
                left = trees[going, feature] <= self.threshold[here]
                node[going] = np.where(left, here + 1, self.right[here])
            p += self.leaves[self.right[node]]
        return smoothed(p / len(self.starts))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What is stored."""
        return {
            "starts": self.starts, "feature": self.feature, "threshold": self.threshold, "right": self.right,
            "leaves": self.leaves,
        }  # fmt: skip

    @staticmethod
    def of(arrays: Arrays, classes: int) -> Forest:
        """From what was stored; a child comes after its parent, so that no way through a tree is endless."""
        starts, feature, threshold, right, leaves = (
            arrays[name] for name in ("starts", "feature", "threshold", "right", "leaves")
        )
        nodes = np.arange(len(feature))
        inner = feature >= 0
        fits = (
            leaves.shape[1:] == (classes,)
            and feature.shape == threshold.shape == right.shape == nodes.shape
            and bool(((starts >= 0) & (starts < len(nodes))).all())
            and bool((right[inner] > nodes[inner]).all() and (right[inner] < len(nodes)).all())
            and bool((right[~inner] >= 0).all() and (right[~inner] < len(leaves)).all())
            and not inner[-1:].any()
        )
        _expect(fits and len(starts) > 0, "the trees")
        return Forest(starts, feature, threshold, right, leaves)


def smoothed(p: NDArray[np.floating]) -> Singles:
    """(N, C) log probabilities of shares of votes: as if there had been one vote more, spread evenly."""
    return np.log((50 * p + 1 / p.shape[1]) / 51).astype(np.float32)


StoredLearner = Linear | Neighbors | Forest
LEARNERS: dict[str, Callable[[Arrays, int], StoredLearner]] = {
    "Linear": Linear.of,
    "Neighbors": Neighbors.of,
    "Forest": Forest.of,
}


@dataclass(frozen=True, eq=False)
class ByFold:
    """Learners of one kind, one for each fold: it judges the rows of that fold, which it did not learn from.

    Attributes:
        models: (K) by fold; each is asked for once in a call, so that models may be made when they are needed.
    """

    models: Sequence[Any]

    def log_p(self, x: Any, trees: Singles | None, folds: Ints, done: Callable[[], None] = lambda: None) -> Singles:
        """(N, C) log probabilities of rows in these folds; ``done`` is called after each fold."""
        found: Singles | None = None
        size = max(1, BLOCK // x.shape[1]) if isinstance(x, np.ndarray) else BLOCK // 20
        for fold in np.unique(folds).tolist():
            model, held = self.models[fold], np.flatnonzero(folds == fold)
            for start in range(0, len(held), size):  # a portion of rows is a copy of them
                rows = held[start : start + size]
                part = model.log_p(x[rows], None if trees is None else trees[rows])
                found = np.empty((len(folds), part.shape[1]), np.float32) if found is None else found
                found[rows] = part
            done()
        assert found is not None
        return found


def _expect(fits: bool, what: str) -> None:
    if not fits:
        raise InputError(f"{what} do not fit")


FOLDS = 5
"""The usual number: each model learns from four fifths of the data."""

REPEATS, FEW = 4, 2_000
"""Up to so many rows are divided into folds so many times, and predictions are averaged: which rows a fold happens to hold moves those of a
small table. Of 569 rows of breast cancer with 10 % flips, four draws of the errors, average precision is .952 once and .956 four times."""

COPIES = 10
"""Rows with equal content are copies of one sample up to this number. In a table of few columns with few values, more rows than
that agree by chance, and each is a sample of its own."""


def content_keys(samples: Any) -> Ints | None:
    """(N,) a number for each row that equals that of another row only if both have the same content.

    Texts are compared without regard to case and white space; rows of numbers byte by byte. None for anything else.

    >>> content_keys(["A  text", "a text", "another"]).tolist()[:2] == [content_keys(["a text"])[0]] * 2
    True
    """
    if isinstance(samples, np.ndarray) and samples.dtype != object:
        flat = np.ascontiguousarray(samples.reshape(len(samples), -1))
        return np.array([_digest(row.tobytes()) for row in flat], dtype=np.int64)
    if all(isinstance(item, str) for item in samples):
        return np.array([_digest(" ".join(item.lower().split()).encode("utf-8", "replace")) for item in samples])
    return None


def num_divisions(rows: int) -> int:
    """How often so many rows are divided into folds.

    >>> num_divisions(569), num_divisions(60_000)
    (4, 1)
    """
    return REPEATS if rows <= FEW else 1


def _digest(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)


def assign_folds(
    labels: Ints,
    keys: Ints | None = None,
    *,
    folds: int = FOLDS,
    seed: int = 0,
    draw: int = 0,
) -> Ints:
    """(N,) the fold in which each row is held out. Each class is spread evenly; rows with equal keys stay together.

    Args:
        labels: (N,) class numbers; -1 where there is none, which are dealt out like a class.
        keys: (N,) rows with the same key are duplicates: a model that has seen one copy knows the label of the other. A key
            that more than `COPIES` rows share is not looked at.
        folds: their number.
        seed, draw: of the random numbers; each draw divides the rows anew.

    >>> assign_folds(np.array([0, 0, 0, 0, 1, 1, 1, 1]), np.array([1, 1, 2, 3, 4, 5, 6, 7]), folds=2).shape
    (8,)
    """
    rows = np.arange(len(labels)) if keys is None else _first_copies(keys)
    own = rows == np.arange(len(rows))
    group = np.cumsum(own)[rows] - 1
    del rows  # of ten million rows, each array takes 80 megabytes
    first = labels[own]
    luck = generator(seed, "folds", *([draw] if draw else [])).random(len(first))
    order = np.lexsort((luck, first))
    del luck, first
    fold = np.empty(len(order), np.int8)
    fold[order] = np.arange(len(order)) % folds
    del order
    return fold[group].astype(np.int64)


def _first_copies(keys: Ints) -> Ints:
    """(N,) for each row the first one with the same key; the row itself where more than `COPIES` rows share it."""
    rows = np.arange(len(keys))
    order = np.argsort(keys, kind="stable")
    equal = keys[order[1:]] == keys[order[:-1]]
    shared = order[np.flatnonzero(np.append(equal, False) | np.append(False, equal))]  # of most data these are few
    _, first, group, times = np.unique(keys[shared], return_index=True, return_inverse=True, return_counts=True)
    rows[shared] = np.where(times[group] <= COPIES, shared[first[group]], shared)
    return rows


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
