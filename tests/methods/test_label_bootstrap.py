"""Labels that give way to the model's own predictions: the losses of their papers, written out."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from compensate import METHODS, InputError
from compensate.methods import bootstrap_hard, bootstrap_soft, mix_bootstrap, proselflc


def logits(b=6, c=4, scale=2.0):
    return (scale * torch.randn(b, c, dtype=torch.float64)).requires_grad_(), torch.randint(c, (b,))


def agree(ours, theirs, u, atol=1e-8):
    assert torch.allclose(ours, theirs, atol=atol)
    ours, theirs = (torch.autograd.grad(loss, u, retain_graph=True)[0] for loss in (ours, theirs))
    assert torch.allclose(ours, theirs, atol=atol)


def test_soft_is_the_loss_of_reed_and_regularizes_entropy():
    u, y = logits()
    p, logp = u.softmax(-1), u.log_softmax(-1)
    entropy = -(p * logp).sum(-1).mean()
    agree(bootstrap_soft(beta=0.8)(u, y), 0.8 * F.cross_entropy(u, y) + 0.2 * entropy, u)
    assert torch.autograd.gradcheck(lambda u: bootstrap_soft(beta=0.8)(u, y), u)


def test_hard_is_the_loss_of_reed():
    u, y = logits()
    agree(bootstrap_hard()(u, y), 0.8 * F.cross_entropy(u, y) + 0.2 * F.cross_entropy(u, u.argmax(-1)), u)


@pytest.mark.parametrize("make", [bootstrap_soft, bootstrap_hard])
def test_guess_of_the_previous_epoch(make):
    criterion = make(num_samples=9, num_classes=4, beta=0.6, guess="previous_epoch")
    y, last = torch.randint(4, (9,)), {}
    for _ in range(3):
        for i in torch.randperm(9).split(4):
            u, _ = logits(len(i))
            target = F.one_hot(y[i], 4).double()
            for row, j in enumerate(i.tolist()):
                if j in last:
                    guess = last[j] if make is bootstrap_soft else F.one_hot(last[j].argmax(), 4)
                    target[row] = 0.6 * target[row] + 0.4 * guess
            agree(criterion(u, y[i], i), F.cross_entropy(u, target), u, atol=1e-6)
            last |= dict(zip(i.tolist(), u.detach().softmax(-1), strict=True))
        criterion.end_epoch()


@pytest.mark.parametrize("conf", ["all", "correct"])
def test_mix_bootstrap_in_between_is_equation_54(conf):
    criterion, means = mix_bootstrap(num_classes=3, alpha=0.4, beta=0.3, conf=conf), torch.full((3, 3), 1 / 3).double()
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
    criterion = proselflc(sharpness=10.0, middle=0.4, detach=detach).start(5)
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


def test_proselflc_knows_when_it_is_not_told_the_length():
    with pytest.raises(InputError, match="start"):
        proselflc()(torch.randn(2, 3), torch.tensor([0, 1]))


@pytest.mark.parametrize(
    "bad",
    [
        lambda: bootstrap_soft(guess="previous_epoch"),
        lambda: bootstrap_soft(guess="next"),
        lambda: bootstrap_hard(beta=1.2),
        lambda: mix_bootstrap(num_classes=3, beta=2.0),
        lambda: proselflc(sharpness=-1.0),
    ],
)
def test_bad_settings_are_refused(bad):
    with pytest.raises(InputError):
        bad()
