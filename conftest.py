"""Doctests of modules whose library is not installed are left out; all else is collected."""

from __future__ import annotations

from importlib.util import find_spec

_LIBRARIES = {"lightning": "lightning", "transformers": "transformers", "datasets": "datasets", "skorch": "skorch"}

collect_ignore = [
    f"src/compensate/integrations/{module}.py" for module, library in _LIBRARIES.items() if find_spec(library) is None
]
