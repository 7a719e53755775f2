"""Direction: what compensation does to the loss of each sample, measured."""

from __future__ import annotations

import torch
from torch import Tensor

from compensate.state import State

TOLERANCE = 1e-6
"""Relative changes of a loss below this count as none."""


def measured(s: State) -> Tensor:
    r"""(B,) the sign of :math:`l'_i - l_i`: +1 where compensation raised the loss, -1 where it lowered it, else 0.

    In the paper's words +1 is *negative* compensation (the sample counts more) and -1 is *positive*.

    >>> from compensate import Compensated, Pull
    >>> criterion = Compensated(logit=Pull(1.0))
    >>> s = criterion.evaluate(torch.nn.Identity(), torch.tensor([[3.0, 0.8], [0.1, 0.0]]), torch.tensor([1, 0]))
    >>> measured(s)
    tensor([-1., -1.])
    """
    before, after = s.plain_losses, s.compensated.detach()
    change = after - before
    return torch.where(change.abs() <= TOLERANCE * (1 + before.abs()), 0.0, change.sign())


def summary(signs: Tensor) -> str:
    """One word for many signs: positive, negative, mixed or none.

    >>> summary(torch.tensor([-1.0, 0.0])), summary(torch.tensor([1.0, -1.0])), summary(torch.zeros(2))
    ('positive', 'mixed', 'none')
    """
    raised, lowered = bool((signs > 0).any()), bool((signs < 0).any())
    return {(True, True): "mixed", (True, False): "negative", (False, True): "positive"}.get((raised, lowered), "none")
