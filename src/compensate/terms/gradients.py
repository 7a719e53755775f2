r"""Gradient compensation: it changes the derivative of a loss and not its value.

.. math:: g'_i = g_i + \Delta g_i, \qquad g_i = \frac{\partial l_i}{\partial u_i}

As a loss this is :math:`\langle \Delta g_i, u_i - [u_i] \rangle`, where :math:`[u_i]` is a constant: it is zero and has the gradient
:math:`\Delta g_i`. The same serves features :math:`z_i`, and parameters, for steps that are known from optimizers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, final

import torch
from torch import Tensor, nn

from compensate.core.batch import Batch, Value, at
from compensate.core.criterion import add_gradient, add_parameter_gradients
from compensate.core.layout import present_rows, rowwise
from compensate.core.proximal import TINY, row_norm
from compensate.core.stages import run_with_parameters
from compensate.errors import InputError

Place = Literal["logits", "features", "parameters"]
Level = Literal["sample", "category", "corpus"]


def _nothing(s: Batch) -> Tensor:
    """Nothing at the logits: the term leans elsewhere."""
    return s.u.new_zeros(())


def _parameters(s: Batch) -> list[Tensor]:
    if not isinstance(s.model, nn.Module):
        raise InputError(
            "this criterion changes the gradient of parameters, so it needs the model: call "
            "criterion.evaluate(model, x, target, index).loss instead of criterion(logits, target, index)."
        )
    return [p for p in s.model.parameters() if p.requires_grad]


def _of_parameters(s: Batch, parameters: Sequence[Tensor], losses: Tensor, *, again: bool) -> list[Tensor]:
    loss = s.criterion.reduce(s, losses)
    loss = loss if loss.ndim == 0 else loss.sum()
    return list(torch.autograd.grad(loss, parameters, retain_graph=again, materialize_grads=True))


def _length(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([t.detach().norm() for t in tensors]).norm()


@final
class ClipGradient(nn.Module):
    r"""Shortens gradients that are longer than a bound.

    .. math:: \Delta g_i = \left( \min\left(1, \frac{c}{\|g_i\|_2}\right) - 1 \right) g_i

    Args:
        c: the bound.
        at: where: "logits" and "features", the gradient of each sample; "parameters", that of the batch, as
            :func:`torch.nn.utils.clip_grad_norm_` does after the backward pass (here it costs a second one).

    >>> from compensate import Compensated
    >>> u = torch.tensor([[0.0, 3.0]], requires_grad=True)
    >>> Compensated(gradient=ClipGradient(0.5))(u, torch.tensor([0])).backward()
    >>> u.grad.norm()
    tensor(0.5000)
    """

    inference, direction = "tuning", "positive"

    def __init__(self, c: float, at: Place = "logits") -> None:
        super().__init__()
        if c <= 0:
            raise InputError(f"c is {c}; expected the largest length of a gradient, a positive number.")
        if at not in ("logits", "features", "parameters"):
            raise InputError(f'at is "{at}"; expected "logits", "features" or "parameters".')
        self.c, self.at = c, at

    @property
    def whole_batch(self) -> bool:
        """Whether it reads the samples of a batch together."""
        return self.at == "parameters"

    @property
    def adds(self) -> bool:
        """Whether it leaves the gradients of single samples unchanged."""
        return self.at == "parameters"

    @property
    def granularity(self) -> str:
        """The granularity of the gradients."""
        return "corpus" if self.at == "parameters" else "sample"

    def forward(self, s: Batch) -> Tensor:
        """(B, C) the compensation at the logits."""
        if self.at == "logits":
            return self._cut(s.gradient)
        if self.at == "features":
            (g,) = torch.autograd.grad(s.compensated.sum(), s.z, retain_graph=True)
            add_gradient(s, s.z, self._cut(g))
            return _nothing(s)
        parameters = _parameters(s)
        grads = _of_parameters(s, parameters, s.losses, again=True)
        share = (self.c / (_length(grads) + 1e-6)).clamp(max=1.0)  # as torch divides
        add_parameter_gradients(s, parameters, [(share - 1) * g for g in grads])
        return _nothing(s)

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
        if not callable(sigma) and sigma < 0:
            raise InputError(f"sigma is {sigma}; a standard deviation is at least 0.")
        if at not in ("logits", "parameters"):
            raise InputError(f'at is "{at}"; expected "logits" or "parameters".')
        self.sigma, self.at = sigma, at

    @property
    def whole_batch(self) -> bool:
        """Whether it reads the samples of a batch together."""
        return self.at == "parameters"

    @property
    def granularity(self) -> str:
        """Whether noise is drawn for samples or for the batch."""
        return "corpus" if self.at == "parameters" else "sample"

    def forward(self, s: Batch) -> Tensor:
        """(B, C) the compensation at the logits."""
        sigma = at(self.sigma, s)
        if self.at == "logits":
            return sigma * torch.randn_like(s.u)
        parameters = _parameters(s)
        add_parameter_gradients(s, parameters, [sigma * torch.randn_like(p) for p in parameters])
        return _nothing(s)

    def extra_repr(self) -> str:
        return f"sigma={self.sigma}, {self.at}"


@final
class SharpnessAware(nn.Module):
    r"""The gradient where the loss is largest nearby: sharpness-aware minimization as a term.

    .. math:: \Delta \nabla = \nabla L\Bigl(\Theta + \rho \frac{\nabla L(\Theta)}{\|\nabla L(\Theta)\|}\Bigr) - \nabla L(\Theta)

    The step of the optimizer is then the usual one: it needs neither a second closure nor a special optimizer. It costs one more
    forward and two more backward passes. Compensation of the batch is kept as it is for the second gradient; terms on the
    loss itself are left out of it.

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
        if rho < 0:
            raise InputError(f"rho is {rho}; a radius is at least 0.")
        self.rho = rho

    def forward(self, s: Batch) -> Tensor:
        """Zeros at the logits: it acts on the parameters."""
        parameters, model = _parameters(s), s.model
        assert isinstance(model, nn.Module)
        here = _of_parameters(s, parameters, s.losses, again=True)
        share = self.rho / _length(here).clamp(min=TINY)
        places = {id(p): (p.detach() + share * g).requires_grad_() for p, g in zip(parameters, here, strict=True)}
        ahead = {name: places[id(p)] for name, p in model.named_parameters() if id(p) in places}
        with torch.enable_grad():
            u = run_with_parameters(model, ahead, lambda _: s.forward(dx=s.dx, dv=s.dv, da=s.da))
            losses = s.criterion.losses_of(s, u, du=s.du, dp=s.dp, dy=s.dy, weighted=True)
            there = _of_parameters(s, list(places.values()), losses, again=False)
        add_parameter_gradients(s, parameters, [b - a for a, b in zip(here, there, strict=True)])
        return _nothing(s)

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
        if not callable(eps) and eps < 0:
            raise InputError(f"eps is {eps}; a radius is at least 0.")
        if not callable(sign) and sign not in (1, -1):
            raise InputError(f"sign is {sign}; expected +1 (longer) or -1 (shorter).")
        if per not in ("sample", "category", "corpus"):
            raise InputError(f'per is "{per}"; expected "sample", "category" or "corpus".')
        self.eps, self.sign, self.per = eps, sign, per

    @property
    def whole_batch(self) -> bool:
        """Whether it reads the samples of a batch together."""
        return self.per != "sample"

    @property
    def granularity(self) -> str:
        """The granularity of the rows."""
        return self.per

    @property
    def direction(self) -> str:
        """Negative if samples count more."""
        return "mixed" if callable(self.sign) else "negative" if self.sign > 0 else "positive"

    def forward(self, s: Batch) -> Tensor:
        """(B, C) the compensation at the logits, a constant."""
        mean = self._mean(s)
        length = row_norm(mean)
        eps = torch.as_tensor(rowwise(at(self.eps, s), mean), dtype=mean.dtype, device=mean.device)
        sign = torch.as_tensor(rowwise(at(self.sign, s), mean), dtype=mean.dtype, device=mean.device)
        size = torch.where(sign < 0, torch.minimum(eps.expand_as(length), length), eps.expand_as(length))
        return sign * size * mean / length.clamp(min=TINY)

    def _mean(self, s: Batch) -> Tensor:
        """(B, C) the mean gradient of the active samples that share each sample's row."""
        if self.per == "sample":
            return s.gradient
        keys = s.labels if self.per == "category" else torch.zeros_like(s.labels)
        distinct, which = present_rows(keys, s.u.shape[-1] if self.per == "category" else 1)
        counts = s.active.to(s.gradient.dtype)
        total = s.gradient.new_zeros(len(distinct), s.gradient.shape[-1])
        total.index_add_(0, which, s.gradient * counts[:, None])
        size = counts.new_zeros(len(distinct)).index_add_(0, which, counts)
        return (total / size.clamp(min=1)[:, None])[which]

    def extra_repr(self) -> str:
        return f"eps={self.eps}, per={self.per}"
