"""The order of an epoch and its batches, as pure functions of the seed and the epoch.

A run that stops at batch k of an epoch goes on at batch k: `order` gives the same list again. What augmentation does to
a sample depends on the seed, the epoch and the sample alone, never on the batch it is in, so that two processes that
share a batch see what one would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compensate.data.dataset import Dataset, Ragged, generator
from compensate.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

Rows = NDArray[np.int64]
Augment = Callable[["Tensor", NDArray[np.float64]], "Tensor"]
"""Takes the batch (B, C, H, W) and draws (B, 3), uniform in [0, 1), that belong to its samples."""

POOL = 50
"""The number of batches that are sorted by length together: enough to save padding, few enough to keep the order random."""


def order(
    data: Dataset, batch_size: int, *, seed: int = 0, epoch: int = 0, shuffle: bool = True, drop_last: bool = False
) -> list[Rows]:
    """The positions of each batch of an epoch.

    Sequences are bucketed by length: the shuffled epoch is cut in pools, each pool is sorted by length and cut in
    batches, and the batches are shuffled, so that a batch holds texts of about one length. Without ``shuffle`` the
    order is the data's own.

    >>> data = Dataset(np.zeros((5, 2)), np.zeros(5, int), ("a",))
    >>> [len(rows) for rows in order(data, 2)]
    [2, 2, 1]
    """
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; it must be at least 1.")
    rng = generator(seed, "order", epoch)
    rows = rng.permutation(len(data)) if shuffle else np.arange(len(data))
    if shuffle and isinstance(data.x, Ragged):
        lengths = data.x.lengths
        span = POOL * batch_size
        pools = [rows[i : i + span] for i in range(0, len(rows), span)]
        rows = np.concatenate([p[np.argsort(lengths[p], kind="stable")] for p in pools]) if pools else rows
    batches = [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
    if batches and drop_last and len(batches[-1]) < batch_size:
        batches.pop()
    if shuffle and isinstance(data.x, Ragged):
        batches = [batches[i] for i in rng.permutation(len(batches))]
    return batches


def order_in_ranges(data: Dataset, batch_size: int, *, seed: int = 0, epoch: int = 0) -> list[Rows]:
    """The positions of each batch of an epoch, where every range of samples has the same share of every batch.

    With :math:`K` batches, the samples in the order of their index are cut in ranges of :math:`K`, and each range gives one sample to each
    batch, in a random order that is new in every epoch. Processes that own some ranges each then have, in every batch of every
    epoch, samples of their own ranges alone, and as many; the order does not depend on how many processes there are. What is left over
    after the last whole range goes to some of the batches.

    Of sequences, which are bucketed by length, each range gives its samples of about one rank in length to a batch.

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
    left = rng.permutation(ranked[whole * count :])
    for batch, row in zip(rng.permutation(count), left, strict=False):
        batches[batch] = np.append(batches[batch], row)
    return batches


def ranges_of(n: int, batch_size: int) -> tuple[int, int]:
    """The number of batches of an epoch, and of ranges with a sample for each of them; see `order_in_ranges`.

    >>> ranges_of(10, 4)
    (3, 3)
    """
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; it must be at least 1.")
    count = max(-(-n // batch_size), 1)
    return count, n // count


def draws(data: Dataset, *, seed: int = 0, epoch: int = 0) -> NDArray[np.float64]:
    """(N, 3) the random numbers that augmentation has for each sample in this epoch.

    >>> from compensate.data import digits
    >>> draws(digits(), epoch=3).shape
    (1797, 3)
    """
    return generator(seed, "augment", epoch).random((len(data), 3))


def gather(
    data: Dataset, rows: Rows, *, augment: Augment | None = None, drawn: NDArray[np.float64] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The samples at these positions as tensors ``(x, target, index)``.

    Bytes become floats in [0, 1] after augmentation; token ids become a rectangle padded with 0.

    >>> from compensate.data import digits
    >>> x, target, index = gather(digits(), np.array([5, 6]))
    >>> x.shape, index.tolist()
    (torch.Size([2, 1, 8, 8]), [5, 6])
    """
    import torch  # late: reading data, and refusing it, takes none of it

    x = data.x[rows]
    if isinstance(x, Ragged):
        tensor = torch.from_numpy(x.pad())
    elif getattr(x, "dtype", None) is not None and x.dtype != object:
        tensor = torch.from_numpy(np.ascontiguousarray(x))
    else:
        raise InputError(
            f"batches need numbers, and x is {_describe(data.x)}. Turn texts into token ids with "
            "compensate.data.encode_texts(splits) or into features with compensate.data.Tfidf."
        )
    if augment is not None:
        if drawn is None:
            raise InputError("augmentation needs its random numbers: pass drawn=draws(data, seed=..., epoch=...).")
        tensor = augment(tensor, drawn[rows])
    if tensor.dtype == torch.uint8:
        tensor = tensor.to(torch.float32).div_(255)
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
    drop_last: bool = False,
    augment: Augment | None = None,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The batches ``(x, target, index)`` of an epoch, from batch number ``start`` on.

    >>> data = Dataset(np.eye(3, dtype=np.float32), np.array([0, 1, 0]), ("a", "b"))
    >>> [index.tolist() for x, target, index in batches(data, 2, shuffle=False)]
    [[0, 1], [2]]
    """
    drawn = draws(data, seed=seed, epoch=epoch) if augment is not None else None
    for rows in order(data, batch_size, seed=seed, epoch=epoch, shuffle=shuffle, drop_last=drop_last)[start:]:
        yield gather(data, rows, augment=augment, drawn=drawn)


def _describe(x: Any) -> str:
    return f"an array of {type(x[0]).__name__}" if len(x) else "empty"
