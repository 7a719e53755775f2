"""The criterion: terms of the equation, the loss they give, the steps that follow, and its place in the paper's taxonomy."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from compensate.core.batch import MANY_CLASSES, THROUGH, Batch, Slot, log_softmax
from compensate.core.layout import rowwise
from compensate.core.proximal import ONTO, SMALLEST
from compensate.core.stages import full_precision
from compensate.core.statistics import Evidence, Statistic
from compensate.core.tables import Sample, Table, TouchedRows
from compensate.core.validation import Check, Reduction, check_losses, check_state, checked_weights
from compensate.errors import InputError, check, one_of
from compensate.extras import element, escape

if TYPE_CHECKING:
    from compensate.terms.views import Views

Term = Callable[[Batch], Tensor]
Terms = Term | tuple[Term, ...] | None

Base = Callable[[Tensor, Tensor], Tensor] | Literal["bce"]

BinaryBase = Literal["bce"] | None
"""The base loss of methods that also take several labels a sample."""

SOFTMAX_ONLY = tuple(f"compensate.{name}" for name in ("methods.", "terms.guesses", "terms.classes"))
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

TARGETS = tuple(SLOTS)
DIRECTIONS = ("positive", "negative", "mixed")
INFERENCES = ("prior", "tuning", "regularized", "meta", "adversarial", "mixed")
GRANULARITIES = ("sample", "category", "group", "corpus", "mixed")


class Taxonomy(NamedTuple):
    """The place of a method in the taxonomy: target, direction, inference and granularity.

    Several values on an axis are joined by a plus sign; the paper calls that mixed.

    >>> print(Taxonomy("logit", "mixed", "regularized", "sample"))
    logit · mixed · regularized · sample
    """

    target: str
    direction: str
    inference: str
    granularity: str

    def __str__(self) -> str:
        return " · ".join(self)


def _axes(term: Any) -> list[tuple[str, str, str]]:
    """Direction, inference and granularity of a term, or of its child modules; a bare formula is prior knowledge about a sample."""
    inference, granularity = getattr(term, "inference", None), getattr(term, "granularity", None)
    direction = getattr(term, "direction", "mixed")
    if inference or granularity:
        return [(direction, inference or "prior", granularity or "sample")]
    gated = getattr(term, "gated_term", None)
    if gated is not None:
        return _axes(gated)
    inside = [axis for child in term.children() for axis in _axes(child)] if isinstance(term, nn.Module) else []
    inside = inside or [(direction, "prior", "sample")]
    return inside if direction == "mixed" else [(direction, *rest) for _, *rest in inside]  # type: ignore[misc]


def cross_entropies(u: Tensor, p: Tensor, labels: Tensor) -> Tensor:
    r"""(B,) cross entropies :math:`\max_c u_{i,c} - \log \max_c p_{i,c} - u_{i,y_i}` of logits `u` and their softmax `p`, both (B, C)."""
    return F.nll_loss(u, labels, reduction="none") + u.amax(-1) - p.amax(-1).log()


class CrossEntropy(torch.autograd.Function):
    """The same with the gradient :math:`p_i - y_i`: the softmax is shared with other readers of the batch."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, p: Tensor, labels: Tensor) -> Tensor:
        ctx.save_for_backward(u, p, labels)
        return cross_entropies(u, p, labels)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, p, labels = ctx.saved_tensors
        grad = grad[:, None]
        p = u.softmax(-1) if torch.is_grad_enabled() else p  # for second derivatives
        return (p * grad).scatter_add_(1, labels[:, None], -grad), None, None


class CrossEntropyWithSlope(torch.autograd.Function):
    r"""Cross entropies (B,) under logit compensation, a constant, and their slope (B, C), a constant, from one softmax.

    .. math:: l_i = -\log S(u_i + \Delta u_i)_{y_i}, \qquad \frac{\partial l_i}{\partial u_i} = S(u_i + \Delta u_i) - y_i

    >>> CrossEntropyWithSlope.apply(torch.tensor([[3.0, 0.8, 0.2]]), torch.zeros(1, 3), torch.tensor([1]))
    (tensor([2.3584]), tensor([[ 0.8535, -0.9054,  0.0519]]))
    """

    @staticmethod
    def forward(ctx: Any, u: Tensor, du: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        q = u + du
        if q.is_cpu and q.shape[-1] >= MANY_CLASSES and q.dtype.itemsize > 2:  # as `cross_entropies`, in place
            losses = F.nll_loss(q, labels, reduction="none") + q.amax(-1)
            p = torch.softmax(q, -1, out=q)
            losses = losses - p.amax(-1).log()
        else:
            logp = log_softmax(q)
            losses, p = F.nll_loss(logp, labels, reduction="none"), logp.exp_()
        slope = p.scatter_(1, labels.unsqueeze(1), -1.0, reduce="add")
        ctx.save_for_backward(u, slope, labels)
        ctx.mark_non_differentiable(slope)
        ctx.set_materialize_grads(False)
        return losses, slope

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        u, slope, labels = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives the slope must depend on the logits
            p = slope.scatter(1, labels[:, None], 1.0, reduce="add")
            p = torch.where(p > 0, u - u.detach() + p.log(), -torch.inf).softmax(-1)
            slope = slope + (p - p.detach())
        return slope * grad[:, None], None, None


def add_gradient(s: Batch, x: Tensor, delta: Tensor) -> None:
    """Adds `delta` to the derivative of each loss by `x` (B, ...), without changing the loss."""
    x = torch.where(x.isfinite(), x, 0.0)  # a logit of minus infinity has no gradient
    zeros = (delta * (x - x.detach())).flatten(1).sum(1)
    s.charge(zeros if s.complete else torch.where(s.valid, zeros, 0.0))


_synchronized = _warned = False


def mark_synchronized() -> None:
    """Call this from code that keeps the copies of a criterion in several processes equal."""
    global _synchronized
    _synchronized = True


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
        base: the loss :math:`l` of logits (B, C) and targets (class numbers (B,) or distributions (B, C)), (B,); cross entropy if not
            given. Under "bce", binary cross entropy, each class is a label with rows of its own, and targets are (B, C) from 0 to 1.
        reduction, weight, ignore_index: as in :func:`torch.nn.functional.cross_entropy`; the mean of a batch without valid samples is 0. The
            weight multiplies the summand of each sample; terms, gates, tables and records read losses and slopes without it.
        onto: how :math:`y + \Delta y` and :math:`p + \Delta p` become distributions (Eq. 6): by the nearest point of the simplex, by
            division by the sum, or not at all.
        record: a record of each sample for :meth:`suspects`.
        check: "sync" checks index, labels and NaN at once, "async" without waiting for the device, "off" never; "auto" is "sync" on
            the CPU and "async" elsewhere.

    A term is any callable of the :class:`~compensate.terms.Batch`. Several terms under one keyword are added in order. In evaluation
    mode no term is used, and the result is the plain loss.

    >>> criterion = Compensated()                                             # no term: cross entropy
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.3584)
    >>> v = torch.tensor([[-1.0, 2.0, 0.0]])
    >>> Compensated(logit=lambda s: v)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(0.4211)

    Reference: Yao and Wu, Compensation Learning, 2021, Eqs. (3)-(8).
    """

    epoch: Tensor
    step: Tensor
    total: Tensor
    weight: Tensor | None

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
        given = zip(SLOTS, (feature, logit, label, prediction, loss, gradient, view, structure), strict=True)
        self._in_order: dict[str, tuple[Term, ...]] = {
            name: tuple(terms) if isinstance(terms, tuple | list) else (terms,) for name, terms in given if terms
        }  # fmt: skip
        wrong = [term for terms in self._in_order.values() for term in terms if not callable(term)]
        if wrong:
            raise InputError(f"A term is {wrong[0]!r}; expected a callable of the batch, such as a table or a module.")
        self.terms = nn.ModuleDict({
            name: nn.ModuleDict({str(k): term for k, term in enumerate(terms) if isinstance(term, nn.Module)})
            for name, terms in self._in_order.items()
        })  # fmt: skip
        self.before_logits = tuple(name for name in ("structure", "view", "feature") if name in self._in_order)
        """The targets of this criterion that lie before the logits, in the order in which they are inferred."""
        self.reads_inputs = bool(self.before_logits) or views is not None
        """True if it reads the inputs of the model."""
        alone = {name: terms[0] for name, terms in self._in_order.items() if len(terms) == 1}
        self.on_simplex = {name for name, term in alone.items() if getattr(term, "on_simplex", False)}
        """Targets whose only term keeps distributions on the simplex."""
        self.rewrites = not all(getattr(t, "adds", False) for t in self.terms_of("loss") + self.terms_of("gradient"))
        """True if a term replaces losses or gradients instead of adding to them."""
        self.only_tables = [*self._in_order] == ["logit"] and base is None and all(
            isinstance(term, Table) and term.update != "manual" for term in self._in_order["logit"]
        ) and not any(getattr(module, "withholds", False) for module in self.modules())  # fmt: skip
        """True if all terms are tables on logits that no optimizer moves: rows then move by the slope of the losses of all samples."""
        self.fast = True
        """Whether one softmax may give the losses and their slope; false computes everything by definition."""
        one_of("onto", onto, *ONTO)
        if base not in ("bce", None) and not callable(base):
            raise InputError(
                f'base is "{base}"; expected "bce", a function of logits and targets, or none for cross entropy.'
            )
        if base == "bce" and prediction:
            raise InputError(
                'base="bce" has no prediction=: with two outcomes it is the same as label compensation with the other sign. Write label=.'
            )
        if view and views is None:
            raise InputError("view= needs views=..., the transformations whose weights it sets: views=Views(shifted).")
        self.base, self.ignore_index, self.onto = base, ignore_index, onto
        self.binary = base == "bce"
        """True if each class is a label of its own."""
        one_of("reduction", reduction, *get_args(Reduction))
        self.reduction: Reduction = reduction
        self.check: Check = check
        self.record, self.views = record, views
        self.register_buffer("weight", checked_weights(weight))
        for name in ("epoch", "step", "total"):
            self.register_buffer(name, torch.zeros((), dtype=torch.long))
        self._since, self._started = Counter[str](), False  # samples since `end_epoch`, and steps without a meta step
        self._found: tuple[tuple[nn.Module | None, ...], list[Statistic]] = ((), [])
        self._samples = 0  # the size of the training set, if a table or a statistic knows it
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
            target: class numbers (B,) or (B, d1, ...), or distributions or several labels shaped like the logits.
            index: (B,) row of each sample in the training set, which all its places share, or (B, d1, ...) one of each place.
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
        known = self.statistics() if self.training else []
        statistics = known if s.learn else []
        if s.meta:
            self._awaits_meta = False
        if self.before_logits and self.training:
            s.forward_pass.seed = int(torch.randint(2**62, ()).item())  # one dropout mask for all passes
            self._add_terms(s, *self.before_logits)
        _ = s.u  # the forward pass, here and not in a term that reads it under no_grad
        for statistic in statistics:
            statistic.check(s)
        for statistic in known:
            if statistic.withholds:
                s.withheld = statistic.hidden(s) if s.withheld is None else s.withheld | statistic.hidden(s)
        undo = []
        try:
            for statistic in statistics:
                if statistic.observes == "logits":
                    if not s.compiled:
                        undo.append(statistic.undo(s))
                    with torch.no_grad():
                        statistic.observe(s)
            if self.training:
                self._add_terms(s, "logit", "label", "prediction")
            constant = s.du is not None and not s.du.requires_grad and s.dp is None and s.dy is None
            if constant and self.fast and s.learn and s.hard and self.base is None:
                losses, s.slope = CrossEntropyWithSlope.apply(s.u, s.du, s.labels)  # type: ignore[no-untyped-call]
                s.l = losses if s.complete else torch.where(s.valid, losses, 0.0)
            else:
                s.l = self.losses_of(s, s.u, du=s.du, dp=s.dp, dy=s.dy)
            if self.training and ("loss" in self._in_order or "gradient" in self._in_order):
                self._add_terms(s, "loss", "gradient")
                if s.dg is not None:
                    add_gradient(s, s.u, s.dg)
            s.loss = self.reduce(s, s.losses)
            check_losses(s)
        except BaseException:
            for restore in undo:
                restore()
            raise
        if s.learn:
            # No error is raised from here on: a batch changes all state or none.
            with torch.no_grad():
                for write in s.writes:
                    write()
                if s.touched:
                    self._step_rows(s)
                for statistic in statistics:
                    if statistic.observes == "loss":
                        statistic.observe(s)
                self._count_step(s, statistics)
        return s

    def _add_terms(self, s: Batch, *names: str) -> None:
        """Adds the terms of some targets to the compensation of the batch."""
        for name in names:
            for term in self._in_order.get(name, ()):
                s.slot = SLOTS[name]
                delta, like = term(s), s.u if s.slot == "du" else s.like
                if s.slot == "dx":
                    delta = s.forward_pass.unpadded(rowwise(delta, like))
                elif delta.shape != like.shape:
                    delta = rowwise(delta, like)
                    if delta.ndim and delta.shape[-1] != 1 and delta.shape[-1] != like.shape[-1]:
                        raise InputError(
                            f"a term of shape {tuple(delta.shape)} was given for a target of shape {tuple(like.shape)}. Give the "
                            "table or the term as many classes as the model has outputs."
                        )
                so_far = getattr(s, s.slot)
                setattr(s, s.slot, delta if so_far is None else so_far + delta)
        s.slot = None

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
            q = q if "prediction" in self.on_simplex else ONTO[self.onto](q)
            if "prediction" not in self.on_simplex and self.onto == "none":
                q = q.clamp(min=SMALLEST)
                q = q / q.sum(-1, keepdim=True)
        if dy is not None:
            y = s.y + dy
            if "label" not in self.on_simplex:
                # Labels are corners of the simplex, where a projection has no slope. A table or an inner loop on labels
                # uses the slope of the plane of the simplex, as a projected gradient method does.
                y = y if self.binary else y - (dy.mean(-1, keepdim=True) - dy.mean(-1, keepdim=True).detach())
                y = y + ((y.clamp(0, 1) if self.binary else ONTO[self.onto](y)) - y).detach()
        else:
            y = s.labels if s.hard else s.y
        weight = None if not weighted or self.weight is None else self.weight.to(u.dtype)
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
        elif picks and given and u.is_cpu and u.shape[-1] >= MANY_CLASSES and u.dtype.itemsize > 2:
            learned = u.requires_grad and torch.is_grad_enabled()
            losses = (CrossEntropy.apply if learned else cross_entropies)(u, s.p.detach(), y)
        elif picks and given:
            losses = F.nll_loss(s.logp, y, reduction="none")
        elif given and q is None and not by_class:
            losses = -(y * s.logp).sum(-1)
        else:
            losses = F.cross_entropy(u, y, weight=weight if by_class else None, reduction="none")
        losses = losses if weight is None or by_class else losses * self.sample_weights(s).to(losses.dtype)
        return losses if s.complete else torch.where(s.valid, losses, 0.0)

    def reduce(self, s: Batch, losses: Tensor) -> Tensor:
        """Losses (B,), class weights included, reduced as by torch's cross entropy."""
        if self.reduction == "none":
            return s.places.back(losses)
        if self.reduction == "sum":
            return losses.sum()
        return losses.mean() if s.complete and s.weight is None and losses.numel() else losses.sum() / self.divisor(s)

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
        if s.touched and not s.touched[0].rows.requires_grad:
            assert s.slope is not None
            for touched in s.touched:
                slope = s.slope
                if not s.complete and (touched.which is not None or touched.by_sample):
                    slope = torch.where(s.valid[:, None], slope, 0.0)
                slope = s.places.totals(slope) if touched.by_sample else slope
                grad = slope.to(touched.rows.dtype).sum_to_size(len(slope), *touched.rows.shape[1:])
                if touched.which is not None:
                    grad = torch.zeros_like(touched.rows).index_add_(0, touched.which, grad)
                touched.table.descend(touched, grad, s)
            return
        now = {touched.rows: touched for touched in s.touched if touched.slot not in THROUGH}
        if now:
            with torch.enable_grad():
                total = s.compensated.sum()
            grads = torch.autograd.grad(total, [*now], retain_graph=True, materialize_grads=True)
            for touched, grad in zip(now.values(), grads, strict=True):
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
        """As of every module: later calls run a compiled graph, without guards on global functions by default."""
        self.statistics()
        skipped = getattr(torch.compiler, "skip_guard_on_globals_unsafe", None)  # torch 2.4 has none
        if skipped is not None and not settings.keys() & {"mode", "options"}:
            settings["options"] = {"guard_filter_fn": skipped}
        super().compile(*args, **settings)

    def _count_step(self, s: Batch, statistics: list[Statistic]) -> None:
        """Counts the step, and warns of calls that are missing in the training loop."""
        global _warned
        s.step.add_(1)
        if s.compiled:
            return
        rolling = next(filter(attrgetter("rolls"), statistics), None)
        if rolling is not None:
            before = self._since["epoch"]
            seen = self._since["epoch"] = before + s.places.visits
            if self._samples > 0 and before <= 1.5 * self._samples < seen:
                warnings.warn(
                    f"{type(rolling).__name__} is renewed once an epoch, but criterion.end_epoch() has not been called "
                    f"for {seen} samples of a set of {self._samples}. Call it after each epoch.",
                    stacklevel=2,
                )
        if self._awaits_meta:
            self._since["meta"] += 1
            if self._since["meta"] == PATIENCE:
                warnings.warn(
                    f"A table of this criterion is learned by meta steps, but {PATIENCE} training steps have passed without one, so it "
                    "stays as it is. Call compensate.meta_step(criterion, model, batch, clean, lr=...) before each step.",
                    stacklevel=2,
                )
        alone = _synchronized or _warned or not (dist.is_available() and dist.is_initialized())
        if (statistics or self.keeps_rows) and not alone and dist.get_world_size() > 1:
            _warned = True
            warnings.warn(
                f"{dist.get_world_size()} processes evaluate copies of this criterion on their own slices of a batch: tables, records and "
                "suspects will differ in each of them. Write criterion(*together(model(x), target, index)) in every step, or "
                "Exchange(criterion) before the first step and exchange.end_epoch() after each epoch; both are in compensate.training.",
                stacklevel=2,
            )

    # --- time -------------------------------------------------------------------------------------------------

    def start(self, total_steps: int) -> Compensated:
        """Sets the number of training steps, for schedules over `progress`; returns the criterion."""
        check(total_steps > 0, "epochs times batches, a positive number", total_steps=total_steps)
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
        self._since["epoch"] = 0

    # --- contents ---------------------------------------------------------------------------------------------

    def tables(self) -> Iterator[Table]:
        """All tables, those inside terms included."""
        return (m for m in self.modules() if isinstance(m, Table))

    def statistics(self) -> list[Statistic]:
        """All statistics, those inside terms included; cached until a module of the criterion is replaced."""
        if torch.compiler.is_compiling():
            if not self._found[0]:
                return [module for module in self.modules() if isinstance(module, Statistic)]
            # A graph would guard every module that it walks through.
            found = [statistic for statistic in self._found[1] if not isinstance(statistic, Evidence)]
            return found if self.record is None else [*found, self.record]
        children = (*self._modules.values(),)
        if self._found[0] != children:
            self._found = children, [module for module in self.modules() if isinstance(module, Statistic)]
            sizes = (m.num_samples for m in self.modules() if isinstance(m, Sample | Statistic))
            self._samples = max((size for size in sizes if size), default=0)
        return self._found[1]

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
        if not self._in_order:
            return Taxonomy("none", "none", "none", "none")
        axes = [axis for many in self._in_order.values() for term in many for axis in _axes(term)]
        directions, inferences, granularities = (dict.fromkeys(names) for names in zip(*axes, strict=True))
        direction = "mixed" if len(directions) > 1 else next(iter(directions))
        return Taxonomy("+".join(self._in_order), direction, "+".join(inferences), "+".join(granularities))

    @property
    def nbytes(self) -> int:
        """Bytes of memory that tables and statistics hold."""
        counted = sum(t.nbytes for m in self.statistics() for t in (*m.parameters(False), *m.buffers(False)))
        return counted + sum(table.nbytes for table in self.tables())

    def __repr__(self) -> str:
        """The equation with the compensation of the criterion, and a line for each.

        >>> print(repr(Compensated(logit=abs)).splitlines()[0])
        mean_i [ l( S(f(x_i) + du_i), y_i ) ]
        """
        terms = {SLOTS[name]: some for name, some in self._in_order.items()}
        x = "x_i" + " + V_i dv_i" * ("dv" in terms) + " + dx_i" * ("dx" in terms) + "; A + da" * ("da" in terms)
        p = f"S(f({x}){' + du_i' * ('du' in terms)})" + " + dp_i" * ("dp" in terms)
        tail = " + dl_i" * ("dl" in terms) + " + penalty_i" * any(table.penalty for table in self.tables())
        tail += " + <dg_i, u_i - [u_i]>" * ("dg" in terms)  # in brackets, a constant
        summand = f"l( {p}, y_i{' + dy_i' * ('dy' in terms)} ){tail}"
        lines = [summand if self.reduction == "none" else f"{self.reduction}_i [ {summand} ]"]
        for letters, some in terms.items():
            texts = (repr(t) if isinstance(t, nn.Module) else getattr(t, "__name__", repr(t)) for t in some)
            lines.append(f"  {letters} = {' + '.join(' '.join(text.split()) for text in texts)}")
        units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1))
        unit, size = next((unit for unit in units if self.nbytes >= unit[1]), units[-1])
        held = f"{self.nbytes / size:.2g}" if self.nbytes < 10 * size and size > 1 else f"{self.nbytes / size:.0f}"
        return "\n".join([*lines, f"  {self.taxonomy} · holds {held} {unit}"])

    def _repr_html_(self) -> str:
        """The equation in a notebook."""
        first, *rest = repr(self).split("\n")
        return element("pre", element("b", escape(first, 2000)), escape("\n" + "\n".join(rest), 10_000))


# --- measures of compensation ----------------------------------------------------------------------------------------

TOLERANCE = 1e-6
"""Relative changes of a loss below this count as none."""


def measured(s: Batch) -> Tensor:
    r"""(B,) the sign of :math:`l'_i - l_i`: +1 if compensation raised the loss, -1 if it lowered it, else 0.

    In the paper's words +1 is *negative* compensation (the sample counts more) and -1 is *positive*.

    >>> from compensate.terms import Pull
    >>> criterion = Compensated(logit=Pull(1.0))
    >>> s = criterion.evaluate(torch.nn.Identity(), torch.tensor([[3.0, 0.8], [0.1, 0.0]]), torch.tensor([1, 0]))
    >>> measured(s)
    tensor([-1., -1.])
    """
    moved = change(s)
    return torch.where(moved.abs() <= TOLERANCE * (1 + s.plain_losses.abs()), 0.0, moved.sign())


def change(s: Batch) -> Tensor:
    r"""(B,) :math:`l'_i - l_i`, constants; where gradients are compensated, with :math:`\langle \Delta g_i, g_i \rangle` added.

    A gradient term does not change the value of the loss. It makes a sample count more if it lengthens its gradient, as a
    higher loss does, hence the same sign.
    """
    moved = s.compensated.detach() - s.plain_losses
    return moved if s.dg is None else moved + (s.dg.detach() * s.gradient).sum(-1)
