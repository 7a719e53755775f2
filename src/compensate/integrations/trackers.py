"""Log audits to MLflow or Weights & Biases: five figures, the review page and the list of suspects.

Trainings are tracked by accelerate: `compensate train --tracker tensorboard`, mlflow or wandb.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compensate.errors import InputError, nearest
from compensate.extras import require

if TYPE_CHECKING:
    from compensate.auditing.result import Audit

TRACKERS = ("mlflow", "wandb")


def log_audit(audit: Audit, to: str, run: Any = None) -> dict[str, float]:
    """Logs an audit to the active run, and returns its figures.

    Args:
        audit: the audit.
        to: "mlflow" or "wandb".
        run: a run of Weights & Biases, or the id of a run of MLflow; by default the active one.

    The figures are noise_rate, noise_rate_low, noise_rate_high, flagged and expected_precision. ``report.html``, ``suspects.csv`` and,
    if the audit has issues, ``issues.csv`` are artifacts.

    >>> log_audit(None, "mlflw")
    Traceback (most recent call last):
    compensate.errors.InputError: there is no tracker "mlflw"; did you mean "mlflow"?
    """
    if to not in TRACKERS:
        raise InputError(f'there is no tracker "{to}"; {nearest(to, TRACKERS)}')
    rate = audit.noise_rate
    figures = {
        "noise_rate": float(rate.value),
        "noise_rate_low": float(rate.low),
        "noise_rate_high": float(rate.high),
        "flagged": float(audit.mask.sum()),
        "expected_precision": float(audit.expected_precision),
    }
    (_log_mlflow if to == "mlflow" else _log_wandb)(audit, figures, run)
    return figures


@contextmanager
def _files(audit: Audit) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="compensate-") as place:
        folder = Path(place)
        audit.report(folder / "report.html")
        audit.write_suspects(folder / "suspects.csv")
        if audit.found_issues is not None:
            audit.write_issues(folder / "issues.csv")
        yield folder


def _log_mlflow(audit: Audit, figures: dict[str, float], run: Any) -> None:
    mlflow = require("mlflow", "logging to MLflow", "mlflow")
    run = run if run is not None else mlflow.active_run() and mlflow.active_run().info.run_id
    if run is None:
        raise InputError(
            'no run of MLflow is active; call log_audit within "with mlflow.start_run():", or give run="...".'
        )
    client = mlflow.MlflowClient()
    for name, value in figures.items():
        client.log_metric(run, name, value)
    with _files(audit) as folder:
        client.log_artifacts(run, str(folder), "audit")


def _log_wandb(audit: Audit, figures: dict[str, float], run: Any) -> None:
    wandb = require("wandb", "logging to Weights & Biases", "wandb")
    run = run if run is not None else wandb.run
    if run is None:
        raise InputError("no run of Weights & Biases is active; call wandb.init() first, or give run=.")
    run.log(figures)
    artifact = wandb.Artifact("audit", type="label-audit")
    with _files(audit) as folder:
        artifact.add_dir(str(folder))
        run.log_artifact(artifact)
