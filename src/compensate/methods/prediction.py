"""Methods that compensate predictions."""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch import Tensor

from compensate.checks import at_hand
from compensate.equation import Compensated, Weights
from compensate.errors import InputError
from compensate.granularity import finite
from compensate.inference.statistics import Evidence, Statistic, largest
from compensate.methods.registry import method
from compensate.methods.search import Real, Space, each
from compensate.state import State
from compensate.touched import distinct_rows

__all__ = ["sop"]

REFERENCE_BATCH = 128
"""The authors' steps act on the mean over a batch of this size."""


class _Renormalized(torch.autograd.Function):
    """What leads from predictions p to r / S, where r is what noise made of them and S its sum; its derivative in few passes over memory."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, r: Tensor, total: Tensor, floor: float) -> Tensor:
        ctx.save_for_backward(p, r, total)
        ctx.floor = floor
        return (r / total).sub_(p)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        p, r, total = ctx.saved_tensors
        cut = r <= ctx.floor
        if torch.is_grad_enabled():  # a second derivative is wanted
            q = torch.where(cut, r, r + (p - p.detach()))
            (found,) = torch.autograd.grad(q / q.sum(-1, keepdim=True) - p, p, grad, create_graph=True)
            return found, None, None, None
        slope = grad * r
        mean = slope.sum(-1, keepdim=True).div_(total)
        torch.sub(grad, mean, out=slope)
        return slope.masked_fill_(cut, 0.0).div_(total).sub_(grad), None, None, None


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

    def forward(self, s: State) -> Tensor:
        """(B, C) the prediction compensation; if the batch is accepted, its rows take their step."""
        self.check(s)
        p, index = s.p, self.index(s)
        with torch.no_grad():
            mu, nu = self.mu.index_select(0, index).to(p.dtype), self.nu.index_select(0, index).to(p.dtype)
            noise = self._noise(s, mu, nu)
            r = (p + noise).clamp_(min=self.floor)
            total = r.sum(-1, keepdim=True)
        if s.learn:
            s.later(lambda: self._step(s, index, mu, nu, noise, r, total))
        return _Renormalized.apply(p, r, total, self.floor)  # type: ignore[no-untyped-call]

    def _noise(self, s: State, mu: Tensor, nu: Tensor) -> Tensor:
        """(B, C) a - b, each between 0 and 1."""
        if s.hard:
            noise = nu.square().neg_().clamp_(min=-1)
            return noise.scatter_(1, s.labels[:, None], mu.square().clamp_(max=1))
        return (mu.square() * s.y).clamp(max=1) - (nu.square() * (1 - s.y)).clamp(max=1)

    def _step(self, s: State, index: Tensor, mu: Tensor, nu: Tensor, noise: Tensor, r: Tensor, total: Tensor) -> None:
        r"""One step of the rows of the batch, down the derivatives in closed form.

        .. math:: \frac{\partial}{\partial \mu} = 2 \mu \sum_c y_c \Bigl( \frac1S - \frac{y_c}{r_c} + 2 e_c \Bigr), \qquad
                  \frac{\partial}{\partial \nu_c} = -4\, \nu_c (1 - y_c)\, e_c, \qquad e = o + a - b - y

        where :math:`r = \max(p + a - b, \epsilon)` and :math:`S` is its sum; there is no slope where a part is cut off.
        """
        given = s.labels[:, None]
        saturated, decided = mu.square() > 1, largest(s.p.detach())[1][:, None]
        if s.hard:
            e = noise  # in its place: nobody reads it any more
            over = None if at_hand(e) and float(e.min()) > -1 else e <= -1
            e.scatter_add_(1, decided, torch.ones_like(mu))
            own = e.gather(1, given) - 1
            near = r.gather(1, given)
            slope = (1 / total - 1 / near) * (near > self.floor)
            slope = slope + 2 * own if self.joint else slope
            e.scatter_(1, given, 0.0)
            e = e if over is None else e.masked_fill_(over, 0.0)
        else:
            y = s.y
            e = (noise - y).scatter_add_(1, decided, torch.ones_like(mu))
            slope = (y.sum(-1, keepdim=True) / total - y / r) * (r > self.floor)
            slope = y * (slope + 2 * e if self.joint else slope) * (mu.square() * y <= 1)
            slope = slope.sum(-1, keepdim=True)
            e = e * (1 - y) * (nu.square() * (1 - y) <= 1)
            saturated = torch.zeros_like(saturated)
        self._move(s, index, self.mu, mu, (2 * mu * slope).masked_fill_(saturated, 0.0), self.lr_u)
        self._move(s, index, self.nu, nu, e.mul_(nu), -4 * self.lr_v)

    def _move(self, s: State, index: Tensor, kept: Tensor, old: Tensor, slope: Tensor, lr: float) -> None:
        """Rows go down the mean slope of the samples that share them; one that would not be finite stays."""
        distinct, which = (index, None) if s.repeats is False else distinct_rows(index)
        if which is not None or not s.complete:
            slope = torch.where(s.valid[:, None], slope, 0.0)
        if which is not None:
            count = slope.new_zeros(len(distinct), 1).index_add_(0, which, s.valid[:, None].to(slope.dtype))
            slope = slope.new_zeros(len(distinct), slope.shape[1]).index_add_(0, which, slope) / count.clamp(min=1)
            slope = slope[which]
        new = old.add_(slope, alpha=-lr)
        if not (at_hand(new) and math.isfinite(new.sum().item())):
            new = torch.where(finite(new), new, kept.index_select(0, index).to(new.dtype))
        kept.index_copy_(0, index, new.to(kept.dtype))

    def observe(self, s: State) -> None:
        """The term has moved its rows."""

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
