"""`compensate audit`: find the wrong labels of a file, a folder or an array."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from compensate.commands import options as o
from compensate.commands.audit_text import alike_classes, fitted_line, opening_line, print_summary
from compensate.commands.terminal import clock, console, told_stages
from compensate.errors import InputError
from compensate.files import is_address

if TYPE_CHECKING:
    from compensate.auditing.again import Before
    from compensate.auditing.result import Audit
    from compensate.data.dataset import Data


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
    told = () if found.data is None else found.data.info.get("told", ())  # in the first line
    for note in (note for note in found.notes if note not in told):
        console.print(Text.assemble(("note: ", "yellow"), note))
    print_summary(found, folder)


def audit_again(run: Path, told: Callable[[str, int, int], None]) -> Path:
    """Audits the data of a run again with what was decided there, beside it and without a word; returns the new run's folder."""
    from compensate.auditing.audit import audit as judge

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
    from compensate.auditing.again import changed_since, check_about
    from compensate.auditing.run_folder import check_run_folder, write_run
    from compensate.auditing.views import unused_encoder
    from compensate.files import check_writable

    runs = Path("runs") if before is None else before.folder.parent
    check_writable(out or runs)
    decided: dict[str, Any] = {} if before is None else {"decisions": before.decisions}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        source = _source(asked)
        if before is not None and hasattr(source, "target") and "parts" not in source.info:
            check_about(before, source)
        name = _name(source, asked, decided)
        folder = out or runs / name
        check_run_folder(folder, "" if source is None else source.info.get("source_digest", ""))
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
    found = replace(found, notes=tuple(notes), config={**found.config, "asked": asked.kept})
    if before is None:

        def partitions(new: Path) -> None:
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
    from compensate.auditing.again import read_before

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
        chosen: dict[str, Any] = {n: options.pop(n) for n in ("labels_key", "merge_alike") if n in options}
        source = load(data, asked.data_dir, **options).train
        source = read(replace(source, info={**source.info, "title": data}), labels, features, chosen)
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
        source = replace(source, info={**source.info, "label_given": True})
    return source


def _pieces(asked: _Asked) -> Any:
    """The data to audit, in pieces."""
    from compensate.auditing.pieces import open_pieces

    odd = [f"--{name}" for name in ("test", "features") if getattr(asked, name) is not None]
    if odd:
        raise InputError(
            f"{odd[0]} cannot be had with --memory and --backend, by which data are read in pieces; leave it out."
        )
    return open_pieces(asked.data, asked.labels, asked.options)


def _with_issues(found: Audit, asked: _Asked) -> Audit:
    """The audit with what else is wrong with the data."""
    from compensate.auditing.issues import find_issues
    from compensate.auditing.source import read

    test = None if asked.test is None else read(asked.test, None, None, asked.options)
    return replace(found, found_issues=find_issues(found, test))


def _name(source: Any, asked: _Asked, decided: dict[str, Any]) -> str:
    """The name of the run's folder: other data, features, options or decisions give another one."""
    from compensate.auditing.digests import digest_file
    from compensate.auditing.run_folder import run_name

    files = (asked.labels, asked.features, asked.probs)
    info = {} if source is None else source.info
    path = info.get("source")
    path = path if path is None or is_address(path) else str(Path(str(path)).absolute())
    given = {
        "data": path,
        "digest": info.get("source_digest"),
        "files": [digest_file(f) if f and f.is_file() else f for f in files],
    }
    title = info.get("title") or next((file.name for file in files if file is not None), "data")
    folder = asked.data_dir and asked.data_dir.absolute()
    return run_name(str(title), {**asked.options, **asked.how, "data_dir": folder, **decided, **given})


def _judged(source: Any, started: float, **chosen: Any) -> Audit:
    """The audit, with a line for each stage."""
    from compensate.auditing.audit import audit as run
    from compensate.auditing.source import labeled

    if hasattr(source, "target") and "parts" not in source.info:
        labeled(source)
    console.print(opening_line(source if hasattr(source, "target") else source.outline), markup=False)
    with told_stages(started) as progress:
        found = run(source, progress=progress, resume=True, **chosen)
    config = found.config
    if config.get("encoder"):
        console.print(f"encoded   {config['encoder']} ({config.get('license', 'license unknown')})", markup=False)
    if config.get("finetuned"):
        times = f"once for each of {config['folds']} folds" if config["crossfit"] else "once"
        console.print(f"tuned     {config['finetuned']} · {config['epochs']} epochs, {times}", markup=False)
    console.print(f"fitted    {fitted_line(found)} · {clock(time.perf_counter() - started)}", markup=False)
    if config.get("hint"):
        console.print(f"better features: {config['hint']}", markup=False, soft_wrap=True)
    return found


def _main() -> bool:
    """Whether this is the process that writes files and talks, where `torchrun` started several."""
    return os.environ.get("RANK", "0") == "0"


def _of_probabilities(source: Data | None, probs: Path, labels: Path | None, labels_key: str | None) -> Audit:
    from compensate.auditing.probabilities import audit_probabilities
    from compensate.data import read_labels
    from compensate.files import read_array

    if source is None:
        assert labels is not None
        cells = read_labels(labels, labels_key).cells
        return audit_probabilities(read_array(probs), cells, title=labels.name)
    title = str(source.info.get("title", "the data"))
    found = audit_probabilities(
        read_array(probs), source.target, classes=list(source.classes), title=title, data=source
    )
    chosen = {name: source.info[name] for name in ("source", "label") if source.info.get(name)}
    return replace(found, config={**chosen, **found.config})
