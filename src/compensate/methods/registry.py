"""The one table of methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from compensate.equation import Compensated
from compensate.errors import InputError, nearest
from compensate.taxonomy import Taxonomy

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

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.build) or "").split("\n")[0]

    @property
    def sizes(self) -> list[str]:
        """The sizes that it takes."""
        return [name for name in inspect.signature(self.build).parameters if name in SIZES]

    def make(self, **arguments: Any) -> Compensated:
        """Builds it from a superset of the sizes it takes; other arguments go through as they are."""
        wanted = inspect.signature(self.build).parameters
        kept = {name: value for name, value in arguments.items() if name in wanted or name not in SIZES}
        return self.build(**{**self.example(arguments), **kept})


SIZES = ("num_samples", "num_classes", "class_counts", "feature_dim", "feature_shape")

METHODS: dict[str, Method] = {}
"""All methods by name, in the order of their definition."""


def method(
    target: str, direction: str, inference: str, granularity: str, *, equation: str, reference: str, **more: Any
) -> Callable[[Builder], Builder]:
    """Enters a function that builds a criterion into the table, under its own name."""

    def enter(build: Builder) -> Builder:
        name = build.__name__
        needs = frozenset(more.pop("needs", ()))
        taxonomy = Taxonomy(target, direction, inference, granularity)
        METHODS[name] = Method(name, build, taxonomy, equation, reference, needs, **more)
        return build

    return enter


def find(name: str) -> Method:
    """The row of a method; `-` in a name equals `_`.

    >>> find("logcomp").name
    'logcomp'
    """
    known = name.replace("-", "_").lower()
    if known not in METHODS:
        raise InputError(f'"{name}" is not a method; {nearest(known, METHODS)}')
    return METHODS[known]
