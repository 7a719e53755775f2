"""Log audits to MLflow or Weights & Biases: five figures, the review page and the list of suspects."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compensate.errors import InputError, nearest
from compensate.extras import require

if TYPE_CHECKING:
    from compensate.auditing.result import Audit

TRACKERS = {"mlflow": "MLflow", "wandb": "Weights & Biases"}


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
        raise InputError(f'there is no tracker "{to}"; {nearest(to, list(TRACKERS))}')
    names = ("noise_rate", "noise_rate_low", "noise_rate_high", "flagged", "expected_precision")
    figures = {name: float(audit.figures[name]) for name in names}
    library = require(to, f"logging to {TRACKERS[to]}", to)
    if to == "mlflow":
        run = run if run is not None else library.active_run() and library.active_run().info.run_id
        remedy = 'call log_audit within "with mlflow.start_run():", or give run="...".'
    else:
        run = run if run is not None else library.run
        remedy = "call wandb.init() first, or give run=."
    if run is None:
        raise InputError(f"no run of {TRACKERS[to]} is active; {remedy}")
    with tempfile.TemporaryDirectory(prefix="compensate-") as folder:
        audit.report(Path(folder) / "report.html")
        audit.write_suspects(Path(folder) / "suspects.csv")
        if audit.found_issues is not None:
            audit.write_issues(Path(folder) / "issues.csv")
        if to == "mlflow":
            client = library.MlflowClient()
            for name, value in figures.items():
                client.log_metric(run, name, value)
            client.log_artifacts(run, folder, "audit")
        else:
            run.log(figures)
            artifact = library.Artifact("audit", type="label-audit")
            artifact.add_dir(folder)
            run.log_artifact(artifact)
    return figures
