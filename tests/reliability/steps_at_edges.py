"""What the tests of numbers at the edge share: every method in training on a model whose input is its features."""

from __future__ import annotations

import copy
import warnings
from functools import cache

import torch
from torch import Tensor, nn

from compensate import METHODS, Compensated

N = 12


class Head(nn.Module):
    """Features are the input; the head scales them to logits."""

    def __init__(self, inputs: int, outputs: int, scale: float = 1.0) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, outputs, bias=False)
        self.scale = scale

    def embed(self, x: Tensor) -> Tensor:
        return x

    def features(self, e: Tensor) -> Tensor:
        return e

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(self.embed(x)))


def build(name: str, classes: int, dtype: torch.dtype = torch.float32, **more: object) -> tuple[Compensated, Head]:
    row = METHODS[name]
    counts = [N - classes + 1] + [1] * (classes - 1) if classes <= N else [1] * classes
    criterion = row.make(
        num_samples=N, num_classes=classes, class_counts=counts, feature_dim=4, feature_shape=(4,), **more
    )
    torch.manual_seed(0)
    model = Head(4, classes + row.extra_outputs).to(dtype)
    return criterion.start(100), model


def step(criterion: Compensated, model: Head, x: Tensor, y: Tensor, i: Tensor) -> tuple[Tensor, list[Tensor]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a criterion may say that epochs do not end; here they need not
        loss = criterion.evaluate(model, x, y, i).loss
    model.zero_grad()
    loss.backward()
    return loss.detach(), [p.grad for p in model.parameters() if p.grad is not None]


def settled(name: str, dtype: torch.dtype = torch.float32) -> tuple[Compensated, Head]:
    """A criterion whose tables and statistics are filled, and its model: copies of those made when first asked for."""
    made = copy.deepcopy(_settled(name, dtype))
    torch.manual_seed(1)
    return made


@cache
def _settled(name: str, dtype: torch.dtype, classes: int = 3) -> tuple[Compensated, Head]:
    criterion, model = build(name, classes, dtype)
    for _ in range(2):
        x, y = torch.randn(8, 4, dtype=dtype), torch.arange(8) % classes
        step(criterion, model, x, y, torch.arange(8))
        criterion.end_epoch()
    return criterion, model


def assert_finite(criterion: Compensated, loss: Tensor, gradients: list[Tensor]) -> None:
    assert loss.isfinite().all()
    assert gradients
    assert all(g.isfinite().all() for g in gradients)
    for key, value in criterion.state_dict().items():
        assert not value.is_floating_point() or not value.isnan().any(), key
