"""Networks that are trained for an audit: a model of the user, or a pretrained encoder with a linear head."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from compensate.data.dataset import Dataset, Ints, Ragged, Singles
from compensate.encoders import Encoder, find_encoder, hint, sample_kind
from compensate.encoders.encoding import image_files
from compensate.encoders.image import ImageEncoder, image_array, resized, unit
from compensate.encoders.text import SECTION, TextEncoder, stacked
from compensate.errors import InputError
from compensate.methods.composition import find
from compensate.models.networks import build
from compensate.training.evaluation import Rows, Samples
from compensate.training.fitting import train_and_record

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

SMALLEST = 1e-6  # probability
TEXT_SECTIONS = 4  # of a long text that are read: gradients of all eight that the encoder reads would take gigabytes
SIZED_IMAGES = 16  # images from which the input size of all images is chosen


class FineTuned(nn.Module):
    """An encoder and a linear classifier, which starts at zero: the first prediction is uniform.

    Embeddings are normalized to mean 0 and variance 1, because their scale differs between encoders.
    """

    def __init__(self, network: nn.Module, width: int, outputs: int) -> None:
        super().__init__()
        self.network, self.head = network, nn.Linear(width, outputs)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def features(self, x: Tensor) -> Tensor:
        z = self.network(x).float()
        return F.layer_norm(z, z.shape[1:])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


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


def prepare_finetuning(data: Dataset, encoder: Encoder, outputs: int) -> tuple[FineTuned, Samples, dict[str, Any]]:
    """An encoder of `find_tunable` with its head, its inputs without labels, and the default settings of its training."""
    run = encoder.load(torch.device("cpu"))
    inputs: _Texts | _Images
    lengths: Ints | None = None
    if isinstance(run, TextEncoder):
        chunks: list[NDArray[np.int32]] = []
        counts, recipe = [0], RECIPES["text"]
        for start in range(0, len(data.x), SECTION):
            for text in run.pieces([str(text) for text in data.x[start : start + SECTION]], TEXT_SECTIONS):
                chunks += [np.array(chunk, np.int32) for chunk in text]
                counts.append(len(text))
        inputs = _Texts(Ragged.of(chunks, np.int32), np.cumsum(counts))
        lengths = np.diff(inputs.chunks.offsets[inputs.first])  # word pieces of each text
    elif isinstance(run, ImageEncoder):
        items, network = image_files(data) or data.x, run.network
        some = range(min(SIZED_IMAGES, len(items)))
        network.fixed = max(network.side(image_array(items[row], network.fixed).shape) for row in some)
        inputs, recipe = _Images(items, network.fixed), RECIPES["image"]
    else:
        raise InputError(
            f"the encoder {encoder.name} cannot be fine-tuned: the text models of open_clip are run by its own code alone. Choose a "
            "model of transformers or sentence-transformers."
        )
    samples = Samples(inputs, np.full(len(data), -1), data.num_classes, lengths=lengths)
    x = samples.batch(np.arange(2), None)
    run.network.eval().requires_grad_(True)
    with torch.no_grad():
        width = int(run.network(x).shape[1])
    model = FineTuned(run.network, width, outputs)
    # Weights without influence on the prediction, such as an old classifier, are frozen.
    model(x).sum().backward()
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.grad is not None)
        parameter.grad = None
    return model, samples, recipe


@dataclass(frozen=True, eq=False)
class _Texts:
    """Word pieces by row: text i has the sections ``first[i]`` to ``first[i + 1]`` of ``chunks``."""

    chunks: Ragged
    first: Ints

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


class Trained(NamedTuple):
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


def judge_by_network(data: Dataset, labels: Ints, model: Any, folds: Ints | None, **training: Any) -> Trained:
    """Trains a network on the samples, once or once for each fold.

    Args:
        data: samples that the model takes: images, features or token ids; texts or images for an encoder.
        labels: (N,) class numbers, -1 for missing labels.
        model: a model of the user, as for `compensate.audit`; or an encoder from `find_tunable`, which gets a linear head.
        folds: (N,) the fold in which each row is held out; None for one training on all rows.
        training: settings of the training; the recipe replaces those that are None.
    """
    inputs: Dataset | Samples = data
    recipe = MODEL_RECIPE
    if isinstance(model, Encoder):
        outputs = data.num_classes + find(training["method"]).extra_outputs
        model, inputs, recipe = prepare_finetuning(data, model, outputs)
    elif isinstance(data.x, np.ndarray) and data.x.dtype.kind == "O":
        raise InputError(
            "a model of your own takes numbers, and these samples are texts. Make token ids with compensate.data.encode_texts, "
            "or leave model out: an encoder and words are then used, and finetune=True (--finetune) trains the encoder."
        )
    elif isinstance(model, str):
        model = partial(build, model, data)
    elif not callable(model):
        raise InputError(
            f"model is a {type(model).__name__}; expected a torch module, a function that makes one, or a name."
        )
    chosen = {name: training[name] for name in ("epochs", "batch_size", "lr") if training[name] is not None}
    settings = {**recipe, **chosen}
    settings |= {name: training[name] for name in ("method", "hyper", "precision", "device", "seed", "resume")}
    folder, progress = training["run_folder"], training["progress"]
    parts = [None] if folds is None else sorted(set(folds.tolist()))
    log_p = np.full((len(labels), data.num_classes), np.log(1 / data.num_classes), np.float32)
    for k, part in enumerate(parts):
        rows = np.flatnonzero((labels >= 0) & ((folds != part) if folds is not None else True))

        def report(done: int, steps: int, k: int = k) -> None:
            if progress is not None:
                progress("training", k * steps + done, len(parts) * steps)

        run = train_and_record(
            inputs, labels, data.num_classes, model=model, progress=report, rows=rows, **settings,
            run_folder=None if folder is None else Path(folder) / (f"fold-{part}" if part is not None else "model"),
        )  # fmt: skip
        held = run.held_out if folds is None else np.flatnonzero(folds == part)
        place = np.searchsorted(run.held_out, held)
        log_p[held] = np.log(np.maximum(run.predictions[place], SMALLEST))
        if folds is None:
            log_p[rows] = np.log(np.maximum(run.probabilities[rows], SMALLEST))
    keys = {"accuracy": "train_accuracy", "loss": "train_loss"}
    curves = {name: [float(row[key]) for row in run.history if key in row] for name, key in keys.items()}
    curves = {name: values for name, values in curves.items() if values}
    return Trained(log_p, curves, run.model, settings["epochs"])
