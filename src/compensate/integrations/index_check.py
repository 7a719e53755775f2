"""Does an index still name the same sample? What a table per sample silently relies on, looked at in every batch."""

from __future__ import annotations

import warnings
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from compensate.checks import require_true
from compensate.errors import InputError
from compensate.inference.statistics import Statistic
from compensate.integrations.padding import Padding
from compensate.state import State

UNSEEN = torch.iinfo(torch.int32).min
"""The label of a sample that has not been seen."""

FEW = 4
"""An epoch in which each index serves this many samples on average is looked at closer."""


@final
class IndexCheck(Statistic):
    r"""Remembers the label that each index came with, and raises as soon as one comes with another.

    .. math:: y_i^{(t)} = y_i^{(1)} \quad \text{for all visits } t \text{ of sample } i

    where :math:`y_i^{(t)}` is the given class at visit :math:`t`. An index that is the place in the batch, or that was given
    out anew after shuffling or filtering, breaks this within a few batches. Distributions as targets are left alone: they may
    change from visit to visit. What it remembers is no part of the criterion's `state_dict`, so that a checkpoint fits a
    criterion without it; :class:`~compensate.integrations.CriterionHooks` stores it beside.

    Args:
        num_samples: rows of the criterion's tables; None if it keeps nothing per sample.
        fixed_labels: false if labels change on purpose during the training.

    Shapes: targets (B,), index (B,), `given` (N,).

    >>> from compensate import methods
    >>> criterion = methods.logcomp(num_samples=8, num_classes=2)
    >>> criterion.index_check = IndexCheck(8)
    >>> u, index = torch.zeros(2, 2), torch.tensor([0, 1])
    >>> _ = criterion(u, torch.tensor([0, 1]), index)
    >>> _ = criterion(u, torch.tensor([0, 0]), index)
    Traceback (most recent call last):
    compensate.errors.InputError: index 1 came with label 1 before and comes with label 0 now: ...
    """

    given: Tensor
    here: Tensor

    def __init__(self, num_samples: int | None, *, fixed_labels: bool = True) -> None:
        super().__init__()
        self.num_samples, self.fixed_labels, self.rolls = num_samples, fixed_labels, num_samples is not None
        self.evaluating = False
        """True while the training loop evaluates; set by whoever runs it."""
        self.whole = False
        """True if every process must see the whole batch; set by whoever runs several."""
        self.padding: Padding | None = None
        """What the sampler of several processes repeats; set by whoever runs them."""
        size = num_samples or 0
        self.register_buffer("given", torch.full((size,), UNSEEN, dtype=torch.int32), persistent=False)
        self.register_buffer("here", torch.zeros(size, dtype=torch.bool), persistent=False)
        self.merges = {"given": "rows", "here": "rows"}
        self._visited = self._largest = 0

    reader, shares = "this criterion", True

    def check(self, s: State) -> None:
        """Raises if the batch names its samples by other numbers than before."""
        if self.evaluating:
            raise InputError(LEARNS_IN_EVALUATION)
        if s.model is not None and self.padding is not None and self.padding.rows(s.places.batch) is not None:
            raise InputError(
                "the sampler repeats samples in the last batch of an epoch, so that every process has as many, and they would count "
                "twice. Write criterion(*together(model(x), target, index)), which leaves them out, in place of "
                "criterion.evaluate, or use a loader that drops what is too many (drop_last=True)."
            )
        if self.given.device != s.u.device:
            raise InputError(
                f"the criterion is on {self.given.device} and the logits are on {s.u.device}. Move it before training: "
                "criterion.to(device)."
            )
        if self.num_samples is None:
            return
        index = self.index(s)
        self._compare_processes(index)
        if self._compares(s):
            self._compare(index, s)

    def observe(self, s: State) -> None:
        """Remembers the labels of the batch."""
        if self.num_samples is None:
            return
        index = self.index(s)
        self.here[index] = True
        self._visited += s.visits
        self._largest = max(self._largest, s.visits)
        if self._compares(s):
            self.given.scatter_reduce_(0, index, self._known(s), "amax")

    def _compares(self, s: State) -> bool:
        return s.hard and not s.shared and self.fixed_labels and s.check != "off"

    def _known(self, s: State) -> Tensor:
        """(B,) the labels; as of unseen samples where they are ignored, for padding has no index of its own."""
        now = s.target.to(self.given.dtype)
        return now if s.complete else torch.where(s.valid, now, UNSEEN)

    def _compare(self, index: Tensor, s: State) -> None:
        now, before = self._known(s), self.given[index]
        distinct, place = index.unique(return_inverse=True)
        new = now.new_full((len(distinct),), UNSEEN)
        new = new.scatter_reduce_(0, place, now, "amax")[place]  # one index may stand twice in a batch
        kept = torch.where(before == UNSEEN, new, before)
        same = (kept == now) | (now == UNSEEN)
        if s.check == "sync" and not bool(same.all()):
            first = int((~same).nonzero()[0])
            raise InputError(
                f"index {int(index[first])} came with label {int(kept[first])} before and comes with label "
                f"{int(now[first])} now: {_RENAMED}"
            )
        require_true(same.all(), f"an index came with two different labels: {_RENAMED}", s.check)

    def _compare_processes(self, index: Tensor) -> None:
        """Once: with `together` the index is the same in every process."""
        if self.whole and self._visited == 0 and dist.is_initialized() and dist.get_world_size() > 1:
            mark = torch.stack([index.sum(), index.new_tensor(len(index))])
            low, high = mark.clone(), mark.clone()
            dist.all_reduce(low, dist.ReduceOp.MIN)
            dist.all_reduce(high, dist.ReduceOp.MAX)
            if not torch.equal(low, high):
                raise InputError(
                    "each process evaluates the criterion on its own slice of the batch, so that its tables would go "
                    "their own ways. Write criterion(*together(model(x), target, index)), with together from "
                    "compensate.training."
                )

    def end_epoch(self) -> None:
        """Warns if an epoch had far fewer indices than samples, and none that could not be a place in a batch."""
        distinct, beyond = int(self.here.sum()), bool(self.here[self._largest :].any())
        if self._visited >= FEW * FEW and distinct * FEW <= self._visited and not beyond:
            warnings.warn(
                f"in the last epoch {self._visited} samples came under only {distinct} different indices. Is the index the "
                "place in the batch? Pass the row in the whole training set.",
                stacklevel=2,
            )
        self.here.zero_()
        self._visited = self._largest = 0


_RENAMED = (
    "the index no longer names the same sample, and a row would serve two of them. Number the samples once, in the whole "
    "training set, before any split, shuffling or filter: compensate.data.Indexed(dataset), or "
    "compensate.integrations.datasets.add_index(dataset). A row in the batch is no index. If labels change on purpose, say "
    "fixed_labels=False."
)

LEARNS_IN_EVALUATION = (
    "an evaluation batch reached the criterion in training mode: it would be compensated as a training sample with the same "
    "index. Call criterion.eval() for evaluation, or compute the plain loss there."
)


def refuse_in_evaluation(criterion: Any, arguments: Any) -> None:
    """A hook before the drop-in call: without gradients nothing is observed, but compensation would still be added."""
    if criterion.training and getattr(criterion, "index_check", None) is not None and criterion.index_check.evaluating:
        raise InputError(LEARNS_IN_EVALUATION)
