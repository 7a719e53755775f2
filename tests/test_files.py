from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import os
import tarfile
import zipfile

import numpy as np
import pandas as pd
import pytest

from compensate import files
from compensate.auditing.chunks import open_chunks
from compensate.auditing.labels import tags
from compensate.auditing.source import read
from compensate.data import excel, parquet, read_labels, tables
from compensate.errors import InputError
from compensate.files import check_writable, read_array, read_bytes, write_atomically
from experiments.data.readers import members


def hostile_tar(path):
    with tarfile.open(path, "w:gz") as out:
        for name in ("../outside.txt", "/absolute.txt", "./inside.txt"):
            info = tarfile.TarInfo(name)
            info.size = 2
            out.addfile(info, io.BytesIO(b"ok"))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE):
            info = tarfile.TarInfo(f"{kind}.txt")
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


def bomb(path, size):
    """Zeros, which pack to a thousandth."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
            out.writestr("train.tsv", bytes(size))
    elif path.name.endswith(".tar.gz"):
        info = tarfile.TarInfo("train.tsv")
        info.size = size
        with tarfile.open(path, mode="w:gz") as out:
            out.addfile(info, io.BytesIO(bytes(size)))
    else:
        path.write_bytes(gzip.compress(bytes(size)))


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
    monkeypatch.setattr(files, "SMALL_FILE", 1 << 20)
    with pytest.raises(InputError, match="which no data set does"):
        list(members(tmp_path / "a.tar", lambda name: True))
    sparse(tmp_path / "a.tar", 8**11 - 1)  # eight gigabytes must not be made first
    with pytest.raises(InputError, match="which no data set does"):
        list(members(tmp_path / "a.tar", lambda name: True))


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.csv.gz"])
def test_a_bomb_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr(files, "SMALL_FILE", 1 << 20)
    bomb(tmp_path / name, 16 << 20)
    assert (tmp_path / name).stat().st_size < 40_000
    for wanted in (True, False):  # unwanted members are passed over, and counted too where they have to be unpacked
        if wanted or name != "a.zip":
            with pytest.raises(InputError, match="which no data set does"):
                read_bytes(tmp_path / name) if name == "a.csv.gz" else list(
                    members(tmp_path / name, {"train.tsv": wanted}.get)
                )
    monkeypatch.undo()
    assert name != "a.csv.gz" or len(read_bytes(tmp_path / name)) == 16 << 20


PACKERS = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}


def many_lines(path, rows):
    """A table of one-letter cells, or tagged tokens, compressed: the cells take far more room than the text."""
    kind, packer = path.suffixes
    head, line = {
        ".csv": ("n,label\n", "1,a\n"),
        ".tsv": ("n\tlabel\n", "1\ta\n"),
        ".jsonl": ('{"n":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7}\n', '{"g":1}\n'),
        ".json": ('{"n":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7}\n', '{"g":1}\n'),
        ".ndjson": ('{"n":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7}\n', "{}\n"),
    }.get(kind, ("", "a B\n"))
    path.write_bytes(PACKERS[packer]((head + line * rows).encode()))


def many_rows(path, rows):
    pd.DataFrame({"n": np.ones(rows), "label": np.ones(rows)}).to_parquet(path)


def many_cells(path, rows):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet()
    for _ in range(rows // 100):
        sheet.append([1] * 100)
    book.save(path)


def arrays(path, rows):
    np.savez_compressed(path, x=np.zeros((rows, 2)), y=np.zeros(rows))


TEXT_FORMATS = (*tables.TEXTS, *tables.LINES, *tags.SUFFIXES)
PACKED = {
    **{f"{kind}{packer}": many_lines for kind in TEXT_FORMATS for packer in PACKERS},
    **dict.fromkeys(parquet.SUFFIXES, many_rows),
    **dict.fromkeys(excel.SUFFIXES, many_cells),
    ".npz": arrays,
}
READS = {
    "audit": lambda path: read(path, None, None, {}),
    "in pieces": lambda path: open_chunks(path, None, {}),
    "labels": read_labels,
    "array": read_array,
}


def fits(name, way):
    return not name.startswith(tags.SUFFIXES) if way == "labels" else way != "array" or name == ".npz"


@pytest.mark.parametrize(("name", "way"), [pair for pair in itertools.product(PACKED, READS) if fits(*pair)])
def test_the_cells_of_a_packed_file_are_bounded(tmp_path, monkeypatch, name, way):
    path = tmp_path / f"a{name}"
    rows = 20_000
    PACKED[name](path, rows)
    monkeypatch.setattr(files, "SMALL_FILE", 140_000)
    monkeypatch.setattr(files, "MAX_GROWTH", 1)
    with pytest.raises(InputError, match="which no data set does"):
        READS[way](path)


def test_an_address_is_bounded_as_a_file_is(tmp_path, monkeypatch):
    many_rows(tmp_path / "a.parquet", 20_000)
    monkeypatch.setattr(files, "SMALL_FILE", 140_000)
    monkeypatch.setattr(files, "MAX_GROWTH", 1)
    with pytest.raises(InputError, match="which no data set does"):
        open_chunks(f"file://{tmp_path}/a.parquet", None, {})


def test_labels_saved_by_torch_are_bounded_too(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SMALL_FILE", 1 << 20)
    with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("a/data.pkl", bytes(16 << 20))
    with pytest.raises(InputError, match="which no data set does"):
        read_labels(tmp_path / "a.pt")


def test_an_array_whose_header_promises_more_than_the_file_holds_is_refused(tmp_path):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (1 << 33,)})
    (tmp_path / "a.npy").write_bytes(file.getvalue() + bytes(80))
    with pytest.raises(InputError, match="promises 68,719,476,736 bytes, and there are"):
        read_array(tmp_path / "a.npy")


def mode(path):
    return path.stat().st_mode & 0o777


def test_a_new_file_gets_what_the_umask_leaves_and_a_replaced_one_keeps_its_mode(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "new", b"1")
    finally:
        os.umask(before)
    assert mode(tmp_path / "new") == 0o640
    for kept in (0o600, 0o755, 0o444):
        (tmp_path / "new").chmod(kept)
        write_atomically(tmp_path / "new", b"2")
        assert mode(tmp_path / "new") == kept


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "real.csv").write_bytes(b"old")
    (tmp_path / "near.csv").symlink_to("far/real.csv")
    (tmp_path / "dangling.csv").symlink_to("far/new.csv")
    for name, real in (("near.csv", "real.csv"), ("dangling.csv", "new.csv")):
        write_atomically(tmp_path / name, b"new")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "far" / real).read_bytes() == b"new"
    assert sorted(p.name for p in (tmp_path / "far").iterdir()) == ["new.csv", "real.csv"]


def test_what_is_no_regular_file_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "to_pipe").symlink_to("pipe")
    refused = {**dict.fromkeys(("pipe", "to_pipe", "/dev/null"), "not a regular file"), "folder": "is a folder"}
    for name, said in {**refused, "loop": "cannot be written"}.items():
        with pytest.raises(InputError, match=said):
            write_atomically(tmp_path / name, b"x")
    assert (tmp_path / "pipe").is_fifo()


def test_a_folder_that_cannot_be_written_to_is_known_beforehand(tmp_path):
    check_writable(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir()), "nothing is left behind"
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file", tmp_path / "file" / "runs", "/proc/runs"):
        with pytest.raises(InputError, match="cannot be written"):
            check_writable(place)
