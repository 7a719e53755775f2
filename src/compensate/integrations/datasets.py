"""Hugging Face `datasets`: the column that names each sample."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

import numpy as np

from compensate.data.hub import is_hub
from compensate.errors import InputError

INDEX = "index"
"""The name of the column, and of the entry of a batch."""


def add_index(dataset: Any, column: str = INDEX, places: str | None = None) -> Any:
    """The data set with one more column, the row number of each sample, (N,) whole numbers from 0.

    Do it once, to the whole training set and before it is shuffled, filtered or split: the number then goes with the sample
    wherever it is moved, and is the row in the data set given here, which suspects are reported by. Of a dictionary of data
    sets each part is numbered on its own.

    Args:
        dataset: a `datasets.Dataset`, or a dictionary of them.
        column: its name.
        places: a column of lists, such as the labels of tokens: then each entry is numbered, all of them through the data set, and
            `num_samples` of a method is their number.

    >>> import datasets
    >>> data = add_index(datasets.Dataset.from_dict({"text": ["good", "bad", "fine"], "label": [1, 0, 1]}))
    >>> data.select([2, 0])["index"][:]
    [2, 0]
    """
    if isinstance(dataset, Mapping) and dataset:
        kind: Any = type(dataset)
        return kind({name: add_index(part, column, places) for name, part in dataset.items()})
    if not is_hub(dataset) or not hasattr(dataset, "add_column"):
        raise InputError(
            f"add_index was given a {type(dataset).__name__}; expected a datasets.Dataset, or a dictionary of them."
        )
    stream = not isinstance(dataset, Sized)
    if stream:
        raise InputError(
            "the data set is a stream, whose samples have no lasting number. Load it with streaming=False, or put a whole number "
            f'for each sample into the column "{column}" where it is written.'
        )
    if places is not None:
        return _number_places(dataset, column, places)
    rows = np.arange(len(dataset))
    if column in dataset.column_names:
        if np.array_equal(np.asarray(dataset[column][:]), rows):
            return dataset
        raise InputError(
            f'the data set has a column "{column}" already, which is not the row number. Was it shuffled or split after it was '
            "numbered? Then keep that column as it is. Else choose another name: add_index(dataset, column=...)."
        )
    return dataset.add_column(column, rows.tolist())


def _number_places(dataset: Any, column: str, places: str) -> Any:
    if column in dataset.column_names:
        raise InputError(f'the data set has a column "{column}" already; remove it, or choose another name.')
    if places not in dataset.column_names:
        raise InputError(f'the data set has no column "{places}"; it has {", ".join(dataset.column_names)}.')
    lengths = [len(entries) for entries in dataset[places][:]]
    starts = np.cumsum([0, *lengths])
    numbers = [list(range(begin, end)) for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)]
    return dataset.add_column(column, numbers)
