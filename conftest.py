"""Doctests of modules whose library is not installed are left out; all else is collected."""

from __future__ import annotations

import os
from importlib.util import find_spec

# Ray puts a print of its own in place of Python's, for the whole process; skorch then takes ours for a user's and prints.
os.environ.setdefault("RAY_TQDM_PATCH_PRINT", "0")
# A process that has connected to one cluster keeps its kind of authorization, and is refused by a later cluster that has another.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
# Some virtual machines announce AMX and stop a process that uses it, which oneDNN does for products of bfloat16.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

_LIBRARIES = {"lightning": "lightning", "transformers": "transformers", "datasets": "datasets", "skorch": "skorch"}

collect_ignore = [
    f"src/compensate/integrations/{module}.py" for module, library in _LIBRARIES.items() if find_spec(library) is None
]
