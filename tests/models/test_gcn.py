"""The graph network against dense matrices, and wrong edges that compensation finds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from compensate import Compensated, InputError, compose, meta_step
from compensate.core.criterion import change
from compensate.models import GCN
from compensate.terms import L1, Between, EdgeRecord
from compensate.terms.structure import Dissimilarity, Edges
from experiments.data import neighbor_graph, with_wrong_edges


def small(weight=None):
    torch.manual_seed(0)
    edges = torch.tensor([[0, 1, 2, 0, 3], [1, 2, 3, 4, 4]])
    return GCN(torch.randn(5, 3).double(), edges, 2, hidden=4, weight=weight).double()


def dense(net, change=0.0):
    """The two convolutions with whole matrices."""
    n = len(net.x)
    a = torch.zeros(n, n, dtype=torch.float64)
    for e, (i, j) in enumerate(net.edges.T.tolist()):
        a[i, j] = a[j, i] = (net.structure[e] + (change if isinstance(change, float) else change[e])).clamp(0, 1)
    a = a + torch.eye(n).double()
    share = torch.diag(a.sum(1).rsqrt())
    a = share @ a @ share
    h = (a @ net.x @ net.first.weight.T).relu()
    return a @ h @ net.last.weight.T + net.last.bias


@pytest.mark.parametrize("size", [0.0, 0.3, 2.0])
def test_the_network_is_that_of_dense_matrices(size):
    net = small(torch.tensor([1.0, 0.5, 0.0, 1.0, 0.2]).double())
    delta = size * torch.randn(5).double()
    torch.testing.assert_close(net(torch.arange(5), delta), dense(net, delta))
    torch.testing.assert_close(net(torch.tensor([3, 1])), dense(net)[[3, 1]])


def test_the_gradient_of_edges_is_that_of_finite_differences():
    net = small(torch.full((5,), 0.5).double())
    delta = (0.1 * torch.randn(5).double()).requires_grad_()
    assert torch.autograd.gradcheck(lambda d: net(torch.arange(5), d), delta)


def test_a_step_of_the_edges_is_proximal_and_goes_down_the_loss():
    net, nodes, y = small(torch.full((5,), 0.5).double()), torch.arange(4), torch.tensor([0, 1, 1, 0])
    table = Edges(5, penalty=L1(1e-3), lr=0.1)
    criterion = Compensated(structure=table).double()
    plain = criterion.evaluate(net, nodes, y)
    plain.loss.backward()
    zero = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(F.cross_entropy(dense(net, zero)[:4], y), zero)
    step = -0.1 * grad
    torch.testing.assert_close(table.dense(), step.sign() * (step.abs() - 1e-4).clamp(min=0))
    after = criterion.evaluate(net, nodes, y)
    assert change(after).sum() < 0
    torch.testing.assert_close(after.loss - after.compensated.mean(), 1e-3 * table.dense().abs().sum())


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weight", [None, [4.0, 4.0]])
def test_a_step_of_the_edges_does_not_grow_with_the_batch_or_with_constant_weights(shared, reduction, weight):
    net, nodes, y = small(torch.full((5,), 0.5).double()), torch.arange(4), torch.tensor([0, 1, 1, -100])
    found = []
    for times, kind, w in ((1, "mean", None), (8, reduction, weight)):
        table = Edges(5, shared=shared, penalty=L1(1e-3), lr=0.1)
        criterion = Compensated(structure=table, reduction=kind, weight=w).double()
        criterion.evaluate(net, nodes.repeat(times), y.repeat(times)).loss.backward()
        found.append(table.dense())
    assert found[0].any()
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("weight", [None, [3.0, 0.5]])
def test_a_number_that_edges_share_is_charged_once(weight):
    net, nodes, y = small(torch.full((5,), 0.5).double()), torch.arange(4), torch.tensor([0, 1, 1, 0])
    table = Edges(5, shared=True, penalty=L1(0.2), init=-0.3)
    s = Compensated(structure=table, weight=weight).double().evaluate(net, nodes, y)
    plain = F.cross_entropy(dense(net, -0.3)[:4], y, weight=None if weight is None else torch.tensor(weight).double())
    torch.testing.assert_close(s.loss, plain + 0.2 * 0.3)


def test_a_record_of_edges_states_only_before_training_that_nothing_was_seen():
    record = EdgeRecord(Edges(5, penalty=L1(1e-3), lr=0.1), 5)
    criterion = Compensated(structure=record).double()
    assert "none: nothing was seen in training" in repr(record.suspects())
    criterion.evaluate(small(), torch.arange(4), torch.tensor([0, 1, 1, 0])).loss.backward()
    assert len(record.suspects(top=0)) == 0
    assert "none" not in repr(record.suspects(top=0))
    assert "not judged" not in repr(record.suspects())


def test_prior_knowledge_is_how_unlike_the_ends_are():
    net = small()
    criterion = Compensated(structure=lambda s: -Dissimilarity(0.5)(s))
    s = criterion.evaluate(net, torch.arange(4), torch.tensor([0, 1, 1, 0]))
    for e, (i, j) in enumerate(net.edges.T.tolist()):
        a, b = net.x[i], net.x[j]
        assert s.da[e].item() == pytest.approx(-0.5 * (1 - (a @ b / a.norm() / b.norm()).item()))


def test_clean_nodes_teach_which_edges_to_drop():
    """Two groups of nodes, and edges across them: meta steps on clean nodes take those away first."""
    torch.manual_seed(0)
    y = torch.arange(20) % 2
    x = (y[:, None] * 2.0 - 1 + 1.5 * torch.randn(20, 2)).double()
    same = torch.tensor([[i, i + 2] for i in range(18)]).T
    across = torch.tensor([[i, i + 1] for i in range(0, 18, 3)]).T
    net = GCN(x, torch.cat([same, across], 1), 2, hidden=8).double()
    optimizer = torch.optim.Adam(net.parameters(), 0.05)
    table = Edges(24, update="meta", lr=20.0, bound=Between(-1.0, 0.0))
    criterion = Compensated(structure=table).double()
    for _ in range(40):
        meta_step(criterion, net, (torch.arange(10), y[:10]), (torch.arange(10, 20), y[10:]), lr=0.5)
        optimizer.zero_grad()
        criterion.evaluate(net, torch.arange(10), y[:10]).loss.backward()
        optimizer.step()
    assert table.dense()[18:].mean() < table.dense()[:18].mean()


LINEAR, ZEROS = torch.nn.Linear(2, 2), torch.zeros(4).long()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: GCN(torch.randn(3), torch.zeros(2, 1).long(), 2), "features"),
        (lambda: GCN(torch.randn(3, 2), torch.tensor([[0], [5]]), 2), "nodes from"),
        (lambda: GCN(torch.randn(3, 2), torch.tensor([[0], [1]]), 2, weight=torch.tensor([2.0])), "in \\[0, 1\\]"),
        (lambda: neighbor_graph(np.zeros((3, 1)), 3), "k is"),
        (lambda: with_wrong_edges(np.zeros((2, 1), dtype=int), np.zeros(3), 1.0), "rate"),
        (lambda: with_wrong_edges(np.array([[0], [1]]), np.zeros(3), 0.5), "lower the rate"),
        (lambda: Compensated(logit=Edges(3, penalty=L1(1.0)))(torch.zeros(3, 2), torch.zeros(3).long()), "structure="),
        (lambda: Compensated(structure=Edges(3, penalty=L1(1.0)))(torch.zeros(3, 2), ZEROS[:3]), "evaluate"),
        (lambda: compose(target="structure", num_edges=4).evaluate(small(), torch.arange(4), ZEROS), "4 edges"),
        (lambda: compose(target="structure", num_edges=4).evaluate(LINEAR, torch.randn(4, 2), ZEROS), "GCN"),
    ],
)
def test_what_makes_no_sense_is_refused(make, said):
    with pytest.raises(InputError, match=said):
        make()
