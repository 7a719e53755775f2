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
    from compensate import methods, terms
    from compensate.auditing.api import audit
    from compensate.auditing.result import Audit
    from compensate.core.criterion import Compensated
    from compensate.methods import METHODS
    from compensate.methods.composition import compose, swap
    from compensate.terms.meta import meta_step

__all__ = [
    "METHODS", "Audit", "Compensated", "InputError", "__version__", "audit", "compose", "meta_step", "methods", "swap", "terms",
]  # fmt: skip

_PACKAGES = ("auditing", "data", "encoders", "estimators", "integrations", "methods", "models", "terms", "training")
_HOMES = {
    "METHODS": "methods", "Audit": "auditing.result", "Compensated": "core.criterion", "audit": "auditing.api",
    "compose": "methods.composition", "meta_step": "terms.meta", "swap": "methods.composition",
}  # fmt: skip
"""The module of each public name. Everything is imported when it is first used: PyTorch takes seconds, and the command line
has answers that need none of it."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"compensate.{_HOMES[name]}"), name)
    if importlib.util.find_spec(f"compensate.{name}") is not None:
        return importlib.import_module(f"compensate.{name}")
    raise AttributeError(f"module 'compensate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_PACKAGES})
