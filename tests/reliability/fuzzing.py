"""Small valid files of every format that is read, and ways to damage them.

`python tests/reliability/fuzzing.py 10000 results/fuzz.json` damages each format so many times and stores the counts.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import signal
import struct
import sys
import tempfile
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image

from compensate.auditing.corrections import read_corrections
from compensate.data import Splits, load
from compensate.data.cifar import read_cifar
from compensate.data.corpora import read_imdb, read_sst2
from compensate.data.idx import read_mnist
from compensate.data.labels import read_labels
from compensate.errors import InputError
from compensate.training import Config, checkpoint, read_toml

SECONDS = 20
"""Of the processor, after which a reader hangs."""

RNG = np.random.default_rng(0)

Files = dict[str, bytes]


def table(separator: str) -> bytes:
    rows = [f'{RNG.normal():.3f}{separator}"w{i % 4} x"{separator}{"abc"[i % 3]}' for i in range(24)]
    return "\n".join([separator.join(("size", "word", "label")), *rows]).encode()


def parquet() -> bytes:
    out = io.BytesIO()
    pd.DataFrame({"size": np.arange(20.0), "word": ["u", "v"] * 10, "label": ["a", "b", "b", "a"] * 5}).to_parquet(out)
    return out.getvalue()


def saved(write: Callable[..., None], *args: Any, **named: Any) -> bytes:
    out = io.BytesIO()
    write(out, *args, **named)
    return out.getvalue()


def idx(x: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{x.ndim}I", 0, 0, 8, x.ndim, *x.shape) + x.astype(np.uint8).tobytes()


def png(value: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (6, 5), (value, 0, 255)).save(out, "PNG")
    return out.getvalue()


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


def stored_checkpoint() -> Files:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(folder, 3, {"x": torch.arange(6.0), "at": {"step": 3, "history": [{"loss": 0.5}]}})
        return {p.name: p.read_bytes() for p in Path(folder).iterdir()}


def stored_weights() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save_weights(Path(folder) / "w", {"a": torch.arange(6.0), "b": torch.ones(2, 2)})
        return (Path(folder) / "w").read_bytes()


TOML = b'method = "logcomp"\nnoise = "pair:0.2"\nepochs = 3\nlr = 0.1\nseed = 1\n[hyper]\nlam = 0.1\n[model_options]\nhidden = [8]\n'
CORRECTIONS = b"index,given,decision,label\n0,cat,accept,dog\n3,dog,reject,dog\n7,'=1+1,other,cat\n8,cat,skip,\n"
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

FORMATS: dict[str, tuple[Files, Callable[[Path], Any]]] = {
    "csv": ({"a.csv": table(",")}, lambda folder: load(folder / "a.csv")),
    "csv.gz": ({"a.csv.gz": gzip.compress(table(","), mtime=0)}, lambda folder: load(folder / "a.csv.gz")),
    "tsv": ({"a.tsv": table("\t")}, lambda folder: load(folder / "a.tsv")),
    "parquet": ({"a.parquet": parquet()}, lambda folder: load(folder / "a.parquet")),
    "npz": ({"a.npz": saved(np.savez, x=X, y=Y)}, lambda folder: load(folder / "a.npz")),
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
    "labels-csv": ({"l.csv": b"index,label\n0,cat\n1,dog\n"}, lambda folder: read_labels(folder / "l.csv")),
    "labels-txt": ({"l.txt": b"cat\ndog\n"}, lambda folder: read_labels(folder / "l.txt")),
    "labels-npy": (
        {"l.npy": saved(np.save, np.array({"clean": Y, "noisy": Y}, dtype=object), allow_pickle=True)},
        lambda folder: read_labels(folder / "l.npy", "noisy"),
    ),
    "labels-pt": (
        {"l.pt": saved(lambda out: torch.save({"noisy": Y}, out))},
        lambda folder: read_labels(folder / "l.pt"),
    ),
    "corrections": ({"c.csv": CORRECTIONS}, lambda folder: read_corrections(folder / "c.csv")),
    "checkpoint": (stored_checkpoint(), checkpoint.latest),
    "weights": ({"w.safetensors": stored_weights()}, lambda folder: checkpoint.load_weights(folder / "w.safetensors")),
    "toml": ({"run.toml": TOML}, lambda folder: Config.of(read_toml(folder / "run.toml"), "run.toml")),
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


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
