"""Methods that compensate predictions."""

from __future__ import annotations

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from compensate.equation import Compensated, Weights
from compensate.errors import InputError
from compensate.inference.statistics import Evidence, Statistic
from compensate.methods.registry import method
from compensate.methods.search import Real, Space, each
from compensate.state import State

__all__ = ["sop"]

REFERENCE_BATCH = 128
"""The authors' steps act on the mean over a batch of this size."""


@final
class OverParameterized(Statistic):
    r"""A prediction compensation for each sample, kept sparse by its form instead of a penalty.

    .. math:: q_i = \mathrm{normalize}\bigl(\max(p_i + a_i - b_i,\, \epsilon)\bigr), \qquad
              a_i = \mu_i^2\, y_i, \quad b_i = \nu_i^2 (1 - y_i), \qquad \Delta p_i = q_i - p_i

    where :math:`\mu_i` (one number) and :math:`\nu_i` (C numbers) start near zero. In each step :math:`\mu_i` descends
    :math:`-\sum_c y_{i,c} \log q_{i,c}` and :math:`\nu_i` descends the squared error
    :math:`\|o_i + a_i - b_i - y_i\|^2`, where :math:`o_i` is the most likely class, one-hot. Products with themselves
    grow by a factor, not by a summand: a sample without doubt stays near zero (implicit regularization).

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

    reader = "over-parameterized noise"
    inference, granularity, direction = "regularized", "sample", "positive"
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


@method(
    "prediction", "positive", "regularized", "sample",
    equation="5-ii",
    reference="Liu et al., Robust Training under Label Noise by Over-parameterization, ICML 2022",
    needs=["index"],
    limits="Cross entropy until the rows have grown from almost nothing, which takes some epochs.",
    search=Space({"lr_u": Real(0.01, 10.0, log=True), "lr_v": Real(0.01, 100.0, log=True)}),
    candidates=each(lr_u=(10.0, 1.0, 1.0, 0.1, 10.0), lr_v=(10.0, 10.0, 1.0, 1.0, 100.0)),
)  # fmt: skip
def sop(
    *,
    num_samples: int,
    num_classes: int,
    lr_u: float = 10 / REFERENCE_BATCH,
    lr_v: float = 10 / REFERENCE_BATCH,
    spread: float = 1e-8,
    floor: float = 1e-4,
    joint: bool = True,
    weight: Weights | None = None,
) -> Compensated:
    r"""Sparse over-parameterization: each sample has a correction of its prediction that starts at almost nothing.

    .. math:: \Delta p_i = \mathrm{normalize}(\max(p_i + \mu_i^2 y_i - \nu_i^2 (1 - y_i), \epsilon)) - p_i

    where :math:`\mu_i` descends the cross entropy and :math:`\nu_i` the squared error of the most likely class. The
    sum is divided by its total where the equation of this library would project (Eq. 6). The authors' SOP+ adds a
    consistency loss over two views and a balance loss, which are left out.

    Args:
        num_samples: the size of the training set.
        num_classes: the number of classes.
        lr_u: the step of :math:`\mu` per sample and visit; the authors use 10 (CIFAR-10) or 1 (CIFAR-100) on the mean
            over a batch of 128, hence the default.
        lr_v: the step of :math:`\nu`; the authors use 10, or 100 for asymmetric noise, on the same mean.
        spread: the standard deviation of the start.
        floor: the smallest entry :math:`\epsilon` before the division. The authors cut off at it once more afterwards.
        joint: let :math:`\mu` descend the squared error too, as the authors' code does and their paper does not.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> import torch
    >>> criterion = sop(num_samples=1000, num_classes=3)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]), torch.tensor([7]))
    tensor(2.3584)
    """
    term = OverParameterized(
        num_samples, num_classes, lr_u=lr_u, lr_v=lr_v, spread=spread, floor=floor, joint=joint
    )  # fmt: skip
    return Compensated(prediction=term, record=Evidence(num_samples), weight=weight)
