"""Sparse noise by over-parameterisation: squares of tiny numbers grow only where they are needed."""

from __future__ import annotations

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from compensate.errors import InputError
from compensate.inference.statistics import Statistic
from compensate.state import State


@final
class OverParameterised(Statistic):
    r"""A prediction compensation for each sample, kept sparse by its form instead of a penalty.

    .. math:: q_i = \mathrm{normalise}\bigl(\max(p_i + a_i - b_i,\, \epsilon)\bigr), \qquad
              a_i = \mu_i^2\, y_i, \quad b_i = \nu_i^2 (1 - y_i), \qquad \Delta p_i = q_i - p_i

    where :math:`\mu_i` (one number) and :math:`\nu_i` (C numbers) start near zero. In each step :math:`\mu_i` descends
    :math:`-\sum_c y_{i,c} \log q_{i,c}` and :math:`\nu_i` descends the squared error
    :math:`\|o_i + a_i - b_i - y_i\|^2`, where :math:`o_i` is the most likely class, one-hot. Products with themselves
    grow by a factor, not by a summand: a sample without doubt stays near zero (implicit regularisation).

    Args:
        num_samples: the size of the training set.
        num_classes: the number of classes.
        lr_u: the step of :math:`\mu` per sample and visit.
        lr_v: the step of :math:`\nu`.
        spread: the standard deviation of the start.
        floor: the smallest entry :math:`\epsilon` before the division by the sum.
        joint: let :math:`\mu` descend the squared error too, as the authors' code does and their paper does not.

    Reference: Liu et al., Robust Training under Label Noise by Over-parameterization, ICML 2022.
    """

    reader = "over-parameterised noise"
    inference, granularity, direction = "regularised", "sample", "positive"
    on_simplex = True

    def __init__(
        self,
        num_samples: int,
        num_classes: int,
        *,
        lr_u: float,
        lr_v: float,
        spread: float = 1e-8,
        floor: float = 1e-4,
        joint: bool = True,
    ) -> None:
        super().__init__()
        if lr_u <= 0 or lr_v <= 0 or spread <= 0 or not 0 < floor < 1:
            raise InputError(
                f"lr_u={lr_u}, lr_v={lr_v}, spread={spread}, floor={floor}; expected positive steps and spread (from "
                "zero nothing grows), and a floor in (0, 1)."
            )
        self.num_classes = num_classes
        self.num_samples, self.lr_u, self.lr_v, self.floor, self.joint = num_samples, lr_u, lr_v, floor, joint
        self.track("mu", spread * torch.randn(num_samples, 1), merge="rows")
        self.track("nu", spread * torch.randn(num_samples, num_classes), merge="rows")
        self.mu: Tensor
        self.nu: Tensor

    def _parts(self, y: Tensor, mu: Tensor, nu: Tensor) -> tuple[Tensor, Tensor]:
        return (mu.square() * y).clamp(max=1), (nu.square() * (1 - y)).clamp(max=1)

    def _compensated(self, p: Tensor, a: Tensor, b: Tensor) -> Tensor:
        q = (p + a - b).clamp(min=self.floor)
        return q / q.sum(-1, keepdim=True)

    def forward(self, s: State) -> Tensor:
        """(B, C) the prediction compensation."""
        self.check(s)
        index = self.index(s)
        a, b = self._parts(s.y, self.mu[index].to(s.p.dtype), self.nu[index].to(s.p.dtype))
        return self._compensated(s.p, a, b) - s.p

    def observe(self, s: State) -> None:
        """One step of the rows of the batch; a repeated sample takes one step with the mean gradient."""
        rows, place = self.index(s).unique(return_inverse=True)
        y, p = s.y, s.p.detach()
        decided = F.one_hot(p.argmax(-1), p.shape[-1])
        mu = self.mu[rows].to(p.dtype).requires_grad_()
        nu = self.nu[rows].to(p.dtype).requires_grad_()
        with torch.enable_grad():
            a, b = self._parts(y, mu[place], nu[place])
            fit = -(y * self._compensated(p, a, b.detach()).log()).sum(-1)
            error = (decided + (a if self.joint else a.detach()) - b - y).square().sum(-1)
            steps = torch.autograd.grad(((fit + error) * s.valid).sum(), (mu, nu))
        count = p.new_zeros(len(rows), 1).index_add_(0, place, s.valid[:, None].to(p.dtype)).clamp(min=1)
        for kept, old, step, lr in ((self.mu, mu, steps[0], self.lr_u), (self.nu, nu, steps[1], self.lr_v)):
            new = (old.detach() - lr * step / count).to(kept.dtype)
            kept[rows] = torch.where(new.isfinite().all(-1, keepdim=True), new, kept[rows])

    def extra_repr(self) -> str:
        """Size."""
        return f"{self.num_samples} samples"
