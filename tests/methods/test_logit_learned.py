"""Logit compensation by category, by meta learning, by an inner loop and self-paced."""

from __future__ import annotations

import copy
import math

import matplotlib as mpl
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize

from compensate import InputError, meta_step
from compensate.core.taxonomy import measured, overall_sign
from compensate.methods import adversarial_logit, category_logit, meta_logit, self_paced_logit, self_paced_weights
from compensate.plots import plot_self_paced
from compensate.terms.meta import meta_gradient

IDENTITY = torch.nn.Identity()


# --- category level -------------------------------------------------------------------------------------------


def test_category_logit_finds_the_optimum_of_equation_17():
    u, y = torch.randn(20, 3).double(), torch.zeros(20).long()
    criterion = category_logit(num_classes=3, lam=0.5, lr=0.5).double()
    for _ in range(300):
        s = criterion.evaluate(IDENTITY, u, y)

    def objective(v):
        return F.cross_entropy(u + torch.tensor(v), y).item() + 0.25 * (v**2).sum()

    best = minimize(objective, np.zeros(3), tol=1e-12)
    assert np.allclose(next(criterion.tables()).weight[0].numpy(), best.x, atol=1e-4)
    assert s.loss.item() == pytest.approx(best.fun, abs=1e-6)
    assert overall_sign(measured(s)) == "positive"


# --- meta -----------------------------------------------------------------------------------------------------


def outer(model, v, x, y, clean, lr):
    model = copy.deepcopy(model)
    F.cross_entropy(model(x) + v, y).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= lr * p.grad
        return F.cross_entropy(model(clean[0]), clean[1]).item()


def test_meta_logit_follows_equations_13_and_14(tiny, batch):
    x, y, i = batch
    clean = torch.randn(9, 4).double(), torch.arange(9) % 3
    criterion = meta_logit(num_samples=9, num_classes=3, lr=2.0).double()
    assert torch.allclose(criterion.evaluate(tiny, x, y, i).loss, F.cross_entropy(tiny(x), y)), "rows start at zero"
    _, _, (grad,), _ = meta_gradient(criterion, tiny, batch, clean, lr=0.5)
    for row, sample in ((0, 0), (3, 3)):
        for c in range(3):
            h = torch.zeros(5, 3).double()
            h[sample, c] = 1e-5
            numeric = (outer(tiny, h, x, y, clean, 0.5) - outer(tiny, -h, x, y, clean, 0.5)) / 2e-5
            assert grad[row, c].item() == pytest.approx(numeric, abs=1e-7)
    meta_step(criterion, tiny, batch, clean, lr=0.5)
    weight = next(criterion.tables()).weight
    assert torch.allclose(weight[i], -2.0 * grad)
    assert (weight[[2, 4, 6, 7]] == 0).all()


# --- inner loop on logits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1, -1])
def test_adversarial_logit_in_the_linf_ball_is_the_closed_form(sign):
    u, y = torch.randn(10, 4).double(), torch.randint(4, (10,))
    s = adversarial_logit(eps=0.7, sign=sign).evaluate(IDENTITY, u, y)
    assert torch.allclose(s.du, sign * 0.7 * (1 - 2 * F.one_hot(y, 4)).double())
    assert overall_sign(measured(s)) == ("negative" if sign > 0 else "positive")
    assert s.criterion.taxonomy.direction == overall_sign(measured(s))


@pytest.mark.parametrize("sign", [1, -1])
def test_adversarial_logit_in_the_l2_ball_is_near_the_optimum(sign):
    u, y = torch.randn(5, 3).double(), torch.randint(3, (5,))
    s = adversarial_logit(eps=0.5, sign=sign, norm="l2", steps=40).evaluate(IDENTITY, u, y)
    assert (s.du.norm(dim=1) <= 0.5 + 1e-9).all()
    for i in range(5):

        def objective(v, i=i):
            return -sign * F.cross_entropy(u[i] + torch.tensor(v), y[i]).item()

        ball = {"type": "ineq", "fun": lambda v: 0.25 - (v**2).sum()}
        best = min((minimize(objective, start, constraints=ball).fun for start in 0.2 * np.eye(3)), default=0)
        assert objective(s.du[i].numpy()) == pytest.approx(best, abs=2e-3)


# --- self-paced -----------------------------------------------------------------------------------------------


def test_self_paced_logit_leaves_out_what_is_harder_than_the_threshold():
    u, y = 2 * torch.randn(60, 3), torch.randint(3, (60,))
    u = u.requires_grad_()
    s = self_paced_logit(num_classes=3).evaluate(IDENTITY, u, y)
    plain = F.cross_entropy(u, y, reduction="none").detach()
    hard = plain >= math.log(3)
    assert 10 < hard.sum() < 50
    assert torch.allclose(s.losses[~hard].detach(), plain[~hard])
    # The paper's figure: a ratio of 1 for the easy, near 0 for the hard. Errata: this takes a large step.
    assert (s.losses[hard] / plain[hard]).max() < 1e-3
    s.loss.backward()
    assert u.grad[hard].abs().max() < 1e-3 * u.grad[~hard].abs().max()
    assert overall_sign(measured(s)) == "positive"


def test_the_step_is_the_papers_condition_unless_logits_are_small():
    large, small, y = torch.tensor([[30.0, -10.0, 0.0]]), torch.tensor([[0.3, -0.1, 0.2]]), torch.tensor([1])
    criterion = self_paced_logit(num_classes=3, tau=0.0)
    for u, step in ((large, 2 * large.norm()), (small, torch.tensor(20.0))):
        s = criterion.evaluate(IDENTITY, u, y)
        assert torch.allclose(s.du, step * (F.one_hot(y, 3) - u.softmax(-1)))
    weak = self_paced_logit(num_classes=3, tau=0.0, eta=0.6006).evaluate(IDENTITY, small, y)
    assert (weak.losses / weak.plain_losses).item() == pytest.approx(0.668, abs=1e-3), "the errata's example"


def brute_force(loss, regularizer, grid):
    return grid[np.argmin(grid * loss + regularizer(grid))]


@pytest.mark.parametrize("loss", [0.05, 0.2, 0.31, 0.45, 0.59, 0.7, 1.5])
def test_self_paced_weights_minimize_their_objectives(loss):
    """Each kind is the minimizer of w l + r(w) for its own regularizer, found here on a fine grid."""
    lam, easy, grid = 0.6, 0.3, np.linspace(0, 1, 200_001)
    zeta, mixed = 1 - lam, lam * easy / (lam - easy)
    regularizers = {
        "hard": lambda w: -lam * w,
        "linear": lambda w: lam * (w**2 / 2 - w),
        "logarithmic": lambda w: zeta * w - zeta**w / math.log(zeta),
        "mixture": lambda w: -mixed * np.log(w + mixed / lam),
    }
    for kind, regularizer in regularizers.items():
        found = self_paced_weights(torch.tensor([loss], dtype=torch.double), lam, kind, easy=easy).item()
        assert found == pytest.approx(brute_force(loss, regularizer, grid), abs=2e-5), kind


@pytest.mark.parametrize("bad", [(0.0, "hard"), (1.0, "logarithmic"), (0.5, "soft")])
def test_bad_self_paced_settings(bad):
    with pytest.raises(InputError):
        self_paced_weights(torch.ones(2), *bad)
    with pytest.raises(InputError):
        self_paced_weights(torch.ones(2), 0.5, "mixture", easy=0.7)
    with pytest.raises(InputError):
        self_paced_logit(num_classes=3, growth=1.0)


def test_the_picture_of_weights_and_ratios():
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    ax = plot_self_paced(lam=0.6)
    lines = {line.get_label(): line.get_xydata() for line in ax.get_lines()}
    ratio = lines.pop("loss ratio of compensation")
    assert set(lines) == {"hard", "linear", "logarithmic", "mixture"}
    easy = ratio[:, 0] < 0.6
    assert np.allclose(ratio[easy, 1], 1.0, atol=1e-3)
    assert ratio[~easy, 1].max() < 1e-2, "the curve of compensation is that of hard weights"
    assert np.allclose(lines["hard"][:, 1], easy)
    assert all((np.diff(line[:, 1]) <= 1e-6).all() for line in lines.values()), "harder never weighs more"
    assert plot_self_paced(ax=ax) is ax
    plt.close(ax.figure)
