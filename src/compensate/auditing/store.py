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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compensate.auditing.content import KINDS
from compensate.auditing.decisions import CORRECTIONS, JOURNAL, check_not_reviewed, keep_decisions
from compensate.auditing.findings import Provenance
from compensate.auditing.labels import kind_of
from compensate.data.dataset import STORED, Estimate, Source
from compensate.errors import InputError
from compensate.files import check_writable, make_folder, read_numpy, replaced_folder, write_atomically

if TYPE_CHECKING:
    from compensate.auditing.decisions import Correction
    from compensate.auditing.result import Audit

FORMAT = 2
"""Of the files that `save_audit` writes."""

FILES = frozenset((
    "annotators.csv", "audit", "config.json", "consensus.csv", "corrections.csv", "decisions.jsonl", "issues.csv", "label_again.csv",
    "labels.csv", "metrics.jsonl", "model.safetensors", "predictions.csv", "report.html", "review.lock", "suspects", "suspects.csv",
))  # fmt: skip
"""The files of an audit or a consensus. A folder that holds anything else is not replaced."""


def run_name(title: str, asked: Mapping[str, Any]) -> str:
    """The name of a run's folder: the name of the data, and a digest of everything that the audit depends on.

    >>> run_name("my reviews.csv", {"seed": 0}) == run_name("my reviews.csv", {"seed": 1})
    False
    """
    stem = re.sub(r"[^\w.-]+", "-", Path(title).stem).strip("-.")[:60] or "data"
    digest = hashlib.sha256(json.dumps(dict(asked), sort_keys=True, default=str).encode("utf-8", "surrogatepass"))
    return f"{stem}-{digest.hexdigest()[:8]}"


def check_run_folder(folder: Path, source_digest: str | None = None) -> None:
    """Refuses a folder for a run that cannot be written to, or that holds anything but an earlier audit.

    An earlier audit is not replaced while it is being reviewed, nor if it holds decisions about other data; decisions about the same
    data are kept.
    """
    check_writable(folder)
    check_not_reviewed(folder)
    decided = any((folder / name).exists() for name in (JOURNAL, CORRECTIONS))
    if source_digest is not None and decided and _source_digest(folder) != source_digest:
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
        folder: where to write it; its decisions about the same data are kept.
        decisions: earlier ones about the labels of the same data.
        more: writes further files into the folder.
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


def _source_digest(folder: Path) -> str | None:
    """The digest of the data of a run, if it can be read."""
    try:
        return str(json.loads((folder / "config.json").read_bytes())["source_digest"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


# --- the audit itself -----------------------------------------------------------------------------------------


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
    r = found.noise_rate
    texts = {
        "format": FORMAT,
        "arrays": hashlib.sha256(packed.getvalue()).hexdigest(),
        "kind": found.kind,
        "title": found.title,
        "classes": found.classes,
        "ids": found.ids,
        "parts": [found.part(i) for i in range(len(found.addresses))],
        "noise_rate": [r.value, r.low, r.high],
        "curves": dict(found.curves),
        "config": found.config,
        "notes": found.notes,
        "source_digest": found.source_digest,
    }
    if found.found_issues is not None:
        from compensate.auditing.issues import records

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
        _expect(isinstance(arrays, dict), "audit.npz is a single array")
        assert isinstance(arrays, dict)
        for name, check in TEXTS.items():
            _expect(name in texts or name in OPTIONAL, f"audit.json lacks {name}")
            _expect(name not in texts or check(texts[name]), f"{name} in audit.json is not valid")
        shape, classes = np.shape(arrays.get("index", 0)), len(texts["classes"])
        _expect(len(shape) == 1, "index is not one number for each row")
        for name in ("ids", "parts"):
            _expect(len(texts.get(name, ())) in (0, *shape), f"{name} are not one for each row")
        for name, (check_array, needed) in ARRAYS.items():
            _expect(name in arrays or not needed, f"audit.npz lacks {name}")
            _expect(
                name not in arrays or check_array(arrays[name], shape, classes), f"{name} in audit.npz is not valid"
            )
        evidence, unlabeled = _under(arrays, "evidence."), _under(arrays, "unlabeled.")
        _expect(all(_numbers(v, shape, classes) for v in evidence.values()), "evidence is not one number for each row")
        _expect(not unlabeled or _unlabeled(unlabeled, classes), "unlabeled in audit.npz is not valid")
        parts = texts.get("parts", [])
        label_kind = kind_of(parts[0] if parts else "")
        rows = arrays.get("sample", np.full(len(parts), -1)).tolist()
        addresses = tuple(label_kind.parse(part, row) for part, row in zip(parts, rows, strict=False))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, InputError) and str(folder) in str(error):
            raise
        raise InputError(
            f"{folder} holds no audit that can be read ({error or type(error).__name__}); expected the audit.json and "
            "audit.npz of one audit. Audit the data again."
        ) from error
    config = texts["config"]
    issues = None
    if "issues" in texts:
        from compensate.auditing.issues import COLUMNS

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
        "provenance": Provenance.of_stored(config),
        "curves": texts["curves"],
        **{name: tuple(texts[name]) for name in ("classes", "ids", "notes")},
        **{name: arrays[name] for name in ("index", "given", "suggested", "p_error")},
        "log_odds": arrays["score"],
        **{name: arrays.get(name) for name in ("probabilities", "row_digests")},
        "addresses": addresses,
        "noise_rate": Estimate(*texts["noise_rate"]),
        "found_issues": issues,
        "evidence": evidence,
        "unlabeled": unlabeled,
        "fitted": folder,
    }


# --- checks of stored fields ----------------------------------------------------------------------------------


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(map(_is_text, values))


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(v, (int, float)) and type(v) is not bool for v in values)


def _are_finite(values: Any) -> bool:
    return _are_numbers(values) and all(map(math.isfinite, values))


def _is_issue(row: Any) -> bool:
    from compensate.auditing.issues import COLUMNS, KINDS

    if not isinstance(row, list) or len(row) != len(COLUMNS):
        return False
    issue, index, other, column, score, given, detail = row
    rows = all(number is None or (type(number) is int and 0 <= number < 1 << 62) for number in (index, other))
    return rows and _is_text(issue) and issue in KINDS and _are_finite([score]) and _are_texts([column, given, detail])


TEXTS: Mapping[str, Callable[[Any], bool]] = {
    "kind": lambda v: v in KINDS,
    "title": _is_text,
    "source_digest": _is_text,
    "classes": lambda v: _are_texts(v) and len(set(v)) == len(v),
    "ids": _are_texts,
    "notes": _are_texts,
    "parts": _are_texts,
    "noise_rate": lambda v: _are_finite(v) and len(v) == 3,
    "curves": lambda v: isinstance(v, dict) and all(map(_are_numbers, v.values())),
    "config": lambda v: (
        isinstance(v, dict) and _are_texts([v[n] for n in ("source", "label", "text") if v.get(n) is not None])
    ),
    "issues": lambda v: isinstance(v, list) and all(map(_is_issue, v)),
}
"""Fields of ``audit.json``, each with its check."""

OPTIONAL = ("parts", "issues")
"""Fields that an audit may lack."""

ArrayCheck = Callable[[NDArray[Any], tuple[int, ...], int], bool]
"""A check of an array, given the shape of `index` and the number of classes."""


def _numbers(values: NDArray[Any], shape: tuple[int, ...], _classes: int) -> bool:
    return values.shape == shape and values.dtype.kind in "iuf"


def _row_numbers(values: NDArray[Any], shape: tuple[int, ...], _classes: int) -> bool:
    whole = values.shape == shape and values.dtype.kind in "iu"
    return whole and bool((values >= 0).all() and (values < 1 << 62).all())


def _distinct_rows(values: NDArray[Any], shape: tuple[int, ...], classes: int) -> bool:
    return _row_numbers(values, shape, classes) and len(np.unique(values)) == len(values)


def _labels(values: NDArray[Any], shape: tuple[int, ...], classes: int) -> bool:
    if classes:
        return _row_numbers(values, shape, classes) and bool((values < classes).all())
    return values.shape == shape and values.dtype.kind == "f" and bool(np.isfinite(values).all())


def _unlabeled(fields: Mapping[str, NDArray[Any]], classes: int) -> bool:
    if set(fields) != {"index", "suggested", "probability"} or fields["index"].ndim != 1:
        return False
    shape, probability = fields["index"].shape, fields["probability"]
    rows = _distinct_rows(fields["index"], shape, classes) and _labels(fields["suggested"], shape, classes)
    return rows and probability.shape == shape and probability.dtype.kind == "f"


ARRAYS: Mapping[str, tuple[ArrayCheck, bool]] = {
    "index": (_distinct_rows, True),
    "given": (_labels, True),
    "suggested": (_labels, True),
    "score": (lambda v, *fits: _numbers(v, *fits) and not np.isnan(v).any(), True),
    "p_error": (lambda v, *fits: _numbers(v, *fits) and bool(((v >= 0) & (v <= 1)).all()), True),
    "probabilities": (lambda v, shape, classes: v.shape == (*shape, classes) and v.dtype.kind == "f", False),
    "sample": (_row_numbers, False),
    "row_digests": (lambda v, shape, _: v.shape == shape and v.dtype == np.uint64, False),
}
"""Fields of ``audit.npz``, each with its check and whether it is needed."""


def _expect(fits: Any, why: str) -> None:
    if not fits:
        raise InputError(why)


def _under(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}
