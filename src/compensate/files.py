"""Reading what others wrote, with clear errors; writing so that nothing is ever half-written."""

from __future__ import annotations

import bz2
import errno
import gzip
import hashlib
import io
import lzma
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
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from compensate.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

DAMAGE = (
    *(EOFError, lzma.LZMAError, zlib.error, tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, struct.error),
    *(ValueError, OverflowError, NotImplementedError, RuntimeError, LookupError, MemoryError),
)
"""What the standard library raises for truncated or broken archives: a length or an offset in one may say anything."""

Progress = Callable[[int, int], None]
"""Called with the number of finished units of work, and of all."""

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".zip")

_OPENERS: dict[str, Callable[..., IO[bytes]]] = {
    ".gz": gzip.open,  # type: ignore[dict-item]
    ".xz": lzma.open,
    ".bz2": bz2.open,
    ".tgz": gzip.open,  # type: ignore[dict-item]
}


GROWTH, SMALL = 250, 1 << 28
"""A packed file may unpack to this many times its own size, and to this many bytes in any case: data sets stay far below,
files that are made to fill a memory do not."""


LINE = 1 << 24
"""Bytes of a line of a text file: no row of a table or text has more, and a file without line ends would fill the memory."""

COLUMNS = 10_000
"""Columns of a table: each is looked at on its own, so that hundreds of thousands would take hours."""

CELL = 8
"""Bytes of a cell that holds next to nothing."""

CHUNK = 1 << 20


BEGINNINGS = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"%PDF": "a PDF document",
    b"PK\3\4": "a zip archive, such as an Excel workbook",
    b"\x1f\x8b": "a gzip file",
    b"\xfd7zXZ": "an xz file",
    b"BZh": "a bzip2 file",
    b"PAR1": "a Parquet file",
    b"\xd0\xcf\x11\xe0": "an older Office file, such as an .xls workbook",
    b"\x93NUMPY": "a numpy file",
    b"SQLite format 3": "an SQLite database",
}
"""First bytes of files that are no text, and what such files are."""


class _Counted:
    """A stream that ends in an error once more came out of it than its file can honestly hold."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self.stream, self.path, self.left = stream, path, limit(path)

    def read(self, count: int = -1) -> bytes:
        content = self.stream.read(count if 0 <= count <= self.left else self.left + 1)
        self.left -= len(content)
        if self.left < 0:
            raise InputError(too_large(self.path))
        return content


def limit(path: Path, size: int | None = None) -> int:
    """The bytes that a file may unpack to; see `GROWTH`. ``size`` is that of a file on remote storage."""
    return max(SMALL, GROWTH * (path.stat().st_size if size is None else size))


def too_large(path: Path | str, size: int | None = None) -> str:
    """What to say of a file that unpacks to more than its `limit`."""
    return (
        f"{path} unpacks to more than {limit(Path(path), size):,} bytes, {GROWTH} times its own size, which no data set does. Do not "
        "trust it; if you do, unpack it yourself and give the unpacked file or folder."
    )


def check_width(columns: int, where: str | Path) -> None:
    """Refuses a table of more than `COLUMNS` columns."""
    if columns > COLUMNS:
        raise InputError(
            f"{where} has {columns:,} columns; a table with at most {COLUMNS:,} is read. Keep those that matter, or give numbers "
            "as an array: an .npy or .npz file."
        )


def check_size(rows: int, columns: int, path: Path | str, *, each: int = CELL, size: int | None = None) -> None:
    """Refuses a file whose cells, of ``each`` so many bytes, would take far more room than the file itself; see `limit`."""
    if each * rows * columns > limit(Path(path), size):
        raise InputError(too_large(path, size))


def _opener(path: Path) -> Callable[..., IO[bytes]]:
    return _OPENERS.get(path.suffix.lower(), open)


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write the whole file or nothing: readers see the old content until the new one is on disk.

    A disk that is full or a folder that may not be written to is an error that says so; the old content stays. A file
    that is replaced keeps its mode, a new one gets what the umask leaves. A link is followed. A device, a pipe or a
    folder is refused.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "a.txt"
    >>> write_atomically(target, b"hello")
    >>> target.read_bytes()
    b'hello'
    """
    with writing(path):
        mode = check_regular(path)
        path = Path(os.path.realpath(path))
        temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}")
        # Opened by the system's own rules, and not by those of tempfile, so that the umask holds.
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
    """Whether this is the address of files on some storage, such as s3://bucket/path, and not a path. A drive of Windows has one letter.

    >>> is_address("s3://bucket/a.parquet"), is_address("data/a.parquet"), is_address("C:\\\\a.parquet")
    (True, False, False)
    """
    return isinstance(path, str) and re.match(r"[A-Za-z][\w+.-]+://", path) is not None


def checksum(path: str | Path, kind: str = "sha256") -> str:
    """The hash of a file's bytes in hexadecimal digits, read a piece at a time.

    >>> empty = Path(tempfile.mkdtemp()) / "empty"
    >>> empty.touch()
    >>> checksum(empty, "md5")
    'd41d8cd98f00b204e9800998ecf8427e'
    """
    # MD5 is what some publishers of data give; it shows damage, and is not used for security.
    found = hashlib.new(kind, usedforsecurity=False)
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            found.update(chunk)
    return found.hexdigest()


def content_digest(*paths: str | Path) -> str | None:
    """16 hexadecimal digits of what is at these paths: the bytes of a file; the names, sizes and times of a folder's files.

    Names of data sets and addresses have none.

    >>> empty = Path(tempfile.mkdtemp()) / "empty.csv"
    >>> empty.touch()
    >>> content_digest(empty), content_digest("digits")
    ('cd372fb85148700f', None)
    """
    found = hashlib.sha256()
    known = False
    for path in (Path(p).expanduser() for p in paths if not is_address(p)):
        if path.is_file():
            found.update(checksum(path).encode())
        elif path.is_dir():
            for file in sorted(f for f in path.rglob("*") if f.is_file()):
                facts = file.stat()
                found.update(f"{file.relative_to(path).as_posix()} {facts.st_size} {facts.st_mtime_ns}\n".encode())
        else:
            continue
        known = True
    return found.hexdigest()[:16] if known else None


def check_regular(path: str | Path) -> int | None:
    """The mode of the file that is to be replaced, if there is one; anything but a regular file is refused.

    >>> check_regular("no such file") is None
    True
    """
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        kind = "folder" if stat.S_ISDIR(found.st_mode) else "device, pipe or socket"
        raise InputError(f"{path} is a {kind} and not a regular file; name a file to write.")
    return stat.S_IMODE(found.st_mode)


def check_writable(folder: str | Path) -> None:
    """Refuses a folder in which nothing can be written, before any work is done for it; leaves nothing behind.

    >>> import tempfile
    >>> check_writable(Path(tempfile.mkdtemp()) / "runs" / "first")
    """
    folder = Path(folder)
    with writing(folder):
        there = next(p for p in (folder, *folder.absolute().parents) if os.path.lexists(p))
        with tempfile.TemporaryDirectory(prefix=".compensate-", dir=there):
            pass


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Turn what a disk or a folder refuses into an error that says what to do."""
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        remedy = {
            errno.ENOSPC: "Free some space, or choose another disk",
            errno.EDQUOT: "Free some of your quota, or choose another disk",
            errno.ENOENT: "Make its folder first, or choose another one",
        }.get(error.errno or 0, "Choose a folder that may be written to")
        raise InputError(
            f"{path} cannot be written: {error.strerror or error}. {remedy}. What was there before is unchanged."
        ) from error


def make_folder(path: str | Path) -> Path:
    """The folder, made with those above it unless it is there.

    >>> import tempfile
    >>> make_folder(Path(tempfile.mkdtemp()) / "a" / "b").name
    'b'
    """
    with writing(path):
        Path(path).mkdir(parents=True, exist_ok=True)
    return Path(path)


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """A new folder to write to, which takes the place of `folder` once everything is written.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "run"
    >>> with replaced_folder(place) as new:
    ...     _ = (new / "a.txt").write_text("whole")
    >>> [path.name for path in place.iterdir()]
    ['a.txt']
    """
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
    """Turn the many errors of broken archives into one that says what to do."""
    try:
        yield
    except InputError:
        raise
    except (*DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # of the disk, not of the file
        raise InputError(
            f"{path} is damaged or cut short ({error or type(error).__name__}). Delete it and fetch or copy it again."
        ) from error


@contextmanager
def opened(path: str | Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, unpacked on the fly if it ends in .gz, .xz or .bz2."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}; check the path.")
    with damage(path), _opener(path)(path, "rb") as file:
        yield file


def read_bytes(path: str | Path, *, lines: bool = False) -> bytes:
    """All bytes of a file, unpacked if compressed; with `lines`, a line that is too long ends the reading (`LINE`)."""
    path = Path(path)
    with opened(path) as file:
        stream: IO[bytes] | _Counted = file if _opener(path) is open else _Counted(file, path)
        if not lines:
            return stream.read()
        content, since = bytearray(), 0
        while chunk := stream.read(CHUNK):
            content += chunk
            last = max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))
            since = since + len(chunk) if last < 0 else len(chunk) - last - 1
            if since > LINE:
                raise InputError(_too_long(path))
        return bytes(content)


def read_lines(path: str | Path) -> Iterator[bytes]:
    """The lines of a file one by one, unpacked if compressed; bounded as `read_bytes` is."""
    path = Path(path)
    left = None if _opener(path) is open else limit(path)
    with opened(path) as file:
        while line := file.readline(LINE + 1):
            if len(line) > LINE:
                raise InputError(_too_long(path))
            if left is not None:
                left -= len(line)
                if left < 0:
                    raise InputError(too_large(path))
            yield line


def _too_long(path: Path) -> str:
    return (
        f"{path} has a line of more than {LINE:,} bytes, which no row of a table or text has. Check that it is a text file, and "
        "that its lines have ends."
    )


def decode(content: bytes, where: str | Path, encoding: str = "utf-8") -> str:
    r"""Text of these bytes; a byte that is not text is an error that names its line.

    >>> decode(b"\xef\xbb\xbfsmall", "a.csv")
    'small'
    """
    try:
        return content.decode("utf-8-sig" if encoding.lower().replace("-", "") == "utf8" else encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        held = f"{where} is not {encoding} text: line {line} holds the byte 0x{content[error.start]:02x}."
        kind = next((kind for start, kind in BEGINNINGS.items() if content.startswith(start)), None)
        if kind is not None:
            raise InputError(f"{held} It begins like {kind}: check its name.") from error
        marked = content.startswith((b"\xff\xfe", b"\xfe\xff"))
        if b"\0" in content and not marked:
            raise InputError(
                f"{held} It holds zero bytes, which a text file does not have: check that it is a text file."
            ) from error
        likely = "utf-16" if marked else "latin-1"
        raise InputError(
            f'{held} Save it as UTF-8, or name its encoding, for example encoding="{likely}" (--encoding {likely} on the command line).'
        ) from error
    except LookupError as error:
        raise InputError(f'unknown encoding "{encoding}"; write for example "utf-8" or "latin-1".') from error


def read_text(path: str | Path, encoding: str = "utf-8") -> str:
    """All text of a file, unpacked if compressed."""
    return decode(read_bytes(path, lines=True), path, encoding)


def read_numpy(path: str | Path) -> NDArray[Any] | dict[str, NDArray[Any]]:
    """The array of an .npy file, or those of an .npz by name; nothing pickled is read.

    An .npz may unpack to as much as any other packed file: see `GROWTH`.

    >>> import tempfile
    >>> import numpy as np
    >>> path = Path(tempfile.mkdtemp()) / "a.npz"
    >>> np.savez(path, x=np.arange(3))
    >>> read_numpy(path)
    {'x': array([0, 1, 2])}
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}; check the path.")
    with numpy_damage(path), open(path, "rb") as file:
        if file.read(4) == b"PK\3\4":
            return dict(_npz(path))
        file.seek(0)
        return _npy(file, path.stat().st_size)


@contextmanager
def numpy_damage(path: str | Path) -> Iterator[None]:
    """As `damage`, for numpy's files: numpy hands their header to a parser of Python, which fails in many ways."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        why = "it holds pickled objects, which are not read" if "pickle" in str(error).lower() else str(error)
        raise InputError(
            f"{path} is damaged or not a numpy file of numbers ({why or type(error).__name__}). Write it again with "
            "numpy.save or numpy.savez."
        ) from error


def read_array(path: str | Path) -> NDArray[Any]:
    """The array of an .npy file, or the only one of an .npz.

    >>> import tempfile
    >>> import numpy as np
    >>> path = Path(tempfile.mkdtemp()) / "a.npy"
    >>> np.save(path, np.arange(3))
    >>> read_array(path)
    array([0, 1, 2])
    """
    found = read_numpy(path)
    if not isinstance(found, dict):
        return found
    if len(found) != 1:
        raise InputError(f"{path} holds {', '.join(found) or 'nothing'}; expected one array.")
    return next(iter(found.values()))


def _npz(path: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    for name, content in members(path, lambda name: True, packed=".zip"):
        yield name.removesuffix(".npy"), _npy(io.BytesIO(content), len(content))


def _npy(file: IO[bytes], size: int) -> NDArray[Any]:
    """An array whose header may not promise more bytes than there are: numpy would make room for them first."""
    from numpy.lib import format as npy

    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the format is not read")
    shape, _, kind = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(file)
    promised = kind.itemsize
    for length in shape:
        promised *= length
    if not kind.hasobject and promised > size:
        raise ValueError(f"its header promises {promised:,} bytes, and there are {size:,}")
    file.seek(0)
    return npy.read_array(file, allow_pickle=False)


def is_archive(path: Path) -> bool:
    return path.is_file() and path.name.lower().endswith(ARCHIVES)


def members(
    path: str | Path, wanted: Callable[[str], bool], *, packed: str | None = None
) -> Iterator[tuple[str, bytes]]:
    """Name and content of the wanted files of a folder, a tar or a zip archive; `packed` says which where the name does not.

    Archives are read in place and never unpacked to disk, so that a name such as ``../x`` or a link in one is only a
    name. Names use ``/`` and are relative; files come in the archive's order, a folder's sorted by name.
    """
    path = Path(path)
    if path.is_dir():
        for file in sorted(p for p in path.rglob("*") if p.is_file()):
            name = file.relative_to(path).as_posix()
            if wanted(name):
                yield name, file.read_bytes()
        return
    if not path.is_file():
        raise InputError(f"there is no file or folder {path}; check the path.")
    with damage(path):
        if (packed or path.name.lower()).endswith(".zip"):
            with zipfile.ZipFile(path) as zipped:
                left = limit(path)
                for info in zipped.infolist():
                    if not info.is_dir() and wanted(info.filename):
                        left -= info.file_size  # what is read ends there, whatever the archive holds
                        if left < 0:
                            raise InputError(too_large(path))
                        yield info.filename, zipped.read(info)
            return
        # The stream mode reads once from front to back: seeking in a compressed file would unpack it again and again.
        with (
            _opener(path)(path, "rb") as stream,
            tarfile.open(fileobj=(counted := _Counted(stream, path)), mode="r|") as tar,  # type: ignore[call-overload]
        ):
            left = limit(path)
            for member in tar:
                if member.isfile() and wanted(member.name):
                    left -= member.size  # the holes of a sparse file are not in the stream that is counted
                    if left < 0:
                        raise InputError(too_large(path))
                    stream = tar.extractfile(member)
                    content = stream.read() if stream is not None else b""
                    if len(content) != member.size:
                        raise EOFError(f"{member.name} ends early")
                    yield member.name.removeprefix("./"), content
            while counted.read(1 << 20):  # the archive ends before its file does, and the checksum comes last
                pass
