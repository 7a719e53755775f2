"""The experiment on wrong edges: what is stored is what the page says."""

from __future__ import annotations

import json

import pytest

from experiments import graph


@pytest.mark.slow
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
    title, text, table = graph.section(path)
    assert "2 seeds" in text
    assert f"{sum(run['ap_compensation'] for run in runs) / 2:.3f}" in table
    assert title.startswith("## ")
    assert graph.section(tmp_path / "nothing.json") == []
