"""A training whose numbers are no longer finite: seen at once, said where and why, and never stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from compensate.errors import NotFinite


@dataclass
class DivergenceCheck:
    """Knows where a run stands, so that an error can say so.

    >>> check = DivergenceCheck(folder="runs/a")
    >>> check.step, check.saved, check.where = 7, 4, "epoch 2, batch 3 of 4, learning rate 100"
    >>> check.loss(torch.tensor(1.0))
    >>> try:
    ...     check.loss(torch.tensor(float("inf")))
    ... except NotFinite as error:
    ...     print(error)  # doctest: +ELLIPSIS
    the training diverged at step 7 (epoch 2, batch 3 of 4, learning rate 100): the loss is inf. ...
    """

    folder: Any = None
    step: int = 0
    saved: int | None = None
    where: str = ""

    @contextmanager
    def over(self, x: Any, rows: Any) -> Iterator[None]:
        """During a forward pass: an error about numbers that are not finite gets the place and the likely reason."""
        try:
            yield
        except NotFinite as error:
            raise self._error(str(error).partition(":")[0], _odd_rows(x, rows)) from error

    def loss(self, value: Tensor) -> None:
        """The loss of a step."""
        if not bool(value.isfinite()):
            raise self._error(f"the loss is {float(value):g}")

    def weights(self, model: nn.Module) -> None:
        """What a checkpoint would hold."""
        for name, value in model.state_dict().items():
            if value.is_floating_point() and not bool(value.isfinite().all()):
                raise self._error(f"{name} is not finite")

    def row(self, values: Mapping[str, float]) -> None:
        """The metrics of an epoch."""
        for name, value in values.items():
            if name.endswith("_loss") and not torch.tensor(value).isfinite():
                raise self._error(f"{name} is {value:g}")

    def _error(self, what: str, rows: list[int] | None = None) -> NotFinite:
        if rows:
            why = f"The input of the samples {rows} is not finite: mend them or leave them out."
        else:
            why = "The usual cause is a learning rate that is too large: lower it, or clip gradients (clip=1)."
        if self.folder is None:
            kept = ""
        elif self.saved is None:
            kept = " There was no checkpoint yet."
        else:
            kept = f" The checkpoint of step {self.saved}, the last good one, is kept in {self.folder}."
        return NotFinite(f"the training diverged at step {self.step} ({self.where}): {what}. {why}{kept}")


def _odd_rows(x: Any, rows: Any) -> list[int] | None:
    if not isinstance(x, Tensor) or not x.is_floating_point() or len(x) != len(rows):
        return None
    odd = (~x.isfinite()).flatten(1).any(1) if x.ndim > 1 else ~x.isfinite()
    return [int(rows[i]) for i in odd.nonzero().flatten().tolist()[:5]]
