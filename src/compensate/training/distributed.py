"""Devices, several processes that train together, and `Exchange`, which merges copies of a criterion.

Each process runs the model on its slice of a global batch. The *logits* are gathered, and every process evaluates the criterion on the
whole batch: tables, statistics and thresholds see the same batch as in a single process and stay equal everywhere. Two operators,
each the transpose of the other, are enough: `gather`, whose gradient is the own slice, because every process knows the whole loss, and
`scatter`, whose gradient is the gathered slices. Inner loops and gradients of gradients follow by the chain rule.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from compensate.core.criterion import Compensated, mark_synchronized
from compensate.core.layout import HeldRows
from compensate.core.stages import ModelStages, seeded
from compensate.core.statistics import Merge, Statistic
from compensate.core.stores import PARTS, Packed, RowStore, without_zeros
from compensate.core.tables import Sample, Table
from compensate.data import Dataset, ranges_of
from compensate.data.epochs import Rows
from compensate.errors import InputError, nearest
from compensate.methods.registry import Need


class Processes:
    """The processes of a run: their number, the rank of this one, and the process group of batches.

    Gradients of the model use the default group.

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
        return list(pairwise(np.cumsum([0, *sizes]).tolist()))

    def slice(self, whole: Any) -> Any:
        """This process's slice of a global batch."""
        begin, end = self.bounds(len(whole))[self.rank]
        return whole[begin:end]

    def gather(self, local: Tensor, n: int) -> Tensor:
        """(n, ...) the whole batch from all slices, with gradients to the own slice."""
        if self.size == 1:
            return local
        mark_synchronized()
        return _Gather.apply(local, self, n)  # type: ignore[no-untyped-call]

    def scatter(self, whole: Tensor) -> Tensor:
        """The own slice of a batch that all processes have, with gradients to the whole batch."""
        return whole if self.size == 1 else _Scatter.apply(whole, self)  # type: ignore[no-untyped-call]

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size > 1:
            dist.all_reduce(value, group=self.group)
        return value

    def collect(self, values: Tensor, counts: list[int] | None = None) -> list[Tensor]:
        """The values of each process, of any length, in all processes; `counts` are their lengths if known."""
        if self.size == 1:
            return [values]
        if counts is None:
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

    def broadcast(self, tensors: Iterator[Tensor]) -> None:
        """Copies the main process's values to all processes."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0, group=self.group)

    def wait(self) -> None:
        """Waits for all processes."""
        if self.size > 1:
            dist.barrier(group=self.group)


class Hardware:
    """A device (None for this process's graphics card, if any), a precision and the processes that share a batch.

    >>> Hardware("cpu", "fp16")
    Traceback (most recent call last):
    compensate.errors.InputError: fp16 needs a CUDA device, and this one is cpu. Use precision="bf16" or "no".
    """

    def __init__(
        self, device: torch.device | str | None = "cpu", precision: str = "no", processes: Processes | None = None
    ) -> None:
        if device is None:
            device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
        self.device, self.processes = torch.device(device), Processes() if processes is None else processes
        kinds = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}
        if precision not in kinds:
            raise InputError(f'precision is "{precision}"; {nearest(precision, list(kinds))}')
        if precision == "fp16" and self.device.type != "cuda":
            raise InputError(f'fp16 needs a CUDA device, and this one is {self.device}. Use precision="bf16" or "no".')
        self.dtype = kinds[precision]
        # Scales gradients into the range of fp16, and skips steps that overflow; otherwise it changes nothing.
        self.scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16")


def move(x: Any, device: torch.device | str) -> Any:
    """Moves tensors to the device, also inside tuples, lists and mappings; other values are returned unchanged.

    >>> move((torch.ones(1), "a"), "meta")
    (tensor(..., device='meta', size=(1,)), 'a')
    """
    if isinstance(x, Tensor):
        return x.to(device)
    if isinstance(x, tuple | list):
        return type(x)(move(part, device) for part in x)
    return {name: move(part, device) for name, part in x.items()} if isinstance(x, Mapping) else x


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, processes: Processes, n: int) -> Tensor:
        ctx.processes = processes
        return torch.cat(processes.collect(local, [end - begin for begin, end in processes.bounds(n)]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.processes.scatter(grad), None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, processes: Processes) -> Tensor:
        ctx.processes, ctx.n = processes, len(whole)
        return processes.slice(whole).clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.processes.gather(grad.contiguous(), ctx.n), None


def divided_gradient(value: Tensor, divisor: float) -> Tensor:
    """The value, with its gradient divided."""
    copy = value.clone()
    if copy.requires_grad:
        copy.register_hook(lambda grad: grad / divisor)
    return copy


def own_random_numbers(rank: int) -> AbstractContextManager[None]:
    """A context in which each process draws other random numbers; afterwards all generators are equal again."""
    seed = int(torch.randint(2**62, ()).item()) + rank
    return seeded(seed, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


class GatheredModel(nn.Module):
    """The model as the criterion sees it: it computes the own slice of a batch of `n` samples and returns the whole batch.

    Inputs are the whole batch if `given`, as terms on features need them, else the own slice.
    """

    def __init__(self, model: nn.Module, processes: Processes, *, given: bool) -> None:
        super().__init__()
        self.model, self.processes, self.given = model, processes, given
        self.n = 0

    def run_slice(self, stage: Callable[[Any], Tensor], x: Any, *, whole: bool) -> Tensor:
        """The gathered output of a stage that runs on the own slice; `whole` if `x` is the whole batch."""
        with own_random_numbers(self.processes.rank):
            part = stage(self.processes.scatter(x) if whole else x)
        return self.processes.gather(part, self.n)

    def forward(self, x: Any) -> Tensor:
        """(B, C) logits of the whole batch."""
        return self.run_slice(self.model, x, whole=self.given)


class GatheredStages(GatheredModel):
    """As `GatheredModel`, for a model in stages, whose features and head terms may read."""

    def __init__(self, model: nn.Module, processes: Processes, *, given: bool) -> None:
        super().__init__(model, processes, given=given)
        self.stages: list[Any] = [ModelStages.of(model)]  # in a list: its layers must not be registered a second time
        self.padding, self.head = self.stages[0].padding, _Head(self)

    def embed(self, x: Any) -> Any:
        """The input that feature compensation is added to: of the whole batch if `given`, else of the slice."""
        embed = self.stages[0].embed
        if embed is None or not self.given:
            return x if embed is None else embed(x)
        e = embed(self.processes.scatter(x))
        # A stage without weights is cheaper to run on the whole batch than to gather.
        return self.processes.gather(e, self.n) if e.requires_grad else embed(x)

    def features(self, e: Any) -> Tensor:
        """(B, D) features of the whole batch."""
        return self.run_slice(self.stages[0].features, e, whole=self.given)


class _Head:
    """The classifier layer for terms: it maps features of the whole batch to logits, and its weights can be read.

    Every process computes the whole gradient of such a weight, and the mean over processes counts it once.
    """

    def __init__(self, owner: GatheredStages) -> None:
        self._owner, self._layer = owner, owner.stages[0].head

    def __call__(self, z: Tensor) -> Tensor:
        return self._owner.run_slice(self._layer, z, whole=True)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._layer, name)
        return divided_gradient(value, self._owner.processes.size) if isinstance(value, Tensor) else value


def together(*tensors: Tensor, group: Any = None) -> tuple[Tensor, ...]:
    """The whole batch from the slices of all processes, for a custom training loop under DDP.

    ``loss = criterion(*together(model(x), target, index))`` equals ``criterion(model(x), target, index)`` in one process. All slices
    need the same size. Gradients are scaled: their mean over processes, which DDP takes, is the gradient of the whole batch.

    >>> u, y = torch.randn(2, 3), torch.tensor([0, 1])
    >>> [tuple(t.shape) for t in together(u, y)]      # one process: the batch as it is
    [(2, 3), (2,)]
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return tensors
    processes = Processes(dist.get_world_size(), dist.get_rank(), group)
    whole = (processes.gather(t, len(t) * processes.size) for t in tensors)
    return tuple(divided_gradient(t, 1 / processes.size) for t in whole)


@final
class Exchange:
    r"""Merges the copies of a criterion that each process evaluates on its own slice of the batch, once an epoch or more often.

    Every buffer declares how it is merged. With :math:`b` its value after the last exchange and :math:`b_r` the present value in
    process :math:`r` of :math:`W`:

    .. math:: b \leftarrow b + \sum_r (b_r - b) \text{ (sum)}, \qquad b \leftarrow b + \frac1W \sum_r (b_r - b)
              \text{ (mean)}, \qquad b[k] \leftarrow b_r[k] \text{ where } b_r[k] \ne b[k] \text{ (rows)}

    This is exact if no two processes visit the same sample between exchanges, and if the method reads only the rows of its own
    samples until then; `together` and `fit` need neither.

    Args:
        criterion: equal in all processes at this moment; call ``exchange()`` before it is stored.
        processes: the launched processes by default.
        rows: whether rows of samples are sent; false if each process holds only the rows of its own samples.

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
            mark_synchronized()
            for store in self._stores():
                store.watch()

    @torch.no_grad()
    def __call__(self) -> None:
        """Merges all copies."""
        processes = self.processes
        if processes.size == 1:
            return
        for name, now, merge in self._parts():
            before = self._before[name]
            if merge == "rows":
                differs = now != before
                keys = (differs.flatten(1).any(1) if differs.ndim > 1 else differs).nonzero()[:, 0]
                for theirs, rows in zip(processes.collect(keys), processes.collect(now[keys]), strict=True):
                    now[theirs] = rows
            else:
                change = processes.sum(now - before)
                now.copy_(before + (change if merge == "sum" else change / processes.size))
        for store in self._stores():  # only rows that changed travel, without their zeros
            parts = {name: processes.collect(part) for name, part in store.pack(store.changed()).tensors().items()}
            for rank in range(processes.size):
                if rank != processes.rank:
                    store.put(Packed.from_tensors({name: part[rank] for name, part in parts.items()}))
            store.changed()  # forget the rows that came from others
        self._before = self._copies()

    def end_epoch(self) -> None:
        """Merges all copies and ends the epoch of the criterion."""
        self()
        self.criterion.end_epoch()
        self._before = self._copies()

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


INSTEAD = (
    'leave out order="ranges" (and backend="ray"): torchrun --nproc-per-node N -m compensate train ... trains every method in several '
    "processes, which hold all rows each."
)


class Ranges:
    """The range of the training samples that this process owns, for global batches of this size.

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

    def own(self, rows: Rows, index: Rows) -> Rows:
        """The rows whose samples are in the range; `index` (N,) maps rows to samples."""
        samples = index[rows]
        return rows[(samples >= self.held.first) & (samples < self.held.last)]

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
        parts: list[Any] = [mine] * self.processes.size
        if len(parts) > 1:
            dist.gather_object(mine, parts if self.processes.main else None, 0, group=self.processes.group)
        if not self.processes.main:
            return state | mine
        return state | {name: torch.cat([part[name] for part in parts]) for name in mine}

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
            else:
                names = ["weight"] if isinstance(module, Sample) else names
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
    obstacles = ["takes a meta step on the whole batch"] if "clean" in needs else []
    for module in criterion.modules():
        kind = type(module).__name__
        if getattr(module, "whole_batch", False):
            obstacles.append(f"has a term, {kind}, that compares the samples of a batch")
        elif isinstance(module, Table) and not isinstance(module, Sample):
            obstacles.append(f"learns a {kind} table, whose rows belong to no process")
        elif isinstance(module, Statistic):
            merges = {*module.merges.values()}
            if module.rolls and {"rows", "same"} <= merges:
                obstacles.append(f"reads {kind}, which is computed after each epoch from the rows of all samples")
            elif "mean" in merges or ("sum" in merges and module.observes == "logits"):
                obstacles.append(f"reads {kind}, which has to see the whole batch at once")
    if obstacles:
        raise InputError(
            f"{name} {obstacles[0]}, and its batches cannot be cut among processes by ranges of samples; {INSTEAD}"
        )
