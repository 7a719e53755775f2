"""Learning from a teacher: as a label term and as a loss term."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from compensate.inference.teachers import Softened
from compensate.state import State, Value, at, rowwise


@final
class Distilled(nn.Module):
    r"""Corrects each label by how the teacher differs from the student: :math:`\Delta y_i = \lambda (q_i - p'_i)`.

    Args:
        teacher: its logits, a callable of the state that returns (B, C).
        lam: :math:`\lambda`, a number or a callable of the state.
        temperature: :math:`T` of both distributions.

    Reference: Yao and Wu, Compensation Learning, 2021, Eqs. (34)-(35).
    """

    inference, granularity = "prior", "sample"

    def __init__(self, teacher: nn.Module, lam: Value, temperature: float) -> None:
        super().__init__()
        self.q, self.lam, self.temperature = Softened(teacher, temperature), lam, temperature

    def forward(self, s: State) -> Tensor:
        """(B, C) the label compensation, a constant."""
        own = (s.u.detach() / self.temperature).softmax(-1)
        return rowwise(at(self.lam, s), s.y) * (self.q(s) - own)


@final
class SoftTargetLoss(nn.Module):
    r"""Adds the classic loss of distillation, :math:`\Delta l_i = \lambda\, T\, \mathrm{KL}(q_i \| p'_i)`.

    Args:
        teacher, lam, temperature: as in :class:`Distilled`, whose gradient it shares.

    Reference: Hinton et al., 2015.
    """

    inference, granularity, direction = "prior", "sample", "negative"

    def __init__(self, teacher: nn.Module, lam: Value, temperature: float) -> None:
        super().__init__()
        self.q, self.lam, self.temperature = Softened(teacher, temperature), lam, temperature

    def forward(self, s: State) -> Tensor:
        """(B,) the loss compensation."""
        q, logp = self.q(s), (s.u / self.temperature).log_softmax(-1)
        divergence = (q.xlogy(q) - q * logp).sum(-1)
        return at(self.lam, s) * self.temperature * divergence * s.valid
