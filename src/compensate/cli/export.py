"""A stored audit with the data that it was made of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from compensate.auditing.result import Audit
from compensate.auditing.source import read
from compensate.cli import options as o
from compensate.cli.options import console
from compensate.errors import InputError
from compensate.files import is_address


def reopen(folder: str | Path) -> Audit:
    """The audit of a run's folder, with its samples if its source is where it was.

    A source that has changed since is refused: its rows may be others.
    """
    folder = Path(folder)
    found = Audit.load(folder / "audit" if (folder / "audit").is_dir() else folder)
    named = {"label": found.source.label, "text": found.source.text}
    asked = found.provenance.asked or {
        "data": found.source.path,
        "options": {name: value for name, value in named.items() if value} | found.reading,
    }
    path = asked.get("data")
    if not path or is_address(path) or not found.source_digest:
        return found
    data = read(path, asked.get("labels"), asked.get("features"), _options(asked))
    if data.source.digest != found.source_digest:
        raise InputError(f"{path} has changed since it was audited ({folder}); audit it again.")
    if found.addresses:  # several labels a sample: the index is not that of rows
        return replace(found, data=data)
    place = {int(row): k for k, row in enumerate(data.index)}
    return replace(found, data=data.subset(np.array([place[int(row)] for row in found.index])))


def _options(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in (asked.get("options") or {}).items()}


def export(
    run: Annotated[Path, typer.Argument(help="Run folder that `compensate audit` wrote.")],
    to: Annotated[str, typer.Option(help="Tool: label-studio, argilla, fiftyone or cleanlab.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write: .json, for cleanlab .csv.")],
    everything: Annotated[
        bool,
        typer.Option("--all", help="Export all rows, not only the flagged ones (always for fiftyone and cleanlab)."),
    ] = False,
    images: Annotated[
        str | None,
        typer.Option(
            help="Address or folder of the images as that tool finds them [default: embedded].", show_default=False
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing output file.")] = False,
) -> None:
    """Export the suspects to an annotation tool; `compensate apply` reads the decisions made there.

    **Example:** `compensate export runs/reviews-3f2a --to label-studio -o tasks.json`

    Then, with what Label Studio or Argilla exports: `compensate apply reviews.csv export.json`
    """
    o.check_path(run)
    from compensate.auditing import exchange as exporting
    from compensate.auditing.result import write_csv
    from compensate.files import check_regular, write_atomically

    exporting.check_tool(to)
    check_regular(out)
    ending = ".csv" if to == "cleanlab" else ".json"
    if out.suffix.lower() not in ("", ending):
        raise InputError(
            f"what {to} reads is a {ending} file, and {out} has another ending; write: -o {out.with_suffix(ending)}."
        )
    if out.exists() and not force:
        raise InputError(f"{out} is there already; name another file, or overwrite it with --force.")
    found = reopen(run)
    exporting.whole_rows(found)
    if to == "cleanlab":
        issues = found.to_cleanlab()["issues"]
        write_csv(out, issues.reset_index(names="row"))
        console.print(
            f"{out}: {len(issues):,} rows, {int(issues['is_label_issue'].sum()):,} label issues", markup=False
        )
        return
    records = exporting.WRITERS[to](found, everything=everything or to == "fiftyone", images=images)
    write_atomically(out, json.dumps(records, ensure_ascii=False, indent=1).encode("utf-8", "replace"))
    console.print(f"{out}: {len(records):,} records for {to}", markup=False)
    if to == "label-studio":
        place = out.with_suffix(".xml")
        write_atomically(place, exporting.label_studio_config(found).encode("utf-8", "replace"))
        console.print(f"{place}: the labeling interface of the project", markup=False)
