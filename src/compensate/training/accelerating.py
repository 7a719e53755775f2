"""Setting up accelerate: precision, devices and trackers of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from compensate.errors import InputError
from compensate.training.config import Config


def make_accelerator(config: Config, folder: str | Path | None, trackers: Sequence[Any]) -> Any:
    """The accelerator of a run; what it cannot provide is an error that says so."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    # Accelerate keeps the precision of the first run of a process; a run must not depend on the one before it.
    known = AcceleratorState._shared_state.get("_mixed_precision")
    if known not in (None, config.precision):
        AcceleratorState._reset_state()
    try:
        made = Accelerator(
            cpu=not torch.cuda.is_available(),
            mixed_precision=config.precision,
            log_with=list(trackers) or None,
            project_dir=None if folder is None else str(folder),
        )
    except ValueError as error:
        raise InputError(f"{error} Leave out the tracker or the precision that is not at hand.") from error
    if len(made.log_with) < len(trackers):
        raise InputError(
            f"of the trackers {', '.join(map(str, trackers))} not all are installed; pip install the missing."
        )
    return made
