"""Samples from arrays and numpy files: features and images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compensate.data.dataset import UNLABELED, Dataset, Source, Splits
from compensate.data.labels import encode_labels, is_quantity
from compensate.errors import InputError
from compensate.files import numpy_damage, read_numpy

MAPPED = 1 << 28  # larger .npy files, in bytes, are memory-mapped
X = ("x", "features", "embeddings", "data", "images")
Y = ("y", "labels", "label", "target", "targets")


def from_arrays(x: ArrayLike, y: ArrayLike | None, classes: Any = None, *, where: str = "x") -> Dataset:
    """A data set from samples (N, F) or images (N, C, H, W), (N, H, W, C), (N, H, W), and labels (N,).

    Labels are class numbers, names, or floats with a fractional part for regression. Without labels every row is `UNLABELED`.

    >>> from_arrays(np.zeros((3, 2)), ["b", "a", "b"]).classes
    ('a', 'b')
    """
    samples = np.asarray(x)
    if samples.dtype.kind not in "biuf":
        raise InputError(f"{where} is of the type {samples.dtype}; expected numbers.")
    if samples.ndim < 2:
        raise InputError(f"{where} has shape {samples.shape}; expected (N, features) or images.")
    samples = as_images(samples, where) if samples.ndim > 2 else samples.astype(np.float32, copy=False)
    if samples.ndim == 2 and len(broken := not_finite(samples)):
        raise InputError(f"{where} is not finite in {len(broken)} rows, the first {broken[0]}. Fill or remove them.")
    source = Source(kind="images" if samples.ndim == 4 else "features")
    names = None if classes is None else tuple(str(c) for c in classes)
    if y is None:
        return Dataset(samples, np.full(len(samples), UNLABELED, dtype=np.int64), names or (), source=source)
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (len(samples),):
        raise InputError(f"{where} has {len(samples)} samples, and the labels have shape {labels.shape}.")
    if is_quantity(labels):
        return Dataset(samples, labels.astype(np.float64), (), source=source)
    return Dataset(samples, *encode_labels(labels, names), source=source)


def not_finite(samples: NDArray[Any], block: int = 1 << 24) -> NDArray[np.int64]:
    """Rows with a value that is not finite; reads about ``block`` values at a time."""
    size = max(1, block // max(1, samples.shape[1]))
    rows = [k + np.flatnonzero(~np.isfinite(samples[k : k + size]).all(1)) for k in range(0, len(samples), size)]
    return np.concatenate(rows) if rows else np.empty(0, np.int64)


def as_images(x: NDArray[Any], where: str) -> NDArray[Any]:
    """Images as (N, C, H, W), bytes or floats in [0, 1], from (N, C, H, W), (N, H, W, C) or (N, H, W)."""
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
        problem = f"{where} holds images with values from {low:g} to {high:g}"
        remedy = "Divide by 255, or undo the normalization: the model's first layer does it"
        raise InputError(f"{problem}; expected bytes (uint8) or floats in [0, 1]. {remedy}.")
    return x


def channel_statistics(images: Any) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel for pixels in [0, 1]; a constant channel has deviation 1.

    >>> channel_statistics(np.array([[[[0, 255]]]], dtype=np.uint8))
    ([0.5], [0.5])
    """
    scale = 255.0 if images.dtype == np.uint8 else 1.0
    count = images[:, 0].size
    means = images.sum((0, 2, 3), dtype=np.float64) / count / scale
    # In parts: a float64 copy of all images would take more memory than the images.
    squares = sum((part.astype(np.float64) ** 2).sum((0, 2, 3)) for part in np.array_split(images, 64))
    deviations = np.sqrt(np.maximum(squares / count / scale**2 - means**2, 0.0))
    return means.round(6).tolist(), [round(float(deviation), 6) or 1.0 for deviation in deviations]


def read_npz(path: str | Path) -> Splits:
    """Samples and labels from an .npz, or samples from an .npy.

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
            arrays: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    else:
        arrays = read_numpy(path)
    if isinstance(arrays, np.ndarray):
        return Splits(from_arrays(arrays, None, where=str(path)))
    classes = next((arrays[k] for k in ("classes", "class_names") if k in arrays), None)
    parts: list[Dataset] = []
    for part in ("_train", "_test") if any(k.endswith("_train") for k in arrays) else ("",):
        held: dict[str, Any] = {}
        for kind, names in (("x", X), ("y", Y)):
            keys = [k for k in arrays if k.lower() in {name + part for name in names}]
            if len(keys) > 1:
                raise InputError(f"{path} holds {' and '.join(keys)}; keep one of them.")
            held[kind] = arrays[keys[0]] if keys else None
        if held["x"] is not None:
            parts.append(from_arrays(held["x"], held["y"], classes, where=str(path)))
            classes = parts[0].classes if classes is None else classes
        elif not parts:
            raise InputError(f"{path} holds {', '.join(arrays) or 'nothing'}; expected samples under {', '.join(X)}.")
    return Splits(*parts)
