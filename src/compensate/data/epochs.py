"""Batches for PyTorch: the order of an epoch, tensors, augmentation, and the index of each sample.

Order and augmentation are functions of the seed and the epoch: a run that stops at batch k continues at batch k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset as TorchDataset

from compensate.data.dataset import Dataset, Ragged, generator
from compensate.errors import InputError

Rows = NDArray[np.int64]
# Takes the batch (B, C, H, W) and draws (B, 3), uniform in [0, 1), one row per sample
Augment = Callable[[Tensor, NDArray[np.float64]], Tensor]
POOL = 50  # number of batches that are sorted by length together: enough to save padding, few enough to keep the order random


def order(data: Dataset, batch_size: int, *, seed: int = 0, epoch: int = 0, shuffle: bool = True) -> list[Rows]:
    """The positions of each batch of an epoch; without ``shuffle`` in the order of the data.

    Sequences are bucketed by length: each pool of the shuffled epoch is sorted by length, and the batches are shuffled.

    >>> data = Dataset(np.zeros((5, 2)), np.zeros(5, int), ("a",))
    >>> [len(rows) for rows in order(data, 2)]
    [2, 2, 1]
    """
    ranges_of(len(data), batch_size)
    rng = generator(seed, "order", epoch)
    rows = rng.permutation(len(data)) if shuffle else np.arange(len(data))
    bucketed = shuffle and isinstance(data.x, Ragged)
    if bucketed and len(rows):
        pools = np.split(rows, range(POOL * batch_size, len(rows), POOL * batch_size))
        rows = np.concatenate([p[np.argsort(data.x.lengths[p], kind="stable")] for p in pools])
    batches = [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
    return [batches[i] for i in rng.permutation(len(batches))] if bucketed else batches


def order_in_ranges(data: Dataset, batch_size: int, *, seed: int = 0, epoch: int = 0) -> list[Rows]:
    """The positions of each batch of an epoch, where every range of samples has the same share of every batch.

    With :math:`K` batches, the samples in the order of their index are divided into ranges of :math:`K`, and each range gives one sample
    to each batch, in a random order per epoch. A process that owns some ranges then sees the same samples in every epoch, and equally
    many in every batch. The samples after the last whole range go to random batches. Sequences are bucketed by length.

    >>> data = Dataset(np.zeros((8, 2)), np.zeros(8, int), ("a",))
    >>> [sorted(rows.tolist()) for rows in order_in_ranges(data, 4)]      # a sample of 0..1, of 2..3, of 4..5 and of 6..7
    [[0, 3, 5, 6], [1, 2, 4, 7]]
    """
    count, whole = ranges_of(len(data), batch_size)
    rng = generator(seed, "ranges", epoch)
    ranked = np.argsort(data.index, kind="stable")
    rows = rng.permuted(ranked[: whole * count].reshape(whole, count), axis=1)
    if isinstance(data.x, Ragged):
        lengths = data.x.lengths
        for pool in np.array_split(np.arange(count), max(count // POOL, 1)):
            part = rows[:, pool]
            rows[:, pool] = np.take_along_axis(part, np.argsort(lengths[part], axis=1, kind="stable"), 1)
        rows = rows[:, rng.permutation(count)]
    batches = list(rows.T)
    rest = rng.permutation(ranked[whole * count :])
    for batch, row in zip(rng.permutation(count), rest, strict=False):
        batches[batch] = np.append(batches[batch], row)
    return batches


def ranges_of(n: int, batch_size: int) -> tuple[int, int]:
    """The number of batches of an epoch, and of ranges; see `order_in_ranges`.

    >>> ranges_of(10, 4)
    (3, 3)
    """
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; it must be at least 1.")
    count = max(-(-n // batch_size), 1)
    return count, n // count


def draws(data: Dataset, *, seed: int = 0, epoch: int = 0) -> NDArray[np.float64]:
    """(N, 3) the random numbers for the augmentation of each sample in this epoch.

    >>> draws(Dataset(np.zeros((5, 2)), np.zeros(5, int), ("a",)), epoch=3).shape
    (5, 3)
    """
    return generator(seed, "augment", epoch).random((len(data), 3))


def gather(
    data: Dataset, rows: Rows, *, augment: Augment | None = None, drawn: NDArray[np.float64] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The samples at these positions as tensors ``(x, target, index)``.

    Bytes become floats in [0, 1] after augmentation; token ids become a rectangle padded with 0.

    >>> gather(Dataset(np.zeros((8, 2)), np.zeros(8, int), ("a",)), np.array([5, 6]))[2].tolist()
    [5, 6]
    """
    x = data.x[rows]
    if isinstance(x, Ragged):
        tensor = torch.from_numpy(x.pad())
    elif getattr(x, "dtype", None) is not None and x.dtype != object:
        tensor = torch.from_numpy(np.ascontiguousarray(x))
    else:
        kind = f"an array of {type(data.x[0]).__name__}" if len(data.x) else "empty"
        remedy = "Encode texts with compensate.data.encode_texts or Tfidf"
        raise InputError(f"batches need numbers, and x is {kind}. {remedy}.")
    if augment is not None:
        if drawn is None:
            raise InputError("augmentation needs its random numbers: pass drawn=draws(data, seed=..., epoch=...).")
        tensor = augment(tensor, drawn[rows])
    if tensor.dtype == torch.uint8:
        tensor = tensor.float().div_(255)
    elif tensor.dtype == torch.float64:
        tensor = tensor.float()
    target = torch.from_numpy(data.target[rows])
    return tensor, target.float() if data.regression else target, torch.from_numpy(data.index[rows])


def batches(
    data: Dataset,
    batch_size: int,
    *,
    seed: int = 0,
    epoch: int = 0,
    start: int = 0,
    shuffle: bool = True,
    augment: Augment | None = None,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The batches ``(x, target, index)`` of an epoch, from batch number ``start`` on.

    >>> data = Dataset(np.eye(3, dtype=np.float32), np.array([0, 1, 0]), ("a", "b"))
    >>> [index.tolist() for x, target, index in batches(data, 2, shuffle=False)]
    [[0, 1], [2]]
    """
    drawn = draws(data, seed=seed, epoch=epoch) if augment is not None else None
    for rows in order(data, batch_size, seed=seed, epoch=epoch, shuffle=shuffle)[start:]:
        yield gather(data, rows, augment=augment, drawn=drawn)


@dataclass(frozen=True)
class CropFlip:
    """Shifts each image by up to ``padding`` pixels, with black beyond the border, and with ``flip`` mirrors half of them.

    Called with images (B, C, H, W) and draws (B, 3), uniform in [0, 1): shift down, shift right, mirror.

    >>> image = torch.arange(4).view(1, 1, 2, 2)
    >>> CropFlip(1)(image, np.array([[0.0, 0.5, 0.1]])).flatten().tolist()      # moved down and mirrored
    [0, 0, 1, 0]
    """

    padding: int = 4
    flip: bool = True

    def __call__(self, images: Tensor, drawn: NDArray[np.float64]) -> Tensor:
        if images.ndim != 4:
            raise InputError(f"CropFlip takes images (B, C, H, W), and was given shape {tuple(images.shape)}.")
        b, _, h, w = images.shape
        steps = 2 * self.padding + 1
        down, right = (torch.from_numpy((drawn[:, i] * steps).astype(np.int64)) for i in (0, 1))
        padded = F.pad(images, (self.padding,) * 4)
        columns = right[:, None] + torch.arange(w)
        if self.flip:
            mirrored = torch.from_numpy(drawn[:, 2] < 0.5)
            columns = torch.where(mirrored[:, None], columns.flip(1), columns)
        rows = down[:, None] + torch.arange(h)
        moved = padded[torch.arange(b)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        return moved.permute(0, 3, 1, 2).contiguous()


class Indexed(TorchDataset[Any]):
    """Adds its index to each item of a map-style data set: ``(x, y)`` becomes ``(x, y, index)``.

    A dictionary gets an entry ``"index"``. The index is the position in the wrapped data set: wrap it once, before any `Subset`.

    >>> Indexed([("cat.png", 0), ("dog.png", 1)])[-1]
    ('dog.png', 1, 1)
    """

    def __init__(self, dataset: Any) -> None:
        if isinstance(dataset, Indexed):
            raise InputError("the data set is Indexed already: its items have an index. Wrap it once only.")
        if not (hasattr(type(dataset), "__getitem__") and hasattr(type(dataset), "__len__")):
            problem = f"a {type(dataset).__name__}; it wraps map-style data sets (with __getitem__ and __len__)"
            remedy = "Read a stream into a list first, or yield (x, y, index) from it yourself"
            raise InputError(f"Indexed was given {problem}. {remedy}.")
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        size = len(self)
        row = index + size if index < 0 else index
        if not 0 <= row < size:
            # IndexError ends a plain `for` loop over the data set.
            raise IndexError(f"index {index} is out of range for a data set of {size} samples.")
        item, named = self.dataset[row], f"item {row} of the {type(self.dataset).__name__}"
        if isinstance(item, Mapping):
            if "index" in item:
                remedy = "If it is the row in the whole training set, use the data set as it is; otherwise rename that entry first"
                raise InputError(f'{named} has an entry "index" already. {remedy}.')
            return {**item, "index": row}
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            got = f"{len(item)} values" if isinstance(item, (tuple, list)) else f"a {type(item).__name__}"
            raise InputError(f"{named} is {got}; map items to pairs (x, y) or dictionaries first.")
        return *item, row
