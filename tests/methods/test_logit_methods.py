"""Methods on logits, against loops, closed forms and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from oracles import assert_slope, assert_slopes, clean_loss
from scipy.optimize import minimize
from torch import nn

from compensate import Compensated, InputError, meta_step, methods
from compensate.core.criterion import measured
from compensate.methods.logit import DYNAMICS, dynamics
from compensate.terms import Top
from compensate.terms.meta import meta_gradient
from tiny import overall_sign


# Logcomp
@pytest.mark.parametrize("lam", [0.05, 0.25, 0.6])
@pytest.mark.parametrize("c", [3, 5, 10])
def test_closed_form_and_exact_zeros(c, lam):
    u = 6 * torch.rand(20, c, dtype=torch.float64) - 3
    y = torch.randint(c, (20,))
    criterion = methods.logcomp(num_samples=20, num_classes=c, lam=lam, record="none").double()
    v, before = next(criterion.tables()).weight, None
    while before is None or (v - before).abs().max() > 1e-10:  # the logits are held fixed
        before = v.clone()
        for _ in range(50):
            criterion(u, y, torch.arange(20))
    p = u.softmax(-1).gather(1, y[:, None])[:, 0]
    expected = (torch.logit(torch.tensor(1 - lam).double()) - torch.logit(p)).clamp(min=0)
    assert torch.allclose(v.gather(1, y[:, None])[:, 0], expected, atol=1e-6)
    assert (v.scatter(1, y[:, None], 0.0) == 0).all()


def test_presets_read_the_papers_learning_rate_both_ways():
    mean = next(methods.logcomp(num_samples=4, num_classes=3, preset="paper", batch_size=64).tables())
    single = next(methods.logcomp(num_samples=4, num_classes=3, preset="paper-per-sample").tables())
    assert mean.lr == pytest.approx(3 / 64)
    assert single.lr == 3
    assert mean.update == single.update == "subgradient"
    assert mean.penalty.lam == single.penalty.lam == 0.25
    own = next(methods.logcomp(num_samples=4, num_classes=3, preset="paper", lam=0.35).tables())
    assert (own.penalty.lam, own.lr) == (0.35, 3 / 128), "what is given wins"


# Mixcomp
def test_positive_part_is_the_formula():
    u, y = torch.randn(10, 4), torch.randint(4, (10,))
    s = methods.mixcomp(eta=2.0, pro=30, floor=0).evaluate(torch.nn.Identity(), u, y)
    plain = F.cross_entropy(u, y, reduction="none")
    hard = plain >= plain.sort(descending=True).values[2]
    v = 2.0 * (F.one_hot(y, 4) - u.softmax(-1)) * hard[:, None]
    assert hard.sum() == 3
    assert torch.allclose(s.losses, F.cross_entropy(u + v, y, reduction="none"), atol=1e-6)


def test_labels_that_the_model_finds_likelier_than_not_are_left_alone_unless_the_floor_is_zero():
    u, y = 4 * torch.randn(60, 4), torch.randint(4, (60,))
    plain = F.cross_entropy(u, y, reduction="none")
    ours, paper = (
        methods.mixcomp(pro=90, preset=preset).evaluate(torch.nn.Identity(), u, y) for preset in (None, "paper")
    )
    worst = plain >= plain.sort(descending=True).values[53]
    likely = u.softmax(-1).gather(1, y[:, None])[:, 0] > 0.5
    assert (worst & likely).any()
    assert torch.equal(ours.du.any(1), worst & ~likely)
    assert torch.equal(paper.du.any(1), worst)


def test_a_bound_with_a_warmup_starts_as_cross_entropy_and_ends_as_mixcomp():
    u, y = torch.randn(50, 4), torch.randint(4, (50,))
    growing = methods.mixcomp(tau=1.0, eta=3.0, warmup=(0.25, 0.75)).start(total_steps=4)
    whole, half = (methods.mixcomp(tau=1.0, eta=eta) for eta in (3.0, 1.5))
    wanted = [F.cross_entropy(u, y), F.cross_entropy(u, y), half(u, y), whole(u, y), whole(u, y)]
    assert len({round(float(loss), 4) for loss in wanted}) == 3
    for loss in wanted:
        torch.testing.assert_close(growing(u, y), loss)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("eps2", [0.0, 0.1])
def test_a_last_batch_of_one_or_two_samples(size, eps2):
    model = torch.nn.Linear(4, 3)
    criterion = methods.mixcomp(num_samples=9, pro=35, eps2=eps2)
    s = criterion.evaluate(model, torch.randn(size, 4), torch.zeros(size).long(), torch.arange(size))
    s.loss.backward()
    assert s.loss.isfinite()
    assert (s.du == 0).all(), "35 percent of one or two samples is none of them"


def test_a_share_in_place_of_percent_is_noticed():
    with pytest.warns(UserWarning, match=r"pro is in percent, 30 means 30 %; got 0\.3"):
        methods.mixcomp(pro=0.3)
    for pro in (0, 1, 30):
        methods.mixcomp(pro=pro)


@pytest.mark.parametrize(("pro", "size", "k"), [(0, 10, 0), (5, 10, 0), (25, 10, 2), (50, 7, 3), (100, 4, 4)])
def test_threshold_is_the_kth_largest_loss(pro, size, k):
    taus, u, y = [], torch.randn(size, 3), torch.randint(3, (size,))
    top = Top(pro)
    Compensated(logit=lambda s: taus.append(top(s)) or 0 * s.u)(u, y)
    losses = F.cross_entropy(u, y, reduction="none").sort(descending=True).values
    assert taus[0] == (losses[k - 1] if k else torch.inf)


def test_threshold_over_the_last_epoch():
    criterion, taus = methods.mixcomp(num_samples=8, pro=25, over="epoch", floor=0), []
    gate = criterion.terms_of("logit")[0].gate
    gate.register_forward_hook(lambda gate, batch, _: taus.append(gate.tau(*batch)))
    u, y = torch.randn(8, 3), torch.randint(3, (8,))
    losses = F.cross_entropy(u, y, reduction="none")
    for i in (torch.arange(4), torch.arange(4, 8)):
        criterion(u[i], y[i], i)
    assert taus[0] == pytest.approx(losses[:4].max().item()), "in the first epoch the batch serves"
    for _ in range(2):
        criterion.end_epoch()
        criterion(torch.randn(4, 3), y[:4], torch.arange(4))
    assert taus[2] == pytest.approx(losses.sort(descending=True).values[1].item())
    assert taus[3] != taus[2], "samples seen again count with their new loss"


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


# Logit learned
IDENTITY = torch.nn.Identity()


# category level
def test_category_logit_finds_the_optimum_of_equation_17():
    u, y = torch.randn(20, 3).double(), torch.zeros(20).long()
    criterion = methods.category_logit(num_classes=3, lam=0.5, lr=0.5).double()
    for _ in range(300):
        s = criterion.evaluate(IDENTITY, u, y)

    def objective(v):
        return F.cross_entropy(u + torch.tensor(v), y).item() + 0.25 * (v**2).sum()

    best = minimize(objective, np.zeros(3), tol=1e-12)
    assert np.allclose(next(criterion.tables()).weight[0].numpy(), best.x, atol=1e-4)
    assert s.loss.item() == pytest.approx(best.fun, abs=1e-6)
    assert overall_sign(measured(s)) == "positive"


# meta
def test_meta_logit_follows_equations_13_and_14(tiny, batch):
    x, y, i = batch
    clean = torch.randn(9, 4).double(), torch.arange(9) % 3
    criterion = methods.meta_logit(num_samples=9, num_classes=3, lr=2.0).double()
    assert torch.allclose(criterion.evaluate(tiny, x, y, i).loss, F.cross_entropy(tiny(x), y)), "rows start at zero"
    _, _, (grad,), _ = meta_gradient(criterion, tiny, batch, clean, lr=0.5)

    def outer(v):
        return clean_loss(tiny, lambda ahead: F.cross_entropy(ahead(x) + v, y), clean, 0.5)

    for row in (0, 3):
        for c in range(3):
            assert_slope(grad[row, c], outer, torch.zeros(5, 3).double(), (row, c))
    meta_step(criterion, tiny, batch, clean, lr=0.5)
    weight = next(criterion.tables()).weight
    assert torch.allclose(weight[i], -2.0 * grad)
    assert (weight[[2, 4, 6, 7]] == 0).all()


# inner loop on logits
@pytest.mark.parametrize("sign", [1, -1])
def test_adversarial_logit_in_the_linf_ball_is_the_closed_form(sign):
    u, y = torch.randn(10, 4).double(), torch.randint(4, (10,))
    s = methods.adversarial_logit(eps=0.7, sign=sign).evaluate(IDENTITY, u, y)
    assert torch.allclose(s.du, sign * 0.7 * (1 - 2 * F.one_hot(y, 4)).double())
    assert overall_sign(measured(s)) == ("negative" if sign > 0 else "positive")
    assert s.criterion.taxonomy.direction == overall_sign(measured(s))


@pytest.mark.parametrize("sign", [1, -1])
def test_adversarial_logit_in_the_l2_ball_is_near_the_optimum(sign):
    u, y = torch.randn(5, 3).double(), torch.randint(3, (5,))
    s = methods.adversarial_logit(eps=0.5, sign=sign, norm="l2", steps=40).evaluate(IDENTITY, u, y)
    assert (s.du.norm(dim=1) <= 0.5 + 1e-9).all()
    angles = torch.randn(20_000, 3).double()
    ball = 0.5 * angles / angles.norm(dim=1, keepdim=True)  # the optimum of a monotone loss is on the sphere
    for i in range(5):
        losses = -sign * F.cross_entropy(u[i] + ball, y[i].expand(len(ball)), reduction="none")
        assert -sign * s.losses[i].item() == pytest.approx(losses.min().item(), abs=2e-3)


# self-paced
def test_self_paced_logit_leaves_out_what_is_harder_than_the_threshold():
    u, y = 2 * torch.randn(60, 3), torch.randint(3, (60,))
    u = u.requires_grad_()
    s = methods.self_paced_logit(num_classes=3).evaluate(IDENTITY, u, y)
    plain = F.cross_entropy(u, y, reduction="none").detach()
    hard = plain >= math.log(3)
    assert 10 < hard.sum() < 50
    assert torch.allclose(s.losses[~hard].detach(), plain[~hard])
    # The paper's figure: a ratio of 1 for the easy, near 0 for the hard. Errata: this takes a large step.
    assert (s.losses[hard] / plain[hard]).max() < 1e-3
    s.loss.backward()
    assert u.grad[hard].abs().max() < 1e-3 * u.grad[~hard].abs().max()
    assert overall_sign(measured(s)) == "positive"


def brute_force(loss, regularizer, grid):
    return grid[np.argmin(grid * loss + regularizer(grid))]


@pytest.mark.parametrize("loss", [0.05, 0.2, 0.31, 0.45, 0.59, 0.7, 1.5])
def test_self_paced_weights_minimize_their_objectives(loss):
    """Each kind is the minimizer of w l + r(w) for its own regularizer, found here on a fine grid."""
    lam, easy, grid = 0.6, 0.3, np.linspace(0, 1, 200_001)
    zeta, mixed = 1 - lam, lam * easy / (lam - easy)
    regularizers = {
        "hard": lambda w: -lam * w,
        "linear": lambda w: lam * (w**2 / 2 - w),
        "logarithmic": lambda w: zeta * w - zeta**w / math.log(zeta),
        "mixture": lambda w: -mixed * np.log(w + mixed / lam),
    }
    for kind, regularizer in regularizers.items():
        found = methods.self_paced_weights(torch.tensor([loss], dtype=torch.double), lam, kind, easy=easy).item()
        assert found == pytest.approx(brute_force(loss, regularizer, grid), abs=2e-5), kind


@pytest.mark.parametrize("bad", [(0.0, "hard"), (1.0, "logarithmic"), (0.5, "soft"), (0.5, "mixture", 0.7)])
def test_bad_self_paced_settings(bad):
    with pytest.raises(InputError):
        methods.self_paced_weights(torch.ones(2), *bad[:2], **({"easy": bad[2]} if bad[2:] else {}))


# Class perturbation
def softmax(u):
    e = np.exp(u - u.max())
    return e / e.sum()


def radius(c, scores, middle, *, eps, growth, by):
    """The authors' bound of a class: by its distance from the threshold, or by its share relative to the largest or the least one."""
    if by == "probability":
        return eps + growth * abs(middle - scores[c])
    if scores[c] > middle:
        return eps + growth * scores[c] / max(scores)
    return eps + growth * min(scores) / scores[c]


def shifts(u, y, *, eps, step, growth, scores=None, targets=None):
    """The shift of every class present, step by step and sample by sample; `targets` are soft labels, `y` their likeliest classes."""
    classes, by = sorted(set(y)), "probability" if scores is None else "share"
    targets = np.eye(u.shape[1])[y] if targets is None else targets
    if scores is None:
        scores = {c: np.mean([softmax(row)[c] for row, label in zip(u, y, strict=True) if label == c]) for c in classes}
        middle = np.mean([scores[c] for c in classes])
    else:
        middle = np.mean(scores)
    found = {}
    for c in classes:
        d = np.zeros(u.shape[1])
        bound = radius(c, scores, middle, eps=eps, growth=growth, by=by)
        for _ in range(math.floor(bound / step + 1e-9)):
            rows = [softmax(u[i] + d) - targets[i] for i, label in enumerate(y) if label == c]
            g = np.mean(rows, axis=0)
            d = d + np.sign(middle - scores[c]) * step * g / np.linalg.norm(g)
        found[c] = d
    return found


@pytest.mark.parametrize(
    ("eps", "step", "growth"), [(0.5, 0.05, 0.1), (1.0, 0.25, 0.5), (0.3, 0.1, 0.0), (0.29, 0.1, 0.0), (0.2, 0.02, 2.0)]
)
def test_the_shift_of_each_class_is_that_of_a_loop(eps, step, growth):
    u, y = 2 * torch.randn(20, 5, dtype=torch.float64), torch.randint(4, (20,))
    s = methods.lpl(eps=eps, step=step, growth=growth).evaluate(torch.nn.Identity(), u, y)
    expected = shifts(u.numpy(), y.tolist(), eps=eps, step=step, growth=growth)
    for row, label in zip(s.du, y.tolist(), strict=True):
        np.testing.assert_allclose(row.numpy(), expected[label], atol=1e-7)


@pytest.mark.parametrize("by", ["probability", "share"])
def test_the_slope_of_a_soft_label_is_the_prediction_minus_the_label(by):
    u = 2 * torch.randn(16, 3, dtype=torch.float64)
    targets = torch.randn(16, 3, dtype=torch.float64).softmax(-1)
    y, counts = targets.argmax(-1), [60, 35, 5]
    s = methods.lpl(by=by, class_counts=counts).evaluate(torch.nn.Identity(), u, targets)
    scores = None if by == "probability" else [c / 100 for c in counts]
    expected = shifts(u.numpy(), y.tolist(), eps=0.5, step=0.05, growth=0.1, scores=scores, targets=targets.numpy())
    for row, label in zip(s.du, y.tolist(), strict=True):
        np.testing.assert_allclose(row.numpy(), expected[label], atol=1e-7)


def test_uncertain_labels_under_bce_are_shifted_as_a_loop_says():
    u, y = torch.randn(9, 2, dtype=torch.float64), torch.rand(9, 2, dtype=torch.float64)
    eps, step = 0.4, 0.05
    s = methods.lpl(eps=eps, step=step, growth=0.0, base="bce").evaluate(torch.nn.Identity(), u, y)
    found = s.du.reshape(9, 2)
    groups = {(c, k): [i for i in range(9) if (y[i, c] >= 0.5) == k] for c in range(2) for k in (False, True)}
    groups = {key: members for key, members in groups.items() if members}
    likely = {
        (c, k): np.mean([torch.sigmoid(u[i, c] if k else -u[i, c]).item() for i in members])
        for (c, k), members in groups.items()
    }
    for (c, k), members in groups.items():
        d, sign = 0.0, np.sign(np.mean([*likely.values()]) - likely[c, k])
        for _ in range(8):
            d += sign * step * np.sign(np.mean([torch.sigmoid(u[i, c] + d).item() - y[i, c].item() for i in members]))
        for i in members:
            assert found[i, c].item() == pytest.approx(d)


@pytest.mark.parametrize("make", [methods.lpl, methods.lpg])
@pytest.mark.parametrize("eps", [0.5, 0.05])
def test_by_share_a_class_has_the_same_radius_in_every_batch(make, eps):
    """What is done to samples of classes 1 and 2 does not depend on whether class 0 is in the batch."""
    u, y = torch.randn(12, 4, dtype=torch.float64, requires_grad=True), torch.arange(12) % 3
    criterion = make(class_counts=[50, 30, 15, 5], by="share", eps=eps, growth=1.0)
    whole = criterion.evaluate(torch.nn.Identity(), u, y)
    part = criterion.evaluate(torch.nn.Identity(), u[y > 0], y[y > 0])
    for name in ("du", "dg"):
        if getattr(whole, name) is not None:
            torch.testing.assert_close(getattr(part, name), getattr(whole, name)[y > 0])


# Perturbation network
def by_hand(u, y):
    """The nine numbers of every sample, one at a time."""
    losses, margins, rows = [], [], []
    for row, label in zip(u, y, strict=True):
        total = sum(math.exp(v) for v in row)
        p = [math.exp(v) / total for v in row]
        losses.append(math.log(1 - math.log(p[label])))
        margins.append(p[label] - max(q for k, q in enumerate(p) if k != label))
        slope = math.sqrt(sum((q - (k == label)) ** 2 for k, q in enumerate(p)))
        rows.append((slope, -sum(q * math.log(q) for q in p) / math.log(len(p))))
    found = []
    for i, label in enumerate(y):
        same = [k for k, other in enumerate(y) if other == label]
        loss, margin = (sum(v[k] for k in same) / len(same) for v in (losses, margins))
        found.append(
            [losses[i], margins[i], *rows[i], loss, losses[i] - loss, margin, margins[i] - margin, len(same) / len(y)]
        )
    return torch.tensor(found, dtype=torch.float64)


def case():
    torch.manual_seed(4)
    model = nn.Linear(3, 4).double()
    x, y = torch.randn(6, 3).double(), torch.tensor([0, 1, 1, 3, 0, 1])
    return model, (x, y), (torch.randn(5, 3).double(), torch.randint(4, (5,)))


def test_the_network_is_shown_nine_numbers_of_each_sample():
    model, (x, y), _ = case()
    s = methods.causal_logit().double().evaluate(model, x, y)
    assert dynamics(s).shape == (6, len(DYNAMICS))
    torch.testing.assert_close(dynamics(s), by_hand(model(x).tolist(), y.tolist()))


def test_it_is_cross_entropy_before_the_first_meta_step_and_a_training_step_does_not_move_it():
    model, (x, y), _ = case()
    criterion = methods.causal_logit().double()
    loss = criterion.evaluate(model, x, y).loss
    torch.testing.assert_close(loss, F.cross_entropy(model(x), y))
    loss.backward()
    assert all(p.grad is None for p in criterion.parameters())


def test_the_meta_gradient_is_that_of_finite_differences():
    model, (x, y), clean = case()
    criterion = methods.causal_logit(hidden=5).double()
    with torch.no_grad():
        for p in criterion.parameters():
            p.add_(0.3 * torch.randn_like(p))
    outer, _, _, grads = meta_gradient(criterion, model, (x, y), clean, lr=0.5)

    def look_ahead():
        with torch.no_grad():
            du = criterion.evaluate(model, x, y).du
        return clean_loss(model, lambda ahead: F.cross_entropy(ahead(x) + du, y), clean, 0.5)

    assert outer.item() == pytest.approx(look_ahead())
    assert_slopes(criterion.parameters(), grads, look_ahead, h=1e-6)
