"""`compensate check`: judge new and changed labels by the model of an audit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from compensate.auditing import check as checks
from compensate.auditing.decisions import run_decisions
from compensate.auditing.result import Audit
from compensate.cli import options as o
from compensate.errors import InputError, nearest
from compensate.errors import check as expect
from compensate.files import decode

FORMATS = tuple(checks.FORMATS)


def check(
    data: Annotated[list[Path], o.argument("Files or folders of the kind that was audited.")],
    against: Annotated[Path | None, o.option("Run folder of the audit.")] = None,
    max_wrong: Annotated[str, typer.Option(help="Labels that may look wrong: a number, or a share of the judged rows such as 0.02 or 2%.")] = "0",
    fail_above: Annotated[float | None, o.option("Error probability from which on a label looks wrong [default: 2/3].")] = None,
    format: Annotated[str, typer.Option(help=f"Output format: {', '.join(FORMATS[:-1])} or {FORMATS[-1]}.")] = "text",
    features: Annotated[Path | None, o.option("Embeddings of the samples, for an audit made with --features.")] = None,
    encoding: Annotated[str | None, o.option("File encoding [default: the audit's].")] = None,
    delimiter: Annotated[str | None, o.option("Column delimiter [default: the audit's].")] = None,
    json_: Annotated[bool, o.option("The same as --format json.", "--json")] = False,
) -> None:  # fmt: skip
    """Judge new and changed labels by the model of an audit, without training.

    **Example:** `compensate check reviews.csv --against runs/reviews-3f2a`

    Rows of the audit are found by their content and not judged again. The exit status is 1 if more labels look wrong than --max-wrong
    allows, for commit hooks and workflows.
    """
    if format not in FORMATS:
        raise InputError(f'--format is "{format}"; {nearest(format, FORMATS)}')
    probability = fail_above is None or 0 <= fail_above <= 1
    expect(probability, "a probability from 0 to 1, such as 0.9", **{"--fail-above": fail_above})
    number, share = _bound(max_wrong)
    if encoding is not None:
        decode(b"a", "the file", encoding)
    expect(delimiter is None or len(delimiter) == 1, 'one character, such as ";"', delimiter=f'"{delimiter}"')
    o.check_path(*data, against, features)
    if against is None:
        raise InputError("--against is missing; give the run of an audit, for example --against runs/reviews-3f2a.")
    audit = Audit.load(against)
    options: dict[str, Any] = {"at_least": fail_above, "features": features, "decisions": run_decisions(against)}
    options |= {name: value for name, value in (("encoding", encoding), ("delimiter", delimiter)) if value is not None}
    results = [checks.check(audit, path, **options) for path in data]
    typer.echo(checks.FORMATS["json" if json_ else format](results))
    allowed = number if share is None else share * sum(result.new + result.relabeled for result in results)
    if sum(len(result.findings) for result in results) > allowed:
        raise typer.Exit(1)


def _bound(text: str) -> tuple[int, float | None]:
    """Parses the number or the share of labels that may look wrong.

    >>> _bound("5"), _bound("0.02"), _bound("2%")
    ((5, None), (0, 0.02), (0, 0.02))
    """
    bare = text.strip()
    if bare.isascii() and bare.isdigit():
        return int(bare), None
    try:
        share = float(bare.removesuffix("%")) / (100 if bare.endswith("%") else 1)
    except ValueError:
        share = -1.0
    wanted = "a number of labels such as 5, or a share such as 0.02 or 2%"
    expect(0 <= share <= 1, wanted, **{"--max-wrong": f'"{text}"'})
    return 0, share
