"""Checks of new and changed rows by the fitted model of an audit, and their reports for people, programs, GitHub and SARIF readers.

Nothing is trained, and rows that were audited are not judged again.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from compensate._version import __version__
from compensate.auditing.class_names import without_spellings
from compensate.auditing.decisions import Correction
from compensate.auditing.digests import digest_frame, digest_text
from compensate.auditing.source import read, with_features
from compensate.auditing.write_back import Dialect, find_cells
from compensate.data.dataset import UNLABELED, Dataset, Floats, Ints, Source
from compensate.data.labels import has_no_label, is_missing, label_name, missing_labels
from compensate.data.tables import LINES, is_table, read_frame, table_format
from compensate.errors import InputError, nearest
from compensate.files import decode, read_bytes

if TYPE_CHECKING:
    from compensate.auditing.judge import Judge
    from compensate.auditing.result import Audit

READER = ("encoding", "delimiter", "size", "labels_key", "label", "text")
"""Options of an audit with which its data are read again."""

MAX_LABEL = 60  # characters of a label in a message
RULES = {
    "wrong-label": "A label that the fitted model of an audit contradicts.",
    "unknown-class": "A label that is none of the classes of the audited data.",
}
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

_NEW, _KNOWN, _NO_LABEL = -1, -2, -3
_LINE_END = re.compile("\r\n|\r|\n")


@dataclass(frozen=True)
class Finding:
    """A label that looks wrong.

    Attributes:
        file: its file.
        row: the 0-based row.
        line, column: of the label in the file, from 1 on; None for files without lines.
        given, suggested: the label, and the suggested one.
        p_error: the probability that it is wrong; 1 for an unknown class.
        why: whether the row is new, was relabeled, or has a label that is not a class.
    """

    file: str
    row: int
    line: int | None
    column: int | None
    given: str
    suggested: str
    p_error: float
    why: Literal["new", "relabeled", "unknown class"]

    @property
    def rule(self) -> str:
        """The name of the violated rule in `RULES`."""
        return "unknown-class" if self.why == "unknown class" else "wrong-label"

    @property
    def message(self) -> str:
        """A description in one line."""
        given, suggested = (
            _printable(label if len(label) <= MAX_LABEL else label[: MAX_LABEL - 1] + "…")
            for label in (self.given, self.suggested)
        )
        if self.why == "unknown class":
            return f'"{given}" is no class of the audited data, "{suggested}" is likeliest (row {self.row})'
        p = "> 0.99" if 0.995 < self.p_error < 1 else f"= {self.p_error:.2f}"  # never rounded up to a certainty
        kind = "new row" if self.why == "new" else "another label than audited, row"
        return f'"{given}" looks wrong, "{suggested}" is likelier (p {p}, {kind} {self.row})'


@dataclass(frozen=True)
class Checked:
    """The result of a check of a file.

    Attributes:
        file: its path.
        rows: all rows.
        known: audited rows with unchanged labels.
        new, relabeled: rows that were judged.
        unlabeled: rows without a label, which are not judged.
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
        """The number of judged rows."""
        return self.new + self.relabeled

    @property
    def message(self) -> str:
        """A summary in one line."""
        n = len(self.findings)
        wrong = "1 looks wrong" if n == 1 else f"{n:,} look wrong"
        unlabeled = f", {self.unlabeled:,} without a label" if self.unlabeled else ""
        return (
            f"{_printable(self.file)}: {self.rows:,} rows, {self.known:,} known{unlabeled}; {self.new:,} new and "
            f"{self.relabeled:,} relabeled were judged: {wrong}"
        )


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows to judge.

    Attributes:
        data: the samples; targets are classes of the audit, `UNLABELED` without a label or with an unknown one.
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
    p, odds, suggested = _judged(scorer, scorer.predict(found.data), found)
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
        audit: of an earlier version of the file.
        path: a file or folder of the kind that was audited.
        at_least: the smallest probability of error of a finding; by default the threshold of the audit.
        decisions: about labels of the audited data; a row with the decided label is known.
        features: embeddings of the rows, for an audit that was given embeddings.
        progress: is called with the progress of the encoding.
        options: of the reader; by default as for the audit.

    A relabeled row is judged by the out-of-fold predictions of the audit.
    """
    scorer = scorer_of(audit)
    found = _rows(audit, Path(path), None, options, features)
    places = _audited_places(audit, found, decisions)
    new, relabeled = np.flatnonzero(places == _NEW), np.flatnonzero(places >= 0)
    log_q = np.full((len(found.data), len(audit.classes)), -np.log(len(audit.classes)))
    if len(new):
        log_q[new] = scorer.predict(found.data.subset(new), progress=progress)
    if len(relabeled):
        assert audit.probabilities is not None
        log_q[relabeled] = np.log(np.maximum(audit.probabilities[places[relabeled]].astype(np.float64), 1e-12))
    p, _, suggested = _judged(scorer, log_q, found)
    p[(places == _KNOWN) | (places == _NO_LABEL)] = np.nan
    wrong = np.flatnonzero(np.nan_to_num(p, nan=-1.0) >= (audit.threshold if at_least is None else at_least))
    where = _positions(Path(path), audit, found, wrong, options) if len(wrong) else {}
    names = audit.names(suggested)
    findings = tuple(
        Finding(
            *where[row], found.cells[row], names[row], float(p[row]),
            "unknown class" if found.data.target[row] == UNLABELED else "new" if places[row] == _NEW else "relabeled",
        )
        for row in wrong.tolist()
    )  # fmt: skip
    known, unlabeled = (int((places == state).sum()) for state in (_KNOWN, _NO_LABEL))
    return Checked(str(path), len(found.data), known, len(new), len(relabeled), unlabeled, findings)


def scorer_of(audit: Audit) -> Judge:
    """The fitted model of an audit, or an error with the remedy."""
    if audit.scorer is not None:
        return audit.scorer
    if audit.regression:
        raise InputError(
            "this audit is of quantities; only labels that are classes can be judged later. Audit the new data."
        )
    if audit.addresses:
        raise InputError(
            "this audit is of several labels a sample (label sets, tags or masks), for which no fitted model is kept; only one "
            "class a row can be judged later. Audit the new data."
        )
    why = "with a network (--model or --finetune) or from probabilities (--probs)"
    raise InputError(
        f"this audit holds no fitted model: it was made {why}, or its files are gone. Audit again without them."
    )


def _audited_places(audit: Audit, found: _Rows, decisions: Iterable[Correction]) -> Ints:
    """(N,) the position of the audited row with equal content and another label; or `_NEW`, `_KNOWN`, `_NO_LABEL`."""
    audited: dict[int, list[int]] = {}
    for place, digest in enumerate(() if audit.row_digests is None else audit.row_digests.tolist()):
        if digest:
            audited.setdefault(digest, []).append(place)
    given = [name.strip() for name in audit.names(audit.given)]
    decided = {(c.row, c.label) for c in decisions if c.row and c.changes}
    places = np.full(len(found.data), _NEW)
    for row, (digest, cell) in enumerate(zip(found.digests.tolist(), found.cells, strict=True)):
        if not cell:
            places[row] = _NO_LABEL
        elif digest in audited:
            name = cell.strip()
            known = (digest_text(digest), name) in decided or any(given[place] == name for place in audited[digest])
            places[row] = _KNOWN if known else audited[digest][0] if audit.probabilities is not None else _NEW
    return places


def _judged(scorer: Judge, log_q: Floats, found: _Rows) -> tuple[Floats, Floats, Ints]:
    """(N,) each: probability and log odds of an error (NaN without a label), and the suggested label."""
    target = found.data.target
    likeliest = log_q.argmax(1)
    missing = target == UNLABELED
    labels = np.where(missing, likeliest, target)
    p, odds, suggested = scorer.score(without_spellings(log_q, labels, found.data.classes), labels)
    p, odds = np.where(missing, np.nan, p), np.where(missing, np.nan, odds)
    unknown = missing & np.array([bool(cell) for cell in found.cells], bool)
    p[unknown], odds[unknown] = 1.0, np.inf
    return p, odds, np.where(missing, likeliest, suggested)


# --- reading --------------------------------------------------------------------------------------------------


def _rows(audit: Audit, new: Any, labels: Any, options: dict[str, Any], features: str | Path | None = None) -> _Rows:
    chosen = (audit.provenance.asked or {}).get("options")
    kept = {name: chosen[name] for name in READER if name in chosen} if isinstance(chosen, dict) else {}
    options = {**kept, **audit.reading, **options}
    reading = {name: options.pop(name) for name in ("encoding", "delimiter") if name in options}
    where = str(new)
    if isinstance(new, (str, Path)):
        path = Path(new).expanduser()
        if not path.exists():
            raise InputError(f"there is no file or folder {path}; check the path.")
        if path.is_file() and is_table(path):
            new, where = read_frame(path, **reading), str(path)
    elif isinstance(new, pd.DataFrame):
        where = "the data frame"
    if not isinstance(new, pd.DataFrame):
        data = read(new, labels, features, options)
        if not (isinstance(data.raw, pd.DataFrame) and data.source.kind in ("text", "table")):
            if data.regression:
                raise InputError("the labels are quantities, and the audit was made of classes. Check the labels.")
            cells = [data.classes[c] if c != UNLABELED else "" for c in data.target.tolist()]
            digests = data.source.row_digests
            digests = np.zeros(len(data), np.uint64) if digests is None else digests[data.index]
            return _Rows(_with_classes(data, cells, audit), cells, digests)
        new = data.raw  # several files, or a saved data set
    return _frame_rows(audit, new, where, labels, features)


def _frame_rows(audit: Audit, frame: pd.DataFrame, where: str, labels: Any, features: str | Path | None) -> _Rows:
    """The rows of a table, with the columns that the audit chose."""
    frame = frame.reset_index(drop=True)
    frame.columns = pd.Index([str(name) for name in frame.columns])
    label, text = audit.source.label, audit.source.text
    if labels is None and label not in frame.columns:
        known = nearest(str(label), [str(c) for c in frame.columns])
        raise InputError(f'{where} has no column "{label}", which holds the labels of the audit; {known}')
    if text and text not in frame.columns:
        raise InputError(f'{where} has no column "{text}", which holds the texts of the audit.')
    values = list(frame[label]) if labels is None else list(np.asarray(labels))
    missing = missing_labels(values, audit.source.missing_given, audit.classes)
    names = ["" if has_no_label(value, missing) else label_name(value) for value in values]
    cells = [audit.source.merged.get(name, name) for name in names]
    if len(cells) != len(frame):
        raise InputError(f"there are {len(frame)} rows and {len(cells)} labels; expected one each.")
    texts = ["" if is_missing(v) else str(v) for v in frame[text]] if text else [""] * len(frame)
    data = Dataset(
        np.array(texts, dtype=object), np.full(len(frame), UNLABELED), audit.classes, raw=frame, rows=len(frame),
        source=Source(kind="text" if text else "table", label=label, text=text),
    )  # fmt: skip
    data = data if features is None else with_features(data, features)
    return _Rows(_with_classes(data, cells, audit), cells, digest_frame(frame, str(label)))


def _with_classes(data: Dataset, cells: Sequence[str], audit: Audit) -> Dataset:
    """The data with class numbers of the audit, `UNLABELED` for unknown labels."""
    numbers = {name.strip(): number for number, name in enumerate(audit.classes)}
    target = np.array([numbers.get(cell.strip(), UNLABELED) if cell else UNLABELED for cell in cells], np.int64)
    return replace(data, target=target, classes=audit.classes)


# --- positions of labels in files -----------------------------------------------------------------------------


def _positions(
    path: Path, audit: Audit, found: _Rows, rows: Ints, options: Mapping[str, Any]
) -> dict[int, tuple[str, int, int | None, int | None]]:
    """File, row, line and column of some labels; no line if the reader saw other rows than the search for lines."""
    data, kind = found.data, table_format(path)
    names = [str(path)] * len(data)
    lines: Sequence[tuple[int, int | None]] = ()
    if path.is_dir() and data.ids is not None:
        names = [str(Path(data.source.folder or path) / str(name)) for name in data.ids]
    elif kind in LINES and path.is_file():
        content = read_bytes(path, lines=True).splitlines()
        lines = [(number, None) for number, line in enumerate(content, 1) if line.strip()]
    elif is_table(path) and kind in (".csv", ".tsv"):
        reading = {**audit.reading, **{name: value for name, value in options.items() if value}}
        text = decode(read_bytes(path, lines=True), path, str(reading.get("encoding", "utf-8")))
        column = list(data.raw.columns).index(audit.source.label)
        lines = label_places(text, kind, column, reading.get("delimiter"))
    places = lines if len(lines) == len(data) else [(None, None)] * len(data)
    return {row: (names[row], int(data.index[row]), *places[row]) for row in rows.tolist()}


def label_places(text: str, suffix: str, column: int, delimiter: str | None = None) -> list[tuple[int, int]]:
    r"""Line and column, from 1 on, of the label of each row; a row that ends early has the position of its first cell.

    >>> label_places('text,label\n"two\nlines",cat\none,dog\n', ".csv", 1)
    [(3, 8), (4, 5)]
    """
    dialect = Dialect.of(text, suffix, delimiter)
    first = find_cells(text, 0, dialect)
    spans = [span or own for span, own in zip(find_cells(text, column, dialect), first, strict=True)]
    starts = [0, *(match.end() for match in _LINE_END.finditer(text))]
    lines = [(bisect_right(starts, span[0]), span[0]) for span in spans if span is not None]
    return [(line, at - starts[line - 1] + 1) for line, at in lines]


# --- reports --------------------------------------------------------------------------------------------------


def as_text(results: Sequence[Checked]) -> str:
    """A line for each finding, as compilers write them, and one for each file.

    >>> finding = Finding("a.csv", 4, 6, 9, "cat", "dog", 0.97, "new")
    >>> print(as_text([Checked("a.csv", 100, 90, 10, 0, 0, (finding,))]))
    a.csv:6:9: "cat" looks wrong, "dog" is likelier (p = 0.97, new row 4)
    a.csv: 100 rows, 90 known; 10 new and 0 relabeled were judged: 1 looks wrong
    """
    lines = []
    for finding in _findings(results):
        place = [str(part) for part in (finding.file, finding.line, finding.column) if part is not None]
        lines.append(f"{_printable(':'.join(place))}: {finding.message}")
    return "\n".join([*lines, *(result.message for result in results)])


def as_json(results: Sequence[Checked]) -> str:
    """All results, as JSON."""
    return json.dumps([asdict(result) for result in results], indent=1, ensure_ascii=True)


def as_github(results: Sequence[Checked]) -> str:
    """Workflow commands, which GitHub shows next to the lines of a change.

    >>> finding = Finding("a,b.csv", 4, 6, 9, "cat", "dog", 0.97, "new")
    >>> print(as_github([Checked("a,b.csv", 100, 90, 10, 0, 0, (finding,))]).splitlines()[0])
    ::warning file=a%2Cb.csv,line=6,col=9,title=wrong-label::"cat" looks wrong, "dog" is likelier (p = 0.97, new row 4)
    """

    def escaped(text: str) -> str:
        return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    lines = []
    for finding in _findings(results):
        file = Path(finding.file).as_posix()
        place = {"file": file, "line": finding.line, "col": finding.column, "title": finding.rule}
        values = {name: escaped(_printable(str(v))) for name, v in place.items() if v is not None}
        properties = [f"{name}={value.replace(':', '%3A').replace(',', '%2C')}" for name, value in values.items()]
        lines.append(f"::warning {','.join(properties)}::{escaped(finding.message)}")
    return "\n".join([*lines, *(escaped(result.message) for result in results)])


def as_sarif(results: Sequence[Checked]) -> str:
    """SARIF 2.1.0, which code scanning and editors read."""
    found = []
    for finding in _findings(results):
        path = Path(finding.file)
        uri = path.as_uri() if path.is_absolute() else quote(path.as_posix(), errors="replace")
        place: dict[str, Any] = {"artifactLocation": {"uri": uri}}
        if finding.line is not None:
            place["region"] = {"startLine": finding.line, "startColumn": finding.column}
        properties = {name: getattr(finding, name) for name in ("row", "given", "suggested", "p_error")}
        found.append(
            {
                "ruleId": finding.rule,
                "level": "warning",
                "message": {"text": finding.message},
                "locations": [{"physicalLocation": place}],
                "properties": properties,
            }
        )
    rules = [{"id": rule, "shortDescription": {"text": text}} for rule, text in RULES.items()]
    driver = {"name": "compensate", "version": __version__, "rules": rules}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": found}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1, ensure_ascii=True)


FORMATS = {"text": as_text, "json": as_json, "github": as_github, "sarif": as_sarif}


def _findings(results: Sequence[Checked]) -> list[Finding]:
    return [finding for result in results for finding in result.findings]


def _printable(text: str) -> str:
    """The text on one line, without signs that a terminal obeys."""
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in text)
