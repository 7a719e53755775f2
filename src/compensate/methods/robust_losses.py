"""Robust losses of the literature for comparison: other forms of the loss, and one that clips logits."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from compensate.core.batch import Batch
from compensate.core.criterion import Compensated
from compensate.core.proximal import TINY
from compensate.core.stages import full_precision
from compensate.errors import InputError
from compensate.methods.registry import Block, Real, Space, each, method
from compensate.methods.weighting import Becomes, of_given

__all__ = ["anl", "logit_clip", "nce_mae", "poly_loss", "sce"]


def _check_weights(alpha: float, beta: float) -> None:
    for name, value in (("alpha", alpha), ("beta", beta)):
        if value < 0:
            raise InputError(f"{name} is {value}; the weight of a loss is at least 0.")


@final
class Symmetric(Block):
    r"""The loss of :func:`sce`, :math:`\alpha\, H(y, p) + \beta\, H(p, y)` with :math:`\log 0` set to `log_zero`."""

    def __init__(self, alpha: float, beta: float, log_zero: float) -> None:
        super().__init__()
        _check_weights(alpha, beta)
        if log_zero >= 0:
            raise InputError(
                f"log_zero is {log_zero}; it replaces the logarithm of zero and must be negative, such as -4."
            )
        self.alpha, self.beta, self.log_zero = alpha, beta, log_zero

    def forward(self, s: Batch) -> Tensor:
        """(B,) the losses."""
        reverse = -(s.p * s.y.clamp(min=math.exp(self.log_zero)).log()).sum(-1)
        return self.beta * reverse - self.alpha * of_given(s, s.logp)


@final
class ActivePassive(Block):
    """The losses of :func:`nce_mae` (without `floor`) and :func:`anl` (with it)."""

    def __init__(self, alpha: float, beta: float, floor: float | None = None) -> None:
        super().__init__()
        _check_weights(alpha, beta)
        if floor is not None and not 0 < floor < 1:
            raise InputError(f"floor is {floor}; expected a small probability, such as 1e-7.")
        self.alpha, self.beta, self.floor = alpha, beta, floor

    def forward(self, s: Batch) -> Tensor:
        """(B,) the losses."""
        # The sum of log-probabilities may overflow; divided by the lowest one, at most -log 2, it does not. The bounds of 0.5 are
        # for a single class, whose loss 0 / 0 becomes 0.
        shares = s.logp / s.logp.detach().amin(-1, keepdim=True).clamp(max=-0.5)
        active = of_given(s, shares) / shares.sum(-1).clamp(min=0.5)
        # A quotient by minus infinity would be 0 for every label.
        active = torch.where((s.u.detach() == -torch.inf).any(-1), torch.inf, active)
        if self.floor is None:
            passive = 1 - of_given(s, s.p)
        else:
            likely = s.logp.clamp(min=math.log(self.floor)) - math.log(self.floor)
            passive = 1 - of_given(s, likely) / likely.sum(-1)
        return self.alpha * active + self.beta * passive


@final
class Poly1(Block):
    """The loss of :func:`poly_loss`."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        if epsilon < -1:
            raise InputError(f"epsilon is {epsilon}; below -1 the loss would reward wrong predictions.")
        self.epsilon = epsilon

    @property
    def direction(self) -> str:
        """By the sign of the coefficient."""
        return "negative" if self.epsilon > 0 else "positive"

    def forward(self, s: Batch) -> Tensor:
        """(B,) the losses."""
        return self.epsilon * (1 - of_given(s, s.p)) - of_given(s, s.logp)


@final
class ClipLogits(Block):
    """The logit term of :func:`logit_clip`; gradients pass through it."""

    def __init__(self, tau: float) -> None:
        super().__init__()
        if tau <= 0:
            raise InputError(f"tau is {tau}; expected a positive length.")
        self.tau = tau

    def forward(self, s: Batch) -> Tensor:
        """(B, C) the logit compensation."""
        u = full_precision(s.u)
        largest = u.detach().abs().amax(-1, keepdim=True).clamp(min=TINY)  # the square of 1e30 would overflow
        length = largest * torch.linalg.vector_norm(u / largest, dim=-1, keepdim=True)
        share = torch.where(length > self.tau, self.tau / length.clamp(min=self.tau), 1.0)
        return ((share - 1) * u).to(s.u.dtype)


@method(
    "loss", "mixed", "prior", "sample",
    equation="2",
    reference="Wang et al., Symmetric Cross Entropy for Robust Learning with Noisy Labels, ICCV 2019",
    record="loss",
    kind="weighting",
    limits="Not compensation: another loss. alpha = 1, beta = 0 is cross entropy; alpha = 0 is mean absolute error times -log_zero.",
    search=Space({"alpha": Real(0.01, 1.0, log=True), "beta": Real(0.1, 6.0, log=True)}),
    candidates=each(alpha=(0.1, 1.0, 0.01, 0.1, 0.5), beta=(1.0, 1.0, 1.0, 5.0, 0.3)),
)  # fmt: skip
def sce(*, alpha: float = 0.1, beta: float = 1.0, log_zero: float = -4.0) -> Compensated:
    r"""Symmetric cross entropy, a reshaped loss and not compensation: it adds the cross entropy with label and prediction exchanged.

    .. math:: l'_i = -\alpha \log p_{i,y_i} - \beta \sum_c p_{i,c} \log y_{i,c}, \qquad \log 0 := A

    For class numbers the second sum is :math:`-A (1 - p_{i,y_i})`.

    Args:
        alpha: :math:`\alpha`; the authors use 0.1 on CIFAR-10.
        beta: :math:`\beta`; the authors use 1.
        log_zero: :math:`A`; the authors' paper uses -4 in its definition and -6 in its experiments, their code log 1e-4.

    >>> sce()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(3.8575)
    """
    return Compensated(loss=Becomes(Symmetric(alpha, beta, log_zero)))


@method(
    "loss", "mixed", "prior", "sample",
    equation="2",
    reference="Ma et al., Normalized Loss Functions for Deep Learning with Noisy Labels, ICML 2020",
    record="loss",
    kind="weighting",
    limits="Not compensation: another loss. alpha = 0 is mean absolute error, which learns slowly with many classes.",
    search=Space({"alpha": Real(0.1, 10.0, log=True), "beta": Real(0.1, 10.0, log=True)}),
    candidates=each(alpha=(1.0, 1.0, 10.0, 10.0, 0.1), beta=(1.0, 10.0, 1.0, 0.1, 10.0)),
)  # fmt: skip
def nce_mae(*, alpha: float = 1.0, beta: float = 1.0) -> Compensated:
    r"""Normalized cross entropy with mean absolute error, a reshaped loss and not compensation.

    .. math:: l'_i = \alpha \frac{\log p_{i,y_i}}{\sum_c \log p_{i,c}} + \beta (1 - p_{i,y_i})

    Args:
        alpha: :math:`\alpha`; the authors use 1 on CIFAR-10 and 10 on CIFAR-100.
        beta: :math:`\beta`; the authors use 1.

    >>> nce_mae()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.3362)
    """
    return Compensated(loss=Becomes(ActivePassive(alpha, beta)))


@method(
    "loss", "mixed", "prior", "sample",
    equation="2",
    reference="Ye et al., Active Negative Loss: A Robust Framework for Learning with Noisy Labels, 2024 (NeurIPS 2023)",
    record="loss",
    kind="weighting",
    limits="Not compensation: another loss. The authors' l1 penalty on the model's weights is left to the optimizer.",
    search=Space({"alpha": Real(0.1, 10.0, log=True), "beta": Real(0.1, 10.0, log=True)}),
    candidates=each(alpha=(5.0, 1.0, 10.0, 5.0, 1.0), beta=(5.0, 1.0, 1.0, 1.0, 5.0)),
)  # fmt: skip
def anl(*, alpha: float = 5.0, beta: float = 5.0, floor: float = 1e-7) -> Compensated:
    r"""Active negative loss (ANL-CE), a reshaped loss and not compensation.

    .. math:: l'_i = \alpha \frac{\log p_{i,y_i}}{\sum_c \log p_{i,c}}
              + \beta \left(1 - \frac{A + \log p_{i,y_i}}{\sum_c (A + \log p_{i,c})}\right), \qquad A = -\log p_{\min}

    The second part replaces the mean absolute error of :func:`nce_mae`; its gradient is larger for samples that the model has
    learned. The authors add an l1 penalty on the weights of the model, which is left out here.

    Args:
        alpha: :math:`\alpha`; the authors use 5 on CIFAR-10 and 10 on CIFAR-100.
        beta: :math:`\beta`; the authors use 5 on CIFAR-10 and 1 on CIFAR-100.
        floor: :math:`p_{\min}`, the smallest probability.

    >>> anl()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(5.5492)
    """
    return Compensated(loss=Becomes(ActivePassive(alpha, beta, floor)))


@method(
    "loss", "negative", "prior", "sample",
    equation="2",
    reference="Leng et al., PolyLoss: A Polynomial Expansion Perspective of Classification Loss Functions, ICLR 2022",
    record="loss",
    kind="weighting",
    limits="Not compensation: another loss. epsilon = 0 is cross entropy; above it wrong labels count more, below it less.",
    search=Space({"epsilon": Real(-1.0, 6.0)}),
    candidates=each(epsilon=(1.0, -1.0, -0.5, 2.0, 5.0)),
)  # fmt: skip
def poly_loss(*, epsilon: float = 1.0) -> Compensated:
    r"""PolyLoss (Poly-1), a reshaped loss and not compensation: it changes the first coefficient of the series of cross entropy.

    .. math:: l'_i = -\log p_{i,y_i} + \epsilon (1 - p_{i,y_i})

    Its gradient is the gradient of cross entropy times the weight :math:`1 + \epsilon\, p_{i,y_i}`.

    Args:
        epsilon: :math:`\epsilon`, at least -1; the authors use 2 on ImageNet.

    >>> poly_loss()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(3.2638)
    """
    return Compensated(loss=Becomes(Poly1(epsilon)))


@method(
    "logit", "mixed", "prior", "sample",
    equation="4 with a term that follows the logits",
    reference="Wei et al., Mitigating Memorization of Noisy Labels by Clipping the Model Prediction, ICML 2023",
    record="loss",
    limits="A large tau is cross entropy. A small one bounds the loss from both sides, and confident models learn slowly.",
    search=Space({"tau": Real(0.5, 10.0, log=True)}),
    candidates=each(tau=(1.5, 1.0, 2.5, 4.0, 8.0)),
)  # fmt: skip
def logit_clip(*, tau: float = 1.5) -> Compensated:
    r"""LogitClip: logit vectors are cut to a maximum length, which bounds every loss.

    .. math:: \Delta u_i = \min\left(0,\; \frac{\tau}{\|u_i\|_2} - 1\right) u_i

    Unlike most compensation it is not constant in the gradient: the part that would lengthen the vector vanishes. The authors' code
    scales vectors longer than its `temp` to the length 1 / `temp`, a jump unless `temp` is 1; this follows their paper, where both
    lengths are :math:`\tau`. The loss is at least :math:`\log(1 + (C - 1) e^{-\tau \sqrt{C / (C - 1)}})` and at most
    :math:`\log C + \sqrt2\, \tau`.

    Args:
        tau: :math:`\tau`. The authors also try other norms; their default is the Euclidean one.

    >>> logit_clip()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.5341)
    """
    return Compensated(logit=ClipLogits(tau))
