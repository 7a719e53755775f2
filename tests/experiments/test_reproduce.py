"""The paper's tables: what is trained for them, that they run end to end, and what is said of the outcome."""

from __future__ import annotations

import csv
import importlib.util
import json

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from compensate.data import Dataset
from compensate.errors import InputError
from experiments import claims
from experiments.__main__ import app
from experiments.archive import Archive
from experiments.comparing import Comparison, Value
from experiments.grid import adversarial_accuracy
from experiments.protocols import cells
from experiments.tables import every, find_table

pytestmark = pytest.mark.slow

runner = CliRunner()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Small files in the public formats of all four data sets."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)

    def images(path, ahead, classes, n):
        path.parent.mkdir(exist_ok=True)
        labels = rng.permutation(np.arange(n) % classes)
        pixels = rng.integers(256, size=(n, 3072), dtype=np.uint8)
        path.write_bytes(b"".join(bytes([*ahead, int(y)]) + x.tobytes() for x, y in zip(pixels, labels, strict=True)))

    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        images(folder / "cifar-10-batches-bin" / f"{name}.bin", (), 10, 50)
    for name in ("train", "test"):
        images(folder / "cifar-100-binary" / f"{name}.bin", (3,), 100, 200)

    def sentence(y):
        return " ".join(rng.choice(["film", "plot", "the", "a"], 5)) + (" fine" if y else " dull")

    (folder / "sst2").mkdir()
    for name, n in (("train", 60), ("dev", 20), ("test", 30)):
        rows = [f"{sentence(i % 2)}\t{i % 2}" for i in range(n)]
        (folder / "sst2" / f"{name}.tsv").write_text("\n".join(rows))
    rows = [f"{('train', 'test')[i % 2]}\t{i % 4 // 2}\t{i}\t{sentence(i % 4 // 2)}" for i in range(120)]
    (folder / "imdb.tsv").write_text("split\tlabel\tid\ttext\n" + "\n".join(rows))
    return folder


def reproduce(data, tmp_path, table, *more):
    arguments = ["reproduce", table, "--scale", "tiny", "--seeds", "1", "--workers", "1", "--data-dir", str(data)]
    arguments += ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs"), *more]
    return runner.invoke(app, arguments, env={"COLUMNS": "250"})


def test_without_data_nothing_is_started(tmp_path, monkeypatch):
    def started(*_, **__):
        raise AssertionError("a run was started")

    def not_found(url, *_, **__):
        raise InputError(f"{url} could not be fetched")

    monkeypatch.setattr("experiments.grid.side_by_side", started)
    monkeypatch.setattr("compensate.data.named.catalog.fetch", not_found)
    done = reproduce(tmp_path / "empty", tmp_path, "table-9-sst2")
    assert isinstance(done.exception, InputError)
    assert "sst2 is not in" in str(done.exception)


@pytest.mark.parametrize("table", list(every()))
def test_every_table_runs_end_to_end_at_the_tiny_scale(data, tmp_path, table):
    out = tmp_path / "table.csv"
    result = reproduce(data, tmp_path, table, "--out", str(out))
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(out.read_text().splitlines()))
    wanted = cells(find_table(table), "tiny", {}, 1)
    heads = Comparison.of(find_table(table), wanted, Archive(tmp_path / "results" / "none.jsonl"))
    assert {(r["row"].partition(" at ")[0].replace("adversarial", "clean"), r["column"]) for r in rows} == {
        (c.row, heads.head(c.column)) for c in wanted
    }
    assert all(0 <= float(r["mean"]) <= 100 for r in rows)
    for r in rows:
        if r["paper_mean"]:
            assert float(r["difference"]) == pytest.approx(float(r["mean"]) - float(r["paper_mean"]), abs=0.011)


def test_finished_runs_are_not_trained_again_and_tables_share_them(data, tmp_path, monkeypatch):
    assert reproduce(data, tmp_path, "1").exit_code == 0
    before = (tmp_path / "results" / "cifar10-tiny.jsonl").read_bytes()
    monkeypatch.setattr("compensate.training.comparison.fit", lambda *a, **k: pytest.fail("trained again"))
    result = reproduce(data, tmp_path, "1")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "results" / "cifar10-tiny.jsonl").read_bytes() == before
    monkeypatch.undo()
    assert reproduce(data, tmp_path, "3").exit_code == 0
    ids = [json.loads(line)["id"] for line in (tmp_path / "results" / "cifar10-tiny.jsonl").read_text().splitlines()]
    assert len(ids) == len(set(ids)), "base and positive compensation are the same runs in both tables"


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.filterwarnings("ignore")
def test_a_grid_on_a_local_ray(data, tmp_path):
    import ray

    try:
        result = reproduce(data, tmp_path, "9", "--only", "base,logcomp", "--backend", "ray", "--defaults")
        assert result.exit_code == 0, result.output
    finally:
        ray.shutdown()
    there = {r["id"]: r["last"] for r in Archive(tmp_path / "results" / "sst2-tiny.jsonl")}
    assert reproduce(data, tmp_path / "here", "9", "--only", "base,logcomp", "--defaults").exit_code == 0
    here = {r["id"]: r["last"] for r in Archive(tmp_path / "here" / "results" / "sst2-tiny.jsonl")}
    assert there == here, "a cluster trains what one machine trains"


def test_an_archive_survives_a_line_cut_short(tmp_path):
    archive = Archive(tmp_path / "a.jsonl")
    archive.add({"id": "one"})
    with archive.path.open("a") as file:
        file.write('{"id": "tw')
    again = Archive(archive.path)
    assert [r["id"] for r in again] == ["one"]
    again.add({"id": "two"})
    assert [r["id"] for r in Archive(archive.path)] == ["one", "two"]


def test_adversarial_accuracy_of_a_linear_model_in_closed_form():
    # One pixel decides: x > 0.5 is class 1. An attack of radius r flips exactly the images within r of the border.
    class Threshold(nn.Module):
        def forward(self, x):
            z = 40 * (x.flatten(1)[:, 0] - 0.5)
            return torch.stack([-z, z], 1)

    x = np.linspace(0.3, 0.7, 41, dtype=np.float32).reshape(-1, 1, 1, 1)
    data = Dataset(x, (x[:, 0, 0, 0] > 0.5).astype(np.int64), ("low", "high"))
    for radius in (0.05, 0.1):
        right = adversarial_accuracy(Threshold(), data, radius)
        assert right == pytest.approx((np.abs(x - 0.5) > radius + 1e-6).mean(), abs=2 / 41)


def made(table: str, values: dict[str, list[float]], spread: float = 0.1) -> Comparison:
    found = find_table(table)
    ours = {
        (row, c): Value.of([(v + d) / 100 for d in (-spread, 0, spread)])
        for row, column in values.items()
        for c, v in enumerate(column)
    }
    return Comparison(found, tuple(range(len(next(iter(values.values()))))), ours, ours, {}, ours, ours, {})


def verdict(says: str, **tables: Comparison) -> claims.Verdict:
    claim = next(c for c in claims.CLAIMS if says in c.says)
    return claim.judge({t.table.id: t for t in tables.values()})


def test_verdicts_of_made_up_tables():
    best = "LogComp or MixComp has the highest accuracy in every column, CIFAR"
    good = made("1", dict.fromkeys(find_table("1").rows, [50] * 7) | {"mixcomp": [52] * 7})
    assert verdict(best, a=good).answer == "holds"
    part = made("1", {"base": [50, 40], "logcomp": [51, 45], "mixcomp": [52, 47]})
    assert verdict(best, a=part).answer == "not judged", "the rows that were not run could be above"
    bad = made("1", {"base": [50, 48], "logcomp": [51, 45], "mixcomp": [52, 47]})
    found = verdict("LogComp is above the base under noise", a=bad)
    assert found.answer == "does not hold"
    assert "-3.0 (-3.0 to -3.0)" in found.figures
    assert verdict("LogComp is above the base under noise").answer == "not run here"
