"""Class weights: they multiply the summands of the equation, and nothing else reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from compensate.core.layout import rowwise

if TYPE_CHECKING:
    from compensate.core.batch import Batch


def sample_weights(s: Batch) -> Tensor:
    """(B,) the class weight of each sample, a mean of several where its label is a distribution; 1 if there are none."""
    weight = s.criterion.weight
    if weight is None:
        return torch.ones((), device=s.target.device)
    if s.places.binary:
        return weight[s.places.classes(s.target)]
    return weight[s.labels] if s.hard else s.y @ weight.to(s.y.dtype)


def total_weight(s: Batch) -> Tensor:
    """The sum of the class weights of the samples that count, or their number, a scalar tensor; 1 if that is 0."""
    total = (sample_weights(s) * s.valid).sum()
    return torch.where(total == 0, torch.ones_like(total), total)


def weighs_classes(s: Batch, dy: Tensor | None) -> bool:
    """True if each class of a label that is a distribution has its weight inside of the cross entropy, as in torch.

    A term that rewrites losses or gradients, and does not only add to them, sees one loss of a sample: then the sample has one weight.
    """
    criterion = s.criterion
    return criterion.base is None and (dy is not None or not s.hard) and not (criterion.training and criterion.rewrites)


def weighed(s: Batch, summands: Tensor) -> Tensor:
    """(B,) the summands of the samples, multiplied by class weights."""
    if s.criterion.weight is None:
        return summands
    weights = sample_weights(s).to(summands.dtype)
    if not weighs_classes(s, s.dy):
        return weights * summands
    return s.criterion.losses_of(s, s.u, du=s.du, dp=s.dp, dy=s.dy, weighted=True) + weights * (summands - s.l)


def unweighted(s: Batch, grad: Tensor) -> Tensor:
    """The gradient of each input (B, ...) without its class weight, a mean of several where it has many places; 0 where that is 0."""
    weights = s.places.of_sample(sample_weights(s) * s.valid).sum(1)
    weights = rowwise(weights / s.places.of_sample(s.valid).sum(1).clamp(min=1), grad).to(grad.dtype)
    return torch.where(weights > 0, grad / weights, 0.0)
