"""`compensate audit`: find the labels that look wrong."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from compensate.cli import options as o
from compensate.cli.options import describe_columns, describe_unused
from compensate.cli.terminal import clock, console, quoted, short, stage_progress
from compensate.data.dataset import Dataset, Source
from compensate.errors import InputError

if TYPE_CHECKING:
    from compensate.auditing.result import Audit

PAIRS = 6
"""Rows of the table in the summary."""

OPEN = 10
"""The summary calls an interval wide if it starts at 0 and ends above this percentage."""


def describe_data(source: Dataset) -> str:
    """One line about the data: rows, columns and labels."""
    from compensate.auditing.labels import labels_of

    info = source.source
    parts = [f"{info.title}: {_rows(source)}"]
    parts += describe_columns(info, labels_of(source).describe(source, short))
    lost = int((~source.labeled).sum())
    if lost and source.parts is None:
        parts.append(f"{lost:,} without a label{_missing(info, lost)}, which {'is' if lost == 1 else 'are'} predicted")
    parts += _alike(source)
    if info.missing_given is None and source.parts is None:
        from compensate.data.labels import NOT_APPLICABLE

        parts += [
            f'"{name}" is taken for a class; if it means a missing label: --missing {name}'
            for name in source.classes
            if name.lower() in NOT_APPLICABLE
        ]
    return ", ".join([*parts, *describe_unused(info, source.parts)])


def _rows(source: Dataset) -> str:
    """The number of audited rows, and of rows that are left out."""
    from compensate.auditing.source import left_out

    if not source.source.left_out:
        return f"{len(source):,} rows"
    named, how = left_out(source.source)
    return f"{len(source):,} of {len(source) + sum(source.source.left_out.values()):,} rows (left out: {named}; {how})"


def similar_class_names(source: Dataset) -> str:
    """Classes whose names differ only in case, spacing or Unicode form, most frequent first; empty without any.

    >>> import numpy as np
    >>> similar_class_names(Dataset(np.eye(3), np.array([0, 1, 1]), ("Cat", "cat", "dog")))
    '"cat" 2, "Cat" 1'
    """
    from compensate.auditing.class_names import spellings

    if source.regression or source.parts is not None:
        return ""
    counts = source.class_counts
    groups = [sorted((c for c in group if counts[c]), key=lambda c: -counts[c]) for group in spellings(source.classes)]
    return "; ".join(
        ", ".join(f'"{short(source.classes[c])}" {counts[c]:,}' for c in group)
        for group in groups[:3]
        if len(group) > 1
    )


def _alike(source: Dataset) -> list[str]:
    merged: dict[str, list[str]] = {}
    for other, name in source.source.merged.items():
        merged.setdefault(name, []).append(f'"{short(other)}"')
    if merged:
        return [f'merged into "{short(name)}": {", ".join(others[:4])}' for name, others in list(merged.items())[:3]]
    alike = similar_class_names(source)
    return (
        [f"names that differ only in case, spacing or Unicode form: {alike} (--merge-alike takes them for one class)"]
        if alike
        else []
    )


def _missing(info: Source, lost: int) -> str:
    """The cells that count as missing labels, unless all are empty."""
    cells = Counter(info.missing)
    empty = sum(cells.pop(text, 0) for text in ("", "None", "nan") if text not in (info.missing_given or ()))
    if not cells:
        return ""
    known = sum(cells.values()) + empty == lost  # else other rows have some of them
    counts = {f'"{short(text)}"': cells[text] for text in sorted(cells)} | ({"empty": empty} if empty else {})
    return f" ({', '.join(f'{text} {count:,}' if known else text for text, count in counts.items())})"


def describe_fit(found: Audit) -> str:
    """One line about the fit: folds, the weight of each view, and the agreement with the labels."""
    weights: Counter[str] = Counter()
    for name, weight in found.provenance.views.items():
        weights[name.split(": ")[0]] += weight  # type: ignore[assignment]
    views = ", ".join(f"{short(name)} {weight:.1f}" for name, weight in weights.most_common(4) if weight >= 0.05)
    agrees = found.provenance.agreement or 0.0
    fits = f"explains {agrees:.2f} of the spread" if found.regression else f"agrees with {agrees:.2f} of labels"
    return f"{found.provenance.folds} folds · {views} · {fits}"


def print_summary(found: Audit, folder: Path) -> None:
    rate = found.noise_rate
    flagged = int(found.mask.sum())
    what = "values" if found.regression else "labels"
    precision = f" — {flagged:,} flagged, at {found.expected_precision:.2f} expected precision"
    if not flagged:
        precision = f" — none of the {what} stands out; the least certain are on the page"
    by_chance = bool(found.provenance.by_chance)
    if by_chance:
        console.print(f"the {what} cannot be judged: see the note above", markup=False)
    else:
        console.print(
            f"about {rate.value:.1%} of {what} look wrong ({rate.low:.1%} to {rate.high:.1%}){precision}", markup=False
        )
    if not by_chance and rate.low <= 0 and rate.high > max(OPEN / 100, 2 * rate.value):
        console.print(
            "the interval is wide: these features cannot tell errors that a model learns from samples that are hard",
            style="dim",
        )
    if flagged:
        console.print(_worst(found) if found.regression else _pairs(found))
    if found.provenance.since is not None:
        console.print(_since(found.provenance.since), markup=False)
    from compensate.auditing.issues import summary
    from compensate.auditing.page import command

    said = {
        "review them": f"compensate review {quoted(folder)}      or open {folder / 'report.html'}; list: {folder / 'suspects.csv'}",
        "all rows": f"{folder / 'suspects'}/*.parquet" if found.listed is not None else "",
        "predicted": str(folder / "predictions.csv") if len(found.predicted) else "",
        "also found": "",
        "then": f"compensate apply {quoted(folder)}" if command(found) else "",
    }
    if by_chance:  # there is nothing to do with such labels
        said = {"also found": ""}
    if found.found_issues is not None and len(found.found_issues):
        said["also found"] = f"{summary(found.found_issues)}: {folder / 'issues.csv'}"
    for name, line in said.items():
        if line:
            console.print(f"{name + ':':<13} {line}", markup=False, soft_wrap=True)


def _since(since: Mapping[str, Any]) -> str:
    decided = since["corrected"] + since["confirmed"]
    return (
        f"with {decided:,} decided labels ({since['corrected']:,} corrected, {since['confirmed']:,} confirmed); "
        f"new suspects: {len(since['new']):,}, no longer suspect: {len(since['gone']):,}"
    )


def _pairs(found: Audit) -> Table:
    shown = found.shown
    flagged, order = shown.flagged, (-shown.log_odds).argsort(kind="stable")
    # For label sets, the pairs count per label.
    sets = "label" in flagged.columns
    table = Table(
        f"{'label: ' if sets else ''}given → suggested", "rows", "", box=None, pad_edge=False, padding=(0, 3, 0, 0)
    )
    labels = [f"{short(name)}: " for name in flagged["label"]] if sets else [""] * len(flagged)
    keys = [
        f"{label}{short(given)} → {short(suggested)}"
        for label, given, suggested in zip(labels, flagged["given"], flagged["suggested"], strict=True)
    ]
    counted = keys
    if found.listed is not None:
        rows = found.mask.nonzero()[0]
        pairs = zip(found.names(found.given[rows]), found.names(found.suggested[rows]), strict=True)
        counted = [f"{short(given)} → {short(suggested)}" for given, suggested in pairs]
    groups = Counter(counted).most_common()
    for key, count in groups[:PAIRS]:
        sample = _sample(shown, int(order[flagged.index[keys.index(key)]])) if key in keys else ""
        table.add_row(Text(key), f"{count:,}", Text(sample, style="dim"))
    if len(groups) > PAIRS:
        table.add_row(
            Text(f"and {len(groups) - PAIRS} more pair{'s' * (len(groups) - PAIRS > 1)}", style="dim"),
            f"{sum(count for _, count in groups[PAIRS:]):,}",
            "",
        )
    return table


def _worst(found: Audit) -> Table:
    table = Table("row", "given → suggested", "p", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for row in found.flagged.head(PAIRS).itertuples():
        table.add_row(str(row[1]), Text(f"{row.given} → {row.suggested}"), f"{row.p_error:.2f}")
    return table


def _sample(found: Audit, row: int) -> str:
    from compensate.auditing.content import sample_content

    if found.ids and found.kind == "image":
        return short(found.ids[row], 50)
    shown = sample_content(found.data, int(found.position(row)))
    if shown.text is not None:
        return f'"{short(" ".join(shown.text[:500].split()), 50)}"'
    if shown.fields:
        return short(", ".join(f"{name} {value}" for name, value in shown.fields[:4]), 50)
    return f"row {found.rows[row]}"


def audit(
    data: Annotated[
        str | None,
        typer.Argument(
            help="A .csv, .tsv, .jsonl, .xlsx, .parquet, .npy, .npz or .conll file, a folder of images or of Parquet files, "
            "a quoted pattern such as `'data/*.parquet'` or `'s3://bucket/data/*.parquet'`, or a named data set.",
            show_default=False,
        ),
    ] = None,
    label: o.Label = None,
    text: o.Text = None,
    ignore: o.Ignore = None,
    columns: o.Columns = None,
    labels_columns: Annotated[
        str | None, o.option("Columns of 0 and 1, one per label, separated by commas, for multi-label data.")
    ] = None,
    labels: Annotated[Path | None, o.option("Label file, for an array or a folder of images.")] = None,
    features: Annotated[
        Path | None,
        o.option("Embeddings of the samples: an .npy file, one row per sample."),
    ] = None,
    probs: Annotated[
        Path | None,
        o.option("Out-of-sample class probabilities, an .npy file of shape (N, C); no model is trained."),
    ] = None,
    encoder: Annotated[
        str, typer.Option(help="Pretrained encoder for texts and images: auto, none, a name, or a folder.")
    ] = "auto",
    task: Annotated[
        str | None,
        o.option("Task: classification or regression [default: by the labels]."),
    ] = None,
    model: Annotated[
        str | None,
        o.option(
            "Deep model to train on images or numbers, e.g. resnet20, cnn or mlp; for texts see --finetune [default: none]."
        ),
    ] = None,
    finetune: Annotated[
        bool,
        typer.Option(
            "--finetune", help="Train the encoder too, with a linear head on the labels; for texts and images."
        ),
    ] = False,
    crossfit: Annotated[
        bool,
        typer.Option("--crossfit", help="Train the network once per fold, and pool it with the other learners."),
    ] = False,
    split: Annotated[
        str | None,
        o.option("Rows of a table with a column `split`: train, or all [default: train]."),
    ] = None,
    missing: Annotated[
        str | None,
        o.option(
            "Cells that stand for a missing label, e.g. NA,unknown [default: NA, N/A, nan, null and empty cells]."
        ),
    ] = None,
    merge_alike: Annotated[
        bool,
        typer.Option(
            "--merge-alike", help="Take labels that differ only in case, spacing or Unicode form for one class."
        ),
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(
            help="What to look for: labels leaves out duplicates, outliers and other issues [default: all].",
            show_default=False,
        ),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(
            help="Test set to check for leakage: its rows that also occur in the data are reported.", show_default=False
        ),
    ] = None,
    epochs: o.Epochs = None,
    batch_size: o.BatchSize = None,
    lr: o.Rate = None,
    precision: o.Precision = None,
    size: Annotated[int | None, o.option("Resize images to this many pixels.")] = None,
    seed: o.Seed = None,
    data_dir: o.DataDir = None,
    encoding: o.Encoding = None,
    delimiter: o.Delimiter = None,
    labels_key: Annotated[str | None, o.option("Name of the label set, for a label file that holds several.")] = None,
    with_: Annotated[
        Path | None,
        o.option(
            "Run folder whose decisions to use: audit its data again, with decided labels taken as right.", "--with"
        ),
    ] = None,
    memory: Annotated[
        str | None,
        o.option("Memory that the audit may take, e.g. 2GB: Parquet and .npy files are then read in pieces."),
    ] = None,
    backend: o.Backend = None,
    out: Annotated[Path | None, o.option("Run folder [default: runs/NAME-DIGEST].")] = None,
) -> None:
    """Find the labels that look wrong, and write a page to review them on.

    **Example:** `compensate audit reviews.csv`

    The label column is found by its name (label, target, class, sentiment, ...) or as the column that the others predict
    best; `--label` names another. The run folder has the review page, a list of suspects and the settings.

    `--model` and `--finetune` train a network. If the command is interrupted, the same command resumes. In several
    processes: `torchrun --nproc-per-node 2 -m compensate audit ...`

    To audit again with the decisions of a review: `compensate audit --with runs/reviews-3f2a`
    """
    started = time.perf_counter()
    if only not in (None, "labels"):
        raise InputError(f'--only is "{only}"; expected labels.')
    if only is not None and test is not None:
        raise InputError(
            "--test looks for rows of the test set, and --only labels for wrong labels alone; leave one of them out."
        )
    chosen: dict[str, Any] = {
        "label": label, "text": text, "ignore": ignore, "columns": columns, "task": task, "size": size,
        "encoding": encoding, "delimiter": delimiter, "labels_key": labels_key, "labels_columns": labels_columns,
        "split": split, "missing": missing, "merge_alike": merge_alike or None,
    }  # fmt: skip
    options = {name: value for name, value in chosen.items() if value is not None}
    if probs is not None and (finetune or model is not None):
        raise InputError(f"--probs takes the place of a model; leave out {'--finetune' if finetune else '--model'}.")
    o.check_path(data, labels, features, probs, test, with_)
    from compensate.auditing.request import AuditRequest, ReviewedRun, is_main_process, run_audit

    request = AuditRequest(
        data=data, labels=labels, features=features, probs=probs, data_dir=data_dir, options=options, encoder=encoder,
        model=model, finetune=finetune, crossfit=crossfit, epochs=epochs, batch_size=batch_size, lr=lr,
        precision=precision or "no", seed=seed, only=only, test=test, memory=memory, backend=backend or "local",
    )  # fmt: skip
    console.quiet = not is_main_process()
    reviewed = None
    if with_ is not None:
        reviewed = ReviewedRun.load(with_)
        request = request.with_defaults(reviewed.request)
        o.check_path(request.data, request.labels, request.features, request.probs, request.test)
    found, folder = run_audit(
        request,
        lambda data, **settings: _judge(data, started, **settings),
        reviewed=reviewed,
        out=out,
        ask_label=o.ask_label,
        ask_merge=lambda data: o.ask_merge(similar_class_names(data)),
    )
    if not is_main_process():
        return
    told = () if found.data is None else found.data.source.notes  # in the first line
    for note in (note for note in found.notes if note not in told):
        console.print(Text.assemble(("note: ", "yellow"), note))
    print_summary(found, folder)


def audit_again(run: Path, progress: Callable[[str, int, int], None]) -> Path:
    """Audits the data of a run again with its decisions, and returns the new run folder; prints nothing."""
    from compensate.auditing.api import audit as judge
    from compensate.auditing.request import AuditRequest, ReviewedRun, run_audit

    reviewed = ReviewedRun.load(run)
    request = AuditRequest().with_defaults(reviewed.request)

    def judged(data: Any, **settings: Any) -> Audit:
        return judge(data, progress=progress, resume=True, **settings)

    return run_audit(request, judged, reviewed=reviewed)[1]


def _judge(data: Dataset, started: float, **settings: Any) -> Audit:
    """Audits the data and prints a line for each stage."""
    from compensate.auditing.api import audit as run
    from compensate.auditing.source import labeled

    if data.parts is None:
        labeled(data)
    console.print(describe_data(data), markup=False)
    with stage_progress(started) as progress:
        found = run(data, progress=progress, resume=True, **settings)
    how = found.provenance
    if how.encoder:
        console.print(f"encoded   {how.encoder} ({how.license or 'license unknown'})", markup=False)
    if how.finetuned:
        times = f"once for each of {how.folds} folds" if how.crossfit else "once"
        console.print(f"tuned     {how.finetuned} · {how.epochs} epochs, {times}", markup=False)
    console.print(f"fitted    {describe_fit(found)} · {clock(time.perf_counter() - started)}", markup=False)
    if how.hint:
        console.print(f"better features: {how.hint}", markup=False, soft_wrap=True)
    return found
