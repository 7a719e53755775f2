"""A run in a process of its own, which the tests kill."""

from __future__ import annotations

from pathlib import Path

import torch

from compensate.training import Config, fit


def config(method: str, epochs: int) -> Config:
    """A few seconds of training with a network that has dropout, so that random numbers matter."""
    return Config(
        data="digits", noise="pair:0.3", method=method, epochs=epochs, batch_size=32, limit=500, model="mlp",
        model_options={"hidden": [32], "dropout": 0.3}, optimizer="adam", lr=0.003,
    )  # fmt: skip


def train(method: str, epochs: int, folder: str, every: int = 2) -> None:
    """Starts the run, or goes on with it."""
    torch.set_num_threads(1)
    fit(config(method, epochs), folder=Path(folder), resume=True, every=every)
