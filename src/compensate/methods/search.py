"""What is worth trying: the search space of a method, and that of the paper; columns of the table of methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

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
