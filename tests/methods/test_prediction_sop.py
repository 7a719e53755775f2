"""SOP: a loop over samples with the formulas of its paper, its sparsity, its limits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compensate import METHODS, InputError
from compensate.core.taxonomy import measured, overall_sign
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


def test_a_repeated_sample_takes_one_step_with_the_mean_gradient():
    torch.manual_seed(3)
    once = sop(num_samples=3, num_classes=3, spread=0.3).double()
    torch.manual_seed(3)
    twice = sop(num_samples=3, num_classes=3, spread=0.3).double()
    u, y = torch.randn(1, 3).double(), torch.tensor([1])
    once(u, y, torch.tensor([2]))
    twice.requires_grad_()(u.repeat(2, 1), y.repeat(2), torch.tensor([2, 2]))
    assert torch.allclose(term(once).mu, term(twice).mu)
    assert torch.allclose(term(once).nu, term(twice).nu)


def test_gradient_by_finite_differences():
    criterion = sop(num_samples=5, num_classes=3, spread=0.4).double()
    u, y, i = torch.randn(5, 3, dtype=torch.float64, requires_grad=True), torch.randint(3, (5,)), torch.arange(5)
    rows = (term(criterion).mu.clone(), term(criterion).nu.clone())

    def loss(u):
        term(criterion).mu.copy_(rows[0])
        term(criterion).nu.copy_(rows[1])
        return criterion(u, y, i)

    assert torch.autograd.gradcheck(loss, u)


def test_it_lowers_losses_and_starts_as_cross_entropy():
    u, y, i = 2 * torch.randn(20, 3), torch.randint(3, (20,)), torch.arange(20)
    fresh = sop(num_samples=20, num_classes=3)
    assert torch.allclose(fresh(u, y, i), F.cross_entropy(u, y), atol=1e-3)
    grown = sop(num_samples=20, num_classes=3, spread=0.5)
    assert overall_sign(measured(grown.evaluate(nn.Identity(), u, y, i))) == "positive"
    assert METHODS["sop"].taxonomy.direction == "positive"


def test_only_contradicted_samples_grow():
    criterion = sop(num_samples=2, num_classes=3, lr_u=0.2, lr_v=0.2)
    u, y, i = torch.tensor([[3.0, 0.0, 0.0], [3.0, 0.0, 0.0]]), torch.tensor([0, 1]), torch.arange(2)
    for _ in range(60):
        loss = criterion.evaluate(nn.Identity(), u, y, i).l
    mu, nu = term(criterion).mu.abs()[:, 0], term(criterion).nu.abs()
    assert mu[0] < 1e-5
    assert mu[1] > 0.5
    assert nu[1, 0] > 0.5
    assert nu[1, 2] < 1e-5
    assert loss[1] < 1


def test_validation_moves_nothing_and_ignored_samples_stay():
    criterion = sop(num_samples=4, num_classes=3, spread=0.3)
    before = term(criterion).mu.clone()
    with torch.no_grad():
        criterion(torch.randn(4, 3), torch.tensor([0, 1, 2, 0]), torch.arange(4))
    criterion.eval()(torch.randn(4, 3), torch.tensor([0, 1, 2, 0]), torch.arange(4))
    assert torch.equal(term(criterion).mu, before)
    criterion.train()(torch.randn(4, 3), torch.tensor([0, -100, 2, 0]), torch.arange(4))
    assert torch.equal(term(criterion).mu[1], before[1])
    assert not torch.equal(term(criterion).mu[0], before[0])


@pytest.mark.parametrize("bad", [{"lr_u": 0.0}, {"lr_v": -1.0}, {"spread": 0.0}, {"floor": 1.0}])
def test_bad_settings_are_refused(bad):
    with pytest.raises(InputError):
        sop(num_samples=2, num_classes=2, **bad)


def test_a_missing_index_is_named():
    with pytest.raises(InputError, match="index is missing"):
        sop(num_samples=2, num_classes=2)(torch.zeros(1, 2), torch.tensor([0]))
