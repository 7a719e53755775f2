"""Exchange with annotation tools: records of Label Studio, Argilla and FiftyOne, tables, and the decisions that come back.

None of these tools is imported. A record carries the number and the digest of its row, its given label and the digest of the source, by
which a decision finds its row again. The functions that take an audit are methods of `Audit`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.sax.saxutils import quoteattr  # nosec B406: writes, and parses nothing

import numpy as np
import pandas as pd

from compensate.auditing.content import embedded_image, label_content
from compensate.auditing.decisions import Correction, read_corrections, run_decisions
from compensate.auditing.labels import kind_of
from compensate.auditing.write_back import is_number, same_label
from compensate.data.dataset import Dataset
from compensate.errors import InputError
from compensate.extras import require
from compensate.files import read_text

if TYPE_CHECKING:
    from compensate.auditing.result import Audit

AGENT = "compensate"  # the name of the model in suggestions
GIVEN = "given"  # the id of an annotation that holds the given label; it is not a decision
SKIPPED = ""  # the answer to a question that a person skipped
TAG = "possible_label_error"
TOOLS = ("label-studio", "fiftyone", "argilla", "cleanlab")

SUFFIXES = (".json", ".jsonl")  # endings of the exports that `read_decisions` reads
_EXPECTED = (
    "expected what Label Studio (JSON or JSON-MIN) or Argilla (records.to_json) exports of records that came from "
    "`compensate export`"
)


class Form(NamedTuple):
    """How annotation tools ask for an answer: one name, several names, spans of the text with a name, or a number as text."""

    label_studio: Callable[[Sequence[str], str], str]  # the control of the interface, for names and what it is about
    results: Callable[[Any, str], list[dict[str, Any]]]  # values of Label Studio, for an answer and the text
    argilla: Callable[[Any], Any]  # the value of a suggestion
    fiftyone: Callable[[Any], dict[str, Any]] | None  # the label of a sample
    read: Callable[[list[Any]], Any]  # the answer in the values of a tool


def _control(tag: str, item: str = "", more: str = "") -> Callable[[Sequence[str], str], str]:
    def control(names: Sequence[str], field: str) -> str:
        items = "".join(f"\n    <{item} value={quoteattr(name)}/>" for name in names if item)
        return f'<{tag} name="label" toName="{field}"{more}' + (f">{items}\n  </{tag}>" if item else "/>")

    return control


def _items(values: list[Any]) -> list[str]:
    """The names and numbers in values such as ``"a"``, ``["a", "b"]``, ``{"choices": ["a"]}`` and ``{"number": 2.5}``."""
    found = [one.get("choices", one.get("number")) if isinstance(one, dict) else one for one in values]
    flat = [item for one in found for item in (one if isinstance(one, list) else [one])]
    return [str(item) for item in flat if isinstance(item, (str, int, float))]


def _single(values: list[Any]) -> str | None:
    items = _items(values)
    return items[0] if len(items) == 1 else None


def _spans(values: list[Any]) -> list[tuple[int, int, str]]:
    spans = [one for value in values for one in (value if isinstance(value, list) else [value])]
    return [(int(one["start"]), int(one["end"]), _items([one.get("labels") or one["label"]])[0]) for one in spans]


def _classified(name: str) -> dict[str, Any]:
    return {"_cls": "Classification", "label": name}


FORMS = {
    "choice": Form(
        _control("Choices", "Choice", ' choice="single"'), lambda a, _: [{"choices": [a]}], str, _classified, _single
    ),
    "choices": Form(
        _control("Choices", "Choice", ' choice="multiple"'), lambda a, _: [{"choices": a}], list,
        lambda a: {"_cls": "Classifications", "classifications": [*map(_classified, a)]}, _items,
    ),
    "number": Form(
        _control("Number"), lambda a, _: [{"number": float(a)}], str,
        lambda a: {"_cls": "Regression", "value": float(a)}, _single,
    ),
    "spans": Form(
        _control("Labels", "Label"),
        lambda a, text: [{"start": i, "end": j, "text": text[i:j], "labels": [name]} for i, j, name in a],
        lambda a: [{"start": i, "end": j, "label": name} for i, j, name in a], None, _spans,
    ),
}  # fmt: skip
"""The forms of answers, by the name that `LabelKind.answer` gives."""


def label_studio_tasks(audit: Audit, *, everything: bool = False, images: str | None = None) -> list[dict[str, Any]]:
    """Tasks to import into Label Studio, most suspect first: the suggestion as a prediction, the given label as an annotation.

    Args:
        everything: all rows, not only the flagged ones.
        images: where Label Studio finds the files of an image folder, such as ``/data/local-files/?d=pics``; by default images
            are embedded.

    The prediction score is 1 - p_error. `label_studio_config` makes the labeling interface, and ``apply(export.json)`` reads the decisions.
    A sample with several labels is one task.
    """
    field, form = _field(audit), _form(audit)
    tasks: list[dict[str, Any]] = []
    kind = form.label_studio(("",), "").split()[0].strip("<").lower()
    for i, given, suggested, about in _exported(audit, everything):
        shown = _shown(audit, i, images)

        def results(answer: Any, text: str = shown[field], **more: Any) -> list[dict[str, Any]]:
            values = form.results(answer, text)
            return [{"from_name": "label", "to_name": field, "type": kind, "value": value, **more} for value in values]

        score = round(1 - float(audit.p_error[i]), 6)
        tasks.append({
            "data": {**shown, **about},
            "predictions": [{"model_version": AGENT, "score": score, "result": results(suggested)}],
            "annotations": [{"result": results(given, id=GIVEN)}],
        })  # fmt: skip
    return tasks


def label_studio_config(audit: Audit) -> str:
    """The labeling interface of a project for these tasks. Pairs are shown side by side; choices say what ``Pairwise`` cannot: tie and drop."""
    field = _field(audit)
    shown = '<Image name="image" value="$image"/>' if field == "image" else '<Text name="text" value="$text"/>'
    if audit.label_kind.sides:
        sides = "".join(f'<Text name="{side}" value="${side}"/>' for side in audit.label_kind.sides)
        shown += f'\n  <View style="display: grid; grid-template-columns: 1fr 1fr; gap: 1em">{sides}</View>'
    return f"<View>\n  {shown}\n  {_form(audit).label_studio(audit.label_kind.choices(audit), field)}\n</View>\n"


def fiftyone_samples(audit: Audit, *, everything: bool = True, images: str | None = None) -> list[dict[str, Any]]:
    """Samples for ``fiftyone.Sample.from_dict``: ground_truth, suggested, mistakenness, and a tag for flagged samples.

    Args:
        everything: all images, or only the flagged ones.
        images: the folder of the images, if it has moved.
    """
    label = _form(audit).fiftyone
    if label is None or _field(audit) != "image" or _file(audit, 0) is None:
        raise InputError(
            f"FiftyOne shows image files, and this audit is of {audit.title} ({audit.kind}). Audit a folder of images, or export to "
            "label-studio, argilla or cleanlab."
        )
    folder = images if images is not None else audit.data.source.folder if audit.data else ""
    samples = []
    for i, given, suggested, about in _exported(audit, everything):
        name, likely = str(_file(audit, i)), label(suggested)
        samples.append({
            "filepath": folder.rstrip("/") + "/" + name if "://" in folder else str(Path(folder) / name),
            "tags": [TAG] if audit.mask[i] else [],
            "ground_truth": label(given),
            "suggested": likely | ({"confidence": _confidence(audit, i)} if "label" in likely else {}),
            "mistakenness": about["p_error"],
            "row": about["row"],
        })  # fmt: skip
    return samples


def argilla_records(audit: Audit, *, everything: bool = False, images: str | None = None) -> list[dict[str, Any]]:
    """Records for ``dataset.records.log`` of Argilla 2, most suspect first; arguments as for `label_studio_tasks`.

    Argilla needs a mapping of suggestions: ``mapping={key: key for key in records[0] if key.startswith("label.")}``. The question "label" is a
    ``LabelQuestion``; for several labels a ``MultiLabelQuestion``, for entities a ``SpanQuestion``, for quantities a ``TextQuestion``.
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
        for i, _, _, about in _exported(audit, everything)
    ]


def _form(audit: Audit) -> Form:
    if not audit.label_kind.answer:
        raise InputError(
            f"annotation tools are given no form of {audit.label_kind.noun}; review them with `compensate review`, or export to cleanlab."
        )
    return FORMS[audit.label_kind.answer]


def _exported(audit: Audit, everything: bool) -> list[tuple[int, Any, Any, dict[str, Any]]]:
    """Of each sample with a flagged label, or of all, most suspect first: the label, the answers, and fields by which a decision finds it."""
    form, order = _form(audit), np.argsort(-audit.p_error, kind="stable")
    kind: Any = _loaded(audit).parts if audit.addresses else audit.label_kind()
    samples, records = dict[int, list[int]](), []
    for i, row in zip(order.tolist(), audit.rows[order].tolist(), strict=True):
        samples.setdefault(row, []).append(i)
    for labels in samples.values():
        i, flagged = labels[0], [k for k in labels if audit.mask[k]]
        if everything or flagged:
            given, suggested, found = kind.ask(audit, labels, flagged)
            about = {"suggested": form.argilla(suggested), "p_error": round(float(audit.p_error[i]), 6)}
            about |= {"digest": audit.row_digest(i), "source": audit.source_digest}
            about |= {"part": audit.part(i)} if audit.addresses else {}
            about |= {"id": audit.ids[i]} if audit.ids and audit.by_row and _field(audit) == "text" else {}
            records.append((i, given, suggested, about | found))
    return records


def _loaded(audit: Audit) -> Dataset:
    if audit.data is None:
        raise InputError(
            f"the data of this audit ({audit.title}) is not loaded; run `audit` again, or load the audit with its data: "
            "compensate.auditing.request.reopen(folder)."
        )
    return audit.data


def _field(audit: Audit) -> str:
    return "image" if "image" in (audit.kind, audit.provenance.shown) else "text"


def _file(audit: Audit, i: int) -> str | None:
    """The file of the image of a label."""
    if audit.ids:
        return audit.ids[i]
    ids = None if audit.data is None else audit.data.ids
    return None if ids is None else str(ids[audit.position(i)])


def _confidence(audit: Audit, i: int) -> float:
    """The probability of the suggested class; without class probabilities, and for pairs that may be dropped, of an error."""
    if audit.probabilities is None or audit.addresses:
        return float(audit.p_error[i])
    return float(audit.probabilities[i, audit.suggested[i]])


def _shown(audit: Audit, i: int, images: str | None) -> dict[str, str]:
    """What a tool shows: the text, the cells of a row, the address of an image or the image itself; for pairs, the responses too."""
    field = _field(audit)
    if images is not None and field == "image":
        file = _file(audit, i)
        if file is None:
            raise InputError(
                "these images are not files and have no addresses; leave images out, and they are embedded."
            )
        return {field: images.rstrip("/") + "/" + file}
    _loaded(audit)
    content = label_content(audit, i)
    if content.image is not None:
        return {field: f"data:image/{embedded_image(content.image)}"}
    fields = "\n".join(f"{name}: {value}" for name, value in content.fields)
    words = " ".join(word for word, _ in content.tokens)
    text = content.text if content.text is not None else words or fields or f"row {int(audit.index[i])}"
    return {field: text} | dict(zip(audit.label_kind.sides, (side for _, side in content.sides), strict=True))


def cleanlab_issues(audit: Audit) -> dict[str, Any]:
    """`pred_probs` (N, C), `labels` (N,) and `issues`, a frame as cleanlab's Datalab has it for label issues.

    The frame has is_label_issue, label_score (1 - p_error, smaller is worse), given_label and predicted_label, indexed by the row. The
    probabilities are out of fold.
    """
    if audit.probabilities is None and audit.classes and not audit.addresses:
        raise InputError("cleanlab's form needs class probabilities, which this audit has not kept.")
    columns = {
        **audit.label_kind.address_columns(audit.addresses if not audit.by_row else ()),
        "is_label_issue": audit.mask,
        "label_score": 1 - audit.p_error,
        "given_label": audit.names(audit.given),
        "predicted_label": audit.names(np.where(audit.mask, audit.suggested, audit.given)),
    }
    issues = pd.DataFrame(columns, index=audit.rows)
    return {"pred_probs": audit.probabilities, "labels": audit.given, "issues": issues}


def frame(audit: Audit) -> pd.DataFrame:
    """All audited rows in the order of the data: their own columns, then suggested, p_error and flagged."""
    if not audit.by_row:
        raise InputError("this audit is of several labels a sample, which have no row of their own; take suspects.")
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


def read_decisions(decisions: str | Path | Iterable[Correction]) -> tuple[Correction, ...]:
    """The decisions in the folder of a run, in ``corrections.csv`` or in an export of Label Studio or Argilla; records stay as they are."""
    if not isinstance(decisions, (str, Path)):
        return tuple(decisions)
    path = Path(decisions)
    if path.is_dir():
        return run_decisions(path)
    return read_corrections(path, _exported_rows(path) if path.suffix.lower() in SUFFIXES else None)


def _exported_rows(path: Path) -> Iterator[dict[str, str]]:
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
        where = f"{path}, record {number}"
        about, answers = _answers(record, where)
        if "row" not in about or "given" not in about:
            raise InputError(f"{where} does not say which row it is about (row, given); {_EXPECTED}.")
        more = {"row": str(about.get("digest") or ""), "source": str(about.get("source") or "")}
        kind, made = kind_of(str(about.get("part") or "")), list[Any]()
        try:
            form = FORMS[kind.answer]
            suggested = form.read([about.get("suggested", "")])
            for values, imported in answers:
                answer = SKIPPED if values is None else form.read(values)
                now = [] if answer is None else [*kind.decide(about, answer, suggested)]
                made = made if imported and all(label == old for _, old, label, *_ in now) else now or made
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise InputError(f"{where} cannot be read ({error or type(error).__name__}); {_EXPECTED}.") from error
        for index, given, label, likely, part in made:
            label = next((old for old in (given, likely) if is_number(old) and same_label(label, old)), label)
            known = {likely: "accept", given: "reject", SKIPPED: "skip"}
            decision = {"index": str(index), "given": given, "decision": known.get(label, "other"), "label": label}
            yield {**decision, "part": part, **more}


def _answers(record: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], list[tuple[list[Any] | None, bool]]]:
    """The fields of a record about its row, and its answers: the values of each (None if it was skipped), and whether it is as imported."""
    if isinstance(record.get("data"), dict):  # Label Studio, JSON
        answers: list[tuple[list[Any] | None, bool]] = []
        for annotation in (one for one in _typed(record, "annotations", list) if isinstance(one, dict)):
            results = [one for one in _typed(annotation, "result", list) if isinstance(one, dict)]
            results = [one for one in results if one.get("from_name") == "label"]
            imported = all(one.get("id") == GIVEN for one in results) and not _saved_again(annotation)
            cancelled = annotation.get("was_cancelled")
            answers.append((None if cancelled else [_typed(one, "value", dict) for one in results], imported))
        return record["data"], answers
    if isinstance(record.get("metadata"), dict):  # Argilla, records.to_json
        suggestions = _typed(_typed(record, "suggestions", dict), "label", dict)
        about: Mapping[str, Any] = {"suggested": suggestions.get("value", ""), **record["metadata"]}
        responses = _typed(_typed(record, "responses", dict), "label", list)
        values, states = [r.get("value") for r in responses if isinstance(r, dict)], [record.get("status")]
    elif "label.responses" in record or "label.suggestion" in record:  # Argilla, flat
        about = {**record, "suggested": record.get("label.suggestion", "")}
        values, states = (record.get(name) or [] for name in ("label.responses", "label.responses.status"))
        if not isinstance(values, list) or not isinstance(states, list):
            raise InputError(f"{where}: the responses are not a list; {_EXPECTED}.")
    else:  # Label Studio, JSON-MIN: the imported annotation has no time spent on it
        timed = "lead_time" in record or ("created_at" in record and "updated_at" in record)
        imported = timed and not record.get("lead_time") and not _saved_again(record)
        return record, [([record["label"]], imported)] if "label" in record else []
    if states and str(states[-1]).rpartition(".")[2] == "discarded":
        return about, [(None, False)]
    return about, [(values[-1:], False)] if values else []


def _saved_again(annotation: Mapping[str, Any]) -> bool:
    """Whether an annotation was saved again after it was imported, to the second."""
    created, updated = (str(annotation.get(name) or "")[:19] for name in ("created_at", "updated_at"))
    return bool(created and updated and created != updated)


def _typed(record: Mapping[str, Any], name: str, kind: type) -> Any:
    """A field, or an empty one where it is missing or of another type."""
    value = record.get(name)
    return value if isinstance(value, kind) else kind()
