"""Optimisers by name, and learning rates as functions of how much of the training is done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import nn

from compensate.training.config import Config

OPTIMISERS: dict[str, Callable[[Iterable[nn.Parameter], Config], torch.optim.Optimizer]] = {
    "sgd": lambda p, c: torch.optim.SGD(
        p, lr=c.lr or 0.0, momentum=c.momentum, weight_decay=c.weight_decay or 0.0, nesterov=c.momentum > 0
    ),
    "adam": lambda p, c: torch.optim.Adam(p, lr=c.lr or 0.0, weight_decay=c.weight_decay or 0.0),
    "adamw": lambda p, c: torch.optim.AdamW(p, lr=c.lr or 0.0, weight_decay=c.weight_decay or 0.0),
}

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda t: 1.0,
    "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2,
    "linear": lambda t: 1 - t,
    "step": lambda t: 1.0 if t < 0.5 else 0.1 if t < 0.75 else 0.01,
}
"""The factor of the learning rate at the share t of the training, from 0 to 1.

A schedule remembers nothing: where a run stands says what its learning rate is, also after it was interrupted.
"""


def rate(config: Config, step: int, total: int) -> float:
    """The learning rate of a step, counted from 0, of `total`.

    >>> config = Config(lr=0.1, schedule="cosine", warmup=0.1)
    >>> [round(rate(config, step, 100), 3) for step in (0, 9, 10, 55, 99)]
    [0.01, 0.1, 0.1, 0.05, 0.0]
    """
    rising = math.ceil(config.warmup * total)
    peak = config.lr or 0.0
    if step < rising:
        return peak * (step + 1) / rising
    return peak * SCHEDULES[config.schedule or "constant"]((step - rising) / max(total - rising, 1))
