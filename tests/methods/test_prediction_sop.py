"""SOP: a loop over samples with the formulas of its paper, its sparsity, its limits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from compensate import InputError
from compensate.methods import sop
from compensate.methods.prediction import OverParameterized

FLOOR = 1e-4


def term(criterion):
    return next(s for s in criterion.statistics() if isinstance(s, OverParameterized))


class Loop:
    """Every sample by itself, with one optimizer over all rows, as the paper describes it."""

    def __init__(self, mu, nu, lr_u, lr_v, joint):
        self.mu, self.nu, self.joint = mu.double().requires_grad_(), nu.double().requires_grad_(), joint
        self.optimizer = torch.optim.SGD([{"params": [self.mu], "lr": lr_u}, {"params": [self.nu], "lr": lr_v}])

    def losses(self, u, y, i, *, step):
        fit, error = [], []
        for uj, yj, j in zip(u, y.tolist(), i.tolist(), strict=True):
            onehot = F.one_hot(torch.tensor(yj), len(uj)).double()
            a, b = self.mu[j] ** 2 * onehot, self.nu[j] ** 2 * (1 - onehot)
            q = (uj.softmax(-1) + a - b.detach()).clamp(min=FLOOR)
            fit.append(-torch.log(q[yj] / q.sum()))
            decided = F.one_hot(uj.argmax(), len(uj)).double()
            error.append(((decided + (a if self.joint else a.detach()) - b - onehot) ** 2).sum())
        if step:
            self.optimizer.zero_grad()
            (torch.stack(fit).sum() + torch.stack(error).sum()).backward(inputs=[self.mu, self.nu])
            self.optimizer.step()
        return torch.stack(fit)


@pytest.mark.parametrize("joint", [True, False])
def test_values_gradients_and_rows_follow_the_paper(joint):
    criterion = sop(num_samples=12, num_classes=4, lr_u=0.05, lr_v=0.1, spread=0.3, joint=joint).double()
    loop = Loop(term(criterion).mu.clone(), term(criterion).nu.clone(), 0.05, 0.1, joint)
    y = torch.randint(4, (12,))
    for _ in range(4):
        for i in torch.randperm(12).split(5):
            u = (2 * torch.randn(len(i), 4, dtype=torch.float64)).requires_grad_()
            expected = loop.losses(u, y[i], i, step=False).mean()
            ours = criterion(u, y[i], i)
            assert torch.allclose(ours, expected)
            assert torch.allclose(torch.autograd.grad(ours, u)[0], torch.autograd.grad(expected, u)[0])
            loop.losses(u.detach(), y[i], i, step=True)
            assert torch.allclose(term(criterion).mu, loop.mu.detach())
            assert torch.allclose(term(criterion).nu, loop.nu.detach())
        criterion.end_epoch()


@pytest.mark.parametrize("bad", [{"lr_u": 0.0}, {"lr_v": -1.0}, {"spread": 0.0}, {"floor": 1.0}])
def test_bad_settings_are_refused(bad):
    with pytest.raises(InputError):
        sop(num_samples=2, num_classes=2, **bad)
