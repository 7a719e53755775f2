"""Samples from arrays and numpy files: features and images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compensate.data.dataset import UNLABELED, Dataset, Source, Splits
from compensate.data.label_files import read_labels
from compensate.data.labels import encode_labels
from compensate.errors import InputError
from compensate.files import numpy_damage, read_numpy

MAPPED = 1 << 28
"""Larger .npy files, in bytes, are memory-mapped."""

X = ("x", "features", "embeddings", "data", "images")
Y = ("y", "labels", "label", "target", "targets")


def from_arrays(x: ArrayLike, y: ArrayLike | None, classes: Any = None, *, where: str = "x") -> Dataset:
    """A data set from samples (N, F) or images (N, C, H, W), (N, H, W, C), (N, H, W), and labels (N,).

    Labels are class numbers, names, or floats with a fractional part for regression. Without labels every row is
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
        samples = samples.astype(np.float32, copy=False)
        broken = not_finite(samples)
        if len(broken):
            raise InputError(
                f"{where} has a value that is not a finite number in {len(broken)} rows, the first {broken[0]}. Fill "
                "or remove these rows."
            )
    else:
        raise InputError(f"{where} has shape {samples.shape}; expected (N, features) or images.")
    source = Source(kind="images" if samples.ndim == 4 else "features")
    names = None if classes is None else tuple(str(c) for c in classes)
    if y is None:
        return Dataset(samples, np.full(len(samples), UNLABELED, dtype=np.int64), names or (), source=source)
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (len(samples),):
        raise InputError(f"{where} has {len(samples)} samples, and the labels have shape {labels.shape}.")
    if labels.dtype.kind == "f" and (np.mod(labels[np.isfinite(labels)], 1) != 0).any():
        return Dataset(samples, labels.astype(np.float64), (), source=source)
    return Dataset(samples, *encode_labels(labels, names), source=source)


def not_finite(samples: NDArray[Any], block: int = 1 << 24) -> NDArray[np.int64]:
    """Rows with a value that is not finite; reads about ``block`` values at a time."""
    size = max(1, block // max(1, samples.shape[1]))
    rows = [k + np.flatnonzero(~np.isfinite(samples[k : k + size]).all(1)) for k in range(0, len(samples), size)]
    return np.concatenate(rows) if rows else np.empty(0, np.int64)


def as_images(x: NDArray[Any], where: str) -> NDArray[Any]:
    """Images as (N, C, H, W), bytes or floats in [0, 1], from (N, C, H, W), (N, H, W, C) or (N, H, W).

    >>> as_images(np.zeros((5, 32, 32, 3), np.uint8), "x").shape
    (5, 3, 32, 32)
    """
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[1] not in (1, 3, 4) and x.shape[3] in (1, 3, 4):
        x = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    if x.ndim != 4:
        raise InputError(f"{where} has shape {x.shape}; images are (N, C, H, W), (N, H, W, C) or (N, H, W).")
    if x.dtype == np.uint8:
        return x
    x = x.astype(np.float32)
    low, high = (float(x.min()), float(x.max())) if x.size else (0.0, 0.0)
    if not (low >= 0 and high <= 1):
        raise InputError(
            f"{where} holds images with values from {low:g} to {high:g}; expected bytes (uint8) or floats in [0, 1]. "
            "Divide by 255, or undo the normalization: the model's first layer does it."
        )
    return x


def channel_statistics(images: Any) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel for pixels in [0, 1]; a constant channel has deviation 1.

    >>> channel_statistics(np.array([[[[0, 255]]]], dtype=np.uint8))
    ([0.5], [0.5])
    """
    scale = 255.0 if images.dtype == np.uint8 else 1.0
    means, deviations = [], []
    for c in range(images.shape[1]):
        channel = images[:, c]
        mean = channel.sum(dtype=np.float64) / channel.size / scale
        # In parts: a float64 copy of the channel would take more memory than the images.
        square = sum(float((part.astype(np.float64) ** 2).sum()) for part in np.array_split(channel, 16))
        means.append(round(float(mean), 6))
        deviations.append(round(float(max(square / channel.size / scale**2 - mean**2, 0.0) ** 0.5), 6) or 1.0)
    return means, deviations


def read_npz(path: str | Path, *, labels: str | Path | None = None) -> Splits:
    """Samples and labels from an .npz, or from an .npy with its labels in another file.

    An .npz holds ``x`` (or features, embeddings, data, images) and ``y`` (or labels, target), and optionally ``classes``, the
    names; or ``x_train``, ``y_train``, ``x_test``, ``y_test``. Pickled objects are refused.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.savez(folder / "data.npz", x=np.eye(3), y=np.array([0, 1, 0]))
    >>> len(read_npz(folder / "data.npz").train)
    3
    """
    path = Path(path)
    if path.suffix.lower() == ".npy" and path.is_file() and path.stat().st_size > MAPPED:
        with numpy_damage(path):
            found: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    else:
        found = read_numpy(path)
    y = None if labels is None else read_labels(labels).cells
    if isinstance(found, np.ndarray):
        return Splits(from_arrays(found, y, where=str(path)))
    classes = next((found[k] for k in ("classes", "class_names") if k in found), None)

    def array(names: tuple[str, ...], part: str) -> Any:
        keys = [k for k in found if k.lower() in {n + part for n in names}]
        if len(keys) > 1:
            raise InputError(f"{path} holds {' and '.join(keys)}; keep one of them.")
        return found[keys[0]] if keys else None

    part = "_train" if any(k.endswith("_train") for k in found) else ""
    x = array(X, part)
    if x is None:
        raise InputError(f"{path} holds {', '.join(found) or 'nothing'}; expected samples under {', '.join(X)}.")
    train = from_arrays(x, array(Y, part) if y is None else y, classes, where=str(path))
    x_test = array(X, "_test") if part else None
    if x_test is None:
        return Splits(train)
    names = train.classes if classes is None else classes
    return Splits(train, from_arrays(x_test, array(Y, "_test"), names, where=str(path)))
