r"""Granularity is a gather: which samples share a value.

.. math:: \Delta_i = W[k_i]

where :math:`W` is a table of rows and the key :math:`k_i` is the sample's own number, its class, its group, or 0 for all.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor, nn

from compensate.core.batch import THROUGH, Batch
from compensate.core.fast import BLOCK, blocks
from compensate.core.penalties import L1, L2, Bound, GroupL2, Penalty, row_step
from compensate.core.rows import Touched, distinct_rows, held_range
from compensate.core.stores import Kept, Spec, Store, choose, restored
from compensate.core.validation import at_hand, checked_index, checked_keys
from compensate.errors import InputError

Update = Literal["prox", "subgradient", "meta", "manual", "inner"]

_INFERENCE = {
    "prox": "regularized",
    "subgradient": "regularized",
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
            :func:`compensate.meta_step`; "manual", an optimizer of the user's; "inner", the inner loop that owns it.
        init: the value of all entries at the start.
        sign: -1, learned rows go down the loss (positive compensation); +1, they go up (negative compensation), and then
            a bound is needed, because no penalty holds them for sure.
        store: how rows are kept; see :class:`Sample`.

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
        store: Store = "dense",
    ) -> None:
        super().__init__()
        if rows < 1 or any(size < 1 for size in shape):
            raise InputError(f"{type(self).__name__}{(rows, *shape)}: all sizes must be positive.")
        if lr <= 0:
            raise InputError(f"lr={lr} for {type(self).__name__}; expected a positive step.")
        if update not in _INFERENCE:
            raise InputError(f'update="{update}"; expected one of {", ".join(_INFERENCE)}.')
        self.shape = (rows, *shape)
        own = update in ("meta", "manual")
        spec = Spec.of(store)
        leaves_zeros = update == "prox" and isinstance(penalty, L1 | GroupL2)
        kept = choose(spec, rows, shape, movable=not own and init == 0, sparse=leaves_zeros)
        self.kept = None if kept is None else Kept(kept, shape)
        """The rows, where they are not the tensor `weight`."""
        self.compact = kept is None and spec.dtype != "float32"
        if self.kept is not None:
            self.register_buffer("like", torch.empty(0), persistent=False)  # knows the device and type of the model
            self.like: Tensor
        else:
            weight = torch.full(self.shape, init, dtype=getattr(torch, spec.dtype) if self.compact else None)
            if own:
                self.weight = nn.Parameter(weight)
            else:
                # A buffer: an optimizer handed `criterion.parameters()` must not move rows whose samples are absent.
                self.register_buffer("weight", weight)
        self.lr, self.bound, self.sign = lr, bound, sign
        self.update: Update = update
        self._unpenalized = penalty == "required"
        self.penalty = None if isinstance(penalty, str) else penalty

    def validate(self) -> None:
        """Raises for a learned table that nothing holds back."""
        if self.inference == "regularized" and self.sign > 0 and self.bound is None:
            raise InputError(
                f"{type(self).__name__}{self.shape} goes up the loss (sign=+1) without a bound: it would never "
                "stop. Give it one, such as bound=Ball(1.0)."
            )
        if self.update in ("prox", "subgradient") and self._unpenalized and self.bound is None:
            raise InputError(
                f"{type(self).__name__}{self.shape} is learned with neither penalty nor bound: it would "
                "explain every label away and the model would learn nothing (the remark after Eq. 8). Give it a penalty "
                "such as L1(0.1) or a bound such as Ball(1.0), or say penalty=None if that is what you want."
            )

    @abstractmethod
    def key(self, s: Batch) -> Tensor:
        """(B,) the row of each sample."""

    def counted(self, s: Batch) -> Tensor:
        """(B,) which of the keys count: those of samples that are neither ignored nor gated out."""
        return s.acting

    def charged(self, penalty: Tensor, s: Batch) -> Tensor:
        """(B,) the penalty of each sample, from that of its row."""
        penalty = s.places.expanded(penalty, "a penalty") if s.by_input else penalty
        return penalty if s.complete and s.gate is None else penalty * s.active

    def forward(self, s: Batch) -> Tensor:
        """(B, *shape) the rows of the batch."""
        return s.rows(self)

    def gather(self, keys: Tensor) -> Tensor:
        """(len(keys), *shape) some rows."""
        if self.kept is not None:
            return self.kept.gather(keys, self.like)
        rows = self.weight.index_select(0, keys)
        # Numbers are kept in 16 bits and computed with in 32.
        return rows.to(torch.promote_types(rows.dtype, torch.float32)) if self.compact else rows

    @torch.no_grad()
    def write(self, keys: Tensor, rows: Tensor) -> None:
        """Replaces rows. A row that is not finite is not written. Keys are distinct, or bring the same row where they are not."""
        self._write(keys, rows, None, None)

    def _write(
        self, keys: Tensor, rows: Tensor, where: Tensor | None, old: Tensor | None, *, sure: bool = False
    ) -> None:
        """As `write`, where a mask says so, if one is given.

        `old` are the present rows, if they are known; `sure` is true if the new ones are known to be finite.
        """
        if self.kept is None and not self.compact and rows.dtype != self.weight.dtype:
            rows = rows.to(self.weight.dtype)
        where = None if where is None or (at_hand(where) and bool(where.all())) else along(where, rows)
        # A sum is finite if all its parts are: one pass and no temporary.
        if not (sure or (at_hand(rows) and math.isfinite(rows.sum().item()))):
            where = finite(rows) if where is None else finite(rows) & where
        if where is not None:
            old = self.gather(keys).detach() if old is None else old
            rows = torch.where(where, rows.to(old.dtype), old)
        self._put(keys, rows)

    def _put(self, keys: Tensor, rows: Tensor) -> None:
        if self.kept is not None:
            self.kept.write(keys, rows)
            return
        weight = self.weight
        if self.compact:
            largest = torch.finfo(weight.dtype).max
            rows = rows.clamp(-largest, largest)
        weight.index_copy_(0, keys, rows if rows.dtype == weight.dtype else rows.to(weight.dtype))

    def dense(self) -> Tensor:
        """(rows, *shape) all rows in full, wherever they are kept: for small tables."""
        return self.weight.detach() if self.kept is None else self.kept.dense().to(self.like)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the rows take."""
        held = 0 if self.kept is None else self.kept.nbytes
        return held + sum(t.nbytes for t in (*self.parameters(False), *self.buffers(False)))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.kept is not None:
            destination.update({prefix + name: part for name, part in self.kept.pack().tensors().items()})

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        state = restored(self.kept, self.shape, dict(state_dict), prefix, rest[2], rest[4])
        super()._load_from_state_dict(state, prefix, *rest)

    def descend(self, touched: Touched, grad: Tensor, s: Batch) -> None:
        """One step of the touched rows down their mean gradient, without gradients; `grad` is summed over the samples of each row."""
        if touched.shared and touched.count is not None:
            grad = grad / touched.count.clamp(min=1).reshape((-1,) + (1,) * (grad.ndim - 1))
        # Not as they were read if another term of the batch, or another batch before this one's backward, may have moved them.
        alone = len(s.touched) == 1 or sum(other.table is self for other in s.touched) == 1
        old = touched.rows if alone and touched.slot not in THROUGH else self.gather(touched.keys)
        old = old.detach() if old.requires_grad else old
        if touched.fixed:
            self._descend_together(touched, old, grad, s)
        else:
            # A slope is finite where its loss is, and so is the row that it moved, if nobody's own bound came between.
            sure = s.by_slope and self.bound is None and s.finite
            if sure and touched.count is None and self._in_portions(old):
                for part in blocks(old):
                    self._put(touched.keys[part], self.stepped(old[part], grad[part], s))
                return
            where, rows = touched.count, self.stepped(old, grad, s)
            where = where if where is None or where.dtype == torch.bool else where > 0
            if touched.repeated:
                assert touched.which is not None
                where, rows = None if where is None else where[touched.which], rows[touched.which]
            self._write(touched.keys, rows, where, old, sure=sure)

    def _in_portions(self, rows: Tensor) -> bool:
        """True if rows are so many that it pays to move them portion by portion, and if nothing that moves them has a value for each."""
        if rows.ndim != 2 or rows.numel() <= BLOCK or len(rows) < 2 or self.kept is not None or not at_hand(rows):
            return False
        penalty = self.penalty
        return penalty is None or (isinstance(penalty, L1 | L2 | GroupL2) and not callable(penalty.lam))

    def _descend_together(self, touched: Touched, old: Tensor, grad: Tensor, s: Batch) -> None:
        """The step in a compiled graph, in as few passes over the rows as it takes: old ones are read once, new ones written once."""
        assert touched.count is not None
        count = touched.count.clone()
        slid: list[Tensor] = []

        def meet(rows: Tensor) -> Tensor:
            rows = torch.where(finite(rows), rows, old)
            pool_(rows, count, touched.keys)
            slid.append(rows)
            return rows

        rows = self.stepped(old, grad, s, meet)
        # Samples that do not count had no slope, and their rows have not moved yet.
        self._put(touched.keys, torch.where(along(count > 0, rows), rows, slid[0]))

    def stepped(self, rows: Tensor, grad: Tensor, s: Batch, meet: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """(R, *shape) rows after one step by the gradient of their losses, penalty and bound included."""
        return row_step(
            rows, grad if self.sign < 0 else -grad, lr=self.lr, penalty=self.penalty, bound=self.bound,
            subgradient=self.update == "subgradient", s=s, meet=meet,
        )  # fmt: skip

    @property
    def inference(self) -> str:
        """The name of the way of inference, as in the paper's taxonomy."""
        return _INFERENCE[self.update]

    @property
    def direction(self) -> str:
        """A learned table moves the loss its way; of the others nothing can be said beforehand."""
        if self.inference != "regularized":
            return "mixed"
        return "positive" if self.sign < 0 else "negative"

    def __repr__(self) -> str:
        parts = [" x ".join(str(size) for size in self.shape)]
        parts += [repr(self.penalty)] if self.penalty is not None else []
        parts += [repr(self.bound)] if self.bound is not None else []
        parts += [f"lr={self.lr:g}", self.update] if self.update in ("prox", "subgradient") else [self.update]
        parts += [repr(self.kept)] if self.kept is not None else []
        return f"{type(self).__name__}({', '.join(parts)})"


@final
class Sample(Table):
    r"""A row for each sample of the training set: :math:`k_i = i`.

    Args:
        num_samples: the size of the training set.
        shape: of a row.
        store: how rows are kept. "dense", in full: 4 bytes an entry, zero or not. "sparse": 4 bytes a sample, and about 6 an
            entry that is not zero. "rows.tab" or another name of a file: in full, in that file; see
            :class:`compensate.core.stores.Mapped` for what it promises. "auto": dense up to a gigabyte, and beyond it
            sparse, if steps leave zeros. All give the same rows. ":float16" or ":bfloat16" behind it, as in
            "sparse:float16", keeps numbers in 16 bits: a step is computed in 32 and rounded, and one that is
            smaller than the last digit is lost.
        settings: as of every :class:`Table`.

    Sparse and mapped rows stay in main memory when the criterion is moved to another device; only those of the batch travel.

    >>> from compensate.terms import L1
    >>> Sample(50_000, 10, penalty=L1(0.1), lr=1.0)
    Sample(50000 x 10, L1(0.1), lr=1, prox)
    >>> table = Sample(10_000_000, 1000, penalty=L1(0.1), store="sparse")
    >>> table, f"{table.nbytes / 1e6:.0f} MB"
    (Sample(10000000 x 1000, L1(0.1), lr=1, prox, sparse), '40 MB')
    """

    granularity = "sample"

    def __init__(self, num_samples: int, *shape: int, store: Store = "auto", **settings: Any) -> None:
        held = held_range(num_samples)
        super().__init__(len(held), *shape, store=store, **settings)
        self.num_samples = num_samples
        """The number of samples."""
        self.first_row = held.start
        """The sample of the first row: other than 0 where the table is cut among several processes."""

    def key(self, s: Batch) -> Tensor:
        """(B,) the row of each sample: its index, less the first sample that has a row here."""
        index = checked_index(s, self.num_samples, "a Sample table")
        return index - self.first_row if self.first_row else index


@final
class Category(Table):
    r"""A row for each class: :math:`k_i = y_i`.

    >>> Category(10, 10, update="meta")
    Category(10 x 10, meta)
    """

    granularity = "category"

    def key(self, s: Batch) -> Tensor:
        """(B,) the given class of each sample; the class that a label is about, where a sample has several."""
        if s.by_input:
            s.places.one_class_each("a Category table on features")
        labels = s.places.classes(s.target) if s.places.binary else s.labels
        return checked_keys(labels, self.shape[0], "a Category table", "class", s.check)


@final
class Group(Table):
    r"""A row for each group: :math:`k_i = g_i`, passed as `criterion(logits, target, index, group=...)`.

    >>> Group(4, 1, update="meta")
    Group(4 x 1, meta)
    """

    granularity = "group"

    def key(self, s: Batch) -> Tensor:
        """(B,) the group of each sample."""
        if s.group is None:
            raise InputError(
                "group is missing: a Group table keeps a row per group. Pass the group number of each sample: "
                "criterion(logits, target, index, group=group)."
            )
        keys = checked_keys(s.group, self.shape[0], "a Group table", "group", s.check)
        return keys if s.by_input else s.places.expanded(keys, "group")


@final
class Corpus(Table):
    r"""One row for all samples: :math:`k_i = 0`.

    Args:
        shape: of the row.
        settings: as of every :class:`Table`.

    >>> Corpus(3, 32, 32, update="manual")
    Corpus(1 x 3 x 32 x 32, manual)
    """

    granularity = "corpus"

    def __init__(self, *shape: int, **settings: object) -> None:
        super().__init__(1, *shape, **settings)  # type: ignore[arg-type]

    def key(self, s: Batch) -> Tensor:
        """(B,) zeros."""
        size = s.places.batch if s.by_input else len(s.target)
        return torch.zeros(size, dtype=torch.long, device=s.target.device)


@final
class Fresh(nn.Module):
    """A row for each sample of the batch, inferred anew in each step and kept nowhere: what inner loops use by default.

    >>> Fresh()
    Fresh()
    """

    granularity = "sample"


# --- samples that share a row, in shapes that do not depend on how many do: what a compiled graph needs ---------


def pool_(rows: Tensor, count: Tensor, keys: Tensor) -> None:
    r"""Gives all samples with one key the mean of the rows of those that count, in place.

    .. math:: v_i \leftarrow \frac{\sum_{j: k_j = k_i} n_j v_j}{\sum_{j: k_j = k_i} n_j}, \qquad
              n_i \leftarrow \sum_{j: k_j = k_i} n_j

    Each sample took the gradient step of its row for itself; as they started from the same row, the mean is the row after
    the mean of their steps. Where none counts, rows stay as they are.

    Args:
        rows: (B, *shape) the rows :math:`v`.
        count: (B,) :math:`n`, 1 for samples that count and 0 for others.
        keys: (B,) the rows :math:`k` of the samples.

    >>> rows, count = torch.tensor([[1.0], [5.0], [3.0]]), torch.ones(3)
    >>> pool_(rows, count, torch.tensor([7, 8, 7]))
    >>> rows[:, 0], count
    (tensor([2., 5., 2.]), tensor([2., 1., 2.]))
    """
    if keys.device.type == "cpu":
        torch.ops.compensate.pool_(rows, count, keys)
        return
    values, order = keys.sort(stable=True)
    _pool_(rows, count, order[torch.searchsorted(values, keys)], len(keys))


def _look_and_pool_(rows: Tensor, count: Tensor, keys: Tensor) -> None:
    """On a CPU a look at the keys is cheap, and mostly saves the rest. Compiled graphs take it as one opaque step."""
    distinct, which = distinct_rows(keys)
    if which is not None:
        _pool_(rows, count, which, len(distinct))


# An operator of the dispatcher itself: the wrapper that torch.library.custom_op puts around a function takes four times as long as the function.
_OPERATORS = torch.library.Library("compensate", "DEF")
_OPERATORS.define("pool_(Tensor(a!) rows, Tensor(b!) count, Tensor keys) -> ()")
_OPERATORS.impl("pool_", _look_and_pool_, "CPU")
_OPERATORS.impl("pool_", lambda rows, count, keys: None, "Meta")


def _pool_(rows: Tensor, count: Tensor, which: Tensor, places: int) -> None:
    share = along(count, rows).to(rows.dtype)
    total = rows.new_zeros(places, *rows.shape[1:]).index_add_(0, which, rows * share)[which]
    count.copy_(count.new_zeros(places).index_add_(0, which, count)[which])
    share = along(count, rows).to(rows.dtype)
    rows.copy_(torch.where(share > 0, total / share.clamp(min=1), rows))


def along(values: Tensor, rows: Tensor) -> Tensor:
    """One value for each row (B,), shaped to meet the rows (B, *shape)."""
    return values.reshape((-1,) + (1,) * (rows.ndim - 1))


def finite(rows: Tensor) -> Tensor:
    """(B, 1, ...) true for rows (B, *shape) without infinities or NaN, told by their sums: one pass and no temporary.

    >>> finite(torch.tensor([[1.0, 2.0], [1.0, torch.nan]]))[:, 0]
    tensor([ True, False])
    """
    size = torch.linalg.vector_norm(rows, 1, tuple(range(1, rows.ndim)), keepdim=True) if rows.ndim > 1 else rows.abs()
    return size < math.inf
