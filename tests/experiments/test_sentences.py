"""Texts with large compensation: planted errors come first, and are written safely."""

from __future__ import annotations

import numpy as np
import pytest

from compensate.data import Dataset, Splits
from compensate.training.config import Config
from compensate.training.fitting import fit
from experiments import sentences as s

pytestmark = pytest.mark.slow

PLANTED = (5, 40, 77, 101)
GOOD, BAD = ["good", "fine", "lovely", "bright", "warm"], ["bad", "poor", "awful", "dull", "cold"]


def corpus(n=120):
    """Texts whose words tell their class, but for a few labels that are wrong."""
    draw = np.random.default_rng(0)
    target = np.arange(n) % 2
    texts = [" ".join(draw.choice(GOOD if y else BAD, 4)) + f" film {i}" for i, y in enumerate(target)]
    target = target.copy()
    target[[i for i in PLANTED if i < n]] ^= 1
    return Dataset(np.array(texts, dtype=object), target, ("negative", "positive"))


TINY = Config(
    data="planted", method="logcomp", model="bilstm", model_options={"hidden": 8}, epochs=6, batch_size=16, lr=0.01,
    validation=0.0, test=0.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def found():
    return s.find_sentences(TINY, seeds=2, top=6, data=Splits(corpus()))


def test_planted_errors_come_first_with_the_right_suggestion(found):
    assert {row.index for row in found.top[: len(PLANTED)]} == set(PLANTED)
    truth = np.arange(120) % 2
    for rank, row in enumerate(found.top, start=1):
        assert row.rank == rank
        if row.index in PLANTED:
            assert row.suggested == ("negative", "positive")[truth[row.index]] != row.given
            assert row.contradicted == 2
    sizes = [row.size for row in found.top]
    assert sizes == sorted(sizes, reverse=True)
    assert found.texts == 120


def test_sizes_are_means_over_trainings_and_epochs(found):
    """The oracle adds up what every step of two trainings gave each sample."""
    given = np.zeros(120)

    def add(state):
        np.add.at(given, state.index.numpy(), state.du.detach().abs().sum(1).numpy())

    for seed in (0, 1):
        fit(TINY.but(seed=seed), data=Splits(corpus()), on_step=add)
    for row in found.top:
        assert row.size == pytest.approx(given[row.index] / (2 * TINY.epochs), abs=1e-4)
    assert set(np.argsort(-given)[:6]) == {row.index for row in found.top}
