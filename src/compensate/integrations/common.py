"""Does an index still name the same sample? What a table per sample silently relies on, looked at in every batch."""

from __future__ import annotations

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

UNSEEN = torch.iinfo(torch.int32).min
"""The label of a sample that has not been seen."""

FEW = 4
"""An epoch in which each index serves this many samples on average is looked at closer."""


@final
class IndexCheck(Statistic):
    r"""Remembers the label that each index came with, and raises as soon as one comes with another.

    .. math:: y_i^{(t)} = y_i^{(1)} \quad \text{for all visits } t \text{ of sample } i

    where :math:`y_i^{(t)}` is the given class at visit :math:`t`. An index that is the place in the batch, or that was given
    out anew after shuffling or filtering, breaks this within a few batches. Distributions as targets are left alone: they may
    change from visit to visit. What it remembers is no part of the criterion's `state_dict`, so that a checkpoint fits a
    criterion without it; :class:`~compensate.integrations.CriterionHooks` stores it beside.

    Args:
        num_samples: rows of the criterion's tables; None if it keeps nothing per sample.
        fixed_labels: false if labels change on purpose during the training.

    Shapes: targets (B,), index (B,), `given` (N,).

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

    def __init__(self, num_samples: int | None, *, fixed_labels: bool = True) -> None:
        super().__init__()
        self.num_samples, self.fixed_labels, self.rolls = num_samples, fixed_labels, num_samples is not None
        self.evaluating = False
        """True while the training loop evaluates; set by whoever runs it."""
        self.whole = False
        """True if every process must see the whole batch; set by whoever runs several."""
        self.padding: Padding | None = None
        """What the sampler of several processes repeats; set by whoever runs them."""
        size = num_samples or 0
        self.register_buffer("given", torch.full((size,), UNSEEN, dtype=torch.int32), persistent=False)
        self.register_buffer("here", torch.zeros(size, dtype=torch.bool), persistent=False)
        self.merges = {"given": "rows", "here": "rows"}
        self._visited = self._largest = 0

    reader, shares = "this criterion", True

    def check(self, s: Batch) -> None:
        """Raises if the batch names its samples by other numbers than before."""
        if self.evaluating:
            raise InputError(LEARNS_IN_EVALUATION)
        if s.model is not None and self.padding is not None and self.padding.rows(s.places.batch) is not None:
            raise InputError(
                "the sampler repeats samples in the last batch of an epoch, so that every process has as many, and they would count "
                "twice. Write criterion(*together(model(x), target, index)), which leaves them out, in place of "
                "criterion.evaluate, or use a loader that drops what is too many (drop_last=True)."
            )
        if self.given.device != s.u.device:
            raise InputError(
                f"the criterion is on {self.given.device} and the logits are on {s.u.device}. Move it before training: "
                "criterion.to(device)."
            )
        if self.num_samples is None:
            return
        index = self.index(s)
        self._compare_processes(index)
        if self._compares(s):
            self._compare(index, s)

    def observe(self, s: Batch) -> None:
        """Remembers the labels of the batch."""
        if self.num_samples is None:
            return
        index = self.index(s)
        self.here[index] = True
        self._visited += s.visits
        self._largest = max(self._largest, s.visits)
        if self._compares(s):
            self.given.scatter_reduce_(0, index, self._known(s), "amax")

    def _compares(self, s: Batch) -> bool:
        return s.hard and not s.shared_index and self.fixed_labels and s.check != "off"

    def _known(self, s: Batch) -> Tensor:
        """(B,) the labels; as of unseen samples where they are ignored, for padding has no index of its own."""
        now = s.target.to(self.given.dtype)
        return now if s.complete else torch.where(s.valid, now, UNSEEN)

    def _compare(self, index: Tensor, s: Batch) -> None:
        now, before = self._known(s), self.given[index]
        distinct, place = index.unique(return_inverse=True)
        new = now.new_full((len(distinct),), UNSEEN)
        new = new.scatter_reduce_(0, place, now, "amax")[place]  # one index may stand twice in a batch
        kept = torch.where(before == UNSEEN, new, before)
        same = (kept == now) | (now == UNSEEN)
        if s.check == "sync" and not bool(same.all()):
            first = int((~same).nonzero()[0])
            raise InputError(
                f"index {int(index[first])} came with label {int(kept[first])} before and comes with label "
                f"{int(now[first])} now: {_RENAMED}"
            )
        require_true(same.all(), f"an index came with two different labels: {_RENAMED}", s.check)

    def _compare_processes(self, index: Tensor) -> None:
        """Once: with `together` the index is the same in every process."""
        if self.whole and self._visited == 0 and dist.is_initialized() and dist.get_world_size() > 1:
            mark = torch.stack([index.sum(), index.new_tensor(len(index))])
            low, high = mark.clone(), mark.clone()
            dist.all_reduce(low, dist.ReduceOp.MIN)
            dist.all_reduce(high, dist.ReduceOp.MAX)
            if not torch.equal(low, high):
                raise InputError(
                    "each process evaluates the criterion on its own slice of the batch, so that its tables would go "
                    "their own ways. Write criterion(*together(model(x), target, index)), with together from "
                    "compensate.training."
                )

    def end_epoch(self) -> None:
        """Warns if an epoch had far fewer indices than samples, and none that could not be a place in a batch."""
        distinct, beyond = int(self.here.sum()), bool(self.here[self._largest :].any())
        if self._visited >= FEW * FEW and distinct * FEW <= self._visited and not beyond:
            warnings.warn(
                f"in the last epoch {self._visited} samples came under only {distinct} different indices. Is the index the "
                "place in the batch? Pass the row in the whole training set.",
                stacklevel=2,
            )
        self.here.zero_()
        self._visited = self._largest = 0


_RENAMED = (
    "the index no longer names the same sample, and a row would serve two of them. Number the samples once, in the whole "
    "training set, before any split, shuffling or filter: compensate.data.Indexed(dataset), or "
    "compensate.integrations.transformers.add_index(dataset). A row in the batch is no index. If labels change on purpose, say "
    "fixed_labels=False."
)

LEARNS_IN_EVALUATION = (
    "an evaluation batch reached the criterion in training mode: it would be compensated as a training sample with the same "
    "index. Call criterion.eval() for evaluation, or compute the plain loss there."
)


def refuse_in_evaluation(criterion: Any, arguments: Any) -> None:
    """A hook before the drop-in call: without gradients nothing is observed, but compensation would still be added."""
    if criterion.training and getattr(criterion, "index_check", None) is not None and criterion.index_check.evaluating:
        raise InputError(LEARNS_IN_EVALUATION)


Rows = slice | Tensor
"""The rows of a batch that are no repetition."""

DROP_LAST = (
    "Give the training loader sampler=torch.utils.data.DistributedSampler(dataset, drop_last=True), which leaves out the few "
    "samples that are too many (others in each epoch), and Trainer(use_distributed_sampler=False)."
)


@final
class Padding:
    """A hook before the drop-in call that cuts repeated samples off its arguments.

    Args:
        kept: from the size of a batch, the rows that are no repetition; None if all are.
        share: from the number of rows that are left, what the mean loss of an own slice is multiplied with: of slices that differ in
            size, the mean over processes is the mean over samples only if each counts by its size.

    >>> import torch
    >>> hook = Padding(lambda size: slice(0, 3))
    >>> hook.cut(torch.arange(4), None)
    (tensor([0, 1, 2]), None)
    """

    def __init__(
        self, kept: Callable[[int], Rows | None] | None = None, share: Callable[[int], float] | None = None
    ) -> None:
        self.kept, self.share = kept, share

    def rows(self, size: int) -> Rows | None:
        """The rows of a batch that are no repetition; None if all are."""
        return None if self.kept is None else self.kept(size)

    def cut(self, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        """Tensors of one batch without repeated rows."""
        rows = self.rows(len(next(t for t in tensors if t is not None)))
        return tensors if rows is None else tuple(t if t is None else t[rows] for t in tensors)

    def __call__(self, criterion: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments without repeated rows, in training."""
        if not criterion.training:
            return None
        cut = self.cut(*args, *kwargs.values())
        return cut[: len(args)], dict(zip(kwargs, cut[len(args) :], strict=True))

    def scale(self, criterion: Any, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Tensor) -> Tensor:
        """A hook after the drop-in call: the loss of a slice by its share."""
        if self.share is None or not criterion.training or criterion.reduction != "mean":
            return loss
        return loss * self.share(len((*args, *kwargs.values())[0]))

    def __reduce__(self) -> tuple[type[Padding], tuple[()]]:
        return Padding, ()  # a copy of the criterion is in no loop


def repeated(loader: Any) -> int:
    """Samples that the processes after the first ones see a second time, one each, at the end of an epoch of their loader.

    >>> from torch.utils.data import DataLoader
    >>> repeated(DataLoader(range(5), sampler=DistributedSampler(range(5), num_replicas=4, rank=0)))
    3
    """
    sampler = getattr(loader, "sampler", None)
    if not isinstance(sampler, DistributedSampler) or sampler.drop_last:
        return 0
    if getattr(loader, "drop_last", False) and sampler.num_samples % loader.batch_size:
        return 0  # the batch that they are in is not given out
    return sampler.total_size - len(sampler.dataset)  # type: ignore[arg-type]


Optimizers = Iterable[torch.optim.Optimizer]

TAKE = "Pass clean=DataLoader(trusted, ...), batches (x, target) of samples whose labels are right."
TAKE_THEM = "Call compensate.meta_step(criterion, model, batch, clean_batch, lr=...) before each training step, and say own_meta=True."


@final
class CriterionHooks:
    """What a training loop does for a criterion beside calling it; the integrations are written with it.

    It attaches a :class:`~compensate.integrations.IndexCheck`, sets the clock, ends epochs once each, checks that the right
    optimizer holds the right parameters, and has a `state_dict` with all that a resumed training needs.

    Args:
        criterion: the criterion.
        clean: batches ``(x, target)`` of trusted data, for methods that learn by meta steps; gone through again and again.
        meta_optimizer: for methods with parameters beside their tables; Adam with a rate of 0.001 if not given.
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
        self,
        criterion: Compensated,
        *,
        clean: Iterable[Any] | None = None,
        meta_optimizer: torch.optim.Optimizer | None = None,
        fixed_labels: bool = True,
    ) -> None:
        if not isinstance(criterion, Compensated):
            raise InputError(
                f"the criterion is a {type(criterion).__name__}; expected one of compensate's, such as "
                "compensate.methods.logcomp(num_samples=..., num_classes=...)."
            )
        self.criterion, self.clean, self.meta_optimizer = criterion, clean, meta_optimizer
        self._batches: Iterator[Any] = iter(())
        self._shift = 0
        if not isinstance(getattr(criterion, "index_check", None), IndexCheck):
            sizes = [m.num_samples for m in criterion.modules() if isinstance(m, Sample | Statistic) and m.num_samples]
            criterion.index_check = IndexCheck(max(sizes) if sizes else None, fixed_labels=fixed_labels)
            criterion.register_forward_pre_hook(refuse_in_evaluation)
            criterion.index_check.to(criterion.epoch.device)
        assert isinstance(criterion.index_check, IndexCheck)
        self.index_check = criterion.index_check
        self.index_check.fixed_labels = fixed_labels
        self.index_check.evaluating = False

    def leave_out(self, kept: Callable[[int], Rows | None], share: Callable[[int], float] | None = None) -> None:
        """Cuts what a sampler of several processes repeats off every training batch; see :class:`Padding`."""
        if self.index_check.padding is None:
            self.index_check.padding = Padding()
            self.criterion.register_forward_pre_hook(self.index_check.padding, with_kwargs=True)
            self.criterion.register_forward_hook(self.index_check.padding.scale, with_kwargs=True)
        self.index_check.padding.kept, self.index_check.padding.share = kept, share

    # --- time -------------------------------------------------------------------------------------------------

    def begin(
        self,
        *,
        total: int | None,
        done: int = 0,
        epochs: int = 0,
        optimizers: Optimizers = (),
        own_meta: bool = False,
        remedy: str = TAKE,
    ) -> None:
        """Before the first batch of a training, or of one that is resumed.

        Args:
            total: batches of the whole training (not steps of the optimizer, of which accumulation makes fewer); None if
                not known, and then a method that needs it asks for `criterion.start`.
            done: batches that the loop has done before, as it says itself.
            epochs: epochs that the loop has finished before.
            optimizers: those of the loop.
            own_meta: true if the user's code calls `meta_step` itself.
            remedy: what to do if nobody takes the meta steps that the criterion needs.
        """
        steps = int(self.criterion.step)
        if done and not steps:
            raise InputError(
                f"the training resumes after {done} batches, but the criterion has seen none: its state is not in the "
                "checkpoint, and its tables would start from zero. Train anew, or load the state of the criterion too."
            )
        if steps and not done:
            warnings.warn(
                f"this criterion has been trained for {steps} steps already, and a new training begins: its tables and its clock "
                "go on from there. Build a new criterion if that is not meant.",
                stacklevel=3,
            )
        # An epoch that ended with a checkpoint may not have been ended in it; a used criterion is ahead of the loop.
        self._shift = 0 if done else int(self.criterion.epoch)
        if total:
            self.criterion.start(total + (0 if done else steps))
        self.catch_up(epochs)
        check_optimizers(self.criterion, list(optimizers), meta=self.clean is not None or own_meta, remedy=remedy)
        if self.meta_optimizer is None and self.clean is not None and (free := networks(self.criterion)):
            self.meta_optimizer = torch.optim.Adam(free, lr=1e-3)

    def catch_up(self, epochs: int, end_epoch: Callable[[], None] | None = None) -> None:
        """Ends epochs until this number of them is ended: calling it twice after an epoch does no harm.

        Args:
            epochs: the number.
            end_epoch: ends one; `criterion.end_epoch` if not given. With several processes, that of their
                :class:`~compensate.training.Exchange`.
        """
        while int(self.criterion.epoch) - self._shift < epochs:
            (end_epoch or self.criterion.end_epoch)()

    # --- meta steps -------------------------------------------------------------------------------------------

    def meta(self, model: nn.Module, batch: tuple[Any, ...], lr: float) -> None:
        """The meta step that comes before a training step on `batch`, if there are clean data."""
        if self.clean is None:
            return
        x, target = self._next_clean()[:2]
        device = self.criterion.epoch.device
        meta_step(
            self.criterion, model, batch, (_moved(x, device), target.to(device)), lr=lr, optimizer=self.meta_optimizer
        )

    def _next_clean(self) -> Any:
        for source in (self._batches, iter(self.clean or ())):
            self._batches = source
            for batch in source:
                return batch
        raise InputError("clean has no batch; expected for example a DataLoader over trusted samples (x, target).")

    # --- state ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Tables, statistics and clock; the labels seen so far; the optimizer of meta steps."""
        state: dict[str, Any] = {"criterion": self.criterion.state_dict(), "given": self.index_check.given}
        if self.meta_optimizer is not None:
            state["meta_optimizer"] = self.meta_optimizer.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes back to a state; the length of the training stays as it was set, if it was."""
        if "criterion" not in state or "given" not in state:
            raise InputError(
                f"the state holds {', '.join(state) or 'nothing'}; expected what CriterionHooks.state_dict() gives."
            )
        total = int(self.criterion.total)
        try:
            self.criterion.load_state_dict(state["criterion"])
            self.index_check.given.copy_(state["given"])
        except RuntimeError as error:
            raise InputError(
                f"the checkpoint is of another criterion: {str(error).strip()} Build it with the method and the sizes of the "
                "training that is resumed."
            ) from error
        if total:
            self.criterion.total.fill_(total)
        if "meta_optimizer" in state:
            if self.meta_optimizer is None:
                self.meta_optimizer = torch.optim.Adam(networks(self.criterion), lr=1e-3)
            self.meta_optimizer.load_state_dict(state["meta_optimizer"])


def check_optimizers(
    criterion: Compensated, optimizers: list[torch.optim.Optimizer], *, meta: bool, remedy: str = TAKE
) -> None:
    """Raises if parameters of the criterion would be moved by nobody, or by the wrong one.

    >>> from compensate import methods
    >>> check_optimizers(methods.meta_logit(num_samples=8, num_classes=2), [], meta=False)
    Traceback (most recent call last):
    compensate.errors.InputError: this criterion learns by meta steps on clean data, ...
    """
    held = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
    learned = [t.weight for t in criterion.tables() if t.update == "meta"]
    free = networks(criterion)
    if not meta and (learned or any(id(p) not in held for p in free)):
        raise InputError(
            f"this criterion learns by meta steps on clean data, and nothing takes them: it would stay as it began. {remedy}"
        )
    if any(id(p) in held for p in (*learned, *(free if meta else ()))):
        raise InputError(
            "the optimizer of the model holds parameters of the criterion, which belong to meta steps: it would move rows of "
            "samples that are not in the batch. Give it the parameters of the model alone, not self.parameters()."
        )
    manual = [t for t in criterion.tables() if t.update == "manual" and id(t.weight) not in held]
    if manual and optimizers:
        raise InputError(
            f'{manual[0]!r} has update="manual", so an optimizer of yours must move it, but none holds its weight. Add '
            "criterion.parameters() to one, or choose update='prox'."
        )
    if any(isinstance(o, torch.optim.LBFGS) for o in optimizers) and any(
        t.update in ("prox", "subgradient") for t in criterion.tables()
    ):
        warnings.warn(
            "LBFGS evaluates the loss several times a step, and the rows of the criterion's tables move each time. Choose "
            "an optimizer that evaluates it once.",
            stacklevel=4,
        )


def _moved(x: Any, device: torch.device) -> Any:
    if isinstance(x, Tensor):
        return x.to(device)
    return {k: _moved(v, device) for k, v in x.items()} if isinstance(x, Mapping) else x


def criteria_in(module: nn.Module) -> list[Compensated]:
    """The criteria that are registered in a module.

    >>> criteria_in(nn.Linear(2, 2))
    []
    """
    return [m for m in module.modules() if isinstance(m, Compensated)]
