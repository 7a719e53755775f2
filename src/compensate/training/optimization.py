"""Optimizers by name, and learning rates as functions of how much of the training is done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

MOMENTUM = 0.9
"""Of stochastic gradient descent, with Nesterov's correction."""

OPTIMIZERS = ("sgd", "adam", "adamw")

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda t: 1.0,
    "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2,
    "linear": lambda t: 1 - t,
    "step": lambda t: 1.0 if t < 0.5 else 0.1 if t < 0.75 else 0.01,
}
"""The factor of the learning rate at the share t of the training, from 0 to 1.

A schedule remembers nothing: where a run stands says what its learning rate is, also after it was interrupted.
"""


def parameter_groups(model: nn.Module, factors: Mapping[str, float]) -> list[dict[str, Any]]:
    """The parameters to train in groups, each with the factor of its learning rate.

    Args:
        model: the model.
        factors: by the name of a part of the model; 1 for all others.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    >>> [(group["factor"], len(group["params"])) for group in parameter_groups(model, {"1": 50.0})]
    [(1.0, 2), (50.0, 2)]
    """
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            factor = next((f for part, f in factors.items() if name.startswith(f"{part}.")), 1.0)
            groups.setdefault(factor, []).append(parameter)
    return [{"params": parameters, "factor": factor} for factor, parameters in groups.items()]


def make_optimizer(
    name: str,
    parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
    lr: float,
    *,
    momentum: float = MOMENTUM,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """One of `OPTIMIZERS`.

    >>> type(make_optimizer("adamw", torch.nn.Linear(2, 2).parameters(), 0.1)).__name__
    'AdamW'
    """
    if name == "sgd":
        return torch.optim.SGD(parameters, lr, momentum=momentum, weight_decay=weight_decay, nesterov=momentum > 0)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    return kind(parameters, lr, weight_decay=weight_decay)


def rate(lr: float, step: int, total: int, *, schedule: str = "constant", warmup: float = 0.0) -> float:
    """The learning rate of a step, counted from 0, of `total`: a linear warmup over a share of them, then the schedule.

    >>> [round(rate(0.1, step, 100, schedule="cosine", warmup=0.1), 3) for step in (0, 9, 10, 55, 99)]
    [0.01, 0.1, 0.1, 0.05, 0.0]
    """
    rising = math.ceil(warmup * total)
    if step < rising:
        return lr * (step + 1) / rising
    return lr * SCHEDULES[schedule]((step - rising) / max(total - rising, 1))
