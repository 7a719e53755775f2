"""Any cell of the taxonomy as a criterion: compose one from four words, or change one word of a published method.

Most cells contain no published method. They are built from tables and inner loops, which infer the compensation itself, and from
:class:`Along`, which moves in a given direction by an inferred *strength*.
"""

from __future__ import annotations

import inspect
from itertools import product
from typing import Any, Literal, final

import torch
from torch import Tensor

from compensate.core.batch import THROUGH, Batch, Value, at
from compensate.core.criterion import DIRECTIONS, GRANULARITIES, INFERENCES, TARGETS, Compensated, Taxonomy
from compensate.core.layout import rowwise
from compensate.core.proximal import L1, TINY, AtLeast, Ball, Between, row_norm
from compensate.core.statistics import Evidence
from compensate.core.tables import Category, Corpus, Fresh, Group, Sample, Table
from compensate.core.validation import checked_keys, checked_whole
from compensate.errors import InputError, nearest
from compensate.methods.registry import METHODS, Block, Formula, Method, Range, Real, Space
from compensate.terms.adversarial import Adversarial
from compensate.terms.gradients import Amplify
from compensate.terms.guesses import decided
from compensate.terms.prior import Slack
from compensate.terms.schedules import Top, Where, above, below
from compensate.terms.structure import Dissimilarity, Edges
from compensate.terms.views import DEFAULT, Views

Sign = Literal[1, -1]

CELL_SIZES = ("num_samples", "num_classes", "class_counts", "num_groups", "feature_shape", "num_edges", "views")
_NUMBERS = ("strength", "lam", "lr", "pro", "steps")

_DEFAULTS = {
    "feature": (0.1, 0.01, 1.0),  # the slope of the loss in a single entry of the input is small
    "logit": (0.5, 0.05, 1.0),
    "label": (0.5, 0.1, 1.0),
    "prediction": (0.05, 0.1, 0.02),  # the slope of the loss in a prediction is 1/p, and steps must be small
    "loss": (0.5, 0.1, 1.0),
    "gradient": (0.3, 0.1, 1.0),
    "view": (0.3, 0.01, 1.0),
    "structure": (0.5, 0.0001, 1.0),
}
"""The default strength, weight of the penalty and step of each target."""


@final
class Along(Block):
    r"""Moves each sample in the direction that lowers (sign -1) or raises (sign +1) its loss.

    .. math:: \Delta_i = \kappa_i\, d_i

    where :math:`\kappa_i \ge 0` is the strength and :math:`d_i` the direction, a constant in the gradient of the model:
    :math:`\mp(p_i - y_i)` for a logit or a gradient; from :math:`y_i` toward the likeliest or the least likely other class for a label;
    from :math:`p_i` toward the label or the least likely other class for a prediction; the unit gradient of the loss for a feature and
    for the weights of views; that gradient over its largest entry for edges; the smooth slack, subtracted or added, for a loss.
    """

    def __init__(
        self, sign: Sign, strength: Value, *, inference: str | None = None, granularity: str | None = None
    ) -> None:
        super().__init__()
        self.sign, self.strength = sign, strength
        self.direction = "positive" if sign < 0 else "negative"
        self.inference = str(inference or getattr(strength, "inference", "tuning"))
        self.granularity = str(granularity or getattr(strength, "granularity", "corpus"))

    def forward(self, s: Batch) -> Tensor:
        if s.slot == "dl":
            return -self.sign * Slack(lambda _: at(self.strength, s), temperature=1.0)(s)
        strength = torch.as_tensor(rowwise(at(self.strength, s), s.like))
        if s.slot in ("dy", "dp") or (s.slot == "dg" and self.sign < 0):
            strength = strength.clamp(0, 1)
        if s.slot in THROUGH:
            s.require_gradients()
            zero, current = torch.zeros_like(s.like, requires_grad=True), getattr(s, s.slot)
            with torch.enable_grad():
                losses = s.loss_at(**{s.slot: zero if current is None else current.detach() + zero})
                (grad,) = torch.autograd.grad((losses * s.active).sum(), zero)
            length = grad.abs().amax() if s.slot == "da" else row_norm(grad)
            step = self.sign * grad / length.clamp(min=TINY)
        elif s.slot in ("dg", "du"):
            step = self.sign * (s.gradient if s.slot == "dg" else s.p - s.y)
        else:
            others = s.p.masked_fill(s.y > 0, torch.inf)
            worst = decided(-others)
            if s.slot == "dp":
                step = (s.y if self.sign < 0 else worst) - s.p
            else:
                far = torch.where((others.amin(-1) < (s.p * s.y).sum(-1))[:, None], worst, s.y)
                step = (decided(s.p) if self.sign < 0 else far) - s.y
        return strength * step.detach()


def doubt(s: Batch, scale: float) -> Tensor:
    r"""(B,) the model's doubt in the given label, :math:`\kappa (1 - p_{i,y_i})`, a constant."""
    return scale * (1 - s.plain.softmax(-1).gather(1, s.labels[:, None])[:, 0])


THRESHOLD = 0.5
"""The threshold of cells that tune one, in the units of `beyond`: the default of :func:`~compensate.methods.gradient.gradient_clip`."""


def beyond(s: Batch, scale: float, threshold: float, measure: Tensor | None) -> Tensor:
    r"""(B,) the distance beyond a tuned threshold, :math:`\kappa \max(0, 1 - c / m_i)`, a constant.

    By default :math:`m_i` is the length of the gradient, :math:`\|p_i - y_i\|_2`; of edges, (E,), it is their dissimilarity.
    """
    m = row_norm(s.plain.softmax(-1) - s.y)[:, 0] if measure is None else measure
    return scale * (1 - threshold / m.clamp(min=TINY)).clamp(min=0)


def rarity(s: Batch, values: Tensor) -> Tensor:
    r"""(B,) the rarity of the given class, :math:`\kappa (1 - n_c / \max n)`: prior knowledge about categories."""
    checked_keys(s.labels, len(values), "the rarity of classes", "class", s.check)
    return values[s.labels]


def compose(
    *,
    target: str = "logit",
    direction: str = "positive",
    inference: str = "regularized",
    granularity: str = "sample",
    strength: float | None = None,
    lam: float | None = None,
    lr: float | None = None,
    pro: float = 50.0,
    steps: int = 3,
    **sizes: Any,
) -> Compensated:
    """Builds a criterion for a cell of the taxonomy.

    Args:
        target: feature, logit, label, prediction, loss, gradient, view or structure; several joined by a plus sign; "mixed" is
            logit+feature.
        direction: "positive" lowers losses, "negative" raises them, "mixed" lowers the losses of the `pro` percent of samples that
            fit worst and raises the others.
        inference: prior, tuning, regularized, meta or adversarial; "mixed" is regularized and prior.
        granularity: sample, category, group or corpus; several joined by a plus sign; "mixed" is sample+category.
        strength: the size of a tuned compensation, and the radius of bounds and balls; the default depends on the target.
        lam: the weight of the penalty; the default depends on the target.
        lr: the step of learned tables; the default depends on the target.
        pro: see `direction`.
        steps: the number of steps of the inner loop.
        sizes: `num_samples`, `num_classes`, `class_counts`, `num_groups`, `feature_shape`, `num_edges`, if the cell needs them, and
            optionally the `views` of an input. With `num_samples` the criterion records each sample, for `suspects`.

    >>> print(compose(target="logit", inference="regularized", num_samples=50, num_classes=3))
    mean_i [ l( S(f(x_i) + du_i), y_i ) + penalty_i ]
      du = Sample(50 x 3, L1(0.05), lr=1, prox)
      logit · positive · regularized · sample · holds 1.8 kB
    """
    known = (*Taxonomy._fields, *_NUMBERS, *CELL_SIZES)
    for name in sizes:
        if name not in CELL_SIZES:
            raise InputError(f'compose takes no argument "{name}"; {nearest(name, known)}')
        if name.startswith("num_") and sizes[name] is not None:
            sizes[name] = checked_whole(name, sizes[name], 2 if name == "num_classes" else 1)
    check_cell(Taxonomy(target, direction, inference, granularity))
    targets = ("logit", "feature") if target == "mixed" else tuple(target.split("+"))
    levels = ("sample", "category") if granularity == "mixed" else granularity.split("+")
    ways = ("regularized", "prior") if inference == "mixed" else (inference,)
    terms: dict[str, Any] = {}
    for t in targets:
        numbers = zip((strength, lam, lr), _DEFAULTS[t], strict=True)
        size, penalty, step = (default if given is None else given for given, default in numbers)
        cell = _Terms(t, size, penalty, step, steps, sizes)
        made: list[Any] = []
        for way, level in product(ways, levels):
            if direction == "mixed" and way == "meta" and t != "loss":
                made.append(cell.table(level, cell.shape, update="meta"))  # clean data decide the direction
            elif direction == "mixed":
                tau = Top(pro)
                made += [Where(above(tau), cell.term(-1, way, level)), Where(below(tau), cell.term(1, way, level))]
            else:
                made.append(cell.term(-1 if direction == "positive" else 1, way, level))
        terms[t] = tuple(made)
    views = Views(*(sizes.get("views") or DEFAULT)) if "view" in targets else None
    samples = sizes.get("num_samples")
    return Compensated(**terms, views=views, record=None if samples is None else Evidence(samples, score="margin"))


def find(name: str) -> Method:
    """The row of a method; `-` in a name equals `_`. Four words joined by dots are a cell of the taxonomy.

    >>> find("logcomp").name, find("label.positive.meta.sample").taxonomy.target
    ('logcomp', 'label')
    """
    known = name.replace("-", "_").lower()
    if "." in known:
        return cell_method(known)
    if known not in METHODS:
        raise InputError(f'"{name}" is not a method; {nearest(known, METHODS)}')
    return METHODS[known]


def swap(method: str, /, **changes: Any) -> Compensated:
    """A neighbor of a published method: the criterion whose place in the taxonomy differs in the given axes.

    Args:
        method: a name in `METHODS`.
        changes: axes (`target`, `direction`, `inference`, `granularity`) and other arguments of :func:`compose`.

    >>> print(swap("logcomp", inference="meta", num_samples=50, num_classes=3).taxonomy)
    logit · positive · meta · sample
    """
    row = find(method)
    if row.kind != "compensation":
        raise InputError(f"{row.name} is not compensation ({row.kind}); it has no place in the taxonomy to move from.")
    place = row.taxonomy._asdict()
    if "+" in row.taxonomy.inference:  # joined ways of inference, such as prior+meta, are the paper's mixed
        place["inference"] = "mixed"
    return compose(**{**place, **changes})


def check_cell(cell: Taxonomy) -> None:
    """Raises unless these are words of the taxonomy and the cell can run."""
    for name, value, known in (
        *(("target", t, (*TARGETS, "mixed")) for t in cell.target.split("+")),
        ("direction", cell.direction, DIRECTIONS),
        ("inference", cell.inference, INFERENCES),
        *(("granularity", g, GRANULARITIES) for g in cell.granularity.split("+")),
    ):
        if value not in known:
            raise InputError(f'{name} is "{value}"; {nearest(value, known)}')
    reason = why_not(cell)
    if reason:
        raise InputError(f"{cell}: {reason}")


def why_not(cell: Taxonomy) -> str | None:
    """The reason why a cell cannot run, in one sentence, or None if it runs."""
    if "loss" in cell.target and cell.inference == "adversarial":
        return "the worst bounded addition to a loss is its bound, a constant, and a constant has no gradient."
    targets, levels = {*cell.target.split("+")}, {*cell.granularity.split("+")}
    if "gradient" in targets and cell.inference in ("regularized", "mixed"):
        return (
            "the value of a loss does not depend on what is added to its gradient, and a penalized step has nothing to "
            "descend; let prior knowledge, clean data or an inner loop infer it."
        )
    if "structure" in targets and levels - {"sample", "corpus"}:
        return "an edge joins two samples, whose classes may differ; give each edge its own change, or all the same."
    if "structure" in targets and cell.direction == "mixed" and cell.inference != "meta":
        return (
            "an edge serves samples that fit well and samples that fit badly, and cannot lower the losses of some and raise "
            "those of others; choose one direction, or let clean data choose it."
        )
    return None


def cell_method(name: str) -> Method:
    """A cell of the taxonomy as a row that can be trained, tuned and compared, from its four words joined by dots.

    >>> row = cell_method("logit.positive.regularized.sample")
    >>> print(row.make(num_samples=50, num_classes=3, lam=0.1).taxonomy, sorted(row.search.ranges))
    logit · positive · regularized · sample ['lam', 'lr']
    """
    words = name.split(".")
    if len(words) != 4:
        raise InputError(f'"{name}" is not a cell; expected target.direction.inference.granularity.')
    place = Taxonomy(*words)
    check_cell(place)

    def build(**settings: Any) -> Compensated:
        return compose(**place._asdict(), **settings)

    numbers = [p for p in inspect.signature(compose).parameters.values() if p.name in _NUMBERS]
    sizes = ("num_samples", "num_classes", "class_counts", "feature_shape")
    parameters = [*(inspect.Parameter(size, inspect.Parameter.KEYWORD_ONLY, default=None) for size in sizes), *numbers]
    build.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    needs = {"index"} | ({"clean"} if "meta" in place.inference else set())
    needs |= {"model"} if {"feature", "view"} & {*place.target.split("+")} else set()
    # The search covers an order of magnitude around the default of each number that the cell reads.
    size, weight, step = _DEFAULTS[place.target.split("+")[0]]
    ranges: dict[str, Range] = {}
    if place.inference in ("prior", "tuning", "adversarial", "mixed") or place.direction != "positive":
        ranges["strength"] = Real(size / 5, 1.0 if place.target in ("label", "prediction") else 5 * size, log=True)
    if place.inference in ("regularized", "mixed"):
        ranges["lam"] = Real(weight / 10, 10 * weight, log=True)
    if place.inference in ("regularized", "mixed", "meta"):
        ranges["lr"] = Real(step / 10, 10 * step, log=True)
    if place.direction == "mixed":
        ranges["pro"] = Real(20.0, 60.0)
    documented = ("composed", "a cell of the taxonomy", frozenset(needs))
    return Method(name, build, place, *documented, search=Space(ranges))  # type: ignore[arg-type]


class _Terms:
    """Builds the terms of a cell for one target."""

    def __init__(self, target: str, strength: float, lam: float, lr: float, steps: int, sizes: dict[str, Any]) -> None:
        self.target, self.strength, self.lam, self.lr, self.steps, self.sizes = target, strength, lam, lr, steps, sizes

    def term(self, sign: Sign, inference: str, level: str) -> Any:
        """The term of one sign, one way of inference and one level."""
        target, strength = self.target, self.strength
        if inference == "adversarial" and target == "gradient":
            return Amplify(strength, sign=sign, per=level)  # type: ignore[arg-type]
        if inference == "adversarial":
            per = Fresh() if level == "sample" else self.table(level, self.shape)
            # Shorter steps for edges: one number for all of them would oscillate around its optimum.
            size = strength / (4 * self.steps) if target == "structure" else None
            return Adversarial(strength, sign=sign, per=per, steps=self.steps, step_size=size, random_start=False)
        if inference == "regularized":
            settings: dict[str, Any] = {"penalty": L1(self.lam), "sign": sign}
            if target == "loss":
                return Along(sign, self.table(level, (), **settings, bound=Between(0.0, strength)))
            bound = Ball(strength, "linf") if sign > 0 or target in ("view", "structure") else None
            return self.table(level, self.shape, **settings, bound=bound)
        if inference == "meta":
            return Along(sign, self.table(level, (), update="meta", bound=AtLeast(0.0), init=strength / 10))
        value: Value = strength
        if inference == "tuning" and level == "sample":
            measure = Dissimilarity() if target == "structure" else None
            value = Formula(beyond, scale=strength, threshold=THRESHOLD, measure=measure)
        elif level == "sample":
            value = Dissimilarity(strength) if target == "structure" else Formula(doubt, scale=strength)
        elif inference == "prior" and level != "corpus":
            counts = torch.as_tensor(self.size("class_counts"), dtype=torch.get_default_dtype())
            value = Formula(rarity, values=strength * (1 - counts / counts.max()))
        return Along(sign, value, inference=inference, granularity=level)

    def table(self, level: str, shape: tuple[int, ...], **settings: Any) -> Table:
        """A table of a level with rows of a shape."""
        settings = {"lr": self.lr, **settings}
        if self.target == "structure":
            return Edges(self.size("num_edges"), shared=level == "corpus", **settings)
        if level == "corpus":
            return Corpus(*shape, **settings)
        kinds: dict[str, tuple[Any, str]] = {"sample": (Sample, "num_samples"), "category": (Category, "num_classes")}
        kind, rows = kinds.get(level, (Group, "num_groups"))
        return kind(self.size(rows), *shape, **settings)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a row of the target."""
        if self.target == "feature":
            return tuple(self.size("feature_shape"))
        if self.target == "view":
            return (len(self.sizes.get("views") or DEFAULT),)
        return () if self.target in ("loss", "structure") else (self.size("num_classes"),)

    def size(self, name: str) -> Any:
        """A size, which must have been given."""
        if self.sizes.get(name) is None:
            raise InputError(f"this cell of the taxonomy needs {name}=...; pass it to compose or swap.")
        return self.sizes[name]
