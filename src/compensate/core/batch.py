"""The batch that terms read: the paper's letters as attributes, computed when first used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate.core.layout import Places, is_eager_cpu
from compensate.core.stages import ForwardPass, traceless
from compensate.core.validation import CheckMode, check_batch
from compensate.errors import InputError

if TYPE_CHECKING:
    from functools import cached_property as once

    from compensate.core.criterion import Compensated
    from compensate.core.tables import TouchedRows
else:

    class once:
        """`functools.cached_property` without the lock of Python before 3.12, which compiled graphs do not support."""

        def __init__(self, compute):
            self.compute, self.name, self.__doc__ = compute, compute.__name__, compute.__doc__

        def __get__(self, owner, kind):
            value = self.compute(owner)
            setattr(owner, self.name, value)  # there is no __set__, so the instance attribute wins from now on
            return value


Value = Any
"""A number, or a callable of the batch: a schedule, a table, a statistic, a function."""

Slot = Literal["dx", "du", "dp", "dy", "dl", "dg", "dv", "da"]

MANY_CLASSES = 16
"""From this number of classes on, a softmax takes less time on a CPU than the exponential of a log-softmax."""

THROUGH: tuple[Slot, ...] = ("da", "dv", "dx")
"""Compensation before the logits, in order: of edges, by views, of features. Its gradient passes through the model."""


def at(value: Value, s: Batch) -> Any:
    """A hyper-parameter for this batch: the number itself, or the value of the callable."""
    return value(s) if callable(value) else value


class Batch:
    r"""One batch under the paper's letters.

    .. math:: L = \frac1B \sum_i l(S(f(x_i + \Delta x_i) + \Delta u_i) + \Delta p_i,\; y_i + \Delta y_i)
              + \Delta l_i + \mathrm{penalty}_i

    Terms read from it:

    - the arguments: `x`, `target` (B,) or (B, C), `index` (B,), `group` (B,), `epoch`, `step`, `progress` in [0, 1].
      If a sample has many places or several labels, B counts these rows, and `places` maps between rows and samples;
      only `x`, `index`, `group`, `dx` and `dv` stay as given;
    - `labels` (B,) the given class, `y` (B, C) the given label, `valid` (B,) false for ignored samples;
    - `u` (B, C) logits with feature compensation, `logp` and `p` their (log-)softmax, `z` (B, D) features, `head`;
    - `plain` (B, C) logits without any compensation and `plain_losses` (B,), both constants;
    - `dx du dp dy dl dg dv da`, the compensation so far (None if there is none), and in loss and gradient terms
      `l` (B,) and `gradient` (B, C), its derivative by the logits;
    - `loss_at(du=...)`, the losses under other compensation, for inner loops.

    `learn` is true while rows may move and statistics may observe; `meta` is true in the inner pass of a meta step.

    >>> import torch
    >>> from compensate import Compensated
    >>> s = Compensated().evaluate(torch.nn.Identity(), torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    >>> s.u.tolist(), s.losses.shape, s.step
    ([[2.0, 0.0]], torch.Size([1]), tensor(1))
    """

    dx: Tensor | None = None
    du: Tensor | None = None
    dp: Tensor | None = None
    dy: Tensor | None = None
    dl: Tensor | None = None
    dg: Tensor | None = None
    dv: Tensor | None = None
    da: Tensor | None = None
    l: Tensor  # noqa: E741  the letter of the paper
    """(B,) the losses without `dl`, class weights and penalties."""
    slope: Tensor | None = None
    """(B, C) the derivative of `l` by the logits, a constant, if it is known without autograd."""
    penalty: Tensor | None = None
    """(B,) the penalties of the tables."""
    loss: Tensor
    """The scalar to differentiate; (B,) with reduction="none"."""
    slot: Slot | None = None
    """The compensation under evaluation."""
    withheld: Tensor | None = None
    """(B,) the samples without loss and record; None for none."""
    gate: Tensor | None = None
    """(B,) the samples that the term under evaluation is for; None for all."""
    _form: Tensor | None = None  # (0, C), of the type and on the device of the first logits
    _z: Tensor | None = None

    def __init__(
        self,
        criterion: Compensated,
        target: Tensor,
        index: Tensor | None = None,
        group: Tensor | None = None,
        *,
        model: Callable[[Any], Tensor] | None = None,
        x: Any = None,
        logits: Tensor | None = None,
        learn: bool = False,
        meta: bool = False,
    ) -> None:
        self.criterion, self.places = criterion, Places(target, index, binary=criterion.binary)
        self.target = self.places.targets(target) if self.places.several else target
        self.index, self.group, self.model, self.x = index, group, model, x
        self.learn, self.meta, self.epoch, self.step = learn, meta, criterion.epoch, criterion.step
        self.weight = criterion.weight
        self.hard = self.target.ndim == 1
        """True if targets are class numbers, false if they are distributions or several labels."""
        self.compiled = torch.compiler.is_compiling()
        """True within a compiled graph."""
        auto: CheckMode = "sync" if is_eager_cpu(target) else "kernels"
        self.check: CheckMode = auto if criterion.check == "auto" else criterion.check
        self.touched: list[TouchedRows] = []
        self.writes: list[Callable[[], None]] = []
        self.checked: dict[tuple[int, bool], Tensor] = {}  # the index, by number of table rows and `by_input`
        self.shared: dict[nn.Module, Tensor] = {}
        """Values of statistics for this batch that several terms read."""
        if logits is not None:
            self.u = self._as_rows(logits)

    # --- targets ----------------------------------------------------------------------------------------------

    @once
    def valid(self) -> Tensor:
        """(B,) false for samples whose target is `ignore_index`."""
        if self.hard or self.places.binary:
            return self.target.flatten() != self.criterion.ignore_index
        return torch.ones(len(self.target), dtype=torch.bool, device=self.target.device)

    @once
    def complete(self) -> bool:
        """True if it is known that no target is ignored."""
        if not self.hard and not self.places.binary:
            return True
        return is_eager_cpu(self.target) and not (self.target.numpy() == self.criterion.ignore_index).any()

    @once
    def labels(self) -> Tensor:
        """(B,) the given class of each sample, 0 if it is ignored; no tensor of the caller, who may write to it later."""
        if self.places.binary:
            return (self.y[:, 0] >= 0.5).long()
        if not self.hard:
            return self.target.argmax(-1)
        return self.target.clone() if self.complete else self.target * self.valid

    @once
    def y(self) -> Tensor:
        """(B, C) the given labels as distributions; zero rows if ignored."""
        form = self.u if self._form is None else self._form  # `u` is not known yet while `dx` is inferred
        if self.hard:
            y = form.new_zeros(self.labels.shape[0], form.shape[-1])
            return y.scatter_(1, self.labels.unsqueeze(1), 1.0 if self.complete else self.valid[:, None].to(y))
        given = self.target.dtype if self.target.is_floating_point() else form.dtype
        y = self.target.to(torch.promote_types(given, form.dtype))
        return y.masked_fill(~self.valid[:, None], 0.0) if self.places.binary else y

    def of_label(self, values: Tensor) -> Tensor:
        """(B,) the values (B, C) of the given classes; a mean of them for soft labels."""
        if not self.hard:
            return (values * self.y.to(values.dtype)).sum(-1)
        return values.gather(1, self.labels.unsqueeze(1)).squeeze(1)

    @property
    def progress(self) -> Tensor:
        """The finished share of the training, from 0 to 1, a scalar tensor."""
        self.criterion.require_total()
        return (self.step / self.criterion.total).clamp(max=1.0)

    # --- the forward pass -------------------------------------------------------------------------------------

    @once
    def forward_pass(self) -> ForwardPass:
        """The model on this batch."""
        if self.model is None:
            raise InputError(
                "This criterion needs the model, not only its logits: it changes the input or reads the features. "
                "Call criterion.evaluate(model, x, target, index).loss instead of criterion(logits, target, index)."
            )
        return ForwardPass(self.model, self.x, self.places, self.criterion.views, self.target.device)

    def forward(self, *, dx: Tensor | None = None, dv: Tensor | None = None, da: Tensor | None = None) -> Tensor:
        """(B, C) logits with this compensation of features, views and edges; running statistics do not change."""
        with traceless(self.model):
            return self._as_rows(self.forward_pass.logits(dx, dv, da)[0])

    def _as_rows(self, u: Tensor) -> Tensor:
        """(B, C) the logits of the model as rows. The first logits of a batch are checked against its target."""
        u = self.places.rows(u) if self.places.several else u
        if self._form is None:
            check_batch(self, u)
            self._form = u.new_empty(0, u.shape[-1])
        return u

    @property
    def e(self) -> Tensor:
        """The input that feature compensation is added to: `embed(x)` if the model has that method, else `x`."""
        return self.forward_pass.e

    @once
    def u(self) -> Tensor:
        """(B, C) logits, feature compensation included."""
        u, self._z = self.forward_pass.logits(self.dx, self.dv, self.da)
        return self._as_rows(u)

    @property
    def z(self) -> Tensor:
        """(B, D) the input of the classifier layer."""
        _ = self.forward_pass, self.u
        if self._z is None:
            raise InputError(
                "This criterion reads the features before the classifier. Give the model the methods features(x) "
                "and head(z) with model(x) = head(features(x)), or wrap it: compensate.models.Staged(model, head=...)."
            )
        return self._z

    @property
    def head(self) -> Any:
        """The classifier layer of the model."""
        _ = self.z
        return self.forward_pass.stages.head

    @once
    def logp(self) -> Tensor:
        """(B, C) log-softmax of `u`; log-sigmoid under binary cross entropy."""
        with torch.set_grad_enabled(self.u.requires_grad):  # a statistic may ask for it first, under no_grad
            return F.logsigmoid(self.u) if self.places.binary else log_softmax(self.u)

    @once
    def p(self) -> Tensor:
        """(B, C) softmax of `u`; sigmoid under binary cross entropy."""
        with torch.set_grad_enabled(self.u.requires_grad):
            many = self.u.is_cpu and self.u.shape[-1] >= MANY_CLASSES
            return self.u.softmax(-1) if many else self.logp.exp()

    @property
    def _plain_inputs(self) -> bool:
        return self.slot not in THROUGH and self.dx is None and self.dv is None and self.da is None

    @once
    def plain(self) -> Tensor:
        """(B, C) logits without compensation, a constant; one extra forward pass if inputs are compensated."""
        if self._plain_inputs:
            return self.u.detach()
        with torch.no_grad():
            return self.forward()

    @once
    def plain_losses(self) -> Tensor:
        """(B,) losses without compensation and without class weights, constants."""
        if "l" in vars(self) and self._plain_inputs and self.du is None and self.dp is None and self.dy is None:
            return self.l.detach()
        with torch.no_grad():
            return self.criterion.losses_of(self, self.u if self._plain_inputs else self.plain)

    def loss_at(self, **changes: Tensor) -> Tensor:
        """(B,) base losses without class weights, with some of `da dv dx du dp dy` replaced."""
        unknown = changes.keys() - {*THROUGH, "du", "dp", "dy"}
        if unknown:
            raise InputError(f"loss_at takes da, dv, dx, du, dp and dy, not {', '.join(sorted(unknown))}.")
        inputs = {name: changes.get(name, getattr(self, name)) for name in THROUGH}
        u = self.forward(**inputs) if changes.keys() & {*THROUGH} else self.u
        du, dp, dy = (changes.get(name, getattr(self, name)) for name in ("du", "dp", "dy"))
        return self.criterion.losses_of(self, u, du=du, dp=dp, dy=dy)

    # --- compensation -----------------------------------------------------------------------------------------

    @property
    def like(self) -> Tensor:
        """The tensor that the term under evaluation is added to."""
        if self.slot == "dx":
            return self.e
        if self.slot == "dv":
            assert self.criterion.views is not None
            return self.e.new_zeros(self.places.batch, len(self.criterion.views.of))
        if self.slot == "da":
            return self.forward_pass.structure
        return self.y if self.slot == "dy" else self.l if self.slot == "dl" else self.u

    def charge(self, penalty: Tensor) -> None:
        """Adds a penalty (B,) to the losses."""
        self.penalty = penalty if self.penalty is None else self.penalty + penalty

    def later(self, write: Callable[[], None]) -> None:
        """For terms that keep state: `write` is called once the batch is accepted."""
        self.writes.append(write)

    @property
    def by_input(self) -> bool:
        """True while inputs with several rows each are compensated."""
        return self.places.several and self.slot in ("dx", "dv")

    @property
    def active(self) -> Tensor:
        """(B,) samples that are neither ignored nor excluded by a gate."""
        if self.gate is None:
            return self.valid
        return self.gate if self.complete else self.valid & self.gate

    @property
    def acting(self) -> Tensor:
        """The active rows of the compensation under evaluation: samples (B,), inputs with an active place, or all edges (E,)."""
        if self.slot == "da":
            return torch.ones_like(self.like, dtype=torch.bool)
        return self.places.of_sample(self.active).any(1) if self.by_input else self.active

    # --- the result -------------------------------------------------------------------------------------------

    @property
    def compensated(self) -> Tensor:
        """(B,) losses with compensation, without class weights and penalties."""
        losses = self.l if self.dl is None else self.l + self.dl
        return losses if self.withheld is None else losses.masked_fill(self.withheld, 0.0)

    @property
    def losses(self) -> Tensor:
        """(B,) the summands of the equation with class weights, before the mean."""
        losses = self.l if self.dl is None else self.l + self.dl
        losses = losses if self.penalty is None else losses + self.penalty
        losses = losses if self.weight is None else self.criterion.weighted(self, losses)
        return losses if self.withheld is None else losses.masked_fill(self.withheld, 0.0)

    @once
    def gradient(self) -> Tensor:
        """(B, C) the derivative of each compensated loss without class weights by its logits, a constant."""
        if self.compensated.requires_grad and self.u.requires_grad:
            (slope,) = torch.autograd.grad(self.compensated.sum(), self.u, retain_graph=True)
            return slope.detach()
        self.require_gradients()
        with torch.enable_grad():
            u = self.u.detach().requires_grad_()
            losses = self.criterion.losses_of(self, u, du=self.du, dp=self.dp, dy=self.dy)
            (slope,) = torch.autograd.grad(losses.sum(), u)
        return slope

    def require_gradients(self) -> None:
        """Raises under `torch.inference_mode()`, for terms that need gradients of their own."""
        if not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
            raise InputError(
                "this criterion looks for its compensation along gradients, and torch.inference_mode() records none. Write "
                "torch.no_grad() instead, or criterion.eval() for the plain loss."
            )


def log_softmax(u: Tensor) -> Tensor:
    """(B, C) log-softmax of logits. For few classes torch is several times faster on the CPU if it works on columns."""
    return u.t().log_softmax(0).t() if u.is_cpu and u.shape[-1] < MANY_CLASSES else u.log_softmax(-1)
