"""What the tests of faults share: a tiny run, work that kills itself, and a disk that is full."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

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


def lost(number: int, *_: object) -> tuple[int, int]:
    return number, -1


def who(number: int) -> tuple[int, int]:
    """The process that does the work."""
    return number, os.getpid()


def wait_until_gone(pid: int, seconds: float = 120.0) -> None:
    """Returns once all threads of the process have ended, even if its parent does not ask for it; threads keep pipes open."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            stat = Path(f"/proc/{pid}/stat")
            ended = stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"
            if ended and len(list(Path(f"/proc/{pid}/task").iterdir())) <= 1:
                return
        except (ProcessLookupError, FileNotFoundError):
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} still runs")


def hold(folder: str, ready: str, seconds: float) -> None:
    """Trains in a folder and stays there for a while."""

    def wait(_: object) -> None:
        Path(ready).touch()
        time.sleep(seconds)

    fit(TINY, folder=folder, on_step=wait)


DEADLY = """
import os, signal, sys
from pathlib import Path

place, deaths = Path(os.environ["DEADLY_PLACE"]), int(os.environ["DEADLY_TIMES"])

def watch(event, args):
    if event != "open" or not str(args[0]).endswith("metrics.jsonl"):
        return
    run = Path(str(args[0])).parent.name
    try:  # the first run that comes is the victim
        with open(place / "victim", "x") as file:
            file.write(run)
    except FileExistsError:
        pass
    if (place / "victim").read_text() == run and len(os.listdir(place / "pids")) < deaths:
        (place / "pids" / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
"""
"""Every Python process that finds this on its path is ended when it writes the metrics of the first run that came so far."""


def command(
    *arguments: str | Path, environment: dict[str, str] | None = None, module: str = "compensate", **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a command in a new process."""
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)], cwd=Path(__file__).parents[2], capture_output=True, text=True,
        timeout=540, check=False, env={**(environment or os.environ), "OMP_NUM_THREADS": "1", "COLUMNS": "400"}, **options,
    )  # fmt: skip


def environment(place: Path, code: str, **variables: str) -> dict[str, str]:
    """The environment of a command whose Python processes run this code first."""
    (place / "sitecustomize.py").write_text(code)
    path = os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, **variables}


def deadly(place: Path, deaths: int) -> dict[str, str]:
    """The environment of a command: of all its runs, the first to have metrics loses its process so many times.

    `place` keeps the name of that run (``victim``) and the numbers of its processes (``pids``).
    """
    (place / "pids").mkdir(parents=True)
    return environment(place, DEADLY, DEADLY_PLACE=str(place), DEADLY_TIMES=str(deaths))


COUNTED = """
import os, signal, sys

place, last, seen = os.environ["KILLED_PLACE"], int(os.environ["KILLED_AT"]), 0

def watch(event, args):
    global seen
    if event == "open" and not (isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)):
        return
    if event not in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir") or not str(args[0]).startswith(place):
        return
    if seen == last:
        os.kill(os.getpid(), signal.SIGKILL)
    seen += 1

sys.addaudithook(watch)
"""
"""Every Python process that finds this on its path is ended before a certain change of the files of a folder."""


def killed_at(change: int, watched: Path, place: Path) -> dict[str, str]:
    """The environment of a command that is ended before change n, from 0, of files under ``watched``; ``place`` is another folder."""
    place.mkdir(parents=True, exist_ok=True)
    return environment(place, COUNTED, KILLED_PLACE=str(watched), KILLED_AT=str(change))
