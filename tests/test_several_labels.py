"""Several labels a sample under binary cross entropy: each form against a loop, and against the softmax of two classes."""

from __future__ import annotations

import copy
import inspect
import math

import pytest
import torch
import torch.nn.functional as F

from compensate import METHODS, Compensated, InputError, methods
from compensate.core.statistics import ClassMean
from compensate.terms import L1, Adversarial, Category, Evidence, Sample, Toward
from tiny import BINARY

B, C, N = 5, 4, 9
SIZES = {"num_samples": N, "num_classes": C, "class_counts": [2, 3, 4, 6]}


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def loss_of(u, y):
    """Binary cross entropy of one logit and a label in [0, 1]."""
    return -y * math.log(sigmoid(u)) - (1 - y) * math.log(sigmoid(-u))


@pytest.fixture
def given():
    torch.manual_seed(0)
    return torch.randn(B, C).double() * 2, torch.randint(2, (B, C)), torch.tensor([3, 0, 7, 8, 1])


def test_the_methods_with_a_binary_form_are_these():
    taken = [name for name, row in METHODS.items() if "base" in inspect.signature(row.build).parameters]
    assert sorted(taken) == BINARY


@pytest.mark.parametrize("name", [name for name in METHODS if name not in BINARY])
def test_methods_without_a_binary_form_say_why(name):
    with pytest.raises(InputError, match=f'{name} has no base="bce": i.*mixcomp'):
        METHODS[name].build(base="bce")


# each form against a loop
def by_loop(u, y, loss):
    return sum(loss(float(u[i, c]), int(y[i, c]), i, c) for i in range(B) for c in range(C)) / (B * C)


def adjusted(u, y, i, c):
    share = SIZES["class_counts"][c] / N
    return loss_of(u + 0.5 * math.log(share / (1 - share)), y)


FORMS = {
    "base": ({}, lambda u, y, i, c: loss_of(u, y)),
    "label_smoothing": ({"lam": 0.3}, lambda u, y, i, c: loss_of(u, 0.7 * y + 0.3 / 2)),
    "bootstrap_soft": ({"beta": 0.7}, lambda u, y, i, c: loss_of(u, 0.7 * y + 0.3 * sigmoid(u))),
    "bootstrap_hard": ({"beta": 0.7}, lambda u, y, i, c: loss_of(u, 0.7 * y + 0.3 * (u > 0))),
    "logit_adjustment": ({"tau": 0.5}, adjusted),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_without_memory_are_those_of_a_loop(name, given):
    u, y, i = given
    hyper, loss = FORMS[name]
    criterion = METHODS[name].make(**SIZES, **hyper, base="bce").double()
    torch.testing.assert_close(criterion(u, y, i), torch.tensor(by_loop(u, y, loss)).double())


def test_mixcomp_pulls_the_labels_with_the_largest_losses(given):
    u, y, i = given
    criterion = methods.mixcomp(num_samples=N, num_classes=C, eta=2.0, pro=25, warmup=0, floor=0, base="bce").double()
    plain = sorted((loss_of(float(u[a, c]), int(y[a, c])) for a in range(B) for c in range(C)), reverse=True)
    tau = plain[B * C // 4 - 1]

    def loss(x, label, i, c):
        return loss_of(x + 2.0 * (label - sigmoid(x)) * (loss_of(x, label) >= tau - 1e-12), label)

    torch.testing.assert_close(criterion(u, y, i), torch.tensor(by_loop(u, y, loss)).double())


def test_logcomp_keeps_a_number_for_each_label_of_each_sample(given):
    u, y, i = given
    lam, lr = 0.1, 1.5
    criterion = methods.logcomp(num_samples=N, num_classes=C, lam=lam, lr=lr, base="bce").double()
    v = [[0.0] * C for _ in range(N)]
    for _ in range(5):
        expected = by_loop(
            u, y, lambda x, label, a, c: loss_of(x + v[i[a]][c], label) + lam * abs(v[i[a]][c])
        )  # fmt: skip
        torch.testing.assert_close(criterion(u, y, i), torch.tensor(expected).double())
        for a in range(B):
            for c in range(C):
                at = v[i[a]][c]
                to = at - lr * (sigmoid(float(u[a, c]) + at) - int(y[a, c]))
                v[i[a]][c] = math.copysign(max(0.0, abs(to) - lr * lam), to)
    torch.testing.assert_close(next(criterion.tables()).dense().reshape(N, C), torch.tensor(v).double())
    assert torch.tensor(v).abs().max() > 0.5


@pytest.mark.parametrize("by", ["probability", "share"])
def test_lpl_shifts_badly_learned_labels_up_their_loss_and_others_down(by, given):
    u, y, _ = given
    s = methods.lpl(**SIZES, by=by, eps=0.4, growth=0.0, base="bce").double().eval().train()
    s = s.evaluate(torch.nn.Identity(), u, y, torch.arange(B))
    groups = {(c, k): [a for a in range(B) if y[a, c] == k] for c in range(C) for k in (0, 1)}
    groups = {key: members for key, members in groups.items() if members}
    if by == "probability":
        well = {
            (c, k): sum(sigmoid((2 * k - 1) * float(u[a, c])) for a in members) / len(members)
            for (c, k), members in groups.items()
        }
        mean = sum(well.values()) / len(well)
    else:
        well = {(c, k): (SIZES["class_counts"][c] / N if k else 1 - SIZES["class_counts"][c] / N) for c, k in groups}
        mean = 0.5
    for (c, k), members in groups.items():
        worse = 1 if well[c, k] < mean else -1
        for a in members:
            assert float(s.du.reshape(B, C)[a, c]) == pytest.approx(worse * 0.4 * (1 - 2 * k))


# each form against the softmax of two classes
COINCIDE = {
    # Of two logits both move, each by as much as the one here, and only their difference counts.
    "mixcomp": ({"eta": 2.0, "pro": 40}, {"eta": 1.0, "pro": 40}),
    # And a step of unit length along both is longer by the square root of two in their difference.
    "lpl": ({"eps": 0.4 * 2**0.5, "step": 0.05 * 2**0.5, "growth": 2**0.5}, {"eps": 0.4, "step": 0.05, "growth": 1.0}),
}


@pytest.mark.parametrize("name", COINCIDE)
def test_one_label_is_the_softmax_over_zero_and_its_logit(name):
    torch.manual_seed(3)
    u, y = torch.randn(7, 1).double() * 2, torch.randint(2, (7,))
    binary, two = COINCIDE[name]
    left, right = u.clone().requires_grad_(), u.clone().requires_grad_()
    here = METHODS[name].build(**binary, base="bce").double()(left, y[:, None])
    there = METHODS[name].build(**two).double()(torch.cat([torch.zeros_like(u), right], 1), y)
    torch.testing.assert_close(here, there)
    torch.testing.assert_close(*(torch.autograd.grad(loss, x)[0] for loss, x in ((here, left), (there, right))))


# as in torch
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weight", [None, torch.tensor([0.5, 2.0, 1.0, 3.0])])
@pytest.mark.parametrize("kind", [torch.bool, torch.long, torch.float32])
def test_without_terms_it_is_torchs_binary_cross_entropy(reduction, weight, kind):
    torch.manual_seed(0)
    u, y = torch.randn(B, C, requires_grad=True), torch.randint(2, (B, C)).to(kind)
    found = Compensated(base="bce", reduction=reduction, weight=weight)(u, y)
    expected = F.binary_cross_entropy_with_logits(u, y.float(), weight=weight, reduction=reduction)
    torch.testing.assert_close(found, expected)


def test_unknown_labels_are_left_out(given):
    u, y, i = given
    y[0, 1] = y[2, 3] = -100
    known = y != -100
    criterion = methods.logcomp(num_samples=N, num_classes=C, base="bce").double()
    expected = F.binary_cross_entropy_with_logits(u[known], y[known].double())
    torch.testing.assert_close(criterion(u, y, i), expected)
    rows = next(criterion.tables()).dense().reshape(N, C)[i]
    assert rows[0, 1] == rows[2, 3] == 0
    assert criterion.record.visits.reshape(N, C)[i].tolist() == known.double().tolist()


@pytest.mark.filterwarnings("ignore:.*is renewed once an epoch")
@pytest.mark.parametrize("name", BINARY)
def test_gradients_are_right(name, given):
    u, y, i = given
    criterion = METHODS[name].make(**SIZES, base="bce").double()
    if name == "logcomp":
        next(criterion.tables()).weight.normal_()
    # Terms that are constants in the gradient by definition are held at where they are.
    if name in ("mixcomp", "lpl"):
        du = criterion.evaluate(torch.nn.Identity(), u, y, i).du.detach()
        criterion = Compensated(logit=lambda s: du, base="bce")

    def loss(u):
        with torch.no_grad():
            state = copy.deepcopy(criterion.state_dict())
        found = criterion(u, y, i)
        criterion.load_state_dict(state)
        return found

    assert torch.autograd.gradcheck(loss, (u.clone().requires_grad_(),))


def test_places_may_have_several_labels_too(given):
    torch.manual_seed(0)
    u, y = torch.randn(2, 3, 5), torch.randint(2, (2, 3, 5))
    criterion = methods.logcomp(num_samples=2, num_classes=3, lam=0.05, base="bce")
    torch.testing.assert_close(
        criterion(u.clone().requires_grad_(), y, torch.arange(2)), F.binary_cross_entropy_with_logits(u, y.float())
    )
    slope = (u.sigmoid() - y).mean(-1)  # over the places of a sample
    step = -slope.sign() * (slope.abs() - 0.05).clamp(min=0)
    torch.testing.assert_close(next(criterion.tables()).dense().reshape(2, 3), step)
    assert criterion.suspects().label.tolist() != [0] * 6


# what is kept
@pytest.mark.parametrize("name", BINARY)
def test_suspects_are_pairs_of_sample_and_label(name):
    torch.manual_seed(0)
    right = torch.randint(2, (200, C))
    x = 2.0 * right - 1 + 0.2 * torch.randn(200, C)
    y = right.clone()
    planted = [(3, 1), (17, 0), (25, 3), (30, 2)]
    for a, c in planted:
        y[a, c] = 1 - y[a, c]
    sizes = {"num_samples": 200, "num_classes": C, "class_counts": y.sum(0).tolist()}
    gentle = {"logcomp": {"lam": 0.3, "lr": 0.1}, "mixcomp": {"pro": 2.0}}  # the model begins with no idea
    criterion = METHODS[name].make(**sizes, **gentle.get(name, {}), base="bce")
    if criterion.record is None:
        criterion.record = Evidence(200, num_labels=C)
    model = torch.nn.Linear(C, C)
    torch.nn.init.zeros_(model.weight)  # a guess at the start would be in the record
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(60):
        optimizer.zero_grad()
        criterion(model(x), y, torch.arange(200)).backward()
        optimizer.step()
        criterion.end_epoch()
    found = criterion.suspects(top=4)
    assert {*zip(found.index.tolist(), found.label.tolist(), strict=True)} == {*planted}
    assert found.suggested.tolist() == [int(right[a, c]) for a, c in zip(found.index, found.label, strict=True)]
    assert "label" in repr(found)


def test_a_category_is_a_label_and_inputs_belong_to_samples(given):
    u, y, i = given
    table = Category(C, 1, penalty=L1(0.01))
    Compensated(logit=table, base="bce")(u.float(), y).backward()
    slope = (u.sigmoid() - y).mean(0)
    torch.testing.assert_close(table.dense()[:, 0], (-slope.sign() * (slope.abs() - 0.01).clamp(min=0)).float())
    model = torch.nn.Linear(3, C)
    rows = Sample(N, 3, penalty=L1(0.0))
    s = Compensated(feature=(rows, Adversarial(0.1)), base="bce").evaluate(model, torch.randn(B, 3), y, i)
    s.loss.backward()
    assert s.dx.shape == (B, 3)
    assert rows.dense()[i].abs().sum() > 0


# what is refused
@pytest.mark.parametrize(
    ("target", "why"),
    [
        (torch.tensor([0, 1]), "expects a label for each class"),
        (torch.tensor([[0, 2, 1], [0, 0, 1]]), "target 2: labels of several classes are 0 or 1"),
        (torch.tensor([[0.0, torch.nan, 1.0], [0.0, 0.0, 1.0]]), "target nan: labels of several classes"),
        (torch.zeros(2, 4), r"logits have shape \(2, 3\).*expected \(2, 4\)"),
    ],
)
def test_targets_that_are_no_labels_are_refused(target, why):
    with pytest.raises(InputError, match=why):
        Compensated(base="bce")(torch.randn(2, 3), target)


def test_settings_that_have_no_binary_form_are_refused(given):
    u, y, i = given
    for build, why in (
        (lambda: Compensated(base="bce", record=Evidence(4 * N))(u, y, i), "num_labels=4"),
        (lambda: Compensated(base="bce", logit=Sample(N, C, penalty=L1(0.1)))(u, y, i), "a row for each label of each"),
        (lambda: Compensated(base="hinge"), 'base is "hinge"'),
        (lambda: Compensated(base=["bce"]), r"base is \"\['bce'\]\"; expected \"bce\", a function"),
        (lambda: methods.robust(base=["bce"], num_samples=500, num_classes=3), r"\['bce'\]\"; expected \"bce\"\."),
        (lambda: methods.robust(base=F.cross_entropy, num_samples=500, num_classes=3), r"expected \"bce\"\."),
        (lambda: Compensated(base="bce", prediction=Sample(3, 1, penalty=L1(1.0))), "has no prediction="),
        (lambda: Compensated(base="bce", label=Toward(ClassMean(3), 0.1)), "ClassMean reads one distribution"),
        (lambda: methods.mixcomp(base="bce", eps2=0.1), "a sample has a loss for each label"),
        (lambda: methods.label_smoothing(base="bce", num_samples=5), "give num_classes and num_samples"),
        (lambda: methods.logit_adjustment(base="bce", class_counts=[1, 2]), "needs num_samples"),
        (lambda: methods.logit_adjustment(base="bce", class_counts=[1, 9], num_samples=9), "go up to 9 of 9 samples"),
    ):
        with pytest.raises(InputError, match=why):
            build()
