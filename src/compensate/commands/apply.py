"""`compensate apply`: decisions about labels, written into the data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compensate.commands import options as o
from compensate.commands.terminal import console
from compensate.errors import InputError

if TYPE_CHECKING:
    from compensate.auditing.corrections import Correction, Matched


def apply(
    data: Annotated[Path, typer.Argument(help="The audited file or folder.")],
    corrections: Annotated[
        Path,
        typer.Argument(
            help="corrections.csv of the review page, or the JSON export of Label Studio or Argilla; with --accept, the run folder."
        ),
    ],
    accept: Annotated[
        float | None, o.option("Apply every suggestion with at least this error probability, without review.")
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

    **Example:** `compensate apply reviews.csv corrections.csv -o reviews.fixed.csv`

    Without a browser: `compensate apply reviews.csv runs/reviews-3f2a --accept 0.9`

    A corrected CSV, TSV or JSONL differs in the changed cells alone; a folder of images gets a label file. A file that changed since
    the audit is refused; `--rematch` finds its rows by content.
    """
    o.check_path(data, corrections)
    from compensate.auditing.corrections import apply_corrections

    decided: Path | tuple[Correction, ...] = corrections
    if corrections.is_dir() or accept is not None:
        decided, label, said = _accepted(data, corrections, accept, label)
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


def _rematched(matched: Matched) -> str:
    """What was found by content, and which rows were not."""
    said = [f"{matched.found:,} rows found by content, {matched.moved:,} of them at another place"]
    if matched.done:
        said.append(f"{matched.done:,} hold the decided label already")
    for rows, why in ((matched.absent, "not in this file"), (matched.unclear, "not clear which row is meant")):
        if rows:
            shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
            said.append(f"{len(rows):,} left out, {why} (rows {shown} of the audited file)")
    return "; ".join(said)


def _accepted(
    data: Path, run: Path, accept: float | None, label: str | None
) -> tuple[tuple[Correction, ...], str | None, str]:
    """The suggestions of an audit that are taken without review, the label's column, and what to say of them."""
    from compensate.auditing.result import Audit

    if not run.is_dir():
        raise InputError(
            f"--accept takes suggestions of an audit, and {run} is not the folder of one. Give the folder that `compensate "
            "audit` wrote (under runs/), or leave --accept out to apply the decisions of a file."
        )
    if accept is None:
        raise InputError(
            f"{run} is the folder of a run. Say from which probability of error on suggestions are taken without review: "
            f"compensate apply {data} {run} --accept 0.9."
        )
    found = Audit.load(run / "audit" if (run / "audit").is_dir() else run)
    decided = found.accepted(accept)
    p = found.p_error[found.p_error >= accept]
    expected = f", of which {p.mean():.0%} are expected to be wrong indeed" if len(p) else ""
    said = f"{len(decided):,} of {len(found):,} labels have a probability of error of {accept:g} or more{expected}"
    return decided, label or found.config.get("label"), said
