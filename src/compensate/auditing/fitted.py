"""Learners that can be stored: numbers in arrays, nothing pickled. They say of new samples what an audit's learners would say.

A stored learner is the mean of the models of all folds (linear models), or one model of all rows (naive Bayes, neighbors, trees): new
samples are in no fold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compensate.auditing.arrays import Ints, Singles
from compensate.auditing.linear import BLOCK, CACHED, softmax
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
