"""What `compensate audit` says: what was read, how it was fitted, what was found and where it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from compensate.commands import options as o
from compensate.commands.opening import chosen_columns, short, unused_columns
from compensate.commands.terminal import console

if TYPE_CHECKING:
    from compensate.auditing.result import Audit
    from compensate.data.dataset import Data

PAIRS = 6
"""Lines of the summary's table."""

OPEN = 10
"""Where the upper end of the interval is this many times the estimate, the summary says that the share cannot be known."""


def opening_line(source: Data) -> str:
    """One line that says what was read and what was chosen."""
    info = source.info
    parts = [f"{info.get('title', 'the data')}: {_rows(source)}"]
    if "parts" in info:
        said = info["parts"].described()
    elif source.regression:
        y = source.target[source.labeled]
        said = f"a quantity from {y.min():g} to {y.max():g}" if len(y) else "empty"
    else:
        counts = source.class_counts
        order = counts.argsort()[::-1][:4]
        named = " · ".join(f"{short(source.classes[c])} {counts[c]:,}" for c in order)
        said = f"{source.num_classes} classes: {named}{' · …' if source.num_classes > 4 else ''}"
    parts += chosen_columns(info, said)
    lost = int((~source.labeled).sum())
    if lost and "parts" not in info:
        parts.append(f"{lost:,} without a label{_missing(info, lost)}, which {'is' if lost == 1 else 'are'} predicted")
    parts += _alike(source)
    if info.get("missing_given") is None and "parts" not in info:
        from compensate.data.labels import NOT_APPLICABLE

        parts += [
            f'"{name}" is taken for a class; if it means a missing label: --missing {name}'
            for name in source.classes
            if name.lower() in NOT_APPLICABLE
        ]
    return ", ".join([*parts, *unused_columns(info)])


def _rows(source: Data) -> str:
    """How many rows are audited, and of how many."""
    from compensate.auditing.source import left_out

    if not source.info.get("left_out"):
        return f"{len(source):,} rows"
    named, how = left_out(source.info)
    return f"{len(source):,} of {len(source) + sum(source.info['left_out'].values()):,} rows (left out: {named}; {how})"


def alike_classes(source: Data) -> str:
    """The classes whose names differ only in case, spacing or Unicode form, most frequent first; empty if there are none.

    >>> import numpy as np
    >>> from compensate.data.dataset import Data
    >>> alike_classes(Data(np.eye(3), np.array([0, 1, 1]), ("Cat", "cat", "dog")))
    '"cat" 2, "Cat" 1'
    """
    from compensate.auditing.class_names import spellings

    if source.regression or "parts" in source.info:
        return ""
    counts = source.class_counts
    groups = [sorted((c for c in group if counts[c]), key=lambda c: -counts[c]) for group in spellings(source.classes)]
    return "; ".join(
        ", ".join(f'"{short(source.classes[c])}" {counts[c]:,}' for c in group)
        for group in groups[:3]
        if len(group) > 1
    )


def _alike(source: Data) -> list[str]:
    merged: dict[str, list[str]] = {}
    for other, name in source.info.get("merged", {}).items():
        merged.setdefault(name, []).append(f'"{short(other)}"')
    if merged:
        return [f'merged into "{short(name)}": {", ".join(others[:4])}' for name, others in list(merged.items())[:3]]
    alike = alike_classes(source)
    return (
        [f"names that differ only in case, spacing or Unicode form: {alike} (--merge-alike takes them for one class)"]
        if alike
        else []
    )


def _missing(info: Mapping[str, Any], lost: int) -> str:
    """The cells that count as missing labels, if they are not just empty."""
    cells = Counter(info.get("missing", {}))
    empty = sum(cells.pop(text, 0) for text in ("", "None", "nan") if text not in (info.get("missing_given") or ()))
    if not cells:
        return ""
    known = sum(cells.values()) + empty == lost  # else other rows have some of them
    counts = {f'"{short(text)}"': cells[text] for text in sorted(cells)} | ({"empty": empty} if empty else {})
    return f" ({', '.join(f'{text} {count:,}' if known else text for text, count in counts.items())})"


def fitted_line(found: Audit) -> str:
    """Folds, the weight of each view, and how far the pooled model agrees with the labels."""
    weights: Counter[str] = Counter()
    for name, weight in found.config.get("views", {}).items():
        weights[name.split(": ")[0]] += weight
    views = ", ".join(f"{short(name)} {weight:.1f}" for name, weight in weights.most_common(4) if weight >= 0.05)
    agrees = found.config.get("agreement", 0.0)
    fits = f"explains {agrees:.2f} of the spread" if found.regression else f"agrees with {agrees:.2f} of labels"
    return f"{found.config.get('folds', 1)} folds · {views} · {fits}"


def print_summary(found: Audit, folder: Path) -> None:
    rate = found.noise_rate
    flagged = int(found.mask.sum())
    what = "values" if found.regression else "labels"
    precision = f" — {flagged:,} flagged, at {found.expected_precision:.2f} expected precision"
    if not flagged:
        precision = f" — none of the {what} stands out; the least certain are on the page"
    by_chance = bool(found.config.get("by_chance"))
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
    if "since" in found.config:
        console.print(_since(found.config["since"]), markup=False)
    from compensate.auditing.issues import summary
    from compensate.auditing.page.fill import command

    said = {
        "review them": f"compensate review {o.quoted(folder)}      or open {folder / 'report.html'}; list: {folder / 'suspects.csv'}",
        "all rows": f"{folder / 'suspects'}/*.parquet" if found.listed is not None else "",
        "predicted": str(folder / "predictions.csv") if len(found.predicted) else "",
        "also found": "",
        "then": f"compensate apply {o.quoted(folder)}" if command(found) else "",
    }
    if by_chance:  # there is nothing to do with such labels
        said = {"also found": ""}
    if found.found_issues is not None and len(found.found_issues):
        said["also found"] = f"{summary(found.found_issues)}: {folder / 'issues.csv'}"
    for name, line in said.items():
        if line:
            console.print(f"{name + ':':<13} {line}", markup=False, soft_wrap=True)


def _since(since: dict[str, Any]) -> str:
    decided = since["corrected"] + since["confirmed"]
    return (
        f"with {decided:,} decided labels ({since['corrected']:,} corrected, {since['confirmed']:,} confirmed); "
        f"new suspects: {len(since['new']):,}, no longer suspect: {len(since['gone']):,}"
    )


def _pairs(found: Audit) -> Table:
    shown = found if found.listed is None else found.listed
    flagged, order = shown.flagged, (-shown.log_odds).argsort(kind="stable")
    # Of label sets, it counts which label is missing or too much.
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
    from compensate.auditing.page.fill import content

    if found.ids and found.kind == "image":
        return short(found.ids[row], 50)
    shown = content(found.data, int(found.position(row)))
    if shown.text is not None:
        return f'"{short(" ".join(shown.text[:500].split()), 50)}"'
    if shown.fields:
        return short(", ".join(f"{name} {value}" for name, value in shown.fields[:4]), 50)
    return f"row {found.rows[row]}"
