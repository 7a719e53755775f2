"""Shared fixtures: one thread, seeded random numbers, small models."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn


@pytest.fixture(autouse=True)
def _deterministic() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


class TinyNet(nn.Module):
    """A staged model with batch normalisation and dropout, the two layers that extra forwards could upset."""

    def __init__(self, inputs: int = 4, classes: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(dropout))
        self.head = nn.Linear(6, classes)

    def embed(self, x: Tensor) -> Tensor:
        return x

    def features(self, e: Tensor) -> Tensor:
        return self.body(e)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(self.embed(x)))


@pytest.fixture
def tiny() -> TinyNet:
    return TinyNet().double()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, classes and indices of five samples out of nine, in double precision."""
    return torch.randn(5, 4).double(), torch.tensor([0, 2, 1, 2, 0]), torch.tensor([3, 8, 0, 5, 1])
