"""What is observed over the training: records of samples and means of classes."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, cast, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate.core.batch import Batch
from compensate.core.fast import blocks, cross_entropy, row_sizes
from compensate.core.rows import distinct_rows, held_range
from compensate.core.validation import at_hand, checked_classes, checked_index
from compensate.errors import InputError

Score = Literal["loss", "size", "margin"]
Recorded = Literal["loss", "size", "margin", "agreement"]
Merge = Literal["sum", "mean", "rows", "same"]


class Statistic(nn.Module, ABC):
    """Something counted during training. As a value it returns what is known of the samples of the batch.

    Each buffer declares how the copies of several processes become one: "sum", they are added; "mean", they are
    averaged; "rows", each process knows the rows of its own samples; "same", they are equal in all processes.

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
    """When it looks: when the whole loss is known, or before the terms are, if they are to read what it makes of this batch."""

    shares: ClassVar[bool] = False
    """Whether the many places of a sample may have one row."""

    reader: ClassVar[str] = "a statistic of this criterion"
    """What errors call it."""

    def __init__(self) -> None:
        super().__init__()
        self.num_samples: int | None = None
        """Rows, if it keeps one for each sample."""
        self.num_classes: int | None = None
        """Classes, if it keeps something of each."""
        self.rolls = False
        """True if it is renewed by `end_epoch`."""
        self.first_row = 0
        """The row of the sample whose row comes first: other than 0 where rows are cut among several processes."""
        self.merges: dict[str, Merge] = {}

    def track(self, name: str, start: Tensor, *, merge: Merge) -> None:
        """Adds a buffer and says how its copies merge. Of rows, a process may hold a part; see `compensate.core.rows`."""
        held = held_range(len(start)) if merge == "rows" else range(0)
        if merge == "rows" and len(held) < len(start):
            self.first_row, start = held.start, start[held.start : held.stop].clone()
        self.register_buffer(name, start)
        self.merges[name] = merge

    def check(self, s: Batch) -> None:
        """Raises if it cannot observe this batch; called before anything moves, so that a refused batch leaves no trace."""
        if self.num_samples is not None:
            self.index(s)
            if s.shared and not self.shares:
                raise InputError(
                    f"{self.reader} keeps something of its own for each row, and the index names samples with {s.places.each} places. "
                    "Give the index of each place, (batch, d1, ...), and num_samples as the number of all places."
                )
        if self.num_classes is not None:
            checked_classes(s, self.num_classes, self.reader)

    def index(self, s: Batch) -> Tensor:
        """(B,) the index of each sample."""
        assert self.num_samples is not None
        index = checked_index(s, self.num_samples, self.reader)
        return index - self.first_row if self.first_row else index

    @abstractmethod
    def observe(self, s: Batch) -> None:
        """Looks at a training batch."""

    def moved_rows(self, s: Batch) -> Tensor | None:
        """(R,) distinct rows of its buffers that this batch moves; None if it may move anything."""
        return None

    def undo(self, s: Batch) -> Callable[[], None]:
        """Takes back what `observe` is about to do, for a batch that is refused later."""
        rows = self.moved_rows(s)
        before = {name: getattr(self, name)[... if rows is None else rows].clone() for name in self.merges}

        def back() -> None:
            for name, old in before.items():
                getattr(self, name)[... if rows is None else rows] = old

        return back

    def end_epoch(self) -> None:
        """Rolls over, for statistics of one epoch."""


SHOWN = 10
"""Rows of suspects that are printed."""

WAITING = 2**16
"""Logits of small batches that a record keeps before it adds them up: 51 batches of 128 samples and 10 classes. A few hundred kilobytes, and what costs the
same for one sample and for thousands, the calls, is paid once."""


@dataclass(slots=True)
class _Waiting:
    """Small batches on their way into a record."""

    batches: list[tuple[Tensor, Tensor, Tensor, Tensor]] = field(default_factory=list)
    """(B, C) logits; (B,) how much they are compensated, or (B, C) by what; (2, B) index and target; (B,) the index once more, on the
    host if it was given there."""
    form: tuple[int, int, int] = (0, 0, 0)
    """C, the class that is ignored, and the axes of the second."""
    numbers: int = 0
    """Logits in all batches."""


class Visits(NamedTuple):
    """What a record is told of some samples."""

    rows: Tensor
    """(n,) where they are in the record."""
    u: Tensor
    """(n, C) their logits."""
    labels: Tensor
    """(n,) their given classes."""
    losses: Tensor | None
    """(n,) their plain losses; None if nobody asks."""
    size: Tensor | None
    """(n,) how much they are compensated; None if nobody asks."""
    counts: Tensor | None
    """(n,) false where nothing is to be recorded; None if all count."""


@dataclass(frozen=True, eq=False, repr=False)
class Suspects:
    """Samples whose labels look wrong, most suspect first."""

    index: Tensor
    """(K,) rows of the training set."""
    score: Tensor
    """(K,) how suspect, larger is more."""
    suggested: Tensor
    """(K,) the class that the model would give, other than the given one; -1 for a sample with many places. For one of several
    labels, 1 or 0: to be added or to be taken away."""
    flagged: Tensor
    """(K,) true where the evidence says wrong rather than right."""
    label: Tensor | None = None
    """(K,) which label of the sample, where it has several."""

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
        none = [] if len(self) else ["    none: no sample was seen in training"]
        head = f"{'index':>8}  {'label  ' * several}{'score':>8}  {'suggested':>9}  flagged"
        return "\n".join([head, *lines, *more, *none])


@final
class Evidence(Statistic):
    r"""A running record of each sample: how much compensation it took, and what the model thought of its label.

    .. math:: \bar v_i = \frac1{n_i} \sum_t \|v_i^{(t)}\|_1, \qquad
              \bar m_i = \frac1{n_i} \sum_t \bigl( u_{i,y_i}^{(t)} - \max_{c \ne y_i} u_{i,c}^{(t)} \bigr)

    where :math:`n_i` counts the visits :math:`t` of sample :math:`i`, :math:`v` is its logit compensation and :math:`u`
    its plain logits. A label that the model keeps contradicting has a negative mean margin :math:`\bar m_i`; it is
    flagged, and the class that won most of the probability over the visits is suggested. The first `skip` epochs are left out: a model that
    has learned nothing contradicts everything.

    Args:
        num_samples: the size of the training set.
        skip: epochs that are not recorded.
        score: what suspects are ranked by: "loss", the mean plain loss; "size", the mean compensation
            :math:`\bar v_i`; "margin", the mean margin.
        lean: keep nothing but the margin, what suspects are ranked by, and the suggestion, as means of 16 bits: 8 to 10 bytes a
            sample, if they are ranked by the margin, instead of 24. Visits are counted up to 32,767, and means have three digits.
        num_classes: the number of classes: a lean record then knows how many bytes a class needs, and outputs of the model
            beyond the classes, such as that of abstention, are left out.
        predictions: also keep the mean prediction of each sample, 4 bytes a class, and how often it agreed with the label.
        num_labels: labels of a sample, under `base="bce"`: each (sample, label) has a record of its own.

    On the CPU it warns once if a row comes with another label than before: then the index is no row of the training set.

    Where an index names samples with many places, a visit of a sample is the mean over its places, and no class is suggested.

    >>> from compensate import Compensated
    >>> criterion = Compensated(record=Evidence(2, score="margin"))
    >>> _ = criterion(torch.tensor([[3.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 0]), torch.tensor([0, 1]))
    >>> criterion.suspects().index.tolist()
    [1, 0]
    """

    reader, shares = "a record of evidence", True
    _told = False
    """True once it has warned of an index that is no row."""

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
        if num_samples < 1 or num_labels < 1:
            raise InputError(
                f"num_samples is {num_samples} and num_labels {num_labels}; expected the size of the training set, and the labels of a sample."
            )
        self.num_labels = num_labels
        num_samples *= num_labels
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
            self.track("total_prediction", torch.zeros(num_samples, num_classes), merge="rows")
        few = num_classes is not None and num_classes <= 2**15 and lean
        # Torch leaves zeros that were never written to the system, which takes no memory for them.
        for name in self.kept:
            start = torch.zeros(num_samples, dtype=torch.float16 if lean else None)
            self.track(f"mean_{name}" if lean else f"total_{name}", start, merge="rows")
        self.track("visits", torch.zeros(num_samples, dtype=torch.int16 if lean else None), merge="rows")
        self.track("votes", torch.zeros(num_samples, dtype=torch.float16 if lean else None), merge="rows")
        self.track("guess", torch.zeros(num_samples, dtype=torch.int16 if few else torch.int32), merge="rows")
        self._waiting = _Waiting()
        self.visits: Tensor
        self.total_size: Tensor
        self.total_loss: Tensor
        self.total_margin: Tensor
        self.total_prediction: Tensor
        self.votes: Tensor
        self.guess: Tensor

    def check(self, s: Batch) -> None:
        """There must be as many labels as it keeps."""
        super().check(s)
        if s.places.binary and s.places.labels != self.num_labels:
            raise InputError(
                f"a sample has {s.places.labels} labels and {self.reader} keeps {self.num_labels} of each; write "
                f"Evidence(num_samples, num_labels={s.places.labels})."
            )

    def observe(self, s: Batch) -> None:
        """Adds the visits of the batch; those of small batches wait for one another."""
        if self._may_wait(s):
            self._wait(s)
            return
        self.settle()
        index = self.index(s)
        u = s.plain if self.classes is None else s.plain[:, : self.classes]
        if s.places.binary:
            u = F.pad(u, (1, 0))  # a label that may be there or not: two classes, with logits 0 and u
        counts = None if s.complete and not self.skip else s.valid & (s.epoch >= self.skip)
        losses = s.plain_losses if s.ordinary or "loss" in self.kept else None
        visits = Visits(index, u, s.labels, losses, s.size if "size" in self.kept else None, counts)
        if s.ordinary and not s.shared:
            self._add_up(visits)
            return
        best, voted, given = _other_than(u, s.labels)
        p = (u if s.places.binary else s.plain).softmax(-1).gather(1, voted[:, None])[:, 0]
        values = self._values(visits, given - best)
        q = u.float().softmax(-1) if self.predictions else None
        if s.shared:
            places, seen = s.places, s.valid
            index = places.firsts(index)
            values = {name: places.pooled(value, seen) for name, value in values.items()}
            q = None if q is None else places.pooled(q, seen)
            counts = None if counts is None else places.pooled(counts.float(), seen) > 0
        self._count(index, counts, values, q)
        if s.shared:
            self.guess[index] = -1
        else:
            self._vote(index, s.labels if s.hard else None, voted, p, counts)

    # --- small batches ------------------------------------------------------------------------------------------

    def _may_wait(self, s: Batch) -> bool:
        """True if the batch is small, and plain in every other way."""
        known = s.complete or not at_hand(s.target)
        plain = known and s.ordinary and s.plain_inputs and not s.places.several and not self.skip
        return plain and s.u.numel() <= WAITING // 2 and not torch.compiler.is_compiling()

    def _wait(self, s: Batch) -> None:
        """Keeps copies: what was given may be written over before it is added up."""
        u, waiting = s.u, self._waiting
        delta = s.size if s.size_known else cast(Tensor, s.du).clone()
        form = (u.shape[1], s.criterion.ignore_index, delta.ndim)
        if waiting.batches and waiting.form != form:
            self.settle()
        names = torch.stack((self.index(s), s.target))
        on_host = s.index is not None and at_hand(s.index) and not at_hand(u)
        waiting.batches.append((u.clone(), delta, names, cast(Tensor, s.index).clone() if on_host else names[0]))
        waiting.form, waiting.numbers = form, waiting.numbers + u.numel()
        if waiting.numbers > WAITING:
            self.settle()

    @torch.no_grad()
    def settle(self) -> None:
        """Adds up what is waiting; every look at the record does so first."""
        waiting, ignored = self._waiting.batches, self._waiting.form[1]
        if not waiting:
            return
        self._waiting.batches, self._waiting.numbers = [], 0
        logits, deltas, names, indices = zip(*waiting, strict=True)
        u, delta, (index, target) = torch.cat(logits), torch.cat(deltas), torch.cat(names, 1)
        valid = target != ignored
        counts = None if at_hand(valid) and bool(valid.all()) else valid
        labels = target if counts is None else target * valid
        losses = cross_entropy(u, labels)
        u = u if self.classes is None else u[:, : self.classes]
        # The vote depends on the order of visits: batches vote one by one, unless it is known that no sample comes twice.
        once = all(map(at_hand, indices)) and distinct_rows(torch.cat(indices))[1] is None
        visits = Visits(index, u, labels, losses, row_sizes(delta) if delta.ndim > 1 else delta, counts)
        self._add_up(visits, None if once else [*map(len, logits)])

    def __getattr__(self, name: str) -> Any:
        """Buffers are looked at when nothing is waiting."""
        waiting = self.__dict__.get("_waiting")
        if waiting is not None and waiting.batches and name in self._buffers:
            self.settle()
        return super().__getattr__(name)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Any:
        """As of every module, when nothing is waiting."""
        self.settle()
        return super().named_buffers(*args, **kwargs)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self.settle()
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def _save_to_state_dict(self, *args: Any) -> None:
        self.settle()
        super()._save_to_state_dict(*args)

    def _load_from_state_dict(self, *args: Any) -> None:
        self.settle()
        super()._load_from_state_dict(*args)

    def end_epoch(self) -> None:
        """Nothing waits for the next epoch, which brings the same samples."""
        self.settle()

    # --- what is kept -------------------------------------------------------------------------------------------

    def _add_up(self, visits: Visits, sizes: list[int] | None = None) -> None:
        """Visits of samples of one row each, under cross entropy; `sizes` are those of the batches, if there are several."""
        index, u, labels, losses, _, counts = visits
        assert losses is not None
        best, voted, given = _other_than(u, labels)
        margin = given - best
        p = (-margin - losses).exp()  # the plain loss knows the sum of the softmax
        self._count(index, counts, self._values(visits, margin), u.float().softmax(-1) if self.predictions else None)
        votes = (index, labels, voted, p) if counts is None else (index, labels, voted, p, counts)
        for batch in [votes] if sizes is None else zip(*(column.split(sizes) for column in votes), strict=True):
            self._vote(*batch)

    def _values(self, visits: Visits, margin: Tensor) -> dict[Recorded, Tensor]:
        found = {"margin": margin, "loss": visits.losses, "size": visits.size}
        if self.predictions:
            found["agreement"] = (margin > 0).to(margin.dtype)
        return {name: value for name in self.kept if (value := found[name]) is not None}

    def _count(self, index: Tensor, counts: Tensor | None, values: dict[Recorded, Tensor], q: Tensor | None) -> None:
        visits = torch.ones_like(index) if counts is None else counts
        self.visits.index_add_(0, index, visits.to(self.visits.dtype))
        for name, value in values.items():
            self._add(name, index, counts, value)
        if q is not None:
            q = q if counts is None else torch.where(counts[:, None], q, 0.0)
            self.total_prediction.index_add_(0, index, q.to(self.total_prediction.dtype))

    def _add(self, name: Recorded, index: Tensor, counts: Tensor | None, value: Tensor) -> None:
        record = getattr(self, f"mean_{name}" if self.lean else f"total_{name}")
        if self.lean:
            # A mean moves by its distance from the new value over the number of visits, twice if the batch has a sample twice.
            value = (value.float() - record[index]) / self.visits[index].clamp(min=1)
        value = value if counts is None else torch.where(counts, value, 0.0)
        record.index_add_(0, index, value.to(record.dtype))

    def _vote(
        self, index: Tensor, labels: Tensor | None, voted: Tensor, p: Tensor, counts: Tensor | None = None
    ) -> None:
        """A majority vote over the visits in constant memory: votes for the guess add up, others take away from it.

        All visits of a batch vote on the guess that was there before it. Of several classes that replace it, the last one does.
        """
        if counts is not None and at_hand(counts):
            labels = labels if labels is None else labels[counts]
            index, voted, p, counts = index[counts], voted[counts], p[counts], None
        guess, votes = self.guess[index], self.votes[index]
        if at_hand(guess) and labels is not None and not self._told:
            self._look(index, guess, votes, labels)
        against = guess != voted
        p = p if counts is None else torch.where(counts, p, 0.0)
        against = against if counts is None else against & counts
        self.votes.index_add_(0, index, torch.where(against, -p, p).to(votes.dtype))
        after = self.votes[index]
        lost = after < 0
        self.votes[index] = after.abs()
        # A sample may come twice: a visit that does not replace the guess must not write over one that does.
        kept = torch.where(lost, -1, guess)
        self.guess[index] = kept
        self.guess.scatter_reduce_(0, index, torch.where(lost & against, voted.to(guess.dtype), kept), "amax")

    def _look(self, index: Tensor, guess: Tensor, votes: Tensor, labels: Tensor) -> None:
        """Warns once if a label is the guess of its row: a guess is another class than the label of the visit that it comes from."""
        changed = (guess == labels) & (votes > 0)
        if not bool(changed.any()):
            return
        self._told = True
        row, label = (int(column[changed][0]) for column in (index, labels))
        warnings.warn(
            f"row {row + self.first_row} has label {label} now and had another one before: the index is not the sample's row in the training set, "
            "unless its label was changed on purpose. Wrap the data set with compensate.data.Indexed(dataset).",
            stacklevel=2,
        )

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
        """All samples seen (or the first `top`), most suspect first."""
        if top is not None and top < 0:
            raise InputError(f"top is {top}; expected how many samples to name, or None for all.")
        score = -self.mean("margin") if self.score == "margin" else self.mean(self.score)
        order = score.nan_to_num(nan=-torch.inf).argsort(descending=True, stable=True)
        order = order[: int((self.visits > 0).sum())][:top]
        found = Suspects(order, score[order], self.guess[order].long(), self.mean("margin")[order] < 0)
        if self.num_labels == 1:
            return found
        return replace(found, index=order // self.num_labels, label=order % self.num_labels)

    def extra_repr(self) -> str:
        """Size."""
        return f"{self.num_samples} samples"


def _other_than(u: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(B,) the largest logit of another class than the given one, that class, and the logit of the given one."""
    given = labels[:, None]
    parts = blocks(u) if at_hand(u) else [slice(None)]  # a copy of all logits costs more than it takes to look at them
    found = [largest(u[part].scatter(1, given[part], -torch.inf)) for part in parts]
    best, voted = found[0] if len(found) == 1 else (torch.cat(column) for column in zip(*found, strict=True))
    return best, voted, u.gather(1, given)[:, 0]


def largest(u: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) largest entries and their places."""
    if u.shape[-1] < 100 or not at_hand(u) or u.dtype not in (torch.float32, torch.float64):
        best, place = u.max(1)
        return best, place
    place = torch.from_numpy(u.numpy().argmax(1))  # several times quicker for many classes
    return u.gather(1, place[:, None])[:, 0], place


def recorded(num_samples: int | None, score: Score = "loss", num_labels: int = 1) -> Evidence | None:
    """A record of evidence, if the size of the training set is known."""
    return None if num_samples is None else Evidence(num_samples, score=score, num_labels=num_labels)


def labels_of(base: str | None, num_samples: int | None, num_classes: int | None) -> int:
    """Labels of a sample: each class is one under `base="bce"`, if a criterion keeps something of samples."""
    if base is None or num_samples is None:
        return 1
    if num_classes is None:
        raise InputError('base="bce" keeps something of each label of a sample: give num_classes beside num_samples.')
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
        if conf not in ("all", "correct"):
            raise InputError(f'conf is "{conf}"; expected "all" or "correct".')
        self.conf, self.rolls, self.num_classes = conf, True, num_classes
        self.track("mean", torch.full((num_classes, num_classes), 1 / num_classes), merge="same")
        self.track("total", torch.zeros(num_classes, num_classes), merge="sum")
        self.track("count", torch.zeros(num_classes), merge="sum")
        self.mean: Tensor
        self.total: Tensor
        self.count: Tensor

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
        uniform = torch.full_like(self.mean, 1 / len(self.mean))
        means = self.total / self.count.clamp(min=1)[:, None]
        self.mean.copy_(torch.where(self.count[:, None] > 0, means, uniform))
        self.total.zero_()
        self.count.zero_()

    def extra_repr(self) -> str:
        """Which predictions count."""
        return f"{self.conf} predictions"


def find_statistics(criterion: Any, record: Evidence | None) -> None:
    """Finds the statistics among the modules of a criterion, and keeps what tells whether one of them was replaced.

    A criterion that was told to `compile` has this run as it stands while its graph is made: traced, every module on the way would be
    asked for in each call. The graph is made again for another `record`, which is all that it is an argument for.
    """
    modules = [*criterion.modules()]
    criterion._walked = [(module._modules, (*module._modules.values(),)) for module in modules]
    criterion._found = statistics_among(modules)


def statistics_among(modules: Iterable[nn.Module]) -> list[Statistic]:
    """The statistics among some modules. An abstract class takes ten times as long to look into its instances."""
    return [cast(Statistic, module) for module in modules if Statistic in type(module).__mro__]
