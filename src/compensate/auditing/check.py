"""Checks of new and changed rows by the fitted model of an audit, and their reports for people, programs, GitHub and SARIF readers.

Nothing is trained, and rows that were audited are not judged again.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import numpy as np
import pandas as pd

from compensate._version import __version__
from compensate.auditing.content import digest_frame
from compensate.auditing.decisions import Correction
from compensate.auditing.labels import labels_of
from compensate.auditing.labels.base import NewRows
from compensate.auditing.labels.votes import wide_votes
from compensate.auditing.source import read, with_features
from compensate.auditing.write_back import Dialect, find_cells
from compensate.data.columns import row_texts, text_columns
from compensate.data.dataset import UNLABELED, Dataset, Ints, Source
from compensate.data.labels import has_no_label, label_name, missing_labels
from compensate.data.tables import LINES, is_table, read_frame, table_format
from compensate.errors import InputError, nearest
from compensate.files import decode, read_bytes

if TYPE_CHECKING:
    from compensate.auditing.judge import Judge
    from compensate.auditing.result import Audit

READER_OPTIONS = ("encoding", "delimiter", "size", "labels_key", "label", "text", "labels_columns")
"""Options of an audit that apply to new data too."""

MAX_LABEL = 60  # characters of a label in a message
RULES = {
    "wrong-label": "A label that the fitted model of an audit contradicts.",
    "unknown-class": "A label that is not a class of the audited data.",
}
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

_NEW, _KNOWN, _NO_LABEL = -1, -2, -3
_LINE_END = re.compile("\r\n|\r|\n")


@dataclass(frozen=True)
class Finding:
    """A label that looks wrong."""

    file: str
    row: int  # counted from 0
    line: int | None  # of the label in the file, counted from 1; None for files without lines
    column: int | None
    given: str
    suggested: str
    p_error: float  # the probability that it is wrong; 1 for an unknown class
    why: Literal["new", "relabeled", "unknown class"]
    part: str = ""  # the label of a row that has several, or the words of a tag

    @property
    def rule(self) -> str:
        """The name of the violated rule in `RULES`."""
        return "unknown-class" if self.why == "unknown class" else "wrong-label"

    @property
    def message(self) -> str:
        """A description in one line."""
        texts = (self.given, self.suggested, self.part)
        given, suggested, part = (_printable(n if len(n) <= MAX_LABEL else n[: MAX_LABEL - 1] + "…") for n in texts)
        given = f'{given}" of "{part}' if part else given
        if self.why == "unknown class":
            return f'"{given}" is not a class of the audited data, "{suggested}" is likeliest (row {self.row})'
        p = "> 0.99" if 0.995 < self.p_error < 1 else f"{self.p_error:.2f}"  # rounding must not claim certainty
        kind = "new row" if self.why == "new" else "another label than audited, row"
        return f'"{given}" looks wrong, "{suggested}" is likelier (probability of error {p}, {kind} {self.row})'


@dataclass(frozen=True)
class Checked:
    """The result of a check of a file: numbers of rows, and the judged ones that look wrong."""

    file: str
    rows: int
    known: int  # audited rows with unchanged labels
    new: int
    relabeled: int
    unlabeled: int  # rows without a label, which are not judged
    findings: tuple[Finding, ...]

    @property
    def message(self) -> str:
        """A summary in one line."""
        n = len(self.findings)
        wrong = "1 label looks wrong" if n == 1 else f"{n:,} labels look wrong"
        unlabeled = f", {self.unlabeled:,} without a label" if self.unlabeled else ""
        return (
            f"{_printable(self.file)}: {self.rows:,} rows, {self.known:,} of them as audited{unlabeled}; judged {self.new:,} new and "
            f"{self.relabeled:,} relabeled rows: {wrong}"
        )


def score(audit: Audit, new: Any, labels: Any = None, **options: Any) -> pd.DataFrame:
    """Scores the labels of new rows with the fitted model of this audit; nothing is trained.

    Args:
        new: data as `audit` takes it, of the kind that was audited: a data frame or file with the same columns, texts, features or images.
        labels: (N,) class names or numbers, if the new data does not hold them.
        options: of the reader, as for `audit`.

    Returns:
        In the order of the rows: index, part (where rows have several labels), given, suggested, score, p_error, flagged. Rows without
        a label have a suggestion but no probability; a label outside the classes has the probability 1.
    """
    rows = _rows(audit, new, labels, options)
    scored = labels_of(rows.data).score(rows, audit, scorer_of(audit))
    columns = {"rows": "index", "parts": "part", "log_odds": "score"}
    found = pd.DataFrame(scored._asdict() | {"rows": rows.data.index[scored.rows]}).rename(columns=columns)
    found["flagged"] = np.nan_to_num(scored.p_error) >= audit.threshold
    return found if any(scored.parts) else found.drop(columns="part")


def check(
    audit: Audit,
    path: str | Path,
    *,
    at_least: float | None = None,
    decisions: Iterable[Correction] = (),
    features: str | Path | None = None,
    **options: Any,
) -> Checked:
    """Judges the rows of a file that are new or have another label than the audited ones.

    Args:
        audit: of an earlier version of the file.
        path: a file or folder of the kind that was audited.
        at_least: the smallest probability of error of a finding; by default the threshold of the audit.
        decisions: about labels of the audited data; a row with the decided label is known.
        features: embeddings of the rows, for an audit that was given embeddings.
        options: of the reader; by default as for the audit.

    A relabeled row with one class is judged by the out-of-fold predictions of the audit.
    """
    scorer, kind = scorer_of(audit), audit.label_kind
    rows = _rows(audit, Path(path), None, options, features)
    data, digests = rows.data, rows.digests.tolist()
    of_label = [] if audit.row_digests is None else audit.row_digests.tolist()
    audited = {digest: place for place, digest in reversed([*enumerate(of_label)]) if digest}
    names = [str(address.part or "") for address in audit.addresses] or [""] * len(audit)
    known = {*zip(of_label, names, (name.strip() for name in audit.written(audit.given)), strict=False)}
    for c in (c for c in decisions if c.row and c.changes):
        part = kind.parse(c.part).part if kind.form else ""
        known.add((int(c.row.rpartition(":")[2], 16), str(part or ""), c.label))
    places = np.array([audited.get(digest, _NEW) for digest in digests], np.int64)
    scored = labels_of(data).score(rows._replace(places=places), audit, scorer)
    # By row: new, known, without a label, or the audited row with equal content and other labels.
    states, wrong = np.full(len(data), _NO_LABEL), []
    for i, (row, part, given) in enumerate(zip(scored.rows.tolist(), scored.parts, scored.given, strict=True)):
        if given:
            place = int(places[row])
            same = place >= 0 and (kind.digests_labels or (digests[row], part, given.strip()) in known)
            states[row] = max(states[row], _KNOWN if same else place)
            if not same and scored.p_error[i] >= (audit.threshold if at_least is None else at_least):
                wrong.append((i, row))
    where = _positions(Path(path), audit, data, np.array([row for _, row in wrong]), options) if wrong else {}
    findings = tuple(
        Finding(
            *where[row], scored.given[i], scored.suggested[i], float(scored.p_error[i]),
            "unknown class" if np.isposinf(scored.log_odds[i]) else "new" if states[row] == _NEW else "relabeled", str(scored.parts[i]),
        )
        for i, row in wrong
    )  # fmt: skip
    old, unlabeled, new = (int((states == state).sum()) for state in (_KNOWN, _NO_LABEL, _NEW))
    return Checked(str(path), len(data), old, new, int((states >= 0).sum()), unlabeled, findings)


def scorer_of(audit: Audit) -> Judge:
    """The fitted model of an audit, or an error with the remedy."""
    if audit.scorer is not None:
        return audit.scorer
    why = "with a network (--model or --finetune), from probabilities (--probs) or of masks"
    raise InputError(f"this audit holds no fitted model: it was made {why}, or its files are gone. Audit the new data.")


def _rows(audit: Audit, new: Any, labels: Any, options: dict[str, Any], features: str | Path | None = None) -> NewRows:
    """New samples with the classes of the audit."""
    chosen = (audit.provenance.asked or {}).get("options")
    kept = {name: chosen[name] for name in READER_OPTIONS if name in chosen} if isinstance(chosen, dict) else {}
    options = {**kept, **audit.reading, **options}
    reading = {name: options.pop(name) for name in ("encoding", "delimiter") if name in options}
    source, where = new, "the data frame" if isinstance(new, pd.DataFrame) else str(new)
    if isinstance(new, (str, Path)):
        path = Path(new).expanduser()
        if not path.exists():
            raise InputError(f"there is no file or folder {path}; check the path.")
        if path.is_file() and is_table(path):
            new, where = read_frame(path, **reading), str(path)
    if audit.addresses or audit.regression:
        options |= audit.label_kind.reading_options(audit)
        found = read(source, labels, features, options | reading)
        if type(labels_of(found)) is not audit.label_kind:
            raise InputError(f"{where} does not hold {audit.label_kind.noun}, which were audited; check the labels.")
        digests = found.source.row_digests
        digests = np.zeros(len(found), np.uint64) if digests is None else digests[found.index]
        cells = ["" if audit.regression or c == UNLABELED else found.classes[c] for c in found.target.tolist()]
        return NewRows(found, cells, digests)
    data, digests = None, None
    if not isinstance(new, pd.DataFrame):
        data = read(new, labels, features, options)
        if isinstance(data.raw, pd.DataFrame) and data.source.kind in ("text", "table"):
            new = data.raw  # several files, or a saved data set
        elif data.regression:
            raise InputError("the labels are quantities, and the audit was made of classes. Check the labels.")
        else:
            cells = [data.classes[c] if c != UNLABELED else "" for c in data.target.tolist()]
            digests = data.source.row_digests
            digests = np.zeros(len(data), np.uint64) if digests is None else digests[data.index]
    if data is None or digests is None:
        frame = new.reset_index(drop=True)
        frame.columns = pd.Index([str(name) for name in frame.columns])
        label, text, own = audit.source.label, audit.source.text, frame
        voters = [name for name in audit.provenance.annotators if name in frame.columns]
        if labels is None and label not in frame.columns and len(voters) > 1:  # the label is that of the majority
            own, votes = wide_votes(frame, voters)
            own, frame = (table.assign(**{str(label): votes.majority_names}) for table in (own, frame))
        if labels is None and label not in frame.columns:
            known = nearest(str(label), [str(c) for c in frame.columns])
            raise InputError(f'{where} has no column "{label}", which holds the labels of the audit; {known}')
        for name in text_columns(text, frame.columns):
            if name not in frame.columns:
                raise InputError(f'{where} has no column "{name}", which holds the texts of the audit.')
        values = list(frame[label]) if labels is None else list(np.asarray(labels))
        missing = missing_labels(values, audit.source.missing_given, audit.classes)
        names = ["" if has_no_label(value, missing) else label_name(value) for value in values]
        cells = [audit.source.merged.get(name, name) for name in names]
        if len(cells) != len(frame):
            raise InputError(f"there are {len(frame)} rows and {len(cells)} labels; expected one each.")
        texts = row_texts(frame, text) if text else np.array([""] * len(frame), dtype=object)
        made = Source(kind="text" if text else "table", label=label, text=text)
        data = Dataset(texts, np.full(len(frame), UNLABELED), (), raw=frame, source=made)
        features = audit.source.embedding if features is None else features
        data = data if features is None else with_features(data, features)
        digests = digest_frame(own, str(label))
    numbers = {name.strip(): number for number, name in enumerate(audit.classes)}
    target = np.array([numbers.get(cell.strip(), UNLABELED) if cell else UNLABELED for cell in cells], np.int64)
    return NewRows(replace(data, target=target, classes=audit.classes), cells, digests)


def _positions(
    path: Path, audit: Audit, data: Dataset, rows: Ints, options: Mapping[str, Any]
) -> dict[int, tuple[str, int, int | None, int | None]]:
    """File, row, line and column of some labels; line and column are None if lines cannot be matched to rows."""
    kind, names = table_format(path), [str(path)] * len(data)
    lines: Sequence[tuple[int, int | None]] = ()
    if path.is_dir() and data.ids is not None:
        names = [str(Path(data.source.folder or path) / str(name)) for name in data.ids]
    elif kind in LINES and kind != ".json" and path.is_file():
        content = read_bytes(path, lines=True).splitlines()
        lines = [(number, None) for number, line in enumerate(content, 1) if line.strip()]
    elif is_table(path) and kind in (".csv", ".tsv"):
        reading = {**audit.reading, **{name: value for name, value in options.items() if value}}
        text = decode(read_bytes(path, lines=True), path, str(reading.get("encoding", "utf-8")))
        columns = list(data.raw.columns)
        column = columns.index(audit.source.label) if audit.source.label in columns else 0
        lines = label_places(text, kind, column, reading.get("delimiter"))
    places = lines if len(lines) == len(data) else [(None, None)] * len(data)
    return {row: (names[row], int(data.index[row]), *places[row]) for row in rows.tolist()}


def label_places(text: str, suffix: str, column: int, delimiter: str | None = None) -> list[tuple[int, int]]:
    """Line and column of the label of each row, counted from 1; for a row without a label cell, those of its first cell."""
    dialect = Dialect.of(text, suffix, delimiter)
    first = find_cells(text, 0, dialect)
    spans = [span or own for span, own in zip(find_cells(text, column, dialect), first, strict=True)]
    starts = [0, *(match.end() for match in _LINE_END.finditer(text))]
    lines = [(bisect_right(starts, span[0]), span[0]) for span in spans if span is not None]
    return [(line, at - starts[line - 1] + 1) for line, at in lines]


def as_text(results: Sequence[Checked]) -> str:
    """A line for each finding, as compilers write them, and one for each file."""
    lines = []
    for finding in (finding for result in results for finding in result.findings):
        place = [str(part) for part in (finding.file, finding.line, finding.column) if part is not None]
        lines.append(f"{_printable(':'.join(place))}: {finding.message}")
    return "\n".join([*lines, *(result.message for result in results)])


def as_json(results: Sequence[Checked]) -> str:
    """An object with the result of each file."""
    return json.dumps({"files": [asdict(result) for result in results]}, indent=1, ensure_ascii=True)


def as_github(results: Sequence[Checked]) -> str:
    """Workflow commands, which GitHub shows next to the lines of a change."""

    def escaped(text: str) -> str:
        return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    lines = []
    for finding in (finding for result in results for finding in result.findings):
        file = Path(finding.file).as_posix()
        place = {"file": file, "line": finding.line, "col": finding.column, "title": finding.rule}
        values = {name: escaped(_printable(str(v))) for name, v in place.items() if v is not None}
        properties = [f"{name}={value.replace(':', '%3A').replace(',', '%2C')}" for name, value in values.items()]
        lines.append(f"::warning {','.join(properties)}::{escaped(finding.message)}")
    return "\n".join([*lines, *(escaped(result.message) for result in results)])


def as_sarif(results: Sequence[Checked]) -> str:
    """SARIF 2.1.0, which code scanning and editors read."""
    found = []
    for finding in (finding for result in results for finding in result.findings):
        path = Path(finding.file)
        uri = path.as_uri() if path.is_absolute() else quote(path.as_posix(), errors="replace")
        place: dict[str, Any] = {"artifactLocation": {"uri": uri}}
        if finding.line is not None:
            place["region"] = {"startLine": finding.line, "startColumn": finding.column}
        found.append({
            "ruleId": finding.rule, "level": "warning", "message": {"text": finding.message},
            "locations": [{"physicalLocation": place}],
            "properties": {name: getattr(finding, name) for name in ("row", "given", "suggested", "p_error")},
        })  # fmt: skip
    rules = [{"id": rule, "shortDescription": {"text": text}} for rule, text in RULES.items()]
    driver = {"name": "compensate", "version": __version__, "rules": rules}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": found}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1, ensure_ascii=True)


FORMATS = {"text": as_text, "json": as_json, "github": as_github, "sarif": as_sarif}


def _printable(text: str) -> str:
    """The text with line breaks and control characters replaced."""
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in text)
