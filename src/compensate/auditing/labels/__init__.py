"""Kinds of labels: reading, judging, showing and correcting them.

A kind is one file with a subclass of `compensate.auditing.labels.base.LabelKind`, listed in `KINDS`. No other module knows the kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from compensate.auditing.labels.answers import Answers
from compensate.auditing.labels.base import Classes, LabelKind, Reader, no_address
from compensate.auditing.labels.pairs import Pairs
from compensate.auditing.labels.quantity import Quantity
from compensate.auditing.labels.regions import Masks
from compensate.auditing.labels.sets import LabelColumns, LabelSets
from compensate.auditing.labels.tags import TokenTags
from compensate.auditing.labels.votes import Votes
from compensate.data.dataset import Dataset

KINDS: list[type[LabelKind]] = [Pairs, Answers, Masks, TokenTags, LabelSets, LabelColumns, Quantity, Classes, Votes]
"""All kinds. The first that recognizes some data reads and judges it."""


def read_labels(data: Any, labels: Any, options: Mapping[str, Any], other: Reader) -> Dataset:
    """Reads data by the first kind that recognizes it, or by the `other` reader."""
    for kind in reversed([kind for kind in KINDS if "read" in vars(kind)]):
        other = partial(kind.read, other=other)
    return other(data, labels, options)


def labels_of(data: Dataset) -> LabelKind:
    """The labels of data."""
    return next(labels for kind in KINDS if (labels := kind.recognize(data)) is not None)


def kind_of(part: str, page: str | None = None) -> type[LabelKind]:
    """The kind of the labels with this address; without one, of the labels of whole rows with this page.

    >>> kind_of("tokens 120 3").__name__, kind_of("").__name__, kind_of("", "regression").__name__
    ('TokenTags', 'Classes', 'Quantity')
    """
    form = part.partition(" ")[0]
    kind = next((kind for kind in KINDS if kind.form == form and (form or kind.page in (None, page))), None)
    if kind is None:
        raise no_address(part)
    return kind
