"""Where the public data sets are found, and how they are downloaded."""

from __future__ import annotations

import http.client
import os
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock

from compensate.data.dataset import DATA_VARIABLE, Splits, data_folder
from compensate.errors import InputError
from compensate.files import checksum as file_checksum
from compensate.files import make_folder
from experiments.data.readers import FASHION, read_cifar, read_imdb, read_mnist, read_sst2

Progress = Callable[[int, int | None], None]
"""Called with the bytes there are and the bytes there will be, if the server says so."""

CHUNK = 1 << 18


def fetch(
    url: str,
    path: str | Path,
    checksum: str | None = None,
    *,
    progress: Progress | None = None,
    attempts: int = 3,
    timeout: float = 30.0,
) -> Path:
    """Download ``url`` to ``path`` unless it is there already.

    The bytes go to ``path`` + ``.part`` and get their real name once they are complete and their checksum is right. A
    broken transfer goes on where it stopped, now or in a later run. Two processes that ask for one file take turns.

    Args:
        url: an https address; http is for servers on this machine only.
        path: where the file shall be.
        checksum: ``"sha256:..."`` or ``"md5:..."``; a file that differs is deleted and is an error.
        progress: called with the number of bytes; `bar` makes one.
        attempts: how often to try again when the connection breaks.
        timeout: seconds without a byte before an attempt is given up.

    >>> import tempfile
    >>> there = Path(tempfile.mkdtemp()) / "file"
    >>> _ = there.write_bytes(b"known")
    >>> fetch("https://example.org/file", there).name      # there already: nothing is asked for
    'file'
    """
    path = Path(path)
    _check_address(url)
    make_folder(path.parent)
    part = path.with_name(path.name + ".part")
    with _alone(path):
        if path.exists():
            return path
        resumed = part.exists()
        reason: Exception | None = None
        for _ in range(attempts):
            try:
                _transfer(url, part, progress, timeout)
            except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
                reason = error
                if isinstance(error, urllib.error.HTTPError):
                    error.close()
                    if error.code in (401, 403, 404, 410):
                        break
                continue
            found = _checksum_like(part, checksum)
            if found == checksum:
                os.replace(part, path)
                return path
            part.unlink()
            if not resumed:
                raise InputError(
                    f"the file from {url} has the checksum {found}, and {checksum} was expected. It was deleted: the "
                    "source has changed or something on the way changes it. Fetch it by other means and put it at "
                    f"{path}."
                )
            resumed = False  # the old part may have been of another version: once more from the start
    raise InputError(f"{url} could not be fetched: {reason}. Fetch it by other means and put it at {path}.") from reason


def _check_address(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")):
        raise InputError(f"{url} is not an https address; what comes over others may be changed on its way.")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a server to another address only if that is a safe one too."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        _check_address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _checksum_like(path: Path, expected: str | None) -> str | None:
    """The checksum of a file, of the kind and in the form of the expected one; nothing for nothing."""
    if expected is None:
        return None
    kind = expected.partition(":")[0]
    if kind not in ("sha256", "md5"):
        raise InputError(f'the checksum "{expected}" must start with sha256: or md5:.')
    return f"{kind}:{file_checksum(path, kind)}"


@contextmanager
def bar(name: str) -> Iterator[Progress]:
    """A progress bar in the terminal for one file."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Rich

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Rich(*columns, TimeRemainingColumn()) as screen:
        task = screen.add_task(name, total=None)
        yield lambda done, total: screen.update(task, completed=done, total=total)


def _transfer(url: str, part: Path, progress: Progress | None, timeout: float) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "compensate"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.build_opener(_Redirects).open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        # Asked for bytes past the end: the part is complete, or longer than the file and of no use.
        total = (error.headers.get("Content-Range") or "").rpartition("/")[2]
        error.close()
        if total != str(have):
            part.unlink()
            raise ConnectionError("the part did not fit the file; starting again") from error
        return
    with response:
        resumes = response.status == 206 and (response.headers.get("Content-Range") or "").startswith(f"bytes {have}-")
        done = have if resumes else 0
        length = response.headers.get("Content-Length")
        total_bytes = done + int(length) if length is not None and length.isdecimal() else None
        free = shutil.disk_usage(part.parent).free
        if total_bytes is not None and total_bytes - done > free:
            raise InputError(f"{part.parent} has {free:,} bytes left, and {url} needs {total_bytes - done:,}.")
        with open(part, "ab" if resumes else "wb") as file:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, total_bytes)
        if total_bytes is not None and done != total_bytes:
            raise ConnectionError(f"the connection broke after {done:,} of {total_bytes:,} bytes")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time; the lock ends with the process whatever happens."""
    lock = path.with_name(f".{path.name}.lock")
    with FileLock(lock):
        try:
            yield
        finally:
            # Only when the file is there: whoever still waits for this lock then finds nothing left to do.
            if path.exists():
                with suppress(OSError):  # Windows does not delete an open file
                    lock.unlink(missing_ok=True)


@dataclass(frozen=True)
class File:
    """A file to fetch: address, checksum as its publisher or its common readers state it, and where it goes."""

    url: str
    checksum: str
    name: str


@dataclass(frozen=True)
class Source:
    """A public data set.

    Attributes:
        read: gives the parts from the file or folder found.
        places: what to look for in the data folder, in this order; patterns as in a shell.
        files: what to fetch if nothing is found. The first one's place is then read.
        holds: if set, a folder counts only if it holds a file of this pattern.
    """

    read: Callable[..., Splits]
    places: tuple[str, ...]
    files: tuple[File, ...]
    holds: str = ""


def _idx(base: str, folder: str, checksums: tuple[str, str, str, str]) -> tuple[File, ...]:
    names = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    return tuple(File(base + n, f"md5:{c}", f"{folder}/{n}") for n, c in zip(names, checksums, strict=True))


_TORONTO = "https://www.cs.toronto.edu/~kriz/"

SOURCES: dict[str, Source] = {
    "cifar10": Source(
        partial(read_cifar, classes=10),
        ("cifar-10-batches-bin", "cifar-10-batches-py", "cifar10", "cifar-10*.tar.*", "cifar-10*.tgz"),
        (
            File(
                _TORONTO + "cifar-10-binary.tar.gz",
                "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                "cifar-10-binary.tar.gz",
            ),
        ),
        "**/data_batch_1*",
    ),
    "cifar100": Source(
        partial(read_cifar, classes=100),
        ("cifar-100-binary", "cifar-100-python", "cifar100", "cifar-100*.tar.*", "cifar-100*.tgz"),
        (
            File(
                _TORONTO + "cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary.tar.gz"
            ),
        ),
        "**/train*",
    ),
    "mnist": Source(
        read_mnist,
        ("mnist", "MNIST/raw", "MNIST"),
        _idx(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "mnist",
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
        "t10k-labels*",
    ),
    "fashion-mnist": Source(
        partial(read_mnist, classes=FASHION),
        ("fashion-mnist", "FashionMNIST/raw", "fashion", "/usr/share/datasets/fashion-mnist"),
        _idx(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "fashion-mnist",
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
        "t10k-labels*",
    ),
    "sst2": Source(
        read_sst2,
        ("sst2", "SST-2", "sst-2", "sst2.tar.*", "sst2.zip", "SST-2.zip"),
        (
            File(
                "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",
                "md5:9f81648d4199384278b86e315dac217c",
                "SST-2.zip",
            ),
        ),
        "**/train.tsv",
    ),
    "imdb": Source(
        read_imdb,
        ("aclImdb", "imdb", "imdb*.tsv*", "imdb*.csv*", "IMDB*.csv*", "aclImdb*.tar.*"),
        (
            File(
                "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
                "md5:7c2ac02c03563afcf9b574c7e56c153a",
                "aclImdb_v1.tar.gz",
            ),
        ),
        "train/pos/*.txt",
    ),
}


def read_source(name: str, data_dir: str | Path | None = None, *, download: bool = True, **options: Any) -> Splits:
    """A public data set from the data folder; fetched first if it is not there."""
    return SOURCES[name].read(find_source(name, data_dir, download=download), **options)


def find_source(name: str, data_dir: str | Path | None = None, *, download: bool = True) -> Path:
    """Where a public data set is in the data folder; fetched first if it is not there."""
    source = SOURCES[name]
    folder = data_folder(data_dir)
    found = locate(source, folder)
    if found is None and download:
        _fetch(name, source, folder)
        found = locate(source, folder)
    if found is None:
        raise InputError(f"{name} is not in {folder}. {_advice(source, folder)}")
    return found


def locate(source: Source, folder: Path) -> Path | None:
    """The first matching place of a source in the folder, or None."""
    for place in source.places:
        matches = [Path(place)] if place.startswith("/") else sorted(folder.glob(place)) if folder.is_dir() else []
        for match in matches:
            if match.is_file() and not match.name.endswith((".part", ".lock")):
                return match
            if match.is_dir() and any(match.glob(source.holds)):
                return match
    if folder.is_dir() and "**" not in source.holds and any(folder.glob(source.holds)):
        return folder
    return None


def _fetch(name: str, source: Source, folder: Path) -> None:
    for file in source.files:
        try:
            with bar(file.name) as progress:
                fetch(file.url, folder / file.name, file.checksum, progress=progress)
        except (InputError, OSError) as error:
            raise InputError(
                f"{name} is not in {folder} and could not be fetched. {_advice(source, folder)} ({error})"
            ) from error


def _advice(source: Source, folder: Path) -> str:
    wanted = "; ".join(f"{file.url} as {folder / file.name}" for file in source.files)
    shapes = ", ".join(place for place in source.places if not place.startswith("/"))
    return (
        f"Put it there yourself: {wanted}. Also found there: {shapes}. Another folder is named by data_dir (--data-dir on "
        f"the command line) or by the environment variable {DATA_VARIABLE}."
    )
