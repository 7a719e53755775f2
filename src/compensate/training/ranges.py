"""Tables cut among processes: each holds the rows of a fixed range of samples, and trains on these samples alone.

With `order="ranges"` every batch has the same share of every range (`compensate.data.order_in_ranges`). Each process evaluates the criterion
on its own slice of the batch, and what it keeps of samples never leaves it. What is counted over all samples is added up after every step,
as it declares (`Exchange`), a threshold over the batch gets the losses of all slices (`State.everyone`), and the gradient of the
model is that of the whole batch. Checkpoints hold the rows of all processes, in the form that one process writes: any number of
processes can go on from them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from compensate.data import Data, ranges_of
from compensate.equation import Compensated
from compensate.errors import InputError
from compensate.granularity import Sample, Table
from compensate.held import HeldRows, holding_rows
from compensate.inference.statistics import Statistic
from compensate.methods.registry import Need
from compensate.stores.transfer import PARTS, without_zeros
from compensate.training.distribution import Processes

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

    >>> data = Data(np.zeros((8, 2)), np.zeros(8, int), ("a",))
    >>> Ranges(data, 4, Processes(2, rank=1)).held
    HeldRows(first=4, last=8, of=8)
    """

    def __init__(self, data: Data, batch_size: int, processes: Processes) -> None:
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
        if not self.processes.sum(torch.tensor(float(table.kept is not None))):
            return found
        packed = without_zeros(table.weight) if table.kept is None else table.kept.pack()
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
            yield prefix, module, ["weight"] if module.kept is None else list(PARTS)
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
