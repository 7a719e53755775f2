"""What follows the loss of a batch: the rows that were read take their step."""

from __future__ import annotations

import torch
from torch import Tensor

from compensate.state import THROUGH, State
from compensate.touched import Touched
from compensate.weighing import total_weight


def step_rows(s: State) -> None:
    """Moves the rows of learned tables by the gradient of the unreduced losses.

    On logits under plain cross entropy the slope of the loss is that gradient. Elsewhere autograd finds it, between the
    losses and the rows only. Rows on features, views and edges wait for the backward
    pass of the user.
    """
    if s.by_slope:
        assert s.slope is not None
        for touched in s.touched:
            touched.table.descend(touched, _by_row(s, s.slope, touched), s)
        return
    now = [touched for touched in s.touched if touched.slot not in THROUGH]
    if now:
        rows = [touched.rows for touched in now]
        with torch.enable_grad():
            total = s.compensated.sum()
        grads = torch.autograd.grad(total, rows, retain_graph=True, materialize_grads=True)
        for touched, grad in zip(now, grads, strict=True):
            touched.table.descend(touched, grad, s)
    later = [touched for touched in s.touched if touched.slot in THROUGH]
    if later:
        _step_in_backward(s, later)


def _by_row(s: State, slope: Tensor, touched: Touched) -> Tensor:
    """Slopes of samples (B, C) added up for the rows that they share, and for the entries if a row is one number.

    Samples that do not count have no slope. Where there is a place for each sample, those that share a row meet later.
    """
    slope = s.places.totals(slope) if touched.by_sample else slope
    if slope.dtype != touched.rows.dtype or slope.shape[1:] != touched.rows.shape[1:]:
        slope = slope.to(touched.rows.dtype).sum_to_size(len(slope), *touched.rows.shape[1:])
    return slope if touched.which is None else torch.zeros_like(touched.rows).index_add_(0, touched.which, slope)


def _step_in_backward(s: State, touched: list[Touched]) -> None:
    """Rows on features move when the user's backward pass brings their gradient: no second pass through the model.

    Gradient scaling and accumulation multiply the loss before its backward pass; the gradient of the loss itself
    tells by how much, so that the step of a row does not depend on them. An input moves by the gradient of its own loss, the mean
    over its places; an edge by that of the mean over the batch, which all samples share.
    """
    summed = s.criterion.divided_by(s)
    of_edges = summed / total_weight(s)
    if s.places.several:
        summed = summed * (s.places.of_sample(s.valid).any(1).sum() / s.valid.sum().clamp(min=1))
    scale: list[Tensor] = []
    s.loss.register_hook(scale.append)
    for one in touched:
        _when_known(s, one, of_edges if one.slot == "da" else summed, scale)


def _when_known(s: State, touched: Touched, times: Tensor | int, scale: list[Tensor]) -> None:
    def hook(grad: Tensor) -> None:
        with torch.no_grad():
            touched.table.descend(touched, grad * times / scale[-1], s)

    touched.rows.register_hook(hook)
