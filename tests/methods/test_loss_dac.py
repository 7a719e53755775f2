"""The deep abstaining classifier: its loss, its warm-up and its ramp, step by step."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from compensate import InputError
from compensate.methods import dac


def naive(u, y):
    """Per sample: the probability of abstention, and cross entropy over the real classes."""
    pairs = []
    for uj, yj in zip(u, y.tolist(), strict=True):
        e = torch.exp(uj - uj.max())
        pairs.append((e[-1] / e.sum(), -torch.log(e[yj] / e[:-1].sum())))
    return (torch.stack(column) for column in zip(*pairs, strict=True))


def test_warm_up_then_a_price_that_rises_to_its_end():
    steps_per_epoch, epochs, warmup, mu, divisor, final = 3, 4, 2, 0.1, 8.0, 0.9
    criterion = dac(warmup=warmup, final=final, divisor=divisor, mu=mu).start(steps_per_epoch * epochs)
    mean = first = None
    prices = []
    for step in range(steps_per_epoch * epochs):
        u, y = torch.randn(6, 5, dtype=torch.float64, requires_grad=True), torch.randint(4, (6,))
        a, h = naive(u, y)
        now = float(((1 - a) * h).mean().detach())
        mean = now if mean is None else (1 - mu) * mean + mu * now
        loss = criterion(u, y)
        if step < warmup * steps_per_epoch:
            expected = F.cross_entropy(u, y)
        else:
            first = mean / divisor if first is None else first
            begun = warmup / epochs
            alpha = first + (final - first) * (step / (steps_per_epoch * epochs) - begun) / (1 - begun)
            expected = ((1 - a) * h - alpha * torch.log(1 - a)).mean()
            prices.append(alpha)
        assert torch.allclose(loss, expected, atol=1e-6)
        ours, theirs = torch.autograd.grad(loss, u)[0], torch.autograd.grad(expected, u)[0]
        assert torch.allclose(ours, theirs, atol=1e-6)
        if (step + 1) % steps_per_epoch == 0:
            criterion.end_epoch()
    assert prices == sorted(prices)
    assert prices[0] == first


def test_finite_differences_at_a_known_price():
    criterion = dac(warmup=0, final=0.5).double().start(1)
    u, y = torch.randn(4, 4, dtype=torch.float64, requires_grad=True), torch.randint(3, (4,))
    criterion(u, y)  # from here on the price is `final`
    assert torch.autograd.gradcheck(lambda u: criterion(u, y), u)


@pytest.mark.parametrize("bad", [{"warmup": -1}, {"final": -0.1}, {"divisor": 0.0}, {"mu": 0.0}])
def test_bad_settings_are_refused(bad):
    with pytest.raises(InputError):
        dac(**bad)
