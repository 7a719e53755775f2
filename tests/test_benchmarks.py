"""The machinery of the benchmarks at a small size, and equality with the peers that they are measured beside."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import criterion, dense, measure, pages, planted, processes, stages, steps
from benchmarks.__main__ import names
from compensate import Compensated
from compensate.terms import Adversarial

pytestmark = pytest.mark.slow


def checked(ratios: list[measure.Ratio]) -> None:
    assert ratios
    for r in ratios:
        assert r.what
        assert len(r.ours) == len(r.theirs) >= 1
        assert 0 <= r.spread[0] <= r.median <= r.spread[1]


def test_calls_and_shares_are_measured() -> None:
    checked(criterion.calls(8, 3, repeats=1, compiling=False))
    checked(dense.calls((2, 3, 4, 4), repeats=1))
    checked(criterion.shares(depth=8, repeats=1))


def test_meta_and_augmented_steps_are_measured() -> None:
    checked([*steps.meta(8, 1, batch=4), *steps.augmented(8, 1, batch=4)])


def test_two_processes_are_measured() -> None:
    checked(processes.measure(8, 2))


def test_adversarial_steps_are_measured_and_foolbox_finds_the_same_perturbation() -> None:
    pytest.importorskip("foolbox", reason="the peer is in the extra `bench`", exc_type=ImportError)
    checked(steps.adversarial(8, 1, batch=2))
    model, _, x, y = steps.setting(8, batch=4)
    ours = Compensated(feature=Adversarial(steps.EPS, steps=3, random_start=False, bounds=(0, 1)))
    theirs = steps.foolbox_attack(model, x, y, steps=3, random_start=False)
    torch.testing.assert_close(x + ours.evaluate(model, x, y).dx, theirs)
    assert (theirs - x).abs().max() == pytest.approx(steps.EPS, rel=1e-3)


def test_arcface_is_that_of_pytorch_metric_learning() -> None:
    pytest.importorskip("pytorch_metric_learning", reason="the peer is in the extra `bench`")
    checked(steps.margins(1, batch=4, classes=5, features=3))
    for seed in range(5):
        torch.manual_seed(seed)
        ours, peer = steps.arcface_pair(7, 5, scale=16.0)
        z, y = torch.randn(9, 5, requires_grad=True), torch.randint(7, (9,))
        found = [(loss, *torch.autograd.grad(loss, z)) for loss in (ours(z, y), peer(z, y))]
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_reports_have_the_form_that_the_page_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    ratios = [
        measure.Ratio("fast", "slow", [1.0, 2.0], [2.0, 2.0], bar=0.9),
        measure.Ratio("heavy", "light", [3.0], [1.0], bar=2.0, quantity="memory"),
        measure.Ratio("share", "step", [0.02], [1.0]),
    ]
    path = measure.report("demo", ratios, about="A sentence.", threads=1)
    assert path == tmp_path / "demo.json"
    assert "NOT met" in capsys.readouterr().out
    (tmp_path / "other.json").write_text(json.dumps({"rows": []}))
    forms = pages.stored(tmp_path)
    assert [*forms] == ["demo"]
    text = pages.page(forms, {"demo": "img/performance-demo.png"})
    assert "1 of 2 bars are met. Not met: heavy (demo)." in text
    assert "| fast | slow | 0.75 | 0.5 to 1 | 2 | 0.9 | met |" in text
    assert "| heavy (memory) | light | 3 |  | 1 | 2 | **not met** |" in text
    assert "| share | step | 2 % |" in text
    pages.plot(forms["demo"], tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes()[:4] == b"\x89PNG"


def test_quick_results_are_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    path = measure.report("demo", [measure.Ratio("a", "b", [1.0], [1.0])], about="x", quick=True)
    assert path == tmp_path / "quick" / "demo.json"
    assert pages.stored(tmp_path) == {}


def test_the_page_shows_the_stored_figures() -> None:
    forms = pages.stored()
    assert {"criterion", "steps", "processes"} <= forms.keys()
    text = (Path(__file__).parent.parent / "docs" / "performance.md").read_text()
    for name in ("criterion", "steps", "processes"):
        for row in pages.page({name: forms[name]}, {}).splitlines():
            assert not row.startswith("|") or row in text, "make docs"


def test_large_data_is_made_with_the_labels_that_are_said_to_be_wrong(tmp_path: Path) -> None:
    path, wrong = planted.table(tmp_path, 3_000)
    frame = pd.read_csv(path)
    assert len(frame) == len(wrong) == 3_000
    assert 0.08 < wrong.mean() < 0.12
    assert 0.01 < frame.isna().to_numpy().mean() < 0.03
    folder, wrong = planted.images(tmp_path, 60)
    _, true = planted._shapes(60, np.random.default_rng(0))
    files = sorted(p for p in folder.rglob("*.png"))  # as the reader of folders sorts them
    given = [int(p.parent.name.removeprefix("class ")) for p in files]
    assert wrong.tolist() == [g != true[int(p.stem)] for g, p in zip(given, files, strict=True)]


def test_a_large_audit_is_compared_with_a_smaller_one_of_its_kind() -> None:
    def cost(kind: str, rows: int, seconds: float) -> stages.Cost:
        return stages.Cost(kind, rows, dict.fromkeys(stages.STAGES, 0.0), seconds, 10**9, 1.0, 1.0, 0.0)

    some = [cost("table", 100_000, 30.0), cost("table", 1_000_000, 60.0), cost("texts", 1_000_000, 90.0)]
    (growth,) = stages.ratios(some, barred=True)
    assert growth.median == pytest.approx(2.0)
    assert growth.bar == stages.GROWTH


def test_the_page_shows_what_stages_cost() -> None:
    page = (Path(__file__).parents[1] / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert page.partition("<!-- stages -->\n")[2].partition("<!-- /stages -->")[0].strip() == stages.table()


def test_every_benchmark_has_an_entry() -> None:
    assert {"criterion", "steps", "processes", "loader", "kmeans"} <= set(names())
    assert not {"measure", "pages", "planted", "soak"} & set(names())


def test_copies_are_found_as_the_documentation_says() -> None:
    from benchmarks import issues
    from benchmarks.duplicates import table

    page = (Path(__file__).parents[1] / "docs" / "detection.md").read_text(encoding="utf-8")
    assert page.partition("<!-- duplicates -->\n")[2].partition("<!-- /duplicates -->")[0].strip() == table()
    assert page.partition("<!-- issues -->\n")[2].partition("<!-- /issues -->")[0].strip() == issues.table()
    stored = {line.split(" | ")[0][2:]: line for line in table().partition("\n\n")[0].splitlines()}
    for name in ("sst2", "imdb", "cifar10"):  # AG News has copies of its own
        precision, recall = (float(cell) for cell in stored[name].split(" | ")[1:3])
        assert precision >= 0.95
        assert recall >= 0.95
