"""Methods for preference pairs and tokens, against the formulas of their papers in plain torch, to 1e-9."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from oracles import agree

from compensate import InputError, methods
from compensate.methods import pair_logits, token_logits
from tiny import TinyNet

ZEROS = torch.zeros(7, dtype=torch.long)


def margins():
    return (3 * torch.randn(7, dtype=torch.float64)).requires_grad_()


def test_pairs_are_the_bradley_terry_loss():
    chosen, rejected = margins(), margins()
    agree(methods.base()(pair_logits(chosen, rejected), ZEROS), -F.logsigmoid(chosen - rejected).mean(), chosen, 1e-9)


def test_tokens_are_their_log_probabilities():
    logp = F.logsigmoid(margins().detach()).requires_grad_()
    agree(methods.base()(token_logits(logp), ZEROS), -logp.mean(), logp, 1e-9)
    certain = torch.zeros(7, requires_grad=True)
    methods.base()(token_logits(certain), ZEROS).backward()
    assert certain.grad.isfinite().all()


@pytest.mark.parametrize(
    ("build", "formula"),
    [
        (methods.cdpo, lambda h, e: -(1 - e) * F.logsigmoid(h) - e * F.logsigmoid(-h)),
        (methods.rdpo, lambda h, e: (-(1 - e) * F.logsigmoid(h) + e * F.logsigmoid(-h)) / (1 - 2 * e)),
    ],
)
@pytest.mark.parametrize("e", [0.0, 0.1, 0.4])
def test_flipped_and_unbiased_labels(build, formula, e):
    h = margins()
    agree(build(noise_rate=e)(pair_logits(h), ZEROS), formula(h, e).mean(), h, 1e-9)


def test_the_unbiased_loss_is_the_loss_of_right_labels_in_the_mean():
    """Over labels that are drawn with the noise, for four classes."""
    u, e, y = torch.randn(1, 4, dtype=torch.float64), 0.3, 2
    criterion = methods.rdpo(noise_rate=e)
    shares = [1 - e if c == y else e / 3 for c in range(4)]
    mean = sum(share * criterion(u, torch.tensor([c])) for c, share in enumerate(shares))
    torch.testing.assert_close(mean, F.cross_entropy(u, torch.tensor([y])), rtol=0, atol=1e-9)


@pytest.mark.parametrize("beta", [0.2, 1.0, 50.0])
def test_the_soft_minimum_of_a_batch(beta):
    h = margins()
    losses = -F.logsigmoid(h)
    expected = -beta * torch.log(torch.exp(-losses / beta).mean())
    agree(methods.dr_dpo(beta=beta)(pair_logits(h), ZEROS), expected, h, 1e-9)
    target = torch.tensor([0, 0, -100, 0, 0, 0, 0])
    rest = losses[target == 0]
    expected = -beta * torch.log(torch.exp(-rest / beta).mean())
    agree(methods.dr_dpo(beta=beta)(pair_logits(h), target), expected, h, 1e-9)


def test_dynamic_fine_tuning():
    u, y = torch.randn(7, 5, dtype=torch.float64, requires_grad=True), torch.arange(7) % 5
    logp = F.log_softmax(u, -1)[torch.arange(7), y]
    agree(methods.dft()(u, y), -(logp.exp().detach() * logp).mean(), u, 1e-9)


@pytest.mark.parametrize("lam", [0.1, 0.5, 1.0])
def test_logcomp_at_rest_has_the_pull_of_the_formula_and_the_value_of_the_best_row(lam):
    u, y = 2 * torch.randn(7, 5, dtype=torch.float64), torch.arange(7) % 5
    u.requires_grad_()
    logp = F.log_softmax(u, -1)[torch.arange(7), y]
    weight = (lam / (1 - logp.exp())).clamp(max=1).detach()
    loss = methods.token_logcomp(lam=lam)(u, y)
    (found,) = torch.autograd.grad(loss, u)
    (expected,) = torch.autograd.grad(-(weight * logp).mean(), u)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    best = []
    for p in logp.exp().tolist():
        d = np.linspace(0, 20, 2_000_001)  # the best of a fine grid
        best.append(float((-np.log(p) - d + np.log1p(p * np.expm1(d)) + lam * d).min()))
    assert loss.item() == pytest.approx(sum(best) / 7, abs=1e-9)


def test_rows_of_pairs_follow_the_paper_and_come_to_rest():
    n, lam, lr = 5, 0.2, 0.7
    criterion = methods.r3m(num_samples=n, lam=lam, lr=lr).double()
    h, index, d = margins(), torch.tensor([0, 1, 2, 3, 4, 4, 1])[:7], [0.0] * n
    (table,) = criterion.tables()
    for _ in range(300):
        rows = torch.tensor([d[i] for i in index.tolist()], dtype=torch.float64)
        expected = (-F.logsigmoid(h + rows) + lam * rows.abs()).mean()
        agree(criterion(pair_logits(h), ZEROS, index), expected, h, 1e-9)
        for i in range(n):
            own = [-torch.sigmoid(-h[j] - d[i]).item() for j in range(7) if index[j] == i]
            v = d[i] - lr * sum(own) / len(own)
            d[i] = math.copysign(max(abs(v) - lr * lam, 0.0), v)
        torch.testing.assert_close(table.weight, torch.tensor(d, dtype=torch.float64), rtol=0, atol=1e-9)
    rest = (math.log((1 - lam) / lam) - h[[0, 2, 3]].detach()).clamp(min=0)
    torch.testing.assert_close(table.weight[[0, 2, 3]], rest, rtol=0, atol=1e-6)


def test_rows_of_tokens_add_to_log_p():
    """The form of the token with rows: log p' = log p + d - log(1 + p (e^d - 1))."""
    criterion = methods.r3m(num_samples=7, lam=0.3).double()
    logp = F.logsigmoid(margins().detach()).requires_grad_()
    for _ in range(3):
        d = next(criterion.tables()).weight.clone()
        moved = logp + d - torch.log1p(logp.exp() * torch.expm1(d))
        agree(criterion(token_logits(logp), ZEROS, torch.arange(7)), (-moved + 0.3 * d).mean(), logp, 1e-9)


def test_word_vectors_get_uniform_noise_of_the_size_of_the_paper():
    class Sequence(TinyNet):
        def __init__(self):
            super().__init__(classes=3)
            self.seen = []

        def embed(self, x):
            return x

        def features(self, e):
            self.seen.append(e)
            return super().features(e.mean(1))

    model, x = Sequence(), torch.zeros(50, 6, 4)
    methods.neftune(alpha=5.0).evaluate(model, x, torch.arange(50) % 3)
    noise = model.seen[-1]
    bound = 5 / math.sqrt(6 * 4)
    assert noise.abs().max() <= bound
    assert noise.var().item() == pytest.approx(bound**2 / 3, rel=0.1)
    assert noise.mean().item() == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("cdpo", {"noise_rate": 0.5}), ("rdpo", {"noise_rate": -0.1}), ("dr_dpo", {"beta": 0.0}), ("token_logcomp", {"lam": 0.0}),
     ("neftune", {"alpha": -1.0})],
)  # fmt: skip
def test_settings_without_meaning_are_refused(name, settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        getattr(methods, name)(**settings)
