"""Rows with several labels: each label of each row is a question, present or absent.

For every label the learners are cross-fitted on the same views, and pooled. A second round adds the *other* labels of a row as features:
co-occurrence is learned out of fold from the given sets and from the first round's predictions. One noise model is then fitted to all answers,
because a single rare label has too few errors to estimate a share from.

An empty cell of joined labels means that the row has none of them. An empty cell in a column of 0 and 1 is unknown, and not judged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compensate.auditing.content import Content
from compensate.auditing.decisions import Correction
from compensate.auditing.features import FeatureViews, Progress
from compensate.auditing.findings import Address, Findings
from compensate.auditing.labels.base import (
    Judging,
    LabelKind,
    NewRows,
    Reader,
    Reading,
    Scored,
    check_given,
    list_items,
    provenance_of,
)
from compensate.auditing.learners import FOLDS, View, assign_folds, judge_view
from compensate.auditing.linear import LinearFolds
from compensate.auditing.noise_model import judge, pool, pooled, shares
from compensate.auditing.write_back import TextEditor, dropped_rows, open_labels
from compensate.data import tables
from compensate.data.dataset import UNLABELED, Dataset, Floats, Ints
from compensate.data.label_column import SIGNS, LabelChoice, choose_label, choose_text, joined_labels
from compensate.data.labels import is_missing, label_name
from compensate.errors import InputError, nearest

Decided = Sequence[tuple[Correction, Address]]
STATES = ("absent", "present")  # the classes of the questions
ANSWERS = {"0": 0, "0.0": 0, "false": 0, "no": 0, "1": 1, "1.0": 1, "true": 1, "yes": 1}  # cells of a column of 0 and 1
MIN_ROWS = 5  # rows with a label, and rows without it, that are needed to judge it: one for each fold
MAX_ANSWERS = 50_000_000  # rows times labels
MAX_LOG_ODDS = 6.0  # log odds of the first round are clipped here before the second


@dataclass(frozen=True, eq=False)
class LabelSets(LabelKind):
    """The labels of rows that have several, joined in a cell or in a list.

    Attributes:
        names: of the labels.
        given: (N, L) 1 where the row has the label, 0 where not, -1 where it is unknown.
        columns: the columns that hold the labels.
    """

    names: tuple[str, ...]
    given: Ints
    columns: tuple[str, ...] = ()

    form = "label"
    pattern = re.compile(r"(\d{1,15}) (.*)", re.DOTALL)
    part_columns = (("label", str),)
    options = ("labels_columns", "labels_known")
    answer = "choices"

    def __post_init__(self) -> None:
        _check_size(len(self.given), len(self.names))

    @property
    def patterns(self) -> NDArray[Any]:
        """(N,) a text for each row that is equal for equal sets."""
        signs = np.array(["0", "1", "?"])
        return np.array(["".join(row) for row in signs[self.given]], dtype=object)

    def describe(self, data: Dataset, name: Callable[[str], str] = str) -> str:
        return f"{len(self.names)} labels, {float((self.given == 1).sum(1).mean()):.1f} a row"

    @classmethod
    def read(cls, data: Any, labels: Any, options: Mapping[str, Any], other: Reader) -> Dataset:
        sets = label_sets(labels)
        if sets is not None:
            return replace(other(data, sets.patterns, options), parts=sets)
        is_file, is_frame = isinstance(data, (str, Path)), hasattr(data, "iloc")
        if options.get("labels_columns") is not None and (is_file or is_frame):
            rest = {name: value for name, value in options.items() if name not in ("labels_columns", "label")}
            reading = {name: rest.pop(name) for name in ("encoding", "delimiter") if name in rest}
            frame = tables.read_frame(data, **reading) if is_file else data
            names = tuple(tables.column_names(options["labels_columns"]))
            choice = LabelChoice(names, "joined" if options.get("labels_known") else "columns")
            return label_sets_of_table(frame, str(data) if is_file else "the data frame", choice, **rest)
        if labels is None and (tables.is_table(Path(data)) if is_file else is_frame):
            options = {"several": label_sets_of_table, **options}
        return other(data, labels, options)

    def audit(self, data: Dataset, judging: Judging) -> Findings:
        given = self.given[data.index if len(self.given) == data.rows else np.arange(len(data))].astype(np.int64)
        enough = np.minimum((given == 1).sum(0), (given == 0).sum(0)) >= MIN_ROWS
        judged, rare = np.flatnonzero(enough), [self.names[j] for j in np.flatnonzero(~enough)]
        if not len(judged):
            raise InputError(
                f"no label is given to {MIN_ROWS} rows or more, and kept from as many; an audit needs that. Check which column "
                "holds the labels."
            )
        listed = ", ".join(f'"{name[:40]}"' for name in rare[:5]) + f" and {len(rare) - 5} more" * (len(rare) > 5)
        note = f"Labels that fewer than {MIN_ROWS} rows have, or lack, cannot be checked and are left out: {listed}."
        views = judging.features(data)
        folds = assign_folds(data.target.astype(np.int64), views.keys, seed=judging.seed)
        log_q, weights, (first, own, models) = predict_labels(
            views.views, given[:, judged], folds, seed=judging.seed, progress=judging.progress
        )
        # New rows are judged without their other labels, by the learners of the first round.
        used = [{n: model for n, model in some.items() if own[n] > 0} for some in models]
        samples, places = np.nonzero(given[:, judged] != UNLABELED)
        labels, rows = judged[places], data.index[samples]
        answers = given[samples, labels]
        verdict = judge(log_q[samples, places], answers)
        return Findings(
            classes=STATES, index=rows * len(self.names) + labels, given=answers, suggested=verdict.suggested,
            log_odds=verdict.log_odds, p_error=verdict.p_error, evidence=verdict.evidence(answers), noise_rate=verdict.share,
            probabilities=np.exp(verdict.log_q).astype(np.float32),
            addresses=tuple(Address(row, self.names[j]) for row, j in zip(rows.tolist(), labels.tolist(), strict=True)),
            provenance=provenance_of(verdict, answers, judging.seed, weights, labels=self.names, **views.about),
            notes=(*([note] if rare else ()), *views.notes), data=data,
            fitted=judging.judge(views.makers, tuple(used), (own,) * len(used), judge(first[samples, places], answers).model),
        )  # fmt: skip

    @classmethod
    def reading_options(cls, audit: Any) -> dict[str, Any]:
        known = {"labels_known": audit.provenance.labels, "labels_columns": audit.source.label}
        return known if audit.source.label and audit.kind in ("text", "table") else {}

    def score(self, new: NewRows, audit: Findings, judge: Any) -> Scored:
        """Each label that was judged in the audit; a name that no new row has is absent."""
        number = {name: k for k, name in enumerate(self.names)}
        judged = sorted({address.part for address in audit.addresses}, key=audit.provenance.labels.index)
        none, found = np.zeros(len(self.given), np.int64), list[Any]()
        rows_of = new.data.index if len(self.given) == new.data.rows else np.arange(len(new.data))
        views = FeatureViews(judge.makers).of(new.data)
        for j, name in enumerate(judged):
            given = (self.given[:, number[name]] if name in number else none)[rows_of]
            used = [(w[n], m[n].log_p(v.x, v.trees)) for v, m, w in zip(views, judge.learners, judge.weights, strict=True)
                    for n in m if n.startswith(f"{j} ")]  # fmt: skip
            rows = np.flatnonzero(given != UNLABELED)
            log_q = pooled(np.array([weight for weight, _ in used]), [p for _, p in used])[rows]
            p, odds, suggested = judge.score(log_q, given[rows])
            names = np.array(STATES, dtype=object)
            found.append((rows, [name] * len(rows), names[given[rows]], names[suggested], odds, p))
        for name in sorted({*self.names} - {*audit.provenance.labels}):
            rows = np.flatnonzero(self.given[rows_of, number[name]] == 1)
            most = np.full(len(rows), np.inf), np.ones(len(rows))
            found.append((rows, [name] * len(rows), [STATES[1]] * len(rows), [STATES[0]] * len(rows), *most))
        columns: Any = (np.concatenate(one) for one in zip(*found, strict=True))
        return Scored(*columns)

    def show(self, content: Content, audit: Findings, row: int) -> Content:
        """The sample with all of its labels; the judged one is marked."""
        sample, label = divmod(int(audit.index[row]), len(self.names))
        chips = tuple(zip(self.names, (self.given[sample] == 1).tolist(), strict=True))
        fields = tuple(field for field in content.fields if field[0] not in self.columns)
        return replace(content, chips=chips, marked=label, fields=fields)

    @classmethod
    def groups(cls, audit: Findings) -> tuple[tuple[str, ...], Ints]:
        names = audit.provenance.labels
        return names, audit.index % len(names)

    @classmethod
    def choices(cls, audit: Findings) -> Sequence[str]:
        return audit.provenance.labels

    def ask(self, audit: Any, labels: Sequence[int], flagged: Sequence[int]) -> tuple[Any, Any, dict[str, Any]]:
        """All labels of the row; the record holds the state of each, in their order."""
        row = audit.addresses[labels[0]].row
        states = dict(zip(self.names, (("", *STATES)[answer + 1] for answer in self.given[row].tolist()), strict=True))
        wanted = states | {audit.addresses[i].part: STATES[audit.suggested[i]] for i in flagged}
        given, suggested = ([name for name, state in some.items() if state == STATES[1]] for some in (states, wanted))
        return given, suggested, {"row": row, "given": json.dumps(states)}

    @classmethod
    def decide(cls, about: Mapping[str, Any], answer: Any, suggested: Any) -> Iterable[tuple[Any, str, str, str, str]]:
        row, states = int(about["row"]), json.loads(about["given"]) if isinstance(answer, list) else {}
        for k, (name, given) in enumerate(states.items()):
            new, likely = (STATES[name in some] for some in (answer, suggested))
            if given or new == STATES[1]:  # an unknown label stays so unless it was chosen
                yield row * len(states) + k, given, new, likely, cls.format(Address(row, name))

    @classmethod
    def format(cls, address: Address) -> str:
        return f"{cls.form} {address.row} {address.part}"

    @classmethod
    def parse(cls, text: str, row: int = -1) -> Address:
        match = cls.match(text)
        return Address(int(match[1]), match[2])

    @classmethod
    def write(cls, data: Path, decided: Decided, out: Path, reading: Reading) -> int:
        frame = tables.read_frame(data, encoding=reading.encoding, delimiter=reading.delimiter)
        frame.columns = [str(name) for name in frame.columns]
        last = len(frame) - 1
        for c, (row, _) in decided:
            if row > last:
                raise InputError(f'a correction is about "{c.part[:60]}", and {data} has the rows 0 to {last}.')
            if c.changes and c.label.strip() not in STATES:
                raise InputError(f'a correction of "{c.part[:60]}" says "{c.label[:40]}"; expected absent or present.')
        cls._write(data, frame, decided, out, reading)
        return len(frame)

    @classmethod
    def _write(cls, data: Path, frame: pd.DataFrame, decided: Decided, out: Path, reading: Reading) -> None:
        text = choose_text(frame, None, str(data), reading.label)
        column = choose_label(frame, reading.label, str(data), text)
        cells = list(frame[column])
        sign = _separator(cells, column, data)
        new: dict[int, Any] = {}
        for c, (row, name) in decided:
            check_given(data, c, STATES[name in labels_in(cells[row], sign)])
            if c.decision == "drop":
                new[row] = None
            if c.changes and new.get(row, "") is not None:
                new[row] = _switched(new.get(row, cells[row]), sign, name, c.label.strip() == "present")
        if sign != "list":
            open_labels(data, column, reading.encoding, reading.delimiter).write(out, new)
            return
        if tables.table_format(data) not in tables.LINES:
            raise InputError(f"corrections of lists are written into JSONL files, and not into {data}.")
        editor = TextEditor(data, reading.encoding)
        spans, plain = editor.spans(frame, column), editor.text.isascii()
        editor.drop_rows(frame, dropped_rows(new))
        for row, labels in new.items():
            span = spans[row]
            if labels is None:
                continue
            if span is None:
                raise InputError(f'row {row} of {data} has no "{column}"; add an empty list there first.')
            old = editor.text[slice(*span)]  # labels that stay are written as they were
            items = list_items(old) if old.startswith("[") else []
            written = {str(json.loads(old[a:b])): old[a:b] for a, b in items}
            gap = old[items[0][1] : items[1][0]] if len(items) > 1 else ", "
            lead, trail = (old[1 : items[0][0]], old[items[-1][1] : -1]) if items else ("", "")
            inner = gap.join(written.get(str(label), json.dumps(label, ensure_ascii=plain)) for label in labels)
            editor.replace(span, f"[{lead}{inner}{trail}]")
        editor.write(out)


@dataclass(frozen=True, eq=False)
class LabelColumns(LabelSets):
    """The labels of rows that have several, in one column of 0 and 1 for each label."""

    form = "column"

    @classmethod
    def reading_options(cls, audit: Any) -> dict[str, Any]:
        return {"labels_columns": audit.provenance.labels}

    @classmethod
    def _write(cls, data: Path, frame: pd.DataFrame, decided: Decided, out: Path, reading: Reading) -> None:
        if tables.table_format(data) not in (*tables.TEXTS, *tables.LINES):
            raise InputError(
                f"corrections of columns of 0 and 1 are written into CSV, TSV and JSONL files, and not into {data}."
            )
        editor = TextEditor(data, reading.encoding, reading.delimiter)
        new: dict[str, dict[int, str]] = {}
        for c, (row, name) in decided:
            if name not in frame.columns:
                raise InputError(f'a correction is about the column "{name[:60]}", which {data} has not.')
            answer = _answer(frame[name].iloc[row], name, row, data)
            check_given(data, c, "" if answer == UNLABELED else STATES[answer])
            if c.changes:
                wanted = STATES.index(c.label.strip())  # written as other rows write it
                like = next((cell for cell in frame[name] if _answer(cell, name, row, data) == wanted), wanted)
                new.setdefault(name, {})[row] = str(label_name(like) if editor.lines else like).strip()
        editor.drop_rows(frame, {row for c, (row, _) in decided if c.decision == "drop"})
        for name, changes in new.items():
            editor.replace_labels(frame, name, changes)
        editor.write(out)


def predict_labels(
    views: Sequence[View], given: Ints, folds: Ints, *, seed: int = 0, progress: Progress | None = None
) -> tuple[Floats, dict[str, float], tuple[Floats, dict[str, float], list[dict[str, Any]]]]:
    """(N, L, 2) out-of-fold log probabilities that each label is absent and present, and the learners' shares; of the first round these, the weights, and
    the learners by view, under the number of the label and their name.

    `given` is (N, L): 0, 1 or -1; `folds` (N,) is the fold in which each row is held out.
    """
    labels = given.shape[1]
    steps = labels * (len(views) + 1)
    progress = progress or (lambda *_: None)
    predictions: list[dict[str, Any]] = [{} for _ in range(labels)]
    models: list[dict[str, Any]] = [{} for _ in range(len(views) + 1)]

    def fit(view: View, j: int, step: int, shared: LinearFolds | None = None) -> None:
        progress("fitting", step, steps)
        learned = judge_view(view, given[:, j], folds, FOLDS, 2, seed=seed, fitted=shared)
        predictions[j] |= {f"{view.name}: {name}": log_p for name, log_p in learned.log_p.items()}
        models[step // labels] |= {f"{j} {view.name}: {name}": model for name, model in learned.models.items()}

    for k, view in enumerate(views):
        shared = LinearFolds(view.x, folds, FOLDS, 2) if (given >= 0).all() else None
        for j in range(labels):
            fit(view, j, k * labels + j, shared)
    alone, own = zip(*(pool(predictions[j], given[:, j]) for j in range(labels)), strict=True)
    first = np.stack(alone, 1)
    odds = np.clip(first[..., 1] - first[..., 0], -MAX_LOG_ODDS, MAX_LOG_ODDS)
    signs = np.where(given < 0, 0, 2 * given - 1)
    for j in range(labels if labels > 1 else 0):
        x = np.concatenate([np.delete(signs, j, 1), odds], 1).astype(np.float32)
        fit(View("other labels", x), j, len(views) * labels + j)
    second, weights = zip(*(pool(predictions[j], given[:, j]) for j in range(labels)), strict=True)
    progress("fitting", steps, steps)
    by_label = [shares(weight) for weight in weights]
    mean = {name: float(np.mean([weight[name] for weight in by_label])) for name in by_label[0]}
    weight_of = {f"{j} {name}": weight for j, some in enumerate(own) for name, weight in some.items()}
    return np.stack(second, 1), mean, (first, weight_of, models[:-1])


def label_sets_of_table(
    frame: pd.DataFrame, where: str, choice: LabelChoice, *, ignore: str | Sequence[str] = (), **options: Any
) -> Dataset:
    """A table whose rows have several labels: joined in a cell, in a list, or in one column of 0 and 1 each.

    `choice` has the columns of the labels and their form, and ``labels_known`` are names of joined labels; other arguments are as for
    `compensate.data.tables.from_frame`.
    """
    frame = frame.reset_index(drop=True)
    frame.columns = pd.Index([str(name) for name in frame.columns])
    names = choice.columns
    for name in names:
        if name not in frame.columns:
            raise InputError(f'{where} has no column "{name}"; {nearest(name, [str(c) for c in frame.columns])}')
    if choice.form == "columns":
        given = np.empty((len(frame), len(names)), np.int64)
        for j, name in enumerate(names):
            given[:, j] = [_answer(cell, name, row, where) for row, cell in enumerate(frame[name])]
        if len(set(names)) < max(2, len(names)):
            raise InputError(f"labels_columns is {', '.join(names)}; expected two columns or more, each of them once.")
        sets: LabelSets = LabelColumns(names, given, names)
    else:
        cells = list(frame[names[0]])
        sign = _separator(cells, names[0], where, options.pop("labels_known", ()))
        sets = replace(_of_sets([labels_in(cell, sign) for cell in cells]), columns=names[:1])
    column, *others = sets.columns
    table = tables.from_frame(
        frame.assign(**{column: sets.patterns}), where, label=column, task="classification",
        ignore=[*tables.column_names(ignore), *others], **options,
    ).train  # fmt: skip
    source = replace(table.source, label=None) if choice.form == "columns" else table.source
    return replace(table, raw=frame.iloc[table.index], source=source, parts=sets)


def label_sets(labels: Any) -> LabelSets | None:
    """Label sets from an array (N, L) of 0 and 1, or a list of lists of names; None if it is neither."""
    if isinstance(labels, (list, tuple)) and labels and all(isinstance(row, (list, tuple, set)) for row in labels):
        if any(isinstance(item, str) for row in labels for item in row):
            return _of_sets([[str(item) for item in row] for row in labels])
        labels = np.asarray(labels)
    if getattr(labels, "ndim", 0) != 2:
        return None
    values = np.asarray(labels)
    if values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all():
        raise InputError(
            f"labels have shape {values.shape} and hold other values than 0 and 1; several labels a row are 1 where the row has the "
            "label and 0 where not, and one label a row has shape (N,)."
        )
    return LabelSets(tuple(f"label {j}" for j in range(values.shape[1])), values.astype(np.int64))


def _of_sets(sets: Sequence[Iterable[str]]) -> LabelSets:
    from sklearn.preprocessing import MultiLabelBinarizer

    binarizer = MultiLabelBinarizer(sparse_output=True)
    given = binarizer.fit_transform(sets)
    _check_size(*given.shape)
    return LabelSets(tuple(binarizer.classes_), given.toarray().astype(np.int64))


def _check_size(rows: int, labels: int) -> None:
    if rows * labels > MAX_ANSWERS:
        raise InputError(
            f"{rows:,} rows with {labels:,} different labels are {rows * labels:,} answers, more than {MAX_ANSWERS:,}; check which column "
            "holds the labels, or audit a part of the rows."
        )


def _answer(cell: Any, name: str, row: int, where: str | Path) -> int:
    """The content of a cell of a column of 0 and 1."""
    if is_missing(cell):
        return UNLABELED
    answer = ANSWERS.get(str(cell).strip().lower())
    if answer is None:
        raise InputError(
            f'{where}, row {row}: the column "{name}" says "{str(cell)[:40]}"; a column of a label holds 0 or 1, or nothing where it is '
            "not known."
        )
    return answer


def _separator(cells: Sequence[Any], column: str, where: str | Path, known: Sequence[str] = ()) -> str:
    """The sign between joined labels, or "list"; few cells may not show it, and then it is the one that yields most `known` labels."""
    sign = joined_labels([cell for cell in cells if not _is_empty(cell)])
    if sign is None and known:
        sign = max(SIGNS, key=lambda sign: sum(name in known for cell in cells for name in labels_in(cell, sign)))
    if sign is None:
        raise InputError(f'the column "{column}" of {where} holds one label a row, and no joined labels.')
    odd = [k for k, cell in enumerate(cells) if not (_is_empty(cell) or isinstance(cell, list))]
    if sign != "list" or not odd:
        return sign
    example = str(cells[odd[0]])[:60]
    if len(odd) < len(cells) and any(isinstance(cell, list) for cell in cells):
        raise InputError(
            f'{where}, row {odd[0]}: the column "{column}" says "{example}"; expected a list of labels as in the other rows.'
        )
    as_text = isinstance(cells[odd[0]], str)
    held = "lists written as text" if as_text else "lists, which are read from JSONL files alone"
    raise InputError(
        f'the column "{column}" of {where} holds {held}, such as "{example}"; join the labels by ";", or write the table as JSONL.'
    )


def labels_in(cell: Any, sign: str) -> list[str]:
    """The labels in a cell.

    >>> labels_in("a; b;a", ";"), labels_in(["x", 1], "list"), labels_in("", ";")
    (['a', 'b'], ['x', '1'], [])
    """
    if _is_empty(cell):
        return []
    items = [str(item).strip() for item in (cell if isinstance(cell, list) else str(cell).split(sign))]
    return list(dict.fromkeys(item for item in items if item))


def _is_empty(cell: Any) -> bool:
    return not isinstance(cell, list) and is_missing(cell)


def _switched(cell: Any, sign: str, name: str, present: bool) -> Any:
    """The cell with a label added at its end, or removed."""
    if sign == "list":
        items = [] if _is_empty(cell) else list(cell)
        return [*items, name] if present else [item for item in items if str(item).strip() != name]
    text = "" if _is_empty(cell) else str(cell)
    if not present:
        return sign.join(item for item in text.split(sign) if item.strip() != name).strip()
    gap = " " if f"{sign} " in text else ""
    return f"{text.rstrip()}{sign}{gap}{name}" if text.strip() else name
