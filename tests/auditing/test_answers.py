"""Conversations and instructions without labels: rules find bad answers, and `apply` drops their rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from commands import run

from compensate.auditing.result import Audit

GOOD = "The answer explains the matter of {0} in a few short words and gives an example of number {0}."
BAD = {
    "empty_answer": ("Name a river.", " \n"),
    "refusal": ("Name a lake.", "I\u2019m sorry, but I can\u2019t help with that."),
    "truncated_answer": ("Name a hill.", "There are many hills in the north of this country, and the highest of"),
    "language_change": (
        "What is the name of the town that we saw on the way to the sea?",
        "Das ist die Stadt, die wir auf dem Weg zu dem Meer gesehen haben, und sie ist nicht klein.",
    ),
}


def turns() -> list[tuple[str, str]]:
    good = [(f"What is the meaning of the number {i} in the story?", GOOD.format(i)) for i in range(60)]
    return [*good, *BAD.values(), good[5]]


FORMS: dict[str, Any] = {
    "messages": lambda p, a: {
        "messages": [{"role": "user", "content": p}, {"role": "assistant", "content": a}],
        "id": 1,
    },
    "conversations": lambda p, a: {"conversations": [{"from": "human", "value": p}, {"from": "gpt", "value": a}]},
    "instruction": lambda p, a: {"instruction": p, "input": "", "output": a},
    "completion": lambda p, a: {"prompt": p, "completion": a},
}


@pytest.mark.parametrize("form", FORMS)
def test_bad_answers_are_found_and_their_rows_dropped(tmp_path: Path, form: str) -> None:
    lines = [json.dumps(FORMS[form](*turn)) for turn in turns()]
    (tmp_path / "chats.jsonl").write_text("\n".join(lines) + "\n")
    said = run("audit", tmp_path / "chats.jsonl", "--out", tmp_path / "run")
    assert "no label column: the answers in" in said
    assert "5 of 65 rows look useless (2 equal" in said
    assert "; 1 empty answer; 1 refused answer" in said
    assert "look wrong" not in said + repr(Audit.load(tmp_path / "run" / "audit"))
    assert "--drop duplicate,empty_answer,refusal,truncated_answer" in said
    issues = pd.read_csv(tmp_path / "run" / "issues.csv")
    assert {(kind, row) for kind, row in zip(issues["issue"], issues["index"], strict=True) if kind in BAD} == {
        (kind, 60 + i) for i, kind in enumerate(BAD)
    }
    suspects = pd.read_csv(tmp_path / "run" / "suspects.csv")
    assert sorted(suspects[suspects["flagged"]]["index"]) == [60, 61, 62, 63, 64]
    run("apply", tmp_path / "run", "--drop", "empty_answer,refusal", "--out", tmp_path / "few.jsonl")
    assert (tmp_path / "few.jsonl").read_text().splitlines() == lines[:60] + lines[62:]
    run("apply", tmp_path / "run", "--undo")
    run("apply", tmp_path / "run", "--accept", "0.5", "--out", tmp_path / "fixed.jsonl")
    assert (tmp_path / "fixed.jsonl").read_text().splitlines() == lines[:60]


def test_a_style_is_left_alone(tmp_path: Path) -> None:
    """Answers that all end without a full stop are not truncated."""
    rows = [{"prompt": p, "completion": a.rstrip(".")} for p, a in turns()[:60]]
    pd.DataFrame(rows).to_csv(tmp_path / "chats.csv", index=False)
    run("audit", tmp_path / "chats.csv", "--out", tmp_path / "run")
    assert not pd.read_csv(tmp_path / "run" / "suspects.csv")["flagged"].any()


def test_a_conversation_with_a_label_is_read_as_its_text(tmp_path: Path) -> None:
    rows = [FORMS["messages"](p, a) | {"label": "ab"[i % 2]} for i, (p, a) in enumerate(turns())]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = run("audit", tmp_path / "chats.jsonl", "--encoder", "none", "--out", tmp_path / "run")
    assert 'text column "messages", label column "label" (2 classes' in said
