"""A meta step looks the same whether or not the model holds its criterion."""

from __future__ import annotations

import copy

import pytest
import torch

from compensate import meta_step, methods
from tiny import TinyNet


@pytest.mark.parametrize("method", ["meta_logit", "meta_weight"])
def test_a_model_may_hold_its_criterion(method, batch):
    x, y, index = batch
    sizes = {"num_samples": 9, "num_classes": 3} if method == "meta_logit" else {}
    apart, model = getattr(methods, method)(**sizes).double(), TinyNet().double()
    registered, holder = copy.deepcopy(apart), copy.deepcopy(model)
    holder.criterion = registered
    clean = (torch.randn(6, 4).double(), torch.arange(6) % 3)
    for criterion, net in ((apart, model), (registered, holder)):
        optimizer = torch.optim.SGD(criterion.parameters(), lr=1.0)
        meta_step(criterion, net, (x, y, index), clean, lr=0.5, optimizer=optimizer)
    moved = [not torch.equal(p, torch.zeros_like(p)) for p in apart.parameters()]
    assert any(moved)
    for one, other in zip(apart.parameters(), registered.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
