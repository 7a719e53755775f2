"""A small model, and the sign of compensation, for tests."""

from __future__ import annotations

from torch import Tensor, nn

BINARY = [
    "base",
    "bootstrap_hard",
    "bootstrap_soft",
    "label_smoothing",
    "logcomp",
    "logit_adjustment",
    "lpl",
    "mixcomp",
    "robust",
]
"""Methods that take several labels per sample."""


def overall_sign(signs: Tensor) -> str:
    """One word for many signs of a change of the loss."""
    raised, lowered = bool((signs > 0).any()), bool((signs < 0).any())
    return "mixed" if raised and lowered else "negative" if raised else "positive" if lowered else "none"


class TinyNet(nn.Module):
    """A staged model with batch normalization and dropout, the two layers that extra forwards could upset."""

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
