"""`compensate apply` and `compensate export`: write the corrected data, and the suspects for an annotation tool."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from compensate.auditing import actions, exchange
from compensate.auditing.decisions import Correction, Journal, reviewing, run_decisions
from compensate.auditing.labels.base import Classes, LabelKind
from compensate.auditing.request import reopen
from compensate.auditing.result import Audit, apply_corrections, moves_name
from compensate.auditing.write_back import open_labels, undo_moves, write_csv
from compensate.cli import options as o
from compensate.cli.terminal import plural, print_json, quoted, say
from compensate.errors import InputError, nearest
from compensate.files import check_regular, is_address, write_atomically


def apply(
    data: Annotated[Path, typer.Argument(help="The run folder, or the audited file or folder.")],
    corrections: Annotated[
        Path | None,
        o.argument(
            "corrections.csv, the JSON export of Label Studio or Argilla, or the run folder [default: the decisions of the run]."
        ),
    ] = None,
    accept: Annotated[float | None, o.option(
        "Apply every suggestion with at least this error probability, without review; decisions of the run come first."
    )] = None,
    drop: Annotated[str | None, o.option(
        "Rows to drop: kinds of issues.csv and row numbers, e.g. duplicate,empty_text,17; of equal rows one is kept."
    )] = None,
    unclear: Annotated[str | None, o.option("Rows to mark as unclear, named as for --drop; they keep their label.")] = None,
    merge: Annotated[str | None, o.option(
        "Class names to merge, e.g. Pos=pos,biling=billing; or spellings: all that differ only in case, spacing or Unicode form."
    )] = None,
    units: Annotated[bool, o.option("Set flagged values back that are wrong by a factor of 10, 100 or 1,000.", "--units")] = False,
    fill: Annotated[float | None, o.option("Give rows without a label the predicted one, from this probability on.")] = None,
    undo: Annotated[bool, o.option("Take back what --drop, --unclear, --merge, --units, --fill and --as move did.", "--undo")] = False,
    layout: Annotated[str, typer.Option("--as", help="Images in class folders: a label file, a folder of links, or move them in place.")] = "file",
    swap: Annotated[bool, o.option("With --accept: swap preference pairs instead of dropping them.", "--swap")] = False,
    out: Annotated[Path | None, o.option("Output file [default: NAME.fixed.SUFFIX].", "--out", "-o")] = None,
    label: o.Label = None,
    encoding: o.Encoding = None,
    delimiter: o.Delimiter = None,
    text: o.Text = None,
    force: o.Force = False,
    rematch: Annotated[bool, o.option("Match rows by content, for a file that changed since the audit.", "--rematch")] = False,
    json_: o.Json = False,
) -> None:  # fmt: skip
    """Write the data with the corrected labels.

    **Example:** `compensate apply runs/reviews-3f2a -o reviews.fixed.csv`

    With an exported file: `compensate apply reviews.csv corrections.csv`

    Without a review: `compensate apply runs/reviews-3f2a --accept 0.9`

    Other findings: `compensate apply runs/reviews-3f2a --drop duplicate,empty_text --merge spellings`. These decisions join those of
    the review in the run folder; `--undo` takes them back.

    A corrected CSV, TSV or JSONL differs in the changed cells alone; a folder of images gets a label file. A file that changed since
    the audit is refused; `--rematch` finds its rows by content.
    """
    o.check_path(data, corrections)
    run = data if corrections is None else corrections
    decided: Path | tuple[Correction, ...] = run
    if corrections is None and not any((folder / "audit.json").is_file() for folder in (run / "audit", run)):
        raise InputError(
            f"{run} is not the folder of a run. Give the folder that `compensate audit` wrote, or the data and its corrections: "
            f"compensate apply {run} corrections.csv."
        )
    acts: dict[str, Any] = {"drop": drop, "unclear": unclear, "merge": merge, "units": units or None, "fill": fill}
    named = [name for name, value in {**acts, "undo": undo or None}.items() if value is not None]
    if named and not run.is_dir():
        raise InputError(
            f"--{named[0]} acts on the findings of a run, and {run} is not the folder of one; expected that folder."
        )
    if accept is not None and not run.is_dir():
        raise InputError(
            f"--accept takes suggestions of an audit, and {run} is not the folder of one. Give the folder that `compensate "
            "audit` wrote (under runs/), or leave --accept out to apply the decisions of a file."
        )
    label_kind: type[LabelKind] = Classes
    if run.is_dir():
        found = Audit.load(run)
        source, label_kind = found.source.path, found.label_kind
        if corrections is None:
            if not source:
                raise InputError(f"{run} is an audit of arrays, not of a file. Choose another run.")
            if is_address(source):
                raise InputError(
                    f"{run} is an audit of {source}, and corrections are written to files on a disk. Copy them, and have the rows "
                    f"found by content: compensate apply COPY {run} --rematch."
                )
            if not Path(source).exists():
                raise InputError(
                    f"{source}, the data of {run}, does not exist here. Check the path, and name it: compensate apply DATA {run}."
                )
            data = Path(source)
        label = label or found.source.label
        asked = {"encoding": encoding, "delimiter": delimiter, "text": text}
        encoding, delimiter, text = (value or found.reading.get(name) for name, value in asked.items())
        decided = run_decisions(run)
        if named:
            with reviewing(run):
                journal, now = Journal(run), time.time_ns() // 1_000_000
                if undo:
                    moved = undo_moves(data, moves_name(data)) if moves_name(data).is_file() else 0
                    images = f", {moved:,} images moved back" if moved else ""
                    say(f"{plural(actions.undo(journal, now), 'decision')} of earlier commands taken back{images}")
                    return
                cells = open_labels(data, label, encoding or "utf-8", delimiter).cells if merge else ()
                made = actions.decisions(found, decided, cells, **acts)
                actions.record(journal, made, now)
                decided = journal.decisions
            said = f"{plural(len(made), 'decision')} recorded in {run}; to take them back: compensate apply {quoted(run)} --undo"
            say(said, wrap=False)
        said = f"{plural(len(decided), 'decision')} of {run}"
        if accept is not None:  # decisions of people take precedence over suggestions
            sure, reviewed = found.accepted(accept, relabel=swap), {c.index for c in decided}
            p = found.p_error[found.p_error >= accept]
            expected = f"; about {p.sum():,.0f} of them ({p.mean():.0%}) should be wrong" if len(p) else ""
            say(f"{len(sure):,} of {len(found):,} labels are wrong with a probability of {accept:g} or more{expected}")
            taken = tuple(c for c in sure if c.index not in reviewed)
            decided, said = (*decided, *taken), f"{said}, {len(taken):,} suggestions accepted without review"
        elif not decided:
            raise InputError(
                f"nothing was decided in {run} yet. Review it: compensate review {run}; or say from which probability of error on "
                f"suggestions are taken without review: compensate apply {run} --accept 0.9."
            )
        say(said)
    done = apply_corrections(
        data, decided, out, label=label, encoding=encoding or "utf-8", delimiter=delimiter, text=text, force=force, rematch=rematch,
        layout=layout, label_kind=label_kind,
    )  # fmt: skip
    if done.matched is not None:
        matched = done.matched
        parts = [f"{matched.found:,} rows found by content, {matched.moved:,} of them at another place"]
        if matched.done:
            parts.append(f"{matched.done:,} hold the decided label already")
        for rows, why in ((matched.absent, "not in this file"), (matched.unclear, "not clear which row is meant")):
            if rows:
                shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
                parts.append(f"{len(rows):,} left out, {why} (rows {shown} of the audited file)")
        say("; ".join(parts))
    elif not done.checked:
        say("note: these corrections do not name the file they are about; only the labels of the rows were compared")
    others = {
        f"row{'s' * (done.dropped != 1)} dropped": done.dropped, "marked as unclear": done.unclear, "kept as given": done.kept,
        "skipped": done.skipped,
    }  # fmt: skip
    parts = [f"{done.changed:,} of {done.rows:,} labels changed", *(f"{n:,} {what}" for what, n in others.items() if n)]
    say(f"{done.path}: {', '.join(parts)}")
    if not any((done.changed, *others.values())) and done.matched is None:
        say(f"note: {run} holds no decision, so the labels are as they were")
    if json_:
        print_json(asdict(done))


def export(
    run: Annotated[Path, typer.Argument(help="Run folder that `compensate audit` wrote.")],
    to: Annotated[str, o.option("Tool: label-studio, argilla, fiftyone or cleanlab.")],
    out: Annotated[Path, o.option("File to write: .json, for cleanlab .csv.", "--out", "-o")],
    everything: Annotated[bool, o.option("Export all rows, not only the flagged ones (always for fiftyone and cleanlab).", "--all")] = False,
    images: Annotated[str | None, o.option("Address or folder of the images as that tool finds them [default: embedded].")] = None,
    force: o.Force = False,
    json_: o.Json = False,
) -> None:  # fmt: skip
    """Export the suspects to an annotation tool; `compensate apply` reads the decisions made there.

    **Example:** `compensate export runs/reviews-3f2a --to label-studio -o tasks.json`

    Then, with what Label Studio or Argilla exports: `compensate apply reviews.csv export.json`
    """
    o.check_path(run)
    if to not in exchange.TOOLS:
        raise InputError(f'"{to}" is not a known tool; {nearest(to, exchange.TOOLS)}')
    check_regular(out)
    ending = ".csv" if to == "cleanlab" else ".json"
    if out.suffix.lower() not in ("", ending):
        raise InputError(
            f"{to} reads a {ending} file, and {out} has another ending; write: -o {out.with_suffix(ending)}."
        )
    if out.exists() and not force:
        raise InputError(f"{out} exists already; name another file, or overwrite it with --force.")
    found = reopen(run)
    if to == "cleanlab":
        issues = found.to_cleanlab()["issues"]
        write_csv(out, issues.reset_index(names="row"))
        say(f"{out}: {len(issues):,} rows, {int(issues['is_label_issue'].sum()):,} label issues")
    else:
        writers = {"label-studio": found.to_label_studio, "fiftyone": found.to_fiftyone, "argilla": found.to_argilla}
        records = writers[to](everything=everything or to == "fiftyone", images=images)
        write_atomically(out, json.dumps(records, ensure_ascii=False, indent=1).encode("utf-8", "replace"))
        say(f"{out}: {len(records):,} records for {to}")
    if to == "label-studio":
        place = out.with_suffix(".xml")
        write_atomically(place, exchange.label_studio_config(found).encode("utf-8", "replace"))
        say(f"{place}: the labeling interface of the project")
    if json_:
        print_json({"path": out, "tool": to, "rows": len(issues if to == "cleanlab" else records)})
