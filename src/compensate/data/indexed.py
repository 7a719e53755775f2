"""The index of each sample, for data sets that do not give it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import Dataset

from compensate.errors import InputError


class Indexed(Dataset[Any]):
    """Adds its index to each item of a map-style data set: ``(x, y)`` becomes ``(x, y, index)``.

    A dictionary, as data sets of Hugging Face give it, gets an entry ``"index"``.

    Methods that keep something per sample need to know which sample they see. The index is the position in the data set
    that is wrapped, so wrap once, and before any `torch.utils.data.Subset`.

    >>> data = Indexed([("cat.png", 0), ("dog.png", 1)])
    >>> data[-1]
    ('dog.png', 1, 1)
    >>> len(data)
    2
    >>> Indexed([{"text": "good", "label": 1}])[0]
    {'text': 'good', 'label': 1, 'index': 0}
    """

    def __init__(self, dataset: Any) -> None:
        if isinstance(dataset, Indexed):
            raise InputError("the data set is Indexed already: its items have an index. Wrap it once only.")
        if not (hasattr(type(dataset), "__getitem__") and hasattr(type(dataset), "__len__")):
            raise InputError(
                f"Indexed was given a {type(dataset).__name__}, which has no length or no items by number; it wraps "
                "map-style data sets (with __getitem__ and __len__). Read a stream into a list first, or yield "
                "(x, y, index) from it yourself."
            )
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        size = len(self)
        row = index + size if index < 0 else index
        if not 0 <= row < size:
            # IndexError, not InputError: it is what ends a plain `for` loop over the data set.
            raise IndexError(f"index {index} is out of range for a data set of {size} samples.")
        item = self.dataset[row]
        if isinstance(item, Mapping):
            if "index" in item:
                raise InputError(
                    f'item {row} of the {type(self.dataset).__name__} has an entry "index" already. If it is the row in the whole training '
                    "set, use the data set as it is; otherwise rename that entry first."
                )
            return {**item, "index": row}
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            got = f"{len(item)} values" if isinstance(item, (tuple, list)) else f"a {type(item).__name__}"
            raise InputError(
                f"item {row} of the {type(self.dataset).__name__} is {got}; Indexed wraps data sets whose items are "
                "pairs (x, y) or dictionaries. Map your items to (x, y) first."
            )
        return item[0], item[1], row
