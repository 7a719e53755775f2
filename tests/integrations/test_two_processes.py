"""Two processes train as one, under each library that starts them."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("lightning")
pytest.importorskip("transformers")

import pair

from processes import run_pair

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two processes hold in the end."""
    out = tmp_path_factory.mktemp("pair")
    run_pair(
        out, pair.train_all, out,
        LOCAL_WORLD_SIZE="2", GROUP_RANK="0", TORCHELASTIC_RUN_ID="pair", ACCELERATE_USE_CPU="true",
    )  # fmt: skip
    return out


def test_two_processes_are_one(found):
    """One test, so that workers side by side do not each start two processes. Samples that fill up a last batch count once."""
    for library, method, case in pair.runs():
        expected = pair.tensors(*pair.plain(method, pair.as_one(library, case)))
        visits = expected["record.visits"]
        assert visits.max() == pair.EPOCHS
        assert case.drop_last or visits.min() == pair.EPOCHS
        for rank in range(2):
            held = torch.load(found / pair.stored(library, method, case, rank))
            assert held.keys() == expected.keys()
            for name, value in expected.items():
                where = f"{library} {method} {case} {rank} {name}"
                torch.testing.assert_close(held[name], value, rtol=1e-4, atol=1e-5, msg=lambda m, w=where: f"{w}: {m}")
