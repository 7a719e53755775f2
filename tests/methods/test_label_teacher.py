"""Labels from another model: guess_label and distillation."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compensate import InputError
from compensate.methods import distillation, guess_label


@pytest.fixture
def case():
    u = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    return u, torch.randint(4, (6,)), torch.randperm(10)[:6], torch.randn(10, 4, dtype=torch.float64)


@pytest.mark.parametrize("lam", [0.0, 0.4, 1.0])
def test_labels_move_toward_the_guess(case, lam):
    u, y, i, z = case
    ours = guess_label(guess=z.softmax(-1), lam=lam)(u, y, i)
    expected = (1 - lam) * F.cross_entropy(u, y) + lam * F.cross_entropy(u, z.softmax(-1)[i])
    assert torch.allclose(ours, expected)
    assert torch.allclose(torch.autograd.grad(ours, u)[0], torch.autograd.grad(expected, u)[0])


def test_a_guess_of_classes_and_a_model_give_what_its_predictions_give(case, tiny, batch):
    u, y, i, z = case
    classes = guess_label(guess=z.argmax(-1), num_classes=4)(u, y, i)
    assert torch.allclose(classes, 0.5 * F.cross_entropy(u, y) + 0.5 * F.cross_entropy(u, z.argmax(-1)[i]))
    x, y, i = batch
    other = copy.deepcopy(tiny).eval()
    rows = torch.zeros(9, 3).double().index_copy_(0, i, other(x).softmax(-1).detach())
    by_model = guess_label(guess=copy.deepcopy(tiny)).evaluate(tiny, x, y).loss
    assert torch.allclose(by_model, guess_label(guess=rows).evaluate(tiny, x, y, i).loss)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_both_forms_of_distillation_share_the_gradient_and_not_the_value(case, temperature):
    u, y, i, z = case
    lam, t = 0.7, temperature
    forms = [distillation(teacher=z, lam=lam, temperature=t, form=form)(u, y, i) for form in ("label", "classic")]
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
    s = distillation(teacher=20 * z, lam=3.0, temperature=1.0).evaluate(nn.Identity(), u, y, i)
    target = F.one_hot(y, 4) + 3.0 * ((20 * z[i]).softmax(-1) - u.detach().softmax(-1))
    assert (target < 0).any()
    assert torch.allclose(s.losses, -(target * u.log_softmax(-1)).sum(-1))


def test_a_teacher_that_is_a_model_needs_the_input(tiny):
    with pytest.raises(InputError, match=r"criterion\.evaluate"):
        distillation(teacher=tiny)(torch.randn(2, 3), torch.tensor([0, 1]))


@pytest.mark.parametrize(
    "bad",
    [
        lambda: distillation(teacher=torch.zeros(3)),
        lambda: distillation(teacher=torch.zeros(3, 2), form="old"),
        lambda: distillation(teacher=torch.zeros(3, 2), temperature=0.0),
        lambda: guess_label(guess=torch.zeros(3).long()),
        lambda: guess_label(guess=torch.zeros(3, 2), lam=1.1),
    ],
)
def test_bad_settings_are_refused(bad):
    with pytest.raises(InputError):
        bad()
