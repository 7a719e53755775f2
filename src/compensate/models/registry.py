"""Models by name, sized for a data set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from compensate.data.arrays import channel_statistics
from compensate.data.dataset import Dataset, Ragged
from compensate.errors import InputError, nearest
from compensate.models.networks import CNN, DEPTHS, MLP, BiLSTM, ResNet, probe


def _resnet(depth: int) -> Callable[..., nn.Module]:
    def build_resnet(data: Dataset, **options: Any) -> nn.Module:
        _need(data, 4, f"resnet{depth}", "images (N, C, H, W)")
        return ResNet(depth, _outputs(data), **(_statistics(data) | options))

    return build_resnet


def _cnn(data: Dataset, **options: Any) -> nn.Module:
    _need(data, 4, "cnn", "images (N, C, H, W)")
    return CNN(_outputs(data), **(_statistics(data) | options))


def _mlp(data: Dataset, **options: Any) -> nn.Module:
    _need(data, 2, "mlp", "features (N, F)")
    return MLP(int(np.prod(data.x.shape[1:])), _outputs(data), **options)


def _probe(data: Dataset, **options: Any) -> nn.Module:
    _need(data, 2, "probe", "features (N, F)")
    return probe(int(np.prod(data.x.shape[1:])), _outputs(data), **options)


def _bilstm(data: Dataset, **options: Any) -> nn.Module:
    if not isinstance(data.x, Ragged):
        raise InputError(
            "the model bilstm takes token ids, and this data set has none; make them with compensate.data.encode_texts."
        )
    if "vectors" in options and "num_words" not in options and options["vectors"] is not None:
        options["num_words"] = len(options["vectors"])
    if "num_words" not in options:
        raise InputError("the model bilstm needs num_words=len(vocabulary), the number of token ids, or vectors.")
    return BiLSTM(num_classes=_outputs(data), **options)


MODELS: dict[str, Callable[..., nn.Module]] = {
    **{f"resnet{depth}": _resnet(depth) for depth in DEPTHS},
    "bilstm": _bilstm,
    "cnn": _cnn,
    "mlp": _mlp,
    "probe": _probe,
}
"""Builders of models: a data set and the model's own options give the model."""


def build(name: str, data: Dataset, **options: Any) -> nn.Module:
    """The named model with as many inputs and outputs as the data set has; ``auto`` chooses one.

    Images are normalized by the channel means and deviations of ``data``, which should be the training part.

    >>> from compensate.data import digits
    >>> type(build("auto", digits())).__name__
    'CNN'
    """
    return MODELS[resolve(name, data)](data, **options)


def resolve(name: str, data: Dataset) -> str:
    """The name as :data:`MODELS` spells it; ``auto`` becomes the model that suits the data.

    >>> from compensate.data import digits
    >>> resolve("ResNet-20", digits()), resolve("auto", digits())
    ('resnet20', 'cnn')
    """
    key = name.lower().replace("-", "").replace("_", "")
    if key == "auto":
        return default(data)
    if key not in MODELS:
        raise InputError(f'unknown model "{name}"; {nearest(key, MODELS)}')
    return key


def default(data: Dataset) -> str:
    """The name of the model that suits the kind of data: tokens, large or small images, features."""
    if isinstance(data.x, Ragged):
        return "bilstm"
    if np.ndim(data.x) == 4:
        return "cnn" if data.x.shape[1] == 1 else "resnet20"
    return "mlp"


def _outputs(data: Dataset) -> int:
    return 1 if data.regression else data.num_classes


def _statistics(data: Dataset) -> dict[str, Any]:
    mean, std = channel_statistics(data.x)
    return {"channels": data.x.shape[1], "mean": mean, "std": std}


def _need(data: Dataset, ndim: int, name: str, what: str) -> None:
    shape = getattr(data.x, "shape", None)
    if shape is None or len(shape) < ndim or data.x.dtype.kind == "O":
        got = "texts or token ids" if shape is None or len(shape) < 2 else f"an array of shape {shape}"
        raise InputError(f"the model {name} takes {what}, and this data set has {got}. Choose another model, or auto.")
