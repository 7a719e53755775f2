"""Models by name, sized for a data set."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from compensate.data.arrays import channel_statistics
from compensate.data.dataset import Dataset, Ragged
from compensate.errors import InputError, nearest
from compensate.models.networks import CNN, DEPTHS, MLP, BiLSTM, ResNet, probe


def _on_images(name: str, network: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    def make(data: Dataset, **options: Any) -> nn.Module:
        _check_shape(data, 4, name, "images (N, C, H, W)")
        mean, std = channel_statistics(data.x)
        return network(
            num_classes=_outputs(data), **({"channels": data.x.shape[1], "mean": mean, "std": std} | options)
        )  # fmt: skip

    return make


def _on_features(name: str, network: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    def make(data: Dataset, **options: Any) -> nn.Module:
        _check_shape(data, 2, name, "features (N, F)")
        return network(int(np.prod(data.x.shape[1:])), _outputs(data), **options)

    return make


def _bilstm(data: Dataset, **options: Any) -> nn.Module:
    if not isinstance(data.x, Ragged):
        raise InputError(
            "the model bilstm takes token ids, and this data set has none; make them with compensate.data.encode_texts."
        )
    if options.get("vectors") is not None:
        options.setdefault("num_words", len(options["vectors"]))
    if "num_words" not in options:
        raise InputError("the model bilstm needs num_words=len(vocabulary), the number of token ids, or vectors.")
    return BiLSTM(num_classes=_outputs(data), **options)


MODELS: dict[str, Callable[..., nn.Module]] = {
    **{f"resnet{depth}": _on_images(f"resnet{depth}", partial(ResNet, depth)) for depth in DEPTHS},
    "bilstm": _bilstm,
    "cnn": _on_images("cnn", CNN),
    "mlp": _on_features("mlp", MLP),
    "probe": _on_features("probe", probe),
}
"""Functions that build a model from a data set and the model's options."""


def build(name: str, data: Dataset, **options: Any) -> nn.Module:
    """The named model, with the inputs and outputs of the data set; ``auto`` chooses one.

    Images are normalized by the channel means and deviations of ``data``, which should be the training part.

    >>> from compensate.data import digits
    >>> type(build("auto", digits())).__name__
    'CNN'
    """
    return MODELS[resolve(name, data)](data, **options)


def resolve(name: str, data: Dataset) -> str:
    """The name as in :data:`MODELS`; ``auto`` becomes a model for the kind of data: tokens, large or small images, features.

    >>> from compensate.data import digits
    >>> resolve("ResNet-20", digits()), resolve("auto", digits())
    ('resnet20', 'cnn')
    """
    key = name.lower().replace("-", "").replace("_", "")
    if key == "auto" and isinstance(data.x, Ragged):
        return "bilstm"
    if key == "auto" and np.ndim(data.x) == 4:
        return "cnn" if data.x.shape[1] == 1 else "resnet20"
    if key == "auto":
        return "mlp"
    if key not in MODELS:
        raise InputError(f'unknown model "{name}"; {nearest(key, MODELS)}')
    return key


def _outputs(data: Dataset) -> int:
    return 1 if data.regression else data.num_classes


def _check_shape(data: Dataset, ndim: int, name: str, expected: str) -> None:
    shape = getattr(data.x, "shape", None)
    if shape is None or len(shape) < ndim or data.x.dtype.kind == "O":
        got = "texts or token ids" if shape is None or len(shape) < 2 else f"an array of shape {shape}"
        raise InputError(
            f"the model {name} takes {expected}, and this data set has {got}. Choose another model, or auto."
        )
