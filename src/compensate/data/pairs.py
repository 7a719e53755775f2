"""Preference pairs in a table: which columns hold prompts, responses and preferences, and what they say."""

from __future__ import annotations

import json
import re
import shlex
from ast import literal_eval
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from compensate.data import tables
from compensate.data.columns import PROBED_CELLS, TEXT_WORDS, median_words, messages, text_columns
from compensate.data.dataset import UNLABELED, Dataset, Ints, Source
from compensate.data.label_column import label_sign
from compensate.data.labels import is_missing, is_number, label_name
from compensate.data.load import frame_and_images, is_hub, is_saved, open_saved, training_part
from compensate.data.parquet import SUFFIXES as PARQUET
from compensate.data.parquet import parquet_files
from compensate.errors import InputError, nearest
from compensate.extras import require
from compensate.files import opened

ANSWERS = ("first", "second", "tie", "drop")
"""The labels: which response is better, none, or neither of use. The first of a file with the columns chosen and rejected is the chosen one."""

TASK, TEXTS = "preference", "PROMPT,FIRST,SECOND"
"""What the user gives for pairs whose columns have other names: the task, and the columns of texts."""

CHOSEN = (
    ("chosen", "rejected"), ("preferred", "dispreferred"), ("accepted", "rejected"), ("better", "worse"), ("response_j", "response_k"),
    ("chosen_response", "rejected_response"), ("preferred_output", "non_preferred_output"), ("response_w", "response_l"),
)  # fmt: skip
_TEXTS = "response|answer|output|completion|reply|summary|generation|conversation|human_ref"
_RESPONSE = re.compile(rf"(?:model_?)?({_TEXTS})[ _-]?([0-9a-h])")
_RANKED = re.compile("preference|winner|preferred")  # a multiple-choice question has a column "choice" instead
_WON = re.compile(r"winner_(?:model_)?[ab12]")
_COMPARED = re.compile(r"([ab12]) ?(>+|<+|=+) ?([ab12])")
_PREFERENCE = re.compile(
    r"((overall|human)_)?preference(_strength)?|winner|choice|(preferred|better|safer)(_response(_id)?)?"
)
# What precedes an answer of a dialogue that is written as one text
_TURN = re.compile(r"\n\n(?:Assistant|AI):|<\|(?:im_start\|>)?assistant|### (?:Response|Assistant):|\[/INST\]")
_ANNOTATOR = re.compile(r"(?:annotator|rater|judge|worker|vote)[ _-]?\d+")
PROMPTS = ("system", "prompt", "instruction", "question", "query", "post", "context", "input")
SIDES = ("first", "second", "left", "right")
TIES = ("tie", "equal", "draw", "same", "both", "neither")


class Pair(NamedTuple):
    """A sample: the prompt and the two responses."""

    prompt: str
    first: str
    second: str


Votes = tuple[tuple[tuple[str, str], ...], ...]
"""For each row, annotators and their answers."""


class PairColumns(NamedTuple):
    """The columns of a table of pairs.

    Attributes:
        prompt: columns of the prompt.
        first: column of a response; the chosen one, if there are no preferences.
        second: column of the other response.
        preferences: a column for each annotator.
        form: of the preferences: "side" names a response, or has a sign; "order" does so for columns that the user named, and 0 and 1 are the
            first and the second; "one-hot" is a column of 0 and 1 for the first response, for the second, and perhaps for ties.
    """

    prompt: tuple[str, ...]
    first: str
    second: str
    preferences: tuple[str, ...] = ()
    form: str = "side"


def pair_columns(names: Iterable[Any], label: str | None = None, text: str | None = None) -> PairColumns | None:
    """The columns of pairs among these; None if there are none. With ``text`` the user named the columns of texts, and ``label`` is the preference.

    >>> pair_columns(["prompt", "chosen", "rejected", "source"])[:4]
    (('prompt',), 'chosen', 'rejected', ())
    >>> pair_columns(["instruction", "response1", "response2", "preference"]).preferences
    ('preference',)
    >>> pair_columns(["q", "old", "new", "which"], "which", "q,old,new")
    PairColumns(prompt=('q',), first='old', second='new', preferences=('which',), form='order')
    """
    if text is not None:
        names = list(map(str, names))
        texts, labels = text_columns(text, names), () if label is None else (label,)
        for name in (*texts, *labels):
            if name not in names:
                raise InputError(f'there is no column "{name}"; {nearest(name, names)}')
        if len(texts) < 2:
            raise InputError(f'text is "{text}"; expected the columns of the prompt and of two responses: {TEXTS}.')
        return PairColumns(texts[:-2], texts[-2], texts[-1], labels, "order")
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
    if responses and len(responses) > 2:
        ranked = next((name for name in said if _RANKED.search(name.lower())), None)
        if ranked is None:
            return None
        raise InputError(
            f'a row has {", ".join(responses)}, and "{ranked}"; expected two responses: keep the better and another one. If these are '
            f"classes: --label {ranked} --task classification."
        )
    if not responses:
        return None
    first, second = (known[name] for name in responses)
    won = sorted(known[name] for name in known if _WON.fullmatch(name))
    if len(won) == 2:
        won += [known[name] for name in known if name == "winner_tie"]
        return PairColumns(prompt, first, second, tuple(won), "one-hot")
    return PairColumns(prompt, first, second, tuple(said)) if said else None


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


def conversations(column: pd.Series) -> list[list[str]]:
    """The messages of each cell; those of lists and objects that are written as text, if the first cells are.

    >>> conversations(pd.Series(['["Hi"]', '[{"role": "user", "content": "Bye"}]'])), conversations(pd.Series(["[1]", "a"]))
    ([['Hi'], ['Bye']], [['[1]'], ['a']])
    """

    def parsed(cell: Any) -> Any:
        for reader in (json.loads, literal_eval) if isinstance(cell, str) and cell.strip()[:1] in ("[", "{") else ():
            with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
                found = reader(cell)
                said = found if isinstance(found, list) else [found]
                if all(
                    {"content", "value", "messages"} & {*one}
                    if isinstance(one, Mapping)
                    else isinstance(one, (str, type(None)))
                    for one in said
                ):
                    return found
        return cell

    probed = [cell for cell in column.head(PROBED_CELLS) if not is_missing(cell)]
    if not probed or any(parsed(cell) is cell for cell in probed):
        return [messages(cell) for cell in column]
    # JSON can escape half of a surrogate pair, which no file can hold
    return [[text.encode("utf-8", "replace").decode() for text in messages(parsed(cell))] for cell in column]


def pairs_of_frame(frame: pd.DataFrame, columns: PairColumns, where: str) -> tuple[Dataset, Votes]:
    """Pairs with their preferences, and votes if there are several annotators.

    Conversations become texts; messages that both responses share belong to the prompt.
    """
    frame = frame.copy()
    frame.columns = pd.Index([str(name) for name in frame.columns])
    pairs = np.empty(len(frame), dtype=object)
    prompts = [conversations(frame[name]) for name in columns.prompt]
    for row, (one, two) in enumerate(zip(*(conversations(frame[name]) for name in columns[1:3]), strict=True)):
        shared: list[str] = []
        while len(one) > 1 and len(two) > 1 and one[0] == two[0]:
            shared.append(one.pop(0))
            two.pop(0)
        given = [text for column in prompts for text in column[row] if text]
        ends = [turn.end() for turn in _TURN.finditer(one[0]) if two[0].startswith(one[0][: turn.end()])]
        if len(one) == len(two) == 1 and ends:
            shared.append(one[0][: ends[-1]].strip())
            one, two = ([text[ends[-1] :].strip()] for (text,) in (one, two))
        given = [text for text in given if text.strip() not in "\n".join(shared)]
        pairs[row] = Pair("\n".join([*given, *shared]), "\n".join(one), "\n".join(two))
    votes: Votes = ()
    target = np.zeros(len(frame), np.int64)
    if columns.form == "one-hot":
        target = marked_answers(frame, columns, where)
    elif columns.preferences:
        said = np.stack([answers_of(frame[name].tolist(), name, columns, where) for name in columns.preferences])
        counts = np.stack([(said == c).sum(0) for c in range(3)])
        most = counts.max(0)
        target = np.where((counts == most).sum(0) == 1, counts.argmax(0), 2)
        target = np.where(most == 0, UNLABELED, target)
        if len(said) > 1:
            rows = (zip(columns.preferences, row, strict=True) for row in said.T)
            votes = tuple(tuple((name, ANSWERS[c]) for name, c in row if c >= 0) for row in rows)
    text = ",".join((*columns.prompt, *columns[1:3])) if columns.form == "order" else None
    source = Source(kind="text", text=text, label=columns.preferences[0] if len(columns.preferences) == 1 else None)
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
    texts = ["" if is_missing(cell) else label_name(cell).lower().strip("[]() ") for cell in cells]
    for row, text in enumerate(texts):
        if compared := _COMPARED.fullmatch(text):  # A>B, 2<<1, A=B
            texts[row] = "tie" if "=" in compared[2] else compared[1 if ">" in compared[2] else 3]
    ends = [str(c).strip().lower()[-1:] for c in (columns.first, columns.second)]
    if columns.form == "order":
        ends = ["0", "1"] if "0" in texts and "2" not in texts else ["1", "2"]
    if not any(text[-1:] in ends for text in texts) or (ends == ["a", "b"] and "2" in texts):
        ends = ["a", "b"] if {"a", "b"} & {text[-1:] for text in texts} and "2" not in texts else ["1", "2"]
    numbers = [float(text) if is_number(text) else 0.0 for text in texts]
    if "human_ref" in columns.first.lower() and {*texts} <= {"0", "1", ""}:  # SHP: whether the first response is better
        return np.array([("1", "0", "").index(text) if text else UNLABELED for text in texts])
    if min(numbers, default=0.0) < 0:  # the sign decides
        texts = [
            ("1", "0", "2")[int(np.sign(x)) + 1] if is_number(t) else t for x, t in zip(numbers, texts, strict=True)
        ]
        ends = ["1", "2"]
    if ends == ["1", "2"] and {"0", "1"} <= {*texts} <= {"0", "1", ""} and min(numbers) >= 0:
        asked = f"--task {TASK} --label {name} --text PROMPT,"
        raise InputError(
            f'{where}: "{name}" says 0 and 1, which may mean two things. If 0 is "{columns.first}": {asked}{columns.first},{columns.second}. '
            f"If 1 is: {asked}{columns.second},{columns.first}."
        )
    found = np.full(len(texts), UNLABELED)
    words = {str(name).lower(): k for k, name in enumerate(columns[1:3])} | {word: k for k, word in enumerate(SIDES)}
    for row, text in enumerate(texts):
        named = len(text) < 3 or _RESPONSE.fullmatch(text) or text.startswith(("model", "assistant", "first", "second"))
        if text in words:
            found[row] = words[text] % 2
        elif text.startswith(TIES) or (text in ("0", "3") and text not in ends):
            found[row] = 2
        elif text[-1:] in ends and named:
            found[row] = ends.index(text[-1:])
        elif text:
            raise InputError(
                f'{where}, row {row}: the column "{name}" says "{text[:40]}"; expected {ends[0]} if "{columns.first}" is better, {ends[1]} if '
                f'"{columns.second}" is, and 0 or tie if neither is.'
            )
    return found


def marked_answers(frame: pd.DataFrame, columns: PairColumns, where: str) -> Ints:
    """(N,) the answers of columns of 0 and 1: for the first response, the second, and perhaps ties.

    >>> frame = pd.DataFrame({"winner_a": [1, 0, 0], "winner_b": ["0", "True", "0"]})
    >>> marked_answers(frame, PairColumns((), "x", "y", ("winner_a", "winner_b"), "one-hot"), "t").tolist()
    [0, 1, 2]
    """
    marks = np.stack([[is_marked(cell) for cell in frame[name]] for name in columns.preferences], 1)
    counts = marks.sum(1)
    if (counts > 1).any():
        row = int((counts > 1).argmax())
        raise InputError(f"{where}, row {row}: several of {', '.join(columns.preferences)} are 1; expected one.")
    return np.where(counts == 1, marks.argmax(1), 2 if len(columns.preferences) == 2 else UNLABELED)


def is_marked(cell: Any) -> bool:
    """Whether a cell says 1 or true."""
    return not is_missing(cell) and label_name(cell).strip().lower() in ("1", "1.0", "true")


def ask_about_pairs(frame: pd.DataFrame, where: str) -> None:
    """Asks whether a table without a known label holds pairs: two texts, perhaps a prompt, and a column that names one of the two."""
    frame = frame.head(2000).set_axis([str(name) for name in frame.columns], axis=1)
    written = {str(name): [cell for cell in frame[name] if not is_missing(cell)] for name in frame}
    spoken = [name for name, cells in written.items() if all(isinstance(cell, str) for cell in cells)]
    prompts = [name for name in spoken if name.lower() in PROMPTS]
    long = [name for name in spoken if name not in prompts and median_words(written[name]) >= TEXT_WORDS]
    texts = [*prompts, *long]
    if len(long) not in ((2,) if prompts else (2, 3)) or any(label_sign(name) in (0, 1) for name in written):
        return
    sides = [
        {name.lower() for name in texts[-2:]},
        {"a", "b"},
        {"1", "2"},
        {*SIDES[:2]},
        {*SIDES[2:]},
        {"model_a", "model_b"},
    ]
    for name in [name for name in written if name not in texts]:
        values = {label_name(cell).strip().lower() for cell in written[name]}
        if any(some <= values and all(value.startswith(TIES) for value in values - some) for some in sides):
            named, winner = (shlex.quote(option) for option in (",".join(texts), name))
            raise InputError(
                f'"{name}" of {where} seems to say whether "{texts[-2]}" or "{texts[-1]}" is better. If so: --task {TASK} --text {named} '
                f"--label {winner}, in Python task={TASK!r}, text={','.join(texts)!r}, label={name!r}; a column of prompts comes first. If it holds "
                f"classes: --label {winner}."
            )
