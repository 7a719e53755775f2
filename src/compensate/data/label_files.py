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
from compensate.data.labels import encode_labels
from compensate.data.tables import check_header, is_table, read_frame
from compensate.errors import InputError
from compensate.files import check_file, members, npy_header, numpy_damage, read_numpy, read_text

KEYS = ("index", "id", "file", "file_name", "path", "filename")
"""Columns of a label table that identify the row of a label."""


PICKLE_READERS: list[Callable[[bytes, str], Any]] = []
"""Readers of pickled arrays. `experiments.data` adds one that runs no code; the package itself reads no pickle."""


def _unpickled(content: bytes, path: Path) -> Any:
    for reader in PICKLE_READERS:
        return reader(content, str(path))
    raise InputError(
        f"{path} is a pickle, which is read in a checkout only (python -m experiments audit ... --labels {path.name}). "
        "Save the labels as plain arrays: numpy.savez."
    )


@dataclass(frozen=True, eq=False)
class LabelFile:
    """The contents of a label file.

    Attributes:
        cells: (N,) the labels as written.
        keys: (N,) the index, id or file that each label belongs to; None if they are in the order of the rows.
        by: the name of the key column in lower case; empty without keys.
        column: the label column, for a table.

    >>> LabelFile(np.array(["cat"])).by
    ''
    """

    cells: NDArray[Any]
    keys: NDArray[Any] | None = None
    by: str = ""
    column: str | None = None


def read_labels(path: str | Path, labels_key: str | None = None) -> LabelFile:
    r"""Labels from a file, with the index or id of each if the file has them.

    - ``.npy``, ``.npz``: an array; a pickled dictionary of arrays (such as CIFAR-N) is read without executing it.
    - ``.pt``: a dictionary of arrays saved by torch, read likewise.
    - ``.txt``: one label per line.
    - a table (``.csv``, ``.tsv``, ``.jsonl``, ``.xlsx``, ``.parquet``): a label column, and optionally one of the columns in `KEYS`;
      without one, a label for each row.

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
        raise InputError(
            f"{path} is not a label file; expected .csv, .tsv, .jsonl, .xlsx, .parquet, .txt, .npy, .npz or .pt."
        )
    frame = read_frame(path)
    if labels_key is None:
        check_header(frame, path, "labels_key")
    lower = {str(c).strip().lower(): c for c in frame.columns}
    by = next((name for name in KEYS if name in lower), "")
    others = [c for c in frame.columns if not by or c != lower[by]]
    column = labels_key or (others[0] if len(others) == 1 else find_label(frame[others])[0])
    if column not in frame.columns:
        raise InputError(
            f"{path} has the columns {', '.join(map(str, frame.columns))}. Say which holds the labels: labels_key=... "
            "(--labels-key on the command line)."
        )
    keys = frame[lower[by]].to_numpy(object) if by else None
    return LabelFile(frame[column].to_numpy(object), keys, by, str(column))


def _read_array(path: Path, key: str | None) -> NDArray[Any]:
    found: Any = None
    if path.suffix.lower() == ".pt":
        pickles = [content for _, content in members(path, lambda name: name.endswith("data.pkl"), packed=".zip")]
        if len(pickles) != 1:
            raise InputError(f"{path} is not a file saved by torch.")
        found = _unpickled(pickles[0], path)
    else:
        check_file(path)
        with numpy_damage(path), open(path, "rb") as file:
            if b"'descr': '|O'" in file.read(200):  # an object array of one dictionary: its pickle follows the header
                file.seek(0)
                npy_header(file)
                found = _unpickled(file.read(), path)
                while isinstance(found, (list, tuple)) and len(found) == 1:
                    found = found[0]
        found = read_numpy(path) if found is None else found
    if isinstance(found, dict):
        named = {k.decode() if isinstance(k, bytes) else str(k): v for k, v in found.items()}
        usable = [k for k, v in named.items() if np.ndim(v) == 1]
        key = key or (usable[0] if len(usable) == 1 else None)
        if key is None or key not in named:
            example = (usable or ["y"])[0]
            raise InputError(
                f"{path} holds {', '.join(usable) or 'no labels'}. Say which: "
                f'labels_key="{example}" (--labels-key {example} on the command line).'
            )
        found = named[key]
    found = np.asarray(found)
    if found.ndim != 1:
        raise InputError(f"{path} holds an array of shape {found.shape}; expected one label a sample, (N,).")
    return found


def override_labels(data: Dataset, labels: ArrayLike | str | Path, labels_key: str | None = None) -> Dataset:
    """The data with other labels, such as real annotations with their errors.

    Args:
        data: the samples.
        labels: one class name or class number for each row of the source or of ``data``, or a file for `read_labels`.
        labels_key: which of several label sets of the file.

    >>> data = Dataset(np.eye(3), np.array([0, 1, 0]), ("cat", "dog"))
    >>> override_labels(data, ["dog", "dog", "cat"]).target.tolist()
    [1, 1, 0]
    """
    from_file = isinstance(labels, (str, Path))
    file = read_labels(labels, labels_key) if isinstance(labels, (str, Path)) else LabelFile(np.asarray(labels))
    where = str(labels) if from_file else "the labels"
    cells = file.cells
    if file.keys is not None:
        numbers, names = encode_labels(cells, data.classes or None)
        positions = _positions(data, file.keys, file.by, where)
        target = data.target.copy()
        target[positions[positions >= 0]] = numbers[positions >= 0]
        return replace(data, target=target, classes=names)
    if cells.ndim != 1 or len(cells) not in (data.rows, len(data)):
        raise InputError(
            f"{where}: {cells.shape} labels for {len(data)} samples; expected one for each of the {data.rows} rows of "
            "the source, or a table with the columns index and label."
        )
    target, names = encode_labels(cells[data.index] if len(cells) == data.rows else cells, data.classes or None)
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
