"""A model of the user's as a learner: trained by the one engine, and judged by what it said before it learned."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from compensate.data.dataset import Data
from compensate.errors import InputError
from compensate.models.registry import MODELS, build
from compensate.training.evidence import Recorded, train_and_record

EPOCHS, BATCH, RATE = 20, 64, 1e-3
"""Of the training, where nothing else is asked for: AdamW with a cosine schedule."""

SMALLEST = 1e-6


@dataclass(frozen=True, eq=False)
class Trained:
    """What the model says.

    Attributes:
        log_p: (N, C) log probabilities: of the folds that held a row out, or means over the visits before each step.
        curves: accuracy and loss after each epoch.
        model: the trained model, the last one of several folds.
        epochs: of one training.
    """

    log_p: NDArray[np.float32]
    curves: dict[str, list[float]]
    model: nn.Module
    epochs: int


def judge_by_model(
    data: Data,
    labels: NDArray[np.int64],
    model: nn.Module | Callable[[], nn.Module] | str,
    folds: NDArray[np.int64] | None,
    *,
    method: str = "logcomp",
    hyper: Mapping[str, Any] | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    precision: str = "no",
    device: str | None = None,
    seed: int = 0,
    run_folder: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Trained:
    """Trains the model on the samples, once or once for each fold.

    Args:
        data: samples that the model takes: images, features or token ids.
        labels: (N,) class numbers, -1 where there is none.
        model: as for `compensate.audit`.
        folds: (N,) the fold in which each row is held out; None for one training on all rows.
    """
    if isinstance(data.x, np.ndarray) and data.x.dtype.kind == "O":
        raise InputError(
            "a model of your own takes numbers, and these samples are texts. Make token ids with compensate.data.encode, or "
            "leave model out: an encoder and words are then looked at."
        )
    if epochs is not None and epochs < 1:
        raise InputError(f"epochs is {epochs}; expected 1 or more.")
    make = _maker(data, model)
    total = epochs or EPOCHS
    parts = [None] if folds is None else sorted(set(folds.tolist()))
    found = np.full((len(data), data.num_classes), np.log(1 / data.num_classes), np.float32)
    runs: list[Recorded] = []
    for k, part in enumerate(parts):
        rows = np.flatnonzero((labels >= 0) & ((folds != part) if folds is not None else True))

        def told(done: int, _: int, accuracy: float, compensated: float, k: int = k) -> None:
            if progress is not None:
                progress("training", k * total + done, len(parts) * total)

        run = train_and_record(
            data, labels, data.num_classes, model=make, method=method, hyper=hyper, epochs=total,
            batch_size=batch_size or BATCH, lr=lr or RATE, device=device, precision=precision, seed=seed,
            run_folder=None if run_folder is None else Path(run_folder) / (f"fold-{part}" if part is not None else "model"),
            resume=resume, progress=told, rows=rows,
        )  # fmt: skip
        held = run.held_out if folds is None else np.flatnonzero(folds == part)
        place = np.searchsorted(run.held_out, held)
        found[held] = np.log(np.maximum(run.predictions[place], SMALLEST))
        if folds is None:
            found[rows] = np.log(np.maximum(run.probabilities[rows], SMALLEST))
        runs.append(run)
    names = {"accuracy": "train_accuracy", "loss": "train_loss"}
    curves = {name: [float(row[key]) for row in runs[-1].history if key in row] for name, key in names.items()}
    return Trained(found, {name: values for name, values in curves.items() if values}, runs[-1].model, total)


def _maker(data: Data, model: Any) -> Callable[[], nn.Module]:
    if isinstance(model, nn.Module):
        return lambda: copy.deepcopy(model)
    if callable(model):
        return model
    if not isinstance(model, str):
        raise InputError(
            f"model is a {type(model).__name__}; expected a torch module, a function that makes one, or a name."
        )
    if model not in MODELS and model != "auto":
        build(model, data)  # says which names there are
    return lambda: build(model, data)
