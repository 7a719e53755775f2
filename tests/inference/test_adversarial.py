"""Adversarial compensation and prior knowledge."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from compensate import Compensated, InputError
from compensate.core.criterion import measured
from compensate.core.stages import traceless
from compensate.methods import mixcomp
from compensate.terms import Adversarial, Category, Corpus, Ramp, Sample, Slack, StepSchedule, Where


# Adversarial
def naive_pgd(model, x, y, *, eps, norm, steps, alpha, sign, bounds):
    """One sample at a time, written out."""
    out = []
    for xi, yi in zip(x, y, strict=True):
        delta = torch.zeros_like(xi)
        for _ in range(steps):
            delta.requires_grad_(True)
            loss = F.cross_entropy(model((xi + delta)[None]), yi[None])
            (g,) = torch.autograd.grad(loss, delta)
            with torch.no_grad():
                if norm == "linf":
                    delta = (delta + sign * alpha * g.sign()).clamp(-eps, eps)
                else:
                    delta = delta + sign * alpha * g / g.norm()
                    if delta.norm() > eps:
                        delta = delta * eps / delta.norm()
                if bounds:
                    delta = (xi + delta).clamp(*bounds) - xi
        out.append(delta.detach())
    return torch.stack(out)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
def test_equals_a_naive_loop(norm, sign, bounds):
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x, y = torch.rand(5, 3, 2, 2).double(), torch.tensor([0, 1, 2, 1, 0])
    attack = Adversarial(0.3, sign=sign, norm=norm, steps=4, step_size=0.12, random_start=False, bounds=bounds)
    s = Compensated(feature=attack).evaluate(model, x, y)
    expected = naive_pgd(model, x, y, eps=0.3, norm=norm, steps=4, alpha=0.12, sign=sign, bounds=bounds)
    assert torch.allclose(s.dx, expected, atol=1e-10)
    assert torch.allclose(s.loss, F.cross_entropy(model(x + expected), y))
    assert (measured(s) == sign).all()


@settings(max_examples=30, deadline=None)
@given(
    st.floats(0.01, 2), st.sampled_from(["l2", "linf"]), st.booleans(), st.sampled_from([1, -1]), st.integers(0, 10**6)
)
def test_stays_in_ball_and_bounds(eps, norm, start, sign, seed):
    torch.manual_seed(seed)
    model = nn.Linear(6, 3)
    x, y = torch.rand(4, 6), torch.randint(3, (4,))
    attack = Adversarial(eps, sign=sign, norm=norm, steps=3, random_start=start, bounds=(0, 1))
    s = Compensated(feature=attack).evaluate(model, x, y)
    size = s.dx.norm(dim=1) if norm == "l2" else s.dx.abs().amax(1)
    assert (size <= eps * (1 + 1e-5)).all()
    assert ((x + s.dx >= -1e-6) & (x + s.dx <= 1 + 1e-6)).all()


@pytest.mark.parametrize("level", ["corpus", "category", "sample"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_shared_rows_equal_a_loop_that_sums_over_their_samples(level, norm):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x, y, i = torch.randn(6, 4).double(), torch.tensor([0, 1, 1, 0, 1, 0]), torch.tensor([5, 2, 0, 7, 3, 1])
    table = {"corpus": lambda: Corpus(4), "category": lambda: Category(3, 4), "sample": lambda: Sample(9, 4)}[level]()
    table = table.double()
    criterion = Compensated(feature=Adversarial(0.5, norm=norm, steps=2, step_size=0.2, per=table))
    keys = {"corpus": torch.zeros(6).long(), "category": y, "sample": i}[level]
    rows = torch.zeros(len(table.weight), 4).double()
    for _ in range(2):
        s = criterion.evaluate(model, x, y, i)
        for _ in range(2):
            new = rows.clone()
            for row in keys.unique():
                delta = rows[row].clone().requires_grad_(True)
                loss = sum(F.cross_entropy(model((x[j] + delta)[None]), y[j][None]) for j in range(6) if keys[j] == row)
                (g,) = torch.autograd.grad(loss, delta)
                moved = rows[row] + 0.2 * (g.sign() if norm == "linf" else g / g.norm())
                new[row] = moved.clamp(-0.5, 0.5) if norm == "linf" else moved * min(1, 0.5 / moved.norm())
            rows = new
        assert torch.allclose(s.dx, rows[keys], atol=1e-10)
        assert torch.allclose(table.weight, rows, atol=1e-10)
    assert int((table.weight.abs().sum(1) > 0).sum()) == len(keys.unique())


def test_gated_out_samples_stay_clean_while_the_others_are_attacked(tiny, batch):
    """With batch normalization the attack of one sample sees the others: they must be as they are in the end."""
    x, y, _ = batch
    gate = torch.tensor([True, False, True, False, True])
    inside = Adversarial(0.5, steps=3, step_size=0.3, random_start=False)
    s = Compensated(feature=Where(lambda s: gate, inside)).evaluate(tiny, x, y)
    delta = torch.zeros_like(x)
    for _ in range(3):
        d = delta.clone().requires_grad_(True)
        loss = F.cross_entropy(tiny(x + d * gate[:, None]), y, reduction="none")
        (g,) = torch.autograd.grad(loss[gate].sum(), d)
        delta = (delta + 0.3 * g.sign()).clamp(-0.5, 0.5)
    assert torch.allclose(s.dx, delta * gate[:, None], atol=1e-10)


@pytest.mark.parametrize("mode", [True, False])
def test_extra_forwards_leave_instance_statistics_alone(mode):
    net = nn.Sequential(nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten(), nn.Linear(8, 3)).train(mode)
    x = torch.randn(5, 2, 4)
    before, expected = net[0].running_mean.clone(), None
    if not mode:
        expected = net(x)
    with traceless(net):
        found = net(x)
    assert torch.equal(net[0].running_mean, before)
    assert expected is None or torch.equal(found, expected)


def test_all_forwards_of_a_batch_see_the_same_dropout_mask(batch):
    x, y, _ = batch
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)).double()
    seen = []
    model[1].register_forward_pre_hook(lambda m, inputs: seen.append(inputs[0].detach() != 0))
    criterion = Compensated(feature=Adversarial(1e-9, steps=3), logit=lambda s: 0 * s.plain)
    criterion.evaluate(model, x, y)
    assert len(seen) == 5
    assert all(torch.equal(mask, seen[0]) for mask in seen)
    criterion.evaluate(model, x, y)
    assert not torch.equal(seen[-1], seen[0])


class Text(nn.Module):
    """Word vectors and their mean."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4, padding_idx=0), nn.Linear(4, 3)

    def embed(self, x):
        return self.table(x)

    def padding(self, x):
        return x == 0

    def features(self, e):
        return e.mean(1)

    def forward(self, x):
        return self.head(self.features(self.embed(x)))


def test_word_vectors_learn_although_a_gate_looks_first():
    """The threshold of MixComp asks for plain losses without gradients, and for the embedding with them."""
    model, x, y = Text(), torch.tensor([[3, 4, 0], [5, 6, 0]]), torch.tensor([1, 2])
    mixcomp(pro=50, eps2=0.01).evaluate(model, x, y).loss.backward()
    assert model.table.weight.grad[3:7].abs().sum(1).min() > 0


def test_text_attacks_leave_padding_alone():
    x, y = torch.tensor([[3, 4, 0], [5, 0, 0]]), torch.tensor([1, 2])
    s = Compensated(feature=Adversarial(0.1)).evaluate(Text(), x, y)
    assert s.dx.shape == (2, 3, 4)
    assert (s.dx[x == 0] == 0).all()
    assert (s.dx[x != 0] != 0).any()
    shared = Compensated(feature=Adversarial(0.1, steps=1, per=Corpus(4))).evaluate(Text(), x, y)
    assert torch.equal(shared.dx[0, 0], shared.dx[0, 1])
    assert torch.equal(shared.dx[0, 0], shared.dx[1, 0])


# Prior
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


U, Y = torch.zeros(1, 3), torch.tensor([0])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Adversarial(-1.0), "eps"), (lambda: Adversarial(0.1, sign=0), "sign"), (lambda: Adversarial(0.1, norm="l1"), "norm"),
        (lambda: Adversarial(0.1, steps=0), "steps"), (lambda: Compensated(loss=Adversarial(0.1))(U, Y), "constant has no gradient"),
        (lambda: Ramp(0, 1, begin=0.5, finish=0.5), "begin"), (lambda: Ramp(0, 1, shape="exponential"), "positive ends"),
        (lambda: StepSchedule({1: 0.5}), "epoch 0"), (lambda: Slack(-1.0), "xi"), (lambda: Compensated().start(0), "total_steps"),
        (lambda: Compensated(logit=lambda s: Ramp(0, 1)(s))(U, Y), r"criterion\.start\(total_steps"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused(call, said):
    with pytest.raises(InputError, match=said):
        call()
