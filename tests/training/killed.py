"""Runs that are killed: by the tests, or by their own model."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
from torch import Tensor, nn

from compensate.training import Config, fit


class FatalModel(nn.Module):
    """Kills the second process in the forward pass of its `after`-th training batch, unless that has happened."""

    def __init__(self, mark: Path, after: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
        self.mark, self.left = mark, after

    def forward(self, x: Tensor) -> Tensor:
        self.left -= self.training
        if os.environ.get("RANK") == "1" and self.left <= 0 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layers(x)


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
