"""What the fitted learners of a part of the rows are asked, by this process or by workers.

Workers import this module and what it imports: neither readers of data nor the page are among it, which would take as long as a dozen trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compensate.auditing.arrays import Ints, Singles
from compensate.auditing.fitted import ByFold, Forest
from compensate.auditing.learners import Forests, View, stored_trees
from compensate.auditing.linear import softmax


@dataclass(frozen=True, eq=False)
class Divided:
    """A learner that was fitted for several divisions into folds.

    Attributes:
        divisions: (R) one for each.
    """

    divisions: tuple[ByFold, ...]

    def log_p(self, x: Any, trees: Singles | None, folds: Ints) -> Singles:
        """(N, C) log probabilities, the mean over divisions, of rows in these folds (R, N)."""
        return mean_log_p([one.log_p(x, trees, held) for one, held in zip(self.divisions, folds, strict=True)])


def mean_log_p(log_p: Sequence[Singles]) -> Singles:
    """(N, C) of several divisions."""
    return log_p[0] if len(log_p) == 1 else softmax(np.mean(log_p, axis=0))[1]


@dataclass(frozen=True, eq=False)
class Asked:
    """The learners of a view, and the rows that they are asked about.

    Attributes:
        by_name: learners.
        folds: (R, N) of each division.
        forests: of each division, if trees are grown to judge all rows once; they are not among the learners then.
    """

    view: View
    by_name: dict[str, Divided]
    folds: Ints
    forests: tuple[Forests, ...]


def answer(task: tuple[Callable[..., Any], Any], asked: Asked) -> Any:
    """Asks one of the functions below."""
    function, what = task
    return function(what, asked)


def said_of(rows: Ints, asked: Asked) -> dict[str, Singles]:
    """By learner, (B, C) log probabilities of some rows."""
    part = some_of(asked.view, rows)
    return {name: one.log_p(part.x, part.trees, asked.folds[:, rows]) for name, one in asked.by_name.items()}


def votes_of(what: tuple[int, tuple[int, slice]], asked: Asked) -> Singles:
    """(rows of the fold, C) the part that some trees of a fold have in the mean of all of them."""
    draw, (fold, trees) = what
    forests = asked.forests[draw]
    return (forests.votes((fold, trees)) / forests.size(fold)).astype(np.float32)


def stored_of(draw: int, asked: Asked) -> Forest:
    """The trees that are stored."""
    return stored_trees(asked.forests[draw])


def some_of(view: View, rows: Ints) -> View:
    """Some rows of a view."""
    x = view.x[rows]
    return View(view.name, x, x if view.trees is view.x else None if view.trees is None else view.trees[rows])
