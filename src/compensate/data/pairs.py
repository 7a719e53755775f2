"""Preference pairs in a table: which columns hold prompts, responses and preferences, and what they say."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from compensate.data import tables
from compensate.data.columns import messages
from compensate.data.dataset import UNLABELED, Dataset, Ints, Source
from compensate.data.labels import is_missing, is_number, label_name
from compensate.data.load import frame_and_images, is_hub, is_saved, open_saved, training_part
from compensate.data.parquet import SUFFIXES as PARQUET
from compensate.data.parquet import parquet_files
from compensate.errors import InputError
from compensate.extras import require
from compensate.files import opened

ANSWERS = ("first", "second", "tie", "drop")
"""The labels: which response is better, none, or neither of use. The first of a file with the columns chosen and rejected is the chosen one."""

CHOSEN = (
    ("chosen", "rejected"), ("preferred", "dispreferred"), ("accepted", "rejected"), ("better", "worse"), ("response_j", "response_k"),
    ("chosen_response", "rejected_response"), ("preferred_output", "non_preferred_output"), ("response_w", "response_l"),
)  # fmt: skip
_TEXTS = "response|answer|output|completion|reply|summary|generation|conversation|human_ref"
_RESPONSE = re.compile(rf"(?:model_?)?({_TEXTS})[ _-]?([0-9a-h])")
_PREFERENCE = re.compile(
    r"((overall|human)_)?preference(_strength)?|winner|choice|(preferred|better|safer)(_response(_id)?)?"
)
# What precedes an answer of a dialogue that is written as one text
_TURN = re.compile(r"\n\n(?:Assistant|AI):|<\|(?:im_start\|>)?assistant|### (?:Response|Assistant):|\[/INST\]")
_ANNOTATOR = re.compile(r"(?:annotator|rater|judge|worker|vote)[ _-]?\d+")
PROMPTS = ("system", "prompt", "instruction", "question", "query", "post", "context", "input")
TIES = ("tie", "equal", "draw", "same", "both", "neither")


class Pair(NamedTuple):
    """A sample: the prompt and the two responses."""

    prompt: str
    first: str
    second: str


Votes = tuple[tuple[tuple[str, str], ...], ...]
"""For each row, annotators and their answers."""


class PairColumns(NamedTuple):
    """The columns of a table of pairs: of the prompt, of the two responses, and of one or more preferences (none if the first is the chosen one)."""

    prompt: tuple[str, ...]
    first: str
    second: str
    preferences: tuple[str, ...] = ()


def pair_columns(names: Iterable[Any]) -> PairColumns | None:
    """The columns of pairs among these; None if there are none.

    >>> pair_columns(["prompt", "chosen", "rejected", "source"])
    PairColumns(prompt=('prompt',), first='chosen', second='rejected', preferences=())
    >>> pair_columns(["instruction", "response1", "response2", "preference"]).preferences
    ('preference',)
    """
    known = {str(name).strip().lower(): str(name) for name in names}
    prompt = tuple(known[name] for name in (*PROMPTS, "history", "conversations") if name in known)
    for first, second in CHOSEN:
        if first in known and second in known:
            return PairColumns(prompt, known[first], known[second])
    bases: dict[str, list[str]] = defaultdict(list)
    for name in known:
        if found := _RESPONSE.fullmatch(name):
            bases[found[1]].append(name)
    responses = next((sorted(some) for some in bases.values() if len(some) > 1), None)
    said = sorted((known[name] for name in known if _PREFERENCE.fullmatch(name)), key=lambda name: "safer" in name)[:1]
    said = said or [known[name] for name in known if name == "labels" and "human_ref" in bases]  # SHP
    said = said or [known[name] for name in known if _ANNOTATOR.fullmatch(name)]
    if responses and said and len(responses) > 2:
        raise InputError(f"a row has {', '.join(responses)}; expected two responses: keep the better and another one.")
    return PairColumns(prompt, known[responses[0]], known[responses[1]], tuple(said)) if responses and said else None


def table_names(data: Any) -> list[str]:
    """The names of the columns of a table; of a file only the first line or the schema is read."""
    if isinstance(data, pd.DataFrame):
        return list(map(str, data.columns))
    if is_hub(data):
        return list(training_part(data)[1].column_names)
    if not isinstance(data, (str, Path)) or not Path(data).expanduser().exists():
        return []
    path = Path(data).expanduser()
    if is_saved(path):
        return table_names(open_saved(path))
    files = [path] if path.suffix.lower() in PARQUET else parquet_files(path)
    if files:
        return list(require("pyarrow.parquet", "reading Parquet", "parquet").read_schema(files[0]).names)
    if tables.table_format(path) not in (*tables.TEXTS, *tables.LINES) or path.is_dir():
        return []
    with opened(path) as file:
        line = file.readline(1 << 24).decode("utf-8", "replace").lstrip("\ufeff")
        if tables.table_format(path) == ".json":  # a list of objects may take several lines
            line += file.read(1 << 24).decode("utf-8", "replace")
    if tables.table_format(path) in tables.LINES:
        with suppress(ValueError, RecursionError):
            return list(json.JSONDecoder().raw_decode(line, line.index("{"))[0])
        return []
    return [cell.strip('" \r\n') for cell in re.split(r"[,;\t|]", line)]


def read_pairs(data: Any, encoding: str = "utf-8", delimiter: str | None = None) -> pd.DataFrame:
    """The table of pairs of a file, a data set or a data frame, its cells as they are written."""
    if isinstance(data, (str, Path)):
        path = Path(data).expanduser()
        if not is_saved(path):
            return tables.read_frame(path, encoding=encoding, delimiter=delimiter)
        data = open_saved(path)
    if isinstance(data, pd.DataFrame):
        return data.reset_index(drop=True)
    return frame_and_images(training_part(data)[1])[0]


def pairs_of_frame(frame: pd.DataFrame, columns: PairColumns, where: str) -> tuple[Dataset, Votes]:
    """Pairs with their preferences, and votes if there are several annotators.

    Conversations become texts; messages that both responses share belong to the prompt.
    """
    frame = frame.copy()
    frame.columns = pd.Index([str(name) for name in frame.columns])
    pairs = np.empty(len(frame), dtype=object)
    prompts = [frame[name] for name in columns.prompt]
    for row, (first, second) in enumerate(zip(frame[columns.first], frame[columns.second], strict=True)):
        shared: list[str] = []
        one, two = messages(first), messages(second)
        while len(one) > 1 and len(two) > 1 and one[0] == two[0]:
            shared.append(one.pop(0))
            two.pop(0)
        given = [text for column in prompts for text in messages(column.iloc[row]) if text]
        ends = [turn.end() for turn in _TURN.finditer(one[0]) if two[0].startswith(one[0][: turn.end()])]
        if len(one) == len(two) == 1 and ends:
            shared.append(one[0][: ends[-1]].strip())
            one, two = ([text[ends[-1] :].strip()] for (text,) in (one, two))
        given = [text for text in given if text.strip() not in "\n".join(shared)]
        pairs[row] = Pair("\n".join([*given, *shared]), "\n".join(one), "\n".join(two))
    votes: Votes = ()
    target = np.zeros(len(frame), np.int64)
    if columns.preferences:
        said = np.stack([answers_of(frame[name].tolist(), name, columns, where) for name in columns.preferences])
        counts = np.stack([(said == c).sum(0) for c in range(3)])
        most = counts.max(0)
        target = np.where((counts == most).sum(0) == 1, counts.argmax(0), 2)
        target = np.where(most == 0, UNLABELED, target)
        if len(said) > 1:
            rows = (zip(columns.preferences, row, strict=True) for row in said.T)
            votes = tuple(tuple((name, ANSWERS[c]) for name, c in row if c >= 0) for row in rows)
    source = Source(kind="text", label=columns.preferences[0] if len(columns.preferences) == 1 else None)
    return Dataset(pairs, target, ANSWERS, raw=frame, rows=len(frame), source=source), votes


def are_texts(frame: pd.DataFrame, columns: PairColumns) -> bool:
    """Whether most of the first responses have letters: columns with such names may hold numbers."""
    cells = [cell for name in columns[1:3] if name in frame for cell in frame[name].head(50)]
    return sum(any(map(str.isalpha, " ".join(messages(cell)))) for cell in cells) > len(cells) / 2


def answers_of(cells: Sequence[Any], name: str, columns: PairColumns, where: str) -> Ints:
    """(N,) the answers in a column: 0 the first response is better, 1 the second, 2 a tie, -1 none.

    >>> answers_of([1, 2, 0, None], "preference", PairColumns((), "response1", "response2"), "t").tolist()
    [0, 1, 2, -1]
    """
    texts = ["" if is_missing(cell) else label_name(cell).lower() for cell in cells]
    ends = [re.split(r"[ _-]", str(c).strip().lower())[-1][-1:] for c in (columns.first, columns.second)]
    if not any(text[-1:] in ends for text in texts) or (ends == ["a", "b"] and "2" in texts):
        ends = ["1", "2"]
    numbers = [float(text) if is_number(text) else 0.0 for text in texts]
    if "human_ref" in columns.first.lower() and {*texts} <= {"0", "1", ""}:  # SHP: whether the first response is better
        return np.array([("1", "0", "").index(text) if text else UNLABELED for text in texts])
    if min(numbers, default=0.0) < 0:  # the sign decides
        texts = [
            ("1", "0", "2")[int(np.sign(x)) + 1] if is_number(t) else t for x, t in zip(numbers, texts, strict=True)
        ]
        ends = ["1", "2"]
    if ends == ["1", "2"] and {"0", "1"} <= {*texts} <= {"0", "1", ""} and min(numbers) >= 0:
        raise InputError(f'{where}: "{name}" says 0 and 1, which may mean two things; write 1, 2, or 0 for a tie.')
    found = np.full(len(texts), UNLABELED)
    for row, text in enumerate(texts):
        named = len(text) < 3 or _RESPONSE.fullmatch(text) or text.startswith(("model", "first", "second"))
        if text.startswith(TIES) or (text in ("0", "3") and text not in ends):
            found[row] = 2
        elif text[-1:] in ends and named:
            found[row] = ends.index(text[-1:])
        elif text in ("first", "second"):
            found[row] = ("first", "second").index(text)
        elif text:
            raise InputError(
                f'{where}, row {row}: the column "{name}" says "{text[:40]}"; expected {ends[0]} if "{columns.first}" is better, {ends[1]} if '
                f'"{columns.second}" is, and 0 or tie if neither is.'
            )
    return found
