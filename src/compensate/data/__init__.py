"""Data sets whose samples have a stable index, and label noise for experiments.

`load` reads tables, image folders, arrays and data sets by name. `batches` gives an epoch of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from compensate.data import noise
from compensate.data.arrays import channel_statistics, from_arrays, read_npz
from compensate.data.columns import Column, TableEncoder, analyze
from compensate.data.dataset import UNLABELED, Dataset, Ragged, Splits, data_folder
from compensate.data.folder import read_folder
from compensate.data.label_column import UnclearLabel, choose_label
from compensate.data.label_files import override_labels, read_labels
from compensate.data.labels import encode_labels
from compensate.data.load import digits, from_hub, load
from compensate.data.noise import class_sizes, long_tailed
from compensate.data.tables import from_frame, read_frame, read_table
from compensate.data.text import Tfidf, Vocabulary, embedding_matrix, encode_texts, find_vectors, read_vectors, tokenize

if TYPE_CHECKING:
    from compensate.data.epochs import CropFlip, Indexed, batches, draws, gather, order, order_in_ranges, ranges_of

__all__ = [
    "UNLABELED", "Column", "CropFlip", "Dataset", "Indexed", "Ragged", "Splits", "TableEncoder", "Tfidf", "UnclearLabel",
    "Vocabulary", "analyze", "batches", "channel_statistics", "choose_label", "class_sizes", "data_folder",
    "digits", "draws", "embedding_matrix", "encode_labels", "encode_texts", "find_vectors",
    "from_arrays", "from_frame", "from_hub", "gather", "load", "long_tailed", "noise", "order", "order_in_ranges", "override_labels",
    "ranges_of", "read_folder", "read_frame", "read_labels", "read_npz", "read_table", "read_vectors", "tokenize",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in __all__:  # batches are tensors of PyTorch, which reading files does not need
        return getattr(importlib.import_module("compensate.data.epochs"), name)
    raise AttributeError(f"module 'compensate.data' has no attribute {name!r}")
