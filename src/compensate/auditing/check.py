"""New and changed rows, judged by the fitted model of an audit: nothing is trained, and rows that were audited are not judged again."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from compensate.auditing.decisions import Correction
from compensate.auditing.digests import digest_frame, digest_text
from compensate.auditing.issues.samples import without_spellings
from compensate.auditing.judge import Judge
from compensate.auditing.result import Audit
from compensate.auditing.write_back import Dialect, find_cells
from compensate.data.dataset import UNLABELED, Dataset, Floats, Ints, Source
from compensate.data.labels import has_no_label, is_missing, label_name, missing_labels
from compensate.errors import InputError, nearest
from compensate.files import decode, read_bytes

READER = ("encoding", "delimiter", "size", "labels_key", "label", "text")
"""Options of an audit by which its data is read again."""

_LINE_END = re.compile("\r\n|\r|\n")


@dataclass(frozen=True)
class Finding:
    """A label that looks wrong.

    Attributes:
        file: where it is.
        row: the 0-based row.
        line, column: of the label in the file, from 1 on; none where there are no lines.
        given, suggested: the label, and what it would be.
        p_error: the probability that it is wrong; 1 if there is no such class.
        why: whether the row is new, has another label than the audited row, or a label that is no class.
    """

    file: str
    row: int
    line: int | None
    column: int | None
    given: str
    suggested: str
    p_error: float
    why: Literal["new", "relabeled", "unknown class"]


@dataclass(frozen=True)
class Checked:
    """What became of the rows of a file.

    Attributes:
        file: its path.
        rows: all rows.
        known: those that were audited, with the labels that they have.
        new, relabeled: those that were judged.
        unlabeled: those without a label, which are not judged.
        findings: judged rows that look wrong, in their order.
    """

    file: str
    rows: int
    known: int
    new: int
    relabeled: int
    unlabeled: int
    findings: tuple[Finding, ...]

    @property
    def judged(self) -> int:
        """The rows that were judged."""
        return self.new + self.relabeled


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows to judge.

    Attributes:
        data: the samples; targets are classes of the audit, `UNLABELED` where there is no label or an unknown one.
        cells: (N,) the labels as written, empty where there is none.
        digests: (N,) of the rows; zero if there is none.
    """

    data: Dataset
    cells: list[str]
    digests: NDArray[np.uint64]


def score(
    audit: Audit, new: Any, labels: ArrayLike | None = None, options: Mapping[str, Any] | None = None
) -> pd.DataFrame:
    """See `Audit.score`."""
    scorer = scorer_of(audit)
    found = _rows(audit, new, labels, dict(options or {}))
    log_q = scorer.predict(found.data)
    p, odds, suggested = _judged(scorer, log_q, found)
    return pd.DataFrame(
        {
            "index": found.data.index,
            "given": found.cells,
            "suggested": audit.names(suggested),
            "score": odds,
            "p_error": p,
            "flagged": np.nan_to_num(p) >= audit.threshold,
        }
    )


def check(
    audit: Audit,
    path: str | Path,
    *,
    at_least: float | None = None,
    decisions: Iterable[Correction] = (),
    features: str | Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    **options: Any,
) -> Checked:
    """Judges the rows of a file that are new or have another label than the audited ones.

    Args:
        audit: of an earlier state of the file.
        path: a file or folder of the kind that was audited.
        at_least: the probability from which on a label is a finding; by default that from which on labels are flagged.
        decisions: about labels of the audited data; a row that has the decided label is known.
        features: embeddings of the rows, for an audit that was given embeddings.
        progress: told about the encoding.
        options: of the reader; by default those of the audit.

    A row with another label than before is judged by what models that did not learn from it said in the audit.
    """
    scorer = scorer_of(audit)
    found = _rows(audit, Path(path), None, options, features)
    places = _audited_places(audit, found, decisions)
    fresh = np.flatnonzero(places == _NEW)
    moved = np.flatnonzero(places >= 0)
    log_q = np.full((len(found.data), len(audit.classes)), -np.log(len(audit.classes)))
    if len(fresh):
        log_q[fresh] = scorer.predict(found.data.subset(fresh), progress=progress)
    if len(moved):
        assert audit.probabilities is not None
        log_q[moved] = np.log(np.maximum(audit.probabilities[places[moved]].astype(np.float64), 1e-12))
    p, _, suggested = _judged(scorer, log_q, found)
    p[(places == _KNOWN) | (places == _NO_LABEL)] = np.nan
    wrong = np.flatnonzero(np.nan_to_num(p, nan=-1.0) >= (audit.threshold if at_least is None else at_least))
    where = _where(Path(path), audit, found, wrong, options) if len(wrong) else {}
    names = audit.names(suggested)
    findings = tuple(
        Finding(
            *where[row], found.cells[row], names[row], float(p[row]),
            "unknown class" if found.data.target[row] == UNLABELED else "new" if places[row] == _NEW else "relabeled",
        )
        for row in wrong.tolist()
    )  # fmt: skip
    lost = int((places == _NO_LABEL).sum())
    known = int((places == _KNOWN).sum())
    return Checked(str(path), len(found.data), known, len(fresh), len(moved), lost, findings)


def scorer_of(audit: Audit) -> Judge:
    """The fitted model of an audit, or what to do if there is none."""
    if audit.scorer is not None:
        return audit.scorer
    if audit.regression:
        raise InputError(
            "this audit is of quantities; only labels that are classes can be judged later. Audit the new data."
        )
    if audit.parts:
        raise InputError(
            "this audit is of several labels a sample (label sets, tags or masks), for which no fitted model is kept; only one "
            "class a row can be judged later. Audit the new data."
        )
    why = "with a network (--model or --finetune) or from probabilities (--probs)"
    raise InputError(
        f"this audit holds no fitted model: it was made {why}, or its files are gone. Audit again without them."
    )


_NEW, _KNOWN, _NO_LABEL = -1, -2, -3


def _audited_places(audit: Audit, found: _Rows, decisions: Iterable[Correction]) -> Ints:
    """(N,) the audited row whose content each row has with another label; or that it is new, known, or without a label."""
    audited: dict[int, list[int]] = {}
    if audit.row_digests is not None:
        for place, digest in enumerate(audit.row_digests.tolist()):
            if digest:
                audited.setdefault(digest, []).append(place)
    given = audit.names(audit.given)
    decided = {(c.row, c.label) for c in decisions if c.row and c.changes}
    places = np.full(len(found.data), _NEW)
    for row, (digest, cell) in enumerate(zip(found.digests.tolist(), found.cells, strict=True)):
        if not cell:
            places[row] = _NO_LABEL
        elif digest in audited:
            name = cell.strip()
            same = any(given[place].strip() == name for place in audited[digest])
            places[row] = _KNOWN if same or (digest_text(digest), name) in decided else audited[digest][0]
    return places if audit.probabilities is not None else np.where(places >= 0, _NEW, places)


def _judged(scorer: Judge, log_q: Floats, found: _Rows) -> tuple[Floats, Floats, Ints]:
    """(N,) each: probability and log odds of an error (not a number without a label), and what the label would be."""
    target = found.data.target
    likeliest = log_q.argmax(1)
    labels = np.where(target == UNLABELED, likeliest, target)
    p, odds, suggested = scorer.score(without_spellings(log_q, labels, found.data.classes), labels)
    lost = target == UNLABELED
    unknown = lost & np.array([bool(cell) for cell in found.cells], bool)
    p, odds = np.where(lost, np.nan, p), np.where(lost, np.nan, odds)
    p[unknown], odds[unknown] = 1.0, np.inf
    return p, odds, np.where(lost, likeliest, suggested)


# --- reading --------------------------------------------------------------------------------------------------


def _rows(audit: Audit, new: Any, labels: Any, options: dict[str, Any], features: str | Path | None = None) -> _Rows:
    from compensate.data.tables import is_table, read_frame

    chosen = (audit.provenance.asked or {}).get("options")
    kept = {name: chosen[name] for name in READER if name in chosen} if isinstance(chosen, dict) else {}
    options = {**kept, **audit.reading, **options}
    if isinstance(new, (str, Path)):
        path = Path(new).expanduser()
        if not path.exists():
            raise InputError(f"there is no file or folder {path}; check the path.")
        if path.is_file() and is_table(path):
            new = read_frame(path, **{k: v for k, v in options.items() if k in ("encoding", "delimiter")})
            return _of_frame(audit, new, str(path), labels, features)
    if isinstance(new, pd.DataFrame):
        return _of_frame(audit, new, "the data frame", labels, features)
    from compensate.auditing.source import read

    data = read(new, labels, features, {k: v for k, v in options.items() if k not in ("encoding", "delimiter")})
    if isinstance(data.raw, pd.DataFrame) and data.source.kind in ("text", "table"):
        return _of_frame(audit, data.raw, str(new), labels, features)  # several files, or a saved data set
    if data.regression:
        raise InputError("the labels are quantities, and the audit was made of classes. Check the labels.")
    cells = [data.classes[c] if c != UNLABELED else "" for c in data.target.tolist()]
    digests = np.zeros(len(data), np.uint64) if data.source.row_digests is None else data.source.row_digests[data.index]
    return _Rows(_with_classes(data, cells, audit), cells, digests)


def _of_frame(audit: Audit, frame: pd.DataFrame, where: str, labels: Any, features: str | Path | None) -> _Rows:
    """The rows of a table, with the columns that the audit chose."""
    frame = frame.reset_index(drop=True)
    frame.columns = pd.Index([str(name) for name in frame.columns])
    label, text = audit.source.label, audit.source.text
    if labels is None and label not in frame.columns:
        names = [str(c) for c in frame.columns]
        raise InputError(
            f'{where} has no column "{label}", which holds the labels of the audit; {nearest(str(label), names)}'
        )
    if text and text not in frame.columns:
        raise InputError(f'{where} has no column "{text}", which holds the texts of the audit.')
    values = list(frame[label]) if labels is None else list(np.asarray(labels))
    lost = missing_labels(values, audit.source.missing_given, audit.classes)
    merged = audit.source.merged
    cells = ["" if has_no_label(value, lost) else label_name(value) for value in values]
    cells = [merged.get(cell, cell) for cell in cells]
    if len(cells) != len(frame):
        raise InputError(f"there are {len(frame)} rows and {len(cells)} labels; expected one each.")
    texts = ["" if is_missing(v) else str(v) for v in frame[text]] if text else [""] * len(frame)
    data = Dataset(
        np.array(texts, dtype=object), np.full(len(frame), UNLABELED), audit.classes, raw=frame, rows=len(frame),
        source=Source(kind="text" if text else "table", label=label, text=text),
    )  # fmt: skip
    if features is not None:
        from compensate.auditing.source import with_features

        data = with_features(data, features)
    return _Rows(_with_classes(data, cells, audit), cells, digest_frame(frame, str(label)))


def _with_classes(data: Dataset, cells: Sequence[str], audit: Audit) -> Dataset:
    """The data with class numbers of the audit; a label that is none of its classes has no number."""
    numbers = {name.strip(): number for number, name in enumerate(audit.classes)}
    target = np.array([numbers.get(cell.strip(), UNLABELED) if cell else UNLABELED for cell in cells], np.int64)
    return replace(data, target=target, classes=audit.classes)


# --- where --------------------------------------------------------------------------------------------------------


def _where(
    path: Path, audit: Audit, found: _Rows, rows: Ints, options: Mapping[str, Any]
) -> dict[int, tuple[str, int, int | None, int | None]]:
    """File, row, line and column of some rows' labels."""
    from compensate.data.tables import LINES, is_table, table_format

    index = found.data.index
    if path.is_dir() and found.data.ids is not None:
        folder = Path(found.data.source.folder or path)
        return {row: (str(folder / str(found.data.ids[row])), int(index[row]), None, None) for row in rows.tolist()}
    if table_format(path) in LINES and path.is_file():
        content = read_bytes(path, lines=True).splitlines()
        lines = [number for number, line in enumerate(content, 1) if line.strip()]
        if len(lines) == len(found.data):
            return {row: (str(path), int(index[row]), lines[row], None) for row in rows.tolist()}
    if not is_table(path) or table_format(path) not in (".csv", ".tsv"):
        return {row: (str(path), int(index[row]), None, None) for row in rows.tolist()}
    kept = audit.reading
    encoding = options.get("encoding") or kept.get("encoding") or "utf-8"
    delimiter = options.get("delimiter") or kept.get("delimiter")
    text = decode(read_bytes(path, lines=True), path, str(encoding))
    places = label_places(text, table_format(path), list(found.data.raw.columns).index(audit.source.label), delimiter)
    if len(places) != len(found.data):  # the reader saw other rows: better no line than a wrong one
        return {row: (str(path), int(index[row]), None, None) for row in rows.tolist()}
    return {row: (str(path), int(index[row]), *places[row]) for row in rows.tolist()}


def label_places(text: str, suffix: str, column: int, delimiter: str | None = None) -> list[tuple[int, int]]:
    r"""Line and column, from 1 on, at which the label of each row stands, whatever line ends are in quotes before it.

    >>> label_places('text,label\n"two\nlines",cat\none,dog\n', ".csv", 1)
    [(3, 8), (4, 5)]
    """
    dialect = Dialect.of(text, suffix, delimiter)
    spans = find_cells(text, column, dialect)
    if any(span is None for span in spans):  # rows that end early are named by their first cell
        first = find_cells(text, 0, dialect)
        spans = [one if span is None else span for span, one in zip(spans, first, strict=True)]
    starts = [0, *(match.end() for match in _LINE_END.finditer(text))]
    lines = [bisect_right(starts, span[0]) for span in spans if span is not None]
    return [(line, span[0] - starts[line - 1] + 1) for line, span in zip(lines, filter(None, spans), strict=True)]
