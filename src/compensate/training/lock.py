"""One process at a time in a folder.

The system holds the lock and drops it when the process ends, however it ends: a process that was killed leaves files behind, but
no lock. One of them says who is at work, for the message of whoever comes second.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from compensate.errors import InputError
from compensate.files import write_atomically, writing

NAME, OWNER = ".lock", "process.json"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keeps other processes out of a folder; raises if one is at work there.

    On a disk that knows no locks it does nothing: better to train than to refuse.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with alone(folder):
    ...     (folder / OWNER).exists()
    True
    >>> (folder / OWNER).exists()
    False
    """
    lock = FileLock(folder / NAME)
    try:
        lock.acquire(blocking=False)
    except NotImplementedError:
        yield
        return
    except Timeout:
        raise InputError(
            f"{folder} is in use: {_owner(folder)} trains in it. Wait until it ends, or choose another folder."
        ) from None
    except OSError as error:
        with writing(folder):
            raise error
    try:
        write_atomically(folder / OWNER, json.dumps({"pid": os.getpid(), "host": platform.node()}).encode())
        yield
    finally:
        (folder / OWNER).unlink(missing_ok=True)
        lock.release()


def _owner(folder: Path) -> str:
    try:
        found = json.loads((folder / OWNER).read_text(encoding="utf-8"))
        return f"process {found['pid']} on {found['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
