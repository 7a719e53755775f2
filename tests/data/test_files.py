from __future__ import annotations

import io
import os
import tarfile
import zipfile

import pytest

from compensate.data.files import members, read_text, write_atomically
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
