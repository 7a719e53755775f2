"""Two processes are one: losses, metrics, tables, statistics and weights, for every method."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from compensate import METHODS, methods
from compensate.training import Exchange, together
from processes import run_pair

pytestmark = pytest.mark.xdist_group("distribution")  # one pair of processes serves all
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import replicas  # noqa: E402


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """What two processes found, for all methods, in files."""
    out = tmp_path_factory.mktemp("two")
    run_pair(out, replicas.train_all, out, list(METHODS))
    return out


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_two_processes_are_one(method, two):
    expected = replicas.tensors(*replicas.train(method))
    found = load_file(two / f"{method}.safetensors")
    assert expected.keys() == found.keys()
    assert len(expected["losses"]) >= 10
    for name, value in expected.items():
        assert torch.allclose(found[name].double(), value.double(), rtol=1e-5, atol=1e-5), name


@pytest.mark.slow
@pytest.mark.parametrize("method", replicas.INTERRUPTED)
def test_a_checkpoint_in_the_middle_of_an_epoch_changes_nothing(method, two):
    whole, resumed = (load_file(two / f"{method}{kind}.safetensors") for kind in ("", ".resumed"))
    assert torch.equal(whole["losses"][replicas.STOP :], resumed["losses"])
    assert [name for name in whole if name != "losses" and not torch.equal(whole[name], resumed[name])] == []


@pytest.mark.slow
@pytest.mark.parametrize("method", ["logcomp", "isda"])
def test_one_process_can_go_on_with_what_two_began(method, two, tmp_path):
    """The checkpoint of a run in two processes, in the middle of an epoch, is that of a run in one."""
    expected = replicas.tensors([], replicas.train(method)[1])
    shutil.copytree(two / f"{method}-begun", tmp_path / "run")
    rest, resumed = replicas.train(method, tmp_path / "run", resume=True)
    found = replicas.tensors([], resumed)
    assert len(rest) == 12 - replicas.STOP
    for name, value in expected.items():
        assert torch.allclose(found[name].double(), value.double(), rtol=1e-5, atol=1e-5), name


@pytest.mark.slow
@pytest.mark.parametrize("name", replicas.LOOPS)
def test_texts_with_compensated_words_and_loops_of_ones_own(name, two):
    expected, found = replicas.LOOPS[name](), load_file(two / f"{name}.safetensors")
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        near = 2e-3 if value.dtype == torch.float16 else 1e-5  # sums in 16 bits depend on what is added up together
        assert torch.allclose(found[key].double(), value.double(), rtol=near, atol=near), key


def _own_loop(out: Path, way: str) -> None:
    """A loop in two processes, each with its slice of the batch; what is warned of goes to a file."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    index = torch.arange(4) + 4 * rank
    batch = (torch.randn(4, 3, requires_grad=True), index % 3, index)
    criterion = methods.focal() if way == "nothing kept" else methods.base(num_samples=8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exchange = Exchange(criterion) if way == "Exchange" else None
        for _ in range(3):
            criterion(*(together(*batch) if way == "together" else batch)).backward()
        (criterion if exchange is None else exchange).end_epoch()
    (out / f"said-{rank}.json").write_text(json.dumps([str(warning.message) for warning in caught]))


@pytest.mark.parametrize("way", ["together", "Exchange", "nothing kept", "plain"])
def test_copies_of_a_criterion_that_diverge_are_told_once(way, tmp_path):
    run_pair(tmp_path, _own_loop, tmp_path, way)
    for rank in range(2):
        said = json.loads((tmp_path / f"said-{rank}.json").read_text())
        assert len(said) == (way == "plain")
        for word in ("2 processes", "suspects", "together", "Exchange") if said else ():
            assert word in said[0]
