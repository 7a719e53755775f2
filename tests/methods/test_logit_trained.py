"""Imbalance methods on a long tail of digits: what they do to the loss of each class, and what it is good for."""

from __future__ import annotations

import matplotlib as mpl
import pytest
import torch

from compensate import InputError
from compensate.core.taxonomy import relative_change_by_class
from compensate.plots import plot_change_by_class

pytestmark = pytest.mark.slow

EPOCHS, BATCH, SEEDS = 30, 64, (0, 1)


def test_the_picture_shows_the_largest_class_first():
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    ax = plot_change_by_class(torch.tensor([0.5, -0.2, 0.1]), class_counts=[5, 80, 20])
    assert [bar.get_height() for bar in ax.patches] == pytest.approx([-0.2, 0.1, 0.5])
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["1", "2", "0"]
    colors = {bar.get_facecolor() for bar in ax.patches}
    assert len(colors) == 2
    assert plot_change_by_class(torch.tensor([0.5, -0.2, 0.1]), ax=ax) is ax
    plt.close(ax.figure)
    with pytest.raises(InputError, match="class_counts"):
        plot_change_by_class(torch.zeros(3), class_counts=[1, 2])
    with pytest.raises(InputError, match="no state"):
        relative_change_by_class([])
