"""What a check found, for people, programs, GitHub and tools that read SARIF."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from compensate._version import __version__
from compensate.auditing.check import Checked, Finding

SHOWN = 60
"""Characters of a label in a message."""

RULES = {
    "wrong-label": "A label that the fitted model of an audit contradicts.",
    "unknown-class": "A label that is none of the classes of the audited data.",
}
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_text(results: Sequence[Checked]) -> str:
    """A line for each finding, as compilers write them, and one for each file.

    >>> finding = Finding("a.csv", 4, 6, 9, "cat", "dog", 0.97, "new")
    >>> print(as_text([Checked("a.csv", 100, 90, 10, 0, 0, (finding,))]))
    a.csv:6:9: "cat" looks wrong, "dog" is likelier (p = 0.97, new row 4)
    a.csv: 100 rows, 90 known; 10 new and 0 relabeled were judged: 1 looks wrong
    """
    lines = [f"{_place(finding)}: {message(finding)}" for result in results for finding in result.findings]
    return "\n".join([*lines, *map(_summary, results)])


def as_json(results: Sequence[Checked]) -> str:
    """Everything, as JSON."""
    return json.dumps([asdict(result) for result in results], indent=1, ensure_ascii=True)


def as_github(results: Sequence[Checked]) -> str:
    """Workflow commands, which GitHub shows beside the lines of a change.

    >>> finding = Finding("a,b.csv", 4, 6, 9, "cat", "dog", 0.97, "new")
    >>> print(as_github([Checked("a,b.csv", 100, 90, 10, 0, 0, (finding,))]).splitlines()[0])
    ::warning file=a%2Cb.csv,line=6,col=9,title=wrong-label::"cat" looks wrong, "dog" is likelier (p = 0.97, new row 4)
    """
    lines = []
    for finding in (finding for result in results for finding in result.findings):
        where = {
            "file": Path(finding.file).as_posix(),
            "line": finding.line,
            "col": finding.column,
            "title": _rule(finding),
        }
        told = ",".join(f"{name}={_property(value)}" for name, value in where.items() if value is not None)
        lines.append(f"::warning {told}::{_escaped(message(finding))}")
    return "\n".join([*lines, *(_escaped(_summary(result)) for result in results)])


def as_sarif(results: Sequence[Checked]) -> str:
    """SARIF 2.1.0, which code scanning and editors read."""
    findings = [finding for result in results for finding in result.findings]
    driver = {
        "name": "compensate",
        "version": __version__,
        "rules": [{"id": rule, "shortDescription": {"text": text}} for rule, text in RULES.items()],
    }
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": [_result(f) for f in findings]}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1, ensure_ascii=True)


FORMATS = {"text": as_text, "json": as_json, "github": as_github, "sarif": as_sarif}


def message(finding: Finding) -> str:
    """What is to be said of a finding."""
    given, suggested = _short(finding.given), _short(finding.suggested)
    if finding.why == "unknown class":
        return f'"{given}" is no class of the audited data, "{suggested}" is likeliest (row {finding.row})'
    kind = "new row" if finding.why == "new" else "another label than audited, row"
    return f'"{given}" looks wrong, "{suggested}" is likelier (p {_probability(finding.p_error)}, {kind} {finding.row})'


def _probability(p: float) -> str:
    """Never rounded up to a certainty."""
    return "> 0.99" if 0.995 < p < 1 else f"= {p:.2f}"


def _summary(result: Checked) -> str:
    n = len(result.findings)
    looks = "1 looks wrong" if n == 1 else f"{n:,} look wrong"
    lost = f", {result.unlabeled:,} without a label" if result.unlabeled else ""
    return (
        f"{_shown(result.file)}: {result.rows:,} rows, {result.known:,} known{lost}; {result.new:,} new and "
        f"{result.relabeled:,} relabeled were judged: {looks}"
    )


def _result(finding: Finding) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": {"uri": _uri(finding.file)}}
    if finding.line is not None:
        place["region"] = {"startLine": finding.line, "startColumn": finding.column}
    return {
        "ruleId": _rule(finding),
        "level": "warning",
        "message": {"text": message(finding)},
        "locations": [{"physicalLocation": place}],
        "properties": {
            "row": finding.row, "given": finding.given, "suggested": finding.suggested, "p_error": finding.p_error,
        },
    }  # fmt: skip


def _uri(file: str) -> str:
    from urllib.parse import quote

    path = Path(file)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix(), errors="replace")


def _place(finding: Finding) -> str:
    parts: Iterable[Any] = (finding.file, finding.line, finding.column)
    return ":".join(_shown(str(part)) for part in parts if part is not None)


def _rule(finding: Finding) -> str:
    return "unknown-class" if finding.why == "unknown class" else "wrong-label"


def _short(label: str) -> str:
    return _shown(label if len(label) <= SHOWN else label[: SHOWN - 1] + "…")


def _shown(text: str) -> str:
    """On one line: a label may hold line ends, and signs that a terminal obeys."""
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: Any) -> str:
    return _escaped(_shown(str(value))).replace(":", "%3A").replace(",", "%2C")
