"""Exchange with annotation tools: records of Label Studio, Argilla and FiftyOne, tables, and the decisions that come back.

None of these tools is imported. A record carries the number and the digest of its row, its given label and the digest of the source, by
which a decision finds its row again. The functions that take an audit are methods of `Audit`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr  # nosec B406: writes, and parses nothing

import numpy as np
import pandas as pd

from compensate.auditing.content import embedded_image, label_content
from compensate.errors import InputError
from compensate.extras import require
from compensate.files import read_text

if TYPE_CHECKING:
    from compensate.auditing.result import Audit

AGENT = "compensate"  # the name of the model in suggestions
GIVEN = "given"  # the id of an annotation that holds the given label; it is not a decision
TAG = "possible_label_error"
SIDES = ("first", "second")  # the fields of the responses of a pair
TOOLS = ("label-studio", "fiftyone", "argilla", "cleanlab")

SUFFIXES = (".json", ".jsonl")  # endings of the files that `read_exported` reads
_EXPECTED = (
    "expected what Label Studio (JSON or JSON-MIN) or Argilla (records.to_json) exports of records that came from "
    "`compensate export`"
)


def label_studio_tasks(audit: Audit, *, everything: bool = False, images: str | None = None) -> list[dict[str, Any]]:
    """Tasks to import into Label Studio, most suspect first: the suggestion as a prediction, the given label as an annotation.

    Args:
        everything: all rows, not only the flagged ones.
        images: where Label Studio finds the files of an image folder, such as ``/data/local-files/?d=pics``; by default images
            are embedded.

    The prediction score is 1 - p_error. `label_studio_config` makes the labeling interface, and ``apply(export.json)`` reads the decisions.
    """
    field = _field(audit)

    def choice(label: str, **more: Any) -> dict[str, Any]:
        return {"from_name": "label", "to_name": field, "type": "choices", "value": {"choices": [label]}, **more}

    tasks: list[dict[str, Any]] = []
    for i, about in _exported(audit, "Label Studio", everything):
        score, result = round(1 - float(audit.p_error[i]), 6), [choice(about["suggested"])]
        tasks.append({
            "data": {**_shown(audit, i, images), **about},
            "predictions": [{"model_version": AGENT, "score": score, "result": result}],
            "annotations": [{"result": [choice(about["given"], id=GIVEN)]}],
        })  # fmt: skip
    return tasks


def label_studio_config(audit: Audit) -> str:
    """The labeling interface of a project for these tasks. Pairs are shown side by side; choices say what ``Pairwise`` cannot: tie and drop."""
    field = _field(audit)
    shown = '<Image name="image" value="$image"/>' if field == "image" else '<Text name="text" value="$text"/>'
    if audit.label_kind.page == "pair":
        sides = "".join(f'<Text name="{side}" value="${side}"/>' for side in SIDES)
        shown += f'\n  <View style="display: grid; grid-template-columns: 1fr 1fr; gap: 1em">{sides}</View>'
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in audit.classes)
    return f'<View>\n  {shown}\n  <Choices name="label" toName="{field}" choice="single">\n{choices}\n  </Choices>\n</View>\n'


def fiftyone_samples(audit: Audit, *, everything: bool = True, images: str | None = None) -> list[dict[str, Any]]:
    """Samples for ``fiftyone.Sample.from_dict``: ground_truth, suggested, mistakenness, and a tag for flagged samples.

    Args:
        everything: all images, or only the flagged ones.
        images: the folder of the images, if it has moved.
    """
    records = _exported(audit, "FiftyOne", everything)
    if audit.kind != "image" or not audit.ids:
        raise InputError(
            f"FiftyOne shows image files, and this audit is of {audit.title} ({audit.kind}). Audit a folder of images, or export to "
            "label-studio, argilla or cleanlab."
        )
    folder = images if images is not None else audit.data.source.folder if audit.data else ""
    paths = [folder.rstrip("/") + "/" + name if "://" in folder else str(Path(folder) / name) for name in audit.ids]
    kind = {"_cls": "Classification"}
    return [
        {
            "filepath": paths[i],
            "tags": [TAG] if audit.mask[i] else [],
            "ground_truth": {**kind, "label": about["given"]},
            "suggested": {**kind, "label": about["suggested"], "confidence": _confidence(audit, i)},
            "mistakenness": about["p_error"],
            "row": about["row"],
        }
        for i, about in records
    ]


def argilla_records(audit: Audit, *, everything: bool = False, images: str | None = None) -> list[dict[str, Any]]:
    """Records for ``dataset.records.log`` of Argilla 2, most suspect first; arguments as for `label_studio_tasks`.

    Argilla needs a mapping of suggestions: ``mapping={key: key for key in records[0] if key.startswith("label.")}``.
    """
    return [
        {
            "id": str(about["row"]),
            **_shown(audit, i, images),
            "label.suggestion": about.pop("suggested"),
            "label.suggestion.score": round(_confidence(audit, i), 6),
            "label.suggestion.agent": AGENT,
            **about,
        }
        for i, about in _exported(audit, "Argilla", everything)
    ]


def whole_rows(audit: Audit) -> None:
    """Refuses an audit of samples with several labels each."""
    if not audit.by_row:
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
        } | ({"part": audit.part(i)} if audit.addresses else {})
        records.append((i, about | ({"id": audit.ids[i]} if audit.ids and _field(audit) == "text" else {})))
    return records


def _field(audit: Audit) -> str:
    return "image" if audit.kind == "image" else "text"


def _confidence(audit: Audit, i: int) -> float:
    """The probability of the suggested class; without class probabilities, and for pairs that may be dropped, of an error."""
    if audit.probabilities is None or audit.addresses:
        return float(audit.p_error[i])
    return float(audit.probabilities[i, audit.suggested[i]])


def _shown(audit: Audit, i: int, images: str | None) -> dict[str, str]:
    """What a tool shows: the text, the cells of a row, the address of an image or the image itself; for pairs, the responses too."""
    field = _field(audit)
    if images is not None and audit.kind == "image":
        if not audit.ids:
            raise InputError(
                "these images are not files and have no addresses; leave images out, and they are embedded."
            )
        return {field: images.rstrip("/") + "/" + audit.ids[i]}
    if audit.data is None:
        raise InputError(
            f"the data of this audit ({audit.title}) is not loaded; run `audit` again, or load the audit with its data: "
            "compensate.auditing.request.reopen(folder)."
        )
    content = label_content(audit, i)
    if content.image is not None:
        return {field: f"data:image/{embedded_image(content.image)}"}
    fields = "\n".join(f"{name}: {value}" for name, value in content.fields)
    text = content.text if content.text is not None else fields or f"row {int(audit.index[i])}"
    return {field: text} | dict(zip(SIDES, (side for _, side in content.sides), strict=False))


def cleanlab_issues(audit: Audit) -> dict[str, Any]:
    """`pred_probs` (N, C), `labels` (N,) and `issues`, a frame as cleanlab's Datalab has it for label issues.

    The frame has is_label_issue, label_score (1 - p_error, smaller is worse), given_label and predicted_label, indexed by the row. The
    probabilities are out of fold.
    """
    if audit.regression or audit.probabilities is None:
        raise InputError("cleanlab's form needs class probabilities, which this audit has not kept.")
    columns = {
        "is_label_issue": audit.mask,
        "label_score": 1 - audit.p_error,
        "given_label": audit.names(audit.given),
        "predicted_label": audit.names(np.where(audit.mask, audit.suggested, audit.given)),
    }
    issues = pd.DataFrame(columns, index=audit.index)
    return {"pred_probs": audit.probabilities, "labels": audit.given, "issues": issues}


def frame(audit: Audit) -> pd.DataFrame:
    """All audited rows in the order of the data: their own columns, then suggested, p_error and flagged."""
    whole_rows(audit)
    columns: dict[str, Any] = {}
    raw = None if audit.data is None else audit.data.raw
    if isinstance(raw, pd.DataFrame):
        rows = audit.position(np.arange(len(audit)))
        columns |= {str(name): raw[name].to_numpy()[rows] for name in raw.columns}
    elif raw is not None and audit.kind == "text":
        columns["text"] = list(raw)
    if audit.ids and "id" not in columns:
        columns["id"] = list(audit.ids)
    both = (audit.given, audit.suggested)
    given, suggested = both if audit.regression else map(audit.names, both)
    columns.setdefault(audit.source.label or "label", given)
    added = {"suggested": suggested, "p_error": audit.p_error, "flagged": audit.mask}
    columns |= {f"{name} (audit)" if name in columns else name: values for name, values in added.items()}
    return pd.DataFrame(columns, index=pd.Index(audit.index, name="row"))


def dataset(audit: Audit) -> Any:
    """As `frame`, a data set of Hugging Face's `datasets` with the names of the classes in its label columns."""
    datasets = require("datasets", "making a data set", "hf")
    table = frame(audit)
    found = datasets.Dataset.from_pandas(table, preserve_index=True)
    if audit.regression:
        return found
    kind = datasets.ClassLabel(names=list(audit.classes))
    for name, values in {audit.source.label or "label": audit.given, table.columns[-3]: audit.suggested}.items():
        found = found.remove_columns([name]).add_column(name, np.asarray(values, dtype=np.int64), feature=kind)
    return found.select_columns(["row", *table.columns])


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
        names = {"row": "digest", "source": "source", "part": "part"}
        more = {column: str(about.get(name) or "") for column, name in names.items()}
        yield {"index": str(about["row"]), "given": given, "decision": decision, "label": chosen, **more}


def _decided(record: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], str | None]:
    """The fields of a record about its row, and the chosen label: None without a choice, empty if it was skipped."""
    chosen: str | None = None
    values, states = [], []  # of the responses of Argilla
    if isinstance(record.get("data"), dict):  # Label Studio, JSON
        about = record["data"]
        for annotation in (one for one in _typed(record, "annotations", list) if isinstance(one, dict)):
            results = [one for one in _typed(annotation, "result", list) if isinstance(one, dict)]
            for result in (one for one in results if one.get("from_name") == "label"):
                label = _text(_typed(result, "value", dict).get("choices"))
                same = result.get("id") == GIVEN and label == str(about.get("given")) and not _saved_again(annotation)
                chosen = chosen if label is None or same else label  # of the last annotation of a person
            chosen = "" if annotation.get("was_cancelled") else chosen
    elif isinstance(record.get("metadata"), dict):  # Argilla, records.to_json
        suggestions = _typed(_typed(record, "suggestions", dict), "label", dict)
        about = {"suggested": suggestions.get("value", ""), **record["metadata"]}
        responses = _typed(_typed(record, "responses", dict), "label", list)
        values, states = [r.get("value") for r in responses if isinstance(r, dict)], [record.get("status")]
    elif "label.responses" in record or "label.suggestion" in record:  # Argilla, flat
        about = {**record, "suggested": record.get("label.suggestion", "")}
        values, states = (record.get(name) or [] for name in ("label.responses", "label.responses.status"))
        if not isinstance(values, list) or not isinstance(states, list):
            raise InputError(f"{where}: the responses are not a list; {_EXPECTED}.")
    else:  # Label Studio, JSON-MIN: the imported annotation has no time spent on it
        about, chosen = record, _text(record.get("label"))
        timed = "lead_time" in record or ("created_at" in record and "updated_at" in record)
        if chosen == str(record.get("given")) and timed and not record.get("lead_time") and not _saved_again(record):
            chosen = None
    if states and str(states[-1]).rpartition(".")[2] == "discarded":
        chosen = ""
    elif values:
        chosen = _text(values[-1])
    if "row" not in about or "given" not in about:
        raise InputError(f"{where} does not say which row it is about (row, given); {_EXPECTED}.")
    return about, chosen


def _saved_again(annotation: Mapping[str, Any]) -> bool:
    """Whether an annotation was saved again after it was imported, to the second."""
    created, updated = (str(annotation.get(name) or "")[:19] for name in ("created_at", "updated_at"))
    return bool(created and updated and created != updated)


def _typed(record: Mapping[str, Any], name: str, kind: type) -> Any:
    """A field, or an empty one where it is missing or of another type."""
    value = record.get(name)
    return value if isinstance(value, kind) else kind()


def _text(value: Any) -> str | None:
    if isinstance(value, list):
        value = value[0] if len(value) == 1 else None
    return value if isinstance(value, str) else None
