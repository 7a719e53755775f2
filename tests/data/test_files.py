from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile

import pytest

from compensate.data import files
from compensate.data.files import members, read_bytes, read_text, write_atomically
from compensate.errors import InputError


def hostile_tar(path):
    with tarfile.open(path, "w:gz") as out:
        for name in ("../outside.txt", "/absolute.txt", "./inside.txt"):
            info = tarfile.TarInfo(name)
            info.size = 2
            out.addfile(info, io.BytesIO(b"ok"))
        for kind, name in (
            (tarfile.SYMTYPE, "link.txt"),
            (tarfile.LNKTYPE, "hard.txt"),
            (tarfile.CHRTYPE, "device.txt"),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            out.addfile(info)


def test_an_archive_is_only_read(tmp_path):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    hostile_tar(folder / "x.tar.gz")
    found = dict(members(folder / "x.tar.gz", lambda name: name.endswith(".txt")))
    assert found == {"../outside.txt": b"ok", "/absolute.txt": b"ok", "inside.txt": b"ok"}, (
        "links and devices are skipped"
    )
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["x.tar.gz"], "nothing is unpacked"


def test_folder_tar_and_zip_are_alike(tmp_path):
    files = {"b/2.txt": b"two", "a/1.txt": b"one", "c.bin": b"no"}
    for name, content in files.items():
        (tmp_path / "f" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "f" / name).write_bytes(content)
    with zipfile.ZipFile(tmp_path / "f.zip", "w") as out:
        for name, content in files.items():
            out.writestr(name, content)
    for suffix, mode in (("tar", "w"), ("tgz", "w:gz"), ("tar.bz2", "w:bz2"), ("tar.xz", "w:xz")):
        with tarfile.open(tmp_path / f"f.{suffix}", mode) as out:
            out.add(tmp_path / "f", arcname=".")
    for path in sorted(tmp_path.iterdir()):
        assert dict(members(path, lambda name: name.endswith(".txt"))) == {"a/1.txt": b"one", "b/2.txt": b"two"}, path
    with pytest.raises(InputError, match="no file or folder"):
        list(members(tmp_path / "gone", bool))


def test_writing_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_atomically(path, b"old")

    def fail(*args):
        raise OSError("disk is gone")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InputError, match="disk is gone"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_text_errors_name_the_line(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\n\x80")
    with pytest.raises(InputError, match="line 3 holds the byte 0x80"):
        read_text(tmp_path / "a.txt")
    with pytest.raises(InputError, match="no file"):
        read_text(tmp_path / "b.txt")


def bomb(path, size):
    """Zeros, which pack to a thousandth."""
    zeros = bytes(1 << 20)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out, out.open("train.tsv", "w") as file:
            for _ in range(size >> 20):
                file.write(zeros)
    elif path.name.endswith(".tar.gz"):
        info = tarfile.TarInfo("train.tsv")
        info.size = size
        with gzip.open(path, "wb") as packed, tarfile.open(fileobj=packed, mode="w") as out:
            out.addfile(info, _Zeros(size))
    else:
        with gzip.open(path, "wb") as out:
            for _ in range(size >> 20):
                out.write(zeros)


def sparse(path, size):
    """A tar archive of one block: a file of the old GNU kind, all of which is a hole."""
    head = bytearray(512)
    for place, field in ((0, b"train.tsv"), (100, b"0000644"), (124, b"00000000000"), (156, b"S"), (257, b"ustar  ")):
        head[place : place + len(field)] = field
    head[386:409] = b"%011o\0%011o" % (size, 0)
    head[483:494] = b"%011o" % size
    head[148:156] = b" " * 8
    head[148:154] = b"%06o" % sum(head)
    path.write_bytes(bytes(head) + bytes(1024))


def test_holes_count_too(tmp_path, monkeypatch):
    sparse(tmp_path / "a.tar", 2 << 20)
    ((name, content),) = members(tmp_path / "a.tar", lambda name: True)
    assert name == "train.tsv"
    assert content == bytes(2 << 20)
    monkeypatch.setattr(files, "SMALL", 1 << 20)
    with pytest.raises(InputError, match="which no data set does"):
        list(members(tmp_path / "a.tar", lambda name: True))
    sparse(tmp_path / "a.tar", 8**11 - 1)  # eight gigabytes must not be made first
    with pytest.raises(InputError, match="which no data set does"):
        list(members(tmp_path / "a.tar", lambda name: True))


class _Zeros:
    def __init__(self, left):
        self.left = left

    def read(self, count):
        count = min(count, self.left)
        self.left -= count
        return bytes(count)


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.csv.gz"])
def test_a_bomb_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr(files, "SMALL", 1 << 20)
    bomb(tmp_path / name, 16 << 20)
    assert (tmp_path / name).stat().st_size < 40_000
    with pytest.raises(InputError, match="which no data set does"):
        read_bytes(tmp_path / name) if name == "a.csv.gz" else list(members(tmp_path / name, lambda name: True))
    if name != "a.zip":  # unwanted members are passed over, and counted too where they have to be unpacked
        with pytest.raises(InputError, match="which no data set does"):
            read_bytes(tmp_path / name) if name == "a.csv.gz" else list(members(tmp_path / name, lambda name: False))
    monkeypatch.undo()
    if name == "a.csv.gz":
        assert len(read_bytes(tmp_path / name)) == 16 << 20
