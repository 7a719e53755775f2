"""The two ways to the gradient of a look-ahead step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compensate import Compensated
from compensate.core.stages import traceless
from compensate.methods import METHODS
from compensate.terms import Category, Sample, Slack
from compensate.terms.meta import along_direction, through_graph
from tiny import TinyNet


def both(criterion: Compensated, model: nn.Module, batch: Any, clean: Any) -> list[Any]:
    """What each way finds, and where it leaves the random numbers."""
    theta = {name: p.detach().requires_grad_() for name, p in model.named_parameters()}
    found = []
    for way in (along_direction, through_graph):
        torch.manual_seed(3)
        with traceless(model):
            result = way(criterion, model, theta, [], batch, clean, 0.5)
        found.append(None if result is None else (result[0].detach(), *result[2], torch.rand(3)))
    return found


CRITERIA = {
    "logits of samples": lambda: Compensated(logit=Sample(9, 3, update="meta")),
    "logits of classes": lambda: Compensated(logit=Category(3, 3, update="meta", init=0.3)),
    "labels": lambda: Compensated(label=Sample(9, 3, update="meta")),
    "smooth slack": lambda: Compensated(loss=Slack(Sample(9, update="meta", init=0.2), temperature=0.5)),
}


@pytest.mark.parametrize("name", [*CRITERIA])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_both_ways_find_one_gradient(name: str, dropout: float, batch: tuple[Tensor, Tensor, Tensor]) -> None:
    model, criterion = TinyNet(dropout=dropout).double(), CRITERIA[name]().double()
    clean = torch.randn(4, 4).double(), torch.tensor([0, 1, 2, 1])
    short, long = both(criterion, model, batch, clean)
    assert short is not None
    for a, b in zip(short, long, strict=True):
        torch.testing.assert_close(a, b)
    assert short[1].abs().max() > 0


class NoDirections(torch.autograd.Function):
    """A layer without a forward derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


class Odd(TinyNet):
    def forward(self, x: Tensor) -> Tensor:
        return NoDirections.apply(super().forward(x))


def test_a_layer_without_directions_and_a_term_on_features_take_the_long_way(
    batch: tuple[Tensor, Tensor, Tensor],
) -> None:
    clean = torch.randn(4, 4).double(), torch.tensor([0, 1, 2, 1])
    odd = both(CRITERIA["logits of samples"]().double(), Odd().double(), batch, clean)
    assert odd[0] is None
    assert odd[1] is not None
    reads_features = METHODS["metasaug"].build(num_classes=3, feature_dim=6).start(10).double()
    assert both(reads_features, TinyNet().double(), batch, clean)[0] is None
