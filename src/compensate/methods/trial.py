"""A method tried on a batch of real data: its measured direction."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from compensate.direction import measured, summary
from compensate.methods.registry import Method


@lru_cache(maxsize=1)
def _batch() -> tuple[Tensor, Tensor, Tensor, Any]:
    """A batch of digits with a few wrong labels, and a model that has learned a little about them."""
    from compensate.data.digits import digits
    from compensate.models.small import MLP

    data = digits().subset(range(64))
    x, y = torch.from_numpy(data.x).flatten(1), torch.from_numpy(data.target).clone()
    y[:8] = (y[:8] + 1) % 10
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MLP(64, 10, hidden=(32,))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(12):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[8:]), y[8:]).backward()
            optimizer.step()
    return x, y, torch.arange(64), model


def sizes() -> dict[str, Any]:
    """The sizes of the trial, for any method."""
    _, y, _, _ = _batch()
    return {
        "num_samples": 64,
        "num_classes": 10,
        "class_counts": y.bincount(minlength=10).tolist(),
        "feature_dim": 32,
        "feature_shape": (64,),
    }


def measured_direction(row: Method, steps: int = 4) -> str:
    """What the method does to the losses of the batch after a few steps: positive, negative, mixed or none."""
    import copy

    from compensate.models.small import MLP

    x, y, index, model = _batch()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        criterion = row.make(**sizes()).start(2 * steps)
        model = copy.deepcopy(model)
        if row.extra_outputs:
            wider = MLP(64, 10 + row.extra_outputs, hidden=(32,))
            wider.body.load_state_dict(model.body.state_dict())
            model = wider
        for step in range(steps):
            s = criterion.evaluate(model, x, y, index)
            if step == steps // 2:
                criterion.end_epoch()
    return summary(measured(s))
