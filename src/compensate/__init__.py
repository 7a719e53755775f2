"""Compensation learning: train on data you cannot fully trust.

Instead of multiplying a sample's loss by a weight, add a term to its feature, logit, label, prediction or loss.
The drop-in form changes one line of a training loop::

    criterion = compensate.methods.logcomp(num_samples=len(train), num_classes=10)
    loss = criterion(model(x), target, index)
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from compensate._version import __version__
from compensate.errors import InputError

if TYPE_CHECKING:
    from compensate import methods
    from compensate.composition import compose, swap
    from compensate.equation import Compensated
    from compensate.gates import Where, above, below
    from compensate.granularity import Category, Corpus, Fresh, Group, Sample
    from compensate.inference.adversarial import Adversarial, Pull
    from compensate.inference.meta import meta_step
    from compensate.inference.prior import Slack, Toward, prediction, uniform
    from compensate.inference.regularised import L1, L2, AtLeast, Ball, GroupL2
    from compensate.inference.statistics import ClassMean, Evidence, Statistic
    from compensate.inference.tuning import Ramp, StepSchedule, Top
    from compensate.methods import METHODS
    from compensate.state import State

__all__ = [
    "L1",
    "L2",
    "METHODS",
    "Adversarial",
    "AtLeast",
    "Ball",
    "Category",
    "ClassMean",
    "Compensated",
    "Corpus",
    "Evidence",
    "Fresh",
    "Group",
    "GroupL2",
    "InputError",
    "Pull",
    "Ramp",
    "Sample",
    "Slack",
    "State",
    "Statistic",
    "StepSchedule",
    "Top",
    "Toward",
    "Where",
    "__version__",
    "above",
    "below",
    "compose",
    "meta_step",
    "methods",
    "prediction",
    "swap",
    "uniform",
]


_PACKAGES = ("auditing", "data", "estimators", "experiments", "integrations", "methods", "models", "training")

_HOMES = {
    "Adversarial": "inference.adversarial",
    "AtLeast": "inference.regularised",
    "Ball": "inference.regularised",
    "Category": "granularity",
    "ClassMean": "inference.statistics",
    "Compensated": "equation",
    "Corpus": "granularity",
    "Evidence": "inference.statistics",
    "Fresh": "granularity",
    "Group": "granularity",
    "GroupL2": "inference.regularised",
    "L1": "inference.regularised",
    "L2": "inference.regularised",
    "METHODS": "methods",
    "Pull": "inference.adversarial",
    "Ramp": "inference.tuning",
    "Sample": "granularity",
    "Slack": "inference.prior",
    "State": "state",
    "Statistic": "inference.statistics",
    "StepSchedule": "inference.tuning",
    "Top": "inference.tuning",
    "Toward": "inference.prior",
    "Where": "gates",
    "above": "gates",
    "below": "gates",
    "compose": "composition",
    "meta_step": "inference.meta",
    "prediction": "inference.prior",
    "swap": "composition",
    "uniform": "inference.prior",
    "audit": "auditing.audit",
}
"""The module of each public name. Everything is imported when it is first used: PyTorch takes seconds, and the command line
has answers that need none of it."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"compensate.{_HOMES[name]}"), name)
    if importlib.util.find_spec(f"compensate.{name}") is not None:
        return importlib.import_module(f"compensate.{name}")
    raise AttributeError(f"module 'compensate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_PACKAGES, *_HOMES})
