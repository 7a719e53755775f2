"""Two processes are one, whether each has all rows of the tables or a part."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import replicas
import torch
from killed import FatalModel
from replicas import config, small
from safetensors.torch import load_file
from typer.testing import CliRunner

from compensate import METHODS, methods
from compensate.cli import app
from compensate.data import Dataset, order_in_ranges
from compensate.data.dataset import Ragged
from compensate.errors import InputError
from compensate.training import Exchange, Processes, checkpoint, fit, together
from compensate.training.distributed import Ranges
from processes import run_group, run_pair

pytestmark = pytest.mark.xdist_group("distribution")


# Distribution
@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """What two processes found, for all methods, in files."""
    out = tmp_path_factory.mktemp("two")
    run_pair(out, replicas.train_all, out, list(METHODS))
    return out


def assert_near(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Sums over a batch are added up in another order. The largest difference that was seen is 4e-6, of a sum of 30."""
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        near = 2e-3 if value.dtype == torch.float16 else 1e-5
        assert torch.allclose(found[name].double(), value.double(), rtol=near, atol=near, equal_nan=True), name


@pytest.mark.slow
@pytest.mark.parametrize("name", [*METHODS, *replicas.LOOPS])
def test_two_processes_are_one(name, two):
    """Runs of all methods, a run on texts with compensated words, and loops of a user."""
    expected = replicas.LOOPS[name]() if name in replicas.LOOPS else replicas.tensors(*replicas.train(name))
    assert name in replicas.LOOPS or len(expected["losses"]) >= 10
    assert_near(load_file(two / f"{name}.safetensors"), expected)


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
    rest, resumed = replicas.train(method, tmp_path / "run")
    assert len(rest) == 12 - replicas.STOP
    assert_near(replicas.tensors([], resumed), expected)


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


# Ranges
REFUSED = {
    "meta_weight", "reweight", "meta_logit_adjustment", "meta_label", "meta_logit", "balanced_arcface", "causal_logit",
    "metasaug", "meta_loss", "category_logit", "gated_category", "universal_at", "classwise_universal_at",
    "mixed_universal_at", "dac", "isda", "deep_self_learning", "d2l", "lpl", "lpg", "dr_dpo",
}  # fmt: skip
RANDOM = {"pgd_at", "semantics_preserving_at", "augmix", "neftune"}
"""They draw random numbers for each sample, and each process draws its own."""


def rows_of(n: int, held_out: int = 0) -> Dataset:
    """Samples in an order of their own, with rows of held-out samples between theirs."""
    index = np.sort(np.random.default_rng(1).permutation(n + held_out)[:n])[::-1]
    return Dataset(
        np.zeros((n, 1), np.float32), np.arange(n) % 3, ("a", "b", "c"), index=index.copy(), rows=n + held_out
    )


@pytest.mark.parametrize(("n", "batch"), [(133, 24), (96, 24), (50, 7), (13, 5), (24, 100)])
def test_every_epoch_visits_every_sample_once_and_every_process_its_own(n: int, batch: int) -> None:
    data = rows_of(n, held_out=11)
    epochs = [order_in_ranges(data, batch, seed=3, epoch=epoch) for epoch in range(3)]
    for batches in epochs:
        assert sorted(np.concatenate(batches)) == list(range(n))
        sizes = [len(rows) for rows in batches]
        assert max(sizes) <= batch
        assert max(sizes) - min(sizes) <= 1
    assert n == len(epochs[0][0]) or not np.array_equal(epochs[0][0], epochs[1][0])
    for size in (1, 2, 3, 4):
        owned = [Ranges(data, batch, Processes(size, rank)) for rank in range(size)]
        assert owned[0].held.first == 0
        assert owned[-1].held.last == data.rows
        assert all(a.held.last == b.held.first for a, b in pairwise(owned))
        for rows in epochs[0]:
            slices = [r.own(rows, data.index) for r in owned]
            assert sorted(np.concatenate(slices)) == sorted(rows)
            assert max(map(len, slices)) - min(map(len, slices)) <= 2
            assert min(map(len, slices)) >= 1
    with pytest.raises(InputError, match=r"a batch of 4 samples is too small for 5 processes.*larger batch_size"):
        Ranges(rows_of(8), 4, Processes(5))


def test_texts_of_about_one_length_are_in_a_batch() -> None:
    lengths = np.random.default_rng(0).integers(1, 200, size=600)
    data = Dataset(Ragged.of([np.ones(k, np.int64) for k in lengths]), np.arange(600) % 2, ("a", "b"))
    batches = order_in_ranges(data, 20)
    assert sorted(np.concatenate(batches)) == list(range(600))
    spread = np.mean([lengths[rows].std() for rows in batches])
    assert spread < 0.3 * lengths.std()


def state(folder: Path) -> dict[str, Any]:
    """All of the last checkpoint that is a number, with tables in full."""
    found = checkpoint.latest(folder / "checkpoint")
    assert found is not None
    history = [[row[key] for key in sorted(row)] for row in found["at"]["history"]]
    trees = {f"{part}.{name}": value for part in ("model", "criterion") for name, value in found[part].items()}
    return {**trees, "history": torch.tensor(history, dtype=torch.float64), "totals": found["totals"]}


@pytest.fixture(scope="module")
def ranges_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of all methods in ranges_two processes."""
    out = tmp_path_factory.mktemp("two")
    np.save(out / "teacher.npy", np.random.default_rng(0).normal(size=(small().train.rows, 10)).astype(np.float32))
    run_group(2, out, replicas.train_parts, out, list(METHODS))
    return out


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in METHODS if name not in REFUSED | RANDOM])
def test_two_processes_with_a_part_of_the_rows_each_are_one(method: str, ranges_two: Path, tmp_path: Path) -> None:
    replicas.train_part(method, tmp_path, **replicas.taught(method, ranges_two))
    assert_near(state(ranges_two / method), state(tmp_path))


@pytest.mark.slow
def test_what_needs_the_whole_batch_is_refused_with_a_way_out(ranges_two: Path) -> None:
    said = {name: [(ranges_two / f"{name}.refused.{rank}") for rank in (0, 1)] for name in METHODS}
    assert {name for name, files in said.items() if files[0].exists()} == REFUSED
    for name in REFUSED:
        texts = [file.read_text() for file in said[name]]
        assert texts[0] == texts[1]
        assert "cut among processes by ranges" in texts[0]
        assert "torchrun" in texts[0]
    for name in RANDOM:
        assert all(value.isfinite().all() for value in state(ranges_two / name).values() if value.is_floating_point())


@pytest.mark.slow
def test_another_number_of_processes_goes_on_with_the_rows_cut_anew(tmp_path: Path) -> None:
    """2, 3, 1 and 2 processes, each in the middle of an epoch, equal one that was never interrupted."""
    runs: dict[str, tuple[str, dict[str, Any]]] = {
        "dense": ("logcomp", {}),
        "sparse": ("logcomp", {"hyper": {"table": "sparse", "record": "lean"}}),
        "mixcomp": ("mixcomp", {}),
        "sop": ("sop", {}),
    }
    for size, stop in ((2, 4), (3, 3), (1, 4), (2, None)):
        if size == 1:
            replicas.train_some_steps(tmp_path, runs, stop)
        else:
            run_group(size, tmp_path, replicas.train_some_steps, tmp_path, runs, stop)
    for name, (method, changes) in runs.items():
        replicas.train_part(method, tmp_path / f"{name}-whole", **changes)
        assert_near(state(tmp_path / name), state(tmp_path / f"{name}-whole"))


# on a Ray cluster
@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)  # Ray's own
def test_ray_train_equals_one_process_though_a_worker_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray.train.torch", reason="the extra `cluster` is not installed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    torch.manual_seed(0)
    mark = tmp_path / "killed"
    model = FatalModel(mark, after=8)
    asked = config("logcomp", epochs=2)
    ray_run = fit(asked, data=small(), model=model, folder=tmp_path / "ray", every=3, backend="ray", workers=2)
    assert mark.exists()
    torch.manual_seed(0)
    alone = fit(
        asked.replace(order="ranges"), data=small(), model=FatalModel(mark, after=8), folder=tmp_path / "one", every=3
    )
    assert_near(state(tmp_path / "ray"), state(tmp_path / "one"))
    assert ray_run.criterion.suspects(5).index.tolist() == alone.criterion.suspects(5).index.tolist()
    assert len(next(ray_run.criterion.tables()).dense()) == ray_run.prepared.train.rows
    assert (tmp_path / "ray" / "result.json").exists()
    assert not (tmp_path / "ray" / "ray").exists()


def test_what_a_worker_refuses_is_what_the_command_says() -> None:
    train = pytest.importorskip("ray.train", reason="the extra `cluster` is not installed")
    from compensate.training.fitting import _reason

    refused = InputError("the loss is NaN")
    assert _reason(train.WorkerGroupError("...", {1: refused})) is refused
    lost = _reason(train.WorkerGroupError("rank 1 died", {1: RuntimeError("rank 1 died")}))
    assert "rank 1 died" in str(lost)
    assert "resume with fewer workers" in str(lost)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "2"], 'expected backend="ray" with a number of workers'),
        (["--backend", "spark"], 'backend is "spark"'),
        (["--backend", "ray", "--method", "isda"], "torchrun --nproc-per-node N"),
        (["--set", "order=range"], 'did you mean "ranges"'),
    ],
)
def test_the_command_refuses_what_cannot_be_had(options: list[str], message: str, tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["train", "digits", "--epochs", "1", "--out", str(tmp_path / "run"), *options])
    assert found.exit_code != 0
    assert message in " ".join(f"{found.output} {found.exception}".split())
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    with pytest.raises(InputError, match="belong to one process"):
        fit(config("logcomp"), data=small(), backend="ray", on_epoch=print)
