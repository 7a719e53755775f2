"""Formulas and gates: guesses, slacks, schedules, thresholds."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from compensate import Compensated, InputError
from compensate.core.taxonomy import measured
from compensate.terms import Ramp, Slack, StepSchedule


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 5), st.floats(0, 3), st.integers(0, 10**6))
def test_slack_lowers_the_loss_and_never_below_zero(xi, temperature, seed):
    g = torch.Generator().manual_seed(seed)
    u, y = 3 * torch.randn(6, 3, generator=g, dtype=torch.float64), torch.randint(3, (6,), generator=g)
    s = Compensated(loss=Slack(xi, temperature)).evaluate(nn.Identity(), u, y)
    assert (measured(s) <= 0).all()
    assert (s.compensated >= -1e-9).all()
    if temperature == 0:
        assert torch.allclose(s.compensated, (F.cross_entropy(u, y, reduction="none") - xi).clamp(min=0))


def seen_values(schedule, steps=5, total=4):
    seen = []
    criterion = Compensated(logit=lambda s: seen.append(float(schedule(s))) or torch.zeros(1, 3)).start(total)
    for _ in range(steps):
        criterion(torch.zeros(1, 3), torch.tensor([0]))
    return seen


@pytest.mark.parametrize(
    ("ramp", "expected"),
    [
        (Ramp(0, 1), [0, 0.25, 0.5, 0.75, 1]),
        (Ramp(2, 1, begin=0.25, finish=0.75), [2, 2, 1.5, 1, 1]),
        (Ramp(1, 16, shape="exponential"), [1, 2, 4, 8, 16]),
        (Ramp(0, 1, shape="cosine"), [(1 - math.cos(math.pi * t / 4)) / 2 for t in range(5)]),
    ],
)
def test_ramps_follow_the_progress(ramp, expected):
    assert seen_values(ramp) == pytest.approx(expected, abs=1e-6)


def test_steps_follow_the_epochs():
    seen, schedule = [], StepSchedule({0: 0.0, 2: 0.5, 3: 1.0})
    criterion = Compensated(logit=lambda s: seen.append(float(schedule(s))) or torch.zeros(1, 3))
    for _ in range(5):
        criterion(torch.zeros(1, 3), torch.tensor([0]))
        criterion.end_epoch()
    assert seen == [0.0, 0.0, 0.5, 1.0, 1.0]


def test_a_schedule_without_a_known_end_says_what_to_call():
    with pytest.raises(InputError, match=r"criterion\.start\(total_steps"):
        Compensated(logit=lambda s: Ramp(0, 1)(s))(torch.zeros(1, 3), torch.tensor([0]))


@pytest.mark.parametrize(
    "call",
    [
        lambda: Ramp(0, 1, begin=0.5, finish=0.5),
        lambda: Ramp(0, 1, shape="exponential"),
        lambda: StepSchedule({1: 0.5}),
        lambda: Slack(-1.0),
        lambda: Compensated().start(0),
    ],
)
def test_bad_settings_are_refused(call):
    with pytest.raises(InputError):
        call()
