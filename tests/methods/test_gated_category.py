"""Gated category-level compensation, against a loop over places."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from compensate import InputError, methods
from compensate.models import GatedHead


def by_loop(u, y, b, *, balance):
    """The loss, and of each pair of classes the mean slope and the mean weight of its penalty, place by place."""
    losses, slopes, prices = [], {}, {}
    classes = len(b)
    for i, h, w in itertools.product(range(len(u)), range(u.shape[2]), range(u.shape[3])):
        c = int(y[i, h, w])
        if c == -100:
            continue
        gate = 1 / (1 + torch.exp(-u[i, -1, h, w]))
        row = b[c].clone().requires_grad_()
        scores = u[i, :-1, h, w] + gate * row
        loss = torch.logsumexp(scores, 0) - scores[c]
        (slope,) = torch.autograd.grad(loss, row, retain_graph=True)
        for k in range(classes):
            if k != c:
                slopes.setdefault(frozenset((c, k)), []).append(float(slope[k]))
                prices.setdefault(frozenset((c, k)), []).append(balance * gate.item() / (classes - 1))
        losses.append(loss + balance * gate * b[c].abs().sum() / (classes - 1))
    return torch.stack(losses).mean(), slopes, prices


def stepped(b, slopes, prices, lr):
    """The matrix after one proximal step of every pair."""
    b = b.clone()
    for pair in slopes:
        c, k = pair
        moved = float(b[c, k]) - lr * sum(slopes[pair]) / len(slopes[pair])
        threshold = lr * sum(prices[pair]) / len(prices[pair])
        b[c, k] = b[k, c] = math.copysign(max(abs(moved) - threshold, 0.0), moved)
    return b


@pytest.mark.parametrize("balance", [0.05, 1.0])
def test_losses_gradients_and_pairs_are_those_of_a_loop_over_places(balance):
    torch.manual_seed(0)
    lr, classes = 0.5, 4
    criterion = methods.gated_category(num_classes=classes, lr=lr, balance=balance).double()
    b = torch.zeros(classes, classes, dtype=torch.double)
    for turn in range(4):
        u = torch.randn(2, classes + 1, 2, 3, dtype=torch.double, requires_grad=True)
        y = torch.randint(2 if turn == 2 else classes, (2, 2, 3))  # once, two classes are absent
        y[0, 0, 0] = -100
        expected, slopes, prices = by_loop(u, y, b, balance=balance)
        found = criterion(u, y)
        torch.testing.assert_close(found, expected)
        ours, theirs = (torch.autograd.grad(loss, u)[0] for loss in (found, expected))
        torch.testing.assert_close(ours, theirs)
        b = stepped(b, slopes, prices, lr)
        torch.testing.assert_close(next(criterion.tables()).dense(), b)
    assert b.abs().max() > 0.01
    assert (b.diagonal() == 0).all()
    torch.testing.assert_close(b, b.T, rtol=0, atol=0)


def test_a_model_without_the_gate_is_told():
    with pytest.raises(InputError, match="the gate, has 4 classes"):
        methods.gated_category(num_classes=3)(torch.randn(2, 3, 5), torch.zeros(2, 5, dtype=torch.long))


def test_a_gated_head_is_two_linear_layers_with_normalization_between_them():
    torch.manual_seed(0)
    head = GatedHead(torch.nn.Linear(5, 3), in_features=5, hidden=4).double()
    z = torch.randn(6, 5, dtype=torch.double)
    first, last = head.gate[0], head.gate[2]
    hidden = z @ first.weight[:, :, 0].T + first.bias
    normal = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(head(z), torch.cat([head.head(z), normal @ last.weight[0]], 1))
    assert last.weight.abs().max() <= 0.05 + 1e-6, "a tenth of 1 / sqrt(4)"


def test_a_gate_follows_a_head_that_returns_larger_images():
    head = GatedHead(torch.nn.ConvTranspose2d(5, 3, 2, stride=2), in_features=5)
    assert head(torch.randn(2, 5, 4, 6)).shape == (2, 4, 8, 12)
