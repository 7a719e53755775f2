"""The readers of public data sets on small files of their formats, and on damaged ones."""

from __future__ import annotations

import gzip
import importlib
import io
import lzma
import os
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from compensate.data import digits, load, override_labels
from compensate.data.load import LAYOUTS, NAMED
from compensate.errors import InputError
from experiments.data import load_arrays, read_cifar, read_imdb, read_mnist, read_sst2
from experiments.data.readers import read_idx

LOADING = importlib.import_module("compensate.data.load")  # `compensate.data` has a function of that name
RNG = np.random.default_rng(0)


def tar(path: Path, files: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as out:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return path


def put(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


# CIFAR ----------------------------------------------------------------------------------------------------------------

NAMES10 = [f"c{i}" for i in range(10)]


def cifar_arrays(n: int = 4, classes: int = 10) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(1)
    parts = 6 if classes == 10 else 2
    return [(rng.integers(256, size=(n, 3072), dtype=np.uint8), rng.integers(classes, size=n)) for _ in range(parts)]


def packed_rows(x: np.ndarray, y: np.ndarray, ahead: bytes = b"") -> bytes:
    return b"".join(ahead + bytes([int(b)]) + a.tobytes() for a, b in zip(x, y, strict=True))


def cifar10(layout: str) -> dict[str, bytes]:
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    parts = dict(zip(names, cifar_arrays(), strict=True))
    if layout == "binary":
        files = {f"cifar-10-batches-bin/{name}.bin": packed_rows(x, y) for name, (x, y) in parts.items()}
        return files | {"cifar-10-batches-bin/batches.meta.txt": "\n".join(NAMES10).encode() + b"\n\n"}
    records = {name: {b"data": x, b"labels": y.tolist()} for name, (x, y) in parts.items()}
    records["batches.meta"] = {b"label_names": [n.encode() for n in NAMES10]}
    return {f"cifar-10-batches-py/{name}": pickle.dumps(record, protocol=2) for name, record in records.items()}


@pytest.mark.parametrize("layout", ["binary", "python"])
@pytest.mark.parametrize("packed", ["folder", "tar"])
def test_cifar10(tmp_path, layout, packed):
    files = cifar10(layout)
    path = tar(tmp_path / "cifar-10.tar.gz", files) if packed == "tar" else put(tmp_path, files)
    splits = read_cifar(path)
    arrays = cifar_arrays()
    assert np.array_equal(splits.train.x, np.concatenate([x for x, _ in arrays[:5]]).reshape(-1, 3, 32, 32))
    assert np.array_equal(splits.train.target, np.concatenate([y for _, y in arrays[:5]]))
    assert np.array_equal(splits.test.target, arrays[5][1])
    assert splits.train.classes == tuple(NAMES10)
    assert np.array_equal(splits.train.index, np.arange(20))
    assert len(load("cifar10", tmp_path, download=False).train) == 20
    assert len(load(path if packed == "tar" else next(path.iterdir())).train) == 20


@pytest.mark.parametrize("layout", ["binary", "python"])
def test_cifar100_has_the_fine_labels(tmp_path, layout):
    files = {}
    for name, (x, y) in zip(["train", "test"], cifar_arrays(3, 100), strict=True):
        if layout == "binary":
            files[f"cifar-100-binary/{name}.bin"] = packed_rows(x, y, b"\x07")
        else:
            record = {b"data": x, b"fine_labels": y.tolist(), b"coarse_labels": [7] * 3}
            files[f"cifar-100-python/{name}"] = pickle.dumps(record, protocol=2)
    splits = read_cifar(put(tmp_path, files), 100)
    assert np.array_equal(splits.train.target, cifar_arrays(3, 100)[0][1])
    assert np.array_equal(splits.test.x.reshape(3, -1), cifar_arrays(3, 100)[1][0])
    assert len(load("cifar-100", tmp_path, download=False).train) == 3


class Evil:
    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self):
        return os.mkdir, (self.target,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_runs_code_is_refused(tmp_path, protocol):
    trap = tmp_path / "ran"
    files = cifar10("python")
    files["cifar-10-batches-py/data_batch_2"] = pickle.dumps({"data": Evil(str(trap))}, protocol=protocol)
    with pytest.raises(InputError, match=r"mkdir.*not run"):
        read_cifar(tar(tmp_path / "c.tar.gz", files))
    assert not trap.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\nfromfile\n(S'x'\ntR.",
        b"c_codecs\ndecode\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\nscalar\n(N}S'value'\nI1\nstb.",  # sets an attribute of a class of ours
        b"Pself\n.",
        b"N" + b"r\xff\xff\xff\x7f" + b".",  # remembers None at place 2 billion
        pickle.dumps(np.array([{"a": {1}}], dtype=object)),
        pickle.dumps(np.zeros(3))[:-20],
        pickle.dumps({"a": {1, 2}}),
        b"",
    ],
)
def test_other_pickles_are_refused_too(content):
    with pytest.raises(InputError):
        load_arrays(content, "x")
    assert load_arrays(pickle.dumps(np.float32(2)), "x") == 2, "and the reader is as before"


@pytest.mark.parametrize("dtype", ["u1", "<i4", ">i4", "f8", "?", "<U3", "S2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_survive_the_restricted_reader(dtype, order):
    x = np.asarray(RNG.integers(0, 2, size=(3, 4)).astype(dtype), order=order)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        got = load_arrays(pickle.dumps({"x": x, "n": [np.int16(4), None, (1.5, True)]}, protocol=protocol), "x")
        assert np.array_equal(got["x"], x)
        assert got["n"] == [4, None, (1.5, True)]


def test_a_pickle_that_multiplies_stays_small():
    bomb: list = ["x"]
    for _ in range(60):
        bomb = [bomb, bomb]
    got = load_arrays(pickle.dumps(bomb), "x")
    assert got[0] is got[1]
    assert got[0][0] is got[0][1]


@pytest.mark.parametrize("keep", [0.3, 0.9, 0.999])
@pytest.mark.parametrize(("mode", "suffix"), [("w:gz", "gz"), ("w:xz", "xz"), ("w", "tar")])
def test_a_truncated_archive_is_an_error(tmp_path, keep, mode, suffix):
    whole = tar(tmp_path / f"a.tar.{suffix}", cifar10("binary"), mode).read_bytes()
    if suffix == "tar":
        keep = min(keep, 0.8)  # the end of a plain archive is only zeros
    cut = tmp_path / f"cifar-10-cut.tar.{suffix}"
    cut.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(InputError, match=r"damaged|lacks"):
        read_cifar(cut)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([f"a.tar.{suffix}", cut.name]), "nothing was unpacked"


# idx ------------------------------------------------------------------------------------------------------------------


def idx(x: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{x.ndim}I", 0, 0, 8, x.ndim, *x.shape) + x.astype(np.uint8).tobytes()


def mnist(folder: Path, n: int = 5) -> Path:
    files = {}
    for part in ("train", "t10k"):
        files[f"{part}-images-idx3-ubyte.gz"] = gzip.compress(idx(RNG.integers(256, size=(n, 28, 28))))
        files[f"{part}-labels-idx1-ubyte"] = idx(np.arange(n) % 10)
    return put(folder, files)


def test_mnist(tmp_path):
    splits = read_mnist(mnist(tmp_path / "mnist"))
    assert splits.train.x.shape == (5, 1, 28, 28)
    assert splits.train.x.dtype == np.uint8
    assert splits.test.target.tolist() == [0, 1, 2, 3, 4]
    mnist(tmp_path / "fashion-mnist")
    assert load("fashion-mnist", tmp_path, download=False).train.classes[9] == "Ankle boot"
    assert len(load(tmp_path / "mnist").train) == 5


@pytest.mark.parametrize(("code", "kind"), [(9, "i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4"), (0x0E, ">f8")])
def test_idx_types(tmp_path, code, kind):
    x = np.arange(6).reshape(2, 3).astype(kind)
    (tmp_path / "x").write_bytes(struct.pack(">BBBBII", 0, 0, code, 2, 2, 3) + x.tobytes())
    assert np.array_equal(read_idx(tmp_path / "x"), x)


# Corpora --------------------------------------------------------------------------------------------------------------

SST = {"train.tsv": b"a fine film\t1\nit 's \"awful\t0\n", "dev.tsv": b"good\t1", "test.tsv": b"bad\t0\nfun\t1"}
GLUE = {
    "SST-2/train.tsv": b"sentence\tlabel\na fine film \t1\nawful \t0\n",
    "SST-2/dev.tsv": b"sentence\tlabel\ngood\t1\n",
    "SST-2/test.tsv": b"index\tsentence\n0\tbad\n1\tfun\n",
}


def test_sst2_tsv(tmp_path):
    splits = read_sst2(put(tmp_path / "sst2", SST))
    assert splits.train.x.tolist() == ["a fine film", "it 's \"awful"]
    assert splits.train.target.tolist() == [1, 0]
    assert (len(splits.validation), len(splits.test)) == (1, 2)
    assert len(load("sst2", tmp_path, download=False).train) == 2


def test_sst2_glue_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "SST-2.zip", "w") as out:
        for name, content in GLUE.items():
            out.writestr(name, content)
    splits = load("SST-2", tmp_path, download=False)
    assert splits.train.target.tolist() == [1, 0]
    assert splits.validation.x.tolist() == ["good"]
    assert splits.test is None, "GLUE's test part has no labels"
    whole = (tmp_path / "SST-2.zip").read_bytes()
    (tmp_path / "SST-2.zip").write_bytes(whole[:-30])
    with pytest.raises(InputError, match="damaged"):
        load("sst2", tmp_path, download=False)


def imdb_files(n: int = 30) -> dict[str, bytes]:
    return {
        f"aclImdb/{part}/{sign}/{i}_{score}.txt": f"{sign} {part} {i} café".encode()
        for part in ("train", "test")
        for sign, score in (("neg", 1), ("pos", 9))
        for i in range(n)
    } | {"aclImdb/train/unsup/0_0.txt": b"?", "aclImdb/README": b"x"}


@pytest.mark.parametrize("packed", ["folder", "tar"])
def test_imdb_folders(tmp_path, packed):
    files = imdb_files()
    path = tar(tmp_path / "aclImdb_v1.tar.gz", files) if packed == "tar" else put(tmp_path, files) / "aclImdb"
    splits = load("imdb", tmp_path, download=False)
    assert len(read_imdb(path).train) == 60
    for part, name in ((splits.train, "train"), (splits.test, "test")):
        assert sorted(part.index) == list(range(60))
        for text, y, i, file in zip(part.x, part.target, part.index, part.ids, strict=True):
            sign = ("neg", "pos")[y]
            assert text == f"{sign} {name} {i % 30} café"
            assert i // 30 == y, "index counts the sorted files"
            assert file.startswith(f"{name}/{sign}/{i % 30}_")
        assert 0 < part.target[:20].mean() < 1, "no longer sorted by class"


@pytest.mark.parametrize("suffix", ["tsv", "tsv.xz", "csv"])
def test_imdb_tables(tmp_path, suffix):
    sep = "\t" if suffix.startswith("tsv") else ","
    lines = [sep.join(["split", "label", "id", "text"])]
    for i in range(40):
        lines.append(sep.join([("test", "train")[i % 2], str(i // 20), f"r{i}", f"this is the review number {i}"]))
    content = "\n".join(lines).encode()
    (tmp_path / f"imdb.{suffix}").write_bytes(lzma.compress(content) if suffix.endswith("xz") else content)
    splits = load("imdb", tmp_path, download=False)
    assert sorted(splits.train.index) == list(range(1, 40, 2)), "rows of the file"
    assert splits.train.rows == 40
    assert splits.train.classes == ("negative", "positive")
    assert all(y == i // 20 for y, i in zip(splits.train.target, splits.train.index, strict=True))
    assert splits.test.ids[0] == f"r{splits.test.index[0]}"


# Pickled labels and the registry --------------------------------------------------------------------------------------


def test_label_pickles_are_read_without_running(tmp_path):
    trap = tmp_path / "ran"
    np.save(tmp_path / "evil.npy", np.array({"a": Evil(str(trap))}, dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="not run"):
        override_labels(digits(), tmp_path / "evil.npy")
    assert not trap.exists()


def test_pickled_label_sets_are_read(tmp_path):
    data = digits()
    human = {"clean_label": data.target, "worse_label": (np.arange(1797) * 7) % 10}
    np.save(tmp_path / "human.npy", human, allow_pickle=True)
    with zipfile.ZipFile(tmp_path / "human.pt", "w") as out:
        out.writestr("human/data.pkl", pickle.dumps(human, protocol=2))
    for name in ("human.npy", "human.pt"):
        got = override_labels(data, tmp_path / name, "worse_label")
        assert np.array_equal(got.target, human["worse_label"]), name


def test_the_package_alone_says_where_public_sets_and_pickles_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("compensate.data.label_files.PICKLE_READERS", [])
    monkeypatch.setattr(LOADING, "NAMED", {"digits": NAMED["digits"]})
    monkeypatch.setattr(LOADING, "LAYOUTS", [])
    with pytest.raises(InputError, match=r"no data set has the name .*python -m experiments train cifar10"):
        load("cifar10")
    mnist(tmp_path / "mnist")
    with pytest.raises(InputError, match=r"read in a checkout: python -m experiments"):
        load(tmp_path / "mnist")
    np.save(tmp_path / "human.npy", {"a": np.zeros(3)}, allow_pickle=True)
    with pytest.raises(InputError, match=r"is a pickle.*python -m experiments audit"):
        override_labels(digits(), tmp_path / "human.npy")
    assert len(LAYOUTS) == 5
