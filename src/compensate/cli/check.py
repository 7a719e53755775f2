"""`compensate check`: judge new and changed labels by the model of an audit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compensate.cli import options as o
from compensate.errors import InputError, nearest

if TYPE_CHECKING:
    from compensate.auditing.check import Checked

FORMATS = ("text", "json", "github", "sarif")


def check(
    data: Annotated[
        list[Path], typer.Argument(help="Files or folders of the kind that was audited.", show_default=False)
    ],
    against: Annotated[Path | None, typer.Option(help="Run folder of the audit.", show_default=False)] = None,
    max_wrong: Annotated[
        str,
        typer.Option(help="Labels that may look wrong: a number, or a share of the judged rows such as 0.02 or 2%."),
    ] = "0",
    fail_above: Annotated[
        float | None,
        typer.Option(help="Error probability from which on a label looks wrong [default: 2/3].", show_default=False),
    ] = None,
    format: Annotated[str, typer.Option(help=f"Output format: {', '.join(FORMATS[:-1])} or {FORMATS[-1]}.")] = "text",
    features: Annotated[
        Path | None,
        typer.Option(help="Embeddings of the samples, for an audit made with --features.", show_default=False),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="File encoding [default: the audit's].", show_default=False)
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="Column delimiter [default: the audit's].", show_default=False)
    ] = None,
) -> None:
    """Judge new and changed labels by the model of an audit, without training.

    **Example:** `compensate check reviews.csv --against runs/reviews-3f2a`

    Rows of the audit are found by their content and not judged again. The exit status is 1 if more labels look wrong than --max-wrong
    allows, for commit hooks and workflows.
    """
    if format not in FORMATS:
        raise InputError(f'--format is "{format}"; {nearest(format, FORMATS)}')
    if fail_above is not None and not 0 <= fail_above <= 1:
        raise InputError(f"--fail-above is {fail_above:g}; expected a probability from 0 to 1, such as 0.9.")
    number, share = _bound(max_wrong)
    o.check_reader(encoding, delimiter)
    o.check_path(*data, against, features)
    if against is None:
        raise InputError("--against is missing; give the run of an audit, for example --against runs/reviews-3f2a.")
    from compensate.auditing.check import FORMATS as WRITERS
    from compensate.auditing.check import check as run
    from compensate.auditing.decisions import run_decisions
    from compensate.auditing.result import Audit

    whole = (against / "audit").is_dir()
    audit = Audit.load(against / "audit" if whole else against)
    decisions = run_decisions(against) if whole else ()
    chosen: dict[str, Any] = {
        name: value for name, value in (("encoding", encoding), ("delimiter", delimiter)) if value is not None
    }
    results = [run(audit, path, at_least=fail_above, decisions=decisions, features=features, **chosen) for path in data]
    typer.echo(WRITERS[format](results))
    if _fails(results, number, share):
        raise typer.Exit(1)


def _bound(text: str) -> tuple[int | None, float | None]:
    """Parses the number or the share of labels that may look wrong.

    >>> _bound("5"), _bound("0.02"), _bound("2%")
    ((5, None), (None, 0.02), (None, 0.02))
    """
    bare = text.strip()
    try:
        if bare.endswith("%"):
            share = float(bare[:-1]) / 100
        elif bare.isascii() and bare.isdigit():
            return int(bare), None
        else:
            share = float(bare)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise InputError(
            f'--max-wrong is "{text}"; expected a number of labels such as 5, or a share such as 0.02 or 2%.'
        )
    return None, share


def _fails(results: list[Checked], number: int | None, share: float | None) -> bool:
    wrong = sum(len(result.findings) for result in results)
    if number is not None:
        return wrong > number
    assert share is not None
    return wrong > share * sum(result.judged for result in results)
