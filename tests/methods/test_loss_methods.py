"""Methods on losses and predictions, against the papers, loops and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from oracles import agree, assert_slope, assert_slopes, clean_loss
from torch import nn

from compensate import METHODS, InputError, meta_step, methods
from compensate.core.criterion import measured
from compensate.methods.loss import hinge, noise_entropy
from compensate.methods.prediction import OverParameterized
from compensate.terms.meta import meta_gradient
from tiny import overall_sign


# Loss dac
def naive(u, y):
    """Per sample: the probability of abstention, and cross entropy over the real classes."""
    pairs = []
    for uj, yj in zip(u, y.tolist(), strict=True):
        e = torch.exp(uj - uj.max())
        pairs.append((e[-1] / e.sum(), -torch.log(e[yj] / e[:-1].sum())))
    return (torch.stack(column) for column in zip(*pairs, strict=True))


def test_warm_up_then_a_price_that_rises_to_its_end():
    steps_per_epoch, epochs, warmup, mu, divisor, final = 3, 4, 2, 0.1, 8.0, 0.9
    criterion = methods.dac(warmup=warmup, final=final, divisor=divisor, mu=mu).start(steps_per_epoch * epochs)
    mean = first = None
    prices = []
    for step in range(steps_per_epoch * epochs):
        u, y = torch.randn(6, 5, dtype=torch.float64, requires_grad=True), torch.randint(4, (6,))
        a, h = naive(u, y)
        now = float(((1 - a) * h).mean().detach())
        mean = now if mean is None else (1 - mu) * mean + mu * now
        if step < warmup * steps_per_epoch:
            expected = F.cross_entropy(u, y)
        else:
            first = mean / divisor if first is None else first
            begun = warmup / epochs
            alpha = first + (final - first) * (step / (steps_per_epoch * epochs) - begun) / (1 - begun)
            expected = ((1 - a) * h - alpha * torch.log(1 - a)).mean()
            prices.append(alpha)
        agree(criterion(u, y), expected, u, atol=1e-6)
        if (step + 1) % steps_per_epoch == 0:
            criterion.end_epoch()
    assert prices == sorted(prices)
    assert prices[0] == first


# Loss elr
def test_losses_means_and_the_gradient_of_the_paper():
    lam, beta = 2.0, 0.6
    criterion = methods.elr(num_samples=9, num_classes=4, lam=lam, beta=beta).double()
    y, t = torch.randint(4, (9,)), torch.zeros(9, 4).double()
    for _ in range(3):
        for i in torch.randperm(9).split(4):
            u = torch.randn(len(i), 4, dtype=torch.float64, requires_grad=True)
            p = u.detach().softmax(-1)
            values, grads = [], []
            for row, j in enumerate(i.tolist()):
                t[j] = beta * t[j] + (1 - beta) * p[row]
                agreement = float(p[row] @ t[j])
                values.append(F.cross_entropy(u[row], y[j]).detach() + lam * torch.log(torch.tensor(1 - agreement)))
                # d/du_k log(1 - <t, p>) = p_k / (1 - <t, p>) * sum_l (t_l - t_k) p_l
                pull = p[row] * (agreement - t[j]) / (1 - agreement)
                grads.append(p[row] - F.one_hot(y[j], 4) + lam * pull)
            loss = criterion(u, y[i], i)
            assert torch.allclose(loss, torch.stack(values).mean().double(), atol=1e-6)
            assert torch.allclose(torch.autograd.grad(loss, u)[0], torch.stack(grads) / len(i), atol=1e-6)
            assert torch.allclose(criterion.statistics()[0].rows, t, atol=1e-6)
        criterion.end_epoch()


@pytest.mark.parametrize(
    "make", [lambda: methods.elr(num_samples=1, num_classes=3, beta=0.0), lambda: methods.focal(gamma=0.5)]
)
@pytest.mark.parametrize("label", [0, 1])
def test_certain_predictions_have_finite_losses_and_gradients(make, label):
    criterion, u = make(), torch.tensor([[200.0, 0.0, 0.0]], requires_grad=True)
    for _ in range(5):
        loss = criterion(u, torch.tensor([label]), torch.tensor([0]))
    assert loss.isfinite()
    assert torch.autograd.grad(loss, u)[0].isfinite().all()


# Loss floor
@pytest.mark.parametrize(("rate", "classes"), [(0.4, 10), (0.1, 3)])
def test_the_bound_is_the_loss_of_the_model_that_knows_the_noise(rate, classes):
    rng = np.random.default_rng(0)
    flips = rng.random(200_000) < rate
    # The best model gives 1 - rate to the right class and shares the rest among the others.
    losses = np.where(flips, -math.log(rate / (classes - 1)), -math.log(1 - rate))
    assert noise_entropy(rate, classes) == pytest.approx(losses.mean(), rel=0.01)
    pair = np.where(flips, -math.log(rate), -math.log(1 - rate))
    assert noise_entropy(rate, classes, "pair") == pytest.approx(pair.mean(), rel=0.01)


@pytest.mark.parametrize("weight", [None, [0.5, 2.0, 1.0]])
def test_weights_and_ignored_targets_count_as_in_the_mean(weight):
    u, y = 4 * F.one_hot(torch.arange(5) % 3, 3).double(), torch.arange(5) % 3
    y[4] = -100
    criterion = methods.loss_bound(num_classes=3, noise_rate=0.3, weight=weight).double()
    assert criterion(u, y).item() == pytest.approx(noise_entropy(0.3, 3))
    given = None if weight is None else torch.tensor(weight).double()
    torch.testing.assert_close(criterion(-u, y), F.cross_entropy(-u, y, weight=given))
    torch.testing.assert_close(methods.loss_bound(num_classes=3, noise_rate=0.0)(u, y), F.cross_entropy(u, y))


@pytest.mark.parametrize("below", ["stop", "ascend"])
@pytest.mark.parametrize("bound", [0.0, 3.0])
def test_the_floor_of_soft_labels_with_weights_is_met_and_flooding_climbs_below_it(bound, below):
    torch.manual_seed(0)
    u, y = torch.randn(7, 3).double().requires_grad_(), torch.randn(7, 3).double().softmax(-1)
    w = torch.tensor([0.2, 0.5, 3.0]).double()
    loss = methods.loss_bound(num_classes=3, bound=bound, below=below, weight=w).double()(u, y)
    plain = F.cross_entropy(u, y, weight=w)
    assert (plain < bound) == (bound > 0)
    climbs = 2 * bound - plain if below == "ascend" else bound + 0 * plain
    expected = climbs if bound else plain
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(value, u)[0] for value in (loss, expected)))


# Robust losses
MAKERS = [methods.anl, methods.logit_clip, methods.nce_mae, methods.poly_loss, methods.sce, methods.epsilon_softmax]


def case(rows=8, classes=4):
    return (2 * torch.randn(rows, classes, dtype=torch.float64)).requires_grad_(), torch.randint(classes, (rows,))


def softmax(row):
    total = sum(math.exp(v) for v in row)
    return [math.exp(v) / total for v in row]


def by_hand(name, row, label):
    """One loss by the formula of its paper, a number at a time, with the default settings."""
    p = softmax(row)
    if name == "sce":
        reverse = -sum(q * (0.0 if k == label else -4.0) for k, q in enumerate(p))
        return 0.1 * -math.log(p[label]) + 1.0 * reverse
    if name == "poly_loss":
        return -math.log(p[label]) + (1 - p[label])
    if name == "nce_mae":
        return math.log(p[label]) / sum(math.log(q) for q in p) + (1 - p[label])
    if name == "anl":
        a = -math.log(1e-7)
        positive = [a - -math.log(q) for q in p]
        return 5 * math.log(p[label]) / sum(math.log(q) for q in p) + 5 * (1 - positive[label] / sum(positive))
    if name == "epsilon_softmax":
        return decision_by_hand(p, label, 1e5, 0.01, 5.0)
    length = math.sqrt(sum(v * v for v in row))
    cut = [v * 1.5 / length for v in row] if length > 1.5 else row
    return -math.log(softmax(cut)[label])


def decision_by_hand(p, label, m, alpha, beta):
    pulled = [(q + (m if q == max(p) else 0)) / (1 + m) for q in p]
    return -alpha * math.log(max(pulled[label], 1e-8)) + beta * (2 - 2 * p[label])


@pytest.mark.parametrize("make", MAKERS)
def test_losses_are_those_of_the_paper(make):
    u, y = case()
    expected = [by_hand(make.__name__, row, label) for row, label in zip(u.tolist(), y.tolist(), strict=True)]
    s = make().evaluate(torch.nn.Identity(), u, y)
    torch.testing.assert_close(s.losses, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("make", MAKERS)
def test_gradients_are_right_and_other_targets_are_understood(make):
    u, y = case()
    assert torch.autograd.gradcheck(lambda u: make()(u, y), u)
    torch.testing.assert_close(make()(u, F.one_hot(y, 4).double()), make()(u, y))
    ignored = y.clone()
    ignored[2] = -100
    kept = torch.arange(8) != 2
    torch.testing.assert_close(make()(u, ignored), make()(u[kept], y[kept]))
    torch.testing.assert_close(make().eval()(u, y), F.cross_entropy(u, y))


@pytest.mark.parametrize(
    "make",
    [lambda: methods.nce_mae(alpha=1, beta=0), lambda: methods.anl(alpha=0, beta=1), lambda: methods.nce_mae(alpha=0)],
)
def test_the_parts_of_robust_losses_are_symmetric(make):
    """Summed over all labels such a loss is a constant, which is what makes it robust (Ghosh et al., AAAI 2017)."""
    u, _ = case()
    losses = torch.stack([make().evaluate(torch.nn.Identity(), u, torch.full((8,), c)).losses for c in range(4)])
    torch.testing.assert_close(losses.sum(0), losses.sum(0)[:1].expand(8))


def test_a_clipped_logit_vector_has_no_gradient_along_itself_and_a_bounded_loss():
    u, y = case(200)
    s = methods.logit_clip(tau=1.0).evaluate(torch.nn.Identity(), u, y)
    (grad,) = torch.autograd.grad(s.losses.sum(), u)
    long = u.norm(dim=-1) > 1
    assert long.any()
    torch.testing.assert_close((grad * u).sum(-1)[long], torch.zeros(int(long.sum()), dtype=torch.float64))
    low = math.log(1 + 3 * math.exp(-math.sqrt(4 / 3)))
    assert low - 1e-12 <= s.losses.min()
    assert s.losses.max() <= math.log(4) + math.sqrt(2)
    torch.testing.assert_close((s.u + s.du).norm(dim=-1)[long], torch.ones(int(long.sum()), dtype=torch.float64))


@pytest.mark.parametrize("make", [methods.nce_mae, methods.anl])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_normalized_losses_refuse_logits_of_minus_infinity(make, reduction):
    """The sum of all log-probabilities would be minus infinity, and the normalized cross entropy zero whatever the label."""
    criterion = make()
    criterion.reduction = reduction
    u = torch.tensor([[1.0, 0.5, 0.0], [1.0, 2.0, -torch.inf]], requires_grad=True)
    with pytest.raises(InputError, match=r"-infinity where the loss depends on them.*\[1\]"):
        criterion(u, torch.tensor([0, 1]))


@pytest.mark.parametrize("make", [methods.nce_mae, methods.anl])
@pytest.mark.parametrize("row", [[0.0, 0.0, 1.7e38], [-1.5e38, 0.0, 1.5e38], [3e38, 0.0, 0.0]])
def test_normalized_losses_of_finite_logits_are_finite(make, row):
    for label in range(3):
        u = torch.tensor([row], requires_grad=True)
        loss = make()(u, torch.tensor([label]))
        loss.backward()
        assert loss.isfinite()
        assert u.grad.isfinite().all()


# Slack
IDENTITY = nn.Identity()


def test_hinge_is_torch_and_the_binary_svm():
    u, y = torch.randn(40, 5).double(), torch.randint(5, (40,))
    for i in range(40):
        rival = max(u[i, c].item() for c in range(5) if c != y[i])
        assert hinge(u, y)[i].item() == pytest.approx(max(0.0, 1 - u[i, y[i]].item() + rival))
    two, sign = torch.randn(30, 2).double(), torch.randint(2, (30,))
    decision = two[:, 1] - two[:, 0]
    expected = (1 - (2 * sign - 1) * decision).clamp(min=0)
    assert torch.allclose(hinge(two, sign), expected)
    assert torch.allclose(hinge(two, sign), F.multi_margin_loss(two, sign, reduction="none") * 2)
    assert torch.allclose(hinge(u, F.one_hot(y, 5).double()), hinge(u, y))


@pytest.mark.parametrize("lam", [0.0, 0.3, 0.8, 1.0, 2.0])
def test_slack_reaches_the_profiled_optimum(lam):
    """For fixed logits: xi = l if lambda < 1, else 0, and what is left is min(lambda, 1) l."""
    u, y, i = torch.randn(20, 3).double(), torch.randint(3, (20,)), torch.arange(20)
    criterion = methods.slack_hinge(num_samples=20, lam=lam, lr=0.05).double()
    for _ in range(400):
        s = criterion.evaluate(IDENTITY, u, y, i)
    plain = hinge(u, y)
    xi = next(criterion.tables()).weight
    step = 0.05 * max(lam, 1 - lam) + 1e-9
    if lam == 0:
        assert (xi >= plain).all()
    else:
        assert ((xi - (plain if lam < 1 else 0 * plain)).abs() <= step).all()
    assert ((s.losses - min(lam, 1.0) * plain).abs() <= 2 * step).all()
    assert (xi >= 0).all()


# slack by meta learning
def soft_slack(losses, kappa, t):
    return t * (torch.log1p(torch.exp((losses - kappa) / t)) - torch.log1p(torch.exp(torch.as_tensor(-kappa / t))))


def test_meta_loss_is_its_formula_and_lowers_every_loss():
    u, y, i = torch.randn(9, 3).double(), torch.randint(3, (9,)), torch.arange(9)
    criterion = methods.meta_loss(num_samples=9, temperature=0.4, start=0.3).double()
    s = criterion.evaluate(IDENTITY, u, y, i)
    torch.testing.assert_close(
        s.losses, soft_slack(F.cross_entropy(u, y, reduction="none"), 0.3, 0.4), rtol=0, atol=1e-6
    )
    assert overall_sign(measured(s)) == "positive"
    u = u.requires_grad_()
    assert torch.autograd.gradcheck(lambda v: criterion(v, y, i), u)


def test_meta_loss_follows_equations_13_and_14(tiny, batch):
    x, y, i = batch
    clean = torch.randn(9, 4).double(), torch.arange(9) % 3
    criterion = methods.meta_loss(num_samples=9, temperature=0.5, start=0.5, lr=3.0).double()
    _, _, (grad,), _ = meta_gradient(criterion, tiny, batch, clean, lr=0.5)

    def outer(kappa):
        return clean_loss(
            tiny,
            lambda ahead: soft_slack(F.cross_entropy(ahead(x), y, reduction="none"), kappa, 0.5).mean(),
            clean,
            0.5,
        )

    for k in range(5):
        assert_slope(grad[k], outer, torch.full((5,), 0.5).double(), k)
    assert grad.abs().max() > 1e-5
    meta_step(criterion, tiny, batch, clean, lr=0.5)
    assert torch.allclose(next(criterion.tables()).weight[i], (0.5 - 3.0 * grad).clamp(min=0))


# Weighting
def given(u, y):
    return u.softmax(-1).gather(1, y[:, None])[:, 0]


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_is_its_formula(gamma):
    u, y = case()
    agree(
        methods.focal(gamma=gamma)(u, y),
        ((1 - given(u, y)) ** gamma * F.cross_entropy(u, y, reduction="none")).mean(),
        u,
    )
    assert torch.autograd.gradcheck(lambda u: methods.focal(gamma=gamma)(u, y), u)


def test_focal_by_category_uses_the_class_means_of_the_previous_epoch():
    criterion, means = methods.focal(num_classes=3, per="category"), torch.full((3,), 1 / 3).double()
    for _ in range(3):
        kept = {c: [] for c in range(3)}
        for _ in range(3):
            u, y = case(9, 3)
            expected = ((1 - means[y]) ** 2 * F.cross_entropy(u, y, reduction="none")).mean()
            agree(criterion(u, y), expected, u, atol=1e-6)
            for p, label in zip(given(u, y).tolist(), y.tolist(), strict=True):
                kept[label].append(p)
        criterion.end_epoch()
        means = torch.tensor([sum(kept[c]) / len(kept[c]) if kept[c] else 1 / 3 for c in range(3)]).double()
    assert criterion.taxonomy.granularity == "category"


def test_gce_lies_between_cross_entropy_and_mean_absolute_error():
    u, y = case()
    p = given(u, y)
    assert torch.allclose(methods.gce(q=1e-6)(u, y), F.cross_entropy(u, y), atol=1e-4)
    absolute = (u.softmax(-1) - F.one_hot(y, 4)).abs().sum(-1) / 2
    assert torch.allclose(methods.gce(q=1.0)(u, y), absolute.mean())
    assert torch.allclose(methods.gce()(u, y), ((1 - p**0.7) / 0.7).mean())
    ours = torch.autograd.grad(methods.gce()(u, y), u)[0]
    assert torch.allclose(ours, (p.detach() ** 0.7)[:, None] * (u.softmax(-1) - F.one_hot(y, 4)) / 8)
    assert torch.autograd.gradcheck(lambda u: methods.gce()(u, y), u)


def test_truncated_gce_drops_what_it_does_not_believe():
    u, y = case(20)
    p = given(u, y)
    ours = methods.gce(k=0.5)(u, y)
    assert torch.allclose(ours, ((1 - p.clamp(min=0.5) ** 0.7) / 0.7).mean())
    (grad,) = torch.autograd.grad(ours, u)
    assert (grad[p < 0.5] == 0).all()
    assert (grad[p > 0.5].abs().sum(-1) > 0).all()
    assert 0 < (p < 0.5).sum() < 20


def linear_case():
    model = nn.Linear(3, 4).double()
    x, y, i = torch.randn(6, 3).double(), torch.randint(4, (6,)), torch.randperm(10)[:6]
    clean = torch.randn(5, 3).double(), torch.randint(4, (5,))
    return model, (x, y, i), clean


def gradient(model, x, y):
    return torch.cat([g.flatten() for g in torch.autograd.grad(F.cross_entropy(model(x), y), model.parameters())])


def test_reweight_counts_samples_as_their_gradient_agrees_with_clean_data():
    model, (x, y, i), clean = linear_case()
    criterion = methods.reweight(num_samples=10).double()
    assert torch.allclose(criterion(model(x), y, i), F.cross_entropy(model(x), y)), "no meta step yet"
    meta_step(criterion, model, (x, y, i), clean, lr=0.1)
    toward = gradient(model, *clean)
    agrees = torch.stack([gradient(model, x[k : k + 1], y[k : k + 1]) @ toward for k in range(6)]).clamp(min=0)
    expected = (agrees / agrees.sum() * F.cross_entropy(model(x), y, reduction="none")).sum()
    s = criterion.evaluate(model, x, y, i)
    assert torch.allclose(s.loss, expected)
    ours = torch.autograd.grad(s.loss, list(model.parameters()))
    theirs = torch.autograd.grad(expected, list(model.parameters()))
    assert all(torch.allclose(a, b) for a, b in zip(ours, theirs, strict=True))
    assert 0 < (agrees > 0).sum() < 6
    assert overall_sign(measured(s)) == "mixed" == METHODS["reweight"].taxonomy.direction
    assert torch.allclose(criterion(model(x), y, i), F.cross_entropy(model(x), y)), "weights serve once"


def test_meta_weight_net_steps_down_the_clean_loss():
    model, batch, clean = linear_case()
    criterion = methods.meta_weight(hidden=5).double()
    outer, _, _, grads = meta_gradient(criterion, model, batch, clean, lr=0.5)
    net = criterion.terms_of("loss")[0].weight.layers

    def weighted(ahead):
        losses = F.cross_entropy(ahead(batch[0]), batch[1], reduction="none")
        return (net(losses.detach()[:, None])[:, 0].detach() * losses).mean()

    assert outer.item() == pytest.approx(clean_loss(model, weighted, clean, 0.5))
    assert_slopes(criterion.parameters(), grads, lambda: clean_loss(model, weighted, clean, 0.5))


# Decision
@pytest.mark.parametrize("m", [0.0, 2.0, 1e3, 1e5])
@pytest.mark.parametrize(("alpha", "beta"), [(0.01, 5.0), (1.0, 0.0)])
def test_the_loss_is_that_of_the_paper(m, alpha, beta):
    u, y = 3 * torch.randn(40, 4, dtype=torch.float64), torch.randint(4, (40,))
    expected = [
        decision_by_hand(softmax(row), c, m, alpha, beta) for row, c in zip(u.tolist(), y.tolist(), strict=True)
    ]
    for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 2e-5)):
        s = methods.epsilon_softmax(m=m, alpha=alpha, beta=beta).evaluate(torch.nn.Identity(), u.to(dtype), y)
        torch.testing.assert_close(s.losses.double(), torch.tensor(expected).double(), rtol=tolerance, atol=tolerance)


# Prediction sop
FLOOR = 1e-4


def term(criterion):
    return next(s for s in criterion.statistics() if isinstance(s, OverParameterized))


class Loop:
    """Every sample by itself, with one optimizer over all rows, as the paper describes it."""

    def __init__(self, mu, nu, lr_u, lr_v, joint):
        self.mu, self.nu, self.joint = mu.double().requires_grad_(), nu.double().requires_grad_(), joint
        self.optimizer = torch.optim.SGD([{"params": [self.mu], "lr": lr_u}, {"params": [self.nu], "lr": lr_v}])

    def losses(self, u, y, i, *, step):
        fit, error = [], []
        for uj, yj, j in zip(u, y.tolist(), i.tolist(), strict=True):
            onehot = F.one_hot(torch.tensor(yj), len(uj)).double()
            a, b = self.mu[j] ** 2 * onehot, self.nu[j] ** 2 * (1 - onehot)
            q = (uj.softmax(-1) + a - b.detach()).clamp(min=FLOOR)
            fit.append(-torch.log(q[yj] / q.sum()))
            decided = F.one_hot(uj.argmax(), len(uj)).double()
            error.append(((decided + (a if self.joint else a.detach()) - b - onehot) ** 2).sum())
        if step:
            self.optimizer.zero_grad()
            (torch.stack(fit).sum() + torch.stack(error).sum()).backward(inputs=[self.mu, self.nu])
            self.optimizer.step()
        return torch.stack(fit)


@pytest.mark.parametrize("joint", [True, False])
def test_values_gradients_and_rows_follow_the_paper(joint):
    criterion = methods.sop(num_samples=12, num_classes=4, lr_u=0.05, lr_v=0.1, spread=0.3, joint=joint).double()
    loop = Loop(term(criterion).mu.clone(), term(criterion).nu.clone(), 0.05, 0.1, joint)
    y = torch.randint(4, (12,))
    for _ in range(4):
        for i in torch.randperm(12).split(5):
            u = (2 * torch.randn(len(i), 4, dtype=torch.float64)).requires_grad_()
            expected = loop.losses(u, y[i], i, step=False).mean()
            agree(criterion(u, y[i], i), expected, u)
            loop.losses(u.detach(), y[i], i, step=True)
            assert torch.allclose(term(criterion).mu, loop.mu.detach())
            assert torch.allclose(term(criterion).nu, loop.nu.detach())
        criterion.end_epoch()
