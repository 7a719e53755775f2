"""The lower bound on the training loss: its value by sampling, its gradient, and a model that it holds back."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from compensate import InputError
from compensate.methods import loss_bound
from compensate.methods.loss import noise_entropy


@pytest.mark.parametrize(("rate", "classes"), [(0.4, 10), (0.1, 3)])
def test_the_bound_is_the_loss_of_the_model_that_knows_the_noise(rate, classes):
    rng = np.random.default_rng(0)
    flips = rng.random(200_000) < rate
    # The best model gives 1 - rate to the right class and shares the rest among the others.
    losses = np.where(flips, -math.log(rate / (classes - 1)), -math.log(1 - rate))
    assert noise_entropy(rate, classes) == pytest.approx(losses.mean(), rel=0.01)
    pair = np.where(flips, -math.log(rate), -math.log(1 - rate))
    assert noise_entropy(rate, classes, "pair") == pytest.approx(pair.mean(), rel=0.01)


def test_above_the_bound_it_is_cross_entropy_and_below_it_there_is_no_gradient():
    high = torch.tensor([[0.0, 4.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 1])
    criterion = loss_bound(num_classes=3, noise_rate=0.2)
    torch.testing.assert_close(criterion(high, y), F.cross_entropy(high, y))
    (a,), (b,) = (torch.autograd.grad(loss, high) for loss in (criterion(high, y), F.cross_entropy(high, y)))
    torch.testing.assert_close(a, b)
    low = torch.tensor([[6.0, 0.0, 0.0], [0.0, 6.0, 0.0]], dtype=torch.float64, requires_grad=True)
    loss = criterion(low, y)
    assert loss.item() == pytest.approx(noise_entropy(0.2, 3))
    assert torch.autograd.grad(loss, low)[0].abs().max() < 1e-15


def test_flooding_climbs_below_the_bound():
    low, y = (
        torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]], dtype=torch.float64, requires_grad=True),
        torch.tensor([0, 1]),
    )
    plain = F.cross_entropy(low, y)
    loss = loss_bound(num_classes=3, bound=1.0, below="ascend")(low, y)
    torch.testing.assert_close(loss, (plain - 1.0).abs() + 1.0)
    torch.testing.assert_close(torch.autograd.grad(loss, low)[0], -torch.autograd.grad(plain, low)[0])


@pytest.mark.parametrize("weight", [None, [0.5, 2.0, 1.0]])
def test_weights_and_ignored_targets_count_as_in_the_mean(weight):
    u, y = 4 * F.one_hot(torch.arange(5) % 3, 3).double(), torch.arange(5) % 3
    y[4] = -100
    criterion = loss_bound(num_classes=3, noise_rate=0.3, weight=weight).double()
    assert criterion(u, y).item() == pytest.approx(noise_entropy(0.3, 3))
    given = None if weight is None else torch.tensor(weight).double()
    torch.testing.assert_close(criterion(-u, y), F.cross_entropy(-u, y, weight=given))
    torch.testing.assert_close(loss_bound(num_classes=3, noise_rate=0.0)(u, y), F.cross_entropy(u, y))


@pytest.mark.parametrize("below", ["stop", "ascend"])
@pytest.mark.parametrize("bound", [0.0, 3.0])
def test_the_floor_of_soft_labels_with_weights_is_met(bound, below):
    torch.manual_seed(0)
    u, y = torch.randn(7, 3).double().requires_grad_(), torch.randn(7, 3).double().softmax(-1)
    w = torch.tensor([0.2, 0.5, 3.0]).double()
    loss = loss_bound(num_classes=3, bound=bound, below=below, weight=w).double()(u, y)
    plain = F.cross_entropy(u, y, weight=w)
    assert (plain < bound) == (bound > 0)
    climbs = 2 * bound - plain if below == "ascend" else bound + 0 * plain
    expected = climbs if bound else plain
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(value, u)[0] for value in (loss, expected)))


def test_an_audit_sets_the_bound():
    from compensate import audit

    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(c, 0.6, (60, 4)) for c in (0, 3, 6)])
    y = np.repeat(np.arange(3), 60)
    y[::6] = (y[::6] + 1) % 3
    found = audit(x, y)
    criterion = loss_bound(num_classes=3, noise_rate=found.noise_rate.value)
    floor = criterion.terms["loss"].terms[0].bound
    assert noise_entropy(found.noise_rate.low, 3) <= floor <= noise_entropy(found.noise_rate.high, 3)
    assert floor > 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"noise_rate": 1.0}, "noise_rate"),
        ({"noise": "odd"}, "noise is"),
        ({"bound": -1}, "bound"),
        ({"below": "go"}, "below"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(InputError, match=said):
        loss_bound(num_classes=3, **settings)
