"""What the tests of faults share: a tiny run, work that kills itself, and a disk that is full."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path

from compensate.training import Config, fit

TINY = Config(
    data="digits", noise="pair:0.2", epochs=2, batch_size=64, limit=150, model="mlp", model_options={"hidden": [8]}
)


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def dies(number: int, folder: str, deaths: int) -> tuple[int, int]:
    """Ends its own process, as the system does for want of memory, until it has done so `deaths` times."""
    mark = Path(folder) / f"{number}"
    before = len(mark.read_text()) if mark.exists() else 0
    mark.write_text("x" * (before + 1))
    if before < deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return number, before + 1


def lost(number: int, folder: str, deaths: int) -> tuple[int, int]:
    return number, -1


def hold(folder: str, ready: str, seconds: float) -> None:
    """Trains in a folder and stays there for a while."""

    def wait(_: object) -> None:
        Path(ready).touch()
        time.sleep(seconds)

    fit(TINY, folder=folder, on_step=wait)
