"""Tables that are kept sparse come back from the checkpoints of others too."""

from __future__ import annotations

import copy

import pytest
import torch

from compensate import methods
from compensate.integrations import CriterionHooks
from compensate.training import checkpoint


@pytest.mark.parametrize("store", ["dense", "sparse"])
def test_any_store_comes_back(store, tmp_path):
    def made():
        return CriterionHooks(methods.logcomp(num_samples=40, num_classes=3, table=store))

    def steps(criterion, batches):
        return [float(criterion(u, y, k)) for u, y, k in batches]

    generator = torch.Generator().manual_seed(0)
    index = [torch.randperm(40, generator=generator)[:8] for _ in range(6)]
    batches = [(torch.randn(8, 3, generator=generator) * 3, k % 3, k) for k in index]
    whole, first = made(), made()
    expected = steps(whole.criterion, batches)
    steps(first.criterion, batches[:3])
    checkpoint.save_checkpoint(tmp_path, 3, first.state_dict())  # as the trainer of Hugging Face is given it
    torch.save(first.state_dict(), tmp_path / "state.pt")  # as Lightning and accelerate write it
    for state in (checkpoint.latest(tmp_path), torch.load(tmp_path / "state.pt", weights_only=True)):
        again = made()
        again.load_state_dict(copy.deepcopy(state))
        assert steps(again.criterion, batches[3:]) == pytest.approx(expected[3:])
