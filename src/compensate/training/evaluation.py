"""How good a model is on held-out samples, and what it says of any."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from compensate.data import Data
from compensate.forwards import full_precision
from compensate.training.distribution import Processes
from compensate.training.hardware import move
from compensate.training.samples import Rows, Samples

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


def evaluate(model: nn.Module, data: Data, *, device: torch.device | str = "cpu") -> dict[str, float]:
    """Accuracy and mean cross entropy of the model on all samples with a label.

    >>> from compensate.data import digits
    >>> from compensate.models import CNN
    >>> sorted(evaluate(CNN(10), digits().subset(np.arange(100))))
    ['accuracy', 'loss']
    """
    return means_of(sums(model, Samples.of(data.subset(data.labeled)), device))


def agreement(model: nn.Module, data: Data, which: NDArray[np.bool_], *, device: torch.device | str = "cpu") -> float:
    """The share of these samples to which the model gives the label they carry; NaN if there are none.

    Of wrong labels of the training data it tells how far the model has learned them by heart.
    """
    return evaluate(model, data.subset(which), device=device)["accuracy"] if which.any() else math.nan


def predict(
    model: nn.Module,
    data: Data | Samples,
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
    samples = Samples.of(data) if isinstance(data, Data) else data
    found: Tensor | None = None
    for rows, u in outputs(model, samples, device, processes, batch_size):
        if found is None:
            found = torch.zeros(len(samples), u.shape[-1], dtype=u.dtype)
        found[torch.from_numpy(rows)] = u.cpu()
    if found is None:
        found = torch.zeros(len(samples), samples.num_classes)
    return found if processes is None else processes.sum(found)
