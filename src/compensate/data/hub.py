"""Data sets of the Hugging Face `datasets` library, by what they offer, without importing it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from compensate.data.dataset import PARTS, Dataset, Source, Splits
from compensate.data.label_column import choose_label
from compensate.data.labels import encode_labels
from compensate.data.tables import choose_text, from_frame
from compensate.errors import InputError
from compensate.extras import require

SQUARE = 160
"""Pixels of a side that images of different sizes are brought to: what the image encoder looks at."""


def is_hub(data: Any) -> bool:
    """Whether this is a `datasets.Dataset`, or a dictionary of them."""
    if isinstance(data, Mapping):
        return bool(data) and all(is_hub(part) for part in data.values())
    return hasattr(data, "column_names") and hasattr(data, "features") and hasattr(type(data), "__getitem__")


def is_saved(path: Path) -> bool:
    """Whether a folder holds what `datasets` saves with ``save_to_disk``."""
    return path.is_dir() and ((path / "dataset_dict.json").is_file() or (path / "state.json").is_file())


def open_saved(path: str | Path) -> Any:
    """The `datasets.Dataset` or `DatasetDict` that is saved in a folder."""
    datasets = require("datasets", "reading a saved data set", "hf")
    try:
        return datasets.load_from_disk(str(path))
    except Exception as error:  # of Arrow, of JSON, or of what the library makes of them
        raise InputError(
            f"{path} is damaged or not a saved data set ({error or type(error).__name__}). Save it again with save_to_disk."
        ) from error


def from_disk(path: str | Path, **options: Any) -> Splits:
    """As `from_hub`, from a folder that ``save_to_disk`` wrote."""
    return from_hub(open_saved(path), **options)


def from_hub(
    data: Any,
    *,
    label: str | None = None,
    text: str | None = None,
    task: str | None = None,
    size: int | None = None,
    **columns: Any,
) -> Splits:
    """Splits from a `datasets.Dataset` or `DatasetDict`: texts, images, or columns of a table.

    The names of the classes are the label feature's own, and the order of the rows is the data set's, so that ``index``
    is the row number there. ``ignore`` and ``columns`` choose columns, as for `read_table`. Images that differ in size, or
    all of them if a ``size`` is given, are brought to squares.

    >>> import pytest
    >>> datasets = pytest.importorskip("datasets")      # or: import datasets
    >>> rows = {"text": ["a very fine film", "a dull and long one"], "label": [1, 0]}
    >>> len(from_hub(datasets.Dataset.from_dict(rows)).train)
    2
    """
    name, rows = training_part(data)
    train = _part(rows, label, text, task, size, columns)
    if name is None:
        return Splits(train)
    left_out = {str(other): len(part) for other, part in data.items() if other != name}
    train = replace(train, source=replace(train.source, left_out=left_out))
    parts = {PARTS[other.lower()]: part for other, part in data.items() if other != name and other.lower() in PARTS}
    others = {other: _part(part, label, text, task, size, columns, train) for other, part in parts.items()}
    return Splits(train, **others)


def _part(
    data: Any,
    label: str | None,
    text: str | None,
    task: str | None,
    size: int | None,
    options: Mapping[str, Any],
    like: Dataset | None = None,
) -> Dataset:
    frame, pictures = frame_and_images(data)
    if like is not None:
        label = like.source.label
    elif pictures:
        label = choose_label(frame, label, "the data set")
    else:
        label = choose_label(frame, label, "the data set", choose_text(frame, text, "the data set", label))
    assert label is not None
    names = _names(data, label)
    if names is not None:
        frame[label] = pd.Series(named_labels(frame[label], names), dtype=object)
    if not pictures:
        return from_frame(
            frame, "the data set", label=label, text=text, task=task, classes=names, like=like, **options
        ).train
    known = names if like is None else like.classes
    target, classes = encode_labels(frame[label].to_numpy(object), known)
    if like is not None and size is None:
        size = int(like.x.shape[-1])
    images = _images(_rows(data, pictures[0]), size)
    return Dataset(images, target, classes, source=Source(kind="images", label=label))


def training_part(data: Any) -> tuple[str | None, Any]:
    """The name and the rows of the training part; without a name if there are no parts."""
    if not isinstance(data, Mapping):
        return None, data
    name = next((name for name in data if PARTS.get(name.lower()) == "train"), None)
    if name is None:
        raise InputError(f"the data set has the parts {', '.join(data)}; expected one named train.")
    return name, data[name]


def frame_and_images(data: Any) -> tuple[pd.DataFrame, list[str]]:
    """The columns of a data set that are no images, and the names of those that are."""
    columns = list(data.column_names)
    pictures = [c for c in columns if type(data.features[c]).__name__ == "Image"]
    return pd.DataFrame({c: _rows(data, c) for c in columns if c not in pictures}), pictures


def _rows(data: Any, column: str) -> list[Any]:
    try:
        return list(data[column])
    except Exception as error:  # of Arrow, or of what decodes a cell
        raise InputError(
            f'the column "{column[:80]}" of the data set cannot be read ({error or type(error).__name__}). Make or save the data set again.'
        ) from error


def _names(data: Any, label: str) -> list[str] | None:
    names = getattr(data.features[label], "names", None)
    return None if names is None else [str(n) for n in names]


def named_labels(column: Iterable[Any], names: Sequence[str]) -> list[str | None]:
    """Class numbers as names; nothing where a label is missing, or hidden as that of a test part (-1).

    >>> named_labels([1, -1, None], ["1", "0"])
    ['0', None, None]
    """
    return [None if value is None or value != value or value < 0 else names[int(value)] for value in column]


def _images(pictures: list[Any], size: int | None) -> Any:
    from compensate.data.folder import pixels

    if not all(hasattr(picture, "convert") for picture in pictures):
        raise InputError("a row of the data set has no image, or one that is not decoded; fill or remove such rows.")
    if size is None and len({picture.size for picture in pictures}) > 1:
        size = SQUARE
    mode = "L" if all(picture.mode in ("1", "L", "I;16") for picture in pictures) else "RGB"
    return np.stack([pixels(picture, mode, size) for picture in pictures])
