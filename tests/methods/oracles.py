"""Comparison with a formula and its gradient, and the outer loss of a meta step with its finite differences."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F


def agree(ours, theirs, u, atol=1e-8):
    """Two losses have the same value and the same gradient by `u`."""
    assert torch.allclose(ours, theirs, atol=atol)
    ours, theirs = (torch.autograd.grad(loss, u, retain_graph=True)[0] for loss in (ours, theirs))
    assert torch.allclose(ours, theirs, atol=atol)


def clean_loss(model, loss, clean, lr):
    """The clean loss of a copy of the model after one step of SGD on `loss(copy)`: Eqs. 13 and 14."""
    ahead = copy.deepcopy(model)
    loss(ahead).backward()
    with torch.no_grad():
        for p in ahead.parameters():
            p -= lr * p.grad
        return F.cross_entropy(ahead(clean[0]), clean[1]).item()


def assert_slope(found, outer, values, entry, *, h=1e-5, tolerance=1e-7):
    """A derivative of `outer(values)` by one entry is that of finite differences."""
    ends = []
    for step in (h, -h):
        moved = values.clone()
        moved[entry] += step
        ends.append(outer(moved))
    assert found.item() == pytest.approx((ends[0] - ends[1]) / (2 * h), abs=tolerance)


def assert_slopes(parameters, grads, outer, *, each=4, h=1e-5):
    """Derivatives by some entries of parameters, which `outer()` reads, are those of finite differences."""
    for parameter, grad in zip(parameters, grads, strict=True):
        flat = parameter.data.view(-1)
        for k in range(0, flat.numel(), max(1, flat.numel() // each)):
            kept, ends = flat[k].item(), []
            for step in (h, -h):
                flat[k] = kept + step
                ends.append(float(outer()))
            flat[k] = kept
            assert grad.reshape(-1)[k].item() == pytest.approx((ends[0] - ends[1]) / (2 * h), abs=1e-7)
