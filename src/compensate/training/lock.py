"""One process at a time in a folder.

The system holds the lock and drops it when the process ends, however it ends: a process that was killed leaves a file
behind, but no lock. The file says who is at work, for the message of whoever comes second.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO

from compensate.errors import InputError
from compensate.files import writing

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None

NAME = "lock"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keeps other processes out of a folder; raises if one is at work there. Where files cannot be locked it does nothing.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with alone(folder):
    ...     (folder / NAME).exists()
    True
    >>> (folder / NAME).exists()
    False
    """
    if fcntl is None:  # pragma: no cover - Windows
        yield
        return
    path = folder / NAME
    file = _locked(path)
    try:
        yield
    finally:
        # Removed while it is still held: whoever opened it in between sees that it is no longer the file of this name.
        path.unlink(missing_ok=True)
        file.close()


def _locked(path: Path) -> IO[str]:
    assert fcntl is not None
    while True:
        with writing(path):
            file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_named(file, path):
                break
            file.close()
        except BlockingIOError:
            who = _who(file)
            file.close()
            raise InputError(
                f"{path.parent} is in use: {who} trains in it. Wait until it ends, or choose another folder."
            ) from None
        except OSError:
            break  # a disk that knows no locks: better to train than to refuse
    try:
        with writing(path):
            file.truncate(0)
            file.write(json.dumps({"pid": os.getpid(), "host": platform.node()}))
            file.flush()
    except InputError:
        file.close()
        raise
    return file


def _is_named(file: IO[str], path: Path) -> bool:
    """Whether the open file still is the one of this name: its last owner may have removed it meanwhile."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _who(file: IO[str]) -> str:
    try:
        file.seek(0)
        found = json.load(file)
        return f"process {found['pid']} on {found['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
