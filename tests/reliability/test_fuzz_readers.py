"""Damaged files of every format: a result or a clear error; never another exception, a hang, or a silent NaN.

`python tests/reliability/test_fuzz_readers.py 10000 results/fuzz.json` damages each format so many times and stores the counts; then
it reads each hostile input in a process of its own and stores what that took.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import signal
import struct
import sys
import tempfile
import time
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from compensate.auditing.decisions import read_corrections
from compensate.auditing.labels.votes import find_consensus, long_votes, wide_votes
from compensate.auditing.result import Audit
from compensate.auditing.source import read as read_audited
from compensate.data import Splits, load, read_vectors
from compensate.data.dataset import Estimate, Source
from compensate.data.label_files import read_labels
from compensate.data.tables import read_frame
from compensate.errors import InputError
from compensate.files import SMALL_FILE
from compensate.training import Config, checkpoint, read_toml
from experiments.data import read_cifar, read_imdb, read_mnist, read_sst2

pytestmark = pytest.mark.slow

COUNT = int(os.environ.get("FUZZ", "100"))
SECONDS = 20
"""Of the processor, after which a reader hangs."""

RNG = np.random.default_rng(0)

Files = dict[str, bytes]
Format = tuple[Files, Callable[[Path], Any]]
"""Files by name, and the reader of their folder."""
Hostile = tuple[Callable[[Path, int], Any], Callable[[Path], Any]]


FRAME = pd.DataFrame({"size": np.arange(20.0), "word": ["u", "v"] * 10, "label": ["a", "b", "b", "a"] * 5})


def saved(write: Callable[..., Any], *args: Any, **named: Any) -> bytes:
    out = io.BytesIO()
    write(out, *args, **named)
    return out.getvalue()


def stored(write: Callable[[Path], Any]) -> Files:
    """The files that are written to a folder."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return {p.name: p.read_bytes() for p in sorted(Path(folder).iterdir())}


def table(separator: str) -> bytes:
    rows = [f'{RNG.normal():.3f}{separator}"w{i % 4} x"{separator}{"abc"[i % 3]}' for i in range(24)]
    return "\n".join([separator.join(("size", "word", "label")), *rows]).encode()


def jsonl() -> bytes:
    rows = [{"size": round(RNG.normal(), 3), "word": f"w{i % 4} \u00e9", "label": "abc"[i % 3]} for i in range(24)]
    return "\n".join(map(json.dumps, rows)).encode()


def repacked(workbook: bytes, **changed: bytes) -> bytes:
    """A workbook without compression: the checksum of the archive would refuse most damage before it is read."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(workbook)) as packed, zipfile.ZipFile(out, "w") as plain:
        for name in packed.namelist():
            plain.writestr(name, changed.get(Path(name).stem, packed.read(name)))
    return out.getvalue()


def damaged_sheet(folder: Path) -> Any:
    """A workbook whose sheet was damaged before it was packed."""
    (folder / "a.xlsx").write_bytes(repacked(EXCEL, sheet1=(folder / "sheet1.xml").read_bytes()))
    return load(folder / "a.xlsx")


def saved_dataset(folder: Path) -> None:
    import datasets

    rows = {"size": np.arange(20.0), "word": ["u", "v"] * 10, "label": [0, 1, 1, 0] * 5}
    datasets.Dataset.from_dict(rows).save_to_disk(str(folder))


def idx(x: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{x.ndim}I", 0, 0, 8, x.ndim, *x.shape) + x.astype(np.uint8).tobytes()


def image(mode: str, color: Any) -> bytes:
    return saved(Image.new(mode, (6, 5), color).save, "PNG")


def png(value: int) -> bytes:
    return image("RGB", (value, 0, 255))


X, Y = RNG.normal(size=(12, 3)).astype(np.float32), np.arange(12) % 3
PIXELS = RNG.integers(256, size=(2, 3072), dtype=np.uint8)


def cifar(layout: str) -> Files:
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    if layout == "binary":
        return {f"{n}.bin": b"".join(bytes([i]) + PIXELS[i].tobytes() for i in range(2)) for n in names}
    files = {n: pickle.dumps({b"data": PIXELS, b"labels": [0, 1]}, protocol=2) for n in names}
    return files | {"batches.meta": pickle.dumps({b"label_names": [b"c%d" % i for i in range(10)]}, protocol=2)}


def mnist() -> Files:
    images, labels = idx(RNG.integers(256, size=(3, 4, 4))), idx(np.arange(3))
    return {
        f"{part}-{kind}": content
        for part in ("train", "t10k")
        for kind, content in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels))
    }


def store_checkpoint(folder: Path) -> None:
    checkpoint.save_checkpoint(folder, 3, {"x": torch.arange(6.0), "at": {"step": 3, "history": [{"loss": 0.5}]}})


def store_run(folder: Path) -> None:
    """The part of a run's folder that is read again."""
    p = RNG.random(12)
    source = Source(title="pets.csv", path="pets.csv", label="label", digest="sha256:0123456789abcdef")
    audit = Audit(
        kind="table", source=source, classes=("cat", "dog", "fox"), index=np.arange(12), given=Y, suggested=(Y + 1) % 3,
        log_odds=np.log(p / (1 - p)), p_error=p, evidence={"margin": RNG.normal(size=12)}, noise_rate=Estimate(0.1, 0.0, 0.2),
        ids=tuple(f"k{i}" for i in range(12)),
        probabilities=RNG.random((12, 3)).astype(np.float32), curves={"loss": [0.5, 0.25]},
        unlabeled={"index": np.array([12]), "suggested": np.array([1]), "probability": np.array([0.5])},
        notes=("a note",),
        row_digests=RNG.integers(1, 1 << 62, size=12).astype(np.uint64),
    )  # fmt: skip
    audit.save(folder)


def read_run(folder: Path, *, trusting: bool = False) -> Any:
    """What `apply --accept` and a report read of a run; `trusting`: as if the checksum in it were right."""
    if trusting:
        try:
            texts = json.loads((folder / "audit.json").read_bytes())
            texts["arrays"] = hashlib.sha256((folder / "audit.npz").read_bytes()).hexdigest()
            (folder / "audit.json").write_text(json.dumps(texts))
        except (ValueError, TypeError, RecursionError):
            pass  # too damaged to be made right
    try:
        found = Audit.load(folder)
    finally:
        (folder / "audit.json").write_bytes(RUN["audit.json"])
    found.write_suspects(folder / "suspects.csv")
    found.report(folder / "report.html")
    return found.accepted(0.5)


EXCEL = repacked(saved(FRAME.to_excel, index=False))
RUN = stored(store_run)
TOML = b'method = "logcomp"\nnoise = "pair:0.2"\nepochs = 3\nlr = 0.1\nseed = 1\n[hyper]\nlam = 0.1\n[model_options]\nhidden = [8]\n'
CORRECTIONS = (
    b"index,given,decision,label,row,source\n0,cat,accept,dog,sha256:0123456789abcdef,sha256:fedcba9876543210\n"
    b"3,dog,reject,dog,,\n7,'=1+1,other,cat,,\n8,cat,skip,,,\n"
)
SST: Files = {
    "train.tsv": b"a fine film\t1\nawful\t0\nso so\t1\n",
    "dev.tsv": b"good\t1\nbad\t0\n",
    "test.tsv": b"bad\t0\nfun\t1",
}
IMDB: Files = {
    f"{part}/{sign}/{i}_{score}.txt": f"{sign} {i} café".encode()
    for part in ("train", "test")
    for sign, score in (("neg", 1), ("pos", 9))
    for i in range(2)
}

SETS = b"text,labels\n" + b"".join(b"some words %d here,%s\n" % (k, (b"a;b", b"b", b"c;a")[k % 3]) for k in range(12))
COLUMNS = b"text,a,b\n" + b"".join(b"some words %d here,%d,%d\n" % (k, k % 2, k % 3 == 0) for k in range(12))
TOKENS = b"Ann\tB-per\nLee\tI-per\nruns\tO\n\n" * 4
LISTS = b'{"tokens": ["Ann", "runs"], "tags": ["B-per", "O"], "id": 1}\n' * 4
MASKS: Files = {
    **{f"images/{i}.png": png(40 * i) for i in range(5)},
    **{f"masks/{i}.png": image("L", i % 2) for i in range(5)},
}


def read_source(path: Path, **options: Any) -> Any:
    """What an audit makes of a path; label sets, tags and masks come with it."""
    return read_audited(path, None, None, options).source.digest


VOTES = b"text,ann,bob\ngood film,pos,pos\nbad film,neg,\ngreat,pos,neg\nawful,,neg\n"
LONG_VOTES = b"id,who,said\n1,ann,pos\n1,bob,pos\n2,ann,neg\n2,eve,pos\n3,bob,neg\n"


def read_votes(path: Path, *, long: bool) -> Any:
    """The consensus of a table of votes, of either form."""
    frame = read_frame(path)
    _, votes = long_votes(frame, "id", "who", "said") if long else wide_votes(frame, ["ann", "bob"])
    return find_consensus(votes).probabilities


def one(name: str, content: bytes, read: Callable[..., Any] = load, *args: Any, **named: Any) -> Format:
    """A format of one file."""
    return {name: content}, lambda folder: read(folder / name, *args, **named)


LABELED_DICT = np.array({"clean": Y, "noisy": Y}, dtype=object)
METADATA = b"\n".join(b'{"file_name": "%d.png", "label": "%s"}' % (i, (b"a", b"b")[i % 2]) for i in range(4))

FORMATS: dict[str, Format] = {
    "csv": one("a.csv", table(",")),
    "csv.gz": one("a.csv.gz", gzip.compress(table(","), mtime=0)),
    "tsv": one("a.tsv", table("\t")),
    "parquet": one("a.parquet", saved(FRAME.to_parquet)),
    "parquet-parts": ({f"a/{k}.parquet": saved(FRAME.to_parquet) for k in (1, 2)}, lambda folder: load(folder / "a")),
    "jsonl": one("a.jsonl", jsonl()),
    "jsonl.gz": one("a.jsonl.gz", gzip.compress(jsonl(), mtime=0)),
    "xlsx": one("a.xlsx", EXCEL),
    "xlsx-sheet": ({"sheet1.xml": zipfile.ZipFile(io.BytesIO(EXCEL)).read("xl/worksheets/sheet1.xml")}, damaged_sheet),
    "saved-dataset": (stored(saved_dataset), load),
    "images-metadata": ({"metadata.jsonl": METADATA, **{f"{i}.png": png(40 * i) for i in range(4)}}, load),
    "npz": one("a.npz", saved(np.savez, x=X, y=Y)),
    "npy": (
        {"a.npy": saved(np.save, X), "y.npy": saved(np.save, Y)},
        lambda folder: load(folder / "a.npy", labels=folder / "y.npy"),
    ),
    "idx": (mnist(), read_mnist),
    "cifar-binary": (cifar("binary"), read_cifar),
    "cifar-python": (cifar("python"), read_cifar),
    "sst2": (SST, read_sst2),
    "imdb": (IMDB, read_imdb),
    "images": ({f"{'ab'[i % 2]}/{i}.png": png(40 * i) for i in range(4)}, load),
    "labels-csv": one("l.csv", b"index,label\n0,cat\n1,dog\n", read_labels),
    "labels-txt": one("l.txt", b"cat\ndog\n", read_labels),
    "labels-npy": one("l.npy", saved(np.save, LABELED_DICT, allow_pickle=True), read_labels, "noisy"),
    "labels-pt": one("l.pt", saved(lambda out: torch.save({"noisy": Y}, out)), read_labels),
    "vectors": one("v.txt", b"film 1 2 3\nplot 3 4 5\nthe 0.5 -1 2e3\n", read_vectors),
    "run": (RUN, read_run),
    "run-trusted": (RUN, lambda folder: read_run(folder, trusting=True)),
    "corrections": one("c.csv", CORRECTIONS, read_corrections),
    "checkpoint": (stored(store_checkpoint), checkpoint.latest),
    "weights": (
        stored(lambda at: checkpoint.save_weights(at / "w", {"a": torch.arange(6.0), "b": torch.ones(2, 2)})),
        lambda folder: checkpoint.load_weights(folder / "w"),
    ),
    "label-sets": one("a.csv", SETS, read_source),
    "label-columns": one("a.csv", COLUMNS, read_source, labels_columns="a,b"),
    "conll": one("a.conll", TOKENS, read_source),
    "token-lists": one("a.jsonl", LISTS, read_source),
    "masks": (MASKS, read_source),
    "votes": one("a.csv", VOTES, read_votes, long=False),
    "votes-long": one("a.csv", LONG_VOTES, read_votes, long=True),
    "toml": one("run.toml", TOML, lambda path: Config.of(read_toml(path), "run.toml")),
}

WORDS = (
    b"nan", b"inf", b"1e999", b"-1", b"99999999999999999999", b'"', b"'", b",", b"\t", b"\n", b"\r\n", b"\0", b"\xff\xfe",
    b"\xef\xbb\xbf", b"=1+1", b"../", b"[", b"]", b"{", b"}", b"None", b"|O", b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0" * 8,
)  # fmt: skip


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """One to four changes: bits, cuts, repetitions, insertions, exchanges."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 5))):
        size = len(data)
        a, b = sorted(rng.integers(0, size + 1, size=2).tolist())
        b = min(b, a + int(rng.integers(1, 64)))
        kind = int(rng.integers(7))
        if kind == 0 and size:
            data[min(a, size - 1)] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del data[a:b]
        elif kind == 2:
            data[a:a] = data[a:b]
        elif kind == 3:
            data[a:a] = WORDS[int(rng.integers(len(WORDS)))]
        elif kind == 4:
            word = WORDS[int(rng.integers(len(WORDS)))]
            data[a : a + len(word)] = word
        elif kind == 5:
            data[a:b] = rng.bytes(b - a)
        elif rng.random() < 0.2:
            del data[a:]
    return bytes(data)


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Ends a reader that takes too long, in seconds of the processor."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds} seconds")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def silent(found: Any) -> bool:
    """True if something came back that is not finite."""
    if isinstance(found, Splits):
        return any(silent(part.x) for part in (found.train, found.test, found.validation) if part is not None)
    return isinstance(found, np.ndarray) and found.dtype.kind == "f" and not np.isfinite(found).all()


def fuzz(name: str, count: int, seed: int = 0) -> Counter[str]:
    """Damages the files of a format so many times; counts results and clear errors, and raises on anything else."""
    files, read = FORMATS[name]
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for file, content in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(content)
        for number in range(count):
            file = list(files)[int(rng.integers(len(files)))]
            bad = damaged(files[file], rng)
            (folder / file).write_bytes(bad)
            try:
                with warnings.catch_warnings(), within(SECONDS):
                    warnings.simplefilter("ignore")
                    found = read(folder)
                if silent(found):
                    raise AssertionError("numbers that are not finite came back without a word")
                outcomes["read"] += 1
            except InputError:
                outcomes["refused"] += 1
            except Exception as error:
                raise AssertionError(
                    f"{name}, mutation {number} of seed {seed}, {file}: {type(error).__name__}: {error}"
                ) from error
            (folder / file).write_bytes(files[file])
    return outcomes


def zeros(name: str, path: Path, size: int) -> None:
    """A zip archive with a file of zeros, which pack to a thousandth, after the header of an array of that size."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out, out.open(name, "w", force_zip64=True) as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (size,)})
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))


def packed_lines(path: Path, size: int) -> None:
    """A compressed CSV file; what follows a compressed file is another one, so that a part is compressed once."""
    part = gzip.compress(b"a,b\n" * (1 << 18))
    path.write_bytes(gzip.compress(b"word,label\n") + part * (size >> 20))


def repeated(path: Path, size: int) -> None:
    import pyarrow
    from pyarrow import parquet

    part = pyarrow.table({"size": np.ones(1 << 20), "label": pyarrow.array(np.ones(1 << 20))})
    with parquet.ParquetWriter(path, part.schema) as out:
        for _ in range(size >> 24):
            out.write_table(part)


def hostile_run(folder: Path, size: int) -> None:
    zeros("index.npy", folder / "audit.npz", size)
    texts = json.loads(RUN["audit.json"])
    texts["arrays"] = hashlib.sha256((folder / "audit.npz").read_bytes()).hexdigest()
    (folder / "audit.json").write_text(json.dumps(texts))


def long_line(path: Path, size: int) -> None:
    with open(path, "wb") as out:
        out.write(b"word,label\n")
        out.truncate(size)  # zeros, which take no room on the disk


def wide(path: Path, size: int, columns: int = 100_000) -> None:
    names = ",".join(f"c{j}" for j in range(columns))
    path.write_text("\n".join([names, *[",".join("1" * columns)] * 20]))


def promised(path: Path, size: int) -> None:
    with open(path, "wb") as out:
        np.lib.format.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": False, "shape": (size << 10,)})


def hostile(name: str, write: Callable[..., Any], read: Callable[..., Any] = load) -> Hostile:
    """A file that `write` makes, given the bytes that it unpacks to."""
    return lambda folder, size: write(folder / name, size), lambda folder: read(folder / name)


def long_labels(path: Path, size: int) -> None:
    path.write_text("n,label\n" + "".join(f"{i},{'abc'[i % 3] * (10_000_000 if i < 3 else 1)}\n" for i in range(1000)))


def wide_lines(path: Path, size: int) -> None:
    path.write_text(json.dumps({f"c{j}": 1 for j in range(10_000)}) + "\n" + "{}\n" * 300_000)


HOSTILE: dict[str, Hostile] = {
    "100,000 columns": hostile("a.csv", wide),
    "a line of 1 GB": hostile("a.csv", long_line),
    "labels of 10 MB": hostile("a.csv", long_labels),
    ".npz of 1 GB": hostile("a.npz", partial(zeros, "x.npy")),
    ".npz of 1 GB, labels": hostile("a.npz", partial(zeros, "y.npy"), read_labels),
    ".npy that promises 1 TB": hostile("a.npy", promised),
    ".csv.gz of 1 GB": hostile("a.csv.gz", packed_lines),
    ".parquet of 1 GB": hostile("a.parquet", repeated),
    ".jsonl of 10,000 columns, 300,000 rows": hostile("a.jsonl", wide_lines),
    ".xlsx of 1 GB": hostile("a.xlsx", partial(zeros, "xl/worksheets/sheet1.xml")),
    "run folder of 1 GB": (hostile_run, Audit.load),
}
"""Inputs made to take all memory or time: how they are written to a folder, and how they are read."""


def peak(field: str) -> int:
    """Megabytes of memory of this process: ``VmRSS`` now, ``VmHWM`` at its highest."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{field}:")[2].split()[0]) >> 10


def withstand(name: str, size: int = 1 << 30) -> dict[str, Any]:
    """Reads a hostile input in a process of its own; what came of it, and the seconds and megabytes it took."""
    write, read = HOSTILE[name]
    with tempfile.TemporaryDirectory() as place, tempfile.NamedTemporaryFile("w+") as told:
        write(Path(place), size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the child does not use
            child = os.fork()
        if not child:
            try:
                before = peak("VmRSS")
                Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the process that this is a copy of
                with within(SECONDS):
                    read(Path(place))
                outcome = "read"
            except InputError:
                outcome = "refused"
            except BaseException as error:
                outcome = f"{type(error).__name__}: {error}"
            finally:
                told.write(json.dumps({"outcome": outcome, "megabytes": max(0, peak("VmHWM") - before)}))
                told.flush()
                os._exit(0)
        _, _, used = os.wait4(child, 0)
        told.seek(0)
        found = json.loads(told.read() or '{"outcome": "killed", "megabytes": 0}')
    return {
        "outcome": found["outcome"],
        "seconds": round(used.ru_utime + used.ru_stime, 1),
        "megabytes": found["megabytes"],
    }


# Tests
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_read_or_refused(name):
    outcomes = fuzz(name, COUNT)
    assert sum(outcomes.values()) == COUNT
    # The damage is real; an image that cannot be read is left out with a warning instead.
    assert outcomes["refused"] or name == "images"


def test_undamaged_files_are_read(tmp_path):
    for name, (files, read) in FORMATS.items():
        for file, content in files.items():
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_bytes(content)
        assert read(tmp_path / name) is not None, name


@pytest.mark.parametrize("name", HOSTILE)
def test_what_was_made_to_fill_the_memory_is_refused(name):
    """More than a packed file may unpack to, and little enough to be made here."""
    took = withstand(name, SMALL_FILE + (1 << 26))
    assert took["outcome"] == "refused"
    assert took["seconds"] < SECONDS
    assert took["megabytes"] < 1024


def main(count: int, path: Path) -> None:
    """What a run before this one stored for as many mutations or more stays: delete the file to start again."""
    known = json.loads(path.read_text())["formats"] if path.is_file() else {}
    known = {name: found for name, found in known.items() if name in FORMATS and found["mutations"] >= count}
    stored: dict[str, Any] = {"command": "make fuzz FUZZ=<mutations>", "formats": known}
    for name in [name for name in FORMATS if name not in known]:
        begun = time.monotonic()
        outcomes = fuzz(name, count)
        stored["formats"][name] = {"mutations": count, **outcomes, "seconds": round(time.monotonic() - begun, 1)}
        path.write_text(json.dumps(stored, indent=1) + "\n")
        print(f"{name:14s} {dict(outcomes)}", flush=True)
    stored["hostile"] = {name: withstand(name) for name in HOSTILE}
    path.write_text(json.dumps(stored, indent=1) + "\n")
    print(json.dumps(stored["hostile"], indent=1), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
