"""The criterion against torch, the equation, and the proximal maps of its tables."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import nn

from compensate import Compensated, InputError, methods
from compensate.core import proximal
from compensate.terms import L1, Ball, Category, ClassMean, Corpus, Evidence, Group, Pull, Sample, Slack, Toward, Where
from compensate.terms.prior import uniform
from compensate.terms.schedules import Top, above
from experiments.figures.weights import effective_weight

# Equation
U, Y = torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1])


def test_worked_example_of_the_paper():
    v = torch.tensor([[-1.0, 2.0, 0.0]])
    assert Compensated()(U, Y).item() == pytest.approx(2.358, abs=5e-4)
    assert Compensated(logit=lambda s: v)(U, Y).item() == pytest.approx(0.421, abs=5e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("targets", ["hard", "ignored", "soft"])
def test_no_terms_is_torch_cross_entropy(dtype, reduction, weighted, targets):
    u = torch.randn(7, 4, dtype=dtype, requires_grad=True)
    y = torch.randint(4, (7,))
    if targets == "ignored":
        y[[1, 4]] = 9
    elif targets == "soft":
        y = torch.rand(7, 4, dtype=dtype).softmax(-1)
    weight = torch.rand(4, dtype=dtype) + 0.5 if weighted else None
    options = {"reduction": reduction, "weight": weight, "ignore_index": 9 if targets == "ignored" else -100}
    ours = Compensated(**options)(u, y)
    torchs = F.cross_entropy(u, y, **options)
    assert torch.allclose(ours, torchs, rtol=1e-6)
    (grad,) = torch.autograd.grad(ours.sum(), u)
    (expected,) = torch.autograd.grad(torchs.sum(), u)
    assert torch.allclose(grad, expected, rtol=1e-5, atol=1e-7)


def test_any_base_loss_with_reduction_weight_and_ignored_targets():
    u, y = torch.randn(6, 3), torch.tensor([0, 1, 2, -100, 1, 0])
    weight = torch.tensor([1.0, 2.0, 3.0])
    hinge = nn.MultiMarginLoss(reduction="none")
    ours = Compensated(base=hinge, weight=weight)(u, y)
    keep = y >= 0
    w = weight[y[keep]]
    expected = (hinge(u[keep], y[keep]) * w).sum() / w.sum()
    assert torch.allclose(ours, expected)


def test_every_target_enters_where_the_equation_says(tiny, batch):
    x, y, _ = batch
    dx, du = torch.randn_like(x), torch.randn(5, 3).double()
    dp, dy = 0.1 * torch.randn(5, 3).double(), 0.1 * torch.randn(5, 3).double()
    criterion = Compensated(
        feature=lambda s: dx, logit=lambda s: du, prediction=lambda s: dp, label=lambda s: dy, loss=lambda s: s.l**2
    )
    with torch.no_grad():
        ours = criterion.evaluate(tiny, x, y).loss
        q = _naive_simplex(tiny(x + dx).add(du).softmax(-1) + dp)
        target = _naive_simplex(F.one_hot(y, 3) + dy)
    losses = -(target * q.clamp(min=1e-12).log()).sum(-1)
    assert ours.item() == pytest.approx((losses + losses**2).mean().item(), rel=1e-9)


def _naive_simplex(v):
    """Bisection on the threshold, one row at a time."""
    out = torch.zeros_like(v)
    for i, row in enumerate(v):
        low, high = row.min() - 1, row.max()
        for _ in range(200):
            mid = (low + high) / 2
            low, high = (mid, high) if (row - mid).clamp(min=0).sum() > 1 else (low, mid)
        out[i] = (row - low).clamp(min=0)
    return out


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.integers(2, 7), st.floats(0, 3), st.integers(0, 10**6))
def test_compensated_labels_are_distributions(b, c, scale, seed):
    g = torch.Generator().manual_seed(seed)
    dy = scale * torch.randn(b, c, generator=g, dtype=torch.float64)
    seen = []
    criterion = Compensated(label=lambda s: dy, base=lambda u, y: seen.append(y) or (u * y).sum(-1))
    criterion(torch.randn(b, c, generator=g, dtype=torch.float64), torch.randint(c, (b,), generator=g))
    (y,) = seen
    assert torch.allclose(y.sum(-1), torch.ones(b, dtype=torch.float64))
    assert (y >= 0).all()


def test_several_guesses_together_stay_on_the_simplex():
    """Each alone would; their sum goes past the corner and is projected."""
    loss = Compensated(label=(Toward(uniform, 0.8), Toward(uniform, 0.8)))(U, Y)
    assert loss >= 0


def test_half_precision_predictions_stay_finite():
    u = torch.tensor([[20.0, -10.0, 0.0]], dtype=torch.float16, requires_grad=True)
    loss = Compensated(prediction=lambda s: 0 * s.u.detach())(u, Y)
    (grad,) = torch.autograd.grad(loss, u)
    assert loss.isfinite()
    assert grad.isfinite().all()


def test_evaluation_mode_is_the_plain_loss_and_moves_nothing(tiny, batch):
    x, y, i = batch
    table = Sample(9, 3, penalty=L1(0.1), init=1.0)
    criterion = Compensated(logit=table, feature=lambda s: s.e, label=Toward(uniform, 0.3), record=Evidence(9)).eval()
    before = copy.deepcopy(criterion.state_dict())
    tiny.eval()
    assert torch.allclose(criterion.evaluate(tiny, x, y, i).loss, F.cross_entropy(tiny(x), y))
    assert torch.allclose(criterion(tiny(x), y), F.cross_entropy(tiny(x), y))
    assert all(torch.equal(v, before[k]) for k, v in criterion.state_dict().items())


def everything() -> Compensated:
    """A criterion with every kind of module in it."""
    return Compensated(
        logit=(
            Sample(9, 3, penalty=L1(0.1)),
            Category(3, 3, penalty=L1(0.1)),
            Group(2, 3, bound=Ball(1.0)),
            Corpus(3, update="meta"),
            Where(above(Top(50, "epoch", 9)), Pull(1.0)),
        ),
        label=Toward(ClassMean(3), 0.1),
        loss=Slack(Sample(9, penalty=L1(0.5), bound=Ball(1.0, "linf"))),
        record=Evidence(9),
    )


def run(criterion, steps=2, dtype=torch.float32):
    g = torch.Generator().manual_seed(1)
    for _ in range(steps):
        i = torch.randperm(9, generator=g)[:5]
        u = torch.randn(5, 3, generator=g, dtype=dtype)
        y = i % 3
        loss = criterion(u, y, i, group=y % 2)
    criterion.end_epoch()
    return loss


@pytest.mark.parametrize("how", ["state_dict", "deepcopy", "pickle", "file"])
def test_all_state_survives(how):
    criterion = everything()
    run(criterion)
    if how == "state_dict":
        other = everything()
        other.load_state_dict(criterion.state_dict())
    elif how == "deepcopy":
        other = copy.deepcopy(criterion)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(criterion))
    else:
        file = io.BytesIO()
        torch.save(criterion.state_dict(), file)
        file.seek(0)
        other = everything()
        other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(run(criterion), run(other))
    for (name, a), b in zip(criterion.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert int(other.epoch) == 2
    assert int(other.step) == 4


def test_repr_is_the_equation_with_numbers_taxonomy_and_memory():
    text = repr(Compensated(logit=Sample(1000, 10, penalty=L1(0.1)), label=Toward(uniform, 0.1)))
    assert "mean_i [ l( S(f(x_i) + du_i), y_i + dy_i ) + penalty_i ]" in text
    assert "Sample(1000 x 10, L1(0.1), lr=1, prox)" in text
    assert "logit+label · mixed · regularized+prior · sample" in text
    assert "holds 40 kB" in text


def test_forgotten_epoch_end_warns():
    criterion = Compensated(label=Toward(ClassMean(3), 0.1), record=Evidence(4))
    u, y, i = torch.randn(4, 3), torch.tensor([0, 1, 2, 0]), torch.arange(4)
    criterion(u, y, i)
    with pytest.warns(UserWarning, match=r"end_epoch\(\) has not been called"):
        criterion(u, y, i)
    criterion.end_epoch()
    criterion(u, y, i)


# bad input: one paragraph, what was given, what to do
LOGCOMP = Compensated(logit=Sample(5, 3, penalty=L1(0.1)))
BAD = {
    "missing index": (lambda: LOGCOMP(U, Y), "index is missing.*compensate.data.Indexed.*criterion.eval"),
    "negative index": (lambda: LOGCOMP(U, Y, torch.tensor([-1])), "^index -1 lies outside 0..4"),
    "large index": (lambda: LOGCOMP(U, Y, torch.tensor([5])), "^index 5 lies outside 0..4"),
    "float index": (lambda: LOGCOMP(U, Y, torch.tensor([1.0])), "index is torch.float32"),
    "index shape": (lambda: LOGCOMP(U, Y, torch.tensor([1, 2])), r"index has shape \(2,\)"),
    "large label": (lambda: Compensated()(U, torch.tensor([3])), "^target 3 lies outside 0..2"),
    "negative label": (lambda: Compensated()(U, torch.tensor([-1])), "^target -1 lies outside 0..2"),
    "target shape": (lambda: Compensated()(U, torch.tensor([1, 2])), r"target has shape \(2,\)"),
    "logit shape": (lambda: Compensated()(torch.randn(2, 3, 4), torch.zeros(2).long()), "expected .batch, classes."),
    "soft shape": (lambda: Compensated()(U, torch.ones(1, 4)), "distributions"),
    "integer logits": (lambda: Compensated()(U.long(), Y), "logits are torch.int64"),
    "nan": (lambda: Compensated()(U * torch.nan, Y), "logits contain NaN.*First rows"),
    "label dtype": (lambda: Compensated()(U, Y.float()), "target is torch.float32.*target.long"),
    "label int32": (lambda: Compensated()(U, Y.int()), "target is torch.int32"),
    "negative lambda": (lambda: L1(-0.1), "lambda is -0.1.*>= 0"),
    "no penalty": (lambda: Compensated(logit=Sample(5, 3)), "neither penalty nor bound"),
    "feature in drop-in form": (lambda: Compensated(feature=lambda s: s.e)(U, Y), r"criterion\.evaluate"),
    "features without model": (lambda: Compensated(logit=lambda s: s.z)(U, Y), r"criterion\.evaluate"),
    "features of a plain model": (lambda: Compensated(logit=lambda s: s.z).evaluate(nn.Linear(3, 3), U, Y), "Staged"),
    "feature of integers": (lambda: Compensated(feature=lambda s: s.e).evaluate(nn.Embedding(3, 3), Y, Y), "embed.x."),
    "table on the loss": (lambda: Compensated(loss=Sample(5, penalty=L1(0.1))), "constant has no gradient"),
    "missing group": (lambda: Compensated(logit=Group(2, 3, penalty=L1(0.1)))(U, Y), "group is missing"),
    "wrong classes": (lambda: LOGCOMP(torch.randn(1, 5), Y, Y), "as many classes as the model"),
    "list as index": (lambda: LOGCOMP(U, Y, [1]), "index is a list"),
    "number as term": (lambda: Compensated(logit=3.0), "expected a callable"),
    "trust above one": (lambda: Toward(uniform, 1.5), "between 0 and 1"),
    "reduction": (lambda: Compensated(reduction="avg"), 'reduction is "avg"'),
    "no record": (lambda: Compensated().suspects(), "keeps no record.*compensate.terms.Evidence"),
    "negative top": (lambda: Compensated(record=Evidence(5)).suspects(top=-1), "top is -1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_says_what_to_do(name):
    call, message = BAD[name]
    with pytest.raises(InputError, match=f"(?s){message}") as caught:
        call()
    assert "\n" not in str(caught.value)


def test_checks_can_be_deferred_or_switched_off():
    bad = torch.tensor([[torch.nan, 0.0, 0.0]])
    assert Compensated(check="off")(bad, Y).isnan()
    with pytest.raises(RuntimeError, match="NaN"):
        Compensated(check="async")(bad, Y)


def test_infinite_logits_of_masked_classes_are_allowed():
    u = torch.tensor([[3.0, 0.8, -torch.inf]])
    assert torch.allclose(Compensated()(u, Y), F.cross_entropy(u, Y))


def test_two_criteria_add_up():
    counts = torch.tensor([70.0, 20.0, 10.0])
    u, y, i = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1]), torch.arange(5)
    rows = methods.logcomp(num_samples=5, num_classes=3)
    for _ in range(3):
        rows(-u, y, i)
    both = methods.logit_adjustment(class_counts=counts) + rows
    v = next(rows.tables()).gather(i).detach().clone()
    penalty = 0.25 * v.abs().sum(1)
    expected = (F.cross_entropy(u + (counts / counts.sum()).log() + v, y, reduction="none") + penalty).mean()
    torch.testing.assert_close(both(u, y, i), expected)
    assert both.record is rows.record
    with pytest.raises(InputError, match="differ in reduction"):
        Compensated(reduction="sum") + rows
    with pytest.raises(TypeError):
        rows + 1


# Proximal
MAPS = {
    "soft": proximal.soft_threshold,
    "group": proximal.group_soft_threshold,
    "hard": proximal.hard_threshold,
    "shrink": proximal.shrink,
    "l2": lambda v, t: proximal.project_ball(v, t, "l2"),
    "linf": lambda v, t: proximal.project_ball(v, t, "linf"),
    "simplex": lambda v, t: proximal.project_simplex(v),
}


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("by_row", [False, True])
def test_numpy_and_torch_agree(name, by_row):
    v = np.random.default_rng(0).normal(size=(5, 4))
    t = np.linspace(0.1, 1.0, 5) if by_row else 0.4
    ours = MAPS[name](torch.tensor(v), torch.tensor(t) if by_row else t)
    assert np.allclose(MAPS[name](v, t), ours.numpy())
    if by_row:
        rows = [MAPS[name](v[i : i + 1], t[i])[0] for i in range(5)]
        assert np.allclose(MAPS[name](v, t), rows)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=5))
def test_simplex_projection_is_the_nearest_point(values):
    v = np.array([values])
    ours = proximal.project_simplex(v)[0]
    assert ours.sum() == pytest.approx(1)
    found = minimize(
        lambda w: ((w - v[0]) ** 2).sum(),
        np.full(len(values), 1 / len(values)),
        bounds=[(0, 1)] * len(values),
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    ).x
    assert ours == pytest.approx(found, abs=1e-4)


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 2), st.sampled_from(["l2", "linf"]), st.integers(0, 10**6))
def test_ball_projection_stays_inside_and_keeps_inner_points(radius, norm, seed):
    v = torch.randn(6, 3, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    size = v.flatten(1).norm(dim=1) if norm == "l2" else v.flatten(1).abs().amax(1)
    w = proximal.project_ball(v, radius, norm)
    after = w.flatten(1).norm(dim=1) if norm == "l2" else w.flatten(1).abs().amax(1)
    assert (after <= radius + 1e-12).all()
    assert torch.allclose(w[size <= radius], v[size <= radius])


def test_zero_rows_stay_finite():
    zero = torch.zeros(2, 3)
    assert not proximal.group_soft_threshold(zero, 0.5).isnan().any()
    assert not proximal.project_ball(zero, 0.5, "l2").isnan().any()


# Effective weight
def case(rows=40, classes=4):
    torch.manual_seed(0)
    u = (2.5 * torch.randn(rows, classes, dtype=torch.float64)).requires_grad_()
    y = torch.randint(classes, (rows,))
    return u, y, u.detach().softmax(-1).gather(1, y[:, None])[:, 0]


def measured(criterion, u, y, visits=1):
    index = torch.arange(len(y))
    for _ in range(visits):
        s = criterion.evaluate(torch.nn.Identity(), u, y, index)
        weight, cosine = effective_weight(s)
        s.loss.backward()
        u.grad = None
    return weight, cosine


def ones(rows=40):
    return torch.ones(rows, dtype=torch.float64)


def test_the_definition_is_a_ratio_of_gradients():
    u, y, _ = case()
    delta = torch.randn(40, 4, dtype=torch.float64)
    weight, cosine = measured(Compensated(logit=lambda s: delta), u, y)
    plain = torch.autograd.grad(F.cross_entropy(u, y, reduction="sum"), u)[0]
    ours = torch.autograd.grad(F.cross_entropy(u + delta, y, reduction="sum"), u)[0]
    torch.testing.assert_close(weight, ours.norm(dim=-1) / plain.norm(dim=-1))
    torch.testing.assert_close(cosine, F.cosine_similarity(ours, plain))


@pytest.mark.parametrize(
    ("make", "weight"),
    [
        (lambda: methods.gce(q=0.7), lambda p: p**0.7),
        (lambda: methods.focal(gamma=2.0), lambda p: (1 - p) ** 2 - 2 * p * (1 - p) * p.log()),
        (lambda: methods.sce(alpha=0.1, beta=1.0, log_zero=-4.0), lambda p: 0.1 + 4 * p),
        (lambda: methods.poly_loss(epsilon=1.0), lambda p: 1 + p),
    ],
)
def test_a_loss_of_the_given_probability_is_a_weight(make, weight):
    u, y, p = case()
    found, cosine = measured(make(), u, y)
    torch.testing.assert_close(found, weight(p))
    torch.testing.assert_close(cosine, ones())


@pytest.mark.parametrize("make", [lambda: methods.gce(q=0.7), lambda: methods.focal(gamma=2.0)], ids=["gce", "focal"])
def test_every_weight_is_a_shift_of_the_given_logit(make):
    """As long as the gradient would not be longer than any gradient of cross entropy: w (1 - p) < 1."""
    u, y, p = case()
    weight, _ = measured(make(), u, y)
    possible = weight * (1 - p) < 1
    assert possible.sum() > 15
    shift = torch.where(possible, torch.logit(1 - (weight * (1 - p)).clamp(max=1 - 1e-12)) - torch.logit(p), 0.0)
    as_logit, cosine = measured(Compensated(logit=lambda s: shift[:, None] * s.y), u, y)
    torch.testing.assert_close(as_logit[possible], weight[possible])
    torch.testing.assert_close(cosine, ones())
