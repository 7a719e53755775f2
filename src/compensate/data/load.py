"""`load`: read data of any kind, also data sets of the Hugging Face `datasets` library, which are recognized without importing it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from compensate.data.arrays import read_npz
from compensate.data.dataset import PARTS, Dataset, Source, Splits
from compensate.data.folder import GRAY, is_image, pixels, read_folder
from compensate.data.label_column import choose_label, choose_text
from compensate.data.label_files import override_labels
from compensate.data.labels import encode_labels
from compensate.data.parquet import is_pattern, parquet_files
from compensate.data.tables import from_frame, is_table, read_table
from compensate.errors import InputError, nearest
from compensate.extras import require
from compensate.files import check_width, is_address, readable_as

HUB_NAME = re.compile(r"[\w-]+/[\w.-]+")  # the owner and the name of a data set of the Hugging Face hub
IMAGE_SIDE = 160  # side in pixels to which images of different sizes are resized; the image encoder uses it too


def digits() -> Dataset:
    """The 1,797 digits of scikit-learn in their stored order: ``x`` is (1797, 1, 8, 8), float32 in [0, 1].

    >>> digits().x.shape
    (1797, 1, 8, 8)

    Reference: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998.
    """
    from sklearn.datasets import load_digits

    x, target = load_digits(return_X_y=True)
    images = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    return Dataset(images, target.astype(np.int64), tuple("0123456789"))


def digits_splits(data_dir: str | Path | None = None, *, test: float = 0.3, seed: int = 0) -> Splits:
    """The digits in a training and a test part, stratified by class; ``data_dir`` is not used."""
    return Splits(*digits().split((1 - test, test), seed=seed))


Reader = Callable[..., Splits]
# Readers of data sets by name, called as ``reader(data_dir, **options)``. `experiments.data` adds the public sets of the paper.
NAMED: dict[str, Reader] = {"digits": digits_splits}
CHECKOUT = "python -m experiments train cifar10"  # the command of a checkout for public data sets
# Detectors of further folder and archive layouts with their readers, called as ``reader(path, **options)``
LAYOUTS: list[tuple[Callable[[Path], bool], Reader]] = []


def load(
    data: Any, data_dir: str | Path | None = None, *, labels: Any = None, labels_key: str | None = None, **options: Any
) -> Splits:
    """A data set by its name, its path, or itself.

    Args:
        data: a name (digits; in a checkout with `experiments.data` also public sets such as cifar10); ``owner/name`` of
            the Hugging Face hub; a file (.csv, .tsv, .jsonl, .json, .xlsx,
            .parquet, .npz, .npy), a folder or pattern of Parquet files, a folder of images, or a saved Hugging Face data set; a table
            of any library with the Arrow interface; a Hugging Face data set; a `Dataset` or `Splits`.
        data_dir: folder of named data sets; see `data_folder`.
        labels: labels of the training part from elsewhere, an array or a file (see `read_labels`).
        labels_key: which of several label sets of that file.
        options: of the reader; see `read_table`, `from_frame`, `read_folder`.

    >>> len(load("digits").train)
    1258
    """
    if isinstance(data, (Dataset, Splits)):
        splits = Splits(data) if isinstance(data, Dataset) else data
    else:
        what, read = _find_reader(data, data_dir)
        if read is read_folder:  # its labels may belong to files
            options = {"labels": labels, "label": labels_key, **options}
            labels = None
        given = {name: value for name, value in options.items() if value is not None}
        try:
            splits = read(what, **given)
        except TypeError as error:
            if "unexpected keyword argument" not in str(error):
                raise
            unknown = str(error).rpartition(" ")[2].strip("'")
            named = data if isinstance(data, (str, Path)) else f"a {type(data).__name__}"
            raise InputError(f"{unknown}={given.get(unknown)!r} is not an option for {named}; leave it out.") from error
    return splits if labels is None else replace(splits, train=override_labels(splits.train, labels, labels_key))


def _find_reader(data: Any, data_dir: str | Path | None) -> tuple[Any, Reader]:
    """The argument for the reader of these data, and the reader."""
    if isinstance(data, str) and data.lower() in NAMED:
        return data_dir, NAMED[data.lower()]
    if is_address(data):
        remedy = "For this task copy them to a disk, and give their path"
        raise InputError(f"{data} holds files on remote storage, which `compensate audit` reads. {remedy}.")
    if not isinstance(data, (str, Path)):
        if is_hub(data):
            return data, from_hub
        if hasattr(data, "__arrow_c_stream__"):
            return data, from_arrow
        hints = (f" Call .{name}() first." for name in ("collect", "compute", "to_pandas") if hasattr(data, name))
        hint = next(hints, "")
        raise InputError(
            f"load was given a {type(data).__name__}; expected a name, a path, a data frame (or any table with the Arrow "
            f"interface), a Hugging Face data set, or arrays through compensate.data.from_arrays(x, y).{hint}"
        )
    path = Path(data).expanduser()
    if not path.exists() and HUB_NAME.fullmatch(str(data)) and not path.parent.exists():
        datasets = require("datasets", f"{path} does not exist; reading it as a data set of the Hugging Face hub", "hf")
        with readable_as(f'the data set "{data}" of the hub', "readable", "Check the name and the connection"):
            return datasets.load_dataset(str(data)), from_hub  # nosec B615: data of the named set; no code is run
    if not path.exists() and not is_pattern(path):
        checkout = "" if len(NAMED) > 1 else f" (a checkout reads public data sets such as cifar10: {CHECKOUT})"
        hint = nearest(str(path), NAMED) + checkout
        raise InputError(f'{path} does not exist, and no data set has the name "{path}"; {hint}')
    if any(is_image(p) for level in ("*", "*/*", "*/*/*") for p in path.glob(level) if path.is_dir()):
        return path, read_folder
    if is_saved(path):
        return open_saved(path), from_hub
    if (is_table(path) and not path.is_dir()) or parquet_files(path):
        return path, read_table
    if path.suffix.lower() in (".npz", ".npy"):
        return path, read_npz
    for detects, reader in LAYOUTS:
        if detects(path):
            return path, reader
    raise InputError(
        f"{path} is not in a known format; expected a .csv, .tsv, .jsonl, .json, .xlsx, .parquet, .npz or .npy file (for an audit also .conll), a "
        "folder of images (one folder a class, or with a labels.csv or metadata.csv), of Parquet files or of a saved Hugging Face "
        f"data set. The folders and archives of CIFAR, MNIST, SST-2 and IMDB are read in a checkout: {CHECKOUT}."
    )


def from_arrow(data: Any, **options: Any) -> Splits:
    """As `from_frame`, from a table of any library with the Arrow interface (``__arrow_c_stream__``)."""
    if not isinstance(data, pd.DataFrame):
        pyarrow = require("pyarrow", "reading tables of other libraries", "parquet")
        where = f"the table ({type(data).__module__.partition('.')[0]})"
        with readable_as(where, "readable by Arrow", "Give its columns as a pandas data frame"):
            table = pyarrow.table(data)
            check_width(table.num_columns, where)
            data = table.to_pandas()
    return from_frame(data, "the data frame", **options)


def is_hub(data: Any) -> bool:
    """Whether this is a `datasets.Dataset`, or a dictionary of them."""
    if isinstance(data, Mapping):
        return bool(data) and all(is_hub(part) for part in data.values())
    return hasattr(data, "column_names") and hasattr(data, "features") and hasattr(type(data), "__getitem__")


def is_saved(path: Path) -> bool:
    """Whether a folder was written by ``save_to_disk``."""
    return path.is_dir() and ((path / "dataset_dict.json").is_file() or (path / "state.json").is_file())


def part_files(path: Path) -> dict[str, Path]:
    """The file or pattern of each part in a folder of tables such as ``train.csv`` and ``test.csv``; empty for other folders.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("train-00000-of-00001.parquet", "test-00000-of-00001.parquet"):
    ...     (folder / name).touch()
    >>> {part: file.name for part, file in part_files(folder).items()}
    {'test': 'test-*.parquet', 'train': 'train-*.parquet'}
    """
    found: dict[str, Path] = {}
    folder = path / "data" if (path / "data").is_dir() else path
    for file in sorted(p for p in folder.glob("*") if path.is_dir() and is_table(p)):
        name, shard, _ = file.name.partition("-")
        part = PARTS.get((name if shard else file.name.partition(".")[0]).lower())
        if part is not None:
            found.setdefault(part, file.with_name(f"{name}-*{file.suffix}") if shard else file)
    return found if "train" in found else {}


def open_saved(path: str | Path) -> Any:
    """The `datasets.Dataset` or `DatasetDict` in a folder; Arrow does not check the offsets that it reads from a file."""
    datasets = require("datasets", "reading a saved data set", "hf")
    with readable_as(path, "a saved data set", "Save it again with save_to_disk"):
        found = datasets.load_from_disk(str(path))
        for part in found.values() if isinstance(found, Mapping) else [found]:
            part.data.validate(full=True)
        return found


def from_hub(
    data: Any, *, label: str | None = None, text: str | None = None, size: int | None = None, **options: Any
) -> Splits:
    """Splits from a `datasets.Dataset` or `DatasetDict`: texts, images, or columns of a table.

    The label feature gives the class names, and ``index`` is the row number in the data set. Further options are those of `from_frame`.
    Images are resized to squares if they differ in size, or if a ``size`` is given.

    >>> import pytest
    >>> datasets = pytest.importorskip("datasets")      # or: import datasets
    >>> rows = {"text": ["a very fine film", "a dull and long one"], "label": [1, 0]}
    >>> len(from_hub(datasets.Dataset.from_dict(rows)).train)
    2
    """
    name, rows = training_part(data)
    train = _hub_part(rows, label, text, size, options)
    if name is None:
        return Splits(train)
    others = {str(other): part for other, part in data.items() if other != name}
    left_out = {other: len(part) for other, part in others.items()}
    train = replace(train, source=replace(train.source, left_out=left_out))
    known = {PARTS[other.lower()]: part for other, part in others.items() if other.lower() in PARTS}
    return Splits(train, **{other: _hub_part(part, label, text, size, options, train) for other, part in known.items()})


def _hub_part(
    data: Any, label: str | None, text: str | None, size: int | None, options: Any, like: Dataset | None = None
) -> Dataset:
    where = "the data set"
    frame, pictures = frame_and_images(data)
    if like is not None:
        label = like.source.label
    else:
        label = choose_label(frame, label, where, None if pictures else choose_text(frame, text, where, label))
    assert label is not None
    names = getattr(data.features[label], "names", None)
    if names is not None:
        names = [str(name) for name in names]
        frame[label] = pd.Series(named_labels(frame[label], names), dtype=object)
    if not pictures:
        return from_frame(frame, where, label=label, text=text, classes=names, like=like, **options).train
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
    with readable_as(f'the column "{column[:80]}" of the data set', "readable", "Make or save the data set again"):
        return list(data[column])


def named_labels(column: Iterable[Any], names: Sequence[str]) -> list[str | None]:
    """Class numbers as names; None for a missing label, or a hidden one of a test part (-1)."""
    return [None if value is None or value != value or value < 0 else names[int(value)] for value in column]
