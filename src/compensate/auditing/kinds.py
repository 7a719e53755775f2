"""What each kind of data needs: how its samples become a batch, which model suits it, and how long to train."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from compensate.auditing.scaling import Scaled
from compensate.auditing.words import Words, bag
from compensate.data.batches import draws, gather
from compensate.data.dataset import Data
from compensate.data.images import CropFlip
from compensate.data.ragged import Ragged
from compensate.data.text import Tfidf
from compensate.errors import InputError
from compensate.models.registry import MODELS, build
from compensate.models.small import MLP

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Recipe:
    """How to train.

    Attributes:
        method: a row of `compensate.METHODS`, with its ``hyper``-parameters.
        epochs: passes over the data, the first look included.
        scout: the share of them that the first look takes; ``look`` is its method.
        batch_size, lr, weight_decay: of AdamW, whose step goes to zero by half a cosine.
        augment: images are shifted, and mirrored if ``flip``.
    """

    method: str = "logcomp"
    hyper: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = 30
    scout: float = 0.15
    look: str = "logcomp"
    batch_size: int = 64
    lr: float = 2e-3
    weight_decay: float = 0.0
    augment: bool = False
    flip: bool = False


RECIPES = {
    "words": Recipe("logcomp", {"lam": 0.05, "lr": 1.0}, epochs=15, lr=5e-3),
    "features": Recipe("logcomp", {"lam": 0.05, "lr": 1.0}, epochs=30, lr=2e-3),
    "grey": Recipe("mixcomp", {"eta": 5.0, "pro": 45.0, "grows": (0.1, 0.3)}, epochs=60, lr=2e-3),
    "colour": Recipe(
        "mixcomp",
        {"eta": 5.0, "pro": 35.0, "grows": (0.3, 0.6)},
        epochs=20,
        batch_size=64,
        lr=5e-3,
        weight_decay=5e-4,
        augment=True,
        # A deep net learns too little in a few epochs to have its labels explained away meanwhile.
        look="base",
        flip=True,
    ),
    "own": Recipe("logcomp", {"lam": 0.05, "lr": 1.0}, epochs=20, lr=1e-3),
}
"""By kind of samples: texts as words, features of a table or embeddings, images, anything for a user's own model."""

MANY, FEWEST_PASSES = 200_000, 8
"""Of more rows than this each is seen less often, but so often at least: what counts is the number of steps."""

SMALL_IMAGE = 36
"""Grey images up to this size are for the small network; others get a residual one."""

FIRST_STAGE = 16
"""The residual network looks at images through a first layer that brings them to about so many pixels a side: an audit
needs a model that is right about most samples soon, not the last percent of accuracy."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """Samples that can be trained on.

    Attributes:
        kind: a key of `RECIPES`.
        batch: the model's input for some rows; with an epoch, as that epoch augments them.
        make: a new model, its weights drawn from torch's generator.
        recipe: how to train it.
        vectors: (N, D) dense or sparse features by which samples can be compared, if there are any.
    """

    kind: str
    batch: Callable[[Rows, int | None], Any]
    make: Callable[[], nn.Module]
    recipe: Recipe
    vectors: Any = None


def inputs(data: Data, model: nn.Module | Callable[[], nn.Module] | str | None = None, *, seed: int = 0) -> Inputs:
    """Batches, model and recipe for a data set.

    Args:
        data: the samples: texts, features or images.
        model: a module (trained from its present weights, which stay as they are), a function that makes one, the name
            of one in `compensate.models.MODELS`, or none for the default of the kind.
        seed: of augmentation.
    """
    texts = is_text(data.x)
    if texts and model is not None:
        raise InputError(
            "a model of your own takes numbers, and these samples are texts. Make token ids with compensate.data.encode, or "
            "leave model out: words are then weighed by TF-IDF."
        )
    if model is None and isinstance(data.x, Ragged):
        raise InputError(
            "samples are token ids: give the model that reads them, for example a compensate.models.BiLSTM."
        )
    if texts:
        found = _words(data)
    else:
        found = _images(data, model, seed) if np.ndim(data.x) == 4 else _features(data, model)
    return replace(found, recipe=replace(found.recipe, epochs=passes(found.recipe.epochs, len(data))))


def passes(epochs: int, rows: int) -> int:
    """The epochs for so many rows, of those that are usual for a few.

    >>> [passes(30, rows) for rows in (1000, 200_000, 400_000, 1_000_000)]
    [30, 30, 15, 8]
    """
    return epochs if rows <= MANY else max(min(epochs, FEWEST_PASSES), round(epochs * MANY / rows))


def _words(data: Data) -> Inputs:
    texts = [str(text) for text in data.x]
    tfidf = Tfidf.fit(texts, dims=1, min_count=2 if len(texts) >= 200 else 1)
    matrix = tfidf.matrix(texts)
    outputs = 1 if data.regression else data.num_classes

    def batch(rows: Rows, epoch: int | None) -> Any:
        return bag(matrix[rows])

    return Inputs("words", batch, lambda: Words(matrix.shape[1], outputs), RECIPES["words"], matrix)


def _images(data: Data, model: Any, seed: int) -> Inputs:
    small = data.x.shape[1] == 1 and max(data.x.shape[2:]) <= SMALL_IMAGE
    kind = "own" if isinstance(model, nn.Module) or callable(model) else "grey" if small else "colour"
    recipe = RECIPES[kind]
    augment = CropFlip(max(1, data.x.shape[-1] // 8), flip=recipe.flip) if recipe.augment else None
    drawn: dict[int, Any] = {}

    def batch(rows: Rows, epoch: int | None) -> Tensor:
        if augment is None or epoch is None:
            return gather(data, rows)[0]
        if epoch not in drawn:
            drawn.clear()
            drawn[epoch] = draws(data, seed=seed, epoch=epoch)
        return gather(data, rows, augment=augment, drawn=drawn[epoch])[0]

    make = (
        _maker(data, model, "cnn")
        if small or model is not None
        else lambda: build("resnet8", data, stride=stride(data))
    )
    flat = data.x.reshape(len(data), -1)
    return Inputs(kind, batch, make, recipe, flat)


def stride(data: Data) -> int:
    """Of the first convolution: a power of two, so that the image has about `FIRST_STAGE` pixels a side after it."""
    return int(2 ** max(0, round(np.log2(min(data.x.shape[2:]) / FIRST_STAGE))))


def _features(data: Data, model: Any) -> Inputs:
    if isinstance(model, nn.Module) or callable(model):
        return Inputs(
            "own", lambda rows, _: gather(data, rows)[0], _maker(data, model, ""), RECIPES["own"], _dense(data.x)
        )
    scaled = Scaled.of(np.asarray(data.x, dtype=np.float32).reshape(len(data), -1))

    def batch(rows: Rows, epoch: int | None) -> Tensor:
        return torch.from_numpy(scaled[rows])

    outputs = 1 if data.regression else data.num_classes
    width = scaled.x.shape[1]
    make = (lambda: MLP(width, outputs, hidden=(256,), dropout=0.1)) if model is None else _maker(data, model, "mlp")
    recipe = RECIPES["features"]
    # Small sets need more passes to get as many steps.
    epochs = int(np.clip(round(recipe.epochs * 5000 / max(len(data), 1)), recipe.epochs, 60))
    return Inputs("features", batch, make, replace(recipe, epochs=epochs), scaled)


def _maker(data: Data, model: Any, default: str) -> Callable[[], nn.Module]:
    if isinstance(model, nn.Module):
        return lambda: copy.deepcopy(model)
    if callable(model):
        return model
    if model is not None and not isinstance(model, str):
        raise InputError(
            f"model is a {type(model).__name__}; expected a torch module, a function that makes one, or a name."
        )
    name = model or default
    if name not in MODELS and name != "auto":
        build(name, data)  # says which names there are
    return lambda: build(name, data)


def is_text(x: Any) -> bool:
    """Whether samples are texts: an array of Python objects."""
    return isinstance(x, np.ndarray) and x.dtype.kind == "O"


def _dense(x: Any) -> Any:
    return np.asarray(x, dtype=np.float32).reshape(len(x), -1) if not isinstance(x, Ragged) else None
