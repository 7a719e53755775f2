"""LogComp, Eq. 43: its optimum at fixed logits, its updates, its presets."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from compensate import InputError
from compensate.core.proximal import soft_threshold
from compensate.methods import logcomp


def optimum(u, y, lam, steps=20_000, lr=1.0):
    """The table rows after many visits with the logits held fixed."""
    criterion = logcomp(num_samples=len(u), num_classes=u.shape[1], lam=lam, lr=lr).to(u.dtype)
    criterion.record, criterion.check = None, "off"
    table, i = next(criterion.tables()), torch.arange(len(u))
    for step in range(steps):
        before = table.weight.clone()
        criterion(u, y, i)
        if step % 50 == 0 and (table.weight - before).abs().max() < 1e-10:
            break
    return table.weight.clone()


def kkt_residual(u, v, y, lam):
    """(B,) how far zero is from the subdifferential of Eq. 43 at v."""
    g, lam = (u + v).softmax(-1) - F.one_hot(y, u.shape[1]), lam[:, None]
    at_zero = (g.abs() - lam).clamp(min=0)
    return torch.where(v == 0, at_zero, (g + lam * v.sign()).abs()).amax(1)


@pytest.mark.slow
@pytest.mark.parametrize(("c", "scale"), [(2, 3.0), (2, 30.0), (3, 0.3), (3, 3.0), (3, 30.0), (6, 3.0)])
def test_optimum_satisfies_the_kkt_conditions_for_any_logits(c, scale):
    """For large logits the path to the optimum moves other classes too and is flat: after t steps of size 3.9 the
    residual is about 1 / (3.9 t), so that 26,000 visits do for any logits. Rows leave as they arrive."""
    u = scale * torch.randn(60, c, dtype=torch.float64)
    y, lam = torch.randint(c, (60,)), 0.9 * torch.rand(60, dtype=torch.float64) + 0.05
    v, onehot = torch.zeros_like(u), F.one_hot(y, c)
    for step in range(30_000):
        v = soft_threshold(v - 3.9 * ((u + v).softmax(-1) - onehot), 3.9 * lam)
        if step % 100 == 0:
            open_rows = kkt_residual(u, v, y, lam) > 1e-5
            if not open_rows.any():
                break
            u, v, y, lam, onehot = (t[open_rows] for t in (u, v, y, lam, onehot))
    assert not open_rows.any(), f"{open_rows.sum()} rows, residual {kkt_residual(u, v, y, lam).max():.1e}"


@pytest.mark.parametrize("lam", [0.05, 0.25, 0.6])
@pytest.mark.parametrize("c", [3, 5, 10])
def test_closed_form_and_exact_zeros(c, lam):
    u = 6 * torch.rand(20, c, dtype=torch.float64) - 3
    y = torch.randint(c, (20,))
    v = optimum(u, y, lam)
    p = u.softmax(-1).gather(1, y[:, None])[:, 0]
    expected = (torch.logit(torch.tensor(1 - lam).double()) - torch.logit(p)).clamp(min=0)
    assert torch.allclose(v.gather(1, y[:, None])[:, 0], expected, atol=1e-6)
    assert (v.scatter(1, y[:, None], 0.0) == 0).all()


def test_presets_read_the_papers_learning_rate_both_ways():
    mean = next(logcomp(num_samples=4, num_classes=3, preset="paper", batch_size=64).tables())
    single = next(logcomp(num_samples=4, num_classes=3, preset="paper-per-sample").tables())
    assert mean.lr == pytest.approx(3 / 64)
    assert single.lr == 3
    assert mean.update == single.update == "subgradient"
    assert mean.penalty.lam == single.penalty.lam == 0.25
    own = next(logcomp(num_samples=4, num_classes=3, preset="paper", lam=0.35).tables())
    assert (own.penalty.lam, own.lr) == (0.35, 3 / 128), "what is given wins"
    with pytest.raises(InputError, match='preset is "papr"'):
        logcomp(num_samples=4, num_classes=3, preset="papr")
