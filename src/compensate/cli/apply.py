"""`compensate apply`: write the data with the corrected labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compensate.cli import options as o
from compensate.cli.terminal import console
from compensate.errors import InputError
from compensate.files import is_address

if TYPE_CHECKING:
    from compensate.auditing.decisions import Correction, Matched
    from compensate.auditing.result import Audit


def apply(
    data: Annotated[Path, typer.Argument(help="The run folder, or the audited file or folder.")],
    corrections: Annotated[
        Path | None,
        typer.Argument(
            help="corrections.csv, the JSON export of Label Studio or Argilla, or the run folder [default: the decisions of the run].",
            show_default=False,
        ),
    ] = None,
    accept: Annotated[
        float | None,
        o.option(
            "Apply every suggestion with at least this error probability, without review; decisions of the run come first."
        ),
    ] = None,
    out: Annotated[Path | None, o.option("Output file [default: NAME.fixed.SUFFIX].", "--out", "-o")] = None,
    label: o.Label = None,
    encoding: o.Encoding = None,
    delimiter: o.Delimiter = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing output file.")] = False,
    rematch: Annotated[
        bool, typer.Option("--rematch", help="Match rows by content, for a file that changed since the audit.")
    ] = False,
) -> None:
    """Write the data with the corrected labels.

    **Example:** `compensate apply runs/reviews-3f2a -o reviews.fixed.csv`

    With an exported file: `compensate apply reviews.csv corrections.csv`

    Without a review: `compensate apply runs/reviews-3f2a --accept 0.9`

    A corrected CSV, TSV or JSONL differs in the changed cells alone; a folder of images gets a label file. A file that changed since
    the audit is refused; `--rematch` finds its rows by content.
    """
    o.check_path(data, corrections)
    if corrections is None:
        data, corrections = _source_of(data), data
    from compensate.auditing.apply import apply_corrections

    decided: Path | tuple[Correction, ...] = corrections
    if corrections.is_dir() or accept is not None:
        found, decided, said = _of_run(corrections, accept)
        label = label or found.source.label
        encoding, delimiter = encoding or found.reading.get("encoding"), delimiter or found.reading.get("delimiter")
        console.print(said, markup=False)
    done = apply_corrections(
        data, decided, out, label=label, encoding=encoding or "utf-8", delimiter=delimiter, force=force, rematch=rematch
    )
    if done.matched is not None:
        console.print(_rematched(done.matched), markup=False)
    elif not done.checked:
        console.print(
            "note: these corrections do not name the file they are about; only the labels of the rows were compared",
            markup=False,
        )
    console.print(
        f"{done.path}: {done.changed:,} of {done.rows:,} labels changed, {done.kept:,} kept as they were, "
        f"{done.skipped:,} skipped",
        markup=False,
    )
    if not (done.changed or done.kept or done.skipped) and done.matched is None:
        console.print(f"note: {corrections} holds no decision, so the labels are as they were", markup=False)


def _rematched(matched: Matched) -> str:
    """Describes which rows were found by content and which were not."""
    said = [f"{matched.found:,} rows found by content, {matched.moved:,} of them at another place"]
    if matched.done:
        said.append(f"{matched.done:,} hold the decided label already")
    for rows, why in ((matched.absent, "not in this file"), (matched.unclear, "not clear which row is meant")):
        if rows:
            shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
            said.append(f"{len(rows):,} left out, {why} (rows {shown} of the audited file)")
    return "; ".join(said)


def _is_run(path: Path) -> bool:
    return (path / "audit" / "audit.json").is_file() or (path / "audit.json").is_file()


def _audit_of(run: Path) -> Audit:
    from compensate.auditing.result import Audit

    return Audit.load(run / "audit" if (run / "audit").is_dir() else run)


def _source_of(run: Path) -> Path:
    """The path of the audited data."""
    if not _is_run(run):
        raise InputError(
            f"{run} is not the folder of a run. Give the folder that `compensate audit` wrote, or the data and its corrections: "
            f"compensate apply {run} corrections.csv."
        )
    source = _audit_of(run).source.path
    if not source:
        raise InputError(f"{run} is an audit of arrays, not of a file. Choose another run.")
    if is_address(source):
        raise InputError(
            f"{run} is an audit of {source}, and corrections are written to files on a disk. Copy them, and have the rows found by "
            f"content: compensate apply COPY {run} --rematch."
        )
    if not Path(source).exists():
        raise InputError(
            f"{source}, the data of {run}, does not exist here. Check the path, and name it: compensate apply DATA {run}."
        )
    return Path(source)


def _of_run(run: Path, accept: float | None) -> tuple[Audit, tuple[Correction, ...], str]:
    """The audit of a run, its decisions with the suggestions accepted without review, and a line about them.

    Decisions of people take precedence over suggestions.
    """
    if not run.is_dir():
        raise InputError(
            f"--accept takes suggestions of an audit, and {run} is not the folder of one. Give the folder that `compensate "
            "audit` wrote (under runs/), or leave --accept out to apply the decisions of a file."
        )
    from compensate.auditing.decisions import run_decisions

    found, decided = _audit_of(run), run_decisions(run)
    said = f"{len(decided):,} decisions of {run}"
    if accept is not None:
        sure, reviewed = found.accepted(accept), {c.index for c in decided}
        p = found.p_error[found.p_error >= accept]
        expected = f", of which {p.mean():.0%} are expected to be wrong indeed" if len(p) else ""
        shown = f"{len(sure):,} of {len(found):,} labels have a probability of error of {accept:g} or more{expected}"
        taken = tuple(c for c in sure if c.index not in reviewed)
        return found, (*decided, *taken), f"{shown}\n{said}, {len(taken):,} suggestions accepted without review"
    if not decided:
        raise InputError(
            f"nothing was decided in {run} yet. Review it: compensate review {run}; or say from which probability of error on "
            f"suggestions are taken without review: compensate apply {run} --accept 0.9."
        )
    return found, decided, said
