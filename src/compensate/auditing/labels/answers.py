"""Conversations and instructions without labels: a row is kept unless a rule speaks against its answer.

Rules: an empty answer, a refusal, an answer that ends within a sentence, an answer in another language than its prompt, a repeated row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from compensate.auditing.decisions import Correction
from compensate.auditing.duplicates import find_pairs, partners
from compensate.auditing.findings import Address, Findings, Provenance
from compensate.auditing.issues import language, summary
from compensate.auditing.labels.base import Judging, LabelKind, Reader, Reading, check_given
from compensate.auditing.write_back import open_labels
from compensate.data.columns import is_chat, messages
from compensate.data.dataset import Dataset, Estimate, Source
from compensate.data.label_column import label_sign
from compensate.data.pairs import PROMPTS, read_pairs, table_names

STATES = ("keep", "drop")
CHATS = ("messages", "conversations", "conversation")  # columns of whole conversations
ANSWER_NAMES = ("output", "completion", "response", "answer")
P_RULE, P_OTHER = 0.9, 0.01  # stated error probabilities of rows with and without a finding; no model is fitted
START = 200  # characters in which a refusal is looked for
MIN_WORDS = 8  # words from which on an answer may be truncated
USUAL = 0.2  # a rule that applies to a larger share of the answers describes their style; it is then left out
REFUSAL = re.compile(
    r"\bas an? (?:ai|artificial intelligence|language model)\b|\bi(?:'m| am) (?:sorry|afraid),? (?:but )?i(?: can(?:'t|not)| can not|'m unable| am unable)"
    r"|\bi (?:can(?:'t|not)|can not|won't|am unable to|am not able to) (?:help|assist|provide|fulfil|comply|answer|create|generate|write|do that)",
    re.IGNORECASE,
)
_OPEN_END = re.compile(r"[\w,]\s*\Z")


def turn_columns(names: Sequence[str]) -> tuple[tuple[str, ...], str] | None:
    """The columns of prompts and of answers; of a whole conversation none and its column.

    >>> turn_columns(["instruction", "input", "output"]), turn_columns(["id", "messages"]), turn_columns(["text", "label"])
    ((('instruction', 'input'), 'output'), ((), 'messages'), None)
    """
    known = {str(name).strip().lower(): str(name) for name in names}
    chat = next((known[name] for name in CHATS if name in known), None)
    if chat is not None:
        return (), chat
    prompts = tuple(known[name] for name in PROMPTS if name in known)
    answer = next((known[name] for name in ANSWER_NAMES if name in known), None)
    return (prompts, answer) if prompts and answer else None


def turns_of(frame: pd.DataFrame, prompts: Sequence[str], answer: str) -> list[tuple[str, str]]:
    """The prompt and the answer of each row; of a conversation the last message is the answer."""
    found = []
    for row in range(len(frame)):
        said = messages(frame[answer].iloc[row])
        asked = [text for name in prompts for text in messages(frame[name].iloc[row]) if text]
        found.append(("\n".join([*asked, *said[:-1]]), said[-1]))
    return found


@dataclass(frozen=True, eq=False)
class Answers(LabelKind):
    """Rows that are kept or dropped for their answers, which are in `column`; `prompts` are the columns before it."""

    prompts: tuple[str, ...]
    column: str

    form = "answer"
    drops = STATES[1]
    noun = "rows"
    checked = False  # rules judge without a fitted model
    refused = dict(LabelKind.refused) | {
        "decisions": "decisions about answers cannot be audited again; apply them first."
    }

    @classmethod
    def read(cls, data: Any, labels: Any, options: Mapping[str, Any], other: Reader) -> Dataset:
        names = table_names(data) if labels is None and options.get("label") is None else []
        columns = turn_columns(names)
        if columns is None or any(label_sign(n) in (0, 1, 2) and n not in (*columns[0], columns[1]) for n in names):
            return other(data, labels, options)
        frame = read_pairs(data, options.get("encoding") or "utf-8", options.get("delimiter"))
        held = len(frame) > 0 and {*columns[0], columns[1]} <= set(frame.columns)
        if not held or (not columns[0] and not is_chat(frame[columns[1]])):
            return other(data, labels, options)
        x = np.array(["\n\n".join(turn) for turn in turns_of(frame, *columns)], dtype=object)
        source = Source(kind="text", text=",".join([*columns[0], columns[1]]))
        return Dataset(x, np.zeros(len(x), np.int64), STATES, raw=frame, source=source, parts=cls(*columns))

    @classmethod
    def summary(cls, audit: Any) -> str:
        found, issues = f"{int(audit.mask.sum()):,} of {len(audit):,} rows look useless", audit.found_issues
        return found if issues is None or not len(issues) else f"{found} ({summary(issues)})"

    def describe(self, data: Dataset, name: Callable[[str], str] = str) -> str:
        return f'no label column: the answers in "{name(self.column)}" are checked by rules'

    def rules(self, data: Dataset) -> Iterator[tuple[str, int, float, str, int | None]]:
        assert data.table is not None
        turns = turns_of(data.table, self.prompts, self.column)
        open_ends = {i for i, (_, a) in enumerate(turns) if _OPEN_END.search(a) and len(a.split()) >= MIN_WORDS}
        spoken = [(language(prompt)[0], language(answer)[0]) for prompt, answer in turns]
        changed = {i for i, (asked, said) in enumerate(spoken) if asked and said and asked != said}
        for i, (_, answer) in enumerate(turns):
            if not any(map(str.isalnum, answer)):
                yield "empty_answer", i, 1.0, "no letter or digit" if answer.strip() else "empty", None
            elif refused := REFUSAL.search(answer[:START].replace("\u2019", "'")):
                yield "refusal", i, 1.0, f'says "{refused[0]}"', None
            if i in open_ends and len(open_ends) <= USUAL * len(turns):
                yield "truncated_answer", i, 1.0, f'ends with "{answer.rstrip()[-30:]}"', None
            if i in changed and len(changed) <= USUAL * len(turns):
                yield "language_change", i, 1.0, f"{spoken[i][1]}, and the prompt is {spoken[i][0]}", None
        for i, (j, similarity, _) in partners(find_pairs(data, "text", None), np.zeros(len(data))).items():
            how = "equal" if similarity == 1 else f"{similarity:.2f} similar"
            yield "duplicate", i, similarity, f"{how} to row {int(data.index[j])}", int(data.index[j])

    def audit(self, data: Dataset, judging: Judging) -> Findings:
        # The first of equal rows is kept; similar rows are reported as issues only.
        bad = {i for _, i, score, _, j in self.rules(data) if j is None or (score == 1 and j < data.index[i])}
        p = np.where(np.isin(np.arange(len(data)), list(bad)), P_RULE, P_OTHER)
        share = len(bad) / len(data)
        return Findings(
            classes=STATES, index=data.index, given=np.zeros(len(data), np.int64), suggested=np.ones(len(data), np.int64),
            log_odds=np.log(p / (1 - p)), p_error=p, evidence={}, noise_rate=Estimate(share, share, share), data=data,
            addresses=tuple(Address(row, None) for row in data.index.tolist()), provenance=Provenance(seed=judging.seed),
            notes=("The rows have no label. Rules look for empty, refused, truncated and repeated answers and for changes of language; "
                   "a suspect is a row to drop, and its probability a fixed number.",),
        )  # fmt: skip

    def issues(self, data: Dataset) -> list[tuple[str, int, float, str, int | None]]:
        return list(self.rules(data))

    @classmethod
    def write(cls, data: Path, decided: Sequence[tuple[Correction, Address]], out: Path, reading: Reading) -> int:
        columns = turn_columns(table_names(data))
        labels = open_labels(data, None if columns is None else columns[1], *reading[1:3])
        dropped: dict[int, None] = {}
        for c, (row, _) in decided:
            check_given(data, c, STATES[0])
            dropped |= {row: None} if c.decision == "drop" or c.label.strip() == STATES[1] else {}
        labels.write(out, dropped)
        return len(labels.cells)
