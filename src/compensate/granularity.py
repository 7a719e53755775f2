r"""Granularity is a gather: which samples share a value.

.. math:: \Delta_i = W[k_i]

where :math:`W` is a table of rows and the key :math:`k_i` is the sample's own number, its class, its group, or 0 for all.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Literal, final

import torch
from torch import Tensor, nn

from compensate.checks import at_hand, checked_index, checked_keys
from compensate.errors import InputError
from compensate.inference.regularised import Bound, Penalty, row_step
from compensate.state import State, Touched

Update = Literal["prox", "subgradient", "meta", "manual", "inner"]

_INFERENCE = {
    "prox": "regularised",
    "subgradient": "regularised",
    "meta": "meta",
    "manual": "tuning",
    "inner": "adversarial",
}


class Table(nn.Module, ABC):
    r"""Rows of compensation, gathered by a key. As a term it returns the rows of the batch, (B, \*shape).

    Args:
        rows: the number of rows.
        shape: the shape of a row.
        lr: the step of a row per sample and visit, whatever the size of the batch.
        penalty: what holds the rows near zero. A learned table with neither penalty nor bound would explain every
            label away and the model would learn nothing, so that must be asked for with `penalty=None`.
        bound: the set that rows are projected on after each step.
        update: who moves the rows: "prox" or "subgradient", the criterion itself in each training step; "meta",
            :func:`compensate.meta_step`; "manual", an optimiser of the user's; "inner", the inner loop that owns it.
        init: the value of all entries at the start.
        sign: -1, learned rows go down the loss (positive compensation); +1, they go up (negative compensation), and then
            a bound is needed, because no penalty holds them for sure.

    Rows move only when one of their samples is in the batch, and a step costs in proportion to the batch, not to the table.
    """

    granularity: ClassVar[str]
    weight: Tensor

    def __init__(
        self,
        rows: int,
        *shape: int,
        lr: float = 1.0,
        penalty: Penalty | Literal["required"] | None = "required",
        bound: Bound | None = None,
        update: Update = "prox",
        init: float = 0.0,
        sign: Literal[1, -1] = -1,
    ) -> None:
        super().__init__()
        if rows < 1 or any(size < 1 for size in shape):
            raise InputError(f"{type(self).__name__}{(rows, *shape)}: all sizes must be positive.")
        if lr <= 0:
            raise InputError(f"lr={lr} for {type(self).__name__}; expected a positive step.")
        if update not in _INFERENCE:
            raise InputError(f'update="{update}"; expected one of {", ".join(_INFERENCE)}.')
        weight = torch.full((rows, *shape), init)
        if update in ("meta", "manual"):
            self.weight = nn.Parameter(weight)
        else:
            # A buffer: an optimiser handed `criterion.parameters()` must not move rows whose samples are absent.
            self.register_buffer("weight", weight)
        self.lr, self.bound, self.sign = lr, bound, sign
        self.update: Update = update
        self._unpenalised = penalty == "required"
        self.penalty = None if isinstance(penalty, str) else penalty

    def validate(self) -> None:
        """Raises for a learned table that nothing holds back."""
        if self.inference == "regularised" and self.sign > 0 and self.bound is None:
            raise InputError(
                f"{type(self).__name__}{tuple(self.weight.shape)} goes up the loss (sign=+1) without a bound: it would never "
                "stop. Give it one, such as bound=Ball(1.0)."
            )
        if self.update in ("prox", "subgradient") and self._unpenalised and self.bound is None:
            raise InputError(
                f"{type(self).__name__}{tuple(self.weight.shape)} is learned with neither penalty nor bound: it would "
                "explain every label away and the model would learn nothing (the remark after Eq. 8). Give it a penalty "
                "such as L1(0.1) or a bound such as Ball(1.0), or say penalty=None if that is what you want."
            )

    @abstractmethod
    def key(self, s: State) -> Tensor:
        """(B,) the row of each sample."""

    def forward(self, s: State) -> Tensor:
        """(B, *shape) the rows of the batch."""
        return s.rows(self)

    @property
    def row_shape(self) -> torch.Size:
        """The shape of a row."""
        return self.weight.shape[1:]

    @property
    def dtype(self) -> torch.dtype:
        """That of its numbers."""
        return self.weight.dtype

    def gather(self, keys: Tensor) -> Tensor:
        """(len(keys), *shape) some rows."""
        return self.weight.index_select(0, keys)

    @torch.no_grad()
    def write(self, keys: Tensor, rows: Tensor, *, where: Tensor | None = None, old: Tensor | None = None) -> None:
        """Replaces rows (where a mask says so, if one is given). A row that is not finite is not written.

        Keys are distinct, or bring the same row where they are not. `old` are the present rows, if they are known.
        """
        rows = rows.to(self.weight.dtype)
        if at_hand(rows) and (where is None or bool(where.all())) and math.isfinite(rows.sum().item()):
            self.weight.index_copy_(0, keys, rows)
            return
        # A sum is finite if all its parts are: one pass and no temporary.
        keep = rows.flatten(1).sum(1).isfinite() if rows.ndim > 1 else rows.isfinite()
        keep = keep if where is None else keep & where
        if at_hand(rows):
            self.weight.index_copy_(0, keys[keep], rows[keep])
        else:
            old = self.gather(keys) if old is None else old
            self.weight.index_copy_(0, keys, torch.where(keep.reshape((-1,) + (1,) * (rows.ndim - 1)), rows, old))

    @torch.no_grad()
    def descend(self, touched: Touched, grad: Tensor, s: State) -> None:
        """One step of the touched rows down their mean gradient; `grad` is summed over the samples of each row."""
        if touched.shared:
            grad = grad / touched.count.clamp(min=1).reshape((-1,) + (1,) * (grad.ndim - 1))
        # Not as they were read if another term of the batch, or another batch before this one's backward, may have moved them.
        alone = touched.slot != "dx" and sum(other.table is self for other in s.touched) == 1
        old = (touched.rows if alone else self.gather(touched.keys)).detach()
        self.write(touched.keys, self.stepped(old, grad, s), where=touched.count > 0, old=old)

    def stepped(self, rows: Tensor, grad: Tensor, s: State) -> Tensor:
        """(R, *shape) rows after one step by the gradient of their losses, penalty and bound included."""
        return row_step(
            rows, grad if self.sign < 0 else -grad, lr=self.lr, penalty=self.penalty, bound=self.bound,
            subgradient=self.update == "subgradient", s=s,
        )  # fmt: skip

    @property
    def inference(self) -> str:
        """The name of the way of inference, as in the paper's taxonomy."""
        return _INFERENCE[self.update]

    @property
    def direction(self) -> str:
        """A learned table moves the loss its way; of the others nothing can be said beforehand."""
        if self.inference != "regularised":
            return "mixed"
        return "positive" if self.sign < 0 else "negative"

    def __repr__(self) -> str:
        parts = [" x ".join(str(size) for size in self.weight.shape)]
        parts += [repr(self.penalty)] if self.penalty is not None else []
        parts += [repr(self.bound)] if self.bound is not None else []
        parts += [f"lr={self.lr:g}", self.update] if self.update in ("prox", "subgradient") else [self.update]
        return f"{type(self).__name__}({', '.join(parts)})"


@final
class Sample(Table):
    r"""A row for each sample of the training set: :math:`k_i = i`.

    >>> from compensate import L1
    >>> Sample(50_000, 10, penalty=L1(0.1), lr=1.0)
    Sample(50000 x 10, L1(0.1), lr=1, prox)
    """

    granularity = "sample"

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return len(self.weight)

    def key(self, s: State) -> Tensor:
        """(B,) the index of each sample."""
        return checked_index(s, self.num_samples, "a Sample table")


@final
class Category(Table):
    r"""A row for each class: :math:`k_i = y_i`.

    >>> Category(10, 10, update="meta")
    Category(10 x 10, meta)
    """

    granularity = "category"

    def key(self, s: State) -> Tensor:
        """(B,) the given class of each sample."""
        return checked_keys(s.labels, len(self.weight), "a Category table", "class", s.criterion.check)


@final
class Group(Table):
    r"""A row for each group: :math:`k_i = g_i`, passed as `criterion(logits, target, index, group=...)`.

    >>> Group(4, 1, update="meta")
    Group(4 x 1, meta)
    """

    granularity = "group"

    def key(self, s: State) -> Tensor:
        """(B,) the group of each sample."""
        if s.group is None:
            raise InputError(
                "group is missing: a Group table keeps a row per group. Pass the group number of each sample: "
                "criterion(logits, target, index, group=group)."
            )
        return checked_keys(s.group, len(self.weight), "a Group table", "group", s.criterion.check)


@final
class Corpus(Table):
    r"""One row for all samples: :math:`k_i = 0`.

    >>> Corpus(3, 32, 32, update="manual")
    Corpus(1 x 3 x 32 x 32, manual)
    """

    granularity = "corpus"

    def __init__(self, *shape: int, **settings: object) -> None:
        super().__init__(1, *shape, **settings)  # type: ignore[arg-type]

    def key(self, s: State) -> Tensor:
        """(B,) zeros."""
        return torch.zeros(len(s.target), dtype=torch.long, device=s.target.device)


@final
class Fresh(nn.Module):
    """A row for each sample of the batch, inferred anew in each step and kept nowhere: what inner loops use by default.

    >>> Fresh()
    Fresh()
    """

    granularity = "sample"
