"""Criteria in the training loops of Lightning, Hugging Face, accelerate and skorch.

Each module serves one library and is imported by its full name, for example
``from compensate.integrations.lightning import CompensationCallback``. A library is imported when it is first needed.
:mod:`~compensate.integrations.common` holds the hooks and checks of all integrations.
"""

from __future__ import annotations

from compensate.integrations.common import CriterionHooks, IndexCheck

__all__ = ["CriterionHooks", "IndexCheck"]
