"""Bounds that follow the loss, and features with labels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compensate.core.taxonomy import measured, overall_sign
from compensate.methods import mixcomp_adaptive, pgd_at, semantics_preserving_at

IDENTITY = nn.Identity()


@pytest.fixture
def net():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def test_logit_bounds_grow_with_the_loss():
    """Eq. 53, left: eta_i = eps1 l_i / tau from the threshold on, nothing below it."""
    u, y = 2 * torch.randn(30, 3).double(), torch.randint(3, (30,))
    s = mixcomp_adaptive(tau=0.8, eps1=1.5).evaluate(IDENTITY, u, y)
    for i in range(30):
        loss = F.cross_entropy(u[i], y[i])
        step = 1.5 * loss / 0.8 if loss >= 0.8 else 0.0
        v = step * (F.one_hot(y[i], 3) - u[i].softmax(-1))
        assert torch.allclose(s.du[i], v)
        assert s.losses[i].item() == pytest.approx(F.cross_entropy(u[i] + v, y[i]).item())
        assert v.abs().max() <= 1.5 * (1 + (loss - 0.8) / 0.8) + 1e-9 or loss < 0.8
    assert 5 < (s.du.abs().sum(1) > 0).sum() < 25
    assert overall_sign(measured(s)) == "positive"


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_feature_bounds_shrink_toward_the_threshold(norm, net):
    """Eq. 53, right: the easiest may move by up to twice eps2, those at the threshold by eps2."""
    x, y = torch.randn(30, 4).double(), torch.randint(3, (30,))
    s = mixcomp_adaptive(tau=1.2, eps1=1.0, eps2=0.1, norm=norm, steps=20).evaluate(net, x, y)
    easy = s.plain_losses < 1.2
    bound = 0.1 * (2 - s.plain_losses / 1.2)
    size = s.dx.abs().amax(1) if norm == "linf" else s.dx.norm(dim=1)
    assert 3 < easy.sum() < 27
    assert (size[easy] <= bound[easy] + 1e-9).all()
    assert torch.allclose(size[easy], bound[easy], rtol=1e-3), "the attack uses what it may"
    assert (size[~easy] == 0).all()
    assert (s.du[easy] == 0).all()
    signs = measured(s)
    assert (signs[easy] > 0).all()
    assert (signs[~easy] < 0).all()


# --- features and labels --------------------------------------------------------------------------------------


def smoothed_loss(u, y, lam):
    return (1 - lam) * F.cross_entropy(u, y, reduction="none") - lam * u.log_softmax(-1).mean(-1)


@pytest.mark.parametrize("attack_on", ["smoothed", "given"])
def test_attack_and_loss_see_the_labels_they_should(attack_on, net):
    x, y = torch.randn(6, 4).double(), torch.arange(6) % 3
    torch.manual_seed(4)
    s = semantics_preserving_at(eps=0.2, lam=0.3, steps=3, attack_on=attack_on, norm="l2").evaluate(net, x, y)
    torch.manual_seed(4)
    start = pgd_at(eps=0.2, norm="l2", steps=3).evaluate(net, x, y)  # the same random start
    delta = None
    lam = 0.3 if attack_on == "smoothed" else 0.0
    torch.manual_seed(4)
    torch.randint(2**62, ())  # what fixes the randomness of a batch
    direction = torch.randn_like(x)
    delta = (
        0.2 * torch.rand(6, dtype=torch.double)[:, None] ** (1 / 4) * direction / direction.norm(dim=1, keepdim=True)
    )
    for _ in range(3):
        delta = delta.detach().requires_grad_()
        (g,) = torch.autograd.grad(smoothed_loss(net(x + delta), y, lam).sum(), delta)
        delta = delta.detach() + 2.5 * 0.2 / 3 * g / g.norm(dim=1, keepdim=True)
        delta = delta * (0.2 / delta.norm(dim=1, keepdim=True)).clamp(max=1)
    assert torch.allclose(s.dx, delta, atol=1e-9)
    assert torch.allclose(s.dx, start.dx, atol=1e-9) == (attack_on == "given")
    assert torch.allclose(s.losses, smoothed_loss(net(x + delta), y, 0.3))
