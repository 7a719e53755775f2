"""Properties that are computed once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, final, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from compensate.core.fast import Definition, cross_entropy, log_softmax, row_sizes, sloped
from compensate.core.layout import Places, rowwise
from compensate.core.rows import Touched, touched_rows
from compensate.core.stages import ModelStages, seeded, traceless
from compensate.core.validation import Looks, at_hand, check_batch, check_target, resolved
from compensate.core.weighting import total_weight, unweighted, weighed
from compensate.errors import InputError

if TYPE_CHECKING:
    from compensate.core.criterion import Compensated
    from compensate.core.tables import Table

T = TypeVar("T")


@final
class once(Generic[T]):
    """A property that is computed when it is first asked for, and kept; assigning to it replaces the value.

    It is `functools.cached_property` without the lock that the latter takes before Python 3.12, which a compiled graph
    cannot enter.

    >>> class Circle:
    ...     @once
    ...     def area(self) -> float:
    ...         print("computed")
    ...         return 3.14
    >>> circle = Circle()
    >>> circle.area + circle.area
    computed
    6.28
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.name, self.__doc__ = compute, compute.__name__, compute.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> once[T]: ...
    @overload
    def __get__(self, owner: object, kind: type) -> T: ...
    def __get__(self, owner: object | None, kind: type) -> once[T] | T:
        if owner is None:
            return self
        value = self.compute(owner)
        setattr(owner, self.name, value)  # found before this descriptor from now on, which has no __set__
        return value


Value = Any
"""A number, or a callable of the state: a schedule, a table, a statistic, a function."""

Slot = Literal["dx", "du", "dp", "dy", "dl", "dg", "dv", "da"]

THROUGH: tuple[Slot, ...] = ("da", "dv", "dx")
"""Compensation that enters before the logits, in order: of edges, by views, of features. Its gradient runs through the model."""


def at(value: Value, s: Batch) -> Any:
    """A hyper-parameter at this moment: itself if a number, else what it says for the state."""
    return value(s) if callable(value) else value


class Batch:
    r"""One batch under the paper's names.

    .. math:: L = \frac1B \sum_i l(S(f(x_i + \Delta x_i) + \Delta u_i) + \Delta p_i,\; y_i + \Delta y_i)
              + \Delta l_i + \mathrm{penalty}_i

    Terms read it and return their part. What a term may read:

    - given: `x`, `target` (B,) or (B, C), `index` (B,), `group` (B,), `epoch`, `step`, `progress` in [0, 1];
      where a sample has many places, or several labels, all that is said of samples here is said of them: B counts these rows, and
      `places` leads from one to the other; only `x`, `index`, `group`, `dx` and `dv` are as they were given;
    - `labels` (B,) the given class, `y` (B, C) the given label, `valid` (B,) false where ignored;
    - `u` (B, C) logits with feature compensation, `logp` and `p` their (log-)softmax, `logq` the former as a constant,
      `z` (B, D) features, `head`;
    - `plain` (B, C) logits without any compensation and `plain_losses` (B,), both constants;
    - `dx du dp dy dl dg dv da`, the compensation so far (None where there is none), `l` (B,) once it is known, and then
      `gradient` (B, C), its derivative by the logits;
    - `loss_at(du=...)`, the losses under other compensation, for inner loops.

    `learn` is true while rows may move and statistics may observe; `meta` is true in the inner pass of a meta step.

    >>> import torch
    >>> from compensate import Compensated
    >>> s = Compensated().evaluate(torch.nn.Identity(), torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    >>> s.u.tolist(), s.losses.shape, s.step
    ([[2.0, 0.0]], torch.Size([1]), tensor(1))
    """

    # What a batch starts with; a class keeps it in less time than each batch would.
    dx: Tensor | None = None
    du: Tensor | None = None
    find_dp: Callable[[], Tensor] | None = None  # where a term has found the losses without it
    dy: Tensor | None = None
    dl: Tensor | None = None
    dg: Tensor | None = None
    dv: Tensor | None = None
    da: Tensor | None = None
    known: Tensor | None = None  # (B,) the losses as constants, where their slope is known
    tilt: Tensor | None = None  # (B,) zeros whose gradient is what was added to that of the losses
    slope: Tensor | None = None
    definition: Definition | None = None  # what the slope is the derivative of, `dl` included, if a term has found it
    penalty: Tensor | None = None
    slot: Slot | None = None
    gate: Tensor | None = None
    masked: bool = False  # true if some logits are minus infinity
    repeats: bool | None = None  # whether a sample comes twice, if that is known
    _sized: tuple[Tensor, Tensor] | None = None
    _seed: int | None = None
    _z: Tensor | None = None
    _form: tuple[int, torch.dtype, torch.device] | None = None  # classes, type and device of the first logits

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
        check_target(target, binary=criterion.base == "bce")
        self.criterion = criterion
        self.places = Places(target, binary=criterion.base == "bce")
        self.target = self.places.targets(target) if self.places.several else target
        self.hard = self.target.ndim == 1
        """True if targets are class numbers, false if they are distributions or labels."""
        self.ordinary = self.hard and criterion.base is None and criterion.weight is None
        """True if the base loss is cross entropy of class numbers, without class weights."""
        self.index, self.group, self.model, self.x = index, group, model, x
        self.learn, self.meta = learn, meta
        self.check: Looks = resolved(criterion.check, target)
        self.touched: list[Touched] = []
        self.writes: list[Callable[[], None]] = []
        # The index, by the numbers of rows that it was found to address.
        self.checked: dict[tuple[int, bool], Tensor] = {}
        self._recording = torch.is_grad_enabled()
        if logits is not None:
            self.u = self._rows(logits)

    # --- what was given ---------------------------------------------------------------------------------------

    @once
    def shared(self) -> bool:
        """True if the index names samples that have many places: all of them read one row."""
        if not self.places.dense:
            return False
        return isinstance(self.index, Tensor) and self.index.shape == (self.places.batch,) and self.places.each > 0

    @property
    def visits(self) -> int:
        """Rows of a table that the batch visits: its samples; its places, if the index names them; the labels of each."""
        if not self.places.several:
            return self.places.batch
        named = self.places.batch * (math.prod(self.places.shape) if self.index is not None and not self.shared else 1)
        return named * self.places.labels

    @once
    def valid(self) -> Tensor:
        """(B,) false for samples whose target is `ignore_index`."""
        if self.hard or self.places.binary:
            return self.target.flatten() != self.criterion.ignore_index
        return torch.ones(len(self.target), dtype=torch.bool, device=self.target.device)

    @once
    def complete(self) -> bool:
        """True if it is known that no target is ignored."""
        sure = not self.hard and not self.places.binary
        return sure or (at_hand(self.target) and bool(self.valid.all()))

    @once
    def labels(self) -> Tensor:
        """(B,) the given class of each sample; 0 where it is ignored."""
        if self.places.binary:
            return (self.y[:, 0] >= 0.5).long()
        if not self.hard:
            return self.target.argmax(-1)
        return self.target if self.complete else self.target * self.valid

    @once
    def y(self) -> Tensor:
        """(B, C) the given labels as distributions; zero rows where ignored."""
        if self._form is None:  # no logits are known: inner loops ask for `y` before `dx`, and so `u`, is settled
            _ = self.u
        assert self._form is not None
        classes, kind, device = self._form
        if self.places.binary:
            given = self.target.dtype if self.target.is_floating_point() else kind
            return self.target.to(torch.promote_types(given, kind)).masked_fill(~self.valid[:, None], 0.0)
        if not self.hard:
            return self.target.to(torch.promote_types(self.target.dtype, kind))
        y = torch.zeros(len(self.labels), classes, dtype=kind, device=device)
        return y.scatter_(1, self.labels[:, None], 1.0 if self.complete else self.valid[:, None].to(kind))

    @property
    def epoch(self) -> Tensor:
        """The number of finished epochs, a scalar tensor."""
        return self.criterion.epoch

    @property
    def step(self) -> Tensor:
        """The number of training steps before this one, a scalar tensor."""
        return self.criterion.step

    @property
    def progress(self) -> Tensor:
        """How much of the training is done, from 0 to 1, a scalar tensor."""
        self.criterion.require_total()
        return (self.criterion.step / self.criterion.total).clamp(max=1.0)

    @once
    def dp(self) -> Tensor | None:
        """(B, C) the compensation of predictions so far."""
        return None if self.find_dp is None else self.find_dp()

    def everyone(self, values: Tensor) -> Tensor:
        """(n,) these numbers, and those of the samples that other processes have of this batch, where it is shared."""
        return values if self.criterion.peers is None else self.criterion.peers(values)

    # --- the forward pass -------------------------------------------------------------------------------------

    @once
    def stages(self) -> ModelStages:
        """The stages of the model."""
        if self.model is None:
            raise InputError(
                "This criterion needs the model, not only its logits: it changes the input or reads the features. "
                "Call criterion.evaluate(model, x, target, index).loss instead of criterion(logits, target, index)."
            )
        return ModelStages.of(self.model)

    @once
    def _embedded(self) -> Any:
        with torch.set_grad_enabled(self._recording):  # a gate, which looks without gradients, may ask first
            return self.stages.embed(self.x) if self.stages.embed else self.x

    @property
    def e(self) -> Tensor:
        """The input as feature compensation sees it: `embed(x)` where the model offers it, else `x`."""
        e = self._embedded
        if not (isinstance(e, Tensor) and e.is_floating_point()):
            kind = e.dtype if isinstance(e, Tensor) else type(e).__name__
            raise InputError(
                f"Feature compensation adds numbers to the input, but the input is {kind}. Give the model three "
                "methods, embed(x), features(e) and head(z), so that it can act on embed(x)."
            )
        return e

    def require_gradients(self) -> None:
        """For terms that follow a gradient of their own: raises where torch records none."""
        if not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
            raise InputError(
                "this criterion looks for its compensation along gradients, and torch.inference_mode() records none. Write "
                "torch.no_grad() in its place, or criterion.eval() for the plain loss."
            )

    def fix_randomness(self) -> None:
        """From here on, every forward of this batch sees the same dropout mask."""
        self._seed = int(torch.randint(2**62, ()).item())

    def forward(self, *, dx: Tensor | None = None, dv: Tensor | None = None, da: Tensor | None = None) -> Tensor:
        """Logits with features, views and edges compensated as given, without leaving traces in the model."""
        with traceless(self.model):
            return self._forward(dx, dv, da)[0]

    def _forward(self, dx: Tensor | None, dv: Tensor | None, da: Tensor | None) -> tuple[Tensor, Tensor | None]:
        stages = self.stages
        if dv is not None:
            mixed = (self.views * dv.reshape(dv.shape + (1,) * (self.e.ndim - 1))).sum(1)
            dx = mixed if dx is None else dx + mixed
        with seeded(self._seed, self.target.device):
            if da is not None:
                u, z = stages.whole(self.x, da), None  # type: ignore[call-arg]
            elif stages.features is None or stages.head is None:
                u, z = stages.whole(self.x if dx is None else self.e + dx), None
            else:
                z = stages.features(self._embedded if dx is None else self.e + dx)
                if self.places.dense and z.shape[2:] == self.places.shape:
                    z = self.places.rows(z, "features")
                    u = stages.head(self.places.back(z))  # by way of the rows, so that terms find their gradient
                else:
                    u = stages.head(z)
        return self._rows(u), z

    def _rows(self, u: Tensor) -> Tensor:
        """Logits as the model gives them, as rows; the first ones are looked at, and the batch with them."""
        u = self.places.rows(u) if self.places.several else u
        if self._form is None:
            check_batch(self, u)
            self._form = (u.shape[-1], u.dtype, u.device)
        return u

    @once
    def u(self) -> Tensor:
        """(B, C) logits, feature compensation included."""
        u, self._z = self._forward(self.dx, self.dv, self.da)
        return u

    @once
    def views(self) -> Tensor:
        """(B, K, ...) what leads from each input to each of its K views."""
        views = self.criterion.views
        assert views is not None
        views.check(self.places)
        return torch.stack([self._unpadded(view(self.e) - self.e) for view in views.of], 1)

    @property
    def plain_inputs(self) -> bool:
        """True if nothing is compensated before the logits."""
        return self.slot not in THROUGH and self.dx is None and self.dv is None and self.da is None

    @property
    def z(self) -> Tensor:
        """(B, D) the features that the classifier sees."""
        _ = self.stages, self.u
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
        return self.stages.head

    @once
    def logp(self) -> Tensor:
        """(B, C) log-softmax of `u`."""
        with torch.set_grad_enabled(self.u.requires_grad):  # a statistic, which asks without gradients, may ask first
            return self._log_probabilities(self.u)

    def _log_probabilities(self, u: Tensor) -> Tensor:
        return F.logsigmoid(u) if self.places.binary else log_softmax(u)

    @once
    def p(self) -> Tensor:
        """(B, C) softmax of `u`."""
        with torch.set_grad_enabled(self.u.requires_grad):
            return self.logp.exp()

    @once
    def logq(self) -> Tensor:
        """(B, C) log-softmax of `u`, a constant: what guesses and gates read."""
        made = not torch.compiler.is_compiling() and "logp" in self.__dict__
        return self.logp.detach() if made else self._log_probabilities(self.u.detach())

    @once
    def seen_by_loss(self) -> bool:
        """True if the loss tells whether logits are finite, so that one look serves both: in cross entropy of all samples it does."""
        whole = self.ordinary and (self.complete or self.check != "sync")
        return whole and self.criterion.only_logits

    @once
    def plain(self) -> Tensor:
        """(B, C) logits without compensation, a constant; one extra forward if features are compensated."""
        if self.plain_inputs:
            return self.u.detach()
        with torch.no_grad():
            return self.forward()

    @once
    def plain_losses(self) -> Tensor:
        """(B,) losses without compensation and without class weights, constants."""
        if self.ordinary and self.plain_inputs:
            if torch.compiler.is_compiling():
                u = self.u.detach()
                losses = u.logsumexp(-1) - u.gather(1, self.labels[:, None])[:, 0]
            elif self.criterion.only_tables:
                losses = cross_entropy(self.u, self.labels)
            else:  # most others look at the probabilities, too
                losses = F.nll_loss(self.logq, self.labels, reduction="none")
            return losses if self.complete else torch.where(self.valid, losses, 0.0)
        with torch.no_grad():
            return self.criterion.losses_of(self, self.plain)

    def loss_at(self, **changes: Tensor) -> Tensor:
        """(B,) base losses without class weights, with some of `da dv dx du dp dy` replaced, the others as they are so far."""
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
        """The tensor that the term under evaluation is added to: its shape is the shape of the compensation."""
        match self.slot:
            case "dx":
                return self.e
            case "dv":
                assert self.criterion.views is not None
                return self.e.new_zeros(self.places.batch, len(self.criterion.views.of))
            case "da":
                if self.stages.structure is None:
                    raise InputError(
                        "Structure compensation changes the edges of a graph, and this model has none. Use a graph network with "
                        "the attribute structure, (E,) the weights of its edges, such as compensate.models.GCN."
                    )
                return self.stages.structure
            case "du" | "dp" | "dg":
                return self.u
            case "dy":
                return self.y
            case _:
                return self.l

    def fitted(self, delta: Tensor) -> Tensor:
        """`delta` shaped like the target under evaluation, and zero on the padding of texts."""
        delta = rowwise(delta, self.like)
        return self._unpadded(delta) if self.slot == "dx" else delta

    def _unpadded(self, delta: Tensor) -> Tensor:
        if self.stages.padding is None:
            return delta
        padding = self.stages.padding(self.x)
        return delta.masked_fill(padding.reshape(padding.shape + (1,) * (delta.ndim - padding.ndim)), 0.0)

    def add(self, delta: Tensor) -> None:
        """Adds a term to the target under evaluation."""
        assert self.slot is not None
        like = self.u if self.slot == "du" else self.like
        if self.slot == "dx" or delta.shape != like.shape:
            delta = self.fitted(delta)
            if self.slot != "dx" and delta.ndim and delta.shape[-1] != 1 and delta.shape[-1] != self.like.shape[-1]:
                raise InputError(
                    f"a term of shape {tuple(delta.shape)} was given for a target of shape {tuple(self.like.shape)}. Give the table "
                    "or the term as many classes as the model has outputs."
                )
        so_far = getattr(self, self.slot)
        setattr(self, self.slot, delta if so_far is None else so_far + delta)

    @property
    def active(self) -> Tensor:
        """(B,) samples that are neither ignored nor gated out."""
        return self.valid if self.gate is None else self.valid & self.gate

    @property
    def acting(self) -> Tensor:
        """What counts of the compensation under evaluation: the active samples (B,); inputs with a place that is; of edges (E,), all."""
        if self.slot == "da":
            return torch.ones_like(self.like, dtype=torch.bool)
        return self.places.of_sample(self.active).any(1) if self.by_input else self.active

    @property
    def by_input(self) -> bool:
        """True while inputs are compensated of which each has several rows: one compensation serves them all."""
        return self.places.several and self.slot in ("dx", "dv")

    @once
    def gradient(self) -> Tensor:
        """(B, C) the derivative of each loss without class weights by its logits, compensation included, a constant."""
        if self.compensated.requires_grad and self.u.requires_grad:
            (slope,) = torch.autograd.grad(self.compensated.sum(), self.u, retain_graph=True)
            return slope.detach()
        self.require_gradients()
        with torch.enable_grad():
            u = self.u.detach().requires_grad_()
            losses = self.criterion.losses_of(self, u, du=self.du, dp=self.dp, dy=self.dy)
            (slope,) = torch.autograd.grad(losses.sum(), u)
        return slope

    def lean(self, x: Tensor, delta: Tensor) -> None:
        """For terms on gradients: adds `delta` to the derivative of each loss at `x` (B, ...); values stay as they are."""
        x = torch.where(x.isfinite(), x, 0.0) if self.masked else x  # a masked logit has no gradient to add to
        zeros = (delta * (x - x.detach())).flatten(1).sum(1)
        zeros = zeros if self.complete else torch.where(self.valid, zeros, 0.0)
        self.tilt = zeros if self.tilt is None else self.tilt + zeros

    def lean_parameters(self, parameters: Sequence[Tensor], deltas: Sequence[Tensor]) -> None:
        """The same for the derivative of the reduced loss by the parameters of the model."""
        zero = torch.stack([(d * (p - p.detach())).sum() for p, d in zip(parameters, deltas, strict=True)]).sum()
        # Samples have equal parts in it, and their weights sum up to what the reduction divides by.
        zeros = zero * self.valid * (self.criterion.divided_by(self) / total_weight(self)).to(zero.dtype)
        self.tilt = zeros if self.tilt is None else self.tilt + zeros

    @once
    def by_slope(self) -> bool:
        """True if the rows of this batch move by the slope of its cross entropy, without autograd."""
        return self.learn and self.ordinary and self.criterion.fast and self.criterion.only_tables

    @once
    def size(self) -> Tensor:
        r"""(B,) how much logits are compensated, :math:`\|\Delta u_i\|_1`, constants."""
        if self.du is None:
            return self.u.new_zeros(len(self.u))
        du = self.du.detach() if self.du.requires_grad else self.du
        return self.sizes(du if du.shape == self.u.shape else du.expand_as(self.u))

    @property
    def size_known(self) -> bool:
        """False if :attr:`size` is still to be found, from compensation that is a constant for each logit."""
        du, sized = self.du, self._sized
        return du is None or (sized is not None and sized[0] is du) or du.requires_grad or du.shape != self.u.shape

    def sizes(self, v: Tensor) -> Tensor:
        r"""(R,) the size :math:`\|v_i\|_1` of each row (R, \*shape); of rows that both a penalty and a record ask for, once."""
        if torch.compiler.is_compiling():
            return row_sizes(v)
        if self._sized is None or self._sized[0] is not v:
            self._sized = v, row_sizes(v)
        return self._sized[1]

    def rows(self, table: Table) -> Tensor:
        """The rows of `table` for this batch, (B, *shape); their penalty and their step follow by themselves."""
        keys = table.key(self)
        if table.update == "manual":
            v = table.gather(keys)
            self._penalize(table, v)
            return v
        moves = table.update == "meta" if self.meta else (self.learn and table.update in ("prox", "subgradient"))
        if moves:
            touched = self._touched(table, keys)
            v = touched.rows if touched.which is None else touched.rows[touched.which]
            if self.learn and self.slot in ("dx", "dv") and self.criterion.weight is not None and v.requires_grad:
                v.register_hook(partial(unweighted, self))
            if touched.by_sample:
                self._penalize(table, v.detach(), spread=True)
                return self.places.spread(v)
        else:
            v = table.gather(keys).detach()
        self._penalize(table, v.detach() if v.requires_grad else v)
        return v

    def _touched(self, table: Table, keys: Tensor) -> Touched:
        assert self.slot is not None
        if self.slot in THROUGH and self.learn and self.criterion.reduction == "none":
            raise InputError('A learned table on features, views or edges needs reduction="mean" or "sum", not "none".')
        self.touched.append(touched_rows(self, table, keys, self.slot))
        return self.touched[-1]

    def _penalize(self, table: Table, v: Tensor, *, spread: bool = False) -> None:
        penalized = table.penalty
        if penalized is not None:
            penalty = penalized(v, self)
            self.charge(table.charged(self.places.spread(penalty) if spread else penalty, self))

    def charge(self, penalty: Tensor) -> None:
        """Adds a penalty (B,) to the losses."""
        self.penalty = penalty if self.penalty is None else self.penalty + penalty

    def later(self, write: Callable[[], None]) -> None:
        """For terms that keep something: `write` is called once the batch is known to be accepted."""
        self.writes.append(write)

    # --- the result -------------------------------------------------------------------------------------------

    @once
    def l(self) -> Tensor:  # noqa: E743  the letter of the paper
        """(B,) the losses without those of `dl`, class weights and penalties left out; set by the criterion, unless their slope is known."""
        if self.known is None or self.slope is None:
            raise AttributeError("l is asked for before it is known.")
        if self.definition is not None and self.dl is not None:
            return self.criterion.losses_of(self, self.u, du=self.du, dp=self.dp, dy=self.dy)
        return self._tied(self.known)

    def _tied(self, losses: Tensor, divisor: Tensor | int | None = None) -> Tensor:
        assert self.slope is not None
        return sloped(self.u, losses, self.slope, self.target, divisor, self.definition)

    @property
    def compensated(self) -> Tensor:
        """(B,) losses with compensation, class weights and penalties left out."""
        if self.dl is None:
            return self.l
        return self.l + self.dl if self.definition is None or self.known is None else self._tied(self.known + self.dl)

    @property
    def summands(self) -> Tensor:
        """(B,) the summands of the equation, without class weights."""
        losses = self.compensated if self.penalty is None else self.compensated + self.penalty
        return losses if self.tilt is None else losses + self.tilt

    @property
    def losses(self) -> Tensor:
        """(B,) the summands of the equation with class weights, before the mean."""
        return weighed(self, self.summands)

    @once
    def loss(self) -> Tensor:
        """What to differentiate: `losses` reduced as the criterion says."""
        if torch.is_grad_enabled() != self._recording:
            with torch.set_grad_enabled(self._recording):
                return self._reduced()
        return self._reduced()

    def _reduced(self) -> Tensor:
        if not self._constant:
            return self.criterion.reduce(self, self.losses)
        assert self.known is not None
        known = self.known if self.dl is None else self.known + self.dl
        return self._tied(known if self.penalty is None else known + self.penalty, self.criterion.divided_by(self))

    @property
    def _constant(self) -> bool:
        """True if the slope that is known is all that there is to differentiate."""
        known = self.known is not None and (self.dl is None or self.definition is not None) and self.tilt is None
        return known and self.criterion.reduction != "none" and not getattr(self.penalty, "requires_grad", False)

    @once
    def finite(self) -> bool:
        """True if the losses are known to be finite, and with them their slopes. (A criterion that is not to look may ask the processor.)"""
        if self.check != "sync" and not at_hand(self.target):
            return self.check != "off" and self.seen_by_loss and not torch.compiler.is_compiling()
        return math.isfinite((self.loss if self.loss.ndim == 0 else self.losses.sum()).item())
