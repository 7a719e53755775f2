r"""Views of an input, and terms that choose among them.

.. math:: \Delta x_i = \sum_k w_{i,k} (T_k(x_i) - x_i)

where :math:`T_k` are differentiable transformations that keep the shape of an input and its class, and the weights :math:`w_i` are inferred.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate.core.batch import Batch
from compensate.core.layout import Places
from compensate.errors import InputError, check


def shifted(x: Tensor) -> Tensor:
    """Shifted forward by one place along the last axis; the first entry is repeated.

    >>> shifted(torch.tensor([[1.0, 2.0, 3.0]]))
    tensor([[1., 1., 2.]])
    """
    return torch.cat([x[..., :1], x[..., :-1]], -1)


def moved(x: Tensor) -> Tensor:
    """Shifted backward by one place along the last axis; the last entry is repeated."""
    return torch.cat([x[..., 1:], x[..., -1:]], -1)


def blurred(x: Tensor) -> Tensor:
    """The mean of each entry and its neighbors along the last axis.

    >>> blurred(torch.tensor([[0.0, 3.0, 0.0]]))
    tensor([[1., 1., 1.]])
    """
    return (shifted(x) + x + moved(x)) / 3


def darkened(x: Tensor) -> Tensor:
    """Half of each entry."""
    return x / 2


MOVING = (shifted, moved)
"""Views that shift places, and so would need labels of places to shift too."""

DEFAULT = (shifted, moved, blurred, darkened)
"""For images, and vectors with related neighboring entries."""


@final
class Views(nn.Module):
    r"""Views of an input, for compensation that leads toward them: :math:`x_i + \sum_k w_{i,k} (T_k(x_i) - x_i)`.

    Args:
        of: functions :math:`T_k` of a batch of inputs (or of `embed(x)`) that keep its shape and treat each sample alone.

    >>> len(Views(shifted, blurred).of)
    2
    """

    def __init__(self, *of: Callable[..., Tensor]) -> None:
        super().__init__()
        if not of or not all(callable(view) for view in of):
            raise InputError(
                f"views are {of!r}; expected at least one function of a batch, such as compensate.terms.views.shifted."
            )
        for number, view in enumerate(of):
            setattr(self, str(number), view)
        self.size = len(of)

    def check(self, places: Places) -> None:
        """Raises if a view moves inputs whose places have labels of their own."""
        if places.dense and any(view in MOVING for view in self.of):
            raise InputError(
                f"a view moves the input, and an input of this batch has {places.each} places with labels of their own, which "
                "would not move with it. Choose views that do not shift places: views=(blurred, darkened)."
            )

    @property
    def of(self) -> tuple[Callable[..., Tensor], ...]:
        """The functions, in order."""
        return tuple(getattr(self, str(number)) for number in range(self.size))


@final
class RandomMix(nn.Module):
    r"""Random weights, :math:`w_i = m_i\, \omega_i` with :math:`m_i \sim \mathrm{Beta}(\alpha, \alpha)` and
    :math:`\omega_i \sim \mathrm{Dirichlet}(\alpha, \dots, \alpha)`.

    Args:
        alpha: 1 for a uniform distribution over mixtures; smaller for mixtures near a single view or the input.

    >>> RandomMix(1.0)
    RandomMix(alpha=1)
    """

    inference, granularity, direction = "prior", "sample", "mixed"

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        check(alpha > 0, "a positive number", alpha=alpha)
        self.alpha = alpha

    def forward(self, s: Batch) -> Tensor:
        alpha = torch.full((s.like.shape[-1],), self.alpha)
        parts = torch.distributions.Dirichlet(alpha).sample(s.like.shape[:1])
        mixed = torch.distributions.Beta(self.alpha, self.alpha).sample(s.like.shape[:1])
        return (mixed[:, None] * parts).to(s.like)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha:g}"


@final
class ExtremeView(nn.Module):
    r"""The view, or the input itself, with the largest (sign +1) or smallest (sign -1) loss; it takes a forward pass for each view.

    Args:
        sign: +1 the worst, -1 the best.

    >>> ExtremeView().direction
    'negative'
    """

    inference, granularity = "adversarial", "sample"

    def __init__(self, sign: Literal[1, -1] = 1) -> None:
        super().__init__()
        check(sign in (1, -1), "+1 (the worst view) or -1 (the best one)", sign=sign)
        self.sign, self.direction = sign, "negative" if sign > 0 else "positive"

    @torch.no_grad()
    def forward(self, s: Batch) -> Tensor:
        """(B, K) the weights: 1 for the view, 0 for others."""
        choices = torch.cat([torch.zeros_like(s.like[:1]), torch.eye(s.like.shape[-1]).to(s.like)])
        losses = torch.stack([self.sign * s.loss_at(dv=choice.expand_as(s.like)) for choice in choices], -1)
        losses = losses.reshape(s.places.batch, s.places.each, len(choices)).sum(1)  # over the places of an input
        return choices[losses.argmax(-1)]


@final
class OtherView(nn.Module):
    r"""The prediction for another view of each input, (B, C), a constant: a guess for label compensation.

    Args:
        number: which of the criterion's views; None for the mean prediction over all.

    >>> OtherView(0)
    OtherView()
    """

    inference, granularity, direction = "prior", "sample", "mixed"

    def __init__(self, number: int | None = None) -> None:
        super().__init__()
        self.number = number

    @torch.no_grad()
    def forward(self, s: Batch) -> Tensor:
        views = s.criterion.views
        if views is None:
            raise InputError("OtherView reads the views of the criterion; give it views=Views(...).")
        wanted = range(len(views.of)) if self.number is None else (self.number,)
        eye = torch.eye(len(views.of)).to(s.e)
        predictions = [s.forward(dv=eye[k].expand(s.places.batch, -1)).softmax(-1) for k in wanted]
        return F.normalize(torch.stack(predictions).mean(0), p=1.0, dim=-1)
