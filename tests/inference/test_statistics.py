"""Records and means against loops that keep everything."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
import torch.nn.functional as F

from compensate import Compensated
from compensate.terms import ClassMean, Evidence, Pull, Toward


def batches(epochs, n=12, c=3, size=5):
    g = torch.Generator().manual_seed(4)
    y = torch.randint(c, (n,), generator=g)
    for epoch in range(epochs):
        for i in torch.randperm(n, generator=g).split(size):
            yield epoch, torch.randn(len(i), c, generator=g), y[i], i


@pytest.mark.parametrize("conf", ["all", "correct"])
def test_class_means_are_those_of_the_previous_epoch(conf):
    mean = ClassMean(3, conf)
    criterion = Compensated(label=Toward(mean, 0.5))
    expected, sums, current = torch.full((3, 3), 1 / 3), [[] for _ in range(3)], 0
    for epoch, u, y, _ in batches(3):
        if epoch != current:
            criterion.end_epoch()
            expected = torch.stack([torch.stack(s).mean(0) if s else torch.full((3,), 1 / 3) for s in sums])
            sums, current = [[] for _ in range(3)], epoch
        loss = criterion(u, y)
        target = 0.5 * F.one_hot(y, 3) + 0.5 * expected[y]
        assert torch.allclose(loss, F.cross_entropy(u, target), atol=1e-6)
        for p, label in zip(u.softmax(-1), y, strict=True):
            if conf == "all" or p.argmax() == label:
                sums[label].append(p)


def test_evidence_is_the_mean_over_visits():
    criterion = Compensated(logit=Pull(2.0), record=Evidence(12))
    sizes, losses, margins = ({i: [] for i in range(12)} for _ in range(3))
    for _, u, y, i in batches(3):
        criterion(u, y, i)
        for uj, yj, j in zip(u, y, i.tolist(), strict=True):
            sizes[j].append((2 * (F.one_hot(yj, 3) - uj.softmax(-1))).abs().sum())
            losses[j].append(F.cross_entropy(uj, yj))
            margins[j].append(uj[yj] - max(uj[c] for c in range(3) if c != yj))
    for name, kept in (("size", sizes), ("loss", losses), ("margin", margins)):
        expected = torch.stack([torch.stack(kept[j]).mean() for j in range(12)])
        assert torch.allclose(criterion.record.mean(name), expected, atol=1e-5), name


def test_suspects_are_ranked_suggested_and_flagged():
    criterion = Compensated(record=Evidence(6))
    empty = repr(criterion.suspects())
    assert "nothing was seen in training; train for some epochs before you call this" in empty
    assert "not judged" not in empty, "it is said once"
    u = torch.tensor([[9.0, 0.0, 1.0], [0.0, 9.0, 0.0], [0.0, 0.0, 1.0]])
    criterion(u, torch.tensor([1, 1, 2]), torch.tensor([4, 0, 2]))
    found = criterion.suspects()
    assert found.index.tolist() == [4, 2, 0]
    assert found.suggested[0] == 0
    assert found.flagged.tolist() == [True, False, False]
    assert criterion.suspects(top=1).index.tolist() == [4]


def test_a_record_says_how_many_labels_it_judges_and_that_it_is_early():
    criterion = Compensated(record=Evidence(4))
    u, y = torch.eye(4)[:, :3], torch.tensor([0, 1, 2, 1])
    criterion(u[:3], y[:3], torch.arange(3))
    assert "1 of 4 labels are not judged" in repr(criterion.suspects(top=1))
    assert "nothing was seen" not in repr(criterion.suspects(top=0))
    criterion(u[3:], y[3:], torch.tensor([3]))
    found = criterion.suspects()  # after one whole epoch
    assert found.early
    assert "early: labels were seen at most once on average" in repr(found)
    criterion(u, y, torch.arange(4))
    assert not criterion.suspects().early
    assert "early" not in repr(criterion.suspects())


def test_a_record_of_more_rows_than_are_trained_on_is_early_by_those_it_has_seen():
    criterion, y = Compensated(record=Evidence(1000)), torch.arange(100) % 3
    for visits in (1, 2):
        criterion(torch.eye(3)[y], y, torch.arange(100))
        assert criterion.suspects().early == (visits == 1), visits
    assert "900 of 1000 labels are not judged" in repr(criterion.suspects())


def test_a_record_that_skips_the_first_epochs_is_not_early():
    criterion = Compensated(record=Evidence(2, skip=1))
    for _ in range(2):
        criterion(torch.eye(2), torch.tensor([0, 1]), torch.arange(2))
        criterion.end_epoch()
    assert criterion.suspects().total == 2
    assert not criterion.suspects().early


@pytest.mark.parametrize("classes", [3, 20_000])  # small batches wait, large ones do not
def test_an_index_that_is_the_place_in_the_batch_is_noticed_once(classes):
    torch.manual_seed(0)
    labels = torch.arange(60) % 3
    right, wrong = (Compensated(record=Evidence(60)) for _ in range(2))
    noticed = []
    for _ in range(4):
        for rows in torch.randperm(60).split(6):
            u = torch.randn(6, classes) + 9 * (torch.arange(classes) < 3)
            right(u, labels[rows], rows)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                wrong(u, labels[rows], torch.arange(6))
                wrong.record.flush()
            noticed += [str(warning.message) for warning in caught]
    right.record.flush()
    assert len(noticed) == 1
    assert re.match(r"row \d has label \d now and had another one before: .*compensate.data.Indexed", noticed[0])


def test_every_buffer_says_how_copies_merge():
    for statistic in (ClassMean(3), Evidence(4)):
        assert set(statistic.merges) == {name for name, _ in statistic.named_buffers()}


def test_a_statistic_that_asks_first_leaves_the_gradient_to_the_terms():
    """Statistics look without gradients; a term that reads the same prediction later must still have its own."""
    u = torch.randn(4, 3, requires_grad=True)
    criterion = Compensated(label=Toward(ClassMean(3), 0.0), loss=lambda s: s.p.square().sum(-1))
    y = torch.tensor([0, 1, 2, 0])
    (ours,) = torch.autograd.grad(criterion(u, y), u)
    (expected,) = torch.autograd.grad(F.cross_entropy(u, y) + u.softmax(-1).square().sum(-1).mean(), u)
    assert torch.allclose(ours, expected, atol=1e-6)
