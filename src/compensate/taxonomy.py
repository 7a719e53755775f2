"""The four axes of the paper's taxonomy, and where a criterion lies on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import nn

from compensate.gates import Where

TARGETS = ("feature", "logit", "label", "prediction", "loss", "gradient", "view", "structure")
DIRECTIONS = ("positive", "negative", "mixed")
INFERENCES = ("prior", "tuning", "regularized", "meta", "adversarial", "mixed")
GRANULARITIES = ("sample", "category", "group", "corpus", "mixed")


class Taxonomy(NamedTuple):
    """Where a method lies: what it compensates, in which direction, who infers the value, who shares it.

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


def taxonomy_of(terms: Mapping[str, Iterable[Any]]) -> Taxonomy:
    """The taxonomy row of the terms under each target.

    A term says where it lies by the attributes `direction`, `inference` and `granularity`. For one that does not, the
    term that it gates or the parts that it holds speak; a bare formula is prior knowledge about a sample.
    """
    if not terms:
        return Taxonomy("none", "none", "none", "none")
    axes = [axis for many in terms.values() for term in many for axis in _axes(term)]
    directions = {direction for direction, _, _ in axes}
    return Taxonomy(
        "+".join(terms),
        directions.pop() if len(directions) == 1 else "mixed",
        _joined(inference for _, inference, _ in axes),
        _joined(granularity for _, _, granularity in axes),
    )


def _axes(term: Any) -> list[tuple[str, str, str]]:
    inference, granularity = getattr(term, "inference", None), getattr(term, "granularity", None)
    direction = getattr(term, "direction", "mixed")
    if inference or granularity:
        return [(direction, inference or "prior", granularity or "sample")]
    if isinstance(term, Where):
        return _axes(term.term)
    inside = [axis for child in term.children() for axis in _axes(child)] if isinstance(term, nn.Module) else []
    inside = inside or [(direction, "prior", "sample")]
    return inside if direction == "mixed" else [(direction, *rest) for _, *rest in inside]  # type: ignore[misc]


def _joined(names: Iterable[str]) -> str:
    return "+".join(dict.fromkeys(names))
