"""Labels from another file or array than the samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compensate.data.dataset import Dataset
from compensate.data.label_column import find_label
from compensate.data.labels import encode_labels, is_quantity
from compensate.data.tables import check_header, is_table, read_frame
from compensate.errors import InputError
from compensate.files import check_file, npy_header, numpy_damage, read_numpy, read_text, zip_members

# Columns of a label table that identify the row of a label
KEYS = ("index", "id", "file", "file_name", "path", "filename")
# Readers of pickled arrays. `experiments.data` adds one that runs no code; the package itself reads no pickle.
PICKLE_READERS: list[Callable[[bytes, str], Any]] = []


@dataclass(frozen=True, eq=False)
class LabelFile:
    """The contents of a label file."""

    cells: NDArray[Any]  # (N,) the labels as written
    keys: NDArray[Any] | None = None  # (N,) the index, id or file of each label; by default the order of the rows
    by: str = ""  # the name of the key column in lower case; empty without keys
    column: str | None = None  # the label column, for a table


def read_labels(path: str | Path, labels_key: str | None = None) -> LabelFile:
    r"""Labels from a file, with the index or id of each if the file has them.

    - ``.npy``, ``.npz``, ``.pt``: an array; a pickled dictionary of arrays (such as CIFAR-N) is read without executing it.
    - ``.txt``: one label per line.
    - a table (``.csv``, ``.tsv``, ``.jsonl``, ``.xlsx``, ``.parquet``): a label column, and optionally one of the columns in `KEYS`.

    ``labels_key`` selects one of several label sets.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "labels.txt").write_text("cat\ndog\n")
    >>> read_labels(folder / "labels.txt").cells.tolist()
    ['cat', 'dog']
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz", ".pt"):
        return LabelFile(_read_array(path, labels_key))
    if suffix in (".txt", ".labels", ""):
        return LabelFile(np.array(read_text(path).splitlines(), dtype=object))
    if not is_table(path):
        raise InputError(f"{path} is not a label file; expected a table (such as .csv), .txt, .npy, .npz or .pt.")
    frame = read_frame(path)
    if labels_key is None:
        check_header(frame, path, "labels_key")
    lower = {str(c).strip().lower(): c for c in frame.columns}
    by = next((name for name in KEYS if name in lower), "")
    candidates = [labels_key] if labels_key else [c for c in frame.columns if not by or c != lower[by]]
    if len(candidates) > 1:
        candidates = find_label(frame[candidates])
    if len(candidates) != 1 or candidates[0] not in frame.columns:
        names, option = ", ".join(map(str, frame.columns)), "labels_key=... (--labels-key on the command line)"
        raise InputError(f"{path} has the columns {names}. Say which holds the labels: {option}.")
    keys = frame[lower[by]].to_numpy(object) if by else None
    return LabelFile(frame[candidates[0]].to_numpy(object), keys, by, str(candidates[0]))


def _read_array(path: Path, key: str | None) -> NDArray[Any]:
    check_file(path)
    pickled = None
    if path.suffix.lower() == ".pt":
        pickles = list(zip_members(path, lambda name: name.endswith("data.pkl")))
        if len(pickles) != 1:
            raise InputError(f"{path} is not a file saved by torch.")
        pickled = pickles[0][1]
    else:
        with numpy_damage(path), open(path, "rb") as file:
            if b"'descr': '|O'" in file.read(200):  # an object array of one dictionary: its pickle follows the header
                file.seek(0)
                npy_header(file)
                pickled = file.read()
    if pickled is not None and not PICKLE_READERS:
        command = f"python -m experiments audit ... --labels {path.name}"
        remedy = "Save the labels as plain arrays: numpy.savez"
        raise InputError(f"{path} is a pickle, which is read in a checkout only ({command}). {remedy}.")
    with numpy_damage(path):
        arrays = read_numpy(path) if pickled is None else PICKLE_READERS[0](pickled, str(path))
    while isinstance(arrays, (list, tuple)) and len(arrays) == 1:
        arrays = arrays[0]
    if isinstance(arrays, dict):
        named = {k.decode() if isinstance(k, bytes) else str(k): v for k, v in arrays.items()}
        usable = [k for k, v in named.items() if np.ndim(v) == 1]
        key = key or (usable[0] if len(usable) == 1 else None)
        if key is None or key not in named:
            example = (usable or ["y"])[0]
            option = f'labels_key="{example}" (--labels-key {example} on the command line)'
            raise InputError(f"{path} holds {', '.join(usable) or 'no labels'}. Say which: {option}.")
        arrays = named[key]
    labels = np.asarray(arrays)
    if labels.ndim != 1:
        raise InputError(f"{path} holds an array of shape {labels.shape}; expected one label a sample, (N,).")
    return labels


def override_labels(data: Dataset, labels: ArrayLike | str | Path, labels_key: str | None = None) -> Dataset:
    """The data with other labels, such as real annotations with their errors.

    Args:
        data: the samples.
        labels: one class name or class number for each row of the source or of ``data``, or a file for `read_labels`. Floats with
            a fractional part are quantities if the data have no classes.
        labels_key: which of several label sets of the file.

    >>> data = Dataset(np.eye(3), np.array([0, 1, 0]), ("cat", "dog"))
    >>> override_labels(data, ["dog", "dog", "cat"]).target.tolist()
    [1, 1, 0]
    """
    if isinstance(labels, (str, Path)):
        file, where = read_labels(labels, labels_key), str(labels)
    else:
        file, where = LabelFile(np.asarray(labels)), "the labels"
    cells = file.cells
    if file.keys is None:
        if cells.ndim != 1 or len(cells) not in (data.rows, len(data)):
            expected = (
                f"one for each of the {data.rows} rows of the source, or a table with the columns index and label"
            )
            raise InputError(f"{where}: {cells.shape} labels for {len(data)} samples; expected {expected}.")
        cells = cells[data.index] if len(cells) == data.rows else cells
        if not data.classes and is_quantity(cells):
            return replace(data, target=cells.astype(np.float64))
    encoded, names = encode_labels(cells, data.classes or None)
    target = encoded
    if file.keys is not None:
        positions = _positions(data, file.keys, file.by, where)
        target = data.target.copy()
        target[positions[positions >= 0]] = encoded[positions >= 0]
    return replace(data, target=target, classes=names)


def _positions(data: Dataset, keys: NDArray[Any], by: str, where: str) -> NDArray[np.int64]:
    """The position in the data of each labeled sample; -1 for a row of the source that is not in this part."""
    if by == "index":
        try:
            index = np.array([int(str(k)) for k in keys], dtype=np.int64)
        except ValueError:
            raise InputError(f"{where}: the column index must hold row numbers from 0 on.") from None
        if index.size and not 0 <= index.min() <= index.max() < data.rows:
            raise InputError(f"{where}: an index is outside 0..{data.rows - 1}, the rows of the source.")
        position_of = np.full(data.rows, -1, dtype=np.int64)
        position_of[data.index] = np.arange(len(data))
        positions = position_of[index]
    else:
        if data.ids is None:
            raise InputError(f"{where} goes by {by}, and the data set has no ids; use a column index instead.")
        known = {str(name): i for i, name in enumerate(data.ids)}
        positions = np.array([known.get(str(k), -1) for k in keys], dtype=np.int64)
        if (positions < 0).all() and len(positions):
            raise InputError(f"{where}: none of its ids, such as {keys[0]}, is in the data, which has {data.ids[0]}.")
    labeled = positions[positions >= 0]
    if len(np.unique(labeled)) != len(labeled):
        twice = keys[np.flatnonzero(np.bincount(labeled)[np.maximum(positions, 0)] > 1)[0]]
        raise InputError(f"{where} labels {by} {twice} more than once; keep one row for each.")
    return positions
