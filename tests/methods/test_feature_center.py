"""Features toward the center of their class."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compensate import InputError
from compensate.methods import center_feature


def test_centers_are_running_means_and_inputs_go_part_of_the_way():
    model = nn.Linear(4, 3).double()
    criterion = center_feature(num_classes=3, feature_shape=(4,), lam=0.3).double()
    seen, labels = np.zeros((0, 4)), np.zeros(0)
    for step in range(3):
        x, y = torch.randn(6, 4).double(), torch.tensor([0, 0, 1, 1, 2, 2] if step else [0, 0, 1, 1, 1, 0])
        s = criterion.evaluate(model, x, y)
        expected = np.zeros((6, 4))
        for i in range(6):
            mine = seen[labels == y[i].item()]
            if len(mine):
                expected[i] = 0.3 * (mine.mean(0) - x[i].numpy())
        assert np.allclose(s.dx.numpy(), expected, atol=1e-6)
        assert torch.allclose(s.loss, F.cross_entropy(model(x + torch.tensor(expected)), y), atol=1e-6)
        assert (expected[y == 2] == 0).all() == (step < 2), "a class is left alone until it has been seen"
        seen, labels = np.concatenate([seen, x.numpy()]), np.concatenate([labels, y.numpy()])
        if step == 1:
            criterion.end_epoch()


def test_only_the_worst_may_move():
    model = nn.Linear(4, 3)
    x, y = torch.randn(20, 4), torch.arange(20) % 3
    criterion = center_feature(num_classes=3, feature_shape=(4,), lam=0.5, pro=25)
    for _ in range(2):
        s = criterion.evaluate(model, x, y)
    moved = s.dx.abs().sum(1) > 0
    assert moved.sum() == 5
    assert s.plain_losses[moved].min() > s.plain_losses[~moved].max()


def test_another_shape_is_refused():
    with pytest.raises(InputError, match="feature_shape"):
        center_feature(num_classes=3, feature_shape=(5,)).evaluate(
            nn.Linear(4, 3), torch.randn(2, 4), torch.tensor([0, 1])
        )
