"""Two processes are one: losses, metrics, tables, statistics and weights, for every method."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from compensate import METHODS
from compensate.training import Processes
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
        assert torch.allclose(found[key].double(), value.double(), rtol=1e-5, atol=1e-5), key


def test_slices_cover_the_batch_once():
    for size in range(1, 6):
        for n in range(size, 30):
            bounds = Processes(size).bounds(n)
            assert [k for begin, end in bounds for k in range(begin, end)] == list(range(n))
            lengths = [end - begin for begin, end in bounds]
            assert max(lengths) - min(lengths) <= 1


def test_alone_nothing_is_exchanged():
    alone, x = Processes(), torch.rand(4, 2)
    assert alone.main
    assert alone.gather(x, 4) is x
    assert alone.scatter(x) is x
    assert alone.sum(x) is x
