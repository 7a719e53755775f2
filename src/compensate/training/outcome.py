"""What a finished run gives."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from compensate.data import Data
from compensate.equation import Compensated
from compensate.training.config import Config
from compensate.training.preparation import Prepared


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run.

    Attributes:
        config: with every open value filled in.
        history: a row of metrics for each epoch.
        best: the row with the highest validation accuracy; without a validation part, the highest test accuracy.
        selected_on: "validation" or "test", what `best` was chosen by.
        model, criterion: as the last epoch left them.
        prepared: the data.
        seconds: the time it took.

    >>> from compensate.training import fit
    >>> result = fit(Config(data="digits", epochs=1))
    >>> result.selected_on, len(result.history), result.best is result.history[0]
    ('validation', 1, True)
    """

    config: Config
    history: list[dict[str, float]]
    best: dict[str, float]
    selected_on: str
    model: nn.Module
    criterion: Compensated
    prepared: Prepared
    seconds: float

    @property
    def last(self) -> dict[str, float]:
        """The metrics of the last epoch."""
        return self.history[-1]


def best_of(history: list[dict[str, float]]) -> tuple[str, dict[str, float]]:
    """What the best epoch is chosen by, and its row."""
    name = next((n for n in ("val", "test") if f"{n}_accuracy" in history[0]), "train")
    best = max(history, key=lambda row: row[f"{name}_accuracy"])  # the first of equals
    return {"val": "validation"}.get(name, name), best


def parts(prepared: Prepared) -> dict[str, Data]:
    """The parts of the data that there are, by name."""
    named = {name: getattr(prepared, name) for name in ("train", "clean", "validation", "test")}
    return {name: part for name, part in named.items() if part is not None}
