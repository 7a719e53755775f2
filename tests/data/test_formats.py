"""Each reader on small files of its format, and on damaged ones."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import pickle
import struct
import tarfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from compensate import files
from compensate.auditing.source import read as audited
from compensate.data import (
    UNLABELED,
    from_arrays,
    from_hub,
    load,
    override_labels,
    read_cifar,
    read_folder,
    read_idx,
    read_imdb,
    read_labels,
    read_mnist,
    read_npz,
    read_sst2,
    read_table,
    read_vectors,
    tables,
)
from compensate.data.labels import encode_labels
from compensate.data.tables import read_frame
from compensate.data.unpickle import load_arrays
from compensate.errors import InputError

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


def cifar10(layout: str) -> dict[str, bytes]:
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    files = {}
    for name, (x, y) in zip(names, cifar_arrays(), strict=True):
        if layout == "binary":
            files[f"cifar-10-batches-bin/{name}.bin"] = b"".join(
                bytes([int(b)]) + a.tobytes() for a, b in zip(x, y, strict=True)
            )
        else:
            files[f"cifar-10-batches-py/{name}"] = pickle.dumps({b"data": x, b"labels": y.tolist()}, protocol=2)
    if layout == "binary":
        files["cifar-10-batches-bin/batches.meta.txt"] = "\n".join(NAMES10).encode() + b"\n\n"
    else:
        files["cifar-10-batches-py/batches.meta"] = pickle.dumps(
            {b"label_names": [n.encode() for n in NAMES10]}, protocol=2
        )
    return files


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
            files[f"cifar-100-binary/{name}.bin"] = b"".join(
                bytes([7, int(b)]) + a.tobytes() for a, b in zip(x, y, strict=True)
            )
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


def test_cifar_damage(tmp_path):
    files = cifar10("binary")
    short = dict(files)
    short["cifar-10-batches-bin/data_batch_3.bin"] = short["cifar-10-batches-bin/data_batch_3.bin"][:-5]
    with pytest.raises(InputError, match=r"data_batch_3.bin.*multiple"):
        read_cifar(put(tmp_path / "short", short))
    wrong = dict(files)
    wrong["cifar-10-batches-bin/test_batch.bin"] = b"\xff" * 3073
    with pytest.raises(InputError, match=r"outside 0\.\.9"):
        read_cifar(put(tmp_path / "wrong", wrong))
    del files["cifar-10-batches-bin/data_batch_4.bin"]
    with pytest.raises(InputError, match=r"lacks data_batch_4.bin"):
        read_cifar(put(tmp_path / "lost", files))
    other = cifar10("python")
    other["cifar-10-batches-py/data_batch_1"] = pickle.dumps({b"data": np.zeros((2, 5), np.uint8), b"labels": [1, 2]})
    with pytest.raises(InputError, match="no array of images"):
        read_cifar(put(tmp_path / "shape", other))


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


def test_mnist_damage(tmp_path):
    folder = mnist(tmp_path)
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(np.arange(5))[:-1])
    with pytest.raises(InputError, match="It is damaged"):
        read_mnist(folder)
    (folder / "t10k-labels-idx1-ubyte").write_bytes(b"<html>")
    with pytest.raises(InputError, match="not an idx file"):
        read_mnist(folder)
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(np.arange(4)))
    with pytest.raises(InputError, match="do not fit"):
        read_mnist(folder)
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(InputError, match="t10k-labels-idx1-ubyte"):
        read_mnist(folder)
    images = folder / "train-images-idx3-ubyte.gz"
    images.write_bytes(images.read_bytes()[:-100])
    with pytest.raises(InputError, match="damaged"):
        read_mnist(folder)


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


@pytest.mark.parametrize(
    ("files", "hint"),
    [
        ({**SST, "dev.tsv": b"good\t2"}, "row 1"),
        ({**SST, "train.tsv": b"good\t1\nno label\n"}, "row 2"),
        ({**SST, "train.tsv": b"fine\t1\ncaf\xe9\t1\n"}, "line 2.*0xe9"),
        ({**SST, "train.tsv": b""}, "no sentences"),
        ({"train.tsv": b"a\t1"}, "lacks dev.tsv"),
    ],
)
def test_sst2_damage(tmp_path, files, hint):
    with pytest.raises(InputError, match=hint):
        read_sst2(put(tmp_path, files))


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


def test_imdb_without_a_split(tmp_path):
    rows = "\n".join(f'"it was, say, a film of kind {i}",{("positive", "negative")[i % 2]}' for i in range(20))
    (tmp_path / "IMDB Dataset.csv").write_text("review,sentiment\n" + rows)
    splits = load("imdb", tmp_path, download=False)
    assert splits.test is None
    assert all(y == 1 - i % 2 for y, i in zip(splits.train.target, splits.train.index, strict=True))


def test_imdb_damage(tmp_path):
    with pytest.raises(InputError, match="train/pos"):
        read_imdb(put(tmp_path / "a", {"x.txt": b""}))
    with pytest.raises(InputError, match="is empty"):
        read_imdb(put(tmp_path / "b", {"train/pos/0_9.txt": b"good"}))
    with pytest.raises(InputError, match="0xff"):
        read_imdb(put(tmp_path / "c", {"train/pos/0_9.txt": b"good", "train/neg/0_1.txt": b"bad \xff"}))


# Folders of images ----------------------------------------------------------------------------------------------------


def picture(path: Path, value: int, size: tuple[int, int] = (8, 6), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 255)).save(path)


def test_image_folder(tmp_path):
    for i in range(4):
        picture(tmp_path / ("dog", "cat")[i % 2] / f"{i}.png", i * 10)
    data = read_folder(tmp_path).train
    assert data.classes == ("cat", "dog")
    assert data.ids.tolist() == ["cat/1.png", "cat/3.png", "dog/0.png", "dog/2.png"]
    assert data.target.tolist() == [0, 0, 1, 1]
    assert data.x.shape == (4, 3, 6, 8)
    assert data.x[:, 0, 0, 0].tolist() == [10, 30, 0, 20]
    assert load(tmp_path, size=5).train.x.shape == (4, 3, 5, 5)


def test_image_folder_in_parts_and_sizes(tmp_path):
    for part in ("train", "test"):
        for i in range(4):
            picture(tmp_path / part / "ab"[i % 2] / f"{i}.jpg", i, (70 + i, 80), "L")
    splits = load(tmp_path)
    assert splits.train.x.shape == (4, 1, 64, 64)
    assert splits.test.x.shape == (4, 1, 64, 64)
    assert splits.validation is None


def test_images_with_a_label_file(tmp_path):
    for i in range(3):
        picture(tmp_path / f"{i}.png", i)
    (tmp_path / "labels.csv").write_text("file,label\n2.png,dog\n0.png,cat\n")
    data = load(tmp_path).train
    assert data.target.tolist() == [0, UNLABELED, 1]
    (tmp_path / "other.csv").write_text("file,label\n2.png,cat\n1.png,cat\n0.png,dog\n")
    assert load(tmp_path, labels=tmp_path / "other.csv").train.target.tolist() == [1, 0, 0]
    (tmp_path / "other.csv").write_text("file,label\n9.png,cat\n")
    with pytest.raises(InputError, match=r"9\.png"):
        load(tmp_path, labels=tmp_path / "other.csv")


def test_unreadable_images_are_named_and_left_out(tmp_path):
    for i in range(4):
        picture(tmp_path / "ab"[i % 2] / f"{i}.png", i)
    whole = (tmp_path / "a/0.png").read_bytes()
    (tmp_path / "a/0.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "b/1.png").write_bytes(b"not an image")
    with pytest.warns(UserWarning, match=r"2 images.*0\.png, 1\.png"):
        data = load(tmp_path).train
    assert data.index.tolist() == [1, 3], "the index still counts all files"
    assert data.rows == 4


def test_image_folder_damage(tmp_path):
    with pytest.raises(InputError, match="no folder"):
        read_folder(tmp_path / "x")
    with pytest.raises(InputError, match="no images"):
        read_folder(put(tmp_path / "a", {"b/c.txt": b""}))
    picture(tmp_path / "one/cat/1.png", 1)
    with pytest.raises(InputError, match="one class cat"):
        read_folder(tmp_path / "one")
    (tmp_path / "one/dog").mkdir()
    with pytest.raises(InputError, match="dog hold no images"):
        read_folder(tmp_path / "one")
    picture(tmp_path / "one/loose.png", 1)
    with pytest.raises(InputError, match=r"loose\.png.*labels\.csv"):
        read_folder(tmp_path / "one")
    with pytest.raises(InputError, match="none of the 2"):
        read_folder(put(tmp_path / "bad", {"a/1.png": b"?", "b/2.png": b"?"}))


# Arrays ---------------------------------------------------------------------------------------------------------------


def test_npz_and_npy(tmp_path):
    x, y = RNG.normal(size=(6, 3)), np.array([3, 1, 3, 1, 3, 3])
    np.savez(tmp_path / "a.npz", x=x, y=y)
    data = load(tmp_path / "a.npz").train
    assert np.allclose(data.x, x)
    assert data.classes == ("1", "3")
    assert data.target.tolist() == [1, 0, 1, 0, 1, 1]
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.array(["b", "a"] * 3))
    data = load(tmp_path / "x.npy", labels=tmp_path / "y.npy").train
    assert data.target.tolist() == [1, 0] * 3
    assert not load(tmp_path / "x.npy").train.labeled.any()
    assert load(tmp_path / "x.npy", labels=y).train.classes == ("1", "3")
    np.savez(
        tmp_path / "k.npz",
        x_train=np.zeros((4, 5, 5), np.uint8),
        y_train=y[:4],
        x_test=np.zeros((2, 5, 5), np.uint8),
        y_test=y[:2],
    )
    splits = read_npz(tmp_path / "k.npz")
    assert splits.test.x.shape == (2, 1, 5, 5)
    assert splits.test.target.tolist() == [1, 0]
    np.savez(tmp_path / "c.npz", images=np.zeros((2, 5, 5, 3), np.uint8), labels=[0, 1], classes=["ant", "bee"])
    data = read_npz(tmp_path / "c.npz").train
    assert data.x.shape == (2, 3, 5, 5)
    assert data.classes == ("ant", "bee")
    np.savez(tmp_path / "r.npz", x=x, y=x[:, 0])
    assert read_npz(tmp_path / "r.npz").train.regression


def _object_npy(path: Path) -> None:
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda p: p.with_suffix(".npz").write_bytes(b"PK\3\4broken"), "damaged"),
        (lambda p: _object_npy(p.with_suffix(".npy")), "pickled objects"),
        (lambda p: np.savez(p.with_suffix(".npz"), z=[1]), "holds z"),
        (lambda p: np.savez(p.with_suffix(".npz"), x=[[1.0]], data=[[1.0]]), "keep one"),
        (lambda p: np.savez(p.with_suffix(".npz"), x=[[1.0], [np.nan]], y=[0, 1]), "the first 1"),
        (lambda p: np.savez(p.with_suffix(".npz"), x=[[1.0], [2.0]], y=[0, 1, 2]), "2 samples"),
        (lambda p: np.savez(p.with_suffix(".npz"), x=np.full((2, 4, 4), 200.0), y=[0, 1]), "Divide by 255"),
        (lambda p: np.save(p.with_suffix(".npy"), np.zeros(3)), "shape"),
        (lambda p: np.save(p.with_suffix(".npy"), np.array([["a"]])), "expected numbers"),
    ],
)
def test_array_damage(tmp_path, make, hint):
    make(tmp_path / "a")
    (file,) = tmp_path.iterdir()
    with pytest.raises(InputError, match=hint):
        load(file)


# Labels from elsewhere ------------------------------------------------------------------------------------------------


def base():
    return load("digits").train


def test_label_files_override(tmp_path):
    data = base()
    full = (np.arange(1797) * 7) % 10
    np.save(tmp_path / "full.npy", full)
    (tmp_path / "lines.txt").write_text("\n".join(map(str, full)))
    pd.DataFrame({"label": full}).to_csv(tmp_path / "column.csv", index=False)
    human = {"clean_label": data.target, "worse_label": full}
    np.save(tmp_path / "human.npy", human, allow_pickle=True)
    pickled = pickle.dumps(human, protocol=2)
    with zipfile.ZipFile(tmp_path / "human.pt", "w") as out:
        out.writestr("human/data.pkl", pickled)
    for name, key in [
        ("full.npy", None),
        ("lines.txt", None),
        ("column.csv", None),
        ("human.npy", "worse_label"),
        ("human.pt", "worse_label"),
    ]:
        got = override_labels(data, tmp_path / name, key)
        assert np.array_equal(got.target, full[data.index]), name
        assert np.array_equal(got.index, data.index)
    assert np.array_equal(load("digits", labels=tmp_path / "full.npy").train.target, full[data.index])


def test_class_numbers_and_names_are_not_mixed():
    data = from_arrays(np.zeros((4, 2)), [1, 3, 3, 1])
    assert override_labels(data, [0, 1, 1, 1]).target.tolist() == [0, 1, 1, 1], "class numbers"
    assert override_labels(data, [1, 1, 3, 3]).target.tolist() == [0, 0, 1, 1], "class names"
    with pytest.raises(InputError, match="not a known class"):
        override_labels(data, [0, 3, 1, 1])


def test_a_table_of_labels_overrides_its_rows_only(tmp_path):
    data = base()
    rows = data.index[[3, 10]]
    outside = np.setdiff1d(np.arange(1797), data.index)[0]
    (tmp_path / "some.csv").write_text(f"index,label\n{rows[0]},4\n{rows[1]},\n{outside},3\n")
    got = override_labels(data, tmp_path / "some.csv").target
    assert got[3] == 4
    assert got[10] == UNLABELED
    assert np.array_equal(np.delete(got, [3, 10]), np.delete(data.target, [3, 10]))


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ("index,label\n0,4\n0,5\n", "more than once"),
        ("index,label\n99999,4\n", r"outside 0\.\."),
        ("index,label\nx,4\n", "row numbers"),
        ("index,label\n0,owl\n", '"owl" of row 0'),
        ("id,label\n0,1\n", "no ids"),
        ("a,b\n0,1\n", "Say which"),
        ("label\n1\n2\n3\n", "expected one for each"),
    ],
)
def test_label_file_damage(tmp_path, content, hint):
    data = base().subset([0, 1])
    assert 0 in data.index
    (tmp_path / "labels.csv").write_text(content)
    with pytest.raises(InputError, match=hint):
        override_labels(data, tmp_path / "labels.csv")


def test_label_pickles_are_read_without_running(tmp_path):
    trap = tmp_path / "ran"
    np.save(tmp_path / "evil.npy", np.array({"a": Evil(str(trap))}, dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="not run"):
        override_labels(base(), tmp_path / "evil.npy")
    assert not trap.exists()


# Tables ---------------------------------------------------------------------------------------------------------------


def reviews(n: int = 40) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "review": [f"the film number {i}, it was “odd”" for i in range(n)],
            "stars": [str(i % 17) for i in range(n)],
            "sentiment": [("pos", "neg")[i % 2] for i in range(n)],
        }
    )


@pytest.mark.parametrize("suffix", ["csv", "tsv", "csv.gz", "parquet"])
def test_text_tables(tmp_path, suffix):
    path = tmp_path / f"r.{suffix}"
    if suffix == "parquet":
        reviews().to_parquet(path)
    else:
        reviews().to_csv(path, index=False, sep="\t" if suffix == "tsv" else ",")
    data = load(path).train
    assert (data.source.text, data.source.label) == ("review", "sentiment")
    assert data.x.tolist() == reviews()["review"].tolist()
    assert data.target.tolist() == [1, 0] * 20
    assert data.classes == ("neg", "pos")
    assert data.raw.shape == (40, 3)
    other = load(path, label="stars", text="").train
    assert other.source.text is None
    assert other.num_classes == 17
    assert other.classes[:3] == ("0", "1", "2")


def test_semicolons_quotes_and_marks(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes('\ufefftext;label\n"a; b ""c""\nd";007\nx;7\n\n'.encode())
    data = read_table(path, text="text").train
    assert data.x.tolist() == ['a; b "c"\nd', "x"]
    assert set(data.classes) == {"007", "7"}, "cells are kept as written"


def test_quotes_in_a_tsv_are_letters(tmp_path):
    (tmp_path / "a.tsv").write_text('text\tlabel\n"so called\t1\nthe end"\t0\n')
    assert read_table(tmp_path / "a.tsv", text="text").train.x.tolist() == ['"so called', 'the end"']


def test_rows_without_a_label_stay(tmp_path):
    (tmp_path / "a.csv").write_text("f,label\n1,a\n2,\n3,b\n4,NaN\n5,a\n")
    data = load(tmp_path / "a.csv").train
    assert data.target.tolist() == [0, -1, 1, -1, 0]


def test_regression_is_seen(tmp_path):
    pd.DataFrame({"a": range(50), "y": np.linspace(0, 1, 50)}).to_csv(tmp_path / "a.csv", index=False)
    data = load(tmp_path / "a.csv").train
    assert data.regression
    assert np.allclose(data.target, np.linspace(0, 1, 50))
    assert data.classes == ()
    assert not load(tmp_path / "a.csv", task="classification").train.regression
    pd.DataFrame({"a": range(50), "target": np.arange(50) % 4}).to_csv(tmp_path / "b.csv", index=False)
    assert load(tmp_path / "b.csv").train.num_classes == 4
    assert load(tmp_path / "b.csv", task="regression").train.regression


@pytest.mark.parametrize(
    ("content", "options", "hint"),
    [
        (b"a,b\n1,2\n", {"label": "lable"}, 'no column "lable"; known: a, b'),
        (b"review,sentiment\nx,2\n", {"label": "sentimnt"}, 'did you mean "sentiment"'),
        (b"a,label\n1,2\n", {"text": "b"}, 'no column "b"'),
        (b"a,b,c\n" + b"1,2,3\n3,4,5\n" * 9, {}, r"any of 3 columns: c .2 values"),
        (b"label,y,a\n1,2,3\n3,4,5\n", {}, r"any of 2 columns: label .*; y "),
        (b"a,b\n" + "".join(f"{i}.5,{i}.25\n" for i in range(200)).encode(), {}, "its columns are a, b"),
        (b"a,label\n1,x\n2,x\n", {}, 'one value "x"'),
        (b"a,label\n1,\n2,\n", {}, "is empty"),
        (b"label\nx\ny\n", {}, "nothing but the label"),
        (b"a,label\n", {}, "no rows"),
        (b"", {}, "is empty"),
        (b"a,label\n1,x,3,4\n2,y\n", {}, "line 2 has 4 cells, and the header 2"),
        (b'a,label\n"1\n\n",x\r\n\n2,y\n"3\n",z,4\n', {}, "begins in line 7 has 3 cells, and the header 2"),
        (b'a,label\n0,x\n"1,x\n2,y\n', {}, "a quote in the row that begins in line 3 is not closed"),
        (b'a,label\n"1\n",' + b"x" * 200_000 + b"\n1,2,3\n", {}, "Expected 2 fields in row 3, saw 3"),
        (b"a,label\n1,x\ncaf\xe9,y\n", {}, "line 3.*0xe9"),
        (b"a,label\n1,x\n2,y\n", {"task": "ranking"}, "ranking"),
        (b"a,label\n1,x\n2,y\n", {"task": "regression"}, '"x", which is not a number'),
        (b"a,label\n1,x\n2,y\n", {"encoding": "klingon"}, "klingon"),
        (b"a,label,split\n1,x,train\n2,y,later\n", {}, 'says "later"'),
        (b"a,label\n1,x\n2,y\n", {"delimiter": ";"}, r'holds no ";".*Leave the delimiter out'),
        ("a,label\n1,x\n2,y\n".encode("utf-16"), {}, "--encoding utf-16"),
        (b"PK\x03\x04\xff\xfe", {}, "Excel workbook"),
        (b"a,label\n1,x\n2,y\n", {"color": 1}, "color"),
    ],
)
def test_table_damage(tmp_path, content, options, hint):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(InputError, match=hint):
        load(tmp_path / "t.csv", **options)


def test_other_encodings(tmp_path):
    (tmp_path / "t.csv").write_bytes("name,label\ncafé,x\nthé,y\n".encode("latin-1"))
    data = load(tmp_path / "t.csv", encoding="latin-1", text="name").train
    assert data.x.tolist() == ["café", "thé"]


def test_damaged_parquet_and_compressed(tmp_path):
    reviews().to_parquet(tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole[:-10])
    with pytest.raises(InputError, match="Parquet"):
        load(tmp_path / "a.parquet")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a,label\n1,x\n" * 1000)[:-12])
    with pytest.raises(InputError, match="damaged"):
        load(tmp_path / "a.csv.gz")


# Hugging Face ---------------------------------------------------------------------------------------------------------


class ClassLabel:
    def __init__(self, names):
        self.names = names


class Value:
    pass


class Hub:
    """What `datasets.Dataset` offers of itself."""

    def __init__(self, columns, features):
        self.columns, self.features = columns, features
        self.column_names = list(columns)

    def __getitem__(self, name):
        return self.columns[name]

    def __len__(self):
        return len(next(iter(self.columns.values())))


def test_hub_texts():
    columns = {"text": [f"it was film number {i}" for i in range(6)], "label": [0, 1, 2, 0, 1, 0]}
    part = Hub(columns, {"text": Value(), "label": ClassLabel(["bad", "fair", "good"])})
    hidden = Hub({**columns, "label": [-1] * 6}, part.features)
    splits = load({"train": part, "validation": part})
    assert splits.train.classes == ("bad", "fair", "good")
    assert splits.train.target.tolist() == columns["label"]
    assert splits.train.x.tolist() == columns["text"]
    assert len(splits.validation) == 6
    assert load(part).test is None
    assert not from_hub(hidden, label="label").train.labeled.any()
    with pytest.raises(InputError, match="named train"):
        load({"all": part})


def test_hub_parts_share_classes_and_features():
    plain = {"a": Value(), "b": Value(), "label": Value()}
    train = Hub({"a": [1.0, 2.0, 3.0, 6.0], "b": ["u", "v", "u", "v"], "label": ["x", "y", "z", "x"]}, plain)
    test = Hub({"a": [9.0, None], "b": ["v", "w"], "label": ["z", "y"]}, plain)
    splits = load({"train": train, "test": test})
    assert splits.test.classes == splits.train.classes == ("x", "y", "z")
    assert splits.test.target.tolist() == [2, 1]
    assert splits.test.x[0].tolist() == pytest.approx([(9 - 3) / np.std([1, 2, 3, 6]), 0, np.sqrt(2)])
    assert splits.test.x[1].tolist() == pytest.approx([(2.5 - 3) / np.std([1, 2, 3, 6]), 0, 0])


def test_hub_images():
    image = type("Image", (), {})()
    pictures = [Image.new("RGB", (4, 5), (i, 0, 0)) for i in range(3)]
    data = load(Hub({"img": pictures, "label": [0, 1, 0]}, {"img": image, "label": ClassLabel(["a", "b"])})).train
    assert data.x.shape == (3, 3, 5, 4)
    assert data.x[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert data.target.tolist() == [0, 1, 0]


# Names and paths ------------------------------------------------------------------------------------------------------


def test_unknown_names_and_kinds(tmp_path):
    with pytest.raises(InputError, match='did you mean "cifar10"'):
        load("cifar1")
    with pytest.raises(InputError, match="list"):
        load([1, 2])
    (tmp_path / "a.xyz").write_text("?")
    with pytest.raises(InputError, match="no kind of data"):
        load(tmp_path / "a.xyz")


def test_splits_and_data_pass_through():
    splits = load("digits")
    assert load(splits) is splits
    assert load(splits.train).train is splits.train
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "label": ["x", "y", "x"]})
    assert load(frame).train.target.tolist() == [0, 1, 0]


def test_a_class_keeps_the_tab_that_all_its_cells_have():
    target, classes = encode_labels(["\t=1", " cat", "cat", "\t=1 ", "dog\n", "dog"])
    assert classes == ("\t=1", "cat", "dog"), "blanks never count, other signs where all cells have them"
    assert target.tolist() == [0, 1, 1, 0, 2, 2]
    assert encode_labels(["\t=1", "cat\n"], classes)[0].tolist() == [0, 1]


def test_a_text_of_megabytes_is_no_class():
    with pytest.raises(InputError, match=r"label of row 1 has 10,001 characters; .* 10,000 at most"):
        encode_labels(["a", "x" * 10_001])


def test_labels_that_are_lists_are_refused_and_other_lists_are_left_out(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"size": np.arange(20.0), "tags": [["a", "b"], []] * 10, "label": [["x"], ["y"]] * 10})
    frame.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r'column "label" of .* holds lists; expected one label a row'):
        load(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r'column "tags" of .* holds lists'):
        load(frame.assign(label=["x", "y"] * 10), label="tags")
    with pytest.raises(InputError, match=r'column "label" of .* holds lists'):
        load(frame.assign(label=[1, ["x"]] * 10))
    with pytest.warns(UserWarning, match="the columns tags hold lists, which are not used"):
        data = load(frame.assign(label=["x", "y"] * 10)).train
    assert data.x.shape == (20, 1)


def test_a_table_has_a_bounded_number_of_columns(tmp_path):
    wide = [f"c{j}" for j in range(100_000)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join([",".join(wide), *[",".join(["1"] * 100_000)] * 20]))
    begun = time.process_time()
    with pytest.raises(InputError, match="has 100,000 columns; a table with at most 10,000 is read"):
        load(path)
    with pytest.raises(InputError, match="has 100,000 columns"):
        load(pd.DataFrame(np.zeros((2, 100_000)), columns=wide))
    assert time.process_time() - begun < 5


def test_a_line_without_end_is_refused_before_it_is_read(tmp_path):
    size = 1 << 30
    for name, read in (("a.csv", load), ("a.txt", read_labels), ("v.txt", read_vectors)):
        with open(tmp_path / name, "wb") as out:
            out.write(b"word 1 2\n" if name == "v.txt" else b"text,label\n")
            out.truncate(size)  # a gigabyte of zeros, which takes no room on the disk
        begun = time.process_time()
        with pytest.raises(InputError, match="line of more than 16,777,216 bytes"):
            read(tmp_path / name)
        assert time.process_time() - begun < 5


@pytest.mark.parametrize("repeated", ["number", "text"])
def test_a_parquet_file_that_unpacks_without_end_is_refused(tmp_path, monkeypatch, repeated):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = 2_000_000 if repeated == "number" else 20_000
    value = pyarrow.array(["x" * 4000]) if repeated == "text" else pyarrow.array([1.5])
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(rows, np.int32)), value)
    dense = column.cast(pyarrow.string()) if repeated == "text" else column.dictionary_decode()
    parquet.write_table(pyarrow.table({"a": dense, "label": dense}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 40_000
    monkeypatch.setattr(files, "SMALL_FILE", 1 << 23)
    with pytest.raises(InputError, match="which no data set does"):
        load(tmp_path / "a.parquet")


# Files that are not what their names say --------------------------------------------------------------------------


BEGINNINGS = {
    "a PNG image": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
    "a JPEG image": b"\xff\xd8\xff\xe0\x00\x10JFIF",
    "a GIF image": b"GIF89a\x80\xff",
    "a PDF document": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3",
    "a zip archive": b"PK\x03\x04\x80",
    "a gzip file": gzip.compress(b"text,label\n"),
    "an xz file": lzma.compress(b"text,label\n"),
    "a Parquet file": b"PAR1\x15\x04\x15\xff",
    "an older Office file": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
    "a numpy file": b"\x93NUMPY\x01\x00",
    "an SQLite database": b"SQLite format 3\x00\xff",
}


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
@pytest.mark.parametrize("kind", BEGINNINGS)
def test_a_file_of_another_kind_is_named_and_no_encoding_is_advised(tmp_path, kind, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(BEGINNINGS[kind] + bytes(40))
    with pytest.raises(InputError, match=f"begins like {kind}") as caught:
        load(path)
    assert "--encoding" not in str(caught.value)


def test_zero_bytes_are_no_text(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"text,label\n\xff\x00\x01\x02")
    with pytest.raises(InputError, match="zero bytes, which a text file does not have"):
        load(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_bytes("text,label\né,b\n".encode("latin-1"))
    with pytest.raises(InputError, match="--encoding latin-1"):
        load(tmp_path / "a.csv")


HEADERLESS = {
    "numbers": lambda i: f"{i % 7}.5,{i % 3}.25,{'ab'[i % 2]}",
    "texts": lambda i: f"{'very good film' if i % 2 else 'a dull film'} {i},{'pos' if i % 2 else 'neg'}",
    "label first": lambda i: f"{i % 2},{i * 37 % 101},{i * 17 % 89}",
    "repeated values": lambda i: f"red,red,{'ab'[i % 2]}",
    "one column": lambda i: "cat" if i % 2 else "dog",
}
HEADED = {
    "names": ("size,color,label", lambda i: f"{i},red,{'ab'[i % 2]}"),
    "names of pandas": ("0,1,2", lambda i: f"{i % 5}.5,{i % 3},{i % 2}"),
    "years": ("town,1990,1991", lambda i: f"{'rome' if i % 2 else 'oslo'},{i},{i * 2}"),
    "consecutive years": ("1990,1991,1992", lambda i: f"{i},{i * 2},{i % 2}"),
    "a value as a name": ("text,spam", lambda i: f"{'very good film' if i % 2 else 'a dull film'} {i},{'spam' if i % 2 else 'ham'}"),
    "an index": (",0,1", lambda i: f"{i},{i % 5}.5,{i % 2}"),
}  # fmt: skip


@pytest.mark.parametrize("read", [load, read_labels])
@pytest.mark.parametrize("name", HEADERLESS)
def test_a_first_line_that_is_a_row_is_refused(tmp_path, name, read):
    path = tmp_path / "a.csv"
    path.write_text("\n".join(map(HEADERLESS[name], range(40))))
    with pytest.raises(InputError, match=r"first line .* looks like a row and not like names of columns"):
        read(path)


def test_who_names_a_column_says_that_the_first_line_holds_names(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("\n".join(map(HEADERLESS["label first"], range(40))))
    assert len(load(path, label="0").train) == 39
    assert len(read_labels(path, "0").cells) == 39


def test_an_excel_sheet_without_names_is_refused(tmp_path):
    pytest.importorskip("openpyxl")
    rows = pd.DataFrame([(i % 7 + 0.5, "ab"[i % 2]) for i in range(40)])
    rows.to_excel(tmp_path / "a.xlsx", index=False, header=False)
    with pytest.raises(InputError, match="looks like a row"):
        load(tmp_path / "a.xlsx")


@pytest.mark.parametrize("name", HEADED)
def test_names_of_columns_are_not_taken_for_a_row(tmp_path, name):
    header, row = HEADED[name]
    path = tmp_path / "a.csv"
    path.write_text("\n".join([header, *map(row, range(40))]))
    frame = read_frame(path)
    tables.check_header(frame, path)
    assert len(frame) == 40


def test_conversations_without_a_label_are_refused_with_what_is_expected(tmp_path):
    path = tmp_path / "chat.jsonl"
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    path.write_text("\n".join(json.dumps({"messages": chat}) for _ in range(40)))
    with pytest.raises(InputError, match=r'holds lists .*messages.*\{"text": "...", "label": "..."\}'):
        load(path)
    with pytest.raises(InputError, match="messages"):
        audited(path, None, None, {})
    path.write_text("\n".join(json.dumps({"messages": chat, "label": "ab"[i % 2]}) for i in range(40)))
    with pytest.warns(UserWarning, match="messages"), pytest.raises(InputError, match=r"lists.*messages"):
        load(path)


def test_lists_beside_columns_that_could_be_the_label_do_not_stop_the_reader(tmp_path):
    path = tmp_path / "a.jsonl"
    rng = np.random.default_rng(0)
    rows = [
        {"notes": ["a", "b"], **{name: "abc"[rng.integers(3)] for name in ("one", "two", "three")}} for _ in range(60)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.warns(UserWarning, match="notes"), pytest.raises(InputError, match="could be any of 3 columns"):
        audited(path, None, None, {})
