"""Features or images in numpy files, and plain arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compensate.data.dataset import UNLABELED, Dataset, Source, Splits
from compensate.data.images import as_images
from compensate.data.labels import encode_labels, read_labels
from compensate.errors import InputError
from compensate.files import numpy_damage, read_numpy

MAPPED = 1 << 28
"""An .npy file with more bytes than this is mapped into memory and read as it is needed."""

X = ("x", "features", "embeddings", "data", "images")
Y = ("y", "labels", "label", "target", "targets")


def from_arrays(x: ArrayLike, y: ArrayLike | None, classes: Any = None, *, where: str = "x") -> Dataset:
    """A data set from samples (N, F) or images (N, C, H, W), (N, H, W, C), (N, H, W), and labels (N,).

    Labels are class numbers, names, or floats with a fractional part for regression; without labels every row is
    `UNLABELED`.

    >>> from_arrays(np.zeros((3, 2)), ["b", "a", "b"]).classes
    ('a', 'b')
    """
    samples = np.asarray(x)
    if samples.dtype.kind not in "biuf":
        raise InputError(f"{where} is of the type {samples.dtype}; expected numbers.")
    if samples.ndim >= 3:
        samples = as_images(samples, where)
    elif samples.ndim == 2:
        samples = samples.astype(np.float32, copy=False)  # not a second copy of what may be most of the memory
        broken = not_finite(samples)
        if len(broken):
            raise InputError(
                f"{where} has a value that is not a finite number in {len(broken)} rows, the first {broken[0]}. Fill "
                "or remove these rows."
            )
    else:
        raise InputError(f"{where} has shape {samples.shape}; expected (N, features) or images.")
    source = Source(kind="images" if samples.ndim == 4 else "features")
    if y is None:
        names = tuple(str(c) for c in classes) if classes is not None else ()
        return Dataset(samples, np.full(len(samples), UNLABELED, dtype=np.int64), names, source=source)
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (len(samples),):
        raise InputError(f"{where} has {len(samples)} samples, and the labels have shape {labels.shape}.")
    if labels.dtype.kind == "f" and (np.mod(labels[np.isfinite(labels)], 1) != 0).any():
        return Dataset(samples, labels.astype(np.float64), (), source=source)
    target, names = encode_labels(labels, None if classes is None else [str(c) for c in classes])
    return Dataset(samples, target, names, source=source)


def not_finite(samples: NDArray[Any], block: int = 1 << 24) -> NDArray[np.int64]:
    """Rows with a value that is not a finite number, looked for block by block."""
    size = max(1, block // max(1, samples.shape[1]))
    found = [
        first + np.flatnonzero(~np.isfinite(samples[first : first + size]).all(1))
        for first in range(0, len(samples), size)
    ]
    return np.concatenate(found) if found else np.empty(0, np.int64)


def read_npz(path: str | Path, *, labels: str | Path | None = None) -> Splits:
    """Samples and labels from an .npz, or from an .npy with its labels in another file.

    An .npz holds ``x`` (or features, embeddings, data, images) and ``y`` (or labels, target); perhaps ``classes``, the
    names; or ``x_train``, ``y_train``, ``x_test``, ``y_test``. Nothing pickled is read.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.savez(folder / "data.npz", x=np.eye(3), y=np.array([0, 1, 0]))
    >>> len(read_npz(folder / "data.npz").train)
    3
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}; check the path.")
    found = _load(path)
    y = read_labels(labels).cells if labels is not None else None
    if isinstance(found, np.ndarray):
        return Splits(from_arrays(found, y, where=str(path)))
    classes = next((found[k] for k in ("classes", "class_names") if k in found), None)
    if any(k.endswith("_train") for k in found):
        x_train, y_train, x_test, y_test = (
            _one(found, names, path, part) for part in ("_train", "_test") for names in (X, Y)
        )
        train = from_arrays(x_train, y if y is not None else y_train, classes, where=str(path))
        if x_test is None:
            return Splits(train)
        return Splits(
            train, from_arrays(x_test, y_test, classes if classes is not None else train.classes, where=str(path))
        )
    x = _one(found, X, path)
    if x is None:
        raise InputError(f"{path} holds {', '.join(found) or 'nothing'}; expected samples under {', '.join(X)}.")
    return Splits(from_arrays(x, y if y is not None else _one(found, Y, path), classes, where=str(path)))


def _load(path: Path) -> Any:
    if path.suffix.lower() == ".npy" and path.stat().st_size > MAPPED:
        with numpy_damage(path):
            return np.load(path, mmap_mode="r", allow_pickle=False)
    return read_numpy(path)


def _one(found: dict[str, NDArray[Any]], names: tuple[str, ...], path: Path, part: str = "") -> Any:
    here = [k for k in found if k.lower() in {n + part for n in names}]
    if len(here) > 1:
        raise InputError(f"{path} holds {' and '.join(here)}; keep one of them, so that it is clear which is meant.")
    return found[here[0]] if here else None
