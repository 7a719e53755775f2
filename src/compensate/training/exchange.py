"""Copies of a criterion that went their own ways made equal again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from compensate.equation import Compensated
from compensate.granularity import Sample, Table
from compensate.inference.statistics import Merge, Statistic
from compensate.stores import Kept, Packed
from compensate.training.distribution import Processes


@final
class Exchange:
    r"""For loops in which each process evaluates the criterion on its own slice of the batch, once an epoch or more often.

    Every buffer becomes one as it declares. With :math:`b` its value after the last exchange and :math:`b_r` that of
    process :math:`r` of :math:`W` now:

    .. math:: b \leftarrow b + \sum_r (b_r - b) \text{ (sum)}, \qquad b \leftarrow b + \frac1W \sum_r (b_r - b)
              \text{ (mean)}, \qquad b[k] \leftarrow b_r[k] \text{ where } b_r[k] \ne b[k] \text{ (rows)}

    Of a table with a row per sample only the rows that changed travel. This is exact where no two processes visit one
    sample between exchanges, and where a method reads nothing but its own samples until then; `together` and `fit` need
    neither.

    Args:
        criterion: equal in all processes at this moment.
        processes: those that were started, if not given.

    Usage: ``exchange = Exchange(criterion)``; after each epoch ``exchange.end_epoch()`` instead of
    ``criterion.end_epoch()``; before a checkpoint ``exchange()``.

    >>> from compensate import methods
    >>> criterion = methods.logcomp(num_samples=10, num_classes=2)
    >>> exchange = Exchange(criterion)
    >>> exchange.end_epoch()      # in every process, where `criterion.end_epoch()` would stand; alone it changes nothing
    """

    def __init__(self, criterion: Compensated, processes: Processes | None = None) -> None:
        self.criterion = criterion
        self.processes = Processes.current() if processes is None else processes
        self._before = self._copies()
        if self.processes.size > 1:
            for kept in self._kept():
                kept.store.watch()

    def __call__(self) -> None:
        """Makes all copies equal."""
        if self.processes.size > 1:
            for name, buffer, merge in self._parts():
                self._merge(buffer, self._before[name], merge)
            for kept in self._kept():
                self._swap(kept)
            self._before = self._copies()

    def end_epoch(self) -> None:
        """Makes all copies equal, and then ends the epoch of the criterion."""
        self()
        self.criterion.end_epoch()
        self._before = self._copies()

    @torch.no_grad()
    def _merge(self, now: Tensor, before: Tensor, merge: Merge) -> None:
        if merge == "rows":
            self._rows(now, before)
        else:
            change = self.processes.sum(now - before)
            now.copy_(before + (change if merge == "sum" else change / self.processes.size))

    def _rows(self, now: Tensor, before: Tensor) -> None:
        keys = (now != before).flatten(1).any(1).nonzero()[:, 0] if now.ndim > 1 else (now != before).nonzero()[:, 0]
        counts = torch.zeros(self.processes.size, dtype=torch.long, device=now.device)
        counts[self.processes.rank] = len(keys)
        most = int(self.processes.sum(counts).max())
        if most == 0:
            return
        all_keys, all_rows = self._gather(keys, most), self._gather(now[keys], most)
        for count, theirs, rows in zip(counts.tolist(), all_keys, all_rows, strict=True):
            now[theirs[:count]] = rows[:count].to(now.dtype)

    def _swap(self, kept: Kept) -> None:
        """Rows of a store that were written since the last exchange, sent without their zeros."""
        store = kept.store
        mine = store.pack(store.changed()).tensors()
        sizes = torch.zeros(self.processes.size, 2, dtype=torch.long)
        sizes[self.processes.rank] = torch.tensor([len(mine["rows"]), len(mine["columns"])])
        sizes = self.processes.sum(sizes)
        rows, entries = sizes.amax(0).tolist()
        most = {"rows": rows, "counts": rows, "columns": entries, "values": entries}
        theirs = {name: self._gather(mine[name], most[name]) for name in most}
        for rank, (rows, entries) in enumerate(sizes.tolist()):
            if rank != self.processes.rank:
                ends = {"rows": rows, "counts": rows, "columns": entries, "values": entries}
                store.put(Packed.from_tensors({name: theirs[name][rank][: ends[name]] for name in ends}))
        store.changed()  # what came from others is known to all

    def _gather(self, values: Tensor, size: int) -> list[Tensor]:
        # Not every channel takes numbers of 16 bits.
        kind = torch.int32 if values.dtype == torch.int16 else values.dtype
        padded = values.new_zeros(size, *values.shape[1:], dtype=kind)
        padded[: len(values)] = values
        parts = [torch.empty_like(padded) for _ in range(self.processes.size)]
        dist.all_gather(parts, padded, group=self.processes.group)
        return parts

    def _parts(self) -> Iterator[tuple[str, Tensor, Merge]]:
        """Name, value and kind of everything that processes may disagree on."""
        for path, module in self.criterion.named_modules():
            yield from ((f"{path}.{name}", value, merge) for name, value, merge in _declared(module) if merge != "same")

    def _kept(self) -> list[Kept]:
        return [table.kept for table in self.criterion.tables() if table.kept is not None]

    def _copies(self) -> dict[str, Tensor]:
        if self.processes.size == 1:
            return {}
        return {name: value.detach().clone() for name, value, _ in self._parts()}


def _declared(module: nn.Module) -> Iterator[tuple[str, Tensor, Merge]]:
    if isinstance(module, Statistic):
        for name, merge in module.merges.items():
            yield name, getattr(module, name), merge
    elif isinstance(module, Table) and module.kept is None:
        # Rows that samples of several processes share have no owner: their steps are averaged.
        yield "weight", module.weight.data, "rows" if isinstance(module, Sample) else "mean"
