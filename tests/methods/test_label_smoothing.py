"""Label smoothing and its relatives: torch, brute force over the simplex, loops that keep everything."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compensate import METHODS, InputError
from compensate.core.taxonomy import measured, overall_sign
from compensate.methods import adversarial_label_smoothing, label_smoothing, online_label_smoothing


def logits(b=6, c=4, scale=2.0):
    return (scale * torch.randn(b, c, dtype=torch.float64)).requires_grad_(), torch.randint(c, (b,))


def value_and_grad(loss, u):
    return loss.detach(), torch.autograd.grad(loss, u)[0]


@pytest.mark.parametrize("lam", [0.0, 0.1, 0.7])
def test_label_smoothing_is_that_of_torch(lam):
    u, y = logits()
    y[0] = -100
    ours = value_and_grad(label_smoothing(lam=lam)(u, y), u)
    theirs = value_and_grad(F.cross_entropy(u, y, label_smoothing=lam), u)
    assert torch.allclose(ours[0], theirs[0])
    assert torch.allclose(ours[1], theirs[1])


def test_adversarial_smoothing_is_the_worst_vertex_of_the_simplex():
    u, y = logits(30)
    s = adversarial_label_smoothing(lam=0.3).evaluate(nn.Identity(), u, y)
    onehot = F.one_hot(y, 4).double()
    vertices = torch.stack([-((0.7 * onehot + 0.3 * v) * u.log_softmax(-1)).sum(-1) for v in torch.eye(4).double()])
    assert torch.allclose(s.losses, vertices.amax(0))
    assert overall_sign(measured(s)) == "negative" == METHODS["adversarial_label_smoothing"].taxonomy.direction
    inside = torch.distributions.Dirichlet(torch.ones(4).double()).sample((200, 30))
    assert (-((0.7 * onehot + 0.3 * inside) * u.log_softmax(-1)).sum(-1) <= s.losses + 1e-12).all()


def test_tied_classes_share_and_a_given_class_that_is_least_likely_stays():
    u, y = torch.tensor([[2.0, 0.0, 0.0], [0.0, 3.0, 4.0]]), torch.tensor([0, 0])
    s = adversarial_label_smoothing(lam=0.4).evaluate(nn.Identity(), u, y)
    assert torch.allclose(s.y + s.dy, torch.tensor([[0.6, 0.2, 0.2], [1.0, 0.0, 0.0]]))


def naive_guess(p, y, kind, temperature):
    """The authors' definitions, one sample and class at a time."""
    rows = []
    for pi, yi in zip(p, y.tolist(), strict=True):
        others = [c for c in range(len(pi)) if c != yi]
        row = [pi.new_zeros(())] * len(pi)
        if kind == "second_best":
            row[max(others, key=pi.tolist().__getitem__)] = pi.new_ones(())
        else:
            weights = {c: torch.exp(-pi[c] / temperature) for c in others}
            for c in others:
                row[c] = weights[c] / sum(weights.values())
        rows.append(torch.stack(row))
    return torch.stack(rows)


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("kind", ["boltzmann", "second_best"])
def test_boltzmann_and_second_best_follow_their_definitions(kind, detach):
    u, y = logits(40)
    s = adversarial_label_smoothing(lam=0.2, kind=kind, temperature=0.3, detach=detach).evaluate(nn.Identity(), u, y)
    p = u.softmax(-1)
    q = naive_guess(p.detach() if detach else p, y, kind, 0.3)
    expected = -((0.8 * F.one_hot(y, 4) + 0.2 * q) * u.log_softmax(-1)).sum(-1).mean()
    assert torch.allclose(s.loss, expected)
    assert torch.allclose(torch.autograd.grad(s.loss, u)[0], torch.autograd.grad(expected, u)[0])
    assert overall_sign(measured(s)) == "mixed" == s.criterion.taxonomy.direction


@pytest.mark.parametrize("conf", ["correct", "all"])
def test_online_smoothing_learns_from_the_previous_epoch(conf):
    criterion, table = online_label_smoothing(num_classes=3, conf=conf), torch.full((3, 3), 1 / 3).double()
    for _ in range(3):
        kept = {c: [] for c in range(3)}
        for _ in range(4):
            u, y = logits(7, 3)
            ours = value_and_grad(criterion(u, y), u)
            theirs = value_and_grad(0.5 * F.cross_entropy(u, y) + 0.5 * F.cross_entropy(u, table[y]), u)
            assert torch.allclose(ours[0], theirs[0], atol=1e-6)
            assert torch.allclose(ours[1], theirs[1], atol=1e-6)
            for p, label in zip(u.detach().softmax(-1), y.tolist(), strict=True):
                if conf == "all" or int(p.argmax()) == label:
                    kept[label].append(p)
        criterion.end_epoch()
        rows = [torch.stack(kept[c]).mean(0) if kept[c] else torch.full((3,), 1 / 3).double() for c in range(3)]
        table = torch.stack(rows)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: label_smoothing(lam=1.5),
        lambda: adversarial_label_smoothing(kind="worst"),
        lambda: adversarial_label_smoothing(kind="boltzmann", temperature=0),
        lambda: online_label_smoothing(num_classes=3, conf="some"),
    ],
)
def test_bad_settings_are_refused(bad):
    with pytest.raises(InputError):
        bad()
