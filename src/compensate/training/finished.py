"""A finished run, used again: its model, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from compensate.errors import InputError
from compensate.training.checkpoint import load_weights
from compensate.training.config import Config
from compensate.training.evaluation import predict
from compensate.training.preparation import Prepared, make_model, prepare


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
    model.load_state_dict(load_weights(Path(folder) / ("best.safetensors" if best else "model.safetensors")))
    return model.eval()


def predict_rows(folder: str | Path, prepared: Prepared, data_dir: str | Path | None) -> Tensor:
    """(rows, C) logits of that run's model for the training samples of another run on the same data, zeros elsewhere."""
    theirs = prepare(load_config(folder), data_dir=data_dir)
    if theirs.train.rows != prepared.train.rows or theirs.train.classes != prepared.train.classes:
        raise InputError(f"the run in {folder} is not on the same data; a teacher must know the same samples.")
    with torch.random.fork_rng():
        model = load_model(folder, theirs)
    logits = predict(model, prepared.train)
    rows = torch.zeros(prepared.train.rows, prepared.train.num_classes)
    rows[torch.from_numpy(prepared.train.index)] = logits
    return rows
