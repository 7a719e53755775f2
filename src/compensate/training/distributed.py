r"""Data parallel training in several processes, and `Exchange`, which merges copies of a criterion.

A global batch is cut in slices, one for each process. Each process runs the model on its slice; the *logits* are gathered, and every
process evaluates the criterion on the whole batch. Tables, statistics and thresholds then see the same batch as in a single process
and stay equal everywhere. Only (B, C) logits travel in the forward pass, and the model's gradient in the backward pass.

Two operators, each the other's transpose, are enough:

.. math:: \mathrm{gather}: (u_1, \dots, u_W) \mapsto u, \qquad \mathrm{scatter}: e \mapsto e_r

The gradient of `gather` is the process's own slice, because every process knows the whole loss. The gradient of `scatter` is the gathered
slices. Inner loops (adversarial training), features read by terms and gradients of gradients follow by the chain rule.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from compensate.core.criterion import Compensated
from compensate.core.layout import HeldRows, holding_rows, keep_alike
from compensate.core.stages import ModelStages
from compensate.core.statistics import Merge, Statistic
from compensate.core.stores import PARTS, Packed, RowStore, without_zeros
from compensate.core.tables import Sample, Table
from compensate.data import Dataset, ranges_of
from compensate.errors import InputError
from compensate.methods.registry import Need


class Processes:
    """The processes of a run.

    Args:
        size: their number.
        rank: the number of this one.
        group: process group of batches. Gradients of the model use the default group.

    >>> Processes(3, rank=1).bounds(7)
    [(0, 3), (3, 5), (5, 7)]
    """

    def __init__(self, size: int = 1, rank: int = 0, group: Any = None) -> None:
        self.size, self.rank, self.group = size, rank, group

    @classmethod
    def current(cls) -> Processes:
        """The processes of `torchrun` or `accelerate launch`, or this one alone."""
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return cls()
        return cls(dist.get_world_size(), dist.get_rank(), dist.new_group())

    @classmethod
    def launched(cls) -> Processes:
        """As `current`, after joining the process group if several were launched."""
        if int(os.environ.get("WORLD_SIZE", "1")) > 1 and dist.is_available() and not dist.is_initialized():
            dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        return cls.current()

    @property
    def main(self) -> bool:
        """True for the process that writes files and prints."""
        return self.rank == 0

    def bounds(self, n: int) -> list[tuple[int, int]]:
        """Begin and end of each process's slice of n samples; sizes differ by at most one."""
        sizes = [n // self.size + (r < n % self.size) for r in range(self.size)]
        ends = np.cumsum(sizes).tolist()
        return [(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    def slice(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """This process's slice of the rows of a global batch."""
        begin, end = self.bounds(len(rows))[self.rank]
        return rows[begin:end]

    def gather(self, local: Tensor, n: int) -> Tensor:
        """(n, ...) the whole batch from all slices, with gradients to the own slice."""
        if self.size == 1:
            return local
        keep_alike()
        return _Gather.apply(local, self, n)  # type: ignore[no-untyped-call]

    def scatter(self, whole: Tensor) -> Tensor:
        """The own slice of a batch that all processes have, with gradients to the whole batch."""
        return whole if self.size == 1 else _Scatter.apply(whole, self)  # type: ignore[no-untyped-call]

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size > 1:
            dist.all_reduce(value, group=self.group)
        return value

    def collect(self, values: Tensor) -> list[Tensor]:
        """The values of each process, of any length, in all processes."""
        if self.size == 1:
            return [values]
        lengths = torch.zeros(self.size, dtype=torch.long, device=values.device)
        lengths[self.rank] = len(values)
        counts = self.sum(lengths).tolist()
        # Not every backend supports int16.
        kind = torch.int32 if values.dtype == torch.int16 else values.dtype
        padded = values.new_zeros(max(counts), *values.shape[1:], dtype=kind)
        padded[: len(values)] = values
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded, group=self.group)
        return [part[:count].to(values.dtype) for part, count in zip(parts, counts, strict=True)]

    def gather_to_main(self, own: Any) -> list[Any] | None:
        """The objects of all processes in the main one; None in the others."""
        if self.size == 1:
            return [own]
        objects = [None] * self.size if self.main else None
        dist.gather_object(own, objects, 0, group=self.group)
        return objects

    def broadcast(self, tensors: Iterator[Tensor]) -> None:
        """Copies the main process's values to all processes."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0, group=self.group)

    def wait(self) -> None:
        """Waits for all processes."""
        if self.size > 1:
            dist.barrier(group=self.group)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, processes: Processes, n: int) -> Tensor:
        ctx.processes = processes
        bounds = processes.bounds(n)
        padded = local.new_zeros(max(end - begin for begin, end in bounds), *local.shape[1:])  # slices of one size
        padded[: len(local)] = local
        parts = [torch.empty_like(padded) for _ in bounds]
        dist.all_gather(parts, padded, group=processes.group)
        return torch.cat([part[: end - begin] for part, (begin, end) in zip(parts, bounds, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.processes.scatter(grad), None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, processes: Processes) -> Tensor:
        ctx.processes, ctx.n = processes, len(whole)
        begin, end = processes.bounds(len(whole))[processes.rank]
        return whole[begin:end].clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.processes.gather(grad.contiguous(), ctx.n), None


class _Share(torch.autograd.Function):
    """A weight that terms read: every process computes its whole gradient, and the mean over processes counts it once."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, size: int) -> Tensor:
        ctx.size = size
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad / ctx.size, None


@contextmanager
def own_random_numbers(rank: int) -> Iterator[None]:
    """A context in which each process draws other random numbers; afterwards all generators are equal again."""
    seed = int(torch.randint(2**62, ()).item())
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed + rank)
        yield


class GatheredModel(nn.Module):
    """The model as the criterion sees it: it computes the own slice of a batch and returns the whole batch.

    Args:
        model: the model.
        processes: the processes that share the batch.
        given: whether inputs are the whole batch, as terms on features need them, or the own slice.
    """

    def __init__(self, model: nn.Module, processes: Processes, *, given: bool) -> None:
        super().__init__()
        self.model, self.processes, self.given = model, processes, given
        self.n = 0

    def expect(self, n: int) -> None:
        """Sets the size of the next global batch."""
        self.n = n

    def run_slice(self, stage: Callable[[Any], Tensor], x: Any, *, whole: bool | None = None) -> Tensor:
        """The gathered output of a stage that runs on the own slice of `x`."""
        with own_random_numbers(self.processes.rank):
            part = stage(self.processes.scatter(x) if (self.given if whole is None else whole) else x)
        return self.processes.gather(part, self.n)

    def forward(self, x: Any) -> Tensor:
        """(B, C) logits of the whole batch."""
        return self.run_slice(self.model, x)


class GatheredStages(GatheredModel):
    """As `GatheredModel`, for a model in stages, whose features and head terms may read."""

    def __init__(self, model: nn.Module, processes: Processes, *, given: bool) -> None:
        super().__init__(model, processes, given=given)
        self.stages = [ModelStages.of(model)]  # in a list: its layers must not be registered a second time
        if self.stages[0].padding is not None:
            self.padding = self.stages[0].padding

    def embed(self, x: Any) -> Any:
        """The input that feature compensation is added to: of the whole batch if `given`, else of the slice."""
        embed = self.stages[0].embed
        if embed is None:
            return x
        if not self.given:
            return embed(x)
        e = embed(self.processes.scatter(x))
        # A stage without weights is cheaper to run on the whole batch than to gather.
        return self.processes.gather(e, self.n) if e.requires_grad else embed(x)

    def features(self, e: Any) -> Tensor:
        """(B, D) features of the whole batch."""
        stage = self.stages[0].features
        assert stage is not None
        return self.run_slice(stage, e)

    @property
    def head(self) -> _Head:
        """The classifier."""
        return _Head(self)

    def forward(self, x: Any) -> Tensor:
        """(B, C) logits of the whole batch."""
        return self.head(self.features(self.embed(x)))


class _Head:
    """The classifier layer for terms: it maps features of the whole batch to logits, and its weights can be read."""

    def __init__(self, owner: GatheredStages) -> None:
        self._owner, self._layer = owner, owner.stages[0].head

    def __call__(self, z: Tensor) -> Tensor:
        assert self._layer is not None
        return self._owner.run_slice(self._layer, z, whole=True)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._layer, name)
        if isinstance(value, Tensor) and value.requires_grad:
            return _Share.apply(value, self._owner.processes.size)  # type: ignore[no-untyped-call]
        return value


def together(*tensors: Tensor, group: Any = None) -> tuple[Tensor, ...]:
    """The whole batch from the slices of all processes, for a custom training loop under DDP.

    ``loss = criterion(*together(model(x), target, index))`` equals ``criterion(model(x), target, index)`` in one process: tables,
    statistics and thresholds see the global batch and stay equal everywhere. All slices need the same size. Gradients are scaled:
    their mean over processes, which DDP takes, is the gradient of the whole batch. A single process gets its tensors back.

    >>> u, y = torch.randn(2, 3), torch.tensor([0, 1])
    >>> [tuple(t.shape) for t in together(u, y)]      # one process: the batch as it is
    [(2, 3), (2,)]
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return tensors
    processes = Processes(dist.get_world_size(), dist.get_rank(), group)
    whole = (processes.gather(t, len(t) * processes.size) for t in tensors)
    return tuple(
        _Share.apply(t, 1 / processes.size) if t.requires_grad else t  # type: ignore[no-untyped-call]
        for t in whole
    )


@final
class Exchange:
    r"""Merges the copies of a criterion that each process evaluates on its own slice of the batch, once an epoch or more often.

    Every buffer declares how it is merged. With :math:`b` its value after the last exchange and :math:`b_r` the present value in
    process :math:`r` of :math:`W`:

    .. math:: b \leftarrow b + \sum_r (b_r - b) \text{ (sum)}, \qquad b \leftarrow b + \frac1W \sum_r (b_r - b)
              \text{ (mean)}, \qquad b[k] \leftarrow b_r[k] \text{ where } b_r[k] \ne b[k] \text{ (rows)}

    Only the changed rows of tables per sample travel. This is exact if no two processes visit the same sample between exchanges,
    and if the method reads only the rows of its own samples until then; `together` and `fit` need neither.

    Args:
        criterion: equal in all processes at this moment.
        processes: the launched processes by default.
        rows: whether rows of samples are sent; false if each process holds only the rows of its own samples.

    Usage: ``exchange = Exchange(criterion)``; after each epoch ``exchange.end_epoch()`` instead of
    ``criterion.end_epoch()``; before a checkpoint ``exchange()``.

    >>> from compensate import methods
    >>> criterion = methods.logcomp(num_samples=10, num_classes=2)
    >>> exchange = Exchange(criterion)
    >>> exchange.end_epoch()      # in every process, instead of `criterion.end_epoch()`
    """

    def __init__(self, criterion: Compensated, processes: Processes | None = None, *, rows: bool = True) -> None:
        self.criterion, self.rows = criterion, rows
        self.processes = Processes.current() if processes is None else processes
        self._before = self._copies()
        if self.processes.size > 1:
            keep_alike()
            for store in self._stores():
                store.watch()

    def __call__(self) -> None:
        """Merges all copies."""
        if self.processes.size > 1:
            for name, buffer, merge in self._parts():
                self._merge(buffer, self._before[name], merge)
            for store in self._stores():
                self._send_rows(store)
            self._before = self._copies()

    def end_epoch(self) -> None:
        """Merges all copies and ends the epoch of the criterion."""
        self()
        self.criterion.end_epoch()
        self._before = self._copies()

    @torch.no_grad()
    def _merge(self, now: Tensor, before: Tensor, merge: Merge) -> None:
        if merge != "rows":
            change = self.processes.sum(now - before)
            now.copy_(before + (change if merge == "sum" else change / self.processes.size))
            return
        differs = now != before
        keys = (differs.flatten(1).any(1) if differs.ndim > 1 else differs).nonzero()[:, 0]
        all_keys, all_rows = self.processes.collect(keys), self.processes.collect(now[keys])
        for theirs, rows in zip(all_keys, all_rows, strict=True):
            now[theirs] = rows

    def _send_rows(self, store: RowStore) -> None:
        """Exchanges rows of a store that changed since the last exchange, without their zeros."""
        mine = store.pack(store.changed()).tensors()
        theirs = {name: self.processes.collect(part) for name, part in mine.items()}
        for rank in range(self.processes.size):
            if rank != self.processes.rank:
                store.put(Packed.from_tensors({name: parts[rank] for name, parts in theirs.items()}))
        store.changed()  # forget the rows that came from others

    def _parts(self) -> Iterator[tuple[str, Tensor, Merge]]:
        """Name, value and merge of everything that may differ between processes."""
        alike = ("same",) if self.rows else ("same", "rows")
        for path, module in self.criterion.named_modules():
            declared: list[tuple[str, Tensor, Merge]] = []
            if isinstance(module, Statistic):
                declared = [(name, getattr(module, name), merge) for name, merge in module.merges.items()]
            elif isinstance(module, Table) and module.store is None:
                # Samples of several processes share these rows: their steps are averaged.
                declared = [("weight", module.weight.data, "rows" if isinstance(module, Sample) else "mean")]
            yield from ((f"{path}.{name}", value, merge) for name, value, merge in declared if merge not in alike)

    def _stores(self) -> list[RowStore]:
        return [table.store for table in self.criterion.tables() if table.store is not None] if self.rows else []

    def _copies(self) -> dict[str, Tensor]:
        if self.processes.size == 1:
            return {}
        return {name: value.detach().clone() for name, value, _ in self._parts()}


Rows = NDArray[np.int64]

INSTEAD = (
    'leave out order="ranges" (and backend="ray"): torchrun --nproc-per-node N -m compensate train ... trains every method in several '
    "processes, which hold all rows each."
)


class Ranges:
    """The range of samples that this process owns.

    Args:
        data: the training data.
        batch_size: size of the global batch.
        processes: the processes that share it.

    >>> data = Dataset(np.zeros((8, 2)), np.zeros(8, int), ("a",))
    >>> Ranges(data, 4, Processes(2, rank=1)).held
    HeldRows(first=4, last=8, of=8)
    """

    def __init__(self, data: Dataset, batch_size: int, processes: Processes) -> None:
        self.processes = processes
        count, whole = ranges_of(len(data), batch_size)
        if whole < processes.size:
            raise InputError(
                f"a batch of {whole} samples is too small for {processes.size} processes, which train on a part of it each. "
                "Use a larger batch_size (--batch-size), or fewer workers."
            )
        begin, end = (count * bound for bound in processes.bounds(whole)[processes.rank])
        ranked = np.sort(data.index)
        last = end == whole * count  # the last process also owns the samples after the last whole range
        self.held = HeldRows(int(ranked[begin]) if begin else 0, data.rows if last else int(ranked[end]), data.rows)

    def holding(self) -> AbstractContextManager[None]:
        """A context in which a new criterion holds the rows of this range."""
        return holding_rows(self.held)

    def own(self, rows: Rows, index: Rows) -> Rows:
        """The rows whose samples are in the range; `index` (N,) maps rows to samples."""
        samples = index[rows]
        return rows[(samples >= self.held.first) & (samples < self.held.last)]

    def gather(self, values: Tensor) -> Tensor:
        """The values of the samples of all slices."""
        return torch.cat(self.processes.collect(values))

    def share(self, own: Tensor | int) -> float:
        """The share of this process in a sum over all processes."""
        mine = torch.as_tensor(own, dtype=torch.float64).detach().cpu()
        return float(mine / self.processes.sum(mine.clone()))

    def whole_state(self, criterion: Compensated) -> dict[str, Tensor]:
        """The state of the criterion with the rows of all processes in the main one, and with the own rows in the others."""
        state = criterion.state_dict()
        mine: dict[str, Tensor] = {}
        for prefix, module, names in _by_sample(criterion):
            rows = {name: state.pop(prefix + name).cpu() for name in names}
            # If any process keeps a table without its zeros, all processes send it so.
            if isinstance(module, Sample) and self.processes.sum(torch.tensor(float(module.store is not None))):
                packed = without_zeros(module.weight) if module.store is None else module.store.pack()
                rows = packed.tensors()
                rows["rows"] = rows["rows"] + module.first_row
            mine |= {prefix + name: value for name, value in rows.items()}
        parts = self.processes.gather_to_main(mine)
        return state | (mine if parts is None else {name: torch.cat([part[name] for part in parts]) for name in mine})

    def part_of_state(self, criterion: Compensated, whole: dict[str, Tensor]) -> dict[str, Tensor]:
        """The part of the state of all samples that this process holds."""
        state = dict(whole)
        for prefix, module, names in _by_sample(criterion):
            rows = module.shape[0] if isinstance(module, Sample) else len(getattr(module, names[0]))
            held = slice(module.first_row, module.first_row + rows)
            if isinstance(module, Sample) and f"{prefix}rows" in state:
                packed = {name: state[prefix + name] for name in PARTS}
                inside = (packed["rows"] >= held.start) & (packed["rows"] < held.stop)
                entries = inside.repeat_interleave(packed["counts"].long())
                kept = {"rows": packed["rows"][inside] - held.start, "counts": packed["counts"][inside]}
                kept |= {name: packed[name][entries] for name in ("columns", "values")}
                state |= {prefix + name: value for name, value in kept.items()}
            elif isinstance(module, Sample):
                state[f"{prefix}weight"] = state[f"{prefix}weight"][held].clone()
            else:
                state |= {prefix + name: state[prefix + name][held].clone() for name in names}
        return state


def _by_sample(criterion: Compensated) -> Iterator[tuple[str, Sample | Statistic, list[str]]]:
    """Modules with a row for each sample: the prefix of their names in a state, the module, and its names."""
    for path, module in criterion.named_modules():
        prefix = f"{path}." if path else ""
        if isinstance(module, Sample):
            yield prefix, module, ["weight"] if module.store is None else list(PARTS)
        elif isinstance(module, Statistic) and (names := [n for n, merge in module.merges.items() if merge == "rows"]):
            yield prefix, module, names


def check_ranges(criterion: Compensated, needs: Collection[Need], name: str) -> None:
    """Raises for a method whose result changes if each process evaluates its own slice of a batch."""
    obstacle = "takes a meta step on the whole batch" if "clean" in needs else None
    for module in criterion.modules():
        obstacle = obstacle or _obstacle(module)
    if obstacle:
        raise InputError(
            f"{name} {obstacle}, and its batches cannot be cut among processes by ranges of samples; {INSTEAD}"
        )


def _obstacle(module: nn.Module) -> str | None:
    kind = type(module).__name__
    if getattr(module, "whole_batch", False):
        return f"has a term, {kind}, that compares the samples of a batch"
    if isinstance(module, Table) and not isinstance(module, Sample):
        return f"learns a {kind} table, whose rows belong to no process"
    if isinstance(module, Statistic):
        merges = {*module.merges.values()}
        if module.rolls and {"rows", "same"} <= merges:
            return f"reads {kind}, which is computed after each epoch from the rows of all samples"
        if "mean" in merges or ("sum" in merges and module.observes == "logits"):
            return f"reads {kind}, which has to see the whole batch at once"
    return None
