"""What another model says of a sample."""

from __future__ import annotations

from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate.checks import checked_classes, checked_index
from compensate.errors import InputError
from compensate.state import State


@final
class Stored(nn.Module):
    """Outputs of another model, computed beforehand: row i belongs to sample i. As a value, (B, C).

    Args:
        rows: (N, C).
    """

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        if rows.ndim != 2 or not rows.is_floating_point():
            raise InputError(
                f"The stored outputs are {rows.dtype} of shape {tuple(rows.shape)}; expected floating point numbers of "
                "shape (samples, classes), one row per sample of the training set."
            )
        self.register_buffer("rows", rows.detach().clone())
        self.rows: Tensor

    def forward(self, s: State) -> Tensor:
        """(B, C) the rows of the batch."""
        checked_classes(s, self.rows.shape[-1], "a store of another model's outputs")
        return self.rows[checked_index(s, len(self.rows), "a store of another model's outputs")].to(s.u.dtype)

    def extra_repr(self) -> str:
        """Size."""
        return " x ".join(map(str, self.rows.shape))


@final
class Frozen(nn.Module):
    """Another model, run on the input of each batch; it never learns. As a value, its logits (B, C).

    The model is put in evaluation mode and stays there; its parameters no longer ask for gradients.

    Args:
        model: maps `x` to logits (B, C).
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
    def forward(self, s: State) -> Tensor:
        """(B, C) the logits."""
        if s.x is None:
            raise InputError(
                "The other model needs the input, not only the logits: write "
                "criterion.evaluate(model, x, target, index).loss, or give its outputs beforehand as a tensor with one "
                "row per sample."
            )
        logits = s.places.rows(self.model(s.x), "the other model's logits")
        checked_classes(s, logits.shape[-1], "the other model")
        return logits.to(s.u.dtype)


@final
class Softened(nn.Module):
    r"""Logits as a distribution: :math:`S(z_i / T)`.

    Args:
        logits: a callable of the state that returns (B, C).
        temperature: :math:`T`.
    """

    def __init__(self, logits: Any, temperature: float = 1.0) -> None:
        super().__init__()
        if temperature <= 0:
            raise InputError(f"temperature is {temperature}; expected a positive number.")
        self.logits, self.temperature = logits, temperature

    def forward(self, s: State) -> Tensor:
        """(B, C) the distribution, a constant."""
        return (self.logits(s).detach() / self.temperature).softmax(-1)

    def extra_repr(self) -> str:
        """The temperature."""
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
