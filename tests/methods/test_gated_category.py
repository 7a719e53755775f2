"""Gated category-level compensation, against a loop over places."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from compensate import InputError, methods


def by_loop(u, y, b, *, lam, price):
    """The loss and the mean slope of each row, place by place."""
    losses, slopes = [], {}
    for i in range(len(u)):
        for h in range(u.shape[2]):
            for w in range(u.shape[3]):
                c = int(y[i, h, w])
                if c == -100:
                    continue
                gate = 1 / (1 + torch.exp(-u[i, -1, h, w]))
                row = b[c].clone().requires_grad_()
                scores = u[i, :-1, h, w] + gate * row
                loss = torch.logsumexp(scores, 0) - scores[c]
                slopes.setdefault(c, []).append(torch.autograd.grad(loss, row, retain_graph=True)[0])
                losses.append(loss + lam / 2 * (b[c] ** 2).sum() + price * gate)
    return torch.stack(losses).mean(), {c: torch.stack(found).mean(0) for c, found in slopes.items()}


def test_losses_gradients_and_rows_are_those_of_a_loop_over_places():
    torch.manual_seed(0)
    lam, lr, price, classes = 0.2, 0.5, 0.07, 3
    criterion = methods.gated_category(num_classes=classes, lam=lam, lr=lr, price=price).double()
    b = torch.zeros(classes, classes, dtype=torch.double)
    for _ in range(4):
        u = torch.randn(2, classes + 1, 2, 3, dtype=torch.double, requires_grad=True)
        y = torch.randint(classes, (2, 2, 3))
        y[0, 0, 0] = -100
        expected, slopes = by_loop(u, y, b, lam=lam, price=price)
        found = criterion(u, y)
        torch.testing.assert_close(found, expected)
        ours, theirs = (torch.autograd.grad(loss, u)[0] for loss in (found, expected))
        torch.testing.assert_close(ours, theirs)
        for c, slope in slopes.items():
            b[c] = (b[c] - lr * slope) / (1 + lr * lam)
        torch.testing.assert_close(next(criterion.tables()).dense(), b)
    assert b.abs().max() > 0.1


def test_gates_open_where_labels_are_wrong():
    """Labels of a class are wrong in one half of the picture, at random; the gate learns where."""
    torch.manual_seed(0)
    x = torch.randn(16, 2, 4, 8)
    right = (x[:, 0] > 0).long()
    y = right.clone()
    wrong = (right == 1) & (torch.rand(16, 4, 8) < 0.4)
    wrong[..., :4] = False
    y[wrong] = 0
    place = torch.linspace(-1, 1, 8).expand(16, 1, 4, 8)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 1), torch.nn.ReLU(), torch.nn.Conv2d(32, 3, 1))
    criterion = methods.gated_category(num_classes=2, lam=0.02, lr=1.0)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    inputs = torch.cat([x, place], 1)
    for _ in range(150):
        optimizer.zero_grad()
        criterion(model(inputs), y).backward()
        optimizer.step()
    gate = model(inputs)[:, -1].sigmoid()
    assert gate[y != right].mean() > gate[y == right].mean() + 0.3


def test_evaluation_and_closed_gates_leave_cross_entropy():
    torch.manual_seed(0)
    u, y = torch.randn(2, 4, 5), torch.randint(3, (2, 5))
    criterion = methods.gated_category(num_classes=3)
    next(criterion.tables()).weight.fill_(2.0)
    torch.testing.assert_close(criterion.eval()(u, y), F.cross_entropy(u[:, :3], y))
    u[:, -1] = -100.0
    next(criterion.tables()).penalty = None
    torch.testing.assert_close(criterion.train()(u, y), F.cross_entropy(u[:, :3], y))


def test_a_model_without_the_gate_is_told():
    with pytest.raises(InputError, match="the gate, has 4 classes"):
        methods.gated_category(num_classes=3)(torch.randn(2, 3, 5), torch.zeros(2, 5, dtype=torch.long))
