"""Decisions that people made in other tools, read from what Label Studio and Argilla export."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from compensate.auditing.export import GIVEN
from compensate.errors import InputError
from compensate.files import read_text

SUFFIXES = (".json", ".jsonl")

_EXPECTED = (
    "expected what Label Studio (JSON or JSON-MIN) or Argilla (records.to_json) exports of records that came from "
    "`compensate export`"
)


def read_exported(path: str | Path) -> Iterator[tuple[str, ...]]:
    """The decisions of an export: index, given, decision, label, row and source, as in ``corrections.csv``.

    A record that nobody looked at is left out; one that was skipped or discarded is a decision to skip.
    """
    for number, record in enumerate(_records(path), 1):
        about, chosen = _decided(record, f"{path}, record {number}")
        if chosen is None:
            continue
        given, suggested = str(about["given"]), str(about.get("suggested", ""))
        decision = (
            "skip" if chosen == "" else "reject" if chosen == given else "accept" if chosen == suggested else "other"
        )
        yield str(about["row"]), given, decision, chosen, str(about.get("digest") or ""), str(about.get("source") or "")


def _records(path: str | Path) -> list[Mapping[str, Any]]:
    text = read_text(path)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        try:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} is not JSON ({error}); {_EXPECTED}.") from error
    if not isinstance(found, list) or not all(isinstance(record, dict) for record in found):
        raise InputError(f"{path} holds no list of records; {_EXPECTED}.")
    return found


def _decided(record: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], str | None]:
    """What a record carries of its row, and the label that was chosen: None if nobody chose, empty if it was skipped."""
    if isinstance(record.get("data"), dict):
        about = record["data"]
        chosen = _label_studio(record, str(about.get("given")))
    elif isinstance(record.get("metadata"), dict):
        about = dict(record["metadata"])
        chosen = _argilla(_part(record, "responses").get("label"), record.get("status"))
        about.setdefault("suggested", _part(_part(record, "suggestions"), "label").get("value", ""))
    elif "label.responses" in record or "label.suggestion" in record:
        about = {**record, "suggested": record.get("label.suggestion", "")}
        states = record.get("label.responses.status") or ()
        values = record.get("label.responses") or ()
        if not isinstance(values, (list, tuple)) or not isinstance(states, (list, tuple)):
            raise InputError(f"{where}: the responses are no list; {_EXPECTED}.")
        chosen = _argilla([{"value": v} for v in values], states[-1] if states else None)
    else:
        about = record
        chosen = _text(record.get("label"))
        if chosen == str(record.get("given")) and _imported(record):
            chosen = None
    if "row" not in about or "given" not in about:
        raise InputError(f"{where} does not say which row it is about (row, given); {_EXPECTED}.")
    return about, chosen


def _label_studio(task: Mapping[str, Any], given: str) -> str | None:
    """The label of the last annotation that a person made."""
    chosen: str | None = None
    annotations = task.get("annotations")
    for annotation in annotations if isinstance(annotations, list) else ():
        if not isinstance(annotation, dict):
            continue
        if annotation.get("was_cancelled"):
            chosen = ""
            continue
        results = annotation.get("result")
        results = (
            [r for r in results if isinstance(r, dict) and r.get("from_name") == "label"]
            if isinstance(results, list)
            else []
        )
        for result in results:
            label = _text(_part(result, "value").get("choices"))
            untouched = result.get("id") == GIVEN and label == given and not _touched(annotation)
            if label is not None and not untouched:
                chosen = label
    return chosen


def _touched(annotation: Mapping[str, Any]) -> bool:
    """Whether an annotation was saved again after it was imported, to the second."""
    made, changed = (str(annotation.get(name) or "")[:19] for name in ("created_at", "updated_at"))
    return bool(made and changed and made != changed)


def _imported(record: Mapping[str, Any]) -> bool:
    """Whether a record of JSON-MIN is the annotation that was imported: nobody spent time on it, or saved it again."""
    timed = "lead_time" in record or ("created_at" in record and "updated_at" in record)
    return timed and not record.get("lead_time") and not _touched(record)


def _argilla(responses: Any, status: Any) -> str | None:
    values = [_text(r.get("value")) for r in responses if isinstance(r, dict)] if isinstance(responses, list) else []
    if str(status).rpartition(".")[2] == "discarded":
        return ""
    return values[-1] if values else None


def _part(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = record.get(name)
    return found if isinstance(found, dict) else {}


def _text(value: Any) -> str | None:
    if isinstance(value, list):
        value = value[0] if len(value) == 1 else None
    return value if isinstance(value, str) else None
