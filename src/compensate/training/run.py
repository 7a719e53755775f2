"""The folder of a run: its configuration, its metrics, its checkpoint and its result."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from compensate._version import __version__
from compensate.errors import InputError
from compensate.files import make_folder, write_atomically
from compensate.training import checkpoint
from compensate.training.config import PROTOCOL, Config
from compensate.training.lock import alone


class Run:
    """A run's folder. Without a path nothing is written.

    Files: ``config.json``, ``metrics.jsonl`` (a line an epoch), ``checkpoint/``, ``best.safetensors`` and
    ``model.safetensors`` (weights of the best and the last epoch), ``result.json`` once the run has ended.

    >>> Run("no/such/folder").result is None
    True
    """

    def __init__(self, path: str | Path | None) -> None:
        self.path = None if path is None else Path(path)

    def __truediv__(self, name: str) -> Path:
        assert self.path is not None
        return self.path / name

    def alone(self) -> AbstractContextManager[None]:
        """While it lasts, no other process may train in this folder."""
        return nullcontext() if self.path is None else alone(make_folder(self.path))

    def begin(self, asked: Config, effective: Config, *, resume: bool) -> dict[str, Any] | None:
        """Writes the configuration; returns the checkpoint to go on from, if that is wanted and there is one."""
        if self.path is None:
            return None
        found = self._known()
        if found is not None and found["id"] != asked.id:
            differs = [k for k, v in asked.json.items() if found["config"].get(k) != v] or ["protocol"]
            raise InputError(
                f"{self.path} holds another run: it differs in {', '.join(differs)}. Choose another folder, or delete it."
            )
        if found is not None and not resume and self._started():
            raise InputError(
                f"{self.path} holds this run already. Go on with resume=True (--resume), or delete the folder."
            )
        make_folder(self.path)
        if found is None:
            self.write("config.json", describe(asked) | {"effective": effective.json})
        return checkpoint.latest(self / "checkpoint") if resume else None

    def _known(self) -> dict[str, Any] | None:
        try:
            return json.loads((self / "config.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (ValueError, OSError) as error:
            raise InputError(f"{self.path}/config.json cannot be read ({error}); delete the folder.") from error

    def _started(self) -> bool:
        return (self / "checkpoint").exists() or (self / "metrics.jsonl").exists() or (self / "result.json").exists()

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """A JSON file, whole or not at all."""
        if self.path is not None:
            write_atomically(self / name, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())

    def log(self, history: Sequence[Mapping[str, Any]]) -> None:
        """The metrics of all epochs so far. They are rewritten whole: an interrupted run leaves no line twice."""
        if self.path is not None:
            write_atomically(self / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in history).encode())

    @property
    def result(self) -> dict[str, Any] | None:
        """What the run gave, if it has ended."""
        if self.path is None or not (self / "result.json").is_file():
            return None
        return json.loads((self / "result.json").read_text(encoding="utf-8"))


def describe(config: Config) -> dict[str, Any]:
    """A run and what it was made with; only the run itself is part of its id."""
    return {
        "id": config.id,
        "protocol": PROTOCOL,
        "config": config.json,
        "versions": {"compensate": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
