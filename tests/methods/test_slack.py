"""The hinge with slack, and slack learned on clean data."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compensate import InputError, meta_step
from compensate.core.taxonomy import measured, overall_sign
from compensate.methods import meta_loss, slack_hinge
from compensate.methods.loss import hinge
from compensate.terms.meta import meta_gradient

IDENTITY = nn.Identity()


def test_hinge_is_torch_and_the_binary_svm():
    u, y = torch.randn(40, 5).double(), torch.randint(5, (40,))
    for i in range(40):
        rival = max(u[i, c].item() for c in range(5) if c != y[i])
        assert hinge(u, y)[i].item() == pytest.approx(max(0.0, 1 - u[i, y[i]].item() + rival))
    two, sign = torch.randn(30, 2).double(), torch.randint(2, (30,))
    decision = two[:, 1] - two[:, 0]
    expected = (1 - (2 * sign - 1) * decision).clamp(min=0)
    assert torch.allclose(hinge(two, sign), expected)
    assert torch.allclose(hinge(two, sign), F.multi_margin_loss(two, sign, reduction="none") * 2)
    assert torch.allclose(hinge(u, F.one_hot(y, 5).double()), hinge(u, y))


@pytest.mark.parametrize("lam", [0.0, 0.3, 0.8, 1.0, 2.0])
def test_slack_reaches_the_profiled_optimum(lam):
    """For fixed logits: xi = l if lambda < 1, else 0, and what is left is min(lambda, 1) l."""
    u, y, i = torch.randn(20, 3).double(), torch.randint(3, (20,)), torch.arange(20)
    criterion = slack_hinge(num_samples=20, lam=lam, lr=0.05).double()
    for _ in range(400):
        s = criterion.evaluate(IDENTITY, u, y, i)
    plain = hinge(u, y)
    xi = next(criterion.tables()).weight
    step = 0.05 * max(lam, 1 - lam) + 1e-9
    if lam == 0:
        assert (xi >= plain).all()
    else:
        assert ((xi - (plain if lam < 1 else 0 * plain)).abs() <= step).all()
    assert ((s.losses - min(lam, 1.0) * plain).abs() <= 2 * step).all()
    assert (xi >= 0).all()


def test_slack_steps_by_hand():
    u, y, i = torch.tensor([[0.0, 2.0], [3.0, 0.0]]).double(), torch.tensor([0, 0]), torch.tensor([4, 2])
    criterion = slack_hinge(num_samples=6, lam=0.25, lr=0.4).double()
    xi = 0.0
    for step in range(4):
        loss = criterion(u, y, i).item()
        assert loss == pytest.approx((max(0.0, 3 - xi) + 0.25 * xi) / 2)
        xi += 0.4 * (1 - 0.25)
        weight = next(criterion.tables()).weight
        assert weight.tolist() == pytest.approx([0, 0, 0, 0, xi, 0]), "the sample without loss takes no slack"
        if step == 1:
            criterion.end_epoch()


# --- slack by meta learning -----------------------------------------------------------------------------------


def soft_slack(losses, kappa, t):
    return t * (np.log1p(np.exp((losses - kappa) / t)) - np.log1p(np.exp(-kappa / t)))


def test_meta_loss_is_its_formula_and_lowers_every_loss():
    u, y, i = torch.randn(9, 3).double(), torch.randint(3, (9,)), torch.arange(9)
    criterion = meta_loss(num_samples=9, temperature=0.4, start=0.3).double()
    s = criterion.evaluate(IDENTITY, u, y, i)
    expected = soft_slack(F.cross_entropy(u, y, reduction="none").numpy(), 0.3, 0.4)
    assert np.allclose(s.losses.detach().numpy(), expected, atol=1e-6)
    assert overall_sign(measured(s)) == "positive"
    u = u.requires_grad_()
    assert torch.autograd.gradcheck(lambda v: criterion(v, y, i), u)


def outer(model, kappa, x, y, clean, lr, t):
    model = copy.deepcopy(model)
    losses = F.cross_entropy(model(x), y, reduction="none")
    (t * (F.softplus((losses - kappa) / t) - F.softplus(-kappa / t))).mean().backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= lr * p.grad
        return F.cross_entropy(model(clean[0]), clean[1]).item()


def test_meta_loss_follows_equations_13_and_14(tiny, batch):
    x, y, i = batch
    clean = torch.randn(9, 4).double(), torch.arange(9) % 3
    criterion = meta_loss(num_samples=9, temperature=0.5, start=0.5, lr=3.0).double()
    _, _, (grad,), _ = meta_gradient(criterion, tiny, batch, clean, lr=0.5)
    for k in range(5):
        h = torch.zeros(5).double()
        h[k] = 1e-5
        values = [outer(tiny, 0.5 + sign * h, x, y, clean, 0.5, 0.5) for sign in (1, -1)]
        assert grad[k].item() == pytest.approx((values[0] - values[1]) / 2e-5, abs=1e-7)
    assert grad.abs().max() > 1e-5
    meta_step(criterion, tiny, batch, clean, lr=0.5)
    assert torch.allclose(next(criterion.tables()).weight[i], (0.5 - 3.0 * grad).clamp(min=0))


def test_without_temperature_nothing_could_be_learned():
    with pytest.raises(InputError, match="temperature"):
        meta_loss(num_samples=9, temperature=0.0)
