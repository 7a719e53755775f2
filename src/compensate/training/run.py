"""The folder of a run: configuration, lock, metrics, checkpoints and result."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from compensate._version import __version__
from compensate.errors import InputError
from compensate.files import exclusive, make_folder, write_atomically
from compensate.training import checkpoint
from compensate.training.config import PROTOCOL, Config
from compensate.training.distributed import Processes

LOCK, OWNER = ".lock", "process.json"


class Run:
    """A run's folder. Without a path nothing is written.

    Files: ``config.json``, ``metrics.jsonl`` (a line an epoch), ``checkpoint/``, ``best.safetensors`` and
    ``model.safetensors`` (weights of the best and the last epoch), ``result.json`` once the run has finished.

    >>> Run("no/such/folder").result is None
    True
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)

    def __truediv__(self, name: str) -> Path:
        assert self.path is not None
        return self.path / name

    @contextmanager
    def open(self, description: Mapping[str, Any], processes: Processes, *, resume: bool) -> Iterator[Any]:
        """Locks the folder, writes ``config.json`` and yields the checkpoint to resume from, or None. Every process calls it."""
        if self.path is None or not processes.main:
            processes.wait()  # the main process makes the folder first
            yield checkpoint.latest(self / "checkpoint") if self.path is not None and resume else None
            return
        with locked(make_folder(self.path)):
            try:
                known = json.loads((self / "config.json").read_text(encoding="utf-8"))
            except FileNotFoundError:
                known = None
            except (ValueError, OSError) as error:
                raise InputError(f"{self.path}/config.json cannot be read ({error}); delete the folder.") from error
            if known is None:
                self.write("config.json", description)
            elif known["id"] != description["id"]:
                differs = [k for k, v in description["config"].items() if known["config"].get(k) != v] or ["protocol"]
                raise InputError(
                    f"{self.path} holds another run: it differs in {', '.join(differs)}. Choose another folder, or delete it."
                )
            elif not resume and any((self / n).exists() for n in ("checkpoint", "metrics.jsonl", "result.json")):
                raise InputError(
                    f"{self.path} holds this run already. Use resume=True (--resume), or delete the folder."
                )
            stored = checkpoint.latest(self / "checkpoint") if resume else None
            processes.wait()
            yield stored

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes a JSON file atomically."""
        write_atomically(self / name, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())

    def log(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Writes the metrics of all epochs. The whole file is rewritten: a resumed run repeats no line."""
        write_atomically(self / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in history).encode())

    @property
    def history(self) -> list[dict[str, float]]:
        """The metrics of all finished epochs, from ``metrics.jsonl``."""
        path = self / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []

    @property
    def result(self) -> dict[str, Any] | None:
        """The content of ``result.json``, or None if the run has not finished."""
        if self.path is None or not (self / "result.json").is_file():
            return None
        return json.loads((self / "result.json").read_text(encoding="utf-8"))


def describe(config: Config) -> dict[str, Any]:
    """The content of ``config.json``. Only the configuration and the protocol determine the id, not the versions."""
    return {"id": config.id, "protocol": PROTOCOL, "config": config.json, "versions": versions()}


def versions() -> dict[str, str]:
    """The versions of this library, PyTorch and Python."""
    return {"compensate": __version__, "torch": torch.__version__, "python": platform.python_version()}


def load_config(folder: str | Path) -> Config:
    """The configuration of the run in this folder, without defaults filled in.

    >>> load_config("no/such/folder")
    Traceback (most recent call last):
    compensate.errors.InputError: no/such/folder is not the folder of a run: it has no config.json.
    """
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise InputError(f"{folder} is not the folder of a run: it has no config.json.")
    return Config.of(json.loads(path.read_text(encoding="utf-8"))["config"], str(path))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a folder while this process lives; raises if another one, which ``process.json`` names, trains there."""

    def busy() -> str:
        try:
            known = json.loads((folder / OWNER).read_text(encoding="utf-8"))
            owner = f"process {known['pid']} on {known['host']}"
        except (OSError, ValueError, KeyError, TypeError):
            owner = "another process"
        return f"{folder} is in use: {owner} trains in it. Wait, or choose another folder."

    with exclusive(folder / LOCK, busy):
        try:
            write_atomically(folder / OWNER, json.dumps({"pid": os.getpid(), "host": platform.node()}).encode())
            yield
        finally:
            (folder / OWNER).unlink(missing_ok=True)
