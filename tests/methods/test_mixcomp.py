"""MixComp, Eqs. 44, 45 and 47: its limit cases, its thresholds, small batches."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from compensate import Compensated, InputError, methods
from compensate.methods import mixcomp
from compensate.terms import Evidence, Ramp, Top


def test_positive_part_is_the_formula():
    u, y = torch.randn(10, 4), torch.randint(4, (10,))
    s = mixcomp(eta=2.0, pro=30, floor=0).evaluate(torch.nn.Identity(), u, y)
    plain = F.cross_entropy(u, y, reduction="none")
    hard = plain >= plain.sort(descending=True).values[2]
    v = 2.0 * (F.one_hot(y, 4) - u.softmax(-1)) * hard[:, None]
    assert hard.sum() == 3
    assert torch.allclose(s.losses, F.cross_entropy(u + v, y, reduction="none"), atol=1e-6)


def test_labels_that_the_model_finds_likelier_than_not_are_left_alone_unless_the_floor_is_zero():
    u, y = 4 * torch.randn(60, 4), torch.randint(4, (60,))
    plain = F.cross_entropy(u, y, reduction="none")
    ours, paper = (mixcomp(pro=90, preset=preset).evaluate(torch.nn.Identity(), u, y) for preset in (None, "paper"))
    worst = plain >= plain.sort(descending=True).values[53]
    likely = u.softmax(-1).gather(1, y[:, None])[:, 0] > 0.5
    assert (worst & likely).any()
    assert torch.equal(ours.du.any(1), worst & ~likely)
    assert torch.equal(paper.du.any(1), worst)
    with pytest.raises(InputError, match="floor is -1"):
        mixcomp(floor=-1)


def test_a_bound_with_a_warmup_starts_as_cross_entropy_and_ends_as_mixcomp():
    u, y = torch.randn(50, 4), torch.randint(4, (50,))
    growing = mixcomp(tau=1.0, eta=3.0, warmup=(0.25, 0.75)).start(total_steps=4)
    whole, half = (mixcomp(tau=1.0, eta=eta) for eta in (3.0, 1.5))
    wanted = [F.cross_entropy(u, y), F.cross_entropy(u, y), half(u, y), whole(u, y), whole(u, y)]
    assert len({round(float(loss), 4) for loss in wanted}) == 3
    for loss in wanted:
        torch.testing.assert_close(growing(u, y), loss)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("eps2", [0.0, 0.1])
def test_a_last_batch_of_one_or_two_samples(size, eps2):
    model = torch.nn.Linear(4, 3)
    criterion = mixcomp(num_samples=9, pro=35, eps2=eps2)
    s = criterion.evaluate(model, torch.randn(size, 4), torch.zeros(size).long(), torch.arange(size))
    s.loss.backward()
    assert s.loss.isfinite()
    assert (s.du == 0).all(), "35 percent of one or two samples is none of them"


def test_a_share_in_place_of_percent_is_noticed():
    with pytest.warns(UserWarning, match=r"pro is in percent, 30 means 30 %; got 0\.3"):
        mixcomp(pro=0.3)
    for pro in (0, 1, 30):
        mixcomp(pro=pro)


@pytest.mark.parametrize(("pro", "size", "k"), [(0, 10, 0), (5, 10, 0), (25, 10, 2), (50, 7, 3), (100, 4, 4)])
def test_threshold_is_the_kth_largest_loss(pro, size, k):
    taus, u, y = [], torch.randn(size, 3), torch.randint(3, (size,))
    top = Top(pro)
    Compensated(logit=lambda s: taus.append(top(s)) or 0 * s.u)(u, y)
    losses = F.cross_entropy(u, y, reduction="none").sort(descending=True).values
    assert taus[0] == (losses[k - 1] if k else torch.inf)


def test_threshold_over_the_last_epoch():
    top, taus = Top(25, "epoch", 8), []

    class Probe(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.top = top

        def forward(self, s):
            taus.append(self.top(s))
            return 0 * s.u

    criterion = Compensated(logit=Probe(), record=Evidence(8))
    u, y = torch.randn(8, 3), torch.randint(3, (8,))
    losses = F.cross_entropy(u, y, reduction="none")
    for i in (torch.arange(4), torch.arange(4, 8)):
        criterion(u[i], y[i], i)
    assert taus[0] == losses[:4].max(), "in the first epoch the batch serves"
    criterion.end_epoch()
    criterion(torch.randn(4, 3), y[:4], torch.arange(4))
    assert taus[2] == losses.sort(descending=True).values[1]
    criterion.end_epoch()
    criterion(torch.randn(4, 3), y[:4], torch.arange(4))
    assert taus[3] != taus[2], "samples seen again count with their new loss"


@pytest.mark.parametrize(
    "bad",
    [
        {"pro": 101},
        {"pro": -1},
        {"over": "epoch"},
        {"over": "run"},
        {"eta": -1.0},
        {"warmup": (0.5, 0.2)},
        {"eta": Ramp(0.0, 1.0), "warmup": (0.1, 0.2)},
    ],
)
def test_bad_settings_are_refused(bad):
    with pytest.raises(InputError):
        mixcomp(**bad)


@pytest.mark.parametrize("build", [methods.mixcomp, methods.mixcomp_adaptive, methods.semantics_preserving_at])
def test_the_attack_starts_where_it_is_told_to_and_takes_the_steps_it_is_told(build):
    radius = {"eps": 0.2} if build is methods.semantics_preserving_at else {"eps2": 0.2, "tau": 1e6}
    model, x, y = torch.nn.Linear(4, 3), torch.randn(6, 4), torch.arange(6) % 3

    def attacked(seed, **options):
        torch.manual_seed(seed)
        return build(**radius, steps=1, **options).evaluate(model, x, y).dx.abs()

    still = attacked(0, random_start=False, step_size=0.05)
    torch.testing.assert_close(still, torch.full_like(still, 0.05))
    torch.testing.assert_close(attacked(1, random_start=False, step_size=0.05), still)
    assert not torch.allclose(attacked(0, step_size=0.05), attacked(1, step_size=0.05))
