"""Inference with prior knowledge: the value is a formula."""

from __future__ import annotations

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate.core.batch import Batch, Value, at
from compensate.core.layout import rowwise
from compensate.errors import check


def uniform(s: Batch) -> Tensor:
    """(B, C) the guess that knows nothing; a half for each of several labels.

    >>> from compensate import Compensated
    >>> smooth = Compensated(label=Toward(uniform, 0.1))                  # label smoothing
    >>> s = smooth.evaluate(torch.nn.Identity(), torch.zeros(1, 4), torch.tensor([0]))
    >>> s.dy
    tensor([[-0.0750,  0.0250,  0.0250,  0.0250]])
    """
    return torch.full_like(s.y, 1 / (2 if s.places.binary else s.y.shape[-1]))


def prediction(s: Batch) -> Tensor:
    """(B, C) the guess of the model itself, a constant.

    >>> from compensate import Compensated
    >>> soft = Compensated(label=Toward(prediction, 0.2))                 # soft bootstrapping
    >>> s = soft.evaluate(torch.nn.Identity(), torch.zeros(1, 2), torch.tensor([0]))
    >>> s.dy
    tensor([[-0.1000,  0.1000]])
    """
    return s.p.detach()


@final
class Toward(nn.Module):
    r"""Pulls each label toward a guess.

    .. math:: \Delta y_i = \lambda (q_i - y_i)

    where :math:`q_i` is the guess, (B, C) on the simplex, and :math:`\lambda \in [0, 1]` is the trust in it.

    Args:
        q: the guess, a callable of the batch.
        lam: the trust, a number or a callable of the batch that returns a scalar, (B,) or (B, 1).

    >>> from compensate import Compensated
    >>> smooth = Compensated(label=Toward(uniform, 0.1))   # label smoothing, Eq. 25
    >>> smooth(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.3050)

    Reference: Yao and Wu, Compensation Learning, 2021, Eq. (9).
    """

    on_simplex = True

    def __init__(self, q: Value, lam: Value) -> None:
        super().__init__()
        check(callable(lam) or 0 <= lam <= 1, "a trust between 0 and 1", lam=lam)
        self.q, self.lam = q, lam

    def forward(self, s: Batch) -> Tensor:
        return rowwise(at(self.lam, s), s.y) * (self.q(s) - s.y)

    def extra_repr(self) -> str:
        return ", ".join(str(getattr(v, "__name__", v)) for v in (self.q, self.lam) if not isinstance(v, nn.Module))


@final
class Slack(nn.Module):
    r"""Takes up to :math:`\xi` off a loss, and no more than there is.

    .. math:: l'_i = T \left[ \log(1 + e^{(l_i - \xi_i)/T}) - \log(1 + e^{-\xi_i/T}) \right]
              \;\xrightarrow{T \to 0}\; \max(0,\, l_i - \xi_i), \qquad \Delta l_i = l'_i - l_i

    A constant added to a loss has no gradient; the limit is the nonlinear form of Eq. 31. There a small change of :math:`\xi`
    changes nothing in the gradient of the model: a slack learned by a meta step needs a temperature :math:`T > 0`.

    Args:
        xi: the slack, at least 0: a number or a callable of the batch that returns a scalar or (B,).
        temperature: :math:`T`; 0 is the limit.

    >>> from compensate import Compensated
    >>> criterion = Compensated(loss=Slack(lambda s: torch.full_like(s.l, 2.0)))
    >>> criterion(torch.tensor([[0.0, 3.0], [3.0, 0.0]]), torch.tensor([0, 0]))      # losses 3.05 and 0.05
    tensor(0.5243)

    Reference: Yao and Wu, Compensation Learning, 2021, Eq. (31).
    """

    direction = "positive"

    def __init__(self, xi: Value, temperature: float = 0.0) -> None:
        super().__init__()
        check(temperature >= 0, "at least 0", temperature=temperature)
        check(callable(xi) or xi >= 0, "a slack of at least 0", xi=xi)
        self.xi, self.temperature = xi, temperature

    def forward(self, s: Batch) -> Tensor:
        """(B,) the loss compensation."""
        xi, t = at(self.xi, s), self.temperature
        if t < 1e-9:  # the limit, before the quotients below overflow
            return F.relu(s.l - xi) - s.l  # not clamp: a loss of exactly 0 must not pull slack toward it
        xi = torch.as_tensor(xi).to(s.l)
        return t * (F.softplus((s.l - xi) / t) - F.softplus(-xi / t)) - s.l
