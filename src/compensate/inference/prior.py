"""Inference with prior knowledge: the value is a formula of what is known."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from compensate.errors import InputError
from compensate.state import State, Value, at, rowwise


def uniform(s: State) -> Tensor:
    """(B, C) the guess that knows nothing."""
    return torch.full_like(s.y, 1 / s.y.shape[-1])


def prediction(s: State) -> Tensor:
    """(B, C) the guess of the model itself, a constant."""
    return s.p.detach()


@final
class Toward(nn.Module):
    r"""Pulls each label toward a guess.

    .. math:: \Delta y_i = \lambda (q_i - y_i)

    where :math:`q_i` is the guess, (B, C) on the simplex, and :math:`\lambda \in [0, 1]` says how far to trust it.

    Args:
        q: the guess, a callable of the state.
        lam: the trust, a number or a callable of the state that returns a scalar, (B,) or (B, 1).

    >>> from compensate import Compensated
    >>> smooth = Compensated(label=Toward(uniform, 0.1))   # label smoothing, Eq. 25
    >>> smooth(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.3050)

    Reference: Yao and Wu, Compensation Learning, 2021, Eq. (9).
    """

    on_simplex = True

    def __init__(self, q: Value, lam: Value) -> None:
        super().__init__()
        if not callable(lam) and not 0 <= lam <= 1:
            raise InputError(f"lambda is {lam}; the trust in a guess lies between 0 and 1.")
        self.q, self.lam = q, lam

    def forward(self, s: State) -> Tensor:
        """(B, C) the label compensation."""
        return rowwise(at(self.lam, s), s.y) * (self.q(s) - s.y)

    def extra_repr(self) -> str:
        """Guess and trust."""
        return ", ".join(str(getattr(v, "__name__", v)) for v in (self.q, self.lam) if not isinstance(v, nn.Module))


@final
class Slack(nn.Module):
    r"""Takes up to :math:`\xi` off a loss, and no more than there is.

    .. math:: \Delta l_i = \max(0,\, l_i - \xi_i) - l_i

    A constant added to a loss has no gradient (so Eq. 7 taken literally changes nothing that is learned); this form is the
    nonlinear one of Eq. 31.

    Args:
        xi: the slack, at least 0: a number or a callable of the state that returns a scalar or (B,).

    Reference: Yao and Wu, Compensation Learning, 2021, Eq. (31).
    """

    direction = "positive"

    def __init__(self, xi: Value) -> None:
        super().__init__()
        if not callable(xi) and xi < 0:
            raise InputError(f"xi is {xi}; a slack is at least 0.")
        self.xi = xi

    def forward(self, s: State) -> Tensor:
        """(B,) the loss compensation."""
        return (s.l - at(self.xi, s)).clamp(min=0) - s.l
