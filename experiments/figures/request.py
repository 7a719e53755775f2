"""The request for a figure, and the short trainings behind some figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rich.console import Console

from compensate.data import Splits, load
from compensate.encoders import encode_data
from compensate.errors import InputError
from compensate.training.config import Config
from compensate.training.fitting import Result, fit

_CIFAR = {
    "data_options": {"size": 16}, "limit": 5000, "limit_test": 1000, "model": "resnet8", "augment": "none", "epochs": 12,
    "batch_size": 64, "optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-4, "schedule": "cosine",
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {"digits": {"epochs": 30}, "cifar10": _CIFAR, "cifar100": _CIFAR}
"""How data sets are trained on for a figure; others by the recipe of their model."""

ENCODED = {"model": "mlp", "epochs": 10, "model_options": {"hidden": [128]}}
LIMIT = 10_000
"""Of an encoder's features, and the samples that are encoded."""


@dataclass(frozen=True)
class Request:
    """Where a figure comes from.

    Attributes:
        data: a data set that replaces the figure's own.
        data_dir: where named data sets are.
        results: the folder of stored runs.
        runs: the folder of trainings: a finished one is read, an interrupted one goes on; None trains without files.
        options: changes of the training, by the names of `Config`.
        given: the data itself, where it is not to be loaded by its name.
        encoder: train on the features of a pretrained model, by its name, instead of on the samples.
        console: shows progress.

    >>> Request().on("digits").data, Request("cifar10").on("digits").data
    ('digits', 'cifar10')
    """

    data: str | None = None
    data_dir: Path | None = None
    results: Path = Path("results/reproduce")
    runs: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    given: Splits | None = None
    encoder: str | None = None
    console: Console | None = None

    def on(self, data: str | None) -> Request:
        """The same, on this data set where none is asked for."""
        return self if self.data is not None else replace(self, data=data)

    def config(self, **own: Any) -> Config:
        """The training: the data set's setting, overridden by the figure's options and by the request."""
        data = (self.data or "digits").lower()
        known = SETTINGS.get(data.replace("-", ""), {})
        name = data.replace("-", "") if known else self.data
        if self.encoder is not None:
            known = {**ENCODED, "data_options": {"encoder": self.encoder}}
        return Config.of({"data": name, **known, "validation": 0.0, **own, **self.options}, "--set")

    def train(self, config: Config) -> Result:
        """The finished training."""
        folder = None if self.runs is None else self.runs / config.name
        data = self.given if self.encoder is None else self.encoded(config.data)
        return fit(
            config, data=data, data_dir=self.data_dir, folder=folder, resume=folder is not None, console=self.console
        )  # fmt: skip

    def encoded(self, name: str) -> Splits:
        """The features of (at most `LIMIT`) training samples."""
        encoder = self.encoder or "auto"
        return (
            _named_features(name, self.data_dir, encoder) if self.given is None else features(name, self.given, encoder)
        )


@lru_cache(maxsize=1)  # a figure of many trainings reads the data once
def _named_features(name: str, data_dir: Path | None, encoder: str) -> Splits:
    return features(name, load(name, data_dir), encoder)


def features(name: str, data: Splits, encoder: str) -> Splits:
    """Training samples as the encoder sees them."""
    train = data.train
    if len(train) > LIMIT:
        train = train.split((share := LIMIT / len(train), 1 - share), seed=0)[0]
    found = encode_data(train, encoder)
    if found is None:
        raise InputError(
            f'{name} has nothing that the encoder "{encoder}" reads; it takes texts and images, and needs:  pip install "compensate[encoders]"'
        )
    return Splits(replace(train, x=found.values), None, None)
