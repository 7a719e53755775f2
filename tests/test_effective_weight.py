"""Weighting and compensating, compared: a test for each statement of the concepts page."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from compensate import Compensated, methods
from compensate.core.taxonomy import effective_weight
from compensate.terms import Pull, Toward, prediction


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


# --- 1. a loss of the given probability alone is a weight, -p h'(p) ---------------------------------------------


@pytest.mark.parametrize(
    ("make", "weight"),
    [
        (lambda: methods.gce(q=0.7), lambda p: p**0.7),
        (lambda: methods.focal(gamma=2.0), lambda p: (1 - p) ** 2 - 2 * p * (1 - p) * p.log()),
        (lambda: methods.sce(alpha=0.1, beta=1.0, log_zero=-4.0), lambda p: 0.1 + 4 * p),
        (lambda: methods.poly_loss(epsilon=1.0), lambda p: 1 + p),
    ],
    ids=["gce", "focal", "sce", "poly"],
)
def test_a_loss_of_the_given_probability_is_a_weight(make, weight):
    u, y, p = case()
    found, cosine = measured(make(), u, y)
    torch.testing.assert_close(found, weight(p))
    torch.testing.assert_close(cosine, ones())


def test_a_loss_that_reads_other_probabilities_is_no_weight():
    u, y, _ = case()
    for make in (methods.nce_mae, methods.anl):
        _, cosine = measured(make(), u, y)
        assert cosine.min() < 0.99


# --- 2. a shift of the given logit is a weight, and every weight is such a shift --------------------------------


def test_a_shift_of_the_given_logit_is_a_weight():
    u, y, p = case()
    shift = torch.randn(40, dtype=torch.float64)
    weight, cosine = measured(Compensated(logit=lambda s: shift[:, None] * s.y), u, y)
    after = torch.sigmoid(torch.logit(p) + shift)
    torch.testing.assert_close(weight, (1 - after) / (1 - p))
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


# --- 3. LogComp at rest is a clipped weight; what differs is its memory ------------------------------------------


def test_logcomp_at_rest_is_the_weight_that_clips_doubt():
    u, y, p = case()
    criterion = methods.logcomp(num_samples=40, num_classes=4, lam=0.1, lr=1.0).double()
    weight, cosine = measured(criterion, u, y, visits=4000)
    torch.testing.assert_close(weight, (0.1 / (1 - p)).clamp(max=1), rtol=0.02, atol=1e-3)
    torch.testing.assert_close(cosine, ones(), rtol=1e-3, atol=1e-3)


def test_logcomp_remembers_and_a_weight_does_not():
    """Two samples with the same logits today count differently if their pasts differ."""
    criterion = methods.logcomp(num_samples=2, num_classes=3, lam=0.05, lr=1.0).double()
    y, now = torch.tensor([0, 0]), torch.tensor([[1.0, 0.0, 0.0]] * 2, dtype=torch.float64)
    past = torch.tensor([[-4.0, 4.0, 0.0], [4.0, 0.0, 0.0]], dtype=torch.float64)
    measured(criterion, past.requires_grad_(), y, visits=20)
    weight, _ = measured(criterion, now.clone().requires_grad_(), y)
    assert weight[0] < 0.2 * weight[1]
    by_gce, _ = measured(methods.gce(), now.clone().requires_grad_(), y)
    assert by_gce[0] == by_gce[1]


# --- 4. labels ---------------------------------------------------------------------------------------------------


def test_soft_bootstrapping_with_a_constant_guess_is_one_weight_for_all():
    u, y, _ = case()
    weight, cosine = measured(Compensated(label=Toward(prediction, 0.3)), u, y)
    torch.testing.assert_close(weight, 0.7 * ones())
    torch.testing.assert_close(cosine, ones())


def test_hard_bootstrapping_changes_nothing_where_the_model_agrees_and_turns_the_gradient_elsewhere():
    u, y, _ = case()
    p = u.detach().softmax(-1)
    agrees = p.argmax(-1) == y
    weight, cosine = measured(methods.bootstrap_hard(beta=0.6), u, y)
    torch.testing.assert_close(weight[agrees], torch.ones_like(weight[agrees]))
    decided = F.one_hot(p.argmax(-1), 4)
    expected = 0.6 * (p - F.one_hot(y, 4)) + 0.4 * (p - decided)
    torch.testing.assert_close(weight, expected.norm(dim=-1) / (p - F.one_hot(y, 4)).norm(dim=-1))
    assert 0 < agrees.sum() < 40
    assert weight[~agrees].max() < 1
    assert cosine[~agrees].min() < 0.9


def test_smoothed_labels_turn_the_gradient_around_once_the_model_is_surer_than_the_label():
    u = torch.tensor([[1.0, 0.0], [5.0, 0.0]], dtype=torch.float64, requires_grad=True)
    _, cosine = measured(methods.label_smoothing(lam=0.2), u, torch.tensor([0, 0]))
    torch.testing.assert_close(cosine, torch.tensor([1.0, -1.0], dtype=torch.float64))


def test_data_ambiguation_drops_a_sample_whose_label_is_one_of_two_plausible_classes():
    u = torch.tensor([[0.0, 3.0, 0.0], [0.3, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    weight, _ = measured(methods.data_ambiguation(beta=0.7, beta_end=None), u, torch.tensor([0, 0]))
    assert weight[0] < 0.02
    assert weight[1] > 0.5


# --- 5. pulls ----------------------------------------------------------------------------------------------------


def test_a_pull_of_two_classes_is_a_weight_that_comes_back_for_very_large_losses():
    t = torch.linspace(3, -30, 40, dtype=torch.float64)
    u = torch.stack([t, torch.zeros_like(t)], -1).requires_grad_()
    p = torch.sigmoid(t)
    weight, cosine = measured(Compensated(logit=Pull(5.0)), u, torch.zeros(40, dtype=torch.long))
    after = torch.sigmoid(t + 10 * (1 - p))
    torch.testing.assert_close(weight, (1 - after) / (1 - p))
    torch.testing.assert_close(cosine, ones())
    assert weight[-1] > 0.99, "a loss far beyond twice eta counts fully again"
    assert weight.min() < 0.05


def test_a_pull_of_many_classes_turns_the_gradient():
    u, y, _ = case()
    _, cosine = measured(Compensated(logit=Pull(5.0)), u, y)
    assert cosine.min() < 0.9


# --- 6. losses and gradients -------------------------------------------------------------------------------------


def test_early_learning_regularization_may_point_the_other_way():
    """Its memory holds another class than the label; the pull of that class outweighs the label."""
    criterion = methods.elr(num_samples=1, num_classes=3).double()
    u = torch.tensor([[0.0, 4.5, 0.0]], dtype=torch.float64, requires_grad=True)
    _, cosine = measured(criterion, u, torch.tensor([0]), visits=30)
    assert cosine.item() < 0


def test_clipped_gradients_are_a_weight():
    u, y, _ = case()
    length = (u.detach().softmax(-1) - F.one_hot(y, 4)).norm(dim=-1)
    weight, cosine = measured(methods.gradient_clip(c=0.5), u, y)
    torch.testing.assert_close(weight, (0.5 / length).clamp(max=1))
    torch.testing.assert_close(cosine, ones())


def test_a_floor_under_the_loss_weighs_the_whole_batch_by_zero_or_one():
    u, y, _ = case()
    low = torch.autograd.grad(methods.loss_bound(num_classes=4, bound=99.0)(u, y), u)[0]
    high = torch.autograd.grad(methods.loss_bound(num_classes=4, bound=0.0)(u, y), u)[0]
    assert low.abs().max() < 1e-12
    torch.testing.assert_close(high, torch.autograd.grad(F.cross_entropy(u, y), u)[0])


def test_self_paced_learning_is_a_slack_turned_around():
    """A slack max(0, l - xi) keeps the hard samples, self-paced learning the easy ones: weights 1[l > xi] and 1[l < lambda]."""
    from compensate.terms import Slack

    u, y, p = case()
    weight, _ = measured(Compensated(loss=Slack(1.0)), u, y)
    torch.testing.assert_close(weight, (-p.log() > 1).double())
