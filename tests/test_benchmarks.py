"""The machinery of the benchmarks at a small size, and equality with the peers that they are measured beside."""

from __future__ import annotations

import pytest
import torch

from benchmarks import steps
from compensate import Compensated
from compensate.terms import Adversarial

pytestmark = pytest.mark.slow


def test_adversarial_steps_are_measured_and_foolbox_finds_the_same_perturbation() -> None:
    pytest.importorskip("foolbox", reason="the peer is in the extra `bench`", exc_type=ImportError)
    assert all(len(ratio.ours) == len(ratio.theirs) >= 1 for ratio in steps.adversarial(8, 1, batch=2))
    model, _, x, y = steps.setting(8, batch=4)
    ours = Compensated(feature=Adversarial(steps.EPS, steps=3, random_start=False, bounds=(0, 1)))
    theirs = steps.foolbox_attack(model, x, y, steps=3, random_start=False)
    torch.testing.assert_close(x + ours.evaluate(model, x, y).dx, theirs)
    assert (theirs - x).abs().max() == pytest.approx(steps.EPS, rel=1e-3)


def test_arcface_is_that_of_pytorch_metric_learning() -> None:
    pytest.importorskip("pytorch_metric_learning", reason="the peer is in the extra `bench`")
    assert all(len(ratio.ours) == len(ratio.theirs) >= 1 for ratio in steps.margins(1, batch=4, classes=5, features=3))
    for seed in range(5):
        torch.manual_seed(seed)
        ours, peer = steps.arcface_pair(7, 5, scale=16.0)
        z, y = torch.randn(9, 5, requires_grad=True), torch.randint(7, (9,))
        found = [(loss, *torch.autograd.grad(loss, z)) for loss in (ours(z, y), peer(z, y))]
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
