"""Search over the taxonomy: cells are methods, trials go on where they stopped, and the report is what was trained."""

from __future__ import annotations

import json

import pytest

from compensate import InputError
from compensate.methods import find
from compensate.training import Config, fit
from experiments.exploration import Budget, Part, explore

pytest.importorskip("optuna")

SMALL = {"noise": "pair:0.3", "limit": 150, "epochs": 2, "model": "mlp", "model_options": {"hidden": [8]}}
CONFIG = Config(**SMALL)
PART = Part(targets=("logit", "label", "gradient"), directions=("positive",), granularities=("sample", "category"))
BUDGET = Budget(trials=4, finalists=2, seeds=2, peer_trials=1)


def test_a_cell_is_a_method_that_can_be_trained():
    row = find("label.positive.prior.sample")
    assert row.taxonomy == ("label", "positive", "prior", "sample")
    assert row.make(num_samples=9, num_classes=3, strength=0.3).taxonomy == row.taxonomy
    result = fit(CONFIG.but(method="logit.positive.regularized.sample", hyper={"lam": 0.1}))
    assert result.criterion.taxonomy.inference == "regularized"
    assert "clean" in find("logit.mixed.meta.category").needs
    assert "model" in find("view.negative.adversarial.sample").needs


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    return folder, explore(CONFIG, folder, part=PART, budget=BUDGET, workers=1)


@pytest.mark.slow
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
    for peer, rows in report["tables"].items():
        mine = {run["seed"]: run["last"]["test_accuracy"] for run in report["runs"] if run["method"] == peer}
        for row in rows:
            theirs = {
                run["seed"]: run["last"]["test_accuracy"] for run in report["runs"] if run["method"] == row["method"]
            }
            gaps = [theirs[seed] - mine[seed] for seed in mine]
            if row["method"] != peer:
                assert row["difference"][0] == pytest.approx(sum(gaps) / len(gaps))
                assert row["difference"][1] <= row["difference"][0] <= row["difference"][2]


@pytest.mark.slow
def test_the_same_search_goes_on_and_does_nothing_twice(found):
    folder, report = found
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs").glob("*/result.json")}
    again = explore(CONFIG, folder, part=PART, budget=BUDGET, workers=1)
    assert again["trials"] == report["trials"]
    assert {path: path.stat().st_mtime_ns for path in (folder / "runs").glob("*/result.json")} == before
    longer = explore(CONFIG, folder, part=PART, budget=Budget(5, 1, 1, 1), workers=1)
    assert len(longer["trials"]) == 5
    assert all(row in longer["trials"] for row in report["trials"])


def test_two_parts_in_one_folder_are_two_searches(tmp_path, monkeypatch):
    from experiments import exploration

    monkeypatch.setattr(exploration, "trial_score", lambda *_: 0.5)
    monkeypatch.setattr(exploration, "_tuned_peers", lambda *_: {})
    monkeypatch.setattr(exploration, "_compared", lambda *_: ([], []))
    for target in ("logit", "label", "logit"):
        part = Part(targets=(target,), directions=("positive",))
        found = explore(CONFIG, tmp_path, part=part, budget=Budget(2, 1, 1, 1), workers=1)
        assert [row["cell"].split(".")[0] for row in found["trials"]] == [target] * 2


def test_parts_and_searches_that_make_no_sense_are_refused(tmp_path):
    with pytest.raises(InputError, match="targets"):
        Part(targets=("logits",))
    with pytest.raises(InputError, match="graph"):
        Part(targets=("structure",))
    with pytest.raises(InputError, match="validation"):
        explore(CONFIG.but(validation=0.0), tmp_path)
