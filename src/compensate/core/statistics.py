"""Statistics of the training: records of samples and means of classes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate.core.batch import Batch
from compensate.core.layout import chunks, distinct_rows, held_range, is_eager_cpu
from compensate.core.stages import full_precision
from compensate.core.validation import checked_classes, checked_index, checked_whole
from compensate.errors import InputError, check, one_of

Score = Literal["loss", "size", "margin"]
Recorded = Literal["loss", "size", "margin", "agreement"]
Merge = Literal["sum", "mean", "rows", "same"]


class Statistic(nn.Module):
    """A statistic of the training. As a value it returns its entries for the samples of the batch.

    Each buffer declares how copies of several processes merge: by "sum", by "mean", "rows" of each one's samples, or as the "same".

    >>> class Visits(Statistic):
    ...     def __init__(self, num_samples):
    ...         super().__init__()
    ...         self.num_samples = num_samples
    ...         self.track("count", torch.zeros(num_samples), merge="sum")
    ...     def observe(self, s):
    ...         self.count[s.index] += 1
    ...     def forward(self, s):
    ...         return self.count[s.index]
    """

    observes: ClassVar[Literal["logits", "loss"]] = "loss"
    """When it observes: after the loss, or before the terms, which can then read its value for this batch."""

    withholds: ClassVar[bool] = False
    """Whether samples of the batch, `hidden(s)` (B,), get neither loss nor record."""

    shares: ClassVar[bool] = False
    """Whether all places of a sample may share one row."""

    reader: ClassVar[str] = "a statistic of this criterion"
    """Its name in error messages."""

    _buffer: Any = ()

    def __init__(self) -> None:
        super().__init__()
        self.num_samples: int | None = None
        """The number of rows, if it has one for each sample, or for each of `num_labels` labels of each."""
        self.num_labels: int | None = None
        self.num_classes: int | None = None
        """The number of classes, if it has an entry for each."""
        self.rolls = False
        """True if it is renewed by `end_epoch`."""
        self.first_row = 0
        """The sample of the first row, nonzero if several processes share the rows."""
        self.merges: dict[str, Merge] = {}
        self._buffer = []

    def track(self, name: str, start: Tensor, *, merge: Merge) -> Tensor:
        """Adds a buffer, which it returns, and declares how its copies merge. A process may hold a part of the rows; see `holding_rows`."""
        held = held_range(len(start)) if merge == "rows" else range(0)
        if merge == "rows" and len(held) < len(start):
            self.first_row, start = held.start, start[held.start : held.stop].clone()
        self.register_buffer(name, start)
        self.merges[name] = merge
        return start

    def check(self, s: Batch) -> None:
        """Raises if it cannot observe this batch; called before any state changes."""
        places = s.places
        if self.num_samples is not None:
            checked_index(s, self.num_samples, self.reader)
            if places.shared_index and not self.shares:
                raise InputError(
                    f"{self.reader} keeps something of its own for each row, and the index names samples with {places.each} places. "
                    "Give the index of each place, (batch, d1, ...), and num_samples as the number of all places."
                )
        if places.binary and self.num_labels not in (None, places.labels):
            raise InputError(
                f"a sample has {places.labels} labels and {self.reader} keeps {self.num_labels} of each; write "
                f"Evidence(num_samples, num_labels={places.labels})."
            )
        if self.num_classes is not None:
            checked_classes(s, self.num_classes, self.reader)

    def index(self, s: Batch) -> Tensor:
        """(B,) the index of each sample."""
        assert self.num_samples is not None
        index = checked_index(s, self.num_samples, self.reader)
        return index - self.first_row if self.first_row else index

    def observe(self, s: Batch) -> None:
        """Observes a training batch."""
        raise NotImplementedError

    def collect(self, s: Batch, *columns: Tensor) -> None:
        """Passes columns (B,) of the batch, which are not written to later, to `add`; small batches are buffered to amortize call overhead."""
        if s.compiled or not s.complete:
            self.flush()
            self.add(s.valid, *columns)
            return
        self._buffer.append(columns)
        if len(self._buffer) * len(columns) * columns[0].numel() > BUFFER:
            self.flush()

    def add(self, valid: Tensor | None, *columns: Tensor) -> None:
        """Adds columns (n,) of one batch or several; only those of `valid` samples, if it is given."""
        raise NotImplementedError

    @torch.no_grad()
    def flush(self) -> None:
        """Adds the buffered columns; every access to buffers that change within an epoch does so first."""
        if self._buffer:
            buffered, self._buffer = self._buffer, []
            self.add(None, *map(torch.cat, zip(*buffered, strict=True)))

    def __getattr__(self, name: str) -> Any:
        if self._buffer and self.merges.get(name, "same") != "same":
            self.flush()
        found = self._buffers.get(name)
        return super().__getattr__(name) if found is None else found

    def named_buffers(self, *args: Any, **kwargs: Any) -> Any:
        """As of every module, with buffered columns added."""
        self.flush()
        return super().named_buffers(*args, **kwargs)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self.flush()
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def _save_to_state_dict(self, *args: Any) -> None:
        self.flush()
        super()._save_to_state_dict(*args)

    def _load_from_state_dict(self, *args: Any) -> None:
        self.flush()
        super()._load_from_state_dict(*args)

    def moved_rows(self, s: Batch) -> Tensor | None:
        """(R,) distinct rows of its buffers that this batch moves; None if it may move anything."""
        return None

    def hidden(self, s: Batch) -> Tensor:
        """(B,) true for samples that are withheld; see `withholds`."""
        raise NotImplementedError

    def undo(self, s: Batch) -> Callable[[], None]:
        """A function that restores the state before `observe`, for batches that raise an error later."""
        rows = self.moved_rows(s)
        before = {name: getattr(self, name)[... if rows is None else rows].clone() for name in self.merges}

        def back() -> None:
            for name, old in before.items():
                getattr(self, name)[... if rows is None else rows] = old

        return back

    def end_epoch(self) -> None:
        """Rolls over, for statistics of one epoch; the next visits the same samples."""
        self.flush()


SHOWN = 10
"""The number of suspects that are printed."""

EARLY = (
    "early: labels were seen at most once on average, and a model that has learned little contradicts many right labels. "
    "Train for more epochs before you trust this order"
)
"""What is printed below suspects of less than about an epoch."""

BUFFER = 2**16
"""Logits of small batches that a record buffers to amortize call overhead: 51 batches of 128 samples and 10 classes."""


class Visits(NamedTuple):
    """Rows (n,) of a record, plain logits (n, C), given classes (n,), -1 if not recorded, and compensation (n, C) or (n, 1)."""

    rows: Tensor
    u: Tensor
    labels: Tensor
    du: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Suspects:
    """Samples whose labels look wrong, most suspect first."""

    index: Tensor
    """(K,) rows of the training set."""
    score: Tensor
    """(K,) how suspect, larger is more."""
    suggested: Tensor
    """(K,) the likeliest other class; -1 for a sample with many places; of several labels, 1 to add and 0 to remove the label."""
    flagged: Tensor
    """(K,) true if the evidence is against the label."""
    label: Tensor | None = None
    """(K,) the label number, if samples have several labels."""
    unjudged: int = 0
    """How many labels have no record: their samples were not seen in training, or the criterion withheld them."""
    total: int = 0
    """How many labels there are, or edges."""
    early: bool = False
    """True if a judged label was seen at most once on average, by a model that had learned little."""

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        label = torch.zeros_like(self.index) if self.label is None else self.label
        columns = (self.index, label, self.score, self.suggested, self.flagged)
        rows = zip(*(column[:SHOWN].tolist() for column in columns), strict=True)
        several = self.label is not None
        lines = [
            f"{i:>8}  {f'{c:>5}  ' * several}{score:>8.3f}  {guess:>9}  {'yes' if flag else 'no'}"
            for i, c, score, guess, flag in rows
        ]
        more = [f"... {len(self) - SHOWN} more"] if len(self) > SHOWN else []
        head = f"{'index':>8}  {'label  ' * several}{'score':>8}  {'suggested':>9}  flagged"
        if self.total and self.unjudged == self.total:
            return f"{head}\n    none: nothing was seen in training; train for some epochs before you call this"
        unjudged = f"{self.unjudged} of {self.total} labels are not judged: not seen in training, or withheld from it"
        return "\n".join([head, *lines, *more, *[unjudged] * (self.unjudged > 0), *[EARLY] * self.early])


@final
class Evidence(Statistic):
    r"""A running record of each sample: its compensation, and how well the model agrees with its label.

    .. math:: \bar v_i = \frac1{n_i} \sum_t \|v_i^{(t)}\|_1, \qquad
              \bar m_i = \frac1{n_i} \sum_t \bigl( u_{i,y_i}^{(t)} - \max_{c \ne y_i} u_{i,c}^{(t)} \bigr)

    where :math:`n_i` counts the visits :math:`t` of sample :math:`i`, :math:`v` is its logit compensation and :math:`u`
    its plain logits. A label with a negative mean margin :math:`\bar m_i` is flagged, and the class that won most of the probability
    over the visits is suggested.

    Args:
        num_samples: the size of the training set.
        skip: epochs at the start that are not recorded: a model that has learned nothing contradicts everything.
        score: the ranking of suspects: by the mean plain "loss", by the "size" :math:`\bar v_i`, or by the mean "margin".
        lean: keep only the margin, the score and the suggestion, as means in 16 bits: 8 to 10 bytes per sample instead of 24.
        num_classes: the number of classes, for smaller numbers in a lean record; outputs of the model beyond them are left out.
        predictions: also keep the mean prediction of each sample, 4 bytes a class, and how often it agreed with the label.
        num_labels: labels of a sample, under `base="bce"`: each (sample, label) has a record of its own.

    On the CPU it warns once if the label of a row changes. If the index names samples with many places, a visit is the mean over
    them, and no class is suggested.

    >>> from compensate import Compensated
    >>> criterion = Compensated(record=Evidence(2, score="margin"))
    >>> _ = criterion(torch.tensor([[3.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 0]), torch.tensor([0, 1]))
    >>> criterion.suspects().index.tolist()
    [1, 0]
    """

    reader, shares = "a record of evidence", True
    _warned = False
    """True after the warning about changed labels."""

    def __init__(
        self,
        num_samples: int,
        *,
        skip: int = 0,
        score: Score = "loss",
        lean: bool = False,
        num_classes: int | None = None,
        predictions: bool = False,
        num_labels: int = 1,
    ) -> None:
        super().__init__()
        self.num_labels = num_labels = checked_whole("num_labels", num_labels, 1)
        num_samples = checked_whole("num_samples", num_samples, 1) * num_labels
        if predictions and (lean or num_classes is None):
            raise InputError("a record of predictions needs num_classes=..., and is not lean: leave out lean=True.")
        self.num_samples, self.skip, self.score = num_samples, skip, score
        self.lean, self.classes, self.predictions = lean, num_classes, predictions
        self.kept: tuple[Recorded, ...] = ("size", "loss", "margin")
        if lean:
            self.kept = ("margin",) if score == "margin" else (score, "margin")
        if predictions:
            assert num_classes is not None
            self.kept += ("agreement",)
            self.total_prediction = self.track("total_prediction", torch.zeros(num_samples, num_classes), merge="rows")
        whole = torch.int16 if lean and num_classes is not None and num_classes <= 2**15 else torch.int32
        for name in self.kept:
            start = torch.zeros(num_samples, dtype=torch.float16 if lean else None)
            self.track(f"mean_{name}" if lean else f"total_{name}", start, merge="rows")
        self.visits = self.track("visits", torch.zeros(num_samples, dtype=torch.int16 if lean else None), merge="rows")
        self.votes = self.track("votes", torch.zeros(num_samples, dtype=torch.float16 if lean else None), merge="rows")
        self.guess = self.track("guess", torch.zeros(num_samples, dtype=whole), merge="rows")
        self._indices: list[Tensor] = []  # of the buffered batches, as the caller gave them

    def observe(self, s: Batch) -> None:
        """Adds the visits of the batch; those of small batches are buffered."""
        index, labels = self.index(s), s.labels
        if not s.complete or self.skip:
            seen = s.valid & (s.epoch >= self.skip) if self.skip else s.valid
            labels = labels.masked_fill(~seen, -1)
        labels = labels if s.withheld is None else labels.masked_fill(s.withheld, -1)
        du = s.u.new_zeros(s.u.shape[0], 1) if s.du is None else s.du
        du = du if s.du is None or du.shape == s.u.shape else du.expand_as(s.u)
        general = not s.hard or s.criterion.base is not None or s.places.several
        if general or s.plain.numel() > BUFFER // 2 or s.compiled:
            self.flush()
            u = F.pad(s.plain, (1, 0)) if s.places.binary else s.plain  # a label as two classes, with logits 0 and u
            known = not general and (s.du is None or "p" in vars(s) or "plain_losses" in vars(s))
            losses = s.plain_losses if known else None
            self._add(Visits(index, u, labels, du), [len(index)], losses, s if general else None)
            return
        first = self._buffer[0] if self._buffer else None
        if first is not None and (first.u.shape[1], first.du.shape[1]) != (s.plain.shape[1], du.shape[1]):
            self.flush()
        index = index.clone() if index is s.index else index  # the caller may reuse its tensors
        self._buffer.append(Visits(index, s.plain.clone(), labels, du if s.du is None else du.clone()))
        self._indices.append(self._buffer[-1].rows if s.index is None or index.is_cpu else s.index.clone())
        if len(self._buffer) * s.plain.numel() > BUFFER:
            self.flush()

    @torch.no_grad()
    def flush(self) -> None:
        """Adds the buffered visits to the record."""
        if self._buffer:
            buffered, self._buffer = self._buffer, []
            indices, self._indices = torch.cat(self._indices), []
            visits = Visits(*(torch.cat(part) for part in zip(*buffered, strict=True)))
            # The vote depends on the order of visits: batches vote one by one, unless it is known that no sample comes twice.
            distinct = is_eager_cpu(indices) and distinct_rows(indices)[1] is None
            self._add(visits, [len(visits.rows)] if distinct else [len(part.rows) for part in buffered])

    # --- the record -------------------------------------------------------------------------------------------

    def _add(self, visits: Visits, sizes: list[int], losses: Tensor | None = None, s: Batch | None = None) -> None:
        """Adds visits from batches of these sizes, with plain cross entropies (n,) if they are known.

        `s` is given under another base loss, with soft or several labels, or with many places per sample.
        """
        index, u, labels, du = visits
        seen = labels >= 0
        counts = None if is_eager_cpu(labels) and bool(seen.all()) else seen
        given = labels if counts is None else labels.clamp(min=0)
        classes = None if s is not None and s.places.binary else self.classes
        parts = []
        for v, c, dv in chunks(u, given[:, None], du):
            # Row by row: the numbers must not depend on the other visits in the buffer.
            v = full_precision(v).log_softmax(-1) if losses is None else v.clone()
            own = v.gather(1, c)[:, 0]
            best, voted = largest(v[:, :classes].scatter_(1, c, -torch.inf))
            parts.append((own - best, voted, dv.abs().sum(1), -own))
        margin, voted, size, loss = (torch.cat(column) for column in zip(*parts, strict=True))
        loss = loss if losses is None else losses
        p = (-margin - loss).exp()  # the softmax of `best`: the loss is its log-partition minus the given logit
        q = u[:, :classes].float().softmax(-1) if self.predictions else None
        values = {"margin": margin, "loss": loss if s is None else s.plain_losses, "size": size}
        if s is not None and s.places.shared_index:
            places, valid = s.places, s.valid
            index = places.firsts(index)
            values["agreement"] = (margin > 0).to(margin.dtype)
            values = {name: places.pooled(value, valid) for name, value in values.items()}
            q = None if q is None else places.pooled(q, valid)
            counts = None if counts is None else places.pooled(counts.float(), valid) > 0
            self._count(index, counts, values, q)
            self.guess[index] = -1
            return
        self._count(index, counts, values, q)
        columns = {"index": index, "voted": voted, "p": p, "labels": given, "counts": counts}
        if s is not None and not s.hard:
            del columns["labels"]
        columns = {name: column.split(sizes) for name, column in columns.items() if column is not None}
        for batch in zip(*columns.values(), strict=True):
            self._vote(**dict(zip(columns, batch, strict=True)))

    def _count(self, index: Tensor, counts: Tensor | None, values: dict[str, Tensor], q: Tensor | None) -> None:
        visits = torch.ones_like(index) if counts is None else counts
        self.visits.index_add_(0, index, visits.to(self.visits.dtype))
        for name in self.kept:
            value = values[name] if name in values else (values["margin"] > 0).to(values["margin"].dtype)
            record = getattr(self, f"mean_{name}" if self.lean else f"total_{name}")
            if self.lean:
                # A mean moves by its distance from the new value over the number of visits.
                value = (value.float() - record[index]) / self.visits[index].clamp(min=1)
            value = value if counts is None else torch.where(counts, value, 0.0)
            record.index_add_(0, index, value.to(record.dtype))
        if q is not None:
            q = q if counts is None else torch.where(counts[:, None], q, 0.0)
            self.total_prediction.index_add_(0, index, q.to(self.total_prediction.dtype))

    def _vote(
        self, index: Tensor, voted: Tensor, p: Tensor, labels: Tensor | None = None, counts: Tensor | None = None
    ) -> None:
        """A majority vote over the visits in constant memory: votes for the guess are added, others subtracted.

        All visits of a batch vote on the guess before the batch. If several classes replace it, the last one wins.
        """
        guess, votes = self.guess[index], self.votes[index]
        if is_eager_cpu(guess) and labels is not None and not self._warned:
            changed = (guess == labels) & (votes > 0)  # the guess differs from the label of its visits
            changed = changed if counts is None else changed & counts
            if bool(changed.any()):
                self._warned = True
                row, label = (int(column[changed][0]) for column in (index, labels))
                warnings.warn(
                    f"row {row + self.first_row} has label {label} now and had another one before: the index is not the sample's row in the "
                    "training set, unless its label was changed on purpose. Wrap the data set with compensate.data.Indexed(dataset).",
                    stacklevel=2,
                )
        against = guess != voted
        if counts is not None:
            p, against = torch.where(counts, p, 0.0), against & counts
        self.votes.index_add_(0, index, torch.where(against, -p, p).to(votes.dtype))
        after = self.votes[index]
        lost = after < 0
        self.votes[index] = after.abs()
        # A sample may come twice: a visit that keeps the guess must not overwrite one that replaces it.
        kept = torch.where(lost, -1, guess)
        self.guess[index] = kept
        self.guess.scatter_reduce_(0, index, torch.where(lost & against, voted.to(guess.dtype), kept), "amax")

    def mean(self, name: Recorded) -> Tensor:
        """(N,) the mean over the visits of each sample; NaN for a sample that has not been seen."""
        if name not in self.kept:
            kind, remedy = ("lean ", "lean=False") if self.lean else ("", "predictions=True")
            raise InputError(f'a {kind}record keeps {" and ".join(self.kept)}, not "{name}"; build it with {remedy}.')
        if self.lean:
            return torch.where(self.visits > 0, getattr(self, f"mean_{name}"), torch.nan).float()
        return getattr(self, f"total_{name}") / self.visits

    def mean_predictions(self) -> Tensor:
        """(N, C) the mean prediction over the visits of each sample; NaN for a sample that has not been seen."""
        if not self.predictions:
            raise InputError("this record keeps no predictions; build it with predictions=True, num_classes=....")
        return self.total_prediction / self.visits[:, None]

    def suspects(self, top: int | None = None) -> Suspects:
        """All samples with a record (or the first `top`), most suspect first. `unjudged` counts those without one."""
        check(top is None or top >= 0, "the number of samples to return, or None for all", top=top)
        score = -self.mean("margin") if self.score == "margin" else self.mean(self.score)
        order = score.nan_to_num(nan=-torch.inf).argsort(descending=True, stable=True)
        judged = int((self.visits > 0).sum())
        flagged, order = self.mean("margin") < 0, order[:judged][:top]
        early = not self.skip and int(self.visits.sum()) <= judged
        suspects = Suspects(
            order, score[order], self.guess[order].long(), flagged[order], None, len(score) - judged, len(score), early
        )
        labels = self.num_labels or 1
        return suspects if labels == 1 else replace(suspects, index=order // labels, label=order % labels)

    def extra_repr(self) -> str:
        return f"{self.num_samples} samples"


def largest(u: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) the largest entry of each row and its column."""
    if u.shape[-1] < 100 or not is_eager_cpu(u) or u.dtype not in (torch.float32, torch.float64):
        best, column = u.max(1)
        return best, column
    column = torch.from_numpy(u.detach().numpy().argmax(1))  # ten times faster than torch for many classes
    return u.gather(1, column[:, None])[:, 0], column


def labels_of(base: str | None, num_samples: int | None, num_classes: int | None) -> int:
    """Labels per sample: the number of classes under `base="bce"` for criteria with rows per sample, else 1."""
    if base is None or num_samples is None:
        return 1
    if num_classes is None:
        raise InputError('base="bce" keeps something of each label of a sample: give num_classes and num_samples.')
    return num_classes


@final
class ClassMean(Statistic):
    r"""The mean prediction of each class over the previous epoch; as a value, the row of the given class, (B, C).

    .. math:: \tilde p_c = \frac1{Z_c} \sum_{j: y_j = c} \mathrm{conf}_j\, p_j

    where :math:`Z_c` is the sum of the :math:`\mathrm{conf}_j`; it is 1, or 1 for a right prediction and 0 for a wrong
    one. Classes without any such sample keep a uniform row, and so do all before the first epoch has ended.

    Args:
        num_classes: the number of classes.
        conf: "all", every prediction counts; "correct", only right ones do.

    >>> from compensate import Compensated
    >>> from compensate.terms import Toward
    >>> means = ClassMean(2, conf="all")
    >>> criterion = Compensated(label=Toward(means, 0.5))          # online label smoothing
    >>> _ = criterion(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 0]))
    >>> criterion.end_epoch()

    Reference: Yao and Wu, Compensation Learning, 2021, Eqs. (55)-(56).
    """

    granularity, reader, binary = "category", "a mean of predictions", False

    def __init__(self, num_classes: int, conf: Literal["all", "correct"] = "correct") -> None:
        super().__init__()
        one_of("conf", conf, "all", "correct")
        self.conf, self.rolls, self.num_classes = conf, True, num_classes
        self.mean = self.track("mean", torch.full((num_classes, num_classes), 1 / num_classes), merge="same")
        self.total = self.track("total", torch.zeros(num_classes, num_classes), merge="sum")
        self.count = self.track("count", torch.zeros(num_classes), merge="sum")

    def forward(self, s: Batch) -> Tensor:
        """(B, C) the mean prediction of each sample's given class."""
        return self.mean[s.labels]

    def observe(self, s: Batch) -> None:
        """Adds the predictions of the batch."""
        p = s.p.detach().to(self.total.dtype)
        counts = s.valid if self.conf == "all" else s.valid & (p.argmax(-1) == s.labels)
        conf = counts.to(p.dtype)
        self.total.index_add_(0, s.labels, conf[:, None] * p)
        self.count.index_add_(0, s.labels, conf)

    def end_epoch(self) -> None:
        """The means of this epoch become the value; counting starts anew."""
        means = self.total / self.count.clamp(min=1)[:, None]
        self.mean.copy_(torch.where(self.count[:, None] > 0, means, 1 / len(self.mean)))
        self.total.zero_()
        self.count.zero_()

    def extra_repr(self) -> str:
        return f"{self.conf} predictions"
