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
from experiments import claims, comparing, report
from experiments.__main__ import app
from experiments.archive import Archive
from experiments.comparing import Comparison, Value
from experiments.grid import Place, adversarial_accuracy
from experiments.protocols import PROTOCOLS, SCALES, cells, trials
from experiments.tables import BEYOND, every, find_table, published

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


def test_a_record_says_what_was_trained_and_how_it_went(data, tmp_path):
    assert reproduce(data, tmp_path, "9", "--only", "base,logcomp").exit_code == 0
    records = list(Archive(tmp_path / "results" / "sst2-tiny.jsonl"))
    assert {r["config"]["method"] for r in records} == {"base", "logcomp"}
    noisy = next(r for r in records if r["config"]["noise"] == "first:0.2")
    assert noisy["wrong_labels"] == pytest.approx(0.2)
    assert 0 <= noisy["wrong_labels_fitted"] <= 1
    assert noisy["curves"]["test_accuracy"][-1] == pytest.approx(noisy["last"]["test_accuracy"], abs=1e-5)
    assert {"compensate", "torch", "python"} <= set(noisy["versions"])


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["reproduce", "table-99"], "there is no table"),
        (["reproduce", "1", "--scale", "huge"], 'scale is "huge"'),
        (["reproduce", "1", "--backend", "slurm"], 'backend is "slurm"'),
        (
            ["reproduce", "1", "--scale", "tiny", "--show", "--results", "nowhere"],
            "no hyper-parameters were chosen yet",
        ),
        (
            ["reproduce", "2", "--show", "--defaults", "--results", "nowhere"],
            "no run of table-2-cifar100 at the scale small is stored",
        ),
        (["reproduce", "9", "--show", "--defaults", "--only", "bse"], 'no row "bse"; did you mean "base"'),
        (["reproduce", "9", "--show", "--defaults", "--columns", "0%"], 'no column "0%"'),
    ],
)
def test_mistakes_are_told(arguments, said):
    result = runner.invoke(app, arguments)
    assert isinstance(result.exception, InputError)
    assert said in str(result.exception)


def test_the_paper_protocol_is_the_papers():
    table = find_table("9")
    config = cells(table, "paper", {}, 3)[0].config
    assert (config.epochs, config.batch_size, config.lr, config.vectors) == (50, 32, 1e-4, "glove.6B.300d")
    assert config.model_options == {"hidden": 256, "dropout": 0.7}
    config = cells(find_table("1"), "paper", {}, 3)[0].config
    assert (config.epochs, config.batch_size, config.lr, config.model) == (300, 128, 0.1, "resnet20")
    assert len(cells(find_table("1"), "paper", {}, 3)) == 9 * 7 * 3
    assert {c.config.model for c in cells(find_table("5"), "paper", {}, 1)} == {
        "resnet32", "resnet44", "resnet56", "resnet110",
    }  # fmt: skip
    assert {t.hyper["lam"] for t in trials(find_table("1"), "paper", "logcomp")} == {0.25, 0.35}


@pytest.mark.parametrize("scale", SCALES)
def test_every_method_of_a_scale_has_the_same_number_of_trials(scale):
    for table in every().values():
        counts = {m: len(trials(table, scale, m)) for m in PROTOCOLS[scale][table.dataset].candidates}
        if scale != "paper":
            assert len(set(counts.values())) == 1, counts


def test_augmented_images_have_a_choice_of_their_own(tmp_path):
    plain, augmented = find_table("1"), find_table("beyond-augmented-cifar10")
    place = Place(tmp_path, tmp_path)
    assert place.chosen_path(plain, "small") != place.chosen_path(augmented, "small")
    as_trained = {cell.config.augment for cell in cells(augmented, "small", {}, 1)}
    assert {t.augment for t in trials(augmented, "small", "logcomp")} == as_trained == {"crop-flip"}
    assert {t.augment for t in trials(plain, "small", "logcomp")} == {"none"}


def test_the_ablation_takes_one_direction_away():
    chosen = {"mixcomp": {"eta": 5.0, "pro": 25.0, "eps2": 0.05, "steps": 3}}
    hyper = {c.row: c.config.hyper for c in cells(find_table("10"), "small", chosen, 1)}
    assert "eps2" not in hyper["mixcomp-positive"]
    assert hyper["mixcomp-negative"] == {"eta": 0.0, "pro": 25.0, "eps2": 0.05, "steps": 3, "warmup": 0.0, "floor": 0.0}
    assert hyper["mixcomp"]["eta"] == 5.0
    radii = [c.config.hyper.get("eps2", 0) * 255 for c in cells(find_table("4"), "paper", {}, 1)]
    assert radii == pytest.approx([0, 2, 4, 6, 8])


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


def test_the_papers_own_figures_bear_out_its_claims():
    tables = {
        t.id: made(t.id, {row: [mean for mean, _ in cells] for row, cells in t.rows.items()}, 0.001)
        for t in published().values()
        if t.id != "table-4-mixcomp-eps2"
    }
    for claim in claims.CLAIMS:
        if claim.where in ("Table IV", "Fig. 4") or "in every column" in claim.says or "at every depth" in claim.says:
            continue
        found = claim.judge(tables)
        assert found.answer in ("holds", "open"), (claim.says, found)
    assert claims.CLAIMS[1].judge(tables).answer == "holds", "LogComp above the base under noise, CIFAR"


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


def test_ranks_files_and_page(tmp_path):
    found = made("1", {"base": [50, 40], "logcomp": [51, 45], "mixcomp": [52, 44]})
    assert found.ranks(1) == {"base": 3, "logcomp": 1, "mixcomp": 2}
    assert found.ranks(1, paper=True) == {"base": 3, "logcomp": 2, "mixcomp": 1}
    text = comparing.markdown(found)
    assert "| logcomp | 51.0 ± 0.1 [2] / 92.4 [1] | 45.0 ± 0.1 [1] / 91.0 [2] |" in text
    assert r"\textbf{52.0 $\pm$ 0.1}" in comparing.latex(found)
    for suffix in ("md", "csv", "tex"):
        comparing.write(found, tmp_path / f"t.{suffix}")
        assert (tmp_path / f"t.{suffix}").stat().st_size > 100
    with pytest.raises(InputError, match=r"expected \.md, \.csv or \.tex"):
        comparing.write(found, tmp_path / "t.xls")
    assert report.sections(report.trained_tables(tmp_path)) == [], "nothing is said where nothing is stored"


def test_tables_beyond_the_paper_have_no_figures_of_it():
    assert all(cells == () for t in BEYOND.values() for cells in t.rows.values())
    configs = [c.config for c in cells(find_table("beyond-imbalance-cifar10"), "small", {}, 1)]
    assert {c.imbalance for c in configs} == {"exponential:10"}
    assert {c.noise for c in configs} == {"none", "random:0.2", "random:0.4"}
