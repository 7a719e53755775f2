"""The criterion: terms of the equation, the loss they give, and the steps that follow."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate.core.batch import THROUGH, Batch, Slot
from compensate.core.fast import cross_entropy_with_slope
from compensate.core.layout import rowwise, warn_of_copies
from compensate.core.proximal import ONTO, SMALLEST
from compensate.core.stages import full_precision
from compensate.core.statistics import Evidence, Statistic, find_statistics, statistics_among
from compensate.core.tables import Sample, Table, TouchedRows
from compensate.core.taxonomy import Taxonomy, taxonomy_of
from compensate.core.validation import Check, Reduction, check_losses, check_state, checked_reduction, checked_weights
from compensate.errors import InputError
from compensate.markup import element, escape

if TYPE_CHECKING:
    from compensate.terms.views import Views


def equation_text(reduction: str, terms: Mapping[str, Iterable[Any]], *, penalized: bool) -> str:
    """The equation with the compensation of a criterion, and a line for each.

    Args:
        reduction: "mean", "sum" or "none".
        terms: the terms of each compensation, by its letters in the paper.
        penalized: whether tables have a penalty.

    >>> print(equation_text("mean", {"du": [abs]}, penalized=True))
    mean_i [ l( S(f(x_i) + du_i), y_i ) + penalty_i ]
      du = abs
    """
    x = "x_i" + " + V_i dv_i" * ("dv" in terms) + " + dx_i" * ("dx" in terms) + "; A + da" * ("da" in terms)
    p = (f"S(f({x}) + du_i)" if "du" in terms else f"S(f({x}))") + " + dp_i" * ("dp" in terms)
    y = "y_i" + " + dy_i" * ("dy" in terms)
    tail = " + dl_i" * ("dl" in terms) + " + penalty_i" * penalized
    tail += " + <dg_i, u_i - [u_i]>" * ("dg" in terms)  # in brackets, a constant
    summand = f"l( {p}, {y} ){tail}"
    lines = [summand if reduction == "none" else f"{reduction}_i [ {summand} ]"]
    lines += [f"  {letters} = {' + '.join(map(term_text, some))}" for letters, some in terms.items()]
    return "\n".join(lines)


def term_text(term: Any) -> str:
    """A term on one line."""
    text = repr(term) if isinstance(term, nn.Module) else getattr(term, "__name__", repr(term))
    return " ".join(text.split())


def in_bytes(count: int) -> str:
    """A readable size.

    >>> in_bytes(512), in_bytes(71_880), in_bytes(5_124_000_000)
    ('512 bytes', '72 kB', '5.1 GB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2g} {unit}" if count < 10 * size else f"{count / size:.0f} {unit}"
    return f"{count} bytes"


def add_gradient(s: Batch, x: Tensor, delta: Tensor) -> None:
    """Adds `delta` to the derivative of each loss by `x` (B, ...), without changing the loss."""
    x = torch.where(x.isfinite(), x, 0.0)  # a logit of minus infinity has no gradient
    zeros = (delta * (x - x.detach())).flatten(1).sum(1)
    s.charge(zeros if s.complete else torch.where(s.valid, zeros, 0.0))


def add_parameter_gradients(s: Batch, parameters: Sequence[Tensor], deltas: Sequence[Tensor]) -> None:
    """Adds `deltas` to the derivative of the reduced loss by the parameters of the model, without changing the loss."""
    zero = torch.stack([(d * (p - p.detach())).sum() for p, d in zip(parameters, deltas, strict=True)]).sum()
    # All samples have equal shares, and their weights sum to the divisor of the reduction.
    divisor = s.criterion.divisor(s) if s.criterion.reduction == "mean" else 1
    s.charge(zero * s.valid * (divisor / s.criterion.total_weight(s)).to(zero.dtype))


Term = Callable[[Batch], Tensor]
Terms = Term | tuple[Term, ...] | None

Base = Callable[[Tensor, Tensor], Tensor] | Literal["bce"]

BinaryBase = Literal["bce"] | None
"""The base loss of methods that also take several labels a sample."""

SOFTMAX_ONLY = tuple(f"compensate.{name}" for name in ("methods.", "terms.guesses", "terms.margins", "terms.classes"))
"""Modules whose terms read one distribution over the classes, unless they have the attribute `binary = True`."""

Weights = Tensor | Sequence[float]
"""(C,) a weight for each class."""

PATIENCE = 100
"""Training steps without a meta step after which a criterion warns."""

SLOTS: dict[str, Slot] = {
    "feature": "dx", "logit": "du", "label": "dy", "prediction": "dp", "loss": "dl", "gradient": "dg", "view": "dv",
    "structure": "da",
}  # fmt: skip
"""The keyword of each target, and the letter its compensation has in the paper."""

BEFORE = ("structure", "view", "feature")
"""The targets that lie before the logits, in the order in which they are inferred."""


class Sum(nn.Module):
    """The terms of one target. Modules among them become children: `.to()` and `state_dict` cover them."""

    def __init__(self, terms: Terms) -> None:
        super().__init__()
        many: Iterable[Any] = terms if isinstance(terms, tuple | list) else (terms,)
        for number, term in enumerate(many):
            if not callable(term):
                raise InputError(
                    f"A term is {term!r}; expected a callable of the batch, such as a table, a function or a module."
                )
            setattr(self, str(number), term)
        self.size = number + 1

    @property
    def terms(self) -> tuple[Term, ...]:
        """In order."""
        return tuple(getattr(self, str(number)) for number in range(self.size))


class Compensated(nn.Module):
    r"""A loss with compensation, for all of the paper's taxonomy.

    .. math:: L = \frac1B \sum_i l(S(f(x_i + \Delta x_i) + \Delta u_i) + \Delta p_i,\; y_i + \Delta y_i)
              + \Delta l_i + \mathrm{penalty}_i

    Args:
        feature: term or terms for :math:`\Delta x`, shaped like the input (or the model's `embed(x)`).
        logit: term or terms for :math:`\Delta u`, (B, C).
        label: term or terms for :math:`\Delta y`, (B, C).
        prediction: term or terms for :math:`\Delta p`, (B, C), the other side of label compensation (Eq. 5-ii).
        loss: term or terms for :math:`\Delta l`, (B,); they must depend on `s.l`, a constant has no gradient.
        gradient: term or terms that are added to :math:`\partial l_i / \partial u_i`, (B, C); the loss keeps its value.
        view: term or terms for the weights :math:`w` of `views`, (B, K); see there.
        structure: term or terms that are added to the weights of a graph network's edges, (E,).
        views: the :class:`~compensate.terms.Views` of an input.
        base: the loss :math:`l`, a function of logits (B, C) and targets (class numbers (B,), or distributions (B, C))
            that returns (B,); cross entropy if not given. "bce" is binary cross entropy: each class is a label of its own, targets
            are (B, C) in {0, 1} (or between), and a row of the equation, of tables and of records is one label of one sample, in the
            order of `target.flatten()`.
        reduction, weight, ignore_index: as in :func:`torch.nn.functional.cross_entropy`, except that the mean of a batch without valid samples
            is 0, not NaN. `weight` may also be set later, `criterion.weight = ...`. It multiplies the summand of each sample,
            compensation and penalty included; terms, gates, tables and records read losses and slopes without it.
        onto: how :math:`y + \Delta y` and :math:`p + \Delta p` become distributions (Eq. 6): by the nearest point
            of the simplex, by division by the sum, or not at all. Terms that stay on the simplex need none of it.
        record: a record of each sample for :meth:`suspects`.
        check: "sync" checks index, labels and NaN at once, "async" without waiting for the device, "off" never; "auto" is "sync" on
            the CPU and "async" on other devices and in compiled graphs.

    A term is any callable of the :class:`~compensate.terms.Batch`. Several terms under one keyword are added in order.

    >>> criterion = Compensated()                                             # no term: cross entropy
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.3584)
    >>> v = torch.tensor([[-1.0, 2.0, 0.0]])
    >>> Compensated(logit=lambda s: v)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(0.4211)

    In evaluation mode no term is used, and the result is the plain loss.

    Reference: Yao and Wu, Compensation Learning, 2021, Eqs. (3)-(8).
    """

    epoch: Tensor
    step: Tensor
    total: Tensor
    weight: Tensor | None
    _told_to_compile: ClassVar[bool] = False
    """True after the first `compile` in this process, which imports the compiler of torch and takes seconds."""

    def __init__(
        self,
        *,
        feature: Terms = None,
        logit: Terms = None,
        label: Terms = None,
        prediction: Terms = None,
        loss: Terms = None,
        gradient: Terms = None,
        view: Terms = None,
        structure: Terms = None,
        views: Views | None = None,
        base: Base | None = None,
        reduction: Reduction = "mean",
        weight: Weights | None = None,
        ignore_index: int = -100,
        onto: Literal["project", "normalize", "none"] = "project",
        check: Check = "auto",
        record: Evidence | None = None,
    ) -> None:
        super().__init__()
        given = {
            "feature": feature, "logit": logit, "label": label, "prediction": prediction, "loss": loss, "gradient": gradient,
            "view": view, "structure": structure,
        }  # fmt: skip
        self.terms = nn.ModuleDict({name: Sum(terms) for name, terms in given.items() if terms})
        self._in_order = {name: cast(Sum, found).terms for name, found in self.terms.items()}
        self.before_logits = tuple(name for name in BEFORE if name in self._in_order)
        """The targets of this criterion that lie before the logits, in the order in which they are inferred."""
        self._logits_and_labels = tuple(name for name in ("logit", "label", "prediction") if name in self._in_order)
        self._losses_and_gradients = tuple(name for name in ("loss", "gradient") if name in self._in_order)
        behind = [*self._in_order.get("loss", ()), *self._in_order.get("gradient", ())]
        self.rewrites = not all(getattr(term, "adds", False) for term in behind)
        """True if a term replaces losses or gradients instead of adding to them."""
        tables = [
            term for term in self._in_order.get("logit", ()) if isinstance(term, Table) and term.update != "manual"
        ]
        self.only_tables = (
            base is None and [*self._in_order] == ["logit"] and len(tables) == len(self._in_order["logit"])
        )
        """True if all terms are tables on logits that no optimizer moves: rows then move by the slope of the losses."""
        if onto not in ONTO:
            raise InputError(f'onto is "{onto}"; expected {", ".join(ONTO)}.')
        self.fast = True
        """Whether one softmax may give the losses and their slope; false computes everything by definition."""
        if isinstance(base, str) and base != "bce":
            raise InputError(
                f'base is "{base}"; expected "bce", a function of logits and targets, or none for cross entropy.'
            )
        if base == "bce" and prediction:
            raise InputError(
                'base="bce" has no prediction=: with two outcomes it is the same as label compensation with the other sign. Write label=.'
            )
        self.base, self.ignore_index, self.onto = base, ignore_index, onto
        self.binary = base == "bce"
        """True if each class is a label of its own."""
        self.reduction: Reduction = checked_reduction(reduction)
        self.check: Check = check
        self.record, self.views = record, views
        if "view" in self.terms and views is None:
            raise InputError("view= needs views=..., the transformations whose weights it sets: views=Views(shifted).")
        self.register_buffer("weight", checked_weights(weight))
        for name in ("epoch", "step", "total"):
            self.register_buffer(name, torch.zeros((), dtype=torch.long))
        self._seen = self._unlearned = 0
        self._started = False
        self._walked: list[tuple[dict[str, nn.Module | None], tuple[nn.Module | None, ...]]] = []
        self._found: list[Statistic] = []
        self.peers: Callable[[Tensor], Tensor] | None = None
        """Appends the values of other processes, if each evaluates a slice of a batch."""
        for table in self.tables():
            table.validate()
        for module in self.modules() if self.binary else ():
            if not getattr(module, "binary", not type(module).__module__.startswith(SOFTMAX_ONLY)):
                raise InputError(
                    f'{type(module).__name__} reads one distribution over the classes, and under base="bce" each class is a label of '
                    "its own. Leave it out, or write a term that reads s.u, s.p and s.y, (labels of all samples, 1)."
                )
        self.keeps_rows = any(isinstance(table, Sample) for table in self.tables())
        """True if it has a table with a row for each sample."""
        self._awaits_meta = any(table.update == "meta" for table in self.tables())
        if any(isinstance(term, Table) for term in self.terms_of("loss")):
            raise InputError(
                "loss=Table(...) adds a constant to the loss, and a constant has no gradient: nothing would be learned. "
                "Let it enter nonlinearly, for example loss=Slack(Sample(n, ...)), which is max(0, l - xi)."
            )

    # --- calls ------------------------------------------------------------------------------------------------

    def forward(
        self, logits: Tensor, target: Tensor, index: Tensor | None = None, *, group: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch of logits: the drop-in form, for criteria that do not run the model.

        Args:
            logits: (B, C), the output of the model; or (B, C, d1, ...), with a prediction for each place.
            target: class numbers (B,) or (B, d1, ...), or distributions shaped like the logits; under `base="bce"`, labels shaped
                like the logits.
            index: (B,) row of each sample in the training set, for criteria that keep something per sample. All places of a sample
                then share its row, which moves by the mean over them; (B, d1, ...) gives each place a row of its own.
            group: (B,) or (B, d1, ...) group of each sample or place, for criteria that keep something per group.
        """
        if self.before_logits and self.training:
            raise InputError(
                f"{self.before_logits[0].capitalize()} compensation changes the input, so it needs the model and not only its logits. "
                "Write criterion.evaluate(model, x, target, index).loss instead of criterion(model(x), target, index)."
            )
        learn = self.training and torch.is_grad_enabled()
        return self.infer(Batch(self, target, index, group, logits=logits, learn=learn)).loss

    def evaluate(
        self,
        model: Callable[[Any], Tensor],
        x: Any,
        target: Tensor,
        index: Tensor | None = None,
        *,
        group: Tensor | None = None,
        meta: bool = False,
    ) -> Batch:
        """The whole step, for every criterion: runs the model and returns the batch; `batch.loss.backward()` follows.

        Args:
            model: maps `x` to logits (B, C); may have the methods `embed`, `features` and `head`.
            x: the input batch.
            target, index, group: as in the drop-in form.
            meta: true in the inner pass of a meta step, where nothing is stored or observed.
        """
        learn = self.training and torch.is_grad_enabled() and not meta
        return self.infer(Batch(self, target, index, group, model=model, x=x, learn=learn, meta=meta))

    def infer(self, s: Batch) -> Batch:
        """Evaluates the equation for a batch: its terms and losses, and in training the steps of rows and statistics."""
        watching = self._statistics() if s.learn else []
        self._awaits_meta = self._awaits_meta and not s.meta
        if self.before_logits and self.training:
            s.forward_pass.seed = int(torch.randint(2**62, ()).item())  # one dropout mask for all passes
            for name in self.before_logits:
                self._add_terms(s, name)
        _ = s.u  # the forward pass, here and not in a term that reads it under no_grad
        early = []
        for statistic in watching:
            statistic.check(s)
            if statistic.observes == "logits":
                early.append(statistic)
        undo = []
        try:
            for statistic in early:
                if not torch.compiler.is_compiling():
                    undo.append(statistic.undo(s))
                with torch.no_grad():
                    statistic.observe(s)
            self._find_losses(s)
        except BaseException:
            for restore in undo:
                restore()
            raise
        if s.learn:
            # No error is raised from here on: a batch changes all state or none.
            with torch.no_grad():
                for write in s.writes:
                    write()
                self._step_rows(s)
                for statistic in watching:
                    if statistic.observes == "loss":
                        statistic.observe(s)
                self._count_step(s, watching)
        return s

    def _find_losses(self, s: Batch) -> None:
        if self.training:
            for name in self._logits_and_labels:
                self._add_terms(s, name)
        constant = s.du is not None and not s.du.requires_grad and s.dp is None and s.dy is None
        if constant and self.fast and s.learn and s.hard and self.base is None:
            assert s.du is not None
            s.l, s.slope = cross_entropy_with_slope(s.u, s.du, s.labels, None if s.complete else s.valid)
        else:
            s.l = self.losses_of(s, s.u, du=s.du, dp=s.dp, dy=s.dy)
        if self.training:
            for target in self._losses_and_gradients:
                self._add_terms(s, target)
            if s.dg is not None:
                add_gradient(s, s.u, s.dg)
        s.loss = self.reduce(s, s.losses)
        check_losses(s)

    def _add_terms(self, s: Batch, name: str) -> None:
        s.slot = SLOTS[name]
        for term in self._in_order[name]:
            s.add(term(s))
        s.slot = None

    @property
    def reads_inputs(self) -> bool:
        """True if it reads the inputs of the model."""
        return bool(self.before_logits) or self.views is not None

    def __add__(self, other: Compensated) -> Compensated:
        """Both at once: the terms of each target are added up. Tables are shared with the two, not copied.

        >>> from compensate import methods
        >>> both = methods.logit_adjustment(class_counts=[90, 10]) + methods.logcomp(num_samples=100, num_classes=2)
        >>> print(both.taxonomy)
        logit · mixed · prior+regularized · corpus+sample
        """
        if not isinstance(other, Compensated):
            return NotImplemented
        shared = ("base", "weight", "reduction", "ignore_index", "onto", "check")
        for name in shared:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is not theirs and (isinstance(mine, Tensor) or isinstance(theirs, Tensor) or mine != theirs):
                raise InputError(f"two criteria cannot be added that differ in {name}: {mine} and {theirs}.")
        if self.views is not None and other.views is not None and self.views is not other.views:
            raise InputError("two criteria cannot be added that have different views; give both the same Views object.")
        terms: dict[str, Any] = {name: self.terms_of(name) + other.terms_of(name) for name in SLOTS}
        terms["views"] = self.views if self.views is not None else other.views
        options = {name: getattr(self, name) for name in shared}
        return Compensated(**terms, **options, record=self.record if self.record is not None else other.record)

    def terms_of(self, name: str) -> tuple[Term, ...]:
        """The terms of a target, by its keyword."""
        return self._in_order.get(name, ())

    # --- the equation -----------------------------------------------------------------------------------------

    def losses_of(
        self,
        s: Batch,
        u: Tensor,
        *,
        du: Tensor | None = None,
        dp: Tensor | None = None,
        dy: Tensor | None = None,
        weighted: bool = False,
    ) -> Tensor:
        r"""(B,) base losses :math:`l(S(u + \Delta u) + \Delta p,\; y + \Delta y)`; 0 for ignored samples.

        Class weights multiply them if `weighted` is true. Terms, gates, tables and records read losses without weights.
        """
        given = s.slot not in THROUGH and u is s.u and du is None  # `s.u` is not known before its compensation
        u = u if du is None else u + du
        q: Tensor | None = None
        if dp is not None:
            q = (s.p if given and u.dtype.itemsize > 2 else full_precision(u).softmax(-1)) + dp
            stays = self._stays_on_simplex("prediction")
            q = q if stays else ONTO[self.onto](q)
            if not stays and self.onto == "none":
                q = q.clamp(min=SMALLEST)
                q = q / q.sum(-1, keepdim=True)
        if dy is not None:
            y = s.y + dy
            if not self._stays_on_simplex("label"):
                # Labels are corners of the simplex, where a projection has no slope. A table or an inner loop on labels
                # uses the slope of the plane of the simplex, as a projected gradient method does.
                y = y if self.binary else y - (dy.mean(-1, keepdim=True) - dy.mean(-1, keepdim=True).detach())
                y = y + ((y.clamp(0, 1) if self.binary else ONTO[self.onto](y)) - y).detach()
        else:
            y = s.labels if s.hard else s.y
        weight = None if self.weight is None or not weighted else self.weight.to(u.dtype)
        by_class = weight is not None and self._weighs_classes(s, dy)
        picks = self.base is None and y.ndim == 1  # cross entropy of class numbers depends on one entry
        if q is not None and not picks:
            # The logarithm of a distribution is a logit vector of it, so one base loss serves both sides of Eq. 5.
            u = q.clamp(min=SMALLEST).log()
        if self.base == "bce":
            losses = F.binary_cross_entropy_with_logits(u, y.to(u.dtype), reduction="none")[:, 0]
        elif callable(self.base):
            losses = self.base(u, y)
        elif picks and q is not None:
            losses = -q.gather(1, y[:, None]).clamp(min=SMALLEST).log()[:, 0]
        elif picks and given:
            losses = F.nll_loss(s.logp, y, reduction="none")
        else:
            losses = F.cross_entropy(u, y, weight=weight if by_class else None, reduction="none")
        losses = losses if weight is None or by_class else losses * self.sample_weights(s).to(losses.dtype)
        return losses if s.complete else torch.where(s.valid, losses, 0.0)

    def _stays_on_simplex(self, name: str) -> bool:
        """True for a single term that stays on the simplex; a sum of several may leave it."""
        terms = self.terms_of(name)
        return len(terms) == 1 and getattr(terms[0], "on_simplex", False)

    def reduce(self, s: Batch, losses: Tensor) -> Tensor:
        """Losses (B,), class weights included, reduced as by torch's cross entropy."""
        if self.reduction == "none":
            return s.places.back(losses)
        divisor = self.divisor(s) if self.reduction == "mean" else 1
        return losses.mean() if isinstance(divisor, int) and divisor == len(losses) else losses.sum() / divisor

    def divisor(self, s: Batch, *, weighted: bool = True) -> Tensor | int:
        """The divisor of a mean of losses: the number of valid samples or the sum of their class weights, or 1 if that is 0.

        As in torch's cross entropy, a mean over distributions divides by the size of the batch.
        """
        if (not s.hard and not self.binary) or (s.complete and self.weight is None):
            return max(1, len(s.target))
        if self.weight is None or self.binary or not weighted:
            return s.valid.sum().clamp(min=1)
        return self.total_weight(s)

    # --- class weights: they multiply the summands of the equation; no term reads them -------------------------

    def sample_weights(self, s: Batch) -> Tensor:
        """(B,) the class weight of each sample, a mean over the classes of a soft label; a scalar 1 if there are no weights."""
        if self.weight is None:
            return torch.ones((), device=s.target.device)
        if s.places.binary:
            return self.weight[s.places.classes(s.target)]
        return self.weight[s.labels] if s.hard else s.y @ self.weight.to(s.y.dtype)

    def total_weight(self, s: Batch) -> Tensor:
        """The sum of the class weights of the valid samples, a scalar tensor; 1 if that is 0."""
        total = (self.sample_weights(s) * s.valid).sum()
        return torch.where(total == 0, torch.ones_like(total), total)

    def _weighs_classes(self, s: Batch, dy: Tensor | None) -> bool:
        """True if weights enter the cross entropy of a soft label class by class, as in torch.

        Terms that replace losses or gradients see one loss per sample, and the sample then has one weight.
        """
        return self.base is None and (dy is not None or not s.hard) and not (self.training and self.rewrites)

    def weighted(self, s: Batch, summands: Tensor) -> Tensor:
        """(B,) the summands of the samples, multiplied by class weights."""
        if self.weight is None:
            return summands
        weights = self.sample_weights(s).to(summands.dtype)
        if not self._weighs_classes(s, s.dy):
            return weights * summands
        return self.losses_of(s, s.u, du=s.du, dp=s.dp, dy=s.dy, weighted=True) + weights * (summands - s.l)

    def unweighted(self, s: Batch, grad: Tensor) -> Tensor:
        """The gradient of each input (B, ...) divided by its class weight, or the mean weight of its places; 0 if that is 0."""
        weights = s.places.of_sample(self.sample_weights(s) * s.valid).sum(1)
        weights = rowwise(weights / s.places.of_sample(s.valid).sum(1).clamp(min=1), grad).to(grad.dtype)
        return torch.where(weights > 0, grad / weights, 0.0)

    # --- after the losses -------------------------------------------------------------------------------------

    def _step_rows(self, s: Batch) -> None:
        """Moves the rows of learned tables by the gradient of the unreduced losses.

        The fast way knows that gradient. Elsewhere autograd computes it, between the losses and the rows only. Rows on
        features, views and edges move in the backward pass of the user, without a second pass through the model.
        """
        if not s.touched:
            return
        if s.fast:
            assert s.slope is not None
            for touched in s.touched:
                touched.table.descend(touched, touched.summed(s.slope, s), s)
            return
        now = [touched for touched in s.touched if touched.slot not in THROUGH]
        if now:
            with torch.enable_grad():
                total = s.compensated.sum()
            rows = [touched.rows for touched in now]
            grads = torch.autograd.grad(total, rows, retain_graph=True, materialize_grads=True)
            for touched, grad in zip(now, grads, strict=True):
                touched.table.descend(touched, grad, s)
        later = [touched for touched in s.touched if touched.slot in THROUGH]
        if not later:
            return
        # Gradient scaling and accumulation multiply the loss before its backward pass. The gradient of the loss is that
        # factor, and rows are divided by it. An input moves by the gradient of its own loss, the mean over its places; an
        # edge by that of the mean over the batch.
        summed = self.divisor(s) if self.reduction == "mean" else 1
        of_edges = summed / self.total_weight(s)
        if s.places.several:
            summed = summed * (s.places.of_sample(s.valid).any(1).sum() / s.valid.sum().clamp(min=1))
        scale: list[Tensor] = []
        s.loss.register_hook(scale.append)

        def hook(touched: TouchedRows, factor: Tensor | int, grad: Tensor) -> None:
            with torch.no_grad():
                touched.table.descend(touched, grad * factor / scale[-1], s)

        for touched in later:
            touched.rows.register_hook(partial(hook, touched, of_edges if touched.slot == "da" else summed))

    def compile(self, *args: Any, **settings: Any) -> None:
        """As of every module: later calls run a compiled graph.

        A compiled graph guards everything it was made from. Guards on global functions are skipped, unless `mode` or `options`
        are given.
        """
        torch.compiler.assume_constant_result(find_statistics)
        Compensated._told_to_compile = True
        skipped = getattr(torch.compiler, "skip_guard_on_globals_unsafe", None)  # torch 2.4 has none
        if skipped is not None and not settings.keys() & {"mode", "options"}:
            settings["options"] = {"guard_filter_fn": skipped}
        super().compile(*args, **settings)

    def _count_step(self, s: Batch, watching: list[Statistic]) -> None:
        """Counts the step, and warns of calls that are missing in the training loop."""
        self.step.add_(1)
        if torch.compiler.is_compiling():
            return
        for rolling in watching:
            if not rolling.rolls:
                continue
            before, self._seen = self._seen, self._seen + s.visits
            sizes = [m.num_samples for m in self.modules() if isinstance(m, Sample | Statistic) and m.num_samples]
            if sizes and before <= 1.5 * max(sizes) < self._seen:
                warnings.warn(
                    f"{type(rolling).__name__} is renewed once an epoch, but criterion.end_epoch() has not been called "
                    f"for {self._seen} samples of a set of {max(sizes)}. Call it after each epoch.",
                    stacklevel=2,
                )
            break
        if self._awaits_meta:
            self._unlearned += 1
            if self._unlearned == PATIENCE:
                warnings.warn(
                    f"A table of this criterion is learned by meta steps, but {PATIENCE} training steps have passed without one, so it "
                    "stays as it is. Call compensate.meta_step(criterion, model, batch, clean, lr=...) before each step.",
                    stacklevel=2,
                )
        if watching or self.keeps_rows:
            warn_of_copies()

    # --- time -------------------------------------------------------------------------------------------------

    def start(self, total_steps: int) -> Compensated:
        """Sets the number of training steps, for schedules over `progress`; returns the criterion."""
        if total_steps <= 0:
            raise InputError(f"total_steps is {total_steps}; expected epochs times batches, a positive number.")
        self.total.fill_(total_steps)
        self._started = True
        return self

    def require_total(self) -> None:
        """Raises if `start` has not been called."""
        if self._started or torch.compiler.is_compiling():
            return
        self._started = int(self.total) > 0  # of a criterion that was loaded, once
        if not self._started:
            raise InputError(
                "A schedule of this criterion runs over the whole training, whose length is not known. "
                "Call criterion.start(total_steps=epochs * len(loader)) before the first step."
            )

    def end_epoch(self) -> None:
        """Call this after each epoch: statistics over an epoch are renewed."""
        with torch.no_grad():
            for statistic in self.statistics():
                statistic.end_epoch()
        self.epoch += 1
        self._seen = 0

    # --- contents ---------------------------------------------------------------------------------------------

    def tables(self) -> Iterator[Table]:
        """All tables, those inside terms included."""
        return (m for m in self.modules() if isinstance(m, Table))

    def statistics(self) -> Iterator[Statistic]:
        """All statistics, those inside terms included."""
        return iter(self._statistics())

    def _statistics(self) -> list[Statistic]:
        """In the order of `modules()`. Cached, because every step needs it, until a module is replaced."""
        if not torch.compiler.is_compiling():
            for held, before in self._walked:
                if (*held.values(),) != before:
                    break
            else:
                # A shallow copy of a criterion has modules of its own.
                if self._walked and self._walked[0][0] is self._modules:
                    return self._found
        elif not Compensated._told_to_compile:
            return statistics_among(self.modules())
        find_statistics(self, self.record)
        return self._found

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        check_state({**dict(self.named_buffers()), **dict(self.named_parameters())}, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def suspects(self, top: int | None = None) -> Any:
        """The samples whose labels look wrong, most suspect first; see :meth:`Evidence.suspects`."""
        if self.record is None:
            raise InputError(
                "This criterion keeps no record of its samples. Pass record=compensate.terms.Evidence(num_samples) to Compensated, "
                "or num_samples=... to the method, swap or compose."
            )
        return self.record.suspects(top)

    @property
    def taxonomy(self) -> Taxonomy:
        """Target, direction, inference and granularity of this criterion.

        >>> from compensate.terms import L1, Category
        >>> print(Compensated(logit=(Sample(9, 3, penalty=L1(0.1)), Category(3, 3, update="meta"))).taxonomy)
        logit · mixed · regularized+meta · sample+category
        """
        return taxonomy_of({name: self.terms_of(name) for name in self.terms})

    @property
    def nbytes(self) -> int:
        """Bytes of memory that tables and statistics hold."""
        counted = sum(t.nbytes for m in self.statistics() for t in (*m.parameters(False), *m.buffers(False)))
        return counted + sum(table.nbytes for table in self.tables())

    def __repr__(self) -> str:
        terms: dict[str, tuple[Term, ...]] = {SLOTS[name]: self.terms_of(name) for name in self.terms}
        text = equation_text(self.reduction, terms, penalized=any(t.penalty for t in self.tables()))
        return f"{text}\n  {self.taxonomy} · holds {in_bytes(self.nbytes)}"

    def _repr_html_(self) -> str:
        """The equation in a notebook."""
        first, *rest = repr(self).split("\n")
        return element("pre", element("b", escape(first, 2000)), escape("\n" + "\n".join(rest), 10_000))
