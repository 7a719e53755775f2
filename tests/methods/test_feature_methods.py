"""Methods on features, views and gates, against loops and closed forms."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compensate import Compensated, InputError, methods
from compensate.core.criterion import measured
from compensate.models import GatedHead
from compensate.terms import L1, Adversarial, Sample
from compensate.terms.views import DEFAULT, ExtremeView, RandomMix, Views, blurred, darkened, moved, shifted
from tiny import overall_sign


# Feature adversarial
@pytest.fixture
def net():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_pgd_at_starts_in_the_ball_stays_in_it_and_trains_on_the_attack(norm, net):
    x, y = torch.randn(40, 4).double(), torch.randint(3, (40,))
    criterion = methods.pgd_at(eps=0.3, norm=norm)
    s = criterion.evaluate(net, x, y)
    size = s.dx.abs().amax(1) if norm == "linf" else s.dx.norm(dim=1)
    assert (size <= 0.3 + 1e-9).all()
    assert (measured(s) > 0).all()
    grads = torch.autograd.grad(s.loss, net.parameters())
    expected = torch.autograd.grad(F.cross_entropy(net(x + s.dx.detach()), y), net.parameters())
    assert all(torch.allclose(a, b) for a, b in zip(grads, expected, strict=True)), "dx is a constant"
    one = methods.pgd_at(eps=0.3, norm=norm, steps=1, step_size=1e-12).evaluate(net, x, y).dx
    two = methods.pgd_at(eps=0.3, norm=norm, steps=1, step_size=1e-12).evaluate(net, x, y).dx
    assert (one - two).abs().max() > 0.01, "starts differ"
    plain = methods.pgd_at(eps=0.3, norm=norm, random_start=False, steps=1, step_size=1e-12).evaluate(net, x, y)
    assert plain.dx.abs().max() < 1e-11


def test_the_linear_worst_case_is_found_exactly():
    """For a linear model of two classes the worst linf perturbation is -eps sign(w_y - w_other)."""
    model = nn.Linear(6, 2).double()
    x, y = torch.randn(8, 6).double(), torch.arange(8) % 2
    w = model.weight.detach()
    s = methods.pgd_at(eps=0.1).evaluate(model, x, y)
    assert torch.allclose(s.dx, -0.1 * (w[y] - w[1 - y]).sign())


# rows that are shared
def test_universal_at_is_one_row_over_two_steps_and_an_epoch_end(net):
    criterion = methods.universal_at(feature_shape=(4,), eps=0.25, step_size=0.1).double()
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
    criterion = methods.classwise_universal_at(
        num_classes=3, feature_shape=(4,), eps=0.25, norm="l2", step_size=0.1
    ).double()
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
    criterion = methods.mixed_universal_at(
        num_classes=3, feature_shape=(4,), norm=norm, step_size=1.0, **levels
    ).double()
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
    alone = methods.universal_at(feature_shape=(4,), eps=0.2, norm=norm, step_size=1.0).double()
    alone.evaluate(net, x, y)
    assert torch.allclose(next(alone.tables()).weight, corpus)


# the perturbation of a fixed model
def test_universal_perturbation_is_the_best_vertex():
    """For two classes and a linear model the loss is convex in the perturbation: the maximum over the linf ball is at a vertex."""
    model = nn.Linear(4, 2).double()
    x, y = torch.randn(64, 4).double(), (torch.rand(64) < 0.7).long()
    loader = [(x[:32], y[:32]), (x[32:], y[32:])]
    found = methods.universal_perturbation(model, loader, eps=0.3, epochs=10)
    vertices = [0.3 * torch.tensor(v).double() for v in itertools.product((-1, 1), repeat=4)]
    losses = [F.cross_entropy(model(x + v), y).item() for v in vertices]
    assert F.cross_entropy(model(x + found), y).item() == pytest.approx(max(losses), abs=1e-9)
    helpful = methods.universal_perturbation(model, loader, eps=0.3, epochs=10, sign=-1)
    assert F.cross_entropy(model(x + helpful), y) < F.cross_entropy(model(x), y)


# Feature center
def test_centers_are_running_means_and_inputs_go_part_of_the_way():
    model = nn.Linear(4, 3).double()
    criterion = methods.center_feature(num_classes=3, feature_shape=(4,), lam=0.3).double()
    seen, labels = np.zeros((0, 4)), np.zeros(0)
    for step in range(3):
        x, y = torch.randn(6, 4).double(), torch.tensor([0, 0, 1, 1, 2, 2] if step else [0, 0, 1, 1, 1, 0])
        s = criterion.evaluate(model, x, y)
        expected = np.zeros((6, 4))
        for i in range(6):
            mine = seen[labels == y[i].item()]
            if len(mine):
                expected[i] = 0.3 * (mine.mean(0) - x[i].numpy())
        assert np.allclose(s.dx.numpy(), expected, atol=1e-6)
        assert torch.allclose(s.loss, F.cross_entropy(model(x + torch.tensor(expected)), y), atol=1e-6)
        assert (expected[y == 2] == 0).all() == (step < 2), "a class is left alone until it has been seen"
        seen, labels = np.concatenate([seen, x.numpy()]), np.concatenate([labels, y.numpy()])
        if step == 1:
            criterion.end_epoch()


def test_only_the_worst_may_move():
    model = nn.Linear(4, 3)
    x, y = torch.randn(20, 4), torch.arange(20) % 3
    criterion = methods.center_feature(num_classes=3, feature_shape=(4,), lam=0.5, pro=25)
    for _ in range(2):
        s = criterion.evaluate(model, x, y)
    moved = s.dx.abs().sum(1) > 0
    assert moved.sum() == 5
    assert s.plain_losses[moved].min() > s.plain_losses[~moved].max()


def test_another_shape_is_refused():
    with pytest.raises(InputError, match="feature_shape"):
        methods.center_feature(num_classes=3, feature_shape=(5,)).evaluate(
            nn.Linear(4, 3), torch.randn(2, 4), torch.tensor([0, 1])
        )


# Mixed targets
IDENTITY = nn.Identity()


def test_logit_bounds_grow_with_the_loss():
    """Eq. 53, left: eta_i = eps1 l_i / tau from the threshold on, nothing below it."""
    u, y = 2 * torch.randn(30, 3).double(), torch.randint(3, (30,))
    s = methods.mixcomp_adaptive(tau=0.8, eps1=1.5).evaluate(IDENTITY, u, y)
    for i in range(30):
        loss = F.cross_entropy(u[i], y[i])
        step = 1.5 * loss / 0.8 if loss >= 0.8 else 0.0
        v = step * (F.one_hot(y[i], 3) - u[i].softmax(-1))
        assert torch.allclose(s.du[i], v)
        assert s.losses[i].item() == pytest.approx(F.cross_entropy(u[i] + v, y[i]).item())
        assert v.abs().max() <= 1.5 * (1 + (loss - 0.8) / 0.8) + 1e-9 or loss < 0.8
    assert 5 < (s.du.abs().sum(1) > 0).sum() < 25
    assert overall_sign(measured(s)) == "positive"


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_feature_bounds_shrink_toward_the_threshold(norm, net):
    """Eq. 53, right: the easiest may move by up to twice eps2, those at the threshold by eps2."""
    x, y = torch.randn(30, 4).double(), torch.randint(3, (30,))
    s = methods.mixcomp_adaptive(tau=1.2, eps1=1.0, eps2=0.1, norm=norm, steps=20).evaluate(net, x, y)
    easy = s.plain_losses < 1.2
    bound = 0.1 * (2 - s.plain_losses / 1.2)
    size = s.dx.abs().amax(1) if norm == "linf" else s.dx.norm(dim=1)
    assert 3 < easy.sum() < 27
    assert (size[easy] <= bound[easy] + 1e-9).all()
    assert torch.allclose(size[easy], bound[easy], rtol=1e-3), "the attack uses what it may"
    assert (size[~easy] == 0).all()
    assert (s.du[easy] == 0).all()
    signs = measured(s)
    assert (signs[easy] > 0).all()
    assert (signs[~easy] < 0).all()


# features and labels
def smoothed_loss(u, y, lam):
    return (1 - lam) * F.cross_entropy(u, y, reduction="none") - lam * u.log_softmax(-1).mean(-1)


@pytest.mark.parametrize("attack_on", ["smoothed", "given"])
def test_attack_and_loss_see_the_labels_they_should(attack_on, net):
    x, y = torch.randn(6, 4).double(), torch.arange(6) % 3
    torch.manual_seed(4)
    s = methods.semantics_preserving_at(eps=0.2, lam=0.3, steps=3, attack_on=attack_on, norm="l2").evaluate(net, x, y)
    torch.manual_seed(4)
    start = methods.pgd_at(eps=0.2, norm="l2", steps=3).evaluate(net, x, y)  # the same random start
    lam = 0.3 if attack_on == "smoothed" else 0.0
    torch.manual_seed(4)
    torch.randint(2**62, ())  # what fixes the randomness of a batch
    direction = torch.randn_like(x)
    delta = (
        0.2 * torch.rand(6, dtype=torch.double)[:, None] ** (1 / 4) * direction / direction.norm(dim=1, keepdim=True)
    )
    for _ in range(3):
        delta = delta.detach().requires_grad_()
        (g,) = torch.autograd.grad(smoothed_loss(net(x + delta), y, lam).sum(), delta)
        delta = delta.detach() + 2.5 * 0.2 / 3 * g / g.norm(dim=1, keepdim=True)
        delta = delta * (0.2 / delta.norm(dim=1, keepdim=True)).clamp(max=1)
    assert torch.allclose(s.dx, delta, atol=1e-9)
    assert torch.allclose(s.dx, start.dx, atol=1e-9) == (attack_on == "given")
    assert torch.allclose(s.losses, smoothed_loss(net(x + delta), y, 0.3))


# View methods
def case(rows=8):
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).double()
    return model, torch.randn(rows, 5).double(), torch.randint(3, (rows,)), torch.arange(rows)


def test_a_weight_of_one_is_the_view_itself_and_weights_mix():
    model, x, y, _ = case()
    for k, view in enumerate((shifted, blurred)):
        weights = torch.eye(2).double()[k].expand(8, 2)
        s = Compensated(view=lambda s, w=weights: w, views=Views(shifted, blurred)).evaluate(model, x, y)
        torch.testing.assert_close(s.u, model(view(x)))
    half = Compensated(view=lambda s: torch.full((8, 1), 0.5).double(), views=Views(darkened)).evaluate(model, x, y)
    torch.testing.assert_close(half.u, model(0.75 * x))
    torch.testing.assert_close(half.plain, model(x))


def test_transformations_do_what_they_say_on_images():
    x = torch.arange(2 * 1 * 3 * 4.0).reshape(2, 1, 3, 4)
    for row, image in enumerate(x):
        for k in range(3):
            line = image[0, k].tolist()
            assert shifted(x)[row, 0, k].tolist() == [line[0], *line[:-1]]
            assert moved(x)[row, 0, k].tolist() == [*line[1:], line[-1]]
            padded = [line[0], *line, line[-1]]
            mean = [sum(padded[j : j + 3]) / 3 for j in range(4)]
            torch.testing.assert_close(blurred(x)[row, 0, k], torch.tensor(mean))


def test_the_worst_view_has_the_largest_loss_of_all():
    model, x, y, _ = case()
    losses = [F.cross_entropy(model(view(x)), y, reduction="none") for view in (lambda x: x, *DEFAULT)]
    s = methods.worst_of_k().evaluate(model, x, y)
    torch.testing.assert_close(s.losses, torch.stack(losses).amax(0))
    best = Compensated(view=ExtremeView(-1), views=Views(*DEFAULT)).evaluate(model, x, y)
    torch.testing.assert_close(best.losses, torch.stack(losses).amin(0))
    assert overall_sign(measured(s)) == "negative"
    assert overall_sign(measured(best)) == "positive"


@pytest.mark.parametrize("lam", [0.0, 0.4, 1.0])
def test_consistency_between_views_is_label_compensation(lam):
    """The gradient is that of cross entropy and of the divergence from what is said of the other views, in shares."""
    model, x, y, _ = case()
    found = torch.autograd.grad(methods.view_consistency(lam=lam).evaluate(model, x, y).loss, list(model.parameters()))
    q = torch.stack([model(view(x)).softmax(-1) for view in DEFAULT]).mean(0).detach()
    logp = model(x).log_softmax(-1)
    loss = (1 - lam) * F.nll_loss(logp, y) + lam * F.kl_div(logp, q, reduction="batchmean")
    for a, b in zip(found, torch.autograd.grad(loss, list(model.parameters())), strict=True):
        torch.testing.assert_close(a, b)


def test_inner_loops_and_tables_act_on_the_weights_of_views():
    model, x, y, i = case()
    attack = Compensated(view=Adversarial(0.5, random_start=False), views=Views(*DEFAULT)).evaluate(model, x, y)
    assert attack.dv.abs().max() <= 0.5 + 1e-9
    assert (attack.losses >= attack.plain_losses - 1e-9).all()
    table = Sample(8, len(DEFAULT), penalty=L1(1e-3), lr=0.5)
    criterion = Compensated(view=table, views=Views(*DEFAULT)).double()
    plain = criterion.evaluate(model, x, y, i)
    plain.loss.backward()
    zero = torch.zeros(8, 4, dtype=torch.float64, requires_grad=True)
    mixed = x + sum(zero[:, k, None] * (view(x) - x) for k, view in enumerate(DEFAULT))
    (grad,) = torch.autograd.grad(F.cross_entropy(model(mixed), y, reduction="sum"), zero)
    step = -0.5 * grad
    expected = step.sign() * (step.abs() - 0.5 * 1e-3).clamp(min=0)
    torch.testing.assert_close(table.dense(), expected)
    assert (criterion.evaluate(model, x, y, i).losses - plain.plain_losses).sum() < 0


def test_views_need_the_model_and_are_shared_when_criteria_are_added():
    model, x, y, _ = case()
    with pytest.raises(InputError, match=r"criterion\.evaluate"):
        methods.augmix()(model(x), y)
    with pytest.raises(InputError, match="views="):
        Compensated(view=RandomMix())
    both = Compensated(view=ExtremeView(), views=Views(shifted)) + Compensated()
    assert both.views is not None
    with pytest.raises(InputError, match="different views"):
        methods.augmix() + methods.worst_of_k()
    with pytest.raises(InputError, match="at least one"):
        Views()
    with pytest.raises(InputError, match="sign"):
        ExtremeView(0)


# Gated category
def by_loop(u, y, b, *, balance):
    """The loss, and of each pair of classes the mean slope and the mean weight of its penalty, place by place."""
    losses, slopes, prices = [], {}, {}
    classes = len(b)
    for i, h, w in itertools.product(range(len(u)), range(u.shape[2]), range(u.shape[3])):
        c = int(y[i, h, w])
        if c == -100:
            continue
        gate = 1 / (1 + torch.exp(-u[i, -1, h, w]))
        row = b[c].clone().requires_grad_()
        scores = u[i, :-1, h, w] + gate * row
        loss = torch.logsumexp(scores, 0) - scores[c]
        (slope,) = torch.autograd.grad(loss, row, retain_graph=True)
        for k in range(classes):
            if k != c:
                slopes.setdefault(frozenset((c, k)), []).append(float(slope[k]))
                prices.setdefault(frozenset((c, k)), []).append(balance * gate.item() / (classes - 1))
        losses.append(loss + balance * gate * b[c].abs().sum() / (classes - 1))
    return torch.stack(losses).mean(), slopes, prices


def stepped(b, slopes, prices, lr):
    """The matrix after one proximal step of every pair."""
    b = b.clone()
    for pair in slopes:
        c, k = pair
        moved = float(b[c, k]) - lr * sum(slopes[pair]) / len(slopes[pair])
        threshold = lr * sum(prices[pair]) / len(prices[pair])
        b[c, k] = b[k, c] = math.copysign(max(abs(moved) - threshold, 0.0), moved)
    return b


@pytest.mark.parametrize("balance", [0.05, 1.0])
def test_losses_gradients_and_pairs_are_those_of_a_loop_over_places(balance):
    torch.manual_seed(0)
    lr, classes = 0.5, 4
    criterion = methods.gated_category(num_classes=classes, lr=lr, balance=balance).double()
    b = torch.zeros(classes, classes, dtype=torch.double)
    for turn in range(4):
        u = torch.randn(2, classes + 1, 2, 3, dtype=torch.double, requires_grad=True)
        y = torch.randint(2 if turn == 2 else classes, (2, 2, 3))  # once, two classes are absent
        y[0, 0, 0] = -100
        expected, slopes, prices = by_loop(u, y, b, balance=balance)
        found = criterion(u, y)
        torch.testing.assert_close(found, expected)
        ours, theirs = (torch.autograd.grad(loss, u)[0] for loss in (found, expected))
        torch.testing.assert_close(ours, theirs)
        b = stepped(b, slopes, prices, lr)
        torch.testing.assert_close(next(criterion.tables()).dense(), b)
    assert b.abs().max() > 0.01
    assert (b.diagonal() == 0).all()
    torch.testing.assert_close(b, b.T, rtol=0, atol=0)


def test_a_gated_head_is_two_linear_layers_with_normalization_between_them():
    torch.manual_seed(0)
    head = GatedHead(torch.nn.Linear(5, 3), in_features=5, hidden=4).double()
    z = torch.randn(6, 5, dtype=torch.double)
    first, last = head.gate[0], head.gate[2]
    hidden = z @ first.weight[:, :, 0].T + first.bias
    normal = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(head(z), torch.cat([head.head(z), normal @ last.weight[0]], 1))
    assert last.weight.abs().max() <= 0.05 + 1e-6, "a tenth of 1 / sqrt(4)"
    larger = GatedHead(torch.nn.ConvTranspose2d(5, 3, 2, stride=2), in_features=5)
    assert larger(torch.randn(2, 5, 4, 6)).shape == (2, 4, 8, 12)
