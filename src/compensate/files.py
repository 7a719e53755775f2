"""Safe reading and writing of files: bounded unpacking, clear errors, atomic writes."""

from __future__ import annotations

import bz2
import errno
import gzip
import hashlib
import io
import lzma
import math
import os
import re
import secrets
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from compensate.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

DAMAGE = (
    *(EOFError, lzma.LZMAError, zlib.error, tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, struct.error),
    *(ValueError, OverflowError, NotImplementedError, RuntimeError, LookupError, MemoryError),
)
"""Errors of the standard library for truncated or broken archives."""

Progress = Callable[[int, int], None]  # called with the number of finished units of work, and of all
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".tgz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}

# A packed file may unpack to this multiple of its size, or to this number of bytes; decompression bombs unpack to more
MAX_GROWTH, SMALL_FILE = 250, 1 << 28

MAX_LINE = 1 << 24  # Bytes of a line of a text file. A file without line ends would fill the memory.
# Columns of a table. Each is analyzed by itself, which would take hours for hundreds of thousands.
MAX_COLUMNS = 10_000
CELL_BYTES = 8  # bytes of the smallest cell in memory
CHUNK_BYTES = 1 << 20
FILE_TYPES = {
    b"\x89PNG": "a PNG image", b"\xff\xd8\xff": "a JPEG image", b"GIF8": "a GIF image",
    b"%PDF": "a PDF document", b"PK\3\4": "a zip archive, such as an Excel workbook", b"\x1f\x8b": "a gzip file",
    b"\xfd7zXZ": "an xz file", b"BZh": "a bzip2 file", b"PAR1": "a Parquet file",
    b"\xd0\xcf\x11\xe0": "an older Office file, such as an .xls workbook", b"\x93NUMPY": "a numpy file", b"SQLite format 3": "an SQLite database",
}  # fmt: skip
"""The first bytes of binary files, and their type."""


def check_unpacked(count: int, path: Path | str, size: int | None = None) -> None:
    """Refuse a file that unpacks to ``count`` bytes, if these are too many; ``size`` is that of a file on remote storage."""
    limit = max(SMALL_FILE, MAX_GROWTH * (Path(path).stat().st_size if size is None else size))
    if count > limit:
        grown = f"more than {limit:,} bytes, {MAX_GROWTH} times its own size, which no data set does"
        remedy = "Do not trust it; if you do, unpack it yourself and give the unpacked file or folder"
        raise InputError(f"{path} unpacks to {grown}. {remedy}.")


def check_size(rows: int, columns: int, path: Path | str, *, each: int = CELL_BYTES, size: int | None = None) -> None:
    """Refuse a file whose cells, of ``each`` bytes, would take far more memory than the file; see `check_unpacked`."""
    check_unpacked(each * rows * columns, path, size)


def check_width(columns: int, where: str | Path) -> None:
    """Refuse a table of more than `MAX_COLUMNS` columns."""
    if columns > MAX_COLUMNS:
        remedy = "Keep the relevant ones, or give numbers as an array: an .npy or .npz file"
        raise InputError(f"{where} has {columns:,} columns; a table with at most {MAX_COLUMNS:,} is read. {remedy}.")


class _Bounded:
    """A stream of unpacked bytes that raises when it is longer than `check_unpacked` allows."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self.stream, self.path, self.count = stream, path, 0

    def read(self, count: int) -> bytes:
        return self._counted(self.stream.read(count))

    def readline(self, count: int) -> bytes:
        return self._counted(self.stream.readline(count))

    def _counted(self, content: bytes) -> bytes:
        self.count += len(content)
        check_unpacked(self.count, self.path)
        return content


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write the whole file or nothing: readers see the old content until the new one is on disk.

    A replaced file keeps its mode, a new one follows the umask. Links are followed; devices, pipes and folders are refused.
    """
    with writing(path):
        mode = check_regular(path)
        path = Path(os.path.realpath(path))
        temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}")
        # os.open follows the umask, tempfile does not.
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if mode is not None:
                os.chmod(temporary, mode)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def is_address(path: Any) -> bool:
    """Whether this is an address such as s3://bucket/path and not a path."""
    return isinstance(path, str) and re.match(r"[A-Za-z][\w+.-]+://", path) is not None


def checksum(path: str | Path, kind: str = "sha256") -> str:
    """The hash of the bytes of a file, in hexadecimal digits."""
    digest = hashlib.new(kind, usedforsecurity=False)  # some publishers give an MD5
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def content_digest(*paths: str | Path) -> str | None:
    """16 hexadecimal digits of the bytes of files and of the names, sizes and times of files in folders; None for other names."""
    digest = hashlib.sha256()
    known = [path for path in (Path(p).expanduser() for p in paths if not is_address(p)) if path.exists()]
    for path in known:
        if path.is_file():
            digest.update(checksum(path).encode())
        for file in sorted(f for f in path.rglob("*") if f.is_file()):
            facts = file.stat()
            digest.update(f"{file.relative_to(path).as_posix()} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16] if known else None


def check_regular(path: str | Path) -> int | None:
    """The mode of an existing file, None without one; raises for anything but a regular file."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        kind = "folder" if stat.S_ISDIR(mode) else "device, pipe or socket"
        raise InputError(f"{path} is a {kind} and not a regular file; name a file to write.")
    return stat.S_IMODE(mode)


def check_writable(folder: str | Path) -> None:
    """Refuse a folder that cannot be written to, before any work is done; leaves no file."""
    folder = Path(folder)
    with writing(folder):
        there = next(p for p in (folder, *folder.absolute().parents) if os.path.lexists(p))
        with tempfile.TemporaryDirectory(prefix=".compensate-", dir=there):
            pass


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Turn errors of the disk or folder into an `InputError` with the remedy."""
    try:
        yield
    except OSError as error:
        remedy = "Choose a folder that may be written to"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "Free some space, or choose another disk"
        elif error.errno == errno.ENOENT:
            remedy = "Make its folder first, or choose another one"
        why = f"{error.strerror or error}. {remedy}"
        raise InputError(f"{path} cannot be written: {why}. The previous content is unchanged.") from error


def make_folder(path: str | Path) -> Path:
    """The folder, created with its parents if needed."""
    with writing(path):
        Path(path).mkdir(parents=True, exist_ok=True)
    return Path(path)


@contextmanager
def exclusive(lock: Path, busy: Callable[[], str]) -> Iterator[None]:
    """Holds a lock file; raises the message of ``busy`` if another process holds it. On a file system without locks this does nothing."""
    from filelock import FileLock, Timeout

    held = FileLock(lock)
    try:
        held.acquire(blocking=False)
    except NotImplementedError:
        yield
        return
    except Timeout:
        raise InputError(busy()) from None
    except OSError as error:
        with writing(lock.parent):
            raise error
    try:
        yield
    finally:
        held.release()


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """A new folder to write to, which replaces `folder` once everything is written."""
    folder = Path(os.path.realpath(folder))
    make_folder(folder.parent)
    new, old = (folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.{word}") for word in ("partial", "before"))
    with writing(folder):
        new.mkdir()
    try:
        yield new
        with writing(folder):
            if folder.is_dir():
                new.chmod(stat.S_IMODE(folder.stat().st_mode))
                folder.rename(old)
            new.rename(folder)
    except BaseException:
        if old.is_dir() and not folder.exists():
            old.rename(folder)
        shutil.rmtree(new, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def damage(path: str | Path) -> Iterator[None]:
    """Turn errors of broken archives into an `InputError` with the remedy."""
    try:
        yield
    except InputError:
        raise
    except (*DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # an error of the disk, not of the file
        why = str(error) or type(error).__name__
        raise InputError(f"{path} is damaged or cut short ({why}). Fetch or copy it again.") from error


@contextmanager
def opened(path: str | Path) -> Iterator[IO[bytes] | _Bounded]:
    """The bytes of a file; if it ends in .gz, .xz or .bz2 they are unpacked, within the bound of `check_unpacked`."""
    path = Path(path)
    check_file(path)
    unpack = _OPENERS.get(path.suffix.lower())
    with damage(path), (unpack or open)(path, "rb") as file:
        yield _Bounded(file, path) if unpack else file


def check_file(path: Path) -> None:
    """Raise if the file does not exist."""
    if not path.is_file():
        raise InputError(f"there is no file {path}; check the path.")


def read_bytes(path: str | Path, *, lines: bool = False) -> bytes:
    """All bytes of a file, unpacked if compressed; with ``lines``, a line longer than `MAX_LINE` is an error."""
    content, length = bytearray(), 0
    with opened(path) as stream:
        while chunk := stream.read(CHUNK_BYTES):
            content += chunk
            last = max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))
            length = length + len(chunk) if last < 0 else len(chunk) - last - 1
            if lines:
                _check_line(length, path)
    return bytes(content)


def read_lines(path: str | Path) -> Iterator[bytes]:
    """The lines of a file one by one, unpacked if compressed; bounded as `read_bytes` is."""
    with opened(path) as stream:
        while line := stream.readline(MAX_LINE + 1):
            _check_line(len(line), path)
            yield line


def _check_line(length: int, path: str | Path) -> None:
    if length > MAX_LINE:
        problem = f"{path} has a line of more than {MAX_LINE:,} bytes, which no row of a table or text has"
        raise InputError(f"{problem}. Check that it is a text file, and that its lines have ends.")


def decode(content: bytes, where: str | Path, encoding: str = "utf-8") -> str:
    """The text of these bytes; an error names the line of an invalid byte."""
    try:
        return content.decode("utf-8-sig" if encoding.lower().replace("-", "") == "utf8" else encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        held = f"{where} is not {encoding} text: line {line} holds the byte 0x{content[error.start]:02x}."
        kind = next((kind for start, kind in FILE_TYPES.items() if content.startswith(start)), None)
        marked = content.startswith((b"\xff\xfe", b"\xfe\xff"))
        if kind is not None:
            remedy = f"It begins like {kind}: check its name."
        elif b"\0" in content and not marked:
            remedy = "It has zero bytes, which a text file does not have: check its name."
        else:
            option = 'encoding="{0}" (--encoding {0} on the command line)'.format("utf-16" if marked else "cp1252")
            remedy = f"Save it as UTF-8, or name its encoding, for example {option}."
        raise InputError(f"{held} {remedy}") from error
    except LookupError as error:
        raise InputError(f'unknown encoding "{encoding}"; write for example "utf-8" or "cp1252".') from error


def read_text(path: str | Path, encoding: str = "utf-8") -> str:
    """All text of a file, unpacked if compressed."""
    return decode(read_bytes(path, lines=True), path, encoding)


def read_numpy(path: str | Path) -> NDArray[Any] | dict[str, NDArray[Any]]:
    """The array of an .npy file, or the arrays of an .npz by name; pickled objects are refused."""
    path = Path(path)
    check_file(path)
    with numpy_damage(path), open(path, "rb") as file:
        if file.read(4) == b"PK\3\4":
            arrays = zip_members(path, lambda name: True)
            return {name.removesuffix(".npy"): _npy(io.BytesIO(content), len(content)) for name, content in arrays}
        file.seek(0)
        return _npy(file, path.stat().st_size)


@contextmanager
def readable_as(what: str | Path, kind: str, remedy: str) -> Iterator[None]:
    """Turn any error of a library that reads files into an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        why = error if str(error) else type(error).__name__
        raise InputError(f"{what} is damaged or not {kind} ({why}). {remedy}.") from error


def numpy_damage(path: str | Path) -> AbstractContextManager[None]:
    """As `damage`, for numpy files, whose header is parsed as Python code."""
    return readable_as(path, "a numpy file of numbers", "Write it again with numpy.save or numpy.savez")


def read_array(path: str | Path) -> NDArray[Any]:
    """The array of an .npy file, or the only one of an .npz."""
    arrays = read_numpy(path)
    if not isinstance(arrays, dict):
        return arrays
    if len(arrays) != 1:
        raise InputError(f"{path} holds {', '.join(arrays) or 'nothing'}; expected one array.")
    return next(iter(arrays.values()))


def npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], Any]:
    """Shape and type of an .npy file; the data follows in ``file``."""
    from numpy.lib import format as npy

    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    version = npy.read_magic(file)
    if version not in readers:
        raise ValueError(f"version {version} of the format is not read")
    shape, _, kind = readers[version](file)
    return shape, kind


def _npy(file: IO[bytes], size: int) -> NDArray[Any]:
    """An array whose header may not promise more bytes than there are: numpy would allocate them first."""
    from numpy.lib import format as npy

    shape, kind = npy_header(file)
    if kind.hasobject:
        raise ValueError("it holds pickled objects, which are not read")
    promised = math.prod(shape, start=kind.itemsize)
    if promised > size:
        raise ValueError(f"its header promises {promised:,} bytes, and there are {size:,}")
    file.seek(0)
    return npy.read_array(file, allow_pickle=False)


def zip_members(path: str | Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Name and content of the wanted files of a zip archive, in its order. Nothing is unpacked to disk."""
    total = 0
    with damage(path), zipfile.ZipFile(path) as zipped:
        for info in zipped.infolist():
            if not info.is_dir() and wanted(info.filename):
                total += info.file_size  # reading stops there, whatever the archive holds
                check_unpacked(total, path)
                yield info.filename, zipped.read(info)
