"""Data sets of the Hugging Face `datasets` library, by what they offer, without importing it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from compensate.data.dataset import Data, Splits
from compensate.data.images import as_images
from compensate.data.label_column import choose_label
from compensate.data.labels import encode_labels
from compensate.data.tables import PARTS, choose_text, from_frame
from compensate.errors import InputError


def is_hub(data: Any) -> bool:
    """Whether this is a `datasets.Dataset`, or a dictionary of them."""
    if isinstance(data, Mapping):
        return bool(data) and all(is_hub(part) for part in data.values())
    return hasattr(data, "column_names") and hasattr(data, "features") and hasattr(type(data), "__getitem__")


def from_hub(
    data: Any, *, label: str | None = None, text: str | None = None, task: str | None = None, **columns: Any
) -> Splits:
    """Splits from a `datasets.Dataset` or `DatasetDict`: texts, images, or columns of a table.

    The names of the classes are the label feature's own, and the order of the rows is the data set's, so that ``index``
    is the row number there. ``ignore`` and ``columns`` choose columns, as for `read_table`.

    >>> import pytest
    >>> datasets = pytest.importorskip("datasets")      # or: import datasets
    >>> rows = {"text": ["a very fine film", "a dull and long one"], "label": [1, 0]}
    >>> len(from_hub(datasets.Dataset.from_dict(rows)).train)
    2
    """
    if not isinstance(data, Mapping):
        return Splits(_part(data, label, text, task, columns))
    parts = {PARTS[name.lower()]: part for name, part in data.items() if name.lower() in PARTS}
    if "train" not in parts:
        raise InputError(f"the data set has the parts {', '.join(data)}; expected one named train.")
    train = _part(parts.pop("train"), label, text, task, columns)
    return Splits(train, **{name: _part(part, label, text, task, columns, train) for name, part in parts.items()})


def _part(
    data: Any,
    label: str | None,
    text: str | None,
    task: str | None,
    options: Mapping[str, Any],
    like: Data | None = None,
) -> Data:
    columns = list(data.column_names)
    pictures = [c for c in columns if type(data.features[c]).__name__ == "Image"]
    frame = pd.DataFrame({c: list(data[c]) for c in columns if c not in pictures})
    if like is not None:
        label = like.info["label"]
    elif pictures:
        label = choose_label(frame, label, "the data set")
    else:
        label = choose_label(frame, label, "the data set", choose_text(frame, text, "the data set", label))
    assert label is not None
    names = _names(data, label)
    if names is not None:
        frame[label] = pd.Series(_cells(frame[label]), dtype=object)
    if not pictures:
        return from_frame(
            frame, "the data set", label=label, text=text, task=task, classes=names, like=like, **options
        ).train
    known = names if like is None else like.classes
    target, classes = encode_labels(frame[label].to_numpy(object), known)
    return Data(_images(list(data[pictures[0]])), target, classes, info={"kind": "images", "label": label})


def _names(data: Any, label: str) -> list[str] | None:
    names = getattr(data.features[label], "names", None)
    return None if names is None else [str(n) for n in names]


def _cells(column: pd.Series) -> list[Any]:
    # A hidden test part has -1 for every label.
    return [None if value == -1 else value for value in column]


def _images(pictures: list[Any]) -> Any:
    arrays = [np.asarray(p) for p in pictures]
    shapes = {a.shape for a in arrays}
    if len(shapes) != 1:
        raise InputError(f"the images have {len(shapes)} different shapes; resize them first, for example with map().")
    return as_images(np.stack(arrays), "the images")
