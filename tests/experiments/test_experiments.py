"""The studies at a small size: tables, search, figures, sentences, the grid and the graph."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from compensate import InputError
from compensate.core.criterion import TARGETS
from compensate.data import Dataset
from compensate.methods import METHODS, find
from compensate.terms import Strength
from compensate.training import Config, fit
from experiments import gallery, graph, leading, suspects
from experiments.__main__ import app
from experiments.archive import Archive
from experiments.comparing import Comparison
from experiments.exploration import Budget, Part, explore
from experiments.figures import tree
from experiments.figures.pages import figures_page
from experiments.grid import adversarial_accuracy
from experiments.protocols import cells as table_cells
from experiments.tables import every, find_table
from experiments.taxonomy import cells, why_not, write_grid_page

# Reproduce
pytest.importorskip("optuna")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


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
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "250"})


@pytest.mark.parametrize("table", {t.dataset: name for name, t in reversed(every().items())}.values())
def test_a_table_of_every_data_set_runs_end_to_end_at_the_tiny_scale(data, tmp_path, table):
    out = tmp_path / "table.csv"
    result = reproduce(data, tmp_path, table, "--out", str(out))
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(out.read_text().splitlines()))
    wanted = table_cells(find_table(table), "tiny", {}, 1)
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


# Exploration
SMALL = {"noise": "pair:0.3", "limit": 150, "epochs": 2, "model": "mlp", "model_options": {"hidden": [8]}}
CONFIG = Config(**SMALL)
PART = Part(targets=("logit", "label", "gradient"), directions=("positive",), granularities=("sample", "category"))
BUDGET = Budget(trials=4, finalists=2, seeds=2, peer_trials=1)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    return folder, explore(CONFIG, folder, part=PART, budget=BUDGET, workers=1)


def test_the_report_is_made_of_what_was_trained(found):
    folder, report = found
    assert report == json.loads((folder / "search.json").read_text())
    assert len(report["trials"]) == 4
    ended = [row["validation"] for row in report["trials"] if row["validation"] is not None]
    assert ended == sorted(ended, reverse=True)
    assert all(PART.holds(find(row["cell"]).taxonomy) for row in report["trials"])
    assert [row["cell"] for row in report["best"]] == list(dict.fromkeys(row["cell"] for row in report["best"]))
    methods = {run["method"] for run in report["runs"]}
    assert methods == {"base", "gce", "elr", "sop", *(row["cell"] for row in report["best"])}
    assert {run["seed"] for run in report["runs"]} == set(report["seeds"]["comparison"])
    assert CONFIG.seed not in report["seeds"]["comparison"]
    scores = {(run["method"], run["seed"]): run["last"]["test_accuracy"] for run in report["runs"]}
    for peer, rows in report["tables"].items():
        for row in rows:
            gaps = [scores[row["method"], seed] - scores[peer, seed] for seed in report["seeds"]["comparison"]]
            if row["method"] != peer:
                assert row["difference"][0] == pytest.approx(sum(gaps) / len(gaps))
                assert row["difference"][1:] == [None, None]  # two seeds have no interval


def test_the_same_search_goes_on_and_does_nothing_twice(found):
    folder, report = found
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs").glob("*/result.json")}
    again = explore(CONFIG, folder, part=PART, budget=BUDGET, workers=1)
    assert again["trials"] == report["trials"]
    assert {path: path.stat().st_mtime_ns for path in (folder / "runs").glob("*/result.json")} == before
    longer = explore(CONFIG, folder, part=PART, budget=Budget(5, 1, 1, 1), workers=1)
    assert len(longer["trials"]) == 5
    assert all(row in longer["trials"] for row in report["trials"])


# The taxonomy in pictures


def test_tree_has_all_targets_and_each_method_once_at_its_place():
    root = tree.grown()
    assert [branch.name for branch in root.children][: len(TARGETS)] == list(TARGETS)

    def leaves(branch, path=()):
        if branch.method is not None:
            yield branch.method, path
        for child in branch.children:
            yield from leaves(child, (*path, child.name))

    found = list(leaves(root))
    assert Counter(row.name for row, _ in found) == dict.fromkeys(METHODS, 1)
    for row, path in found:
        if row.kind != "compensation":
            assert path[:2] == (tree.OTHER, row.kind)
        else:
            target, _, inference, granularity = row.taxonomy
            assert path[:3] == (tree.MIXED if "+" in target else target, inference, granularity)


def test_stored_page_and_pictures_are_up_to_date():
    page = (ROOT / "docs" / "figures.md").read_text()
    assert figures_page(ROOT / "results", ROOT / "docs" / "img") == page, "run `make docs`"
    for picture in (ROOT / "docs" / "img").glob("figure-*.png"):
        assert f"(img/{picture.name})" in page
        assert picture.stat().st_size < 250_000


def test_the_gallery_shows_each_stored_suspect_with_the_verdict_of_a_reader(tmp_path):
    page = (ROOT / "docs" / "gallery.md").read_text("utf-8")
    assert gallery.page(ROOT / "results" / "gallery") == page, "run `python -m experiments gallery`"
    for name, one in gallery.SETS.items():
        stored = json.loads((ROOT / "results" / "gallery" / f"{name}.json").read_text("utf-8"))
        assert len(stored["suspects"]) == gallery.TOP
        assert one.page == (ROOT / "results" / "gallery" / "pages" / f"{name}.json").is_file()
        assert all(
            s["text"] or (ROOT / "docs" / "img" / "gallery" / f"{name}-{s['row']}.png").is_file()
            for s in stored["suspects"]
        )
    stored["suspects"][3]["verdict"] = "maybe"
    with pytest.raises(InputError, match='verdict "maybe"; write one of wrong, debatable, right'):
        gallery.check_verdicts(stored)


# The method to try first
def test_a_group_of_columns_has_its_mean_gain_and_the_rival_with_the_largest():
    def column(noise, **gains):
        return leading.Column(
            f"set, {noise}", noise != "0 %", {m: {seed: 50.0 + seed + g for seed in range(3)} for m, g in gains.items()}
        )

    found = [
        column("0 %", base=0.0, robust=1.0, elr=2.0, sop=3.0),
        column("10 %", base=0.0, robust=4.0, elr=1.0, sop=2.0),
        column("20 %", base=0.0, robust=6.0, elr=5.0, sop=3.0),
    ]
    clean, noisy = leading.groups(found)
    assert (clean.name, clean.columns, clean.leading, clean.rival) == ("set, no noise", 1, [1.0, 1.0, 1.0], "sop")
    assert (noisy.name, noisy.columns, noisy.rival) == ("set, wrong labels", 2, "elr")
    assert noisy.leading == pytest.approx([5.0, 5.0, 5.0])
    assert noisy.rivals == pytest.approx([3.0, 3.0, 3.0])


def test_withheld_samples_are_the_last_suspects_of_a_training():
    result = fit(Config(data="digits", noise="random:0.3", method="robust", epochs=2))
    score, withheld = suspects.suspicion(result), Strength.of(result.criterion).withheld.numpy()
    hidden = withheld[result.prepared.train.index]
    assert hidden.any()
    assert score[hidden].max() < score[~hidden].min()
    assert suspects.average_precision(result, score) > result.prepared.wrong.mean() + 0.2
    assert suspects.features(result).shape[0] == len(score)


# Taxonomy
def test_the_page_of_the_documentation_is_made_from_the_table(tmp_path):
    assert write_grid_page(tmp_path / "grid.html") == sum(why_not(cell) is None for cell in cells())
    page = (ROOT / "docs" / "taxonomy-grid.html").read_text("utf-8")
    assert page == (tmp_path / "grid.html").read_text("utf-8"), "run `make docs`"


# Graph
def test_a_trial_measures_edges_and_nodes_and_the_page_shows_their_means(tmp_path, monkeypatch):
    short = graph.Setting(epochs=15)
    monkeypatch.setattr(graph, "SETTINGS", {"short": short})
    path = tmp_path / "graph" / "digits.json"
    stored = graph.run(path, 2)
    assert json.loads(path.read_text()) == stored
    runs = stored["settings"]["short"]["runs"]
    assert [run["seed"] for run in runs] == [0, 1]
    for run in runs:
        assert run["wrong"] == pytest.approx(0.1, abs=0.001)
        assert run["ap_compensation"] > 3 * run["wrong"]
        assert 0 <= run["accuracy_plain"] <= 1
    _, text, table = graph.section(path)
    assert "2 seeds" in text
    assert f"{sum(run['ap_compensation'] for run in runs) / 2:.3f}" in table
    assert graph.section(tmp_path / "nothing.json") == []


def test_stated_gains_of_the_leading_method_are_the_stored_ones():
    root = Path(__file__).parents[2]
    found = leading.columns(root / "results")
    below, lines = leading.markdown(found)[0], leading.markdown(found)[2].splitlines()
    rows = {
        cells[1].strip(): [cell.strip(" *") for cell in cells[2:4]] for line in lines for cells in [line.split("|")]
    }
    readme, training = (
        " ".join((root / name).read_text(encoding="utf-8").split()) for name in ("README.md", "docs/training.md")
    )
    (gain, count), (elr, _) = rows["cross entropy"], rows["tuned elr"]
    assert f"gains {gain.split()[0].lstrip('+')} points over cross-entropy (mean of {count} columns" in readme
    for name, words in (
        ("early stopping", "over early stopping"),
        ("averaged weights", "over averaged weights"),
    ):
        assert f"{rows[f'cross entropy, {name}'][0].split()[0].lstrip('+')} {words}" in readme
    assert f"the {rows['tuned elr'][1]} to {rows['cross entropy, early stopping'][1]} columns" in readme
    for name in ("GCE", "SOP"):
        assert f"{rows[f'tuned {name.lower()}'][0].split()[0].lstrip('+')} over tuned {name}" in readme
    assert f"{elr.replace('+', '')}".replace(" (", " over tuned ELR (") in readme
    assert f"{elr.split()[0].lstrip('+')} points above tuned `elr`" in training
    assert f"Below cross entropy in 0 of {len(found)} columns" in below
    assert f"In none of {len(found)} columns" in readme
    assert f"in none of {len(found)} columns" in training
    new = {
        method: f"{np.mean([*by_seed.values()]):.1f} %"
        for method, by_seed in leading.fresh(root / "results" / "reproduce").last.items()
    }
    assert f"give {new['robust']} (tuned ELR {new['elr']}, cross-entropy {new['base']})" in readme
