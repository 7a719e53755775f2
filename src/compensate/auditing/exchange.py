"""Exchange with annotation tools: records of Label Studio, Argilla and FiftyOne, and the decisions that come back.

None of these tools is imported. A record carries the number and the digest of its row, its given label and the digest of the source, by
which a decision finds its row again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr  # nosec B406: writes, and parses nothing

import numpy as np

from compensate.auditing.content import embedded_image, sample_content
from compensate.errors import InputError, nearest
from compensate.extras import require
from compensate.files import read_text

if TYPE_CHECKING:
    import pandas as pd

    from compensate.auditing.result import Audit

AGENT = "compensate"  # the name of the model in suggestions
GIVEN = "given"  # the id of an annotation that holds the given label; it is not a decision
TAG = "possible_label_error"

SUFFIXES = (".json", ".jsonl")  # endings of the files that `read_exported` reads
_EXPECTED = (
    "expected what Label Studio (JSON or JSON-MIN) or Argilla (records.to_json) exports of records that came from "
    "`compensate export`"
)


# --- records --------------------------------------------------------------------------------------------------


def label_studio_tasks(audit: Audit, *, everything: bool = False, images: str | None = None) -> list[dict[str, Any]]:
    """Tasks of Label Studio: see `Audit.to_label_studio`."""
    field = _field(audit)

    def choice(label: str, **more: Any) -> dict[str, Any]:
        return {"from_name": "label", "to_name": field, "type": "choices", "value": {"choices": [label]}, **more}

    return [
        {
            "data": {field: _shown(audit, i, images), **about},
            "predictions": [
                {
                    "model_version": AGENT,
                    "score": round(1 - float(audit.p_error[i]), 6),
                    "result": [choice(about["suggested"])],
                }
            ],
            "annotations": [{"result": [choice(about["given"], id=GIVEN)]}],
        }
        for i, about in _exported(audit, "Label Studio", everything)
    ]


def label_studio_config(audit: Audit) -> str:
    """The labeling interface of a project for these tasks."""
    field = _field(audit)
    shown = '<Image name="image" value="$image"/>' if field == "image" else '<Text name="text" value="$text"/>'
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in audit.classes)
    return f'<View>\n  {shown}\n  <Choices name="label" toName="{field}" choice="single">\n{choices}\n  </Choices>\n</View>\n'


def fiftyone_samples(audit: Audit, *, everything: bool = True, images: str | None = None) -> list[dict[str, Any]]:
    """Samples of FiftyOne: see `Audit.to_fiftyone`."""
    records = _exported(audit, "FiftyOne", everything)
    if audit.kind != "image" or not audit.ids:
        raise InputError(
            f"FiftyOne shows image files, and this audit is of {audit.title} ({audit.kind}). Audit a folder of images, or export to "
            "label-studio, argilla or cleanlab."
        )
    folder = images if images is not None else audit.data.source.folder if audit.data else ""

    def path(name: str) -> str:
        return folder.rstrip("/") + "/" + name if "://" in folder else str(Path(folder) / name)

    return [
        {
            "filepath": path(audit.ids[i]),
            "tags": [TAG] if audit.mask[i] else [],
            "ground_truth": {"_cls": "Classification", "label": about["given"]},
            "suggested": {"_cls": "Classification", "label": about["suggested"], "confidence": _confidence(audit, i)},
            "mistakenness": about["p_error"],
            "row": about["row"],
        }
        for i, about in records
    ]


def argilla_records(audit: Audit, *, everything: bool = False, images: str | None = None) -> list[dict[str, Any]]:
    """Records of Argilla 2: see `Audit.to_argilla`."""
    return [
        {
            "id": str(about["row"]),
            _field(audit): _shown(audit, i, images),
            "label.suggestion": about.pop("suggested"),
            "label.suggestion.score": round(_confidence(audit, i), 6),
            "label.suggestion.agent": AGENT,
            **about,
        }
        for i, about in _exported(audit, "Argilla", everything)
    ]


WRITERS: Mapping[str, Any] = {
    "label-studio": label_studio_tasks,
    "fiftyone": fiftyone_samples,
    "argilla": argilla_records,
}
"""Tools that take a list of records."""

TOOLS = (*WRITERS, "cleanlab")


def check_tool(tool: str) -> None:
    """Refuses an unknown tool."""
    if tool not in TOOLS:
        raise InputError(f'"{tool}" is not a known tool; {nearest(tool, TOOLS)}')


def whole_rows(audit: Audit) -> None:
    """Refuses an audit of samples with several labels each."""
    if audit.addresses:
        raise InputError(
            "this audit is of several labels a sample, which have no row of their own there; review it with `compensate review`, or "
            "take `suspects` (suspects.csv)."
        )


def _exported(audit: Audit, tool: str, everything: bool) -> list[tuple[int, dict[str, Any]]]:
    """The positions of the flagged rows, or of all, most suspect first, and the fields by which a decision finds its row."""
    if audit.regression:
        raise InputError(f"{tool} takes classes, and this audit is of quantities; take to_frame() or suspects.csv.")
    whole_rows(audit)
    given, suggested = audit.names(audit.given), audit.names(audit.suggested)
    order = np.argsort(-audit.p_error, kind="stable")
    records = []
    for i in (order if everything else order[audit.mask[order]]).tolist():
        about = {
            "row": int(audit.index[i]),
            "given": given[i],
            "suggested": suggested[i],
            "p_error": round(float(audit.p_error[i]), 6),
            "digest": audit.row_digest(i),
            "source": audit.source_digest,
        }
        records.append((i, about | ({"id": audit.ids[i]} if audit.ids and _field(audit) == "text" else {})))
    return records


def _field(audit: Audit) -> str:
    return "image" if audit.kind == "image" else "text"


def _confidence(audit: Audit, i: int) -> float:
    """The probability of the suggested class; without class probabilities, of an error."""
    return float(audit.p_error[i] if audit.probabilities is None else audit.probabilities[i, audit.suggested[i]])


def _shown(audit: Audit, i: int, images: str | None) -> str:
    """The text, the cells of a row, the address of an image or the image itself."""
    if images is not None and audit.kind == "image":
        if not audit.ids:
            raise InputError(
                "these images are not files and have no addresses; leave images out, and they are embedded."
            )
        return images.rstrip("/") + "/" + audit.ids[i]
    content = sample_content(audit.data, i)
    if content.image is not None:
        return f"data:image/{embedded_image(content.image)}"
    if content.text is not None:
        return content.text
    if content.fields:
        return "\n".join(f"{name}: {value}" for name, value in content.fields)
    if audit.data is None:
        raise InputError(
            f"the data of this audit ({audit.title}) is not loaded; run `audit` again, or load the audit with its data: "
            "compensate.auditing.request.reopen(folder)."
        )
    return f"row {int(audit.index[i])}"


# --- tables ---------------------------------------------------------------------------------------------------


def frame(audit: Audit) -> pd.DataFrame:
    """All audited rows in the order of the data: see `Audit.to_frame`."""
    import pandas as pd

    whole_rows(audit)
    columns: dict[str, Any] = {}
    raw = None if audit.data is None else audit.data.raw
    if isinstance(raw, pd.DataFrame):
        columns |= {str(name): raw[name].to_numpy() for name in raw.columns}
    elif raw is not None and audit.kind == "text":
        columns["text"] = list(raw)
    if audit.ids and "id" not in columns:
        columns["id"] = list(audit.ids)
    given, suggested = (
        labels if audit.regression else audit.names(labels) for labels in (audit.given, audit.suggested)
    )
    columns.setdefault(audit.source.label or "label", given)
    added = {"suggested": suggested, "p_error": audit.p_error, "flagged": audit.mask}
    columns |= {f"{name} (audit)" if name in columns else name: values for name, values in added.items()}
    return pd.DataFrame(columns, index=pd.Index(audit.index, name="row"))


def dataset(audit: Audit) -> Any:
    """A data set of Hugging Face's `datasets`: see `Audit.to_dataset`."""
    datasets = require("datasets", "making a data set", "hf")
    table = frame(audit)
    found = datasets.Dataset.from_pandas(table, preserve_index=True)
    if audit.regression:
        return found
    kind = datasets.ClassLabel(names=list(audit.classes))
    for name, values in {audit.source.label or "label": audit.given, table.columns[-3]: audit.suggested}.items():
        found = found.remove_columns([name]).add_column(name, np.asarray(values, dtype=np.int64), feature=kind)
    return found.select_columns(["row", *table.columns])


# --- decisions that come back ---------------------------------------------------------------------------------


def read_exported(path: str | Path) -> Iterator[dict[str, str]]:
    """The decisions of an export as rows of ``corrections.csv``.

    Records without an annotation of a person are left out; skipped or discarded records are decisions to skip.
    """
    text = read_text(path)
    try:
        records = json.loads(text)
    except (ValueError, RecursionError):
        try:
            records = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} is not JSON ({error}); {_EXPECTED}.") from error
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise InputError(f"{path} does not hold a list of records; {_EXPECTED}.")
    for number, record in enumerate(records, 1):
        about, chosen = _decided(record, f"{path}, record {number}")
        if chosen is None:
            continue
        given = str(about["given"])
        known = {"": "skip", given: "reject"}
        decision = known.get(chosen) or ("accept" if chosen == str(about.get("suggested", "")) else "other")
        digests = {"row": str(about.get("digest") or ""), "source": str(about.get("source") or "")}
        yield {"index": str(about["row"]), "given": given, "decision": decision, "label": chosen, **digests}


def _decided(record: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], str | None]:
    """The fields of a record about its row, and the chosen label: None without a choice, empty if it was skipped."""
    if isinstance(record.get("data"), dict):  # Label Studio, JSON
        about = record["data"]
        chosen = _label_studio_choice(record, str(about.get("given")))
    elif isinstance(record.get("metadata"), dict):  # Argilla, records.to_json
        about = dict(record["metadata"])
        responses = _mapping(record, "responses").get("label")
        made = [r.get("value") for r in responses if isinstance(r, dict)] if isinstance(responses, list) else []
        chosen = _argilla_choice(made, record.get("status"))
        about.setdefault("suggested", _mapping(_mapping(record, "suggestions"), "label").get("value", ""))
    elif "label.responses" in record or "label.suggestion" in record:  # Argilla, flat
        about = {**record, "suggested": record.get("label.suggestion", "")}
        states = record.get("label.responses.status") or ()
        values = record.get("label.responses") or ()
        if not isinstance(values, (list, tuple)) or not isinstance(states, (list, tuple)):
            raise InputError(f"{where}: the responses are not a list; {_EXPECTED}.")
        chosen = _argilla_choice(list(values), states[-1] if states else None)
    else:  # Label Studio, JSON-MIN: the imported annotation has no time spent on it
        about, chosen = record, _text(record.get("label"))
        timed = "lead_time" in record or ("created_at" in record and "updated_at" in record)
        if chosen == str(record.get("given")) and timed and not record.get("lead_time") and not _saved_again(record):
            chosen = None
    if "row" not in about or "given" not in about:
        raise InputError(f"{where} does not say which row it is about (row, given); {_EXPECTED}.")
    return about, chosen


def _label_studio_choice(task: Mapping[str, Any], given: str) -> str | None:
    """The label of the last annotation of a person."""
    chosen: str | None = None
    annotations = task.get("annotations")
    for annotation in annotations if isinstance(annotations, list) else ():
        if not isinstance(annotation, dict):
            continue
        if annotation.get("was_cancelled"):
            chosen = ""
            continue
        results = annotation.get("result")
        for result in results if isinstance(results, list) else ():
            if not isinstance(result, dict) or result.get("from_name") != "label":
                continue
            label = _text(_mapping(result, "value").get("choices"))
            imported = result.get("id") == GIVEN and label == given and not _saved_again(annotation)
            if label is not None and not imported:
                chosen = label
    return chosen


def _argilla_choice(values: list[Any], status: Any) -> str | None:
    if str(status).rpartition(".")[2] == "discarded":
        return ""
    return _text(values[-1]) if values else None


def _saved_again(annotation: Mapping[str, Any]) -> bool:
    """Whether an annotation was saved again after it was imported, to the second."""
    created, updated = (str(annotation.get(name) or "")[:19] for name in ("created_at", "updated_at"))
    return bool(created and updated and created != updated)


def _mapping(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = record.get(name)
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    if isinstance(value, list):
        value = value[0] if len(value) == 1 else None
    return value if isinstance(value, str) else None
