"""JSON Lines: one object per line; its keys are the columns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from compensate.errors import InputError
from compensate.files import check_size, check_width, read_text

_BLANK = re.compile(r"[ \t\r\n]*")
_LONE = re.compile("[\ud800-\udfff]")  # half a character, which JSON can write and UTF-8 cannot
_DECODER = json.JSONDecoder()

CHECK_INTERVAL = 1000
"""Rows between two checks of the number of cells."""

ByteRange = tuple[int, int]


def read_jsonl(path: str | Path, encoding: str = "utf-8") -> pd.DataFrame:
    r"""The table of a file with a JSON object on each line; an absent key is a missing cell.

    Blank lines are skipped. The last value of a repeated key counts.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "t.jsonl"
    >>> _ = path.write_text('{"text": "a", "label": 1}\n{"text": "b"}\n')
    >>> read_jsonl(path)["label"].tolist()
    [1, None]
    """
    path = Path(path)
    text = read_text(path, encoding)
    columns: dict[str, list[Any]] = {}
    rows = 0
    for line, number, _ in _lines(text):
        with _reading(path, number):
            content = json.loads(line)
            if not isinstance(content, dict):
                raise ValueError(f'expected "{{" and found "{line.strip()[:10]}"')
        for key, value in content.items():
            name = _whole(key)
            if name not in columns:
                check_width(len(columns) + 1, path)
                columns[name] = []
            cells = columns[name]
            if len(cells) > rows:  # a repeated key
                cells.pop()
            cells += [None] * (rows - len(cells))
            cells.append(_whole(value))
        rows += 1
        if rows % CHECK_INTERVAL == 0:
            check_size(rows, len(columns), path)
    if not columns:
        raise InputError(
            f'{path} is empty; expected a JSON object on each line, such as {{"text": "...", "label": "..."}}.'
        )
    check_size(rows, len(columns), path)
    found = {}
    for name, cells in columns.items():
        column = pd.Series(cells + [None] * (rows - len(cells)), dtype=object)
        # Only columns of one type are converted: integers with gaps would become floats.
        uniform = {type(cell) for cell in column} in ({str}, {int}, {float}, {bool})
        found[name] = column.infer_objects() if uniform else column
    return pd.DataFrame(found)


def objects(text: str, where: str | Path) -> Iterator[list[tuple[str, Any, ByteRange]]]:
    r"""The objects of a text, one per line: key, value and the span of the value, in the order of the text.

    >>> [[(key, value) for key, value, _ in found] for found in objects('{"a": 1}\n\n{"a": [2]}', "t.jsonl")]
    [[('a', 1)], [('a', [2])]]
    """
    for line, number, at in _lines(text):
        with _reading(where, number):
            yield list(_members(text, at, at + len(line)))


def _lines(text: str) -> Iterator[tuple[str, int, int]]:
    """Each non-blank line, its number, and its start."""
    at = number = 0
    while at <= len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        line, number = text[at:end], number + 1
        if line.strip(" \t\r"):
            yield line, number, at
        at = end + 1


@contextmanager
def _reading(where: str | Path, number: int) -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError) as error:
        said = "it is nested too deeply" if isinstance(error, RecursionError) else str(error).partition(": line")[0]
        raise InputError(
            f"{where}, line {number}, cannot be read: {said}. Expected one JSON object on each line, such as "
            '{"text": "...", "label": "..."}.'
        ) from error


def _members(text: str, at: int, end: int) -> Iterator[tuple[str, Any, ByteRange]]:
    at = _expect(text, _skip(text, at), "{")
    if text[at : at + 1] == "}":
        at = _skip(text, at + 1)
    else:
        while True:
            key, after = _DECODER.raw_decode(text, at)
            if not isinstance(key, str):
                raise ValueError("a key is not a text")
            start = _expect(text, _skip(text, after), ":")
            value, after = _DECODER.raw_decode(text, start)
            if after > end:
                raise ValueError("an object goes on in the next line")
            yield _whole(key), _whole(value), (start, after)
            at = _skip(text, after)
            if text[at : at + 1] == "}":
                at += 1
                break
            at = _expect(text, at, ",")
    if text[at:end].strip():
        raise ValueError("something follows the object")


def _skip(text: str, at: int) -> int:
    return _BLANK.match(text, at).end()  # type: ignore[union-attr]


def _expect(text: str, at: int, sign: str) -> int:
    """The position after this sign and the blanks that follow it."""
    if text[at : at + 1] != sign:
        raise ValueError(f'expected "{sign}" and found "{text[at : at + 10]}"')
    return _skip(text, at + 1)


def _whole(value: Any) -> Any:
    return _LONE.sub("\ufffd", value) if isinstance(value, str) else value
