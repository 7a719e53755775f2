"""What is worth trying: the search space of a method, and that of the paper; columns of the table of methods."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

from compensate.core.criterion import Compensated
from compensate.core.taxonomy import Taxonomy
from compensate.core.validation import Reduction, checked_reduction
from compensate.errors import InputError, nearest

Preset = Literal["default", "paper", "paper-per-sample"]
PRESETS: tuple[Preset, ...] = ("default", "paper", "paper-per-sample")
PaperData = Literal["image", "imdb", "sst2"]
"""The kinds of data for which the paper has search spaces: Appendices B (images) and C (texts)."""

Settings = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[float, ...]


@dataclass(frozen=True)
class Real:
    """A number between two others; `log` spreads the trials evenly over orders of magnitude."""

    low: float
    high: float
    log: bool = False


Range = Choice | Real


@dataclass(frozen=True)
class Space:
    """The hyper-parameters of a method that are searched, and those that are fixed meanwhile.

    Attributes:
        ranges: by name.
        fixed: other hyper-parameters.
        per_batch: names of those that the preset "paper" divides by the size of a batch. The paper does not say whether the
            learning rate of the compensation acts on the mean over a batch or on each sample; "paper" takes it for the
            former, "paper-per-sample" for the latter.
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
    """Settings that go through several lists at the same time, the same for images and texts.

    >>> each(lam=(0.1, 0.3), lr=(1.0, 2.0))["text"]
    [{'lam': 0.1, 'lr': 1.0}, {'lam': 0.3, 'lr': 2.0}]
    """
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    return {"image": rows, "text": rows}


Need = Literal["index", "model", "features", "clean", "epochs", "steps", "group", "teacher"]
"""What a method asks of the training loop beyond logits and targets: the sample's index; the model itself
(`criterion.evaluate`); a model with `features` and `head`; clean data for `meta_step`; `end_epoch()`; `start(total_steps)`;
the sample's group; another model's predictions."""

Builder = TypeVar("Builder", bound=Callable[..., Compensated])


@dataclass(frozen=True)
class Method:
    """A row of the table: how to build a method, where it lies in the taxonomy, and what to know about it."""

    name: str
    build: Callable[..., Compensated]
    taxonomy: Taxonomy
    equation: str
    """The number of its equation in the paper, or of the definition in its reference."""
    reference: str
    needs: frozenset[Need] = frozenset()
    limits: str = ""
    """When not to use it, and what its limit cases are."""
    kind: Literal["compensation", "weighting", "baseline"] = "compensation"
    extra_outputs: int = 0
    """Outputs that the model needs beyond the classes."""
    example: Callable[[Mapping[str, Any]], Mapping[str, Any]] = field(default=lambda sizes: {})
    """From the sizes, the arguments beyond them that a generic caller must give."""
    search: Space | None = None
    """The hyper-parameters worth searching, wide enough to hold good values for small and large data sets."""
    paper_search: Mapping[PaperData, Space] = field(default_factory=dict)
    """The paper's search spaces, by kind of data: Yao and Wu, Compensation Learning, 2021, Appendices B and C."""
    candidates: Mapping[str, Settings] = field(default_factory=dict)
    """A few settings to choose among, by "image" and "text", the first the usual one; the same number for every method."""

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.build) or "").split("\n")[0]

    @property
    def sizes(self) -> list[str]:
        """The sizes that it takes."""
        return [name for name in inspect.signature(self.build).parameters if name in SIZES]

    @property
    def teacher(self) -> str:
        """The name of the argument that takes another model's predictions: logits for `teacher`, distributions for `guess`."""
        return next((name for name in ("teacher", "guess") if name in inspect.signature(self.build).parameters), "")

    def make(self, **arguments: Any) -> Compensated:
        """Builds it, from hyper-parameters and from all that a caller knows of data and training (`CONTEXT`).

        Of the latter it takes what it wants; an unknown hyper-parameter is an error.

        >>> find("label_smoothing").make(num_samples=9, num_classes=3, lam=0.1).record is None
        False
        >>> find("label_smoothing").make(num_classes=3, lm=0.1)
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
        """What is searched under a preset, for a kind of data."""
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
"""What a caller may know of data, model and training; a method takes what it wants of it."""

METHODS: dict[str, Method] = {}
"""All methods by name, in the order of their definition."""


def method(
    target: str, direction: str, inference: str, granularity: str, *, equation: str, reference: str, **more: Any
) -> Callable[[Builder], Builder]:
    """Enters a function that builds a criterion into the table, under its own name."""

    def enter(function: Builder) -> Builder:
        name, build = function.__name__, _with_known_arguments(function)
        needs = frozenset(more.pop("needs", ()))
        taxonomy = Taxonomy(target, direction, inference, granularity)
        METHODS[name] = Method(name, build, taxonomy, equation, reference, needs, **more)
        return build

    return enter


def _with_known_arguments(build: Builder) -> Builder:
    """The same function, which also takes `OF_EVERY_LOSS`; a misspelt argument and a text in place of a number are refused."""
    signature = inspect.signature(build)
    known = {**signature.parameters, **{option.name: option for option in OF_EVERY_LOSS}}

    @functools.wraps(build)
    def checked(*, ignore_index: int = -100, reduction: Reduction = "mean", **arguments: Any) -> Compensated:
        for name in arguments:
            if name == "base" and name not in known:
                raise InputError(_without_binary_form(METHODS[build.__name__]))
            if name not in known:
                raise InputError(f'{build.__name__} has no argument "{name}"; {nearest(name, known)}')
            _check_number(known[name], arguments[name])
        _check_number(known["ignore_index"], ignore_index)
        criterion = build(**arguments)
        criterion.ignore_index, criterion.reduction = ignore_index, checked_reduction(reduction)
        return criterion

    checked.__signature__ = signature.replace(parameters=[*known.values()])  # type: ignore[attr-defined]
    checked.__doc__ = _WEIGHT.sub(
        r"\g<0>\1ignore_index, reduction: as in :class:`torch.nn.CrossEntropyLoss`.\n", build.__doc__ or ""
    )
    return cast(Builder, checked)


OF_EVERY_LOSS = (
    inspect.Parameter("ignore_index", inspect.Parameter.KEYWORD_ONLY, default=-100, annotation="int"),
    inspect.Parameter(
        "reduction", inspect.Parameter.KEYWORD_ONLY, default="mean", annotation="Literal['mean', 'sum', 'none']"
    ),
)
"""Arguments of torch's losses that every method takes."""

_WEIGHT = re.compile(r"(?m)^( +)weight: .*\n(?:\1 +.*\n)*")
"""The lines of a docstring about class weights."""


def _check_number(parameter: inspect.Parameter, value: Any) -> None:
    """Refuses a text where a number, or a schedule of numbers, is expected, and a fraction in place of a whole number."""
    kinds = {kind.strip() for kind in str(parameter.annotation).split("|")} - {"None"}
    if kinds <= {"int", "float", "Value"} and isinstance(value, str):
        example = parameter.default if isinstance(parameter.default, int | float) else 10 if kinds == {"int"} else 0.5
        raise InputError(f'{parameter.name} is "{value}"; expected a number, such as {example}.')
    if kinds == {"int"} and isinstance(value, float):
        raise InputError(
            f"{parameter.name} is {value}; expected a whole number, such as {round(value) if math.isfinite(value) else 10}."
        )


def _without_binary_form(row: Method) -> str:
    able = [other.name for other in METHODS.values() if "base" in inspect.signature(other.build).parameters]
    why = "it reads one distribution over the classes, and several labels a sample have none"
    if {*row.taxonomy.target.split("+")} & {"feature", "view", "structure"}:
        why = 'its compensation of inputs is to be composed from terms there, such as Compensated(feature=Adversarial(...), base="bce")'
    return f'{row.name} has no base="bce": {why}. Methods that have it: {", ".join(able)}.'


def find(name: str) -> Method:
    """The row of a method; `-` in a name equals `_`. Four words with dots between them are a cell of the taxonomy.

    >>> find("logcomp").name, find("label.positive.meta.sample").taxonomy.target
    ('logcomp', 'label')
    """
    known = name.replace("-", "_").lower()
    if "." in known:
        from compensate.methods.composition import cell_method

        return cell_method(known)
    if known not in METHODS:
        raise InputError(f'"{name}" is not a method; {nearest(known, METHODS)}')
    return METHODS[known]
