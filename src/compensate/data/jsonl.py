"""JSON tables: an object per line or a list of objects, whose keys are the columns; exports of Label Studio and Argilla."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from compensate.data.columns import typed_frame
from compensate.data.label_column import label_sign
from compensate.errors import InputError
from compensate.files import check_size, check_width, read_text

_BLANK = re.compile(r"[ \t\r\n]*")
_LONE = re.compile("[\ud800-\udfff]")  # half a character, which JSON can write and UTF-8 cannot
_DECODER = json.JSONDecoder()
EXPECTED = 'one JSON object on each line, or a list of objects, such as {"text": "...", "label": "..."}'
ByteRange = tuple[int, int]


class Member(NamedTuple):
    """A member of an object, or an item of a list (its key is then a number): key, value, and the span of the value."""

    key: Any
    value: Any
    span: ByteRange


def read_jsonl(path: str | Path, encoding: str = "utf-8") -> pd.DataFrame:
    """The table of a JSON file; an absent key is a missing cell, the last value of a repeated key counts."""
    path = Path(path)
    rows: list[dict[str, Any]] = []
    names: dict[str, None] = {}
    for members in objects(read_text(path, encoding), path):
        rows.append({name: value for name, value, _ in members})
        names.update(dict.fromkeys(rows[-1]))
        check_width(len(names), path)
    if not names:
        raise InputError(f"{path} is empty; expected {EXPECTED}.")
    check_size(len(rows), len(names), path)
    return typed_frame({name: [row.get(name) for row in rows] for name in names})


def objects(text: str, where: str | Path) -> Iterator[list[Member]]:
    r"""The members of the objects of a text, one per line or in a list, in the order of the text; those of an export as columns.

    >>> [[(key, value) for key, value, _ in found] for found in objects('{"a": 1}\n\n{"a": [2]}', "t.jsonl")]
    [[('a', 1)], [('a', [2])]]
    >>> [[(key, value) for key, value, _ in found] for found in objects('[{"a": 1}, {"a": [2]}]', "t.json")]
    [[('a', 1)], [('a', [2])]]
    """
    found = records(text, where)
    first = next(found, None)
    if first is None:
        return
    names = {member.key for member in first[0]}
    if names >= {"data", "annotations"} or names >= {"fields", "responses"}:
        yield from _exported(text, [members for members, _ in (first, *found)])
    else:
        yield from (members for members, _ in chain([first], found))


def records(text: str, where: str | Path) -> Iterator[tuple[list[Member], ByteRange]]:
    """The members of each object of a text, and the span of the object."""
    start = _skip(text, 0)
    if text[start : start + 1] == "[":
        try:
            yield from ((_inside(text, item.span[0], "{"), item.span) for item in _inside(text, start))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where} cannot be read: {_reason(error)}. Expected {EXPECTED}.") from error
        return
    start = 0
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip(" \t\r"):
            try:
                at = _skip(line, 0)
                members = _inside(line, at, "{")
                end = members[-1].span[1] if members else at + 1
                if line[_expect(line, _skip(line, end), "}") :].strip():
                    raise ValueError("Extra data after the object")
            except (ValueError, RecursionError) as error:
                raise InputError(
                    f"{where}, line {number}, cannot be read: {_reason(error)}. Expected {EXPECTED}."
                ) from error
            yield (
                [Member(m.key, m.value, (start + m.span[0], start + m.span[1])) for m in members],
                (start, start + len(line)),
            )
        start += len(line) + 1


def _reason(error: Exception) -> str:
    return str(error).partition(": line")[0] if isinstance(error, ValueError) else "it is nested too deeply"


def _inside(text: str, at: int, opening: str = "") -> list[Member]:
    """The members of the object, or the items of the list, that begins here."""
    found: list[Member] = []
    closing = {"{": "}", "[": "]"}.get(opening or text[at : at + 1], "}")
    at = _expect(text, at, "{" if closing == "}" else "[")
    while text[at : at + 1] != closing:
        at = _expect(text, at, ",") if found else at
        key: Any = len(found)
        if closing == "}":
            key, at = _DECODER.raw_decode(text, at)
            if not isinstance(key, str):
                raise ValueError("a key is not a text")
            key, at = _whole(key), _expect(text, _skip(text, at), ":")
        value, after = _DECODER.raw_decode(text, at)
        found.append(Member(key, _whole(value), (at, after)))
        at = _skip(text, after)
    return found


def _exported(text: str, rows: Sequence[Sequence[Member]]) -> Iterator[list[Member]]:
    """The fields of tasks of Label Studio and of records of Argilla, with a column for each question.

    If an item has several annotations, each annotator has a column; a prediction or suggestion has one, and one for its score.
    """
    read = [_fields_and_answers(text, {member.key: member for member in row}) for row in rows]
    several = any(max(Counter(q for q, who, _ in answers if who).values(), default=0) > 1 for _, answers in read)
    for fields, answers in read:
        row = {field.key: field for field in fields}
        for question, who, answer in answers:
            name = question if label_sign(question) in (0, 1) else f"{question} label"
            name = f"{question} annotator {who}" if who and several else name if who else f"{name} model"
            if answer.key == "score":
                name += " confidence"
            row[name] = Member(name, answer.value, answer.span)
        yield list(row.values())


def _fields_and_answers(text: str, row: dict[str, Member]) -> tuple[list[Member], list[tuple[str, str, Member]]]:
    """The fields of a record, and its answers: the question, the annotator (empty for a model) and the answer or its score."""
    answers: list[tuple[str, str, Member]] = []

    def inside(holder: dict[str, Member] | None, key: str) -> list[Member]:
        member = (holder or {}).get(key)
        return _inside(text, member.span[0]) if member is not None and isinstance(member.value, (dict, list)) else []

    def by_key(member: Member) -> dict[str, Member]:
        return {m.key: m for m in inside({"": member}, "")}

    if "data" in row:
        for kind in ("predictions", "annotations"):
            for one in map(by_key, inside(row, kind)):
                who = str(one["completed_by"].value if "completed_by" in one else 1) if kind == "annotations" else ""
                if "was_cancelled" in one and one["was_cancelled"].value:
                    continue
                for result in map(by_key, inside(one, "result")):
                    chosen = {m.key: m for m in inside(result, "value")}
                    if "labels" in chosen:
                        problem = "the annotations of this export are spans of texts, and are not read from JSON"
                        raise InputError(f"{problem}. Export the project as CONLL2003, and audit that .conll file.")
                    listed = inside(chosen, "choices")
                    answer = listed[0] if len(listed) == 1 else chosen.get("choices") or chosen.get("rating")
                    if answer is not None and "from_name" in result:
                        question = str(result["from_name"].value)
                        answers.append((question, who, answer))
                        answers += [(question, "", one["score"])] if not who and "score" in one else []
        return inside(row, "data"), answers
    for asked in inside(row, "suggestions"):
        parts = by_key(asked)
        if "value" in parts:
            answers.append((asked.key, "", parts["value"]))
            answers += (
                [(asked.key, "", parts["score"])] if "score" in parts and parts["score"].value is not None else []
            )
    for asked in inside(row, "responses"):
        for parts in map(by_key, inside({"": asked}, "")):
            state = parts["status"].value if "status" in parts else "submitted"
            if "value" in parts and state != "discarded":
                answers.append((asked.key, str(parts["user_id"].value if "user_id" in parts else 1), parts["value"]))
    return [*(row[key] for key in ("id",) if key in row), *inside(row, "fields")], answers


def _skip(text: str, at: int) -> int:
    return _BLANK.match(text, at).end()  # type: ignore[union-attr]


def _expect(text: str, at: int, sign: str) -> int:
    """The position after this sign and the blanks that follow it."""
    if text[at : at + 1] != sign:
        raise ValueError(f'expected "{sign}" and found "{text[at : at + 10]}"')
    return _skip(text, at + 1)


def _whole(value: Any) -> Any:
    return _LONE.sub("\ufffd", value) if isinstance(value, str) else value
