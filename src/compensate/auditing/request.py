"""Runs of audits: what was asked for, the run folder, and audits that use the decisions made on an earlier one."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from compensate.auditing.api import audit_probabilities
from compensate.auditing.chunks import FinishedStages, open_chunks
from compensate.auditing.content import digest_file
from compensate.auditing.decisions import LOCK, Correction, Journal, find_rows, run_decisions
from compensate.auditing.features import make_views, unused_encoder
from compensate.auditing.issues import find_issues
from compensate.auditing.labels import labels_of
from compensate.auditing.labels.base import Classes
from compensate.auditing.result import Audit
from compensate.auditing.sampling import Sample
from compensate.auditing.source import read
from compensate.auditing.store import check_run_folder, run_name, write_run
from compensate.data import UnclearLabel, load, read_labels
from compensate.data.dataset import Dataset, Source
from compensate.errors import InputError
from compensate.files import check_writable, is_address, read_array

STORED_TYPES: dict[str, tuple[type, ...]] = {
    "data": (str, type(None)), "labels": (str, type(None)), "features": (str, type(None)), "probs": (str, type(None)),
    "data_dir": (str, type(None)), "options": (dict,), "encoder": (str,), "model": (str, type(None)),
    "finetune": (bool,), "crossfit": (bool,), "epochs": (int, type(None)), "batch_size": (int, type(None)),
    "lr": (int, float, type(None)), "precision": (str,), "seed": (int,),
}  # fmt: skip
"""The types of a stored request, which may have been edited."""


@dataclass(frozen=True, kw_only=True)
class AuditRequest:
    """The data to audit and the settings, as for `compensate.audit`; a run stores it, and an audit that follows the run starts from it."""

    data: str | None = None
    labels: Path | None = None
    features: Path | None = None
    probs: Path | None = None
    describe: Path | None = None
    opinion: Path | None = None
    data_dir: Path | None = None  # of named data sets
    options: dict[str, Any] = field(default_factory=dict)  # of the reader
    encoder: str = "auto"
    model: str | None = None
    finetune: bool = False
    crossfit: bool = False
    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    precision: str = "no"  # of the arithmetic of a training
    flag_precision: float | None = None
    budget: int | None = None
    seed: int | None = None
    only: str | None = None  # "labels" leaves out duplicates, outliers and other issues
    test: str | None = None
    memory: str | None = None
    backend: str = "local"

    def with_defaults(self, stored: Mapping[str, Any]) -> AuditRequest:
        """This request, with the settings of a stored one where it has none."""
        kept = {name: value for name, value in stored.items() if name in AuditRequest.__dataclass_fields__}
        paths = ("labels", "features", "describe", "opinion", "data_dir")
        kept |= {name: kept[name] and Path(kept[name]) for name in paths if name in kept}
        empty = AuditRequest()
        given = {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != getattr(empty, f.name)}
        return replace(empty, **{**kept, "probs": None, **given, "options": {**stored["options"], **self.options}})

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `compensate.audit`."""
        others = {"data", "labels", "features", "probs", "data_dir", "options", "only", "test", "flag_precision", "budget"}  # fmt: skip
        settings = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in others}
        return settings | {"seed": self.seed or 0}

    @property
    def in_chunks(self) -> bool:
        """Whether the data are read in chunks."""
        return self.memory is not None or self.backend != "local" or is_address(self.data)

    def stored(self) -> dict[str, Any]:
        """The request as a run stores it."""
        values = {f.name: getattr(self, f.name) for f in fields(self)} | self.settings
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


@dataclass(frozen=True, eq=False)
class ReviewedRun:
    """A run and the decisions made on it."""

    folder: Path
    audit: Audit
    request: Mapping[str, Any]
    decisions: tuple[Correction, ...]

    @classmethod
    def load(cls, run: Path) -> ReviewedRun:
        """Loads a run; refuses one without decisions or without a stored request."""
        audit = Audit.load(run / "audit")
        request = audit.provenance.asked
        types = STORED_TYPES.items()
        if not isinstance(request, dict) or not all(n in request and isinstance(request[n], kind) for n, kind in types):
            raise InputError(
                f"{run} does not say how it was made; expected a run that `compensate audit` wrote. Audit again."
            )
        if audit.regression or request["probs"]:
            raise InputError(
                f"{run} is an audit of quantities or of probabilities, for which decisions cannot be used again."
            )
        decisions = tuple(d for d in run_decisions(run) if d.settled)
        if not decisions:
            raise InputError(f"nothing was decided in {run}; review it first: compensate review {run}.")
        return cls(run, audit, request, decisions)

    def compare(self, new: Audit) -> Audit:
        """The new audit, with the suspects that are new and the rows that are suspect no longer."""
        decided = new.provenance.decided or {"rows": [], "corrected": 0, "confirmed": 0}
        rows, before = np.flatnonzero(self.audit.mask), self.audit
        if before.source_digest == new.source_digest or new.row_digests is None or before.row_digests is None:
            there = set(before.index[rows].tolist())
        else:
            flagged = before.row_digests[rows]
            there = set(new.index[np.isin(new.row_digests, flagged[flagged > 0])].tolist())
        here, known = set(new.index[new.mask].tolist()), set(new.index.tolist())
        since = {
            "run": self.folder.name, "corrected": decided["corrected"], "confirmed": decided["confirmed"],
            "new": sorted(here - there), "gone": sorted((there & known) - here - set(decided["rows"])),
        }  # fmt: skip
        return replace(new, provenance=replace(new.provenance, decided=None, since=since))


def run_audit(
    request: AuditRequest,
    judge: Callable[..., Audit],
    *,
    reviewed: ReviewedRun | None = None,
    out: Path | None = None,
    ask_label: Callable[[UnclearLabel], str] | None = None,
    ask_merge: Callable[[Dataset], bool] | None = None,
) -> tuple[Audit, Path]:
    """Audits data and writes the run folder, by default one whose name contains a digest of the request and the data.

    Args:
        judge: called with the data and the arguments of `compensate.audit`.
        reviewed: an earlier run whose decisions are used.
        ask_label: chooses the label column if it is unclear.
        ask_merge: decides whether classes whose names differ only in spelling are merged.
    """
    if request.data is None and request.probs is None:
        raise InputError("no data is given; write for example: compensate audit reviews.csv.")
    runs = Path("runs") if reviewed is None else reviewed.folder.parent
    check_writable(out or runs)
    decisions: dict[str, Any] = {} if reviewed is None else {"decisions": reviewed.decisions}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = _read(request, ask_label, ask_merge)
        if reviewed is not None and data is not None and data.parts is None:
            here = data.source.title
            if all(row is None for row in find_rows(data, reviewed.decisions)):
                raise InputError(
                    f"the decisions in {reviewed.folder} are about {reviewed.audit.title}, and none of their rows is in {here}; give "
                    f"the run of a review of {here}, or leave {here} out to audit {reviewed.audit.title} again."
                )
        files = (request.labels, request.features, request.probs)
        first = next((file.name for file in files if file is not None), "data")
        source = Source(title=first) if data is None else data.source
        path = source.path if not source.path or is_address(source.path) else str(Path(source.path).absolute())
        others = [file for file in (request.describe, request.opinion) if file is not None]
        named = [digest_file(f) if f and f.is_file() else f for f in (*files, *others)]
        given = {"data": path, "digest": source.digest, "files": named}
        given |= {"flags": [request.flag_precision, request.budget]} if request.flag_precision or request.budget else {}
        given["data_dir"] = request.data_dir and request.data_dir.absolute()
        name = run_name(source.title, {**request.options, **request.settings, **decisions, **given})
        folder = out or runs / name
        check_run_folder(folder, source.digest)
        # Checkpoints and finished stages are kept next to the run folder until the run is written. The same request finds
        # them again; those of another request are left alone.
        stages = folder.with_name(f".{folder.name}.{name.rpartition('-')[2]}.training")
        keeps_stages = request.model is not None or request.finetune or request.in_chunks
        if request.probs is not None:
            key, encoder = request.options.get("labels_key"), request.encoder
            audit = audit_probabilities(
                read_array(request.probs), read_labels(request.labels, key).cells if request.labels else data.target,
                classes=None if data is None else list(data.classes), title=source.title, data=data,
                encoder=encoder, describe=request.describe, opinion=request.opinion,
            )  # fmt: skip
            unused = unused_encoder(encoder, "probabilities") if request.describe is None else ()
            audit = replace(audit, notes=(*audit.notes, *unused))
        else:
            audit = judge(data, run_folder=stages if keeps_stages else None, **request.settings, **decisions)
            # Issues concern whole samples, and all samples have to be in memory.
            if request.only is None and is_main_process() and audit.by_row and audit.listed is None:
                test = None if request.test is None else read(request.test, None, None, request.options)
                audit = replace(audit, found_issues=find_issues(audit, test))
    if request.flag_precision is not None or request.budget is not None:
        audit = audit.flag(precision=request.flag_precision, budget=request.budget)
    audit = with_looks(audit, folder)
    if not is_main_process():
        return audit, folder
    notes = [str(w.message) for w in caught if w.category is UserWarning and "torch" not in str(w.filename)]
    provenance = replace(audit.provenance, asked=request.stored())
    audit = replace(audit, notes=tuple(dict.fromkeys([*audit.notes, *notes])), provenance=provenance)
    if reviewed is None:
        audit, more = (audit, None) if audit.data is None else labels_of(audit.data).files(audit, folder)
        if audit.listed is not None:
            more = partial(shutil.move, stages / "suspects")  # type: ignore[assignment]
            if audit.provenance.first is not None:
                FinishedStages(stages).flag(audit.index[audit.mask])
        write_run(audit, folder, more=more)
    else:
        audit = reviewed.compare(audit)
        write_run(audit, folder, [d for d in reviewed.decisions if d.source == audit.source_digest])
    if keeps_stages:
        shutil.rmtree(stages, ignore_errors=True)
    return audit, folder


def with_looks(audit: Audit, folder: Path) -> Audit:
    """The audit with the share and the probabilities that follow from the sample in a run folder, as far as it was looked at."""
    sample = Sample.load(folder)
    if sample is None or sample.sizes.sum() != len(audit) or audit.listed is not None:
        return audit
    looks = sample.looked(Journal(folder).answers)
    return audit if looks.wrong is None else audit.estimate(sample, looks.answers)


def rewrite_with_looks(audit: Audit, folder: Path) -> Audit:
    """Writes the run folder of a reopened audit again, with what a person saw in its sample; other files of the folder stay."""
    audit = with_looks(audit, folder)
    if audit.data is not None and isinstance(labels_of(audit.data), Classes):
        encoder = (audit.provenance.asked or {}).get("encoder", "auto")
        audit = replace(
            audit, vectors=make_views(audit.data, encoder).shown
        )  # examples on the page are found by features

    def keep(new: Path) -> None:
        for path in folder.iterdir():
            if path.is_file() and path.name != LOCK and not (new / path.name).exists():
                shutil.copy2(path, new / path.name)

    write_run(audit, folder, more=keep)
    return audit


def is_main_process() -> bool:
    """Whether this process writes files and output, if `torchrun` started several."""
    return os.environ.get("RANK", "0") == "0"


def reopen(folder: str | Path) -> Audit:
    """The audit of a run folder with its samples, if the data are still at their place; changed data are refused."""
    folder = Path(folder)
    audit = Audit.load(folder)
    named = {"label": audit.source.label, "text": audit.source.text}
    request = audit.provenance.asked or {
        "data": audit.source.path,
        "options": {name: value for name, value in named.items() if value} | audit.reading,
    }
    path = request.get("data")
    if not path or is_address(path) or not audit.source_digest:
        return audit
    options = {str(name): value for name, value in (request.get("options") or {}).items()}
    data = read(path, request.get("labels"), request.get("features"), options)
    if data.source.digest != audit.source_digest:
        raise InputError(f"{path} has changed since it was audited ({folder}); audit it again.")
    if audit.addresses:  # the index counts labels, not rows
        return replace(audit, data=data)
    return replace(audit, data=data.subset(pd.Index(data.index).get_indexer(pd.Index(audit.index))))


def _read(
    request: AuditRequest, ask_label: Callable[[UnclearLabel], str] | None, ask_merge: Callable[[Dataset], bool] | None
) -> Any:
    """The data, whole or in chunks; None for probabilities with a label file."""
    path, labels, features, options = request.data, request.labels, request.features, dict(request.options)
    if request.probs is not None:
        if labels is None and path is None:
            raise InputError("--probs needs the labels too: compensate audit --probs p.npy --labels y.npy.")
        return None if labels is not None else read(path, None, None, options)
    if request.in_chunks:
        odd = [f"--{name}" for name in ("test", "features") if getattr(request, name) is not None]
        if odd:
            raise InputError(f"{odd[0]} is not supported with --memory and --backend; leave it out.")
        return open_chunks(path, labels, options)
    if request.data_dir is not None and not Path(str(path)).exists():
        others: dict[str, Any] = {n: options.pop(n) for n in ("labels_key", "merge_alike") if n in options}
        data = load(path, request.data_dir, **options).train
        data = read(replace(data, source=replace(data.source, title=str(path))), labels, features, others)
    else:
        try:
            data = read(path, labels, features, options)
        except UnclearLabel as error:
            if ask_label is None:
                raise
            options = {**options, "label": ask_label(error)}
            data = read(path, labels, features, options)
    if "merge_alike" not in options and ask_merge is not None and ask_merge(data):
        data = read(data, None, None, {"merge_alike": True})
        request.options["merge_alike"] = True
    if "label" in options:
        data = replace(data, source=replace(data.source, label_given=True))
    return data
