r"""Gradient compensation: it changes the derivative of a loss and not its value.

.. math:: g'_i = g_i + \Delta g_i, \qquad g_i = \frac{\partial l_i}{\partial u_i}

As a loss this is :math:`\langle \Delta g_i, u_i - [u_i] \rangle`, where :math:`[u_i]` is a constant; the same serves features and parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, final

import torch
from torch import Tensor, nn

from compensate.core.batch import Batch, Value, at
from compensate.core.criterion import add_gradient
from compensate.core.layout import present_rows, rowwise
from compensate.core.proximal import TINY, row_norm
from compensate.core.stages import run_with_parameters
from compensate.errors import InputError, check, one_of

Place = Literal["logits", "features", "parameters"]
Level = Literal["sample", "category", "corpus"]


def _parameters(s: Batch) -> list[Tensor]:
    if not isinstance(s.model, nn.Module):
        raise InputError(
            "this criterion changes the gradient of parameters, so it needs the model: call "
            "criterion.evaluate(model, x, target, index).loss instead of criterion(logits, target, index)."
        )
    return [p for p in s.model.parameters() if p.requires_grad]


def _of_parameters(
    s: Batch, parameters: Sequence[Tensor], losses: Tensor, *, again: bool
) -> tuple[list[Tensor], Tensor]:
    """The gradients of the reduced loss, and their length."""
    loss = s.criterion.reduce(s, losses).sum()
    grads = list(torch.autograd.grad(loss, parameters, retain_graph=again, materialize_grads=True))
    return grads, torch.stack([grad.norm() for grad in grads]).norm()


def add_parameter_gradients(s: Batch, parameters: Sequence[Tensor], deltas: Sequence[Tensor]) -> Tensor:
    """Adds `deltas` to the derivative of the reduced loss by the parameters; returns 0, the compensation at the logits."""
    zero = torch.stack([(d * (p - p.detach())).sum() for p, d in zip(parameters, deltas, strict=True)]).sum()
    # All samples have equal shares, and their weights sum to the divisor of the reduction.
    divisor = s.criterion.divisor(s) if s.criterion.reduction == "mean" else 1
    s.charge(zero * s.valid * (divisor / s.criterion.total_weight(s)).to(zero.dtype))
    return s.u.new_zeros(())


@final
class ClipGradient(nn.Module):
    r"""Shortens gradients that are longer than a bound.

    .. math:: \Delta g_i = \left( \min\left(1, \frac{c}{\|g_i\|_2}\right) - 1 \right) g_i

    Args:
        c: the bound.
        at: "logits" and "features", the gradient of each sample; "parameters", that of the batch, as torch's `clip_grad_norm_`.

    >>> from compensate import Compensated
    >>> u = torch.tensor([[0.0, 3.0]], requires_grad=True)
    >>> Compensated(gradient=ClipGradient(0.5))(u, torch.tensor([0])).backward()
    >>> u.grad.norm()
    tensor(0.5000)
    """

    inference, direction = "tuning", "positive"

    def __init__(self, c: float, at: Place = "logits") -> None:
        super().__init__()
        check(c > 0, "the largest length of a gradient, a positive number", c=c)
        one_of("at", at, "logits", "features", "parameters")
        self.c, self.at = c, at
        self.whole_batch = self.adds = at == "parameters"
        self.granularity = "corpus" if self.adds else "sample"

    def forward(self, s: Batch) -> Tensor:
        if self.at == "logits":
            return self._cut(s.gradient)
        if self.at == "features":
            (g,) = torch.autograd.grad(s.compensated.sum(), s.z, retain_graph=True)
            add_gradient(s, s.z, self._cut(g))
            return s.u.new_zeros(())
        parameters = _parameters(s)
        grads, length = _of_parameters(s, parameters, s.losses, again=True)
        share = (self.c / (length + 1e-6)).clamp(max=1.0)  # as torch divides
        return add_parameter_gradients(s, parameters, [(share - 1) * g for g in grads])

    def _cut(self, g: Tensor) -> Tensor:
        length = row_norm(g)
        return torch.where(length > self.c, self.c / length.clamp(min=TINY) - 1, 0.0) * g

    def extra_repr(self) -> str:
        return f"c={self.c:g}, {self.at}"


@final
class GradientNoise(nn.Module):
    r"""Adds normal noise to gradients, :math:`\Delta g \sim N(0, \sigma^2)`.

    Args:
        sigma: the standard deviation, a number or a callable of the batch, such as a schedule.
        at: "logits", noise for each sample; "parameters", noise for the gradient of the batch.

    >>> GradientNoise(0.1, at="parameters")
    GradientNoise(sigma=0.1, parameters)

    Reference: Neelakantan et al., Adding Gradient Noise Improves Learning for Very Deep Networks, 2015.
    """

    inference, direction, adds = "tuning", "mixed", True

    def __init__(self, sigma: Value, at: Literal["logits", "parameters"] = "logits") -> None:
        super().__init__()
        check(callable(sigma) or sigma >= 0, "a standard deviation of at least 0", sigma=sigma)
        one_of("at", at, "logits", "parameters")
        self.sigma, self.at, self.whole_batch = sigma, at, at == "parameters"
        self.granularity = "corpus" if self.whole_batch else "sample"

    def forward(self, s: Batch) -> Tensor:
        sigma = at(self.sigma, s)
        if self.at == "logits":
            return sigma * torch.randn_like(s.u)
        parameters = _parameters(s)
        return add_parameter_gradients(s, parameters, [sigma * torch.randn_like(p) for p in parameters])

    def extra_repr(self) -> str:
        return f"sigma={self.sigma}, {self.at}"


@final
class SharpnessAware(nn.Module):
    r"""The gradient where the loss is largest nearby: sharpness-aware minimization as a term.

    .. math:: \Delta \nabla = \nabla L\Bigl(\Theta + \rho \frac{\nabla L(\Theta)}{\|\nabla L(\Theta)\|}\Bigr) - \nabla L(\Theta)

    It costs one more forward and two more backward passes, and needs no special optimizer. The second gradient keeps the compensation
    of the batch and leaves out terms on the loss itself.

    Args:
        rho: the radius :math:`\rho`.

    >>> from compensate import Compensated
    >>> criterion = Compensated(gradient=SharpnessAware(0.05))
    >>> model = nn.Linear(2, 2)
    >>> criterion.evaluate(model, torch.ones(3, 2), torch.tensor([0, 1, 0])).loss.backward()

    Reference: Foret et al., Sharpness-Aware Minimization for Efficiently Improving Generalization, ICLR 2021.
    """

    inference, granularity, direction, whole_batch, adds = "adversarial", "corpus", "mixed", True, True

    def __init__(self, rho: float = 0.05) -> None:
        super().__init__()
        check(rho >= 0, "a radius of at least 0", rho=rho)
        self.rho = rho

    def forward(self, s: Batch) -> Tensor:
        """Zeros at the logits: it acts on the parameters."""
        parameters, model = _parameters(s), s.model
        assert isinstance(model, nn.Module)
        here, length = _of_parameters(s, parameters, s.losses, again=True)
        share = self.rho / length.clamp(min=TINY)
        places = {id(p): (p.detach() + share * g).requires_grad_() for p, g in zip(parameters, here, strict=True)}
        ahead = {name: places[id(p)] for name, p in model.named_parameters() if id(p) in places}
        with torch.enable_grad():
            u = run_with_parameters(model, ahead, lambda _: s.forward(dx=s.dx, dv=s.dv, da=s.da))
            losses = s.criterion.losses_of(s, u, du=s.du, dp=s.dp, dy=s.dy, weighted=True)
            there, _ = _of_parameters(s, list(places.values()), losses, again=False)
        return add_parameter_gradients(s, parameters, [b - a for a, b in zip(here, there, strict=True)])

    def extra_repr(self) -> str:
        return f"rho={self.rho:g}"


@final
class Amplify(nn.Module):
    r"""Makes gradients as long, or as short, as a ball allows: the adversary of gradients, in closed form.

    .. math:: \Delta g_c = \arg\max_{\|\Delta\| \le \epsilon} \pm \|\bar g_c + \Delta\|_2
              = \epsilon \frac{\bar g_c}{\|\bar g_c\|} \quad\text{or}\quad
              -\min(\epsilon, \|\bar g_c\|) \frac{\bar g_c}{\|\bar g_c\|}

    where :math:`\bar g_c` is the mean gradient of the samples of the batch that share a row.

    Args:
        eps: the radius :math:`\epsilon`, a number or a callable of the batch that returns a scalar or (B,).
        sign: +1 lengthens (samples count more: negative compensation), -1 shortens (positive compensation); or a callable of the
            state that returns (B,) signs, the same for samples that share a row.
        per: the granularity of a row: "sample", "category" or "corpus".

    >>> from compensate import Compensated
    >>> s = Compensated(gradient=Amplify(0.1, sign=-1)).evaluate(nn.Identity(), torch.zeros(1, 2), torch.tensor([0]))
    >>> s.gradient.norm() - (s.gradient + s.dg).norm()
    tensor(0.1000)

    Reference: Li, Gradient Perturbation: Learning to Perturb Gradients for Adaptive Training, 2026.
    """

    inference = "adversarial"

    def __init__(self, eps: Value, *, sign: Value = 1, per: Level = "sample") -> None:
        super().__init__()
        check(callable(eps) or eps >= 0, "a radius of at least 0", eps=eps)
        check(callable(sign) or sign in (1, -1), "+1 (longer) or -1 (shorter)", sign=sign)
        one_of("per", per, "sample", "category", "corpus")
        self.eps, self.sign, self.granularity, self.whole_batch = eps, sign, per, per != "sample"
        self.direction = "mixed" if callable(sign) else "negative" if sign > 0 else "positive"

    def forward(self, s: Batch) -> Tensor:
        """(B, C) the compensation at the logits, a constant."""
        mean = s.gradient
        if self.whole_batch:
            by_class = self.granularity == "category"
            keys = s.labels if by_class else torch.zeros_like(s.labels)
            distinct, which = present_rows(keys, s.u.shape[-1] if by_class else 1)
            counts = s.active.to(mean.dtype)
            total = mean.new_zeros(len(distinct), mean.shape[-1]).index_add_(0, which, mean * counts[:, None])
            size = counts.new_zeros(len(distinct)).index_add_(0, which, counts)
            mean = (total / size.clamp(min=1)[:, None])[which]
        length = row_norm(mean)
        eps, sign = (torch.as_tensor(rowwise(at(value, s), mean)).to(mean) for value in (self.eps, self.sign))
        size = torch.where(sign < 0, torch.minimum(eps.expand_as(length), length), eps.expand_as(length))
        return sign * size * mean / length.clamp(min=TINY)

    def extra_repr(self) -> str:
        return f"eps={self.eps}, per={self.granularity}"
