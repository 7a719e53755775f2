"""Samples that a sampler repeats so that every process has as many: left out before they count twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from torch import Tensor
from torch.utils.data import DistributedSampler

Rows = slice | Tensor
"""The rows of a batch that are no repetition."""

DROP_LAST = (
    "Give the training loader sampler=torch.utils.data.DistributedSampler(dataset, drop_last=True), which leaves out the few "
    "samples that are too many (others in each epoch), and Trainer(use_distributed_sampler=False)."
)


@final
class Padding:
    """A hook before the drop-in call that cuts repeated samples off its arguments.

    Args:
        kept: from the size of a batch, the rows that are no repetition; None if all are.
        share: from the number of rows that are left, what the mean loss of an own slice is multiplied with: of slices that differ in
            size, the mean over processes is the mean over samples only if each counts by its size.

    >>> import torch
    >>> hook = Padding(lambda size: slice(0, 3))
    >>> hook.cut(torch.arange(4), None)
    (tensor([0, 1, 2]), None)
    """

    def __init__(
        self, kept: Callable[[int], Rows | None] | None = None, share: Callable[[int], float] | None = None
    ) -> None:
        self.kept, self.share = kept, share

    def rows(self, size: int) -> Rows | None:
        """The rows of a batch that are no repetition; None if all are."""
        return None if self.kept is None else self.kept(size)

    def cut(self, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        """Tensors of one batch without repeated rows."""
        rows = self.rows(len(next(t for t in tensors if t is not None)))
        return tensors if rows is None else tuple(t if t is None else t[rows] for t in tensors)

    def __call__(self, criterion: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments without repeated rows, in training."""
        if not criterion.training:
            return None
        cut = self.cut(*args, *kwargs.values())
        return cut[: len(args)], dict(zip(kwargs, cut[len(args) :], strict=True))

    def scale(self, criterion: Any, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Tensor) -> Tensor:
        """A hook after the drop-in call: the loss of a slice by its share."""
        if self.share is None or not criterion.training or criterion.reduction != "mean":
            return loss
        return loss * self.share(len((*args, *kwargs.values())[0]))

    def __reduce__(self) -> tuple[type[Padding], tuple[()]]:
        return Padding, ()  # a copy of the criterion is in no loop


def repeated(loader: Any) -> int:
    """Samples that the processes after the first ones see a second time, one each, at the end of an epoch of their loader.

    >>> from torch.utils.data import DataLoader
    >>> repeated(DataLoader(range(5), sampler=DistributedSampler(range(5), num_replicas=4, rank=0)))
    3
    """
    sampler = getattr(loader, "sampler", None)
    if not isinstance(sampler, DistributedSampler) or sampler.drop_last:
        return 0
    if getattr(loader, "drop_last", False) and sampler.num_samples % loader.batch_size:
        return 0  # the batch that they are in is not given out
    return sampler.total_size - len(sampler.dataset)  # type: ignore[arg-type]
