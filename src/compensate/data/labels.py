"""From label cells to class numbers, and labels that come in a file of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compensate.data.dataset import UNLABELED, Dataset
from compensate.errors import InputError, nearest
from compensate.files import members, numpy_damage, opened, read_numpy, read_text

LONGEST = 10_000
"""Characters of a class's name: texts beyond are no classes, and a page or a list would repeat them for every row."""

MISSING = frozenset({"", "na", "n/a", "nan", "null", "<na>"})
"""Cells, in lower case, that stand for a value that is not there."""


NOT_APPLICABLE = frozenset({"na", "n/a"})
"""Those that may also be the name of a class: Namibia, North America, "not applicable"."""

_ANSWERS = frozenset({"yes", "no", "ok"})


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing.

    >>> [is_missing(v) for v in ("", " NaN ", None, float("nan"), "none", 0)]
    [True, True, True, True, False, False]
    """
    return _nothing(value) or str(value).strip().lower() in MISSING


def _nothing(value: Any) -> bool:
    return value is None or (isinstance(value, (float, np.floating)) and bool(np.isnan(value)))


def missing_labels(
    cells: Sequence[Any] | NDArray[Any], given: Sequence[str] | None = None, classes: Sequence[str] | None = None
) -> frozenset[str]:
    """The texts that stand for a missing label among the cells of a label column.

    These are `MISSING`, but for the names of known ``classes``, and but for one "NA" or "N/A" that is taken for a class: where other cells are empty, or
    where all other labels are codes of two or three letters, as those of countries. ``given`` says instead which texts they are; empty cells always are.

    >>> sorted(missing_labels(["cat", "NA"])), sorted(missing_labels(["cat", "NA", ""])), sorted(missing_labels(["DE", "NA", "FR"]))
    (['NA'], [''], [])
    """
    if given is not None:
        return frozenset({"", *(text.strip() for text in given)})
    texts = {str(cell).strip() for cell in cells if not _nothing(cell)}
    lost = {text for text in texts if text.lower() in MISSING} - {name.strip() for name in classes or ()}
    named, others = {text for text in lost if text.lower() in NOT_APPLICABLE}, texts - lost
    if classes is None and len(named) == 1 and others and not all(map(_is_number, others)):
        empty = "" in texts or any(map(_nothing, cells))
        if empty or _codes(others, next(iter(named))):
            lost -= named
    return frozenset(lost)


def _codes(labels: set[str], like: str) -> bool:
    """Whether all labels are codes of letters, written as this one is."""
    form = "[A-Z]{2,3}" if like.isupper() else "[a-z]{2}"
    return all(re.fullmatch(form, label) for label in labels) and not {label.lower() for label in labels} & _ANSWERS


def has_no_label(cell: Any, missing: frozenset[str]) -> bool:
    """Whether a cell of a label column holds no label; ``missing`` are the texts that stand for that.

    >>> has_no_label(" NA", frozenset({"NA"})), has_no_label("NA", frozenset()), has_no_label(None, frozenset())
    (True, False, True)
    """
    return _nothing(cell) or str(cell).strip() in missing


def encode_labels(
    values: Sequence[Any] | NDArray[Any], classes: Sequence[str] | None = None, missing: Sequence[str] | None = None
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Class numbers and class names of label cells; a missing label is `UNLABELED`: see `missing_labels`.

    Names are in numeric order if all are numbers, else in alphabetical order; or as ``classes`` says: then the cells are
    all names, or else all class numbers. Blanks around a name do not count; tabs and line ends do only where every cell of
    the class has them, so that a corrected cell can be written as the others are.

    >>> encode_labels(["dog", "cat", "", "dog"])
    (array([ 1,  0, -1,  1]), ('cat', 'dog'))
    >>> encode_labels([10.0, 9.0])[1]
    ('9', '10')
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu" and classes is None and missing is None:
        distinct, places = np.unique(values, return_inverse=True)  # of a million numbers each is named once
        found_numbers, names = encode_labels(distinct.tolist())
        return found_numbers[places], names
    check_lengths(values)
    lost = missing_labels(values, missing, classes)
    cells = [None if has_no_label(v, lost) else label_name(v) for v in values]
    cells = _as_written(cells, classes)
    if classes is None:
        found = {c for c in cells if c is not None}
        classes = sorted(found, key=_number) if all(_is_number(c) for c in found) else sorted(found)
    numbers = {name: i for i, name in enumerate(classes)}
    by_number = {str(i): i for i in range(len(classes))}
    there = {cell for cell in cells if cell is not None}
    if not there <= numbers.keys() and there <= by_number.keys():
        numbers = by_number  # all of them or none: with classes 1 and 3, a "1" among names must not change its meaning
    target = np.full(len(cells), UNLABELED, dtype=np.int64)
    for row, cell in enumerate(cells):
        if cell is None:
            continue
        if cell not in numbers:
            raise InputError(f'the label "{cell[:80]}" of row {row} is not a known class; {nearest(cell, classes)}')
        target[row] = numbers[cell]
    return target, tuple(classes)


def check_lengths(cells: Sequence[Any] | NDArray[Any]) -> None:
    """Refuses labels that are too long to be the name of a class: `LONGEST`."""
    for row, cell in enumerate(cells):
        if isinstance(cell, (str, bytes)) and len(cell) > LONGEST:
            raise InputError(
                f"the label of row {row} has {len(cell):,} characters; the name of a class has {LONGEST:,} at most. Check "
                "which column holds the labels."
            )


def _as_written(cells: Sequence[str | None], classes: Sequence[str] | None) -> list[str | None]:
    """Each cell as all cells of its class are written; without tabs and line ends around it where they differ."""
    forms: dict[str, set[str]] = {}
    for cell in cells:
        if cell is not None:
            forms.setdefault(cell.strip(), set()).add(cell)
    names = {bare: found.pop() if len(found) == 1 else bare for bare, found in forms.items()}
    if classes is not None:
        names = {bare: name if name in classes else bare for bare, name in names.items()}
    return [None if cell is None else names[cell.strip()] for cell in cells]


def override_labels(data: Dataset, labels: ArrayLike | str | Path, labels_key: str | None = None) -> Dataset:
    """The data with labels from elsewhere, such as real annotations with their errors.

    Args:
        data: the samples.
        labels: one label for each row of the source (or of ``data``), or a file that `read_labels` reads. Labels are
            class names or class numbers.
        labels_key: which of several label sets of the file.

    >>> data = Dataset(np.eye(3), np.array([0, 1, 0]), ("cat", "dog"))
    >>> override_labels(data, ["dog", "dog", "cat"]).target.tolist()
    [1, 1, 0]
    """
    if isinstance(labels, (str, Path)):
        file = read_labels(labels, labels_key)
        found, keys, by = file.cells, file.keys, file.by
        where = str(labels)
    else:
        found, keys, by = np.asarray(labels), None, ""
        where = "the labels"
    classes = data.classes or None
    if keys is None:
        if found.ndim != 1 or len(found) not in (data.rows, len(data)):
            raise InputError(
                f"{where}: {found.shape} labels for {len(data)} samples; expected one for each of the {data.rows} rows of "
                "the source, or a table with the columns index and label."
            )
        cells = found[data.index] if len(found) == data.rows else found
        target, names = encode_labels(cells, classes)
        return replace(data, target=target, classes=names)
    numbers, names = encode_labels(found, classes)
    place = _places(data, keys, by, where)
    target = data.target.copy()
    here = place >= 0
    target[place[here]] = numbers[here]
    return replace(data, target=target, classes=names)


@dataclass(frozen=True, eq=False)
class LabelFile:
    """What a file of labels holds.

    Attributes:
        cells: (N,) the labels as written.
        keys: (N,) the index, id or file that each belongs to; None if they stand in the order of the rows.
        by: the name of the column of keys, in lower case; empty if there is none.
        column: the name of the column of labels, of a table.

    >>> LabelFile(np.array(["cat"])).by
    ''
    """

    cells: NDArray[Any]
    keys: NDArray[Any] | None = None
    by: str = ""
    column: str | None = None


KEYS = ("index", "id", "file", "file_name", "path", "filename")
"""Columns of a table of labels that say which row a label belongs to."""


def read_labels(path: str | Path, labels_key: str | None = None) -> LabelFile:
    r"""Labels from a file: the cells, and the index or id of each if the file has them, and which of the two.

    - ``.npy``, ``.npz``: an array, or several named ones. Pickled dictionaries of arrays (``.npy`` of CIFAR-N, ``.pt``) need
      `experiments.data`, see `PICKLE_READERS`.
    - ``.txt``: a label a line.
    - a table (``.csv``, ``.tsv``, ``.jsonl``, ``.xlsx``, ``.parquet``): a label column, and perhaps a column index, id, file or
      file_name; without one, a label for each row.

    Where a file holds several label sets, ``labels_key`` says which.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "labels.txt").write_text("cat\ndog\n")
    >>> read_labels(folder / "labels.txt").cells.tolist()
    ['cat', 'dog']
    """
    from compensate.data.tables import is_table

    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz", ".pt"):
        return LabelFile(_pick(_arrays(path), labels_key, path))
    if is_table(path):
        return _table(path, labels_key)
    if suffix in (".txt", ".labels", ""):
        return LabelFile(np.array(read_text(path).splitlines(), dtype=object))
    raise InputError(
        f"{path} is not a label file; expected .csv, .tsv, .jsonl, .xlsx, .parquet, .txt, .npy, .npz or .pt."
    )


def _table(path: Path, labels_key: str | None) -> LabelFile:
    from compensate.data.label_column import UnclearLabel, choose_label
    from compensate.data.tables import check_header, read_frame

    frame = read_frame(path)
    if labels_key is None:
        check_header(frame, path, "labels_key")
    lower = {str(c).strip().lower(): c for c in frame.columns}
    by = next((name for name in KEYS if name in lower), "")
    others = [c for c in frame.columns if not by or c != lower[by]]
    column = labels_key or (others[0] if len(others) == 1 else None)
    with suppress(UnclearLabel):
        column = column or choose_label(frame[others], None, str(path))
    if column not in frame.columns:
        raise InputError(
            f"{path} has the columns {', '.join(map(str, frame.columns))}. Say which holds the labels: labels_key=... "
            "(--labels-key on the command line)."
        )
    keys = frame[lower[by]].to_numpy(object) if by else None
    return LabelFile(frame[column].to_numpy(object), keys, by, str(column))


def _arrays(path: Path) -> Any:
    if path.suffix.lower() == ".pt":
        inner = [content for _, content in members(path, lambda name: name.endswith("data.pkl"), packed=".zip")]
        if len(inner) != 1:
            raise InputError(f"{path} is not a file saved by torch.")
        return _unpickled(inner[0], path)
    with opened(path) as file, numpy_damage(path):
        # An object array of one dictionary: its pickle follows the header.
        if b"'descr': '|O'" in file.read(200):
            file.seek(0)
            version = np.lib.format.read_magic(file)
            (np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0)(file)
            return _inner(_unpickled(file.read(), path))
    return read_numpy(path)


PICKLE_READERS: list[Callable[[bytes, str], Any]] = []
"""Readers of pickled arrays. `experiments.data` adds one that runs no code; the package itself reads no pickle."""


def _unpickled(content: bytes, path: Path) -> Any:
    for reader in PICKLE_READERS:
        return reader(content, str(path))
    raise InputError(
        f"{path} is a pickle, which is read in a checkout only (python -m experiments audit ... --labels {path.name}). "
        "Save the labels as plain arrays: numpy.savez."
    )


def _inner(value: Any) -> Any:
    while isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    return value


def _pick(found: Any, key: str | None, path: Path) -> NDArray[Any]:
    if isinstance(found, dict):
        named = {k.decode() if isinstance(k, bytes) else str(k): v for k, v in found.items()}
        usable = [k for k, v in named.items() if np.ndim(v) == 1]
        key = key or (usable[0] if len(usable) == 1 else None)
        if key is None or key not in named:
            raise InputError(
                f"{path} holds {', '.join(usable) or 'no labels'}. Say which: "
                f'labels_key="{(usable or ["y"])[0]}" (--labels-key {(usable or ["y"])[0]} on the command line).'
            )
        found = named[key]
    found = np.asarray(found)
    if found.ndim != 1:
        raise InputError(f"{path} holds an array of shape {found.shape}; expected one label a sample, (N,).")
    return found


def _places(data: Dataset, keys: NDArray[Any], by: str, where: str) -> NDArray[np.int64]:
    """The position in the data of each labeled sample; -1 if it is a row of the source that is not in this part."""
    if by == "index":
        try:
            index = np.array([int(str(k)) for k in keys], dtype=np.int64)
        except ValueError:
            raise InputError(f"{where}: the column index must hold row numbers from 0 on.") from None
        if index.size and not 0 <= index.min() <= index.max() < data.rows:
            raise InputError(f"{where}: an index is outside 0..{data.rows - 1}, the rows of the source.")
        position = np.full(data.rows, -1, dtype=np.int64)
        position[data.index] = np.arange(len(data))
        place = position[index]
    else:
        if data.ids is None:
            raise InputError(f"{where} goes by {by}, and the data set has no ids; use a column index instead.")
        known = {str(name): i for i, name in enumerate(data.ids)}
        place = np.array([known.get(str(k), -1) for k in keys], dtype=np.int64)
        if (place < 0).all() and len(place):
            raise InputError(f"{where}: none of its ids, such as {keys[0]}, is in the data, which has {data.ids[0]}.")
    seen = place[place >= 0]
    if len(np.unique(seen)) != len(seen):
        twice = keys[np.flatnonzero(np.bincount(seen)[np.maximum(place, 0)] > 1)[0]]
        raise InputError(f"{where} labels {by} {twice} more than once; keep one row for each.")
    return place


def label_name(value: Any) -> str:
    """A cell of labels as the name of a class: without blanks around it, whole numbers without a decimal point."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        value = int(value)
    return str(value).strip(" ")


def _is_number(text: str) -> bool:
    try:
        return np.isfinite(float(text))
    except ValueError:
        return False


def _number(text: str) -> tuple[float, str]:
    return float(text), text
