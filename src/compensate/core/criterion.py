"""A criterion as people read it: its equation and terms on a few lines."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate.core.batch import THROUGH, Batch, Slot
from compensate.core.fast import losses_and_slope, reduced
from compensate.core.proximal import ONTO, SMALLEST
from compensate.core.rows import Touched, warn_of_copies
from compensate.core.statistics import Evidence, Statistic, find_statistics, statistics_among
from compensate.core.tables import Sample, Table
from compensate.core.taxonomy import Taxonomy, taxonomy_of
from compensate.core.validation import (
    Check,
    Reduction,
    at_hand,
    check_losses,
    check_state,
    checked_reduction,
    checked_weights,
)
from compensate.core.views import Views
from compensate.core.weighting import sample_weights, total_weight, weighs_classes
from compensate.errors import InputError
from compensate.markup import element, escape


def equation_text(reduction: str, terms: Mapping[str, Iterable[Any]], *, penalized: bool) -> str:
    """The equation with the compensation that there is, and a line for each.

    Args:
        reduction: "mean", "sum" or "none".
        terms: those of each compensation, by its letters in the paper.
        penalized: whether tables pay a penalty.

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
    """A size for people.

    >>> in_bytes(512), in_bytes(71_880), in_bytes(5_124_000_000)
    ('512 bytes', '72 kB', '5.1 GB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2g} {unit}" if count < 10 * size else f"{count / size:.0f} {unit}"
    return f"{count} bytes"


def step_rows(s: Batch) -> None:
    """Moves the rows of learned tables by the gradient of the unreduced losses.

    On logits under plain cross entropy the slope of the loss is that gradient. Elsewhere autograd finds it, between the
    losses and the rows only. Rows on features, views and edges wait for the backward
    pass of the user.
    """
    if s.by_slope:
        assert s.slope is not None
        for touched in s.touched:
            touched.table.descend(touched, _by_row(s, s.slope, touched), s)
        return
    now = [touched for touched in s.touched if touched.slot not in THROUGH]
    if now:
        rows = [touched.rows for touched in now]
        with torch.enable_grad():
            total = s.compensated.sum()
        grads = torch.autograd.grad(total, rows, retain_graph=True, materialize_grads=True)
        for touched, grad in zip(now, grads, strict=True):
            touched.table.descend(touched, grad, s)
    later = [touched for touched in s.touched if touched.slot in THROUGH]
    if later:
        _step_in_backward(s, later)


def _by_row(s: Batch, slope: Tensor, touched: Touched) -> Tensor:
    """Slopes of samples (B, C) added up for the rows that they share, and for the entries if a row is one number.

    Samples that do not count have no slope. Where there is a place for each sample, those that share a row meet later.
    """
    slope = s.places.totals(slope) if touched.by_sample else slope
    if slope.dtype != touched.rows.dtype or slope.shape[1:] != touched.rows.shape[1:]:
        slope = slope.to(touched.rows.dtype).sum_to_size(len(slope), *touched.rows.shape[1:])
    return slope if touched.which is None else torch.zeros_like(touched.rows).index_add_(0, touched.which, slope)


def _step_in_backward(s: Batch, touched: list[Touched]) -> None:
    """Rows on features move when the user's backward pass brings their gradient: no second pass through the model.

    Gradient scaling and accumulation multiply the loss before its backward pass; the gradient of the loss itself
    tells by how much, so that the step of a row does not depend on them. An input moves by the gradient of its own loss, the mean
    over its places; an edge by that of the mean over the batch, which all samples share.
    """
    summed = s.criterion.divided_by(s)
    of_edges = summed / total_weight(s)
    if s.places.several:
        summed = summed * (s.places.of_sample(s.valid).any(1).sum() / s.valid.sum().clamp(min=1))
    scale: list[Tensor] = []
    s.loss.register_hook(scale.append)
    for one in touched:
        _when_known(s, one, of_edges if one.slot == "da" else summed, scale)


def _when_known(s: Batch, touched: Touched, times: Tensor | int, scale: list[Tensor]) -> None:
    def hook(grad: Tensor) -> None:
        with torch.no_grad():
            touched.table.descend(touched, grad * times / scale[-1], s)

    touched.rows.register_hook(hook)


Term = Callable[[Batch], Tensor]
Terms = Term | tuple[Term, ...] | None

Base = Callable[[Tensor, Tensor], Tensor] | Literal["bce"]

BinaryBase = Literal["bce"] | None
"""The base loss of methods that also take several labels a sample."""

SOFTMAX_ONLY = tuple(
    f"compensate.{room}" for room in ("methods.", "inference.guesses", "inference.margins", "inference.classes")
)
"""What is defined here reads one distribution over the classes, unless it says `binary = True`."""

Weights = Tensor | Sequence[float]
"""(C,) a weight for each class."""

PATIENCE = 100
"""Training steps after which a criterion that waits for its first meta step says so."""

SLOTS: dict[str, Slot] = {
    "feature": "dx", "logit": "du", "label": "dy", "prediction": "dp", "loss": "dl", "gradient": "dg", "view": "dv",
    "structure": "da",
}  # fmt: skip
"""The keyword of each target, and the letter its compensation has in the paper."""

BEFORE = ("structure", "view", "feature")
"""The targets that lie before the logits, in the order in which they are inferred."""


class Sum(nn.Module):
    """The terms of one target. Those that are modules become children, so that state follows `.to()` and `state_dict`."""

    def __init__(self, terms: Terms) -> None:
        super().__init__()
        many: Iterable[Any] = terms if isinstance(terms, tuple | list) else (terms,)
        for number, term in enumerate(many):
            if not callable(term):
                raise InputError(
                    f"A term is {term!r}; expected a callable of the state, such as a table, a function or a module."
                )
            setattr(self, str(number), term)
        self.size = number + 1

    @property
    def terms(self) -> tuple[Term, ...]:
        """In order."""
        return tuple(getattr(self, str(number)) for number in range(self.size))


class Compensated(nn.Module):
    r"""A loss with compensation: the whole of the paper's taxonomy in one line.

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
        reduction, weight, ignore_index: as in :func:`torch.nn.functional.cross_entropy`, but for a batch in which no sample counts:
            its mean is 0, not NaN. `weight` may also be set later, `criterion.weight = ...`. It multiplies the summand of each sample,
            compensation and penalty included; terms, gates, tables and records read losses and slopes without it.
        onto: how :math:`y + \Delta y` and :math:`p + \Delta p` become distributions (Eq. 6): by the nearest point
            of the simplex, by division by the sum, or not at all. Terms that stay on the simplex need none of it.
        record: keeps for each sample what :meth:`suspects` reads.
        check: "sync" looks at index, labels and NaN at once, "async" without waiting for the device, "off" never; "auto" is "sync" on
            the CPU and "async" on other devices and in compiled graphs.

    A term is any callable of the :class:`~compensate.terms.Batch`. Several terms under one keyword are added in order.

    >>> criterion = Compensated()                                             # no term: cross entropy
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.3584)
    >>> v = torch.tensor([[-1.0, 2.0, 0.0]])
    >>> Compensated(logit=lambda s: v)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(0.4211)

    In evaluation mode every term rests and the plain loss comes out.

    Reference: Yao and Wu, Compensation Learning, 2021, Eqs. (3)-(8).
    """

    epoch: Tensor
    step: Tensor
    total: Tensor
    weight: Tensor | None
    _told_to_compile: ClassVar[bool] = False
    """In this process: torch imports its compiler, which takes seconds, only then."""

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
        self.only_logits = self._in_order.keys() <= {"logit"}
        """True if logits are compensated, or nothing at all."""
        every = [term for terms in self._in_order.values() for term in terms]
        behind = [*self._in_order.get("loss", ()), *self._in_order.get("gradient", ())]
        self.rewrites = not all(getattr(term, "adds", False) for term in behind)
        """True if a term changes losses or gradients by more than what it adds."""
        self._fused = every if len(every) == 1 and callable(getattr(every[0], "fused", None)) else []  # not a module
        logit = self._in_order.get("logit", ())
        on_logits = self.only_logits and all(isinstance(term, Table) for term in logit)
        self._logit_tables = tuple(cast(Table, term) for term in logit) if on_logits else ()
        if onto not in ONTO:
            raise InputError(f'onto is "{onto}"; expected {", ".join(ONTO)}.')
        self.fast = True
        """Whether the losses may be found together with their slope, in one softmax, where that gives the same."""
        if isinstance(base, str) and base != "bce":
            raise InputError(
                f'base is "{base}"; expected "bce", a function of logits and targets, or none for cross entropy.'
            )
        if base == "bce" and prediction:
            raise InputError(
                'base="bce" has no prediction=: with two outcomes it is the same as label compensation with the other sign. Write label=.'
            )
        self.base, self.ignore_index, self.onto = base, ignore_index, onto
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
        """Adds the values of other processes to those of this one, where each evaluates its own slice of a batch."""
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

    # --- the two ways to call it ------------------------------------------------------------------------------

    def forward(
        self, logits: Tensor, target: Tensor, index: Tensor | None = None, *, group: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch of logits (B, C): the drop-in form, for criteria that need not run the model.

        Args:
            logits: (B, C), as they come out of the model; or (B, C, d1, ...), with a prediction for each place.
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
        return self.settle(Batch(self, target, index, group, logits=logits, learn=self._learns())).loss

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
        """The whole step, for every criterion: runs the model and returns the state; `state.loss.backward()` follows.

        Args:
            model: maps `x` to logits (B, C); may offer `embed`, `features` and `head`.
            x: the input batch.
            target, index, group: as in the drop-in form.
            meta: true in the inner pass of a meta step, where nothing is stored or observed.
        """
        learn = self._learns() and not meta
        return self.settle(Batch(self, target, index, group, model=model, x=x, learn=learn, meta=meta))

    @property
    def binary(self) -> bool:
        """True if each class is a label of its own."""
        return self.base == "bce"

    def _learns(self) -> bool:
        return self.training and torch.is_grad_enabled()

    def settle(self, s: Batch) -> Batch:
        """Walks a state through the equation: its terms, its losses, and what follows a step if it learns."""
        watching = self._statistics() if s.learn else []
        if s.meta and self._awaits_meta:
            self._awaits_meta = False
        if self.before_logits and self.training:
            s.fix_randomness()
            for name in self.before_logits:
                self._infer(s, name)
        _ = s.u  # the forward pass, here and not inside a term that looks at it without gradients
        self._weigh(s, watching)
        if s.learn:
            # From here on nothing is refused: what a batch moves, it moves as a whole.
            with torch.no_grad():
                for write in s.writes:
                    write()
                step_rows(s)
                for statistic in watching:
                    if statistic.observes == "loss":
                        statistic.observe(s)
                self._tick(s, watching)
        return s

    def _weigh(self, s: Batch, watching: list[Statistic]) -> None:
        """The losses of the batch, checked; what observed them is as before if the batch is refused."""
        early = []
        for statistic in watching:
            statistic.check(s)
            if statistic.observes == "logits":
                early.append(statistic)
        if not early:
            self._losses(s)
            return
        undo = [] if torch.compiler.is_compiling() else [statistic.undo(s) for statistic in early]
        try:
            with torch.no_grad():
                for statistic in early:
                    statistic.observe(s)
            self._losses(s)
        except BaseException:
            for back in undo:
                back()
            raise

    def _losses(self, s: Batch) -> None:
        if self._found_together(s):
            check_losses(s)
            return
        for name in self._logits_and_labels if self.training else ():
            self._infer(s, name)
        if self._slopes(s):
            assert s.du is not None
            valid = None if s.complete else s.valid
            s.known, s.slope = losses_and_slope(s.u, s.du, s.target, valid, ignore_index=self.ignore_index)
        elif self.fast and s.ordinary and s.du is None and s.dy is None and self._on_simplex(s):
            s.l = self._losses_of_probabilities(s)
        else:
            s.l = self.losses_of(s, s.u, du=s.du, dp=s.dp, dy=s.dy)
        if self.training and not self.only_logits:
            self._infer(s, "loss")
            self._infer(s, "gradient")
            if s.dg is not None:
                s.lean(s.u, s.dg)
        if self._in_order or s.seen_by_loss or s.masked or not s.ordinary:
            check_losses(s)

    def _found_together(self, s: Batch) -> bool:
        """True if the only term has found compensation, losses and slope in one walk over the batch, portion by portion."""
        if not (self._fused and self.fast and s.learn and s.ordinary and at_hand(s.u) and s.complete):
            return False
        found = cast(Any, self._fused[0]).fused(s)
        if found is None:
            return False
        (name,) = self._in_order
        setattr(s, SLOTS[name] if isinstance(found.delta, Tensor) else "find_dp", found.delta)
        _, s.known, s.plain_losses, s.slope, s.definition = found
        return True

    def _slopes(self, s: Batch) -> bool:
        """True if the fast way gives the same: under cross entropy of logits with a constant added, the slope is S(u + du) - y."""
        constant = s.du is not None and s.dp is None and s.dy is None and not s.du.requires_grad
        return self.fast and s.learn and s.ordinary and constant

    def _on_simplex(self, s: Batch) -> bool:
        """True if predictions are distributions without help, in a type that holds them."""
        return s.dp is None or (s.u.dtype.itemsize > 2 and self._stays_on_simplex("prediction"))

    def _losses_of_probabilities(self, s: Batch) -> Tensor:
        """As :meth:`losses_of`: of a distribution, cross entropy looks at one entry. The others are there for terms that ask for them."""
        if s.dp is None:
            return F.nll_loss(s.logp, s.target, ignore_index=self.ignore_index, reduction="none")
        given = s.labels[:, None]
        losses = -(s.p.gather(1, given) + s.dp.gather(1, given)).clamp(min=SMALLEST).log()[:, 0]
        return losses if s.complete else torch.where(s.valid, losses, 0.0)

    @property
    def only_tables(self) -> bool:
        """True if compensation is tables on logits and nothing else, none of them an optimizer's: their slope is that of the losses."""
        return bool(self._logit_tables) and all(table.update != "manual" for table in self._logit_tables)

    def _infer(self, s: Batch, name: str) -> None:
        s.slot = SLOTS[name]
        for term in self._in_order.get(name, ()):
            s.add(term(s))
        s.slot = None

    @property
    def reads_inputs(self) -> bool:
        """True if it looks at the inputs of the model."""
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
        r"""(B,) base losses :math:`l(S(u + \Delta u) + \Delta p,\; y + \Delta y)`; 0 where the target is ignored.

        Class weights multiply them if `weighted` is true. All that terms, gates, tables and records read is without weights.
        """
        u = u if du is None else u + du
        if dp is not None:
            # The logarithm of a distribution is a logit vector of it, so one base loss serves both sides of Eq. 5.
            q = u.to(torch.promote_types(u.dtype, torch.float32)).softmax(-1) + dp
            q = q if self._stays_on_simplex("prediction") else ONTO[self.onto](q)
            u = q.clamp(min=SMALLEST).log()
        if dy is not None:
            y = s.y + dy
            if not self._stays_on_simplex("label"):
                # Labels sit in corners of the simplex, where a projection has no slope. A table or an inner loop on them
                # takes the slope of the plane that the simplex lies in, as a projected gradient method does.
                y = y if self.binary else y - (dy.mean(-1, keepdim=True) - dy.mean(-1, keepdim=True).detach())
                y = y + ((y.clamp(0, 1) if self.binary else ONTO[self.onto](y)) - y).detach()
        else:
            y = s.labels if s.hard else s.y
        weight = None if self.weight is None or not weighted else self.weight.to(u.dtype)
        by_class = weight is not None and weighs_classes(s, dy)
        if self.base == "bce":
            losses = F.binary_cross_entropy_with_logits(u, y.to(u.dtype), reduction="none")[:, 0]
        elif self.base is None:
            losses = F.cross_entropy(u, y, weight=weight if by_class else None, reduction="none")
        else:
            assert callable(self.base)
            losses = self.base(u, y)
        losses = losses if weight is None or by_class else losses * sample_weights(s).to(losses.dtype)
        return losses if s.complete else torch.where(s.valid, losses, 0.0)

    def _stays_on_simplex(self, name: str) -> bool:
        """One term may vouch for itself; a sum of several may leave the simplex."""
        terms = self.terms_of(name)
        return len(terms) == 1 and getattr(terms[0], "on_simplex", False)

    def reduce(self, s: Batch, losses: Tensor) -> Tensor:
        """Losses (B,), class weights included, reduced as torch's cross entropy does: a weighted mean for class numbers, a mean for others."""
        return s.places.back(losses) if self.reduction == "none" else reduced(losses, self.divided_by(s))

    def divided_by(self, s: Batch) -> Tensor | int:
        """What a sum of losses is divided by."""
        return self.divisor(s) if self.reduction == "mean" else 1

    def divisor(self, s: Batch, *, weighted: bool = True) -> Tensor | int:
        """What a mean divides by: the number of samples that count, or the sum of their class weights; 1 if that is 0.

        The sum of no losses is 0, and so are its gradients; divided by 0 they would be NaN, and so would be the model.
        """
        if (not s.hard and not self.binary) or (s.complete and (s.ordinary or self.weight is None)):
            return max(1, len(s.target))
        if self.weight is None or self.binary or not weighted:
            return s.valid.sum().clamp(min=1)
        return total_weight(s)

    # --- what follows a step ----------------------------------------------------------------------------------

    def compile(self, *args: Any, **settings: Any) -> None:
        """As of every module: from here on, calls run a compiled graph.

        In each call such a graph asks whether anything has changed that it was made from. Functions of this package and of torch do not
        change, and are not asked for, unless `mode` or `options` say how to compile.
        """
        torch.compiler.assume_constant_result(find_statistics)
        Compensated._told_to_compile = True
        skipped = getattr(torch.compiler, "skip_guard_on_globals_unsafe", None)  # torch 2.4 has none
        if skipped is not None and not settings.keys() & {"mode", "options"}:
            settings["options"] = {"guard_filter_fn": skipped}
        super().compile(*args, **settings)

    def _tick(self, s: Batch, watching: list[Statistic]) -> None:
        self.step.add_(1)
        if not torch.compiler.is_compiling():
            for statistic in watching:
                if statistic.rolls:
                    self._warn_without_epochs(s.visits, statistic)
                    break
            if self._awaits_meta:
                self._warn_without_meta()
            if watching or self.keeps_rows:
                warn_of_copies()

    def _warn_without_epochs(self, batch: int, rolling: Statistic) -> None:
        self._seen += batch
        sizes = [m.num_samples for m in self.modules() if isinstance(m, Sample | Statistic) and m.num_samples]
        if sizes and self._seen > 1.5 * max(sizes) and self._seen - batch <= 1.5 * max(sizes):
            warnings.warn(
                f"{type(rolling).__name__} is renewed once an epoch, but criterion.end_epoch() has not been called "
                f"for {self._seen} samples of a set of {max(sizes)}. Call it after each epoch.",
                stacklevel=2,
            )

    def _warn_without_meta(self) -> None:
        self._unlearned += 1
        if self._unlearned == PATIENCE:
            warnings.warn(
                f"A table of this criterion is learned by meta steps, but {PATIENCE} training steps have passed without one, so it "
                "stays as it is. Call compensate.meta_step(criterion, model, batch, clean, lr=...) before each step.",
                stacklevel=2,
            )

    # --- time -------------------------------------------------------------------------------------------------

    def start(self, total_steps: int) -> Compensated:
        """Tells how many steps the training takes, for schedules over `progress`; returns the criterion."""
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
        """To be called after each epoch: statistics over an epoch roll over."""
        with torch.no_grad():
            for statistic in self.statistics():
                statistic.end_epoch()
        self.epoch += 1
        self._seen = 0

    # --- what it holds ----------------------------------------------------------------------------------------

    def tables(self) -> Iterator[Table]:
        """All tables, those inside terms included."""
        return (m for m in self.modules() if isinstance(m, Table))

    def statistics(self) -> Iterator[Statistic]:
        """All statistics, those inside terms included."""
        return iter(self._statistics())

    def _statistics(self) -> list[Statistic]:
        """In the order of `modules()`. This runs in every step: it walks again only where a module was replaced since."""
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
