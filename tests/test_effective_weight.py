"""Weighting and compensating, compared: a test for each statement of the concepts page."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from compensate import Compensated, methods
from compensate.core.taxonomy import effective_weight


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


# --- 2. a shift of the given logit is a weight, and every weight is such a shift --------------------------------


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


# --- 4. labels ---------------------------------------------------------------------------------------------------


# --- 5. pulls ----------------------------------------------------------------------------------------------------


# --- 6. losses and gradients -------------------------------------------------------------------------------------
