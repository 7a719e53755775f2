"""JSON Lines: one object per line; its keys are the columns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from compensate.data.columns import typed_frame
from compensate.errors import InputError
from compensate.files import check_size, check_width, read_text

_BLANK = re.compile(r"[ \t\r\n]*")
_LONE = re.compile("[\ud800-\udfff]")  # half a character, which JSON can write and UTF-8 cannot
_DECODER = json.JSONDecoder()
EXPECTED = 'one JSON object on each line, such as {"text": "...", "label": "..."}'
ByteRange = tuple[int, int]


def read_jsonl(path: str | Path, encoding: str = "utf-8") -> pd.DataFrame:
    """The table of a file with a JSON object on each line; an absent key is a missing cell, the last value of a repeated key counts."""
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


def objects(text: str, where: str | Path) -> Iterator[list[tuple[str, Any, ByteRange]]]:
    r"""The objects of a text, one per line: key, value and the span of the value, in the order of the text.

    >>> [[(key, value) for key, value, _ in found] for found in objects('{"a": 1}\n\n{"a": [2]}', "t.jsonl")]
    [[('a', 1)], [('a', [2])]]
    """
    start = 0
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip(" \t\r"):
            try:
                row = _members(line)
            except (ValueError, RecursionError) as error:
                said = str(error).partition(": line")[0] if isinstance(error, ValueError) else "it is nested too deeply"
                raise InputError(f"{where}, line {number}, cannot be read: {said}. Expected {EXPECTED}.") from error
            yield [(key, value, (start + first, start + last)) for key, value, first, last in row]
        start += len(line) + 1


def _members(line: str) -> list[tuple[str, Any, int, int]]:
    """Key, value, start and end of the value of each member of the object in this line."""
    found: list[tuple[str, Any, int, int]] = []
    at = _expect(line, _skip(line, 0), "{")
    while line[at : at + 1] != "}":
        at = _expect(line, at, ",") if found else at
        key, after = _DECODER.raw_decode(line, at)
        if not isinstance(key, str):
            raise ValueError("a key is not a text")
        start = _expect(line, _skip(line, after), ":")
        value, after = _DECODER.raw_decode(line, start)
        found.append((_whole(key), _whole(value), start, after))
        at = _skip(line, after)
    if line[at + 1 :].strip():
        raise ValueError("Extra data after the object")
    return found


def _skip(line: str, at: int) -> int:
    return _BLANK.match(line, at).end()  # type: ignore[union-attr]


def _expect(line: str, at: int, sign: str) -> int:
    """The position after this sign and the blanks that follow it."""
    if line[at : at + 1] != sign:
        raise ValueError(f'expected "{sign}" and found "{line[at : at + 10]}"')
    return _skip(line, at + 1)


def _whole(value: Any) -> Any:
    return _LONE.sub("\ufffd", value) if isinstance(value, str) else value
