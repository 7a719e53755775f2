"""Deep self-learning: prototypes by loops, labels from them, epochs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from compensate import METHODS, InputError
from compensate.methods import deep_self_learning
from compensate.methods.label_correction import Prototypes, choose_prototypes


def cosine(a, b):
    return float(a @ b / (a.norm() * b.norm()))


def naive_choice(z, count, rank, limit):
    m = len(z)
    similar = [[cosine(z[i], z[j]) for j in range(m)] for i in range(m)]
    flat = sorted(v for row in similar for v in row)
    critical = flat[min(int(rank * m * m), m * m - 1)]
    sign = [[(v > critical) - (v < critical) for v in row] for row in similar]
    density = [sum(row) for row in sign]
    eta = []
    for i in range(m):
        denser = [similar[i][j] for j in range(m) if density[j] > density[i]]
        eta.append(max(denser) if denser else min(similar[i]))
    order = sorted(range(m), key=lambda i: (eta[i] >= limit, -density[i], i))
    return order[:count]


@pytest.mark.parametrize("limit", [0.6, 0.95])
@pytest.mark.parametrize("m", [1, 5, 25])
def test_prototypes_are_chosen_as_by_loops(m, limit):
    z = torch.randn(m, 4).double() + torch.tensor([2.0, 0, 0, 0])
    assert choose_prototypes(z, 4, 0.4, limit).tolist() == naive_choice(z, 4, 0.4, limit)


def test_labels_follow_the_prototypes_of_the_previous_epoch(tiny):
    n = 24
    x, y = torch.randn(n, 4).double(), torch.arange(n) % 3
    criterion = deep_self_learning(num_samples=n, num_classes=3, feature_dim=6, count=2, alpha=0.4, start=1).double()
    assert criterion.taxonomy == METHODS["deep_self_learning"].taxonomy
    prototypes = None
    for epoch in range(3):
        kept = {}
        for i in torch.randperm(n).split(9):
            z = tiny.features(x[i]).detach()
            target = F.one_hot(y[i], 3).double()
            if prototypes is not None:
                scores = [[sum(cosine(a, b) for b in ps) / len(ps) for ps in prototypes] for a in z]
                guess = F.one_hot(torch.tensor(scores).argmax(-1), 3)
                target = 0.6 * target + 0.4 * guess
            s = criterion.evaluate(tiny, x[i], y[i], i)
            assert torch.allclose(s.loss, F.cross_entropy(s.u, target), atol=1e-6), epoch
            kept |= dict(zip(i.tolist(), z, strict=True))
        criterion.end_epoch()
        statistic = next(s for s in criterion.statistics() if isinstance(s, Prototypes))
        order = sorted(kept, key=statistic.slot.tolist().__getitem__)  # of equal densities the first slot wins
        groups = [torch.stack([kept[j] for j in order if y[j] == c]) for c in range(3)]
        prototypes = [g[choose_prototypes(g, 2)] for g in groups]
        for ours, theirs in zip(statistic.prototypes, prototypes, strict=True):
            assert torch.allclose(ours, F.normalize(theirs, dim=-1), atol=1e-6)


def test_a_class_without_samples_is_never_guessed(tiny, batch):
    x, _, i = batch
    y = torch.tensor([0, 1, 0, 1, 0])
    criterion = deep_self_learning(num_samples=9, num_classes=3, feature_dim=6, alpha=1.0, start=1).double()
    criterion.evaluate(tiny, x, y, i)
    criterion.end_epoch()
    s = criterion.evaluate(tiny, x, y, i)
    assert ((s.y + s.dy)[:, 2] == 0).all()


@pytest.mark.parametrize("bad", [{"start": 0}, {"count": 0}, {"sampled": 0}])
def test_bad_settings_are_refused(bad):
    with pytest.raises(InputError):
        deep_self_learning(num_samples=9, num_classes=3, feature_dim=2, **bad)
