"""How good a model is on held-out samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from compensate.data import Data, Ragged, gather

BATCH = 256


def cut(data: Data, size: int = BATCH) -> list[NDArray[np.int64]]:
    """Positions in batches; texts of like length together, so that little is padded."""
    rows = np.argsort(data.x.lengths, kind="stable") if isinstance(data.x, Ragged) else np.arange(len(data))
    return [rows[i : i + size] for i in range(0, len(rows), size)]


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


def sums(model: nn.Module, data: Data, batches: list[NDArray[np.int64]], device: torch.device) -> Tensor:
    """(3,) right answers, summed cross entropy, and samples; outputs beyond the classes are left out."""
    total = torch.zeros(3, dtype=torch.float64, device=device)
    with resting(model):
        for rows in batches:
            x, y, _ = gather(data, rows)
            x, y = x.to(device), y.to(device)
            u = model(x)[:, : data.num_classes].float()
            total[0] += (u.argmax(-1) == y).sum()
            total[1] += F.cross_entropy(u, y, reduction="sum")
            total[2] += len(y)
    return total


def evaluate(model: nn.Module, data: Data, *, device: torch.device | str = "cpu") -> dict[str, float]:
    """Accuracy and mean cross entropy of the model on all samples with a label.

    >>> from compensate.data import digits
    >>> from compensate.models import CNN
    >>> sorted(evaluate(CNN(10), digits().subset(np.arange(100))))
    ['accuracy', 'loss']
    """
    data = data.subset(data.labelled)
    return shares(sums(model, data, cut(data), torch.device(device)))


def agreement(model: nn.Module, data: Data, which: NDArray[np.bool_], *, device: torch.device | str = "cpu") -> float:
    """The share of these samples to which the model gives the label they carry; NaN if there are none.

    Of wrong labels of the training data it tells how far the model has learned them by heart.
    """
    return evaluate(model, data.subset(which), device=device)["accuracy"] if which.any() else math.nan


def shares(total: Tensor) -> dict[str, float]:
    """The means that belong to the sums."""
    right, loss, count = total.tolist()
    return {"accuracy": right / max(count, 1), "loss": loss / max(count, 1)}


def predict(model: nn.Module, data: Data, *, device: torch.device | str = "cpu") -> Tensor:
    """(N, C) logits of every sample, in the order of the data.

    >>> from compensate.data import digits
    >>> from compensate.models import CNN
    >>> predict(CNN(10), digits().subset(np.arange(5))).shape
    torch.Size([5, 10])
    """
    found: Tensor | None = None
    with resting(model):
        for rows in cut(data):
            u = model(gather(data, rows)[0].to(device))[:, : data.num_classes].float().cpu()
            if found is None:
                found = u.new_zeros(len(data), u.shape[-1])
            found[torch.from_numpy(rows)] = u
    return torch.zeros(0, data.num_classes) if found is None else found
