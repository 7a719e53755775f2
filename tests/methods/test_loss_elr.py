"""Early-learning regularization: its loss in a loop, its gradient as its paper derives it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from compensate import InputError
from compensate.methods import elr
from compensate.methods.loss import TemporalEnsemble


def rows(criterion):
    return next(s.rows for s in criterion.statistics() if isinstance(s, TemporalEnsemble))


def test_losses_means_and_the_gradient_of_the_paper():
    lam, beta = 2.0, 0.6
    criterion = elr(num_samples=9, num_classes=4, lam=lam, beta=beta).double()
    y, t = torch.randint(4, (9,)), torch.zeros(9, 4).double()
    for _ in range(3):
        for i in torch.randperm(9).split(4):
            u = torch.randn(len(i), 4, dtype=torch.float64, requires_grad=True)
            p = u.detach().softmax(-1)
            values, grads = [], []
            for row, j in enumerate(i.tolist()):
                t[j] = beta * t[j] + (1 - beta) * p[row]
                agreement = float(p[row] @ t[j])
                values.append(F.cross_entropy(u[row], y[j]).detach() + lam * torch.log(torch.tensor(1 - agreement)))
                # d/du_k log(1 - <t, p>) = p_k / (1 - <t, p>) * sum_l (t_l - t_k) p_l
                pull = p[row] * (agreement - t[j]) / (1 - agreement)
                grads.append(p[row] - F.one_hot(y[j], 4) + lam * pull)
            loss = criterion(u, y[i], i)
            assert torch.allclose(loss, torch.stack(values).mean().double(), atol=1e-6)
            assert torch.allclose(torch.autograd.grad(loss, u)[0], torch.stack(grads) / len(i), atol=1e-6)
            assert torch.allclose(rows(criterion), t, atol=1e-6)
        criterion.end_epoch()


def test_certain_predictions_stay_finite():
    criterion = elr(num_samples=1, num_classes=3, beta=0.0)
    u = torch.tensor([[200.0, 0.0, 0.0]], requires_grad=True)
    for _ in range(5):
        loss = criterion(u, torch.tensor([1]), torch.tensor([0]))
    (grad,) = torch.autograd.grad(loss, u)
    assert loss.isfinite()
    assert grad.isfinite().all()


def test_a_momentum_outside_its_range_is_refused():
    with pytest.raises(InputError, match="beta is 1"):
        elr(num_samples=3, num_classes=3, beta=1.0)
