r"""Tables of compensation. Granularity decides which samples share a row.

.. math:: \Delta_i = W[k_i]

where :math:`W` is a table of rows and the key :math:`k_i` is the sample's own number, its class, its group, or 0 for all.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor, nn

from compensate.core.batch import THROUGH, Batch, Slot
from compensate.core.layout import CHUNK, chunks, distinct_rows, held_range, is_eager_cpu, present_rows, rowwise
from compensate.core.proximal import L1, Bound, GroupL2, Penalty
from compensate.core.stages import full_precision
from compensate.core.stores import Spec, Store, choose, restored
from compensate.core.validation import checked_index, checked_keys, checked_whole
from compensate.errors import InputError, check, one_of

Update = Literal["prox", "subgradient", "meta", "manual", "inner"]

_INFERENCE = {
    "prox": "regularized", "subgradient": "regularized", "meta": "meta", "manual": "tuning", "inner": "adversarial",
}  # fmt: skip


@dataclass
class TouchedRows:
    """Rows of a table that a batch reads and may move."""

    table: Table
    keys: Tensor
    """(R,) the rows; distinct on the CPU. Elsewhere there is one for each sample, and shapes do not depend on values."""
    rows: Tensor
    """(R, *shape) their values, a leaf of the graph."""
    count: Tensor | None
    """(R,) the number of active samples of each row, or whether its only sample is active; None if each row has one."""
    which: Tensor | None
    """(B,) the position of each sample's row in `keys`, the first of equal keys; None if each sample has its own."""
    slot: Slot
    by_sample: bool = False
    """True if all places of a sample share its row; `which` then has an entry for each sample and label."""
    repeated: bool = False
    """True if `keys` may hold equal keys."""


class Table(nn.Module, ABC):
    r"""Rows of compensation, gathered by a key. As a term it returns the rows of the batch, (B, \*shape).

    Args:
        rows: the number of rows.
        shape: the shape of a row.
        lr: the step of a row per sample and visit, whatever the size of the batch.
        penalty: keeps the rows near zero; None for none.
        bound: projects the rows after each step.
        update: how the rows move: "prox" or "subgradient", by the criterion in each training step; "meta",
            :func:`compensate.meta_step`; "manual", an optimizer of the user's; "inner", the inner loop that owns it.
        init: the value of all entries at the start.
        sign: -1, learned rows go down the loss (positive compensation); +1, they go up (negative compensation), within a bound.
        store: how rows are kept; see :class:`Sample`.

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
        self.shape = tuple(checked_whole(f"a size of {type(self).__name__}", size) for size in (rows, *shape))
        if min(self.shape) < 1:
            raise InputError(f"{type(self).__name__}{self.shape}: all sizes must be positive.")
        check(lr > 0, "a positive step", lr=lr)
        one_of("update", update, *_INFERENCE)
        own = update in ("meta", "manual")
        spec = Spec.of(store)
        leaves_zeros = update == "prox" and isinstance(penalty, L1 | GroupL2)
        self.store = choose(spec, self.shape[0], self.shape[1:], movable=not own and init == 0, sparse=leaves_zeros)
        """The rows, if they are not the tensor `weight`."""
        self.compact = self.store is None and spec.dtype != "float32"
        if self.store is not None:
            self.register_buffer("like", torch.empty(0), persistent=False)  # has the device and type of the model
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
        """Raises for a learned table without penalty and bound."""
        if self.inference == "regularized" and self.sign > 0 and self.bound is None:
            raise InputError(
                f"{type(self).__name__}{self.shape} goes up the loss (sign=+1) without a bound: it would never stop. Give it one, such as bound=Ball(1.0)."
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
        """(B,) the number of times each key counts: 1 for active samples, else 0."""
        return s.acting

    def charged(self, penalty: Tensor, s: Batch) -> Tensor:
        """(B,) the penalty of each sample, from that of its row."""
        penalty = s.places.expanded(penalty, "a penalty") if s.places.several and s.by_input else penalty
        return penalty if s.complete and s.gate is None else penalty * s.active

    def forward(self, s: Batch) -> Tensor:
        """(B, *shape) the rows of the batch. Their penalty is charged, and learned rows are registered for their step."""
        keys, by_sample = self.key(s), False
        if self.update == "meta" if s.meta else s.learn and self.update in ("prox", "subgradient"):
            assert s.slot is not None
            if s.slot in THROUGH and s.learn and s.criterion.reduction == "none":
                raise InputError(
                    'A learned table on features, views or edges needs reduction="mean" or "sum", not "none".'
                )
            by_sample = s.places.shared_index and not s.by_input and self.granularity == "sample"
            keys = s.places.firsts(keys) if by_sample else keys
            if self.granularity == "sample" or s.meta:
                distinct, which = distinct_rows(keys, s.index if self.granularity == "sample" else None)
            else:
                distinct, which = present_rows(keys, self.shape[0])
            count = None
            if which is not None or by_sample or not s.complete or s.gate is not None:
                count = self.counted(s)
                if which is not None or by_sample:
                    count = count.to(torch.get_default_dtype())
                    count = s.places.totals(count) if by_sample else count
                    count = count if which is None else count.new_zeros(len(distinct)).index_add_(0, which, count)
            by_slope = s.learn and s.hard and s.criterion.fast and s.criterion.only_tables
            rows = self.gather(distinct)
            rows = rows if by_slope else rows.detach().requires_grad_()
            repeated = which is not None and distinct is keys
            s.touched.append(TouchedRows(self, distinct, rows, count, which, s.slot, by_sample, repeated))
            v = rows if which is None else rows[which]
            if s.learn and s.slot in ("dx", "dv") and s.criterion.weight is not None and v.requires_grad:
                v.register_hook(partial(s.criterion.unweighted, s))
        else:
            v = self.gather(keys)
            v = v if self.update == "manual" else v.detach()
        if self.penalty is not None:
            penalty = self.penalty(v.detach() if v.requires_grad and self.update != "manual" else v, s)
            s.charge(self.charged(s.places.spread(penalty) if by_sample else penalty, s))
        return s.places.spread(v) if by_sample else v

    def gather(self, keys: Tensor) -> Tensor:
        """(len(keys), *shape) some rows."""
        if self.store is not None:
            return self.store.gather(keys, self.like).reshape(len(keys), *self.shape[1:])
        rows = self.weight.index_select(0, keys)
        return full_precision(rows) if self.compact else rows  # stored in 16 bits, computed in 32

    @torch.no_grad()
    def write(self, keys: Tensor, rows: Tensor, where: Tensor | None = None, old: Tensor | None = None) -> None:
        """Replaces rows, only those that are finite and, if a mask (len(keys),) is given, only those it selects.

        Equal keys must bring equal rows. `old` are the present rows, if they are known.
        """
        # A sum is finite only if all summands are: one pass, no temporary.
        if where is not None or not is_eager_cpu(rows) or not math.isfinite(rows.sum().item()):
            chosen = (rows.flatten(1).sum(1) if rows.ndim > 1 else rows).abs() < math.inf
            chosen = chosen if where is None else chosen & where
            old = self.gather(keys) if old is None else old
            rows = torch.where(rowwise(chosen, rows), rows.to(old.dtype), old)
        if self.store is not None:
            self.store.scatter(keys, rows)
            return
        if self.compact:
            largest = torch.finfo(self.weight.dtype).max
            rows = rows.clamp(-largest, largest)
        self.weight.index_copy_(0, keys, rows.to(self.weight.dtype))

    def dense(self) -> Tensor:
        """(rows, *shape) all rows, for small tables."""
        return self.weight.detach() if self.store is None else self.gather(torch.arange(self.shape[0]))

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the rows take."""
        held = 0 if self.store is None else self.store.nbytes
        return held + sum(t.nbytes for t in (*self.parameters(False), *self.buffers(False)))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.store is not None:
            destination.update({prefix + name: part for name, part in self.store.pack().tensors().items()})

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        state = restored(self.store, self.shape, dict(state_dict), prefix, rest[2], rest[4])
        super()._load_from_state_dict(state, prefix, *rest)

    def descend(self, touched: TouchedRows, grad: Tensor, s: Batch) -> None:
        """One step of the touched rows by their mean gradient; `grad` is summed over the samples of each row."""
        count, which = touched.count, touched.which
        if count is not None and (which is not None or touched.by_sample):
            grad = grad / rowwise(count.clamp(min=1), grad)
        # Another term, or another batch before this one's backward pass, may have moved the rows since they were read.
        alone = touched.slot not in THROUGH and (
            len(s.touched) == 1 or sum(other.table is self for other in s.touched) == 1
        )
        old = touched.rows if alone else self.gather(touched.keys)
        if old.numel() > CHUNK and count is None and not callable(getattr(self.penalty, "lam", None)):
            for v, g, keys in chunks(old, grad, touched.keys):
                self.write(keys, self.stepped(v, g, s))
            return
        rows, where = self.stepped(old, grad, s), count if count is None or count.dtype == torch.bool else count > 0
        if touched.repeated:  # equal keys get the row of the first
            rows, where, old = rows[which], None if where is None else where[which], old[which]
        self.write(touched.keys, rows, where, old)

    def stepped(self, v: Tensor, grad: Tensor, s: Batch) -> Tensor:
        """(R, *shape) rows after one step by the gradient of their losses, penalty and bound included."""
        penalty, subgradient = self.penalty, self.update == "subgradient"
        if penalty is not None and subgradient:
            grad = grad - self.sign * penalty.subgradient(v, s)
        v = torch.add(v, grad, alpha=self.lr * self.sign)
        v = v if penalty is None or subgradient else penalty.prox(v, self.lr, s)
        return v if self.bound is None else self.bound(v)

    @property
    def inference(self) -> str:
        """The name of the way of inference, as in the paper's taxonomy."""
        return _INFERENCE[self.update]

    @property
    def direction(self) -> str:
        """The direction of a learned table follows from its sign; others are mixed."""
        if self.inference != "regularized":
            return "mixed"
        return "positive" if self.sign < 0 else "negative"

    def __repr__(self) -> str:
        parts = [" x ".join(str(size) for size in self.shape)]
        parts += [repr(self.penalty)] if self.penalty is not None else []
        parts += [repr(self.bound)] if self.bound is not None else []
        parts += [f"lr={self.lr:g}", self.update] if self.update in ("prox", "subgradient") else [self.update]
        parts += [repr(self.store)] if self.store is not None else []
        return f"{type(self).__name__}({', '.join(parts)})"


@final
class Sample(Table):
    r"""A row for each sample of the training set: :math:`k_i = i`.

    Args:
        num_samples: the size of the training set.
        shape: of a row.
        store: how rows are kept. "dense": 4 bytes an entry. "sparse": 4 bytes a sample, and about 6 a nonzero entry. "rows.tab" or
            another name of a file: in full, in that file. "auto": dense up to a gigabyte, and beyond it sparse, if steps leave zeros.
            ":float16" or ":bfloat16" behind it, as in "sparse:float16", keeps numbers in 16 bits; smaller steps are lost.
        settings: as of every :class:`Table`.

    >>> from compensate.terms import L1
    >>> Sample(50_000, 10, penalty=L1(0.1), lr=1.0)
    Sample(50000 x 10, L1(0.1), lr=1, prox)
    >>> table = Sample(10_000_000, 1000, penalty=L1(0.1), store="sparse")
    >>> table, f"{table.nbytes / 1e6:.0f} MB"
    (Sample(10000000 x 1000, L1(0.1), lr=1, prox, sparse), '40 MB')
    """

    granularity = "sample"

    def __init__(self, num_samples: int, *shape: int, store: Store = "auto", **settings: Any) -> None:
        num_samples = checked_whole("num_samples", num_samples, 1)
        held = held_range(num_samples)
        super().__init__(len(held), *shape, store=store, **settings)
        self.num_samples = num_samples
        """The number of samples."""
        self.first_row = held.start
        """The sample of the first row, nonzero if several processes share the table."""

    def key(self, s: Batch) -> Tensor:
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
        if s.group is None:
            raise InputError(
                "group is missing: a Group table keeps a row per group. Pass the group number of each sample: criterion(logits, target, index, group=group)."
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
        size = s.places.batch if s.by_input else len(s.target)
        return torch.zeros(size, dtype=torch.long, device=s.target.device)


@final
class Fresh(nn.Module):
    """A new row for each sample of the batch in each step, the default of inner loops.

    >>> Fresh()
    Fresh()
    """

    granularity = "sample"
