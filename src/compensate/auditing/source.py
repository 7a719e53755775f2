"""Reads the data of an audit: files, arrays, texts, frames and data sets of any kind of label."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compensate.auditing.class_names import merge_spellings
from compensate.auditing.content import digests_of
from compensate.auditing.features import kind_of
from compensate.auditing.issues import LEAKING, predicts
from compensate.auditing.labels import KINDS, labels_of, read_labels
from compensate.data.arrays import from_arrays, not_finite, read_npz
from compensate.data.columns import Column, embeddings
from compensate.data.dataset import PARTS, Dataset, Source, Splits
from compensate.data.folder import read_folder
from compensate.data.label_files import override_labels
from compensate.data.labels import encode_labels
from compensate.data.load import LAYOUTS, NAMED, from_hub, load, part_files
from compensate.data.parquet import is_pattern, parquet_files
from compensate.data.tables import from_frame, read_table
from compensate.errors import InputError, nearest

READERS = (load, from_hub, read_folder, read_npz, read_table, from_frame)


def check_options(options: Mapping[str, Any], arguments: Iterable[str] = ()) -> None:
    """Raises for a name that is neither one of `arguments` nor an option of a reader."""
    all_readers: list[Callable[..., Any]] = [*READERS, *NAMED.values(), *(reader for _, reader in LAYOUTS)]
    readers = {name for reader in all_readers for name in inspect.signature(reader).parameters}
    readers |= {name for kind in KINDS for name in kind.options}
    unknown = [name for name in options if name not in readers and name != "merge_alike"]
    if unknown:
        known = [name for name in (*arguments, *sorted(readers)) if name != "options"]
        raise InputError(f'audit has no argument "{unknown[0]}"; {nearest(unknown[0], known)}')


def read(data: Any, labels: Any, features: ArrayLike | str | Path | None, options: Mapping[str, Any]) -> Dataset:
    """Reads the data set to audit: the training part, with the given labels and features if there are any."""
    check_options(options)
    options = dict(options)
    merge_alike = options.pop("merge_alike", False)
    if isinstance(features, (str, Path)) and not Path(features).suffix and not Path(features).exists():
        options["embedding"], features = str(features), None
    files = part_files(Path(data).expanduser()) if isinstance(data, (str, Path)) else {}
    if files and (part := options.pop("split", None) or "train") != "all":
        if part not in files:
            raise InputError(f'split is "{part}", and {data} has files for {", ".join(files)}; name one of them.')
        data = files.pop(part)
    found = read_labels(data, labels, options, _read)
    if files and found.parts is None and part != "all":
        others = {}
        for name, file in files.items():
            with suppress(InputError):  # a part may lack the label
                others[name] = load(file, like=found).train
        left = {name: len(part) for name, part in others.items()}
        found = replace(found, others=others, source=replace(found.source, left_out=left))
    if merge_alike:
        if found.regression or found.parts is not None:
            raise InputError(
                "merge_alike is for one class a row; these labels are quantities, or several a row. Leave it out."
            )
        target, classes, merged = merge_spellings(found.target, found.classes)
        found = replace(found, target=target, classes=classes, source=replace(found.source, merged=merged))
    source = found.source
    if isinstance(data, (str, Path)) and not source.digest:
        path = Path(str(data)).expanduser()
        there = path.exists() or is_pattern(path)
        title = path.parent.name if is_pattern(path) else path.name or str(data)
        digest, rows = digests_of(found, path) if there else ("", None)
        rows = labels_of(found).row_digests(rows)
        source = replace(source, title=title, path=str(data) if there else "", digest=digest, row_digests=rows)
    given = {name: options[name] for name in ("encoding", "delimiter") if options.get(name)}
    if source.left_out:
        lost = sum(source.left_out.values())
        named, how = left_out(source)
        given["notes"] = (f"{lost:,} of {len(found) + lost:,} rows are left out ({named}); {how}.",)
    if source.kind == "text" and not options.get("columns"):
        given["columns"] = _without_leaks(found)
    found = replace(found, source=replace(source, kind=source.kind or kind_of(found.x), **given))
    return found if features is None else with_features(found, features)


def _without_leaks(data: Dataset) -> tuple[Column, ...]:
    """The columns of a table of texts, without those that the label was copied to: a copy would confirm every label."""
    columns = []
    for column in data.source.columns:
        if column.used and data.table is not None and data.num_classes and data.parts is None:
            rows = np.flatnonzero(data.labeled)
            share = predicts(data.table[column.name].iloc[rows], column, data.target[rows], data.num_classes)
            if share >= LEAKING:
                column = Column(column.name, "label", f"repeats {share:.1%} of the labels beyond chance")
        columns.append(column)
    return tuple(columns)


def labeled(data: Dataset) -> None:
    """Raises if rows should have one label each, and none has one."""
    if data.parts is None and not data.labeled.any():
        raise InputError(
            "no row has a label; an audit compares labels with the samples. Give a label for each sample: labels=... "
            "(--labels y.npy on the command line)."
        )


def _read(data: Any, labels: Any, options: Mapping[str, Any]) -> Dataset:
    """Reads data with one label for each row."""
    key = options.get("labels_key")
    array = _array(data)
    if isinstance(data, (list, tuple, Dataset, Splits)) or array is not None:
        known = ("labels_key", "split") if isinstance(data, Splits) else ("labels_key",)
        given = [name for name, value in options.items() if value is not None and name not in known]
        if given:
            raise InputError(f"{given[0]} is an option for files and data frames; the data is a {type(data).__name__}.")
    split = options.get("split") or "train"
    if isinstance(data, (Dataset, Splits)):
        part = data.part(split) if isinstance(data, Splits) else data
        return part if labels is None else override_labels(part, labels, key)
    maybe_texts = isinstance(data, (list, tuple)) or (isinstance(data, np.ndarray) and data.dtype.kind in "OUS")
    if maybe_texts and len(data) and all(isinstance(item, str) for item in data[:50]):
        if labels is None:
            raise InputError("texts have no labels of their own; pass them too: audit(texts, y).")
        if isinstance(labels, (str, Path)):
            raise InputError("give the labels of a list of texts as a list, not as a file.")
        x = np.array([str(text) for text in data], dtype=object)
        cells = np.asarray(labels)
        if cells.shape != (len(x),):
            raise InputError(f"there are {len(x)} texts, and the labels have shape {cells.shape}; expected one each.")
        if cells.dtype.kind == "f" and (np.mod(cells[np.isfinite(cells)], 1) != 0).any():
            return Dataset(x, cells.astype(np.float64), (), source=Source(kind="text"))
        return Dataset(x, *encode_labels(cells), raw=x, source=Source(kind="text"))
    if array is not None:
        if labels is None:
            raise InputError("an array has no labels of its own; pass them too: audit(x, y).")
        if isinstance(labels, (str, Path)):
            return override_labels(from_arrays(array, None), labels, key)
        return from_arrays(array, _array(labels) if _array(labels) is not None else np.asarray(labels))
    if labels is not None and not isinstance(labels, (str, Path)):
        labels = np.asarray(labels)
    if split == "all":
        return load(data, labels=labels, **options).part()
    found = load(data, labels=labels, **{name: value for name, value in options.items() if name != "split"}).part(split)
    if split != "train" and isinstance(data, (str, Path)) and Path(data).is_dir() and not parquet_files(Path(data)):
        raise InputError(f"decisions about the {split} part of {data} could not be written; {_alone(split)}.")
    return found


def left_out(source: Source) -> tuple[str, str]:
    """The parts that are not audited, with their rows, and how to audit them.

    >>> left_out(Source(left_out={"test": 20, "validation": 10}, split="split"))
    ('test 20, validation 10', 'to audit them too: split="all" (--split all on the command line), or one: --split test')
    """
    parts = source.left_out
    named = ", ".join(f"{part} {count:,}" for part, count in parts.items())
    if source.split:
        one = f"or one: --split {next(iter(parts))}"
        return named, f'to audit them too: split="all" (--split all on the command line), {one}'
    if source.folder:
        return named, f"to audit them: compensate audit {Path(source.folder).parent / next(iter(parts))}"
    return named, _alone(next(iter(parts)))


def _alone(part: str) -> str:
    return f"to audit such a part, give it alone: audit(compensate.data.load(...).{PARTS.get(part, part)})"


def _array(data: Any) -> NDArray[Any] | None:
    """An array or a tensor as an array."""
    if hasattr(data, "detach"):
        return np.asarray(data.detach().cpu())
    return data if isinstance(data, np.ndarray) else None


def with_features(data: Dataset, features: ArrayLike | str | Path) -> Dataset:
    """The data with embeddings instead of the samples; the review page still shows the samples."""
    where = str(features) if isinstance(features, (str, Path)) else "features"
    if data.table is not None and where in data.table.columns:
        values = embeddings(data.table, where, data.source.title)
    else:
        values = np.asarray(features if where == "features" else load(where).train.x, dtype=np.float32)
    values = values.reshape(len(values), -1)
    if len(values) not in (len(data), data.rows):
        raise InputError(
            f"{where} has {len(values)} rows, and the data has {len(data)}; expected one row of features each."
        )
    if len(values) == data.rows and data.rows != len(data):
        values = values[data.index]
    broken = not_finite(values)
    if len(broken):
        raise InputError(f"{where} has a value that is not a finite number in row {broken[0]}. Fill or remove it.")
    source = replace(data.source, features_given=True)
    return replace(data, x=values, raw=data.x if data.raw is None else data.raw, source=source)
