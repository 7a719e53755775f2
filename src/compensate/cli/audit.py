"""`compensate audit`: find the labels that look wrong."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.prompt import Confirm, Prompt
from rich.table import Table
from rich.text import Text

from compensate.auditing.actions import wrong_units
from compensate.auditing.api import audit as judge
from compensate.auditing.class_names import spellings
from compensate.auditing.content import sample_content
from compensate.auditing.issues import next_step, summary
from compensate.auditing.labels import labels_of
from compensate.auditing.page import command
from compensate.auditing.request import AuditRequest, ReviewedRun, is_main_process, run_audit
from compensate.auditing.result import Audit
from compensate.auditing.sampling import describe_looks
from compensate.auditing.source import labeled, left_out
from compensate.cli import options as o
from compensate.cli.terminal import (
    bar,
    clock,
    console,
    plain_table,
    plural,
    print_json,
    quoted,
    say,
    short,
    stage_progress,
)
from compensate.data.dataset import Dataset
from compensate.data.label_column import UnclearLabel
from compensate.data.labels import NOT_APPLICABLE
from compensate.errors import InputError, check

READER = (
    "label", "text", "ignore", "columns", "task", "size", "encoding", "delimiter", "labels_key", "labels_columns", "split", "missing",
)  # fmt: skip
"""Options of the reader."""

PAIRS = 6  # rows of the table in the summary
LEVELS = (1.0, 0.9, 0.7, 0.5, 0.3, 0.1)  # probabilities between the bars of the picture
SHOWN = 12  # annotators that are printed
WIDE = 0.1  # an interval is wide if it starts at 0 and ends above this share


def describe_data(source: Dataset) -> str:
    """One line about the data: rows, columns and labels."""
    info = source.source
    rows = f"{len(source):,} rows"
    if info.left_out:
        named, how = left_out(info)
        rows = f"{len(source):,} of {len(source) + sum(info.left_out.values()):,} rows (left out: {named}; {how})"
    parts = [f"{info.title}: {rows}", *o.describe_columns(info, labels_of(source).describe(source, short))]
    lost = int((~source.labeled).sum())
    if lost and source.parts is None:
        cells = Counter(info.missing)
        empty = sum(cells.pop(text, 0) for text in ("", "None", "nan") if text not in (info.missing_given or ()))
        counts = {f'"{short(text)}"': cells[text] for text in sorted(cells)} | ({"empty": empty} if empty else {})
        known = sum(counts.values()) == lost  # else other rows have some of them
        listed = ", ".join(f"{text} {count:,}" if known else text for text, count in counts.items())
        why = f" ({listed})" if cells else ""
        parts.append(f"{lost:,} without a label{why}, which {'is' if lost == 1 else 'are'} predicted")
    merged: dict[str, list[str]] = {}
    for other, name in info.merged.items():
        merged.setdefault(name, []).append(f'"{short(other)}"')
    parts += [f'merged into "{short(name)}": {", ".join(others[:4])}' for name, others in list(merged.items())[:3]]
    alike, option = similar_class_names(source), "--merge-alike takes them for one class"
    if alike and not merged:
        parts.append(f"names that differ only in case, spacing or Unicode form: {alike} ({option})")
    if info.missing_given is None and source.parts is None:
        parts += [
            f'"{name}" is taken for a class; if it means a missing label: --missing {name}'
            for name in source.classes
            if name.lower() in NOT_APPLICABLE
        ]
    return ", ".join([*parts, *o.describe_unused(info, source.parts)])


def similar_class_names(source: Dataset) -> str:
    """Classes whose names differ only in case, spacing or Unicode form, most frequent first; empty without any.

    >>> import numpy as np
    >>> similar_class_names(Dataset(np.eye(3), np.array([0, 1, 1]), ("Cat", "cat", "dog")))
    '"cat" 2, "Cat" 1'
    """
    if source.regression or source.parts is not None:
        return ""
    counts = source.class_counts
    groups = [sorted((c for c in group if counts[c]), key=lambda c: -counts[c]) for group in spellings(source.classes)]
    named = [[f'"{short(source.classes[c])}" {counts[c]:,}' for c in group] for group in groups[:3] if len(group) > 1]
    return "; ".join(map(", ".join, named))


def asks() -> bool:
    """Whether a person can answer questions."""
    return sys.stdin.isatty() and sys.stdout.isatty() and not console.stderr


def ask_label(error: UnclearLabel) -> str:
    """Asks for the label column at a terminal; raises the error elsewhere."""
    if not asks():
        raise error
    typer.echo(str(error))
    return Prompt.ask("label column", choices=list(error.candidates), default=error.candidates[0])


def ask_merge(data: Dataset) -> bool:
    """Asks at a terminal whether to merge similar class names; False elsewhere."""
    alike = similar_class_names(data)
    question = f"These names differ only in case, spacing or Unicode form: {alike}. Take them for one class?"
    return bool(alike) and asks() and Confirm.ask(question)


def print_summary(found: Audit, folder: Path) -> None:
    """Prints the share of wrong labels, the most suspect ones, and the next commands."""
    rate, flagged = found.noise_rate, int(found.mask.sum())
    what = "values" if found.regression else "labels"
    by_chance, looks = bool(found.provenance.by_chance), found.provenance.looks
    said = f"about {rate.value:.1%} of the {what} look wrong (90% interval: {rate.low:.1%} to {rate.high:.1%})"
    said = said if looks is None else describe_looks(looks)
    sentence = found.label_kind.summary(found)
    say(sentence or ("the " + what + " cannot be judged: see the note above" if by_chance and looks is None else said))
    if not by_chance and not sentence and looks is None and rate.low <= 0 and rate.high > max(WIDE, 2 * rate.value):
        wide = f"the interval is wide: wrong {what} and unusual rows look alike to the models"
        console.print(wide, style="dim")
    if not by_chance and not sentence:
        least = f"no {what[:-1]} is wrong with enough certainty to be flagged; the page shows the least certain rows"
        say(found.flag_summary if flagged else least)
        say(describe_workload(found))
    if flagged and found.regression:
        table = plain_table("row", "given → suggested", "probability of error", padding=(0, 3, 0, 0))
        for row in found.flagged.head(PAIRS).itertuples():
            table.add_row(str(row[1]), Text(f"{row.given} → {row.suggested}"), f"{row.p_error:.2f}")
        console.print(table)
    elif flagged and not sentence:
        console.print(_pairs(found))
    if console.is_terminal and not by_chance and not sentence:
        console.print(picture(found))
    since = found.provenance.since
    if since is not None:
        say(
            f"with {since['corrected'] + since['confirmed']:,} decided labels ({since['corrected']:,} corrected, "
            f"{since['confirmed']:,} confirmed); new suspects: {len(since['new']):,}, no longer suspect: {len(since['gone']):,}"
        )
    if found.provenance.annotators and found.data is not None:
        print_annotators(found.data.parts.consensus, folder)
    page, listed, issues = folder / "report.html", folder / "suspects.csv", found.found_issues
    apply = f"compensate apply {quoted(folder)}"
    slipped, fill = (len(wrong_units(found)), "") if found.regression else (0, f"; to fill them in: {apply} --fill 0.9")
    lines = {
        "review them": f"compensate review {quoted(folder)}      or open {page}; list: {listed}",
        "all rows": f"{folder / 'suspects'}/*.parquet" if found.listed is not None else "",
        "predicted": f"{folder / 'predictions.csv'}{fill}" if len(found.predicted) else "",
        "also found": f"{summary(issues)}: {folder / 'issues.csv'}" if issues is not None and len(issues) else "",
        "act on that": next_step(issues, found.classes, quoted(folder)) if issues is not None and len(issues) else "",
        "wrong units": f"{plural(slipped, 'value')}, by a factor of 10, 100 or 1,000: {apply} --units" * (slipped > 0),
        "then": apply if command(found) else "",
    }
    for name, line in lines.items():
        # There is nothing to do with labels at chance.
        if line and (name in ("also found", "act on that") or not by_chance):
            say(f"{name + ':':<13} {line}", wrap=False)


def print_annotators(agreed: Any, folder: Path) -> None:
    """Prints how good each annotator is, the worst first, and where the consensus is listed."""
    table = plain_table("annotator", "votes", "share of right votes (90% interval)", padding=(0, 3, 0, 0))
    for who, row in agreed.quality.sort_values("accuracy").head(SHOWN).iterrows():
        right = f"{row['accuracy']:.0%} ({row['low']:.0%} to {row['high']:.0%})"
        table.add_row(Text(str(who)), f"{int(row['votes']):,}", right)
    if len(agreed.quality) > SHOWN:
        table.add_row(Text(f"and {len(agreed.quality) - SHOWN} better annotators", style="dim"), "", "")
    console.print(table)
    differs = f"the consensus differs from the majority for {agreed.changed:,} items"
    say(f"{differs}; about {agreed.p_error().mean():.1%} of its labels should be wrong")
    for what in ("consensus", "annotators", "label_again"):
        say(f"{what.replace('_', ' ') + ':':<13} {folder / what}.csv", wrap=False)


def describe_workload(found: Audit) -> str:
    """One line: how many errors are expected in the first labels of the list."""
    asked, rows = found.provenance.first, found.workload
    rows = rows[rows["first"] == asked] if asked in set(rows["first"]) else rows
    parts = [
        f"the first {first:,.0f}: about {plural(round(errors), 'error')} ({low:,.0f} to {high:,.0f})"
        for first, errors, low, high in rows.to_numpy().tolist()
    ]
    return f"look at {'; '.join(parts)}"


def picture(found: Audit) -> Table:
    """A bar for each range of the probability of error; colored where labels are flagged."""
    table = plain_table("probability of error", "labels", "", padding=(0, 2, 0, 0))
    table.columns[1].justify = "right"
    ends = list(pairwise(LEVELS))
    counts = [int(((found.p_error >= low) & (found.p_error < high + (high == 1))).sum()) for high, low in ends]
    for (high, low), count in zip(ends, counts, strict=True):
        style = "red" if high > found.threshold else "dim"
        table.add_row(f"{low:g} to {high:g}", f"{count:,}", Text(bar(count / max(*counts, 1)), style=style))
    return table


def _pairs(found: Audit) -> Table:
    """The most frequent pairs of given and suggested labels, each with its most suspect sample; for label sets, by label."""
    shown = found.shown
    flagged, order = shown.flagged, (-shown.log_odds).argsort(kind="stable")
    names = [name for name in ("label", "given", "suggested") if name in flagged.columns]

    def named(*parts: Any) -> str:
        *label, given, suggested = map(short, parts)
        return ": ".join([*label, f"{given} → {suggested}"])

    keys = counted = [named(*row) for row in flagged[names].itertuples(index=False)]
    if found.listed is not None:
        counted = list(map(named, found.names(found.given[found.mask]), found.names(found.suggested[found.mask])))
    table = plain_table(f"{'label: ' * ('label' in names)}given → suggested", "rows", "", padding=(0, 3, 0, 0))
    groups = Counter(counted).most_common()
    others = groups[PAIRS:]
    for key, count in groups[:PAIRS]:
        sample = _sample(shown, int(order[flagged.index[keys.index(key)]])) if key in keys else ""
        table.add_row(Text(key), f"{count:,}", Text(sample, style="dim"))
    if others:
        more = Text(f"and {len(others)} more pair{'s' * (len(others) > 1)}", style="dim")
        table.add_row(more, f"{sum(count for _, count in others):,}", "")
    return table


def _sample(found: Audit, row: int) -> str:
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
        o.argument(
            "A .csv, .tsv, .jsonl, .json, .xlsx, .parquet, .npy, .npz or .conll file, a folder of images or of Parquet files, "
            "a quoted pattern such as `'data/*.parquet'` or `'s3://bucket/data/*.parquet'`, or a named data set."
        ),
    ] = None,
    label: o.Label = None,
    text: o.Text = None,
    ignore: o.Ignore = None,
    columns: o.Columns = None,
    labels_columns: Annotated[str | None, o.option("Columns of 0 and 1, one per label, separated by commas, for multi-label data.")] = None,
    labels: Annotated[Path | None, o.option("Label file, for an array or a folder of images.")] = None,
    features: Annotated[Path | None, o.option("Embeddings of the samples: an .npy file, one row per sample, or a column of lists of numbers.")] = None,
    probs: Annotated[Path | None, o.option("Out-of-sample class probabilities, an .npy file of shape (N, C), in place of the models.")] = None,
    describe: Annotated[Path | None, o.option("A sentence about each class: lines `class: sentence` in a .yaml file, or a table of two columns.")] = None,
    opinion: Annotated[Path | None, o.option("Labels or probabilities by another annotator or model that never saw these labels: .csv, .npy or .txt.")] = None,
    encoder: Annotated[str, typer.Option(help="Pretrained encoder for texts and images: auto, none, a name, or a folder.")] = "auto",
    task: Annotated[str | None, o.option("Task: classification, regression or preference [default: by the labels].")] = None,
    model: Annotated[str | None, o.option(
        "Deep model to train on images or numbers, e.g. resnet20, cnn or mlp; for texts see --finetune [default: none]."
    )] = None,
    finetune: Annotated[bool, o.option("Train the encoder too, with a linear head on the labels; for texts and images.", "--finetune")] = False,
    crossfit: Annotated[bool, o.option("Train the network once per fold, and pool it with the other learners.", "--crossfit")] = False,
    split: Annotated[str | None, o.option("Rows of a table with a column `split`: train, test, validation or all [default: train].")] = None,
    missing: Annotated[str | None, o.option("Cells that stand for a missing label, e.g. NA,unknown [default: NA, N/A, nan, null and empty cells].")] = None,
    merge_alike: Annotated[bool, o.option("Take labels that differ only in case, spacing or Unicode form for one class.", "--merge-alike")] = False,
    only: Annotated[str | None, o.option("What to look for: labels leaves out duplicates, outliers and other issues [default: all].")] = None,
    test: Annotated[str | None, o.option("Test set to check for leakage: its rows that also occur in the data are reported.")] = None,
    epochs: o.Epochs = None,
    batch_size: o.BatchSize = None,
    lr: o.Rate = None,
    precision: Annotated[str | None, o.option(
        "Expected share of flags that are right, e.g. 0.8: as many labels are flagged [default: an error is twice as likely as not]. For a "
        "training also its mixed precision: bf16 or fp16."
    )] = None,
    budget: Annotated[int | None, o.option("Number of labels to flag: the first of the list.")] = None,
    size: Annotated[int | None, o.option("Resize images to this many pixels.")] = None,
    seed: o.Seed = None,
    data_dir: o.DataDir = None,
    encoding: o.Encoding = None,
    delimiter: o.Delimiter = None,
    labels_key: Annotated[str | None, o.option("Name of the label set, for a label file that holds several.")] = None,
    with_: Annotated[Path | None, o.option("Run folder whose decisions to use: audit its data again, with decided labels taken as right.", "--with")] = None,
    memory: Annotated[str | None, o.option("Memory that the audit may take, e.g. 2GB: Parquet and .npy files are then read in pieces.")] = None,
    backend: o.Backend = None,
    out: Annotated[Path | None, o.option("Run folder [default: runs/NAME-DIGEST].")] = None,
    json_: o.Json = False,
) -> None:  # fmt: skip
    """Find the labels that look wrong, and write a page to review them on.

    **Example:** `compensate audit reviews.csv`

    The label column is found by its name (label, target, class, sentiment, ...) or as the column that the others predict
    best; `--label` names another. The run folder has the review page, a list of suspects and the settings.

    `--model` and `--finetune` train a network. If the command is interrupted, the same command resumes. In several
    processes: `torchrun --nproc-per-node 2 -m compensate audit ...`

    To audit again with the decisions of a review: `compensate audit --with runs/reviews-3f2a`
    """
    given, started = locals(), time.perf_counter()
    check(only in (None, "labels"), "labels", **{"--only": f'"{only}"'})
    if only is not None and test is not None:
        raise InputError(
            "--test looks for rows of the test set, and --only labels for wrong labels alone; leave one of them out."
        )
    options = {name: given[name] for name in READER if given[name] is not None}
    options |= {"merge_alike": True} if merge_alike else {}
    if probs is not None and (finetune or model is not None):
        raise InputError(f"--probs takes the place of a model; leave out {'--finetune' if finetune else '--model'}.")
    o.check_path(data, labels, features and str(features), probs, describe, opinion, test, with_)
    if precision is not None and re.fullmatch(r"[\d.]+", precision):
        given |= {"precision": None, "flag_precision": o.share(precision, "--precision")}
    check(budget is None or budget >= 1, "1 or more", **{"--budget": budget})
    settings = {f.name: given[f.name] for f in fields(AuditRequest) if given.get(f.name) is not None}
    request = AuditRequest(options=options, **settings)
    console.quiet = not is_main_process()
    reviewed = None
    if with_ is not None:
        reviewed = ReviewedRun.load(with_)
        request = request.with_defaults(reviewed.request)
        features = request.features
        o.check_path(request.data, request.labels, features and str(features), request.probs, request.test)

    def judged(data: Dataset, **settings: Any) -> Audit:
        """Audits the data and prints a line for each stage."""
        labeled(data)
        say(describe_data(data))
        with stage_progress(started) as progress:
            found = judge(data, progress=progress, resume=True, **settings)
        how = found.provenance
        if how.encoder:
            say(f"encoded   {how.encoder} ({how.license or 'license unknown'})")
        if how.finetuned:
            times = f"once for each of {how.folds} folds" if how.crossfit else "once"
            say(f"tuned     {how.finetuned} · {how.epochs} epochs, {times}")
        weights: Counter[str] = Counter()
        for name, weight in how.views.items():
            weights[name.split(": ")[0]] += weight  # type: ignore[assignment]
        views = ", ".join(f"{short(name)} {weight:.0%}" for name, weight in weights.most_common(4) if weight >= 0.05)
        agrees = how.agreement or 0.0
        fits = f"predictions agree with {agrees:.0%} of the labels"
        if found.regression:
            fits = f"the usual error is {agrees:.0%} smaller than that of the median"
        if how.views:
            say(f"judged    {how.folds} folds · by {views} · {fits} · {clock(time.perf_counter() - started)}")
        if how.hint:
            say(f"better features: {how.hint}", wrap=False)
        return found

    found, folder = run_audit(request, judged, reviewed=reviewed, out=out, ask_label=ask_label, ask_merge=ask_merge)
    if not is_main_process():
        return
    told = () if found.data is None else found.data.source.notes  # in the first line
    for note in (note for note in found.notes if note not in told):
        console.print(Text.assemble(("note: ", "yellow"), note))
    print_summary(found, folder)
    if json_:
        print_json({"run": folder, **found.figures})
