"""Guesses of labels, from another model or from the model itself."""

from __future__ import annotations

import math
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate.core.batch import Batch, Value, at
from compensate.core.layout import rowwise
from compensate.core.validation import checked_classes, checked_index
from compensate.errors import InputError, check, one_of

Kind = Literal["least_likely", "boltzmann", "second_best"]


@final
class Stored(nn.Module):
    """Outputs (N, C) of another model, computed beforehand: row i belongs to sample i. As a value, (B, C)."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        if rows.ndim != 2 or not rows.is_floating_point():
            raise InputError(
                f"The stored outputs are {rows.dtype} of shape {tuple(rows.shape)}; expected floating point numbers of "
                "shape (samples, classes), one row per sample of the training set."
            )
        self.register_buffer("rows", rows.detach().clone())
        self.rows: Tensor

    def forward(self, s: Batch) -> Tensor:
        checked_classes(s, self.rows.shape[-1], "a store of another model's outputs")
        return self.rows[checked_index(s, len(self.rows), "a store of another model's outputs")].to(s.u.dtype)

    def extra_repr(self) -> str:
        return " x ".join(map(str, self.rows.shape))


@final
class Frozen(nn.Module):
    """Another model, run on the input of each batch; it never learns. As a value, its logits (B, C).

    The model is put in evaluation mode and stays there; its parameters no longer ask for gradients.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.eval().requires_grad_(False)

    def train(self, mode: bool = True) -> Frozen:
        """Leaves the model in evaluation mode."""
        super().train(mode)
        self.model.eval()
        return self

    @torch.no_grad()
    def forward(self, s: Batch) -> Tensor:
        if s.x is None:
            raise InputError(
                "The other model needs the input, not only the logits: write criterion.evaluate(model, x, target, index).loss, or give its outputs "
                "beforehand as a tensor with one row per sample."
            )
        logits = s.places.rows(self.model(s.x), "the other model's logits")
        checked_classes(s, logits.shape[-1], "the other model")
        return logits.to(s.u.dtype)


@final
class Softened(nn.Module):
    r"""Logits, a callable of the batch that returns (B, C), as a distribution: :math:`S(z_i / T)`."""

    def __init__(self, logits: Any, temperature: float = 1.0) -> None:
        super().__init__()
        check(temperature > 0, "a positive number", temperature=temperature)
        self.logits, self.temperature = logits, temperature

    def forward(self, s: Batch) -> Tensor:
        """(B, C) the distribution, a constant."""
        return (self.logits(s).detach() / self.temperature).softmax(-1)

    def extra_repr(self) -> str:
        return f"T={self.temperature:g}"


def logits_of(teacher: nn.Module | Tensor) -> nn.Module:
    """A teacher as a value: a model, or its logits (N, C) computed beforehand."""
    return Frozen(teacher) if isinstance(teacher, nn.Module) else Stored(teacher)


def guess_of(guess: nn.Module | Tensor, num_classes: int | None) -> nn.Module:
    """Another model's labels as a value: a model, its distributions (N, C), or its classes (N,)."""
    if isinstance(guess, nn.Module):
        return Softened(Frozen(guess))
    if guess.ndim == 1 and not guess.is_floating_point():
        if num_classes is None:
            raise InputError("The guess gives class numbers (N,); give num_classes too.")
        guess = F.one_hot(guess.long(), num_classes).to(torch.get_default_dtype())
    return Stored(guess)


def live_prediction(s: Batch) -> Tensor:
    """(B, C) the guess of the model itself, with its gradient: minimum-entropy regularization comes along."""
    return s.p


@final
class Decision(nn.Module):
    """The guess of the model itself, a constant: the class that it holds most likely, one-hot, or the whole prediction."""

    granularity, binary = "sample", True

    def __init__(self, soft: bool = False) -> None:
        super().__init__()
        # No label costs less than the likeliest class; the whole prediction may cost more than the given one.
        self.soft, self.direction = soft, "mixed" if soft else "positive"

    def forward(self, s: Batch) -> Tensor:
        return s.p.detach() if self.soft else decided(s.u.detach(), 0.0 if s.places.binary else None)


def decided(scores: Tensor, threshold: float | None = None) -> Tensor:
    """(B, C) the largest score of each row, one-hot; or with a threshold, the scores beyond it: several labels, or none.

    >>> decided(torch.tensor([[1.0, 3.0]])), decided(torch.tensor([[1.0, 3.0]]), 0.0)
    (tensor([[0., 1.]]), tensor([[1., 1.]]))
    """
    if threshold is not None:
        return (scores > threshold).to(scores.dtype)
    return F.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype)


@final
class Worst(nn.Module):
    r"""The guess that makes learning hardest, in the ways of Goibert and Dohmatob.

    .. math:: q_i^* = \arg\max_{q \in \Delta} l(p_i, y_i + \lambda(q - y_i)) = \text{one-hot at} \arg\min_c p_{i,c}

    Args:
        kind: "least_likely", the maximum above, where tied classes share; "boltzmann", its soft form
            :math:`q_{i,c} \propto e^{-p_{i,c}/T}` over the classes other than the given one; "second_best", the most
            likely class other than the given one.
        temperature: :math:`T` of "boltzmann".
        detach: whether the guess of "boltzmann" is a constant in the gradient of the model; the authors' code lets the
            gradient through. The other two kinds are constants anyway.

    Reference: Goibert and Dohmatob, Adversarial Robustness via Label-Smoothing, 2019.
    """

    inference, granularity = "adversarial", "sample"

    def __init__(self, kind: Kind = "least_likely", temperature: float = 0.1, detach: bool = False) -> None:
        super().__init__()
        one_of("kind", kind, "least_likely", "boltzmann", "second_best")
        check(temperature > 0, "a positive number", temperature=temperature)
        self.kind, self.temperature, self.detach = kind, temperature, detach
        # Only the least likely class raises the loss of every sample.
        self.direction = "negative" if kind == "least_likely" else "mixed"

    def forward(self, s: Batch) -> Tensor:
        p = s.p.detach() if self.detach else s.p
        given = F.one_hot(s.labels, p.shape[-1]).bool()
        if self.kind == "boltzmann":
            return (-p / self.temperature).masked_fill(given, -torch.inf).softmax(-1)
        scores = -p if self.kind == "least_likely" else p.masked_fill(given, -torch.inf)
        chosen = (scores == scores.amax(-1, keepdim=True)).to(p.dtype)
        return chosen / chosen.sum(-1, keepdim=True)

    def extra_repr(self) -> str:
        return f"{self.kind}, T={self.temperature:g}" if self.kind == "boltzmann" else self.kind


@final
class Blend(nn.Module):
    r"""Two guesses in one: :math:`\beta a_i + (1 - \beta) b_i`; `beta` is a number or a callable of the batch."""

    granularity = "sample+category"

    def __init__(self, a: Value, b: Value, beta: Value) -> None:
        super().__init__()
        check(callable(beta) or 0 <= beta <= 1, "a share between 0 and 1", beta=beta)
        self.a, self.b, self.beta = a, b, beta

    def forward(self, s: Batch) -> Tensor:
        beta = rowwise(at(self.beta, s), s.y)
        return beta * self.a(s) + (1 - beta) * self.b(s)

    def extra_repr(self) -> str:
        return "" if isinstance(self.beta, nn.Module) else f"beta={self.beta}"


@final
class ProgressiveTrust(nn.Module):
    r"""Trust in the model's prediction that grows with time and with the certainty of the prediction.

    .. math:: \epsilon_i = \frac{1}{1 + e^{-b (t - t_0)}} \left(1 - \frac{H(p_i)}{\log C}\right)

    where :math:`t \in [0, 1]` is the progress of the training, :math:`t_0` the middle of the transition, :math:`b` its sharpness, and
    :math:`H` the entropy. It is a constant in the gradient of the model.

    Reference: Wang et al., ProSelfLC, CVPR 2021.
    """

    def __init__(self, sharpness: float = 16.0, middle: float = 0.5) -> None:
        super().__init__()
        check(sharpness >= 0, "at least 0", sharpness=sharpness)
        self.sharpness, self.middle = sharpness, middle

    def forward(self, s: Batch) -> Tensor:
        """(B,) the trust."""
        logp = s.logp.detach()
        entropy = -(logp.exp() * logp).sum(-1)
        time = torch.sigmoid(self.sharpness * (s.progress - self.middle)).to(logp.dtype)
        return time * (1 - entropy / math.log(max(logp.shape[-1], 2))).clamp(min=0)

    def extra_repr(self) -> str:
        return f"sharpness={self.sharpness:g}"


@final
class OfClass(nn.Module):
    """A number for each class, as a value: that of the sample's given class, (B,).

    >>> from compensate import Compensated
    >>> from compensate.terms import Toward, uniform
    >>> smooth = Compensated(label=Toward(uniform, OfClass([0.4, 0.1])))   # the first class is smoothed more
    """

    granularity = "category"

    def __init__(self, numbers: list[float]) -> None:
        super().__init__()
        self.register_buffer("numbers", torch.tensor([float(number) for number in numbers]))
        self.numbers: Tensor

    def forward(self, s: Batch) -> Tensor:
        """(B,) the numbers."""
        checked_classes(s, len(self.numbers), "a number for each class")
        return self.numbers[s.labels].to(s.u.dtype)

    def extra_repr(self) -> str:
        return f"{float(self.numbers.min()):g} to {float(self.numbers.max()):g}"
