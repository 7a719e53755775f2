"""An audit after another one, with the decisions that people made on the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compensate.auditing.corrections import Correction
from compensate.auditing.decisions import RowPlaces
from compensate.auditing.journal import run_decisions
from compensate.auditing.result import Audit
from compensate.data.dataset import Data
from compensate.errors import InputError

ASKED: dict[str, tuple[type, ...]] = {
    "data": (str, type(None)), "labels": (str, type(None)), "features": (str, type(None)), "probs": (str, type(None)),
    "data_dir": (str, type(None)), "options": (dict,), "encoder": (str,), "model": (str, type(None)),
    "finetune": (bool,), "crossfit": (bool,), "epochs": (int, type(None)), "batch_size": (int, type(None)),
    "lr": (int, float, type(None)), "precision": (str,), "seed": (int,),
}  # fmt: skip
"""What a run keeps of how it was asked for."""


@dataclass(frozen=True, eq=False)
class Before:
    """A run that was reviewed.

    Attributes:
        folder: of the run.
        audit: what it found.
        asked: how it was asked for.
        decisions: what was decided.
    """

    folder: Path
    audit: Audit
    asked: Mapping[str, Any]
    decisions: tuple[Correction, ...]


def read_before(run: Path) -> Before:
    """A run from its folder; refused if it cannot be asked for again, or if nothing was decided."""
    audit = Audit.load(run / "audit")
    asked = audit.config.get("asked")
    fits = isinstance(asked, dict) and all(
        name in asked and isinstance(asked[name], kinds) for name, kinds in ASKED.items()
    )
    if not fits:
        raise InputError(
            f"{run} does not say how it was made; expected a run that `compensate audit` wrote. Audit again."
        )
    assert isinstance(asked, dict)
    if audit.regression or asked["probs"]:
        raise InputError(
            f"{run} is an audit of quantities or of probabilities, for which decisions cannot be used again."
        )
    decisions = tuple(d for d in run_decisions(run) if d.decision != "skip")
    if not decisions:
        raise InputError(f"nothing was decided in {run}; review it first: compensate review {run}.")
    return Before(run, audit, asked, decisions)


def check_about(before: Before, data: Data) -> None:
    """Refuses decisions of which no row is in the data: they were made on something else."""
    places = RowPlaces(data)
    if all(places.find(decision) is None for decision in before.decisions):
        here = data.info.get("title", "the data")
        raise InputError(
            f"the decisions in {before.folder} are about {before.audit.title}, and none of their rows is in {here}; give the run of a "
            f"review of {here}, or leave {here} out to audit {before.audit.title} again."
        )


def changed_since(found: Audit, before: Audit, run: Path) -> Audit:
    """The audit with what changed since another one: suspects that are new, and rows that are suspect no longer.

    Args:
        found: made with decisions about labels of the other.
        before: the other one.
        run: its folder, for the report.
    """
    decided = found.config.get("decided") or {"rows": [], "corrected": 0, "confirmed": 0}
    there, here = _suspects(before, found), {int(i) for i in found.index[found.mask]}
    known = {int(i) for i in found.index}
    since = {
        "run": run.name,
        "corrected": decided["corrected"],
        "confirmed": decided["confirmed"],
        "new": sorted(here - there),
        "gone": sorted((there & known) - here - set(decided["rows"])),
    }
    config = {name: value for name, value in found.config.items() if name != "decided"}
    return replace(found, config={**config, "since": since})


def _suspects(before: Audit, found: Audit) -> set[int]:
    """The flagged rows of an earlier audit, as rows of the present data: by number, or by content if the file is another one."""
    rows = np.flatnonzero(before.mask)
    if before.source_digest == found.source_digest or found.row_digests is None or before.row_digests is None:
        return {int(i) for i in before.index[rows]}
    flagged: NDArray[np.uint64] = before.row_digests[rows]
    return {int(i) for i in found.index[np.isin(found.row_digests, flagged[flagged > 0])]}
