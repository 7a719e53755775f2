"""Data sets of the Hugging Face `datasets` library, recognized without importing it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from compensate.data.dataset import PARTS, Dataset, Source, Splits
from compensate.data.folder import GRAY, pixels
from compensate.data.label_column import choose_label
from compensate.data.labels import encode_labels
from compensate.data.tables import choose_text, from_frame
from compensate.errors import InputError
from compensate.extras import require

IMAGE_SIDE = 160
"""Side in pixels to which images of different sizes are resized; the image encoder uses it too."""


def is_hub(data: Any) -> bool:
    """Whether this is a `datasets.Dataset`, or a dictionary of them."""
    if isinstance(data, Mapping):
        return bool(data) and all(is_hub(part) for part in data.values())
    return hasattr(data, "column_names") and hasattr(data, "features") and hasattr(type(data), "__getitem__")


def is_saved(path: Path) -> bool:
    """Whether a folder was written by ``save_to_disk``."""
    return path.is_dir() and ((path / "dataset_dict.json").is_file() or (path / "state.json").is_file())


def open_saved(path: str | Path) -> Any:
    """The `datasets.Dataset` or `DatasetDict` in a folder."""
    datasets = require("datasets", "reading a saved data set", "hf")
    try:
        return datasets.load_from_disk(str(path))
    except Exception as error:  # from Arrow, JSON or the library
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

    The label feature gives the class names, and ``index`` is the row number in the data set. ``ignore`` and ``columns`` choose
    columns, as for `read_table`. Images are resized to squares if they differ in size, or if a ``size`` is given.

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
    where = "the data set"
    frame, pictures = frame_and_images(data)
    if like is not None:
        label = like.source.label
    else:
        label = choose_label(frame, label, where, None if pictures else choose_text(frame, text, where, label))
    assert label is not None
    feature_names = getattr(data.features[label], "names", None)
    names = None if feature_names is None else [str(n) for n in feature_names]
    if names is not None:
        frame[label] = pd.Series(named_labels(frame[label], names), dtype=object)
    if not pictures:
        return from_frame(frame, where, label=label, text=text, task=task, classes=names, like=like, **options).train
    target, classes = encode_labels(frame[label].to_numpy(object), names if like is None else like.classes)
    images = _rows(data, pictures[0])
    if not all(hasattr(image, "convert") for image in images):
        raise InputError("a row of the data set has no image, or one that is not decoded; fill or remove such rows.")
    if size is None and like is not None:
        size = int(like.x.shape[-1])
    elif size is None and len({image.size for image in images}) > 1:
        size = IMAGE_SIDE
    mode = "L" if all(image.mode in GRAY for image in images) else "RGB"
    x = np.stack([pixels(image, mode, size) for image in images])
    return Dataset(x, target, classes, source=Source(kind="images", label=label))


def training_part(data: Any) -> tuple[str | None, Any]:
    """The name and the rows of the training part; the name is None for data without parts."""
    if not isinstance(data, Mapping):
        return None, data
    name = next((name for name in data if PARTS.get(name.lower()) == "train"), None)
    if name is None:
        raise InputError(f"the data set has the parts {', '.join(data)}; expected one named train.")
    return name, data[name]


def frame_and_images(data: Any) -> tuple[pd.DataFrame, list[str]]:
    """The table of the columns without images, and the names of the image columns."""
    columns = list(data.column_names)
    pictures = [c for c in columns if type(data.features[c]).__name__ == "Image"]
    return pd.DataFrame({c: _rows(data, c) for c in columns if c not in pictures}), pictures


def _rows(data: Any, column: str) -> list[Any]:
    try:
        return list(data[column])
    except Exception as error:  # from Arrow or the decoder of a cell
        raise InputError(
            f'the column "{column[:80]}" of the data set cannot be read ({error or type(error).__name__}). Make or save the data set again.'
        ) from error


def named_labels(column: Iterable[Any], names: Sequence[str]) -> list[str | None]:
    """Class numbers as names; None for a missing label, or a hidden one of a test part (-1).

    >>> named_labels([1, -1, None], ["1", "0"])
    ['0', None, None]
    """
    return [None if value is None or value != value or value < 0 else names[int(value)] for value in column]
