"""Samples for training and evaluation, and the accuracy, loss and predictions of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from compensate.training.distributed import Processes, move

Rows = NDArray[np.int64]
Inputs = Callable[[Rows, int | None], Any]
"""`batch(rows, epoch)` gives the model's input for these rows, on the CPU; `epoch` is None in evaluation, without augmentation."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs and labels of a data set.

    Attributes:
        batch: maps rows and epoch to inputs, see `Inputs`.
        labels: (N,) class numbers, or (N, C) of 0 and 1 for samples with several labels.
        num_classes: the number of classes; further outputs of a model are ignored.
        index: (N,) the row of each sample in the tables of a criterion; 0 to N - 1 by default.
        weight, lengths: (N,) factors of the losses, and lengths of sequences, to reduce padding.

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
        if labels.ndim == 0 or labels.dtype.kind not in "iu" or labels.shape[1:] not in ((), (self.num_classes,)):
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
        """The samples of a data set; `augment` applies to training batches."""

        def batch(rows: Rows, epoch: int | None) -> Tensor:
            if augment is None or epoch is None:
                return gather(data, rows)[0]
            return gather(data, rows, augment=augment, drawn=draws(data, seed=seed, epoch=epoch))[0]

        lengths = data.x.lengths if isinstance(data.x, Ragged) else None
        return cls(batch, data.target, data.num_classes, data.index, None, lengths)

    @classmethod
    def of_arrays(cls, x: Any, labels: Any, *, num_classes: int) -> Samples:
        """The rows of an array or tensor."""
        rows = x if isinstance(x, Tensor) else torch.from_numpy(np.ascontiguousarray(x))
        if len(rows) != len(labels):
            raise InputError(f"there are {len(rows)} inputs and {len(labels)} labels; expected one label a sample.")
        return cls(lambda some, _: rows[torch.from_numpy(some)], np.asarray(labels), num_classes)

    def subset(self, rows: Rows) -> Samples:
        """The samples at these rows."""
        arrays = {name: getattr(self, name) for name in ("labels", "index", "weight", "lengths")}
        parts = {name: values[rows] for name, values in arrays.items() if values is not None}
        return replace(self, batch=lambda some, epoch: self.batch(rows[some], epoch), **parts)

    def portions(self, size: int) -> list[Rows]:
        """All rows in batches for evaluation; sequences are sorted by length."""
        rows = np.arange(len(self)) if self.lengths is None else np.argsort(self.lengths, kind="stable")
        return [rows[i : i + size] for i in range(0, len(rows), size)]


def even_batches(
    n: int, batch_size: int, *, seed: int, epoch: int, lengths: NDArray[np.int64] | None = None
) -> list[Rows]:
    """Batches of nearly equal size in random order; sequences with `lengths` are sorted by length within pools of batches.

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
"""Batch size of evaluation."""


def outputs(
    model: nn.Module, samples: Samples, device: torch.device | str, processes: Processes | None, batch_size: int
) -> Iterator[tuple[Rows, Tensor]]:
    """Rows and their logits (B, C), batch by batch, without outputs beyond the classes; several processes share the batches."""
    processes = Processes() if processes is None else processes
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for rows in samples.portions(batch_size)[processes.rank :: processes.size]:
                yield rows, full_precision(model(move(samples.batch(rows, None), device))[:, : samples.num_classes])
    finally:
        model.train(was_training)


def evaluate(
    model: nn.Module, data: Dataset | Samples, *, device: torch.device | str = "cpu", processes: Processes | None = None
) -> dict[str, float]:
    """Weighted accuracy and mean cross-entropy of the model on all samples with a label; several processes share the work.

    >>> from compensate.data import digits
    >>> from compensate.models import CNN
    >>> sorted(evaluate(CNN(10), digits().subset(np.arange(100))))
    ['accuracy', 'loss']
    """
    samples = Samples.of(data.subset(data.labeled)) if isinstance(data, Dataset) else data
    total = torch.zeros(3, dtype=torch.float64, device=device)
    for rows, u in outputs(model, samples, device, processes, BATCH):
        y = torch.from_numpy(samples.labels[rows]).to(device)
        if y.ndim == 1:
            right, losses = u.argmax(-1) == y, F.cross_entropy(u, y, reduction="none")
        else:  # several labels are right if all of them are
            right = ((u > 0) == (y > 0)).all(-1)
            losses = F.binary_cross_entropy_with_logits(u, y.to(u.dtype), reduction="none").mean(-1)
        weight = torch.ones(len(y)) if samples.weight is None else torch.from_numpy(samples.weight[rows])
        weight = weight.to(device, torch.float64)
        loss = losses.sum() if samples.weight is None else weight @ losses.double()
        total += torch.stack([weight @ right.double(), loss.double(), weight.sum()])
    correct, loss_sum, count = (total if processes is None else processes.sum(total)).tolist()
    return {"accuracy": correct / (count or 1), "loss": loss_sum / (count or 1)}


def predict(
    model: nn.Module, data: Dataset | Samples, *,
    device: torch.device | str = "cpu", processes: Processes | None = None, batch_size: int = BATCH,
) -> Tensor:  # fmt: skip
    """(N, C) logits of every sample, in the order of the data. Several processes share the work, and all get the result.

    >>> from compensate.data import digits
    >>> from compensate.models import CNN
    >>> predict(CNN(10), digits().subset(np.arange(5))).shape
    torch.Size([5, 10])
    """
    samples = Samples.of(data) if isinstance(data, Dataset) else data
    logits = torch.zeros(len(samples), samples.num_classes)
    for rows, u in outputs(model, samples, device, processes, batch_size):
        logits = logits.to(u.dtype)
        logits[torch.from_numpy(rows)] = u.cpu()
    return logits if processes is None else processes.sum(logits)
