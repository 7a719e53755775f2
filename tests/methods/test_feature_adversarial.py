"""Feature compensation by inner loops: per sample, per class, for all, and mixed."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compensate.core.taxonomy import measured
from compensate.methods import (
    classwise_universal_at,
    mixed_universal_at,
    pgd_at,
    universal_at,
    universal_perturbation,
)
from compensate.models.networks import BiLSTM


@pytest.fixture
def net():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_pgd_at_starts_in_the_ball_stays_in_it_and_trains_on_the_attack(norm, net):
    x, y = torch.randn(40, 4).double(), torch.randint(3, (40,))
    criterion = pgd_at(eps=0.3, norm=norm)
    s = criterion.evaluate(net, x, y)
    size = s.dx.abs().amax(1) if norm == "linf" else s.dx.norm(dim=1)
    assert (size <= 0.3 + 1e-9).all()
    assert (measured(s) > 0).all()
    grads = torch.autograd.grad(s.loss, net.parameters())
    expected = torch.autograd.grad(F.cross_entropy(net(x + s.dx.detach()), y), net.parameters())
    assert all(torch.allclose(a, b) for a, b in zip(grads, expected, strict=True)), "dx is a constant"
    one = pgd_at(eps=0.3, norm=norm, steps=1, step_size=1e-12).evaluate(net, x, y).dx
    two = pgd_at(eps=0.3, norm=norm, steps=1, step_size=1e-12).evaluate(net, x, y).dx
    assert (one - two).abs().max() > 0.01, "starts differ"
    plain = pgd_at(eps=0.3, norm=norm, random_start=False, steps=1, step_size=1e-12).evaluate(net, x, y)
    assert plain.dx.abs().max() < 1e-11


def test_the_linear_worst_case_is_found_exactly():
    """For a linear model of two classes the worst linf perturbation is -eps sign(w_y - w_other)."""
    model = nn.Linear(6, 2).double()
    x, y = torch.randn(8, 6).double(), torch.arange(8) % 2
    w = model.weight.detach()
    s = pgd_at(eps=0.1).evaluate(model, x, y)
    assert torch.allclose(s.dx, -0.1 * (w[y] - w[1 - y]).sign())


# --- rows that are shared -------------------------------------------------------------------------------------


def test_universal_at_is_one_row_over_two_steps_and_an_epoch_end(net):
    criterion = universal_at(feature_shape=(4,), eps=0.25, step_size=0.1).double()
    delta = torch.zeros(4).double()
    for step in range(4):
        x, y = torch.randn(6, 4).double(), torch.randint(3, (6,))
        s = criterion.evaluate(net, x, y)
        at = delta.clone().requires_grad_()
        (g,) = torch.autograd.grad(F.cross_entropy(net(x + at), y, reduction="sum"), at)
        delta = (delta + 0.1 * g.sign()).clamp(-0.25, 0.25)
        assert torch.allclose(s.dx, delta.expand(6, 4))
        assert torch.allclose(s.loss, F.cross_entropy(net(x + delta), y))
        assert torch.allclose(next(criterion.tables()).weight[0], delta)
        if step == 1:
            criterion.end_epoch()


def test_classwise_universal_at_keeps_a_row_for_each_class(net):
    criterion = classwise_universal_at(num_classes=3, feature_shape=(4,), eps=0.25, norm="l2", step_size=0.1).double()
    rows = torch.zeros(3, 4).double()
    for labels in ([0, 1, 1, 0], [2, 2, 1, 1], [0, 2, 0, 2]):
        x, y = torch.randn(4, 4).double(), torch.tensor(labels)
        s = criterion.evaluate(net, x, y)
        for c in set(labels):
            at = rows[c].clone().requires_grad_()
            (g,) = torch.autograd.grad(F.cross_entropy(net(x[y == c] + at), y[y == c], reduction="sum"), at)
            moved = rows[c] + 0.1 * g / g.norm()
            rows[c] = moved * min(1.0, 0.25 / moved.norm().item())
        assert torch.allclose(s.dx, rows[y])
        assert torch.allclose(next(criterion.tables()).weight, rows), "absent classes rest"


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_mixed_levels_are_inferred_in_order_each_in_its_own_ball(norm, net):
    """Eq. 24, with a category level between the two: coarse first, the finer ones on top."""
    x, y = torch.randn(6, 4).double(), torch.tensor([0, 1, 2, 1, 0, 2])
    levels = {"eps_corpus": 0.2, "eps_category": 0.1, "eps_sample": 0.05}
    criterion = mixed_universal_at(num_classes=3, feature_shape=(4,), norm=norm, step_size=1.0, **levels).double()
    torch.manual_seed(3)
    s = criterion.evaluate(net, x, y)
    corpus, category = (t.weight for t in criterion.tables())
    sample = s.dx - corpus[0] - category[y]

    def sizes(v):
        return v.abs().amax(-1) if norm == "linf" else v.norm(dim=-1)

    assert (sizes(corpus) <= 0.2 + 1e-9).all()
    assert (sizes(category) <= 0.1 + 1e-9).all()
    assert (sizes(sample) <= 0.05 + 1e-9).all()
    coarse = F.cross_entropy(net(x + corpus[0]), y)
    finer = F.cross_entropy(net(x + corpus[0] + category[y]), y)
    assert F.cross_entropy(net(x), y) < coarse < finer < s.loss
    # The corpus level does not know of the others: it is what universal_at alone would find.
    alone = universal_at(feature_shape=(4,), eps=0.2, norm=norm, step_size=1.0).double()
    alone.evaluate(net, x, y)
    assert torch.allclose(next(alone.tables()).weight, corpus)


# --- the perturbation of a fixed model ------------------------------------------------------------------------


def test_universal_perturbation_is_the_best_vertex():
    """For two classes and a linear model the loss is convex in the perturbation: the maximum over the linf ball is at a vertex."""
    model = nn.Linear(4, 2).double()
    x, y = torch.randn(64, 4).double(), (torch.rand(64) < 0.7).long()
    loader = [(x[:32], y[:32]), (x[32:], y[32:])]
    found = universal_perturbation(model, loader, eps=0.3, epochs=10)
    vertices = [0.3 * torch.tensor(v).double() for v in itertools.product((-1, 1), repeat=4)]
    losses = [F.cross_entropy(model(x + v), y).item() for v in vertices]
    assert F.cross_entropy(model(x + found), y).item() == pytest.approx(max(losses), abs=1e-9)
    helpful = universal_perturbation(model, loader, eps=0.3, epochs=10, sign=-1)
    assert F.cross_entropy(model(x + helpful), y) < F.cross_entropy(model(x), y)


def test_texts_share_a_word_vector_and_keep_their_padding():
    model = BiLSTM(50, 3, size=8, hidden=6, dropout=0.0)
    x, y = torch.randint(1, 50, (6, 7)), torch.arange(6) % 3
    x[:, 5:] = 0
    criterion = mixed_universal_at(num_classes=3, feature_shape=(8,), eps_corpus=0.1, eps_category=0.1, eps_sample=0)
    s = criterion.evaluate(model, x, y)
    corpus, category = (t.weight for t in criterion.tables())
    assert torch.allclose(s.dx[:, :5], (corpus + category[y])[:, None].expand(6, 5, 8))
    assert (s.dx[:, 5:] == 0).all()
    assert corpus.abs().max() > 0
    assert universal_perturbation(model, [(x, y)], eps=0.1, epochs=1).shape == (8,)
