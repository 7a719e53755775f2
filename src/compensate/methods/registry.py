"""The table of methods: a row for each, the decorator that registers it, and its search spaces."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, final, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from compensate.core.batch import Batch, at
from compensate.core.criterion import Compensated, Taxonomy
from compensate.core.statistics import Evidence, Score, labels_of
from compensate.core.validation import Reduction, checked_weights, checked_whole
from compensate.errors import InputError, nearest, one_of
from compensate.terms.adversarial import Adversarial

Preset = Literal["default", "paper", "paper-per-sample"]
PRESETS: tuple[Preset, ...] = ("default", "paper", "paper-per-sample")
PaperData = Literal["image", "imdb", "sst2"]
"""The kinds of data for which the paper has search spaces: Appendices B (images) and C (texts)."""

Settings = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Choice:
    """A finite set of values."""

    values: tuple[float, ...]


@dataclass(frozen=True)
class Real:
    """An interval; `log` spaces trials evenly on a logarithmic scale."""

    low: float
    high: float
    log: bool = False


Range = Choice | Real


@dataclass(frozen=True)
class Space:
    """The searched hyper-parameters of a method, the values of others, and the names that the preset "paper" divides by the batch size.

    The paper does not say whether the learning rate of the compensation acts on the mean over a batch ("paper") or on each sample
    ("paper-per-sample").
    """

    ranges: Mapping[str, Range]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    per_batch: tuple[str, ...] = ()

    def hyper(self, values: Mapping[str, float], preset: Preset, batch_size: int) -> dict[str, Any]:
        """The hyper-parameters to train with, from values in the ranges.

        >>> space = Space({"lr": Choice((1.5, 3))}, {"update": "subgradient"}, per_batch=("lr",))
        >>> space.hyper({"lr": 3.0}, "paper", 128)
        {'update': 'subgradient', 'lr': 0.0234375}
        """
        divided = {k: v / batch_size for k, v in values.items() if preset == "paper" and k in self.per_batch}
        return {**self.fixed, **values, **divided}


def each(**values: Sequence[Any]) -> dict[str, Settings]:
    """Settings that step through several lists together, the same for images and texts.

    >>> each(lam=(0.1, 0.3), lr=(1.0, 2.0))["text"]
    [{'lam': 0.1, 'lr': 1.0}, {'lam': 0.3, 'lr': 2.0}]
    """
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    return {"image": rows, "text": rows}


Need = Literal["index", "model", "features", "clean", "epochs", "steps", "group", "teacher"]
"""Requirements of a method beyond logits and targets; `compensate.cli.methods` explains them."""


@dataclass(frozen=True)
class Method:
    """A row of the table: how to build a method, its place in the taxonomy, and its documentation."""

    name: str
    build: Callable[..., Compensated]
    taxonomy: Taxonomy
    equation: str
    """The number of its equation in the paper, or of the definition in its reference."""
    reference: str
    needs: frozenset[Need] = frozenset()
    limits: str = ""
    """When not to use it, and its limit cases."""
    kind: Literal["compensation", "weighting", "baseline"] = "compensation"
    extra_outputs: int = 0
    """Outputs that the model needs in addition to the classes."""
    example: Callable[[Mapping[str, Any]], Mapping[str, Any]] = field(default=lambda sizes: {})
    """Required arguments other than sizes, as a function of the sizes."""
    search: Space | None = None
    """The hyper-parameters worth searching, with ranges for small and large data sets."""
    paper_search: Mapping[PaperData, Space] = field(default_factory=dict)
    """The paper's search spaces, by kind of data: Yao and Wu, Compensation Learning, 2021, Appendices B and C."""
    candidates: Mapping[str, Settings] = field(default_factory=dict)
    """A few settings to choose from, by "image" and "text", the default first; the same number for every method."""

    @property
    def teacher(self) -> str:
        """The argument for another model's predictions: `teacher` takes logits, `guess` distributions."""
        return next((name for name in ("teacher", "guess") if name in inspect.signature(self.build).parameters), "")

    def make(self, **arguments: Any) -> Compensated:
        """Builds the criterion from hyper-parameters and from facts about data and training (`CONTEXT`).

        Facts that the method does not use are ignored; an unknown hyper-parameter is an error.

        >>> METHODS["label_smoothing"].make(num_samples=9, num_classes=3, lam=0.1).record is None
        False
        >>> METHODS["label_smoothing"].make(num_classes=3, lm=0.1)
        Traceback (most recent call last):
        compensate.errors.InputError: label_smoothing has no hyper-parameter "lm"; did you mean "lam"?
        """
        wanted = inspect.signature(self.build).parameters
        self.check([name for name in arguments if name not in CONTEXT])
        kept = {name: value for name, value in arguments.items() if name in wanted}
        if "feature_dim" in wanted and kept.get("feature_dim") is None:
            raise InputError(
                f"{self.name} reads the features before the last layer: give the model the methods features(x) and head(z) "
                "with model(x) = head(features(x)), or wrap it in compensate.models.Staged."
            )
        return self.build(**{**self.example(arguments), **kept})

    def check(self, names: Iterable[str]) -> None:
        """Raises unless these are hyper-parameters of the method."""
        known = [name for name in inspect.signature(self.build).parameters if name not in SIZES]
        for name in names:
            if name not in known:
                raise InputError(f'{self.name} has no hyper-parameter "{name}"; {nearest(name, known)}')

    def space(self, preset: Preset, kind: PaperData) -> Space:
        """The search space of a preset for a kind of data."""
        if preset not in PRESETS:
            raise InputError(f'preset is "{preset}"; choose default, paper or paper-per-sample.')
        if preset == "default":
            if self.search is None:
                known = [row.name for row in METHODS.values() if row.search is not None]
                raise InputError(f"{self.name} has no hyper-parameter that is searched; {nearest(self.name, known)}")
            return self.search
        if kind not in self.paper_search:
            known = [row.name for row in METHODS.values() if row.paper_search]
            raise InputError(f"the paper gives no search space for {self.name}; it does for {', '.join(known)}.")
        return self.paper_search[kind]


SIZES = ("num_samples", "num_classes", "class_counts", "feature_dim", "feature_shape")
CONTEXT = (*SIZES, "batch_size", "bounds")
"""Facts about data, model and training that a caller may offer; a method takes the ones it uses."""

METHODS: dict[str, Method] = {}
"""All methods by name, in the order of their definition."""

DESCRIPTIONS = {
    "num_samples": "the size of the training set.",
    "num_classes": "the number of classes C.",
    "class_counts": "(C,) the number of training samples of each class.",
    "feature_dim": "the number of features D before the head of the model.",
    "feature_shape": "the shape of one input, or of the output of the model's `embed`.",
    "norm": 'the norm of the ball, "linf" or "l2".',
    "steps": "the number of steps of the inner loop.",
    "step_size": "the size of a step; 2.5 eps / steps if not given.",
    "random_start": "start the inner loop at a random point of the ball.",
    "bounds": "the smallest and largest value of an input, (0, 1) for images.",
    "detach": "treat the prediction as a constant in the gradient.",
    "base": '"bce" for several labels per sample.',
    "views": "the transformations :math:`T_k`; by default shifts, a blur and half the size along the last axis.",
}
"""Descriptions of arguments that several methods share; a docstring may give its own."""

_OPTIONAL = {
    "num_samples": "the size of the training set; if given, the criterion records each sample.",
    "num_classes": 'the number of classes, for a record with `base="bce"`.',
    "class_counts": '(C,) the number of training samples of each class, for `by="share"`.',
}
"""The same if an argument is optional."""

_SIZE = inspect.Parameter("num_samples", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="int | None")
_SHARED = {name: inspect.signature(Compensated).parameters[name] for name in ("weight", "ignore_index", "reduction")}


def method(
    target: str, direction: str, inference: str, granularity: str, *, equation: str, reference: str,
    record: Score | None = None, needs: Iterable[Need] = (), extra_outputs: int = 0, **more: Any,
) -> Callable[[Callable[..., Compensated]], Callable[..., Compensated]]:  # fmt: skip
    """Registers a function that builds a criterion, under its own name.

    The registered function also takes `weight`, `ignore_index` and `reduction`, and checks its arguments. Keyword arguments
    `**loop` of the function are the arguments of the inner loop, :class:`~compensate.terms.Adversarial`.

    Args:
        target, direction, inference, granularity: the place in the taxonomy.
        equation, reference, needs, extra_outputs, more: the fields of :class:`Method`.
        record: the score of suspects. If given, the function also takes `num_samples`, and the criterion records each sample.
    """

    def register(function: Callable[..., Compensated]) -> Callable[..., Compensated]:
        name, signature = function.__name__, inspect.signature(function)
        own = {parameter.name: parameter for parameter in signature.parameters.values() if parameter.name != "loop"}
        if "loop" in signature.parameters:
            inner = inspect.signature(Adversarial).parameters
            own |= {key: inner[key] for key in ("norm", "steps", "step_size", "random_start", "bounds")}
        known = ({_SIZE.name: _SIZE} if record else {}) | own
        known |= {key: parameter for key, parameter in _SHARED.items() if key not in own}

        @functools.wraps(function)
        def build(**arguments: Any) -> Compensated:
            least = {"num_samples": 1, "num_classes": 2 - (arguments.get("base") == "bce")}  # one label has one logit
            for key, value in arguments.items():
                if key == "base" and key not in known:
                    able = [row for row in METHODS if key in inspect.signature(METHODS[row].build).parameters]
                    why = "it reads one distribution over the classes, and samples with several labels have none"
                    if {*target.split("+")} & {"feature", "view", "structure"}:
                        why = 'its terms for inputs must be composed, such as Compensated(feature=Adversarial(...), base="bce")'
                    raise InputError(f'{name} has no base="bce": {why}. Methods that have it: {", ".join(able)}.')
                if key not in known:
                    raise InputError(f'{name} has no argument "{key}"; {nearest(key, known)}')
                if key == "base":
                    one_of("base", value, "bce", None)
                # A text is neither a number nor a schedule, and a fraction is not a whole number.
                default = known[key].default
                kinds = {kind.strip() for kind in str(known[key].annotation).split("|")} - {"None"}
                if kinds <= {"int", "float", "Value"} and isinstance(value, str):
                    usual = default if isinstance(default, int | float) else 10 if kinds == {"int"} else 0.5
                    raise InputError(f'{key} is "{value}"; expected a number, such as {usual}.')
                if kinds == {"int"} and (value is not None or default is not None):
                    arguments[key] = checked_whole(key, value, least.get(key))
            given = {key: parameter.default for key, parameter in known.items()} | arguments
            samples = given.get("num_samples")
            labels = labels_of(given.get("base"), samples, given.get("num_classes")) if record else 1
            criterion = function(**{key: value for key, value in arguments.items() if key in own})
            one_of("reduction", given["reduction"], *get_args(Reduction))
            criterion.ignore_index, criterion.reduction = given["ignore_index"], given["reduction"]
            if "weight" not in own and (weight := checked_weights(given["weight"])) is not None:
                criterion.weight = F.pad(weight, (0, extra_outputs), value=1.0)
            if record and samples is not None and criterion.record is None:
                criterion.record = Evidence(samples, score=record, num_labels=labels)
            return criterion

        build.__signature__ = signature.replace(parameters=[*known.values()])  # type: ignore[attr-defined]
        build.__doc__ = _with_descriptions(inspect.getdoc(function) or "", known)
        place = Taxonomy(target, direction, inference, granularity)
        documented = (equation, reference, frozenset(needs))
        METHODS[name] = Method(name, build, place, *documented, extra_outputs=extra_outputs, **more)
        return build

    return register


def _with_descriptions(text: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    """A docstring whose Args section also describes the shared arguments."""
    head, _, example = text.partition("\n\n>>> ")
    head, _, args = head.partition("\n\nArgs:\n")
    described = {name.strip() for names in re.findall(r"(?m)^    (\w[\w, ]*):", args) for name in names.split(",")}
    before: list[str] = []
    after = [args] if args else []
    for name, parameter in parameters.items():
        if name in DESCRIPTIONS and name not in described:
            described_by = DESCRIPTIONS if parameter.default is not None else DESCRIPTIONS | _OPTIONAL
            (before if name in SIZES else after).append(f"    {name}: {described_by[name]}")
    shared = ", ".join(name for name in _SHARED if name not in described)
    lines = [*before, *after, f"    {shared}: as in :class:`torch.nn.CrossEntropyLoss`."]
    return f"{head}\n\nArgs:\n" + "\n".join(lines) + f"\n\n>>> {example}"


class Block(nn.Module):
    """A building block of methods; its repr shows its numbers and options."""

    def extra_repr(self) -> str:
        hidden = ("training", "direction", "inference", "granularity", "adds", "on_simplex", "whole_batch", "binary")
        return ", ".join(
            f"{name}={value:g}" if isinstance(value, int | float) else f"{name}={value}"
            for name, value in vars(self).items()
            if name[0] != "_" and name not in hidden and isinstance(value, int | float | str)
        )


@final
class Formula(Block):
    """A term, or a value, from a function of the batch.

    Args:
        function: a function of the batch and of settings, at the top of a module, as terms are pickled.
        settings: the arguments of the function; a callable of the batch, such as a schedule or a statistic, is evaluated first. Other
            names are attributes of the term, such as its `direction`.
    """

    def __init__(self, function: Callable[..., Tensor], **settings: Any) -> None:
        super().__init__()
        _, *self.names = inspect.signature(function).parameters
        self.function = function
        for name, value in settings.items():
            if isinstance(value, Tensor):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, s: Batch) -> Tensor:
        return self.function(s, **{name: at(getattr(self, name), s) for name in self.names})

    def extra_repr(self) -> str:
        return ", ".join(filter(None, [self.function.__name__, super().extra_repr()]))
