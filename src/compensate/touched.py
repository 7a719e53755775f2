"""What a batch reads of a table and may move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor

if TYPE_CHECKING:
    from compensate.granularity import Table

Slot = Literal["dx", "du", "dp", "dy", "dl"]


@dataclass
class Touched:
    """Rows of a table that this batch reads and may move."""

    table: Table
    keys: Tensor  # (R,) distinct rows
    rows: Tensor  # (R, *shape) their values, a leaf of the graph
    count: Tensor  # (R,) samples of the batch that read each row and are not gated out
    which: Tensor | None  # (B,) the place of each sample's row among them; None if there is a place for each sample
    slot: Slot
    fixed: bool = False  # in compiled graphs: there is a place for each sample, even if several have one row

    @property
    def shared(self) -> bool:
        """True if a row may serve several samples."""
        return self.which is not None


def distinct_rows(keys: Tensor) -> tuple[Tensor, Tensor | None]:
    """Distinct keys and the place of each sample's among them; None if all are distinct, as in most batches of samples."""
    distinct, which = keys.unique(return_inverse=True)
    return (keys, None) if len(distinct) == len(keys) else (distinct, which)
