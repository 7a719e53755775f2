"""Parquet tables: files, folders and patterns on a disk, and addresses such as ``s3://bucket/path/*.parquet``.

Arrow reads ``s3://`` and ``gs://``, fsspec other addresses; both take credentials from the environment and their configuration files.
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
from compensate.files import CELL_BYTES, check_file, check_unpacked, check_width, is_address, readable_as

SUFFIXES = (".parquet", ".pq")
PARQUET = ("a Parquet file", "Write or fetch it again")
CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or log in: gcloud auth application-default login",
}
"""Schemes that Arrow reads, and how to give it credentials."""

_DENIED = re.compile(
    r"(?i)ACCESS_DENIED|credential|forbidden|unauthorized|\b40[13]\b|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|PERMISSION_DENIED"
)


def is_pattern(path: str | Path) -> bool:
    """Whether a path stands for several Parquet files by its wildcards."""
    path = Path(path)
    return path.suffix.lower() in SUFFIXES and glob.has_magic(str(path)) and not path.exists()


def is_part(path: str | Path) -> bool:
    """Whether a file is a part of a table of several files: not hidden, and not the label table of an image folder."""
    path = Path(path)
    hidden = path.name.startswith((".", "_")) or path.name == "metadata.parquet"
    return path.suffix.lower() in SUFFIXES and not hidden


def parquet_files(path: str | Path) -> list[Path]:
    """The files of a table in order, from a pattern or a folder; empty for any other path."""
    path = Path(path)
    files = map(Path, glob.glob(str(path), recursive=True)) if is_pattern(path) else path.rglob("*")
    return sorted(p for p in files if is_part(p) and p.is_file())


def read_parquet(path: str | Path) -> pd.DataFrame:
    """The table of a file, a folder or a pattern; rows are in the order of the file names."""
    path = Path(path)
    files = [path] if path.is_file() else parquet_files(path)
    if not files:
        raise InputError(f"there is no file {path}; check the path.")
    parts: list[pd.DataFrame] = []
    for file in files:
        table = read_arrow(file)
        with readable_as(file, *PARQUET):
            parts.append(table.to_pandas())
        odd = sorted(set(map(str, parts[-1].columns)) ^ set(map(str, parts[0].columns)))
        if odd:
            problem = f"{file} has other columns than {files[0].name} ({', '.join(odd[:5])})"
            raise InputError(f"{problem}; expected the same in every file of a table. Name files of one table alone.")
    return parts[0] if len(parts) == 1 else pd.concat([part[parts[0].columns] for part in parts], ignore_index=True)


def read_arrow(path: Path) -> Any:
    """The Arrow table of a Parquet file; a file that unpacks to far more than its size is refused."""
    check_file(path)
    parquet = require("pyarrow.parquet", "reading Parquet", "parquet")
    import pyarrow
    import pyarrow.compute as compute

    with readable_as(path, *PARQUET):
        head = parquet.read_metadata(path)
        check_width(head.num_columns, path)
        groups = sum(head.row_group(k).total_byte_size for k in range(head.num_row_groups))
        size = max(CELL_BYTES * head.num_rows * head.num_columns, groups)
        check_unpacked(size, path)
        # Repeated texts are stored once in the file, and once per row in memory.
        kinds = (pyarrow.types.is_string, pyarrow.types.is_large_string, pyarrow.types.is_binary)
        texts = [field.name for field in parquet.read_schema(path) if any(is_kind(field.type) for is_kind in kinds)]
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            table = file.read(columns=texts)
        for part in (part for column in table.columns for part in column.chunks):
            if pyarrow.types.is_dictionary(part.type):
                lengths = compute.binary_length(part.dictionary).take(part.indices)
                size += compute.sum(lengths.cast(pyarrow.int64())).as_py() or 0
        check_unpacked(size, path)
        with parquet.ParquetFile(path) as file:
            return file.read()


def remote_files(address: str) -> list[tuple[str, str]]:
    """The Parquet files at an address (a file, a folder, or a pattern), in order, and a checksum of each version."""
    scheme = _scheme(address)
    with reaching(address):
        storage, path = _storage(address)
        names = storage.glob(path) if glob.has_magic(path) else storage.find(path)
        names = sorted(name for name in names if is_part(name))
        if not names and scheme in CREDENTIALS and not storage.exists(bucket := path.partition("/")[0]):
            problem = f'there is no bucket "{bucket}" ({address}), or it is hidden from these credentials'
            raise InputError(f"{problem}. Check its name; {CREDENTIALS[scheme]}.")
        if not names:
            expected = "a file, a folder or a pattern such as path/*.parquet"
            raise InputError(f"{address} names no Parquet file; expected {expected}.")
        return [(n if is_address(n) else f"{scheme}://{n}", str(storage.checksum(n))) for n in names]


@contextmanager
def parquet_source(path: str) -> Iterator[Any]:
    """An input for Arrow: the path, or the open file at an address."""
    if not is_address(path):
        yield path
        return
    with reaching(path):
        storage, name = _storage(path)
        with storage.open(name, "rb") as file:
            yield file


@contextmanager
def reaching(address: str) -> Iterator[None]:
    """Turn errors of remote storage into an `InputError` about the address."""
    scheme = _scheme(address)
    try:
        yield
    except ImportError as error:
        raise InputError(f"{address} needs a library that is not installed: {error}. Install it with pip.") from error
    except FileNotFoundError as error:
        raise InputError(f"there is no {address}; check the bucket, the folder and the name.") from error
    except OSError as error:
        message = str(error).split("\n")[0][:300]
        if isinstance(error, PermissionError) or _DENIED.search(message):
            advice = CREDENTIALS.get(scheme, f"look up how fsspec is given the credentials of {scheme}://")
            raise InputError(f"{address} may not be read with these credentials ({message}); {advice}.") from error
        more = ", the region (AWS_REGION) and the endpoint (AWS_ENDPOINT_URL)" if scheme == "s3" else ""
        raise InputError(f"{address} cannot be reached ({message}). Check the network{more}.") from error


def _scheme(address: str) -> str:
    return address.partition("://")[0].lower()


def _storage(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    scheme = _scheme(address)
    if scheme in CREDENTIALS:
        path = address.partition("://")[2]
        return _by_arrow(scheme, path.partition("/")[0]), path.rstrip("/")
    import fsspec

    if scheme not in fsspec.available_protocols():
        raise InputError(f'"{scheme}://" is not a known storage ({address}); expected s3://, gs:// or file://.')
    storage, path = fsspec.core.url_to_fs(address)
    return storage, str(path)


@lru_cache(maxsize=8)
def _by_arrow(scheme: str, bucket: str) -> Any:
    """Cached, because Arrow looks up the region of a bucket."""
    arrow = require("pyarrow.fs", "reading Parquet", "parquet")
    from fsspec.implementations.arrow import ArrowFSWrapper

    return ArrowFSWrapper(arrow.FileSystem.from_uri(f"{scheme}://{bucket}")[0])
