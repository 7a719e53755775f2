"""Fetching a public file once: with resume, checksum and progress, and nothing half-written under its real name."""

from __future__ import annotations

import http.client
import os
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from compensate.errors import InputError
from compensate.files import checksum as file_checksum
from compensate.files import make_folder

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
        progress: told about the bytes so far; `bar` makes one.
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
