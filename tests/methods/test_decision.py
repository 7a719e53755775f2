"""Epsilon-softmax against the authors' formula in plain numbers, its limits and its gradient."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from compensate import InputError
from compensate.methods import epsilon_softmax


def by_hand(row, label, m, alpha, beta, floor):
    total = sum(math.exp(v) for v in row)
    p = [math.exp(v) / total for v in row]
    pulled = [(q + (m if q == max(p) else 0)) / (1 + m) for q in p]
    return -alpha * math.log(max(pulled[label], floor)) + beta * (2 - 2 * p[label])


@pytest.mark.parametrize("m", [0.0, 2.0, 1e3, 1e5])
@pytest.mark.parametrize(("alpha", "beta"), [(0.01, 5.0), (1.0, 0.0)])
def test_the_loss_is_that_of_the_paper(m, alpha, beta):
    u, y = 3 * torch.randn(40, 4, dtype=torch.float64), torch.randint(4, (40,))
    expected = [by_hand(row, c, m, alpha, beta, 1e-8) for row, c in zip(u.tolist(), y.tolist(), strict=True)]
    for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 2e-5)):
        s = epsilon_softmax(m=m, alpha=alpha, beta=beta).evaluate(torch.nn.Identity(), u.to(dtype), y)
        torch.testing.assert_close(s.losses.double(), torch.tensor(expected).double(), rtol=tolerance, atol=tolerance)


def test_the_gradient_is_right_and_targets_are_understood():
    u, y = torch.randn(6, 4, dtype=torch.float64, requires_grad=True), torch.randint(4, (6,))
    assert torch.autograd.gradcheck(lambda u: epsilon_softmax(m=10.0, alpha=0.5, beta=1.0)(u, y), u)
    torch.testing.assert_close(epsilon_softmax()(u, F.one_hot(y, 4).double()), epsilon_softmax()(u, y))
    torch.testing.assert_close(epsilon_softmax().eval()(u, y), F.cross_entropy(u, y))
    ignored = y.clone()
    ignored[1] = -100
    kept = torch.arange(6) != 1
    torch.testing.assert_close(epsilon_softmax()(u, ignored), epsilon_softmax()(u[kept], y[kept]))


@pytest.mark.parametrize(("settings", "said"), [({"m": -1}, "m is"), ({"alpha": -1}, "alpha"), ({"floor": 1}, "floor")])
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(InputError, match=said):
        epsilon_softmax(**settings)
