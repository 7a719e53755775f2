"""The folder of an audit: what it is called, how it is written as a whole, and how it is read again.

A folder holds one audit. It is written beside its place under a hidden name and gets its own name once it is complete, so
that a process that is killed leaves the former audit or the new one, and never parts of both. What is read may have been
damaged or made by anybody, so every part is checked before it is used.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compensate.auditing.content import KINDS
from compensate.auditing.decisions import CORRECTIONS, JOURNAL, check_not_reviewed, keep_decisions
from compensate.data.dataset import STORED, Estimate, Source
from compensate.errors import InputError
from compensate.files import check_writable, make_folder, read_numpy, replaced_folder, write_atomically

if TYPE_CHECKING:
    from compensate.auditing.decisions import Correction
    from compensate.auditing.result import Audit

FORMAT = 2
"""Of the files that `save_audit` writes."""

FILES = frozenset(
    {
        "annotators.csv",
        "audit",
        "config.json",
        "consensus.csv",
        "corrections.csv",
        "decisions.jsonl",
        "issues.csv",
        "label_again.csv",
        "labels.csv",
        "metrics.jsonl",
        "model.safetensors",
        "predictions.csv",
        "report.html",
        "review.lock",
        "suspects",
        "suspects.csv",
    }
)
"""What an audit or a consensus writes. A folder that holds anything else is not replaced."""


def run_name(title: str, asked: Mapping[str, Any]) -> str:
    """The name of a run's folder: the data's, and a digest of everything that the audit depends on.

    >>> run_name("my reviews.csv", {"seed": 0}) == run_name("my reviews.csv", {"seed": 1})
    False
    """
    stem = re.sub(r"[^\w.-]+", "-", Path(title).stem).strip("-.")[:60] or "data"
    digest = hashlib.sha256(json.dumps(dict(asked), sort_keys=True, default=str).encode("utf-8", "surrogatepass"))
    return f"{stem}-{digest.hexdigest()[:8]}"


def check_run_folder(folder: Path, source_digest: str | None = None) -> None:
    """Refuses a place for a run that cannot be written to, or that holds anything but an earlier audit.

    An earlier audit is not replaced while it is being reviewed, nor if it holds decisions about other data than the new one, if
    that is known; decisions about the same data are kept.
    """
    check_writable(folder)
    check_not_reviewed(folder)
    if source_digest is not None and _has_decisions(folder) and _source_digest(folder) != source_digest:
        raise InputError(
            f"{folder} holds decisions about other data, which would be lost. Name another folder with --out, or move them: "
            f"{folder / CORRECTIONS}."
        )
    others = sorted({p.name for p in folder.iterdir()} - FILES) if folder.is_dir() else []
    if others:
        raise InputError(
            f"{folder} holds {others[0]}, which an audit does not write. A run's folder is replaced as a whole: move the "
            "file elsewhere, or name another folder with --out."
        )


def write_run(
    found: Audit, folder: Path, decisions: Iterable[Correction] = (), more: Callable[[Path], None] | None = None
) -> Path:
    """Writes the whole folder of a run: its configuration, curves, lists, page, model and the audit itself.

    Args:
        found: the audit.
        folder: where to write it; decisions about the same data that are there are kept.
        decisions: made before, about the labels of the same data.
        more: writes what else belongs into the folder.
    """
    check_run_folder(folder, found.source_digest)
    with replaced_folder(folder) as new:
        keep_decisions(folder, new, decisions)
        config = {**found.config, "source_digest": found.source_digest}
        write_atomically(new / "config.json", json.dumps(config, indent=1, default=str).encode())
        epochs = max((len(values) for values in found.curves.values()), default=0)
        lines = [
            json.dumps({"epoch": epoch + 1, **{name: round(values[epoch], 5) for name, values in found.curves.items()}})
            for epoch in range(epochs)
        ]
        if lines:
            write_atomically(new / "metrics.jsonl", ("\n".join(lines) + "\n").encode())
        found.write_suspects(new / "suspects.csv")
        if len(found.predicted):
            found.write_predictions(new / "predictions.csv")
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


def _has_decisions(folder: Path) -> bool:
    return any((folder / name).exists() for name in (JOURNAL, CORRECTIONS))


def _source_digest(folder: Path) -> str | None:
    """Of the data that a run is about, as far as it can be read."""
    try:
        return str(json.loads((folder / "config.json").read_bytes())["source_digest"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


# --- the audit itself -----------------------------------------------------------------------------------------


def save_audit(found: Audit, folder: Path) -> None:
    """Writes ``audit.json`` and ``audit.npz``; the first holds the checksum of the second, so that they belong together."""
    make_folder(folder)
    arrays: dict[str, Any] = {
        "index": found.index, "given": found.given, "suggested": found.suggested,
        "score": found.log_odds, "p_error": found.p_error,
        **{f"evidence.{k}": v for k, v in found.evidence.items()},
        **{f"unlabeled.{k}": v for k, v in found.unlabeled.items()},
    }  # fmt: skip
    if found.probabilities is not None:
        arrays["probabilities"] = found.probabilities
    if found.sample is not None:
        arrays["sample"] = found.sample
    if found.row_digests is not None:
        arrays["row_digests"] = found.row_digests
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    r = found.noise_rate
    texts = {
        "format": FORMAT,
        "arrays": hashlib.sha256(packed.getvalue()).hexdigest(),
        "kind": found.kind,
        "title": found.title,
        "classes": found.classes,
        "ids": found.ids,
        "parts": found.parts,
        "noise_rate": [r.value, r.low, r.high],
        "curves": dict(found.curves),
        "config": found.config,
        "notes": found.notes,
        "source_digest": found.source_digest,
        **({} if found.found_issues is None else {"issues": _issue_rows(found.found_issues)}),
    }
    write_atomically(folder / "audit.npz", packed.getvalue())
    text = json.dumps(texts, ensure_ascii=False, indent=1, default=str)
    write_atomically(folder / "audit.json", text.encode("utf-8", "surrogatepass"))
    if found.scorer is not None:
        found.scorer.save(folder)


def load_audit(folder: Path) -> dict[str, Any]:
    """The fields of the audit in a folder, once everything in it is known to fit."""
    if not (folder / "audit.json").exists():
        raise InputError(
            f"{folder} holds no audit that can be read: there is no audit.json. Expected the folder of a run that `compensate "
            "audit` wrote, such as runs/reviews-3f2a1b9c."
        )
    try:
        texts = json.loads((folder / "audit.json").read_bytes().decode("utf-8", "surrogatepass"))
        _expect(isinstance(texts, dict), "audit.json is no table of fields")
        if texts.get("format") != FORMAT:
            raise InputError(
                f"{folder} was written by another version (format {texts.get('format')!r:.40}); audit the data again."
            )
        digest = hashlib.sha256((folder / "audit.npz").read_bytes()).hexdigest()
        _expect(digest == texts.get("arrays"), "audit.npz is not the file that audit.json was written with")
        arrays = read_numpy(folder / "audit.npz")
        _expect(isinstance(arrays, dict), "audit.npz is a single array")
        assert isinstance(arrays, dict)
        _check_texts(texts)
        _check_arrays(arrays, texts)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, InputError) and str(folder) in str(error):
            raise
        raise InputError(
            f"{folder} holds no audit that can be read ({error or type(error).__name__}); expected the audit.json and "
            "audit.npz of one audit. Audit the data again."
        ) from error
    return {
        "fitted": folder,
        **{name: texts[name] for name in ("kind", "curves", "config")},
        "source": Source(
            title=texts["title"],
            digest=texts["source_digest"],
            path=texts["config"].get("source") or "",
            **{name: texts["config"][name] for name in STORED if name in texts["config"]},
        ),
        **{name: tuple(texts[name]) for name in ("classes", "ids", "notes")},
        "parts": tuple(texts.get("parts", ())),
        **{name: arrays[name] for name in ("index", "given", "suggested", "p_error")},
        "log_odds": arrays["score"],
        **{name: arrays.get(name) for name in ("probabilities", "row_digests", "sample")},
        "noise_rate": Estimate(*texts["noise_rate"]),
        "found_issues": _issue_table(texts["issues"]) if "issues" in texts else None,
        "evidence": _under(arrays, "evidence."),
        "unlabeled": _under(arrays, "unlabeled."),
    }


def _check_texts(texts: Mapping[str, Any]) -> None:
    needed = ("kind", "title", "source_digest", "classes", "ids", "notes", "noise_rate", "curves", "config")
    missing = [name for name in needed if name not in texts]
    _expect(not missing, f"audit.json lacks {', '.join(missing)}")
    for name in ("kind", "title", "source_digest"):
        _expect(isinstance(texts[name], str), f"{name} is no text")
    _expect(texts["kind"] in KINDS, f"kind is {texts['kind']!r:.40}")
    for name in ("classes", "ids", "notes", "parts"):
        found = texts.get(name, [])
        _expect(isinstance(found, list) and all(isinstance(t, str) for t in found), f"{name} is no list of texts")
    _expect(len(set(texts["classes"])) == len(texts["classes"]), "a class is named twice")
    rate = texts["noise_rate"]
    _expect(_numbers(rate) and len(rate) == 3 and all(map(math.isfinite, rate)), "noise_rate is not three numbers")
    curves, config = texts["curves"], texts["config"]
    _expect(isinstance(curves, dict) and all(map(_numbers, curves.values())), "curves are no lists of numbers")
    _expect(isinstance(config, dict), "config is no table of options")
    for name in ("source", "label", "text"):
        _expect(isinstance(config.get(name), (str, type(None))), f"{name} of config is no text")


def _issue_rows(issues: pd.DataFrame) -> list[list[Any]]:
    from compensate.auditing.issues import records

    return [list(row.values()) for row in records(issues)]


def _issue_table(rows: Any) -> pd.DataFrame:
    from compensate.auditing.issues import COLUMNS, KINDS

    _expect(
        isinstance(rows, list) and all(isinstance(row, list) and len(row) == len(COLUMNS) for row in rows),
        "issues are no table",
    )
    for issue, index, other, column, score, given, detail in rows:
        _expect(issue in KINDS if isinstance(issue, str) else False, "issues hold an unknown kind")
        for number in (index, other):
            _expect(number is None or (type(number) is int and 0 <= number < 1 << 62), "issues hold what is no row")
        _expect(isinstance(score, (int, float)) and math.isfinite(score), "issues hold what is no score")
        _expect(all(isinstance(text, str) for text in (column, given, detail)), "issues hold what is no text")
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"index": "Int64", "other": "Int64", "score": "float64"})


def _check_arrays(arrays: Mapping[str, NDArray[Any]], texts: Mapping[str, Any]) -> None:
    classes = len(texts["classes"])
    _expect("index" in arrays and arrays["index"].ndim == 1, "index is not one number for each row")
    rows = arrays["index"].shape
    evidence = [name for name in arrays if name.startswith("evidence.")]
    for name in ("index", "given", "suggested", "score", "p_error", *evidence):
        _expect(name in arrays and arrays[name].shape == rows, f"{name} is not one number for each row")
        _expect(arrays[name].dtype.kind in "iuf", f"{name} holds {arrays[name].dtype}")
    for name in ("ids", "parts"):
        _expect(len(texts.get(name, ())) in (0, *rows), f"{name} are not one for each row")
    if "sample" in arrays:
        fits = arrays["sample"].shape == rows and arrays["sample"].dtype.kind in "iu"
        _expect(fits and (arrays["sample"] >= 0).all(), "sample is not one position for each row")
    _check_index(arrays["index"], "index")
    _check_labels(arrays["given"], classes, "given")
    _check_labels(arrays["suggested"], classes, "suggested")
    _expect(not np.isnan(arrays["score"]).any(), "score is not a number")
    p = arrays["p_error"]
    _expect(bool(((p >= 0) & (p <= 1)).all()), "p_error is no probability")
    if "probabilities" in arrays:
        p = arrays["probabilities"]
        _expect(p.shape == (*rows, classes) and p.dtype.kind == "f", "probabilities do not fit rows and classes")
    if "row_digests" in arrays:
        found = arrays["row_digests"]
        _expect(found.shape == rows and found.dtype == np.uint64, "row_digests are not one for each row")
    lost = _under(arrays, "unlabeled.")
    if lost:
        _expect(set(lost) == {"index", "suggested", "probability"}, "unlabeled lacks one of its parts")
        _expect(len({v.shape for v in lost.values()}) == 1 and lost["index"].ndim == 1, "unlabeled differs in length")
        _check_index(lost["index"], "unlabeled.index")
        _check_labels(lost["suggested"], classes, "unlabeled.suggested")
        _expect(lost["probability"].dtype.kind == "f", "unlabeled.probability holds no numbers")


def _check_index(index: NDArray[Any], name: str) -> None:
    _expect(index.dtype.kind in "iu" and (index >= 0).all() and (index < 1 << 62).all(), f"{name} holds no row numbers")
    _expect(len(np.unique(index)) == len(index), f"{name} names a row twice")


def _check_labels(labels: NDArray[Any], classes: int, name: str) -> None:
    if classes:
        fits = labels.dtype.kind in "iu" and bool(((labels >= 0) & (labels < classes)).all())
        _expect(fits, f"{name} holds what is no class")
    else:
        _expect(labels.dtype.kind == "f" and bool(np.isfinite(labels).all()), f"{name} holds what is no quantity")


def _numbers(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)


def _expect(fits: Any, why: str) -> None:
    if not fits:
        raise InputError(why)


def _under(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}
