"""What an audit found, in the forms that other tools read. None of them is imported.

A record goes out with the number and the digest of its row, its given label and the digest of the source, so that what people
decide there finds its row again: see `compensate.auditing.exchange`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr  # nosec B406: writes, and parses nothing

import numpy as np
import pandas as pd

from compensate.data.dataset import Ints
from compensate.errors import InputError, nearest
from compensate.extras import require
from compensate.files import read_text

if TYPE_CHECKING:
    from compensate.auditing.result import Audit

AGENT = "compensate"
"""The name under which suggestions go out."""

GIVEN = "given"
"""The id of an annotation that holds the label as it was given, and nobody's decision."""

TAG = "possible_label_error"


def ranked(audit: Audit, everything: bool) -> Ints:
    """Positions of the rows to hand out, most suspect first: the flagged ones, or all."""
    order = np.argsort(-audit.p_error, kind="stable")
    return order if everything else order[audit.mask[order]]


# --- Label Studio ---------------------------------------------------------------------------------------------


def label_studio_tasks(audit: Audit, *, everything: bool = False, images: str | None = None) -> list[dict[str, Any]]:
    """Tasks of Label Studio: see `Audit.to_label_studio`."""
    _classes_only(audit, "Label Studio")
    field = _field(audit)
    given, suggested = audit.names(audit.given), audit.names(audit.suggested)

    def choice(label: str, **more: Any) -> dict[str, Any]:
        return {"from_name": "label", "to_name": field, "type": "choices", "value": {"choices": [label]}, **more}

    return [
        {
            "data": {field: _shown(audit, i, images), **_about(audit, i, given[i], suggested[i])},
            "predictions": [
                {
                    "model_version": AGENT,
                    "score": round(1 - float(audit.p_error[i]), 6),
                    "result": [choice(suggested[i])],
                }
            ],
            "annotations": [{"result": [choice(given[i], id=GIVEN)]}],
        }
        for i in ranked(audit, everything).tolist()
    ]


def label_studio_config(audit: Audit) -> str:
    """The labeling interface of a project for these tasks."""
    field = _field(audit)
    shown = '<Image name="image" value="$image"/>' if field == "image" else '<Text name="text" value="$text"/>'
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in audit.classes)
    return f'<View>\n  {shown}\n  <Choices name="label" toName="{field}" choice="single">\n{choices}\n  </Choices>\n</View>\n'


# --- FiftyOne -------------------------------------------------------------------------------------------------


def fiftyone_samples(audit: Audit, *, everything: bool = True, images: str | None = None) -> list[dict[str, Any]]:
    """Samples of FiftyOne: see `Audit.to_fiftyone`."""
    _classes_only(audit, "FiftyOne")
    if audit.kind != "image" or not audit.ids:
        raise InputError(
            f"FiftyOne shows image files, and this audit is of {audit.title} ({audit.kind}). Audit a folder of images, or export to "
            "label-studio, argilla or cleanlab."
        )
    folder = images if images is not None else audit.data.source.folder if audit.data else ""
    given, suggested = audit.names(audit.given), audit.names(audit.suggested)
    return [
        {
            "filepath": str(Path(folder) / audit.ids[i])
            if "://" not in folder
            else folder.rstrip("/") + "/" + audit.ids[i],
            "tags": [TAG] if audit.mask[i] else [],
            "ground_truth": {"_cls": "Classification", "label": given[i]},
            "suggested": {"_cls": "Classification", "label": suggested[i], "confidence": _confidence(audit, i)},
            "mistakenness": round(float(audit.p_error[i]), 6),
            "row": int(audit.index[i]),
        }
        for i in ranked(audit, everything).tolist()
    ]


# --- Argilla --------------------------------------------------------------------------------------------------


def argilla_records(audit: Audit, *, everything: bool = False, images: str | None = None) -> list[dict[str, Any]]:
    """Records of Argilla 2: see `Audit.to_argilla`."""
    _classes_only(audit, "Argilla")
    field = _field(audit)
    given, suggested = audit.names(audit.given), audit.names(audit.suggested)
    return [
        {
            "id": str(int(audit.index[i])),
            field: _shown(audit, i, images),
            "label.suggestion": suggested[i],
            "label.suggestion.score": round(_confidence(audit, i), 6),
            "label.suggestion.agent": AGENT,
            **{name: value for name, value in _about(audit, i, given[i], suggested[i]).items() if name != "suggested"},
        }
        for i in ranked(audit, everything).tolist()
    ]


# --- tables ---------------------------------------------------------------------------------------------------


def frame(audit: Audit) -> pd.DataFrame:
    """All audited rows in the order of the data: see `Audit.to_frame`."""
    whole_rows(audit)
    columns: dict[str, Any] = {}
    raw = None if audit.data is None else audit.data.raw
    if isinstance(raw, pd.DataFrame):
        columns |= {str(name): raw[name].to_numpy() for name in raw.columns}
    elif raw is not None and audit.kind == "text":
        columns["text"] = list(raw)
    if audit.ids and "id" not in columns:
        columns["id"] = list(audit.ids)
    label = audit.source.label or "label"
    if label not in columns:
        columns[label] = audit.names(audit.given) if not audit.regression else audit.given
    found = {
        "suggested": audit.names(audit.suggested) if not audit.regression else audit.suggested,
        "p_error": audit.p_error,
        "flagged": audit.mask,
    }
    columns |= {f"{name} (audit)" if name in columns else name: values for name, values in found.items()}
    return pd.DataFrame(columns, index=pd.Index(audit.index, name="row"))


def dataset(audit: Audit) -> Any:
    """A data set of Hugging Face's `datasets`: see `Audit.to_dataset`."""
    datasets = require("datasets", "making a data set", "hf")
    table = frame(audit)
    found = datasets.Dataset.from_pandas(table, preserve_index=True)
    if audit.regression:
        return found
    label, suggested = audit.source.label or "label", table.columns[-3]
    numbers = {label: audit.given, suggested: audit.suggested}
    for name, values in numbers.items():
        kind = datasets.ClassLabel(names=list(audit.classes))
        found = found.remove_columns([name]).add_column(name, np.asarray(values, dtype=np.int64), feature=kind)
    return found.select_columns(["row", *table.columns])


# --- parts ----------------------------------------------------------------------------------------------------


def _classes_only(audit: Audit, tool: str) -> None:
    if audit.regression:
        raise InputError(f"{tool} takes classes, and this audit is of quantities; take to_frame() or suspects.csv.")
    whole_rows(audit)


def whole_rows(audit: Audit) -> None:
    """Refuses an audit of samples that have several labels each."""
    if audit.addresses:
        raise InputError(
            "this audit is of several labels a sample, which have no row of their own there; review it with `compensate review`, or "
            "take `suspects` (suspects.csv)."
        )


def _field(audit: Audit) -> str:
    return "image" if audit.kind == "image" else "text"


def _about(audit: Audit, i: int, given: str, suggested: str) -> dict[str, Any]:
    """What a record carries so that a decision finds its row."""
    about = {
        "row": int(audit.index[i]),
        "given": given,
        "suggested": suggested,
        "p_error": round(float(audit.p_error[i]), 6),
        "digest": audit.row_digest(i),
        "source": audit.source_digest,
    }
    return about | ({"id": audit.ids[i]} if audit.ids and _field(audit) == "text" else {})


def _confidence(audit: Audit, i: int) -> float:
    """The probability of the suggested class, or that the given one is wrong where none was kept."""
    if audit.probabilities is None:
        return float(audit.p_error[i])
    return float(audit.probabilities[i, audit.suggested[i]])


def _shown(audit: Audit, i: int, images: str | None) -> str:
    """What a person is shown: a text, the cells of a row, the address of an image or the image itself."""
    from compensate.auditing.page.contents import content
    from compensate.auditing.page.payload import image_type

    if images is not None and audit.kind == "image":
        if not audit.ids:
            raise InputError(
                "these images are no files, so they have no addresses; leave images out, and they are embedded."
            )
        return images.rstrip("/") + "/" + audit.ids[i]
    found = content(audit.data, i)
    if found.image is not None:
        return f"data:image/{image_type(found.image)};base64,{base64.b64encode(found.image).decode()}"
    if found.text is not None:
        return found.text
    if found.fields:
        return "\n".join(f"{name}: {value}" for name, value in found.fields)
    if audit.data is None:
        raise InputError(
            f"the data of this audit ({audit.title}) is not loaded; run `audit` again, or load the audit with its data: "
            "compensate.cli.export.reopen(folder)."
        )
    return f"row {int(audit.index[i])}"


WRITERS: Mapping[str, Any] = {
    "label-studio": label_studio_tasks,
    "fiftyone": fiftyone_samples,
    "argilla": argilla_records,
}
"""Tools that are handed a list of records."""

TOOLS = (*WRITERS, "cleanlab")


def check_tool(tool: str) -> None:
    if tool not in TOOLS:
        raise InputError(f'"{tool}" is no tool that is known; {nearest(tool, TOOLS)}')


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
