"""Tables: which rows move, by how much, and at what cost."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from compensate import Compensated
from compensate.terms import L1, L2, Ball, Category, Corpus, Group, GroupL2, Sample, Slack, Where, above, below


def prox_l1(v, t):
    return torch.tensor([[max(abs(x) - t, 0.0) * (1 if x > 0 else -1) for x in row] for row in v.tolist()]).to(v)


@pytest.mark.parametrize("update", ["prox", "subgradient"])
def test_one_step_of_a_sample_table_is_the_formula(update):
    table = Sample(6, 3, penalty=L1(0.1), lr=0.7, update=update)
    table.weight.copy_(torch.randn(6, 3))
    u, y, i = torch.randn(2, 3), torch.tensor([2, 0]), torch.tensor([4, 1])
    old = table.weight.clone()
    loss = Compensated(logit=table)(u, y, i)
    v = old[i]
    grad = (u + v).softmax(-1) - F.one_hot(y, 3)
    expected = prox_l1(v - 0.7 * grad, 0.07) if update == "prox" else v - 0.7 * (grad + 0.1 * v.sign())
    assert torch.allclose(loss, F.cross_entropy(u + v, y) + 0.1 * v.abs().sum(1).mean())
    assert torch.allclose(table.weight[i], expected, atol=1e-6)
    rest = [0, 2, 3, 5]
    assert torch.equal(table.weight[rest], old[rest])


def test_a_repeated_index_takes_one_step_with_the_mean_gradient():
    table = Sample(6, 3, penalty=L1(0.0), lr=1.0)
    u, y, i = torch.randn(3, 3), torch.tensor([2, 2, 0]), torch.tensor([4, 4, 1])
    Compensated(logit=table)(u, y, i)
    grad = u.softmax(-1) - F.one_hot(y, 3)
    assert torch.allclose(table.weight[4], -grad[:2].mean(0), atol=1e-6)
    assert torch.allclose(table.weight[1], -grad[2], atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 8), st.integers(0, 10**6), st.sampled_from(["logit", "label", "prediction", "slack"]))
def test_absent_rows_never_move(b, seed, target):
    g = torch.Generator().manual_seed(seed)
    shape = () if target == "slack" else (4,)
    table = Sample(20, *shape, penalty=L1(0.01), bound=Ball(0.5), lr=0.5)
    start = 0.1 * torch.rand(20, *shape, generator=g)
    table.weight.copy_(start)
    terms = {"loss": Slack(table)} if target == "slack" else {target: table}
    criterion = Compensated(**terms)
    present = torch.zeros(20, dtype=torch.bool)
    for _ in range(3):
        i = torch.randint(10, (b,), generator=g)
        present[i] = True
        criterion(torch.randn(b, 4, generator=g), torch.randint(4, (b,), generator=g), i)
    assert torch.equal(table.weight[~present], start[~present])
    assert not torch.equal(table.weight[present], start[present])


def test_rows_of_ignored_and_gated_samples_rest():
    table = Sample(6, 3, penalty=L1(0.1), init=0.5)
    gate = torch.tensor([True, True, False])
    criterion = Compensated(logit=Where(lambda s: gate, table))
    old = table.weight.clone()
    loss = criterion(torch.randn(3, 3), torch.tensor([1, -100, 2]), torch.tensor([0, 1, 2]))
    assert not torch.equal(table.weight[0], old[0])
    assert torch.equal(table.weight[1:], old[1:])
    assert loss.isfinite()


def test_non_finite_rows_are_never_written():
    table = Sample(2, 3, penalty=L1(0.1))
    table.write(torch.tensor([0, 1]), torch.tensor([[1.0, torch.inf, 0.0], [1.0, 2.0, 3.0]]))
    assert table.weight.tolist() == [[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]


@pytest.mark.parametrize(
    ("table", "keys"),
    [
        (lambda: Category(3, 3, penalty=L2(0.1), lr=0.5), lambda i, y, g: y),
        (lambda: Group(2, 3, penalty=L2(0.1), lr=0.5), lambda i, y, g: g),
        (lambda: Corpus(3, penalty=L2(0.1), lr=0.5), lambda i, y, g: 0 * y),
    ],
)
def test_shared_rows_follow_the_mean_over_their_samples(table, keys):
    table = table()
    u, y, g = torch.randn(6, 3), torch.tensor([0, 1, 1, 0, 1, 0]), torch.tensor([1, 0, 0, 0, 1, 1])
    Compensated(logit=table)(u, y, group=g)
    k = keys(None, y, g)
    grad = u.softmax(-1) - F.one_hot(y, 3)
    for row in range(len(table.weight)):
        mine = k == row
        expected = -0.5 * grad[mine].mean(0) / 1.05 if mine.any() else torch.zeros(3)
        assert torch.allclose(table.weight[row], expected, atol=1e-6)


@pytest.mark.parametrize("penalty", [L1(0.3), L2(0.3), GroupL2(0.3)])
def test_proximal_maps_minimize_their_definition(penalty):
    """Against brute force: no nearby point has a lower value."""
    v = torch.randn(4, 3, dtype=torch.float64)
    best = penalty.prox(v, 0.8, None)

    def value(w):
        return (w - v).square().flatten(1).sum(1) / 2 + 0.8 * penalty(w, None)

    for scale in (1e-1, 1e-2, 1e-3):
        for _ in range(200):
            assert (value(best) <= value(best + scale * torch.randn_like(v)) + 1e-12).all()


def test_feature_tables_move_in_the_backward_pass_whatever_the_scale(tiny, batch):
    x, y, i = batch
    steps = []
    for scale in (1.0, 128.0):
        table = Sample(9, 4, penalty=L1(0.001), lr=0.5)
        model, criterion = copy.deepcopy(tiny), Compensated(feature=table).double()
        s = criterion.evaluate(model, x, y, i)
        assert not table.weight.any()
        (scale * s.loss).backward()
        steps.append(table.weight.clone())
    dx = torch.zeros_like(x, requires_grad=True)
    (grad,) = torch.autograd.grad(F.cross_entropy(tiny(x + dx), y, reduction="sum"), dx)
    expected = torch.zeros(9, 4).double()
    expected[i] = prox_l1(-0.5 * grad, 0.0005)
    assert torch.allclose(steps[0], expected, atol=1e-9)
    assert torch.allclose(steps[1], expected, atol=1e-9)


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_step_touches_memory_in_proportion_to_the_batch(size, monkeypatch):
    """The rows read and written are counted, and so are the bytes of every operation: neither knows the table's size."""
    counted = []
    gather, write = Sample.gather, Sample.write
    monkeypatch.setattr(Sample, "gather", lambda t, k: counted.append(len(k)) or gather(t, k))
    monkeypatch.setattr(Sample, "write", lambda t, k, r, *how: counted.append(len(k)) or write(t, k, r, *how))
    criterion = Compensated(logit=Sample(size, 3, penalty=L1(0.1)))
    with torch.profiler.profile(profile_memory=True) as profile:
        criterion(torch.randn(8, 3), torch.zeros(8).long(), torch.arange(8))
    assert set(counted) == {8}
    assert max(event.self_cpu_memory_usage for event in profile.key_averages()) < 50_000


def test_a_table_read_by_two_terms_moves_as_if_read_by_one():
    """Two gates share the samples out between them; no row is put back to where it was before the other's step."""
    u, y, i = 3 * torch.randn(6, 3), torch.randint(3, (6,)), torch.arange(6)
    once, twice = (Sample(6, 3, penalty=L1(0.01)) for _ in range(2))
    for criterion in (
        Compensated(logit=once),
        Compensated(logit=(Where(above(1.0), twice), Where(below(1.0), twice))),
    ):
        criterion(u, y, i)
    assert torch.allclose(once.weight, twice.weight, atol=1e-6)


def test_a_manual_table_pays_its_penalty_and_learns_by_the_users_optimizer():
    table = Sample(4, 3, update="manual", penalty=L1(10.0), init=1.0)
    u, y, i = torch.randn(2, 3), torch.tensor([0, 1]), torch.tensor([2, 3])
    loss = Compensated(logit=table)(u, y, i)
    assert torch.allclose(loss, F.cross_entropy(u, y) + 30.0, atol=1e-4)
    loss.backward()
    assert not table.weight.grad[:2].any()
    assert torch.allclose(table.weight.grad[2:], torch.full((2, 3), 5.0), atol=1.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_logits_of_another_precision_move_shared_rows(dtype):
    table = Category(3, 3, penalty=L1(0.01))
    Compensated(logit=table)(torch.randn(4, 3).to(dtype), torch.tensor([0, 0, 1, 2]))
    assert table.weight.dtype == torch.float32
    assert table.weight.any()
