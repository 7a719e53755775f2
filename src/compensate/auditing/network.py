"""Networks that are trained for an audit: a model of the user, or a pretrained encoder with a linear head."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from compensate.data.dataset import Dataset, Ints, Ragged, Singles
from compensate.encoders import Encoder, find_encoder, hint, sample_kind
from compensate.encoders.encoding import image_files
from compensate.encoders.image import ImageEncoder, ImageNetwork, image_array, resized, unit
from compensate.encoders.text import SECTION, TextEncoder, stacked
from compensate.errors import InputError
from compensate.methods.composition import find
from compensate.models.registry import MODELS, build
from compensate.training.evaluation import Rows, Samples
from compensate.training.record import TrainingRecord, train_and_record

ENCODER_RECIPE: dict[str, Any] = {
    "epochs": 3, "weight_decay": 0.01, "schedule": "linear", "warmup": 0.1, "factors": {"head": 50.0},
}  # fmt: skip
"""Default settings for a transformer; the head, which starts at zero, has fifty times the learning rate of the encoder."""

RECIPES: dict[str, dict[str, Any]] = {
    "text": {**ENCODER_RECIPE, "lr": 2e-5, "batch_size": 16},
    "image": {**ENCODER_RECIPE, "lr": 5e-5, "batch_size": 32},
}

MODEL_RECIPE = {"epochs": 20, "batch_size": 64, "lr": 1e-3}
"""Default settings for a model of the user, which is trained by AdamW with a cosine schedule."""

SMALLEST = 1e-6

TEXT_SECTIONS = 4
"""Sections of a long text that are read: gradients of all eight that the encoder reads would take gigabytes."""

SIZED_IMAGES = 16
"""Images from which the input size of all images is chosen."""


class FineTuned(nn.Module):
    """An encoder and a linear classifier, which starts at zero: the first prediction is uniform.

    Embeddings are normalized to mean 0 and variance 1, because their scale differs between encoders.

    >>> FineTuned(nn.Linear(5, 8), 8, 3)(torch.ones(2, 5)).shape
    torch.Size([2, 3])
    """

    def __init__(self, network: nn.Module, width: int, outputs: int) -> None:
        super().__init__()
        self.network, self.head = network, nn.Linear(width, outputs)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def features(self, x: Tensor) -> Tensor:
        """(B, D) normalized embeddings."""
        z = self.network(x).float()
        return F.layer_norm(z, z.shape[1:])

    def forward(self, x: Tensor) -> Tensor:
        """(B, C) logits."""
        return self.head(self.features(x))


@dataclass(frozen=True, eq=False)
class FineTuning:
    """An encoder that is ready for training.

    Attributes:
        model: the encoder and its head.
        samples: the inputs, still without labels.
        recipe: default settings of the training.
    """

    model: FineTuned
    samples: Samples
    recipe: dict[str, Any]


def find_tunable(data: Dataset, encoder: str | Path) -> Encoder:
    """The encoder of these samples; an error if there is none."""
    kind = sample_kind(data)
    if kind is None:
        what = "embeddings" if data.source.features_given else "a table or features"
        raise InputError(
            f"finetune trains an encoder of texts or images, and these samples are {what}. Leave it out; a network of columns "
            'is model="mlp" (--model mlp).'
        )
    found = find_encoder(encoder, kind)
    if found is None and encoder == "none":
        raise InputError(
            'finetune trains an encoder, and the encoder is "none". Choose one: "auto", a name, or the folder of a saved model.'
        )
    if found is None:
        raise InputError(f"finetune trains an encoder, and none is installed. {hint(kind)}")
    return found


def prepare_finetuning(data: Dataset, encoder: Encoder, outputs: int) -> FineTuning:
    """Loads the encoder and prepares its inputs; texts are cut into word pieces once.

    Args:
        data: texts or images.
        encoder: from `find_tunable`.
        outputs: of the head.
    """
    run = encoder.load(torch.device("cpu"))
    unknown = np.full(len(data), -1)
    if isinstance(run, TextEncoder):
        texts = _Texts.of(run, [str(text) for text in data.x])
        samples = Samples(texts, unknown, data.num_classes, lengths=texts.lengths)
        return FineTuning(_with_head(run.network, samples, outputs), samples, RECIPES["text"])
    if isinstance(run, ImageEncoder):
        items = image_files(data) or data.x
        run.network.fixed = _side(items, run.network)
        samples = Samples(_Images(items, run.network.fixed), unknown, data.num_classes)
        return FineTuning(_with_head(run.network, samples, outputs), samples, RECIPES["image"])
    raise InputError(
        f"the encoder {encoder.name} cannot be fine-tuned: the text models of open_clip are run by its own code alone. Choose a "
        "model of transformers or sentence-transformers."
    )


def _with_head(network: nn.Module, samples: Samples, outputs: int) -> FineTuned:
    """The network with its head; weights without influence on the prediction, such as an old classifier, are frozen."""
    x = samples.batch(np.arange(2), None)
    network.eval().requires_grad_(True)
    with torch.no_grad():
        width = int(network(x).shape[1])
    model = FineTuned(network, width, outputs)
    model(x).sum().backward()
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.grad is not None)
        parameter.grad = None
    return model


@dataclass(frozen=True, eq=False)
class _Texts:
    """Word pieces by row: text i has the sections ``first[i]`` to ``first[i + 1]`` of ``chunks``."""

    chunks: Ragged
    first: Ints

    @classmethod
    def of(cls, encoder: TextEncoder, texts: Sequence[str]) -> _Texts:
        chunks: list[NDArray[np.int32]] = []
        counts = []
        for start in range(0, len(texts), SECTION):
            for text in encoder.pieces(texts[start : start + SECTION], TEXT_SECTIONS):
                chunks += [np.array(chunk, np.int32) for chunk in text]
                counts.append(len(text))
        return cls(Ragged.of(chunks, np.int32), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))

    @property
    def lengths(self) -> Ints:
        """(N,) word pieces of each text."""
        return np.diff(self.chunks.offsets[self.first])

    def __call__(self, rows: Rows, epoch: int | None) -> Tensor:
        return stacked([[self.chunks[c] for c in range(self.first[row], self.first[row + 1])] for row in rows])


@dataclass(frozen=True, eq=False)
class _Images:
    """Pixels by row, of arrays or of files that are read when they are used."""

    items: Any
    side: int

    def __call__(self, rows: Rows, epoch: int | None) -> Tensor:
        images = [torch.from_numpy(np.ascontiguousarray(image_array(self.items[row], self.side))) for row in rows]
        if len({(image.shape, image.dtype) for image in images}) > 1:
            images = [resized(unit(image)[None], self.side)[0].expand(3, -1, -1) for image in images]
        return unit(torch.stack(images))


def _side(items: Any, network: ImageNetwork) -> int:
    return max(
        network.side(image_array(items[row], network.fixed).shape) for row in range(min(SIZED_IMAGES, len(items)))
    )


@dataclass(frozen=True, eq=False)
class Trained:
    """Predictions of a network.

    Attributes:
        log_p: (N, C) log probabilities: by models of other folds, or means over the visits before each step.
        curves: accuracy and loss after each epoch.
        model: the trained model, the last one of several folds.
        epochs: of one training.
    """

    log_p: Singles
    curves: dict[str, list[float]]
    model: nn.Module
    epochs: int


def judge_by_model(data: Dataset, labels: Ints, model: Any, folds: Ints | None, **training: Any) -> Trained:
    """Trains a model of the user on the samples, once or once for each fold.

    Args:
        data: samples that the model takes: images, features or token ids.
        labels: (N,) class numbers, -1 for missing labels.
        model: as for `compensate.audit`.
        folds: (N,) the fold in which each row is held out; None for one training on all rows.
        training: settings of the training.
    """
    if isinstance(data.x, np.ndarray) and data.x.dtype.kind == "O":
        raise InputError(
            "a model of your own takes numbers, and these samples are texts. Make token ids with compensate.data.encode_texts, "
            "or leave model out: an encoder and words are then used, and finetune=True (--finetune) trains the encoder."
        )
    if isinstance(model, str):
        if model not in MODELS and model != "auto":
            build(model, data)  # raises an error that names the models

        def make() -> nn.Module:
            return build(model, data)
    elif isinstance(model, nn.Module):

        def make() -> nn.Module:
            return copy.deepcopy(model)
    elif callable(model):
        make = model
    else:
        raise InputError(
            f"model is a {type(model).__name__}; expected a torch module, a function that makes one, or a name."
        )
    return _train(data, labels, data.num_classes, make, folds, MODEL_RECIPE, training)


def judge_by_finetuning(data: Dataset, labels: Ints, encoder: Encoder, folds: Ints | None, **training: Any) -> Trained:
    """Fine-tunes a pretrained encoder with a linear head, once or once for each fold.

    Args:
        data: texts or images.
        encoder: from `find_tunable`.
        labels, folds, training: as for `judge_by_model`.
    """
    made = prepare_finetuning(data, encoder, data.num_classes + find(training["method"]).extra_outputs)
    return _train(made.samples, labels, data.num_classes, made.model, folds, made.recipe, training)


def _train(
    inputs: Dataset | Samples,
    labels: Ints,
    classes: int,
    model: nn.Module | Callable[[], nn.Module],
    folds: Ints | None,
    recipe: Mapping[str, Any],
    training: Mapping[str, Any],
) -> Trained:
    """One training, or one for each fold. The recipe replaces settings that are None."""
    chosen = {name: training[name] for name in ("epochs", "batch_size", "lr") if training[name] is not None}
    settings = {**recipe, **chosen}
    settings |= {name: training[name] for name in ("method", "hyper", "precision", "device", "seed", "resume")}
    folder, progress = training["run_folder"], training["progress"]
    parts = [None] if folds is None else sorted(set(folds.tolist()))
    log_p = np.full((len(labels), classes), np.log(1 / classes), np.float32)
    runs: list[TrainingRecord] = []
    for k, part in enumerate(parts):
        rows = np.flatnonzero((labels >= 0) & ((folds != part) if folds is not None else True))

        def report(done: int, steps: int, k: int = k) -> None:
            if progress is not None:
                progress("training", k * steps + done, len(parts) * steps)

        run = train_and_record(
            inputs, labels, classes, model=model, progress=report, rows=rows, **settings,
            run_folder=None if folder is None else Path(folder) / (f"fold-{part}" if part is not None else "model"),
        )  # fmt: skip
        held = run.held_out if folds is None else np.flatnonzero(folds == part)
        place = np.searchsorted(run.held_out, held)
        log_p[held] = np.log(np.maximum(run.predictions[place], SMALLEST))
        if folds is None:
            log_p[rows] = np.log(np.maximum(run.probabilities[rows], SMALLEST))
        runs.append(run)
    keys = {"accuracy": "train_accuracy", "loss": "train_loss"}
    curves = {name: [float(row[key]) for row in runs[-1].history if key in row] for name, key in keys.items()}
    curves = {name: values for name, values in curves.items() if values}
    return Trained(log_p, curves, runs[-1].model, settings["epochs"])
