"""A criterion on its way through a training loop of others: its clock, its state, its parameters."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from compensate.equation import Compensated
from compensate.errors import InputError
from compensate.granularity import Sample
from compensate.inference.meta import meta_step, networks
from compensate.inference.statistics import Statistic
from compensate.integrations.index_check import IndexCheck, refuse_in_evaluation
from compensate.integrations.padding import Padding, Rows

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
