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
from typing import Any

from compensate.data.parquet import is_part
from compensate.errors import InputError
from compensate.extras import require
from compensate.files import is_address

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
