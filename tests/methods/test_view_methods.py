"""Views: mixtures of an input and its transformations, the worst of them, and labels that follow another view."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from compensate import Compensated, InputError
from compensate.core.taxonomy import measured, overall_sign
from compensate.core.views import DEFAULT, Views, blurred, darkened, moved, shifted
from compensate.methods import augmix, view_consistency, worst_of_k
from compensate.terms import L1, Adversarial, Sample
from compensate.terms.views import ExtremeView, RandomMix


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
    s = worst_of_k().evaluate(model, x, y)
    torch.testing.assert_close(s.losses, torch.stack(losses).amax(0))
    best = Compensated(view=ExtremeView(-1), views=Views(*DEFAULT)).evaluate(model, x, y)
    torch.testing.assert_close(best.losses, torch.stack(losses).amin(0))
    assert overall_sign(measured(s)) == "negative"
    assert overall_sign(measured(best)) == "positive"


@pytest.mark.parametrize("lam", [0.0, 0.4, 1.0])
def test_consistency_between_views_is_label_compensation(lam):
    """The gradient is that of cross entropy and of the divergence from what is said of the other views, in shares."""
    model, x, y, _ = case()
    found = torch.autograd.grad(view_consistency(lam=lam).evaluate(model, x, y).loss, list(model.parameters()))
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
        augmix()(model(x), y)
    with pytest.raises(InputError, match="views="):
        Compensated(view=RandomMix())
    both = Compensated(view=ExtremeView(), views=Views(shifted)) + Compensated()
    assert both.views is not None
    with pytest.raises(InputError, match="different views"):
        augmix() + worst_of_k()
    with pytest.raises(InputError, match="at least one"):
        Views()
    with pytest.raises(InputError, match="alpha"):
        augmix(alpha=0)
    with pytest.raises(InputError, match="sign"):
        ExtremeView(0)
