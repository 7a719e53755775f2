r"""Several processes that train as one; `Exchange` makes copies of a criterion that went their own ways equal again.

A global batch is cut in slices, one a process. Each process runs the model on its own slice only; the *logits* are then
gathered, and every process evaluates the criterion on the whole batch. Tables, statistics and thresholds therefore see
in every process what they would see in one, take the same step everywhere and stay equal: no row of a table ever needs
to travel, and a threshold over the top percent counts the global batch by itself. What travels is (B, C) logits in the
forward pass and the gradient of the model in the backward pass.

Two operators, each the other's transpose, are all it takes:

.. math:: \mathrm{gather}: (u_1, \dots, u_W) \mapsto u, \qquad \mathrm{scatter}: e \mapsto e_r

`gather` hands every process the whole; its gradient is the process's own slice, because the whole loss is known to all.
`scatter` takes the own slice; its gradient is the gathered slices. Inner loops (adversarial training), features read by terms
and gradients of gradients follow by the chain rule.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
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
    """The processes of a run: how many, which one this is, and the channel that batches travel on.

    Args:
        size: their number.
        rank: which one this is.
        group: the channel; gradients of the model have their own, so that the two never wait for each other.

    >>> Processes(3, rank=1).bounds(7)
    [(0, 3), (3, 5), (5, 7)]
    """

    def __init__(self, size: int = 1, rank: int = 0, group: Any = None) -> None:
        self.size, self.rank, self.group = size, rank, group

    @classmethod
    def current(cls) -> Processes:
        """Those that `torchrun` or `accelerate launch` started, or the one there is."""
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return cls()
        return cls(dist.get_world_size(), dist.get_rank(), dist.new_group())

    @classmethod
    def launched(cls) -> Processes:
        """As `current`, and joins them if `torchrun` or `accelerate launch` started several."""
        if int(os.environ.get("WORLD_SIZE", "1")) > 1 and dist.is_available() and not dist.is_initialized():
            dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        return cls.current()

    @property
    def main(self) -> bool:
        """True for the one that writes files and talks."""
        return self.rank == 0

    def bounds(self, n: int) -> list[tuple[int, int]]:
        """Begin and end of each process's slice of n samples; sizes differ by at most one.

        >>> Processes(3).bounds(7)
        [(0, 3), (3, 5), (5, 7)]
        """
        sizes = [n // self.size + (r < n % self.size) for r in range(self.size)]
        ends = np.cumsum(sizes).tolist()
        return [(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    def slice(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """This process's part of the positions of a global batch."""
        begin, end = self.bounds(len(rows))[self.rank]
        return rows[begin:end]

    def gather(self, local: Tensor, n: int) -> Tensor:
        """(n, ...) the whole batch from everyone's slice, with gradients to the own slice."""
        if self.size == 1:
            return local
        keep_alike()
        return _Gather.apply(local, self, n)  # type: ignore[no-untyped-call]

    def scatter(self, whole: Tensor) -> Tensor:
        """The own slice of a batch that all processes have, with gradients to all of it."""
        return whole if self.size == 1 else _Scatter.apply(whole, self)  # type: ignore[no-untyped-call]

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size > 1:
            dist.all_reduce(value, group=self.group)
        return value

    def collect(self, values: Tensor) -> list[Tensor]:
        """What each process has, of any length each, in all of them."""
        if self.size == 1:
            return [values]
        lengths = torch.zeros(self.size, dtype=torch.long, device=values.device)
        lengths[self.rank] = len(values)
        counts = self.sum(lengths).tolist()
        # Not every channel takes numbers of 16 bits.
        kind = torch.int32 if values.dtype == torch.int16 else values.dtype
        padded = values.new_zeros(max(counts), *values.shape[1:], dtype=kind)
        padded[: len(values)] = values
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded, group=self.group)
        return [part[:count].to(values.dtype) for part, count in zip(parts, counts, strict=True)]

    def bring(self, own: Any) -> list[Any] | None:
        """What each process has, in the main one; None in the others."""
        if self.size == 1:
            return [own]
        found = [None] * self.size if self.main else None
        dist.gather_object(own, found, 0, group=self.group)
        return found

    def share(self, tensors: Iterator[Tensor]) -> None:
        """The main process's values for all."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0, group=self.group)

    def wait(self) -> None:
        """Until all are here."""
        if self.size > 1:
            dist.barrier(group=self.group)


def _all(local: Tensor, processes: Processes, n: int) -> Tensor:
    """Everyone's slice, in order. Slices are padded to one size, which the channel asks for."""
    bounds = processes.bounds(n)
    size = max(end - begin for begin, end in bounds)
    padded = local.new_zeros(size, *local.shape[1:])
    padded[: len(local)] = local
    parts = [torch.empty_like(padded) for _ in bounds]
    dist.all_gather(parts, padded, group=processes.group)
    return torch.cat([part[: end - begin] for part, (begin, end) in zip(parts, bounds, strict=True)])


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, processes: Processes, n: int) -> Tensor:
        ctx.processes = processes
        return _all(local, processes, n)

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
    """A weight as terms see it: all processes find its whole gradient, and the mean over them counts it once."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, size: int) -> Tensor:
        ctx.size = size
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad / ctx.size, None


@contextmanager
def apart(rank: int) -> Iterator[None]:
    """Random numbers inside differ from process to process; outside, all processes stay in step."""
    seed = int(torch.randint(2**62, ()).item())
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed + rank)
        yield


class Whole(nn.Module):
    """The model as the criterion sees it: what it returns is of the whole batch, what it computes is of the own slice.

    Args:
        model: the model.
        processes: those that share the batch.
        given: whether inputs are of the whole batch, as terms on features need them, or of the own slice.
    """

    def __init__(self, model: nn.Module, processes: Processes, *, given: bool) -> None:
        super().__init__()
        self.model, self.processes, self.given = model, processes, given
        self.n = 0

    def expect(self, n: int) -> None:
        """Before each step: the number of samples of the whole batch."""
        self.n = n

    def own(self, x: Any) -> Any:
        """The own slice of an input."""
        return self.processes.scatter(x) if self.given else x

    def forward(self, x: Any) -> Tensor:
        """(B, C) logits of the whole batch."""
        with apart(self.processes.rank):
            u = self.model(self.own(x))
        return self.processes.gather(u, self.n)


class WholeStages(nn.Module):
    """As `Whole`, for a model in stages, whose features and head terms may read."""

    def __init__(self, model: nn.Module, processes: Processes, *, given: bool) -> None:
        super().__init__()
        self.whole = Whole(model, processes, given=given)
        stages = ModelStages.of(model)
        self._stages = [stages]  # in a list: a stage that is a layer must not be registered a second time
        if stages.padding is not None:
            self.padding = stages.padding

    def expect(self, n: int) -> None:
        """Before each step: the number of samples of the whole batch."""
        self.whole.expect(n)

    @property
    def _model(self) -> ModelStages:
        return self._stages[0]

    def _gather(self, local: Tensor) -> Tensor:
        return self.whole.processes.gather(local, self.whole.n)

    def embed(self, x: Any) -> Any:
        """The input that feature compensation is added to: of the whole batch if there is any, else of the slice."""
        embed = self._model.embed
        if embed is None:
            return x
        if not self.whole.given:
            return embed(x)
        e = embed(self.whole.own(x))
        # A stage without weights costs less to run on everything than to send.
        return self._gather(e) if e.requires_grad else embed(x)

    def features(self, e: Any) -> Tensor:
        """(B, D) features of the whole batch."""
        assert self._model.features is not None
        with apart(self.whole.processes.rank):
            z = self._model.features(self.whole.own(e))
        return self._gather(z)

    @property
    def head(self) -> _Head:
        """The classifier."""
        return _Head(self)

    def forward(self, x: Any) -> Tensor:
        """(B, C) logits of the whole batch."""
        return self.head(self.features(self.embed(x)))


class _Head:
    """The classifier layer for terms: called, it takes features of the whole batch; its weights can be read."""

    def __init__(self, stages: WholeStages) -> None:
        self._owner = stages

    def __call__(self, z: Tensor) -> Tensor:
        owner = self._owner
        head = owner._model.head
        assert head is not None
        with apart(owner.whole.processes.rank):
            u = head(owner.whole.processes.scatter(z))
        return owner._gather(u)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._owner._model.head, name)
        if isinstance(value, Tensor) and value.requires_grad:
            return _Share.apply(value, self._owner.whole.processes.size)  # type: ignore[no-untyped-call]
        return value


def together(*tensors: Tensor, group: Any = None) -> tuple[Tensor, ...]:
    """The whole batch from the slices of all processes, for a custom training loop under DDP.

    ``loss = criterion(*together(model(x), target, index))`` is what ``criterion(model(x), target, index)`` is in one
    process: tables, statistics and thresholds see the global batch and stay equal everywhere. All processes need slices of
    one size. Gradients are scaled so that the mean over processes, which DDP takes, is the gradient of the whole.

    In one process the tensors come back as they are.

    >>> u, y = torch.randn(2, 3), torch.tensor([0, 1])
    >>> [tuple(t.shape) for t in together(u, y)]      # one process: the batch as it is
    [(2, 3), (2,)]
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return tensors
    processes = Processes(dist.get_world_size(), dist.get_rank(), group)
    return tuple(
        _Share.apply(processes.gather(t, len(t) * processes.size), 1 / processes.size)  # type: ignore[no-untyped-call]
        if t.requires_grad
        else processes.gather(t, len(t) * processes.size)
        for t in tensors
    )


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
        rows: whether rows of samples are sent; not where each process holds those of its own samples alone.

    Usage: ``exchange = Exchange(criterion)``; after each epoch ``exchange.end_epoch()`` instead of
    ``criterion.end_epoch()``; before a checkpoint ``exchange()``.

    >>> from compensate import methods
    >>> criterion = methods.logcomp(num_samples=10, num_classes=2)
    >>> exchange = Exchange(criterion)
    >>> exchange.end_epoch()      # in every process, where `criterion.end_epoch()` would stand; alone it changes nothing
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
        """Makes all copies equal."""
        if self.processes.size > 1:
            for name, buffer, merge in self._parts():
                self._merge(buffer, self._before[name], merge)
            for store in self._stores():
                self._swap(store)
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
        all_keys, all_rows = self.processes.collect(keys), self.processes.collect(now[keys])
        for theirs, rows in zip(all_keys, all_rows, strict=True):
            now[theirs] = rows

    def _swap(self, store: RowStore) -> None:
        """Rows of a store that were written since the last exchange, sent without their zeros."""
        mine = store.pack(store.changed()).tensors()
        theirs = {name: self.processes.collect(part) for name, part in mine.items()}
        for rank in range(self.processes.size):
            if rank != self.processes.rank:
                store.put(Packed.from_tensors({name: parts[rank] for name, parts in theirs.items()}))
        store.changed()  # what came from others is known to all

    def _parts(self) -> Iterator[tuple[str, Tensor, Merge]]:
        """Name, value and kind of everything that processes may disagree on."""
        alike = ("same",) if self.rows else ("same", "rows")
        for path, module in self.criterion.named_modules():
            yield from (
                (f"{path}.{name}", value, merge) for name, value, merge in _declared(module) if merge not in alike
            )

    def _stores(self) -> list[RowStore]:
        return [table.store for table in self.criterion.tables() if table.store is not None] if self.rows else []

    def _copies(self) -> dict[str, Tensor]:
        if self.processes.size == 1:
            return {}
        return {name: value.detach().clone() for name, value, _ in self._parts()}


def _declared(module: nn.Module) -> Iterator[tuple[str, Tensor, Merge]]:
    if isinstance(module, Statistic):
        for name, merge in module.merges.items():
            yield name, getattr(module, name), merge
    elif isinstance(module, Table) and module.store is None:
        # Rows that samples of several processes share have no owner: their steps are averaged.
        yield "weight", module.weight.data, "rows" if isinstance(module, Sample) else "mean"


Rows = NDArray[np.int64]

INSTEAD = (
    'leave out order="ranges" (and backend="ray"): torchrun --nproc-per-node N -m compensate train ... trains in several processes '
    "that hold all rows each, which serves every method."
)


class Ranges:
    """The range of samples that this process owns.

    Args:
        data: the training data.
        batch_size: of the whole batch.
        processes: those that share it.

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
                "Take a larger batch_size (--batch-size), or fewer workers."
            )
        begin, end = (count * bound for bound in processes.bounds(whole)[processes.rank])
        ranked = np.sort(data.index)
        last = end == whole * count  # what is left over after the last whole range is its, too
        self.held = HeldRows(int(ranked[begin]) if begin else 0, data.rows if last else int(ranked[end]), data.rows)

    def holding(self) -> AbstractContextManager[None]:
        """A criterion that is made inside holds the rows of this range."""
        return holding_rows(self.held)

    def own(self, rows: Rows, index: Rows) -> Rows:
        """Those of some positions in the data whose samples are in the range; `index` (N,) has the sample at each position."""
        samples = index[rows]
        return rows[(samples >= self.held.first) & (samples < self.held.last)]

    def everyone(self, values: Tensor) -> Tensor:
        """Numbers of the samples of all slices."""
        return torch.cat(self.processes.collect(values))

    def part(self, own: Tensor | int) -> float:
        """The part of this process in a sum over all of them."""
        mine = torch.as_tensor(own, dtype=torch.float64).detach().cpu()
        return float(mine / self.processes.sum(mine.clone()))

    # --- checkpoints ------------------------------------------------------------------------------------------

    def whole_state(self, criterion: Compensated) -> dict[str, Tensor]:
        """The state of the criterion with the rows of all processes, in the main one; the others get what they have."""
        state = criterion.state_dict()
        mine: dict[str, Tensor] = {}
        for prefix, module, names in _cut(criterion):
            found = {prefix + name: state.pop(prefix + name).cpu() for name in names}
            mine |= self._rows(module, prefix, found) if isinstance(module, Sample) else found
        parts = self.processes.bring(mine)
        return state | (mine if parts is None else {name: torch.cat([part[name] for part in parts]) for name in mine})

    def _rows(self, table: Sample, prefix: str, found: dict[str, Tensor]) -> dict[str, Tensor]:
        """The rows of a table as they are sent: without their zeros if any process keeps them so, by the memory that it found."""
        if not self.processes.sum(torch.tensor(float(table.store is not None))):
            return found
        packed = without_zeros(table.weight) if table.store is None else table.store.pack()
        sent = packed.tensors()
        return {prefix + name: value + table.first_row if name == "rows" else value for name, value in sent.items()}

    def part_of_state(self, criterion: Compensated, whole: dict[str, Tensor]) -> dict[str, Tensor]:
        """Of the state of all samples, what this process holds."""
        state = dict(whole)
        for prefix, module, names in _cut(criterion):
            rows = module.shape[0] if isinstance(module, Sample) else len(getattr(module, names[0]))
            held = slice(module.first_row, module.first_row + rows)
            if isinstance(module, Sample) and f"{prefix}rows" in state:
                state |= _held_rows({name: state[prefix + name] for name in PARTS}, prefix, held)
            elif isinstance(module, Sample):
                state[f"{prefix}weight"] = state[f"{prefix}weight"][held].clone()
            else:
                state |= {prefix + name: state[prefix + name][held].clone() for name in names}
        return state


def _cut(criterion: Compensated) -> Iterator[tuple[str, Sample | Statistic, list[str]]]:
    """What has a row for each sample: the beginning of its names in a state, itself, and the ends of these names."""
    for path, module in criterion.named_modules():
        prefix = f"{path}." if path else ""
        if isinstance(module, Sample):
            yield prefix, module, ["weight"] if module.store is None else list(PARTS)
        elif isinstance(module, Statistic) and (names := [n for n, merge in module.merges.items() if merge == "rows"]):
            yield prefix, module, names


def _held_rows(packed: dict[str, Tensor], prefix: str, held: slice) -> dict[str, Tensor]:
    """Rows without their zeros, of a range of the table, numbered from its begin."""
    inside = (packed["rows"] >= held.start) & (packed["rows"] < held.stop)
    entries = inside.repeat_interleave(packed["counts"].long())
    kept = {"rows": packed["rows"][inside] - held.start, "counts": packed["counts"][inside]}
    kept |= {name: packed[name][entries] for name in ("columns", "values")}
    return {prefix + name: value for name, value in kept.items()}


# --- what cannot be cut ---------------------------------------------------------------------------------------


def check_ranges(criterion: Compensated, needs: Collection[Need], name: str) -> None:
    """Raises for a method that would train otherwise than in one process, if each process evaluates its own slice of a batch."""
    found = "takes a meta step on the whole batch" if "clean" in needs else None
    for module in () if found else criterion.modules():
        found = found or _obstacle(module)
    if found:
        raise InputError(
            f"{name} {found}, and its batches cannot be cut among processes by ranges of samples; {INSTEAD}"
        )


def _obstacle(module: nn.Module) -> str | None:
    if getattr(module, "whole_batch", False):
        return f"has a term, {type(module).__name__}, that looks at the samples of a batch together"
    if isinstance(module, Table) and not isinstance(module, Sample):
        return f"learns a {type(module).__name__} table, whose rows belong to no process"
    if isinstance(module, Statistic):
        found = {*module.merges.values()}
        if module.rolls and {"rows", "same"} <= found:
            return f"reads {type(module).__name__}, which is found anew after each epoch from the rows of all samples"
        if "mean" in found or ("sum" in found and module.observes == "logits"):
            return f"reads {type(module).__name__}, which has to see the whole batch at once"
    return None
