"""A model that kills one of the processes that train it, once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from torch import Tensor, nn


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
