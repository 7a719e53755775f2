"""`load`: read data of any kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from compensate.data.arrays import read_npz
from compensate.data.dataset import Dataset, Splits
from compensate.data.folder import is_image, read_folder
from compensate.data.hub import from_disk, from_hub, is_hub, is_saved
from compensate.data.label_files import override_labels
from compensate.data.parquet import is_pattern, parquet_files
from compensate.data.tables import from_frame, is_table, read_table
from compensate.errors import InputError, nearest
from compensate.extras import require
from compensate.files import check_width, is_address

DATA_VARIABLE = "COMPENSATE_DATA"


def data_folder(data_dir: str | Path | None = None) -> Path:
    """The folder of named data sets and word vectors: `data_dir`, else the environment variable COMPENSATE_DATA, else the user's cache.

    >>> data_folder("my/data").name
    'data'
    """
    given = data_dir or os.environ.get(DATA_VARIABLE)
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "compensate"


def digits() -> Dataset:
    """The 1,797 digits of scikit-learn in their stored order: ``x`` is (1797, 1, 8, 8), float32 in [0, 1].

    >>> digits().x.shape
    (1797, 1, 8, 8)

    Reference: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998.
    """
    x, target = _stored_digits()
    images = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    return Dataset(images, target.astype(np.int64), tuple("0123456789"))


@cache
def _stored_digits() -> tuple[Any, Any]:
    """Pixels and labels; scikit-learn parses a text file, which takes longer than a short training."""
    from sklearn.datasets import load_digits

    return load_digits(return_X_y=True)


def digits_splits(data_dir: str | Path | None = None, *, test: float = 0.3, seed: int = 0) -> Splits:
    """The digits in a training and a test part, stratified by class; the same parts for the same seed.

    >>> splits = digits_splits()
    >>> len(splits.train), len(splits.test)
    (1258, 539)
    """
    return Splits(*digits().split((1 - test, test), seed=seed))


Reader = Callable[..., Splits]

NAMED: dict[str, Reader] = {"digits": digits_splits}
"""Readers of data sets by name, called as ``reader(data_dir, **options)``. `experiments.data` adds the public sets of the paper."""

CHECKOUT = "python -m experiments train cifar10"
"""The command of a checkout for public data sets."""

LAYOUTS: list[tuple[Callable[[Path], bool], Reader]] = []
"""Detectors of further folder and archive layouts with their readers, called as ``reader(path, **options)``."""


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
        data: a name (digits; in a checkout with `experiments.data` also public sets such as cifar10); a file (.csv, .tsv, .jsonl, .xlsx,
            .parquet, .npz, .npy), several Parquet files (a folder, or a pattern such as ``data/*.parquet``), a folder of images, or
            a saved Hugging Face data set; a table of pandas, polars, duckdb, pyarrow or any library with the Arrow interface; a
            Hugging Face data set; or a `Dataset` or `Splits`, which is returned.
        data_dir: folder of named data sets; see `data_folder`.
        labels: labels of the training part from elsewhere, an array or a file (see `read_labels`); for a folder of
            images a table of file and label.
        labels_key: which of several label sets of that file.
        options: of the reader: ``label``, ``text``, ``task``, ``ignore``, ``columns``, ``encoding``, ``delimiter`` for tables, ``size`` for
            images, ``seed`` and ``test`` for the digits.

    >>> len(load("digits").train)
    1258
    """
    if isinstance(data, str) and data.lower() in NAMED:
        splits = _options(data, NAMED[data.lower()], options, data_dir)
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


def _hint(data: Any) -> str:
    """What to call first, for a table that has not been computed yet."""
    later = next((name for name in ("collect", "compute", "to_pandas") if hasattr(data, name)), None)
    return "" if later is None else f" Call .{later}() first."


def _path(path: Path, options: Mapping[str, Any]) -> Splits:
    if is_pattern(path):
        return _options(str(path), read_table, options, path)
    if not path.exists():
        checkout = "" if len(NAMED) > 1 else f" Public data sets such as cifar10 are read in a checkout: {CHECKOUT}."
        hint = nearest(str(path), NAMED)
        raise InputError(
            f'{path} does not exist, and no data set has the name "{path}"; {hint}{"" if hint.endswith("?") else "."}{checkout}'
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
    for detects, reader in LAYOUTS:
        if detects(path):
            return _options(where, reader, options, path)
    raise InputError(
        f"{path} is not in a known format; expected a .csv, .tsv, .jsonl, .xlsx, .parquet, .npz or .npy file (for an audit also .conll), a "
        "folder of images (one folder a class, or with a labels.csv or metadata.csv), of Parquet files or of a saved Hugging Face "
        f"data set. The folders and archives of CIFAR, MNIST, SST-2 and IMDB are read in a checkout: {CHECKOUT}."
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
