r"""Rows with several labels: each label of each row is a question of its own, present or absent.

For every label the learners of `compensate.auditing.learners` are cross-fitted on the same views, and pooled. A second round adds what the
*other* labels of a row say: which labels go together is learned out of fold from the given sets and from the first round's predictions. One
noise model is then fitted to all answers at once: a single rare label has too few errors to estimate a share from.

A cell of joined labels that is empty means that the row has none of them. An empty cell in a column of 0 and 1 is unknown, and not judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compensate.auditing.labels.base import check_given, part_of
from compensate.auditing.learners import FOLDS, View, assign_folds, judge_view
from compensate.auditing.linear import LinearFolds
from compensate.auditing.noise_model import Verdict, judge, pool, shares
from compensate.auditing.result import Provenance, build_audit
from compensate.data.columns import is_nested
from compensate.data.dataset import UNLABELED, Dataset, Floats, Ints
from compensate.data.label_column import joined_labels
from compensate.data.labels import is_missing
from compensate.errors import InputError, nearest

if TYPE_CHECKING:
    from compensate.auditing.decisions import Correction
    from compensate.auditing.page.model import Content
    from compensate.auditing.result import Audit

STATES = ("absent", "present")
"""What is said of a label of a row."""

YES, NO = frozenset({"1", "1.0", "true", "yes"}), frozenset({"0", "0.0", "false", "no"})
"""Cells, in lower case, of a column that says whether a label is there."""

FEWEST = 5
"""Rows with a label, and rows without it, that are needed to judge it: one for each fold."""

COLUMNS = 3
"""Columns of 0 and 1 from which on, where no column is called a label, each is taken for a label."""

MOST = 50_000_000
"""Answers (rows times labels) that are judged."""

ONE_WAY = 4.0
"""Log likelihood by which errors of one kind, missing labels or added ones, must fit better than both: half the logarithm of a few thousand
answers, as the Bayesian information criterion has it."""

BOUND = 6.0
"""Log odds of the first round beyond this say no more to the second."""


@dataclass(frozen=True, eq=False)
class LabelSets:
    """The labels of rows that have several.

    Attributes:
        names: of the labels.
        given: (N, L) 1 where the row has the label, 0 where not, -1 where nobody knows.
        form: "label" for joined labels and lists, "column" for columns of 0 and 1.
        columns: those that hold the labels.
    """

    names: tuple[str, ...]
    given: Ints
    form: str = "label"
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.given.size > MOST:
            raise InputError(
                f"{len(self.given):,} rows with {len(self.names):,} labels are {self.given.size:,} answers, more than {MOST:,}; "
                "audit a part of the rows."
            )

    @property
    def patterns(self) -> NDArray[Any]:
        """(N,) a text for each row that is equal for equal sets."""
        signs = np.array(["0", "1", "?"])
        return np.array(["".join(row) for row in signs[self.given]], dtype=object)

    def described(self) -> str:
        """What was read, in a few words."""
        each = float((self.given == 1).sum(1).mean())
        return f"{len(self.names)} labels, {each:.1f} a row"

    def audit(self, data: Dataset, encoder: str | Path, *, seed: int, progress: Any, features: Any, **_: Any) -> Audit:
        """The audit of all labels of all rows; ``features`` makes the features of the data."""
        rows = data.index if len(self.given) == data.rows else np.arange(len(data))
        given = self.given[rows].astype(np.int64)
        judged, notes = self._judged(given)
        views = features(data)
        folds = assign_folds(data.target.astype(np.int64), views.keys, seed=seed)
        log_q, transition, weights = predict_labels(views.views, given[:, judged], folds, seed=seed, progress=progress)
        where, labels = np.nonzero(given[:, judged] != UNLABELED)
        flat = given[where, judged[labels]]
        verdict = judge(log_q[where, labels], flat, transition, simpler=ONE_WAY)
        config = {"seed": seed, "folds": FOLDS, **views.about, "views": weights}
        return self._result(data, where, judged[labels], flat, verdict, config, (*notes, *views.notes))

    def _judged(self, given: Ints) -> tuple[Ints, tuple[str, ...]]:
        """The labels that enough rows have and have not, and a note on the others."""
        enough = ((given == 1).sum(0) >= FEWEST) & ((given == 0).sum(0) >= FEWEST)
        rare = [self.names[j] for j in np.flatnonzero(~enough)]
        if not enough.any():
            raise InputError(
                f"no label is given to {FEWEST} rows or more, and kept from as many; an audit needs that. Check which column "
                "holds the labels."
            )
        shown = ", ".join(f'"{name[:40]}"' for name in rare[:5]) + (
            f" and {len(rare) - 5} more" if len(rare) > 5 else ""
        )
        note = f"Labels that fewer than {FEWEST} rows have, or have not, cannot be checked and are left out: {shown}."
        return np.flatnonzero(enough), ((note,) if rare else ())

    def _result(
        self,
        data: Dataset,
        where: Ints,
        labels: Ints,
        given: Ints,
        verdict: Verdict,
        config: dict[str, Any],
        notes: tuple[str, ...],
    ) -> Audit:
        config |= {
            "agreement": float((verdict.log_q.argmax(1) == given).mean()), "by_chance": verdict.by_chance,
            "labels": self.names,
        }  # fmt: skip
        rows = data.index[where]
        return build_audit(
            data,
            data.source,
            classes=STATES,
            index=rows * len(self.names) + labels,
            given=given,
            suggested=verdict.suggested,
            log_odds=verdict.log_odds,
            p_error=verdict.p_error,
            evidence=verdict.evidence(given),
            noise_rate=verdict.share,
            probabilities=np.exp(verdict.log_q).astype(np.float32),
            provenance=Provenance(**config),
            notes=notes,
            parts=tuple(
                f"{self.form} {row} {self.names[j]}" for row, j in zip(rows.tolist(), labels.tolist(), strict=True)
            ),
            sample=where,
        )

    def shown(self, content: Content, audit: Audit, row: int) -> Content:
        """The sample with all of its labels, the judged one marked."""
        given = self.given[int(audit.index[row]) // len(self.names)]
        return replace(
            content,
            chips=tuple((name, bool(is_there == 1)) for name, is_there in zip(self.names, given, strict=True)),
            marked=int(audit.index[row]) % len(self.names),
            fields=tuple(field for field in content.fields if field[0] not in self.columns),
        )


# --- judging --------------------------------------------------------------------------------------------------


def predict_labels(
    views: Sequence[View], given: Ints, folds: Ints, *, seed: int = 0, progress: Any = None
) -> tuple[Floats, Floats, dict[str, float]]:
    """(N, L, 2) out-of-fold log probabilities that each label is absent and present, (2, 2) transitions, and the learners' weights.

    Args:
        views: features of the rows.
        given: (N, L) 0, 1 or -1.
        folds: (N,) the fold in which each row is held out.
    """
    labels = given.shape[1]
    learned: list[dict[str, Any]] = [{} for _ in range(labels)]
    transitions = []
    rounds = labels * (len(views) + 1)
    for k, view in enumerate(views):
        shared = LinearFolds(view.x, folds, FOLDS, 2) if (given >= 0).all() else None
        for j in range(labels):
            if progress is not None:
                progress("fitting", k * labels + j, rounds)
            found = judge_view(view, given[:, j], folds, FOLDS, 2, seed=seed, fitted=shared)
            learned[j] |= {f"{view.name}: {name}": log_p for name, log_p in found.log_p.items()}
            transitions.append(found.transition)
    first = np.stack([pool(learned[j], given[:, j])[0] for j in range(labels)], 1)
    odds = np.clip(first[..., 1] - first[..., 0], -BOUND, BOUND)
    second, weights = [], []
    for j in range(labels):
        if progress is not None:
            progress("fitting", len(views) * labels + j, rounds)
        if labels > 1:
            others = np.delete(np.where(given < 0, 0, 2 * given - 1), j, 1)
            view = View("other labels", np.concatenate([others, odds], 1).astype(np.float32))
            found = judge_view(view, given[:, j], folds, FOLDS, 2, seed=seed)
            learned[j] |= {f"{view.name}: {name}": log_p for name, log_p in found.log_p.items()}
        log_q, weight = pool(learned[j], given[:, j])
        second.append(log_q)
        weights.append(shares(weight))
    if progress is not None:
        progress("fitting", rounds, rounds)
    mean = {name: float(np.mean([weight[name] for weight in weights])) for name in weights[0]}
    return np.stack(second, 1), np.mean(transitions, axis=0), mean


# --- reading --------------------------------------------------------------------------------------------------


def read_label_sets(
    data: Any,
    *,
    labels_columns: str | Sequence[str] | None = None,
    label: str | None = None,
    text: str | None = None,
    ignore: str | Sequence[str] = (),
    columns: str | Sequence[str] | None = None,
    split: str | None = None,
    encoding: str = "utf-8",
    delimiter: str | None = None,
) -> Dataset:
    """A table whose rows have several labels: joined in a cell, in a list, or one column of 0 and 1 each.

    Args:
        data: a file or a data frame.
        labels_columns: the columns of 0 and 1, a list or a text with commas; without them ``label`` holds joined labels or lists.
        label, text, ignore, columns, split, encoding, delimiter: as for `compensate.data.tables.read_table`.
    """
    from compensate.data.tables import column_names, from_frame, read_frame

    path = isinstance(data, (str, Path))
    where = str(data) if path else "the data frame"
    frame = read_frame(data, encoding=encoding, delimiter=delimiter) if path else data
    frame = frame.reset_index(drop=True)
    frame.columns = [str(name) for name in frame.columns]
    if labels_columns is not None:
        sets = _of_columns(frame, column_names(labels_columns), where)
    else:
        assert label is not None
        sets = _of_cells(frame, label, where)
    column = sets.columns[0]
    ignored = [*column_names(ignore), *sets.columns[1:]] if ignore else list(sets.columns[1:])
    found = from_frame(
        frame.assign(**{column: sets.patterns}), where, label=column, text=text, task="classification", ignore=ignored,
        columns=columns, split=split,
    ).train  # fmt: skip
    source = found.source if labels_columns is None else replace(found.source, label=None)
    return replace(found, raw=frame.iloc[found.index], source=source, parts=sets)


def find_columns(frame: pd.DataFrame) -> tuple[str, ...]:
    """The columns that hold nothing but 0 and 1.

    >>> find_columns(pd.DataFrame({"a": ["1", "0"], "b": ["x", "0"], "c": [0, 1]}))
    ('a', 'c')
    """
    return tuple(
        str(name)
        for name in frame.columns
        if not is_nested(frame[name])
        and {str(cell).strip().lower() for cell in frame[name].unique() if not is_missing(cell)} == {"0", "1"}
    )


def label_sets(labels: Any) -> LabelSets | None:
    """Label sets from an array (N, L) of 0 and 1, or a list of lists of names; None if it is neither."""
    if isinstance(labels, (list, tuple)) and labels and all(isinstance(row, (list, tuple, set)) for row in labels):
        if not any(isinstance(item, str) for row in labels for item in row):
            labels = np.asarray(labels)
        else:
            return _of_sets([[str(item) for item in row] for row in labels])
    if getattr(labels, "ndim", 0) != 2:
        return None
    values = np.asarray(labels)
    if values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all():
        raise InputError(
            f"labels have shape {values.shape} and hold other values than 0 and 1; several labels a row are 1 where the row has the "
            "label and 0 where not, and one label a row has shape (N,)."
        )
    return LabelSets(tuple(f"label {j}" for j in range(values.shape[1])), values.astype(np.int64))


def _of_columns(frame: pd.DataFrame, names: Sequence[str], where: str) -> LabelSets:
    given = np.empty((len(frame), len(names)), np.int64)
    for j, name in enumerate(names):
        if name not in frame.columns:
            raise InputError(f'{where} has no column "{name}"; {nearest(name, [str(c) for c in frame.columns])}')
        for row, cell in enumerate(frame[name]):
            given[row, j] = _answer(cell, name, row, where)
    if len(set(names)) < max(2, len(names)):
        raise InputError(f"labels_columns is {', '.join(names)}; expected two columns or more, each of them once.")
    return LabelSets(tuple(names), given, "column", tuple(names))


def _answer(cell: Any, name: str, row: int, where: str) -> int:
    said = str(cell).strip().lower()
    if is_missing(cell):
        return UNLABELED
    if said in YES or said in NO:
        return int(said in YES)
    raise InputError(
        f'{where}, row {row}: the column "{name}" says "{str(cell)[:40]}"; a column of a label holds 0 or 1, or nothing where it is '
        "not known."
    )


def _of_cells(frame: pd.DataFrame, column: str, where: str) -> LabelSets:
    cells = list(frame[column])
    sign = _sign(cells, column, where)
    return replace(_of_sets([labels_in(cell, sign) for cell in cells]), columns=(column,))


def _sign(cells: Sequence[Any], column: str, where: str | Path) -> str:
    sign = joined_labels([cell for cell in cells if not _empty(cell)])
    if sign is None:
        raise InputError(f'the column "{column}" of {where} holds one label a row, and no joined labels.')
    odd = next(
        (k for k, cell in enumerate(cells) if sign == "list" and not (_empty(cell) or isinstance(cell, list))), None
    )
    if odd is not None:
        if any(isinstance(cell, list) for cell in cells):
            raise InputError(
                f'{where}, row {odd}: the column "{column}" says "{str(cells[odd])[:60]}"; expected a list of labels as in the other rows.'
            )
        held = (
            "lists written as text" if isinstance(cells[odd], str) else "lists, which are read from JSONL files alone"
        )
        raise InputError(
            f'the column "{column}" of {where} holds {held}, such as "{str(cells[odd])[:60]}"; join the labels by ";", or write the '
            "table as JSONL."
        )
    return sign


def labels_in(cell: Any, sign: str) -> list[str]:
    """The labels in a cell.

    >>> labels_in("a; b;a", ";"), labels_in(["x", 1], "list"), labels_in("", ";")
    (['a', 'b'], ['x', '1'], [])
    """
    if _empty(cell):
        return []
    parts = [str(part).strip() for part in (cell if isinstance(cell, list) else str(cell).split(sign))]
    return list(dict.fromkeys(part for part in parts if part))


def _empty(cell: Any) -> bool:
    return not isinstance(cell, list) and is_missing(cell)


def _of_sets(sets: Sequence[Iterable[str]]) -> LabelSets:
    names = sorted({name for labels in sets for name in labels})
    place = {name: j for j, name in enumerate(names)}
    if len(sets) * len(names) > MOST:
        raise InputError(
            f"{len(sets):,} rows have {len(names):,} different labels, {len(sets) * len(names):,} answers in all, more than {MOST:,}; "
            "check which column holds the labels."
        )
    given = np.zeros((len(sets), len(names)), np.int64)
    for row, labels in enumerate(sets):
        given[row, [place[name] for name in labels]] = 1
    return LabelSets(tuple(names), given)


# --- writing --------------------------------------------------------------------------------------------------


def apply_labels(
    data: Path,
    decided: Sequence[Correction],
    out: Path,
    form: str,
    label: str | None,
    encoding: str,
    delimiter: str | None,
) -> tuple[int, int]:
    """Writes the table with the decided labels switched; the number of rows, and of labels that changed."""
    from compensate.data.tables import choose_label, choose_text, read_frame

    frame = read_frame(data, encoding=encoding, delimiter=delimiter)
    frame.columns = [str(name) for name in frame.columns]
    for c in decided:
        if int(part_of(c.part)[1]) >= len(frame):
            raise InputError(f'a correction is about "{c.part[:60]}", and {data} has the rows 0 to {len(frame) - 1}.')
        if c.changes and c.label.strip() not in STATES:
            raise InputError(f'a correction of "{c.part[:60]}" says "{c.label[:40]}"; expected absent or present.')
    if form == "column":
        wanted = _columns_changed(frame, decided, data)
        _write_columns(data, frame, wanted, out, encoding, delimiter)
        return len(frame), sum(map(len, wanted.values()))
    column = choose_label(frame, label, str(data), choose_text(frame, None, str(data), label))
    cells = list(frame[column])
    sign = _sign(cells, column, data)
    wanted = {column: {}}
    changed = 0
    new: dict[int, Any] = {}
    for c in decided:
        _, at, name = part_of(c.part)
        row = int(at)
        check_given(data, c, STATES[name in labels_in(cells[row], sign)])
        if c.changes:
            changed += 1
            new[row] = _switched(new.get(row, cells[row]), sign, name, c.label.strip() == "present")
    if sign == "list":
        _write_lists(data, column, new, out, encoding)
    else:
        from compensate.auditing.write_back import open_labels

        open_labels(data, column, encoding, delimiter).write(out, new)
    return len(cells), changed


def _switched(cell: Any, sign: str, name: str, present: bool) -> Any:
    """The cell with a label added at its end, or taken out."""
    if isinstance(cell, list) or sign == "list":
        held = [] if _empty(cell) else list(cell)
        return [*held, name] if present else [item for item in held if str(item).strip() != name]
    text = "" if _empty(cell) else str(cell)
    if present:
        gap = " " if f"{sign} " in text else ""
        return f"{text.rstrip()}{sign}{gap}{name}" if text.strip() else name
    kept = [piece for piece in text.split(sign) if piece.strip() != name]
    return sign.join(kept).strip()


def _columns_changed(frame: pd.DataFrame, decided: Sequence[Correction], data: Path) -> dict[str, dict[int, str]]:
    """By column and row, how the new answer is written there."""
    wanted: dict[str, dict[int, str]] = {}
    for c in decided:
        _, at, name = part_of(c.part)
        row = int(at)
        if name not in frame.columns:
            raise InputError(f'a correction is about the column "{name[:60]}", which {data} has not.')
        answer = _answer(frame[name].iloc[row], name, row, str(data))
        check_given(data, c, "" if answer == UNLABELED else STATES[answer])
        if c.changes:
            new = STATES.index(c.label.strip())
            like = next((cell for cell in frame[name] if _answer(cell, name, row, str(data)) == new), new)
            wanted.setdefault(name, {})[row] = str(like).strip() if isinstance(like, str) else json.dumps(_plain(like))
    return wanted


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _write_columns(
    data: Path,
    frame: pd.DataFrame,
    wanted: Mapping[str, Mapping[int, str]],
    out: Path,
    encoding: str,
    delimiter: str | None,
) -> None:
    from compensate.auditing.write_back import Dialect, exact_text, find_cells
    from compensate.data.jsonl import objects
    from compensate.data.tables import LINES, TEXTS, table_format

    if table_format(data) not in (*TEXTS, *LINES):
        raise InputError(
            f"corrections of columns of 0 and 1 are written into CSV, TSV and JSONL files, and not into {data}."
        )
    mark, text = exact_text(data, encoding)
    edits: list[tuple[int, int, str]] = []
    if table_format(data) in LINES:
        rows = [{key: span for key, _, span in found} for found in objects(text, data)]
        for name, new in wanted.items():
            quoted = any(isinstance(cell, str) for cell in frame[name])
            edits += [(*rows[row][name], json.dumps(value) if quoted else value) for row, value in new.items()]
    else:
        dialect = Dialect.of(text, table_format(data), delimiter)
        for name, new in wanted.items():
            spans = find_cells(text, list(frame.columns).index(name), dialect)
            found = ["" if span is None else dialect.value(text[slice(*span)]) for span in spans]
            if found != list(frame[name]):
                raise InputError(f"the cells of {data} cannot be told apart safely: check its quotes and line ends.")
            for row, value in new.items():
                span = spans[row]
                assert span is not None  # a cell that is not there is unknown, and not decided on
                edits.append((*span, dialect.write(value, text[slice(*span)])))
    write_edits(out, mark, text, edits, encoding)


def _write_lists(data: Path, column: str, new: Mapping[int, list[Any]], out: Path, encoding: str) -> None:
    """A JSONL file with some lists changed; labels that stay are written as they were."""
    from compensate.auditing.write_back import exact_text
    from compensate.data.jsonl import objects
    from compensate.data.tables import LINES, table_format

    if table_format(data) not in LINES:
        raise InputError(f"corrections of lists are written into JSONL files, and not into {data}.")
    mark, text = exact_text(data, encoding)
    spans = [next((span for key, _, span in reversed(found) if key == column), None) for found in objects(text, data)]
    edits: list[tuple[int, int, str]] = []
    for row, labels in new.items():
        span = spans[row]
        if span is None:
            raise InputError(f'row {row} of {data} has no "{column}"; add an empty list there first.')
        old = text[slice(*span)]
        pieces = list_pieces(old) if old.startswith("[") else []
        written = {str(json.loads(piece)): piece for piece in (old[a:b] for a, b in pieces)}
        gap = old[pieces[0][1] : pieces[1][0]] if len(pieces) > 1 else ", "
        lead, trail = (old[1 : pieces[0][0]], old[pieces[-1][1] : -1]) if pieces else ("", "")
        inner = gap.join(written.get(str(item), json.dumps(item, ensure_ascii=text.isascii())) for item in labels)
        edits.append((*span, f"[{lead}{inner}{trail}]"))
    write_edits(out, mark, text, edits, encoding)


def list_pieces(text: str) -> list[tuple[int, int]]:
    """Where the items of a list stand in its JSON.

    >>> text = '["a", "b, c"]'
    >>> [text[a:b] for a, b in list_pieces(text)]
    ['"a"', '"b, c"']
    """
    decoder, at = json.JSONDecoder(), 1
    found: list[tuple[int, int]] = []
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at >= len(text) or text[at] == "]":
            return found
        _, end = decoder.raw_decode(text, at)
        found.append((at, end))
        at = end


def write_edits(out: Path, mark: bytes, text: str, edits: Iterable[tuple[int, int, str]], encoding: str) -> None:
    """Writes a text with some spans replaced, and not one byte beside them."""
    from compensate.auditing.write_back import write_compressed

    parts, last = [], 0
    for start, end, new in sorted(edits):
        parts += [text[last:start], new]
        last = end
    write_compressed(out, mark + "".join((*parts, text[last:])).encode(encoding))
