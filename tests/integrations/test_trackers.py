"""Audits in experiment trackers: figures and files arrive, and a missing run is said."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compensate.auditing.api import audit
from compensate.auditing.result import Audit
from compensate.errors import InputError
from compensate.integrations.trackers import log_audit

FIGURES = {"noise_rate", "noise_rate_low", "noise_rate_high", "flagged", "expected_precision"}


@pytest.fixture(scope="module")
def found(small_learners: None) -> Audit:
    rng = np.random.default_rng(0)
    y = np.arange(80) % 2
    return audit(rng.normal(size=(80, 3)) + 5 * y[:, None], np.where(np.arange(80) == 7, 1 - y, y))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of MLflow, about itself
def test_mlflow_has_the_figures_and_the_page_in_a_local_store(
    found: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    try:
        mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
        with pytest.raises(InputError, match="no run of MLflow is active"):
            log_audit(found, "mlflow")
        with mlflow.start_run() as run:
            told = log_audit(found, "mlflow")
        stored = mlflow.MlflowClient().get_run(run.info.run_id)
        assert set(told) == FIGURES
        assert stored.data.metrics == pytest.approx(told)
        names = {Path(item.path).name for item in mlflow.MlflowClient().list_artifacts(run.info.run_id, "audit")}
        assert names == {"report.html", "suspects.csv"}
        page = mlflow.artifacts.download_artifacts(
            run_id=run.info.run_id, artifact_path="audit/report.html", dst_path=str(tmp_path)
        )
        assert Path(page).read_text().startswith("<!doctype html>")
    finally:
        mlflow.set_tracking_uri(None)


class Artifact:
    def __init__(self, name: str, type: str) -> None:
        self.name, self.files = name, set[str]()

    def add_dir(self, folder: str) -> None:
        self.files = {p.name for p in Path(folder).iterdir()}


def test_a_run_of_weights_and_biases_is_told_the_figures_and_the_files(
    found: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {}
    run = SimpleNamespace(log=told.update, log_artifact=lambda artifact: told.update(files=artifact.files))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=None, Artifact=Artifact))
    with pytest.raises(InputError, match=r"call wandb.init\(\) first"):
        log_audit(found, "wandb")
    figures = log_audit(found, "wandb", run)
    assert set(figures) == FIGURES
    assert told.pop("files") == {"report.html", "suspects.csv"}
    assert told == figures
    assert figures["flagged"] == found.mask.sum() >= 1


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_is_told_of_every_epoch(tmp_path: Path) -> None:
    """The trackers of a training are accelerate's; here the file that TensorBoard reads."""
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from compensate.training.fitting import Config, tracking

    with tracking(["tensorboard"], tmp_path, Config(method="logcomp")) as track:
        track({"epoch": 1, "loss": 0.5})
    assert [p for p in tmp_path.rglob("events.out.tfevents*") if p.stat().st_size > 0]
