r"""Terms that choose among the views of an input: at random, by their losses, or as a second opinion on a label.

.. math:: \Delta x_i = \sum_k w_{i,k} (T_k(x_i) - x_i)

where :math:`T_k` are transformations that keep the class, and the weights :math:`w_i` are what is inferred.
"""

from __future__ import annotations

from typing import Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate.core.batch import Batch
from compensate.errors import InputError


@final
class RandomMix(nn.Module):
    r"""Random weights, :math:`w_i = m_i\, \omega_i` with :math:`m_i \sim \mathrm{Beta}(\alpha, \alpha)` and
    :math:`\omega_i \sim \mathrm{Dirichlet}(\alpha, \dots, \alpha)`.

    Args:
        alpha: 1 for all mixtures alike; smaller for mixtures near a single view or the input.

    >>> RandomMix(1.0)
    RandomMix(alpha=1)
    """

    inference, granularity, direction = "prior", "sample", "mixed"

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        if alpha <= 0:
            raise InputError(f"alpha is {alpha}; expected a positive number.")
        self.alpha = alpha

    def forward(self, s: Batch) -> Tensor:
        """(B, K) the weights."""
        alpha = torch.full((s.like.shape[-1],), self.alpha)
        parts = torch.distributions.Dirichlet(alpha).sample(s.like.shape[:1])
        mixed = torch.distributions.Beta(self.alpha, self.alpha).sample(s.like.shape[:1])
        return (mixed[:, None] * parts).to(s.like)

    def extra_repr(self) -> str:
        """The concentration."""
        return f"alpha={self.alpha:g}"


@final
class ExtremeView(nn.Module):
    r"""The view, or the input itself, with the largest (sign +1) or smallest (sign -1) loss; it costs a forward for each view.

    Args:
        sign: +1 the worst, -1 the best.

    >>> ExtremeView().direction
    'negative'
    """

    inference, granularity = "adversarial", "sample"

    def __init__(self, sign: Literal[1, -1] = 1) -> None:
        super().__init__()
        if sign not in (1, -1):
            raise InputError(f"sign is {sign}; expected +1 (the worst view) or -1 (the best one).")
        self.sign = sign

    @property
    def direction(self) -> str:
        """Negative if losses are raised."""
        return "negative" if self.sign > 0 else "positive"

    @torch.no_grad()
    def forward(self, s: Batch) -> Tensor:
        """(B, K) the weights: 1 for the view, 0 for others."""
        choices = torch.cat([torch.zeros_like(s.like[:1]), torch.eye(s.like.shape[-1]).to(s.like)])
        losses = torch.stack([self.sign * s.loss_at(dv=choice.expand_as(s.like)) for choice in choices], -1)
        losses = losses.reshape(s.places.batch, s.places.each, len(choices)).sum(1)  # over the places of an input
        return choices[losses.argmax(-1)]


@final
class OtherView(nn.Module):
    r"""What the model says of another view of each input, (B, C), a constant: a guess that a label may give way to.

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
        """(B, C) the prediction."""
        views = s.criterion.views
        if views is None:
            raise InputError("OtherView reads the views of the criterion; give it views=Views(...).")
        wanted = range(len(views.of)) if self.number is None else (self.number,)
        eye = torch.eye(len(views.of)).to(s.e)
        said = [s.forward(dv=eye[k].expand(s.places.batch, -1)).softmax(-1) for k in wanted]
        return F.normalize(torch.stack(said).mean(0), p=1.0, dim=-1)
