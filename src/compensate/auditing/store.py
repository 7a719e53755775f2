"""The folder of an audit: its name, and writing and reading it.

A folder holds one audit. It is written next to its place under a hidden name and renamed once it is complete: a process that is killed leaves the
former audit or the new one. Files may be damaged or forged, so every field is checked before it is used.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compensate.auditing import decisions as journal
from compensate.auditing.content import KINDS
from compensate.auditing.findings import Provenance
from compensate.auditing.issues import COLUMNS, records
from compensate.auditing.issues import KINDS as ISSUES
from compensate.auditing.labels import kind_of
from compensate.auditing.sampling import SAMPLE
from compensate.auditing.write_back import write_csv
from compensate.data.dataset import STORED, Estimate, Source
from compensate.errors import InputError
from compensate.files import check_writable, make_folder, read_numpy, replaced_folder, write_atomically

if TYPE_CHECKING:
    from compensate.auditing.result import Audit

FORMAT = 2
"""Of the files that `save_audit` writes."""

FILES = frozenset((
    "annotators.csv", "audit", "config.json", "consensus.csv", "corrections.csv", "decisions.jsonl", "expected.csv", "issues.csv", "label_again.csv",
    "labels.csv", "metrics.jsonl", "model.safetensors", "predictions.csv", "report.html", "review.lock", "sample.json", "suspects", "suspects.csv",
))  # fmt: skip
"""The files of an audit or a consensus. A folder that holds anything else is not replaced."""


def run_name(title: str, asked: Mapping[str, Any]) -> str:
    """The name of a run's folder: the name of the data, and a digest of everything that the audit depends on."""
    stem = re.sub(r"[^\w.-]+", "-", Path(title).stem).strip("-.")[:60] or "data"
    digest = hashlib.sha256(json.dumps(dict(asked), sort_keys=True, default=str).encode("utf-8", "surrogatepass"))
    return f"{stem}-{digest.hexdigest()[:8]}"


def check_run_folder(folder: Path, source_digest: str | None = None) -> None:
    """Refuses a folder for a run that cannot be written to, is being reviewed, or holds other files or decisions about other data."""
    check_writable(folder)
    if (folder / journal.LOCK).exists():
        with journal.reviewing(folder):
            pass
    if source_digest is not None and any((folder / name).exists() for name in (journal.JOURNAL, journal.CORRECTIONS)):
        try:
            known = json.loads((folder / "config.json").read_bytes())["source_digest"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            known = None
        if known != source_digest:
            raise InputError(
                f"{folder} holds decisions about other data, which would be lost. Name another folder with --out, or move them: "
                f"{folder / journal.CORRECTIONS}."
            )
    others = sorted({p.name for p in folder.iterdir()} - FILES) if folder.is_dir() else []
    if others:
        raise InputError(
            f"{folder} holds {others[0]}, which an audit does not write. A run's folder is replaced as a whole: move the "
            "file elsewhere, or name another folder with --out."
        )


def write_run(
    found: Audit, folder: Path, decisions: Iterable[journal.Correction] = (), more: Callable[[Path], Any] | None = None
) -> Path:
    """Writes the whole folder of a run: its configuration, curves, lists, page, model and the audit itself.

    Decisions and the sample in the folder are kept; `decisions` are earlier ones, and `more` writes further files.
    """
    check_run_folder(folder, found.source_digest)
    with replaced_folder(folder) as new:
        kept = {decision.index: decision for decision in (*decisions, *journal.run_decisions(folder))}
        for name in (journal.JOURNAL, SAMPLE):
            if (folder / name).is_file():
                (new / name).write_bytes((folder / name).read_bytes())
        if kept:
            journal.write_corrections(new / journal.CORRECTIONS, (kept[row] for row in sorted(kept)))
        config = {**found.config, "source_digest": found.source_digest}
        write_atomically(new / "config.json", json.dumps(config, indent=1, default=str).encode())
        if any(found.curves.values()):
            curves = pd.DataFrame(found.curves).round(5)
            curves.insert(0, "epoch", range(1, len(curves) + 1))
            write_atomically(new / "metrics.jsonl", curves.to_json(orient="records", lines=True).encode())
        found.write_suspects(new / "suspects.csv")
        if not found.provenance.by_chance:
            write_csv(new / "expected.csv", found.workload)
        if len(found.predicted):
            write_csv(new / "predictions.csv", found.predicted)
        if found.found_issues is not None:
            found.write_issues(new / "issues.csv")
        found.save(new / "audit")
        if found.model is not None:
            from compensate.training.checkpoint import save_weights

            save_weights(new / "model.safetensors", found.model.state_dict())
        found.report(new / "report.html")
        if more is not None:
            more(new)
    return folder


def save_audit(found: Audit, folder: Path) -> None:
    """Writes ``audit.json`` and ``audit.npz``; the first holds the checksum of the second."""
    make_folder(folder)
    arrays: dict[str, Any] = {
        "index": found.index, "given": found.given, "suggested": found.suggested,
        "score": found.log_odds, "p_error": found.p_error,
        **{f"evidence.{k}": v for k, v in found.evidence.items()},
        **{f"unlabeled.{k}": v for k, v in found.unlabeled.items()},
        "probabilities": found.probabilities, "row_digests": found.row_digests,
        "sample": found.rows if found.addresses else None,
    }  # fmt: skip
    packed = io.BytesIO()
    np.savez_compressed(packed, **{name: values for name, values in arrays.items() if values is not None})
    rate = found.noise_rate
    texts = {
        "format": FORMAT,
        "arrays": hashlib.sha256(packed.getvalue()).hexdigest(),
        **{
            name: getattr(found, name)
            for name in ("kind", "title", "classes", "ids", "config", "notes", "source_digest")
        },
        "parts": [found.part(i) for i in range(len(found.addresses))],
        "noise_rate": [rate.value, rate.low, rate.high],
        "curves": dict(found.curves),
    }
    if found.found_issues is not None:
        texts["issues"] = [list(row.values()) for row in records(found.found_issues)]
    write_atomically(folder / "audit.npz", packed.getvalue())
    text = json.dumps(texts, ensure_ascii=False, indent=1, default=str)
    write_atomically(folder / "audit.json", text.encode("utf-8", "surrogatepass"))
    if found.scorer is not None:
        found.scorer.save(folder)


def load_audit(folder: Path) -> dict[str, Any]:
    """The checked fields of the audit in a folder."""
    if not (folder / "audit.json").exists():
        raise InputError(
            f"{folder} holds no audit that can be read: there is no audit.json. Expected the folder of a run that `compensate "
            "audit` wrote, such as runs/reviews-3f2a1b9c."
        )
    try:
        texts = json.loads((folder / "audit.json").read_bytes().decode("utf-8", "surrogatepass"))
        _expect(isinstance(texts, dict), "audit.json is not a table of fields")
        if texts.get("format") != FORMAT:
            raise InputError(
                f"{folder} was written by another version (format {texts.get('format')!r:.40}); audit the data again."
            )
        digest = hashlib.sha256((folder / "audit.npz").read_bytes()).hexdigest()
        _expect(digest == texts.get("arrays"), "audit.npz is not the file that audit.json was written with")
        arrays = read_numpy(folder / "audit.npz")
        if not isinstance(arrays, dict):
            raise InputError("audit.npz is a single array")
        evidence, unlabeled = (
            {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}
            for prefix in ("evidence.", "unlabeled.")
        )
        _check_texts(texts)
        _check_arrays(arrays, unlabeled, len(texts["classes"]))
        for name in ("ids", "parts"):
            _expect(len(texts.get(name, ())) in (0, len(arrays["index"])), f"{name} are not one for each row")
        parts = texts.get("parts", [])
        label_kind = kind_of(parts[0] if parts else "", texts["kind"])
        rows = arrays.get("sample", np.full(len(parts), -1)).tolist()
        addresses = tuple(label_kind.parse(part, row) for part, row in zip(parts, rows, strict=False))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, InputError) and str(folder) in str(error):
            raise
        raise InputError(
            f"{folder} holds no audit that can be read ({error or type(error).__name__}); expected the audit.json and "
            "audit.npz of one audit. Audit the data again."
        ) from error
    config, issues = texts["config"], None
    known = {f.name: config[f.name] for f in fields(Provenance) if f.name in config}
    if "issues" in texts:
        issues = pd.DataFrame(texts["issues"], columns=list(COLUMNS))
        issues = issues.astype({"index": "Int64", "other": "Int64", "score": "float64"})
    return {
        "kind": texts["kind"],
        "source": Source(
            title=texts["title"],
            digest=texts["source_digest"],
            path=config.get("source") or "",
            **{name: config[name] for name in STORED if name in config},
        ),
        "label_kind": label_kind,
        "provenance": Provenance(
            **known | {name: tuple(known.get(name, ())) for name in ("labels", "annotators", "expected")}
        ),
        "curves": texts["curves"],
        **{name: tuple(texts[name]) for name in ("classes", "ids", "notes")},
        "log_odds": arrays["score"],
        **{n: arrays.get(n) for n in ("index", "given", "suggested", "p_error", "probabilities", "row_digests")},
        "addresses": addresses,
        "noise_rate": Estimate(*texts["noise_rate"]),
        "found_issues": issues,
        "evidence": evidence,
        "unlabeled": unlabeled,
        "fitted": folder,
    }


def _expect(fits: Any, why: str) -> None:
    if not fits:
        raise InputError(why)


FIELDS: Mapping[str, Any] = {
    "kind": str, "title": str, "source_digest": str, "classes": [str], "ids": [str], "notes": [str], "noise_rate": [float],
    "curves": {"": [float]}, "config": dict, "parts": [str], "issues": [list],
}  # fmt: skip
"""Fields of ``audit.json`` and their types; the last two may be missing."""


def _has_type(value: Any, kind: Any) -> bool:
    """Whether a value of JSON has a type: ``[str]`` is a list of texts, ``{"": str}`` a table of texts."""
    if isinstance(kind, list):
        return isinstance(value, list) and all(_has_type(one, kind[0]) for one in value)
    if isinstance(kind, dict):
        return isinstance(value, dict) and all(_has_type(one, kind[""]) for one in value.values())
    return isinstance(value, (int, float)) and type(value) is not bool if kind is float else isinstance(value, kind)


def _check_texts(texts: Mapping[str, Any]) -> None:
    """Refuses an audit.json that lacks a field or has an unusable one."""

    def is_issue(row: list[Any]) -> bool:
        if len(row) != len(COLUMNS):
            return False
        issue, index, other, column, score, given, detail = row
        rows = all(number is None or (type(number) is int and 0 <= number < 1 << 62) for number in (index, other))
        known = rows and _has_type([issue, column, given, detail], [str]) and issue in ISSUES
        return known and _has_type(score, float) and math.isfinite(score)

    for name, kind in FIELDS.items():
        _expect(name in texts or name in ("parts", "issues"), f"audit.json lacks {name}")
        _expect(name not in texts or _has_type(texts[name], kind), f"{name} in audit.json is not valid")
    rate, named = texts["noise_rate"], [texts["config"].get(name) for name in ("source", "label", "text")]
    _expect(texts["kind"] in KINDS, "kind in audit.json is not valid")
    _expect(len(set(texts["classes"])) == len(texts["classes"]), "classes in audit.json are not distinct")
    _expect(len(rate) == 3 and all(map(math.isfinite, rate)), "noise_rate in audit.json is not valid")
    _expect(_has_type([name for name in named if name is not None], [str]), "config in audit.json is not valid")
    _expect(all(map(is_issue, texts.get("issues", ()))), "issues in audit.json are not valid")


def _check_arrays(arrays: Mapping[str, Any], missing: Mapping[str, Any], classes: int) -> None:
    """Refuses an audit.npz that lacks an array or has one of another shape or with impossible values."""
    for name in ("index", "given", "suggested", "score", "p_error"):
        _expect(name in arrays, f"audit.npz lacks {name}")

    def numbers(values: NDArray[Any], like: NDArray[Any], kinds: str = "iuf") -> bool:
        return values.shape == like.shape and values.dtype.kind in kinds

    def rows(values: NDArray[Any], like: NDArray[Any], end: int = 1 << 62) -> bool:
        return numbers(values, like, "iu") and bool(((values >= 0) & (values < end)).all())

    def labels(values: NDArray[Any], like: NDArray[Any]) -> bool:
        return rows(values, like, classes) if classes else numbers(values, like, "f") and np.isfinite(values).all()

    def distinct(values: NDArray[Any]) -> bool:
        return values.ndim == 1 and rows(values, values) and len(np.unique(values)) == len(values)

    index, score, p = arrays["index"], arrays["score"], arrays["p_error"]
    p_class, digests = arrays.get("probabilities"), arrays.get("row_digests")
    valid = {
        "index": distinct(index),
        "given": labels(arrays["given"], index),
        "suggested": labels(arrays["suggested"], index),
        "score": numbers(score, index) and not np.isnan(score).any(),
        "p_error": numbers(p, index) and ((p >= 0) & (p <= 1)).all(),
        "probabilities": p_class is None or (p_class.shape == (*index.shape, classes) and p_class.dtype.kind == "f"),
        "sample": rows(arrays.get("sample", index), index),
        "row_digests": digests is None or (digests.shape == index.shape and digests.dtype == np.uint64),
        "evidence": all(numbers(v, index) for name, v in arrays.items() if name.startswith("evidence.")),
        "unlabeled": not missing or (
            set(missing) == {"index", "suggested", "probability"} and distinct(missing["index"])
            and labels(missing["suggested"], missing["index"]) and numbers(missing["probability"], missing["index"], "f")
        ),
    }  # fmt: skip
    for name, fits in valid.items():
        _expect(fits, f"{name} in audit.npz is not valid")
