"""Parquet: one file, or a table that is spread over several (a folder, or a pattern such as ``data/*.parquet``)."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

import pandas as pd

from compensate.errors import InputError
from compensate.extras import require
from compensate.files import CELL, check_width, limit, too_large

SUFFIXES = (".parquet", ".pq")


def is_pattern(path: str | Path) -> bool:
    """Whether a path stands for several Parquet files by its wildcards.

    >>> is_pattern("data/*.parquet"), is_pattern("data/a.parquet")
    (True, False)
    """
    path = Path(path)
    return path.suffix.lower() in SUFFIXES and glob.has_magic(str(path)) and not path.exists()


def parquet_files(path: str | Path) -> list[Path]:
    """The files of a table in order: those that a pattern names, or all below a folder; none if there are none.

    Names that begin with a dot or an underscore are left out, as other readers leave them out, and the table of labels in a
    folder of images (``metadata.parquet``).

    >>> import tempfile
    >>> parquet_files(tempfile.mkdtemp())
    []
    """
    path = Path(path)
    if is_pattern(path):
        found = [Path(name) for name in glob.glob(str(path), recursive=True)]
    elif path.is_dir():
        found = [p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES]
    else:
        return []
    return sorted(p for p in found if p.is_file() and is_part(p))


def is_part(path: str | Path) -> bool:
    """Whether a file among others is a part of their table, by its name.

    >>> is_part("data/1.parquet"), is_part("data/_SUCCESS"), is_part("images/metadata.parquet")
    (True, False, False)
    """
    path = Path(path)
    named = not path.name.startswith((".", "_")) and path.name != "metadata.parquet"
    return named and path.suffix.lower() in SUFFIXES


def read_parquet(path: str | Path) -> pd.DataFrame:
    """The table of a file, a folder or a pattern; rows are counted through the files in the order of their names."""
    path = Path(path)
    if path.is_file():
        return to_frame(read_arrow(path), path)
    files = parquet_files(path)
    if not files:
        raise InputError(f"there is no file {path}; check the path.")
    parts = [to_frame(read_arrow(file), file) for file in files]
    names = list(parts[0].columns)
    for file, part in zip(files, parts, strict=True):
        if sorted(map(str, part.columns)) != sorted(map(str, names)):
            odd = sorted(set(map(str, part.columns)) ^ set(map(str, names)))
            raise InputError(
                f"{file} has other columns than {files[0].name} ({', '.join(odd[:5])}); expected the same in every file of a table. "
                "Name files of one table alone."
            )
    return pd.concat([part[names] for part in parts], ignore_index=True)


def read_arrow(path: Path) -> Any:
    """The Arrow table of a Parquet file."""
    if not path.is_file():
        raise InputError(f"there is no file {path}; check the path.")
    parquet = require("pyarrow.parquet", "reading Parquet", "parquet")
    try:
        _check(path)
        with parquet.ParquetFile(path) as file:
            return file.read()
    except InputError:
        raise
    except Exception as error:  # of Arrow, or of the metadata in the file
        raise _damaged(path, error) from error


def to_frame(table: Any, where: str | Path = "the table") -> pd.DataFrame:
    """The data frame of an Arrow table."""
    try:
        return table.to_pandas()
    except Exception as error:  # of Arrow, of pandas, or of the JSON that they keep in the file
        raise _damaged(where, error) from error


def _damaged(path: str | Path, error: Exception) -> InputError:
    return InputError(f"{path} is damaged or not a Parquet file ({error}). Write or fetch it again.")


def _check(path: Path) -> None:
    """Refuses a file that unpacks to more than its `limit`: values that repeat take next to nothing in it."""
    import pyarrow
    import pyarrow.compute as compute
    from pyarrow import parquet

    head = parquet.read_metadata(path)
    check_width(head.num_columns, path)
    size = max(
        CELL * head.num_rows * head.num_columns,
        sum(head.row_group(k).total_byte_size for k in range(head.num_row_groups)),
    )
    if size <= limit(path):
        kinds = (pyarrow.types.is_string, pyarrow.types.is_large_string, pyarrow.types.is_binary)
        texts = [field.name for field in parquet.read_schema(path) if any(is_kind(field.type) for is_kind in kinds)]
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            table = file.read(columns=texts)
        for column in table.columns:
            for part in column.chunks:
                if pyarrow.types.is_dictionary(part.type):  # kept once here, and written out for each row later
                    lengths = compute.binary_length(part.dictionary).take(part.indices)
                    size += compute.sum(lengths.cast(pyarrow.int64())).as_py() or 0
    if size > limit(path):
        raise InputError(too_large(path))
