"""Every command works for every kind of label: planted errors are found, decided in a tool, and written back."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from commands import run

from compensate.auditing.check import check
from compensate.auditing.result import Audit

WORDS = {
    "sports": ["goal", "match", "team", "player", "coach", "score", "league", "ball"],
    "money": ["bank", "market", "price", "shares", "stock", "profit", "tax", "loan"],
    "weather": ["rain", "storm", "cloud", "sunny", "wind", "snow", "cold", "heat"],
}
NAMES = list(WORDS)
ROWS, NEW = 600, 9  # of the audited file, and of the file that is checked


def sentence(rng: np.random.Generator, topics: list[str]) -> str:
    return " ".join(rng.permutation([str(word) for t in topics for word in rng.choice(WORDS[t], 5, replace=False)]))


class Made(NamedTuple):
    """The text of a file with errors and of the true one, and the rows of the errors; further arguments of the command."""

    name: str
    text: str
    truth: str
    wrong: set[int]
    command: tuple[str, ...] = ("audit",)


def table(rows: list[dict[str, Any]]) -> str:
    return pd.DataFrame(rows).to_csv(index=False)


def made(kind: str, rows: int, seed: int) -> Made:
    rng = np.random.default_rng(seed)
    wrong = set(rng.choice(rows, 6, replace=False).tolist())
    given, true = [], []
    if kind == "entities":
        places, people = (
            ["Paris", "Rome", "Oslo", "Lima", "Delhi", "Cairo"],
            ["Anna", "Boris", "Carla", "Dmitri", "Erik", "Fatima"],
        )
        for k in range(rows):
            words = [
                *sentence(rng, [NAMES[k % 3]]).split()[:2],
                "in",
                places[k % 6],
                "said",
                people[k // 3 % 6],
                "today",
            ]
            tags = ["O", "O", "O", "B-LOC", "O", "B-PER", "O"]
            lines = [f"{word} {tag}\n" for word, tag in zip(words, tags, strict=True)]
            true.append("".join(lines))
            given.append(true[-1].replace("B-LOC", "B-PER") if k in wrong else true[-1])
        return Made("tags.conll", "\n".join(given), "\n".join(true), wrong)
    for k in range(rows):
        topic = NAMES[k % 3]
        other = NAMES[(k + 1) % 3]
        if kind == "classes":
            row = {"text": sentence(rng, [topic])}
            labels = {"label": topic}, {"label": other}
        elif kind in ("label sets", "label columns"):
            topics = [topic] if k % 2 else [topic, other]
            row, bad = {"text": sentence(rng, topics)}, [*topics, NAMES[(k + 2) % 3]]
            if kind == "label sets":
                labels = {"labels": ";".join(sorted(topics))}, {"labels": ";".join([*sorted(topics), bad[-1]])}
            else:
                labels = tuple({name: int(name in some) for name in NAMES} for some in (topics, bad))
        elif kind == "quantities":
            x, z = rng.normal(size=2).round(3)
            value = round(50 + 10 * x - 5 * z + rng.normal() * 0.3, 2)
            row, labels = {"x": x, "z": z}, ({"price": value}, {"price": round(value * 10, 2)})
        elif kind == "votes":
            row = {"text": sentence(rng, [topic])}
            labels = {"ann": topic, "bob": topic, "eve": topic}, {"ann": other, "bob": other, "eve": topic}
        else:
            good, bad = "a long kind and helpful answer about " + sentence(rng, [topic]), "no idea " + str(k)
            row, labels = (
                {"prompt": f"tell me about {topic} {k}"},
                ({"chosen": good, "rejected": bad}, {"chosen": bad, "rejected": good}),
            )
        true.append(row | labels[0])
        given.append(row | labels[k in wrong])
    command = {
        "votes": ("consensus", "--annotators", "ann,bob,eve"),
        "label columns": ("audit", "--labels-columns", ",".join(NAMES)),
    }
    return Made("data.csv", table(given), table(true), wrong, command.get(kind, ("audit",)))


KINDS = ("classes", "label sets", "label columns", "entities", "quantities", "votes", "pairs")
TRUTH = {"votes": "ann", "label sets": "labels", "quantities": "price", "classes": "label", "pairs": "chosen"}


@pytest.fixture(scope="module", params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Made]:
    folder, made_ = tmp_path_factory.mktemp("kind"), made(request.param, ROWS, 0)
    (folder / made_.name).write_text(made_.text)
    command, *options = made_.command
    run(command, folder / made_.name, *options, "--encoder", "none", "--out", folder / "run")
    return request.param, folder, made_


def label_studio(records: list[dict[str, Any]], wrong: set[int], pairs: bool) -> None:
    for record in records:
        told = record["predictions" if record["data"]["row"] in wrong else "annotations"][0]["result"]
        results = [{**one, "id": f"by hand {k}"} for k, one in enumerate(told)]
        if pairs:
            results[0]["value"] = {"choices": ["second"]}
        record["annotations"].append({"result": results})


def argilla(records: list[dict[str, Any]], wrong: set[int], pairs: bool) -> None:
    for record in records:
        if record["row"] in wrong:
            record["label.responses"] = ["second" if pairs else record["label.suggestion"]]
            record["label.responses.status"] = ["submitted"]


@pytest.mark.parametrize("decide", [label_studio, argilla])
def test_a_decision_made_in_a_tool_is_written_back(case: tuple[str, Path, Made], decide: Any, tmp_path: Path) -> None:
    kind, folder, data = case
    run("export", folder / "run", "--to", decide.__name__.replace("_", "-"), "-o", tmp_path / "tasks.json")
    records = json.loads((tmp_path / "tasks.json").read_text())
    decide(records, data.wrong, kind == "pairs")
    (tmp_path / "export.json").write_text(json.dumps(records))
    source, fixed = (
        folder / ("run/labels.csv" if kind == "votes" else data.name),
        tmp_path / f"fixed{Path(data.name).suffix}",
    )
    run("apply", source, tmp_path / "export.json", "-o", fixed)
    assert_true(kind, fixed.read_text(), data)


def assert_true(kind: str, text: str, data: Made) -> None:
    """The corrected file says what is true, except for the form of numbers and the order in cells."""
    if kind == "entities":
        assert text == data.truth
        return
    found, truth = (pd.read_csv(io.StringIO(one)) for one in (text, data.truth))
    columns = NAMES if kind == "label columns" else [TRUTH[kind]]
    said = found[["label"] if kind == "votes" else columns]
    if kind == "label sets":
        said, truth = (frame["labels"].str.split(";").map(sorted).to_frame() for frame in (found, truth))
    if kind == "quantities":
        assert np.allclose(said, truth[columns])
    else:
        assert (said.to_numpy() == truth[columns].to_numpy()).all()


def test_new_rows_are_judged_by_the_stored_run(case: tuple[str, Path, Made], tmp_path: Path) -> None:
    kind, folder, data = case
    new = made(kind, NEW, 1)
    (tmp_path / data.name).write_text(new.text)
    found = Audit.load(folder / "run")
    result = check(found, tmp_path / data.name)
    assert {finding.row for finding in result.findings} == new.wrong
    audited = check(found, folder / data.name)
    assert (audited.known, audited.new, audited.relabeled, audited.findings) == (audited.rows, 0, 0, ())
    scores = found.score(tmp_path / data.name)
    assert set(scores["index"][scores["flagged"]]) == new.wrong
