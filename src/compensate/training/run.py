"""A run: its folder while it is under way, what it gives when it has ended, and its use afterwards."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn

from compensate._version import __version__
from compensate.core.criterion import Compensated
from compensate.errors import InputError
from compensate.files import make_folder, write_atomically, writing
from compensate.training import checkpoint
from compensate.training.config import PROTOCOL, Config
from compensate.training.evaluation import predict
from compensate.training.preparation import Prepared, make_model, prepare_run

if TYPE_CHECKING:
    import pandas as pd


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

    def begin(self, asked: Mapping[str, Any], *, resume: bool) -> dict[str, Any] | None:
        """Writes what is asked for, with its ``id`` and ``config``; gives the checkpoint to go on from, if that is wanted."""
        if self.path is None:
            return None
        found = self._known()
        if found is not None and found["id"] != asked["id"]:
            differs = [k for k, v in asked["config"].items() if found["config"].get(k) != v] or ["protocol"]
            raise InputError(
                f"{self.path} holds another run: it differs in {', '.join(differs)}. Choose another folder, or delete it."
            )
        if found is not None and not resume and self._started():
            raise InputError(
                f"{self.path} holds this run already. Go on with resume=True (--resume), or delete the folder."
            )
        make_folder(self.path)
        if found is None:
            self.write("config.json", asked)
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


def description(config: Config) -> dict[str, Any]:
    """A run and what it was made with; only the run itself is part of its id."""
    return {"id": config.id, "protocol": PROTOCOL, "config": config.json, "versions": versions()}


def versions() -> dict[str, str]:
    """What a run is made with."""
    return {"compensate": __version__, "torch": torch.__version__, "python": platform.python_version()}


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run.

    Attributes:
        config: with every open value filled in.
        history: a row of metrics for each epoch.
        best: the row with the highest validation accuracy; without a validation part, the highest test accuracy.
        model, criterion: as the last epoch left them.
        prepared: the data.
        seconds: the time it took.

    >>> from compensate.training import fit
    >>> result = fit(Config(data="digits", epochs=1))
    >>> result.selected_on, len(result.history), result.best is result.history[0]
    ('validation', 1, True)
    """

    config: Config
    history: list[dict[str, float]]
    best: dict[str, float]
    model: nn.Module
    criterion: Compensated
    prepared: Prepared
    seconds: float

    @property
    def last(self) -> dict[str, float]:
        """The metrics of the last epoch."""
        return self.history[-1]

    @property
    def selected_on(self) -> str:
        """What `best` was chosen by: "validation", "test" or "train"."""
        names = {"val": "validation", "test": "test"}
        return next((said for name, said in names.items() if f"{name}_accuracy" in self.best), "train")

    def suspects(self) -> pd.DataFrame | None:
        """The training samples, those first whose labels look most wrong: index (the row of the source), given, suggested, score and flagged.

        None if the criterion keeps no record, or that of a part of the samples, as it does in several processes with ``order="ranges"``.
        """
        import pandas as pd

        record, train = self.criterion.record, self.prepared.train
        if record is None or len(record.visits) < train.rows:
            return None
        found = record.suspects()
        place = np.zeros(train.rows, dtype=np.int64)
        place[train.index] = np.arange(len(train))
        index = found.index.cpu().numpy()
        # Outputs past the classes, such as that of abstention, are no label that could be suggested.
        names = np.array([*train.classes, *[""] * self.prepared.method.extra_outputs], dtype=object)
        return pd.DataFrame(
            {
                "index": index,
                "given": names[train.target[place[index]]],
                "suggested": names[found.suggested.cpu().numpy()],
                "score": found.score.cpu().numpy(),
                "flagged": found.flagged.cpu().numpy(),
            }
        )


LEAST_AGREEMENT = 0.2
"""The agreement of model and labels, see `agreement_with_labels`, below which the model has learned too little to judge labels."""


def agreement_with_labels(suspects: pd.DataFrame) -> float:
    """How far a model agrees with the given labels: 0 for one that always names the most common class, 1 for full agreement.

    >>> import pandas as pd
    >>> agreement_with_labels(pd.DataFrame({"given": ["a", "a", "b", "b"], "flagged": [False, False, False, True]}))
    0.5
    """
    others = 1 - float(suspects["given"].value_counts(normalize=True).max())
    return 1 - float(suspects["flagged"].mean()) / others if others else 1.0


def load_config(folder: str | Path) -> Config:
    """The configuration of the run in this folder, as it was asked for.

    >>> import tempfile
    >>> from compensate.training import fit
    >>> folder = tempfile.mkdtemp()
    >>> _ = fit(Config(data="digits", epochs=1), folder=folder)
    >>> load_config(folder).epochs
    1
    """
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise InputError(f"{folder} is not the folder of a run: it has no config.json.")
    return Config.of(json.loads(path.read_text(encoding="utf-8"))["config"], str(path))


def load_model(folder: str | Path, prepared: Prepared, *, best: bool = False) -> nn.Module:
    """The trained model of the run in this folder, in evaluation mode; of its best epoch instead of its last if asked.

    >>> import tempfile
    >>> from compensate.training import fit
    >>> folder = tempfile.mkdtemp()
    >>> result = fit(Config(data="digits", epochs=1), folder=folder)
    >>> type(load_model(folder, result.prepared)).__name__
    'CNN'
    """
    model = make_model(prepared)
    name = "best.safetensors" if best else "model.safetensors"
    model.load_state_dict(checkpoint.load_weights(Path(folder) / name))
    return model.eval()


def predict_rows(folder: str | Path, prepared: Prepared, data_dir: str | Path | None) -> Tensor:
    """(rows, C) logits of that run's model for the training samples of another run on the same data, zeros elsewhere."""
    theirs = prepare_run(load_config(folder), data_dir=data_dir)
    if theirs.train.rows != prepared.train.rows or theirs.train.classes != prepared.train.classes:
        raise InputError(f"the run in {folder} is not on the same data; a teacher must know the same samples.")
    with torch.random.fork_rng():
        model = load_model(folder, theirs)
    logits = predict(model, prepared.train)
    rows = torch.zeros(prepared.train.rows, prepared.train.num_classes)
    rows[torch.from_numpy(prepared.train.index)] = logits
    return rows


LOCK, OWNER = ".lock", "process.json"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keeps other processes out of a folder; raises if one is at work there.

    The system holds the lock and drops it when the process ends, however it ends; ``process.json`` says who is at work, for
    the message of whoever comes second. On a disk that knows no locks it does nothing: better to train than to refuse.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with alone(folder):
    ...     (folder / OWNER).exists()
    True
    >>> (folder / OWNER).exists()
    False
    """
    lock = FileLock(folder / LOCK)
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
