"""A deep model as a learner, the user's or a fine-tuned encoder: trained by the one engine, judged by what it said before it learned."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from compensate.auditing.arrays import Ints, Singles
from compensate.data.dataset import Data
from compensate.encoders import Encoder
from compensate.errors import InputError
from compensate.methods.registry import find
from compensate.models.registry import MODELS, build
from compensate.training.evidence import TrainingRecord, train_and_record
from compensate.training.samples import Samples

RECIPE = {"epochs": 20, "batch_size": 64, "lr": 1e-3}
"""Of the training of a user's model, where nothing else is asked for: AdamW with a cosine schedule."""

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

    log_p: Singles
    curves: dict[str, list[float]]
    model: nn.Module
    epochs: int


def judge_by_model(
    data: Data,
    labels: Ints,
    model: nn.Module | Callable[[], nn.Module] | str | None,
    folds: Ints | None,
    **training: Any,
) -> Trained:
    """Trains the model on the samples, once or once for each fold.

    Args:
        data: samples that the model takes: images, features or token ids.
        labels: (N,) class numbers, -1 where there is none.
        model: as for `compensate.audit`.
        folds: (N,) the fold in which each row is held out; None for one training on all rows.
        training: settings, see `_train`.
    """
    if isinstance(data.x, np.ndarray) and data.x.dtype.kind == "O":
        raise InputError(
            "a model of your own takes numbers, and these samples are texts. Make token ids with compensate.data.encode_texts, "
            "or leave model out: an encoder and words are then looked at, and finetune=True (--finetune) trains the encoder."
        )
    return _train(data, labels, data.num_classes, _maker(data, model), folds, RECIPE, **training)


def judge_by_finetuning(data: Data, labels: Ints, encoder: Encoder, folds: Ints | None, **training: Any) -> Trained:
    """Fine-tunes a pretrained encoder with a linear head, once or once for each fold.

    Args:
        data: texts or images.
        encoder: as `compensate.auditing.finetuning.find_tunable` gives it.
        labels, folds, training: as for `judge_by_model`.
    """
    from compensate.auditing.finetuning import prepare_finetuning

    outputs = data.num_classes + find(training["method"]).extra_outputs
    made = prepare_finetuning(data, encoder, outputs)
    return _train(made.samples, labels, data.num_classes, made.model, folds, made.recipe, **training)


def _train(
    inputs: Data | Samples,
    labels: Ints,
    classes: int,
    model: nn.Module | Callable[[], nn.Module],
    folds: Ints | None,
    recipe: Mapping[str, Any],
    *,
    method: str,
    hyper: Mapping[str, Any] | None,
    epochs: int | None,
    batch_size: int | None,
    lr: float | None,
    precision: str,
    device: str | None,
    seed: int,
    run_folder: str | Path | None,
    resume: bool,
    progress: Callable[[str, int, int], None] | None,
) -> Trained:
    """One training, or one for each fold. What is None is as the recipe says."""
    chosen = {"epochs": epochs, "batch_size": batch_size, "lr": lr}
    settings = {**recipe, **{name: value for name, value in chosen.items() if value is not None}}
    parts = [None] if folds is None else sorted(set(folds.tolist()))
    found = np.full((len(labels), classes), np.log(1 / classes), np.float32)
    runs: list[TrainingRecord] = []
    for k, part in enumerate(parts):
        rows = np.flatnonzero((labels >= 0) & ((folds != part) if folds is not None else True))

        def told(done: int, steps: int, k: int = k) -> None:
            if progress is not None:
                progress("training", k * steps + done, len(parts) * steps)

        run = train_and_record(
            inputs, labels, classes, model=model, method=method, hyper=hyper, device=device, precision=precision, seed=seed,
            run_folder=None if run_folder is None else Path(run_folder) / (f"fold-{part}" if part is not None else "model"),
            resume=resume, progress=told, rows=rows, **settings,
        )  # fmt: skip
        held = run.held_out if folds is None else np.flatnonzero(folds == part)
        place = np.searchsorted(run.held_out, held)
        found[held] = np.log(np.maximum(run.predictions[place], SMALLEST))
        if folds is None:
            found[rows] = np.log(np.maximum(run.probabilities[rows], SMALLEST))
        runs.append(run)
    names = {"accuracy": "train_accuracy", "loss": "train_loss"}
    curves = {name: [float(row[key]) for row in runs[-1].history if key in row] for name, key in names.items()}
    return Trained(
        found, {name: values for name, values in curves.items() if values}, runs[-1].model, settings["epochs"]
    )


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
