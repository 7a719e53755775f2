"""What a model is trained or evaluated on, whatever it is made of: inputs by row, labels, and the row each sample has in a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from compensate.core.stages import full_precision
from compensate.data import Dataset, Ragged, draws, gather
from compensate.data.dataset import generator
from compensate.data.epochs import POOL, Augment
from compensate.errors import InputError
from compensate.training.distributed import Processes
from compensate.training.hardware import move

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
    def of(cls, data: Dataset, *, augment: Augment | None = None, seed: int = 0) -> Samples:
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

    data: Dataset
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


BATCH = 256
"""Samples that are evaluated together."""


@contextmanager
def resting(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, and no gradients."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def outputs(
    model: nn.Module,
    samples: Samples,
    device: torch.device | str = "cpu",
    processes: Processes | None = None,
    batch_size: int = BATCH,
) -> Iterator[tuple[Rows, Tensor]]:
    """Rows and their logits (B, C), a portion at a time; of several processes, each has portions of its own.

    Outputs past the classes, such as that of abstention, are left out.
    """
    processes = Processes() if processes is None else processes
    with resting(model):
        for rows in samples.portions(batch_size)[processes.rank :: processes.size]:
            u = model(move(samples.batch(rows, None), device))[:, : samples.num_classes]
            yield rows, full_precision(u)


def sums(
    model: nn.Module, samples: Samples, device: torch.device | str = "cpu", processes: Processes | None = None
) -> Tensor:
    """(3,) right answers, summed cross entropy, and samples, each counted by its weight."""
    total = torch.zeros(3, dtype=torch.float64, device=device)
    for rows, u in outputs(model, samples, device, processes):
        y = torch.from_numpy(samples.labels[rows]).to(device)
        right, losses = answered(u, y)
        weight = torch.ones(len(y)) if samples.weight is None else torch.from_numpy(samples.weight[rows])
        weight = weight.to(device, torch.float64)
        total[0] += weight @ right.double()
        if samples.weight is None:
            total[1] += losses.sum()
        else:
            total[1] += weight @ losses.double()
        total[2] += weight.sum()
    return total


def answered(u: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) which answers are right, and the losses of logits (B, C); of several labels, all must be right, and losses are means."""
    if y.ndim == 1:
        return u.argmax(-1) == y, F.cross_entropy(u, y, reduction="none")
    losses = F.binary_cross_entropy_with_logits(u, y.to(u.dtype), reduction="none")
    return ((u > 0) == (y > 0)).all(-1), losses.mean(-1)


def means_of(total: Tensor) -> dict[str, float]:
    """The means that belong to the sums."""
    right, loss, count = total.tolist()
    return {"accuracy": right / (count or 1), "loss": loss / (count or 1)}


def evaluate(model: nn.Module, data: Dataset, *, device: torch.device | str = "cpu") -> dict[str, float]:
    """Accuracy and mean cross entropy of the model on all samples with a label.

    >>> from compensate.data import digits
    >>> from compensate.models import CNN
    >>> sorted(evaluate(CNN(10), digits().subset(np.arange(100))))
    ['accuracy', 'loss']
    """
    return means_of(sums(model, Samples.of(data.subset(data.labeled)), device))


def agreement(
    model: nn.Module, data: Dataset, which: NDArray[np.bool_], *, device: torch.device | str = "cpu"
) -> float:
    """The share of these samples to which the model gives the label they carry; NaN if there are none.

    Of wrong labels of the training data it tells how far the model has learned them by heart.
    """
    return evaluate(model, data.subset(which), device=device)["accuracy"] if which.any() else math.nan


def predict(
    model: nn.Module,
    data: Dataset | Samples,
    *,
    device: torch.device | str = "cpu",
    processes: Processes | None = None,
    batch_size: int = BATCH,
) -> Tensor:
    """(N, C) logits of every sample, in the order of the data. Several processes share the work, and all have the whole.

    >>> from compensate.data import digits
    >>> from compensate.models import CNN
    >>> predict(CNN(10), digits().subset(np.arange(5))).shape
    torch.Size([5, 10])
    """
    samples = Samples.of(data) if isinstance(data, Dataset) else data
    found: Tensor | None = None
    for rows, u in outputs(model, samples, device, processes, batch_size):
        if found is None:
            found = torch.zeros(len(samples), u.shape[-1], dtype=u.dtype)
        found[torch.from_numpy(rows)] = u.cpu()
    if found is None:
        found = torch.zeros(len(samples), samples.num_classes)
    return found if processes is None else processes.sum(found)
