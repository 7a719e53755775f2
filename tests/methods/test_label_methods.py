"""Methods on labels, against loops, closed forms and finite differences."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from oracles import agree, assert_slope, clean_loss
from scipy.optimize import minimize
from torch import nn

from compensate import METHODS, methods
from compensate.core.criterion import measured
from compensate.core.proximal import project_simplex
from compensate.methods.label import Dimensionality, Prototypes, choose_prototypes, local_dimensionality
from compensate.terms.meta import meta_gradient
from tiny import overall_sign


# Label bootstrap
def logits(b=6, c=4, scale=2.0):
    return (scale * torch.randn(b, c, dtype=torch.float64)).requires_grad_(), torch.randint(c, (b,))


def test_bootstrapping_is_the_loss_of_reed_and_the_soft_form_regularizes_entropy():
    u, y = logits()
    plain, entropy = F.cross_entropy(u, y), -(u.softmax(-1) * u.log_softmax(-1)).sum(-1).mean()
    agree(methods.bootstrap_soft(beta=0.8)(u, y), 0.8 * plain + 0.2 * entropy, u)
    agree(methods.bootstrap_hard()(u, y), 0.8 * plain + 0.2 * F.cross_entropy(u, u.argmax(-1)), u)
    assert torch.autograd.gradcheck(lambda u: methods.bootstrap_soft(beta=0.8)(u, y), u)


@pytest.mark.parametrize("make", [methods.bootstrap_soft, methods.bootstrap_hard])
def test_guess_of_the_previous_epoch(make):
    criterion = make(num_samples=9, num_classes=4, beta=0.6, guess="previous_epoch")
    y, last = torch.randint(4, (9,)), {}
    for _ in range(3):
        for i in torch.randperm(9).split(4):
            u, _ = logits(len(i))
            target = F.one_hot(y[i], 4).double()
            for row, j in enumerate(i.tolist()):
                if j in last:
                    guess = last[j] if make is methods.bootstrap_soft else F.one_hot(last[j].argmax(), 4)
                    target[row] = 0.6 * target[row] + 0.4 * guess
            agree(criterion(u, y[i], i), F.cross_entropy(u, target), u, atol=1e-6)
            last |= dict(zip(i.tolist(), u.detach().softmax(-1), strict=True))
        criterion.end_epoch()


@pytest.mark.parametrize("conf", ["all", "correct"])
def test_mix_bootstrap_in_between_is_equation_54(conf):
    criterion, means = (
        methods.mix_bootstrap(num_classes=3, alpha=0.4, beta=0.3, conf=conf),
        torch.full((3, 3), 1 / 3).double(),
    )
    for _ in range(3):
        seen = []
        for _ in range(2):
            u, y = logits(20, 3)
            p, onehot = u.softmax(-1), F.one_hot(y, 3).double()
            target = onehot + 0.4 * (0.3 * means[y] + 0.7 * p - onehot)
            agree(criterion(u, y), -(target * u.log_softmax(-1)).sum(-1).mean(), u, atol=1e-6)
            seen += [(q, k) for q, k in zip(p.detach(), y, strict=True) if conf == "all" or q.argmax() == k]
        criterion.end_epoch()
        means = torch.stack([torch.stack([q for q, k in seen if k == c]).mean(0) for c in range(3)])
    assert criterion.taxonomy == METHODS["mix_bootstrap"].taxonomy


@pytest.mark.parametrize("detach", [False, True])
def test_proselflc_trusts_late_and_certain_predictions(detach):
    criterion = methods.proselflc(sharpness=10.0, middle=0.4, detach=detach).start(5)
    for step in range(5):
        u, y = logits(8)
        p = u.softmax(-1)
        rows = []
        for pi, yi in zip(p, y, strict=True):
            entropy = -sum(a * math.log(a) for a in pi.tolist())
            trust = (1 - entropy / math.log(4)) / (1 + math.exp(-10.0 * (step / 5 - 0.4)))
            guess = pi.detach() if detach else pi
            rows.append((1 - trust) * F.one_hot(yi, 4) + trust * guess)
        agree(criterion(u, y), -(torch.stack(rows) * u.log_softmax(-1)).sum(-1).mean(), u, atol=1e-6)


# Label dimensionality
def naive_lid(z, k):
    found = []
    for a in range(len(z)):
        r = sorted(math.dist(z[a].tolist(), z[b].tolist()) for b in range(len(z)) if b != a)[:k]
        found.append(-1 / (sum(math.log(v / r[-1]) for v in r) / k))
    return torch.tensor(found)


@pytest.mark.parametrize(("n", "k"), [(30, 5), (30, 20), (6, 20)])
def test_estimate_is_its_formula(n, k):
    z = torch.randn(n, 4).double()
    assert torch.allclose(local_dimensionality(z, k), naive_lid(z, min(k, n - 1)).double(), rtol=1e-4)


def run_epoch(statistic, lid):
    """An epoch whose mean dimensionality is `lid`."""
    statistic.total.fill_(3 * lid)
    statistic.count.fill_(3)
    statistic.seen += 10
    statistic.end_epoch()


def naive_turn(lids, patience, window):
    """The first epoch at which the authors' rule fires, by lists; None if never."""
    for e in range(len(lids)):
        seen = lids[: e + 1]
        if len(seen) > patience + window:
            before = seen[-window - 1 : -1]
            if seen[-1] - np.mean(before) > 2 * np.std(before):
                return e
    return None


@pytest.mark.parametrize("seed", range(8))
def test_turning_point_is_found_as_by_lists(seed):
    rng = np.random.default_rng(seed)
    lids = [6 - 0.2 * min(e, 12) + 0.25 * max(0, e - 14) + 0.1 * rng.normal() for e in range(25)]
    statistic, expected = Dimensionality(window=4, patience=3), naive_turn(lids, 3, 4)
    assert expected is not None
    for e, lid in enumerate(lids):
        run_epoch(statistic, lid)
        assert (statistic.turned >= 0) == (e >= expected)
        assert statistic.lowest.item() == pytest.approx(min(lids[: e + 1]))
    assert statistic.turned == expected - 1


@pytest.mark.parametrize("guess", ["hard", "soft"])
def test_loss_before_and_after_the_turn(tiny, batch, guess):
    x, y, i = batch
    criterion = methods.d2l(window=2, patience=0, guess=guess).double().start(100)
    statistic = next(s for s in criterion.statistics() if isinstance(s, Dimensionality))
    u = tiny(x)
    assert torch.allclose(criterion.evaluate(tiny, x, y, i).loss, F.cross_entropy(u, y))
    statistic.seen.zero_()
    for lid in (4.0, 3.0, 6.0):
        run_epoch(statistic, lid)
    alpha = math.exp(-30 / 100 * 6.0 / 3.0)
    guessed = F.one_hot(u.argmax(-1), 3).double() if guess == "hard" else u.softmax(-1).detach()
    expected = F.cross_entropy(u, alpha * F.one_hot(y, 3) + (1 - alpha) * guessed)
    s = criterion.evaluate(tiny, x, y, i)
    assert torch.allclose(s.loss, expected, atol=1e-6)
    theirs = torch.autograd.grad(expected, list(tiny.parameters()))
    for a, b in zip(torch.autograd.grad(s.loss, list(tiny.parameters())), theirs, strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    if guess == "hard":
        assert overall_sign(measured(s)) == "positive" == METHODS["d2l"].taxonomy.direction
    else:
        assert criterion.taxonomy.direction == "mixed"


def test_batches_too_small_to_measure_are_left_out(tiny):
    criterion = methods.d2l().double().start(10)
    for size in (5, 2):
        criterion.evaluate(tiny, torch.randn(size, 4).double(), torch.zeros(size).long())
    statistic = next(s for s in criterion.statistics() if isinstance(s, Dimensionality))
    assert statistic.count == 5
    assert statistic.total.isfinite()


# Label levels
COUNTS = [60, 20, 4]


def test_both_levels_are_added():
    u, y = torch.randn(30, 3, dtype=torch.float64, requires_grad=True), torch.randint(3, (30,))
    target = F.one_hot(y, 3).double()
    for row, c in enumerate(y.tolist()):
        eps = 0.1 + (0.4 - 0.1) * math.sin(math.pi * (COUNTS[c] - 4) / (2 * (60 - 4)))
        onehot = target[row].clone()
        target[row] += 0.3 * (u[row].softmax(-1).detach() - onehot) + eps * (1 / 3 - onehot)
    s = methods.mix_level_label(class_counts=COUNTS).evaluate(nn.Identity(), u, y)
    agree(s.loss, F.cross_entropy(u, target), u, atol=1e-6)
    new = s.y + s.dy
    assert (new >= 0).all()
    assert torch.allclose(new.sum(-1), torch.ones(30).double(), atol=1e-6)
    assert overall_sign(measured(s)) == "mixed" == METHODS["mix_level_label"].taxonomy.direction


def linear_case():
    model = nn.Linear(3, 4).double()
    x, y, i = torch.randn(6, 3).double(), torch.randint(4, (6,)), torch.randperm(10)[:6]
    clean = torch.randn(5, 3).double(), torch.randint(4, (5,))
    return model, (x, y, i), clean


@pytest.mark.parametrize("per", ["sample", "category"])
def test_meta_gradient_of_labels_by_finite_differences(per):
    model, (x, y, i), clean = linear_case()
    criterion = methods.meta_label(num_samples=10, num_classes=4, per=per).double()
    table = next(criterion.tables())
    v = 0.1 * torch.rand_like(table.weight)  # off the corner of the simplex, where the projection has no derivative
    key = i if per == "sample" else y
    v[key, y] -= 0.5
    table.weight.data.copy_(v)

    def outer(v):
        target = project_simplex(F.one_hot(y, 4) + v[key])
        return clean_loss(model, lambda ahead: F.cross_entropy(ahead(x), target), clean, 0.7)

    value, s, (grad,), _ = meta_gradient(criterion, model, (x, y, i), clean, lr=0.7)
    assert value.item() == pytest.approx(outer(v))
    assert (s.y + s.dy > 0).any()
    for row, k in enumerate(s.touched[0].keys.tolist()):
        for c in range(4):
            assert_slope(grad[row, c], outer, v, (k, c))


# Label prototypes
def cosine(a, b):
    return float(a @ b / (a.norm() * b.norm()))


def naive_choice(z, count, rank, limit):
    m = len(z)
    similar = [[cosine(z[i], z[j]) for j in range(m)] for i in range(m)]
    flat = sorted(v for row in similar for v in row)
    critical = flat[min(int(rank * m * m), m * m - 1)]
    sign = [[(v > critical) - (v < critical) for v in row] for row in similar]
    density = [sum(row) for row in sign]
    eta = []
    for i in range(m):
        denser = [similar[i][j] for j in range(m) if density[j] > density[i]]
        eta.append(max(denser) if denser else min(similar[i]))
    order = sorted(range(m), key=lambda i: (eta[i] >= limit, -density[i], i))
    return order[:count]


@pytest.mark.parametrize("limit", [0.6, 0.95])
@pytest.mark.parametrize("m", [1, 5, 25])
def test_prototypes_are_chosen_as_by_loops(m, limit):
    z = torch.randn(m, 4).double() + torch.tensor([2.0, 0, 0, 0])
    assert choose_prototypes(z, 4, 0.4, limit).tolist() == naive_choice(z, 4, 0.4, limit)


def test_labels_follow_the_prototypes_of_the_previous_epoch(tiny):
    n = 24
    x, y = torch.randn(n, 4).double(), torch.arange(n) % 3
    criterion = methods.deep_self_learning(
        num_samples=n, num_classes=3, feature_dim=6, count=2, alpha=0.4, start=1
    ).double()
    assert criterion.taxonomy == METHODS["deep_self_learning"].taxonomy
    prototypes = None
    for epoch in range(3):
        kept = {}
        for i in torch.randperm(n).split(9):
            z = tiny.features(x[i]).detach()
            target = F.one_hot(y[i], 3).double()
            if prototypes is not None:
                scores = [[sum(cosine(a, b) for b in ps) / len(ps) for ps in prototypes] for a in z]
                guess = F.one_hot(torch.tensor(scores).argmax(-1), 3)
                target = 0.6 * target + 0.4 * guess
            s = criterion.evaluate(tiny, x[i], y[i], i)
            assert torch.allclose(s.loss, F.cross_entropy(s.u, target), atol=1e-6), epoch
            kept |= dict(zip(i.tolist(), z, strict=True))
        criterion.end_epoch()
        statistic = next(s for s in criterion.statistics() if isinstance(s, Prototypes))
        order = sorted(kept, key=statistic.slot.tolist().__getitem__)  # of equal densities the first slot wins
        groups = [torch.stack([kept[j] for j in order if y[j] == c]) for c in range(3)]
        prototypes = [g[choose_prototypes(g, 2)] for g in groups]
        for ours, theirs in zip(statistic.prototypes, prototypes, strict=True):
            assert torch.allclose(ours, F.normalize(theirs, dim=-1), atol=1e-6)


def test_a_class_without_samples_is_never_guessed(tiny, batch):
    x, _, i = batch
    y = torch.tensor([0, 1, 0, 1, 0])
    criterion = methods.deep_self_learning(num_samples=9, num_classes=3, feature_dim=6, alpha=1.0, start=1).double()
    criterion.evaluate(tiny, x, y, i)
    criterion.end_epoch()
    s = criterion.evaluate(tiny, x, y, i)
    assert ((s.y + s.dy)[:, 2] == 0).all()


# Label smoothing
@pytest.mark.parametrize("lam", [0.0, 0.1, 0.7])
def test_label_smoothing_is_that_of_torch(lam):
    u, y = logits()
    y[0] = -100
    agree(methods.label_smoothing(lam=lam)(u, y), F.cross_entropy(u, y, label_smoothing=lam), u)


def test_adversarial_smoothing_is_the_worst_vertex_of_the_simplex():
    u, y = logits(30)
    s = methods.adversarial_label_smoothing(lam=0.3).evaluate(nn.Identity(), u, y)
    onehot = F.one_hot(y, 4).double()
    vertices = torch.stack([-((0.7 * onehot + 0.3 * v) * u.log_softmax(-1)).sum(-1) for v in torch.eye(4).double()])
    assert torch.allclose(s.losses, vertices.amax(0))
    assert overall_sign(measured(s)) == "negative" == METHODS["adversarial_label_smoothing"].taxonomy.direction
    inside = torch.distributions.Dirichlet(torch.ones(4).double()).sample((200, 30))
    assert (-((0.7 * onehot + 0.3 * inside) * u.log_softmax(-1)).sum(-1) <= s.losses + 1e-12).all()


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
    s = methods.adversarial_label_smoothing(lam=0.2, kind=kind, temperature=0.3, detach=detach).evaluate(
        nn.Identity(), u, y
    )
    p = u.softmax(-1)
    q = naive_guess(p.detach() if detach else p, y, kind, 0.3)
    expected = -((0.8 * F.one_hot(y, 4) + 0.2 * q) * u.log_softmax(-1)).sum(-1).mean()
    agree(s.loss, expected, u)
    assert overall_sign(measured(s)) == "mixed" == s.criterion.taxonomy.direction


@pytest.mark.parametrize("conf", ["correct", "all"])
def test_online_smoothing_learns_from_the_previous_epoch(conf):
    criterion, table = methods.online_label_smoothing(num_classes=3, conf=conf), torch.full((3, 3), 1 / 3).double()
    for _ in range(3):
        kept = {c: [] for c in range(3)}
        for _ in range(4):
            u, y = logits(7, 3)
            agree(criterion(u, y), 0.5 * F.cross_entropy(u, y) + 0.5 * F.cross_entropy(u, table[y]), u, atol=1e-6)
            for p, label in zip(u.detach().softmax(-1), y.tolist(), strict=True):
                if conf == "all" or int(p.argmax()) == label:
                    kept[label].append(p)
        criterion.end_epoch()
        rows = [torch.stack(kept[c]).mean(0) if kept[c] else torch.full((3,), 1 / 3).double() for c in range(3)]
        table = torch.stack(rows)


# Label teacher
@pytest.fixture
def case():
    u = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    return u, torch.randint(4, (6,)), torch.randperm(10)[:6], torch.randn(10, 4, dtype=torch.float64)


@pytest.mark.parametrize("lam", [0.0, 0.4, 1.0])
def test_labels_move_toward_the_guess(case, lam):
    u, y, i, z = case
    ours = methods.guess_label(guess=z.softmax(-1), lam=lam)(u, y, i)
    expected = (1 - lam) * F.cross_entropy(u, y) + lam * F.cross_entropy(u, z.softmax(-1)[i])
    agree(ours, expected, u)


def test_a_guess_of_classes_and_a_model_give_what_its_predictions_give(case, tiny, batch):
    u, y, i, z = case
    classes = methods.guess_label(guess=z.argmax(-1), num_classes=4)(u, y, i)
    assert torch.allclose(classes, 0.5 * F.cross_entropy(u, y) + 0.5 * F.cross_entropy(u, z.argmax(-1)[i]))
    x, y, i = batch
    other = copy.deepcopy(tiny).eval()
    rows = torch.zeros(9, 3).double().index_copy_(0, i, other(x).softmax(-1).detach())
    by_model = methods.guess_label(guess=copy.deepcopy(tiny)).evaluate(tiny, x, y).loss
    assert torch.allclose(by_model, methods.guess_label(guess=rows).evaluate(tiny, x, y, i).loss)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_both_forms_of_distillation_share_the_gradient_and_not_the_value(case, temperature):
    u, y, i, z = case
    lam, t = 0.7, temperature
    forms = [
        methods.distillation(teacher=z, lam=lam, temperature=t, form=form)(u, y, i) for form in ("label", "classic")
    ]
    alpha = lam / t
    kl = F.kl_div((u / t).log_softmax(-1), (z[i] / t).softmax(-1), reduction="batchmean")
    classic = F.cross_entropy(u, y) + alpha * t**2 * kl
    assert torch.allclose(forms[1], classic)
    assert not torch.allclose(forms[0], forms[1])
    q, p = (z[i] / t).softmax(-1), (u / t).softmax(-1)
    expected = (u.softmax(-1) - F.one_hot(y, 4) + lam * (p - q)) / len(u)
    for form in (*forms, classic):
        assert torch.allclose(torch.autograd.grad(form, u, retain_graph=True)[0], expected)


def test_the_label_form_is_equation_35_and_may_leave_the_simplex(case):
    u, y, i, z = case
    s = methods.distillation(teacher=20 * z, lam=3.0, temperature=1.0).evaluate(nn.Identity(), u, y, i)
    target = F.one_hot(y, 4) + 3.0 * ((20 * z[i]).softmax(-1) - u.detach().softmax(-1))
    assert (target < 0).any()
    assert torch.allclose(s.losses, -(target * u.log_softmax(-1)).sum(-1))


# Plausible labels
def smallest(p, y, alpha, beta):
    """The smallest KL(q || p) where implausible classes exceed the label by at most alpha, by a general solver; variables: q, then excess."""
    classes = range(len(p))

    def divergence(v):
        return sum(v[k] * math.log(max(v[k], 1e-300) / p[k]) for k in classes if v[k] > 0)

    limits = [
        {"type": "eq", "fun": lambda v: sum(v[: len(p)]) - 1},
        {"type": "ineq", "fun": lambda v: alpha - sum(v[len(p) :])},
        *({"type": "ineq", "fun": lambda v, k=k: v[len(p) + k] - v[k] + y[k]} for k in classes if p[k] < beta),
    ]
    start = [0.9 * a + 0.1 / len(p) for a in y]
    found = minimize(divergence, [*start, *[0.0] * len(p)], bounds=[(0, 1)] * 2 * len(p), constraints=limits, tol=1e-12)
    assert found.success
    return found.fun


@pytest.mark.parametrize(
    ("soft", "alpha", "beta"),
    [(False, 0.05, 0.6), (False, 0.2, 0.4), (False, 0.1, 0.9), (True, 0.05, 0.6), (True, 0.2, 0.4), (True, 0.0, 0.5)],
)
def test_the_loss_is_the_smallest_divergence_that_the_set_allows(soft, alpha, beta):
    u, y = 2 * torch.randn(12, 4, dtype=torch.float64, requires_grad=True), torch.randint(4, (12,))
    target = torch.randn(12, 4, dtype=torch.float64).mul(2).softmax(-1) if soft else F.one_hot(y, 4).double()
    criterion = methods.data_ambiguation(alpha=alpha, beta=beta, beta_end=None)
    s = criterion.evaluate(torch.nn.Identity(), u, target if soft else y)
    expected = [smallest(p, q, alpha, beta) for p, q in zip(s.p.tolist(), target.tolist(), strict=True)]
    torch.testing.assert_close(s.losses.detach(), torch.tensor(expected, dtype=torch.float64), rtol=1e-3, atol=1e-5)
    assert (s.losses <= s.plain_losses + 1e-12).all()
    (grad,) = torch.autograd.grad(s.losses.sum(), u)
    torch.testing.assert_close(grad, (s.p - target - s.dy).detach())
    assert grad.abs().max() > 0.1


def test_the_threshold_falls_by_a_cosine():
    criterion = methods.data_ambiguation(beta=0.8, beta_end=0.4).start(10)
    u, y = torch.tensor([[math.log(0.6), math.log(0.4)]]), torch.tensor([1])
    seen = [float(criterion(u, y)) < 1e-6 for _ in range(11)]
    values = [0.4 + 0.2 * (1 + math.cos(math.pi * t / 10)) for t in range(11)]
    assert seen == [value <= 0.6 + 1e-9 for value in values]
