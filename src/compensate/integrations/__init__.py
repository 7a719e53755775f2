"""Criteria in the training loops of Lightning, Hugging Face, accelerate and skorch.

Each module serves one library and is imported by its full name, for example
``from compensate.integrations.lightning import CompensationCallback``. A library is imported when it is first needed. All of them
use the hooks and the index check of this module. `watch` finds bad rows in the trainings of Hugging Face and TRL.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DistributedSampler

from compensate.core.batch import Batch
from compensate.core.criterion import Compensated
from compensate.core.statistics import Statistic
from compensate.core.tables import Sample
from compensate.core.validation import require_true
from compensate.errors import InputError
from compensate.terms.meta import meta_step, networks
from compensate.training.distributed import move
from compensate.training.step import make_meta_optimizer

__all__ = ["CriterionHooks", "IndexCheck", "watch"]


def __getattr__(name: str) -> Any:
    """`watch`, whose libraries are imported when it is first used."""
    if name == "watch":
        return importlib.import_module("compensate.integrations.fine_tuning").watch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


UNSEEN = torch.iinfo(torch.int32).min
"""The label of a sample that has not been seen."""

MAX_VISITS = 4
"""Mean number of samples per index in an epoch above which the index is suspected to be a position in the batch."""

_RENAMED = (
    "the index no longer names the same sample, and a row would serve two of them. Number the samples once, in the whole "
    "training set, before any split, shuffling or filter: compensate.data.Indexed(dataset), or "
    "compensate.integrations.transformers.add_index(dataset). The position in the batch is not an index. If labels change on "
    "purpose, pass fixed_labels=False."
)

UNEVEN = "even_batches=False gives slices of different sizes, which cannot be gathered; leave it out: repeated samples do not count."

LEARNS_IN_EVALUATION = (
    "an evaluation batch reached the criterion in training mode. Call criterion.eval() for evaluation."
)


@final
class IndexCheck(Statistic):
    r"""Remembers the label of each index, and raises if an index comes with another label.

    .. math:: y_i^{(t)} = y_i^{(1)} \quad \text{for all visits } t \text{ of sample } i

    where :math:`y_i^{(t)}` is the given class at visit :math:`t`. An index that is the position in the batch, or that changed after
    shuffling or filtering, violates this within a few batches. Soft targets are not checked.
    :class:`~compensate.integrations.CriterionHooks` stores the labels, which are not part of the criterion's `state_dict`.

    Args:
        num_samples: rows of the criterion's tables; None if it keeps nothing per sample.
        fixed_labels: false if labels change on purpose during the training.

    >>> from compensate import methods
    >>> criterion = methods.logcomp(num_samples=8, num_classes=2)
    >>> criterion.index_check = IndexCheck(8)
    >>> u, index = torch.zeros(2, 2), torch.tensor([0, 1])
    >>> _ = criterion(u, torch.tensor([0, 1]), index)
    >>> _ = criterion(u, torch.tensor([0, 0]), index)
    Traceback (most recent call last):
    compensate.errors.InputError: index 1 came with label 1 before and comes with label 0 now: ...
    """

    given: Tensor
    here: Tensor
    reader, shares = "this criterion", True

    def __init__(self, num_samples: int | None, *, fixed_labels: bool = True) -> None:
        super().__init__()
        self.num_samples, self.fixed_labels, self.rolls = num_samples, fixed_labels, num_samples is not None
        # The integration sets these: whether the loop evaluates, and whether every process must see the whole batch.
        self.evaluating = self.whole = False
        self.padding = Padding()
        size = num_samples or 0
        self.register_buffer("given", torch.full((size,), UNSEEN, dtype=torch.int32), persistent=False)
        self.register_buffer("here", torch.zeros(size, dtype=torch.bool), persistent=False)
        self.merges = {"given": "rows", "here": "rows"}
        self._visited = self._largest = 0

    def check(self, s: Batch) -> None:
        """Raises if the batch cannot be right."""
        if self.evaluating:
            raise InputError(LEARNS_IN_EVALUATION)
        if s.model is not None and self.padding.kept(s.places.batch) is not None:
            raise InputError(
                "the sampler repeats samples in the last batch of an epoch, and they would count twice. Write criterion(*together("
                "model(x), target, index)) instead of criterion.evaluate, which leaves them out, or use a loader with drop_last=True."
            )
        if self.given.device != s.u.device:
            raise InputError(
                f"the criterion is on {self.given.device} and the logits are on {s.u.device}. Move it first: criterion.to(device)."
            )
        if self.num_samples is None:
            return
        index = self.index(s)
        if self.whole and self._visited == 0 and dist.is_initialized() and dist.get_world_size() > 1:
            mark = torch.stack([index.sum(), index.new_tensor(len(index))])
            low, high = mark.clone(), mark.clone()
            dist.all_reduce(low, dist.ReduceOp.MIN)
            dist.all_reduce(high, dist.ReduceOp.MAX)
            if not torch.equal(low, high):
                raise InputError(
                    "each process evaluates the criterion on its own slice of the batch, and the tables of the processes would "
                    "diverge. Write criterion(*together(model(x), target, index)), with together from compensate.training."
                )
        if not self._compares(s):
            return
        now, before = self._labels(s), self.given[index]
        distinct, place = index.unique(return_inverse=True)  # an index may occur twice in a batch
        new = now.new_full((len(distinct),), UNSEEN).scatter_reduce_(0, place, now, "amax")[place]
        kept = torch.where(before == UNSEEN, new, before)
        same = (kept == now) | (now == UNSEEN)
        if s.check == "sync" and not bool(same.all()):
            first = int((~same).nonzero()[0])
            raise InputError(
                f"index {int(index[first])} came with label {int(kept[first])} before and comes with label "
                f"{int(now[first])} now: {_RENAMED}"
            )
        require_true(same.all(), f"an index came with two different labels: {_RENAMED}", s.check)

    def observe(self, s: Batch) -> None:
        """Remembers the labels of the batch."""
        if self.num_samples is None:
            return
        index = self.index(s)
        self.here[index] = True
        self._visited, self._largest = self._visited + s.places.visits, max(self._largest, s.places.visits)
        if self._compares(s):
            self.given.scatter_reduce_(0, index, self._labels(s), "amax")

    def _compares(self, s: Batch) -> bool:
        return s.hard and not s.places.shared_index and self.fixed_labels and s.check != "off"

    def _labels(self, s: Batch) -> Tensor:
        """(B,) the labels, `UNSEEN` for ignored targets such as padding."""
        labels = s.target.to(self.given.dtype)
        return labels if s.complete else torch.where(s.valid, labels, UNSEEN)

    def end_epoch(self) -> None:
        """Warns if an epoch had far fewer indices than samples, all smaller than the largest batch."""
        distinct, beyond = int(self.here.sum()), bool(self.here[self._largest :].any())
        if self._visited >= MAX_VISITS**2 and distinct * MAX_VISITS <= self._visited and not beyond:
            warnings.warn(
                f"in the last epoch {self._visited} samples came under only {distinct} different indices. Is the index the "
                "position in the batch? Pass the row in the whole training set.",
                stacklevel=2,
            )
        self.here.zero_()
        self._visited = self._largest = 0


Rows = slice | Tensor


@final
class Padding:
    """Forward hooks that refuse evaluation batches in training mode and remove repeated samples from a training batch.

    Attributes:
        kept: maps the size of a batch to its rows without repetitions; None for all rows.
        share: maps the number of remaining rows to a factor of the mean loss: the mean over processes with slices of different
            sizes is the mean over samples only if each slice counts by its size.
    """

    def __init__(self) -> None:
        self.kept: Callable[[int], Rows | None] = lambda size: None
        self.share: Callable[[int], float] | None = None

    def __call__(self, criterion: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The forward pre-hook."""
        if not criterion.training:
            return None
        if criterion.index_check.evaluating:  # without gradients nothing is observed, but compensation would be added
            raise InputError(LEARNS_IN_EVALUATION)
        tensors = (*args, *kwargs.values())
        rows = self.kept(len(tensors[0]))
        if rows is None:
            return None
        cut = [t if t is None else t[rows] for t in tensors]
        return tuple(cut[: len(args)]), dict(zip(kwargs, cut[len(args) :], strict=True))

    def scale(self, criterion: Any, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Tensor) -> Tensor:
        """The forward hook: multiplies the loss of a slice by its share."""
        if self.share is None or not criterion.training or criterion.reduction != "mean":
            return loss
        return loss * self.share(len((*args, *kwargs.values())[0]))

    def __reduce__(self) -> tuple[type[Padding], tuple[()]]:
        return Padding, ()  # a copy of the criterion belongs to no loop


def repeated(loader: Any) -> int:
    """The number of samples that a distributed sampler repeats in an epoch, one for each of the last processes.

    >>> from torch.utils.data import DataLoader
    >>> repeated(DataLoader(range(5), sampler=DistributedSampler(range(5), num_replicas=4, rank=0)))
    3
    """
    sampler = getattr(loader, "sampler", None)
    if not isinstance(sampler, DistributedSampler) or sampler.drop_last:
        return 0
    if getattr(loader, "drop_last", False) and sampler.num_samples % loader.batch_size:
        return 0  # the loader drops the batch that holds them
    return sampler.total_size - len(sampler.dataset)  # type: ignore[arg-type]


GIVE_CLEAN = "Pass clean=DataLoader(trusted, ...), batches (x, target) of samples with correct labels."


@final
class CriterionHooks:
    """The work of a training loop for a criterion, other than calling it.

    It attaches a :class:`~compensate.integrations.IndexCheck`, sets the clock, ends each epoch once, checks which optimizer holds
    which parameters, and has a `state_dict` with everything that a resumed training needs.

    Args:
        criterion: the criterion.
        clean: batches ``(x, target)`` of trusted data, repeated as needed, for methods with meta steps.
        meta_optimizer: for methods with networks of their own; Adam with a rate of 0.001 by default.
        fixed_labels: false if labels change on purpose during the training.

    >>> from compensate import methods
    >>> hooks = CriterionHooks(methods.logcomp(num_samples=8, num_classes=2))
    >>> hooks.begin(total=4)
    >>> int(hooks.criterion.total)
    4
    >>> sorted(hooks.state_dict())
    ['criterion', 'given']
    """

    def __init__(
        self, criterion: Compensated, *, clean: Iterable[Any] | None = None,
        meta_optimizer: torch.optim.Optimizer | None = None, fixed_labels: bool = True,
    ) -> None:  # fmt: skip
        if not isinstance(criterion, Compensated):
            raise InputError(
                f"the criterion is a {type(criterion).__name__}; expected one of compensate's, such as compensate.methods.logcomp(...)."
            )
        self.criterion, self.clean, self.meta_optimizer = criterion, clean, meta_optimizer
        self._batches: Iterator[Any] = iter(())
        self._shift = 0
        if not isinstance(getattr(criterion, "index_check", None), IndexCheck):
            sizes = [m.num_samples for m in criterion.modules() if isinstance(m, Sample | Statistic) and m.num_samples]
            criterion.index_check = check = IndexCheck(max(sizes, default=None)).to(criterion.epoch.device)
            criterion.register_forward_pre_hook(check.padding, with_kwargs=True)
            criterion.register_forward_hook(check.padding.scale, with_kwargs=True)
        assert isinstance(criterion.index_check, IndexCheck)
        self.index_check = criterion.index_check
        self.index_check.fixed_labels, self.index_check.evaluating = fixed_labels, False

    def leave_out(self, kept: Callable[[int], Rows | None], share: Callable[[int], float] | None = None) -> None:
        """Removes samples that a distributed sampler repeats from every training batch; see :class:`Padding`."""
        self.index_check.padding.kept, self.index_check.padding.share = kept, share

    def begin(
        self, *, total: int | None, done: int = 0, epochs: int = 0, optimizers: Iterable[torch.optim.Optimizer] = (),
        own_meta: bool = False, remedy: str = GIVE_CLEAN,
    ) -> None:  # fmt: skip
        """Call it before the first batch of a new or resumed training.

        Args:
            total: number of batches of the whole training; None if unknown: a method that needs it asks for `criterion.start`.
            done, epochs: number of batches and epochs that the loop has finished.
            optimizers: the optimizers of the loop.
            own_meta: true if the user's code calls `meta_step`.
            remedy: advice for the error if the criterion needs meta steps and none are taken.
        """
        steps = int(self.criterion.step)
        if done and not steps:
            raise InputError(
                f"the training resumes after {done} batches, but the criterion has seen none: its state is not in the "
                "checkpoint, and its tables would start from zero. Train again, or load the state of the criterion too."
            )
        if steps and not done:
            warnings.warn(
                f"this criterion has been trained for {steps} steps already, and a new training begins: its tables and its clock "
                "continue from there. Build a new criterion for an independent training.",
                stacklevel=3,
            )
        # A checkpoint at the end of an epoch may precede `end_epoch`; a used criterion is ahead of the loop.
        self._shift = 0 if done else int(self.criterion.epoch)
        if total:
            self.criterion.start(total + (0 if done else steps))
        self.catch_up(epochs)
        check_optimizers(self.criterion, list(optimizers), meta=self.clean is not None or own_meta, remedy=remedy)
        if self.meta_optimizer is None and self.clean is not None:
            self.meta_optimizer = make_meta_optimizer(self.criterion)

    def catch_up(self, epochs: int, end_epoch: Callable[[], None] | None = None) -> None:
        """Ends epochs of the criterion until `epochs` have ended, by default with `criterion.end_epoch`; a second call does nothing."""
        while int(self.criterion.epoch) - self._shift < epochs:
            (end_epoch or self.criterion.end_epoch)()

    def meta(self, model: nn.Module, batch: tuple[Any, ...], lr: float) -> None:
        """Takes the meta step before a training step on `batch`, if there are clean data."""
        if self.clean is None:
            return
        clean = next(self._batches, None)
        if clean is None:
            self._batches = iter(self.clean)
            clean = next(self._batches, None)
        if clean is None:
            raise InputError("clean has no batch; expected for example a DataLoader over trusted samples (x, target).")
        given = move(tuple(clean[:2]), self.criterion.epoch.device)
        meta_step(self.criterion, model, batch, given, lr=lr, optimizer=self.meta_optimizer)

    def state_dict(self) -> dict[str, Any]:
        """The state of the criterion, the labels of the index check, and the state of the meta optimizer."""
        state: dict[str, Any] = {"criterion": self.criterion.state_dict(), "given": self.index_check.given}
        return state | ({"meta_optimizer": self.meta_optimizer.state_dict()} if self.meta_optimizer else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state; a length of the training that is already set stays."""
        if "criterion" not in state or "given" not in state:
            raise InputError(f"the state holds {', '.join(state) or 'nothing'}; expected what state_dict() gives.")
        total = int(self.criterion.total)
        try:
            self.criterion.load_state_dict(state["criterion"])
            self.index_check.given.copy_(state["given"])
        except RuntimeError as error:
            raise InputError(
                f"the checkpoint is of another criterion: {str(error).strip()} Build it as in the training that is resumed."
            ) from error
        if total:
            self.criterion.total.fill_(total)
        if "meta_optimizer" in state:
            self.meta_optimizer = self.meta_optimizer or make_meta_optimizer(self.criterion)
            assert self.meta_optimizer is not None
            self.meta_optimizer.load_state_dict(state["meta_optimizer"])


def check_optimizers(
    criterion: Compensated, optimizers: list[torch.optim.Optimizer], *, meta: bool, remedy: str = GIVE_CLEAN
) -> None:
    """Raises if no optimizer, or the wrong one, updates parameters of the criterion."""
    held = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
    learned = [t.weight for t in criterion.tables() if t.update == "meta"]
    free = networks(criterion)
    if not meta and (learned or any(id(p) not in held for p in free)):
        raise InputError(
            f"this criterion learns by meta steps on clean data, and nothing takes them: it would keep its initial state. {remedy}"
        )
    if any(id(p) in held for p in (*learned, *(free if meta else ()))):
        raise InputError(
            "the optimizer of the model holds parameters of the criterion, which belong to meta steps: it would change rows of "
            "samples outside the batch. Give it the parameters of the model alone, not self.parameters()."
        )
    manual = [t for t in criterion.tables() if t.update == "manual" and id(t.weight) not in held]
    if manual and optimizers:
        raise InputError(
            f'{manual[0]!r} has update="manual", so an optimizer of yours must update it, but none holds its weight. Add '
            "criterion.parameters() to one, or choose update='prox'."
        )
    moving = any(t.update in ("prox", "subgradient") for t in criterion.tables())
    if moving and any(isinstance(o, torch.optim.LBFGS) for o in optimizers):
        warnings.warn(
            "LBFGS evaluates the loss several times a step, and the criterion's tables change each time. Choose another optimizer.",
            stacklevel=4,
        )


def loader_length(loader: Any) -> int | None:
    """The number of batches of a loader; None if it is unknown."""
    try:
        return len(loader)
    except TypeError:
        return None


def batches_of_steps(steps: int, accumulate: int, per_epoch: int | None) -> int:
    """The number of batches of these optimizer steps. The last step of an epoch may have fewer batches.

    >>> batches_of_steps(5, 2, 5)  # epochs of 2 + 2 + 1 batches
    9
    """
    if per_epoch is None:
        return steps * accumulate
    in_epoch = -(-per_epoch // accumulate)
    return steps // in_epoch * per_epoch + min(steps % in_epoch * accumulate, per_epoch)
