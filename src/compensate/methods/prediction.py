"""Methods that compensate predictions."""

from __future__ import annotations

from functools import partial
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from compensate.core.batch import Batch
from compensate.core.criterion import Compensated
from compensate.core.layout import distinct_rows, is_eager_cpu
from compensate.core.stages import full_precision
from compensate.core.statistics import Statistic, largest
from compensate.errors import check
from compensate.methods.registry import Formula, Real, Space, each, method
from compensate.methods.weighting import of_given

__all__ = ["epsilon_softmax", "sop"]

REFERENCE_BATCH = 128
"""The authors' steps act on the mean over a batch of this size."""


class _Normalize(torch.autograd.Function):
    r"""(B, C) :math:`r / S - p` with :math:`r = \max(p + a - b, \epsilon)` and its sum :math:`S` (B, 1), which are returned too.

    Its derivative in closed form needs a third of the temporaries of autograd, and SOP is several times faster.
    """

    @staticmethod
    def forward(ctx: Any, p: Tensor, noise: Tensor, floor: float) -> tuple[Tensor, Tensor, Tensor]:
        r = (p + noise).clamp_(min=floor)
        total = r.sum(-1, keepdim=True)
        ctx.save_for_backward(p, r, total)
        ctx.floor = floor
        ctx.mark_non_differentiable(r, total)
        ctx.set_materialize_grads(False)
        return (r / total).sub_(p), r, total

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, None, None]:
        p, r, total = ctx.saved_tensors
        if grad is None:
            return None, None, None
        if torch.is_grad_enabled():  # second derivatives, by definition
            r = torch.where(r > ctx.floor, r + (p - p.detach()), r)
            return torch.autograd.grad(r / r.sum(-1, keepdim=True) - p, p, grad, create_graph=True)[0], None, None
        mean = (grad * r).sum(-1, keepdim=True) / total
        slope = (grad - mean).div_(total)
        torch.ops.aten.threshold_backward(slope, r, ctx.floor, grad_input=slope)  # 0 where the floor holds
        return slope.sub_(grad), None, None


@final
class OverParameterized(Statistic):
    r"""The prediction term of :func:`sop`: a correction for each sample, sparse by its form instead of a penalty.

    In each step :math:`\mu_i` (one number) descends :math:`-\sum_c y_{i,c} \log q_{i,c}` and :math:`\nu_i` (C numbers) the squared error
    :math:`\|o_i + a_i - b_i - y_i\|^2`, where :math:`o_i` is the decision, :math:`a_i = \mu_i^2 y_i` and :math:`b_i = \nu_i^2 (1 - y_i)`.
    """

    reader = "over-parameterized noise"
    inference, granularity, direction = "regularized", "sample", "positive"
    on_simplex = True

    def __init__(
        self, num_samples: int, num_classes: int, lr_u: float, lr_v: float, spread: float, floor: float, joint: bool
    ) -> None:
        super().__init__()
        numbers = {"lr_u": lr_u, "lr_v": lr_v, "spread": spread}
        check(min(numbers.values()) > 0, "positive numbers (zero never grows)", **numbers)
        check(0 < floor < 1, "a small probability", floor=floor)
        self.num_classes = num_classes
        self.num_samples, self.lr_u, self.lr_v, self.floor, self.joint = num_samples, lr_u, lr_v, floor, joint
        self.mu = self.track("mu", spread * torch.randn(num_samples, 1), merge="rows")
        self.nu = self.track("nu", spread * torch.randn(num_samples, num_classes), merge="rows")

    def forward(self, s: Batch) -> Tensor:
        """(B, C) the prediction compensation; if the batch is accepted, its rows take their step."""
        self.check(s)
        p, index = s.p, self.index(s)
        with torch.no_grad():
            mu, nu = self.mu.index_select(0, index).to(p.dtype), self.nu.index_select(0, index).to(p.dtype)
            if s.hard:
                noise = nu.square().neg_().clamp_(min=-1).scatter_(1, s.labels[:, None], mu.square().clamp_(max=1))
            else:
                noise = (mu.square() * s.y).clamp(max=1) - (nu.square() * (1 - s.y)).clamp(max=1)
        delta, r, total = _Normalize.apply(p, noise, self.floor)  # type: ignore[no-untyped-call]
        if s.learn:
            s.later(partial(self._step, s, index, mu, nu, noise, r, total))
        return delta

    def _step(self, s: Batch, index: Tensor, mu: Tensor, nu: Tensor, noise: Tensor, r: Tensor, total: Tensor) -> None:
        r"""One step of the rows of the batch, down the derivatives in closed form.

        .. math:: \frac{\partial}{\partial \mu} = 2 \mu \sum_c y_c \Bigl( \frac1S - \frac{y_c}{r_c} + 2 e_c \Bigr), \qquad
                  \frac{\partial}{\partial \nu_c} = -4\, \nu_c (1 - y_c)\, e_c, \qquad e = o + a - b - y

        where :math:`r = \max(p + a - b, \epsilon)` and :math:`S` is its sum; clamped parts have no slope.
        """
        decided = largest(s.p.detach())[1][:, None]
        if s.hard:
            given = s.labels[:, None]
            e = noise.scatter_(1, decided, 1.0, reduce="add")
            near, own = r.gather(1, given), e.gather(1, given) - 1
            e.scatter_(1, given, 0.0)
            torch.ops.aten.hardtanh_backward(e, nu, -1, 1, grad_input=e)  # 0 where a square is cut off at 1
            slope = (1 / total - 1 / near) * (near > self.floor)
            slope = 2 * mu * (slope + 2 * own if self.joint else slope) * (mu.square() <= 1)
        else:
            y = s.y
            e = (noise - y).scatter_add_(1, decided, torch.ones_like(mu))
            slope = (y.sum(-1, keepdim=True) / total - y / r) * (r > self.floor)
            slope = y * (slope + 2 * e if self.joint else slope) * (mu.square() * y <= 1)
            slope = 2 * mu * slope.sum(-1, keepdim=True)
            e = e * (1 - y) * (nu.square() * (1 - y) <= 1)
        # Rows go down the mean slope of the samples that share them; one that would not be finite stays.
        distinct, which = distinct_rows(index, s.index)
        for kept, old, down, lr in ((self.mu, mu, slope, self.lr_u), (self.nu, nu, e.mul_(nu), -4 * self.lr_v)):
            if which is not None or not s.complete:
                down = torch.where(s.valid[:, None], down, 0.0)
            if which is not None:
                count = down.new_zeros(len(distinct), 1).index_add_(0, which, s.valid[:, None].to(down.dtype))
                total = down.new_zeros(len(distinct), down.shape[1]).index_add_(0, which, down)
                down = (total / count.clamp(min=1))[which]
            new = old.add_(down, alpha=-lr)
            finite = new.sum(-1, keepdim=True).isfinite()
            if not (is_eager_cpu(finite) and bool(finite.all())):
                new = torch.where(finite, new, kept.index_select(0, index).to(new.dtype))
            kept.index_copy_(0, index, new.to(kept.dtype))

    def observe(self, s: Batch) -> None:
        """The term has moved its rows."""


@method(
    "prediction", "positive", "regularized", "sample", equation="5-ii", record="loss", needs=["index"],
    reference="Liu et al., Robust Training under Label Noise by Over-parameterization, ICML 2022",
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
) -> Compensated:
    r"""Sparse over-parameterization: each sample has a correction of its prediction that starts near zero.

    .. math:: \Delta p_i = q_i - p_i, \qquad
              q_i = \mathrm{normalize}(\max(p_i + \mu_i^2 y_i - \nu_i^2 (1 - y_i), \epsilon))

    where :math:`\mu_i` descends the cross entropy and :math:`\nu_i` the squared error of the most likely class. The authors' SOP+ adds
    a consistency loss over two views and a balance loss, which are left out.

    Args:
        lr_u: the step of :math:`\mu` per sample and visit; the authors use 10 (CIFAR-100: 1) on the mean over a batch of 128.
        lr_v: the step of :math:`\nu`; the authors use 10, or 100 for asymmetric noise, on the same mean.
        spread: the standard deviation of the start.
        floor: the smallest entry :math:`\epsilon` before the division. The authors apply it again afterwards.
        joint: let :math:`\mu` descend the squared error too, as the authors' code does and their paper does not.

    >>> criterion = sop(num_samples=1000, num_classes=3)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]), torch.tensor([7]))
    tensor(2.3584)
    """
    return Compensated(prediction=OverParameterized(num_samples, num_classes, lr_u, lr_v, spread, floor, joint))


def decision_term(s: Batch, m: float, floor: float) -> Tensor:
    """The prediction term of :func:`epsilon_softmax`, before the division by its total; entries raised to the floor have no gradient."""
    p = full_precision(s.u).softmax(-1)
    lifted = p.clamp(min=floor * (1 + m)) - p
    return lifted + m * F.one_hot(p.argmax(-1), p.shape[-1]).to(p.dtype)


def absolute_error_term(s: Batch, alpha: float, beta: float) -> Tensor:
    r"""The loss term of :func:`epsilon_softmax`, :math:`\Delta l_i = (\alpha - 1)\, l_i + \beta\, (2 - 2 p_{i,y_i})`."""
    return torch.where(s.valid, (alpha - 1) * s.l + beta * (2 - 2 * of_given(s, s.p)), 0.0)


@method(
    "prediction+loss", "mixed", "prior", "sample", equation="5-ii", record="loss",
    reference="Wang et al., epsilon-Softmax: Approximating One-Hot Vectors for Mitigating Label Noise, NeurIPS 2024",
    limits="m = 0, alpha = 1, beta = 0 is cross entropy. With a large m the mean absolute error must do the learning: keep beta > 0.",
    search=Space({"m": Real(1.0, 1e6, log=True), "alpha": Real(0.01, 1.0, log=True), "beta": Real(0.5, 10.0, log=True)}),
    candidates=each(m=(1e5, 1e4, 1e5, 10.0, 1e5), alpha=(0.01, 0.05, 0.1, 0.5, 1.0), beta=(5.0, 5.0, 5.0, 1.0, 1.0)),
)  # fmt: skip
def epsilon_softmax(*, m: float = 1e5, alpha: float = 0.01, beta: float = 5.0, floor: float = 1e-8) -> Compensated:
    r"""Epsilon-softmax: predictions move toward their most likely class, for any label.

    .. math:: l'_i = -\alpha \log \tilde p_{i,y_i} + \beta\, (2 - 2 p_{i,y_i}), \qquad
              \tilde p_i = \frac{p_i + m\, e_{\arg\max p_i}}{1 + m}

    The distance of :math:`\tilde p_i` to a corner of the simplex is at most :math:`\epsilon = 2 (1 - 1/C) / (1 + m)`, hence the name.

    Args:
        m: the weight of the decision; the authors use 1e5 on CIFAR-10 and 1e4 on CIFAR-100.
        alpha, beta: the weights of the two losses; the authors use 0.01 and 5 on CIFAR-10.
        floor: the smallest entry of :math:`\tilde p_i`, as in the authors' code.

    >>> epsilon_softmax()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(9.1930)
    """
    check(m >= 0, "at least 0 (0 is the plain softmax)", m=m)
    check(0 <= floor < 1, "a small probability, such as 1e-8", floor=floor)
    check(alpha >= 0 and beta >= 0, "weights of at least 0", alpha=alpha, beta=beta)
    loss = Formula(absolute_error_term, alpha=alpha, beta=beta)
    return Compensated(prediction=Formula(decision_term, m=m, floor=floor), loss=loss, onto="normalize")
