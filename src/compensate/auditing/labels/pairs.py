r"""Preference pairs: a prompt, two responses, and which of them a person preferred.

Each pair is judged by models of the *difference* of its responses. Every learner is fitted on each pair and on its mirror image, with the label
mirrored too, and its prediction is averaged with the mirrored prediction of the mirror image. Hence the models are antisymmetric: swapping the
responses of a pair mirrors the answer. Views are the difference of embeddings, alone and times the embedding of the prompt; the difference of
words; and a table of length, form and overlap with the prompt. Length predicts what people prefer, so it is used, and its weight is reported.

Pooling and noise model are those of all audits, with errors as likely in one direction as in the other. A wrong pair is best removed, which is the
suggestion; a swap and a tie can be chosen instead.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp

from compensate.auditing import learners
from compensate.auditing.content import Content
from compensate.auditing.decisions import Correction
from compensate.auditing.features import MAKERS, Maker, Progress
from compensate.auditing.findings import Address, Findings
from compensate.auditing.labels.base import SEVERAL, Judging, LabelKind, Reader, Reading, check_given, provenance_of
from compensate.auditing.labels.votes import VOTES_ALONE, find_consensus
from compensate.auditing.labels.votes import Votes as Ballots
from compensate.auditing.linear import softmax
from compensate.auditing.noise_model import fit_noise, pool, shares
from compensate.auditing.write_back import TextEditor, packed, write_compressed
from compensate.data import tables
from compensate.data.dataset import UNLABELED, Dataset, Ints, Singles, Source, generator
from compensate.data.label_column import UnclearLabel
from compensate.data.labels import is_number, label_name
from compensate.data.load import is_saved, open_saved, training_part
from compensate.data.pairs import (
    ANSWERS,
    TASK,
    TEXTS,
    Pair,
    PairColumns,
    Votes,
    are_texts,
    ask_about_pairs,
    is_marked,
    pair_columns,
    pairs_of_frame,
    read_pairs,
    table_names,
)
from compensate.data.parquet import SUFFIXES as PARQUET
from compensate.data.parquet import parquet_files, read_arrow
from compensate.errors import InputError
from compensate.extras import require
from compensate.files import replaced_folder, write_atomically

DROP = ANSWERS.index("drop")
MIRROR = np.array([1, 0, 2])  # the answers to a mirrored pair
MIN_ROWS = 20  # the fewest labeled pairs that an audit learns from
_WORD = re.compile(r"\w+")


# --- features ---------------------------------------------------------------------------------------------------


def unique_texts(pairs: Sequence[Pair]) -> tuple[Dataset, Ints]:
    """The distinct texts of pairs as a data set, and (3, N) the numbers of prompts and of first and second responses."""
    number: dict[str, int] = {}
    places = [[number.setdefault(text, len(number)) for text in column] for column in zip(*pairs, strict=True)]
    texts = np.array(list(number), dtype=object)
    source = Source(kind="text")
    return Dataset(texts, np.zeros(len(texts), np.int64), ("text",), raw=texts, source=source), np.array(places)


def style(text: str, prompt: frozenset[str]) -> list[float]:
    """Length, form and overlap of a response with the words of its prompt."""
    words = _WORD.findall(text.lower())
    distinct, following = set(words), set(pairwise(words))
    n, size = max(len(words), 1), max(len(text), 1)
    return [
        np.log1p(len(text)), np.log1p(len(words)), sum(map(len, words)) / n, len(distinct) / n, len(following) / n,
        np.log1p(text.count("\n")), np.log1p(len(re.findall(r"[.!?](?:\s|$)", text))), sum(map(str.isdigit, text)) / size,
        sum(map(str.isupper, text)) / size, float(text.rstrip()[-1:] in ('.', '!', '?', '"', "'", ")", "`")),
        len(distinct & prompt) / max(len(distinct), 1), len(distinct & prompt) / max(len(prompt), 1), float(not words),
    ]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Differences:
    """Differences of the features of two responses; without an inner maker, of their length, form and overlap with the prompt.

    Attributes:
        inner: makes features of single texts.
        prompted: whether differences are multiplied by the features of the prompt.
    """

    inner: Maker | None = None
    prompted: bool = False

    def view(self, data: Dataset, device: Any = None, progress: Progress | None = None) -> learners.View:
        texts, places = unique_texts(data.x)
        return self.of_texts(None if self.inner is None else self.inner.view(texts, device, progress), data.x, places)

    def of_texts(self, inner: learners.View | None, pairs: Sequence[Pair], places: Ints) -> learners.View:
        """The view of pairs, from that of their distinct texts."""
        if inner is None:
            rows = []
            for pair in pairs:
                prompt = frozenset(_WORD.findall(pair.prompt.lower()))
                rows.append(np.subtract(style(pair.first, prompt), style(pair.second, prompt)))
            values = np.array(rows, np.float32)
            both = (set(_WORD.findall(text.lower())) for pair in pairs for text in pair[1:])
            alike = [len(a & b) / max(len(a | b), 1) for a, b in zip(*[both] * 2, strict=True)]
            values = np.column_stack([values, np.abs(values[:, :2]), alike]).astype(np.float32)
            return learners.View("length and overlap", values, values)
        prompt, first, second = places
        x: Any = inner.x[first] - inner.x[second]
        if not isinstance(x, np.ndarray):  # naive Bayes counts words, and a number of them is not negative
            x = sp.csr_matrix(sp.hstack([x.maximum(0), (-x).maximum(0)]), dtype=np.float32)
        elif self.prompted:
            x = x * inner.x[prompt] * np.float32(np.sqrt(x.shape[1]))
        return learners.View(f"{inner.name}{' with prompt' * self.prompted}", x)

    def mirrored(self, x: Any) -> Any:
        """The features of the same pairs with their responses exchanged."""
        if self.inner is None:
            return np.column_stack([-x[:, :-3], x[:, -3:]]).astype(np.float32)
        if isinstance(x, np.ndarray):
            return -x
        half = x.shape[1] // 2
        return sp.csr_matrix(sp.hstack([x[:, half:], x[:, :half]]))

    def state(self) -> dict[str, Any]:
        inner = {} if self.inner is None else {"kind": type(self.inner).__name__, "state": self.inner.state()}
        return {"inner": inner, "prompted": self.prompted}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Differences:
        inner = state["inner"]
        return cls(MAKERS[inner["kind"]].of(inner["state"]) if inner else None, bool(state["prompted"]))


MAKERS["Differences"] = Differences  # type: ignore[assignment]


# --- the kind ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Pairs(LabelKind):
    """The preferences of pairs, which are ``Dataset.target``; samples are `Pair` records.

    Attributes:
        columns: of the table.
        votes: for each row, annotators and their answers, if there are several.
    """

    columns: PairColumns
    votes: Votes = ()

    form = "pair"
    drops = "drop"
    noun = "preferences"
    page = "pair"
    located = ("text",)
    sides = ("first", "second")
    refused = {name: SEVERAL.format(name).replace("samples", "pairs") for name in ("model", "finetune")} | {
        "decisions": "decisions about pairs cannot be used in another audit; apply them, and audit the corrected file."
    }

    @classmethod
    def read(cls, data: Any, labels: Any, options: Mapping[str, Any], other: Reader) -> Dataset:
        label, task, text = (options.get(name) for name in ("label", "task", "text"))
        where = str(data) if isinstance(data, (str, Path)) else "the data"
        text = text if text is None or isinstance(text, str) else ",".join(text)
        asked = task == TASK
        if asked and (text is None or labels is not None):
            raise InputError(f"task={TASK} needs the columns of the prompt and of two responses: --text {TEXTS}.")
        names = table_names(data) if labels is None and (asked or task is None) else []
        columns = pair_columns(names, *((label, text) if asked else ()))
        if columns is None and names and label is None and text is None:
            return cls._unnamed(data, options, other, where)
        if columns is None or not (asked or label in (None, *columns.preferences)):
            return other(data, labels, options)
        frame = read_pairs(data, options.get("encoding") or "utf-8", options.get("delimiter"))
        if not asked and not are_texts(frame, columns):
            return other(data, labels, options)
        known = ("label", "encoding", "delimiter", *(("task", "text") if asked else ()))
        odd = [name for name, value in options.items() if value is not None and name not in known]
        if odd:
            raise InputError(f"{odd[0]} is not an option for preference pairs ({where}); leave it out.")
        found, votes = pairs_of_frame(frame, columns, where)
        return replace(found, parts=cls(columns, votes), source=replace(found.source, label_given=label is not None))

    @staticmethod
    def _unnamed(data: Any, options: Mapping[str, Any], other: Reader, where: str) -> Dataset:
        """Data that are read otherwise, unless they look like pairs whose columns have unknown names."""
        try:
            found = other(data, None, options)
        except UnclearLabel:
            ask_about_pairs(read_pairs(data, options.get("encoding") or "utf-8", options.get("delimiter")), where)
            raise
        if found.parts is None and isinstance(found.raw, pd.DataFrame):
            ask_about_pairs(found.raw, where)
        return found

    @classmethod
    def reading_options(cls, audit: Any) -> dict[str, Any]:
        text = audit.source.text
        return {} if text is None else {"label": audit.source.label, "task": TASK, "text": text}

    def describe(self, data: Dataset, name: Callable[[str], str] = str) -> str:
        counts = data.class_counts
        listed = " · ".join(f"{answer} {n:,}" for answer, n in zip(data.classes, counts, strict=False) if n)
        by = f", the majority of {len(self.columns.preferences)} annotators" if self.votes else ""
        named = f'"{name(self.columns.first)}" and "{name(self.columns.second)}"'
        return f"preference pairs, {named} (better: {listed}{by})"

    def audit(self, data: Dataset, judging: Judging) -> Findings:
        given = data.target.astype(np.int64)
        rows, missing = np.flatnonzero(given != UNLABELED), np.flatnonzero(given == UNLABELED)
        if len(rows) < MIN_ROWS:
            raise InputError(f"{len(rows)} pairs have a preference; an audit needs {MIN_ROWS} or more.")
        classes = 3 if (given == 2).any() or any(said == "tie" for row in self.votes for _, said in row) else 2
        ballots = self._ballots(data, classes) if self.votes else None
        learned = given if ballots is None else np.where(given < 0, given, find_consensus(ballots).label[: len(given)])
        texts, places = unique_texts(data.x)
        features = judging.features(texts)
        made: list[tuple[Differences, learners.View | None]] = [(Differences(), None)]
        for maker, view in zip(features.makers, features.views, strict=True):
            made.append((Differences(maker), view))
            if maker is features.encoder and len(np.unique(places[0])) > 1:
                made.append((Differences(maker, prompted=True), view))
        makers = tuple(maker for maker, _ in made)
        views = [maker.of_texts(view, data.x, places) for maker, view in made]
        keys = learners.content_keys([" ".join([pair.prompt, *sorted(pair[1:])]) for pair in data.x])
        times = learners.REPEATS if len(rows) <= learners.MAX_REPEATED else 1
        folds = np.stack([learners.assign_folds(learned, keys, seed=judging.seed, draw=k) for k in range(times)])
        mirror = MIRROR[:classes]
        both = np.concatenate([learned, np.where(learned == UNLABELED, UNLABELED, mirror[learned])])
        twice = [learners.View(v.name, stacked(v.x, m.mirrored(v.x)), None if v.trees is None else stacked(v.x, m.mirrored(v.x)))
                 for m, v in zip(makers, views, strict=True)]  # fmt: skip
        steps = learners.Steps(judging.progress, twice, times)
        fitted = [
            learners.judge_view(
                v, both, np.tile(folds, 2), learners.FOLDS, classes, seed=judging.seed, run=judging.run, steps=steps
            )
            for v in twice
        ]
        log_p = {
            f"{view.name}: {name}": antisymmetric(p[: len(given)], p[len(given) :])
            for view, one in zip(twice, fitted, strict=True)
            for name, p in one.log_p.items()
        }
        log_q, weights = pool(log_p, learned)
        # In a file of chosen and rejected responses all labels are equal: some pairs are mirrored for the noise model.
        turned = generator(judging.seed, "mirrored pairs").random(len(rows)) < 0.5
        y, q = learned[rows], log_q[rows]
        oriented = np.where(turned, mirror[y], y), np.where(turned[:, None], q[:, mirror], q)
        y = given[rows]
        verdict = fit_noise(oriented[1], oriented[0], None, directed=False, run=judging.run).verdict(q, y)
        p = np.zeros((len(given), len(ANSWERS)), np.float32)
        p[:, :classes] = np.exp(log_q)
        of_view = tuple({n: weights[f"{v.name}: {n}"] for n in one.log_p} for v, one in zip(twice, fitted, strict=True))
        found = judging.judge(makers, tuple(one.models for one in fitted), of_view, verdict.model)
        judging.run.finish()
        provenance = provenance_of(verdict, y, judging.seed, shares(weights), **features.about)
        judged: dict[str, Any] = {"log_odds": verdict.log_odds, "p_error": verdict.p_error, "noise_rate": verdict.share}
        notes = [*features.notes, *self._notes(shares(weights))]
        if ballots is not None:
            alone = bool(provenance.by_chance)
            consensus = find_consensus(ballots, None if alone else np.concatenate([log_q, log_q[:, mirror]]))
            p[:, :classes], judged = consensus.probabilities[: len(given)], consensus.judged(rows, y)
            provenance = replace(provenance, by_chance=False)
            right = ", ".join(f"{who} {share:.0%}" for who, share in consensus.quality["accuracy"].items())
            notes += [*[VOTES_ALONE] * alone, f"Estimated share of right votes: {right}."]
        return Findings(
            classes=ANSWERS, index=data.index[rows], given=y, suggested=np.full(len(rows), DROP), probabilities=p[rows], fitted=found,
            evidence=verdict.evidence(y) | {f"p {ANSWERS[c]}": p[rows, c].astype(np.float64) for c in range(classes)},
            addresses=tuple(Address(row, None) for row in data.index[rows].tolist()),
            unlabeled={} if not len(missing) else {
                "index": data.index[missing], "suggested": log_q[missing].argmax(1), "probability": np.exp(log_q[missing].max(1))
            },
            provenance=provenance, notes=tuple(notes), data=data, **judged,
        )  # fmt: skip

    def _ballots(self, data: Dataset, classes: int) -> Ballots:
        """The votes on pairs and, after them, on their mirror images: annotators are as good at one order as at the other."""
        names, rows = self.columns.preferences, enumerate(data.index.tolist())
        cast = [(i, names.index(who), ANSWERS.index(said)) for i, row in rows for who, said in self.votes[row]]
        item, who, said = np.array(cast, np.int64).T
        both = np.concatenate([item, item + len(data)]), np.tile(who, 2), np.concatenate([said, MIRROR[said]])
        return Ballots(*both, 2 * len(data), names, ANSWERS[:classes])

    def _notes(self, weights: Mapping[str, float]) -> tuple[str, ...]:
        form = sum(weight for name, weight in weights.items() if name.startswith("length and overlap"))
        notes = [f"Length, form and overlap with the prompt have {form:.0%} of the weight of the models."]
        if self.votes:
            several = f"Preferences are the majority of {', '.join(self.columns.preferences)}; without one, a tie. Votes and models judge them."
            notes.append(f"{several} A decision can drop a pair, and not change the votes.")
        return tuple(notes)

    def show(self, content: Content, audit: Findings, row: int) -> Content:
        """The prompt and the two responses side by side."""
        address = audit.addresses[row]
        if audit.data is None:
            return content
        place = int(np.flatnonzero(audit.data.index == address.row)[0])
        pair, hidden = audit.data.x[place], {*self.columns.prompt, *self.columns[1:3], *self.columns.preferences}
        fields = tuple(field for field in content.fields if field[0] not in hidden)
        sides = ((self.columns.first, pair.first), (self.columns.second, pair.second))
        votes = self.votes[address.row] if self.votes else ()
        return replace(content, text=pair.prompt or None, sides=sides, fields=fields, votes=votes)

    def issues(self, data: Dataset) -> list[tuple[str, int, float, str, int | None]]:
        """Issues of pairs: kind, position, score, description, and the other row."""
        found: list[tuple[str, int, float, str, int | None]] = []
        prompts: dict[str, list[int]] = defaultdict(list)
        by_role: tuple[dict[tuple[str, str], int], ...] = {}, {}
        data = data.subset(np.flatnonzero(data.target != UNLABELED))  # the rows that an audit judges
        for i, (pair, answer) in enumerate(zip(data.x, data.target.tolist(), strict=True)):
            prompts[" ".join(pair.prompt.lower().split())].append(i)
            if not all(any(map(str.isalnum, text)) for text in pair[1:]):
                found.append(("empty_answer", i, 1.0, "a response without a letter or digit", None))
            elif pair.first.strip() == pair.second.strip():
                found.append(("identical_responses", i, 1.0, "both responses are equal", None))
            elif answer in (0, 1):
                for role, text in enumerate((pair[1 + answer], pair[2 - answer])):
                    by_role[role].setdefault((pair.prompt, text.strip()), i)
        for key in by_role[0].keys() & by_role[1].keys():
            other = int(data.index[by_role[1][key]])
            detail = f"its better response is the worse one of row {other}"
            found.append(("contradicting_response", by_role[0][key], 1.0, detail, other))
        if max(map(len, prompts.values())) < len(data):  # one prompt for all pairs is a task, and not a duplicate
            for same in prompts.values():
                detail = f"the same prompt as {len(same) - 1} other row{'s' * (len(same) > 2)}"
                found += [("duplicate_prompt", i, float(len(same)), detail, int(data.index[same[0]])) for i in same[1:]]
        return found

    @classmethod
    def write(cls, data: Path, decided: Sequence[tuple[Correction, Address]], out: Path, reading: Reading) -> int:
        frame = read_pairs(data, reading.encoding, reading.delimiter)
        columns = pair_columns(frame.columns, *(() if reading.text is None else (reading.label, reading.text)))
        if columns is None:
            raise InputError(f"{data} holds no preference pairs; give the audited file. Nothing is written.")
        read, _ = pairs_of_frame(frame, columns, str(data))
        new: dict[int, str] = {}
        for c, (row, _) in decided:
            if row >= len(read):
                raise InputError(f"a correction is about row {row}, and {data} has the rows 0 to {len(read) - 1}.")
            check_given(data, c, "" if read.target[row] == UNLABELED else ANSWERS[read.target[row]])
            if c.changes or c.decision == "drop":
                new[row] = c.label.strip() or "drop"
        odd = [answer for answer in new.values() if answer not in ANSWERS]
        if odd:
            raise InputError(f'a correction says "{odd[0][:40]}"; expected {", ".join(ANSWERS)}.')
        # A file of chosen and rejected responses cannot express a tie: such a pair is dropped too.
        gone = ("drop",) if columns.preferences else ("drop", "tie")
        dropped = {row for row, answer in new.items() if answer in gone}
        rest = {row: answer for row, answer in new.items() if row not in dropped}
        changed = Changed(dropped, set(rest), {})
        if columns.preferences and rest:
            changed = Changed(dropped, set(), new_preferences(frame, columns, read.target, rest))
        write_pairs(data, frame, columns, out, reading, changed)
        return len(frame)


def stacked(x: Any, mirrored: Any) -> Any:
    """Rows, and below them their mirror images."""
    both = [x, mirrored]
    return np.concatenate(both) if isinstance(x, np.ndarray) else sp.csr_matrix(sp.vstack(both))


def antisymmetric(log_p: Singles, mirrored: Singles) -> Singles:
    """(N, C) the mean of log probabilities and those of the mirror images, mirrored back."""
    mean: Singles = (log_p + mirrored[:, MIRROR[: log_p.shape[1]]]) / np.float32(2)
    return softmax(mean)[1]


# --- writing ----------------------------------------------------------------------------------------------------


class Changed(NamedTuple):
    """What changes in a table of pairs: rows without which it is written, rows whose responses are exchanged, and new preferences by column and row."""

    dropped: set[int]
    turned: set[int]
    preferences: Mapping[str, Mapping[int, str]]

    def part(self, first: int, rows: int) -> Changed:
        """The changes of some consecutive rows, counted from the first of them."""
        here = range(first, first + rows)
        dropped, turned = ({row - first for row in some if row in here} for some in (self.dropped, self.turned))
        new = {
            name: {row - first: value for row, value in cells.items() if row in here}
            for name, cells in self.preferences.items()
        }
        return Changed(dropped, turned, new)


def new_preferences(
    frame: pd.DataFrame, columns: PairColumns, given: Ints, new: Mapping[int, str]
) -> dict[str, dict[int, str]]:
    """The new cells by column of preferences and row, written as other rows write them."""
    if columns.form == "one-hot":
        mark = {is_marked(cell): label_name(cell) for name in columns.preferences for cell in frame[name]}
        return {
            name: {row: mark[ANSWERS[k] == answer] for row, answer in new.items()}
            for k, name in enumerate(columns.preferences)
        }
    name = columns.preferences[0]
    if len(columns.preferences) > 1:
        raise InputError("the votes of several annotators cannot be changed by a decision; drop such pairs instead.")
    cells = [label_name(cell) for cell in frame[name]]
    written = {"tie": "0" if any(cell.isdigit() for cell in cells) else "tie"}
    if any(cell == "0" for answer, cell in zip(given.tolist(), cells, strict=True) if answer in (0, 1)):
        del written["tie"]  # zero names a response
    written |= {ANSWERS[answer]: cell for answer, cell in zip(given.tolist(), cells, strict=True) if answer >= 0}
    odd = [answer for answer in new.values() if answer not in written]
    if odd:
        raise InputError(f"no row prefers the {odd[0]} response; drop such pairs instead.")
    if any(cell.startswith("-") and is_number(cell) for cell in cells):  # the sign changes, and the size is kept
        sizes = {row: (cells[row] if given[row] < 2 else written[answer]).lstrip("-") for row, answer in new.items()}
        signed = {row: "0" if said == "tie" else "-" * (said == "first") + sizes[row] for row, said in new.items()}
        return {name: signed}
    return {name: {row: written[answer] for row, answer in new.items()}}


def write_pairs(
    data: Path, frame: pd.DataFrame, columns: PairColumns, out: Path, reading: Reading, changed: Changed
) -> None:
    """Writes a file of pairs with changes; all other bytes of CSV, TSV and JSONL files stay."""
    kind, files = tables.table_format(data), parquet_files(data)
    if is_saved(data):
        datasets = require("datasets", "writing a saved data set", "hf")
        whole = open_saved(data)
        split, rows = training_part(whole)
        table = edited(rows.with_format("arrow")[:], columns, changed)
        corrected = datasets.Dataset(datasets.table.InMemoryTable(table), info=rows.info)
        with replaced_folder(out) as folder:
            (corrected if split is None else type(whole)({**whole, split: corrected})).save_to_disk(str(folder))
    elif kind in PARQUET:
        write_compressed(out, packed(edited(read_arrow(data), columns, changed)))
    elif files:
        with replaced_folder(out) as folder:
            first = 0
            for file in files:
                part = read_arrow(file)
                here = changed.part(first, part.num_rows)
                write_atomically(folder / file.name, packed(edited(part, columns, here)))
                first += part.num_rows
    elif kind in (*tables.TEXTS, *tables.LINES):
        editor = TextEditor(data, reading.encoding, reading.delimiter)
        frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
        spans: list[Any] = [editor.spans(frame, name) for name in (columns.first, columns.second)]
        for row in changed.turned:
            if None in (span[row] for span in spans):
                raise InputError(f"row {row} of {data} lacks a response; drop it instead.")
            one, two = (span[row] for span in spans)
            editor.replace(one, editor.text[slice(*two)])
            editor.replace(two, editor.text[slice(*one)])
        for name, cells in changed.preferences.items():
            editor.replace_labels(frame, name, cells)
        editor.drop_rows(frame, changed.dropped)
        editor.write(out)
    else:
        raise InputError(f"pairs are written as CSV, TSV, JSONL, Parquet or a saved data set, and not into {data}.")


def edited(table: Any, columns: PairColumns, changed: Changed) -> Any:
    """An Arrow table with changes."""
    pyarrow = require("pyarrow", "writing Parquet", "parquet")
    n = table.num_rows
    turned = np.isin(np.arange(n), list(changed.turned))
    both = {name: table.column(name).combine_chunks() for name in (columns.first, columns.second)}
    for own, other in ((columns.first, columns.second), (columns.second, columns.first)) if changed.turned else ():
        together = pyarrow.concat_arrays([both[own], both[other].cast(both[own].type)])
        at = table.schema.get_field_index(own)
        table = table.set_column(at, table.schema.field(at), together.take(pyarrow.array(np.arange(n) + n * turned)))
    for name, new in changed.preferences.items():
        at = table.schema.get_field_index(name)
        field, cells = table.schema.field(at), table.column(at).to_pylist()
        for row, value in new.items():
            cells[row] = pyarrow.array([value]).cast(field.type)[0].as_py()
        table = table.set_column(at, field, pyarrow.array(cells, type=field.type))
    return table.filter(pyarrow.array(~np.isin(np.arange(n), list(changed.dropped))))
