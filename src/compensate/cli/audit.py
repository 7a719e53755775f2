"""An audit after another one, with the decisions that people made on the first."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from compensate.auditing.decisions import Correction, RowPlaces, run_decisions
from compensate.auditing.result import Audit
from compensate.cli import options as o
from compensate.cli.options import chosen_columns, clock, console, short, told_stages, unused_columns
from compensate.data.dataset import Dataset, Source
from compensate.errors import InputError
from compensate.files import is_address

if TYPE_CHECKING:
    from compensate.auditing.result import Audit
    from compensate.data.dataset import Dataset

ASKED: dict[str, tuple[type, ...]] = {
    "data": (str, type(None)), "labels": (str, type(None)), "features": (str, type(None)), "probs": (str, type(None)),
    "data_dir": (str, type(None)), "options": (dict,), "encoder": (str,), "model": (str, type(None)),
    "finetune": (bool,), "crossfit": (bool,), "epochs": (int, type(None)), "batch_size": (int, type(None)),
    "lr": (int, float, type(None)), "precision": (str,), "seed": (int,),
}  # fmt: skip
"""What a run keeps of how it was asked for."""


@dataclass(frozen=True, eq=False)
class Before:
    """A run that was reviewed.

    Attributes:
        folder: of the run.
        audit: what it found.
        asked: how it was asked for.
        decisions: what was decided.
    """

    folder: Path
    audit: Audit
    asked: Mapping[str, Any]
    decisions: tuple[Correction, ...]


def read_before(run: Path) -> Before:
    """A run from its folder; refused if it cannot be asked for again, or if nothing was decided."""
    audit = Audit.load(run / "audit")
    asked = audit.provenance.asked
    fits = isinstance(asked, dict) and all(
        name in asked and isinstance(asked[name], kinds) for name, kinds in ASKED.items()
    )
    if not fits:
        raise InputError(
            f"{run} does not say how it was made; expected a run that `compensate audit` wrote. Audit again."
        )
    assert isinstance(asked, dict)
    if audit.regression or asked["probs"]:
        raise InputError(
            f"{run} is an audit of quantities or of probabilities, for which decisions cannot be used again."
        )
    decisions = tuple(d for d in run_decisions(run) if d.decision != "skip")
    if not decisions:
        raise InputError(f"nothing was decided in {run}; review it first: compensate review {run}.")
    return Before(run, audit, asked, decisions)


def check_about(before: Before, data: Dataset) -> None:
    """Refuses decisions of which no row is in the data: they were made on something else."""
    places = RowPlaces(data)
    if all(places.find(decision) is None for decision in before.decisions):
        here = data.source.title
        raise InputError(
            f"the decisions in {before.folder} are about {before.audit.title}, and none of their rows is in {here}; give the run of a "
            f"review of {here}, or leave {here} out to audit {before.audit.title} again."
        )


def changed_since(found: Audit, before: Audit, run: Path) -> Audit:
    """The audit with what changed since another one: suspects that are new, and rows that are suspect no longer.

    Args:
        found: made with decisions about labels of the other.
        before: the other one.
        run: its folder, for the report.
    """
    decided = found.provenance.decided or {"rows": [], "corrected": 0, "confirmed": 0}
    there, here = _suspects(before, found), {int(i) for i in found.index[found.mask]}
    known = {int(i) for i in found.index}
    since = {
        "run": run.name,
        "corrected": decided["corrected"],
        "confirmed": decided["confirmed"],
        "new": sorted(here - there),
        "gone": sorted((there & known) - here - set(decided["rows"])),
    }
    return replace(found, provenance=replace(found.provenance, decided=None, since=since))


def _suspects(before: Audit, found: Audit) -> set[int]:
    """The flagged rows of an earlier audit, as rows of the present data: by number, or by content if the file is another one."""
    rows = np.flatnonzero(before.mask)
    if before.source_digest == found.source_digest or found.row_digests is None or before.row_digests is None:
        return {int(i) for i in before.index[rows]}
    flagged: NDArray[np.uint64] = before.row_digests[rows]
    return {int(i) for i in found.index[np.isin(found.row_digests, flagged[flagged > 0])]}


PAIRS = 6
"""Lines of the summary's table."""

OPEN = 10
"""Where the upper end of the interval is this many times the estimate, the summary says that the share cannot be known."""


def opening_line(source: Dataset) -> str:
    """One line that says what was read and what was chosen."""
    info = source.source
    parts = [f"{info.title}: {_rows(source)}"]
    if source.parts is not None:
        said = source.parts.described()
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
    return ", ".join([*parts, *unused_columns(info, source.parts)])


def _rows(source: Dataset) -> str:
    """How many rows are audited, and of how many."""
    from compensate.auditing.source import left_out

    if not source.source.left_out:
        return f"{len(source):,} rows"
    named, how = left_out(source.source)
    return f"{len(source):,} of {len(source) + sum(source.source.left_out.values()):,} rows (left out: {named}; {how})"


def alike_classes(source: Dataset) -> str:
    """The classes whose names differ only in case, spacing or Unicode form, most frequent first; empty if there are none.

    >>> import numpy as np
    >>> from compensate.data.dataset import Data
    >>> alike_classes(Dataset(np.eye(3), np.array([0, 1, 1]), ("Cat", "cat", "dog")))
    '"cat" 2, "Cat" 1'
    """
    from compensate.auditing.issues.samples import spellings

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
    alike = alike_classes(source)
    return (
        [f"names that differ only in case, spacing or Unicode form: {alike} (--merge-alike takes them for one class)"]
        if alike
        else []
    )


def _missing(info: Source, lost: int) -> str:
    """The cells that count as missing labels, if they are not just empty."""
    cells = Counter(info.missing)
    empty = sum(cells.pop(text, 0) for text in ("", "None", "nan") if text not in (info.missing_given or ()))
    if not cells:
        return ""
    known = sum(cells.values()) + empty == lost  # else other rows have some of them
    counts = {f'"{short(text)}"': cells[text] for text in sorted(cells)} | ({"empty": empty} if empty else {})
    return f" ({', '.join(f'{text} {count:,}' if known else text for text, count in counts.items())})"


def fitted_line(found: Audit) -> str:
    """Folds, the weight of each view, and how far the pooled model agrees with the labels."""
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
    from compensate.auditing.page.contents import command

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


def _since(since: Mapping[str, Any]) -> str:
    decided = since["corrected"] + since["confirmed"]
    return (
        f"with {decided:,} decided labels ({since['corrected']:,} corrected, {since['confirmed']:,} confirmed); "
        f"new suspects: {len(since['new']):,}, no longer suspect: {len(since['gone']):,}"
    )


def _pairs(found: Audit) -> Table:
    shown = found.shown
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
    from compensate.auditing.page.contents import content

    if found.ids and found.kind == "image":
        return short(found.ids[row], 50)
    shown = content(found.data, int(found.position(row)))
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
        typer.Option(
            "--crossfit", help="Train the network once per fold, so that it is pooled with the other learners."
        ),
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
    asked = _Asked(
        data, labels, features, probs, data_dir, options, encoder, model, finetune, crossfit, epochs, batch_size, lr,
        precision or "no", seed or 0, only, test, memory, backend or "local",
    )  # fmt: skip
    console.quiet = not _main()
    before = None
    if with_ is not None:
        before = _before(with_)
        asked = asked.over(before.asked, seed_given=seed is not None)
    found, folder = _run(asked, before, out, lambda source, **more: _judged(source, started, **more))
    if not _main():
        return
    told = () if found.data is None else found.data.source.notes  # in the first line
    for note in (note for note in found.notes if note not in told):
        console.print(Text.assemble(("note: ", "yellow"), note))
    print_summary(found, folder)


def audit_again(run: Path, told: Callable[[str, int, int], None]) -> Path:
    """Audits the data of a run again with what was decided there, beside it and without a word; returns the new run's folder."""
    from compensate.auditing.api import audit as judge

    before = _before(run)
    nothing = _Asked(None, None, None, None, None, {}, "auto", None, False, False, None, None, None, "no", 0)
    asked = nothing.over(before.asked, seed_given=False)
    return _run(asked, before, None, lambda source, **more: judge(source, progress=told, resume=True, **more))[1]


TRAINING = ("model", "finetune", "crossfit", "epochs", "batch_size", "lr")
"""What is asked of a network; each is nothing unless it is given."""


@dataclass(frozen=True)
class _Asked:
    """What is audited, and how; a run keeps it, so that it can be asked for again."""

    data: str | None
    labels: Path | None
    features: Path | None
    probs: Path | None
    data_dir: Path | None
    options: dict[str, Any]
    encoder: str
    model: str | None
    finetune: bool
    crossfit: bool
    epochs: int | None
    batch_size: int | None
    lr: float | None
    precision: str
    seed: int
    only: str | None = None
    test: str | None = None
    memory: str | None = None
    backend: str = "local"

    def over(self, kept: Mapping[str, Any], *, seed_given: bool) -> _Asked:
        """This, and where it says nothing what was asked for before."""
        files: dict[str, Any] = {
            name: getattr(self, name) or (kept[name] and Path(kept[name]))
            for name in ("labels", "features", "data_dir")
        }
        return replace(
            self,
            data=self.data or kept["data"],
            **files,
            options={**kept["options"], **self.options},
            encoder=kept["encoder"] if self.encoder == "auto" else self.encoder,
            precision=kept["precision"] if self.precision == "no" else self.precision,
            **{name: getattr(self, name) or kept[name] for name in TRAINING},
            seed=self.seed if seed_given else kept["seed"],
            only=self.only or kept.get("only"),
            test=self.test or kept.get("test"),
            memory=self.memory or kept.get("memory"),
            backend=self.backend if self.backend != "local" else kept.get("backend", "local"),
        )

    @property
    def how(self) -> dict[str, Any]:
        """How labels are judged."""
        return {name: getattr(self, name) for name in ("encoder", *TRAINING, "precision", "seed", "memory", "backend")}

    @property
    def in_pieces(self) -> bool:
        """Whether the data are read in pieces."""
        return self.memory is not None or self.backend != "local" or is_address(self.data)

    @property
    def deep(self) -> bool:
        """Whether a network is trained."""
        return self.model is not None or self.finetune

    @property
    def kept(self) -> dict[str, Any]:
        """What a run keeps."""
        files = {name: getattr(self, name) for name in ("data", "labels", "features", "probs", "data_dir")}
        return {
            **{name: file and str(file) for name, file in files.items()},
            "options": self.options,
            **self.how,
            "only": self.only,
            "test": self.test,
        }


def _run(asked: _Asked, before: Before | None, out: Path | None, judged: Callable[..., Audit]) -> tuple[Audit, Path]:
    """The audit, and the folder that it was written to."""
    if asked.deep and asked.probs is not None:
        raise InputError(
            f"--probs takes the place of a model; leave out {'--finetune' if asked.finetune else '--model'}."
        )
    if asked.data is None and asked.probs is None:
        raise InputError("no data is given; write for example: compensate audit reviews.csv.")
    o.check_path(asked.data, asked.labels, asked.features, asked.probs, asked.test)
    from compensate.auditing.features import unused_encoder
    from compensate.auditing.store import check_run_folder, write_run
    from compensate.files import check_writable

    runs = Path("runs") if before is None else before.folder.parent
    check_writable(out or runs)
    decided: dict[str, Any] = {} if before is None else {"decisions": before.decisions}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        source = _source(asked)
        if before is not None and isinstance(source, Dataset) and source.parts is None:
            check_about(before, source)
        name = _name(source, asked, decided)
        folder = out or runs / name
        check_run_folder(folder, _about(source).digest)
        # Checkpoints of a model's training, and finished stages, lie beside the run's folder until the run is written. Those of the same
        # data and options are found again; others, of an audit that was interrupted, are left alone.
        training = folder.with_name(f".{folder.name}.{name.rpartition('-')[2]}.training")
        if asked.probs is not None:
            found = _of_probabilities(source, asked.probs, asked.labels, asked.options.get("labels_key"))
            found = replace(found, notes=(*found.notes, *unused_encoder(asked.encoder, "probabilities")))
        else:
            assert source is not None
            keeps = asked.deep or asked.in_pieces
            found = judged(source, run_folder=training if keeps else None, **asked.how, **decided)
            # Neighbors are of samples, not of their parts, and all samples have to be there.
            if asked.only is None and _main() and not found.parts and found.listed is None:
                found = _with_issues(found, asked)
    if not _main():
        return found, folder
    notes = [str(w.message) for w in caught if w.category is UserWarning and "torch" not in str(w.filename)]
    notes = list(dict.fromkeys([*found.notes, *notes]))
    found = replace(found, notes=tuple(notes), provenance=replace(found.provenance, asked=asked.kept))
    if before is None:

        def partitions(new: Path) -> None:
            if found.listed is not None:
                shutil.move(training / "suspects", new / "suspects")

        write_run(found, folder, more=partitions if asked.in_pieces else None)
    else:
        found = changed_since(found, before.audit, before.folder)
        write_run(found, folder, [d for d in before.decisions if d.source == found.source_digest])
    if asked.deep or asked.in_pieces:
        shutil.rmtree(training, ignore_errors=True)
    return found, folder


def _before(run: Path) -> Before:
    """The run whose decisions are used."""
    o.check_path(run)

    return read_before(run)


def _source(asked: _Asked) -> Any:
    """The data to audit, whole or in pieces; nothing if there are probabilities and labels alone."""
    from compensate.auditing.source import read
    from compensate.data import UnclearLabel, load

    data, labels, features, options = asked.data, asked.labels, asked.features, dict(asked.options)
    if asked.probs is not None:
        if labels is None and data is None:
            raise InputError("--probs needs the labels too: compensate audit --probs p.npy --labels y.npy.")
        return None if labels is not None else read(data, None, None, options)
    if asked.in_pieces:
        return _pieces(asked)
    if asked.data_dir is not None and not Path(str(data)).exists():
        others: dict[str, Any] = {n: options.pop(n) for n in ("labels_key", "merge_alike") if n in options}
        source = load(data, asked.data_dir, **options).train
        source = read(replace(source, source=replace(source.source, title=str(data))), labels, features, others)
    else:
        try:
            source = read(data, labels, features, options)
        except UnclearLabel as error:
            options = {**options, "label": o.ask_label(error)}
            source = read(data, labels, features, options)
    if "merge_alike" not in options and o.ask_merge(alike_classes(source)):
        source = read(source, None, None, {"merge_alike": True})
        asked.options["merge_alike"] = True
    if "label" in options:
        source = replace(source, source=replace(source.source, label_given=True))
    return source


def _pieces(asked: _Asked) -> Any:
    """The data to audit, in pieces."""
    from compensate.auditing.chunks import open_chunks

    odd = [f"--{name}" for name in ("test", "features") if getattr(asked, name) is not None]
    if odd:
        raise InputError(f"{odd[0]} is not supported with --memory and --backend; leave it out.")
    return open_chunks(asked.data, asked.labels, asked.options)


def _with_issues(found: Audit, asked: _Asked) -> Audit:
    """The audit with what else is wrong with the data."""
    from compensate.auditing.issues import find_issues
    from compensate.auditing.source import read

    test = None if asked.test is None else read(asked.test, None, None, asked.options)
    return replace(found, found_issues=find_issues(found, test))


def _about(source: Any) -> Source:
    """Where the data came from, whether they are read as a whole or in pieces."""
    return Source() if source is None else source.source


def _name(source: Any, asked: _Asked, decided: dict[str, Any]) -> str:
    """The name of the run's folder: other data, features, options or decisions give another one."""
    from compensate.auditing.digests import digest_file
    from compensate.auditing.store import run_name

    files = (asked.labels, asked.features, asked.probs)
    info = _about(source)
    path = info.path if not info.path or is_address(info.path) else str(Path(info.path).absolute())
    given = {
        "data": path,
        "digest": info.digest,
        "files": [digest_file(f) if f and f.is_file() else f for f in files],
    }
    title = info.title if source is not None else next((file.name for file in files if file is not None), "data")
    folder = asked.data_dir and asked.data_dir.absolute()
    return run_name(str(title), {**asked.options, **asked.how, "data_dir": folder, **decided, **given})


def _judged(source: Any, started: float, **chosen: Any) -> Audit:
    """The audit, with a line for each stage."""
    from compensate.auditing.api import audit as run
    from compensate.auditing.source import labeled

    if isinstance(source, Dataset) and source.parts is None:
        labeled(source)
    console.print(opening_line(source), markup=False)
    with told_stages(started) as progress:
        found = run(source, progress=progress, resume=True, **chosen)
    how = found.provenance
    if how.encoder:
        console.print(f"encoded   {how.encoder} ({how.license or 'license unknown'})", markup=False)
    if how.finetuned:
        times = f"once for each of {how.folds} folds" if how.crossfit else "once"
        console.print(f"tuned     {how.finetuned} · {how.epochs} epochs, {times}", markup=False)
    console.print(f"fitted    {fitted_line(found)} · {clock(time.perf_counter() - started)}", markup=False)
    if how.hint:
        console.print(f"better features: {how.hint}", markup=False, soft_wrap=True)
    return found


def _main() -> bool:
    """Whether this is the process that writes files and talks, where `torchrun` started several."""
    return os.environ.get("RANK", "0") == "0"


def _of_probabilities(source: Dataset | None, probs: Path, labels: Path | None, labels_key: str | None) -> Audit:
    from compensate.auditing.api import audit_probabilities
    from compensate.data import read_labels
    from compensate.files import read_array

    if source is None:
        assert labels is not None
        cells = read_labels(labels, labels_key).cells
        return audit_probabilities(read_array(probs), cells, title=labels.name)
    title = source.source.title
    return audit_probabilities(read_array(probs), source.target, classes=list(source.classes), title=title, data=source)
