"""`load`: read data of any kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from compensate.data.arrays import read_npz
from compensate.data.dataset import Dataset, Splits
from compensate.data.folder import is_image, read_folder
from compensate.data.hub import from_disk, from_hub, is_hub, is_saved
from compensate.data.label_files import override_labels
from compensate.data.named.catalog import SOURCES, read_source
from compensate.data.named.image_sets import digits_splits, read_cifar, read_mnist
from compensate.data.named.text_sets import read_imdb, read_sst2
from compensate.data.parquet import is_pattern, parquet_files
from compensate.data.tables import from_frame, is_table, read_table
from compensate.errors import InputError, nearest
from compensate.extras import require
from compensate.files import check_width, is_address, is_archive

ALIASES = {"cifar-10": "cifar10", "cifar-100": "cifar100", "fashionmnist": "fashion-mnist", "sst-2": "sst2"}


def load(
    data: Any,
    data_dir: str | Path | None = None,
    *,
    labels: Any = None,
    labels_key: str | None = None,
    **options: Any,
) -> Splits:
    """A data set by its name, its path, or itself.

    Args:
        data: a name (digits, cifar10, cifar100, mnist, fashion-mnist, sst2, imdb); a file (.csv, .tsv, .jsonl, .xlsx,
            .parquet, .npz, .npy), several Parquet files (a folder, or a pattern such as ``data/*.parquet``), a folder of images, or
            a saved Hugging Face data set; a table of pandas, polars, duckdb, pyarrow or any library with the Arrow interface; a
            Hugging Face data set; or a `Dataset` or `Splits`, which is returned.
        data_dir: where named data sets are, or are put; else the environment variable COMPENSATE_DATA says.
        labels: labels of the training part from elsewhere, an array or a file (see `read_labels`); for a folder of
            images a table of file and label.
        labels_key: which of several label sets of that file.
        options: of the reader: ``label``, ``text``, ``task``, ``ignore``, ``columns``, ``encoding``, ``delimiter`` for tables, ``size`` for
            images, ``phrases`` for SST-2, ``seed`` and ``test`` for the digits, ``download=False``.

    >>> len(load("digits").train)
    1258
    """
    if isinstance(data, str) and (name := ALIASES.get(data.lower(), data.lower())) in (*SOURCES, "digits"):
        splits = _options(data, digits_splits if name == "digits" else _named(name, data_dir), options)
    elif is_address(data):
        raise InputError(
            f"{data} is the address of files on remote storage, which `compensate audit` reads in pieces. For this task copy them to a "
            "disk, and give their path."
        )
    elif isinstance(data, (str, Path)):
        path = Path(data).expanduser()
        if path.is_dir() and _holds_images(path):
            return _options(data, read_folder, {"labels": labels, "label": labels_key, **options}, path)
        if path.suffix.lower() == ".npy":
            if labels is not None and not isinstance(labels, (str, Path)):
                return Splits(override_labels(_options(data, read_npz, options, path).train, labels))
            if labels is None or labels_key is None:
                return _options(data, read_npz, {"labels": labels, **options}, path)
        splits = _path(path, options)
    elif isinstance(data, Splits):
        splits = data
    elif isinstance(data, Dataset):
        splits = Splits(data)
    elif is_hub(data):
        splits = _options("the data set", from_hub, options, data)
    elif is_arrow(data):
        splits = _options("the data frame", from_frame, options, frame_of(data), "the data frame")
    else:
        later = next((name for name in ("collect", "compute", "to_pandas") if hasattr(data, name)), None)
        hint = "" if later is None else f" Call .{later}() first."
        raise InputError(
            f"load was given a {type(data).__name__}; expected a name, a path, a data frame (or any table with the Arrow "
            f"interface), a Hugging Face data set, or arrays through compensate.data.from_arrays(x, y).{hint}"
        )
    if labels is None:
        return splits
    return replace(splits, train=override_labels(splits.train, labels, labels_key))


def is_arrow(data: Any) -> bool:
    """Whether this is a table (pandas, polars, duckdb, pyarrow, ...) with the Arrow interface (``__arrow_c_stream__``).

    >>> is_arrow(pd.DataFrame({"a": [1]})), is_arrow([1])
    (True, False)
    """
    return hasattr(data, "__arrow_c_stream__")


def frame_of(data: Any) -> pd.DataFrame:
    """The data frame of a table with the Arrow interface.

    >>> import pytest
    >>> pyarrow = pytest.importorskip("pyarrow")      # or: import pyarrow
    >>> frame_of(pyarrow.table({"size": [1, 2], "label": ["a", "b"]})).shape
    (2, 2)
    """
    if isinstance(data, pd.DataFrame):
        return data
    pyarrow = require("pyarrow", "reading tables of other libraries", "parquet")
    where = f"the table ({type(data).__module__.partition('.')[0]})"
    try:
        table = pyarrow.table(data)
        check_width(table.num_columns, where)
        return table.to_pandas()
    except InputError:
        raise
    except Exception as error:  # from Arrow or the library of the table
        raise InputError(f"{where} cannot be read ({error}). Give its columns as a pandas data frame.") from error


def _named(name: str, data_dir: str | Path | None) -> Any:
    def read(**options: Any) -> Splits:
        return read_source(name, data_dir, **options)

    return read


def _path(path: Path, options: Mapping[str, Any]) -> Splits:
    if is_pattern(path):
        return _options(str(path), read_table, options, path)
    if not path.exists():
        known = (*SOURCES, "digits")
        raise InputError(
            f'there is no file or folder {path}, and no data set has the name "{path}"; {nearest(str(path), known)}'
        )
    where = str(path)
    if path.is_file() and is_table(path):
        return _options(where, read_table, options, path)
    if path.suffix.lower() in (".npz", ".npy"):
        return _options(where, read_npz, options, path)
    if is_saved(path):
        return _options(where, from_disk, options, path)
    if parquet_files(path):
        return _options(where, read_table, options, path)
    names = {p.name for p in path.iterdir()} if path.is_dir() else {path.name}
    lower = path.name.lower()
    if "train.tsv" in names or (is_archive(path) and lower.startswith("sst")):
        return _options(where, read_sst2, options, path)
    if (path / "train" / "pos").is_dir() or (is_archive(path) and lower.startswith(("aclimdb", "imdb"))):
        return _options(where, read_imdb, options, path)
    if names & {"train.bin", "meta"} or (is_archive(path) and "cifar-100" in lower):
        return _options(where, read_cifar, {**options, "classes": 100}, path)
    if names & {"data_batch_1", "data_batch_1.bin"} or (is_archive(path) and "cifar" in lower):
        return _options(where, read_cifar, options, path)
    if any("idx3-ubyte" in name for name in names):
        return _options(where, read_mnist, options, path)
    raise InputError(
        f"{path} is no kind of data that is known; expected a .csv, .tsv, .jsonl, .xlsx, .parquet, .npz or .npy file (for an audit also .conll), a "
        "folder of images (one folder a class, or with a labels.csv or metadata.csv), of Parquet files or of a saved Hugging Face "
        "data set, or the folder or archive of CIFAR, MNIST, SST-2 or IMDB."
    )


def _holds_images(path: Path) -> bool:
    """Whether a folder holds images in its first three levels; deeper levels are sampled."""
    if any(map(is_image, path.iterdir())):
        return True
    return any(
        is_image(entry) or (entry.is_dir() and any(map(is_image, sorted(entry.iterdir())[:5])))
        for folder in path.iterdir()
        if folder.is_dir()
        for entry in sorted(folder.iterdir())
    )


def _options(what: Any, read: Any, options: Mapping[str, Any], *args: Any) -> Splits:
    """Call a reader; an option it does not know is an `InputError`."""
    given = {k: v for k, v in options.items() if v is not None}
    try:
        return read(*args, **given)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        unknown = str(error).rpartition(" ")[2].strip("'")
        raise InputError(f"{unknown}={given.get(unknown)!r} is not an option for {what}; leave it out.") from error
