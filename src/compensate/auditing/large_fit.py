"""The learners and the noise model of data in pieces, fitted on a part of the rows that is in memory.

Sums over rows, trees and predictions are computed where the execution says. Where the part is the whole, trees judge the rows of their fold in the
task that has grown them: only what they say travels, which is a tenth of the trees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compensate.auditing.arrays import Floats, Ints, Singles
from compensate.auditing.asked import Asked, Divided, answer, mean_log_p, said_of, stored_of, votes_of
from compensate.auditing.class_names import without_spellings
from compensate.auditing.execution import Execution
from compensate.auditing.fitted import ByFold, Forest, StoredLearner, smoothed
from compensate.auditing.folds import FOLDS
from compensate.auditing.learners import Forests, Grown, Tree, View, fit_view, grow, stored_trees
from compensate.auditing.noise_model import (
    CHANCE,
    FittedNoise,
    fit_noise,
    pool_weights,
    pooled,
    some_rows,
)

Progress = Callable[[str, int, int], None]

POOLED = 8_000_000
"""Entries of log probabilities, for each learner, that are kept of all rows where memory is not bounded."""

TOGETHER, TASKS = 10, 4
"""The most trees of a task that also judges rows, which it copies first; and the fewest such tasks for each worker."""


@dataclass(frozen=True, eq=False)
class Judge:
    """What judges the rows of a piece.

    Attributes:
        names: of the views.
        by_fold: for each view, its learners by name; nothing where all rows are judged already.
        weights: for each view, of its learners.
        noise: the noise model, and how it was estimated.
        models: for each view, what judges rows that are not among these.
    """

    names: tuple[str, ...]
    by_fold: tuple[dict[str, Divided], ...]
    weights: tuple[dict[str, float], ...]
    noise: FittedNoise
    models: tuple[dict[str, StoredLearner], ...] = ()

    @property
    def by_chance(self) -> bool:
        """Whether labels are predicted no better than by chance."""
        return self.noise.gain < CHANCE

    def log_q(self, views: tuple[View, ...], folds: Ints) -> Floats:
        """(N, C) the pooled log probabilities by models that did not learn from the row; folds are (R, N)."""
        log_p, weights = [], []
        for view, by_name, weight in zip(views, self.by_fold, self.weights, strict=True):
            for name, learner in by_name.items():
                if weight[name] > 0:
                    log_p.append(learner.log_p(view.x, view.trees, folds))
                    weights.append(weight[name])
        return pooled(np.array(weights), log_p)


def fit_part(
    views: tuple[View, ...],
    labels: Ints,
    folds: Ints,
    names: Sequence[str],
    size: Mapping[str, int],
    seed: int,
    run: Execution,
    told: Progress,
    *,
    whole: bool,
) -> tuple[Judge, Floats | None]:
    """Learners of all views, fitted on the part; weights and the noise model, from rows of it.

    Where the part is the whole and there is room, also the pooled log probabilities (N, C), so that no row is judged twice. What is left then takes a
    second, and workers are not needed for it.

    Args:
        views, labels: of the part.
        folds: (R, N) of each division.
        names: (C,) of the classes.
        size: the number of ``rows`` of the source, and of ``trees`` of a forest.
        seed: of everything random.
        run: where to compute.
        told: of the progress.
        whole: whether the part is the whole.
    """
    classes = len(names)
    known = some_rows(np.flatnonzero(labels >= 0), classes)
    whole = whole and len(labels) * classes <= POOLED
    rows = np.arange(len(labels)) if whole else known
    by_fold, models, transitions, log_p = [], [], [], []
    for k, view in enumerate(views):
        told("fitting", k, len(views))
        fits = [
            fit_view(view, labels, held, FOLDS, classes, seed=seed + draw, run=run, rows=size["rows"], trees=0)
            for draw, held in enumerate(folds)
        ]
        found = {name: Divided(tuple(one.by_fold[name] for one in fits)) for name in fits[0].by_fold}
        forests = _forests(view, labels, folds, classes, seed, size["trees"])
        stored = None
        if forests and not whole:
            stored = stored_trees(forests[0], run)
            found["trees"] = Divided(tuple(_grown(one, run) for one in forests))
        said, stored = _ask(Asked(view, found, folds, forests if whole else ()), rows, run, stored)
        if stored is not None:
            fits[0].models["trees"] = stored
        log_p.append(said)
        by_fold.append(found)
        models.append(fits[0].models)
        transitions.append(np.mean([one.transition for one in fits], axis=0))
    told("fitting", len(views), len(views))
    learned = [values for one in log_p for values in one.values()]
    estimated = known if whole else np.arange(len(known))
    found_weights = pool_weights([one[estimated] for one in learned], labels[known])
    log_q = without_spellings(pooled(found_weights, learned), labels if whole else labels[known], names)
    noise = fit_noise(log_q[estimated], labels[known], np.mean(transitions, axis=0), run=run, last=whole)
    values = iter(found_weights.tolist())
    weights = tuple({name: next(values) for name in one} for one in log_p)
    judge = Judge(tuple(view.name for view in views), () if whole else tuple(by_fold), weights, noise, tuple(models))
    return judge, log_q if whole else None


def _forests(view: View, labels: Ints, folds: Ints, classes: int, seed: int, trees: int) -> tuple[Forests, ...]:
    """The trees of each division, none of them grown."""
    if view.trees is None:
        return ()
    return tuple(
        Forests(view.trees, labels, held, FOLDS, classes, seed + draw, trees) for draw, held in enumerate(folds)
    )


def _grown(forests: Forests, run: Execution) -> ByFold:
    """All trees at once: they are asked for again and again."""
    parts = forests.parts(range(FOLDS))
    trees: list[list[Tree]] = [[] for _ in range(FOLDS)]
    for (fold, _), grown in zip(parts, run.map(grow, parts, forests), strict=True):
        trees[fold] += grown
    return ByFold([Grown(one, forests.num_classes) for one in trees])


# --- what learners say ----------------------------------------------------------------------------------------


def _ask(asked: Asked, rows: Ints, run: Execution, stored: Forest | None) -> tuple[dict[str, Singles], Forest | None]:
    """By learner, (N, C) log probabilities of some rows; and the trees to store, which are grown along with the forests.

    All of it is one list of tasks, the longest first, so that no worker waits for another in between.
    """
    growing = [(draw, part) for draw, forests in enumerate(asked.forests) for part in _tree_tasks(forests, run)]
    portions = np.array_split(rows, max(1, min(8 * run.workers, len(rows) // 1000)))
    ends = np.cumsum([len(one) for one in portions]).tolist()
    tasks: list[tuple[Callable[..., Any], Any]] = [(stored_of, draw) for draw in range(min(1, len(asked.forests)))]
    tasks += [(votes_of, one) for one in growing] + [(said_of, one) for one in portions]
    answers = run.map(answer, tasks, asked)
    if asked.forests:
        stored = next(answers)
    voted = _counted(asked, growing, answers)
    found: dict[str, Singles] = {}
    for end, one in zip(ends, answers, strict=True):
        for name, values in one.items():
            if name not in found:
                found[name] = np.empty((len(rows), values.shape[1]), np.float32)
            found[name][end - len(values) : end] = values
    return found | voted, stored


def _counted(asked: Asked, growing: list[tuple[int, tuple[int, slice]]], answers: Iterator[Any]) -> dict[str, Singles]:
    """What the forests say, if there are some, as the answers come; the learners are busy meanwhile."""
    if not asked.forests:
        return {}
    votes = [np.zeros((asked.folds.shape[1], forests.num_classes)) for forests in asked.forests]
    for (draw, (fold, _)), one in zip(growing, answers, strict=False):
        votes[draw][asked.folds[draw] == fold] += one
    return {"trees": mean_log_p([smoothed(one) for one in votes])}


def _tree_tasks(forests: Forests, run: Execution) -> list[tuple[int, slice]]:
    number = FOLDS * forests.size(0)
    return forests.parts(range(FOLDS), together=max(1, min(TOGETHER, number // (TASKS * run.workers))))
