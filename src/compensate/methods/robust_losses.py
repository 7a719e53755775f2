"""Robust losses of the field, for contrast: other shapes of the loss, and one that clips logits."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from compensate.core.batch import Batch
from compensate.core.criterion import Compensated, Weights
from compensate.core.proximal import TINY
from compensate.core.stages import full_precision
from compensate.core.statistics import recorded
from compensate.errors import InputError
from compensate.methods.registry import Real, Space, each, method
from compensate.methods.weighting import Becomes, of_given

__all__ = ["anl", "logit_clip", "nce_mae", "poly_loss", "sce"]


def _not_negative(**weights: float) -> None:
    for name, value in weights.items():
        if value < 0:
            raise InputError(f"{name} is {value}; the weight of a loss is at least 0.")


@final
class Symmetric(nn.Module):
    r"""Cross entropy with its mirror image, :math:`\alpha\, H(y, p) + \beta\, H(p, y)`, where :math:`\log 0` counts as `log_zero`."""

    def __init__(self, alpha: float, beta: float, log_zero: float) -> None:
        super().__init__()
        _not_negative(alpha=alpha, beta=beta)
        if log_zero >= 0:
            raise InputError(f"log_zero is {log_zero}; what stands for the logarithm of zero is negative, such as -4.")
        self.alpha, self.beta, self.log_zero = alpha, beta, log_zero

    def forward(self, s: Batch) -> Tensor:
        """(B,) the losses."""
        reverse = -(s.p * s.y.clamp(min=math.exp(self.log_zero)).log()).sum(-1)
        return self.beta * reverse - self.alpha * of_given(s, s.logp)

    def extra_repr(self) -> str:
        """Weights."""
        return f"alpha={self.alpha:g}, beta={self.beta:g}, log_zero={self.log_zero:g}"


@final
class ActivePassive(nn.Module):
    r"""Normalized cross entropy, which rewards the given class, with a loss that punishes the others.

    Args:
        alpha, beta: the weights of the two.
        floor: if given, the second is the normalized negative cross entropy, with probabilities kept above it; else the mean
            absolute error.
    """

    def __init__(self, alpha: float, beta: float, floor: float | None = None) -> None:
        super().__init__()
        _not_negative(alpha=alpha, beta=beta)
        if floor is not None and not 0 < floor < 1:
            raise InputError(f"floor is {floor}; expected a small probability, such as 1e-7.")
        self.alpha, self.beta, self.floor = alpha, beta, floor

    def forward(self, s: Batch) -> Tensor:
        """(B,) the losses."""
        # The sum of log-probabilities may leave the range of numbers; relative to the lowest, at most -log 2, it does not. The bounds of 0.5
        # are for a single class, which has no loss: 0 / 0 is 0.
        shares = s.logp / s.logp.detach().amin(-1, keepdim=True).clamp(max=-0.5)
        active = of_given(s, shares) / shares.sum(-1).clamp(min=0.5)
        # A quotient by minus infinity would be 0 whatever the label.
        active = torch.where((s.u.detach() == -torch.inf).any(-1), torch.inf, active)
        return self.alpha * active + self.beta * self._passive(s)

    def _passive(self, s: Batch) -> Tensor:
        if self.floor is None:
            return 1 - of_given(s, s.p)
        likely = s.logp.clamp(min=math.log(self.floor)) - math.log(self.floor)
        return 1 - of_given(s, likely) / likely.sum(-1)

    def extra_repr(self) -> str:
        """Weights."""
        return f"alpha={self.alpha:g}, beta={self.beta:g}"


@final
class Poly1(nn.Module):
    r"""Cross entropy with another first coefficient, :math:`l_i + \epsilon (1 - p_{i,y_i})`."""

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

    def extra_repr(self) -> str:
        """The coefficient."""
        return f"epsilon={self.epsilon:g}"


@final
class ClipLogits(nn.Module):
    r"""Shortens long logit vectors, :math:`\Delta u_i = \min(0, \tau / \|u_i\|_2 - 1)\, u_i`; gradients pass through it."""

    def __init__(self, tau: float) -> None:
        super().__init__()
        if tau <= 0:
            raise InputError(f"tau is {tau}; expected a positive length.")
        self.tau = tau

    def forward(self, s: Batch) -> Tensor:
        """(B, C) the logit compensation."""
        u = full_precision(s.u)
        largest = u.detach().abs().amax(-1, keepdim=True).clamp(min=TINY)  # the square of 1e30 has no number
        length = largest * torch.linalg.vector_norm(u / largest, dim=-1, keepdim=True)
        share = torch.where(length > self.tau, self.tau / length.clamp(min=self.tau), 1.0)
        return ((share - 1) * u).to(s.u.dtype)

    def extra_repr(self) -> str:
        """The length."""
        return f"tau={self.tau:g}"


@method(
    "loss", "mixed", "prior", "sample",
    equation="2",
    reference="Wang et al., Symmetric Cross Entropy for Robust Learning with Noisy Labels, ICCV 2019",
    kind="weighting",
    limits="Not compensation: another loss. alpha = 1, beta = 0 is cross entropy; alpha = 0 is mean absolute error times -log_zero.",
    search=Space({"alpha": Real(0.01, 1.0, log=True), "beta": Real(0.1, 6.0, log=True)}),
    candidates=each(alpha=(0.1, 1.0, 0.01, 0.1, 0.5), beta=(1.0, 1.0, 1.0, 5.0, 0.3)),
)  # fmt: skip
def sce(
    *,
    num_samples: int | None = None,
    alpha: float = 0.1,
    beta: float = 1.0,
    log_zero: float = -4.0,
    weight: Weights | None = None,
) -> Compensated:
    r"""Symmetric cross entropy, a reshaped loss and not compensation: label and prediction also change places.

    .. math:: l'_i = -\alpha \log p_{i,y_i} - \beta \sum_c p_{i,c} \log y_{i,c}, \qquad \log 0 := A

    For class numbers the second sum is :math:`-A (1 - p_{i,y_i})`.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        alpha: :math:`\alpha`; the authors use 0.1 on CIFAR-10.
        beta: :math:`\beta`; the authors use 1.
        log_zero: :math:`A`; the authors' paper uses -4 in its definition and -6 in its experiments, their code log 1e-4.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> sce()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(3.8575)
    """
    return Compensated(loss=Becomes(Symmetric(alpha, beta, log_zero)), record=recorded(num_samples), weight=weight)


@method(
    "loss", "mixed", "prior", "sample",
    equation="2",
    reference="Ma et al., Normalized Loss Functions for Deep Learning with Noisy Labels, ICML 2020",
    kind="weighting",
    limits="Not compensation: another loss. alpha = 0 is mean absolute error, which learns slowly where there are many classes.",
    search=Space({"alpha": Real(0.1, 10.0, log=True), "beta": Real(0.1, 10.0, log=True)}),
    candidates=each(alpha=(1.0, 1.0, 10.0, 10.0, 0.1), beta=(1.0, 10.0, 1.0, 0.1, 10.0)),
)  # fmt: skip
def nce_mae(
    *, num_samples: int | None = None, alpha: float = 1.0, beta: float = 1.0, weight: Weights | None = None
) -> Compensated:
    r"""Normalized cross entropy with mean absolute error, a reshaped loss and not compensation.

    .. math:: l'_i = \alpha \frac{\log p_{i,y_i}}{\sum_c \log p_{i,c}} + \beta (1 - p_{i,y_i})

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        alpha: :math:`\alpha`; the authors use 1 on CIFAR-10 and 10 on CIFAR-100.
        beta: :math:`\beta`; the authors use 1.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> nce_mae()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.3362)
    """
    return Compensated(loss=Becomes(ActivePassive(alpha, beta)), record=recorded(num_samples), weight=weight)


@method(
    "loss", "mixed", "prior", "sample",
    equation="2",
    reference="Ye et al., Active Negative Loss: A Robust Framework for Learning with Noisy Labels, 2024 (NeurIPS 2023)",
    kind="weighting",
    limits="Not compensation: another loss. The authors' l1 penalty on the model's weights is left to the optimizer.",
    search=Space({"alpha": Real(0.1, 10.0, log=True), "beta": Real(0.1, 10.0, log=True)}),
    candidates=each(alpha=(5.0, 1.0, 10.0, 5.0, 1.0), beta=(5.0, 1.0, 1.0, 1.0, 5.0)),
)  # fmt: skip
def anl(
    *,
    num_samples: int | None = None,
    alpha: float = 5.0,
    beta: float = 5.0,
    floor: float = 1e-7,
    weight: Weights | None = None,
) -> Compensated:
    r"""Active negative loss (ANL-CE), a reshaped loss and not compensation.

    .. math:: l'_i = \alpha \frac{\log p_{i,y_i}}{\sum_c \log p_{i,c}}
              + \beta \left(1 - \frac{A + \log p_{i,y_i}}{\sum_c (A + \log p_{i,c})}\right), \qquad A = -\log p_{\min}

    The second part takes the place of the mean absolute error in :func:`nce_mae`: its gradient is larger for samples that
    are learned already. The authors add an l1 penalty on the weights of the model, which is left out here.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        alpha: :math:`\alpha`; the authors use 5 on CIFAR-10 and 10 on CIFAR-100.
        beta: :math:`\beta`; the authors use 5 on CIFAR-10 and 1 on CIFAR-100.
        floor: :math:`p_{\min}`, below which a probability counts as this.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> anl()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(5.5492)
    """
    return Compensated(loss=Becomes(ActivePassive(alpha, beta, floor)), record=recorded(num_samples), weight=weight)


@method(
    "loss", "negative", "prior", "sample",
    equation="2",
    reference="Leng et al., PolyLoss: A Polynomial Expansion Perspective of Classification Loss Functions, ICLR 2022",
    kind="weighting",
    limits="Not compensation: another loss. epsilon = 0 is cross entropy; above it wrong labels count more, below it less.",
    search=Space({"epsilon": Real(-1.0, 6.0)}),
    candidates=each(epsilon=(1.0, -1.0, -0.5, 2.0, 5.0)),
)  # fmt: skip
def poly_loss(*, num_samples: int | None = None, epsilon: float = 1.0, weight: Weights | None = None) -> Compensated:
    r"""PolyLoss (Poly-1), a reshaped loss and not compensation: the first term of the series of the logarithm counts otherwise.

    .. math:: l'_i = -\log p_{i,y_i} + \epsilon (1 - p_{i,y_i})

    Its gradient is that of cross entropy times the weight :math:`1 + \epsilon\, p_{i,y_i}`.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        epsilon: :math:`\epsilon`, at least -1; the authors use 2 on ImageNet.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> poly_loss()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(3.2638)
    """
    return Compensated(loss=Becomes(Poly1(epsilon)), record=recorded(num_samples), weight=weight)


@method(
    "logit", "mixed", "prior", "sample",
    equation="4 with a term that follows the logits",
    reference="Wei et al., Mitigating Memorization of Noisy Labels by Clipping the Model Prediction, ICML 2023",
    limits="A large tau is cross entropy. A small one bounds the loss from both sides, so that confident models learn slowly.",
    search=Space({"tau": Real(0.5, 10.0, log=True)}),
    candidates=each(tau=(1.5, 1.0, 2.5, 4.0, 8.0)),
)  # fmt: skip
def logit_clip(*, num_samples: int | None = None, tau: float = 1.5, weight: Weights | None = None) -> Compensated:
    r"""LogitClip: logit vectors that are longer than a bound are cut to it, so that no loss is larger than a bound.

    .. math:: \Delta u_i = \min\left(0,\; \frac{\tau}{\|u_i\|_2} - 1\right) u_i

    Unlike most compensation it is no constant in the gradient: what would lengthen the vector has none. The authors' code scales
    vectors that are longer than its `temp` to the length 1 / `temp`, which is a jump unless `temp` is 1; here, as in their paper, the
    length that is cut and the length that is left are both :math:`\tau`. The
    loss is at least :math:`\log(1 + (C - 1) e^{-\tau \sqrt{C / (C - 1)}})` and at most :math:`\log C + \sqrt2\, \tau`.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        tau: :math:`\tau`. The authors also try other norms; theirs is the Euclidean one by default.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> logit_clip()(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.5341)
    """
    return Compensated(logit=ClipLogits(tau), record=recorded(num_samples), weight=weight)
