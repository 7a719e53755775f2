"""What goes out to other tools has their form, and what people decide there comes back to its row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pandas as pd
import pytest
from commands import run
from PIL import Image
from test_review_round_trip import WRONG as WRONG_PAIRS
from test_review_round_trip import pairs

from compensate.auditing.api import audit
from compensate.auditing.decisions import read_corrections, write_corrections
from compensate.auditing.exchange import label_studio_config, read_decisions
from compensate.auditing.request import reopen
from compensate.auditing.result import Audit, apply_corrections
from compensate.auditing.store import write_run
from compensate.data import read_frame
from compensate.errors import InputError

NAMES = ["=cmd()", 'good & "fine"']
WORDS = ["awful dull boring slow bad", "lovely bright funny warm fine"]
WRONG = (2, 9, 30)


def reviews(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = []
    for k in range(60):
        words = " ".join(rng.permutation(WORDS[k % 2].split()))
        rows.append({"review": f"a film so {words} number {k} <b>é</b>", "label": NAMES[(k % 2) ^ (k in WRONG)]})
    path = folder / "reviews.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


@pytest.fixture
def found(tmp_path: Path) -> Audit:
    return audit(reviews(tmp_path), encoder="none")


# --- Label Studio ---------------------------------------------------------------------------------------------


def test_tasks_fit_the_schema_of_label_studio(found: Audit) -> None:
    """Keys and types as https://labelstud.io/guide/tasks and /guide/predictions describe them."""
    from xml.etree import ElementTree

    tasks = found.to_label_studio()
    assert len(tasks) == found.mask.sum() >= len(WRONG)
    assert len(found.to_label_studio(everything=True)) == len(found)
    first = tasks[0]
    row = first["data"]["row"]
    assert first["data"]["text"] == read_frame(found.config["source"])["review"][row]
    assert first["predictions"][0]["score"] == min(t["predictions"][0]["score"] for t in tasks)
    assert first["predictions"][0]["result"][0]["value"]["choices"] == [found.flagged["suggested"].iloc[0]]
    assert first["annotations"][0]["result"][0]["value"]["choices"] == [first["data"]["given"]]
    json.dumps(tasks)
    config = ElementTree.fromstring(label_studio_config(found))
    control, shown = config.find("Choices"), config.find("Text")
    choices = [choice.get("value") for choice in control]
    assert choices == sorted(NAMES)
    for task in tasks:
        assert set(task) == {"data", "predictions", "annotations"}
        assert task["data"][shown.get("value").removeprefix("$")]
        for result in (*task["predictions"][0]["result"], *task["annotations"][0]["result"]):
            assert (result["from_name"], result["to_name"]) == (control.get("name"), control.get("toName"))
            assert result["to_name"] == shown.get("name")
            assert result["type"] == "choices"
            assert result["value"]["choices"][0] in choices


def test_tasks_are_accepted_by_the_client_of_label_studio(found: Audit) -> None:
    sdk = pytest.importorskip("label_studio_sdk.label_interface", reason="label-studio-sdk is not installed")
    interface = sdk.LabelInterface(label_studio_config(found))
    interface.validate()
    for task in found.to_label_studio():
        assert interface.validate_task({"data": task["data"]})
        assert all(interface.validate_annotation(annotation) for annotation in task["annotations"])
        assert [interface.validate_prediction(p, return_errors=True) for p in task["predictions"]] == [[]]


def decided_in_label_studio(
    tasks: list[dict[str, Any]], labels: dict[int, str | None], form: str
) -> list[dict[str, Any]]:
    """As Label Studio exports it: a second annotation, or the imported one changed."""
    if form == "min":
        return [
            {**t["data"], "id": k, "label": labels[t["data"]["row"]]}
            for k, t in enumerate(tasks)
            if labels.get(t["data"]["row"])
        ]
    done = json.loads(json.dumps(tasks))
    for task in done:
        row = task["data"]["row"]
        own = task["annotations"][0]
        own |= {"id": 5, "was_cancelled": False}
        own |= {"created_at": "2026-11-16T10:00:00.123Z", "updated_at": "2026-11-16T10:00:00.456Z"}
        if row not in labels:
            continue
        if labels[row] is None:
            task["annotations"].append({"result": [], "was_cancelled": True})
        elif form == "changed":
            own["result"][0]["value"]["choices"] = [labels[row]]
            own["updated_at"] = "2026-11-16T10:05:00.456Z"
        else:
            result = {"id": "x1", "from_name": "label", "to_name": "text", "type": "choices"}
            result["value"] = {"choices": [labels[row]]}
            task["annotations"].append({"id": 6, "result": [result], "was_cancelled": False})
    return done


@pytest.mark.parametrize("form", ["second", "changed", "min"])
def test_decisions_in_label_studio_come_back_to_their_rows(form: str, found: Audit, tmp_path: Path) -> None:
    tasks = found.to_label_studio()
    rows = [t["data"]["row"] for t in tasks]
    assert set(WRONG) <= set(rows)
    by_row = {t["data"]["row"]: t["data"] for t in tasks}
    labels: dict[int, str | None] = {WRONG[0]: by_row[WRONG[0]]["suggested"], WRONG[1]: by_row[WRONG[1]]["given"]}
    if form == "second":
        labels[WRONG[2]] = None
    export = tmp_path / "export.json"
    export.write_text(json.dumps(decided_in_label_studio(tasks, labels, form)))
    decided = {c.index: c for c in read_decisions(export)}
    assert set(decided) == set(labels), "what nobody looked at is no decision"
    assert decided[WRONG[0]].decision == "accept"
    assert decided[WRONG[1]].decision == "reject"
    if form == "second":
        assert decided[WRONG[2]].decision == "skip"
    write_corrections(tmp_path / "corrections.csv", decided.values())
    assert read_corrections(tmp_path / "corrections.csv") == tuple(decided.values())
    source = Path(found.config["source"])
    done = apply_corrections(source, export)
    assert (done.changed, done.checked) == (1, True)
    before, after = read_frame(source), read_frame(done.path)
    assert np.flatnonzero((before != after).any(axis=1)).tolist() == [WRONG[0]]
    source.write_text(source.read_text() + "a,b\n")
    with pytest.raises(InputError, match="is not what was reviewed"):
        apply_corrections(source, export, tmp_path / "other.csv")


def test_what_nobody_saved_again_is_no_decision_in_json_min(found: Audit, tmp_path: Path) -> None:
    data = [task["data"] for task in found.to_label_studio(everything=True)][:4]
    made = {"created_at": "2026-11-16T10:00:00.123Z", "updated_at": "2026-11-16T10:00:00.456Z", "lead_time": None}
    later = {"updated_at": "2026-11-16T10:05:00.456Z", "lead_time": 4.2}
    records = [
        {**data[0], **made, "label": data[0]["given"]},
        {**data[1], **made, **later, "label": data[1]["given"]},
        {**data[2], **made, "lead_time": 2.5, "label": data[2]["given"]},
        {**data[3], **made, "label": data[3]["suggested"]},
    ]
    (tmp_path / "export.json").write_text(json.dumps(records))
    decided = {c.index: c.decision for c in read_decisions(tmp_path / "export.json")}
    assert decided == {data[1]["row"]: "reject", data[2]["row"]: "reject", data[3]["row"]: "accept"}


# --- Argilla --------------------------------------------------------------------------------------------------


def decided_in_argilla(
    records: list[dict[str, Any]], labels: dict[int, str | None], flat: bool
) -> list[dict[str, Any]]:
    """As ``records.to_list(flatten=True)`` and ``records.to_json`` write it."""
    done = []
    for record in records:
        label, here = labels.get(record["row"]), record["row"] in labels
        if flat:
            status = "discarded" if label is None else "submitted"
            said = {"label.responses": [label], "label.responses.users": ["u"], "label.responses.status": [status]}
            state = {"status": "completed" if here else "pending", "_server_id": "7"}
            done.append({**record, **state, **(said if here else {})})
            continue
        names = ("row", "given", "p_error", "digest", "source")
        done.append(
            {
                "id": record["id"],
                "fields": {"text": record["text"]},
                "metadata": {name: record[name] for name in names},
                "suggestions": {"label": {"value": record["label.suggestion"], "score": 0.5, "agent": "compensate"}},
                "responses": {"label": [{"value": label, "user_id": "u"}]} if here else {},
                "vectors": {},
                "status": "completed" if here else "pending",
            }
        )
    return done


@pytest.mark.parametrize("flat", [True, False])
def test_decisions_in_argilla_come_back_to_their_rows(flat: bool, found: Audit, tmp_path: Path) -> None:
    records = found.to_argilla()
    by_row = {r["row"]: r for r in records}
    labels: dict[int, str | None] = {
        WRONG[0]: by_row[WRONG[0]]["label.suggestion"],
        WRONG[1]: by_row[WRONG[1]]["given"],
    }
    if flat:
        labels[WRONG[2]] = None
    (tmp_path / "export.json").write_text(json.dumps(decided_in_argilla(records, labels, flat)))
    decided = {c.index: c.decision for c in read_decisions(tmp_path / "export.json")}
    assert decided == {WRONG[0]: "accept", WRONG[1]: "reject", **({WRONG[2]: "skip"} if flat else {})}
    assert apply_corrections(found.config["source"], tmp_path / "export.json").changed == 1


def test_records_of_argilla_without_an_answer_are_no_decisions(found: Audit, tmp_path: Path) -> None:
    source, export = Path(found.config["source"]), tmp_path / "export.json"
    export.write_text(json.dumps(found.to_argilla()))
    assert read_decisions(export) == ()
    assert "holds no decision, so the labels are as they were" in run("apply", source, export, "-o", tmp_path / "a.csv")


# The client warns of every key that a mapping renames, and takes it all the same.
@pytest.mark.filterwarnings("ignore:Keys .* are not present in the mapping:UserWarning")
def test_records_are_accepted_by_the_client_of_argilla(found: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    rg = pytest.importorskip("argilla", reason="argilla is not installed")
    from argilla.records._mapping import IngestedRecordMapper

    class Offline:
        def __getattr__(self, name: str) -> Any:
            return Offline()

        def __call__(self, *args: Any, **named: Any) -> Any:
            return Offline()

    monkeypatch.setattr(rg.Argilla, "_get_default", classmethod(lambda cls: Offline()))
    settings = rg.Settings(
        fields=[rg.TextField("text")],
        questions=[rg.LabelQuestion("label", labels=list(found.classes))],
        metadata=[
            rg.IntegerMetadataProperty("row"), rg.TermsMetadataProperty("given"), rg.FloatMetadataProperty("p_error"),
            rg.TermsMetadataProperty("digest"), rg.TermsMetadataProperty("source"),
        ],
    )  # fmt: skip
    dataset = rg.Dataset("reviews", settings=settings, client=Offline())
    records = found.to_argilla()
    mapping = {key: key for key in records[0] if key.startswith("label.")}
    mapper = IngestedRecordMapper(dataset=dataset, user_id=uuid4(), mapping=mapping)
    for record in records:
        made = mapper(data=record)
        assert made.fields["text"] == record["text"]
        assert made.suggestions["label"].value == record["label.suggestion"]
        assert made.suggestions["label"].agent == "compensate"
        assert made.metadata["row"] == record["row"]
        export = made.to_dict()
        assert export["metadata"]["digest"] == record["digest"]


# --- FiftyOne, cleanlab, tables -------------------------------------------------------------------------------


def test_samples_of_fiftyone_name_their_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for k in range(40):
        name = tmp_path / "pics" / ("dark", "light")[(k % 2) ^ (k == 5)] / f"{k:02d}.png"
        name.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((rng.integers(0, 60, size=(8, 8)) + 150 * (k % 2)).astype(np.uint8)).save(name)
    found = audit(tmp_path / "pics", encoder="none")
    samples = found.to_fiftyone()
    assert len(samples) == 40
    first = samples[0]
    assert first["filepath"] == str(tmp_path / "pics" / "dark" / "05.png")
    assert first["tags"] == ["possible_label_error"]
    assert first["ground_truth"] == {"_cls": "Classification", "label": "dark"}
    assert first["suggested"]["label"] == "light"
    assert first["suggested"]["confidence"] > 0.5
    assert first["mistakenness"] == max(s["mistakenness"] for s in samples)
    assert found.to_fiftyone(images="s3://bucket/pics")[0]["filepath"] == "s3://bucket/pics/dark/05.png"
    task = found.to_label_studio()[0]
    assert task["data"]["image"].startswith("data:image/png;base64,")
    assert (
        found.to_label_studio(images="/data/local-files/?d=pics")[0]["data"]["image"]
        == "/data/local-files/?d=pics/dark/05.png"
    )
    assert "<Image" in label_studio_config(found)


def test_a_frame_has_the_rows_and_what_was_found(found: Audit) -> None:
    with pytest.raises(InputError, match="FiftyOne shows image files"):
        found.to_fiftyone()
    frame = found.to_frame()
    assert list(frame.columns) == ["review", "label", "suggested", "p_error", "flagged"]
    assert frame["label"].tolist() == read_frame(found.config["source"])["label"].tolist()
    assert frame.index[frame["flagged"]].tolist() == sorted(found.flagged["index"])


def test_a_data_set_keeps_the_names_of_the_classes(found: Audit) -> None:
    datasets = pytest.importorskip("datasets")
    made = found.to_dataset()
    assert made.column_names == ["row", "review", "label", "suggested", "p_error", "flagged"]
    assert made.features["label"].names == list(found.classes)
    assert [made.features["suggested"].int2str(c) for c in made["suggested"]] == found.names(found.suggested)
    assert isinstance(made, datasets.Dataset)
    again = audit(made.remove_columns(["suggested", "p_error", "flagged"]), encoder="none")
    np.testing.assert_allclose(again.p_error, found.p_error)


# --- preference pairs -----------------------------------------------------------------------------------------


def test_decisions_about_pairs_come_back_from_every_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from xml.etree import ElementTree

    monkeypatch.chdir(tmp_path)
    frame = pairs()
    frame.to_json("pairs.jsonl", orient="records", lines=True)
    run("audit", "pairs.jsonl", "--encoder", "none", "--out", "run")
    run("export", "run", "--to", "label-studio", "-o", "tasks.json")
    tasks = json.loads(Path("tasks.json").read_text())
    assert {t["data"]["row"] for t in tasks} == set(WRONG_PAIRS)
    for data in (t["data"] for t in tasks):
        assert [data[name] for name in ("text", "first", "second")] == frame.iloc[data["row"]].tolist()
        assert (data["given"], data["suggested"]) == ("first", "drop")
    config = ElementTree.parse("tasks.xml")
    assert {text.get("value") for text in config.iter("Text")} == {"$text", "$first", "$second"}
    assert [choice.get("value") for choice in config.iter("Choice")] == ["first", "second", "tie", "drop"]
    dropped, kept, turned = WRONG_PAIRS[:3]
    labels: dict[int, str | None] = {dropped: "drop", kept: "first", turned: "second"}
    run("export", "run", "--to", "argilla", "-o", "records.json")
    records = json.loads(Path("records.json").read_text())
    expected = frame.copy()
    expected.loc[turned, ["chosen", "rejected"]] = frame.loc[turned, ["rejected", "chosen"]].to_numpy()
    expected = expected.drop(index=dropped).reset_index(drop=True)
    exports = [decided_in_label_studio(tasks, labels, form) for form in ("second", "min")]
    for k, export in enumerate([*exports, decided_in_argilla(records, labels, flat=True)]):
        Path("export.json").write_text(json.dumps(export))
        run("apply", "pairs.jsonl", "export.json", "-o", f"{k}.jsonl")
        pd.testing.assert_frame_equal(pd.read_json(f"{k}.jsonl", lines=True), expected)
    run("export", "run", "--to", "cleanlab", "-o", "issues.csv")
    issues = pd.read_csv("issues.csv")
    assert issues["row"][issues["is_label_issue"]].tolist() == sorted(WRONG_PAIRS)


# --- the command line -----------------------------------------------------------------------------------------


def test_a_run_is_exported_and_its_decisions_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reviews(tmp_path)
    run("audit", "reviews.csv", "--encoder", "none", "--out", "run")
    said = run("export", "run", "--to", "label-studio", "-o", "tasks.json")
    assert "records for label-studio" in said
    assert Path("tasks.xml").read_text().startswith("<View>")
    tasks = json.loads(Path("tasks.json").read_text())
    labels: dict[int, str | None] = {
        row: next(t["data"]["suggested"] for t in tasks if t["data"]["row"] == row) for row in WRONG
    }
    Path("export.json").write_text(json.dumps(decided_in_label_studio(tasks, labels, "second")))
    assert "3 of 60 labels changed" in run("apply", "reviews.csv", "export.json")
    assert "60 rows" in run("export", "run", "--to", "cleanlab", "-o", "issues.csv")
    assert len(pd.read_csv("issues.csv")) == 60
    assert len(json.loads(Path("tasks.json").read_text())) == len(tasks)
    for tool, out, said in (
        ("cleanlab", "a.json", r"cleanlab reads a \.csv file"), ("argilla", "a.csv", r"write: -o a\.json"),
        ("argilla", "tasks.json", "exists already"), ("fiftyon", "f.json", 'did you mean "fiftyone"'),
    ):  # fmt: skip
        with pytest.raises(InputError, match=said):
            run("export", "run", "--to", tool, "-o", out)
        assert out == "tasks.json" or not Path(out).exists()
    assert "records for argilla" in run("export", "run", "--to", "argilla", "-o", "tasks.json", "--force", "--all")
    assert len(json.loads(Path("tasks.json").read_text())) == 60


def test_a_run_whose_source_has_changed_is_not_exported(found: Audit, tmp_path: Path) -> None:
    write_run(found, tmp_path / "run")
    again = reopen(tmp_path / "run")
    assert again.to_label_studio() == found.to_label_studio()
    source = Path(found.config["source"])
    source.write_text(source.read_text().replace("number 7", "number 77"))
    with pytest.raises(InputError, match="has changed since it was audited"):
        reopen(tmp_path / "run")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("not json", "is not JSON"),
        ('{"data": 1}', "does not hold a list of records"),
        ('[{"data": {"text": "a"}}]', "record 1 does not say which row"),
        ('[{"data": {"row": 1, "given": "a"}, "annotations": [{"result": [{"from_name": "label", "value": {"choices": ["b"]}}]}]},'
         '{"data": {"row": 1, "given": "a"}, "annotations": [{"result": [{"from_name": "label", "value": {"choices": ["b"]}}]}]}]', "more than once"),
        ('[{"data": {"row": "x", "given": "a"}, "annotations": [{"result": [{"from_name": "label", "value": {"choices": ["b"]}}]}]}]', "expected a row number"),
        ("[[[[[[" * 50_000, "is not JSON"),
    ],
)  # fmt: skip
def test_an_export_that_is_none_is_refused(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "export.json").write_text(content)
    with pytest.raises(InputError, match=said):
        read_decisions(tmp_path / "export.json")
