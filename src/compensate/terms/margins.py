"""Margins for the given class, on logits or on angles."""

from __future__ import annotations

import math
from typing import Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate.core.batch import Batch, Value, at
from compensate.core.tables import Group
from compensate.core.validation import checked_classes, require_true
from compensate.errors import InputError

Guard = Literal["linear", "easy", "none"]


@final
class CosineHead(nn.Module):
    r"""A classifier whose logits are scaled cosines.

    .. math:: u_{i,c} = s \cos\theta_{i,c} = s\, \frac{w_c^\top z_i}{\|w_c\| \|z_i\|}

    where :math:`z_i` are the features, :math:`w_c` the weight of a class and :math:`s` the scale.

    Args:
        feature_dim: the number of features D.
        num_classes: the number of classes C.
        scale: :math:`s`.

    Shapes: z (B, D) to u (B, C).

    >>> CosineHead(8, 3, scale=30.0)(torch.randn(5, 8)).abs().max() <= 30.0
    tensor(True)
    """

    def __init__(self, feature_dim: int, num_classes: int, scale: float = 64.0) -> None:
        super().__init__()
        if scale <= 0:
            raise InputError(f"scale is {scale}; expected a positive number.")
        self.scale = scale
        self.weight = nn.Parameter(torch.randn(num_classes, feature_dim) / math.sqrt(feature_dim))

    def forward(self, z: Tensor) -> Tensor:
        """(B, C) the logits."""
        # Dividing the answers costs less than dividing the weights.
        lengths = torch.linalg.vector_norm(self.weight, dim=-1).clamp(min=1e-12)
        return F.linear(F.normalize(z, dim=-1), self.weight) * (self.scale / lengths)

    def extra_repr(self) -> str:
        classes, features = self.weight.shape
        return f"{features} -> {classes}, scale={self.scale:g}"


@final
class LogitMargin(nn.Module):
    r"""Takes a margin off the logit of the given class, larger for some classes than for others.

    .. math:: \Delta u_{i,c} = -s\, m_c\, y_{i,c}

    where :math:`m_c \ge 0` is the margin of class :math:`c` and :math:`s` the scale of the logits.

    Args:
        margins: (C,).
        scale: :math:`s`.
    """

    direction, inference, granularity = "negative", "prior", "category"
    margins: Tensor

    def __init__(self, margins: Tensor, scale: float = 1.0) -> None:
        super().__init__()
        if bool((margins < 0).any()) or scale <= 0:
            raise InputError(f"margins {margins} and scale {scale}; expected margins of at least 0, a positive scale.")
        self.scale = scale
        self.register_buffer("margins", margins)

    def forward(self, s: Batch) -> Tensor:
        """(B, C) the logit compensation."""
        checked_classes(s, len(self.margins), "a margin for each class")
        return -self.scale * self.margins.to(s.u.dtype) * s.y

    def extra_repr(self) -> str:
        return f"{self.margins.min():.3g} to {self.margins.max():.3g}, scale={self.scale:g}"


@final
class AngularMargin(nn.Module):
    r"""Adds an angle to that between a sample and its class; the logits must be scaled cosines.

    .. math:: \Delta u_{i,y_i} = s \cos(\theta_{i,y_i} + m_i) - s \cos\theta_{i,y_i}

    where :math:`u = s \cos\theta`. Past :math:`\theta + m = \pi` the cosine would rise again and reward the worst predictions;
    there the guard takes over. The gradient of the model runs through this term, as in its reference.

    Args:
        margin: :math:`m_i` in radians, from 0 to pi/2: a number, or a callable of the batch that returns (B,) or (B, 1).
        scale: :math:`s`, that of the head.
        guard: past pi, "linear" puts :math:`\cos\theta - m \sin m` in the place of :math:`\cos(\theta + m)`, which goes on
            falling; "easy" leaves out the margin wherever :math:`\theta > \pi/2`; "none" trusts the data.

    Reference: Deng et al., ArcFace, CVPR 2019.
    """

    direction = "negative"

    def __init__(self, margin: Value, scale: float, guard: Guard = "linear") -> None:
        super().__init__()
        if not callable(margin) and not 0 <= margin <= math.pi / 2:
            raise InputError(f"margin is {margin}; expected an angle from 0 to pi/2, in radians.")
        if scale <= 0:
            raise InputError(f"scale is {scale}; expected the positive scale of the cosine head.")
        if guard not in ("linear", "easy", "none"):
            raise InputError(f'guard is "{guard}"; expected "linear", "easy" or "none".')
        self.margin, self.scale = margin, scale
        self.guard: Guard = guard

    @property
    def inference(self) -> str:
        """That of the margin: a number is tuned."""
        return getattr(self.margin, "inference", "tuning")

    @property
    def granularity(self) -> str:
        """That of the margin: one number is for all."""
        return getattr(self.margin, "granularity", "corpus")

    def forward(self, s: Batch) -> Tensor:
        """(B, C) the logit compensation."""
        given = s.labels[:, None]
        cos = s.u.gather(1, given)[:, 0] / self.scale
        size = cos.detach().abs()
        require_true(
            ((size <= 1 + 1e-3) | ~size.isfinite()).all(),  # other checks report infinity and NaN
            f"a logit is larger than the scale {self.scale:g}, so the logits are not scaled cosines. Give the model a cosine "
            f"head: model.head = CosineHead(feature_dim, num_classes, scale={self.scale:g}).",
            s.check,
        )
        cos = cos.clamp(-1, 1)
        m = torch.as_tensor(at(self.margin, s)).to(cos)
        m = m.flatten() if m.ndim == 2 else m
        # The slope of the sine is infinite at 0 and pi; a floor under the root stands in for it there.
        sin = (1 - cos.square()).clamp(min=1e-9).sqrt()
        beyond = cos * m.cos() - sin * m.sin()
        if self.guard == "linear":
            beyond = torch.where(cos > -m.cos(), beyond, cos - m * m.sin())
        elif self.guard == "easy":
            beyond = torch.where(cos > 0, beyond, cos)
        change = self.scale * (beyond - cos)
        change = change if s.complete else torch.where(s.valid, change, 0.0)
        return torch.zeros_like(s.u).scatter(1, given, change[:, None])

    def extra_repr(self) -> str:
        margin = "" if isinstance(self.margin, nn.Module) else f"m={self.margin:g}, "
        return f"{margin}scale={self.scale:g}, {self.guard}"


@final
class GroupOfClass(nn.Module):
    """The row of a table of groups, where the group of a sample follows from its class.

    Args:
        table: a row for each group.
        groups: (C,) the group of each class; without it the batch must say: `criterion(..., group=group)`.
    """

    groups: Tensor | None

    def __init__(self, table: Group, groups: Tensor | None = None) -> None:
        super().__init__()
        self.table = table
        self.register_buffer("groups", groups)

    @property
    def inference(self) -> str:
        """That of the table."""
        return self.table.inference

    @property
    def granularity(self) -> str:
        """That of the table."""
        return self.table.granularity

    def forward(self, s: Batch) -> Tensor:
        """(B, *shape) the row of each sample's group."""
        if s.group is None and self.groups is not None:
            checked_classes(s, len(self.groups), "a list of groups")
            s.group = self.groups[s.labels]
        return self.table(s)
