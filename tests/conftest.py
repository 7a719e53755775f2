"""Shared fixtures: one thread, seeded random numbers, small models."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from tiny import TinyNet


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: collections of garbage, which some trainers ask for, pass over them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _deterministic(request: pytest.FixtureRequest) -> None:
    """Every test starts from the same random numbers, in whatever order tests are run."""
    torch.set_num_threads(1)
    torch.default_generator.manual_seed(0)  # `torch.manual_seed` also notes where it was called, for each kind of GPU
    if isinstance(generator := getattr(request.module, "RNG", None), np.random.Generator):
        generator.bit_generator.state = np.random.default_rng(0).bit_generator.state


@pytest.fixture(autouse=True)
def _cached_embeddings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the user's own cache; shared by the tests of a session, which encode the same few texts."""
    monkeypatch.setenv("COMPENSATE_CACHE", str(tmp_path_factory.getbasetemp() / "embeddings"))


@pytest.fixture(scope="module")
def small_learners() -> Iterator[None]:
    """Enough trees for a few hundred rows, and one division into folds; more take as many times as long."""
    from compensate.auditing import learners

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learners, "TREES", 16)
        patch.setattr(learners, "REPEATS", 1)
        yield


@pytest.fixture
def tiny() -> TinyNet:
    return TinyNet().double()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, classes and indices of five samples out of nine, in double precision."""
    return torch.randn(5, 4).double(), torch.tensor([0, 2, 1, 2, 0]), torch.tensor([3, 8, 0, 5, 1])
