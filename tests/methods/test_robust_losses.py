"""The robust losses of the field against loops over numbers, their limits, gradients and weights."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from compensate import InputError
from compensate.methods import anl, logit_clip, nce_mae, poly_loss, sce

MAKERS = [anl, logit_clip, nce_mae, poly_loss, sce]


def case(rows=7, classes=4):
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
    length = math.sqrt(sum(v * v for v in row))
    cut = [v * 1.5 / length for v in row] if length > 1.5 else row
    return -math.log(softmax(cut)[label])


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
    kept = torch.arange(7) != 2
    torch.testing.assert_close(make()(u, ignored), make()(u[kept], y[kept]))
    torch.testing.assert_close(make().eval()(u, y), F.cross_entropy(u, y))


@pytest.mark.parametrize(
    "make", [lambda: nce_mae(alpha=1, beta=0), lambda: anl(alpha=0, beta=1), lambda: nce_mae(alpha=0)]
)
def test_the_parts_of_robust_losses_are_symmetric(make):
    """Summed over all labels such a loss is a constant, which is what makes it robust (Ghosh et al., AAAI 2017)."""
    u, _ = case()
    losses = torch.stack([make().evaluate(torch.nn.Identity(), u, torch.full((7,), c)).losses for c in range(4)])
    torch.testing.assert_close(losses.sum(0), losses.sum(0)[:1].expand(7))


def test_a_clipped_logit_vector_has_no_gradient_along_itself_and_a_bounded_loss():
    u, y = case(200)
    s = logit_clip(tau=1.0).evaluate(torch.nn.Identity(), u, y)
    (grad,) = torch.autograd.grad(s.losses.sum(), u)
    long = u.norm(dim=-1) > 1
    assert long.any()
    torch.testing.assert_close((grad * u).sum(-1)[long], torch.zeros(int(long.sum()), dtype=torch.float64))
    low = math.log(1 + 3 * math.exp(-math.sqrt(4 / 3)))
    assert low - 1e-12 <= s.losses.min()
    assert s.losses.max() <= math.log(4) + math.sqrt(2)
    torch.testing.assert_close((s.u + s.du).norm(dim=-1)[long], torch.ones(int(long.sum()), dtype=torch.float64))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: sce(alpha=-1), "alpha"), (lambda: sce(log_zero=1), "log_zero"), (lambda: nce_mae(beta=-1), "beta"),
        (lambda: anl(floor=0), "floor"), (lambda: poly_loss(epsilon=-2), "epsilon"), (lambda: logit_clip(tau=0), "tau"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(make, said):
    with pytest.raises(InputError, match=said):
        make()


@pytest.mark.parametrize("make", [nce_mae, anl])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_normalized_losses_refuse_logits_of_minus_infinity(make, reduction):
    """The sum of all log-probabilities would be minus infinity, and the normalized cross entropy zero whatever the label."""
    criterion = make()
    criterion.reduction = reduction
    u = torch.tensor([[1.0, 0.5, 0.0], [1.0, 2.0, -torch.inf]], requires_grad=True)
    with pytest.raises(InputError, match=r"-infinity where the loss depends on them.*\[1\]"):
        criterion(u, torch.tensor([0, 1]))


@pytest.mark.parametrize("make", [nce_mae, anl])
@pytest.mark.parametrize("row", [[0.0, 0.0, 1.7e38], [-1.5e38, 0.0, 1.5e38], [3e38, 0.0, 0.0]])
def test_normalized_losses_of_finite_logits_are_finite(make, row):
    for label in range(3):
        u = torch.tensor([row], requires_grad=True)
        loss = make()(u, torch.tensor([label]))
        loss.backward()
        assert loss.isfinite()
        assert u.grad.isfinite().all()
