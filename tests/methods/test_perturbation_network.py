"""Rows from a network: what it is shown, how it learns, and that it knows samples it has never seen."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compensate import InputError
from compensate.methods import causal_logit
from compensate.methods.feature import DYNAMICS, dynamics
from compensate.terms.meta import meta_gradient


def by_hand(u, y):
    """The nine numbers of every sample, one at a time."""
    losses, margins, rows = [], [], []
    for row, label in zip(u, y, strict=True):
        total = sum(math.exp(v) for v in row)
        p = [math.exp(v) / total for v in row]
        losses.append(math.log(1 - math.log(p[label])))
        margins.append(p[label] - max(q for k, q in enumerate(p) if k != label))
        slope = math.sqrt(sum((q - (k == label)) ** 2 for k, q in enumerate(p)))
        rows.append((slope, -sum(q * math.log(q) for q in p) / math.log(len(p))))
    found = []
    for i, label in enumerate(y):
        same = [k for k, other in enumerate(y) if other == label]
        loss, margin = (sum(v[k] for k in same) / len(same) for v in (losses, margins))
        found.append(
            [losses[i], margins[i], *rows[i], loss, losses[i] - loss, margin, margins[i] - margin, len(same) / len(y)]
        )
    return torch.tensor(found, dtype=torch.float64)


def case():
    torch.manual_seed(4)
    model = nn.Linear(3, 4).double()
    x, y = torch.randn(6, 3).double(), torch.tensor([0, 1, 1, 3, 0, 1])
    return model, (x, y), (torch.randn(5, 3).double(), torch.randint(4, (5,)))


def test_the_network_is_shown_nine_numbers_of_each_sample():
    model, (x, y), _ = case()
    s = causal_logit().double().evaluate(model, x, y)
    assert dynamics(s).shape == (6, len(DYNAMICS))
    torch.testing.assert_close(dynamics(s), by_hand(model(x).tolist(), y.tolist()))


def test_it_is_cross_entropy_before_the_first_meta_step_and_a_training_step_does_not_move_it():
    model, (x, y), _ = case()
    criterion = causal_logit().double()
    loss = criterion.evaluate(model, x, y).loss
    torch.testing.assert_close(loss, F.cross_entropy(model(x), y))
    loss.backward()
    assert all(p.grad is None for p in criterion.parameters())


def moved(criterion):
    with torch.no_grad():
        for p in criterion.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return criterion


def test_the_meta_gradient_is_that_of_finite_differences():
    model, batch, clean = case()
    criterion = moved(causal_logit(hidden=5).double())
    outer, _, _, grads = meta_gradient(criterion, model, batch, clean, lr=0.5)

    def look_ahead():
        x, y = batch
        with torch.no_grad():
            du = criterion.evaluate(model, x, y).du
        loss = F.cross_entropy(model(x) + du, y)
        g = torch.autograd.grad(loss, list(model.parameters()))
        weight, bias = (p.detach() - 0.5 * d for p, d in zip(model.parameters(), g, strict=True))
        return F.cross_entropy(clean[0] @ weight.T + bias, clean[1])

    torch.testing.assert_close(outer, look_ahead())
    for parameter, grad in zip(criterion.parameters(), grads, strict=True):
        flat, slope = parameter.data.view(-1), grad.reshape(-1)
        for k in range(0, flat.numel(), max(1, flat.numel() // 4)):
            before = flat[k].item()
            flat[k] = before + 1e-6
            up = look_ahead()
            flat[k] = before - 1e-6
            down = look_ahead()
            flat[k] = before
            assert slope[k].item() == pytest.approx(((up - down) / 2e-6).item(), abs=1e-7)


def test_a_bound_must_be_positive():
    with pytest.raises(InputError, match="bound"):
        causal_logit(bound=0)
