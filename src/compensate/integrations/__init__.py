"""Compensation inside the training loops of others: Lightning, Hugging Face, accelerate and skorch.

Each file here serves one library and is imported by its full name, for example
``from compensate.integrations.lightning import CompensationCallback``. A library that is not installed is asked for when it
is first needed. What all of them have in common is here as well: :mod:`~compensate.integrations.common` keeps clock and
state of a criterion, :mod:`~compensate.integrations.common` sees whether an index still names its sample.
"""

from __future__ import annotations

from compensate.integrations.common import CriterionHooks, IndexCheck

__all__ = ["CriterionHooks", "IndexCheck"]
