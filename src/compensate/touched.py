"""Rows of a table that a batch reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from compensate.checks import at_hand

if TYPE_CHECKING:
    from compensate.granularity import Table
    from compensate.state import Slot


@dataclass
class Touched:
    """Rows of a table that this batch reads and may move."""

    table: Table
    keys: Tensor  # (R,) distinct rows
    rows: Tensor  # (R, *shape) their values, a leaf of the graph
    count: (
        Tensor | None
    )  # (R,) samples of the batch that read each row and are not gated out; None if it is one for each row
    which: Tensor | None  # (B,) the place of each sample's row among them; None if there is a place for each sample
    slot: Slot
    fixed: bool = False  # in compiled graphs: there is a place for each sample, even if several have one row
    by_sample: bool = False  # `which` has a place for each sample (and label), which all places of a sample share

    @property
    def shared(self) -> bool:
        """True if a row may serve several samples."""
        return self.which is not None or self.by_sample


def distinct_rows(keys: Tensor) -> tuple[Tensor, Tensor | None]:
    """Distinct keys and the place of each sample's among them; None if all are distinct, as in most batches of samples."""
    if at_hand(keys):
        ordered = np.sort(keys.numpy())
        if not (ordered[1:] == ordered[:-1]).any():
            return keys, None
    distinct, which = keys.unique(return_inverse=True)
    return (keys, None) if len(distinct) == len(keys) else (distinct, which)
