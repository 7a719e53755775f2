"""The table of methods: a row for each, the decorator that registers it, and its search spaces."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch.nn.functional as F
from torch import nn

from compensate.core.criterion import Compensated
from compensate.core.statistics import Evidence, Score, labels_of
from compensate.core.taxonomy import Taxonomy
from compensate.core.validation import checked_reduction, checked_weights
from compensate.errors import InputError, nearest

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
    """The searched hyper-parameters of a method, and the values of others during the search.

    Attributes:
        ranges: by name.
        fixed: other hyper-parameters.
        per_batch: names that the preset "paper" divides by the batch size. The paper does not say whether the learning rate
            of the compensation acts on the mean over a batch ("paper") or on each sample ("paper-per-sample").
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
"""Requirements of a method beyond logits and targets: the index of each sample; the model itself (`criterion.evaluate`); a
model with `features` and `head`; clean data for `meta_step`; `end_epoch()`; `start(total_steps)`; the group of each sample;
the predictions of another model."""


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
    def summary(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.build) or "").split("\n")[0]

    @property
    def sizes(self) -> list[str]:
        """The sizes that it takes."""
        return [name for name in inspect.signature(self.build).parameters if name in SIZES]

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

_SHARED = {
    name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    for name, default, annotation in (
        ("weight", None, "Weights | None"),
        ("ignore_index", -100, "int"),
        ("reduction", "mean", "Literal['mean', 'sum', 'none']"),
    )
}
_NUM_SAMPLES = inspect.Parameter(
    "num_samples", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="int | None"
)  # fmt: skip


def method(
    target: str, direction: str, inference: str, granularity: str, *, equation: str, reference: str,
    record: Score | None = None, needs: Iterable[Need] = (), **more: Any,
) -> Callable[[Callable[..., Compensated]], Callable[..., Compensated]]:  # fmt: skip
    """Registers a function that builds a criterion, under its own name.

    The registered function also takes `weight`, `ignore_index` and `reduction`, and checks its arguments.

    Args:
        target, direction, inference, granularity: the place in the taxonomy.
        equation, reference, needs, more: the fields of :class:`Method`.
        record: the score of suspects. If given, the function also takes `num_samples`, and the criterion records each sample.
    """

    def register(function: Callable[..., Compensated]) -> Callable[..., Compensated]:
        place = Taxonomy(target, direction, inference, granularity)
        build = _with_shared_arguments(function, record, more.get("extra_outputs", 0))
        METHODS[function.__name__] = Method(
            function.__name__, build, place, equation, reference, frozenset(needs), **more
        )
        return build

    return register


def _with_shared_arguments(
    build: Callable[..., Compensated], record: Score | None, extra_outputs: int
) -> Callable[..., Compensated]:
    signature = inspect.signature(build)
    own = signature.parameters
    known = {
        **({"num_samples": _NUM_SAMPLES} if record else {}),
        **own,
        **{k: v for k, v in _SHARED.items() if k not in own},
    }

    @functools.wraps(build)
    def checked(**arguments: Any) -> Compensated:
        for name, value in arguments.items():
            if name == "base" and name not in known:
                raise InputError(_without_binary_form(METHODS[build.__name__]))
            if name not in known:
                raise InputError(f'{build.__name__} has no argument "{name}"; {nearest(name, known)}')
            _check_number(known[name], value)
        given = {name: parameter.default for name, parameter in known.items()} | arguments
        size, base = given.get("num_samples"), given.get("base")
        labels = labels_of(base, size, given.get("num_classes")) if record else 1
        criterion = build(**{name: value for name, value in arguments.items() if name in own})
        criterion.ignore_index, criterion.reduction = given["ignore_index"], checked_reduction(given["reduction"])
        if "weight" not in own and (weight := checked_weights(given["weight"])) is not None:
            criterion.weight = F.pad(weight, (0, extra_outputs), value=1.0)
        if record and size is not None and criterion.record is None:
            criterion.record = Evidence(size, score=record, num_labels=labels)
        return criterion

    checked.__signature__ = signature.replace(parameters=[*known.values()])  # type: ignore[attr-defined]
    checked.__doc__ = _with_descriptions(inspect.getdoc(build) or "", known, optional_record=record is not None)
    return checked


def _with_descriptions(text: str, parameters: Mapping[str, inspect.Parameter], *, optional_record: bool) -> str:
    """A docstring whose Args section also describes the shared arguments."""
    head, _, rest = text.partition("\n\nArgs:\n")
    if rest:
        args, _, rest = rest.partition("\n\n")
    else:
        head, _, rest = text.partition("\n\n>>> ")
        args, rest = "", ">>> " + rest if rest else ""
    described = {name.strip() for names in re.findall(r"(?m)^    (\w[\w, ]*):", args) for name in names.split(",")}
    sizes: list[str] = []
    others: list[str] = []
    for name, parameter in parameters.items():
        if name in DESCRIPTIONS and name not in described:
            text = DESCRIPTIONS[name]
            if name == "num_samples" and optional_record and parameter.default is None:
                text = "the size of the training set; if given, the criterion records each sample."
            (sizes if name in SIZES else others).append(f"    {name}: {text}")
    shared = ", ".join(name for name in _SHARED if name not in described)
    others.append(f"    {shared}: as in :class:`torch.nn.CrossEntropyLoss`.")
    args = "\n".join([*sizes, *filter(None, [args]), *others])
    return f"{head}\n\nArgs:\n{args}" + (f"\n\n{rest}" if rest else "")


def _check_number(parameter: inspect.Parameter, value: Any) -> None:
    """Raises for a text instead of a number or a schedule, and for a fraction instead of a whole number."""
    kinds = {kind.strip() for kind in str(parameter.annotation).split("|")} - {"None"}
    if kinds <= {"int", "float", "Value"} and isinstance(value, str):
        example = parameter.default if isinstance(parameter.default, int | float) else 10 if kinds == {"int"} else 0.5
        raise InputError(f'{parameter.name} is "{value}"; expected a number, such as {example}.')
    if kinds == {"int"} and isinstance(value, float):
        example = round(value) if math.isfinite(value) else 10
        raise InputError(f"{parameter.name} is {value}; expected a whole number, such as {example}.")


def _without_binary_form(row: Method) -> str:
    able = [other.name for other in METHODS.values() if "base" in inspect.signature(other.build).parameters]
    why = "it reads one distribution over the classes, and samples with several labels have none"
    if {*row.taxonomy.target.split("+")} & {"feature", "view", "structure"}:
        why = 'its terms for inputs must be composed, such as Compensated(feature=Adversarial(...), base="bce")'
    return f'{row.name} has no base="bce": {why}. Methods that have it: {", ".join(able)}.'


def one_of(name: str, value: Any, *options: Any) -> None:
    """Raises unless an argument has one of these values.

    >>> one_of("per", "class", "sample", "category")
    Traceback (most recent call last):
    compensate.errors.InputError: per is "class"; expected "sample" or "category".
    """
    if value not in options:
        quoted = [f'"{option}"' for option in options if option is not None]
        listed = " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
        raise InputError(f'{name} is "{value}"; expected {listed}.')


class Block(nn.Module):
    """A building block of methods; its repr shows its numbers and options."""

    def extra_repr(self) -> str:
        hidden = ("training", "direction", "inference", "granularity")
        shown = {name: value for name, value in vars(self).items() if name[0] != "_" and name not in hidden}
        return ", ".join(
            f"{name}={value:g}" if isinstance(value, int | float) else f"{name}={value}"
            for name, value in shown.items()
            if isinstance(value, int | float | str)
        )
