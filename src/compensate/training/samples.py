"""What a model is trained or evaluated on, whatever it is made of: inputs by row, labels, and the row each sample has in a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compensate.data import Data, Ragged, draws, gather
from compensate.data.batches import POOL, Augment
from compensate.data.seeding import generator
from compensate.errors import InputError

Rows = NDArray[np.int64]
Inputs = Callable[[Rows, int | None], Any]
"""`batch(rows, epoch)` gives the model's input for these rows, on the processor; `epoch` is None in evaluation, where nothing is
augmented. What it returns depends on its arguments alone, so that a resumed run sees what an undisturbed one sees."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs and labels of a data set.

    Attributes:
        batch: from rows and epoch to inputs, see `Inputs`.
        labels: (N,) class numbers, or (N, C) of 0 and 1 where a sample has several labels.
        num_classes: the number of classes; outputs of a model beyond them are no answer.
        index: (N,) the row of each sample in the tables of a criterion; 0 to N - 1 if not given.
        weight: (N,) factors of the losses; none if not given.
        lengths: (N,) of sequences, so that evaluation pads little.

    >>> samples = Samples.of_arrays(np.eye(3, dtype=np.float32), [0, 1, 0], num_classes=2)
    >>> len(samples), samples.batch(np.array([1]), None)
    (3, tensor([[0., 1., 0.]]))
    """

    batch: Inputs
    labels: NDArray[np.int64]
    num_classes: int
    index: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    weight: NDArray[np.float64] | None = None
    lengths: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        labels = np.asarray(self.labels)
        if (
            labels.ndim not in (1, 2)
            or labels.dtype.kind not in "iu"
            or labels.shape[1:] not in ((), (self.num_classes,))
        ):
            raise InputError(
                f"labels are {labels.dtype} of shape {labels.shape}; expected class numbers, one a sample, or 0 and 1 for each class."
            )
        object.__setattr__(self, "labels", labels.astype(np.int64))
        if not len(self.index):
            object.__setattr__(self, "index", np.arange(len(labels)))

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def of(cls, data: Data, *, augment: Augment | None = None, seed: int = 0) -> Samples:
        """Of a data set; with `augment`, images are augmented in training."""
        lengths = data.x.lengths if isinstance(data.x, Ragged) else None
        return cls(_Gathered(data, augment, seed), data.target, data.num_classes, data.index, None, lengths)

    @classmethod
    def of_arrays(cls, x: Any, labels: Any, *, num_classes: int) -> Samples:
        """Of an array or tensor with a row for each sample."""
        rows = x if isinstance(x, Tensor) else torch.from_numpy(np.ascontiguousarray(x))
        if len(rows) != len(labels):
            raise InputError(f"there are {len(rows)} inputs and {len(labels)} labels; expected one label a sample.")
        return cls(_Indexed(rows), np.asarray(labels), num_classes)

    def subset(self, rows: Rows) -> Samples:
        """Only these rows."""
        parts = {
            name: value[rows]
            for name in ("labels", "index", "weight", "lengths")
            if (value := getattr(self, name)) is not None
        }
        return replace(self, batch=_Subset(self.batch, rows), **parts)

    def portions(self, size: int) -> list[Rows]:
        """All rows in batches for evaluation; sequences of like length together."""
        rows = np.arange(len(self)) if self.lengths is None else np.argsort(self.lengths, kind="stable")
        return [rows[i : i + size] for i in range(0, len(rows), size)]


@dataclass(eq=False)
class _Gathered:
    """Inputs of a data set. The random numbers of the last epoch are kept: drawing them takes all samples."""

    data: Data
    augment: Augment | None
    seed: int
    drawn: tuple[int, NDArray[np.float64]] | None = None

    def __call__(self, rows: Rows, epoch: int | None) -> Tensor:
        if self.augment is None or epoch is None:
            return gather(self.data, rows)[0]
        if self.drawn is None or self.drawn[0] != epoch:
            self.drawn = epoch, draws(self.data, seed=self.seed, epoch=epoch)
        return gather(self.data, rows, augment=self.augment, drawn=self.drawn[1])[0]


@dataclass(frozen=True, eq=False)
class _Indexed:
    x: Tensor

    def __call__(self, rows: Rows, epoch: int | None) -> Tensor:
        return self.x[torch.from_numpy(rows)]


@dataclass(frozen=True, eq=False)
class _Subset:
    batch: Inputs
    rows: Rows

    def __call__(self, rows: Rows, epoch: int | None) -> Any:
        return self.batch(self.rows[rows], epoch)


def even_batches(
    n: int, batch_size: int, *, seed: int, epoch: int, lengths: NDArray[np.int64] | None = None
) -> list[Rows]:
    """A random order of n samples, cut in batches of nearly one size: a last batch of one sample would be too little for batch
    normalization.

    Sequences, whose `lengths` are given, are sorted by length within pools of batches, so that a batch needs little padding.

    >>> [len(rows) for rows in even_batches(9, 4, seed=0, epoch=0)]
    [3, 3, 3]
    """
    rng = generator(seed, "order", epoch)
    order = rng.permutation(n)
    count = max(-(-n // batch_size), 1)
    if lengths is None:
        return np.array_split(order, count)
    pools = np.array_split(order, max(count // POOL, 1))
    order = np.concatenate([pool[np.argsort(lengths[pool], kind="stable")] for pool in pools])
    batches = np.array_split(order, count)
    return [batches[i] for i in rng.permutation(count)]
