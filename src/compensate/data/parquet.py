"""Parquet files on remote storage, by their address: ``s3://bucket/path/*.parquet``, ``gs://``, ``file://`` and whatever fsspec reads.

Amazon's and Google's storage are read by Arrow, which brings what it needs; others by fsspec and the library that it names. Credentials, regions
and endpoints are where these libraries look for them: in the environment, and in the files of the storage's own tools.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from compensate.errors import InputError
from compensate.extras import require
from compensate.files import CELL, check_width, is_address, limit, too_large

BY_ARROW = ("s3", "gs")

CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or log in: gcloud auth application-default login",
}
_DENIED = re.compile(
    r"ACCESS_DENIED|credential|forbidden|unauthorized|\b40[13]\b|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|PERMISSION_DENIED",
    re.I,
)


def remote_files(address: str) -> list[tuple[str, str]]:
    """The Parquet files that an address names (a file, a folder, or a pattern), in order, and what tells their versions apart.

    >>> import tempfile
    >>> remote_files(f"file://{tempfile.mkdtemp()}")
    Traceback (most recent call last):
    compensate.errors.InputError: file:///... names no Parquet file; expected a file, a folder or a pattern such as s3://bucket/path/*.parquet.
    """
    with reaching(address):
        storage, path = _storage(address)
        if glob.has_magic(path):
            found = storage.glob(path)
        else:
            found = storage.find(path) if storage.isdir(path) else [path] if storage.exists(path) else []
        found = sorted(name for name in found if is_part(name))
        if not found and _scheme(address) in BY_ARROW and not storage.exists(bucket := path.partition("/")[0]):
            raise InputError(
                f'there is no bucket "{bucket}" ({address}), or it is not to be seen with these credentials. Check its name; '
                f"{CREDENTIALS[_scheme(address)]}."
            )
        if not found:
            raise InputError(
                f"{address} names no Parquet file; expected a file, a folder or a pattern such as s3://bucket/path/*.parquet."
            )
        return [(_address(_scheme(address), name), str(storage.checksum(name))) for name in found]


@contextmanager
def parquet_source(path: str) -> Iterator[Any]:
    """What Arrow reads a Parquet file from: the path itself, or the open file at an address."""
    if not is_address(path):
        yield path
        return
    with reaching(path):
        storage, name = _storage(path)
        with storage.open(name, "rb") as file:
            yield file


@contextmanager
def reaching(address: str) -> Iterator[None]:
    """Errors of storage inside are said in the words of whoever typed the address."""
    scheme = _scheme(address)
    try:
        yield
    except InputError:
        raise
    except ImportError as error:
        raise InputError(f"{address} needs a library that is not installed: {error}. Install it with pip.") from error
    except FileNotFoundError as error:
        raise InputError(
            f"there is no {address}; check the address, or the bucket, the folder and the name."
        ) from error
    except OSError as error:
        said = str(error).split("\n")[0][:300]
        if isinstance(error, PermissionError) or _DENIED.search(said):
            how = CREDENTIALS.get(scheme, f"look up how fsspec is given the credentials of {scheme}://")
            raise InputError(f"{address} may not be read with these credentials ({said}); {how}.") from error
        more = ", the region (AWS_REGION) and the endpoint (AWS_ENDPOINT_URL)" if scheme == "s3" else ""
        raise InputError(f"{address} cannot be reached ({said}). Check the network{more}.") from error


def _scheme(address: str) -> str:
    return address.partition("://")[0].lower()


def _address(scheme: str, name: str) -> str:
    return name if is_address(name) else f"{scheme}://{name}"


def _storage(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    scheme = _scheme(address)
    if scheme in BY_ARROW:
        path = address.partition("://")[2]
        return _by_arrow(scheme, path.partition("/")[0]), path.rstrip("/")
    import fsspec

    if scheme not in fsspec.available_protocols():
        raise InputError(f'"{scheme}://" is no storage that is known ({address}); expected s3://, gs:// or file://.')
    storage, path = fsspec.core.url_to_fs(address)
    return storage, str(path)


@lru_cache(maxsize=8)
def _by_arrow(scheme: str, bucket: str) -> Any:
    """Kept, because Arrow asks for the region of a bucket."""
    arrow = require("pyarrow.fs", "reading Parquet", "parquet")
    from fsspec.implementations.arrow import ArrowFSWrapper

    return ArrowFSWrapper(arrow.FileSystem.from_uri(f"{scheme}://{bucket}")[0])


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
